//! What tests of the command have in common.

use std::io::ErrorKind;
use std::process::{Command, Output};

pub const LAB: &str = env!("CARGO_BIN_EXE_dormouse-lab");

/// The lab, with no project to build and no peers: what has been built besides makes no difference.
pub fn lab() -> Command {
    let mut lab = Command::new(LAB);
    lab.env("DORMOUSE_LAB_PROJECT", "/dev/null").env("DORMOUSE_LAB_PEERS", "/dev/null");
    lab
}

/// A program that a test has just installed is busy as long as a child that another test forked meanwhile has it open: that ends
/// when the child executes something.
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

/// It prints nothing but one line, which it returns, and exits with 2.
#[track_caller]
pub fn refuse(command: &mut Command) -> String {
    let output = command.output().expect("dormouse-lab runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{command:?}: {output:?}");
    error
}
