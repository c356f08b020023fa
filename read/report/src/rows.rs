//! Rows that are filled while items arrive, with a limited number of entries.

use dormouse_analysis::QuickMap;

use crate::contents::Kind;
use crate::finish::{RowOf, RowPlace, first_resolution};
use crate::levels::{Entry, Merger, merged};

/// A row that is being filled.
#[derive(Debug)]
struct Row {
    row: RowOf,
    merger: Merger,
    /// Begin of the previous entry. Times of a damaged trace can go back: the row is then sorted at the end.
    last: u64,
    is_sorted: bool,
}

/// Rows with a common limit of entries. If there are too many, short neighbours are merged in all rows.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    index: QuickMap<RowPlace, usize>,
    rows: Vec<Row>,
    count: usize,
    count_max: usize,
    /// Resolution in nanoseconds: shorter items are merged; 0 if none are.
    resolution: u64,
}

impl Rows {
    pub(crate) fn new(count_max: usize) -> Rows {
        Rows { count_max, ..Rows::default() }
    }

    /// Adds an entry to a row, in the order of time. Returns true if there are too many entries: then call
    /// [`Rows::coarsen`].
    pub(crate) fn push(&mut self, place: RowPlace, entry: &Entry) -> bool {
        let rows = &mut self.rows;
        let index = *self.index.entry(place).or_insert_with(|| {
            let row = RowOf { place, entries: Vec::new() };
            rows.push(Row { row, merger: Merger::default(), last: 0, is_sorted: true });
            rows.len() - 1
        });
        let Row { row, merger, last, is_sorted } = &mut self.rows[index];
        *is_sorted &= *last <= entry.begin;
        *last = entry.begin;
        let before = row.entries.len();
        merger.push(entry, self.resolution, true, &mut row.entries);
        self.count += row.entries.len() - before;
        self.count >= self.count_max
    }

    /// Merges entries until half of the room is free. `is_kept`: whether an entry must not be merged.
    pub(crate) fn coarsen(&mut self, is_kept: impl Fn(&Entry) -> bool) {
        while self.count > self.count_max / 2 && self.resolution < u64::MAX / 4 {
            self.resolution = match self.resolution {
                0 => first_resolution(self.rows.iter().map(|row| &row.row), 1),
                resolution => 2 * resolution,
            };
            self.count = 0;
            for Row { row, merger, .. } in &mut self.rows {
                merger.finish(&mut row.entries);
                row.entries.iter_mut().for_each(|entry| entry.is_kept = entry.is_kept && is_kept(entry));
                row.entries = merged(&row.entries, self.resolution, true);
                self.count += row.entries.len();
            }
        }
    }

    /// Returns the rows in the order of threads and CPUs, and the resolution.
    pub(crate) fn finish(self) -> (Vec<RowOf>, u64) {
        let finished = |Row { mut row, mut merger, is_sorted, .. }: Row| {
            merger.finish(&mut row.entries);
            if !is_sorted {
                row.entries.sort_by_key(|entry| entry.begin);
            }
            row
        };
        let mut rows: Vec<RowOf> = self.rows.into_iter().map(finished).collect();
        rows.sort_by_key(|RowOf { place, .. }| {
            (place.is_cpu, place.of, place.kind == Kind::Slice, place.lane, place.depth)
        });
        (rows, self.resolution)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With any number of items, each is in some entry, kept items are entries of their own, and the limit is never
    /// exceeded.
    #[test]
    fn no_item_is_lost_at_the_limit() {
        let mut rows = Rows::new(1000);
        let mut random = dormouse_testing::random(3);
        let place = |of| RowPlace { is_cpu: false, of, lane: 0, depth: 0, kind: Kind::Slice };
        let (mut at, mut long) = (0, Vec::new());
        for number in 0..50_000_u64 {
            at += random(1000) as u64;
            let is_kept = number % 10_000 == 7;
            let duration = if is_kept { 300 } else { random(100) as u64 };
            let of = random(3) as u32;
            if is_kept {
                long.push((of, at));
            }
            let entry = Entry { begin: at, duration, name: 0, count: 1, key: 1, fields: 1, other: 1, is_kept };
            if rows.push(place(of), &entry) {
                rows.coarsen(|entry| entry.duration >= 300);
            }
            at += duration;
            assert!(rows.count <= 1000);
        }
        let (rows, resolution) = rows.finish();
        assert!(resolution > 300);
        assert_eq!(rows.iter().flat_map(|row| &row.entries).map(|entry| u64::from(entry.count)).sum::<u64>(), 50_000);
        for row in &rows {
            assert!(row.entries.windows(2).all(|pair| pair[0].begin + pair[0].duration <= pair[1].begin));
        }
        for (of, begin) in long {
            let entries = &rows.iter().find(|row| row.place.of == of).unwrap().entries;
            assert!(entries.iter().any(|entry| entry.begin == begin && entry.count == 1 && entry.duration == 300));
        }
    }
}
