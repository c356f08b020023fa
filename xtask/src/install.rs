//! `cargo xtask install`: builds the parts that users need, and installs them below a prefix.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use dormouse_install::{DebugInfo, Installation, MECHANISMS, uninstall};

use crate::run::{self, cargo, succeed};

/// Parts to install, and their prefix.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask install --prefix ~/.local              the command, C libraries and headers, manual pages, completions
  cargo xtask install --prefix ~/.local --with-lab   also the lab; run `cargo xtask peers` first to add the tracers that it compares with
  cargo xtask install --prefix ~/.local --with-query also `dormouse query`, `cluster` and `ship`, which take minutes to build
  cargo xtask install --prefix ~/.local --with-debug also debug information, for gdb
  cargo xtask install --prefix ~/.local --only percpu   one mechanism's C library, headers, manual pages, pkg-config and CMake files
  cargo xtask install --prefix ~/.local --uninstall

The directory may be moved afterwards. DIR/share/dormouse/manifest lists what was installed; an installation replaces an earlier one.")]
pub(crate) struct Install {
    /// Directory below which everything is installed: DIR/bin, DIR/lib, DIR/include, DIR/share
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix: PathBuf,
    /// Also install the lab and its engines: `dormouse lab`
    #[arg(long)]
    pub(crate) with_lab: bool,
    /// Also install the SQL programs: `dormouse query`, `dormouse cluster`, and `dormouse ship`, which puts traces into
    /// stores
    #[arg(long)]
    pub(crate) with_query: bool,
    /// Also install debug information, in files that debuggers find: DIR/bin/.debug, DIR/lib/.debug. Otherwise only a
    /// debug build has it
    #[arg(long)]
    pub(crate) with_debug: bool,
    /// Install only these mechanisms' C libraries, with headers and manual pages, and not the tracer
    #[arg(long, value_name = "MECHANISM", value_delimiter = ',', value_parser = MECHANISMS,
        conflicts_with_all = ["with_lab", "with_query"])]
    pub(crate) only: Vec<String>,
    /// Remove the installed files, and nothing else
    #[arg(long, conflicts_with_all = ["only", "with_lab", "with_query", "with_debug", "debug"])]
    pub(crate) uninstall: bool,
    /// Install a debug build, which builds faster and runs slower
    #[arg(long)]
    pub(crate) debug: bool,
}

impl Install {
    /// Runs the task.
    ///
    /// # Errors
    /// Something does not build, or cannot be written or removed.
    pub(crate) fn run(self) -> Result<()> {
        let prefix = std::path::absolute(&self.prefix).context("--prefix is not a usable path")?;
        if self.uninstall {
            println!("removed {} files from {}", uninstall(&prefix)?, prefix.display());
            return Ok(());
        }
        let release = (!self.debug).then_some("--release");
        // Where tests install them, they are built already as parts of the whole workspace. Alone they would have fewer
        // features, and everything would be compiled again.
        if !self.debug || std::env::var_os("DORMOUSE_BUILT").is_none() {
            let mut build = cargo(["build"]);
            build.args(release).args(self.only.iter().map(|name| format!("--package=dormouse-{name}-capi")));
            if self.only.is_empty() {
                build.args(run::packages());
            }
            succeed(&mut build)?;
        }
        if self.with_lab {
            succeed(cargo(["build", "--workspace", "--manifest-path", run::LAB]).args(release))?;
        }
        if self.with_query {
            succeed(run::build_query().args(release))?;
        }
        let built = run::target_dir()?.join(if self.debug { "debug" } else { "release" });
        let count = Installation::run(&built, &prefix, |installation| {
            installation.debug_info = match (self.with_debug, self.debug) {
                (true, _) => DebugInfo::Split,
                (false, true) => DebugInfo::Kept,
                (false, false) => DebugInfo::Stripped,
            };
            if !self.only.is_empty() {
                return self.only.iter().try_for_each(|name| installation.mechanism(name));
            }
            installation.libraries()?;
            installation.command()?;
            if self.with_query {
                installation.query()?;
            }
            if self.with_lab { installation.lab() } else { Ok(()) }
        })?;
        println!("installed {count} files in {}", prefix.display());
        println!("`cargo xtask install --prefix {} --uninstall` removes them", prefix.display());
        advise(&prefix);
        Ok(())
    }
}

/// Prints a line for each environment variable that a shell needs to find the installed files.
fn advise(prefix: &Path) {
    let lists = |name: &str, dir: &Path| {
        std::env::var_os(name).is_some_and(|value| std::env::split_paths(&value).any(|listed| listed == dir))
    };
    let is_of_system = [Path::new("/usr"), Path::new("/usr/local")].contains(&prefix);
    // Manual pages are found through PATH.
    for (name, place, is_known) in [
        ("PATH", "bin", false),
        ("PKG_CONFIG_PATH", "lib/pkgconfig", is_of_system),
        ("LD_LIBRARY_PATH", "lib", is_of_system),
    ] {
        let dir = prefix.join(place);
        if !is_known && !lists(name, &dir) {
            println!("export {name}=\"{}${{{name}:+:${name}}}\"", dir.display());
        }
    }
}
