//! Builds test programs.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use crate::run::{line, root, target_dir};
use crate::tally::{Job, show};

/// Test programs that take minutes, mostly waiting. They start first: a run that starts one of them last waits for it alone.
const SLOWEST: [&str; 3] = ["lab/tests/command/main.rs", "read/python/tests/python.rs", "tests/e2e/tests/e2e/main.rs"];

/// Error for failed tests, which are reported already; it names them.
#[derive(Debug, thiserror::Error)]
#[error("tests failed\n{0}")]
pub(crate) struct Failed(pub(crate) String);

/// Returns the path of the file to which tests append their skips.
pub(crate) fn skips() -> Result<PathBuf> {
    Ok(target_dir()?.join(format!("skips-{}", std::process::id())))
}

/// A test program.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) file: PathBuf,
    /// Root source file, relative to the project's root.
    pub(crate) source: String,
    /// Directory of its package, which is its working directory under cargo.
    pub(crate) dir: PathBuf,
    /// Name of the target.
    pub(crate) name: String,
    /// Name of its package.
    pub(crate) package: String,
}

/// Results of build commands.
#[derive(Default)]
pub(crate) struct Built {
    pub(crate) programs: Vec<Program>,
    /// Programs and libraries, those of tests too.
    pub(crate) files: Vec<PathBuf>,
}

impl Program {
    /// Returns a job that runs it as cargo would.
    pub(crate) fn job(&self) -> Job {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.dir);
        Job { command, source: Some(self.source.clone()) }
    }
}

/// Returns the source files by the names of programs.
pub(crate) fn sources(programs: &[Program]) -> BTreeMap<String, String> {
    let name = |program: &Program| program.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    programs.iter().map(|one| (name(one), one.source.clone())).collect()
}

/// Builds the tests, and the programs and libraries that they run. One command builds all: the tests need features of
/// libraries that the programs alone do not, and separate builds would compile them twice.
pub(crate) const BUILD: [&str; 5] = ["build", "--lib", "--bins", "--tests", "--examples"];

/// Filter that only matches names of documentation tests. `--doc` would make cargo compile again, with fewer features.
pub(crate) const DOCUMENTATION: &str = "(line ";

/// Runs build commands, and returns what they build.
pub(crate) fn build(commands: impl IntoIterator<Item = Command>) -> Result<Built> {
    let mut built = Built::default();
    for mut command in commands {
        build_workspace(&mut command, &mut built)?;
    }
    // Among the others, large ones first, because they usually take longest.
    built.programs.sort_by_key(|program| {
        let size_bytes = program.file.metadata().map_or(0, |metadata| metadata.len());
        Reverse((SLOWEST.contains(&program.source.as_str()), size_bytes))
    });
    Ok(built)
}

fn build_workspace(command: &mut Command, built: &mut Built) -> Result<()> {
    command.arg("--message-format=json-render-diagnostics");
    show(&format!("$ {}", line(command)));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    for message in Message::parse_stream(std::io::BufReader::new(output)) {
        let Message::CompilerArtifact(artifact) = message.context("cannot read what cargo says")? else { continue };
        let is_used = |file: &cargo_metadata::camino::Utf8PathBuf| !matches!(file.extension(), Some("rlib" | "rmeta"));
        if artifact.manifest_path.starts_with(root()) {
            built.files.extend(artifact.filenames.iter().filter(|file| is_used(file)).map(Into::into));
        }
        if let Some(file) = artifact.executable.filter(|_| artifact.profile.test) {
            let source = artifact.target.src_path.strip_prefix(root()).unwrap_or(&artifact.target.src_path);
            let dir = artifact.manifest_path.parent().context("a manifest is in a directory")?;
            let (source, name) = (source.to_string(), artifact.target.name);
            let package = package_name(&artifact.package_id.repr).into();
            built.programs.push(Program { file: file.into(), source, dir: dir.into(), name, package });
        }
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Returns the name in a package's identifier, as cargo's specification of these has it: it is left out if it is the last
/// part of the address.
fn package_name(identifier: &str) -> &str {
    let (address, fragment) = identifier.rsplit_once('#').unwrap_or((identifier, ""));
    let of_directory = || address.rsplit('/').next().unwrap_or_default();
    fragment.rsplit_once('@').map_or_else(of_directory, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_its_name_in_its_identifier() {
        assert_eq!(package_name("path+file:///dormouse/tests/e2e#dormouse-e2e@0.1.0"), "dormouse-e2e");
        assert_eq!(package_name("path+file:///dormouse/xtask#0.1.0"), "xtask");
    }

    #[test]
    fn the_slowest_programs_exist() {
        for source in SLOWEST {
            assert!(root().join(source).is_file(), "{source}");
        }
    }
}
