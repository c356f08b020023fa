//! The lab: experiments that measure the cost of a mechanism on the machine at hand, and how certain that is.
//!
//! ```text
//!   experiments: cases × axes        compile_job: ways to build a project
//!     │                                   │
//!     ├── our sessions; peers, lttng ─────┤         each verified by counts: arrived + lost = emitted
//!     ▼                                   │
//!    plan  ◀── lines of JSON ──▶ engines  │         every case once a round, in an order drawn anew
//!     │ samples                           │ samples
//!     ▼                                   ▼
//!   statistics ───────────────────────▶ result ◀── lab/machine: facts, disturbances, the machine's effect on figures
//!                                         ├─▶ report, paper, grid     for readers
//!                                         └─▶ compare, merge          with another result
//! ```
//! An engine is a process of its own, pinned, which times its own loops; all engines use one harness,
//! `dormouse-lab-harness`. `lab/METHODOLOGY.md` says what figures mean, and `lab/BIAS.md` how they may mislead.

// The caller prints; this crate does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod compare;
pub mod engine;
pub mod engines;
#[path = "../experiments/mod.rs"]
pub mod experiments;
pub mod grid;
pub mod merge;
pub mod paper;
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
pub use result::{Elsewhere, Experiment, Judged, Report, Verdict};

/// Reason why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no experiment of this name.
    #[error("there is no experiment `{0}`; `dormouse lab list` names them")]
    Unknown(String),
    /// The program of an engine is missing.
    #[error(
        "cannot find {0}; `cargo xtask lab` builds it, and `cargo xtask install --prefix DIR --with-lab` installs it"
    )]
    NoEngine(String),
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The project to build, or the result of its builds, is wrong.
    #[error("{0}")]
    Project(String),
    /// A signal asked the lab to end.
    #[error("interrupted")]
    Interrupted,
    /// A peer cannot be measured.
    #[error("{0}")]
    Peer(String),
    /// The session could not be created, or the preload library is missing.
    #[error(transparent)]
    Session(#[from] dormouse_owner::Error),
    /// The system refused a request.
    #[error("{what}: {error}")]
    System {
        /// The request.
        what: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
}

/// Options for running experiments.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Whether an experiment takes a few seconds instead of minutes.
    pub is_quick: bool,
    /// Maximum number of rounds of each case that count. A few rounds show that an experiment works, but say nothing
    /// about costs.
    pub rounds_max: usize,
    /// CPUs to measure on. Plain cases run on the first.
    pub cpus: Vec<u32>,
    /// Scheduling policy of the engines.
    pub policy: Policy,
    /// Whether peers are measured too.
    pub has_peers: bool,
    /// Project that `compile-job` builds; for the default see [`experiments::find_project`].
    pub project: Option<PathBuf>,
}

impl RunOptions {
    /// Returns the options for the CPUs that this process may use.
    pub fn new(is_quick: bool) -> RunOptions {
        let cpus = dormouse_lab_machine::cpus();
        RunOptions { is_quick, rounds_max: usize::MAX, cpus, policy: Policy::Other, has_peers: true, project: None }
    }

    /// Returns the number of rounds, given those of a quick experiment and of a full one.
    fn rounds(&self, quick: usize, full: usize) -> usize {
        (if self.is_quick { quick } else { full }).min(self.rounds_max)
    }
}

/// Runs experiments by name.
///
/// # Errors
/// See [`LabError`]. An unknown name is an error before anything runs.
pub fn run(names: &[String], options: &RunOptions) -> Result<Report, LabError> {
    let find = |name: &String| experiments::find(name).ok_or_else(|| LabError::Unknown(name.clone()));
    let known = names.iter().map(find).collect::<Result<Vec<_>, LabError>>()?;
    let mut experiments = Vec::new();
    // Read before the run, while the load is that of other processes.
    let mut host = Host::read();
    let cpu = options.cpus.first().copied().unwrap_or(0);
    let looks = if options.is_quick { probes::LOOKS_BEFORE_QUICK_RUN } else { probes::LOOKS_BEFORE_RUN };
    host.probes = probes::measure(cpu, looks, host.caches_bytes());
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
