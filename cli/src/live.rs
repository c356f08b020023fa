//! `dormouse list`, `arm` and `disarm`: programs that run.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use dormouse_abi::class::FieldType;
use dormouse_abi::wire::{ClassStatus, Message};
use dormouse_consumer::{Program, stop_session};
use serde::Serialize;

use crate::output::Output;
use crate::record::{Memory, Records, default_dir};

/// List the events of a program that runs, and which of them are armed
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Process id
    pid: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arm events of a program that runs
///
/// If the program is in no session, one is started in the background, which records into DIR until everything is disarmed
/// again or the program ends.
#[derive(Debug, Args)]
pub(crate) struct Arm {
    /// Process id
    pid: u32,
    /// Patterns of `provider:name`; `*` and `?` are wild
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Directory of the trace, if a session is started [default: dormouse-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    records: Records,
}

/// Disarm events of a program that runs
///
/// Disarming the last event of a session that `dormouse arm` has started ends it and completes the trace.
#[derive(Debug, Args)]
pub(crate) struct Disarm {
    /// Process id
    pid: u32,
    /// Patterns of `provider:name`; `*` and `?` are wild
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
}

/// One tracer of a process, as JSON.
#[derive(Debug, Serialize)]
struct TracerJson {
    session: Option<String>,
    patching: String,
    classes: Vec<ClassJson>,
}

#[derive(Debug, Serialize)]
struct ClassJson {
    name: String,
    armed: bool,
    sites: u32,
    sites_patched: u32,
    fields: Vec<FieldJson>,
}

#[derive(Debug, Serialize)]
struct FieldJson {
    name: String,
    #[serde(rename = "type")]
    field_type: String,
}

fn type_name(field_type: FieldType) -> String {
    let kind = format!("{:?}", field_type.kind).to_lowercase();
    if field_type.sequence { format!("{kind}[]") } else { kind }
}

impl List {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let program = Program::find(self.pid)?;
        let mut tracers = Vec::new();
        for answer in program.ask(&Message::List)? {
            let Message::Classes { session, mut classes, patching } = answer else { bail!(refusal(self.pid, answer)) };
            classes.sort_by(|a, b| a.decl.cmp(&b.decl));
            tracers.push(TracerJson {
                session: Some(session).filter(|session| !session.is_empty()),
                patching,
                classes: classes.iter().map(class_json).collect(),
            });
        }
        if self.json {
            out.json(&tracers)?;
            return Ok(0);
        }
        for tracer in &tracers {
            print_tracer(out, self.pid, tracer)?;
        }
        Ok(0)
    }
}

fn class_json(class: &ClassStatus) -> ClassJson {
    let field =
        |(name, field_type): &(String, FieldType)| FieldJson { name: name.clone(), field_type: type_name(*field_type) };
    ClassJson {
        name: class.decl.full_name(),
        armed: class.armed,
        sites: class.site_count,
        sites_patched: class.patched_count,
        fields: class.decl.fields.iter().map(field).collect(),
    }
}

fn print_tracer(out: &mut Output, pid: u32, tracer: &TracerJson) -> std::io::Result<()> {
    let session = match &tracer.session {
        Some(session) => format!("in the session {session}"),
        None => "in no session".into(),
    };
    writeln!(out, "process {pid}, {session}; {}", tracer.patching)?;
    let width = tracer.classes.iter().map(|class| class.name.len()).max().unwrap_or(0);
    for class in &tracer.classes {
        let state = if class.armed { "armed  " } else { "dormant" };
        let fields: Vec<String> =
            class.fields.iter().map(|field| format!("{}: {}", field.name, field.field_type)).collect();
        let sites = format!("{} site{}", class.sites, if class.sites == 1 { "" } else { "s" });
        writeln!(out, "  {state}  {:width$}  {sites:>8}  {{ {} }}", class.name, fields.join(", "))?;
    }
    if tracer.classes.is_empty() {
        writeln!(out, "  no events")?;
    }
    Ok(())
}

fn refusal(pid: u32, answer: Message) -> String {
    match answer {
        Message::Error { text } => format!("process {pid}: {text}"),
        _ => format!("process {pid} answered something else; are it and dormouse of the same version?"),
    }
}

/// What a change came to, over all tracers of a process.
#[derive(Debug, Default)]
struct Changed {
    matched: u32,
    armed: u32,
    sessions: Vec<String>,
}

fn change(program: &Program, question: &Message) -> anyhow::Result<Changed> {
    let mut total = Changed::default();
    for answer in program.ask(question)? {
        let Message::Changed { matched, armed, session } = answer else { bail!(refusal(program.pid, answer)) };
        total.matched += matched;
        total.armed += armed;
        if !session.is_empty() && !total.sessions.contains(&session) {
            total.sessions.push(session);
        }
    }
    Ok(total)
}

/// The names that exist, so that a pattern that matches none can be mended.
fn known_names(program: &Program) -> String {
    let answers = program.ask(&Message::List).unwrap_or_default();
    let mut names: Vec<String> = answers
        .into_iter()
        .flat_map(|answer| match answer {
            Message::Classes { classes, .. } => classes,
            _ => Vec::new(),
        })
        .map(|class| class.decl.full_name())
        .collect();
    names.sort();
    names.dedup();
    if names.is_empty() { "it has no events".into() } else { format!("it has {}", names.join(", ")) }
}

impl Arm {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let program = Program::find(self.pid)?;
        // Not yet in a session: one is needed, and the patterns are armed as the program joins it.
        let is_in_session = program
            .ask(&Message::List)?
            .iter()
            .any(|answer| matches!(answer, Message::Classes { session, .. } if UnixStream::connect(session).is_ok()));
        if !is_in_session {
            return self.start_session(&program, out);
        }
        let changed = change(&program, &Message::Arm { patterns: self.patterns.clone() })?;
        if changed.matched == 0 {
            bail!("no event of process {} matches {}; {}", self.pid, self.patterns.join(" "), known_names(&program));
        }
        writeln!(out, "armed {} event classes of process {}, {} in all", changed.matched, self.pid, changed.armed)?;
        Ok(0)
    }

    fn start_session(self, program: &Program, out: &mut Output) -> anyhow::Result<u8> {
        let dir = self.output.unwrap_or_else(|| default_dir("dormouse"));
        let mut owner = Command::new(std::env::current_exe().context("cannot find dormouse itself")?);
        owner.args(["record", "--background", "--attach", &self.pid.to_string(), "--output"]).arg(&dir);
        owner.args(self.memory.arguments());
        owner.args(["--context", dormouse_consumer::Context::from(self.records.context).name()]);
        if let Some(place) = &self.memory.buffers {
            owner.arg("--buffers").arg(place);
        }
        for pattern in &self.patterns {
            owner.arg("--event").arg(pattern);
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
            // Nothing to wait for.
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(&owner), rustix::process::Signal::TERM);
            let _ = owner.wait();
            let _ = std::fs::remove_dir_all(&dir);
            bail!("no event of process {} matches {}; {}", self.pid, self.patterns.join(" "), known_names(program));
        }
        writeln!(out, "armed {armed} event classes of process {}, recording into {}", self.pid, dir.display())?;
        writeln!(out, "`dormouse disarm {} '*'` ends the recording", self.pid)?;
        Ok(0)
    }
}

impl Disarm {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let program = Program::find(self.pid)?;
        let changed = change(&program, &Message::Disarm { patterns: self.patterns.clone() })?;
        if changed.matched == 0 {
            bail!("no event of process {} matches {}; {}", self.pid, self.patterns.join(" "), known_names(&program));
        }
        writeln!(
            out,
            "disarmed {} event classes of process {}, {} still armed",
            changed.matched, self.pid, changed.armed
        )?;
        if changed.armed == 0 {
            for session in &changed.sessions {
                // A session that `record` has started with its command goes on, and says so: nothing to tell.
                if let Ok(summary) = stop_session(Path::new(session)) {
                    writeln!(out, "{summary}")?;
                }
            }
        }
        Ok(0)
    }
}
