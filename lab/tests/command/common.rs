//! What tests of the command have in common.

use std::process::{Command, Output};

pub const LAB: &str = env!("CARGO_BIN_EXE_dormouse-lab");

#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("dormouse-lab runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// It prints nothing but one line, which it returns, and exits with 2.
#[track_caller]
pub fn refuse(command: &mut Command) -> String {
    let output = command.output().expect("dormouse-lab runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{command:?}: {output:?}");
    error
}
