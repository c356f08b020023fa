//! Runs queries.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionContext;
use datafusion::physical_plan::execute_stream;
use dormouse_terminal::{Output, say};
use futures::StreamExt;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::catalog::{self, Limits};
use crate::cluster::{self, Cluster};
use crate::fault;
use crate::output::{Format, Printer, Target};
use crate::progress;
use crate::source::Source;

/// Exit code of a command that SIGINT ended, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;
pub(crate) const TERMINATED: u8 = 143;

/// Time that the shutdown waits for threads. Threads that take longer are abandoned.
const PATIENCE: Duration = Duration::from_secs(5);

/// Columns that tables have for every trace.
const COLUMNS: [&str; 16] = [
    "time",
    "class",
    "process",
    "pid",
    "tid",
    "thread",
    "cpu",
    "fields",
    "name",
    "begin_time",
    "end_time",
    "duration_ns",
    "key",
    "events",
    "stream",
    "program",
];

/// A source with the context in which queries on it run.
pub(crate) struct Session {
    source: Source,
    /// Cluster that runs the plans. `None`: they run here.
    cluster: Option<Cluster>,
    temporary: PathBuf,
    context: SessionContext,
    tables: Vec<String>,
    runtime: Option<Runtime>,
}

/// Outcome of a query.
enum Outcome {
    Done,
    Signal(u8),
}

impl Session {
    /// # Errors
    /// The directory for temporary files cannot be used.
    pub(crate) fn new(source: Source, cluster: Option<Cluster>, limits: &Limits, runtime: Runtime) -> Result<Session> {
        let context = catalog::context(source, limits)?;
        let (temporary, tables) = (limits.temporary.clone(), source.names());
        Ok(Session { source, cluster, temporary, context, tables, runtime: Some(runtime) })
    }

    /// Returns the source.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Returns the names of the tables.
    pub(crate) fn tables(&self) -> &[String] {
        &self.tables
    }

    /// Runs a query, writes its result and returns the exit code. `rows`: rows of a table that are shown; `rows_max`: of
    /// the result, if not all.
    ///
    /// # Errors
    /// The query is wrong, or the result cannot be written.
    pub(crate) fn run(
        &self,
        sql: &str,
        format: Format,
        rows: usize,
        rows_max: Option<usize>,
        file: Option<&Path>,
        out: &mut Output,
    ) -> Result<u8> {
        let Some(runtime) = &self.runtime else { return Ok(0) };
        // Signals are handled before the temporary file is created, so that a signal never leaves it behind.
        let within = runtime.enter();
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        drop(within);
        let mut target = Target::open(file, format, out)?;
        let work = self.answer(sql, format, rows, rows_max, &mut target);
        let outcome = runtime.block_on(async {
            tokio::select! {
                done = progress::during(self.source, work) => done.map(|()| Outcome::Done),
                _ = interrupt.recv() => Ok(Outcome::Signal(INTERRUPTED)),
                _ = terminate.recv() => Ok(Outcome::Signal(TERMINATED)),
            }
        })?;
        if let Outcome::Signal(code) = outcome {
            return Ok(code);
        }
        target.finish()?;
        Ok(self.tell())
    }

    /// Reports damage and losses of the source, and returns the exit code.
    fn tell(&self) -> u8 {
        let (damage, has_lost) = self.source.take_damage();
        self.source.take_notes().iter().for_each(|line| say(format_args!("note: {line}")));
        damage.iter().for_each(|line| say(format_args!("warning: {line}")));
        if has_lost {
            say("events were lost while this trace was recorded; `select * from losses` lists the losses");
        }
        (!damage.is_empty()).into()
    }

    /// Returns the names of tables and columns, for completion.
    pub(crate) fn names(&self) -> Vec<String> {
        let of_all = COLUMNS.iter().map(ToString::to_string);
        self.tables.iter().cloned().chain(self.source.columns()).chain(of_all).collect()
    }

    async fn answer(
        &self,
        sql: &str,
        format: Format,
        rows: usize,
        rows_max: Option<usize>,
        target: &mut Target<'_>,
    ) -> Result<()> {
        let told = |error: DataFusionError| anyhow!("{}", fault::told(sql, &error, &self.tables));
        let frame = catalog::frame(&self.context, sql).await.map_err(told)?;
        let task = Arc::new(frame.task_ctx());
        if self.cluster.is_some() {
            cluster::check(frame.logical_plan())?;
        }
        let plan = frame.create_physical_plan().await.map_err(told)?;
        let mut batches = match &self.cluster {
            Some(cluster) if cluster::has_work(&plan) => {
                cluster.run(&plan, task.session_config(), &task.session_id(), &self.temporary).await?
            }
            _ => execute_stream(plan, task).map_err(told)?,
        };
        // If the query fails before its first batch, nothing is written.
        let mut next = batches.next().await.transpose().map_err(told)?;
        let mut printer = Printer::new(format, rows, &batches.schema(), target.output())?;
        let mut left = rows_max.unwrap_or(usize::MAX);
        let mut left_out = 0;
        while let Some(batch) = next {
            let shown = batch.num_rows().min(left);
            left -= shown;
            left_out += batch.num_rows() - shown;
            if !printer.batch(&batch.slice(0, shown))? {
                break;
            }
            next = batches.next().await.transpose().map_err(told)?;
        }
        printer.finish()?;
        if let Some(rows_max) = rows_max
            && left_out > 0
        {
            say(format_args!("rows that are not shown: {left_out}; --rows {} shows all", rows_max + left_out));
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Threads that still read end at their next batch. Temporary files are removed when nothing holds them any
        // more.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(PATIENCE);
        }
    }
}
