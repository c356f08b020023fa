//! `cargo xtask test`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, MetadataCommand};

use crate::aarch64;
use crate::load::Load;
use crate::run::{WORKSPACES, cargo, line, root, target_dir};
use crate::system::{
    self, BABELTRACE2, BUBBLEWRAP, CC, CHROMIUM, CLANG, CMAKE, CPP, DPDK, GIT, GROFF, LLD, LTTNG, LTTNG_UST, MAKE,
    MUSL_GCC, NPM, PKG_CONFIG, STORAGE_DAEMON, STRACE, Tool, VALGRIND,
};
use crate::tally::{Counts, Job, Tally, show};

/// What the tests run. Where all of it is there, a test that misses some of it fails.
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
    DPDK,
    VALGRIND,
    STRACE,
    BUBBLEWRAP,
    MUSL_GCC,
    aarch64::QEMU,
    aarch64::CROSS_CC,
];

/// Test programs at a time. Many of them wait, and each of them runs tests on all CPUs by itself.
const AT_ONCE: usize = 4;

/// Test programs that take minutes, mostly waiting. They start first: a run that starts one of them last waits for it alone.
const SLOWEST: [&str; 3] = ["lab/tests/command/main.rs", "read/python/tests/python.rs", "tests/e2e/tests/e2e/main.rs"];

/// Which tests, how often, and beside what.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Test {
    /// Run the tests N times in a row, until a run fails; each run's counts and duration are told in a line
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Run all N times, whatever fails
    #[arg(long, requires = "repeat")]
    keep_going: bool,
    /// Keep N processes busy beside the tests; they end when this does
    #[arg(long, value_name = "N", default_value_t = 0)]
    load: u32,
    /// Run the tests of this package alone; may be given several times
    #[arg(short, long = "package", value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Run this file of `tests/` alone; may be given several times
    #[arg(long = "test", value_name = "NAME")]
    targets: Vec<String>,
    /// What test programs are given: parts of the names of tests, and options such as --exact
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
    /// An environment variable of the tests
    #[arg(skip)]
    variable: Option<(&'static str, &'static str)>,
}

const AFTER_HELP: &str = "\
Examples:
  cargo xtask test                               every test; as root it installs what is missing
  cargo xtask test -- snapshot                   those with `snapshot` in their names
  cargo xtask test -p dormouse-percpu --test alloc -- valgrind
  cargo xtask test --repeat 5 --load 4           five runs beside four busy processes

The last line is `N passed, N failed, N skipped`, of all runs together. Before it stands what was skipped, each with its reason and \
a remedy; a test that left out a part is counted twice, as passed and as skipped. Ignored tests are skipped, documentation tests are \
counted as the others. Exit code 0: some test passed or was skipped, and none failed.";

/// That tests failed, which has been said: what failed, and how.
#[derive(Debug, thiserror::Error)]
#[error("tests failed\n{0}")]
pub(crate) struct Failed(String);

/// Installs what the tests run.
pub(crate) fn tools() -> Result<()> {
    system::ensure(&TOOLS)
}

/// Runs the tests of a workspace that is none of [`WORKSPACES`], with variables for cargo, and then of a command, and counts likewise.
///
/// # Errors
/// Something does not build, or cannot be run. [`Failed`]: a test failed.
pub(crate) fn run_workspace(manifest: &str, variables: &[(&str, &str)], last: Command) -> Result<()> {
    let cargo = |what: &[&str]| {
        let mut command = cargo(what);
        command.args(["--workspace", "--locked", "--manifest-path", manifest]).envs(variables.iter().copied());
        command
    };
    let programs = build([cargo(&BUILD)])?;
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

/// Where tests append what they skip.
fn skips() -> Result<PathBuf> {
    Ok(target_dir()?.join(format!("skips-{}", std::process::id())))
}

/// A program of tests.
struct Program {
    file: PathBuf,
    /// Its first source file, below the project's root.
    source: String,
    /// Its package's, where cargo would start it.
    dir: PathBuf,
}

impl Program {
    /// Runs it as cargo would.
    fn job(&self) -> Job {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.dir);
        Job { command, source: Some(self.source.clone()) }
    }
}

/// Source files by the names of programs.
fn sources(programs: &[Program]) -> BTreeMap<String, String> {
    let name = |program: &Program| program.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    programs.iter().map(|one| (name(one), one.source.clone())).collect()
}

/// All that tests run (commands, libraries), and the tests. At once: tests have features of libraries that programs alone have not, and apart these would be
/// compiled twice.
const BUILD: [&str; 5] = ["build", "--lib", "--bins", "--tests", "--examples"];

/// A filter that only tests of the documentation have in their names. `--doc` would have cargo compile again, with fewer features.
const DOCUMENTATION: &str = "(line ";

/// Builds workspaces by these commands, and gives their programs of tests.
fn build(commands: impl IntoIterator<Item = Command>) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for mut command in commands {
        build_workspace(&mut command, &mut programs)?;
    }
    // Of the others large ones first, which take longest as a rule.
    programs.sort_by_key(|program| {
        let size_bytes = program.file.metadata().map_or(0, |metadata| metadata.len());
        Reverse((SLOWEST.contains(&program.source.as_str()), size_bytes))
    });
    Ok(programs)
}

fn build_workspace(command: &mut Command, programs: &mut Vec<Program>) -> Result<()> {
    command.arg("--message-format=json-render-diagnostics");
    show(&format!("$ {}", line(command)));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    for message in Message::parse_stream(std::io::BufReader::new(output)) {
        let Message::CompilerArtifact(artifact) = message.context("cannot read what cargo says")? else { continue };
        if let Some(file) = artifact.executable.filter(|_| artifact.profile.test) {
            let source = artifact.target.src_path.strip_prefix(root()).unwrap_or(&artifact.target.src_path);
            let dir = artifact.manifest_path.parent().context("a manifest is in a directory")?;
            programs.push(Program { file: file.into(), source: source.to_string(), dir: dir.into() });
        }
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// A workspace's packages, and the files of `tests/` of those that are chosen; none chosen: of all.
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
    /// The tests of a package (of one file of its `tests/`, else of its library) that a filter chooses, made exhaustive by a variable.
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

    /// Runs the tests and says what came of them, in the end by the line of counts.
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
        let programs = build(WORKSPACES.map(of_workspace))?;
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
            show("no test was chosen: `cargo test --workspace -- --list` shows their names");
        }
        show(&counts.to_string());
        if counts.failed > 0 || counts.all() == 0 {
            bail!(Failed(all_faults));
        }
        Ok(())
    }

    /// # Errors
    /// A package or a file of tests is in no workspace.
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
            // Program by program: cargo would start the next one only when the one before has ended.
            jobs.extend(programs.iter().map(Program::job));
        }
        for manifest in WORKSPACES {
            let (packages, targets) = contents(manifest, &self.packages)?;
            // What is not in this workspace is in another one: `check_names` has refused all else.
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
            // Exhaustive tests print what they have measured.
            tests.args(self.variable.map(|_| "--show-output"));
            jobs.push(tests.into());
        }
        for Job { command, .. } in &mut jobs {
            // Tests that run other packages' programs need not build them.
            command.envs(self.variable).env("DORMOUSE_BUILT", "1");
            if is_required {
                command.env(dormouse_testing::ENV_REQUIRE_TOOLS, "1");
            }
        }
        match jobs.len() {
            // What it prints can be seen as it comes.
            1 => jobs.into_iter().try_for_each(|job| tally.run(job))?,
            _ => tally.run_all(jobs, AT_ONCE)?,
        }
        if is_all {
            aarch64::test(tally)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_programs_are_there() {
        for source in SLOWEST {
            assert!(root().join(source).is_file(), "{source}");
        }
    }
}
