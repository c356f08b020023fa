//! Questions to traces: how many, how much, how long, how often, and what differs.
//!
//! The problem: a trace has millions of events, and a person has a question. Its answer is to be had in one pass over the events, in memory that does
//! not grow with the trace, and each figure has to say how far it is to be believed.
//!
//! ```text
//!   traces ──▶ Merge ──▶ Analysis::event ── pick the fields ──▶ key ──▶ Groups ──▶ Report ──▶ text, JSON
//!                 notices ──▶ Analysis::notice ── losses ──▶ Pairs ──────▲           │
//!                                                                       another's ──▶ Diff
//! ```
//!
//! * [`Query`]: what is asked; what the traces do not have is an error that names the nearest.
//! * [`Analysis`]: reads events in the order of time.
//! * [`Distribution`]: count, sum, mean, least and greatest, exact; percentiles by a sketch.
//! * [`clocks`]: clocks of several hosts brought together.
//! * [`timeline`]: tracks with slices, instants, counters, flows and losses, for pictures and exports.
//! * [`Report`]: the answer. [`Diff`]: two of them beside each other, with intervals.
//!
//! # Limits
//! Memory is bounded: groups, texts in their names, begins without ends, processes, and losses that are told one by one have limits, and what is
//! beyond is counted. Pairs are of one level: an end belongs to the last begin of its key that is open.
#![forbid(unsafe_code)]
// Who calls says what there is to say.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod analysis;
pub mod clocks;
mod diff;
mod distribution;
mod group;
mod key;
mod pair;
mod pick;
mod query;
mod report;
mod schema;
mod text;
pub mod timeline;

pub use analysis::Analysis;
pub use diff::{Diff, Figure, Ratios, Sample};
pub use distribution::{Distribution, Number, PERCENTILES, RELATIVE_ERROR};
pub use dormouse_ctf::hash::{QuickMap, Recent};
pub use key::KeyValue;
pub use pair::{Pair, Pairs, Unpaired};
pub use query::{DISTRIBUTIONS_MAX, GROUPS_MAX, Latency, Measure, Query};
pub use report::{Key, LatencyReport, Lost, Report, Rest, Row, SlowPair};
pub use text::{Marks, duration};
