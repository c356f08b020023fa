//! Requests of tools to a session's owner, and how tools know which process answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dormouse_abi::message::{
    BudgetState, Edge, OwnerToTool, ProgramToTool, RulesState, Snapshot, SnapshotRequest, Status, ToolToOwner,
    ToolToProgram,
};
use dormouse_transport::{Conversation, Deadline, Peer};

use crate::error::Error;
use crate::program::Program;
use crate::reason::ProgramError;
use dormouse_control::directory::{SocketDirectory, directories_named, directories_of, owner_of, within};
use dormouse_control::{ENDS_WITH_COMMAND, Take};

/// How long the asker waits: the owner may have to find memory, write to a disk, and serve earlier clients.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long an owner may take to accept a connection.
const PATIENCE_TO_CONNECT: Duration = Duration::from_secs(2);

/// The socket of a session, in a checked directory. A process that answers there belongs to one of the trusted users.
#[derive(Debug, Clone)]
pub struct SessionSocket {
    directory: Arc<SocketDirectory>,
    name: String,
    /// Users who may own the session.
    owners: Vec<u32>,
}

impl SessionSocket {
    /// Opens the socket that the user names, of a session of the user or root. Root may name any user's.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn at(path: &Path) -> Result<SessionSocket, Error> {
        let failed = |why: String| Error::from(format!("session {}: {why}", path.display()));
        let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
        let (Some(parent), Some(name)) = (parent, path.file_name().and_then(|name| name.to_str())) else {
            return Err(failed("there is no such socket".into()));
        };
        let me = rustix::process::geteuid();
        let whose =
            |path: &Path| path.symlink_metadata().ok().map(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata));
        let uid = if me.is_root() { whose(&parent).unwrap_or(0) } else { me.as_raw() };
        let directory = SocketDirectory::open(&parent, uid)?.ok_or_else(|| failed("there is no such socket".into()))?;
        Ok(SessionSocket { directory: Arc::new(directory), name: name.into(), owners: vec![uid, 0] })
    }

    /// Returns the socket's path.
    pub fn path(&self) -> PathBuf {
        self.directory.path_of(&self.name)
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        format!("session {}: {why}", self.path().display()).into()
    }

    fn connect(&self, deadline: &Deadline<'_>) -> Result<std::os::fd::OwnedFd, Error> {
        let connected = self.directory.connect(&self.name, &self.owners, deadline);
        let socket = connected.map_err(|error| self.failed(error))?;
        let peer = Peer::of(&socket).map_err(|error| self.failed(error))?;
        if !self.owners.contains(&peer.uid) {
            return Err(self.failed(format!("user {} answers there, to whom it does not belong", peer.uid)));
        }
        Ok(socket)
    }

    /// Whether an owner accepts connections there.
    pub fn is_alive(&self) -> bool {
        self.connect(&Deadline::after(PATIENCE_TO_CONNECT)).is_ok()
    }

    fn ask(&self, question: &ToolToOwner) -> Result<OwnerToTool, Error> {
        self.ask_within(question, PATIENCE)
    }

    fn ask_within(&self, question: &ToolToOwner, patience: Duration) -> Result<OwnerToTool, Error> {
        let deadline = Deadline::after(patience);
        let mut conversation = Conversation::begin(self.connect(&deadline)?, Edge::ToolOwner, deadline);
        conversation.ask(question).map_err(|failure| self.failed(failure))
    }
}

fn refusal(answer: OwnerToTool) -> Error {
    Error::from(match answer {
        OwnerToTool::Error { text } => text,
        _ => "the session owner answered something else than it was asked".into(),
    })
}

/// Asks a session's owner for its budget, after setting it to `bytes` if given.
///
/// # Errors
/// One line with the reason.
pub fn ask_for_budget(session: &SessionSocket, bytes: Option<u64>) -> Result<BudgetState, Error> {
    match session.ask(&ToolToOwner::Budget { bytes: bytes.map_or(0, |bytes| bytes.max(1)) })? {
        OwnerToTool::BudgetIs { state } => Ok(state),
        other => Err(refusal(other)),
    }
}

/// Asks a session's owner for its rules, after replacing them by `new` if given, and which processes follow them.
///
/// # Errors
/// One line with the reason; the rules are unchanged.
pub fn ask_for_rules(session: &SessionSocket, new: Option<&[String]>) -> Result<RulesState, Error> {
    let question = new.map_or(ToolToOwner::Rules, |rules| ToolToOwner::SetRules { rules: rules.to_vec() });
    match session.ask(&question)? {
        OwnerToTool::RulesAre { state } => Ok(state),
        other => Err(refusal(other)),
    }
}

/// Asks a session's owner for its status.
///
/// # Errors
/// One line with the reason.
pub fn ask_for_status(session: &SessionSocket) -> Result<Status, Error> {
    match session.ask(&ToolToOwner::Status)? {
        OwnerToTool::StatusIs { status } => Ok(status),
        other => Err(refusal(other)),
    }
}

/// Asks the owner of a session of attached programs to end it, and returns its summary; `None` if the session goes on
/// because it ends with its command. A session that `program` is not in goes on too: in that case an untrusted program
/// has named it.
///
/// # Errors
/// One line with the reason.
pub fn stop_session(session: &SessionSocket, program: &Program) -> Result<Option<String>, Error> {
    match session.ask(&ToolToOwner::Stop { pid: program.pid })? {
        OwnerToTool::Stopped { summary } => Ok(Some(summary)),
        OwnerToTool::Error { text } if text == ENDS_WITH_COMMAND => Ok(None),
        other => Err(session.failed(refusal(other))),
    }
}

/// Asks a session's owner for a snapshot. `wanted.dir` is made absolute.
///
/// # Errors
/// One line with the reason.
pub fn ask_for_snapshot(session: &SessionSocket, wanted: &Take) -> Result<Snapshot, Error> {
    let absolute = |dir: &PathBuf| std::path::absolute(dir).map_err(|error| format!("{}: {error}", dir.display()));
    let dir = wanted.dir.as_ref().map(absolute).transpose()?.unwrap_or_default();
    let request = SnapshotRequest {
        dir: dir.to_str().ok_or_else(|| "the directory's name is not UTF-8".to_string())?.into(),
        last_ns: wanted.last.map_or(0, |last| (last.as_nanos().min(u64::MAX.into()) as u64).max(1)),
        bytes_max: wanted.bytes_max.map_or(0, |bytes| bytes.max(1)),
        trigger: wanted.trigger.clone(),
    };
    match session.ask(&ToolToOwner::Snapshot { request })? {
        OwnerToTool::Snapshotted { snapshot } => Ok(snapshot),
        other => Err(refusal(other)),
    }
}

impl Program {
    /// Returns the session that the program says it is in, if an owner that the program's user or the caller can trust
    /// answers there. The program's answer is a path; it is accepted only as the socket of a session of these users.
    pub fn session(&self, said: &str) -> Option<SessionSocket> {
        let candidates = self.owners().map(|uid| (uid, directories_of(uid)));
        let sessions = candidates.into_iter().filter_map(|(uid, directories)| {
            let (index, name) = within(said, &directories)?;
            let directory = SocketDirectory::open(&directories[index], uid).ok()??;
            Some(SessionSocket { directory: Arc::new(directory), name: name.into(), owners: vec![uid, 0] })
        });
        sessions.into_iter().find(SessionSocket::is_alive)
    }
}

/// Finds the session that `target` names: by a socket's path, the process id of a program in the session, or that of
/// its owner. With `None`, finds the only session that exists.
///
/// # Errors
/// The reason, with the names of the existing sessions.
pub fn find_session(target: Option<&str>) -> Result<SessionSocket, ProgramError> {
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
        if !path.exists() {
            return Err(format!("there is no session {target}{}", hint()).into());
        }
        return Ok(SessionSocket::at(&path)?);
    };
    if let Some(session) = sessions(Some(pid)).into_iter().next() {
        return Ok(session);
    }
    let program = Program::find(pid)?;
    let mut sessions = sessions_of(&program)?;
    match sessions.len() {
        0 => Err(format!("process {pid} is in no session{}", hint()).into()),
        1 => Ok(sessions.remove(0)),
        _ => Err(format!("process {pid} is in several sessions; name one: {}", names(&sessions)).into()),
    }
}

/// Returns the sessions that a program says it is in, if it can be in them.
///
/// # Errors
/// The program does not answer.
pub fn sessions_of(program: &Program) -> Result<Vec<SessionSocket>, ProgramError> {
    let mut found: Vec<SessionSocket> = Vec::new();
    for answer in program.ask(&ToolToProgram::List)? {
        let ProgramToTool::Classes { sessions, .. } = answer else { continue };
        // Several tracers in a program can be in one session.
        for session in sessions.iter().filter_map(|session| program.session(session)) {
            if found.iter().all(|known| known.path() != session.path()) {
                found.push(session);
            }
        }
    }
    Ok(found)
}

/// Returns all live sessions of this user whose owners answer at once, wherever their sockets are, with their status.
pub(crate) fn live_sessions() -> Vec<(SessionSocket, Status)> {
    let status = |session: SessionSocket| match session.ask_within(&ToolToOwner::Status, PATIENCE_TO_CONNECT) {
        Ok(OwnerToTool::StatusIs { status }) => Some((session, status)),
        _ => None,
    };
    sessions_in(directories_of(rustix::process::geteuid().as_raw()), None).into_iter().filter_map(status).collect()
}

/// Returns the live sessions that the caller's environment leads to.
pub fn all_sessions() -> Vec<SessionSocket> {
    sessions(None)
}

fn hint() -> String {
    let all = sessions(None);
    if all.is_empty() { String::new() } else { format!("; there are {}", names(&all)) }
}

fn names(sessions: &[SessionSocket]) -> String {
    sessions.iter().map(|session| session.path().display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns live sessions in the directories that the caller's environment names, or those that process `owner` of this
/// user has in any of its directories.
fn sessions(owner: Option<u32>) -> Vec<SessionSocket> {
    let named = || directories_named().into_iter().flatten().collect();
    let directories = owner.map_or_else(named, |_| directories_of(rustix::process::geteuid().as_raw()));
    sessions_in(directories, owner)
}

fn sessions_in(directories: Vec<PathBuf>, owner: Option<u32>) -> Vec<SessionSocket> {
    let uid = rustix::process::geteuid().as_raw();
    let opened = directories.into_iter().filter_map(|path| SocketDirectory::open(&path, uid).ok()?);
    let sessions = opened.flat_map(|directory| {
        let directory = Arc::new(directory);
        let names = directory.names().into_iter().filter(|name| name.starts_with("session-"));
        let names = names.filter(|name| owner_of(name).is_some_and(|pid| owner.is_none_or(|owner| owner == pid)));
        let session = |name| SessionSocket { directory: Arc::clone(&directory), name, owners: vec![uid, 0] };
        names.map(session).filter(SessionSocket::is_alive).collect::<Vec<_>>()
    });
    sessions.collect()
}
