//! Tests that need a process of their own: this program again, with one test and nothing else.
//!
//! ```text
//!   #[test] fn name()  ── the first time ──▶  run("name", …) starts name() anew, and looks at how that ended
//!                      ── in the child ────▶  is_child(): does what it is about
//! ```

use std::ffi::OsString;
use std::process::{Command, Output};

/// What runs programs of this architecture, if the machine is of another.
pub const ENV_RUNNER: &str = "DORMOUSE_TEST_RUNNER";
const ENV_ALONE: &str = "DORMOUSE_TEST_ALONE";

/// Whether this is the process that a test has to itself.
pub fn is_child() -> bool {
    std::env::var_os(ENV_ALONE).is_some()
}

/// Runs the test of this name in a process of its own, which `prepare` may change.
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

/// That the test was run, and passed.
pub fn assert_passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}
