//! The program `dormouse-cluster`, which `dormouse cluster` runs: a scheduler, and executors that together answer
//! queries over stores of traces.
//!
//! ```text
//!   dormouse query --cluster ──plan──▶ scheduler ──tasks──▶ executors ──▶ object store
//!            ▲                            ▲   heartbeats │       │ ▲
//!            │                            └──────────────┘       └─┘ rows between stages
//!            └────────────────── rows of the result ─────────────┘
//! ```
//! * Both are Ballista's, with the functions and object stores of `dormouse_query`. The client makes the whole plan, so
//!   nothing else is shared.
//! * A lost executor is noticed after [`EXECUTOR_TIMEOUT_S`], or when a request to it fails. The jobs that it has
//!   worked on end ([`guard`]), and the client submits them again.
//! * Nothing is authenticated or encrypted: any process that reaches a port can have DataFusion read everything that
//!   the executors can read.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod executor;
mod guard;
mod log_lines;
mod scheduler;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use dormouse_abi::requests::Requests;
use dormouse_terminal::{EXIT_CODES, Output};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time between two heartbeats of an executor, in seconds.
const HEARTBEAT_S: u64 = 1;
/// Time without a heartbeat after which an executor counts as lost, in seconds. Ballista counts whole seconds, so two
/// would leave no margin.
const EXECUTOR_TIMEOUT_S: u64 = 5;
/// Maximum size of a message, in bytes. It is large because a plan names all files that it reads.
const MESSAGE_BYTES_MAX: u32 = 256 << 20;

/// Start a scheduler or an executor of a cluster that answers queries to stores of traces
#[derive(Debug, Parser)]
#[command(name = "dormouse-cluster", bin_name = "dormouse cluster", version, max_term_width = 100, after_help = after_help())]
struct Cluster {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Accept queries and distribute their tasks to executors; a cluster has one scheduler
    Scheduler(scheduler::Scheduler),
    /// Execute tasks of a scheduler's queries
    Executor(executor::Executor),
}

/// Options of the scheduler and of executors.
#[derive(Debug, Args)]
struct Common {
    /// Log progress, not only problems
    #[arg(long)]
    verbose: bool,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  dormouse cluster scheduler                                                  for this machine alone
  dormouse cluster executor --scheduler localhost:50050
  dormouse query --cluster df://localhost:50050 STORE 'select count(*) from events'
  dormouse cluster scheduler --bind 10.0.0.1:50050                            for other machines
  dormouse cluster executor --scheduler 10.0.0.1:50050 --bind 10.0.0.2:50051

These variables tell executors how to read s3://…: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT, AWS_ALLOW_HTTP.

After SIGTERM or Ctrl-C, a scheduler completes its queries, and an executor its tasks, before they end; a second signal, more than 0.2 s later, ends them at once.

Nothing is authenticated or encrypted: bind to loopback or to a private network.

{EXIT_CODES}"
    )
}

fn main() -> ExitCode {
    dormouse_terminal::main(|command| command, run)
}

fn run(cluster: Cluster, out: &mut Output) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let done = match cluster.part {
        Part::Scheduler(scheduler) => runtime.block_on(scheduler.run(out)),
        Part::Executor(executor) => runtime.block_on(executor.run(out)),
    };
    // Does not wait for tasks that are still blocked.
    runtime.shutdown_background();
    done.map(|()| 0)
}

/// Returns an address as other machines reach it, or `None` for an unspecified one (0.0.0.0).
fn told(ip: IpAddr) -> Option<String> {
    (!ip.is_unspecified()).then(|| SocketAddr::new(ip, 0).ip().to_string())
}

/// Requests to end: SIGTERM or Ctrl-C.
struct Ends {
    interrupt: Signal,
    terminate: Signal,
    begun: Instant,
    requests: Requests,
}

impl Ends {
    fn new() -> Result<Ends> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Ends { interrupt, terminate, begun: Instant::now(), requests: Requests::default() })
    }

    /// Waits for the next request. Signals in quick succession are one request.
    async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
            if self.requests.is_new(self.begun.elapsed()) {
                return;
            }
        }
    }
}
