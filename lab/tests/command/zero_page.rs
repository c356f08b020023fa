//! `dormouse lab run zero-page`: frames are read from the page that the kernel reports, with as many faults as pages,
//! and the paper is judged.

use dormouse_lab::{Measurement, Report, Verdict};

use crate::common::{lab, succeed};

#[test]
fn zero_page_has_its_census_its_faults_and_its_paper() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let json = dir.path().join("result.json");
    let output = succeed(lab().args(["run", "zero-page", "--quick", "--rounds", "1", "--json"]).arg(&json));
    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    let find = |name: &str| -> &Measurement {
        let found = experiment.measurements.iter().find(|found| found.name == name);
        found.unwrap_or_else(|| panic!("{name} was not measured"))
    };
    let counter = |name: &str, counter: &str| find(name).counters[counter];
    let frame = |name: &str| {
        ["unbacked", "zero", "huge_zero", "small", "huge"].map(|kind| counter(name, &format!("{kind}_bytes")))
    };
    let whole: f64 = frame("read.written.later").iter().sum();
    assert!(whole >= f64::from(8 << 20), "{whole}");
    let sees_zero = experiment.notes.iter().all(|note| !note.contains("cannot be told from memory"));
    for part in ["read", "decode"] {
        for state in ["never-written", "populate-read"] {
            let [_, zero, huge_zero, small, huge] = frame(&format!("{part}.{state}.later"));
            let of_zero = if sees_zero { zero } else { small };
            assert_eq!((of_zero, huge_zero, huge), (whole, 0.0, 0.0), "{part} {state}");
        }
        for state in ["written", "populate-write"] {
            assert_eq!(frame(&format!("{part}.{state}.later")), [0.0, 0.0, 0.0, whole, 0.0], "{part} {state}");
        }
    }
    // Pages that earlier, smaller frames touched do not fault again; populated memory does not fault at all.
    let pages = whole / rustix::param::page_size() as f64;
    assert_eq!(counter("read.never-written.first.at-once", "faults"), pages);
    assert_eq!(counter("write.never-written.first.at-once", "faults"), pages);
    let growing = counter("read.never-written.first", "faults");
    assert!(growing > 0.0 && growing < pages, "{growing} of {pages}");
    for name in [
        "read.written.first",
        "read.populate-write.first",
        "write.populate-write.first.at-once",
        "read.never-written.later",
    ] {
        assert_eq!(counter(name, "faults"), 0.0, "{name}");
    }
    for name in
        ["zero_page_read_vs_real", "zero_page_decode_vs_real", "first_touch_vs_prefaulted", "first_write_vs_prefaulted"]
    {
        let ratio = experiment.ratios.iter().find(|ratio| ratio.name == name).unwrap_or_else(|| panic!("no {name}"));
        assert!(ratio.value.is_finite() && ratio.ci95.is_none_or(|[low, high]| low <= high), "{ratio:?}");
    }
    // Private /dev/zero is memory without a file; shared /dev/zero is a file of its own.
    for (memory, has_zero) in [("anonymous", true), ("dev-zero-private", true), ("dev-zero-shared", false)] {
        let [_, zero, _, small, _] = frame(&format!("read.never-written.later.at-once.{memory}"));
        let (expected, other) = if has_zero && sees_zero { (zero, small) } else { (small, zero) };
        assert_eq!((expected, other), (whole, 0.0), "{memory}");
    }
    // A decoder always leaves memory behind.
    for state in ["never-written", "populate-write"] {
        let [unbacked, zero, _, small, _] = frame(&format!("codec.{state}.later"));
        assert!(unbacked == 0.0 && zero == 0.0 && small > 0.0, "{state}");
    }
    for name in ["touch.zero.one", "touch.private.four-each-cpu", "slowdown.zero.each-cpu"] {
        assert!(find(name).median > 0.0, "{name}");
    }
    // One round has no interval.
    assert!(!experiment.statements.is_empty());
    for judged in &experiment.statements {
        assert!(matches!(judged.verdict, Verdict::CannotBeTold | Verdict::NotMeasured), "{judged:?}");
    }
    assert!(String::from_utf8_lossy(&output.stdout).contains("Chen (2008)"));
}
