//! `dormouse budget`.

use std::io::Write;

use clap::Args;
use dormouse_tools::ask_for_budget;
use serde_json::json;

use crate::programs::session_of;
use dormouse_terminal::{Output, parse_size};

/// Show the memory of a live session, or change its size
///
/// All CPUs take their pages from one budget. It can grow up to the maximum with which the session was started (`--budget-max`). When it
/// shrinks, pages return to the system as soon as they are no longer in use; a flight recorder keeps its newest pages.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse budget                    show the budget of the only live session
  dormouse budget 1234 --set 64M     change the budget of the session that process 1234 is in

Exit code: 0; 2 if there is no such session, or the budget was not changed.")]
pub(crate) struct Budget {
    /// Process id or name of a program in the session, process id of the session's owner, the session's socket, or the directory of its trace
    /// [default: the only live session]
    #[arg(value_name = "PID|NAME|SESSION")]
    target: Option<String>,
    /// Change the budget to SIZE, such as 512K, 16M or 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    set: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Budget {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let session = session_of(self.target.as_deref())?;
        let state = ask_for_budget(&session, self.set)?;
        if self.json {
            let text = json!({
                "session": session.path(),
                "mode": if state.is_overwrite { "overwrite" } else { "discard" },
                "page_size_bytes": state.page_size_bytes,
                "budget_bytes": state.bytes,
                "budget_max_bytes": state.bytes_max,
                "room_bytes": state.room,
                "free_bytes": state.free,
                "written_bytes": state.drawn,
                "closed_bytes": state.queued,
                "beyond_bytes": state.beyond,
                "streams": state.streams,
            });
            out.json(&text)?;
            return Ok(0);
        }
        writeln!(
            out,
            "budget {} in pages of {}, at most {}",
            size(state.bytes),
            size(state.page_size_bytes.into()),
            size(state.bytes_max)
        )?;
        let closed = if state.is_overwrite { "retained" } else { "waiting to be written to the trace" };
        writeln!(
            out,
            "  {} free, {} written to by {} streams, {} {closed}",
            size(state.free),
            size(state.drawn),
            state.streams,
            size(state.queued)
        )?;
        if state.room > 0 {
            writeln!(
                out,
                "  {} more while snapshots are taken; they are released soon after the last one",
                size(state.room)
            )?;
        }
        if state.beyond > 0 {
            writeln!(
                out,
                "  {} beyond the budget, still in use: they are released when their pages are closed",
                size(state.beyond)
            )?;
        }
        Ok(0)
    }
}

/// Formats a size in the notation that `--budget` reads, to one decimal.
fn size(bytes: u64) -> String {
    let (unit, letter) = match bytes {
        0x4000_0000.. => (1 << 30, "G"),
        0x10_0000.. => (1 << 20, "M"),
        1.. => (1 << 10, "K"),
        0 => return "0".into(),
    };
    let number = format!("{:.1}", bytes as f64 / unit as f64);
    format!("{}{letter}", number.strip_suffix(".0").unwrap_or(&number))
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_written_as_they_are_read() {
        let texts = [0, 512 << 10, 16 << 20, (16 << 20) + (1 << 19), 1 << 30].map(super::size);
        assert_eq!(texts, ["0", "512K", "16M", "16.5M", "1G"]);
    }
}
