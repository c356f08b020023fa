//! `dormouse report A --diff B`: its differences are those of `dormouse stats --diff`, and a browser shows them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dormouse_ctf::StateRecord;
use dormouse_testing::browser::{self, Browser};
use dormouse_traces::TraceBuilder;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::DORMOUSE;

/// A name that a hostile program has chosen.
const HOSTILE: &str = "</script><img src=x onerror=\"window.hacked=1\">";

/// Writes a trace of jobs with a step in each, which takes `times` times as long. Every third job has an event
/// `app:more` if `more`, or else `app:less`. Events are lost at the end.
fn trace(times: u64, more: bool) -> TempDir {
    let mut builder = TraceBuilder::new();
    let [begin, end] = ["begin", "end"].map(|name| builder.class("job", name, &[]));
    let [step_begin, step_end] = ["step_begin", "step_end"].map(|name| builder.class("app", name, &[]));
    let one = builder.class("app", if more { "more" } else { "less" }, &[]);
    let cpu = builder.stream(0);
    builder.state(
        1,
        &StateRecord::Process { process: 1, pid: 7, vpid: 7, name: HOSTILE, program: "/bin/x", command_line: "" },
    );
    let mut at = 1000;
    for index in 0..1500_u64 {
        at += 100_000 + index * 7919 % 10_000;
        let step = times * (10_000 + index * 104_729 % 3000);
        builder.event(cpu, at, 7, 7, begin, &[]);
        builder.event(cpu, at + 1000, 7, 7, step_begin, &[]);
        builder.event(cpu, at + 1000 + step, 7, 7, step_end, &[]);
        if index % 3 == 0 {
            builder.event(cpu, at + 1500 + step, 7, 7, one, &[]);
        }
        builder.event(cpu, at + 2000 + step, 7, 7, end, &[]);
    }
    builder.packet(cpu, 0, 0);
    builder.event(cpu, at + 200_000, 7, 7, one, &[]);
    builder.packet(cpu, 0, if more { 5 } else { 3 });
    let dir = tempfile::tempdir().unwrap();
    builder.finish().write(dir.path());
    dir
}

fn run(arguments: &[&Path]) -> Output {
    Command::new(DORMOUSE).args(arguments).output().unwrap()
}

fn page(a: &TempDir, b: &TempDir, page: &Path) -> Output {
    run(&["report".as_ref(), a.path(), "--diff".as_ref(), b.path(), "-o".as_ref(), page, "--json".as_ref()])
}

fn json(output: &Output) -> Json {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn figures_are_those_of_stats() {
    let (a, b, dir) = (trace(1, false), trace(2, true), tempfile::tempdir().unwrap());
    let output = page(&a, &b, &dir.path().join("page.html"));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let told = json(&output);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("dormouse: A: 3 lost") && errors.contains("dormouse: B: 5 lost"), "{errors}");
    assert_eq!((&told["events_lost"], &told["other"]), (&json!(3), &json!({ "events_lost": 5, "warnings": [] })));
    let differences = told["differences"].as_array().unwrap();
    let of = |name: &str, is_pair: bool| {
        differences
            .iter()
            .find(|row| row["name"] == name && row["is_pair"] == is_pair)
            .unwrap_or_else(|| panic!("{name}"))
    };
    let stats = |question: &[&str]| {
        let mut arguments: Vec<&Path> =
            vec!["stats".as_ref(), a.path(), "--diff".as_ref(), b.path(), "--json".as_ref()];
        arguments.extend(question.iter().map(Path::new));
        json(&run(&arguments))["ratios"].as_array().unwrap().clone()
    };
    let classes = stats(&["--by", "event"]);
    assert_eq!(classes.len(), 6);
    for class in &classes {
        assert_eq!(of(class["key"]["event"].as_str().unwrap(), false)["figures"], class["figures"], "{class}");
    }
    for (name, pair) in [("job", "job:begin..job:end"), ("app:step", "app:step_begin..app:step_end")] {
        assert_eq!(of(name, true)["figures"], stats(&["--latency", pair])[0]["figures"], "{name}");
    }
    assert_eq!(differences.len(), 6 + 2);
    // Classes of one trace alone differ most, then slices that take twice as long. Equal rows are last.
    let order: Vec<&str> = differences.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(order[2..4], ["app:step", "job"], "{order:?}");
    assert!(["app:less", "app:more"].iter().all(|name| order[..2].contains(name)), "{order:?}");
    let output = run(&["report".as_ref(), a.path(), "--diff".as_ref(), b.path(), "-o".as_ref(), &dir.path().join("x")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("4 of 8 event classes and slice names differ measurably"), "{errors}");
}

#[test]
fn damage_of_either_trace_is_reported() {
    let (a, b, dir) = (trace(1, false), trace(1, true), tempfile::tempdir().unwrap());
    let cpu = b.path().join("cpu_0");
    let bytes = std::fs::read(&cpu).unwrap();
    std::fs::write(&cpu, &bytes[..bytes.len() - 50]).unwrap();
    for (first, other, before) in [(&a, &b, "B"), (&b, &a, "A")] {
        let output = page(first, other, &dir.path().join("page.html"));
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(&format!("dormouse: {before}: warning: cpu_0: packet")), "{errors}");
        let told = json(&output);
        let warnings = if before == "A" { &told["warnings"] } else { &told["other"]["warnings"] };
        assert_eq!(warnings.as_array().map(Vec::len), Some(1), "{told}");
    }
    let missing = dir.path().join("missing");
    let output = run(&["report".as_ref(), a.path(), "--diff".as_ref(), &missing, "-o".as_ref(), "x".as_ref()]);
    assert_eq!(output.status.code(), Some(2));
}

/// Script that returns the parts of the page that do not fit into the window.
const FAULTS: &str = "(() => { const faults = [];
  if (document.documentElement.scrollWidth > innerWidth) faults.push('page is wider than the window');
  if (document.documentElement.scrollHeight > innerHeight) faults.push('page is higher than the window');
  for (const one of document.querySelectorAll('#view canvas')) if (one.getBoundingClientRect().width > document.getElementById('view').clientWidth) faults.push('a picture is wider than the view');
  return faults; })()";

#[test]
fn a_browser_shows_what_differs() {
    let Some(program) = browser::program() else { return };
    let (a, b, dir) = (trace(1, false), trace(2, true), tempfile::tempdir().unwrap());
    let page_path = dir.path().join("page.html");
    assert_eq!(page(&a, &b, &page_path).status.code(), Some(0));
    let browser = &mut Browser::start(&program);
    for width in [500, 1500, 3000] {
        for scheme in ["light", "dark"] {
            browser.emulate(width, 1200, scheme);
            browser.open(&page_path);
            browser.wait("document.documentElement.dataset.ready === ''");
            assert_eq!(browser.evaluate(FAULTS), json!([]), "{width} {scheme}");
            // The picture must show the whole view.
            browser.evaluate("document.getElementById('panel').style.flexBasis = '75%'");
            browser
                .evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
            let picture = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("diff-{width}-{scheme}.png"));
            std::fs::write(&picture, STANDARD.decode(browser.picture("png")).unwrap()).unwrap();
        }
    }
    // The view is shown first. Its rows are in the order of the summary, and those that differ have a mark.
    let rows = "[...document.querySelectorAll('table.diff tbody tr')].map((row) => [row.cells[0].textContent, row.querySelectorAll('td.told').length])";
    let rows = browser.evaluate(rows);
    assert_eq!((&rows[2], &rows[3]), (&json!(["app:step slices", 2]), &json!(["job slices", 2])), "{rows}");
    let middle = browser.evaluate("document.querySelectorAll('table.diff tbody tr')[2].cells[8].textContent");
    assert!(middle.as_str().is_some_and(|text| text.starts_with("▲ +") && text.contains(" %")), "{middle}");
    let title = browser.evaluate("document.getElementById('title').textContent");
    assert_eq!(title, format!("A: {}, B: {}", a.path().display(), b.path().display()));
    let notes = browser.evaluate("document.getElementById('notes').textContent");
    let notes = notes.as_str().unwrap();
    assert!(notes.contains("A: 3 events lost between") && notes.contains("B: 5 events lost between"), "{notes}");
    // The histograms contain all slices of both traces.
    let bins = "JSON.parse(document.querySelector('#view canvas').dataset.bins).map((bins) => bins.reduce((sum, [, count]) => sum + count, 0))";
    assert_eq!(browser.evaluate(bins), json!([1500, 1500]));
    browser.evaluate("document.querySelectorAll('table.diff tbody button')[1].click()");
    assert_eq!(
        browser.evaluate("document.querySelector('table.diff tr[aria-selected=true]').cells[0].textContent"),
        "job slices"
    );
    // In the call trees of both traces the step is nested in the job.
    let said = browser.evaluate("(() => { const { flame } = dormouseReport.panel.diff; return flame.nodes.map((node) => [flame.path(node).length, flame.said(node)]); })()");
    assert_eq!((&said[0][0], &said[1][0]), (&json!(1), &json!(2)), "{said}");
    assert!(
        said[1][1].as_str().is_some_and(|said| said.starts_with("app:step: in A ") && said.contains("1,500 slices")),
        "{said}"
    );
    // A key leads to the tables of A, another one back to the view.
    browser.press("2");
    assert_eq!(browser.evaluate("document.querySelectorAll('table.diff').length"), 0);
    browser.press("8");
    assert_eq!(browser.evaluate("document.querySelectorAll('table.diff').length"), 1);
    assert_eq!(browser.evaluate("[window.hacked ?? null, document.images.length]"), json!([null, 0]));
    assert_eq!(browser.script_errors(), [""; 0]);
    let requests = browser.requests();
    assert!(requests.iter().all(|url| url.starts_with("file:") && url.ends_with("page.html")), "{requests:?}");
}
