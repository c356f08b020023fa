//! Tables and distributions of all items, independent of the timeline's size.
//!
//! [`Tables`] takes the begins and ends of slices in their order. A page in a file has its items in memory: [`of`] plays
//! them back, thread by thread. A served report has only begins and ends, as they occur. The two differ in what is kept
//! of each duration, and in whether the time is known from the start:
//!
//! | | [`of`] | served report |
//! | --- | --- | --- |
//! | durations of a name | all: percentiles are exact | a sketch: percentiles are within its error |
//! | steps of time | of the whole time | doubled as the time passes |

mod tables;
mod trees;

pub(crate) use crate::bins::{BINS_AN_OCTAVE, Node, bin};
pub(crate) use tables::Tables;

use serde::Serialize;

use crate::contents::{Item, Kind};

/// Number of slowest slices that are listed for a name, and that are never merged.
pub(crate) const SLOWEST: usize = 20;
/// Number of steps of time in a heat map.
pub(crate) const TIME_BINS: u64 = 160;

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

/// Makes the summary, and counts the items in each step of the overview. `order`: items by thread, lane and begin,
/// longer ones first. `span`: begin and length of the time.
pub(crate) fn of(items: &[Item], order: &[u32], span: (i64, u64)) -> (Summary, Vec<u32>) {
    let mut tables = Tables::of_items(span.1);
    // Numbers of the slices that are open on the current track, the outermost first.
    let mut open: Vec<u32> = Vec::new();
    let end_of = |number: u32| {
        let item = &items[number as usize];
        item.begin_ns.saturating_add_unsigned(item.duration_ns)
    };
    let end = |tables: &mut Tables, number: u32| {
        let item = &items[number as usize];
        let begin = item.begin_ns.abs_diff(span.0);
        let slice = (TRACK, number.into());
        tables.end(slice, item.name, (item.thread, Some(number)), begin, item.duration_ns);
    };
    let mut owner = None;
    for &number in order {
        let item = &items[number as usize];
        if owner.replace(item.owner()) != Some(item.owner()) {
            open.drain(..).rev().for_each(|number| end(&mut tables, number));
        }
        match item.kind {
            Kind::Instant => tables.instant(item.name, item.begin_ns.abs_diff(span.0)),
            Kind::Slice => {
                // A slice that only overlaps this one has ended before it, as far as nesting is concerned.
                while let Some(before) =
                    open.pop_if(|before| end_of(*before) < end_of(number) || end_of(*before) <= item.begin_ns)
                {
                    end(&mut tables, before);
                }
                tables.begin(TRACK, number.into(), item.name);
                open.push(number);
            }
        }
    }
    open.drain(..).rev().for_each(|number| end(&mut tables, number));
    tables.finish(span.1)
}

/// Track of all items that are played back: one thread follows another.
const TRACK: u32 = 0;

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
        let (summary, _) = of(&items, &[0, 1, 2, 3, 4], (0, 100));
        assert_eq!(summary.nodes, [(0, 0, 1, 100, 50), (1, 1, 2, 50, 45), (2, 2, 1, 5, 5), (0, 1, 1, 40, 40)]);
        let own: Vec<_> = summary.rows.iter().map(|row| (row.name, row.count, row.total, row.own, row.max)).collect();
        assert_eq!(own, [(0, 1, 100, 50, 100), (1, 3, 90, 85, 40), (2, 1, 5, 5, 5)]);
        assert_eq!(summary.rows[1].slowest, [(20, 40, 1), (10, 30, 0), (50, 20, 0)]);
    }

    /// None takes time from a slice that it only overlaps, nor from one on another lane.
    #[test]
    fn overlapping_slices_are_not_children() {
        let items = [slice(0, 100, 0, 0), slice(50, 100, 1, 0), slice(100, 10, 2, 0)];
        let (summary, _) = of(&items, &[0, 1, 2], (0, 150));
        assert_eq!(summary.nodes, [(0, 0, 1, 100, 100), (0, 1, 1, 100, 90), (2, 2, 1, 10, 10)]);
        let items = [0, 1].map(|lane| Item { lane: Some(lane), ..slice(lane.into(), 100 - 2 * u64::from(lane), 0, 0) });
        assert_eq!(of(&items, &[0, 1], (0, 100)).0.nodes, [(0, 0, 2, 198, 198)]);
    }

    #[test]
    fn the_heat_map_has_every_item() {
        let items: Vec<Item> = (0..1000).map(|n| slice(n * 7, (n % 50) as u64, 0, 0)).collect();
        let order: Vec<u32> = (0..1000).collect();
        let (summary, density) = of(&items, &order, (0, 7000));
        assert_eq!(density.iter().sum::<u32>(), 1000);
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
