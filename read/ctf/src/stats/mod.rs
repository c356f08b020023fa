//! Statistics of whole traces.

mod collect;
mod missing;
mod places;
mod programs;
mod tally;

#[cfg(test)]
mod tests;

use serde::{Serialize, Serializer};

use crate::metadata::Metadata;
use crate::stream::{Source, StreamReader, TraceRef};
use dormouse_format::{Refusal, loss::Uncounted};

pub use collect::{Collector, Part};
pub use missing::missing;
pub use places::{LossPlace, LossPlaces};
pub use tally::Tally;

/// Statistics of a whole trace. Events are those of programs, unless noted otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// Number of recorded events.
    pub events: u64,
    /// Number of events of the session owner in the state stream: joined processes, losses.
    pub state_events: u64,
    /// Number of lost events, as stated by packets and additionally by the session owner.
    pub events_lost: u64,
    /// Places where packets report lost events.
    pub loss_places: LossPlaces,
    /// Causes that can have lost more events without counting them. If it is empty, no other event is lost.
    pub loss_possible: Vec<Uncounted>,
    /// Lost events by class as the session owner states them, highest count first. They are part of `events_lost`;
    /// their sum does not exceed it if programs were honest. Losses that a killed program could not assign, and events
    /// that did not fit on the disk, are not included.
    pub lost_by_class: Vec<LostStats>,
    /// Events that the session's rules left out, by class as the session owner states them, highest count first. They
    /// are not lost.
    pub unrecorded: Vec<UnrecordedStats>,
    /// Classes that the session owner refused. Their events are not in the trace, and not part of `events_lost`.
    pub classes_refused: Vec<Refusal>,
    /// Number of packets in all streams.
    pub packets: u64,
    /// Size of all streams in bytes, including padding.
    pub bytes: u64,
    /// Number of threads with at least one event; `None` if records do not identify threads.
    pub threads: Option<u64>,
    /// Time from the first to the last event; `None` without events.
    pub span: Option<Span>,
    /// Events per second of `span`; `None` if its duration is zero.
    pub events_per_s: Option<f64>,
    /// Event classes with at least one event, most frequent first.
    pub classes: Vec<ClassStats>,
    /// CPUs with at least one event; the unknown CPU is last.
    pub cpus: Vec<CpuStats>,
    /// Programs, busiest first, or in the order of joining if records do not identify processes.
    pub processes: Vec<ProcessStats>,
    /// Whether Dormouse wrote the trace. Other traces do not state their content.
    #[serde(skip)]
    pub is_own: bool,
    /// Whether the session closed the trace and wrote its totals. Without them, a missing stream cannot be detected.
    pub is_closed: bool,
    /// Faults of the trace, one line each.
    pub warnings: Vec<String>,
}

/// Time from the first to the last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Time of the first event, in nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Time of the last event, in nanoseconds since the epoch.
    pub end_ns: i64,
    /// Difference of the two times, in nanoseconds.
    pub duration_ns: u64,
}

/// Events of one class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassStats {
    /// `provider:name`.
    pub name: String,
    /// Id of the class in this trace.
    pub id: u64,
    /// Number of events.
    pub count: u64,
    /// Size of their records in bytes, including headers.
    pub bytes: u64,
    /// Estimated number of events that would be recorded if no rule had a sample; `count`, if none has. `None` if the
    /// probability that an event was recorded is not known.
    pub estimated: Option<f64>,
    /// Standard error of `estimated`; `None` if it is not known, as for samples by a field.
    pub estimated_error: Option<f64>,
    /// Samples of the rules that matched the class, as they are written after `sample`; empty if there were none.
    pub samples: Vec<String>,
}

/// Lost events of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostStats {
    /// `provider:name`, or `(other classes)`.
    pub name: String,
    /// Number of events.
    pub count: u64,
}

/// Events of one class that the session's rules left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnrecordedStats {
    /// `provider:name`, or `(other classes)`.
    pub name: String,
    /// Number of events that the rules' conditions rejected.
    pub rejected: u64,
    /// Number of events that sampling left out.
    pub sampled_out: u64,
    /// Number of events that programs recorded and no tail kept.
    pub not_kept: u64,
}

impl UnrecordedStats {
    /// Number of all of them.
    fn count(&self) -> u64 {
        self.rejected.saturating_add(self.sampled_out).saturating_add(self.not_kept)
    }
}

/// Events of one CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuStats {
    /// CPU; `"unknown"` in JSON if the writer did not know it.
    #[serde(serialize_with = "serialize_cpu")]
    pub cpu: Option<u32>,
    /// Number of events.
    pub count: u64,
}

/// Events of one program. A process that became another program by `exec` has several entries; its events before it
/// joined the session count for the first one. A process that changed its name has one entry with the last name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    /// Process id as the process itself sees it.
    pub vpid: u32,
    /// Name that the process gave itself, as `ps` shows it; empty if the session owner has not stated it.
    pub name: String,
    /// Path of the executable; empty if the session owner has not stated it.
    pub program: String,
    /// Number of events; `None` if records do not identify processes.
    pub count: Option<u64>,
}

fn serialize_cpu<S: Serializer>(cpu: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    match cpu {
        Some(cpu) => serializer.serialize_u32(*cpu),
        None => serializer.serialize_str("unknown"),
    }
}

impl Stats {
    /// Reads the streams of a trace. Each stream has a name for the warnings.
    ///
    /// Processes are distinguished by `vpid`. Processes in several containers with the same `vpid` count as one process
    /// that becomes one program after another.
    pub fn collect(metadata: &Metadata, streams: &[(&str, &[u8])]) -> Stats {
        let streams = streams.iter().map(|(name, bytes)| (0, *name, *bytes));
        Stats::of_traces(&[TraceRef::from(metadata)], streams)
    }

    /// Reads the streams of several traces of any tracer piece by piece, like [`Stats::collect`]. Each stream has the
    /// index of its trace.
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
