//! Helpers of the tests of the command.

use std::io::ErrorKind;
use std::process::{Command, Output};

pub const LAB: &str = env!("CARGO_BIN_EXE_dormouse-lab");

/// Returns the lab's command, with no project to build and no peers, so that it does not depend on what else has been
/// built.
pub fn lab() -> Command {
    let mut lab = Command::new(LAB);
    lab.env("DORMOUSE_LAB_PROJECT", "/dev/null").env("DORMOUSE_LAB_PEERS", "/dev/null");
    lab
}

/// Runs a command. A program that a test has just installed is busy while a child that another test forked has it open;
/// that ends when the child calls exec.
fn output(command: &mut Command) -> std::io::Result<Output> {
    loop {
        match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            output => return output,
        }
    }
}

#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = output(command).expect("dormouse-lab runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Checks that the command prints nothing but one line and exits with 2. Returns the line.
#[track_caller]
pub fn refuse(command: &mut Command) -> String {
    let output = command.output().expect("dormouse-lab runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{command:?}: {output:?}");
    error
}
