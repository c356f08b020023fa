//! Whether two figures differ, and by how much: resampling, a rank test, and Holm's correction.
//!
//! Where both results carry their rounds, medians are resampled (percentile bootstrap) and the question whether they
//! differ is put to the Mann–Whitney test, with ties corrected. Where rounds are missing, the figure is taken for a
//! normal variable, split at its value so that an uneven interval stays uneven: standard errors are half-widths of the
//! 95 % interval over 1.96, or 1.2533 · 1.4826 · MAD / √n where there is no interval. The seed is fixed: the same files
//! give the same answer.
//!
//! Source: B. Efron, R. Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13; H. Mann, D. Whitney, 1947;
//! S. Holm, *A simple sequentially rejective multiple test procedure*, 1979.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use statrs::distribution::{ContinuousCDF, Normal};
use statrs::function::erf::erfc;

use crate::{Measurement, RESAMPLES, ROUNDS_MIN, Ratio, Uncertain, median, middle_95};

/// Below this many rounds the normal approximation of the rank test is not to be trusted.
const RANK_TEST_ROUNDS_MIN: usize = 8;
const Z_95: f64 = 1.959_964;

/// A figure as a result has it.
#[derive(Debug, Clone, Copy)]
pub struct Figure<'a> {
    /// The median, or the ratio.
    pub value: f64,
    /// Its 95 % interval, or not numbers.
    pub ci95: [f64; 2],
    /// Median of the absolute deviations.
    pub mad: f64,
    /// Rounds.
    pub n: usize,
    /// The rounds themselves, where the result has them.
    pub samples: &'a [f64],
}

/// How two figures compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// The second less the first.
    pub difference: f64,
    /// Its 95 % interval.
    pub difference_ci95: [f64; 2],
    /// The second in terms of the first, with its interval; none where the first may be nothing.
    pub ratio: Option<(f64, [f64; 2])>,
    /// Probability of such a difference by chance.
    pub p: f64,
}

impl Figure<'_> {
    /// Of a measurement.
    pub fn of_measurement(measurement: &Measurement) -> Figure<'_> {
        Figure {
            value: measurement.median,
            ci95: measurement.ci95.unwrap_or([f64::NAN; 2]),
            mad: measurement.mad,
            n: measurement.n,
            samples: &measurement.samples,
        }
    }

    /// Of a ratio, whose rounds are not kept.
    pub fn of_ratio(ratio: &Ratio) -> Figure<'_> {
        Figure { value: ratio.value, ci95: ratio.ci95.unwrap_or([f64::NAN; 2]), mad: 0.0, n: 1, samples: &[] }
    }

    /// Standard errors below and above.
    fn errors(&self) -> [f64; 2] {
        let [low, high] = [self.value - self.ci95[0], self.ci95[1] - self.value].map(|half| half / Z_95);
        if low.is_finite() && high.is_finite() && low >= 0.0 && high >= 0.0 && low + high > 0.0 {
            return [low, high];
        }
        [1.2533 * 1.4826 * self.mad / (self.n.max(1) as f64).sqrt(); 2]
    }

    /// Values that the figure might as well have had.
    fn draws(&self, rng: &mut SmallRng) -> Vec<f64> {
        if self.samples.len() > 1 {
            let mut again = vec![0.0; self.samples.len()];
            let mut draw = || {
                again.fill_with(|| self.samples[rng.random_range(0..self.samples.len())]);
                median(&again)
            };
            return (0..RESAMPLES).map(|_| draw()).collect();
        }
        let [low, high] = self.errors();
        (0..RESAMPLES)
            .map(|_| {
                let normal = Normal::standard().inverse_cdf(rng.random_range(f64::EPSILON..1.0));
                self.value + normal * if normal < 0.0 { low } else { high }
            })
            .collect()
    }
}

/// Probability of a normal deviate at least as far out as `z`, either way.
fn two_sided(z: f64) -> f64 {
    if z.is_nan() { 1.0 } else { erfc(z.abs() / std::f64::consts::SQRT_2).clamp(0.0, 1.0) }
}

/// The rank test of Mann and Whitney: normal approximation with continuity and ties corrected.
fn rank_test(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> = a.iter().map(|&value| (value, true)).chain(b.iter().map(|&v| (v, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut rank_sum, mut ties, mut done) = (0.0, 0.0, 0);
    for group in all.chunk_by(|x, y| x.0 == y.0) {
        let count = group.len() as f64;
        // Ranks done + 1 … done + count, of which each gets the mean.
        let rank = done as f64 + (count + 1.0) / 2.0;
        rank_sum += rank * group.iter().filter(|(_, is_a)| *is_a).count() as f64;
        ties += count.powi(3) - count;
        done += group.len();
    }
    let (n, m, total) = (a.len() as f64, b.len() as f64, all.len() as f64);
    let u = rank_sum - n * (n + 1.0) / 2.0;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    two_sided(((u - n * m / 2.0).abs() - 0.5).max(0.0) / variance.sqrt())
}

/// Compares B with A.
pub fn compare(a: Figure<'_>, b: Figure<'_>) -> Compared {
    let mut rng = SmallRng::seed_from_u64(0xD0_12_30_05);
    let (drawn_a, drawn_b) = (a.draws(&mut rng), b.draws(&mut rng));
    let pairs = || drawn_a.iter().zip(&drawn_b);
    let difference = b.value - a.value;
    // A cost that may be nothing has no multiple.
    let has_ratio = b.value > 0.0 && middle_95(&drawn_a)[0] > 0.0;
    let ratio = || (b.value / a.value, middle_95(&pairs().map(|(a, b)| b / a).collect::<Vec<_>>()));
    let p = if a.samples.len().min(b.samples.len()) >= RANK_TEST_ROUNDS_MIN {
        rank_test(a.samples, b.samples)
    } else {
        let error = Uncertain::of(&drawn_a).stddev.hypot(Uncertain::of(&drawn_b).stddev);
        if error > 0.0 { two_sided(difference / error) } else { 1.0 }
    };
    Compared {
        difference,
        difference_ci95: middle_95(&pairs().map(|(a, b)| b - a).collect::<Vec<_>>()),
        ratio: has_ratio.then(ratio),
        p,
    }
}

/// Holm's correction: what each probability amounts to, considering how many were looked at.
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

/// Looks at two machines: the median of the ratios of a look at the second to a look at the first, and between which values 95 % of them lie.
/// How much looks at one machine differ is in it. None from fewer than [`ROUNDS_MIN`] looks, or where the first may be nothing.
pub fn ratio_of_looks(a: &[f64], b: &[f64]) -> Option<(f64, [f64; 2])> {
    let ratios: Vec<f64> = a.iter().flat_map(|a| b.iter().map(move |b| b / a)).collect();
    let is_told = a.len().min(b.len()) >= ROUNDS_MIN && a.iter().all(|look| *look > 0.0);
    is_told.then(|| (median(&ratios), middle_95(&ratios)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[f64]) -> Figure<'_> {
        Figure { value: median(samples), ci95: [0.0, 0.0], mad: 0.0, n: samples.len(), samples }
    }

    fn near(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance, "{a} is not {b}");
    }

    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        near(two_sided(1.959_964), 0.05, 1e-6);
        near(two_sided(0.0), 1.0, 1e-6);
        near(two_sided(-3.290_527), 0.001, 1e-7);
    }

    #[test]
    fn the_rank_test_is_that_of_the_tables() {
        // Without ties: U = 0, n = m = 8: z = 31.5 / √(8·8·17/12).
        let a: Vec<f64> = (1..=8).map(f64::from).collect();
        let b: Vec<f64> = (11..=18).map(f64::from).collect();
        near(rank_test(&a, &b), two_sided(31.5 / (64.0_f64 * 17.0 / 12.0).sqrt()), 1e-12);
        near(rank_test(&a, &a), 1.0, 1e-12);
        assert_eq!(rank_test(&[1.0; 9], &[1.0; 9]), 1.0);
        near(rank_test(&a, &b), rank_test(&b, &a), 1e-12);
    }

    #[test]
    fn looks_at_two_machines_differ_by_more_than_looks_at_one() {
        let looks: Vec<f64> = (0..10).map(|look| 10.0 + f64::from(look) * 0.1).collect();
        let times = |factor: f64| looks.iter().map(|look| look * factor).collect::<Vec<_>>();
        let (one, [low, high]) = ratio_of_looks(&looks, &times(1.05)).expect("ten looks");
        assert!(low < 1.0 && one > 1.0 && high > 1.05);
        let (two, [low, _]) = ratio_of_looks(&looks, &times(2.0)).expect("ten looks");
        near(two, 2.0, 0.01);
        assert!(low > 1.8);
        assert_eq!(ratio_of_looks(&[1.0; 5], &looks), None);
        assert_eq!(ratio_of_looks(&[-0.1, 1.0, 1.0, 1.0, 1.0, 1.0], &looks), None);
    }

    #[test]
    fn holm_as_in_the_paper() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (got, want) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            near(*got, want, 1e-12);
        }
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }

    #[test]
    fn a_doubled_cost_is_seen_and_measured() {
        let a: Vec<f64> = (0..40).map(|round| 10.0 + f64::from(round % 5) * 0.1).collect();
        let b: Vec<f64> = a.iter().map(|value| value * 2.0).collect();
        let compared = compare(of(&a), of(&b));
        assert!(compared.p < 1e-6);
        near(compared.difference, 10.2, 1e-9);
        let (ratio, [low, high]) = compared.ratio.expect("a cost");
        near(ratio, 2.0, 1e-9);
        assert!(low <= 2.0 && 2.0 <= high && low > 1.9 && high < 2.1);
        let same = compare(of(&a), of(&a));
        assert_eq!((same.difference, same.p), (0.0, 1.0));
        assert!(same.difference_ci95[0] <= 0.0 && same.difference_ci95[1] >= 0.0);
        assert_eq!(compare(of(&a), of(&b)), compared, "the seed is fixed");
    }

    #[test]
    fn without_rounds_the_interval_serves() {
        let figure =
            |value: f64, half: f64| Figure { value, ci95: [value - half, value + half], mad: 0.0, n: 30, samples: &[] };
        let compared = compare(figure(10.0, 0.5), figure(12.0, 0.5));
        // Standard error √2 · 0.5 / 1.96 of either way.
        near(compared.p, two_sided(2.0 / (0.5 / Z_95 * 2.0_f64.sqrt())), 1e-7);
        near(compared.difference_ci95[0], 2.0 - 0.707, 0.1);
        near(compared.difference_ci95[1], 2.0 + 0.707, 0.1);
        assert_eq!(compare(figure(0.1, 0.5), figure(1.0, 0.5)).ratio, None, "what may be nothing has no multiple");
        let bare = |value: f64| Figure { value, ci95: [0.0, 0.0], mad: 0.2, n: 25, samples: &[] };
        assert!(compare(bare(10.0), bare(12.0)).p < 1e-6, "the MAD serves where there is no interval");
    }
}
