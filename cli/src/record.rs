//! `dormouse record`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dormouse_consumer::{BUDGET_BYTES_DEFAULT, Mode, Options, Session, Traced, find_libc_library, parse_size};

/// Run a command and record the events of all its processes.
#[derive(Debug, Args)]
pub(crate) struct Record {
    /// Directory of the trace; must not exist or be empty.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Arm the events that match; `*` and `?` are wild.
    #[arg(short, long = "event", value_name = "PATTERN")]
    events: Vec<String>,
    /// Trace libc's functions too.
    #[arg(long)]
    libc: bool,
    /// Memory for events that are not written yet.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    budget: Option<u64>,
    /// What happens when the memory is full.
    #[arg(long, value_enum, default_value = "discard")]
    mode: ModeArgument,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModeArgument {
    Discard,
    Overwrite,
}

impl Record {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let dir = self.output.unwrap_or_else(|| "dormouse-trace".into());
        let preload = if self.libc { Some(find_libc_library()?) } else { None };
        let options = Options {
            dir: dir.clone(),
            budget_bytes: self.budget.unwrap_or(BUDGET_BYTES_DEFAULT),
            mode: match self.mode {
                ModeArgument::Discard => Mode::Discard,
                ModeArgument::Overwrite => Mode::Overwrite,
            },
            patterns: if self.events.is_empty() { vec!["*".into()] } else { self.events },
            command_line: self.command.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>().join(" "),
            may_be_stopped: false,
        };
        let session = Session::create(&options)?;
        let traced = match Traced::start(&self.command, session.socket(), preload.as_deref()) {
            Ok(traced) => traced,
            Err(error) => {
                session.abandon();
                return Err(error.into());
            }
        };
        let code = traced.wait()?;
        let summary = session.finish();
        eprintln!("dormouse: {summary}; see `dormouse stats {0}` or `babeltrace2 {0}`", dir.display());
        Ok(code as u8)
    }
}
