//! What is to be written, so that it can be encoded apart from what came before.

use dormouse_analysis::Number;
use dormouse_analysis::timeline::{Begin, Counter, End, Flow, Instant, Loss, Sink, Track, TrackKind, What};
use dormouse_ctf::stream::Block;

use crate::address::Addresses;
use crate::nest::Nest;
use crate::wire::Wire;

/// Where and when. Tracks are known by their number, and by process and thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub track: u32,
    pub pid: u32,
    pub tid: u32,
    /// Nanoseconds since the epoch.
    pub ns: i64,
}

/// One thing to be written. Names are indexes of the timeline's. Events are the next of the batch's block where `has_event` says so; several
/// operations can be of one.
#[derive(Debug)]
pub(crate) enum Op {
    Begin {
        at: At,
        name: u32,
        event: u32,
    },
    /// The part of a slice behind a cut.
    Continue {
        at: At,
        name: u32,
    },
    /// The part of a slice before a cut.
    Cut {
        at: At,
    },
    End {
        at: At,
        event: Option<u32>,
        is_believed: bool,
    },
    Instant {
        at: At,
        name: u32,
        event: u32,
        what: Besides,
        /// Of the slice of a lane that it begins or ends.
        slice: u64,
    },
    Counter {
        at: At,
        value: Number,
        name: u32,
    },
    Flow {
        from: At,
        to: At,
        id: u64,
        name: u32,
    },
    Loss {
        at: At,
        end_ns: i64,
        loss: Box<Loss>,
    },
    Track {
        at: At,
        track: Box<NewTrack>,
    },
}

/// [`What`] an instant is besides. The number of the slice is beside it: both together are copied in a way that waits for the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Besides {
    Nothing,
    EndAlone,
    Begins,
    Ends,
    EndsElsewhere,
    /// It ends a slice that is not drawn so far.
    CutBefore,
}

/// A track that is new, or is called otherwise.
#[derive(Debug)]
pub(crate) struct NewTrack {
    pub parent: Option<u32>,
    pub kind: TrackKind,
    pub name: Box<str>,
}

impl NewTrack {
    /// What it is called, where neither process nor thread say it.
    pub(crate) fn label(&self) -> String {
        let name = &self.name;
        match self.kind {
            TrackKind::Process { .. } | TrackKind::Lane { .. } | TrackKind::Counter { .. } => name.to_string(),
            TrackKind::Thread { tid, .. } => format!("thread {tid}"),
            TrackKind::Cpu { cpu } => format!("CPU {cpu}"),
            TrackKind::Trace => "trace".into(),
            TrackKind::Losses { .. } => format!("lost by {name}"),
        }
    }
}

/// What a loss is called.
pub(crate) fn loss_name(loss: &Loss) -> String {
    loss.count.map_or_else(|| "events lost".into(), |count| format!("{count} events lost"))
}

impl Op {
    /// Which event of the batch's block it is of.
    #[inline(always)]
    pub(crate) fn event(&self) -> Option<u32> {
        match self {
            Op::Begin { event, .. } | Op::Instant { event, .. } => Some(*event),
            Op::End { event, .. } => *event,
            _ => None,
        }
    }
}

/// What is to be written, and the events that it is of.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// The events, see [`Exporter::event`](crate::Exporter::event).
    pub block: Block<'a>,
    pub(crate) ops: Vec<Op>,
    pub(crate) out: Wire,
}

/// A batch is full with so many operations, or so many bytes of events: then handing it over costs little, and it is in the caches.
const OPS_MAX: usize = 4096;
const BYTES_MAX: usize = 256 << 10;

impl Batch<'_> {
    /// Whether it is to be encoded before more is added.
    pub fn is_full(&self) -> bool {
        self.ops.len() >= OPS_MAX || self.block.size_bytes().max(self.bytes().len()) >= BYTES_MAX
    }

    /// Whether there is nothing to be encoded.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.bytes().is_empty()
    }

    /// What it was encoded to.
    pub fn bytes(&self) -> &[u8] {
        self.out.as_bytes()
    }

    /// Empties it. Its memory is kept.
    pub fn clear(&mut self) {
        self.block.clear();
        self.ops.clear();
        self.out.clear();
    }
}

/// Turns a timeline into operations.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub addresses: Addresses,
    /// Names of open slices.
    pub nest: Nest<u32>,
    /// The name of each track that is a counter.
    pub counters: Vec<u32>,
    pub slices_cut: u64,
    /// Of each track the time of its last begin or end of a slice.
    pub last_ns: Vec<i64>,
}

/// The recorder at work: into which operations, and which event it is in its block.
pub(crate) struct Recording<'r> {
    pub recorder: &'r mut Recorder,
    pub ops: &'r mut Vec<Op>,
    pub event: u32,
    /// Whether an operation has the event.
    pub is_kept: bool,
}

impl Recording<'_> {
    fn at(&self, track: u32, ns: i64) -> At {
        let (pid, tid) = self.recorder.addresses.at(track);
        At { track, pid, tid, ns }
    }

    /// The same for slices, whose times must not go back on their track, as they do in damaged streams.
    #[inline]
    fn next_at(&mut self, track: u32, ns: i64) -> At {
        let last_ns = &mut self.recorder.last_ns;
        if last_ns.len() <= track as usize {
            last_ns.resize(track as usize + 1, i64::MIN);
        }
        let last_ns = &mut last_ns[track as usize];
        *last_ns = ns.max(*last_ns);
        let ns = *last_ns;
        self.at(track, ns)
    }

    fn keep(&mut self) -> u32 {
        self.is_kept = true;
        self.event
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
        self.ops.push(Op::Track { at, track: Box::new(track) });
    }

    #[inline]
    fn begin(&mut self, begin: &Begin<'_>) {
        self.recorder.nest.begin(begin.track, begin.id, begin.name);
        let (at, event) = (self.next_at(begin.track, begin.ns), self.keep());
        self.ops.push(Op::Begin { at, name: begin.name, event });
    }

    #[inline]
    fn end(&mut self, end: &End<'_>, (): ()) {
        let (at, is_believed) = (self.next_at(end.track, end.ns), end.is_believed);
        let event = end.event.map(|_| self.keep());
        let Some((dropped, continued)) = self.recorder.nest.end(end.track, end.id) else {
            let instant = |event| Op::Instant { at, name: end.name, event, what: Besides::CutBefore, slice: 0 };
            return self.ops.extend(event.map(instant));
        };
        self.recorder.slices_cut += dropped as u64;
        self.ops.extend((0..dropped + continued.len()).map(|_| Op::Cut { at }));
        self.ops.push(Op::End { at, event, is_believed });
        self.ops.extend(continued.iter().map(|(_, name)| Op::Continue { at, name: *name }));
    }

    #[inline]
    fn instant(&mut self, instant: &Instant<'_>) {
        let (at, event) = (self.at(instant.track, instant.ns), self.keep());
        let (what, slice) = match instant.what {
            What::Plain => (Besides::Nothing, 0),
            What::EndAlone => (Besides::EndAlone, 0),
            What::Begins(slice) => (Besides::Begins, slice),
            What::Ends(slice) => (Besides::Ends, slice),
            What::EndsElsewhere(slice) => (Besides::EndsElsewhere, slice),
        };
        self.ops.push(Op::Instant { at, name: instant.name, event, what, slice });
    }

    fn counter(&mut self, counter: &Counter) {
        let (at, name) = (self.at(counter.track, counter.ns), self.recorder.counters[counter.track as usize]);
        self.ops.push(Op::Counter { at, value: counter.value, name });
    }

    fn flow(&mut self, flow: &Flow) {
        let [from, to] = [flow.from, flow.to].map(|(track, ns)| self.at(track, ns));
        self.ops.push(Op::Flow { from, to, id: flow.id, name: flow.name });
    }

    fn loss(&mut self, loss: &Loss) {
        let at = self.at(loss.track, loss.begin_ns);
        self.ops.push(Op::Loss { at, end_ns: loss.end_ns, loss: Box::new(loss.clone()) });
    }
}
