//! Differences that are planted between two real results of one machine are among the facts that differ.
//!
//! The planted settings are inherited over `exec`: a `prctl` that forbids huge pages, and a tunable that disables
//! restartable sequences. The test does not depend on the load of the machine.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{lab, refuse, succeed};

/// Returns the path of the result of a short run, in an environment that `plant` changes.
fn result(dir: &Path, name: &str, plant: impl FnOnce(&mut Command)) -> PathBuf {
    let path = dir.join(name);
    let mut command = lab();
    command
        .args(["run", "percpu", "--quick", "--rounds", "1", "--no-peers", "--json"])
        .arg(&path)
        .env_remove("GLIBC_TUNABLES");
    plant(&mut command);
    succeed(&mut command);
    path
}

/// Returns the values of a fact in both results, if they differ.
fn difference(a: &Path, b: &Path, fact: &str) -> Option<[String; 2]> {
    let output = succeed(lab().args(["compare", "--json"]).args([a, b]));
    let comparison: Value = serde_json::from_slice(&output.stdout).expect("a comparison is JSON");
    let facts = comparison["facts"].as_array().expect("a list");
    let found = facts.iter().find(|one| one["fact"] == fact)?;
    Some(["a", "b"].map(|side| found[side].as_str().expect("text").to_string()))
}

#[test]
fn planted_differences_are_listed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let plain = result(dir.path(), "plain.json", |_| ());
    let planted = result(dir.path(), "planted.json", |command| {
        let disable = || rustix::thread::disable_transparent_huge_pages(true).map_err(std::io::Error::from);
        // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
        unsafe { command.pre_exec(disable) };
        command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    });
    for fact in ["memory.thp_process", "tracing.rseq"] {
        assert_eq!(difference(&plain, &plain, fact), None);
    }
    let found = difference(&plain, &planted, "memory.thp_process");
    assert_eq!(found, Some(["allowed", "disabled"].map(String::from)));
    let text = succeed(lab().arg("compare").args([&planted, &plain]));
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let is_found = |line: &str| line.split_whitespace().eq(["memory.thp_process", "disabled", "allowed"]);
    assert!(text.lines().any(is_found), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour where there is no terminal: {text}");

    let host: Value = serde_json::from_slice(&std::fs::read(&plain).expect("written")).expect("JSON");
    if host["host"]["facts"]["tracing.rseq"] == "available" {
        let [here, there] = difference(&plain, &planted, "tracing.rseq").expect("it differs");
        assert!(here == "available" && there.contains("GLIBC_TUNABLES=glibc.pthread.rseq=0"), "{there}");
    }
}

#[test]
fn a_file_that_is_not_a_result_is_an_error() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("poem.json");
    std::fs::write(&path, "[\"no result\"]").expect("written");
    let error = refuse(lab().arg("compare").args([&path, &path]));
    assert!(error.contains("poem.json is not a result"), "{error}");
}
