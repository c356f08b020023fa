//! `dormouse report`: its output and messages, and the page as a browser shows it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::{StateRecord, Value};
use dormouse_testing::browser::{self, Browser};
use dormouse_traces::TraceBuilder;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::DORMOUSE;

/// A name that a hostile program has chosen.
const HOSTILE: &str = "</script><img src=x onerror=\"window.hacked=1\">";

/// Writes a trace: jobs with nested steps, of one thread on each of two CPUs; messages from one to the other; three
/// events lost.
fn trace() -> TempDir {
    let mut builder = TraceBuilder::new();
    let text = [("path", FieldType::scalar(Kind::Str))];
    let number = [("id", FieldType::scalar(Kind::U64))];
    let [begin, end] = [builder.class("job", "begin", &text), builder.class("job", "end", &[])];
    let [step_begin, step_end] = [builder.class("app", "step_begin", &[]), builder.class("app", "step_end", &[])];
    let [sent, received] = [builder.class("msg", "sent", &number), builder.class("msg", "received", &number)];
    let cpus = [0, 1].map(|cpu| builder.stream(cpu));
    builder.state(
        1,
        &StateRecord::Process { process: 1, pid: 7, vpid: 7, name: HOSTILE, program: "/bin/x", command_line: "" },
    );
    for index in 0..40_u64 {
        let (of, time) = ((index % 2) as usize, 1000 + index * 1_000_000);
        let (stream, tid) = (cpus[of], 7 + of as u32);
        builder.event(stream, time, 7, tid, begin, &[Value::Str(HOSTILE.as_bytes())]);
        builder.event(stream, time + 1000, 7, tid, step_begin, &[]);
        builder.event(stream, time + 3000 + index, 7, tid, step_end, &[]);
        builder.event(
            stream,
            time + 4000 + 10 * index,
            7,
            tid,
            if of == 0 { sent } else { received },
            &[Value::U64(index / 2)],
        );
        builder.event(stream, time + 10_000, 7, tid, end, &[]);
    }
    builder.packet(cpus[0], 0, 0);
    builder.event(cpus[0], 42_000_000, 7, 7, step_end, &[]);
    builder.packet(cpus[0], 0, 3);
    let trace = builder.finish();
    let dir = tempfile::tempdir().expect("a directory");
    trace.write(dir.path());
    dir
}

fn report(trace: &Path, output: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(DORMOUSE);
    command.arg("report").arg(trace).arg("-o").arg(output).args(options);
    command.output().expect("dormouse runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn report_prints_what_it_wrote() {
    let (trace, dir) = (trace(), tempfile::tempdir().unwrap());
    let page = dir.path().join("page.html");
    let output = report(trace.path(), &page, &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told: Json = serde_json::from_slice(&output.stdout).unwrap();
    let size = std::fs::metadata(&page).unwrap().len();
    let facts = ["events", "slices", "instants", "events_lost", "size_bytes"].map(|key| told[key].as_u64().unwrap());
    // Two slices of each job, its message, and an end without begin.
    assert_eq!(facts, [201, 80, 41, 3, size]);
    let left_out = json!({ "resolution_ns": 0, "merged": {}, "fields": 0, "too_deep": 0, "too_many_on_cpu": 0, "call_trees": 0, "counter_values": 0 });
    assert_eq!((&told["left_out"], &told["warnings"]), (&left_out, &json!([])));
    let not_closed =
        "the trace was not closed: its session is live or was killed, and more events may be lost than were counted";
    assert_eq!(text(&output.stderr), format!("dormouse: 3 lost\ndormouse: {not_closed}\n"));

    let paired = ["--pairs", "msg:sent..msg:received", "--key", "id", "--json"];
    let told: Json = serde_json::from_slice(&report(trace.path(), &page, &paired).stdout).unwrap();
    assert_eq!((&told["slices"], &told["instants"]), (&json!(100), &json!(41)));
    let some = ["-e", "job:*", "--tid", "7", "--json"];
    let told: Json = serde_json::from_slice(&report(trace.path(), &page, &some).stdout).unwrap();
    assert_eq!((&told["events"], &told["slices"]), (&json!(40), &json!(20)));
    // A condition that only begins meet: the output and the page say why there are no slices.
    let output = report(trace.path(), &page, &["-e", "job:*", "--where", "path != \"\""]);
    let cut = "40 begins and ends are alone: --where selects events";
    assert!(text(&output.stderr).contains(cut), "{}", text(&output.stderr));
    let output = report(trace.path(), &page, &["-e", "job:*", "--where", "pid == 7"]);
    assert!(!text(&output.stderr).contains("--where"), "{}", text(&output.stderr));
    let output = report(trace.path(), &page, &["--since", "+10ms"]);
    // Events are lost after 39 ms: within this time range, and in the next one across its end.
    assert!(
        text(&output.stderr).starts_with("dormouse: of the time that is shown: 3 lost\n"),
        "{}",
        text(&output.stderr)
    );
    let across = report(trace.path(), &page, &["--until", "+40ms"]);
    let edge = "of the time that is shown: unknown how many lost because events were lost at the edge of this time, in it or not (3)";
    assert!(text(&across.stderr).contains(edge), "{}", text(&across.stderr));
    let line = text(&output.stdout);
    assert!(line.ends_with(&format!("nothing is left out; open it in a browser: {}\n", page.display())), "{line}");
}

#[test]
fn the_file_is_replaced_only_when_the_page_is_complete() {
    let (trace, dir) = (trace(), tempfile::tempdir().unwrap());
    let page = dir.path().join("page.html");
    std::fs::write(&page, "what was there before").unwrap();
    let cases: [(&[&str], &str); 4] = [
        (&["--max-size", "10K"], "--max-size is 10240"),
        (&["-e", "jop:*"], "job"),
        (&["--pairs", "job:begin..nothing"], "nothing"),
        (&["--pairs", "job:begin"], "BEGIN..END"),
    ];
    for (options, expected) in cases {
        let output = report(trace.path(), &page, options);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {errors}");
        assert!(errors.contains(expected), "{options:?}: {errors}");
        assert_eq!(std::fs::read_to_string(&page).unwrap(), "what was there before");
    }
    let output = report(trace.path(), &page, &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!doctype html>"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");

    let output = report(trace.path(), Path::new("/dev/full"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot write to /dev/full"), "{}", text(&output.stderr));
    let output = report(trace.path(), &dir.path().join("no/page.html"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot write"), "{}", text(&output.stderr));
}

#[test]
fn the_page_can_go_to_standard_output_which_may_be_closed() {
    let trace = trace();
    let output = report(trace.path(), Path::new("-"), &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.starts_with(b"<!doctype html>") && output.stdout.ends_with(b"</html>\n"));
    let mut child = Command::new(DORMOUSE)
        .arg("report")
        .arg(trace.path())
        .args(["-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("cannot"), "{}", text(&output.stderr));
}

#[test]
fn damage_is_reported_in_the_page_and_by_the_exit_code() {
    let (trace, dir) = (trace(), tempfile::tempdir().unwrap());
    let cpu = trace.path().join("cpu_1");
    let bytes = std::fs::read(&cpu).unwrap();
    std::fs::write(&cpu, &bytes[..bytes.len() - 500]).unwrap();
    let page = dir.path().join("page.html");
    let output = report(trace.path(), &page, &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cpu_1: packet 0"), "{}", text(&output.stderr));
    let told: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["warnings"].as_array().map(Vec::len), Some(1));
    let Some(program) = browser::program() else { return };
    let browser = &mut Browser::start(&program);
    browser.open(&page);
    browser.wait("document.documentElement.dataset.ready === ''");
    let notes = browser.evaluate("document.getElementById('notes').textContent");
    assert!(notes.as_str().is_some_and(|notes| notes.contains("warning: cpu_1: packet 0")), "{notes}");
}

/// A time that the page shows is found by `view --since`, from a page of the whole trace and from one of a part.
#[test]
fn a_time_of_the_page_is_a_time_of_view() {
    const ZERO: &str = "2023-11-14 22:13:20.000001000 +00:00";
    let (trace, dir) = (trace(), tempfile::tempdir().unwrap());
    let page = dir.path().join("page.html");
    let view = |options: &[&str]| {
        let mut command = Command::new(DORMOUSE);
        command.arg("view").arg(trace.path()).args(options).env("TZ", "UTC").output().expect("dormouse runs")
    };
    // The trace has a record of its session's owner before the first event.
    let relative = view(&["--format", "people", "--clock", "relative", "-e", "job:*", "-n", "1"]);
    assert!(text(&relative.stdout).trim_start().starts_with("0.000000000 "), "{}", text(&relative.stdout));
    let said = format!("dormouse: times count from the first event of the trace, at {ZERO}\n");
    assert!(text(&relative.stderr).starts_with(&said), "{}", text(&relative.stderr));
    for (options, expected) in [(&[][..], "+0.000000000s"), (&["--since", "+10ms"], "+0.010000000s")] {
        let told: Json =
            serde_json::from_slice(&report(trace.path(), &page, &[options, &["--json"]].concat()).stdout).unwrap();
        assert_eq!(told["zero_ns"], 1_700_000_000_000_001_000_i64);
        let Some(program) = browser::program() else { return };
        let browser = &mut Browser::start(&program);
        browser.call("Emulation.setTimezoneOverride", json!({ "timezoneId": "UTC" }));
        browser.open(&page);
        browser.wait("document.documentElement.dataset.ready === ''");
        let about = browser.evaluate("document.getElementById('about').textContent");
        assert!(about.as_str().is_some_and(|about| about.contains(&format!("0 is {ZERO}"))), "{about}");
        browser.press("4");
        let begin = browser.evaluate("document.querySelector('#view tbody tr').children[2].textContent");
        assert_eq!(begin, expected);
        let time = begin.as_str().unwrap();
        let found = view(&["--since", time, "--until", time, "--format", "json"]);
        let events: Vec<Json> = text(&found.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((&events[0]["event"], &events[0]["fields"]["path"]), (&json!("job:begin"), &json!(HOSTILE)));
    }
}

#[test]
fn a_label_names_fields_that_the_trace_has() {
    let (trace, dir) = (trace(), tempfile::tempdir().unwrap());
    let page = dir.path().join("page.html");
    for (label, expected) in [("{pth}", "no event of this trace has a field pth"), ("path", "it has no field")] {
        let output = report(trace.path(), &page, &["--label", label]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    let output = report(trace.path(), &page, &["--label", "job {path}"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let Some(program) = browser::program() else { return };
    let browser = &mut Browser::start(&program);
    browser.open(&page);
    browser.wait("document.documentElement.dataset.ready === '' && dormouseReport.timeline.state.labels");
    let texts = "dormouseReport.timeline.state.labels.texts.slice(1)";
    assert_eq!(browser.evaluate(texts), json!([format!("job {HOSTILE}")]));
    assert_eq!(browser.evaluate("[window.hacked ?? null, document.images.length]"), json!([null, 0]));
}

/// A browser shows lanes, nested slices and the loss, and does not run script in a name.
#[test]
fn a_browser_shows_what_is_in_the_trace() {
    let Some(program) = browser::program() else { return };
    let (trace, dir) = (trace(), tempfile::tempdir().unwrap());
    let page = dir.path().join("page.html");
    let output =
        report(trace.path(), &page, &["--pairs", "msg:sent..msg:received", "--key", "id", "--counter", "msg:sent/id"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let browser = &mut Browser::start(&program);
    browser.emulate(1500, 900, "dark");
    browser.open(&page);
    browser.wait("document.documentElement.dataset.ready === ''");
    let bands = browser.evaluate("dormouseReport.timeline.state.bands.map((band) => band.label)");
    let process = format!("{HOSTILE} 7");
    let all = format!("{process} (2 threads)");
    assert_eq!(bands, json!([all, process, "thread 8", "msg:sent..msg:received", "msg:sent id"]));
    let rows = "dormouseReport.report.rows.filter((row) => !row.is_cpu).map((row) => [row.is_slices, row.depth, row.levels[0].to - row.levels[0].from])";
    // Each thread has its instants and two rows of slices. Messages are in the order in which they were found.
    let expected = json!([
        [false, 0, 21],
        [true, 0, 20],
        [true, 1, 20],
        [true, 0, 20],
        [false, 0, 20],
        [true, 0, 20],
        [true, 1, 20]
    ]);
    assert_eq!(browser.evaluate(rows), expected);
    let notes = browser.evaluate("document.getElementById('notes').textContent");
    let notes = notes.as_str().unwrap();
    assert!(notes.contains("3 events lost between") && notes.contains("on CPU 0"), "{notes}");
    assert!(notes.contains("1 end"), "{notes}");
    // The counter has the values of its events.
    let values = "dormouseReport.report.counters.map(({ name, least, greatest, points }) => [name, least, greatest, points.length, points[3][3]])";
    assert_eq!(browser.evaluate(values), json!([["msg:sent id", 0, 19, 20, 3]]));
    let told = "(() => { const { timeline } = dormouseReport, band = timeline.state.bands.find((band) => band.counter === 0); return timeline.counterAt(timeline.state.width - 10, band.y + 30 - timeline.state.top); })()";
    assert_eq!(browser.evaluate(told)[0], "msg:sent id: 19");
    // A message goes from one thread to the other: its slice and both of its events have one key.
    browser.evaluate("dormouseReport.panel.go.first(dormouseReport.report.names.indexOf('msg:sent'))");
    assert_eq!(browser.evaluate("dormouseReport.timeline.state.flow.length"), 3);
    // The fields of a job have the text that its program wrote.
    browser.evaluate("dormouseReport.panel.go.first(dormouseReport.report.names.indexOf('job'))");
    browser.wait("document.getElementById('view').textContent.includes('<img src=x')");
    assert_eq!(browser.evaluate("[window.hacked ?? null, document.images.length]"), json!([null, 0]));
    assert_eq!(browser.script_errors(), [""; 0]);
    assert_eq!(browser.requests().len(), 1);
}
