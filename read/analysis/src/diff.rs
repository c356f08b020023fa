//! Compares two traces.
//!
//! | figure | 95 % interval |
//! | --- | --- |
//! | ratio of rates | Given the number of events in both traces together, the number in one of them is binomial if events come independently: Wilson's interval of that share. Events in bursts tell less: both counts are first divided by their index of dispersion |
//! | ratio of percentiles | Bootstrap with a fixed seed. The percentile of a resample of n values is the value at a random share of the values, that of the k-th of n uniform random numbers. That share has a Beta distribution, so the percentile is drawn without drawing the sample. The interval is widened by the error of the sketches |
//! | ratio of means | Its logarithm is taken as normal, by the delta method, if both have at least 30 values |
//!
//! No interval takes other runs into account. Each covers the chance variation of a run that is repeated under the same
//! conditions.
//!
//! Source: E. B. Wilson, *Probable inference*, 1927; P. McCullagh, J. Nelder, *Generalized Linear Models*, 1989, 6.2 (dispersion);
//! B. Efron, R. Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13.

use std::collections::HashMap;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Beta, Distribution as _};
use serde::Serialize;

use dormouse_ctf::select::Weight;

use crate::distribution::{Distribution, Number, RELATIVE_ERROR};
use crate::group::{Counted, Group, Slices};
use crate::report::{Key, Report, Rest, Row};

const Z_95: f64 = 1.959_963_984_540_054;
const SEED: u64 = 42;
const RESAMPLES: usize = 2000;
/// Minimum number of values for an interval of means: the mean of fewer skewed values is not normal.
const MEAN_COUNT_MIN: u64 = 30;
/// Percentiles that are compared: name, percentile, and number of values that both sides must have.
const PERCENTILES: [(&str, f64, u64); 3] = [("p50", 50.0, 10), ("p90", 90.0, 100), ("p99", 99.0, 1000)];

/// Two reports and the ratios of their figures.
#[derive(Debug, Serialize)]
pub struct Diff {
    /// Report of the first trace.
    pub a: Report,
    /// Report of the second trace.
    pub b: Report,
    /// Ratios of the groups that either report has, those with most events first.
    pub ratios: Vec<Ratios>,
    /// Groups that are left out of `ratios` by the limit of rows.
    pub rest: Option<Rest>,
}

/// Figures of two groups of the same name.
#[derive(Debug, Serialize)]
pub struct Ratios {
    /// Name of the groups.
    pub key: Key,
    /// `events_per_s`, and of measured values `mean`, `p50`, `p90`, `p99`.
    pub figures: Vec<Figure>,
}

/// A figure in both traces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the figure.
    pub name: &'static str,
    /// Value in the first trace.
    pub a: Option<f64>,
    /// Value in the second trace.
    pub b: Option<f64>,
    /// `b` divided by `a`.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio; an end is `null` where it is infinite. `None`: there is no interval.
    pub ci95: Option<[Option<f64>; 2]>,
    /// Whether the second is `larger` or `smaller` than the first; `cannot be told` if the interval contains 1 or is
    /// missing.
    pub verdict: &'static str,
}

impl Figure {
    fn new(name: &'static str, a: Option<f64>, b: Option<f64>, ci95: Option<[f64; 2]>) -> Figure {
        let ratio = a.zip(b).map(|(a, b)| b / a).filter(|ratio| ratio.is_finite());
        let verdict = match ci95 {
            Some([low, _]) if low > 1.0 => "larger",
            Some([_, high]) if high < 1.0 => "smaller",
            _ => "cannot be told",
        };
        let end = |end: f64| end.is_finite().then_some(end);
        Figure { name, a, b, ratio, ci95: ci95.map(|ends| ends.map(end)), verdict }
    }
}

impl Diff {
    /// Compares two answers to the same question. `top`: maximum number of rows.
    pub fn new(a: Report, b: Report, top: Option<usize>) -> Diff {
        let durations = [&a, &b].map(|report| report.span.map_or(0, |span| span.duration_ns));
        let mut pairs: Vec<(&Key, [Option<&Row>; 2])> =
            a.rows.iter().map(|row| (&row.key, [Some(row), None])).collect();
        let named = |row: &Row| row.key.0.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
        let index: HashMap<_, _> =
            a.rows.iter().enumerate().map(|(index, row)| (format!("{:?}", named(row)), index)).collect();
        for row in &b.rows {
            match index.get(&format!("{:?}", named(row))) {
                Some(index) => pairs[*index].1[1] = Some(row),
                None => pairs.push((&row.key, [None, Some(row)])),
            }
        }
        let count = |rows: &[Option<&Row>; 2]| rows.iter().flatten().map(|row| row.count).sum::<u64>();
        pairs.sort_by_key(|(_, rows)| std::cmp::Reverse(count(rows)));
        let rest = top.filter(|top| *top < pairs.len()).map(|top| {
            let rest = pairs.split_off(top);
            Rest { groups: rest.len() as u64, count: rest.iter().map(|(_, rows)| count(rows)).sum() }
        });
        let ratios = pairs.into_iter().map(|(key, rows)| {
            let sides = rows.map(|row| row.map_or(Side::default(), Side::of_row));
            Ratios { key: key.clone(), figures: figures(sides, durations) }
        });
        let ratios = ratios.collect();
        Diff { a, b, ratios, rest }
    }
}

/// Data of one group in one trace for a comparison: how often it occurred, when, and with which values.
#[derive(Debug, Clone, Default)]
pub struct Sample(Group);

impl Sample {
    /// Adds an occurrence. `since_ns`: nanoseconds since the first event of the trace.
    pub fn add(&mut self, since_ns: u64, value: Option<u64>) {
        let number = value.map(|value| Number::Whole(value.into()));
        self.0.add(&Counted { number, size_bytes: 0, since_ns, weight: Weight::ONE }, true);
    }

    /// Adds all occurrences of `other`.
    pub fn merge(&mut self, other: &Sample) {
        self.0.merge(&other.0);
    }

    /// Returns the number of occurrences.
    pub fn count(&self) -> u64 {
        self.0.count
    }

    /// Returns the figures of two samples, as in [`Diff`]. `durations_ns`: durations of their traces.
    pub fn figures(samples: [Option<&Sample>; 2], durations_ns: [u64; 2]) -> Vec<Figure> {
        figures(samples.map(|sample| sample.map_or(Side::default(), |sample| Side::of_group(&sample.0))), durations_ns)
    }
}

/// One side of a comparison.
#[derive(Clone, Copy, Default)]
struct Side<'g> {
    count: u64,
    values: Option<&'g Distribution>,
    slices: Option<&'g Slices>,
}

impl<'g> Side<'g> {
    fn of_row(row: &'g Row) -> Side<'g> {
        Side { count: row.count, values: row.values.as_deref(), slices: row.slices.as_deref() }
    }

    fn of_group(group: &'g Group) -> Side<'g> {
        Side { count: group.count, values: group.values.as_deref(), slices: group.slices.as_deref() }
    }
}

fn figures(sides: [Side<'_>; 2], durations: [u64; 2]) -> Vec<Figure> {
    // Seeded for each group, so that a group's figures do not depend on other groups.
    let random = &mut SmallRng::seed_from_u64(SEED);
    let counts = sides.map(|side| side.count);
    let mut dispersions = [1.0; 2];
    for ((dispersion, side), duration_ns) in dispersions.iter_mut().zip(sides).zip(durations) {
        if let Some(slices) = side.slices {
            *dispersion = slices.dispersion(duration_ns);
        }
    }
    let seconds = durations.map(|ns| ns as f64 / 1e9);
    let rate = |index: usize| (seconds[index] > 0.0).then(|| counts[index] as f64 / seconds[index]);
    let mut figures = vec![Figure::new("events_per_s", rate(0), rate(1), rate_ratio(counts, dispersions, seconds))];
    let [Some(a), Some(b)] = sides.map(|side| side.values) else { return figures };
    figures.push(Figure::new("mean", a.mean(), b.mean(), mean_ratio(a, b)));
    for (name, percentile, count_min) in PERCENTILES {
        let is_enough = a.count().min(b.count()) >= count_min;
        let interval = is_enough.then(|| percentile_ratio(a, b, percentile, random)).flatten();
        figures.push(Figure::new(name, a.percentile(percentile), b.percentile(percentile), interval));
    }
    figures
}

/// Returns the interval of the ratio of rates, second by first.
fn rate_ratio(counts: [u64; 2], dispersions: [f64; 2], seconds: [f64; 2]) -> Option<[f64; 2]> {
    if counts == [0, 0] || seconds.iter().any(|seconds| *seconds <= 0.0) {
        return None;
    }
    let effective = [0, 1].map(|index| counts[index] as f64 / dispersions[index]);
    let all = effective[0] + effective[1];
    let share = effective[1] / all;
    let z2 = Z_95 * Z_95;
    let centre = (share + z2 / (2.0 * all)) / (1.0 + z2 / all);
    let half = Z_95 / (1.0 + z2 / all) * (share * (1.0 - share) / all + z2 / (4.0 * all * all)).sqrt();
    // Converts odds of shares to a ratio of rates.
    let scale = dispersions[1] / dispersions[0] * seconds[0] / seconds[1];
    let odds = |share: f64| if share >= 1.0 { f64::INFINITY } else { share.max(0.0) / (1.0 - share) };
    let low = if counts[1] == 0 { 0.0 } else { centre - half };
    let high = if counts[0] == 0 { 1.0 } else { centre + half };
    Some([odds(low) * scale, odds(high) * scale])
}

/// Returns the interval of the ratio of means, second by first.
fn mean_ratio(a: &Distribution, b: &Distribution) -> Option<[f64; 2]> {
    let (mean_a, mean_b) = (a.mean()?, b.mean()?);
    if a.count().min(b.count()) < MEAN_COUNT_MIN || mean_a <= 0.0 || mean_b <= 0.0 {
        return None;
    }
    let error = (a.variance_of_mean() / mean_a.powi(2) + b.variance_of_mean() / mean_b.powi(2)).sqrt();
    Some([-1.0, 1.0].map(|side| mean_b / mean_a * (side * Z_95 * error).exp()))
}

/// Returns the interval of the ratio of a percentile, second by first.
fn percentile_ratio(a: &Distribution, b: &Distribution, percentile: f64, random: &mut SmallRng) -> Option<[f64; 2]> {
    let draws = [a, b].map(|values| draws(values, percentile, random));
    let [Some(of_a), Some(of_b)] = draws else { return None };
    let mut ratios: Vec<f64> = of_a.iter().zip(&of_b).map(|(a, b)| b / a).collect();
    // Values that are 0 or negative have no ratio.
    if of_a.iter().chain(&of_b).any(|value| *value <= 0.0)
        || a.relative_error().is_none()
        || b.relative_error().is_none()
    {
        return None;
    }
    ratios.sort_by(f64::total_cmp);
    let sketch = (1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR);
    let at = |share: f64| ratios[((share * RESAMPLES as f64) as usize).min(RESAMPLES - 1)];
    Some([at(0.025) / sketch, at(0.975) * sketch])
}

/// Returns the percentile of each of `RESAMPLES` resamples.
fn draws(values: &Distribution, percentile: f64, random: &mut SmallRng) -> Option<Vec<f64>> {
    let (count, rank) = (values.count() as f64, values.rank(percentile) as f64);
    let share = Beta::new(rank, count + 1.0 - rank).ok()?;
    let draw = |random: &mut SmallRng| values.at_rank((share.sample(random) * count).ceil().max(1.0) as u64);
    (0..RESAMPLES).map(|_| draw(random)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    #[test]
    fn ratios_of_rates_have_intervals() {
        // Known: p = 50 of 150 has Wilson's interval 0.2629 to 0.4121, so odds of 0.3567 to 0.7010.
        let [low, high] = rate_ratio([100, 50], [1.0, 1.0], [1.0, 1.0]).unwrap();
        assert!((low - 0.3567).abs() < 1e-3 && (high - 0.7010).abs() < 1e-3, "{low} {high}");
        // Equally many events in half the time are twice the rate.
        let [half, _] = rate_ratio([100, 50], [1.0, 1.0], [1.0, 0.5]).unwrap();
        assert!((half - 2.0 * low).abs() < 1e-9);
        // Bursts of a hundred events tell as much as single events.
        let single = rate_ratio([100, 50], [1.0, 1.0], [1.0, 1.0]).unwrap();
        assert_eq!(rate_ratio([10_000, 5000], [100.0, 100.0], [1.0, 1.0]).unwrap(), single);
        assert_eq!(rate_ratio([0, 0], [1.0, 1.0], [1.0, 1.0]), None);
        assert_eq!(rate_ratio([10, 10], [1.0, 1.0], [0.0, 1.0]), None);
        let [low, high] = rate_ratio([0, 100], [1.0, 1.0], [1.0, 1.0]).unwrap();
        assert!(low > 20.0 && high == f64::INFINITY);
        let [low, high] = rate_ratio([100, 0], [1.0, 1.0], [1.0, 1.0]).unwrap();
        assert!(low == 0.0 && high < 0.05);
    }

    /// Returns exponentially distributed values.
    fn values(random: &mut SmallRng, count: usize, mean: f64) -> Distribution {
        let mut values = Distribution::default();
        (0..count).for_each(|_| values.add(Number::Real(-mean * (1.0 - random.random::<f64>()).ln())));
        values
    }

    #[test]
    fn intervals_cover_the_true_ratio_about_95_times_in_100() {
        let mut random = SmallRng::seed_from_u64(7);
        let (rounds, mut covered) = (60, [0, 0, 0]);
        for _ in 0..rounds {
            let (a, b) = (values(&mut random, 400, 100.0), values(&mut random, 400, 150.0));
            let intervals = [
                mean_ratio(&a, &b).unwrap(),
                percentile_ratio(&a, &b, 50.0, &mut random).unwrap(),
                percentile_ratio(&a, &b, 90.0, &mut random).unwrap(),
            ];
            for (covered, [low, high]) in covered.iter_mut().zip(intervals) {
                assert!(low < high);
                *covered += u32::from(low <= 1.5 && 1.5 <= high);
            }
        }
        // 95 % of 60 are 57, with a deviation of 1.7; intervals of percentiles are wider by the sketch's error.
        assert!(covered.iter().all(|count| *count >= 52), "{covered:?}");
    }

    #[test]
    fn undecided_differences_have_the_verdict_cannot_be_told() {
        let mut random = SmallRng::seed_from_u64(3);
        let (a, b) = (values(&mut random, 1000, 100.0), values(&mut random, 1000, 300.0));
        let figure = |a: &Distribution, b: &Distribution, random: &mut SmallRng| {
            let [a_50, b_50] = [a, b].map(|values| values.percentile(50.0));
            Figure::new("p50", a_50, b_50, percentile_ratio(a, b, 50.0, random))
        };
        assert_eq!(figure(&a, &b, &mut random).verdict, "larger");
        assert_eq!(figure(&b, &a, &mut random).verdict, "smaller");
        assert_eq!(figure(&a, &a, &mut random).verdict, "cannot be told");
        // The seed is fixed.
        let again = || percentile_ratio(&a, &b, 50.0, &mut SmallRng::seed_from_u64(SEED));
        assert_eq!(again(), again());
        let mut zeros = Distribution::default();
        (0..100).for_each(|_| zeros.add(Number::Whole(0)));
        assert_eq!((mean_ratio(&zeros, &a), percentile_ratio(&zeros, &a, 50.0, &mut random)), (None, None));
    }
}
