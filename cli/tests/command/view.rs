//! `dormouse view`: the events that it prints, and their formats.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use dormouse_abi::class::{ClassDecl, FieldType, Kind, Label, Labels, Level};
use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_ctf::{PacketHeader, StateRecord, Value};
use dormouse_traces::TraceBuilder;
use serde_json::Value as Json;

use crate::DORMOUSE;

/// Begin of the trace, in seconds since the epoch: 2023-11-14 22:13:20 UTC.
const BEGIN_S: u64 = 1_700_000_000;
const MS: u64 = 1_000_000;
/// An integer that an `f64` cannot represent.
const LARGE: u64 = (1 << 53) + 1;
const HOSTILE: &[u8] = b"a\x1b[2J\"b\",\n\xff\xc2\x9b";

/// Writes a trace: a hundred requests of two processes on two CPUs, one each millisecond; an event with values that are
/// hard to print; and an event without a CPU.
fn trace() -> tempfile::TempDir {
    let mut trace = TraceBuilder::new();
    let scalar = FieldType::scalar;
    let request = [
        ("id", scalar(Kind::U64)),
        ("bytes", scalar(Kind::U32)),
        ("path", scalar(Kind::Str)),
        ("ok", scalar(Kind::Bool)),
    ];
    let request = trace.class("http", "request", &request);
    let hard = [
        ("large", scalar(Kind::U64)),
        ("float", scalar(Kind::F64)),
        ("nan", scalar(Kind::F64)),
        ("text", scalar(Kind::Str)),
        ("raw", scalar(Kind::Bytes)),
        ("address", scalar(Kind::Pointer)),
    ];
    let hard = trace.class("http", "hard", &hard);
    let tick = trace.class("shop", "tick", &[]);
    for (process, vpid, name) in [(1, 12, "nginx"), (2, 13, "worker")] {
        let program = "/bin/x";
        trace.state(0, &StateRecord::Process { process, pid: vpid, vpid, name, program, command_line: "" });
    }
    let streams = [trace.stream(0), trace.stream(1), trace.stream(CPU_UNKNOWN)];
    for number in 0..100u64 {
        let which = (number % 2) as usize;
        let path = format!("/api/{number}");
        let values = [
            Value::U64(number),
            Value::U32(number as u32 * 100),
            Value::Str(path.as_bytes()),
            Value::Bool(u8::from(number % 10 == 0)),
        ];
        let (vpid, vtid) = ([12, 13][which], [12, 14][which]);
        trace.event(streams[which], (number + 1) * MS, vpid, vtid, request, &values);
        if number % 10 >= 8 {
            trace.packet(streams[which], 4096, 0);
        }
    }
    let values = [
        Value::U64(LARGE),
        Value::F64(0.1 + 0.2),
        Value::F64(f64::NAN),
        Value::Str(HOSTILE),
        Value::Bytes(b"\x00\xff"),
        Value::Pointer(0xbeef),
    ];
    trace.event(streams[0], 101 * MS, 12, 12, hard, &values);
    trace.event(streams[2], 102 * MS, 13, 14, tick, &[]);
    let trace = trace.finish();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("metadata"), &trace.metadata).expect("metadata");
    for (name, bytes) in ["state", "cpu_0", "cpu_1", "claimed_0"].into_iter().zip(&trace.streams) {
        std::fs::write(dir.path().join(name), bytes).expect("a stream");
    }
    dir
}

fn view(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(DORMOUSE);
    command.arg("view").arg(dir).args(arguments).env("TZ", "UTC");
    command.output().expect("dormouse runs")
}

/// Runs `dormouse view`, which must succeed, and returns the lines that it prints.
fn lines(dir: &Path, arguments: &[&str]) -> Vec<String> {
    let output = view(dir, arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{arguments:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect()
}

/// Returns the ids of the requests that `dormouse view` prints, in order.
fn ids(dir: &Path, arguments: &[&str]) -> Vec<u64> {
    let all = lines(dir, &[&["--format", "json"], arguments].concat());
    let id = |line: &String| serde_json::from_str::<Json>(line).expect("JSON")["fields"]["id"].as_u64();
    all.iter().filter_map(id).collect()
}

/// A program that renames itself is selected under each of its names, with all of its events; the program that its
/// process was before `exec` is another one.
#[test]
fn a_program_is_selected_under_all_of_its_names() {
    let mut trace = TraceBuilder::new();
    let class = trace.class("http", "request", &[("id", FieldType::scalar(Kind::U64))]);
    let stream = trace.stream(0);
    let mut state = |ns, record| trace.state(ns, &record);
    let joins = |process, vpid, name| StateRecord::Process {
        process,
        pid: vpid,
        vpid,
        name,
        program: "/bin/x",
        command_line: "",
    };
    state(0, joins(1, 12, "sh"));
    state(0, joins(2, 13, "other"));
    state(10 * MS, joins(3, 12, "srv"));
    state(20 * MS, StateRecord::ProcessName { process: 3, name: "acceptor" });
    state(30 * MS, StateRecord::ProcessName { process: 3, name: "srv \"2\"" });
    for id in 0..40 {
        let pid = if id % 2 == 0 { 12 } else { 13 };
        trace.event(stream, id * MS + 1, pid, pid, class, &[Value::U64(id)]);
    }
    let trace = trace.finish();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("metadata"), &trace.metadata).expect("metadata");
    for (name, bytes) in ["state", "cpu_0"].into_iter().zip(&trace.streams) {
        std::fs::write(dir.path().join(name), bytes).expect("a stream");
    }
    let even = |range: std::ops::Range<u64>| range.filter(|id| id % 2 == 0).collect::<Vec<_>>();
    let cases = [
        (vec!["srv"], even(10..40)),
        (vec!["acceptor"], even(10..40)),
        (vec!["srv*"], even(10..40)),
        (vec!["sh"], even(0..10)),
        (vec!["s*"], even(0..40)),
        (vec!["sh", "acc*"], even(0..40)),
        (vec!["other"], (0..40).filter(|id| id % 2 == 1).collect()),
    ];
    for (names, expected) in cases {
        let arguments: Vec<&str> = names.iter().flat_map(|name| ["--process", name]).collect();
        assert_eq!(ids(dir.path(), &arguments), expected, "{names:?}");
    }
}

#[test]
fn options_select_events() {
    let dir = trace();
    let dir = dir.path();
    let all = || 0..100u64;
    let cases: [(&[&str], Vec<u64>); 30] = [
        (&[], all().collect()),
        (&["-e", "http:*"], all().collect()),
        (&["-e", "shop:*", "-e", "http.req?est"], all().collect()),
        (&["-e", "shop:*"], vec![]),
        (&["--where", "bytes > 9K"], (93..100).collect()),
        (&["--where", "bytes > 9K", "--where", "ok"], vec![]),
        (&["--where", "ok and process == \"nginx\""], all().step_by(10).collect()),
        (&["--where", "not ok and not bytes >= 300"], vec![1, 2]),
        (&["--where", "path ~ \"/api/?\" and comm == \"worker\""], vec![1, 3, 5, 7, 9]),
        (
            &["--where", "fields.id == context.vpid"],
            vec![12, 13].into_iter().filter(|id| id % 2 == 0 || *id == 13).collect(),
        ),
        (&["--where", "vtid != vpid and id < 4"], vec![1, 3]),
        (&["--where", "event == \"http:request\" and cpu == 1 and id < 6"], vec![1, 3, 5]),
        (&["--pid", "12"], all().step_by(2).collect()),
        (&["--pid", "12", "--pid", "13"], all().collect()),
        (&["--tid", "14"], all().skip(1).step_by(2).collect()),
        (&["--cpu", "1"], all().skip(1).step_by(2).collect()),
        (&["--process", "work*"], all().skip(1).step_by(2).collect()),
        (&["-e", "http:*", "-n", "3"], vec![0, 1, 2]),
        (&["-e", "http:request", "--tail", "3"], vec![97, 98, 99]),
        (&["-e", "http:request", "--tail", "3", "--reverse"], vec![99, 98, 97]),
        (&["-e", "http:request", "-n", "2", "--reverse"], vec![99, 98]),
        (&["--reverse"], all().rev().collect()),
        (&["--since", "+97ms"], vec![97, 98, 99]),
        (&["--until", "+2ms"], vec![0, 1, 2]),
        (&["--since", "-4ms"], vec![97, 98, 99]),
        (&["--last", "4ms"], vec![97, 98, 99]),
        (&["--since", "22:13:20.098", "--until", "2023-11-14T22:13:20.099Z"], vec![97, 98]),
        (&["--since", "1700000000.098", "--until", "2023-11-14 22:13:20.099"], vec![97, 98]),
        (&["--since", "event:http:hard"], vec![]),
        (&["--until", "event:http:request", "-e", "http:*"], vec![0]),
    ];
    for (arguments, expected) in cases {
        // Relative times count from the first event that is not a record of the session's owner, at 1 ms.
        assert_eq!(ids(dir, arguments), expected, "{arguments:?}");
    }
    assert_eq!(lines(dir, &["--since", "event:http:hard"]).len(), 2);
    assert_eq!(lines(dir, &["--since", "event:http:hard", "--until", "event:http:hard"]).len(), 1);
    assert_eq!(lines(dir, &["--where", "cpu >= 0"]).len(), 101);
    assert_eq!(lines(dir, &["-n", "0"]), [""; 0]);
}

#[test]
fn packets_outside_the_time_range_are_not_decoded() {
    let dir = trace();
    let path = dir.path().join("cpu_0");
    let mut bytes = std::fs::read(&path).expect("a stream");
    // The second record of the first packet gets an id without a class: the id is in the header's upper bits.
    let record = dormouse_abi::page::HEADER_SIZE_BYTES + 16 + 8 + 4 + "/api/0".len() + 1 + 1;
    bytes[record..record + 8].fill(0xff);
    std::fs::write(&path, &bytes).expect("a stream");
    assert_eq!(view(dir.path(), &[]).status.code(), Some(1));
    assert_eq!(
        ids(dir.path(), &["--since", "+50ms", "-e", "http:request", "--pid", "12"]),
        (50..100).step_by(2).collect::<Vec<_>>()
    );
}

#[test]
fn other_tools_read_the_formats() {
    let dir = trace();
    let dir = dir.path();
    let json: Vec<Json> =
        lines(dir, &["--format", "json"]).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(json.len(), 104);
    let request = &json[2];
    assert_eq!(request["event"], "http:request");
    assert_eq!(request["time"], "2023-11-14T22:13:20.001000000Z");
    assert_eq!(request["time_ns"], BEGIN_S * 1_000_000_000 + MS);
    assert_eq!((&request["cpu"], &request["pid"], &request["tid"]), (&0.into(), &12.into(), &12.into()));
    assert_eq!(request["process"], "nginx");
    assert_eq!(request["fields"], serde_json::json!({"id": 0, "bytes": 0, "path": "/api/0", "ok": true}));
    let hard = &json[102]["fields"];
    assert_eq!(hard["large"].as_u64(), Some(LARGE));
    assert_eq!(hard["float"].as_f64(), Some(0.1 + 0.2));
    assert_eq!(hard["nan"], "NaN");
    assert_eq!(hard["text"], "a\u{1b}[2J\"b\",\n\u{fffd}\u{9b}");
    assert_eq!(hard["raw"], serde_json::json!([0, 255]));
    assert_eq!(hard["address"], 0xbeef);
    assert_eq!(json[103]["cpu"], Json::Null);

    let output = view(dir, &["--format", "csv", "-e", "http:*"]);
    let mut reader = csv::Reader::from_reader(output.stdout.as_slice());
    let header = reader.headers().expect("a header").clone();
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().expect("rows of one length");
    let cell = |row: usize, name: &str| {
        let column = header.iter().position(|column| column == name).unwrap_or_else(|| panic!("{name} in {header:?}"));
        rows[row][column].to_string()
    };
    assert_eq!(rows.len(), 101);
    assert_eq!(
        (cell(7, "id"), cell(7, "path"), cell(7, "ok"), cell(7, "large")),
        ("7".into(), "/api/7".into(), "false".into(), "".into())
    );
    assert_eq!((cell(100, "large"), cell(100, "float")), (LARGE.to_string(), (0.1 + 0.2).to_string()));
    assert_eq!((cell(100, "text"), cell(100, "raw")), ("a\u{1b}[2J\"b\",\n\u{fffd}\u{9b}".into(), "[0,255]".into()));
    let rows = lines(dir, &["--format", "csv", "-e", "http:request", "--fields", "path,id", "-n", "1"]);
    assert_eq!(
        rows,
        [
            "time,time_ns,event,cpu,pid,tid,process,thread,path,id",
            "2023-11-14T22:13:20.001000000Z,1700000000001000000,http:request,0,12,12,nginx,,/api/0,0"
        ]
    );
    // A table without rows has a header.
    assert_eq!(lines(dir, &["--format", "csv", "--where", "id > 1000"]).len(), 1);

    let pairs = lines(dir, &["--format", "logfmt", "-e", "http:hard"]);
    let wanted = "event=http:hard cpu=0 pid=12 tid=12 process=nginx vpid=12 vtid=12 large=9007199254740993 float=0.30000000000000004 nan=NaN text=\"a\\u001b[2J\\\"b\\\",\\n\u{fffd}\\u009b\"";
    assert!(pairs.len() == 1 && pairs[0].contains(wanted), "{pairs:?}");

    // The format for people in a pipe: no colours, nothing cut, and no control sequences.
    let people = lines(dir, &["--format", "people", "-e", "http:*", "--tail", "1"]);
    let wanted = r#"22:13:20.101000000 nginx  12    [0] http:hard    large=9007199254740993 float=0.30000000000000004 nan=NaN text="a\u{1b}[2J\"b\",\n\xff\u{9b}" raw=[0, 255] address=0xBEEF"#;
    assert_eq!(people, [wanted]);
    let relative =
        view(dir, &["--fields", "id,ok", "-n", "2", "-e", "http:*", "--clock", "relative", "--color", "always"]);
    let said = "dormouse: times count from the first event of the trace, at 2023-11-14 22:13:20.001000000 +00:00\n";
    assert_eq!(String::from_utf8_lossy(&relative.stderr), said);
    let people: Vec<String> = String::from_utf8_lossy(&relative.stdout).lines().map(str::to_owned).collect();
    let plain = people[1].replace("\x1b[", "<").replace('m', ">");
    assert!(people[1].contains("\x1b[1mhttp:request") && plain.contains("ok<0>=false"), "{people:?}");
    assert!(people[1].contains("0.001000000"), "{people:?}");
}

/// Writes a trace of one process with a named thread: an enumeration, a 32-bit number, and a sequence of them.
fn trace_of_values() -> tempfile::TempDir {
    let mut trace = TraceBuilder::new();
    let fields = [
        ("state", FieldType::scalar(Kind::U8)),
        ("x", FieldType::scalar(Kind::F32)),
        ("parts", FieldType::sequence(Kind::F32)),
    ];
    let label = |name: &str, bits| Label { name: name.into(), bits };
    let labels = Labels::from([(0, vec![label("READY", 0), label("DONE", 7)])]);
    let class = trace.labelled_class("app", "work", &fields, labels);
    let name = "app";
    trace.state(0, &StateRecord::Process { process: 1, pid: 7, vpid: 7, name, program: "", command_line: "" });
    trace.state(0, &StateRecord::ThreadName { process: 1, vtid: 8, name: "work er" });
    let stream = trace.stream(0);
    for (time, state, x) in [(1, 0, 0.1f32), (2, 7, -3.3e-9), (3, 9, 16_777_216.0)] {
        let bytes = [x, 0.2f32].map(f32::to_le_bytes).concat();
        let parts = dormouse_ctf::Sequence::new(Kind::F32, &bytes).expect("a sequence");
        trace.event(stream, time * MS, 7, 8, class, &[Value::U8(state), Value::F32(x), Value::Sequence(parts)]);
    }
    in_dir(trace)
}

/// Writes a trace of one event stream.
fn in_dir(trace: TraceBuilder) -> tempfile::TempDir {
    let trace = trace.finish();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("metadata"), &trace.metadata).expect("metadata");
    for (name, bytes) in ["state", "cpu_0"].into_iter().zip(&trace.streams) {
        std::fs::write(dir.path().join(name), bytes).expect("a stream");
    }
    dir
}

/// The level of an event's class is a name in conditions, and the colour of the event's name.
#[test]
fn levels_select_events_and_colour_them() {
    let mut trace = TraceBuilder::new();
    let class = |name: &str, field: &str, level: Option<Level>| ClassDecl {
        provider: "log".into(),
        name: name.into(),
        fields: vec![(field.into(), FieldType::scalar(Kind::U8))],
        labels: Labels::new(),
        level,
    };
    let classes = [
        class("error", "n", Some(Level::Err)),
        class("warning", "n", Some(Level::Warning)),
        class("info", "n", Some(Level::Info)),
        class("debug", "n", Some(Level::DebugLine)),
        class("plain", "n", None),
        // A field of this name goes before the level.
        class("field", "level", Some(Level::Err)),
    ];
    let ids = classes.each_ref().map(|class| trace.declare(class));
    trace.state(0, &StateRecord::Process { process: 1, pid: 7, vpid: 7, name: "app", program: "", command_line: "" });
    let stream = trace.stream(0);
    for (number, id) in (0u8..).zip(ids) {
        trace.event(stream, (u64::from(number) + 1) * MS, 7, 7, id, &[Value::U8(number)]);
    }
    let dir = in_dir(trace);
    let dir = dir.path();
    for (filter, wanted) in [
        ("level <= 4", &["log:error", "log:warning"][..]),
        ("level == \"ERR\"", &["log:error"]),
        ("level ~ \"DEBUG*\"", &["log:debug"]),
        ("level == 5", &["log:field"]),
        ("not level < 6", &["log:info", "log:debug"]),
        ("level >= 0 and n >= 0", &["log:error", "log:warning", "log:info", "log:debug"]),
    ] {
        let found: Vec<String> = lines(dir, &["--format", "json", "--where", filter])
            .iter()
            .map(|line| serde_json::from_str::<Json>(line).expect("JSON")["event"].as_str().expect("a name").into())
            .collect();
        assert_eq!(found, wanted, "{filter}");
    }
    let people = view(dir, &["--format", "people", "--color", "always"]);
    let people = String::from_utf8_lossy(&people.stdout);
    for (colour, name) in [("1;31", "error"), ("1;33", "warning"), ("1", "info"), ("2", "debug"), ("1", "plain")] {
        assert!(people.contains(&format!("\x1b[{colour}mlog:{name}")), "{name}: {people}");
    }
}

#[test]
fn values_are_shown_as_the_program_writes_them() {
    let dir = trace_of_values();
    let dir = dir.path();
    let shown = |arguments: &[&str]| lines(dir, &[&["-e", "app:work"], arguments].concat());
    let json = shown(&["--format", "json"]);
    let ends = [
        r#""thread":"work er","context":{"vpid":7,"vtid":8},"fields":{"state":"READY","x":0.1,"parts":[0.1,0.2]}}"#,
        r#""fields":{"state":"DONE","x":-3.3e-9,"parts":[-3.3e-9,0.2]}}"#,
        r#""fields":{"state":9,"x":16777216.0,"parts":[16777216.0,0.2]}}"#,
    ];
    assert_eq!(json.len(), ends.len());
    assert!(json.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{json:?}");
    let csv = shown(&["--format", "csv"]);
    let header = "time,time_ns,event,cpu,pid,tid,process,thread,state,x,parts,vpid,vtid";
    assert_eq!(csv[0], header);
    assert!(csv[1].ends_with(",app,work er,READY,0.1,\"[0.1,0.2]\",7,8"), "{csv:?}");
    let logfmt = shown(&["--format", "logfmt"]);
    assert!(logfmt[0].ends_with("thread=\"work er\" vpid=7 vtid=8 state=READY x=0.1 parts=[0.1,0.2]"), "{logfmt:?}");
    let people = shown(&["--format", "people"]);
    assert!(people[0].ends_with("state=READY x=0.1 parts=[0.1, 0.2]"), "{people:?}");
    // A length is shown only by name.
    let named = shown(&["--format", "json", "--fields", "_parts_length", "-n", "1"]);
    assert!(named[0].ends_with(r#""fields":{"_parts_length":2}}"#), "{named:?}");

    let count = |filter: &str| shown(&["--where", filter]).len();
    for (filter, expected) in [
        ("x == 0.1", 1),
        ("x == 0.10000000149011612", 0),
        ("x < 0.1", 1),
        ("x <= 0.1", 2),
        ("x == -3.3e-9 and state == \"DONE\"", 1),
        ("x == 16777216", 1),
        ("state == \"READY\" or state == 9", 2),
        ("state ~ \"*D*\"", 2),
    ] {
        assert_eq!(count(filter), expected, "{filter}");
    }
}

#[test]
fn output_in_a_pipe_equals_that_of_babeltrace2() {
    for dir in [trace(), trace_of_values()] {
        equals_that_of_babeltrace2(&dir);
    }
}

fn equals_that_of_babeltrace2(dir: &tempfile::TempDir) {
    let ours = view(dir.path(), &[]).stdout;
    assert_eq!(ours, view(dir.path(), &["--format", "babeltrace"]).stdout);
    if dormouse_testing::has_part("babeltrace2") {
        let theirs = Command::new("babeltrace2").arg(dir.path()).env("TZ", "UTC").output().expect("babeltrace2 runs");
        assert!(theirs.stdout == ours, "{}", String::from_utf8_lossy(&theirs.stdout));
    }
}

#[test]
fn errors_suggest_the_nearest_name() {
    let dir = trace();
    for (arguments, part) in [
        (
            &["-e", "http:reqest"][..],
            "no event class of this trace matches http:reqest; http:request is the nearest of ",
        ),
        (&["--since", "event:http:hart"], "http:hard is the nearest"),
        (&["--where", "byts > 4096"], "line 1, column 1: no event has byts; bytes is the nearest\n  byts > 4096\n  ^"),
        (&["--where", "bytes >"], "column 8: expected a field or a value, the filter ends"),
        (&["--where", "bytes > \"4\""], "the left side is a number, the right side is text"),
        (&["--fields", "pth"], "path is the nearest"),
        (&["--fields", "path", "--format", "babeltrace"], "--format babeltrace prints all fields"),
        (&["--formt", "json"], "a similar argument exists: '--format'"),
        (&["--format", "jso"], "a similar value exists: 'json'"),
        (&["--histogram"], "unexpected argument '--histogram' found\n\nUsage"),
        (&["--since", "yesterday"], "`yesterday` is not a time; write 14:03:05.5"),
        (&["--since", "-1ms", "--until", "+1ms"], "--since is later than --until"),
    ] {
        let output = view(dir.path(), arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(part) && output.stdout.is_empty(), "{arguments:?}: {text}");
    }
    let output = Command::new(DORMOUSE).arg("histogram").output().expect("dormouse runs");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("disarm"), "{output:?}");
}

/// Writes a trace of events at 10, 20 and 30 ms, one in each packet. Three events are lost before the second packet.
fn lossy() -> tempfile::TempDir {
    let mut trace = TraceBuilder::new();
    let class = trace.class("shop", "tick", &[]);
    let stream = trace.stream(0);
    for (ms, lost) in [(10, 0), (20, 3), (30, 0)] {
        trace.event(stream, ms * MS, 1, 1, class, &[]);
        trace.packet(stream, 0, lost);
    }
    let trace = trace.finish();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("metadata"), &trace.metadata).expect("metadata");
    std::fs::write(dir.path().join("cpu_0"), &trace.streams[1]).expect("a stream");
    dir
}

#[test]
fn losses_are_those_of_the_selected_time() {
    let dir = lossy();
    const EDGE: &str = "of the time that is shown: unknown how many lost because events were lost at the edge of this time, in it or not (3)";
    const INSIDE: &str = "of the time that is shown: 3 lost";
    let cases: [(&[&str], usize, Option<&str>); 9] = [
        (&[], 3, Some("3 lost")),
        (&["--since", "+0s"], 3, Some(INSIDE)),
        (&["--since", "+0s", "--until", "+10ms"], 2, Some(INSIDE)),
        (&["--since", "+5ms"], 2, Some(EDGE)),
        (&["--until", "+5ms"], 1, Some(EDGE)),
        (&["--since", "+11ms"], 1, None),
        (&["-n", "1"], 1, None),
        (&["--tail", "1"], 1, None),
        (&["--tail", "2"], 2, Some(EDGE)),
    ];
    for (options, count, expected) in cases {
        let output = view(dir.path(), options);
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().filter(|line| !line.contains("WARNING"));
        assert_eq!(last.map(|line| line.trim_start_matches("dormouse: ")), expected, "{options:?}: {errors}");
        assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), count, "{options:?}");
    }
}

#[test]
fn several_traces_are_read_as_one() {
    let (a, b) = (trace(), lossy());
    let path = b.path().display().to_string();
    let output = view(a.path(), &[&path, "--where", "event == \"shop:tick\""]);
    let times: Vec<String> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| line[10..19].to_string()).collect();
    assert_eq!(times, ["010000000", "020000000", "030000000", "102000000"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains(&path), "names of streams have their trace's");
}

#[test]
fn skipped_files_are_notes() {
    let dir = trace();
    std::fs::write(dir.path().join(".swap"), "x").expect("a file");
    let output = view(dir.path(), &["-v", "-n", "0"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected = [
        "dormouse: note: .swap is no stream and is passed over",
        "dormouse: note: the clock monotonic counts 1000000000 Hz from 1700000000.000000000 s since 1970 on",
    ];
    assert_eq!(errors.lines().collect::<Vec<_>>(), expected);
    for options in [&["-v"][..], &["-v", "--by", "event"], &["--verbose", "--json"]] {
        let output = Command::new(DORMOUSE).arg("stats").args(options).arg(dir.path()).output().expect("dormouse runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors.lines().collect::<Vec<_>>(), expected, "{options:?}");
    }
}

/// The test writes to the trace meanwhile, including incomplete packets and declarations.
#[test]
fn a_trace_is_followed_until_its_session_ends() {
    let whole = trace();
    let read = |name: &str| std::fs::read(whole.path().join(name)).expect("it is read");
    let (metadata, state, cpu) = (read("metadata"), read("state"), read("cpu_0"));
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).expect("it is written");
    // The last class is not written yet, nor are events after the first packets.
    let cut = String::from_utf8_lossy(&metadata).rfind("event {").expect("a class");
    write("metadata", &metadata[..cut]);
    write("state", &state);
    write("cpu_0", &cpu[..4096 + 7]);
    let mut child = Command::new(DORMOUSE)
        .args(["view", "--follow", "--format", "json", "-e", "http:*"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dormouse runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("a line"));
    let id = |line: String| serde_json::from_str::<Json>(&line).expect("JSON")["fields"]["id"].as_u64();
    let first: Vec<_> = lines.by_ref().take(5).map(id).collect();
    assert_eq!(first, [Some(0), Some(2), Some(4), Some(6), Some(8)]);
    write("metadata", &metadata[..cut + 10]);
    write("cpu_0", &cpu);
    write("metadata", &metadata);
    let rest: Vec<_> = lines.by_ref().take(46).map(id).collect();
    assert_eq!(rest[..45], (10..100).step_by(2).map(Some).collect::<Vec<_>>());
    assert_eq!(rest[45], None);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "dormouse: interrupted; the session continues\n");
    assert_eq!((output.status.code(), lines.next()), (Some(0), None));
}

/// The packets of two CPUs are written one after another.
#[test]
fn events_are_held_back_until_every_stream_has_a_later_time() {
    let mut trace = TraceBuilder::new();
    let class = trace.class("p", "e", &[]);
    let streams = [0, 1].map(|cpu| trace.stream(cpu));
    for (cpu, times) in [(0, &[10, 20][..]), (1, &[15]), (1, &[17, 40])] {
        times.iter().for_each(|time| trace.event(streams[cpu], *time, 1, 2, class, &[]));
        trace.packet(streams[cpu], 0, 0);
    }
    let session = StateRecord::Session { mode: "discard", budget_bytes: 1, page_size_bytes: 4096, command_line: "" };
    trace.state(0, &session);
    let trace = trace.finish();
    let later = &trace.streams[streams[1]];
    let first = PacketHeader::decode(later).expect("a packet").packet_size_bytes as usize;
    let cases = [
        ("1h", [&[10, 15][..], &[17, 20], &[40]], ""),
        (
            "0s",
            [&[10, 15, 20], &[17, 40], &[]],
            "dormouse: 1 event was printed after later events: its stream was silent for longer than --delay 0ns\n",
        ),
    ];
    for (delay, expected, said) in cases {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).expect("it is written");
        write("metadata", trace.metadata.as_bytes());
        write("state", &trace.streams[0]);
        write("cpu_0", &trace.streams[streams[0]]);
        write("cpu_1", &later[..first]);
        let mut child = Command::new(DORMOUSE)
            .args(["view", "--follow", "--delay", delay, "--format", "json", "-e", "p:e"])
            .arg(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dormouse runs");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("a line"));
        let time = |line: String| serde_json::from_str::<Json>(&line).expect("JSON")["time_ns"].as_i64();
        let mut times = lines.map(|line| time(line).expect("a time") - 1_700_000_000_000_000_000);
        let mut take = |count: usize| times.by_ref().take(count).collect::<Vec<_>>();
        assert_eq!(take(expected[0].len()), expected[0], "{delay}");
        let mut grown = OpenOptions::new().append(true).open(dir.path().join("cpu_1")).expect("a stream");
        grown.write_all(&later[first..]).expect("it is written");
        assert_eq!(take(expected[1].len()), expected[1], "{delay}");
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
            .expect("it is there");
        assert_eq!(take(usize::MAX), expected[2], "{delay}");
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors, format!("{said}dormouse: interrupted; the session continues\n"), "{delay}");
        assert_eq!(output.status.code(), Some(0), "{delay}");
    }
}

#[test]
fn a_closed_output_is_not_an_error() {
    let dir = trace();
    for format in ["people", "babeltrace", "json", "csv", "logfmt"] {
        for arguments in [&[][..], &["--reverse"]] {
            let mut child = Command::new(DORMOUSE)
                .args(["view", "--format", format])
                .arg(dir.path())
                .args(arguments)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("dormouse runs");
            let mut first = String::new();
            let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
            reader.read_line(&mut first).expect("a line");
            drop(reader);
            let output = child.wait_with_output().expect("it ends");
            assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{format}");
            assert!(!first.is_empty());
        }
    }
}
