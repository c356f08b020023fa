//! `dormouse lab run relay-write`: every way of every record is measured, and the written bytes were read back. It runs
//! as part of the test of an installed lab.

use std::path::Path;
use std::process::Command;

use dormouse_lab::{Judged, Report, Verdict};
use dormouse_testing::{Lack, skip_part};

use crate::common::succeed;

/// Runs the experiment with this lab, and checks its output.
pub fn assert_table_and_figures(lab: &Path) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let json = dir.path().join("result.json");
    let output =
        succeed(Command::new(lab).args(["run", "relay-write", "--quick", "--rounds", "2", "--json"]).arg(&json));
    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    let has = |name: String| {
        assert!(experiment.measurements.iter().any(|found| found.name == name), "there is no {name}");
    };
    for way in ["memcpy", "specialised", "words", "inlined"] {
        for record in ["1-byte", "2-bytes", "4-bytes", "8-bytes", "16-bytes", "64-bytes", "256-bytes", "mix"] {
            has(format!("write.{way}.{record}"));
            if record != "1-byte" {
                has(format!("write.{way}.{record}.unaligned"));
            }
        }
        for pages in ["table", "large-list", "large-table", "huge-list"] {
            has(format!("write.{way}.mix.unaligned.{pages}"));
        }
        if report.host.caches_bytes()[1].is_some() {
            has(format!("write.{way}.mix.unaligned.L2"));
        }
    }
    for way in ["checked-bytes", "checked-memcpy"] {
        for record in ["2-bytes", "4-bytes", "8-bytes", "mix"] {
            has(format!("write.{way}.{record}"));
            has(format!("write.{way}.{record}.unaligned"));
        }
    }
    let in_c = !experiment.notes.iter().any(|note| note.starts_with("the engine in C not available"));
    for record in ["8-bytes", "16-bytes", "64-bytes"] {
        for way in ["inlined", "called", "c-inlined", "c-called"] {
            if in_c || !way.starts_with("c-") {
                has(format!("write.{way}.{record}.channel"));
            }
        }
    }
    for way in ["inside-specialised", "inside-checked-bytes"] {
        for record in ["2-bytes", "4-bytes", "8-bytes", "mix"] {
            has(format!("write.{way}.{record}"));
            has(format!("write.{way}.{record}.unaligned"));
        }
    }
    let exact = |name: &str| {
        let found = experiment.measurements.iter().find(|found| found.name == name);
        found.filter(|found| found.is_exact).map(|found| found.median)
    };
    assert!(exact("list.signals-inside-writes").is_some_and(|count| count > 0.0), "{:#?}", experiment.notes);
    assert!(exact("list.entries-walked.signals").is_some_and(|entries| (1.0..=2.0).contains(&entries)));
    let nested = experiment.measurements.iter().find(|found| found.name == "list.entries-walked.nested");
    assert!(nested.is_some_and(|nested| nested.is_exact && nested.median <= 2.0), "{nested:?}");
    let walked = experiment.measurements.iter().find(|found| found.name == "list.entries-walked");
    assert!(walked.is_some_and(|walked| walked.is_exact && walked.median == 1.0), "{walked:?}");
    if experiment.notes.iter().any(|note| note.starts_with("stores of 32-bit programs not available")) {
        skip_part("stores of 32-bit programs", Lack::machine("no 32-bit compiler", "apt-get install gcc-multilib"));
    } else {
        for way in ["u64", "u64-at-4", "u32-twice", "memcpy"] {
            has(format!("i686.{way}"));
        }
    }
    for ratio in ["inlined_vs_memcpy", "specialised_vs_memcpy"] {
        assert!(experiment.ratios.iter().any(|found| found.name == ratio), "{ratio}");
    }
    let is_verified =
        |note: &String| note.contains("records written; the buffers of 194 cases were read back and are right");
    assert!(experiment.notes.iter().any(is_verified), "{:#?}", experiment.notes);
    let stdout = String::from_utf8_lossy(&output.stdout);
    for text in ["Desnoyers (2009)", "memcpy called", "1.000 (exact)"] {
        assert!(stdout.contains(text), "{text} is not in {stdout}");
    }
    let holds = |judged: &Judged| judged.text.contains("1 or 2 entries") && judged.verdict == Verdict::Holds;
    assert!(experiment.statements.iter().any(holds), "{:#?}", experiment.statements);
}
