//! The same contents on loopback: what a browser asks for, and what nobody gets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dormouse_report::serve::{Again, Ended, Server};
use dormouse_report::{Part, Served};
use dormouse_testing::browser::{self, Browser};
use serde_json::{Value, json};

use super::{HOSTILE, Maker, SELECTED, drawn};

/// A server that answers until it is dropped.
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

    /// Sends bytes as they are, and gives what comes.
    fn send(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.host()).unwrap();
        let mut answer = Vec::new();
        // It can be refused before all of it is sent, and then the connection is reset.
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

/// A page of so many requests, as `Maker` makes them, with a loss.
fn made(count: i64) -> Maker {
    let mut maker = Maker::new();
    maker.requests(count);
    maker.lose();
    maker
}

/// Its page has so little room that neighbours are merged.
fn small(count: i64, is_growing: bool) -> Served {
    let size = |count: i64| Served::new(made(count).contents, 24 << 20).unwrap().written.size_bytes;
    let mut maker = made(count);
    maker.contents.is_growing = is_growing;
    Served::new(maker.contents, size(1) + (size(count) - size(1)) / 3).unwrap()
}

#[test]
fn nothing_is_served_beyond_the_token() {
    let running = Running::new(Served::new(made(10).contents, 1 << 20).unwrap(), None);
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
        "/part?key=1&cpu=0".into(),
        format!("/{wrong}/"),
        format!("/{without}/"),
        format!("/{one_time}"),
        format!("/{one_time}/part?key=1&cpu=0"),
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
    // None of these has used it up, but the one with an empty query, which is the same address.
    let running = Running::new(Served::new(made(10).contents, 1 << 20).unwrap(), None);
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
    // Whoever says nothing keeps nobody waiting.
    let _silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&host).unwrap()).collect();

    let (head, body) = running.get(&format!("/{one_time}/"));
    assert!(head.starts_with("HTTP/1.1 303 ") && !body.starts_with(b"<"), "{head}");
    let target = head.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().to_owned();
    assert!(target.len() == 34 && !target.contains(&one_time), "{target}");
    // Once.
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
        ("part?key=1&cpu=0".into(), "200"),
        ("part?key=4294967295&cpu=0".into(), "200"),
        ("fields?number=1".into(), "200"),
        ("fields?number=0".into(), "404"),
        ("fields?number=4294967296".into(), "404"),
        ("fields?number=1&number=2".into(), "404"),
        ("fields?number=-1".into(), "404"),
        ("fields?number=".into(), "404"),
        ("part?begin=0".into(), "404"),
        ("part?begin=18446744073709551616&end=1&step=1&cpu=0".into(), "404"),
        ("part".into(), "404"),
        ("again".into(), "404"),
        ("../etc/passwd".into(), "404"),
        ("page?x=ä".into(), "404"),
    ] {
        let (head, _) = running.get(&format!("{target}{rest}"));
        let status = head.split(' ').nth(1).unwrap_or_default();
        assert!(status == expected || (rest.contains('ä') && status == "400"), "{rest}: {head}");
    }
}

/// However far one zooms in: each item is there, once by thread and once by CPU, and has its fields.
#[test]
fn parts_have_all_items() {
    let served = small(20_000, false);
    assert!(served.written.left_out.resolution_ns > 0);
    assert_eq!(served.written.left_out.fields, 0);
    let head = |part: Part| -> Value {
        let bytes = served.part(part);
        let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        let mut json = Vec::new();
        flate2::read::ZlibDecoder::new(&bytes[4..4 + length]).read_to_end(&mut json).unwrap();
        serde_json::from_slice(&json).unwrap()
    };
    let count = |head: &Value| -> u64 {
        head["rows"].as_array().unwrap().iter().map(|row| row["levels"][0][1].as_u64().unwrap()).sum()
    };
    for is_cpu in [false, true] {
        // Ten requests with two queries and a tick each, and the one beside them.
        let part = head(Part::Time { begin: 0, end: 10 * 200_000 - 1, is_cpu, step: 1 });
        assert_eq!((count(&part), &part["resolution"]), (41, &json!(0)));
        // A request that lies around the time is part of it.
        let part = head(Part::Time { begin: 200_000 + 95_000, end: 200_000 + 96_000, is_cpu, step: 1 });
        assert_eq!(count(&part), 1);
        let all = head(Part::Time { begin: 0, end: u64::MAX, is_cpu, step: 1000 });
        assert_eq!((count(&all), &all["resolution"]), (80_001, &json!(0)));
        assert_eq!(count(&head(Part::Key { key: 1, is_cpu })), 2);
        assert_eq!(count(&head(Part::Key { key: 0, is_cpu })), 0);
    }
    let fields = served.fields(80_001).unwrap();
    assert!(String::from_utf8(fields).unwrap().starts_with("\u{1}app:begin\0id\0"));
}

#[test]
fn a_browser_asks_for_what_it_shows() {
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
    // What is merged is not left out: it is fetched.
    let notes = browser.evaluate("document.getElementById('notes').textContent");
    assert!(!notes.as_str().unwrap().contains("drawn as one"), "{notes}");
    browser.evaluate("dormouseReport.timeline.show(1000 * 200000, 10 * 200000 - 1)");
    browser.wait("dormouseReport.report.part?.begin <= 1000 * 200000");
    let seen = "(() => { const { report, timeline: { state } } = dormouseReport; let sum = 0;
      for (const row of report.shown) if (!row.is_cpu) for (let at = row.levels[0].from; at < row.levels[0].to; at++) {
        if (report.count[at] !== 1) return 'merged';
        if (report.begin[at] + report.duration[at] >= state.begin && report.begin[at] <= state.begin + state.span) sum++; }
      return sum; })()";
    assert_eq!(browser.evaluate(seen), 40);
    let (x, y) = browser.evaluate("(() => { const { report, timeline } = dormouseReport, { state } = timeline;
       for (const [index, { y, height }] of state.placed) { const row = report.shown[index];
         for (let at = row.levels[0].from; at < row.levels[0].to; at++) { if (report.names[report.name[at]] !== 'app:query' || report.begin[at] < state.begin) continue;
           const box = document.getElementById('timeline').getBoundingClientRect();
           return [box.left + state.gutter + (report.begin[at] + report.duration[at] / 2 - state.begin) / state.span * (state.width - state.gutter), box.top + 24 + y - state.top + height / 2]; } } })()")
        .as_array().map(|at| (at[0].as_f64().unwrap(), at[1].as_f64().unwrap())).unwrap();
    browser.click(x, y);
    assert_eq!(browser.evaluate(SELECTED), json!(["app:query", 1000 * 200_000 + 10_000]));
    browser.wait("document.getElementById('view').textContent.includes('1700000000200010000')");
    browser.press("]");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:query", 1000 * 200_000 + 40_000]));
    browser.press("p");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 1000 * 200_000]));
    browser.press("c");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:query", 1000 * 200_000 + 40_000]));
    // The slowest is in the page; the other with its key is asked for.
    browser.press("4");
    browser.evaluate("document.querySelector('#view tbody tr button').click()");
    assert_eq!(browser.evaluate(SELECTED), json!([HOSTILE, 1_005_000]));
    browser.wait("dormouseReport.timeline.state.flow.length === 2");
    browser.press("k");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 1_000_000]));
    // So often that what was asked for before has to be forgotten: what is selected stays.
    let fetch = "(async () => { const { report, timeline } = dormouseReport; for (let turn = 0; turn < 20; turn++) await timeline.asked({ begin: 0, end: 4000000000, step: 1, cpu: 0 }); return report.forgotten; })()";
    assert!(browser.evaluate(fetch).as_u64() > Some(0));
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 1_000_000]));
    // By CPU, elsewhere.
    browser.press("g");
    for turn in [1, 7, 3] {
        browser.evaluate(&format!("dormouseReport.timeline.show({turn} * 90000000, 5000000)"));
        browser.wait(&format!("dormouseReport.report.part?.isByCpu && dormouseReport.report.part.begin <= {turn} * 90000000 && dormouseReport.report.part.end >= {turn} * 90000000 + 5000000"));
    }
    assert_eq!(browser.script_errors(), [""; 0]);
    assert_eq!(browser.evaluate("[window.hacked ?? null, document.images.length]"), json!([null, 0]));
    // Read on: the page comes again, with what is there now.
    browser.loads(|browser| drop(browser.evaluate("document.getElementById('again').click()")));
    browser.wait("document.documentElement.dataset.ready === '' && document.getElementById('again').hidden");
    let host = running.host().to_owned();
    assert!(
        browser.requests().iter().all(|url| url.starts_with(&format!("http://{host}/"))),
        "{:?}",
        browser.requests()
    );
    // The program ends: the page says so when it needs it.
    drop(running);
    browser.press("4");
    browser.evaluate("document.querySelector('#view tbody tr button').click()");
    browser.wait("!document.getElementById('failed').hidden");
}
