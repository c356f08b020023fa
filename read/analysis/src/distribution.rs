//! Distribution of values: exact count, sum, minimum, mean and maximum, and percentiles by a sketch.
//!
//! Source: Ch. Masson, J. Rim, H. Lee, *DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees*, 2019.

use std::cmp::Ordering;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use sketches_ddsketch::{Config, DDSketch};

/// Greatest relative error of a percentile, compared with the value that has its rank.
pub const RELATIVE_ERROR: f64 = 0.01;
/// Percentiles that are reported, with their names.
pub const PERCENTILES: [(f64, &str); 4] = [(50.0, "50"), (90.0, "90"), (99.0, "99"), (99.9, "99.9")];

/// Maximum number of bins of a sketch: enough for values that differ by a factor of 10^35. A sketch has only the bins
/// that its values need, of 8 bytes each.
const BINS_MAX: u32 = 4096;
/// Values with a smaller magnitude count as 0.
const LEAST: f64 = 1e-9;

/// A number in an event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// An integer.
    Whole(i128),
    /// A float.
    Real(f64),
}

impl Number {
    /// Returns the nearest floating-point number.
    pub fn real(self) -> f64 {
        match self {
            Number::Whole(value) => value as f64,
            Number::Real(value) => value,
        }
    }

    fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Whole(a), Number::Whole(b)) => a.cmp(&b),
            (a, b) => a.real().total_cmp(&b.real()),
        }
    }

    fn plus(self, other: Number) -> Number {
        match (self, other) {
            (Number::Whole(a), Number::Whole(b)) => Number::Whole(a.saturating_add(b)),
            (a, b) => Number::Real(a.real() + b.real()),
        }
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            // With all its digits: a sum has up to 128 bits.
            Number::Whole(value) => serializer.serialize_i128(value),
            Number::Real(value) => serializer.serialize_f64(value),
        }
    }
}

/// Statistics of values, which are not kept themselves.
#[derive(Clone)]
pub struct Distribution {
    sketch: DDSketch,
    /// Minimum, maximum and sum.
    bounds: Option<(Number, Number, Number)>,
    count: u64,
    /// Mean, and sum of the squared distances from it (Welford, 1962).
    moments: (f64, f64),
    /// Least and greatest magnitude of the values that do not count as 0.
    magnitudes: (f64, f64),
    not_finite: u64,
}

impl std::fmt::Debug for Distribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Distribution").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution {
            sketch: DDSketch::new(Config::new(RELATIVE_ERROR, BINS_MAX, LEAST)),
            bounds: None,
            count: 0,
            moments: (0.0, 0.0),
            magnitudes: (f64::INFINITY, 0.0),
            not_finite: 0,
        }
    }
}

impl Distribution {
    /// Adds a value. Values that are not finite are only counted.
    pub fn add(&mut self, number: Number) {
        let value = number.real();
        if !value.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.sketch.add(value);
        self.count += 1;
        let distance = value - self.moments.0;
        self.moments.0 += distance / self.count as f64;
        self.moments.1 += distance * (value - self.moments.0);
        let magnitude = value.abs();
        if magnitude > LEAST {
            self.magnitudes = (self.magnitudes.0.min(magnitude), self.magnitudes.1.max(magnitude));
        }
        self.bound((number, number, number));
    }

    fn bound(&mut self, (least, greatest, sum): (Number, Number, Number)) {
        let (a, b, s) = self.bounds.unwrap_or((least, greatest, Number::Whole(0)));
        self.bounds = Some((
            if least.compare(a).is_lt() { least } else { a },
            if greatest.compare(b).is_gt() { greatest } else { b },
            s.plus(sum),
        ));
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Distribution) {
        let Some(bounds) = other.bounds else {
            self.not_finite += other.not_finite;
            return;
        };
        self.sketch.merge(&other.sketch).expect("both have one configuration");
        let (n, m) = (self.count as f64, other.count as f64);
        let distance = other.moments.0 - self.moments.0;
        self.moments.1 += other.moments.1 + distance * distance * n * m / (n + m);
        self.moments.0 += distance * m / (n + m);
        self.magnitudes = (self.magnitudes.0.min(other.magnitudes.0), self.magnitudes.1.max(other.magnitudes.1));
        self.count += other.count;
        self.not_finite += other.not_finite;
        self.bound(bounds);
    }

    /// Returns the number of finite values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of values that were infinite or not a number.
    pub fn not_finite(&self) -> u64 {
        self.not_finite
    }

    /// Returns the least value.
    pub fn min(&self) -> Option<Number> {
        self.bounds.map(|(least, ..)| least)
    }

    /// Returns the greatest value.
    pub fn max(&self) -> Option<Number> {
        self.bounds.map(|(_, greatest, _)| greatest)
    }

    /// Returns the sum of all values.
    pub fn sum(&self) -> Option<Number> {
        self.bounds.map(|(.., sum)| sum)
    }

    /// Returns the mean.
    pub fn mean(&self) -> Option<f64> {
        // The sum of integers is exact.
        self.sum().map(|sum| sum.real() / self.count as f64)
    }

    /// Returns the variance of the mean, assuming that values are independent.
    pub(crate) fn variance_of_mean(&self) -> f64 {
        let n = self.count as f64;
        self.moments.1 / (n - 1.0) / n
    }

    /// Returns the value of a rank from 1 to `count`, with the sketch's error except for the least and the greatest
    /// value.
    pub(crate) fn at_rank(&self, rank: u64) -> Option<f64> {
        let (least, greatest) = (self.min()?.real(), self.max()?.real());
        if rank <= 1 {
            return Some(least);
        }
        if rank >= self.count {
            return Some(greatest);
        }
        // The sketch takes the rank (from 0) that is not above quantile × (count - 1).
        let quantile = (rank as f64 - 0.5) / (self.count as f64 - 1.0);
        let value = self.sketch.quantile(quantile.clamp(0.0, 1.0)).ok().flatten()?.clamp(least, greatest);
        let is_whole = matches!(self.bounds, Some((Number::Whole(_), Number::Whole(_), Number::Whole(_))));
        // Only one integer lies within the error.
        let is_exact = is_whole && value.abs() * RELATIVE_ERROR < 0.49;
        Some(if is_exact { value.round() } else { value })
    }

    /// Returns the rank of a percentile: that of the least value that `percentile` % of the values do not exceed.
    pub(crate) fn rank(&self, percentile: f64) -> u64 {
        ((percentile / 100.0 * self.count as f64).ceil() as u64).clamp(1, self.count.max(1))
    }

    /// Returns the least value that `percentile` % of the values do not exceed, with an error of [`RELATIVE_ERROR`].
    pub fn percentile(&self, percentile: f64) -> Option<f64> {
        self.at_rank(self.rank(percentile))
    }

    /// Returns the relative error of percentiles; `None` if values differ so much that the sketch has merged its lowest
    /// bins.
    pub fn relative_error(&self) -> Option<f64> {
        let (least, greatest) = self.magnitudes;
        let gamma = (1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR);
        let is_collapsed = greatest > least && (greatest / least).ln() / gamma.ln() > f64::from(BINS_MAX - 2);
        (!is_collapsed).then_some(RELATIVE_ERROR)
    }
}

impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let percentiles = PERCENTILES.map(|(percentile, name)| (name, self.percentile(percentile)));
        let mut map = serializer.serialize_struct("Distribution", 8)?;
        map.serialize_field("count", &self.count)?;
        map.serialize_field("sum", &self.sum())?;
        map.serialize_field("min", &self.min())?;
        map.serialize_field("mean", &self.mean())?;
        map.serialize_field("max", &self.max())?;
        map.serialize_field("percentiles", &std::collections::BTreeMap::from(percentiles))?;
        map.serialize_field("percentiles_relative_error", &self.relative_error())?;
        map.serialize_field("not_finite", &self.not_finite)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value at a percentile's rank, computed from all values.
    fn exact(values: &mut [f64], percentile: f64) -> f64 {
        values.sort_by(f64::total_cmp);
        let rank = (percentile / 100.0 * values.len() as f64).ceil() as usize;
        values[rank.max(1) - 1]
    }

    #[test]
    fn percentiles_are_within_the_error_of_the_value_that_has_their_rank() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        for count in [1, 2, 3, 10, 1000, 20_000] {
            // From 1e-3 to 1e9, some negative, some 0.
            let mut values: Vec<f64> = (0..count)
                .map(|_| match random() {
                    share if share < 0.1 => 0.0,
                    share if share < 0.3 => -(random() * 20.0).exp(),
                    _ => 10f64.powf(random() * 12.0 - 3.0),
                })
                .collect();
            let (mut all, mut half, mut rest) = Default::default();
            for (index, value) in values.iter().enumerate() {
                Distribution::add(&mut all, Number::Real(*value));
                let part: &mut Distribution = if index % 2 == 0 { &mut half } else { &mut rest };
                part.add(Number::Real(*value));
            }
            half.merge(&rest);
            for percentile in [0.0, 1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
                let exact = exact(&mut values, percentile);
                for found in [&all, &half].map(|values| values.percentile(percentile).unwrap()) {
                    let error = (found - exact).abs();
                    assert!(
                        error <= RELATIVE_ERROR * exact.abs() + 1e-9,
                        "{percentile} of {count}: {found} for {exact}"
                    );
                }
            }
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>()
                / (values.len() as f64 - 1.0)
                / values.len() as f64;
            for found in [&all, &half] {
                assert_eq!(found.count(), values.len() as u64);
                assert!((found.mean().unwrap() - mean).abs() <= 1e-9 * mean.abs(), "{:?} for {mean}", found.mean());
                if count > 1 {
                    assert!((found.variance_of_mean() / variance - 1.0).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn sums_of_integers_are_exact_and_non_numbers_are_counted_separately() {
        let mut values = Distribution::default();
        assert_eq!((values.percentile(50.0), values.sum(), values.relative_error()), (None, None, Some(0.01)));
        for value in [u64::MAX, u64::MAX, 1, 0] {
            values.add(Number::Whole(value.into()));
        }
        assert_eq!(values.sum(), Some(Number::Whole(2 * i128::from(u64::MAX) + 1)));
        assert_eq!((values.min(), values.max()), (Some(Number::Whole(0)), Some(Number::Whole(u64::MAX.into()))));
        let json = |number: Option<Number>| serde_json::to_string(&number).expect("it is a number");
        assert_eq!(json(values.sum()), "36893488147419103231");
        let least = (0..3).fold(Distribution::default(), |mut least, _| {
            least.add(Number::Whole(i64::MIN.into()));
            least
        });
        assert_eq!([json(least.min()), json(least.sum())], ["-9223372036854775808", "-27670116110564327424"]);
        values.add(Number::Real(f64::NAN));
        values.add(Number::Real(f64::INFINITY));
        assert_eq!((values.count(), values.not_finite()), (4, 2));
        assert_eq!(values.relative_error(), Some(RELATIVE_ERROR));
        values.add(Number::Real(1e60));
        assert_eq!(values.relative_error(), None);
    }
}
