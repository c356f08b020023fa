//! `dormouse stats` with questions: its answers, and a comparison with babeltrace2's output for the same trace.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::{StateRecord, Value};
use dormouse_traces::TraceBuilder;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::DORMOUSE;

/// Writes a trace: requests of two programs on two CPUs, with sizes, and three events lost.
fn trace() -> TempDir {
    let mut builder = TraceBuilder::new();
    let fields = [("bytes", FieldType::scalar(Kind::U64)), ("path", FieldType::scalar(Kind::Str))];
    let begin = builder.class("http", "begin", &fields);
    let end = builder.class("http", "end", &[]);
    let cpus = [0, 1].map(|cpu| builder.stream(cpu));
    for (process, vpid, name) in [(1, 7, "web"), (2, 8, "cache")] {
        builder.state(1, &StateRecord::Process { process, pid: vpid, vpid, name, program: "/bin/x", command_line: "" });
    }
    let mut time = 1000;
    for index in 0..40u64 {
        let (stream, vpid) = (cpus[(index % 2) as usize], 7 + (index / 2 % 2) as u32);
        let path = format!("/{}", index % 3);
        builder.event(stream, time, vpid, vpid, begin, &[Value::U64(index * index), Value::Str(path.as_bytes())]);
        builder.event(stream, time + 100 + 10 * index, vpid, vpid, end, &[]);
        time += 1_000_000;
    }
    builder.packet(cpus[0], 0, 0);
    time += 1_000_000;
    builder.event(cpus[0], time, 7, 7, end, &[]);
    builder.packet(cpus[0], 0, 3);
    let trace = builder.finish();
    let dir = tempfile::tempdir().expect("a directory");
    trace.write(dir.path());
    dir
}

/// Runs `dormouse stats`. Returns its output, its exit code and the last line of errors.
fn stats(dir: &TempDir, options: &[&str]) -> (String, Option<i32>, String) {
    // An hour ahead of UTC.
    let mut command = Command::new(DORMOUSE);
    let output = command.arg("stats").arg(dir.path()).args(options).env("TZ", "TST-1").output().expect("dormouse runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let errors = text(output.stderr);
    (text(output.stdout), output.status.code(), errors.lines().last().unwrap_or_default().to_string())
}

const HEAD: &str = "\
events    81, 1976/s, 1736 bytes
lost      at least 3
          because the trace was not closed: its session is live or was killed
duration  0.041000 s
";
const LOST: &str = "
LOST  PACKETS                  FROM                    TO  STREAM
   3        0  1700000000.038001480  1700000000.041001000  cpu_0
";
const NOTE: &str = "
note: percentiles are within 1 % of the value that has their rank; all other figures are exact
";

#[test]
fn answers_are_printed_as_documented() {
    let trace = trace();
    let cases: [(&[&str], String); 4] = [
        (
            &["--by", "event,cpu", "--top", "3"],
            format!(
                "{HEAD}
EVENTS  EVENTS/S  BYTES  EVENT       CPU
    21       512    336  http:end    0
    20       488    540  http:begin  0
    20       488    540  http:begin  1
… and 1 more, 20 events
{LOST}"
            ),
        ),
        (
            &["--field", "bytes", "--by", "process"],
            format!(
                "{HEAD}
COUNT       SUM  MIN   MEAN    P50       P90       P99     P99.9       MAX  EVENT       PROCESS
   20  10.8 KiB  4 B  552 B  361 B  1.20 KiB  1.49 KiB  1.49 KiB  1.49 KiB  http:begin  cache (8)
   20  9.27 KiB  0 B  474 B  290 B  1.06 KiB  1.34 KiB  1.34 KiB  1.34 KiB  http:begin  web (7)
{NOTE}{LOST}"
            ),
        ),
        (
            &["--latency", "http:begin..http:end", "--slowest", "2"],
            format!(
                "{HEAD}pairs     39; alone: begins 0, ends 1
          left out, because events were lost between begin and end: 1
          times count from the first event of the trace, at 2023-11-14 23:13:20.000001000 +01:00

COUNT      SUM     MIN    MEAN     P50     P90     P99   P99.9     MAX
   39  11.3 µs  100 ns  290 ns  290 ns  450 ns  480 ns  480 ns  480 ns

SLOWEST               BEGIN      RELATIVE  THREAD  PROCESS    FIELDS
 480 ns  23:13:20.038001000  +0.038000000       8  cache (8)  bytes=1444 path=/2
 470 ns  23:13:20.037001000  +0.037000000       7  web (7)    bytes=1369 path=/1

note: `dormouse view {} --during http:begin..http:end --slowest 2` prints what happened during them
{NOTE}{LOST}",
                trace.path().display()
            ),
        ),
        (
            &["-e", "http:end", "--interval", "20ms"],
            format!(
                "{}          times count from the first event of the trace, at 2023-11-14 23:13:20.000001000 +01:00

EVENTS  EVENTS/S  BYTES  FROM
    20      1000    320  +0.000000 s
    20      1000    320  +0.020000 s
     1      50.0     16  +0.040000 s
{LOST}",
                HEAD.replace("81, 1976/s, 1736", "41, 1000/s, 656")
            ),
        ),
    ];
    for (options, expected) in cases {
        let (text, code, error) = stats(&trace, options);
        assert_eq!((text.as_str(), code, error.as_str()), (expected.as_str(), Some(0), ""), "{options:?}\n{text}");
    }
}

#[test]
fn a_trace_does_not_differ_from_itself() {
    let trace = trace();
    let other = trace.path().display().to_string();
    let (text, code, _) = stats(&trace, &["--diff", &other, "--field", "bytes", "--json"]);
    let json: Json = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, json["a"] == json["b"]), (Some(0), true));
    let figures = json["ratios"][0]["figures"].as_array().expect("figures");
    assert_eq!(figures.len(), 5);
    for figure in figures {
        assert_eq!((&figure["ratio"], &figure["verdict"]), (&Json::from(1.0), &Json::from("cannot be told")));
    }
    let (text, ..) = stats(&trace, &["--diff", &other]);
    assert!(text.contains("B IS            FIGURE    EVENT\n"), "{text}");
}

/// Options that select events apply to all questions.
#[test]
fn options_select_events() {
    let trace = trace();
    let count = |options: &[&str]| {
        let (text, code, error) = stats(&trace, &[options, &["--json"]].concat());
        assert_eq!((code, error.as_str()), (Some(0), ""), "{options:?}");
        let json: Json = serde_json::from_str(&text).expect("JSON");
        (json["events"].as_u64().expect("events"), json["lost"]["events"].as_u64().expect("lost"))
    };
    for (options, expected) in [
        (&["--where", "bytes >= 100"][..], (30, 3)),
        (&["--where", "bytes >= 100 and process == \"web\"", "--by", "path"], (14, 3)),
        (&["-e", "http:end", "--pid", "7"], (21, 3)),
        (&["--process", "cach*", "--field", "bytes"], (40, 3)),
        (&["--cpu", "1", "--interval", "10ms"], (40, 3)),
        (&["--since", "1700000000.010", "--until", "1700000000.015"], (10, 0)),
        // Both ends are in it.
        (&["--since", "+10ms", "--for", "5ms"], (11, 0)),
        (&["--since", "event:http:end", "--for", "0ns"], (1, 0)),
        (&["--last", "1ms"], (1, 0)),
        // These options select pairs.
        (&["--tid", "8", "--latency", "http:begin..http:end"], (81, 3)),
        (&["--tid", "8", "--latency", "http"], (81, 3)),
        (&["--since", "event:http:end", "--until", "event:http:end"], (1, 0)),
    ] {
        assert_eq!(count(options), expected, "{options:?}");
    }
    let (text, ..) = stats(&trace, &["--where", "process == \"web\"", "--latency", "http:begin..http:end"]);
    assert!(text.contains("pairs     20; alone: begins 0, ends 1"), "{text}");
    // The name of slices stands for the classes that make them.
    let named = stats(&trace, &["--where", "process == \"web\"", "--latency", "http"]).0;
    let commands = ["--during http ", "--during http:begin..http:end "];
    assert_eq!(named.replace(commands[0], commands[1]), text);
    let (text, ..) = stats(&trace, &["--last", "2ms"]);
    let edge = "lost      unknown\n          because events were lost at the edge of this time, in it or not (3)";
    assert!(text.contains(edge), "{text}");
    // A trace that is given twice has all events twice.
    let path = trace.path().display().to_string();
    assert_eq!(count(&[&path, "--by", "event"]).0, 2 * 81);
    let (_, code, error) = stats(&trace, &["--where", "byts > 1"]);
    assert_eq!((code, error.trim()), (Some(2), "^"));
}

#[test]
fn errors_name_existing_fields_and_classes() {
    let trace = trace();
    let cases: [(&[&str], &str); 5] = [
        (&["--latency", "htp"], "dormouse: --latency: no slices are called htp; there is http"),
        (&["--field", "byte"], "dormouse: no event class has a field `byte`; the nearest is `bytes`"),
        (&["--by", "pids"], "dormouse: no event class has a field `pids`; the nearest is `pid`"),
        (&["-e", "htp:*"], "dormouse: no event class of the trace matches `htp:*`; the nearest is `http:end`"),
        (&["--field", "path"], "dormouse: the field `path` is text, which has no sum; --by path counts its values"),
    ];
    for (options, expected) in cases {
        assert_eq!(stats(&trace, options), (String::new(), Some(2), expected.into()));
    }
}

#[test]
fn damage_is_reported_and_a_closed_pipe_is_not_an_error() {
    let trace = trace();
    for options in [&["--by", "path"][..], &["--field", "bytes", "--json"]] {
        let mut command = Command::new(DORMOUSE);
        command.arg("stats").arg(trace.path()).args(options).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("dormouse runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{options:?}");
    }
    let path = trace.path().join("cpu_1");
    let bytes = std::fs::read(&path).expect("it is read");
    std::fs::write(&path, &bytes[..bytes.len() - 10]).expect("it is written");
    let (text, code, _) = stats(&trace, &["--by", "event"]);
    let warning =
        format!("\nwarning: cpu_1: packet 0 at byte 0 is cut off: {} of {} bytes\n", bytes.len() - 10, bytes.len());
    assert!(code == Some(1) && text.ends_with(&warning), "{text}");
    let (text, code, _) = stats(&trace, &["--by", "event", "--json"]);
    let json: Json = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, json["warnings"].as_array().map(Vec::len)), (Some(1), Some(1)));
}

/// This test counts events in babeltrace2's output, and compares.
#[test]
fn counts_agree_with_babeltrace2() {
    if !dormouse_testing::has("babeltrace2") {
        return;
    }
    let trace = trace();
    let output = Command::new("babeltrace2").arg(trace.path()).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let (mut classes, mut sums) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    for line in text.lines().filter(|line| line.contains(" http:")) {
        let class = line.split_whitespace().find(|word| word.starts_with("http:")).expect("a class");
        *classes.entry(class.trim_end_matches(':').into()).or_default() += 1;
        let Some((_, rest)) = line.split_once("bytes = ") else { continue };
        let (bytes, rest) = rest.split_once(", path = \"").expect("a path");
        let path = rest.split('"').next().expect("its end");
        *sums.entry(path.into()).or_default() += bytes.parse::<u64>().expect("a number");
    }
    let rows = |options: &[&str], name: &str, value: fn(&Json) -> &Json| {
        let json: Json = serde_json::from_str(&stats(&trace, options).0).expect("JSON");
        let rows = json["rows"].as_array().expect("rows").iter();
        rows.map(|row| (row["key"][name].as_str().expect("a name").to_string(), value(row).as_u64().expect("a number")))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(rows(&["--by", "event", "--json"], "event", |row| &row["count"]), classes);
    assert_eq!(rows(&["--field", "bytes", "--by", "path", "--json"], "path", |row| &row["values"]["sum"]), sums);
}

/// Without this order these groups, which have one pair each, would begin with the shortest.
#[test]
fn groups_of_pairs_are_in_the_order_of_their_time() {
    let asked = ["--latency", "http:begin..http:end", "--by", "bytes", "--json"];
    let json: Json = serde_json::from_str(&stats(&trace(), &asked).0).expect("JSON");
    let rows = json["rows"].as_array().expect("rows").iter();
    let sums: Vec<u64> = rows.map(|row| row["values"]["sum"].as_u64().expect("a sum")).collect();
    assert!(sums.len() > 10 && sums.is_sorted_by(|a, b| a >= b), "{sums:?}");
}

/// Writes a trace that is a sample: a tenth of the requests, all large ones, and some ticks.
fn sampled() -> TempDir {
    let mut builder = TraceBuilder::new();
    let fields = [("bytes", FieldType::scalar(Kind::U64))];
    let [request, tick] = ["request", "tick"].map(|name| builder.class("shop", name, &fields));
    let cpu = builder.stream(0);
    let rules = "shop:request where bytes > 4K\nshop:request sample 1/10\nshop:tick sample 50/s";
    builder.state(1, &StateRecord::Rules { rules });
    for index in 0..9u64 {
        let bytes = if index % 3 == 0 { 10_000 } else { 100 };
        builder.event(cpu, 1000 + 1_000_000 * index, 7, 7, request, &[Value::U64(bytes)]);
    }
    builder.event(cpu, 10_001_000, 7, 7, tick, &[Value::U64(1)]);
    let dir = tempfile::tempdir().expect("a directory");
    builder.finish().write(dir.path());
    dir
}

#[test]
fn a_sample_is_told_and_scaled() {
    let dir = sampled();
    let (text, code, error) = stats(&dir, &[]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "a sample is no error");
    let note = "
note: the trace is a sample. ESTIMATED is about how many events happened for which a rule's condition was true, ERROR its
standard error; - is not known. All other figures are those of recorded events
";
    let table = "
EVENTS  ESTIMATED  ERROR  BYTES  ID  CLASS         SAMPLE
     9         63     23    216   0  shop:request  1/10
     1          -      -     24   1  shop:tick     at most 50 a second: not scaled
";
    assert!(text.contains(&format!("{table}{note}")), "{text}");
    let (text, code, _) = stats(&dir, &["--field", "bytes", "-e", "shop:request"]);
    let of_classes = "      (shop:request: 1/10)\n";
    assert!(code == Some(0) && text.contains(&format!("{note}{of_classes}")), "{text}");
    let row = text.lines().find(|line| line.ends_with("shop:request")).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().take(7).collect();
    // 3 × 10,000, and 6 × 100, of which each stands for ten.
    assert_eq!(cells, ["9", "63", "23", "29.9", "KiB", "35.2", "KiB"], "{text}");
    for question in [&["--latency", "shop:request..shop:tick"][..], &["--by", "event", "--diff"]] {
        let path = dir.path().to_str().expect("text");
        let other = question.contains(&"--diff").then_some(path);
        let (text, code, _) = stats(&dir, &[question, other.as_slice()].concat());
        let told = "note: the trace is a sample: counts are those of recorded events (shop:request: 1/10; shop:tick: at \
                    most 50 a second: not scaled)";
        assert!(code == Some(0) && text.contains(told), "{text}");
        assert_eq!(text.contains("; pairs are those of which both events were recorded"), other.is_none(), "{text}");
    }
}

/// Where a process runs is a name in all commands, and a field of an event goes before it.
#[test]
fn events_are_selected_by_where_their_processes_run() {
    let mut builder = TraceBuilder::new();
    let tick = builder.class("shop", "tick", &[]);
    let login = builder.class("shop", "login", &[("user", FieldType::scalar(Kind::Str))]);
    let cpu = builder.stream(0);
    for (process, uid, user, container) in [(1, 33, "www", "c1"), (2, 70, "pg", "")] {
        let [pid, vpid] = [process + 6; 2];
        builder.state(1, &StateRecord::Process { process, pid, vpid, name: "x", program: "/x", command_line: "" });
        builder.state(1, &StateRecord::ProcessContext { process, uid, user, cgroup: "/g", container });
    }
    for (time, vpid) in [(10, 7), (20, 8), (30, 8), (40, 9)] {
        builder.event(cpu, time, vpid, vpid, tick, &[]);
    }
    builder.event(cpu, 50, 8, 8, login, &[Value::Str(b"www")]);
    let dir = tempfile::tempdir().expect("a directory");
    builder.finish().write(dir.path());
    let run = |command: &[&str], condition: &str| {
        let mut command_line = Command::new(DORMOUSE);
        command_line.arg(command[0]).arg(dir.path()).args(&command[1..]).args(["-e", "shop:*", "--where", condition]);
        let output = command_line.output().expect("dormouse runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (text(output.stdout), text(output.stderr))
    };
    for (condition, times) in [
        (r#"user == "pg""#, &[20, 30][..]),
        (r#"user == "www""#, &[10, 50]),
        (r#"not user == "www""#, &[20, 30]),
        (r#"context.user == "pg""#, &[20, 30, 50]),
        (r#"fields.user ~ "w*""#, &[50]),
        ("uid < 50", &[10]),
        (r#"container == """#, &[20, 30, 50]),
        (r#"container == "c1" and cgroup == "/g""#, &[10]),
    ] {
        let found = |text: &str| -> Vec<u64> {
            let time = |line: &str| {
                let event: Json = serde_json::from_str(line).expect("JSON");
                event["time_ns"].as_u64().expect("a time") - 1_700_000_000_000_000_000
            };
            text.lines().map(time).collect()
        };
        assert_eq!(found(&run(&["view", "--format", "json"], condition).0), times, "{condition}");
        let exported = run(&["export", "--to", "json", "--output", "-"], condition).0;
        assert_eq!(exported.lines().count(), times.len(), "{condition}: {exported}");
        let counted: Json = serde_json::from_str(&run(&["stats", "--json"], condition).0).expect("JSON");
        assert_eq!(counted["events"], times.len(), "{condition}");
    }
    let error = run(&["view"], r#"usr == "pg""#).1;
    assert!(error.contains("no event has usr; user is the nearest"), "{error}");
    let error = run(&["view"], "user == 7").1;
    assert!(error.contains("the left side is text, the right side is a number"), "{error}");
    let table = stats(&dir, &["-e", "shop:tick", "--by", "user,container"]).0;
    assert!(table.contains("pg"), "{table}");
}
