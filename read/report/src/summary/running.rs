//! Tables of items that are not kept: items are added as they occur, in the order of their ends.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use dormouse_analysis::{Distribution, Number, QuickMap};

use super::{BIN_OF_INSTANTS, Row, Slowest, Summary, TIME_BINS, Trees, bin, put_together};
use crate::levels::Entry;

/// Number of steps of time. Since the duration is unknown at first, pairs of steps are merged as time passes.
const PARTS: u64 = 4096;
/// Number of these steps in a step of a heat map.
const PARTS_OF_HEAT: u64 = 4;

/// Data of a name.
#[derive(Debug, Default)]
struct OfName {
    count: u64,
    total: u128,
    own: u128,
    max: u64,
    durations: Distribution,
    /// Counts, by step of time and bin of the duration.
    heat: QuickMap<u64, u64>,
    /// The number of each slice is that of its thread.
    slowest: Slowest<u64>,
}

/// An open slice.
#[derive(Debug)]
struct OpenSlice {
    id: u64,
    node: Option<u32>,
    /// Time of the slices nested in it that have ended, in nanoseconds.
    nested: u64,
}

/// Tables of the items so far. Percentiles are computed by a sketch.
#[derive(Debug)]
pub(crate) struct Running {
    /// Data by name and by whether it is a slice.
    names: BTreeMap<(u32, bool), OfName>,
    /// Length of a step of time, in nanoseconds.
    part_ns: u64,
    /// Number of items by step of time.
    density: Vec<u32>,
    trees: Trees,
    /// Open slices by track, the outermost first.
    open: QuickMap<u32, Vec<OpenSlice>>,
}

impl Default for Running {
    fn default() -> Running {
        let density = vec![0; PARTS as usize];
        Running { names: BTreeMap::new(), part_ns: 1, density, trees: Trees::default(), open: QuickMap::default() }
    }
}

impl Running {
    /// Adds the begin of a slice on a track.
    pub(crate) fn begin(&mut self, track: u32, id: u64, name: u32) {
        let open = self.open.entry(track).or_default();
        let parent = open.last().map_or(Some(0), |open| open.node.map(|node| node + 1));
        let node = parent.and_then(|parent| self.trees.node(parent, name));
        open.push(OpenSlice { id, node, nested: 0 });
    }

    /// Adds the end of a slice. `begin`: nanoseconds since the report's begin.
    pub(crate) fn end(&mut self, (track, id): (u32, u64), name: u32, thread: u32, begin: u64, duration: u64) {
        let Some(open) = self.open.get_mut(&track) else { return };
        let Some(at) = open.iter().rposition(|open| open.id == id) else { return };
        let OpenSlice { node, nested, .. } = open.remove(at);
        // Its time counts for the open slice directly around it, not for a slice that has already ended.
        if let Some(around) = at.checked_sub(1).and_then(|at| open.get_mut(at)) {
            around.nested = around.nested.saturating_add(duration);
        }
        let own = u128::from(duration.saturating_sub(nested));
        match node {
            Some(node) => {
                let (_, _, count, total, own_of_node) = &mut self.trees.nodes[node as usize];
                *count += 1;
                *total += u128::from(duration);
                *own_of_node += own;
            }
            None => self.trees.left_out += 1,
        }
        let of_name = self.item(name, true, begin, bin(duration));
        of_name.total += u128::from(duration);
        of_name.own += own;
        of_name.max = of_name.max.max(duration);
        of_name.durations.add(Number::Whole(duration.into()));
        of_name.slowest.add(duration, begin, thread);
    }

    /// Adds an instant.
    pub(crate) fn instant(&mut self, name: u32, begin: u64) {
        self.item(name, false, begin, BIN_OF_INSTANTS);
    }

    fn item(&mut self, name: u32, is_slice: bool, begin: u64, bin: u64) -> &mut OfName {
        while begin / self.part_ns >= PARTS {
            self.widen();
        }
        let part = begin / self.part_ns;
        let density = &mut self.density[part as usize];
        *density = density.saturating_add(1);
        let of_name = self.names.entry((name, is_slice)).or_default();
        of_name.count += 1;
        *of_name.heat.entry(part / PARTS_OF_HEAT * 256 + bin).or_default() += 1;
        of_name
    }

    fn widen(&mut self) {
        self.part_ns *= 2;
        let parts = self.density.len();
        for part in 0..parts / 2 {
            self.density[part] = self.density[2 * part].saturating_add(self.density[2 * part + 1]);
        }
        self.density[parts / 2..].fill(0);
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

    /// Returns the tables, and the number of items in each of `density_bins` bins of the time. `span`: length of the
    /// time.
    pub(crate) fn finish(self, span: u64, density_bins: usize) -> (Summary, Vec<u32>) {
        // Returns the bin that contains the middle of a step.
        let at = |part: u64, part_ns: u64, bins: u64| {
            let middle = u128::from(part) * u128::from(part_ns) + u128::from(part_ns / 2);
            (middle * u128::from(bins) / u128::from(span.max(1))).min(u128::from(bins) - 1) as u64
        };
        let mut density = vec![0_u32; density_bins];
        for (part, count) in (0..).zip(self.density) {
            let bin = &mut density[at(part, self.part_ns, density_bins as u64) as usize];
            *bin = bin.saturating_add(count);
        }
        let rows = self.names.into_iter().map(|((name, is_slice), of_name)| {
            let mut heat = BTreeMap::new();
            for (key, count) in &of_name.heat {
                let time = at(key / 256, self.part_ns * PARTS_OF_HEAT, TIME_BINS);
                *heat.entry(time * 256 + key % 256).or_default() += count;
            }
            let percentile = |percent| of_name.durations.percentile(percent).map_or(0, |value| value.round() as u64);
            let row = Row {
                name,
                is_slice,
                count: of_name.count,
                total: of_name.total,
                own: of_name.own,
                p50: percentile(50.0),
                p90: percentile(90.0),
                p99: percentile(99.0),
                max: of_name.max,
                slowest: of_name
                    .slowest
                    .sorted()
                    .into_iter()
                    .map(|(duration, begin, thread)| (begin, duration, thread))
                    .collect(),
                heat: heat.len(),
            };
            (row, heat, Vec::new())
        });
        (put_together(rows.collect(), self.trees), density)
    }
}
