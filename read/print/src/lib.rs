//! Events as text: in the format of `babeltrace2`, for people, and as JSON, CSV and logfmt.
#![forbid(unsafe_code)]
// Output is left to the programs that use this crate.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod events;
mod report;
mod stats;

pub use events::{Buffer, ClockFormat, FieldTexts, Formatter, JsonFields, LineFormat, Lines, People, put_json_text};
pub use report::{Marks, duration, write_diff, write_report};
pub use stats::StatsTable;
