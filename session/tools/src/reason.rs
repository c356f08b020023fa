//! Why a program cannot be reached, or has not joined a session: reasons in the order in which they explain it.
//!
//! Each check finds its reason or not in what was seen. The first reason that is found is the reason. Reasons are data;
//! `dormouse-doctor` has a sentence and a remedy for each.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use dormouse_control::Refusal;
use dormouse_control::directory::{SocketDirectory, directories_of, within};
use dormouse_transport::Deadline;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::executable::{Command, Executable, Kind, Privileges};
use crate::facts::{DirectoryObstacle, Process, process_of_thread};

/// How long a look may take: it may access another user's file systems.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a session's owner may take to accept a connection.
const PATIENCE_TO_CONNECT: Duration = Duration::from_secs(1);

/// File name of the library that traces libc's functions in unmodified programs.
const LIBC_LIBRARY: &str = "libdormouse_libc.so";

/// A session that the environment of a process names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSession {
    /// Path of its socket.
    pub path: String,
    /// Whether it has an owner. `None`: the owner must not be asked.
    pub is_alive: Option<bool>,
}

/// Why a program does not do what it is asked, with what was seen. Texts may come from programs, and may contain any
/// character.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// It has ended, and its parent has not waited for it.
    Zombie,
    /// It is a thread of the kernel.
    KernelThread,
    /// This user may not inspect it.
    NotInspectable {
        /// The user who may not.
        user: u32,
        /// Error of the kernel.
        error: String,
    },
    /// It has no tracepoints, and a preloaded library cannot be in it.
    NoTracepointsNorPreload(NoTracepoints, PreloadObstacle),
    /// It has no tracepoints.
    NoTracepoints(NoTracepoints),
    /// It runs with privileges that its caller did not have.
    Privileged,
    /// Its file gives it privileges that the caller does not have.
    PrivilegedFile(Privileges),
    /// The library that was to be preloaded contains no tracer for this machine.
    NoLibrary(PathBuf),
    /// A preloaded library cannot be in it.
    NotPreloadable(PreloadObstacle),
    /// Its environment has `DORMOUSE_LISTEN=0`.
    ListeningForbidden,
    /// `dormouse record` has started it, so that it does not listen.
    Recorded {
        /// Sessions that its environment names.
        sessions: Vec<NamedSession>,
    },
    /// Its only tracer is the library of `--libc`, which does not listen by itself.
    OnlyLibcLibrary,
    /// It does not run.
    Still(Still),
    /// None of its sockets may be used: the problem of each.
    SocketsUnfit(Vec<String>),
    /// It listens at this path, in a directory where tools do not look.
    ListensElsewhere(PathBuf),
    /// Its user has no id in its user namespace.
    UserUnmapped,
    /// It has no directory for its socket.
    NoDirectory {
        /// Namespaces and chroot that it is in and the caller is not.
        surroundings: Vec<String>,
        /// Directories, each with what prevents a socket there.
        obstacles: Vec<(PathBuf, DirectoryObstacle)>,
    },
    /// None of its user's socket directories may be used: the problem of each.
    DirectoriesUnfit(Vec<String>),
    /// The file of its socket, at this path, is gone.
    SocketGone(PathBuf),
    /// Its user may have no more threads.
    NoThreadLeft {
        /// The user.
        user: u32,
        /// Maximum number of the user's threads.
        max: u64,
        /// Number of the user's threads.
        count: u64,
    },
    /// It may map only this many more bytes, too few for a thread.
    NoMemoryLeft(u64),
    /// It is under a filter of system calls.
    Filtered {
        /// Namespaces and chroot that it is in and the caller is not.
        surroundings: Vec<String>,
    },
    /// It may get no new privileges, as programs that confine themselves with Landlock.
    NoNewPrivileges {
        /// Namespaces and chroot that it is in and the caller is not.
        surroundings: Vec<String>,
    },
    /// It is a program in Go, whose runtime handles the signal by which programs are called.
    Go,
    /// None of its threads can take the signal by which programs are called.
    NoCallableThread,
    /// It has passed no tracepoint since the tool's signal.
    NotPassed {
        /// Whether it may get no new privileges.
        has_no_new_privileges: bool,
    },
    /// Nothing is seen that keeps it from listening.
    Unknown {
        /// Namespaces and chroot that it is in and the caller is not.
        surroundings: Vec<String>,
    },
}

/// Where no tracepoints were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoTracepoints {
    /// In the mapped files of a process. Contains the number of those that cannot be read.
    InProcess(usize),
    /// In a command's file.
    InCommand,
}

/// What prevents a preloaded library from working in a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreloadObstacle {
    /// It has the runtime of the named sanitizer.
    Sanitizer(String),
    /// Its libc is musl.
    Musl,
    /// It has no loader.
    Static,
    /// It is of the named other architecture.
    Foreign(String),
}

impl PreloadObstacle {
    fn of(executable: &Executable) -> Option<PreloadObstacle> {
        match &executable.kind {
            Kind::Dynamic => None,
            Kind::Sanitized(name) => Some(PreloadObstacle::Sanitizer((*name).into())),
            Kind::Musl => Some(PreloadObstacle::Musl),
            Kind::Static => Some(PreloadObstacle::Static),
            Kind::Foreign(name) => Some(PreloadObstacle::Foreign(name.clone())),
        }
    }
}

/// Why a process does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Still {
    /// A debugger, by its id and name, holds it.
    Held(u32, String),
    /// A signal has stopped it.
    Stopped,
    /// Its control group is frozen.
    Frozen,
}

impl Still {
    fn of(process: &Process) -> Option<Still> {
        match (process.state, &process.debugger) {
            ('t' | 'T', Some((pid, name))) => Some(Still::Held(*pid, name.clone())),
            ('t' | 'T', None) => Some(Still::Stopped),
            _ => process.is_frozen().then_some(Still::Frozen),
        }
    }
}

/// Why a process cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreachable {
    /// The id that was asked for.
    pub pid: u32,
    /// Why.
    pub why: WhyUnreachable,
}

/// Why a process cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhyUnreachable {
    /// There is no process with this id.
    NoProcess,
    /// The id is that of a thread of this process.
    Thread(u32),
    /// The kernel does not show the process to this user.
    Hidden(u32),
    /// It belongs to this user, and the caller is another one, and not root.
    OtherUser(u32),
    /// Nothing about it can be seen.
    NotSeen,
    /// Its files do not answer within this time.
    FilesDoNotAnswer(Duration),
    /// It does not listen.
    DoesNotListen {
        /// Its name, if it can be seen.
        name: Option<String>,
        /// Why.
        reason: Reason,
        /// Problems of sockets in its name, and of directories for them, besides the reason.
        problems: Vec<String>,
    },
    /// It listens, and does not run.
    DoesNotRun(Still),
    /// It listens, and has not answered in time.
    Slow {
        /// How long it was waited for.
        patience: Duration,
        /// State letter of proc_pid_stat(5).
        state: char,
    },
}

impl Unreachable {
    pub(crate) fn new(pid: u32, why: WhyUnreachable) -> Box<Unreachable> {
        Box::new(Unreachable { pid, why })
    }
}

/// Why a program was not asked, or gives no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramError {
    /// It cannot be reached.
    Unreachable(Box<Unreachable>),
    /// Another reason, in one line.
    Failed(String),
}

impl From<Box<Unreachable>> for ProgramError {
    fn from(unreachable: Box<Unreachable>) -> ProgramError {
        ProgramError::Unreachable(unreachable)
    }
}

impl From<Error> for ProgramError {
    fn from(error: Error) -> ProgramError {
        ProgramError::Failed(error.into())
    }
}

impl From<dormouse_control::Error> for ProgramError {
    fn from(error: dormouse_control::Error) -> ProgramError {
        ProgramError::Failed(error.to_string())
    }
}

impl From<String> for ProgramError {
    fn from(text: String) -> ProgramError {
        ProgramError::Failed(text)
    }
}

/// Why neither a command nor a process that it has started has joined a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhyNotJoined {
    /// There is no command.
    NoCommand,
    /// The command has an argument with tracepoints, which was not started, or without the session's environment.
    Argument(OsString),
    /// The command's file shows a reason.
    Because(Reason),
    /// The command's file cannot be read.
    NotReadable,
    /// The command's file shows no reason why the loader has not loaded the library.
    LibraryNotLoaded,
    /// The command has tracepoints, and its file shows no reason.
    NotSeen,
}

/// A command, and why neither it nor a process that it has started has joined a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotJoined {
    /// The program, as the user named it.
    pub program: OsString,
    /// The program that runs it, if it is a script.
    pub interpreter: Option<PathBuf>,
    /// Why.
    pub why: WhyNotJoined,
}

/// Directories and sockets of a program that were tried. Those that cannot be used have the reason.
#[derive(Debug, Default)]
pub(crate) struct TriedSockets {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) directories_unfit: Vec<String>,
    pub(crate) sockets_unfit: Vec<String>,
}

/// Findings about a process or a command.
#[derive(Debug, Default)]
struct Facts {
    process: Option<Process>,
    command: Option<Command>,
    /// The library that should have been loaded, if the file does not contain a tracer.
    no_library: Option<PathBuf>,
    tried: TriedSockets,
    /// Sessions that its environment names.
    sessions: Vec<NamedSession>,
}

/// Returns the reason if it holds.
type Check = fn(&Facts) -> Option<Reason>;

/// Checks of a process that does not answer a tool.
const OF_ANSWERING: [Check; 24] = [
    |facts| facts.process_if(|process| process.state == 'Z' && process.thread_count < 2).map(|_| Reason::Zombie),
    |facts| facts.process_if(|process| process.is_kernel_thread).map(|_| Reason::KernelThread),
    |facts| {
        let error = facts.process.as_ref()?.unseen.clone()?;
        Some(Reason::NotInspectable { user: rustix::process::geteuid().as_raw(), error })
    },
    no_tracepoints_nor_preload,
    no_tracepoints,
    privileged,
    |facts| facts.process_if(|process| process.listen.as_deref() == Some("0")).map(|_| Reason::ListeningForbidden),
    |facts| {
        facts.process_if(|process| !process.is_asked_to_listen() && !process.has_thread)?;
        non_empty(&facts.sessions).map(|sessions| Reason::Recorded { sessions })
    },
    |facts| {
        let is_alone = |process: &Process| process.tracers.iter().all(|name| name.contains(LIBC_LIBRARY));
        let is_it = |process: &Process| is_alone(process) && !process.is_asked_to_listen() && !process.has_thread;
        facts.process_if(is_it).map(|_| Reason::OnlyLibcLibrary)
    },
    |facts| facts.process_if(|process| !process.has_thread).and_then(Still::of).map(Reason::Still),
    |facts| non_empty(&facts.tried.sockets_unfit).map(Reason::SocketsUnfit),
    |facts| {
        let path = Path::new(facts.process.as_ref()?.listens_at.as_ref()?);
        let is_elsewhere = path.parent().is_none_or(|dir| facts.tried.paths.iter().all(|tried| tried != dir));
        is_elsewhere.then(|| Reason::ListensElsewhere(path.into()))
    },
    |facts| facts.process_if(|process| process.is_unmapped && !process.has_thread).map(|_| Reason::UserUnmapped),
    |facts| {
        let process = facts.process.as_ref()?;
        let obstacles = process.places.iter().map(|(dir, why)| Some((dir.clone(), why.clone()?)));
        let obstacles = obstacles.collect::<Option<Vec<_>>>().filter(|obstacles| !obstacles.is_empty())?;
        Some(Reason::NoDirectory { surroundings: process.surroundings(), obstacles })
    },
    |facts| non_empty(&facts.tried.directories_unfit).map(Reason::DirectoriesUnfit),
    |facts| facts.process.as_ref()?.listens_at.as_ref().map(|path| Reason::SocketGone(path.into())),
    |facts| {
        let process = facts.process_if(|process| process.has_no_thread_left() && !process.has_thread)?;
        process.threads.map(|(max, count)| Reason::NoThreadLeft { user: process.uid, max, count })
    },
    |facts| {
        let process = facts.process_if(|process| process.has_no_memory_left() && !process.has_thread)?;
        process.memory_left.map(Reason::NoMemoryLeft)
    },
    |facts| {
        let is_meant =
            |process: &Process| process.handles_sigurg && (process.is_asked_to_listen() || process.has_mild_filter);
        let process = facts.process_if(|process| process.has_filter && !is_meant(process))?;
        Some(Reason::Filtered { surroundings: process.surroundings() })
    },
    |facts| {
        let process = facts.process_if(|process| process.has_no_new_privileges && !process.handles_sigurg)?;
        Some(Reason::NoNewPrivileges { surroundings: process.surroundings() })
    },
    |facts| {
        let is_go = facts.executable().is_some_and(|executable| executable.is_go);
        facts.process_if(|process| process.handles_sigurg && is_go).map(|_| Reason::Go)
    },
    |facts| {
        let is_it = |process: &Process| process.handles_sigurg && !process.has_callable_thread;
        facts.process_if(is_it).map(|_| Reason::NoCallableThread)
    },
    |facts| {
        let process = facts.process_if(|process| process.handles_sigurg)?;
        Some(Reason::NotPassed { has_no_new_privileges: process.has_no_new_privileges })
    },
    |facts| Some(Reason::Unknown { surroundings: facts.process.as_ref()?.surroundings() }),
];

/// Checks of a command that has not joined the session that has started it.
const OF_JOINING: [Check; 3] = [no_tracepoints_nor_preload, no_tracepoints, privileged];

/// Checks of a command into which the library of `--libc` was to be loaded.
const OF_PRELOADING: [Check; 3] = [
    privileged,
    |facts| facts.no_library.clone().map(Reason::NoLibrary),
    |facts| PreloadObstacle::of(facts.executable()?).map(Reason::NotPreloadable),
];

fn no_tracepoints_nor_preload(facts: &Facts) -> Option<Reason> {
    let obstacle = PreloadObstacle::of(facts.executable()?)?;
    Some(Reason::NoTracepointsNorPreload(facts.no_tracepoints()?, obstacle))
}

fn no_tracepoints(facts: &Facts) -> Option<Reason> {
    facts.no_tracepoints().map(Reason::NoTracepoints)
}

fn privileged(facts: &Facts) -> Option<Reason> {
    match (&facts.process, &facts.command) {
        (Some(process), _) => process.is_secure.then_some(Reason::Privileged),
        (None, Some(Command { privileges: Some(privileges), .. })) => Some(Reason::PrivilegedFile(*privileges)),
        _ => None,
    }
}

fn non_empty<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}

impl Facts {
    /// Returns the process, if there is one and `holds` is true of it.
    fn process_if(&self, holds: impl FnOnce(&Process) -> bool) -> Option<&Process> {
        self.process.as_ref().filter(|process| holds(process))
    }

    fn executable(&self) -> Option<&Executable> {
        let command = self.command.as_ref().map(|command| &command.executable);
        self.process.as_ref().map_or(command, |process| process.executable.as_ref())
    }

    fn no_tracepoints(&self) -> Option<NoTracepoints> {
        if let Some(process) = &self.process {
            return process.tracers.is_empty().then_some(NoTracepoints::InProcess(process.unread));
        }
        let command = self.command.as_ref()?;
        (!command.executable.has_events).then_some(NoTracepoints::InCommand)
    }

    /// Returns the first reason that is found.
    fn reason(&self, checks: &[Check]) -> Option<Reason> {
        checks.iter().find_map(|check| check(self))
    }

    /// Returns why a process does not listen.
    fn why_unreachable(&self) -> WhyUnreachable {
        let Some(reason) = self.reason(&OF_ANSWERING) else { return WhyUnreachable::NotSeen };
        // Another user's socket in the program's name is reported too.
        let problems = self.tried.sockets_unfit.iter().chain(&self.tried.directories_unfit);
        let is_told = |problem: &String| match &reason {
            Reason::SocketsUnfit(told) | Reason::DirectoriesUnfit(told) => told.contains(problem),
            _ => false,
        };
        let problems = problems.filter(|problem| !is_told(problem)).cloned().collect();
        let name = self.process.as_ref().map(|process| process.name.clone());
        WhyUnreachable::DoesNotListen { name, reason, problems }
    }
}

impl Process {
    fn is_asked_to_listen(&self) -> bool {
        matches!(self.listen.as_deref(), Some("thread" | "signal" | "1"))
    }

    /// Returns the namespaces and the chroot that it is in and the caller is not.
    fn surroundings(&self) -> Vec<String> {
        let chroot = self.is_in_chroot.then_some("chroot");
        chroot.into_iter().chain(self.namespaces.iter().copied()).map(String::from).collect()
    }
}

/// Runs `look` for at most [`PATIENCE`]: another user's file system may never answer.
fn within_patience<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, seen) = channel();
    let look = move || {
        let _ = sender.send(look());
    };
    std::thread::Builder::new().name("dormouse-look".into()).spawn(look).ok()?;
    seen.recv_timeout(PATIENCE).ok()
}

/// Why a process has no socket.
#[derive(Debug)]
pub(crate) enum Silence {
    /// It listens by a signal and would make a socket if it were called. If it has been called: the reason why it has
    /// made none.
    Callable(Box<Unreachable>),
    /// The reason why it does not listen.
    Because(Box<Unreachable>),
}

/// Returns why a process whose socket was not found does not listen.
pub(crate) fn why_unreachable(pid: u32, tried: TriedSockets) -> Silence {
    let look = move || {
        let process = Process::look(pid);
        let named = |process: &Process| {
            let of_path = |path: &String| NamedSession { path: path.clone(), is_alive: is_alive(path, process.uid) };
            process.sessions.iter().map(of_path).collect()
        };
        let sessions = process.as_ref().map(named).unwrap_or_default();
        Facts { process, tried, sessions, ..Facts::default() }.why_unreachable()
    };
    let why = within_patience(look).unwrap_or(WhyUnreachable::FilesDoNotAnswer(PATIENCE));
    let is_callable = matches!(
        &why,
        WhyUnreachable::DoesNotListen { reason: Reason::NoCallableThread | Reason::NotPassed { .. }, .. }
    );
    let why = Unreachable::new(pid, why);
    if is_callable { Silence::Callable(why) } else { Silence::Because(why) }
}

/// Returns why there is no process with this id that a tool could talk to.
pub(crate) fn why_none(pid: u32) -> Box<Unreachable> {
    let is_alive =
        || dormouse_control::process::open(pid).is_ok_and(|pidfd| !dormouse_control::process::is_dead(&pidfd));
    let why = match (process_of_thread(pid), Process::look(pid)) {
        (Some(process), _) => WhyUnreachable::Thread(process),
        (None, Some(process)) if process.state == 'Z' => {
            Facts { process: Some(process), ..Facts::default() }.why_unreachable()
        }
        (None, None) if is_alive() => WhyUnreachable::Hidden(rustix::process::geteuid().as_raw()),
        _ => WhyUnreachable::NoProcess,
    };
    Unreachable::new(pid, why)
}

/// Returns why a process that has a socket does not answer there.
pub(crate) fn why_silent(pid: u32, patience: Duration) -> Box<Unreachable> {
    let Some(process) = Process::look(pid) else { return why_none(pid) };
    let slow = || WhyUnreachable::Slow { patience, state: process.state };
    Unreachable::new(pid, Still::of(&process).map_or_else(slow, WhyUnreachable::DoesNotRun))
}

/// Whether the session at a path named by a process of user `uid` has an owner. `None` if the path is not in a
/// directory of that user's or the caller's sessions, in which case nothing is asked.
fn is_alive(path: &str, uid: u32) -> Option<bool> {
    let users = [uid, rustix::process::geteuid().as_raw()];
    let (directory, name) = users.into_iter().find_map(|user| {
        let directories = directories_of(user);
        let (index, name) = within(path, &directories)?;
        Some((SocketDirectory::open(&directories[index], user), name))
    })?;
    let Ok(Some(directory)) = directory else { return Some(false) };
    let connected = directory.connect(name, &[users[0], users[1], 0], &Deadline::after(PATIENCE_TO_CONNECT));
    // An owner that does not answer in time exists.
    let gone = Refusal::Failed(dormouse_transport::Error::System(Errno::NOENT));
    let refused = Refusal::Failed(dormouse_transport::Error::System(Errno::CONNREFUSED));
    Some(connected.map_or_else(|refusal| refusal != gone && refusal != refused, |_| true))
}

/// Returns the first argument of a command that is a file with tracepoints; the command may have been meant to start
/// it.
fn argument_with_tracepoints(arguments: &[OsString]) -> Option<&OsString> {
    let has_events = |argument: &&OsString| {
        let path = Path::new(argument);
        path.components().count() > 1 && Command::find(argument).is_some_and(|found| found.executable.has_events)
    };
    arguments.iter().find(has_events)
}

/// Returns why neither a command (a program and its arguments) nor a process that it has started has joined a session,
/// although `library`, if any, should have been loaded.
pub fn why_not_joined(command: &[OsString], library: Option<&Path>) -> NotJoined {
    let Some((program, arguments)) = command.split_first() else {
        return NotJoined { program: OsString::new(), interpreter: None, why: WhyNotJoined::NoCommand };
    };
    let is_none = |library: &&Path| {
        let object = std::fs::File::open(library).ok().and_then(|file| Executable::of(&file));
        !object.is_some_and(|object| object.has_events)
    };
    let no_library = library.filter(is_none).map(PathBuf::from);
    let facts = Facts { command: Command::find(program), no_library, ..Facts::default() };
    let has_events = facts.executable().is_some_and(|executable| executable.has_events);
    let checks = if library.is_some() { &OF_PRELOADING } else { &OF_JOINING };
    let why = match argument_with_tracepoints(arguments).filter(|_| !has_events) {
        Some(argument) => WhyNotJoined::Argument(argument.clone()),
        None => match facts.reason(checks) {
            Some(reason) => WhyNotJoined::Because(reason),
            None if facts.command.is_none() => WhyNotJoined::NotReadable,
            None if library.is_some() => WhyNotJoined::LibraryNotLoaded,
            None => WhyNotJoined::NotSeen,
        },
    };
    not_joined(program, facts.command, why)
}

/// Returns why the library of `--libc` does not reach a command, if the command's file shows it.
pub fn why_not_preloaded(program: &OsStr) -> Option<NotJoined> {
    let facts = Facts { command: Command::find(program), ..Facts::default() };
    let why = WhyNotJoined::Because(facts.reason(&OF_PRELOADING)?);
    Some(not_joined(program, facts.command, why))
}

fn not_joined(program: &OsStr, command: Option<Command>, why: WhyNotJoined) -> NotJoined {
    let interpreter = command.and_then(|command| command.script.map(|_| command.path));
    NotJoined { program: program.into(), interpreter, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the facts of a program that has a tracer and does not listen.
    fn silent() -> Facts {
        let executable = Executable { kind: Kind::Dynamic, has_events: true, is_go: false };
        let process = Process {
            pid: 7,
            name: "shop".into(),
            uid: 1_000,
            state: 'S',
            thread_count: 1,
            executable: Some(executable),
            tracers: vec!["/opt/shop".into()],
            places: vec![("/tmp/dormouse-1000".into(), None)],
            ..Process::default()
        };
        Facts { process: Some(process), ..Facts::default() }
    }

    fn with(change: impl FnOnce(&mut Process)) -> Facts {
        let mut facts = silent();
        change(facts.process.as_mut().unwrap());
        facts
    }

    fn is_kind(kind: Kind) -> impl FnOnce(&mut Process) {
        move |process| {
            process.executable = Some(Executable { kind, has_events: false, is_go: false });
            process.tracers.clear();
        }
    }

    fn command(kind: Kind, has_events: bool, privileges: Option<Privileges>) -> Facts {
        let executable = Executable { kind, has_events, is_go: false };
        let command = Command { path: "/bin/x".into(), script: None, executable, privileges };
        Facts { command: Some(command), ..Facts::default() }
    }

    fn tried(tried: TriedSockets) -> Facts {
        let mut facts = with(|process| process.has_thread = true);
        facts.process.as_mut().unwrap().listens_at = Some("/run/a/dormouse/7.1.sock".into());
        Facts { tried, ..facts }
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    fn unfit(directories: &[&str], sockets: &[&str]) -> TriedSockets {
        TriedSockets {
            paths: vec!["/run/a/dormouse".into()],
            directories_unfit: texts(directories),
            sockets_unfit: texts(sockets),
        }
    }

    #[test]
    fn each_reason_is_found_where_it_alone_holds() {
        let session = || NamedSession { path: "/run/a/dormouse/session-1-0.sock".into(), is_alive: Some(true) };
        let socket = || "/run/a/dormouse/7.1.sock".into();
        let in_process = NoTracepoints::InProcess(0);
        let cases: Vec<(Facts, Reason)> = vec![
            (with(|process| process.state = 'Z'), Reason::Zombie),
            (with(|process| process.is_kernel_thread = true), Reason::KernelThread),
            (
                with(|process| process.unseen = Some("no".into())),
                Reason::NotInspectable { user: rustix::process::geteuid().as_raw(), error: "no".into() },
            ),
            (with(is_kind(Kind::Static)), Reason::NoTracepointsNorPreload(in_process, PreloadObstacle::Static)),
            (with(is_kind(Kind::Musl)), Reason::NoTracepointsNorPreload(in_process, PreloadObstacle::Musl)),
            (with(is_kind(Kind::Dynamic)), Reason::NoTracepoints(in_process)),
            (with(|process| process.is_secure = true), Reason::Privileged),
            (with(|process| process.listen = Some("0".into())), Reason::ListeningForbidden),
            (Facts { sessions: vec![session()], ..with(|_| ()) }, Reason::Recorded { sessions: vec![session()] }),
            (with(|process| process.tracers = vec!["/l/libdormouse_libc.so".into()]), Reason::OnlyLibcLibrary),
            (with(|process| process.state = 'T'), Reason::Still(Still::Stopped)),
            (
                with(|process| (process.state, process.debugger) = ('t', Some((9, "gdb".into())))),
                Reason::Still(Still::Held(9, "gdb".into())),
            ),
            (tried(unfit(&[], &["it is yours"])), Reason::SocketsUnfit(texts(&["it is yours"]))),
            (tried(TriedSockets::default()), Reason::ListensElsewhere(socket())),
            (with(|process| process.is_unmapped = true), Reason::UserUnmapped),
            (
                with(|process| {
                    process.places[0].1 = Some(DirectoryObstacle::PathTooLong);
                    process.namespaces = vec!["mount namespace"];
                    process.is_in_chroot = true;
                }),
                Reason::NoDirectory {
                    surroundings: texts(&["chroot", "mount namespace"]),
                    obstacles: vec![("/tmp/dormouse-1000".into(), DirectoryObstacle::PathTooLong)],
                },
            ),
            (tried(unfit(&["others may write"], &[])), Reason::DirectoriesUnfit(texts(&["others may write"]))),
            (tried(unfit(&[], &[])), Reason::SocketGone(socket())),
            (with(|process| process.threads = Some((5, 5))), Reason::NoThreadLeft { user: 1_000, max: 5, count: 5 }),
            (with(|process| process.memory_left = Some(4096)), Reason::NoMemoryLeft(4096)),
            (with(|process| process.has_filter = true), Reason::Filtered { surroundings: Vec::new() }),
            (
                with(|process| process.has_no_new_privileges = true),
                Reason::NoNewPrivileges { surroundings: Vec::new() },
            ),
            (
                with(|process| {
                    process.handles_sigurg = true;
                    process.executable.as_mut().unwrap().is_go = true;
                }),
                Reason::Go,
            ),
            (with(|process| process.handles_sigurg = true), Reason::NoCallableThread),
            (
                with(|process| (process.handles_sigurg, process.has_callable_thread) = (true, true)),
                Reason::NotPassed { has_no_new_privileges: false },
            ),
            (silent(), UNKNOWN),
        ];
        for (facts, reason) in cases {
            assert_eq!(facts.reason(&OF_ANSWERING), Some(reason));
        }
    }

    #[test]
    fn a_command_has_a_reason_where_its_file_shows_one() {
        let set_user_id = Some(Privileges::OfUser(0));
        let (in_command, is_static) = (NoTracepoints::InCommand, PreloadObstacle::Static);
        let joining = [
            (command(Kind::Static, false, None), Reason::NoTracepointsNorPreload(in_command, is_static.clone())),
            (command(Kind::Dynamic, false, None), Reason::NoTracepoints(in_command)),
            (command(Kind::Dynamic, true, set_user_id), Reason::PrivilegedFile(Privileges::OfUser(0))),
        ];
        for (facts, reason) in joining {
            assert_eq!(facts.reason(&OF_JOINING), Some(reason));
        }
        assert_eq!(command(Kind::Dynamic, true, None).reason(&OF_JOINING), None);
        let preloading = [
            (command(Kind::Static, false, set_user_id), Reason::PrivilegedFile(Privileges::OfUser(0))),
            (
                Facts { no_library: Some("/l.so".into()), ..command(Kind::Dynamic, false, None) },
                Reason::NoLibrary("/l.so".into()),
            ),
            (command(Kind::Static, false, None), Reason::NotPreloadable(is_static)),
            (command(Kind::Musl, false, None), Reason::NotPreloadable(PreloadObstacle::Musl)),
            (
                command(Kind::Sanitized("LeakSanitizer"), false, None),
                Reason::NotPreloadable(PreloadObstacle::Sanitizer("LeakSanitizer".into())),
            ),
            (
                command(Kind::Foreign("aarch64".into()), false, None),
                Reason::NotPreloadable(PreloadObstacle::Foreign("aarch64".into())),
            ),
        ];
        for (facts, reason) in preloading {
            assert_eq!(facts.reason(&OF_PRELOADING), Some(reason));
        }
        assert_eq!(command(Kind::Dynamic, false, None).reason(&OF_PRELOADING), None);
    }

    #[test]
    fn problems_are_told_besides_the_reason_that_does_not_have_them() {
        let problems = |facts: Facts| match facts.why_unreachable() {
            WhyUnreachable::DoesNotListen { problems, .. } => problems,
            why => panic!("{why:?}"),
        };
        assert_eq!(problems(tried(unfit(&["a"], &["b"]))), ["a"]);
        let no_tracepoints = Facts { tried: unfit(&["a"], &["b"]), ..with(is_kind(Kind::Dynamic)) };
        assert_eq!(problems(no_tracepoints), ["b", "a"]);
    }

    const UNKNOWN: Reason = Reason::Unknown { surroundings: Vec::new() };

    #[test]
    fn what_does_not_keep_it_from_listening_is_no_reason() {
        for facts in [
            with(|process| process.listen = Some("thread".into())),
            with(|process| process.threads = Some((5, 4))),
            with(|process| process.memory_left = Some(1 << 30)),
            Facts {
                sessions: vec![NamedSession { path: "/x".into(), is_alive: None }],
                ..with(|process| process.listen = Some("1".into()))
            },
            with(|process| process.places.push(("/run/x".into(), Some(DirectoryObstacle::WritableByOthers)))),
            // strace does not stop it.
            with(|process| process.debugger = Some((9, "strace".into()))),
        ] {
            assert_eq!(facts.reason(&OF_ANSWERING), Some(UNKNOWN));
        }
    }

    #[test]
    fn a_session_that_a_program_names_is_asked_only_in_its_users_directories() {
        assert_eq!(is_alive("/etc/session-1-0.sock", 1_000), None);
        assert_eq!(is_alive("/tmp/dormouse-1000/../x/session-1-0.sock", 1_000), None);
    }
}
