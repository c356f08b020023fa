//! Programs of other packages that tests run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the directory that the test's own profile builds to (`target/debug`, `target/release`).
///
/// # Panics
/// If the calling program is not a test.
pub fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors().nth(2).expect("a test lies in deps/ of its profile").into()
}

/// Builds a package, or a target of it, in the test's own profile, and returns the output directory. Builds nothing if
/// the whole workspace has been built, as `cargo xtask test` does.
///
/// # Panics
/// If it does not build.
pub fn build(package: &[&str]) -> PathBuf {
    let profile = profile_dir();
    if std::env::var_os("DORMOUSE_BUILT").is_some() {
        return profile;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package"]).args(package).arg("--target-dir");
    command.arg(profile.parent().expect("a profile lies in a target directory"));
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "cannot build {package:?}: {}", String::from_utf8_lossy(&output.stderr));
    profile
}

/// Returns the command `dormouse`, built once.
///
/// # Panics
/// If it does not build.
pub fn dormouse() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build(&["dormouse-cli"]).join("dormouse"))
}
