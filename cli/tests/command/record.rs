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

/// A rule that is wrong is shown with the place, before anything is made or run.
#[test]
fn wrong_rules_are_refused() {
    for (rules, parts) in [
        (&["a:*", "a:b where bytes >"][..], &["-e: line 1, column ", "bytes >\n", "^"][..]),
        (&["a:b"; 65], &["there are 65 rules, and a session has at most 64"]),
    ] {
        let options = rules.iter().flat_map(|rule| ["-e", rule]);
        let arguments: Vec<&str> = options.chain(["-o", "t", "--", "touch", "x"]).collect();
        let (place, output) = record(&arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{rules:?}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{rules:?}: {text}");
        assert!(!place.path().join("t/metadata").exists() && !place.path().join("x").exists(), "{rules:?}");
    }
}

/// A trigger whose event is excluded would never fire.
#[test]
fn an_excluded_trigger_is_refused() {
    let (_, output) =
        record(&["--mode", "overwrite", "--snapshot-on", "event:a:b", "-e", "!a:*", "-o", "t", "--", "touch", "x"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("waits for a:b, which the rule `!a:*` excludes"), "{text}");
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
