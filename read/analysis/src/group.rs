//! A limited number of groups of events.

use std::collections::HashMap;

use dormouse_ctf::select::{Estimate, Weight, WeightCounts};

use crate::distribution::{Distribution, Number};

/// Counts and values of a group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    pub count: u64,
    pub bytes: u64,
    pub values: Option<Box<Distribution>>,
    pub slices: Option<Box<Slices>>,
    /// Weights of the events, other than 1.
    weights: Option<Box<WeightCounts>>,
    /// Difference of the estimated sum of values from that of the recorded ones.
    more: f64,
}

impl Group {
    /// Returns the estimated number of events; `None` if a weight is not known.
    pub(crate) fn estimate(&self) -> Option<Estimate> {
        let all = Estimate { events: self.count as f64, error: Some(0.0) };
        self.weights.as_ref().map_or(Some(all), |weights| weights.estimate(self.count))
    }

    /// Returns the estimated sum of values; `None` if a weight is not known, or without values.
    pub(crate) fn estimated_sum(&self) -> Option<f64> {
        let sum = self.values.as_ref()?.sum()?.real();
        self.estimate().map(|_| sum + self.more)
    }

    pub(crate) fn add(&mut self, event: &Counted, is_compared: bool) {
        self.count += 1;
        self.bytes += event.size_bytes;
        if let Some(number) = event.number {
            self.values.get_or_insert_default().add(number);
        }
        if is_compared {
            self.slices.get_or_insert_default().add(event.since_ns);
        }
        if event.weight != Weight::ONE {
            self.weights.get_or_insert_default().add(event.weight, 1);
            if let (Weight::Known { factor, .. }, Some(number)) = (event.weight, event.number)
                && number.real().is_finite()
            {
                self.more += (factor - 1.0) * number.real();
            }
        }
    }

    pub(crate) fn merge(&mut self, other: &Group) {
        self.count += other.count;
        self.bytes += other.bytes;
        if let Some(values) = &other.values {
            self.values.get_or_insert_default().merge(values);
        }
        if let Some(slices) = &other.slices {
            self.slices.get_or_insert_default().merge(slices);
        }
        if let Some(weights) = &other.weights {
            self.weights.get_or_insert_default().merge(weights);
        }
        self.more += other.more;
    }
}

/// Data that a group counts of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub number: Option<Number>,
    pub size_bytes: u64,
    /// Nanoseconds since the first event of the trace.
    pub since_ns: u64,
    pub weight: Weight,
}

/// Groups by their keys.
#[derive(Debug)]
pub(crate) struct Groups {
    index: HashMap<Box<[u8]>, usize>,
    pub groups: Vec<Group>,
    max: usize,
    is_compared: bool,
    /// Events of further groups, once there are `max` groups.
    pub other: Option<Group>,
}

impl Groups {
    pub(crate) fn new(max: usize, is_compared: bool) -> Groups {
        Groups { index: HashMap::new(), groups: Vec::new(), max, is_compared, other: None }
    }

    pub(crate) fn add(&mut self, key: &[u8], event: &Counted) {
        let group = match self.index.get(key) {
            Some(index) => &mut self.groups[*index],
            None if self.groups.len() < self.max => {
                self.index.insert(key.into(), self.groups.len());
                self.groups.push(Group::default());
                self.groups.last_mut().expect("pushed above")
            }
            None => self.other.get_or_insert_default(),
        };
        group.add(event, self.is_compared);
    }

    /// Returns keys with their groups, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &Group)> {
        self.index.iter().map(|(key, index)| (&**key, &self.groups[*index]))
    }
}

/// Counts by slices of time. There are 128 slices, whose width doubles when time passes the last one, so that 64 to 128
/// of them cover a longer time.
#[derive(Debug, Clone)]
pub(crate) struct Slices {
    width_ns: u64,
    counts: [u64; Slices::COUNT],
}

impl Default for Slices {
    fn default() -> Slices {
        Slices { width_ns: 1000, counts: [0; Slices::COUNT] }
    }
}

impl Slices {
    const COUNT: usize = 128;

    fn widen(&mut self) {
        for index in 0..Slices::COUNT / 2 {
            self.counts[index] = self.counts[2 * index] + self.counts[2 * index + 1];
        }
        self.counts[Slices::COUNT / 2..].fill(0);
        self.width_ns *= 2;
    }

    fn add(&mut self, since_ns: u64) {
        while since_ns / self.width_ns >= Slices::COUNT as u64 {
            self.widen();
        }
        self.counts[(since_ns / self.width_ns) as usize] += 1;
    }

    fn merge(&mut self, other: &Slices) {
        let mut other = other.clone();
        while self.width_ns < other.width_ns {
            self.widen();
        }
        while other.width_ns < self.width_ns {
            other.widen();
        }
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
    }

    /// Returns the index of dispersion: variance of the counts divided by their mean. It is 1 if events come
    /// independently, more if they come in bursts. Never less than 1.
    pub(crate) fn dispersion(&self, duration_ns: u64) -> f64 {
        let mut slices = self.clone();
        // Widened until the slices cover the whole duration.
        while duration_ns / slices.width_ns >= Slices::COUNT as u64 {
            slices.widen();
        }
        let whole = (duration_ns / slices.width_ns) as usize;
        if whole < 2 {
            return 1.0;
        }
        let counts = slices.counts[..whole].iter().map(|count| *count as f64);
        let mean = counts.clone().sum::<f64>() / whole as f64;
        let squares: f64 = counts.map(|count| (count - mean).powi(2)).sum();
        if mean > 0.0 { (squares / (whole as f64 - 1.0) / mean).max(1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_slices_grow_and_detect_bursts() {
        let (mut even, mut bursts) = (Slices::default(), Slices::default());
        let duration_ns = 128_000_000;
        for index in 0..12_800u64 {
            even.add(index * 10_000);
            // A hundred at a time.
            bursts.add(index / 100 * 1_000_000);
        }
        assert_eq!((even.counts.iter().sum::<u64>(), bursts.counts.iter().sum::<u64>()), (12_800, 12_800));
        assert_eq!(even.dispersion(duration_ns), 1.0);
        let mut one = Slices::default();
        (0..1000).for_each(|_| one.add(5));
        // All in one slice of n: the variance is 1000² / n, the mean 1000 / n.
        assert!((one.dispersion(duration_ns) - 1000.0).abs() < 1.0, "{}", one.dispersion(duration_ns));
        let mut merged = one.clone();
        merged.merge(&bursts);
        assert_eq!(merged.counts.iter().sum::<u64>(), 13_800);
        assert_eq!(merged.width_ns, bursts.width_ns);
    }

    #[test]
    fn groups_beyond_the_limit_are_counted_together() {
        let mut groups = Groups::new(2, false);
        for key in [1u8, 2, 3, 1, 4, 3] {
            let (number, weight) = (Some(Number::Whole(key.into())), Weight::ONE);
            groups.add(&[key], &Counted { number, size_bytes: 10, since_ns: 0, weight });
        }
        let mut counts: Vec<_> = groups.iter().map(|(key, group)| (key[0], group.count)).collect();
        counts.sort();
        assert_eq!(counts, [(1, 2), (2, 1)]);
        let other = groups.other.unwrap();
        assert_eq!((other.count, other.bytes, other.values.unwrap().sum()), (3, 30, Some(Number::Whole(10))));
    }
}
