//! What tools ask a session's owner for.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dormouse_abi::message::{
    BudgetState, OwnerToTool, ProgramToTool, Snapshot, SnapshotRequest, ToolToOwner, ToolToProgram,
};

use crate::error::Error;
use crate::program::{self, Program, socket_dir};
use crate::snapshot::Take;

/// How long the asker waits: the owner may have to find memory, to write to a disk, and to serve those who have asked before.
const PATIENCE: Duration = Duration::from_secs(60);

fn ask(session: &Path, question: &ToolToOwner) -> Result<OwnerToTool, Error> {
    program::ask(session, question, PATIENCE)
        .map_err(|failure| format!("session {}: {failure}", session.display()).into())
}

fn refusal(answer: OwnerToTool) -> Error {
    Error::from(match answer {
        OwnerToTool::Error { text } => text,
        _ => "the session owner answered something else than it was asked".into(),
    })
}

/// Asks a session's owner for its budget, after it has set it to `bytes`, if any.
///
/// # Errors
/// One line.
pub fn ask_for_budget(session: &Path, bytes: Option<u64>) -> Result<BudgetState, Error> {
    match ask(session, &ToolToOwner::Budget { bytes: bytes.map_or(0, |bytes| bytes.max(1)) })? {
        OwnerToTool::BudgetIs { state } => Ok(state),
        other => Err(refusal(other)),
    }
}

/// Asks the owner of a session of attached programs to end it, and gives its summary.
///
/// # Errors
/// One line.
pub fn stop_session(socket: &Path) -> Result<String, Error> {
    match ask(socket, &ToolToOwner::Stop)? {
        OwnerToTool::Stopped { summary } => Ok(summary),
        other => Err(refusal(other)),
    }
}

/// Asks a session's owner for a snapshot. `wanted.dir` is made absolute.
///
/// # Errors
/// One line.
pub fn ask_for_snapshot(session: &Path, wanted: &Take) -> Result<Snapshot, Error> {
    let absolute = |dir: &PathBuf| std::path::absolute(dir).map_err(|error| format!("{}: {error}", dir.display()));
    let dir = wanted.dir.as_ref().map(absolute).transpose()?.unwrap_or_default();
    let request = SnapshotRequest {
        dir: dir.to_str().ok_or_else(|| "the directory's name is not UTF-8".to_string())?.into(),
        last_ns: wanted.last.map_or(0, |last| (last.as_nanos().min(u64::MAX.into()) as u64).max(1)),
        bytes_max: wanted.bytes_max.map_or(0, |bytes| bytes.max(1)),
        trigger: wanted.trigger.clone(),
    };
    match ask(session, &ToolToOwner::Snapshot { request })? {
        OwnerToTool::Snapshotted { snapshot } => Ok(snapshot),
        other => Err(refusal(other)),
    }
}

/// The socket of the session that `target` names: a path, the process id of a program in the session, or that of its owner.
/// `None`: of the only session there is.
///
/// # Errors
/// One line that says what there is.
pub fn find_session(target: Option<&str>) -> Result<PathBuf, Error> {
    let Some(target) = target else {
        let mut all = sessions(None);
        return match all.len() {
            1 => Ok(all.remove(0)),
            0 => Err("there is no session; `dormouse record --mode overwrite -- CMD` starts one".to_string().into()),
            _ => Err(format!("there are several sessions; name one: {}", names(&all)).into()),
        };
    };
    let Ok(pid) = target.parse::<u32>() else {
        let path = PathBuf::from(target);
        let is_there = path.exists();
        return if is_there { Ok(path) } else { Err(format!("there is no session {target}{}", hint()).into()) };
    };
    if let Some(session) = sessions(Some(pid)).into_iter().next() {
        return Ok(session);
    }
    let answers = Program::find(pid)?.ask(&ToolToProgram::List)?;
    let session = answers.into_iter().find_map(|answer| match answer {
        ProgramToTool::Classes { session, .. } if !session.is_empty() => Some(PathBuf::from(session)),
        _ => None,
    });
    session.ok_or_else(|| format!("process {pid} is in no session{}", hint()).into())
}

fn hint() -> String {
    let all = sessions(None);
    if all.is_empty() { String::new() } else { format!("; there are {}", names(&all)) }
}

fn names(sessions: &[PathBuf]) -> String {
    sessions.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Sockets of the sessions of this user that are alive, or of those that process `owner` has.
fn sessions(owner: Option<u32>) -> Vec<PathBuf> {
    let is_owners = |name: &str| {
        let rest = name.strip_prefix("session-").and_then(|rest| rest.strip_suffix(".sock"));
        let number = rest.and_then(|rest| rest.split_once('-')).and_then(|(pid, _)| pid.parse::<u32>().ok());
        number.is_some_and(|number| owner.is_none_or(|owner| owner == number))
    };
    let entries = std::fs::read_dir(socket_dir()).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries
        .filter(|entry| is_owners(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .filter(|path| UnixStream::connect(path).is_ok())
        .collect();
    all.sort();
    all
}
