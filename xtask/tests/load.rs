//! The processes that `cargo xtask test --load` starts.

use std::process::{Command, Stdio};

/// The kernel closes the pipe however the parent ends.
#[test]
fn a_busy_process_ends_with_its_input() {
    let mut busy = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("busy").stdin(Stdio::piped()).spawn().unwrap();
    assert!(busy.try_wait().unwrap().is_none());
    drop(busy.stdin.take());
    assert!(busy.wait().unwrap().success());
}
