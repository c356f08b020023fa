//! Sentences for people: why a program cannot be reached or has not joined a session, and what to do about it.
//!
//! `dormouse-tools` finds the reasons. `docs/limits.md` has a table of them.

use std::path::{Path, PathBuf};

use dormouse_abi::environment::{ENV_MEMORY, ENV_SESSION};
use dormouse_abi::text::shown;
use dormouse_tools::{
    DirectoryObstacle, NamedSession, NoTracepoints, NotJoined, PreloadObstacle, Privileges, ProgramError, Reason,
    Still, Unjoined, UnjoinedReason, Unreachable, WhyNotJoined, WhyUnreachable,
};

/// A reason in words.
struct Explanation {
    /// The finding, in the document's words, which a test compares.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the document's table has it"))]
    what: &'static str,
    /// Findings about a program: the rest of a sentence about it.
    seen: String,
    /// The remedy. `PID` and `DIR` stand for the process and its socket's directory.
    remedy: &'static str,
}

fn explanation(reason: &Reason) -> Explanation {
    let (what, seen, remedy) = match reason {
        Reason::Zombie => (
            "it is a zombie",
            "has ended, and its parent has not waited for it".into(),
            "name a program that is running: `pgrep -a NAME` finds its id",
        ),
        Reason::KernelThread => (
            "it is a kernel thread",
            "is a kernel thread".into(),
            "name a program: `pgrep -a NAME` finds its id",
        ),
        Reason::NotInspectable { user, error } => (
            "this user may not inspect it",
            format!("has no socket where dormouse looks, and user {user} may not inspect it ({error})"),
            "run dormouse as root, outside any container",
        ),
        Reason::NoTracepointsNorPreload(place, obstacle) => (
            "it has no Dormouse tracepoints, and `--libc` cannot trace it",
            format!("{} and {}", preload_obstacle(obstacle), no_tracepoints(*place)),
            "link it with Dormouse",
        ),
        Reason::NoTracepoints(place) => (
            "it has no Dormouse tracepoints",
            no_tracepoints(*place),
            "`dormouse record --libc -- CMD` traces the libc calls of an unmodified program",
        ),
        Reason::Privileged => (
            PRIVILEGED,
            "runs with privileges that its caller did not have (set-user-ID or file capabilities), so it makes no socket"
                .into(),
            AS_PRIVILEGED,
        ),
        Reason::PrivilegedFile(privileges) => (
            PRIVILEGED,
            format!("runs with privileges that you do not have ({}), so it joins no session", privileges_of(*privileges)),
            AS_PRIVILEGED,
        ),
        Reason::NoLibrary(library) => (
            "the preload library is missing, or built for another machine",
            format!("was to load {}, which is not a Dormouse library for this machine", path(library)),
            "reinstall the library, or set DORMOUSE_LIBC_LIBRARY to its path",
        ),
        Reason::NotPreloadable(obstacle) => {
            let (what, remedy) = match obstacle {
                PreloadObstacle::Foreign(_) => {
                    ("it is built for another architecture", "record a program that is built for this machine")
                }
                PreloadObstacle::Sanitizer(_) => (
                    "it has the runtime of a sanitizer (`-fsanitize=address`, `leak`, `thread`)",
                    "build it without `-fsanitize`",
                ),
                PreloadObstacle::Musl => ("it uses musl as its libc", "link it with glibc"),
                PreloadObstacle::Static => ("it is statically linked", "link it dynamically"),
            };
            (what, preload_obstacle(obstacle), remedy)
        }
        Reason::ListeningForbidden => (
            "its environment forbids listening",
            "was started with DORMOUSE_LISTEN=0".into(),
            "start it without DORMOUSE_LISTEN",
        ),
        Reason::Recorded { sessions } => {
            let text = |NamedSession { path, is_alive }: &NamedSession| {
                let state = match is_alive {
                    Some(true) => ", which is recording",
                    Some(false) => ", which has ended",
                    None => "",
                };
                format!("session {}{state}", shown(path))
            };
            let sessions = sessions.iter().map(text).collect::<Vec<_>>().join("; ");
            (
                "`dormouse record` has started it",
                format!("was started by `dormouse record`, whose programs do not listen ({sessions})"),
                "set DORMOUSE_LISTEN=thread for `dormouse record`, and the programs that it starts listen",
            )
        }
        Reason::OnlyLibcLibrary => (
            "it has only the library of `--libc`",
            "has only the library of `--libc`, which does not listen by itself".into(),
            "start it with DORMOUSE_LISTEN=thread",
        ),
        Reason::Still(still) => (
            "it is stopped, traced or frozen, and has no socket yet",
            why_still(still),
            "let it continue (`kill -CONT PID`, or in its debugger), and try again",
        ),
        Reason::SocketsUnfit(problems) => (
            "its socket has the wrong owner, mode or type",
            format!("has no usable socket: {}", problems.join("; ")),
            "restart it",
        ),
        Reason::ListensElsewhere(socket) => (
            "it listens elsewhere",
            format!("listens at {}, where dormouse does not look", path(socket)),
            "set DORMOUSE_SOCKET_DIR=DIR for dormouse",
        ),
        Reason::UserUnmapped => (
            "its user has no id in its user namespace",
            "runs as a user without an id in its user namespace, and cannot make a socket".into(),
            "give its user an id there, as `unshare --map-root-user` does",
        ),
        Reason::NoDirectory { surroundings, obstacles } => {
            let told = |(dir, why): &(PathBuf, _)| format!("{} ({})", path(dir), directory_obstacle(dir, why));
            let obstacles: Vec<String> = obstacles.iter().map(told).collect();
            (
                "no directory is suitable for its socket",
                format!("has no directory for its socket{}: {}", within(surroundings), obstacles.join(", ")),
                "start it with XDG_RUNTIME_DIR=DIRECTORY, a directory that only its user can write to",
            )
        }
        Reason::DirectoriesUnfit(problems) => (
            "a socket directory of its user has the wrong owner, mode or type",
            format!("has no usable socket: {}", problems.join("; ")),
            "start it with XDG_RUNTIME_DIR=DIRECTORY, a directory that only its user can write to",
        ),
        Reason::SocketGone(socket) => (
            "its socket's file is gone",
            format!("listens at {}, but that file is gone", path(socket)),
            "restart it",
        ),
        Reason::NoThreadLeft { user, max, count } => (
            "its user may have no more threads",
            format!("cannot start a thread that listens: user {user} may have {max} threads and has {count}"),
            "raise the limit (`ulimit -u`) before you start it",
        ),
        Reason::NoMemoryLeft(bytes) => (
            "it may map no more memory",
            format!("cannot start a thread that listens: it may map only {} KiB more memory", bytes >> 10),
            "raise the limit (`ulimit -v`) before you start it",
        ),
        Reason::Filtered { surroundings } => (
            "a filter of system calls is in force",
            format!(
                "does not listen{}: it is under a seccomp filter, where programs listen only if they are told to, and what \
                 the filter forbids cannot be seen",
                within(surroundings)
            ),
            "record it from the start (`dormouse record -- CMD`), or, if the filter permits threads and sockets, as a container's \
             does, start it with DORMOUSE_LISTEN=thread",
        ),
        Reason::NoNewPrivileges { surroundings } => (
            "it may get no new privileges, as programs that Landlock confines",
            format!(
                "does not listen{}, and has set no_new_privs; Landlock rules may keep it from making a socket, but they \
                 cannot be seen",
                within(surroundings)
            ),
            "record it from the start (`dormouse record -- CMD`), or have it listen before it confines itself",
        ),
        Reason::Go => (
            "it is written in Go, whose runtime handles `SIGURG`",
            "is written in Go, whose runtime handles SIGURG, the signal that tells a program to listen".into(),
            "start it with DORMOUSE_LISTEN=thread",
        ),
        Reason::NoCallableThread => (
            "its threads wait for signals, or block `SIGURG`",
            "cannot be signalled: each of its threads waits for signals (pause, sigwait) or blocks SIGURG".into(),
            "try again when a thread does something else, or start it with DORMOUSE_LISTEN=thread",
        ),
        Reason::NotPassed { has_no_new_privileges } => (
            "it has passed no tracepoint since the tool's signal",
            format!(
                "has passed no tracepoint since the tool's signal{}",
                if *has_no_new_privileges { ", or Landlock rules keep it from making a socket" } else { "" }
            ),
            "let it pass one, wait longer (`--wait TIME`), or start it with DORMOUSE_LISTEN=thread, and it answers at once",
        ),
        Reason::Unknown { surroundings } => (
            "no reason is visible from outside",
            format!(
                "has Dormouse's library{}, and nothing that can be seen keeps it from listening: it may still be starting, have \
                 stopped listening, have replaced the handler of SIGURG, or be built not to listen",
                within(surroundings)
            ),
            "have it call listen(), or record it from the start: `dormouse record -- CMD`",
        ),
    };
    Explanation { what, seen, remedy }
}

const PRIVILEGED: &str =
    "it has privileges that its caller does not have: set-user-ID, set-group-ID, file capabilities";
const AS_PRIVILEGED: &str = "start it as the user whose privileges it has";

fn path(path: &Path) -> String {
    shown(&path.to_string_lossy())
}

fn no_tracepoints(place: NoTracepoints) -> String {
    match place {
        NoTracepoints::InProcess(0) => "has no Dormouse tracepoints".into(),
        NoTracepoints::InProcess(unread) => {
            format!("has no Dormouse tracepoints in the files that can be read ({unread} cannot)")
        }
        NoTracepoints::InCommand => "has no Dormouse tracepoints, and nothing that it has started has joined".into(),
    }
}

fn preload_obstacle(obstacle: &PreloadObstacle) -> String {
    match obstacle {
        PreloadObstacle::Sanitizer(name) => format!("has the runtime of a sanitizer ({name})"),
        PreloadObstacle::Musl => "uses musl as its libc".into(),
        PreloadObstacle::Static => "is statically linked".into(),
        PreloadObstacle::Foreign(name) => format!("is built for another architecture ({name})"),
    }
}

/// Returns what prevents a socket in `dir`.
fn directory_obstacle(dir: &Path, obstacle: &DirectoryObstacle) -> String {
    let name = |place: &Path| if place == dir { "it".into() } else { path(place) };
    match obstacle {
        DirectoryObstacle::PathTooLong => "its path is too long for a socket".into(),
        DirectoryObstacle::Missing(place) => format!("there is no {}", path(place)),
        DirectoryObstacle::NotSearchable { user, path: place } => {
            format!("user {user} may not look into {}", path(place))
        }
        DirectoryObstacle::OtherOwner(user) => format!("it belongs to user {user}"),
        DirectoryObstacle::WritableByOthers => "others may write to it".into(),
        DirectoryObstacle::ReadOnly(place) => format!("{} is read-only", name(place)),
        DirectoryObstacle::NotWritable { user, path: place } => format!("user {user} may not write to {}", name(place)),
    }
}

fn privileges_of(privileges: Privileges) -> String {
    match privileges {
        Privileges::OfUser(uid) => format!("set-user-ID, of user {uid}"),
        Privileges::OfGroup(gid) => format!("set-group-ID, of group {gid}"),
        Privileges::Capabilities => "its file has capabilities".into(),
    }
}

/// Returns why a process does not run.
fn why_still(still: &Still) -> String {
    match still {
        Still::Held(pid, name) => format!("is held by process {pid} ({name})"),
        Still::Stopped => "is stopped".into(),
        Still::Frozen => "is frozen with its control group".into(),
    }
}

fn within(surroundings: &[String]) -> String {
    if surroundings.is_empty() { String::new() } else { format!(" in its {}", surroundings.join(", ")) }
}

/// Returns, in one line, why a program was not asked or has not answered, and what to do about it.
pub fn explain(error: &ProgramError) -> String {
    match error {
        ProgramError::Unreachable(unreachable) => explain_unreachable(unreachable),
        ProgramError::Failed(text) => text.clone(),
    }
}

fn explain_unreachable(Unreachable { pid, why }: &Unreachable) -> String {
    match why {
        WhyUnreachable::NoProcess => format!("there is no process {pid}; `pgrep -a NAME` finds a program's id"),
        WhyUnreachable::Thread(process) => format!("{pid} is a thread of process {process}; name the process"),
        WhyUnreachable::Hidden(user) => {
            format!("process {pid} is hidden from user {user} (/proc is mounted with hidepid); run dormouse as root")
        }
        WhyUnreachable::OtherUser(user) => {
            format!("process {pid} belongs to user {user}; run dormouse as that user or as root")
        }
        WhyUnreachable::NotSeen => format!("process {pid} cannot be inspected; run dormouse as root"),
        WhyUnreachable::FilesDoNotAnswer(patience) => format!(
            "process {pid} cannot be inspected: its files have not answered within {} s; repair or unmount the file system \
             that they are on",
            patience.as_secs()
        ),
        WhyUnreachable::DoesNotListen { name, reason, problems } => {
            let Explanation { seen, remedy, .. } = explanation(reason);
            let dir = match reason {
                Reason::ListensElsewhere(socket) => socket.parent().map(path).unwrap_or_default(),
                _ => String::new(),
            };
            let remedy = remedy.replace("PID", &pid.to_string()).replace("=DIR ", &format!("={dir} "));
            let name = name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let problems: String = problems.iter().map(|problem| format!("; {problem}")).collect();
            format!("process {pid}{name} {seen}; {remedy}{problems}")
        }
        WhyUnreachable::DoesNotRun(still) => format!(
            "process {pid} does not answer: it {}; let it continue (`kill -CONT {pid}`, or in its debugger), and try again",
            why_still(still)
        ),
        WhyUnreachable::Slow { patience, state } => format!(
            "process {pid} has not answered within {} ms; it is neither stopped nor traced (state {state}): try again when it \
             is less busy",
            patience.as_millis()
        ),
    }
}

/// Returns, in one line, why a program that a recorded command has started has not joined its session, and what to do
/// about it.
pub fn explain_unjoined(Unjoined { pid, name, reason }: &Unjoined) -> String {
    let why = match reason {
        UnjoinedReason::Privileged => {
            format!(
                "it runs with privileges that its caller did not have, so it ignores its environment; {AS_PRIVILEGED}"
            )
        }
        UnjoinedReason::EnvironmentCleared => {
            format!("its environment was cleared, and lacks {ENV_SESSION}; {}", keep_environment())
        }
        UnjoinedReason::OtherUser { runs_as, session_of } => format!(
            "it runs as user {runs_as}, but the session belongs to user {session_of}; run dormouse as user {runs_as}, from the \
             program that changes the user"
        ),
        UnjoinedReason::OtherMountNamespace => {
            "it has closed the descriptor of the session's memory, and the session's socket \
             does not exist in its mount namespace or chroot; run dormouse inside it"
                .into()
        }
    };
    format!("process {pid} ({}) has Dormouse tracepoints and has not joined: {why}", shown(name))
}

/// Returns the remedy that lets a program's children keep what they need to join.
fn keep_environment() -> String {
    format!(
        "keep it and {ENV_MEMORY} when the program is started, as `sudo --preserve-env={ENV_SESSION},{ENV_MEMORY}` does, or run \
         dormouse after the environment has been cleared (`env -i dormouse record -- CMD`)"
    )
}

/// Returns, in one line, why neither a command nor a process that it has started has joined a session, and what to do
/// about it.
pub fn explain_not_joined(not_joined: &NotJoined) -> String {
    let NotJoined { program, interpreter, why } = not_joined;
    let program = shown(&program.to_string_lossy());
    let file = interpreter.as_deref().map_or_else(|| program.clone(), path);
    match why {
        WhyNotJoined::NoCommand => "there is no command".into(),
        WhyNotJoined::Argument(argument) => format!(
            "`{}`, an argument of `{program}`, has Dormouse tracepoints and has not joined: it was not started, or its environment \
             lacks {ENV_SESSION} (sudo, su -, env -i, cron and test runners clear it); {}",
            shown(&argument.to_string_lossy()),
            keep_environment()
        ),
        WhyNotJoined::Because(reason) => {
            let Explanation { seen, remedy, .. } = explanation(reason);
            format!("{} {seen}; {remedy}", subject(not_joined))
        }
        WhyNotJoined::NotReadable => {
            format!("the file of `{program}` cannot be read, and nothing that it has started has joined")
        }
        WhyNotJoined::LibraryNotLoaded => format!(
            "the file of `{file}` shows no reason: something kept the loader from loading the library at run time; \
             `LD_DEBUG=libs` shows what the loader does"
        ),
        WhyNotJoined::NotSeen => format!(
            "{} has Dormouse tracepoints, and its file shows no reason: something kept it from the session at run time; \
             docs/limits.md says what joining needs",
            subject(not_joined)
        ),
    }
}

/// Returns, in one line, why the library of `--libc` is not loaded into a command, and what to do about it. `None` if
/// there is no reason in the command's file.
pub fn explain_not_preloaded(not_joined: &NotJoined) -> Option<String> {
    let WhyNotJoined::Because(reason) = &not_joined.why else { return None };
    let Explanation { seen, remedy, .. } = explanation(reason);
    let subject = subject(not_joined);
    Some(format!("{subject} {seen}: `--libc` does not reach it, so its libc calls are not traced; {remedy}"))
}

/// Returns a description of a command and its interpreter, if any.
fn subject(NotJoined { program, interpreter, .. }: &NotJoined) -> String {
    let program = shown(&program.to_string_lossy());
    match interpreter {
        Some(interpreter) => format!("`{program}` is run by `{}`, which", path(interpreter)),
        None => format!("`{program}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns each reason in the order of the checks, with words that its line must contain.
    fn reasons() -> Vec<(Reason, &'static str)> {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let dir = || PathBuf::from("/tmp/dormouse-1000");
        let obstacles = vec![
            (dir(), DirectoryObstacle::ReadOnly(dir())),
            ("/run/x/y".into(), DirectoryObstacle::ReadOnly("/run/x".into())),
        ];
        let recorded = |is_alive| {
            let path = "/run/a/dormouse/session-1-0.sock".into();
            Reason::Recorded { sessions: vec![NamedSession { path, is_alive }] }
        };
        let socket = || "/run/a/dormouse/7.1.sock".into();
        let mount = || texts(&["mount namespace"]);
        vec![
            (Reason::Zombie, "has ended, and its parent"),
            (Reason::KernelThread, "is a kernel thread"),
            (
                Reason::NotInspectable { user: 5, error: "no".into() },
                "user 5 may not inspect it (no); run dormouse as root",
            ),
            (
                Reason::NoTracepointsNorPreload(NoTracepoints::InProcess(0), PreloadObstacle::Static),
                "is statically linked and has no Dormouse tracepoints; link it",
            ),
            (
                Reason::NoTracepoints(NoTracepoints::InProcess(0)),
                "(shop) has no Dormouse tracepoints; `dormouse record",
            ),
            (
                Reason::NoTracepoints(NoTracepoints::InProcess(3)),
                "tracepoints in the files that can be read (3 cannot)",
            ),
            (Reason::NoTracepoints(NoTracepoints::InCommand), "nothing that it has started has joined"),
            (Reason::Privileged, "privileges that its caller did not have"),
            (Reason::PrivilegedFile(Privileges::OfUser(0)), "(set-user-ID, of user 0)"),
            (Reason::PrivilegedFile(Privileges::OfGroup(9)), "(set-group-ID, of group 9)"),
            (Reason::PrivilegedFile(Privileges::Capabilities), "(its file has capabilities)"),
            (Reason::NoLibrary("/l.so".into()), "was to load /l.so, which is not a Dormouse library"),
            (Reason::NotPreloadable(PreloadObstacle::Foreign("aarch64".into())), "another architecture (aarch64)"),
            (
                Reason::NotPreloadable(PreloadObstacle::Sanitizer("LeakSanitizer".into())),
                "runtime of a sanitizer (LeakSanitizer)",
            ),
            (Reason::NotPreloadable(PreloadObstacle::Musl), "uses musl as its libc"),
            (Reason::NotPreloadable(PreloadObstacle::Static), "is statically linked; link it dynamically"),
            (Reason::ListeningForbidden, "was started with DORMOUSE_LISTEN=0"),
            (recorded(Some(true)), "session-1-0.sock, which is recording); set"),
            (recorded(Some(false)), "session-1-0.sock, which has ended); set"),
            (recorded(None), "session-1-0.sock); set DORMOUSE_LISTEN=thread"),
            (Reason::OnlyLibcLibrary, "has only the library"),
            (Reason::Still(Still::Stopped), "is stopped; let it continue (`kill -CONT 7`"),
            (Reason::Still(Still::Held(9, "gdb".into())), "is held by process 9 (gdb)"),
            (Reason::Still(Still::Frozen), "is frozen with its control group"),
            (
                Reason::SocketsUnfit(texts(&["it is yours", "so is it"])),
                "has no usable socket: it is yours; so is it; restart",
            ),
            (Reason::ListensElsewhere(socket()), "; set DORMOUSE_SOCKET_DIR=/run/a/dormouse for dormouse"),
            (Reason::UserUnmapped, "without an id in its user namespace"),
            (
                Reason::NoDirectory { surroundings: mount(), obstacles },
                "in its mount namespace: /tmp/dormouse-1000 (it is read-only), /run/x/y (/run/x is read-only); start it with XDG",
            ),
            (
                Reason::DirectoriesUnfit(texts(&["others may write"])),
                "usable socket: others may write; start it with XDG",
            ),
            (Reason::SocketGone(socket()), "7.1.sock, but that file is gone"),
            (Reason::NoThreadLeft { user: 1000, max: 5, count: 6 }, "user 1000 may have 5 threads and has 6"),
            (Reason::NoMemoryLeft(4096), "may map only 4 KiB more memory"),
            (Reason::Filtered { surroundings: mount() }, "in its mount namespace: it is under a seccomp filter"),
            (Reason::NoNewPrivileges { surroundings: Vec::new() }, "Landlock rules"),
            (Reason::Go, "is written in Go, whose runtime handles SIGURG"),
            (Reason::NoCallableThread, "each of its threads waits for signals"),
            (Reason::NotPassed { has_no_new_privileges: false }, "since the tool's signal; let it pass one"),
            (Reason::NotPassed { has_no_new_privileges: true }, "since the tool's signal, or Landlock rules"),
            (Reason::Unknown { surroundings: Vec::new() }, "it may still be starting, have stopped listening"),
        ]
    }

    fn does_not_listen(reason: Reason, problems: &[&str]) -> String {
        let problems = problems.iter().map(ToString::to_string).collect();
        let why = WhyUnreachable::DoesNotListen { name: Some("shop".into()), reason, problems };
        explain(&ProgramError::Unreachable(Box::new(Unreachable { pid: 7, why })))
    }

    #[test]
    fn each_reason_is_a_line_with_what_was_seen() {
        for (reason, words) in reasons() {
            let line = does_not_listen(reason, &[]);
            assert!(line.starts_with("process 7 (shop) ") && line.contains(words), "{line:?} does not say {words:?}");
            assert!(!line.contains('\n'));
        }
        let line = does_not_listen(Reason::KernelThread, &["its socket is not used", "its directory is not"]);
        assert!(line.ends_with("finds its id; its socket is not used; its directory is not"), "{line}");
    }

    #[test]
    fn what_a_program_says_is_printed_without_control_characters() {
        let reason = Reason::Recorded { sessions: vec![NamedSession { path: "/a\u{1b}[2J\n".into(), is_alive: None }] };
        let line = does_not_listen(reason, &[]);
        assert!(line.contains("session /a\u{fffd}[2J\u{fffd})"), "{line}");
        let unjoined = Unjoined { pid: 7, name: "a\n".into(), reason: UnjoinedReason::EnvironmentCleared };
        assert!(explain_unjoined(&unjoined).starts_with("process 7 (a\u{fffd}) has Dormouse tracepoints"));
    }

    #[test]
    fn why_a_program_has_not_joined_is_a_line() {
        let cases = [
            (UnjoinedReason::Privileged, "ignores its environment; start it as the user"),
            (
                UnjoinedReason::EnvironmentCleared,
                "its environment was cleared, and lacks DORMOUSE_SESSION; keep it and",
            ),
            (
                UnjoinedReason::OtherUser { runs_as: 7, session_of: 0 },
                "the session belongs to user 0; run dormouse as user 7",
            ),
            (UnjoinedReason::OtherMountNamespace, "mount namespace or chroot; run dormouse inside it"),
        ];
        for (reason, words) in cases {
            let line = explain_unjoined(&Unjoined { pid: 7, name: "shop".into(), reason });
            let begin = "process 7 (shop) has Dormouse tracepoints and has not joined: it";
            assert!(line.starts_with(begin) && line.contains(words) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_script_is_told_by_its_interpreter() {
        let reason = Reason::NotPreloadable(PreloadObstacle::Static);
        let script = |why| NotJoined { program: "./x".into(), interpreter: Some("/bin/y".into()), why };
        let because = script(WhyNotJoined::Because(reason));
        let begin = "`./x` is run by `/bin/y`, which is statically linked";
        assert!(explain_not_joined(&because).starts_with(&format!("{begin}; ")));
        assert!(explain_not_preloaded(&because).unwrap().starts_with(&format!("{begin}: `--libc` does not")));
        let program = NotJoined { interpreter: None, ..script(WhyNotJoined::Argument("./z".into())) };
        assert!(explain_not_joined(&program).starts_with("`./z`, an argument of `./x`, has Dormouse tracepoints and"));
        assert_eq!(explain_not_preloaded(&program), None);
    }

    #[test]
    fn the_document_has_the_same_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
        let document = std::fs::read_to_string(path).unwrap();
        let mut rows: Vec<String> = reasons()
            .iter()
            .map(|(reason, _)| explanation(reason))
            .map(|Explanation { what, remedy, .. }| format!("| {what} | {remedy} |\n"))
            .collect();
        rows.dedup();
        let table = format!("| what is seen | what to do |\n| --- | --- |\n{}\n", rows.concat());
        assert!(document.contains(&table), "docs/limits.md is to have:\n{table}");
    }
}
