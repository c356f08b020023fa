//! Comparison of two results: which figures differ and how certain that is, and how their machines and runs differ.
//!
//! ```text
//!   A.json ─┐  figures of the same name ──▶ difference, ratio, 95 % intervals, p ──Holm──▶ verdict
//!           ├─▶ hosts, labels, rounds ────▶ differences, side by side
//!   B.json ─┘  probes of both hosts ──────▶ ratio, and the spread of looks at one machine
//! ```
//! A figure is *slower* or *faster* when both hold: its 95 % interval excludes zero, and the probability of a
//! difference of that size by chance, corrected by Holm's method for all the figures compared, is below 5 %.
//!
//! Runs of one machine differ too, for instance by the layout of memory: repeat both before believing a small
//! difference. A fact that differs need not matter.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::anyhow;
use dormouse_terminal::style::wrap;
use flate2::read::GzDecoder;
use serde::Serialize;
use serde_json::Value;

use crate::grid::{Grid, interval, number};
use crate::host::{Cache, Fact};
use crate::intervals::{self, Figure};
use crate::neighbours::Neighbour;
use crate::probes::{self, Compared};
use crate::{Host, Report, SCHEMA};

/// Probability by chance below which a difference is shown, after Holm's correction.
const ALPHA: f64 = 0.05;
/// Verdict on a difference that chance explains.
const NO_DIFFERENCE: &str = "no_difference_shown";

/// Reads a result. A file whose name ends in `.gz` is unpacked.
///
/// # Errors
/// If the file cannot be read, or is not a result; the text says how to make one.
pub fn load(path: &Path) -> anyhow::Result<Report> {
    let shown = path.display();
    let remedy = format!("make one with `dormouse lab run EXPERIMENT --json {shown}`");
    let mut text = Vec::new();
    let read = File::open(path).and_then(|mut file| match path.extension() {
        Some(extension) if extension == "gz" => GzDecoder::new(file).read_to_end(&mut text),
        _ => file.read_to_end(&mut text),
    });
    read.map_err(|error| anyhow!("cannot read the result {shown}: {error}; {remedy}"))?;
    serde_json::from_slice(&text).map_err(|error| anyhow!("{shown} is not a result: {error}; {remedy}"))
}

/// A comparison of two results.
#[derive(Debug, Serialize)]
pub struct Comparison<'a> {
    schema: u32,
    /// Differences, in A's order.
    differences: Vec<Difference<'a>>,
    only_in_a: Vec<String>,
    only_in_b: Vec<String>,
    facts: Vec<DifferentFact>,
    /// Probes of both machines.
    measured: Vec<Compared>,
    notes: Vec<String>,
}

/// A figure that both results have.
#[derive(Debug, Default, Serialize)]
struct Difference<'a> {
    experiment: &'a str,
    name: &'a str,
    /// Unit; empty for ratios.
    unit: &'a str,
    a: f64,
    b: f64,
    /// Comparison of B with A.
    #[serde(flatten)]
    compared: intervals::Compared,
    /// Probability of a difference of this size by chance, corrected for all the figures compared.
    p_corrected: f64,
    verdict: &'static str,
}

/// A fact of the hosts or the runs that differs.
#[derive(Debug, Serialize)]
struct DifferentFact {
    fact: String,
    a: String,
    b: String,
}

/// Returns all figures of a result, by experiment, name and unit: figures of two units are two figures.
fn figures(report: &Report) -> impl Iterator<Item = ([&str; 3], Figure<'_>)> {
    report.experiments.iter().flat_map(|of| {
        let measurements = of.measurements.iter();
        let measurements = measurements.map(|m| ([&*of.name, &*m.name, &*m.unit], Figure::of_measurement(m)));
        measurements.chain(of.ratios.iter().map(|ratio| ([&*of.name, &*ratio.name, ""], Figure::of_ratio(ratio))))
    })
}

fn shown(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.into() } else { format!("{name} ({unit})") }
}

/// Returns the verdict on a difference: a longer time is slower, and so is a lower rate.
fn verdict(unit: &str, difference: f64) -> &'static str {
    let is_time = ["ns", "us", "µs", "ms", "s", "cycles"].contains(&unit);
    match (is_time, unit.ends_with("/s"), difference > 0.0) {
        (true, _, true) | (_, true, false) => "slower",
        (true, _, false) | (_, true, true) => "faster",
        (.., true) => "higher",
        (.., false) => "lower",
    }
}

/// Compares B with A.
pub fn compare<'a>(a: &'a Report, b: &'a Report) -> Comparison<'a> {
    let mut figures_of_b: BTreeMap<[&str; 3], Figure> = figures(b).collect();
    let alone = |[experiment, name, unit]: [&str; 3]| format!("{experiment}: {}", shown(name, unit));
    let (mut differences, mut only_in_a): (Vec<Difference>, Vec<String>) = (Vec::new(), Vec::new());
    for ([experiment, name, unit], x) in figures(a) {
        let Some(y) = figures_of_b.remove(&[experiment, name, unit]) else {
            only_in_a.push(alone([experiment, name, unit]));
            continue;
        };
        // NaN is written as null.
        if x.value.is_finite() && y.value.is_finite() {
            let (compared, a, b) = (intervals::compare(x, y), x.value, y.value);
            differences.push(Difference { experiment, name, unit, a, b, compared, ..Difference::default() });
        }
    }
    let corrected = intervals::holm(&differences.iter().map(|one| one.compared.p).collect::<Vec<_>>());
    for (one, p) in differences.iter_mut().zip(corrected) {
        let [low, high] = one.compared.difference_ci95;
        let is_told = p < ALPHA && (low > 0.0 || high < 0.0);
        one.verdict = if is_told { verdict(one.unit, one.compared.difference) } else { NO_DIFFERENCE };
        one.p_corrected = p;
    }
    // A fact that one result lacks, because another version wrote it, is not a difference.
    let missing = Fact::<String>::default().to_string();
    let is_told = |text: &String| !text.is_empty() && *text != missing;
    let mut facts_of_b = facts_of_run(b);
    let facts = facts_of_run(a).into_iter().filter_map(|(fact, a)| {
        let b = facts_of_b.remove(&fact)?;
        (a != b && is_told(&a) && is_told(&b)).then_some(DifferentFact { fact, a, b })
    });
    Comparison {
        schema: SCHEMA,
        only_in_a,
        only_in_b: figures_of_b.into_keys().map(alone).collect(),
        facts: facts.collect(),
        measured: probes::compare(&a.host.probes, &b.host.probes),
        notes: notes(a, b, &differences),
        differences,
    }
}

/// Returns all facts of a host except the time of reading, which always differs, and the probes, which have intervals.
pub(crate) fn facts_of_host(host: &Host) -> BTreeMap<String, String> {
    let cache = |c: &Cache| format!("L{} {} {} KiB, CPUs {}", c.level, c.kind, c.size_bytes >> 10, c.shared_cpus);
    let caches = host.caches.clone().map(|caches| caches.iter().map(cache).collect::<Vec<_>>().join("; "));
    let name = |one: &Neighbour| format!("`{}` {:.0} %", one.command, one.share * 100.0);
    let neighbours = host.neighbours.iter().take(4).map(name).collect::<Vec<_>>().join(", ");
    let neighbours = if neighbours.is_empty() { "none".into() } else { neighbours };
    let mut facts: BTreeMap<String, String> =
        [("caches".into(), caches.to_string()), ("neighbours".into(), neighbours)].into();
    facts.extend(host.counters.iter().map(|(name, state)| (format!("counters.{name}"), state.to_string())));
    facts.extend(host.facts.iter().map(|(name, fact)| (name.clone(), fact.to_string())));
    // A host is always serialised as an object.
    let members = serde_json::to_value(host).ok().and_then(|host| host.as_object().cloned()).unwrap_or_default();
    let is_plain = |name: &str, value: &Value| !(value.is_object() || value.is_array() || name == "measured");
    let plain = members.into_iter().filter(|(name, value)| is_plain(name, value));
    facts.extend(plain.map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), String::from))));
    facts
}

/// Returns the facts of a run: its host, and labels and rounds of its measurements.
fn facts_of_run(report: &Report) -> BTreeMap<String, String> {
    let mut facts = facts_of_host(&report.host);
    for experiment in &report.experiments {
        for m in &experiment.measurements {
            let name = format!("{}: {}", experiment.name, m.name);
            facts.extend(m.labels.iter().map(|(key, value)| (format!("{name}: {key}"), value.clone())));
        }
        let rounds = experiment.measurements.iter().filter(|m| !m.is_exact).map(|m| m.n).max();
        facts.extend(rounds.map(|rounds| (format!("{}: rounds", experiment.name), rounds.to_string())));
    }
    facts
}

fn notes(a: &Report, b: &Report, differences: &[Difference]) -> Vec<String> {
    let mut notes = b.host.probes.notes.clone();
    let (count, all) = (differences.iter().filter(|one| one.verdict != NO_DIFFERENCE).count(), differences.len());
    if all > 0 {
        notes.push(format!(
            "{count} of {all} figures differ; verdicts are corrected for the number of figures (Holm, 5 %)"
        ));
        notes.push(
            "run both again before you rely on a small difference: the intervals cover only these two runs".into(),
        );
    } else if !(a.experiments.is_empty() && b.experiments.is_empty()) {
        notes.push("the results have no figure in common; compare results of the same experiments".into());
    }
    for (side, report, other) in [("A", a, b), ("B", b, a)] {
        if report.schema != SCHEMA {
            notes.push(format!("{side} has layout {}, but this version reads {SCHEMA}", report.schema));
        }
        for experiment in &report.experiments {
            let Some(other) = other.experiments.iter().find(|other| other.name == experiment.name) else { continue };
            let missing = experiment.notes.iter().filter(|note| !other.notes.contains(note));
            notes.extend(missing.map(|note| format!("only {side} says, of {}: {note}", experiment.name)));
        }
    }
    notes
}

impl Comparison<'_> {
    /// Returns the subjects of the probes that differ, for example caches or scheduler.
    pub fn differing(&self) -> Vec<&str> {
        let mut subjects: Vec<&str> = self.measured.iter().filter(|one| one.differs).map(Compared::subject).collect();
        subjects.dedup();
        subjects
    }

    /// Formats the comparison for a terminal. `sides` are the names of the two results, and their hosts.
    pub fn text(&self, sides: [(&str, &Host); 2]) -> String {
        let hosts = sides.map(|(side, host)| wrap(&format!("{}, {host}", host.measured), &format!("{side}: ")) + "\n");
        let [(a, _), (b, _)] = sides;
        let between = |ci95: [f64; 2]| interval(Some(ci95), false);
        let mut grids = Vec::new();
        for figures in self.differences.chunk_by(|a, b| a.experiment == b.experiment) {
            let row = |one: &Difference| {
                let name = shown(one.name, one.unit);
                let [a, b, difference] = [one.a, one.b, one.compared.difference].map(number);
                let ci95 = between(one.compared.difference_ci95);
                let ratio = one.compared.ratio.map(number).unwrap_or_default();
                let ratio_ci95 = one.compared.ratio_ci95.map(between).unwrap_or_default();
                let (p, verdict) = (format!("{:.3}", one.p_corrected), one.verdict.replace('_', " "));
                vec![name, a, b, difference, ci95, ratio, ratio_ci95, p, verdict]
            };
            let head = [figures[0].experiment, a, b, "difference", "95 %", "ratio", "95 %", "p", ""];
            grids.push(Grid::new(&head, figures.iter().map(row)));
        }
        let measured = self.measured.iter().map(|one| {
            let name = shown(&one.figure.replace(['.', '_'], " "), &one.unit);
            let [there, here, ratio] = [one.there, one.here, one.ratio].map(number);
            vec![name, there, here, ratio, between(one.ratio_ci95), one.verdict()]
        });
        grids.push(Grid::new(&["measured of both", a, b, "ratio", "95 %", ""], measured));
        let facts = self.facts.iter().map(|one| vec![one.fact.clone(), one.a.clone(), one.b.clone()]);
        grids.push(Grid::new(&["facts that differ", a, b], facts));
        let only = [(a, &self.only_in_a), (b, &self.only_in_b)].into_iter().filter(|(_, only)| !only.is_empty());
        let only = only.map(|(side, only)| wrap(&only.join(", "), &format!("only in {side}: ")));
        let lines = only.chain(self.notes.iter().map(|note| wrap(note, "note: "))).map(|line| line + "\n").collect();
        let parts = grids.iter().map(Grid::text).chain([lines]).filter(|part| !part.is_empty());
        hosts.concat() + &parts.map(|part| format!("\n{part}")).collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::measurement;
    use crate::{Experiment, Ratio};

    fn report(costs: [f64; 3]) -> Report {
        let figure = |(name, cost): (&str, f64)| {
            let rounds = (0..30).map(|round| cost * (1.0 + f64::from(round % 7) * 0.004));
            measurement(name, "ns", &rounds.collect::<Vec<_>>())
        };
        let measurements = ["empty_loop", "dormant", "armed"].into_iter().zip(costs).map(figure).collect();
        let experiments = vec![Experiment { name: "event".into(), measurements, ..Experiment::default() }];
        let facts = [("memory.thp".into(), Fact::Told("madvise".into()))].into();
        Report { schema: SCHEMA, host: Host { cpu_count: 8, facts, ..Host::default() }, experiments }
    }

    #[test]
    fn verdicts_depend_on_the_unit() {
        let (a, b) = (report([1.0, 0.4, 30.0]), report([1.0, 0.2, 60.0]));
        let differences = compare(&a, &b).differences;
        let verdicts: Vec<&str> = differences.iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts, [NO_DIFFERENCE, "faster", "slower"]);
        let armed = &differences[2];
        assert!(armed.compared.ratio.is_some_and(|ratio| (ratio - 2.0).abs() < 1e-9), "{armed:?}");
        assert!(armed.compared.difference_ci95[0] > 25.0 && armed.compared.difference_ci95[1] < 35.0, "{armed:?}");
        assert_eq!([1.0, -1.0].map(|change| verdict("events/s", change)), ["faster", "slower"]);
        assert_eq!([1.0, -1.0].map(|change| verdict("count", change)), ["higher", "lower"]);
    }

    #[test]
    fn only_differences_are_listed() {
        let (a, mut b) = (report([1.0; 3]), report([1.0; 3]));
        let same = compare(&a, &a);
        assert!(same.facts.is_empty() && same.only_in_a.is_empty() && same.only_in_b.is_empty(), "{same:?}");
        b.host.facts.insert("memory.thp".into(), Fact::NotTold("the kernel has no such file".into()));
        b.host.facts.insert("memory.new".into(), Fact::Told("only here".into()));
        (b.schema, b.host.measured, b.host.cpu_count) = (2, "another day".into(), 2);
        b.host.neighbours.push(Neighbour { command: "yes".into(), share: 0.5, ..Neighbour::default() });
        let experiment = &mut b.experiments[0];
        experiment.measurements.remove(2);
        experiment.measurements.iter_mut().for_each(|m| m.n = 20);
        experiment.ratios.push(Ratio { name: "armed_vs_lttng_ust".into(), value: f64::NAN, ..Ratio::default() });
        experiment.notes.push("the thread could not be pinned".into());
        let comparison = compare(&a, &b);
        let facts: Vec<[&str; 3]> = comparison.facts.iter().map(|one| [&*one.fact, &one.a, &one.b]).collect();
        let expected = [
            ["cpu_count", "8", "2"],
            ["event: rounds", "30", "20"],
            ["memory.thp", "madvise", "not told: the kernel has no such file"],
            ["neighbours", "none", "`yes` 50 %"],
        ];
        assert_eq!(facts, expected);
        assert_eq!(comparison.only_in_a, ["event: armed (ns)"]);
        assert_eq!(comparison.only_in_b, ["event: armed_vs_lttng_ust"]);
        let [.., layout, pinned] = &comparison.notes[..] else { panic!("two notes") };
        assert_eq!(layout, "B has layout 2, but this version reads 1");
        assert_eq!(pinned, "only B says, of event: the thread could not be pinned");
        assert_eq!(compare(&b, &b).differences.len(), 2, "a ratio to nothing is no figure");
    }
}
