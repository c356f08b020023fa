//! The items of a timeline, the sink that receives them, and their counts.

use dormouse_ctf::Event;
use serde::Serialize;

use super::tracks::Track;
use crate::distribution::Number;

/// The begin of a slice.
#[derive(Debug)]
pub struct Begin<'a> {
    /// Number of the slice, from 1 on.
    pub id: u64,
    /// Track of the slice.
    pub track: u32,
    /// Index of the name in [`Timeline::names`](super::Timeline::names).
    pub name: u32,
    /// Number of slices that enclose it.
    pub depth: u32,
    /// Time in nanoseconds since the epoch.
    pub ns: i64,
    /// CPU of the event.
    pub cpu: Option<u32>,
    /// The event.
    pub event: &'a Event<'a>,
}

/// The end of a slice.
#[derive(Debug)]
pub struct End<'a> {
    /// Number of the slice.
    pub id: u64,
    /// Track of the slice.
    pub track: u32,
    /// Index of the slice's name.
    pub name: u32,
    /// Depth of the slice at its begin.
    pub depth: u32,
    /// Time of the begin, in nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Time of the end, in nanoseconds since the epoch. For a slice that is open at the end of the trace, the time of
    /// the last event.
    pub ns: i64,
    /// Number of slices that began on the track within this one and are still open.
    pub above: u32,
    /// Reason why the end may belong to another slice.
    pub doubt: Option<Doubt>,
    /// CPU of the event.
    pub cpu: Option<u32>,
    /// The event; `None` if the slice is open at the end of the trace.
    pub event: Option<&'a Event<'a>>,
    /// Whether the slice is a call that has one event, which was also passed as its begin.
    pub is_call: bool,
}

/// Reason why the end of a slice may belong to another slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// Events were lost between begin and end.
    Lost,
    /// Begins and ends of the name are on different threads, and no field tells which belong together.
    Threads,
}

impl Doubt {
    /// Returns the reason as text.
    pub fn text(self) -> &'static str {
        match self {
            Doubt::Lost => "events were lost between begin and end: the end can be that of another",
            Doubt::Threads => "begins and ends are on different threads: the end can be that of another",
        }
    }

    /// Returns the reason for a slice: what is true of its name, and whether its own pair is believed.
    pub(super) fn of(is_doubtful: bool, is_believed: bool) -> Option<Doubt> {
        match (is_doubtful, is_believed) {
            (_, false) => Some(Doubt::Lost),
            (true, true) => Some(Doubt::Threads),
            (false, true) => None,
        }
    }
}

/// An event that is neither begin nor end of a slice on its track.
#[derive(Debug)]
pub struct Instant<'a> {
    /// Track of the thread; if it is unknown, of the process, the CPU or the trace.
    pub track: u32,
    /// Index of the class's name.
    pub name: u32,
    /// Time in nanoseconds since the epoch.
    pub ns: i64,
    /// CPU of the event.
    pub cpu: Option<u32>,
    /// The event.
    pub event: &'a Event<'a>,
    /// Part that the event plays in a slice.
    pub what: What,
}

/// Part that an instant plays in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// None.
    Plain,
    /// End of something that began before the trace, or whose begin was lost.
    EndAlone,
    /// Begin of the slice on a lane with this number.
    Begins(u64),
    /// End of a slice on a lane, on the thread that began it.
    Ends(u64),
    /// End of a slice on a lane, on another thread than the one that began it.
    EndsElsewhere(u64),
}

/// An arrow from one track to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Number of the slice.
    pub id: u64,
    /// Index of the slice's name.
    pub name: u32,
    /// Track of the begin, and its time in nanoseconds since the epoch.
    pub from: (u32, i64),
    /// Track of the end, and its time in nanoseconds since the epoch.
    pub to: (u32, i64),
}

/// A new value of a counter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counter {
    /// Track of the counter.
    pub track: u32,
    /// Time in nanoseconds since the epoch.
    pub ns: i64,
    /// The value.
    pub value: Number,
}

/// A loss of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Track of the stream's losses.
    pub track: u32,
    /// Earliest time of the loss, in nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Latest time of the loss, in nanoseconds since the epoch.
    pub end_ns: i64,
    /// Number of lost events, if known.
    pub count: Option<u64>,
    /// The notice as text.
    pub text: String,
}

/// Receives the items of a timeline, in the order of the events. A loss is passed when it becomes known, which is after
/// its begin.
pub trait Sink {
    /// Data that is kept of a begin until its end.
    type Kept;

    /// Returns the memory in bytes that the kept data occupies beyond its own size.
    fn kept_bytes(_: &Self::Kept) -> usize {
        0
    }

    /// Called for a track that is new, or that has a new name.
    fn track(&mut self, track: &Track<'_>);
    /// Called when a slice begins; for a call that has one event, when it ends, so that its begin is earlier than other
    /// items.
    fn begin(&mut self, begin: &Begin<'_>) -> Self::Kept;
    /// Called when a slice ends.
    fn end(&mut self, end: &End<'_>, kept: Self::Kept);
    /// Called for an instant.
    fn instant(&mut self, instant: &Instant<'_>);
    /// Called when a counter has a value.
    fn counter(&mut self, counter: &Counter);
    /// Called when a slice ends on another track than it began on, before the instant of its end.
    fn flow(&mut self, flow: &Flow);
    /// Called when events were lost.
    fn loss(&mut self, loss: &Loss);
}

/// Counts of a timeline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Events, except those of the session owner.
    pub events: u64,
    /// Slices with a begin and an end.
    pub slices: u64,
    /// Slices that are open at the end of the trace.
    pub slices_unfinished: u64,
    /// Instants.
    pub instants: u64,
    /// Values of counters.
    pub counter_values: u64,
    /// Slices that begin on one thread and end on another.
    pub flows: u64,
    /// Losses.
    pub losses: u64,
    /// Events that were lost in them, as far as they are counted.
    pub events_lost: u64,
    /// Ends without a begin; they are instants.
    pub ends_unpaired: u64,
    /// Slices during which events can have been lost.
    pub slices_across_losses: u64,
    /// Slices whose begins and ends are on different threads, and that no field identifies.
    pub slices_doubtful: u64,
    /// Begins and ends that do not have their key; they are instants.
    pub events_without_key: u64,
    /// Begins that were not followed, because too many slices were open; they are instants.
    pub begins_not_followed: u64,
    /// Slices that an export shortens to the end of another one, because too many overlap.
    pub slices_cut: u64,
    /// Events that an export of spans leaves out, because they are not within a span.
    pub events_outside: u64,
    /// Events without a time; they are on no track.
    pub events_without_time: u64,
    /// Events of threads, processes and CPUs whose tracks had no memory; they are on the track of their process, or on
    /// the first one.
    pub events_on_other_tracks: u64,
    /// Names of processes that were not kept, for want of memory.
    pub names_not_kept: u64,
    /// Slices whose stacks an export of stacks did not keep, for want of memory. Their time counts for the enclosing
    /// slice, or for none.
    pub slices_without_stack: u64,
    /// Slices and instants that a report leaves out, also from its tables, for want of memory.
    pub items_not_kept: u64,
}
