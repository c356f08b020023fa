//! Several sessions of a program: each has its own events, rules, budget and losses, and ends without the others.

use std::path::Path;
use std::process::Command;

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording, dormouse, libc_library};
use dormouse_e2e::trace::Trace;

use crate::rules::{check_requests, ledger, unrecorded};
use crate::{AMPLE, TINY, TRACED, VALUES};

/// Returns the trace of the recording around another.
fn outer(recording: &Recording) -> Trace {
    let trace = Trace::read(&recording.place().join("outer"));
    trace.check_times();
    trace
}

/// Returns the number of events in a trace, and of those that were lost.
fn counts(trace: &Trace) -> (u64, u64) {
    let stats = trace.stats();
    (stats.events, stats.events_lost)
}

/// The outer session records all requests, and has room for few of them; the inner one has a rule, and room for all.
#[test]
fn a_recording_within_another_has_its_own_rules_and_losses() {
    let rule = r#"e2e:request where bytes >= 9000 and path ~ "/tmp/*""#;
    for (rseq, context, mode) in
        [(true, "ids", "discard"), (false, "ids", "discard"), (true, "none", "overwrite"), (false, "none", "overwrite")]
    {
        let record = Record::new().rseq(rseq).context(context).budget(AMPLE).option("-e").option(rule);
        let record =
            record.within_recording(&["-e", "e2e:request", "--budget", TINY, "--mode", mode, "--context", context]);
        let line = record.place().join("line");
        std::fs::write(&line, "\n").unwrap();
        let recording = record.run(&[TRACED.as_ref(), "requests".as_ref(), line.as_os_str()]).succeeded();
        let (trace, _, lost) = check(&recording);
        assert_eq!(lost, 0);
        check_requests(&trace, &recording.stdout, |request| {
            request.bytes >= 9_000 && request.path.starts_with("/tmp/")
        });
        let emitted = ledger(&recording.stdout).len() as u64;
        let recorded = trace.values("e2e:request").len() as u64;
        assert_eq!(unrecorded(&trace), [("e2e:request".to_string(), emitted - recorded, 0)]);
        let outer = outer(&recording);
        let (recorded, lost) = counts(&outer);
        let is_counted = if mode == "discard" { recorded + lost == emitted } else { recorded < emitted && lost == 0 };
        assert!(recorded > 0 && is_counted, "{mode}: {recorded} recorded and {lost} lost of {emitted}");
        assert_eq!(unrecorded(&outer), []);
    }
}

#[test]
fn two_sessions_have_the_same_values() {
    for rseq in [true, false] {
        let recording = Record::new().rseq(rseq).within_recording(&[]).run(&[VALUES]).succeeded();
        check(&recording);
        let (inner, outer) = (view(&recording.dir), view(&recording.place().join("outer")));
        assert!(inner.len() > 20 && inner == outer, "{inner:?} {outer:?}");
    }
}

/// Returns the events of a trace, as `view` prints them.
fn view(dir: &Path) -> Vec<(serde_json::Value, serde_json::Value)> {
    let output = Command::new(dormouse()).arg("view").arg(dir).args(["--format", "json", "-e", "values:*"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let event = |line: &str| {
        let mut event: serde_json::Value = serde_json::from_str(line).unwrap();
        (event["event"].take(), event["fields"].take())
    };
    String::from_utf8(output.stdout).unwrap().lines().map(event).collect()
}

#[test]
fn children_are_in_both_sessions() {
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        let record = Record::new().budget(AMPLE).rseq(rseq).context(context);
        let record = record.within_recording(&["--budget", AMPLE, "--context", context]);
        let recording = record.run(&[TRACED, "fork", "12", "500"]).succeeded();
        let (trace, events, lost) = check(&recording);
        let outer = outer(&recording);
        assert_eq!((counts(&outer), lost), ((events, 0), 0));
        assert_eq!(outer.steps(), trace.steps());
        let vpids = |trace: &Trace| {
            let mut vpids: Vec<u32> = trace.processes().iter().map(|process| process.vpid).collect();
            vpids.sort_unstable();
            vpids
        };
        assert_eq!(vpids(&outer), vpids(&trace));
    }
}

/// A process that is killed has finished its last event in both sessions, or in the first one only.
#[test]
fn processes_are_killed_at_any_instruction() {
    for (rseq, context, budget) in
        [(true, "ids", AMPLE), (false, "ids", AMPLE), (true, "none", AMPLE), (true, "ids", TINY), (false, "none", TINY)]
    {
        let record = Record::new().budget(budget).rseq(rseq).context(context);
        let record = record.within_recording(&["--budget", AMPLE, "--context", context]);
        let name = format!("two sessions, {budget} rseq={rseq} context={context}");
        let (recording, finished) = crate::kills::kill_with(record, budget == AMPLE, &name);
        let outer = outer(&recording);
        let (recorded, lost) = counts(&outer);
        assert_eq!(lost, 0);
        assert!(finished.contains(&recorded), "{recorded} of {finished:?}");
        for (thread, numbers) in outer.steps() {
            assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "a gap in {thread:?}");
        }
    }
}

/// A program's own events and those of libc's functions, with the library loaded once for both.
#[test]
fn libc_is_traced_in_both_sessions() {
    libc_library();
    let record = Record::new().option("--libc").budget(AMPLE).within_recording(&["--libc", "--budget", AMPLE]);
    let recording = record.run(&["sh", "-c", "cat /etc/passwd > /dev/null; true"]).succeeded();
    let (trace, _, lost) = check(&recording);
    let outer = outer(&recording);
    assert_eq!((counts(&outer).1, lost), (0, 0));
    // The outer session has `dormouse` and the shell around the program as well.
    let of_cat = |trace: &Trace| {
        let processes = trace.stats().processes.into_iter().filter(|process| process.name == "cat");
        processes.map(|process| (process.vpid, process.count)).collect::<Vec<_>>()
    };
    let count = of_cat(&trace);
    assert!(count.len() == 1 && count[0].1 > Some(3), "{count:?}");
    assert_eq!(of_cat(&outer), count);
}

/// The outermost of 33 recordings says why the program is not in it, and the others have its events.
#[test]
fn a_recording_too_many_says_why_it_is_empty() {
    const COUNT: usize = 33;
    let place = tempfile::tempdir().unwrap();
    let dir = |number: usize| place.path().join(format!("trace-{number}"));
    let mut words: Vec<std::ffi::OsString> = Vec::new();
    for number in 0..COUNT {
        words.extend([dormouse().into(), "record".into(), "--budget".into(), TINY.into(), "-o".into()]);
        words.extend([dir(number).into(), "--".into()]);
    }
    words.extend([TRACED.into(), "numbers".into(), "1".into(), "100".into()]);
    let mut record = Command::new(&words[0]);
    let output = record.args(&words[1..]).env("XDG_RUNTIME_DIR", place.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("is in 32 other sessions, the most that a program can be in").count(), 1, "{text}");
    assert_eq!(text.matches("dormouse: 100 events, 0 lost, 1 process, ").count(), COUNT - 1, "{text}");
    let events = |number| Trace::read(&dir(number)).stats().events;
    assert_eq!((0..COUNT).map(events).collect::<Vec<_>>(), [vec![0], vec![100; COUNT - 1]].concat());
}
