//! Sessions whose records have no context: half the size, and otherwise the same.

use std::path::Path;
use std::process::Command;

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording, babeltrace2_lines, dormouse, libc_library};

use crate::numbers::{EVENTS, THREADS, received, record_with};
use crate::{AMPLE, TINY, TRACED, VALUES};

fn bytes_on_disk(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// Asserts that every line of `dormouse view` equals `babeltrace2`'s.
fn views_agree(recording: &Recording) {
    let Some(theirs) = babeltrace2_lines(&recording.dir) else { return };
    let ours = Command::new(dormouse()).arg("view").arg(&recording.dir).output().unwrap();
    assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
    let ours = String::from_utf8_lossy(&ours.stdout).into_owned();
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
    assert!(!ours.is_empty() && !ours.contains("vtid ="));
}

/// The promised size: that of another tracer, metadata included. It follows from the format and does not depend on the
/// machine.
#[test]
fn an_event_of_one_field_takes_little_on_disk() {
    const LTTNG_BYTES: f64 = 13.4;
    for rseq in [true, false] {
        let record = Record::new().budget(AMPLE).rseq(rseq).context("none");
        let recording = record.run(&[TRACED, "words", "300000"]).succeeded();
        let (trace, events, lost) = check(&recording);
        assert_eq!((events, lost), (300_000, 0));
        let bytes = bytes_on_disk(&recording.dir) as f64 / events as f64;
        println!("rseq={rseq}: {bytes:.3} bytes for each event");
        assert!(bytes <= LTTNG_BYTES, "{bytes} bytes for each event");
        let values = trace.values("e2e:word");
        assert!(values.iter().enumerate().all(|(number, value)| *value == format!("number=u64 {number}")));
        views_agree(&recording);
    }
}

/// Ids from 255 on only occur in extended records.
#[test]
fn classes_beyond_a_byte_have_extended_records() {
    const CLASSES: u64 = 17 * 16;
    const ROUNDS: u64 = 50;
    for rseq in [true, false] {
        let record = Record::new().rseq(rseq).context("none");
        let recording = record.run(&[env!("CARGO_BIN_EXE_e2e-classes"), &ROUNDS.to_string()]).succeeded();
        let (trace, events, lost) = check(&recording);
        assert_eq!((events, lost), (CLASSES * ROUNDS, 0));
        let classes = trace.stats().classes;
        assert_eq!(classes.len() as u64, CLASSES);
        for class in classes {
            let numbers = trace.values(&class.name);
            assert!(numbers.iter().enumerate().all(|(number, value)| *value == format!("number=u64 {number}")));
            let compact = if class.id < 255 { 5 + 8 } else { 11 + 8 };
            assert!(class.bytes >= ROUNDS * compact, "{class:?}");
            assert!(class.id < 255 || class.bytes == ROUNDS * compact, "{class:?}");
        }
        views_agree(&recording);
    }
}

#[test]
fn threads_lose_nothing_or_count_it() {
    for rseq in [true, false] {
        for mode in ["discard", "overwrite"] {
            let (steps, lost) = record_with("none", AMPLE, mode, rseq);
            assert_eq!((lost, steps.len() as u64), (0, THREADS), "{mode}, rseq {rseq}");
            assert!(steps.values().all(|numbers| numbers.iter().copied().eq(0..EVENTS)), "{mode}, rseq {rseq}");
        }
        let (steps, lost) = record_with("none", TINY, "discard", rseq);
        assert_eq!(received(&steps) + lost, THREADS * EVENTS, "rseq {rseq}");
        let (steps, lost) = record_with("none", TINY, "overwrite", rseq);
        assert!(received(&steps) > 0 && received(&steps) + lost <= THREADS * EVENTS, "rseq {rseq}");
    }
}

/// Values of every kind and length; `values.rs` checks them one by one.
#[test]
fn lines_of_every_kind_of_value_agree() {
    views_agree(&Record::new().context("none").run(&[VALUES]).succeeded());
}

#[test]
fn another_clock_writes_compact_records_too() {
    for rseq in [true, false] {
        let record = Record::new().context("none").budget(AMPLE).rseq(rseq).env("DORMOUSE_CLOCK", "monotonic");
        let recording = record.run(&[TRACED, "numbers", "3", "10000"]).succeeded();
        let (trace, events, lost) = check(&recording);
        assert_eq!((events, lost, received(&trace.steps())), (30_000, 0, 30_000));
        views_agree(&recording);
    }
}

#[test]
fn compact_records_of_an_unmodified_program_are_read() {
    assert!(libc_library().exists());
    let recording = Record::new().context("none").option("--libc").run(&["ls", "/"]).succeeded();
    let (_, events, lost) = check(&recording);
    assert!(events > 0 && lost == 0);
    views_agree(&recording);
    let stats = |arguments: &[&str]| {
        let output = Command::new(dormouse()).arg("stats").args(arguments).arg(&recording.dir).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let text = stats(&[]);
    assert!(text.contains("threads   not recorded (--context none)") && text.contains("VPID  NAME"), "{text}");
    assert!(!text.contains("EVENTS  VPID"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&stats(&["--json"])).unwrap();
    assert_eq!(
        (&json["threads"], &json["processes"][0]["count"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
}
