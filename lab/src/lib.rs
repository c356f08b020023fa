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
//!                                         ├─▶ table, report           to be read
//!                                         └─▶ compare                 with another result
//! ```
//! An engine is a process of its own, pinned, which times its own loops; all of them, whatever tracer they are for, are made
//! of one harness, the crate `dormouse-lab-harness`.
//!
//! # What there is
//! | module | what is in it |
//! | --- | --- |
//! | `event` | experiment: a dormant and an armed event beside the tracers that people use |
//! | `flight_recorder` | experiment: writers beside snapshots, and bytes of an event on disk |
//! | `imv` | experiment: static branches and immediate values, and changing them, beside global variables |
//! | `relay_write` | experiment: the write to a buffer of pages, by memcpy called, by single stores, inlined |
//! | `vring` | experiment: virtqueues between two processors, with and without the shadow and what came after |
//! | [`zero_page`] | experiment: a codec's frames from the zero page and from memory, and what the first touch costs |
//! | `compile_job` | experiment: a real build without tracing, dormant, and armed, beside LTTng-UST |
//! | `engine`, `engines` | driving an engine; all of an experiment's, with its peers', from their start to the count of their events |
//! | `rounds` | every case in turn, in an order drawn anew for each round |
//! | `plan` | from what is measured to figures: labels, walks, costs beyond empty loops |
//! | [`peers`], [`lttng`] | other tracers: their engines, their sessions, their own counts |
//! | [`statistics`] | medians, intervals, ratios of pairs, warm-up, outliers |
//! | [`mod@host`], [`neighbours`] | the machine, and who disturbed it |
//! | [`probes`] | core clock, caches, scheduler, clock source, interruptions and page backing, measured on the spot |
//! | [`doctor`] | what the machine's facts mean for tracing and for figures |
//! | `result`, `table`, [`report`] | results as JSON, as text, as a page with plots |
//! | [`compare`] | what differs between two results, and what to suspect |
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
mod compile_job;
pub mod doctor;
mod engine;
mod engines;
mod event;
mod fact;
mod figures;
mod flight_recorder;
pub mod host;
mod imv;
mod intervals;
pub mod lttng;
pub mod neighbours;
pub mod peers;
mod percpu;
mod plan;
pub mod probes;
mod relay_write;
pub mod report;
mod result;
mod rounds;
pub mod statistics;
mod table;
mod vring;
pub mod zero_page;

use std::path::PathBuf;

pub use compile_job::{CompileJobOptions, ENV_PROJECT, ENV_VARIANTS, VARIANTS, find_project, run_compile_job};
pub use dormouse_lab_harness::Policy;
pub use event::run_event;
pub use figures::{Labels, Measurement, Ratio};
pub use flight_recorder::run_flight_recorder;
pub use host::Host;
pub use imv::run_imv;
pub use neighbours::Neighbours;
pub use percpu::run_percpu;
pub use relay_write::run_relay_write;
pub use result::{Experiment, Report, SCHEMA};
pub use table::table;
pub use vring::run_vring;
pub use zero_page::run_zero_page;

/// Names of the experiments with what they measure.
pub const EXPERIMENTS: &[(&str, &str)] = &[
    ("event", "cost of a dormant and of an armed event, beside the tracers that people use"),
    ("flight-recorder", "what writers pay for snapshots, and how many bytes an event takes on disk"),
    ("imv", "cost of a static branch, an immediate value, and their updates, beside global variables"),
    (
        "percpu",
        "cost of counting with a word for each processor, in five layouts, beside atomics and thread-local words",
    ),
    ("relay-write", "cost of writing a record to a buffer of pages, by memcpy, by single stores, and inlined"),
    (
        "vring",
        "cost of a buffer's way through a virtqueue and back, between two processors, by what was refined since 2015",
    ),
    ("zero-page", "time of a codec's frames in memory that nobody has written, beside memory that is there"),
    ("compile-job", "time of a C project's build, untraced, dormant and armed, beside LTTng-UST"),
];

/// What the document that an experiment grew out of says, beside what was found; empty for most.
pub(crate) fn seed_tables(experiment: &Experiment) -> String {
    let of_builds = compile_job::seed::tables(experiment);
    imv::seed::tables(experiment)
        + &percpu::seed::tables(experiment)
        + &relay_write::seed::tables(experiment)
        + &vring::seed::tables(experiment)
        + &zero_page::seed::tables(experiment)
        + &of_builds
}

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
    /// The project that `compile-job` builds; see [`find_project`] for where it is looked for otherwise.
    pub project: Option<PathBuf>,
}

impl RunOptions {
    /// All but the first of the processors that this process may use come first: that one has most interrupts to serve.
    pub fn new(is_quick: bool) -> RunOptions {
        let allowed = rustix::thread::sched_getaffinity(None).ok();
        let mut cpus: Vec<u32> = match allowed {
            Some(set) => {
                (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect()
            }
            None => vec![0],
        };
        let first = 1.min(cpus.len() - 1);
        cpus.rotate_left(first);
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
    let is_known = |name: &String| EXPERIMENTS.iter().any(|(known, _)| known == name);
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        return Err(LabError::Unknown(name.clone()));
    }
    let mut experiments = Vec::new();
    // Before the run, while the load is that of others.
    let mut host = Host::read();
    host.probes = probes::measure(options.cpus.first().copied().unwrap_or(0), true, host.caches_bytes());
    for name in names {
        let neighbours = Neighbours::watch(&[std::process::id()], options.cpus.get(..1).unwrap_or_default());
        let mut experiment = match name.as_str() {
            "event" => run_event(options, &host)?,
            "flight-recorder" => run_flight_recorder(options, &host)?,
            "imv" => run_imv(options, &host)?,
            "percpu" => run_percpu(options, &host)?,
            "relay-write" => run_relay_write(options, &host)?,
            "vring" => run_vring(options, &host)?,
            "zero-page" => run_zero_page(options, &host)?,
            "compile-job" => run_compile_job(&CompileJobOptions::new(options))?,
            _ => return Err(LabError::Unknown(name.clone())),
        };
        let findings = neighbours.stop();
        experiment.notes.extend(findings.notes());
        host.absorb(&findings);
        experiments.push(experiment);
    }
    Ok(Report { schema: SCHEMA, host, experiments })
}
