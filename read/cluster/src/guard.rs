//! Ends a job when an executor that has worked on it is lost.
//!
//! Ballista 55 runs the stage whose input is lost again. But other stages keep the rows of that stage that they have
//! already received, and receive them a second time: the result contains rows twice, without an error (docs/machines.md
//! has a command that shows it). Therefore the guard ends a job when an executor is lost, before its stages run again,
//! and the client submits the job again.
//!
//! ```text
//!   heartbeat is late, or a task cannot be launched ─▶ remove_executor ─▶ [Guard: cancel its jobs] ─▶ Ballista: executor lost
//!   rows cannot be fetched                          ─▶ SchedulerConfig::stage_max_failures = 1: the job fails
//! ```
//! Ballista handles events one after another, and the cancellation precedes the loss.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use ballista_core::JobId;
use ballista_core::error::Result;
use ballista_core::serde::protobuf::{ExecutorHeartbeat, RunningTask, SuccessfulTask, task_status::Status};
use ballista_core::serde::scheduler::{ExecutorData, ExecutorMetadata};
use ballista_scheduler::cluster::{BoundTask, ClusterState, ClusterStateEventStream, ExecutorSlot};
use ballista_scheduler::config::TaskDistributionPolicy;
use ballista_scheduler::scheduler_server::SchedulerServer;
use ballista_scheduler::state::execution_stage::ExecutionStage;
use ballista_scheduler::state::task_manager::JobInfoCache;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};

/// Ballista's scheduler, with DataFusion's plans.
pub(crate) type Server = SchedulerServer<LogicalPlanNode, PhysicalPlanNode>;

/// The state of the cluster. Ballista calls its `remove_executor` before it does anything else about a lost executor.
pub(crate) struct Guard {
    state: Arc<dyn ClusterState>,
    /// Scheduler, which is made with the guard and therefore set later.
    server: OnceLock<Server>,
}

impl Guard {
    pub(crate) fn new(state: Arc<dyn ClusterState>) -> Guard {
        Guard { state, server: OnceLock::new() }
    }

    /// Sets the scheduler whose jobs are guarded.
    pub(crate) fn watch(&self, server: Server) {
        // Fails only if a scheduler was set before; there is only one.
        let _ = self.server.set(server);
    }
}

/// Whether an executor works or has worked on a job.
fn has_worked(job: &JobInfoCache, executor: &str) -> bool {
    // Does not wait for a graph that is being changed, because the task that changes it may be the caller. Its job
    // counts as worked on.
    let Ok(graph) = job.execution_graph.try_read() else { return true };
    graph.stages().values().any(|stage| {
        let tasks = match stage {
            ExecutionStage::Running(stage) => &stage.task_infos,
            ExecutionStage::Successful(stage) => &stage.task_infos,
            _ => return false,
        };
        tasks.iter().any(|task| match &task.task_status {
            Status::Running(RunningTask { executor_id }) => executor_id == executor,
            Status::Successful(SuccessfulTask { executor_id, .. }) => executor_id == executor,
            Status::Failed(_) => false,
        })
    })
}

#[async_trait]
impl ClusterState for Guard {
    async fn remove_executor(&self, executor_id: &str) -> Result<()> {
        if let Some(server) = self.server.get() {
            for (job, info) in server.state.task_manager.get_running_job_cache().iter() {
                if has_worked(info, executor_id) {
                    server.cancel_job(job.clone()).await?;
                }
            }
        }
        self.state.remove_executor(executor_id).await
    }

    // The other methods delegate to `state`.

    async fn init(&self) -> Result<()> {
        self.state.init().await
    }

    async fn bind_schedulable_tasks(
        &self,
        distribution: TaskDistributionPolicy,
        active_jobs: Arc<HashMap<JobId, JobInfoCache>>,
        executors: Option<HashSet<String>>,
    ) -> Result<Vec<BoundTask>> {
        self.state.bind_schedulable_tasks(distribution, active_jobs, executors).await
    }

    async fn unbind_tasks(&self, executor_slots: Vec<ExecutorSlot>) -> Result<()> {
        self.state.unbind_tasks(executor_slots).await
    }

    async fn register_executor(&self, metadata: ExecutorMetadata, spec: ExecutorData) -> Result<()> {
        self.state.register_executor(metadata, spec).await
    }

    async fn save_executor_metadata(&self, metadata: ExecutorMetadata) -> Result<()> {
        self.state.save_executor_metadata(metadata).await
    }

    async fn get_executor_metadata(&self, executor_id: &str) -> Result<ExecutorMetadata> {
        self.state.get_executor_metadata(executor_id).await
    }

    async fn registered_executor_metadata(&self) -> Vec<ExecutorMetadata> {
        self.state.registered_executor_metadata().await
    }

    async fn save_executor_heartbeat(&self, heartbeat: ExecutorHeartbeat) -> Result<()> {
        self.state.save_executor_heartbeat(heartbeat).await
    }

    fn executor_heartbeats(&self) -> HashMap<String, ExecutorHeartbeat> {
        self.state.executor_heartbeats()
    }

    fn get_executor_heartbeat(&self, executor_id: &str) -> Option<ExecutorHeartbeat> {
        self.state.get_executor_heartbeat(executor_id)
    }

    async fn cluster_state_events(&self) -> Result<ClusterStateEventStream> {
        self.state.cluster_state_events().await
    }
}
