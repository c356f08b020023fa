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
//! [`EXPERIMENTS`]: `event`, the cost of a dormant and of an armed event beside that of the clock.
//!
//! # Limits
//! Wall-clock time only, on whatever the machine is doing besides. A figure is a median over rounds, its interval that of
//! the order statistics: distribution-free, 95 %.

mod event;
mod host;
pub mod statistics;

use serde::Serialize;

pub use event::{EventOptions, run_event};
pub use host::Host;

/// Names of the experiments with what they measure.
pub const EXPERIMENTS: &[(&str, &str)] =
    &[("event", "cost of a dormant and of an armed event with one 8-byte field, on one thread")];

/// A figure with its spread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// What was measured.
    pub name: String,
    /// Unit of all figures.
    pub unit: String,
    /// How many rounds.
    pub n: usize,
    /// The median.
    pub median: f64,
    /// Median of the absolute deviations from the median.
    pub mad: f64,
    /// The mean.
    pub mean: f64,
    /// Standard deviation of the rounds.
    pub stddev: f64,
    /// 95 % interval of the median.
    pub ci95: [f64; 2],
}

/// A ratio of two added costs, round by round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// `a_vs_b`.
    pub name: String,
    /// Median of the rounds' ratios.
    pub value: f64,
    /// 95 % interval of that median.
    pub ci95: [f64; 2],
}

/// What an experiment came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// The figures.
    pub measurements: Vec<Measurement>,
    /// The ratios.
    pub ratios: Vec<Ratio>,
    /// What a reader has to know.
    pub notes: Vec<String>,
}

/// What a run prints for machines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Version of this layout.
    pub schema: u32,
    /// The machine.
    pub host: Host,
    /// The experiments, in the order of the command line.
    pub experiments: Vec<Experiment>,
}

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
    Ok(Report { schema: 1, host: Host::read(), experiments })
}
