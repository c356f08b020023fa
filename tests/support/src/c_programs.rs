//! Libraries, flags and helpers for the tests of C and C++ programs, and the command that traces them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::programs::profile_dir;

/// Installs the libraries into a directory with this name below the target directory, which is emptied first. Returns
/// its path.
///
/// # Panics
/// If they do not build, or cannot be installed.
pub fn install(name: &str) -> PathBuf {
    let prefix = profile_dir().with_file_name("tmp").join(name);
    let _ = std::fs::remove_dir_all(&prefix);
    dormouse_install::install_libraries(&profile_dir(), &prefix).unwrap();
    prefix
}

/// Installs the library of one mechanism like [`install`].
///
/// # Panics
/// See [`install`].
pub fn install_only(mechanism: &str, name: &str) -> PathBuf {
    let prefix = profile_dir().with_file_name("tmp").join(name);
    let _ = std::fs::remove_dir_all(&prefix);
    dormouse_install::install_mechanism(&profile_dir(), &prefix, mechanism).unwrap();
    prefix
}

/// Runs a command, and returns what it printed.
///
/// # Panics
/// If it cannot be run, or fails; the message has what it printed.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{}{text}", String::from_utf8_lossy(&output.stdout));
    output
}

/// Returns the standard output of a command.
///
/// # Panics
/// If it is not UTF-8.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the output of `pkg-config` for packages installed in `prefix`, by words.
///
/// # Panics
/// If it fails.
pub fn pkg_config(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(arguments);
    stdout(&succeed(&mut command)).split_whitespace().map(String::from).collect()
}
