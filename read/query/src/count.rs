//! Counting without rows: `count(*)`, by class and by interval of time, where nothing else is asked.
//!
//! ```text
//!   before                                          behind the rule
//!   AggregateExec: Final                            AggregateExec: Final
//!     AggregateExec: Partial, gby=[class, time_…]     TraceExec: counts             the reader counts records by their headers
//!       TraceExec                                 or  CountExec                     a batch of a file is of one class, and its times are in order
//!                                                       DataSourceExec
//! ```
//! Both give what the partial aggregation would have given: groups with their counts, of which some can come more than once.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::TimestampNanosecondType;
use datafusion::arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::datasource::physical_plan::{FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, SendableRecordBatchStream,
};
use dormouse_columns::Damage;
use dormouse_ctf::IntervalCounts;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::functions::bucket_ns;
use crate::leaf::{Leaf, Work, undivided};
use crate::scan::{Rows, Scan};

/// Groups that are given at once, or some more.
const GROUPS: usize = 64 << 10;
const AHEAD_COUNT: usize = 2;

/// What groups are told apart by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum By {
    /// A column of texts, of which the rows of a batch have the same.
    Part { column: usize, is_dictionary: bool },
    /// The interval of a time, which is a column.
    Interval { column: usize, length_ns: i64 },
}

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The groups' columns with their names.
    by: Vec<(By, String)>,
    /// The name of the count.
    count: String,
}

impl Spec {
    /// What an aggregation counts; `None`: something else. `is_part`: whether the rows of a batch are alike in a column.
    fn of(aggregate: &AggregateExec, is_part: impl Fn(usize) -> bool) -> Option<Spec> {
        let [count] = aggregate.aggr_expr() else { return None };
        let is_of_rows = count.fun().name() == "count"
            && !count.is_distinct()
            && aggregate.filter_expr().iter().all(Option::is_none)
            && count.expressions().iter().all(|of| literal(of).is_some_and(|value| !value.is_null()));
        let groups = aggregate.group_expr();
        if !is_of_rows || groups.has_grouping_set() {
            return None;
        }
        let input = aggregate.input().schema();
        let one = |(expression, name): &(Arc<dyn PhysicalExpr>, String)| {
            let by = match expression.downcast_ref::<Column>().map(Column::index) {
                Some(column) => {
                    let is_dictionary = matches!(input.field(column).data_type(), DataType::Dictionary(..));
                    is_part(column).then_some(By::Part { column, is_dictionary })
                }
                None => interval(expression),
            };
            Some((by?, name.clone()))
        };
        let by = groups.expr().iter().map(one).collect::<Option<Vec<_>>>()?;
        let count = count.state_fields().ok()?.first()?.name().clone();
        let is_one = by.iter().filter(|(by, _)| matches!(by, By::Interval { .. })).count() <= 1;
        is_one.then_some(Spec { by, count })
    }

    /// Of the intervals.
    fn length_ns(&self) -> Option<i64> {
        self.by.iter().find_map(|(by, _)| if let By::Interval { length_ns, .. } = by { Some(*length_ns) } else { None })
    }

    fn schema(&self) -> SchemaRef {
        let field = |(by, name): &(By, String)| {
            let of = match by {
                By::Part { is_dictionary: true, .. } => {
                    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
                }
                By::Part { .. } => DataType::Utf8,
                By::Interval { .. } => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
            };
            Field::new(name, of, true)
        };
        let count = Field::new(&self.count, DataType::Int64, false);
        Arc::new(Schema::new(self.by.iter().map(field).chain([count]).collect::<Vec<_>>()))
    }

    /// Groups: the interval's begin, the texts, the count.
    fn batch<'c, T: IntoIterator<Item = Option<&'c str>>>(
        &self,
        groups: impl Iterator<Item = (Option<i64>, T, i64)>,
    ) -> Result<RecordBatch> {
        let parts = self.by.iter().filter(|(by, _)| matches!(by, By::Part { .. })).count();
        let (mut begins, mut counts) = (Vec::new(), Vec::new());
        let mut texts = vec![Vec::new(); parts];
        for (begin, of, count) in groups {
            begins.push(begin);
            counts.push(count);
            texts.iter_mut().zip(of).for_each(|(texts, text)| texts.push(text));
        }
        let schema = self.schema();
        let (mut texts, mut columns) = (texts.into_iter(), Vec::<ArrayRef>::new());
        for ((by, _), field) in self.by.iter().zip(schema.fields()) {
            columns.push(match by {
                By::Part { .. } => cast(&StringArray::from(texts.next().unwrap_or_default()), field.data_type())?,
                By::Interval { .. } => {
                    Arc::new(TimestampNanosecondArray::from(std::mem::take(&mut begins)).with_timezone("UTC"))
                }
            });
        }
        columns.push(Arc::new(Int64Array::from(counts)));
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.by.iter().map(|(_, name)| name.as_str());
        write!(f, "counts by [{}]", by.collect::<Vec<_>>().join(", "))
    }
}

fn literal(expression: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    expression.downcast_ref::<Literal>().map(Literal::value)
}

/// The interval whose begin an expression gives: `time_bucket('1s', time)`, `date_trunc('second', time)`.
fn interval(expression: &Arc<dyn PhysicalExpr>) -> Option<By> {
    let call = expression.downcast_ref::<ScalarFunctionExpr>()?;
    let [length, time] = call.args() else { return None };
    let (text, column) = (literal(length)?.try_as_str()??, time.downcast_ref::<Column>()?.index());
    let length_ns = match call.fun().name() {
        "time_bucket" => bucket_ns(text).ok()?,
        "date_trunc" => TRUNCATED.iter().find(|(name, _)| text.eq_ignore_ascii_case(name))?.1,
        _ => return None,
    };
    Some(By::Interval { column, length_ns })
}

/// What times are cut to, in nanoseconds, where it is the same in all years.
const TRUNCATED: [(&str, i64); 6] = [
    ("microsecond", 1_000),
    ("millisecond", 1_000_000),
    ("second", 1_000_000_000),
    ("minute", 60_000_000_000),
    ("hour", 3_600_000_000_000),
    ("day", 86_400_000_000_000),
];

/// Lets whoever reads count, where that is all.
#[derive(Debug)]
pub(crate) struct CountRule;

impl PhysicalOptimizerRule for CountRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_down(|plan| {
            Ok(match counted(&plan)? {
                Some(counted) => Transformed::yes(counted),
                None => Transformed::no(plan),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "count_where_it_is_read"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn counted(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(aggregate) = plan.downcast_ref::<AggregateExec>() else { return Ok(None) };
    let is_whole = matches!(aggregate.mode(), AggregateMode::Single | AggregateMode::SinglePartitioned);
    if (!is_whole && *aggregate.mode() != AggregateMode::Partial) || aggregate.limit_options().is_some() {
        return Ok(None);
    }
    let Some(by_reader) = of_reader(aggregate)? else { return Ok(None) };
    let groups = Arc::new(aggregate.group_expr().clone());
    let again = |mode, groups, input| {
        let count = aggregate.aggr_expr().to_vec();
        AggregateExec::try_new(mode, groups, count, vec![None], input, aggregate.input_schema())
    };
    let expected = again(AggregateMode::Partial, Arc::clone(&groups), Arc::clone(aggregate.input()))?.schema();
    let is_so = |(a, b): (&Arc<Field>, &Arc<Field>)| a.name() == b.name() && a.data_type() == b.data_type();
    let found = by_reader.schema();
    if found.fields().len() != expected.fields().len() || !found.fields().iter().zip(expected.fields()).all(is_so) {
        return Ok(None);
    }
    if !is_whole {
        return Ok(Some(by_reader));
    }
    Ok(Some(Arc::new(again(AggregateMode::Final, Arc::new(groups.as_final()), by_reader)?)))
}

/// What counts in place of an aggregation and what it reads.
fn of_reader(aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let input = undivided(aggregate.input());
    if let Some(leaf) = input.downcast_ref::<Leaf>() {
        let Some(Rows(scan)) = leaf.work() else { return Ok(None) };
        let spec = Spec::of(aggregate, |column| Some(column) == scan.class_column);
        let is_whole = scan.classes.is_some() && scan.limit == usize::MAX;
        let Some(spec) = spec.filter(|_| is_whole) else { return Ok(None) };
        let about = format!("TraceExec: {}, {spec}", scan.about);
        let (schema, scan) = (spec.schema(), Arc::clone(scan));
        return Ok(Some(Arc::new(Leaf::new(about, schema, leaf.partitions(), Arc::new(Counted { scan, spec })))));
    }
    // What directories are named by is the same in all rows of a file, and so of a batch.
    let source = input.downcast_ref::<DataSourceExec>();
    let Some((config, source)) = source.and_then(|source| source.downcast_to_file_source::<ParquetSource>()) else {
        return Ok(None);
    };
    let in_files = config.file_schema().fields().len();
    let is_part = |column: usize| match source.projection().map(|all| all.as_ref()[column].expr.downcast_ref()) {
        Some(of) => of.is_some_and(|of: &Column| of.index() >= in_files),
        None => column >= in_files,
    };
    Ok(Spec::of(aggregate, is_part).map(|spec| Arc::new(CountExec::new(Arc::new(spec), Arc::clone(input))) as _))
}

/// Gives how many events of a trace there are.
struct Counted {
    scan: Arc<Scan>,
    spec: Spec,
}

impl Work for Counted {
    fn run(&self, _: usize, run: usize, give: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let Counted { scan, spec } = self;
        let parts = scan.parts(run);
        let classes: HashSet<&str> = scan.classes.iter().flatten().map(String::as_str).collect();
        let mut counts = IntervalCounts::new(spec.length_ns());
        let mut taken = |counts: &mut IntervalCounts<'_>| {
            let groups = counts.take().map(|(begin, class, count)| (begin, class.full_name.as_str(), count));
            let chosen = groups.filter(|(_, class, _)| classes.is_empty() || classes.contains(class));
            let batch = spec.batch(chosen.map(|(begin, class, count)| (begin, [Some(class)], count as i64)))?;
            Ok::<_, DataFusionError>(give(batch))
        };
        loop {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(mut part) = part else {
                taken(&mut counts)?;
                return Ok(());
            };
            let (size_bytes, mut damage) = (part.reader.rest_bytes(), Damage::default());
            part.reader.count_intervals(&mut counts, |notice| damage.note(notice));
            scan.traces.note(&damage);
            scan.traces.read_bytes.fetch_add(size_bytes, Ordering::Relaxed);
            if counts.len() >= GROUPS && !taken(&mut counts)? {
                return Ok(());
            }
        }
    }
}

/// Counts rows of which those of a batch are of one class, and mostly of one interval with those before.
#[derive(Debug)]
pub(crate) struct CountExec {
    pub spec: Arc<Spec>,
    child: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl CountExec {
    pub(crate) fn new(spec: Arc<Spec>, child: Arc<dyn ExecutionPlan>) -> CountExec {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(spec.schema()),
            child.output_partitioning().clone(),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        CountExec { spec, child, properties: Arc::new(properties) }
    }
}

impl DisplayAs for CountExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CountExec: {}", self.spec)
    }
}

impl ExecutionPlan for CountExec {
    fn name(&self) -> &str {
        "CountExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.child]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(child), true) => Ok(Arc::new(CountExec::new(Arc::clone(&self.spec), child))),
            _ => Err(DataFusionError::Internal("CountExec has one child".into())),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut builder = RecordBatchReceiverStream::builder(self.schema(), AHEAD_COUNT);
        let mut stream = self.child.execute(partition, context)?;
        let (sender, spec) = (builder.tx(), Arc::clone(&self.spec));
        builder.spawn(async move {
            let mut counts = Counts::default();
            while let Some(batch) = stream.next().await {
                counts.add(&spec, &batch?)?;
                if counts.0.len() >= GROUPS && sender.send(counts.take(&spec)).await.is_err() {
                    return Ok(());
                }
            }
            // Nobody wants it, then.
            let _ = sender.send(counts.take(&spec)).await;
            Ok(())
        });
        Ok(builder.build())
    }
}

/// How many rows there are of the same texts and interval.
#[derive(Default)]
struct Counts(HashMap<(Vec<Option<String>>, Option<i64>), i64>);

impl Counts {
    fn take(&mut self, spec: &Spec) -> Result<RecordBatch> {
        let groups = std::mem::take(&mut self.0);
        spec.batch(groups.iter().map(|((texts, begin), count)| (*begin, texts.iter().map(Option::as_deref), *count)))
    }

    fn add(&mut self, spec: &Spec, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let (mut texts, mut times) = (Vec::new(), None);
        for (by, _) in &spec.by {
            match by {
                By::Part { column, .. } => {
                    let first = cast(&batch.column(*column).slice(0, 1), &DataType::Utf8)?;
                    texts.push(first.as_string::<i32>().iter().next().flatten().map(String::from));
                }
                By::Interval { column, length_ns } => {
                    times = Some((batch.column(*column).as_primitive::<TimestampNanosecondType>(), *length_ns));
                }
            }
        }
        let mut put = |begin, count| match count {
            0 => {}
            _ => *self.0.entry((texts.clone(), begin)).or_default() += count,
        };
        let Some((times, length_ns)) = times else {
            put(None, batch.num_rows() as i64);
            return Ok(());
        };
        // Most are of the interval of the one before.
        let (mut begin, mut count) = (0, 0);
        for (row, time) in times.values().iter().enumerate() {
            if times.is_null(row) {
                put(None, 1);
                continue;
            }
            if count == 0 || !(0..length_ns).contains(&time.wrapping_sub(begin)) {
                put(Some(begin), std::mem::take(&mut count));
                begin = time.saturating_sub(time.rem_euclid(length_ns));
            }
            count += 1;
        }
        put(Some(begin), count);
        Ok(())
    }
}
