//! `dormouse record`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use dormouse_abi::trigger::Trigger;
use dormouse_consumer::{
    Context as TraceContext, End, Mode, Options, Program, Session, Summary, Traced, find_libc_library, parse_size,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Run a command and record the events of all its processes, or join a program that runs already
///
/// The trace is a directory in the Common Trace Format 1.8: `dormouse view`, `dormouse stats` and
/// babeltrace2 read it. The command's input, output, signals and exit code are its own; a line on standard error at the end
/// tells what was recorded.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse record -- ./server                     all events of an instrumented program
  dormouse record -e 'http:*' -e db:query -- ./server
  dormouse record --libc -o trace -- make -j2     malloc, open, read, … of a whole build
  dormouse record --context none -- ./server      events without process and thread: small ones take half the space
  dormouse record --mode overwrite --snapshot-on crash,USR2 -- ./server
                                                  a flight recorder; `dormouse snapshot` at any time
  dormouse record --attach 1234 -e 'http:*'       a program that runs; Ctrl-C ends it

Exit code: the command's; 128 and the signal's number if a signal ended it; 2 if there was nothing to run or record.")]
pub(crate) struct Record {
    /// Directory of the trace, new or empty [default: dormouse-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Arm the events that match `provider:name`; `*` and `?` are wild; may be repeated [default: all]
    #[arg(short, long = "event", value_name = "PATTERN")]
    events: Vec<String>,
    /// Also trace malloc, open, read, write, close, mutexes … of unmodified programs (events libc:*)
    #[arg(long)]
    libc: bool,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    records: Records,
    /// Have the traced programs ask for a snapshot, written beside the trace, when this happens: `crash`, `panic` (of Rust), `exit`, or
    /// a signal such as `USR2`; several are separated by commas. Needs `--mode overwrite`
    #[arg(long, value_name = "TRIGGER", value_delimiter = ',', value_parser = trigger, conflicts_with = "attach")]
    snapshot_on: Vec<String>,
    /// Join the program PID instead of running a command
    #[arg(long, value_name = "PID", conflicts_with_all = ["libc", "command"])]
    attach: Option<u32>,
    /// Say `ready` on standard output once the program has joined, and let go of the terminal (for `dormouse arm`)
    #[arg(long, hide = true, requires = "attach")]
    background: bool,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "attach", value_name = "CMD")]
    command: Vec<OsString>,
}

fn trigger(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is not a trigger; write crash, panic, exit, or a signal such as USR2");
    Trigger::parse(text).map(|_| text.into()).ok_or_else(wrong)
}

/// Memory of a session.
#[derive(Debug, Args)]
pub(crate) struct Memory {
    /// Memory for events that are not on disk yet, such as 512K, 16M or 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16M")]
    pub(crate) budget: u64,
    /// When the memory is full: drop and count new events, or overwrite the oldest and keep the end of the story
    #[arg(long, value_enum, default_value = "discard")]
    pub(crate) mode: ModeArgument,
}

/// Records of a session.
#[derive(Debug, Args)]
pub(crate) struct Records {
    /// What each event tells of its writer: `ids`, the process and the thread, or `none`, which makes an event 11 bytes shorter
    #[arg(long, value_enum, default_value = "ids", hide_possible_values = true)]
    pub(crate) context: ContextArgument,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ContextArgument {
    Ids,
    None,
}

impl From<ContextArgument> for TraceContext {
    fn from(argument: ContextArgument) -> TraceContext {
        match argument {
            ContextArgument::Ids => TraceContext::Ids,
            ContextArgument::None => TraceContext::None,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ModeArgument {
    Discard,
    Overwrite,
}

impl ModeArgument {
    pub(crate) fn name(self) -> &'static str {
        Mode::from(self).name()
    }
}

impl From<ModeArgument> for Mode {
    fn from(argument: ModeArgument) -> Mode {
        match argument {
            ModeArgument::Discard => Mode::Discard,
            ModeArgument::Overwrite => Mode::Overwrite,
        }
    }
}

/// A directory name that says when.
pub(crate) fn default_dir(what: &str) -> PathBuf {
    let now = jiff::Zoned::now();
    PathBuf::from(format!("{what}-{}", now.strftime("%Y%m%d-%H%M%S")))
}

impl Record {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let dir = self.output.clone().unwrap_or_else(|| default_dir("dormouse"));
        match self.attach {
            Some(pid) => self.attach(pid, &dir),
            None => self.run_command(&dir),
        }
    }

    fn options(&self, dir: &Path, command_line: String) -> Options {
        let mut patterns = self.events.clone();
        if patterns.is_empty() {
            patterns.push("*".into());
        } else if self.libc && !patterns.iter().any(|pattern| pattern.starts_with("libc")) {
            patterns.push("libc:*".into());
        }
        Options {
            dir: dir.into(),
            budget_bytes: self.memory.budget,
            mode: self.memory.mode.into(),
            context: self.records.context.into(),
            patterns,
            command_line,
            may_be_stopped: self.attach.is_some(),
        }
    }

    fn run_command(self, dir: &Path) -> anyhow::Result<u8> {
        if !self.snapshot_on.is_empty() && self.memory.mode.name() != Mode::Overwrite.name() {
            bail!("--snapshot-on needs --mode overwrite: a session in discard mode keeps no events");
        }
        let preload = if self.libc { Some(find_libc_library()?) } else { None };
        let command_line: Vec<_> = self.command.iter().map(|argument| argument.to_string_lossy()).collect();
        let options = self.options(dir, command_line.join(" "));
        let session = Session::create(&options)?;
        let traced = match Traced::start(&self.command, session.socket(), preload.as_deref(), &self.snapshot_on) {
            Ok(traced) => traced,
            Err(error) => {
                session.abandon();
                return Err(error.into());
            }
        };
        let code = traced.wait()?;
        report(&session.finish(), dir);
        Ok(code as u8)
    }

    fn attach(self, pid: u32, dir: &Path) -> anyhow::Result<u8> {
        // Found before anything is made.
        let program = Program::find(pid)?;
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("cannot handle signals")?;
        }
        let session = Session::create(&self.options(dir, format!("--attach {pid}")))?;
        let armed = match session.attach(&program) {
            Ok(armed) => armed,
            Err(error) => {
                session.abandon();
                return Err(error.into());
            }
        };
        if self.background {
            println!("ready {armed}");
            let_go_of_terminal()?;
        } else {
            eprintln!(
                "dormouse: recording {armed} event classes of process {pid} into {}; Ctrl-C ends it",
                dir.display()
            );
        }
        let end = session.wait(|| interrupted.load(Ordering::SeqCst));
        if end == End::Deserted && !self.background {
            eprintln!("dormouse: process {pid} has ended");
        }
        let summary = session.finish();
        if !self.background {
            report(&summary, dir);
        }
        Ok(0)
    }
}

fn report(summary: &Summary, dir: &Path) {
    let dir = dir.display();
    if summary.processes == 0 {
        eprintln!(
            "dormouse: {summary}; no process joined: the command has no Dormouse tracepoints (or is static, or clears its \
             environment); `--libc` traces unmodified programs"
        );
        return;
    }
    eprintln!("dormouse: {summary}; look at it with `dormouse stats {dir}`, `dormouse view {dir}` or babeltrace2");
}

/// In the background: a session of its own, and nothing of the terminal's.
fn let_go_of_terminal() -> anyhow::Result<()> {
    // Fails for a group leader only, which a child that was just started is not.
    let _ = rustix::process::setsid();
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
