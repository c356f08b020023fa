//! `dormouse X` runs `dormouse-X` from its own directory or from `PATH`, if X is not one of its own sub-commands.

use std::path::PathBuf;
use std::process::{Command, Output};

use dormouse_testing::{copy_program, write_script};
use tempfile::TempDir;

use crate::DORMOUSE;

/// A copy of the command in a directory of its own, and another directory, the only one in `PATH`.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        ["bin", "path"].iter().for_each(|name| std::fs::create_dir(dir.path().join(name)).unwrap());
        copy_program(DORMOUSE.as_ref(), &dir.path().join("bin/dormouse"));
        Place { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        write_script(&self.path(name), &script(text));
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.path("bin/dormouse"));
        command.args(arguments).env("PATH", self.path("path")).output().unwrap()
    }
}

fn script(text: &str) -> String {
    format!("#!/bin/sh\n{text}\n")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn arguments_and_exit_code_pass_through() {
    let place = Place::new();
    place.script("path/dormouse-greet", "printf '%s|' \"$@\"; exit 7");
    let output = place.run(&["greet", "--version", "two words", "-x"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(7), "--version|two words|-x|"));
    // `help X` is X's own help.
    assert_eq!(stdout(&place.run(&["help", "greet"])), "--help|");
    // A program beside the command takes precedence.
    place.script("bin/dormouse-greet", "echo beside");
    assert_eq!(stdout(&place.run(&["greet"])), "beside\n");
}

#[test]
fn own_commands_and_paths_run_no_external_program() {
    let place = Place::new();
    place.script("path/dormouse-list", "echo external");
    place.script("path/dormouse-help", "echo external");
    place.script("greet", "echo external");
    for arguments in [&["list", "--help"][..], &["help"], &["../../greet"], &["--version"], &[]] {
        let output = place.run(arguments);
        assert!(!stdout(&output).contains("external"), "{arguments:?}: {output:?}");
    }
    std::fs::write(place.path("path/dormouse-note"), script("echo external")).unwrap();
    let output = place.run(&["note"]);
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("unrecognized subcommand 'note'"),
        "{output:?}"
    );
}

#[test]
fn export_to_parquet_runs_dormouse_query() {
    let place = Place::new();
    place.script("path/dormouse-query", "printf '%s|' \"$@\"; exit 1");
    for (arguments, expected) in [
        (&["--to", "parquet"][..], "a|b|--export|out|"),
        (&["--to", "arrow", "--clocks", "c.json"], "a|b|--export|out|--format|arrow|--clocks|c.json|"),
    ] {
        let output = place.run(&[&["export", "a", "b", "-o", "out"], arguments].concat());
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), expected), "{output:?}");
    }
}

#[test]
fn installed_programs_are_listed_in_the_help_and_suggested() {
    let place = Place::new();
    let help = stdout(&place.run(&["--help"]));
    assert!(help.contains("record") && !help.contains("vring"), "{help}");
    place.script("path/dormouse-vring", "");
    place.script("bin/dormouse-greet", "");
    place.script("bin/dormouse-lab-engine", "");
    let help = stdout(&place.run(&["--help"]));
    for part in ["  vring ", "Test and serve block devices", "  greet ", "Run "] {
        assert!(help.contains(part), "{part} is not in {help}");
    }
    assert!(!help.contains("engine"), "{help}");
    for (wrong, right) in [("vrnig", "vring"), ("recrod", "record")] {
        let output = place.run(&[wrong]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).contains(&format!("'{right}'")), "{output:?}");
    }
}

#[test]
fn a_missing_program_is_an_error_with_a_remedy() {
    let place = Place::new();
    for (name, remedy) in [
        ("lab", "--with-lab"),
        ("query", "--with-query"),
        ("ship", "--with-query"),
        ("vring", "cargo xtask install"),
        ("pages", "cargo build --release"),
    ] {
        for arguments in [&[name, "run"][..], &["help", name]] {
            let output = place.run(arguments);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let error = stderr(&output);
            assert!(error.lines().count() == 1 && error.contains(remedy), "{error}");
        }
    }
}
