//! The header of an event record: two words, then the fields, byte-packed, little-endian.
//!
//! ```text
//!   0        2                       8                12               16
//!   ┌────────┬───────────────────────┬────────────────┬────────────────┬─────────
//!   │ id u16 │ timestamp, low 48 bit │ vpid i32       │ vtid i32       │ fields…
//!   └────────┴───────────────────────┴────────────────┴────────────────┴─────────
//! ```
//!
//! Forty-eight bits are enough because no page stays current for more than 2^[`PACKET_SPAN_BITS`] ticks: readers rebuild
//! the rest from the packet's `timestamp_begin` and from the record before.

/// Bytes of a record's header.
pub const HEADER_SIZE_BYTES: usize = 16;
/// Bits of the timestamp that a record holds.
pub const TIMESTAMP_BITS: u32 = 48;
/// A page is closed before it spans this many ticks (as a power of two).
pub const PACKET_SPAN_BITS: u32 = 46;

/// First word of a record: id and timestamp.
pub const fn head_word(id: u16, timestamp: u64) -> u64 {
    (timestamp << 16) | id as u64
}

/// Second word of a record: whose it is, as the program itself sees its ids.
pub const fn context_word(vpid: u32, vtid: u32) -> u64 {
    vpid as u64 | (vtid as u64) << 32
}
