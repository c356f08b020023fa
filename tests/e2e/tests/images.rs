//! Attribution of events to programs, when processes execute other programs.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dormouse_e2e::run::{Record, Recording, Running, dormouse};
use dormouse_e2e::trace::Trace;
use dormouse_testing::wait_until;
use rustix::process::Signal;
use serde_json::Value;

const IMAGES: &str = env!("CARGO_BIN_EXE_e2e-images");

/// Processes that keep all CPUs busy, until this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn start(count: usize) -> Load {
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        Load((0..count).map(|_| spin()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns a link to the program's file; a process that executes it gets the link's name.
fn named(record: &Record, name: &str) -> PathBuf {
    let path = record.place().join(name);
    std::os::unix::fs::symlink(IMAGES, &path).unwrap();
    path
}

/// Returns the number of events by process name, and by class name.
fn counts(recording: &Recording) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let stats = recording.trace().stats();
    let (mut by_process, mut by_class) = (BTreeMap::new(), BTreeMap::new());
    for process in stats.processes.iter().filter(|process| process.count.is_some_and(|count| count > 0)) {
        *by_process.entry(process.name.clone()).or_default() += process.count.unwrap();
    }
    for class in &stats.classes {
        *by_class.entry(class.name.clone()).or_default() += class.count;
    }
    (by_process, by_class)
}

/// An event's name tells which program has written it.
#[test]
fn events_after_exec_belong_to_the_new_program() {
    const COUNT: u64 = 2_000;
    for (mode, load) in [("discard", 4), ("overwrite", 0)] {
        let _load = Load::start(load);
        let record = Record::new().budget("64M").mode(mode);
        let behind = named(&record, "behind");
        let recording = record.run(&[IMAGES, "replaced", behind.to_str().unwrap(), &COUNT.to_string(), "4"]);
        let (by_process, by_class) = counts(&recording.succeeded());
        let of = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        assert_eq!(of(&by_class, "images:before"), COUNT);
        // On a busy machine, the 50 ms of some programs may pass.
        assert!(of(&by_class, "images:behind") > 0);
        assert_eq!(of(&by_process, "e2e-images"), of(&by_class, "images:before"), "{by_process:?}");
        assert_eq!(of(&by_process, "behind"), of(&by_class, "images:behind"), "{by_process:?}");
    }
}

/// Returns a recording's summary for programs.
fn summary(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Repeats an attempt with growing patience until it succeeds: a session looks a few times a second for changes that it
/// is not told of.
fn seen_sooner_or_later(mut attempt: impl FnMut(Duration) -> Option<()>) {
    let mut patience = Duration::from_millis(200);
    while attempt(patience).is_none() {
        patience *= 2;
        assert!(patience < Duration::from_secs(100), "it is not seen");
    }
}

/// An attached program, and the tool that records it.
struct Attached {
    place: tempfile::TempDir,
    program: Child,
    tool: Child,
}

impl Attached {
    fn start(program: &[&str]) -> Attached {
        let place = tempfile::tempdir().unwrap();
        let mut start = Command::new(IMAGES);
        start.arg("executes").args(program).env("XDG_RUNTIME_DIR", place.path()).stdout(Stdio::null());
        let program = start.stdin(Stdio::piped()).spawn().unwrap();
        let mut record = Command::new(dormouse());
        record.args(["record", "--attach", &program.id().to_string(), "-o"]).arg(place.path().join("trace"));
        record.arg("--summary").arg(place.path().join("summary")).env("XDG_RUNTIME_DIR", place.path());
        let tool = record.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Attached { place, program, tool }
    }

    fn is_recorded(&self) -> bool {
        let mut list = Command::new(dormouse());
        list.args(["list", "--json", &self.program.id().to_string()]).env("XDG_RUNTIME_DIR", self.place.path());
        let listed: Value = serde_json::from_slice(&list.output().unwrap().stdout).unwrap_or_default();
        listed[0]["sessions"].as_array().is_some_and(|sessions| !sessions.is_empty())
    }

    fn exe(&self) -> PathBuf {
        std::fs::read_link(format!("/proc/{}/exe", self.program.id())).unwrap()
    }

    fn write(&mut self) {
        self.program.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Lets the program end. Returns the tool's output, its summary and the trace.
    fn end(mut self) -> (String, Value, Trace) {
        drop(self.program.stdin.take());
        assert!(self.program.wait().unwrap().success());
        let output = self.tool.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let summary = summary(&self.place.path().join("summary"));
        (String::from_utf8(output.stderr).unwrap(), summary, Trace::read(&self.place.path().join("trace")))
    }
}

#[test]
fn an_attached_program_is_still_recorded_after_it_executes_itself() {
    let mut attached = Attached::start(&[IMAGES, "executes"]);
    wait_until("it is recorded", || attached.is_recorded());
    attached.write();
    let command_line = format!("/proc/{}/cmdline", attached.program.id());
    let has_executed = || std::fs::read(&command_line).unwrap().ends_with(b"\0executes\0");
    wait_until("it is recorded again", || has_executed() && attached.is_recorded());
    let pid = attached.program.id();
    let (said, summary, trace) = attached.end();
    assert!(
        said.contains(&format!("process {pid} has executed ")) && said.contains("has joined a moment later"),
        "{said}"
    );
    assert_eq!(summary["executed"][0]["is_recorded"], true, "{summary}");
    let rows = trace.processes();
    assert_eq!(rows.iter().filter(|row| row.vpid == pid).count(), 2, "{rows:?}");
}

#[test]
fn exec_of_a_program_without_tracepoints_is_reported() {
    seen_sooner_or_later(|patience| {
        let mut attached = Attached::start(&["cat"]);
        wait_until("it is recorded", || attached.is_recorded());
        let before = attached.exe();
        attached.write();
        wait_until("it is another program", || attached.exe() != before);
        let (pid, cat) = (attached.program.id(), attached.exe());
        std::thread::sleep(patience);
        let (said, summary, _) = attached.end();
        let executed = summary["executed"].as_array().unwrap().first()?.clone();
        let named = format!("process {pid} has executed {} and is not recorded any more", cat.display());
        assert!(said.contains(&named), "{said}");
        assert_eq!(executed["is_recorded"], false);
        Some(())
    });
}

/// Starts a daemon whose starter has ended.
fn daemon(record: Record) -> (Running, PathBuf, u64) {
    let end = record.place().join("end");
    let summary = record.place().join("summary");
    let mut running = record.option("--summary").option(&summary).start(&[IMAGES, "daemon", end.to_str().unwrap()]);
    running.wait_until("the daemon's start", || !numbers(&summary, "daemon ").is_empty());
    let daemon = numbers(&summary, "daemon ")[0];
    (running, end, daemon)
}

/// Returns numbers from the command's output, which is in a file beside that of the summary.
fn numbers(summary: &Path, word: &str) -> Vec<u64> {
    let stdout = std::fs::read_to_string(summary.with_file_name("stdout")).unwrap_or_default();
    stdout.lines().filter_map(|line| line.strip_prefix(word)?.parse().ok()).collect()
}

#[test]
fn a_daemon_that_continues_is_named() {
    let (running, _, daemon) = daemon(Record::new());
    let recording = running.wait().succeeded();
    let line = recording.stderr.lines().last().unwrap();
    let named = format!(
        "; 1 process still running and not recorded any more (`--wait-all` records to its end): e2e-images ({daemon})"
    );
    assert!(line.contains(&named), "{line}");
    let summary = summary(&recording.place().join("summary"));
    assert_eq!(summary["still_running"], serde_json::json!([{ "pid": daemon, "name": "e2e-images" }]));
}

#[test]
fn wait_all_records_a_daemon_to_its_end() {
    let (running, end, _) = daemon(Record::new().option("--wait-all"));
    let starter = running.numbers("starter ")[0];
    wait_until("the command's end", || !Path::new(&format!("/proc/{starter}")).exists());
    std::fs::write(end, "").unwrap();
    let recording = running.wait().succeeded();
    let events = recording.trace().stats().events;
    assert_eq!(recording.numbers("ticks "), [events]);
    assert_eq!(summary(&recording.place().join("summary"))["still_running"], serde_json::json!([]));
}

#[test]
fn a_signal_ends_a_recording_that_waits_for_a_daemon() {
    let (mut running, _, daemon) = daemon(Record::new().option("--wait-all"));
    let pid = running.pid();
    // It has noticed the command's end, and waits for a signal.
    running.wait_until("the command's end", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.any(|name| name.starts_with("dormouse-interr"))
    });
    running.kill(Signal::INT);
    let recording = running.wait().succeeded();
    assert!(
        recording.stderr.lines().last().unwrap().contains(&format!("e2e-images ({daemon})")),
        "{}",
        recording.stderr
    );
}

#[test]
fn a_program_outside_the_session_is_named() {
    seen_sooner_or_later(|patience| {
        let record = Record::new();
        let (end, path) = (record.place().join("end"), record.place().join("summary"));
        let running = record.option("--summary").option(&path).start(&[IMAGES, "locked-out", end.to_str().unwrap()]);
        std::thread::sleep(patience);
        std::fs::write(&end, "").unwrap();
        let recording = running.wait().succeeded();
        let summary = summary(&path);
        let unjoined = summary["unjoined"].as_array().unwrap();
        let reason = unjoined.first()?["reason"].as_str().unwrap();
        assert!(reason.contains("its environment was cleared, and lacks DORMOUSE_SESSION"), "{reason}");
        assert!(recording.stderr.contains(reason) && !recording.stderr.contains("--libc"), "{}", recording.stderr);
        assert_eq!(unjoined.len(), 1);
        Some(())
    });
}

#[test]
fn the_commands_program_is_named_if_no_process_joined() {
    let recording = Record::new().run(&["true", IMAGES]).succeeded();
    let line = recording.stderr.lines().last().unwrap();
    assert!(line.contains(&format!("`{IMAGES}`, an argument of `true`, has Dormouse tracepoints")), "{line}");
    assert!(line.contains("lacks DORMOUSE_SESSION") && !line.contains("--libc"), "{line}");
}
