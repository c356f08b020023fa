//! `dormouse lab run query`: what is not there is named, and what is there is measured.

use std::process::Command;

use dormouse_lab::{Report, Verdict};

use crate::common::{LAB, succeed};

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let json = dir.path().join("result.json");
    succeed(Command::new(LAB).args(["run", "query", "--quick", "--rounds", "2", "--no-peers", "--json"]).arg(&json));
    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    let notes = &experiment.notes;
    let is_missing = |what: &str| notes.iter().any(|note| note.starts_with(&format!("{what} not measured: ")));
    let has_gaps = ["parquet", "duckdb", "query"].into_iter().any(is_missing);
    assert!(has_gaps, "{notes:#?}");
    let start = if cfg!(debug_assertions) { "unoptimised-" } else { "" };
    let has = |name: &str| experiment.measurements.iter().any(|figure| figure.name == name);
    // No project to build, no preload library: nothing is recorded.
    let is_recorded = !is_missing("query");
    assert_eq!(has(&format!("{start}perfetto.wall")), is_recorded && !is_missing("perfetto"), "{notes:#?}");
    let has_both = is_recorded && !is_missing("trace") && !is_missing("duckdb");
    for question in ["counts", "pairs", "files", "wide"] {
        assert_eq!(has(&format!("{question}.{start}trace.wall")), has_both, "{notes:#?}");
        assert_eq!(has(&format!("{question}.duckdb.wall")), has_both, "{notes:#?}");
    }
    let judged = experiment.statements.iter().filter(|judged| judged.verdict != Verdict::NotMeasured);
    assert!(!cfg!(debug_assertions) || judged.count() == 0, "no statement is judged by what is not optimised");
}
