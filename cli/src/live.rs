//! `dormouse list`, `arm` and `disarm`: list, arm and disarm the events of programs that already run.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use dormouse_abi::class::FieldType;
use dormouse_abi::message::{ClassStatus, ProgramToTool, ToolToProgram};
use dormouse_abi::text::printable;
use dormouse_control::process_name;
use dormouse_tools::{Program, stop_session};
use serde_json::{Value, json};

use crate::patterns::{classes, instead, say_unmatched};
use crate::program::{NO_LIMIT, SHORT_LIMIT, WaitOption, explained};
use crate::record::{GivenSettings, default_dir};
use dormouse_terminal::{Output, printable_lines};

/// List the events of a running program, and which of them are armed
#[derive(Debug, Args)]
#[command(after_help = "Exit code: 0; 2 if the program cannot be reached, with the reason in one line.")]
pub(crate) struct List {
    /// Process id
    pid: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wait: WaitOption,
}

/// Arm events of a running program
///
/// If the program is in no session, one is started in the background. It records into DIR until the last event is disarmed or the
/// program ends. If the program is in a session, events are armed in that session, whose options do not change.
///
/// An event is named `provider:name`. Rust's macro writes `provider.name`; patterns may use either form.
///
/// A program that is not being traced runs no code for tools. `arm` sends it a signal, and waits until the program answers at its next tracepoint.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 0; 2 if the program cannot be reached, with the reason in one line; 2 if no event matches, or if the program is in a session and options of a new session are given: then \
nothing is armed.")]
pub(crate) struct Arm {
    /// Process id
    pid: u32,
    /// Patterns of `provider:name`; `*` and `?` are wildcards
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Directory of the trace, if a session starts [default: dormouse-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    settings: GivenSettings,
    #[command(flatten)]
    wait: WaitOption,
}

/// Disarm events of a running program
///
/// When the last event of a session that `dormouse arm` started is disarmed, the session ends and its trace is complete.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 0; 2 if the program cannot be reached, if no event matches, or if the session was not ended, with the reason in one line.")]
pub(crate) struct Disarm {
    /// Process id
    pid: u32,
    /// Patterns of `provider:name`; `*` and `?` are wildcards
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
    #[command(flatten)]
    wait: WaitOption,
}

fn type_name(field_type: FieldType) -> String {
    let kind = format!("{:?}", field_type.kind).to_lowercase();
    if field_type.sequence { format!("{kind}[]") } else { kind }
}

impl List {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let program = self.wait.find(self.pid, SHORT_LIMIT)?;
        let name = process_name(self.pid).unwrap_or_default();
        let mut tracers = Vec::new();
        for answer in program.ask(&ToolToProgram::List).map_err(explained)? {
            let ProgramToTool::Classes { session, mut classes, patching } = answer else {
                return Err(program.refusal(answer).into());
            };
            classes.sort_by(|a, b| a.decl.cmp(&b.decl));
            let session = Some(session).filter(|session| !session.is_empty());
            if self.json {
                let classes: Vec<Value> = classes.iter().map(class_json).collect();
                tracers.push(json!({ "name": name, "session": session, "patching": patching, "classes": classes }));
            } else {
                let session = session.map_or("in no session".into(), |session| format!("in the session {session}"));
                let head = format!("process {} ({name}), {session}; {patching}", self.pid);
                writeln!(out, "{}", printable(&head))?;
                print_classes(out, &classes)?;
            }
        }
        if self.json {
            out.json(&tracers)?;
        }
        Ok(0)
    }
}

fn class_json(class: &ClassStatus) -> Value {
    let field = |(name, field_type): &(String, FieldType)| json!({ "name": name, "type": type_name(*field_type) });
    json!({
        "name": class.decl.full_name(),
        "armed": class.armed,
        "sites": class.site_count,
        "sites_patched": class.patched_count,
        "fields": class.decl.fields.iter().map(field).collect::<Vec<_>>(),
    })
}

fn print_classes(out: &mut Output, classes: &[ClassStatus]) -> std::io::Result<()> {
    let width = classes.iter().map(|class| class.decl.full_name().len()).max().unwrap_or(0);
    for ClassStatus { decl, armed, site_count, .. } in classes {
        let state = if *armed { "armed  " } else { "dormant" };
        let fields = decl.fields.iter().map(|(name, field_type)| format!("{name}: {}", type_name(*field_type)));
        let fields = fields.collect::<Vec<_>>().join(", ");
        let sites = format!("{site_count} site{}", if *site_count == 1 { "" } else { "s" });
        writeln!(out, "  {state}  {:width$}  {sites:>8}  {{ {fields} }}", decl.full_name())?;
    }
    if classes.is_empty() {
        writeln!(out, "  no events")?;
    }
    Ok(())
}

/// Result of a change, summed over all tracers of a process.
#[derive(Debug, Default)]
struct Changed {
    matched: u32,
    changed: u32,
    armed: u32,
    sessions: Vec<String>,
}

/// Has the program arm or disarm events, and prints which patterns match nothing.
fn change(program: &Program, patterns: &[String], question: &ToolToProgram) -> anyhow::Result<Changed> {
    let mut total = Changed::default();
    for answer in program.ask(question).map_err(explained)? {
        let ProgramToTool::Changed { matched, changed, armed, session } = answer else {
            return Err(program.refusal(answer).into());
        };
        total.matched += matched;
        total.changed += changed;
        total.armed += armed;
        if !session.is_empty() && !total.sessions.contains(&session) {
            total.sessions.push(session);
        }
    }
    check_matched(program, patterns, total.matched)?;
    Ok(total)
}

/// Prints which patterns match nothing. Returns an error if none matches anything.
fn check_matched(program: &Program, patterns: &[String], matched: u32) -> anyhow::Result<()> {
    if patterns.len() == 1 && matched > 0 {
        return Ok(());
    }
    let (patterns, names) = (patterns.iter().map(String::as_str).collect::<Vec<_>>(), known_names(program));
    let of = format!(" of process {}", program.pid);
    if matched == 0 {
        bail!("no event{of} matches {}; {}", patterns.join(" "), instead(&patterns, &names));
    }
    say_unmatched(&patterns, &names, &of);
    Ok(())
}

/// Returns the sorted names of the program's event classes.
fn known_names(program: &Program) -> Vec<String> {
    let answers = program.ask(&ToolToProgram::List).unwrap_or_default();
    let mut names: Vec<String> = answers
        .into_iter()
        .flat_map(|answer| match answer {
            ProgramToTool::Classes { classes, .. } => classes,
            _ => Vec::new(),
        })
        .map(|class| class.decl.full_name())
        .collect();
    names.sort();
    names.dedup();
    names
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
        let (pid, program) = (self.pid, self.wait.find(self.pid, NO_LIMIT)?);
        // If the program is in no session, one is started, and the patterns are armed when the program joins it.
        let session =
            program.ask(&ToolToProgram::List).map_err(explained)?.into_iter().find_map(|answer| match answer {
                ProgramToTool::Classes { session, .. } => program.session(&session),
                _ => None,
            });
        let Some(session) = session else { return self.start_session(&program, out) };
        let session = session.path();
        let given: Vec<&str> = self.settings.names().chain(self.output.as_ref().map(|_| "--output")).collect();
        if !given.is_empty() {
            bail!(
                "process {pid} is already in the session {}, whose options cannot change; leave out {}, or end that session \
                 first: `dormouse disarm {pid} '*'` if `dormouse arm` started it",
                session.display(),
                given.join(", ")
            );
        }
        let changed = change(&program, &self.patterns, &ToolToProgram::Arm { patterns: self.patterns.clone() })?;
        let notes = ["all were already armed", "the others were already armed"];
        writeln!(out, "{}, {} in all", changed_text("armed", pid, &changed, notes), changed.armed)?;
        Ok(0)
    }

    fn start_session(self, program: &Program, out: &mut Output) -> anyhow::Result<u8> {
        let dir = self.output.unwrap_or_else(|| default_dir("dormouse"));
        let mut owner = Command::new(std::env::current_exe().context("cannot find the executable of dormouse")?);
        owner.args(["record", "--background", "--attach", &self.pid.to_string()]);
        owner.args(self.settings.arguments()).arg("--output").arg(&dir);
        for pattern in &self.patterns {
            owner.arg("--event").arg(pattern);
        }
        if let Some(wait) = self.wait.given() {
            owner.arg("--wait").arg(format!("{}ms", wait.as_millis()));
        }
        let mut owner = owner
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a session owner")?;
        let mut line = String::new();
        if let Some(stdout) = owner.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).context("the session owner did not answer")?;
        }
        let Some(armed) = line.strip_prefix("ready ").and_then(|rest| rest.trim().parse::<u32>().ok()) else {
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
            let _ = std::fs::remove_dir_all(&dir);
        }
        check_matched(program, &self.patterns, armed)?;
        writeln!(out, "armed {} of process {}, recording into {}", classes(armed), self.pid, dir.display())?;
        writeln!(out, "`dormouse disarm {} '*'` ends the recording", self.pid)?;
        Ok(0)
    }
}

impl Disarm {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let program = self.wait.find(self.pid, SHORT_LIMIT)?;
        let changed = change(&program, &self.patterns, &ToolToProgram::Disarm { patterns: self.patterns.clone() })?;
        let text = changed_text("disarmed", self.pid, &changed, ["none was armed", "the others were not armed"]);
        match changed {
            Changed { changed: 0, armed: 0, .. } => writeln!(out, "{text}")?,
            Changed { armed, .. } => writeln!(out, "{text}, {armed} still armed")?,
        }
        if changed.armed == 0 {
            // The sessions that the program names, if it can be in them.
            for session in changed.sessions.iter().filter_map(|session| program.session(session)) {
                let stopped = stop_session(&session, &program);
                let stopped = stopped.context("the events are disarmed, but the recording did not end")?;
                // A session that `record` has started continues until its command ends: it returns no summary.
                if let Some(summary) = stopped {
                    writeln!(out, "{}", printable_lines(&summary))?;
                }
            }
        }
        Ok(0)
    }
}
