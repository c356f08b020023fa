//! `dormouse imv`: the tunables of running programs.

use std::io::Write;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use dormouse_abi::message::TunableStatus;
use dormouse_abi::message::Tunables;
use dormouse_abi::site::TunableType;
use dormouse_abi::tunable::{TunableRange, TunableValue};
use dormouse_tools::{Program, ProgramError, Reason, WhyUnreachable};
use serde_json::{Value, json};

use crate::program::{SHORT_LIMIT, WaitOption, explained};
use crate::programs::pid_of;
use dormouse_terminal::Output;
use dormouse_terminal::style::{BAD, BOLD};

/// List and set the tunables of a running program
///
/// A tunable is a value, or the key of static branches, that a program exports to its operator (`tunable!` in Rust, DORMOUSE_TUNABLE in C and
/// C++). The program reads it as an immediate value in its instructions, without a load from memory. Setting a tunable rewrites these
/// instructions while the program runs. The program must be yours, unless you are root. A program with a tracer answers at its next tracepoint, one
/// without a tracer once it has called `dormouse_imv_control::listen()` (Rust) or `imv_listen()` (C and C++).
#[derive(Debug, Args)]
pub(crate) struct Imv {
    #[command(subcommand)]
    command: ImvCommand,
}

/// The remedy for a program that has no tracer and does not listen.
const LISTEN: &str = "it calls `dormouse_imv_control::listen()` in Rust, or `imv_listen()` in C, to be listed and set";

#[derive(Debug, Subcommand)]
enum ImvCommand {
    List(List),
    Set(Set),
}

/// List the tunables of a program, with their values
#[derive(Debug, Args)]
#[command(after_help = "\
TYPE is `key` for the key of static branches, which is on or off. RANGE is the range of allowed values; `any` means every value of the type. SITES says how many of the places in the program's code that read \
the tunable hold it as an immediate value: 3/3 means all. If program text cannot be patched, the other places read a variable, \
which is slower and has the same value; the first line says why, and `dormouse doctor` says what to do. 0/0 means that no place in \
the code reads the tunable as an immediate value.

JSON is an array with an object for each tracer in the process, or for the library that answers without one: `writer`, `reason`, `sites`, \
`sites_patched` and `tunables`, each with `name`, `type`, `value`, `min`, `max`, `sites`, \
`sites_patched`, `description` and `object`, the file that contains its variable.

Exit code: 0, or 2 if the program cannot be reached.")]
struct List {
    /// Process id, or name of a running program
    #[arg(value_name = "PID|NAME")]
    program: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wait: WaitOption,
}

/// Set tunables of a program, all or none
///
/// The program checks type and range. Values that are given together are set together: when the command returns, every thread of the
/// program reads all of the new values. If the program refuses one of them, none is set.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys and bools take `on`, `off`, `true`, `false`, `1` and `0`; whole numbers are decimal, or \
hexadecimal after 0x.

Examples:
  dormouse imv list 4711
  dormouse imv set server server.batch_size 64
  dormouse imv set 4711 server.batch_size 64 server.audit on

Exit code: 0 if all tunables were set; 2 if none was, with the reason in one line.")]
struct Set {
    /// Process id, or name of a running program
    #[arg(value_name = "PID|NAME")]
    program: String,
    /// Name and value of a tunable, as `dormouse imv list` shows them; may be given several times
    #[arg(required = true, num_args = 2.., allow_negative_numbers = true, value_names = ["NAME", "VALUE"])]
    values: Vec<String>,
    #[command(flatten)]
    wait: WaitOption,
}

impl Imv {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        match self.command {
            ImvCommand::List(list) => list.run(out),
            ImvCommand::Set(set) => set.run(out),
        }
    }
}

impl List {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let pid = pid_of(&self.program)?;
        let tracers = found(&self.wait, pid)?.tunables().map_err(explained)?;
        if self.json {
            let tracers: Vec<Value> = tracers.iter().map(tracer_json).collect();
            out.json(&tracers)?;
        } else {
            let mut out = out.styled();
            tracers.iter().try_for_each(|tracer| print(&mut out, pid, tracer))?;
        }
        Ok(0)
    }
}

/// Returns the program, or an error that also says what a program without tracepoints must do.
fn found(wait: &WaitOption, pid: u32) -> anyhow::Result<Program> {
    wait.try_find(pid, SHORT_LIMIT).map_err(|error| {
        let has_no_tracepoints = matches!(
            &error,
            ProgramError::Unreachable(unreachable) if matches!(
                unreachable.why,
                WhyUnreachable::DoesNotListen {
                    reason: Reason::NoTracepoints(_) | Reason::NoTracepointsNorPreload(..), ..
                }
            )
        );
        if !has_no_tracepoints {
            return explained(error);
        }
        anyhow!("process {pid} has no Dormouse tracepoints, and does not listen: {LISTEN}")
    })
}

/// Returns the JSON object of one tracer of a process.
fn tracer_json(tracer: &Tunables) -> Value {
    json!({
        "writer": tracer.writer,
        "reason": tracer.reason,
        "sites": tracer.site_count,
        "sites_patched": tracer.patched_count,
        "tunables": tracer.tunables.iter().map(tunable_json).collect::<Vec<_>>(),
    })
}

fn tunable_json(tunable: &TunableStatus) -> Value {
    let (min, max) = tunable.range.ends();
    json!({
        "name": tunable.name,
        "type": tunable.value.value_type.name(),
        "value": value_json(tunable.value),
        "min": value_json(min),
        "max": value_json(max),
        "sites": tunable.site_count,
        "sites_patched": tunable.patched_count,
        "description": tunable.description,
        "object": tunable.object,
    })
}

/// Returns a number or a truth value, or text if JSON cannot represent the number.
fn value_json(value: TunableValue) -> Value {
    match value.value_type {
        TunableType::Key | TunableType::Bool => Value::Bool(value.bits != 0),
        _ => value.to_string().parse().unwrap_or_else(|_| Value::String(value.to_string())),
    }
}

fn range(range: TunableRange) -> String {
    match range.value_type {
        TunableType::Key => "on, off".into(),
        TunableType::Bool => "true, false".into(),
        _ if range.is_whole() => "any".into(),
        _ => {
            let (least, greatest) = range.ends();
            format!("{least}..{greatest}")
        }
    }
}

fn print(out: &mut impl Write, pid: u32, tracer: &Tunables) -> std::io::Result<()> {
    let Tunables { writer, reason, site_count, patched_count, tunables } = tracer;
    let warning = if patched_count < site_count { BAD } else { anstyle::Style::new() };
    writeln!(
        out,
        "process {pid}; {warning}{patched_count} of {site_count} sites patched by {writer} ({reason}){warning:#}"
    )?;
    if tunables.is_empty() {
        return writeln!(out, "  the program exports no tunables; `dormouse imv --help` says how to export one");
    }
    let mut rows = vec![["NAME", "TYPE", "VALUE", "RANGE", "SITES", "DESCRIPTION"].map(String::from)];
    rows.extend(tunables.iter().map(|tunable| {
        let is_ambiguous = tunables.iter().filter(|other| other.name == tunable.name).count() > 1;
        let object = if is_ambiguous { format!(" [{}]", tunable.object) } else { String::new() };
        [
            tunable.name.clone(),
            tunable.value.value_type.name().into(),
            tunable.value.to_string(),
            range(tunable.range),
            format!("{}/{}", tunable.patched_count, tunable.site_count),
            format!("{}{object}", tunable.description),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [w0, w1, w2, w3, w4] = [0, 1, 2, 3, 4].map(width);
    for (index, [name, value_type, value, range, sites, description]) in rows.iter().enumerate() {
        let style = if index == 0 { BOLD } else { anstyle::Style::new() };
        let line = format!("  {name:w0$}  {value_type:w1$}  {value:>w2$}  {range:w3$}  {sites:>w4$}  {description}");
        writeln!(out, "{style}{}{style:#}", line.trim_end())?;
    }
    Ok(())
}

impl Set {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let (pairs, rest) = self.values.as_chunks::<2>();
        if let [name] = rest {
            bail!("`{}` has no value: give NAME VALUE, once or several times", name.escape_debug());
        }
        let values: Vec<(String, String)> = pairs.iter().map(|[name, value]| (name.clone(), value.clone())).collect();
        let changes = found(&self.wait, pid_of(&self.program)?)?.set_tunables(&values).map_err(explained)?;
        for change in changes {
            writeln!(out, "{}: {} → {}", change.name, change.former, change.value)?;
        }
        Ok(0)
    }
}
