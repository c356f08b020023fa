//! The example that is set from outside.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::process::Command;

use dormouse_testing::programs::{profile_dir, steer};

#[test]
fn the_thread_pool_is_set_while_it_runs() {
    steer(Command::new(profile_dir().join("examples/thread_pool")).arg("--listen"));
}
