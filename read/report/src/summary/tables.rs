//! Tables of items, which are added as they occur, in the order of their ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use dormouse_analysis::{Distribution, Number, QuickMap};

use super::trees::Trees;
use super::{Row, SLOWEST, Summary, TIME_BINS, bin};
use crate::bins::DENSITY_BINS;
use crate::columns;
use crate::levels::Entry;

/// Bin of instants, which have no duration.
const BIN_OF_INSTANTS: u64 = 255;
/// Number of growing steps of time. Pairs of steps are merged as time passes.
const PARTS: u64 = 4096;
/// Number of these steps in a step of a heat map.
const PARTS_OF_HEAT: u64 = 4;

/// Durations of the slices of a name.
#[derive(Debug)]
enum Durations {
    All(Vec<u64>),
    Sketch(Box<Distribution>),
}

impl Durations {
    fn add(&mut self, duration: u64) {
        match self {
            Durations::All(all) => all.push(duration),
            Durations::Sketch(sketch) => sketch.add(Number::Whole(duration.into())),
        }
    }

    /// Returns the median, and the 90th and 99th percentile; 0 if there are none.
    fn percentiles(self) -> [u64; 3] {
        match self {
            Durations::All(mut all) => {
                all.sort_unstable();
                [50, 90, 99].map(|percent| percentile(&all, percent))
            }
            Durations::Sketch(sketch) => {
                [50.0, 90.0, 99.0].map(|percent| sketch.percentile(percent).map_or(0, |value| value.round() as u64))
            }
        }
    }
}

/// Returns the least value that `percent` % of the values do not exceed.
fn percentile(sorted: &[u64], percent: u64) -> u64 {
    let rank = (sorted.len() as u64 * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank as usize).copied().unwrap_or_default()
}

/// A slice among the slowest of its name. The order is that of slowness: of equally slow ones, the earlier is slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slow {
    duration: u64,
    /// Nanoseconds since the report's begin.
    begin: Reverse<u64>,
    /// Number of the item, if items are kept.
    item: Option<u32>,
    thread: u32,
}

/// The slowest slices of a name.
#[derive(Debug, Default)]
struct Slowest(BinaryHeap<Reverse<Slow>>);

impl Slowest {
    fn add(&mut self, slow: Slow) {
        self.0.push(Reverse(slow));
        if self.0.len() > SLOWEST {
            self.0.pop();
        }
    }

    /// Returns duration and begin of the fastest of them.
    fn least(&self) -> Option<(u64, Reverse<u64>)> {
        self.0.peek().map(|Reverse(slow)| (slow.duration, slow.begin))
    }

    /// Returns them, the slowest first.
    fn sorted(self) -> impl Iterator<Item = Slow> {
        self.0.into_sorted_vec().into_iter().map(|Reverse(slow)| slow)
    }
}

/// Data of a name.
#[derive(Debug)]
struct OfName {
    count: u64,
    total: u128,
    own: u128,
    max: u64,
    durations: Durations,
    /// Counts, by step of time and bin of the duration.
    heat: QuickMap<u64, u64>,
    slowest: Slowest,
}

impl OfName {
    /// `is_kept`: whether all durations are kept.
    fn new(is_kept: bool) -> OfName {
        let durations = if is_kept { Durations::All(Vec::new()) } else { Durations::Sketch(Box::default()) };
        let (heat, slowest) = (QuickMap::default(), Slowest::default());
        OfName { count: 0, total: 0, own: 0, max: 0, durations, heat, slowest }
    }
}

/// Steps of time, and the number of items in each step of the overview.
#[derive(Debug)]
enum Steps {
    /// Steps of a time whose length is known, in nanoseconds.
    Known { span: u64, density: Vec<u32> },
    /// Steps of a time whose length is not known yet. A step has `part_ns` nanoseconds.
    Growing { part_ns: u64, density: Vec<u32> },
}

/// Tables of the items so far.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Data by name and by whether it is a slice.
    names: BTreeMap<(u32, bool), OfName>,
    steps: Steps,
    trees: Trees,
}

impl Default for Tables {
    /// Returns tables of items that are not kept.
    fn default() -> Tables {
        Tables::of_steps(Steps::Growing { part_ns: 1, density: vec![0; PARTS as usize] })
    }
}

/// Returns the step, of `count`, in which a time is.
fn step_of(time: u128, span: u64, count: u64) -> u64 {
    (time * u128::from(count) / u128::from(span.max(1))).min(u128::from(count) - 1) as u64
}

impl Tables {
    /// Returns tables of items that are kept. `span`: length of their time, in nanoseconds.
    pub(super) fn of_items(span: u64) -> Tables {
        Tables::of_steps(Steps::Known { span, density: vec![0; DENSITY_BINS] })
    }

    fn of_steps(steps: Steps) -> Tables {
        Tables { names: BTreeMap::new(), steps, trees: Trees::default() }
    }

    /// Adds the begin of a slice on a track.
    pub(crate) fn begin(&mut self, track: u32, id: u64, name: u32) {
        self.trees.begin(track, id, name);
    }

    /// Adds the end of a slice. `begin`: nanoseconds since the report's begin; `item`: its number, if items are kept.
    pub(crate) fn end(
        &mut self,
        (track, id): (u32, u64),
        name: u32,
        (thread, item): (u32, Option<u32>),
        begin: u64,
        duration: u64,
    ) {
        let Some(own) = self.trees.end(track, id, duration) else { return };
        let of_name = self.item(name, true, begin, bin(duration));
        of_name.total += u128::from(duration);
        of_name.own += u128::from(own);
        of_name.max = of_name.max.max(duration);
        of_name.durations.add(duration);
        of_name.slowest.add(Slow { duration, begin: Reverse(begin), item, thread });
    }

    /// Adds an instant.
    pub(crate) fn instant(&mut self, name: u32, begin: u64) {
        self.item(name, false, begin, BIN_OF_INSTANTS);
    }

    fn item(&mut self, name: u32, is_slice: bool, begin: u64, bin: u64) -> &mut OfName {
        while let Steps::Growing { part_ns, .. } = &self.steps
            && begin / part_ns >= PARTS
        {
            self.widen();
        }
        let Tables { names, steps, .. } = self;
        let (step, part, density) = match steps {
            Steps::Known { span, density } => {
                let step = |count| step_of(begin.into(), *span, count);
                (step(TIME_BINS), step(DENSITY_BINS as u64), density)
            }
            Steps::Growing { part_ns, density } => (begin / *part_ns / PARTS_OF_HEAT, begin / *part_ns, density),
        };
        density[part as usize] = density[part as usize].saturating_add(1);
        let is_kept = matches!(steps, Steps::Known { .. });
        let of_name = names.entry((name, is_slice)).or_insert_with(|| OfName::new(is_kept));
        of_name.count += 1;
        *of_name.heat.entry(step * 256 + bin).or_default() += 1;
        of_name
    }

    fn widen(&mut self) {
        let Steps::Growing { part_ns, density } = &mut self.steps else { return };
        *part_ns *= 2;
        let parts = density.len();
        for part in 0..parts / 2 {
            density[part] = density[2 * part].saturating_add(density[2 * part + 1]);
        }
        density[parts / 2..].fill(0);
        for of_name in self.names.values_mut() {
            for (key, count) in std::mem::take(&mut of_name.heat) {
                *of_name.heat.entry(key / 256 / 2 * 256 + key % 256).or_default() += count;
            }
        }
    }

    /// Whether a slice is among the slowest of its name so far.
    pub(crate) fn is_slow(&self, entry: &Entry) -> bool {
        let of_name = self.names.get(&(entry.name, true));
        let least = of_name.and_then(|of_name| of_name.slowest.least());
        entry.count == 1 && least.is_some_and(|least| (entry.duration, Reverse(entry.begin)) >= least)
    }

    /// Returns the tables, those with the most time first, and the number of items in each step of the overview.
    /// `span`: length of the time, in nanoseconds.
    pub(crate) fn finish(self, span: u64) -> (Summary, Vec<u32>) {
        let Tables { names, steps, trees } = self;
        // Returns the step of the report that contains the middle of a growing one.
        let middle = |part: u64, part_ns: u64, count: u64| {
            step_of(u128::from(part) * u128::from(part_ns) + u128::from(part_ns / 2), span, count)
        };
        let part_of_heat_ns = match &steps {
            Steps::Known { .. } => None,
            Steps::Growing { part_ns, .. } => Some(part_ns * PARTS_OF_HEAT),
        };
        let mut rows: Vec<_> = names
            .into_iter()
            .map(|((name, is_slice), of_name)| {
                let mut heat: BTreeMap<u64, u64> = BTreeMap::new();
                for (key, count) in &of_name.heat {
                    let step = part_of_heat_ns.map_or(key / 256, |part_ns| middle(key / 256, part_ns, TIME_BINS));
                    *heat.entry(step * 256 + key % 256).or_default() += count;
                }
                let [p50, p90, p99] = of_name.durations.percentiles();
                let OfName { count, total, own, max, .. } = of_name;
                let slow: Vec<Slow> = of_name.slowest.sorted().collect();
                let slowest = slow.iter().map(|slow| (slow.begin.0, slow.duration, slow.thread)).collect();
                let row = Row { name, is_slice, count, total, own, p50, p90, p99, max, slowest, heat: heat.len() };
                (row, heat, slow)
            })
            .collect();
        rows.sort_by_key(|(row, ..)| (Reverse(row.total), Reverse(row.count), row.name, row.is_slice));
        let mut summary = Summary { nodes: trees.nodes, nodes_left_out: trees.left_out, ..Summary::default() };
        for (row, heat, slow) in rows {
            let mut before = 0;
            for (bin, count) in heat {
                columns::put(bin - before, &mut summary.heat);
                columns::put(count, &mut summary.heat);
                before = bin;
            }
            summary.rows.push(row);
            summary.kept.extend(slow.iter().filter_map(|slow| slow.item));
        }
        let density = match steps {
            Steps::Known { density, .. } => density,
            Steps::Growing { part_ns, density: parts } => {
                let mut density = vec![0_u32; DENSITY_BINS];
                for (part, count) in (0..).zip(parts) {
                    let step = &mut density[middle(part, part_ns, DENSITY_BINS as u64) as usize];
                    *step = step.saturating_add(count);
                }
                density
            }
        };
        (summary, density)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_have_their_rank() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!([50, 90, 99].map(|percent| percentile(&sorted, percent)), [100, 180, 198]);
        assert_eq!((percentile(&[7], 99), percentile(&[], 50)), (7, 0));
        assert_eq!([0, 1, 2, 3, 1024].map(bin), [0, 0, 4, 6, 40]);
    }
}
