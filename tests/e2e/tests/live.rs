//! Programs that are already running, and the commands that read traces.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use dormouse_abi::environment::program_socket_name;
use dormouse_abi::message::{Edge, ProgramToTool, ToolToProgram};
use dormouse_e2e::run::{PATIENCE, Record, babeltrace2_count, dormouse};
use dormouse_e2e::trace::{Trace, has_joined};
use dormouse_testing::{Lack, copy_program, skip, wait_until};
use dormouse_transport::{Conversation, Deadline, Error as Failure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const LIVE: &str = env!("CARGO_BIN_EXE_e2e-live");
const TRACED: &str = env!("CARGO_BIN_EXE_e2e-traced");

/// Makes the program listen by a thread. With this, no tool causes arguments to be evaluated; a call by a signal causes
/// one evaluation.
const BY_THREAD: [(&str, &str); 1] = [("DORMOUSE_LISTEN", "thread")];

/// A running program with a directory of sockets of its own.
struct Live {
    place: TempDir,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Live {
    fn start(environment: &[(&str, &str)]) -> Live {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(LIVE)
            .arg(place.path().join("rounds"))
            .env("XDG_RUNTIME_DIR", place.path())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Live { place, child, stdout }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Runs a command of `dormouse`.
    fn dormouse(&self, arguments: &[&str]) -> Output {
        let output = Command::new(dormouse()).args(arguments).env("XDG_RUNTIME_DIR", self.place.path()).output();
        output.unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.dormouse(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with one line, and returns the line.
    fn fail(&self, arguments: &[&str]) -> String {
        one_line(&self.dormouse(arguments))
    }

    /// Waits for complete rounds of the program, each of which has both events.
    fn wait_for_rounds(&self) {
        let round = || {
            let bytes = std::fs::read(self.place.path().join("rounds")).unwrap();
            u64::from_le_bytes(bytes.try_into().unwrap())
        };
        let first = round();
        wait_until("the program goes on", || round() >= first + 3);
    }

    fn trace_dir(&self, name: &str) -> (PathBuf, String) {
        let dir = self.place.path().join(name);
        let text = dir.to_string_lossy().into_owned();
        (dir, text)
    }

    /// Lets the program end, and returns the number of events that it has evaluated.
    fn end(mut self) -> u64 {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        rest.trim().strip_prefix("evaluated ").and_then(|number| number.parse().ok()).unwrap()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn one_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("dormouse: "), "{text}");
    text
}

fn count(trace: &Trace, class: &str) -> u64 {
    trace.stats().classes.iter().filter(|stats| stats.name == class).map(|stats| stats.count).sum()
}

#[test]
fn events_are_armed_and_disarmed_while_the_program_runs() {
    let live = Live::start(&BY_THREAD);
    let pid = live.pid();
    let list = live.succeed(&["list", &pid]);
    assert!(list.contains("in no session"), "{list}");
    assert_eq!(list.matches("dormant").count(), 2, "{list}");
    assert!(list.contains("{ number: u64, text: str }"), "{list}");

    let (dir, dir_text) = live.trace_dir("first");
    live.succeed(&["arm", &pid, "live:tick", "-o", &dir_text]);
    assert!(live.succeed(&["list", &pid]).contains("armed    live:tick"));
    live.wait_for_rounds();
    // A second pattern joins the existing session.
    assert!(live.succeed(&["arm", &pid, "live:tock"]).contains("2 in all"));
    live.wait_for_rounds();
    assert!(live.succeed(&["disarm", &pid, "live.tock"]).contains("1 still armed"));
    let summary = live.succeed(&["disarm", &pid, "*"]);
    assert!(summary.contains("0 still armed") && summary.contains(" events, 0 lost, 1 process,"), "{summary}");

    // The trace is complete as soon as the last event is disarmed.
    let trace = Trace::read(&dir);
    let first = count(&trace, "live:tick");
    assert!(first > 0 && count(&trace, "live:tock") > 0);
    let json: Vec<u8> = live.dormouse(&["list", &pid, "--json"]).stdout;
    assert!(String::from_utf8(json).unwrap().contains("\"sessions\": []"));

    // Repeats this in a new session, whose records have no context.
    let (dir, dir_text) = live.trace_dir("second");
    live.succeed(&["arm", &pid, "live:t?ck", "-o", &dir_text, "--context", "none"]);
    live.wait_for_rounds();
    live.succeed(&["disarm", &pid, "*"]);
    let trace = Trace::read(&dir);
    assert!(trace.events().all(|event| event.context.is_none()));
    let second = count(&trace, "live:tick");
    let evaluated = live.end();
    assert!(second > 0);
    // At most one event was in progress at the end of each session.
    assert!((first + second..=first + second + 2).contains(&evaluated), "{first} and {second} of {evaluated}");
}

/// A recording of a running program.
struct Attached {
    child: Child,
    dir: PathBuf,
}

impl Attached {
    /// Starts to record a program into this directory, with these options. Waits until its events are armed.
    fn start(live: &Live, name: &str, options: &[&str]) -> Attached {
        let (dir, dir_text) = live.trace_dir(name);
        let mut child = Command::new(dormouse())
            .args(["record", "--attach", &live.pid(), "-o", &dir_text])
            .args(options)
            .env("XDG_RUNTIME_DIR", live.place.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert!(line.contains("; Ctrl-C ends it"), "{line}");
        child.stderr = Some(said.into_inner());
        Attached { child, dir }
    }

    /// Ends the recording, and returns its trace.
    fn end(mut self) -> Trace {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
        Trace::read(&self.dir)
    }
}

/// Returns the socket of the session that records into a directory.
fn session_of(live: &Live, dir: &std::path::Path) -> String {
    let status = live.succeed(&["status", dir.to_str().unwrap(), "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["session"].as_str().unwrap().into()
}

/// Each recording has its own events, and ends without the other one.
#[test]
fn two_people_record_one_program() {
    let live = Live::start(&BY_THREAD);
    let pid = live.pid();
    let first = Attached::start(&live, "first", &["-e", "live:tick where number > 20"]);
    live.wait_for_rounds();
    let second = Attached::start(&live, "second", &["-e", "live:tock", "--context", "none"]);
    live.wait_for_rounds();
    let sessions = [session_of(&live, &first.dir), session_of(&live, &second.dir)];
    let list = live.succeed(&["list", &pid]);
    for expected in [
        format!("process {pid} (e2e-live), in 2 sessions; "),
        format!("  session 1  {}\n  rule 1  live:tick where number > 20\n", sessions[0]),
        format!("  session 2  {}\n  rule 2  live:tock\n", sessions[1]),
        "  armed    dormant  live:tick".into(),
        "  dormant  armed    live:tock".into(),
    ] {
        assert!(list.contains(&expected), "{expected}: {list}");
    }
    let programs: serde_json::Value = serde_json::from_slice(&live.dormouse(&["list", "--json"]).stdout).unwrap();
    let program = programs["programs"].as_array().unwrap().iter().find(|program| program["pid"] == live.child.id());
    let sessions_of_it = program.unwrap()["sessions"].as_array().unwrap();
    let dirs: Vec<&str> = sessions_of_it.iter().map(|session| session["dir"].as_str().unwrap()).collect();
    let both = [&first.dir, &second.dir].map(|dir| dir.to_str().unwrap());
    assert!(dirs.len() == 2 && both.iter().all(|dir| dirs.contains(dir)), "{programs}");
    // A command that concerns one session names it.
    for command in [&["arm", &pid, "*"][..], &["disarm", &pid, "*"], &["rule", &pid, "live:*"]] {
        let told = live.fail(command);
        assert!(told.contains("several sessions; name one") && sessions.iter().all(|is| told.contains(is)), "{told}");
    }
    let armed = live.succeed(&["arm", &pid, "live:*", "--session", second.dir.to_str().unwrap()]);
    assert_eq!(
        armed,
        format!("armed 1 of 2 event classes of process {pid}; the others were already armed, 2 in all\n")
    );
    let disarmed = live.succeed(&["disarm", &pid, "live:tock", "--session", &sessions[1]]);
    assert_eq!(disarmed, format!("disarmed 1 event class of process {pid}, 1 still armed\n"));
    live.wait_for_rounds();
    let first = first.end();
    let list = live.succeed(&["list", &pid]);
    assert!(list.contains(&format!("in the session {}; ", sessions[1])), "{list}");
    live.wait_for_rounds();
    let second = second.end();
    let list = live.succeed(&["list", &pid]);
    assert!(list.contains("in no session") && list.matches("dormant").count() == 2, "{list}");
    live.end();

    let numbers = |trace: &Trace, class: &str| -> Vec<u64> {
        let number = |values: String| values.split([' ', '=']).nth(2).unwrap().parse().unwrap();
        trace.values(class).into_iter().map(number).collect()
    };
    let ticks = [numbers(&first, "live:tick"), numbers(&second, "live:tick")];
    let is_whole = |ticks: &Vec<u64>| ticks.len() > 10 && ticks.windows(2).all(|two| two[0] + 1 == two[1]);
    assert!(ticks.iter().all(is_whole) && ticks[0][0] > 20, "{ticks:?}");
    // The second recording began during the first, and ended after it.
    let last = |ticks: &Vec<u64>| ticks[ticks.len() - 1];
    assert!(ticks[1][0] < last(&ticks[0]) && last(&ticks[0]) < last(&ticks[1]), "{ticks:?}");
    assert_eq!(first.values("live:tock").len(), 0);
    assert!(!second.values("live:tock").is_empty());
    assert!(first.events().any(|event| event.context.is_some()));
    assert!(second.events().all(|event| event.context.is_none()));
}

#[test]
fn a_program_is_in_no_more_than_32_sessions() {
    let live = Live::start(&BY_THREAD);
    let options = ["-e", "live:tick", "--budget", "64K"];
    let attached: Vec<Attached> =
        (0..32).map(|number| Attached::start(&live, &format!("trace-{number}"), &options)).collect();
    let (_, dir) = live.trace_dir("one-too-many");
    let told = live.fail(&[&["record", "--attach", &live.pid(), "-o", &dir], &options[..]].concat());
    assert!(told.contains("the program is in 32 sessions, the most that it can be in"), "{told}");
    live.wait_for_rounds();
    let list = live.succeed(&["list", &live.pid()]);
    assert!(list.contains("in 32 sessions"), "{list}");
    for attached in attached {
        live.wait_for_rounds();
        let trace = attached.end();
        let stats = trace.stats();
        assert!(stats.events > 0 && stats.is_closed, "{stats:?}");
    }
    assert!(live.succeed(&["list", &live.pid()]).contains("in no session"));
    live.end();
}

#[test]
fn events_already_armed_are_not_counted_as_armed() {
    let live = Live::start(&[]);
    let pid = live.pid();
    let said = live.succeed(&["disarm", &pid, "*"]);
    assert_eq!(said, format!("disarmed 0 of 2 event classes of process {pid}; none was armed\n"));
    let (_, dir) = live.trace_dir("trace");
    let said = live.succeed(&["arm", &pid, "live:tick", "-o", &dir]);
    assert!(said.starts_with(&format!("armed 1 event class of process {pid}, recording into {dir}\n")), "{said}");
    for (words, expected) in [
        (["arm", "*"], "armed 1 of 2 event classes of process PID; the others were already armed, 2 in all\n"),
        (["arm", "*"], "armed 0 of 2 event classes of process PID; all were already armed, 2 in all\n"),
        (["disarm", "live:tick"], "disarmed 1 event class of process PID, 1 still armed\n"),
        (["disarm", "live:tick"], "disarmed 0 of 1 event class of process PID; none was armed, 1 still armed\n"),
        (["disarm", "*"], "disarmed 1 of 2 event classes of process PID; the others were not armed, 0 still armed\n"),
    ] {
        let said = live.succeed(&[words[0], &pid, words[1]]);
        assert!(said.starts_with(&expected.replace("PID", &pid)), "{words:?}: {said}");
    }
}

#[test]
fn options_of_a_new_session_are_refused_in_an_existing_one() {
    let live = Live::start(&[]);
    let pid = live.pid();
    let (_, dir) = live.trace_dir("trace");
    live.succeed(&["arm", &pid, "live:tick", "-o", &dir]);
    let file = live.place.path().join("buffers").to_string_lossy().into_owned();
    let options: [&[&str]; 6] = [
        &["--mode", "overwrite"],
        &["--mode", "discard"],
        &["--budget", "16M"],
        &["--budget-max", "64M"],
        &["--buffers", &file],
        &["--context", "ids"],
    ];
    for option in options {
        let text = live.fail(&[&["arm", &pid, "live:tock"], option].concat());
        let session = format!(
            "process {pid} is already in the session {}",
            live.place.path().join("dormouse/session-").display()
        );
        assert!(
            text.contains(&session) && text.contains(&format!("leave out {}, or add --output DIR", option[0])),
            "{text}"
        );
    }
    assert!(live.succeed(&["list", &pid]).contains("dormant  live:tock"));
    // A directory asks for a session beside it.
    let (beside, beside_text) = live.trace_dir("beside");
    let said = live.succeed(&["arm", &pid, "live:tock where number > 5", "--context", "none", "-o", &beside_text]);
    assert!(
        said.ends_with(&format!("`dormouse disarm {pid} '*' --session {beside_text}` ends the recording\n")),
        "{said}"
    );
    live.wait_for_rounds();
    let ended = live.succeed(&["disarm", &pid, "*", "--session", &beside_text]);
    assert!(ended.contains(" events, 0 lost, 1 process,"), "{ended}");
    assert!(count(&Trace::read(&beside), "live:tock") > 0 && count(&Trace::read(&beside), "live:tick") == 0);
    assert!(live.succeed(&["list", &pid]).contains("armed    live:tick"));
    live.succeed(&["arm", &pid, "live:tock"]);
    live.succeed(&["disarm", &pid, "*"]);
    // Options that concern a new session are obeyed if the program is in none.
    live.succeed(&["arm", &pid, "*", "--mode", "overwrite", "--budget", "1M", "-o", &file]);
    let budget = live.succeed(&["budget", &pid, "--json"]);
    assert!(budget.contains("\"overwrite\"") && budget.contains("\"budget_bytes\": 1048576"), "{budget}");
    live.succeed(&["disarm", &pid, "*"]);
}

#[test]
fn patterns_that_match_nothing_are_named() {
    let emit = [TRACED, "numbers", "1", "10"];
    let said = |record: Record, command: &[&str], code: i32| {
        let recording = record.run(command);
        assert_eq!(recording.code(), code, "{}", recording.stderr);
        let lines = recording.stderr.lines().filter(|line| line.contains(" matches "));
        (lines.map(String::from).collect::<Vec<_>>(), recording.stderr.clone())
    };
    let (lines, _) = said(Record::new().option("-e").option("e2e:*"), &emit, 0);
    assert!(lines.is_empty(), "{lines:?}");
    let (lines, all) = said(
        Record::new().option("-e").option("e2e:numbr").option("-e").option("e2e:*").option("-e").option("libc:read"),
        &emit,
        0,
    );
    // Before the run, by the program's file; at its end, by what programs have announced.
    let in_file = format!("dormouse: no event in {TRACED} matches e2e:numbr; e2e:");
    let needs_libc = "dormouse: no event matches libc:read; add `--libc` ";
    assert_eq!(lines.len(), 4, "{all}");
    assert!(lines[0].starts_with(&in_file) && lines[1].starts_with(needs_libc), "{all}");
    assert!(lines[2].starts_with("dormouse: no event matches e2e:numbr; ") && lines[2].contains("e2e:"), "{all}");
    assert!(lines[3].starts_with(needs_libc), "{all}");
    let (lines, all) = said(Record::new().option("-e").option("a:b"), &["sh", "-c", "exit 5"], 5);
    assert_eq!(lines, ["dormouse: no event matches a:b; there are none"], "{all}");

    let live = Live::start(&[]);
    let (pid, (_, dir)) = (live.pid(), live.trace_dir("trace"));
    for command in [
        &["arm", &pid, "live:*", "nobody", "-o", &dir][..],
        &["arm", &pid, "live:*", "nobody"],
        &["disarm", &pid, "nobody", "*"],
    ] {
        let output = live.dormouse(command);
        let text = String::from_utf8_lossy(&output.stderr);
        let expected = format!("dormouse: no event of process {pid} matches nobody; there are live:tick, live:tock\n");
        assert!(output.status.success() && text == expected, "{text}");
    }
}

/// A file may be run under several names, and a process may change its name.
#[test]
fn a_process_is_shown_with_its_own_name() {
    let record = Record::new();
    let link = record.place().join("redis-server");
    std::os::unix::fs::symlink(TRACED, &link).unwrap();
    let recording = record.run(&[link.as_os_str(), "numbers".as_ref(), "1".as_ref(), "10".as_ref()]).succeeded();
    let dir = recording.dir.to_str().unwrap();
    let said =
        |command: &[&str]| String::from_utf8(Command::new(dormouse()).args(command).output().unwrap().stdout).unwrap();
    assert!(said(&["view", dir]).contains(r#"name = "redis-server", program = "/"#));
    let stats = said(&["stats", dir]);
    assert!(stats.lines().any(|line| line.contains("redis-server  /") && line.ends_with("/e2e-traced")), "{stats}");
    assert!(said(&["stats", "--json", dir]).contains(r#""name": "redis-server""#));

    // The name changes after the process has joined, or in a child that joins afterwards.
    for (word, name) in [("name=1", "worker one"), ("name=2", "a) S\u{fffd}\u{fffd}[2J\u{fffd}")] {
        let record = Record::new().env("DORMOUSE_LISTEN", "thread");
        let end = record.place().join("end");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &end, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut running = record.start(&[
            TRACED.as_ref(),
            "script".as_ref(),
            end.as_os_str(),
            "steps=10".as_ref(),
            word.as_ref(),
            "steps=5".as_ref(),
            "child".as_ref(),
            "steps=7".as_ref(),
            "hold".as_ref(),
        ]);
        running.wait_for("ready");
        let dir = running.dir().to_path_buf();
        let names = || Trace::read(&dir).stats().processes.into_iter().map(|process| process.name).collect::<Vec<_>>();
        running.wait_until("the owner looks at the name", || names() == [name, name]);
        let processes = Trace::read(&dir).processes();
        assert_eq!([&processes[0].name, &processes[1].name], ["e2e-traced", name]);
        let pid = processes[0].vpid.to_string();
        let list = String::from_utf8(running.dormouse(&["list", &pid]).stdout).unwrap();
        assert!(list.starts_with(&format!("process {pid} ({name}), in the session ")), "{list:?}");
        let json: serde_json::Value =
            serde_json::from_slice(&running.dormouse(&["list", &pid, "--json"]).stdout).unwrap();
        assert_eq!(json[0]["name"], name);
        std::fs::write(&end, "").unwrap();
        let stats = running.wait().succeeded().trace().stats();
        let counts: Vec<_> = stats.processes.iter().map(|process| (process.name.as_str(), process.count)).collect();
        assert_eq!(counts, [(name, Some(15)), (name, Some(7))]);
        let table = dormouse_print::StatsTable(&stats).to_string();
        assert!(!table.chars().any(|c| c.is_control() && c != '\n'), "{table}");
    }
}

/// PostgreSQL and Redis overwrite their environments with their titles.
#[test]
fn a_program_without_an_environment_is_found_in_the_tools_directory() {
    let record = Record::new().env("DORMOUSE_LISTEN", "thread");
    let end = record.place().join("end");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &end, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let words = ["steps=3", "title", "hold"].map(std::ffi::OsStr::new);
    let command = [&[TRACED.as_ref(), "script".as_ref(), end.as_os_str()], &words[..]].concat();
    let mut running = record.start(&command);
    running.wait_for("ready");
    let dir = running.dir().to_path_buf();
    running.wait_until("the program's being taken in", || has_joined(&dir, "e2e-traced"));
    let pid = Trace::read(&dir).processes()[0].vpid;
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(!environment.windows(3).any(|window| window == b"XDG"));
    let output = running.dormouse(&["list", &pid.to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(&end, "").unwrap();
    running.wait().succeeded();
}

/// An option that is given is not recommended.
#[test]
fn libc_is_not_recommended_if_it_was_given() {
    let said = |record: Record| record.run(&["true"]).succeeded().stderr;
    let text = said(Record::new());
    assert!(text.contains("no process joined") && text.contains("`dormouse record --libc -- CMD` traces"), "{text}");
    let record = Record::new();
    let library = record.place().join("library.so");
    std::fs::write(&library, "the loader takes this for no library").unwrap();
    let text = said(record.option("--libc").env("DORMOUSE_LIBC_LIBRARY", &library));
    assert!(!text.contains("record --libc"), "{text}");
    let told = format!("no process joined: `true` was to load {}, which is not a Dormouse library", library.display());
    assert!(text.contains(&told), "{text}");
}

#[test]
fn the_end_of_the_program_completes_the_trace() {
    let live = Live::start(&[]);
    let (dir, dir_text) = live.trace_dir("trace");
    live.succeed(&["arm", &live.pid(), "*", "-o", &dir_text]);
    live.wait_for_rounds();
    // The session owner's last action is to replace the first metadata by the final ones.
    let metadata = || std::fs::metadata(dir.join("metadata")).unwrap().ino();
    let first = metadata();
    // The program's directory must outlive the program here.
    let mut live = live;
    drop(live.child.stdin.take());
    live.child.wait().unwrap();
    wait_until("the session ends with the program", || metadata() != first);
    let trace = Trace::read(&dir);
    assert!(count(&trace, "live:tick") > 0);
}

#[test]
fn a_foreground_recorder_joins_and_leaves() {
    let live = Live::start(&BY_THREAD);
    let (dir, dir_text) = live.trace_dir("trace");
    let recorder = Command::new(dormouse())
        .args(["record", "--attach", &live.pid(), "-e", "live:tock", "-o", &dir_text])
        .env("XDG_RUNTIME_DIR", live.place.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("events arrive", || live.succeed(&["list", &live.pid()]).contains("armed    live:tock"));
    live.wait_for_rounds();
    kill_process(Pid::from_child(&recorder), Signal::INT).unwrap();
    let output = recorder.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains(" events, 0 lost, 1 process,"), "{text}");
    let trace = Trace::read(&dir);
    assert!(count(&trace, "live:tock") > 0 && count(&trace, "live:tick") == 0);
    assert_eq!(live.end(), 0);
}

#[test]
fn unreachable_programs_are_reported_in_one_line() {
    let live = Live::start(&BY_THREAD);
    let pid = live.pid();
    let mut stranger = Command::new("sleep").arg("infinity").spawn().unwrap();
    for command in ["list", "arm", "disarm"] {
        let pattern: &[&str] = if command == "list" { &[] } else { &["*"] };
        let text = live.fail(&[&[command, "4194304"], pattern].concat());
        assert!(text.contains("there is no process 4194304"), "{text}");
        let text = live.fail(&[&[command, &stranger.id().to_string()], pattern].concat());
        assert!(text.contains("has no Dormouse tracepoints"), "{text}");
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    let text = live.fail(&["arm", &pid, "nobody:*"]);
    assert!(text.contains("matches nobody:*; there are live:tick, live:tock"), "{text}");
    let text = live.fail(&["disarm", &pid, "nobody:*"]);
    assert!(text.contains("matches nobody:*"), "{text}");
    let occupied = live.place.path().to_string_lossy().into_owned();
    let text = live.fail(&["arm", &pid, "*", "-o", &occupied]);
    assert!(text.contains("exists and is not empty"), "{text}");
    let text = live.fail(&["record", "--attach", "4194304"]);
    assert!(text.contains("there is no process"), "{text}");
    assert_eq!(live.end(), 0);

    let silent = Live::start(&[("DORMOUSE_LISTEN", "0")]);
    let text = silent.fail(&["list", &silent.pid()]);
    assert!(text.contains("DORMOUSE_LISTEN=0"), "{text}");
}

/// A program's answers are about itself, and root's tools trust them no more than other users' tools do.
#[test]
fn no_session_ends_because_of_what_another_program_answers() {
    let live = Live::start(&[]);
    let (_, dir_text) = live.trace_dir("trace");
    live.succeed(&["arm", &live.pid(), "*", "-o", &dir_text]);
    let listed: serde_json::Value =
        serde_json::from_slice(&live.dormouse(&["list", &live.pid(), "--json"]).stdout).unwrap();
    let session = listed[0]["sessions"][0]["session"].as_str().unwrap().to_string();
    // This process listens in its own name, and claims to be in that session with its last event just disarmed.
    let me = std::process::id();
    let path = live.place.path().join("dormouse").join(program_socket_name(me, 0));
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let answer = |question: &ToolToProgram| match question {
        ToolToProgram::List => {
            let (sessions, classes, patching) = (vec![session.clone()], Vec::new(), String::new());
            ProgramToTool::Classes { sessions, classes, patching }
        }
        _ => ProgramToTool::Changed { matched: 1, changed: 1, armed: 0, sessions: vec![(session.clone(), 0)] },
    };
    let (said, disarmed) = std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let mut said = 0;
            loop {
                let (stream, _) = listener.accept().unwrap();
                match Conversation::answer(stream.into(), &[Edge::ToolProgram], Deadline::after(PATIENCE)) {
                    Ok(mut conversation) => {
                        let question: ToolToProgram = conversation.receive().unwrap();
                        said += usize::from(conversation.send(&answer(&question)).is_ok());
                    }
                    // The test itself sent bytes that are not Dormouse's protocol.
                    Err(Failure::Mismatch(_)) => return said,
                    Err(_) => {}
                }
            }
        });
        let disarmed = live.dormouse(&["disarm", &me.to_string(), "*"]);
        UnixStream::connect(&path).unwrap().write_all(&[0]).unwrap();
        (answering.join().unwrap(), disarmed)
    });
    let text = String::from_utf8_lossy(&disarmed.stdout).into_owned();
    // The message says that the session goes on, with the owner's reason.
    let refusal = String::from_utf8_lossy(&disarmed.stderr).into_owned();
    assert!(said > 0 && disarmed.status.code() == Some(2) && !text.contains("events, "), "{said} {text}");
    assert!(refusal.contains(&format!("process {me} is not in this session, which goes on")), "{refusal}");
    assert_eq!(refusal.lines().count(), 1, "{refusal}");
    assert!(live.succeed(&["list", &live.pid()]).contains("armed    live:tick"));
    // The program that is in the session may end it.
    assert!(live.succeed(&["disarm", &live.pid(), "*"]).contains(" events, 0 lost, 1 process,"));
    live.end();
}

#[test]
fn status_prints_use_and_limits() {
    let live = Live::start(&[]);
    let pid = live.pid();
    let text = live.fail(&["status", &pid]);
    assert!(text.contains("is in no session"), "{text}");
    let (dir, dir_text) = live.trace_dir("trace");
    live.succeed(&["arm", &pid, "*", "-o", &dir_text]);
    let status: serde_json::Value = serde_json::from_slice(&live.dormouse(&["status", &pid, "--json"]).stdout).unwrap();
    for (name, count) in
        [("processes", 1), ("processes_joined", 1), ("programs_refused", 0), ("classes", 2), ("clients_dropped", 0)]
    {
        assert_eq!(status[name], count, "{name}: {status}");
    }
    for name in ["descriptors", "processes", "clients", "classes"] {
        let [count, max] = [name.to_string(), format!("{name}_max")].map(|name| status[name].as_u64().unwrap());
        assert!(0 < count && count < max, "{name}: {status}");
    }
    assert!(status["disk_bytes"].as_u64().unwrap() > 0 && status["disk_bytes_max"].is_null(), "{status}");
    assert_eq!(status["dir"], dir.canonicalize().unwrap().to_str().unwrap());
    // The owner has raised its descriptor limit, and the only existing session needs no name.
    let owner = status["owner"].as_u64().unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{owner}/limits")).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let limits: Vec<&str> = limit.split_whitespace().skip(3).take(2).collect();
    assert_eq!((limits[0], limits[0]), (limits[1], status["descriptors_max"].to_string().as_str()));
    let text = live.succeed(&["status"]);
    assert!(text.contains(&format!("owner {owner}, trace ")), "{text}");
    assert!(text.contains("1 of at most") && text.contains("disk bytes") && text.contains("no limit"), "{text}");
    live.succeed(&["disarm", &pid, "*"]);
    live.end();
}

#[test]
fn a_command_has_the_limit_of_descriptors_that_its_recorder_was_started_with() {
    let place = tempfile::tempdir().unwrap();
    let script = format!(
        "ulimit -Sn 64 && exec {} record -o {} -- sh -c 'ulimit -Sn'",
        dormouse().display(),
        place.path().join("t").display()
    );
    let output = Command::new("sh").args(["-c", &script]).env("XDG_RUNTIME_DIR", place.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "64\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn another_users_process_is_refused() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return skip(Lack::machine("only root can become another user", "run the tests as root"));
    }
    let live = Live::start(&[]);
    // A directory where every user may run it.
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = place.path().join("dormouse");
    copy_program(dormouse(), &copy);
    for arguments in [vec!["list"], vec!["arm", "*"], vec!["disarm", "*"], vec!["record", "--attach"]] {
        let mut command = Command::new(&copy);
        // The pid follows the command's name, or is the last argument.
        let pid = live.pid();
        let mut words: Vec<&str> = arguments.clone();
        let at = if words[0] == "record" { words.len() } else { 1 };
        words.insert(at, &pid);
        let output = command.args(words).uid(65_534).gid(65_534).current_dir("/").output().unwrap();
        let text = one_line(&output);
        assert!(text.contains("belongs to user 0; run dormouse as that user or as root"), "{text}");
    }
}

#[test]
fn readers_agree_with_babeltrace2() {
    // One thread: readers need not agree on the order of events of two CPUs in the same nanosecond.
    let recording = Record::new().run(&[TRACED, "numbers", "1", "1000"]).succeeded();
    let dir = recording.dir.as_path();
    let view = Command::new(dormouse()).arg("view").arg(dir).output().unwrap();
    assert_eq!(view.status.code(), Some(0));
    let stats = Command::new(dormouse()).args(["stats", "--json"]).arg(dir).output().unwrap();
    assert_eq!(stats.status.code(), Some(0));
    let stats: String = String::from_utf8(stats.stdout).unwrap();
    assert!(stats.contains("\"events\": 1000,") && stats.contains("\"events_lost\": 0,"), "{stats}");
    // For babeltrace2, the session's own records are events too: the session, and the process that joined with its context.
    let Some(count) = babeltrace2_count(dir) else { return };
    assert_eq!(count, 1003);
    assert!(stats.contains("\"state_events\": 3,"), "{stats}");
    let theirs = Command::new("babeltrace2").arg(dir).output().unwrap();
    assert!(theirs.stdout == view.stdout, "`dormouse view` and babeltrace2 print different text");
}

#[test]
fn readers_report_damage() {
    let nowhere = Command::new(dormouse()).args(["stats", "/nonexistent"]).output().unwrap();
    assert!(one_line(&nowhere).contains("there is no trace in /nonexistent"));
    let recording = Record::new().run(&[TRACED, "numbers", "1", "5000"]).succeeded();
    let dir = recording.dir.as_path();
    let stream =
        std::fs::read_dir(dir).unwrap().flatten().find(|entry| entry.file_name().to_string_lossy().starts_with("cpu_"));
    let stream = stream.unwrap().path();
    let whole = std::fs::read(&stream).unwrap();
    std::fs::write(&stream, &whole[..whole.len() - 100]).unwrap();
    for command in ["view", "stats"] {
        let output = Command::new(dormouse()).arg(command).arg(dir).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(!output.stdout.is_empty());
        let said = String::from_utf8_lossy(if command == "view" { &output.stderr } else { &output.stdout });
        assert!(said.contains("is cut off"), "{said}");
    }
    std::fs::write(dir.join("metadata"), "trace {}").unwrap();
    let cut = Command::new(dormouse()).arg("view").arg(dir).output().unwrap();
    assert!(one_line(&cut).contains("the declaration on line 1 is cut off"));
}
