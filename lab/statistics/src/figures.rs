//! Figures: measurements and ratios.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Version of the layout of results, as JSON.
pub const SCHEMA: u32 = 1;

/// Axes of a measurement with their values: `tool` → `dormouse`, `threads` → `2`. Plots take their axes from here.
pub type Labels = BTreeMap<String, String>;

/// A figure with its spread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the measured quantity; unique in its experiment.
    pub name: String,
    /// Unit of all figures: `ns`, `s`, `count`.
    pub unit: String,
    /// Number of rounds, without warm-up rounds.
    pub n: usize,
    /// The median.
    #[serde(deserialize_with = "number")]
    pub median: f64,
    /// Median of the absolute deviations from the median.
    #[serde(deserialize_with = "number")]
    pub mad: f64,
    /// The mean.
    #[serde(deserialize_with = "number")]
    pub mean: f64,
    /// Standard deviation of the rounds.
    #[serde(deserialize_with = "number")]
    pub stddev: f64,
    /// 95 % interval of the median; none from too few rounds.
    #[serde(deserialize_with = "interval")]
    pub ci95: Option<[f64; 2]>,
    /// Whether it is an exact count, the same each time, for example that of a model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_exact: bool,
    /// The median in cycles of the timestamp counter, if the unit is a time and the counter is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc_cycles: Option<f64>,
    /// Labels of the measurement.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// Counters of the kernel and the CPU for each iteration, without those that the machine refuses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, f64>,
    /// Values of the rounds, in the order of measurement.
    #[serde(default, deserialize_with = "samples", skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}

/// A ratio of two added costs, round by round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the form `a_vs_b`.
    pub name: String,
    /// The ratio of the medians.
    #[serde(deserialize_with = "number")]
    pub value: f64,
    /// 95 % interval of the ratio; none from too few rounds.
    #[serde(deserialize_with = "interval")]
    pub ci95: Option<[f64; 2]>,
    /// Ratio of the means, and its standard deviation by propagation of both costs' deviations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<[f64; 2]>,
}

impl Measurement {
    /// Makes an exact count.
    pub fn exact(name: &str, unit: &str, value: f64) -> Measurement {
        let (name, unit) = (name.into(), unit.into());
        let samples = vec![value];
        Measurement { name, unit, n: 1, median: value, mean: value, is_exact: true, samples, ..Measurement::default() }
    }

    /// Cycles of the timestamp counter per nanosecond, if this measurement has both.
    pub fn tsc_rate(&self) -> Option<f64> {
        Some(self.tsc_cycles? / self.median).filter(|rate| rate.is_finite() && *rate > 0.0)
    }
}

// JSON cannot express NaN (for example of a ratio to zero): it is written as null, and null is read as NaN.

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Option<[f64; 2]>, D::Error> {
    let ends = <Option<[Option<f64>; 2]>>::deserialize(from)?;
    Ok(ends.and_then(|[low, high]| Some([low?, high?])))
}

fn samples<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    Ok(Vec::<Option<f64>>::deserialize(from)?.into_iter().map(|sample| sample.unwrap_or(f64::NAN)).collect())
}
