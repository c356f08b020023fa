//! The experiments: a folder each, with what is measured and, where it grew out of a paper, what that says (`paper.toml`).

mod compile_job;
mod event;
mod flight_recorder;
mod imv;
mod percpu;
mod relay_write;
mod vring;
mod zero_page;

use crate::paper::Paper;
use crate::{Experiment, Host, LabError, RunOptions};

pub use compile_job::{CompileJobOptions, ENV_PROJECT, ENV_VARIANTS, VARIANTS, find_project, run_compile_job};

/// An experiment that can be run.
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// What it measures.
    pub what: &'static str,
    pub(crate) run: fn(&RunOptions, &Host) -> Result<Experiment, LabError>,
    /// Its `paper.toml`.
    paper: Option<&'static str>,
}

/// All of them.
pub const EXPERIMENTS: [Known; 8] = [
    Known {
        name: "event",
        what: "cost of a dormant and of an armed event, beside the tracers that people use",
        run: event::run_event,
        paper: None,
    },
    Known {
        name: "flight-recorder",
        what: "what writers pay for snapshots, and how many bytes an event takes on disk",
        run: flight_recorder::run_flight_recorder,
        paper: None,
    },
    Known {
        name: "imv",
        what: "cost of a static branch, an immediate value, and their updates, beside global variables",
        run: imv::run_imv,
        paper: Some(include_str!("imv/paper.toml")),
    },
    Known {
        name: "percpu",
        what: "cost of counting with a word for each processor, in five layouts, beside atomics and thread-local words",
        run: percpu::run_percpu,
        paper: Some(include_str!("percpu/paper.toml")),
    },
    Known {
        name: "relay-write",
        what: "cost of writing a record to a buffer of pages, by memcpy, by single stores, and inlined",
        run: relay_write::run_relay_write,
        paper: Some(include_str!("relay_write/paper.toml")),
    },
    Known {
        name: "vring",
        what: "cost of a buffer's way through a virtqueue and back, between two processors, by what was refined since 2015",
        run: vring::run_vring,
        paper: Some(include_str!("vring/paper.toml")),
    },
    Known {
        name: "zero-page",
        what: "time of a codec's frames in memory that nobody has written, beside memory that is there",
        run: zero_page::run_zero_page,
        paper: Some(include_str!("zero_page/paper.toml")),
    },
    Known {
        name: "compile-job",
        what: "time of a C project's build, untraced, dormant and armed, beside LTTng-UST",
        run: compile_job::run,
        paper: Some(include_str!("compile_job/paper.toml")),
    },
];

impl Known {
    /// Whether it grew out of one.
    pub fn has_paper(&self) -> bool {
        self.paper.is_some()
    }

    /// The paper that it grew out of.
    pub fn paper(&self) -> Option<Paper> {
        // Each is read by a test.
        self.paper.and_then(|text| Paper::parse(text).ok())
    }
}

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Known> {
    EXPERIMENTS.iter().find(|known| known.name == name)
}
