//! Questions about generated traces. The tests count the answers once more by themselves.

use std::collections::BTreeMap;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::rule::{hash, is_in_sample};
use dormouse_analysis::{Analysis, Diff, Latency, Measure, Number, Query, RELATIVE_ERROR, Report, Row};
use dormouse_ctf::{Merge, StateRecord, StreamReader, Trace, Value};
use dormouse_filter::Filter;
use dormouse_traces::{BitWriter, TraceBuilder};
use serde_json::json;

/// Random numbers that are the same in each run (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

fn ask_of(query: &Query, trace: &Trace, streams: &[Vec<u8>]) -> Result<Report, String> {
    let names: Vec<String> = (0..streams.len()).map(|index| format!("s{index}")).collect();
    let mut analysis = Analysis::new(query, &[trace], names.iter().map(|name| (name.as_str(), 0)))?;
    let readers = streams.iter().enumerate().map(|(index, bytes)| StreamReader::new(trace, index, bytes.as_slice()));
    let mut events = Merge::new(readers);
    while let Some(next) = events.next_event() {
        match next {
            Ok(event) => analysis.event(&event),
            Err(notice) => analysis.notice(&notice, events.streams()[notice.stream].time_ns()),
        }
    }
    Ok(analysis.finish(&[], Vec::new()))
}

fn ask(query: &Query, trace: &dormouse_traces::Trace) -> Result<Report, String> {
    ask_of(query, &Trace::decode(trace.metadata.as_bytes()).unwrap(), &trace.streams)
}

fn by(names: &[&str]) -> Query {
    Query { by: names.iter().map(|name| name.to_string()).collect(), ..Query::default() }
}

/// Returns the values of a row's key.
fn name(row: &Row) -> Vec<String> {
    let text = |value: serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    row.key.0.iter().map(|(_, value)| text(serde_json::to_value(value).unwrap())).collect()
}

fn counts(report: &Report) -> Vec<(String, u64)> {
    report.rows.iter().map(|row| (name(row).join(" "), row.count)).collect()
}

/// An event that was put into the trace.
struct Known {
    time: u64,
    cpu: u32,
    pid: u32,
    class: &'static str,
    bytes: u64,
    change: i32,
    path: String,
}

/// Returns a trace of 5,000 events of two classes on three CPUs, in packets of about a hundred.
fn random_trace() -> (dormouse_traces::Trace, Vec<Known>) {
    let mut builder = TraceBuilder::new();
    let (u64, i32, text) = (FieldType::scalar(Kind::U64), FieldType::scalar(Kind::I32), FieldType::scalar(Kind::Str));
    let read = builder.class("io", "read", &[("path", text), ("bytes", u64), ("change", i32)]);
    let write = builder.class("io", "write", &[("change", i32), ("bytes", u64), ("path", text)]);
    let streams = [0, 1, 2].map(|cpu| (cpu, builder.stream(cpu)));
    let mut random = Random(11);
    let mut known = Vec::new();
    let mut time = 1000;
    for _ in 0..5000 {
        time += random.below(2000);
        let (cpu, stream) = streams[random.below(3) as usize];
        let pid = 10 + random.below(4) as u32;
        let bytes = 1 << random.below(20) | random.below(1000);
        let change = random.below(2001) as i32 - 1000;
        let path = format!("/{}", "p".repeat(random.below(5) as usize));
        let (number, signed, shown) = (Value::U64(bytes), Value::I32(change), path.clone());
        let text = Value::Str(shown.as_bytes());
        let class = if random.below(3) == 0 {
            builder.event(stream, time, pid, pid, read, &[text, number, signed]);
            "io:read"
        } else {
            builder.event(stream, time, pid, pid, write, &[signed, number, text]);
            "io:write"
        };
        known.push(Known { time, cpu, pid, class, bytes, change, path });
        if random.below(100) == 0 {
            builder.packet(stream, 0, 0);
        }
    }
    (builder.finish(), known)
}

#[test]
fn events_are_counted_by_the_requested_fields() {
    let (trace, known) = random_trace();
    type Name = fn(&Known) -> String;
    let cases: [(&[&str], Name); 6] = [
        (&["event"], |event| event.class.into()),
        (&["cpu", "pid"], |event| format!("{} {}", event.cpu, event.pid)),
        (&["path"], |event| event.path.clone()),
        (&["event", "path", "tid"], |event| format!("{} {} {}", event.class, event.path, event.pid)),
        (&["change"], |event| event.change.to_string()),
        (&["process"], |event| format!("unknown ({})", event.pid)),
    ];
    for (names, expected_name) in cases {
        let report = ask(&by(names), &trace).unwrap();
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        known.iter().for_each(|event| *expected.entry(expected_name(event)).or_default() += 1);
        let found = counts(&report);
        assert!(found.is_sorted_by_key(|(_, count)| std::cmp::Reverse(*count)), "{names:?}");
        assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), expected, "{names:?}");
        assert_eq!(report.events, 5000);
        assert_eq!(report.rows.iter().map(|row| row.bytes).sum::<u64>(), report.bytes);
        let duration_s = (known.last().unwrap().time - known[0].time) as f64 / 1e9;
        assert!((report.events_per_s.unwrap() - 5000.0 / duration_s).abs() < 1e-3);
    }
    let query = Query { events: vec!["io.re*".into()], ..by(&["cpu"]) };
    let reads = known.iter().filter(|event| event.class == "io:read").count() as u64;
    assert_eq!(ask(&query, &trace).unwrap().events, reads);
}

/// Compares the distribution in a row with all values.
fn agrees(row: &Row, mut values: Vec<i128>) {
    values.sort();
    let found = row.values.as_deref().unwrap();
    assert_eq!(found.count(), values.len() as u64);
    assert_eq!(found.sum(), Some(Number::Whole(values.iter().sum())));
    assert_eq!(found.min(), Some(Number::Whole(values[0])));
    assert_eq!(found.max(), Some(Number::Whole(values[values.len() - 1])));
    let mean = values.iter().sum::<i128>() as f64 / values.len() as f64;
    assert!((found.mean().unwrap() - mean).abs() <= 1e-9 * mean.abs());
    for percentile in [50.0, 90.0, 99.0, 99.9] {
        let rank = (percentile / 100.0 * values.len() as f64).ceil() as usize;
        let exact = values[rank - 1] as f64;
        let error = (found.percentile(percentile).unwrap() - exact).abs();
        assert!(error <= RELATIVE_ERROR * exact.abs() + 1e-9, "p{percentile}: {error} beside {exact}");
        assert!(exact.abs() >= 49.0 || error == 0.0, "small integers are exact: {exact}");
    }
}

#[test]
fn values_are_measured_by_class_and_group() {
    let (trace, known) = random_trace();
    for field in ["bytes", "change"] {
        let value = |event: &Known| if field == "bytes" { event.bytes.into() } else { event.change.into() };
        let query = Query { measure: Measure::Field(field.into()), ..by(&["cpu"]) };
        let report = ask(&query, &trace).unwrap();
        assert_eq!((report.by.join(" ").as_str(), report.rows.len()), ("event cpu", 6));
        for row in &report.rows {
            let of_row = known.iter().filter(|event| name(row) == [event.class.to_string(), event.cpu.to_string()]);
            agrees(row, of_row.map(value).collect());
        }
    }
}

#[test]
fn intervals_follow_one_another() {
    let (trace, known) = random_trace();
    let interval_ns = 700_000;
    let query = Query { measure: Measure::Field("bytes".into()), interval_ns: Some(interval_ns), ..Query::default() };
    let report = ask(&query, &trace).unwrap();
    let index = |event: &Known| (event.time - known[0].time) / interval_ns;
    assert_eq!(report.rows.len() as u64, index(known.last().unwrap()) + 1);
    for (at, row) in report.rows.iter().enumerate() {
        let begin_ns = 1_700_000_000_000_000_000 + known[0].time + at as u64 * interval_ns;
        assert_eq!(name(row), [begin_ns.to_string()]);
        let values: Vec<_> =
            known.iter().filter(|event| index(event) == at as u64).map(|event| event.bytes.into()).collect();
        assert_eq!(row.events_per_s, Some(values.len() as f64 * 1e9 / interval_ns as f64));
        agrees(row, values);
    }
}

#[test]
fn intervals_without_events_are_reported() {
    let mut builder = TraceBuilder::new();
    let class = builder.class("a", "b", &[]);
    let stream = builder.stream(0);
    [5, 6, 47].into_iter().for_each(|time| builder.event(stream, time, 1, 1, class, &[]));
    let query = Query { interval_ns: Some(10), ..Query::default() };
    let report = ask(&query, &builder.finish()).unwrap();
    assert_eq!(report.rows.iter().map(|row| row.count).collect::<Vec<_>>(), [2, 0, 0, 0, 1]);
}

#[test]
fn omitted_rows_are_summed_up() {
    let (trace, known) = random_trace();
    let all = ask(&by(&["change"]), &trace).unwrap();
    let query = Query { top: Some(3), ..by(&["change"]) };
    let report = ask(&query, &trace).unwrap();
    assert_eq!(counts(&report), counts(&all)[..3]);
    let rest = report.rest.unwrap();
    assert_eq!((rest.groups, rest.count), (all.rows.len() as u64 - 3, counts(&all)[3..].iter().map(|row| row.1).sum()));

    let query = Query { groups_max: Some(4), ..by(&["change"]) };
    let report = ask(&query, &trace).unwrap();
    let mut first: Vec<i32> = Vec::new();
    for event in &known {
        if first.len() < 4 && !first.contains(&event.change) {
            first.push(event.change);
        }
    }
    let others = known.iter().filter(|event| !first.contains(&event.change)).count() as u64;
    assert_eq!((report.rows.len(), report.other.unwrap().count), (4, others));
}

fn latency(begin: &str, end: &str, key: &[&str]) -> Query {
    let key = key.iter().map(|name| name.to_string()).collect();
    Query {
        measure: Measure::Latency(Latency {
            begin: begin.into(),
            end: end.into(),
            key,
            slowest: 2,
            ..Latency::default()
        }),
        ..Query::default()
    }
}

#[test]
fn pairs_are_of_one_thread_and_the_inner_one_ends_first() {
    let mut builder = TraceBuilder::new();
    let (begin, end) = (builder.class("job", "begin", &[]), builder.class("job", "end", &[]));
    let cpus = [0, 1].map(|cpu| builder.stream(cpu));
    let process = StateRecord::Process { process: 1, pid: 5, vpid: 5, name: "jobs", program: "/j", command_line: "" };
    builder.state(1, &process);
    // Thread 6: a lone end, nested pairs of 10 and 100, a lone begin. Thread 7: a pair of 35 from one CPU to another.
    let events = [
        (0, 10, 6, end),
        (0, 100, 6, begin),
        (1, 110, 7, begin),
        (0, 140, 6, begin),
        (0, 145, 7, end),
        (0, 150, 6, end),
        (1, 200, 6, end),
        (1, 300, 6, begin),
    ];
    events.into_iter().for_each(|(cpu, time, tid, class)| builder.event(cpus[cpu], time, 5, tid, class, &[]));
    let report = ask(&latency("job:begin", "job:end", &[]), &builder.finish()).unwrap();
    let found = report.latency.as_ref().unwrap();
    assert_eq!((report.rows[0].count, report.rows.len()), (3, 1));
    assert_eq!(report.rows[0].values.as_ref().unwrap().sum(), Some(Number::Whole(145)));
    assert_eq!((found.unpaired_begins, found.unpaired_ends, found.pairs_across_losses), (1, 1, 0));
    let slowest: Vec<_> = found
        .slowest
        .iter()
        .map(|pair| (pair.latency_ns, pair.begin_ns - 1_700_000_000_000_000_000, pair.process.as_str(), pair.tid))
        .collect();
    assert_eq!(slowest, [(100, 100, "jobs (5)", Some(6)), (35, 110, "jobs (5)", Some(7))]);
}

#[test]
fn pairs_by_a_key_agree_with_a_count_of_all() {
    let mut builder = TraceBuilder::new();
    let u32 = FieldType::scalar(Kind::U32);
    let begin = builder.class("request", "in", &[("id", u32), ("port", u32)]);
    let end = builder.class("request", "out", &[("port", u32), ("id", u32)]);
    let streams = [0, 1].map(|cpu| builder.stream(cpu));
    let mut random = Random(5);
    // Times of open begins, by key.
    let mut open: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
    let (mut latencies, mut ends_alone) = (BTreeMap::<u32, Vec<i128>>::new(), 0);
    for time in (0..40_000u64).step_by(7) {
        let (id, port) = (random.below(20) as u32, random.below(3) as u32);
        let stream = streams[random.below(2) as usize];
        let tid = 1 + random.below(5) as u32;
        if random.below(2) == 0 {
            builder.event(stream, time, 1, tid, begin, &[Value::U32(id), Value::U32(port)]);
            open.entry((id, port)).or_default().push(time);
        } else {
            builder.event(stream, time, 1, tid, end, &[Value::U32(port), Value::U32(id)]);
            match open.entry((id, port)).or_default().pop() {
                Some(begin) => latencies.entry(port).or_default().push((time - begin).into()),
                None => ends_alone += 1,
            }
        }
    }
    let query = Query { by: vec!["port".into()], ..latency("request:in", "request.out", &["id", "port"]) };
    let report = ask(&query, &builder.finish()).unwrap();
    assert_eq!(report.rows.len(), 3);
    report.rows.iter().for_each(|row| agrees(row, latencies[&name(row)[0].parse().unwrap()].clone()));
    let found = report.latency.unwrap();
    let begins_alone: usize = open.values().map(Vec::len).sum();
    assert_eq!((found.unpaired_begins, found.unpaired_ends), (begins_alone as u64, ends_alone));
    let greatest = latencies.values().flatten().max().unwrap();
    assert_eq!(i128::from(found.slowest[0].latency_ns), *greatest);
    assert!(found.slowest[0].key.len() == 2 && found.slowest[0].latency_ns >= found.slowest[1].latency_ns);
}

#[test]
fn conditions_and_groups_of_pairs_use_the_fields_of_both_ends() {
    let mut builder = TraceBuilder::new();
    let (u32, text) = (FieldType::scalar(Kind::U32), FieldType::scalar(Kind::Str));
    let begin = builder.class("request", "in", &[("id", u32), ("endpoint", text), ("size", u32)]);
    let end = builder.class("request", "out", &[("id", u32), ("status", u32), ("size", u32)]);
    let streams = [0, 1].map(|cpu| builder.stream(cpu));
    let mut random = Random(11);
    // Latency, endpoint, size of the begin, status and size of the end, of each pair.
    let mut known: Vec<(u64, &str, u32, u32, u32)> = Vec::new();
    let mut alone = Vec::new();
    for id in 0..500 {
        let (time, latency) = (u64::from(id) * 100, 1 + random.below(90));
        let (endpoint, size) = (["/a", "/b"][random.below(2) as usize], random.below(10) as u32);
        let (status, size_sent) = ([200, 404, 500][random.below(3) as usize], random.below(10) as u32);
        let [here, there] = [0, 1].map(|_| streams[random.below(2) as usize]);
        builder.event(here, time, 1, 7, begin, &[Value::U32(id), Value::Str(endpoint.as_bytes()), Value::U32(size)]);
        if id % 50 == 49 {
            alone.push((endpoint, size));
            continue;
        }
        let values = [Value::U32(id), Value::U32(status), Value::U32(size_sent)];
        builder.event(there, time + latency, 1, 8, end, &values);
        known.push((latency, endpoint, size, status, size_sent));
    }
    let trace = builder.finish();
    type Pair<'p> = (u64, &'p str, u32, u32, u32);
    type Conditions = [(&'static str, fn(&Pair<'_>) -> bool); 8];
    let conditions: Conditions = [
        ("status >= 500", |pair| pair.3 >= 500),
        ("end.status != 404 and endpoint == \"/a\"", |pair| pair.3 != 404 && pair.1 == "/a"),
        // Both ends have it: that of the begin.
        ("size > 4", |pair| pair.2 > 4),
        ("begin.size > end.size", |pair| pair.2 > pair.4),
        ("latency >= 40ns and not (end.size == 3)", |pair| pair.0 >= 40 && pair.4 != 3),
        ("tid == 7", |_| true),
        ("end.tid == 7", |_| false),
        ("event == \"request:in\" and end.event == \"request:out\"", |_| true),
    ];
    for (text, is_wanted) in conditions {
        let mut query = Query { by: vec!["endpoint".into(), "status".into(), "end.size".into()], ..Query::default() };
        query.measure = Measure::Latency(Latency {
            begin: "request:in".into(),
            end: "request:out".into(),
            key: vec!["id".into()],
            conditions: vec![("--where".into(), Filter::parse(text).unwrap())],
            ..Latency::default()
        });
        let report = ask(&query, &trace).unwrap();
        let mut wanted: BTreeMap<Vec<String>, Vec<i128>> = BTreeMap::new();
        for pair in known.iter().filter(|pair| is_wanted(pair)) {
            let key = vec![pair.1.to_string(), pair.3.to_string(), pair.4.to_string()];
            wanted.entry(key).or_default().push(pair.0.into());
        }
        assert_eq!(report.rows.len(), wanted.len(), "{text}");
        report.rows.iter().for_each(|row| agrees(row, wanted[&name(row)].clone()));
        let found = report.latency.unwrap();
        let not_selected = known.iter().filter(|pair| !is_wanted(pair)).count() as u64;
        assert_eq!((found.pairs_not_selected, found.unpaired_ends), (not_selected, 0), "{text}");
        // Begins without an end are counted unless their own fields contradict.
        let begins = match text {
            "size > 4" => alone.iter().filter(|(_, size)| *size > 4).count(),
            text if text.contains("endpoint") => alone.iter().filter(|(endpoint, _)| *endpoint == "/a").count(),
            _ => alone.len(),
        };
        assert_eq!(found.unpaired_begins, begins as u64, "{text}");
    }
}

#[test]
fn a_field_that_neither_end_of_a_pair_has_is_an_error() {
    let mut builder = TraceBuilder::new();
    let u32 = FieldType::scalar(Kind::U32);
    builder.class("request", "in", &[("endpoint", u32)]);
    builder.class("request", "out", &[("status", u32)]);
    let trace = builder.finish();
    let error = |by: &str, condition: Option<&str>| {
        let mut query = Query { by: vec![by.into()], ..latency("request:in", "request:out", &[]) };
        if let (Some(text), Measure::Latency(latency)) = (condition, &mut query.measure) {
            latency.conditions = vec![("--where".into(), Filter::parse(text).unwrap())];
        }
        ask(&query, &trace).err().unwrap_or_default()
    };
    assert_eq!(error("status", Some("endpoint == 3")), "");
    assert!(error("statu", None).contains("the nearest is `status`"));
    assert!(error("begin.status", None).contains("has a field `status`"));
    let text = error("event", Some("begin.status > 3"));
    assert!(text.starts_with("--where") && text.contains("no event has begin.status"), "{text}");
}

#[test]
fn pairs_across_a_loss_are_left_out() {
    let mut builder = TraceBuilder::new();
    let (begin, end) = (builder.class("job", "begin", &[]), builder.class("job", "end", &[]));
    let [here, there] = [0, 1].map(|cpu| builder.stream(cpu));
    let pair = |builder: &mut TraceBuilder, stream, from, to| {
        builder.event(stream, from, 5, 5, begin, &[]);
        builder.event(stream, to, 5, 5, end, &[]);
    };
    pair(&mut builder, here, 10, 20);
    builder.packet(here, 0, 0);
    // The other CPU loses three events between 100 and 200; a thread can have been there.
    pair(&mut builder, there, 90, 100);
    builder.packet(there, 0, 0);
    pair(&mut builder, there, 190, 200);
    builder.packet(there, 0, 3);
    pair(&mut builder, here, 150, 160);
    pair(&mut builder, here, 210, 230);
    let report = ask(&latency("job:begin", "job:end", &[]), &builder.finish()).unwrap();
    let found = report.latency.as_ref().unwrap();
    // The pairs 150 to 160 and 190 to 200 overlap the time of the losses; the pair 90 to 100 ends before it.
    assert_eq!((found.pairs_across_losses, report.rows[0].count), (2, 3));
    assert_eq!(report.rows[0].values.as_ref().unwrap().sum(), Some(Number::Whole(40)));
    assert_eq!(report.lost.events, 3);
    let place = &report.lost.places.places[0];
    let ns = |ns: i64| Some(1_700_000_000_000_000_000 + ns);
    assert_eq!((place.begin_ns, place.end_ns, place.events, place.stream.as_str()), (ns(100), ns(200), 3, "s2"));
}

#[test]
fn unknown_names_are_an_error_with_the_nearest_name() {
    let (trace, _) = random_trace();
    let field = |name: &str| Query { measure: Measure::Field(name.into()), ..Query::default() };
    let cases = [
        (by(&["byts"]), "no event class has a field `byts`; the nearest is `bytes`"),
        (by(&["proces"]), "no event class has a field `proces`; the nearest is `process`"),
        (field("chang"), "no event class has a field `chang`; the nearest is `change`"),
        (field("path"), "the field `path` is text, which has no sum; --by path counts its values"),
        (
            Query { events: vec!["io:reed".into()], ..Query::default() },
            "no event class of the trace matches `io:reed`; the nearest is `io:read`",
        ),
        (latency("io:red", "io:write", &[]), "no event class of the trace matches `io:red`; the nearest is `io:read`"),
        (
            latency("io:read", "io:write", &["byte"]),
            "none of the event classes has a field `byte`; the nearest is `bytes`",
        ),
    ];
    for (query, expected) in cases {
        assert_eq!(ask(&query, &trace).map(|_| ()), Err(expected.into()));
    }
    let mut compact = TraceBuilder::of_records(dormouse_abi::record::RecordKind::Compact);
    let class = compact.class("a", "b", &[]);
    let stream = compact.stream(0);
    compact.event(stream, 10, 0, 0, class, &[]);
    let compact = compact.finish();
    let error = |query: &Query| ask(query, &compact).map(|_| ()).unwrap_err();
    assert_eq!(error(&by(&["tid"])), "the trace does not record the threads of its events");
    assert_eq!(
        error(&latency("a:b", "a:b", &[])),
        "the trace does not record the threads of its events; say by --key FIELD what belongs together"
    );
}

#[test]
fn keys_of_json_match_the_documents() {
    let mut builder = TraceBuilder::new();
    let (u32, text) = (FieldType::scalar(Kind::U32), FieldType::scalar(Kind::Str));
    let begin = builder.class("job", "begin", &[("size", u32), ("name", text)]);
    let end = builder.class("job", "end", &[]);
    let stream = builder.stream(3);
    builder.event(stream, 0, 5, 6, begin, &[Value::U32(4), Value::Str(b"x")]);
    builder.event(stream, 500_000_000, 5, 6, end, &[]);
    builder.event(stream, 1_000_000_000, 5, 6, begin, &[Value::U32(6), Value::Str(b"x")]);
    builder.packet(stream, 0, 2);
    let trace = builder.finish();
    let span = json!({"begin_ns": 1_700_000_000_000_000_000u64, "end_ns": 1_700_000_001_000_000_000u64, "duration_ns": 1_000_000_000});
    let place = json!({"stream": "s1", "begin_ns": 1_700_000_000_000_000_000u64, "end_ns": 1_700_000_001_000_000_000u64, "events": 2, "packets": 0});
    let lost = json!({
        "events": 2, "unplaced": 0, "places": [place], "more": 0,
        "possible": [{"cause": "the trace was not closed: its session is live or was killed", "count": 0}],
    });
    let query = Query { measure: Measure::Field("size".into()), ..by(&["name"]) };
    let report = serde_json::to_value(ask(&query, &trace).unwrap()).unwrap();
    assert_eq!(
        report,
        json!({
            "measure": "field", "field": "size", "unit": null, "by": ["event", "name"], "interval_ns": null, "span": span,
            "events": 3, "bytes": 60, "events_per_s": 3.0,
            "rows": [{
                "key": {"event": "job:begin", "name": "x"}, "count": 2, "events_per_s": 2.0, "bytes": 44,
                "estimated": 2.0, "estimated_error": 0.0, "estimated_sum": 10.0,
                "values": {
                    "count": 2, "sum": 10, "min": 4, "mean": 5.0, "max": 6,
                    "percentiles": {"50": 4.0, "90": 6.0, "99": 6.0, "99.9": 6.0},
                    "percentiles_relative_error": 0.01, "not_finite": 0,
                },
            }],
            "rest": null, "other": null, "latency": null, "lost": lost, "samples": [], "warnings": [],
        })
    );
    let report = serde_json::to_value(ask(&latency("job:begin", "job:end", &[]), &trace).unwrap()).unwrap();
    // All pairs overlap the time in which events were lost.
    assert_eq!(
        report["latency"],
        json!({
            "unpaired_begins": 1, "unpaired_ends": 0, "pairs_across_losses": 1, "events_without_key": 0,
            "begins_not_followed": 0, "slowest": [], "paired_by": [], "pairing_note": null, "is_certain": true,
            "pairs_not_selected": 0,
        })
    );
    assert_eq!((&report["unit"], &report["rows"]), (&json!("ns"), &json!([])));
}

/// The trace is a sample of events that are counted here. Of the users in the sample by user there are all events; so
/// they are exact by user, and scaled if they are not told apart by user.
#[test]
fn counts_and_sums_of_samples_are_scaled() {
    const USERS: u64 = 1_000;
    let fields = [("size", FieldType::scalar(Kind::I32)), ("user", FieldType::scalar(Kind::U32))];
    let mut builder = TraceBuilder::new();
    let [send, drop, tick] = ["send", "drop", "tick"].map(|name| builder.class("net", name, &fields));
    let stream = builder.stream(0);
    let rules = "net:send where size >= 900\nnet:send sample 1/20\nnet:drop sample by user 1/4\nnet:tick sample 1/s";
    builder.state(1, &StateRecord::Rules { rules });
    let is_chosen = |user: u64| is_in_sample(hash(&dormouse_filter::Value::Integer(user.into())), 4);
    let (mut random, mut sent, mut dropped) = (Random(11), (0u64, 0i64), BTreeMap::new());
    for time in 0..400_000 {
        let (size, user, chance) = (random.below(1000) as i64 - 20, random.below(USERS), random.below(20));
        let values = [Value::I32(size as i32), Value::U32(user as u32)];
        if time % 2 == 0 {
            sent = (sent.0 + 1, sent.1 + size);
            if size >= 900 || chance == 0 {
                builder.event(stream, 10 + time, 7, 7, send, &values);
            }
        } else {
            *dropped.entry(user).or_insert(0u64) += 1;
            if is_chosen(user) {
                builder.event(stream, 10 + time, 7, 7, drop, &values);
            }
        }
    }
    builder.event(stream, 1_000_000, 7, 7, tick, &[Value::I32(5), Value::U32(5)]);
    let trace = builder.finish();
    let near = |found: Option<f64>, truth: f64, error: f64| {
        assert!((found.unwrap() - truth).abs() < 5.0 * error, "{found:?} ± {error} instead of {truth}");
    };
    let row = |report: &Report, wanted: &str| {
        report.rows.iter().find(|row| name(row).join(" ") == wanted).expect("a row").clone()
    };

    let report = ask(&Query { measure: Measure::Field("size".into()), ..by(&["event"]) }, &trace).unwrap();
    let of_send = row(&report, "net:send");
    let error = of_send.estimated_error.unwrap();
    assert!(error > 0.0 && error < 4_000.0 && of_send.count < sent.0 / 5, "{of_send:?}");
    near(of_send.estimated, sent.0 as f64, error);
    // No size is greater than 1,000.
    near(of_send.estimated_sum, sent.1 as f64, 1_000.0 * error);
    let of_drop = row(&report, "net:drop");
    let all: u64 = dropped.values().sum();
    assert_eq!((of_drop.estimated, of_drop.estimated_error), (Some(4.0 * of_drop.count as f64), None));
    let error = dropped.values().map(|count| (count * count) as f64 * 3.0).sum::<f64>().sqrt();
    near(of_drop.estimated, all as f64, error);
    let of_tick = row(&report, "net:tick");
    assert_eq!((of_tick.count, of_tick.estimated, of_tick.estimated_sum), (1, None, None));
    let samples: Vec<_> = report.samples.iter().map(|of| format!("{} {}", of.class, of.samples.join(" "))).collect();
    assert_eq!(samples, ["net:drop by user 1/4", "net:send 1/20", "net:tick 1/s"]);

    // A name that is not the rule's stands for the same field.
    let query = Query { groups_max: Some(600), events: vec!["net:drop".into()], ..by(&["fields.user"]) };
    let report = ask(&query, &trace).unwrap();
    let chosen: Vec<_> = dropped.iter().filter(|(user, _)| is_chosen(**user)).collect();
    assert!(report.rows.len() == chosen.len() && chosen.len() > 150);
    for (user, count) in chosen {
        let row = row(&report, &user.to_string());
        assert_eq!((row.count, row.estimated, row.estimated_error), (*count, Some(*count as f64), Some(0.0)));
    }
    // Pairs are not scaled.
    let report = ask(&latency("net:send", "net:drop", &[]), &trace).unwrap();
    assert_eq!((report.rows[0].estimated, report.samples.len()), (None, 2));
}

/// Returns a trace of events at random times, with exponentially distributed sizes.
fn recording(seed: u64, gap: u64, size: f64) -> dormouse_traces::Trace {
    let mut builder = TraceBuilder::new();
    let class = builder.class("net", "send", &[("bytes", FieldType::scalar(Kind::U64))]);
    let stream = builder.stream(0);
    let (mut random, mut time) = (Random(seed), 0);
    let exponential =
        |random: &mut Random, mean: f64| -mean * (1.0 - random.below(1 << 30) as f64 / (1u64 << 30) as f64).ln();
    for _ in 0..3000 {
        time += exponential(&mut random, gap as f64) as u64;
        builder.event(stream, time, 1, 1, class, &[Value::U64(1 + exponential(&mut random, size) as u64)]);
    }
    builder.finish()
}

#[test]
fn two_traces_are_compared() {
    let query = Query { measure: Measure::Field("bytes".into()), is_compared: true, ..Query::default() };
    let ask = |seed, gap, size| ask(&query, &recording(seed, gap, size)).unwrap();
    let diff = Diff::new(ask(1, 1000, 500.0), ask(2, 500, 1000.0), None);
    assert_eq!(diff.ratios.len(), 1);
    let names: Vec<_> = diff.ratios[0].figures.iter().map(|figure| (figure.name, figure.verdict)).collect();
    assert_eq!(names, ["events_per_s", "mean", "p50", "p90", "p99"].map(|name| (name, "larger")));
    for figure in &diff.ratios[0].figures {
        let [low, high] = figure.ci95.unwrap().map(Option::unwrap);
        assert!(low < figure.ratio.unwrap() && figure.ratio.unwrap() < high, "{figure:?}");
    }
    let rate = &diff.ratios[0].figures[0];
    assert!(rate.ci95.unwrap()[0].unwrap() < 2.0 && rate.ci95.unwrap()[1].unwrap() > 2.0, "{rate:?}");
    // With equal conditions, 5 of 100 figures are expected to seem different. The figures of one pair depend on each
    // other.
    let pairs = (0..20).map(|pair| Diff::new(ask(100 + 2 * pair, 1000, 500.0), ask(101 + 2 * pair, 1000, 500.0), None));
    let figures: Vec<_> = pairs.flat_map(|diff| diff.ratios.into_iter().flat_map(|ratios| ratios.figures)).collect();
    let told = figures.iter().filter(|figure| figure.verdict != "cannot be told").count();
    assert!(figures.len() == 100 && told <= 12, "{told} of {}", figures.len());
    // The comparison the other way round.
    let diff = Diff::new(ask(2, 500, 1000.0), ask(1, 1000, 500.0), Some(1));
    assert!(diff.ratios[0].figures.iter().all(|figure| figure.verdict == "smaller") && diff.rest.is_none());
}

/// Contexts like those of LTTng, an enumeration, and a structure within a structure.
#[test]
fn contexts_enumerations_and_structures_of_other_tracers_are_read() {
    let metadata = "/* CTF 1.8 */
        typealias integer { size = 8; align = 8; } := uint8_t;
        typealias integer { size = 32; align = 8; } := uint32_t;
        typealias integer { size = 64; align = 8; map = clock.c.value; } := time_t;
        trace { major = 1; minor = 8; byte_order = le; packet.header := struct { uint32_t magic; }; };
        clock { name = c; freq = 1000000000; };
        stream {
            event.header := struct { uint8_t id; time_t timestamp; };
            event.context := struct { uint32_t _vpid; uint32_t _vtid; uint8_t _procname[4]; };
        };
        event { id = 0; name = \"a\"; fields := struct {
            enum : uint8_t { off = 0, on = 1 } _state;
            struct { uint8_t _x; struct { uint8_t _x; } _inner; } _at;
            string _vpid;
        }; };"
        .replace("uint8_t _procname[4]", "integer { size = 8; align = 8; encoding = UTF8; } _procname[4]");
    let mut bytes = BitWriter::new(false);
    bytes.number(32, 0xC1FC_1FC1);
    for (time, state, inner) in [(10u64, 0u64, 3u64), (20, 1, 4), (30, 1, 4), (40, 9, 5)] {
        bytes.number(8, 0).number(64, time).number(32, 70 + time / 30).number(32, 8).bytes(b"sh\0\0");
        bytes.number(8, state).number(8, 1).number(8, inner).text("payload");
    }
    let streams = [bytes.finish(0)];
    let trace = Trace::decode(metadata.as_bytes()).unwrap();
    let ask = |names: &[&str]| counts(&ask_of(&by(names), &trace, &streams).unwrap());
    let rows = |rows: &[(&str, u64)]| rows.iter().map(|(name, count)| (name.to_string(), *count)).collect::<Vec<_>>();
    assert_eq!(ask(&["state"]), rows(&[("on", 2), ("9", 1), ("off", 1)]));
    assert_eq!(ask(&["at.inner.x"]), rows(&[("4", 2), ("3", 1), ("5", 1)]));
    assert_eq!(ask(&["at.x"]), rows(&[("1", 4)]));
    assert_eq!(ask(&["pid"]), rows(&[("70", 2), ("71", 2)]));
    assert_eq!(ask(&["tid", "process"]), rows(&[("8 sh (70)", 2), ("8 sh (71)", 2)]));
    // A field takes precedence over a context of the same name.
    assert_eq!(ask(&["vpid"]), rows(&[("payload", 4)]));
    let query = Query { measure: Measure::Field("state".into()), ..Query::default() };
    let report = ask_of(&query, &trace, &streams).unwrap();
    assert_eq!(report.rows[0].values.as_ref().unwrap().sum(), Some(Number::Whole(11)));
    let report = ask_of(&latency("a", "a", &[]), &trace, &streams).unwrap();
    // Pairs of each event and the next of its thread.
    assert_eq!((report.rows[0].count, report.latency.unwrap().unpaired_begins), (2, 2));
}

#[test]
fn events_are_grouped_by_where_their_processes_run() {
    let mut builder = TraceBuilder::new();
    let text = FieldType::scalar(Kind::Str);
    let [begin, other] = ["begin", "other"].map(|name| builder.class("job", name, &[]));
    let end = builder.class("job", "end", &[("user", text)]);
    let stream = builder.stream(0);
    for (process, uid, user, cgroup, container) in
        [(1, 33, "www", "/a", "c1"), (2, 70, "pg", "/b", ""), (3, 1234, "", "", "")]
    {
        let [pid, vpid] = [process + 10; 2];
        builder.state(1, &StateRecord::Process { process, pid, vpid, name: "x", program: "/x", command_line: "" });
        builder.state(1, &StateRecord::ProcessContext { process, uid, user, cgroup, container });
    }
    // Process 14 has no record.
    for (time, pid) in [(10, 11), (20, 12), (30, 12), (40, 13), (50, 14)] {
        builder.event(stream, time, pid, pid, other, &[]);
    }
    builder.event(stream, 60, 12, 12, begin, &[]);
    builder.event(stream, 67, 12, 12, end, &[Value::Str(b"alice")]);
    let trace = builder.finish();
    let ask_of_class = |class: &str, name: &str| {
        let report = ask(&Query { events: vec![class.into()], ..by(&[name]) }, &trace).unwrap();
        counts(&report).into_iter().collect::<BTreeMap<_, _>>()
    };
    let rows = |rows: &[(&str, u64)]| rows.iter().map(|(name, count)| (name.to_string(), *count)).collect();
    let expected: BTreeMap<String, u64> = rows(&[("www", 1), ("pg", 2), ("null", 2)]);
    assert_eq!(ask_of_class("job:other", "user"), expected);
    assert_eq!(ask_of_class("job:other", "context.user"), expected);
    assert_eq!(ask_of_class("job:other", "uid"), rows(&[("33", 1), ("70", 2), ("1234", 1), ("null", 1)]));
    assert_eq!(ask_of_class("job:other", "cgroup"), rows(&[("/a", 1), ("/b", 2), ("null", 2)]));
    assert_eq!(ask_of_class("job:other", "container"), rows(&[("c1", 1), ("", 2), ("null", 2)]));
    // A field goes before the process.
    assert_eq!(ask_of_class("job:*", "user"), rows(&[("alice", 1), ("null", 6)]));
    assert_eq!(ask_of_class("job:end", "context.user"), rows(&[("pg", 1)]));
    let error = ask(&by(&["usr"]), &trace).unwrap_err();
    assert!(error.ends_with("the nearest is `user`"), "{error}");
    let error = ask(&by(&["fields.container"]), &trace).unwrap_err();
    assert!(error.contains("has a field `fields.container`"), "{error}");

    // A field of the end goes before the process of the begin.
    let pairs = |by: &[&str], condition: &str| {
        let mut query = latency("job:begin", "job:end", &[]);
        query.by = by.iter().map(|name| name.to_string()).collect();
        if let Measure::Latency(latency) = &mut query.measure {
            latency.conditions = vec![("--where".into(), Filter::parse(condition).unwrap())];
        }
        counts(&ask(&query, &trace).unwrap())
    };
    assert_eq!(pairs(&["user"], r#"user == "alice""#), [("alice".to_string(), 1)]);
    assert_eq!(pairs(&["user"], r#"user == "pg""#), []);
    let condition = r#"begin.user == "pg" and end.context.user == "pg" and end.user == "alice" and uid == 70"#;
    assert_eq!(pairs(&["begin.user", "end.user", "cgroup"], condition), [("pg alice /b".to_string(), 1)]);
}
