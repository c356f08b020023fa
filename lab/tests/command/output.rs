//! If the lab's output is not read, or cannot be written, the work is done all the same, and the exit code tells the
//! two apart.

use std::fs::File;
use std::process::{Output, Stdio};

use crate::common::lab;

/// Runs the lab with these outputs.
fn run(words: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    lab().args(words).stdin(Stdio::null()).stdout(stdout).stderr(stderr).output().unwrap()
}

pub fn closed() -> Stdio {
    rustix::pipe::pipe().unwrap().1.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

const FULL: &str = "dormouse: cannot write to standard output: No space left on device (os error 28)";

#[test]
fn a_closed_output_does_not_change_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (result, page) = (path("result.json"), path("page.html"));
    std::fs::write(&result, r#"{"schema":1,"host":{},"experiments":[]}"#).unwrap();
    let all = [
        &["--help"][..],
        &["--version"],
        &["list"],
        &["report", &result, "-o", &page],
        &["compare", &result, &result],
        &["compare", &result, &result, "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["run", "--help"],
    ];
    // In parallel, because the doctor watches for a second each time.
    std::thread::scope(|scope| {
        for words in all {
            scope.spawn(move || assert_ends_as_read(words));
        }
    });
}

fn assert_ends_as_read(words: &[&str]) {
    let read = run(words, Stdio::piped(), Stdio::piped());
    for (output, is_full) in [
        (run(words, closed(), Stdio::piped()), false),
        (run(words, closed(), closed()), false),
        (run(words, full(), Stdio::piped()), true),
    ] {
        let text = String::from_utf8_lossy(&output.stderr);
        let code = if is_full { Some(2) } else { read.status.code() };
        assert_eq!((output.status.code(), text.lines().last() == Some(FULL)), (code, is_full), "{words:?}: {text}");
        assert!(!text.contains("panicked"), "{words:?}: {text}");
    }
}

#[test]
fn the_result_file_is_written_if_output_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("result.json").to_string_lossy().into_owned();
    let run_percpu = ["run", "percpu", "--quick", "--rounds", "2", "--no-peers", "--json", &file];
    let output = run(&run_percpu, full(), Stdio::piped());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.lines().last() == Some(FULL), "{text}");
    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(figures["experiments"][0]["name"], "percpu");
    // The result also has the machine that was measured.
    assert_eq!(figures["host"]["probes"]["figures"][0]["name"], "core clock.addition");
    let output = run(&["doctor", "--compare", &file], closed(), closed());
    assert_eq!(output.status.code(), Some(2), "a quick run looks at its host once");
}
