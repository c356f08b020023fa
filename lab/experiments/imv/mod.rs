//! Experiment `imv`: static branches and immediate values beside the global variables that they stand for.
//!
//! # The problem
//! The kernel's documentation of immediate values (2008, by Desnoyers) argues by three tables: a branch that tests a
//! variable costs hardly more than one whose answer is in the instruction stream, unless the variable is not in a cache; then it
//! costs as much as memory does. Whether that holds today, on this machine and for this implementation, is what is measured here, by
//! the same tables; and what it costs to change the instruction stream of a running program.
//!
//! # The picture
//! ```text
//!   loop      the paper's: modulo of a pseudo-random number, then a branch, or none          100 runs of 100,000
//!   getppid   a system call between two markers: none, gates, values, variables             100 runs of 100
//!               alone; after a random walk over L1 and L2; after a linear walk; after a walk over L3
//!   costs     16 gates in a row, or tests of 16 variables; one; 1,000 in functions          rounds, in turn
//!               hot; caches driven out, the code fetched back; code driven out as well
//!   bytes     of code and data that one gate, value or variable takes                       counted in the machine code
//!   updates   a key with 1, 100, 1,000 sites, enabled and disabled;                         the same rounds
//!               nobody, or another thread, runs through its sites meanwhile
//!   peer      the crate static_keys: costs and updates
//! ```
//!
//! # Which cold the paper means
//! Its loop runs from a warm instruction cache, and only what is tested is far away: code warm, datum cold. That is what
//! `branch_cold_vs_global` compares. `branch_cold_code_vs_global` is over 1,000 functions whose code is driven out as well,
//! as it is when a program comes back to a path that it has not taken for a while.
//!
//! # Limits
//! * Costs are of what stands in a row: 16 independent tests, whose loads overlap. A single one's is beside it.
//! * Markers stand around the system call in user code, where the paper's stand in the kernel.
//! * The peer's documentation forbids changing keys while other threads run, so it is not measured with any.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use dormouse_lab_harness::Walk;

use crate::engine::{Engine, engine_path};
use crate::engines::{self, Engines};
use crate::peers::Verification;
use crate::plan::{self, Axis, Plan, slot};
use crate::rounds::{self, Slot, Turn, WarmUp};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

const ENGINE: &str = "dormouse-lab-engine-imv";
const PEER: &str = "static-keys";

/// Environment variable with the size of the buffer of the paper's loop.
const MEMORY_BYTES: &str = "DORMOUSE_LAB_MEMORY_BYTES";
/// So many times the last cache; and where that is not known, or vast.
const MEMORY_FACTOR: u64 = 4;
const MEMORY_BYTES_BOUNDS: std::ops::RangeInclusive<u64> = (64 << 20)..=(512 << 20);

/// A walk over one line, which drives out nothing: iterations are timed one by one, as they are after a real walk.
const NO_WALK: Walk = Walk::Random { bytes: 64 };

/// Iterations of one run of the paper's loop; runs, and runs of a quick experiment.
const LOOP_ITERATIONS: u64 = 100_000;
const LOOP_RUNS: [usize; 2] = [100, 10];
/// The same of system calls: as many of them as in the paper's first test, in runs as long as in its second. Fewer after a walk over the last
/// cache, which takes long.
const GETPPID_ITERATIONS: u64 = 100;
const GETPPID_ITERATIONS_L3: u64 = 8;
const GETPPID_RUNS: [usize; 2] = [100, 10];
/// The longest walk over the last cache that a quick experiment has the time for.
const QUICK_WALK_BYTES_MAX: u64 = 64 << 20;

/// How long a turn lasts, in µs: hot, cold, after a walk over L3, and of updates; in full and in a quick experiment.
const TURNS_US: [[u64; 4]; 2] = [[2_000, 10_000, 100_000, 10_000], [400, 4_000, 20_000, 1_000]];

/// Labels that make up a name: `state.tool`, and what departs from the plain case: `branch.variable.L2.16-sites`.
const AXES: &[Axis] = &[
    Axis::plain("state"),
    Axis::plain("tool"),
    Axis::plain("type"),
    Axis::without("pressure", "hot"),
    Axis { name: "sites", silent: "1", shown: "{}-sites" },
    Axis { name: "busy", silent: "0", shown: "busy" },
];

fn new_plan() -> Plan {
    Plan::new(AXES)
}

/// The paper's loop: what is tested, as the engine calls it and as it is labelled. The last two bring their own memory pressure.
const LOOPS: [(&str, &str); 6] = [
    ("loop_base", "none"),
    ("loop_branch", "static-branch"),
    ("loop_value", "immediate-value"),
    ("loop_variable", "variable"),
    ("loop_memory", "variable-in-memory"),
    ("loop_memory_awaited", "variable-awaited"),
];

fn loops(engines: &[Engine]) -> Plan {
    let mut plan = new_plan();
    for (case, tool) in LOOPS {
        let slot = slot(0, case, Walk::None, Turn::Of(LOOP_ITERATIONS));
        plan.add(engines, slot, &[("state", "loop"), ("tool", tool), ("pressure", "hot")], None);
    }
    plan
}

/// The paper's system calls: what marks them.
const GETPPID: [(&str, &str); 6] = [
    ("empty", "timestamps"),
    ("getppid_none", "none"),
    ("getppid_branch", "static-branch"),
    ("getppid_value", "immediate-value"),
    ("getppid_variable", "variable"),
    ("getppid_pair", "variables-in-a-line"),
];

fn getppid(engines: &[Engine], walks: &[(&'static str, Walk)], is_quick: bool) -> Plan {
    let mut plan = new_plan();
    let is_short = |walk| matches!(walk, Walk::Random { bytes } if bytes <= QUICK_WALK_BYTES_MAX);
    let is_wanted = |label: &str, walk| label.ends_with("L2") || label == "L3" && (!is_quick || is_short(walk));
    let walks = walks.iter().filter(|(label, walk)| is_wanted(label, *walk));
    for (pressure, walk) in std::iter::once(&("hot", NO_WALK)).chain(walks) {
        let is_far = *pressure == "L3";
        let iterations = if is_far { GETPPID_ITERATIONS_L3 } else { GETPPID_ITERATIONS };
        for (case, tool) in GETPPID {
            // What the arithmetic needs.
            if is_far && is_quick && !matches!(tool, "timestamps" | "none") {
                continue;
            }
            let slot = slot(0, case, *walk, Turn::Of(iterations));
            plan.add(engines, slot, &[("state", "getppid"), ("tool", tool), ("pressure", pressure)], None);
        }
    }
    plan
}

/// Gates or variables that one iteration passes in a row.
const IN_A_ROW: u32 = 16;

/// One gate, 16 in a row, and 1,000 in functions that are called: how a case's name ends, its empty loop, state and sites.
const SHAPES: [(&str, &str, &str, &str); 3] = [
    ("", "empty", "branch", "1"),
    ("_16", "empty_16", "branch", "16"),
    ("_sites_1000", "empty_sites_1000", "call", "1000"),
];

/// Types of values, one for each width.
const TYPES: [&str; 4] = ["u8", "u16", "i32", "u64"];

fn costs(engines: &[Engine], walks: &[(&'static str, Walk)], has_two: bool, is_quick: bool) -> Plan {
    let [hot, cold, coldest, update] = TURNS_US[usize::from(is_quick)].map(Duration::from_micros);
    let mut plan = new_plan();
    let turn = |walk, pressure: &str| {
        Turn::Lasting(match (walk, pressure) {
            (Walk::None, _) => hot,
            (_, "L3") => coldest,
            _ => cold,
        })
    };
    for engine in 0..engines.len() {
        let is_ours = engine == 0;
        let of = if is_ours { "none" } else { PEER };
        let tools =
            if is_ours { &[("branch", "static-branch"), ("variable", "variable")][..] } else { &[("branch", PEER)] };
        for (pressure, walk) in std::iter::once(&("hot", Walk::None)).chain(walks) {
            let is_wanted = |tool: &str, sites: &str| match *pressure {
                "hot" | "L2" => true,
                "L1" => is_ours && sites != "1000",
                "L3" => is_ours && sites != "1000" && !is_quick,
                // The control of the walk itself.
                _ => tool == "variable" && sites != "1000",
            };
            let mut add = |case: &str, base: &str, pairs: &[(&'static str, &'static str)], sites: &'static str| {
                let at = [("pressure", *pressure), ("sites", sites)];
                let empty = slot(engine, base, *walk, turn(*walk, pressure));
                let base = plan.add(engines, empty, &[[("state", "empty"), ("tool", of)], at].concat(), None);
                let slot = slot(engine, case, *walk, turn(*walk, pressure));
                let cost = plan.add(engines, slot, &[pairs, &at].concat(), base);
                plan.per_iteration(cost, if sites == "16" { IN_A_ROW } else { 1 });
            };
            for (case, tool) in tools {
                for (end, base, state, sites) in SHAPES.iter().filter(|(.., sites)| is_wanted(tool, sites)) {
                    add(&format!("{case}{end}"), base, &[("state", *state), ("tool", *tool)], sites);
                }
            }
            if is_ours && (matches!(*pressure, "hot" | "L1" | "L2") || *pressure == "L3" && !is_quick) {
                for of_type in TYPES {
                    for (case, tool) in [("value", "immediate-value"), ("global", "variable")] {
                        let pairs = [("state", "value"), ("tool", tool), ("type", of_type)];
                        add(&format!("{case}_{of_type}_16"), "empty_16", &pairs, "16");
                    }
                }
            }
        }
        // The paper's loop once more, an iteration alone.
        for (pressure, walk) in walks.iter().filter(|(label, _)| is_ours && !is_quick && label.len() == 2) {
            for (case, tool) in &LOOPS[..4] {
                let slot = slot(0, case, *walk, turn(*walk, pressure));
                plan.add(engines, slot, &[("state", "loop"), ("tool", tool), ("pressure", pressure)], None);
            }
        }
        for sites in ["1", "100", "1000"] {
            for busy in ["0", "1"] {
                // With another thread, where there is a processor for it and the tool allows it.
                if busy == "1" && !(is_ours && has_two) {
                    continue;
                }
                let turn = Turn::Lasting(update);
                let beside = (busy == "1").then(|| format!("toggled_{sites}"));
                let slot = Slot { beside, ..slot(engine, &format!("toggle_{sites}"), Walk::None, turn) };
                let tool = if is_ours { "static-branch" } else { PEER };
                let pairs = [("state", "update"), ("tool", tool), ("sites", sites), ("busy", busy)];
                let update = plan.add(engines, slot, &pairs, None);
                // One that enables and one that disables.
                plan.per_iteration(update, 2);
            }
        }
    }
    plan
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`]. A peer that is not installed is no error but a note.
pub fn run_imv(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let cpus = &options.cpus;
    let memory = host.l3_bytes().unwrap_or(0) * MEMORY_FACTOR;
    let memory = memory.clamp(*MEMORY_BYTES_BOUNDS.start(), *MEMORY_BYTES_BOUNDS.end());
    let mut engines = Engines::new(options);
    let of_ours = dir.path().to_path_buf();
    engines.add(move || {
        let (mut command, count) = engines::of_ours(ENGINE, &of_ours, wrong)?;
        command.env(MEMORY_BYTES, memory.to_string());
        Ok((command, count))
    })?;
    let mut notes = engines.add_peers("imv", options.has_peers, dir.path());
    notes.extend(engines.shortcomings(host));
    let walks = plan::walks_or_note(host, &mut notes);

    let (quick, processes) = (usize::from(options.is_quick), rounds::processes(options.is_quick));
    let (has_two, rounds) = (cpus.len() > 1, options.rounds(16, 80));
    let mut parts = Vec::new();
    for (plan, rounds, warm_up, of) in [
        (loops(&engines.all), LOOP_RUNS[quick], WarmUp::Keep, "imv: loop"),
        (getppid(&engines.all, &walks, options.is_quick), GETPPID_RUNS[quick], WarmUp::Keep, "imv: getppid"),
        (costs(&engines.all, &walks, has_two, options.is_quick), rounds, WarmUp::Cut, "imv: costs"),
    ] {
        let measured = plan.measure(&mut engines, rounds, processes, warm_up, of)?;
        parts.push((plan, measured));
    }
    let warm_up = parts[2].1.warm_up;

    let peers: Vec<&str> = engines.peers.iter().map(|peer| peer.name).collect();
    let found = engines.finish()?;
    notes.push(format!("dormouse: {}", updates(&found[0])));
    notes.extend(peers.iter().zip(&found[1..]).map(|(name, found)| format!("peer {name}: {}", updates(found))));
    notes.push(format!(
        "costs of branches and values are less the empty loop of their engine in the same round; {} rounds{}, {processes} processes of each engine, processors \
         {cpus:?}",
        rounds - warm_up,
        if warm_up > 0 { format!(" after {warm_up} of warm-up") } else { String::new() }
    ));
    notes.push(format!("the loop's buffer that no cache holds has {} MiB", memory >> 20));
    let mut experiment = plan::experiment("imv", parts, &RATIOS, notes, host);
    match footprint() {
        Ok(counts) => experiment.measurements.extend(counts),
        Err(why) => experiment.notes.push(format!("bytes of code and data not counted: {why}")),
    }
    if let Some(right) = found[0].arrived.filter(|_| has_two) {
        let wrong = found[0].emitted - right;
        experiment.measurements.push(exact("wrong-answers.static-branch", "answers", wrong as f64));
    }
    Ok(experiment)
}

/// A count whose labels are the parts of its name.
fn exact(name: &str, unit: &str, count: f64) -> Measurement {
    let labels = ["state", "tool", "type"].into_iter().zip(name.split('.')).collect::<Vec<_>>();
    Measurement { labels: plan::labels(&labels), ..Measurement::exact(name, unit, count) }
}

/// What one site takes of code and data, as our engine counts it.
fn footprint() -> Result<Vec<Measurement>, String> {
    let engine = engine_path(ENGINE).map_err(|error| error.to_string())?;
    let output = Command::new(engine).arg("footprint").output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().into());
    }
    let counts: BTreeMap<String, u32> = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let unit = |name: &str| if name.starts_with("hot-lines") { "lines" } else { "bytes" };
    Ok(counts.iter().map(|(name, count)| exact(name, unit(name), f64::from(*count))).collect())
}

fn wrong(right: u64, emitted: u64) -> String {
    format!("{right} of {emitted} keys were answered rightly after their updates")
}

/// A verification in this experiment's words: an event is a key that was enabled and disabled, with a gate asked after each.
fn updates(found: &Verification) -> String {
    let verdict = if found.holds() { "" } else { "NOT VERIFIED: " };
    let right = found.arrived.map_or_else(|| "nobody knows of how many".into(), |right| right.to_string());
    format!(
        "{verdict}a key enabled and disabled {} times, its gates answered rightly {right} times; {}",
        found.emitted, found.text
    )
}

/// Name, numerator, denominator.
const RATIOS: [(&str, &str, &str); 23] = [
    ("branch_hot_vs_global", "branch.static-branch.16-sites", "branch.variable.16-sites"),
    ("branch_hot_1_site_vs_global", "branch.static-branch", "branch.variable"),
    ("branch_cold_vs_global", "branch.static-branch.L2.16-sites", "branch.variable.L2.16-sites"),
    ("branch_cold_1_site_vs_global", "branch.static-branch.L2", "branch.variable.L2"),
    ("branch_cold_code_vs_global", "call.static-branch.L2.1000-sites", "call.variable.L2.1000-sites"),
    ("branch_cold_l3_vs_global", "branch.static-branch.L3.16-sites", "branch.variable.L3.16-sites"),
    ("variable_linear_vs_random_walk", "branch.variable.linear-L2.16-sites", "branch.variable.L2.16-sites"),
    ("branch_hot_vs_static_keys", "branch.static-branch.16-sites", "branch.static-keys.16-sites"),
    ("branch_cold_vs_static_keys", "branch.static-branch.L2.16-sites", "branch.static-keys.L2.16-sites"),
    ("value_hot_vs_global", "value.immediate-value.i32.16-sites", "value.variable.i32.16-sites"),
    ("value_cold_vs_global", "value.immediate-value.i32.L2.16-sites", "value.variable.i32.L2.16-sites"),
    ("value_u8_hot_vs_global", "value.immediate-value.u8.16-sites", "value.variable.u8.16-sites"),
    ("value_u8_cold_vs_global", "value.immediate-value.u8.L2.16-sites", "value.variable.u8.L2.16-sites"),
    ("value_u16_hot_vs_global", "value.immediate-value.u16.16-sites", "value.variable.u16.16-sites"),
    ("value_u16_cold_vs_global", "value.immediate-value.u16.L2.16-sites", "value.variable.u16.L2.16-sites"),
    ("value_u64_hot_vs_global", "value.immediate-value.u64.16-sites", "value.variable.u64.16-sites"),
    ("value_u64_cold_vs_global", "value.immediate-value.u64.L2.16-sites", "value.variable.u64.L2.16-sites"),
    ("update_100_sites_vs_1", "update.static-branch.100-sites", "update.static-branch"),
    ("update_1000_sites_vs_1", "update.static-branch.1000-sites", "update.static-branch"),
    ("update_1000_busy_vs_idle", "update.static-branch.1000-sites.busy", "update.static-branch.1000-sites"),
    ("update_1_vs_static_keys", "update.static-branch", "update.static-keys"),
    ("update_100_vs_static_keys", "update.static-branch.100-sites", "update.static-keys.100-sites"),
    ("update_1000_vs_static_keys", "update.static-branch.1000-sites", "update.static-keys.1000-sites"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_departs_from_the_plain_case() {
        let of = |pairs: &[(&str, &str)]| plan::name(AXES, &plan::labels(pairs));
        let plain = [("state", "branch"), ("tool", "variable"), ("pressure", "hot"), ("sites", "1")];
        assert_eq!(of(&plain), "branch.variable");
        let cold = [("state", "value"), ("tool", "variable"), ("type", "i32"), ("pressure", "L2"), ("sites", "16")];
        assert_eq!(of(&cold), "value.variable.i32.L2.16-sites");
        let update = [("state", "update"), ("tool", "static-branch"), ("sites", "1"), ("busy", "1")];
        assert_eq!(of(&update), "update.static-branch.busy");
    }

    #[test]
    fn ratios_have_different_names() {
        crate::plan::assert_different_names(RATIOS.iter().map(|(name, ..)| *name));
    }

    #[test]
    fn an_update_that_was_wrong_is_said_to_be() {
        let found = |arrived| Verification { emitted: 5, arrived, lost: 0, is_ring: false, text: "x".into() };
        assert!(!updates(&found(Some(5))).contains("NOT VERIFIED"));
        assert!(updates(&found(Some(4))).starts_with("NOT VERIFIED"));
        assert!(updates(&found(None)).starts_with("NOT VERIFIED"));
    }
}
