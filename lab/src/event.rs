//! Experiment `event`: what an event costs, dormant and armed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use dormouse_consumer::{Mode, Options, Session};
use serde::Deserialize;

use crate::statistics::{measurement, ratio};
use crate::{Experiment, LabError};

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct EventOptions {
    /// Rounds in which each case has its turn.
    pub rounds: u32,
    /// Iterations of a case in one round.
    pub events: u32,
    /// The processor to run on.
    pub cpu: u32,
}

impl EventOptions {
    /// A minute, or a few seconds.
    pub fn new(quick: bool) -> EventOptions {
        let (rounds, events) = if quick { (20, 200_000) } else { (100, 1_000_000) };
        let last = std::thread::available_parallelism().map_or(1, usize::from) as u32 - 1;
        EventOptions { rounds, events, cpu: last }
    }
}

#[derive(Debug, Deserialize)]
struct Output {
    pinned: bool,
    armed_events: u64,
    samples: HashMap<String, Vec<f64>>,
}

const ENGINE: &str = "dormouse-lab-engine";

fn engine() -> Result<PathBuf, LabError> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(ENGINE)));
    beside.filter(|path| path.is_file()).ok_or_else(|| LabError::NoEngine(ENGINE.into()))
}

/// Runs the experiment in a session of its own, in overwrite mode: no page is ever waited for or written to disk meanwhile.
///
/// # Errors
/// See [`LabError`].
pub fn run_event(options: EventOptions) -> Result<Experiment, LabError> {
    let engine = engine()?;
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let session = Session::create(&Options {
        dir: dir.path().join("trace"),
        // A few pages that stay in the cache: the cost of the mechanism, not of the memory.
        budget_bytes: 1 << 20,
        mode: Mode::Overwrite,
        patterns: vec!["lab:armed".into()],
        command_line: ENGINE.into(),
        may_be_stopped: false,
    })?;
    let output = Command::new(engine)
        .args([options.rounds, options.events, options.cpu].map(|number| number.to_string()))
        .env("DORMOUSE_SESSION", session.socket())
        .output()
        .map_err(|error| LabError::System { what: "engine", error })?;
    let summary = session.finish();
    if !output.status.success() {
        return Err(LabError::Engine(String::from_utf8_lossy(&output.stderr).trim().into()));
    }
    let output: Output = serde_json::from_slice(&output.stdout).map_err(|error| LabError::Engine(error.to_string()))?;
    if summary.events == 0 || summary.events > output.armed_events {
        let text = format!("{} events are in the trace of {} emitted", summary.events, output.armed_events);
        return Err(LabError::Engine(text));
    }
    let samples = |name: &str| output.samples.get(name).cloned().unwrap_or_default();
    let empty = samples("empty_loop");
    let added = |name: &str| -> Vec<f64> { samples(name).iter().zip(&empty).map(|(a, b)| a - b).collect() };
    let (dormant, armed, clock) = (added("dormant"), added("armed"), added("timestamp_counter"));
    let mut notes = vec![format!(
        "each case less the empty loop of the same round; {} iterations a round, one thread on processor {}",
        options.events, options.cpu
    )];
    if !output.pinned {
        notes.push("the thread could not be pinned".into());
    }
    Ok(Experiment {
        name: "event".into(),
        measurements: vec![
            measurement("empty_loop", "ns", &empty),
            measurement("dormant", "ns", &dormant),
            measurement("armed", "ns", &armed),
            measurement("timestamp_counter", "ns", &clock),
        ],
        ratios: vec![ratio("armed_vs_timestamp_counter", &armed, &clock)],
        notes,
    })
}
