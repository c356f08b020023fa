//! `dormouse export`: its targets, its messages and its selection of events. The contents of the formats are tested
//! beside their encoders.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::Value;
use dormouse_traces::TraceBuilder;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::DORMOUSE;

/// Returns a directory with the trace `t`: 200 requests of two threads, one of which has nested queries; two events
/// lost; damage, if `is_damaged`.
fn place(is_damaged: bool) -> TempDir {
    let mut builder = TraceBuilder::new();
    let fields = [("id", FieldType::scalar(Kind::U64)), ("len", FieldType::scalar(Kind::I32))];
    let classes = ["begin", "end", "query_begin", "query_end"].map(|name| builder.class("http", name, &fields));
    let streams = [0, 1].map(|cpu| builder.stream(cpu));
    let mut time = 1000;
    for id in 0..200u64 {
        let which = (id % 2) as usize;
        for class in if which == 0 { &[0, 2, 3, 1][..] } else { &[0, 1] } {
            time += 10;
            let values = [Value::U64(id), Value::I32(id as i32 - 100)];
            builder.event(streams[which], time, 7, 7 + which as u32, classes[*class], &values);
        }
    }
    streams.iter().for_each(|stream| builder.packet(*stream, 0, 0));
    builder.event(streams[0], time + 10, 7, 7, classes[0], &[Value::U64(1), Value::I32(0)]);
    builder.packet(streams[0], 0, 2);
    let mut trace = builder.finish();
    if is_damaged {
        let middle = trace.streams[2].len() / 2;
        trace.streams[2].truncate(middle);
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("t")).unwrap();
    trace.write(&dir.path().join("t"));
    dir
}

fn export(dir: &Path, options: &[&str]) -> Output {
    Command::new(DORMOUSE).current_dir(dir).args(["export", "t"]).args(options).output().expect("dormouse runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_export_is_complete_and_its_counts_are_printed() {
    let dir = place(false);
    for (format, slices) in [("perfetto", 300), ("chrome", 300), ("folded", 300), ("otlp", 300)] {
        let output = export(dir.path(), &["--to", format, "-o", "out", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let file = dir.path().join("out");
        let told: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&told["file"], &told["format"], &told["warnings"]), (&json!("out"), &json!(format), &json!([])));
        assert_eq!(told["written_bytes"], std::fs::metadata(&file).unwrap().len());
        let timeline = &told["timeline"];
        assert_eq!((&told["events"], &timeline["slices"]), (&json!(601), &json!(slices)), "{told}");
        assert_eq!((&timeline["slices_unfinished"], &timeline["events_lost"]), (&json!(1), &json!(2)));
        assert!(told["losses"].as_str().unwrap().contains("2 lost"), "{told}");
        assert!(text(&output.stderr).contains("2 lost"));
        assert_eq!(names(dir.path()), ["out", "t"]);
        // The file is private, as files of a trace are.
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0);
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn json_and_csv_are_what_view_prints() {
    let dir = place(false);
    for format in ["json", "csv"] {
        let options = ["-e", "http:query*", "--where", "len > 0", "--tid", "7"];
        let output = export(dir.path(), &[&["--to", format, "-o", "-"], &options[..]].concat());
        let mut view = Command::new(DORMOUSE);
        view.current_dir(dir.path()).args(["view", "t", "--format", format]).args(options);
        let view = view.output().unwrap();
        assert!(!view.stdout.is_empty() && view.stdout == output.stdout, "{format}");
        assert_eq!((output.status.code(), &output.stderr), (view.status.code(), &view.stderr));
        let output = export(dir.path(), &[&["--to", format, "-o", "rows", "--json"], &options[..]].concat());
        assert_eq!(std::fs::read(dir.path().join("rows")).unwrap(), view.stdout);
        assert_eq!(serde_json::from_slice::<Json>(&output.stdout).unwrap()["events"], 98);
    }
}

/// A trace id of OpenTelemetry selects the events and the spans of a request.
#[test]
fn spans_use_the_trace_id_of_the_events() {
    let mut builder = TraceBuilder::new();
    let fields = [("trace_id", FieldType::scalar(Kind::Str)), ("span_id", FieldType::scalar(Kind::Str))];
    let request = ["begin", "end"].map(|name| builder.class("http", name, &fields));
    let query = builder.class("db", "query", &[("rows", FieldType::scalar(Kind::U32))]);
    let stream = builder.stream(0);
    let ids = ["4bf92f3577b34da6a3ce929d0e0e4736", "00112233445566778899aabbccddeeff"];
    for (index, id) in (0u64..).zip(ids) {
        let values = [Value::Str(id.as_bytes()), Value::Str(b"00f067aa0ba902b7")];
        builder.event(stream, 1000 * index + 10, 7, 7, request[0], &values);
        builder.event(stream, 1000 * index + 20, 7, 7, query, &[Value::U32(1)]);
        builder.event(stream, 1000 * index + 30, 7, 7, request[1], &values);
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("t")).unwrap();
    builder.finish().write(&dir.path().join("t"));
    let of_request = format!("trace_id == \"{}\"", ids[1]);
    let view =
        Command::new(DORMOUSE).current_dir(dir.path()).args(["view", "t", "--where", &of_request]).output().unwrap();
    let lines = text(&view.stdout);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.lines().all(|line| line.contains(ids[1])));
    let output = export(dir.path(), &["--to", "otlp", "-o", "out", "--json", "--where", &of_request]);
    let told: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["events"], &told["timeline"]["slices"]), (&json!(2), &json!(1)), "{told}");
    let bytes = std::fs::read(dir.path().join("out")).unwrap();
    let has = |id: &str| {
        let id: Vec<u8> = (0..id.len()).step_by(2).map(|at| u8::from_str_radix(&id[at..at + 2], 16).unwrap()).collect();
        bytes.windows(id.len()).any(|window| window == id)
    };
    assert_eq!([ids[0], ids[1]].map(has), [false, true]);
    assert!(has("00f067aa0ba902b7"));
}

/// Runs `act` with the address of a collector that gives `answers` in turn, and repeats the last one. Returns head and
/// body of each request.
fn collect(answers: &[&[u8]], act: impl FnOnce(&str)) -> Vec<(String, Vec<u8>)> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let requests = scope.spawn(move || {
            let mut requests = Vec::new();
            for (index, stream) in listener.incoming().enumerate() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
                let Some((_, size)) = head.split_once("ontent-length: ") else { break };
                let mut body = vec![0; size.lines().next().unwrap().parse().unwrap()];
                stream.read_exact(&mut body).unwrap();
                requests.push((head, body));
                stream.get_mut().write_all(answers.get(index).unwrap_or(answers.last().unwrap())).unwrap();
            }
            requests
        });
        act(&format!("http://{address}"));
        // A connection without a request ends the collector.
        drop(TcpStream::connect(address).unwrap());
        requests.join().unwrap()
    })
}

const TAKEN: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

#[test]
fn spans_go_to_a_collector() {
    let mut builder = TraceBuilder::new();
    let classes =
        ["work_begin", "work_end"].map(|name| builder.class("app", name, &[("id", FieldType::scalar(Kind::U64))]));
    let stream = builder.stream(0);
    for id in 0..40_000 {
        classes
            .iter()
            .zip(0..)
            .for_each(|(class, end)| builder.event(stream, 1000 + 20 * id + end, 7, 7, *class, &[Value::U64(id)]));
        if id % 500 == 0 {
            builder.packet(stream, 0, 0);
        }
    }
    builder.packet(stream, 0, 0);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("t")).unwrap();
    builder.finish().write(&dir.path().join("t"));
    assert_eq!(export(dir.path(), &["--to", "otlp", "-o", "out"]).status.code(), Some(0));
    let expected = std::fs::read(dir.path().join("out")).unwrap();
    let send = |url: &str| export(dir.path(), &["--to", "otlp", "-o", url, "--json"]);

    // A request that a busy collector refuses is sent again.
    let busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let mut output = None;
    let requests = collect(&[TAKEN, busy, TAKEN], |url| output = Some(send(url)));
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(requests.len() > 2 && requests[1].1 == requests[2].1, "{} requests", requests.len());
    for (head, body) in &requests {
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n") && head.contains("application/x-protobuf"), "{head}");
        assert!((1..=2 << 20).contains(&body.len()), "{}", body.len());
    }
    let sent: Vec<u8> =
        requests.iter().enumerate().filter(|(index, _)| *index != 1).flat_map(|(_, (_, body))| body.clone()).collect();
    assert!(sent == expected, "{} bytes sent, {} expected", sent.len(), expected.len());
    let told: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["written_bytes"], &told["events"]), (&json!(expected.len()), &json!(80_000)));
    assert_eq!(told["collector"], json!({ "requests": requests.len() - 1, "rejected_spans": 0, "message": "" }));

    let partly = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\n\x0A\x06\x08\x02\x12\x02no";
    let requests = collect(&[partly, TAKEN], |url| {
        let output = send(&format!("{url}/some/path"));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("the collector rejected 2 spans: no"), "{}", text(&output.stderr));
    });
    assert!(requests[0].0.starts_with("POST /some/path HTTP/1.1\r\n"));

    let elsewhere = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 4\r\n\r\nmove";
    let requests = collect(&[elsewhere], |url| {
        let output = send(url);
        assert_eq!(output.status.code(), Some(2));
        let errors = text(&output.stderr);
        assert!(errors.contains("it answers 404 Not Found (move)") && errors.lines().count() == 1, "{errors}");
    });
    assert_eq!(requests.len(), 1);
    // No process listens at this address any more.
    let mut gone = String::new();
    collect(&[TAKEN], |url| gone = url.to_owned());
    let output = send(&gone);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("Connection refused"), "{}", text(&output.stderr));
}

#[test]
fn options_select_events_slices_and_counters() {
    let dir = place(false);
    let timeline = |options: &[&str]| {
        let output = export(dir.path(), &[&["--to", "perfetto", "-o", "out", "--json"], options].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice::<Json>(&output.stdout).unwrap()["timeline"].clone()
    };
    assert_eq!(timeline(&["-e", "http:query*"])["slices"], 100);
    assert_eq!(timeline(&["--tid", "8"])["slices"], 100);
    assert_eq!(timeline(&["--where", "id < 10"])["slices"], 15);
    assert_eq!(timeline(&["--until", "+1us"])["events"], 101);
    assert_eq!(timeline(&["--counter", "http:*/len"])["counter_values"], 601);
    let keyed = timeline(&["--pairs", "http:begin..http:query_end", "--key", "id"]);
    // An event whose other end was lost neither begins nor ends a slice.
    assert_eq!(
        (&keyed["slices"], &keyed["slices_unfinished"], &keyed["ends_unpaired"]),
        (&json!(100), &json!(101), &json!(0))
    );
}

/// A copy with the same streams and metadata in CTF 2 is printed in the same way.
/// Returns the fields `id` of both events of each slice of a Chrome export, by the slice's name.
fn ids_of_slices(dir: &Path, options: &[&str]) -> (Vec<(String, i64, i64)>, String) {
    let output = export(dir, &[&["--to", "chrome", "-o", "out.json"], options].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let whole: Json = serde_json::from_slice(&std::fs::read(dir.join("out.json")).unwrap()).unwrap();
    let mut open: std::collections::BTreeMap<String, Vec<(String, i64)>> = Default::default();
    let mut found = Vec::new();
    for event in whole["traceEvents"].as_array().unwrap() {
        let track = event["tid"].to_string();
        match event["ph"].as_str().unwrap() {
            "B" => {
                let begin = (event["name"].as_str().unwrap().into(), event["args"]["fields"]["id"].as_i64().unwrap());
                open.entry(track).or_default().push(begin);
            }
            "E" => {
                let (name, id) = open.get_mut(&track).unwrap().pop().unwrap();
                found.push((name, id, event["args"]["end"]["fields"]["id"].as_i64().unwrap_or(-1)));
            }
            _ => {}
        }
    }
    (found, text(&output.stderr))
}

/// A runtime moves requests between threads: each slice joins the events of one request, and it is said by which field.
/// Pairs that share an end keep names of their own.
#[test]
fn requests_that_move_between_threads_are_not_mixed_up() {
    let mut builder = TraceBuilder::new();
    let fields = [("size", FieldType::scalar(Kind::U64)), ("id", FieldType::scalar(Kind::U64))];
    let [begin, served, end] = ["begin", "served", "end"].map(|name| builder.class("req", name, &fields));
    let stream = builder.stream(0);
    let mut times: Vec<(u64, u16, u64)> =
        (0..200).flat_map(|id| [(10 * id, begin, id), (10 * id + 23, served, id), (10 * id + 46, end, id)]).collect();
    times.sort_unstable();
    for (time, class, id) in times {
        // The ledger: the thread is any of four, and the number identifies the request.
        let tid = 10 + ((id * id + u64::from(class) * id) / 7 % 4) as u32;
        builder.event(stream, time, 7, tid, class, &[Value::U64(id % 3 + u64::from(class)), Value::U64(id)]);
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("t")).unwrap();
    builder.finish().closed().write(&dir.path().join("t"));
    let (slices, said) = ids_of_slices(dir.path(), &[]);
    assert_eq!(slices.len(), 200);
    assert!(slices.iter().all(|(name, begin, end)| name == "req" && begin == end), "{slices:?}");
    assert!(said.contains("req is paired by id, since"), "{said}");
    let pairs = ["--pairs", "queue=req:begin..req:served", "--pairs", "req:begin..req:end", "--key", "id"];
    let (slices, said) = ids_of_slices(dir.path(), &pairs);
    let count = |wanted: &str| slices.iter().filter(|(name, begin, end)| name == wanted && begin == end).count();
    assert_eq!((count("queue"), count("req:begin..req:end"), slices.len()), (200, 200, 400), "{said}");
}

#[test]
fn to_ctf2_writes_metadata_in_ctf_2() {
    let dir = place(true);
    let output = export(dir.path(), &["--to", "ctf2", "-o", "two", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(names(dir.path()), ["t", "two"]);
    let [before, after] = ["t", "two"].map(|name| dir.path().join(name));
    assert_eq!(names(&before), names(&after));
    let mut size_bytes = 0;
    for name in names(&after) {
        let [before, after] = [&before, &after].map(|dir| std::fs::read(dir.join(&name)).unwrap());
        assert_eq!(before == after, name != "metadata", "{name}");
        assert_eq!(after.starts_with(b"\x1e{"), name == "metadata");
        size_bytes += after.len();
    }
    assert_eq!(told["written_bytes"], json!(size_bytes));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&after), mode(&after.join("metadata"))), (0o700, 0o600));
    let view = |name: &str| {
        let output = Command::new(DORMOUSE).current_dir(dir.path()).args(["view", name]).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr).replace("two", "t"))
    };
    assert_eq!(view("two"), view("t"));
    // Several traces are refused.
    let both = Command::new(DORMOUSE)
        .current_dir(dir.path())
        .args(["export", ".", "--to", "ctf2", "-o", "x"])
        .output()
        .unwrap();
    assert_eq!((both.status.code(), text(&both.stderr).contains("2 were given")), (Some(2), true));
    assert_eq!(names(dir.path()), ["t", "two"]);
}

#[test]
fn errors_are_one_line() {
    let dir = place(false);
    for (options, expected) in [
        (&["--to", "parquet", "-o", "-"][..], "write a directory"),
        (&["--to", "arrow", "-o", "x", "-e", "http:*"], "docs/query.md"),
        (&["--to", "parquet", "-o", "x", "--last", "1s"], "docs/query.md"),
        (&["--to", "ctf2", "-o", "-"], "writes a directory"),
        (&["--to", "ctf2", "-o", "x", "--last", "1s"], "copies the streams"),
        (&["--to", "ctf2", "-o", "t"], "t exists already"),
        (&["--to", "ctf2", "-o", "no/such/dir"], "cannot write to no/such/dir"),
        (&["--to", "json", "-o", "-", "--json"], "name a file with -o"),
        (&["--to", "csv", "-o", "x", "--counter", "http:*/len"], "--pairs and --counter are for timelines"),
        (&["--to", "otlp", "-o", "x", "--counter", "http:*/len"], "--counter is for timelines"),
        (&["--to", "otlp", "-o", "https://localhost:4318"], "are sent by http alone"),
        (&["--to", "chrome", "-o", "http://localhost:4318"], "takes only --to otlp"),
        (&["--to", "folded", "-o", "x", "-e", "htp:*"], "no event class of this trace matches htp:*"),
        (&["--to", "chrome", "-o", "x", "--pairs", "http:begin..http:ende"], "the nearest is `http:end`"),
        (&["--to", "chrome", "-o", "x", "--counter", "http:begin/ln"], "the nearest is `len`"),
        (&["--to", "perfetto", "-o", "no/such/dir"], "cannot write to no/such/dir"),
        (&["--to", "perfetto", "-o", "/dev/full"], "cannot write to /dev/full: No space left"),
        (&["--to", "json", "-o", "/dev/full"], "cannot write to /dev/full: No space left"),
    ] {
        let output = export(dir.path(), options);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {errors}");
        assert!(errors.lines().last().unwrap().contains(expected), "{options:?}: {errors}");
        assert_eq!(names(dir.path()), ["t"], "{options:?}");
    }
    for (options, expected) in [
        (["--counter", "len"], "is not EVENT/FIELD"),
        (["--pairs", "a"], "is not BEGIN..END"),
        (["--to", "svg"], "perfetto"),
    ] {
        let output = export(
            dir.path(),
            &[&["-o", "x"], &options[..], &["--to", "chrome"][..usize::from(options[0] != "--to") * 2]].concat(),
        );
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

/// An export that failed leaves what was there before.
#[test]
fn a_file_is_replaced_only_when_complete() {
    let dir = place(false);
    std::fs::write(dir.path().join("out"), "before").unwrap();
    std::os::unix::fs::symlink("out", dir.path().join("link")).unwrap();
    // The limit is smaller than the export: writing beyond it fails as on a full disk.
    let limited = |size: &str| {
        let script = format!("ulimit -f {size}; trap '' XFSZ; exec \"$0\" export t --to chrome -o link");
        Command::new("sh").current_dir(dir.path()).args(["-c", &script, DORMOUSE]).output().unwrap()
    };
    let output = limited("1");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot write to link: File too large"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read(dir.path().join("out")).unwrap(), b"before");
    assert_eq!(names(dir.path()), ["link", "out", "t"]);
    assert_eq!(limited("unlimited").status.code(), Some(0));
    assert!(std::fs::read(dir.path().join("out")).unwrap().starts_with(b"{\"displayTimeUnit\""));
    assert!(std::fs::symlink_metadata(dir.path().join("link")).unwrap().is_symlink());
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let dir = place(false);
    for format in ["perfetto", "chrome", "folded", "json", "csv"] {
        let mut command = Command::new(DORMOUSE);
        command.current_dir(dir.path()).args([
            "export",
            "t",
            "--to",
            format,
            "-o",
            "-",
            "-e",
            "http:query*",
            "--tid",
            "8",
        ]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(!text(&output.stderr).contains("cannot write"), "{format}: {}", text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{format}");
    }
}

/// The trace has more events than one batch.
#[test]
fn long_traces_are_written_completely() {
    let mut builder = TraceBuilder::new();
    let classes = ["begin", "end"].map(|name| builder.class("app", name, &[("id", FieldType::scalar(Kind::U64))]));
    let stream = builder.stream(0);
    for id in 0..60_000u64 {
        builder.event(stream, 10 * id, 7, 7, classes[(id % 2) as usize], &[Value::U64(id)]);
    }
    let trace = builder.finish();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("t")).unwrap();
    for (name, bytes) in [("metadata", trace.metadata.as_bytes()), ("cpu_0", &trace.streams[1])] {
        std::fs::write(dir.path().join("t").join(name), bytes).unwrap();
    }
    for format in ["perfetto", "chrome", "folded"] {
        let output = export(dir.path(), &["--to", format, "-o", "out", "--json"]);
        let told: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&told["events"], &told["timeline"]["slices"]), (&json!(60_000), &json!(30_000)), "{format}");
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "process 7;thread 7;app 300000\n");
}

#[test]
fn the_readable_part_of_a_damaged_trace_is_written() {
    let dir = place(true);
    for format in ["perfetto", "chrome", "folded", "json"] {
        let output = export(dir.path(), &["--to", format, "-o", "out", "--json"]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{format}: {errors}");
        assert!(errors.contains("cpu_1") && errors.contains("is cut off"), "{format}: {errors}");
        let told: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert!((400..600).contains(&told["events"].as_u64().unwrap()), "{told}");
    }
}

/// The command reads a trace without an end from standard input, and gets a signal as soon as its file exists.
#[test]
fn an_interrupted_export_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    for format in ["csv", "perfetto"].repeat(10) {
        let mut child = Command::new(DORMOUSE);
        child.current_dir(dir.path()).args(["export", "-", "--to", format, "-o", "it"]);
        let mut child = child.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("dormouse runs");
        let input = child.stdin.take();
        let begun = Instant::now();
        while names(dir.path()).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is written");
            std::thread::yield_now();
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(15), "{format}");
        assert_eq!(names(dir.path()), [""; 0], "{format}");
        drop(input);
    }
}

#[test]
fn a_full_disk_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = TraceBuilder::new();
    let class = builder.class("a", "b", &[]);
    let stream = builder.stream(0);
    (0..10_000).for_each(|number| builder.event(stream, 1000 + number, 7, 7, class, &[]));
    builder.packet(stream, 0, 0);
    std::fs::create_dir(dir.path().join("t")).unwrap();
    builder.finish().write(&dir.path().join("t"));
    // Blocks have 512 or 1,024 bytes. The first limit is too small for the metadata, the second for the stream. Writing
    // beyond it fails as on a full disk.
    for (blocks, expected) in [(1, "metadata: File too large"), (64, "cpu_0: File too large")] {
        let script = format!("ulimit -f {blocks}; trap '' XFSZ; exec \"$0\" export t --to ctf2 -o it");
        let output = Command::new("sh").current_dir(dir.path()).args(["-c", &script, DORMOUSE]).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
        assert!(errors.contains(expected), "{errors}");
        assert_eq!(names(dir.path()), ["t"]);
    }
}

/// The command gets a signal while it creates a directory with a file for each stream.
#[test]
fn an_interrupted_export_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = TraceBuilder::new();
    let class = builder.class("a", "b", &[]);
    for cpu in 0..1000 {
        let stream = builder.stream(cpu);
        builder.event(stream, 1000 + u64::from(cpu), 7, 7, class, &[]);
        builder.packet(stream, 0, 0);
    }
    std::fs::create_dir(dir.path().join("t")).unwrap();
    builder.finish().write(&dir.path().join("t"));
    let mut interrupted_count = 0;
    for round in 0..20 {
        let mut child = Command::new(DORMOUSE);
        child.current_dir(dir.path()).args(["export", "t", "--to", "ctf2", "-o", "it"]);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("dormouse runs");
        let begun = Instant::now();
        // Whether the command has created more than `25 * round` files, or all.
        let has_made = || {
            let names = names(dir.path());
            let made = std::fs::read_dir(dir.path().join(&names[0])).map_or(0, Iterator::count);
            names != ["t"] && (made > 25 * round || names[0] == "it")
        };
        while !has_made() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is written");
            std::thread::yield_now();
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        let names = names(dir.path());
        if names == ["t"] {
            assert_eq!(status.signal(), Some(15));
            interrupted_count += 1;
        } else {
            // The export was complete before the signal.
            assert_eq!(names, ["it", "t"]);
            std::fs::remove_dir_all(dir.path().join("it")).unwrap();
        }
    }
    assert!(interrupted_count > 0, "the command is never interrupted");
}
