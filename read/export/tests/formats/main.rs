//! Exports of timelines, and of hostile traces, checked by the definitions of the tools that read them.

mod speedscope;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_analysis::timeline::{FoundKey, Options, Totals};
use dormouse_ctf::{Merge, StateRecord, StreamReader, Trace, Value};
use dormouse_export::{Batch, Exporter, Format};
use dormouse_testing::mutations::{Seed, alone};
use dormouse_testing::{Lack, is_installed, skip};
use dormouse_traces::TraceBuilder;
use serde_json::{Value as Json, json};

/// Epoch of the traces' clock, in nanoseconds since the Unix epoch.
const EPOCH_NS: u64 = 1_700_000_000 * 1_000_000_000;

/// Exports a trace in batches of a few operations.
fn export_of(format: Format, options: &Options, trace: &Trace, streams: &[Vec<u8>]) -> (Vec<u8>, Totals) {
    let names: Vec<String> = (0..streams.len()).map(|index| format!("s{index}")).collect();
    let of_stream = names.iter().map(|name| (name.as_str(), 0));
    let mut exporter = Exporter::new(format, options, &[trace], of_stream, EPOCH_NS as i64).unwrap();
    let readers = streams.iter().enumerate().map(|(index, bytes)| StreamReader::new(trace, index, bytes.as_slice()));
    let (mut events, mut batch, mut encoders) = (Merge::new(readers), Batch::default(), Vec::new());
    // Several encoders, like those of several threads.
    encoders.extend((0..2).filter_map(|_| exporter.encoder()));
    let mut out = Vec::new();
    encoders.iter().take(1).for_each(|encoder| encoder.begin(&mut out));
    let mut encode = |batch: &mut Batch<'_>, out: &mut Vec<u8>| {
        encoders.reverse();
        encoders.iter_mut().take(1).for_each(|encoder| encoder.encode(batch));
        out.extend_from_slice(batch.bytes());
        batch.clear();
    };
    loop {
        // Some events are kept first, as when all are selected.
        if batch.block.len() % 2 == 1 && events.keep_next(&mut batch.block) {
            exporter.take(&mut batch);
        }
        let Some(next) = events.next_event() else { break };
        match next {
            Ok(event) => {
                if exporter.event(&event, &mut batch) {
                    events.keep(&mut batch.block);
                }
            }
            Err(notice) => exporter.notice(&notice, events.streams()[notice.stream].time_ns(), &mut batch),
        }
        if batch.block.len() > 6 {
            encode(&mut batch, &mut out);
        }
    }
    let encoder = exporter.encoder();
    let totals = exporter.finish(&mut batch, &mut out).unwrap();
    encode(&mut batch, &mut out);
    encoder.iter().for_each(|encoder| encoder.end(&mut out));
    (out, totals)
}

fn export(format: Format, options: &Options, trace: &dormouse_traces::Trace) -> (Vec<u8>, Totals) {
    export_of(format, options, &Trace::decode(trace.metadata.as_bytes()).unwrap(), &trace.streams)
}

/// Requests that nest, overlap and move from thread to thread, with fields of all kinds, a counter and a loss.
fn builder() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    let s = FieldType::scalar;
    let fields = [
        ("id", s(Kind::U64)),
        ("path", s(Kind::Str)),
        ("is_ok", s(Kind::Bool)),
        ("at", s(Kind::Pointer)),
        ("change", s(Kind::I32)),
        ("ratio", s(Kind::F64)),
        ("sizes", FieldType { kind: Kind::U16, sequence: true }),
    ];
    let request = ["request_entry", "request_exit"].map(|name| builder.class("http", name, &fields));
    let query = ["query_begin", "query_end"].map(|name| builder.class("db", name, &[]));
    let job = ["in", "out"].map(|name| builder.class("job", name, &[("id", s(Kind::U32))]));
    let queue = builder.class("net", "queue", &[("len", s(Kind::I64))]);
    let process =
        |vpid, name| StateRecord::Process { process: vpid, pid: vpid, vpid, name, program: "", command_line: "" };
    builder.state(1, &process(7, "web"));
    builder.state(1, &process(8, "a;b <script>\u{7}"));
    let streams = [builder.stream(0), builder.stream(1)];
    let path = |text: &'static [u8]| {
        let sizes = dormouse_ctf::Sequence::new(Kind::U16, &[1, 0, 2, 0]).unwrap();
        [
            Value::U64(u64::MAX),
            Value::Str(text),
            Value::Bool(1),
            Value::Pointer(0x7FFF),
            Value::I32(-5),
            Value::F64(0.5),
            Value::Sequence(sizes),
        ]
    };
    builder.event(streams[0], 1000, 7, 7, request[0], &path(b"/a\n</script>"));
    builder.event(streams[0], 1500, 7, 7, query[0], &[]);
    builder.event(streams[0], 1600, 7, 7, queue, &[Value::I64(-3)]);
    builder.event(streams[0], 2500, 7, 7, query[1], &[]);
    builder.event(streams[0], 2700, 7, 7, job[0], &[Value::U32(1)]);
    builder.event(streams[0], 3000, 7, 7, query[0], &[]);
    builder.event(streams[0], 4000, 7, 7, request[1], &path(b"bad \xFF utf-8"));
    builder.event(streams[1], 4500, 7, 9, job[1], &[Value::U32(1)]);
    builder.event(streams[0], 5000, 7, 7, query[1], &[]);
    builder.event(streams[1], 5500, 8, 8, query[0], &[]);
    builder.packet(streams[1], 0, 0);
    builder.event(streams[1], 7500, 8, 8, query[1], &[]);
    builder.packet(streams[1], 0, 6);
    builder.event(streams[0], 8000, 8, 8, query[1], &[]);
    builder.event(streams[0], 9000, 7, 7, request[0], &path(b"/open"));
    builder
}

fn options() -> Options {
    Options {
        pairs: vec!["job:in..job:out".parse().unwrap()],
        key: vec!["id".into()],
        counters: vec![("net:queue".into(), "len".into())],
        ..Options::default()
    }
}

/// Definitions of a format: a package, and a module of it.
type Definitions = (&'static str, &'static str);

const PERFETTO: Definitions = ("perfetto", "perfetto.protos.perfetto.trace.perfetto_trace_pb2");
const OTLP: Definitions = ("opentelemetry-proto", "opentelemetry.proto.collector.trace.v1.trace_service_pb2");

/// Returns an interpreter with the definitions, in an environment of its own within cargo's target directory; `None`
/// counts the test as skipped.
fn python((package, module): Definitions) -> Option<PathBuf> {
    static PYTHONS: Mutex<BTreeMap<&str, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    let runs =
        |command: &mut Command| command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success());
    let make = || {
        let program = std::env::current_exe().unwrap();
        let dir = program.parent().and_then(Path::parent).unwrap().join("export-tests").join(package);
        let python = dir.join("bin/python");
        let imports = || runs(Command::new(&python).args(["-c", &format!("import {module}")]));
        if imports() {
            return Some(python);
        }
        let install =
            ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "30"];
        let is_made = runs(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir))
            && runs(Command::new(&python).args(install).args(["--only-binary", ":all:", package]));
        (is_made && imports()).then_some(python)
    };
    let python = PYTHONS.lock().unwrap().entry(package).or_insert_with(make).clone();
    if python.is_none() {
        let how = format!("`apt-get install python3-venv`; `pip install {package}`");
        skip(Lack::machine(format!("Python has no {package}"), &how));
    }
    python
}

/// Returns what a script reads of an export with these definitions.
fn read_by(definitions: Definitions, script: &str, bytes: &[u8]) -> Option<Json> {
    let python = python(definitions)?;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("export");
    std::fs::write(&file, bytes).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(script);
    let output = Command::new(python).arg(script).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn perfetto(bytes: &[u8]) -> Option<Json> {
    read_by(PERFETTO, "read_perfetto.py", bytes)
}

fn otlp(bytes: &[u8]) -> Option<Json> {
    read_by(OTLP, "read_otlp.py", bytes)
}

/// Returns track, name, begin and end since the trace's begin, and depth of each slice.
fn slices(found: &Json) -> Vec<(String, String, u64, Option<u64>, u64)> {
    let ns = |json: &Json| json.as_u64().map(|ns| ns - EPOCH_NS);
    let text = |json: &Json| json.as_str().unwrap().to_string();
    let slice = |slice: &Json| {
        let depth = slice["depth"].as_u64().unwrap();
        (text(&slice["track"]), text(&slice["name"]), ns(&slice["begin"]).unwrap(), ns(&slice["end"]), depth)
    };
    found["slices"].as_array().unwrap().iter().map(slice).collect()
}

/// Slices whose begins and ends no field joins are named so that a picture shows it. Those with a key have a track of
/// their own.
#[test]
fn slices_that_are_not_certain_say_so_in_their_name() {
    let found = FoundKey { name: "db:query".into(), fields: Vec::new(), alone: 2, alone_by_thread: 2 };
    let options = Options { found: vec![found], ..options() };
    let (bytes, totals) = export(Format::Chrome, &options, &builder().finish());
    assert!(totals.slices_doubtful > 0);
    let json: Json = serde_json::from_slice(&bytes).unwrap();
    let begins = |phase: &str| {
        let events = json["traceEvents"].as_array().unwrap().iter();
        events.filter(|event| event["ph"] == phase).map(|event| event["name"].as_str().unwrap()).collect::<Vec<_>>()
    };
    for phase in ["B", "E"] {
        let names = begins(phase);
        assert!(names.contains(&"db:query (not certain)") && names.contains(&"http:request"), "{phase}: {names:?}");
        assert!(!names.contains(&"db:query"), "{phase}: {names:?}");
    }
    let (bytes, _) = export(Format::Perfetto, &options, &builder().finish());
    let Some(found) = perfetto(&bytes) else { return };
    let names: Vec<(String, String)> = slices(&found).into_iter().map(|(track, name, ..)| (track, name)).collect();
    assert!(names.contains(&("web (7)/7".into(), "db:query (not certain)".into())), "{names:?}");
    assert!(names.contains(&("web (7)/job:in..job:out".into(), "job:in..job:out".into())), "{names:?}");
    assert!(!names.iter().any(|(_, name)| name == "db:query"), "{names:?}");
}

#[test]
fn perfetto_reads_the_whole_timeline() {
    let (bytes, totals) = export(Format::Perfetto, &options(), &builder().finish());
    let Some(found) = perfetto(&bytes) else { return };
    assert_eq!(found["clocks"], json!({"1": EPOCH_NS + 1_000_000_000, "3": 1_000_000_000}));
    let slice = |track: &str, name: &str, begin, end, depth| (track.to_string(), name.to_string(), begin, end, depth);
    let hostile = "a;b <script>\u{7} (8)/8";
    assert_eq!(
        slices(&found),
        [
            slice("web (7)/7", "http:request", 1000, Some(4000), 0),
            slice("web (7)/7", "db:query", 1500, Some(2500), 1),
            slice("web (7)/job:in..job:out", "job:in..job:out", 2700, Some(4500), 0),
            // Cut where the request ends.
            slice("web (7)/7", "db:query", 3000, Some(4000), 1),
            slice("web (7)/7", "db:query", 4000, Some(5000), 0),
            slice(hostile, "db:query", 5500, Some(7500), 0),
            slice("lost by s2", "6 events lost", 5500, Some(7500), 0),
            slice("web (7)/7", "http:request", 9000, None, 0),
        ]
    );
    let (all, fields) = (&found["slices"], |text: &str| {
        json!({
            "cpu": ["uint", 0], "id": ["uint", u64::MAX], "path": ["string", text], "is_ok": ["bool", true],
            "at": ["pointer", 0x7FFF], "change": ["int", -5], "ratio": ["double", 0.5], "sizes": [["uint", 1], ["uint", 2]],
        })
    });
    let mut expected = fields("/a\n</script>");
    expected["end"] = fields("bad \u{FFFD} utf-8");
    assert_eq!(all[0]["args"], expected);
    assert_eq!(all[0]["category"], json!(["http"]));
    assert_eq!(all[4]["args"]["continued"], json!(["bool", true]));
    assert_eq!(all[5]["args"]["events lost between begin and end"], json!(["bool", true]));
    assert_eq!(found["counters"], json!([{"track": "web (7)/net:queue len", "ns": EPOCH_NS + 1600, "value": -3}]));
    assert_eq!(found["flows"], json!([["web (7)/7", "web (7)/9"]]));
    let instants: Vec<_> = found["instants"].as_array().unwrap().iter().map(|instant| &instant["name"]).collect();
    assert_eq!(instants, ["net:queue", "job:in", "job:out", "db:query_end"]);
    assert_eq!(found["instants"][3]["args"]["begin is not in the trace"], json!(["bool", true]));
    let expected = Totals {
        events: 13,
        slices: 5,
        slices_unfinished: 1,
        instants: 4,
        counter_values: 1,
        flows: 1,
        losses: 1,
        events_lost: 6,
        ends_unpaired: 1,
        slices_across_losses: 1,
        ..Totals::default()
    };
    assert_eq!(totals, expected);
}

/// Keys that an event of each kind has in Chrome's format, besides `ph`, `pid` and `tid`.
const KEYS: [(&str, &[&str]); 8] = [
    ("B", &["ts", "name", "cat", "args"]),
    ("E", &["ts"]),
    ("X", &["ts", "dur", "name", "cat", "args"]),
    ("i", &["ts", "s", "name", "cat", "args"]),
    ("C", &["ts", "name", "args"]),
    ("s", &["ts", "id", "name", "cat"]),
    ("f", &["ts", "id", "bp", "name", "cat"]),
    ("M", &["name", "args"]),
];

/// Returns the events of an export. Checks that each has its keys, and that begins and ends are balanced.
fn chrome(bytes: &[u8]) -> Vec<Json> {
    let whole: Json = serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}"));
    let Json::Array(events) = whole["traceEvents"].clone() else { panic!("no array") };
    let mut open = std::collections::HashMap::<_, Vec<f64>>::new();
    for event in &events {
        let kind = event["ph"].as_str().unwrap();
        let (_, keys) = KEYS.iter().find(|(of, _)| *of == kind).unwrap_or_else(|| panic!("{kind}"));
        assert!(keys.iter().all(|key| !event[*key].is_null()), "{event}");
        assert!(["pid", "tid"].iter().all(|key| event[*key].is_u64()), "{event}");
        assert!(kind == "M" || event["ts"].is_f64(), "{event}");
        assert!(event["dur"].is_null() || event["dur"].as_f64().unwrap() >= 0.0, "{event}");
        let stack = open.entry((event["pid"].as_u64(), event["tid"].as_u64())).or_default();
        match kind {
            "B" => stack.push(event["ts"].as_f64().unwrap()),
            "E" => assert!(stack.pop().unwrap() <= event["ts"].as_f64().unwrap(), "{event}"),
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty), "what begins ends");
    events
}

#[test]
fn chrome_has_the_whole_timeline() {
    let (bytes, _) = export(Format::Chrome, &options(), &builder().finish());
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "control characters are escaped");
    let events = chrome(&bytes);
    let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
    let begins: Vec<_> =
        of("B").iter().map(|event| (event["name"].as_str().unwrap(), event["ts"].as_f64().unwrap())).collect();
    assert_eq!(
        begins,
        [
            ("http:request", 1.0),
            ("db:query", 1.5),
            ("job:in..job:out", 2.7),
            ("db:query", 3.0),
            ("db:query", 4.0),
            ("db:query", 5.5),
            ("http:request", 9.0)
        ]
    );
    let fields = &of("B")[0]["args"]["fields"];
    assert_eq!(fields["path"], "/a\n</script>");
    assert_eq!((&fields["is_ok"], &fields["change"], &fields["sizes"]), (&json!(true), &json!(-5), &json!([1, 2])));
    assert!(of("E").iter().any(|end| end["args"]["end"]["fields"]["path"] == "bad \u{FFFD} utf-8"));
    assert!(of("E").iter().any(|end| end["args"]["events lost between begin and end"] == true));
    assert!(of("E").iter().any(|end| end["args"]["end"]["not in the trace"] == true));
    let process = of("M").into_iter().find(|event| event["name"] == "process_name" && event["pid"] == 8).unwrap();
    assert_eq!(process["args"]["name"], "a;b <script>\u{7}");
    let (from, to) = (of("s"), of("f"));
    assert_eq!((from.len(), &from[0]["id"], &from[0]["tid"], &to[0]["tid"]), (1, &to[0]["id"], &json!(7), &json!(9)));
    assert_eq!(of("C")[0]["args"]["value"], -3);
    let loss = of("X").into_iter().find(|event| event["cat"] == "loss").unwrap();
    assert_eq!((&loss["name"], &loss["ts"], &loss["dur"]), (&json!("6 events lost"), &json!(5.5), &json!(2.0)));
}

/// A thread that is named after its first event is named again.
#[test]
fn threads_have_their_names() {
    let mut builder = TraceBuilder::new();
    let class = builder.class("app", "tick", &[]);
    let name = "web";
    builder.state(1, &StateRecord::Process { process: 3, pid: 7, vpid: 7, name, program: "", command_line: "" });
    builder.state(1, &StateRecord::ThreadName { process: 3, vtid: 9, name: "early" });
    builder.state(2000, &StateRecord::ThreadName { process: 3, vtid: 8, name: "late" });
    builder.state(2000, &StateRecord::ThreadName { process: 3, vtid: 10, name: "without events" });
    let stream = builder.stream(0);
    [7, 8, 9].into_iter().for_each(|tid| builder.event(stream, 1000, 7, tid, class, &[]));
    builder.event(stream, 3000, 7, 8, class, &[]);
    let trace = builder.finish();

    let (bytes, _) = export(Format::Chrome, &Options::default(), &trace);
    let events: Vec<serde_json::Value> =
        serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()["traceEvents"].as_array().unwrap().clone();
    let named = events.iter().filter(|event| event["name"] == "thread_name");
    let named: Vec<_> = named.map(|event| (event["tid"].as_u64(), event["args"]["name"].as_str())).collect();
    assert_eq!(named, [(Some(9), Some("early")), (Some(8), Some("late"))]);

    // `ThreadDescriptor`: process and thread id, and the name in field 5.
    let (bytes, _) = export(Format::Perfetto, &Options::default(), &trace);
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(has(b"\x08\x07\x10\x09\x2a\x05early") && has(b"\x08\x07\x10\x08\x2a\x04late"));
    assert!(has(b"\x08\x07\x10\x08") && !has(b"without"));
}

#[test]
fn stacks_have_their_own_time() {
    let (bytes, _) = export(Format::Folded, &options(), &builder().finish());
    let mut lines: Vec<&str> = std::str::from_utf8(&bytes).unwrap().lines().collect();
    lines.sort();
    // A query that begins in a request and ends after it is alone from the request's end on. The query during the loss
    // has no time.
    assert_eq!(
        lines,
        [
            "web (7);thread 7;db:query 1000",
            "web (7);thread 7;http:request 1000",
            "web (7);thread 7;http:request;db:query 2000"
        ]
    );
}

/// The licence of inferno does not allow a dependency on it, so the test runs the program if it is installed.
#[test]
fn stacks_make_a_flame_graph() {
    const PROGRAM: &str = "inferno-flamegraph";
    if !is_installed(PROGRAM) {
        return skip(Lack::machine("inferno-flamegraph is not installed", "`cargo install inferno`"));
    }
    let (bytes, _) = export(Format::Folded, &options(), &builder().finish());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stacks");
    std::fs::write(&file, bytes).unwrap();
    let output = Command::new(PROGRAM).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let graph = String::from_utf8(output.stdout).unwrap();
    for frame in [
        "all (4,000 samples, 100%)",
        "http:request (3,000 samples",
        "db:query (2,000 samples",
        "db:query (1,000 samples",
    ] {
        assert!(graph.contains(&format!("<title>{frame}")), "{frame}: {graph}");
    }
}

#[test]
fn spans_have_parents_attributes_and_events() {
    let (bytes, totals) = export(Format::Otlp, &Options { counters: Vec::new(), ..options() }, &builder().finish());
    let Some(found) = otlp(&bytes) else { return };
    let spans = found.as_array().unwrap();
    let id = |name: &str, begin: u64| {
        let is_it = |span: &&Json| span["name"] == name && span["begin"] == EPOCH_NS + begin;
        spans.iter().find(is_it).unwrap_or_else(|| panic!("{name} {begin}"))
    };
    assert_eq!(spans.len() as u64, totals.slices + totals.slices_unfinished);
    let (request, query, job) = (id("http:request", 1000), id("db:query", 1500), id("job:in..job:out", 2700));
    assert_eq!((&request["end"], &request["parent"]), (&json!(EPOCH_NS + 4000), &json!("")));
    for inner in [query, job, id("db:query", 3000)] {
        assert_eq!((&inner["parent"], &inner["trace"]), (&request["id"], &request["trace"]));
    }
    // It ends after the slice in which it began, and is one span.
    assert_eq!(id("db:query", 3000)["end"], EPOCH_NS + 5000);
    assert_eq!(job["end"], EPOCH_NS + 4500);
    assert_eq!(query["events"], json!([["net:queue", EPOCH_NS + 1600, {"cpu": 0, "len": -3}]]));
    let expected = json!({
        "cpu": 0, "id": u64::MAX.to_string(), "path": "/a\n</script>", "is_ok": true, "at": "0x7fff", "change": -5, "ratio": 0.5, "sizes": [1, 2],
        "end.cpu": 0, "end.id": u64::MAX.to_string(), "end.path": "bad \u{FFFD} utf-8", "end.is_ok": true, "end.at": "0x7fff", "end.change": -5,
        "end.ratio": 0.5, "end.sizes": [1, 2], "thread.id": 7,
    });
    assert_eq!(request["attributes"], expected);
    assert_eq!(request["resource"], json!({"service.name": "web", "host.name": "lair", "process.pid": 7}));
    let open = id("http:request", 9000);
    assert_eq!(open["attributes"]["end.not_in_the_trace"], true);
    assert_ne!(open["trace"], request["trace"]);
    assert_eq!(id("db:query", 5500)["attributes"]["events_lost_between_begin_and_end"], true);
    let ids: std::collections::BTreeSet<&str> = spans.iter().map(|span| span["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), spans.len());
    // The end without a begin.
    assert_eq!(totals.events_outside, 1);
}

#[test]
fn spans_have_the_trace_id_of_their_fields() {
    let mut builder = TraceBuilder::new();
    let s = FieldType::scalar;
    let fields = [("trace_id", s(Kind::Str)), ("span_id", s(Kind::U64)), ("parent_span_id", s(Kind::Str))];
    let request = ["begin", "end"].map(|name| builder.class("rpc", name, &fields));
    let inner = ["begin", "end"].map(|name| builder.class("db", name, &[]));
    let event = builder.class("app", "tick", &[]);
    let stream = builder.stream(0);
    let ids = |trace, span, parent| [Value::Str(trace), Value::U64(span), Value::Str(parent)];
    let trace = b"4BF92F35-77B34DA6A3CE929D0E0E4736";
    builder.event(stream, 1, 1, 1, request[0], &ids(trace, 0xF067_AA0B, b"00f067aa0ba902b7"));
    builder.event(stream, 2, 1, 1, inner[0], &[]);
    (0..200).for_each(|index| builder.event(stream, 3 + index, 1, 1, event, &[]));
    builder.event(stream, 300, 1, 1, inner[1], &[]);
    // Invalid identifiers are ignored, and the parent of a span is not taken from another trace.
    builder.event(stream, 301, 1, 1, request[0], &ids(&[b'1'; 32], 0, b"xyz"));
    builder.event(stream, 302, 1, 1, request[1], &ids(b"", 0, b""));
    builder.event(stream, 303, 1, 1, request[1], &ids(b"", 0, b""));
    let (bytes, _) = export(Format::Otlp, &Options::default(), &builder.finish());
    let Some(found) = otlp(&bytes) else { return };
    let of = |name: &str, begin: u64| {
        let spans = found.as_array().unwrap();
        spans.iter().find(|span| span["name"] == name && span["begin"] == EPOCH_NS + begin).unwrap()
    };
    let (outer, query, other) = (of("rpc", 1), of("db", 2), of("rpc", 301));
    assert_eq!(outer["trace"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!((&outer["id"], &outer["parent"]), (&json!("00000000f067aa0b"), &json!("00f067aa0ba902b7")));
    assert_eq!((&query["trace"], &query["parent"]), (&outer["trace"], &outer["id"]));
    assert_eq!((query["events"].as_array().unwrap().len(), &query["dropped"]), (128, &json!([0, 72])));
    assert_eq!((&other["trace"], &other["parent"]), (&json!("1".repeat(32)), &json!("")));
    assert_ne!(other["id"], "0000000000000000");
}

/// Returns a trace of `count` events of a thread. `order`: which of two classes an event belongs to, and whether it is
/// the end.
fn many(count: u64, order: impl Fn(u64) -> (usize, usize)) -> dormouse_traces::Trace {
    let mut builder = TraceBuilder::new();
    let classes =
        ["a", "b"].map(|name| ["begin", "end"].map(|end| builder.class("app", &format!("{name}_{end}"), &[])));
    let stream = builder.stream(0);
    for index in 0..count {
        let (class, end) = order(index);
        builder.event(stream, 1000 + index, 1, 1, classes[class][end], &[]);
    }
    builder.finish()
}

/// Returns the number of lines in Chrome's format and the sizes of the other exports.
fn sizes(trace: &dormouse_traces::Trace) -> ([usize; 3], Totals) {
    let (chrome_bytes, totals) = export(Format::Chrome, &Options::default(), trace);
    chrome(&chrome_bytes);
    let perfetto = export(Format::Perfetto, &Options::default(), trace).0.len();
    let (folded, of_folded) = export(Format::Folded, &Options::default(), trace);
    assert_eq!(of_folded, totals);
    ([chrome_bytes.iter().filter(|byte| **byte == b'\n').count(), perfetto, folded.len()], totals)
}

#[test]
fn deeply_nested_slices_are_written_once() {
    let count = 200_000;
    let ([lines, perfetto, folded], totals) = sizes(&many(count, |index| (0, usize::from(index >= count / 2))));
    let expected = Totals {
        events: count,
        slices: 4096,
        instants: count - 2 * 4096,
        ends_unpaired: count / 2 - 4096,
        begins_not_followed: count / 2 - 4096,
        ..Totals::default()
    };
    assert_eq!(totals, expected);
    // Besides events, there are the head, the process, and the enclosing lines.
    assert!((count as usize..count as usize + 10).contains(&lines), "{lines} lines");
    assert!(perfetto < 64 * count as usize, "{perfetto} bytes");
    // One line for each depth, with one frame for each enclosing slice.
    assert!(folded < 4096 * 4096 * "app:a;".len(), "{folded} bytes");
}

#[test]
fn overlapping_slices_are_written_a_bounded_number_of_times() {
    // 1000 slices of one class, and within them 1000 of another; then the ends of the first, each of which encloses all
    // of the others.
    let order = |index: u64| [(0, 0), (1, 0), (0, 1), (1, 1)][(index / 1000 % 4) as usize];
    let count = 16_000;
    let ([lines, perfetto, _], totals) = sizes(&many(count, order));
    assert_eq!((totals.events, totals.slices, totals.instants), (count, count / 2, 0));
    assert_eq!(totals.slices_cut, 4 * (1000 - 32));
    // An end is written with a cut and a begin for each of 32 slices.
    assert!(lines < 66 * count as usize, "{lines} lines");
    assert!(perfetto < 66 * 40 * count as usize, "{perfetto} bytes");
}

/// Memory in KiB of a process that exports them, and reads the output again.
const MUTATED_KIB: u64 = 128 << 10;

/// Exports traces in which bytes of packets were changed. All exports can be read.
#[test]
fn mutated_traces_are_exported() {
    let Some((first, count)) = alone("mutated_traces_are_exported", 300, MUTATED_KIB) else { return };
    let whole = builder().finish();
    let (mut events, mut perfetto_bytes, mut otlp_bytes) = (0, Vec::new(), Vec::new());
    for seed in first..first + count {
        let _seed = Seed(seed);
        let (metadata, streams) = whole.mutated(&mut dormouse_testing::random(seed));
        // Unreadable metadata are rejected before anything is exported.
        let Ok(described) = Trace::decode(&metadata) else { continue };
        for format in [Format::Perfetto, Format::Chrome, Format::Folded, Format::Otlp] {
            // Names of classes can have changed.
            for options in [Options::default(), options()] {
                let of_stream = [("s0", 0), ("s1", 0), ("s2", 0)];
                if Exporter::new(format, &options, &[&described], of_stream, 0).is_err() {
                    continue;
                }
                let (bytes, totals) = export_of(format, &options, &described, &streams);
                events += totals.events;
                match format {
                    Format::Perfetto => perfetto_bytes = bytes,
                    Format::Otlp => otlp_bytes = bytes,
                    Format::Chrome => drop(chrome(&bytes)),
                    Format::Folded => {
                        let text = String::from_utf8(bytes).unwrap();
                        assert!(
                            text.lines().all(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().is_ok()),
                            "{text}"
                        );
                    }
                }
            }
        }
        // Starting the readers of the other formats takes longer than everything else.
        if seed % (count / 15).max(20) == 0 && !perfetto_bytes.is_empty() {
            perfetto(&perfetto_bytes);
            otlp(&otlp_bytes);
        }
    }
    // A single trace may be unreadable.
    assert!(count < 100 || events > 10 * count, "{events} events of {count} traces");
}
