//! Readers of a value under updates: each turn is a process of the engine, which reads on one CPU and updates on another, and
//! for comparison does not update in every other stretch of a few milliseconds.
//!
//! Beside what is measured stands what is expected: a reader loses what its interrupts cost, each as much as one by a
//! barrier alone.

use std::collections::BTreeMap;
use std::process::Command;

use dormouse_testing::printed;

use super::ENGINE;
use crate::engine::engine_path;
use crate::plan::{in_turn, labels};
use crate::statistics::{measurement, median};
use crate::{Experiment, LabError, Measurement, RunOptions};

/// Turns: updates in a second, what an update does, and how names have them. A value that is updated often becomes a
/// variable, unless each update is to change code.
const TURNS: [(&str, &str, &str); 7] = [
    ("0", "update", "idle"),
    ("10", "patch", "10-a-second"),
    ("1000", "update", "1000-a-second"),
    ("100000", "update", "100000-a-second"),
    ("1000", "patch", "1000-patched"),
    ("100000", "patch", PATCHED),
    ("100000", "barrier", BARRIERS),
];

/// The turns at whose rate interrupts are counted, since there are few others beside them.
const PATCHED: &str = "100000-patched";
/// The turns that have barriers in place of updates, and tell what an interrupt costs.
const BARRIERS: &str = "barriers";

/// Length of a turn in ms, for a full and a quick experiment.
const TURN_MS: [&str; 2] = ["700", "60"];

/// Figures of a turn: the engine's name of it, the state and tool of its measurement, and its unit.
const FIGURES: [(&str, &str, &str, &str); 10] = [
    ("reads", "reads", "", "1/ns"),
    ("idle", "reads-without", "", "1/ns"),
    ("share", "share", "", "of 1"),
    ("lost", "lost", "", "ns"),
    ("interrupts", "interrupts", "", "per update"),
    ("p50", "batch", "p50", "ns"),
    ("p99", "batch", "p99", "ns"),
    ("p99.9", "batch", "p99.9", "ns"),
    ("max", "batch", "max", "ns"),
    ("rate", "updates", "", "1/s"),
];

/// Figures of turns, by the engine's names of them.
type Turns = Vec<BTreeMap<String, f64>>;

/// Returns the values of a figure, of those turns that have it.
fn values(turns: &Turns, of: &str) -> Vec<f64> {
    turns.iter().filter_map(|turn| turn.get(of).copied()).collect()
}

/// Returns the share of its reads that a reader is expected to keep at the rate of each turn, if an update costs
/// `interrupts` times what a barrier has cost, round by round.
fn expected(turns: &Turns, barriers: &Turns, interrupts: f64) -> Vec<f64> {
    let pairs = turns.iter().zip(barriers);
    pairs
        .filter_map(|(turn, barrier)| Some(1.0 - turn.get("rate")? * interrupts * barrier.get("lost")? / 1e9))
        .collect()
}

/// Returns a measurement of a state at a rate.
fn figure(state: &str, tool: &str, rate: &str, unit: &str, samples: &[f64]) -> Measurement {
    let name = [state, tool, rate].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
    let pairs = [("state", state), ("tool", tool), ("rate", rate)];
    let pairs: Vec<_> = pairs.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    Measurement { labels: labels(&pairs), ..measurement(&name, unit, samples) }
}

/// Measures all rates in turn. A read that returned a wrong value is an error.
pub(super) fn measure(options: &RunOptions) -> Result<Experiment, LabError> {
    let engine = engine_path(ENGINE)?;
    let [reader, updater] = [0, 1].map(|index| options.cpus[index].to_string());
    let turn_ms = TURN_MS[usize::from(options.is_quick)];
    let rounds = options.rounds(8, 60);
    let mut turns: [Turns; TURNS.len()] = Default::default();
    in_turn("imv: readers under updates", rounds, TURNS.len(), None, |_, index, bar| {
        let (rate, act, name) = TURNS[index];
        bar.set_message(name);
        let mut command = Command::new(&engine);
        command.args(["updates", &reader, &updater, rate, turn_ms, options.policy.as_str(), act]);
        let text = printed(&mut command, ENGINE).map_err(LabError::Engine)?;
        let found: BTreeMap<String, f64> =
            serde_json::from_str(&text).map_err(|error| LabError::Engine(format!("{error}: {text}")))?;
        if found.get("violations") != Some(&0.0) {
            return Err(LabError::Engine(format!("reads of a value that is updated were wrong: {text}")));
        }
        turns[index].push(found);
        Ok(())
    })?;
    let [updating @ .., barriers] = &turns;
    let interrupts = TURNS.iter().zip(updating).find(|((.., name), _)| *name == PATCHED);
    let interrupts = interrupts.map(|(_, turns)| median(&values(turns, "interrupts"))).unwrap_or_default();
    let mut measurements = Vec::new();
    for ((rate, act, name), turns) in TURNS.into_iter().zip(updating) {
        let figures = FIGURES.iter().filter(|(of, ..)| *of != "interrupts" || name == PATCHED);
        measurements.extend(figures.map(|(of, state, tool, unit)| figure(state, tool, name, unit, &values(turns, of))));
        if rate == "0" || act == "patch" {
            measurements.push(figure("expected", "", name, "of 1", &expected(turns, barriers, interrupts)));
        }
    }
    for (of, unit) in [("share", "of 1"), ("lost", "ns")] {
        measurements.push(figure(of, "", BARRIERS, unit, &values(barriers, of)));
    }
    // A machine may be too busy to leave one pair of stretches alone, or not tell its interrupts.
    measurements.retain(|measurement| measurement.n > 0);
    let sum = |of: &str| -> f64 { updating.iter().map(|turns| values(turns, of).iter().sum::<f64>()).sum() };
    let note = format!(
        "a value was updated {} times while another thread read it; no read returned an old value after an update, or one that \
         nobody had set; {rounds} rounds of {turn_ms} ms at each rate, of which half is without updates; {} of {} pairs of stretches \
         count, since the reader kept its CPU",
        sum("updates"),
        sum("kept"),
        sum("pairs")
    );
    Ok(Experiment { measurements, notes: vec![note], ..Experiment::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_expected_to_lose_what_its_interrupts_cost() {
        let turn = |of: &str, value: f64| BTreeMap::from([(of.to_string(), value)]);
        let barriers = vec![turn("lost", 2_000.0), turn("lost", 1_000.0), turn("share", 1.0)];
        let updating = vec![turn("rate", 1_000.0), turn("rate", 100_000.0), turn("rate", 10.0)];
        assert_eq!(expected(&updating, &barriers, 2.0), [0.996, 0.8]);
    }
}
