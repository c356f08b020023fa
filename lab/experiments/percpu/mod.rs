//! Experiment `percpu`: counters of a word for each processor, in five layouts, beside atomics and thread-local words.
//!
//! # The problem
//! In 2003 allocators of per-CPU memory were compared by one application on one machine (Thirumalai): static areas,
//! an array of pointers, pointer arithmetic, blocks with a shared offset table; and the one that its author wanted most, pointer
//! arithmetic within interlaced blocks, was not ready. What is better in what respect, today, and by how much, is measured here.
//!
//! # The picture
//! ```text
//!   shapes     hot         one counter
//!              random      4,096 counters, any of them
//!              one         one of them, driven out of L2, L3
//!              eight       eight that were allocated together, driven out likewise
//!              subsystems  four objects of different sizes that were allocated together, warm and driven out
//!              subsystem   four objects of one size, likewise
//!   threads    1, and one on every processor of the run
//!   memory     for as many processors as there may be; and for 32, most of which are not there
//!   ways       atomic, thread-local, lock (on the processor's word);
//!              by restartable sequences: static, pointer-array, contiguous, offset-table, interlaced, segregated
//!   peers      thread-local-crate, fast-counter: a thread's and a shard's word, as crates offer them
//!   account    a build whose every malloc and free crosses two counters of all its processes: share of its time, and its time
//! ```
//! A cost is that of one addition, less the loop that finds the counter and does not add.
//!
//! # What is verified
//! The sum of all counters is the number of additions; each build gives what the build without the layer gave, and every way to
//! count saw as many blocks.

mod account;

use std::time::Duration;

use dormouse_lab_harness::Walk;

use crate::engines::{self, Engines};
use crate::peers::Verification;
use crate::plan::{self, Axis, Plan, slot};
use crate::rounds::{self, Slot, Turn};
use crate::{Experiment, Host, LabError, RunOptions};

const ENGINE: &str = "dormouse-lab-engine-percpu";

/// What a name is made of: `random.interlaced.2-threads`.
const AXES: &[Axis] = &[
    Axis::plain("state"),
    Axis::plain("tool"),
    Axis::without("pressure", "hot"),
    Axis { name: "possible", silent: "", shown: "of-{}" },
    Axis { name: "threads", silent: "1", shown: "{}-threads" },
];

/// Ways of our engine. Those behind `lock` are by restartable sequences.
const WAYS: [&str; 8] =
    ["atomic", "thread-local", "lock", "static", "pointer-array", "contiguous", "offset-table", "interlaced"];

/// Ways that are also measured in memory for 32 processors: a size chosen here, for a kernel configured for many more processors
/// than it has.
const WAYS_OF_32: [&str; 5] = ["static", "pointer-array", "contiguous", "offset-table", "interlaced"];

/// Ways to lay out objects of different sizes.
const WAYS_OF_SIZES: [&str; 3] = ["static", "interlaced", "segregated"];

/// A shape: whether it is measured without memory pressure, and with it.
struct Shape {
    name: &'static str,
    is_warm: bool,
    is_cold: bool,
}

const SHAPES: [Shape; 6] = [
    Shape { name: "hot", is_warm: true, is_cold: false },
    Shape { name: "random", is_warm: true, is_cold: false },
    Shape { name: "one", is_warm: false, is_cold: true },
    Shape { name: "eight", is_warm: false, is_cold: true },
    Shape { name: "subsystems", is_warm: true, is_cold: true },
    Shape { name: "subsystem", is_warm: true, is_cold: true },
];

/// Iterations of `random`: an eighth of them, which is not timed, finds each counter several times, and brings back what
/// other ways have driven out.
const RANDOM_ITERATIONS: [u64; 2] = [200_000, 100_000];

/// Shapes without memory pressure, or those with it: in one and the same rounds the latter would leave nothing warm for the former.
fn costs(engines: &Engines, walks: &[(&'static str, Walk)], cpus: usize, is_quick: bool, is_cold: bool) -> Plan {
    let of_quick = |quick, full| Duration::from_micros(if is_quick { quick } else { full });
    let (hot, cold, coldest) = (of_quick(1_000, 2_000), of_quick(2_000, 10_000), of_quick(20_000, 100_000));
    let mut plan = Plan::new(AXES);
    let is_wanted = |shape: &Shape, label: &str| label == "L2" || label == "L3" && !is_quick && shape.name == "one";
    for engine in 0..engines.all.len() {
        let peer = engine.checked_sub(1).map(|index| [engines.peers[index].name]);
        for shape in SHAPES.iter().filter(|shape| if is_cold { shape.is_cold } else { shape.is_warm }) {
            let is_of_sizes = shape.name.starts_with("subsystem");
            let ways: &[&str] = match &peer {
                Some(peer) => peer,
                None if is_of_sizes => &WAYS_OF_SIZES,
                None => &WAYS,
            };
            let places = walks.iter().copied().filter(|(label, _)| is_cold && is_wanted(shape, label));
            for (pressure, walk) in places.chain((!is_cold).then_some(("hot", Walk::None))) {
                let turn = match (shape.name, pressure) {
                    ("hot", _) => Turn::Lasting(hot),
                    (_, "hot") => Turn::Of(RANDOM_ITERATIONS[usize::from(is_quick)]),
                    (_, "L3") => Turn::Lasting(coldest),
                    _ => Turn::Lasting(cold),
                };
                for (threads, label) in [(1, "1"), (cpus, "all")].into_iter().take(cpus.min(2)) {
                    // Two walks at once over a cache that processors share would be walks over twice as much.
                    if threads > 1 && pressure == "L3" {
                        continue;
                    }
                    let at = [("pressure", pressure), ("threads", label)];
                    let of = if engine == 0 { "none" } else { ways[0] };
                    let mut add = |case: &str, pairs: &[(&str, &str)], base| {
                        let slot = Slot { threads, ..slot(engine, case, walk, turn) };
                        plan.add(&engines.all, slot, &[pairs, &at].concat(), base)
                    };
                    let state = format!("empty-{}", shape.name);
                    let base = add(&format!("empty_{}", shape.name), &[("state", &state), ("tool", of)], None);
                    for way in ways {
                        add(&format!("{}_{way}", shape.name), &[("state", shape.name), ("tool", way)], base);
                    }
                    // On one counter it makes no difference where the others are.
                    if engine == 0 && !["hot", "subsystems", "subsystem"].contains(&shape.name) && pressure != "L3" {
                        for way in WAYS_OF_32 {
                            let pairs = [("state", shape.name), ("tool", way), ("possible", "32")];
                            add(&format!("{}_{way}_of_32", shape.name), &pairs, base);
                        }
                    }
                }
            }
        }
    }
    plan
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`]. A peer that is not installed, or a project that is not there to be built, is no error but a note.
pub fn run_percpu(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let cpus = &options.cpus;
    let mut engines = Engines::new(options);
    let of_ours = dir.path().to_path_buf();
    engines.add(move || engines::of_ours(ENGINE, &of_ours, wrong))?;
    let mut notes = engines.add_peers("percpu", options.has_peers, dir.path());
    notes.extend(engines.shortcomings(host));
    let walks = plan::walks_or_note(host, &mut notes);

    let (rounds, processes) = (options.rounds(12, 80), rounds::processes(options.is_quick));
    let parts = plan::warm_and_cold(&mut engines, "percpu", rounds, processes, |engines, is_cold| {
        costs(engines, &walks, cpus.len(), options.is_quick, is_cold)
    })?;

    let peers: Vec<&str> = engines.peers.iter().map(|peer| peer.name).collect();
    let found = engines.finish()?;
    notes.push(format!("dormouse: {}", additions(&found[0])));
    notes.extend(peers.iter().zip(&found[1..]).map(|(name, found)| format!("peer {name}: {}", additions(found))));
    notes.push(format!(
        "each cost is one addition's, less the loop of its engine that adds nothing, in the same round; {rounds} rounds without memory \
         pressure and as many with it, {} of them warm-up; {processes} processes of each engine for either; processors {cpus:?}",
        plan::warm_ups(&parts)
    ));
    notes.push(format!(
        "`all` threads are {}, one on each processor of this run; `of-32` is memory for 32 processors, used by those that there are",
        cpus.len()
    ));
    let mut experiment = plan::experiment("percpu", parts, &RATIOS, notes, host);
    account::run(options, &mut experiment)?;
    Ok(experiment)
}

fn wrong(sum: u64, emitted: u64) -> String {
    format!("the counters' sum is {sum} after {emitted} additions")
}

/// A verification in this experiment's words: an event is an addition.
fn additions(found: &Verification) -> String {
    let verdict = if found.holds() { "" } else { "NOT VERIFIED: " };
    let sum = found.arrived.map_or_else(|| "not known".into(), |sum| sum.to_string());
    let text = if found.text.is_empty() { String::new() } else { format!("; {}", found.text) };
    format!("{verdict}{} additions, and the counters' sum is {sum}{text}", found.emitted)
}

/// Name, numerator, denominator.
const RATIOS: [(&str, &str, &str); 26] = [
    ("rseq_add_vs_thread_local", "hot.interlaced", "hot.thread-local"),
    ("rseq_add_vs_atomic", "hot.interlaced", "hot.atomic"),
    ("rseq_add_vs_atomic_all_threads", "hot.interlaced.all-threads", "hot.atomic.all-threads"),
    ("rseq_add_vs_lock", "hot.interlaced", "hot.lock"),
    ("interlaced_vs_pointer_array", "random.interlaced", "random.pointer-array"),
    ("interlaced_vs_non_interlaced", "random.interlaced", "random.contiguous"),
    ("interlaced_vs_offset_table", "random.interlaced", "random.offset-table"),
    ("interlaced_vs_static", "random.interlaced", "random.static"),
    ("interlaced_vs_thread_local", "random.interlaced", "random.thread-local"),
    ("interlaced_vs_atomic", "random.interlaced", "random.atomic"),
    ("interlaced_vs_atomic_all_threads", "random.interlaced.all-threads", "random.atomic.all-threads"),
    ("interlaced_vs_pointer_array_of_32", "random.interlaced.of-32", "random.pointer-array.of-32"),
    ("interlaced_vs_non_interlaced_of_32", "random.interlaced.of-32", "random.contiguous.of-32"),
    ("interlaced_eight_cold_vs_pointer_array_of_32", "eight.interlaced.L2.of-32", "eight.pointer-array.L2.of-32"),
    ("interlaced_eight_cold_vs_non_interlaced_of_32", "eight.interlaced.L2.of-32", "eight.contiguous.L2.of-32"),
    ("interlaced_cold_vs_pointer_array", "one.interlaced.L2", "one.pointer-array.L2"),
    ("interlaced_cold_vs_non_interlaced", "one.interlaced.L2", "one.contiguous.L2"),
    ("interlaced_cold_vs_offset_table", "one.interlaced.L2", "one.offset-table.L2"),
    ("interlaced_eight_cold_vs_pointer_array", "eight.interlaced.L2", "eight.pointer-array.L2"),
    ("interlaced_eight_cold_vs_non_interlaced", "eight.interlaced.L2", "eight.contiguous.L2"),
    ("interlaced_eight_cold_vs_offset_table", "eight.interlaced.L2", "eight.offset-table.L2"),
    ("interlaced_eight_cold_vs_thread_local", "eight.interlaced.L2", "eight.thread-local.L2"),
    ("rseq_add_vs_thread_local_crate", "hot.interlaced", "hot.thread-local-crate"),
    ("rseq_add_vs_fast_counter", "hot.interlaced", "hot.fast-counter"),
    ("interlaced_vs_thread_local_crate", "random.interlaced", "random.thread-local-crate"),
    ("interlaced_vs_fast_counter", "random.interlaced", "random.fast-counter"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_different_names_and_are_of_what_is_measured() {
        crate::plan::assert_different_names(RATIOS.iter().map(|(name, ..)| *name));
        for (_, of, to) in RATIOS {
            for name in [of, to] {
                let mut parts = name.split('.');
                let (shape, way) = (parts.next().unwrap(), parts.next().unwrap());
                assert!(SHAPES.iter().any(|known| known.name == shape), "{name}");
                assert!(WAYS.contains(&way) || ["thread-local-crate", "fast-counter"].contains(&way), "{name}");
            }
        }
    }

    #[test]
    fn a_sum_that_is_wrong_is_said_to_be() {
        let found = |arrived| Verification { emitted: 5, arrived, lost: 0, is_ring: false, text: String::new() };
        assert_eq!(additions(&found(Some(5))), "5 additions, and the counters' sum is 5");
        assert!(additions(&found(Some(4))).starts_with("NOT VERIFIED"));
        assert!(additions(&found(None)).starts_with("NOT VERIFIED"));
    }
}
