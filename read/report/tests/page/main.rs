//! Reports of made-up contents in a browser: clicks, keys, sizes, hostile names.
//!
//! Tests that need Chromium are skipped without it. The pages stay in `target/tmp` for inspection.

mod served;

use std::path::PathBuf;

use dormouse_report::{Contents, Fields, Item, Kind, Loss, Process, Thread, Written};
use dormouse_testing::browser::{self, Browser};
use serde_json::{Value, json};

/// A name that would run a script if it were not treated as text.
const HOSTILE: &str = "</script><img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>";

/// Makes contents: one thread has requests with nested queries, and instants; the other one has none.
struct Maker {
    contents: Contents,
    names: [u32; 4],
    threads: [u32; 2],
    cpus: [u32; 2],
}

impl Maker {
    fn new() -> Maker {
        let mut contents = Contents::default();
        contents.title = format!("made up {HOSTILE}");
        contents.notes.push(format!("a note {HOSTILE}"));
        let names = ["app:request", "app:query", "app:tick", HOSTILE].map(|name| contents.add_name(name));
        let process = contents.process(Process { name: HOSTILE.into(), pid: Some(7) });
        let threads = [7, 8].map(|tid| contents.thread(Thread { process, tid: Some(tid), label: None, name: None }));
        let cpus = [0, 1].map(|cpu| contents.cpu(Some(cpu)));
        Maker { contents, names, threads, cpus }
    }

    fn put(&mut self, kind: Kind, begin_ns: i64, duration_ns: u64, name: usize, thread: usize, key: u32) {
        let mut fields = Fields::default();
        fields.event("app:begin");
        fields.put("id", &begin_ns.to_string());
        fields.put(HOSTILE, HOSTILE);
        let fields = self.contents.fields(&fields);
        let (name, cpu, thread) = (self.names[name], self.cpus[thread], self.threads[thread]);
        self.contents.item(Item { kind, begin_ns, duration_ns, name, thread, lane: None, cpu, key, fields });
        self.contents.events += 1;
    }

    /// Adds requests of 100 µs, one every 200 µs, with two nested queries. Request 5 takes ten times as long on the
    /// other thread, with the same key.
    fn requests(&mut self, count: i64) {
        for number in 0..count {
            let begin = 1_700_000_000_000_000_000 + number * 200_000;
            self.put(Kind::Slice, begin, 100_000, 0, 0, u32::from(number == 5));
            self.put(Kind::Slice, begin + 10_000, 20_000, 1, 0, 0);
            self.put(Kind::Slice, begin + 40_000, 30_000 + number as u64 % 7, 1, 0, 0);
            self.put(Kind::Instant, begin + 150_000, 0, 2, 0, 0);
            if number == 5 {
                self.put(Kind::Slice, begin + 5_000, 1_000_000, 3, 1, 1);
            }
        }
    }

    fn lose(&mut self) {
        let begin = 1_700_000_000_000_000_000;
        self.contents.loss(Loss {
            begin_ns: Some(begin + 1_000_000),
            end_ns: Some(begin + 2_000_000),
            events: 12_345,
            cpu: Some(1),
            stream: HOSTILE.into(),
            text: "tells of 12345 discarded events".into(),
        });
    }

    fn write(self, name: &str, size_max: u64) -> (PathBuf, Written) {
        let mut page = Vec::new();
        let written = self.contents.finish(size_max, &mut page).unwrap();
        assert_eq!(page.len() as u64, written.size_bytes);
        let text = std::str::from_utf8(&page).unwrap();
        assert!(!text.contains("hacked"), "a text of the trace is in the page as it is");
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, page).unwrap();
        (path, written)
    }
}

/// Makes a page of `count` requests with a loss.
fn made(name: &str, count: i64, size_max: u64) -> (PathBuf, Written) {
    let mut maker = Maker::new();
    maker.requests(count);
    maker.lose();
    maker.write(name, size_max)
}

fn open(browser: &mut Browser, page: &std::path::Path, width: u32) {
    browser.emulate(width, 900, "light");
    browser.open(page);
    browser.wait("document.documentElement.dataset.ready === ''");
    // The second of the two next frames shows everything that was requested.
    drawn(browser);
}

fn drawn(browser: &mut Browser) {
    browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
}

/// Returns the position on the screen of the first or the longest entry with this name.
fn place(browser: &mut Browser, name: &str) -> (f64, f64) {
    let script = format!(
        "(() => {{ const {{ report, timeline }} = dormouseReport, {{ state }} = timeline;
           for (const [, {{ row, y, height }}] of state.placed) {{
             for (let at = row.levels[0].from; at < row.levels[0].to; at++) {{
               if (report.names[report.name[at]] !== {name:?}) continue;
               const middle = report.begin[at] + report.duration[at] / 2;
               const box = document.getElementById('timeline').getBoundingClientRect();
               return [box.left + state.gutter + (middle - state.begin) / state.span * (state.width - state.gutter), box.top + 24 + y - state.top + height / 2];
             }} }} }})()"
    );
    let at = browser.evaluate(&script);
    (at[0].as_f64().expect("it is there"), at[1].as_f64().expect("it is there"))
}

const SELECTED: &str = "(() => { const { report, timeline } = dormouseReport, one = timeline.state.selected; return one ? [report.names[report.name[one.at]], report.begin[one.at]] : null; })()";
const VIEW: &str = "(() => { const { begin, span } = dormouseReport.timeline.view; return [begin, span]; })()";

#[test]
fn clicks_and_keys_go_from_one_item_to_the_next() {
    let Some(program) = browser::program() else { return };
    let (page, written) = made("clicks.html", 20, 24 << 20);
    assert_eq!((written.slices, written.instants), (61, 20));
    assert_eq!(written.left_out, dormouse_report::LeftOut::default());
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let whole = browser.evaluate(VIEW);

    let (x, y) = place(browser, "app:request");
    browser.click(x, y);
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 0]));
    browser.wait("document.querySelectorAll('#view dt').length > 5 && document.getElementById('view').textContent.includes('1700000000000000000')");
    let shown = browser.evaluate("document.getElementById('view').textContent");
    let shown = shown.as_str().unwrap();
    assert!(
        shown.contains("100.0 µs") && shown.contains("During it: 2 items") && shown.contains("</script><img"),
        "{shown}"
    );
    browser.press("]");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 200_000]));
    browser.press("c");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:query", 240_000]));
    browser.press("p");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 200_000]));
    browser.press("[");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 0]));
    // Selects the longest item of a name, then the other item with its key.
    browser.press("Escape");
    assert_eq!(browser.evaluate(SELECTED), Value::Null);
    browser.press("2");
    browser.evaluate("document.querySelector('#view tbody tr button').click()");
    assert_eq!(browser.evaluate(SELECTED)[0], "app:request");
    browser.press("4");
    browser.evaluate("document.querySelector('#view tbody tr button').click()");
    assert_eq!(browser.evaluate(SELECTED), json!([HOSTILE, 1_005_000]));
    browser.press("k");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 1_000_000]));
    // The selection stays when rows are grouped by CPU.
    browser.press("g");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", 1_000_000]));
    assert_eq!(browser.evaluate("dormouseReport.timeline.view.by"), "cpu");
    browser.press("g");

    browser.press("Home");
    assert_eq!(browser.evaluate(VIEW), whole);
    let span = |browser: &mut Browser| browser.evaluate(VIEW)[1].as_f64().unwrap();
    for (key, is_shorter) in [("w", true), ("s", false), ("+", true), ("-", false)] {
        let before = span(browser);
        browser.press(key);
        assert_eq!(span(browser) < before, is_shorter, "{key}");
    }
    browser.press("w");
    for (key, sign) in [("d", 1.0), ("a", -1.0), ("ArrowRight", 1.0), ("ArrowLeft", -1.0)] {
        let before = browser.evaluate(VIEW)[0].as_f64().unwrap();
        browser.press(key);
        let moved = browser.evaluate(VIEW)[0].as_f64().unwrap() - before;
        assert!(moved * sign > 0.0, "{key}: {moved}");
    }
    browser.press("Home");
    let before = span(browser);
    browser.wheel(900.0, 300.0, -100.0);
    browser.wait(&format!("dormouseReport.timeline.view.span < {before}"));

    browser.press("/");
    browser.call("Input.insertText", json!({ "text": "tick" }));
    assert_eq!(browser.evaluate("document.getElementById('matches').textContent"), "20");
    browser.press("Enter");
    assert_eq!(browser.evaluate(SELECTED)[0], "app:tick");
    browser.evaluate("document.getElementById('scroller').focus()");
    let first = browser.evaluate(SELECTED);
    browser.press("n");
    assert_ne!(browser.evaluate(SELECTED), first);
    browser.press("N");
    assert_eq!(browser.evaluate(SELECTED), first);

    browser.press("?");
    assert_eq!(browser.evaluate("document.getElementById('keys').open"), true);
    browser.press("Escape");
    browser.wait("!document.getElementById('keys').open");
    browser.press("t");
    assert_eq!(browser.evaluate("document.documentElement.dataset.shown"), "dark");
    for tab in ["1", "2", "3", "4", "5", "6"] {
        browser.press(tab);
        drawn(browser);
        let text = browser.evaluate("document.getElementById('view').children.length");
        assert!(text.as_u64() > Some(0), "view {tab}");
    }
    assert_eq!(browser.evaluate("window.hacked"), Value::Null);
    assert_eq!(browser.evaluate("document.images.length"), 0);
    assert_eq!(browser.script_errors(), [""; 0]);
    let requests = browser.requests();
    assert_eq!(requests.len(), 1, "only the page itself is loaded: {requests:?}");
}

/// A slice of the page below, as it was made.
struct Tagged {
    begin: u64,
    duration: u64,
    endpoint: &'static str,
    status: u64,
    thread: usize,
}

/// Makes a page of requests with a field at their begin and one at their end, on two threads. Returns what it has.
fn tagged(name: &str, count: u64) -> (PathBuf, Vec<Tagged>) {
    let mut maker = Maker::new();
    maker.contents.field_names = ["endpoint", "status"].map(String::from).into();
    // The report is of a part of the trace: it begins 2 s after the zero of times.
    maker.contents.zero_ns = Some(1_699_999_998_000_000_000);
    let mut slices = Vec::new();
    let mut random = dormouse_testing::random(9);
    for number in 0..count {
        let endpoint = ["/api", "/login", "/static"][random(3)];
        let slice = Tagged {
            begin: number * 10_000,
            duration: 100 + random(9000) as u64,
            endpoint,
            status: if random(10) == 0 { 500 } else { 200 },
            // The second thread has more work.
            thread: usize::from(number % 3 != 0),
        };
        let mut fields = Fields::default();
        fields.event("app:request_begin");
        fields.put("endpoint", slice.endpoint);
        fields.event("app:request_end");
        fields.put("status", &slice.status.to_string());
        let fields = maker.contents.fields(&fields);
        let (thread, cpu) = (maker.threads[slice.thread], maker.cpus[slice.thread]);
        let begin_ns = 1_700_000_000_000_000_000 + slice.begin as i64;
        let (kind, duration_ns, name) = (Kind::Slice, slice.duration, maker.names[0]);
        maker.contents.item(Item { kind, begin_ns, duration_ns, name, thread, lane: None, cpu, key: 0, fields });
        slices.push(slice);
    }
    (maker.write(name, 24 << 20).0, slices)
}

type IsMet = fn(&Tagged) -> bool;

/// Conditions of a search, and which slices meet them.
const CONDITIONS: [(&str, IsMet); 5] = [
    ("status>=500", |slice| slice.status >= 500),
    ("status<500", |slice| slice.status < 500),
    ("status>200 endpoint=/api", |slice| slice.status > 200 && slice.endpoint == "/api"),
    ("endpoint!=/api status!=500", |slice| slice.endpoint != "/api" && slice.status != 500),
    ("status<=200 status>=200", |slice| slice.status == 200),
];

/// Returns the least value that `percent` % of the values do not exceed.
fn percentile(mut values: Vec<u64>, percent: usize) -> u64 {
    values.sort();
    values[(values.len() * percent).div_ceil(100) - 1]
}

/// Types a search, and waits until it is over.
fn search(browser: &mut Browser, text: &str) -> String {
    let script = format!(
        "(() => {{ const query = document.getElementById('query'); query.value = {text:?}; query.dispatchEvent(new Event('input')); }})()"
    );
    browser.evaluate(&script);
    browser.wait("document.getElementById('matches').getAttribute('aria-busy') === 'false'");
    browser.evaluate("document.getElementById('matches').textContent").as_str().unwrap().replace(',', "")
}

#[test]
fn a_search_finds_values_processes_and_threads() {
    let Some(program) = browser::program() else { return };
    let (page, slices) = tagged("search.html", 5000);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let count = |is: &dyn Fn(&Tagged) -> bool| slices.iter().filter(|slice| is(slice)).count().to_string();
    let api = |slice: &Tagged| slice.endpoint == "/api";
    assert_eq!(search(browser, "/api"), count(&api));
    assert_eq!(search(browser, "endpoint=/API"), count(&api));
    assert_eq!(search(browser, "endpoint=/ap"), "none");
    assert_eq!(search(browser, "status=500"), count(&|slice| slice.status == 500));
    // The names of fields and events are not values.
    assert_eq!(search(browser, "endpoint"), "none");
    assert_eq!(search(browser, "request_end"), "none");
    assert_eq!(search(browser, "thread 8"), count(&|slice| slice.thread == 1));
    assert_eq!(search(browser, "onerror"), "5000", "it is in the process's name");
    assert_eq!(search(browser, "request"), "5000");
    for (text, is) in CONDITIONS {
        assert_eq!(search(browser, text), count(&is), "{text}");
    }
    // Tables say that a search does not restrict them.
    let of_all = "document.getElementById('view').textContent.startsWith('Of everything')";
    browser.press("2");
    assert_eq!(browser.evaluate(of_all), true);
    search(browser, "");
    assert_eq!(browser.evaluate(of_all), false);
    // From one match to the next, in both groupings.
    search(browser, "status=500");
    let begins: Vec<u64> = slices.iter().filter(|slice| slice.status == 500).map(|slice| slice.begin).collect();
    browser.evaluate("document.getElementById('scroller').focus()");
    for begin in &begins[..3] {
        browser.press("n");
        assert_eq!(browser.evaluate(SELECTED), json!(["app:request", begin]));
    }
    browser.press("g");
    browser.press("N");
    assert_eq!(browser.evaluate(SELECTED), json!(["app:request", begins[1]]));
    // Coarser levels show where the matches are.
    let levels = "(() => { const { report, timeline: { state } } = dormouseReport; return report.rows.filter((row) => row.levels.length > 1).map((row) => row.levels.map(({ from, to }) => state.search.hits.subarray(from, to).includes(1))).flat(); })()";
    let levels = browser.evaluate(levels);
    assert!(
        levels.as_array().is_some_and(|levels| levels.len() > 3 && levels.iter().all(|is| *is == true)),
        "{levels}"
    );
    assert_eq!(browser.script_errors(), [""; 0]);
}

#[test]
fn labels_tooltips_and_tables_have_the_fields_of_both_ends() {
    let Some(program) = browser::program() else { return };
    let (page, slices) = tagged("fields.html", 3000);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let label = |browser: &mut Browser, text: &str| {
        let script = format!(
            "(() => {{ const label = document.getElementById('label'); label.value = {text:?}; label.dispatchEvent(new Event('change')); }})()"
        );
        browser.evaluate(&script);
        browser.wait("document.getElementById('label').getAttribute('aria-busy') === 'false'");
        drawn(browser);
    };
    label(browser, "{endpoint} {status}");
    let labels = "(() => { const { report, timeline: { state: { labels } } } = dormouseReport; const row = report.rows.find((row) => !row.is_cpu && row.of === 0), { from } = row.levels[0]; return [0, 1, 2].map((at) => labels.texts[labels.ofEntry[from + at]]); })()";
    let of_thread = |thread: usize| slices.iter().filter(move |slice| slice.thread == thread);
    let expected: Vec<String> =
        of_thread(0).take(3).map(|slice| format!("{} {}", slice.endpoint, slice.status)).collect();
    assert_eq!(browser.evaluate(labels), json!(expected));
    // A slice that lacks one of the fields has no label.
    label(browser, "{endpoint} {nothing}");
    assert_eq!(browser.evaluate("dormouseReport.timeline.state.labels.texts.length"), 1);
    label(browser, "endpoint");
    assert_eq!(browser.evaluate("new Set(dormouseReport.timeline.state.labels.texts.slice(1)).size"), 3);
    // Colours differ by label.
    assert_eq!(browser.evaluate("new Set(dormouseReport.timeline.state.labels.colors.slice(1)).size"), 3);
    // A row for each label, those with the most time first, with each of its slices once.
    browser.evaluate("document.getElementById('by-label').click()");
    drawn(browser);
    let mut times: Vec<(u64, &str)> = ["/api", "/login", "/static"]
        .map(|endpoint| {
            let of = slices.iter().filter(|slice| slice.endpoint == endpoint);
            (of.map(|slice| slice.duration + 1).sum(), endpoint)
        })
        .into();
    times.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    let grouped = "(() => { const { report, timeline: { state } } = dormouseReport; return state.bands.map(({ label, rows }) => { const all = rows.flatMap(({ row: { levels: [{ from, to }] } }) => [...report.begin.subarray(from, to)].map((begin, at) => [begin, report.duration[from + at], report.other[from + at] - 1])); return [label, all.sort((a, b) => a[0] - b[0])]; }); })()";
    let expected: Vec<_> = times
        .iter()
        .map(|(_, endpoint)| {
            let of = slices.iter().filter(|slice| slice.endpoint == *endpoint);
            json!([endpoint, of.map(|slice| [slice.begin, slice.duration, slice.thread as u64]).collect::<Vec<_>>()])
        })
        .collect();
    assert_eq!(browser.evaluate(grouped), json!(expected));
    let overlap = "dormouseReport.report.rows.filter((row) => row.by === 'label').some(({ levels }) => levels.some(({ from, to }) => { const { begin, duration } = dormouseReport.report; for (let at = from + 1; at < to; at++) if (begin[at] < begin[at - 1] + duration[at - 1]) return true; return false; }))";
    assert_eq!(browser.evaluate(overlap), false);
    // A click shows the item with its thread and its fields.
    let (x, y) = place(browser, "app:request");
    browser.click(x, y);
    browser.wait("document.querySelectorAll('#view .fields td').length === 4");
    label(browser, "");
    assert_eq!(
        browser.evaluate("[dormouseReport.timeline.state.labels ?? null, dormouseReport.timeline.view.by]"),
        json!([null, "thread"])
    );

    browser.evaluate("dormouseReport.timeline.show(0, 200000)");
    drawn(browser);
    let (x, y) = place(browser, "app:request");
    browser.mouse("mouseMoved", x, y);
    browser.wait("document.querySelector('#tooltip table') !== null");
    let told = browser.evaluate(
        "[...document.querySelectorAll('#tooltip tr')].map((row) => [...row.children].map((cell) => cell.textContent))",
    );
    let Tagged { endpoint, status, .. } = of_thread(1).next().unwrap();
    assert_eq!(
        told,
        json!([
            ["", "app:request_begin", "app:request_end"],
            ["endpoint", endpoint, ""],
            ["status", "", status.to_string()]
        ])
    );

    let slowest = slices.iter().max_by_key(|slice| (slice.duration, std::cmp::Reverse(slice.begin))).unwrap();
    browser.press("4");
    browser.wait("document.querySelectorAll('#view td.line')[58]?.textContent !== ''");
    let cells = browser
        .evaluate("[...document.querySelector('#view tbody tr').children].slice(2).map((cell) => cell.textContent)");
    let thread = format!("{HOSTILE} 7{}", if slowest.thread == 1 { ", thread 8" } else { "" });
    let since = format!("+2.{:09}s", slowest.begin);
    let [begin, end] = [format!("endpoint={}", slowest.endpoint), format!("status={}", slowest.status)];
    let expected = [since, thread, begin, end, String::new()];
    assert_eq!(cells, json!(expected));
    let is_within = "document.querySelector('#view').scrollWidth <= document.querySelector('#view').clientWidth";
    assert_eq!(browser.evaluate(is_within), true);
    // A click on a row shows the slice.
    browser.evaluate("document.querySelector('#view tbody tr button').click()");
    let shown = "(() => { const { report, panel, timeline: { state: { selected: { at } } } } = dormouseReport; return [panel.tab, report.begin[at], report.duration[at]]; })()";
    assert_eq!(browser.evaluate(shown), json!(["item", slowest.begin, slowest.duration]));
    // The slowest of one name follow from its durations.
    browser.press("3");
    browser
        .evaluate("[...document.querySelectorAll('#view button')].find((it) => it.textContent === 'Slowest').click()");
    let name = "dormouseReport.report.names[document.querySelector('#view select').value]";
    assert_eq!(browser.evaluate(name), "app:request");

    browser.press("6");
    let choose = |browser: &mut Browser, label: &str, value: &str| {
        browser.evaluate(&format!("(() => {{ const select = document.querySelector('#view select[aria-label={label:?}]'); select.value = {value:?}; select.dispatchEvent(new Event('change')); }})()"));
    };
    let rows_of = |browser: &mut Browser, count: usize| {
        browser.wait(&format!("document.querySelectorAll('#view tbody tr').length === {count}"));
        browser.evaluate("[...document.querySelectorAll('#view tbody tr, #view tfoot tr')].map((row) => [...row.children].map((cell) => cell.textContent))")
    };
    // Checks the figures of a row after its `at` fields.
    let check = |row: &Value, at: usize, is: &dyn Fn(&Tagged) -> bool| {
        let of: Vec<u64> = slices.iter().filter(|slice| is(slice)).map(|slice| slice.duration).collect();
        assert_eq!(row[at].as_str().unwrap().replace(',', ""), of.len().to_string(), "{row}");
        for (column, percent) in [(3, 50), (4, 90), (5, 99), (6, 100)] {
            assert_eq!(row[at + column], duration_text(percentile(of.clone(), percent)), "{row}");
        }
    };
    choose(browser, "Field", "endpoint");
    let rows = rows_of(browser, 3);
    for row in &rows.as_array().unwrap()[..3] {
        check(row, 1, &|slice| row[0] == slice.endpoint);
    }
    check(&rows[3], 1, &|_| true);
    // Values of two fields, and only what a search finds.
    choose(browser, "Second field", "status");
    let rows = rows_of(browser, 6);
    for row in &rows.as_array().unwrap()[..6] {
        check(row, 2, &|slice| row[0] == slice.endpoint && row[1].as_str() == Some(&slice.status.to_string()));
    }
    search(browser, "status>=500");
    let rows = rows_of(browser, 3);
    for row in &rows.as_array().unwrap()[..3] {
        check(row, 2, &|slice| row[0] == slice.endpoint && slice.status == 500);
    }
    check(&rows[3], 1, &|slice| slice.status == 500);
    browser.evaluate("[...document.querySelectorAll('#view .actions button')].at(-1).click()");
    rows_of(browser, 6);
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// Returns a duration below 100 µs as the page writes it.
fn duration_text(ns: u64) -> String {
    match ns {
        0..1000 => format!("{ns} ns"),
        1000..10_000 => format!("{:.3} µs", ns as f64 / 1e3),
        _ => format!("{:.2} µs", ns as f64 / 1e3),
    }
}

/// Requests wait in a queue and are served by one of three threads, which read files meanwhile and also when they serve
/// none: the page lists of each request what was done for it, and nothing else.
#[test]
fn what_happened_during_a_request_is_what_was_done_for_it() {
    let Some(program) = browser::program() else { return };
    let mut contents = Contents::default();
    let names = ["shop:request", "shop:serve", "file:read", "log:line"].map(|name| contents.add_name(name));
    contents.keys = vec![vec!["pid".into(), "id".into()], Vec::new(), Vec::new(), Vec::new()];
    let process = contents.process(Process { name: "shop".into(), pid: Some(7) });
    let mut thread =
        |tid, label: Option<&str>| contents.thread(Thread { process, tid, label: label.map(String::from), name: None });
    let (acceptor, workers) = (thread(Some(7), None), [8, 9, 10].map(|tid| thread(Some(tid), None)));
    let requests = thread(None, Some("shop:request"));
    let cpu = contents.cpu(Some(0));
    let mut put = |kind, begin: u64, duration_ns, name: usize, thread, lane, key, id: Option<u64>| {
        let mut fields = Fields::default();
        fields.event("e");
        id.iter().for_each(|id| fields.put("id", &id.to_string()));
        let fields = contents.fields(&fields);
        let begin_ns = 1_700_000_000_000_000_000 + begin as i64;
        contents.item(Item { kind, begin_ns, duration_ns, name: names[name], thread, lane, cpu, key, fields });
        contents.events += 1;
    };
    let mut random = dormouse_testing::random(5);
    let mut free = [0_u64; 3];
    // Begin and end of each request, and what was done for it.
    let mut expected = Vec::new();
    for id in 0..200_u64 {
        let (worker, begin) = (random(3), id * 700);
        let served = free[worker].max(begin + 1 + random(3000) as u64);
        let key = id as u32 + 1;
        let mut done = vec![(served, "shop:serve")];
        let mut at = served;
        for _ in 0..random(4) {
            at += 10 + random(50) as u64;
            put(Kind::Slice, at, 40, 2, workers[worker], None, 0, None);
            put(Kind::Instant, at + 20, 0, 3, workers[worker], None, 0, None);
            done.extend([(at, "file:read"), (at + 20, "log:line")]);
            at += 50;
        }
        put(Kind::Slice, served, at + 5 - served, 1, workers[worker], None, 0, Some(id));
        let end = at + 10;
        put(Kind::Slice, begin, end - begin, 0, requests, Some((id % 60) as u32), key, Some(id));
        put(Kind::Instant, begin, 0, 0, acceptor, None, key, Some(id));
        put(Kind::Instant, end, 0, 0, workers[worker], None, key, Some(id));
        // This is done for nobody.
        put(Kind::Slice, end + 5, 30, 2, workers[worker], None, 0, None);
        free[worker] = end + 40;
        expected.push((begin, end, done));
    }
    let mut page = Vec::new();
    contents.finish(24 << 20, &mut page).unwrap();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("during.html");
    std::fs::write(&path, page).unwrap();
    let browser = &mut Browser::start(&program);
    open(browser, &path, 1500);
    for id in [0, 1, 17, 99, 150, 199] {
        let (begin, end, done) = &expected[id];
        let select = format!(
            "(async () => {{ const {{ report, timeline, panel }} = dormouseReport;
               const row = report.rows.find((row) => row.by === 'thread' && row.is_slices && report.threads[row.of].label && [...report.begin.subarray(row.levels[0].from, row.levels[0].to)].some((begin, at) => begin === {begin} && report.duration[row.levels[0].from + at] === {}));
               const at = row.levels[0].from + [...report.begin.subarray(row.levels[0].from, row.levels[0].to)].indexOf({begin});
               panel.open('item'); timeline.select({{ at, row }}, true);
               const {{ items }} = await (await panel.meanwhile({{ at, row }})).of({{ at, row }});
               return items.map(({{ at }}) => [report.begin[at], report.names[report.name[at]]]); }})()",
            end - begin
        );
        assert_eq!(browser.evaluate(&select), json!(done), "request {id}");
        browser.wait(&format!(
            "document.querySelectorAll('#view table[aria-label=\"During it\"] tbody tr').length === {}",
            done.len()
        ));
        let shown = browser.evaluate("[...document.querySelectorAll('#view table[aria-label=\"During it\"] tbody tr')].map((row) => row.children[2].textContent)");
        assert_eq!(shown, json!(done.iter().map(|(_, name)| name).collect::<Vec<_>>()));
    }
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// Waits for a mutex are shown by who waits, who holds it and which it is, without a choice; another name has no field yet.
#[test]
fn waits_are_shown_by_thread_owner_and_mutex() {
    let Some(program) = browser::program() else { return };
    let mut maker = Maker::new();
    maker.contents.field_names = ["vtid", "owner", "mutex", "id"].map(String::from).into();
    maker.requests(3);
    for (thread, owner, duration_ns) in [(0, "8", 50_000), (1, "7", 70_000), (0, "8", 30_000)] {
        let mut fields = Fields::default();
        fields.event("libc:mutex_lock_begin");
        let tid = ["7", "8"][thread];
        [("vtid", tid), ("owner", owner), ("mutex", "0x10")].iter().for_each(|(name, value)| fields.put(name, value));
        let fields = maker.contents.fields(&fields);
        let begin_ns = 1_700_000_001_000_000_000 + duration_ns as i64;
        let (name, thread, cpu) = (maker.names[3], maker.threads[thread], maker.cpus[thread]);
        let kind = Kind::Slice;
        maker.contents.item(Item { kind, begin_ns, duration_ns, name, thread, lane: None, cpu, key: 0, fields });
    }
    let (page, _) = maker.write("waits.html", 24 << 20);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let choose = |browser: &mut Browser, name: &str| {
        browser.press("2");
        browser.evaluate(&format!(
            "[...document.querySelectorAll('#view tbody button')].find((it) => it.textContent === {name:?}).click()"
        ));
        browser.press("6");
    };
    choose(browser, HOSTILE);
    browser.wait("document.querySelectorAll('#view tbody tr').length === 2");
    let rows = browser.evaluate("[...document.querySelectorAll('#view tbody tr')].map((row) => [...row.children].slice(0, 5).map((cell) => cell.textContent))");
    let first = format!("{HOSTILE} 7");
    assert_eq!(rows, json!([[first, "8", "0x10", "2", "80.00 µs"], ["8", first, "0x10", "1", "70.00 µs"]]));
    choose(browser, "app:request");
    drawn(browser);
    assert_eq!(browser.evaluate("dormouseReport.panel.by.fields.length"), 0);
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// A descriptor stands for one file after the other, and for different ones in two processes: accesses belong to the file
/// that it was then.
#[test]
fn accesses_are_of_the_file_that_their_descriptor_was() {
    let Some(program) = browser::program() else { return };
    let mut contents = Contents::default();
    let names = ["libc:file open", "libc:read", "libc:write"].map(|name| contents.add_name(name));
    contents.keys = vec![vec!["pid".into(), "fd".into()], Vec::new(), Vec::new()];
    contents.field_names = ["fd", "path"].map(String::from).into();
    let cpu = contents.cpu(Some(0));
    let mut random = dormouse_testing::random(11);
    // Time of the accesses to each file, by its path.
    let mut expected = std::collections::BTreeMap::<String, Vec<u64>>::new();
    let mut read = std::collections::BTreeSet::new();
    for pid in [7, 8] {
        let process = contents.process(Process { name: "reader".into(), pid: Some(pid) });
        let thread = contents.thread(Thread { process, tid: Some(pid), label: None, name: None });
        let lane = contents.thread(Thread { process, tid: None, label: Some("libc:file open".into()), name: None });
        let mut put = |begin: u64, duration_ns, name: usize, of: (u32, Option<u32>), fields: &[(&str, &str)]| {
            let mut all = Fields::default();
            all.event("e");
            fields.iter().for_each(|(name, value)| all.put(name, value));
            let fields = contents.fields(&all);
            let begin_ns = 1_700_000_000_000_000_000 + begin as i64;
            let (kind, thread, lane) = (Kind::Slice, of.0, of.1);
            contents.item(Item { kind, begin_ns, duration_ns, name: names[name], thread, lane, cpu, key: 0, fields });
        };
        let mut at = pid;
        for number in 0..300_u64 {
            let (fd, path) = (["3", "4"][random(2)], format!("/file/{pid}/{}", random(5)));
            let opened = at;
            at += 10;
            for _ in 0..random(4) {
                let duration = 1 + random(500) as u64;
                let name = 1 + random(2);
                put(at, duration, name, (thread, None), &[("fd", fd)]);
                read.extend((name == 1).then(|| path.clone()));
                expected.entry(path.clone()).or_default().push(duration);
                at += duration + 5;
            }
            let lane = (lane, Some(number as u32 % 2));
            put(opened, at - opened, 0, lane, &[("fd", fd), ("path", &path)]);
            // Nothing is open.
            put(at + 5, 20, 1, (thread, None), &[("fd", fd)]);
            at += 40;
        }
    }
    let mut page = Vec::new();
    contents.finish(24 << 20, &mut page).unwrap();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("files.html");
    std::fs::write(&path, page).unwrap();
    let browser = &mut Browser::start(&program);
    open(browser, &path, 1500);
    // Reads are shown by file without a choice.
    browser.press("2");
    browser.evaluate(
        "[...document.querySelectorAll('#view tbody button')].find((it) => it.textContent === 'libc:read').click()",
    );
    browser.press("6");
    browser.wait(&format!("document.querySelectorAll('#view tbody tr').length === {}", read.len()));
    // Openings have no such field, so all names are shown once it is chosen.
    let openings = browser.evaluate("dormouseReport.report.names.indexOf('libc:file open')").to_string();
    for (label, value) in [("Name", openings.as_str()), ("Field", "file")] {
        browser.evaluate(&format!("(() => {{ const select = document.querySelector('#view select[aria-label={label:?}]'); select.value = {value:?}; select.dispatchEvent(new Event('change')); }})()"));
        // The names of its fields are read.
        browser.wait(&format!("dormouseReport.panel.ownFields({openings}).length === 2"));
    }
    browser.wait("document.querySelector('#view select[aria-label=Name]').value === '-1'");
    browser.wait(&format!("document.querySelectorAll('#view tbody tr').length === {}", expected.len()));
    let rows = browser.evaluate("Object.fromEntries([...document.querySelectorAll('#view tbody tr')].map((row) => [row.children[0].textContent, [row.children[1].textContent, row.children[7].textContent]]))");
    let figures = |all: &Vec<u64>| json!([all.len().to_string(), duration_text(percentile(all.clone(), 100))]);
    let expected: serde_json::Map<String, Value> =
        expected.iter().map(|(path, all)| (path.clone(), figures(all))).collect();
    assert_eq!(rows, Value::Object(expected));
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// Fields whose names end in a unit are shown in a readable one, besides their exact value; counters are too.
#[test]
fn fields_with_a_unit_are_readable() {
    let Some(program) = browser::program() else { return };
    let mut maker = Maker::new();
    let mut fields = Fields::default();
    fields.event("app:begin");
    let values = [
        ("size_bytes", "12900000", "12900000 (12.3 MiB)"),
        ("wait_ns", "4560000", "4560000 (4.560 ms)"),
        ("delay_us", "-1500", "-1500 (-1.500 ms)"),
        ("bytes", "999", "999"),
        ("id", "12900000", "12900000"),
        ("path_bytes", "/a", "/a"),
    ];
    values.iter().for_each(|(name, value, _)| fields.put(name, value));
    let fields = maker.contents.fields(&fields);
    let (begin_ns, name, thread, cpu) = (1_700_000_000_000_000_000, maker.names[0], maker.threads[0], maker.cpus[0]);
    let item =
        Item { kind: Kind::Slice, begin_ns, duration_ns: 1_000_000, name, thread, lane: None, cpu, key: 0, fields };
    maker.contents.item(item);
    let counter = maker.contents.counter(0, "app:heap used_bytes");
    maker.contents.count(counter, begin_ns, 3.0 * 1024.0 * 1024.0);
    let (page, _) = maker.write("units.html", 24 << 20);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let (x, y) = place(browser, "app:request");
    browser.mouse("mouseMoved", x, y);
    browser.wait("document.querySelector('#tooltip table') !== null");
    let told = browser.evaluate("[...document.querySelectorAll('#tooltip td')].map((cell) => cell.textContent)");
    assert_eq!(told, json!(values.map(|(_, _, expected)| expected)));
    let counter = "(() => { const { timeline } = dormouseReport, { state } = timeline, band = state.bands.find((band) => band.counter !== undefined); return timeline.counterAt(state.width - 2, 24 + band.y + 2 - state.top)[0]; })()";
    assert_eq!(browser.evaluate(counter), "app:heap used_bytes: 3.00 MiB");
    assert_eq!(browser.script_errors(), [""; 0]);
}

#[test]
fn a_range_of_time_restricts_the_tables() {
    let Some(program) = browser::program() else { return };
    let (page, slices) = tagged("range.html", 3000);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let (begin, end) = (4_005_000, 9_005_000);
    browser.evaluate(&format!("dormouseReport.timeline.restrict([{begin}, {end}])"));
    let within: Vec<&Tagged> = slices.iter().filter(|slice| (begin..=end).contains(&slice.begin)).collect();
    let of = |browser: &mut Browser| {
        browser.evaluate("(() => { const { figures } = dormouseReport.panel; return figures.summary.map(({ count, total, own, p50, p90, p99, max }) => [count, total, own, p50, p90, p99, max]); })()")
    };
    let durations: Vec<u64> = within.iter().map(|slice| slice.duration).collect();
    let total: u64 = durations.iter().sum();
    let percent = |percent| percentile(durations.clone(), percent);
    assert_eq!(
        of(browser),
        json!([[durations.len(), total, total, percent(50), percent(90), percent(99), percent(100)]])
    );
    let shown = browser.evaluate("document.getElementById('view').textContent");
    assert!(shown.as_str().unwrap().contains("from +2.004005000s to +2.009005000s"), "{shown}");
    for tab in ["3", "4", "5", "6"] {
        browser.press(tab);
        drawn(browser);
        assert_eq!(browser.evaluate("document.querySelectorAll('#view .restricted').length"), 1, "view {tab}");
    }
    let all = "dormouseReport.panel.figures.heat.flat().reduce((sum, cell) => sum + cell.count, 0)";
    assert_eq!(browser.evaluate(all), durations.len());
    // The whole range has the tables of the report.
    browser.press("Escape");
    assert_eq!(browser.evaluate("dormouseReport.timeline.state.area ?? null"), Value::Null);
    let whole = of(browser);
    browser.evaluate("dormouseReport.timeline.restrict([0, dormouseReport.report.span])");
    assert_eq!(of(browser), whole);
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// Nested slices, on two threads: a range that has all of them gives the tables that the report came with.
#[test]
fn tables_of_the_whole_range_are_those_of_the_report() {
    let Some(program) = browser::program() else { return };
    let (page, _) = made("nested.html", 300, 24 << 20);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let tables = "(() => { const { figures } = dormouseReport.panel; return [figures.summary.map(({ name, is_slice, count, total, own, p50, p90, p99, max, slowest }) => [name, is_slice, count, total, own, p50, p90, p99, max, slowest.map(([, long]) => long)]), figures.heat, [...figures.nodes].sort()]; })()";
    let report = browser.evaluate(tables);
    browser.evaluate("dormouseReport.timeline.restrict([0, dormouseReport.report.span])");
    assert_eq!(browser.evaluate(tables), report);
}

#[test]
fn the_address_names_what_is_shown() {
    let Some(program) = browser::program() else { return };
    let (page, slices) = tagged("link.html", 2000);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let script = "(() => { const { timeline, panel } = dormouseReport; timeline.show(3000000, 500000); timeline.restrict([3100000, 3200000]); })()";
    browser.evaluate(script);
    search(browser, "status=500");
    let picked = &slices[305];
    browser.evaluate(&format!("(() => {{ const {{ report, panel }} = dormouseReport; panel.go.first(report.names.indexOf('app:request'), {}); }})()", picked.begin));
    for key in ["g", "o", "t"] {
        browser.press(key);
    }
    browser.evaluate("dormouseReport.panel.open('slowest')");
    let state = "(() => { const { report, timeline: { view, state }, panel } = dormouseReport; return [Math.round(view.begin), Math.round(view.span), view.by, state.isByBegin, state.area, panel.tab, document.getElementById('query').value, state.selected && report.begin[state.selected.at]]; })()";
    let before = browser.evaluate(state);
    assert_eq!(before[7], picked.begin);
    browser.evaluate("document.getElementById('scroller').dispatchEvent(new Event('click', { bubbles: true }))");
    browser.wait("location.hash.includes('tab=slowest') && location.hash.includes('item=')");
    let hash = browser.evaluate("location.hash");
    browser.open_url("about:blank");
    browser.open_url(&format!("file://{}{}", page.display(), hash.as_str().unwrap()));
    browser.wait("document.documentElement.dataset.ready === ''");
    assert_eq!(browser.evaluate(state), before, "{hash}");
    // A changed address changes the page.
    browser.evaluate("location.hash = '#tab=trees'");
    browser.wait(
        "dormouseReport.panel.tab === 'trees' && dormouseReport.timeline.view.span === dormouseReport.report.span",
    );
    // Nonsense is ignored.
    browser.evaluate("location.hash = '#from=x&for=-1&tab=none&item=1&range=a,b&by=moon&label=%7Bno%7D'");
    browser.wait("dormouseReport.panel.tab === 'summary'");
    assert_eq!(browser.script_errors(), [""; 0]);
}

#[test]
fn threads_with_more_work_come_first_and_paper_has_no_buttons() {
    let Some(program) = browser::program() else { return };
    let (page, _) = tagged("order.html", 100);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let threads = "dormouseReport.timeline.state.bands.filter((band) => band.isNested).map((band) => band.label)";
    // The first thread has the name of its process.
    let first = format!("{HOSTILE} 7");
    assert_eq!(browser.evaluate(threads), json!(["thread 8", first]));
    browser.press("o");
    assert_eq!(browser.evaluate(threads), json!([first, "thread 8"]));
    browser.call("Emulation.setEmulatedMedia", json!({ "media": "print" }));
    let shown =
        "['tools', 'tabs', 'divider', 'view', 'timeline'].map((id) => document.getElementById(id).offsetHeight > 0)";
    assert_eq!(browser.evaluate(shown), json!([false, false, false, true, true]));
    let is_whole = "(() => { const view = document.getElementById('view'); return view.scrollHeight <= view.clientHeight + 1; })()";
    assert_eq!(browser.evaluate(is_whole), true);
    let picture = browser.call("Page.printToPDF", json!({}));
    assert!(picture["data"].as_str().is_some_and(|data| data.len() > 10_000));
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// Layout errors: a page wider than its window, buttons outside of it or without a name, canvases without size.
const FAULTS: &str = "(() => { const faults = [];
  if (document.documentElement.scrollWidth > innerWidth) faults.push('page is wider than the window');
  if (document.documentElement.scrollHeight > innerHeight) faults.push('page is higher than the window');
  for (const one of document.querySelectorAll('header button, header input, #tabs button')) {
    const box = one.getBoundingClientRect();
    if (box.left < 0 || (box.right > innerWidth && !one.closest('#tabs'))) faults.push(`${one.id} is outside`);
    if (!(one.textContent.trim() || one.getAttribute('aria-label'))) faults.push(`${one.id} has no name`);
  }
  for (const one of document.querySelectorAll('button')) if (!(one.getAttribute('aria-label') || /[a-z]/i.test(one.textContent))) faults.push(`button '${one.textContent}' has no name`);
  const { width, height } = document.getElementById('timeline').getBoundingClientRect();
  if (width < innerWidth - 40 || height < 80) faults.push(`timeline is ${width} by ${height}`);
  return faults; })()";

#[test]
fn a_page_fits_windows_and_says_what_is_lost() {
    let Some(program) = browser::program() else { return };
    let (page, _) = made("sizes.html", 200, 24 << 20);
    let browser = &mut Browser::start(&program);
    for width in [500, 1500, 3000] {
        for scheme in ["light", "dark"] {
            open(browser, &page, width);
            browser.emulate(width, 900, scheme);
            browser.wait(&format!("innerWidth === {width} && document.documentElement.dataset.shown === '{scheme}'"));
            for tab in 1..=6 {
                browser.press(&tab.to_string());
                drawn(browser);
                assert_eq!(browser.evaluate(FAULTS), json!([]), "{width} {scheme} view {tab}");
            }
        }
    }
    let notes = browser.evaluate("document.getElementById('notes').textContent");
    let lost = "12,345 events lost between 1.000 ms and 2.000 ms on CPU 1";
    assert!(notes.as_str().is_some_and(|notes| notes.contains(lost)), "{notes}");
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// However many items there are, the page stays within its size limit, and reports what it leaves out.
#[test]
fn items_beyond_the_size_limit_are_merged_and_counted() {
    let (whole_page, whole) = made("whole.html", 20_000, 24 << 20);
    assert_eq!(whole.left_out, dormouse_report::LeftOut::default());
    let size_max = 190_000;
    assert!(whole.size_bytes > 2 * size_max, "{}", whole.size_bytes);
    let (page, small) = made("small.html", 20_000, size_max);
    assert!(small.size_bytes <= size_max);
    assert_eq!((small.slices, small.instants), (whole.slices, whole.instants));
    assert!(small.left_out.fields > 0 && small.left_out.resolution_ns > 0, "{:?}", small.left_out);
    assert!(small.left_out.merged.values().sum::<u64>() > 10_000, "{:?}", small.left_out);
    let mut maker = Maker::new();
    maker.requests(10);
    let error = maker.contents.finish(1000, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("--max-size is 1000"), "{error}");

    let Some(program) = browser::program() else { return };
    let browser = &mut Browser::start(&program);
    let mut sums = Vec::new();
    for page in [&whole_page, &page] {
        open(browser, page, 1500);
        let sum = "(() => { const { report } = dormouseReport; const sum = (isByCpu) => report.rows.filter((row) => row.is_cpu === isByCpu).map((row) => row.levels.map(({ from, to }) => report.count.subarray(from, to).reduce((sum, one) => sum + one, 0))); return [sum(false), sum(true)].map((rows) => { if (rows.some((row) => row.some((one) => one !== row[0]))) return 'levels differ'; return rows.reduce((sum, row) => sum + row[0], 0); }).concat(report.summary.map((row) => row.count)); })()";
        sums.push(browser.evaluate(sum));
    }
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0][0], whole.slices + whole.instants);
    assert_eq!(sums[0][1], sums[0][0]);
    let said = browser.evaluate("document.getElementById('notes').textContent");
    assert!(said.as_str().is_some_and(|said| said.contains("are drawn as one with their neighbours")), "{said}");
    assert_eq!(browser.script_errors(), [""; 0]);
}

/// Prints, without asserting, how long a frame's script takes while zooming and panning. `DORMOUSE_FRAMES`: number of
/// requests, of four items each.
#[test]
fn frames_are_measured() {
    let Some(program) = browser::program() else { return };
    let requests = std::env::var("DORMOUSE_FRAMES").map_or(10_000, |count| count.parse().expect("a number"));
    let (page, written) = made("frames.html", requests, 24 << 20);
    let browser = &mut Browser::start(&program);
    open(browser, &page, 1500);
    let script = "(async () => { const { timeline, report } = dormouseReport; timeline.frames.length = 0;
      const next = () => new Promise(requestAnimationFrame);
      for (let turn = 0; turn < 120; turn++) { turn % 3 === 2 ? timeline.pan(0.2) : timeline.zoom(turn < 60 ? 0.8 : 1.3, report.span * 0.4); await next(); }
      await next();
      const times = [...timeline.frames].sort((a, b) => a - b);
      return [times.length, times[Math.floor(times.length / 2)], times[Math.floor(times.length * 0.95)], dormouseReport.ready_ms]; })()";
    let times = browser.evaluate(script);
    assert!(times[0].as_u64() > Some(100), "{times}");
    eprintln!(
        "{} events, {} bytes: {} frames at 1500 pixels, script {} ms in the middle, {} ms at the 95th percentile; unpacked and drawn in {} ms",
        written.events, written.size_bytes, times[0], times[1], times[2], times[3]
    );
    assert_eq!(browser.script_errors(), [""; 0]);
}

#[test]
fn an_empty_report_is_a_valid_page() {
    let maker = Maker { contents: Contents::default(), names: [0; 4], threads: [0; 2], cpus: [0; 2] };
    let (page, written) = maker.write("nothing.html", 1 << 20);
    assert_eq!((written.slices, written.instants), (0, 0));
    let Some(program) = browser::program() else { return };
    let browser = &mut Browser::start(&program);
    open(browser, &page, 700);
    for tab in 1..=6 {
        browser.press(&tab.to_string());
        drawn(browser);
    }
    assert_eq!(browser.script_errors(), [""; 0]);
}
