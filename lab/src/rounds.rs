//! Measuring in turn: every round has each slot once, in an order drawn anew.
//!
//! ```text
//!   round 1    B  D  A  C          a slot: one case of one engine, a number of threads, a walk
//!   round 2    C  A  B  D          so the machine's moods fall on all alike, and no slot always
//!   round 3    …                   follows the same other one
//! ```
//! How many iterations a slot has is found out beforehand, so that each lasts about as long. The rounds are shared out among several
//! processes of each engine (`engines`); the first round of all but the first of them is not counted, since it pays for pages and code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dormouse_lab_harness::{Run, Walk};
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::LabError;
use crate::engine::Engine;
use crate::engines::Engines;
use crate::statistics::{self, median, quantile};

/// What is measured once a round.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    /// Which engine.
    pub(crate) engine: usize,
    /// Its case.
    pub(crate) case: String,
    /// Threads at once.
    pub(crate) threads: usize,
    /// What comes before each iteration.
    pub(crate) walk: Walk,
    /// How much one turn is.
    pub(crate) turn: Turn,
    /// A case that one more thread runs meanwhile.
    pub(crate) beside: Option<String>,
}

/// How much one turn of a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It lasts about so long.
    Lasting(Duration),
    /// So many iterations, because a figure elsewhere is of so many.
    Of(u64),
}

impl Slot {
    fn run(&self, iterations: u64) -> Run {
        let (case, beside) = (self.case.clone(), self.beside.clone());
        Run { case, iterations, threads: self.threads, walk: self.walk, beside }
    }
}

/// Whether rounds at the beginning may be thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarmUp {
    /// As far as they are found to be warm-up.
    Cut,
    /// All count, because there are to be so many.
    Keep,
}

/// What a slot came to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    /// Nanoseconds of an iteration, one number a round.
    pub(crate) ns: Vec<f64>,
    /// Medians of the counters, for one iteration of one thread.
    pub(crate) counters: BTreeMap<String, f64>,
    /// Events that an iteration emits, or none.
    pub(crate) events_per_iteration: f64,
}

/// What all rounds came to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds {
    /// By slot.
    pub(crate) samples: Vec<Samples>,
    /// Rounds that were thrown away as warm-up.
    pub(crate) warm_up: usize,
    /// Whether the rounds of the second half took another time than those of the first, without the warm-up.
    pub(crate) is_unsteady: bool,
    /// The slow rounds (95th percentile) over the quick ones (5th), of all slots together.
    pub(crate) spread: f64,
    /// Buffers of which the kernel does not tell whether they are memory.
    pub(crate) untold: BTreeSet<String>,
}

/// Iterations of a hot turn that its length is guessed from, at most.
const PROBE_HOT: u64 = 2_000;
/// Fewer do, when they take as long as this.
const PROBE: Duration = Duration::from_micros(50);
/// And of one under memory pressure.
const PROBE_COLD: u64 = 4;
/// Bounds of a turn's iterations.
const HOT: std::ops::RangeInclusive<u64> = 1..=4_000_000;
const COLD: std::ops::RangeInclusive<u64> = 8..=4_000;

fn iterations(engine: &mut Engine, slot: &Slot) -> Result<u64, LabError> {
    let is_hot = slot.walk == Walk::None;
    // The first time pays for pages and code.
    let (mut probe, bounds) = if is_hot { (1, HOT) } else { (PROBE_COLD, COLD) };
    engine.run(slot.run(probe))?;
    let lasting = match slot.turn {
        Turn::Of(iterations) => {
            engine.run(slot.run(iterations.min(PROBE_HOT)))?;
            return Ok(iterations);
        }
        Turn::Lasting(time) => time.as_nanos() as f64,
    };
    let each = loop {
        let started = Instant::now();
        let timing = engine.run(slot.run(probe))?;
        if !is_hot {
            // The walks are not in the timing.
            break started.elapsed().as_nanos() as f64 / probe as f64;
        }
        if probe == PROBE_HOT || timing.ns * probe as f64 >= PROBE.as_nanos() as f64 {
            break timing.ns;
        }
        probe = (probe * 10).min(PROBE_HOT);
    };
    Ok(((lasting / each.max(0.01)) as u64).clamp(*bounds.start(), *bounds.end()))
}

/// Processes of each engine that the rounds are shared out among.
pub(crate) fn processes(is_quick: bool) -> usize {
    if is_quick { 2 } else { 8 }
}

/// Runs all slots for so many rounds, by so many processes of each engine.
pub(crate) fn measure(
    engines: &mut Engines,
    slots: &[Slot],
    rounds: usize,
    processes: usize,
    warm_up: WarmUp,
    what: &str,
) -> Result<Rounds, LabError> {
    let bar = ProgressBar::new((rounds + 1) as u64).with_message(format!("{what}: sizing"));
    if let Ok(style) = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} rounds, {eta} left") {
        bar.set_style(style);
    }
    let sizes: Result<Vec<u64>, _> = slots.iter().map(|slot| iterations(&mut engines.all[slot.engine], slot)).collect();
    let sizes = sizes?;
    bar.inc(1);
    let mut random = SmallRng::from_os_rng();
    let mut order: Vec<usize> = (0..slots.len()).collect();
    let mut ns = vec![Vec::with_capacity(rounds); slots.len()];
    let mut counters: Vec<BTreeMap<String, Vec<f64>>> = vec![BTreeMap::new(); slots.len()];
    let mut events_per_iteration = vec![0.0; slots.len()];
    let mut untold = BTreeSet::new();
    bar.set_message(what.to_string());
    for (round, is_counted) in turns(rounds, processes) {
        if !is_counted {
            engines.renew()?;
        }
        order.shuffle(&mut random);
        for &index in &order {
            let slot = &slots[index];
            // Never quite the same length: nothing that recurs can keep step with it.
            let iterations = match slot.turn {
                Turn::Lasting(_) => sizes[index] - random.random_range(0..=sizes[index] / 16),
                Turn::Of(iterations) => iterations,
            };
            let timing = engines.all[slot.engine].run(slot.run(iterations))?;
            if !is_counted {
                continue;
            }
            ns[index].push(timing.ns);
            events_per_iteration[index] = timing.events as f64 / timing.iterations as f64;
            untold.extend(timing.untold);
            for (name, count) in timing.counters.into_iter().flatten() {
                counters[index].entry(name).or_default().push(count);
            }
        }
        bar.set_position(round as u64 + 2);
    }
    bar.finish_and_clear();
    let mut rounds = sum_up(ns, counters, warm_up);
    rounds.untold = untold;
    for (samples, events) in rounds.samples.iter_mut().zip(events_per_iteration) {
        samples.events_per_iteration = events;
    }
    Ok(rounds)
}

/// The rounds, and before those that a further process begins with one that is not counted.
fn turns(rounds: usize, processes: usize) -> impl Iterator<Item = (usize, bool)> {
    let each = rounds.div_ceil(processes.max(1)).max(1);
    (0..rounds).flat_map(move |round| {
        let is_first = round > 0 && round.is_multiple_of(each);
        is_first.then_some((round, false)).into_iter().chain([(round, true)])
    })
}

/// Difference between the halves of the rounds beyond which there is no steady state.
const DRIFT_MAX: f64 = 0.1;

fn sum_up(mut ns: Vec<Vec<f64>>, counters: Vec<BTreeMap<String, Vec<f64>>>, warm_up: WarmUp) -> Rounds {
    // The machine's mood in each round, of all slots together: one slot's own noise would look like warm-up now and then.
    let rounds = ns.first().map_or(0, Vec::len);
    let medians: Vec<f64> = ns.iter().map(|samples| median(samples)).collect();
    let moods: Vec<f64> = (0..rounds)
        .map(|round| {
            let relative = ns.iter().zip(&medians).filter(|(_, median)| **median > 0.0);
            median(&relative.map(|(samples, median)| samples[round] / median).collect::<Vec<_>>())
        })
        .collect();
    let cut = if warm_up == WarmUp::Cut { statistics::warm_up(&moods) } else { 0 };
    let (first, second) = moods[cut..].split_at((rounds - cut) / 2);
    let drift = median(second) / median(first) - 1.0;
    ns.iter_mut().for_each(|samples| drop(samples.drain(..cut)));
    let counters =
        counters.into_iter().map(|counters| counters.into_iter().map(|(name, counts)| (name, median(&counts))));
    let samples = ns.into_iter().zip(counters).map(|(ns, counters)| Samples {
        ns,
        counters: counters.collect(),
        ..Samples::default()
    });
    let spread = if rounds == 0 { 1.0 } else { quantile(&moods[cut..], 0.95) / quantile(&moods[cut..], 0.05) };
    Rounds {
        samples: samples.collect(),
        warm_up: cut,
        is_unsteady: drift.abs() > DRIFT_MAX,
        spread,
        untold: BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(of: impl Fn(usize) -> f64, count: usize) -> Rounds {
        let series: Vec<f64> = (0..count).map(of).collect();
        let twice = series.iter().map(|sample| sample * 2.0).collect();
        sum_up(vec![series, twice], vec![BTreeMap::new(); 2], WarmUp::Cut)
    }

    #[test]
    fn warm_up_is_thrown_away_in_all_slots() {
        let rounds = rounds(|round| if round < 5 { 9.0 } else { 5.0 + 0.01 * (round % 3) as f64 }, 40);
        assert_eq!(rounds.warm_up, 8, "two batches of four");
        assert!(rounds.samples.iter().all(|samples| samples.ns.len() == 32));
        assert!(!rounds.is_unsteady);
        assert!(rounds.spread < 1.01, "{}", rounds.spread);
    }

    #[test]
    fn a_series_that_climbs_all_the_time_is_unsteady() {
        let rounds = rounds(|round| 100.0 + round as f64 * round as f64, 40);
        assert!(rounds.is_unsteady);
        assert!(rounds.spread > 2.0);
    }

    #[test]
    fn rounds_of_a_given_number_are_kept() {
        let series = (0..40).map(|round| if round < 5 { 9.0 } else { 5.0 }).collect();
        assert_eq!(sum_up(vec![series], vec![BTreeMap::new()], WarmUp::Keep).samples[0].ns.len(), 40);
    }

    #[test]
    fn rounds_are_shared_out_among_processes() {
        let of = |rounds, processes| {
            let (counted, uncounted): (Vec<_>, Vec<_>) =
                turns(rounds, processes).partition(|(_, is_counted)| *is_counted);
            assert!(counted.iter().map(|(round, _)| *round).eq(0..rounds));
            uncounted.into_iter().map(|(round, _)| round).collect::<Vec<_>>()
        };
        assert_eq!(of(80, 8), [10, 20, 30, 40, 50, 60, 70]);
        assert_eq!(of(10, 2), [5]);
        assert_eq!(of(9, 2), [5]);
        assert_eq!(of(20, 1), [0; 0]);
        assert_eq!(of(0, 8), [0; 0]);
        assert!(turns(10, 2).skip(5).take(2).eq([(5, false), (5, true)]), "first the one that is not counted");
    }

    #[test]
    fn no_rounds() {
        assert_eq!(sum_up(Vec::new(), Vec::new(), WarmUp::Cut).warm_up, 0);
        assert_eq!(rounds(|_| 1.0, 0).spread, 1.0);
    }
}
