//! `dormouse record`.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, FromArgMatches};
use dormouse_abi::class::matches;
use dormouse_abi::environment::{ENV_DISK_MAX_USER, ENV_LISTEN};
use dormouse_abi::record::RecordKind;
use dormouse_abi::tag::TagNames;
use dormouse_abi::trigger::{PATTERN_COUNT_MAX, Trigger};
use dormouse_control::raise_descriptor_limit;
use dormouse_ctf::Format;
use dormouse_doctor::{explain, explain_not_preloaded};
use dormouse_owner::{
    CommandEnd, Cpus, Joined, Mode, NewSession, Options, Outcome, Recording, Remote, Supervisor, Traced,
    detach_from_terminal, find_libc_library, on_ending_signals,
};
use dormouse_terminal::{Output, parse_size, say};
use dormouse_tools::{Program, why_not_preloaded};

use crate::patterns::{GivenRules, classes, names_of, say_unmatched, say_wrong_in_files};
use crate::program::{NO_LIMIT, SHORT_LIMIT, WaitOption, explained, known_classes};
use crate::programs::{all_pids, for_each, pids_of, processes};

/// Run a command and record the events of all its processes, or record a running program
///
/// The trace is a directory in the Common Trace Format: `dormouse view`, `dormouse stats` and babeltrace2 read it. The command keeps its
/// input, output, signals and exit code. At the end a line on standard error says what was recorded.
///
/// An event is named `provider:name`. Rust's macro writes `provider.name`; patterns may use either form.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse record -- ./server                     all events of an instrumented program
  dormouse record -e 'http:*' -e db:query -- ./server
  dormouse record -e 'http:* where bytes > 64K or status >= 500' -e '!http:ping' -- ./server
  dormouse record -e '* level<=WARNING' -- ./server
                                                  warnings, errors and what is more important
  dormouse record -e 'http:* where bytes > 4K and tag.user == \"alice\"' -- ./server
  dormouse record -e 'http:* where status >= 500' -e 'http:* sample 1/100' -- ./server
                                                  all failed requests, and one in a hundred of the others
  dormouse record -e 'http:* tail 10s by id keep status >= 500' -- ./server
                                                  all events of the requests that failed
  dormouse record --libc -o trace -- make -j2     malloc, open, read, … in a whole build
  dormouse record --context none -- ./server      smaller events, without process and thread id
  dormouse record --mode overwrite --snapshot-on crash,USR2 -- ./server
                                                  a flight recorder; `dormouse snapshot` at any time
  dormouse record --attach 1234 -e 'http:*'       a running program; Ctrl-C ends the recording
  dormouse record --attach server                 all running programs called server, into one trace

A rule (-e) is a PATTERN, and after it `where EXPR`, `level<=LEVEL`, `sample 1/N` or `tail TIME by FIELD keep EXPR`, each of them or none; or `!PATTERN`. An event is recorded if a PATTERN matches its name, EXPR is true, and \
no `!PATTERN` matches its name. If all rules are `!PATTERN`, all other events are recorded. EXPR compares the event's fields and its thread's tags, in the language of \
`dormouse view --where`; the program evaluates it before it writes anything. `level<=LEVEL` limits the rule to events of this level and \
more important ones, `level==LEVEL` to those of this level; an event without a level does not match. `sample` records a part of these events:
  sample 1/100                                    one in a hundred, by chance
  sample by user 1/100                            all events of one in a hundred users, the same ones in all programs and on all machines
  sample 50/s                                     at most 50 a second of each event class in each process, and 50 at the start
`tail` keeps these events only where something happens to what they belong to:
  tail 10s by id keep status >= 500               those with status >= 500, and all with the same id up to 10 s before or after
Until that is known, events wait in the session's memory, at most half of --budget. If it is too little, the last line says so.
`dormouse rule` changes the rules of a live session.

An event can trigger a snapshot (--snapshot-on):
  event:shop:order_failed                         an event of this class; `*` and `?` are wildcards
  'duration:shop:order_begin..shop:order_end>50ms'
                                                  an end over 50 ms after its thread's last begin
The classes of a trigger are armed, and the event that fires the trigger is in the snapshot. A trigger of a process requests at most one \
snapshot a second; while it keeps firing, the interval grows, up to an hour, and each snapshot says how often the trigger fired since \
the previous one. All processes of a session together get 32 snapshots by triggers, including crashes and exits, and one more each minute.

The recording ends when its command ends. The last line names processes that continue, such as a daemon's; they are no longer recorded. With --wait-all they are recorded until they end. \
A program that cannot join the session because its environment was cleared (sudo, su -, cron, test runners) is named if it was noticed.

At the end, patterns that matched no event are named.

The last line says how many events were lost. It says `at least N lost because …` (or `unknown how many lost because …`, if none was counted) if \
something happened that can lose an unknown number of events: a program could not join, a packet was not valid, or a program was frozen when the recording ended.

Signals are passed on to the command. When it has ended, the recording ends within 3 s, whatever other programs do (but it waits for a disk that \
hangs). If the command does not take SIGTERM, SIGINT or SIGHUP because it is frozen, stopped or traced, the recording ends without it. A second \
such signal, more than 0.2 s later, ends the recording at once, and `dormouse salvage` makes a trace of what was recorded; Ctrl-C counts only after the \
command has ended.

Options come before the command: everything from the command's name on, or after `--`, belongs to the command.

Exit code: the command's; 128 + N if signal N ended it, or was sent to end it while it was frozen; 2 if there was nothing to run or record, or one \
of several running programs was not recorded; with \
--fail-on-loss, 3 instead of 0 if events were lost, or may have been.")]
pub(crate) struct Record {
    /// Directory of the trace, new or empty [default: dormouse-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Record the events that match `provider:name`; `*` and `?` are wildcards. With `where EXPR` after it, those for which EXPR is true; with `sample
    /// 1/N`, a part of them; with `!` before it, none of these (see below). May be given several times [default: all]
    #[arg(short, long = "event", value_name = "RULE")]
    events: Vec<String>,
    /// Also trace malloc, open, read, write, close, dup, mutexes … of unmodified programs (events libc:*)
    #[arg(long)]
    libc: bool,
    #[command(flatten)]
    settings: Settings,
    /// Write a snapshot beside the trace when one of these happens in a traced program, separated by commas: `crash`, `panic` (in Rust), `exit`, a
    /// signal such as `USR2`, an event, or too long a time between two events (see below). Needs `--mode overwrite`. Not with `--attach`, because a
    /// program reads its triggers when it starts
    #[arg(long, value_name = "TRIGGER", value_delimiter = ',', value_parser = Trigger::parse, conflicts_with = "attach")]
    snapshot_on: Vec<Trigger>,
    /// Exit with 3 instead of 0 if events were lost, or may have been
    #[arg(long)]
    fail_on_loss: bool,
    /// When the recording ends, write the contents of the last line to FILE as JSON; `/dev/fd/3` is descriptor 3 of the calling process
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Continue after the command has ended, until all processes that it started and that joined, including daemons, have ended too. Ctrl-C ends the
    /// recording
    #[arg(long, conflicts_with = "attach")]
    wait_all: bool,
    /// Record running programs, instead of running a command: process ids and names, separated by commas. A name means all running programs of this user
    /// that have it; which ones is printed. The recording ends when the last of them ends
    #[arg(long, value_name = "PID|NAME", conflicts_with_all = ["libc", "command"])]
    attach: Option<String>,
    /// Record all running programs that `dormouse list` shows and that are in no session
    #[arg(long, conflicts_with_all = ["libc", "command", "attach", "snapshot_on", "wait_all"])]
    attach_all: bool,
    #[command(flatten)]
    wait: WaitOption,
    /// Print `ready` on standard output once the program has joined, and detach from the terminal (for `dormouse arm`)
    #[arg(long, hide = true, requires = "attach")]
    background: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present_any = ["attach", "attach_all"], value_name = "CMD")]
    command: Vec<OsString>,
}

/// Returns a warning about the effect of `DORMOUSE_LISTEN` on preloaded programs, if it is set to a mode.
fn listening_of_preloaded() -> Option<&'static str> {
    match std::env::var(ENV_LISTEN).ok()?.as_str() {
        "1" | "thread" => Some(
            "DORMOUSE_LISTEN=thread starts a thread in every program before its first function. Then `unshare -U` fails, a change of user may abort \
             (setpriv), and Python warns of fork. Programs are recorded without it, too",
        ),
        "signal" => Some(
            "DORMOUSE_LISTEN=signal has no effect with --libc, whose tracepoints are in the allocator: programs are recorded, but do not listen",
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
struct Settings {
    /// Memory for events that are not yet on disk, such as 512K, 16M or 1G [default: 16M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    budget: Option<u64>,
    /// Largest budget that `dormouse budget --set` can set while the session is live [default: four times the budget; on machines with more
    /// than 32 possible CPUs the budget itself]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    budget_max: Option<u64>,
    /// Behave as on a machine with this number of possible and online CPUs
    #[arg(long, value_name = "POSSIBLE:ONLINE", value_parser = parse_cpus, hide = true)]
    pretend_cpus: Option<(u32, u32)>,
    /// What to do when the memory is full: drop and count new events, or overwrite the oldest events [default: discard]
    #[arg(long, value_parser = one_of([Mode::Discard, Mode::Overwrite], Mode::name))]
    mode: Option<Mode>,
    /// Keep the memory in FILE, which must be new, or in a new file in the directory FILE, on tmpfs (/dev/shm), ext4 or xfs, so that
    /// `dormouse salvage` finds it even if this command and the programs are killed. The end of the session removes it. If the file is
    /// truncated, programs that map it get SIGBUS. With a file on a disk, a write to the memory may wait for the disk
    #[arg(long, value_name = "FILE")]
    buffers: Option<PathBuf>,
    /// Write at most SIZE, at least 256K, to disk for the trace and its snapshots together. Events beyond that are lost and counted, snapshots
    /// are refused [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk_max: Option<u64>,
    /// Include the session's memory in core dumps of the traced programs [default: core dumps do not include it, unless the program was
    /// executed under a filter of system calls (seccomp)]
    #[arg(long)]
    dump_buffers: bool,
    /// Write to disk only as long as all live sessions of this user with this option or DORMOUSE_DISK_MAX_USER=SIZE together have at most SIZE, at
    /// least 256K. Events beyond that are lost and counted, snapshots and new sessions are refused. A session that has lost events for this
    /// reason writes no more events [default: DORMOUSE_DISK_MAX_USER, or no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk_max_user: Option<u64>,
    /// Context of each event: `ids`, the ids of its process and thread; `none`, which makes an event 11 bytes shorter, or 5 where it needs the extended form; or, with
    /// commas between them, up to four tags of its thread, such as `tag.request`, which add 8 bytes each to `ids` [default: ids]
    #[arg(long, value_parser = EventContext::parse)]
    context: Option<EventContext>,
    /// Version of the Common Trace Format in which the description of the trace (its file `metadata`) is written: `ctf1.8`, which all readers
    /// know, or `ctf2`, JSON, which babeltrace2 reads from version 2.1 on. The events are the same bytes in both [default: ctf1.8]
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
}

/// The [`Settings`] that the user has given, as arguments for another `dormouse`.
#[derive(Debug)]
pub(crate) struct GivenSettings(Vec<GivenOption>);

/// An option that the user has given.
#[derive(Debug)]
struct GivenOption {
    /// Its name, with dashes.
    name: String,
    /// Its values as the user wrote them; none if it takes none.
    values: Vec<OsString>,
}

impl GivenSettings {
    /// Returns the names of the options, with dashes.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|option| option.name.as_str())
    }

    /// Returns the options and their values as arguments.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = OsString> {
        self.0.iter().flat_map(|option| [OsString::from(&option.name)].into_iter().chain(option.values.clone()))
    }
}

impl FromArgMatches for GivenSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<GivenSettings, clap::Error> {
        let known = Settings::augment_args(clap::Command::new("settings"));
        let given =
            |argument: &&Arg| matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
        let option = |argument: &Arg| {
            let values = matches.get_raw(argument.get_id().as_str()).filter(|_| argument.get_action().takes_values());
            let values = values.into_iter().flatten().map(Into::into).collect();
            Some(GivenOption { name: format!("--{}", argument.get_long()?), values })
        };
        Ok(GivenSettings(known.get_arguments().filter(given).filter_map(option).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = GivenSettings::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GivenSettings {
    fn augment_args(command: clap::Command) -> clap::Command {
        Settings::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Settings::augment_args_for_update(command)
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

/// Context of events: the ids of their writer and tags of its thread, or nothing.
#[derive(Debug, Clone, Copy, Default)]
struct EventContext {
    kind: RecordKind,
    tags: TagNames,
}

impl EventContext {
    /// Parses `none`, or a list of `ids` and tags.
    fn parse(text: &str) -> Result<EventContext, String> {
        if text == RecordKind::Compact.name() {
            return Ok(EventContext { kind: RecordKind::Compact, tags: TagNames::NONE });
        }
        let mut names = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| *part != RecordKind::Ids.name()) {
            match part.split_once('.') {
                Some(("tag", name)) => names.push(name),
                _ if part.starts_with("perf:") => {
                    return Err(format!(
                        "`{part}`: this version does not record hardware counters; `perf stat` counts them for a program"
                    ));
                }
                _ if part == RecordKind::Compact.name() => {
                    return Err("`none` leaves no place for tags: give tags alone, such as `tag.request`".into());
                }
                _ => return Err(format!("`{part}` is none of `ids`, `none` and tags such as `tag.request`")),
            }
        }
        let tags = TagNames::new(names).map_err(String::from)?;
        Ok(EventContext { kind: RecordKind::Ids, tags })
    }
}

/// Returns the names that a directory may get if the user gives none: with the local time, then also with a number.
pub(crate) fn default_dirs(what: &str) -> impl Iterator<Item = PathBuf> {
    let first = format!("{what}-{}", jiff::ZonedDateTime::now().strftime("%Y%m%d-%H%M%S"));
    let numbered = (2_u32..).map({
        let first = first.clone();
        move |number| PathBuf::from(format!("{first}-{number}"))
    });
    std::iter::once(PathBuf::from(first)).chain(numbered)
}

/// Makes the first of these directories that does not exist, for this user alone.
fn make_first_free(mut dirs: impl Iterator<Item = PathBuf>) -> anyhow::Result<PathBuf> {
    let make = |dir: PathBuf| match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => Some(Ok(dir)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
        Err(error) => {
            Some(Err(anyhow!("cannot make the directory {}: {error}; give another one with -o", dir.display())))
        }
    };
    dirs.find_map(make).context("all names for the trace's directory are taken; give one with -o")?
}

/// Calls `record` with the directory of a new trace. Without `given`, a directory is made, which no other recording
/// gets; an error removes it if it is empty.
pub(crate) fn in_dir<T>(given: Option<PathBuf>, record: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    match given {
        Some(dir) => record(&dir),
        None => {
            let dir = make_first_free(default_dirs("dormouse"))?;
            // The error is reported even if the directory stays.
            record(&dir).inspect_err(|_| drop(std::fs::remove_dir(&dir)))
        }
    }
}

impl Record {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        raise_descriptor_limit();
        let rules = GivenRules::parse(&self.events).context("-e")?;
        if self.is_attaching() {
            return self.attach(&rules, out);
        }
        if self.wait.given().is_some() {
            bail!("--wait is only for --attach: a command that `dormouse record` runs joins by itself")
        }
        in_dir(self.output.clone(), |dir| self.run_command(&rules, dir))
    }

    /// Whether running programs are recorded, and no command.
    fn is_attaching(&self) -> bool {
        self.attach.is_some() || self.attach_all
    }

    /// Returns the patterns of the triggers' events.
    fn triggers(&self) -> impl Iterator<Item = &str> {
        self.snapshot_on.iter().flat_map(Trigger::patterns)
    }

    fn options(&self, given: &GivenRules, dir: &Path, command_line: String) -> anyhow::Result<Options> {
        let mut rules = self.events.clone();
        if given.included().next().is_none() {
            rules.insert(0, "*".into());
        } else if self.libc && !given.included().any(|pattern| pattern.starts_with("libc")) {
            rules.push("libc:*".into());
        }
        // A trigger whose events are not armed would never fire.
        if !rules.iter().any(|rule| rule == "*") {
            rules.extend(self.triggers().map(String::from));
        }
        let defaults = Options::new(dir.into());
        Ok(Options {
            budget_bytes: self.settings.budget.unwrap_or(defaults.budget_bytes),
            budget_max_bytes: self.settings.budget_max,
            cpus: self.settings.cpus(),
            mode: self.settings.mode(),
            context: self.settings.context.unwrap_or_default().kind,
            tags: self.settings.context.unwrap_or_default().tags,
            format: self.settings.format.unwrap_or_default(),
            rules,
            command_line,
            may_be_stopped: self.is_attaching(),
            buffers: self.settings.buffers.clone(),
            dump_buffers: self.settings.dump_buffers,
            disk_bytes_max: self.settings.disk_max,
            disk_bytes_user_max: self.settings.disk_max_user()?,
            ..defaults
        })
    }

    fn run_command(self, rules: &GivenRules, dir: &Path) -> anyhow::Result<u8> {
        if !self.snapshot_on.is_empty() && self.settings.mode() != Mode::Overwrite {
            bail!("--snapshot-on needs --mode overwrite: in discard mode the trace itself has the events");
        }
        let pattern_count = self.triggers().count();
        if pattern_count > PATTERN_COUNT_MAX {
            bail!(
                "--snapshot-on has {pattern_count} event patterns, but at most {PATTERN_COUNT_MAX} are possible; leave some out, or combine some with `*`"
            );
        }
        let excluded = |trigger| Some((trigger, rules.excluded().find(|excluded| matches(excluded, trigger))?));
        if let Some((trigger, excluded)) = self.triggers().find_map(excluded) {
            bail!("--snapshot-on waits for {trigger}, which the rule `!{excluded}` excludes; leave out one of them");
        }
        let preload = if self.libc { Some(find_libc_library()?) } else { None };
        let command_line: Vec<_> = self.command.iter().map(|argument| argument.to_string_lossy()).collect();
        let options = self.options(rules, dir, command_line.join(" "))?;
        if let Some(what) = listening_of_preloaded().filter(|_| self.libc) {
            say(what);
        }
        if let Some(program) = self.command.first() {
            say_wrong_in_files(program, preload.as_deref(), rules, &self.triggers().collect::<Vec<_>>());
        }
        let remote = Remote::default();
        let supervisor = self.supervise(&options, self.recording(rules, Vec::new()), &remote)?;
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
        let not_preloaded = self.command.first().filter(|_| self.libc).and_then(|program| why_not_preloaded(program));
        not_preloaded.as_ref().and_then(explain_not_preloaded).iter().for_each(say);
        let code = match ended {
            CommandEnd::Exited(code) => code as u8,
            CommandEnd::Frozen(signal) => {
                say(format_args!(
                    "process {pid} has not taken signal {signal}, because it is frozen, stopped or traced; it continues, but its recording \
                     has ended"
                ));
                (128 + signal) as u8
            }
            CommandEnd::Interrupted => 0,
        };
        if self.wait_all && matches!(ended, CommandEnd::Exited(_)) {
            let interrupted = remote.clone();
            remote.finish_with_the_last(code);
            traced.on_interrupt(move || interrupted.finish(code))?;
        } else {
            remote.finish(code);
        }
        Ok(concluded(supervisor.wait(), dir, code))
    }

    /// Creates the session and starts an owner, which prints the summary at the end.
    fn supervise(&self, options: &Options, recording: Recording, remote: &Remote) -> anyhow::Result<Supervisor> {
        let summary = self.summary_file()?;
        let session = NewSession::create(options)?;
        Supervisor::start(session, recording, summary, remote).map_err(explained)
    }

    /// Returns what the owner must know.
    fn recording(&self, rules: &GivenRules, attached: Vec<u32>) -> Recording {
        Recording {
            attached,
            is_background: self.background,
            fails_on_loss: self.fail_on_loss,
            has_libc: self.libc,
            patterns: rules.patterns().into_iter().map(String::from).collect(),
            trigger_patterns: self.triggers().map(String::from).collect(),
            command: self.command.clone(),
        }
    }

    /// Opens the file of `--summary` before anything is recorded, so that an error is reported early.
    fn summary_file(&self) -> anyhow::Result<Option<File>> {
        let open = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        self.summary.as_ref().map(open).transpose()
    }

    fn attach(self, rules: &GivenRules, out: &mut Output) -> anyhow::Result<u8> {
        let (pids, code) = match &self.attach {
            Some(target) => pids_of(target)?,
            None => (all_pids(Some(false))?, 0),
        };
        let limit = if pids.len() == 1 { NO_LIMIT } else { SHORT_LIMIT };
        // The programs are looked for before anything is created.
        let mut programs = Vec::new();
        let code = code.max(for_each(pids, |pid| {
            programs.push(self.wait.find(pid, limit)?);
            Ok(0)
        })?);
        if programs.is_empty() {
            return Ok(code);
        }
        if !self.background && !self.events.is_empty() {
            let known = known_classes(&programs);
            let pids: Vec<u32> = programs.iter().map(|program| program.pid).collect();
            say_unmatched(&rules.patterns(), &names_of(&known), &format!(" of {}", processes(&pids)));
            rules.check(&known).context("-e")?;
        }
        in_dir(self.output.clone(), |dir| self.record_attached(rules, programs, code, dir, out))
    }

    /// Records programs. `code`: exit code if the recording succeeds.
    fn record_attached(
        &self,
        rules: &GivenRules,
        programs: Vec<Program>,
        code: u8,
        dir: &Path,
        out: &mut Output,
    ) -> anyhow::Result<u8> {
        let pids: Vec<u32> = programs.iter().map(|program| program.pid).collect();
        let remote = Remote::default();
        let interrupt = remote.clone();
        on_ending_signals(move || interrupt.finish(0), end_at_once(dir, remote.clone()))?;
        let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let options = self.options(rules, dir, format!("--attach {list}"))?;
        let recording = self.recording(rules, pids.clone());
        let (supervisor, joined) = self.supervise(&options, recording, &remote)?.attached().map_err(explained)?;
        // The owner has connections of its own to the programs, and watches them.
        drop(programs);
        let Joined { armed_count, refused } = joined;
        let code = if refused.is_empty() { code } else { 2 };
        let refused = refused.iter().map(explain);
        if self.background {
            for why in refused {
                writeln!(out, "{MISSED} {why}")?;
            }
            writeln!(out, "{READY} {armed_count}")?;
            out.flush()?;
            detach_from_terminal()?;
        } else {
            refused.for_each(say);
            let (dir, armed) = (dir.display(), classes(armed_count));
            say(format_args!("recording {armed} of {} into {dir}; Ctrl-C ends it", processes(&pids)));
        }
        let concluded = concluded(supervisor.wait(), dir, 0);
        Ok(if concluded == 0 { code } else { concluded })
    }
}

/// First words of lines by which a background recording says how many events are armed, and why a program is not
/// recorded.
pub(crate) const READY: &str = "ready";
pub(crate) const MISSED: &str = "missed";

/// Returns the exit code of a recording with this outcome. Prints why, unless the recording is complete.
fn concluded(outcome: Outcome, dir: &Path, code: u8) -> u8 {
    let why = match outcome {
        Outcome::Done(code) => return code,
        Outcome::Failed(why) | Outcome::GivenUp(why) => why,
        Outcome::Refused(error) => explain(&error),
    };
    let dir = dir.display();
    say(format_args!("{why}; `dormouse salvage {dir}` makes a trace of what was recorded"));
    if code == 0 { 2 } else { code }
}

/// Returns the handler of a second signal: it kills the owner and exits at once.
fn end_at_once(dir: &Path, remote: Remote) -> impl Fn(i32) + Send + 'static {
    let dir = dir.to_owned();
    move |signal| {
        remote.kill();
        say(format_args!(
            "ended at once by signal {signal}; `dormouse salvage {}` makes a trace of what was recorded",
            dir.display()
        ));
        signal_hook::low_level::exit(128 + signal)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn recordings_that_begin_together_get_different_directories() {
        let place = tempfile::tempdir().unwrap();
        let named = |number: u32| place.path().join(format!("trace-{number}"));
        std::fs::write(named(3), "something else").unwrap();
        let make = || make_first_free((1..).map(named)).unwrap();
        let made: BTreeSet<PathBuf> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made, [1, 2, 4, 5, 6, 7, 8, 9].map(named).into_iter().collect());
        let nowhere = make_first_free([place.path().join("none/trace")].into_iter()).unwrap_err().to_string();
        assert!(nowhere.contains("give another one with -o"), "{nowhere}");
        assert!(default_dirs("dormouse").take(3).collect::<BTreeSet<_>>().len() == 3);
    }
}
