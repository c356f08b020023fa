//! Two results beside each other: which figures differ and how sure that is, which facts of the hosts differ, and what was measured of both machines.
//!
//! ```text
//!   A.json ─┐  figures of the same name ──▶ difference, ratio, 95 % intervals, p ──Holm──▶ verdict
//!           ├─▶ hosts, labels, rounds ────▶ what differs, side by side
//!   B.json ─┘  probes of both hosts ──────▶ ratio, and what looks at one machine differ by
//! ```
//! A figure is *slower* or *faster* when both hold: its 95 % interval excludes zero, and the probability of such a
//! difference by chance, corrected by Holm's method for all the figures compared, is below 5 %.
//!
//! # Limits
//! The intervals are those of two runs. Runs of one machine differ too, by the layout of memory for instance: repeat both before believing
//! a small difference. That a fact differs does not say that it matters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::host::Fact;
use crate::intervals::{self, Figure};
use crate::neighbours::Neighbour;
use crate::probes::{self, Compared};
use crate::{Experiment, Host, Report, SCHEMA};

/// What a difference must be improbable by, after Holm's correction.
const ALPHA: f64 = 0.05;

/// Why a result cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The file.
    #[error("cannot read {path}: {error}; give a file that `dormouse lab run EXPERIMENT --json FILE` wrote")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Its text.
    #[error("{path} is no result: {reason}; make one with `dormouse lab run EXPERIMENT --json {path}`")]
    NoResult {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Reads a result.
///
/// # Errors
/// See [`CompareError`].
pub fn load(path: &Path) -> Result<Report, CompareError> {
    let text = std::fs::read(path).map_err(|error| CompareError::Read { path: path.into(), error })?;
    let no_result = |error: serde_json::Error| CompareError::NoResult { path: path.into(), reason: error.to_string() };
    serde_json::from_slice(&text).map_err(no_result)
}

/// How B's figure stands to A's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B takes longer, or does less in a time.
    Slower,
    /// B takes less time, or does more in it.
    Faster,
    /// B's figure is higher; it is no time.
    Higher,
    /// B's figure is lower; it is no time.
    Lower,
    /// Chance would explain it.
    NoDifferenceShown,
}

impl Verdict {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::Higher => "higher",
            Verdict::Lower => "lower",
            Verdict::NoDifferenceShown => "no difference shown",
        }
    }

    fn of(unit: &str, difference: f64) -> Verdict {
        let is_time = ["ns", "us", "µs", "ms", "s", "cycles"].contains(&unit);
        match (is_time, unit.ends_with("/s"), difference > 0.0) {
            (true, _, true) | (_, true, false) => Verdict::Slower,
            (true, _, false) | (_, true, true) => Verdict::Faster,
            (.., true) => Verdict::Higher,
            (.., false) => Verdict::Lower,
        }
    }
}

/// A figure that both results have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The experiment.
    pub experiment: String,
    /// The measurement or ratio.
    pub name: String,
    /// Its unit; empty for ratios.
    pub unit: String,
    /// A's median.
    pub a: f64,
    /// B's median.
    pub b: f64,
    /// B − A.
    pub difference: f64,
    /// Its 95 % interval.
    pub difference_ci95: [f64; 2],
    /// B / A, unless one of them may be nothing.
    pub ratio: Option<f64>,
    /// Its 95 % interval.
    pub ratio_ci95: Option<[f64; 2]>,
    /// Probability of such a difference by chance, by itself.
    pub p: f64,
    /// The same, corrected for all the figures compared.
    pub p_corrected: f64,
    /// What may be said.
    pub verdict: Verdict,
}

/// A fact of the hosts or the runs that is not the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DifferentFact {
    /// Its name.
    pub fact: String,
    /// What A says.
    pub a: String,
    /// What B says.
    pub b: String,
}

/// Two results beside each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Version of this layout.
    pub schema: u32,
    /// Figures that both have, in A's order.
    pub differences: Vec<Difference>,
    /// Figures that A alone has: `experiment: name`.
    pub only_in_a: Vec<String>,
    /// Figures that B alone has.
    pub only_in_b: Vec<String>,
    /// Facts that differ, by name.
    pub facts: Vec<DifferentFact>,
    /// What was measured of both machines beside the experiments.
    pub measured: Vec<Compared>,
    /// What a reader has to know.
    pub notes: Vec<String>,
}

/// Compares B with A.
pub fn compare(a: &Report, b: &Report) -> Comparison {
    let mut differences = Vec::new();
    let mut add = |experiment: &str, name: &str, unit: &str, x: Figure<'_>, y: Figure<'_>| {
        // What is no number in a result is written as null.
        if !(x.value.is_finite() && y.value.is_finite()) {
            return;
        }
        let compared = intervals::compare(x, y);
        differences.push(Difference {
            experiment: experiment.into(),
            name: name.into(),
            unit: unit.into(),
            a: x.value,
            b: y.value,
            difference: compared.difference,
            difference_ci95: compared.difference_ci95,
            ratio: compared.ratio.map(|(ratio, _)| ratio),
            ratio_ci95: compared.ratio.map(|(_, interval)| interval),
            p: compared.p,
            p_corrected: 1.0,
            verdict: Verdict::NoDifferenceShown,
        });
    };
    for (x, y) in pairs(&a.experiments, &b.experiments, |experiment| &experiment.name) {
        for (m, n) in pairs(&x.measurements, &y.measurements, |m| &m.name).filter(|(m, n)| m.unit == n.unit) {
            add(&x.name, &m.name, &m.unit, Figure::of_measurement(m), Figure::of_measurement(n));
        }
        for (r, s) in pairs(&x.ratios, &y.ratios, |ratio| &ratio.name) {
            add(&x.name, &r.name, "", Figure::of_ratio(r), Figure::of_ratio(s));
        }
    }
    let corrected = intervals::holm(&differences.iter().map(|difference| difference.p).collect::<Vec<_>>());
    for (difference, p) in differences.iter_mut().zip(corrected) {
        difference.p_corrected = p;
        let [low, high] = difference.difference_ci95;
        if p < ALPHA && (low > 0.0 || high < 0.0) {
            difference.verdict = Verdict::of(&difference.unit, difference.difference);
        }
    }
    let (names_a, names_b) = (names(a), names(b));
    Comparison {
        schema: SCHEMA,
        only_in_a: names_a.difference(&names_b).cloned().collect(),
        only_in_b: names_b.difference(&names_a).cloned().collect(),
        facts: [different_facts(&a.host, &b.host), different(&facts_of_run(a), &facts_of_run(b))].concat(),
        measured: probes::compare(&a.host.probes, &b.host.probes),
        notes: notes(a, b, &differences),
        differences,
    }
}

/// Those of the same name, in A's order.
fn pairs<'a, T>(a: &'a [T], b: &'a [T], name: fn(&T) -> &String) -> impl Iterator<Item = (&'a T, &'a T)> {
    a.iter().filter_map(move |x| Some((x, b.iter().find(|y| name(y) == name(x))?)))
}

/// The unit is part of the name: figures of two units are two figures.
fn names(report: &Report) -> BTreeSet<String> {
    let of = |experiment: &Experiment| {
        let measurements =
            experiment.measurements.iter().map(|m| format!("{}: {} ({})", experiment.name, m.name, m.unit));
        let ratios = experiment.ratios.iter().map(|ratio| format!("{}: {}", experiment.name, ratio.name));
        measurements.chain(ratios).collect::<Vec<_>>()
    };
    report.experiments.iter().flat_map(of).collect()
}

/// All that two hosts say otherwise, by name; what one of them does not have, being of another version, is no difference.
pub fn different_facts(a: &Host, b: &Host) -> Vec<DifferentFact> {
    different(&facts_of_host(a), &facts_of_host(b))
}

fn different(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<DifferentFact> {
    let missing = Fact::<String>::default().to_string();
    let is_told = |text: &String| !text.is_empty() && *text != missing;
    let both = a.iter().filter_map(|(fact, a)| Some((fact, a, b.get(fact)?)));
    both.filter(|(_, a, b)| a != b && is_told(a) && is_told(b))
        .map(|(fact, a, b)| DifferentFact { fact: fact.clone(), a: a.clone(), b: b.clone() })
        .collect()
}

fn facts_of_host(host: &Host) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    // A host is JSON whatever it holds.
    let value = serde_json::to_value(host).unwrap_or_default();
    for (name, member) in value.as_object().into_iter().flatten() {
        // The moment is another one each time, what was measured is compared by its intervals, and neighbours are named below.
        if !["measured", "neighbours", "probes"].contains(&name.as_str()) {
            add_facts(if name == "facts" { "" } else { name }, member, &mut facts);
        }
    }
    let name = |one: &Neighbour| format!("`{}` {:.0} %", one.command, one.share * 100.0);
    let names = host.neighbours.iter().take(4).map(name).collect::<Vec<_>>().join(", ");
    facts.insert("neighbours".into(), if names.is_empty() { "none".into() } else { names });
    facts
}

fn add_facts(path: &str, value: &Value, facts: &mut BTreeMap<String, String>) {
    match value.as_object() {
        Some(members) if !members.contains_key("not_told") => {
            for (name, member) in members {
                add_facts(format!("{path}.{name}").trim_start_matches('.'), member, facts);
            }
        }
        _ => _ = facts.insert(path.into(), text(value)),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join("; "),
        Value::Object(members) => match members.get("not_told") {
            Some(cause) => format!("not told: {}", text(cause)),
            None => {
                members.iter().map(|(name, member)| format!("{name} {}", text(member))).collect::<Vec<_>>().join(", ")
            }
        },
        Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or(f64::NAN)),
        other => other.to_string(),
    }
}

/// How it was measured: labels, and rounds.
fn facts_of_run(report: &Report) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
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
    let mut notes = Vec::new();
    let count = differences.iter().filter(|one| one.verdict != Verdict::NoDifferenceShown).count();
    if differences.is_empty() {
        notes.push("the results have no figure in common; compare results of the same experiments".into());
    } else {
        let all = differences.len();
        notes.push(format!(
            "{count} of {all} figures differ; each such verdict is corrected for all of them (Holm, 5 %)"
        ));
    }
    if count > 0 {
        notes.push("intervals are of these two runs: run each again before believing a small difference".into());
    }
    for (side, report) in [("A", a), ("B", b)] {
        if report.schema != SCHEMA {
            notes.push(format!("{side} has layout {}, and this version knows {SCHEMA}", report.schema));
        }
    }
    for (x, y) in pairs(&a.experiments, &b.experiments, |experiment| &experiment.name) {
        for (side, these, those) in [("A", &x.notes, &y.notes), ("B", &y.notes, &x.notes)] {
            let missing = these.iter().filter(|note| !those.contains(note));
            notes.extend(missing.map(|note| format!("only {side} says, of {}: {note}", x.name)));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::measurement;
    use crate::{Measurement, Ratio};

    fn host() -> Host {
        let facts = [("memory.thp", "madvise"), ("processor.governor", "performance")];
        let facts = facts.map(|(name, value)| (name.to_string(), Fact::Told(value.to_string()))).into();
        Host { cpu: "Some Core 9".into(), cpu_count: 8, facts, load: "0.20".into(), ..Host::default() }
    }

    fn figure(name: &str, center: f64) -> Measurement {
        let samples: Vec<f64> = (0..30).map(|round| center * (1.0 + f64::from(round % 7) * 0.004)).collect();
        measurement(name, "ns", &samples)
    }

    fn report(host: Host, costs: [f64; 3]) -> Report {
        let measurements = ["empty_loop", "dormant", "armed"].into_iter().zip(costs);
        let measurements = measurements.map(|(name, cost)| figure(name, cost)).collect();
        let experiment = Experiment { name: "event".into(), measurements, ..Experiment::default() };
        Report { schema: SCHEMA, host, experiments: vec![experiment] }
    }

    const COSTS: [f64; 3] = [1.0, 0.4, 30.0];

    fn named(comparison: &Comparison) -> Vec<[&str; 3]> {
        comparison.facts.iter().map(|fact| [fact.fact.as_str(), &fact.a, &fact.b]).collect()
    }

    #[test]
    fn verdicts_go_by_the_unit() {
        let comparison = compare(&report(host(), COSTS), &report(host(), [1.0, 0.2, 60.0]));
        let verdicts: Vec<Verdict> = comparison.differences.iter().map(|difference| difference.verdict).collect();
        assert_eq!(verdicts, [Verdict::NoDifferenceShown, Verdict::Faster, Verdict::Slower]);
        let [_, _, armed] = &comparison.differences[..] else { panic!("three figures") };
        assert!(armed.ratio.is_some_and(|ratio| (ratio - 2.0).abs() < 1e-9), "{armed:?}");
        assert!(armed.difference_ci95[0] > 25.0 && armed.difference_ci95[1] < 35.0, "{armed:?}");
        let units = ["events/s", "ns", "count"].map(|unit| [1.0, -1.0].map(|change| Verdict::of(unit, change)));
        assert_eq!(units[0], [Verdict::Faster, Verdict::Slower]);
        assert_eq!(units[1], [Verdict::Slower, Verdict::Faster]);
        assert_eq!(units[2], [Verdict::Higher, Verdict::Lower]);
    }

    #[test]
    fn facts_that_differ_are_listed_and_no_others() {
        let a = report(host(), COSTS);
        assert_eq!(named(&compare(&a, &a)), [[""; 3]; 0]);
        let mut other = host();
        other.facts.insert("memory.thp".into(), Fact::NotTold("the kernel has no such file".into()));
        other.facts.insert("memory.new".into(), Fact::Told("only here".into()));
        other.measured = "another day".into();
        other.cpu_count = 2;
        other.steal_share = Fact::Told(0.25);
        other.neighbours.push(Neighbour { pid: 7, command: "yes".into(), share: 0.5, ..Neighbour::default() });
        let comparison = compare(&a, &report(other, COSTS));
        let expected = [
            ["cpu_count", "8", "2"],
            ["memory.thp", "madvise", "not told: the kernel has no such file"],
            ["neighbours", "none", "`yes` 50 %"],
        ];
        assert_eq!(named(&comparison), expected);
    }

    #[test]
    fn what_only_one_has_is_said() {
        let (a, mut b) = (report(host(), COSTS), report(host(), COSTS));
        let experiment = &mut b.experiments[0];
        experiment.measurements.remove(2);
        experiment.ratios.push(Ratio { name: "armed_vs_lttng_ust".into(), ..Ratio::default() });
        experiment.notes.push("the thread could not be pinned".into());
        experiment.measurements.iter_mut().for_each(|m| m.n = 20);
        let comparison = compare(&a, &b);
        assert_eq!(comparison.only_in_a, ["event: armed (ns)"]);
        assert_eq!(comparison.only_in_b, ["event: armed_vs_lttng_ust"]);
        assert!(comparison.notes.contains(&"only B says, of event: the thread could not be pinned".to_string()));
        assert_eq!(named(&comparison), [["event: rounds", "30", "20"]]);
    }

    #[test]
    fn what_is_no_result_is_refused_with_its_cause() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("a.json");
        assert!(load(&path).is_err_and(|error| error.to_string().contains("cannot read")));
        for text in ["", "[]", "{\"schema\": 1}", "\u{0}"] {
            std::fs::write(&path, text).expect("written");
            let error = load(&path).map(|_| ()).expect_err("no result").to_string();
            assert!(error.contains("a.json is no result") && error.contains("dormouse lab run"), "{error}");
        }
        let text = r#"{"schema": 2, "host": {"cpu": "Old", "governor": "a"}, "experiments": [{"name": "event", "measurements": [],
            "ratios": [{"name": "r", "value": null, "ci95": [0, 1]}]}]}"#;
        std::fs::write(&path, text).expect("written");
        let old = load(&path).expect("a result of another version");
        let comparison = compare(&old, &old);
        assert_eq!(comparison.differences, [], "a ratio to nothing is no figure");
        assert!(comparison.notes.iter().any(|note| note.starts_with("A has layout 2")), "{:?}", comparison.notes);
    }
}
