//! What happened during slices: the events that belong to each.
//!
//! ```text
//!   all events ──▶ Chooser ──▶ Slice  by duration, by conditions on its two events
//!                                │
//!   events of its time ──▶ Windows ──▶ times at which threads worked on it
//!                                │
//!   the same events ─────▶ Contents ──▶ those that belong to it, each with its depth and what it ends
//! ```
//!
//! A slice that is paired by thread consists of the events of its thread from its begin to its end. A slice that is paired by a
//! key can be worked on by several threads. It consists of
//!
//! * the events that have the key's values,
//! * on each thread, the events within slices whose begin has the key's values, and whose end is on the same thread and has
//!   them or lacks the fields. If such slices are paired by key themselves, no event of the thread may have other values meanwhile:
//!   then the thread works on several at a time.
//!
//! # Limits
//! At most [`SLICES_MAX`] slices are kept, and as many times of threads for each slice; further ones are counted. The events are
//! read three times, the second and third time only those of a slice's time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use dormouse_abi::class::matches;
use dormouse_ctf::{ClassRef, Event, KeptValues, Notice, PairEnd, PairFilter, Trace, TraceRef, Writers};
use dormouse_filter::Filter;

use crate::key::{self, KeyValue};
use crate::pick::{Picker, Said};
use crate::schema::Schema;
use crate::timeline::{
    Begin, Counter, Doubt, End, Flow, Instant, Loss, Options, Sink, Timeline, Track, TrackKind, slice_rules,
};

/// Maximum number of slices that are kept, and of times of threads for each slice.
pub const SLICES_MAX: usize = 1 << 16;

/// The slices that are asked for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Pattern of their names. If [`Options::pairs`] has a pair of this name, its slices only.
    pub name: String,
    /// Conditions that a slice's two events must meet: the name of the option that each comes from, and a filter that names
    /// fields as [`PairFilter`] does.
    pub conditions: Vec<(String, Filter)>,
    /// Number of slices, those with the longest duration; `None`: all, by time.
    pub slowest: Option<usize>,
}

/// A thread of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// Index of the trace.
    pub trace: usize,
    /// Process id.
    pub pid: Option<u64>,
    /// Thread id.
    pub tid: Option<u64>,
}

/// A slice whose contents are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Name.
    pub name: String,
    /// Time of its begin, in nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Time from begin to end, in nanoseconds.
    pub latency_ns: u64,
    /// Threads of begin and end.
    pub threads: [Thread; 2],
    /// Names and values of the fields by which it is paired; empty if it is paired by thread.
    pub key: Vec<(String, KeyValue)>,
    /// Encoded values of the key.
    key_bytes: Box<[u8]>,
    /// Whether the key is one of the process.
    is_of_process: bool,
    /// Streams and addresses of the classes of begin and end.
    events: [(usize, usize); 2],
}

impl Slice {
    /// Returns the time of its end, in nanoseconds since the epoch.
    pub fn end_ns(&self) -> i64 {
        self.begin_ns.saturating_add_unsigned(self.latency_ns)
    }

    /// Returns which end of the slice an event is, if it is one.
    fn end_of(&self, event: &Event<'_>) -> Option<PairEnd> {
        let is_end = |at: usize, ns: i64| {
            event.time_ns == Some(ns) && self.events[at] == (event.stream, std::ptr::from_ref(event.class).addr())
        };
        match (is_end(0, self.begin_ns), is_end(1, self.end_ns())) {
            (true, _) => Some(PairEnd::Begin),
            (false, true) => Some(PairEnd::End),
            (false, false) => None,
        }
    }
}

/// The slices that were found.
#[derive(Debug)]
pub struct Chosen {
    /// The slices, the slowest first or in the order of time.
    pub slices: Vec<Slice>,
    /// Number of slices that meet the conditions.
    pub count: u64,
    /// Number of slices that are left out, because events can have been lost between begin and end.
    pub across_losses: u64,
}

/// How slices of a name are paired.
#[derive(Debug, Clone, Default)]
struct Pairing {
    /// Names of the key's fields as the picker takes them.
    fields: Vec<String>,
    is_by_thread: bool,
    is_of_process: bool,
}

impl Pairing {
    fn of(name: &str, options: &Options, traces: &[&Trace]) -> Pairing {
        let of_key = |key: &mut dyn Iterator<Item = &str>, is_of_process: bool| {
            let parts: Vec<&str> = key.collect();
            let fields = parts.iter().filter(|part| !["pid", "tid", "cpu"].contains(part));
            Pairing {
                fields: fields.map(|field| field.to_string()).collect(),
                is_by_thread: parts.is_empty() || parts.contains(&"tid"),
                is_of_process: is_of_process || parts.contains(&"pid"),
            }
        };
        let is_given = options.pairs.iter().any(|pair| pair.name == name);
        if is_given && !options.key.is_empty() {
            return of_key(&mut options.key.iter().map(String::as_str), false);
        }
        if let Some(found) = options.found.iter().find(|found| found.name == name && !found.fields.is_empty()) {
            let fields = found.fields.iter().map(|field| format!("fields.{field}"));
            return Pairing { fields: fields.collect(), is_by_thread: false, is_of_process: true };
        }
        let mut rules = traces.iter().flat_map(|trace| slice_rules(TraceRef::from(*trace)));
        let rule = rules.find(|rule| !is_given && rule.name == name);
        of_key(&mut rule.map_or(&[][..], |rule| rule.key).iter().copied(), true)
    }
}

/// Returns the name without the mark of a doubtful one.
fn plain(name: &str) -> &str {
    name.strip_suffix(" (not certain)").unwrap_or(name)
}

/// Traces of streams, and a reader of threads and fields.
#[derive(Debug, Default)]
struct Reader {
    traces: Vec<usize>,
    writers: Writers,
    picker: Picker,
}

impl Reader {
    fn thread(&mut self, event: &Event<'_>) -> Thread {
        let trace = self.traces.get(event.stream).copied().unwrap_or(0);
        match event.context {
            Some((pid, tid)) => Thread { trace, pid: Some(pid.into()), tid: Some(tid.into()) },
            None => {
                let writer = self.writers.of(event);
                Thread { trace, pid: writer.pid, tid: writer.tid }
            }
        }
    }

    /// Writes the values of fields that the picker has read. Returns the number of those that the event has.
    fn put(&self, fields: &[usize], out: &mut Vec<u8>) -> usize {
        out.clear();
        fields.iter().for_each(|field| key::put_cell(self.picker.cell(*field), out));
        fields.iter().filter(|field| self.picker.cell(**field).said != Said::Nothing).count()
    }
}

/// Chooses slices. The caller must show it all events of the traces in the order of time, and each notice at its place among
/// them.
#[derive(Debug)]
pub struct Chooser {
    timeline: Timeline<Option<Box<Kept>>>,
    sink: Choice,
}

/// What is kept of the begin of a slice that is asked for.
#[derive(Debug)]
pub struct Kept {
    thread: Thread,
    key: Box<[u8]>,
    values: Vec<KeptValues>,
    event: (usize, usize),
}

#[derive(Debug)]
struct Choice {
    /// Pairing of the slices, by the index of the name; `None`: they are not asked for. The indexes are those of the picker.
    names: Vec<Option<(String, Pairing, Vec<usize>)>>,
    reader: Reader,
    filters: Vec<PairFilter>,
    slowest: Option<usize>,
    /// The slices so far; on top the first one to be left out.
    kept: BinaryHeap<Ranked>,
    chosen: Chosen,
}

/// A slice and its rank: the duration, or the same for all; of equal ones the earlier is the greater.
#[derive(Debug)]
struct Ranked(Reverse<(u64, Reverse<i64>)>, Slice);

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.0 == other.0
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl Chooser {
    /// Creates a chooser. `streams`: the name of each stream, and the index of its trace.
    ///
    /// # Errors
    /// The traces lack something that the options or the conditions name, or have no slices of the name; the text names the
    /// nearest.
    pub fn new<'s>(
        asked: &Asked,
        options: &Options,
        traces: &[&Trace],
        streams: impl IntoIterator<Item = (&'s str, usize)>,
    ) -> Result<Chooser, String> {
        let streams: Vec<(&str, usize)> = streams.into_iter().collect();
        let timeline = Timeline::new(options, traces, streams.iter().copied())?;
        let mut reader = Reader { traces: streams.into_iter().map(|(_, trace)| trace).collect(), ..Reader::default() };
        let given = options.pairs.iter().find(|pair| pair.name == asked.name);
        let rules = || traces.iter().flat_map(|trace| slice_rules(TraceRef::from(*trace)));
        let is_asked = |name: &str| match given {
            Some(pair) => pair.name == name,
            None => matches(&asked.name, name) && rules().any(|rule| rule.name == name),
        };
        let names: Vec<_> = timeline
            .names()
            .iter()
            .map(|name| {
                let name = plain(&name.text);
                let pairing = is_asked(name).then(|| Pairing::of(name, options, traces))?;
                let fields = pairing.fields.iter().map(|field| reader.picker.want(field)).collect();
                Some((name.to_string(), pairing, fields))
            })
            .collect();
        let is_there = |(name, _, _): &(String, Pairing, Vec<usize>)| {
            given.is_some() || rules().any(|rule| rule.name == *name && !rule.begins.is_empty())
        };
        if !names.iter().flatten().any(is_there) {
            let names: BTreeSet<String> = rules().map(|rule| rule.name).collect();
            let instead = crate::schema::instead(&asked.name, names.iter().map(String::as_str));
            return Err(format!(
                "no slices of the trace are called `{}`; {instead}; BEGIN..END names slices by two event classes",
                asked.name
            ));
        }
        let schema = Schema::of(traces);
        let classes = |is_begin: bool| -> Vec<ClassRef<'_>> {
            let mut patterns: Vec<String> = Vec::new();
            match given {
                Some(pair) => patterns.push(if is_begin { pair.begin.clone() } else { pair.end.clone() }),
                None => rules()
                    .filter(|rule| matches(&asked.name, &rule.name))
                    .for_each(|rule| patterns.extend(if is_begin { rule.begins } else { rule.ends })),
            }
            patterns.iter().flat_map(|pattern| schema.matching(pattern)).collect()
        };
        let (begins, ends) = (classes(true), classes(false));
        let filter = |(option, filter): &(String, Filter)| {
            PairFilter::new(filter, &begins, &ends).map_err(|error| format!("{option}: {error}"))
        };
        let sink = Choice {
            names,
            reader,
            filters: asked.conditions.iter().map(filter).collect::<Result<_, _>>()?,
            slowest: asked.slowest,
            kept: BinaryHeap::new(),
            chosen: Chosen { slices: Vec::new(), count: 0, across_losses: 0 },
        };
        Ok(Chooser { timeline, sink })
    }

    /// Takes the next event.
    pub fn event(&mut self, event: &Event<'_>) {
        self.sink.note(event);
        self.timeline.event(event, &mut self.sink);
    }

    /// Takes the next event, which is not one of those that are asked about.
    pub fn pass(&mut self, event: &Event<'_>) {
        self.sink.note(event);
        self.timeline.pass(event, &mut self.sink);
    }

    /// Takes a notice. `time_ns`: the time that its stream has reached.
    pub fn notice(&mut self, notice: &Notice, time_ns: Option<i64>) {
        self.timeline.notice(notice, time_ns, &mut self.sink);
    }

    /// Returns the slices.
    pub fn finish(self) -> Chosen {
        let mut sink = self.sink;
        let mut kept: Vec<Ranked> = sink.kept.into_vec();
        match sink.slowest {
            Some(_) => kept.sort_by(Ord::cmp),
            None => kept.sort_by_key(|Ranked(_, slice)| slice.begin_ns),
        }
        sink.chosen.slices = kept.into_iter().map(|Ranked(_, slice)| slice).collect();
        sink.chosen
    }
}

impl Choice {
    fn note(&mut self, event: &Event<'_>) {
        if let Some(record) = event.state_record() {
            self.reader.writers.note(event, &record);
        }
    }
}

impl Sink for Choice {
    type Kept = Option<Box<Kept>>;

    fn kept_bytes(kept: &Self::Kept) -> usize {
        kept.as_ref().map_or(0, |kept| size_of::<Kept>() + kept.key.len() + kept.values.len() * size_of::<KeptValues>())
    }

    fn begin(&mut self, begin: &Begin<'_>) -> Self::Kept {
        let Choice { names, reader, filters, .. } = self;
        let (_, _, fields) = names[begin.name as usize].as_ref()?;
        let (event, mut key) = (begin.event, Vec::new());
        reader.picker.read(event);
        reader.put(fields, &mut key);
        let thread = reader.thread(event);
        let values = filters.iter_mut().map(|filter| filter.keep(event, &mut reader.writers)).collect();
        let event = (event.stream, std::ptr::from_ref(event.class).addr());
        Some(Box::new(Kept { thread, key: key.into(), values, event }))
    }

    fn end(&mut self, end: &End<'_>, kept: Self::Kept) {
        let Choice { names, reader, filters, slowest, kept: slices, chosen } = self;
        let (Some(kept), Some(event)) = (kept, end.event) else { return };
        let Some((name, pairing, _)) = &names[end.name as usize] else { return };
        let Kept { thread, key, values, event: begin } = *kept;
        let to = reader.thread(event);
        if end.doubt == Some(Doubt::Lost) {
            chosen.across_losses += 1;
            return;
        }
        let latency_ns = end.ns.abs_diff(end.begin_ns);
        let mut filters = filters.iter_mut().zip(&values);
        if !filters.all(|(filter, begin)| filter.wants(begin, latency_ns, event, &mut reader.writers)) {
            return;
        }
        chosen.count += 1;
        let rank = Reverse((slowest.map_or(0, |_| latency_ns), Reverse(end.begin_ns)));
        let max = slowest.unwrap_or(SLICES_MAX).min(SLICES_MAX);
        let is_among = slices.len() < max || slices.peek().is_some_and(|Ranked(last, _)| rank < *last);
        if !is_among || max == 0 {
            return;
        }
        let is_key = !pairing.is_by_thread && !pairing.fields.is_empty();
        let names = pairing.fields.iter().map(|field| field.strip_prefix("fields.").unwrap_or(field).to_string());
        let values = key::decode(&key, &[], reader.writers.processes(), false);
        slices.push(Ranked(
            rank,
            Slice {
                name: name.clone(),
                begin_ns: end.begin_ns,
                latency_ns,
                threads: [thread, to],
                key: if is_key { names.zip(values).collect() } else { Vec::new() },
                key_bytes: key,
                is_of_process: pairing.is_of_process,
                events: [begin, (event.stream, std::ptr::from_ref(event.class).addr())],
            },
        ));
        if slices.len() > max {
            slices.pop();
        }
    }

    fn track(&mut self, _: &Track<'_>) {}
    fn instant(&mut self, _: &Instant<'_>) {}
    fn counter(&mut self, _: &Counter) {}
    fn flow(&mut self, _: &Flow) {}
    fn loss(&mut self, _: &Loss) {}
}

/// Times at which threads worked on a slice.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// By thread: begins and ends in nanoseconds since the epoch, which do not overlap.
    times: HashMap<Thread, Vec<(i64, i64)>>,
    /// Whether the thread of its begin works on it until its end.
    pub is_of_thread: bool,
    /// Names of other slices, with the same key, that say so.
    pub names: BTreeSet<String>,
    /// Number of times that are left out, because there are too many.
    pub left_out: u64,
}

/// Finds the times at which threads worked on a slice. The caller must show it the events of the slice's time, in order.
#[derive(Debug)]
pub struct Windows<'s> {
    slice: &'s Slice,
    timeline: Timeline<Option<(Thread, u64)>>,
    sink: Finder,
    is_begun: bool,
    is_over: bool,
}

#[derive(Debug)]
struct Finder {
    names: Vec<String>,
    /// Name and encoded key of the slice.
    name: String,
    key: Box<[u8]>,
    /// The thread of the current event, the encoded values of the key's fields, and the number of those that it has.
    thread: Thread,
    values: Vec<u8>,
    values_count: usize,
    /// Number of events with other values so far, by thread.
    others: HashMap<Thread, u64>,
    /// Whether a slice is on a lane, by track.
    lanes: Vec<bool>,
    worked: Worked,
    /// Number of times that were found.
    count: usize,
}

impl Finder {
    /// Returns the number of events of the current thread with other values so far.
    fn others(&self) -> u64 {
        self.others.get(&self.thread).copied().unwrap_or(0)
    }

    fn work(&mut self, name: u32, begin_ns: i64, ns: i64) {
        let name = plain(&self.names[name as usize]);
        // Whether its own thread works on it is known at its end.
        if name == self.name {
            return;
        }
        if self.count >= SLICES_MAX {
            self.worked.left_out += 1;
            return;
        }
        self.count += 1;
        if !self.worked.names.contains(name) {
            self.worked.names.insert(name.to_string());
        }
        self.worked.times.entry(self.thread).or_default().push((begin_ns, ns));
    }
}

impl<'s> Windows<'s> {
    /// Creates a finder. `options`: as for [`Contents::new`].
    ///
    /// # Errors
    /// As for [`Timeline::new`].
    pub fn new(
        slice: &'s Slice,
        options: &Options,
        traces: &[&Trace],
        streams: &[(&str, usize)],
    ) -> Result<(Windows<'s>, SliceReader<'s>), String> {
        let timeline = Timeline::new(options, traces, streams.iter().copied())?;
        let reader = SliceReader::new(slice, streams);
        let sink = Finder {
            names: timeline.names().iter().map(|name| name.text.clone()).collect(),
            name: slice.name.clone(),
            key: slice.key_bytes.clone(),
            thread: slice.threads[0],
            values: Vec::new(),
            values_count: 0,
            others: HashMap::new(),
            lanes: Vec::new(),
            worked: Worked { is_of_thread: slice.threads[0] == slice.threads[1], ..Worked::default() },
            count: 0,
        };
        Ok((Windows { slice, timeline, sink, is_begun: false, is_over: false }, reader))
    }

    /// Takes the next event. Returns which end of the slice it is, if it is one.
    pub fn event(&mut self, event: &Event<'_>, reader: &mut SliceReader<'_>) -> Option<PairEnd> {
        let end = self.slice.end_of(event);
        self.is_begun |= end == Some(PairEnd::Begin);
        if !self.is_begun || self.is_over {
            return None;
        }
        self.is_over = end == Some(PairEnd::End);
        if !self.slice.key.is_empty() {
            let sink = &mut self.sink;
            sink.thread = reader.reader.thread(event);
            sink.values_count = reader.read(event, &mut sink.values);
            if sink.values_count > 0 && *sink.values != *sink.key {
                *sink.others.entry(sink.thread).or_default() += 1;
                sink.worked.is_of_thread &= sink.thread != self.slice.threads[0];
            }
            self.timeline.event(event, sink);
        }
        end
    }

    /// Returns the times.
    pub fn finish(self) -> Worked {
        let Windows { slice, timeline, mut sink, .. } = self;
        timeline.finish(&mut sink);
        let mut worked = sink.worked;
        if worked.is_of_thread {
            worked.times.entry(slice.threads[0]).or_default().push((slice.begin_ns, slice.end_ns()));
        }
        for times in worked.times.values_mut() {
            times.sort_unstable();
            times.dedup_by(|next, before| {
                let is_joined = next.0 <= before.1;
                before.1 = if is_joined { before.1.max(next.1) } else { before.1 };
                is_joined
            });
        }
        worked
    }
}

impl Sink for Finder {
    /// Thread of a begin with the key, and number of events of the thread with other values before.
    type Kept = Option<(Thread, u64)>;

    fn begin(&mut self, _: &Begin<'_>) -> Self::Kept {
        (*self.values == *self.key).then(|| (self.thread, self.others()))
    }

    fn end(&mut self, end: &End<'_>, kept: Self::Kept) {
        // No event is within a call that has one event.
        let Some((from, others)) = kept.filter(|_| !end.is_call) else { return };
        let is_on_lane = self.lanes[end.track as usize];
        if end.event.is_none() {
            // It ends after the slice. Where a slice on a lane ends is unknown.
            if !is_on_lane {
                self.thread = from;
                self.work(end.name, end.begin_ns, end.ns);
            }
            return;
        }
        let is_alone = !is_on_lane || others == self.others();
        let is_same = self.values_count == 0 || *self.values == *self.key;
        if is_same && is_alone && from == self.thread {
            self.work(end.name, end.begin_ns, end.ns);
        }
    }

    fn track(&mut self, track: &Track<'_>) {
        self.lanes.resize(self.lanes.len().max(track.id as usize + 1), false);
        self.lanes[track.id as usize] = matches!(track.kind, TrackKind::Lane { .. });
    }

    fn instant(&mut self, _: &Instant<'_>) {}
    fn counter(&mut self, _: &Counter) {}
    fn flow(&mut self, _: &Flow) {}
    fn loss(&mut self, _: &Loss) {}
}

/// A reader of threads and of the key's fields.
#[derive(Debug)]
pub struct SliceReader<'s> {
    slice: &'s Slice,
    reader: Reader,
    fields: Vec<usize>,
}

impl<'s> SliceReader<'s> {
    fn new(slice: &'s Slice, streams: &[(&str, usize)]) -> SliceReader<'s> {
        let mut reader = Reader { traces: streams.iter().map(|(_, trace)| *trace).collect(), ..Reader::default() };
        let fields = slice.key.iter().map(|(name, _)| reader.picker.want(name)).collect();
        SliceReader { slice, reader, fields }
    }

    /// Reads the values of the key. Returns the number of those that the event has; 0 if it is of another process.
    fn read(&mut self, event: &Event<'_>, values: &mut Vec<u8>) -> usize {
        let (thread, of) = (self.reader.thread(event), self.slice.threads[0]);
        self.reader.picker.read(event);
        let count = self.reader.put(&self.fields, values);
        if self.slice.is_of_process && (thread.trace, thread.pid) != (of.trace, of.pid) {
            values.clear();
            return 0;
        }
        count
    }
}

/// An event of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Time since the slice's begin, in nanoseconds.
    pub since_ns: u64,
    /// Number of slices that enclose it on its thread since the slice's begin.
    pub depth: u32,
    /// Name and duration in nanoseconds of what it ends: of several, the shortest.
    pub ended: Option<(String, u64)>,
}

/// Finds the events that belong to a slice. The caller must show it the events of the slice's time, in order.
#[derive(Debug)]
pub struct Contents<'s> {
    slice: &'s Slice,
    worked: Worked,
    reader: SliceReader<'s>,
    timeline: Timeline<()>,
    sink: Depths,
    is_begun: bool,
    is_over: bool,
    values: Vec<u8>,
}

#[derive(Debug, Default)]
struct Depths {
    /// Number of open slices, by track; `None` if it is a lane.
    open: Vec<Option<u32>>,
    /// Depth of the current event, and what it ends: index of the name and duration in nanoseconds.
    depth: Option<u32>,
    ended: Option<(u32, u64)>,
}

impl<'s> Contents<'s> {
    /// `options`: pairs, and keys that were found for them; `worked`: what [`Windows`] has found.
    ///
    /// # Errors
    /// As for [`Timeline::new`].
    pub fn new(
        slice: &'s Slice,
        worked: Worked,
        options: &Options,
        traces: &[&Trace],
        streams: &[(&str, usize)],
    ) -> Result<Contents<'s>, String> {
        Ok(Contents {
            slice,
            worked,
            reader: SliceReader::new(slice, streams),
            timeline: Timeline::new(options, traces, streams.iter().copied())?,
            sink: Depths::default(),
            is_begun: false,
            is_over: false,
            values: Vec::new(),
        })
    }

    /// Takes the next event. Returns its part in the slice, if it belongs to it.
    pub fn event(&mut self, event: &Event<'_>) -> Option<Part> {
        let ns = event.time_ns?;
        let end = self.slice.end_of(event);
        self.is_begun |= end == Some(PairEnd::Begin);
        if !self.is_begun || self.is_over {
            return None;
        }
        self.is_over = end == Some(PairEnd::End);
        (self.sink.depth, self.sink.ended) = (None, None);
        self.timeline.event(event, &mut self.sink);
        let thread = self.reader.reader.thread(event);
        let is_within = |times: &Vec<(i64, i64)>| {
            let next = times.partition_point(|(begin_ns, _)| *begin_ns <= ns);
            next > 0 && times[next - 1].1 >= ns
        };
        let is_part = end.is_some()
            || self.worked.times.get(&thread).is_some_and(is_within)
            || !self.slice.key.is_empty()
                && self.reader.read(event, &mut self.values) > 0
                && *self.values == *self.slice.key_bytes;
        let (depth, ended) = (self.sink.depth.unwrap_or(0), self.sink.ended);
        let since_ns = ns.abs_diff(self.slice.begin_ns);
        let ended = match end {
            // The names of the timeline need not have this one.
            Some(PairEnd::End) => Some((self.slice.name.clone(), self.slice.latency_ns)),
            _ => ended.map(|(name, ns)| (self.timeline.names()[name as usize].text.clone(), ns)),
        };
        is_part.then_some(Part { since_ns, depth, ended })
    }
}

impl Depths {
    fn open(&mut self, track: u32) -> Option<&mut u32> {
        self.open.get_mut(track as usize)?.as_mut()
    }
}

impl Sink for Depths {
    type Kept = ();

    fn begin(&mut self, begin: &Begin<'_>) {
        if let Some(open) = self.open(begin.track) {
            let depth = *open;
            *open += 1;
            self.depth.get_or_insert(depth);
        }
    }

    fn end(&mut self, end: &End<'_>, (): ()) {
        if let Some(open) = self.open(end.track) {
            *open = open.saturating_sub(1);
            let depth = *open;
            self.depth = Some(depth);
        }
        let ns = end.ns.abs_diff(end.begin_ns);
        if self.ended.is_none_or(|(_, shortest_ns)| ns < shortest_ns) {
            self.ended = Some((end.name, ns));
        }
    }

    fn track(&mut self, track: &Track<'_>) {
        self.open.resize(self.open.len().max(track.id as usize + 1), None);
        let is_lane = matches!(track.kind, TrackKind::Lane { .. });
        let open = &mut self.open[track.id as usize];
        *open = (!is_lane).then_some(open.unwrap_or(0));
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        let open = self.open(instant.track).copied();
        self.depth = self.depth.or(open);
    }

    fn counter(&mut self, _: &Counter) {}
    fn flow(&mut self, _: &Flow) {}
    fn loss(&mut self, _: &Loss) {}
}
