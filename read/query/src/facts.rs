//! What the whole trace says of itself, as tables: `processes`, `losses`, `totals`, as `dormouse stats` tells them; and `classes`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array, UInt64Array,
};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use dormouse_columns::classes;

use crate::traces::Traces;

/// Columns of a table.
pub(crate) type Columns = Vec<(&'static str, ArrayRef)>;

/// Makes the columns; without traces empty ones.
pub(crate) type Make = fn(Option<&'static Traces>) -> Columns;

/// A table that is made of the whole trace when it is asked for.
#[derive(Debug)]
pub(crate) struct Facts {
    traces: &'static Traces,
    make: Make,
}

/// The tables by name, with what they hold.
pub(crate) const TABLES: [(&str, &str, Make); 4] = [
    ("classes", "a row for each event class: its name and its columns", of_classes),
    ("losses", "what is not in the trace: how many events, when, of which class, why", of_losses),
    ("processes", "a row for each process: pid, name, program, events", of_processes),
    ("totals", "one row: events, losses, bytes, time span", of_totals),
];

impl Facts {
    pub(crate) fn new(traces: &'static Traces, make: Make) -> Facts {
        Facts { traces, make }
    }
}

fn batch(columns: Columns) -> Result<RecordBatch> {
    Ok(RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))?)
}

#[async_trait]
impl TableProvider for Facts {
    fn schema(&self) -> SchemaRef {
        batch((self.make)(None))
            .map_or_else(|_| Arc::new(datafusion::arrow::datatypes::Schema::empty()), |batch| batch.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (traces, make) = (self.traces, self.make);
        let made = tokio::task::spawn_blocking(move || make(Some(traces))).await;
        let batch = batch(made.map_err(|error| DataFusionError::External(error.into()))?)?;
        MemTable::try_new(batch.schema(), vec![vec![batch]])?.scan(state, projection, filters, limit).await
    }
}

fn texts(texts: Vec<Option<String>>) -> ArrayRef {
    Arc::new(StringArray::from(texts))
}

fn numbers(numbers: Vec<Option<u64>>) -> ArrayRef {
    Arc::new(UInt64Array::from(numbers))
}

fn times(times: Vec<Option<i64>>) -> ArrayRef {
    Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"))
}

fn of_classes(traces: Option<&'static Traces>) -> Columns {
    let all = traces.map(|traces| classes(traces.files.traces())).unwrap_or_default();
    let columns = all.iter().map(|class| {
        let fields: Vec<String> =
            class.fields.iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
        Some(fields.join(", "))
    });
    let columns = texts(columns.collect());
    vec![("class", texts(all.into_iter().map(|class| Some(class.name)).collect())), ("fields", columns)]
}

fn of_processes(traces: Option<&'static Traces>) -> Columns {
    let all = traces.map(|traces| traces.stats().processes.as_slice()).unwrap_or_default();
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    vec![
        ("pid", Arc::new(UInt32Array::from(all.iter().map(|one| one.vpid).collect::<Vec<_>>()))),
        ("name", texts(all.iter().map(|one| text(&one.name)).collect())),
        ("program", texts(all.iter().map(|one| text(&one.program)).collect())),
        ("events", numbers(all.iter().map(|one| one.count).collect())),
    ]
}

/// What is lost: a kind, a name, a stream, times, events and packets.
type Loss = (&'static str, Option<String>, Option<String>, [Option<i64>; 2], [Option<u64>; 2]);

fn of_losses(traces: Option<&'static Traces>) -> Columns {
    let mut rows: Vec<Loss> = Vec::new();
    if let Some(stats) = traces.map(Traces::stats) {
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

fn of_totals(traces: Option<&'static Traces>) -> Columns {
    let stats: Vec<_> = traces.map(Traces::stats).into_iter().collect();
    let number = |of: fn(&dormouse_ctf::Stats) -> Option<u64>| numbers(stats.iter().map(|stats| of(stats)).collect());
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
