//! `dormouse lab run vring`: every buffer reached the other side and came back, and the figures are there, with those
//! of the paper and of the model.

use std::path::Path;
use std::process::Command;

use dormouse_lab::{Report, RunOptions, Verdict};
use dormouse_testing::{Lack, skip};

use crate::common::{LAB, lab, refuse, succeed};

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
    for what in ["near-ns", "far-ns", "far-ns.waiting", "far-ns.migratory", "far-burst"] {
        assert!(is_there(&format!("model.noshadow.1.{what}")) && is_there(&format!("model.shadow.1.{what}")), "{what}");
    }
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

#[test]
fn vring_bench_is_the_papers_program() {
    let program = Path::new(LAB).with_file_name("vring-bench");
    let error = refuse(Command::new(&program).args(["shadow", "1000"]));
    assert!(error.contains("--cpus") && error.contains("{shadow|noshadow}"), "{error}");
    let [driver, device, ..] = RunOptions::new(true).cpus[..] else {
        return skip(Lack::machine("one CPU", "two CPUs"));
    };
    for ring in ["shadow", "noshadow"] {
        let cpus = format!("{driver},{device}");
        let output = succeed(Command::new(&program).args([ring, "2000", "--cpus", &cpus, "--repeat", "6"]));
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6 + 3, "{text}");
        assert!(lines[..6].iter().all(|line| line.ends_with("ns a buffer")), "{text}");
        assert!(lines[6].starts_with(ring) && lines[6].contains('['), "an interval from six repetitions: {text}");
        assert!(lines[7].starts_with("driver: ") && lines[8].starts_with("device: "), "{text}");
    }
}
