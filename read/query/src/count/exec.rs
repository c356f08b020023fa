//! The operator that counts the rows of files.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::TimestampNanosecondType;
use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, SendableRecordBatchStream,
};
use futures::StreamExt;

use super::GROUPS;
use super::spec::{By, Spec};

const AHEAD_COUNT: usize = 2;

/// Counts rows. All rows of a batch have the same class, and most are in the same interval as the row before.
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
            // If the receiver is gone, the counts are not needed.
            let _ = sender.send(counts.take(&spec)).await;
            Ok(())
        });
        Ok(builder.build())
    }
}

/// Number of rows for each combination of texts and interval.
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
        // Most rows are in the same interval as the row before.
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
