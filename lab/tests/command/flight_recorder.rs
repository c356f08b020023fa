//! `dormouse lab run flight-recorder`: writers are measured with and without snapshots, and the sizes of traces are
//! measured.

use dormouse_lab::Report;

use crate::common::{lab, succeed};

#[test]
fn flight_recorder_has_its_figures() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let json = dir.path().join("result.json");
    succeed(lab().args(["run", "flight-recorder", "--quick", "--rounds", "2", "--no-peers", "--json"]).arg(&json));
    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    let of = |name: &str| {
        let found = experiment.measurements.iter().find(|found| found.name == name);
        found.unwrap_or_else(|| panic!("there is no {name}"))
    };
    for name in ["dormouse.empty", "dormouse.armed.u64", "dormouse.armed.u64.snapshots"] {
        assert_eq!((of(name).n, of(name).unit.as_str()), (2, "ns"));
    }
    // At least a record's header and field, and at most half as much again, for pages.
    for (record, least) in [("ids", 24.0), ("none", 13.0)] {
        let bytes = of(&format!("disk_bytes_per_event.dormouse.{record}"));
        assert!((least..1.5 * least).contains(&bytes.median), "{bytes:?}");
    }
    assert!(experiment.ratios.iter().any(|ratio| ratio.name == "snapshot_writer_slowdown"));
    assert!(experiment.notes.iter().any(|note| note.contains("snapshots of a session")), "{:#?}", experiment.notes);
}
