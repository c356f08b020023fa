//! A leaf of DataFusion's plans: work that produces batches on its own threads.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, SendableRecordBatchStream,
};

/// Number of batches that may wait for the receiver.
const AHEAD_COUNT: usize = 2;

/// Work of a leaf's partitions.
pub(crate) trait Work: Any + Send + Sync {
    /// Passes the batches of a partition to `give`, until `give` returns false because no more are wanted. `run` is the
    /// number of earlier runs of this partition.
    fn run(&self, partition: usize, run: usize, give: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()>;
}

/// The leaf.
pub(crate) struct Leaf {
    about: String,
    work: Arc<dyn Work>,
    runs: Vec<AtomicUsize>,
    properties: Arc<PlanProperties>,
}

impl Leaf {
    pub(crate) fn new(about: String, schema: SchemaRef, partitions: usize, work: Arc<dyn Work>) -> Leaf {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let properties = Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative));
        Leaf { about, work, runs: (0..partitions).map(|_| AtomicUsize::new(0)).collect(), properties }
    }

    /// Returns its work, if it has this type.
    pub(crate) fn work<W: Work>(&self) -> Option<&W> {
        let work: &dyn Any = self.work.as_ref();
        work.downcast_ref()
    }

    pub(crate) fn partitions(&self) -> usize {
        self.runs.len()
    }
}

/// Returns the input of a round-robin repartitioning, otherwise the plan itself. Such a repartitioning only spreads
/// rows of few partitions over all CPUs.
pub(crate) fn undivided(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    match plan.downcast_ref::<RepartitionExec>() {
        Some(divided) if matches!(divided.partitioning(), Partitioning::RoundRobinBatch(_)) => divided.input(),
        _ => plan,
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about)
    }
}

impl DisplayAs for Leaf {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about)
    }
}

impl ExecutionPlan for Leaf {
    fn name(&self) -> &str {
        "TraceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut builder = RecordBatchReceiverStream::builder(self.schema(), AHEAD_COUNT);
        let (sender, work) = (builder.tx(), Arc::clone(&self.work));
        // Relaxed: the counter orders no other memory.
        let run = self.runs[partition].fetch_add(1, Ordering::Relaxed);
        let memory = MemoryConsumer::new("batches of the trace").register(context.memory_pool());
        builder.spawn_blocking(move || {
            work.run(partition, run, &mut |batch| {
                // One more than waits: the batch that is being made.
                memory.resize((AHEAD_COUNT + 1) * batch.get_array_memory_size());
                sender.blocking_send(Ok(batch)).is_ok()
            })
        });
        Ok(builder.build())
    }
}
