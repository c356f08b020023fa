//! Checks whether programs can be traced on this machine, and if not, gives reasons and remedies.
//!
//! ```text
//!   Tracing::read ── each is tried in the calling process ──▶ works, or why not ── diagnose ──▶ Finding: value, mark, meaning, remedy
//! ```
//! [`Finding::prevents_tracing`] is set if a fact prevents tracing, or if because of it dormant events read a variable
//! instead of being a single instruction.
//!
//! It also explains, with a remedy, why one program cannot be reached or has not joined a session ([`explain`]).
//! `dormouse-tools` finds these reasons.
//!
//! # Limits
//! The trials use the environment, limits and `prctl` settings of the caller. A traced program with other settings can
//! get other results.

mod finding;
mod print;
mod reason;
mod tracing;

pub use finding::{Finding, Findings, Mark, diagnose, tracing_works};
pub use print::print_findings;
pub use reason::{explain, explain_not_joined, explain_not_preloaded, explain_unjoined};
pub use tracing::{Patching, Tracing};
