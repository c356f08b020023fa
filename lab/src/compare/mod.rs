//! Two results beside each other: what differs, how sure that is, and who is suspected.
//!
//! # The problem
//! "It is 20 % slower there" is where the work begins. Whether it is slower at all, considering that fifty figures were
//! looked at; and then, of all that differs between two machines, what to try first.
//!
//! # The picture
//! ```text
//!   A.json ─┐  figures of the same name ──▶ difference, ratio, 95 % intervals, p ──Holm──▶ verdict
//!           ├─▶                                                                             │ kinds that differ
//!   B.json ─┘  hosts, rounds, labels ──▶ what differs ──▶ prior × fit × size ◀──────────────┘
//!                                                              └──▶ suspects, each with a test
//! ```
//! A figure is *slower* or *faster* when both hold: its 95 % interval excludes zero, and the probability of such a
//! difference by chance, corrected by Holm's method for all the figures compared, is below 5 %.
//!
//! # Limits
//! The intervals are those of two runs. Runs of one machine differ too, by the layout of memory for instance: repeat
//! both before believing a small difference. A suspect is an accusation, its test the trial.
//!
//! # Source
//! The method of suspects: Xinyu Chen, *ZERO PAGE removal influence: Codec Performance Differences between 2.6.19 and 2.6.24 kernel*, 2008.

mod suspects;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::intervals::{self, Figure};
use crate::probes::{Judged, judge};
use crate::{Experiment, Host, Measurement, Report, SCHEMA};
pub use suspects::Suspect;

/// What a difference must be improbable by, after Holm's correction.
const ALPHA: f64 = 0.05;
/// Share of one processor, of all neighbours together, from which on a run counts as disturbed.
const DISTURBED_SHARE_MIN: f64 = 0.2;

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

/// A result as it was read, with what could not be.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The result.
    pub report: Report,
    /// Figures that were left out, and why.
    pub notes: Vec<String>,
}

/// Reads a result, of this version or another. Figures that are none (a ratio by nothing) are left out.
///
/// # Errors
/// See [`CompareError`].
pub fn load(path: &Path) -> Result<Loaded, CompareError> {
    let text = std::fs::read(path).map_err(|error| CompareError::Read { path: path.into(), error })?;
    parse(&text).map_err(|reason| CompareError::NoResult { path: path.into(), reason })
}

fn parse(text: &[u8]) -> Result<Loaded, String> {
    #[derive(Deserialize)]
    struct LooseExperiment {
        name: String,
        #[serde(default)]
        measurements: Vec<serde_json::Value>,
        #[serde(default)]
        ratios: Vec<serde_json::Value>,
        #[serde(default)]
        notes: Vec<String>,
    }
    #[derive(Deserialize)]
    struct LooseReport {
        schema: u32,
        #[serde(default)]
        host: Host,
        experiments: Vec<LooseExperiment>,
    }
    let loose: LooseReport = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut notes = Vec::new();
    if loose.schema != SCHEMA {
        notes.push(format!("it has layout {}, and this version knows {SCHEMA}", loose.schema));
    }
    let mut experiments = Vec::new();
    for experiment in loose.experiments {
        let measurements = readable(experiment.measurements, &experiment.name, &mut notes);
        let ratios = readable(experiment.ratios, &experiment.name, &mut notes);
        experiments.push(Experiment {
            name: experiment.name,
            measurements,
            ratios,
            notes: experiment.notes,
            ..Experiment::default()
        });
    }
    Ok(Loaded { report: Report { schema: loose.schema, host: loose.host, experiments }, notes })
}

fn readable<T: serde::de::DeserializeOwned>(
    values: Vec<serde_json::Value>,
    experiment: &str,
    notes: &mut Vec<String>,
) -> Vec<T> {
    let read = |value: serde_json::Value| {
        let name = value.get("name").and_then(|name| name.as_str()).unwrap_or("a figure").to_string();
        // What is no number is written as null; there is nothing to compare in it.
        let is_null =
            ["median", "value"].iter().any(|member| value.get(member).is_some_and(serde_json::Value::is_null));
        let read =
            if is_null { Err("it has no value".to_string()) } else { T::deserialize(value).map_err(|e| e.to_string()) };
        match read {
            Ok(figure) => Some(figure),
            Err(error) => {
                notes.push(format!("{experiment}: {name} is left out: {error}"));
                None
            }
        }
    };
    values.into_iter().filter_map(read).collect()
}

/// What a figure is of, as far as causes are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// No mechanism: an empty loop, the reading of the clock.
    EmptyLoop,
    /// An event that is not armed.
    Dormant,
    /// A mechanism at work, in the cache.
    Armed,
    /// Under pressure on memory, or a cost of memory itself.
    Memory,
    /// A whole job by the clock on the wall.
    WallTime,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::EmptyLoop, Kind::Dormant, Kind::Armed, Kind::Memory, Kind::WallTime];

    fn of(experiment: &str, measurement: &Measurement) -> Kind {
        let name = measurement.name.as_str();
        let label = |key: &str| measurement.labels.get(key).map(String::as_str).unwrap_or_default();
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        if measurement.unit == "s" || experiment.starts_with("compile") {
            Kind::WallTime
        } else if has(&["empty", "timestamp_counter", "baseline"]) || label("tool") == "none" {
            Kind::EmptyLoop
        } else if experiment.starts_with("zero-page")
            || !["", "none", "hot", "L1", "L1d"].contains(&label("pressure"))
            || has(&["pressure", "cold", "fault", "os_page", "backed"])
        {
            Kind::Memory
        } else if has(&["dormant"]) || label("state") == "dormant" {
            Kind::Dormant
        } else {
            Kind::Armed
        }
    }
}

/// How B's figure stands to A's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    NoDifferenceSeen,
}

impl Verdict {
    /// Whether there is one.
    pub fn is_difference(self) -> bool {
        self != Verdict::NoDifferenceSeen
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::Higher => "higher",
            Verdict::Lower => "lower",
            Verdict::NoDifferenceSeen => "no difference seen",
        }
    }

    fn of(unit: &str, difference: f64) -> Verdict {
        let is_more = difference > 0.0;
        match unit {
            "ns" | "us" | "µs" | "ms" | "s" | "cycles" if is_more => Verdict::Slower,
            "ns" | "us" | "µs" | "ms" | "s" | "cycles" => Verdict::Faster,
            _ if unit.ends_with("/s") && is_more => Verdict::Faster,
            _ if unit.ends_with("/s") => Verdict::Slower,
            _ if is_more => Verdict::Higher,
            _ => Verdict::Lower,
        }
    }
}

/// A figure that both results have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The experiment.
    pub experiment: String,
    /// The measurement or ratio.
    pub name: String,
    /// Whether it is one of the result's ratios.
    pub is_ratio: bool,
    /// What it is of.
    pub kind: Kind,
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

impl Difference {
    /// Size on a scale on which double and half are alike, at most that of a factor of 20.
    fn effect(&self) -> f64 {
        let logarithm = self.ratio.map_or(1.0, |ratio| ratio.ln().abs());
        if logarithm.is_finite() { logarithm.min(3.0) } else { 1.0 }
    }
}

/// Two results beside each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Version of this layout.
    pub schema: u32,
    /// Figures that both have, in A's order.
    pub differences: Vec<Difference>,
    /// Figures that A alone has: `experiment: name`.
    pub only_in_a: Vec<String>,
    /// Figures that B alone has.
    pub only_in_b: Vec<String>,
    /// What was measured of both machines beside the experiments, judged; empty where one result does not have it.
    #[serde(default)]
    pub judged: Vec<Judged>,
    /// What differs between the runs, likeliest cause first.
    pub suspects: Vec<Suspect>,
    /// What a reader has to know.
    pub notes: Vec<String>,
}

/// What is known of two hosts and differs, likeliest cause first: no figures of an experiment are needed. Who was struck out by `judged` comes
/// after the others.
pub fn suspects_of_hosts(a: &Host, b: &Host, judged: &[Judged]) -> Vec<Suspect> {
    suspects::suspects(a, b, None, judged)
}

/// Compares B with A.
pub fn compare(a: &Report, b: &Report) -> Comparison {
    let mut differences = Vec::new();
    let mut add = |experiment: &str, name: &str, is_ratio, kind, unit: &str, x: Figure<'_>, y: Figure<'_>| {
        let compared = intervals::compare(x, y);
        differences.push(Difference {
            experiment: experiment.into(),
            name: name.into(),
            is_ratio,
            kind,
            unit: unit.into(),
            a: x.value,
            b: y.value,
            difference: compared.difference,
            difference_ci95: compared.difference_ci95,
            ratio: compared.ratio.map(|(ratio, _)| ratio),
            ratio_ci95: compared.ratio.map(|(_, interval)| interval),
            p: compared.p,
            p_corrected: 1.0,
            verdict: Verdict::NoDifferenceSeen,
        });
    };
    for (x, y) in pairs(&a.experiments, &b.experiments, |experiment| &experiment.name) {
        for (m, n) in pairs(&x.measurements, &y.measurements, |measurement| &measurement.name) {
            if m.unit == n.unit {
                add(
                    &x.name,
                    &m.name,
                    false,
                    Kind::of(&x.name, m),
                    &m.unit,
                    Figure::of_measurement(m),
                    Figure::of_measurement(n),
                );
            }
        }
        for (r, s) in pairs(&x.ratios, &y.ratios, |ratio| &ratio.name) {
            add(&x.name, &r.name, true, Kind::Armed, "", Figure::of_ratio(r), Figure::of_ratio(s));
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
    let evidence = suspects::evidence(&differences);
    let has_both = !a.host.probes.figures.is_empty() && !b.host.probes.figures.is_empty();
    let judged = if has_both { judge(&a.host.probes, &b.host.probes) } else { Vec::new() };
    let mut all = suspects::suspects(&a.host, &b.host, evidence, &judged);
    all.extend(suspects_of_runs(a, b));
    suspects::sort(&mut all);
    let notes = notes(a, b, &differences, &all);
    Comparison {
        schema: SCHEMA,
        differences,
        only_in_a: names_a.difference(&names_b).cloned().collect(),
        only_in_b: names_b.difference(&names_a).cloned().collect(),
        judged,
        suspects: all,
        notes,
    }
}

/// Those of the same name, in A's order.
fn pairs<'a, T>(a: &'a [T], b: &'a [T], name: impl Fn(&T) -> &str) -> Vec<(&'a T, &'a T)> {
    a.iter().filter_map(|x| Some((x, b.iter().find(|y| name(y) == name(x))?))).collect()
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

/// What differs in how it was measured: labels, rounds.
fn suspects_of_runs(a: &Report, b: &Report) -> Vec<Suspect> {
    let mut suspects: Vec<Suspect> = Vec::new();
    let mut add = |fact: String, title: String, values: [String; 2], why: &str, test: &str, score| {
        if !suspects.iter().any(|known| known.fact == fact) {
            let [a, b] = values;
            suspects.push(Suspect { fact, title, a, b, why: why.into(), test: test.into(), score, struck_out: None });
        }
    };
    for (x, y) in pairs(&a.experiments, &b.experiments, |experiment| &experiment.name) {
        for (m, n) in pairs(&x.measurements, &y.measurements, |measurement| &measurement.name) {
            let keys: BTreeSet<&String> = m.labels.keys().chain(n.labels.keys()).collect();
            for key in keys.into_iter().filter(|key| m.labels.get(*key) != n.labels.get(*key)) {
                let value = |labels: &crate::Labels| labels.get(key).cloned().unwrap_or_else(|| "not said".into());
                add(
                    format!("labels.{key}"),
                    format!("{key} of {}", m.name),
                    [value(&m.labels), value(&n.labels)],
                    "the figures are not of the same thing",
                    "measure both with the same options",
                    0.97,
                );
            }
            if m.n.abs_diff(n.n) * 10 > m.n.max(n.n) {
                add(
                    "n".into(),
                    "rounds".into(),
                    [m.n.to_string(), n.n.to_string()],
                    "a short run sees less of a machine's moods, and more of its warming up",
                    "measure both with --quick or both without",
                    0.32,
                );
            }
        }
    }
    suspects
}

fn notes(a: &Report, b: &Report, differences: &[Difference], suspects: &[Suspect]) -> Vec<String> {
    let mut notes = Vec::new();
    let count = differences.iter().filter(|difference| difference.verdict.is_difference()).count();
    if differences.is_empty() {
        notes.push("the results have no figure in common; compare results of the same experiments".into());
    } else {
        notes.push(format!(
            "{count} of {} figures differ; each such verdict is corrected for all of them (Holm, 5 %)",
            differences.len()
        ));
    }
    if count > 0 {
        notes.push("intervals are of these two runs: run each again before believing a small difference".into());
    }
    // Alike in both, they are no difference of the hosts, and yet make two runs of one machine differ.
    for (side, host) in [("A", &a.host), ("B", &b.host)] {
        let names: Vec<String> = host.neighbours.iter().take(3).map(|n| format!("`{}`", n.command)).collect();
        let share: f64 = host.neighbours.iter().map(|neighbour| neighbour.share).sum();
        if share >= DISTURBED_SHARE_MIN {
            notes.push(format!(
                "{side} was disturbed: {} took {:.0} % of a processor; what differs may be their doing, so repeat it \
                 without them",
                names.join(", "),
                share * 100.0
            ));
        }
    }
    match (count, suspects.is_empty()) {
        (_, true) if a.host == Host::default() || b.host == Host::default() => {
            notes.push("a result says nothing of its host: no suspects can be named".into());
        }
        (0, true) => notes.push("nothing differs between the hosts that is known to matter".into()),
        (_, true) => notes.push(
            "nothing differs between the hosts that is known to matter: suspect the runs themselves, and repeat both"
                .into(),
        ),
        (0, false) => notes.push("the hosts differ, but no figure shows it".into()),
        _ => {}
    }
    for (x, y) in pairs(&a.experiments, &b.experiments, |experiment| &experiment.name) {
        // Neighbours are among the suspects.
        let is_telling = |note: &&String| !note.starts_with("noisy neighbour") && !note.starts_with("steal:");
        let mut only = |side: &str, these: &[String], those: &[String]| {
            let missing = these.iter().filter(is_telling).filter(|note| !those.contains(note));
            notes.extend(missing.map(|note| format!("only {side} says, of {}: {note}", x.name)));
        };
        only("A", &x.notes, &y.notes);
        only("B", &y.notes, &x.notes);
    }
    notes
}

#[cfg(test)]
mod tests;
