//! The experiments. Each has a folder with its code and, if it grew out of a paper, the paper's statements and figures
//! (`paper.toml`).

mod compile_job;
mod event;
mod filter;
mod flight_recorder;
mod imv;
mod percpu;
mod query;
mod reader;
mod relay_write;
mod vring;
mod zero_page;

use crate::paper::Paper;
use crate::{Experiment, Host, LabError, RunOptions};

pub use compile_job::{VARIANTS, find_project, run_compile_job};

/// Runs an experiment.
type Run = fn(&RunOptions, &Host) -> Result<Experiment, LabError>;

/// An experiment that can be run.
pub struct Known {
    /// Name of the experiment.
    pub name: &'static str,
    /// Description of what it measures.
    pub what: &'static str,
    pub(crate) run: Run,
    /// Content of its `paper.toml`.
    paper: Option<&'static str>,
}

/// All experiments.
pub const EXPERIMENTS: [Known; 11] = [
    Known::new("event", event::run_event, None)
        .of("cost of a dormant and of an armed event, beside the tracers that people use"),
    Known::new("flight-recorder", flight_recorder::run_flight_recorder, None)
        .of("what writers pay for snapshots, and how many bytes an event takes on disk"),
    Known::new("imv", imv::run_imv, Some(include_str!("imv/paper.toml")))
        .of("cost of a static branch, an immediate value, and their updates, beside global variables"),
    Known::new("percpu", percpu::run_percpu, Some(include_str!("percpu/paper.toml")))
        .of("cost of counting with a word for each processor, in five layouts, beside atomics and thread-local words"),
    Known::new("relay-write", relay_write::run_relay_write, Some(include_str!("relay_write/paper.toml")))
        .of("cost of writing a record to a buffer of pages, by memcpy, by single stores, and inlined"),
    Known::new("vring", vring::run_vring, Some(include_str!("vring/paper.toml")))
        .of("cost of a buffer's way through a virtqueue and back, between two processors, by what came since 2015"),
    Known::new("zero-page", zero_page::run_zero_page, Some(include_str!("zero_page/paper.toml")))
        .of("time of a codec's frames in memory that nobody has written, beside memory that is there"),
    Known::new("compile-job", compile_job::run, Some(include_str!("compile_job/paper.toml")))
        .of("time of a C project's build, untraced, dormant and armed, beside LTTng-UST"),
    Known::new("reader", reader::run_reader, Some(include_str!("reader/paper.toml")))
        .of("time and memory of reading a trace, of LTTng-UST's and of ours, beside babeltrace2 and cat"),
    Known::new("query", query::run_query, Some(include_str!("query/paper.toml")))
        .of("time of questions straight to a trace, beside DuckDB over Parquet, and of exports"),
    Known::new("filter", filter::run_filter, Some(include_str!("filter/paper.toml")))
        .of("cost of an event that a rule rejects or accepts, beside LTTng-UST's filters and EnvFilter"),
];

impl Known {
    const fn new(name: &'static str, run: Run, paper: Option<&'static str>) -> Known {
        Known { name, what: "", run, paper }
    }

    /// Sets the description.
    const fn of(self, what: &'static str) -> Known {
        Known { what, ..self }
    }

    /// Returns the paper that the experiment grew out of, if there is one.
    pub fn paper(&self) -> Option<Paper> {
        // A test parses each of them.
        self.paper.and_then(|text| Paper::parse(text).ok())
    }
}

/// Returns the experiment of this name.
pub fn find(name: &str) -> Option<&'static Known> {
    EXPERIMENTS.iter().find(|known| known.name == name)
}
