//! Programs in sandboxes: each is recorded with all of its events, or refused with the reason. None is killed, hangs,
//! or is made to print.
//!
//! ```text
//!   sandbox   entered by the program itself, before it is executed, or by a tool
//!   linked    dormouse record SANDBOX e2e-box               a program with tracepoints
//!   libc      dormouse record --libc SANDBOX e2e-box-enter  a program without
//!   armed     SANDBOX e2e-box, then dormouse arm            a program that is already running
//! ```
//! A thread prevents a program from entering some sandboxes. An armed program that enters these itself does what the
//! documents say: it calls `stop_listening` before, and `listen` afterwards; or it listens by a signal and has no
//! thread. The effect of a sandbox on an untraced program is tried first: if this machine does not permit it, the test
//! is skipped.
#![cfg(target_os = "linux")]

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use dormouse_e2e::program::Program;
use dormouse_e2e::run::{Record, Recording, dormouse, libc_library, watched};
use dormouse_e2e::trace::Trace;
use dormouse_testing::{Lack, copy_program, for_everybody, has, skip, skip_part};
use tempfile::TempDir;

/// The program with tracepoints.
const BOX: &str = env!("CARGO_BIN_EXE_e2e-box");
/// The program without tracepoints, which also enters sandboxes for other programs.
const ENTER: &str = env!("CARGO_BIN_EXE_e2e-box-enter");

/// Watchdog: anything that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Some hundreds of kilobytes: several pages.
const EVENTS: u64 = 20_000;
/// Output of the programs for one byte of input.
const STDOUT: &str = "ready\ndone\nready\n";
/// Exit code of a program that cannot enter its sandbox.
const CANNOT_ENTER: i32 = 77;

/// Stands for the directory of the programs, in the words of a tool.
const PROGRAMS: &str = "PROGRAMS";

/// Programs and the library at paths where every user may execute them. All are in one directory, which each sandbox
/// shows.
struct Programs {
    program: PathBuf,
    enter: PathBuf,
    library: PathBuf,
    /// Directory of the copies.
    _place: TempDir,
}

impl Programs {
    fn new() -> Programs {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
        let [program, enter, library] =
            [Path::new(BOX), Path::new(ENTER), libc_library()].map(|built| for_everybody(built, place.path()));
        Programs { program, enter, library, _place: place }
    }

    fn dir(&self) -> &Path {
        self.enter.parent().expect("a program is in a directory")
    }
}

/// How a sandbox is entered.
enum Enter {
    /// The program itself enters it.
    Main(&'static str),
    /// A program enters it and then executes the traced one.
    Exec(&'static str),
    /// A tool enters it.
    Tool(&'static [&'static str]),
}

/// A sandbox, and words one of which a refusal contains: they name the obstacle.
struct Sandbox(Enter, &'static [&'static str]);

impl Sandbox {
    /// Returns a command that enters the sandbox and does its work there.
    fn command(&self, programs: &Programs, program: &Path, work: &[&str]) -> Vec<OsString> {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let of = |program: &Path, words: &[&str]| {
            [program.as_os_str()]
                .into_iter()
                .chain(words.iter().map(AsRef::as_ref))
                .map(OsString::from)
                .collect::<Vec<_>>()
        };
        let in_none = of(program, &[&["none"], work].concat());
        match self.0 {
            Enter::Main(name) => of(program, &[&[name], work].concat()),
            Enter::Exec(name) => [of(&programs.enter, &[name, "exec"]), in_none].concat(),
            Enter::Tool(tool) => {
                let tool =
                    words(tool).into_iter().map(|word| if word == PROGRAMS { programs.dir().into() } else { word });
                tool.chain(in_none).collect()
            }
        }
    }

    fn linked_command(&self, programs: &Programs) -> Vec<OsString> {
        self.command(programs, &programs.program, &[&EVENTS.to_string()])
    }

    /// Returns the command of a program that is outside of sessions, and that announces to the library in this way what
    /// it is about to do.
    fn armed_command(&self, programs: &Programs, way: Way) -> Vec<OsString> {
        let events = EVENTS.to_string();
        let word = match (way, self) {
            (Way::Calls, Sandbox(Enter::Main("strict"), _)) => "stop",
            // This sandbox does not permit anything that a thread needs, however it is started.
            (Way::Signal, Sandbox(Enter::Main("strict"), _)) => "stop",
            (Way::Calls, Sandbox(Enter::Main("user-namespace" | "namespaces" | "keep-capabilities"), _)) => {
                "stop-listen"
            }
            _ => return self.command(programs, &programs.program, &[&events]),
        };
        self.command(programs, &programs.program, &[&events, word])
    }

    fn libc_command(&self, programs: &Programs) -> Vec<OsString> {
        self.command(programs, &programs.enter, &["calls", &EVENTS.to_string()])
    }

    /// Whether an untraced program can enter the sandbox and do its work; if not, the test is skipped.
    fn is_permitted(&self, programs: &Programs) -> bool {
        if let Enter::Tool(tool) = self.0
            && !has(tool[0])
        {
            return false;
        }
        let mut program = Program::start(&self.libc_command(programs), PATIENCE);
        program.wait_for_ready();
        program.step();
        let ended = program.end();
        let is_refused = match self.0 {
            Enter::Tool(_) => !ended.status.success(),
            _ => ended.status.code() == Some(CANNOT_ENTER),
        };
        if is_refused {
            let reason = ended.stderr.trim().to_owned();
            skip(Lack::machine(reason, "run the tests as root, on a system that permits it"));
            return false;
        }
        assert!(ended.status.success() && ended.stdout == STDOUT, "without a tracer: {ended:?}");
        true
    }

    /// Asserts that all events were recorded, or that a line beginning with `dormouse: ` gives the reason.
    fn check_count(&self, counted: u64, lost: u64, said: &str) {
        let Sandbox(_, words) = self;
        // The machine did not run the session's owner for longer than a program waits.
        if counted + lost < EVENTS && said.contains("their 50 ms were over") {
            return skip_part(
                "what is recorded",
                Lack::machine("the session was not run for 50 ms", "run fewer programs"),
            );
        }
        // A list of guesses does not count as a reason.
        let names_it = |line: &str| {
            line.starts_with("dormouse: ")
                && !line.contains("is static")
                && words.iter().any(|word| line.contains(word))
        };
        // Each event is in the trace once, or among those counted as lost; refused events are neither.
        assert!(
            counted + lost == EVENTS || counted + lost < EVENTS && said.lines().any(names_it),
            "{EVENTS} events: {counted} recorded, {lost} counted as lost, and no line names one of {words:?}: {said:?}"
        );
    }

    fn check_recording(&self, recording: &Recording, counted: u64) {
        check_end(recording.status, &recording.stdout, &recording.stderr);
        self.check_count(counted, recording.summary().lost, &recording.stderr);
    }

    fn linked(&self) {
        let programs = Programs::new();
        if self.is_permitted(&programs) {
            let record = Record::new().patience(PATIENCE).input(b"\n").option("-e").option("e2e:boxed");
            let recording = record.run(&self.linked_command(&programs));
            self.check_recording(&recording, boxed(&recording.trace()));
        }
    }

    fn libc(&self) {
        let programs = Programs::new();
        if self.is_permitted(&programs) {
            let record =
                Record::new().patience(PATIENCE).input(b"\n").option("--libc").option("-e").option("libc:write");
            let recording = record.env("DORMOUSE_LIBC_LIBRARY", &programs.library).run(&self.libc_command(&programs));
            let values = recording.trace().values("libc:write");
            self.check_recording(
                &recording,
                values.iter().filter(|line| line.contains(" count=u64 0 ")).count() as u64,
            );
        }
    }

    fn armed_by(&self, way: Way) {
        let programs = Programs::new();
        if !self.is_permitted(&programs) {
            return;
        }
        // With a filter that kills, the program is not asked for a thread.
        let is_by_itself = way == Way::Signal || matches!(self.0, Enter::Exec("loader"));
        let variables: &[_] = if is_by_itself { &[] } else { &[("DORMOUSE_LISTEN", "thread")] };
        let mut program = Program::start_with(&self.armed_command(&programs, way), variables, PATIENCE);
        program.wait_for_ready();
        let place = tempfile::tempdir().expect("a directory");
        let (pid, dir, run) = (program.pid().to_string(), place.path().join("trace"), program.place().join("run"));
        let arm = ["arm", &pid, "e2e:boxed", "-o", dir.to_str().expect("a path of text"), "--wait", "3s"];
        let armed = match way {
            Way::Calls => program.dormouse(&arm, &run),
            Way::Signal => program.dormouse_amid_steps(&arm, &run, b'p'),
        };
        program.step();
        let said = if armed.status.success() {
            let disarmed = program.dormouse(&["disarm", &pid, "e2e:boxed"], &run);
            if !disarmed.status.success() {
                let ended = program.end();
                check_end(ended.status, &ended.stdout, &ended.stderr);
                panic!("armed and alive, and cannot be disarmed: {disarmed:?}");
            }
            disarmed.stdout
        } else {
            let text = String::from_utf8_lossy(&armed.stderr);
            assert_eq!(text.lines().filter(|line| !line.contains(": waiting for process ")).count(), 1, "{armed:?}");
            armed.stderr
        };
        let ended = program.end();
        check_status(ended.status, &ended.stdout, &ended.stderr);
        // When called by a signal, it has done more steps.
        assert!(way == Way::Signal || ended.stdout == STDOUT, "{ended:?}");
        let said = String::from_utf8_lossy(&said);
        if armed.status.success() {
            let trace = Trace::read(&dir);
            self.check_count(boxed(&trace), trace.stats().events_lost, &said);
        } else {
            self.check_count(0, 0, &said);
        }
    }
}

/// How a program that is not recorded avoids interfering with its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One of its threads listens. It calls `stop_listening` before it enters a sandbox, and `listen` afterwards if
    /// that is permitted.
    Calls,
    /// It listens by a signal, as programs do by default.
    Signal,
}

/// Asserts that a program was left alone: no signal, its own exit code, its own output.
fn check_end(status: ExitStatus, stdout: &str, stderr: &str) {
    check_status(status, stdout, stderr);
    assert_eq!(stdout, STDOUT, "stderr: {stderr:?}");
}

fn check_status(status: ExitStatus, stdout: &str, stderr: &str) {
    // Exit codes as a shell and `dormouse record` report them.
    let signal = status.signal().or(status.code().filter(|code| *code > 128).map(|code| code - 128));
    assert_eq!(signal, None, "killed by this signal; stdout: {stdout:?}; stderr: {stderr:?}");
    assert_eq!(status.code(), Some(0), "does not end as without a tracer; stdout: {stdout:?}; stderr: {stderr:?}");
    let printed = stderr.lines().find(|line| !line.starts_with("dormouse: "));
    assert_eq!(printed, None, "the program was made to print");
}

/// Returns the number of events of the program with tracepoints, and asserts that none occurs twice.
fn boxed(trace: &Trace) -> u64 {
    let values = trace.values("e2e:boxed");
    let mut numbers: Vec<u64> = values
        .iter()
        .map(|line| line.strip_prefix("number=u64 ").expect("a number").parse().expect("a number"))
        .collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "an event comes twice");
    numbers.len() as u64
}

macro_rules! sandboxes {
    ($($(#[$doc:meta])* $name:ident: $enter:expr, $words:expr;)*) => {$(
        $(#[$doc])*
        mod $name {
            use super::*;

            pub(super) const SANDBOX: Sandbox = Sandbox($enter, &$words);

            #[test]
            fn linked() {
                SANDBOX.linked();
            }

            #[test]
            fn libc() {
                SANDBOX.libc();
            }

            #[test]
            fn armed() {
                SANDBOX.armed_by(Way::Calls);
            }

            #[test]
            fn called() {
                SANDBOX.armed_by(Way::Signal);
            }
        }
    )*};
}

sandboxes! {
    seccomp: Enter::Main("strict"), ["seccomp"];
    seccomp_before_exec: Enter::Exec("loader"), ["seccomp"];
    landlock: Enter::Main("landlock"), ["Landlock"];
    landlock_before_exec: Enter::Exec("landlock-look"), ["Landlock"];
    user_namespace: Enter::Main("user-namespace"), ["user namespace"];
    user_namespace_before_exec: Enter::Exec("user-namespace"), ["user namespace"];
    user_namespace_by_unshare: Enter::Tool(&["unshare", "--user", "--map-root-user"]), ["user namespace"];
    pid_namespace: Enter::Main("pid-namespace"), ["PID namespace"];
    pid_namespace_before_exec: Enter::Exec("pid-namespace"), ["PID namespace"];
    mount_namespace: Enter::Main("mount-namespace"), ["mount namespace"];
    mount_namespace_before_exec: Enter::Exec("mount-namespace"), ["mount namespace"];
    network_namespace: Enter::Main("network-namespace"), ["network namespace"];
    network_namespace_before_exec: Enter::Exec("network-namespace"), ["network namespace"];
    all_namespaces: Enter::Main("namespaces"), ["namespace"];
    all_namespaces_before_exec: Enter::Exec("namespaces"), ["namespace"];
    all_namespaces_by_unshare:
        Enter::Tool(&[
            "unshare", "--user", "--map-root-user", "--pid", "--mount", "--net", "--fork", "--mount-proc",
        ]),
        ["namespace"];
    bubblewrap:
        Enter::Tool(&[
            "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--ro-bind",
            PROGRAMS, PROGRAMS, "--unshare-all", "--die-with-parent",
        ]),
        ["namespace"];
    chroot: Enter::Main("chroot-empty"), ["chroot"];
    chroot_before_exec: Enter::Exec("chroot"), ["chroot"];
    other_user: Enter::Main("nobody"), ["user 65534"];
    other_user_before_exec: Enter::Exec("nobody"), ["user 65534"];
    other_user_by_setpriv: Enter::Tool(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]), ["user 65534"];
    /// A worker like nginx's.
    // Its listener may have begun before the change of the user, or after it.
    worker_of_other_user: Enter::Main("worker"), ["user 65534", "where dormouse does not look"];
    /// With its capabilities it makes its socket in root's directory.
    kept_capabilities: Enter::Main("keep-capabilities"), ["user 65534", "where dormouse does not look"];
    no_new_privileges: Enter::Main("no-new-privileges"), [];
    no_new_privileges_before_exec: Enter::Exec("no-new-privileges"), [];
    read_only_root: Enter::Main("read-only"), ["ead-only"];
    read_only_root_before_exec: Enter::Exec("read-only"), ["ead-only"];
    no_descriptor_left: Enter::Main("descriptors"), ["descriptor"];
    one_descriptor_left_before_exec: Enter::Exec("descriptors-but-one"), ["descriptor"];
    no_thread: Enter::Main("threads"), ["thread", "user 65534"];
    no_thread_before_exec: Enter::Exec("threads"), ["thread", "user 65534"];
    no_memory: Enter::Main("memory"), ["memory"];
    no_memory_before_exec: Enter::Exec("memory-of-program"), ["memory"];
    descriptors_closed: Enter::Main("closed"), ["descriptor"];
    descriptors_closed_before_exec: Enter::Exec("closed"), ["descriptor"];
}

/// A thread before a program's first function would prevent the program from changing its user or its user namespace: a
/// user who requests one is told so.
#[test]
fn tools_that_are_made_to_listen_behave_the_same() {
    let programs = Programs::new();
    for (Sandbox(enter, words), name) in
        [(other_user_by_setpriv::SANDBOX, "setpriv"), (user_namespace_by_unshare::SANDBOX, "unshare")]
    {
        let sandbox = Sandbox(enter, words);
        if !sandbox.is_permitted(&programs) {
            continue;
        }
        let recorded = |wish: &str| {
            let record = Record::new().patience(PATIENCE).input(b"\n").option("--libc").env("DORMOUSE_LISTEN", wish);
            record.env("DORMOUSE_LIBC_LIBRARY", &programs.library).run(&sandbox.libc_command(&programs))
        };
        // Nothing changes if the library has to work without a thread.
        for wish in ["signal", "0"] {
            let recording = recorded(wish);
            println!("{name}: {}", recording.stderr);
            check_end(recording.status, &recording.stdout, &recording.stderr);
            assert_eq!(recording.stderr.contains("DORMOUSE_LISTEN"), wish == "signal", "{}", recording.stderr);
        }
        let said = recorded("thread").stderr;
        assert!(["DORMOUSE_LISTEN=thread", "unshare", "user"].iter().all(|word| said.contains(word)), "{said}");
    }
}

/// A program that the system runs with more privileges than its caller has (`AT_SECURE`) must ignore the caller's
/// environment.
#[test]
fn a_set_user_id_program_ignores_its_environment() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    let nobodys = place.path().join("nobodys");
    std::fs::create_dir(&nobodys).expect("a directory");
    if std::os::unix::fs::chown(&nobodys, Some(65534), Some(65534)).is_err() {
        return skip(Lack::machine("this user cannot become another", "run the tests as root"));
    }
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let cannot = |what: &Path| {
        let run = watched(Command::new(as_nobody[0]).args(&as_nobody[1..]).arg(what).arg("--version"), PATIENCE);
        (!run.status.success()).then(|| String::from_utf8_lossy(&run.stderr).trim().to_owned())
    };
    let (dormouse, library) = (for_everybody(dormouse(), place.path()), for_everybody(libc_library(), place.path()));
    if let Some(reason) = cannot(&dormouse) {
        return skip(Lack::machine(reason, "run the tests as root, where other users may run programs"));
    }
    for (index, (program, work, options)) in
        [(BOX, &["none"][..], &[][..]), (ENTER, &["none", "calls"], &["--libc"])].into_iter().enumerate()
    {
        let copy = place.path().join(format!("copy-{index}"));
        copy_program(Path::new(program), &copy);
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).expect("it is ours");
        let mut command: Vec<OsString> = vec![copy.into()];
        command.extend(work.iter().map(OsString::from));
        command.push("7".into());
        let alone: Vec<OsString> = as_nobody.iter().map(OsString::from).chain(command.iter().cloned()).collect();
        let mut alone = Program::start_beside(&alone, PATIENCE, &nobodys);
        alone.wait_for_ready();
        let sockets = std::fs::read_dir(nobodys.join("dormouse")).into_iter().flatten().flatten();
        let sockets: Vec<_> = sockets.map(|entry| entry.path()).collect();
        assert!(sockets.is_empty(), "a program with root's rights makes sockets where its user says: {sockets:?}");
        drop(alone);
        let record = Record::new().patience(PATIENCE).input(b"\n").within(&as_nobody).env("XDG_RUNTIME_DIR", &nobodys);
        let record = record.dormouse(&dormouse).env("DORMOUSE_LIBC_LIBRARY", &library);
        let record = options.iter().fold(record.output(nobodys.join(format!("trace-{index}"))), Record::option);
        let recording = record.run(&command);
        check_end(recording.status, &recording.stdout, &recording.stderr);
        let said = &recording.stderr;
        assert_eq!((recording.summary().events, recording.summary().processes), (0, 0), "{said}");
        let names_it = ["privileges", "set-user-ID"].iter().any(|word| said.contains(word));
        assert!(names_it && !said.contains("is static"), "guesses in place of a reason: {said}");
    }
}
