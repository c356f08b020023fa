//! Medians, intervals, and tests of them.
//!
//! | what | how | source |
//! | --- | --- | --- |
//! | interval of a median | percentile bootstrap | Efron and Tibshirani 1993, ch. 13 |
//! | ratio of two costs | ratio of medians; rounds are drawn in pairs | as above, ch. 14 |
//! | warm-up | MSER-5 | White 1997; White and Robinson 2010 |
//! | outliers | distance from the median of more than 5 deviations | Iglewicz and Hoaglin 1993, with a wider fence |
//! | effect that rounds can show | standard error of the bootstrap, power 0.8 | Cohen 1988; Wittes and Brittain 1990 |
//! | mean ± deviation | first-order propagation of independent errors | common practice; as in the kernel's immediate-value tables of 2008 |

mod figures;
pub mod intervals;
pub mod power;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub use figures::{Labels, Measurement, Ratio, SCHEMA};

/// Number of resamples of a bootstrap.
const RESAMPLES: usize = 2_000;
/// Seed of the bootstrap. It is fixed, so another analysis of the same rounds finds the same interval.
const SEED: u64 = 0xD0_12_40_05_E5;
/// Minimum number of rounds for an interval.
pub const ROUNDS_MIN: usize = 6;

/// Returns the median; for an even count, the mean of the middle two. Zero for no samples.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// Returns the value below which a share of the samples is, interpolated between ranks. Zero for no samples.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let Some(last) = samples.len().checked_sub(1) else { return 0.0 };
    let rank = share.clamp(0.0, 1.0) * last as f64;
    let mut samples = samples.to_vec();
    let (_, low, above) = samples.select_nth_unstable_by(rank as usize, f64::total_cmp);
    match above.iter().copied().min_by(f64::total_cmp) {
        Some(high) if rank.fract() > 0.0 => *low + rank.fract() * (high - *low),
        _ => *low,
    }
}

/// Returns the range of the middle 95 % of the samples.
fn middle_95(samples: &[f64]) -> [f64; 2] {
    [0.025, 0.975].map(|share| quantile(samples, share))
}

/// Returns the median of the absolute deviations from the median.
fn median_absolute_deviation(samples: &[f64]) -> f64 {
    let center = median(samples);
    median(&samples.iter().map(|sample| (sample - center).abs()).collect::<Vec<_>>())
}

/// Applies a statistic to rounds that are drawn anew, [`RESAMPLES`] times. It gets their indexes, below `count`.
fn bootstrap(random: &mut SmallRng, count: usize, statistic: impl Fn(&[usize]) -> f64) -> Vec<f64> {
    let mut rounds = vec![0; count];
    let mut again = || {
        rounds.fill_with(|| random.random_range(0..count));
        statistic(&rounds)
    };
    (0..RESAMPLES).map(|_| again()).collect()
}

fn median_of_rounds(samples: &[f64], rounds: &[usize]) -> f64 {
    median(&rounds.iter().map(|round| samples[*round]).collect::<Vec<_>>())
}

/// Returns the 95 % interval of a statistic; none from fewer rounds than [`ROUNDS_MIN`].
fn bootstrap_ci95(count: usize, statistic: impl Fn(&[usize]) -> f64) -> Option<[f64; 2]> {
    if count < ROUNDS_MIN {
        return None;
    }
    let mut values = bootstrap(&mut SmallRng::seed_from_u64(SEED), count, statistic);
    values.retain(|value| value.is_finite());
    (!values.is_empty()).then(|| middle_95(&values))
}

/// Returns the bootstrap's 95 % interval of the median; none from fewer samples than [`ROUNDS_MIN`].
pub fn median_ci95(samples: &[f64]) -> Option<[f64; 2]> {
    bootstrap_ci95(samples.len(), |rounds| median_of_rounds(samples, rounds))
}

/// Returns mean and standard deviation of samples (n - 1).
fn mean_and_deviation(samples: &[f64]) -> [f64; 2] {
    let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    [mean, (squares / samples.len().saturating_sub(1).max(1) as f64).sqrt()]
}

/// Returns mean and standard deviation of the ratio of two quantities whose errors are independent.
fn ratio_of_means([a, a_deviation]: [f64; 2], [b, b_deviation]: [f64; 2]) -> [f64; 2] {
    let mean = a / b;
    [mean, mean.abs() * (a_deviation / a).hypot(b_deviation / b)]
}

/// Summarises the rounds of one case.
pub fn measurement(name: &str, unit: &str, samples: &[f64]) -> Measurement {
    let [mean, stddev] = mean_and_deviation(samples);
    Measurement {
        name: name.into(),
        unit: unit.into(),
        n: samples.len(),
        median: median(samples),
        mad: median_absolute_deviation(samples),
        mean,
        stddev,
        ci95: median_ci95(samples),
        samples: samples.to_vec(),
        ..Measurement::default()
    }
}

/// Returns the ratio of two costs that were measured in the same rounds: the ratio of their medians, with rounds drawn
/// in pairs. Returns `None` if the denominator cannot be distinguished from zero, or if there are no rounds. From fewer
/// than [`ROUNDS_MIN`] rounds there is no interval, and then all samples of the denominator must have one sign.
pub fn ratio(name: &str, numerator: &[f64], denominator: &[f64]) -> Option<Ratio> {
    let count = numerator.len().min(denominator.len());
    let (numerator, denominator) = (&numerator[..count], &denominator[..count]);
    let [low, high] = median_ci95(denominator).unwrap_or_else(|| [0.0, 1.0].map(|share| quantile(denominator, share)));
    if low <= 0.0 && high >= 0.0 {
        return None;
    }
    let means = ratio_of_means(mean_and_deviation(numerator), mean_and_deviation(denominator));
    let drawn = |rounds: &[usize]| median_of_rounds(numerator, rounds) / median_of_rounds(denominator, rounds);
    Some(Ratio {
        name: name.into(),
        value: median(numerator) / median(denominator),
        ci95: bootstrap_ci95(count, drawn),
        means: Some(means).filter(|means| means.iter().all(|figure| figure.is_finite())),
    })
}

/// Number of samples of a batch in MSER-5.
const BATCH: usize = 5;
/// Minimum number of batches: with fewer samples, batches are smaller.
const BATCHES_MIN: usize = 10;
/// An earlier cut is as good as the best one if its error exceeds the smallest by at most this factor.
const ERROR_TOLERANCE: f64 = 1.5;

/// Returns the number of samples at the start that are warm-up: the first cut after which the standard error of the
/// mean is about smallest, in batches of five, and at most half of the samples. MSER-5, with a tolerance.
pub fn warm_up(samples: &[f64]) -> usize {
    let batch = (samples.len() / BATCHES_MIN).clamp(1, BATCH);
    let batches: Vec<f64> = samples.chunks_exact(batch).map(|batch| mean_and_deviation(batch)[0]).collect();
    let error_after = |cut: usize| {
        let rest = &batches[cut..];
        let [mean, _] = mean_and_deviation(rest);
        rest.iter().map(|batch| (batch - mean).powi(2)).sum::<f64>() / (rest.len() as f64).powi(2)
    };
    let errors: Vec<f64> = (0..=batches.len() / 2).map(error_after).collect();
    let smallest = errors.iter().copied().min_by(f64::total_cmp).unwrap_or(0.0);
    // If the series is steady, the errors of all later cuts differ by noise only.
    errors.iter().position(|error| *error <= smallest * ERROR_TOLERANCE).unwrap_or(0) * batch
}

/// Number of deviations from the median beyond which a sample is an outlier.
const OUTLIER_DEVIATIONS: f64 = 5.0;
/// Factor from the median of absolute deviations to the standard deviation of normal samples: 1 / Φ⁻¹(¾).
const NORMAL_PER_MAD: f64 = 1.482_602_218_505_602;

/// Returns the share of the samples that are far from the median, measured by a robust standard deviation.
pub fn outlier_share(samples: &[f64]) -> f64 {
    let (center, deviation) = (median(samples), NORMAL_PER_MAD * median_absolute_deviation(samples));
    let far = samples.iter().filter(|sample| (**sample - center).abs() > OUTLIER_DEVIATIONS * deviation);
    if deviation == 0.0 { 0.0 } else { far.count() as f64 / samples.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!([median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])], [0.0, 2.0, 2.5]);
        assert_eq!(median_absolute_deviation(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), 1.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
    }

    /// Returns a deviate that is about normal: a sum of twelve.
    fn normal(random: &mut SmallRng) -> f64 {
        (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
    }

    #[test]
    fn intervals_cover_the_median_as_often_as_they_say() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut covers = || {
            let samples: Vec<f64> = (0..30).map(|_| normal(&mut random)).collect();
            median_ci95(&samples).is_some_and(|[low, high]| low <= 0.0 && 0.0 <= high)
        };
        let covered = (0..300).filter(|_| covers()).count();
        // 95 % of 300 with three standard deviations to each side, and a little less at the bottom: the percentile
        // interval is known to be short for small samples.
        assert!((265..=299).contains(&covered), "{covered} of 300");
    }

    #[test]
    fn few_rounds_have_no_interval() {
        assert_eq!([&[5.0, 1.0, 3.0, 2.0, 4.0][..], &[]].map(median_ci95), [None, None]);
        assert_eq!(ratio("a_vs_b", &[2.0; 5], &[1.0; 5]).map(|ratio| (ratio.value, ratio.ci95)), Some((2.0, None)));
        assert!(median_ci95(&[5.0, 1.0, 3.0, 2.0, 4.0, 6.0]).is_some_and(|[low, high]| low < 3.5 && high > 3.5));
    }

    #[test]
    fn a_ratio_is_of_pairs_and_not_to_nothing() {
        // Both follow the machine's mood, so that their ratio is known far better than either.
        let mut random = SmallRng::seed_from_u64(2);
        let moods: Vec<f64> = (0..40).map(|_| 1.0 + normal(&mut random).abs()).collect();
        let twice: Vec<f64> = moods.iter().map(|mood| 2.0 * mood).collect();
        let of_pairs = ratio("a_vs_b", &twice, &moods).unwrap();
        assert_eq!(of_pairs.value, 2.0);
        assert!(of_pairs.ci95.is_some_and(|[low, high]| low > 1.999 && high < 2.001), "{:?}", of_pairs.ci95);
        assert_eq!(ratio("a_vs_b", &[1.0; 7], &[-0.1, 0.1, 0.2, -0.2, 0.0, 0.05, -0.05]), None);
        assert_eq!(ratio("a_vs_b", &[], &[]), None);
    }

    /// Checks a figure of the kernel's documentation of immediate values (2008) against its own result.
    #[test]
    fn errors_propagate_as_in_the_tables_of_2008() {
        let [share, deviation] = ratio_of_means([1111.86, 25.48], [16535.11, 1677.71]);
        assert!((share - 0.0672).abs() < 0.00005 && (deviation - 0.0070).abs() < 0.00005, "{share} ± {deviation}");
    }

    #[test]
    fn outliers_are_found() {
        let mut samples: Vec<f64> = (0..95).map(|number| 10.0 + 0.01 * f64::from(number % 7)).collect();
        assert_eq!([outlier_share(&samples), outlier_share(&[1.0; 9])], [0.0, 0.0]);
        samples.extend([30.0; 5]);
        assert_eq!(outlier_share(&samples), 0.05);
    }
}
