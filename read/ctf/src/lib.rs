//! CTF 1.8 and CTF 2 in memory: reads traces of any tracer.
//!
//! A stream can be truncated, damaged or forged, so nothing that it says is trusted. The reader works from the
//! description of the streams (the metadata, a text in TSDL or JSON), so it reads traces of any tracer. What Dormouse
//! writes into its own traces is defined by `dormouse-format`, below this crate.
//!
//! ```text
//!   metadata ─▶ text ─▶ grammar ─▶ syntax ─▶ resolve ─▶ model ─▶ plan
//!                                     └────▶ own (Dormouse's only) │
//!   stream files ───────────────────────▶ StreamReader ◀───────────┘
//!                                              ├─▶ Merge ─▶ events
//!                                              └─▶ Stats
//!
//!   one stream file:  ┌────────┬─────────┬────────┬────────┬───┬─────────┬────────┬───
//!                     │ header │ context │ record │ record │ … │ padding │ header │ …
//!                     └────────┴─────────┴────────┴────────┴───┴─────────┴────────┴───
//!                                         content_size            packet_size
//! ```
//!
//! * [`metadata`]: reads TSDL and the JSON of CTF 2 from any tracer. Errors carry their position.
//! * [`model`]: the content of the metadata, independent of their syntax.
//! * [`plan`]: the compiled form of a model. Headers are read by a table of constant offsets, fixed-size records by
//!   their size, other records by a program.
//! * [`trace`]: a trace of any tracer, ready to be read.
//! * [`stream`]: packets and events of one stream.
//! * [`merge`]: events of all streams in time order. Their files are read by `dormouse-reader`.
//! * [`select`]: selection of events, the writers of events, and the weights of events that are a sample.
//! * [`processes`]: the programs that process ids stood for, by time.
//! * [`stats`]: statistics of whole traces, without merging them.
//! * [`time`]: clocks and dates.
//! * [`hash`]: hash maps for lookups on every event.
//!
//! Only for Dormouse's traces:
//!
//! * [`Classes`]: event classes by id, with the plan that follows from the fixed layout.
//! * [`value`]: values of fields, borrowed from the stream.
//!
//! # Hostile bytes
//! Every decoder is total. A length or count is compared with the available bytes before it is used, no allocation
//! depends on a size that a stream claims, and each fault becomes a [`stream::Notice`]. Reading continues at the next
//! packet as long as the sizes can be trusted. A decoder cannot see that a stream is missing or ends too early; this is
//! found by comparison with the metadata, if they have [`Totals`]. Metadata are bounded too: nested braces, structures
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

pub mod hash;
pub mod merge;
pub mod metadata;
pub mod model;
mod own_classes;
pub mod plan;
pub mod processes;
pub mod select;
pub mod stats;
pub mod stream;
pub mod time;
pub mod trace;
pub mod value;

#[cfg(test)]
extern crate self as dormouse_ctf;
/// The test crate depends on this crate. Included as a module, it uses the types of the crate under test.
#[cfg(test)]
#[path = "../../../tests/traces/src/lib.rs"]
pub mod testing;

pub use dormouse_format::{
    Clock, Format, MetadataOptions, PacketHeader, Refusal, StateRecord, StatedLosses, StreamTotals, Totals, loss,
};
pub use merge::Merge;
pub use metadata::{Metadata, MetadataError};
pub use own_classes::{Class, Classes};
pub use processes::Processes;
pub use select::{ClassRef, KeptValues, PairEnd, PairFilter, Selection, TailSampler, Weights, Writer, Writers};
pub use stats::Stats;
pub use stream::{
    ClassCounts, Event, FirstPacket, IntervalCounts, Notice, PacketSpan, PageCopy, PagePlace, PageRecord, PageRecords,
    Position, Problem, RecordError, Scratch, Source, StreamReader, TraceRef, count_records, first_record_since,
};
pub use time::Correction;
pub use trace::Trace;
pub use value::{Sequence, Value};
