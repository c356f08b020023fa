//! `dormouse list`: the programs that can be traced, and their events.

use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use clap::Args;
use dormouse_abi::class::{ClassDecl, FieldType, Label, Level};
use dormouse_abi::message::{ClassInSession, ProgramToTool, ToolToProgram};
use dormouse_abi::text::printable;
use dormouse_control::process_name;
use dormouse_tools::{FileClass, Membership, RunningProgram, RunningPrograms, ask_for_rules, classes_of_file};
use serde_json::{Value, json};

use crate::program::{SHORT_LIMIT, WaitOption, explained};
use crate::programs::{for_each, pids_of};
use crate::status::{records_all, unrecorded_text};
use dormouse_terminal::Output;

/// List the programs that can be traced, or the events of one
///
/// Without an argument, lists this user's running programs that have tracepoints: how many, the trace that they are recorded into, and when they started. No
/// program is disturbed for this. With a process id or a name, lists the events of running programs, which of them are armed, and the rules of their
/// session unless it records all events; with the file of
/// a program or a library, the events in that file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse list              all programs that can be traced
  dormouse list 1234         events of process 1234
  dormouse list server       events of every running program called server
  dormouse list ./server     events in the file ./server, which need not run; libraries that it loads are files of their own

An argument with a `/` is a file. So is the name of a file if no running program has this name.

Exit code: 0; 2 if a program cannot be reached or a file not listed, with the reason in one line.")]
pub(crate) struct List {
    /// Process ids and names of running programs, separated by commas, or the file of a program or library
    #[arg(value_name = "PID|NAME|FILE")]
    target: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wait: WaitOption,
}

impl List {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let Some(target) = &self.target else { return self.programs(out) };
        let path = Path::new(target);
        if target.contains('/') {
            return self.file(path, out);
        }
        let (pids, code) = match pids_of(target) {
            Err(_) if path.is_file() => return self.file(path, out),
            found => found?,
        };
        let mut tracers = Vec::new();
        let code = code.max(for_each(pids, |pid| self.program(pid, &mut tracers, out))?);
        if self.json {
            out.json(&tracers)?;
        }
        Ok(code)
    }

    /// Lists the events of a running program; with `--json`, adds them to `tracers`.
    fn program(&self, pid: u32, tracers: &mut Vec<Value>, out: &mut Output) -> anyhow::Result<u8> {
        let program = self.wait.find(pid, SHORT_LIMIT)?;
        let name = process_name(pid).unwrap_or_default();
        for answer in program.ask(&ToolToProgram::List).map_err(explained)? {
            let ProgramToTool::Classes { sessions, mut classes, patching } = answer else {
                return Err(program.refusal(answer).into());
            };
            classes.sort_by(|a, b| a.decl.cmp(&b.decl));
            // Without an answer of a session's owner, the rules are not known.
            let rules_of = |session: &String| {
                program.session(session).and_then(|session| ask_for_rules(&session, None).ok()).map(|state| state.rules)
            };
            let rules: Vec<_> = sessions.iter().map(rules_of).collect();
            if self.json {
                let json = classes.iter().map(|class| {
                    let mut json = class_json(&class.decl, class.site_count, |of| Some(*of));
                    json["sites_patched"] = class.patched_count.into();
                    json["armed"] = class.is_armed().into();
                    json["sessions"] = class.sessions.iter().map(in_session_json).collect();
                    json
                });
                let json: Vec<Value> = json.collect();
                let sessions = sessions.iter().zip(&rules);
                let sessions = sessions.map(|(session, rules)| json!({ "session": session, "rules": rules }));
                tracers.push(json!({
                    "pid": pid,
                    "name": name,
                    "sessions": sessions.collect::<Vec<Value>>(),
                    "patching": patching,
                    "classes": json,
                }));
                continue;
            }
            let is_single = sessions.len() <= 1;
            let place = match sessions.as_slice() {
                [] => "in no session".into(),
                [session] => format!("in the session {session}"),
                several => format!("in {} sessions", several.len()),
            };
            writeln!(out, "{}", printable(&format!("process {pid} ({name}), {place}; {patching}")))?;
            for (index, (session, rules)) in sessions.iter().zip(&rules).enumerate() {
                let number = if is_single { String::new() } else { format!("{} ", index + 1) };
                if !is_single {
                    writeln!(out, "  session {number} {}", printable(session))?;
                }
                for rule in rules.iter().filter(|rules| !records_all(rules)).flatten() {
                    writeln!(out, "  rule {number} {rule}")?;
                }
            }
            let rows = classes.iter().map(|class| {
                let state = |armed| if armed { "armed  " } else { "dormant" };
                let states: Vec<&str> = class.sessions.iter().map(|session| state(session.is_armed)).collect();
                // A column for each session.
                let states = if states.is_empty() { state(false).into() } else { states.join("  ") };
                let mut row = Row::new(states, &class.decl, class.site_count, |of| Some(*of));
                for (index, session) in class.sessions.iter().enumerate() {
                    let Some(text) = unrecorded_text(session.rejected, session.sampled_out, 0) else { continue };
                    row.note +=
                        &if is_single { format!("; {text}") } else { format!("; session {}: {text}", index + 1) };
                }
                row
            });
            print_classes(out, &rows.collect::<Vec<_>>())?;
        }
        Ok(0)
    }

    /// Lists the events in a file.
    fn file(&self, path: &Path, out: &mut Output) -> anyhow::Result<u8> {
        let classes = classes_of_file(path)?;
        if self.json {
            let classes: Vec<Value> =
                classes.iter().map(|FileClass { decl, site_count }| class_json(decl, *site_count, |of| *of)).collect();
            out.json(&json!({ "file": path, "classes": classes }))?;
            return Ok(0);
        }
        writeln!(out, "{}", printable(&path.display().to_string()))?;
        let rows =
            classes.iter().map(|FileClass { decl, site_count }| Row::new(String::new(), decl, *site_count, |of| *of));
        print_classes(out, &rows.collect::<Vec<_>>())?;
        Ok(0)
    }

    /// Lists the programs.
    fn programs(&self, out: &mut Output) -> anyhow::Result<u8> {
        let RunningPrograms { programs, of_others, unseen_of_others, unseen } = RunningPrograms::find();
        if self.json {
            let programs: Vec<Value> = programs.iter().map(program_json).collect();
            out.json(&json!({
                "programs": programs,
                "programs_of_other_users": of_others,
                "processes_not_inspected": unseen.len(),
                "processes_of_other_users_not_inspected": unseen_of_others,
            }))?;
            return Ok(0);
        }
        if programs.is_empty() {
            writeln!(out, "no running program of this user has tracepoints")?;
        } else {
            let width = programs.iter().map(|program| program.name.chars().count()).max().unwrap_or(0).max(4);
            writeln!(out, "{:>8}  {:width$}  {:>11}  {:19}  session", "pid", "name", "tracepoints", "started")?;
            for program in &programs {
                let RunningProgram { pid, name, tracepoint_count, .. } = program;
                let (started, session) = (local_time(program.started), printable(&session_text(program)));
                writeln!(out, "{pid:>8}  {name:width$}  {tracepoint_count:>11}  {started:19}  {session}")?;
            }
        }
        let notes = [
            (of_others, "with tracepoints, of another user: left out"),
            (unseen_of_others, "of another user, which may not be inspected"),
            (unseen.len(), "of this user, which may not be inspected"),
        ];
        for (count, note) in notes.into_iter().filter(|(count, _)| *count > 0) {
            writeln!(out, "{count} process{} {note}", if count == 1 { "" } else { "es" })?;
        }
        Ok(0)
    }
}

fn local_time(time: SystemTime) -> String {
    let time = jiff::tz::TimeZone::system().to_datetime(jiff::Timestamp::try_from(time).unwrap_or_default());
    time.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn session_text(RunningProgram { sessions, .. }: &RunningProgram) -> String {
    let text = |membership: &Membership| match membership {
        Membership::Live(_, dir) => dir.display().to_string(),
        Membership::Unknown => "one that is not live, or another user's".into(),
    };
    match sessions.as_slice() {
        [] => "-".into(),
        sessions => sessions.iter().map(text).collect::<Vec<_>>().join(", "),
    }
}

fn in_session_json(session: &ClassInSession) -> Value {
    json!({
        "armed": session.is_armed,
        "events_rejected": session.rejected,
        "events_sampled_out": session.sampled_out,
    })
}

fn program_json(program: &RunningProgram) -> Value {
    let session = |membership: &Membership| match membership {
        Membership::Live(socket, dir) => json!({ "session": socket.path(), "dir": dir }),
        Membership::Unknown => json!({ "session": null, "dir": null }),
    };
    let sessions: Vec<Value> = program.sessions.iter().map(session).collect();
    json!({
        "pid": program.pid,
        "name": program.name,
        "program": program.program,
        "tracepoints": program.tracepoint_count,
        "started": jiff::Timestamp::try_from(program.started).unwrap_or_default().to_string(),
        "sessions": sessions,
    })
}

fn type_name(field_type: FieldType) -> String {
    let kind = format!("{:?}", field_type.kind).to_lowercase();
    if field_type.sequence { format!("{kind}[]") } else { kind }
}

/// Returns a class as JSON. `known`: the type of a field; `None` if it is not known.
fn class_json<T>(decl: &ClassDecl<T>, site_count: u32, known: impl Fn(&T) -> Option<FieldType>) -> Value {
    let field = |(index, (name, of)): (usize, &(String, T))| {
        let known = known(of);
        let mut json = json!({ "name": name, "type": known.map(type_name) });
        if let (Some(labels), Some(FieldType { kind, .. })) = (decl.labels.get(&index), known) {
            let value = |label: &Label| u64::try_from(kind.integer(label.bits)).map_or(json!(label.bits), Value::from);
            json["labels"] = labels.iter().map(|label| (label.name.clone(), value(label))).collect();
        }
        json
    };
    let fields: Vec<Value> = decl.fields.iter().enumerate().map(field).collect();
    let mut json = json!({ "name": decl.full_name(), "sites": site_count, "fields": fields });
    if let Some(level) = decl.level {
        json["level"] = level.name().into();
    }
    json
}

/// Number of labels of a field that are printed.
const LABELS_SHOWN: usize = 8;

/// Returns the fields of a class as text. `known`: the type of a field; `None` if it is not known.
fn fields_text<T>(decl: &ClassDecl<T>, known: impl Fn(&T) -> Option<FieldType>) -> String {
    let field = |(index, (name, of)): (usize, &(String, T))| {
        let labels = decl.labels.get(&index).map_or(&[][..], Vec::as_slice);
        let mut names: Vec<String> = labels.iter().take(LABELS_SHOWN).map(|label| label.name.clone()).collect();
        if labels.len() > LABELS_SHOWN {
            names.push(format!("… {} more", labels.len() - LABELS_SHOWN));
        }
        let separator = if names.is_empty() { "" } else { " " };
        format!("{name}: {}{separator}{}", known(of).map_or("?".into(), type_name), names.join("|"))
    };
    decl.fields.iter().enumerate().map(field).collect::<Vec<_>>().join(", ")
}

/// A class in a list.
struct Row {
    /// Whether it is armed in each session; empty if that is not known.
    state: String,
    name: String,
    /// Name of its level; empty if it has none.
    level: &'static str,
    site_count: u32,
    fields: String,
    /// Text after the fields.
    note: String,
}

impl Row {
    /// `known`: the type of a field; `None` if it is not known.
    fn new<T>(state: String, decl: &ClassDecl<T>, site_count: u32, known: impl Fn(&T) -> Option<FieldType>) -> Row {
        let level = decl.level.map_or("", Level::name);
        Row { state, name: decl.full_name(), level, site_count, fields: fields_text(decl, known), note: String::new() }
    }
}

/// Prints a line for each class: its state, name, number of tracepoints and fields, and its level if any class has one.
fn print_classes(out: &mut Output, classes: &[Row]) -> std::io::Result<()> {
    let width = classes.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let level_width = classes.iter().map(|row| row.level.len()).max().unwrap_or(0);
    for Row { state, name, level, site_count, fields, note } in classes {
        let sites = format!("{site_count} site{}", if *site_count == 1 { "" } else { "s" });
        let state = if state.is_empty() { String::new() } else { format!("{state}  ") };
        let level = if level_width == 0 { String::new() } else { format!("{level:level_width$}  ") };
        writeln!(out, "  {state}{name:width$}  {level}{sites:>8}  {{ {fields} }}{note}")?;
    }
    if classes.is_empty() {
        writeln!(out, "  no events")?;
    }
    Ok(())
}
