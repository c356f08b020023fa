//! Tables about the whole trace: `processes`, `losses` and `totals`, as in `dormouse stats`; and `classes`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use dormouse_columns::classes;
use dormouse_store::Unpaired;
use dormouse_store::facts::{Columns, batch, losses, processes, texts, totals};

use crate::traces::Traces;

/// Function that makes the columns. Without traces, they are empty.
pub(crate) type Make = fn(Option<&'static Traces>) -> Columns;

/// A table that is computed from the whole trace when it is scanned.
#[derive(Debug)]
pub(crate) struct Facts {
    traces: &'static Traces,
    make: Make,
}

/// The tables: name, description, columns.
pub(crate) const TABLES: [(&str, &str, Make); 4] = [
    ("classes", "a row for each event class: its name and its columns", of_classes),
    ("losses", "a row for each loss of events: how many, when, of which class, why", |traces| {
        losses(traces.map(Traces::stats), &Unpaired::default())
    }),
    ("processes", "a row for each process: pid, name, program, events", |traces| processes(traces.map(Traces::stats))),
    ("totals", "one row: events, losses, bytes, time span", |traces| totals(traces.map(Traces::stats))),
];

impl Facts {
    pub(crate) fn new(traces: &'static Traces, make: Make) -> Facts {
        Facts { traces, make }
    }
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
