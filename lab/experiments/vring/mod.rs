//! Experiment `vring`: virtqueues between two CPUs, as Srinivas (2015) found them and with later changes.
//!
//! In 2015 a change to the virtio driver kept avail flags and index in private memory too, so that the producer reads
//! no line that the consumer reads. Its author's program ran 0 to 8 % shorter, depending on the machine. One program
//! measures the effect of that change here, and that of later ones. `paper.toml` has the paper's figures and
//! statements, which are shown beside those found here.
//!
//! ```text
//!   SHAPE.RING.BATCH[.PLACEMENT][.far]
//!     SHAPE    stream: as many buffers under way as the ring holds        lockstep: a batch there and back, then the next
//!     RING     rings of the engine `dormouse-lab-engine-vring`, and queues of `dormouse-lab-peer-queues`, one for either direction
//!   SHAPE.RING.BATCH.COUNTER      for the paper's two rings, the sum of both threads; those of each thread are counters of the cost
//!   long.RING.1      a run of as many buffers as the paper's runs had, in seconds; in full runs only
//!   machine.WHAT     `transfer`, a line one way; `step`, 24 additions; `reread`, the additional time of a line's way if its writer
//!                    reads another line again that the other CPU has read: a transfer, if a read takes a line over
//!   model.RING.…     counts of a model of two caches (`model`)
//! ```
//! A cost is that of one buffer there and back. Nothing is subtracted: an empty loop would not wait for the other side.
//!
//! The CPUs of a virtual machine move, whatever it reports of their topology. So a line is sent to and fro before and
//! after each turn. A turn between two slow transfers is `far`; one between a quick and a slow one does not count.
//! Verified: in every loop, the sums of the numbers that reached the device and that came back equal the sum of those
//! sent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dormouse_lab_harness::{Run, Walk};

use crate::engine::Engine;
use crate::engines::{self, Engines};
use crate::plan::{self, Axis, order, progress};
use crate::statistics::{measurement, median, ratio};
use crate::{Experiment, Host, LabError, Labels, Measurement, Ratio, RunOptions};

mod model;

const NAME: &str = "vring";

/// Axes of names: `stream.packed.16.far`.
const AXES: &[Axis] = &[
    Axis::plain("state"),
    Axis::plain("tool"),
    Axis::plain("batch"),
    Axis::plain("counter"),
    Axis::without("placement", "same-socket"),
    Axis::without("circumstances", "near"),
];
const CIRCUMSTANCES: [&str; 2] = ["near", "far"];
const BATCHES: [u32; 4] = [1, 4, 16, 64];

/// Ends of a ring: the first CPU's and the second's.
const SIDES: [&str; 2] = ["driver", "device"];
/// The paper's two rings.
const PAPERS: [&str; 2] = ["noshadow", "shadow"];
/// Counters that the paper prints of them.
const COUNTERS: [&str; 6] =
    ["l1d_loads", "l1d_load_misses", "l1d_stores", "l1d_store_misses", "llc_loads", "llc_load_misses"];

/// Number of buffers of a long run: as many as on the paper's Sandy Bridge.
const LONG: u64 = 100_000_000;
/// Number of buffers of a turn: few, so that a turn is short compared with the time for which a virtual machine's CPUs
/// stay in place.
const ITERATIONS: u64 = 8_000;
/// Number of transfers there and back that determine how far apart two CPUs are.
const TRANSFERS: u64 = 1_000;
/// Maximum time of a transfer one way, in nanoseconds, from a cache that both CPUs share.
const NEAR_NS_MAX: f64 = 120.0;
/// Minimum number of turns of each slot for a figure.
const TURNS_MIN: usize = 6;

/// Location of a CPU: its core, as the list of its siblings, and its socket.
type Place = (String, String);

fn place(cpu: u32) -> Option<Place> {
    let read = |what: &str| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}")).ok();
    Some((read("thread_siblings_list")?, read("physical_package_id")?))
}

/// Returns a pair of CPUs for each placement that exists, always with the first CPU; and notes on those that do not.
fn placements(cpus: &[u32], place: impl Fn(u32) -> Option<Place>) -> (Vec<(&'static str, [u32; 2])>, Vec<String>) {
    let (mut found, mut notes) = (Vec::new(), Vec::new());
    let [first, others @ ..] = cpus else { return (found, notes) };
    let of_first = place(*first);
    for (name, words, is_one_core, is_one_socket) in [
        ("same-socket", "two cores of one socket", false, true),
        ("hyperthreads", "two hyperthreads of one core", true, true),
        ("sockets-apart", "cores of two sockets", false, false),
    ] {
        let is_so = |other: &&u32| {
            let both = of_first.as_ref().zip(place(**other));
            both.is_some_and(|(a, b)| (a.0 == b.0, a.1 == b.1) == (is_one_core, is_one_socket))
        };
        match others.iter().find(is_so) {
            Some(other) => found.push((name, [*first, *other])),
            None => notes.push(format!("placement {name}: this machine shows no {words} among {cpus:?}")),
        }
    }
    if let (true, Some(other)) = (found.is_empty(), others.first()) {
        found.push(("same-socket", [*first, *other]));
        notes.push("the machine does not tell where its processors are: taken to be cores of one socket".into());
    }
    (found, notes)
}

/// A slot, with the results of its turns in each of [`CIRCUMSTANCES`], for one iteration.
struct Slot {
    engine: usize,
    /// Cases that are added up, each with its factor.
    sum: Vec<(String, f64)>,
    iterations: u64,
    labels: Labels,
    ns: [Vec<f64>; 2],
    counters: [BTreeMap<String, Vec<f64>>; 2],
}

/// Merges the counters of both threads, under names with the side.
fn by_side(threads: Vec<BTreeMap<String, f64>>) -> BTreeMap<String, f64> {
    let sides = SIDES.into_iter().zip(threads).flat_map(|(side, of)| of.into_iter().map(move |one| (side, one)));
    sides.map(|(side, (name, count))| (format!("{side}.{name}"), count)).collect()
}

fn run(case: &str, iterations: u64) -> Run {
    Run { case: case.into(), iterations, threads: 2, walk: Walk::None, beside: None }
}

/// Returns the index in [`CIRCUMSTANCES`] of the engine's two CPUs, by transfers there and back.
fn circumstances(engine: &mut Engine) -> Result<usize, LabError> {
    Ok(usize::from(engine.run(run("transfer", TRANSFERS))?.ns / 2.0 > NEAR_NS_MAX))
}

/// Returns the slots of the machine, and of each ring of each engine in each shape.
fn slots(engines: &[Engine], placement: &str) -> Vec<Slot> {
    let mut slots = Vec::new();
    let mut add = |engine, sum: Vec<(String, f64)>, iterations, labels: &[(&str, &str)]| {
        let labels = plan::labels(&[labels, &[("placement", placement)]].concat());
        slots.push(Slot { engine, sum, iterations, labels, ns: Default::default(), counters: Default::default() });
    };
    for (what, sum, iterations) in [
        ("reread", vec![("handed", -1.0), ("handed-reread", 1.0)], TRANSFERS),
        ("transfer", vec![("transfer", 0.5)], TRANSFERS),
        ("step", vec![("width", 1.0)], 10_000),
    ] {
        let sum = sum.into_iter().map(|(case, factor)| (case.to_string(), factor)).collect();
        add(0, sum, iterations, &[("state", "machine"), ("tool", what)]);
    }
    for (engine, running) in engines.iter().enumerate() {
        for case in &running.description().cases {
            // `stream_packed_16`; other cases do not have these parts.
            let [shape, ring, batch] = case.split('_').collect::<Vec<_>>()[..] else { continue };
            let labels = [("state", shape), ("tool", ring), ("batch", batch)];
            add(engine, vec![(case.clone(), 1.0)], ITERATIONS, &labels);
        }
    }
    slots
}

/// Takes turns of all slots, round by round, for one placement's share of the time. Returns the number of rounds that
/// count.
fn measure(engines: &mut Engines, slots: &mut [Slot], options: &RunOptions, places: u32) -> Result<usize, LabError> {
    let lasting = Duration::from_secs(if options.is_quick { 5 } else { 120 }) / places;
    let bar = progress(NAME, lasting.as_secs() as usize);
    let processes = plan::processes(options.is_quick);
    let (begun, mut rounds) = (Instant::now(), 0);
    for process in 1..=processes {
        if process > 1 {
            engines.renew()?;
        }
        // The first round of a process pays for pages and code, and does not count.
        for round in 0..=options.rounds_max.div_ceil(processes) {
            if begun.elapsed() > lasting * process as u32 / processes as u32 {
                break;
            }
            let mut before = circumstances(&mut engines.all[0])?;
            for index in order(slots.len(), rounds as u32) {
                let slot = &mut slots[index];
                let (mut ns, mut counters) = (0.0, BTreeMap::new());
                for (case, factor) in &slot.sum {
                    let timing = engines.all[slot.engine].run(run(case, slot.iterations))?;
                    ns += timing.ns * factor;
                    counters = by_side(timing.counters);
                }
                let after = circumstances(&mut engines.all[0])?;
                if round > 0 && before == after {
                    slot.ns[after].push(ns);
                    for (name, count) in counters {
                        slot.counters[after].entry(name).or_default().push(count);
                    }
                }
                before = after;
            }
            rounds += usize::from(round > 0);
            bar.set_position(begun.elapsed().as_secs());
        }
    }
    bar.finish_and_clear();
    Ok(rounds)
}

/// Returns a figure with these labels.
fn figure(labels: Labels, unit: &str, samples: &[f64]) -> Measurement {
    Measurement { labels: labels.clone(), ..measurement(&plan::name(AXES, &labels), unit, samples) }
}

/// Returns figures of the slots in one of [`CIRCUMSTANCES`], if there are enough turns of all. All have the same number
/// of turns, so that ratios have pairs.
fn figures(slots: &[Slot], at: usize, rate: Option<f64>, host: &Host) -> Vec<Measurement> {
    let count = slots.iter().map(|slot| slot.ns[at].len()).min().unwrap_or(0);
    let mut figures = Vec::new();
    for slot in slots.iter().filter(|_| count >= TURNS_MIN) {
        let mut labels = slot.labels.clone();
        labels.insert("circumstances".into(), CIRCUMSTANCES[at].into());
        let (ns, counters) = (&slot.ns[at], &slot.counters[at]);
        let mut cost = figure(labels.clone(), "ns", &ns[..count]);
        cost.tsc_cycles = rate.map(|rate| cost.median * rate);
        if labels.contains_key("batch") {
            cost.counters = counters.iter().map(|(name, counts)| (name.clone(), median(counts))).collect();
        }
        figures.push(cost);
        let is_papers = PAPERS.iter().any(|ring| slot.sum[0].0 == format!("stream_{ring}_1"));
        for counter in COUNTERS.into_iter().filter(|counter| is_papers && plan::is_available(host, counter)) {
            let of = |side: &str| counters.get(&format!("{side}.{counter}")).filter(|counts| counts.len() == ns.len());
            // A counter is missing for turns in which it never got its turn on the hardware.
            if let [Some(driver), Some(device)] = SIDES.map(of) {
                let both: Vec<f64> = driver.iter().zip(device).take(count).map(|(a, b)| a + b).collect();
                labels.insert("counter".into(), counter.into());
                figures.push(figure(labels.clone(), "count", &both));
            }
        }
    }
    figures
}

/// Runs the experiment. If there is only one CPU, that is a note, not an error.
pub(super) fn run_vring(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let (places, mut notes) = placements(&options.cpus, place);
    if places.is_empty() {
        notes.push("nothing is measured: this needs two processors".into());
    }
    let mut measurements = Vec::new();
    for &(placement, cpus) in &places {
        let mut engines = Engines::new(&RunOptions { cpus: cpus.to_vec(), ..options.clone() })?;
        let wrong = |arrived: u64, emitted: u64| format!("{arrived} of {emitted} buffers came to where they were sent");
        engines.add(move |dir| engines::of_ours("dormouse-lab-engine-vring", dir, wrong))?;
        notes.extend(engines.add_peers(NAME));
        let rate = engines.all[0].description().tsc_cycles_per_ns;
        let mut slots = slots(&engines.all, placement);
        let rounds = measure(&mut engines, &mut slots, options, places.len() as u32)?;
        for ring in PAPERS.into_iter().filter(|_| !options.is_quick) {
            let timing = engines.all[0].run(run(&format!("stream_{ring}_1"), LONG))?;
            let labels = [("state", "long"), ("tool", ring), ("batch", "1"), ("placement", placement)];
            let seconds = figure(plan::labels(&labels), "s", &[timing.ns * LONG as f64 / 1e9]);
            measurements.push(Measurement { counters: by_side(timing.counters), ..seconds });
        }
        let found = engines.finish(host, &mut notes)?;
        notes.push(format!("dormouse: {} ends of ways of buffers; {}", found[0].emitted, found[0].text));
        measurements.extend([0, 1].into_iter().flat_map(|at| figures(&slots, at, rate, host)));
        let [near, far] = [0, 1].map(|at| slots.iter().map(|slot| slot.ns[at].len()).sum::<usize>());
        notes.push(format!(
            "{placement}, processors {cpus:?}: {rounds} rounds of turns of {ITERATIONS} buffers; each figure is one buffer's way there and \
             back. Of {} turns, near {near}, far {far}; others do not count, in which that changed. There are no figures where a slot has \
             fewer than {TURNS_MIN}",
            rounds * slots.len()
        ));
    }
    plan::retain_available(&mut measurements, host);
    let ratios = ratios(&measurements);
    measurements.extend(model::counts());
    Ok(Experiment { name: NAME.into(), measurements, ratios, notes, ..Experiment::default() })
}

/// Name, numerator and denominator of each ratio: rings, which are compared at every batch.
const RATIOS: [(&str, &str, &str); 15] = [
    ("shadow_vs_noshadow", "shadow-private", "noshadow-private"),
    ("shadow_cached_vs_noshadow", "shadow-batch", "noshadow-batch"),
    ("shadow_alone_vs_noshadow", "shadow", "noshadow"),
    ("shadow_flags_vs_noshadow", "shadow-flags", "noshadow-flags"),
    ("private_vs_cached", "shadow-private", "shadow-batch"),
    ("adaptive_vs_plain", "adaptive", "shadow"),
    ("packed_adaptive_vs_plain", "packed-adaptive", "shadow"),
    ("packed_adaptive_vs_adaptive", "packed-adaptive", "adaptive"),
    ("in_order_vs_split", "in-order", "shadow-private"),
    ("packed_vs_split", "packed", "shadow-private"),
    ("packed_in_order_vs_split", "packed-in-order", "shadow-private"),
    ("adaptive_vs_rtrb", "adaptive", "rtrb"),
    ("adaptive_vs_array_queue", "adaptive", "array-queue"),
    ("adaptive_vs_std_mpsc", "adaptive", "std-mpsc"),
    ("adaptive_vs_index_pair", "adaptive", "index-pair"),
];

/// Returns the ratios of both shapes, for all placements and circumstances: at each batch, and of the means over
/// batches.
fn ratios(measurements: &[Measurement]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let ends = ["", ".far", ".hyperthreads", ".hyperthreads.far", ".sockets-apart", ".sockets-apart.far"];
    for (shape, end) in ["stream", "lockstep"].into_iter().flat_map(|shape| ends.map(|end| (shape, end))) {
        let find = |name: String| measurements.iter().find(|found| found.name == name);
        let samples = |ring: &str, batch: &u32| Some(find(format!("{shape}.{ring}.{batch}{end}"))?.samples.as_slice());
        let all = |ring: &str| BATCHES.iter().map(|batch| samples(ring, batch)).collect::<Option<Vec<_>>>();
        let end = format!("_{shape}{end}").replace(['.', '-'], "_");
        let end = end.strip_prefix("_stream").unwrap_or(&end);
        for (name, of, to) in RATIOS {
            let Some((of, to)) = all(of).zip(all(to)) else { continue };
            for (batch, (of, to)) in BATCHES.iter().zip(of.iter().zip(&to)) {
                ratios.extend(ratio(&format!("{name}_{batch}{end}"), of, to));
            }
            ratios.extend(ratio(&format!("{name}{end}"), &over_batches(&of), &over_batches(&to)));
        }
    }
    ratios
}

/// Returns the geometric mean over batches, turn by turn.
fn over_batches(all: &[&[f64]]) -> Vec<f64> {
    let turns = all.iter().map(|samples| samples.len()).min().unwrap_or(0);
    let mean = |turn: usize| all.iter().map(|samples| samples[turn].ln()).sum::<f64>() / all.len() as f64;
    (0..turns).map(|turn| mean(turn).exp()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_follow_the_machines_topology() {
        // Two sockets of two cores of two threads.
        let place = |cpu: u32| Some((format!("core {}", cpu / 2), format!("socket {}", cpu / 4)));
        let (found, notes) = placements(&[1, 0, 2, 3, 4, 5, 6, 7], place);
        assert_eq!(found, [("same-socket", [1, 2]), ("hyperthreads", [1, 0]), ("sockets-apart", [1, 4])]);
        assert!(notes.is_empty());
        let (found, notes) = placements(&[1, 0], place);
        assert_eq!((found, notes.len()), (vec![("hyperthreads", [1, 0])], 2));
        assert_eq!(placements(&[1, 0], |_| None).0, [("same-socket", [1, 0])]);
        assert!(placements(&[1], place).0.is_empty());
    }

    /// Makes a slot whose nanoseconds, and counters of the driver, are the turns' numbers; counters of the device are
    /// ten times as high.
    fn slot(ring: &str, counts: [usize; 2]) -> Slot {
        let series = |count: usize, factor: f64| (1..=count).map(|number| number as f64 * factor).collect::<Vec<_>>();
        let loads = |side: &str, count, factor| (format!("{side}.l1d_loads"), series(count, factor));
        let ns = counts.map(|count| series(count, 1.0));
        let counters = counts.map(|count| BTreeMap::from([loads("driver", count, 1.0), loads("device", count, 10.0)]));
        let labels = plan::labels(&[("state", "stream"), ("tool", ring), ("batch", "1")]);
        Slot { engine: 0, sum: vec![(format!("stream_{ring}_1"), 1.0)], iterations: 1, labels, ns, counters }
    }

    #[test]
    fn figures_are_of_as_many_turns_and_each_thread_has_its_counters() {
        let slots = [slot("shadow", [TURNS_MIN, TURNS_MIN]), slot("packed", [TURNS_MIN - 1, TURNS_MIN + 1])];
        let mut host = Host::default();
        assert!(figures(&slots, 0, None, &host).is_empty(), "too few");
        let of = |figure: &Measurement| (figure.name.clone(), figure.samples.len(), figure.samples[1]);
        let found: Vec<_> = figures(&slots, 1, None, &host).iter().map(of).collect();
        let costs = ["stream.shadow.1.far", "stream.packed.1.far"].map(|name| (name.to_string(), TURNS_MIN, 2.0));
        assert_eq!(found, costs, "counters stay at zero");
        host.counters.insert("l1d_loads".into(), crate::host::Fact::Told("available".into()));
        let mut figures = figures(&slots, 1, None, &host);
        plan::retain_available(&mut figures, &host);
        assert_eq!(of(&figures[1]), ("stream.shadow.1.l1d_loads.far".to_string(), TURNS_MIN, 22.0));
        assert_eq!(SIDES.map(|side| figures[0].counters[&format!("{side}.l1d_loads")]), [3.5, 35.0]);
    }

    #[test]
    fn ratios_come_with_their_mean_over_batches() {
        let of = |(batch, ns): (u32, f64)| {
            let cost = |ring: &str, ns: f64| measurement(&format!("lockstep.{ring}.{batch}.far"), "ns", &[ns; 6]);
            [cost("packed", ns), cost("shadow-private", 100.0)]
        };
        let measurements = BATCHES.into_iter().zip([100.0, 90.0, 60.0, 40.0]).flat_map(of).collect::<Vec<_>>();
        let ratios = ratios(&measurements);
        assert_eq!(ratios.len(), 5);
        let value = |name: &str| ratios.iter().find(|ratio| ratio.name == name).map(|ratio| ratio.value);
        assert_eq!(value("packed_vs_split_64_lockstep_far"), Some(0.4));
        let mean = value("packed_vs_split_lockstep_far").expect("all batches were measured");
        assert!((mean - (1.0f64 * 0.9 * 0.6 * 0.4).powf(0.25)).abs() < 1e-9, "{mean}");
    }
}
