//! `dormouse record`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use dormouse_abi::environment::{ENV_DISK_MAX_USER, ENV_LISTEN};
use dormouse_abi::record::RecordKind;
use dormouse_abi::trigger::{PATTERN_COUNT_MAX, Trigger};
use dormouse_control::raise_descriptor_limit;
use dormouse_owner::{
    Cpus, Ended, Ending, Inheritance, Mode, NAMED_SHOWN_MAX, NewSession, Options, Outcome, Remote, Summary,
    SupervisedOwner, Supervisor, Traced, find_libc_library, on_ending_signals,
};
use dormouse_tools::{why_not_joined, why_not_preloaded};

use crate::patterns::{classes, say_unmatched, unmatched};
use crate::reach::{FOR_EVER, Reach};
use dormouse_ctf::Format;
use dormouse_terminal::{Output, parse_size, say};

/// Run a command and record the events of all its processes, or record a program that already runs
///
/// The trace is a directory in the Common Trace Format: `dormouse view`, `dormouse stats` and babeltrace2 read it. The command keeps its
/// input, output, signals and exit code. At the end a line on standard error says what was recorded.
///
/// An event is named `provider:name`. Rust's macro writes `provider.name`; patterns may be written either way.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse record -- ./server                     all events of an instrumented program
  dormouse record -e 'http:*' -e db:query -- ./server
  dormouse record --libc -o trace -- make -j2     malloc, open, read, … of a whole build
  dormouse record --context none -- ./server      events without process and thread id: small events take half the space
  dormouse record --mode overwrite --snapshot-on crash,USR2 -- ./server
                                                  a flight recorder; `dormouse snapshot` at any time
  dormouse record --attach 1234 -e 'http:*'       a program that already runs; Ctrl-C ends the recording

An event can trigger a snapshot (--snapshot-on):
  event:shop:order_failed                         an event of this class; `*` and `?` are wildcards
  'duration:shop:order_begin..shop:order_end>50ms'
                                                  in one thread, more than 50 ms from the last begin to an end
The classes of a trigger are armed, and the event that triggers is in the snapshot. A trigger of a process requests at most one \
snapshot a second; while it keeps firing, the interval grows, up to an hour, and each snapshot says how often the trigger fired since \
the one before. All processes of a session together get 32 snapshots by their triggers, crashes and exits too, and one more each minute.

The recording ends with its command. Processes that go on, such as a daemon's, are named in the last line, and not recorded any more; with --wait-all they are recorded to their ends. A program that a cleared environment keeps from the session (sudo, su -, cron, test runners) is named if it was seen.

At the end, patterns that matched no event are named.

The last line says how many events were lost, or `at least N lost because …` (`unknown how many lost because …`, if none was counted) where \
something happened that can lose events and that nobody can count: a program could not join, a packet was not valid, a program was frozen when the recording ended.

Signals are passed on to the command. When it has ended, the recording ends within 3 s, whatever other programs do (a disk that hangs is \
waited for). If it does not take SIGTERM, SIGINT or SIGHUP because it is frozen, stopped or traced, the recording ends without it. A second \
such signal, more than 0.2 s later, ends the recording at once, and `dormouse salvage` makes a trace of what is there; Ctrl-C counts only once the \
command has ended.

Options stand before the command: from its name on, and behind `--`, everything is the command's.

Exit code: the command's; 128 + N if signal N ended it, or was to end it while it was frozen; 2 if there was nothing to run or record; with \
--fail-on-loss, 3 in place of 0 if events were lost, or may have been.")]
pub(crate) struct Record {
    /// Directory of the trace, new or empty [default: dormouse-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Arm the events that match `provider:name`; `*` and `?` are wildcards; may be given several times [default: all]
    #[arg(short, long = "event", value_name = "PATTERN")]
    events: Vec<String>,
    /// Also trace malloc, open, read, write, close, dup, mutexes … of unmodified programs (events libc:*)
    #[arg(long)]
    libc: bool,
    #[command(flatten)]
    settings: Settings,
    /// Write a snapshot beside the trace when this happens in a traced program: `crash`, `panic` (of Rust), `exit`, a signal such as
    /// `USR2`, an event, or too long a duration between two events (see below); several are separated by commas. Needs
    /// `--mode overwrite`. Not with `--attach`, because a program reads its triggers when it starts
    #[arg(long, value_name = "TRIGGER", value_delimiter = ',', value_parser = Trigger::parse, conflicts_with = "attach")]
    snapshot_on: Vec<Trigger>,
    /// Exit with 3, where it would be 0, if events were lost or may have been
    #[arg(long)]
    fail_on_loss: bool,
    /// Write what the last line says into FILE, as JSON, when the recording ends; `/dev/fd/3` is the descriptor 3 of whoever runs this
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Go on when the command has ended, until the last of the processes that it has started, and that have joined, has ended too; a daemon's among
    /// them. Ctrl-C ends the recording
    #[arg(long, conflicts_with = "attach")]
    wait_all: bool,
    /// Record the program PID, which already runs, instead of running a command
    #[arg(long, value_name = "PID", conflicts_with_all = ["libc", "command"])]
    attach: Option<u32>,
    #[command(flatten)]
    reach: Reach,
    /// Say `ready` on standard output once the program has joined, and let go of the terminal (for `dormouse arm`)
    #[arg(long, hide = true, requires = "attach")]
    background: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "attach", value_name = "CMD")]
    command: Vec<OsString>,
}

/// Returns a warning about the effect of `DORMOUSE_LISTEN` on preloaded programs, if it is set to a mode.
fn listening_of_preloaded() -> Option<&'static str> {
    match std::env::var(ENV_LISTEN).ok()?.as_str() {
        "1" | "thread" => Some(
            "DORMOUSE_LISTEN=thread starts a thread in every program before its first function: there `unshare -U` fails, a change of user may abort \
             (setpriv), and Python warns of fork; without it programs are recorded all the same",
        ),
        "signal" => Some(
            "DORMOUSE_LISTEN=signal is not for --libc, whose tracepoints lie in the allocator: programs are recorded, and do not listen",
        ),
        _ => None,
    }
}

fn parse_cpus(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("`{text}` is not two numbers, such as 256:4");
    let (possible, online) = text.split_once(':').ok_or_else(wrong)?;
    let parse = |number: &str| number.parse().ok().filter(|number| *number > 0).ok_or_else(wrong);
    Ok((parse(possible)?, parse(online)?))
}

/// Options that only a new session can have.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Memory for events that are not on disk yet, such as 512K, 16M or 1G [default: 16M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    budget: Option<u64>,
    /// The largest budget that can be set while the session is live (`dormouse budget --set`) [default: four times the budget; on
    /// machines with more than 32 possible CPUs the budget itself]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    budget_max: Option<u64>,
    /// Behave as on a machine with so many possible CPUs, of which so many are online
    #[arg(long, value_name = "POSSIBLE:ONLINE", value_parser = parse_cpus, hide = true)]
    pretend_cpus: Option<(u32, u32)>,
    /// When the memory is full: drop and count new events, or overwrite the oldest events [default: discard]
    #[arg(long, value_parser = one_of([Mode::Discard, Mode::Overwrite], Mode::name))]
    mode: Option<Mode>,
    /// Keep the memory in FILE, which must be new, or in a new file in a directory, on tmpfs (/dev/shm), ext4 or xfs, so that
    /// `dormouse salvage` finds it even if this command and the programs are killed. A session that ends removes it. If the file is
    /// truncated, programs that map it get SIGBUS. With a file on a disk, a write to the memory may wait for the disk
    #[arg(long, value_name = "FILE")]
    buffers: Option<PathBuf>,
    /// Write at most SIZE to disk for the trace and its snapshots together, at least 256K: events beyond that are lost and counted, snapshots
    /// are refused [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk_max: Option<u64>,
    /// Have the session's memory in core dumps of the traced programs [default: they are as large as without dormouse, unless the program was
    /// executed under a filter of system calls (seccomp)]
    #[arg(long)]
    dump_buffers: bool,
    /// Write to disk only as long as all live sessions of this user that have this option or DORMOUSE_DISK_MAX_USER=SIZE have at most SIZE
    /// together, at least 256K: events beyond that are lost and counted, snapshots and new sessions are refused. A session that has lost events
    /// so writes none any more [default: DORMOUSE_DISK_MAX_USER, or no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk_max_user: Option<u64>,
    /// What each event says about its writer: `ids`, the process and the thread, or `none`, which makes an event 11 bytes shorter
    /// [default: ids]
    #[arg(long, value_parser = one_of([RecordKind::Ids, RecordKind::Compact], RecordKind::name), hide_possible_values = true)]
    context: Option<RecordKind>,
    /// Version of the Common Trace Format that the description of the trace (its file `metadata`) is written in: `ctf1.8`, which all readers
    /// know, or `ctf2`, JSON, which babeltrace2 reads from version 2.1 on. The events are the same bytes [default: ctf1.8]
    #[arg(long, value_parser = one_of([Format::Ctf18, Format::Ctf2], Format::name), hide_possible_values = true)]
    format: Option<Format>,
}

impl Settings {
    fn cpus(&self) -> Cpus {
        let pretended = self.pretend_cpus.map(|(possible, online)| Cpus::pretended(possible, online));
        pretended.unwrap_or_else(Cpus::of_machine)
    }

    fn mode(&self) -> Mode {
        self.mode.unwrap_or_default()
    }

    /// Returns the maximum for all sessions of the user, in bytes, from the option or else from the environment.
    fn disk_max_user(&self) -> anyhow::Result<Option<u64>> {
        let named =
            std::env::var(ENV_DISK_MAX_USER).ok().filter(|text| self.disk_max_user.is_none() && !text.is_empty());
        let named = named.map(|text| parse_size(&text).map_err(|error| anyhow!("{ENV_DISK_MAX_USER}: {error}")));
        Ok(self.disk_max_user.or(named.transpose()?))
    }

    /// Returns the options that were given, as arguments for another `dormouse`.
    pub(crate) fn given(&self) -> Vec<(&'static str, Option<OsString>)> {
        let pretended = self.pretend_cpus.map(|(possible, online)| format!("{possible}:{online}"));
        let options = [
            ("--budget", self.budget.map(|bytes| bytes.to_string().into())),
            ("--budget-max", self.budget_max.map(|bytes| bytes.to_string().into())),
            ("--pretend-cpus", pretended.map(OsString::from)),
            ("--mode", self.mode.map(|mode| mode.name().into())),
            ("--disk-max", self.disk_max.map(|bytes| bytes.to_string().into())),
            ("--disk-max-user", self.disk_max_user.map(|bytes| bytes.to_string().into())),
            ("--buffers", self.buffers.clone().map(OsString::from)),
            ("--context", self.context.map(|context| context.name().into())),
            ("--format", self.format.map(|format| format.name().into())),
        ];
        let with_value = options.into_iter().filter(|(_, value)| value.is_some());
        with_value.chain(self.dump_buffers.then_some(("--dump-buffers", None))).collect()
    }
}

/// Returns a parser that accepts the name of one of `values`.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.map(name))
        .try_map(move |given| values.into_iter().find(|value| name(*value) == given).ok_or("there is no such value"))
}

/// Returns a directory name that contains the local time.
pub(crate) fn default_dir(what: &str) -> PathBuf {
    let now = jiff::ZonedDateTime::now();
    PathBuf::from(format!("{what}-{}", now.strftime("%Y%m%d-%H%M%S")))
}

impl Record {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let dir = self.output.clone().unwrap_or_else(|| default_dir("dormouse"));
        raise_descriptor_limit();
        match self.attach {
            Some(pid) => self.attach(pid, &dir, out),
            None if self.reach.given().is_some() => {
                bail!("--wait is for --attach: a command that is run joins by itself")
            }
            None => self.run_command(&dir),
        }
    }

    fn options(&self, dir: &Path, command_line: String) -> anyhow::Result<Options> {
        let mut patterns = self.events.clone();
        if patterns.is_empty() {
            patterns.push("*".into());
        } else if self.libc && !patterns.iter().any(|pattern| pattern.starts_with("libc")) {
            patterns.push("libc:*".into());
        }
        // A trigger whose events are not armed would never fire.
        patterns.extend(self.snapshot_on.iter().flat_map(Trigger::patterns).map(String::from));
        let defaults = Options::new(dir.into());
        Ok(Options {
            budget_bytes: self.settings.budget.unwrap_or(defaults.budget_bytes),
            budget_max_bytes: self.settings.budget_max,
            cpus: self.settings.cpus(),
            mode: self.settings.mode(),
            context: self.settings.context.unwrap_or_default(),
            format: self.settings.format.unwrap_or_default(),
            patterns,
            command_line,
            may_be_stopped: self.attach.is_some(),
            buffers: self.settings.buffers.clone(),
            dump_buffers: self.settings.dump_buffers,
            disk_bytes_max: self.settings.disk_max,
            disk_bytes_user_max: self.settings.disk_max_user()?,
            ..defaults
        })
    }

    /// Prints a line for each given pattern that matches no class that a program has announced.
    fn say_unmatched(&self, names: &[String]) {
        let events: Vec<&str> = self.events.iter().map(String::as_str).collect();
        let (libc, events): (Vec<&str>, Vec<&str>) =
            events.into_iter().partition(|pattern| pattern.starts_with("libc") && !self.libc);
        say_unmatched(&events, names, "");
        for pattern in unmatched(&libc, names) {
            say(format_args!("no event matches {pattern}; `--libc` has a command's calls of libc traced"));
        }
        let triggers: Vec<&str> = self.snapshot_on.iter().flat_map(Trigger::patterns).collect();
        say_unmatched(&triggers, names, " of --snapshot-on");
    }

    fn run_command(self, dir: &Path) -> anyhow::Result<u8> {
        if !self.snapshot_on.is_empty() && self.settings.mode() != Mode::Overwrite {
            bail!("--snapshot-on needs --mode overwrite: a session in discard mode keeps no events");
        }
        let pattern_count = self.snapshot_on.iter().flat_map(Trigger::patterns).count();
        if pattern_count > PATTERN_COUNT_MAX {
            bail!(
                "--snapshot-on has {pattern_count} patterns of events, and at most {PATTERN_COUNT_MAX} are possible; leave some out, or join some by `*`"
            );
        }
        let preload = if self.libc { Some(find_libc_library()?) } else { None };
        let command_line: Vec<_> = self.command.iter().map(|argument| argument.to_string_lossy()).collect();
        let options = self.options(dir, command_line.join(" "))?;
        if let Some(what) = listening_of_preloaded().filter(|_| self.libc) {
            say(what);
        }
        let remote = Remote::default();
        let supervisor = self.supervise(&options, &remote)?;
        let at_once = end_at_once(dir, remote.clone());
        let traced =
            Traced::start(&self.command, supervisor.entrance(), preload.as_deref(), &self.snapshot_on, at_once);
        let traced = match traced {
            Ok(traced) => traced,
            Err(error) => {
                supervisor.abandon();
                return Err(error.into());
            }
        };
        let pid = traced.pid();
        supervisor.note_command(pid);
        let ended = traced.wait();
        if let Some(why) = self.command.first().filter(|_| self.libc).and_then(|program| why_not_preloaded(program)) {
            say(why);
        }
        let code = match ended {
            Ended::Exited(code) => code as u8,
            Ended::Frozen(signal) => {
                say(format_args!(
                    "process {pid} has not taken signal {signal}: it is frozen, stopped or traced; it stays as it is, and its recording \
                     has ended"
                ));
                (128 + signal) as u8
            }
            Ended::Interrupted => 0,
        };
        if self.wait_all && matches!(ended, Ended::Exited(_)) {
            let interrupted = remote.clone();
            remote.finish_with_the_last(code);
            traced.on_interrupt(move || interrupted.finish(code))?;
        } else {
            remote.finish(code);
        }
        Ok(concluded(supervisor.wait(), dir, code))
    }

    /// Creates the session and starts an owner, which prints the summary at the end.
    fn supervise(&self, options: &Options, remote: &Remote) -> anyhow::Result<Supervisor> {
        let summary = self.summary_file()?;
        // The owner runs the same command, with its inheritance as leading arguments.
        let arguments = std::env::args_os().skip(1).collect();
        Ok(Supervisor::start(NewSession::create(options)?, arguments, summary, remote)?)
    }

    /// Owns the session until it ends, in the owner's process. Returns the exit code.
    pub(crate) fn own(self, inheritance: Inheritance) -> anyhow::Result<u8> {
        raise_descriptor_limit();
        let dir = inheritance.dir().to_owned();
        // Errors are sent to the supervisor, which prints them.
        let Ok(mut owner) = SupervisedOwner::take_up(inheritance) else { return Ok(EXIT_NOTHING) };
        if let Some(pid) = self.attach {
            let Ok((attached, armed)) = owner.attach(pid) else { return Ok(EXIT_NOTHING) };
            owner = attached;
            if self.background {
                let_go_of_terminal()?;
            }
            owner.tell_armed(armed);
        }
        let ending = owner.wait(self.attach.is_some());
        if let Some(pid) = self.attach.filter(|_| ending == Ending::Deserted && !self.background) {
            say(format_args!("process {pid} has ended"));
        }
        let (session, summary_file, tell_done) = owner.into_parts();
        let names = session.class_names();
        let summary = session.finish();
        if !self.background {
            self.report(&summary, &names, &dir);
        }
        let code = match ending {
            Ending::Asked(code) => code,
            Ending::Deserted => 0,
        };
        // An error is printed here: another owner could not write the summary either.
        let code = self.conclude(&summary, summary_file, &dir, code).unwrap_or_else(|error| {
            say(format_args!("{error:#}"));
            2
        });
        tell_done(code);
        Ok(code)
    }

    /// Opens the file of `--summary` before anything is recorded, so that an error is reported early.
    fn summary_file(&self) -> anyhow::Result<Option<File>> {
        let open = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        self.summary.as_ref().map(open).transpose()
    }

    /// Writes the summary to the file of `--summary`, if there is one, and returns the exit code.
    fn conclude(&self, summary: &Summary, file: Option<File>, dir: &Path, code: u8) -> anyhow::Result<u8> {
        let code = if code == 0 && self.fail_on_loss && summary.losses.is_any() { EXIT_LOSS } else { code };
        if let Some(mut file) = file {
            // An earlier owner may have been killed while it wrote. On a pipe this fails, which does not matter.
            let _ = file.set_len(0).and_then(|()| file.rewind());
            let mut json = serde_json::to_value(summary)?;
            json["dir"] = dir.to_string_lossy().into();
            json["lost"] = summary.losses.lost().into();
            json["is_lost_exact"] = summary.losses.is_exact().into();
            json["exit_code"] = code.into();
            let text = serde_json::to_string_pretty(&json)?;
            writeln!(file, "{text}").context("cannot write the file of --summary")?;
        }
        Ok(code)
    }

    /// Prints messages about the recording, and the summary as the last line.
    fn report(&self, summary: &Summary, names: &[String], dir: &Path) {
        self.say_unmatched(names);
        for refusal in &summary.classes_refused {
            say(refusal);
        }
        say_first(summary.unjoined.iter().map(|unjoined| &unjoined.reason));
        say_first(summary.executed.iter());
        let dir = dir.display();
        if summary.processes > 0 || !summary.classes_refused.is_empty() {
            say(format_args!(
                "{summary}; look at it with `dormouse stats {dir}`, `dormouse view {dir}` or babeltrace2"
            ));
        } else {
            // If the command's file shows why the library is not preloaded, `run_command` has said so already.
            let is_open = |program: &OsString| !self.libc || why_not_preloaded(program).is_none();
            let is_told = !summary.unjoined.is_empty() || !self.command.first().is_some_and(is_open);
            let library = if self.libc { find_libc_library().ok() } else { None };
            let why = (!is_told).then(|| format!(": {}", why_not_joined(&self.command, library.as_deref())));
            let why = why.unwrap_or_default();
            say(format_args!("{summary}; no process joined{why}"));
        }
    }

    fn attach(self, pid: u32, dir: &Path, out: &mut Output) -> anyhow::Result<u8> {
        // The program is looked for before anything is created.
        let program = self.reach.find(pid, FOR_EVER)?;
        let remote = Remote::default();
        let interrupt = remote.clone();
        on_ending_signals(move || interrupt.finish(0), end_at_once(dir, remote.clone()))?;
        let options = self.options(dir, format!("--attach {pid}"))?;
        let (supervisor, armed) = self.supervise(&options, &remote)?.attached()?;
        // The owner has a connection of its own to the program, and watches it.
        drop(program);
        if self.background {
            writeln!(out, "ready {armed}")?;
            out.flush()?;
            let_go_of_terminal()?;
        } else {
            let dir = dir.display();
            say(format_args!("recording {} of process {pid} into {dir}; Ctrl-C ends it", classes(armed)));
        }
        Ok(concluded(supervisor.wait(), dir, 0))
    }
}

/// Prints the first `NAMED_SHOWN_MAX` lines, and the number of the others.
fn say_first(lines: impl ExactSizeIterator<Item = impl std::fmt::Display>) {
    let others = lines.len().saturating_sub(NAMED_SHOWN_MAX);
    lines.take(NAMED_SHOWN_MAX).for_each(say);
    if others > 0 {
        say(format_args!("and {others} others, which the file of --summary has"));
    }
}

/// Returns the exit code of a recording with this outcome. Prints why, unless the recording is complete.
fn concluded(outcome: Outcome, dir: &Path, code: u8) -> u8 {
    match outcome {
        Outcome::Done(code) => code,
        Outcome::Failed(why) | Outcome::GivenUp(why) => {
            let dir = dir.display();
            say(format_args!("{why}; `dormouse salvage {dir}` makes a trace of what is there"));
            if code == 0 { 2 } else { code }
        }
    }
}

/// Exit code if there was nothing to run or record.
const EXIT_NOTHING: u8 = 2;

/// Exit code with `--fail-on-loss` if events were lost, or may have been.
pub(crate) const EXIT_LOSS: u8 = 3;

/// Returns the handler of a second signal: it kills the owner and exits at once.
fn end_at_once(dir: &Path, remote: Remote) -> impl Fn(i32) + Send + 'static {
    let dir = dir.to_owned();
    move |signal| {
        remote.kill();
        say(format_args!(
            "ended at once by signal {signal}; `dormouse salvage {}` makes a trace of what is there",
            dir.display()
        ));
        signal_hook::low_level::exit(128 + signal)
    }
}

/// Detaches the process from the terminal: it gets a session of its own, and `/dev/null` as standard streams.
fn let_go_of_terminal() -> anyhow::Result<()> {
    // This fails only for a group leader, and a newly started child is not one.
    let _ = rustix::process::setsid();
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
