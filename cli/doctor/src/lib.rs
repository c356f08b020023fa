//! Whether programs can be traced on this machine, and if not, why and what to do.
//!
//! ```text
//!   Tracing::read ── each is tried in the calling process ──▶ what works, or why not ── diagnose ──▶ Finding: value, mark, meaning, remedy
//! ```
//! A finding that prevents tracing, or makes dormant events read a variable in place of being one instruction, says so:
//! [`Finding::prevents_tracing`].
//!
//! # Limits
//! What is tried is tried with the environment, limits and `prctl` settings of the caller: a traced program that has others may find
//! something else.

mod finding;
mod print;
mod tracing;

pub use finding::{Finding, Findings, Mark, diagnose, tracing_works};
pub use print::print_findings;
pub use tracing::{Patching, Tracing};
