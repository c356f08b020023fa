//! Statistics of a whole trace as tables, with the counts that `dormouse stats` prints.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array, UInt64Array,
};
use arrow_schema::ArrowError;
use dormouse_ctf::Stats;

use crate::manifest::Unpaired;

/// Columns of a table.
pub type Columns = Vec<(&'static str, ArrayRef)>;

/// Returns the table of these columns.
///
/// # Errors
/// The columns differ in length.
pub fn batch(columns: Columns) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
}

/// Returns a column of texts.
pub fn texts(texts: Vec<Option<String>>) -> ArrayRef {
    Arc::new(StringArray::from(texts))
}

fn numbers(numbers: Vec<Option<u64>>) -> ArrayRef {
    Arc::new(UInt64Array::from(numbers))
}

fn times(times: Vec<Option<i64>>) -> ArrayRef {
    Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"))
}

/// Returns the table `processes`: a row for each process.
pub fn processes(stats: Option<&Stats>) -> Columns {
    let all = stats.map(|stats| stats.processes.as_slice()).unwrap_or_default();
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    vec![
        ("pid", Arc::new(UInt32Array::from(all.iter().map(|one| one.vpid).collect::<Vec<_>>()))),
        ("name", texts(all.iter().map(|one| text(&one.name)).collect())),
        ("program", texts(all.iter().map(|one| text(&one.program)).collect())),
        ("events", numbers(all.iter().map(|one| one.count).collect())),
    ]
}

/// A row of the table `losses`: kind, name, stream, begin and end time, events and packets.
type Loss = (&'static str, Option<String>, Option<String>, [Option<i64>; 2], [Option<u64>; 2]);

/// Returns the table `losses`: lost events and damage of the trace, and counts of events and pairs that are not in the
/// table `pairs`.
pub fn losses(stats: Option<&Stats>, unpaired: &Unpaired) -> Columns {
    let mut rows: Vec<Loss> = Vec::new();
    if let Some(stats) = stats {
        rows.push(("total", None, None, [None; 2], [Some(stats.events_lost), None]));
        for lost in &stats.lost_by_class {
            rows.push(("class", Some(lost.name.clone()), None, [None; 2], [Some(lost.count), None]));
        }
        for place in &stats.loss_places.places {
            let counts = [Some(place.events), Some(place.packets)];
            rows.push(("place", None, Some(place.stream.clone()), [place.begin_ns, place.end_ns], counts));
        }
        if stats.loss_places.more > 0 {
            rows.push(("places not listed", None, None, [None; 2], [Some(stats.loss_places.more), None]));
        }
        for cause in &stats.loss_possible {
            rows.push(("possible", Some(cause.cause.clone()), None, [None; 2], [None; 2]));
        }
        for line in &stats.warnings {
            rows.push(("damage", Some(line.clone()), None, [None; 2], [None; 2]));
        }
    }
    for (what, count) in unpaired.told() {
        rows.push(("unpaired", Some(what.into()), None, [None; 2], [Some(count), None]));
    }
    vec![
        ("kind", texts(rows.iter().map(|row| Some(row.0.into())).collect())),
        ("name", texts(rows.iter().map(|row| row.1.clone()).collect())),
        ("stream", texts(rows.iter().map(|row| row.2.clone()).collect())),
        ("begin_time", times(rows.iter().map(|row| row.3[0]).collect())),
        ("end_time", times(rows.iter().map(|row| row.3[1]).collect())),
        ("events", numbers(rows.iter().map(|row| row.4[0]).collect())),
        ("packets", numbers(rows.iter().map(|row| row.4[1]).collect())),
    ]
}

/// Returns the table `totals`: one row with events, losses, bytes and time span.
pub fn totals(stats: Option<&Stats>) -> Columns {
    let stats: Vec<_> = stats.into_iter().collect();
    let number = |of: fn(&Stats) -> Option<u64>| numbers(stats.iter().map(|stats| of(stats)).collect());
    vec![
        ("events", number(|stats| Some(stats.events))),
        ("events_lost", number(|stats| Some(stats.events_lost))),
        ("packets", number(|stats| Some(stats.packets))),
        ("bytes", number(|stats| Some(stats.bytes))),
        ("threads", number(|stats| stats.threads)),
        ("begin_time", times(stats.iter().map(|stats| stats.span.as_ref().map(|span| span.begin_ns)).collect())),
        ("end_time", times(stats.iter().map(|stats| stats.span.as_ref().map(|span| span.end_ns)).collect())),
        (
            "duration_ns",
            Arc::new(Int64Array::from(
                stats.iter().map(|stats| stats.span.as_ref().map(|span| span.duration_ns as i64)).collect::<Vec<_>>(),
            )),
        ),
        ("is_closed", Arc::new(BooleanArray::from(stats.iter().map(|stats| stats.is_closed).collect::<Vec<_>>()))),
    ]
}
