//! Values over time.

use serde::Serialize;

/// The values of a field.
#[derive(Debug)]
pub(crate) struct Counter {
    /// Its process, as [`crate::Contents::process`] has numbered it.
    pub process: u32,
    pub name: String,
    /// From when on, nanoseconds since the epoch, and which.
    pub values: Vec<(i64, f64)>,
}

/// Values as the page draws them.
#[derive(Debug, Serialize)]
pub(crate) struct CounterHead<'c> {
    process: u32,
    name: &'c str,
    /// Of all values.
    least: f64,
    greatest: f64,
    /// Since the report's begin, nanoseconds; the least, the greatest and the last of the values from then to the next.
    points: Vec<(u64, f64, f64, f64)>,
    /// Of a part of the time, values of others that are not told one by one.
    merged: u64,
}

impl Counter {
    /// The values between two times (since `begin_ns`, nanoseconds), with the one that holds at the first, in at most about `points_max` steps.
    pub(crate) fn head(&self, begin_ns: i64, (from, to): (u64, u64), points_max: usize) -> CounterHead<'_> {
        let since = |(ns, _): &(i64, f64)| u64::try_from(ns.saturating_sub(begin_ns)).unwrap_or(0);
        let first = self.values.partition_point(|value| since(value) <= from).saturating_sub(1);
        let count = self.values[first..].partition_point(|value| since(value) <= to);
        let shown = &self.values[first..first + count];
        let points_max = points_max.max(1);
        let step = match shown.len() > points_max {
            true => (to.min(shown.last().map_or(0, since)) - from.min(to)) / points_max as u64 + 1,
            false => 0,
        };
        let mut points: Vec<(u64, f64, f64, f64)> = Vec::new();
        for value in shown {
            let (at, value) = (since(value), value.1);
            match points.last_mut() {
                Some((begin, least, greatest, last)) if step > 0 && *begin / step == at / step => {
                    (*least, *greatest, *last) = (least.min(value), greatest.max(value), value);
                }
                _ => points.push((at, value, value, value)),
            }
        }
        let merged = (shown.len() - points.len()) as u64;
        let of_all =
            |pick: fn(f64, f64) -> f64| self.values.iter().map(|(_, value)| *value).reduce(pick).unwrap_or(0.0);
        CounterHead {
            process: self.process,
            name: &self.name,
            least: of_all(f64::min),
            greatest: of_all(f64::max),
            points,
            merged,
        }
    }
}

/// Of one counter, beyond which no page has pixels.
const POINTS_MAX: u64 = 20_000;

/// Counters in a part of the time, with at most about so many points together.
pub(crate) fn heads(counters: &[Counter], begin_ns: i64, part: (u64, u64), points_max: u64) -> Vec<CounterHead<'_>> {
    let each = (points_max / counters.len().max(1) as u64).min(POINTS_MAX);
    counters.iter().map(|counter| counter.head(begin_ns, part, each as usize)).collect()
}

impl CounterHead<'_> {
    /// Values that are not told one by one.
    pub(crate) fn merged(&self) -> u64 {
        self.merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_the_least_and_the_greatest_of_their_values() {
        let values = (0..1000).map(|number| (1000 + 10 * number, (number % 7) as f64)).collect();
        let counter = Counter { process: 0, name: "n".into(), values };
        let all = counter.head(1000, (0, u64::MAX), 1000);
        assert_eq!((all.points.len(), all.merged, all.least, all.greatest), (1000, 0, 0.0, 6.0));
        assert_eq!(all.points[8], (80, 1.0, 1.0, 1.0));
        let some = counter.head(1000, (0, u64::MAX), 10);
        assert!((5..=11).contains(&some.points.len()), "{}", some.points.len());
        assert_eq!(some.points.len() as u64 + some.merged, 1000);
        assert!(some.points.iter().all(|(_, least, greatest, _)| (*least, *greatest) == (0.0, 6.0)));
        // The value that holds at the begin is that of the event before.
        let part = counter.head(1000, (85, 100), 10);
        assert_eq!(part.points.iter().map(|point| point.0).collect::<Vec<_>>(), [80, 90, 100]);
        let empty = Counter { process: 0, name: "n".into(), values: Vec::new() };
        assert_eq!(empty.head(0, (5, 9), 10).points.len(), 0);
    }
}
