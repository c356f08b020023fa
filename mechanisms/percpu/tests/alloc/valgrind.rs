//! Runs these tests again under valgrind: no access is outside the memory from the kernel, and none depends on a byte
//! that was never written.

use std::process::Command;

use dormouse_testing::{ENV_SKIPS, Lack, has, skip};

const ENV_INSIDE: &str = "DORMOUSE_TEST_INSIDE_VALGRIND";
/// Variable that names the command which runs programs of this architecture, if the machine has another one.
const ENV_RUNNER: &str = "DORMOUSE_TEST_RUNNER";

/// Tests that are left out, because valgrind runs one thread at a time, and slowly.
const SKIPPED: [&str; 3] = [
    // Thousands of operations, each of which is checked against all objects.
    "oracle::",
    // Threads that allocate without a pause while others fork.
    "a_forked_child_has_a_private_pool_of_its_own",
    // This test.
    "valgrind::",
];

#[test]
fn pools_are_clean_under_valgrind() {
    if std::env::var_os(ENV_INSIDE).is_some() {
        return;
    }
    if std::env::var_os(ENV_RUNNER).is_some() {
        return skip(Lack::machine("valgrind is of another architecture", "run the tests on a machine of this one"));
    }
    if !has("valgrind") {
        return;
    }
    let mut command = Command::new("valgrind");
    command.args(["-q", "--error-exitcode=99", "--fair-sched=yes"]).arg(std::env::current_exe().unwrap());
    command
        .arg("--test-threads=1")
        .args(SKIPPED.iter().flat_map(|name| ["--skip", *name]))
        .env(ENV_INSIDE, "1")
        .env_remove(ENV_SKIPS);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let is_run = text.contains("test errors::") && text.contains("test threads::") && !text.contains("oracle::");
    assert!(output.status.success() && is_run, "{text}{}", String::from_utf8_lossy(&output.stderr));
}
