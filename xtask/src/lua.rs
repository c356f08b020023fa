//! A real C project to compile: the sources of Lua, and for long builds those of SQLite, from packages of crates.io.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::{CargoOpt, MetadataCommand};

use crate::run;

/// Package with Lua's sources, and the prefix of its source directory.
const LUA: (&str, &str) = ("lua-src", "lua-5.4");
/// Package with SQLite's source, and its source directory.
const SQLITE: (&str, &str) = ("libsqlite3-sys", "sqlite3");

/// Runs the task.
pub(crate) fn run(dir: Option<PathBuf>, is_long: bool) -> Result<()> {
    let dir = match dir {
        Some(dir) => std::path::absolute(dir)?,
        None => run::target_dir()?.join("demo/lua"),
    };
    fetch(&dir)?;
    if is_long {
        add_long(&dir)?;
    }
    println!("{}", dir.display());
    Ok(())
}

/// Copies Lua's sources and the Makefile to `dir`, which is replaced. Returns the number of C files.
///
/// # Errors
/// The package cannot be fetched, or files cannot be copied.
pub(crate) fn fetch(dir: &Path) -> Result<usize> {
    let sources = sources(LUA)?;
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

/// Adds SQLite's source to Lua's in `dir`, and with it the goal `long`.
///
/// # Errors
/// See [`fetch`].
pub(crate) fn add_long(dir: &Path) -> Result<()> {
    let long = dir.join("long");
    fs::create_dir_all(&long).with_context(|| format!("cannot make {}", long.display()))?;
    for source in [sources(SQLITE)?.join("sqlite3.c"), run::root().join("xtask/lua/long.mk")] {
        let copied = fs::copy(&source, long.join(source.file_name().unwrap_or_default()));
        copied.with_context(|| format!("cannot copy {}", source.display()))?;
    }
    Ok(())
}

/// Returns cargo's directory of the sources in a package whose name begins with a prefix. Fetches the package if needed,
/// with dependencies for this platform only.
fn sources((package, prefix): (&str, &str)) -> Result<PathBuf> {
    let metadata = MetadataCommand::new()
        .manifest_path(run::root().join("xtask/Cargo.toml"))
        .features(CargoOpt::SomeFeatures(vec!["sources".into()]))
        .other_options(["--filter-platform".to_owned(), format!("{}-unknown-linux-gnu", std::env::consts::ARCH)])
        .exec()
        .with_context(|| format!("cannot fetch the sources in {package}"))?;
    let found = metadata.packages.iter().find(|found| found.name == package);
    let dir = found.and_then(|found| found.manifest_path.parent()).with_context(|| format!("no package {package}"))?;
    fs::read_dir(dir)?
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(prefix) && entry.path().is_dir())
        .map(|entry| entry.path())
        .with_context(|| format!("{dir} has no {prefix}"))
}
