//! Snapshots of a flight recorder that is written to.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dormouse_control::Take;
use dormouse_e2e::run::{Record, Running, babeltrace2_count};
use dormouse_e2e::trace::Trace;
use dormouse_tools::{SessionSocket, ask_for_snapshot};
use rustix::fs::{FileType, Mode};
use rustix::process::Signal;

use crate::{TINY, TRACED};

const THREADS: &str = "4";

/// Number of snapshots of each flight recorder, unless the environment variable of this name sets another.
const SNAPSHOTS: (&str, u32) = ("DORMOUSE_SNAPSHOTS", 16);

fn snapshot_count() -> u32 {
    std::env::var(SNAPSHOTS.0).ok().and_then(|text| text.parse().ok()).unwrap_or(SNAPSHOTS.1)
}

fn start(record: Record) -> (Running, std::path::PathBuf) {
    let end = record.place().join("end");
    let command = [TRACED.as_ref(), "until".as_ref(), end.as_os_str(), THREADS.as_ref()];
    let mut running = record.start(&command);
    running.wait_for("ready");
    (running, end)
}

/// Starts a program that emits a thousand events, and then waits at a FIFO until [`finish`].
pub(crate) fn hold(record: Record) -> (Running, std::path::PathBuf) {
    let end = record.place().join("end");
    rustix::fs::mknodat(rustix::fs::CWD, &end, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut running = record.start(&[TRACED.as_ref(), "hold".as_ref(), end.as_os_str(), "1000".as_ref()]);
    running.wait_for("ready");
    (running, end)
}

pub(crate) fn finish((running, end): (Running, std::path::PathBuf)) {
    std::fs::write(end, "").unwrap();
    running.wait().succeeded();
}

/// Asserts that every packet is whole, and that no thread's numbers have a hole from the time on at which no stream has
/// overwritten anything.
pub(crate) fn check(trace: &Trace) -> u64 {
    let stats = trace.stats();
    assert_eq!(stats.events_lost, 0, "{stats:?}");
    assert!(stats.is_closed && stats.warnings.is_empty(), "{stats:?}");
    trace.steps();
    for ((_, thread), numbers) in trace.steps_since(trace.complete_since()) {
        let hole = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
        assert_eq!(hole, None, "thread {thread}");
    }
    stats.events
}

/// Takes many snapshots, each at a different moment, while writers never rest.
fn many(record: Record) {
    let session = start(record.mode("overwrite"));
    let dir = session.0.place().join("snapshot");
    let (mut events, mut missed) = (0, 0);
    for number in 0..snapshot_count() {
        // Everything, the last moment, or a few pages.
        let wanted = Take {
            dir: Some(dir.clone()),
            last: (number % 3 == 1).then_some(Duration::from_millis(2)),
            bytes_max: (number % 3 == 2).then_some(100_000),
            trigger: format!("test {number}"),
        };
        let snapshot = ask_for_snapshot(&SessionSocket::at(&session.0.session()).unwrap(), &wanted).unwrap();
        assert_eq!((snapshot.pages_refused, Path::new(&snapshot.dir)), (0, &*dir));
        assert_eq!(check(&Trace::read(&dir)), snapshot.events, "snapshot {number}");
        if let (0, Some(count)) = (number % 8, babeltrace2_count(&dir)) {
            let all = Trace::read(&dir).events().count() as u64;
            assert_eq!(count, all);
        }
        assert!(wanted.bytes_max.is_none_or(|max| snapshot.bytes <= max), "{snapshot:?}");
        (events, missed) = (events + snapshot.events, missed + snapshot.pages_missed);
        std::fs::remove_dir_all(&dir).unwrap();
    }
    println!("{events} events, {missed} pages missed");
    assert!(events > 0);
    finish(session);
}

#[test]
fn snapshots_during_writes_are_complete() {
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        many(Record::new().budget("1M").rseq(rseq).context(context));
    }
}

#[test]
fn snapshots_of_a_tiny_flight_recorder_are_complete() {
    many(Record::new().budget(TINY));
    many(Record::new().budget(TINY).context("none"));
}

/// No page can be held, and most are overwritten while they are copied.
#[test]
fn snapshots_of_a_flight_recorder_that_cannot_grow_are_complete() {
    many(Record::new().budget(TINY).option("--budget-max").option(TINY));
}

#[test]
fn a_snapshot_has_every_event_that_was_committed() {
    for rseq in [true, false] {
        let (running, end) = hold(Record::new().mode("overwrite").rseq(rseq));
        let dir = running.place().join("snapshot");
        let output = running.dormouse(&["snapshot".as_ref(), "--json".as_ref(), "-o".as_ref(), dir.as_os_str()]);
        assert!(output.status.success(), "{output:?}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((json["events"].as_u64(), json["dir"].as_str()), (Some(1_000), dir.to_str()));
        let trace = Trace::read(&dir);
        check(&trace);
        assert_eq!(trace.steps().into_values().collect::<Vec<_>>(), [(0..1_000).collect::<Vec<u64>>()]);
        finish((running, end));
    }
}

#[test]
fn impossible_snapshots_are_errors() {
    let session = start(Record::new());
    let refused = ask_for_snapshot(&SessionSocket::at(&session.0.session()).unwrap(), &Take::default()).unwrap_err();
    assert!(refused.to_string().contains("--mode overwrite"), "{refused}");
    finish(session);

    let session = start(Record::new().mode("overwrite"));
    let occupied = Take { dir: Some(session.0.place().into()), ..Take::default() };
    let refused = ask_for_snapshot(&SessionSocket::at(&session.0.session()).unwrap(), &occupied).unwrap_err();
    assert!(refused.to_string().contains("is not empty"), "{refused}");
    // Numbered directories beside the session's trace.
    for number in 1..3 {
        let snapshot = ask_for_snapshot(&SessionSocket::at(&session.0.session()).unwrap(), &Take::default()).unwrap();
        let dir = session.0.place().join(format!("trace-snapshot-{number}"));
        assert_eq!(Path::new(&snapshot.dir), dir);
        assert_eq!(Trace::read(&dir).stats().events, snapshot.events);
    }
    let output = session.0.dormouse(&["snapshot", "1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    finish(session);
}

/// Runs a program that ends in some way after a thousand events, and checks the snapshot that it has requested
/// meanwhile.
fn ended(how: &str, triggers: &str, trigger: Option<&str>) -> i32 {
    let record = Record::new().mode("overwrite").option("--snapshot-on").option(triggers);
    let recording = record.run(&[TRACED, "end", how, "1000"]);
    let dir = recording.place().join("trace-snapshot-1");
    let Some(trigger) = trigger else {
        assert!(!dir.exists(), "{how}");
        return recording.code();
    };
    let trace = Trace::read(&dir);
    check(&trace);
    // The last event before the end is there, and so are all the others.
    assert_eq!(trace.steps().into_values().collect::<Vec<_>>(), [(0..1_000).collect::<Vec<u64>>()], "{how}");
    assert_eq!(
        trace.values("dormouse:snapshot")[0],
        format!("trigger=str {trigger:?} pages_missed=u64 0 pages_refused=u64 0")
    );
    assert!(!recording.place().join("trace-snapshot-2").exists(), "one crash, one snapshot: {how}");
    recording.code()
}

#[test]
fn a_crash_triggers_a_snapshot_and_ends_as_without_one() {
    for (how, trigger) in [
        ("segv", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("overflow", "SIGSEGV"),
        ("thread", "SIGSEGV"),
        ("trap", "SIGTRAP"),
        ("ignored", "SIGTRAP"),
        ("forbidden", "SIGSYS"),
    ] {
        let alone = Command::new(TRACED).args(["end", how, "1000"]).output().unwrap().status;
        let code = alone.code().or(alone.signal().map(|signal| 128 + signal)).unwrap();
        assert_eq!(ended(how, "crash", Some(trigger)), code, "{how}");
    }
    assert_eq!(ended("panic", "panic,crash", Some("panic")), 101);
    assert_eq!(ended("exit", "exit", Some("exit")), 3);
    assert_eq!(ended("exit", "crash", None), 3);
    // A signal that the program handles is not a crash; one that its handler leaves to the system is.
    assert_eq!(ended("handled", "crash", None), 0);
    // A signal that is sent is not a stack overflow: Rust's runtime restores the default action and continues.
    assert_eq!(ended("raise", "crash", None), 0);
    assert_eq!(ended("given-up", "crash", Some("SIGSEGV")), 139);
    assert_eq!(ended("panic", "crash", None), 101);
}

#[test]
fn a_signal_triggers_a_snapshot_and_the_program_continues() {
    let (mut running, end) = hold(Record::new().mode("overwrite").option("--snapshot-on").option("USR2"));
    for number in 1..3 {
        // `dormouse record` passes it on.
        running.kill(Signal::USR2);
        let dir = running.place().join(format!("trace-snapshot-{number}"));
        running.wait_until("a snapshot", || dir.join("metadata").exists());
        let trace = Trace::read(&dir);
        check(&trace);
        assert_eq!(trace.steps().into_values().map(|numbers| numbers.len()).sum::<usize>(), 1_000);
    }
    finish((running, end));
}

#[test]
fn invalid_triggers_are_refused() {
    let refused = |mode: &str, triggers: &str| {
        let recording = Record::new().mode(mode).option("--snapshot-on").option(triggers).run(&[TRACED, "idle"]);
        assert_eq!(recording.code(), 2);
        recording.stderr
    };
    assert!(refused("overwrite", "KILL").contains("`KILL` is not a trigger"));
    assert!(refused("overwrite", "event:failed").contains("write PROVIDER:NAME"));
    assert!(refused("overwrite", "duration:a:b..c:d").contains("has no limit"));
    assert!(refused("overwrite", &["event:a:b"; 17].join(",")).contains("16 are possible"));
    assert!(refused("discard", "crash").contains("--mode overwrite"));
}

/// Starts a flight recorder with these triggers, of a program that does the actions in `words`.
fn script(rseq: bool, triggers: &str, words: &[&str]) -> (Running, std::path::PathBuf) {
    let record = Record::new().mode("overwrite").option("--snapshot-on").option(triggers).rseq(rseq);
    let end = record.place().join("end");
    rustix::fs::mknodat(rustix::fs::CWD, &end, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut command = vec![TRACED.as_ref(), "script".as_ref(), end.as_os_str()];
    command.extend(words.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    (record.start(&command), end)
}

/// Returns the snapshots of a recording in order: the trace, and the trigger of each.
fn snapshots(place: &std::path::Path) -> Vec<(Trace, String)> {
    let dirs = (1..).map(|number| place.join(format!("trace-snapshot-{number}"))).take_while(|dir| dir.exists());
    let read = |dir: std::path::PathBuf| {
        let trace = Trace::read(&dir);
        let stats = trace.stats();
        assert_eq!((stats.events_lost, stats.warnings.len()), (0, 0), "{stats:?}");
        if let Some(count) = babeltrace2_count(&dir) {
            assert_eq!(count, trace.events().count() as u64);
        }
        let record = trace.values("dormouse:snapshot").remove(0);
        let trigger = record.strip_prefix("trigger=str \"").and_then(|rest| rest.split_once('"'));
        let trigger = trigger.unwrap_or_else(|| panic!("{record}")).0.to_string();
        (trace, trigger)
    };
    dirs.map(read).collect()
}

/// Splits a trigger's text into the trigger and its number of firings.
fn firings(text: &str) -> (&str, u64) {
    match text.rsplit_once(", ").and_then(|(trigger, times)| Some((trigger, times.strip_suffix(" times")?))) {
        Some((trigger, times)) => (trigger, times.parse().unwrap()),
        None => (text, 1),
    }
}

/// Runs a program with these actions to its end, and returns how often each trigger has fired, by the snapshots.
fn fired(rseq: bool, triggers: &str, words: &[&str]) -> Vec<(String, u64)> {
    let recording = script(rseq, triggers, words).0.wait().succeeded();
    let mut sums: Vec<(String, u64)> = Vec::new();
    for (_, text) in snapshots(recording.place()) {
        let (trigger, times) = firings(&text);
        match sums.iter_mut().find(|(known, _)| known == trigger) {
            Some((_, sum)) => *sum += times,
            None => sums.push((trigger.into(), times)),
        }
    }
    sums.sort();
    sums
}

#[test]
fn an_event_triggers_a_snapshot_that_contains_it() {
    for rseq in [true, false] {
        let words = ["steps=1000", "fail", "hold", "tick"];
        let (mut running, end) = script(rseq, "event:e2e:fa*", &words);
        running.wait_for("ready");
        let dir = running.place().join("trace-snapshot-1");
        running.wait_until("a snapshot", || dir.join("metadata").exists());
        let (trace, trigger) = snapshots(running.place()).remove(0);
        assert_eq!(trigger, "event:e2e:fa*");
        assert_eq!(trace.steps().into_values().collect::<Vec<_>>(), [(0..1_000).collect::<Vec<u64>>()]);
        assert_eq!(trace.values("e2e:fail"), ["number=u64 0"]);
        let last = trace.events().last().unwrap();
        assert!(last.class.full_name == "e2e:fail" || last.class.full_name.starts_with("dormouse:"), "{last:?}");
        std::fs::write(end, "").unwrap();
        let recording = running.wait().succeeded();
        assert_eq!(recording.trace().values("e2e:tick").len(), 1, "it went on");
        assert_eq!(snapshots(recording.place()).len(), 1);
    }
}

/// Each firing is reported once, even if several came together. Firings without a snapshot yet get one when the program
/// ends.
#[test]
fn firings_are_counted() {
    for rseq in [true, false] {
        let words = ["fail=1000", "fail=234"];
        assert_eq!(fired(rseq, "event:e2e:fail", &words), [("event:e2e:fail".into(), 1_234)]);
    }
    // Two triggers for one class, and classes that were not requested.
    let recording = Record::new()
        .mode("overwrite")
        .option("--snapshot-on")
        .option("event:e2e:fail,event:e2e:f?il")
        .option("-e")
        .option("e2e:step")
        .run(&[TRACED, "script", "/", "steps=8", "fail=3", "tick"])
        .succeeded();
    let all = snapshots(recording.place());
    let mut texts: Vec<&str> = all.iter().map(|(_, text)| firings(text).0).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts, ["event:e2e:f?il", "event:e2e:fail"]);
    let (last, _) = all.last().unwrap();
    assert_eq!(
        (last.values("e2e:fail").len(), last.values("e2e:tick").len()),
        (3, 0),
        "armed, because a trigger waits for it"
    );
}

#[test]
fn a_duration_fires_only_above_its_limit() {
    let begin_to_end = |limit: &str| format!("duration:e2e:begin..e2e:end>{limit}");
    for rseq in [true, false] {
        let twice = ["begin", "pause=5", "end", "begin", "pause=5", "end"];
        let text = begin_to_end("1ns");
        assert_eq!(fired(rseq, &text, &twice), [(text, 2)]);
        assert_eq!(fired(rseq, &begin_to_end("1h"), &twice), []);
        // The last begin counts, and is paired with one end.
        let again = ["begin", "pause=20000", "begin", "pause=1", "end", "pause=20000", "end"];
        let (long, short) = (begin_to_end("20ms"), begin_to_end("1us"));
        let both = fired(rseq, &format!("{long},{short}"), &again);
        assert!(both.contains(&(short, 1)), "{both:?}");
        // A slow machine may take as long between two events as the program pauses, but not twice for one end.
        assert!(both.iter().all(|(_, times)| *times == 1), "{both:?}");
    }
    // From each tick to the next.
    let text = "duration:e2e:tick..e2e:tick>1ns";
    let ticks = ["tick", "pause=1", "tick", "pause=1", "tick"];
    assert_eq!(fired(true, text, &ticks), [(text.into(), 2)]);
    // Each thread has begins of its own.
    assert_eq!(fired(true, &begin_to_end("1ns"), &["begin", "pause=1", "thread", "end"]), []);
}

#[test]
fn triggers_work_in_children_and_in_libraries_loaded_later() {
    // The parent's duration does not apply to the child, and the child must request a snapshot itself.
    let triggers = "event:e2e:fail,duration:e2e:begin..e2e:end>1ns";
    let (mut running, end) = script(true, triggers, &["begin", "child", "end", "fail", "hold"]);
    running.wait_for("ready");
    let dir = running.place().join("trace-snapshot-1");
    running.wait_until("a snapshot", || dir.join("metadata").exists());
    std::fs::write(end, "").unwrap();
    let recording = running.wait().succeeded();
    let all = snapshots(recording.place());
    assert_eq!(all.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["event:e2e:fail"]);

    let path = dormouse_e2e::run::plugin().to_str().unwrap();
    let record = Record::new().mode("overwrite").option("--snapshot-on").option("event:plugin:step");
    let recording = record.run(&[TRACED, "plugin", path, "100"]).succeeded();
    let all = snapshots(recording.place());
    assert_eq!(all.iter().map(|(_, text)| firings(text).1).sum::<u64>(), 100);
    assert_eq!(all.last().unwrap().0.values("plugin:step").len(), 100);
}

#[test]
fn triggers_wait_for_compact_records_too() {
    let triggers = "event:e2e:fail,duration:e2e:begin..e2e:end>1ns";
    let record =
        Record::new().mode("overwrite").option("--context").option("none").option("--snapshot-on").option(triggers);
    let words = ["steps=8", "fail=3", "begin", "pause=1", "end"];
    let recording = record.run(&[&[TRACED, "script", "/"], &words[..]].concat()).succeeded();
    let all = snapshots(recording.place());
    let times = |of: &str| -> u64 {
        let of_it = all.iter().map(|(_, text)| firings(text)).filter(|(text, _)| *text == of);
        of_it.map(|(_, times)| times).sum()
    };
    assert_eq!(triggers.split(',').map(times).collect::<Vec<_>>(), [3, 1]);
    let (last, _) = all.last().unwrap();
    assert_eq!((last.values("e2e:fail").len(), last.values("e2e:end").len()), (3, 1));
}

#[test]
fn snapshots_of_many_processes_are_bounded() {
    let record = Record::new().mode("overwrite").option("--snapshot-on").option("event:e2e:step");
    let recording = record.run(&[TRACED, "many", "40", "8"]).succeeded();
    let count = (1..).take_while(|number| recording.place().join(format!("trace-snapshot-{number}")).exists()).count();
    assert!((32..40).contains(&count), "{count}: {}", recording.stderr);
    assert!(recording.stderr.contains("snapshots that programs asked for were too many"), "{}", recording.stderr);
}

#[test]
fn a_trigger_that_no_class_matches_is_reported() {
    let (running, _) = script(true, "event:e2e:faild", &["steps=8", "fail"]);
    let recording = running.wait().succeeded();
    assert!(recording.stderr.contains("no event of --snapshot-on matches e2e:faild; "), "{}", recording.stderr);
    assert!(snapshots(recording.place()).is_empty());
}
