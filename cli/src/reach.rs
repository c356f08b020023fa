//! How long a command waits for a program that answers only once it passes a tracepoint.

use std::time::Duration;

use clap::Args;
use dormouse_terminal::{parse_duration, say};
use dormouse_tools::{Program, Wait};

/// How long a program is waited for that lists or changes what it has.
pub(crate) const SHORTLY: Option<Duration> = Some(Duration::from_secs(5));
/// One that is to be armed.
pub(crate) const FOR_EVER: Option<Duration> = None;

#[derive(Debug, Args)]
pub(crate) struct Reach {
    /// How long to wait for the program's answer: it answers once it passes a tracepoint, unless a thread of it listens [default: 5s; to arm it, until
    /// it answers]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,
}

impl Reach {
    /// The time that was given.
    pub(crate) fn given(&self) -> Option<Duration> {
        self.wait
    }

    /// The program, once it can be asked.
    pub(crate) fn find(&self, pid: u32, default: Option<Duration>) -> anyhow::Result<Program> {
        let on_wait = &mut |pid| {
            say(format_args!("process {pid} answers once it passes a tracepoint; waiting for that (Ctrl-C ends it)"));
        };
        Ok(Program::find_soon(pid, &mut Wait { limit: self.wait.or(default), on_wait })?)
    }
}
