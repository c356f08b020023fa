//! How commands find a program, which may answer only once it passes a tracepoint, and explain why they cannot.

use std::time::Duration;

use clap::Args;
use dormouse_abi::message::{ProgramToTool, ToolToProgram};
use dormouse_doctor::explain;
use dormouse_terminal::{parse_duration, say};
use dormouse_tools::{Program, ProgramError, Wait};

use crate::patterns::{KnownClass, known};

/// Default wait for a program that lists its event classes, disarms them, or lists or sets tunables.
pub(crate) const SHORT_LIMIT: Option<Duration> = Some(Duration::from_secs(5));
/// Default wait for a program whose events are to be armed: no limit.
pub(crate) const NO_LIMIT: Option<Duration> = None;

/// The option `--wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitOption {
    /// How long to wait for a program's answer; it answers at its next tracepoint, unless one of its threads listens [default: 5s; when arming one
    /// program, until it answers]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,
}

impl WaitOption {
    /// Returns the time that was given with `--wait`.
    pub(crate) fn given(&self) -> Option<Duration> {
        self.wait
    }

    /// Waits until the program can be asked, and returns it. `default` is the limit if `--wait` was not given.
    pub(crate) fn find(&self, pid: u32, default: Option<Duration>) -> anyhow::Result<Program> {
        self.try_find(pid, default).map_err(explained)
    }

    /// Like [`WaitOption::find`], without explaining the error.
    pub(crate) fn try_find(&self, pid: u32, default: Option<Duration>) -> Result<Program, ProgramError> {
        let on_wait = &mut |pid| {
            say(format_args!("waiting for process {pid}, which answers at its next tracepoint (Ctrl-C stops waiting)"));
        };
        Program::find_soon(pid, &mut Wait { limit: self.wait.or(default), on_wait })
    }
}

/// Returns the error with its explanation and remedy.
pub(crate) fn explained(error: ProgramError) -> anyhow::Error {
    anyhow::Error::msg(explain(&error))
}

/// Returns the programs' event classes.
pub(crate) fn known_classes(programs: &[Program]) -> Vec<KnownClass> {
    let answers = programs.iter().flat_map(|program| program.ask(&ToolToProgram::List).unwrap_or_default());
    let classes = answers.flat_map(|answer| match answer {
        ProgramToTool::Classes { classes, .. } => classes,
        _ => Vec::new(),
    });
    classes.map(|class| known(&class.decl)).collect()
}
