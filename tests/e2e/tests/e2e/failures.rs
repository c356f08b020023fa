//! Errors are reported in one line and by the exit code, and never change what the traced program does.

use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording, dormouse};
use dormouse_testing::{Lack, skip, wait_until};
use rustix::process::Signal;

use crate::{AMPLE, TINY, TRACED};

/// Asserts that there is one line with the error and a remedy.
fn refused(recording: &Recording, says: &str) {
    let lines: Vec<&str> = recording.stderr.lines().collect();
    assert_ne!(recording.code(), 0);
    assert!(lines.len() == 1 && lines[0].starts_with("dormouse: "), "{lines:?}");
    assert!(lines[0].contains(says), "{says:?} in {lines:?}");
    assert_eq!(recording.stdout, "", "the command must not have run");
}

#[test]
fn unsuitable_directories_are_refused() {
    let record = Record::new();
    let full = record.place().join("full");
    std::fs::create_dir(&full).expect("a directory");
    std::fs::write(full.join("precious"), "data").expect("a file");
    let recording = record.output(&full).run(&[TRACED, "numbers", "1", "10"]);
    refused(&recording, "is not empty");
    assert_eq!(std::fs::read_dir(&full).expect("a directory").count(), 1);

    for (dir, says) in [("/proc/trace", "cannot make the directory"), ("/dev/null/trace", "cannot make the directory")]
    {
        refused(&Record::new().output(dir).run(&[TRACED, "numbers", "1", "10"]), says);
    }
    // Missing parent directories are created.
    let record = Record::new();
    let deep = record.place().join("a/b/c");
    let recording = record.output(deep).run(&[TRACED, "numbers", "1", "10"]).succeeded();
    assert_eq!(check(&recording).1, 10);
    // An empty directory is accepted.
    let record = Record::new();
    let empty = record.place().join("empty");
    std::fs::create_dir(&empty).expect("a directory");
    let recording = record.output(empty).run(&[TRACED, "numbers", "1", "10"]).succeeded();
    assert_eq!(check(&recording).1, 10);
}

#[test]
fn unsuitable_budgets_are_refused() {
    refused(&Record::new().budget("63K").run(&[TRACED, "numbers", "1", "10"]), "too small");
    refused(&Record::new().budget("999999G").run(&[TRACED, "numbers", "1", "10"]), "at most 32G");
    for budget in ["much", "", "-1", "1.5M", "99999999999999999999"] {
        let recording = Record::new().option(format!("--budget={budget}")).run(&[TRACED, "numbers", "1", "10"]);
        assert_ne!(recording.code(), 0, "{budget}");
        assert!(recording.stderr.contains("--budget"), "{budget}: {}", recording.stderr);
        assert!(!recording.dir.exists());
    }
}

#[test]
fn commands_that_cannot_run_are_errors() {
    refused(&Record::new().run(&["/no/such/command"]), "cannot run `/no/such/command`");
    refused(&Record::new().run(&["/etc/passwd"]), "cannot run `/etc/passwd`");
}

#[test]
fn a_command_that_cannot_run_leaves_no_trace_in_the_way() {
    let record = Record::new();
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("trace");
    refused(&record.output(&dir).run(&["/no/such/command"]), "cannot run");
    let recording = Record::new().output(&dir).run(&[TRACED, "numbers", "1", "10"]).succeeded();
    assert_eq!(check(&recording).1, 10);
}

#[test]
fn exit_codes_and_streams_pass_through() {
    let recording = Record::new().input(b"one\ntwo\n").run(&[TRACED, "echo"]);
    assert_eq!(recording.code(), 3);
    assert_eq!(recording.stdout, "one\ntwo\n");
    assert!(recording.stderr.starts_with("a complaint\n"), "{}", recording.stderr);
    assert_eq!(check(&recording).1, 2);
    for signal in [Signal::KILL, Signal::TERM, Signal::USR1, Signal::ABORT] {
        let recording = Record::new().run(&[TRACED, "die", &signal.as_raw().to_string()]);
        assert_eq!(recording.code(), 128 + signal.as_raw());
        assert_eq!(check(&recording).1, 1);
    }
}

#[test]
fn signals_reach_the_command() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut running = Record::new().start(&[TRACED, "await-signal"]);
        running.wait_for("ready");
        running.kill(signal);
        let recording = running.wait();
        assert_eq!(recording.code(), 7, "{}", recording.stderr);
        assert_eq!(recording.numbers("received"), [signal.as_raw() as u64]);
        check(&recording);
    }
}

#[test]
fn a_program_outlives_its_recorder() {
    for rseq in [true, false] {
        let place = tempfile::tempdir().expect("a directory");
        let done = place.path().join("done");
        let script =
            format!("echo ready; {TRACED} numbers 2 200000; {TRACED} numbers 1 10; echo $? > {}", done.display());
        let mut running = Record::new().budget(TINY).rseq(rseq).start(&["sh", "-c", &script]);
        running.wait_for("ready");
        running.kill(Signal::KILL);
        // The program's end does not depend on `dormouse` any more.
        wait_until("the program", || !std::fs::read_to_string(&done).unwrap_or_default().is_empty());
        assert_eq!(running.stdout(), "ready\nemitted 400000\nemitted 10\n");
        assert_eq!(std::fs::read_to_string(&done).expect("a file"), "0\n");
        running.wait();
    }
}

#[test]
fn events_larger_than_a_page_are_counted() {
    for rseq in [true, false] {
        for budget in [AMPLE, "256K"] {
            let recording = Record::new().budget(budget).rseq(rseq).run(&[TRACED, "too-big", "50"]).succeeded();
            let (trace, events, lost) = check(&recording);
            assert_eq!((events, lost), (50, 51), "rseq {rseq}, {budget}");
            assert!(trace.steps().into_values().next().expect("a thread").into_iter().eq(0..50));
        }
    }
}

/// A separate file system of any small size.
pub(crate) struct SmallDisk(pub(crate) PathBuf);

impl SmallDisk {
    pub(crate) fn mount(at: &Path, options: &str) -> Option<SmallDisk> {
        std::fs::create_dir(at).expect("a directory");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "dormouse-e2e"]).arg(at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(SmallDisk(at.into()));
        }
        skip(Lack::machine("this user may not mount a file system", "run the tests as root"));
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_is_reported_and_its_losses_counted() {
    let places = tempfile::tempdir().expect("a directory");
    let cases =
        [(AMPLE, true, "size=1M"), (AMPLE, false, "size=1M"), (TINY, true, "size=48K"), (TINY, false, "size=48K")];
    for (budget, rseq, size) in cases {
        let at = places.path().join(format!("disk-{budget}-{rseq}"));
        let Some(disk) = SmallDisk::mount(&at, size) else { return };
        let record = Record::new().budget(budget).rseq(rseq).output(disk.0.join("trace"));
        let recording = record.run(&[TRACED, "numbers", "3", "30000"]).succeeded();
        assert_eq!(recording.numbers("emitted"), [90_000]);
        assert!(recording.stderr.contains("could not be written"), "{}", recording.stderr);
        let trace = recording.trace();
        let (stats, summary) = (trace.stats(), recording.summary());
        assert_eq!(summary.events, stats.events);
        assert_eq!(summary.events + summary.lost, 90_000, "{}", recording.stderr);
        assert_eq!(stats.events + stats.events_lost, 90_000, "{stats:?}");
        assert_ne!(trace.stated_losses(), []);
        assert!(trace.stats().events > 0);
    }
}

#[test]
fn a_read_only_disk_is_reported() {
    let places = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(&places.path().join("disk"), "size=1M,ro") else { return };
    refused(&Record::new().output(disk.0.join("trace")).run(&[TRACED, "numbers", "1", "10"]), "Read-only");
}

#[test]
fn a_truncated_stream_is_reported() {
    let recording = Record::new().run(&[TRACED, "numbers", "1", "20000"]).succeeded();
    let (_, events, _) = check(&recording);
    let stream = std::fs::read_dir(&recording.dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("cpu_"))
        .max_by_key(|entry| entry.metadata().expect("metadata").len())
        .expect("a stream");
    let len = stream.metadata().expect("metadata").len();
    let file = std::fs::OpenOptions::new().write(true).open(stream.path()).expect("a file");
    for cut in [1, 100, len / 2, len - 79, len - 1] {
        file.set_len(len - cut).expect("a shorter file");
        let stats = recording.trace().stats();
        assert!(stats.warnings.iter().any(|warning| warning.contains("is cut off")), "{:?}", stats.warnings);
        // The very last bytes may be padding.
        assert!(stats.events < events || cut < 8);
    }
}

#[test]
fn without_a_command_the_usage_is_printed() {
    let output = Command::new(dormouse()).arg("record").output().expect("dormouse runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage"));
}
