//! The lab: experiments that measure what a mechanism costs on the machine at hand, and say how sure that is.
//!
//! # The problem
//! A figure that somebody measured once, on another machine, with another load, proves nothing. An experiment here is a
//! program that anybody can run again; it measures the alternatives in turn (A B A B …) in one run, reports medians with
//! their spread, and states costs as differences from the empty loop of the same round.
//!
//! # The picture
//! ```text
//!   run ── a session of its own ──▶ engine (separate process, pinned, times itself) ── samples ──▶ statistics ──▶ report
//!    ▲                                    │ verified: events in the trace + lost = events that the engine emitted
//!    └────────────────────────────────────┘
//! ```
//!
//! # What there is
//! [`EXPERIMENTS`]: `event`, the cost of a dormant and of an armed event beside that of the clock. [`report`] writes what
//! a run came to as a page with plots.
//!
//! # Limits
//! Wall-clock time only, on whatever the machine is doing besides. A figure is a median over rounds, its interval that of
//! the order statistics: distribution-free, 95 %.

mod event;
mod host;
pub mod report;
mod result;
pub mod statistics;

pub use event::{EventOptions, run_event};
pub use host::Host;
pub use result::{Experiment, Labels, Measurement, Ratio, Report, SCHEMA};

/// Names of the experiments with what they measure.
pub const EXPERIMENTS: &[(&str, &str)] =
    &[("event", "cost of a dormant and of an armed event with one 8-byte field, on one thread")];

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// No such experiment.
    #[error("there is no experiment `{0}`; `dormouse lab list` names them")]
    Unknown(String),
    /// The engine is missing.
    #[error("cannot find {0}; build it with `cargo build --release -p dormouse-lab`")]
    NoEngine(String),
    /// The engine did not do its work.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The session could not be made.
    #[error(transparent)]
    Session(#[from] dormouse_consumer::SessionError),
    /// Something that the system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
}

/// Runs experiments by name.
///
/// # Errors
/// See [`LabError`].
pub fn run(names: &[String], quick: bool) -> Result<Report, LabError> {
    let mut experiments = Vec::new();
    for name in names {
        match name.as_str() {
            "event" => experiments.push(run_event(EventOptions::new(quick))?),
            _ => return Err(LabError::Unknown(name.clone())),
        }
    }
    Ok(Report { schema: SCHEMA, host: Host::read(), experiments })
}
