//! Tests whether two figures differ, and by how much.
//!
//! If both results have their rounds, medians are resampled (percentile bootstrap), and the Mann–Whitney test with
//! correction for ties decides whether they differ. A figure without rounds is treated as a normal variable with its
//! interval, with separate standard errors below and above its value. The seed is fixed, so the same files give the
//! same answer.
//!
//! Source: B. Efron, R. Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13; H. Mann, D. Whitney, 1947;
//! S. Holm, *A simple sequentially rejective multiple test procedure*, 1979.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal};
use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

use crate::{
    Measurement, RESAMPLES, ROUNDS_MIN, Ratio, SEED, bootstrap, mean_and_deviation, median, median_of_rounds, middle_95,
};

/// Minimum number of rounds for the normal approximation of the rank test.
const RANK_TEST_ROUNDS_MIN: usize = 8;
/// Quantile of a standard normal variable for a two-sided interval of 95 %.
pub(crate) const Z_95: f64 = 1.959_964;

/// A figure of a result.
#[derive(Debug, Clone, Copy)]
pub struct Figure<'a> {
    /// Median or ratio.
    pub value: f64,
    ci95: Option<[f64; 2]>,
    samples: &'a [f64],
}

impl Figure<'_> {
    /// Returns the figure of a measurement.
    pub fn of_measurement(measurement: &Measurement) -> Figure<'_> {
        Figure { value: measurement.median, ci95: measurement.ci95, samples: &measurement.samples }
    }

    /// Returns the figure of a ratio, whose rounds are not stored.
    pub fn of_ratio(ratio: &Ratio) -> Figure<'_> {
        Figure { value: ratio.value, ci95: ratio.ci95, samples: &[] }
    }

    /// Draws values that the figure might also have had.
    fn draws(&self, random: &mut SmallRng) -> Vec<f64> {
        if self.samples.len() > 1 {
            return bootstrap(random, self.samples.len(), |rounds| median_of_rounds(self.samples, rounds));
        }
        // Standard errors below and above the value; zero for a figure without an interval.
        let errors = self.ci95.map(|[low, high]| [self.value - low, high - self.value].map(|half| half / Z_95));
        let is_told = |errors: &[f64; 2]| errors.iter().all(|error| error.is_finite() && *error >= 0.0);
        let [low, high] = errors.filter(is_told).unwrap_or_default();
        let mut draw = || {
            let normal = Normal::standard().inverse_cdf(random.random_range(f64::EPSILON..1.0));
            self.value + normal * if normal < 0.0 { low } else { high }
        };
        (0..RESAMPLES).map(|_| draw()).collect()
    }
}

/// Comparison of two figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Compared {
    /// Second figure minus the first.
    pub difference: f64,
    /// 95 % interval of the difference.
    pub difference_ci95: [f64; 2],
    /// Second figure divided by the first; none if the first may be zero.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio.
    pub ratio_ci95: Option<[f64; 2]>,
    /// Probability of a difference of this size by chance.
    pub p: f64,
}

/// Returns the probability of a difference of this size by chance, from the rounds of both or from drawn values.
fn probability([a, b]: [Figure<'_>; 2], drawn: [&[f64]; 2]) -> f64 {
    if a.samples.len().min(b.samples.len()) >= RANK_TEST_ROUNDS_MIN {
        let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
        // Rounds with a NaN cannot be ranked, and show no difference.
        return mannwhitneyu(a.samples, b.samples, method, Alternative::TwoSided).map_or(1.0, |(_, p)| p);
    }
    let [[_, error_a], [_, error_b]] = drawn.map(mean_and_deviation);
    let error = error_a.hypot(error_b);
    if error > 0.0 { 2.0 * Normal::standard().sf((b.value - a.value).abs() / error) } else { 1.0 }
}

/// Compares B with A.
pub fn compare(a: Figure<'_>, b: Figure<'_>) -> Compared {
    let mut random = SmallRng::seed_from_u64(SEED);
    let [drawn_a, drawn_b] = [a, b].map(|figure| figure.draws(&mut random));
    let pairs = || drawn_a.iter().zip(&drawn_b);
    // There is no ratio to a cost that may be zero.
    let has_ratio = b.value > 0.0 && middle_95(&drawn_a)[0] > 0.0;
    Compared {
        difference: b.value - a.value,
        difference_ci95: middle_95(&pairs().map(|(a, b)| b - a).collect::<Vec<_>>()),
        ratio: has_ratio.then_some(b.value / a.value),
        ratio_ci95: has_ratio.then(|| middle_95(&pairs().map(|(a, b)| b / a).collect::<Vec<_>>())),
        p: probability([a, b], [&drawn_a, &drawn_b]),
    }
}

/// Holm's correction: adjusts each probability for the number of tests.
pub fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|x, y| probabilities[*x].total_cmp(&probabilities[*y]));
    let mut adjusted = vec![1.0; probabilities.len()];
    let mut highest = 0.0_f64;
    for (rank, index) in order.into_iter().enumerate() {
        highest = highest.max((probabilities.len() - rank) as f64 * probabilities[index]).min(1.0);
        adjusted[index] = highest;
    }
    adjusted
}

/// Compares looks at two machines. Returns the median of the ratios of a look at the second to a look at the first, and
/// the range that contains 95 % of them. The spread of looks at one machine is part of that range. Returns none from
/// fewer than [`ROUNDS_MIN`] looks, or if the first figure may be zero.
pub fn ratio_of_looks(a: &[f64], b: &[f64]) -> Option<(f64, [f64; 2])> {
    let ratios: Vec<f64> = a.iter().flat_map(|a| b.iter().map(move |b| b / a)).collect();
    let is_told = a.len().min(b.len()) >= ROUNDS_MIN && a.iter().all(|look| *look > 0.0);
    is_told.then(|| (median(&ratios), middle_95(&ratios)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holm_as_in_the_paper() {
        // Sixteenths, whose multiples are exact.
        assert_eq!(holm(&[0.0625, 0.25, 0.1875, 0.03125]), [0.1875, 0.375, 0.375, 0.125]);
        assert_eq!((holm(&[]), holm(&[0.9, 0.8])), (vec![], vec![1.0, 1.0]));
    }

    #[test]
    fn comparisons_without_rounds_use_intervals() {
        let ratio = |value: f64| Ratio { value, ci95: Some([value - 0.5, value + 0.5]), ..Ratio::default() };
        let compared = |a: f64, b: f64| compare(Figure::of_ratio(&ratio(a)), Figure::of_ratio(&ratio(b)));
        // The standard error of the difference is √2 · 0.5 / 1.96: the difference is 2 ± 0.707, and 5.5 errors from
        // zero.
        let Compared { difference_ci95: [low, high], p, .. } = compared(10.0, 12.0);
        assert!((low - 1.293).abs() < 0.1 && (high - 2.707).abs() < 0.1 && p < 1e-6, "{low} to {high}, {p}");
        assert!(compared(10.0, 10.2).p > 0.5);
        assert_eq!(compared(0.1, 1.0).ratio, None, "what may be nothing has no multiple");
        let bare = |value: f64| Figure { value, ci95: None, samples: &[] };
        assert_eq!(compare(bare(10.0), bare(12.0)).p, 1.0, "nothing is known of how sure they are");
    }
}
