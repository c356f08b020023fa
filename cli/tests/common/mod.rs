//! What tests of the command have in common.

use std::path::Path;
use std::process::{Command, Output};

pub const DORMOUSE: &str = env!("CARGO_BIN_EXE_dormouse");

/// Set by who has built the whole workspace, as `cargo xtask test` does: then nothing is left to build.
const ENV_BUILT: &str = "DORMOUSE_BUILT";

/// The engines belong to another package: cargo does not build them for this one's tests.
pub fn build_engines() {
    if std::env::var_os(ENV_BUILT).is_some() {
        return;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "dormouse-lab", "--bins", "--manifest-path"]);
    build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
    if Path::new(DORMOUSE).parent().is_some_and(|dir| dir.ends_with("release")) {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "the engines are built");
}

#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("dormouse runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// It prints nothing but one line, which it returns, and exits with 2.
#[track_caller]
pub fn refuse(command: &mut Command) -> String {
    let output = command.output().expect("dormouse runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{command:?}: {output:?}");
    error
}
