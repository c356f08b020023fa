//! Runs test programs or `cargo test`, and records passed, failed and skipped tests and the duration of each program.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dormouse_testing::{ENV_SKIPS, Skip};

use crate::run::line;

/// Time without output after cargo's end, after which other processes that hold the pipe open are ignored.
const GRACE: Duration = Duration::from_secs(2);
/// Number of the slowest programs that are listed.
const SLOWEST_COUNT: usize = 10;
/// Before each line of a skip, in the output of a machine that cannot write the file of skips.
pub(crate) const SKIP_PREFIX: &str = "dormouse-skip: ";
/// Number of output lines of a failed test that are repeated at the end: the first ones, which tell the cause.
const LINES_OF_FAILED: usize = 30;

/// Numbers of tests by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Counts {
    pub(crate) fn all(self) -> usize {
        self.passed + self.failed + self.skipped
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Programs parse this format.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// A test program, or the documentation tests of a package.
#[derive(Debug)]
struct Program {
    /// Name for the report.
    name: String,
    is_documentation: bool,
    started: Instant,
    took: Duration,
    /// Number of passed tests, from the summary line. `None`: the program ended without one.
    passed: Option<usize>,
    failed: usize,
    /// Failed tests, with the output of each.
    failed_tests: BTreeMap<String, Vec<String>>,
    /// Failed test whose output is being read.
    telling: Option<String>,
    /// Ignored tests, with the reason for each.
    ignored: BTreeMap<String, String>,
}

/// A command that runs tests.
pub(crate) struct Job {
    pub(crate) command: Command,
    /// Source file of a test program that runs directly. `None` for `cargo test`, which prints the names of programs.
    pub(crate) source: Option<String>,
}

impl From<Command> for Job {
    fn from(command: Command) -> Job {
        Job { command, source: None }
    }
}

/// Results of one run of tests.
pub(crate) struct Tally {
    /// Source file of each test program, by the program's file name.
    sources: BTreeMap<String, String>,
    /// Prints a line of output of cargo or a test.
    echo: Box<dyn Fn(&str) + Send>,
    /// File to which tests append their skips.
    path: PathBuf,
    programs: Vec<Program>,
    /// Skips that no test reports: name, reason and remedy.
    left_out: Vec<String>,
    /// Commands that failed without a failed test.
    broken: Vec<String>,
}

impl Tally {
    /// Creates an empty tally. Tests append their skips to `path`, which is removed at the end.
    pub(crate) fn new(path: PathBuf, sources: BTreeMap<String, String>, echo: impl Fn(&str) + Send + 'static) -> Tally {
        let _ = std::fs::remove_file(&path);
        Tally::empty(path, sources, echo)
    }

    fn empty(path: PathBuf, sources: BTreeMap<String, String>, echo: impl Fn(&str) + Send + 'static) -> Tally {
        Tally { sources, echo: Box::new(echo), path, programs: Vec::new(), left_out: Vec::new(), broken: Vec::new() }
    }

    /// Runs jobs in their order, `at_once` at a time, and counts. Output of a job is shown when the job ends.
    ///
    /// # Errors
    /// See [`Tally::run`].
    pub(crate) fn run_all(&mut self, jobs: Vec<Job>, at_once: usize) -> Result<()> {
        let jobs = Mutex::new(jobs.into_iter());
        let (sender, ended) = channel();
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                let (jobs, sender) = (&jobs, sender.clone());
                let (path, sources) = (&self.path, &self.sources);
                scope.spawn(move || {
                    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some(job) = next() {
                        let (echo, lines) = channel();
                        let echo = move |line: &str| drop(echo.send(line.to_owned()));
                        let mut tally = Tally::empty(path.clone(), sources.clone(), echo);
                        let found = tally.run(job).map(|()| (tally.programs, tally.broken));
                        drop(sender.send((found, lines)));
                    }
                });
            }
            drop(sender);
            for (found, lines) in ended {
                lines.try_iter().for_each(|line| (self.echo)(&line));
                let (programs, broken) = found?;
                self.programs.extend(programs);
                self.broken.extend(broken);
            }
            Ok(())
        })
    }

    /// Adds test programs of another build.
    pub(crate) fn add_sources(&mut self, sources: BTreeMap<String, String>) {
        self.sources.extend(sources);
    }

    /// Counts tests that were not started as skipped.
    pub(crate) fn leave_out(&mut self, what: &str, reason: &str, remedy: &str) {
        self.left_out.push(format!("{what}: {reason} ({remedy})"));
    }

    /// Runs a job, shows its output and counts.
    ///
    /// # Errors
    /// The command cannot be run. Failed tests are not an error.
    pub(crate) fn run(&mut self, job: impl Into<Job>) -> Result<()> {
        let Job { mut command, source } = job.into();
        let command = &mut command;
        (self.echo)(&format!("$ {}", line(command)));
        let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
        let error_writer = writer.try_clone().context("cannot make a pipe")?;
        command.stdin(Stdio::null()).stdout(writer).stderr(error_writer).env(ENV_SKIPS, &self.path);
        let mut child = command.spawn().with_context(|| format!("cannot run `{}`", line(command)))?;
        // Close this process's copies of the pipe's writing end, so that the output ends.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for bytes in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
                if sender.send(bytes).is_err() {
                    break;
                }
            }
        });
        let failed_before = self.failed_count();
        let first = self.programs.len();
        if let Some(source) = source {
            self.begin_program(source, false, first, Instant::now());
        }
        let mut has_ended = false;
        loop {
            match lines.recv_timeout(GRACE) {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    if let Some(skip) = text.strip_prefix(SKIP_PREFIX) {
                        let file = OpenOptions::new().append(true).create(true).open(&self.path);
                        let written = file.and_then(|mut file| writeln!(file, "{skip}"));
                        written.context("cannot count what was skipped")?;
                        continue;
                    }
                    (self.echo)(&text);
                    self.read(&text, first, Instant::now());
                }
                Err(RecvTimeoutError::Disconnected) => break,
                // A process left behind by a test may hold the pipe open. The last lines may still be in the pipe when
                // the end is seen, so they have this time once more.
                Err(RecvTimeoutError::Timeout) if has_ended => break,
                Err(RecvTimeoutError::Timeout) => {
                    has_ended = child.try_wait().context("cannot wait for cargo")?.is_some();
                }
            }
        }
        let status = child.wait().context("cannot wait for cargo")?;
        self.end_program(first, Instant::now());
        if !status.success() && self.failed_count() == failed_before {
            self.broken.push(format!("`{}`: {status}", line(command)));
        }
        Ok(())
    }

    /// Parses a line of output of a command. `first` is the index of the command's first program.
    fn read(&mut self, text: &str, first: usize, now: Instant) {
        if let Some(rest) = text.strip_prefix("     Running ").and_then(|rest| rest.strip_suffix(')')) {
            if let Some((target, path)) = rest.rsplit_once(" (") {
                let file = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
                let name = match self.sources.get(&*file) {
                    Some(source) => source.clone(),
                    None => format!("{target} ({path})"),
                };
                self.begin_program(name, false, first, now);
            }
        } else if let Some(package) = text.strip_prefix("   Doc-tests ") {
            self.begin_program(format!("documentation of {package}"), true, first, now);
        }
        let Some(program) = self.programs.get_mut(first..).and_then(<[Program]>::last_mut) else { return };
        let told = text.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = told.filter(|name| program.failed_tests.contains_key(*name)) {
            program.telling = Some(name.to_owned());
        } else if text == "failures:" || text.starts_with("test result: ") {
            program.telling = None;
        } else if let Some(name) = &program.telling
            && let Some(lines) = program.failed_tests.get_mut(name)
            && lines.len() < LINES_OF_FAILED
            && !text.is_empty()
        {
            lines.push(text.to_owned());
        }
        if let Some(result) = text.strip_prefix("test result: ") {
            let number = |word: &str| {
                let before = result.split_once(word).and_then(|(before, _)| before.rsplit(' ').next());
                before.and_then(|number| number.parse::<usize>().ok()).unwrap_or(0)
            };
            let (passed, failed) = (number(" passed"), number(" failed"));
            if program.is_documentation {
                // Documentation tests run in groups, which are summed.
                program.passed = Some(program.passed.unwrap_or(0) + passed);
                program.failed += failed;
            } else {
                // Only the last summary is the program's own. Earlier ones may be output of other programs.
                (program.passed, program.failed) = (Some(passed), failed);
            }
        } else if let Some((name, outcome)) = text.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) {
            if outcome == "FAILED" {
                program.failed_tests.entry(name.to_owned()).or_default();
            } else if let Some(why) = outcome.strip_prefix("ignored") {
                program.ignored.insert(name.to_owned(), why.trim_start_matches(", ").to_owned());
            }
        }
    }

    fn begin_program(&mut self, name: String, is_documentation: bool, first: usize, now: Instant) {
        self.end_program(first, now);
        let (failed_tests, telling, ignored) = (BTreeMap::new(), None, BTreeMap::new());
        let (passed, failed, took) = (None, 0, Duration::ZERO);
        let started = now;
        self.programs.push(Program {
            name,
            is_documentation,
            started,
            took,
            passed,
            failed,
            failed_tests,
            telling,
            ignored,
        });
    }

    fn end_program(&mut self, first: usize, now: Instant) {
        if let Some(program) = self.programs.get_mut(first..).and_then(<[Program]>::last_mut) {
            program.took = now.duration_since(program.started);
        }
    }

    fn failed_count(&self) -> usize {
        let programs = self.programs.iter().map(|program| match program.passed {
            Some(_) => program.failed,
            None => program.failed_tests.len().max(1),
        });
        programs.sum::<usize>() + self.broken.len()
    }

    /// Returns the counts and two texts: skips and the slowest programs; and failures with the first lines of their
    /// output.
    ///
    /// # Errors
    /// The file of skips cannot be read.
    pub(crate) fn finish(self) -> Result<(Counts, String, String)> {
        let skips = Skip::read(&self.path).context("cannot count what was skipped");
        let _ = std::fs::remove_file(&self.path);
        let skips = skips?;
        let source = |file: &str| self.sources.get(file).cloned().unwrap_or_else(|| file.to_owned());
        let mut skipped: Vec<String> =
            skips.iter().map(|skip| format!("{} {}: {}", source(&skip.program), skip.test, skip.what())).collect();
        for program in &self.programs {
            skipped.extend(program.ignored.iter().map(|(name, why)| {
                let why = if why.is_empty() { "ignored by its author" } else { why };
                format!("{} {name}: {why} (`cargo test -- --ignored` runs it)", program.name)
            }));
        }
        skipped.extend(self.left_out.iter().cloned());
        // The test harness counts a skipped test as passed, because it returned.
        let whole_count = skips.iter().filter(|skip| skip.part.is_none()).count();
        let passed: usize = self.programs.iter().filter_map(|program| program.passed).sum();
        let counts =
            Counts { passed: passed.saturating_sub(whole_count), failed: self.failed_count(), skipped: skipped.len() };

        let mut text = String::new();
        list(&mut text, "skipped", &skipped);
        let mut slowest: Vec<&Program> = self.programs.iter().collect();
        slowest.sort_by_key(|program| std::cmp::Reverse(program.took));
        let slowest = slowest.iter().take(SLOWEST_COUNT);
        let slowest: Vec<String> =
            slowest.map(|program| format!("{:>7.1} s  {}", program.took.as_secs_f64(), program.name)).collect();
        list(&mut text, "slowest test programs", &slowest);
        let mut failed = self.broken.clone();
        for program in &self.programs {
            for (name, lines) in &program.failed_tests {
                failed.push(format!("{} {name}", program.name));
                failed.extend(lines.iter().map(|line| format!("  | {line}")));
            }
            if program.passed.is_none() {
                failed.push(format!("{}: the program ended before its last test", program.name));
            }
        }
        let mut faults = String::new();
        list(&mut faults, "failed", &failed);
        Ok((counts, text, faults))
    }
}

fn list(text: &mut String, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = writeln!(text, "\n{title}:");
        lines.iter().for_each(|line| _ = writeln!(text, "  {line}"));
    }
}

/// Prints a line. If standard output is closed, the tests continue.
pub(crate) fn show(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{cargo, root};

    /// Tests with every outcome, for a separate package without dependencies that must be fetched.
    const TESTS: &str = r#"
use dormouse_testing::{Lack, skip, skip_part};
#[test] fn passes() {}
#[test] fn passes_in_part() { skip_part("the left half", Lack::machine("no left half here", "turn around")) }
#[test] fn is_skipped() { skip(Lack::machine("no moon tonight", "wait")) }
#[test] #[ignore = "takes a year"] fn is_ignored() {}
#[test] fn fails() { panic!("test result: FAILED. 70 passed; 70 failed; 0 ignored") }
"#;
    const DOCUMENTATION: &str = r#"
//! ```
//! assert_eq!(1 + 1, 2);
//! ```
//! ```ignore
//! not Rust
//! ```
"#;

    /// Runs a package with these test files. `name` must be unique.
    fn run(name: &str, tests: &[(&str, &str)]) -> (Counts, String) {
        run_together(name, &[tests])
    }

    /// Runs several packages at the same time.
    fn run_together(name: &str, packages: &[&[(&str, &str)]]) -> (Counts, String) {
        let dir = tempfile::tempdir().unwrap();
        let mut tally = Tally::new(dir.path().join("skips"), BTreeMap::new(), |_| ());
        let jobs = packages.iter().enumerate().map(|(index, tests)| package(&format!("{name}-{index}"), tests).into());
        tally.run_all(jobs.collect(), 2).unwrap();
        tally.leave_out("tests on the moon", "too far", "fly");
        let (counts, text, faults) = tally.finish().unwrap();
        (counts, text + &faults)
    }

    /// Makes a package. All share one target directory and have fixed paths, so that dependencies are compiled once.
    fn package(name: &str, tests: &[(&str, &str)]) -> Command {
        let target = crate::run::target_dir().unwrap().join("fixtures");
        let dir = target.join(name);
        let _ = std::fs::remove_dir_all(&dir);
        let testing = root().join("tests/support");
        let manifest = format!(
            "[package]\nname = \"fixture\"\nedition = \"2024\"\n[workspace]\n\
             [dev-dependencies]\ndormouse-testing = {{ path = {testing:?} }}\n"
        );
        std::fs::create_dir_all(dir.join("src")).unwrap();
        std::fs::create_dir(dir.join("tests")).unwrap();
        std::fs::write(dir.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(dir.join("src/lib.rs"), DOCUMENTATION).unwrap();
        for (name, text) in tests {
            std::fs::write(dir.join("tests").join(name), text).unwrap();
        }
        let mut tests = cargo(["test", "--offline", "--no-fail-fast", "--manifest-path"]);
        tests.arg(dir.join("Cargo.toml")).env("CARGO_TARGET_DIR", target);
        tests.env_remove(dormouse_testing::ENV_REQUIRE_TOOLS);
        tests
    }

    #[test]
    fn every_outcome_is_counted_once() {
        let abort = "#[test] fn a() {}\n#[test] fn ends_all() { std::process::abort() }";
        let (counts, text) = run("every-outcome", &[("outcomes.rs", TESTS), ("short.rs", abort)]);
        assert_eq!(counts.to_string(), "3 passed, 2 failed, 5 skipped", "{text}");
        for wanted in [
            " passes_in_part: the left half: no left half here (turn around)\n",
            " is_skipped: no moon tonight (wait)\n",
            " is_ignored: takes a year (`cargo test -- --ignored` runs it)\n",
            " src/lib.rs - (line 5): ignored by its author",
            "  tests on the moon: too far (fly)\n",
            " fails\n    | thread 'fails' ",
            ": the program ended before its last test\n",
            " s  tests/outcomes.rs",
            " s  documentation of fixture\n",
        ] {
            assert!(text.contains(wanted), "{wanted:?}: {text}");
        }
    }

    #[test]
    fn concurrent_tests_are_counted_once() {
        let (counts, text) = run_together("same-time", &[&[("outcomes.rs", TESTS)], &[("outcomes.rs", TESTS)]]);
        // Two times one package's counts, and the test that was left out.
        assert_eq!(counts.to_string(), "6 passed, 2 failed, 9 skipped", "{text}");
    }

    #[test]
    fn a_compile_error_is_a_failure() {
        let (counts, text) = run("does-not-compile", &[("wrong.rs", "this is not Rust")]);
        assert_eq!((counts.passed, counts.failed), (0, 1), "{text}");
        assert!(text.contains("failed:\n  `cargo test"), "{text}");
    }
}
