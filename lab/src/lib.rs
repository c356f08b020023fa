//! The lab: experiments that measure what a mechanism costs on the machine at hand, and say how sure that is.
//!
//! ```text
//!   experiments: cases × axes        compile_job: ways to build a project
//!     │                                   │
//!     ├── sessions of ours; peers, lttng ─┤         each verified by counts: arrived + lost = emitted
//!     ▼                                   │
//!    plan  ◀── lines of JSON ──▶ engines  │         every case once a round, in an order drawn anew
//!     │ samples                           │ samples
//!     ▼                                   ▼
//!   statistics ───────────────────────▶ result ◀── lab/machine: facts, who disturbed it, what it does to figures
//!                                         ├─▶ report, paper, grid     to be read
//!                                         └─▶ compare                 with another result
//! ```
//! An engine is a process of its own, pinned, which times its own loops; all of them are made of one harness, `dormouse-lab-harness`.
//! `lab/METHODOLOGY.md` says what figures mean, `lab/BIAS.md` where they may mislead.

// Who calls says what there is to say.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod compare;
pub mod engine;
pub mod engines;
#[path = "../experiments/mod.rs"]
pub mod experiments;
pub mod grid;
pub mod paper;
mod plan;
pub mod report;
mod result;

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
    #[error("cannot find {0}; `cargo xtask lab` builds it, `cargo xtask install --prefix DIR --with-lab` installs it")]
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
