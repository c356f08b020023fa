//! `cargo xtask lab`: runs experiments, and builds what they need.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::run::{self, succeed};
use crate::system::{self, CC, MAKE};
use crate::{lua, peers, test};

/// Experiments to run, and options.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask lab                    whether the statements of five papers hold here, and the cost of an event compared with the tracers that
                                     are installed: two minutes in a fresh clone, less once it is built
  cargo xtask lab --all              every experiment in full, compared with every tracer that can be installed: minutes each
  cargo xtask lab imv --json F       one experiment, with its figures in a file")]
pub(crate) struct Lab {
    /// Names of experiments, as `dormouse lab list` prints them
    pub(crate) experiments: Vec<String>,
    /// Run every experiment
    #[arg(long, conflicts_with = "experiments")]
    pub(crate) all: bool,
    /// Run each experiment for seconds instead of minutes; intervals are wider
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run at most N rounds of each case; six rounds show that it works, with intervals, but say little about cost
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u32>,
    /// Also write the results to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write an HTML report with plots to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Manifest of the lab's own preload library, in a separate workspace.
pub(crate) const PRELOAD_MANIFEST: &str = "lab/preload/Cargo.toml";

/// Builds the variants of the lab's preload library, which write in different ways, into `release/variants` of the
/// target directory.
fn variants() -> Result<()> {
    let target = run::target_dir()?;
    let dir = target.join("release/variants");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for (file, feature) in VARIANTS {
        let built = target.join("variants");
        let mut build = run::cargo(["build", "--quiet", "--locked", "--release", "--manifest-path", PRELOAD_MANIFEST]);
        build.args(["--features", feature]);
        succeed(build.arg("--target-dir").arg(&built))?;
        let library = built.join("release/libdormouse_libc.so");
        std::fs::copy(&library, dir.join(file)).with_context(|| format!("cannot copy {}", library.display()))?;
    }
    Ok(())
}

/// Builds the programs that the lab's `reader` experiment times in addition to the command.
fn readers() -> Result<()> {
    let build = ["build", "--quiet", "--release"];
    succeed(run::cargo(build).args(["--package", "dormouse-reader", "--example", "count"]))?;
    let python = ["--manifest-path", "read/python/Cargo.toml", "--package", "dormouse-python", "--example", "arrow"];
    succeed(run::cargo(build).args(python))
}

/// Builds the programs that the lab's `query` experiment times, which takes long, and installs DuckDB for comparison.
fn queries() -> Result<()> {
    succeed(run::build_query().args(["--quiet", "--release", "--locked"]))?;
    let dir = run::target_dir()?.join("release/duckdb");
    let has_it = Command::new(dir.join("bin/python")).args(["-c", "import duckdb"]).output();
    if !has_it.is_ok_and(|output| output.status.success()) {
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
        let mut pip = Command::new(dir.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]);
        succeed(pip.arg(DUCKDB))?;
    }
    Ok(())
}

/// DuckDB's Python package. Its command on PyPI is older, and has no nanosecond timestamps in UTC.
const DUCKDB: &str = "duckdb==2.*";

/// Library file and feature of each variant, with the names in the lab's `compile-job`.
const VARIANTS: [(&str, &str); 2] =
    [("libdormouse_libc-memcpy.so", "memcpy"), ("libdormouse_libc-specialised.so", "specialised")];

/// Experiments of the short tour for newcomers: one for each paper, and the event itself.
const TOUR: [&str; 6] = ["imv", "percpu", "relay-write", "vring", "zero-page", "event"];

/// Maximum number of rounds in the tour: the minimum for an interval. Twelve could decide a few statements more, but
/// take a third longer.
const TOUR_ROUNDS: &str = "6";

/// Returns the command `dormouse-lab run` of a profile's build, with a project for it to compile, for long builds too if
/// requested.
fn command(profile: &str, is_long: bool) -> Result<Command> {
    let target = run::target_dir()?;
    let project = target.join("lab/lua");
    lua::fetch(&project)?;
    if is_long {
        lua::add_long(&project)?;
    }
    let mut command = Command::new(target.join(profile).join("dormouse-lab"));
    // The path appears in results. The relative one does not reveal the project's location.
    command.arg("run").current_dir(run::root());
    command.env("DORMOUSE_LAB_PROJECT", project.strip_prefix(run::root()).unwrap_or(&project));
    Ok(command)
}

/// Runs every experiment with the debug build and the built peers. This checks that they work, not what they measure.
pub(crate) fn trial() -> Result<()> {
    let peers = run::target_dir()?.join("release/peers");
    succeed(command("debug", false)?.args(["--quick", "--rounds", "6"]).env("DORMOUSE_LAB_PEERS", peers))
}

impl Lab {
    /// Runs the task.
    pub(crate) fn run(self) -> Result<()> {
        let is_tour = self.experiments.is_empty() && !self.all;
        // The measured code is the same in both profiles, see lab/Cargo.toml. A newcomer should not wait for the rest.
        let profile = if is_tour { "debug" } else { "release" };
        if is_tour {
            system::ensure(&[CC, MAKE])?;
            let ahead = peers::compile_ahead()?;
            let built = run::build_tour();
            // Wait for it before anything is measured.
            drop(ahead.join());
            built?;
            peers::build_installed(profile)?;
        } else {
            test::tools()?;
            run::build_lab()?;
            peers::build()?;
        }
        if self.all || self.experiments.iter().any(|name| name == "reader") {
            readers()?;
        }
        // Not with --all, because the query engine takes longer to compile than everything else.
        if self.experiments.iter().any(|name| name == "query") {
            queries()?;
        }
        if !self.quick && (self.all || self.experiments.iter().any(|name| name == "compile-job")) {
            variants()?;
        }
        let times_builds = |name: &String| ["compile-job", "percpu"].contains(&name.as_str());
        let is_long = !self.quick && (self.all || self.experiments.iter().any(times_builds));
        let mut command = command(profile, is_long)?;
        command.args(&self.experiments);
        if is_tour {
            command.args(TOUR).args(["--quick", "--brief"]);
            if self.rounds.is_none() {
                command.args(["--rounds", TOUR_ROUNDS]);
            }
        } else if self.quick {
            command.arg("--quick");
        }
        if let Some(rounds) = self.rounds {
            command.args(["--rounds", &rounds.to_string()]);
        }
        for (option, file) in [("--json", self.json), ("--html", self.html)] {
            if let Some(file) = file {
                let file = std::path::absolute(&file).with_context(|| format!("no path: {}", file.display()))?;
                command.arg(option).arg(file);
            }
        }
        succeed(&mut command)
    }
}
