//! Readers of a value under updates: each turn is a process of the engine, which reads on one CPU and updates on another.

use std::collections::BTreeMap;
use std::process::Command;

use dormouse_testing::printed;

use super::ENGINE;
use crate::engine::engine_path;
use crate::plan::{in_turn, labels};
use crate::statistics::measurement;
use crate::{Experiment, LabError, RunOptions};

/// Updates in a second, and how names have them.
const RATES: [(&str, &str); 4] =
    [("0", "idle"), ("10", "10-a-second"), ("1000", "1000-a-second"), ("100000", "100000-a-second")];

/// Length of a turn in ms, for a full and a quick experiment.
const TURN_MS: [&str; 2] = ["500", "60"];

/// Figures of a turn: the engine's name of it, the state and tool of its measurement, and its unit.
const FIGURES: [(&str, &str, &str, &str); 6] = [
    ("reads", "reads", "", "1/ns"),
    ("p50", "batch", "p50", "ns"),
    ("p99", "batch", "p99", "ns"),
    ("p99.9", "batch", "p99.9", "ns"),
    ("max", "batch", "max", "ns"),
    ("rate", "updates", "", "1/s"),
];

/// Measures all rates in turn. A read that returned a wrong value is an error.
pub(super) fn measure(options: &RunOptions) -> Result<Experiment, LabError> {
    let engine = engine_path(ENGINE)?;
    let [reader, updater] = [0, 1].map(|index| options.cpus[index].to_string());
    let turn_ms = TURN_MS[usize::from(options.is_quick)];
    let rounds = options.rounds(8, 40);
    let mut turns: [Vec<BTreeMap<String, f64>>; RATES.len()] = Default::default();
    in_turn("imv: readers under updates", rounds, RATES.len(), None, |_, index, bar| {
        let (rate, name) = RATES[index];
        bar.set_message(name);
        let mut command = Command::new(&engine);
        command.args(["updates", &reader, &updater, rate, turn_ms, options.policy.as_str()]);
        let text = printed(&mut command, ENGINE).map_err(LabError::Engine)?;
        let found: BTreeMap<String, f64> =
            serde_json::from_str(&text).map_err(|error| LabError::Engine(format!("{error}: {text}")))?;
        if found.get("violations") != Some(&0.0) {
            return Err(LabError::Engine(format!("reads of a value that is updated were wrong: {text}")));
        }
        turns[index].push(found);
        Ok(())
    })?;
    let mut measurements = Vec::new();
    for ((_, rate), turns) in RATES.into_iter().zip(&turns) {
        for (of, state, tool, unit) in FIGURES {
            let name = [state, tool, rate].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
            let samples: Vec<f64> = turns.iter().filter_map(|turn| turn.get(of).copied()).collect();
            let pairs = [("state", state), ("tool", tool), ("rate", rate)];
            let pairs: Vec<_> = pairs.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            measurements.push(crate::Measurement { labels: labels(&pairs), ..measurement(&name, unit, &samples) });
        }
    }
    let updates: f64 = turns.iter().flatten().filter_map(|turn| turn.get("updates")).sum();
    let note = format!(
        "a value was updated {updates} times while another thread read it; no read returned an old value after an update, or one \
         that nobody had set; {rounds} rounds of {turn_ms} ms at each rate"
    );
    Ok(Experiment { measurements, notes: vec![note], ..Experiment::default() })
}
