//! What is asked of a trace.

use dormouse_ctf::Trace;
use dormouse_filter::Kind;

use crate::schema::Schema;

/// A question.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Patterns of event classes; without any, all.
    pub events: Vec<String>,
    /// What events are grouped by: `event`, `cpu`, `pid`, `tid`, `process`, or a field.
    pub by: Vec<String>,
    /// What is measured.
    pub measure: Measure,
    /// Events are also grouped by intervals of time.
    pub interval_ns: Option<u64>,
    /// Groups that are told apart; [`GROUPS_MAX`] or [`DISTRIBUTIONS_MAX`] by default.
    pub groups_max: Option<usize>,
    /// Rows that are told, of those with the most events; all, if nothing is said, and where there are intervals.
    pub top: Option<usize>,
    /// Whether two traces are to be compared: rates are then taken note of by slices of time, and processes have no numbers.
    pub is_compared: bool,
}

/// What is measured.
#[derive(Debug, Clone, Default)]
pub enum Measure {
    /// How many events there are.
    #[default]
    Count,
    /// The values of a field.
    Field(String),
    /// The time from an event to another.
    Latency(Latency),
}

/// Pairs of events.
#[derive(Debug, Clone)]
pub struct Latency {
    /// Pattern of the classes that begin.
    pub begin: String,
    /// Pattern of the classes that end.
    pub end: String,
    /// Fields that both have, and that say what belongs together. Without any: the thread.
    pub key: Vec<String>,
    /// How many of the slowest are told.
    pub slowest: usize,
}

/// What events can be grouped by besides their fields.
const WORDS: [&str; 5] = ["event", "cpu", "pid", "tid", "process"];

/// Groups that are counted, if nothing else is said.
pub const GROUPS_MAX: usize = 10_000;
/// Groups whose values are measured, if nothing else is said: each can take 64 KiB.
pub const DISTRIBUTIONS_MAX: usize = 1000;

impl Query {
    pub(crate) fn groups_max(&self) -> usize {
        let default = if matches!(self.measure, Measure::Count) { GROUPS_MAX } else { DISTRIBUTIONS_MAX };
        self.groups_max.unwrap_or(default)
    }

    /// The names of what events are grouped by.
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

    /// Whether the traces have what is asked for.
    ///
    /// # Errors
    /// What they have not, and what is the nearest.
    pub fn check(&self, traces: &[&Trace]) -> Result<(), String> {
        let schema = Schema::of(traces);
        self.events.iter().try_for_each(|pattern| schema.check_pattern(pattern))?;
        let mut measured = self.events.clone();
        if let Measure::Latency(latency) = &self.measure {
            schema.check_pattern(&latency.begin)?;
            schema.check_pattern(&latency.end)?;
            measured = vec![latency.begin.clone()];
            for name in &latency.key {
                for pattern in [&latency.begin, &latency.end] {
                    check_named(&schema, name, std::slice::from_ref(pattern))?;
                }
            }
            if latency.key.is_empty() && !schema.has(&["tid"]) {
                return Err(
                    "the trace does not record the threads of its events; say by --key FIELD what belongs together"
                        .into(),
                );
            }
        }
        self.by.iter().try_for_each(|name| check_named(&schema, name, &measured))?;
        if let Measure::Field(name) = &self.measure
            && schema.check_field(name, &measured, &[])? == Kind::Text
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

fn check_named(schema: &Schema<'_>, name: &str, patterns: &[String]) -> Result<(), String> {
    let (is_there, what) = match name {
        "event" | "cpu" => return Ok(()),
        "pid" => (schema.has(&["pid"]), "processes"),
        "process" => (schema.has(&["process", "pid"]), "processes"),
        "tid" => (schema.has(&["tid"]), "threads"),
        field => return schema.check_field(field, patterns, &WORDS).map(drop),
    };
    if is_there { Ok(()) } else { Err(format!("the trace does not record the {what} of its events")) }
}
