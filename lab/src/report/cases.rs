//! What labels say of measurements: how a case is called, which of its labels vary, and which of them are axes.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Labels, Measurement};

/// Labels that say what a case is, and not under which circumstances it was measured.
pub(super) const IDENTITY: [&str; 3] = ["tool", "way", "state"];

/// The order of known values; others come after them, numbers by size.
const ORDER: [(&str, &[&str]); 6] = [
    ("pressure", &["hot", "L1", "L2", "L3", "memory"]),
    ("fields", &["none", "u64", "ints3", "str32"]),
    ("type", &["u8", "u16", "i32", "u64"]),
    ("state", &["armed", "dormant", "loop", "getppid", "branch", "call", "value", "update", "empty"]),
    ("mode", &["overwrite", "discard"]),
    (
        "tool",
        &[
            "dormouse",
            "lttng-ust",
            "tracy",
            "tracing",
            "fastrace",
            "perfetto",
            "usdt",
            "static-branch",
            "immediate-value",
            "static-keys",
            "variable",
            "variable-in-memory",
            "variable-awaited",
            "floor",
            "rdtsc",
            "empty",
            "none",
        ],
    ),
];

/// A place in the order of an axis.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum Place {
    Known(usize),
    Number(f64),
    Text(String),
}

fn place(axis: &str, value: &str) -> Place {
    let known =
        ORDER.iter().find(|(name, _)| *name == axis).and_then(|(_, order)| order.iter().position(|v| *v == value));
    let number = || value.parse().ok().filter(|number: &f64| number.is_finite());
    known.map(Place::Known).or_else(|| number().map(Place::Number)).unwrap_or_else(|| Place::Text(value.into()))
}

/// The values of an axis in their order, each once.
pub(super) fn in_order<'a>(axis: &str, values: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut values: Vec<&str> = values.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    values.sort_by(|a, b| place(axis, a).partial_cmp(&place(axis, b)).unwrap_or(std::cmp::Ordering::Equal));
    values
}

/// Colours by number, so that a tool has the same one in every plot of a page.
pub(super) fn colour(measurement: &Measurement) -> usize {
    let label = |name: &str| measurement.labels.get(name).map(String::as_str);
    match label("tool").or(label("way")).unwrap_or(&measurement.name) {
        "floor" | "rdtsc" | "empty" | "none" | "empty_loop" | "timestamp_counter" | "timestamps" => 7,
        name if name.starts_with("lttng") => 1,
        "tracy" | "variable-in-memory" => 2,
        "tracing" | "static-keys" => 3,
        "fastrace" | "immediate-value" => 4,
        "perfetto" | "variable-awaited" => 5,
        "usdt" | "variable" => 6,
        // Dormouse and all its ways.
        _ => 0,
    }
}

/// The labels that have more than one value among these measurements; one that some lack counts.
pub(super) fn varying(measurements: &[&Measurement]) -> BTreeSet<String> {
    let mut values: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
    for name in measurements.iter().flat_map(|m| m.labels.keys()) {
        let all = measurements.iter().map(|m| m.labels.get(name).map(String::as_str));
        values.entry(name).or_insert_with(|| all.collect());
    }
    values.into_iter().filter(|(_, values)| values.len() > 1).map(|(name, _)| name.into()).collect()
}

/// How a value of an axis is said.
pub(super) fn said(axis: &str, value: &str) -> String {
    match axis {
        "tool" | "way" | "state" | "mode" | "type" => value.into(),
        "busy" if value == "0" => "no busy thread".into(),
        "busy" => format!("{value} busy thread"),
        "fields" if value == "none" => "no field".into(),
        "fields" => value.into(),
        "threads" | "sites" if value == "1" => format!("1 {}", &axis[..axis.len() - 1]),
        "threads" | "sites" => format!("{value} {axis}"),
        _ => format!("{axis} {value}"),
    }
}

/// A case by its labels: identity always, the others where they vary. A case without labels has only its name.
pub(super) fn name(measurement: &Measurement, varying: &BTreeSet<String>, without: &[&str]) -> String {
    let labels = &measurement.labels;
    let wanted = |name: &str| !without.contains(&name);
    let identity = IDENTITY.iter().filter(|name| wanted(name)).filter_map(|name| labels.get(*name));
    let identity = identity.cloned().collect::<Vec<_>>().join(" ");
    let others = labels.iter().filter(|(name, _)| wanted(name) && !IDENTITY.contains(&name.as_str()));
    let others = others.filter(|(name, _)| varying.contains(*name)).map(|(name, value)| said(name, value));
    let parts: Vec<String> = std::iter::once(identity).filter(|part| !part.is_empty()).chain(others).collect();
    if parts.is_empty() { measurement.name.clone() } else { parts.join(", ") }
}

/// Names for all of them; where two would be called the same, each is called by its file's name.
pub(super) fn names(measurements: &[&Measurement]) -> Vec<String> {
    let varying = varying(measurements);
    unique(measurements.iter().map(|m| name(m, &varying, &[])).collect(), measurements)
}

fn unique(names: Vec<String>, measurements: &[&Measurement]) -> Vec<String> {
    let is_unique = names.iter().collect::<BTreeSet<_>>().len() == names.len();
    if is_unique { names } else { measurements.iter().map(|m| m.name.clone()).collect() }
}

/// Measurements that differ in one label alone.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// In the order of the file.
    pub(super) members: Vec<&'a Measurement>,
}

/// A label that was varied while all others stayed.
#[derive(Debug)]
pub(super) struct Axis<'a> {
    pub(super) name: String,
    pub(super) groups: Vec<Group<'a>>,
}

impl Axis<'_> {
    /// The values that occur, in their order.
    pub(super) fn values(&self) -> Vec<&str> {
        let members = self.groups.iter().flat_map(|group| &group.members);
        in_order(&self.name, members.filter_map(|m| m.labels.get(&self.name).map(String::as_str)))
    }

    /// Whether every value is a number.
    pub(super) fn is_numeric(&self) -> bool {
        self.values().iter().all(|value| value.parse().is_ok_and(f64::is_finite))
    }
}

/// The axes of these measurements: labels of which two values occur with otherwise equal labels, in the same unit.
pub(super) fn axes<'a>(measurements: &[&'a Measurement]) -> Vec<Axis<'a>> {
    let names: BTreeSet<&String> = measurements.iter().flat_map(|m| m.labels.keys()).collect();
    let names = names.into_iter().filter(|name| !IDENTITY.contains(&name.as_str()));
    let axis = |name: &String| -> Option<Axis<'a>> {
        let mut groups: Vec<(Labels, &str, Group)> = Vec::new();
        for measurement in measurements.iter().filter(|m| m.labels.contains_key(name)) {
            let mut rest = measurement.labels.clone();
            rest.remove(name);
            match groups.iter_mut().find(|(labels, unit, _)| *labels == rest && *unit == measurement.unit) {
                Some((.., group)) => group.members.push(measurement),
                None => groups.push((rest, &measurement.unit, Group { members: vec![measurement] })),
            }
        }
        let values = |group: &Group| group.members.iter().map(|m| m.labels.get(name)).collect::<BTreeSet<_>>().len();
        let groups: Vec<Group> =
            groups.into_iter().map(|(.., group)| group).filter(|group| values(group) > 1).collect();
        (!groups.is_empty()).then(|| Axis { name: name.clone(), groups })
    };
    names.filter_map(axis).collect()
}

/// Cases by the circumstances under which they were measured.
#[derive(Debug)]
pub(super) struct Circumstances<'a> {
    /// For each label that is not identity, the value that occurs most often.
    usual: BTreeMap<&'a str, &'a str>,
    /// Cases under the usual circumstances.
    pub(super) under_usual: Vec<&'a Measurement>,
    /// All others.
    pub(super) others: Vec<&'a Measurement>,
}

impl<'a> Circumstances<'a> {
    pub(super) fn of(measurements: &[&'a Measurement]) -> Circumstances<'a> {
        let mut usual: BTreeMap<&str, &str> = BTreeMap::new();
        for axis in measurements.iter().flat_map(|m| m.labels.keys()).filter(|name| !IDENTITY.contains(&name.as_str()))
        {
            let values: Vec<&str> =
                measurements.iter().filter_map(|m| m.labels.get(axis).map(String::as_str)).collect();
            let frequency = |value: &str| values.iter().filter(|other| **other == value).count();
            // Of the equally frequent ones the first, which `max_by_key` finds from behind.
            let most = in_order(axis, values.iter().copied()).into_iter().rev().max_by_key(|value| frequency(value));
            usual.extend(most.map(|most| (axis.as_str(), most)));
        }
        let is_usual = |m: &&&Measurement| unusual(m, &usual).is_empty();
        let under_usual = measurements.iter().filter(is_usual).copied().collect();
        let others = measurements.iter().filter(|m| !is_usual(m)).copied().collect();
        Circumstances { usual, under_usual, others }
    }

    /// The usual circumstances, as far as they are not the only ones: `u64, 1 thread`.
    pub(super) fn said(&self) -> String {
        let varied = |axis: &str| self.others.iter().any(|m| unusual(m, &self.usual).contains(&axis));
        let usual = self.usual.iter().filter(|(axis, _)| varied(axis));
        usual.map(|(axis, value)| said(axis, value)).collect::<Vec<_>>().join(", ")
    }

    /// Names for cases that say only what is unusual; where two would be called the same, each has its file's name.
    pub(super) fn names(&self, measurements: &[&Measurement]) -> Vec<String> {
        let name = |m: &&Measurement| {
            let unusual = unusual(m, &self.usual).into_iter().map(String::from).collect();
            name(m, &unusual, &[])
        };
        unique(measurements.iter().map(name).collect(), measurements)
    }
}

fn unusual<'m>(m: &'m Measurement, usual: &BTreeMap<&str, &str>) -> Vec<&'m str> {
    let others = m.labels.iter().filter(|(name, _)| !IDENTITY.contains(&name.as_str()));
    let unusual = others.filter(|(name, value)| usual.get(name.as_str()) != Some(&value.as_str()));
    unusual.map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, labels: &[(&str, &str)]) -> Measurement {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Measurement { name: name.into(), unit: "ns".into(), labels, ..Measurement::default() }
    }

    #[test]
    fn values_have_an_order() {
        assert_eq!(in_order("pressure", ["L2", "other", "hot", "L1", "L2"]), ["hot", "L1", "L2", "other"]);
        assert_eq!(in_order("sites", ["1000", "10", "1"]), ["1", "10", "1000"]);
    }

    #[test]
    fn an_axis_is_a_label_that_varies_alone() {
        let cases = [
            case("a", &[("tool", "x"), ("threads", "1"), ("fields", "u64")]),
            case("b", &[("tool", "x"), ("threads", "2"), ("fields", "u64")]),
            case("c", &[("tool", "y"), ("threads", "1"), ("fields", "none")]),
        ];
        let cases: Vec<&Measurement> = cases.iter().collect();
        let axes = axes(&cases);
        assert_eq!(axes.iter().map(|axis| axis.name.as_str()).collect::<Vec<_>>(), ["threads"]);
        assert_eq!(axes[0].groups.len(), 1);
        assert_eq!(axes[0].values(), ["1", "2"]);
    }

    #[test]
    fn cases_are_called_by_what_varies() {
        let cases = [
            case("a", &[("tool", "x"), ("state", "armed"), ("threads", "1"), ("fields", "u64")]),
            case("b", &[("tool", "x"), ("state", "armed"), ("threads", "2"), ("fields", "u64")]),
            case("c", &[]),
        ];
        assert_eq!(names(&[&cases[0], &cases[1]]), ["x armed, 1 thread", "x armed, 2 threads"]);
        assert_eq!(names(&[&cases[0], &cases[0]]), ["a", "a"]);
        assert_eq!(names(&[&cases[2]]), ["c"]);
    }

    #[test]
    fn the_usual_is_what_occurs_most() {
        let cases = [
            case("a", &[("tool", "x"), ("threads", "1"), ("fields", "u64")]),
            case("b", &[("tool", "y"), ("threads", "1"), ("fields", "u64")]),
            case("c", &[("tool", "x"), ("threads", "2"), ("fields", "u64")]),
        ];
        let circumstances = Circumstances::of(&cases.iter().collect::<Vec<_>>());
        assert_eq!(circumstances.under_usual.len(), 2);
        assert_eq!(circumstances.said(), "1 thread");
        assert_eq!(circumstances.names(&circumstances.others), ["x, 2 threads"]);
    }
}
