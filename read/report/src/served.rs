//! Contents that are kept, of which a page asks for what it shows.
//!
//! The page itself is a report without fields whose short neighbours are one, as far as [`PAGE_BYTES`] make that necessary. When somebody zooms in so far that
//! these could be told apart, the page asks for a part of the time; when somebody clicks, for fields.

use std::borrow::Cow;

use serde::Serialize;

use crate::contents::{Contents, Item, Kind};
use crate::counters::{self, CounterHead};
use crate::details::pack;
use crate::finish::{RowHead, RowItems, RowOf, Written, timeline};
use crate::levels;

/// Of a page on loopback: it comes at once, and is taken apart within a second.
pub const PAGE_BYTES: u64 = 8 << 20;
/// Entries of a part of the time. If it has more, neighbours that cannot be told apart there are one.
const ENTRIES_MAX: usize = 200_000;
/// Items with one key that are given.
const KEY_ITEMS_MAX: usize = 1000;

/// What a page asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Items between two times, nanoseconds since the report's begin.
    Time {
        /// From here.
        begin: u64,
        /// To here.
        end: u64,
        /// Whether by CPU.
        is_cpu: bool,
        /// What is shorter cannot be seen apart, nanoseconds.
        step: u64,
    },
    /// Items with this key.
    Key {
        /// The key.
        key: u32,
        /// Whether by CPU.
        is_cpu: bool,
    },
}

/// Contents that are kept, with the page that asks for them.
#[derive(Debug)]
pub struct Served {
    contents: Contents,
    rows: Vec<RowItems>,
    begin_ns: i64,
    page: Vec<u8>,
    /// What the page has.
    pub written: Written,
}

/// What stands before the columns of an answer.
#[derive(Serialize)]
struct Head<'t> {
    resolution: u64,
    rows: &'t [RowHead],
    columns: &'t [usize],
    counters: &'t [CounterHead<'t>],
}

impl Served {
    /// Makes the page, of at most `page_bytes` ([`PAGE_BYTES`]).
    ///
    /// # Errors
    /// As [`Contents::finish`]: there are too many names, processes, threads or losses for a page.
    pub fn new(mut contents: Contents, page_bytes: u64) -> std::io::Result<Served> {
        let mut page = Vec::new();
        // It closes the last chunk of fields.
        contents.details.size_bytes();
        contents.items.shrink_to_fit();
        let made = contents.make(page_bytes, true, &mut page)?;
        Ok(Served { contents, rows: made.rows, begin_ns: made.span.0, page, written: made.written })
    }

    /// The page.
    pub fn page(&self) -> &[u8] {
        &self.page
    }

    /// The fields of an item by the number that the page has, as it takes them apart.
    pub fn fields(&self, number: u32) -> Option<Vec<u8>> {
        self.contents.details.get(number)
    }

    /// The rows of the page, in its order, with what is asked for: the length of a head, the head, columns; both compressed.
    pub fn part(&self, part: Part) -> Vec<u8> {
        let chosen: Vec<Cow<'_, [u32]>> = self.rows.iter().map(|row| self.chosen(row, part)).collect();
        let is_too_many = chosen.iter().map(|items| items.len()).sum::<usize>() > ENTRIES_MAX;
        let mut resolution = match part {
            Part::Time { step, .. } if is_too_many => step.max(1),
            _ => 0,
        };
        // One row after another: of all items there would be too many entries at a time.
        let row = |(row, items): (&RowItems, &Cow<'_, [u32]>)| {
            let entries = self.contents.entries(row.place, items, self.begin_ns, |_| false);
            let entries = if resolution > 0 { levels::merged(&entries, resolution, false) } else { entries };
            RowOf { place: row.place, entries }
        };
        let mut rows: Vec<RowOf> = self.rows.iter().zip(&chosen).map(row).collect();
        let count = |rows: &[RowOf]| rows.iter().map(|row| row.entries.len()).sum::<usize>();
        while resolution > 0 && resolution < u64::MAX / 2 && count(&rows) > ENTRIES_MAX {
            resolution *= 2;
            rows.iter_mut().for_each(|row| row.entries = levels::merged(&row.entries, resolution, false));
        }
        let timeline = timeline(&rows, |fields| fields);
        let counters = match part {
            Part::Time { begin, end, is_cpu: false, .. } => {
                counters::heads(&self.contents.counters, self.begin_ns, (begin, end), ENTRIES_MAX as u64)
            }
            _ => Vec::new(),
        };
        let head = Head { resolution, rows: &timeline.rows, columns: &timeline.columns, counters: &counters };
        // Numbers and truth values are JSON whatever they are.
        let head = pack([serde_json::to_vec(&head).unwrap_or_default().as_slice()], flate2::Compression::fast());
        [&(head.len() as u32).to_le_bytes()[..], &head, &timeline.packed].concat()
    }

    /// The items of a row that are asked for.
    fn chosen<'r>(&self, row: &'r RowItems, part: Part) -> Cow<'r, [u32]> {
        let item = |number: &u32| &self.contents.items[*number as usize];
        match part {
            Part::Time { begin, end, is_cpu, .. } if is_cpu == row.place.is_cpu => {
                // Items of a row do not overlap, so their ends are in order too.
                let from = row.items.partition_point(|number| self.since(item(number)).1 < begin);
                let count = row.items[from..].partition_point(|number| self.since(item(number)).0 <= end);
                row.items[from..from + count].into()
            }
            Part::Key { key, is_cpu } if is_cpu == row.place.is_cpu && key > 0 => {
                let with_key = row.items.iter().filter(|number| item(number).key == key);
                with_key.take(KEY_ITEMS_MAX).copied().collect()
            }
            _ => Cow::default(),
        }
    }

    /// Begin and end, since the report's begin.
    fn since(&self, item: &Item) -> (u64, u64) {
        let begin = item.begin_ns.abs_diff(self.begin_ns);
        (begin, if item.kind == Kind::Slice { begin.saturating_add(item.duration_ns) } else { begin })
    }
}
