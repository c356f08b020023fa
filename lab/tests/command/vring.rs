//! `dormouse lab run vring`: every buffer reached the other side and came back, and the figures are there, with those
//! of the paper and of the model.

use dormouse_lab::{Report, Verdict};

use crate::common::{lab, succeed};

#[test]
fn vring_has_its_figures_and_the_models() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let json = dir.path().join("result.json");
    let mut command = lab();
    let output =
        succeed(command.args(["run", "vring", "--quick", "--rounds", "12", "--no-peers", "--json"]).arg(&json));
    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    let notes = &experiment.notes;
    let has_note = |part: &str| notes.iter().any(|note| note.contains(part));
    let is_there = |name: &str| experiment.measurements.iter().any(|found| found.name == name);
    assert!(is_there("model.shadow-private.64.migratory") && is_there("model.noshadow.1.driver.load-misses"), "{text}");
    assert!(experiment.statements.iter().any(|statement| statement.verdict == Verdict::Holds), "the model's at least");
    if has_note("nothing is measured") {
        assert_eq!(report.host.cpu_count, 1, "{notes:#?}");
        return;
    }
    assert!(has_note("each loop's buffers came to the device, and back, all of them once"), "{notes:#?}");
    // Circumstances in which the CPUs hardly were have no figures; the others have all.
    for suffix in ["", ".far"] {
        let is_measured = is_there(&format!("stream.noshadow.1{suffix}"));
        for shape in ["stream", "lockstep"] {
            for ring in [
                "noshadow",
                "shadow",
                "noshadow-flags",
                "shadow-flags",
                "shadow-private",
                "in-order",
                "packed",
                "adaptive",
                "packed-adaptive",
            ] {
                for batch in ["1", "4", "16", "64"] {
                    let name = format!("{shape}.{ring}.{batch}{suffix}");
                    assert_eq!(is_there(&name), is_measured, "{name}: {notes:#?}");
                }
            }
        }
        let has_ratio = |name: &str| experiment.ratios.iter().any(|found| found.name == name);
        for ratio in ["shadow_vs_noshadow_1", "adaptive_vs_plain_64", "packed_vs_split"] {
            let name = format!("{ratio}{}", suffix.replace('.', "_"));
            assert_eq!(has_ratio(&name), is_measured, "{name}");
        }
    }
    assert!(!is_there("long.noshadow.1"), "in a full run only");
    assert!(String::from_utf8_lossy(&output.stdout).contains("146.585969976"), "the table of 2015");
}
