//! Effects that a number of rounds can show.
//!
//! Rounds of a pilot give the standard error of a statistic, by the same bootstrap that makes its interval; N rounds have √(pilot's rounds ÷ N)
//! of it. The test is that the 95 % interval leaves out the value that it is compared with. It finds an effect of 1.96 + 0.84 standard errors with
//! a probability of 0.8.
//!
//! Source: J. Cohen, *Statistical Power Analysis for the Behavioral Sciences*, 1988, chapter 2; J. Wittes, E. Brittain, *The role of internal pilot
//! studies in increasing the efficiency of clinical trials*, 1990: a pilot's rounds count, since only their spread decides on the number.

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::intervals::Z_95;
use crate::{ROUNDS_MIN, SEED, bootstrap, mean_and_deviation, median, median_of_rounds};

/// Quantile of a standard normal variable for a power of 0.8.
const Z_POWER: f64 = 0.841_621;

/// Precision of a statistic of paired rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precision {
    /// Standard error that one round would have.
    error: f64,
}

impl Precision {
    /// Returns the precision of a ratio of medians, of 1. Returns `None` from fewer rounds than [`ROUNDS_MIN`].
    pub fn of_ratio(numerator: &[f64], denominator: &[f64]) -> Option<Precision> {
        Precision::of(numerator, denominator, |of, to| of / to, median(numerator) / median(denominator))
    }

    /// Returns the precision of a difference of medians, as a share of `whole`. Returns `None` from fewer rounds than
    /// [`ROUNDS_MIN`].
    pub fn of_difference(a: &[f64], b: &[f64], whole: f64) -> Option<Precision> {
        Precision::of(a, b, |a, b| a - b, whole)
    }

    fn of(a: &[f64], b: &[f64], statistic: impl Fn(f64, f64) -> f64, whole: f64) -> Option<Precision> {
        let count = a.len().min(b.len());
        if count < ROUNDS_MIN {
            return None;
        }
        let drawn =
            |rounds: &[usize]| statistic(median_of_rounds(a, rounds), median_of_rounds(b, rounds)) / whole.abs();
        let [_, deviation] = mean_and_deviation(&bootstrap(&mut SmallRng::seed_from_u64(SEED), count, drawn));
        Some(Precision { error: deviation * (count as f64).sqrt() }).filter(|precision| precision.error.is_finite())
    }

    /// Returns the smallest effect that this number of rounds shows with a power of 0.8.
    pub fn effect(self, rounds: usize) -> f64 {
        (Z_95 + Z_POWER) * self.error / (rounds.max(1) as f64).sqrt()
    }

    /// Returns the number of rounds that show an effect with a power of 0.8.
    pub fn rounds(self, effect: f64) -> usize {
        ((Z_95 + Z_POWER) * self.error / effect).powi(2).ceil() as usize
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;
    use statrs::distribution::{ContinuousCDF, Normal};

    use super::*;
    use crate::ratio;

    /// Returns made-up times of two ways to build, round by round: a mood that both share, noise of each, and an effect
    /// on the first.
    fn builds(random: &mut SmallRng, rounds: usize, [mood, noise]: [f64; 2], effect: f64) -> [Vec<f64>; 2] {
        let mut normal = || Normal::standard().inverse_cdf(random.random_range(f64::EPSILON..1.0));
        let times = (0..rounds).map(|_| {
            let common = 80.0 * (1.0 + mood * normal().abs());
            [common * (1.0 + effect) * (1.0 + noise * normal()), common * (1.0 + noise * normal())]
        });
        times.map(|[a, b]| (a, b)).unzip::<f64, f64, Vec<_>, Vec<_>>().into()
    }

    /// Returns the share of experiments whose interval leaves out 1.
    fn found(random: &mut SmallRng, rounds: usize, spread: [f64; 2], effect: f64) -> f64 {
        const EXPERIMENTS: usize = 150;
        let mut is_found = || {
            let [a, b] = builds(random, rounds, spread, effect);
            ratio("a_vs_b", &a, &b).and_then(|ratio| ratio.ci95).is_some_and(|[low, high]| low > 1.0 || high < 1.0)
        };
        (0..EXPERIMENTS).filter(|_| is_found()).count() as f64 / EXPERIMENTS as f64
    }

    /// Checks the calculation against experiments whose effect and noise are known. A mood in common, larger than the noise
    /// of each, makes it a little too hopeful.
    #[test]
    fn as_many_rounds_as_calculated_find_the_effect_and_a_quarter_does_not() {
        const EFFECT: f64 = 0.008;
        let mut random = SmallRng::seed_from_u64(3);
        for spread in [[0.0, 0.01], [0.03, 0.012]] {
            // The median of what several pilots say: one pilot of few rounds is itself uncertain.
            let told: Vec<f64> = (0..40)
                .map(|_| {
                    let [a, b] = builds(&mut random, 12, spread, 0.0);
                    Precision::of_ratio(&a, &b).unwrap().rounds(EFFECT) as f64
                })
                .collect();
            let rounds = median(&told) as usize;
            let [enough, few, none] = [(rounds, EFFECT), (rounds / 4, EFFECT), (rounds, 0.0)]
                .map(|(rounds, effect)| found(&mut random, rounds, spread, effect));
            assert!((0.6..0.95).contains(&enough), "{spread:?}: {rounds} rounds find it in {enough}");
            assert!(few < enough - 0.2, "{spread:?}: {} rounds find it in {few}", rounds / 4);
            assert!(none < 0.1, "{spread:?}: an effect that is not there is found in {none}");
        }
    }

    /// The asymptotic variance of a median of n normal values with deviation s is π s² ÷ 2n, of a difference of two
    /// independent ones twice that.
    #[test]
    fn the_error_is_that_of_normal_theory() {
        let mut random = SmallRng::seed_from_u64(4);
        let [a, b] = builds(&mut random, 2_000, [0.0, 0.01], 0.0);
        let theory = (Z_95 + Z_POWER) * 0.01 * std::f64::consts::PI.sqrt() / 10.0;
        for precision in [Precision::of_ratio(&a, &b), Precision::of_difference(&a, &b, 80.0)] {
            let effect = precision.unwrap().effect(100);
            assert!((effect / theory - 1.0).abs() < 0.1, "{effect}, in theory {theory}");
            assert_eq!(precision.unwrap().rounds(effect), 100);
        }
        assert_eq!(Precision::of_ratio(&a[..5], &b), None);
    }
}
