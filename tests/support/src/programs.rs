//! Programs of other packages that tests run.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

/// Starts the example `thread_pool` of immediate values, and sets its key and its value by `dormouse imv`.
///
/// # Panics
/// If what it prints does not change accordingly.
pub fn steer(pool: &mut Command) {
    let place = profile_dir().with_file_name("tmp").join(format!("pool-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory for sockets");
    let mut pool = pool.env("XDG_RUNTIME_DIR", &place).stdout(Stdio::piped()).spawn().expect("the pool runs");
    let mut lines = BufReader::new(pool.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let imv = |words: &[&str]| {
        let output = Command::new(dormouse()).arg("imv").args(words).env("XDG_RUNTIME_DIR", &place).output();
        let output = output.expect("dormouse runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let pid = pool.id().to_string();
    // It listens before it prints.
    assert_eq!(lines.next().as_deref(), Some("served: 8000 jobs, 0 measured"));
    let listed = imv(&["list", &pid]);
    assert!(listed.contains("pool.profiling") && listed.contains("1..1000"), "{listed}");
    let set = imv(&["set", &pid, "pool.profiling", "on", "pool.sample_every", "16"]);
    assert_eq!(set, "pool.profiling: off → on\npool.sample_every: 1 → 16\n");
    // Lines that are in the pipe already, and one of a phase that was under way, come first.
    let mut is_printed = |line: &str| lines.by_ref().take(1000).any(|printed| printed == line);
    assert!(is_printed("served: 8000 jobs, 500 measured"));
    imv(&["set", &pid, "pool.profiling", "off"]);
    assert!(is_printed("served: 8000 jobs, 0 measured"));
    pool.kill().expect("the pool runs");
    pool.wait().expect("the pool was started here");
    std::fs::remove_dir_all(&place).expect("the directory was made here");
}
