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
//! [`EXPERIMENTS`]: `event`, the cost of a dormant and of an armed event beside that of the clock; `compile-job`, a real build
//! without tracing, dormant, and armed, beside LTTng-UST.
//!
//! # Limits
//! Wall-clock time only, on whatever the machine is doing besides. A figure is a median over rounds, its interval that of
//! the order statistics: distribution-free, 95 %.

mod compile_job;
mod event;
mod host;
mod result;
pub mod statistics;

use std::path::Path;

pub use compile_job::{CompileJobOptions, ENV_PROJECT, find_project, run_compile_job};
pub use event::{EventOptions, run_event};
pub use host::Host;
pub use result::{Experiment, Labels, Measurement, Ratio, Report, SCHEMA};

/// Names of the experiments with what they measure.
pub const EXPERIMENTS: &[(&str, &str)] = &[
    ("event", "cost of a dormant and of an armed event with one 8-byte field, on one thread"),
    ("compile-job", "time of a C project's build, untraced, dormant and armed, beside LTTng-UST"),
];

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
    /// The project to build, or what its builds came to, is not as it should be.
    #[error("{0}")]
    Project(String),
    /// The preload library is missing.
    #[error(transparent)]
    Library(#[from] dormouse_consumer::CommandError),
    /// A signal asked for the end.
    #[error("interrupted")]
    Interrupted,
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

/// Runs experiments by name. `project` is what `compile-job` builds.
///
/// # Errors
/// See [`LabError`].
pub fn run(names: &[String], quick: bool, project: Option<&Path>) -> Result<Report, LabError> {
    let mut experiments = Vec::new();
    for name in names {
        match name.as_str() {
            "event" => experiments.push(run_event(EventOptions::new(quick))?),
            "compile-job" => experiments.push(run_compile_job(&CompileJobOptions::new(quick, project))?),
            _ => return Err(LabError::Unknown(name.clone())),
        }
    }
    Ok(Report { schema: SCHEMA, host: Host::read(), experiments })
}
