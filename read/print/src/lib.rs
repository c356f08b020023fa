//! Text of events, statistics and answers, for people and for programs.
//!
//! The codec and the analyses return values; here they become text. The same event has a form for each reader: the
//! lines of `babeltrace2`, which other tools compare and parse; columns for a terminal; and JSON, CSV and logfmt.
//!
//! ```text
//!                ┌─▶ Formatter ──▶ [14:03:05.123456789] (+0.000000012) lair http:request: { cpu_id = 0 }, { id = 7 }
//!   Event ───────┼─▶ People ─────▶ 14:03:05.123456789 nginx 4711 [0] http:request  id=7
//!                └─▶ Lines ──────▶ {"time":"2026-11-21T14:03:05.123456789Z","event":"http:request",…,"fields":{"id":7}}
//!
//!   Stats ─────────▶ StatsTable
//!   Report, Diff ──▶ write_report, write_diff
//!   Slice ─────────▶ SliceHead, then its events as People or Lines
//! ```
//!
//! # Cost
//! [`Formatter`] is for tens of millions of events. It composes the text that all events of a class share once, and
//! repeats the previous event's text up to the first field, with other digits. It reads fields with
//! [`FieldReader`](dormouse_ctf::plan::FieldReader); the other forms visit them.
//!
//! # Limits
//! Programs choose names and texts. Characters in them that could move a terminal's cursor are escaped or replaced,
//! except in CSV, which is not for terminals. The memory for repeated text is bounded.
//!
//! # Source
//! The plugin `sink.text.pretty` of babeltrace 2. JSON: RFC 8259. CSV: RFC 4180. Colours: ECMA-48, 8.3.117.
#![forbid(unsafe_code)]
// Output is left to the programs that use this crate.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod during;
mod events;
mod loss;
mod report;
mod sample;
mod stats;
mod units;

pub use during::{SliceEnd, SliceHead};
pub use events::{
    Buffer, ClockFormat, FieldTexts, Formatter, JsonFields, LineFormat, Lines, People, Within, pair_fields,
    put_json_text,
};
pub use report::{Look, Marks, write_diff, write_report};
pub use stats::StatsTable;
pub use units::duration;
