//! Faults and losses that a stream reports besides its events.

use crate::plan::{Failure, FieldError};
use dormouse_format::Clock;
use dormouse_format::HeaderError;

/// A reason why bytes are not a record, or not a record of their packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The content ends within the record's header.
    #[error("a record's header is cut off")]
    HeaderCut,
    /// The metadata declare no class with this id.
    #[error("a record has the class id {0}, which the metadata do not declare")]
    UnknownClass(u64),
    /// A field, given by its index from 0, cannot be read.
    #[error("field {0} of a record {1}")]
    Field(usize, FieldError),
    /// A full timestamp is earlier than the previous record's, or earlier than `timestamp_begin`.
    #[error("a record is older than the one before")]
    Older,
    /// The time is after the packet's `timestamp_end`.
    #[error("a record is younger than the packet's end")]
    Younger,
    /// The time does not fit 64 bits of nanoseconds since 1970.
    #[error("the time of a record {0}")]
    Beyond(ClockSaid),
}

/// A clock with a time that does not fit 64 bits of nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("by the clock `{}`, whose offset is {offset_s} s, is outside of the years 1678 to 2262, which are all that can be read; is that offset right?", self.name())]
pub struct ClockSaid {
    /// First bytes of the name.
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

/// A fault or a loss in a stream, and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("packet {packet} at byte {offset_bytes} {problem}")]
pub struct Notice {
    /// Number of the stream that [`StreamReader::new`](crate::StreamReader::new) was given.
    pub stream: usize,
    /// Index of the packet in the stream, from 0.
    pub packet: u64,
    /// Offset of the packet in the stream, in bytes.
    pub offset_bytes: u64,
    /// Fault or loss.
    pub problem: Problem,
}

/// A fault or a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Events were dropped since the previous packet. This is not damage, because the tracer itself reports it.
    #[error("tells of {count} discarded events")]
    Discarded {
        /// Number of dropped events.
        count: u64,
        /// End of the previous packet, or begin of the first one, in nanoseconds since the epoch; `None` without a
        /// clock.
        begin_ns: Option<i64>,
        /// End of this packet, in nanoseconds since the epoch.
        end_ns: Option<i64>,
    },
    /// Packets are missing before this one.
    #[error("has number {found} where {expected} was expected")]
    SequenceGap {
        /// Number after that of the previous packet.
        expected: u64,
        /// Value of `packet_seq_num`.
        found: u64,
    },
    /// `events_discarded` is lower than in the previous packet.
    #[error("counts fewer discarded events than the packet before")]
    DiscardedDecreases,
    /// The packet begins before the previous one ends.
    #[error("begins before the packet in front of it ends")]
    Overlap,
    /// The stream ends within the packet. Its complete records have been read.
    #[error("is cut off: {present_bytes} of {expected_bytes} bytes")]
    CutOff {
        /// Number of available bytes.
        present_bytes: u64,
        /// Value of `packet_size`, or the header's size if the header itself is cut off.
        expected_bytes: u64,
    },
    /// The bytes are not a packet header.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// The metadata declare several streams, but none with the packet's stream id.
    #[error("is of a stream that the metadata do not declare")]
    NoStream,
    /// The packet and the metadata have different UUIDs, and the trace is not Dormouse's. The packet is read
    /// nevertheless.
    #[error("has another uuid than the metadata, and is read as if it belonged to them")]
    OtherUuid,
    /// A field of the header or context cannot be read.
    #[error("has a header of which a field {0}")]
    HeaderField(FieldError),
    /// Consecutive packets do not belong to this stream. Their sizes are valid, so reading continues after them.
    #[error("{why}; {}", left_out(*count))]
    LeftOut {
        /// Reason for the first packet.
        why: Foreign,
        /// Number of packets, including the first.
        count: u64,
    },
    /// The file was shortened after it was opened. Events that were read before remain valid.
    #[error("cannot be read: the file was shortened from {expected_bytes} to {present_bytes} bytes meanwhile")]
    Shortened {
        /// Number of available bytes.
        present_bytes: u64,
        /// Number of bytes when the file was opened.
        expected_bytes: u64,
    },
    /// The bytes cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::ErrorKind),
    /// `timestamp_end` < `timestamp_begin`.
    #[error("ends before it begins")]
    Times,
    /// The begin time does not fit 64 bits of nanoseconds since 1970.
    #[error("has a time that {0}")]
    Beyond(ClockSaid),
    /// A record is damaged, or does not belong to the packet.
    #[error("is damaged at its byte {record_offset_bytes}: {error}")]
    Record {
        /// Start of the record, in bytes from the packet's start.
        record_offset_bytes: u64,
        /// Fault of the record.
        error: RecordError,
    },
}

impl Problem {
    /// Whether events were lost, possibly within this closed range of times.
    pub(super) fn may_be_within(&self, (first_ns, last_ns): (i64, i64)) -> bool {
        matches!(*self, Problem::Discarded { begin_ns, end_ns, .. }
            if begin_ns.is_none_or(|begin| begin <= last_ns) && end_ns.is_none_or(|end| end >= first_ns))
    }
}

/// A reason why a packet does not belong to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// The packet belongs to another trace.
    #[error("belongs to another trace: its uuid is not that of the metadata")]
    Uuid,
    /// The metadata do not declare the stream id.
    #[error("has the stream id {0}, which the metadata do not declare")]
    StreamId(u64),
    /// The packet differs from the previous one in kind, instance or CPU. A stream has only one of each.
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
