//! `dormouse snapshot`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use dormouse_abi::message::Snapshot as Taken;
use dormouse_control::Take;
use dormouse_tools::{SessionSocket, ask_for_snapshot};
use serde_json::json;

use crate::programs::{for_each, sessions_of};
use crate::record::default_dirs;
use dormouse_terminal::{Output, parse_duration, parse_size, say};

/// Write the events that a flight recorder holds as a trace
///
/// The session must be in overwrite mode, in which it keeps its newest events in memory. No program is stopped. The session continues
/// and keeps its events.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse record --mode overwrite --budget 64M -- ./server &    a flight recorder
  dormouse snapshot                                              of the only live session
  dormouse snapshot 1234 --last 5s -o slow-request               of the session of process 1234
  dormouse snapshot server                                       of every session with a program called server

`--last` is exact to the event; `--max-size` counts whole pages (64 KiB with the default budget). With --json, several snapshots are an array, and so \
is the result of `--all`. `-o` is for one session.

Exit code: 0; 2 if there is no such session, it is in discard mode, or the trace cannot be written.")]
pub(crate) struct Snapshot {
    /// Process id or name of a program in the session, process id of the session's owner, the session's socket, or the directory of its trace; several
    /// are separated by commas [default: the only live session]
    #[arg(value_name = "PID|NAME|SESSION")]
    target: Option<String>,
    /// All live sessions of this user, each into a directory of its own
    #[arg(long, conflicts_with_all = ["target", "output"])]
    all: bool,
    /// Directory of the trace, new or empty [default: dormouse-snapshot-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Leave out events older than this, such as 500ms, 5s or 2m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    last: Option<Duration>,
    /// Take no more than the newest SIZE, such as 512K or 16M; takes precedence over `--last`
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Snapshot {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let (sessions, code) = sessions_of(self.target.as_deref(), self.all)?;
        if self.output.is_some() && sessions.len() > 1 {
            bail!(
                "-o names one directory, but there are {} sessions; leave it out, or name one session",
                sessions.len()
            );
        }
        let is_list = self.all || sessions.len() > 1;
        let mut list = Vec::new();
        let code = code.max(for_each(sessions, |session| {
            let snapshot = self.take(&session)?;
            if self.json {
                list.push(json!({
                    "dir": snapshot.dir,
                    "events": snapshot.events,
                    "bytes": snapshot.bytes,
                    "span_ns": snapshot.span_ns,
                    "pages_missed": snapshot.pages_missed,
                    "pages_refused": snapshot.pages_refused,
                }));
            } else {
                print(&snapshot, out)?;
            }
            Ok(0)
        })?);
        match list.pop_if(|_| !is_list) {
            Some(snapshot) => out.json(&snapshot)?,
            None if self.json => out.json(&list)?,
            None => {}
        }
        Ok(code)
    }

    fn take(&self, session: &SessionSocket) -> anyhow::Result<Taken> {
        let free = || default_dirs("dormouse-snapshot").find(|dir| dir.symlink_metadata().is_err());
        let dir =
            self.output.clone().or_else(free).context("all names for the directory are taken; give one with -o")?;
        let wanted = Take { dir: Some(dir), last: self.last, bytes_max: self.max_size, trigger: "command".into() };
        if std::io::stderr().is_terminal() {
            say(format_args!("taking a snapshot of {}", session.path().display()));
        }
        Ok(ask_for_snapshot(session, &wanted)?)
    }
}

fn print(snapshot: &Taken, out: &mut Output) -> std::io::Result<()> {
    let mut notes = String::new();
    if snapshot.pages_missed > 0 {
        notes += &format!("; {} older pages were overwritten meanwhile", snapshot.pages_missed);
    }
    if snapshot.pages_refused > 0 {
        notes += &format!("; {} pages were not valid and were left out", snapshot.pages_refused);
    }
    let Taken { events, bytes, dir, .. } = snapshot;
    let seconds = Duration::from_nanos(snapshot.span_ns).as_secs_f64();
    writeln!(
        out,
        "{events} events of the last {seconds:.3} s, {bytes} bytes{notes}; look at them with `dormouse view {dir}`"
    )
}
