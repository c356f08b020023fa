//! `dormouse lab doctor --save` and `--compare`: differences are named and decide the exit code, and a file that is not
//! a host is refused.

use std::path::Path;
use std::process::Output;

use crate::common::lab;
use crate::output::closed;

fn compare(path: &Path) -> Output {
    lab().args(["doctor", "--compare"]).arg(path).output().unwrap()
}

#[test]
fn a_saved_host_is_compared_with_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("host.json");
    // The output is not read, but the file is written all the same.
    let mut command = lab();
    command.args(["doctor", "--save"]).arg(&saved).stdout(closed()).stderr(closed());
    let output = command.output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    // A machine whose core is ten times as fast.
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&saved).unwrap()).unwrap();
    for figure in json["host"]["probes"]["figures"].as_array_mut().unwrap() {
        if figure["name"] == "core clock.addition" {
            let tenth = |value: &mut serde_json::Value| *value = (value.as_f64().unwrap() / 10.0).into();
            figure["samples"].as_array_mut().unwrap().iter_mut().for_each(tenth);
        }
    }
    std::fs::write(&saved, json.to_string()).unwrap();
    let output = compare(&saved);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stdout);
    let is_found = |line: &str| line.trim().starts_with("core clock addition") && line.contains("differs by");
    assert!(text.lines().any(is_found) && text.contains("\ndiffer: core clock"), "{text}");
    for subject in ["core clock", "caches", "scheduler", "clock source", "interruptions", "page backing"] {
        assert!(text.lines().any(|line| line.trim().starts_with(subject)), "{subject}: {text}");
    }
}

#[test]
fn a_file_without_a_measured_host_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.json");
    let unmeasured = "{\"schema\":1,\"host\":{\"cpu\":\"a\"},\"experiments\":[]}";
    for (text, part) in [("no JSON", "is not a result"), (unmeasured, "has no measurements of its host")] {
        std::fs::write(&path, text).unwrap();
        let output = compare(&path);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(part) && output.stdout.is_empty(), "{error}");
    }
    assert_eq!(compare(&dir.path().join("none")).status.code(), Some(2));
}

#[test]
fn doctor_has_findings_in_every_group() {
    let output = lab().args(["doctor", "--json"]).output().expect("dormouse runs");
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).expect("findings are JSON");
    let findings = findings.as_array().expect("an array");
    for group in ["processor", "clock", "kernel", "memory", "permissions", "tracing"] {
        assert!(findings.iter().any(|finding| finding["group"] == group), "{group}");
    }
    let works = !findings.iter().any(|finding| finding["prevents_tracing"] == true);
    assert_eq!(output.status.code(), Some(i32::from(!works)));

    let output = lab().arg("doctor").env("DORMOUSE_IMV_WRITER", "none").output().expect("dormouse runs");
    assert_eq!(output.status.code(), Some(1), "unpatched");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("warning  patching: none"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}
