//! `dormouse status`.

use std::io::Write;

use clap::Args;
use dormouse_abi::message::Status as Counts;
use dormouse_abi::text::printable;
use dormouse_tools::{SessionSocket, ask_for_rules, ask_for_status};
use serde_json::{Value, json};

use crate::programs::{for_each, sessions_of};
use dormouse_terminal::Output;

/// Show the resources that live sessions use, and their limits
///
/// Every resource of a session's owner has a limit; the trace on disk has one if an option of `record` sets it. What a limit refused is counted.
/// The rules by which a session records events are shown too, unless it records all, and how many events they have left out.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse status            of the only live session
  dormouse status 1234       of the session that process 1234 is in, or that it owns
  dormouse status server     of the sessions that programs called server are in
  dormouse status trace      of the session that is recorded into the directory trace
  dormouse status --all      of all live sessions

With --json, several sessions are an array, and so is the result of `--all`.

DORMOUSE_SOCKET_DIR adds a directory in which dormouse looks for sockets, for programs with another XDG_RUNTIME_DIR.

Exit code: 0; 2 if there is no such session, or one does not answer.")]
pub(crate) struct Status {
    /// Process id or name of a program in the session, process id of the session's owner, the session's socket, or the directory of its trace; several
    /// are separated by commas [default: the only live session]
    #[arg(value_name = "PID|NAME|SESSION")]
    target: Option<String>,
    /// All live sessions of this user
    #[arg(long, conflicts_with = "target")]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let (sessions, code) = sessions_of(self.target.as_deref(), self.all)?;
        let is_list = self.all || sessions.len() > 1;
        let mut list = Vec::new();
        let code = code.max(for_each(sessions, |session| {
            let (status, rules) = (ask_for_status(&session)?, ask_for_rules(&session, None)?.rules);
            if self.json {
                list.push(status_json(&session, &status, &rules));
            } else {
                print_status(&session, &status, &rules, out)?;
            }
            Ok(0)
        })?);
        match list.pop_if(|_| !is_list) {
            Some(status) => out.json(&status)?,
            None if self.json => out.json(&list)?,
            None => {}
        }
        Ok(code)
    }
}

/// Returns the maximum of the bytes of all sessions of the user. Without it, the session does not count the bytes of
/// other sessions.
fn user_max(status: &Counts) -> Option<u64> {
    Some(status.disk_bytes_user_max).filter(|bytes| *bytes != 0)
}

fn status_json(session: &SessionSocket, status: &Counts, rules: &[String]) -> Value {
    let user_max = user_max(status);
    json!({
        "session": session.path(),
        "owner": status.owner,
        "owner_restarts": status.owner_restarts,
        "dir": status.dir,
        "rules": rules,
        "descriptors": status.descriptors,
        "descriptors_max": status.descriptors_max,
        "processes": status.processes,
        "processes_max": status.processes_max,
        "processes_joined": status.processes_joined,
        "programs_refused": status.programs_refused,
        "clients": status.clients,
        "clients_max": status.clients_max,
        "clients_dropped": status.clients_dropped,
        "classes": status.classes,
        "classes_max": status.classes_max,
        "classes_refused": status.classes_refused,
        "snapshots_taken": status.snapshots_taken,
        "snapshots_refused": status.snapshots_refused,
        "disk_bytes": status.disk_bytes,
        "disk_bytes_max": Some(status.disk_bytes_max).filter(|bytes| *bytes != 0),
        "disk_bytes_user": user_max.map(|_| status.disk_bytes_user),
        "disk_bytes_user_max": user_max,
        "events_rejected": status.events_rejected,
        "events_sampled_out": status.events_sampled_out,
        "events_not_kept": status.events_not_kept,
    })
}

fn print_status(session: &SessionSocket, status: &Counts, rules: &[String], out: &mut Output) -> std::io::Result<()> {
    writeln!(
        out,
        "session {}, owner {}{}, trace {}",
        session.path().display(),
        status.owner,
        restarted(status.owner_restarts),
        printable(&status.dir)
    )?;
    let of_all =
        user_max(status).map(|max| ("disk bytes of all sessions", status.disk_bytes_user, Some(max), String::new()));
    for (name, count, max, note) in rows(status).into_iter().chain(of_all) {
        let max = max.map_or("no limit".into(), |max| format!("of at most {max}"));
        writeln!(out, "  {name:<26} {count:>10} {max}{note}")?;
    }
    for rule in rules.iter().filter(|_| !records_all(rules)) {
        writeln!(out, "  {:<26} {rule}", "rule")?;
    }
    let unrecorded = unrecorded_text(status.events_rejected, status.events_sampled_out, status.events_not_kept);
    if let Some(text) = unrecorded {
        writeln!(out, "  {:<26} {text}", "events not recorded")?;
    }
    Ok(())
}

/// Returns the numbers of events that a session's rules have left out, as text; `None` if there are none.
pub(crate) fn unrecorded_text(rejected: u64, sampled_out: u64, not_kept: u64) -> Option<String> {
    let all = [(rejected, "rejected by rules"), (sampled_out, "sampled out"), (not_kept, "kept by no tail")];
    let told: Vec<String> =
        all.iter().filter(|(count, _)| *count > 0).map(|(count, how)| format!("{count} {how}")).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// Whether a session with these rules records all events.
pub(crate) fn records_all(rules: &[String]) -> bool {
    rules == ["*"]
}

fn restarted(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => " (restarted once)".into(),
        count => format!(" (restarted {count} times)"),
    }
}

/// Returns a row for each resource: name, current count, bound, and a note with other counts.
fn rows(status: &Counts) -> [(&'static str, u64, Option<u64>, String); 6] {
    let Counts { processes_joined, programs_refused, clients_dropped, classes_refused, snapshots_refused, .. } = status;
    let disk_bytes_max = Some(status.disk_bytes_max).filter(|bytes| *bytes != 0);
    [
        ("descriptors", status.descriptors, Some(status.descriptors_max), String::new()),
        (
            "processes",
            status.processes.into(),
            Some(status.processes_max.into()),
            format!(", {processes_joined} have joined, {programs_refused} programs were refused"),
        ),
        (
            "clients",
            status.clients.into(),
            Some(status.clients_max.into()),
            format!(", {clients_dropped} were dropped for being too slow"),
        ),
        (
            "classes",
            status.classes.into(),
            Some(status.classes_max.into()),
            format!(", {classes_refused} refusals are listed in the trace"),
        ),
        (
            "snapshots",
            status.snapshots_taken,
            None,
            format!(", {snapshots_refused} were refused because there were too many"),
        ),
        ("disk bytes", status.disk_bytes, disk_bytes_max, String::new()),
    ]
}
