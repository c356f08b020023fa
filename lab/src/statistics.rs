//! Medians and what may be said of them.

use crate::{Measurement, Ratio};

/// The median; of an even count the mean of the middle two. Zero for no samples.
pub fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len.is_multiple_of(2) => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Distribution-free 95 % interval of the median: the order statistics k and n + 1 - k, with the largest k for which fewer
/// than k of n fair coins show heads with a probability of at most 2.5 %. With fewer than six samples, all of them.
pub fn median_ci95(samples: &[f64]) -> [f64; 2] {
    let sorted = sorted(samples);
    let n = sorted.len();
    if n == 0 {
        return [0.0, 0.0];
    }
    // Probability of exactly i heads, in turn; sums stay far from underflow up to a thousand samples.
    let mut probability = 0.5f64.powi(n as i32);
    let mut tail = 0.0;
    let mut k = 0;
    while k < n / 2 && tail + probability <= 0.025 {
        tail += probability;
        probability *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    let k = k.max(1);
    [sorted[k - 1], sorted[n - k]]
}

/// Sums up the rounds of one case.
pub fn measurement(name: &str, unit: &str, samples: &[f64]) -> Measurement {
    let n = samples.len();
    let center = median(samples);
    let mean = samples.iter().sum::<f64>() / n.max(1) as f64;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    let deviations: Vec<f64> = samples.iter().map(|sample| (sample - center).abs()).collect();
    Measurement {
        name: name.into(),
        unit: unit.into(),
        n,
        median: center,
        mad: median(&deviations),
        mean,
        stddev: (squares / n.saturating_sub(1).max(1) as f64).sqrt(),
        ci95: median_ci95(samples),
        samples: samples.to_vec(),
        ..Measurement::default()
    }
}

/// Ratio of two costs that were measured in the same rounds.
pub fn ratio(name: &str, numerator: &[f64], denominator: &[f64]) -> Ratio {
    let ratios: Vec<f64> = numerator.iter().zip(denominator).map(|(a, b)| a / b).collect();
    Ratio { name: name.into(), value: median(&ratios), ci95: median_ci95(&ratios) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        let samples = |n: usize| (1..=n).map(|number| number as f64).collect::<Vec<_>>();
        // Tables of the sign test: n = 5 none, 10 → ranks 2 and 9, 20 → 6 and 15, 30 → 10 and 21.
        assert_eq!(median_ci95(&samples(5)), [1.0, 5.0]);
        assert_eq!(median_ci95(&samples(10)), [2.0, 9.0]);
        assert_eq!(median_ci95(&samples(20)), [6.0, 15.0]);
        assert_eq!(median_ci95(&samples(30)), [10.0, 21.0]);
    }

    #[test]
    fn a_ratio_is_of_rounds() {
        let ratio = ratio("a_vs_b", &[2.0, 4.0, 9.0], &[1.0, 2.0, 3.0]);
        assert_eq!(ratio.value, 2.0);
    }
}
