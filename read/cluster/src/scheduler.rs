//! `dormouse cluster scheduler`.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ballista_scheduler::cluster::{BallistaCluster, ClusterState};
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use clap::Args;
use dormouse_query::engine;
use dormouse_terminal::{Output, say};
use tokio::net::TcpListener;

use crate::guard::{Guard, Server};
use crate::{Common, EXECUTOR_TIMEOUT_S, Ends, MESSAGE_BYTES_MAX, log_lines, told};

/// Interval at which a scheduler that is ending checks for running jobs. Ballista does not notify it.
const TICK: Duration = Duration::from_millis(100);

/// Accept queries and distribute their tasks to executors; a cluster has one scheduler
#[derive(Debug, Args)]
pub(crate) struct Scheduler {
    /// Listen on this address for clients and executors
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:50050")]
    bind: SocketAddr,
    /// Host name or address at which executors reach this machine [default: the address of --bind, or, if that is 0.0.0.0, this machine's name]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Keep the rows of results for clients for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    keep: u64,
    #[command(flatten)]
    common: Common,
}

impl Scheduler {
    /// # Errors
    /// The address cannot be bound, or serving fails.
    pub(crate) async fn run(self, out: &mut Output) -> Result<()> {
        log_lines::begin(self.common.verbose);
        let listener = TcpListener::bind(self.bind).await.with_context(|| format!("cannot listen on {}", self.bind))?;
        let address = listener.local_addr()?;
        let host = self.host.or_else(|| told(address.ip())).map_or_else(own_name, Ok)?;
        let config = Arc::new(SchedulerConfig {
            namespace: "dormouse".into(),
            external_host: host.clone(),
            bind_host: address.ip().to_string(),
            bind_port: address.port(),
            task_distribution: TaskDistributionPolicy::RoundRobin,
            // Stages do not run again within a job, see `guard`.
            stage_max_failures: 1,
            finished_job_data_clean_up_interval_seconds: self.keep,
            finished_job_state_clean_up_interval_seconds: self.keep,
            grpc_server_max_decoding_message_size: MESSAGE_BYTES_MAX,
            grpc_server_max_encoding_message_size: MESSAGE_BYTES_MAX,
            grpc_client_max_message_size: MESSAGE_BYTES_MAX,
            executor_timeout_seconds: EXECUTOR_TIMEOUT_S,
            expire_dead_executor_interval_seconds: 1,
            no_executors_grace_period_seconds: NO_EXECUTORS_S,
            override_config_producer: Some(Arc::new(engine::cluster_config)),
            override_physical_codec: Some(Arc::new(engine::Codec::default())),
            override_session_builder: Some(Arc::new(|config| {
                Ok(engine::state(config, engine::runtime(&std::env::temp_dir())?))
            })),
            ..SchedulerConfig::default()
        });
        let memory = BallistaCluster::new_from_config(&config).await?;
        let guard = Arc::new(Guard::new(memory.cluster_state()));
        let cluster = BallistaCluster::new(Arc::clone(&guard) as Arc<dyn ClusterState>, memory.job_state());
        let scheduler: Server = create_scheduler(cluster, config).await?;
        guard.watch(scheduler.clone());
        writeln!(out, "scheduler: df://{}", SocketAddr::new(address.ip(), address.port()))?;
        out.flush()?;
        let serve = start_grpc_service_with_listener(listener, scheduler.clone());
        let end = async {
            let mut ends = Ends::new()?;
            ends.next().await;
            let left = || scheduler.running_job_number() + scheduler.pending_job_number();
            if left() > 0 {
                say(format_args!(
                    "{} queries are running; the scheduler ends after them, a second signal ends it at once",
                    left()
                ));
            }
            let done = async {
                let mut ending = Ending { with_executors: Instant::now() };
                while ending.waits(left(), guard.registered_executor_metadata().await.len(), Instant::now()) {
                    // Ballista does not notify when a job ends, so this polls. A second signal ends it.
                    tokio::time::sleep(TICK).await;
                }
                anyhow::Ok(())
            };
            tokio::select! {
                done = done => done,
                () = ends.next() => Ok(()),
            }
        };
        tokio::select! {
            served = serve => served.context("the scheduler cannot serve"),
            ended = end => ended,
        }
    }
}

/// Time for which a job waits for new executors after all are lost, in seconds. A scheduler that is ending waits as
/// long.
const NO_EXECUTORS_S: u64 = 30;

/// State of a scheduler that was told to end. It limits the wait for executors, because Ballista does not: a job that
/// is submitted while there is none waits forever.
struct Ending {
    /// Last time at which there was an executor, or the time of the signal.
    with_executors: Instant,
}

impl Ending {
    fn waits(&mut self, job_count: usize, executor_count: usize, now: Instant) -> bool {
        if executor_count > 0 {
            self.with_executors = now;
        }
        job_count > 0 && now - self.with_executors < Duration::from_secs(NO_EXECUTORS_S)
    }
}

fn own_name() -> Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("this machine has no host name; name it with --host")?;
    Ok(name.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_ends_with_its_jobs_or_without_executors() {
        let told = Instant::now();
        let at = |seconds| told + Duration::from_secs(seconds);
        let mut ending = Ending { with_executors: told };
        assert!(ending.waits(1, 1, at(0)));
        assert!(ending.waits(1, 1, at(100)), "jobs run as long as there is one");
        assert!(ending.waits(1, 0, at(100 + NO_EXECUTORS_S - 1)), "another may come");
        assert!(ending.waits(1, 1, at(100 + NO_EXECUTORS_S - 1)), "it has");
        assert!(ending.waits(1, 0, at(100 + 2 * NO_EXECUTORS_S - 2)));
        assert!(!ending.waits(1, 0, at(100 + 2 * NO_EXECUTORS_S - 1)));
        assert!(!Ending { with_executors: told }.waits(0, 1, at(0)), "nothing is left");
    }
}
