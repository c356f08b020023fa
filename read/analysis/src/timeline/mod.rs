//! A trace as a picture shows it: tracks, and what is on them, in one pass over the events in the order of time.
//!
//! ```text
//!   events ──▶ Kind of the class ──▶ begins or ends ──▶ Begin, End      on the track of the thread, or (Pairs) on a lane
//!   (table of rules, given pairs) ──▶ counts ─────────────────▶ Counter
//!                                 ──▶ anything else ──────────▶ Instant
//!   notices ──▶ losses ──▶ Pairs                             ──▶ Loss
//! ```
//!
//! What is a slice says a table (`rules`): names such as `X_begin` and `X_end`, if the trace has both classes. Slices of a thread are paired by thread
//! and name; each is as deep as slices are open on its track. They need not lie in one another: one can end while others are open that have begun
//! within it ([`End::above`]). Slices with a key are on lanes of their process, on which none overlap, and their events are instants of their threads
//! too. If they begin on one thread and end on another, there is a [`Flow`].
//!
//! # Memory
//! As that of pairs, of tracks (2^20), of lanes (4,096 of one name and process), of depth (4,096), and what [`Timeline::limit`] says. What is beyond
//! is counted.

mod room;
mod rules;
mod tracks;

pub use rules::{NameText, SliceRule, slice_rules};
pub use tracks::{Track, TrackKind};

use std::collections::HashMap;
use std::sync::Arc;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_ctf::hash::Recent;
use dormouse_ctf::{Event, Notice, Problem, Selection, StateRecord, Trace, Writers};
use serde::Serialize;

use crate::distribution::Number;
use crate::key;
use crate::pair::{KnownLosses, Pairs};
use crate::pick::{Picker, Said};
use room::Room;
use rules::{Bound, Part, Role};
use tracks::{Begun, Ended, Slice, Tracks};

/// What is asked for besides what the table of rules says.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Patterns of classes that begin and that end; what they match, the table says nothing of.
    pub pairs: Vec<(String, String)>,
    /// What both ends of these have in common: fields, `pid`, `tid`, `cpu`. Without any: the thread.
    pub key: Vec<String>,
    /// Patterns of classes, and a field of them whose values are drawn.
    pub counters: Vec<(String, String)>,
}

/// The begin of a slice.
#[derive(Debug)]
pub struct Begin<'a> {
    /// From 1 on.
    pub id: u64,
    /// On which it is.
    pub track: u32,
    /// By its index among [`Timeline::names`].
    pub name: u32,
    /// How many slices it lies in.
    pub depth: u32,
    /// Nanoseconds since the epoch.
    pub ns: i64,
    /// On which the event is.
    pub cpu: Option<u32>,
    /// Whose fields it has.
    pub event: &'a Event<'a>,
}

/// The end of a slice.
#[derive(Debug)]
pub struct End<'a> {
    /// Of the slice.
    pub id: u64,
    /// That of the begin.
    pub track: u32,
    /// That of the begin.
    pub name: u32,
    /// That of the begin.
    pub depth: u32,
    /// Nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Nanoseconds since the epoch; of a slice that is open at the end of the trace the time of the last event.
    pub ns: i64,
    /// How many slices are still open that have begun on the track within this one.
    pub above: u32,
    /// False: events were lost between begin and end, so that the end can be that of another slice.
    pub is_believed: bool,
    /// On which the event is.
    pub cpu: Option<u32>,
    /// Whose fields it has; `None`: the slice is open at the end of the trace.
    pub event: Option<&'a Event<'a>>,
}

/// An event that is neither begin nor end of a slice on its track.
#[derive(Debug)]
pub struct Instant<'a> {
    /// Of the thread, of the CPU where the thread is not known, or of the trace.
    pub track: u32,
    /// Of the class.
    pub name: u32,
    /// Nanoseconds since the epoch.
    pub ns: i64,
    /// On which it is.
    pub cpu: Option<u32>,
    /// Whose fields it has.
    pub event: &'a Event<'a>,
    /// What it is besides.
    pub what: What,
}

/// What an instant is besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Nothing.
    Plain,
    /// It ends something that has begun before the trace, or whose begin was lost.
    EndAlone,
    /// It begins a slice of a lane, with this id.
    Begins(u64),
    /// It ends a slice of a lane on the thread on which it has begun.
    Ends(u64),
    /// It ends a slice of a lane that has begun on another thread.
    EndsElsewhere(u64),
}

/// From one track to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Of the slice.
    pub id: u64,
    /// That of the slice.
    pub name: u32,
    /// Track, and nanoseconds since the epoch.
    pub from: (u32, i64),
    /// Track, and nanoseconds since the epoch.
    pub to: (u32, i64),
}

/// A value of a counter from now on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counter {
    /// Of the counter.
    pub track: u32,
    /// Nanoseconds since the epoch.
    pub ns: i64,
    /// The value.
    pub value: Number,
}

/// Events were lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Of the stream.
    pub track: u32,
    /// Not before, nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Not after, nanoseconds since the epoch.
    pub end_ns: i64,
    /// How many events, where that is known.
    pub count: Option<u64>,
    /// What the stream says.
    pub text: String,
}

/// Is handed what a timeline consists of, in the order of the events. Losses come when they are known, which is behind their begin.
pub trait Sink {
    /// What is kept of a begin until its end comes.
    type Kept;

    /// Memory that it has beside its own size.
    fn kept_bytes(_: &Self::Kept) -> usize {
        0
    }

    /// A track that is new, or that has another name.
    fn track(&mut self, track: &Track<'_>);
    /// A slice begins.
    fn begin(&mut self, begin: &Begin<'_>) -> Self::Kept;
    /// It ends.
    fn end(&mut self, end: &End<'_>, kept: Self::Kept);
    /// Something happened.
    fn instant(&mut self, instant: &Instant<'_>);
    /// A counter has a value.
    fn counter(&mut self, counter: &Counter);
    /// Something went on elsewhere; comes before the instant at its end.
    fn flow(&mut self, flow: &Flow);
    /// Events were lost.
    fn loss(&mut self, loss: &Loss);
}

/// How much there was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Events, but for the session owner's.
    pub events: u64,
    /// Slices with a begin and an end.
    pub slices: u64,
    /// Slices that are open at the end.
    pub slices_unfinished: u64,
    /// Instants.
    pub instants: u64,
    /// Values of counters.
    pub counter_values: u64,
    /// Slices that begin on one thread and end on another.
    pub flows: u64,
    /// Places at which events were lost.
    pub losses: u64,
    /// Events that were lost there, as far as they are counted.
    pub events_lost: u64,
    /// Ends without a begin: instants.
    pub ends_unpaired: u64,
    /// Slices between whose ends events can have been lost.
    pub slices_across_losses: u64,
    /// Begins and ends that do not say what they belong to: instants.
    pub events_without_key: u64,
    /// Begins that were not followed, because too many slices were open: instants.
    pub begins_not_followed: u64,
    /// Slices that an export shows up to the end of another alone, because too many overlap.
    pub slices_cut: u64,
    /// Events that an export of spans has not, because they lie in none.
    pub events_outside: u64,
    /// Events without a time, which are nowhere.
    pub events_without_time: u64,
    /// Events of threads, processes and CPUs for whose tracks there was no memory: they are on the track of their process, or on the first one.
    pub events_on_other_tracks: u64,
    /// Names of processes for which there was no memory.
    pub names_not_kept: u64,
    /// Slices for whose stacks an export of stacks had no memory: their time is that of what they are in, or of nothing.
    pub slices_without_stack: u64,
    /// Slices and instants that a report has not, not in its tables either, because they have no room in its memory.
    pub items_not_kept: u64,
}

/// A slice of a lane, which waits for its end.
#[derive(Debug, Clone)]
struct Open<K> {
    id: u64,
    track: u32,
    /// The number of the lane, and the track of the event.
    lane: u32,
    from: u32,
    kept: K,
}

#[derive(Debug, Clone)]
struct Stream {
    name: String,
    trace: usize,
    last_ns: Option<i64>,
    /// Since when, and what it says.
    halted: Option<(i64, String)>,
    /// The track of the event before, with what it says of its writer.
    last: Option<((u32, u32), u32)>,
}

/// A timeline as far as it has come. It is to be shown all events of the traces in the order of time, and all notices where they come.
#[derive(Debug)]
pub struct Timeline<K> {
    bound: Arc<Bound>,
    conditions: Vec<Selection>,
    picker: Picker,
    streams: Vec<Stream>,
    tracks: Tracks<K>,
    writers: Writers,
    /// By trace and the session's number of the process.
    joined: HashMap<(usize, u32), u32>,
    /// Of lanes; those of threads are on their tracks.
    pairs: Pairs<Box<[u8]>, Open<K>>,
    slices: u64,
    last_ns: i64,
    totals: Totals,
    key: Vec<u8>,
    /// For slices that are open.
    room: Room,
    /// Of [`Bound::kind_by_class`].
    recent: Recent,
}

#[inline(always)]
fn size_of_kept<S: Sink>(_: &S, kept: &S::Kept) -> usize {
    S::kept_bytes(kept)
}

/// What is kept of a process that a session tells of.
const PROCESS_BYTES: usize = 96;
/// What a sink has of a slice that is open, and writes of it at the end.
const SINK_BYTES: usize = 256;

/// Where an event is.
#[derive(Clone, Copy)]
struct Place {
    trace: usize,
    ns: i64,
    cpu: Option<u32>,
    track: u32,
    has_thread: bool,
}

impl<K> Timeline<K> {
    /// Begins. `streams`: their names, and which of the traces each is of.
    ///
    /// # Errors
    /// What the traces have not, and what is the nearest.
    pub fn new<'s>(
        options: &Options,
        traces: &[&Trace],
        streams: impl IntoIterator<Item = (&'s str, usize)>,
    ) -> Result<Timeline<K>, String> {
        let mut picker = Picker::default();
        let bound = Bound::new(options, traces, &mut picker)?;
        let stream =
            |(name, trace): (&str, usize)| Stream { name: name.into(), trace, last_ns: None, halted: None, last: None };
        Ok(Timeline {
            conditions: bound.selections(),
            bound: Arc::new(bound),
            picker,
            streams: streams.into_iter().map(stream).collect(),
            tracks: Tracks::default(),
            writers: Writers::default(),
            joined: HashMap::new(),
            pairs: Pairs::new(),
            slices: 0,
            last_ns: i64::MIN,
            totals: Totals::default(),
            key: Vec::new(),
            room: Room::new(usize::MAX),
            recent: Recent::default(),
        })
    }

    /// Has it keep no more than so many bytes: half of it of open slices, three eighths of tracks, the rest of names of processes. Begins beyond it are
    /// not followed, and the events of tracks beyond it are on others. It is to be called before the first event.
    pub fn limit(&mut self, bytes: usize) {
        self.room = Room::new(bytes / 2);
        self.tracks.limit(bytes / 8 * 3);
        self.writers.limit(bytes / 8);
    }

    /// All names that items can have: they have them by their index.
    pub fn names(&self) -> &[NameText] {
        &self.bound.names
    }

    /// The next event, if it is not one that is asked for: it only says how far the time has come, and whose later events are.
    pub fn pass(&mut self, event: &Event<'_>, sink: &mut impl Sink<Kept = K>) {
        if let Some(record) = StateRecord::decode(event) {
            return self.state(event, &record, sink);
        }
        if let Some(ns) = event.time_ns {
            let stream = &mut self.streams[event.stream];
            stream.last_ns = Some(ns);
            self.last_ns = self.last_ns.max(ns);
            if let Some((since_ns, text)) = stream.halted.take() {
                let trace = stream.trace;
                [trace, KEYED].iter().for_each(|domain| self.pairs.goes_on(*domain, event.stream, ns));
                self.lose(event.stream, since_ns, ns, None, text, sink);
            }
        }
    }

    /// The next event, if it is of a thread that has been seen, and of a class that needs no look at its fields; false: it is to be given to
    /// [`Timeline::event`].
    ///
    /// Most events are such. As long as what is called here is compiled into the caller, nothing of the event is put together that a sink does not ask
    /// for.
    #[inline(always)]
    pub fn quick(&mut self, event: &Event<'_>, sink: &mut impl Sink<Kept = K>) -> bool {
        let (Some(ns), Some(who), false) = (event.time_ns, event.context, event.is_state()) else { return false };
        let Some(index) = self.recent.get(std::ptr::from_ref(event.class).addr(), || None) else { return false };
        let Some(kind) = self.bound.kinds.get(index as usize).filter(|kind| !kind.is_picked) else { return false };
        let Some(stream) = self.streams.get_mut(event.stream).filter(|stream| stream.halted.is_none()) else {
            return false;
        };
        let Some((_, track)) = stream.last.filter(|(last, _)| *last == who) else { return false };
        let cpu = Some(event.cpu_id).filter(|cpu| *cpu != CPU_UNKNOWN);
        match kind.roles.as_slice() {
            [] => {
                self.totals.instants += 1;
                sink.instant(&Instant { track, name: kind.name, ns, cpu, event, what: What::Plain });
            }
            [Role { is_begin: true, only: None, name, pair, .. }] => {
                let bytes = SINK_BYTES + 2 * size_of::<Slice<K>>();
                let Some(depth) = self.tracks.depth(track).filter(|_| self.pairs.can_begin()) else { return false };
                if !self.room.take(bytes) {
                    return false;
                }
                self.slices += 1;
                let (id, name) = (self.slices, *name);
                let kept = sink.begin(&Begin { id, track, name, depth, ns, cpu, event });
                self.room.force(size_of_kept(sink, &kept));
                self.pairs.begun();
                self.tracks.begin(track, Slice { id, name, begin: Some(Begun { pair: *pair, ns, kept }) });
            }
            [Role { is_begin: false, pair, .. }] => {
                let Some((depth, id, name, begin)) = self.tracks.end_innermost(track, *pair) else { return false };
                self.totals.slices += 1;
                let is_believed = self.pairs.ended(stream.trace, begin.ns, ns);
                self.room.give(SINK_BYTES + 2 * size_of::<Slice<K>>() + size_of_kept(sink, &begin.kept));
                let (begin_ns, event) = (begin.ns, Some(event));
                let end = End { id, track, name, depth, begin_ns, ns, above: 0, is_believed, cpu, event };
                sink.end(&end, begin.kept);
            }
            _ => return false,
        }
        stream.last_ns = Some(ns);
        self.last_ns = self.last_ns.max(ns);
        self.totals.events += 1;
        true
    }

    /// The next event.
    pub fn event(&mut self, event: &Event<'_>, sink: &mut impl Sink<Kept = K>) {
        self.pass(event, sink);
        if event.is_state() {
            return;
        }
        self.totals.events += 1;
        let Some(ns) = event.time_ns else {
            self.totals.events_without_time += 1;
            return;
        };
        let address = std::ptr::from_ref(event.class).addr();
        let known = &self.bound.kind_by_class;
        let Some(index) = self.recent.get(address, || known.get(&address).map(|index| *index as u32)) else { return };
        let index = index as usize;
        let kind = &self.bound.kinds[index];
        let (name, role_count, is_picked) = (kind.name, kind.roles.len(), kind.is_picked);
        let place = self.place(event, ns, sink);
        if is_picked {
            self.picker.read(event);
            self.count(index, &place, sink);
        }
        let mut what = Some(What::Plain);
        for role in 0..role_count {
            let role = self.bound.kinds[index].roles[role];
            what = match role.is_begin {
                true => self.begin(event, role, &place, sink),
                false => self.end(event, role, &place, sink),
            };
        }
        if let Some(what) = what {
            self.totals.instants += 1;
            sink.instant(&Instant { track: place.track, name, ns, cpu: place.cpu, event, what });
        }
    }

    /// Where an event is.
    #[inline]
    fn place(&mut self, event: &Event<'_>, ns: i64, sink: &mut impl Sink<Kept = K>) -> Place {
        let stream = &self.streams[event.stream];
        let trace = stream.trace;
        let cpu = Some(event.cpu_id).filter(|cpu| *cpu != CPU_UNKNOWN);
        if let (Some((who, track)), Some(context)) = (stream.last, event.context)
            && who == context
        {
            return Place { trace, ns, cpu, track, has_thread: true };
        }
        self.find_place(event, trace, ns, cpu, sink)
    }

    fn find_place(
        &mut self,
        event: &Event<'_>,
        trace: usize,
        ns: i64,
        cpu: Option<u32>,
        sink: &mut impl Sink<Kept = K>,
    ) -> Place {
        let writer = self.writers.of(event);
        let name = writer.name.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let tracks = &mut self.tracks;
        let mut at = |parent: Option<u32>, kind: TrackKind, name: &str| {
            tracks.at(trace, parent, kind, |id| sink.track(&Track { id, parent, trace, kind, name }))
        };
        let process = writer.pid.map(|pid| at(None, TrackKind::Process { pid }, &name));
        let track = match (writer.tid, process, cpu) {
            (Some(tid), process, _) => at(process, TrackKind::Thread { pid: writer.pid, tid }, ""),
            (None, Some(process), _) => process,
            (None, None, Some(cpu)) => at(None, TrackKind::Cpu { cpu }, ""),
            (None, None, None) => at(None, TrackKind::Trace, ""),
        };
        let has_thread = writer.tid.is_some();
        // Each event of a thread without a track is counted.
        let is_elsewhere = std::mem::take(&mut self.tracks.is_elsewhere);
        self.totals.events_on_other_tracks += u64::from(is_elsewhere);
        let known = event.context.filter(|_| has_thread && !is_elsewhere);
        self.streams[event.stream].last = known.map(|who| (who, track));
        Place { trace, ns, cpu, track, has_thread }
    }

    fn count(&mut self, kind: usize, place: &Place, sink: &mut impl Sink<Kept = K>) {
        let kind = &self.bound.kinds[kind];
        let parent = self.tracks.parent(place.track).or(Some(place.track));
        for (index, name) in &kind.counters {
            let Some(value) = self.picker.cell(*index).number else { continue };
            let (kind, text) = (TrackKind::Counter { name: *name }, &self.bound.names[*name as usize].text);
            let announce = |id| sink.track(&Track { id, parent, trace: place.trace, kind, name: text });
            let track = self.tracks.at(place.trace, parent, kind, announce);
            self.totals.counter_values += 1;
            sink.counter(&Counter { track, ns: place.ns, value });
        }
    }

    /// Reads the key of an event; false: it has none.
    fn read_key(&mut self, index: usize, role: Role, event: &Event<'_>) -> bool {
        let bytes = &mut self.key;
        bytes.clear();
        key::put_class(role.pair, bytes);
        for part in &self.bound.keys[index].parts {
            match part {
                Part::Cpu => key::put_cpu(event.cpu_id, bytes),
                Part::Pid | Part::Tid => {
                    let writer = self.writers.of(event);
                    let id = if *part == Part::Pid { writer.pid } else { writer.tid };
                    key::put_id(id.and_then(|id| u32::try_from(id).ok()), bytes);
                }
                Part::Field(field) => match self.picker.cell(*field) {
                    cell if cell.said == Said::Nothing => return false,
                    cell => key::put_cell(cell, bytes),
                },
            }
        }
        true
    }

    /// Whether an event says what it belongs to.
    #[inline]
    fn has_key(&mut self, role: Role, place: &Place, event: &Event<'_>) -> bool {
        let has_key = role.key.map_or(place.has_thread, |index| self.read_key(index, role, event));
        self.totals.events_without_key += u64::from(!has_key);
        has_key
    }

    /// Gives what the event is besides, if it is not the begin of a slice on its own track.
    #[inline]
    fn begin(&mut self, event: &Event<'_>, role: Role, place: &Place, sink: &mut impl Sink<Kept = K>) -> Option<What> {
        if let Some(only) = role.only
            && !self.conditions[only].wants(event, &mut self.writers)
        {
            return Some(What::Plain);
        }
        if !self.has_key(role, place, event) || !self.pairs.has_room() {
            return Some(What::Plain);
        }
        let open_bytes = self.open_bytes(role.key.is_some());
        if !self.room.take(open_bytes) {
            self.pairs.unpaired.not_followed += 1;
            return Some(What::Plain);
        }
        let (mut track, mut lane) = (place.track, None);
        if role.key.is_some() {
            let Some((lane_track, number)) = self.lane(role, place, sink) else {
                self.room.give(open_bytes);
                self.pairs.unpaired.not_followed += 1;
                return Some(What::Plain);
            };
            (track, lane) = (lane_track, Some(number));
        }
        let Some(depth) = self.tracks.depth(track) else {
            self.room.give(open_bytes);
            self.pairs.unpaired.not_followed += 1;
            return Some(What::Plain);
        };
        self.slices += 1;
        let (id, name, ns) = (self.slices, role.name, place.ns);
        let kept = self.begun(sink, &Begin { id, track, name, depth, ns, cpu: place.cpu, event });
        let Some(lane) = lane else {
            self.pairs.begun();
            self.tracks.begin(track, Slice { id, name, begin: Some(Begun { pair: role.pair, ns, kept }) });
            return None;
        };
        self.tracks.begin(track, Slice { id, name, begin: None });
        let open = Open { id, track, lane, from: place.track, kept };
        self.pairs.begin(self.key.as_slice().into(), ns, open);
        Some(What::Begins(id))
    }

    fn begun<S: Sink<Kept = K>>(&mut self, sink: &mut S, begin: &Begin<'_>) -> K {
        let kept = sink.begin(begin);
        self.room.force(S::kept_bytes(&kept));
        kept
    }

    /// What one slice more takes while it is open; of slices with a key, of those with the one at hand.
    #[inline]
    fn open_bytes(&self, has_key: bool) -> usize {
        // A vector has room for twice as much, a map for more.
        let keyed = 3 * size_of::<(Box<[u8]>, Vec<(i64, Open<K>)>, (i64, Open<K>))>() + 32;
        SINK_BYTES + 2 * size_of::<Slice<K>>() + if has_key { keyed + self.key.len() } else { 0 }
    }

    #[inline]
    fn ended<S: Sink<Kept = K>>(&mut self, _: &S, kept: &K, has_key: bool) {
        self.room.give(self.open_bytes(has_key) + S::kept_bytes(kept));
    }

    /// A lane without an open slice, and its number.
    fn lane(&mut self, role: Role, place: &Place, sink: &mut impl Sink<Kept = K>) -> Option<(u32, u32)> {
        let parent = self.tracks.parent(place.track).or(Some(place.track));
        let number = self.tracks.take_lane(parent, role.pair)?;
        let (kind, name) = (TrackKind::Lane { name: role.pair, number }, &self.bound.names[role.pair as usize]);
        let announce = |id| sink.track(&Track { id, parent, trace: place.trace, kind, name: &name.text });
        Some((self.tracks.at(place.trace, parent, kind, announce), number))
    }

    /// Gives what the event is besides, if it is not the end of a slice on its own track.
    #[inline]
    fn end(&mut self, event: &Event<'_>, role: Role, place: &Place, sink: &mut impl Sink<Kept = K>) -> Option<What> {
        if !self.has_key(role, place, event) {
            return Some(What::Plain);
        }
        let Place { ns, cpu, .. } = *place;
        if role.key.is_none() {
            let is_it = |slice: &Slice<K>| slice.begin.as_ref().is_some_and(|begin| begin.pair == role.pair);
            let Some(Ended { slice: Slice { id, name, begin: Some(begin) }, depth, above }) =
                self.tracks.end(place.track, is_it)
            else {
                self.pairs.unpaired.ends += 1;
                return Some(What::EndAlone);
            };
            self.totals.slices += 1;
            let (track, begin_ns, event) = (place.track, begin.ns, Some(event));
            let is_believed = self.pairs.ended(place.trace, begin_ns, ns);
            self.ended(sink, &begin.kept, false);
            sink.end(&End { id, track, name, depth, begin_ns, ns, above, is_believed, cpu, event }, begin.kept);
            return None;
        }
        let Some(pair) = self.pairs.end(KEYED, self.key.as_slice(), ns) else { return Some(What::EndAlone) };
        self.totals.slices += 1;
        let Open { id, track, lane, from, kept } = pair.kept;
        let (begin_ns, is_believed) = (pair.begin_ns, pair.is_believed);
        self.ended(sink, &kept, true);
        // It is there until here.
        let Ended { slice: Slice { name, .. }, depth, above } = self.tracks.end(track, |slice| slice.id == id)?;
        sink.end(&End { id, track, name, depth, begin_ns, ns, above, is_believed, cpu, event: Some(event) }, kept);
        self.tracks.give_lane(self.tracks.parent(track), role.pair, lane);
        if from == place.track {
            return Some(What::Ends(id));
        }
        self.totals.flows += 1;
        sink.flow(&Flow { id, name, from: (from, begin_ns), to: (place.track, ns) });
        Some(What::EndsElsewhere(id))
    }

    fn state(&mut self, event: &Event<'_>, record: &StateRecord<'_>, sink: &mut impl Sink<Kept = K>) {
        self.writers.note(event, record);
        let trace = self.streams[event.stream].trace;
        let named = match *record {
            StateRecord::Process { process, vpid, name, .. } => {
                if !self.joined.contains_key(&(trace, process)) && self.room.take(PROCESS_BYTES) {
                    self.joined.insert((trace, process), vpid);
                }
                Some((vpid, name))
            }
            StateRecord::ProcessName { process, name } => self.joined.get(&(trace, process)).map(|vpid| (*vpid, name)),
            _ => None,
        };
        if let Some((vpid, name)) = named
            && let Some(id) = self.tracks.process(trace, vpid.into())
        {
            sink.track(&Track { id, parent: None, trace, kind: TrackKind::Process { pid: vpid.into() }, name });
        }
    }

    /// A notice. `time_ns`: to where its stream has come.
    pub fn notice(&mut self, notice: &Notice, time_ns: Option<i64>, sink: &mut impl Sink<Kept = K>) {
        let stream = &mut self.streams[notice.stream];
        let since_ns = stream.last_ns;
        let (begin, end, count) = match notice.problem {
            Problem::Discarded { count, begin_ns, end_ns } => {
                (begin_ns.or(since_ns), Some(end_ns.unwrap_or(i64::MAX)), Some(count))
            }
            _ => (since_ns, None, None),
        };
        let domains = [stream.trace, KEYED];
        let known_ns = begin.or(time_ns).or(end).unwrap_or(self.last_ns);
        if end.is_none() && stream.halted.is_none() {
            stream.halted = Some((known_ns, notice.to_string()));
        }
        for domain in domains {
            self.pairs.lost(domain, notice.stream, begin.unwrap_or(i64::MIN), end);
        }
        if let Some(end) = end {
            let end_ns = if end == i64::MAX { time_ns.unwrap_or(known_ns) } else { end };
            self.lose(notice.stream, known_ns, end_ns, count, notice.to_string(), sink);
        }
    }

    fn lose(
        &mut self,
        stream: usize,
        begin_ns: i64,
        end_ns: i64,
        count: Option<u64>,
        text: String,
        sink: &mut impl Sink<Kept = K>,
    ) {
        let Stream { name, trace, .. } = &self.streams[stream];
        let (trace, kind) = (*trace, TrackKind::Losses { stream: stream as u32 });
        let announce = |id| sink.track(&Track { id, parent: None, trace, kind, name });
        let track = self.tracks.at(trace, None, kind, announce);
        self.totals.losses += 1;
        self.totals.events_lost = self.totals.events_lost.saturating_add(count.unwrap_or(0));
        sink.loss(&Loss { track, begin_ns, end_ns: end_ns.max(begin_ns), count, text });
    }

    /// The end of the trace: hands out the ends of what is open.
    pub fn finish(mut self, sink: &mut impl Sink<Kept = K>) -> Totals {
        for stream in 0..self.streams.len() {
            if let Some((since_ns, text)) = self.streams[stream].halted.take() {
                self.lose(stream, since_ns, self.last_ns, None, text, sink);
            }
        }
        let (unpaired, keyed) = self.pairs.finish();
        let mut keyed: HashMap<u64, (i64, K)> =
            keyed.map(|(begin_ns, open)| (open.id, (begin_ns, open.kept))).collect();
        let mut open: Vec<(u32, u64)> = self.tracks.open().collect();
        // The innermost ends first.
        open.sort_by_key(|(_, id)| std::cmp::Reverse(*id));
        for (track, id) in open {
            let ended = self.tracks.end(track, |slice| slice.id == id);
            let Some(Ended { slice: Slice { name, begin, .. }, depth, above }) = ended else { continue };
            let begun = begin.map(|begin| (begin.ns, begin.kept)).or_else(|| keyed.remove(&id));
            let Some((begin_ns, kept)) = begun else { continue };
            let (ns, is_believed) = (self.last_ns.max(begin_ns), true);
            sink.end(&End { id, track, name, depth, begin_ns, ns, above, is_believed, cpu: None, event: None }, kept);
        }
        Totals {
            names_not_kept: self.writers.names_not_kept(),
            slices_unfinished: unpaired.begins,
            ends_unpaired: unpaired.ends,
            slices_across_losses: unpaired.across_losses,
            begins_not_followed: unpaired.not_followed,
            ..self.totals
        }
    }
}

/// A timeline as it was when it had come to some time, to be gone on with from there once more. What was lost is not in it.
#[derive(Debug)]
pub struct Checkpoint<K>(Timeline<K>);

/// When events were lost, of all that a timeline was shown.
#[derive(Debug, Clone, Default)]
pub struct Lost(KnownLosses);

/// What a checkpoint has of a track, an open slice or a process, about.
const CHECKPOINT_PART_BYTES: usize = 128;

impl<K: Clone> Timeline<K> {
    /// To go on from here once more. It is to be taken where the next event is later than the last.
    pub fn checkpoint(&self) -> Checkpoint<K> {
        let unhalted = |stream: &Stream| Stream { halted: None, ..stream.clone() };
        Checkpoint(Timeline {
            bound: Arc::clone(&self.bound),
            conditions: Vec::new(),
            picker: self.picker.unread(),
            streams: self.streams.iter().map(unhalted).collect(),
            tracks: self.tracks.clone(),
            writers: self.writers.clone(),
            joined: self.joined.clone(),
            pairs: self.pairs.without_losses(),
            key: Vec::new(),
            recent: Recent::default(),
            ..*self
        })
    }

    /// When events were lost.
    pub fn lost(&self) -> Lost {
        Lost(self.pairs.losses())
    }
}

impl<K: Clone> Checkpoint<K> {
    /// Goes on from there: with the events from its time on, of the same traces. `lost`: what the timeline knew at its end, so that notices need not be shown.
    pub fn resumed(&self, lost: &Lost) -> Timeline<K> {
        let Checkpoint(timeline) = self;
        let Checkpoint(copy) = timeline.checkpoint();
        Timeline { conditions: self.0.bound.selections(), pairs: copy.pairs.with_losses(&lost.0), ..copy }
    }

    /// About what it takes.
    pub fn size_bytes(&self) -> usize {
        let Checkpoint(Timeline { tracks, pairs, writers, joined, streams, .. }) = self;
        let parts = tracks.count() + pairs.open_count() + writers.count() + joined.len() + streams.len();
        parts * CHECKPOINT_PART_BYTES
    }
}

/// What has a key can begin in one trace and end in another: losses of all of them count.
const KEYED: usize = usize::MAX;
