//! Questions of a user who sees a trace for the first time: the report, `stats` and a named query answer them, and all
//! agree.
//!
//! The query runs if `DORMOUSE_QUERY` names the program: `dormouse-query` is built separately, and the step `query` of
//! CI runs these tests with it.
#![cfg(target_os = "linux")]

use std::process::Command;

use dormouse_e2e::run::{Record, Recording, dormouse, libc_library};
use dormouse_testing::browser::{self, Browser};
use serde_json::{Value as Json, json};

const SHOP: &str = env!("CARGO_BIN_EXE_e2e-shop");

/// Returns a recording of the shop, and the id of its process.
fn recording() -> (Recording, u64) {
    libc_library();
    let record = Record::new().option("--libc");
    let dir = record.place().join("files");
    std::fs::create_dir(&dir).unwrap();
    let recording = record.run(&[SHOP.as_ref(), dir.as_os_str()]).succeeded();
    let stats = stats(&recording, &["--by", "pid", "-e", "shop:request_begin"]);
    let pid = stats["rows"][0]["key"]["pid"].as_u64().unwrap();
    (recording, pid)
}

fn stats(recording: &Recording, options: &[&str]) -> Json {
    let output =
        Command::new(dormouse()).arg("stats").arg(&recording.dir).args(options).arg("--json").output().unwrap();
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the rows of a named query, if the program is available.
fn named(recording: &Recording, name: &str) -> Option<Vec<Json>> {
    let program = std::env::var_os("DORMOUSE_QUERY")?;
    let mut command = Command::new(program);
    let output = command.arg(&recording.dir).args(["--named", name, "--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // The output is one array, or one line for each row.
    match serde_json::from_str::<Vec<Json>>(&text) {
        Ok(rows) => Some(rows),
        Err(_) => Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()),
    }
}

/// Returns the nanoseconds since midnight of a time such as `2026-11-26T22:13:20.000010Z`.
fn of_day(time: &str) -> u64 {
    let time = time.split('T').nth(1).unwrap().trim_end_matches('Z');
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let seconds = clock.split(':').fold(0, |sum, part| 60 * sum + part.parse::<u64>().unwrap());
    seconds * 1_000_000_000 + format!("{fraction:0<9}").parse::<u64>().unwrap()
}

/// Makes a report, opens it, and selects the slowest item of a name. Returns the output of `--json`.
fn slowest(browser: &mut Browser, recording: &Recording, options: &[&str], name: &str) -> Json {
    let page = recording.place().join("report.html");
    let mut command = Command::new(dormouse());
    command.arg("report").arg(&recording.dir).arg("-o").arg(&page).args(options).arg("--json");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    browser.open(&page);
    browser.wait("document.documentElement.dataset.ready === ''");
    browser.press("4");
    browser.evaluate(&format!(
        "(() => {{ const select = document.querySelector('#view select'); select.value = dormouseReport.report.names.indexOf({name:?}); select.dispatchEvent(new Event('change')); }})()"
    ));
    browser.evaluate("document.querySelector('#view tbody tr button').click()");
    browser.press("1");
    // The item's fields appear after it.
    browser.wait("document.querySelector('#view .wide .fields') !== null");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the value that the page shows for the item beside this name.
fn said(browser: &mut Browser, name: &str) -> String {
    let value = browser.evaluate(&format!(
        "[...document.querySelectorAll('#view dt, #view .fields th')].find((head) => head.textContent === {name:?})?.nextSibling.textContent ?? ''"
    ));
    value.as_str().unwrap_or_default().to_owned()
}

/// Begin (nanoseconds since the epoch) and duration of the selected item.
const SELECTED: &str = "(() => { const { report, timeline: { state: { selected: { at } } } } = dormouseReport; return [String(report.begin_at + BigInt(report.begin[at])), report.duration[at]]; })()";

#[test]
fn the_slowest_request_waited_for_a_lock() {
    let (recording, pid) = recording();
    // stats: which request was the slowest, and what did its thread wait for?
    let requests = ["--latency", "shop:request_begin..shop:request_end", "--slowest", "1"];
    let request = stats(&recording, &requests)["latency"]["slowest"][0].clone();
    let locks = ["--latency", "shop:lock_req..shop:lock_acq", "--slowest", "1"];
    let lock = stats(&recording, &locks)["latency"]["slowest"][0].clone();
    let number = |of: &Json, key: &str| of[key].as_u64().unwrap();
    assert_eq!(request["tid"], lock["tid"]);
    assert_ne!(number(&request, "tid"), pid, "it is not the first thread");
    let begins = [&request, &lock].map(|slow| number(slow, "begin_ns"));
    assert!(begins[0] < begins[1] && number(&lock, "latency_ns") < number(&request, "latency_ns"));
    // The query: the first request among the slowest, and the lock that it waited for.
    if let Some(rows) = named(&recording, "slowest") {
        for (name, slow) in [("shop:request", &request), ("shop:lock", &lock)] {
            let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
            assert_eq!(row["tid"], slow["tid"], "{row}");
            let begin_ns = number(slow, "begin_ns") % (86_400 * 1_000_000_000);
            assert_eq!(of_day(row["begin_time"].as_str().unwrap()), begin_ns, "{row}");
        }
    }

    let Some(program) = browser::program() else { return };
    let browser = &mut Browser::start(&program);
    slowest(browser, &recording, &["-e", "shop:*"], "shop:request");
    let selected = json!([begins[0].to_string(), request["latency_ns"]]);
    assert_eq!(browser.evaluate(SELECTED), selected);
    assert_eq!(said(browser, "id"), "7");
    assert!(said(browser, "thread").ends_with(&format!("thread {}", request["tid"])), "{}", said(browser, "thread"));
    // The longest slice nested in the request on its thread.
    browser.press("c");
    assert_eq!(browser.evaluate(SELECTED), json!([begins[1].to_string(), lock["latency_ns"]]));
    let name = browser.evaluate("document.querySelector('#view h2').textContent");
    assert_eq!(name, "shop:lock");
}

#[test]
fn unfreed_memory_is_found_as_a_leak() {
    let (recording, _) = recording();
    // Requests 0, 4, 8, 12 and 16. The C library and Rust's runtime also leave some memory unfreed.
    let pairs = ["--latency", "libc:malloc..libc:free", "--key", "pid,ptr"];
    let leaked = stats(&recording, &pairs)["latency"]["unpaired_begins"].as_u64().unwrap();
    assert!(leaked >= 5, "{leaked}");
    // Selects those of the requests by their size, in all three ways.
    let of_requests = [&pairs[..], &["--where", "size == 4321 or event == \"libc:free\""]].concat();
    assert_eq!(stats(&recording, &of_requests)["latency"]["unpaired_begins"], 5);
    if let Some(rows) = named(&recording, "alloc-leaks") {
        let row = rows.iter().find(|row| row["size"] == 4321).unwrap_or_else(|| panic!("{rows:?}"));
        assert_eq!((&row["blocks"], &row["bytes"]), (&json!(5), &json!(5 * 4321)));
    }

    let Some(program) = browser::program() else { return };
    let browser = &mut Browser::start(&program);
    let options = ["--pairs", "libc:malloc..libc:free", "--key", "pid,ptr", "-e", "libc:malloc", "-e", "libc:free"];
    let told = slowest(browser, &recording, &options, "libc:malloc");
    assert_eq!(told["timeline"]["slices_unfinished"], leaked);
    let notes = browser.evaluate("document.getElementById('notes').textContent");
    let line = format!("{leaked} begins have no end, and are drawn to the end of the trace");
    assert!(notes.as_str().unwrap().contains(&line), "{notes}");
    // The slowest items without an end are the leaks, some of which belong to requests.
    let sizes = browser.evaluate(
        "(async () => { const { report, panel } = dormouseReport, sizes = [];
           for (const row of report.rows) { if (row.is_cpu || !row.is_slices) continue;
             for (let at = row.levels[0].from; at < row.levels[0].to; at++) {
               const shown = document.createElement('div'); await panel.fields({ at, row }, shown);
               if (shown.textContent.includes('no end')) sizes.push([...shown.querySelectorAll('.fields th')].find((head) => head.textContent === 'size').nextSibling.textContent); } }
           return sizes; })()",
    );
    let sizes: Vec<&str> = sizes.as_array().unwrap().iter().filter_map(Json::as_str).collect();
    assert_eq!(sizes.len() as u64, leaked);
    assert_eq!(sizes.iter().filter(|size| **size == "4321").count(), 5, "{sizes:?}");
}

#[test]
fn the_file_that_is_open_longest_is_found() {
    let (recording, _) = recording();
    let pairs = ["--latency", "libc:open*..libc:close", "--key", "pid,fd", "--by", "path", "--where", "fd >= 0"];
    let answer = stats(&recording, &pairs);
    let rows = answer["rows"].as_array().unwrap();
    let sum = |row: &Json| row["values"]["sum"].as_f64().unwrap();
    let most = rows.iter().max_by(|a, b| sum(a).total_cmp(&sum(b))).unwrap();
    let path = most["key"]["path"].as_str().unwrap();
    assert!(path.ends_with("/files/slow"), "{path}");
    if let Some(rows) = named(&recording, "time-by-file") {
        assert_eq!((rows[0]["file"].as_str(), rows[0]["total_ns"].as_f64()), (Some(path), Some(sum(most))), "{rows:?}");
    }

    let Some(program) = browser::program() else { return };
    let browser = &mut Browser::start(&program);
    slowest(browser, &recording, &["-e", "libc:open*", "-e", "libc:close"], "libc:file open");
    assert_eq!(said(browser, "path").trim_matches('"'), path);
    assert_eq!(browser.evaluate(SELECTED)[1].as_f64().unwrap(), sum(most));
}
