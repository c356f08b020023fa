//! Tests of the program with a server that has the interface of S3, and with directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt64Type};
use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::{StateRecord, Value};
use dormouse_objects::Server;
use dormouse_reader::TraceFiles;
use dormouse_store::{Manifest, Store};
use dormouse_testing::{Lack, skip, wait_until};
use dormouse_traces::{Trace, TraceBuilder};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// Time after which a waiting test is considered hung.
const PATIENCE: Duration = Duration::from_secs(120);

const DAY_NS: u64 = 86_400_000_000_000;

/// Returns a trace of requests on two CPUs, half of them before midnight and half after. The last one has no end.
/// `number` makes traces different.
fn trace(number: u64, requests: u64) -> Trace {
    let mut builder = TraceBuilder::new();
    let id = ("id", FieldType::scalar(Kind::U64));
    let begin = builder.class("http", "begin", &[id, ("host", FieldType::scalar(Kind::Str))]);
    let end = builder.class("http", "end", &[id]);
    builder.class("http", "never", &[id]);
    let (name, program) = ("web", "/bin/web");
    builder.state(0, &StateRecord::Process { process: 1, pid: 7, vpid: 7, name, program, command_line: "" });
    let streams = [builder.stream(0), builder.stream(1)];
    for request in 0..requests {
        let at = number * 1000 + request * 10 + if request < requests / 2 { 0 } else { DAY_NS };
        let (stream, tid) = (streams[request as usize % 2], 10 + request as u32 % 2);
        builder.event(stream, at, 7, tid, begin, &[Value::U64(request), Value::Str(b"example.org")]);
        if request + 1 < requests {
            builder.event(stream, at + 5, 7, tid, end, &[Value::U64(request)]);
        }
    }
    builder.finish().closed()
}

/// Returns a directory with traces `t0`, `t1` and so on.
fn traces(count: u64, requests: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..count {
        let path = dir.path().join(format!("t{number}"));
        std::fs::create_dir(&path).unwrap();
        trace(number, requests).write(&path);
    }
    dir
}

fn ship(dir: &Path, to: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-ship"));
    command.arg(dir).args(["--to", to]).args(more).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command, which must succeed. Returns its standard output.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command, which must fail with one line. Returns the line.
fn fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let line = text(&output.stderr);
    assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    line
}

fn manifests(store: &Path) -> Vec<Manifest> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Store::open(store.to_str().unwrap()).unwrap().manifests()).unwrap()
}

/// Returns the paths of all Parquet files in the store, sorted.
fn files(store: &Path) -> Vec<String> {
    fn look(dir: &Path, store: &Path, found: &mut Vec<String>) {
        let Ok(entries) = dir.read_dir() else { return };
        for path in entries.map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => look(&path, store, found),
                false if path.extension().is_some_and(|extension| extension == "parquet") => {
                    found.push(path.strip_prefix(store).unwrap().to_str().unwrap().to_owned());
                }
                false => {}
            }
        }
    }
    let mut found = Vec::new();
    look(store, store, &mut found);
    found.sort();
    found
}

/// Reads a store by its manifests, like a reader. Returns the number of events by class. Each file must be complete,
/// sorted, and match its manifest.
fn rows(store: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for manifest in manifests(store) {
        let mut events = 0;
        for file in &manifest.files {
            let bytes = std::fs::read(store.join(&file.path)).unwrap();
            assert_eq!(bytes.len() as u64, file.size_bytes, "{file:?}");
            let builder = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes)).unwrap();
            let schema = manifest.schema(&file.table, file.class.as_deref()).unwrap();
            assert_eq!(builder.schema().fields(), schema.fields(), "{file:?}");
            let has_pages = builder.metadata().row_groups().iter().all(|group| {
                group
                    .columns()
                    .iter()
                    .all(|column| column.column_index_offset().is_some() && column.statistics().is_some())
            });
            assert!(has_pages, "{file:?}");
            let (mut count, mut last) = (0, i64::MIN);
            for batch in builder.build().unwrap() {
                let batch = batch.unwrap();
                count += batch.num_rows() as u64;
                let column = match file.table.as_str() {
                    "events" => "time",
                    "pairs" => "begin_time",
                    _ => continue,
                };
                let times = batch.column_by_name(column).unwrap().as_primitive::<TimestampNanosecondType>();
                for time in times.iter().flatten() {
                    assert!(time >= last && file.begin_ns.unwrap() <= time && time <= file.end_ns.unwrap(), "{file:?}");
                    last = time;
                }
            }
            assert_eq!(count, file.rows, "{file:?}");
            if let Some(class) = &file.class {
                *found.entry(class.clone()).or_default() += count;
                events += count;
            }
        }
        assert_eq!(events, manifest.events);
    }
    found
}

/// Returns the number of events by class, from the statistics of the traces.
fn counted(dir: &Path) -> BTreeMap<String, u64> {
    let stats = TraceFiles::open(dir).unwrap().stats();
    let mut counts = BTreeMap::new();
    for class in stats.classes {
        *counts.entry(class.name).or_default() += class.count;
    }
    counts
}

/// Asserts that the store has these traces, and no other file that a glob would find.
fn assert_has(store: &Path, dir: &Path) {
    assert_eq!(rows(store), counted(dir));
    let mut named: Vec<String> =
        manifests(store).iter().flat_map(|manifest| manifest.files.iter().map(|file| file.path.clone())).collect();
    named.sort();
    assert_eq!(files(store), named);
}

fn wait(mut child: Child) -> Output {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it hangs: {}", text(&child.wait_with_output().unwrap().stderr));
        }
        // Polling interval. The time that the program takes does not matter.
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn traces_are_shipped_once_and_each_result_is_printed() {
    let server = Server::new(&["traces"]);
    let dir = traces(3, 500);
    let to = "s3://traces/fleet/all";
    let out = succeed(server.tell(&mut ship(dir.path(), to, &["--dry-run"])));
    assert!(out.contains("t0: 999 events") && out.contains("would be shipped"), "{out}");
    assert_eq!(server.bucket("traces").read_dir().unwrap().count(), 0);
    let out = succeed(server.tell(&mut ship(dir.path(), to, &[])));
    assert!(out.contains("t2: 999 events, 9 files") && out.contains("per million events"), "{out}");
    assert!(out.contains("not paired: 1 begins whose end is not in this chunk"), "{out}");
    let store = server.bucket("traces").join("fleet/all");
    assert_has(&store, dir.path());
    let paths = files(&store);
    let chunk = &manifests(&store)[0].chunk;
    for path in [
        format!("events/host=lair/day=2023-11-14/class=http%3Abegin/{chunk}.parquet"),
        format!("events/host=lair/day=2023-11-15/class=http%3Aend/{chunk}.parquet"),
        format!("pairs/host=lair/day=2023-11-14/{chunk}.parquet"),
        format!("processes/host=lair/{chunk}.parquet"),
        format!("losses/host=lair/{chunk}.parquet"),
        format!("totals/host=lair/{chunk}.parquet"),
    ] {
        assert!(paths.contains(&path), "{path} is not among {paths:?}");
    }
    // Putting a trace again, even from another path, changes nothing.
    let moved = dir.path().join("moved");
    std::fs::rename(dir.path().join("t1"), &moved).unwrap();
    let out = succeed(server.tell(&mut ship(dir.path(), to, &["--json"])));
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| line["done"] == "known" && line["events"] == 999), "{out}");
    assert_has(&store, dir.path());
    // With another host it is another chunk.
    succeed(server.tell(&mut ship(&moved, to, &["--host", "a/b"])));
    assert!(files(&store).iter().any(|path| path.starts_with("totals/host=a%2Fb/")));
    assert_eq!(manifests(&store).iter().filter(|manifest| manifest.host == "a/b").count(), 1);
}

#[test]
fn a_store_in_a_directory_is_the_same_at_any_memory_limit() {
    let (dir, place) = (traces(1, 30_000), tempfile::tempdir().unwrap());
    let [small, large] = ["small", "a b%20ü"].map(|name| place.path().join(name));
    succeed(&mut ship(dir.path(), small.to_str().unwrap(), &["--memory", "32M"]));
    let url = format!("file://{}", large.to_str().unwrap().replace('%', "%25").replace(' ', "%20"));
    succeed(&mut ship(dir.path(), &url, &[]));
    for store in [&small, &large] {
        assert_has(store, dir.path());
    }
    assert_eq!(files(&small), files(&large));
    for path in files(&small) {
        assert!(std::fs::read(small.join(&path)).unwrap() == std::fs::read(large.join(&path)).unwrap(), "{path}");
    }
}

#[test]
fn pairs_and_counts_are_those_of_the_trace() {
    let (dir, place) = (traces(1, 100), tempfile::tempdir().unwrap());
    succeed(&mut ship(dir.path(), place.path().join("s").to_str().unwrap(), &[]));
    let store = place.path().join("s");
    let manifest = &manifests(&store)[0];
    let read = |table: &str| {
        let files = manifest.files.iter().filter(|file| file.table == table);
        let files = files.map(|file| std::fs::read(store.join(&file.path)).unwrap());
        let batches = files.flat_map(|bytes| {
            ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes))
                .unwrap()
                .build()
                .unwrap()
                .map(Result::unwrap)
        });
        batches.collect::<Vec<_>>()
    };
    let pairs = read("pairs");
    assert_eq!(pairs.iter().map(arrow_array::RecordBatch::num_rows).sum::<usize>(), 99);
    for batch in &pairs {
        assert!(batch["duration_ns"].as_primitive::<Int64Type>().iter().all(|ns| ns == Some(5)));
        assert!(batch["name"].as_string::<i32>().iter().all(|name| name == Some("http")));
        assert!(batch["process"].as_string::<i32>().iter().all(|name| name == Some("web")));
    }
    assert_eq!((manifest.unpaired.begins, manifest.unpaired.ends), (1, 0));
    let losses = read("losses");
    let kinds: Vec<&str> = losses[0]["kind"].as_string::<i32>().iter().flatten().collect();
    assert_eq!(kinds, ["total", "unpaired"]);
    assert_eq!(read("totals")[0]["events"].as_primitive::<UInt64Type>().value(0), 199);
    let processes = &read("processes")[0];
    assert_eq!((processes.num_rows(), processes["program"].as_string::<i32>().value(0)), (1, "/bin/web"));
    // A field with the name of a partition directory is renamed.
    let schema = manifest.schema("events", Some("http:begin")).unwrap();
    assert!(schema.column_with_name("fields.host").is_some() && schema.column_with_name("host").is_none());
}

#[test]
fn concurrent_runs_ship_each_trace_once() {
    let server = Server::new(&["traces"]);
    let dir = traces(4, 200);
    let place = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let local = place.path().join(round.to_string());
        let (to, store) = match round % 2 {
            0 => (format!("s3://traces/{round}"), server.bucket("traces").join(round.to_string())),
            _ => (local.to_str().unwrap().to_owned(), local.clone()),
        };
        let mut others = [None, Some("64M"), Some("1G")].map(|memory| {
            let memory = memory.map_or(vec![], |memory| vec!["--memory", memory]);
            let mut command = ship(dir.path(), &to, &memory);
            server.tell(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        others.reverse();
        for child in others {
            let output = wait(child);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        }
        assert_eq!(manifests(&store).len(), 4);
        assert_has(&store, dir.path());
    }
}

/// Kills the program at each request, before and after the request is done. Readers never find a part of a chunk, and
/// the next run completes the store.
#[test]
fn the_next_run_completes_what_a_killed_run_began() {
    let server = Server::new(&["traces"]);
    let dir = traces(2, 60);
    let before = server.requests();
    succeed(server.tell(&mut ship(dir.path(), "s3://traces/whole", &[])));
    let requests = server.requests() - before;
    assert!(requests > 20, "{requests}");
    let mut killed = 0;
    for number in 1..=requests {
        for is_done in [false, true] {
            let name = format!("{number}-{is_done}");
            let (to, store) = (format!("s3://traces/{name}"), server.bucket("traces").join(&name));
            let held = server.hold(number, is_done);
            let mut command = ship(dir.path(), &to, &[]);
            let mut child = server.tell(&mut command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            match held.recv_timeout(PATIENCE) {
                Ok(()) => killed += 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("request {number} did not come")
                }
            }
            child.kill().unwrap();
            child.wait().unwrap();
            server.release();
            let found = rows(&store);
            let chunks = manifests(&store).len() as u64;
            assert!(found.values().sum::<u64>() == 119 * chunks, "{name}: {found:?}");
            succeed(server.tell(&mut ship(dir.path(), &to, &[])));
            assert_has(&store, dir.path());
        }
    }
    assert_eq!(killed, 2 * requests);
}

#[test]
fn the_next_run_completes_a_directory_after_a_kill_at_any_time() {
    let (dir, place) = (traces(3, 4000), tempfile::tempdir().unwrap());
    let mut random = dormouse_testing::random(7);
    for round in 0..12 {
        let store = place.path().join(round.to_string());
        let mut command = ship(dir.path(), store.to_str().unwrap(), &[]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The program is killed at a random point of its work.
        std::thread::sleep(Duration::from_millis(random(300) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let (found, chunks) = (rows(&store), manifests(&store).len() as u64);
        assert_eq!(found.values().sum::<u64>(), 7999 * chunks);
        succeed(&mut ship(dir.path(), store.to_str().unwrap(), &[]));
        assert_has(&store, dir.path());
    }
}

#[test]
fn refusals_of_a_store_are_one_line() {
    let server = Server::new(&["traces"]);
    let dir = traces(1, 10);
    let run = |to: &str, variables: &[(&str, &str)]| {
        let mut command = ship(dir.path(), to, &[]);
        server.tell(&mut command).envs(variables.iter().copied());
        fails(&mut command)
    };
    let line = run("s3://traces/x", &[("AWS_SECRET_ACCESS_KEY", "wrong")]);
    assert!(line.contains("s3://traces/x: the credential is refused"), "{line}");
    let line = run("s3://traces/x", &[("AWS_ACCESS_KEY_ID", "nobody")]);
    assert!(line.contains("the credential is refused"), "{line}");
    let line = run("s3://none/x", &[]);
    assert!(line.contains("there is no such bucket"), "{line}");
    // No process listens at a port that was just released.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = run("s3://traces/x", &[("AWS_ENDPOINT_URL", &format!("http://127.0.0.1:{port}"))]);
    assert!(line.contains("onnection refused"), "{line}");
    let line = run("s3://traces/x", &[("AWS_ACCESS_KEY_ID", "")]);
    assert!(line.contains("AWS_ACCESS_KEY_ID"), "{line}");
    for (to, expected) in [
        ("gs://x/y", "is no store"),
        ("s3://", "names no bucket"),
        ("/no/such/place", "there is no directory /no/such"),
        ("/proc/x", "cannot write to /proc/x"),
    ] {
        let line = run(to, &[]);
        assert!(line.contains(expected), "{line}");
    }
    assert!(fails(&mut ship(Path::new("/no/such/dir"), "/tmp", &[])).contains("/no/such/dir"));
    let empty = tempfile::tempdir().unwrap();
    assert!(fails(&mut ship(empty.path(), "/tmp", &[])).contains("there is no trace in"));
    assert_eq!(server.bucket("traces").read_dir().unwrap().count(), 0);
}

#[test]
fn a_full_disk_is_one_line_and_a_later_run_completes_the_store() {
    let dir = traces(1, 60_000);
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("store");
    // Runs in a mount namespace of its own, with a file system that is too small.
    let script = "mount -t tmpfs -o size=128k none \"$1\" || exit 77; shift; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]).arg(place.path());
    command.arg(env!("CARGO_BIN_EXE_dormouse-ship")).arg(dir.path()).arg("--to").arg(&store).stdin(Stdio::null());
    let Ok(output) = command.output() else { return skip(Lack::program("unshare")) };
    let line = text(&output.stderr);
    if output.status.code() == Some(77) || line.starts_with("unshare:") {
        return skip(Lack::machine(format!("no file system can be mounted: {line}"), "run as root"));
    }
    assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.contains("cannot write to") && line.contains("No space left"), "{line}");
    succeed(&mut ship(dir.path(), store.to_str().unwrap(), &[]));
    assert_has(&store, dir.path());
}

#[test]
fn open_traces_are_skipped() {
    let dir = traces(1, 10);
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    for name in ["open", "wrong", "lttng/archives/1", "lttng/ust/uid"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    let mut open = trace(5, 10);
    open.metadata =
        open.metadata.lines().filter(|line| !line.contains("totals_")).map(|line| format!("{line}\n")).collect();
    open.write(&at("open"));
    std::fs::write(at("wrong/metadata"), "no metadata").unwrap();
    trace(6, 10).write(&at("lttng/archives/1"));
    trace(7, 10).write(&at("lttng/ust/uid"));
    let store = at("store");
    let output = ship(dir.path(), store.to_str().unwrap(), &["--json"]).output().unwrap();
    let (lines, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let done: BTreeMap<String, String> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| (line["trace"].as_str().unwrap().into(), line["done"].as_str().unwrap().into()))
        .collect();
    let expected = [
        ("lttng/archives/1", "put"),
        ("lttng/ust/uid", "passed_over"),
        ("open", "passed_over"),
        ("t0", "put"),
        ("wrong", "wrong"),
    ];
    assert_eq!(done, expected.map(|(name, done)| (name.into(), done.into())).into());
    for part in
        ["open is skipped: its session has not closed it", "lttng/ust/uid is skipped: LTTng", "wrong is skipped"]
    {
        assert!(errors.contains(part), "{errors}");
    }
    assert_eq!(manifests(&store).len(), 2);
}

#[test]
fn follow_ships_closed_traces_until_a_signal() {
    let (dir, place) = (traces(1, 10), tempfile::tempdir().unwrap());
    let store = place.path().join("store");
    let mut command = ship(dir.path(), store.to_str().unwrap(), &["--follow"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has = |count: usize| wait_until(&format!("there are {count} chunks"), || manifests(&store).len() == count);
    has(1);
    // Writes like a session: streams, open metadata, closed metadata.
    let late = dir.path().join("below/late");
    std::fs::create_dir_all(&late).unwrap();
    let closed = trace(1, 20);
    let text_open = closed.metadata.lines().filter(|line| !line.contains("totals_"));
    let open = Trace { metadata: text_open.map(|line| format!("{line}\n")).collect(), streams: closed.streams.clone() };
    open.write(&late);
    std::fs::write(late.join(".metadata.new"), &closed.metadata).unwrap();
    std::fs::rename(late.join(".metadata.new"), late.join("metadata")).unwrap();
    has(2);
    // Rotates like LTTng: moves a directory into `archives`.
    let rotated = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
    trace(2, 20).write(rotated.path());
    std::fs::create_dir(dir.path().join("archives")).unwrap();
    std::fs::rename(rotated.path(), dir.path().join("archives/1")).unwrap();
    has(3);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let output = wait(child);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("3 traces with 97 events shipped"), "{}", text(&output.stderr));
    assert_has(&store, dir.path());
}

/// The output of the example's commands matches the documentation.
#[test]
fn the_example_of_the_documentation_runs() {
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(place.path().join("traces/web")).unwrap();
    trace(0, 10_000).write(&place.path().join("traces/web"));
    std::fs::create_dir(place.path().join("bin")).unwrap();
    let script = format!("#!/bin/sh\nshift\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_dormouse-ship"));
    dormouse_testing::write_script(&place.path().join("bin/dormouse"), &script);
    let path = format!("{}:{}", place.path().join("bin").display(), std::env::var("PATH").unwrap());
    let text_of = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/machines.md")).unwrap();
    let block = text_of.split("```console\n").nth(1).unwrap().split("```").next().unwrap();
    let mut shown = String::new();
    for command in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", command]).current_dir(place.path()).env("PATH", &path).output().unwrap();
        shown += &format!("$ {command}\n{}{}", text(&output.stdout), text(&output.stderr));
    }
    assert!(shown == block, "what is printed:\n{shown}");
}

#[test]
fn the_reference_of_commands_is_current() {
    dormouse_testing::commands::check(env!("CARGO_BIN_EXE_dormouse-ship"), "dormouse ship");
}
