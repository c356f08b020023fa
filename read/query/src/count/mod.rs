//! Counting without building rows: for `count(*)` by class and by interval of time, if nothing else is selected.
//!
//! ```text
//!   before                                          after the rule
//!   AggregateExec: Final                            AggregateExec: Final
//!     AggregateExec: Partial, gby=[class, time_…]     TraceExec: counts             the reader counts records by their headers
//!       TraceExec                                 or  CountExec                     a batch of a file is of one class, and its times are in order
//!                                                       DataSourceExec
//! ```
//! Both return what the partial aggregation would have returned: groups with their counts; a group can occur several
//! times.

mod exec;
mod rule;
mod spec;
mod trace;

pub(crate) use exec::CountExec;
pub(crate) use rule::replace;
pub(crate) use spec::Spec;

/// Number of groups after which a batch is emitted. It can have a few more.
const GROUPS: usize = 64 << 10;
