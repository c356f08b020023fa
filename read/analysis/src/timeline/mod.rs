//! A trace as a timeline: tracks and the items on them, built in one pass over the events in the order of time.
//!
//! ```text
//!   events ──▶ Kind of the class ──▶ begins or ends ──▶ Begin, End      on the track of the thread, or (Pairs) on a lane
//!   (table of rules, given pairs) ──▶ counts ─────────────────▶ Counter
//!                                 ──▶ anything else ──────────▶ Instant
//!   notices ──▶ losses ──▶ Pairs                             ──▶ Loss
//! ```
//!
//! A table (`rules`) defines slices: by names such as `X_begin` and `X_end`, if the trace has both classes. Slices of a
//! thread are paired by thread and name; the depth of each is the number of slices that are open on its track. They
//! need not be nested: one can end while others that began within it are open ([`End::above`]). Slices with a key are
//! on lanes of their process, on which none overlap, and their events are also instants of their threads. If a slice
//! begins on one thread and ends on another, there is a [`Flow`].
//!
//! # Memory
//! Bounded like that of pairs, by the limits of tracks (2^20), lanes (4,096 of one name and process) and depth (4,096),
//! and by [`Timeline::limit`]. Anything beyond is counted.

mod items;
mod keys;
mod room;
mod rules;
mod tracks;

pub use crate::found_key::FoundKey;
pub use items::{Begin, Counter, Doubt, End, Flow, Instant, Loss, Sink, Totals, What};
pub use keys::{KeySurvey, find_keys};
pub use rules::{NameText, SliceRule, slice_rules};
pub use tracks::{Track, TrackKind};

use std::collections::HashMap;
use std::sync::Arc;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_ctf::hash::Recent;
use dormouse_ctf::processes::Named;
use dormouse_ctf::{Event, Notice, Problem, Selection, StateRecord, Trace, Writers};

use crate::distribution::Number;
use crate::key;
use crate::pair::{KnownLosses, Pairs};
use crate::pick::{Picker, Said};
use room::Room;
use rules::{Bound, Part, Role};
use tracks::{Begun, Ended, Slice, Tracks};

/// Options that add to the table of rules.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Pairs of classes besides those of the table of rules, which does not apply to classes that match.
    pub pairs: Vec<GivenPair>,
    /// Key that both ends of these share: fields, `pid`, `tid`, `cpu`. If empty, they are matched by thread.
    pub key: Vec<String>,
    /// Keys of slices that are not paired by thread, as [`find_keys`] returns them.
    pub found: Vec<FoundKey>,
    /// Patterns of classes, and a field of these classes whose values are drawn.
    pub counters: Vec<(String, String)>,
    /// Whether functions of libc that have one event, with the duration of the call, are slices of their thread. Otherwise they
    /// are instants.
    pub has_calls: bool,
}

/// A pair of classes that the user gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenPair {
    /// Name of the slices.
    pub name: String,
    /// Pattern of the classes that begin them.
    pub begin: String,
    /// Pattern of the classes that end them.
    pub end: String,
}

impl std::str::FromStr for GivenPair {
    type Err = String;

    /// Reads `BEGIN..END` or `NAME=BEGIN..END`. Without a name the slices are called `BEGIN..END`.
    fn from_str(text: &str) -> Result<GivenPair, String> {
        let (name, pair) = text.split_once('=').map_or((text, text), |(name, pair)| (name, pair));
        match pair.split_once("..") {
            Some((begin, end)) if !name.is_empty() && !begin.is_empty() && !end.is_empty() => {
                Ok(GivenPair { name: name.into(), begin: begin.into(), end: end.into() })
            }
            _ => Err(format!(
                "`{text}` is not BEGIN..END or NAME=BEGIN..END; write two event classes with two dots between them"
            )),
        }
    }
}

/// A slice on a lane that waits for its end.
#[derive(Debug, Clone)]
struct Open<K> {
    id: u64,
    track: u32,
    /// Number of the lane, and track of the event that began the slice.
    lane: u32,
    from: u32,
    kept: K,
}

#[derive(Debug, Clone)]
struct Stream {
    name: String,
    trace: usize,
    last_ns: Option<i64>,
    /// Time since which the stream is halted, and the notice as text.
    halted: Option<(i64, String)>,
    /// Writer of the last event, as the event's context has it, and its track.
    last: Option<((u32, u32), u32)>,
}

/// A timeline in progress. The caller must show it all events of the traces in the order of time, and each notice at
/// its place among them.
#[derive(Debug)]
pub struct Timeline<K> {
    bound: Arc<Bound>,
    conditions: Vec<Selection>,
    picker: Picker,
    streams: Vec<Stream>,
    tracks: Tracks<K>,
    writers: Writers,
    /// Slices on lanes. Slices of threads are on their tracks.
    pairs: Pairs<Box<[u8]>, Open<K>>,
    slices: u64,
    /// Times of the first event and of the latest one.
    first_ns: Option<i64>,
    last_ns: i64,
    totals: Totals,
    key: Vec<u8>,
    /// Memory for open slices.
    room: Room,
    /// Recent lookups in [`Bound::kind_by_class`].
    recent: Recent,
}

#[inline(always)]
fn size_of_kept<S: Sink>(_: &S, kept: &S::Kept) -> usize {
    S::kept_bytes(kept)
}

/// Memory that is counted for what a sink keeps of an open slice and writes of it at the end.
const SINK_BYTES: usize = 256;

/// Returns which of the parts of an event its instant shows: the one with the largest weight, and of several the last.
/// Arrows lead to and from instants.
fn weight(part: Option<What>) -> u32 {
    match part {
        Some(What::Plain | What::EndAlone) => 0,
        None | Some(What::Ends(_)) => 1,
        Some(What::Begins(_) | What::EndsElsewhere(_)) => 2,
    }
}

/// Time and track of an event.
#[derive(Clone, Copy)]
struct Place {
    trace: usize,
    ns: i64,
    cpu: Option<u32>,
    track: u32,
    has_thread: bool,
}

impl<K> Timeline<K> {
    /// Creates a timeline. `streams`: the name of each stream, and the index of its trace.
    ///
    /// # Errors
    /// The traces lack something that the options name; the text names the nearest.
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
            pairs: Pairs::new(),
            slices: 0,
            first_ns: None,
            last_ns: i64::MIN,
            totals: Totals::default(),
            key: Vec::new(),
            room: Room::new(usize::MAX),
            recent: Recent::default(),
        })
    }

    /// Limits memory to `bytes`: half of it for open slices, three eighths for tracks, the rest for names of processes.
    /// Begins beyond the limit are not followed, and events whose tracks are beyond it are put on other tracks. Call it
    /// before the first event.
    pub fn limit(&mut self, bytes: usize) {
        self.room = Room::new(bytes / 2);
        self.tracks.limit(bytes / 8 * 3);
        self.writers.limit(bytes / 8);
    }

    /// Returns all names of items, which refer to them by index.
    pub fn names(&self) -> &[NameText] {
        &self.bound.names
    }

    /// Takes the next event without making an item of it. It advances the time; a state record also updates writers and
    /// names of processes.
    pub fn pass(&mut self, event: &Event<'_>, sink: &mut impl Sink<Kept = K>) {
        if let Some(record) = event.state_record() {
            return self.state(event, &record, sink);
        }
        if let Some(ns) = event.time_ns {
            let stream = &mut self.streams[event.stream];
            stream.last_ns = Some(ns);
            self.first_ns.get_or_insert(ns);
            self.last_ns = self.last_ns.max(ns);
            if let Some((since_ns, text)) = stream.halted.take() {
                let trace = stream.trace;
                [trace, KEYED].iter().for_each(|domain| self.pairs.goes_on(*domain, event.stream, ns));
                self.lose(event.stream, since_ns, ns, None, text, sink);
            }
        }
    }

    /// Takes the next event on a fast path. This works if the event has the same writer as the stream's previous event,
    /// and its class needs no fields. Returns false otherwise: the caller must then pass the event to
    /// [`Timeline::event`].
    ///
    /// Most events take this path. The functions that it calls must stay inlined into the caller, so that properties of
    /// the event that the sink does not use are not computed.
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
            [Role { is_begin: false, is_doubtful: false, pair, .. }] => {
                let Some((depth, id, name, begin)) = self.tracks.end_innermost(track, *pair) else { return false };
                self.totals.slices += 1;
                let doubt = Doubt::of(false, self.pairs.ended(stream.trace, begin.ns, ns));
                self.room.give(SINK_BYTES + 2 * size_of::<Slice<K>>() + size_of_kept(sink, &begin.kept));
                let (begin_ns, event) = (begin.ns, Some(event));
                let end = End { id, track, name, depth, begin_ns, ns, above: 0, doubt, cpu, event, is_call: false };
                sink.end(&end, begin.kept);
                self.tracks.ended(track, ns);
            }
            _ => return false,
        }
        stream.last_ns = Some(ns);
        self.last_ns = self.last_ns.max(ns);
        self.totals.events += 1;
        true
    }

    /// Takes the next event.
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
        let (name, role_count, is_picked, call) = (kind.name, kind.roles.len(), kind.is_picked, kind.call);
        let place = self.place(event, ns, sink);
        if is_picked {
            self.picker.read(event);
            self.count(index, &place, sink);
        }
        if let Some(duration) = call
            && let Some(Number::Whole(duration_ns)) = self.picker.cell(duration).number
            && self.call(event, name, duration_ns, &place, sink)
        {
            return;
        }
        let mut what = Some(What::Plain);
        let (slices, ends_alone) = (self.totals.slices, self.pairs.unpaired.ends);
        for role in 0..role_count {
            let role = self.bound.kinds[index].roles[role];
            let part = match role.is_begin {
                true => self.begin(event, role, &place, sink),
                false => self.end(event, role, &place, sink),
            };
            if weight(part) >= weight(what) {
                what = part;
            }
        }
        // An end of several names counts once, and only if it has ended a slice of none.
        let is_alone = self.pairs.unpaired.ends > ends_alone && self.totals.slices == slices;
        self.pairs.unpaired.ends = ends_alone + u64::from(is_alone);
        if let Some(what) = what {
            self.totals.instants += 1;
            sink.instant(&Instant { track: place.track, name, ns, cpu: place.cpu, event, what });
        }
    }

    /// Returns the time and the track of an event.
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
        let thread_name = writer.thread.unwrap_or_default();
        let tracks = &mut self.tracks;
        let mut at = |parent: Option<u32>, kind: TrackKind, name: &str| {
            tracks.at(trace, parent, kind, |id| sink.track(&Track { id, parent, trace, kind, name }))
        };
        let process = writer.pid.map(|pid| at(None, TrackKind::Process { pid }, &name));
        let track = match (writer.tid, process, cpu) {
            (Some(tid), process, _) => at(process, TrackKind::Thread { pid: writer.pid, tid }, thread_name),
            (None, Some(process), _) => process,
            (None, None, Some(cpu)) => at(None, TrackKind::Cpu { cpu }, ""),
            (None, None, None) => at(None, TrackKind::Trace, ""),
        };
        let has_thread = writer.tid.is_some();
        // The writer is remembered only if it has a track, so that each event of a thread without a track is counted.
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

    /// Reads the key of an event; false if it lacks a part.
    fn read_key(&mut self, index: usize, role: Role, trace: usize, event: &Event<'_>) -> bool {
        let bytes = &mut self.key;
        bytes.clear();
        key::put_class(role.pair, bytes);
        for part in &self.bound.keys[index].parts {
            match part {
                Part::Trace => key::put_integer(trace as i128, bytes),
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

    /// Whether the event has its key.
    #[inline]
    fn has_key(&mut self, role: Role, place: &Place, event: &Event<'_>) -> bool {
        let has_key = role.key.map_or(place.has_thread, |index| self.read_key(index, role, place.trace, event));
        self.totals.events_without_key += u64::from(!has_key);
        has_key
    }

    /// Begins a slice. Returns the event's role as an instant; `None` if it began a slice on its own track.
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

    /// Passes on a call that ends with this event. Returns false if it is no slice of a thread.
    fn call(
        &mut self,
        event: &Event<'_>,
        name: u32,
        duration_ns: i128,
        place: &Place,
        sink: &mut impl Sink<Kept = K>,
    ) -> bool {
        let Place { ns, cpu, track, has_thread, .. } = *place;
        let Some(depth) = self.tracks.depth(track).filter(|_| has_thread) else { return false };
        // The two clocks can differ, and an earlier part of the time may not have been shown.
        let earliest_ns = self.tracks.begin_ns_min(track).max(self.first_ns.unwrap_or(ns)).min(ns);
        let duration_ns = u64::try_from(duration_ns).unwrap_or(0);
        let begin_ns = ns.saturating_sub_unsigned(duration_ns).max(earliest_ns);
        self.slices += 1;
        let id = self.slices;
        let kept = sink.begin(&Begin { id, track, name, depth, ns: begin_ns, cpu, event });
        self.totals.slices += 1;
        let (above, doubt, event) = (0, None, Some(event));
        sink.end(&End { id, track, name, depth, begin_ns, ns, above, doubt, cpu, event, is_call: true }, kept);
        self.tracks.ended(track, ns);
        true
    }

    fn begun<S: Sink<Kept = K>>(&mut self, sink: &mut S, begin: &Begin<'_>) -> K {
        let kept = sink.begin(begin);
        self.room.force(S::kept_bytes(&kept));
        kept
    }

    /// Returns the memory that is counted for one more open slice; if it has a key, for the current key.
    #[inline]
    fn open_bytes(&self, has_key: bool) -> usize {
        // A growing vector has up to twice the capacity that it needs, a map more.
        let keyed = 3 * size_of::<(Box<[u8]>, Vec<(i64, Open<K>)>, (i64, Open<K>))>() + 32;
        SINK_BYTES + 2 * size_of::<Slice<K>>() + if has_key { keyed + self.key.len() } else { 0 }
    }

    #[inline]
    fn ended<S: Sink<Kept = K>>(&mut self, _: &S, kept: &K, has_key: bool) {
        self.room.give(self.open_bytes(has_key) + S::kept_bytes(kept));
    }

    /// Takes a lane without an open slice. Returns its track and its number.
    fn lane(&mut self, role: Role, place: &Place, sink: &mut impl Sink<Kept = K>) -> Option<(u32, u32)> {
        let parent = self.tracks.parent(place.track).or(Some(place.track));
        let number = self.tracks.take_lane(parent, role.pair)?;
        let (kind, name) = (TrackKind::Lane { name: role.pair, number }, &self.bound.names[role.pair as usize]);
        let announce = |id| sink.track(&Track { id, parent, trace: place.trace, kind, name: &name.text });
        Some((self.tracks.at(place.trace, parent, kind, announce), number))
    }

    /// Ends a slice. Returns the event's role as an instant; `None` if it ended a slice on its own track.
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
                if role.is_wait {
                    return Some(What::Plain);
                }
                self.pairs.unpaired.ends += 1;
                return Some(What::EndAlone);
            };
            self.totals.slices += 1;
            let (track, begin_ns, event) = (place.track, begin.ns, Some(event));
            let doubt = Doubt::of(role.is_doubtful, self.pairs.ended(place.trace, begin_ns, ns));
            self.totals.slices_doubtful += u64::from(doubt == Some(Doubt::Threads));
            self.ended(sink, &begin.kept, false);
            let end = End { id, track, name, depth, begin_ns, ns, above, doubt, cpu, event, is_call: false };
            sink.end(&end, begin.kept);
            self.tracks.ended(track, ns);
            return None;
        }
        let is_of_trace = role.key.is_some_and(|key| self.bound.keys[key].parts.contains(&Part::Trace));
        let domain = if is_of_trace { place.trace } else { KEYED };
        let Some(pair) = self.pairs.end(domain, self.key.as_slice(), ns) else { return Some(What::EndAlone) };
        self.totals.slices += 1;
        let Open { id, track, lane, from, kept } = pair.kept;
        let (begin_ns, doubt) = (pair.begin_ns, Doubt::of(false, pair.is_believed));
        self.ended(sink, &kept, true);
        // The slice is on its track until here.
        let Ended { slice: Slice { name, .. }, depth, above } = self.tracks.end(track, |slice| slice.id == id)?;
        let event = Some(event);
        sink.end(&End { id, track, name, depth, begin_ns, ns, above, doubt, cpu, event, is_call: false }, kept);
        self.tracks.give_lane(self.tracks.parent(track), role.pair, lane);
        if from == place.track {
            return Some(What::Ends(id));
        }
        self.totals.flows += 1;
        sink.flow(&Flow { id, name, from: (from, begin_ns), to: (place.track, ns) });
        Some(What::EndsElsewhere(id))
    }

    fn state(&mut self, event: &Event<'_>, record: &StateRecord<'_>, sink: &mut impl Sink<Kept = K>) {
        let trace = self.streams[event.stream].trace;
        let Some(Named { pid, tid, name }) = self.writers.note(event, record) else { return };
        let Some(process) = self.tracks.process(trace, pid.into()) else { return };
        let (parent, kind) = match tid {
            Some(tid) => (Some(process), TrackKind::Thread { pid: Some(pid.into()), tid: tid.into() }),
            None => (None, TrackKind::Process { pid: pid.into() }),
        };
        if let Some(id) = self.tracks.known(trace, parent, kind) {
            sink.track(&Track { id, parent, trace, kind, name });
        }
    }

    /// Takes a notice. `time_ns`: the time that its stream has reached.
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

    /// Ends the timeline: passes on the ends of open slices.
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
        // The innermost slice ends first.
        open.sort_by_key(|(_, id)| std::cmp::Reverse(*id));
        for (track, id) in open {
            let ended = self.tracks.end(track, |slice| slice.id == id);
            let Some(Ended { slice: Slice { name, begin, .. }, depth, above }) = ended else { continue };
            let begun = begin.map(|begin| (begin.ns, begin.kept)).or_else(|| keyed.remove(&id));
            let Some((begin_ns, kept)) = begun else { continue };
            let ns = self.last_ns.max(begin_ns);
            let (doubt, cpu, event) = (None, None, None);
            sink.end(&End { id, track, name, depth, begin_ns, ns, above, doubt, cpu, event, is_call: false }, kept);
        }
        Totals {
            names_not_kept: self.writers.processes().names_not_kept(),
            slices_unfinished: unpaired.begins,
            ends_unpaired: unpaired.ends,
            slices_across_losses: unpaired.across_losses,
            begins_not_followed: unpaired.not_followed,
            ..self.totals
        }
    }
}

/// The state of a timeline at some time, from which it can be resumed. It does not include losses.
#[derive(Debug)]
pub struct Checkpoint<K>(Timeline<K>);

/// Time ranges of all losses that a timeline was shown.
#[derive(Debug, Clone, Default)]
pub struct Lost(KnownLosses);

/// Approximate size of a track, an open slice or a process in a checkpoint.
const CHECKPOINT_PART_BYTES: usize = 128;

impl<K: Clone> Timeline<K> {
    /// Returns a checkpoint. Call it only where the next event is later than the last.
    pub fn checkpoint(&self) -> Checkpoint<K> {
        let unhalted = |stream: &Stream| Stream { halted: None, ..stream.clone() };
        Checkpoint(Timeline {
            bound: Arc::clone(&self.bound),
            conditions: Vec::new(),
            picker: self.picker.unread(),
            streams: self.streams.iter().map(unhalted).collect(),
            tracks: self.tracks.clone(),
            writers: self.writers.clone(),
            pairs: self.pairs.without_losses(),
            key: Vec::new(),
            recent: Recent::default(),
            ..*self
        })
    }

    /// Returns the time ranges in which events were lost.
    pub fn lost(&self) -> Lost {
        Lost(self.pairs.losses())
    }
}

impl<K: Clone> Checkpoint<K> {
    /// Returns a timeline that continues from the checkpoint with the events of the same traces from its time on.
    /// `lost`: losses that the first pass found; with them, notices need not be shown again.
    pub fn resumed(&self, lost: &Lost) -> Timeline<K> {
        let Checkpoint(timeline) = self;
        let Checkpoint(copy) = timeline.checkpoint();
        Timeline { conditions: self.0.bound.selections(), pairs: copy.pairs.with_losses(&lost.0), ..copy }
    }

    /// Returns its approximate size.
    pub fn size_bytes(&self) -> usize {
        let Checkpoint(Timeline { tracks, pairs, writers, streams, .. }) = self;
        let parts = tracks.count() + pairs.open_count() + writers.processes().count() + streams.len();
        parts * CHECKPOINT_PART_BYTES
    }
}

/// Domain of losses for slices with a given key. They can begin in one trace and end in another, so losses of all traces
/// count.
const KEYED: usize = usize::MAX;
