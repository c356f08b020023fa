//! Answers compared with the ledger of the program that was recorded.
//!
//! `e2e-ledger` draws threads, requests, locks, waits, files and leaks from a seed, and prints what it did. Counts and
//! bytes in the answers of `stats`, a report and the named queries are equal to its own. A time in an answer lies
//! between the least and the greatest that the ledger allows: the program reads its clock before and after each event.
//!
//! Named queries run if `DORMOUSE_QUERY` names the program, see `newcomer`. `DORMOUSE_LEDGERS` is the number of seeds,
//! `DORMOUSE_LEDGERS_SEED` the first.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use base64::prelude::{BASE64_STANDARD, Engine};
use dormouse_e2e::run::{Record, Recording, dormouse, libc_library};
use flate2::read::ZlibDecoder;
use serde_json::Value as Json;

const LEDGER: &str = env!("CARGO_BIN_EXE_e2e-ledger");

/// Difference between the trace's clock and the program's that is allowed in a duration: 0.1 %, and the precision of
/// both.
fn slack(ns: f64) -> f64 {
    ns / 1000.0 + 100.0
}

/// Least and greatest possible value.
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    least: f64,
    greatest: f64,
}

impl Range {
    /// Returns the time between two events, each of which lies between two times.
    fn between(begin: (f64, f64), end: (f64, f64)) -> Range {
        Range { least: (end.0 - begin.1).max(0.0), greatest: end.1 - begin.0 }
    }

    fn add(&mut self, other: Range) {
        self.least += other.least;
        self.greatest += other.greatest;
    }

    fn has(&self, ns: f64) -> bool {
        ns >= self.least - slack(self.least) && ns <= self.greatest + slack(self.greatest)
    }
}

#[derive(Debug)]
struct Request {
    id: u64,
    endpoint: String,
    status: u64,
    /// From begin to end, from begin to start, and from start to end.
    whole: Range,
    queued: Range,
    served: Range,
}

#[derive(Debug)]
struct Held {
    tid: u64,
    /// Times before and after the call that locks, and the call that unlocks.
    times: [f64; 4],
}

#[derive(Debug)]
struct Wait {
    mutex: String,
    waiter: u64,
    holder: u64,
    /// Least and greatest length.
    length: Range,
}

/// What a thread did for a request.
#[derive(Debug)]
struct Did {
    tid: u64,
    /// Locks, reads and writes.
    counts: [u64; 3],
    /// Greatest time that the reads and writes can have taken.
    call_ns: f64,
}

#[derive(Debug, Default)]
struct Ledger {
    requests: Vec<Request>,
    did: BTreeMap<u64, Did>,
    held: BTreeMap<String, Vec<Held>>,
    waits: Vec<Wait>,
    /// Reads, bytes read, writes and bytes written, and the greatest time that all calls can have taken, by path.
    files: BTreeMap<String, ([u64; 4], f64)>,
    leak: (u64, u64),
    /// Events of the program's own classes, by thread.
    threads: BTreeMap<u64, u64>,
}

impl Ledger {
    fn parse(text: &str) -> Ledger {
        let mut ledger = Ledger::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let whole = |at: usize| words[at].parse::<u64>().unwrap();
            let ns = |at: usize| whole(at) as f64;
            match words[0] {
                "request" => {
                    let [begin, start, end] = [4, 6, 8].map(|at| (ns(at), ns(at + 1)));
                    ledger.requests.push(Request {
                        id: whole(1),
                        endpoint: words[2].into(),
                        status: whole(3),
                        whole: Range::between(begin, end),
                        queued: Range::between(begin, start),
                        served: Range::between(start, end),
                    });
                }
                "did" => drop(
                    ledger.did.insert(whole(1), Did { tid: whole(2), counts: [3, 4, 5].map(whole), call_ns: ns(6) }),
                ),
                "held" => {
                    let held = Held { tid: whole(2), times: [ns(3), ns(4), ns(5), ns(6)] };
                    ledger.held.entry(words[1].into()).or_default().push(held);
                }
                "wait" => {
                    let (mutex, waiter, holder) = (words[1].into(), whole(2), whole(3));
                    ledger.waits.push(Wait { mutex, waiter, holder, length: Range { least: ns(4), greatest: ns(5) } });
                }
                "file" => drop(ledger.files.insert(words[1].into(), ([2, 3, 4, 5].map(whole), ns(6)))),
                "leak" => ledger.leak = (whole(1), whole(2)),
                "thread" => *ledger.threads.entry(whole(1)).or_default() += whole(2),
                other => panic!("{other}"),
            }
        }
        ledger
    }

    /// Returns how long a mutex was held in all. It is given up before another thread has it.
    fn held(&self, mutex: &str) -> Range {
        let all = &self.held[mutex];
        let mut sum = Range::default();
        for Held { times: [lock0, lock1, unlock0, unlock1], .. } in all {
            let next = all.iter().map(|other| other.times[1]).filter(|got| *got > *unlock0).fold(f64::MAX, f64::min);
            sum.add(Range::between((*lock0, *lock1), (*unlock0, unlock1.min(next))));
        }
        sum
    }
}

/// Returns the sum of ranges.
fn sum(ranges: impl Iterator<Item = Range>) -> Range {
    ranges.fold(Range::default(), |mut sum, range| {
        sum.add(range);
        sum
    })
}

/// Returns the range of the greatest value.
fn greatest(ranges: impl Iterator<Item = Range>) -> Range {
    ranges.fold(Range::default(), |most, range| Range {
        least: most.least.max(range.least),
        greatest: most.greatest.max(range.greatest),
    })
}

fn json_of(recording: &Recording, command: &str, options: &[&str]) -> Json {
    let mut run = Command::new(dormouse());
    let output = run.arg(command).arg(&recording.dir).args(options).arg("--json").output().unwrap();
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the rows of a query, if the program is available.
fn rows(recording: &Recording, query: &[&str]) -> Option<Vec<Json>> {
    let program = std::env::var_os("DORMOUSE_QUERY")?;
    let mut command = Command::new(program);
    let output = command.arg(&recording.dir).args(query).args(["--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{query:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // The output is one array, or one line for each row.
    match serde_json::from_str::<Vec<Json>>(&text) {
        Ok(rows) => Some(rows),
        Err(_) => Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()),
    }
}

fn number(value: &Json) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

/// `stats --latency` by endpoint, without and with a condition on a field of the end.
fn requests_agree(recording: &Recording, ledger: &Ledger, seed: u64) {
    let latency = ["--latency", "ledger:request_begin..ledger:request_end", "--by", "endpoint", "--slowest", "1"];
    for (condition, is_wanted) in
        [(None, (|_| true) as fn(&&Request) -> bool), (Some("status >= 500"), |request| request.status >= 500)]
    {
        let options: Vec<&str> = latency.into_iter().chain(condition.iter().flat_map(|of| ["--where", of])).collect();
        let answer = json_of(recording, "stats", &options);
        let wanted: Vec<&Request> = ledger.requests.iter().filter(is_wanted).collect();
        let endpoints: BTreeSet<&str> = wanted.iter().map(|request| request.endpoint.as_str()).collect();
        let rows = answer["rows"].as_array().unwrap();
        assert_eq!(rows.len(), endpoints.len(), "seed {seed}: {answer}");
        for row in rows {
            let of = || wanted.iter().filter(|request| row["key"]["endpoint"] == request.endpoint.as_str());
            assert_eq!(number(&row["count"]), of().count() as f64, "seed {seed}: {row}");
            assert!(sum(of().map(|of| of.whole)).has(number(&row["values"]["sum"])), "seed {seed}: {row}");
            assert!(greatest(of().map(|of| of.whole)).has(number(&row["values"]["max"])), "seed {seed}: {row}");
        }
        let latency = &answer["latency"];
        assert_eq!((&latency["unpaired_begins"], &latency["unpaired_ends"]), (&0.into(), &0.into()), "seed {seed}");
        assert_eq!(number(&latency["pairs_not_selected"]), (ledger.requests.len() - wanted.len()) as f64);
        if let Some(slowest) = latency["slowest"].as_array().unwrap().first() {
            assert!(slowest["begin_fields"]["endpoint"].is_string() && slowest["end_fields"]["status"].is_number());
            assert_eq!(slowest["begin_fields"]["id"], slowest["end_fields"]["id"], "seed {seed}: {slowest}");
        }
    }
}

/// Returns a time of a request.
type RangeOf = fn(&Request) -> Range;

/// The names of the pairs that the names of the classes define.
const WHOLE: &str = "ledger:request_begin..ledger:request_end";
const SERVED: &str = "ledger:request_start..ledger:request_end";

/// The table of names in a report, with pairs that have the user's names, and with those that the classes define.
fn reports_agree(recording: &Recording, ledger: &Ledger, seed: u64) {
    let pairs =
        ["queue=ledger:request_begin..ledger:request_start", "service=ledger:request_start..ledger:request_end"];
    let options = ["--pairs", pairs[0], "--pairs", pairs[1]];
    report_agrees(recording, ledger, seed, &options, [("queue", |of| of.queued), ("service", |of| of.served)]);
    report_agrees(recording, ledger, seed, &[], [(WHOLE, |of| of.whole), (SERVED, |of| of.served)]);
}

/// Reads and writes are slices of the report, as long as the field of their event says.
fn calls_agree(recording: &Recording, seed: u64) {
    let calls = ["libc:read", "libc:write"];
    let (names, summary) = report_of(recording, &["-e", calls[0], "-e", calls[1], "-e", "libc:open"]);
    let asked = ["-e", calls[0], "-e", calls[1], "--field", "duration_ns"];
    for row in json_of(recording, "stats", &asked)["rows"].as_array().unwrap() {
        let at = names.iter().position(|name| *name == row["key"]["event"]).unwrap();
        let drawn: Vec<&Json> = summary.iter().filter(|row| row["name"] == at).collect();
        let (count, sum) = (number(&row["count"]), number(&row["values"]["sum"]));
        assert!(drawn.len() == 1 && drawn[0]["is_slice"] == true, "seed {seed}: {drawn:?}");
        assert_eq!(number(&drawn[0]["count"]), count, "seed {seed}: {row}");
        let total = number(&drawn[0]["total"]);
        assert!(total <= sum && total + count * slack(sum / count) >= sum, "seed {seed}: {total} of {sum}");
    }
}

/// Returns the names of a report, and the rows of its table of names.
fn report_of(recording: &Recording, options: &[&str]) -> (Vec<Json>, Vec<Json>) {
    let page = recording.place().join("report.html");
    json_of(recording, "report", &[&["-o", page.to_str().unwrap()], options].concat());
    let page = std::fs::read_to_string(page).unwrap();
    // The block of data with the tables: JSON, compressed, in base64.
    let head = page.split_once("id=\"head\">").unwrap().1.split_once("</script>").unwrap().0;
    let packed = BASE64_STANDARD.decode(head).unwrap();
    let head: Json = serde_json::from_reader(ZlibDecoder::new(packed.as_slice())).unwrap();
    ["names", "summary"].map(|name| head[name].as_array().unwrap().clone()).into()
}

fn report_agrees(recording: &Recording, ledger: &Ledger, seed: u64, options: &[&str], names: [(&str, RangeOf); 2]) {
    let (known, summary) = report_of(recording, &[&["-e", "ledger:*"], options].concat());
    for (name, of) in names {
        let ranges = ledger.requests.iter().map(of);
        let at = known.iter().position(|known| known == name).unwrap();
        let row = summary.iter().find(|row| row["name"] == at && row["is_slice"] == true);
        let row = row.unwrap_or_else(|| panic!("seed {seed}: {name}"));
        assert_eq!(number(&row["count"]), ledger.requests.len() as f64, "seed {seed}: {name}");
        assert!(sum(ranges.clone()).has(number(&row["total"])), "seed {seed}: {name}: {row}");
        assert!(greatest(ranges).has(number(&row["max"])), "seed {seed}: {name}: {row}");
    }
}

/// What happened during each request, by `view --during`: its own three events, and on the thread that served it the locks, reads
/// and writes of the ledger.
fn contents_agree(recording: &Recording, ledger: &Ledger, seed: u64) {
    let slices = during(recording, &[]);
    assert_eq!(slices.len(), ledger.requests.len(), "seed {seed}");
    for (head, events) in &slices {
        let id = head["key"]["id"].as_u64().unwrap();
        let request = ledger.requests.iter().find(|request| request.id == id).unwrap();
        let Did { tid, counts, call_ns } = &ledger.did[&id];
        assert!(request.whole.has(number(&head["latency_ns"])), "seed {seed}: {head}");
        assert_eq!(head["end_fields"]["status"], request.status, "seed {seed}: {head}");
        let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
        let own = events.iter().filter(|event| event["event"].as_str().unwrap().starts_with("ledger:"));
        let own: Vec<(&str, bool)> =
            own.map(|event| (event["event"].as_str().unwrap(), event["fields"]["id"] == id)).collect();
        let expected = ["begin", "start", "end"].map(|name| format!("ledger:request_{name}"));
        assert_eq!(own, expected.each_ref().map(|name| (name.as_str(), true)), "seed {seed}: {head}");
        let found = ["libc:mutex_unlock", "libc:read", "libc:write"].map(|name| of(name).len() as u64);
        assert_eq!((found, of("libc:open").len()), (*counts, 1), "seed {seed}: {head}");
        assert!(events[1..].iter().all(|event| event["tid"] == *tid), "seed {seed}: {head}");
        let since: Vec<u64> = events.iter().map(|event| event["since_begin_ns"].as_u64().unwrap()).collect();
        assert!(since[0] == 0 && since.is_sorted() && since.last() == head["latency_ns"].as_u64().as_ref());
        let calls = || of("libc:read").into_iter().chain(of("libc:write"));
        assert!(calls().all(|event| event["ended"] == event["event"] && event["depth"] == 1), "seed {seed}: {head}");
        let took_ns: f64 = calls().map(|event| number(&event["ended_ns"])).sum();
        assert!(took_ns <= *call_ns + slack(*call_ns), "seed {seed}: {head}: {took_ns} of {call_ns}");
        assert!(took_ns > 0.0 || counts[1] + counts[2] == 0, "seed {seed}: {head}");
    }
    let failed = ledger.requests.iter().filter(|request| request.status >= 500).count();
    let slowest = during(recording, &["--where", "status >= 500", "--slowest", "3"]);
    assert_eq!(slowest.len(), failed.min(3), "seed {seed}");
    assert!(slowest.iter().map(|(head, _)| number(&head["latency_ns"])).is_sorted_by(|a, b| a >= b), "seed {seed}");
}

/// Returns the objects of requests and of their events.
fn during(recording: &Recording, options: &[&str]) -> Vec<(Json, Vec<Json>)> {
    let mut run = Command::new(dormouse());
    run.arg("view").arg(&recording.dir).args(["--during", WHOLE, "--format", "json"]).args(options);
    let output = run.output().unwrap();
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    let mut slices: Vec<(Json, Vec<Json>)> = Vec::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        match line["event"].is_null() {
            true => slices.push((line, Vec::new())),
            false => slices.last_mut().unwrap().1.push(line),
        }
    }
    slices
}

/// How long mutexes are held and waited for, by `stats`.
fn locks_agree(recording: &Recording, ledger: &Ledger, seed: u64) {
    let key = ["--key", "pid,tid,mutex", "--by", "mutex"];
    let held = [&["--latency", "libc:mutex_lock_begin..libc:mutex_lock"], &key[..]].concat();
    let answer = json_of(recording, "stats", &held);
    let row_of = |mutex: &str| {
        let mutex = u64::from_str_radix(mutex, 16).unwrap();
        answer["rows"].as_array().unwrap().iter().find(|row| row["key"]["mutex"] == mutex).cloned()
    };
    for mutex in ledger.held.keys() {
        let sure = sum(ledger.waits.iter().filter(|wait| wait.mutex == *mutex).map(|wait| wait.length));
        let calls: f64 = ledger.held[mutex].iter().map(|held| held.times[1] - held.times[0]).sum();
        let waited = row_of(mutex).map_or(0.0, |row| number(&row["values"]["sum"]));
        let range = Range { least: sure.least, greatest: calls };
        assert!(range.has(waited), "seed {seed}: {mutex}: {waited} {range:?}");
    }
}

/// The named queries.
fn queries_agree(recording: &Recording, ledger: &Ledger, seed: u64) {
    let Some(latency) = rows(recording, &["--named", "latency"]) else { return };
    for (name, of) in [(WHOLE, (|of| of.whole) as RangeOf), (SERVED, |of| of.served)] {
        let row = latency.iter().find(|row| row["name"] == name).unwrap();
        assert_eq!(number(&row["count"]), ledger.requests.len() as f64, "seed {seed}: {row}");
        let pairs =
            format!("select sum(duration_ns) as total, max(duration_ns) as most from pairs where name = '{name}'");
        let row = &rows(recording, &[&pairs]).unwrap()[0];
        assert!(sum(ledger.requests.iter().map(of)).has(number(&row["total"])), "seed {seed}: {row}");
        assert!(greatest(ledger.requests.iter().map(of)).has(number(&row["most"])), "seed {seed}: {row}");
    }

    let held = "select to_hex(split_part(key, ', ', 3)::bigint) as mutex, count(*) as count, sum(duration_ns) as held \
                from pairs where name = 'libc:mutex held' group by 1";
    let held = rows(recording, &[held]).unwrap();
    let contention = rows(recording, &["--named", "mutex-contention"]).unwrap();
    let waits = rows(recording, &["--named", "mutex-waits"]).unwrap();
    for (mutex, of) in &ledger.held {
        let row = held.iter().find(|row| row["mutex"] == mutex.as_str()).unwrap();
        assert_eq!(number(&row["count"]), of.len() as f64, "seed {seed}: {row}");
        assert!(ledger.held(mutex).has(number(&row["held"])), "seed {seed}: {row}: {:?}", ledger.held(mutex));
        let threads: BTreeSet<u64> = of.iter().map(|held| held.tid).collect();
        let row = contention.iter().find(|row| row["mutex"] == mutex.as_str());
        assert_eq!(row.is_some(), threads.len() > 1, "seed {seed}: {mutex}: {contention:?}");
        if let Some(row) = row {
            assert_eq!(number(&row["locks"]), of.len() as f64, "seed {seed}: {row}");
            assert_eq!(number(&row["threads"]), threads.len() as f64, "seed {seed}: {row}");
        }
    }
    for Wait { mutex, waiter, holder, length } in &ledger.waits {
        let is_it =
            |row: &&Json| row["mutex"] == mutex.as_str() && row["waiter"] == *waiter && row["holder"] == *holder;
        let found = waits.iter().find(is_it).unwrap_or_else(|| panic!("seed {seed}: {mutex} {waiter}: {waits:?}"));
        assert_eq!(number(&found["waits"]), 1.0, "seed {seed}: {found}");
        assert!(length.has(number(&found["waited_ns"])), "seed {seed}: {found}: {length:?}");
    }

    let files = rows(recording, &["--named", "io-by-file"]).unwrap();
    for (path, (calls, call_ns)) in ledger.files.iter().filter(|(_, (calls, _))| calls[0] + calls[2] > 0) {
        let row = files.iter().find(|row| row["file"] == path.as_str()).unwrap_or_else(|| panic!("{path}: {files:?}"));
        let told = ["reads", "bytes_read", "writes", "bytes_written"].map(|of| row[of].as_u64().unwrap_or(0));
        assert_eq!(told, *calls, "seed {seed}: {row}");
        let took_ns = number(&row["took_ns"]);
        assert!(took_ns > 0.0 && took_ns <= *call_ns + slack(*call_ns), "seed {seed}: {row}: {call_ns}");
    }
    let leaks = rows(recording, &["--named", "alloc-leaks"]).unwrap();
    let leaked = leaks.iter().find(|row| row["size"] == ledger.leak.0).map_or(0.0, |row| number(&row["blocks"]));
    assert_eq!(leaked, ledger.leak.1 as f64, "seed {seed}: {leaks:?}");
    let classes = rows(recording, &["--named", "classes-by-second"]).unwrap();
    for class in ["ledger:request_begin", "ledger:request_start", "ledger:request_end"] {
        let counts = classes.iter().filter(|row| row["class"] == class).map(|row| number(&row["events"]));
        assert_eq!(counts.sum::<f64>(), ledger.requests.len() as f64, "seed {seed}: {classes:?}");
    }
    // The process has two tracers, its own and the library of --libc, and is one.
    let processes = rows(recording, &["select name, events from processes"]).unwrap();
    let events = rows(recording, &["select events from totals"]).unwrap();
    assert_eq!((processes.len(), &processes[0]["events"]), (1, &events[0]["events"]), "seed {seed}: {processes:?}");
    let threads = "select tid, count(*) as events from events where class like 'ledger:%' group by tid";
    let threads = rows(recording, &[threads]).unwrap();
    let told: BTreeMap<u64, u64> =
        threads.iter().map(|row| (row["tid"].as_u64().unwrap(), row["events"].as_u64().unwrap())).collect();
    let own: BTreeMap<u64, u64> = ledger.threads.iter().filter(|of| *of.1 > 0).map(|(tid, of)| (*tid, *of)).collect();
    assert_eq!(told, own, "seed {seed}");
}

#[test]
fn answers_agree_with_the_ledger_of_a_concurrent_program() {
    libc_library();
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = setting("DORMOUSE_LEDGERS_SEED").unwrap_or(1);
    for seed in first..first + setting("DORMOUSE_LEDGERS").unwrap_or(4) {
        let record = Record::new().option("--libc");
        let dir = record.place().join("files");
        std::fs::create_dir(&dir).unwrap();
        let recording = record.run(&[LEDGER.as_ref(), seed.to_string().as_ref(), dir.as_os_str()]).succeeded();
        let ledger = Ledger::parse(&recording.stdout);
        assert!(!ledger.requests.is_empty() && !ledger.waits.is_empty());
        requests_agree(&recording, &ledger, seed);
        contents_agree(&recording, &ledger, seed);
        reports_agree(&recording, &ledger, seed);
        calls_agree(&recording, seed);
        locks_agree(&recording, &ledger, seed);
        queries_agree(&recording, &ledger, seed);
    }
}
