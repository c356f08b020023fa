//! `dormouse lab report`: from a file to a file.

use std::path::Path;
use std::process::{Command, Output};

use dormouse_lab::{Experiment, Host, Report, SCHEMA, statistics};

fn lab_report(arguments: &[&Path]) -> Output {
    let mut command = Command::new(crate::common::LAB);
    command.arg("report").args(arguments).output().expect("dormouse runs")
}

#[test]
fn a_result_becomes_a_page_beside_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (result, page, other) = (dir.path().join("a.json"), dir.path().join("a.html"), dir.path().join("other.html"));
    let measurements = vec![statistics::measurement("armed", "ns", &[14.0, 15.0, 16.0])];
    let experiment = Experiment { name: "event".into(), measurements, ..Experiment::default() };
    let report = Report { schema: SCHEMA, host: Host::read(), experiments: vec![experiment] };
    std::fs::write(&result, serde_json::to_string(&report).expect("it is JSON")).expect("it is written");

    let output = lab_report(&[&result]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), page.display().to_string());
    let html = std::fs::read_to_string(&page).expect("the page is there");
    assert!(html.starts_with("<!doctype html>") && html.contains("<th scope=\"row\">armed</th>"));

    assert!(lab_report(&[&result, Path::new("-o"), &other]).status.success());
    assert_eq!(std::fs::read_to_string(&other).expect("the other page is there"), html);
}

#[test]
fn what_is_no_result_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let result = dir.path().join("a.json");
    for text in [None, Some("{}"), Some("no JSON")] {
        if let Some(text) = text {
            std::fs::write(&result, text).expect("it is written");
        }
        let output = lab_report(&[&result]);
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains("a.json"), "{output:?}");
        assert!(!dir.path().join("a.html").exists());
    }
}
