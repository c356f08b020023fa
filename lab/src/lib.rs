//! The lab: experiments that measure what a mechanism costs on the machine at hand, and say how sure that is.
//!
//! # The problem
//! A figure that somebody measured once, on another machine, with another load, proves nothing. An experiment here is a
//! program that anybody can run again; it measures the alternatives in turn (A B A B …) in one run, reports medians with
//! their spread, and states costs as differences from the empty loop of the same round.
//!
//! # The picture
//! ```text
//!   event, imv: cases × axes         compile_job: ways to build a project
//!     │                                   │
//!     ├── sessions of ours; peers, lttng ─┤         each verified by counts: arrived + lost = emitted
//!     ▼                                   │
//!   rounds ◀── lines of JSON ──▶ engines  │         every case once a round, in an order drawn anew
//!     │ samples                           │ samples
//!     ▼                                   ▼
//!   statistics ───────────────────────▶ result ◀── host, neighbours: the machine, and who disturbed it
//!                                         ├─▶ report                  to be read
//!                                         └─▶ compare                 with another result
//! ```
//! An engine is a process of its own, pinned, which times its own loops; all of them, whatever tracer they are for, are made
//! of one harness, the crate `dormouse-lab-harness`.
//!
//! # What there is
//! | module | what is in it |
//! | --- | --- |
//! | [`experiments`] | a folder for each: what is measured, and the paper that it grew out of |
//! | [`paper`] | a paper's figures and statements beside what was measured, judged by one rule |
//! | [`grid`] | a table, for a terminal, a browser, a document |
//! | `engine`, `engines` | driving an engine; all of an experiment's, with its peers', from their start to the count of their events |
//! | `rounds` | every case in turn, in an order drawn anew for each round |
//! | `plan` | from what is measured to figures: labels, walks, costs beyond empty loops |
//! | [`peers`], [`lttng`] | other tracers: their engines, their sessions, their own counts |
//! | `lab/statistics` | medians, intervals, ratios of pairs, warm-up, outliers |
//! | `lab/machine` | the machine: its facts, who disturbed it, what it does to figures, what all that means |
//! | `lab/engines`, `lab/harness` | the engines, and what they are made of |
//! | `result`, [`report`] | results as JSON; as text, as a page with plots, as what they say to papers |
//! | [`compare`] | what differs between two results, their machines and runs |
//!
//! # Limits
//! A figure is a median over rounds; its 95 % interval, by bootstrap, speaks of this run on this machine. Costs are wall-clock
//! time by the timestamp counter, of loops that do little else. `lab/METHODOLOGY.md` says what figures mean, `lab/BIAS.md` where they
//! may mislead.
//!
//! # Source
//! Named beside each method in [`statistics`] and [`compare`].

// Who calls says what there is to say.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod compare;
mod engine;
mod engines;
#[path = "../experiments/mod.rs"]
pub mod experiments;
pub mod grid;
pub mod lttng;
pub mod paper;
pub mod peers;
mod plan;
pub mod report;
mod result;
mod rounds;

use std::path::PathBuf;

pub use dormouse_lab_harness::Policy;
pub use dormouse_lab_machine::{Host, Neighbours, doctor, host, neighbours, probes};
use dormouse_lab_statistics::intervals;
pub use dormouse_lab_statistics::{self as statistics, Labels, Measurement, Ratio, SCHEMA};
pub use experiments::EXPERIMENTS;
pub use result::{Experiment, Judged, Report, Verdict};

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// No such experiment.
    #[error("there is no experiment `{0}`; `dormouse lab list` names them")]
    Unknown(String),
    /// The engine is missing.
    #[error(
        "cannot find {0}; `cargo xtask lab` builds it and runs the lab, `cargo xtask install --prefix DIR --with-lab` installs both"
    )]
    NoEngine(String),
    /// The engine did not do its work.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The project to build, or what its builds came to, is not as it should be.
    #[error("{0}")]
    Project(String),
    /// A signal asked for the end.
    #[error("interrupted")]
    Interrupted,
    /// A peer cannot be measured.
    #[error("{0}")]
    Peer(String),
    /// The session could not be made, or the preload library is missing.
    #[error(transparent)]
    Session(#[from] dormouse_consumer::Error),
    /// Something that the system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
}

/// How experiments are to be run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// A few seconds instead of minutes.
    pub is_quick: bool,
    /// At most so many rounds of each case that count. A few show that it works, and nothing of what it costs.
    pub rounds_max: usize,
    /// The processors that are measured on, the first one in the plain cases.
    pub cpus: Vec<u32>,
    /// The engines' scheduling policy.
    pub policy: Policy,
    /// Whether the tools that people use are measured too.
    pub has_peers: bool,
    /// The project that `compile-job` builds; see [`experiments::find_project`] for where it is looked for otherwise.
    pub project: Option<PathBuf>,
}

impl RunOptions {
    /// On the processors that this process may use.
    pub fn new(is_quick: bool) -> RunOptions {
        let cpus = dormouse_lab_machine::cpus();
        RunOptions { is_quick, rounds_max: usize::MAX, cpus, policy: Policy::Other, has_peers: true, project: None }
    }

    /// How many rounds, of those that a quick experiment has and that another one has.
    fn rounds(&self, quick: usize, full: usize) -> usize {
        (if self.is_quick { quick } else { full }).min(self.rounds_max)
    }
}

/// Runs experiments by name.
///
/// # Errors
/// See [`LabError`]. An unknown name is one before anything runs.
pub fn run(names: &[String], options: &RunOptions) -> Result<Report, LabError> {
    let find = |name: &String| experiments::find(name).ok_or_else(|| LabError::Unknown(name.clone()));
    let known = names.iter().map(find).collect::<Result<Vec<_>, LabError>>()?;
    let mut experiments = Vec::new();
    // Before the run, while the load is that of others.
    let mut host = Host::read();
    let cpu = options.cpus.first().copied().unwrap_or(0);
    host.probes = probes::measure(cpu, probes::LOOKS_BEFORE_RUN, host.caches_bytes());
    for known in known {
        let neighbours = Neighbours::watch(&[std::process::id()], options.cpus.get(..1).unwrap_or_default());
        let mut experiment = (known.run)(options, &host)?;
        experiment.statements = known.paper().map(|paper| paper.judge(&experiment)).unwrap_or_default();
        let findings = neighbours.stop();
        experiment.notes.extend(findings.notes());
        host.absorb(&findings);
        experiments.push(experiment);
    }
    Ok(Report { schema: SCHEMA, host, experiments })
}
