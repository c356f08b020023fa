//! `dormouse doctor`: its exit code says whether tracing works.

use std::process::Command;

use serde_json::Value;

use crate::DORMOUSE;

#[test]
fn doctor_reports_whether_tracing_works() {
    let output = Command::new(DORMOUSE).args(["doctor", "--json"]).output().expect("dormouse runs");
    let findings: Value = serde_json::from_slice(&output.stdout).expect("findings are JSON");
    let findings = findings.as_array().expect("an array");
    for fact in ["patching", "membarrier", "restartable sequences", "socket directory", "library of --libc"] {
        assert!(findings.iter().any(|finding| finding["fact"] == fact), "{fact}");
    }
    let works = !findings.iter().any(|finding| finding["prevents_tracing"] == true);
    assert_eq!(output.status.code(), Some(i32::from(!works)));
}

#[test]
fn doctor_names_what_prevents_tracing() {
    let mut unpatched = Command::new(DORMOUSE);
    let output = unpatched.arg("doctor").env("DORMOUSE_IMV_WRITER", "none").output().expect("dormouse runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("warning  patching: none"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let mut without_sockets = Command::new(DORMOUSE);
    let output = without_sockets.arg("doctor").env("XDG_RUNTIME_DIR", "/proc/none").output().expect("dormouse runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("warning  socket directory: not available"), "{text}");
}
