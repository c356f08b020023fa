//! Places where events were lost.

use serde::Serialize;

use crate::stream::{Notice, Problem};

/// Maximum number of losses that are listed individually.
const PLACES_MAX: usize = 1000;

/// A loss that the packets of a stream report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LossPlace {
    /// Name of the stream.
    pub stream: String,
    /// Lower bound of the time, in nanoseconds since the epoch; `None` if it is unknown.
    pub begin_ns: Option<i64>,
    /// Upper bound of the time, in nanoseconds since the epoch; `None` if it is unknown.
    pub end_ns: Option<i64>,
    /// Number of dropped events.
    pub events: u64,
    /// Number of missing packets, which were overwritten or lost later. Their events are not counted.
    pub packets: u64,
}

/// Places where events were lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LossPlaces {
    /// The first losses that the streams report.
    pub places: Vec<LossPlace>,
    /// Number of further losses.
    pub more: u64,
}

impl LossPlaces {
    /// Adds the loss of a notice, if it is one. For missing packets, `around_ns` holds the times of the previous event
    /// and of the packet after them.
    pub fn note(&mut self, stream: &str, notice: &Notice, around_ns: (Option<i64>, Option<i64>)) {
        let (begin_ns, end_ns, events, packets) = match notice.problem {
            Problem::Discarded { count, begin_ns, end_ns } => (begin_ns, end_ns, count, 0),
            Problem::SequenceGap { expected, found } if found > expected => {
                (around_ns.0, around_ns.1, 0, found - expected)
            }
            _ => return,
        };
        if self.places.len() < PLACES_MAX {
            self.places.push(LossPlace { stream: stream.into(), begin_ns, end_ns, events, packets });
        } else {
            self.more += 1;
        }
    }

    /// Sorts the losses by time.
    pub fn sorted(mut self) -> LossPlaces {
        self.places.sort_by_key(|place| place.begin_ns);
        self
    }
}
