//! `dormouse clocks`, and the option `--clocks` of other commands.

use std::path::Path;
use std::process::{Command, Output};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::record::RecordKind;
use dormouse_ctf::{Clock, Format, MetadataOptions, Value};
use dormouse_testing::browser::{self, Browser};
use dormouse_traces::TraceBuilder;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::DORMOUSE;

const MESSAGES: [&str; 4] = ["--messages", "msg:sent..msg:received", "--key", "id"];

/// Writes a host's trace, whose clock begins at `offset_s`, with messages `(time, id, is_sent)`.
fn host(place: &Path, name: &str, uuid: u8, offset_s: i64, messages: &[(u64, u64, bool)]) -> String {
    let clock = Clock {
        name: "monotonic".into(),
        description: String::new(),
        frequency_hz: 1_000_000_000,
        offset_s,
        offset_cycles: 0,
    };
    let mut builder = TraceBuilder::with_options(MetadataOptions {
        uuid: [uuid; 16],
        hostname: name.into(),
        clock,
        tracer_version: (0, 1),
        start_time_s: offset_s,
        record_kind: RecordKind::Ids,
        tags: Vec::new(),
        format: Format::default(),
    });
    let number = [("id", FieldType::scalar(Kind::U64))];
    let [sent, received] = ["sent", "received"].map(|event| builder.class("msg", event, &number));
    let stream = builder.stream(0);
    for &(time, id, is_sent) in messages {
        builder.event(stream, time, 7, 7, if is_sent { sent } else { received }, &[Value::U64(id)]);
    }
    let dir = place.join(name);
    std::fs::create_dir(&dir).expect("a directory");
    builder.finish().write(&dir);
    dir.to_str().expect("text").into()
}

/// Writes the traces of two hosts. The clock of `b` is ten seconds behind; a message takes 100 ns to `b`, and 300 ns
/// back.
fn hosts(place: &Path) -> [String; 2] {
    let a = [(1_000, 1, true), (2_000, 2, false), (9_000, 3, true), (9_900, 4, false)];
    let b = [(1_100, 1, false), (1_700, 2, true), (9_100, 3, false), (9_600, 4, true)];
    [host(place, "a", 1, 1_700_000_010, &a), host(place, "b", 2, 1_700_000_000, &b)]
}

fn run(arguments: &[&[&str]]) -> Output {
    Command::new(DORMOUSE).args(arguments.concat()).output().expect("dormouse runs")
}

fn refused(arguments: &[&[&str]], why: &str) {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(why) && said.lines().count() <= 2, "{said}");
}

fn place() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn every_command_corrects_the_clocks_of_two_hosts() {
    let place = place();
    let [a, b] = hosts(place.path());
    let file = place.path().join("clocks.json");
    let file = file.to_str().expect("text");
    let output = run(&[&["clocks", &a, &b, "-o", file], &MESSAGES]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("a (01010101): reference clock, not corrected"));
    let line = lines.next().expect("the other");
    assert!(
        line.starts_with("b (02020202): corrected by 10.")
            && line.ends_with("2 messages from a (01010101) and 2 to it"),
        "{line}"
    );
    let stored: Json = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    let error_ns = stored["clocks"][0]["error_ns"].as_i64().expect("an error");
    assert!(
        (200..300).contains(&error_ns),
        "half of 400 ns there and back, and what two messages leave open: {error_ns}"
    );

    let output = run(&[&["view", &a, &b, "--clocks", file, "--format", "json", "--where", "id == 1"]]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("times of b (02020202) are corrected, to within 0."), "{said}");
    let times: Vec<i64> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).expect("JSON")["time_ns"].as_i64().expect("a time"))
        .collect();
    let [sent, received] = times[..] else { panic!("{times:?}") };
    assert_eq!(sent, 1_700_000_010_000_001_000);
    assert!(received > sent && (received - sent - 100).abs() <= error_ns, "{times:?}");
    for command in
        [&["stats", "--by", "event", "--json"][..], &["export", "--to", "chrome", "-o", "-"], &["report", "-o", "-"]]
    {
        let output = run(&[command, &[&a, &b, "--clocks", file, "--since", "1700000010", "--until", "1700000011"]]);
        assert!(output.status.success(), "{command:?}: {output:?}");
        if command[0] == "stats" {
            let report: Json = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(report["rows"].as_array().map(Vec::len), Some(2), "{report}");
            assert_eq!(report["rows"][0]["count"], 4, "all of them are in that second: {report}");
        }
    }
    // The page shows the correction too.
    let Some(program) = browser::program() else { return };
    let page = place.path().join("page.html");
    let output = run(&[&["report", &a, &b, "--clocks", file, "-o", page.to_str().expect("text")]]);
    assert!(output.status.success(), "{output:?}");
    let browser = &mut Browser::start(&program);
    browser.open(&page);
    browser.wait("document.documentElement.dataset.ready === ''");
    let notes = browser.evaluate("document.getElementById('notes').textContent");
    assert!(
        notes.as_str().is_some_and(|notes| notes.contains("times of b (02020202) are corrected, to within 0.")),
        "{notes}"
    );
}

#[test]
fn clocks_that_cannot_be_corrected_are_reported() {
    let place = place();
    let [a, b] = hosts(place.path());
    let alone = host(place.path(), "alone", 3, 1_700_000_000, &[(5, 99, true)]);
    let output = run(&[&["clocks", &a, &b, &alone], &MESSAGES]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("alone (03030303): not corrected: it has no messages in both directions"), "{text}");
    refused(&[&["clocks", &a], &MESSAGES], "name another trace");
    refused(
        &[&["clocks", &a, &b, "--messages", "msg:sent..msg:receivd", "--key", "id"]],
        "the nearest is `msg:received`",
    );
    refused(&[&["clocks", &a, &b, "--messages", "msg:sent..msg:received", "--key", "idd"]], "the nearest is `id`");

    let file = place.path().join("clocks.json");
    let view = |content: &str, why: &str| {
        std::fs::write(&file, content).expect("a file");
        refused(&[&["view", &b, "--clocks", file.to_str().expect("text")]], why);
    };
    view("nothing", "writes such a file");
    view(r#"{"clocks": [{"trace": "x"}]}"#, "missing field");
    let stored = |trace: &str, drift: f64| {
        json!({"clocks": [{"trace": trace, "at_ns": 0, "offset_ns": 0, "drift": drift, "error_ns": 0}]}).to_string()
    };
    view(&stored("07070707-0707-0707-0707-070707070707", 0.0), "has no clock of these traces, but of 07070707-");
    view(&stored("02020202-0202-0202-0202-020202020202", 1.5), "is that of no clock");
    refused(&[&["view", &b, "--clocks", "/nonexistent"]], "cannot read the clocks in /nonexistent");
}
