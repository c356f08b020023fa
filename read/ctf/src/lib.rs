//! CTF 1.8, bytes in and bytes out: writes the metadata and the state packets, reads the streams back.
//!
//! The problem: a page that traced programs fill goes to disk as it is, so the bytes *are* the trace and nobody
//! formats them again. What is left is to describe them (the metadata, a text in TSDL) so that tools which nobody here
//! wrote can read them, and to read them back without trusting them: a stream may be cut off, damaged or forged.
//!
//! ```text
//!             Metadata::preamble, Metadata::class              Metadata::parse
//!   ClassDecl ───────────────────────────────────▶ metadata ──────────────────┐
//!                                                                             ▼
//!   pages as programs fill them ─────────────────▶ stream files ──▶ StreamReader ─▶ Merge ─┬─▶ text::Formatter
//!   StateRecord ─▶ PacketWriter ─────────────────▶                                         └─▶ Stats
//!
//!   one stream file:  ┌──────────────┬────────┬────────┬───┬─────────┬──────────────┬───
//!                     │ PacketHeader │ record │ record │ … │ padding │ PacketHeader │ …
//!                     └──────────────┴────────┴────────┴───┴─────────┴──────────────┴───
//!                      80 bytes       content_size              packet_size
//! ```
//!
//! * [`metadata`]: writes TSDL and reads the TSDL that it has written.
//! * [`time`]: the clock of a trace, and dates.
//! * [`class`]: the event classes of a trace by their ids.
//! * [`value`]: what a field holds, borrowed from the stream.
//! * [`packet`]: the packet header, and a writer of the state stream's packets.
//! * [`state`]: the records of the state stream, which the session owner writes.
//! * [`stream`]: packets and events of one stream.
//! * [`merge`]: events of all streams in the order of time.
//! * [`text`]: an event as `babeltrace2` prints it.
//! * [`stats`]: what a whole trace holds.
//! * [`totals`]: what its streams held when it was closed.
//!
//! # Hostile bytes
//! Every decoder is total. A length or count is compared with the bytes that are there before it is believed, nothing is
//! allocated by the size that a stream claims, and what is wrong becomes a [`stream::Notice`]: reading goes on at
//! the next packet wherever the sizes can still be trusted. What no decoder can see, that a stream is not there or ends too early,
//! shows where the metadata say what the streams hold ([`totals`]).
//!
//! # Limits
//! * The metadata reader knows the layouts of this crate only; traces of other tracers are for `babeltrace2`.
//! * Field names that occur twice in a class, or are no C identifiers, or would be words of TSDL (`Bool`), get a `_` where
//!   that is needed: one careless program must not make the metadata of a whole session unreadable.
//! * Ticks become nanoseconds as in `babeltrace2`, with its rounding ([`Clock::epoch_ns`]); order and distance in ticks are
//!   exact.
//!
//! # Source
//! Common Trace Format 1.8.3, <https://diamon.org/ctf/v1.8.3/>: clause 4 (types), 5 (packet header and context),
//! 6 (event header and context), 7 (TSDL), 8 (clocks).
#![forbid(unsafe_code)]
// Who calls says what there is to say.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod class;
pub mod loss;
pub mod merge;
pub mod metadata;
pub mod model;
pub mod packet;
pub mod plan;
pub mod state;
pub mod stats;
pub mod stream;
pub mod text;
pub mod time;
pub mod totals;
pub mod trace;
pub mod value;

#[cfg(test)]
extern crate self as dormouse_ctf;
/// A crate for tests, which depends on this one: in this one's own tests it is of the same types.
#[cfg(test)]
#[path = "../../../tests/traces/src/lib.rs"]
pub mod testing;

pub use class::{Class, Classes};
pub use loss::{Cause, Losses, StatedLosses};
pub use merge::Merge;
pub use metadata::{Metadata, MetadataError, MetadataOptions};
pub use packet::{PacketHeader, PacketWriter};
pub use state::StateRecord;
pub use stats::{Refusal, Stats};
pub use stream::{
    Event, Notice, Problem, RecordError, Scratch, Source, StreamReader, TraceRef, count_records, first_record_since,
};
pub use time::Clock;
pub use totals::{StreamTotals, Totals};
pub use trace::Trace;
pub use value::{Sequence, Value};

/// Little-endian reads at an offset that the caller has checked.
pub(crate) mod bytes {
    pub fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&bytes[offset..offset + N]);
        array
    }
    pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
        u32::from_le_bytes(array(bytes, offset))
    }
    pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(array(bytes, offset))
    }
}
