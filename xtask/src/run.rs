//! Commands that tasks run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use dormouse_install::{COMMANDS, LIBRARIES, PRELOADED};

/// Returns the root directory of the project.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns cargo's target directory, which contains this program.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let dir = program.parent().and_then(Path::parent).context("this program is not in cargo's target directory")?;
    Ok(dir.to_path_buf())
}

/// Manifests of the workspaces that are built and tested together: the product's, the lab's, and that of the Python
/// module and Arrow columns. All build into one target directory.
pub(crate) const WORKSPACES: [&str; 3] = ["Cargo.toml", LAB, PYTHON];

/// Manifest of the workspace of the Python module and of columns.
pub(crate) const PYTHON: &str = "read/python/Cargo.toml";

/// Manifest of the workspace of SQL queries. It has its own step, because its dependencies take longer to compile than
/// everything else.
pub(crate) const QUERY: &str = "read/query/Cargo.toml";

/// Manifest of the lab's workspace.
pub(crate) const LAB: &str = "lab/Cargo.toml";

/// Checks that libraries built here can be preloaded into programs.
///
/// # Errors
/// A character of the path has another meaning to the loader.
pub(crate) fn check_path() -> Result<()> {
    let path = target_dir()?.display().to_string();
    if let Some(character) = path.chars().find(|character| " :$".contains(*character)) {
        bail!(
            "LD_PRELOAD cannot name files in {path}, because the path contains `{character}`; move this directory to another path"
        );
    }
    Ok(())
}

/// Returns a cargo command that runs in the project's root.
pub(crate) fn cargo<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    // `cargo run` has told this program where its package is. Build scripts that look at these variables (that of ring does) would run again in every
    // clone, and all that depends on them would be compiled again.
    let is_of_package = |name: &str| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_package)) {
        command.env_remove(name);
    }
    command
}

/// Returns the command that builds the SQL programs. It builds all of them, even if only one is needed: the features of
/// their dependencies depend on the set, and DataFusion should be compiled once.
pub(crate) fn build_query() -> Command {
    let mut build = cargo(["build", "--bins", "--manifest-path", QUERY]);
    build.args(["-p", "dormouse-query", "-p", "dormouse-cluster", "-p", "dormouse-ship"]);
    build
}

/// Returns a command as a line for a shell.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    std::iter::once(program)
        .chain(command.get_args())
        .map(|word| quote(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Shows a command and runs it with this program's standard output and error.
///
/// # Errors
/// The command cannot be run, or fails.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    println!("$ {}", line(command));
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Returns the installed packages as arguments of cargo. If they are built together, shared libraries are compiled
/// once.
pub(crate) fn packages() -> impl Iterator<Item = &'static str> {
    let all = COMMANDS.iter().chain(&LIBRARIES).chain([&PRELOADED]);
    all.flat_map(|(_, package)| ["--package", *package])
}

/// Builds the lab with its engines and the harness of its peers, and all packages that are installed, which include the
/// preload library.
///
/// # Errors
/// Something does not build.
pub(crate) fn build_lab() -> Result<()> {
    succeed(cargo(["build", "--quiet", "--release"]).args(packages()))?;
    succeed(&mut cargo(["build", "--quiet", "--release", "--workspace", "--manifest-path", LAB]))
}

/// Builds what the tour's experiments need, in the debug profile, as for tests.
///
/// # Errors
/// It does not build.
pub(crate) fn build_tour() -> Result<()> {
    let mut build = cargo(["build", "--quiet", "--manifest-path", LAB]);
    succeed(build.args(TOUR.iter().flat_map(|package| ["--package", *package])))
}

/// Packages of the lab's command, its engines, its preload library, and the library that its peers in C link.
const TOUR: [&str; 4] = ["dormouse-lab", "dormouse-lab-engines", "dormouse-lab-account", "dormouse-lab-harness"];

/// Builds only the harness of the lab's peers.
///
/// # Errors
/// It does not build.
pub(crate) fn build_harness() -> Result<()> {
    succeed(
        cargo(["build", "--quiet", "--release", "--package", "dormouse-lab-harness"]).args(["--manifest-path", LAB]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_quoted_for_a_shell() {
        let mut command = Command::new("/usr/bin/dormouse");
        command.args(["arm", "7", "shop:*", "-o", "it's $HOME"]);
        assert_eq!(line(&command), r"dormouse arm 7 'shop:*' -o 'it'\''s $HOME'");
    }
}
