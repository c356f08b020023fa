//! What `cargo xtask test --load` starts.

use std::process::{Command, Stdio};

/// However its starter ends, the kernel closes the pipe.
#[test]
fn a_busy_process_ends_with_its_input() {
    let mut busy = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("busy").stdin(Stdio::piped()).spawn().unwrap();
    assert!(busy.try_wait().unwrap().is_none());
    drop(busy.stdin.take());
    assert!(busy.wait().unwrap().success());
}
