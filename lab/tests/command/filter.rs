//! `dormouse lab run filter`: each case has its figures, and the bounds are judged by them.

use dormouse_lab::{Report, Verdict};

use crate::common::{lab, succeed};

#[test]
fn filter_has_its_figures_and_its_bounds() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let json = dir.path().join("result.json");
    succeed(lab().args(["run", "filter", "--quick", "--rounds", "2", "--no-peers", "--json"]).arg(&json));
    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    let has = |name: &str| {
        let found = experiment.measurements.iter().find(|found| found.name == name);
        let found = found.unwrap_or_else(|| panic!("there is no {name}"));
        assert!(found.unit == "ns" && found.n > 0, "{found:?}");
    };
    for mode in ["", ".discard"] {
        for state in ["armed", "rejected", "accepted"] {
            has(&format!("dormouse.{state}.u64{mode}"));
            has(&format!("dormouse.{state}.path{mode}"));
        }
        has(&format!("dormouse.rejected.u64.10-comparisons{mode}"));
        has(&format!("dormouse.dormant.u64{mode}"));
        has(&format!("dormouse.armed.u64.2-sessions{mode}"));
        has(&format!("dormouse.armed.u64.1-of-2-sessions{mode}"));
    }
    has("dormouse.sampled.u64");
    assert!(experiment.measurements.iter().all(|found| found.name != "dormouse.sampled.u64.discard"));
    if report.host.caches_bytes()[1].is_some() {
        ["dormouse.rejected.u64.L2", "dormouse.accepted.u64.L2", "dormouse.dormant.u64.L2"].into_iter().for_each(has);
    }
    for ratio in [
        "rejected_vs_armed",
        "accepted_vs_armed",
        "sampled_vs_armed",
        "rejected_10_comparisons_vs_1",
        "two_sessions_vs_one",
        "two_tags_vs_none",
    ] {
        let is_explained = || experiment.notes.iter().any(|note| note.starts_with(&format!("{ratio}: no ratio")));
        assert!(experiment.ratios.iter().any(|found| found.name == ratio) || is_explained(), "{ratio}");
    }
    // The run fails if an accepted event is neither in the trace nor lost, or if a rejected one is there.
    assert!(experiment.notes.iter().any(|note| note.starts_with("dormouse, discard: ")), "{:#?}", experiment.notes);
    for judged in &experiment.statements {
        let is_of_lttng = judged.ratio.contains("lttng-ust");
        assert_eq!(judged.verdict == Verdict::NotMeasured, is_of_lttng, "{judged:#?}");
        assert!(!is_of_lttng || judged.why.starts_with("LTTng-UST is missing"), "{judged:#?}");
    }
    assert_eq!(experiment.statements.len(), 8);
}
