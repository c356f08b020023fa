//! Programs that listen without a tracer: listed and set by the command, by a client in Python, and by clients that are
//! silent, wrong or dead.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use dormouse_testing::programs::{dormouse, profile_dir};
use dormouse_testing::{Lack, has, random, skip, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// A running program, with its own directory of sockets.
struct Steered {
    place: TempDir,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Steered {
    fn start(name: &str, listen: Option<&str>) -> Steered {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(profile_dir().join("examples").join(name));
        command.env("XDG_RUNTIME_DIR", place.path()).env_remove("DORMOUSE_LISTEN");
        command.envs(listen.map(|value| ("DORMOUSE_LISTEN", value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut steered = Steered { place, child, stdin, stdout };
        assert_eq!(steered.line(), "ready");
        steered
    }

    /// Starts the program without a tracer, and has it listen.
    fn listening() -> Steered {
        let mut steered = Steered::start("dormouse_imv_steered", None);
        assert_eq!(steered.ask("listen"), "done");
        steered
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.stdin, "{question}").unwrap();
        self.line()
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new(dormouse()).args(words).env("XDG_RUNTIME_DIR", self.place.path()).output().unwrap()
    }

    /// Returns what the command printed, and requires that it succeeds.
    fn succeed(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the error of a command, and requires that it fails.
    fn refuse(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.place.path().join("dormouse")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.sockets()[0]).unwrap()
    }

    fn python(&self, words: &[&str]) -> Output {
        let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle.py");
        Command::new("python3").arg(oracle).arg(self.place.path()).arg(self.pid()).args(words).output().unwrap()
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the bytes of a client that asks a question: preamble and frame.
fn question(number: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"dormouse\x07\0\0\0\x03\0\0\0".to_vec();
    bytes.push(number);
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn nothing_happens_until_the_program_asks() {
    let mut steered = Steered::start("dormouse_imv_steered", None);
    let status = std::fs::read_to_string(format!("/proc/{}/status", steered.pid())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
    // Rust's runtime has handlers of SIGSEGV and SIGBUS.
    assert_eq!(u64::from_str_radix(caught, 16).unwrap() & !(1 << 10 | 1 << 6), 0, "{caught}");
    let (threads, descriptors) = (steered.ask("threads"), steered.ask("descriptors"));
    assert_eq!((threads.as_str(), steered.sockets().len()), ("1", 0));
    let refused = steered.refuse(&["imv", "list", &steered.pid()]);
    assert!(refused.contains("does not listen") && refused.contains("imv_listen()"), "{refused}");

    assert_eq!(steered.ask("listen"), "done");
    assert_eq!(steered.ask("listen"), "done");
    // The thread's socket is in a descriptor table of its own.
    assert_eq!((steered.ask("threads").as_str(), steered.ask("descriptors")), ("2", descriptors));
    let mode = std::fs::metadata(&steered.sockets()[0]).unwrap().permissions().mode();
    assert_eq!((steered.sockets().len(), mode & 0o777), (1, 0o600));

    assert_eq!(steered.ask("stop"), "done");
    assert_eq!((steered.ask("threads").as_str(), steered.sockets().len()), ("1", 0));
    assert_eq!((steered.ask("stop"), steered.ask("listen")), ("done".into(), "done".into()));
    steered.succeed(&["imv", "list", &steered.pid()]);
}

#[test]
fn what_the_program_prints_follows_what_is_set() {
    let mut steered = Steered::listening();
    let pid = steered.pid();
    writeln!(steered.stdin, "print").unwrap();
    assert_eq!(steered.line(), "16 0.5 off");
    let text = steered.succeed(&["imv", "set", &pid, "steered.batch", "64", "steered.audit", "on"]);
    assert_eq!(text, "steered.batch: 16 → 64\nsteered.audit: off → on\n");
    let mut lines = std::iter::from_fn(|| Some(steered.line()));
    // A line that was begun before the values were set may have either of each.
    let is_mixed = |line: &String| line != "64 0.5 on";
    let before: Vec<String> = lines.by_ref().take_while(is_mixed).collect();
    assert!(before.iter().rev().skip(1).all(|line| line == "16 0.5 off"), "{before:?}");
    assert!(lines.by_ref().take(10).all(|line| line == "64 0.5 on"));

    for (words, why) in [
        (&["steered.batch", "0"][..], "`steered.batch` takes a whole number from 1 to 1024"),
        (&["steered.batch", "2", "steered.ratio", "1.5"], "`steered.ratio` takes a number from 0.0 to 1.0"),
        (&["steered.batch", "2", "steered.audit", "2"], "`steered.audit` takes on or off"),
        (&["steered.batch", "2", "steered.other", "2"], "no tunable `steered.other`"),
        (&["steered.batch", "2", "steered.batch", "3"], "would be set twice"),
    ] {
        let refused = steered.refuse(&[&["imv", "set", &pid], words].concat());
        assert!(refused.contains(why), "{refused}");
    }
    let json: Value = serde_json::from_str(&steered.succeed(&["imv", "list", "--json", &pid])).unwrap();
    let expected = [
        ("steered.audit", "key", Value::Bool(true), Value::Bool(false), Value::Bool(true)),
        ("steered.batch", "u32", 64.into(), 1.into(), 1024.into()),
        ("steered.ratio", "f64", 0.5.into(), 0.0.into(), 1.0.into()),
    ];
    let [listener] = json.as_array().unwrap().as_slice() else { panic!("{json}") };
    let tunables = listener["tunables"].as_array().unwrap();
    assert_eq!(tunables.len(), expected.len(), "{json}");
    for (tunable, (name, kind, value, min, max)) in tunables.iter().zip(expected) {
        let found = ["name", "type", "value", "min", "max", "sites_patched"].map(|key| tunable[key].clone());
        assert_eq!(found, [name.into(), kind.into(), value, min, max, tunable["sites"].clone()], "{json}");
        // On AArch64 a value is a load of its variable.
        let has_sites = kind == "key" || cfg!(target_arch = "x86_64");
        assert_eq!(tunable["sites"].as_u64() > Some(0), has_sites, "{json}");
        assert!(tunable["object"].as_str().unwrap().ends_with("/dormouse_imv_steered"), "{json}");
    }
    // As a table. Commands about events say that there are none.
    let words = steered.succeed(&["imv", "list", &pid]);
    for row in ["steered.audit  key      on  on, off", "steered.batch  u32      64  1..1024"] {
        assert!(words.contains(row), "{words}");
    }
    let listed = steered.succeed(&["list", &pid]);
    assert!(listed.contains("in no session"), "{listed}");
    let refused = steered.refuse(&["arm", &pid, "*"]);
    assert!(refused.contains("no event of process"), "{refused}");
}

#[test]
fn a_program_is_found_by_its_name() {
    let steered = Steered::listening();
    // The only one that finds its socket in this directory. Its name in `ps` is cut.
    let text = steered.succeed(&["imv", "set", "dormouse_imv_steered", "steered.batch", "3"]);
    assert_eq!(text, "steered.batch: 16 → 3\n");
    assert!(steered.refuse(&["imv", "list", "no-such-program"]).contains("no running program of this user is called"));
}

/// A client that shares no code with Dormouse sees the same, and its settings reach the instructions.
#[test]
fn a_client_by_the_documentation_alone_lists_and_sets() {
    if !has("python3") {
        return;
    }
    let mut steered = Steered::listening();
    let printed = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    let listed = |steered: &Steered| {
        let mut lines: Vec<String> = printed(&steered.python(&[])).lines().map(String::from).collect();
        lines.sort();
        lines
    };
    assert_eq!(
        listed(&steered),
        ["steered.audit 0 0 0 1", "steered.batch 4 16 1 1024", "steered.ratio 11 0.5 0.0 1.0"]
    );
    let set = steered.python(&["steered.batch", "0x20", "steered.ratio", "0.25", "steered.audit", "on"]);
    assert_eq!(printed(&set), "steered.batch 16 32\nsteered.ratio 0.5 0.25\nsteered.audit 0 1\n");
    assert_eq!(steered.ask("values"), "32 0.25 on");
    let refused = steered.python(&["steered.ratio", "0.5", "steered.batch", "1025"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && text.contains("out of range") && text.contains("nothing was set"), "{text}");
    assert_eq!(steered.ask("values"), "32 0.25 on");
    assert_eq!(listed(&steered)[1], "steered.batch 4 32 1 1024");
}

#[test]
fn silent_wrong_and_dead_clients_change_nothing() {
    let mut steered = Steered::listening();
    let descriptors = steered.ask("descriptors");
    let mut next = random(7);
    let questions = [question(6, b""), question(7, b"\x01\0\0\0\x0d\0steered.batch\x02\0\x36\x34"), question(9, b"x")];
    for round in 0..300 {
        let mut bytes = questions[next(questions.len())].clone();
        // The twentieth byte and the following are a frame's; a changed digit of the value would be a right question.
        match next(4) {
            0 => bytes.truncate(next(bytes.len())),
            1 => {
                let at = next(20);
                bytes[at] ^= 1 << next(8);
            }
            2 => bytes[17..21].copy_from_slice(&u32::MAX.to_le_bytes()),
            _ => bytes.iter_mut().for_each(|byte| *byte = next(256) as u8),
        }
        let mut client = steered.connect();
        // The program may have closed the connection before all is sent.
        let _ = client.write_all(&bytes);
        if round % 2 == 0 {
            let _ = client.shutdown(std::net::Shutdown::Write);
            let _ = client.read_to_end(&mut Vec::new());
        }
    }
    // While three clients say nothing, the program goes on.
    let silent: Vec<UnixStream> = (0..3).map(|_| steered.connect()).collect();
    let values = steered.ask("values");
    assert!(["16 0.5 off", "64 0.5 off"].contains(&values.as_str()), "{values}");
    drop(silent);
    // A tool waits until a silent client is left.
    let one = steered.connect();
    let text = steered.succeed(&["imv", "set", &steered.pid(), "steered.batch", "65"]);
    assert!(text.ends_with("→ 65\n"), "{text}");
    drop(one);
    assert_eq!((steered.ask("values"), steered.ask("descriptors")), ("65 0.5 off".into(), descriptors));
}

#[test]
fn a_thousand_clients_in_turn_leave_nothing() {
    let mut steered = Steered::listening();
    let before = (steered.ask("threads"), steered.ask("descriptors"));
    for _ in 0..1000 {
        let mut client = steered.connect();
        client.write_all(&question(6, b"")).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"dormouse\x07\0\0\0\x03\0\0\0\x03"), "{answer:?}");
        assert!(answer.windows(13).any(|bytes| bytes == b"steered.batch"));
    }
    assert_eq!((steered.ask("threads"), steered.ask("descriptors")), before);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", steered.pid())).unwrap().flatten();
    let listener = tasks.map(|task| task.path()).find(|task| !task.ends_with(steered.pid())).unwrap();
    // The thread's own table has its socket, and a connection at most.
    wait_until("the last connection's end", || std::fs::read_dir(listener.join("fd")).unwrap().count() == 1);
}

#[test]
fn the_program_may_close_every_descriptor() {
    let mut steered = Steered::listening();
    assert_eq!(steered.ask("close"), "0");
    steered.succeed(&["imv", "set", &steered.pid(), "steered.batch", "5"]);
    assert_eq!(steered.ask("values"), "5 0.5 off");
}

#[test]
fn a_forked_child_answers_as_itself() {
    let mut steered = Steered::listening();
    let (parent, child) = (steered.pid(), steered.ask("fork"));
    let text = steered.succeed(&["imv", "set", &child, "steered.batch", "6"]);
    assert_eq!(text, "steered.batch: 16 → 6\n");
    assert_eq!(steered.line(), "child 6 0.5 off");
    assert_eq!(steered.ask("values"), "16 0.5 off");
    steered.succeed(&["imv", "set", &parent, "steered.batch", "7"]);
    assert_eq!(steered.ask("values"), "7 0.5 off");

    // A child does not answer for a parent that has ended, nor does one that was forked when nothing listened.
    assert_eq!((steered.ask("stop"), steered.ask("listen")), ("done".into(), "done".into()));
    steered.succeed(&["imv", "set", &parent, "steered.batch", "16"]);
    let child = steered.ask("fork");
    steered.child.kill().unwrap();
    steered.child.wait().unwrap();
    assert!(steered.refuse(&["imv", "list", &parent]).contains("no process"));
    let text = steered.succeed(&["imv", "set", &child, "steered.batch", "6"]);
    assert_eq!(text, "steered.batch: 16 → 6\n");
    assert_eq!(steered.line(), "child 6 0.5 off");

    let mut steered = Steered::start("dormouse_imv_steered", None);
    let child = steered.ask("fork");
    assert!(steered.refuse(&["imv", "list", &child]).contains("does not listen"));
    kill(&child);
}

fn kill(pid: &str) {
    // SAFETY: kill(2) of a child's child of this test.
    assert_eq!(unsafe { libc::kill(pid.parse().unwrap(), libc::SIGKILL) }, 0);
}

#[test]
fn a_program_that_executes_itself_no_longer_listens() {
    let mut steered = Steered::listening();
    let pid = steered.pid();
    assert_eq!(steered.ask("exec"), "ready");
    assert_eq!(steered.ask("threads"), "1");
    assert!(steered.refuse(&["imv", "list", &pid]).contains("does not listen"));
    assert_eq!(steered.ask("listen"), "done");
    steered.succeed(&["imv", "set", &pid, "steered.batch", "8"]);
    assert_eq!(steered.ask("values"), "8 0.5 off");
}

#[test]
fn the_environment_forbids_listening() {
    let mut steered = Steered::start("dormouse_imv_steered", Some("0"));
    assert_eq!(steered.ask("listen"), "DORMOUSE_LISTEN=0 forbids to listen");
    assert_eq!((steered.ask("threads").as_str(), steered.sockets().len()), ("1", 0));
}

/// The tracer of the same program listens instead.
#[test]
fn with_a_tracer_each_tunable_is_listed_once() {
    let mut steered = Steered::start("dormouse_imv_traced", None);
    let pid = steered.pid();
    assert_eq!(steered.ask("listen"), "done");
    assert_eq!((steered.sockets().len(), steered.ask("threads").as_str()), (1, "2"));
    let json: Value = serde_json::from_str(&steered.succeed(&["imv", "list", "--json", &pid])).unwrap();
    let listeners = json.as_array().unwrap();
    let names = listeners.iter().flat_map(|listener| listener["tunables"].as_array().unwrap());
    let names: Vec<&str> = names.map(|tunable| tunable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["steered.audit", "steered.batch", "steered.ratio"], "{json}");
    steered.succeed(&["imv", "set", &pid, "steered.batch", "9"]);
    assert_eq!(steered.ask("values"), "9 0.5 off");
    assert!(steered.succeed(&["list", &pid]).contains("steered:started"));
    assert_eq!((steered.ask("stop"), steered.sockets().len()), ("done".into(), 0));
}

/// Neither the socket nor its directory lets another user in.
#[test]
fn other_users_are_refused() {
    // SAFETY: geteuid(2) has no conditions.
    if unsafe { libc::geteuid() } != 0 {
        return skip(Lack::machine("only root may become another user", "run the tests as root"));
    }
    let steered = Steered::listening();
    std::fs::set_permissions(steered.place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = steered.sockets().remove(0);
    let as_stranger = |socket: &Path| {
        let connect = "import socket, sys\nsocket.socket(socket.AF_UNIX).connect(sys.argv[1])";
        let output =
            Command::new("/usr/bin/python3").args(["-c", connect]).arg(socket).uid(65_534).gid(65_534).output();
        output.map(|output| String::from_utf8(output.stderr).unwrap())
    };
    let Ok(text) = as_stranger(&socket) else {
        return skip(Lack::program("python3"));
    };
    assert!(text.contains("PermissionError"), "{text}");
    // The socket's own mode, in a directory that lets everybody in.
    std::fs::set_permissions(socket.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(as_stranger(&socket).unwrap().contains("PermissionError"));
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(as_stranger(&socket).unwrap(), "");
    let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nprint(s.recv(999))";
    let output = Command::new("/usr/bin/python3").args(["-c", script]).arg(&socket).uid(65_534).gid(65_534).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("only the program's own user may talk to it"), "{text}");
}
