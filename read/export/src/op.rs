//! Operations: items to be written, in a form that is encoded independently of earlier items.

use dormouse_analysis::Number;
use dormouse_analysis::timeline::{Begin, Counter, Doubt, End, Flow, Instant, Loss, Sink, Track, TrackKind, What};
use dormouse_ctf::stream::Block;

use crate::address::Addresses;
use crate::nest::Nest;
use crate::wire::Wire;

/// Track and time of an operation. Formats identify the track by its number, or by process and thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub track: u32,
    pub pid: u32,
    pub tid: u32,
    /// Time in nanoseconds since the epoch.
    pub ns: i64,
}

/// An item to be written. It consists of small parts that are written in place: copying parts that were just written
/// elsewhere stalls on memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub at: At,
    pub kind: Kind,
    /// Index of a name of the timeline.
    pub name: u32,
    /// Index of the event in the batch's block, or [`NO_EVENT`]. Several operations can have the same event.
    pub event: u32,
    /// Number of the lane's slice that an instant begins or ends; for [`Kind::More`], its index in the batch.
    pub number: u64,
    /// [`Last::step`] of an operation that some tools treat as the begin or end of a slice.
    pub step: u8,
}

/// The operation has no event.
pub(crate) const NO_EVENT: u32 = u32::MAX;

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Begin,
    /// Begin of the part of a slice after a cut.
    Continue,
    /// End of the part of a slice before a cut.
    Cut,
    End,
    /// End of a slice during which events were lost.
    EndAcrossLoss,
    /// End that may belong to another slice, because begins and ends are on different threads.
    EndDoubtful,
    /// An instant; the variants correspond to those of [`What`].
    Instant,
    EndAlone,
    Begins,
    Ends,
    EndsElsewhere,
    /// End of a slice that was cut for good before.
    CutBefore,
    /// A rare operation.
    More,
}

/// A rare operation.
#[derive(Debug)]
pub(crate) enum More {
    Counter { value: Number },
    Flow { to: At, id: u64 },
    Loss { end_ns: i64, loss: Loss },
    Track(NewTrack),
}

/// A track that is new or renamed.
#[derive(Debug)]
pub(crate) struct NewTrack {
    pub parent: Option<u32>,
    pub kind: TrackKind,
    pub name: Box<str>,
}

impl NewTrack {
    /// Returns the label of the track, for when process and thread do not identify it.
    pub(crate) fn label(&self) -> String {
        let name = &self.name;
        match self.kind {
            TrackKind::Process { .. } | TrackKind::Lane { .. } | TrackKind::Counter { .. } => name.to_string(),
            TrackKind::Thread { .. } if !name.is_empty() => name.to_string(),
            TrackKind::Thread { tid, .. } => format!("thread {tid}"),
            TrackKind::Cpu { cpu } => format!("CPU {cpu}"),
            TrackKind::Trace => "trace".into(),
            TrackKind::Losses { .. } => format!("lost by {name}"),
        }
    }
}

/// Returns the name of a loss.
pub(crate) fn loss_name(loss: &Loss) -> String {
    loss.count.map_or_else(|| "events lost".into(), |count| format!("{count} events lost"))
}

impl Op {
    /// Returns the index of its event in the batch's block.
    #[inline(always)]
    pub(crate) fn event(&self) -> Option<usize> {
        (self.event != NO_EVENT).then_some(self.event as usize)
    }
}

/// Operations to be written, and their events.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// The events, see [`Exporter::event`](crate::Exporter::event).
    pub block: Block<'a>,
    pub(crate) ops: Vec<Op>,
    pub(crate) more: Vec<More>,
    pub(crate) out: Wire,
}

/// Limits of a batch, in operations and in bytes of events: handing it over then costs little, and it fits into the
/// caches.
const OPS_MAX: usize = 4096;
const BYTES_MAX: usize = 256 << 10;

impl Batch<'_> {
    /// Whether it must be encoded before more is added.
    pub fn is_full(&self) -> bool {
        self.ops.len() >= OPS_MAX || self.block.size_bytes().max(self.bytes().len()) >= BYTES_MAX
    }

    /// Whether there is nothing to encode.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.bytes().is_empty()
    }

    /// Returns the encoded bytes.
    pub fn bytes(&self) -> &[u8] {
        self.out.as_bytes()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.block.clear();
        self.ops.clear();
        self.more.clear();
        self.out.clear();
    }
}

/// State with which a timeline is turned into operations.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub addresses: Addresses,
    /// Names of open slices.
    pub nest: Nest<u32>,
    /// Name of each track that is a counter.
    pub counters: Vec<u32>,
    pub slices_cut: u64,
    pub last: Vec<Last>,
}

/// The last operation on a track that some tools treat as the begin or end of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Last {
    ns: i64,
    /// Step within a nanosecond. Some tools sort operations of the same time, ends first; sorting within a step changes
    /// nothing.
    step: u8,
    edge: Edge,
}

impl Last {
    /// Adds an operation of the same time, or of an earlier one.
    #[cold]
    fn follow(&mut self, edge: Edge) {
        let is_same_step = match edge {
            Edge::Begin => self.edge != Edge::Both,
            Edge::End => self.edge == Edge::End,
            Edge::Both => false,
        };
        self.step = self.step.saturating_add(u8::from(!is_same_step));
        self.edge = edge;
    }
}

/// Kind of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    Begin,
    End,
    /// An instant that is written as a slice, so that flows can begin and end at it.
    Both,
}

/// A sink that turns items into operations of a batch.
pub(crate) struct Recording<'r> {
    pub recorder: &'r mut Recorder,
    pub ops: &'r mut Vec<Op>,
    pub more: &'r mut Vec<More>,
    pub event: u32,
    /// Whether an operation refers to the event.
    pub is_kept: bool,
}

impl Recording<'_> {
    #[inline(always)]
    fn at(&self, track: u32, ns: i64) -> At {
        let (pid, tid) = self.recorder.addresses.at(track);
        At { track, pid, tid, ns }
    }

    /// Returns the place and step of a slice's begin or end. Its time is not before the last one on its track, even if
    /// a damaged stream goes back.
    #[inline(always)]
    fn next_at(&mut self, track: u32, ns: i64, edge: Edge) -> (At, u8) {
        let last = &mut self.recorder.last;
        if last.len() <= track as usize {
            last.resize(track as usize + 1, Last { ns: i64::MIN, step: 0, edge: Edge::End });
        }
        let last = &mut last[track as usize];
        if ns > last.ns {
            *last = Last { ns, step: 0, edge };
        } else {
            last.follow(edge);
        }
        let Last { ns, step, .. } = *last;
        (self.at(track, ns), step)
    }

    #[inline(always)]
    fn keep(&mut self) -> u32 {
        self.is_kept = true;
        self.event
    }

    #[inline(always)]
    fn push(&mut self, op: Op) {
        if self.ops.len() == self.ops.capacity() {
            self.grow();
        }
        self.ops.push(op);
    }

    #[cold]
    fn grow(&mut self) {
        self.ops.reserve(OPS_MAX);
    }

    /// Ends a slice that is not the innermost one.
    #[inline(never)]
    fn cut(&mut self, track: u32, id: u64, end: Op) {
        let open = self.recorder.nest.open(track);
        let within = open.iter().rev().take_while(|(other, _)| *other != id);
        let names: Vec<u32> = within.map(|(_, name)| *name).collect();
        let Some((dropped, continued)) = self.recorder.nest.end(track, id) else {
            if end.event != NO_EVENT {
                self.ops.push(Op { kind: Kind::CutBefore, ..end });
            }
            return;
        };
        self.recorder.slices_cut += dropped as u64;
        let part = |kind, name| Op { kind, name, event: NO_EVENT, ..end };
        self.ops.extend(names.into_iter().map(|name| part(Kind::Cut, name)));
        self.ops.push(end);
        self.ops.extend(continued.iter().map(|(_, name)| part(Kind::Continue, *name)));
        if !continued.is_empty() {
            self.recorder.last[track as usize].edge = Edge::Begin;
        }
    }

    fn put(&mut self, at: At, name: u32, more: More) {
        self.push(Op { at, kind: Kind::More, name, event: NO_EVENT, number: self.more.len() as u64, step: 0 });
        self.more.push(more);
    }
}

impl Sink for Recording<'_> {
    type Kept = ();

    fn track(&mut self, track: &Track<'_>) {
        let (pid, tid) = self.recorder.addresses.of(track);
        let at = At { track: track.id, pid, tid, ns: 0 };
        if let TrackKind::Counter { name } = track.kind {
            self.recorder.counters.resize(track.id as usize + 1, 0);
            self.recorder.counters[track.id as usize] = name;
        }
        let track = NewTrack { parent: track.parent, kind: track.kind, name: track.name.into() };
        self.put(at, 0, More::Track(track));
    }

    #[inline(always)]
    fn begin(&mut self, begin: &Begin<'_>) {
        self.recorder.nest.begin(begin.track, begin.id, begin.name);
        let ((at, step), event) = (self.next_at(begin.track, begin.ns, Edge::Begin), self.keep());
        self.push(Op { at, kind: Kind::Begin, name: begin.name, event, number: 0, step });
    }

    #[inline(always)]
    fn end(&mut self, end: &End<'_>, (): ()) {
        let (at, step) = self.next_at(end.track, end.ns, Edge::End);
        let event = if end.event.is_some() { self.keep() } else { NO_EVENT };
        let kind = match end.doubt {
            None => Kind::End,
            Some(Doubt::Lost) => Kind::EndAcrossLoss,
            Some(Doubt::Threads) => Kind::EndDoubtful,
        };
        let op = Op { at, kind, name: end.name, event, number: 0, step };
        if self.recorder.nest.end_innermost(end.track, end.id) {
            return self.push(op);
        }
        self.cut(end.track, end.id, op);
    }

    #[inline(always)]
    fn instant(&mut self, instant: &Instant<'_>) {
        let event = self.keep();
        let (kind, slice) = match instant.what {
            What::Plain => (Kind::Instant, 0),
            What::EndAlone => (Kind::EndAlone, 0),
            What::Begins(slice) => (Kind::Begins, slice),
            What::Ends(slice) => (Kind::Ends, slice),
            What::EndsElsewhere(slice) => (Kind::EndsElsewhere, slice),
        };
        let (at, step) = match kind {
            Kind::Instant | Kind::EndAlone => (self.at(instant.track, instant.ns), 0),
            _ => self.next_at(instant.track, instant.ns, Edge::Both),
        };
        self.push(Op { at, kind, name: instant.name, event, number: slice, step });
    }

    fn counter(&mut self, counter: &Counter) {
        let (at, name) = (self.at(counter.track, counter.ns), self.recorder.counters[counter.track as usize]);
        self.put(at, name, More::Counter { value: counter.value });
    }

    fn flow(&mut self, flow: &Flow) {
        let [from, to] = [flow.from, flow.to].map(|(track, ns)| self.at(track, ns));
        self.put(from, flow.name, More::Flow { to, id: flow.id });
    }

    fn loss(&mut self, loss: &Loss) {
        let at = self.at(loss.track, loss.begin_ns);
        self.put(at, 0, More::Loss { end_ns: loss.end_ns, loss: loss.clone() });
    }
}
