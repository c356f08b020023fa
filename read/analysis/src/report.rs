//! The answer to a question.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use dormouse_ctf::loss::Uncounted;
use dormouse_ctf::stats::{LossPlaces, Span};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::distribution::Distribution;
use crate::group::{Group, Slices};
use crate::key::{KeyValue, Processes};
use crate::pair::{Slow, Unpaired};
use crate::query::{Measure, Query};

/// The parts of a group's name, with what each is.
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
    /// The field that is measured.
    pub field: Option<String>,
    /// Of what is measured: `ns` of latencies; fields have none that the trace says.
    pub unit: Option<&'static str>,
    /// What events are grouped by.
    pub by: Vec<String>,
    /// Length of an interval.
    pub interval_ns: Option<u64>,
    /// Time from the first to the last event of the traces, whatever is counted.
    pub span: Option<Span>,
    /// Events that were looked at: those of the classes that were asked for.
    pub events: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// They in a second of `span`.
    pub events_per_s: Option<f64>,
    /// Groups, those with most events first, or by time.
    pub rows: Vec<Row>,
    /// What is not among `rows` because no more were asked for.
    pub rest: Option<Rest>,
    /// Events of groups that came when there were as many as are told apart.
    pub other: Option<Row>,
    /// Of pairs.
    pub latency: Option<LatencyReport>,
    /// What was lost.
    pub lost: Lost,
    /// What is wrong with the traces, one line each.
    pub warnings: Vec<String>,
}

/// A group.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Its name.
    pub key: Key,
    /// Events, values, or pairs.
    pub count: u64,
    /// They in a second of the trace, or of the interval.
    pub events_per_s: Option<f64>,
    /// Bytes of the records; of pairs, those of the begins.
    pub bytes: u64,
    /// What is measured.
    pub values: Option<Box<Distribution>>,
    #[serde(skip)]
    pub(crate) slices: Option<Box<Slices>>,
}

/// What is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rest {
    /// Groups.
    pub groups: u64,
    /// Their events, values or pairs.
    pub count: u64,
}

/// What is lost.
#[derive(Debug, Serialize)]
pub struct Lost {
    /// Events that are known to be lost, of all classes.
    pub events: u64,
    /// Of these, those of which nobody knows when they were lost.
    pub unplaced: u64,
    /// What can have lost more events, which nobody has counted.
    pub possible: Vec<Uncounted>,
    /// Where.
    #[serde(flatten)]
    pub places: LossPlaces,
}

/// What is told of pairs, besides their distribution.
#[derive(Debug, Serialize)]
pub struct LatencyReport {
    /// Begins that no end came for.
    pub unpaired_begins: u64,
    /// Ends that had no begin.
    pub unpaired_ends: u64,
    /// Pairs that are not believed: events can have been lost between the two.
    pub pairs_across_losses: u64,
    /// Events that lack a field of the key, or do not say which thread they are of.
    pub events_without_key: u64,
    /// Begins that came while too many others were open.
    pub begins_not_followed: u64,
    /// The pairs that took longest, the longest first.
    pub slowest: Vec<SlowPair>,
}

/// A pair that took long.
#[derive(Debug, Serialize)]
pub struct SlowPair {
    /// From begin to end.
    pub latency_ns: u64,
    /// When it began, since the epoch.
    pub begin_ns: i64,
    /// The program whose event the begin is.
    pub process: String,
    /// The thread of the begin.
    pub tid: Option<u32>,
    /// What the two have in common, if that is not the thread.
    pub key: Vec<KeyValue>,
}

fn per_second(count: u64, duration_ns: u64) -> Option<f64> {
    (duration_ns > 0).then(|| count as f64 * 1e9 / duration_ns as f64)
}

/// The groups with their names, in their order. Groups with one name are one.
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
    let row = |(key, group): (Vec<KeyValue>, Group)| Row {
        key: Key(names.iter().cloned().zip(key).collect()),
        count: group.count,
        events_per_s: per_second(group.count, duration_ns),
        bytes: group.bytes,
        values: group.values,
        slices: group.slices,
    };
    let mut rows: Vec<Row> = by_name.into_iter().map(row).collect();
    // Stable: those of one count stay in the order of their names.
    match query.interval_ns {
        None => rows.sort_by_key(|row| Reverse(row.count)),
        Some(_) => rows.sort_by_key(|row| (row.key.0.first().map(|(_, begin)| begin.clone()), Reverse(row.count))),
    }
    rows
}

/// Intervals without events are told too, if these are all that there is to tell.
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
    unpaired: Unpaired,
    slowest: Vec<Slow>,
    processes: &Processes,
    key: impl Fn(&[u8]) -> Vec<KeyValue>,
) -> LatencyReport {
    let pair = |slow: Slow| SlowPair {
        latency_ns: slow.latency_ns,
        begin_ns: slow.begin_ns.0,
        process: processes.label(slow.process, false),
        tid: slow.tid,
        key: key(&slow.key),
    };
    LatencyReport {
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
    let other = other.map(|group| Row {
        key: Key::default(),
        count: group.count,
        events_per_s: per_second(group.count, duration_ns),
        bytes: group.bytes,
        values: group.values.clone(),
        slices: None,
    });
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
        warnings: Vec::new(),
    }
}
