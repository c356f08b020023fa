//! Medians, intervals, and what may be said of them.
//!
//! | what | how | source |
//! | --- | --- | --- |
//! | interval of a median | percentile bootstrap | Efron and Tibshirani 1993, ch. 13 |
//! | ratio of two costs | ratio of medians; rounds are drawn in pairs | as above, ch. 14 |
//! | warm-up | MSER-5 | White 1997; White and Robinson 2010 |
//! | outliers | distance from the median of more than 5 deviations | Iglewicz and Hoaglin 1993, with a wider fence |
//! | mean ± deviation | first-order propagation of independent errors | the usual; as in the kernel's immediate-value tables of 2008 |

mod figures;
pub mod intervals;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use statrs::distribution::{ContinuousCDF, Normal};

pub use figures::{Labels, Measurement, Ratio, SCHEMA};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 2_000;
/// Its random numbers are the same in each run: whoever analyses the same rounds again finds the same interval.
const SEED: u64 = 0xD0_12_40_05_E5;
/// Rounds below which there is no interval.
pub const ROUNDS_MIN: usize = 6;

/// The median; of an even count the mean of the middle two. Zero for no samples.
pub fn median(samples: &[f64]) -> f64 {
    median_of(&mut samples.to_vec())
}

fn median_of(samples: &mut [f64]) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let middle = samples.len() / 2;
    let (below, upper, _) = samples.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if below.len() * 2 == samples.len() {
        let lower = samples[..middle].iter().copied().max_by(f64::total_cmp).unwrap_or(upper);
        (lower + upper) / 2.0
    } else {
        upper
    }
}

/// The value below which a share of the samples lies, interpolated between ranks. Zero for no samples.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let rank = share.clamp(0.0, 1.0) * last as f64;
    let (low, part) = (rank as usize, rank.fract());
    sorted[low] + part * (sorted[(low + 1).min(last)] - sorted[low])
}

/// Between which values the middle 95 % of the samples lie.
fn middle_95(samples: &[f64]) -> [f64; 2] {
    [0.025, 0.975].map(|share| quantile(samples, share))
}

/// Median of the absolute deviations from the median.
pub fn median_absolute_deviation(samples: &[f64]) -> f64 {
    let center = median(samples);
    median(&samples.iter().map(|sample| (sample - center).abs()).collect::<Vec<_>>())
}

/// A 95 % interval of what `statistic` makes of `count` rounds, by drawing rounds anew. The statistic is given their indexes.
/// None from fewer than [`ROUNDS_MIN`].
pub fn bootstrap_ci95(count: usize, mut statistic: impl FnMut(&[usize]) -> f64) -> Option<[f64; 2]> {
    if count < ROUNDS_MIN {
        return None;
    }
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut draw = vec![0; count];
    let mut again = || {
        draw.fill_with(|| random.random_range(0..count));
        statistic(&draw)
    };
    let mut values: Vec<f64> = (0..RESAMPLES).map(|_| again()).collect();
    values.retain(|value| value.is_finite());
    (!values.is_empty()).then(|| middle_95(&values))
}

/// The bootstrap's 95 % interval of the median; none from fewer than [`ROUNDS_MIN`].
pub fn median_ci95(samples: &[f64]) -> Option<[f64; 2]> {
    let mut drawn = Vec::with_capacity(samples.len());
    bootstrap_ci95(samples.len(), |rounds| {
        drawn.clear();
        drawn.extend(rounds.iter().map(|round| samples[*round]));
        median_of(&mut drawn)
    })
}

/// Mean and standard deviation; arithmetic on it propagates the deviation as for independent errors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Uncertain {
    /// The mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
}

impl Uncertain {
    /// Of samples; the deviation is the sample's (n - 1).
    pub fn of(samples: &[f64]) -> Uncertain {
        let n = samples.len();
        let mean = samples.iter().sum::<f64>() / n.max(1) as f64;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        Uncertain { mean, stddev: (squares / n.saturating_sub(1).max(1) as f64).sqrt() }
    }
}

impl std::ops::Sub for Uncertain {
    type Output = Uncertain;
    fn sub(self, other: Uncertain) -> Uncertain {
        Uncertain { mean: self.mean - other.mean, stddev: self.stddev.hypot(other.stddev) }
    }
}

impl std::ops::Mul<f64> for Uncertain {
    type Output = Uncertain;
    fn mul(self, factor: f64) -> Uncertain {
        Uncertain { mean: self.mean * factor, stddev: self.stddev * factor.abs() }
    }
}

impl std::ops::Div for Uncertain {
    type Output = Uncertain;
    fn div(self, other: Uncertain) -> Uncertain {
        let mean = self.mean / other.mean;
        Uncertain { mean, stddev: mean.abs() * (self.stddev / self.mean).hypot(other.stddev / other.mean) }
    }
}

impl std::fmt::Display for Uncertain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ± {:.2}", self.mean, self.stddev)
    }
}

/// Sums up the rounds of one case.
pub fn measurement(name: &str, unit: &str, samples: &[f64]) -> Measurement {
    let Uncertain { mean, stddev } = Uncertain::of(samples);
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

/// Ratio of two costs that were measured in the same rounds: of their medians, with rounds drawn in pairs. `None` where the
/// denominator cannot be told from zero, or there are no rounds. From fewer than [`ROUNDS_MIN`] there is no interval, and then what is divided
/// by has to be above zero in all of them.
pub fn ratio(name: &str, numerator: &[f64], denominator: &[f64]) -> Option<Ratio> {
    let count = numerator.len().min(denominator.len());
    let pick = |samples: &[f64], rounds: &[usize]| -> f64 {
        median_of(&mut rounds.iter().map(|round| samples[*round]).collect::<Vec<_>>())
    };
    let denominator = &denominator[..count];
    let [low, high] = median_ci95(denominator).unwrap_or_else(|| [0.0, 1.0].map(|share| quantile(denominator, share)));
    if low <= 0.0 && high >= 0.0 {
        return None;
    }
    let means = Uncertain::of(&numerator[..count]) / Uncertain::of(denominator);
    Some(Ratio {
        name: name.into(),
        value: median(&numerator[..count]) / median(denominator),
        ci95: bootstrap_ci95(count, |rounds| pick(numerator, rounds) / pick(denominator, rounds)),
        means: means.mean.is_finite().then_some([means.mean, means.stddev]).filter(|[_, stddev]| stddev.is_finite()),
    })
}

/// Samples of a batch in MSER-5, and how many batches there are at least: of fewer samples, batches are smaller.
const BATCH: usize = 5;
const BATCHES_MIN: usize = 10;
/// An earlier cut is as good as the best if its error is not larger by more than this factor.
const ERROR_TOLERANCE: f64 = 1.5;

/// How many samples at the beginning are warm-up: the first cut after which the standard error of the mean is about smallest, in
/// batches of five, and at most half of them. MSER-5, with a tolerance.
pub fn warm_up(samples: &[f64]) -> usize {
    let batch = (samples.len() / BATCHES_MIN).clamp(1, BATCH);
    let batches: Vec<f64> = samples.chunks_exact(batch).map(|batch| Uncertain::of(batch).mean).collect();
    let errors: Vec<f64> = (0..=batches.len() / 2)
        .map(|cut| &batches[cut..])
        .filter(|rest| !rest.is_empty())
        .map(|rest| {
            let mean = rest.iter().sum::<f64>() / rest.len() as f64;
            rest.iter().map(|batch| (batch - mean).powi(2)).sum::<f64>() / (rest.len() as f64).powi(2)
        })
        .collect();
    let smallest = errors.iter().copied().min_by(f64::total_cmp).unwrap_or(0.0);
    // Where the series is steady, the errors of all further cuts are alike but for noise.
    errors.iter().position(|error| *error <= smallest * ERROR_TOLERANCE).unwrap_or(0) * batch
}

/// Deviations from the median beyond which a sample is an outlier.
const OUTLIER_DEVIATIONS: f64 = 5.0;

/// Share of the samples that lie far from the median, measured by a robust standard deviation.
pub fn outlier_share(samples: &[f64]) -> f64 {
    // What makes the median of absolute deviations a standard deviation, were the samples normal: 1 / Φ⁻¹(¾).
    let scale = Normal::standard().inverse_cdf(0.75).recip();
    let (center, deviation) = (median(samples), scale * median_absolute_deviation(samples));
    let far = samples.iter().filter(|sample| (**sample - center).abs() > OUTLIER_DEVIATIONS * deviation);
    if deviation == 0.0 { 0.0 } else { far.count() as f64 / samples.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median_absolute_deviation(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), 1.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    fn normal(random: &mut SmallRng) -> f64 {
        let uniform: f64 = random.random_range(1e-9..1.0 - 1e-9);
        Normal::standard().inverse_cdf(uniform)
    }

    #[test]
    fn intervals_cover_the_median_as_often_as_they_say() {
        let mut random = SmallRng::seed_from_u64(1);
        let covered = (0..300)
            .filter(|_| {
                let samples: Vec<f64> = (0..30).map(|_| normal(&mut random)).collect();
                let [low, high] = median_ci95(&samples).expect("thirty rounds");
                low <= 0.0 && 0.0 <= high
            })
            .count();
        // 95 % of 300 with three standard deviations to each side, and a little less at the bottom: the percentile interval is
        // known to be short for small samples.
        assert!((265..=299).contains(&covered), "{covered} of 300");
    }

    #[test]
    fn few_rounds_have_no_interval() {
        assert_eq!(median_ci95(&[5.0, 1.0, 3.0, 2.0, 4.0]), None);
        assert_eq!(median_ci95(&[]), None);
        assert_eq!(ratio("a_vs_b", &[2.0; 5], &[1.0; 5]).map(|ratio| (ratio.value, ratio.ci95)), Some((2.0, None)));
        assert!(median_ci95(&[5.0, 1.0, 3.0, 2.0, 4.0, 6.0]).is_some_and(|[low, high]| low < 3.5 && high > 3.5));
    }

    #[test]
    fn a_ratio_is_of_pairs() {
        // Both follow the machine's mood, so that their ratio is far better known than either.
        let mut random = SmallRng::seed_from_u64(2);
        let moods: Vec<f64> = (0..40).map(|_| 1.0 + normal(&mut random).abs()).collect();
        let twice: Vec<f64> = moods.iter().map(|mood| 2.0 * mood).collect();
        let ratio = ratio("a_vs_b", &twice, &moods).unwrap();
        assert_eq!(ratio.value, 2.0);
        assert!(ratio.ci95.is_some_and(|[low, high]| low > 1.999 && high < 2.001), "{:?}", ratio.ci95);
    }

    #[test]
    fn there_is_no_ratio_to_nothing() {
        let noise = [-0.1, 0.1, 0.2, -0.2, 0.0, 0.05, -0.05];
        assert!(ratio("a_vs_b", &[1.0; 7], &noise).is_none());
        assert!(ratio("a_vs_b", &[], &[]).is_none());
    }

    /// Figures of the kernel's documentation of immediate values (2008), with its own results.
    #[test]
    fn errors_propagate_as_in_the_tables_of_2008() {
        let memory = Uncertain { mean: 644.09, stddev: 11.39 };
        let cache = Uncertain { mean: 88.16, stddev: 1.35 };
        let added = memory - cache;
        assert!((added.mean - 555.93).abs() < 0.005 && (added.stddev - 11.47).abs() < 0.005, "{added}");
        let markers = Uncertain { mean: 1111.86, stddev: 25.48 };
        let call = Uncertain { mean: 16535.11, stddev: 1677.71 };
        let share = markers / call;
        assert!((share.mean - 0.0672).abs() < 0.00005 && (share.stddev - 0.0070).abs() < 0.00005, "{share:?}");
        assert_eq!((Uncertain { mean: 2.0, stddev: 0.5 } * -2.0).stddev, 1.0);
    }

    #[test]
    fn warm_up_is_found() {
        let mut random = SmallRng::seed_from_u64(3);
        let series = |warm: usize, random: &mut SmallRng| -> Vec<f64> {
            (0..100).map(|round| 10.0 + 0.1 * normal(random) + if round < warm { 5.0 } else { 0.0 }).collect()
        };
        assert_eq!(warm_up(&series(10, &mut random)), 10);
        assert!(warm_up(&series(0, &mut random)) <= 10);
        assert_eq!(warm_up(&[]), 0);
        assert_eq!(warm_up(&[1.0; 4]), 0);
    }

    #[test]
    fn outliers_are_found() {
        let mut samples: Vec<f64> = (0..95).map(|number| 10.0 + 0.01 * (number % 7) as f64).collect();
        assert_eq!(outlier_share(&samples), 0.0);
        samples.extend([30.0; 5]);
        assert_eq!(outlier_share(&samples), 0.05);
        assert_eq!(outlier_share(&[1.0; 9]), 0.0);
    }
}
