//! Answers questions about traces: how many, how much, how long, how often, and what differs.
//!
//! A trace has millions of events. The answer to a question must come from one pass over them, in memory that does not
//! grow with the trace, and each figure must say how reliable it is.
//!
//! ```text
//!   traces ──▶ Merge ──▶ Analysis::event ── pick the fields ──▶ key ──▶ Groups ──▶ Report ──▶ JSON
//!                 notices ──▶ Analysis::notice ── losses ──▶ Pairs ──────▲           │
//!                                                                       another's ──▶ Diff
//! ```
//!
//! * [`Query`]: the question. Asking for something that the traces lack is an error that names the nearest name.
//! * [`Analysis`]: reads events in the order of time.
//! * [`Distribution`]: exact count, sum, mean, minimum and maximum; percentiles by a sketch.
//! * [`clocks`]: aligns the clocks of several hosts.
//! * [`timeline`]: tracks with slices, instants, counters, flows and losses, for pictures and exports.
//! * [`during`]: the events that belong to a slice, on all its threads.
//! * [`Report`]: the answer. [`Diff`]: two reports compared, with confidence intervals.
//!
//! # Limits
//! Memory is bounded: there are limits for the number of groups, the length of each text in a group's name, and the
//! numbers of begins without ends, of processes, and of losses that are listed one by one. Anything beyond a limit is
//! counted. Pairs of one key can nest: an end belongs to the most recent begin of its key that is still open.
#![forbid(unsafe_code)]
// The caller decides what is printed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod analysis;
pub mod clocks;
mod diff;
mod distribution;
pub mod during;
mod found_key;
mod group;
mod key;
mod pair;
mod pick;
mod query;
mod report;
mod schema;
pub mod timeline;

pub use analysis::Analysis;
pub use diff::{Diff, Figure, Ratios, Sample};
pub use distribution::{Distribution, Number, PERCENTILES, RELATIVE_ERROR};
pub use dormouse_ctf::hash::{QuickMap, Recent};
pub use key::KeyValue;
pub use pair::{Pair, Pairs, Unpaired};
pub use query::{DISTRIBUTIONS_MAX, GROUPS_MAX, Latency, Measure, Query};
pub use report::{ClassSamples, Key, LatencyReport, Lost, PairFields, Report, Rest, Row, SlowPair};
