//! The answer to a question.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use dormouse_ctf::Processes;
use dormouse_ctf::loss::Uncounted;
use dormouse_ctf::stats::{LossPlaces, Span};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::distribution::{Distribution, Number};
use crate::found_key::FoundKey;
use crate::group::{Group, Slices};
use crate::key::{KeyValue, label};
use crate::pair::{Slow, Unpaired};
use crate::query::{Latency, Measure, Query};

/// The parts of a group's key: name and value of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Key(pub Vec<(String, KeyValue)>);

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    }
}

/// The answer to a question.
#[derive(Debug, Serialize)]
pub struct Report {
    /// `count`, `field` or `latency`.
    pub measure: &'static str,
    /// Name of the measured field.
    pub field: Option<String>,
    /// Unit of the measured values: `ns` for latencies. Fields have none, since the trace does not say.
    pub unit: Option<&'static str>,
    /// Names of the properties by which events are grouped.
    pub by: Vec<String>,
    /// Length of an interval, in nanoseconds.
    pub interval_ns: Option<u64>,
    /// Time from the first to the last event of the traces, counted or not.
    pub span: Option<Span>,
    /// Number of events of the classes that were asked for.
    pub events: u64,
    /// Size of their records, in bytes.
    pub bytes: u64,
    /// Events per second of `span`.
    pub events_per_s: Option<f64>,
    /// Groups: those with most events first, or by time.
    pub rows: Vec<Row>,
    /// Groups that are left out of `rows` by the limit of rows.
    pub rest: Option<Rest>,
    /// Events of further groups, once the limit of groups was reached.
    pub other: Option<Row>,
    /// Figures of pairs.
    pub latency: Option<LatencyReport>,
    /// Lost events.
    pub lost: Lost,
    /// Samples of the rules by which the counted events were recorded, by class; empty if no rule had one.
    pub samples: Vec<ClassSamples>,
    /// Problems of the traces, one line each.
    pub warnings: Vec<String>,
}

/// Samples of the events of a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassSamples {
    /// `provider:name`.
    pub class: String,
    /// The samples, as rules have them after `sample`.
    pub samples: Vec<String>,
}

/// A group.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Key of the group.
    pub key: Key,
    /// Number of events, values, or pairs.
    pub count: u64,
    /// Estimated number of events or values that would be recorded if no rule had a sample; `count`, if none has. `None`
    /// for pairs, and if the probability that an event was recorded is not known.
    pub estimated: Option<f64>,
    /// Standard error of `estimated`; `None` if it is not known, as for samples by a field.
    pub estimated_error: Option<f64>,
    /// Estimated sum of the values, like `estimated`.
    pub estimated_sum: Option<f64>,
    /// `count` per second of the trace, or of the interval.
    pub events_per_s: Option<f64>,
    /// Size of the records in bytes; for pairs, of the begins.
    pub bytes: u64,
    /// Distribution of the measured values.
    pub values: Option<Box<Distribution>>,
    #[serde(skip)]
    pub(crate) slices: Option<Box<Slices>>,
}

/// Groups that are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rest {
    /// Number of groups.
    pub groups: u64,
    /// Number of their events, values or pairs.
    pub count: u64,
}

/// Lost events and their causes.
#[derive(Debug, Serialize)]
pub struct Lost {
    /// Number of events that are known to be lost, of all classes.
    pub events: u64,
    /// Number of those whose time is unknown.
    pub unplaced: u64,
    /// Causes that can have lost further, uncounted events.
    pub possible: Vec<Uncounted>,
    /// Streams and times at which events were lost.
    #[serde(flatten)]
    pub places: LossPlaces,
}

/// Figures of pairs other than their distribution.
#[derive(Debug, Serialize)]
pub struct LatencyReport {
    /// Begins without an end. With conditions, only those that an end could make true.
    pub unpaired_begins: u64,
    /// Ends without a begin. With conditions, only those that a begin could make true.
    pub unpaired_ends: u64,
    /// Fields by which begins and ends are paired; empty if by thread.
    pub paired_by: Vec<String>,
    /// Reason for these fields, or why the pairs are not certain; `None` if pairs by thread are certain, or if the key
    /// was given.
    pub pairing_note: Option<String>,
    /// False if begins and ends are on different threads and no field tells which belong together.
    pub is_certain: bool,
    /// Pairs that do not meet the conditions.
    pub pairs_not_selected: u64,
    /// Pairs that are not believed, because events can have been lost in between.
    pub pairs_across_losses: u64,
    /// Events that lack a field of the key, or do not say their thread.
    pub events_without_key: u64,
    /// Begins that were not followed, because too many others were open.
    pub begins_not_followed: u64,
    /// The pairs with the greatest latency, the longest first.
    pub slowest: Vec<SlowPair>,
}

/// One of the slowest pairs.
#[derive(Debug, Serialize)]
pub struct SlowPair {
    /// Time from begin to end, in nanoseconds.
    pub latency_ns: u64,
    /// Time of the begin, in nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Program that recorded the begin.
    pub process: String,
    /// Thread that recorded the begin.
    pub tid: Option<u32>,
    /// Values that both events share, unless they are matched by thread.
    pub key: Vec<KeyValue>,
    /// Fields of the begin and of the end, if the caller has looked them up.
    #[serde(serialize_with = "two_fields", flatten)]
    pub fields: [Option<PairFields>; 2],
    /// Streams of begin and end.
    #[serde(skip)]
    pub streams: [usize; 2],
}

fn two_fields<S: Serializer>(fields: &[Option<PairFields>; 2], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("begin_fields", &fields[0])?;
    map.serialize_entry("end_fields", &fields[1])?;
    map.end()
}

/// Fields of an event of a pair.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct PairFields {
    /// Values by name.
    pub json: serde_json::Value,
    /// Names and values for people.
    #[serde(skip)]
    pub texts: Vec<(String, String)>,
}

fn per_second(count: u64, duration_ns: u64) -> Option<f64> {
    (duration_ns > 0).then(|| count as f64 * 1e9 / duration_ns as f64)
}

/// Returns a row, without the slices of time.
fn row_of(query: &Query, key: Key, group: &Group, duration_ns: u64) -> Row {
    let estimate = group.estimate().filter(|_| !matches!(query.measure, Measure::Latency(_)));
    Row {
        key,
        count: group.count,
        estimated: estimate.map(|estimate| estimate.events),
        estimated_error: estimate.and_then(|estimate| estimate.error),
        estimated_sum: estimate.and_then(|_| group.estimated_sum()),
        events_per_s: per_second(group.count, duration_ns),
        bytes: group.bytes,
        values: group.values.clone(),
        slices: None,
    }
}

/// Returns the rows in their order. Groups with the same name are merged.
pub(crate) fn rows<'g>(
    query: &Query,
    span: Option<Span>,
    groups: impl Iterator<Item = (Vec<KeyValue>, &'g Group)>,
) -> Vec<Row> {
    let mut by_name: BTreeMap<Vec<KeyValue>, Group> = BTreeMap::new();
    groups.for_each(|(key, group)| by_name.entry(key).or_default().merge(group));
    fill(query, &mut by_name);
    let names = query.dimensions();
    let duration_ns = query.interval_ns.or(span.map(|span| span.duration_ns)).unwrap_or(0);
    let row = |(key, group): (Vec<KeyValue>, Group)| {
        let slices = group.slices.clone();
        Row { slices, ..row_of(query, Key(names.iter().cloned().zip(key).collect()), &group, duration_ns) }
    };
    let mut rows: Vec<Row> = by_name.into_iter().map(row).collect();
    // The sum of latencies, otherwise the number of events.
    let size = |row: &Row| match (&query.measure, row.values.as_deref().and_then(Distribution::sum)) {
        (Measure::Latency(_), Some(Number::Whole(sum_ns))) => sum_ns,
        _ => row.count.into(),
    };
    // The sort is stable: rows of equal size stay in the order of their names.
    match query.interval_ns {
        None => rows.sort_by_key(|row| Reverse(size(row))),
        Some(_) => rows.sort_by_key(|row| (row.key.0.first().map(|(_, begin)| begin.clone()), Reverse(size(row)))),
    }
    rows
}

/// Adds intervals without events, if events are grouped by intervals alone.
fn fill(query: &Query, groups: &mut BTreeMap<Vec<KeyValue>, Group>) {
    let (Some(interval_ns), true) = (query.interval_ns, query.by.is_empty()) else { return };
    let begin_of = |key: &Vec<KeyValue>| match key.first() {
        Some(KeyValue::Integer(begin)) => Some(*begin),
        _ => None,
    };
    let (first, last) = (groups.keys().next().and_then(begin_of), groups.keys().next_back().and_then(begin_of));
    let (Some(mut begin), Some(last)) = (first, last) else { return };
    while begin < last && groups.len() < query.groups_max() {
        groups.entry(vec![KeyValue::Integer(begin)]).or_default();
        begin += i128::from(interval_ns.max(1));
    }
}

pub(crate) fn latency(
    asked: &Latency,
    (unpaired, pairs_not_selected): (Unpaired, u64),
    slowest: Vec<Slow>,
    processes: &Processes,
    key: impl Fn(&[u8]) -> Vec<KeyValue>,
) -> LatencyReport {
    let pair = |slow: Slow| SlowPair {
        latency_ns: slow.latency_ns,
        begin_ns: slow.begin_ns.0,
        process: label(processes, slow.process, false),
        tid: slow.tid,
        key: key(&slow.key),
        fields: [None, None],
        streams: slow.streams,
    };
    let paired_by = if asked.key.is_empty() { asked.found_fields() } else { &asked.key };
    LatencyReport {
        paired_by: paired_by.to_vec(),
        pairing_note: asked.found.as_ref().map(FoundKey::text),
        is_certain: asked.found.as_ref().is_none_or(|found| !found.fields.is_empty()),
        pairs_not_selected,
        unpaired_begins: unpaired.begins,
        unpaired_ends: unpaired.ends,
        pairs_across_losses: unpaired.across_losses,
        events_without_key: unpaired.without_key,
        begins_not_followed: unpaired.not_followed,
        slowest: slowest.into_iter().map(pair).collect(),
    }
}

pub(crate) fn report(
    query: &Query,
    span: Option<Span>,
    (events, bytes): (u64, u64),
    mut rows: Vec<Row>,
    other: Option<&Group>,
    latency: Option<LatencyReport>,
    lost: Lost,
) -> Report {
    let duration_ns = span.map_or(0, |span| span.duration_ns);
    let is_cut = !query.is_compared && query.interval_ns.is_none();
    let rest = query.top.filter(|top| is_cut && *top < rows.len()).map(|top| {
        let rest = rows.split_off(top);
        Rest { groups: rest.len() as u64, count: rest.iter().map(|row| row.count).sum() }
    });
    let (measure, field, unit) = match &query.measure {
        Measure::Count => ("count", None, None),
        Measure::Field(name) => ("field", Some(name.clone()), None),
        Measure::Latency(_) => ("latency", None, Some("ns")),
    };
    let other = other.map(|group| row_of(query, Key::default(), group, duration_ns));
    Report {
        measure,
        field,
        unit,
        by: query.dimensions(),
        interval_ns: query.interval_ns,
        span,
        events,
        bytes,
        events_per_s: per_second(events, duration_ns),
        rows,
        rest,
        other,
        latency,
        lost,
        samples: Vec::new(),
        warnings: Vec::new(),
    }
}
