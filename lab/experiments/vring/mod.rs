//! Experiment `vring`: virtqueues between two processors, as Srinivas (2015) found them and with what came after.
//!
//! # The problem
//! In 2015 a change to the virtio driver kept avail flags and index in private memory too, so that the producer reads no line that the
//! consumer reads. Its author's program ran 0 to 8 % shorter for it, depending on the machine. What that is worth here, and what batched
//! publishing, cached indexes, a private free list, prefetching and other forms of queue are worth beyond, is measured by one program.
//! What the paper printed and said is in `paper.toml`, beside what is found here.
//!
//! # The picture
//! ```text
//!   SHAPE.RING.BATCH[.crowded|.far]
//!     SHAPE    stream: as many buffers under way as the ring takes        lockstep: a batch there and back, then the next
//!     RING     noshadow, shadow: as in the paper; …-flags: with notifications suppressed while buffers are taken;
//!              …-batch, …-private: with what came after; in-order, packed, packed-in-order;
//!              adaptive, packed-adaptive: published by themselves
//!              rtrb, array-queue, std-mpsc, index-pair: a queue for either way that is no virtqueue, whose ends trust one another
//!     BATCH    1 4 16 64
//!     far      while a line took long from one processor to the other (below)
//!     crowded  while it did not, and somebody else had a share of a core (below)
//!   long.RING.1      a run of as many buffers as the paper's runs had, in seconds; in full runs only
//!   machine.WHAT     of the machine meanwhile: `transfer`, a line one way; `step`, 24 additions; `reread`, see below
//!   model.RING.…     what the model counts, see below
//! ```
//! A cost is that of one buffer there and back. Nothing is subtracted: an empty loop would wait for nobody.
//!
//! # How far apart the processors are
//! A pair is chosen by what the machine says of itself: hyperthreads of a core, cores of a socket, sockets apart. In a virtual machine
//! that is not to be relied on, for its processors move. So before and after each turn a line is sent to and fro, and a turn between two
//! slow transfers is `far`; one between a quick and a slow one does not count.
//!
//! # Who else is there
//! The other hyperthread of a core that a virtual machine's processor runs on may be another machine's. Then the processor does fewer
//! instructions at a time, though each takes as long as before, and a ring whose buffers cost instructions slows down where one
//! that waits for lines does not. So before and after each turn instructions that wait for nothing are timed as well: a turn between two
//! slow ones of these is `crowded`. What is slow is told from the quickest of the run; if there was company all the time, nothing is.
//!
//! # The model
//! What each form of ring moves from cache to cache is counted as well, by a model of two caches
//! ([`dormouse_lab_coherence`]). It stands in for the counters of cache misses where the machine has none. Which of its protocols is
//! the machine's is measured, by `machine.reread`: a line goes to and fro while one processor writes another line, which the other one reads;
//! and again, while the first then reads that line itself. Where it waits for it, the line went over.
//!
//! # Counters
//! Each thread has its own: `driver.l1d_loads`, `device.l1d_loads`, …, for one buffer. `perf stat` adds a program's threads up, as the paper's figures
//! are; so are `stream.RING.1.l1d_loads` and so on here, of the paper's two rings, round by round.
//!
//! # What is verified
//! In every loop, the sum of what came to the device and of what came back is that of what was sent.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use dormouse_lab_harness::{Run, Walk};
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::engine::Engine;
use crate::engines::{self, Engines};
use crate::plan::{self, Axis};
use crate::statistics::{measurement, median, ratio};
use crate::{Experiment, Host, LabError, Measurement, Ratio, RunOptions};

mod model;

const NAME: &str = "vring";
const ENGINE: &str = "dormouse-lab-engine-vring";

/// What a name is made of: `stream.packed.16.far`.
const AXES: &[Axis] = &[
    Axis::plain("state"),
    Axis::plain("tool"),
    Axis::plain("batch"),
    Axis::plain("counter"),
    Axis::without("placement", "same-socket"),
    Axis::without("circumstances", "near"),
];

const SHAPES: [&str; 2] = ["stream", "lockstep"];
/// Rings of our engine, in the order in which they came to be.
#[cfg(test)]
const RINGS: [&str; 13] = [
    "noshadow",
    "shadow",
    "noshadow-flags",
    "shadow-flags",
    "noshadow-batch",
    "shadow-batch",
    "noshadow-private",
    "shadow-private",
    "in-order",
    "packed",
    "packed-in-order",
    "adaptive",
    "packed-adaptive",
];
/// What the engine `queues` has beside them.
#[cfg(test)]
const PEERS: [&str; 4] = ["rtrb", "array-queue", "std-mpsc", "index-pair"];
const BATCHES: [&str; 4] = ["1", "4", "16", "64"];

/// The paper's two, and the counters that it printed of them.
const PAPERS: [&str; 2] = ["noshadow", "shadow"];
const COUNTERS: [&str; 6] =
    ["l1d_loads", "l1d_load_misses", "l1d_stores", "l1d_store_misses", "llc_loads", "llc_load_misses"];

/// Buffers of a long run: as many as on the paper's Sandy Bridge.
const LONG: u64 = 100_000_000;
/// Buffers of a turn: so few that it is short beside the time that a virtual machine's processors stay where they are.
const ITERATIONS: u64 = 8_000;
/// Transfers there and back that tell how far apart they are.
const TRANSFERS: u64 = 1_000;
/// A line that takes longer one way than this does not come from a cache that both processors share.
const NEAR_NS_MAX: f64 = 120.0;
/// Iterations that tell whether a processor has its core for itself.
const STEPS: u64 = 10_000;
/// Where they take so many times as long as nearly the quickest, it has not.
const ALONE_MAX: f64 = 1.06;
const QUICKEST: f64 = 0.01;
/// Turns of each slot that a figure needs.
const TURNS_MIN: usize = 6;

/// Two processors, and what the machine says of them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placement {
    name: &'static str,
    cpus: [u32; 2],
}

/// Where a processor is: its core, as the list of its siblings, and its socket.
type Place = (String, String);

fn place(cpu: u32) -> Option<Place> {
    let read = |what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}");
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_string())
    };
    Some((read("thread_siblings_list")?, read("physical_package_id")?))
}

/// A pair for each placement that there is, the first processor in all of them; and what there is not.
fn placements(cpus: &[u32], place: impl Fn(u32) -> Option<Place>) -> (Vec<Placement>, Vec<String>) {
    let (mut found, mut notes) = (Vec::new(), Vec::new());
    let Some((&first, others)) = cpus.split_first() else { return (found, notes) };
    let of_first = place(first);
    let is_known = |other: &u32| Some((of_first.clone()?, place(*other)?));
    type IsSo = fn(&Place, &Place) -> bool;
    let kinds: [(&str, &str, IsSo); 3] = [
        ("same-socket", "two cores of one socket", |a, b| a.0 != b.0 && a.1 == b.1),
        ("hyperthreads", "two hyperthreads of one core", |a, b| a.0 == b.0),
        ("sockets-apart", "cores of two sockets", |a, b| a.1 != b.1),
    ];
    for (name, words, is_so) in kinds {
        match others.iter().find(|other| is_known(other).is_some_and(|(a, b)| is_so(&a, &b))) {
            Some(other) => found.push(Placement { name, cpus: [first, *other] }),
            None => {
                notes.push(format!("placement {name}: this machine shows no {words} among the processors {cpus:?}"))
            }
        }
    }
    if let (true, Some(other)) = (found.is_empty(), others.first()) {
        found.push(Placement { name: "same-socket", cpus: [first, *other] });
        notes.push("the machine does not tell where its processors are: taken to be cores of one socket".into());
    }
    (found, notes)
}

/// What is measured in turn.
#[derive(Debug)]
struct Slot {
    engine: usize,
    case: String,
    labels: [(&'static str, String); 3],
    turns: Vec<Turn>,
}

/// A turn of one of them, and what was found before and after.
#[derive(Debug)]
struct Turn {
    /// Nanoseconds of a buffer.
    ns: f64,
    /// By [`by_side`].
    counters: BTreeMap<String, f64>,
    around: [Probe; 2],
}

/// How two processors were at a time.
#[derive(Debug, Clone, Copy)]
struct Probe {
    /// Nanoseconds that a line took there and back.
    transfer_ns: f64,
    /// And a step of `width`, on either.
    step_ns: f64,
}

impl Probe {
    fn take(engine: &mut Engine) -> Result<Probe, LabError> {
        let transfer_ns = engine.run(run("transfer", TRANSFERS))?.ns;
        Ok(Probe { transfer_ns, step_ns: engine.run(run("width", STEPS))?.ns })
    }

    /// Which of [`CIRCUMSTANCES`] it tells of, where a step takes so long that has a core for itself.
    fn circumstances(self, alone_ns: f64) -> usize {
        if self.transfer_ns / 2.0 > NEAR_NS_MAX { 2 } else { usize::from(self.step_ns > ALONE_MAX * alone_ns) }
    }
}

/// Counters of both threads, by names that tell them apart.
fn by_side(threads: Vec<BTreeMap<String, f64>>) -> BTreeMap<String, f64> {
    let sides = ["driver", "device"].into_iter().zip(threads);
    let named = sides
        .flat_map(|(side, counters)| counters.into_iter().map(move |(name, count)| (format!("{side}.{name}"), count)));
    named.collect()
}

const CIRCUMSTANCES: [&str; 3] = ["near", "crowded", "far"];

fn run(case: &str, iterations: u64) -> Run {
    Run { case: case.into(), iterations, threads: 2, walk: Walk::None, beside: None }
}

fn slots(engines: &Engines) -> Vec<Slot> {
    let mut slots = Vec::new();
    for (engine, running) in engines.all.iter().enumerate() {
        for case in &running.description().cases {
            let mut parts = case.splitn(2, '_');
            let (Some(shape), Some(rest)) = (parts.next(), parts.next()) else { continue };
            let Some((ring, batch)) = rest.rsplit_once('_') else { continue };
            if SHAPES.contains(&shape) && BATCHES.contains(&batch) {
                let labels = [("state", shape.into()), ("tool", ring.into()), ("batch", batch.into())];
                slots.push(Slot { engine, case: case.clone(), labels, turns: Vec::new() });
            }
        }
    }
    slots
}

/// What the turns of a pair of processors came to.
struct Turns {
    slots: Vec<Slot>,
    /// What it takes to read a line of one's own after the other has read it, and how the processors were.
    rereads: Vec<(f64, [Probe; 2])>,
    rounds: usize,
}

impl Turns {
    /// One for each turn: that after it.
    fn probes(&self) -> impl Iterator<Item = &Probe> {
        self.slots.iter().flat_map(|slot| &slot.turns).map(|turn| &turn.around[1])
    }

    /// Nanoseconds of a step where a processor has its core for itself.
    fn alone_ns(&self) -> f64 {
        let mut steps: Vec<f64> = self.probes().map(|probe| probe.step_ns).collect();
        steps.sort_unstable_by(f64::total_cmp);
        steps.get((steps.len() as f64 * QUICKEST) as usize).copied().unwrap_or(f64::INFINITY)
    }
}

fn measure(
    engines: &mut Engines,
    lasting: Duration,
    processes: u32,
    rounds_max: usize,
    what: &str,
) -> Result<Turns, LabError> {
    let bar = ProgressBar::new(lasting.as_secs()).with_message(what.to_string());
    if let Ok(style) = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} s") {
        bar.set_style(style);
    }
    let mut slots = slots(engines);
    let mut order: Vec<usize> = (0..slots.len()).collect();
    let mut random = SmallRng::from_os_rng();
    let (mut rereads, mut rounds) = (Vec::new(), 0);
    for process in 0..processes {
        if process > 0 {
            engines.renew()?;
        }
        let begun = Instant::now();
        let mut is_counted = false;
        let enough = rounds_max.div_ceil(processes as usize).saturating_add(rounds);
        while begun.elapsed() < lasting / processes && rounds < enough {
            order.shuffle(&mut random);
            let mut before = Probe::take(&mut engines.all[0])?;
            for &index in &order {
                let slot = &mut slots[index];
                let timing = engines.all[slot.engine].run(run(&slot.case, ITERATIONS))?;
                let after = Probe::take(&mut engines.all[0])?;
                if is_counted {
                    let counters = by_side(timing.counters);
                    slot.turns.push(Turn { ns: timing.ns, counters, around: [before, after] });
                }
                before = after;
            }
            let [handed, reread] = ["handed", "handed-reread"].map(|case| engines.all[0].run(run(case, TRANSFERS)));
            let reread = reread?.ns - handed?.ns;
            if is_counted {
                rereads.push((reread, [before, Probe::take(&mut engines.all[0])?]));
            }
            rounds += usize::from(is_counted);
            // The first of a process pays for pages and code.
            is_counted = true;
            bar.set_position((begun.elapsed() + lasting / processes * process).as_secs());
        }
    }
    bar.finish_and_clear();
    Ok(Turns { slots, rereads, rounds })
}

/// Figures of the slots in one of [`CIRCUMSTANCES`], as far as there are enough turns of all; as many of each, so that ratios have pairs.
fn figures(turns: &Turns, placement: &str, at: usize, rate: Option<f64>, host: &Host) -> Vec<Measurement> {
    let alone_ns = turns.alone_ns();
    let is_so = |turn: &&Turn| turn.around.iter().all(|probe| probe.circumstances(alone_ns) == at);
    let counted: Vec<Vec<&Turn>> = turns.slots.iter().map(|slot| slot.turns.iter().filter(is_so).collect()).collect();
    let count = counted.iter().map(Vec::len).min().unwrap_or(0);
    if count < TURNS_MIN {
        return Vec::new();
    }
    let mut figures = Vec::new();
    for (slot, counted) in turns.slots.iter().zip(counted) {
        let mut labels = plan::labels(&[("placement", placement), ("circumstances", CIRCUMSTANCES[at])]);
        labels.extend(slot.labels.iter().map(|(axis, value)| (axis.to_string(), value.clone())));
        let ns: Vec<f64> = counted[..count].iter().map(|turn| turn.ns).collect();
        let mut cost = measurement(&plan::name(AXES, &labels), "ns", &ns);
        cost.tsc_cycles = rate.map(|rate| cost.median * rate);
        cost.labels = labels.clone();
        let mut counters = BTreeMap::<&String, Vec<f64>>::new();
        for (name, count) in counted.iter().flat_map(|turn| &turn.counters) {
            counters.entry(name).or_default().push(*count);
        }
        cost.counters = counters.into_iter().map(|(name, counts)| (name.clone(), median(&counts))).collect();
        figures.push(cost);
        let [(_, shape), (_, ring), (_, batch)] = &slot.labels;
        if shape != SHAPES[0] || !PAPERS.contains(&ring.as_str()) || batch != BATCHES[0] {
            continue;
        }
        for counter in COUNTERS {
            let of = |turn: &&Turn| {
                let side = |side: &str| turn.counters.get(&format!("{side}.{counter}"));
                Some(side("driver")? + side("device")?)
            };
            // Of a turn that the processor had no room for there is none.
            let counts: Option<Vec<f64>> = counted[..count].iter().map(of).collect();
            if let Some(counts) =
                counts.filter(|_| host.counters.get(counter).is_some_and(|found| found.told().is_some()))
            {
                let mut labels = labels.clone();
                labels.insert("counter".into(), counter.into());
                figures.push(Measurement {
                    labels: labels.clone(),
                    ..measurement(&plan::name(AXES, &labels), "count", &counts)
                });
            }
        }
    }
    figures
}

/// A run of each of the paper's rings at its scale.
fn long(engines: &mut Engines, placement: &str) -> Result<Vec<Measurement>, LabError> {
    let runs = PAPERS.into_iter().map(|ring| {
        let timing = engines.all[0].run(run(&format!("stream_{ring}_1"), LONG))?;
        let labels = plan::labels(&[("state", "long"), ("tool", ring), ("batch", "1"), ("placement", placement)]);
        let seconds = measurement(&plan::name(AXES, &labels), "s", &[timing.ns * LONG as f64 / 1e9]);
        Ok(Measurement { labels, counters: by_side(timing.counters), ..seconds })
    });
    runs.collect()
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`]. One processor alone is no error but a note.
pub fn run_vring(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let (places, mut notes) = placements(&options.cpus, place);
    let mut experiment = Experiment { name: NAME.into(), ..Experiment::default() };
    if places.is_empty() {
        notes.push("nothing is measured: this needs two processors".into());
    }
    let seconds = if options.is_quick { 12 } else { 120 };
    for Placement { name, cpus } in &places {
        let lasting = Duration::from_secs(seconds) / places.len() as u32;
        let options = RunOptions { cpus: cpus.to_vec(), ..options.clone() };
        at_placement(&options, host, dir.path(), name, lasting, &mut experiment, &mut notes)?;
    }
    experiment.ratios = ratios(&experiment.measurements);
    experiment.notes = notes;
    plan::retain_available(&mut experiment.measurements, host);
    experiment.measurements.extend(model::counts());
    Ok(experiment)
}

fn at_placement(
    options: &RunOptions,
    host: &Host,
    dir: &Path,
    name: &str,
    lasting: Duration,
    experiment: &mut Experiment,
    notes: &mut Vec<String>,
) -> Result<(), LabError> {
    let mut engines = Engines::new(options);
    let of_ours = dir.to_path_buf();
    engines.add(move || engines::of_ours(ENGINE, &of_ours, wrong))?;
    notes.extend(engines.add_peers(NAME, options.has_peers, dir));
    notes.extend(engines.shortcomings(host));
    let rate = engines.all[0].description().tsc_cycles_per_ns;
    let processes = if options.is_quick { 2 } else { 8 };
    let turns = measure(&mut engines, lasting, processes, options.rounds_max, &format!("vring: {name}"))?;
    let long = (0..options.rounds(0, 1)).map(|_| long(&mut engines, name)).collect::<Result<Vec<_>, _>>()?;
    experiment.measurements.extend(long.into_iter().flatten());
    let peers: Vec<&str> = engines.peers.iter().map(|peer| peer.name).collect();
    let found = engines.finish()?;
    notes.push(format!("dormouse: {} ends of ways of buffers; {}", found[0].emitted, found[0].text));
    notes.extend(peers.iter().zip(&found[1..]).map(|(peer, found)| found.note(peer)));
    let cpus = &options.cpus;
    notes.push(format!(
        "{name}, processors {cpus:?}: {} rounds of turns of {ITERATIONS} buffers, {processes} processes; each figure is one buffer's way \
         there and back",
        turns.rounds
    ));
    let alone_ns = turns.alone_ns();
    let all: Vec<&Turn> = turns.slots.iter().flat_map(|slot| &slot.turns).collect();
    let mut said = Vec::new();
    for (at, words) in CIRCUMSTANCES.into_iter().enumerate() {
        let is_so = |around: &[Probe; 2]| around.iter().all(|probe| probe.circumstances(alone_ns) == at);
        said.push(format!("{words} {}", all.iter().filter(|turn| is_so(&turn.around)).count()));
        experiment.measurements.extend(figures(&turns, name, at, rate, host));
        let rereads: Vec<_> = turns.rereads.iter().filter(|(_, around)| is_so(around)).collect();
        if rereads.len() < TURNS_MIN {
            continue;
        }
        type Of = fn(&(f64, [Probe; 2])) -> f64;
        let of_machine: [(&str, Of); 3] = [
            ("reread", |(ns, _)| *ns),
            ("transfer", |(_, around)| around[1].transfer_ns / 2.0),
            ("step", |(_, around)| around[1].step_ns),
        ];
        for (what, of) in of_machine {
            let samples: Vec<f64> = rereads.iter().map(|reread| of(reread)).collect();
            let labels = [("state", "machine"), ("tool", what), ("placement", name), ("circumstances", words)];
            let labels = plan::labels(&labels);
            let measurement = measurement(&plan::name(AXES, &labels), "ns", &samples);
            experiment.measurements.push(Measurement { labels, ..measurement });
        }
    }
    notes.push(format!(
        "{name}: of {} turns, {}; others do not count, in which that changed. There are no figures where a slot has fewer than {TURNS_MIN}",
        all.len(),
        said.join(", ")
    ));
    Ok(())
}

/// What is wrong where a sum did not come out.
fn wrong(arrived: u64, emitted: u64) -> String {
    format!("{arrived} of {emitted} buffers came to where they were sent")
}

/// Name, numerator, denominator: rings, each compared at every batch.
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

/// Ratios of both shapes, in all circumstances: at each batch, and of the means over batches.
fn ratios(measurements: &[Measurement]) -> Vec<Ratio> {
    let find = |name: String| measurements.iter().find(|measurement| measurement.name == name);
    let mut ratios = Vec::new();
    for shape in SHAPES {
        let suffixes = ["", ".hyperthreads", ".sockets-apart"].into_iter();
        for suffix in
            suffixes.flat_map(|placement| ["", ".crowded", ".far"].map(|suffix| format!("{placement}{suffix}")))
        {
            let mut end: String = suffix.replace(['.', '-'], "_");
            if shape != "stream" {
                end.insert_str(0, &format!("_{shape}"));
            }
            for (name, of, to) in RATIOS {
                let mut all = Vec::new();
                for batch in BATCHES {
                    let of = find(format!("{shape}.{of}.{batch}{suffix}"));
                    let to = find(format!("{shape}.{to}.{batch}{suffix}"));
                    let Some((of, to)) = of.zip(to) else { continue };
                    ratios.extend(ratio(&format!("{name}_{batch}{end}"), &of.samples, &to.samples));
                    all.push([of, to]);
                }
                let [of, to] = [0, 1].map(|side| over_batches(&all.iter().map(|pair| pair[side]).collect::<Vec<_>>()));
                ratios.extend(ratio(&format!("{name}{end}"), &of, &to));
            }
        }
    }
    ratios
}

/// The geometric mean over batches, turn by turn.
fn over_batches(all: &[&Measurement]) -> Vec<f64> {
    let turns = all.iter().map(|measurement| measurement.samples.len()).min().unwrap_or(0);
    let mean =
        |turn: usize| all.iter().map(|measurement| measurement.samples[turn].ln()).sum::<f64>() / all.len() as f64;
    (0..turns).map(|turn| mean(turn).exp()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_rings_that_there_are() {
        plan::assert_different_names(RATIOS.iter().map(|(name, ..)| *name));
        for (_, of, to) in RATIOS {
            assert!(RINGS.contains(&of), "{of}");
            assert!(RINGS.contains(&to) || PEERS.contains(&to), "{to}");
        }
    }

    #[test]
    fn placements_are_as_the_machine_says() {
        // Two sockets of two cores of two threads.
        let place = |cpu: u32| Some((format!("core {}", cpu / 2), format!("socket {}", cpu / 4)));
        let (found, notes) = placements(&[1, 0, 2, 3, 4, 5, 6, 7], place);
        let pairs: Vec<_> = found.iter().map(|placement| (placement.name, placement.cpus)).collect();
        assert_eq!(pairs, [("same-socket", [1, 2]), ("hyperthreads", [1, 0]), ("sockets-apart", [1, 4])]);
        assert!(notes.is_empty());
        let (found, notes) = placements(&[1, 0], place);
        assert_eq!((found.len(), found[0].name, notes.len()), (1, "hyperthreads", 2));
        let (found, _) = placements(&[1, 0], |_| None);
        assert_eq!(found, [Placement { name: "same-socket", cpus: [1, 0] }]);
        assert!(placements(&[1], place).0.is_empty());
    }

    #[test]
    fn circumstances_are_told_by_lines_and_steps() {
        let of = |transfer_ns, step_ns| Probe { transfer_ns, step_ns }.circumstances(2.0);
        assert_eq!([of(90.0, 2.0), of(239.0, 2.1), of(90.0, 2.2), of(241.0, 2.0), of(480.0, 4.0)], [0, 0, 1, 2, 2]);
    }

    #[test]
    fn only_turns_between_the_same_circumstances_count() {
        let [near, crowded, far] =
            [(60.0, 2.0), (60.0, 4.0), (300.0, 4.0)].map(|(transfer_ns, step_ns)| Probe { transfer_ns, step_ns });
        let turn = |ns, before, after| Turn { ns, counters: BTreeMap::new(), around: [before, after] };
        let mut all: Vec<Turn> =
            (0..TURNS_MIN).flat_map(|_| [turn(1.0, near, near), turn(2.0, crowded, crowded)]).collect();
        all.extend([turn(3.0, near, crowded), turn(4.0, far, near), turn(5.0, far, far)]);
        let labels = [("state", "stream".into()), ("tool", "packed".into()), ("batch", "1".into())];
        let slots = vec![Slot { engine: 0, case: "stream_packed_1".into(), labels, turns: all }];
        let turns = Turns { slots, rereads: Vec::new(), rounds: 1 };
        let of = |at| figures(&turns, "same-socket", at, None, &Host::default());
        let found = [of(0), of(1)].map(|found| (found[0].name.clone(), found[0].samples.clone()));
        let expected = [("stream.packed.1", 1.0), ("stream.packed.1.crowded", 2.0)];
        assert_eq!(found, expected.map(|(name, ns)| (name.to_string(), vec![ns; TURNS_MIN])));
        assert!(of(2).is_empty(), "too few");
    }

    #[test]
    fn counters_of_the_papers_rings_are_both_threads_and_each_has_its_own() {
        let near = Probe { transfer_ns: 60.0, step_ns: 2.0 };
        let turn = |ns: f64| {
            let threads = [1.0, 10.0].map(|count| BTreeMap::from([("l1d_loads".to_string(), count * ns)]));
            Turn { ns, counters: by_side(threads.into()), around: [near; 2] }
        };
        let slot = |ring: &str| Slot {
            engine: 0,
            case: String::new(),
            labels: [("state", "stream".into()), ("tool", ring.into()), ("batch", "1".into())],
            turns: (1..=TURNS_MIN).map(|number| turn(number as f64)).collect(),
        };
        let turns = Turns { slots: vec![slot("shadow"), slot("packed")], rereads: Vec::new(), rounds: TURNS_MIN };
        let mut host = Host::default();
        let names = |host: &Host| {
            let found = figures(&turns, "same-socket", 0, None, host);
            found.into_iter().map(|figure| (figure.name, figure.samples[0])).collect::<Vec<_>>()
        };
        assert_eq!(
            names(&host),
            [("stream.shadow.1".into(), 1.0), ("stream.packed.1".into(), 1.0)],
            "they stay at zero"
        );
        host.counters.insert("l1d_loads".into(), crate::host::Fact::Told("available".into()));
        assert_eq!(names(&host)[1], ("stream.shadow.1.l1d_loads".into(), 11.0));
        let mut figures = figures(&turns, "same-socket", 0, None, &host);
        plan::retain_available(&mut figures, &host);
        let loads = |side: &str| figures[0].counters[&format!("{side}.l1d_loads")];
        assert_eq!([loads("driver"), loads("device")], [3.5, 35.0]);
    }

    #[test]
    fn ratios_come_with_their_mean_over_batches() {
        let of = |ring: &str, batch: &str, ns: f64| {
            measurement(&format!("stream.{ring}.{batch}.far"), "ns", &[ns, ns * 1.01, ns * 0.99, ns, ns, ns])
        };
        let mut measurements = Vec::new();
        for (batch, ns) in BATCHES.into_iter().zip([100.0, 90.0, 60.0, 40.0]) {
            measurements.extend([of("packed", batch, ns), of("shadow-private", batch, 100.0)]);
        }
        let ratios = ratios(&measurements);
        let value = |name: &str| ratios.iter().find(|ratio| ratio.name == name).map(|ratio| ratio.value);
        assert_eq!(value("packed_vs_split_64_far"), Some(0.4));
        let mean = value("packed_vs_split_far").expect("all batches were measured");
        assert!((mean - (1.0f64 * 0.9 * 0.6 * 0.4).powf(0.25)).abs() < 1e-9, "{mean}");
        assert_eq!(value("packed_vs_split"), None);
    }
}
