//! The program, on traces made by the tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod made;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_analysis::{Analysis, Latency, Measure, Query, Report};
use dormouse_ctf::Value;
use dormouse_reader::TraceFiles;
use dormouse_testing::{Lack, skip};
use dormouse_traces::TraceBuilder;
use made::{REQUESTS, latency_ns, write_http, write_libc};

/// Result of a run: exit code, standard output, standard error.
type Ran = (i32, String, String);

fn query(arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-query"));
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Returns the rows of a query that succeeds, without the header.
fn rows(trace: &Path, sql: &str) -> Vec<String> {
    let (code, out, err) = query(&[trace.to_str().unwrap(), sql]);
    assert_eq!((code, err.as_str()), (0, ""), "{sql}");
    out.lines().skip(1).map(String::from).collect()
}

/// A trace of requests, and a trace of libc calls.
struct Traces {
    _dir: tempfile::TempDir,
    http: PathBuf,
    libc: PathBuf,
}

fn traces() -> Traces {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let (http, libc) = (made("http"), made("libc"));
    write_http(&http);
    write_libc(&libc);
    Traces { _dir: dir, http, libc }
}

#[test]
fn classes_and_all_events_are_tables() {
    let Traces { http, libc, _dir } = traces();
    let all = |sql: &str| rows(&http, sql);
    assert_eq!(all("select count(*) from \"http:begin\""), ["4000"]);
    assert_eq!(
        all("select class, process, count(*) from events group by 1, 2 order by 1, 2"),
        ["http:begin,cache,2000", "http:begin,web,2000", "http:end,cache,2000", "http:end,web,2000"]
    );
    assert_eq!(
        all("select time, cpu, pid, tid, process, id, path, bytes, numbers from \"http:begin\" order by time limit 1"),
        ["2023-11-14T22:13:20Z,0,12,20,web,0,/0,-10,\"[1, 2, 3]\""]
    );
    assert_eq!(
        all(
            "select fields, field(fields, 'path'), field(fields, 'numbers.1'), field(fields, 'none') from events order by time limit 1"
        ),
        [
            r#""{""context"":{""vpid"":12,""vtid"":20},""fields"":{""id"":0,""path"":""/0"",""bytes"":-10,""numbers"":[1,2,3]}}",/0,2,"#
        ]
    );
    assert_eq!(all("select sum(numbers[2]) from \"http:begin\""), ["8000"]);
    assert_eq!(
        all("select pid, name, program, events from processes order by pid"),
        ["12,web,/bin/x,4000", "13,cache,/bin/x,4000"]
    );
    assert_eq!(all("select kind, events from losses where kind = 'total'"), ["total,0"]);
    assert_eq!(all("select events, events_lost, threads from totals"), ["8000,0,2"]);
    assert_eq!(all("select class from classes where class like 'http:%' order by class"), ["http:begin", "http:end"]);
    // Two traces as one.
    let (code, out, _) = query(&[http.to_str().unwrap(), libc.to_str().unwrap(), "select count(*) from events"]);
    assert_eq!((code, out.as_str()), (0, "count(*)\n8036\n"));
}

/// Conditions that are evaluated while reading give the same rows as DataFusion's filters.
#[test]
fn pushed_down_conditions_select_the_same_rows() {
    let Traces { http, _dir, .. } = traces();
    let plan =
        |condition: &str| rows(&http, &format!("explain select id from \"http:begin\" where {condition}")).join("\n");
    for (pushed, left, is_pushed) in [
        ("bytes > 1000", "bytes + 0 > 1000", true),
        ("bytes >= -5 and bytes < 5", "bytes + 0 >= -5 and bytes + 0 < 5", true),
        ("bytes <> 7", "bytes + 0 <> 7", true),
        ("path = '/3'", "path || '' = '/3'", true),
        ("path in ('/3', '/4') and id < 100", "path || '' in ('/3', '/4') and id + 0 < 100", true),
        ("id = 5 or path = '/1'", "id + 0 = 5 or path || '' = '/1'", true),
        ("path = 'no\"such\\one'", "path || '' = 'no\"such\\one'", true),
        ("time >= '2023-11-14T22:13:20.01Z' and time < '2023-11-14T22:13:20.02Z'", "id >= 1000 and id < 2000", true),
        ("path > '/5'", "path || '' > '/5'", false),
        ("pid = 12", "pid + 0 = 12", false),
        ("process = 'web'", "process || '' = 'web'", false),
    ] {
        let count =
            |condition: &str| rows(&http, &format!("select count(*), sum(id) from \"http:begin\" where {condition}"));
        assert_eq!(count(pushed), count(left), "{pushed}");
        assert_eq!(!plan(pushed).contains("FilterExec"), is_pushed, "{pushed}\n{}", plan(pushed));
    }
    for (condition, expected) in [
        ("class = 'http:end'", "4000"),
        ("class like '%:b%'", "4000"),
        ("class in ('http:end', 'http:begin')", "8000"),
        ("class = 'none'", "0"),
        ("class <> 'http:end' and pid = 12", "2000"),
    ] {
        assert_eq!(rows(&http, &format!("select count(*) from events where {condition}")), [expected], "{condition}");
    }
    let plan = rows(&http, "explain select time from events where class like '%end' and time < '2023-11-14T22:13:21Z'")
        .join("\n");
    assert!(
        plan.contains("TraceExec: http:end, columns=[time], since=None, until=Some(1700000001000000000)"),
        "{plan}"
    );
}

/// Counts made by the reader equal counts of rows.
#[test]
fn counts_are_those_of_rows() {
    let Traces { http, libc, _dir } = traces();
    let odd = _dir.path().join("odd");
    std::fs::create_dir(&odd).unwrap();
    let mut builder = TraceBuilder::new();
    let class =
        builder.class("p", "e", &[("class", FieldType::scalar(Kind::Str)), ("time", FieldType::scalar(Kind::U64))]);
    let stream = builder.stream(0);
    for at in 0..1000 {
        let text = if at % 3 == 0 { "a" } else { "b" };
        builder.event(stream, 5_000 * at, 1, 1, class, &[Value::Str(text.as_bytes()), Value::U64(at / 10)]);
    }
    builder.finish().write(&odd);
    let damaged = _dir.path().join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    write_http(&damaged);
    let files = std::fs::read_dir(&damaged).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let path = files.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 100].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let [http, libc, odd, damaged] = [&http, &libc, &odd, &damaged].map(|path| path.to_str().unwrap());
    // Traces, query, and whether the plan counts without building rows.
    let all: [(&[&str], &str, bool); 13] = [
        (&[http, libc, odd], "select class, N from events group by 1 order by 1", true),
        (&[http], "select class, time_bucket('1ms', time) as t, N from events group by 1, 2 order by 1, 2", true),
        (&[http, libc], "select time_bucket('7us', time) as t, N from events group by 1 order by 1", true),
        (&[http], "select date_trunc('millisecond', time) as t, N from events group by 1 order by 1", true),
        (&[http], "select N from events where class like '%end' and time >= '2023-11-14T22:13:20.0100003Z'", true),
        (
            &[http],
            "select time_bucket('1ms', time) as t, N from \"http:end\" where time < '2023-11-14T22:13:20.02Z' group by 1 order by 1",
            true,
        ),
        (&[damaged], "select class, time_bucket('100us', time) as t, N from events group by 1, 2 order by 1, 2", true),
        (&[odd], "select class, N from \"p:e\" group by 1 order by 1", false),
        (&[odd], "select date_trunc('month', time) as t, N from events group by 1", false),
        (&[odd], "select \"fields.time\", N from \"p:e\" group by 1 order by 1", false),
        (&[http], "select id % 2, N from \"http:begin\" group by 1 order by 1", false),
        (&[http], "select N from \"http:begin\" where bytes > 100", false),
        (&[http], "select class, N from (select process as class from events) group by 1 order by 1", false),
    ];
    for (traces, sql, is_counted) in all {
        let asked = |sql: &str, threads| query(&[traces, &[sql, "--threads", threads]].concat());
        for threads in ["1", "2"] {
            let counted = asked(&sql.replace('N', "count(*) as n"), threads);
            assert_eq!(counted, asked(&sql.replace('N', "sum(1) as n"), threads), "{sql}");
            assert!(counted.1.lines().count() > 1 && counted.0 == i32::from(traces == [damaged]), "{sql} {counted:?}");
        }
        let plan = asked(&format!("explain {}", sql.replace('N', "count(*) as n")), "2").1;
        assert_eq!(plan.contains("counts by"), is_counted, "{sql}\n{plan}");
    }
}

#[test]
fn functions_of_times_and_durations() {
    let Traces { http, _dir, .. } = traces();
    let all = |sql: &str| rows(&http, sql);
    assert_eq!(
        all("select time_bucket('10ms', time) as t, count(*) from events group by t order by t"),
        [
            "2023-11-14T22:13:20Z,2000",
            "2023-11-14T22:13:20.010Z,2000",
            "2023-11-14T22:13:20.020Z,2000",
            "2023-11-14T22:13:20.030Z,2000"
        ]
    );
    // Lengths that differ by row, null lengths, and null times.
    let of_rows = "time_bucket(case cpu when 0 then '10ms' else '20ms' end, time)";
    assert_eq!(
        all(&format!("select cpu, {of_rows} as t, count(*) from events group by 1, 2 order by 1, 2")),
        [
            "0,2023-11-14T22:13:20Z,1000",
            "0,2023-11-14T22:13:20.010Z,1000",
            "0,2023-11-14T22:13:20.020Z,1000",
            "0,2023-11-14T22:13:20.030Z,1000",
            "1,2023-11-14T22:13:20Z,2000",
            "1,2023-11-14T22:13:20.020Z,2000"
        ]
    );
    assert_eq!(
        all(
            "select count(time_bucket(null, time)), count(time_bucket('1s', case when cpu = 0 then time end)) from events"
        ),
        ["0,4000"]
    );
    assert_eq!(
        all("select duration_text(1500), duration_text(max(time) - min(time)), duration_text(null) from events"),
        ["1.50 µs,40.0 ms,"]
    );
    let (code, _, err) = query(&[http.to_str().unwrap(), "select time_bucket('often', time) from events"]);
    assert_eq!(
        (code, err.as_str()),
        (2, "dormouse: time_bucket: `often` is not a duration; write 500ms, 1.5s or 2m\n")
    );
}

/// A union whose branches are read in one pass has the rows of all branches.
#[test]
fn classes_read_together_equal_a_union() {
    let Traces { http, libc, _dir } = traces();
    let open = "select time, process, pid, fd, path, 0 as bytes from \"libc:open\" where fd >= 0";
    let read = "select time, process, pid, fd, null, greatest(result, 0) from \"libc:read\"";
    let write = "select time, process, pid, fd, null, result from \"libc:write\"";
    let begin = "select time, id, bytes + 1 as n from \"http:begin\" where bytes > 100 and path in ('/3', '/4')";
    let end = "select time, id, null from \"http:end\"";
    let early = "select time, id, null from \"http:end\" where time < '2023-11-14T22:13:20.01Z'";
    let of_web = "select time, id, null from \"http:end\" where process = 'web'";
    let all: [(&Path, &[&str], Option<usize>); 7] = [
        (&libc, &[open, read, write], Some(0)),
        (&libc, &[open, "select time, process, pid, fd, path, 1 from \"libc:openat\"", read], Some(0)),
        (&http, &[begin, end], Some(0)),
        (&http, &[begin, end, "select time, cpu, 5 from \"http:end\""], Some(1)),
        (&http, &[begin, early], None),
        (&http, &[begin, of_web], None),
        (&http, &["select time, fields from events", "select time, path from \"http:begin\""], None),
    ];
    for (trace, branches, others) in all {
        let mut expected: Vec<String> = branches.iter().flat_map(|sql| rows(trace, sql)).collect();
        expected.sort();
        let union = branches.join(" union all ");
        for threads in ["1", "2"] {
            let (code, out, err) = query(&[trace.to_str().unwrap(), &union, "--threads", threads]);
            assert_eq!((code, err.as_str()), (0, ""), "{union}");
            let mut found: Vec<&str> = out.lines().skip(1).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{union}");
        }
        let plan = rows(trace, &format!("explain {union}")).join("\n");
        let [together, apart] = ["TraceExec: together", "TraceExec"].map(|word| plan.matches(word).count());
        let expected = others.map_or((0, branches.len()), |others| (1, 1 + others));
        assert_eq!((together, apart), expected, "{plan}");
        // A query that needs no columns.
        let sum: usize = branches.iter().map(|sql| rows(trace, sql).len()).sum();
        assert_eq!(rows(trace, &format!("select count(*) from ({union})")), [sum.to_string()], "{union}");
        assert_eq!(rows(trace, &format!("select 'a' as a from ({union})")).len(), sum, "{union}");
    }
}

/// `locf` gives the same values as the slower SQL expression.
#[test]
fn locf_carries_the_last_known_value() {
    let Traces { libc, http, _dir } = traces();
    let given = "(values (1, null), (2, 'a'), (3, null), (4, 'b'), (5, null)) as given (x, y)";
    let sql = format!("select x, locf(y) over (order by x) as last from {given} order by x");
    assert_eq!(rows(&libc, &sql), ["1,", "2,a", "3,a", "4,b", "5,b"]);
    let opened = "(select time, fd, path from \"libc:open\" union all select time, fd, null from \"libc:read\")";
    // Only windows over plain columns are replaced; DataFusion computes the others.
    for (is_by_key, trace, of, from, over) in [
        (true, &libc, "path", opened, "partition by fd order by time"),
        (true, &libc, "path", opened, "partition by fd order by time desc, fd"),
        (true, &libc, "path", opened, "order by time"),
        (false, &http, "nullif(id % 3, 1)", "\"http:begin\"", "partition by tid order by time"),
        (false, &http, "nullif(share, 0.5)", "\"http:end\"", "order by time"),
    ] {
        let slower =
            format!("last_value({of}) ignore nulls over ({over} rows between unbounded preceding and current row)");
        let asked = |last: &str| rows(trace, &format!("select time, {last} as last from {from} order by time"));
        let found = format!("locf({of}) over ({over})");
        assert_eq!(asked(&found), asked(&slower), "{of}");
        let plan = rows(trace, &format!("explain select {found} as last from {from}")).join("\n");
        assert_eq!(plan.contains("CarryExec"), is_by_key, "{plan}");
    }
}

/// Returns the result of an analysis, as `dormouse stats` computes it.
fn stats(trace: &Path, query: &Query) -> Report {
    let files = TraceFiles::open(trace).unwrap();
    let traces: Vec<_> = files.described().iter().collect();
    let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
    let mut analysis = Analysis::new(query, &traces, streams).unwrap();
    let mut events = files.events();
    while let Some(next) = events.next_event() {
        match next {
            Ok(event) => analysis.event(&event),
            Err(notice) => analysis.notice(&notice, events.streams()[notice.stream].time_ns()),
        }
    }
    analysis.finish(&files.left_out, files.missing(&events))
}

#[test]
fn stats_and_a_query_agree() {
    let Traces { http, libc, _dir } = traces();
    for trace in [&http, &libc] {
        let counted = stats(trace, &Query { by: vec!["event".into(), "cpu".into()], ..Query::default() });
        let mut expected: Vec<String> = counted
            .rows
            .iter()
            .map(|row| serde_json::to_value(row).unwrap())
            .map(|row| format!("{},{},{}", row["key"]["event"].as_str().unwrap(), row["key"]["cpu"], row["count"]))
            .collect();
        expected.sort();
        assert_eq!(rows(trace, "select class, cpu, count(*) from events group by 1, 2 order by 1, 2"), expected);
    }
    for (begin, end, key) in [("http:begin", "http:end", &["id"][..]), ("http:begin", "http:end", &[])] {
        let key: Vec<String> = key.iter().map(ToString::to_string).collect();
        let latency =
            Latency { begin: begin.into(), end: end.into(), key: key.clone(), slowest: 1, ..Latency::default() };
        let report = stats(&http, &Query { measure: Measure::Latency(latency), ..Query::default() });
        let values = report.rows[0].values.as_ref().unwrap();
        let key = if key.is_empty() { String::new() } else { format!(", '{}'", key.join(",")) };
        let sql = format!(
            "select count(*), min(duration_ns), max(duration_ns), sum(duration_ns), percentile_cont(duration_ns, 0.99), quantile(duration_ns, 0.99) from pairs('{begin}', '{end}'{key})"
        );
        let row = rows(&http, &sql)[0].clone();
        let cells: Vec<f64> = row.split(',').map(|cell| cell.parse().unwrap()).collect();
        let json = serde_json::to_value(values).unwrap();
        let of = |name: &str| json[name].as_f64().unwrap();
        assert_eq!(cells[..4], [of("count"), of("min"), of("max"), of("sum")], "{json}");
        let p99 = json["percentiles"]["99"].as_f64().unwrap();
        assert!(cells[4..].iter().all(|one| (one / p99 - 1.0).abs() < 0.03), "{row} {p99}");
        // The table of pairs found by class names agrees as well.
        let of_table = rows(&http, "select name, count(*), sum(duration_ns) from pairs group by name");
        assert_eq!(of_table, [format!("http,{},{}", REQUESTS, (0..REQUESTS).map(latency_ns).sum::<u64>())]);
    }
}

/// As in `stats`, a pair is left out if events were lost between its begin and end.
#[test]
fn pairs_across_losses_are_left_out() {
    let mut builder = TraceBuilder::new();
    let id = [("id", FieldType::scalar(Kind::U64))];
    let (begin, end) = (builder.class("a", "begin", &id), builder.class("a", "end", &id));
    let stream = builder.stream(0);
    builder.event(stream, 100, 1, 1, begin, &[Value::U64(1)]);
    builder.event(stream, 200, 1, 1, end, &[Value::U64(1)]);
    builder.event(stream, 300, 1, 1, begin, &[Value::U64(2)]);
    builder.packet(stream, 0, 0);
    builder.event(stream, 400, 1, 1, end, &[Value::U64(2)]);
    builder.event(stream, 500, 1, 1, begin, &[Value::U64(3)]);
    builder.packet(stream, 0, 5);
    builder.event(stream, 600, 1, 1, end, &[Value::U64(3)]);
    let dir = tempfile::tempdir().unwrap();
    builder.finish().write(dir.path());
    let latency = Latency { begin: "a:begin".into(), end: "a:end".into(), ..Latency::default() };
    let report = stats(dir.path(), &Query { measure: Measure::Latency(latency), ..Query::default() });
    let json = serde_json::to_value(&report).unwrap();
    let across = json["latency"]["pairs_across_losses"].as_u64().unwrap();
    assert!(across > 0, "{json}");
    let (code, out, err) = query(&[dir.path().to_str().unwrap(), "select count(*) from pairs"]);
    let believed = json["rows"][0]["count"].as_u64().unwrap();
    assert_eq!((code, out), (1, format!("count(*)\n{believed}\n")), "{err}");
    assert!(err.contains(&format!("{across} pairs are left out")), "{err}");
    assert!(err.contains("events were lost while this trace was recorded"), "{err}");
}

#[test]
fn named_queries_run_and_can_be_shown() {
    let Traces { http, libc, _dir } = traces();
    let (code, list, _) = query(&["--named"]);
    assert_eq!(code, 0);
    let names: Vec<&str> = list.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(names.contains(&"alloc-leaks") && names.is_sorted(), "{list}");
    let named = |trace: &Path, name: &str| {
        let (code, out, err) = query(&[trace.to_str().unwrap(), "--named", name]);
        assert_eq!((code, err.as_str()), (0, ""), "{name}");
        out.lines().skip(1).map(String::from).collect::<Vec<_>>()
    };
    for name in &names {
        assert!(!named(&libc, name).is_empty(), "{name}");
        let (code, sql, _) = query(&["--named", name, "--show"]);
        assert!(code == 0 && sql.contains("select"), "{sql}");
    }
    assert_eq!(named(&libc, "alloc-leaks"), ["app,7,100,2,200"]);
    assert_eq!(named(&libc, "alloc-sizes"), ["app,7,64,2,114", "app,7,128,2,200", "app,7,256,1,200"]);
    assert_eq!(
        named(&libc, "io-by-file"),
        [
            "app,7,/etc/a,3,1024,0,,10.3 µs,10350",
            "app,7,/tmp/b,0,,1,500,5.00 µs,5000",
            "app,7,standard output,0,,1,7,70.0 ns,70"
        ]
    );
    // A text that is shown can be given back.
    let (_, sql, _) = query(&["--named", "mutex-waits", "--show"]);
    let given = query(&[libc.to_str().unwrap(), &sql]);
    assert_eq!((given.0, given.1.lines().count()), (0, 3), "{given:?}");
    // Rows that are not shown are counted.
    let (code, out, err) = query(&[libc.to_str().unwrap(), "--named", "io-by-file", "--rows", "2"]);
    let told = "dormouse: rows that are not shown: 1; --rows 3 shows all\n";
    assert_eq!((code, out.lines().count(), err.as_str()), (0, 3, told));
    let contention = "app,7,abc,3,2,2,4.00 µs,2.00 µs,2.00 µs,app (8),5.00 µs,2.00 µs,app (8)";
    assert_eq!(named(&libc, "mutex-contention"), [contention]);
    assert_eq!(
        named(&libc, "mutex-waits"),
        ["app,7,abc,8,app,9,worker,1,2.00 µs,2.00 µs,2000", "app,7,abc,9,worker,8,app,1,2.00 µs,2.00 µs,2000"]
    );
    assert_eq!(
        named(&libc, "rwlock-waits"),
        ["app,7,eee,8,write,0,1,2.00 µs,2.00 µs,2000", "app,7,eee,9,read,8,1,2.00 µs,2.00 µs,2000"]
    );
    let total = (0..REQUESTS).map(latency_ns).sum::<u64>();
    let latency = named(&http, "latency");
    assert!(
        latency[0].starts_with("http,4000,") && latency[0].ends_with(&format!("1.10 µs,{:.2} ms", total as f64 / 1e6)),
        "{latency:?}"
    );
    let slowest = named(&http, "slowest");
    assert_eq!(slowest.len(), 10);
    assert!(slowest[0].starts_with("1.10 µs,http,"), "{slowest:?}");
    assert_eq!(named(&http, "busiest")[0], "http:begin,web,12,2000");
    assert_eq!(
        named(&http, "classes-by-second"),
        ["2023-11-14T22:13:20Z,http:begin,4000", "2023-11-14T22:13:20Z,http:end,4000"]
    );
    assert!(named(&http, "threads")[0].starts_with("web,12,20,,4000,1,2023-11-14T22:13:20Z,"));
    assert!(named(&libc, "threads").iter().any(|row| row.starts_with("app,7,9,worker,")));
    let (code, _, err) = query(&[http.to_str().unwrap(), "--named", "alloc-leaks"]);
    assert_eq!((code, err.contains("`dormouse record --libc -- COMMAND` records it")), (2, true), "{err}");
    let (code, _, err) = query(&[http.to_str().unwrap(), "--named", "alloc-leak"]);
    let told =
        "dormouse: no query is called alloc-leak; did you mean alloc-leaks? `dormouse query --named` lists all 12\n";
    assert_eq!((code, err.as_str()), (2, told));
    let (code, _, err) = query(&[http.to_str().unwrap(), "--named", "nope"]);
    assert_eq!((code, err.as_str()), (2, "dormouse: no query is called nope; `dormouse query --named` lists all 12\n"));
}

/// Bytes are attributed to the file that the descriptor refers to at the time of the call, however it was opened.
#[test]
fn io_by_file_follows_copies_and_ends_of_descriptors() {
    let mut builder = TraceBuilder::new();
    let field = |name: &'static str, kind| (name, FieldType::scalar(kind));
    let (fd, path, result) = (field("fd", Kind::I32), field("path", Kind::Str), field("result", Kind::I64));
    let (flags, mode) = (field("flags", Kind::I32), field("mode", Kind::U32));
    let open = builder.class("libc", "open", &[path, flags, mode, fd]);
    builder.class("libc", "openat", &[field("dirfd", Kind::I32), path, flags, mode, fd]);
    let transfer = [fd, field("buf", Kind::U64), field("count", Kind::U64), result, field("duration_ns", Kind::U64)];
    builder.class("libc", "read", &transfer);
    let write = builder.class("libc", "write", &transfer);
    let close = builder.class("libc", "close", &[fd, field("result", Kind::I32)]);
    let [fclose, dup, close_range, pipe, fopen, freopen, socket, socketpair, accept] =
        made::descriptor_classes(&mut builder);
    let [fork_begin, fork_child] = made::fork_classes(&mut builder);
    let stream = builder.stream(0);
    let mut at = 0;
    let mut event = |pid: u32, class: u16, values: &[Value<'_>]| {
        at += 1000;
        builder.event(stream, at, pid, pid, class, values);
    };
    let text = |path: &'static str| Value::Str(path.as_bytes());
    let numbers = |values: &[i32]| values.iter().map(|value| Value::I32(*value)).collect::<Vec<_>>();
    let opened = |path: &'static str, fd| [text(path), Value::I32(0), Value::U32(0), Value::I32(fd)];
    // Each write has another power of two, so that a sum shows which writes it contains.
    let mut size = 1;
    let mut written = |fd| {
        size *= 2;
        [Value::I32(fd), Value::U64(0), Value::U64(0), Value::I64(size / 2), Value::U64(1)]
    };
    let range = |first, last, flags| [Value::U32(first), Value::U32(last), Value::I32(flags), Value::I32(0)];
    event(7, open, &opened("/a", 3));
    event(7, write, &written(3)); // /a: 1
    event(7, dup, &numbers(&[3, 1]));
    event(7, close, &numbers(&[3, 0]));
    event(7, write, &written(1)); // /a: 2
    event(7, dup, &numbers(&[1, 10]));
    event(7, dup, &numbers(&[-9, 10])); // one that is not known
    event(7, write, &written(10)); // descriptor 10: 4
    event(7, dup, &numbers(&[1, -24]));
    event(7, close, &numbers(&[1, -9]));
    event(7, write, &written(1)); // /a: 8
    event(7, open, &opened("/b", 3));
    event(7, fclose, &numbers(&[3, 0]));
    event(7, pipe, &numbers(&[3, 4, 0, 0]));
    event(7, write, &written(4)); // descriptor 4: 16
    event(7, fopen, &[text("/c"), Value::I32(5)]);
    event(7, freopen, &[text(""), Value::I32(5), Value::I32(5)]);
    event(7, write, &written(5)); // /c: 32
    event(7, freopen, &[text("/d"), Value::I32(5), Value::I32(6)]);
    event(7, write, &written(5)); // descriptor 5: 64
    event(7, write, &written(6)); // /d: 128
    event(7, close_range, &range(6, u32::MAX, 4));
    event(7, write, &written(6)); // /d: 256
    event(7, close_range, &range(6, u32::MAX, 0));
    event(7, write, &written(6)); // descriptor 6: 512
    event(7, write, &written(1)); // /a: 1024
    event(7, open, &opened("/e", 7));
    event(8, write, &written(7)); // descriptor 7 of another process: 2048
    // The call that closed the descriptor before is not traced.
    event(7, socket, &numbers(&[1, 1, 0, 7]));
    event(7, write, &written(7)); // descriptor 7: 4096
    event(7, open, &opened("/f", 8));
    event(7, open, &opened("/f", 9));
    event(7, socketpair, &numbers(&[1, 1, 0, 8, 9, 0]));
    event(7, write, &written(8)); // descriptor 8: 8192
    event(7, write, &written(9)); // descriptor 9: 16384
    event(7, open, &opened("/g", 11));
    event(7, accept, &numbers(&[7, 0, 11]));
    event(7, write, &written(11)); // descriptor 11: 32768
    // A descriptor that another process has opened says nothing of this one.
    event(8, write, &written(2)); // standard error: 65536
    event(8, dup, &numbers(&[0, 9]));
    event(8, write, &written(9)); // standard input: 131072
    // A child has what its parent had when it forked.
    event(7, open, &opened("/h", 12));
    event(7, fork_begin, &[Value::U32(1)]);
    event(7, open, &opened("/i", 12));
    event(9, fork_child, &[Value::I32(7), Value::U32(1)]);
    event(9, write, &written(12)); // /h: 262144
    event(9, write, &written(1)); // /a: 524288
    let dir = tempfile::tempdir().unwrap();
    builder.finish().closed().write(dir.path());
    let (code, out, err) = query(&[dir.path().to_str().unwrap(), "--named", "io-by-file"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let sums = |pid: u32| -> BTreeMap<String, u64> {
        let rows = out.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
        let of_process = rows.filter(|row| row[1] == pid.to_string());
        of_process.map(|row| (row[2].to_string(), row[6].parse().unwrap())).collect()
    };
    let expected = |rows: &[(&str, u64)]| rows.iter().map(|(name, sum)| (name.to_string(), *sum)).collect();
    let of_7 = expected(&[
        ("/a", 1 + 2 + 8 + 1024),
        ("/c", 32),
        ("/d", 128 + 256),
        ("descriptor 10 (opening not traced)", 4),
        ("descriptor 4 (pipe or socket)", 16),
        ("descriptor 5 (opening not traced)", 64),
        ("descriptor 6 (opening not traced)", 512),
        ("descriptor 7 (pipe or socket)", 4096),
        ("descriptor 8 (pipe or socket)", 8192),
        ("descriptor 9 (pipe or socket)", 16384),
        ("descriptor 11 (pipe or socket)", 32768),
    ]);
    let of_8 = [("descriptor 7 (opening not traced)", 2048), ("standard error", 65536), ("standard input", 131_072)];
    assert_eq!((sums(7), sums(8)), (of_7, expected(&of_8)), "{out}");
    assert_eq!(sums(9), expected(&[("/h", 262_144), ("/a", 524_288)]), "{out}");
}

#[test]
fn errors_have_their_position() {
    let Traces { http, _dir, .. } = traces();
    let http = http.to_str().unwrap();
    for (sql, expected) in [
        (
            "select * from evnts",
            "line 1, column 15: there is no table evnts; did you mean events?\n  select * from evnts\n                ^",
        ),
        (
            "select pth from \"http:begin\"",
            "line 1, column 8: there is no column pth; did you mean path?\n  select pth from \"http:begin\"\n         ^",
        ),
        ("select * from http:begin", "put the name of an event class in double quotes"),
        ("select *\nfrom events\nwhere where", "line 3, column 7: "),
        ("select * from \"http:bgin\"", "did you mean \"http:begin\"?"),
        (
            "select * from pairs('http:begn', 'http:end')",
            "pairs: no event class matches 'http:begn'; did you mean \"http:begin\"?",
        ),
        ("select * from pairs('http:begin', 'http:end', 'numbers')", "which is no key"),
        ("select bytes from \"http:begin\" where bytes = 'x'", "x"),
        ("create table t as select 1", "DDL not supported"),
        ("copy (select 1) to '/tmp/dormouse-x.csv'", "DML not supported"),
    ] {
        let (code, out, err) = query(&[http, sql]);
        assert_eq!((code, out.as_str()), (2, ""), "{sql} {err}");
        assert!(err.starts_with("dormouse: ") && err.contains(expected), "{sql}\n{err}");
    }
    for (arguments, expected) in [
        (&[][..], "name a trace, then a query"),
        (&["select * from events"], "name a trace before the query"),
        (&["/no/such/trace", "select 1 from events"], "/no/such/trace"),
        (&[http, "--named"], "--named needs the name of a query"),
        (&[http, "select 1 from events", "--memory", "many"], "is not a size"),
        (&[http, "select 1 from events", "-o", "/no/such/dir/x"], "cannot write to /no/such/dir/x"),
    ] {
        let (code, _, err) = query(arguments);
        assert_eq!((code, err.contains(expected)), (2, true), "{arguments:?}\n{err}");
    }
    let (code, help, _) = query(&["--help"]);
    assert_eq!((code, help.contains("Tables (put a name with a colon")), (0, true));
}

#[test]
fn results_in_each_format() {
    let Traces { http, _dir, .. } = traces();
    let dir = tempfile::tempdir().unwrap();
    let sql = "select id, path, numbers, time from \"http:begin\" order by id limit 2";
    let run = |format: &str| {
        let (code, out, err) = query(&[http.to_str().unwrap(), sql, "--format", format]);
        assert_eq!((code, err.as_str()), (0, ""));
        out
    };
    assert_eq!(
        run("json"),
        "{\"id\":0,\"path\":\"/0\",\"numbers\":[1,2,3],\"time\":\"2023-11-14T22:13:20Z\"}\n\
         {\"id\":1,\"path\":\"/1\",\"numbers\":[1,2,3],\"time\":\"2023-11-14T22:13:20.000010Z\"}\n"
    );
    assert!(run("csv").starts_with("id,path,numbers,time\n0,/0,\"[1, 2, 3]\",2023-11-14T22:13:20Z\n"));
    assert!(run("table").contains("| 0  | /0   | [1, 2, 3] | 2023-11-14T22:13:20Z"), "{}", run("table"));
    for (format, magic) in [("arrow", &b"ARROW1"[..]), ("parquet", b"PAR1")] {
        let file = dir.path().join(format);
        let (code, out, err) = query(&[http.to_str().unwrap(), sql, "--format", format, "-o", file.to_str().unwrap()]);
        assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
        let bytes = std::fs::read(&file).unwrap();
        assert!(bytes.starts_with(magic) && bytes.ends_with(magic), "{format}");
    }
    // No temporary files are left.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    let (code, out, err) = query(&[http.to_str().unwrap(), sql, "--format", "table", "--rows", "1"]);
    assert!(code == 0 && !out.contains("/1") && err.contains("only 1 rows are shown"), "{out}{err}");
    let (code, out, _) =
        query(&[http.to_str().unwrap(), "select id from \"http:begin\" where id = 10000000", "--format", "csv"]);
    assert_eq!((code, out.as_str()), (0, "id\n"));
}

/// It is not an error if the reader closes the pipe early.
#[test]
fn a_closed_output_is_not_an_error() {
    let Traces { http, _dir, .. } = traces();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-query"));
    command.args([http.to_str().unwrap(), "select * from events", "--format", "json"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

/// Writes a trace of 200,000 events with unsorted texts, and returns their number.
fn large(dir: &Path) -> u64 {
    let mut builder = TraceBuilder::new();
    let class = builder.class("p", "e", &[("n", FieldType::scalar(Kind::U64)), ("text", FieldType::scalar(Kind::Str))]);
    let stream = builder.stream(0);
    let count = 200_000u64;
    for n in 0..count {
        if n % 1000 == 999 {
            builder.packet(stream, 0, 0);
        }
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let text = format!("{mixed:064x}");
        builder.event(stream, n, 1, 2, class, &[Value::U64(mixed), Value::Str(text.as_bytes())]);
    }
    builder.finish().write(dir);
    count
}

/// An interrupted query leaves no files.
#[test]
fn an_interrupt_removes_temporary_files() {
    let (dir, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    large(dir.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-query"));
    // Far more rows than fit in memory, and a query that would take very long.
    let sql = "select a.text || b.text as both from \"p:e\" a cross join \"p:e\" b order by both";
    command.args([dir.path().to_str().unwrap(), sql, "--memory", "64M"]).env("TMPDIR", temporary.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    // The directory is created before the query runs, and so are the signal handlers.
    let has_files = || entries(temporary.path()).any(|dir| entries(&dir).next().is_some());
    while !has_files() && child.try_wait().unwrap().is_none() {
        // The command does not report its temporary files, so poll for them; the loop also ends if the command does.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(entries(temporary.path()).count(), 0);
}

#[test]
fn state_beyond_the_memory_goes_to_disk() {
    let dir = tempfile::tempdir().unwrap();
    let count = large(dir.path());
    let trace = dir.path().to_str().unwrap();
    let sorted = "select n, text from \"p:e\" order by text";
    let (code, all, err) = query(&[trace, sorted, "--memory", "1G"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let (code, spilled, err) = query(&[trace, sorted, "--memory", "64M"]);
    assert_eq!((code, err.as_str(), spilled == all), (0, "", true));
    assert_eq!(all.lines().count() as u64, count + 1);
    let (code, _, err) = query(&[trace, sorted, "--memory", "100K"]);
    assert!(code == 2 && err.starts_with("dormouse: --memory is too small for this query"), "{code} {err}");
}

fn run(command: &mut Command) -> Option<std::process::Output> {
    command.stdin(Stdio::null()).output().ok()
}

/// Returns an interpreter of an environment that has these packages. Otherwise the test is skipped.
fn python(packages: &[&str]) -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap();
    // The environment of the Python package's tests, which can have them already.
    let dir = program.parent().and_then(Path::parent).unwrap().join("python-tests");
    let python = dir.join("bin/python");
    let succeeds = |command: &mut Command| run(command).is_some_and(|output| output.status.success());
    if !succeeds(Command::new(&python).arg("-V"))
        && !succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir))
    {
        skip(Lack::machine("python3 makes no environment (venv)", "`apt-get install python3 python3-venv`"));
        return None;
    }
    for package in packages {
        let imports = || succeeds(Command::new(&python).args(["-c", &format!("import {package}")]));
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]);
        // Without a registry, pip should fail quickly.
        pip.args(["--retries", "1", "--timeout", "30", package]);
        if !(imports() || succeeds(&mut pip) && imports()) {
            skip(Lack::machine(format!("Python has no {package}"), format!("`pip install {package}`")));
            return None;
        }
    }
    Some(python)
}

/// pyarrow and DuckDB read the written rows.
const CHECK: &str = r#"
import sys, glob, duckdb, pyarrow.dataset, pyarrow.parquet, pyarrow.ipc
parquet, arrow = sys.argv[1:]
parquet += "/events"
data = pyarrow.dataset.dataset(parquet, format="parquet", partitioning="hive")
table = data.to_table()
assert table.num_rows == 8000, table.num_rows
assert set(table["host"].to_pylist()) == {"lair"} and set(map(str, table["day"].to_pylist())) == {"2023-11-14"}
assert set(table["class"].to_pylist()) == {"http:begin", "http:end"}, set(table["class"].to_pylist())
files = sorted(glob.glob(parquet + "/**/*.parquet", recursive=True))
assert len(files) == 2, files
for name in files:
    times = pyarrow.parquet.read_table(name, columns=["time"], partitioning=None)["time"]
    assert times.cast("int64").to_pylist() == sorted(times.cast("int64").to_pylist())
    column = pyarrow.parquet.ParquetFile(name).metadata.row_group(0).column(0)
    assert column.path_in_schema == "time" and column.statistics.has_min_max
rows = duckdb.sql(f"select class, process, count(*), sum(id), min(epoch_ns(time)) from read_parquet('{parquet}/**/*.parquet', hive_partitioning=true) group by all order by all").fetchall()
assert rows == [("http:begin", "cache", 2000, 4000000, 1700000000000010000), ("http:begin", "web", 2000, 3998000, 1700000000000000000),
    ("http:end", "cache", 2000, 4000000, 1700000000000010000 + 1019), ("http:end", "web", 2000, 3998000, 1700000000000000100)], rows
files = glob.glob(arrow + "/**/*.arrow", recursive=True)
assert sum(pyarrow.ipc.open_file(name).read_all().num_rows for name in files) == 8000
"#;

#[test]
fn other_tools_read_exports() {
    let Traces { http, _dir, .. } = traces();
    let dir = tempfile::tempdir().unwrap();
    let (parquet, arrow) = (dir.path().join("parquet"), dir.path().join("arrow"));
    // Two files of events, and one of each other table.
    for (place, format, files) in [(&parquet, &["--format", "parquet"][..], 6), (&arrow, &["--format", "arrow"], 2)] {
        let all = [&[http.to_str().unwrap(), "--export", place.to_str().unwrap()], format].concat();
        let line = format!("dormouse: wrote 8000 events to {files} files\n");
        assert_eq!(query(&all), (0, String::new(), line));
        // An existing directory is not overwritten, and a store cannot be exported again.
        let (code, _, err) = query(&all);
        assert_eq!((code, err.contains("is not empty; name a new directory")), (2, true), "{err}");
    }
    let (code, _, err) = query(&[parquet.to_str().unwrap(), "--export", "x"]);
    assert_eq!((code, err.contains("is already a store")), (2, true), "{err}");
    let of_class = parquet.join("events/host=lair/day=2023-11-14/class=http%3Abegin");
    assert_eq!(of_class.read_dir().unwrap().count(), 1);
    // The store has the same rows as the trace.
    for sql in [
        "select name, begin_time, duration_ns, process, pid, tid, cpu, key from pairs order by begin_time, tid",
        "select pid, name, program, events from processes order by pid",
        "select events, events_lost, begin_time, end_time, packets from totals",
    ] {
        assert_eq!(rows(&parquet, sql), rows(&http, sql), "{sql}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    // The final rename fails, and no files are left.
    let deep = dir.path().join("deep");
    std::fs::create_dir_all(deep.join("link")).unwrap();
    std::os::unix::fs::symlink("/no/such/place", deep.join("dangling")).unwrap();
    let (code, _, err) = query(&[http.to_str().unwrap(), "--export", deep.join("dangling").to_str().unwrap()]);
    assert_eq!((code, err.contains("cannot write to")), (2, true), "{err}");
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 2);
    let Some(python) = python(&["pyarrow", "duckdb"]) else { return };
    let output = run(Command::new(python).args(["-c", CHECK]).arg(&parquet).arg(&arrow)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// For any damaged trace, a query ends with a result or one clear error line.
#[test]
fn mutated_traces_give_a_result_or_a_one_line_error() {
    let Traces { libc, _dir, .. } = traces();
    let files: Vec<(PathBuf, Vec<u8>)> = std::fs::read_dir(&libc)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    let sql = "select * from (select class, process, count(*) as n, max(fields) as f from events group by 1, 2) \
               cross join (select count(*) as p from pairs) cross join (select count(*) as l from losses) \
               cross join (select count(*) as wrong from (\
               select class, time_bucket('10us', time), count(*) from events group by 1, 2 \
               except select class, time_bucket('10us', time), sum(1) from events group by 1, 2))";
    let (first, count) = dormouse_testing::mutations::mutations(60);
    let (mut answers, mut lines) = (0, 0);
    for seed in first..first + count {
        let mut random = dormouse_testing::random(seed);
        let (path, bytes) = &files[random(files.len())];
        let mut changed = bytes.clone();
        for _ in 0..=random(4) {
            let at = random(changed.len());
            changed[at] = match random(3) {
                0 => 0xff,
                1 => changed[at] ^ 1 << random(8),
                _ => random(256) as u8,
            };
        }
        changed.truncate(if random(4) == 0 { random(changed.len()) } else { changed.len() });
        std::fs::write(path, &changed).unwrap();
        // In addition to the limit, the process needs memory for the reader's windows, batches and thread stacks.
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -d 262144 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_dormouse-query")]);
        let output = run(shell.arg(&libc).args([sql, "--memory", "64M"])).unwrap();
        let (code, err) = (output.status.code().unwrap_or(-1), String::from_utf8(output.stderr).unwrap());
        assert!(!err.contains("panicked") && matches!(code, 0..=2), "seed {seed}: {code} {err}");
        assert!(code == 0 || err.starts_with("dormouse: "), "seed {seed}: {code} {err}");
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.lines().skip(1).all(|line| line.ends_with(",0")), "seed {seed}: {out}");
        answers += i32::from(code < 2);
        lines += i32::from(code == 2);
        std::fs::write(path, bytes).unwrap();
    }
    assert!(answers > 0 && lines > 0, "{answers} answers, {lines} lines");
}

/// The examples in the documentation show the actual output.
#[test]
fn the_examples_of_the_documentation_run() {
    let traces = traces();
    let dir = traces.libc.parent().unwrap();
    std::os::unix::fs::symlink(&traces.libc, dir.join("trace")).unwrap();
    // The format that a terminal gets.
    let script = format!("#!/bin/sh\nshift\nexec {} \"$@\" --format table\n", env!("CARGO_BIN_EXE_dormouse-query"));
    std::fs::create_dir(dir.join("bin")).unwrap();
    dormouse_testing::write_script(&dir.join("bin/dormouse"), &script);
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/query.md")).unwrap();
    let mut examples: Vec<(String, String)> = Vec::new();
    for block in text.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match line.strip_prefix("$ ") {
                Some(command) => examples.push((command.into(), String::new())),
                None => examples.last_mut().unwrap().1 += &format!("{line}\n"),
            }
        }
    }
    assert!(examples.len() > 5);
    let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap());
    let shown = examples.iter().map(|(command, _)| {
        let mut shell = Command::new("sh");
        let output = run(shell.args(["-c", command]).current_dir(dir).env("PATH", &path)).unwrap();
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (command.clone(), printed)
    });
    let shown: Vec<_> = shown.collect();
    let listed =
        |all: &[(String, String)]| all.iter().map(|(command, out)| format!("$ {command}\n{out}")).collect::<String>();
    assert!(shown == examples, "what is printed:\n{}", listed(&shown));
}

/// Writes a trace with a class that has the extremes of 64-bit integers, and a class whose field is signed, unsigned,
/// absent or text.
fn write_extremes(dir: &Path) {
    let mut builder = TraceBuilder::new();
    let field = |name: &'static str, kind| (name, FieldType::scalar(kind));
    let fields = [
        field("u", Kind::U64),
        field("s", Kind::I64),
        field("a", Kind::U64),
        field("b", Kind::U64),
        field("w", Kind::U32),
        field("f", Kind::F64),
    ];
    let number = builder.class("n", "e", &fields);
    let types = [Kind::U64, Kind::I64, Kind::I32].map(|kind| builder.class("t", "e", &[field("x", kind)]));
    let without = builder.class("t", "e", &[]);
    let text = builder.class("t", "e", &[field("x", Kind::Str)]);
    let stream = builder.stream(0);
    let mut at = 0;
    let mut event = |class, values: &[Value<'_>]| {
        at += 1;
        builder.event(stream, at, 1, 1, class, values);
    };
    for least in [false, true, false] {
        let (s, f) = if least { (i64::MIN, f64::INFINITY) } else { (i64::MAX, f64::NEG_INFINITY) };
        let values =
            [Value::U64(u64::MAX), Value::I64(s), Value::U64(5), Value::U64(7), Value::U32(u32::MAX), Value::F64(f)];
        event(number, &values);
    }
    for value in [u64::MAX, 1 << 63, 7] {
        event(types[0], &[Value::U64(value)]);
    }
    event(types[1], &[Value::I64(-1)]);
    event(types[1], &[Value::I64(i64::MIN)]);
    event(types[2], &[Value::I32(-5)]);
    event(without, &[]);
    event(text, &[Value::Str(b"-7")]);
    builder.finish().closed().write(dir);
}

/// The expected numbers are the exact ones, computed with more bits.
#[test]
fn arithmetic_does_not_wrap() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, store) = (dir.path().join("trace"), dir.path().join("store"));
    std::fs::create_dir(&trace).unwrap();
    write_extremes(&trace);
    assert_eq!(query(&[trace.to_str().unwrap(), "--export", store.to_str().unwrap()]).0, 0);
    for (what, expected) in [
        ("sum(u)", "55340232221128654845"),
        ("sum(distinct u)", "18446744073709551615"),
        ("sum(s)", "9223372036854775806"),
        ("avg(s)", "3.0744573456182584e18"),
        ("avg(distinct s)", "-0.5"),
        ("avg(u)", "1.8446744073709552e19"),
        ("sum(a - b)", "-6"),
        ("min(a - b)", "-2"),
        ("max(0 - u)", "-18446744073709551615"),
        ("sum(u + u)", "110680464442257309690"),
        ("max(u * a)", "92233720368547758075"),
        ("max(u + 1)", "18446744073709551616"),
        ("max(s + u)", "27670116110564327422"),
        ("max(w * w)", "18446744065119617025"),
        ("max(0 - w - w)", "-8589934590"),
        ("max(w + 1)", "4294967296"),
        ("sum(s) filter (where s > 0)", "18446744073709551614"),
        ("max(a << 60)", "5764607523034234880"),
        ("max(u >> 63)", "1"),
        ("count(*) filter (where u < 18446744073709551616)", "3"),
        ("count(*) filter (where s >= -9223372036854775809)", "3"),
        ("count(*) filter (where u = 18446744073709551616)", "0"),
        ("count(*) filter (where s < -9223372036854775807)", "1"),
    ] {
        for place in [&trace, &store] {
            assert_eq!(rows(place, &format!("select {what} from \"n:e\"")), [expected], "{what} {place:?}");
        }
        assert_eq!(rows(&trace, &format!("select {what} from \"n:e\" group by a")), [expected], "{what}");
    }
    for what in [
        "s + s",
        "s - 1",
        "-s",
        "s * 2",
        "s << 1",
        "u << 1",
        "a << 64",
        "a << -1",
        "sum(u * u)",
        "9223372036854775807 + 1",
    ] {
        for place in [&trace, &store] {
            let (code, out, err) = query(&[place.to_str().unwrap(), &format!("select {what} from \"n:e\"")]);
            assert_eq!((code, out.as_str(), err.to_lowercase().contains("overflow")), (2, "", true), "{what}: {err}");
        }
    }
    let windows = "sum(u) over (order by time rows between 1 preceding and current row), sum(s) over (order by time), \
                   sum(distinct u) over (order by time), avg(s) over (order by time rows between 1 preceding and current row)";
    assert_eq!(
        rows(&trace, &format!("select {windows} from \"n:e\" order by time")),
        [
            "18446744073709551615,9223372036854775807,18446744073709551615,9.223372036854776e18",
            "36893488147419103230,-1,18446744073709551615,-0.5",
            "36893488147419103230,9223372036854775806,18446744073709551615,-0.5"
        ]
    );
    let of_floats = "select min(f), max(f) from \"n:e\" group by s order by s";
    assert_eq!(rows(&trace, of_floats), ["inf,inf", "-inf,-inf"]);
    let two = query(&[trace.to_str().unwrap(), "select max(a) from \"n:e\"; select max(b) as b from \"n:e\";"]);
    assert_eq!(two, (0, "max(n:e.a)\n5\nb\n7\n".into(), String::new()));
}

/// A condition is true for exactly the rows whose column has a matching value.
#[test]
fn a_field_can_have_several_types() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, store) = (dir.path().join("trace"), dir.path().join("store"));
    std::fs::create_dir(&trace).unwrap();
    write_extremes(&trace);
    assert_eq!(query(&[trace.to_str().unwrap(), "--export", store.to_str().unwrap()]).0, 0);
    for place in [&trace, &store] {
        for (condition, expected) in [
            ("x < 0", &["-9223372036854775808", "-5", "-1"][..]),
            ("x > 9223372036854775807", &["9223372036854775808", "18446744073709551615"]),
            ("x in (7, -1)", &["-1", "7"]),
            ("x <> 7 and x > -6 and x < 9223372036854775808", &["-5", "-1"]),
        ] {
            let found = rows(place, &format!("select x from \"t:e\" where {condition} order by x"));
            assert_eq!(found, expected, "{condition} {place:?}");
            let count = rows(place, &format!("select count(*) from \"t:e\" where {condition}"));
            assert_eq!(count, [expected.len().to_string()], "{condition} {place:?}");
        }
        assert_eq!(rows(place, "select count(*) from \"t:e\" where x is null"), ["2"]);
        assert_eq!(rows(place, "select \"t:e.x\" from \"t:e\" where \"t:e.x\" = '-7'"), ["-7"]);
    }
    let plan = rows(&trace, "explain select x from \"t:e\" where x < 0").join("\n");
    assert!(plan.contains("FilterExec"), "a text is not the column's: {plan}");
}

#[test]
fn the_reference_of_commands_is_current() {
    dormouse_testing::commands::check(env!("CARGO_BIN_EXE_dormouse-query"), "dormouse query");
}
