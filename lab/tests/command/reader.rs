//! `dormouse lab run reader`: it records, counts the recorded events, and times every available reader.

use dormouse_lab::{Report, Verdict, experiments};

use crate::common::{lab, succeed};

#[test]
fn readers_are_timed_on_traces_that_are_counted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let json = dir.path().join("result.json");
    succeed(lab().args(["run", "reader", "--quick", "--rounds", "2", "--no-peers", "--json"]).arg(&json));
    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    let notes = &experiment.notes;
    let of = |name: &str| experiment.measurements.iter().find(|found| found.name == name);
    assert!(of("dormouse.streams").is_some_and(|streams| streams.median >= 1.0), "{notes:#?}");
    // Readers that are not built or installed are reported, and available ones are measured; those of a release under
    // their own names.
    for (way, is_ours) in [
        ("cat", false),
        ("count", true),
        ("stats", true),
        ("text", true),
        ("arrow", true),
        ("babeltrace2", false),
        ("babeltrace2-text", false),
    ] {
        let is_missing = notes.iter().any(|note| note.starts_with(&format!("{way} not measured: ")));
        let start = if is_ours && cfg!(debug_assertions) { "unoptimised-" } else { "" };
        for figure in ["wall", "cpu", "peak", "start-up.wall"] {
            let found = of(&format!("dormouse.{start}{way}.{figure}"));
            assert_eq!(found.is_none(), is_missing, "{way}.{figure}: {notes:#?}");
            assert!(found.is_none_or(|found| found.samples.len() == 2), "{found:?}");
        }
    }
    let judged = experiment.statements.iter().filter(|judged| judged.verdict != Verdict::NotMeasured);
    assert!(!cfg!(debug_assertions) || judged.count() == 0, "no statement is judged by what is not optimised");
    // Under their own names they would be judged: all but the statement on memory, which needs all our programs
    // together.
    let mut optimised = experiment.clone();
    optimised.measurements.iter_mut().for_each(|figure| figure.name = figure.name.replace("unoptimised-", ""));
    let paper = experiments::find("reader").and_then(|known| known.paper()).expect("its bounds");
    for judged in paper.judge(&optimised).iter().filter(|judged| judged.place == "a trace of Dormouse") {
        let is_there = |name: &str| optimised.measurements.iter().any(|figure| figure.name == name);
        let names = judged.ratio.split(" ÷ ").flat_map(|side| side.split(" - "));
        let is_measured = names.clone().all(is_there);
        assert_eq!(judged.verdict != Verdict::NotMeasured, is_measured, "{judged:#?}");
        let is_missing = |name: &str| {
            notes.iter().any(|note| {
                note.contains(" not measured: ") && name.contains(note.split(' ').next().unwrap_or_default())
            })
        };
        assert!(is_measured || judged.line == "6" || names.clone().any(is_missing), "{judged:#?}: {notes:#?}");
    }
}
