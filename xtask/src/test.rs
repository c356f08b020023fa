//! `cargo xtask test`.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;

use crate::cross::Cross;
use crate::load::Load;
use crate::programs::{BUILD, DOCUMENTATION, Failed, Program, build, skips, sources};
use crate::run::{WORKSPACES, cargo, root};
use crate::system::{
    self, BABELTRACE2, BUBBLEWRAP, BUSYBOX, CC, CHROMIUM, CLANG, CMAKE, CPP, DPDK, GIT, GROFF, LLD, LTTNG, LTTNG_UST,
    MAKE, MUSL_GCC, NPM, PKG_CONFIG, QEMU, STORAGE_DAEMON, STRACE, Tool, VALGRIND,
};
use crate::tally::{Counts, Job, Tally, show};

/// Tools that the tests run. If all are installed, a test that lacks one fails instead of being skipped.
const TOOLS: [Tool; 22] = [
    CC,
    CPP,
    CLANG,
    LLD,
    GIT,
    MAKE,
    PKG_CONFIG,
    CMAKE,
    GROFF,
    BABELTRACE2,
    LTTNG,
    LTTNG_UST,
    CHROMIUM,
    NPM,
    STORAGE_DAEMON,
    QEMU,
    BUSYBOX,
    DPDK,
    VALGRIND,
    STRACE,
    BUBBLEWRAP,
    MUSL_GCC,
];

/// Number of test programs that run at a time. Many of them wait, and each runs its tests on all CPUs.
const AT_ONCE: usize = 4;

/// Tests that run once more with the feature `generic`: the package, and its files of `tests/`. Without code that is patched
/// and without sections, as on architectures that have neither.
const GENERIC: [(&str, &[&str]); 2] =
    [("dormouse-imv", &["answers", "values", "calls", "tunables"]), ("dormouse-percpu", &["generic"])];

/// Which tests to run, how many times, and under which load.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Test {
    /// Run the tests N times, until a run fails; prints a line with the counts and the duration of each run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Run all N times, even if a run fails
    #[arg(long, requires = "repeat")]
    keep_going: bool,
    /// Keep N processes busy during the tests
    #[arg(long, value_name = "N", default_value_t = 0)]
    load: u32,
    /// Only run the tests of this package; may be given several times
    #[arg(short, long = "package", value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Only run this file of `tests/`; may be given several times
    #[arg(long = "test", value_name = "NAME")]
    targets: Vec<String>,
    /// Arguments of test programs: parts of the names of tests, and options such as --exact
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
    /// Leave out the tests on another machine
    #[arg(skip)]
    without_cross: bool,
    /// Set an environment variable for the tests
    #[arg(skip)]
    variable: Option<(&'static str, &'static str)>,
}

const AFTER_HELP: &str = "\
Examples:
  cargo xtask test                               all tests except those of SQL; as root it installs what is missing
  cargo xtask test -- snapshot                   those with `snapshot` in their names
  cargo xtask test -p dormouse-percpu --test alloc -- valgrind
  cargo xtask test --repeat 5 --load 4           five runs beside four busy processes

The last line is `N passed, N failed, N skipped`, for all runs together. The lines before it list what was skipped, each with its reason and \
a remedy; a test that left out a part is counted twice, as passed and as skipped. Ignored tests count as skipped, documentation tests like \
any others. Exit code 0: at least one test passed or was skipped, and none failed.";

/// Installs the tools that the tests run.
pub(crate) fn tools() -> Result<()> {
    system::ensure(&TOOLS)
}

/// Runs the tests of a workspace that is not in [`WORKSPACES`], with variables for cargo, then the command `last`, and
/// counts the results.
///
/// # Errors
/// Something does not build, or cannot be run. [`Failed`]: a test failed.
pub(crate) fn run_workspace(manifest: &str, variables: &[(&str, &str)], last: Command) -> Result<()> {
    let cargo = |what: &[&str]| {
        let mut command = cargo(what);
        command.args(["--workspace", "--locked", "--manifest-path", manifest]).envs(variables.iter().copied());
        command
    };
    let programs = build([cargo(&BUILD)])?.programs;
    let mut tally = Tally::new(skips()?, sources(&programs), show);
    let mut jobs: Vec<Job> = programs.iter().map(Program::job).collect();
    let mut documentation = cargo(&["test", "--no-fail-fast"]);
    documentation.args(["--", DOCUMENTATION]);
    jobs.push(documentation.into());
    tally.run_all(jobs, AT_ONCE)?;
    tally.run(last)?;
    let (counts, text, faults) = tally.finish()?;
    show(&format!("{text}{faults}\n{counts}"));
    if counts.failed > 0 {
        bail!(Failed(faults));
    }
    Ok(())
}

/// Returns the names of a workspace's packages, and of the `tests/` files of the chosen packages, or of all if none is
/// chosen.
fn contents(manifest: &str, chosen: &[String]) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let metadata = MetadataCommand::new().manifest_path(root().join(manifest)).no_deps().exec();
    let metadata = metadata.with_context(|| format!("cannot read {manifest}"))?;
    let of_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|package| package == name);
    let packages = metadata.packages.iter().filter(|package| of_chosen(&package.name));
    let targets = packages.flat_map(|package| &package.targets).filter(|target| target.is_test());
    let targets = targets.map(|target| target.name.clone()).collect();
    Ok((metadata.packages.iter().map(|package| package.name.to_string()).collect(), targets))
}

impl Test {
    /// Returns the task of CI, in which tests on another machine have a step of their own.
    pub(crate) fn here() -> Test {
        Test { without_cross: true, ..Test::default() }
    }

    /// Returns the task that runs tests of a package with this filter (of one file of `tests/`, or of the library),
    /// made exhaustive by a variable.
    pub(crate) fn exhaustive(
        (package, target, filter, variable): (&str, Option<&str>, &str, (&'static str, &'static str)),
    ) -> Test {
        Test {
            packages: vec![package.into()],
            targets: target.iter().map(ToString::to_string).collect(),
            filters: vec![filter.into()],
            variable: Some(variable),
            ..Test::default()
        }
    }

    /// Runs the tests and reports results. The last line has the counts.
    ///
    /// # Errors
    /// Something cannot be installed or built. [`Failed`]: a test failed, or there was none.
    pub(crate) fn run(&self) -> Result<()> {
        self.check_names()?;
        tools()?;
        let of_workspace = |manifest| {
            let mut command = cargo(BUILD);
            command.args(["--workspace", "--manifest-path", manifest]);
            command
        };
        let programs = build(WORKSPACES.map(of_workspace))?.programs;
        let sources = sources(&programs);
        let is_required = TOOLS.iter().all(Tool::is_installed);
        let _load = Load::start(self.load)?;
        let (mut counts, mut failed_runs, mut all_faults) = (Counts::default(), Vec::new(), String::new());
        let run_count = self.repeat.unwrap_or(1);
        for number in 1..=run_count {
            let started = Instant::now();
            let mut tally = Tally::new(skips()?, sources.clone(), show);
            self.run_once(&mut tally, &programs, is_required)?;
            let (found, text, faults) = tally.finish()?;
            show(&text);
            show(&faults);
            all_faults += &faults;
            if self.repeat.is_some() {
                let took_s = started.elapsed().as_secs_f64();
                show(&format!("run {number} of {run_count}: {found}, {took_s:.0} s"));
            }
            counts += found;
            if found.failed > 0 {
                failed_runs.push(number.to_string());
                if !self.keep_going {
                    break;
                }
            }
        }
        if self.repeat.is_some() && !failed_runs.is_empty() {
            show(&format!("failed runs: {}", failed_runs.join(", ")));
        }
        if counts.all() == 0 {
            show("no test matches; `cargo test --workspace -- --list` prints their names");
        }
        show(&counts.to_string());
        if counts.failed > 0 || counts.all() == 0 {
            bail!(Failed(all_faults));
        }
        Ok(())
    }

    /// Checks that the chosen packages and test files exist.
    ///
    /// # Errors
    /// A package or a test file is in no workspace.
    fn check_names(&self) -> Result<()> {
        let (mut packages, mut targets) = (BTreeSet::new(), BTreeSet::new());
        for manifest in WORKSPACES {
            let (more_packages, more_targets) = contents(manifest, &self.packages)?;
            packages.extend(more_packages);
            targets.extend(more_targets);
        }
        for (given, known, what) in [(&self.packages, packages, "package"), (&self.targets, targets, "test")] {
            if let Some(name) = given.iter().find(|name| !known.contains(*name)) {
                bail!("there is no {what} `{name}`; there are {}", known.into_iter().collect::<Vec<_>>().join(", "));
            }
        }
        Ok(())
    }

    fn run_once(&self, tally: &mut Tally, programs: &[Program], is_required: bool) -> Result<()> {
        let is_all = self.packages.is_empty() && self.targets.is_empty() && self.filters.is_empty();
        let mut jobs = Vec::new();
        if is_all {
            // Run each program directly: cargo would start a program only after the previous one has ended.
            jobs.extend(programs.iter().map(Program::job));
        }
        for manifest in WORKSPACES {
            let (packages, targets) = contents(manifest, &self.packages)?;
            // Names that are not in this workspace are in another one: `check_names` has refused all others.
            let packages: Vec<&String> = self.packages.iter().filter(|name| packages.contains(*name)).collect();
            let targets: Vec<&String> = self.targets.iter().filter(|name| targets.contains(*name)).collect();
            if packages.is_empty() != self.packages.is_empty() || targets.is_empty() != self.targets.is_empty() {
                continue;
            }
            let mut tests = cargo(["test", "--no-fail-fast", "--manifest-path", manifest]);
            if packages.is_empty() {
                tests.arg("--workspace");
            }
            tests.args(packages.into_iter().flat_map(|package| ["--package", package]));
            tests.args(targets.into_iter().flat_map(|target| ["--test", target]));
            tests.arg("--").args(&self.filters).args(is_all.then_some(DOCUMENTATION));
            // Exhaustive tests print their measurements.
            tests.args(self.variable.map(|_| "--show-output"));
            jobs.push(tests.into());
        }
        for Job { command, .. } in &mut jobs {
            // Tests that run programs of other packages need not build them.
            command.envs(self.variable).env("DORMOUSE_BUILT", "1");
            if is_required {
                command.env(dormouse_testing::ENV_REQUIRE_TOOLS, "1");
            }
        }
        match jobs.len() {
            // A single job's output is shown immediately.
            1 => jobs.into_iter().try_for_each(|job| tally.run(job))?,
            _ => tally.run_all(jobs, AT_ONCE)?,
        }
        if is_all {
            for (package, files) in GENERIC {
                let mut tests = cargo(["test", "--no-fail-fast", "--package", package, "--features", "generic"]);
                tests.args(files.iter().flat_map(|file| ["--test", file]));
                tally.run(tests)?;
            }
            if !self.without_cross {
                Cross::ci().count_if_ready(tally)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Every package of the project's workspace with the feature is tested with it.
    #[test]
    fn generic_builds_are_tested() {
        let metadata = MetadataCommand::new().current_dir(root()).no_deps().exec().unwrap();
        let with_feature = metadata.packages.iter().filter(|package| package.features.contains_key("generic"));
        let mut names: Vec<&str> = with_feature.map(|package| package.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, GENERIC.map(|(package, _)| package));
        for (package, files) in GENERIC {
            let dir = Path::new("mechanisms").join(package.trim_start_matches("dormouse-")).join("tests");
            files
                .iter()
                .for_each(|file| assert!(root().join(&dir).join(file).with_extension("rs").is_file(), "{file}"));
        }
    }
}
