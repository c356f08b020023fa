//! The operator that finds the pairs of a store.
//!
//! ```text
//!   partition of the plan ─▶ its hosts, one after another:
//!     scan of a class ─▶ events in the order of hosts and times ─┐
//!     scan of a class ─▶ …                                       ├─▶ the earliest event of the host ─▶ open begins, by key ─▶ pairs
//!     losses ────────────────────────────────────────────────────┘
//! ```
//! Rows that are sorted in the files are not sorted again, and only rows of pairs are copied. Each partition reads the
//! partition with the same number of every child, as Ballista's schedulers assume.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::TimestampNanosecondType;
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, StringArray, TimestampNanosecondArray};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalExpr, PhysicalSortExpr,
};
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    SendableRecordBatchStream,
};
use dormouse_store::pairs::{Events, Finder, KeyColumn, KeyKind, Of};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

/// Number of batches that may wait for the receiver.
const AHEAD_COUNT: usize = 2;
/// Number of pairs after which a batch is emitted. It can have a few more.
const ROWS: usize = 8192;

/// Specification of the operator, except for what its children read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// Name of the pairs.
    pub name: String,
    /// Indices of the output columns in [`schema`].
    pub columns: Vec<usize>,
    pub keys: Vec<(String, KeyKind)>,
    /// Role of each child. One more child can follow, which has losses.
    pub inputs: Vec<Input>,
}

/// Role of one class's events.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Input {
    pub begins: bool,
    pub ends: bool,
}

/// Returns the columns of pairs, including their host.
pub(crate) fn schema() -> SchemaRef {
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    let host = Arc::new(Field::new("host", DataType::Utf8, true));
    let own = dormouse_store::pairs::schema();
    Arc::new(Schema::new(own.fields().iter().cloned().chain([host]).collect::<Vec<_>>()))
}

/// Returns the order by host and time, given the indices of these columns.
pub(crate) fn by_host_and_time(host: usize, time: usize) -> LexOrdering {
    let options = SortOptions { descending: false, nulls_first: false };
    let one = |name, index| PhysicalSortExpr::new(Arc::new(Column::new(name, index)), options);
    LexOrdering::from([one("host", host), one("time", time)])
}

/// The operator.
#[derive(Debug)]
pub(crate) struct PairExec {
    pub spec: Arc<Spec>,
    children: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

fn internal(what: &str) -> DataFusionError {
    DataFusionError::Internal(format!("pairs of a store: {what}"))
}

impl PairExec {
    /// Creates the operator.
    ///
    /// # Errors
    /// The children do not match the specification.
    pub(crate) fn new(spec: Arc<Spec>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<PairExec> {
        let count = |child: &Arc<dyn ExecutionPlan>| child.output_partitioning().partition_count();
        let partitions = children.first().map_or(0, count);
        let is_one = (0..=1).contains(&children.len().wrapping_sub(spec.inputs.len()));
        if !is_one || children.iter().any(|child| count(child) != partitions) {
            return Err(internal("children are not as they were planned"));
        }
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::new(schema().project(&spec.columns)?)),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(PairExec { spec, children, properties: Arc::new(properties) })
    }
}

impl DisplayAs for PairExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.spec.keys.iter().map(|(name, _)| name.as_str()).collect();
        write!(f, "PairExec: {}, key=[{}]", self.spec.name, keys.join(", "))
    }
}

impl ExecutionPlan for PairExec {
    fn name(&self) -> &str {
        "PairExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.children.iter().collect()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children.len()]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let scans = self.children.iter().take(self.spec.inputs.len());
        let in_order = |child: &Arc<dyn ExecutionPlan>| {
            let index = |name| child.schema().index_of(name).ok();
            Some(OrderingRequirements::from(by_host_and_time(index("host")?, index("time")?)))
        };
        let losses = self.children.iter().skip(self.spec.inputs.len());
        scans.map(in_order).chain(losses.map(|_| None)).collect()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(PairExec::new(Arc::clone(&self.spec), children)?))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut builder = RecordBatchReceiverStream::builder(self.schema(), AHEAD_COUNT);
        let memory = MemoryConsumer::new("events that begin something").register(context.memory_pool());
        let read = |child: &Arc<dyn ExecutionPlan>| child.execute(partition, Arc::clone(&context));
        let streams = self.children.iter().map(read).collect::<Result<Vec<_>>>()?;
        let (sender, spec) = (builder.tx(), Arc::clone(&self.spec));
        builder.spawn(async move {
            let mut found = Merge::new(&spec, streams).await?;
            while let Some(batch) = found.next(&memory).await? {
                // The receiver wants no more.
                if sender.send(Ok(batch)).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
        Ok(builder.build())
    }
}

/// Events of one input, batch by batch.
struct Run {
    input: Input,
    stream: SendableRecordBatchStream,
    events: Option<Events>,
    hosts: Option<StringArray>,
    row: usize,
    /// End of the rows of the current host in this batch, as far as known.
    end: usize,
}

/// Name of a host. The flag sorts events without a host last.
type Host = (bool, Option<String>);

impl Run {
    /// Returns the time of the next event of the current host, if it is in the current batch.
    #[inline]
    fn time_ns(&mut self) -> Option<i64> {
        let events = self.events.as_ref()?;
        while self.row < self.end {
            // Events without a time are in no pair.
            if let Some(ns) = events.time_ns(self.row) {
                return Some(ns);
            }
            self.row += 1;
        }
        None
    }

    /// Returns the host of the next event, and reads the next batch if needed. Returns `None` at the end.
    async fn host(&mut self, keys: &[(String, KeyKind)]) -> Result<Option<Host>> {
        loop {
            if let Some(hosts) = self.hosts.as_ref().filter(|hosts| self.row < hosts.len()) {
                let value = |row: usize| hosts.is_valid(row).then(|| hosts.value(row));
                let host = value(self.row);
                let last = hosts.len() - 1;
                self.end = match value(last) == host {
                    true => hosts.len(),
                    false => (self.row..last).find(|row| value(*row) != host).unwrap_or(last),
                };
                return Ok(Some((host.is_none(), host.map(String::from))));
            }
            let Some(batch) = self.stream.next().await else { return Ok(None) };
            let batch = batch?;
            let column = |(name, kind): &(String, KeyKind)| match batch.column_by_name(name) {
                Some(array) => KeyColumn::of(name, Some(array), Some(*kind)),
                None => Ok(KeyColumn::none(batch.num_rows(), *kind)),
            };
            let keys = keys.iter().map(column).collect::<Result<_, _>>().map_err(wrong)?;
            self.hosts = Some(named(&batch, "host")?.as_string::<i32>().clone());
            (self.events, self.row, self.end) = (Some(Events::of(&batch, keys).map_err(wrong)?), 0, 0);
        }
    }

    /// Returns the same as [`Run::time_ns`], but reads further batches if needed.
    async fn wait(&mut self, host: &Host, keys: &[(String, KeyKind)]) -> Result<Option<i64>> {
        loop {
            if let Some(ns) = self.time_ns() {
                return Ok(Some(ns));
            }
            if self.host(keys).await?.as_ref() != Some(host) {
                return Ok(None);
            }
        }
    }
}

fn named<'b>(batch: &'b RecordBatch, name: &str) -> Result<&'b ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| internal(&format!("there is no column {name}")))
}

fn wrong(error: dormouse_store::Error) -> DataFusionError {
    DataFusionError::Execution(error.0)
}

/// Order of an event: its time, begins before ends, index of its run.
type Turn = Reverse<(i64, bool, usize)>;
/// Begin and end of losses, in nanoseconds since the epoch, by host.
type Losses = HashMap<Option<String>, Vec<(i64, Option<i64>)>>;

/// Finds the pairs of a partition.
struct Merge<'a> {
    spec: &'a Spec,
    runs: Vec<Run>,
    losses: Losses,
    /// Host whose pairs are being found.
    host: Host,
    next: BinaryHeap<Turn>,
    finder: Finder,
}

impl<'a> Merge<'a> {
    async fn new(spec: &'a Spec, mut streams: Vec<SendableRecordBatchStream>) -> Result<Merge<'a>> {
        let mut losses = Losses::new();
        for mut stream in streams.split_off(spec.inputs.len()) {
            while let Some(batch) = stream.next().await {
                note(&mut losses, &batch?)?;
            }
        }
        let run = |(input, stream): (&Input, _)| {
            let stream = spawn_buffered(stream, AHEAD_COUNT);
            Run { input: *input, stream, events: None, hosts: None, row: 0, end: 0 }
        };
        let runs = spec.inputs.iter().zip(streams).map(run).collect();
        let finder = Finder::new(schema(), &spec.columns).map_err(wrong)?;
        Ok(Merge { spec, runs, losses, host: Host::default(), next: BinaryHeap::new(), finder })
    }

    /// Moves on to the first host of all runs. Returns false at the end.
    async fn next_host(&mut self) -> Result<bool> {
        let mut first: Option<Host> = None;
        for run in &mut self.runs {
            let host = run.host(&self.spec.keys).await?;
            first = [first, host].into_iter().flatten().min();
        }
        let Some(host) = first else { return Ok(false) };
        self.finder.restart();
        for (begin, end) in self.losses.remove(&host.1).unwrap_or_default() {
            self.finder.lost(begin, end);
        }
        for (at, run) in self.runs.iter_mut().enumerate() {
            if run.host(&self.spec.keys).await?.as_ref() == Some(&host)
                && let Some(ns) = run.wait(&host, &self.spec.keys).await?
            {
                self.next.push(Reverse((ns, !run.input.begins, at)));
            }
        }
        self.host = host;
        Ok(true)
    }

    /// Returns the next pairs, or `None` at the end.
    async fn next(&mut self, memory: &MemoryReservation) -> Result<Option<RecordBatch>> {
        while self.finder.count() < ROWS {
            let Some(Reverse((mut ns, is_end, at))) = self.next.pop() else {
                if self.next_host().await? {
                    continue;
                }
                break;
            };
            let of = Of { rule: 0, name: &self.spec.name, host: self.host.1.as_deref() };
            let run = &mut self.runs[at];
            let others = self.next.peek().map(|Reverse(turn)| *turn);
            let next = loop {
                if let Some(events) = &run.events {
                    if run.input.ends {
                        self.finder.end(&of, events, run.row, ns);
                    }
                    if run.input.begins {
                        self.finder.begin(of.rule, events, run.row, ns);
                    }
                }
                run.row += 1;
                match run.time_ns() {
                    Some(next) if others.is_none_or(|turn| (next, is_end, at) < turn) && self.finder.count() < ROWS => {
                        ns = next;
                    }
                    Some(next) => break Some(next),
                    None => {
                        memory.try_resize(self.finder.open_bytes())?;
                        break run.wait(&self.host, &self.spec.keys).await?;
                    }
                }
            };
            if let Some(ns) = next {
                self.next.push(Reverse((ns, is_end, at)));
            }
        }
        match self.finder.count() {
            0 => Ok(None),
            _ => self.finder.take().map(Some).map_err(wrong),
        }
    }
}

/// Adds the losses in a batch.
fn note(losses: &mut Losses, batch: &RecordBatch) -> Result<()> {
    let [kinds, hosts] = [named(batch, "kind")?, named(batch, "host")?].map(|array| array.as_string::<i32>());
    let [begins, ends] = [named(batch, "begin_time")?, named(batch, "end_time")?]
        .map(|array| array.as_primitive::<TimestampNanosecondType>());
    let time = |times: &TimestampNanosecondArray, row: usize| times.is_valid(row).then(|| times.value(row));
    for row in (0..batch.num_rows()).filter(|row| kinds.is_valid(*row) && kinds.value(*row) == "place") {
        let (begin, end) = (time(begins, row), time(ends, row));
        if let Some(begin) = begin.or(end) {
            let host = hosts.is_valid(row).then(|| hosts.value(row).to_string());
            losses.entry(host).or_default().push((begin, end));
        }
    }
    Ok(())
}
