//! Programs that cannot be reached or recorded: each refusal is one line with the true reason, found by inspection.
#![cfg(target_os = "linux")]

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dormouse_e2e::program::Program;
use dormouse_e2e::run::{Record, Recording, dormouse, libc_library, watched};
use dormouse_testing::{Lack, copy_program, for_everybody, has, skip};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

/// The program with tracepoints.
const BOX: &str = env!("CARGO_BIN_EXE_e2e-box");

/// Watchdog: anything that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// A process that ends with the test in any case.
struct Process(Child);

impl Process {
    fn start<S: AsRef<std::ffi::OsStr>>(command: &[S]) -> Process {
        let child = Command::new(&command[0]).args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        Process(child.expect("the program runs"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Waits until the process has this name.
    fn called(self, name: &str) -> Process {
        let comm = format!("/proc/{}/comm", self.pid());
        while std::fs::read_to_string(&comm).expect("a process").trim_end() != name {
            std::thread::yield_now();
        }
        self
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeping() -> Process {
    Process::start(&["sleep", "600"]).called("sleep")
}

/// Asserts that `dormouse` refuses with one line, and returns the line.
fn refusal(arguments: &[&str], as_user: &[&str], run: &Path) -> String {
    let mut words: Vec<OsString> = as_user.iter().map(OsString::from).collect();
    // Another user may execute it in the directory of the program.
    words.push(if as_user.is_empty() { dormouse().into() } else { for_everybody(dormouse(), run).into() });
    words.extend(arguments.iter().map(OsString::from));
    let output = watched(Command::new(&words[0]).args(&words[1..]).env("XDG_RUNTIME_DIR", run), PATIENCE);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{arguments:?}: {text}");
    assert!(text.starts_with("dormouse: ") && text.contains(';'), "a reason and a remedy: {text}");
    text
}

fn check(pid: &str, words: &str) {
    let place = tempfile::tempdir().expect("a directory");
    let text = refusal(&["list", pid], &[], place.path());
    assert!(text.contains(words), "{words}: {text}");
}

/// Returns a directory that every user may look into, with a program in it.
fn with_program(name: &str, make: impl FnOnce(&Path)) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    let path = place.path().join(name);
    make(&path);
    (place, path)
}

/// Compiles a C program; `None` if that fails.
fn compiled(source: &str, options: &[&str]) -> Option<(TempDir, PathBuf)> {
    let mut is_made = false;
    let made = with_program("program", |path| {
        let file = path.with_extension("c");
        std::fs::write(&file, source).expect("a file");
        let gcc = Command::new("gcc").args(options).arg("-o").args([path, &file]).output();
        is_made = gcc.is_ok_and(|output| output.status.success());
    });
    if !is_made {
        skip(Lack::tool(format!("gcc {options:?} makes no program"), "`apt-get install gcc libc6-dev`"));
    }
    is_made.then_some(made)
}

/// Returns a program with tracepoints, on a socket of its own.
fn boxed(environment: &[&str]) -> Program {
    let mut program = Program::start(&[&["env"], environment, &[BOX, "none", "1"]].concat(), PATIENCE);
    program.wait_for_ready();
    program
}

fn refused(program: &Program) -> String {
    refusal(&["list", &program.pid().to_string()], &[], &program.place().join("run"))
}

#[test]
fn processes_that_are_not_programs_are_reported() {
    check("4194304", "there is no process 4194304; `pgrep -a NAME`");
    // Outside of a PID namespace, this is a kernel thread.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim_end() == "kthreadd") {
        check("2", "process 2 (kthreadd) is a kernel thread; ");
    }
    let (sender, tid) = std::sync::mpsc::channel();
    let (_ends, end) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        sender.send(rustix::thread::gettid()).expect("somebody waits");
        let _ = end.recv();
    });
    let tid = tid.recv().expect("a thread").as_raw_nonzero().to_string();
    check(&tid, &format!("{tid} is a thread of process {}; name the process", std::process::id()));
    let zombie = sleeping();
    kill_process(Pid::from_child(&zombie.0), Signal::KILL).expect("a child");
    // It is a zombie from then on, which is removed at the test's end.
    while !std::fs::read_to_string(format!("/proc/{}/stat", zombie.pid())).expect("a zombie").contains(") Z ") {
        std::thread::yield_now();
    }
    check(&zombie.pid(), "(sleep) has ended, and its parent has not waited for it; ");
}

#[test]
fn programs_without_tracepoints_are_reported_by_kind() {
    let dynamic = sleeping();
    for command in [["list", &dynamic.pid(), ""], ["arm", &dynamic.pid(), "*"], ["disarm", &dynamic.pid(), "*"]] {
        let words: Vec<&str> = command.into_iter().filter(|word| !word.is_empty()).collect();
        let text = refusal(&words, &[], Path::new("/nowhere"));
        assert!(text.contains("(sleep) has no Dormouse tracepoints; `dormouse record --libc -- CMD`"), "{text}");
    }
    // Stopped or running, it has none.
    kill_process(Pid::from_child(&dynamic.0), Signal::STOP).expect("a child");
    waitpid(Some(Pid::from_child(&dynamic.0)), WaitOptions::UNTRACED).expect("a child");
    check(&dynamic.pid(), "(sleep) has no Dormouse tracepoints; ");
    if has("python3") {
        let python = Process::start(&["python3", "-c", "import sys; sys.stdin.read()"]);
        check(&python.pid(), " has no Dormouse tracepoints; ");
    }
    // The program's file is gone.
    let (_place, path) = with_program("gone", |path| copy_program(Path::new("/bin/sleep"), path));
    let gone = Process::start(&[path.as_os_str(), "600".as_ref()]).called("gone");
    std::fs::remove_file(&path).expect("a file");
    check(&gone.pid(), "(gone) has no Dormouse tracepoints; ");
    if let Some((_place, path)) = compiled("#include <unistd.h>\nint main() { return pause(); }", &["-static"]) {
        let fixed = Process::start(&[&path]).called("program");
        check(&fixed.pid(), "(program) is statically linked and has no Dormouse tracepoints; ");
    }
}

#[test]
fn programs_that_do_not_listen_are_reported_with_the_reason() {
    assert!(refused(&boxed(&["DORMOUSE_LISTEN=0"])).contains("(e2e-box) was started with DORMOUSE_LISTEN=0; "));
    // A program that listens by a signal has no socket that could fail to answer.
    for (environment, said) in
        [(&["DORMOUSE_LISTEN=thread"][..], "does not answer: it is stopped"), (&[], "is stopped")]
    {
        let stopped = boxed(environment);
        let pid = Pid::from_raw(stopped.pid() as i32).expect("a process");
        kill_process(pid, Signal::STOP).expect("a process");
        let text = refused(&stopped);
        kill_process(pid, Signal::CONT).expect("a process");
        assert!(text.contains(&format!("{said}; let it continue (`kill -CONT {}`", stopped.pid())), "{text}");
    }
    // It listens in a directory where the tool does not look.
    let program = boxed(&["DORMOUSE_LISTEN=thread"]);
    let (pid, run) = (program.pid().to_string(), program.place().join("run"));
    let elsewhere = refusal(&["list", &pid], &[], program.place());
    let dir = run.join("dormouse").display().to_string();
    assert!(elsewhere.contains(&format!("(e2e-box) listens at {dir}/{pid}.")), "{elsewhere}");
    assert!(elsewhere.contains(&format!("; set DORMOUSE_SOCKET_DIR={dir} for dormouse")), "{elsewhere}");
    let mut named = Command::new(dormouse());
    named.args(["list", &pid]).env("XDG_RUNTIME_DIR", program.place()).env("DORMOUSE_SOCKET_DIR", &dir);
    assert!(watched(&mut named, PATIENCE).status.success());
    std::fs::remove_dir_all(&dir).expect("a directory");
    assert!(refused(&program).contains("but that file is gone; "));
}

/// Programs that `record` starts do not listen. The message names their session, which is recording or over.
#[test]
fn programs_of_a_recording_are_reported_with_their_session() {
    let place = tempfile::tempdir().expect("a directory");
    let (trace, file) = (place.path().join("trace"), place.path().join("pid"));
    let record = [dormouse().as_os_str(), "record".as_ref(), "-o".as_ref(), trace.as_os_str(), "--".as_ref()];
    let mut recorded = Program::start(&[&record[..], &[BOX, "none", "1"].map(AsRef::as_ref)].concat(), PATIENCE);
    recorded.wait_for_ready();
    let text = refused(&recorded);
    let told = "(e2e-box) was started by `dormouse record`, whose programs do not listen (session ";
    assert!(text.contains(told) && text.contains(", which is recording); set DORMOUSE_LISTEN=thread "), "{text}");
    drop(recorded);
    std::fs::remove_dir_all(&trace).expect("a trace");
    // A recording that its program outlives. The recording ends once the program has joined: a program that joins later
    // listens.
    let script = "\"$@\" sh -c '\"$0\" none 1 <&3 >\"$1.out\" & echo $! >\"$1\"; until grep ready \"$1.out\"; do sleep 0.01; done' \
                  BOX FILE 3<&0; exec sleep 600";
    let script = script.replace("BOX", BOX).replace("FILE", file.to_str().expect("a path of text"));
    let shell = ["sh", "-c", &script, "sh"].map(AsRef::as_ref);
    let mut left = Program::start(&[&shell[..], &record[..]].concat(), PATIENCE);
    left.wait_for_ready();
    // The last line is printed when the recording is over.
    while std::fs::read(left.place().join("stderr")).is_ok_and(|said| said.is_empty()) {
        std::thread::yield_now();
    }
    let pid = std::fs::read_to_string(&file).expect("a number");
    // The owner's socket is removed a moment later.
    let text = loop {
        let text = refusal(&["list", pid.trim()], &[], &left.place().join("run"));
        if !text.contains(", which is recording)") {
            break text;
        }
    };
    assert!(text.contains(told) && text.contains(", which has ended); "), "{text}");
}

#[test]
fn missing_permission_is_reported() {
    let (run, path) = with_program("program", |path| copy_program(Path::new("/bin/sleep"), path));
    let as_nobody = watched(
        Command::new(NOBODY[0]).args(&NOBODY[1..]).arg(for_everybody(dormouse(), run.path())).arg("--version"),
        PATIENCE,
    );
    if !as_nobody.status.success() {
        let reason = String::from_utf8_lossy(&as_nobody.stderr).trim().to_owned();
        return skip(Lack::machine(reason, "run the tests as root"));
    }
    let roots = sleeping();
    let text = refusal(&["arm", &roots.pid(), "*"], &NOBODY, run.path());
    assert!(text.contains(&format!("process {} belongs to user 0; run dormouse as that user or as root", roots.pid())));
    // setpriv has all capabilities until it executes another program.
    let shell = ["sh", "-c", "exec \"$0\" 600"].map(OsString::from);
    let nobodys = |path: &Path| [&NOBODY.map(OsString::from)[..], &shell[..], &[path.into()]].concat();
    let own = Process::start(&nobodys(&path)).called("program");
    check(&own.pid(), "(program) has no Dormouse tracepoints; ");
    let text = refusal(&["list", &own.pid()], &NOBODY, run.path());
    assert!(text.contains("(program) has no Dormouse tracepoints; "), "{text}");
    // A file that may be executed but not read makes its process uninspectable.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o711)).expect("it is ours");
    let hidden = Process::start(&nobodys(&path)).called("program");
    let text = refusal(&["list", &hidden.pid()], &NOBODY, run.path());
    assert!(text.contains("and user 65534 may not inspect it (Permission denied"), "{text}");
    assert!(text.contains("; run dormouse as root"), "{text}");
    check(&hidden.pid(), "(program) has no Dormouse tracepoints; ");
    // With root's privileges, started by another user.
    let (_place, path) = with_program("program", |path| copy_program(Path::new(BOX), path));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).expect("it is ours");
    let words = [NOBODY.map(Into::into).to_vec(), vec![path.into(), "none".into(), "1".into()]].concat();
    let mut raised: Program = Program::start::<OsString>(&words, PATIENCE);
    raised.wait_for_ready();
    assert!(
        refused(&raised).contains("(program) runs with privileges that its caller did not have "),
        "{}",
        refused(&raised)
    );
}

/// Returns the last line of a recording that no process has joined.
fn unjoined(recording: &Recording) -> String {
    let last = recording.stderr.lines().last().expect("a last line").to_owned();
    assert!(last.contains("; no process joined"), "{}", recording.stderr);
    last
}

#[test]
fn a_recording_that_nobody_joins_says_what_its_command_is() {
    libc_library();
    let text = unjoined(&Record::new().patience(PATIENCE).run(&["sh", "-c", "exit 0"]));
    assert!(
        text.contains("; no process joined: `sh` has no Dormouse tracepoints, and nothing that it has started has"),
        "{text}"
    );
    assert!(
        text.ends_with("; `dormouse record --libc -- CMD` traces the libc calls of an unmodified program"),
        "{text}"
    );
    let Some((place, path)) = compiled("int main() { return 0; }", &["-static"]) else { return };
    let shown = path.display();
    let text = unjoined(&Record::new().patience(PATIENCE).run(&[&path]));
    assert!(
        text.contains(&format!("joined: `{shown}` is statically linked and has no Dormouse tracepoints, ")),
        "{text}"
    );
    let script = place.path().join("script");
    dormouse_testing::write_script(&script, &format!("#!{shown}\n"));
    for (command, subject) in [
        (&path, format!("`{shown}` is statically linked: ")),
        (&script, format!("is run by `{shown}`, which is statically linked: ")),
    ] {
        let recording = Record::new().patience(PATIENCE).option("--libc").run(&[command]);
        assert!(recording.stderr.contains(&subject), "{}", recording.stderr);
        assert!(unjoined(&recording).ends_with("; no process joined"), "{}", recording.stderr);
    }
}
