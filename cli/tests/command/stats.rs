//! `dormouse stats` of recorded traces: losses by class are those that `dormouse record` has reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use dormouse_testing::programs::build;
use serde_json::Value;

use crate::DORMOUSE;

/// The traced program belongs to another package: cargo does not build it for this one's tests.
fn traced() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build(&["dormouse-e2e", "--bin", "e2e-traced"]).join("e2e-traced"))
}

/// Records the program into `trace`, and returns the summary's losses: all of them, and those of each class.
fn record(trace: &Path, budget: &str, arguments: &[&str]) -> (u64, BTreeMap<String, u64>) {
    let mut command = Command::new(DORMOUSE);
    command.args(["record", "--budget", budget, "-o"]).arg(trace).arg("--").arg(traced()).args(arguments);
    let output = command.output().expect("dormouse runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text} is a number"));
    let (before, _) = text.split_once(" lost,").expect("a summary");
    let lost = number(before.rsplit(' ').next().unwrap_or_default());
    let classes = text.split_once("; lost: ").map_or("", |(_, rest)| rest.split(';').next().unwrap_or_default());
    let mut by_class = BTreeMap::new();
    for (name, count) in classes.trim().split(", ").filter_map(|loss| loss.rsplit_once(' ')) {
        // Two classes may have the same name and different fields.
        *by_class.entry(name.to_string()).or_default() += number(count);
    }
    (lost, by_class)
}

fn stats(trace: &Path, options: &[&str]) -> Output {
    let output = Command::new(DORMOUSE).arg("stats").arg(trace).args(options).output().expect("dormouse runs");
    assert!(output.status.success(), "losses that packets state are no damage: {output:?}");
    output
}

/// Removes each stream of events in turn, and checks that the missing events are reported.
fn is_missed(trace: &Path, events: u64) {
    let entries = std::fs::read_dir(trace).expect("a directory").map(|entry| entry.expect("an entry").path());
    let is_stream = |path: &PathBuf| !path.ends_with("metadata") && !path.ends_with("state");
    for path in entries.filter(is_stream).collect::<Vec<_>>() {
        let away = trace.join(".away");
        std::fs::rename(&path, &away).expect("it goes");
        let output = Command::new(DORMOUSE).arg("stats").arg(trace).arg("--json").output().expect("dormouse runs");
        std::fs::rename(&away, &path).expect("it comes back");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let json: Value = serde_json::from_slice(&output.stdout).expect("statistics are JSON");
        let gone = events - json["events"].as_u64().expect("a number");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let told = format!("{name} is missing: it held {gone} event");
        let warnings = json["warnings"].as_array().expect("an array");
        assert!(
            warnings.iter().any(|warning| warning.as_str().is_some_and(|line| line.starts_with(&told))),
            "{told}: {warnings:?}"
        );
    }
}

#[test]
fn losses_are_reported_by_class() {
    let dir = tempfile::tempdir().expect("a directory");
    let cases: [(&str, &str, &[&str]); 3] = [
        ("none", "16M", &["numbers", "1", "10"]),
        ("big", "16M", &["too-big", "50"]),
        ("tiny", "64K", &["numbers", "4", "40000"]),
    ];
    for (name, budget, arguments) in cases {
        let trace = dir.path().join(name);
        let (lost, by_class) = record(&trace, budget, arguments);
        let json: Value = serde_json::from_slice(&stats(&trace, &["--json"]).stdout).expect("statistics are JSON");
        assert_eq!(json["events_lost"], lost, "{name}");
        let rows = json["lost_by_class"].as_array().expect("an array");
        let told: BTreeMap<String, u64> = rows
            .iter()
            .map(|row| (row["name"].as_str().expect("a name").to_string(), row["count"].as_u64().expect("a count")))
            .collect();
        assert_eq!(told, by_class, "{name}");
        // No program was killed, so each lost event is counted by class too.
        assert_eq!(told.values().sum::<u64>(), lost, "{name}");
        assert!(rows.is_sorted_by_key(|row| std::cmp::Reverse(row["count"].as_u64())), "{rows:?}");

        let table = String::from_utf8(stats(&trace, &[]).stdout).expect("text");
        let block = table.split("\n\n").find(|block| block.trim_start().starts_with("LOST"));
        let lines = block.map_or(vec![], |block| block.lines().skip(1).map(str::split_whitespace).collect());
        let shown: BTreeMap<String, u64> = lines
            .into_iter()
            .map(|mut words| {
                let count = words.next().and_then(|count| count.parse().ok()).expect("a count");
                (words.next().expect("a class").to_string(), count)
            })
            .collect();
        assert_eq!(shown, told, "{table}");
        assert_eq!((&json["is_closed"], &json["warnings"]), (&Value::Bool(true), &Value::Array(vec![])), "{name}");
        is_missed(&trace, json["events"].as_u64().expect("a number"));
        match name {
            "none" => assert!(lost == 0 && block.is_none(), "{table}"),
            "big" => assert_eq!(lost, 51, "{table}"),
            _ => {}
        }
    }
}
