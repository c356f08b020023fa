//! The measurement, from slots to figures: each round runs every slot once, in an order drawn anew.
//!
//! ```text
//!   round 1    B  D  A  C          a slot: one case of one engine, a number of threads, a walk
//!   round 2    C  A  B  D          so the machine's moods affect all slots alike, and no slot always
//!   round 3    …                   follows the same other slot
//! ```
//! The number of iterations of a slot is determined beforehand, so that each turn lasts about as long. The rounds are
//! divided among several processes of each engine (`engines`). The first round of every process except the first one is
//! not counted, since it pays for pages and code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dormouse_lab_harness::{Run, Timing, Walk};
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::engine::Engine;
use crate::engines::Engines;
use crate::statistics::{self, measurement, median, outlier_share, quantile, ratio};
use crate::{Experiment, Host, LabError, Labels, Measurement, Ratio};

/// A case that is measured once a round.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) engine: usize,
    pub(crate) case: String,
    pub(crate) threads: usize,
    /// Walk before each iteration.
    pub(crate) walk: Walk,
    pub(crate) turn: Turn,
    /// Case that one more thread runs meanwhile.
    pub(crate) beside: Option<String>,
}

/// Length of a turn of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// As many iterations as last about this long.
    Lasting(Duration),
    /// A fixed number of iterations, because a figure elsewhere has that number. If all turns have one, no round is
    /// discarded as warm-up.
    Of(u64),
}

/// Returns a slot of one thread with no case beside it.
pub(crate) fn slot(engine: usize, case: &str, walk: Walk, turn: Turn) -> Slot {
    Slot { engine, case: case.into(), threads: 1, walk, turn, beside: None }
}

impl Slot {
    fn run(&self, iterations: u64) -> Run {
        let (case, beside) = (self.case.clone(), self.beside.clone());
        Run { case, iterations, threads: self.threads, walk: self.walk, beside }
    }

    fn is_lasting(&self) -> bool {
        matches!(self.turn, Turn::Lasting(_))
    }
}

/// A label that is part of a measurement's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    /// Value that the name leaves out.
    pub(crate) silent: &'static str,
    /// Format of other values, with `{}` in place of the value.
    pub(crate) shown: &'static str,
}

impl Axis {
    /// An axis that is always shown, unchanged.
    pub(crate) const fn plain(name: &'static str) -> Axis {
        Axis::without(name, "")
    }

    /// An axis that is shown unchanged, except for one value.
    pub(crate) const fn without(name: &'static str, silent: &'static str) -> Axis {
        Axis { name, silent, shown: "{}" }
    }
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Returns the name of a measurement with these labels.
pub(crate) fn name(axes: &[Axis], labels: &Labels) -> String {
    let parts = axes.iter().filter_map(|axis| {
        let value = labels.get(axis.name).filter(|value| *value != axis.silent)?;
        Some(axis.shown.replace("{}", value))
    });
    parts.collect::<Vec<_>>().join(".")
}

/// A slot with its labels and the results of its turns.
pub(crate) struct Planned {
    slot: Slot,
    pub(crate) name: String,
    labels: Labels,
    /// Index of the slot that is its empty loop.
    base: Option<usize>,
    /// Number of measured operations in an iteration, or in each of its events.
    per_iteration: u32,
    samples: OfSlot,
}

#[derive(Default)]
struct OfSlot {
    /// Number of iterations of a turn.
    iterations: u64,
    /// Nanoseconds of an iteration, one number for each round.
    ns: Vec<f64>,
    /// Counters for one iteration of one thread.
    counters: BTreeMap<String, Vec<f64>>,
    events_per_iteration: f64,
}

/// Slots that are measured together.
pub(crate) struct Plan {
    pub(crate) planned: Vec<Planned>,
    axes: &'static [Axis],
}

impl Plan {
    pub(crate) fn new(axes: &'static [Axis]) -> Plan {
        Plan { planned: Vec::new(), axes }
    }

    /// Adds a slot, unless there is one with its name. Returns its index.
    pub(crate) fn push(&mut self, slot: Slot, pairs: &[(&str, &str)], base: Option<usize>) -> usize {
        let labels = labels(pairs);
        let name = name(self.axes, &labels);
        let found = self.planned.iter().position(|planned| planned.name == name);
        found.unwrap_or_else(|| {
            self.planned.push(Planned { slot, name, labels, base, per_iteration: 1, samples: OfSlot::default() });
            self.planned.len() - 1
        })
    }

    /// Adds a slot, unless the engine lacks one of its cases. Returns its index.
    pub(crate) fn add(
        &mut self,
        engines: &[Engine],
        slot: Slot,
        pairs: &[(&str, &str)],
        base: Option<usize>,
    ) -> Option<usize> {
        let has_all = slot.beside.iter().chain([&slot.case]).all(|case| engines[slot.engine].has(case));
        has_all.then(|| self.push(slot, pairs, base))
    }

    pub(crate) fn per_iteration(&mut self, index: Option<usize>, count: u32) {
        if let Some(planned) = index.and_then(|index| self.planned.get_mut(index)) {
            planned.per_iteration = count;
        }
    }

    /// Measures all slots in turn, as a part of an experiment. `of` names the part in the progress bar and in notes.
    pub(crate) fn measure(self, engines: &mut Engines, rounds: usize, of: &str) -> Result<Experiment, LabError> {
        self.measure_by(engines, rounds, of, |_, engine, run| engine.run(run))
    }

    /// Measures all slots in turn. `take` takes each turn and gets the measurement's name.
    pub(crate) fn measure_by(
        mut self,
        engines: &mut Engines,
        rounds: usize,
        of: &str,
        mut take: impl FnMut(&str, &mut Engine, Run) -> Result<Timing, LabError>,
    ) -> Result<Experiment, LabError> {
        let bar = progress(of, rounds + 1).with_message("sizing");
        for Planned { slot, samples, .. } in &mut self.planned {
            samples.iterations = iterations(&mut engines.all[slot.engine], slot)?;
        }
        bar.inc(1);
        bar.set_message("rounds");
        let (mut random, mut untold) = (rand::make_rng::<SmallRng>(), BTreeSet::new());
        let mut order: Vec<usize> = (0..self.planned.len()).collect();
        let processes = processes(engines.options.is_quick);
        for (round, is_counted) in turns(rounds, processes) {
            if !is_counted {
                engines.renew()?;
            }
            order.shuffle(&mut random);
            for &index in &order {
                let Planned { slot, name, samples, .. } = &mut self.planned[index];
                // The length varies, so that no periodic disturbance stays in step with the turns.
                let varied = if slot.is_lasting() { samples.iterations / 16 } else { 0 };
                let run = slot.run(samples.iterations - random.random_range(0..=varied));
                let timing = take(name, &mut engines.all[slot.engine], run)?;
                if !is_counted {
                    continue;
                }
                samples.ns.push(timing.ns);
                samples.events_per_iteration = timing.events as f64 / timing.iterations as f64;
                untold.extend(timing.untold);
                for (name, count) in timing.counters.into_iter().flatten() {
                    samples.counters.entry(name).or_default().push(count);
                }
            }
            bar.set_position(round as u64 + 2);
        }
        bar.finish_and_clear();
        let may_cut = self.planned.iter().any(|planned| planned.slot.is_lasting());
        let ns: Vec<&[f64]> = self.planned.iter().map(|planned| &*planned.samples.ns).collect();
        let (warm_up, unsteady) = mood(&ns, may_cut);
        for planned in &mut self.planned {
            planned.samples.ns.drain(..warm_up);
        }
        let untold = untold.into_iter().map(|line| format!("memory: {line}"));
        let how = format!(
            "each cost is less the empty loop, where there is one, of its engine in the same round; {rounds} rounds, {warm_up} of them \
             warm-up; {processes} processes of each engine; CPUs {:?}",
            engines.options.cpus
        );
        let notes = [how].into_iter().chain(untold).chain(unsteady).chain(self.outliers());
        let notes = notes.map(|note| format!("{note} ({of})")).collect();
        let rate = engines.all[0].description().tsc_cycles_per_ns;
        let measurements = self.planned.iter().map(|planned| self.figures(planned, rate)).collect();
        Ok(Experiment { measurements, notes, ..Experiment::default() })
    }

    /// Returns the cost of a slot, round by round, minus its empty loop, for each measured operation. `rate` is that of
    /// the timestamp counter, in cycles per nanosecond.
    fn figures(&self, planned: &Planned, rate: Option<f64>) -> Measurement {
        let Planned { name, labels, base, samples, .. } = planned;
        let base = base.map(|base| &self.planned[base].samples.ns);
        // Without an empty loop, it is the time of a whole iteration, whatever that emits.
        let events = Some(samples.events_per_iteration).filter(|events| base.is_some() && *events > 0.0).unwrap_or(1.0);
        let share = 1.0 / (events * f64::from(planned.per_iteration));
        let cost = |(round, ns): (usize, &f64)| (ns - base.map_or(0.0, |base| base[round])) * share;
        let costs: Vec<f64> = samples.ns.iter().enumerate().map(cost).collect();
        let counters = samples.counters.iter().map(|(name, counts)| (name.clone(), median(counts))).collect();
        let figures = measurement(name, "ns", &costs);
        let tsc_cycles = rate.map(|rate| figures.median * rate);
        Measurement { tsc_cycles, labels: labels.clone(), counters, ..figures }
    }

    /// Returns a note if some slots have many outliers.
    fn outliers(&self) -> Option<String> {
        let shares = self.planned.iter().map(|planned| (outlier_share(&planned.samples.ns), &planned.name));
        let shares: Vec<_> = shares.filter(|(share, _)| *share > OUTLIERS_MAX).collect();
        let (share, name) = shares.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(format!(
            "outliers: in {} of {} cases more than a tenth of the rounds are outliers, most in {name} ({:.0} %); medians tolerate that, \
             means do not; {REMEDY}",
            shares.len(),
            self.planned.len(),
            share * 100.0
        ))
    }
}

/// Returns a progress bar, which is drawn if standard error is a terminal.
pub(crate) fn progress(what: &str, len: usize) -> ProgressBar {
    let template = format!("{what} {{wide_bar}} {{pos}}/{{len}} {{msg:17}} {{eta:>4}} left");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(len as u64).with_style(style)
}

/// Samples by name and unit, one for each round.
pub(crate) type Samples = BTreeMap<(String, &'static str), Vec<f64>>;

/// Catches the signals that ask the lab to end, so that the experiment can remove its files.
pub(crate) fn signals() -> Result<Signals, LabError> {
    Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|error| LabError::System { what: "cannot handle signals", error })
}

/// Gives each of `count` items its turn in every round, in an order drawn for the round, until a signal arrives. `take`
/// gets the round, from 0, and the item's index.
pub(crate) fn in_turn(
    what: &str,
    rounds: usize,
    count: usize,
    mut signals: Option<&mut Signals>,
    mut take: impl FnMut(usize, usize, &ProgressBar) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let bar = progress(what, rounds * count);
    for round in 0..rounds {
        for index in order(count, round as u32) {
            take(round, index, &bar)?;
            bar.inc(1);
            if signals.as_mut().is_some_and(|signals| signals.pending().next().is_some()) {
                return Err(LabError::Interrupted);
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Returns the order of a round: a permutation drawn from its number.
pub(crate) fn order(len: usize, round: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(round.into()));
    order
}

/// Maximum number of iterations of a hot probe, by which the number for a turn is estimated.
const PROBE_HOT: u64 = 2_000;
/// Duration in nanoseconds that ends the probe earlier.
const PROBE_NS: f64 = 50_000.0;
/// Number of iterations of a probe under memory pressure.
const PROBE_COLD: u64 = 4;
/// Bounds of the number of iterations of a hot turn.
const HOT: [u64; 2] = [1, 4_000_000];
/// Bounds of the number of iterations of a turn under memory pressure.
const COLD: [u64; 2] = [8, 4_000];

/// Returns the number of iterations of a turn. The first call pays for pages and code.
fn iterations(engine: &mut Engine, slot: &Slot) -> Result<u64, LabError> {
    let lasting = match slot.turn {
        Turn::Of(iterations) => return engine.run(slot.run(iterations.min(PROBE_HOT))).map(|_| iterations),
        Turn::Lasting(time) => time.as_nanos() as f64,
    };
    let is_hot = slot.walk == Walk::None;
    let (mut probe, [least, most]) = if is_hot { (1, HOT) } else { (PROBE_COLD, COLD) };
    engine.run(slot.run(probe))?;
    let each = loop {
        let started = Instant::now();
        let timing = engine.run(slot.run(probe))?;
        if !is_hot {
            // The engine's timing does not include the walks.
            break started.elapsed().as_nanos() as f64 / probe as f64;
        }
        if probe == PROBE_HOT || timing.ns * probe as f64 >= PROBE_NS {
            break timing.ns;
        }
        probe = (probe * 10).min(PROBE_HOT);
    };
    Ok(((lasting / each.max(0.01)) as u64).clamp(least, most))
}

/// Returns the number of processes of each engine, among which the rounds are divided.
pub(crate) fn processes(is_quick: bool) -> usize {
    if is_quick { 2 } else { 8 }
}

/// Returns the rounds, and before the first round of each further process one that is not counted.
fn turns(rounds: usize, processes: usize) -> impl Iterator<Item = (usize, bool)> {
    let each = rounds.div_ceil(processes.max(1)).max(1);
    (0..rounds).flat_map(move |round| {
        let is_first = round > 0 && round.is_multiple_of(each);
        is_first.then_some((round, false)).into_iter().chain([(round, true)])
    })
}

/// Maximum relative difference between the halves of the rounds in a steady state.
const DRIFT_MAX: f64 = 0.1;
/// Spread of the rounds above which the reader is warned.
const SPREAD_MAX: f64 = 1.15;
/// Share of outliers above which the reader is warned.
const OUTLIERS_MAX: f64 = 0.1;
const REMEDY: &str = "end other programs, choose another CPU with --cpu, or try --policy fifo";

/// Returns the number of rounds at the start that are warm-up, if they may be cut, and notes if the other rounds are
/// not steady. It judges by all slots of each round together, since the noise of a single slot would sometimes look
/// like warm-up.
fn mood(ns: &[&[f64]], may_cut: bool) -> (usize, Vec<String>) {
    let rounds = ns.first().map_or(0, |ns| ns.len());
    let medians: Vec<f64> = ns.iter().map(|ns| median(ns)).collect();
    let mood = |round: usize| {
        let relative = ns.iter().zip(&medians).filter(|(_, median)| **median > 0.0);
        median(&relative.map(|(ns, median)| ns[round] / median).collect::<Vec<_>>())
    };
    let moods: Vec<f64> = (0..rounds).map(mood).collect();
    let warm_up = if may_cut { statistics::warm_up(&moods) } else { 0 };
    let moods = &moods[warm_up..];
    let (first, second) = moods.split_at(moods.len() / 2);
    let mut notes = Vec::new();
    if (median(second) / median(first) - 1.0).abs() > DRIFT_MAX {
        notes.push(format!(
            "not steady: the second half of the rounds was faster or slower than the first; {REMEDY}, and run again"
        ));
    }
    let spread = quantile(moods, 0.95) / quantile(moods, 0.05);
    if spread > SPREAD_MAX {
        let percent = (spread - 1.0) * 100.0;
        notes.push(format!(
            "not steady: everything took {percent:.0} % longer in the slowest rounds than in the fastest; {REMEDY}"
        ));
    }
    (warm_up, notes)
}

/// Measures the plan that `plan_of` returns without memory pressure, and then the one with it (`true`). In common
/// rounds the latter would leave nothing warm for the former. A plan without slots is left out.
pub(crate) fn warm_and_cold(
    engines: &mut Engines,
    name: &str,
    rounds: usize,
    plan_of: impl Fn(&Engines, bool) -> Plan,
) -> Result<Vec<Experiment>, LabError> {
    let mut parts = Vec::new();
    for (is_cold, part) in [(false, "warm"), (true, "cold")] {
        let plan = plan_of(engines, is_cold);
        if !plan.planned.is_empty() {
            parts.push(plan.measure(engines, rounds, &format!("{name}: {part}"))?);
        }
    }
    Ok(parts)
}

/// Combines parts to an experiment: their figures, and those ratios of a list whose two sides are in one part.
pub(crate) fn experiment(
    name: &str,
    parts: Vec<Experiment>,
    list: &[Named<'_>],
    notes: Vec<String>,
    host: &Host,
) -> Experiment {
    let mut experiment = Experiment { name: name.into(), notes, ..Experiment::default() };
    for Experiment { measurements, notes, .. } in parts {
        experiment.ratios.extend(ratios(list, &measurements, &mut experiment.notes));
        experiment.notes.extend(notes);
        experiment.measurements.extend(measurements);
    }
    retain_available(&mut experiment.measurements, host);
    experiment
}

/// A ratio of measurements: its name, numerator and denominator.
pub(crate) type Named<'a> = (&'a str, &'a str, &'a str);

/// Returns the ratios of a list of which both sides were measured. A ratio whose denominator cannot be distinguished
/// from zero becomes a note.
pub(crate) fn ratios(list: &[Named<'_>], measurements: &[Measurement], notes: &mut Vec<String>) -> Vec<Ratio> {
    let samples = |name: &str| Some(&measurements.iter().find(|found| found.name == name)?.samples);
    let mut ratios = Vec::new();
    for (name, of, to) in list {
        let Some((a, b)) = samples(of).zip(samples(to)) else { continue };
        match ratio(name, a, b) {
            Some(ratio) => ratios.push(ratio),
            None => notes.push(format!("{name}: no ratio, because the cost of {to} cannot be distinguished from zero")),
        }
    }
    ratios
}

/// Walks over L1, L2 and L3, as multiples of the cache size. One pass would do against an LRU cache; today's caches
/// keep a line that was used twice against several that were used once. A larger multiple is too slow for L3.
const WALKS: [(&str, u64); 3] = [("L1", 4), ("L2", 4), ("L3", 2)];

/// Returns this machine's walks, by label. If the size of L2 is unknown, adds a note.
pub(crate) fn walks_or_note(host: &Host, notes: &mut Vec<String>) -> Vec<(&'static str, Walk)> {
    let sizes = WALKS.into_iter().zip(host.caches_bytes());
    let sizes = sizes.filter_map(|((label, factor), size)| Some((label, size? * factor)));
    let linear = sizes.clone().filter(|(label, _)| *label == "L2");
    if linear.clone().next().is_none() {
        notes.push("memory pressure not available: the machine does not report the size of its L2 cache".into());
    }
    let linear = linear.map(|(_, bytes)| ("linear-L2", Walk::Linear { bytes }));
    sizes.map(|(label, bytes)| (label, Walk::Random { bytes })).chain(linear).collect()
}

/// Whether a counter counts here, by the host's trial.
pub(crate) fn is_available(host: &Host, counter: &str) -> bool {
    host.counters.get(counter).is_some_and(|counter| counter.told().is_some())
}

/// Removes the counters that stayed at zero in the host's trial. A counter's name may have a thread's name and a dot
/// before it.
pub(crate) fn retain_available(measurements: &mut [Measurement], host: &Host) {
    for measurement in measurements {
        measurement.counters.retain(|name, _| is_available(host, name.rsplit('.').next().unwrap_or(name)));
    }
}

/// Asserts that no name occurs twice.
#[cfg(test)]
pub(crate) fn assert_different_names<'a>(names: impl Iterator<Item = &'a str>) {
    let mut known = std::collections::HashSet::new();
    for name in names {
        assert!(known.insert(name), "{name} is named twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_is_found_and_a_series_that_climbs_all_the_time_is_unsteady() {
        let of = |series: fn(f64) -> f64, may_cut| {
            let series: Vec<f64> = (0..40).map(|round| series(f64::from(round))).collect();
            let twice: Vec<f64> = series.iter().map(|ns| 2.0 * ns).collect();
            let (warm_up, notes) = mood(&[&series, &twice], may_cut);
            (warm_up, notes.len())
        };
        let warm = |round: f64| if round < 5.0 { 9.0 } else { 5.0 + 0.01 * (round % 3.0) };
        assert_eq!(of(warm, true), (8, 0), "two batches of four");
        assert_eq!(of(warm, false), (0, 1));
        assert_eq!(of(|round: f64| 100.0 + round * round, true).1, 2);
        assert_eq!((mood(&[&[], &[]], true), mood(&[], true)), ((0, vec![]), (0, vec![])));
    }

    #[test]
    fn rounds_are_shared_out_among_processes() {
        for (rounds, processes, further) in
            [(80, 8, vec![10, 20, 30, 40, 50, 60, 70]), (9, 2, vec![5]), (20, 1, vec![])]
        {
            let (counted, others): (Vec<_>, Vec<_>) = turns(rounds, processes).partition(|(_, is_counted)| *is_counted);
            assert!(counted.into_iter().map(|(round, _)| round).eq(0..rounds), "{rounds} by {processes}");
            assert!(others.into_iter().map(|(round, _)| round).eq(further), "{rounds} by {processes}");
        }
        assert!(turns(10, 2).skip(5).take(2).eq([(5, false), (5, true)]), "first the one that is not counted");
        assert_eq!(turns(0, 8).count(), 0);
    }
}
