//! A statically linked program: its libc has no symbols to look up, but may have registered threads nevertheless.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::path::Path;
use std::process::Command;

use dormouse_testing::{Lack, has_target, skip};

const TARGET: &str =
    if cfg!(target_arch = "x86_64") { "x86_64-unknown-linux-gnu" } else { "aarch64-unknown-linux-gnu" };
const MUSL: &str =
    if cfg!(target_arch = "x86_64") { "x86_64-unknown-linux-musl" } else { "aarch64-unknown-linux-musl" };

/// Builds the program statically for a target, and runs it with and without libc's registration.
fn run(target: &str) -> Option<[String; 2]> {
    if !Path::new(env!("CARGO")).exists() {
        skip(Lack::machine(
            "cargo, which compiled the tests, is not on this machine",
            "run them where they are compiled",
        ));
        return None;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static");
    let build = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--offline",
            "--bin",
            "dormouse_percpu_static",
            "--features",
            "static-program",
            "--target",
            target,
            "--target-dir",
        ])
        .arg(&dir)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    if !build.status.success() {
        let reason = format!("{target} does not link statically here: {}", String::from_utf8_lossy(&build.stderr));
        skip(Lack::machine(reason, "install the C library's archives"));
        return None;
    }
    let program = dir.join(target).join("debug/dormouse_percpu_static");
    Some(["", "glibc.pthread.rseq=0"].map(|tunables| {
        let output = Command::new(&program).env("GLIBC_TUNABLES", tunables).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }))
}

#[test]
fn a_static_program_finds_the_registration_of_its_libc() {
    let Some([plain, tuned]) = run(TARGET) else { return };
    // Some libcs register threads; an older one leaves it to this crate in both runs.
    if dormouse_percpu::Rseq::of_libc().is_some() {
        assert_eq!((plain.as_str(), tuned.as_str()), ("Some(true)", "Some(false)"));
    } else {
        assert_eq!(plain, tuned);
    }
}

#[test]
fn with_musl_threads_register_themselves() {
    if !has_target(MUSL) {
        return;
    }
    let Some([plain, tuned]) = run(MUSL) else { return };
    assert_eq!(plain, tuned);
    assert_ne!(plain, "Some(true)");
}
