//! Plans that a cluster runs.
//!
//! ```text
//!   plan ─▶ scheduler ─▶ executors ─▶ a temporary file ─▶ batches
//!     ▲                      │ one was lost, and the job with it
//!     └──────────────────────┘ at most ATTEMPTS times
//! ```
//! An executor that is gone ends the jobs that it has worked on (Ballista 55 goes on, and can give rows twice: `dormouse_cluster`), and they are given again
//! from here. A result is handed on when all of it is here: what was printed would be printed twice.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionConfig;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use datafusion_proto::protobuf::PhysicalPlanNode;
use dormouse_terminal::say;
use futures::StreamExt;
use url::Url;

/// How often a job is given to the scheduler.
const ATTEMPTS: usize = 3;
/// Where schedulers listen.
pub(crate) const PORT: u16 = 50050;

/// What an error says that another attempt can mend: an executor was lost, or what it had.
const PASSING: [&str; 6] = [
    // The scheduler has ended the job: an executor that has worked on it is gone.
    "failed: Cancelled",
    // Rows between stages could not be fetched.
    "most recent failure reason",
    "executors were lost",
    // Rows of the result could not be fetched.
    "FetchFailed",
    "GrpcConnectionError",
    "GrpcError",
];

/// A scheduler.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    /// HOST:PORT.
    place: String,
}

/// Reads `df://HOST:PORT`.
pub(crate) fn parse(text: &str) -> Result<Cluster, String> {
    let url = Url::parse(text).ok().filter(|url| url.scheme() == "df" && url.host_str().is_some());
    let url = url.ok_or_else(|| format!("`{text}` is no scheduler; write df://HOST:PORT"))?;
    let host = url.host_str().unwrap_or_default();
    Ok(Cluster { place: format!("{host}:{}", url.port().unwrap_or(PORT)) })
}

/// Whether a plan reads files, and so has work for a cluster.
pub(crate) fn has_work(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<DataSourceExec>().is_some() || plan.children().into_iter().any(has_work)
}

impl Cluster {
    /// Runs a plan. `temporary`: where the result is kept until it is handed on.
    ///
    /// # Errors
    /// There is no scheduler, or the job failed as often as it is given.
    pub(crate) async fn run(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        config: &SessionConfig,
        session: &str,
        temporary: &Path,
    ) -> Result<SendableRecordBatchStream> {
        let mut attempt = 1;
        loop {
            let session = format!("{session}-{attempt}");
            match self.once(plan, config, session, temporary).await {
                Ok(file) => return stream(plan, file),
                Err(error) if attempt < ATTEMPTS && is_passing(&error) => {
                    attempt += 1;
                    say(format_args!(
                        "warning: the cluster lost what a job needed; it runs again ({attempt} of {ATTEMPTS})"
                    ));
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn once(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        config: &SessionConfig,
        session: String,
        temporary: &Path,
    ) -> Result<File> {
        let codec = config.ballista_physical_extension_codec();
        let settings = config.ballista_config();
        let url = format!("http://{}", self.place);
        let job = execute_physical_plan::<PhysicalPlanNode>(
            url,
            &settings,
            Arc::clone(plan),
            codec.as_ref(),
            session,
            config.clone(),
        );
        let mut batches = job.await.map_err(|error| self.told(&error))?;
        let failed = || format!("cannot keep the result in {}", temporary.display());
        let file = tempfile::tempfile_in(temporary).with_context(failed)?;
        let mut writer = StreamWriter::try_new_buffered(file, &plan.schema())?;
        while let Some(batch) = batches.next().await {
            writer.write(&batch.map_err(|error| self.told(&error))?).with_context(failed)?;
        }
        writer.finish().with_context(failed)?;
        let mut file =
            writer.into_inner()?.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(failed)?;
        std::io::Seek::rewind(&mut file).with_context(failed)?;
        Ok(file)
    }

    /// What is wrong, in one line.
    fn told(&self, error: &DataFusionError) -> anyhow::Error {
        anyhow::anyhow!("{}", line(&error.to_string(), &self.place))
    }
}

/// What Ballista says, as one line that says what to do.
fn line(text: &str, place: &str) -> String {
    text.to_string()
}

fn is_passing(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    PASSING.iter().any(|part| text.contains(part))
}

/// The batches of a result that is here.
fn stream(plan: &Arc<dyn ExecutionPlan>, file: File) -> Result<SendableRecordBatchStream> {
    let reader = StreamReader::try_new_buffered(file, None)?;
    let batches = reader.map(|batch| batch.map_err(DataFusionError::from));
    Ok(Box::pin(RecordBatchStreamAdapter::new(plan.schema(), futures::stream::iter(batches))))
}
