//! `dormouse snapshot`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use dormouse_control::Take;
use dormouse_tools::{ask_for_snapshot, find_session};
use serde_json::json;

use crate::program::explained;
use crate::record::default_dir;
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

`--last` is exact to the event; `--max-size` counts whole pages (64 KiB with the default budget).

Exit code: 0; 2 if there is no such session, it holds no events, or the trace cannot be written.")]
pub(crate) struct Snapshot {
    /// Process id of a program in the session or of the session's owner, or the session's socket [default: the only live session]
    #[arg(value_name = "PID|SESSION")]
    target: Option<String>,
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
        let session = find_session(self.target.as_deref()).map_err(explained)?;
        let dir = self.output.unwrap_or_else(|| default_dir("dormouse-snapshot"));
        let wanted =
            Take { dir: Some(dir.clone()), last: self.last, bytes_max: self.max_size, trigger: "command".into() };
        if std::io::stderr().is_terminal() {
            say(format_args!("taking a snapshot of {}", session.path().display()));
        }
        let snapshot = ask_for_snapshot(&session, &wanted)?;
        if self.json {
            let text = json!({
                "dir": snapshot.dir,
                "events": snapshot.events,
                "bytes": snapshot.bytes,
                "span_ns": snapshot.span_ns,
                "pages_missed": snapshot.pages_missed,
                "pages_refused": snapshot.pages_refused,
            });
            out.json(&text)?;
            return Ok(0);
        }
        let (events, bytes, dir) = (snapshot.events, snapshot.bytes, dir.display());
        let mut notes = String::new();
        if snapshot.pages_missed > 0 {
            notes += &format!("; {} older pages were overwritten meanwhile", snapshot.pages_missed);
        }
        if snapshot.pages_refused > 0 {
            notes += &format!("; {} pages were not valid and were left out", snapshot.pages_refused);
        }
        writeln!(
            out,
            "{events} events of the last {:.3} s, {bytes} bytes{notes}; look at them with `dormouse view {dir}`",
            Duration::from_nanos(snapshot.span_ns).as_secs_f64()
        )?;
        Ok(0)
    }
}
