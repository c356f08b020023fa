//! What a flight recorder gives away while it is written to.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use dormouse_consumer::{Take, ask_for_snapshot};
use dormouse_e2e::run::{Record, Running, babeltrace2_count};
use dormouse_e2e::trace::Trace;
use rustix::fs::{FileType, Mode};
use rustix::process::Signal;

use crate::{TINY, TRACED};

const THREADS: &str = "4";

/// Snapshots of each flight recorder, unless the environment variable of this name says otherwise.
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

/// A program that has emitted a thousand events, and waits at a FIFO until [`finish`].
fn hold(record: Record) -> (Running, std::path::PathBuf) {
    let end = record.place().join("end");
    rustix::fs::mknodat(rustix::fs::CWD, &end, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut running = record.start(&[TRACED.as_ref(), "hold".as_ref(), end.as_os_str(), "1000".as_ref()]);
    running.wait_for("ready");
    (running, end)
}

fn finish((running, end): (Running, std::path::PathBuf)) {
    std::fs::write(end, "").unwrap();
    running.wait().succeeded();
}

/// Every packet is whole, and from where no stream has overwritten anything, no thread's numbers have a hole.
fn check(trace: &Trace) -> u64 {
    let stats = trace.stats();
    assert_eq!(stats.events_lost, 0, "{stats}");
    assert!(stats.warnings.is_empty(), "{stats}");
    trace.steps();
    for ((_, thread), numbers) in trace.steps_since(trace.complete_since()) {
        let hole = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
        assert_eq!(hole, None, "thread {thread}");
    }
    stats.events
}

/// Writers never rest, and each snapshot falls somewhere else.
fn many(budget: &str, rseq: bool, context: &str) {
    let session = start(Record::new().mode("overwrite").budget(budget).rseq(rseq).context(context));
    let dir = session.0.place().join("snapshot");
    let (mut events, mut missed) = (0, 0);
    for number in 0..snapshot_count() {
        // All, the last moment, or a few pages.
        let wanted = Take {
            dir: Some(dir.clone()),
            last: (number % 3 == 1).then_some(Duration::from_millis(2)),
            bytes_max: (number % 3 == 2).then_some(100_000),
            trigger: format!("test {number}"),
        };
        let snapshot = ask_for_snapshot(&session.0.session(), &wanted).unwrap();
        assert_eq!((snapshot.pages_refused, &snapshot.dir), (0, &dir));
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
fn snapshots_under_writers_are_whole() {
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        many("1M", rseq, context);
    }
}

/// Sixteen pages of 4 KiB: most are overwritten while they are copied.
#[test]
fn snapshots_of_a_tiny_flight_recorder_are_whole() {
    many(TINY, true, "ids");
    many(TINY, true, "none");
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
fn what_cannot_be_taken_is_an_error() {
    let session = start(Record::new());
    let refused = ask_for_snapshot(&session.0.session(), &Take::default()).unwrap_err();
    assert!(refused.contains("--mode overwrite"), "{refused}");
    finish(session);

    let session = start(Record::new().mode("overwrite"));
    let occupied = Take { dir: Some(session.0.place().into()), ..Take::default() };
    let refused = ask_for_snapshot(&session.0.session(), &occupied).unwrap_err();
    assert!(refused.contains("is not empty"), "{refused}");
    // Beside the session's trace, numbered.
    for number in 1..3 {
        let snapshot = ask_for_snapshot(&session.0.session(), &Take::default()).unwrap();
        assert_eq!(snapshot.dir, session.0.place().join(format!("trace-snapshot-{number}")));
        assert_eq!(Trace::read(&snapshot.dir).stats().events, snapshot.events);
    }
    let output = session.0.dormouse(&["snapshot", "1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    finish(session);
}

/// Runs a program that ends in some way after a thousand events, and looks at the snapshot that it asked for meanwhile.
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
fn a_crash_leaves_a_snapshot_and_ends_as_it_would_have() {
    for (how, trigger) in [
        ("segv", "SIGSEGV"),
        ("raise", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("overflow", "SIGSEGV"),
        ("thread", "SIGSEGV"),
    ] {
        let alone = Command::new(TRACED).args(["end", how, "1000"]).output().unwrap().status;
        let code = alone.code().or(alone.signal().map(|signal| 128 + signal)).unwrap();
        assert_eq!(ended(how, "crash", Some(trigger)), code, "{how}");
    }
    assert_eq!(ended("panic", "panic,crash", Some("panic")), 101);
    assert_eq!(ended("exit", "exit", Some("exit")), 3);
    assert_eq!(ended("exit", "crash", None), 3);
    assert_eq!(ended("panic", "crash", None), 101);
}

#[test]
fn a_signal_leaves_a_snapshot_and_the_program_goes_on() {
    let (mut running, end) = hold(Record::new().mode("overwrite").option("--snapshot-on").option("USR2"));
    for number in 1..3 {
        // `dormouse record` hands it on.
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
fn triggers_that_are_none_are_refused() {
    let refused = |mode: &str, triggers: &str| {
        let recording = Record::new().mode(mode).option("--snapshot-on").option(triggers).run(&[TRACED, "idle"]);
        assert_eq!(recording.code(), 2);
        recording.stderr
    };
    assert!(refused("overwrite", "KILL").contains("`KILL` is not a trigger"));
    assert!(refused("discard", "crash").contains("--mode overwrite"));
}
