//! Tests with schedulers and executors as separate processes on loopback. Their results must be those of
//! `dormouse query` without a cluster.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

#[path = "../../query/tests/made/mod.rs"]
mod made;

/// Number of requests in a chunk: for small and for large stores.
const REQUESTS: [u64; 2] = [1_500, 250_000];
/// Names of the simulated hosts.
const HOSTS: [&str; 4] = ["ash", "birch", "cedar", "elm"];
/// Environment variable with the number of events to query. If it is not set, the store is small.
const EVENTS: &str = "DORMOUSE_CLUSTER_EVENTS";

/// Result of a run: exit code, standard output, standard error.
type Ran = (i32, String, String);

/// Returns the path of a program in the directory of `dormouse-cluster`.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_dormouse-cluster")).with_file_name(name);
    assert!(path.exists(), "{name} is not built: cargo build --manifest-path read/query/Cargo.toml --workspace");
    path
}

fn query(arguments: &[&str]) -> Ran {
    ran(Command::new(program("dormouse-query")).args(arguments))
}

fn ran(command: &mut Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A process that is killed at the end of the test.
struct Running {
    child: Child,
    /// Address that it prints first.
    place: String,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim().split_once(": ").expect("it says where it is").1.to_string();
        Running { child, place }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits until the process ends by itself, and returns its exit code.
    fn ended(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scheduler, and executors with a directory each.
struct Cluster {
    dir: tempfile::TempDir,
    scheduler: Running,
    executors: Vec<Running>,
}

impl Cluster {
    fn start(executors: usize) -> Cluster {
        Cluster::start_as(executors, |command| command)
    }

    /// Starts a cluster. `with` adds to the command of each executor.
    fn start_as(executors: usize, with: impl Fn(&mut Command) -> &mut Command) -> Cluster {
        let mut scheduler = Command::new(program("dormouse-cluster"));
        let scheduler = Running::start(scheduler.args(["scheduler", "--bind", "127.0.0.1:0"]));
        let mut cluster = Cluster { dir: tempfile::tempdir().unwrap(), scheduler, executors: Vec::new() };
        for number in 0..executors {
            let mut executor = Command::new(program("dormouse-cluster"));
            executor.args(["executor", "--bind", "127.0.0.1:0", "--threads", "1", "--memory", "512M"]);
            executor.args(["--scheduler", &cluster.scheduler.place, "--work-dir", text(&cluster.work_dir(number))]);
            let executor = Running::start(with(&mut executor));
            cluster.executors.push(executor);
        }
        cluster
    }

    fn work_dir(&self, number: usize) -> PathBuf {
        self.dir.path().join(number.to_string())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("dormouse-query"));
        command.args(["--cluster", &self.scheduler.place]).args(arguments);
        command
    }
}

/// A store of simulated hosts: the chunks of one host under the names of others. Files are linked, not copied.
struct Store {
    _dir: tempfile::TempDir,
    path: PathBuf,
    events: u64,
}

impl Store {
    /// Makes a store with `requests` in each chunk of requests, and `copies` of each chunk for each host.
    fn new(requests: u64, copies: u64) -> Store {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str, write: &dyn Fn(&Path)| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            write(&path);
            path
        };
        let http = made("http", &|dir| made::write_requests(dir, requests));
        let libc = made("libc", &made::write_libc);
        let (one, path) = (dir.path().join("one"), dir.path().join("store"));
        let (code, _, err) = query(&[text(&http), text(&libc), "--export", text(&one)]);
        assert_eq!(code, 0, "{err}");
        let mut events = 0;
        for manifest in files(&one.join("manifest")) {
            let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
            for host in HOSTS {
                for copy in 0..copies {
                    events += manifest["events"].as_u64().unwrap();
                    chunk(&one, &path, &manifest, host, copy);
                }
            }
        }
        Store { _dir: dir, path, events }
    }
}

/// Puts a copy of a chunk under another host and another key.
fn chunk(from: &Path, to: &Path, manifest: &Value, host: &str, copy: u64) {
    let mut manifest = manifest.clone();
    let (host_before, before) = (string(&manifest["host"]), string(&manifest["chunk"]));
    let after = format!("{before}-{copy}");
    let renamed =
        |path: &str| path.replace(&format!("host={host_before}/"), &format!("host={host}/")).replace(&before, &after);
    for file in manifest["files"].as_array_mut().unwrap() {
        let path = string(&file["path"]);
        let place = to.join(renamed(&path));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::hard_link(from.join(&path), place).unwrap();
        file["path"] = renamed(&path).into();
    }
    manifest["host"] = host.into();
    manifest["chunk"] = after.clone().into();
    let place = to.join(format!("manifest/host={host}/{after}.json"));
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::write(place, manifest.to_string()).unwrap();
}

fn string(value: &Value) -> String {
    value.as_str().unwrap().to_string()
}

/// Returns all files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path => found.push(path),
        }
    }
    found
}

/// A filter on two columns with a wide result.
const WIDE: &str = "select time, host, cpu, pid, tid, process, id, path, bytes, numbers from \"http:begin\" \
     where path = '/7' and bytes > 1000 and bytes < 3000 order by host, time, id";
/// A join that produces far more rows than it reads, so the stages before it end long before it does.
const SLOW: &str = "select a.host, a.path, count(*), sum(a.bytes::bigint * b.bytes) from \"http:begin\" a \
     join \"http:begin\" b on a.path = b.path group by a.host, a.path order by a.host, a.path";

/// Pairs that no chunk contains: requests across all chunks of a host.
const PAIRS: &str = "select host, process, tid, count(*), sum(duration_ns), min(begin_time), max(key) \
     from pairs('http:begin', 'http:end', 'id') group by 1, 2, 3 order by 1, 2, 3";

/// Sums and operators beyond 64 bits: integers at which DataFusion's own arithmetic would wrap.
const EXACT: &str = "select host, sum((id + 4294967296) * 4294967295), avg(id - 9223372036854775807), sum(distinct bytes * 1000000007), \
     max(-bytes), min(id - 5), max(id << 20), max(bytes + 0) from \"http:begin\" group by host order by host";

/// Returns the named queries, one with a wide result, one of pairs, and one of large numbers.
fn queries() -> Vec<Vec<String>> {
    let (code, named, _) = query(&["--named"]);
    assert_eq!(code, 0);
    let named = named.lines().map(|line| vec!["--named".to_string(), line.split(' ').next().unwrap().into()]);
    let all: Vec<Vec<String>> = named.chain([WIDE, PAIRS, EXACT].map(|sql| vec![sql.to_string()])).collect();
    assert!(all.len() >= 13);
    all
}

#[test]
fn rows_are_the_same_locally_and_on_one_or_three_executors() {
    let wanted: Option<u64> = std::env::var(EVENTS).ok().map(|text| text.parse().expect("a number of events"));
    let requests = REQUESTS[usize::from(wanted.is_some())];
    // Two events a request, and 32 events of the other trace.
    let of_hosts = HOSTS.len() as u64 * (2 * requests + 32);
    let store = Store::new(requests, wanted.map_or(1, |events| events.div_ceil(of_hosts)));
    assert!(store.events >= wanted.unwrap_or(of_hosts));
    let clusters = [Cluster::start(1), Cluster::start(3)];
    for one in queries() {
        let last: Vec<&str> = one.iter().map(String::as_str).collect();
        let (code, here, err) = query(&[&[text(&store.path)], &last[..]].concat());
        // A named query may show only its first rows, and say so.
        assert!(
            code == 0 && (err.is_empty() || err.starts_with("dormouse: rows that are not shown:")),
            "{one:?}: {err}"
        );
        assert!(here.lines().count() > 1, "{one:?}");
        for cluster in &clusters {
            let (code, out, told) = ran(&mut cluster.command(&[&[text(&store.path)], &last[..]].concat()));
            assert_eq!((code, &told), (0, &err), "{one:?}");
            assert!(out == here, "{one:?} on {}:\n{out}\nhere:\n{here}", cluster.executors.len());
        }
        if wanted.is_some() {
            println!("{} events: {one:?}: {} rows, the same", store.events, here.lines().count() - 1);
        }
    }
}

/// Reads more files of a class than are read at a time, all with the same times.
#[test]
fn pairs_are_found_across_chunks_that_overlap() {
    const CHUNKS: u64 = 18;
    let store = Store::new(150, CHUNKS);
    let cluster = Cluster::start(2);
    let (code, here, err) = query(&[text(&store.path), PAIRS]);
    assert_eq!((code, err.as_str()), (0, ""));
    let there = ran(&mut cluster.command(&[text(&store.path), PAIRS]));
    assert_eq!(there, (0, here.clone(), String::new()));
    let latencies = |cpu: u64| (0..150).filter(|id| id % 2 == cpu).map(made::latency_ns).sum::<u64>();
    let row = |host: &str, (cpu, name, first, last): (u64, &str, &str, u64)| {
        let (tid, pairs, ns) = (20 + cpu, 75 * CHUNKS, CHUNKS * latencies(cpu));
        format!("{host},{name},{tid},{pairs},{ns},2023-11-14T22:13:{first}Z,{last}")
    };
    let of_host = [(1, "cache", "20.000010", 99), (0, "web", "20", 98)];
    let rows = HOSTS.iter().flat_map(|host| of_host.map(|of| row(host, of)));
    let rows: Vec<String> = rows.collect();
    assert_eq!(here.lines().skip(1).collect::<Vec<_>>(), rows);
}

/// Waits until an executor has written rows for the next stage, and returns its index. Not every executor gets work.
fn with_rows(cluster: &Cluster, asked: &mut Child) -> usize {
    let has_rows = |at: &usize| {
        let written = files(&cluster.work_dir(*at));
        written.iter().any(|file| file.metadata().is_ok_and(|metadata| metadata.len() > 0))
    };
    // Nothing reports rows between two stages, so this polls. The assertion ends it if the query ends first.
    loop {
        if let Some(at) = (0..cluster.executors.len()).find(has_rows) {
            return at;
        }
        assert_eq!(asked.try_wait().unwrap(), None, "the query was over before an executor had rows for others");
        // Polling interval.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills an executor while others still need the rows that it has written. The query runs again and has the same
/// result.
#[test]
fn a_query_survives_an_executor_killed_during_a_shuffle() {
    let store = Store::new(REQUESTS[0], 1);
    let (code, expected, err) = query(&[text(&store.path), SLOW]);
    assert_eq!((code, err.as_str()), (0, ""));
    let mut cluster = Cluster::start(3);
    let mut asked = cluster.command(&[text(&store.path), SLOW]);
    let mut asked = asked.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let at = with_rows(&cluster, &mut asked);
    let dir = cluster.work_dir(at);
    let mut lost = cluster.executors.remove(at);
    lost.child.kill().unwrap();
    lost.child.wait().unwrap();
    // The rows that it has written are lost, too, as with a machine.
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(asked.try_wait().unwrap(), None, "the query was over before the executor was killed");
    let output = asked.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{err}");
}

/// An executor that is told to end finishes its tasks; a scheduler finishes its queries.
#[test]
fn scheduler_and_executor_complete_their_work_at_sigterm() {
    let store = Store::new(REQUESTS[0], 1);
    let mut cluster = Cluster::start(2);
    let (_, expected, _) = query(&[text(&store.path), SLOW]);
    let mut asked = cluster.command(&[text(&store.path), SLOW]);
    let mut asked = asked.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let at = with_rows(&cluster, &mut asked);
    let executor = cluster.executors.remove(at);
    executor.signal("-TERM");
    let output = asked.wait_with_output().unwrap();
    // Other executors may still have needed its rows.
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.is_empty() || err.contains("running the job again"), "{err}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(executor.ended(), Some(0));
    cluster.scheduler.signal("-TERM");
    assert_eq!(cluster.scheduler.child.wait().unwrap().code(), Some(0));
}

/// Other files in the work directory stay. An executor removes its own directory when it ends; after SIGKILL, the next
/// executor removes it.
#[test]
fn an_executor_removes_only_directories_of_executors() {
    let store = Store::new(REQUESTS[0], 1);
    let mut cluster = Cluster::start(1);
    let (code, expected, _) = query(&[text(&store.path), WIDE]);
    let dir = cluster.work_dir(0);
    let kept = dir.join("another/file");
    std::fs::create_dir(kept.parent().unwrap()).unwrap();
    std::fs::write(&kept, "kept").unwrap();
    let count = || std::fs::read_dir(&dir).unwrap().count();
    let mut killed = cluster.executors.remove(0);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(count(), 2);
    let mut executor = Command::new(program("dormouse-cluster"));
    executor.args(["executor", "--bind", "127.0.0.1:0", "--scheduler", &cluster.scheduler.place]);
    let executor = Running::start(executor.args(["--work-dir", text(&dir)]));
    assert_eq!(count(), 2);
    // The scheduler may still have given tasks to the killed executor.
    let (again, out, err) = ran(&mut cluster.command(&[text(&store.path), WIDE]));
    assert_eq!((code, again, out), (0, 0, expected), "{err}");
    executor.signal("-TERM");
    assert_eq!(executor.ended(), Some(0));
    assert_eq!((count(), files(&dir)), (1, vec![kept]));
}

#[test]
fn errors_are_one_line() {
    let store = Store::new(REQUESTS[0], 1);
    let cluster = Cluster::start(1);
    // No process listens at this port any more.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nowhere = format!("df://{free}");
    let sql = "select sum(cpu + 0) from \"http:end\"";
    let begin = store.path.join("events/host=elm/day=2023-11-14/class=http%3Abegin");
    std::fs::remove_file(&files(&begin)[0]).unwrap();
    let expected_of_scheduler = format!("no scheduler answers at {free}");
    let place = cluster.scheduler.place.clone();
    for (cluster, sql, expected) in [
        (nowhere.as_str(), sql, expected_of_scheduler.as_str()),
        (&place, "select sum(cpu + 0) from \"http:begin\"", "class=http%3Abegin"),
        (&place, "select * from evnts", "there is no table evnts"),
        (
            &place,
            "select last_value(cpu) ignore nulls over (order by time) from \"http:end\"",
            "a cluster does not support",
        ),
        (&place, "select 1 / (cpu - cpu) from \"http:end\" order by 1", "DivideByZero"),
    ] {
        let (code, out, err) = query(&["--cluster", cluster, text(&store.path), sql]);
        assert_eq!((code, out.as_str()), (2, ""), "{sql} {err}");
        assert!(err.starts_with("dormouse: ") && err.contains(expected), "{sql}\n{err}");
        assert!(err.lines().count() == 1 || sql.contains("evnts"), "{sql}\n{err}");
    }
    let (code, _, err) = ran(Command::new(program("dormouse-cluster")).args([
        "executor",
        "--scheduler",
        &free,
        "--bind",
        "127.0.0.1:0",
    ]));
    assert_eq!((code, err), (2, format!("dormouse: {expected_of_scheduler}\n")));
    let busy = cluster.scheduler.place.trim_start_matches("df://");
    let (code, _, err) = ran(Command::new(program("dormouse-cluster")).args(["scheduler", "--bind", busy]));
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    assert!(err.contains(&format!("cannot listen on {busy}")), "{err}");
    // A query that fails leaves the cluster as it was.
    let (code, out, _) = query(&["--cluster", &place, text(&store.path), sql]);
    let (_, here, _) = query(&[text(&store.path), sql]);
    assert_eq!((code, out), (0, here));
}

/// A store in a server with the interface of S3.
#[test]
fn executors_read_an_object_store() {
    let server = dormouse_objects::Server::new(&["traces"]);
    let dir = tempfile::tempdir().unwrap();
    made::write_http(dir.path());
    let (code, _, err) =
        ran(server.tell(Command::new(program("dormouse-ship")).arg(dir.path()).args(["--to", "s3://traces/fleet"])));
    assert_eq!(code, 0, "{err}");
    let sql = "select process, count(*), sum(bytes) from \"http:begin\" where path <> '/3' group by 1 order by 1";
    let cluster = Cluster::start_as(2, |command| server.tell(command));
    let wrong = Cluster::start_as(1, |command| server.tell(command).env("AWS_SECRET_ACCESS_KEY", "another"));
    let here = ran(server.tell(Command::new(program("dormouse-query")).args(["s3://traces/fleet", sql])));
    assert_eq!((here.0, here.2.as_str(), here.1.lines().count()), (0, "", 3));
    assert_eq!(ran(server.tell(&mut cluster.command(&["s3://traces/fleet", sql]))), here);
    let refused = "the credential is refused";
    // The credential of an executor is wrong, then that of the client.
    let (code, out, err) = ran(server.tell(&mut wrong.command(&["s3://traces/fleet", sql])));
    assert_eq!((code, out.as_str(), err.lines().count(), err.contains(refused)), (2, "", 1, true), "{err}");
    let mut client = cluster.command(&["s3://traces/fleet", sql]);
    let (code, out, err) = ran(server.tell(&mut client).env("AWS_SECRET_ACCESS_KEY", "another"));
    assert_eq!((code, out.as_str(), err.lines().count(), err.contains(refused)), (2, "", 1, true), "{err}");
    // An object that a manifest names is missing, then a bucket.
    let object =
        files(&server.bucket("traces").join("fleet/events")).into_iter().find(|file| text(file).contains("begin"));
    std::fs::remove_file(object.unwrap()).unwrap();
    let (code, out, err) = ran(server.tell(&mut cluster.command(&["s3://traces/fleet", sql])));
    assert_eq!((code, out.as_str(), err.lines().count()), (2, "", 1), "{err}");
    assert!(err.contains("class=http%3Abegin") && err.contains("it does not exist"), "{err}");
    let (code, _, err) = ran(server.tell(&mut cluster.command(&["s3://none/fleet", sql])));
    assert_eq!((code, err.lines().count(), err.contains("there is no such bucket")), (2, 1, true), "{err}");
}

/// `systemd-analyze verify` accepts the units that are installed.
#[test]
fn systemd_accepts_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        dormouse_testing::skip(dormouse_testing::Lack::machine(
            "there is no systemd-analyze",
            "`apt-get install systemd`",
        ));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    for name in ["dormouse-scheduler.service", "dormouse-executor.service"] {
        let unit = std::fs::read_to_string(units.join(name)).unwrap();
        // The program is not installed in the unit's search path.
        let found =
            unit.replace("ExecStart=dormouse-cluster ", &format!("ExecStart={} ", text(&program("dormouse-cluster"))));
        assert_ne!(found, unit, "{name} does not start dormouse-cluster");
        let verify = |unit: &str| {
            std::fs::write(dir.path().join(name), unit).unwrap();
            let mut command = Command::new("systemd-analyze");
            ran(command.args(["--man=no", "verify"]).arg(dir.path().join(name)))
        };
        assert_eq!(verify(&found), (0, String::new(), String::new()), "{name}");
        // An error in a unit would be reported.
        assert!(verify(&found.replace("Restart=always", "Restart=alway")).2.contains("Failed to parse"), "{name}");
    }
}

/// The program accepts the arguments in compose.yaml. Whether docker accepts the file is not tested.
#[test]
fn the_program_takes_the_commands_of_the_compose_file() {
    let file = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("compose.yaml")).unwrap();
    let commands: Vec<&str> = file.lines().filter_map(|line| line.trim().strip_prefix("command: ")).collect();
    assert_eq!(commands.len(), 2);
    for command in commands {
        let command = command.strip_prefix("dormouse-cluster ").expect("it starts dormouse-cluster");
        let command = command.replace("${MEMORY:-2G}", "2G");
        assert!(!command.contains('$'), "{command}");
        // Arguments before --help are parsed.
        let help =
            |command: &str| ran(Command::new(program("dormouse-cluster")).args(command.split(' ')).arg("--help"));
        assert_eq!(help(&command).0, 0, "{command}");
        assert_eq!(help(&command.replace("--bind", "--bound")).0, 2, "{command}");
    }
}

#[test]
fn the_reference_of_commands_is_current() {
    dormouse_testing::commands::check(env!("CARGO_BIN_EXE_dormouse-cluster"), "dormouse cluster");
}
