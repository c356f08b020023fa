//! `dormouse lab report` and `dormouse lab papers`: from a file to a file.

use std::path::Path;
use std::process::{Command, Output};

use dormouse_lab::{EXPERIMENTS, Experiment, Host, Report, SCHEMA, statistics};

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
    assert!(html.starts_with("<!doctype html>") && html.contains(">armed</th>"));

    assert!(lab_report(&[&result, Path::new("-o"), &other]).status.success());
    assert_eq!(std::fs::read_to_string(&other).expect("the other page is there"), html);
}

#[test]
fn statements_of_papers_are_judged_again() {
    let (known, paper) = EXPERIMENTS.iter().find_map(|known| Some((known, known.paper()?))).expect("a paper");
    let nothing = Experiment { name: known.name.into(), ..Experiment::default() };
    let statement =
        paper.judge(&nothing).into_iter().find(|s| s.ratio.split(' ').count() == 3 && s.range.starts_with("below"));
    let (of, to) = statement.as_ref().and_then(|s| s.ratio.split_once(" ÷ ")).expect("a ratio of two measurements");
    let dir = tempfile::tempdir().expect("a directory");
    let (result, page) = (dir.path().join("a.json"), dir.path().join("papers.md"));
    let papers = |arguments: &[&Path]| {
        Command::new(crate::common::LAB).arg("papers").arg(&result).args(arguments).output().expect("dormouse runs")
    };
    for (cost, verdict) in [(1.0, "| holds |"), (1000.0, "| does not hold |")] {
        let rounds = |cost: f64| (0..12).map(|round| cost + f64::from(round) / 1e4).collect::<Vec<_>>();
        let measurements =
            vec![statistics::measurement(of, "ns", &rounds(cost)), statistics::measurement(to, "ns", &rounds(3.0))];
        let experiments = vec![Experiment { measurements, ..nothing.clone() }];
        let report = Report { schema: SCHEMA, host: Host::default(), experiments };
        std::fs::write(&result, serde_json::to_string(&report).expect("it is JSON")).expect("it is written");
        assert!(papers(&[Path::new("-o"), &page]).status.success());
        let text = std::fs::read_to_string(&page).expect("the page is there");
        assert!(text.contains(verdict), "{text}");
        assert!(text.contains("It is not in this result."), "of the other papers: {text}");
        assert_eq!(String::from_utf8_lossy(&papers(&[]).stdout), text);
    }
    let nothing = Command::new(crate::common::LAB).arg("papers").output().expect("dormouse runs");
    let text = String::from_utf8_lossy(&nothing.stdout);
    assert!(
        EXPERIMENTS
            .iter()
            .filter(|known| known.paper().is_some())
            .all(|known| text.contains(&format!("`{}`", known.name))),
        "{text}"
    );
    assert!(text.contains("Nothing was measured") && !text.contains("It is not in this result."), "{text}");
    assert!(text.contains("| not measured |") && !text.contains("| holds |"), "{text}");
}

#[test]
fn a_file_that_is_not_a_result_is_named() {
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
