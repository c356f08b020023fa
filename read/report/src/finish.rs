//! Makes a page from contents, within a maximum size.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;

use dormouse_abi::text::printable;
use dormouse_analysis::timeline::Totals;
use dormouse_ctf::time::since_ns;
use flate2::Compression;
use serde::Serialize;

use crate::columns::{COLUMNS, Columns};
use crate::compare::{Beside, Compared, Difference, LostBeside};
use crate::contents::{Contents, Cpu, Item, Kind, Loss, Process, Thread};
use crate::counters::{self, CounterHead};
use crate::details::{CHUNK_ITEMS, pack};
use crate::levels::{self, Entry, Level};
use crate::page::{Base64, Page, base64_size};
use crate::stacks::{DEPTH_OF_CPU, Owner, STACKS_OF_CPU, Stacks};
use crate::summary::{self, BINS_AN_OCTAVE, Node, Row, Summary, TIME_BINS};

/// Maximum depth of a thread's rows. Slices that are nested deeper are counted.
pub(crate) const DEPTH_OF_THREAD: usize = 128;
/// Percentage of the page's size that the timeline may take before fields are added. The second applies if items must
/// be merged, which drops their fields.
const TIMELINE_PERCENT: u64 = 60;
const MERGED_PERCENT: u64 = 85;
/// Least size of an entry, in bytes.
const ENTRY_BYTES_LEAST: u64 = 2;

/// Counters may take one part in this many of the page's size; bytes per point.
const COUNTER_SHARE: u64 = 8;
const POINT_BYTES: u64 = 16;

/// Items that a page does not draw; its tables still count them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Resolution in nanoseconds: neighbours that are shorter are merged; 0 if none are.
    pub resolution_ns: u64,
    /// Number of merged items, by name.
    pub merged: BTreeMap<String, u64>,
    /// Number of items whose fields are left out.
    pub fields: u64,
    /// Number of slices that are nested too deep to be drawn, in rows of threads.
    pub too_deep: u64,
    /// Number of slices that are not drawn in rows of CPUs: too many threads have slices there, or they are too deep.
    pub too_many_on_cpu: u64,
    /// Number of slices that are missing in the call trees, which have too many nodes.
    pub call_trees: u64,
    /// Number of values of counters that are merged with neighbours into their least and greatest value.
    pub counter_values: u64,
}

/// Description of a page that was written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Written {
    /// Size of the page, in bytes.
    pub size_bytes: u64,
    /// Number of events that were read.
    pub events: u64,
    /// Number of all slices, as in the tables.
    pub slices: u64,
    /// Number of all instants, as in the tables.
    pub instants: u64,
    /// Counts of the timeline.
    pub timeline: Option<Totals>,
    /// Items that the page leaves out.
    pub left_out: LeftOut,
    /// Differences to the other trace, the greatest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differences: Option<Vec<Difference>>,
}

/// Description of a row for the page.
#[derive(Debug, Serialize)]
pub(crate) struct RowHead {
    is_cpu: bool,
    /// Number of the thread or CPU.
    of: u32,
    /// Number of the lane; in rows of a CPU, of the stack.
    lane: u32,
    depth: usize,
    is_slices: bool,
    /// Resolution and number of entries of each level.
    levels: Vec<(u64, usize)>,
}

/// Data that the page reads before it unpacks columns.
#[derive(Serialize)]
struct Head<'c> {
    version: u32,
    /// Whether the page can request merged items and fields.
    is_served: bool,
    is_growing: bool,
    title: &'c str,
    about: &'c [String],
    notes: &'c [String],
    /// Nanoseconds since the epoch, as text, since a number in JavaScript cannot hold them.
    begin_ns: String,
    /// Nanoseconds from the zero of the times that are shown to the begin.
    since_zero: i64,
    span: u64,
    events: u64,
    names: &'c [String],
    /// Numbers of names of which no slice is certain.
    doubtful: &'c [u32],
    field_names: Vec<String>,
    keys: Vec<Vec<String>>,
    label: &'c str,
    processes: &'c [Process],
    threads: &'c [Thread],
    cpus: &'c [Cpu],
    losses: Vec<LossHead<'c>>,
    density: Vec<u32>,
    counters: &'c [CounterHead<'c>],
    rows: Vec<RowHead>,
    columns: Vec<usize>,
    summary: &'c [Row],
    nodes: &'c [Node],
    time_bins: u64,
    bins_an_octave: u64,
    chunk_items: usize,
    /// Number of base64 letters of each chunk.
    chunks: Vec<usize>,
    left_out: &'c LeftOut,
    diff: Option<&'c Compared>,
}

#[derive(Serialize)]
struct LossHead<'c> {
    begin: u64,
    end: u64,
    events: u64,
    cpu: Option<u32>,
    stream: &'c str,
    text: &'c str,
}

/// Position of a row: thread or CPU, lane (of a CPU: stack), depth, and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowPlace {
    pub is_cpu: bool,
    pub of: u32,
    pub lane: u32,
    pub depth: usize,
    pub kind: Kind,
}

/// A row with its entries.
#[derive(Debug)]
pub(crate) struct RowOf {
    pub place: RowPlace,
    pub entries: Vec<Entry>,
}

/// Rows in the form that is written.
pub(crate) struct Timeline {
    pub rows: Vec<RowHead>,
    pub packed: Box<[u8]>,
    pub columns: Vec<usize>,
}

/// Everything that is drawn and listed of a trace, except its names.
pub(crate) struct Picture {
    /// Begin in nanoseconds since the epoch, and length in nanoseconds.
    pub span: (i64, u64),
    pub rows: Vec<RowOf>,
    pub summary: Summary,
    pub density: Vec<u32>,
    pub slices: u64,
    pub instants: u64,
    pub left_out: LeftOut,
    /// Whether the page is served: it requests what it lacks, and contains no fields.
    pub is_served: bool,
}

impl Contents {
    /// Writes the page, of at most `size_max` bytes.
    ///
    /// # Errors
    /// Writing failed, or `size_max` is too small for any page of these contents.
    pub fn finish(mut self, size_max: u64, out: &mut impl Write) -> std::io::Result<Written> {
        let picture = self.picture();
        self.write(picture, size_max, out)
    }

    /// Returns the picture of all items.
    fn picture(&self) -> Picture {
        let span = self.span();
        let mut left_out = LeftOut::default();
        let order = order(&self.items, Item::owner);
        let (summary, density) = summary::of(&self.items, &order, span);
        let mut is_kept = vec![false; self.items.len()];
        summary.kept.iter().for_each(|number| is_kept[*number as usize] = true);
        let mut rows = self.rows(&order, false, &is_kept, span.0, &mut left_out.too_deep);
        let by_cpu = self::order(&self.items, |item| (item.cpu, 0));
        rows.extend(self.rows(&by_cpu, true, &is_kept, span.0, &mut left_out.too_many_on_cpu));
        let slices = self.items.iter().filter(|item| item.kind == Kind::Slice).count() as u64;
        let instants = self.items.len() as u64 - slices;
        Picture { span, rows, summary, density, slices, instants, left_out, is_served: false }
    }

    /// Writes the page of a picture.
    pub(crate) fn write(&mut self, picture: Picture, size_max: u64, out: &mut impl Write) -> std::io::Result<Written> {
        let Picture { span, mut rows, summary, density, slices, instants, mut left_out, is_served } = picture;
        left_out.call_trees = summary.nodes_left_out;
        let other = self.samples.take().zip(self.beside.take());
        let compared = other.map(|(samples, other)| Compared::new(samples, &self.names, &summary.nodes, other));
        let points_max = size_max / COUNTER_SHARE / POINT_BYTES;
        let counters = counters::heads(&self.counters, span.0, (0, u64::MAX), points_max);
        left_out.counter_values = counters.iter().map(CounterHead::merged).sum();
        let heat = pack([summary.heat.as_slice()], Compression::default());
        let page = Page::new(is_served);
        let head = |timeline: &mut Timeline, chunks: &[Box<[u8]>], left_out: &LeftOut| {
            let head = Head {
                version: 1,
                is_served,
                is_growing: self.is_growing,
                title: &self.title,
                about: &self.about,
                notes: &self.notes,
                begin_ns: span.0.to_string(),
                since_zero: self.zero_ns.map_or(0, |zero_ns| span.0.saturating_sub(zero_ns)),
                span: span.1,
                events: self.events,
                names: &self.names,
                doubtful: &self.doubtful,
                field_names: self.field_names.iter().map(|name| printable(name)).collect(),
                keys: self.keys.iter().map(|key| key.iter().map(|name| printable(name)).collect()).collect(),
                label: &self.label,
                processes: &self.processes,
                threads: &self.threads,
                cpus: &self.cpus,
                losses: self.losses.iter().map(|loss| loss_head(loss, span)).collect(),
                density: density.clone(),
                counters: &counters,
                rows: std::mem::take(&mut timeline.rows),
                columns: timeline.columns.clone(),
                summary: &summary.rows,
                nodes: &summary.nodes,
                time_bins: TIME_BINS,
                bins_an_octave: BINS_AN_OCTAVE,
                chunk_items: CHUNK_ITEMS,
                chunks: chunks.iter().map(|chunk| base64_size(chunk.len())).collect(),
                left_out,
                diff: compared.as_ref(),
            };
            let json = serde_json::to_vec(&head).map_err(std::io::Error::other)?;
            std::io::Result::Ok(pack([json.as_slice()], Compression::default()))
        };
        let size = |head: &[u8], timeline: &Timeline| {
            let blocks = [head.len(), timeline.packed.len(), heat.len()];
            page.size_bytes() + blocks.into_iter().map(|len| base64_size(len) as u64).sum::<u64>()
        };

        // First the timeline, at the finest resolution that fits.
        let fields_bytes = self.details.size_bytes();
        let room = if fields_bytes == 0 { size_max } else { size_max * TIMELINE_PERCENT / 100 };
        let entries = rows.iter().map(|row| row.entries.len() as u64).sum::<u64>();
        if is_served && entries * ENTRY_BYTES_LEAST > room {
            // With this many entries it is known to be too long without packing it.
            left_out.resolution_ns =
                first_resolution(rows.iter(), entries * ENTRY_BYTES_LEAST / room.max(1)).max(left_out.resolution_ns);
            merge(&mut rows, &self.names, &mut left_out);
        }
        let mut timeline = timeline(&rows, |fields| fields);
        let mut head_bytes = head(&mut timeline, &[], &left_out)?;
        let is_merged = size(&head_bytes, &timeline) > room;
        let room = if is_merged { size_max * MERGED_PERCENT / 100 } else { room };
        let mut resolution =
            first_resolution(rows.iter(), size(&head_bytes, &timeline) / room.max(1)).max(2 * left_out.resolution_ns);
        while size(&head_bytes, &timeline) > room && left_out.resolution_ns < span.1 {
            left_out.resolution_ns = resolution;
            merge(&mut rows, &self.names, &mut left_out);
            timeline = self::timeline(&rows, |fields| fields);
            head_bytes = head(&mut timeline, &[], &left_out)?;
            resolution = resolution.saturating_mul(2);
        }
        // Then fields, those of the longest items first.
        let all = self.details.count() as usize;
        let by_length = if is_served { Vec::new() } else { by_length(&rows) };
        let mut count = by_length.len();
        loop {
            let left = size_max.saturating_sub(size(&head_bytes, &timeline));
            let fits = (left * 3 / 4).saturating_mul(all as u64) / fields_bytes.max(1);
            // Fewer in each round, so that the loop ends.
            count = if count == by_length.len() { count.min(fits as usize) } else { count.min(fits as usize) * 9 / 10 };
            let mut is_longest = vec![false; all];
            by_length[..count].iter().for_each(|number| is_longest[*number as usize] = true);
            let (chunks, numbers) = match is_served {
                true => Default::default(),
                false => self.details.kept(|number| is_longest[number as usize]),
            };
            left_out.fields = (all - count) as u64;
            // A served page requests fields by their original numbers.
            let number = |fields: u32| match fields.checked_sub(1) {
                Some(number) if !is_served => numbers[number as usize],
                _ => fields,
            };
            timeline = self::timeline(&rows, number);
            head_bytes = head(&mut timeline, &chunks, &left_out)?;
            let of_chunks: u64 = chunks.iter().map(|chunk| base64_size(chunk.len()) as u64).sum();
            let size_bytes = size(&head_bytes, &timeline) + of_chunks;
            if size_bytes <= size_max {
                let mut base64 = Base64::default();
                page.write(
                    out,
                    [("head", &[head_bytes][..]), ("rows", &[timeline.packed]), ("heat", &[heat]), ("fields", &chunks)],
                    &mut base64,
                )?;
                let timeline = self.totals;
                let differences = compared.map(Compared::differences);
                let events = self.events;
                let written = Written { size_bytes, events, slices, instants, timeline, left_out, differences };
                return Ok(written);
            }
            if count == 0 {
                let why = format!("a report of this trace takes {size_bytes} bytes, --max-size is {size_max}");
                return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, why));
            }
            count = count.min(by_length.len() * 9 / 10);
        }
    }

    /// Returns begin and length of the time from the first item to the end of the last. Without items, losses give the
    /// time.
    pub(crate) fn span(&self) -> (i64, u64) {
        let begin = self.items.iter().map(|item| item.begin_ns).min();
        let end = self.items.iter().map(|item| item.begin_ns.saturating_add_unsigned(item.duration_ns)).max();
        let times = |time: fn(&Loss) -> Option<i64>| self.losses.iter().filter_map(time);
        let begin = begin.or(times(|loss| loss.begin_ns).min()).unwrap_or_default();
        let end = end.or(times(|loss| loss.end_ns).max()).unwrap_or(begin).max(begin);
        (begin, end.abs_diff(begin).max(1))
    }

    /// Returns the rows of all threads or of all CPUs. `begin_ns`: begin of the report; `is_kept`: by number of the
    /// item. Slices on lanes are not in rows of CPUs: a task that no thread runs all the time is on none.
    fn rows(&self, order: &[u32], is_cpu: bool, is_kept: &[bool], begin_ns: i64, left_out: &mut u64) -> Vec<RowOf> {
        let item = |number: &u32| &self.items[*number as usize];
        let of = |number: &u32| if is_cpu { (item(number).cpu, 0) } else { item(number).owner() };
        let maxima = if is_cpu { (STACKS_OF_CPU, DEPTH_OF_CPU) } else { (1, DEPTH_OF_THREAD) };
        let mut rows = Vec::new();
        for of_one in order.chunk_by(|a, b| of(a) == of(b)) {
            let (of, lane) = of(&of_one[0]);
            let (mut stacks, mut found) = (Stacks::default(), BTreeMap::new());
            for number in of_one {
                let Item { kind, begin_ns: begin, duration_ns, lane: own_lane, .. } = *item(number);
                let place = match kind {
                    Kind::Instant => Some((0, 0)),
                    Kind::Slice if is_cpu && own_lane.is_some() => continue,
                    Kind::Slice => {
                        let end = begin.saturating_add_unsigned(duration_ns);
                        stacks.begin(item(number).owner(), begin, end, maxima)
                    }
                };
                let Some((stack, depth)) = place else {
                    *left_out += 1;
                    continue;
                };
                let entries: &mut Vec<Entry> = found.entry((kind == Kind::Slice, stack, depth)).or_default();
                entries.push(self.entry(*number, is_cpu, begin_ns, is_kept[*number as usize]));
            }
            rows.extend(found.into_iter().map(|((is_slice, stack, depth), entries)| {
                let kind = if is_slice { Kind::Slice } else { Kind::Instant };
                let lane = if is_cpu { stack } else { lane };
                RowOf { place: RowPlace { is_cpu, of, lane, depth: depth as usize, kind }, entries }
            }));
        }
        rows
    }

    /// Returns an item as an entry of a row.
    fn entry(&self, number: u32, is_cpu: bool, begin_ns: i64, is_kept: bool) -> Entry {
        let item = &self.items[number as usize];
        let begin = item.begin_ns.abs_diff(begin_ns);
        Entry {
            begin,
            // Damaged times can exceed the range.
            duration: item.duration_ns.min(u64::MAX - begin),
            name: item.name,
            count: 1,
            key: item.key,
            fields: item.fields,
            other: if is_cpu { item.thread } else { item.cpu } + 1,
            is_kept,
        }
    }
}

impl Contents {
    /// Returns the data that is compared if this is the other trace. Items are dropped.
    pub fn beside(self) -> Beside {
        let span = self.span();
        let order = order(&self.items, Item::owner);
        let (Summary { nodes, nodes_left_out, .. }, _) = summary::of(&self.items, &order, span);
        let since = |ns: Option<i64>, without: u64| ns.map_or(without, |ns| since_ns(ns, span.0).min(span.1));
        let losses = self.losses.iter().map(|loss| LostBeside {
            begin: since(loss.begin_ns, 0),
            end: since(loss.end_ns, span.1),
            events: loss.events,
            stream: match loss.cpu.and_then(|cpu| self.cpus.get(cpu as usize).copied().flatten()) {
                Some(cpu) => format!("CPU {cpu}"),
                None => loss.stream.clone(),
            },
            text: loss.text.clone(),
        });
        Beside {
            losses: losses.collect(),
            title: self.title,
            about: self.about,
            notes: self.notes,
            events: self.events,
            names: self.names,
            samples: self.samples.unwrap_or_default(),
            nodes,
            nodes_left_out,
        }
    }

    /// Adds the other trace of a comparison. This trace is the first.
    pub fn compare(&mut self, other: Beside) {
        self.beside = Some(other);
    }
}

/// Returns the items grouped by owner (or CPU), each group sorted by begin, longer items first.
fn order(items: &[Item], of: impl Fn(&Item) -> Owner) -> Vec<u32> {
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_by_key(|number| {
        let item = &items[*number as usize];
        (of(item), item.begin_ns, Reverse(item.duration_ns))
    });
    order
}

fn loss_head(loss: &Loss, span: (i64, u64)) -> LossHead<'_> {
    // A loss before the first event is drawn at that event, a loss after the last one at the end.
    let since = |ns: Option<i64>, without: u64| ns.map_or(without, |ns| since_ns(ns, span.0).min(span.1));
    LossHead {
        begin: since(loss.begin_ns, 0),
        end: since(loss.end_ns, span.1),
        events: loss.events,
        cpu: loss.cpu,
        stream: &loss.stream,
        text: &loss.text,
    }
}

/// Merges the rows to the resolution in `left_out`, and counts merged items by name.
fn merge(rows: &mut [RowOf], names: &[String], left_out: &mut LeftOut) {
    let mut counts = vec![0_u64; names.len()];
    for row in &mut *rows {
        row.entries = levels::merged(&row.entries, left_out.resolution_ns, true);
        // Rows of CPUs contain the same items again.
        for entry in row.entries.iter().filter(|entry| entry.count > 1 && !row.place.is_cpu) {
            counts[entry.name as usize] += u64::from(entry.count);
        }
    }
    let merged = names.iter().cloned().zip(counts).filter(|(_, count)| *count > 0);
    left_out.merged = merged.collect();
}

/// Packs rows with all their levels. `fields`: converts numbers of fields.
pub(crate) fn timeline(rows: &[RowOf], fields: impl Fn(u32) -> u32) -> Timeline {
    let (mut heads, mut columns) = (Vec::new(), Columns::default());
    for row in rows {
        let entries = row.entries.iter().map(|entry| Entry { fields: fields(entry.fields), ..*entry }).collect();
        let base = Level { resolution: 0, entries };
        let above = levels::above(&base.entries);
        // Merged entries have nothing to look up.
        let plain = |entry: &Entry| Entry { key: 0, fields: 0, other: 0, ..*entry };
        columns.put(&base.entries);
        above.iter().for_each(|level| columns.put(&level.entries.iter().map(plain).collect::<Vec<_>>()));
        let levels = std::iter::once(&base).chain(&above).map(|level| (level.resolution, level.entries.len()));
        heads.push(RowHead {
            is_cpu: row.place.is_cpu,
            of: row.place.of,
            lane: row.place.lane,
            depth: row.place.depth,
            is_slices: row.place.kind == Kind::Slice,
            levels: levels.collect(),
        });
    }
    let parts: [&[u8]; COLUMNS] = std::array::from_fn(|column| columns.0[column].as_slice());
    Timeline { rows: heads, packed: pack(parts, Compression::default()), columns: columns.sizes() }
}

/// Returns the fields of entries that are not merged: first those of the slowest of each name, then by length.
fn by_length(rows: &[RowOf]) -> Vec<u32> {
    let entries =
        rows.iter().filter(|row| !row.place.is_cpu).flat_map(|row| &row.entries).filter(|entry| entry.fields > 0);
    let mut by_length: Vec<_> =
        entries.map(|entry| (Reverse((entry.is_kept, entry.duration)), entry.fields - 1)).collect();
    by_length.sort_unstable();
    by_length.into_iter().map(|(_, fields)| fields).collect()
}

/// Returns a lower bound of the resolutions to try, for a timeline that is `times` times too long. Entries come in
/// bursts, so it is far below their mean distance.
pub(crate) fn first_resolution<'r>(rows: impl Iterator<Item = &'r RowOf>, times: u64) -> u64 {
    let (mut spans, mut entries) = (0_u128, 0_u128);
    for row in rows {
        if let (Some(first), Some(last)) = (row.entries.first(), row.entries.last()) {
            spans += u128::from(last.begin.saturating_sub(first.begin));
        }
        entries += row.entries.len() as u128;
    }
    u64::try_from(spans / entries.max(1) * u128::from(times.max(1)) / 16).unwrap_or(u64::MAX).max(1)
}
