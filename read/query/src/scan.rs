//! Tables of events: one for each class, and one of all classes.
//!
//! ```text
//!   scan(projection, filters) ─▶ push ─▶ Request ─▶ Layout                        which members of which classes are decoded
//!   execute(partition)        ─▶ Parts (shared by all partitions) ─▶ Batches ─▶ DataFusion
//! ```
//! A partition takes the next part of a stream (1 MiB) that no other partition has taken, so that all CPUs are busy
//! with one long stream as well as with many short ones. Rows therefore have no order; a query that needs one says
//! `order by`.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use dormouse_columns::{Batches, Extra, Layout, Request};
use dormouse_ctf::TraceRef;
use dormouse_ctf::stream::ChosenOf;
use dormouse_reader::Parts;
use std::sync::atomic::Ordering;

use crate::leaf::{Leaf, Work};
use crate::push::{self, Pushed};
use crate::traces::Traces;

/// Minimum number of bytes to read per partition.
const PARTITION_BYTES: u64 = 1 << 20;

/// Source of a table's column.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// A column of the layout.
    Column(String),
    Process,
    Thread,
    Json,
}

/// A table of events of one class or all.
#[derive(Debug)]
pub(crate) struct EventsTable {
    traces: &'static Traces,
    /// Name of the class. `None`: all classes.
    class: Option<String>,
    sources: Vec<Source>,
    schema: SchemaRef,
}

impl EventsTable {
    /// Returns the table of one class, with a column for each field.
    pub(crate) fn of_class(traces: &'static Traces, class: &str) -> Result<EventsTable> {
        let request = Request { events: vec![class.into()], ..Request::default() };
        let layout = layout(traces, &request)?;
        let (mut fields, mut sources) = (Vec::new(), Vec::new());
        let schema = layout.schema();
        let own = [("process", Source::Process), ("thread", Source::Thread)];
        let own: Vec<_> = own.into_iter().filter(|(name, _)| schema.column_with_name(name).is_none()).collect();
        // The column is left out: the class is the table's name.
        for field in layout.schema().fields().iter().filter(|field| field.name() != "event") {
            fields.push(field.as_ref().clone());
            sources.push(Source::Column(field.name().clone()));
            for (name, source) in own.iter().filter(|_| field.name() == "tid") {
                fields.push(Field::new(*name, datafusion::arrow::datatypes::DataType::Utf8, true));
                sources.push(source.clone());
            }
        }
        Ok(EventsTable { traces, class: Some(class.into()), sources, schema: Arc::new(Schema::new(fields)) })
    }

    /// Returns the table of all classes, with all fields as JSON.
    pub(crate) fn of_all(traces: &'static Traces) -> Result<EventsTable> {
        let columns = ["time", "event", "pid", "tid", "cpu"].map(String::from);
        let extras = vec![Extra::Process, Extra::Thread, Extra::Json];
        let request = Request { columns: Some(columns.to_vec()), extras, is_without_state: true, ..Request::default() };
        let layout = layout(traces, &request)?;
        let sources = [
            Source::Column("time".into()),
            Source::Column("event".into()),
            Source::Process,
            Source::Column("pid".into()),
            Source::Column("tid".into()),
            Source::Thread,
            Source::Column("cpu".into()),
            Source::Json,
        ];
        let schema = layout.schema();
        let field = |name: &str| schema.field_with_name(name).cloned();
        let fields = [
            field("time")?,
            field("event")?.with_name("class"),
            field("process")?,
            field("pid")?,
            field("tid")?,
            field("thread")?,
            field("cpu")?,
            field("fields")?,
        ];
        let schema = Arc::new(Schema::new(fields.to_vec()));
        Ok(EventsTable { traces, class: None, sources: sources.to_vec(), schema })
    }

    fn pushed(&self, filter: &Expr) -> Option<Pushed> {
        push::pushed(filter, self.class.as_deref(), self.traces)
    }
}

fn layout(traces: &'static Traces, request: &Request) -> Result<Layout<'static>> {
    let all: Vec<TraceRef<'static>> = traces.files.traces().collect();
    Layout::new(&all, request).map_err(|error| DataFusionError::Plan(error.to_string()))
}

#[async_trait]
impl TableProvider for EventsTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        // A pushed condition is evaluated exactly.
        let of = |filter: &&Expr| match self.pushed(filter) {
            Some(_) => TableProviderFilterPushDown::Exact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(of).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.sources.len()).collect();
        let projection = projection.unwrap_or(&all);
        let mut request = Request { is_without_state: true, ..Request::default() };
        request.events.extend(self.class.clone());
        let mut columns = Vec::new();
        for index in projection {
            match &self.sources[*index] {
                Source::Column(name) => columns.push(name.clone()),
                Source::Process => request.extras.push(Extra::Process),
                Source::Thread => request.extras.push(Extra::Thread),
                Source::Json => request.extras.push(Extra::Json),
            }
        }
        // Extras follow the columns.
        let mut next = (0, columns.len());
        let order = projection.iter().map(|index| {
            let next = if matches!(self.sources[*index], Source::Column(_)) { &mut next.0 } else { &mut next.1 };
            *next += 1;
            *next - 1
        });
        let order: Vec<usize> = order.collect();
        request.columns = Some(columns);
        let mut is_empty = false;
        for filter in filters {
            match self.pushed(filter) {
                Some(Pushed::Classes) => {
                    let classes = push::classes(filter, &self.schema, &request.events, self.traces, state)?;
                    is_empty |= classes.is_empty();
                    request.events = classes;
                }
                Some(Pushed::Since(ns)) => request.since_ns = request.since_ns.max(Some(ns)),
                Some(Pushed::Until(ns)) => {
                    request.until_ns = Some(request.until_ns.map_or(ns, |until| until.min(ns)));
                }
                Some(Pushed::Condition(text)) => request.conditions.push(text),
                None => {}
            }
        }
        let schema = Arc::new(self.schema.project(projection)?);
        let about = format!(
            "{}, columns=[{}], since={:?}, until={:?}, where={:?}",
            if request.events.is_empty() { "all classes".into() } else { request.events.join(", ") },
            schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", "),
            request.since_ns,
            request.until_ns,
            request.conditions
        );
        let streams: Vec<usize> = match is_empty {
            true => Vec::new(),
            false => (0..self.traces.files.stream_count()).filter(|index| !self.is_left_out(*index)).collect(),
        };
        let layout = layout(self.traces, &request)?;
        let classes = request.conditions.is_empty().then_some(request.events);
        // Only in the table of all classes: in others, `class` is a field.
        let class_column = schema.index_of("class").ok().filter(|_| self.class.is_none());
        let size_bytes: u64 = streams.iter().map(|index| self.traces.files.stream_size_bytes(*index)).sum();
        let partitions = (size_bytes / PARTITION_BYTES).clamp(1, state.config().target_partitions() as u64) as usize;
        let is_named = request.extras.iter().any(|extra| *extra != Extra::Json);
        let scan = Scan {
            about: about.clone(),
            traces: self.traces,
            layout,
            streams,
            order,
            schema: Arc::clone(&schema),
            size_bytes,
            is_named,
            limit: limit.unwrap_or(usize::MAX),
            classes,
            class_column,
            runs: Runs::default(),
        };
        Ok(Arc::new(Leaf::new(format!("TraceExec: {about}"), schema, partitions, Arc::new(Rows(Arc::new(scan))))))
    }
}

impl EventsTable {
    /// Whether a stream has no event of the table. The state stream has none of a program's classes.
    fn is_left_out(&self, stream: usize) -> bool {
        let is_of_session = self.class.as_deref().is_some_and(|class| push::is_state(self.traces, class));
        self.traces.files.is_state(stream) && !is_of_session
    }
}

/// A scan of a table.
pub(crate) struct Scan {
    /// Description for plans.
    pub about: String,
    pub traces: &'static Traces,
    pub layout: Layout<'static>,
    pub streams: Vec<usize>,
    /// Index in the layout of each column.
    order: Vec<usize>,
    schema: SchemaRef,
    size_bytes: u64,
    is_named: bool,
    pub limit: usize,
    /// Classes whose events are returned; if empty, all. `None`: conditions on fields decide too.
    pub classes: Option<Vec<String>>,
    /// Index of the column `class` among the returned columns.
    pub class_column: Option<usize>,
    runs: Runs,
}

/// Remaining parts, by run: a plan can be run several times.
type Runs = Mutex<Vec<Arc<Mutex<Parts<'static>>>>>;

impl Scan {
    pub(crate) fn parts(&self, run: usize) -> Arc<Mutex<Parts<'static>>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        while runs.len() <= run {
            self.traces.all_bytes.fetch_add(self.size_bytes, Ordering::Relaxed);
            let parts = self.traces.files.parts(self.streams.clone(), self.layout.times());
            runs.push(Arc::new(Mutex::new(parts)));
        }
        Arc::clone(&runs[run])
    }

    pub(crate) fn reordered(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns: Vec<ArrayRef> = self.order.iter().map(|at| Arc::clone(batch.column(*at))).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

/// Work that returns the events of a scan.
pub(crate) struct Rows(pub Arc<Scan>);

impl Work for Rows {
    fn run(&self, _: usize, run: usize, give: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let scan = &self.0;
        let parts = scan.parts(run);
        let mut rows = 0;
        let mut writers = scan.is_named.then(|| scan.traces.files.state().writers);
        loop {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(part) = part else { return Ok(()) };
            let size_bytes = part.reader.rest_bytes();
            let streams = [ChosenOf::new(part.reader, scan.layout.choice(part.trace))];
            let mut batches = Batches::of(&scan.layout, streams);
            if let Some(known) = writers.take() {
                batches = batches.with_writers(known);
            }
            for batch in &mut batches {
                let batch = batch?;
                rows += batch.num_rows();
                if !give(scan.reordered(&batch)?) || rows >= scan.limit {
                    return Ok(());
                }
            }
            scan.traces.note(batches.damage());
            writers = batches.into_writers().filter(|_| scan.is_named);
            scan.traces.read_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        }
    }
}
