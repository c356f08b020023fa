//! From slots to figures: what a slot is of, what its cost is less, and what is said of the rounds.

use dormouse_lab_harness::Walk;

use crate::engine::Engine;
use crate::engines::Engines;
use crate::rounds::{self, Rounds, Slot, Turn, WarmUp};
use crate::statistics::{measurement, outlier_share, ratio};
use crate::{Experiment, Host, LabError, Labels, Measurement, Ratio};

/// A slot, what it is of, and which slot is its empty loop.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) slot: Slot,
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) base: Option<usize>,
    /// How many of what is measured one iteration has, or each of its events.
    pub(crate) per_iteration: u32,
}

/// A label that is part of a measurement's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    /// The value that goes without saying.
    pub(crate) silent: &'static str,
    /// How another is shown, `{}` in the place of the value.
    pub(crate) shown: &'static str,
}

impl Axis {
    /// Always shown, as it is.
    pub(crate) const fn plain(name: &'static str) -> Axis {
        Axis::without(name, "")
    }

    /// Shown as it is, but for one value.
    pub(crate) const fn without(name: &'static str, silent: &'static str) -> Axis {
        Axis { name, silent, shown: "{}" }
    }
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// The name of what has these labels.
pub(crate) fn name(axes: &[Axis], labels: &Labels) -> String {
    let parts = axes.iter().filter_map(|axis| {
        let value = labels.get(axis.name).filter(|value| *value != axis.silent)?;
        Some(axis.shown.replace("{}", value))
    });
    parts.collect::<Vec<_>>().join(".")
}

/// A slot of one thread with nobody beside it.
pub(crate) fn slot(engine: usize, case: &str, walk: Walk, turn: Turn) -> Slot {
    Slot { engine, case: case.into(), threads: 1, walk, turn, beside: None }
}

/// What is measured in one go.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) planned: Vec<Planned>,
    axes: &'static [Axis],
}

/// What a plan came to.
pub(crate) struct Measured {
    pub(crate) costs: Vec<Vec<f64>>,
    pub(crate) measurements: Vec<Measurement>,
    pub(crate) noise: Vec<String>,
    pub(crate) warm_up: usize,
}

impl Plan {
    pub(crate) fn new(axes: &'static [Axis]) -> Plan {
        Plan { planned: Vec::new(), axes }
    }

    /// Adds a slot, unless it is there or the engine has no such case. Returns its place.
    pub(crate) fn add(
        &mut self,
        engines: &[Engine],
        slot: Slot,
        pairs: &[(&str, &str)],
        base: Option<usize>,
    ) -> Option<usize> {
        let beside = slot.beside.as_ref();
        if !engines[slot.engine].has(&slot.case) || beside.is_some_and(|case| !engines[slot.engine].has(case)) {
            return None;
        }
        let labels = labels(pairs);
        let name = name(self.axes, &labels);
        let found = self.planned.iter().position(|planned| planned.name == name);
        found.or_else(|| {
            self.planned.push(Planned { slot, name, labels, base, per_iteration: 1 });
            Some(self.planned.len() - 1)
        })
    }

    pub(crate) fn per_iteration(&mut self, index: Option<usize>, count: u32) {
        if let Some(planned) = index.and_then(|index| self.planned.get_mut(index)) {
            planned.per_iteration = count;
        }
    }

    /// Measures all slots in turn, by so many processes of each engine. `of` says what, while it lasts.
    ///
    /// # Errors
    /// See [`LabError`].
    pub(crate) fn measure(
        &self,
        engines: &mut Engines,
        rounds: usize,
        processes: usize,
        warm_up: WarmUp,
        of: &str,
    ) -> Result<Measured, LabError> {
        let slots: Vec<Slot> = self.planned.iter().map(|planned| planned.slot.clone()).collect();
        let rounds = rounds::measure(engines, &slots, rounds, processes, warm_up, of)?;
        let costs = costs(&self.planned, &rounds);
        let rate = engines.all[0].description().tsc_cycles_per_ns;
        let measurements = measurements(&self.planned, &rounds, &costs, rate);
        let noise = noise(&rounds, &self.planned);
        let noise = noise.into_iter().map(|note| format!("{note} ({of})")).collect();
        Ok(Measured { costs, measurements, noise, warm_up: rounds.warm_up })
    }
}

/// Measures what `plan_of` plans without memory pressure, and then what it plans with it (`true`): in one and the same rounds the latter would
/// leave nothing warm for the former. A plan without slots is left out.
///
/// # Errors
/// See [`LabError`].
pub(crate) fn warm_and_cold(
    engines: &mut Engines,
    name: &str,
    rounds: usize,
    processes: usize,
    plan_of: impl Fn(&Engines, bool) -> Plan,
) -> Result<Vec<(Plan, Measured)>, LabError> {
    let mut parts = Vec::new();
    for (is_cold, part) in [(false, "warm"), (true, "cold")] {
        let plan = plan_of(engines, is_cold);
        if !plan.planned.is_empty() {
            let measured = plan.measure(engines, rounds, processes, WarmUp::Cut, &format!("{name}: {part}"))?;
            parts.push((plan, measured));
        }
    }
    Ok(parts)
}

/// How many rounds at the beginning of each part were warm-up, in words.
pub(crate) fn warm_ups(parts: &[(Plan, Measured)]) -> String {
    parts.iter().map(|(_, measured)| measured.warm_up.to_string()).collect::<Vec<_>>().join(" and ")
}

/// The experiment that parts come to: their figures, and those ratios of a list whose both sides are of one part.
pub(crate) fn experiment(
    name: &str,
    parts: Vec<(Plan, Measured)>,
    list: &[(&str, &str, &str)],
    notes: Vec<String>,
    host: &Host,
) -> Experiment {
    let mut experiment = Experiment { name: name.into(), notes, ..Experiment::default() };
    for (plan, measured) in parts {
        let ratios = ratios(list.iter().copied(), &plan.planned, &measured.costs, &mut experiment.notes);
        experiment.ratios.extend(ratios);
        experiment.notes.extend(measured.noise);
        experiment.measurements.extend(measured.measurements);
    }
    retain_available(&mut experiment.measurements, host);
    experiment
}

/// Sizes of walks over L1, L2 and L3, in sizes of the cache. Once around would do against a cache that forgets the line that was used
/// longest ago; today's keep a line that was used twice against several that were used once. More is too slow for L3.
const WALK_FACTORS: [u64; 3] = [4, 4, 2];

/// The walks of this machine, by label.
pub(crate) fn walks(host: &Host) -> Vec<(&'static str, Walk)> {
    walks_over(host.caches_bytes())
}

/// The same; that there are none that matter is a note.
pub(crate) fn walks_or_note(host: &Host, notes: &mut Vec<String>) -> Vec<(&'static str, Walk)> {
    let walks = walks(host);
    if walks.iter().all(|(label, _)| *label != "L2") {
        notes.push("memory pressure not available: the machine does not tell the size of its L2".into());
    }
    walks
}

fn walks_over(caches: [Option<u64>; 3]) -> Vec<(&'static str, Walk)> {
    let mut walks: Vec<_> = ["L1", "L2", "L3"]
        .into_iter()
        .zip(caches.into_iter().zip(WALK_FACTORS))
        .filter_map(|(label, (size, factor))| Some((label, Walk::Random { bytes: size? * factor })))
        .collect();
    if let Some(size) = caches[1] {
        walks.push(("linear-L2", Walk::Linear { bytes: size * WALK_FACTORS[1] }));
    }
    walks
}

/// What each slot costs, round by round: less its empty loop, for one of what it measures.
fn costs(planned: &[Planned], rounds: &Rounds) -> Vec<Vec<f64>> {
    let cost = |(planned, samples): (&Planned, &crate::rounds::Samples)| {
        let events = if samples.events_per_iteration > 0.0 { samples.events_per_iteration } else { 1.0 };
        let share = 1.0 / (events * f64::from(planned.per_iteration));
        match planned.base {
            Some(base) => samples
                .ns
                .iter()
                .zip(&rounds.samples[base].ns)
                .map(|(with, without)| (with - without) * share)
                .collect(),
            // The time of a loop, whatever it emits.
            None => samples.ns.iter().map(|ns| ns / f64::from(planned.per_iteration)).collect(),
        }
    };
    planned.iter().zip(&rounds.samples).map(cost).collect()
}

/// Figures of all slots. `rate` is the timestamp counter's, in cycles of a nanosecond.
fn measurements(planned: &[Planned], rounds: &Rounds, costs: &[Vec<f64>], rate: Option<f64>) -> Vec<Measurement> {
    let figures = planned.iter().zip(&rounds.samples).zip(costs).map(|((planned, samples), costs)| {
        let mut measurement = measurement(&planned.name, "ns", costs);
        measurement.tsc_cycles = rate.map(|rate| measurement.median * rate);
        measurement.labels = planned.labels.clone();
        measurement.counters = samples.counters.clone();
        measurement
    });
    figures.collect()
}

/// The ratios of a list, each a name, a numerator and a denominator, as far as both were measured. One whose denominator
/// cannot be told from zero is a note.
fn ratios<'a>(
    list: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
    planned: &[Planned],
    costs: &[Vec<f64>],
    notes: &mut Vec<String>,
) -> Vec<Ratio> {
    let cost =
        |name: &str| planned.iter().position(|planned| planned.name == name).map(|index| costs[index].as_slice());
    let mut ratios = Vec::new();
    for (name, of, to) in list {
        let (Some(a), Some(b)) = (cost(of), cost(to)) else { continue };
        match ratio(name, a, b) {
            Some(ratio) => ratios.push(ratio),
            None => notes.push(format!("{name}: no ratio, since the cost of {to} cannot be told from zero")),
        }
    }
    ratios
}

/// Spread of the rounds above which a reader is warned.
const SPREAD_MAX: f64 = 1.15;
/// Share of outliers above which a reader is warned.
const OUTLIERS_MAX: f64 = 0.1;

/// What the rounds' spread says about the machine.
fn noise(rounds: &Rounds, planned: &[Planned]) -> Vec<String> {
    let mut notes: Vec<String> = rounds.untold.iter().map(|line| format!("memory: {line}")).collect();
    let remedy = "end other programs, choose another processor with --cpu, or try --policy fifo";
    if rounds.is_unsteady {
        notes.push(format!(
            "not steady: the second half of the rounds took another time than the first; {remedy}, and run again"
        ));
    }
    if rounds.spread > SPREAD_MAX {
        let percent = (rounds.spread - 1.0) * 100.0;
        notes.push(format!(
            "not steady: everything took {percent:.0} % longer in the slowest rounds than in the quickest; {remedy}"
        ));
    }
    let mut shares: Vec<_> = rounds
        .samples
        .iter()
        .zip(planned)
        .map(|(samples, planned)| (outlier_share(&samples.ns), &planned.name))
        .filter(|(share, _)| *share > OUTLIERS_MAX)
        .collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    if let Some((share, name)) = shares.first() {
        notes.push(format!(
            "outliers: in {} of {} cases more than a tenth of the rounds lie far off, most in {name} ({:.0} %); medians bear that, \
             means do not; {remedy}",
            shares.len(),
            planned.len(),
            share * 100.0
        ));
    }
    notes
}

/// Leaves out the counters that the host's trial found to stay at zero. A counter may have a thread's name before it, and a point.
pub(crate) fn retain_available(measurements: &mut [Measurement], host: &Host) {
    let is_available = |name: &str| host.counters.get(name).is_some_and(|counter| counter.told().is_some());
    for measurement in measurements {
        measurement.counters.retain(|name, _| is_available(name.rsplit('.').next().unwrap_or(name)));
    }
}

/// Asserts that no name comes twice.
#[cfg(test)]
pub(crate) fn assert_different_names<'a>(names: impl Iterator<Item = &'a str>) {
    let mut known = std::collections::HashSet::new();
    for name in names {
        assert!(known.insert(name), "{name} comes twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_made_for_the_caches_that_are_known() {
        let walks = walks_over([Some(32 << 10), None, Some(1 << 20)]);
        assert_eq!(walks, [("L1", Walk::Random { bytes: 128 << 10 }), ("L3", Walk::Random { bytes: 2 << 20 })]);
    }
}
