//! `dormouse cluster executor`.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use clap::Args;
use dormouse_query::engine;
use dormouse_terminal::{Output, parse_size};
use tempfile::TempDir;

use crate::{Common, Ends, HEARTBEAT_S, MESSAGE_BYTES_MAX, log_lines, told};

/// Prefix of the names of executors' directories.
const PREFIX: &str = "dormouse-executor-";
/// Time for which a job's data is kept if the scheduler does not say that the job is over, in seconds.
const LEFT_S: u64 = 24 * 3600;

/// Execute tasks of a scheduler's queries
#[derive(Debug, Args)]
pub(crate) struct Executor {
    /// Address of the scheduler
    #[arg(long, value_name = "HOST:PORT", value_parser = place)]
    scheduler: (String, u16),
    /// Listen on this port for requests for rows, and on the next port for tasks; port 0 chooses two free ports
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:50051")]
    bind: SocketAddr,
    /// Host name or address at which other machines reach this one [default: the address of --bind, or, if that is 0.0.0.0, the address that the scheduler sees]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Memory for the state of tasks; beyond it, sorting, grouping and joining use temporary files in --work-dir [default: seven tenths of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Directory for rows between stages and for temporary files, in a new directory that is removed at the end [default: TMPDIR]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Number of threads [default: number of CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    #[command(flatten)]
    common: Common,
}

/// Parses HOST:PORT.
fn place(text: &str) -> Result<(String, u16), String> {
    let text = text.strip_prefix("df://").unwrap_or(text);
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host.to_string(), port.parse().ok()?)));
    parts
        .filter(|(host, _)| !host.is_empty())
        .ok_or_else(|| format!("`{text}` is not the address of a scheduler; write HOST:PORT"))
}

impl Executor {
    /// # Errors
    /// The scheduler does not answer, or a port or directory cannot be used.
    pub(crate) async fn run(self, out: &mut Output) -> Result<()> {
        log_lines::begin(self.common.verbose);
        let [port, grpc_port] = ports(self.bind)?;
        let own = match &self.work_dir {
            Some(dir) => WorkDir::in_dir(dir)?,
            None => WorkDir::in_tmpdir()?,
        };
        let ip = self.bind.ip();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let state = engine::state(engine::cluster_config(), engine::runtime(&own.spill)?);
        let (host, scheduler_port) = self.scheduler;
        let temporary = own.spill.clone();
        let config = ExecutorProcessConfig {
            bind_host: ip.to_string(),
            external_host: self.host.or_else(|| told(ip)),
            port,
            grpc_port,
            scheduler_host: host.clone(),
            scheduler_port,
            vcores: self.threads.map_or(threads, |threads| threads as usize),
            work_dir: Some(own.rows.to_str().context("--work-dir is not UTF-8")?.into()),
            job_data_ttl_seconds: LEFT_S,
            job_data_clean_up_interval_seconds: LEFT_S / 24,
            grpc_max_decoding_message_size: MESSAGE_BYTES_MAX,
            grpc_max_encoding_message_size: MESSAGE_BYTES_MAX,
            executor_heartbeat_interval_seconds: HEARTBEAT_S,
            memory_pool_size: self.memory,
            override_function_registry: Some(Arc::new(BallistaFunctionRegistry::from(&state))),
            override_runtime_producer: Some(Arc::new(move |_| engine::runtime(&temporary))),
            override_config_producer: Some(Arc::new(engine::cluster_config)),
            override_physical_codec: Some(Arc::new(engine::Codec::default())),
            ..ExecutorProcessConfig::default()
        };
        writeln!(out, "executor: {}", SocketAddr::new(ip, port))?;
        out.flush()?;
        let place = format!("{host}:{scheduler_port}");
        let done = async {
            start_executor_process(Arc::new(config)).await.map_err(|error| match error.to_string() {
                text if text.contains("Could not connect to scheduler") => anyhow!("no scheduler answers at {place}"),
                text => anyhow!("{}", text.lines().next().unwrap_or_default()),
            })
        };
        tokio::select! {
            done = done => done,
            // Ballista drains the executor at the first signal; the second one ends it at once.
            second = async {
                let mut ends = Ends::new()?;
                ends.next().await;
                ends.next().await;
                anyhow::Ok(())
            } => second,
        }
    }
}

/// A new directory for one executor only, which is removed with its content when dropped. Ballista removes all
/// directories that it finds in its work directory, even if it has not made them, so it gets a directory of its own.
struct WorkDir {
    /// Directory in which Ballista keeps rows between stages.
    rows: PathBuf,
    /// Directory to which DataFusion spills data that exceeds the memory.
    spill: PathBuf,
    /// Lock of the directory, held while the executor runs.
    _lock: File,
    _dir: TempDir,
}

impl WorkDir {
    fn in_tmpdir() -> Result<WorkDir> {
        WorkDir::new(&std::env::temp_dir()).context("cannot create a directory in TMPDIR; name another with --work-dir")
    }

    /// Makes a directory below `parent`. Before, removes directories that killed executors have left there.
    fn in_dir(parent: &Path) -> Result<WorkDir> {
        let made = || {
            std::fs::create_dir_all(parent)?;
            // Another executor's new directory must not be removed before it is locked.
            let _turn = lock(parent)?;
            remove_orphans(parent)?;
            WorkDir::new(parent)
        };
        made().with_context(|| format!("cannot create a directory in {}", parent.display()))
    }

    fn new(parent: &Path) -> std::io::Result<WorkDir> {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let (rows, spill) = (dir.path().join("rows"), dir.path().join("spill"));
        let lock = lock(dir.path())?;
        std::fs::create_dir(&rows)?;
        std::fs::create_dir(&spill)?;
        Ok(WorkDir { rows, spill, _lock: lock, _dir: dir })
    }
}

/// Waits for the lock of a directory. The kernel releases it when the process ends.
fn lock(dir: &Path) -> std::io::Result<File> {
    let dir = File::open(dir)?;
    dir.lock()?;
    Ok(dir)
}

/// Removes directories of executors whose lock is free. Ignores failures, such as with directories of other users.
fn remove_orphans(parent: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        let is_of_executor =
            entry.file_type()?.is_dir() && entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        if is_of_executor && File::open(entry.path()).is_ok_and(|dir| dir.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Returns two free ports. They are tried here because Ballista does not report a failure to listen.
fn ports(bind: SocketAddr) -> Result<[u16; 2]> {
    let listen = |port: u16| {
        let at = SocketAddr::new(bind.ip(), port);
        TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))
    };
    let second = if bind.port() == 0 {
        0
    } else {
        bind.port().checked_add(1).context("--bind must leave a next port for tasks; name a smaller port")?
    };
    let listeners = [listen(bind.port())?, listen(second)?];
    Ok([listeners[0].local_addr()?.port(), listeners[1].local_addr()?.port()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_executors_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let names = || {
            let entries = std::fs::read_dir(parent.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            names.sort();
            names
        };
        let others = [parent.path().join("another"), parent.path().join(format!("{PREFIX}file"))];
        std::fs::create_dir(&others[0]).unwrap();
        std::fs::write(&others[1], "").unwrap();
        let left = parent.path().join(format!("{PREFIX}left"));
        std::fs::create_dir_all(left.join("rows/job")).unwrap();
        let one = WorkDir::in_dir(parent.path()).unwrap();
        assert!(!left.exists());
        let two = WorkDir::in_dir(parent.path()).unwrap();
        assert!([&one, &two].iter().all(|own| own.rows.is_dir() && own.spill.is_dir()));
        drop((one, two));
        assert_eq!(names(), others);
    }

    #[test]
    fn the_address_of_a_scheduler_has_a_host_and_a_port() {
        assert_eq!(place("a:5"), Ok(("a".into(), 5)));
        assert_eq!(place("df://[::1]:5"), Ok(("[::1]".into(), 5)));
        assert!(["a", ":5", "a:b", "a:70000"].iter().all(|text| place(text).is_err()));
    }
}
