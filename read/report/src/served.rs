//! A page that requests what it shows, from a trace that is read again for it.
//!
//! The page itself is a report without fields. Short neighbours are merged as far as [`PAGE_BYTES`] require. When the
//! user zooms in so far that they could be distinguished, the page requests a part of the time; on a click, it requests
//! fields.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use dormouse_analysis::timeline::{Begin, Counter, End, Flow, Instant, Loss, Sink, Track};
use dormouse_ctf::Event;
use dormouse_print::FieldTexts;
use serde::Serialize;

use crate::contents::Fields;
use crate::counters::{self, CounterHead};
use crate::details::pack;
use crate::finish::{RowHead, RowOf, RowPlace, Written, timeline};
use crate::gather::NO_END;
use crate::levels::{self, Entry};
use crate::rows::Rows;
use crate::survey::{CpuRows, Drawn, Held, Surveyed, instant};

/// Maximum size of a page on loopback: it loads at once, and is unpacked within a second.
pub const PAGE_BYTES: u64 = 8 << 20;
/// Maximum number of entries for a part of the time. If it has more, neighbours that cannot be distinguished are
/// merged.
const ENTRIES_MAX: usize = 200_000;
/// Maximum number of items that are returned for a key.
const KEY_ITEMS_MAX: usize = 1000;
/// Maximum number of items that are returned for a search. Further ones are counted.
const FOUND_MAX: usize = 20_000;

/// Takes an event, and whether it is selected.
pub type Show<'s> = &'s mut dyn FnMut(&Event<'_>, bool);

/// Reads a trace again.
pub trait Source: Send + Sync {
    /// Shows all events between two times (nanoseconds since the epoch), in the order of the first reading. It may also
    /// show others.
    ///
    /// # Errors
    /// The trace cannot be read any more.
    fn read(&self, first_ns: i64, last_ns: i64, show: Show<'_>) -> Result<(), String>;
}

/// A request of the page for items. Times are nanoseconds since the report's begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Items between two times.
    Time {
        /// Begin of the part.
        begin: u64,
        /// End of the part.
        end: u64,
        /// Whether rows of CPUs are requested, not of threads.
        is_cpu: bool,
        /// Resolution in nanoseconds: shorter items cannot be distinguished.
        step: u64,
    },
    /// Items with this key.
    Key {
        /// The key.
        key: u32,
        /// Whether rows of CPUs are requested, not of threads.
        is_cpu: bool,
        /// Begin of an item with this key.
        begin: u64,
        /// End of that item.
        end: u64,
    },
}

/// A request of the page for the fields of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Number of its thread.
    pub thread: u32,
    /// Number of its name.
    pub name: u32,
    /// Whether it is a slice, not an instant.
    pub is_slice: bool,
    /// Begin, in nanoseconds since the report's begin.
    pub begin: u64,
    /// Duration, in nanoseconds.
    pub duration: u64,
}

/// A surveyed trace, with the page and the means to answer its requests.
pub struct Served {
    surveyed: Surveyed,
    source: Box<dyn Source>,
    index: HashMap<RowPlace, usize>,
    page: Vec<u8>,
    /// Description of the page.
    pub written: Written,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("written", &self.written).finish_non_exhaustive()
    }
}

/// Header before the columns of a response.
#[derive(Serialize)]
struct Head<'t> {
    resolution: u64,
    rows: &'t [RowHead],
    columns: &'t [usize],
    counters: &'t [CounterHead<'t>],
    /// Number of items that a search finds; not all of them may be in the rows.
    found: u64,
}

impl Served {
    /// Creates the page, of at most `page_bytes` (see [`PAGE_BYTES`]).
    ///
    /// # Errors
    /// [`crate::Contents::finish`] fails: there are too many names, processes, threads or losses for a page.
    pub fn new(mut surveyed: Surveyed, source: Box<dyn Source>, page_bytes: u64) -> std::io::Result<Served> {
        let picture = surveyed.picture();
        let mut page = Vec::new();
        let written = surveyed.scene.contents.write(picture, page_bytes, &mut page)?;
        let index = surveyed.rows.iter().enumerate().map(|(index, row)| (row.place, index)).collect();
        Ok(Served { surveyed, source, index, page, written })
    }

    /// Returns the page.
    pub fn page(&self) -> &[u8] {
        &self.page
    }

    /// Returns the length in nanoseconds below which items are not kept, but read again; 0 if all are kept.
    pub fn resolution(&self) -> u64 {
        self.surveyed.resolution
    }

    /// Shows a sink the events between two times. Its rows of CPUs start in the state of the checkpoint.
    fn again(&self, (first_ns, last_ns): (i64, i64), sink: &mut impl AgainSink) -> Result<(), String> {
        let checkpoints = &self.surveyed.checkpoints;
        // The first checkpoint is before all events.
        let at = checkpoints.partition_point(|checkpoint| checkpoint.ns <= first_ns).saturating_sub(1);
        let Some(checkpoint) = checkpoints.get(at) else { return Ok(()) };
        *sink.cpu_rows() = checkpoint.cpu_rows.clone();
        let mut timeline = checkpoint.timeline.resumed(&self.surveyed.lost);
        self.source.read(checkpoint.ns, last_ns, &mut |event, is_wanted| match is_wanted {
            true => timeline.event(event, sink),
            false => timeline.pass(event, sink),
        })
    }

    /// Converts a time since the report's begin to one since the epoch.
    fn ns(&self, since: u64) -> i64 {
        self.surveyed.begin_ns.saturating_add_unsigned(since)
    }

    /// Returns the fields of an item in the form that the page parses; `None` if there is no such item.
    ///
    /// # Errors
    /// The trace cannot be read any more.
    pub fn fields(&self, asked: &Asked) -> Result<Option<Vec<u8>>, String> {
        let begin_ns = self.ns(asked.begin);
        let end_ns = begin_ns.saturating_add_unsigned(asked.duration);
        let mut found = Found { served: self, asked, texts: FieldTexts::default(), begin: None, end: None };
        self.again((begin_ns, begin_ns), &mut found.from(begin_ns))?;
        if asked.is_slice && found.end.is_none() {
            self.again((end_ns, end_ns), &mut found.from(end_ns))?;
        }
        let Found { begin: Some(mut fields), end, .. } = found else { return Ok(None) };
        match end {
            Some(end) => fields.0.extend(end.0),
            None if asked.is_slice => fields.event(NO_END),
            None => {}
        }
        Ok(Some(fields.0))
    }

    /// Returns all rows of the page, in its order, with the requested items: the length of the header, the header, and
    /// the columns; the last two are compressed.
    ///
    /// # Errors
    /// The trace cannot be read any more.
    pub fn part(&self, part: Part) -> Result<Vec<u8>, String> {
        match part {
            Part::Time { begin, end, is_cpu, step } => self.of_time(begin, end.max(begin), is_cpu, step),
            Part::Key { key, is_cpu, begin, end } => self.of_key(key, is_cpu, begin, end.max(begin)),
        }
    }

    /// Returns all rows of the page with the items of which a value contains `text`, or which meet all conditions such as
    /// `endpoint=/cart status>=500`, in the form of [`Served::part`]. Upper and lower case do not differ. Items with `text`
    /// in their names are left out, because the page knows them.
    ///
    /// # Errors
    /// The trace cannot be read any more.
    pub fn find(&self, text: &str, is_cpu: bool) -> Result<Vec<u8>, String> {
        let wanted = text.to_lowercase();
        let names = &self.surveyed.scene.contents.names;
        let is_named = names.iter().map(|name| name.to_lowercase().contains(&wanted)).collect();
        let mut rows: Vec<RowOf> =
            self.surveyed.rows.iter().map(|row| RowOf { place: row.place, entries: Vec::new() }).collect();
        let mut sink = FindSink {
            served: self,
            cpu_rows: CpuRows::default(),
            is_cpu,
            conditions: conditions(&wanted),
            wanted,
            is_named,
            texts: FieldTexts::default(),
            begun: HashMap::new(),
            rows: &mut rows,
            count: 0,
        };
        self.again((i64::MIN, i64::MAX), &mut sink)?;
        let count = sink.count;
        rows.iter_mut().for_each(|row| row.entries.sort_by_key(|entry| entry.begin));
        Ok(packed(0, &rows, &[], count))
    }

    fn of_time(&self, begin: u64, end: u64, is_cpu: bool, step: u64) -> Result<Vec<u8>, String> {
        let Surveyed { rows, resolution, span, scene, begin_ns, .. } = &self.surveyed;
        let (begin, end) = (begin.min(*span), end.min(*span));
        // Merged items are shorter than the resolution. So those of this part begin and end within the resolution
        // around it.
        let is_again = *resolution > 0 && step < *resolution;
        let kept = rows.iter().map(|row| match row.place.is_cpu == is_cpu {
            true => within(&row.entries, begin, end),
            false => &[],
        });
        let is_left = |entry: &&Entry| !is_again || (entry.count == 1 && entry.duration >= *resolution);
        let waiting = kept.map(|entries| entries.iter().filter(is_left).copied().collect::<Vec<_>>().into_iter());
        let mut sink = PartSink {
            served: self,
            cpu_rows: CpuRows::default(),
            is_cpu,
            times: (begin, end),
            waiting: waiting.collect(),
            rows: Rows::new(2 * ENTRIES_MAX),
            counters: Vec::new(),
        };
        if is_again {
            sink.counters = scene.contents.counters.iter().map(|counter| counter.around(self.ns(begin))).collect();
            let times = (self.ns(begin.saturating_sub(*resolution)), self.ns(end.saturating_add(*resolution)));
            self.again(times, &mut sink)?;
        }
        (0..rows.len()).for_each(|row| sink.wait(row, u64::MAX));
        let (found, mut merged) = sink.rows.finish();
        // All rows of the page, in its order.
        let mut all: Vec<RowOf> = rows.iter().map(|row| RowOf { place: row.place, entries: Vec::new() }).collect();
        for row in found {
            if let Some(index) = self.index.get(&row.place) {
                all[*index] = row;
            }
        }
        let count = |rows: &[RowOf]| rows.iter().map(|row| row.entries.len()).sum::<usize>();
        while count(&all) > ENTRIES_MAX && merged < u64::MAX / 2 {
            merged = (2 * merged).max(step).max(1);
            all.iter_mut().for_each(|row| row.entries = levels::merged(&row.entries, merged, false));
        }
        let counters = if is_again { &sink.counters } else { &scene.contents.counters };
        let counters = match is_cpu {
            true => Vec::new(),
            false => counters::heads(counters, *begin_ns, (begin, end), ENTRIES_MAX as u64),
        };
        // If nothing is read again, the resolution is that of the kept entries.
        let merged = if is_again { merged } else { merged.max(*resolution) };
        Ok(packed(merged, &all, &counters, 0))
    }

    fn of_key(&self, key: u32, is_cpu: bool, begin: u64, end: u64) -> Result<Vec<u8>, String> {
        let Surveyed { rows, resolution, .. } = &self.surveyed;
        let mut all: Vec<RowOf> = rows.iter().map(|row| RowOf { place: row.place, entries: Vec::new() }).collect();
        let mut found = Vec::new();
        if key > 0 {
            for row in rows.iter().filter(|row| row.place.is_cpu == is_cpu) {
                let with_key = row.entries.iter().filter(|entry| entry.key == key && entry.count == 1);
                found.extend(with_key.take(KEY_ITEMS_MAX).map(|entry| (row.place, *entry)));
            }
        }
        if *resolution > 0 && key > 0 {
            let mut sink = KeySink { served: self, cpu_rows: CpuRows::default(), is_cpu, key, found: &mut found };
            // A short slice is near its instants; the instants of a long slice are at its ends.
            let around = |at: u64| (self.ns(at.saturating_sub(*resolution)), self.ns(at.saturating_add(*resolution)));
            self.again(around(begin), &mut sink)?;
            let slices: HashSet<(u64, u64)> =
                sink.found.iter().map(|(_, entry)| (entry.begin, entry.duration)).collect();
            let ends = slices.into_iter().filter(|(_, duration)| *duration > 0);
            for (begin, duration) in ends.chain([(begin, end - begin)]).take(KEY_ITEMS_MAX) {
                for at in [begin, begin.saturating_add(duration)] {
                    self.again((self.ns(at), self.ns(at)), &mut sink)?;
                }
            }
        }
        for (place, entry) in found {
            if let Some(index) = self.index.get(&place) {
                all[*index].entries.push(entry);
            }
        }
        for row in &mut all {
            row.entries.sort_by_key(|entry| (entry.begin, entry.duration, entry.name));
            row.entries.dedup_by_key(|entry| (entry.begin, entry.duration, entry.name));
        }
        Ok(packed(0, &all, &[], 0))
    }
}

/// Returns the entries of a row within a part of the time. Begins and ends are both sorted, because entries do not
/// overlap.
fn within(entries: &[Entry], begin: u64, end: u64) -> &[Entry] {
    let from = entries.partition_point(|entry| entry.begin.saturating_add(entry.duration) < begin);
    let count = entries[from..].partition_point(|entry| entry.begin <= end);
    &entries[from..from + count]
}

fn packed(resolution: u64, rows: &[RowOf], counters: &[CounterHead<'_>], found: u64) -> Vec<u8> {
    let timeline = timeline(rows, |fields| fields);
    let head = Head { resolution, rows: &timeline.rows, columns: &timeline.columns, counters, found };
    // Numbers and booleans can always be written as JSON.
    let head = pack([serde_json::to_vec(&head).unwrap_or_default().as_slice()], flate2::Compression::fast());
    [&(head.len() as u32).to_le_bytes()[..], &head, &timeline.packed].concat()
}

/// A sink for a timeline that is read again.
trait AgainSink: Sink<Kept = Held> {
    fn cpu_rows(&mut self) -> &mut CpuRows;
}

/// Implements the sinks below: items are drawn as in the first reading, and the rest is ignored.
macro_rules! drawn_again {
    ($sink:ident) => {
        impl AgainSink for $sink<'_> {
            fn cpu_rows(&mut self) -> &mut CpuRows {
                &mut self.cpu_rows
            }
        }

        impl Sink for $sink<'_> {
            type Kept = Held;

            fn track(&mut self, _: &Track<'_>) {}

            fn begin(&mut self, begin: &Begin<'_>) -> Held {
                let scene = &self.served.surveyed.scene;
                self.cpu_rows.begin(scene, begin, scene.known_cpu(begin.cpu))
            }

            fn end(&mut self, end: &End<'_>, held: Held) {
                let surveyed = &self.served.surveyed;
                let drawn = self.cpu_rows.slice(&surveyed.scene, surveyed.begin_ns, end, &held);
                self.put(drawn);
            }

            fn instant(&mut self, event: &Instant<'_>) {
                let surveyed = &self.served.surveyed;
                let cpu = surveyed.scene.known_cpu(event.cpu);
                self.put(instant(&surveyed.scene, surveyed.begin_ns, event, cpu));
            }

            fn counter(&mut self, counter: &Counter) {
                self.count(counter);
            }

            fn flow(&mut self, _: &Flow) {}

            fn loss(&mut self, _: &Loss) {}
        }
    };
}

/// Collects the short items of a part of the time.
struct PartSink<'s> {
    served: &'s Served,
    cpu_rows: CpuRows,
    is_cpu: bool,
    times: (u64, u64),
    /// Kept entries that are not yet pushed, by row.
    waiting: Vec<std::vec::IntoIter<Entry>>,
    rows: Rows,
    counters: Vec<counters::Counter>,
}

impl PartSink<'_> {
    fn put(&mut self, drawn: Drawn) {
        let Some((place, entry)) = drawn[usize::from(self.is_cpu)] else { return };
        let end = entry.begin.saturating_add(entry.duration);
        let is_short = entry.duration < self.served.surveyed.resolution;
        if !is_short || entry.begin > self.times.1 || end < self.times.0 {
            return;
        }
        let Some(row) = self.served.index.get(&place) else { return };
        self.wait(*row, entry.begin);
        self.push(place, &entry);
    }

    /// Pushes the kept entries of a row up to this time.
    fn wait(&mut self, row: usize, until: u64) {
        let place = self.served.surveyed.rows[row].place;
        while let Some(entry) = self.waiting[row].as_slice().first().filter(|entry| entry.begin <= until).copied() {
            self.waiting[row].next();
            self.push(place, &entry);
        }
    }

    fn push(&mut self, place: RowPlace, entry: &Entry) {
        if self.rows.push(place, &Entry { is_kept: false, ..*entry }) {
            self.rows.coarsen(|_| false);
        }
    }

    fn count(&mut self, counter: &Counter) {
        if let Some((number, value)) = self.served.surveyed.scene.counted(counter) {
            self.counters[number as usize].add(counter.ns, value, ENTRIES_MAX);
        }
    }
}

drawn_again!(PartSink);

/// Collects items with a key.
struct KeySink<'s> {
    served: &'s Served,
    cpu_rows: CpuRows,
    is_cpu: bool,
    key: u32,
    found: &'s mut Vec<(RowPlace, Entry)>,
}

impl KeySink<'_> {
    fn put(&mut self, drawn: Drawn) {
        let with_key = drawn[usize::from(self.is_cpu)].filter(|(_, entry)| entry.key == self.key);
        self.found.extend(with_key.filter(|_| self.found.len() < 4 * KEY_ITEMS_MAX));
    }

    fn count(&mut self, _: &Counter) {}
}

drawn_again!(KeySink);

/// Operators of a condition of a search, those that contain another first.
const OPERATORS: [&str; 6] = [">=", "<=", "!=", "=", ">", "<"];
/// Maximum number of conditions of a search.
const CONDITIONS_MAX: usize = 32;

/// A condition of a search: field, operator and value, in lower case.
type Condition = (String, &'static str, String);

/// Returns the conditions of a search; none if it is a text. Without an operator in each of its words, all of it is one
/// condition, whose value contains spaces.
fn conditions(wanted: &str) -> Vec<Condition> {
    let one = |text: &str| {
        let at = text.find(['>', '<', '!', '='])?;
        let (field, rest) = text.split_at(at);
        let operator = OPERATORS.into_iter().find(|operator| rest.starts_with(operator))?;
        let is_name = |letter: char| letter.is_alphanumeric() || "_.".contains(letter);
        let is_field = !field.is_empty() && field.chars().all(is_name);
        is_field.then(|| (field.to_owned(), operator, rest[operator.len()..].to_owned()))
    };
    let words: Option<Vec<Condition>> = wanted.split_whitespace().map(one).collect();
    words.unwrap_or_else(|| one(wanted).into_iter().collect()).into_iter().take(CONDITIONS_MAX).collect()
}

/// Whether a value meets a condition. Values are compared as numbers by `<`, `<=`, `>` and `>=`, and otherwise as texts.
fn is_met(value: &str, operator: &str, wanted: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    let ordering = || number(value)?.partial_cmp(&number(wanted)?);
    match operator {
        "=" => value == wanted,
        "!=" => value != wanted,
        ">=" => ordering().is_some_and(Ordering::is_ge),
        "<=" => ordering().is_some_and(Ordering::is_le),
        ">" => ordering().is_some_and(Ordering::is_gt),
        _ => ordering().is_some_and(Ordering::is_lt),
    }
}

/// Collects items by the values of their fields.
struct FindSink<'s> {
    served: &'s Served,
    cpu_rows: CpuRows,
    is_cpu: bool,
    /// In lower case.
    wanted: String,
    conditions: Vec<Condition>,
    /// Whether a name contains it, by number.
    is_named: Vec<bool>,
    texts: FieldTexts,
    /// Numbers of open slices whose begin meets conditions, and these as bits.
    begun: HashMap<u64, u64>,
    rows: &'s mut [RowOf],
    count: u64,
}

impl FindSink<'_> {
    /// Returns the bits of the conditions that an event meets; all bits if a value contains the text.
    fn met(&mut self, event: &Event<'_>) -> u64 {
        let mut met = 0;
        for (name, text) in self.texts.of(event) {
            let text = String::from_utf8_lossy(text).to_lowercase();
            if text.contains(&self.wanted) {
                return u64::MAX;
            }
            for (bit, (field, operator, value)) in self.conditions.iter().enumerate() {
                met |= u64::from(*field == name.to_lowercase() && is_met(&text, operator, value)) << bit;
            }
        }
        met
    }

    /// Whether these bits are all conditions.
    fn is_found(&self, met: u64) -> bool {
        let all = match self.conditions.len() {
            0 => u64::MAX,
            count => (1 << count) - 1,
        };
        met & all == all
    }

    fn put(&mut self, drawn: Drawn) {
        let Some((place, entry)) = drawn[usize::from(self.is_cpu)] else { return };
        if self.is_named.get(entry.name as usize).is_some_and(|is_named| *is_named) {
            return;
        }
        self.count += 1;
        if let Some(row) = self.served.index.get(&place).filter(|_| self.count <= FOUND_MAX as u64) {
            self.rows[*row].entries.push(entry);
        }
    }
}

impl AgainSink for FindSink<'_> {
    fn cpu_rows(&mut self) -> &mut CpuRows {
        &mut self.cpu_rows
    }
}

impl Sink for FindSink<'_> {
    type Kept = Held;

    fn track(&mut self, _: &Track<'_>) {}

    fn begin(&mut self, begin: &Begin<'_>) -> Held {
        let met = self.met(begin.event);
        if met > 0 {
            self.begun.insert(begin.id, met);
        }
        let scene = &self.served.surveyed.scene;
        self.cpu_rows.begin(scene, begin, scene.known_cpu(begin.cpu))
    }

    fn end(&mut self, end: &End<'_>, held: Held) {
        let surveyed = &self.served.surveyed;
        let drawn = self.cpu_rows.slice(&surveyed.scene, surveyed.begin_ns, end, &held);
        let met = self.begun.remove(&end.id).unwrap_or(0) | end.event.map_or(0, |event| self.met(event));
        if self.is_found(met) {
            self.put(drawn);
        }
    }

    fn instant(&mut self, event: &Instant<'_>) {
        let met = self.met(event.event);
        if self.is_found(met) {
            let surveyed = &self.served.surveyed;
            let cpu = surveyed.scene.known_cpu(event.cpu);
            self.put(instant(&surveyed.scene, surveyed.begin_ns, event, cpu));
        }
    }

    fn counter(&mut self, _: &Counter) {}

    fn flow(&mut self, _: &Flow) {}

    fn loss(&mut self, _: &Loss) {}
}

/// Finds the events of an item.
struct Found<'s> {
    served: &'s Served,
    asked: &'s Asked,
    texts: FieldTexts,
    begin: Option<Fields>,
    end: Option<Fields>,
}

/// A sink that finds the events of an item from one checkpoint on.
struct FoundSink<'f, 's> {
    found: &'f mut Found<'s>,
    cpu_rows: CpuRows,
    /// Time before which an end does not count.
    ns: i64,
}

impl<'s> Found<'s> {
    fn from(&mut self, ns: i64) -> FoundSink<'_, 's> {
        FoundSink { found: self, cpu_rows: CpuRows::default(), ns }
    }

    fn is_it(&self, track: u32, name: u32, is_slice: bool, begin_ns: i64) -> bool {
        let Asked { thread, name: asked, is_slice: is_slice_asked, begin, .. } = *self.asked;
        let place = self.served.surveyed.scene.place(track);
        name == asked
            && is_slice == is_slice_asked
            && begin_ns == self.served.ns(begin)
            && place.is_some_and(|place| place.thread == thread)
    }

    fn fields(&mut self, event: &Event<'_>) -> Fields {
        let mut fields = Fields::default();
        fields.of(event, &mut self.texts);
        fields
    }
}

impl AgainSink for FoundSink<'_, '_> {
    fn cpu_rows(&mut self) -> &mut CpuRows {
        &mut self.cpu_rows
    }
}

impl Sink for FoundSink<'_, '_> {
    type Kept = Held;

    fn track(&mut self, _: &Track<'_>) {}

    fn begin(&mut self, begin: &Begin<'_>) -> Held {
        if self.found.begin.is_none() && self.found.is_it(begin.track, begin.name, true, begin.ns) {
            self.found.begin = Some(self.found.fields(begin.event));
        }
        self.cpu_rows.begin(&self.found.served.surveyed.scene, begin, 0)
    }

    fn end(&mut self, end: &End<'_>, _: Held) {
        let is_it = self.found.is_it(end.track, end.name, true, end.begin_ns)
            && end.ns.abs_diff(end.begin_ns) == self.found.asked.duration
            && end.ns >= self.ns;
        if let Some(event) = end.event.filter(|_| is_it && self.found.end.is_none()) {
            // The begin of a call is the same event.
            let mut fields = if end.is_call { Fields::default() } else { self.found.fields(event) };
            end.doubt.iter().for_each(|doubt| fields.event(doubt.text()));
            self.found.end = Some(fields);
        }
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        if self.found.begin.is_none() && self.found.is_it(instant.track, instant.name, false, instant.ns) {
            self.found.begin = Some(self.found.fields(instant.event));
        }
    }

    fn counter(&mut self, _: &Counter) {}

    fn flow(&mut self, _: &Flow) {}

    fn loss(&mut self, _: &Loss) {}
}
