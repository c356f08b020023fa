//! CTF 1.8 and CTF 2, bytes in and bytes out: writes the metadata and the state packets of Dormouse, reads the traces of anybody.
//!
//! The problem: a page that traced programs fill goes to disk as it is, so the bytes *are* the trace and nobody
//! formats them again. What is left is to describe them (the metadata, a text in TSDL or JSON) so that tools which nobody here
//! wrote can read them, and to read them back without trusting them: a stream may be cut off, damaged or forged. Who can read by a
//! description can read what others have described.
//!
//! ```text
//!   ClassDecl ─▶ metadata::write ─▶ text ─▶ grammar ─▶ syntax ─▶ resolve ─▶ model ─▶ plan
//!                                                         └────▶ own (what only ours say)  │
//!   pages as programs fill them ─────────────────▶ stream files ──▶ StreamReader ◀─────────┘
//!   StateRecord ─▶ PacketWriter ─────────────────▶                       ├─▶ Merge ─▶ text::Formatter
//!                                                                        └─▶ Stats
//!
//!   one stream file:  ┌────────┬─────────┬────────┬────────┬───┬─────────┬────────┬───
//!                     │ header │ context │ record │ record │ … │ padding │ header │ …
//!                     └────────┴─────────┴────────┴────────┴───┴─────────┴────────┴───
//!                                         content_size            packet_size
//! ```
//!
//! * [`metadata`]: writes TSDL and the JSON of CTF 2, and reads anybody's; errors have their place.
//! * [`model`]: what metadata say, independent of their text.
//! * [`plan`]: what is compiled from a model: headers by a table of constant places, fixed records by their size, others by a program.
//! * [`trace`]: a trace of anybody, ready to be read.
//! * [`stream`]: packets and events of one stream.
//! * [`merge`]: events of all streams in the order of time. Reading their files is `dormouse-reader`'s.
//! * [`select`]: which events are wanted, and who wrote them.
//! * [`text`]: an event as `babeltrace2` prints it, for people, and as JSON, CSV and logfmt.
//! * [`stats`]: what whole traces hold, without merging them.
//! * [`time`]: clocks, and dates.
//! * [`hash`]: maps that are asked for every event.
//!
//! Of Dormouse's traces alone:
//!
//! * [`class`]: the event classes by their ids.
//! * [`value`]: what a field holds, borrowed from the stream.
//! * [`packet`]: the packet header, and a writer of the state stream's packets.
//! * [`state`]: the records of the state stream, which the session owner writes.
//! * [`loss`]: what is lost.
//! * [`totals`]: what streams held when the trace was closed.
//!
//! # Hostile bytes
//! Every decoder is total. A length or count is compared with the bytes that are there before it is believed, nothing is
//! allocated by the size that a stream claims, and what is wrong becomes a [`stream::Notice`]: reading goes on at
//! the next packet wherever the sizes can still be trusted. What no decoder can see, that a stream is not there or ends too early,
//! shows where the metadata say what the streams hold ([`totals`]). Metadata are bounded too: braces, structures and
//! arrays in one another (64), the fields that structures by name can multiply to, and those of all classes together (2^21), as each class of events has
//! the contexts of its stream for itself. Of elements without size, for which no byte pays, a record has at most 1,024.
//!
//! # Limits
//! * Of CTF 2 no extension is known, and floating-point numbers have at most 64 bits (`metadata::json` has all limits).
//! * Fields of payloads that are mapped to a clock do not set the time. Headers give at most four lengths and tags to other fields.
//! * Field names that occur twice in a class, or are no C identifiers, or would be words of TSDL (`Bool`), get a `_` where
//!   that is needed: one careless program must not make the metadata of a whole session unreadable.
//! * Ticks become nanoseconds as in `babeltrace2`, with its rounding ([`time::Scale::epoch_ns`]); events are ordered by nanoseconds.
//!
//! # Source
//! Common Trace Format 1.8.3, <https://diamon.org/ctf/v1.8.3/>: clause 4 (types), 5 (packet header and context),
//! 6 (event header and context), 7 (TSDL), 8 (clocks). Common Trace Format 2, CTF2-SPEC-2.0, <https://diamon.org/ctf/>. JSON text
//! sequences: RFC 7464.
#![forbid(unsafe_code)]
// Who calls says what there is to say.
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
