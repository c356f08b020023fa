//! Counting without rows: `count(*)`, by class and by interval of time, where nothing else is asked.
//!
//! ```text
//!   before                                          behind the rule
//!   AggregateExec: Final                            AggregateExec: Final
//!     AggregateExec: Partial, gby=[class, time_…]     TraceExec: counts             the reader counts records by their headers
//!       TraceExec                                 or  CountExec                     a batch of a file is of one class, and its times are in order
//!                                                       DataSourceExec
//! ```
//! Both give what the partial aggregation would have given: groups with their counts, of which some can come more than once.

mod exec;
mod rule;
mod spec;
mod trace;

pub(crate) use exec::CountExec;
pub(crate) use rule::replace;
pub(crate) use spec::Spec;

/// Groups that are given at once, or some more.
const GROUPS: usize = 64 << 10;
