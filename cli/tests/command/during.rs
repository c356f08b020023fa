//! `dormouse view --during`: slices with the events that belong to them.

use std::process::Command;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::{StateRecord, Value};
use dormouse_traces::TraceBuilder;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::DORMOUSE;

const MS: u64 = 1_000_000;

/// Writes a trace of a server: an acceptor begins requests, workers with names serve them. Request 2 waits for a lock and fails;
/// a thread without part in it writes too. Request 1 ends after request 2.
fn trace() -> TempDir {
    let mut trace = TraceBuilder::new();
    let scalar = FieldType::scalar;
    let (id, path) = (("id", scalar(Kind::U64)), ("path", scalar(Kind::Str)));
    let lock = ("mutex", scalar(Kind::Pointer));
    let begin = trace.class("shop", "request_begin", &[id, path]);
    let end = trace.class("shop", "request_end", &[id, ("status", scalar(Kind::U16))]);
    let serve = ["serve_begin", "serve_end"].map(|name| trace.class("shop", name, &[id]));
    let wait = trace.class("libc", "mutex_lock_begin", &[lock, ("owner", scalar(Kind::I32))]);
    let locked = trace.class("libc", "mutex_lock", &[lock, ("result", scalar(Kind::I32))]);
    let read = trace.class("libc", "read", &[("fd", scalar(Kind::I32)), ("duration_ns", scalar(Kind::U64))]);
    let (process, pid, vpid, name) = (1, 12, 12, "shop");
    trace.state(0, &StateRecord::Process { process, pid, vpid, name, program: "/bin/x", command_line: "" });
    // The second name is recorded after all events.
    for (time, vtid, name) in [(1, 13, "worker-1"), (100 * MS, 14, "worker-2")] {
        trace.state(time, &StateRecord::ThreadName { process, vtid, name });
    }
    let streams = [trace.stream(0), trace.stream(1)];
    let number = Value::U64;
    let (mutex, none) = (Value::Pointer(0xabc), Value::I32(0));
    for (time, tid, class, values) in [
        (1, 12, begin, &[number(1), Value::Str(b"/a")][..]),
        (2, 12, begin, &[number(2), Value::Str(b"/b")]),
        (3, 13, serve[0], &[number(2)]),
        (4, 14, serve[0], &[number(1)]),
        (5, 13, wait, &[mutex, Value::I32(14)]),
        (6, 14, read, &[Value::I32(3), number(MS / 4)]),
        (7, 13, locked, &[mutex, none]),
        (8, 13, read, &[Value::I32(4), number(MS / 2)]),
        (9, 13, serve[1], &[number(2)]),
        (10, 13, read, &[Value::I32(5), number(MS / 8)]),
        (11, 13, end, &[number(2), Value::U16(500)]),
        (12, 14, serve[1], &[number(1)]),
        (13, 14, end, &[number(1), Value::U16(200)]),
    ] {
        trace.event(streams[usize::from(tid == 14)], time * MS, 12, tid, class, values);
    }
    let dir = tempfile::tempdir().expect("a directory");
    trace.finish().write(dir.path());
    dir
}

/// Runs `dormouse view`. Returns its output, its exit code and its errors.
fn view(dir: &TempDir, options: &[&str]) -> (String, Option<i32>, String) {
    let mut command = Command::new(DORMOUSE);
    let output = command.arg("view").arg(dir.path()).args(options).env("TZ", "UTC").output().expect("dormouse runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(output.stdout), output.status.code(), text(output.stderr))
}

const REQUEST_2: &str = "\
shop:request 9.00 ms id=2 path=/b → status=500
  begins 22:13:20.002000000 (+0.001000000 s), thread 12 → worker-1 (thread 13) of shop (12)
  the events with id=2, and those of threads within shop:serve with the same key
+0.000000000 shop 12 [0]  shop:request_begin      id=2 path=\"/b\"
+0.001000000 shop 12 13 worker-1 [0]  shop:serve_begin        id=2
+0.003000000 shop 12 13 worker-1 [0]    libc:mutex_lock_begin mutex=0xABC owner=14
+0.005000000 shop 12 13 worker-1 [0] 2.00 ms   libc:mutex_lock       mutex=0xABC result=0 ends libc:mutex wait
+0.006000000 shop 12 13 worker-1 [0] 500 µs    libc:read             fd=4 duration_ns=500000
+0.007000000 shop 12 13 worker-1 [0] 6.00 ms shop:serve_end          id=2
+0.009000000 shop 12 13 worker-1 [0] 9.00 ms shop:request_end        id=2 status=500
";

#[test]
fn a_request_has_the_events_of_all_its_threads() {
    let trace = trace();
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    for options in [
        &["--during", "shop:request", "--where", "status >= 500"][..],
        &["--during", "shop:req*_begin..shop:req*_end", "--where", "id == 2", "--slowest", "3"],
    ] {
        let (text, code, errors) = view(&trace, options);
        let name = options[1];
        assert_eq!(words(&text), words(&REQUEST_2.replacen("shop:request", name, 1)), "{text}");
        assert_eq!(code, Some(0), "{errors}");
    }
    // Both, in the order of time and of duration; a request that is nested in no slice is not indented.
    for (options, expected) in [(&[][..], [1, 2]), (&["--slowest", "2"], [1, 2]), (&["--slowest", "1"], [1, 0])] {
        let (text, ..) = view(&trace, &[&["--during", "shop:request"], options].concat());
        let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("shop:request ")).collect();
        let wanted: Vec<String> = expected.iter().filter(|id| **id > 0).map(|id| format!(" id={id} ")).collect();
        assert_eq!(heads.len(), wanted.len(), "{text}");
        assert!(heads.iter().zip(&wanted).all(|(head, id)| head.contains(id)), "{text}");
    }
    let (text, ..) = view(&trace, &["--during", "shop:serve", "--slowest", "1"]);
    assert!(text.contains("  the events of its thread from begin to end\n") && text.contains("libc:read"), "{text}");
}

/// People see the last name of a thread on all its lines, programs the one of the time.
#[test]
fn threads_have_names_from_their_first_event_on() {
    let trace = trace();
    let (text, ..) = view(&trace, &["--format", "people", "-e", "shop:*"]);
    assert_eq!(text.lines().filter(|line| line.contains(" 14 worker-2 ")).count(), 3, "{text}");
    let (text, ..) = view(&trace, &["--during", "shop:request", "--where", "id == 1"]);
    assert!(text.lines().any(|line| line.contains("→ worker-2 (thread 14) of shop (12)")), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" 14 worker-2 ")).count(), 4, "{text}");
    let (text, ..) = view(&trace, &["--format", "json", "--tid", "14"]);
    assert!(text.lines().count() == 4 && !text.contains("worker-2"), "{text}");
}

#[test]
fn programs_get_an_object_for_the_request_and_one_for_each_event() {
    let trace = trace();
    let asked = ["--during", "shop:request", "--where", "id == 2"];
    let (text, ..) = view(&trace, &[&asked[..], &["--format", "json", "-e", "libc:*"]].concat());
    let lines: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let head = &lines[0];
    assert_eq!((&head["slice"], &head["latency_ns"]), (&1.into(), &(9 * MS).into()));
    assert_eq!((&head["key"]["id"], &head["end_fields"]["status"]), (&2.into(), &500.into()));
    assert_eq!((&head["begin_thread"]["tid"], &head["end_thread"]["name"]), (&12.into(), &"worker-1".into()));
    let told: Vec<_> = lines[1..].iter().map(|line| (&line["event"], &line["depth"], &line["ended_ns"])).collect();
    let (wait, lock, read) = ("libc:mutex_lock_begin".into(), "libc:mutex_lock".into(), "libc:read".into());
    let (one, waited, took) = (1.into(), (2 * MS).into(), (MS / 2).into());
    assert_eq!(told, [(&wait, &one, &Json::Null), (&lock, &one, &waited), (&read, &one, &took)]);
    let (text, ..) = view(&trace, &[&asked[..], &["--format", "csv", "--fields", "fd"]].concat());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "slice,since_begin_ns,depth,ended,ended_ns,time,time_ns,event,cpu,pid,tid,process,thread,fd");
    assert_eq!(lines.len(), 8);
    assert!(lines[5].starts_with("1,6000000,1,libc:read,500000,") && lines[5].ends_with(",12,13,shop,worker-1,4"));
}

#[test]
fn errors_name_the_cause_and_the_nearest_name() {
    let trace = trace();
    for (options, expected) in [
        (
            &["--during", "shop:reqest"][..],
            "no slices of the trace are called `shop:reqest`; the nearest is `shop:request`",
        ),
        (&["--during", "shop:request", "--where", "stat == 1"], "--where: line 1, column 1: no event has stat;"),
        (&["--during", "shop:request", "--key", "id"], "--key is for --during BEGIN..END"),
        (&["--during", "shop:x..shop:request_end"], "no event class of the trace matches `shop:x`"),
        (&["--during", "shop:request", "--format", "babeltrace"], "--format babeltrace cannot show slices"),
        (&["--slowest", "3"], "the following required arguments were not provided"),
        (&["--during", "shop:request", "-n", "3"], "cannot be used with"),
    ] {
        let (text, code, errors) = view(&trace, options);
        assert!(text.is_empty() && code == Some(2) && errors.contains(expected), "{options:?}: {errors}");
    }
    let (text, code, errors) = view(&trace, &["--during", "shop:request", "--where", "status == 404"]);
    assert_eq!((text.as_str(), code), ("", Some(0)));
    assert!(errors.contains("no slice meets the conditions\n"), "{errors}");
}

/// The command that `stats --latency` names prints the slowest of its table.
#[test]
fn stats_names_the_command_for_its_slowest() {
    let trace = trace();
    let mut command = Command::new(DORMOUSE);
    let asked =
        ["--latency", "shop:request_begin..shop:request_end", "--where", "id > 0", "--since", "+0s", "--slowest", "2"];
    let output = command.arg("stats").arg(trace.path()).args(asked).output().expect("dormouse runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let note = text.lines().find_map(|line| line.strip_prefix("note: `dormouse ")?.split_once('`')).expect("a note").0;
    let expected = "--during shop:request_begin..shop:request_end --where 'id > 0' --since +0ns --slowest 2";
    assert!(note.ends_with(expected), "{note}");
    let output = Command::new("sh").args(["-c", &format!("{DORMOUSE} {note}")]).output().expect("sh runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().filter(|line| line.starts_with("shop:request_begin..")).count(), 2, "{text}");
}
