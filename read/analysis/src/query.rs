//! Questions about traces.

use dormouse_ctf::{PairEnd, PairFilter, Trace};
use dormouse_filter::{Filter, Kind};

use crate::found_key::FoundKey;
use crate::schema::Schema;

/// A question.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Patterns of event classes; if empty, all classes.
    pub events: Vec<String>,
    /// Properties by which events are grouped: `event`, `cpu`, `pid`, `tid`, `process`, a field, or, if no event has a
    /// field of this name, `thread`, `uid`, `user`, `cgroup` and `container`. Of pairs also
    /// `begin.NAME` and `end.NAME`; a plain name is that of the begin, or of the end if the begin has no such field.
    pub by: Vec<String>,
    /// The quantity that is measured.
    pub measure: Measure,
    /// Length of the intervals of time by which events are also grouped, in nanoseconds.
    pub interval_ns: Option<u64>,
    /// Maximum number of groups that are distinguished; [`GROUPS_MAX`] or [`DISTRIBUTIONS_MAX`] by default.
    pub groups_max: Option<usize>,
    /// Maximum number of rows, those with the most events. Without it, and with intervals, all rows are reported.
    pub top: Option<usize>,
    /// Whether two traces will be compared: counts are then kept by slices of time, and processes are grouped by name
    /// alone.
    pub is_compared: bool,
}

/// The quantity that is measured.
#[derive(Debug, Clone, Default)]
pub enum Measure {
    /// The number of events.
    #[default]
    Count,
    /// Values of a field.
    Field(String),
    /// Time from one event to another.
    Latency(Latency),
}

/// Pairs of events whose time apart is measured.
#[derive(Debug, Clone, Default)]
pub struct Latency {
    /// Pattern of the classes that begin a pair.
    pub begin: String,
    /// Pattern of the classes that end a pair.
    pub end: String,
    /// Fields that both have, whose values match begin and end. If empty, they are matched by thread.
    pub key: Vec<String>,
    /// Fields that identify the pairs, as [`find_keys`](crate::timeline::find_keys) returns them; only without a `key`.
    pub found: Option<FoundKey>,
    /// Conditions that a pair must meet, and that an event without a partner may not contradict: the name of the option that each comes from, and a filter that names fields as
    /// [`PairFilter`] does.
    pub conditions: Vec<(String, Filter)>,
    /// Number of slowest pairs to report.
    pub slowest: usize,
}

impl Latency {
    /// Returns the fields of a found key; empty if pairs are matched by thread or by a given key.
    pub(crate) fn found_fields(&self) -> &[String] {
        self.found.as_ref().map_or(&[], |found| &found.fields)
    }
}

/// Properties other than fields by which events can be grouped.
const WORDS: [&str; 10] = ["event", "cpu", "pid", "tid", "process", "thread", "uid", "user", "cgroup", "container"];

/// Default maximum number of groups that are counted.
pub const GROUPS_MAX: usize = 10_000;
/// Default maximum number of groups whose values are measured: each can take 64 KiB.
pub const DISTRIBUTIONS_MAX: usize = 1000;

impl Query {
    pub(crate) fn groups_max(&self) -> usize {
        let default = if matches!(self.measure, Measure::Count) { GROUPS_MAX } else { DISTRIBUTIONS_MAX };
        self.groups_max.unwrap_or(default)
    }

    /// Returns the names of the properties by which events are grouped.
    pub fn dimensions(&self) -> Vec<String> {
        let mut names: Vec<String> = self.interval_ns.map(|_| "interval_begin_ns".into()).into_iter().collect();
        // Fields of the same name mean different things in different classes.
        let is_by_class = match self.measure {
            Measure::Count => self.by.is_empty() && self.interval_ns.is_none(),
            Measure::Field(_) => self.interval_ns.is_none(),
            Measure::Latency(_) => false,
        };
        if is_by_class && !self.by.iter().any(|name| name == "event") {
            names.push("event".into());
        }
        names.extend(self.by.iter().cloned());
        names
    }

    /// Returns the conditions on pairs.
    ///
    /// # Errors
    /// No class of the pairs has a field that a condition names, or its values are never comparable.
    pub(crate) fn pair_filters(&self, schema: &Schema<'_>) -> Result<Vec<PairFilter>, String> {
        let Measure::Latency(latency) = &self.measure else { return Ok(Vec::new()) };
        let (begins, ends) = (schema.matching(&latency.begin), schema.matching(&latency.end));
        let filter = |(option, filter): &(String, Filter)| {
            PairFilter::new(filter, &begins, &ends).map_err(|error| format!("{option}: {error}"))
        };
        latency.conditions.iter().map(filter).collect()
    }

    /// Splits the name of a property by which events are grouped into the event of a pair, if there are pairs, and the
    /// name.
    pub(crate) fn split<'n>(&self, name: &'n str) -> (Option<PairEnd>, &'n str) {
        if matches!(self.measure, Measure::Latency(_)) { split(name) } else { (None, name) }
    }

    /// Returns the patterns of the classes whose events are grouped. `end`: the event of a pair.
    pub(crate) fn patterns_of(&self, end: Option<PairEnd>) -> Vec<String> {
        match (&self.measure, end) {
            (Measure::Latency(latency), Some(PairEnd::Begin)) => vec![latency.begin.clone()],
            (Measure::Latency(latency), Some(PairEnd::End)) => vec![latency.end.clone()],
            (Measure::Latency(latency), None) => vec![latency.begin.clone(), latency.end.clone()],
            _ => self.events.clone(),
        }
    }

    /// Checks that the traces have what the query needs.
    ///
    /// # Errors
    /// The traces lack something; the text names it and the nearest name.
    pub fn check(&self, traces: &[&Trace]) -> Result<(), String> {
        let schema = Schema::of(traces);
        self.events.iter().try_for_each(|pattern| schema.check_pattern(pattern))?;
        if let Measure::Latency(latency) = &self.measure {
            schema.check_pattern(&latency.begin)?;
            schema.check_pattern(&latency.end)?;
            for name in &latency.key {
                for pattern in [&latency.begin, &latency.end] {
                    check_named(&schema, name, std::slice::from_ref(pattern))?;
                }
            }
            self.pair_filters(&schema)?;
            if latency.key.is_empty() && latency.found_fields().is_empty() && !schema.has(&["tid"]) {
                return Err(
                    "the trace does not record the threads of its events; say by --key FIELD what belongs together"
                        .into(),
                );
            }
        }
        for name in &self.by {
            let (end, name) = self.split(name);
            check_named(&schema, name, &self.patterns_of(end))?;
        }
        if let Measure::Field(name) = &self.measure
            && schema.check_field(name, &self.events, &[])? == Kind::Text
        {
            return Err(format!("the field `{name}` is text, which has no sum; --by {name} counts its values"));
        }
        let needs_time = self.interval_ns.is_some() || matches!(self.measure, Measure::Latency(_));
        if needs_time && !schema.has_clock() {
            return Err("the trace has no clock, so there is no time between its events".into());
        }
        Ok(())
    }
}

/// Splits `begin.NAME` and `end.NAME` into the event of a pair and the name.
fn split(name: &str) -> (Option<PairEnd>, &str) {
    let of = |before: &str| name.strip_prefix(before).filter(|name| !name.is_empty());
    match (of("begin."), of("end.")) {
        (Some(name), _) => (Some(PairEnd::Begin), name),
        (None, Some(name)) => (Some(PairEnd::End), name),
        (None, None) => (None, name),
    }
}

fn check_named(schema: &Schema<'_>, name: &str, patterns: &[String]) -> Result<(), String> {
    let (is_there, what) = match name {
        "event" | "cpu" => return Ok(()),
        "pid" => (schema.has(&["pid"]), "processes"),
        "process" => (schema.has(&["process", "pid"]), "processes"),
        "tid" => (schema.has(&["tid"]), "threads"),
        "thread" if schema.check_field(name, &[], &[]).is_err() => (schema.has(&["tid"]), "threads"),
        property if schema.process_property(property, patterns).is_some() => return Ok(()),
        field => return schema.check_field(field, patterns, &WORDS).map(drop),
    };
    if is_there { Ok(()) } else { Err(format!("the trace does not record the {what} of its events")) }
}
