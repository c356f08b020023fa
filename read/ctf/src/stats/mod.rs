//! What a whole trace holds.

mod collect;
mod missing;
mod places;
mod processes;
mod table;
mod tally;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Serialize, Serializer};

use crate::loss::Uncounted;
use crate::metadata::Metadata;
use crate::stream::{Source, StreamReader, TraceRef};

pub use collect::{Collector, Part};
pub use missing::missing;
pub use places::{LossPlace, LossPlaces};
pub use tally::Tally;

/// What a whole trace holds. Events are those of programs, if not said otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// Events recorded.
    pub events: u64,
    /// Events of the session owner itself, in the state stream: who joined, what was lost.
    pub state_events: u64,
    /// Events lost: what packets tell, and what the session owner has stated besides.
    pub events_lost: u64,
    /// Where packets say that events were lost.
    pub loss_places: LossPlaces,
    /// What can have lost more events, which nobody has counted; empty: no other event is lost.
    pub loss_possible: Vec<Uncounted>,
    /// Of these, what the session owner has told of single classes, most first. Together at most as many as `events_lost`, if
    /// programs were honest: those that a program had no time to assign (it was killed) and those that did not fit on the disk are
    /// not among them.
    pub lost_by_class: Vec<LostStats>,
    /// Classes whose events are not in the trace, and not among `events_lost`: the session owner refused them.
    pub classes_refused: Vec<Refusal>,
    /// Packets of all streams.
    pub packets: u64,
    /// Bytes of all streams, padding included.
    pub bytes: u64,
    /// Threads that have at least one event; `None` where records do not tell.
    pub threads: Option<u64>,
    /// Time from the first to the last event; `None` without events.
    pub span: Option<Span>,
    /// Events in a second of `span`; `None` where that has no length.
    pub events_per_s: Option<f64>,
    /// Event classes that have at least one event, most frequent first.
    pub classes: Vec<ClassStats>,
    /// Processors that have at least one event, unknown ones last.
    pub cpus: Vec<CpuStats>,
    /// Programs, most busy first, or in the order of joining where records do not tell whose they are.
    pub processes: Vec<ProcessStats>,
    /// Whether it is one of Dormouse; others do not say what is in them.
    #[serde(skip)]
    pub is_own: bool,
    /// Whether the session has closed the trace, and said what is in it. Where it has not, nobody can tell whether a stream is missing.
    pub is_closed: bool,
    /// What is wrong with the trace, one line each.
    pub warnings: Vec<String>,
}

/// Time from the first to the last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The first event, nanoseconds since the epoch.
    pub begin_ns: i64,
    /// The last event, nanoseconds since the epoch.
    pub end_ns: i64,
    /// The time between them, nanoseconds.
    pub duration_ns: u64,
}

/// Events of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassStats {
    /// `provider:name`.
    pub name: String,
    /// The id in this trace.
    pub id: u64,
    /// How many.
    pub count: u64,
    /// Bytes of their records, headers included.
    pub bytes: u64,
}

/// Lost events of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostStats {
    /// `provider:name`, or `(other classes)`.
    pub name: String,
    /// How many.
    pub count: u64,
}

/// A class, or several, whose events are not in the trace: the session owner refused them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// `provider:name`, or in parentheses what classes.
    pub name: String,
    /// Path of the executable that announced it.
    pub program: String,
    /// Why, and what to do.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not recorded: {} of {}: {}", self.name, self.program, self.reason)
    }
}

/// Events of one processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuStats {
    /// The processor; `"unknown"` in JSON where the writer did not know it.
    #[serde(serialize_with = "serialize_cpu")]
    pub cpu: Option<u32>,
    /// How many.
    pub count: u64,
}

/// Events of one program. A process that has become another program by `exec` has several entries; what it did before it
/// joined the session counts with the first. One that has changed its name has one, with the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    /// Its id as it sees it itself.
    pub vpid: u32,
    /// What it calls itself, as `ps` shows it; empty where the session owner has not named it.
    pub name: String,
    /// Path of the executable; empty where the session owner has not named it.
    pub program: String,
    /// How many; `None` where records do not tell.
    pub count: Option<u64>,
}

fn serialize_cpu<S: Serializer>(cpu: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    match cpu {
        Some(cpu) => serializer.serialize_u32(*cpu),
        None => serializer.serialize_str("unknown"),
    }
}

impl Stats {
    /// Reads the streams of a trace, each with a name for the warnings.
    ///
    /// Processes are told apart by `vpid`, so processes of several containers that share one count as one program after
    /// another.
    pub fn collect(metadata: &Metadata, streams: &[(&str, &[u8])]) -> Stats {
        let streams = streams.iter().map(|(name, bytes)| (0, *name, *bytes));
        Stats::of_traces(&[TraceRef::from(metadata)], streams)
    }

    /// As [`Stats::collect`], of traces of anybody, whose streams come piece by piece. A stream has the index of its trace.
    pub fn of_traces<'a, S: Source + Clone>(
        traces: &[TraceRef<'a>],
        streams: impl IntoIterator<Item = (usize, &'a str, S)>,
    ) -> Stats {
        let streams: Vec<_> = streams.into_iter().collect();
        let reader = |index: usize| {
            let (trace, name, source) = &streams[index];
            (*trace, *name, StreamReader::of_source(traces[*trace], index, source.clone()))
        };
        let collector = Collector::new(traces, (0..streams.len()).map(reader));
        let mut tally = Tally::default();
        let others: Vec<usize> = collector.others().collect();
        let parts = others.into_iter().map(|index| (index, collector.count(&mut tally, reader(index).2))).collect();
        collector.finish(tally, parts)
    }
}
