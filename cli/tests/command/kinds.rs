//! Field types that only CTF 2 has: printing, filters and statistics.

use std::path::PathBuf;
use std::process::Command;

use crate::DORMOUSE;

/// Returns a directory that contains only a trace, and the trace's path.
fn trace() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("trace");
    dormouse_traces::write_ctf2(&dir);
    (place, dir)
}

fn said(arguments: &[&str]) -> String {
    let (_place, dir) = trace();
    let output = Command::new(DORMOUSE).args(&arguments[..1]).arg(&dir).args(&arguments[1..]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn lines_for_programs_have_them() {
    let lines = said(&["view", "--format", "json"]);
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let expected = [
        serde_json::json!({"flag": true, "number": 7, "raw": [1, 2, 3], "name": "h\u{e9}"}),
        serde_json::json!({"flag": false, "number": null, "raw": [4, 5, 6], "name": "ho"}),
    ];
    let fields: Vec<&serde_json::Value> = lines.iter().map(|line| &line["fields"]).collect();
    assert_eq!(fields, expected.iter().collect::<Vec<_>>());
}

#[test]
fn filters_ask_of_them() {
    for (filter, expected) in
        [("name == \"h\u{e9}\"", 1), ("name ~ \"h*\"", 2), ("flag", 1), ("number == 7", 1), ("not number == 7", 0)]
    {
        assert_eq!(said(&["view", "--where", filter]).lines().count(), expected, "{filter}");
    }
}

#[test]
fn statistics_are_of_them() {
    let by_name: serde_json::Value = serde_json::from_str(&said(&["stats", "--by", "name", "--json"])).expect("JSON");
    assert!(by_name.to_string().contains("h\u{e9}"), "{by_name}");
    let numbers = said(&["stats", "--field", "number", "--json"]);
    let numbers: serde_json::Value = serde_json::from_str(&numbers).expect("JSON");
    assert!(numbers.to_string().contains("\"sum\":7"), "{numbers}");
}

/// The greatest value of a clock is a valid time.
#[test]
fn an_event_at_the_last_moment_of_its_clock_counts() {
    let time = r#"{"type":"fixed-length-unsigned-integer","length":64,"byte-order":"little-endian","alignment":8,"roles":["default-clock-timestamp"]}"#;
    let fragments = [
        r#"{"type":"preamble","version":2}"#.to_string(),
        r#"{"type":"clock-class","id":"c","frequency":1000000000,"offset-from-origin":{"seconds":-9223372037,"cycles":145224192}}"#.to_string(),
        format!(
            r#"{{"type":"data-stream-class","default-clock-class-id":"c","event-record-header-field-class":{{"type":"structure","member-classes":[{{"name":"t","field-class":{time}}}]}}}}"#
        ),
        r#"{"type":"event-record-class","name":"e"}"#.to_string(),
    ];
    let metadata: String = fragments.iter().map(|fragment| format!("\u{1e}{fragment}\n")).collect();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("metadata"), metadata).expect("metadata");
    std::fs::write(dir.path().join("stream"), [5u64, u64::MAX].map(u64::to_le_bytes).concat()).expect("a stream");
    let stats = Command::new(DORMOUSE).arg("stats").arg(dir.path()).arg("--json").output().expect("it runs");
    let said: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap_or_else(|_| panic!("{stats:?}"));
    assert_eq!(said["events"], 2, "{said}");
    let view = Command::new(DORMOUSE).arg("view").arg(dir.path()).output().expect("it runs");
    assert_eq!(view.stdout.iter().filter(|byte| **byte == b'\n').count(), 2, "{view:?}");
}
