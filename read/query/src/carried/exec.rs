//! The operator that carries values forward, by key.
//!
//! ```text
//!   rows in their order ─▶ the last values of their keys ─▶ rows with these values
//!                            │ more keys than fit in memory
//!                            ▼
//!                          files, by keys: the last values and the remaining rows ─▶ each as above
//! ```

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::SortOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{TaskContext, async_try_stream};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    Distribution, EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalExpr, PhysicalSortExpr,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet, SpillMetrics};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, SendableRecordBatchStream,
};
use futures::StreamExt;

use super::files::{self, Files};
use super::spec::{Order, Spec};
use super::state::Carried;

/// How many times keys are divided among files before running out of memory is an error.
const DEPTH_MAX: usize = 4;

/// The operator that adds the last non-null values of each row's key.
#[derive(Debug)]
pub(crate) struct CarryExec {
    pub spec: Arc<Spec>,
    child: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl CarryExec {
    /// # Errors
    /// The child does not have the columns.
    pub(crate) fn new(spec: Arc<Spec>, child: Arc<dyn ExecutionPlan>) -> Result<CarryExec> {
        let input = child.schema();
        if spec.columns().any(|column| column >= input.fields().len()) {
            return Err(DataFusionError::Internal("CarryExec: the child is not as it was planned".into()));
        }
        // If keys are divided among files, the rows leave in another order, so no order is promised.
        let properties = PlanProperties::new(
            EquivalenceProperties::new(spec.schema(&input)),
            child.output_partitioning().clone(),
            child.pipeline_behavior(),
            child.boundedness(),
        );
        Ok(CarryExec { spec, child, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() })
    }

    fn column(&self, index: usize) -> Arc<dyn PhysicalExpr> {
        Arc::new(Column::new(self.child.schema().field(index).name(), index))
    }
}

impl DisplayAs for CarryExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = self.child.schema();
        let name = |column: &usize| input.field(*column).name().as_str();
        let keys: Vec<&str> = self.spec.keys.iter().map(name).collect();
        let values: Vec<&str> = self.spec.values.iter().map(|(column, _)| name(column)).collect();
        write!(f, "CarryExec: [{}] by [{}]", values.join(", "), keys.join(", "))
    }
}

impl ExecutionPlan for CarryExec {
    fn name(&self) -> &str {
        "CarryExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.child]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        let keys: Vec<_> = self.spec.keys.iter().map(|key| self.column(*key)).collect();
        vec![if keys.is_empty() { Distribution::SinglePartition } else { Distribution::KeyPartitioned(keys) }]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let one = |order: &Order| {
            let options = SortOptions { descending: order.is_descending, nulls_first: order.is_null_first };
            PhysicalSortExpr::new(self.column(order.column), options)
        };
        vec![LexOrdering::new(self.spec.order.iter().map(one)).map(OrderingRequirements::from)]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(child), true) => Ok(Arc::new(CarryExec::new(Arc::clone(&self.spec), child)?)),
            _ => Err(DataFusionError::Internal("CarryExec has one child".into())),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let memory = MemoryConsumer::new("values that are carried on, by key").with_can_spill(true);
        let memory = memory.register(context.memory_pool());
        let (input, schema, spec) = (self.child.schema(), self.schema(), Arc::clone(&self.spec));
        let written = Files::new(&input, context.runtime_env(), SpillMetrics::new(&self.metrics, partition));
        let mut rows = self.child.execute(partition, context)?;
        let given = async_try_stream(|mut given| async move {
            let (mut divided, mut depth) = (Vec::new(), 0);
            loop {
                let mut carried = Carried::new(&spec, &input)?;
                while let Some(batch) = rows.next().await {
                    let (mut columns, told) = files::columns(&batch?, depth > 0);
                    let count = columns.first().map_or(0, |column| column.len());
                    columns.extend(carried.add(&columns, count)?);
                    let batch = RecordBatch::try_new(Arc::clone(&schema), files::without(columns, told)?)?;
                    if batch.num_rows() > 0 {
                        given.emit(batch).await;
                    }
                    let Err(error) = memory.try_resize(carried.size_bytes()) else { continue };
                    if depth == DEPTH_MAX {
                        return Err(error);
                    }
                    let parts = written.divide(&spec.keys, carried.into_rows(&input)?, rows, depth).await?;
                    divided.extend(parts.into_iter().map(|file| (file, depth + 1)));
                    break;
                }
                memory.free();
                let Some((file, of)) = divided.pop() else { return Ok(()) };
                (rows, depth) = (written.read(file)?, of);
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), given)))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::ArrayRef;
    use datafusion::arrow::util::display::array_value_to_string;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::execution::context::{SessionConfig, SessionContext};
    use datafusion::execution::memory_pool::FairSpillPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;

    use super::super::state::tests::batches;
    use super::*;

    /// Returns the rows of a plan that is run with this memory limit, and whether they are in their original order.
    async fn rows(plan: &CarryExec, memory_bytes: usize) -> (Vec<String>, bool) {
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(FairSpillPool::new(memory_bytes)));
        let context = SessionContext::new_with_config_rt(SessionConfig::new(), runtime.build_arc().unwrap());
        let batches: Vec<_> = plan.execute(0, context.task_ctx()).unwrap().map(Result::unwrap).collect().await;
        let cells = |batch: &RecordBatch, row| {
            let cell = |column: &ArrayRef| array_value_to_string(column, row).unwrap();
            batch.columns().iter().map(cell).collect::<Vec<_>>().join(",")
        };
        let rows: Vec<_> =
            batches.iter().flat_map(|batch| (0..batch.num_rows()).map(|row| cells(batch, row))).collect();
        let numbers = rows.iter().map(|row| row.split(',').next_back().unwrap().parse::<u64>().unwrap());
        let is_in_order = numbers.is_sorted();
        (rows, is_in_order)
    }

    #[tokio::test]
    async fn rows_are_the_same_with_more_keys_than_fit_in_memory() {
        let all = batches(100_000, 8192, 40);
        let schema = all[0].schema();
        let child = MemorySourceConfig::try_new_exec(&[all], schema, None).unwrap();
        let order = Order { column: 4, is_descending: false, is_null_first: false };
        let values = vec![(1, "a".into()), (2, "b".into()), (3, "c".into()), (0, "d".into()), (4, "e".into())];
        let plan = CarryExec::new(Arc::new(Spec { keys: vec![0], order: vec![order], values }), child).unwrap();
        let (expected, is_in_order) = rows(&plan, 1 << 30).await;
        assert!(is_in_order);
        let (mut found, is_in_order) = rows(&plan, 8 << 20).await;
        assert!(!is_in_order, "rows are divided by key");
        found.sort_by_key(|row| row.split(',').next_back().unwrap().parse::<u64>().unwrap());
        assert_eq!(found.len(), expected.len());
        assert!(found == expected);
    }
}
