//! Columns of traces with every kind of field, compared with values written by hand.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use dormouse_abi::class::{FieldType, Kind};
use dormouse_columns::{Batches, Damage, Layout, PairRequest, Pairs, Request, RequestError, Together, classes};
use dormouse_ctf::stream::ChosenOf;
use dormouse_ctf::{Sequence, StateRecord, StreamReader, Trace, TraceRef, Value, Writers};
use dormouse_traces::TraceBuilder;

fn request(events: &[&str], columns: Option<&[&str]>) -> Request {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    Request { events: owned(events), columns: columns.map(owned), ..Request::default() }
}

fn read(trace: TraceRef<'_>, streams: &[Vec<u8>], request: &Request) -> (Vec<RecordBatch>, u64) {
    let layout = Layout::new(&[trace], request).unwrap();
    let readers = streams.iter().enumerate().map(|(index, bytes)| (0, StreamReader::new(trace, index, bytes)));
    let mut batches = Batches::new(&layout, readers);
    let found = (&mut batches).map(Result::unwrap).collect();
    (found, batches.damage().count)
}

/// 1,700,000,000 s after the epoch, where the clock of these traces starts.
const BEGIN_NS: i64 = 1_700_000_000_000_000_000;

#[test]
fn every_kind_of_dormouse_has_a_column() {
    let mut builder = TraceBuilder::new();
    let all = builder.class(
        "p",
        "all",
        &[
            ("small", FieldType::scalar(Kind::U8)),
            ("negative", FieldType::scalar(Kind::I32)),
            ("large", FieldType::scalar(Kind::U64)),
            ("ratio", FieldType::scalar(Kind::F32)),
            ("is_ok", FieldType::scalar(Kind::Bool)),
            ("path", FieldType::scalar(Kind::Str)),
            ("raw", FieldType::scalar(Kind::Bytes)),
            ("list", FieldType { kind: Kind::U16, sequence: true }),
            ("last", FieldType::scalar(Kind::I64)),
        ],
    );
    let other = builder.class("p", "other", &[("last", FieldType::scalar(Kind::U8))]);
    let flags = builder.class("q", "flags", &[("flags", FieldType { kind: Kind::Bool, sequence: true })]);
    let (cpu0, cpu1) = (builder.stream(0), builder.stream(1));
    let list = Sequence::new(Kind::U16, &[1, 0, 255, 255]).unwrap();
    let values = |path| {
        [
            Value::U8(200),
            Value::I32(-5),
            Value::U64(u64::MAX),
            Value::F32(0.5),
            Value::Bool(1),
            Value::Str(path),
            Value::Bytes(b"\0\xff"),
            Value::Sequence(list),
            Value::I64(-7),
        ]
    };
    builder.event(cpu0, 10, 12, 13, all, &values(b"/x"));
    builder.event(cpu1, 5, 14, 15, other, &[Value::U8(9)]);
    builder.event(cpu0, 20, 12, 13, all, &values(b"\xff"));
    builder.event(cpu0, 30, 12, 13, flags, &[Value::Sequence(Sequence::new(Kind::Bool, &[0, 2]).unwrap())]);
    let trace = builder.finish();
    let metadata = trace.parse();

    let (batches, damage) = read(TraceRef::from(&metadata), &trace.streams, &request(&["p:*"], None));
    assert_eq!((batches.len(), damage), (1, 0));
    let batch = &batches[0];
    let schema = batch.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(
        names,
        [
            "time", "cpu", "pid", "tid", "event", "small", "negative", "large", "ratio", "is_ok", "path", "raw",
            "list", "last"
        ]
    );
    let column = |name: &str| batch.column_by_name(name).unwrap();
    let times = column("time").as_primitive::<TimestampNanosecondType>();
    assert_eq!(times.values().iter().map(|time| time - BEGIN_NS).collect::<Vec<_>>(), [5, 10, 20]);
    assert_eq!(column("cpu").as_primitive::<UInt32Type>().values()[..], [1, 0, 0]);
    assert_eq!(column("pid").as_primitive::<UInt32Type>().values()[..], [14, 12, 12]);
    assert_eq!(column("tid").as_primitive::<UInt32Type>().values()[..], [15, 13, 13]);
    let events = column("event").as_dictionary::<Int32Type>();
    let of_row = |row: usize| events.values().as_string::<i32>().value(events.keys().value(row) as usize).to_string();
    assert_eq!([0, 1, 2].map(of_row), ["p:other", "p:all", "p:all"]);
    // Fields that the first event lacks are null.
    let optional = |name: &str| column(name).is_null(0) && column(name).null_count() == 1;
    assert!(["small", "negative", "large", "ratio", "is_ok", "path", "raw", "list"].iter().all(|name| optional(name)));
    assert_eq!(column("small").as_primitive::<UInt8Type>().value(1), 200);
    assert_eq!(column("negative").as_primitive::<Int32Type>().value(1), -5);
    assert_eq!(column("large").as_primitive::<UInt64Type>().value(2), u64::MAX);
    assert_eq!(column("ratio").as_primitive::<Float32Type>().value(1), 0.5);
    assert!(column("is_ok").as_boolean().value(1));
    assert_eq!(column("path").as_string::<i32>().value(1), "/x");
    assert_eq!(column("path").as_string::<i32>().value(2), "\u{fffd}");
    assert_eq!(column("raw").as_binary::<i32>().value(1), b"\0\xff");
    assert_eq!(column("list").as_list::<i32>().value(1).as_primitive::<UInt16Type>().values()[..], [1, 65535]);
    // One class has an i64, the other a u8.
    assert_eq!(column("last").as_primitive::<Int64Type>().values()[..], [9, -7, -7]);

    let binary = Request { is_text_binary: true, ..request(&["p:all"], Some(&["path", "last"])) };
    let (batches, _) = read(TraceRef::from(&metadata), &trace.streams, &binary);
    assert_eq!(batches[0].num_columns(), 2);
    assert_eq!(batches[0].column(0).as_binary::<i32>().value(1), b"\xff");
    assert_eq!(batches[0].column(1).as_primitive::<Int64Type>().values()[..], [-7, -7]);

    let range =
        Request { since_ns: Some(BEGIN_NS + 10), until_ns: Some(BEGIN_NS + 20), ..request(&[], Some(&["tid"])) };
    let (batches, _) = read(TraceRef::from(&metadata), &trace.streams, &range);
    assert_eq!(batches[0].column(0).as_primitive::<UInt32Type>().values()[..], [13]);

    // Declared types also apply to parts of fields.
    let parts = request(&[], Some(&["list[1]", "fields.is_ok", "raw[1]", "flags[1]", "flags[2]", "fields.last"]));
    let (batches, _) = read(TraceRef::from(&metadata), &trace.streams, &parts);
    let of = |at: usize| batches[0].column(at);
    let middle = |value: u16| vec![None, Some(value), Some(value), None];
    assert_eq!(of(0).as_primitive::<UInt16Type>().iter().collect::<Vec<_>>(), middle(65535));
    assert_eq!(of(1).as_boolean().iter().collect::<Vec<_>>(), [None, Some(true), Some(true), None]);
    assert_eq!(
        of(2).as_primitive::<UInt8Type>().iter().map(|value| value.map(u16::from)).collect::<Vec<_>>(),
        middle(255)
    );
    assert_eq!(of(3).as_boolean().iter().collect::<Vec<_>>(), [None, None, None, Some(true)]);
    assert_eq!((of(4).data_type(), of(4).null_count()), (&DataType::Boolean, 4));
    assert_eq!(of(5).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(9), Some(-7), Some(-7), None]);
}

#[test]
fn unknown_names_are_an_error_with_existing_names() {
    let mut builder = TraceBuilder::new();
    builder.class("p", "e", &[("cpu", FieldType::scalar(Kind::U8)), ("x", FieldType::scalar(Kind::Str))]);
    builder.class("p", "f", &[("x", FieldType::scalar(Kind::U8))]);
    let trace = builder.finish();
    let metadata = trace.parse();
    let of = TraceRef::from(&metadata);
    let error = Layout::new(&[of], &request(&["q:*"], None)).unwrap_err();
    assert!(
        matches!(&error, RequestError::NoClass { pattern, known } if pattern == "q:*" && known.contains("p:e, p:f")),
        "{error}"
    );
    let error = Layout::new(&[of], &request(&["p:*"], Some(&["y"]))).unwrap_err();
    // A field named like a column of all events, and a text and a number with one name, which are two columns.
    assert_eq!(error.to_string(), "there is no column `y`; there are time, cpu, pid, tid, event, fields.cpu, x, p:f.x");
    let fields = |name: &str| {
        let class = classes([of]).into_iter().find(|class| class.name == name).unwrap();
        class.fields.iter().map(|field| (field.name().clone(), field.data_type().clone())).collect::<Vec<_>>()
    };
    assert_eq!(fields("p:f"), [("x".into(), DataType::UInt8)]);
    // Parts with one name and different kinds are an error, because they get no column each.
    let error = Layout::new(&[of], &request(&["p:*"], Some(&["fields.x"]))).unwrap_err();
    assert_eq!(error.to_string(), "`fields.x` of p:e and of p:f are not of one kind, and make no column together");
    for none in ["x.y", "x[0]", "fields.y", "x[", ""] {
        let error = Layout::new(&[of], &request(&["p:*"], Some(&[none]))).unwrap_err();
        assert!(matches!(&error, RequestError::NoColumn { name, .. } if name == none), "{error}");
    }
}

const FOREIGN: &str = r#"/* CTF 1.8 */
trace { major = 1; minor = 8; byte_order = le; };
stream {
    event.header := struct { integer { size = 8; align = 8; } id; } align(8);
    event.context := struct { integer { size = 32; align = 8; signed = true; } pid; };
};
event {
    id = 0; name = "e";
    fields := struct {
        integer { size = 3; align = 1; signed = true; } bits;
        enum : integer { size = 5; align = 1; } { RED = 1, GREEN = 2 ... 3, BOTH = 3 } color;
        struct { integer { size = 16; align = 8; byte_order = be; } a; string b; } inner;
        enum : integer { size = 8; align = 8; } { number = 0, text = 1 } tag;
        variant <tag> { integer { size = 16; align = 8; } number; string text; } either;
        integer { size = 8; align = 8; } len;
        struct { integer { size = 8; align = 8; } v; } items[len];
        integer { size = 8; align = 8; } pid;
    };
};
"#;

#[test]
fn structures_variants_and_enumerations_of_other_tracers_have_columns() {
    let trace = Trace::decode(FOREIGN.as_bytes()).unwrap();
    let bits = |bits: i8, color: u8| (bits as u8 & 7) | color << 3;
    let mut stream = vec![0, 77, 0, 0, 0, bits(-2, 1), 1, 2, b'h', b'i', 0, 0, 5, 1, 2, 8, 9, 3];
    stream.extend([0, 78, 0, 0, 0, bits(3, 3), 0, 7, 0, 1, b'x', 0, 0, 4]);
    stream.extend([0, 79, 0, 0, 0, bits(0, 9), 0, 0, 0, 1, 0, 0, 5]);
    let streams = [stream];
    let (batches, damage) = read(TraceRef::from(&trace), &streams, &request(&[], None));
    assert_eq!((batches.len(), damage), (1, 0));
    let column = |name: &str| batches[0].column_by_name(name).unwrap();
    assert_eq!(column("time").null_count(), 3);
    assert_eq!(column("pid").as_primitive::<UInt32Type>().values()[..], [77, 78, 79]);
    assert_eq!(column("fields.pid").as_primitive::<UInt8Type>().values()[..], [3, 4, 5]);
    assert_eq!(column("bits").as_primitive::<Int8Type>().values()[..], [-2, 3, 0]);
    let colors = column("color").as_dictionary::<Int32Type>();
    let color = |row: usize| colors.values().as_string::<i32>().value(colors.keys().value(row) as usize).to_string();
    assert_eq!([0, 1, 2].map(color), ["RED", "GREEN, BOTH", "9"]);
    let inner = column("inner").as_struct();
    assert_eq!(inner.column(0).as_primitive::<UInt16Type>().values()[..], [0x0102, 7, 0]);
    assert_eq!(inner.column(1).as_string::<i32>().value(0), "hi");
    let either = column("either").as_struct();
    let (number, text) = (either.column(0), either.column(1));
    assert_eq!(number.as_primitive::<UInt16Type>().iter().collect::<Vec<_>>(), [Some(0x0105), None, None]);
    assert_eq!(text.as_string::<i32>().iter().collect::<Vec<_>>(), [None, Some("x"), Some("")]);
    // `len` is the user's own field, so it is kept.
    assert_eq!(column("len").as_primitive::<UInt8Type>().values()[..], [2, 0, 0]);
    let items = column("items").as_list::<i32>();
    assert_eq!([0, 1, 2].map(|row| items.value(row).len()), [2, 0, 0]);
    assert_eq!(items.value(0).as_struct().column(0).as_primitive::<UInt8Type>().values()[..], [8, 9]);

    let parts = ["items[1].v", "inner.a", "either.text", "bits", "items[0]", "inner", "fields.color", "inner.a"];
    let (batches, damage) = read(TraceRef::from(&trace), &streams, &request(&[], Some(&parts)));
    assert_eq!((batches.len(), damage), (1, 0));
    let schema = batches[0].schema();
    assert_eq!(schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), parts);
    let of = |at: usize| batches[0].column(at);
    assert_eq!(of(0).as_primitive::<UInt8Type>().iter().collect::<Vec<_>>(), [Some(9), None, None]);
    assert_eq!(of(1).as_primitive::<UInt16Type>().values()[..], [0x0102, 7, 0]);
    assert_eq!(of(2).as_string::<i32>().iter().collect::<Vec<_>>(), [None, Some("x"), Some("")]);
    assert_eq!((of(3), of(5), of(6)), (column("bits"), column("inner"), column("color")));
    assert_eq!(
        of(4).as_struct().column(0).as_primitive::<UInt8Type>().iter().collect::<Vec<_>>(),
        [Some(8), None, None]
    );
    assert_eq!((of(4).null_count(), of(7)), (2, of(1)));
}

/// Returns a CTF 2 structure with these members.
fn structure(members: &[(&str, &str)]) -> String {
    let members: Vec<String> =
        members.iter().map(|(name, class)| format!(r#"{{"name":"{name}","field-class":{class}}}"#)).collect();
    format!(r#"{{"type":"structure","member-classes":[{}]}}"#, members.join(","))
}

#[test]
fn every_kind_of_ctf_2_has_a_column() {
    let number = r#"{"type":"fixed-length-unsigned-integer","length":8,"byte-order":"little-endian","alignment":8}"#;
    let flag = r#"{"type":"fixed-length-boolean","length":8,"byte-order":"little-endian","alignment":8}"#;
    let map = r#"{"type":"fixed-length-bit-map","length":8,"byte-order":"little-endian","alignment":8,"flags":{"A":[[0,0]],"B":[[3,4]]}}"#;
    let optional =
        format!(r#"{{"type":"optional","selector-field-location":{{"path":["flag"]}},"field-class":{number}}}"#);
    let counted = r#"{"type":"dynamic-length-blob","length-field-location":{"path":["size"]}}"#;
    let members = [
        ("flag", flag),
        ("number", &optional),
        ("raw", r#"{"type":"static-length-blob","length":3}"#),
        ("size", number),
        ("counted", counted),
        ("name", r#"{"type":"null-terminated-string","encoding":"utf-16le"}"#),
        ("long", r#"{"type":"variable-length-signed-integer"}"#),
        ("map", map),
    ];
    let class = format!(r#"{{"type":"event-record-class","name":"e","payload-field-class":{}}}"#, structure(&members));
    let fragments = [r#"{"type":"preamble","version":2}"#, r#"{"type":"data-stream-class"}"#, &class];
    let metadata: String = fragments.iter().map(|fragment| format!("\u{1e}{fragment}\n")).collect();
    let trace = Trace::decode(metadata.as_bytes()).unwrap();
    let with = &b"\x01\x07\x01\x02\x03\x02hih\0\xe9\0\0\0\x7f\x09"[..];
    let without = b"\0\x04\x05\x06\0\0\0\x80\x7f\0";
    let stream = [with, without].concat();
    let rows = |conditions: &[&str]| {
        let conditions = conditions.iter().map(ToString::to_string).collect();
        let (batches, damage) =
            read(TraceRef::from(&trace), std::slice::from_ref(&stream), &Request { conditions, ..request(&[], None) });
        assert_eq!(damage, 0);
        batches.into_iter().next()
    };
    let batch = rows(&[]).unwrap();
    let column = |name: &str| batch.column_by_name(name).unwrap();
    assert_eq!(column("flag").as_boolean().iter().collect::<Vec<_>>(), [Some(true), Some(false)]);
    let numbers = column("number").as_struct().column(0).as_primitive::<UInt8Type>();
    assert_eq!(numbers.iter().collect::<Vec<_>>(), [Some(7), None]);
    assert_eq!(
        column("raw").as_binary::<i32>().iter().flatten().collect::<Vec<_>>(),
        [b"\x01\x02\x03", b"\x04\x05\x06"]
    );
    assert_eq!(column("counted").as_binary::<i32>().iter().flatten().collect::<Vec<_>>(), [&b"hi"[..], b""]);
    assert_eq!(column("name").as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["h\u{e9}", ""]);
    assert_eq!(column("long").as_primitive::<Int64Type>().values()[..], [-1, -128]);
    let maps = column("map").as_dictionary::<Int32Type>();
    let map = |row: usize| maps.values().as_string::<i32>().value(maps.keys().value(row) as usize).to_string();
    assert_eq!(map(0), "A, B");
    for (condition, count) in
        [("number == 7", 1), ("name == \"h\u{e9}\"", 1), ("not flag", 1), ("long < 0", 2), ("long < -200", 0)]
    {
        assert_eq!(rows(&[condition]).map_or(0, |batch| batch.num_rows()), count, "{condition}");
    }
    let wrong = Request { conditions: vec!["nam == 1".into()], ..request(&[], None) };
    let error = Layout::new(&[TraceRef::from(&trace)], &wrong).unwrap_err().to_string();
    assert!(error.starts_with("where: line 1, column 1: no event has nam; name is the nearest"), "{error}");
}

#[test]
fn recordings_of_lttng_have_columns() {
    let directory = tempfile::tempdir().unwrap();
    let Some(trace) = dormouse_testing::lttng::sample(directory.path()) else { return };
    let files = dormouse_reader::TraceFiles::open(&trace).unwrap();
    let traces: Vec<_> = files.traces().collect();
    let conditions = vec!["i >= 5 and process == \"program\"".to_string()];
    let request = Request { conditions, ..request(&["mine:ev"], None) };
    let layout = Layout::new(&traces, &request).unwrap();
    let batches: Vec<_> = Batches::new(&layout, files.readers()).map(Result::unwrap).collect();
    let [batch] = batches.as_slice() else { panic!("{} batches", batches.len()) };
    let column = |name: &str| batch.column_by_name(name).unwrap();
    assert_eq!(column("i").as_primitive::<Int32Type>().values()[..], (5..20).collect::<Vec<_>>());
    let d: Vec<f64> = (5..20).map(|i| 1.5 * f64::from(i)).collect();
    assert_eq!(column("d").as_primitive::<Float64Type>().values()[..], d);
    assert_eq!(column("s").as_string::<i32>().value(0), "he\"llo");
    assert_eq!((column("stxt").as_string::<i32>().value(0), column("time").null_count()), ("he\"", 0));
    let seq = column("seq").as_list::<i32>();
    assert_eq!((0..4).map(|row| seq.value(row).len()).collect::<Vec<_>>(), [1, 2, 3, 0]);
    let colors = column("col").as_dictionary::<Int32Type>();
    let color = |row: usize| colors.values().as_string::<i32>().value(colors.keys().value(row) as usize).to_string();
    assert_eq!([0, 1, 3, 4].map(color), ["MANY", "6", "RED", "BLUE"]);
    assert!(column("pid").as_primitive::<UInt32Type>().value(0) > 1);
}

/// The state stream says which process wrote an event, whether or not state records are rows.
#[test]
fn conditions_select_processes() {
    let mut builder = TraceBuilder::new();
    let class = builder.class("p", "e", &[("n", FieldType::scalar(Kind::U32))]);
    for (process, vpid, name) in [(1, 12, "web"), (2, 13, "cache")] {
        let program = "/bin/x";
        builder.state(0, &StateRecord::Process { process, pid: vpid, vpid, name, program, command_line: "" });
        let (user, cgroup, container) = (&*format!("{name}_user"), "/group", "");
        builder.state(0, &StateRecord::ProcessContext { process, uid: vpid, user, cgroup, container });
    }
    let stream = builder.stream(0);
    for n in 0..10 {
        builder.event(stream, 10 + u64::from(n), 12 + n % 2, 1, class, &[Value::U32(n)]);
    }
    let trace = builder.finish();
    let metadata = trace.parse();
    let conditions = ["process == \"cache\"", "user == \"cache_user\" and uid == 13"];
    for (events, condition) in [&[][..], &["p:e"]].into_iter().flat_map(|events| conditions.map(|it| (events, it))) {
        let conditions = vec![condition.into(), "n > 3".into()];
        let since_ns = Some(BEGIN_NS + 12);
        let request = Request { conditions, since_ns, ..request(events, Some(&["n"])) };
        let (batches, _) = read(TraceRef::from(&metadata), &trace.streams, &request);
        assert_eq!(batches[0].column(0).as_primitive::<UInt32Type>().values()[..], [5, 7, 9]);
    }
}

/// A single stream is visited; beside a second stream without events, its events are read one by one. Both give the
/// same result, also for damaged streams.
#[test]
fn a_stream_has_the_same_rows_alone_and_with_others() {
    let mut builder = TraceBuilder::new();
    let scalar = FieldType::scalar;
    let text = builder.class("p", "text", &[("n", scalar(Kind::U32)), ("t", scalar(Kind::Str))]);
    let plain = builder.class("p", "plain", &[("n", scalar(Kind::U32)), ("m", scalar(Kind::I64))]);
    let (name, program) = ("app", "/bin/app");
    builder.state(0, &StateRecord::Process { process: 1, pid: 1, vpid: 1, name, program, command_line: "" });
    let stream = builder.stream(0);
    for n in 0..400u32 {
        let (time, number) = (u64::from(n * n), Value::U32(n % 50));
        match n % 3 {
            0 => builder.event(stream, time, 1, 2, text, &[number, Value::Str(b"some text")]),
            _ => builder.event(stream, time, 1, 2, plain, &[number, Value::I64(-i64::from(n))]),
        }
        if n % 40 == 39 {
            builder.packet(stream, 4096, u64::from(n == 79));
        }
    }
    let trace = builder.finish();
    let requests = [
        request(&[], None),
        request(&[], Some(&["time", "event"])),
        request(&["p:plain"], Some(&["m", "n"])),
        Request { conditions: vec!["n > 10".into(), "m < -60".into()], ..request(&[], Some(&["m"])) },
        Request { since_ns: Some(BEGIN_NS + 900), until_ns: Some(BEGIN_NS + 90_000), ..request(&[], Some(&["time"])) },
    ];
    let (mut rows, mut damaged, mut passes) = (0, 0, 0);
    for turn in 0..300 {
        let (metadata, streams) = match turn {
            0 => (trace.metadata.clone().into_bytes(), trace.streams.clone()),
            seed => trace.mutated(&mut dormouse_testing::random(seed)),
        };
        let Ok(metadata) = Trace::decode(&metadata) else { continue };
        let trace = TraceRef::from(&metadata);
        let Some(stream) = streams.iter().max_by_key(|stream| stream.len()) else { continue };
        for request in &requests {
            let Ok(layout) = Layout::new(&[trace], request) else { continue };
            let both = [&[stream.as_slice()][..], &[stream.as_slice(), &[]]].map(|streams| {
                let readers = streams.iter().enumerate().map(|(at, bytes)| (0, StreamReader::new(trace, at, bytes)));
                let mut batches = Batches::new(&layout, readers).with_writers(Writers::default());
                let found: Vec<_> = (&mut batches).map(|batch| batch.map_err(|error| error.to_string())).collect();
                (found, batches.damage().clone())
            });
            assert_eq!(both[0], both[1], "{turn}: {request:?}");
            rows += both[0].0.iter().flatten().map(RecordBatch::num_rows).sum::<usize>();
            damaged += usize::from(both[0].1.count > 0);
        }
        // Each class separately, and both in one pass.
        let of_class = |name: &str| Layout::new(&[trace], &request(&[name], None));
        let (Ok(text), Ok(plain)) = (of_class("p:text"), of_class("p:plain")) else { continue };
        let Some(together) = Together::new(vec![&text, &plain]) else { continue };
        let apart = [&text, &plain].map(|layout| {
            let mut batches = Batches::new(layout, [(0, StreamReader::new(trace, 0, stream.as_slice()))]);
            (&mut batches).map(|batch| batch.map_err(|error| error.to_string())).collect::<Vec<_>>()
        });
        let mut damage = Damage::default();
        let (mut rows, mut found) = (together.rows(None), [Vec::new(), Vec::new()]);
        let mut chosen = ChosenOf::new(StreamReader::new(trace, 0, stream.as_slice()), together.choice(0));
        while let Some(batch) = rows.next(&mut chosen, &mut damage).or_else(|| rows.rest()) {
            let (layout, batch) = batch.unwrap();
            found[layout].push(Ok(batch));
        }
        assert_eq!(found, apart, "{turn}");
        passes += 1;
    }
    assert!(passes > 100, "{passes} passes");
    assert!(rows > 10_000 && damaged > 100, "{rows} rows, {damaged} damaged");
}

#[test]
fn batches_are_bounded_and_damage_is_counted() {
    let mut builder = TraceBuilder::new();
    let class = builder.class("p", "e", &[("n", FieldType::scalar(Kind::U32))]);
    let stream = builder.stream(0);
    let count = (64 << 10) + 3;
    for n in 0..count {
        builder.event(stream, n.into(), 1, 2, class, &[Value::U32(n)]);
    }
    builder.packet(stream, 0, 0);
    builder.event(stream, u64::from(count), 1, 2, class, &[Value::U32(count)]);
    let mut trace = builder.finish();
    let metadata = trace.parse();
    trace.streams[1].pop();
    let (batches, damage) = read(TraceRef::from(&metadata), &trace.streams, &request(&[], Some(&["n"])));
    assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [64 << 10, 3]);
    assert_eq!(batches[1].column(0).as_primitive::<UInt32Type>().values()[..], [count - 3, count - 2, count - 1]);
    assert_eq!(damage, 1);
}

#[test]
fn pairs_have_equal_keys_and_the_last_begin() {
    let mut builder = TraceBuilder::new();
    let field = [("id", FieldType::scalar(Kind::U64))];
    let (begin, end) = (builder.class("p", "begin", &field), builder.class("p", "end", &field));
    let stream = builder.stream(3);
    for (time, tid, class, id) in [
        (1, 10, begin, 1),
        (2, 11, begin, 2),
        (3, 10, begin, 3),
        (7, 10, end, 1),
        (8, 11, end, 2),
        (9, 10, end, 3),
        (10, 10, end, 3),
    ] {
        builder.event(stream, time, 5, tid, class, &[Value::U64(id)]);
    }
    let trace = builder.finish();
    let metadata = trace.parse();
    let pairs_by = |key: &[&str]| {
        let key = key.iter().map(ToString::to_string).collect();
        let (begin, end) = ("p:begin".into(), "p:end".into());
        let request = PairRequest { begin, end, key, since_ns: None, until_ns: None, conditions: Vec::new() };
        let (batches, _) = read(TraceRef::from(&metadata), &trace.streams, &request.events());
        let mut pairs = Pairs::new(request);
        let batch = pairs.batch(&batches[0]).unwrap();
        let column = |name: &str| batch.column_by_name(name).unwrap().clone();
        let durations = column("duration").as_primitive::<DurationNanosecondType>().values().to_vec();
        let keys: Vec<String> = column("key").as_string::<i32>().iter().map(|key| key.unwrap().to_string()).collect();
        (durations, keys, pairs.unmatched, pairs.open_count())
    };
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(pairs_by(&[]), (vec![4, 6, 8], texts(&["5, 10", "5, 11", "5, 10"]), 1, 0));
    assert_eq!(pairs_by(&["id"]), (vec![6, 6, 6], texts(&["1", "2", "3"]), 1, 0));
}
