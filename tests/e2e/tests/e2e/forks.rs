//! Processes start and end within one session: by fork, by exec, many and short.

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, plugin};

use crate::{AMPLE, TRACED};

const CHILDREN: u64 = 12;
const EVENTS: u64 = 500;

#[test]
fn children_are_traced_from_the_fork_on() {
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        let record = Record::new().budget(AMPLE).rseq(rseq).context(context);
        let recording = record.run(&[TRACED, "fork", &CHILDREN.to_string(), &EVENTS.to_string()]).succeeded();
        let (trace, _, lost) = check(&recording);
        assert_eq!(lost, 0);
        let mut steps = trace.steps();
        let table = trace.processes();
        let parent = table[0].vpid;
        for (thread, traced) in recording.numbers("traced").into_iter().enumerate() {
            let numbers = steps.remove(&(parent, thread as u32)).expect("the parent's thread");
            assert!(numbers.into_iter().eq(0..traced));
        }
        let joined = |vpid: u32| table.iter().filter(|process| process.vpid == vpid).count();
        let children = recording.numbers("child");
        assert_eq!(children.len() as u64, CHILDREN);
        for (number, child) in children.iter().enumerate() {
            let child = *child as u32;
            let execs = number % 3 == 2;
            assert_eq!(joined(child), 1 + execs as usize, "child {child} of {table:?}");
            assert!(steps.remove(&(child, 20)).expect("a child").into_iter().eq(0..EVENTS));
            let afterwards = steps.remove(&(child, 0)).unwrap_or_default();
            assert!(afterwards.into_iter().eq(0..if execs { EVENTS } else { 0 }), "child {child}");
        }
        let grandchildren: Vec<u32> = steps.keys().map(|(vpid, _)| *vpid).collect();
        assert_eq!(grandchildren.len() as u64, CHILDREN / 2);
        for grandchild in grandchildren {
            assert_eq!(joined(grandchild), 1, "grandchild {grandchild} of {table:?}");
            assert!(steps.remove(&(grandchild, 10)).expect("a grandchild").into_iter().eq(0..EVENTS));
        }
        assert!(steps.is_empty(), "{:?}", steps.keys());
    }
}

#[test]
fn many_short_processes_share_a_session() {
    const COUNT: u64 = 20;
    let recording = Record::new().run(&[TRACED, "many", &COUNT.to_string(), "300"]).succeeded();
    let (trace, events, lost) = check(&recording);
    assert_eq!((events, lost), (COUNT * 300, 0));
    let steps = trace.steps();
    assert_eq!(steps.len() as u64, COUNT);
    assert!(steps.values().all(|numbers| numbers.iter().copied().eq(0..300)));
    // These, their parent, and one without events.
    assert_eq!(trace.processes().len() as u64, COUNT + 2);
    assert_eq!(recording.summary().processes, COUNT + 2);
}

#[test]
fn a_process_without_events_leaves_an_empty_trace() {
    let recording = Record::new().run(&[TRACED, "idle"]).succeeded();
    let (trace, events, lost) = check(&recording);
    assert_eq!((events, lost), (0, 0));
    assert_eq!(trace.processes().len(), 1);
}

#[test]
fn a_command_without_tracepoints_leaves_an_empty_trace() {
    let recording = Record::new().run(&["true"]).succeeded();
    assert_eq!(check(&recording).1, 0);
    assert_eq!(recording.summary().processes, 0);
}

#[test]
fn a_library_loaded_later_is_traced_too() {
    for rseq in [true, false] {
        let path = plugin().to_str().expect("a path of text");
        let recording = Record::new().rseq(rseq).run(&[TRACED, "plugin", path, "1000"]).succeeded();
        let (trace, events, lost) = check(&recording);
        assert_eq!((events, lost), (2_000, 0));
        assert!(trace.steps().into_values().next().expect("a thread").into_iter().eq(0..1_000));
        let expected = (0..1_000).map(|number| format!("number=u64 {number} text=str \"from the plugin\""));
        assert!(trace.values("plugin:step").into_iter().eq(expected));
    }
}

#[test]
fn pages_interrupted_by_exec_are_returned() {
    for rseq in [true, false] {
        // More often than there are streams to claim: each time, threads end in the middle of their writes. The budget
        // has room for everything that they can write, however late it is drained.
        let recording = Record::new().budget("512M").rseq(rseq).run(&[TRACED, "become", "30", "2000"]).succeeded();
        check_end(&recording);
    }
}

/// Asserts that the last program of the process finds room for all of its events.
fn check_end(recording: &dormouse_e2e::run::Recording) {
    let trace = recording.trace();
    let numbers = trace.events().filter(|event| {
        event.fields().next().is_some_and(|(name, value)| name == "thread" && value == dormouse_ctf::Value::U32(0))
    });
    assert_eq!((numbers.count(), trace.stats().events_lost), (2_000, 0), "{}", recording.stderr);
}
