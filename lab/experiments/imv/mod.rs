//! Experiment `imv`: static branches and immediate values beside the equivalent global variables.
//!
//! The kernel's documentation of immediate values (2008, by Desnoyers) argues by three tables: a branch that tests a
//! variable costs hardly more than one whose answer is in the instruction stream, unless the variable is not in a
//! cache; then it costs as much as a memory access. This experiment measures the same tables, and the cost of changing
//! the instruction stream of a running program.
//!
//! ```text
//!   loop      the paper's: modulo of a pseudo-random number, then a branch, or none          100 runs of 100,000
//!   getppid   a system call between two markers: none, gates, values, variables             100 runs of 100
//!               alone; after a random walk over L1 and L2; after a linear walk; after a walk over L3
//!   costs     16 gates in a row, or tests of 16 variables; one; 1,000 in functions          rounds, in turn
//!               hot; caches driven out, the code fetched back; code driven out as well
//!   bytes     of code and data of one gate, value or variable                               counted in the machine code
//!   updates   a key with 1, 100, 1,000 sites, enabled and disabled;                         the same rounds
//!               alone, or while another thread runs through its sites
//!   c-…       gates and values of C; an armed gate beside an unconditional jump             the same rounds as costs
//!   updates of a value that a thread reads: its throughput, and the times of batches of reads  rounds, in turn
//!   peer      the crate static_keys: costs and updates
//! ```
//! Markers are before and after the system call in user code; the paper's are in the kernel. The peer's documentation
//! forbids changing keys while other threads run, so it is not measured with another thread.

mod updates;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use dormouse_lab_harness::Walk;

use dormouse_testing::printed;

use crate::engine::{Engine, engine_path};
use crate::engines::{self, Engines};
use crate::plan::{self, Axis, Plan, Slot, Turn, slot};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

const ENGINE: &str = "dormouse-lab-engine-imv";
const ENGINE_IN_C: &str = "dormouse-lab-engine-imv-c";
/// Name of the engine in C.
const IN_C: &str = "dormouse-c";
const PEER: &str = "static-keys";

/// Environment variable with the size of the buffer of the paper's loop.
const MEMORY_BYTES: &str = "DORMOUSE_LAB_MEMORY_BYTES";
/// Size of that buffer, as a multiple of the last cache.
const MEMORY_FACTOR: u64 = 4;
/// Minimum size of the buffer in bytes, also used if the cache's size is unknown.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Maximum size of the buffer in bytes.
const MEMORY_BYTES_MAX: u64 = 512 << 20;

/// A walk over one line, which evicts nothing: iterations are timed one by one, as after a real walk.
const NO_WALK: Walk = Walk::Random { bytes: 64 };

/// Runs of the paper's loop and of system calls, for a full and a quick experiment.
const RUNS: [usize; 2] = [100, 7];
/// Number of iterations of a run of the loop.
const LOOP_ITERATIONS: u64 = 100_000;
/// Number of system calls in a run: as many as in the paper's first test, in runs as long as in its second.
const GETPPID_ITERATIONS: u64 = 100;
/// Number of system calls in a run after walks over the last cache, which take long.
const GETPPID_ITERATIONS_L3: u64 = 8;
/// Size in bytes of the largest walk over the last cache that a quick experiment has time for.
const QUICK_WALK_BYTES_MAX: u64 = 64 << 20;

/// Lengths of a turn in µs: hot, cold, after a walk over L3, and of updates; for a full and a quick experiment.
const TURNS_US: [[u64; 4]; 2] = [[2_000, 10_000, 100_000, 10_000], [400, 4_000, 10_000, 1_000]];

/// Labels that make up a name: `state.tool`, and the differences from the plain case: `branch.variable.L2.16-sites`.
const AXES: &[Axis] = &[
    Axis::plain("state"),
    Axis::plain("tool"),
    Axis::plain("type"),
    Axis::without("pressure", "hot"),
    Axis { name: "sites", silent: "1", shown: "{}-sites" },
    Axis { name: "busy", silent: "0", shown: "busy" },
];

/// Cases of the paper's loop, with the thing that is tested. The last two have their own memory pressure.
const LOOPS: [(&str, &str); 6] = [
    ("loop_base", "none"),
    ("loop_branch", "static-branch"),
    ("loop_value", "immediate-value"),
    ("loop_variable", "variable"),
    ("loop_memory", "variable-in-memory"),
    ("loop_memory_awaited", "variable-awaited"),
];

/// Cases of the paper's system calls, with their markers.
const GETPPID: [(&str, &str); 6] = [
    ("empty", "timestamps"),
    ("getppid_none", "none"),
    ("getppid_branch", "static-branch"),
    ("getppid_value", "immediate-value"),
    ("getppid_variable", "variable"),
    ("getppid_pair", "variables-in-a-line"),
];

/// Adds cases of our engine, with their labels.
fn add_cases(plan: &mut Plan, engines: &[Engine], state: &str, cases: &[(&str, &str)], at: (&str, Walk), turn: Turn) {
    for (case, tool) in cases {
        let pairs = [("state", state), ("tool", *tool), ("pressure", at.0)];
        plan.add(engines, slot(0, case, at.1, turn), &pairs, None);
    }
}

fn getppid(engines: &[Engine], walks: &[(&'static str, Walk)], is_quick: bool) -> Plan {
    let mut plan = Plan::new(AXES);
    let is_short = |walk| matches!(walk, Walk::Random { bytes } if bytes <= QUICK_WALK_BYTES_MAX);
    for (pressure, walk) in [("hot", NO_WALK)].iter().chain(walks) {
        let is_far = *pressure == "L3";
        if *pressure == "L1" || is_far && is_quick && !is_short(*walk) {
            continue;
        }
        let turn = Turn::Of(if is_far { GETPPID_ITERATIONS_L3 } else { GETPPID_ITERATIONS });
        // A quick experiment has the first two, which the arithmetic needs.
        let cases = &GETPPID[..if is_far && is_quick { 2 } else { GETPPID.len() }];
        add_cases(&mut plan, engines, "getppid", cases, (pressure, *walk), turn);
    }
    plan
}

/// Shapes: 16 gates or variables in a row, 1,000 in functions that are called, and one. For each the ending of a case's
/// name, its number of sites, and the number of sites that an iteration passes.
const SHAPES: [(&str, &str, u32); 3] = [("_16", "16", 16), ("_sites_1000", "1000", 1), ("", "1", 1)];

fn costs(engines: &[Engine], walks: &[(&'static str, Walk)], has_two: bool, is_quick: bool) -> Plan {
    let turns_us = TURNS_US[usize::from(is_quick)];
    let [hot, cold, coldest, update] = turns_us.map(|us| Turn::Lasting(Duration::from_micros(us)));
    let mut plan = Plan::new(AXES);
    for (engine, running) in engines.iter().enumerate() {
        let is_ours = engine == 0;
        let [of, branch, variable, value] = match running.description().name.as_str() {
            IN_C => ["c-none", "c-static-branch", "c-variable", "c-immediate-value"],
            PEER => [PEER; 4],
            _ => ["none", "static-branch", "variable", "immediate-value"],
        };
        for (pressure, walk) in [("hot", Walk::None)].iter().chain(walks) {
            for case in &running.description().cases {
                let shape = SHAPES.iter().find_map(|shape| Some((case.strip_suffix(shape.0)?, *shape)));
                let Some((stem, (end, sites, per_iteration))) = shape else { continue };
                let (what, of_type) = stem.split_once('_').unwrap_or((stem, ""));
                let (state, tool) = match what {
                    "branch" => ("branch", branch),
                    "armed" => ("branch", "c-armed"),
                    "jump" => ("branch", "c-jump"),
                    "variable" => ("branch", variable),
                    "value" => ("value", value),
                    "global" => ("value", variable),
                    "constant" => ("value", "constant"),
                    "move5" => ("encoding", "mov-5-bytes"),
                    "move7" => ("encoding", "mov-7-bytes"),
                    "move8" => ("encoding", "mov-8-bytes"),
                    "aligned8" => ("encoding", "mov-8-bytes-aligned"),
                    "load" => ("encoding", "load"),
                    "chainvalue" => ("chain", value),
                    "chainglobal" => ("chain", variable),
                    "chainconstant" => ("chain", "constant"),
                    _ => continue,
                };
                let is_called = sites == "1000";
                let state = if is_called { "call" } else { state };
                let turn = match *pressure {
                    "hot" => hot,
                    "L2" => cold,
                    "L1" if is_ours && !is_called => cold,
                    "L3" if is_ours && !is_called && !is_quick => coldest,
                    // The control of the walk itself.
                    "linear-L2" if what == "variable" && !is_called => cold,
                    _ => continue,
                };
                let mut add = |case: &str, pairs: &[(&str, &str)], base| {
                    let at = [("pressure", *pressure), ("sites", sites)];
                    plan.add(engines, slot(engine, case, *walk, turn), &[pairs, &at].concat(), base)
                };
                let base = add(&format!("empty{end}"), &[("state", "empty"), ("tool", of)], None);
                let pairs = [("state", state), ("tool", tool), ("type", of_type)];
                let cost = add(case, if of_type.is_empty() { &pairs[..2] } else { &pairs }, base);
                plan.per_iteration(cost, per_iteration);
            }
        }
        for sites in ["1", "100", "1000"] {
            // With another thread, if there is a CPU for it and the tool allows it.
            for busy in ["0", "1"].into_iter().take(if is_ours && has_two { 2 } else { 1 }) {
                let beside = (busy == "1").then(|| format!("toggled_{sites}"));
                let slot = Slot { beside, ..slot(engine, &format!("toggle_{sites}"), Walk::None, update) };
                let pairs = [("state", "update"), ("tool", branch), ("sites", sites), ("busy", busy)];
                let cost = plan.add(engines, slot, &pairs, None);
                // One enables, one disables.
                plan.per_iteration(cost, 2);
            }
        }
    }
    // The paper's loop again, with each iteration timed alone.
    for (pressure, walk) in walks.iter().filter(|(label, _)| !is_quick && *label != "linear-L2") {
        let turn = if *pressure == "L3" { coldest } else { cold };
        add_cases(&mut plan, engines, "loop", &LOOPS[..4], (pressure, *walk), turn);
    }
    plan
}

/// Runs the experiment. A peer that is not installed is a note, not an error.
pub(super) fn run_imv(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let memory = (host.caches_bytes()[2].unwrap_or(0) * MEMORY_FACTOR).clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX);
    let mut engines = Engines::new(options)?;
    let wrong = |right: u64, all: u64| format!("{right} of {all} keys were answered rightly after their updates");
    engines.add(move |dir| {
        let (mut command, count) = engines::of_ours(ENGINE, dir, wrong)?;
        command.env(MEMORY_BYTES, memory.to_string());
        Ok((command, count))
    })?;
    let wrong_in_c = |_, _| "gates of C answered wrongly".into();
    let in_c = engines.add_if_built("the engine in C", move |dir| engines::of_ours(ENGINE_IN_C, dir, wrong_in_c));
    let has_c = in_c.is_none();
    let mut notes: Vec<String> = in_c.into_iter().chain(engines.add_peers("imv")).collect();
    let walks = plan::walks_or_note(host, &mut notes);
    let (has_two, runs) = (options.cpus.len() > 1, RUNS[usize::from(options.is_quick)]);
    let mut loops = Plan::new(AXES);
    add_cases(&mut loops, &engines.all, "loop", &LOOPS, ("hot", Walk::None), Turn::Of(LOOP_ITERATIONS));
    let mut parts = Vec::new();
    for (plan, rounds, of) in [
        (loops, runs, "imv: loop"),
        (getppid(&engines.all, &walks, options.is_quick), runs, "imv: getppid"),
        (costs(&engines.all, &walks, has_two, options.is_quick), options.rounds(16, 80), "imv: costs"),
    ] {
        parts.push(plan.measure(&mut engines, rounds, of)?);
    }
    if has_two {
        parts.push(updates::measure(options)?);
    }

    let found = engines.finish(host, &mut notes)?;
    let (emitted, right) = (found[0].emitted, found[0].arrived.unwrap_or(0));
    notes.push(format!(
        "dormouse: a key enabled and disabled {emitted} times, its gates answered rightly {right} times; {}",
        found[0].text
    ));
    notes.extend(found.get(1).filter(|_| has_c).map(|found| format!("dormouse in C: {}", found.text)));
    notes.push(format!("the loop's buffer that no cache holds has {} MiB", memory >> 20));
    let mut experiment = plan::experiment("imv", parts, &RATIOS, notes, host);
    match footprint() {
        Ok(counts) => experiment.measurements.extend(counts),
        Err(why) => experiment.notes.push(format!("bytes of code and data not counted: {why}")),
    }
    if has_two {
        experiment.measurements.push(exact("wrong-answers.static-branch", "answers", (emitted - right) as f64));
        experiment.measurements.push(exact("wrong-answers.immediate-value", "answers", 0.0));
    }
    Ok(experiment)
}

/// Returns an exact count whose labels are the parts of its name.
fn exact(name: &str, unit: &str, count: f64) -> Measurement {
    let labels = ["state", "tool", "type"].into_iter().zip(name.split('.')).collect::<Vec<_>>();
    Measurement { labels: plan::labels(&labels), ..Measurement::exact(name, unit, count) }
}

/// Returns the bytes of code and data of one site, as our engine counts them.
fn footprint() -> Result<Vec<Measurement>, String> {
    let engine = engine_path(ENGINE).map_err(|error| error.to_string())?;
    let text = printed(Command::new(engine).arg("footprint"), ENGINE)?;
    let counts: BTreeMap<String, u32> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let unit = |name: &str| if name.starts_with("hot-lines") { "lines" } else { "bytes" };
    Ok(counts.iter().map(|(name, count)| exact(name, unit(name), f64::from(*count))).collect())
}

/// Name, numerator and denominator of each ratio.
const RATIOS: [(&str, &str, &str); 29] = [
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
    ("value_hot_vs_constant", "value.immediate-value.i32.16-sites", "value.constant.i32.16-sites"),
    ("constant_hot_vs_global", "value.constant.i32.16-sites", "value.variable.i32.16-sites"),
    ("mov_8_bytes_aligned_vs_5", "encoding.mov-8-bytes-aligned.16-sites", "encoding.mov-5-bytes.16-sites"),
    ("mov_5_bytes_vs_load", "encoding.mov-5-bytes.16-sites", "encoding.load.16-sites"),
    ("value_chain_vs_global", "chain.immediate-value.i32.16-sites", "chain.variable.i32.16-sites"),
    ("value_cold_vs_global", "value.immediate-value.i32.L2.16-sites", "value.variable.i32.L2.16-sites"),
    ("c_branch_hot_vs_global", "branch.c-static-branch.16-sites", "branch.c-variable.16-sites"),
    ("c_armed_vs_jump", "branch.c-armed.16-sites", "branch.c-jump.16-sites"),
    ("c_armed_1_site_vs_jump", "branch.c-armed", "branch.c-jump"),
    ("c_value_hot_vs_global", "value.c-immediate-value.i32.16-sites", "value.c-variable.i32.16-sites"),
    ("reads_at_10_updates_vs_idle", "reads.10-a-second", "reads-without.10-a-second"),
    ("reads_at_1000_updates_vs_idle", "reads.1000-a-second", "reads-without.1000-a-second"),
    ("reads_at_100000_updates_vs_idle", "reads.100000-a-second", "reads-without.100000-a-second"),
    ("reads_at_1000_patches_vs_idle", "reads.1000-patched", "reads-without.1000-patched"),
    ("reads_at_100000_patches_vs_idle", "reads.100000-patched", "reads-without.100000-patched"),
    ("update_1000_sites_vs_1", "update.static-branch.1000-sites", "update.static-branch"),
    ("update_1000_busy_vs_idle", "update.static-branch.1000-sites.busy", "update.static-branch.1000-sites"),
    ("update_1_vs_static_keys", "update.static-branch", "update.static-keys"),
    ("update_1000_vs_static_keys", "update.static-branch.1000-sites", "update.static-keys.1000-sites"),
];
