//! Serves the page on loopback: the requests of a browser, and requests that are rejected.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dormouse_abi::class::{FieldType, Kind};
use dormouse_analysis::timeline::{FoundKey, Options, Timeline};
use dormouse_ctf::{ClassRef, Selection, StateRecord, Trace, Value as CtfValue};
use dormouse_reader::{Bounds, Item, Reading, TraceFiles};
use dormouse_report::serve::{Again, Ended, Server};
use dormouse_report::{Asked, Gather, Part, Served, Show, Source, Survey};
use dormouse_testing::browser::{self, Browser};
use dormouse_traces::TraceBuilder;
use serde_json::{Value, json};

use super::{HOSTILE, SELECTED, drawn};

/// A server that runs until it is dropped.
struct Running {
    url: String,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Ended>>,
}

impl Running {
    fn new(served: Served, again: Option<Again>) -> Running {
        let server = Server::new(0, served, again).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let url = server.url();
        let thread = std::thread::spawn(move || server.run(&stopped, None).unwrap());
        Running { url, stop: Some(stop), thread: Some(thread) }
    }

    fn host(&self) -> &str {
        self.url.strip_prefix("http://").unwrap().split('/').next().unwrap()
    }

    fn one_time(&self) -> &str {
        self.url.rsplit('/').nth(1).unwrap()
    }

    /// Sends bytes as they are, and returns the response.
    fn send(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.host()).unwrap();
        let mut answer = Vec::new();
        // The server can reject a request before all of it is sent, and then resets the connection.
        if stream.write_all(request).is_ok() {
            let _ = stream.read_to_end(&mut answer);
        }
        answer
    }

    fn get(&self, target: &str) -> (String, Vec<u8>) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host());
        let answer = self.send(request.as_bytes());
        let end = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(answer.len());
        (String::from_utf8_lossy(&answer[..end]).into_owned(), answer[(end + 4).min(answer.len())..].to_vec())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        assert!(std::thread::panicking() || ended.unwrap() == Ended::Stopped);
    }
}

/// Memory for all entries of these traces, and for only some of them.
const MUCH: u64 = 1 << 30;
const LITTLE: u64 = 1 << 20;

/// Writes a trace: every 200 µs a request of 100 µs with two nested queries, and a tick, on thread 7. Request 5 sends a
/// message to thread 8, which receives it 1 ms later. On thread 8, one request of the process lasts for the whole time.
/// Three events are lost in between.
fn write(dir: &Path, count: u64) {
    let mut builder = TraceBuilder::new();
    let fields = [("id", FieldType::scalar(Kind::U64)), (HOSTILE, FieldType::scalar(Kind::Str))];
    let mut pair = |name: &str| ["begin", "end"].map(|end| builder.class("app", &format!("{name}_{end}"), &fields));
    let (request, query, all) = (pair("request"), pair("query"), pair("all"));
    let tick = builder.class("app", "tick", &fields);
    let message = ["sent", "received"].map(|name| builder.class("msg", name, &fields));
    let cpus = [0, 1].map(|cpu| builder.stream(cpu));
    builder.state(
        0,
        &StateRecord::Process { process: 1, pid: 7, vpid: 7, name: HOSTILE, program: "/bin/x", command_line: "" },
    );
    let mut events = vec![(0, 1, all[0], 0)];
    for number in 0..count {
        let begin = number * 200_000;
        let second = 30_000 + number % 7;
        let of_queries = [(10_000, query[0]), (30_000, query[1]), (40_000, query[0]), (40_000 + second, query[1])];
        events.push((begin, 0, request[0], begin));
        events.extend(of_queries.map(|(at, class)| (begin + at, 0, class, begin)));
        events.push((begin + 100_000, 0, request[1], begin));
        events.push((begin + 150_000, 0, tick, begin));
        if number == 5 {
            events.extend([(begin + 5_000, 0, message[0], 55), (begin + 1_005_000, 1, message[1], 55)]);
        }
    }
    events.push((count * 200_000 - 10, 1, all[1], 0));
    events.sort_by_key(|(at, ..)| *at);
    for (index, (at, cpu, class, id)) in events.into_iter().enumerate() {
        let values = [CtfValue::U64(id), CtfValue::Str(HOSTILE.as_bytes())];
        builder.event(cpus[cpu], at, 7, 7 + cpu as u32, class, &values);
        if index % 500 == 499 {
            builder.packet(cpus[0], 0, if index == 999 { 3 } else { 0 });
        }
    }
    builder.finish().write(dir);
}

/// A trace that can be read again.
struct Files(Arc<TraceFiles>);

impl Files {
    fn reading(&self, first_ns: i64, last_ns: i64) -> Reading<'_> {
        let selection = Selection::new(Vec::new(), Vec::new(), self.0.traces()).unwrap();
        Reading::new(&self.0, selection, Bounds::new(&self.0, (first_ns, last_ns), None, None))
    }
}

impl Source for Files {
    fn read(&self, first_ns: i64, last_ns: i64, show: Show<'_>) -> Result<(), String> {
        let mut reading = self.reading(first_ns, last_ns);
        while let Some(item) = reading.next_item() {
            match item {
                Item::Wanted(event, _) => show(&event, true),
                Item::Other(event) => show(&event, false),
                Item::Notice(_) => {}
            }
        }
        Ok(())
    }
}

fn files(count: u64) -> Arc<TraceFiles> {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), count);
    // Open files can be read even after their directory is removed.
    Arc::new(TraceFiles::open(dir.path()).unwrap())
}

fn options() -> Options {
    Options {
        pairs: vec!["msg:sent..msg:received".parse().unwrap()],
        key: vec!["id".into()],
        counters: vec![("app:tick".into(), "id".into())],
        has_calls: true,
        ..Options::default()
    }
}

/// The same without a counter, for traces that have no ticks.
fn options_of(files: &TraceFiles) -> Options {
    let has_ticks = files.traces().flat_map(ClassRef::all).any(|class| class.class.full_name == "app:tick");
    let options = options();
    Options { counters: if has_ticks { options.counters } else { Vec::new() }, ..options }
}

fn timeline<K>(files: &TraceFiles, options: &Options) -> Timeline<K> {
    let traces: Vec<&Trace> = files.described().iter().collect();
    let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
    Timeline::new(options, &traces, streams).unwrap()
}

/// Returns the page of a report in a file.
fn gathered(files: &Arc<TraceFiles>, options: &Options) -> Vec<u8> {
    let (source, mut timeline) = (Files(Arc::clone(files)), timeline(files, options));
    let mut gather = Gather::new("made up", timeline.names());
    let mut reading = source.reading(i64::MIN, i64::MAX);
    while let Some(item) = reading.next_item() {
        match item {
            Item::Wanted(event, _) => timeline.event(&event, &mut gather),
            Item::Other(event) => timeline.pass(&event, &mut gather),
            Item::Notice(notice) => timeline.notice(&notice, reading.time_ns(notice.stream), &mut gather),
        }
    }
    let totals = timeline.finish(&mut gather);
    let mut page = Vec::new();
    gather.finish(&totals, Vec::new(), Vec::new()).finish(8 << 20, &mut page).unwrap();
    page
}

fn served(files: &Arc<TraceFiles>, memory_bytes: u64, page_bytes: u64, is_growing: bool) -> Served {
    let source = Files(Arc::clone(files));
    let mut survey = Survey::new(&format!("made up {HOSTILE}"), timeline(files, &options_of(files)), memory_bytes);
    let mut reading = source.reading(i64::MIN, i64::MAX);
    while let Some(item) = reading.next_item() {
        match item {
            Item::Wanted(event, _) => survey.event(&event, true),
            Item::Other(event) => survey.event(&event, false),
            Item::Notice(notice) => survey.notice(&notice, reading.time_ns(notice.stream)),
        }
    }
    let (surveyed, totals) = survey.finish();
    drop(reading);
    let surveyed = surveyed.told(&totals, Vec::new(), vec![format!("a note {HOSTILE}")], is_growing, None);
    Served::new(surveyed, Box::new(source), page_bytes).unwrap()
}

/// A report with so small a page that neighbours are merged, and so little memory that they are read again.
fn small(count: u64, is_growing: bool) -> Served {
    let files = files(count);
    let size = |count| served(&self::files(count), MUCH, 24 << 20, false).written.size_bytes;
    served(&files, LITTLE, size(1) + (size(count) - size(1)) / 3, is_growing)
}

#[test]
fn nothing_is_served_without_the_token() {
    let running = Running::new(served(&files(10), MUCH, 1 << 20, false), None);
    let one_time = running.one_time().to_owned();
    let status = |target: &str| running.get(target).0.split(' ').nth(1).unwrap_or_default().to_owned();
    let wrong = "0123456789abcdef".repeat(2);
    let without = one_time[1..].to_owned();
    for target in [
        "/".into(),
        "/index.html".into(),
        "/favicon.ico".into(),
        "//".into(),
        "*".into(),
        "/part?key=1&begin=0&end=0&cpu=0".into(),
        format!("/{wrong}/"),
        format!("/{without}/"),
        format!("/{one_time}"),
        format!("/{one_time}/part?key=1&begin=0&end=0&cpu=0"),
        format!("/{one_time}/?"),
        format!("/x/{one_time}/"),
        format!("/%2e%2e/{one_time}/"),
        format!("http://127.0.0.1/{one_time}/x"),
    ] {
        assert!(["404", "400", "410", "303"].contains(&status(&target).as_str()), "{target}: {}", status(&target));
        if target != format!("/{one_time}/?") {
            assert_eq!(status(&target), "404", "{target}");
        }
    }
    // None of these has used up the address, except the one with an empty query, which is the same address.
    let running = Running::new(served(&files(10), MUCH, 1 << 20, false), None);
    let host = running.host().to_owned();
    let one_time = running.one_time().to_owned();
    let hostile = [
        format!("POST /{one_time}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("HEAD /{one_time}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("OPTIONS /{one_time}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET /{one_time}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        format!("GET /{one_time}/ HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\n\r\n"),
        format!("GET /{one_time}/ HTTP/1.1\r\nHost: {host}\r\nSec-Fetch-Site: cross-site\r\n\r\n"),
        format!("GET /{one_time}/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\n\r\nx"),
        format!("GET /{one_time}/ HTTP/1.1\r\nHost: {host}\r\nX: {}\r\n\r\n", "y".repeat(20_000)),
        format!("GET /{one_time}/\r\n\r\n"),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\r\n\r\n".into(),
    ];
    for request in &hostile {
        let answer = String::from_utf8_lossy(&running.send(request.as_bytes())).into_owned();
        let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(is_refused && !answer.contains("Location"), "{request:.60}: {answer}");
    }
    // Silent connections do not block others.
    let _silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&host).unwrap()).collect();

    let (head, body) = running.get(&format!("/{one_time}/"));
    assert!(head.starts_with("HTTP/1.1 303 ") && !body.starts_with(b"<"), "{head}");
    let target = head.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().to_owned();
    assert!(target.len() == 34 && !target.contains(&one_time), "{target}");
    // It works once.
    let (again, _) = running.get(&format!("/{one_time}/"));
    assert!(again.starts_with("HTTP/1.1 410 ") && !again.contains("Location"), "{again}");

    let (head, body) = running.get(&target);
    assert!(head.starts_with("HTTP/1.1 200 ") && body.starts_with(b"<!doctype html>"), "{head}");
    for header in [
        "Content-Security-Policy: default-src 'none'; script-src 'sha256-",
        "connect-src 'self';",
        "frame-ancestors 'none'",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cross-Origin-Resource-Policy: same-origin",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert!(!head.contains("unsafe"), "{head}");
    assert!(!String::from_utf8_lossy(&body).contains("hacked"));
    let max = u64::MAX;
    for (rest, expected) in [
        ("part?begin=0&end=1000000&step=1&cpu=0".to_string(), "200"),
        (format!("part?begin={max}&end={max}&step={max}&cpu=1"), "200"),
        ("part?begin=9&end=0&step=0&cpu=0".into(), "200"),
        ("part?key=1&begin=0&end=9&cpu=0".into(), "200"),
        (format!("part?key=4294967295&begin={max}&end={max}&cpu=0"), "200"),
        ("part?key=4294967296&begin=0&end=9&cpu=0".into(), "404"),
        ("part?key=1&cpu=0".into(), "404"),
        ("fields?thread=1&name=0&slice=1&begin=0&duration=1".into(), "404"),
        (format!("fields?thread={0}&name={0}&slice=0&begin={max}&duration={max}", u32::MAX), "404"),
        ("fields?thread=4294967296&name=0&slice=1&begin=0&duration=1".into(), "404"),
        ("fields?number=1".into(), "404"),
        ("fields?thread=1&thread=2".into(), "404"),
        ("fields?thread=-1".into(), "404"),
        ("fields?thread=".into(), "404"),
        ("part?begin=0".into(), "404"),
        ("part?begin=18446744073709551616&end=1&step=1&cpu=0".into(), "404"),
        ("part".into(), "404"),
        ("find?text=6964&cpu=0".into(), "200"),
        ("find?text=6964&cpu=1".into(), "200"),
        ("find?text=6964&cpu=2".into(), "404"),
        ("find?text=&cpu=0".into(), "404"),
        ("find?text=696&cpu=0".into(), "404"),
        ("find?text=+6&cpu=0".into(), "404"),
        ("find?text=ff&cpu=0".into(), "404"),
        ("find?cpu=0&text=6964".into(), "404"),
        ("again".into(), "404"),
        ("../etc/passwd".into(), "404"),
        ("page?x=ä".into(), "404"),
    ] {
        let (head, _) = running.get(&format!("{target}{rest}"));
        let status = head.split(' ').nth(1).unwrap_or_default();
        assert!(status == expected || (rest.contains('ä') && status == "400"), "{rest}: {head}");
    }
}

#[test]
fn a_connection_is_not_answered_after_the_end() {
    let running = Running::new(served(&files(10), MUCH, 1 << 20, false), None);
    let request = format!("GET /{}/ HTTP/1.1\r\nHost: {}\r\n\r\n", running.one_time(), running.host());
    let (begin, rest) = request.as_bytes().split_at(9);
    let mut early = TcpStream::connect(running.host()).unwrap();
    early.write_all(begin).unwrap();
    // Connections are accepted in order: the first one was accepted when the second has its response.
    assert!(running.get("/").0.contains("404"));
    drop(running);
    let mut answer = Vec::new();
    if early.write_all(rest).is_ok() {
        let _ = early.read_to_end(&mut answer);
    }
    assert_eq!(answer, b"");
}

/// Rows of a response, each with: whether it is of a CPU, its thread or CPU, lane, depth, and whether it has slices; and
/// the begin, duration, name, count, key and other of each entry.
type Rows = Vec<([u64; 5], Vec<[u64; 6]>)>;

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::ZlibDecoder::new(bytes).read_to_end(&mut out).unwrap();
    out
}

/// Parses a response; returns its resolution and rows.
fn taken(bytes: &[u8]) -> (u64, Rows) {
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let head: Value = serde_json::from_slice(&unpacked(&bytes[4..4 + length])).unwrap();
    (head["resolution"].as_u64().unwrap(), rows(&head, &unpacked(&bytes[4 + length..])))
}

/// Returns the header and the rows of a page.
fn of_page(page: &[u8]) -> (Value, Rows) {
    let page = std::str::from_utf8(page).unwrap();
    let block = |id: &str| {
        let (_, rest) = page.split_once(&format!("id=\"{id}\">")).unwrap();
        unpacked(&STANDARD.decode(rest.split_once('<').unwrap().0).unwrap())
    };
    let head: Value = serde_json::from_slice(&block("head")).unwrap();
    let rows = rows(&head, &block("rows"));
    (head, rows)
}

/// Parses rows. `head`: their description; `packed`: their columns.
fn rows(head: &Value, packed: &[u8]) -> Rows {
    let mut at = 0;
    let columns: Vec<Vec<u64>> = head["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|size| {
            let part = &packed[at..at + size.as_u64().unwrap() as usize];
            at += part.len();
            let (mut numbers, mut number, mut shift) = (Vec::new(), 0_u64, 0);
            for byte in part {
                number |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    numbers.push(std::mem::take(&mut number));
                    shift = 0;
                }
            }
            numbers
        })
        .collect();
    let mut at = 0;
    let row = |row: &Value| {
        let facts = ["is_cpu", "of", "lane", "depth", "is_slices"].map(|fact| match &row[fact] {
            Value::Bool(is) => u64::from(*is),
            number => number.as_u64().unwrap(),
        });
        let (mut entries, mut begin) = (Vec::new(), 0);
        for (level, of_level) in row["levels"].as_array().unwrap().iter().enumerate() {
            for _ in 0..of_level[1].as_u64().unwrap() {
                if level == 0 {
                    begin += columns[0][at];
                    let [duration, name, count, key, other] = [1, 2, 3, 4, 6].map(|column| columns[column][at]);
                    entries.push([begin, duration, name, count, key, other]);
                }
                at += 1;
            }
        }
        (facts, entries)
    };
    head["rows"].as_array().unwrap().iter().map(row).collect()
}

/// Two threads have slices at the same time on one CPU, and messages overlap: each thread has a stack of its own on the
/// CPU, each message a lane of its own, and none is nested in that of another.
#[test]
fn slices_of_different_threads_and_lanes_are_in_different_rows() {
    let mut builder = TraceBuilder::new();
    let id = [("id", FieldType::scalar(Kind::U64))];
    let mut class = |provider: &str, name: &str| builder.class(provider, name, &id);
    let request = ["request_begin", "request_end"].map(|name| class("app", name));
    let query = ["query_begin", "query_end"].map(|name| class("app", name));
    let message = ["sent", "received"].map(|name| class("msg", name));
    let stream = builder.stream(0);
    // Begin, end, thread, classes and number of each slice.
    let slices = [
        (0, 100, 7, request, 0),
        (10, 30, 8, request, 0),
        (40, 60, 7, query, 0),
        (45, 110, 9, request, 0),
        (50, 55, 9, query, 0),
        (5, 50, 7, message, 1),
        (15, 70, 8, message, 2),
        (52, 90, 7, message, 3),
        (53, 56, 9, message, 4),
    ];
    let ends =
        slices.iter().flat_map(|&(begin, end, tid, [first, last], id)| [(begin, tid, first, id), (end, tid, last, id)]);
    let mut events: Vec<_> = ends.collect();
    events.sort_by_key(|(at, ..)| *at);
    for (at, tid, class, id) in events {
        builder.event(stream, at, 7, tid, class, &[CtfValue::U64(id)]);
    }
    let dir = tempfile::tempdir().unwrap();
    builder.finish().write(dir.path());
    let files = Arc::new(TraceFiles::open(dir.path()).unwrap());
    // Begin and duration of the slices in each row, by lane and depth, as they are above.
    let by_cpu = vec![
        ((0, 0), vec![[0, 100]]),
        ((0, 1), vec![[40, 20]]),
        ((1, 0), vec![[10, 20], [45, 65]]),
        ((1, 1), vec![[50, 5]]),
    ];
    let messages = vec![((0, 0), vec![[5, 45], [52, 38]]), ((1, 0), vec![[15, 55]]), ((2, 0), vec![[53, 3]])];
    let slices = |rows: &Rows, is_cpu: bool, of: Option<u64>| {
        let rows = rows.iter().filter(|([cpu, number, .., is_slices], entries)| {
            (*cpu == 1) == is_cpu && *is_slices == 1 && !entries.is_empty() && of.is_none_or(|of| of == *number)
        });
        let row = |([_, _, lane, depth, _], entries): &([u64; 5], Vec<[u64; 6]>)| {
            ((*lane, *depth), entries.iter().map(|entry| [entry[0], entry[1]]).collect::<Vec<_>>())
        };
        rows.map(row).collect::<Vec<_>>()
    };
    let (head, written) = of_page(&gathered(&files, &options_of(&files)));
    let lanes = |head: &Value| {
        let is_lane = |thread: &Value| thread["label"] == "msg:sent..msg:received";
        head["threads"].as_array().unwrap().iter().position(is_lane).map(|number| number as u64)
    };
    assert_eq!(slices(&written, true, None), by_cpu);
    assert_eq!(slices(&written, false, lanes(&head)), messages);
    // Own times and call trees: no message is in another one, no request in that of another thread.
    let node = |node: &Value| {
        let number = |index: usize| node[index].as_u64().unwrap();
        let name = head["names"][number(1) as usize].as_str().unwrap();
        (number(0), name.to_owned(), [2, 3, 4].map(number))
    };
    let nodes: Vec<_> = head["nodes"].as_array().unwrap().iter().map(node).collect();
    let expected = [
        (0, "app:request".into(), [3, 185, 160]),
        (1, "app:query".into(), [2, 25, 25]),
        (0, "msg:sent..msg:received".into(), [4, 141, 141]),
    ];
    assert_eq!(nodes, expected);

    let served = served(&files, MUCH, 8 << 20, false);
    let part = |is_cpu| taken(&served.part(Part::Time { begin: 0, end: 200, is_cpu, step: 1 }).unwrap()).1;
    let (head, shown) = of_page(served.page());
    for rows in [shown.clone(), part(true)] {
        assert_eq!(slices(&rows, true, None), by_cpu);
    }
    for rows in [shown, part(false)] {
        assert_eq!(slices(&rows, false, lanes(&head)), messages);
    }
}

/// Slices whose begins and ends no field joins are named and hatched, the others are neither.
#[test]
fn slices_that_are_not_certain_are_drawn_so() {
    let files = files(40);
    let found = FoundKey { name: "app:query".into(), fields: Vec::new(), alone: 9, alone_by_thread: 9 };
    let page = gathered(&files, &Options { found: vec![found], ..options_of(&files) });
    let (head, _) = of_page(&page);
    let names: Vec<_> = head["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let doubtful: Vec<_> =
        head["doubtful"].as_array().unwrap().iter().map(|number| names[number.as_u64().unwrap() as usize]).collect();
    assert_eq!(doubtful, ["app:query (not certain)"]);
    let Some(program) = browser::program() else { return };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doubtful.html");
    std::fs::write(&path, page).unwrap();
    let browser = &mut Browser::start(&program);
    super::open(browser, &path, 1500);
    browser.evaluate("dormouseReport.timeline.show(0, 100000)");
    drawn(browser);
    // The number of colours along the lower edge of a slice.
    let edge = |browser: &mut Browser, name: &str| {
        let (x, y) = super::place(browser, name);
        browser.evaluate(&format!("(() => {{ const {{ timeline: {{ pens, state }} }} = dormouseReport, box = document.getElementById('timeline').getBoundingClientRect();
            const of = [...state.placed.values()].find(({{ y: top, height }}) => Math.abs(box.top + 24 + top - state.top + height / 2 - {y}) < 1);
            const data = pens[0].getImageData({x} - box.left - 20, 24 + of.y - state.top + of.height - 3, 40, 1).data;
            const colors = new Set(); for (let at = 0; at < data.length; at += 4) colors.add(data.slice(at, at + 3).join());
            return colors.size; }})()"))
    };
    assert!(edge(browser, "app:query (not certain)").as_u64() > Some(1));
    assert_eq!(edge(browser, "app:request"), 1);
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// With little memory, items that are read again are the same as those that much memory keeps.
#[test]
fn items_read_again_equal_the_first_reading() {
    let files = files(20_000);
    let [much, little] = [MUCH, LITTLE].map(|memory| served(&files, memory, 8 << 20, false));
    assert_eq!(much.resolution(), 0);
    assert!(little.resolution() > 200_000, "{}", little.resolution());
    assert_eq!(much.written.slices, little.written.slices);
    assert_eq!((much.written.slices, much.written.instants), (60_002, 20_002));
    let step = 1;
    let mut random = dormouse_testing::random(5);
    let mut items = 0;
    for turn in 0..60 {
        let begin = random(20_000) as u64 * 200_000 + random(200_000) as u64;
        let (end, is_cpu) = (begin + random(20_000_000) as u64, turn % 2 == 0);
        let part = Part::Time { begin, end, is_cpu, step };
        let [(_, expected), found] = [&much, &little].map(|served| taken(&served.part(part).unwrap()));
        assert_eq!(found, (0, expected.clone()), "{part:?}");
        for (row, entries) in &expected {
            for entry in entries.iter().take(2) {
                items += 1;
                let [begin, duration, name, _, key, other] = *entry;
                let thread = if is_cpu { other - 1 } else { row[1] } as u32;
                let asked = Asked { thread, name: name as u32, is_slice: row[4] == 1, begin, duration };
                let [expected, found] = [&much, &little].map(|served| served.fields(&asked).unwrap());
                assert!(expected.is_some() && expected == found, "{asked:?}: {expected:?} {found:?}");
                let fields = String::from_utf8(found.unwrap()).unwrap();
                let events = fields.matches("\0id\0").count();
                assert_eq!(events, if asked.is_slice { 2 } else { 1 }, "{fields}");
                let part = Part::Key { key: key as u32, is_cpu, begin, end: begin + duration };
                let [(_, expected), (_, found)] = [&much, &little].map(|served| taken(&served.part(part).unwrap()));
                assert_eq!(expected, found);
            }
        }
    }
    assert!(items > 300, "{items}");
    // The message: its slice and both of its events, starting from each of them.
    let of_key = |served: &Served, begin, end, is_cpu| {
        let (_, rows) = taken(&served.part(Part::Time { begin, end, is_cpu, step }).unwrap());
        let key = rows.iter().flat_map(|(_, entries)| entries).map(|entry| entry[4]).max().unwrap() as u32;
        let (_, rows) = taken(&served.part(Part::Key { key, is_cpu, begin, end }).unwrap());
        rows.into_iter().flat_map(|(_, entries)| entries).map(|entry| (entry[0], entry[1])).collect::<BTreeSet<_>>()
    };
    let expected = BTreeSet::from([(1_005_000, 0), (1_005_000, 1_000_000), (2_005_000, 0)]);
    for (begin, end) in [(1_005_000, 1_005_000), (2_005_000, 2_005_000), (1_005_000, 2_005_000)] {
        for served in [&much, &little] {
            assert_eq!(of_key(served, begin, end, false), expected);
            // The slice is on a lane, and lanes are on no CPU.
            let instants: BTreeSet<_> = expected.iter().copied().filter(|(_, duration)| *duration == 0).collect();
            assert_eq!(of_key(served, begin, end, true), instants);
        }
    }
    // A request that encloses the part belongs to it, like the one that lasts for the whole time.
    let part = Part::Time { begin: 295_000, end: 296_000, is_cpu: false, step };
    let (_, rows) = taken(&little.part(part).unwrap());
    assert_eq!(rows.iter().map(|(_, entries)| entries.len()).sum::<usize>(), 2);
    // A request for everything exceeds the limit: neighbours are merged, and no item is missing.
    let all = Part::Time { begin: 0, end: u64::MAX, is_cpu: false, step: 1 };
    let (_, rows) = taken(&little.part(all).unwrap());
    assert_eq!(rows.iter().flat_map(|(_, entries)| entries).map(|entry| entry[3]).sum::<u64>(), 80_004);
}

/// Calls with one event, at their return, are drawn from their begin, in the report and in both readings of a served page. On a
/// CPU no two of them overlap in one row, although they come in the order of their returns.
#[test]
fn calls_are_drawn_from_their_begin_to_their_return() {
    let mut random = dormouse_testing::random(17);
    let mut builder = TraceBuilder::new();
    let read = [("fd", FieldType::scalar(Kind::I32)), ("duration_ns", FieldType::scalar(Kind::U64))];
    let read = builder.class("libc", "read", &read);
    let serve = ["serve_begin", "serve_end"].map(|name| builder.class("app", name, &[]));
    // Classes that the options name.
    ["sent", "received"]
        .iter()
        .for_each(|name| _ = builder.class("msg", name, &[("id", FieldType::scalar(Kind::U64))]));
    let cpus = [0, 1].map(|cpu| builder.stream(cpu));
    // Time, thread, class, and duration of each event; begin and duration of each call, by thread.
    let (mut events, mut calls) = (vec![(0, 7, serve[0], 0), (1, 7, serve[1], 0)], [Vec::new(), Vec::new()]);
    for thread in [0, 1] {
        let (mut at, tid) = (10 + thread as u64, 7 + thread as u32);
        for number in 0..2500 {
            // No two events of a thread have one time: they can be in two streams.
            at += 1 + random(3000) as u64;
            if number % 10 == 0 {
                events.push((at, tid, serve[0], 0));
            }
            let longest = if random(100) == 0 { 400_000 } else { 2000 };
            let duration = 1 + random(longest) as u64;
            calls[thread].push((at, duration));
            at += duration;
            events.push((at, tid, read, duration));
            if number % 10 == 9 {
                at += 1;
                events.push((at, tid, serve[1], 0));
            }
        }
    }
    events.sort_by_key(|(at, ..)| *at);
    for (index, (at, tid, class, duration)) in events.into_iter().enumerate() {
        let values = [CtfValue::I32(3), CtfValue::U64(duration)];
        let values = if class == read { &values[..] } else { &[] };
        let cpu = cpus[random(2)];
        builder.event(cpu, at, 7, tid, class, values);
        if index % 500 == 499 {
            cpus.iter().for_each(|cpu| builder.packet(*cpu, 0, 0));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    builder.finish().write(dir.path());
    let files = Arc::new(TraceFiles::open(dir.path()).unwrap());
    let is_nested =
        |rows: &Rows| rows.iter().all(|(_, entries)| entries.windows(2).all(|two| two[0][0] + two[0][1] <= two[1][0]));
    let (head, rows) = of_page(&gathered(&files, &options_of(&files)));
    let name = head["names"].as_array().unwrap().iter().position(|name| name == "libc:read").unwrap() as u64;
    let of_calls = |rows: &Rows, is_cpu: u64| -> BTreeSet<(u64, u64, u64)> {
        let rows = rows.iter().filter(|(row, _)| row[0] == is_cpu && row[4] == 1);
        let entries = rows.flat_map(|(row, entries)| entries.iter().map(|entry| (row[1], entry)));
        let named = entries.filter(|(_, entry)| entry[2] == name && entry[3] == 1);
        named.map(|(of, entry)| (if is_cpu == 1 { entry[5] - 1 } else { of }, entry[0], entry[1])).collect()
    };
    // The numbers of the threads in the page.
    let number = |tid: u64| head["threads"].as_array().unwrap().iter().position(|of| of["tid"] == tid).unwrap() as u64;
    let all = |thread: usize| calls[thread].iter().map(move |(begin, duration)| (thread, *begin, *duration));
    let expected: BTreeSet<(u64, u64, u64)> =
        all(0).chain(all(1)).map(|(thread, begin, duration)| (number(7 + thread as u64), begin, duration)).collect();
    assert!(is_nested(&rows));
    assert!([0, 1].into_iter().all(|is_cpu| of_calls(&rows, is_cpu) == expected));
    let [much, little] = [MUCH, LITTLE].map(|memory| served(&files, memory, 8 << 20, false));
    assert!(much.resolution() == 0 && little.resolution() > 0, "{}", little.resolution());
    let span = calls.iter().flatten().map(|(begin, duration)| begin + duration).max().unwrap();
    for turn in 0..60 {
        let begin = random(span as usize) as u64;
        let (end, is_cpu) = (begin + random(2_000_000) as u64, turn % 2 == 0);
        let part = Part::Time { begin, end, is_cpu, step: 1 };
        let [found, again] = [&much, &little].map(|served| taken(&served.part(part).unwrap()).1);
        assert_eq!(found, again, "{part:?}");
        assert!(is_nested(&found), "{part:?}");
        let within = |(_, at, duration): &&(u64, u64, u64)| *at <= end && at + duration >= begin;
        let expected: BTreeSet<_> = expected.iter().filter(within).copied().collect();
        assert_eq!(of_calls(&found, u64::from(is_cpu)), expected, "{part:?}");
        for (thread, begin, duration) in expected.iter().take(2).copied() {
            let asked = Asked { thread: thread as u32, name: name as u32, is_slice: true, begin, duration };
            let [fields, again] = [&much, &little].map(|served| served.fields(&asked).unwrap());
            assert!(fields.is_some() && fields == again, "{asked:?}");
            let fields = String::from_utf8(fields.unwrap()).unwrap();
            assert_eq!(fields.matches("\0fd\0").count(), 1, "{fields}");
            assert!(!fields.contains("no end"), "{fields}");
        }
    }
}

/// A search finds the items that have the value, whether they are kept or read again.
#[test]
fn items_are_found_by_the_values_of_their_fields() {
    let files = files(20_000);
    for memory in [MUCH, LITTLE] {
        let served = served(&files, memory, 8 << 20, false);
        let found = |text: &str, is_cpu| {
            let bytes = served.find(text, is_cpu).unwrap();
            let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
            let head: Value = serde_json::from_slice(&unpacked(&bytes[4..4 + length])).unwrap();
            let (_, rows) = taken(&bytes);
            let all = rows.into_iter().flat_map(|(_, entries)| entries).map(|entry| (entry[0], entry[1]));
            (head["found"].as_u64().unwrap(), all.collect::<BTreeSet<_>>())
        };
        // The request, its queries and its tick.
        let request = [(1_000_000, 100_000), (1_010_000, 20_000), (1_040_000, 30_005), (1_150_000, 0)];
        for is_cpu in [false, true] {
            assert_eq!(found("ID=1000000", is_cpu), (4, BTreeSet::from(request)));
            assert_eq!(found("id=100000", is_cpu), (0, BTreeSet::new()));
            assert_eq!(found("id>=1000000 id<=1000000", is_cpu), (4, BTreeSet::from(request)));
            assert_eq!(found("id>999999 id!=1000000 id<1200000", is_cpu).0, 0);
        }
        // The message is on a lane, which is on no CPU.
        let message = BTreeSet::from([(1_005_000, 0), (1_005_000, 1_000_000), (2_005_000, 0)]);
        assert_eq!(found("id=55", false), (3, message.clone()));
        assert_eq!(found("id=55", true).0, 2);
        // All items have this value: those that do not fit are counted.
        let (count, shown) = found("ONERROR", false);
        assert_eq!(count, served.written.slices + served.written.instants);
        assert!(shown.len() > 10_000 && shown.len() <= 20_000, "{}", shown.len());
        // The page itself knows what has this name.
        assert_eq!(found("request", false).0, 0);
    }
}

#[test]
fn a_browser_requests_what_it_shows() {
    let Some(program) = browser::program() else { return };
    let again = || -> Result<Served, String> { Ok(small(20_000, false)) };
    let running = Running::new(small(20_000, true), Some(Box::new(again)));
    let resolution = "dormouseReport.report.left_out.resolution_ns";
    let browser = &mut Browser::start(&program);
    for (width, scheme) in [(500, "dark"), (3000, "light"), (1500, "dark")] {
        browser.emulate(width, 900, scheme);
        match width {
            500 => browser.open_url(&running.url),
            _ => drop(browser.evaluate("0")),
        }
        browser.wait("document.documentElement.dataset.ready === ''");
        drawn(browser);
        assert_eq!(browser.evaluate(super::FAULTS), json!([]), "{width} {scheme}");
        let picture =
            std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("served-{width}-{scheme}.png"));
        std::fs::write(&picture, STANDARD.decode(browser.picture("png")).unwrap()).unwrap();
    }
    assert!(browser.evaluate(resolution).as_u64() > Some(2_000_000 / 1500), "{}", browser.evaluate(resolution));
    // The page does not have the fields: it offers no labels and no table by field. The program searches them.
    assert_eq!(browser.evaluate("document.getElementById('labelling').hidden"), true);
    for (text, count) in [("id=200000000", "4"), ("query", "40000"), ("nothing of this", "none")] {
        assert_eq!(super::search(browser, text), count, "{text}");
    }
    super::search(browser, "id=200000000");
    let hits = "(() => { const { report, timeline: { state } } = dormouseReport; return report.rows.filter((row) => !row.is_cpu).map((row) => { const { from, to } = row.levels[0]; let sum = 0; for (let at = from; at < to; at++) if (state.search.hits[at]) { sum++; if (report.begin[at] > 200150000 || report.begin[at] + report.duration[at] < 200000000) return 'elsewhere'; } return sum > 0; }); })()";
    // They are in the rows of ticks, requests and queries of thread 7.
    assert_eq!(browser.evaluate(hits), json!([true, true, true, false, false, false]));
    super::search(browser, "");
    browser.press("6");
    let told = browser.evaluate("document.getElementById('view').textContent");
    assert!(told.as_str().is_some_and(|told| told.contains("The fields stay with the program")), "{told}");
    // Merged items are not reported as left out, since they are fetched.
    let notes = browser.evaluate("document.getElementById('notes').textContent");
    assert!(!notes.as_str().unwrap().contains("drawn as one"), "{notes}");
    browser.evaluate("dormouseReport.timeline.show(1000 * 200000, 10 * 200000 - 1)");
    browser.wait("dormouseReport.report.part?.begin <= 1000 * 200000");
    let seen = "(() => { const { report, timeline: { state } } = dormouseReport; let sum = 0;
      for (const row of report.shown) if (!row.is_cpu) for (let at = row.levels[0].from; at < row.levels[0].to; at++) {
        if (report.count[at] !== 1) return 'merged';
        if (report.begin[at] + report.duration[at] >= state.begin && report.begin[at] <= state.begin + state.span) sum++; }
      return sum; })()";
    // Ten requests with two queries and a tick each, and the request that lasts for the whole time.
    assert_eq!(browser.evaluate(seen), 41);
    let (x, y) = browser.evaluate("(() => { const { report, timeline } = dormouseReport, { state } = timeline;
       for (const [index, { y, height }] of state.placed) { const row = report.shown[index];
         for (let at = row.levels[0].from; at < row.levels[0].to; at++) { if (report.names[report.name[at]] !== 'app:query' || report.begin[at] < state.begin) continue;
           const box = document.getElementById('timeline').getBoundingClientRect();
           return [box.left + state.gutter + (report.begin[at] + report.duration[at] / 2 - state.begin) / state.span * (state.width - state.gutter), box.top + 24 + y - state.top + height / 2]; } } })()")
        .as_array().map(|at| (at[0].as_f64().unwrap(), at[1].as_f64().unwrap())).unwrap();
    browser.click(x, y);
    assert_eq!(browser.evaluate(SELECTED), json!(["app:query", 1000 * 200_000 + 10_000]));
    browser.wait("document.getElementById('view').textContent.includes('200000000')");
    browser.press("]");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:query", 1000 * 200_000 + 40_000]));
    browser.press("p");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 1000 * 200_000]));
    browser.press("c");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:query", 1000 * 200_000 + 40_000]));
    // One of the slowest messages is in the page; other items with its key are requested.
    browser.press("4");
    browser.evaluate("document.querySelector('#view tbody tr:nth-child(2) button').click()");
    assert_eq!(browser.evaluate(SELECTED), json!(["msg:sent..msg:received", 1_005_000]));
    browser.wait("dormouseReport.timeline.state.flow.length === 3");
    browser.press("k");
    assert_eq!(browser.evaluate(SELECTED), json!(["msg:received", 2_005_000]));
    // Requests until older ones are dropped: the selected item stays.
    let fetch = "(async () => { const { report, timeline } = dormouseReport; for (let turn = 0; turn < 20; turn++) await timeline.asked({ begin: 0, end: 4000000000, step: 1, cpu: 0 }); return report.forgotten; })()";
    assert!(browser.evaluate(fetch).as_u64() > Some(0));
    assert_eq!(browser.evaluate(SELECTED), json!(["msg:received", 2_005_000]));
    // Grouped by CPU, at other times.
    browser.press("g");
    for turn in [1, 7, 3] {
        browser.evaluate(&format!("dormouseReport.timeline.show({turn} * 90000000, 5000000)"));
        browser.wait(&format!("dormouseReport.report.part?.by === 'cpu' && dormouseReport.report.part.begin <= {turn} * 90000000 && dormouseReport.report.part.end >= {turn} * 90000000 + 5000000"));
    }
    assert_eq!(browser.script_errors(), [""; 0]);
    assert_eq!(browser.evaluate("[window.hacked ?? null, document.images.length]"), json!([null, 0]));
    // Reads on: the page reloads with the current contents.
    browser.loads(|browser| drop(browser.evaluate("document.getElementById('again').click()")));
    browser.wait("document.documentElement.dataset.ready === '' && document.getElementById('again').hidden");
    let host = running.host().to_owned();
    assert!(
        browser.requests().iter().all(|url| url.starts_with(&format!("http://{host}/"))),
        "{:?}",
        browser.requests()
    );
    // The program ends: the page reports it at its next request.
    drop(running);
    browser.press("4");
    browser.evaluate("document.querySelector('#view tbody tr:nth-child(2) button').click()");
    browser.wait("!document.getElementById('failed').hidden");
}
