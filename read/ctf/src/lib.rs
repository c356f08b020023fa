//! CTF 1.8 and CTF 2 in memory: writes Dormouse's metadata and state packets, and reads traces of any tracer.
//!
//! A page that a traced program fills goes to disk unchanged, so its bytes *are* the trace and are never formatted
//! again. Two tasks remain: to describe these bytes (the metadata, a text in TSDL or JSON) so that other tools can read
//! them, and to read them back without trusting them, because a stream can be truncated, damaged or forged. The reader
//! works from the description, so it also reads traces that other tracers have described.
//!
//! ```text
//!   ClassDecl ─▶ metadata::write ─▶ text ─▶ grammar ─▶ syntax ─▶ resolve ─▶ model ─▶ plan
//!                                                         └────▶ own (Dormouse's only)     │
//!   pages as programs fill them ─────────────────▶ stream files ──▶ StreamReader ◀─────────┘
//!   StateRecord ─▶ PacketWriter ─────────────────▶                       ├─▶ Merge ─▶ events
//!                                                                        └─▶ Stats
//!
//!   one stream file:  ┌────────┬─────────┬────────┬────────┬───┬─────────┬────────┬───
//!                     │ header │ context │ record │ record │ … │ padding │ header │ …
//!                     └────────┴─────────┴────────┴────────┴───┴─────────┴────────┴───
//!                                         content_size            packet_size
//! ```
//!
//! * [`metadata`]: writes TSDL and the JSON of CTF 2, and reads both from any tracer. Errors carry their position.
//! * [`model`]: the content of the metadata, independent of their syntax.
//! * [`plan`]: the compiled form of a model. Headers are read by a table of constant offsets, fixed-size records by
//!   their size, other records by a program.
//! * [`trace`]: a trace of any tracer, ready to be read.
//! * [`stream`]: packets and events of one stream.
//! * [`merge`]: events of all streams in time order. Their files are read by `dormouse-reader`.
//! * [`select`]: selection of events, and the writers of events.
//! * [`stats`]: statistics of whole traces, without merging them.
//! * [`time`]: clocks and dates.
//! * [`hash`]: hash maps for lookups on every event.
//!
//! Only for Dormouse's traces:
//!
//! * [`class`]: event classes by id.
//! * [`value`]: values of fields, borrowed from the stream.
//! * [`packet`]: the packet header, and a writer of the state stream's packets.
//! * [`state`]: the records of the state stream, which the session owner writes.
//! * [`loss`]: lost events.
//! * [`totals`]: the numbers of events and packets in each stream when the trace was closed.
//!
//! # Hostile bytes
//! Every decoder is total. A length or count is compared with the available bytes before it is used, no allocation
//! depends on a size that a stream claims, and each fault becomes a [`stream::Notice`]. Reading continues at the next
//! packet as long as the sizes can be trusted. A decoder cannot see that a stream is missing or ends too early; this is
//! found by comparison with the metadata, if they have [`totals`]. Metadata are bounded too: nested braces, structures
//! and arrays (64 levels), the fields that named structures can expand to, and the fields of all classes together
//! (2^21), because each event class has its own copy of its stream's contexts. Elements of size zero, which need no
//! bytes, are limited to 1,024 a record.
//!
//! # Limits
//! * No extensions of CTF 2 are supported, and floating-point numbers have at most 64 bits (`metadata::json` lists all
//!   limits).
//! * Payload fields that are mapped to a clock do not set the time. A header can give at most four lengths and tags to
//!   other fields.
//! * A field name that occurs twice in a class, is not a C identifier, or is a word of TSDL (`Bool`) gets a `_` where
//!   it is needed, so that one careless program does not make the metadata of a whole session unreadable.
//! * Ticks are converted to nanoseconds as in `babeltrace2`, with its rounding ([`time::Scale::epoch_ns`]). Events are
//!   ordered by nanoseconds.
//!
//! # Source
//! Common Trace Format 1.8.3, <https://diamon.org/ctf/v1.8.3/>: clause 4 (types), 5 (packet header and context),
//! 6 (event header and context), 7 (TSDL), 8 (clocks). Common Trace Format 2, CTF2-SPEC-2.0, <https://diamon.org/ctf/>. JSON text
//! sequences: RFC 7464.
#![forbid(unsafe_code)]
// Output is left to the programs that use this crate.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod class;
pub mod hash;
pub mod loss;
pub mod merge;
pub mod metadata;
pub mod model;
pub mod packet;
pub mod plan;
pub mod select;
pub mod state;
pub mod stats;
pub mod stream;
pub mod time;
pub mod totals;
pub mod trace;
pub mod value;

#[cfg(test)]
extern crate self as dormouse_ctf;
/// The test crate depends on this crate. Included as a module, it uses the types of the crate under test.
#[cfg(test)]
#[path = "../../../tests/traces/src/lib.rs"]
pub mod testing;

pub use class::{Class, Classes};
pub use loss::{Cause, Losses, StatedLosses};
pub use merge::Merge;
pub use metadata::{Format, Metadata, MetadataError, MetadataOptions};
pub use packet::{PacketHeader, PacketWriter};
pub use select::{ClassRef, Selection, Writer, Writers};
pub use state::StateRecord;
pub use stats::{Refusal, Stats};
pub use stream::{
    ClassCounts, Event, FirstPacket, IntervalCounts, Notice, PacketSpan, Position, Problem, RecordError, Scratch,
    Source, StreamReader, TraceRef, count_records, first_record_since,
};
pub use time::{Clock, Correction};
pub use totals::{StreamTotals, Totals};
pub use trace::Trace;
pub use value::{Sequence, Value};

/// Little-endian reads at an offset that the caller has already checked.
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
