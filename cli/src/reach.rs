//! The time that a command waits for a program, which may answer only once it passes a tracepoint.

use std::time::Duration;

use clap::Args;
use dormouse_terminal::{parse_duration, say};
use dormouse_tools::{Program, Wait};

/// Default wait for a program that lists its event classes, disarms them, or lists or sets tunables.
pub(crate) const SHORTLY: Option<Duration> = Some(Duration::from_secs(5));
/// Default wait for a program whose events are to be armed: no limit.
pub(crate) const FOR_EVER: Option<Duration> = None;

#[derive(Debug, Args)]
pub(crate) struct Reach {
    /// How long to wait for the program's answer; it answers at its next tracepoint, unless one of its threads listens [default: 5s; when arming, until
    /// it answers]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,
}

impl Reach {
    /// Returns the time that was given with `--wait`.
    pub(crate) fn given(&self) -> Option<Duration> {
        self.wait
    }

    /// Waits until the program can be asked, and returns it. `default` is the limit if `--wait` was not given.
    pub(crate) fn find(&self, pid: u32, default: Option<Duration>) -> anyhow::Result<Program> {
        let on_wait = &mut |pid| {
            say(format_args!("waiting for process {pid}, which answers at its next tracepoint (Ctrl-C stops waiting)"));
        };
        Ok(Program::find_soon(pid, &mut Wait { limit: self.wait.or(default), on_wait })?)
    }
}
