//! Tests that need a process of their own: this program again, with only one test.
//!
//! ```text
//!   #[test] fn name()  ── in the parent ──▶  run("name", …) runs name() in a new process, and checks its result
//!                      ── in the child ───▶  is_child(): runs the test itself
//! ```

use std::ffi::OsString;
use std::process::{Command, Output};

/// Variable that names the command which runs programs of this architecture, if the machine has another one.
pub const ENV_RUNNER: &str = "DORMOUSE_TEST_RUNNER";
const ENV_ALONE: &str = "DORMOUSE_TEST_ALONE";

/// Whether this is a process that runs a single test.
pub fn is_child() -> bool {
    std::env::var_os(ENV_ALONE).is_some()
}

/// Runs the test of this name in a process of its own; `prepare` may change the command.
pub fn run(name: &str, prepare: impl FnOnce(&mut Command)) -> Output {
    let program = std::env::current_exe().unwrap().into_os_string();
    let runner = std::env::var(ENV_RUNNER).unwrap_or_default();
    let mut words = runner.split_whitespace().map(OsString::from).chain([program]);
    let mut command = Command::new(words.next().expect("at least the program"));
    command.args(words).args(["--exact", name, "--nocapture"]);
    command.env_remove("DORMOUSE_IMV_WRITER").env(ENV_ALONE, "1");
    prepare(&mut command);
    command.output().unwrap()
}

/// Asserts that the test was run, and passed.
pub fn assert_passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}
