//! A store gives the same results as the traces that it was made of.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod made;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::Value;
use dormouse_traces::TraceBuilder;
use made::{REQUESTS, write_http, write_libc};

/// Result of a run: exit code, standard output, standard error.
type Ran = (i32, String, String);

fn query(arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-query"));
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Returns the output lines of a query that succeeds, including the header.
fn lines(of: &[&str]) -> Vec<String> {
    let (code, out, err) = query(of);
    assert_eq!((code, err.as_str()), (0, ""), "{of:?}");
    out.lines().map(String::from).collect()
}

/// Traces, and a store made of all of them.
struct Stored {
    _dir: tempfile::TempDir,
    traces: [PathBuf; 2],
    store: PathBuf,
}

impl Stored {
    fn new() -> Stored {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str, write: fn(&Path)| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            write(&path);
            path
        };
        let traces = [made("http", write_http), made("libc", write_libc)];
        let store = dir.path().join("store");
        let (code, _, err) = query(&[text(&traces[0]), text(&traces[1]), "--export", text(&store)]);
        assert_eq!(code, 0, "{err}");
        Stored { _dir: dir, traces, store }
    }

    /// Returns the results for the traces and for the store.
    fn both(&self, last: &[&str]) -> [Vec<String>; 2] {
        let [a, b] = [text(&self.traces[0]), text(&self.traces[1])];
        [lines(&[&[a, b], last].concat()), lines(&[&[text(&self.store)], last].concat())]
    }

    fn rows(&self, sql: &str) -> Vec<String> {
        lines(&[text(&self.store), sql]).split_off(1)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn named_queries_give_the_same_result_on_a_store() {
    let stored = Stored::new();
    let names = lines(&["--named"]);
    assert!(names.len() >= 9);
    for name in names.iter().map(|line| line.split(' ').next().unwrap()) {
        let [of_traces, mut of_store] = stored.both(&["--named", name]);
        assert!(of_traces.len() > 1, "{name}");
        // In a store, the host is an additional last column.
        if of_store[0].ends_with(",host") {
            assert!(of_store[1..].iter().all(|line| line.ends_with(",lair")), "{name} {of_store:?}");
            of_store.iter_mut().for_each(|line| line.truncate(line.rfind(',').unwrap()));
        }
        assert_eq!(of_store, of_traces, "{name}");
    }
}

#[test]
fn stores_have_the_tables_and_functions_of_traces() {
    let stored = Stored::new();
    for sql in [
        "select time, cpu, pid, tid, process, id, path, bytes, numbers from \"http:begin\" order by time, id",
        "select time, class, process, pid, tid, cpu from events order by time, class, tid",
        "select class, count(*), min(time), max(time) from events group by class order by class",
        "select name, begin_time, end_time, duration_ns, process, pid, tid, cpu, key from pairs order by begin_time, name, key",
        "select class, field(fields, 'path') as p, count(*) from events where class like '%n' group by 1, 2 order by 1, 2",
        "select time_bucket('10ms', time) as t, count(*), duration_text(max(time) - min(time)) from events group by t order by t",
        "select quantile(duration_ns, 0.99) from pairs where name = 'http'",
        "select count(*) from \"http:begin\" where time >= '2023-11-14T22:13:20.01Z' and path in ('/3', '/4')",
        "select fd, result, path from \"libc:read\" r full join \"libc:open\" o using (fd) order by r.time, o.time",
        "select key, begin_time, duration_ns, process, pid, tid, cpu, name from pairs('http:begin', 'http:end', 'id') order by key",
        "select key, count(*), sum(duration_ns), quantile(duration_ns, 0.5) from pairs('libc:malloc', 'libc:free', 'ptr') group by key order by key",
        "select sum(numbers[2]) from \"http:begin\"",
        "select tid, thread, count(*), count(fields) from events group by 1, 2 order by 1",
        "select tid, thread, count(*) from \"libc:mutex_lock\" group by 1, 2 order by 1",
        "select name, tid, thread, count(*) from pairs group by 1, 2, 3 order by 1, 2",
        "select pid, name, program, sum(events) from processes group by 1, 2, 3 order by 1",
        "select kind, sum(events) from losses where kind = 'total' group by kind",
        "select sum(events), sum(events_lost) from totals",
    ] {
        let [of_traces, of_store] = stored.both(&[sql]);
        assert!(of_traces.len() > 1, "{sql}");
        assert_eq!(of_store, of_traces, "{sql}");
    }
    assert_eq!(stored.rows("select distinct host, day from events"), ["lair,2023-11-14"]);
    // A trace finds the key; a store needs one, and names the fields that can be the key.
    let of = |pairs: &str| {
        let sql = format!("select begin_time, duration_ns, pid, thread from {pairs} order by begin_time, pid");
        [&stored.traces[0], &stored.store].map(|of| query(&[text(of), &sql]))
    };
    let [of_trace, of_store] = of("pairs('http:begin', 'http:end')");
    assert_eq!((of_trace.0, of_trace.2.as_str(), of_store.0, of_store.1.as_str()), (0, "", 2, ""));
    assert!(
        of_store.2.contains("pairs('http:begin', 'http:end', 'FIELD,…'), of id; 'pid,tid' pairs by thread"),
        "{}",
        of_store.2
    );
    let by_thread = of("pairs('http:begin', 'http:end', 'pid,tid')");
    assert_eq!((by_thread[1].0, &by_thread[1].1), (0, &of_trace.1));
    // A class without events has no files.
    let known = stored.rows("select class from classes where class like 'http:%' order by class");
    assert_eq!(known, ["http:begin", "http:end"]);
    let fields = stored.rows("select fields from events where class = 'http:end' order by time limit 1");
    assert_eq!(fields, [r#""{""fields"":{""id"":0,""share"":0.5}}""#]);
}

/// Files whose rows are only counted give the same counts as files whose rows are read.
#[test]
fn counts_are_those_of_rows() {
    let stored = Stored::new();
    for (sql, is_counted) in [
        ("select class, time_bucket('1ms', time) as t, N from events group by 1, 2 order by 1, 2", true),
        ("select host, day, class, N from events group by 1, 2, 3 order by 1, 2, 3", true),
        ("select time_bucket('3us', time) as t, class, host, N from events group by 1, 2, 3 order by 1, 2", true),
        ("select date_trunc('hour', time) as t, N from \"http:end\" group by 1 order by 1", true),
        ("select class, N from (select process as class from events) group by 1 order by 1", false),
        ("select class, N from events where pid = 12 group by 1 order by 1", false),
    ] {
        let [counted, summed] = ["count(*)", "sum(1)"].map(|of| stored.rows(&sql.replace('N', &format!("{of} as n"))));
        assert!(!counted.is_empty());
        assert_eq!(counted, summed, "{sql}");
        let plan = stored.rows(&format!("explain {}", sql.replace('N', "count(*) as n"))).join("\n");
        assert_eq!(plan.contains("CountExec"), is_counted, "{sql}\n{plan}");
    }
}

/// If events were lost between a begin and an end, the end can belong to a lost begin.
#[test]
fn pairs_across_losses_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = (dir.path().join("trace"), dir.path().join("store"));
    std::fs::create_dir(&path).unwrap();
    let mut builder = TraceBuilder::new();
    let id = [("id", FieldType::scalar(Kind::U32))];
    let [begin, end] = ["begin", "end"].map(|name| builder.class("p", name, &id));
    let stream = builder.stream(0);
    let mut event = |at, class, id| builder.event(stream, at, 1, 1, class, &[Value::U32(id)]);
    event(10, begin, 1);
    event(20, end, 1);
    builder.packet(stream, 4096, 0);
    builder.event(stream, 30, 1, 1, begin, &[Value::U32(2)]);
    builder.packet(stream, 4096, 3);
    let mut event = |at, class, id| builder.event(stream, at, 1, 1, class, &[Value::U32(id)]);
    event(100, end, 2);
    event(110, begin, 3);
    event(120, end, 3);
    builder.finish().closed().write(&path);
    let (code, _, err) = query(&[text(&path), "--export", text(&store)]);
    assert_eq!((code, err.contains("6 events")), (0, true), "{err}");
    let sql = "select key, duration_ns, host from pairs('p:begin', 'p:end', 'id') order by key";
    let all = ["1,10,lair", "3,10,lair"];
    assert_eq!(lines(&[text(&store), sql])[1..], all);
    // For the trace, a warning says that one pair was left out.
    let (code, out, err) = query(&[text(&path), &sql.replace(", host", "")]);
    assert_eq!((code, out.lines().count(), err.contains("1 pairs are left out")), (1, 3, true), "{out}{err}");
}

/// Open begins are kept in memory only.
#[test]
fn too_many_open_pairs_are_an_error() {
    let stored = Stored::new();
    let sql = "select count(*) from pairs('http:begin', 'libc:malloc', 'id')";
    assert_eq!(stored.rows(sql), ["0"]);
    let (code, out, err) = query(&[text(&stored.store), sql, "--memory", "1M"]);
    assert_eq!((code, out.as_str(), err.lines().count()), (2, "", 1), "{err}");
    assert!(err.contains("--memory is too small") && err.contains("events that begin something"), "{err}");
}

/// Files that cannot have matching rows are not opened, not even one that is not Parquet.
#[test]
fn files_are_selected_by_name_and_time() {
    let stored = Stored::new();
    let events = stored.store.join("events/host=lair/day=2023-11-14");
    let spoiled = std::fs::read_dir(events.join("class=http%3Aend")).unwrap().next().unwrap().unwrap().path();
    let size = spoiled.metadata().unwrap().len();
    std::fs::write(&spoiled, vec![0; size as usize]).unwrap();
    let all = REQUESTS.to_string();
    for (condition, expected) in [
        ("class = 'http:begin'", all.as_str()),
        ("class <> 'http:end' and class not like 'libc:%'", &all),
        ("host = 'other'", "0"),
        ("day < '2023-11-14'", "0"),
        ("time < '2023-11-14T22:13:20Z'", "0"),
        ("time > '2023-11-15'", "0"),
    ] {
        // An aggregate that statistics cannot answer.
        let sql = format!("select count(*) filter (where tid + 0 > 0) from events where {condition}");
        assert_eq!(stored.rows(&sql), [expected], "{condition}");
    }
    let (code, out, err) = query(&[text(&stored.store), "select sum(tid) from events"]);
    assert_eq!((code, out.as_str(), err.lines().count()), (2, "", 1), "{err}");
}

#[test]
fn files_that_no_manifest_names_are_ignored() {
    let stored = Stored::new();
    let of_class = stored.store.join("events/host=lair/day=2023-11-14/class=http%3Abegin");
    let file = std::fs::read_dir(&of_class).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(&file, of_class.join("half-written.parquet")).unwrap();
    assert_eq!(stored.rows("select count(*), sum(cpu) from \"http:begin\""), [format!("{REQUESTS},{}", REQUESTS / 2)]);
    // A file that a manifest names and that is missing is an error with its name.
    std::fs::remove_file(&file).unwrap();
    let (code, out, err) = query(&[text(&stored.store), "select sum(cpu) from \"http:begin\""]);
    assert_eq!((code, out.as_str(), err.lines().count()), (2, "", 1), "{err}");
    assert!(err.contains(file.file_name().unwrap().to_str().unwrap()), "{err}");
}

#[test]
fn errors_of_a_store_are_one_line() {
    let stored = Stored::new();
    let store = text(&stored.store);
    for (arguments, expected) in [
        (&[store, "select * from evnts"][..], "there is no table evnts; did you mean events?"),
        (&[store, "select pth from \"http:begin\""], "there is no column pth; did you mean path?"),
        (&[store, "select * from pairs('http:begn', 'http:end')"], "did you mean \"http:begin\"?"),
        (&[store, "select * from pairs('http:begin', 'http:end', 'idd')"], "there is no column idd; did you mean id?"),
        (&[store, "select * from pairs('http:begin', 'http:end', 'numbers')"], "which is no key"),
        (&[store, store, "select 1 from events"], "a query reads one store, or traces"),
        (&[store, "--export", "/tmp/none"], "--export needs traces"),
        (&[store, "select 1 from events", "--clocks", "x"], "--clocks corrects only the times of traces"),
        (&["file:///no/such/store", "select 1 from events"], "/no/such/store"),
        (&[store, "select 1 from events", "--cluster", "nowhere"], "write df://HOST:PORT"),
        (
            &[text(&stored.traces[0]), "select 1 from events", "--cluster", "df://127.0.0.1:9"],
            "--cluster queries only stores",
        ),
    ] {
        let (code, out, err) = query(arguments);
        assert_eq!((code, out.as_str(), err.contains(expected)), (2, "", true), "{arguments:?}\n{err}");
    }
}
