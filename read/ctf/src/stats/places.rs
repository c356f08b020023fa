//! Where events were lost.

use serde::Serialize;

use crate::stream::{Notice, Problem};

/// Losses that are told one by one.
const PLACES_MAX: usize = 1000;

/// A loss that packets of a stream tell of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LossPlace {
    /// The stream.
    pub stream: String,
    /// Not before, nanoseconds since the epoch; `None` where that is not known.
    pub begin_ns: Option<i64>,
    /// Not after, nanoseconds since the epoch; `None` where that is not known.
    pub end_ns: Option<i64>,
    /// Events that were dropped.
    pub events: u64,
    /// Packets that are not there: overwritten, or lost on the way. What they held is not counted.
    pub packets: u64,
}

/// Where events were lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LossPlaces {
    /// The first of them that streams tell of.
    pub places: Vec<LossPlace>,
    /// How many there are beyond these.
    pub more: u64,
}

impl LossPlaces {
    /// Takes note of what a stream says of a loss. `around_ns`: of the event before and the packet behind, for packets that are missing.
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

    /// The same in the order of time.
    pub fn sorted(mut self) -> LossPlaces {
        self.places.sort_by_key(|place| place.begin_ns);
        self
    }
}
