//! `dormouse record`: which arguments are its own, and which are the command's.

use std::process::{Command, Output};

use crate::DORMOUSE;

/// Runs `dormouse record` with these arguments in a new directory.
fn record(arguments: &[&str]) -> (tempfile::TempDir, Output) {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(DORMOUSE);
    command.arg("record").args(arguments).current_dir(place.path()).env("XDG_RUNTIME_DIR", place.path());
    let output = command.output().expect("dormouse runs");
    (place, output)
}

/// With and without `--` before the command, all arguments after its name are the command's.
#[test]
fn options_after_the_command_belong_to_it() {
    let said = ["-o", "x", "--libc", "--help", "--", "-e", "--attach"];
    for front in [&["-o", "t", "printf", "%s|"][..], &["-o", "t", "--", "printf", "%s|"]] {
        let arguments = [front, &said].concat();
        let (place, output) = record(&arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        let expected: String = said.iter().map(|word| format!("{word}|")).collect();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{arguments:?}");
        assert!(place.path().join("t/metadata").exists() && !place.path().join("x").exists(), "{arguments:?}");
    }
}

/// A misspelt option is not taken for the command.
#[test]
fn unknown_options_before_the_command_are_refused() {
    for arguments in [&["--evnt", "x", "true"][..], &["-o", "t"], &["--attach", "1", "true"], &[]] {
        let (place, output) = record(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(!place.path().join("t").exists(), "{arguments:?}");
    }
}
