//! Effects of the library on the program that it is in: threads, descriptors, system calls, files.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use dormouse_e2e::run::{Record, dormouse, libc_library};
use dormouse_testing::{Lack, copy_program, has, may_unshare, skip, wait_until};
use tempfile::TempDir;

const HOST: &str = env!("CARGO_BIN_EXE_e2e-host");

/// A user id without any programs.
const STRANGER: u32 = 61_234;

/// A program outside of any session, with a socket directory of its own.
struct Running {
    place: TempDir,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(arguments: &[&str]) -> Running {
        Running::start_as(Command::new(HOST).args(arguments))
    }

    fn start_as(command: &mut Command) -> Running {
        let place = tempfile::tempdir().unwrap();
        command.env("XDG_RUNTIME_DIR", place.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("DORMOUSE_LISTEN", "thread");
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Running { place, child, stdout }
    }

    fn wait_for(&mut self, expected: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), expected);
    }

    fn sockets(&self) -> Vec<PathBuf> {
        sockets(&self.place.path().join("dormouse"))
    }

    fn list(&self) -> Output {
        let mut list = Command::new(dormouse());
        list.args(["list", &self.child.id().to_string()]).env("XDG_RUNTIME_DIR", self.place.path()).output().unwrap()
    }

    fn is_listed(&self) -> bool {
        self.list().status.success()
    }

    /// Lets the program end, and asserts that it succeeds.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the sockets of programs.
fn sockets(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(|path| !is_of_session(path)).collect();
    paths.sort();
    paths
}

fn is_of_session(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with("session-")
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(Lack::machine("only root can become another user", "run the tests as root"));
    }
    is_root
}

#[test]
fn a_recorded_program_has_the_sessions_memory_and_no_further_thread() {
    let looked = |record: Record| record.run(&[HOST, "look"]).succeeded().stdout;
    let plain = Command::new(HOST).arg("look").env("DORMOUSE_LISTEN", "0").stdin(Stdio::null()).output().unwrap();
    // The process that runs the tests may leave open descriptors to programs.
    let plain = String::from_utf8(plain.stdout).unwrap();
    let (_, count) = plain.trim().rsplit_once(' ').unwrap();
    // Adds the session's memory, which the program has inherited.
    let count: u32 = count.parse::<u32>().unwrap() + 1;
    let plain = format!("threads 1 descriptors {count}\n");
    let threads = |count: u32| plain.replace("threads 1 ", &format!("threads {count} "));
    assert_ne!(threads(2), plain);
    assert_eq!(looked(Record::new()), plain);
    assert_eq!(looked(Record::new().env("DORMOUSE_LISTEN", "0")), plain);
    // On request it has a thread, whose descriptor is not one of the program's.
    for wish in ["1", "thread"] {
        assert_eq!(looked(Record::new().env("DORMOUSE_LISTEN", wish)), threads(2));
    }
}

/// A million events fill hundreds of pages.
#[test]
fn a_killing_seccomp_filter_spares_programs_that_only_record() {
    for (mode, rseq, events) in
        [("discard", true, 1_000_000), ("overwrite", true, 200_000), ("discard", false, 200_000)]
    {
        let record = Record::new().budget("256M").mode(mode).rseq(rseq);
        let recording = record.run(&[HOST, "strict", &events.to_string()]).succeeded();
        let stats = recording.trace().stats();
        assert_eq!((stats.events, stats.events_lost), (events, 0), "{mode}, rseq {rseq}");
    }
}

#[test]
fn a_killing_seccomp_filter_spares_programs_that_fork() {
    let status = Command::new(HOST).arg("strict-fork").env("DORMOUSE_LISTEN", "0").status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn namespaces_can_be_entered() {
    if !may_unshare(&["-U"]) {
        return;
    }
    // In a session the program need not announce it; elsewhere it announces that it is about to unshare.
    assert_eq!(Record::new().run(&[HOST, "unshare", "at-once"]).succeeded().stdout, "none\n");
    for _ in 0..100 {
        assert_eq!(Running::start(&["unshare", "stop"]).end(), "none\n");
    }
    let running = Running::start(&["unshare", "stop"]);
    let dir = running.place.path().join("dormouse");
    assert_eq!(running.end(), "none\n");
    assert_eq!(sockets(&dir), [] as [PathBuf; 0]);
    // Shows that the announcement is necessary.
    assert_ne!(Running::start(&["unshare", "at-once"]).end(), "none\n");
}

#[test]
fn tools_that_drop_privileges_work_as_without() {
    libc_library();
    if !is_root() || !has("setpriv") || !may_unshare(&["-U"]) {
        return;
    }
    for command in [
        &["setpriv", "--reuid=65534", "--clear-groups", "true"][..],
        &["unshare", "-U", "true"],
        &[HOST, "become", "65534"],
    ] {
        Record::new().option("--libc").run(command).succeeded();
    }
}

#[test]
fn python_has_one_thread_when_it_forks() {
    libc_library();
    if !has("python3") {
        return;
    }
    let script = "import os, sys\nprint(len(os.listdir('/proc/self/task')), flush=True)\npid = os.fork()\nif pid == 0: os._exit(0)\nsys.exit(os.waitpid(pid, 0)[1])";
    let python = ["python3", "-W", "error::DeprecationWarning", "-c", script];
    let recording = Record::new().option("--libc").run(&python).succeeded();
    assert_eq!(recording.stdout, "1\n");
    assert!(!recording.stderr.contains("multi-threaded"), "{}", recording.stderr);
    // On request, there is a thread: Python 3.12 and later print a warning, and continue.
    let python = ["python3", "-c", script];
    let recording = Record::new().option("--libc").env("DORMOUSE_LISTEN", "1").run(&python).succeeded();
    assert_eq!(recording.stdout, "2\n");
}

#[test]
fn a_program_that_closes_unknown_descriptors_is_reached() {
    // Also if the tracer's own first descriptor would have the number of a socket.
    for first in ["", "exec 2>&-; ", "exec 3</dev/null; "] {
        let mut running = Running::start_as(Command::new("sh").args(["-c", &format!("{first}exec {HOST} close-all")]));
        running.wait_for("ready");
        running.wait_for("closed");
        assert!(running.is_listed());
        assert!(running.is_listed());
        assert_eq!(running.end(), "");
    }
}

/// The listener's socket is one of the program's descriptors there.
#[test]
fn without_a_table_of_its_own_the_listener_leaves_the_programs_descriptors_alone() {
    let mut running = Running::start(&["as-before-5.9", "wait"]);
    running.wait_for("ready");
    assert!(running.is_listed());
    running.end();
    // It does not interfere with the first three either, which shells and servers close and open.
    let script = format!("exec {HOST} as-before-5.9 look 2>&-");
    let looked = Running::start_as(Command::new("sh").args(["-c", &script])).end();
    assert!(looked.starts_with("threads 2 "), "{looked}");

    let mut running = Running::start(&["as-before-5.9", "close-all"]);
    running.wait_for("ready");
    running.wait_for("closed");
    for _ in 0..2 {
        let output = running.list();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);
    }
    assert_eq!(running.end(), "");
}

#[test]
fn a_program_at_its_descriptor_limit_is_reached_and_does_not_spin() {
    let mut running = Running::start(&["limit"]);
    running.wait_for("ready");
    assert!(running.is_listed());
    assert!(running.is_listed());
    running.end();
}

#[test]
fn sockets_are_private_to_the_programs_user() {
    let mut running = Running::start(&["wait"]);
    running.wait_for("ready");
    let [socket] = &running.sockets()[..] else { panic!("{:?}", running.sockets()) };
    assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(socket.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
    running.end();
}

#[test]
fn a_program_that_becomes_another_user_listens_as_that_user() {
    if !is_root() {
        return;
    }
    let dir = PathBuf::from(dormouse_abi::environment::socket_dir(None, STRANGER));
    let mut running = Running::start(&["become", &STRANGER.to_string()]);
    running.wait_for("started");
    running.wait_for("ready");
    let name = format!("{}.", running.child.id());
    let socket =
        || sockets(&dir).into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with(&name));
    wait_until("it listens anew", || socket().is_some_and(|path| UnixStream::connect(path).is_ok()));
    let stream = UnixStream::connect(socket().unwrap()).unwrap();
    let peer = rustix::net::sockopt::socket_peercred(&stream).unwrap();
    assert_eq!(peer.uid.as_raw(), STRANGER);
    drop(stream);
    assert!(running.is_listed(), "by root");
    assert_eq!(dir.metadata().unwrap().uid(), STRANGER);
    running.end();
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_directory_of_another_user_is_refused() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return;
    }
    let user = STRANGER + 1;
    let dir = PathBuf::from(dormouse_abi::environment::socket_dir(None, user));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    chown(&dir, Some(STRANGER), Some(STRANGER)).unwrap();
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("host");
    copy_program(Path::new(HOST), &program);
    let mut command = Command::new(&program);
    command.arg("look").env_remove("XDG_RUNTIME_DIR").current_dir("/").uid(user).gid(user).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    assert_eq!(sockets(&dir), [] as [PathBuf; 0]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn programs_of_two_pid_namespaces_have_separate_sockets() {
    if !is_root() || !has("unshare") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", HOST, "wait"])
            .env("XDG_RUNTIME_DIR", place.path())
            .env("DORMOUSE_LISTEN", "thread");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        child
    };
    let end = |mut child: Child| {
        drop(child.stdin.take());
        child.wait().unwrap();
    };
    let dir = place.path().join("dormouse");
    let first = start();
    let of_first = sockets(&dir);
    let second = start();
    let both = sockets(&dir);
    assert_eq!((of_first.len(), both.len()), (1, 2), "{both:?}");
    end(second);
    assert!(UnixStream::connect(&of_first[0]).is_ok());
    end(first);
}

#[test]
fn the_next_program_removes_sockets_of_dead_processes() {
    let mut running = Running::start(&["children", "500"]);
    running.wait_for("ready");
    // Makes them old enough for a socket to count as dead.
    let old = SystemTime::now() - Duration::from_secs(60);
    let all = running.sockets();
    // Sockets that were older than that when a later child started are gone already.
    assert!(all.len() > 1, "{all:?}");
    for path in &all {
        let time = rustix::fs::Timespec {
            tv_sec: old.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64,
            tv_nsec: 0,
        };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    let mut command = Command::new(HOST);
    command
        .arg("wait")
        .env("XDG_RUNTIME_DIR", running.place.path())
        .env("DORMOUSE_LISTEN", "thread")
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut next = command.spawn().unwrap();
    // The sockets of the live program and of the new one remain.
    wait_until("dead sockets are gone", || running.sockets().len() == 2);
    assert!(running.is_listed());
    drop(next.stdin.take());
    assert!(next.wait().unwrap().success());
    running.end();
}

#[test]
fn a_privileged_program_ignores_its_environment() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("host");
    copy_program(Path::new(HOST), &program);
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    let run = place.path().join("run");
    std::fs::create_dir(&run).unwrap();
    let mut command = Command::new(&program);
    command.arg("look").env("XDG_RUNTIME_DIR", &run).env("DORMOUSE_LISTEN", "1").env("DORMOUSE_SESSION", "/nowhere");
    let output = command.current_dir("/").uid(STRANGER).gid(STRANGER).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("threads 1 "), "{said}");
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0);
}
