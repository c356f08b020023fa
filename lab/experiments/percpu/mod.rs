//! Experiment `percpu`: counters with a word for each CPU, in five layouts, beside atomics and thread-local words.
//!
//! In 2003, Thirumalai compared allocators of per-CPU memory by one application on one machine: static areas, an array
//! of pointers, pointer arithmetic, blocks with a shared offset table. The one that its author wanted most, pointer
//! arithmetic within interlaced blocks, was not ready. This experiment measures which one is better today, in what
//! respect, and by how much.
//!
//! ```text
//!   SHAPE.WAY[.L2][.of-32][.all-threads]   cases of the engine, which lists them: `lab/engines/src/percpu.rs`;
//!              L2, L3: after a walk that drives the counters out; of-32: memory for 32 CPUs, most of which do not exist;
//!              all-threads: a thread on every CPU of the run
//!   c-…        the same from C: inline, as calls, and librseq if the engine was built with it (`lab/engines/c/percpu.c`)
//!   peers      thread-local-crate, fast-counter: a thread's and a shard's word, as crates offer them
//!   account    a build whose every malloc and free crosses two counters of all its processes: share of its time, and its time
//! ```
//! A cost is that of one addition, minus the loop that finds the counter and does not add. The sum of all counters is
//! verified. Each build must have the products of the build without the library, and every way of counting must have
//! seen as many blocks.

mod account;

use std::time::Duration;

use dormouse_lab_harness::Walk;

use crate::engine::Engine;
use crate::engines::{self, Engines};
use crate::plan::{self, Axis, Plan, Slot, Turn, slot};
use crate::{Experiment, Host, LabError, RunOptions};

const ENGINE: &str = "dormouse-lab-engine-percpu";
const ENGINE_IN_C: &str = "dormouse-lab-engine-percpu-c";

/// Axes of names: `random.interlaced.all-threads`.
const AXES: &[Axis] = &[
    Axis::plain("state"),
    Axis::plain("tool"),
    Axis::without("pressure", "hot"),
    Axis { name: "possible", silent: "", shown: "of-{}" },
    Axis { name: "threads", silent: "1", shown: "{}-threads" },
];

/// Counters that an iteration adds to.
const SHAPES: [&str; 6] = ["hot", "random", "one", "eight", "subsystems", "subsystem"];

/// Lengths of a turn in µs: on one counter, cold, after a walk over L3; for a full and a quick experiment.
const TURNS_US: [[u64; 3]; 2] = [[2_000, 10_000, 100_000], [1_000, 2_000, 20_000]];
/// Iterations of a turn without memory pressure on more than one counter. An eighth of them, which is not timed,
/// reaches each counter several times, and brings back the data that other ways have evicted.
const ITERATIONS: [u64; 2] = [200_000, 100_000];

/// Plans the cases without memory pressure, or those with it.
fn costs(engines: &[Engine], walks: &[(&'static str, Walk)], cpus: usize, is_quick: bool, is_cold: bool) -> Plan {
    let turns_us = TURNS_US[usize::from(is_quick)];
    let [hot, cold, coldest] = turns_us.map(|us| Turn::Lasting(Duration::from_micros(us)));
    let warm = Turn::Of(ITERATIONS[usize::from(is_quick)]);
    let places = if is_cold { walks } else { &[("hot", Walk::None)] };
    let mut plan = Plan::new(AXES);
    for (engine, running) in engines.iter().enumerate() {
        for shape in SHAPES {
            for (pressure, walk) in places {
                let turn = match (*pressure, shape) {
                    ("hot", "hot") => hot,
                    ("hot", "random" | "subsystems" | "subsystem") => warm,
                    ("L2", "one" | "eight" | "subsystems" | "subsystem") => cold,
                    ("L3", "one") if !is_quick => coldest,
                    _ => continue,
                };
                // Two simultaneous walks over a cache that CPUs share would cover twice as much.
                let count = if *pressure == "L3" { 1 } else { cpus.min(2) };
                for (threads, label) in [(1, "1"), (cpus, "all")].into_iter().take(count) {
                    let mut add = |case: &str, pairs: &[(&str, &str)], base| {
                        let at = [("pressure", *pressure), ("threads", label)];
                        let slot = Slot { threads, ..slot(engine, case, *walk, turn) };
                        plan.add(engines, slot, &[pairs, &at].concat(), base)
                    };
                    for case in &running.description().cases {
                        let way = case.strip_prefix(shape).and_then(|rest| rest.strip_prefix('_'));
                        let Some(way) = way else { continue };
                        let name = &running.description().name;
                        let (state, tool) = (format!("empty-{shape}"), if engine == 0 { "none" } else { name });
                        let base = add(&format!("empty_{shape}"), &[("state", &state), ("tool", tool)], None);
                        match way.split_once("_of_") {
                            None => add(case, &[("state", shape), ("tool", way)], base),
                            // With one counter, the location of the others makes no difference.
                            Some(_) if shape == "hot" || *pressure == "L3" => None,
                            Some((way, of)) => add(case, &[("state", shape), ("tool", way), ("possible", of)], base),
                        };
                    }
                }
            }
        }
    }
    plan
}

/// Runs the experiment. A peer that is not installed, or a project that is not there to be built, is a note, not an
/// error.
pub(super) fn run_percpu(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let cpus = &options.cpus;
    let mut engines = Engines::new(options)?;
    let wrong = |sum: u64, emitted: u64| format!("the counters' sum is {sum} after {emitted} additions");
    engines.add(move |dir| engines::of_ours(ENGINE, dir, wrong))?;
    let in_c = engines.add_if_built("the engine in C", move |dir| engines::of_ours(ENGINE_IN_C, dir, wrong));
    let has_c = in_c.is_none();
    let mut notes: Vec<String> = in_c.into_iter().chain(engines.add_peers("percpu")).collect();
    let walks = plan::walks_or_note(host, &mut notes);
    let mut parts = plan::warm_and_cold(&mut engines, "percpu", options.rounds(12, 80), |engines, is_cold| {
        costs(&engines.all, &walks, cpus.len(), options.is_quick, is_cold)
    })?;

    let found = engines.finish(host, &mut notes)?;
    let (count, text) = (found[0].emitted, &found[0].text);
    notes.push(format!("dormouse: {count} additions, and so much is the counters' sum; {text}"));
    if let Some(found) = found.get(1).filter(|_| has_c) {
        notes.push(format!("dormouse in C: {} additions; {}", found.emitted, found.text));
    }
    match account::measure(options, &mut notes) {
        Err(LabError::Peer(why)) => notes.push(format!("a build's accounting not available: {why}")),
        measurements => parts.push(Experiment { measurements: measurements?, ..Experiment::default() }),
    }
    Ok(plan::experiment("percpu", parts, &RATIOS, notes, host))
}

/// Name, numerator and denominator of each ratio.
const RATIOS: [(&str, &str, &str); 26] = [
    ("rseq_add_vs_thread_local", "hot.interlaced", "hot.thread-local"),
    ("rseq_add_vs_atomic", "hot.interlaced", "hot.atomic"),
    ("rseq_add_vs_atomic_all_threads", "hot.interlaced.all-threads", "hot.atomic.all-threads"),
    ("counter_32_vs_atomic_all_threads", "hot.counter-32.all-threads", "hot.atomic.all-threads"),
    ("counter_1024_vs_atomic_all_threads", "hot.counter-1024.all-threads", "hot.atomic.all-threads"),
    ("c_this_cpu_vs_atomic", "hot.c-this-cpu", "hot.c-atomic"),
    ("c_this_cpu_vs_librseq", "hot.c-this-cpu", "hot.c-librseq"),
    ("c_this_cpu_vs_librseq_random", "random.c-this-cpu", "random.c-librseq"),
    ("c_called_vs_inline", "hot.c-called", "hot.c-this-cpu"),
    ("c_counter_32_vs_librseq", "hot.c-counter-32", "hot.c-librseq"),
    ("rseq_add_vs_lock", "hot.interlaced", "hot.lock"),
    ("interlaced_vs_pointer_array", "random.interlaced", "random.pointer-array"),
    ("interlaced_vs_static", "random.interlaced", "random.static"),
    ("interlaced_vs_thread_local", "random.interlaced", "random.thread-local"),
    ("interlaced_vs_atomic", "random.interlaced", "random.atomic"),
    ("interlaced_vs_atomic_all_threads", "random.interlaced.all-threads", "random.atomic.all-threads"),
    // One instruction more, with the same words; and the same instructions, with other words.
    ("relative_vs_interlaced", "random.relative", "random.interlaced"),
    ("relative_vs_interlaced_all_threads", "random.relative.all-threads", "random.interlaced.all-threads"),
    ("interlaced_of_32_vs_interlaced", "random.interlaced.of-32", "random.interlaced"),
    (
        "interlaced_of_32_vs_interlaced_all_threads",
        "random.interlaced.of-32.all-threads",
        "random.interlaced.all-threads",
    ),
    ("few_sets_vs_all_sets", "random.few-sets", "random.all-sets"),
    ("interlaced_vs_pointer_array_of_32", "random.interlaced.of-32", "random.pointer-array.of-32"),
    ("interlaced_eight_cold_vs_pointer_array", "eight.interlaced.L2", "eight.pointer-array.L2"),
    ("rseq_add_vs_thread_local_crate", "hot.interlaced", "hot.thread-local-crate"),
    ("rseq_add_vs_fast_counter", "hot.interlaced", "hot.fast-counter"),
    ("account_interlaced_vs_atomic", "account.interlaced", "account.atomic"),
];
