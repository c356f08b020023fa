//! Counters: values over time.

use dormouse_ctf::time::since_ns;
use serde::Serialize;

/// Values of a step of time: its begin in nanoseconds since the epoch; the least, the greatest and the last value.
pub(crate) type Values = (i64, f64, f64, f64);

/// The values of a field.
#[derive(Debug, Clone)]
pub(crate) struct Counter {
    /// Number of its process, from [`crate::Contents::process`].
    pub process: u32,
    pub name: String,
    /// Single values, or merged values of steps of time.
    pub values: Vec<Values>,
    /// Number of values that were merged into others.
    merged: u64,
    /// Length of a step, in nanoseconds; 0 if no values are merged.
    step_ns: i64,
}

impl Counter {
    pub(crate) fn new(process: u32, name: String) -> Counter {
        Counter { process, name, values: Vec::new(), merged: 0, step_ns: 0 }
    }

    /// Adds a value. If there are more than `values_max`, those within a step of time are merged.
    pub(crate) fn add(&mut self, ns: i64, value: f64, values_max: usize) {
        self.put((ns, value, value, value));
        if self.values.len() <= values_max {
            return;
        }
        let span = i128::from(ns) - i128::from(self.values[0].0);
        let step = (2 * i128::from(self.step_ns)).max(4 * span / values_max.max(1) as i128).max(1);
        self.step_ns = i64::try_from(step).unwrap_or(i64::MAX);
        let values = std::mem::take(&mut self.values);
        values.into_iter().for_each(|values| self.put(values));
    }

    /// Returns a counter that continues at a time, with the value that holds then.
    pub(crate) fn around(&self, ns: i64) -> Counter {
        let at = self.values.partition_point(|values| values.0 <= ns).checked_sub(1);
        let values = at.and_then(|at| self.values.get(at)).map(|values| (values.0, values.3, values.3, values.3));
        Counter {
            process: self.process,
            name: self.name.clone(),
            values: values.into_iter().collect(),
            merged: 0,
            step_ns: 0,
        }
    }

    fn put(&mut self, (ns, least, greatest, last): Values) {
        match self.values.last_mut() {
            Some(before) if self.step_ns > 0 && before.0.div_euclid(self.step_ns) == ns.div_euclid(self.step_ns) => {
                self.merged += 1;
                *before = (before.0, before.1.min(least), before.2.max(greatest), last);
            }
            _ => self.values.push((ns, least, greatest, last)),
        }
    }
}

/// The values of a counter, as the page draws them.
#[derive(Debug, Serialize)]
pub(crate) struct CounterHead<'c> {
    process: u32,
    name: &'c str,
    /// Least and greatest of all values.
    least: f64,
    greatest: f64,
    /// Nanoseconds since the report's begin; the least, the greatest and the last value from then to the next point.
    points: Vec<(u64, f64, f64, f64)>,
    /// Number of values in this part of the time that were merged into others.
    merged: u64,
}

impl Counter {
    /// Returns the values between two times (nanoseconds since `begin_ns`), including the one that holds at the first,
    /// in at most about `points_max` steps.
    pub(crate) fn head(&self, begin_ns: i64, (from, to): (u64, u64), points_max: usize) -> CounterHead<'_> {
        let since = |(ns, ..): &Values| since_ns(*ns, begin_ns);
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
            let (at, (_, low, high, value)) = (since(value), *value);
            match points.last_mut() {
                Some((begin, least, greatest, last)) if step > 0 && *begin / step == at / step => {
                    (*least, *greatest, *last) = (least.min(low), greatest.max(high), value);
                }
                _ => points.push((at, low, high, value)),
            }
        }
        let merged = (shown.len() - points.len()) as u64 + self.merged;
        CounterHead {
            process: self.process,
            name: &self.name,
            least: self.values.iter().map(|values| values.1).reduce(f64::min).unwrap_or(0.0),
            greatest: self.values.iter().map(|values| values.2).reduce(f64::max).unwrap_or(0.0),
            points,
            merged,
        }
    }
}

/// Maximum number of points of a counter: more than a page has pixels.
const POINTS_MAX: u64 = 20_000;

/// Returns counters in a part of the time, with about `points_max` points in all.
pub(crate) fn heads(counters: &[Counter], begin_ns: i64, part: (u64, u64), points_max: u64) -> Vec<CounterHead<'_>> {
    let each = (points_max / counters.len().max(1) as u64).min(POINTS_MAX);
    counters.iter().map(|counter| counter.head(begin_ns, part, each as usize)).collect()
}

impl CounterHead<'_> {
    /// Returns the number of values that were merged into others.
    pub(crate) fn merged(&self) -> u64 {
        self.merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_the_minimum_and_maximum_of_their_values() {
        let (mut counter, mut small) = (Counter::new(0, "n".into()), Counter::new(0, "n".into()));
        for number in 0..1000 {
            counter.add(1000 + 10 * number, (number % 7) as f64, usize::MAX);
            small.add(1000 + 10 * number, (number % 7) as f64, 100);
        }
        let few = small.head(1000, (0, u64::MAX), 1000);
        assert!((10..=101).contains(&few.points.len()), "{}", few.points.len());
        assert_eq!((few.points.len() as u64 + few.merged, few.least, few.greatest), (1000, 0.0, 6.0));
        assert_eq!(few.points.last().map(|point| point.3), Some((999 % 7) as f64));
        let all = counter.head(1000, (0, u64::MAX), 1000);
        assert_eq!((all.points.len(), all.merged, all.least, all.greatest), (1000, 0, 0.0, 6.0));
        assert_eq!(all.points[8], (80, 1.0, 1.0, 1.0));
        let some = counter.head(1000, (0, u64::MAX), 10);
        assert!((5..=11).contains(&some.points.len()), "{}", some.points.len());
        assert_eq!(some.points.len() as u64 + some.merged, 1000);
        assert!(some.points.iter().all(|(_, least, greatest, _)| (*least, *greatest) == (0.0, 6.0)));
        // The value that holds at the begin is that of the event before it.
        let part = counter.head(1000, (85, 100), 10);
        assert_eq!(part.points.iter().map(|point| point.0).collect::<Vec<_>>(), [80, 90, 100]);
        let empty = Counter::new(0, "n".into());
        assert_eq!(empty.head(0, (5, 9), 10).points.len(), 0);
    }
}
