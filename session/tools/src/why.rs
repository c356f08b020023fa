//! Why a program cannot be reached, or has not joined a session: reasons in the order in which they explain it, each
//! with a remedy.
//!
//! Each row of the table holds or does not hold by what was seen. The first row that holds is the reason.
//! `docs/limits.md` has the same table.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use dormouse_abi::environment::ENV_SESSION;
use dormouse_abi::text::shown;
use dormouse_transport::Deadline;
use rustix::io::Errno;

use crate::executable::{Command, Executable, Kind};
use crate::facts::{Process, process_of_thread};
use crate::unjoined::keep_environment;
use dormouse_control::Error;
use dormouse_control::directory::{Refusal, SocketDirectory, directories_of, within};

/// How long a look may take: it may access another user's file systems.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a session's owner may take to accept a connection.
const PATIENCE_TO_CONNECT: Duration = Duration::from_secs(1);

/// File name of the library that traces libc's functions in unmodified programs.
const LIBC_LIBRARY: &str = "libdormouse_libc.so";

/// Requests that a program may not have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// To answer a tool.
    Answer,
    /// To join the session that has started it.
    Join,
    /// To load the library of `--libc`.
    Preload,
}
use Request::{Answer, Join, Preload};

/// Directories and sockets of a program that were tried. Those that cannot be used have the reason.
#[derive(Debug, Default)]
pub(crate) struct Looked {
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
    looked: Looked,
    /// Whether the session that has started it has an owner. `None` if the owner must not be asked.
    is_session_alive: Option<bool>,
}

/// A row of the table.
struct Reason {
    requests: &'static [Request],
    /// Subject of the row, as in the document.
    what: &'static str,
    /// Returns what was seen if the row holds: the rest of a sentence about the program.
    seen: fn(&Facts) -> Option<String>,
    /// Remedy. `PID` and `DIR` stand for the process and its socket's directory.
    remedy: &'static str,
}

/// Rows for a program that listens by a signal and that nothing prevents from answering once it has been called.
const NOT_CALLABLE_NOW: &str = "its threads wait for signals, or block `SIGURG`";
const NOT_PASSED: &str = "it has passed no tracepoint since it was called";

const REASONS: [Reason; 29] = [
    Reason {
        requests: &[Answer],
        what: "it is a zombie",
        seen: |facts| {
            facts.of(
                |process| process.state == 'Z' && process.thread_count < 2,
                "has ended, and its parent has not waited for it",
            )
        },
        remedy: "name a program that runs: `pgrep -a NAME` finds its id",
    },
    Reason {
        requests: &[Answer],
        what: "it is a thread of the kernel",
        seen: |facts| facts.of(|process| process.is_kernel_thread, "is a thread of the kernel"),
        remedy: "name a program: `pgrep -a NAME` finds its id",
    },
    Reason {
        requests: &[Answer],
        what: "this user may not inspect it",
        seen: |facts| {
            let error = facts.process.as_ref()?.unseen.as_ref()?;
            Some(format!(
                "has no socket where dormouse looks, and user {} may not look at it ({error})",
                rustix::process::geteuid().as_raw()
            ))
        },
        remedy: "run dormouse as root, outside of containers",
    },
    Reason {
        requests: &[Answer, Join],
        what: "it has no Dormouse tracepoints, and `--libc` does not reach it",
        seen: |facts| {
            let kind = kind(facts.executable()?)?;
            facts.has_no_tracer().map(|text| format!("{kind} and {text}"))
        },
        remedy: "link it with Dormouse; `--libc` does not reach it",
    },
    Reason {
        requests: &[Answer, Join],
        what: "it has no Dormouse tracepoints",
        seen: Facts::has_no_tracer,
        remedy: "`dormouse record --libc -- CMD` traces what an unmodified program calls of libc",
    },
    Reason {
        requests: &[Answer, Join, Preload],
        what: "it has privileges that its caller has not: set-user-ID, set-group-ID, capabilities of its file",
        seen: |facts| {
            match (&facts.process, &facts.command) {
            (Some(process), _) => process.is_secure.then(|| {
                "runs with privileges that its caller had not (set-user-ID or its file's capabilities), and makes no socket".into()
            }),
            (None, Some(Command { privileges: Some(why), .. })) => {
                Some(format!("runs with privileges that you have not (it is {why}): Dormouse's library joins no session there"))
            }
            _ => None,
        }
        },
        remedy: "start it as the user whose privileges it has",
    },
    Reason {
        requests: &[Preload],
        what: "the preload library is missing or for another machine",
        seen: |facts| {
            let library = shown(&facts.no_library.as_ref()?.to_string_lossy());
            Some(format!("was to load {library}, which is no library of Dormouse's for this machine"))
        },
        remedy: "install it anew, or set DORMOUSE_LIBC_LIBRARY to where it is",
    },
    Reason {
        requests: &[Preload],
        what: "it is of another architecture",
        seen: |facts| facts.is_kind(|kind| matches!(kind, Kind::Foreign(_))),
        remedy: "record a program that is built for this machine",
    },
    Reason {
        requests: &[Preload],
        what: "it has the runtime of a sanitizer (`-fsanitize=address`, `leak`, `thread`)",
        seen: |facts| facts.is_kind(|kind| matches!(kind, Kind::Sanitized(_))),
        remedy: "build it without `-fsanitize`",
    },
    Reason {
        requests: &[Preload],
        what: "its libc is musl",
        seen: |facts| facts.is_kind(|kind| *kind == Kind::Musl),
        remedy: "link it with glibc",
    },
    Reason {
        requests: &[Preload],
        what: "it is static",
        seen: |facts| facts.is_kind(|kind| *kind == Kind::Static),
        remedy: "link it dynamically",
    },
    Reason {
        requests: &[Answer],
        what: "its environment forbids it",
        seen: |facts| facts.of(|process| process.listen.as_deref() == Some("0"), "was started with DORMOUSE_LISTEN=0"),
        remedy: "start it without",
    },
    Reason {
        requests: &[Answer],
        what: "`dormouse record` has started it",
        seen: |facts| {
            let session = facts
                .process
                .as_ref()
                .filter(|process| !process.is_asked_to_listen() && !process.has_thread)?
                .session
                .as_ref()?;
            let state = match facts.is_session_alive {
                Some(true) => ", which records",
                Some(false) => ", which is over",
                None => "",
            };
            let session = shown(session);
            Some(format!("was started by `dormouse record`, whose programs do not listen (session {session}{state})"))
        },
        remedy: "DORMOUSE_LISTEN=thread has what `dormouse record` starts listen",
    },
    Reason {
        requests: &[Answer],
        what: "it has only the library of `--libc`",
        seen: |facts| {
            let is_alone = |process: &Process| process.tracers.iter().all(|name| name.contains(LIBC_LIBRARY));
            facts.of(
                |process| is_alone(process) && !process.is_asked_to_listen() && !process.has_thread,
                "has only the library of `--libc`, which does not listen by itself",
            )
        },
        remedy: "start it with DORMOUSE_LISTEN=thread",
    },
    Reason {
        requests: &[Answer],
        what: "it is stopped, traced or frozen, and has no socket yet",
        seen: |facts| facts.process.as_ref().filter(|process| !process.has_thread).and_then(why_still),
        remedy: "have it go on (`kill -CONT PID`, or in its debugger), and try again",
    },
    Reason {
        requests: &[Answer],
        what: "its socket has the wrong owner, mode or type",
        seen: |facts| listed("has no socket that may be used", &facts.looked.sockets_unfit),
        remedy: "start it anew",
    },
    Reason {
        requests: &[Answer],
        what: "it listens elsewhere",
        seen: |facts| {
            let path = facts.process.as_ref()?.listens_at.as_ref()?;
            let is_elsewhere =
                Path::new(path).parent().is_none_or(|dir| facts.looked.paths.iter().all(|looked| looked != dir));
            is_elsewhere.then(|| format!("listens at {}, where dormouse does not look", shown(path)))
        },
        remedy: "DORMOUSE_SOCKET_DIR=DIR has dormouse look there",
    },
    Reason {
        requests: &[Answer],
        what: "its user has no id in its user namespace",
        seen: |facts| {
            facts.of(
                |process| process.is_unmapped && !process.has_thread,
                "runs as a user without an id in its user namespace, and can make no socket",
            )
        },
        remedy: "give it an id there, as `unshare --map-root-user` does",
    },
    Reason {
        requests: &[Answer],
        what: "no directory is suitable for its socket",
        seen: |facts| {
            let process = facts.process.as_ref()?;
            let obstacles: Option<Vec<String>> = process
                .places
                .iter()
                .map(|(dir, why)| Some(format!("{} ({})", shown(&dir.to_string_lossy()), why.as_ref()?)))
                .collect();
            let obstacles = obstacles.filter(|obstacles| !obstacles.is_empty())?;
            Some(format!("has no directory for its socket{}: {}", process.surroundings(), obstacles.join(", ")))
        },
        remedy: "start it with XDG_RUNTIME_DIR=DIRECTORY, a directory to which its user alone may write",
    },
    Reason {
        requests: &[Answer],
        what: "a socket directory of its user has the wrong owner, mode or type",
        seen: |facts| listed("has no socket that may be used", &facts.looked.directories_unfit),
        remedy: "start it with XDG_RUNTIME_DIR=DIRECTORY, a directory that is its user's alone",
    },
    Reason {
        requests: &[Answer],
        what: "its socket's file is gone",
        seen: |facts| {
            let path = facts.process.as_ref()?.listens_at.as_ref()?;
            Some(format!("listens at {}, and that file is not to be found there", shown(path)))
        },
        remedy: "start it anew",
    },
    Reason {
        requests: &[Answer],
        what: "its user may have no more threads",
        seen: |facts| {
            let process =
                facts.process.as_ref().filter(|process| process.has_no_thread_left() && !process.has_thread)?;
            let (max, has) = process.threads?;
            Some(format!("has no thread to listen: user {} may have {max} threads and has {has}", process.uid))
        },
        remedy: "raise the limit before it is started (`ulimit -u`)",
    },
    Reason {
        requests: &[Answer],
        what: "it may map no more memory",
        seen: |facts| {
            let process =
                facts.process.as_ref().filter(|process| process.has_no_memory_left() && !process.has_thread)?;
            Some(format!(
                "has no thread to listen: it may map {} KiB of memory more, too few for one",
                process.memory_left? >> 10
            ))
        },
        remedy: "raise the limit before it is started (`ulimit -v`)",
    },
    Reason {
        requests: &[Answer],
        what: "a filter of system calls is in force",
        seen: |facts| {
            let is_meant =
                |process: &Process| process.handles_sigurg && (process.is_asked_to_listen() || process.has_mild_filter);
            let process = facts.process.as_ref().filter(|process| process.has_filter && !is_meant(process))?;
            Some(format!(
                "does not listen{}, and is under a seccomp filter, where a program does so only if it is told to; what that forbids cannot be seen",
                process.surroundings()
            ))
        },
        remedy: "record it from its start (`dormouse record -- CMD`), or start it with DORMOUSE_LISTEN=thread where the filter permits threads and \
                 sockets, as a container's does",
    },
    Reason {
        requests: &[Answer],
        what: "it may get no new privileges, as programs that Landlock confines",
        seen: |facts| {
            let is_it = |process: &&Process| process.has_no_new_privileges && !process.handles_sigurg;
            let process = facts.process.as_ref().filter(is_it)?;
            Some(format!(
                "does not listen{}, and has set no_new_privs; whether rules of Landlock keep it from making a socket cannot be seen",
                process.surroundings()
            ))
        },
        remedy: "record it from its start (`dormouse record -- CMD`), or have it listen before it confines itself",
    },
    Reason {
        requests: &[Answer],
        what: "it is written in Go, whose runtime handles `SIGURG`",
        seen: |facts| {
            let is_go = facts.executable().is_some_and(|executable| executable.is_go);
            facts.of(
                |process| process.handles_sigurg && is_go,
                "is written in Go, whose runtime handles the signal by which a program is called",
            )
        },
        remedy: "start it with DORMOUSE_LISTEN=thread",
    },
    Reason {
        requests: &[Answer],
        what: NOT_CALLABLE_NOW,
        seen: |facts| {
            facts.of(
                |process| process.handles_sigurg && !process.has_callable_thread,
                "cannot be called: each of its threads waits for signals (pause, sigwait) or blocks SIGURG",
            )
        },
        remedy: "have it go on, or start it with DORMOUSE_LISTEN=thread",
    },
    Reason {
        requests: &[Answer],
        what: NOT_PASSED,
        seen: |facts| {
            let process = facts.process.as_ref().filter(|process| process.handles_sigurg)?;
            let landlock =
                if process.has_no_new_privileges { ", or rules of Landlock keep it from making a socket" } else { "" };
            Some(format!("has passed no tracepoint since it was called{landlock}"))
        },
        remedy: "have it pass one, wait longer (`--wait SECONDS`), or start it with DORMOUSE_LISTEN=thread: then it answers at once",
    },
    Reason {
        requests: &[Answer],
        what: "nothing can be seen that keeps it from listening",
        seen: |facts| {
            let process = facts.process.as_ref()?;
            Some(format!(
                "has Dormouse's library{}, and nothing to be seen keeps it from listening: it is still starting, has stopped, has set what SIGURG does, or was built so",
                process.surroundings()
            ))
        },
        remedy: "have it call listen(), or record it from its start: `dormouse record -- CMD`",
    },
];

impl Facts {
    /// Returns `seen` if there is a process and `holds` is true of it.
    fn of(&self, holds: impl Fn(&Process) -> bool, seen: &str) -> Option<String> {
        self.process.as_ref().filter(|process| holds(process)).map(|_| seen.into())
    }

    fn executable(&self) -> Option<&Executable> {
        let command = self.command.as_ref().map(|command| &command.executable);
        self.process.as_ref().map_or(command, |process| process.executable.as_ref())
    }

    fn has_no_tracer(&self) -> Option<String> {
        if let Some(process) = &self.process {
            let unread = match process.unread {
                0 => String::new(),
                count => format!(" as far as its files can be read ({count} cannot)"),
            };
            return process.tracers.is_empty().then(|| format!("has no Dormouse tracepoints{unread}"));
        }
        self.command
            .as_ref()
            .filter(|command| !command.executable.has_events)
            .map(|_| "has no Dormouse tracepoints, and nothing that it has started has joined".into())
    }

    fn is_kind(&self, holds: impl Fn(&Kind) -> bool) -> Option<String> {
        let executable = self.executable().filter(|executable| holds(&executable.kind))?;
        kind(executable)
    }

    /// Returns the first row that holds.
    fn reason(&self, request: Request) -> Option<(&'static Reason, String)> {
        let asked = REASONS.iter().filter(|reason| reason.requests.contains(&request));
        asked.filter_map(|reason| Some((reason, (reason.seen)(self)?))).next()
    }

    /// Returns one line about a process.
    fn told(&self, pid: u32) -> String {
        let Some((reason, seen)) = self.reason(Answer) else {
            return format!("process {pid} cannot be looked at; run dormouse as root");
        };
        let process = self.process.as_ref();
        let dir = process.and_then(|process| Path::new(process.listens_at.as_ref()?).parent());
        let dir = dir.map(|dir| shown(&dir.to_string_lossy())).unwrap_or_default();
        let remedy = reason.remedy.replace("PID", &pid.to_string()).replace("=DIR ", &format!("={dir} "));
        let name = process.map(|process| format!(" ({})", process.name)).unwrap_or_default();
        // Another user's socket in the program's name is reported too.
        let unfit = self.looked.sockets_unfit.iter().chain(&self.looked.directories_unfit);
        let others =
            unfit.filter(|unused| !seen.contains(*unused)).map(|unused| format!("; {unused}")).collect::<String>();
        format!("process {pid}{name} {seen}; {remedy}{others}")
    }
}

/// Returns a list with its heading, or `None` if the list is empty.
fn listed(what: &str, all: &[String]) -> Option<String> {
    (!all.is_empty()).then(|| format!("{what}: {}", all.join("; ")))
}

impl Process {
    fn is_asked_to_listen(&self) -> bool {
        matches!(self.listen.as_deref(), Some("thread" | "signal" | "1"))
    }

    /// Returns the namespaces and the chroot that it is in and the caller is not.
    fn surroundings(&self) -> String {
        let chroot = self.is_in_chroot.then_some("chroot");
        let places: Vec<&str> = chroot.into_iter().chain(self.namespaces.iter().copied()).collect();
        if places.is_empty() { String::new() } else { format!(" in its {}", places.join(", ")) }
    }
}

/// Returns what prevents a preloaded library from working in a program.
fn kind(executable: &Executable) -> Option<String> {
    match &executable.kind {
        Kind::Dynamic => None,
        Kind::Sanitized(name) => Some(format!("has the runtime of a sanitizer ({name})")),
        Kind::Musl => Some("has musl for its libc".into()),
        Kind::Static => Some("is static".into()),
        Kind::Foreign(name) => Some(format!("is of another architecture ({name})")),
    }
}

/// Returns why a process does not run.
fn why_still(process: &Process) -> Option<String> {
    match (process.state, &process.debugger) {
        ('t' | 'T', Some((pid, name))) => Some(format!("is held by process {pid} ({name})")),
        ('t' | 'T', None) => Some("is stopped".into()),
        _ => process.is_frozen().then(|| "is frozen with its control group".into()),
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
    /// made none, in one line.
    Callable(Error),
    /// The reason why it does not listen, in one line.
    Because(Error),
}

/// Returns why a process whose socket was not found does not listen.
pub(crate) fn why_unreachable(pid: u32, looked: Looked) -> Silence {
    let look = move || {
        let process = Process::look(pid);
        let session = process.as_ref().and_then(|process| Some((process.session.as_deref()?, process.uid)));
        let is_session_alive = session.and_then(|(path, uid)| is_session_alive(path, uid));
        let facts = Facts { process, looked, is_session_alive, ..Facts::default() };
        let is_callable =
            facts.reason(Answer).is_some_and(|(reason, _)| [NOT_CALLABLE_NOW, NOT_PASSED].contains(&reason.what));
        let why = facts.told(pid).into();
        if is_callable { Silence::Callable(why) } else { Silence::Because(why) }
    };
    let late = || {
        format!(
            "process {pid} cannot be looked at: its files do not answer within {} s; stop the file system that they are on",
            PATIENCE.as_secs()
        )
    };
    within_patience(look).unwrap_or_else(|| Silence::Because(late().into()))
}

/// Returns, in one line, why there is no process with this id that a tool could talk to.
pub(crate) fn why_none(pid: u32) -> Error {
    let none = format!("there is no process {pid}; `pgrep -a NAME` finds a program's id");
    if let Some(process) = process_of_thread(pid) {
        return format!("{pid} is a thread of process {process}; name the process").into();
    }
    match Process::look(pid) {
        Some(process) if process.state == 'Z' => Facts { process: Some(process), ..Facts::default() }.told(pid).into(),
        Some(_) => none.into(),
        None if dormouse_control::process::open(pid).is_ok_and(|pidfd| !dormouse_control::process::is_dead(&pidfd)) => {
            format!(
                "process {pid} is not shown to user {} (/proc is mounted with hidepid); run dormouse as root",
                rustix::process::geteuid().as_raw()
            )
            .into()
        }
        None => none.into(),
    }
}

/// Returns, in one line, why a process that has a socket does not answer there.
pub(crate) fn why_silent(pid: u32, patience: Duration) -> Error {
    let process = Process::look(pid);
    let why = process.as_ref().and_then(why_still);
    let remedy = format!("have it go on (`kill -CONT {pid}`, or in its debugger), and try again");
    match (why, process) {
        (Some(why), _) => format!("process {pid} does not answer: it {why}; {remedy}").into(),
        (None, Some(process)) => format!(
            "process {pid} has not answered within {} ms; it is neither stopped nor traced (state {}): try again when it has less to do",
            patience.as_millis(), process.state
        )
        .into(),
        (None, None) => why_none(pid),
    }
}

/// Whether the session at a path named by a process of user `uid` has an owner. `None` if the path is not in a
/// directory of that user's or the caller's sessions, in which case nothing is asked.
fn is_session_alive(path: &str, uid: u32) -> Option<bool> {
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

/// Returns a description of a command and its interpreter, if any.
fn named(program: &OsStr, command: Option<&Command>) -> String {
    let program = shown(&program.to_string_lossy());
    match command {
        Some(Command { script: Some(_), path, .. }) => {
            format!("`{program}` is run by `{}`, which", shown(&path.to_string_lossy()))
        }
        _ => format!("`{program}`"),
    }
}

/// Returns the first argument of a command that is a file with tracepoints; the command may have been meant to start
/// it.
fn argument_with_tracepoints(arguments: &[OsString]) -> Option<&OsStr> {
    let has_events = |argument: &&OsString| {
        let path = Path::new(argument);
        path.components().count() > 1 && Command::find(argument).is_some_and(|found| found.executable.has_events)
    };
    arguments.iter().find(has_events).map(OsString::as_os_str)
}

/// Returns why neither a command (a program and its arguments) nor a process that it has started has joined a session,
/// although `library`, if any, should have been loaded.
pub fn why_not_joined(command: &[OsString], library: Option<&Path>) -> String {
    let Some((program, arguments)) = command.split_first() else { return "there is no command".into() };
    let is_none = |library: &&Path| {
        let object = std::fs::File::open(library).ok().and_then(|file| Executable::of(&file));
        !object.is_some_and(|object| object.has_events)
    };
    let no_library = library.filter(is_none).map(PathBuf::from);
    let facts = Facts { command: Command::find(program), no_library, ..Facts::default() };
    let subject = named(program, facts.command.as_ref());
    let has_events = facts.executable().is_some_and(|executable| executable.has_events);
    if let Some(argument) = argument_with_tracepoints(arguments).filter(|_| !has_events) {
        return format!(
            "`{}`, which {subject} was given, has Dormouse tracepoints and has not joined: it was not started, or with an environment that \
             lacks {ENV_SESSION} (sudo, su -, env -i, cron and test runners clear it); {}",
            shown(&argument.to_string_lossy()),
            keep_environment()
        );
    }
    match facts.reason(if library.is_some() { Preload } else { Join }) {
        Some((reason, seen)) => format!("{subject} {seen}; {}", reason.remedy),
        None if facts.command.is_none() => {
            format!("{subject} is no program whose file can be read, and nothing that it has started has joined")
        }
        None if library.is_some() => format!(
            "the file of {subject} shows no reason, so the loader was kept from it while it ran; `LD_DEBUG=libs` has it say what it loads"
        ),
        None => format!(
            "{subject} has Dormouse tracepoints, and its file shows no reason, so it was kept from the session while it ran; \
             docs/limits.md has what joining needs"
        ),
    }
}

/// Returns why the library of `--libc` does not reach a command, if the command's file shows it.
pub fn why_not_preloaded(program: &OsStr) -> Option<String> {
    let facts = Facts { command: Command::find(program), ..Facts::default() };
    let (reason, seen) = facts.reason(Preload)?;
    let subject = named(program, facts.command.as_ref());
    Some(format!(
        "{subject} {seen}: `--libc` does not reach it, so what it calls of libc is not traced; {}",
        reason.remedy
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    fn command(kind: Kind, has_events: bool, privileges: Option<&str>) -> Facts {
        let executable = Executable { kind, has_events, is_go: false };
        let command =
            Command { path: "/bin/x".into(), script: None, executable, privileges: privileges.map(String::from) };
        Facts { command: Some(command), ..Facts::default() }
    }

    fn looked(looked: Looked) -> Facts {
        let mut facts = with(|process| process.has_thread = true);
        facts.process.as_mut().unwrap().listens_at = Some("/run/a/dormouse/7.1.sock".into());
        Facts { looked, ..facts }
    }

    #[test]
    fn each_row_is_the_reason_where_it_alone_holds_and_says_what_was_seen() {
        let paths = vec!["/run/a/dormouse".into()];
        let unfit = |directories: &[&str], sockets: &[&str]| Looked {
            paths: paths.clone(),
            directories_unfit: directories.iter().map(ToString::to_string).collect(),
            sockets_unfit: sockets.iter().map(ToString::to_string).collect(),
        };
        let recorded = |state| Facts {
            is_session_alive: state,
            ..with(|process| process.session = Some("/run/a/dormouse/session-1-0.sock".into()))
        };
        let cases: Vec<(Facts, Request, &str)> = vec![
            (with(|process| process.state = 'Z'), Answer, "has ended, and its parent"),
            (with(|process| process.is_kernel_thread = true), Answer, "is a thread of the kernel"),
            (with(|process| process.unseen = Some("no".into())), Answer, "may not look at it (no)"),
            (with(is_kind(Kind::Static)), Answer, "is static and has no Dormouse tracepoints"),
            (with(is_kind(Kind::Musl)), Answer, "has musl for its libc and has no Dormouse"),
            (with(is_kind(Kind::Dynamic)), Answer, "(shop) has no Dormouse tracepoints"),
            (command(Kind::Static, false, None), Join, "is static and has no Dormouse tracepoints"),
            (command(Kind::Dynamic, false, None), Join, "nothing that it has started has joined"),
            (with(|process| process.is_secure = true), Answer, "privileges that its caller had not"),
            (command(Kind::Dynamic, true, Some("set-user-ID, of user 0")), Join, "it is set-user-ID, of user 0"),
            (command(Kind::Static, false, Some("set-user-ID, of user 0")), Preload, "privileges that you have not"),
            (
                Facts { no_library: Some("/l.so".into()), ..command(Kind::Dynamic, false, None) },
                Preload,
                "was to load /l.so, which is no library",
            ),
            (command(Kind::Foreign("aarch64".into()), false, None), Preload, "another architecture (aarch64)"),
            (command(Kind::Sanitized("LeakSanitizer"), false, None), Preload, "runtime of a sanitizer (LeakSanitizer)"),
            (command(Kind::Musl, false, None), Preload, "has musl for its libc"),
            (command(Kind::Static, false, None), Preload, "is static"),
            (with(|process| process.listen = Some("0".into())), Answer, "was started with DORMOUSE_LISTEN=0"),
            (recorded(Some(true)), Answer, "session-1-0.sock, which records)"),
            (recorded(Some(false)), Answer, "session-1-0.sock, which is over)"),
            (recorded(None), Answer, "session-1-0.sock);"),
            (with(|process| process.tracers = vec!["/l/libdormouse_libc.so".into()]), Answer, "has only the library"),
            (with(|process| process.state = 'T'), Answer, "is stopped; have it go on (`kill -CONT 7`"),
            (
                with(|process| (process.state, process.debugger) = ('t', Some((9, "gdb".into())))),
                Answer,
                "is held by process 9 (gdb)",
            ),
            (
                looked(unfit(&[], &["it is yours"])),
                Answer,
                "has no socket that may be used: it is yours; start it anew",
            ),
            (looked(Looked::default()), Answer, "DORMOUSE_SOCKET_DIR=/run/a/dormouse has dormouse look there"),
            (with(|process| process.is_unmapped = true), Answer, "without an id in its user namespace"),
            (
                with(|process| {
                    process.places[0].1 = Some("it is read-only".into());
                    process.namespaces = vec!["mount namespace"];
                }),
                Answer,
                "socket in its mount namespace: /tmp/dormouse-1000 (it is read-only)",
            ),
            (looked(unfit(&["others may write"], &[])), Answer, "may be used: others may write; start it with XDG"),
            (looked(unfit(&[], &[])), Answer, "and that file is not to be found"),
            (with(|process| process.threads = Some((5, 5))), Answer, "user 1000 may have 5 threads and has 5"),
            (with(|process| process.memory_left = Some(4096)), Answer, "may map 4 KiB of memory more"),
            (with(|process| process.has_filter = true), Answer, "is under a seccomp filter"),
            (with(|process| process.has_no_new_privileges = true), Answer, "rules of Landlock"),
            (
                with(|process| {
                    process.handles_sigurg = true;
                    process.executable.as_mut().unwrap().is_go = true;
                }),
                Answer,
                "is written in Go, whose runtime handles the signal",
            ),
            (with(|process| process.handles_sigurg = true), Answer, "each of its threads waits for signals"),
            (
                with(|process| (process.handles_sigurg, process.has_callable_thread) = (true, true)),
                Answer,
                "has passed no tracepoint since it was called; have it pass one",
            ),
            (silent(), Answer, "it is still starting, has stopped, has set what SIGURG does, or was built so"),
        ];
        let mut told = BTreeSet::new();
        for (facts, request, words) in cases {
            let (reason, seen) = facts.reason(request).unwrap_or_else(|| panic!("no reason: {words}"));
            let line = if request == Answer { facts.told(7) } else { seen };
            assert!(line.contains(words), "{line:?} does not say {words:?}");
            assert!(!line.contains('\n'));
            told.insert(reason.what);
        }
        let all: BTreeSet<&str> = REASONS.iter().map(|reason| reason.what).collect();
        assert_eq!(told, all);
    }

    #[test]
    fn what_does_not_keep_it_from_listening_is_no_reason() {
        for facts in [
            with(|process| process.listen = Some("thread".into())),
            with(|process| process.threads = Some((5, 4))),
            with(|process| process.memory_left = Some(1 << 30)),
            with(|process| (process.listen, process.session) = (Some("1".into()), Some("/x".into()))),
            with(|process| process.places.push(("/run/x".into(), Some("it is read-only".into())))),
            // strace does not stop it.
            with(|process| process.debugger = Some((9, "strace".into()))),
        ] {
            assert!(facts.told(7).contains("nothing to be seen keeps it from listening"), "{}", facts.told(7));
        }
        assert!(command(Kind::Dynamic, true, None).reason(Join).is_none());
        assert!(command(Kind::Dynamic, false, None).reason(Preload).is_none());
    }

    #[test]
    fn what_a_program_says_is_printed_without_control_characters_and_not_followed() {
        let facts = with(|process| process.session = Some("/a\u{1b}[2J\n".into()));
        assert!(facts.told(7).contains("session /a\u{fffd}[2J\u{fffd})"), "{}", facts.told(7));
        assert_eq!(is_session_alive("/etc/session-1-0.sock", 1_000), None);
        assert_eq!(is_session_alive("/tmp/dormouse-1000/../x/session-1-0.sock", 1_000), None);
    }

    #[test]
    fn the_document_has_the_same_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
        let document = std::fs::read_to_string(path).unwrap();
        let rows: Vec<String> =
            REASONS.iter().map(|reason| format!("| {} | {} |\n", reason.what, reason.remedy)).collect();
        let table = format!("| what is seen | what to do |\n| --- | --- |\n{}", rows.concat());
        assert!(document.contains(&table), "docs/limits.md is to have:\n{table}");
    }
}
