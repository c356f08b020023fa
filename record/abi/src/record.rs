//! The header of an event record; the fields follow, byte-packed, little-endian. All records of a session have the same
//! [`RecordKind`].
//!
//! With context, two words:
//! ```text
//!   0        2                       8                12               16
//!   ┌────────┬───────────────────────┬────────────────┬────────────────┬─────────
//!   │ id u16 │ timestamp, low 48 bit │ vpid i32       │ vtid i32       │ fields…
//!   └────────┴───────────────────────┴────────────────┴────────────────┴─────────
//! ```
//! Forty-eight bits are enough because no page stays current for more than 2^[`PACKET_SPAN_BITS`] ticks: readers
//! compute the rest from the packet's `timestamp_begin` and from the previous record.
//!
//! Without context, one of two forms:
//! ```text
//!   0       1                   5             0       1        3                  11
//!   ┌───────┬───────────────────┬────────     ┌───────┬────────┬──────────────────┬────────
//!   │ id u8 │ timestamp, low 32 │ fields…     │  255  │ id u16 │ timestamp, 64    │ fields…
//!   └───────┴───────────────────┴────────     └───────┴────────┴──────────────────┴────────
//!    compact: id up to 254                     extended
//! ```
//!
//! # When a record may be compact
//! A reader takes the earliest time, not before that of the previous record, that has these low 32 bits. So there must
//! be less than 2^32 ticks between the two. That is a second or two, and a page may wait longer for its next record. A
//! writer does not know the time of the previous record. It knows the stream's *epoch*
//! ([`StreamControl::epoch`](crate::session::StreamControl::epoch)): the upper half of a full timestamp that was
//! committed to the stream, either a page's `timestamp_begin` or an extended record's. It writes a compact record if
//! its own timestamp has the same upper half. Otherwise it writes an extended record, whose upper half becomes the
//! epoch.
//!
//! That is enough because timestamps of a stream never decrease. All times from the full timestamp of the epoch to the
//! new record have the same upper half. The last full timestamp of the current page is one of them.
//!
//! The epoch is stored *after* the commit, if the writer gets that far. If the writer is killed or preempted before
//! that, for any length of time, the word still belongs to a timestamp that was committed, though perhaps not to the
//! last one. An older epoch does no harm: clocks do not return to it, so no new timestamp has its upper half, and the
//! next record is extended. A thread that has moved to another CPU may even store it late, over a later epoch.

/// Size of the header of a record with context, in bytes.
pub const HEADER_SIZE_BYTES: usize = 16;
/// Number of timestamp bits in a record with context.
pub const TIMESTAMP_BITS: u32 = 48;
/// Binary logarithm of the number of ticks that a page may span; it is closed before.
pub const PACKET_SPAN_BITS: u32 = 46;

/// Size of a compact header, in bytes.
pub const COMPACT_HEADER_SIZE_BYTES: usize = 5;
/// Number of timestamp bits in a compact record.
pub const COMPACT_TIMESTAMP_BITS: u32 = 32;
/// Greatest class id of a compact record.
pub const COMPACT_ID_MAX: u8 = 254;
/// Size of an extended header, in bytes.
pub const EXTENDED_HEADER_SIZE_BYTES: usize = 11;
/// First byte of an extended record.
pub const EXTENDED: u8 = 255;

/// Kind of the headers of a session's event records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum RecordKind {
    /// With context: `vpid` and `vtid`.
    #[default]
    Ids = 0,
    /// Without context: compact or extended.
    Compact = 1,
}

impl RecordKind {
    /// Returns the kind with this number in a session's header, if there is one.
    pub const fn from_u32(number: u32) -> Option<RecordKind> {
        match number {
            0 => Some(RecordKind::Ids),
            1 => Some(RecordKind::Compact),
            _ => None,
        }
    }

    /// Returns the name of the kind's context, as used in options.
    pub const fn name(self) -> &'static str {
        match self {
            RecordKind::Ids => "ids",
            RecordKind::Compact => "none",
        }
    }

    /// Returns the size of the longest header, in bytes.
    pub const fn header_size_bytes_max(self) -> usize {
        match self {
            RecordKind::Ids => HEADER_SIZE_BYTES,
            RecordKind::Compact => EXTENDED_HEADER_SIZE_BYTES,
        }
    }
}

/// Returns the first word of a record with context: id and timestamp.
pub const fn head_word(id: u16, timestamp: u64) -> u64 {
    (timestamp << 16) | id as u64
}

/// Returns the second word of a record with context: ids of the process and thread in the program's own namespace.
pub const fn context_word(vpid: u32, vtid: u32) -> u64 {
    vpid as u64 | (vtid as u64) << 32
}

/// Returns a compact header. The id is at most [`COMPACT_ID_MAX`].
pub const fn compact_header(id: u8, timestamp: u64) -> [u8; COMPACT_HEADER_SIZE_BYTES] {
    let [a, b, c, d] = (timestamp as u32).to_le_bytes();
    [id, a, b, c, d]
}

/// Returns an extended header.
pub const fn extended_header(id: u16, timestamp: u64) -> [u8; EXTENDED_HEADER_SIZE_BYTES] {
    let [i, j] = id.to_le_bytes();
    let [a, b, c, d, e, f, g, h] = timestamp.to_le_bytes();
    [EXTENDED, i, j, a, b, c, d, e, f, g, h]
}

/// Returns the epoch of a timestamp: its upper half plus one, so that 0, the value of memory that was never written, is
/// not an epoch. No clock reaches an upper half of all ones.
pub const fn epoch(timestamp: u64) -> u64 {
    (timestamp >> 32) + 1
}

/// Whether a record of this class and time is compact in a stream with this epoch.
pub const fn is_compact(id: u16, timestamp: u64, stream_epoch: u64) -> bool {
    id <= COMPACT_ID_MAX as u16 && stream_epoch == epoch(timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_headers_are_at_the_documented_offsets() {
        assert_eq!(compact_header(254, 0x1122_3344_5566_7788), [254, 0x88, 0x77, 0x66, 0x55]);
        let extended = [255, 0x34, 0x12, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
        assert_eq!(extended_header(0x1234, 0x1122_3344_5566_7788), extended);
    }

    #[test]
    fn records_are_compact_only_within_the_epoch() {
        let epoch_of_3 = epoch(3 << 32);
        for (id, timestamp, expected) in [
            (0, 3 << 32, true),
            (254, (4 << 32) - 1, true),
            (255, 3 << 32, false),
            (0, 4 << 32, false),
            (0, (3 << 32) - 1, false),
        ] {
            assert_eq!(is_compact(id, timestamp, epoch_of_3), expected, "{id} {timestamp:#x}");
        }
        // No record is compact in a stream without an epoch, at any time.
        assert!(!is_compact(0, 0, 0) && !is_compact(0, u64::MAX, 0));
        assert_eq!([0, 1, 2].map(RecordKind::from_u32), [Some(RecordKind::Ids), Some(RecordKind::Compact), None]);
    }
}
