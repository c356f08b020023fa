//! `dormouse rule`: what it refuses before it asks a session.

use std::process::{Command, Output};

use crate::DORMOUSE;

/// Runs `dormouse rule` with these arguments where there is no session.
fn rule(arguments: &[&str]) -> Output {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(DORMOUSE);
    command.arg("rule").args(arguments).current_dir(place.path()).env("XDG_RUNTIME_DIR", place.path());
    command.output().expect("dormouse runs")
}

#[test]
fn a_session_that_does_not_exist_is_named() {
    for (arguments, part) in [
        (&[][..], "there is no session"),
        (&["--json"], "there is no session"),
        (&["http:*"], "http:*"),
        (&["no-such-session", "*"], "no-such-session"),
        (&["4194304", "*"], "there is no process 4194304"),
    ] {
        let output = rule(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(part) && text.lines().count() == 1, "{arguments:?}: {text}");
    }
}
