//! A program that no recording has started: it waits for input, and tools must reach it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::run::{dormouse, watched};

/// A program that does a step for each byte that it reads, and writes `ready` before and `done` after each.
#[derive(Debug)]
pub struct Program {
    child: Child,
    place: TempDir,
    patience: Duration,
}

/// How a program has ended, and its output.
#[derive(Debug)]
pub struct Ended {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Program {
    /// Starts a command with a process group of its own. Its socket directory is in a directory that is removed with
    /// the program.
    pub fn start<S: AsRef<OsStr>>(command: &[S], patience: Duration) -> Program {
        Program::start_with(command, &[], patience)
    }

    /// Starts a command like [`Program::start`], with additional environment variables.
    pub fn start_with<S: AsRef<OsStr>>(command: &[S], variables: &[(&str, &str)], patience: Duration) -> Program {
        let place = tempfile::tempdir().expect("a temporary directory");
        let runtime_dir = place.path().join("run");
        std::fs::create_dir(&runtime_dir).expect("a directory");
        Program::start_in(command, variables, patience, place, &runtime_dir)
    }

    /// Starts a command like [`Program::start`], with an existing directory of sockets.
    pub fn start_beside<S: AsRef<OsStr>>(command: &[S], patience: Duration, runtime_dir: &Path) -> Program {
        Program::start_in(command, &[], patience, tempfile::tempdir().expect("a temporary directory"), runtime_dir)
    }

    fn start_in<S: AsRef<OsStr>>(
        command: &[S],
        variables: &[(&str, &str)],
        patience: Duration,
        place: TempDir,
        runtime_dir: &Path,
    ) -> Program {
        let file = |name: &str| File::create(place.path().join(name)).expect("a file");
        let child = Command::new(&command[0])
            .args(&command[1..])
            .env("XDG_RUNTIME_DIR", runtime_dir)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .process_group(0)
            .spawn()
            .expect("the program runs");
        Program { child, place, patience }
    }

    /// Returns a directory that lasts as long as the program.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// Returns the program's output so far.
    pub fn stdout(&self) -> String {
        self.text("stdout")
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.place.path().join(name)).unwrap_or_default()).into_owned()
    }

    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Program) -> bool) {
        let started = Instant::now();
        while !is_so(self) {
            let (stdout, stderr) = (self.text("stdout"), self.text("stderr"));
            assert!(started.elapsed() < self.patience, "hangs: {what}; stdout: {stdout:?}; stderr: {stderr:?}");
            // Pause between two looks.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the program waits for a byte, or has ended.
    pub fn wait_for_ready(&mut self) {
        self.wait_until("waiting for `ready`", |program| {
            program.text("stdout").ends_with("ready\n") || program.child.try_wait().expect("a child").is_some()
        });
    }

    /// Makes the program do its step, and waits for it to finish.
    pub fn step(&mut self) {
        self.step_by(b'\n');
    }

    /// Makes the program do the step that this byte selects.
    pub fn step_by(&mut self, byte: u8) {
        let before = self.text("stdout").len();
        // A program that has ended reads no more, which is detected below.
        let _ = self.child.stdin.as_mut().expect("a pipe").write_all(&[byte]);
        self.wait_until("doing a step", |program| {
            let stdout = program.text("stdout");
            stdout.len() > before && stdout.ends_with("ready\n") || program.child.try_wait().expect("a child").is_some()
        });
    }

    /// Returns the process that does the work: the last one of a chain of processes that have each started the next.
    pub fn pid(&self) -> u32 {
        let mut pid = self.child.id();
        loop {
            let path = format!("/proc/{pid}/task/{pid}/children");
            let children = std::fs::read_to_string(path).unwrap_or_default();
            match children.split_whitespace().next().and_then(|child| child.parse().ok()) {
                Some(child) => pid = child,
                None => return pid,
            }
        }
    }

    /// Runs a command of `dormouse`.
    pub fn dormouse<S: AsRef<OsStr>>(&self, arguments: &[S], runtime_dir: &Path) -> Output {
        watched(Command::new(dormouse()).args(arguments).env("XDG_RUNTIME_DIR", runtime_dir), self.patience)
    }

    /// Runs a command of `dormouse` while the program repeats the step that this byte selects.
    pub fn dormouse_amid_steps<S: AsRef<OsStr>>(&mut self, arguments: &[S], runtime_dir: &Path, byte: u8) -> Output {
        let mut command = Command::new(dormouse());
        command.args(arguments).env("XDG_RUNTIME_DIR", runtime_dir);
        let patience = self.patience;
        let running = std::thread::spawn(move || watched(&mut command, patience));
        while !running.is_finished() {
            self.step_by(byte);
        }
        running.join().expect("the command was awaited")
    }

    /// Lets the program end.
    pub fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        self.wait_until("ending", |program| program.child.try_wait().expect("a child").is_some());
        let status = self.child.wait().expect("the child can be awaited");
        Ended { status, stdout: self.text("stdout"), stderr: self.text("stderr") }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
