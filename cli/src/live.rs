//! `dormouse arm` and `disarm`: arm and disarm the events of programs that already run.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use dormouse_abi::message::{ProgramToTool, ToolToProgram};
use dormouse_tools::{Program, SessionSocket, others_armed, sessions_of, stop_session};

use crate::patterns::{GivenRules, classes, instead, names_of, say_unmatched};
use crate::program::{NO_LIMIT, SHORT_LIMIT, WaitOption, explained, known_classes};
use crate::programs::{Named, all_pids, for_each, pids_of, processes, session_of};
use crate::record::{GivenSettings, MISSED, READY, in_dir};
use dormouse_terminal::{Output, printable_lines, say};

/// The programs that a command changes, and their events.
#[derive(Debug, Args)]
struct TargetAndPatterns {
    /// Process ids and names of running programs, separated by commas; left out with `--all`. Then patterns of `provider:name`; `*` and `?` are
    /// wildcards
    #[arg(required = true, value_names = ["PID|NAME", "PATTERN"], num_args = 1..)]
    arguments: Vec<String>,
    /// All programs that `dormouse list` shows; to disarm, those that are in a session
    #[arg(long)]
    all: bool,
    /// Session, by its socket or the directory of its trace. Needed for programs that are in several
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
}

impl TargetAndPatterns {
    /// Returns the programs and the patterns. `--all` may mean only those in a session.
    fn resolve(self, is_in_session: Option<bool>) -> anyhow::Result<(Named<u32>, Vec<String>, Option<SessionSocket>)> {
        let TargetAndPatterns { mut arguments, all, session } = self;
        let session = session.map(|session| session_of(Some(&session))).transpose()?;
        if all {
            return Ok(((all_pids(is_in_session)?, 0), arguments, session));
        }
        let patterns = arguments.split_off(1);
        if patterns.is_empty() {
            bail!("give a pattern of events after {}, such as '*'", arguments[0]);
        }
        Ok((pids_of(&arguments[0])?, patterns, session))
    }
}

fn name_of(session: &SessionSocket) -> String {
    session.path().to_string_lossy().into_owned()
}

/// Arm events of running programs
///
/// If a program is in no session, one is started in the background, for all such programs together. It records into DIR until the last
/// event is disarmed or the programs end. If a program is in a session, events are armed in that session, whose options do not change; with
/// --output a session is started beside it.
///
/// An event is named `provider:name`. Rust's macro writes `provider.name`; patterns may use either form.
///
/// A program that is not being traced runs no code for tools. `arm` sends it a signal, and waits until the program answers at its next tracepoint.
#[derive(Debug, Args)]
#[command(override_usage = "dormouse arm [OPTIONS] <PID|NAME|--all> <PATTERN>...")]
#[command(after_help = "\
Examples:
  dormouse arm 1234 'http:*'             one program
  dormouse arm server,1234 'http:*'      every program called server, and process 1234
  dormouse arm --all db:query            all programs that `dormouse list` shows
  dormouse arm 1234 'db:*' -o mine       a recording of one's own, whatever else records the program
  dormouse arm 1234 'http:* where bytes > 64K' '!http:ping'
                                         some of the events: rules of the new session, as for `dormouse record -e`

In an existing session `dormouse rule` changes the rules.

A name means all running programs of this user that have it; which ones is printed.

Exit code: 0; 2 if a program cannot be reached, with the reason in one line; 2 if no event matches, or if a program is in a session and options of a new session are given without --output: then \
nothing is armed in it. The other programs are armed.")]
pub(crate) struct Arm {
    #[command(flatten)]
    arguments: TargetAndPatterns,
    /// Start a session, also for programs that are in one, and record into DIR [default: dormouse-TIME, if a session starts]
    #[arg(short, long, value_name = "DIR", conflicts_with = "session")]
    output: Option<PathBuf>,
    #[command(flatten)]
    settings: GivenSettings,
    #[command(flatten)]
    wait: WaitOption,
}

/// Disarm events of running programs
///
/// When the last event of a session that `dormouse arm` started is disarmed in all programs, the session ends and its trace is complete.
#[derive(Debug, Args)]
#[command(override_usage = "dormouse disarm [OPTIONS] <PID|NAME|--all> <PATTERN>...")]
#[command(after_help = "\
A name means all running programs of this user that have it; which ones is printed. `dormouse disarm --all '*'` disarms everything.

Exit code: 0; 2 if a program cannot be reached, if no event matches, or if the session was not ended, with the reason in one line.")]
pub(crate) struct Disarm {
    #[command(flatten)]
    arguments: TargetAndPatterns,
    #[command(flatten)]
    wait: WaitOption,
}

/// Result of a change, summed over all tracers of a process.
#[derive(Debug, Default)]
struct Changed {
    matched: u32,
    changed: u32,
    /// Number of classes that are armed in the session.
    armed: u32,
}

/// Has the program arm or disarm events in a session, or in all that it is in, and prints which patterns match nothing.
fn change(
    program: &Program,
    session: Option<&SessionSocket>,
    patterns: &[String],
    question: &ToolToProgram,
) -> anyhow::Result<Changed> {
    let mut total = Changed::default();
    for answer in program.ask(question).map_err(explained)? {
        let ProgramToTool::Changed { matched, changed, sessions, .. } = answer else {
            return Err(program.refusal(answer).into());
        };
        total.matched += matched;
        total.changed += changed;
        let is_it = |name: &String| session.is_none_or(|session| Path::new(name) == session.path());
        let in_session = sessions.iter().filter(|(name, _)| is_it(name));
        total.armed += in_session.map(|(_, armed)| armed).sum::<u32>();
    }
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    check_matched(std::slice::from_ref(program), &patterns, &patterns, total.matched)?;
    Ok(total)
}

/// Prints which patterns match nothing. Returns an error if none of `given`, the patterns or the rules that have them,
/// matches anything.
fn check_matched(programs: &[Program], given: &[&str], patterns: &[&str], matched: u32) -> anyhow::Result<()> {
    if patterns.len() == 1 && given == patterns && matched > 0 {
        return Ok(());
    }
    let pids: Vec<u32> = programs.iter().map(|program| program.pid).collect();
    let names = names_of(&known_classes(programs));
    let of = format!(" of {}", processes(&pids));
    if matched == 0 {
        bail!("no event{of} matches {}; {}", given.join(" "), instead(patterns, &names));
    }
    say_unmatched(patterns, &names, &of);
    Ok(())
}

/// Returns a text that says how many of the matching classes were changed. `none` and `others` say why the rest was
/// not.
fn changed_text(verb: &str, pid: u32, total: &Changed, [none, others]: [&str; 2]) -> String {
    let all = classes(total.matched);
    match total.changed {
        changed if changed == total.matched => format!("{verb} {all} of process {pid}"),
        0 => format!("{verb} 0 of {all} of process {pid}; {none}"),
        changed => format!("{verb} {changed} of {all} of process {pid}; {others}"),
    }
}

impl Arm {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let Arm { arguments, output, settings, wait } = self;
        let ((pids, code), patterns, named) = arguments.resolve(None)?;
        let rules = GivenRules::parse(&patterns)?;
        let limit = if pids.len() == 1 { NO_LIMIT } else { SHORT_LIMIT };
        // Programs of a new session, and whether one of them is in another session.
        let (mut free, mut has_others) = (Vec::new(), false);
        let code = code.max(for_each(pids, |pid| {
            let program = wait.find(pid, limit)?;
            if output.is_some() {
                has_others |= !sessions_of(&program).map_err(explained)?.is_empty();
                free.push(program);
                return Ok(0);
            }
            let Some(session) = session_in(&program, named.as_ref())? else {
                free.push(program);
                return Ok(0);
            };
            let given: Vec<&str> = settings.names().collect();
            if !given.is_empty() {
                bail!(
                    "process {pid} is already in the session {}, whose options cannot change; leave out {}, or add --output DIR to \
                     start another session beside it",
                    session.path().display(),
                    given.join(", ")
                );
            }
            if !rules.is_plain() {
                bail!(
                    "process {pid} is already in the session {}; a condition or an exclusion is a rule of that session, for all of its \
                     programs: `dormouse rule {pid} RULE` sets it, and --output DIR starts another session beside it",
                    session.path().display()
                );
            }
            let question = ToolToProgram::Arm { session: name_of(&session), patterns: patterns.clone() };
            let changed = change(&program, Some(&session), &patterns, &question)?;
            let notes = ["all were already armed", "the others were already armed"];
            writeln!(out, "{}, {} in all", changed_text("armed", pid, &changed, notes), changed.armed)?;
            Ok(0)
        })?);
        if free.is_empty() {
            return Ok(code);
        }
        rules.check(&known_classes(&free))?;
        // The programs follow the rules when they join a new session.
        let start = |dir: &Path| {
            let new = NewRecording { programs: &free, texts: &patterns, rules: &rules, dir, has_others };
            new.start(&settings, &wait, out)
        };
        Ok(code.max(in_dir(output, start)?))
    }
}

/// Returns the session in which events of a program are to be armed or disarmed: the one that was named, or else the only
/// one that it is in. `None`: it is in none.
fn session_in(program: &Program, named: Option<&SessionSocket>) -> anyhow::Result<Option<SessionSocket>> {
    let mut sessions = sessions_of(program).map_err(explained)?;
    let pid = program.pid;
    if let Some(named) = named {
        let found = sessions.into_iter().find(|session| session.path() == named.path());
        return match found {
            Some(found) => Ok(Some(found)),
            None => bail!("process {pid} is not in the session {}", named.path().display()),
        };
    }
    match sessions.len() {
        0 | 1 => Ok(sessions.pop()),
        _ => {
            let paths: Vec<String> = sessions.iter().map(|session| session.path().display().to_string()).collect();
            bail!("process {pid} is in several sessions; name one with --session: {}", paths.join(", "))
        }
    }
}

/// A session that records running programs in the background.
struct NewRecording<'a> {
    programs: &'a [Program],
    /// The texts of its rules.
    texts: &'a [String],
    rules: &'a GivenRules,
    /// Directory of the trace.
    dir: &'a Path,
    /// Whether a program is in another session.
    has_others: bool,
}

impl NewRecording<'_> {
    fn start(self, settings: &GivenSettings, wait: &WaitOption, out: &mut Output) -> anyhow::Result<u8> {
        let NewRecording { programs, texts, rules, dir, has_others } = self;
        let pids: Vec<u32> = programs.iter().map(|program| program.pid).collect();
        let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut owner = Command::new(std::env::current_exe().context("cannot find the executable of dormouse")?);
        owner.args(["record", "--background", "--attach", &list]);
        owner.args(settings.arguments()).arg("--output").arg(dir);
        for text in texts {
            owner.arg("--event").arg(text);
        }
        if let Some(wait) = wait.given() {
            owner.arg("--wait").arg(format!("{}ms", wait.as_millis()));
        }
        let mut owner = owner
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a session owner")?;
        let (mut armed, mut code) = (None, 0);
        for line in owner.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
            let line = line.context("the session owner did not answer")?;
            match line.split_once(' ') {
                Some((READY, count)) => armed = count.parse::<u32>().ok(),
                Some((MISSED, why)) => {
                    say(why);
                    code = 2;
                }
                _ => {}
            }
            if armed.is_some() {
                break;
            }
        }
        let Some(armed) = armed else {
            let mut reason = String::new();
            if let Some(mut stderr) = owner.stderr.take() {
                let _ = stderr.read_to_string(&mut reason);
            }
            bail!("{}", reason.trim().trim_start_matches("dormouse: "));
        };
        if armed == 0 {
            // No event was armed, so the session is of no use.
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(&owner), rustix::process::Signal::TERM);
            let _ = owner.wait();
            let _ = std::fs::remove_dir_all(dir);
        }
        let given: Vec<&str> = texts.iter().map(String::as_str).collect();
        check_matched(programs, &given, &rules.patterns(), armed)?;
        writeln!(out, "armed {} of {}, recording into {}", classes(armed), processes(&pids), dir.display())?;
        let which = if has_others { format!(" --session {}", dir.display()) } else { String::new() };
        writeln!(out, "`dormouse disarm {list} '*'{which}` ends the recording")?;
        Ok(code)
    }
}

impl Disarm {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let ((pids, code), patterns, named) = self.arguments.resolve(Some(true))?;
        Ok(code.max(for_each(pids, |pid| {
            let program = self.wait.find(pid, SHORT_LIMIT)?;
            // A session whose owner is dead has no socket: the events are disarmed in all sessions.
            let session = session_in(&program, named.as_ref())?;
            let name = session.as_ref().map(name_of).unwrap_or_default();
            let question = ToolToProgram::Disarm { session: name, patterns: patterns.clone() };
            let changed = change(&program, session.as_ref(), &patterns, &question)?;
            let text = changed_text("disarmed", pid, &changed, ["none was armed", "the others were not armed"]);
            match changed {
                Changed { changed: 0, armed: 0, .. } => writeln!(out, "{text}")?,
                Changed { armed, .. } => writeln!(out, "{text}, {armed} still armed")?,
            }
            if changed.armed == 0
                && let Some(session) = session
            {
                end_unless_used(&session, &program, out)?;
            }
            Ok(0)
        })?))
    }
}

/// Ends a session whose events in `program` were all disarmed, unless another program in it has armed events.
fn end_unless_used(session: &SessionSocket, program: &Program, out: &mut Output) -> anyhow::Result<()> {
    let others = others_armed(session, program.pid);
    if !others.is_empty() {
        writeln!(out, "the recording goes on: events of {} are armed", processes(&others))?;
        return Ok(());
    }
    let stopped = stop_session(session, program).context("the events are disarmed, but the recording did not end")?;
    // A session that `record` has started continues until its command ends: it returns no summary.
    if let Some(summary) = stopped {
        writeln!(out, "{}", printable_lines(&summary))?;
    }
    Ok(())
}
