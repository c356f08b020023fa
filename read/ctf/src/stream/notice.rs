//! What a stream says besides its events.

use crate::packet::HeaderError;
use crate::plan::{Failure, FieldError};
use crate::time::Clock;

/// Why bytes are no record, or no record of their packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The content ends within the record's header.
    #[error("a record's header is cut off")]
    HeaderCut,
    /// No class has this id.
    #[error("a record has the class id {0}, which the metadata do not declare")]
    UnknownClass(u64),
    /// A field, by its index from 0, is none.
    #[error("field {0} of a record {1}")]
    Field(usize, FieldError),
    /// A full timestamp is earlier than that of the record before, or than `timestamp_begin`.
    #[error("a record is older than the one before")]
    Older,
    /// The time is beyond the packet's `timestamp_end`.
    #[error("a record is younger than the packet's end")]
    Younger,
    /// Nanoseconds since 1970 of 64 bits do not hold the time.
    #[error("the time of a record {0}")]
    Beyond(ClockSaid),
}

/// A clock that gives a time which nanoseconds since 1970 of 64 bits do not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("by the clock `{}`, whose offset is {offset_s} s, is outside of the years 1678 to 2262, which are all that can be read; is that offset right?", self.name())]
pub struct ClockSaid {
    /// The first bytes of the name.
    name: [u8; 24],
    offset_s: i64,
}

impl ClockSaid {
    pub(super) fn new(clock: Option<&Clock>) -> ClockSaid {
        let mut name = [0; 24];
        let known = clock.map_or("", |clock| clock.name.as_str()).as_bytes();
        let length = known.len().min(name.len());
        name[..length].copy_from_slice(&known[..length]);
        ClockSaid { name, offset_s: clock.map_or(0, |clock| clock.offset_s) }
    }

    fn name(&self) -> String {
        String::from_utf8_lossy(&self.name).trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]).into()
    }
}

/// What a stream says besides its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("packet {packet} at byte {offset_bytes} {problem}")]
pub struct Notice {
    /// The stream, as [`StreamReader::new`](crate::StreamReader::new) was told.
    pub stream: usize,
    /// Which packet of the stream, from 0.
    pub packet: u64,
    /// Where the packet starts.
    pub offset_bytes: u64,
    /// What it is.
    pub problem: Problem,
}

/// What a [`Notice`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Events were dropped since the packet before. Not damage: the tracer says so itself.
    #[error("tells of {count} discarded events")]
    Discarded {
        /// How many.
        count: u64,
        /// End of the packet before, or begin of the first, nanoseconds since the epoch; of a stream with a clock.
        begin_ns: Option<i64>,
        /// End of this packet, nanoseconds since the epoch.
        end_ns: Option<i64>,
    },
    /// Packets are missing before this one.
    #[error("has number {found} where {expected} was expected")]
    SequenceGap {
        /// One more than the packet before.
        expected: u64,
        /// `packet_seq_num`.
        found: u64,
    },
    /// `events_discarded` is lower than in the packet before.
    #[error("counts fewer discarded events than the packet before")]
    DiscardedDecreases,
    /// The packet begins before the one in front of it ends.
    #[error("begins before the packet in front of it ends")]
    Overlap,
    /// The stream ends within the packet. What was complete has been read.
    #[error("is cut off: {present_bytes} of {expected_bytes} bytes")]
    CutOff {
        /// Bytes there.
        present_bytes: u64,
        /// `packet_size`, or the header's size where even that is cut off.
        expected_bytes: u64,
    },
    /// No packet header.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// The metadata declare several streams, and none with the packet's stream id.
    #[error("is of a stream that the metadata do not declare")]
    NoStream,
    /// A packet is said to be of another trace than the metadata, which is not one of Dormouse. It is read all the same.
    #[error("has another uuid than the metadata, and is read as if it belonged to them")]
    OtherUuid,
    /// A field of its header or context is none.
    #[error("has a header of which a field {0}")]
    HeaderField(FieldError),
    /// Packets that do not belong here, one behind the other. Their sizes are sound, so reading goes on behind them.
    #[error("{why}; {}", left_out(*count))]
    LeftOut {
        /// Why.
        why: Foreign,
        /// How many, the first included.
        count: u64,
    },
    /// The file has become shorter since it was opened. What was read before has been given.
    #[error("cannot be read: the file was shortened from {expected_bytes} to {present_bytes} bytes meanwhile")]
    Shortened {
        /// Bytes there.
        present_bytes: u64,
        /// Bytes that were there when it was opened.
        expected_bytes: u64,
    },
    /// The bytes cannot be had.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::ErrorKind),
    /// `timestamp_end` < `timestamp_begin`.
    #[error("ends before it begins")]
    Times,
    /// Nanoseconds since 1970 of 64 bits do not hold the time at which it begins.
    #[error("has a time that {0}")]
    Beyond(ClockSaid),
    /// A record is none, or none of the packet's.
    #[error("is damaged at its byte {record_offset_bytes}: {error}")]
    Record {
        /// Where the record starts, from the packet's start.
        record_offset_bytes: u64,
        /// What is wrong.
        error: RecordError,
    },
}

impl Problem {
    /// Whether events were lost, and at least one of them perhaps from the first to the last of these times.
    pub(super) fn may_be_within(&self, (first_ns, last_ns): (i64, i64)) -> bool {
        matches!(*self, Problem::Discarded { begin_ns, end_ns, .. }
            if begin_ns.is_none_or(|begin| begin <= last_ns) && end_ns.is_none_or(|end| end >= first_ns))
    }
}

/// Why a packet does not belong to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// Another trace's.
    #[error("belongs to another trace: its uuid is not that of the metadata")]
    Uuid,
    /// A stream id that the metadata do not declare.
    #[error("has the stream id {0}, which the metadata do not declare")]
    StreamId(u64),
    /// A stream holds packets of one processor, one instance and one kind.
    #[error("belongs to another stream: its {0} is not that of the packet before")]
    Changed(&'static str),
}

fn left_out(count: u64) -> String {
    match count {
        1 => "it is left out".into(),
        _ => format!("it is left out, and so are {} behind it", count - 1),
    }
}

impl From<Failure> for RecordError {
    fn from(failure: Failure) -> RecordError {
        match failure {
            Failure::Header => RecordError::HeaderCut,
            Failure::UnknownClass(id) => RecordError::UnknownClass(id),
            Failure::Field(index, error) => RecordError::Field(index, error),
        }
    }
}
