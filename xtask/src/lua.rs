//! A real C project to compile: the sources of Lua, from a crates.io package.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::{CargoOpt, MetadataCommand};

use crate::run;

/// The package, and the prefix of its source directory.
const PACKAGE: &str = "lua-src";
const VERSION: &str = "lua-5.4";

/// Runs the task.
pub(crate) fn run(dir: Option<PathBuf>) -> Result<()> {
    let dir = match dir {
        Some(dir) => std::path::absolute(dir)?,
        None => run::target_dir()?.join("demo/lua"),
    };
    fetch(&dir)?;
    println!("{}", dir.display());
    Ok(())
}

/// Copies the sources and the Makefile to `dir`, which is replaced. Returns the number of C files.
///
/// # Errors
/// The package cannot be fetched, or files cannot be copied.
pub(crate) fn fetch(dir: &Path) -> Result<usize> {
    let sources = sources()?;
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot replace {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut count = 0;
    for entry in fs::read_dir(&sources)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        fs::copy(&path, dir.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
        count += usize::from(path.extension().is_some_and(|extension| extension == "c"));
    }
    fs::copy(run::root().join("xtask/lua/Makefile"), dir.join("Makefile")).context("cannot copy the Makefile")?;
    Ok(count)
}

/// Returns cargo's directory of the sources. Fetches the package if needed, with dependencies for this platform only.
fn sources() -> Result<PathBuf> {
    let metadata = MetadataCommand::new()
        .manifest_path(run::root().join("xtask/Cargo.toml"))
        .features(CargoOpt::SomeFeatures(vec!["lua".into()]))
        .other_options(["--filter-platform".to_owned(), format!("{}-unknown-linux-gnu", std::env::consts::ARCH)])
        .exec()
        .context("cannot fetch the sources of Lua")?;
    let package = metadata.packages.iter().find(|package| package.name == PACKAGE).context("no package lua-src")?;
    let dir = package.manifest_path.parent().context("a package has no directory")?;
    fs::read_dir(dir)?
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(VERSION))
        .map(|entry| entry.path())
        .with_context(|| format!("{dir} has no {VERSION}"))
}
