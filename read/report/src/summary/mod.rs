//! Tables and distributions of all items, independent of the timeline's size.
//!
//! They are made in one of two ways, neither of which can replace the other:
//!
//! | | [`of`] | [`Running`] |
//! | --- | --- | --- |
//! | used for | a page in a file, whose items are in memory | a served report, whose items are not kept |
//! | memory | all items, and the duration of each | a sketch of the durations of each name |
//! | percentiles | exact | within the error of the sketch |
//! | steps of time | of the final span | doubled as the span grows |
//! | nesting | by the times of the items | by the order of begins and ends |

mod running;

pub(crate) use crate::bins::{BINS_AN_OCTAVE, Node, bin};
pub(crate) use running::Running;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use serde::Serialize;

use crate::columns;
use crate::contents::{Item, Kind};

/// Number of slowest slices that are listed for a name, and that are never merged.
pub(crate) const SLOWEST: usize = 20;
/// Number of steps of time in a heat map.
pub(crate) const TIME_BINS: u64 = 160;
/// Bin of instants, which have no duration.
const BIN_OF_INSTANTS: u64 = 255;
/// Maximum number of nodes in call trees.
const NODES_MAX: usize = 20_000;

/// Figures of a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub name: u32,
    pub is_slice: bool,
    pub count: u64,
    pub total: u128,
    /// Time without nested slices.
    pub own: u128,
    /// Median, 90th and 99th percentile of the durations.
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
    /// Begin, duration and thread of the slowest ones.
    pub slowest: Vec<(u64, u64, u32)>,
    /// Number of entries in the heat map.
    pub heat: usize,
}

/// Summary of all names, those with the most time first.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub rows: Vec<Row>,
    pub nodes: Vec<Node>,
    /// Number of slices that are missing in the call trees.
    pub nodes_left_out: u64,
    /// Heat maps in the order of rows: bins (as differences) and counts, in LEB128.
    pub heat: Vec<u8>,
    /// Numbers of the items that are among the slowest.
    pub kept: Vec<u32>,
}

/// An open slice in the call tree.
#[derive(Debug)]
struct Open {
    item: u32,
    end: i64,
    node: Option<u32>,
    own: u64,
}

/// Call trees, and own times by name.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    nodes: Vec<Node>,
    numbers: HashMap<(u32, u32), u32>,
    left_out: u64,
    own: HashMap<u32, u128>,
    open: Vec<Open>,
}

impl Trees {
    /// Adds a slice of the current thread. Slices must come in the order of begins, longer ones first.
    fn slice(&mut self, number: u32, item: &Item, items: &[Item]) {
        let end = item.begin_ns.saturating_add_unsigned(item.duration_ns);
        while let Some(open) = self.open.last()
            && (open.end < end || open.end <= item.begin_ns)
        {
            self.close(items);
        }
        let parent = match self.open.last_mut() {
            None => Some(0),
            Some(open) => {
                open.own = open.own.saturating_sub(item.duration_ns);
                open.node.map(|node| node + 1)
            }
        };
        let node = parent.and_then(|parent| self.node(parent, item.name));
        if node.is_none() {
            self.left_out += 1;
        }
        self.open.push(Open { item: number, end, node, own: item.duration_ns });
    }

    fn node(&mut self, parent: u32, name: u32) -> Option<u32> {
        if let Some(number) = self.numbers.get(&(parent, name)) {
            return Some(*number);
        }
        if self.nodes.len() >= NODES_MAX {
            return None;
        }
        let number = self.nodes.len() as u32;
        self.nodes.push((parent, name, 0, 0, 0));
        self.numbers.insert((parent, name), number);
        Some(number)
    }

    fn close(&mut self, items: &[Item]) {
        let Some(open) = self.open.pop() else { return };
        let item = &items[open.item as usize];
        *self.own.entry(item.name).or_default() += u128::from(open.own);
        if let Some(node) = open.node {
            let (_, _, count, total, own) = &mut self.nodes[node as usize];
            *count += 1;
            *total += u128::from(item.duration_ns);
            *own += u128::from(open.own);
        }
    }

    fn close_all(&mut self, items: &[Item]) {
        while !self.open.is_empty() {
            self.close(items);
        }
    }
}

/// Returns the least value that `percent` % of the values do not exceed.
fn percentile(sorted: &[u64], percent: u64) -> u64 {
    let rank = (sorted.len() as u64 * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank as usize).copied().unwrap_or_default()
}

/// The slowest slices of a name: duration, begin and a number of each. Of equally slow ones the earlier are kept.
#[derive(Debug, Default)]
struct Slowest<T: Ord>(BinaryHeap<Reverse<(u64, Reverse<T>, u32)>>);

impl<T: Ord + Copy> Slowest<T> {
    fn add(&mut self, duration: u64, begin: T, number: u32) {
        self.0.push(Reverse((duration, Reverse(begin), number)));
        if self.0.len() > SLOWEST {
            self.0.pop();
        }
    }

    /// Returns duration and begin of the fastest of them.
    fn least(&self) -> Option<(u64, Reverse<T>)> {
        self.0.peek().map(|Reverse((duration, begin, _))| (*duration, *begin))
    }

    /// Returns them, the slowest first.
    fn sorted(self) -> Vec<(u64, T, u32)> {
        let slow = |Reverse((duration, Reverse(begin), number))| (duration, begin, number);
        self.0.into_sorted_vec().into_iter().map(slow).collect()
    }
}

/// Data of a name while the summary is made.
#[derive(Default)]
struct Gathered {
    durations: Vec<u64>,
    heat: BTreeMap<u64, u64>,
    /// The number of each slice is that of its item.
    slowest: Slowest<i64>,
}

/// Makes the summary. `order`: items by thread, lane and begin, longer ones first. `span`: begin and length of the time.
pub(crate) fn of(items: &[Item], order: &[u32], span: (i64, u64)) -> Summary {
    let mut names: HashMap<(u32, Kind), Gathered> = HashMap::new();
    let mut trees = Trees::default();
    let mut owner = None;
    for &number in order {
        let item = &items[number as usize];
        if owner.replace(item.owner()) != Some(item.owner()) {
            trees.close_all(items);
        }
        let since = item.begin_ns.abs_diff(span.0);
        let time = (u128::from(since) * u128::from(TIME_BINS) / u128::from(span.1.max(1))) as u64;
        let of_name = names.entry((item.name, item.kind)).or_default();
        let bin = match item.kind {
            Kind::Instant => BIN_OF_INSTANTS,
            Kind::Slice => {
                trees.slice(number, item, items);
                of_name.slowest.add(item.duration_ns, item.begin_ns, number);
                bin(item.duration_ns)
            }
        };
        of_name.durations.push(item.duration_ns);
        *of_name.heat.entry(time.min(TIME_BINS - 1) * 256 + bin).or_default() += 1;
    }
    trees.close_all(items);
    let rows: Vec<_> = names
        .into_iter()
        .map(|((name, kind), mut of_name)| {
            of_name.durations.sort_unstable();
            let total = of_name.durations.iter().map(|duration| u128::from(*duration)).sum();
            let slowest = of_name.slowest.sorted();
            let durations = &of_name.durations;
            let row = Row {
                name,
                is_slice: kind == Kind::Slice,
                count: durations.len() as u64,
                total,
                own: if kind == Kind::Slice { trees.own.get(&name).copied().unwrap_or_default() } else { 0 },
                p50: percentile(durations, 50),
                p90: percentile(durations, 90),
                p99: percentile(durations, 99),
                max: durations.last().copied().unwrap_or_default(),
                slowest: slowest
                    .iter()
                    .map(|(duration, begin, number)| {
                        (begin.abs_diff(span.0), *duration, items[*number as usize].thread)
                    })
                    .collect(),
                heat: of_name.heat.len(),
            };
            (row, of_name.heat, slowest.into_iter().map(|(_, _, number)| number).collect::<Vec<u32>>())
        })
        .collect();
    put_together(rows, trees)
}

/// Returns rows, heat maps and kept items, those with the most time first.
fn put_together(mut rows: Vec<(Row, BTreeMap<u64, u64>, Vec<u32>)>, trees: Trees) -> Summary {
    rows.sort_by_key(|(row, ..)| (Reverse(row.total), Reverse(row.count), row.name, row.is_slice));
    let mut summary = Summary { nodes: trees.nodes, nodes_left_out: trees.left_out, ..Summary::default() };
    for (row, heat, kept) in rows {
        let mut before = 0;
        for (bin, count) in heat {
            columns::put(bin - before, &mut summary.heat);
            columns::put(count, &mut summary.heat);
            before = bin;
        }
        summary.rows.push(row);
        summary.kept.extend(kept);
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(begin_ns: i64, duration_ns: u64, name: u32, thread: u32) -> Item {
        Item { kind: Kind::Slice, begin_ns, duration_ns, name, thread, lane: None, cpu: 0, key: 0, fields: 0 }
    }

    #[test]
    fn own_time_excludes_nested_slices_and_trees_are_by_thread() {
        let items =
            [slice(0, 100, 0, 0), slice(10, 30, 1, 0), slice(15, 5, 2, 0), slice(50, 20, 1, 0), slice(20, 40, 1, 1)];
        let summary = of(&items, &[0, 1, 2, 3, 4], (0, 100));
        assert_eq!(summary.nodes, [(0, 0, 1, 100, 50), (1, 1, 2, 50, 45), (2, 2, 1, 5, 5), (0, 1, 1, 40, 40)]);
        let own: Vec<_> = summary.rows.iter().map(|row| (row.name, row.count, row.total, row.own, row.max)).collect();
        assert_eq!(own, [(0, 1, 100, 50, 100), (1, 3, 90, 85, 40), (2, 1, 5, 5, 5)]);
        assert_eq!(summary.rows[1].slowest, [(20, 40, 1), (10, 30, 0), (50, 20, 0)]);
    }

    /// None takes time from a slice that it only overlaps, nor from one on another lane.
    #[test]
    fn overlapping_slices_are_not_children() {
        let items = [slice(0, 100, 0, 0), slice(50, 100, 1, 0), slice(100, 10, 2, 0)];
        let summary = of(&items, &[0, 1, 2], (0, 150));
        assert_eq!(summary.nodes, [(0, 0, 1, 100, 100), (0, 1, 1, 100, 90), (2, 2, 1, 10, 10)]);
        let items = [0, 1].map(|lane| Item { lane: Some(lane), ..slice(lane.into(), 100 - 2 * u64::from(lane), 0, 0) });
        assert_eq!(of(&items, &[0, 1], (0, 100)).nodes, [(0, 0, 2, 198, 198)]);
    }

    #[test]
    fn percentiles_have_their_rank() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!([50, 90, 99].map(|percent| percentile(&sorted, percent)), [100, 180, 198]);
        assert_eq!((percentile(&[7], 99), percentile(&[], 50)), (7, 0));
        assert_eq!([0, 1, 2, 3, 1024].map(bin), [0, 0, 4, 6, 40]);
    }

    #[test]
    fn the_heat_map_has_every_item() {
        let items: Vec<Item> = (0..1000).map(|n| slice(n * 7, (n % 50) as u64, 0, 0)).collect();
        let order: Vec<u32> = (0..1000).collect();
        let summary = of(&items, &order, (0, 7000));
        // All numbers are small, except for differences between times.
        let (mut counts, mut values, mut value, mut shift) = (0, Vec::new(), 0_u64, 0);
        for byte in &summary.heat {
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                values.push(std::mem::take(&mut value));
                shift = 0;
            }
        }
        for pair in values.chunks_exact(2) {
            counts += pair[1];
        }
        assert_eq!((values.len(), counts), (2 * summary.rows[0].heat, 1000));
        assert_eq!(summary.kept.len(), SLOWEST);
    }
}
