//! Runs plans on a cluster.
//!
//! ```text
//!   plan ─▶ scheduler ─▶ executors ─▶ a temporary file ─▶ batches
//!     ▲                      │ an executor was lost, and the job with it
//!     └──────────────────────┘ at most ATTEMPTS times
//! ```
//! The loss of an executor ends the jobs that it has worked on, and this client submits them again (Ballista 55 would
//! go on, and can return rows twice: see `dormouse_cluster`). A result is handed on only when it is complete: otherwise
//! a repeated job would print rows twice.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionConfig;
use datafusion::logical_expr::expr::NullTreatment;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use datafusion_proto::protobuf::PhysicalPlanNode;
use dormouse_terminal::say;
use futures::StreamExt;
use url::Url;

use crate::fault;

/// How many times a job is submitted to the scheduler.
const ATTEMPTS: usize = 3;
/// Maximum length of a line of the cluster's error messages. Longer lines are cut.
const LINE_LEN_MAX: usize = 300;
/// Default port of schedulers.
pub(crate) const PORT: u16 = 50050;

/// Parts of error messages that another attempt can mend: an executor or its data was lost.
const PASSING: [&str; 6] = [
    // The scheduler has ended the job: an executor that worked on it is gone.
    "failed: Cancelled",
    // Rows between stages could not be fetched.
    "most recent failure reason",
    "executors were lost",
    // Rows of the result could not be fetched.
    "FetchFailed",
    "GrpcConnectionError",
    "GrpcError",
];

/// A scheduler's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// Address, `HOST:PORT`.
    place: String,
}

/// Reads `df://HOST:PORT`.
pub(crate) fn parse(text: &str) -> Result<Cluster, String> {
    let url = Url::parse(text).ok().filter(|url| url.scheme() == "df" && url.host_str().is_some());
    let url = url.ok_or_else(|| format!("`{text}` is not the address of a scheduler; write df://HOST:PORT"))?;
    let host = url.host_str().unwrap_or_default();
    Ok(Cluster { place: format!("{host}:{}", url.port().unwrap_or(PORT)) })
}

/// Whether a plan reads files, and so has work for a cluster.
pub(crate) fn has_work(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<DataSourceExec>().is_some() || plan.children().into_iter().any(has_work)
}

/// Checks that a plan can be sent to a cluster without a change of its meaning.
///
/// # Errors
/// The plan has a window function that ignores nulls: DataFusion 55 does not serialise this option.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    let ignores = |expr: &Expr| {
        let Expr::WindowFunction(function) = expr else { return Ok(false) };
        Ok(function.params.null_treatment == Some(NullTreatment::IgnoreNulls))
    };
    let mut is_there = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            is_there |= expr.exists(ignores)?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    if is_there {
        bail!(
            "a cluster does not support `… ignore nulls over (…)`; run the query without --cluster, or count the values that are not null"
        );
    }
    Ok(())
}

/// Removes branches of unions that have no rows. Ballista 55 takes no result from a task of an empty branch, so the
/// query would never end.
fn without_empty(plan: Arc<dyn ExecutionPlan>) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
    fn is_empty(plan: &Arc<dyn ExecutionPlan>) -> bool {
        let keeps_none = plan.is::<ProjectionExec>() || plan.is::<FilterExec>() || plan.is::<UnionExec>();
        plan.is::<EmptyExec>() || keeps_none && plan.children().into_iter().all(is_empty)
    }
    let changed = plan.transform_up(|plan| {
        if !plan.is::<UnionExec>() {
            return Ok(Transformed::no(plan));
        }
        let kept: Vec<_> = plan.children().into_iter().filter(|child| !is_empty(child)).cloned().collect();
        match kept.len() {
            count if count == plan.children().len() => Ok(Transformed::no(plan)),
            0 => Ok(Transformed::yes(Arc::new(EmptyExec::new(plan.schema())))),
            1 if kept[0].schema() == plan.schema() => Ok(Transformed::yes(Arc::clone(&kept[0]))),
            _ => Ok(Transformed::yes(UnionExec::try_new(kept)?)),
        }
    })?;
    Ok(changed.data)
}

impl Cluster {
    /// Runs a plan. Its result is kept in a file in `temporary` until it is complete.
    ///
    /// # Errors
    /// There is no scheduler, or the last attempt at the job failed.
    pub(crate) async fn run(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        config: &SessionConfig,
        session: &str,
        temporary: &Path,
    ) -> Result<SendableRecordBatchStream> {
        let plan = &without_empty(Arc::clone(plan))?;
        let mut attempt = 1;
        loop {
            let session = format!("{session}-{attempt}");
            match self.once(plan, config, session, temporary).await {
                Ok(file) => return stream(plan, file),
                Err(Failure::There(error)) if attempt < ATTEMPTS && is_passing(&error) => {
                    attempt += 1;
                    say(format_args!(
                        "warning: the cluster lost data that a job needed; running the job again ({attempt} of {ATTEMPTS})"
                    ));
                }
                Err(Failure::There(error)) => bail!("{}", line(&error.to_string(), &self.place)),
                Err(Failure::Here(error)) => {
                    return Err(error).with_context(|| format!("cannot store the result in {}", temporary.display()));
                }
            }
        }
    }

    async fn once(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        config: &SessionConfig,
        session: String,
        temporary: &Path,
    ) -> Result<File, Failure> {
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
        let mut batches = job.await?;
        let file = tempfile::tempfile_in(temporary)?;
        let mut writer = StreamWriter::try_new_buffered(file, &plan.schema())?;
        while let Some(batch) = batches.next().await {
            writer.write(&batch?)?;
        }
        writer.finish()?;
        let mut file = writer.into_inner()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        std::io::Seek::rewind(&mut file)?;
        Ok(file)
    }
}

/// An error of the cluster, or of the local file that keeps the result.
enum Failure {
    There(DataFusionError),
    Here(std::io::Error),
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Failure {
        Failure::There(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Here(error)
    }
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Failure {
        Failure::Here(std::io::Error::other(error))
    }
}

/// Returns an error message of Ballista as one line that says what to do. Ballista gives the whole error as text,
/// including its debug representation.
fn line(text: &str, place: &str) -> String {
    /// Wrappers of the debug representation, which are stripped.
    const AROUND: [&str; 9] = [
        "DataFusionError(",
        "Shared(",
        "External(",
        "Execution(",
        "Plan(",
        "ArrowError(",
        "ParquetError(",
        "General(",
        "ResourcesExhausted(",
    ];
    if text.starts_with("Execution error: tonic::transport::Error") {
        return format!("no scheduler answers at {place}");
    }
    if let Some(line) = fault::of_store_text(text) {
        return line;
    }
    let begins = ["Task failed due to runtime execution error: ", "failed: ", "Execution error: "];
    let rest = begins.iter().find_map(|begin| text.split_once(begin)).map_or(text, |(_, rest)| rest);
    let mut rest = rest.trim();
    while let Some(inner) = AROUND.iter().find_map(|begin| rest.strip_prefix(begin)) {
        rest = inner.trim_end_matches([')', '\n', ' ']);
    }
    let one = rest.trim_matches('"').replace("\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let what =
        if text.contains("ResourcesExhausted") { "--memory of executors is too small" } else { "the cluster says" };
    match one.char_indices().nth(LINE_LEN_MAX) {
        Some((at, _)) => format!("{what}: {}…", &one[..at]),
        None => format!("{what}: {one}"),
    }
}

/// Whether another attempt can mend the error.
fn is_passing(error: &DataFusionError) -> bool {
    let text = error.to_string();
    PASSING.iter().any(|part| text.contains(part))
}

/// Returns the batches of a complete result.
fn stream(plan: &Arc<dyn ExecutionPlan>, file: File) -> Result<SendableRecordBatchStream> {
    let reader = StreamReader::try_new_buffered(file, None)?;
    let batches = reader.map(|batch| batch.map_err(DataFusionError::from));
    Ok(Box::pin(RecordBatchStreamAdapter::new(plan.schema(), futures::stream::iter(batches))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_cluster_are_one_line() {
        let task = "Execution error: Job 038 failed: Job failed due to stage 1 failed: Task failed due to runtime execution error: ";
        for (text, expected) in [
            ("DataFusionError(Shared(External(ArrowError(DivideByZero))))\n", "the cluster says: DivideByZero"),
            (
                "DataFusionError(Shared(Execution(\"time_bucket: `x` is wrong\")))",
                "the cluster says: time_bucket: `x` is wrong",
            ),
            (
                "DataFusionError(Shared(External(DataFusionError(ParquetError(General(\"Failed to fetch metadata for file a/b: Object Store error: \
                 Object at location /a/b not found: No such file\"))))))",
                "cannot read /a/b: it does not exist",
            ),
        ] {
            assert_eq!(line(&format!("{task}{text}"), "here:1"), expected);
        }
        let absent = "Execution error: tonic::transport::Error(Transport, ConnectError(\"tcp connect error\"))";
        assert_eq!(line(absent, "here:1"), "no scheduler answers at here:1");
        assert_eq!(parse("df://h"), Ok(Cluster { place: "h:50050".into() }));
        assert_eq!(parse("df://h:7").map(|cluster| cluster.place), Ok("h:7".into()));
        assert!(parse("http://h").is_err() && parse("h:7").is_err());
    }
}
