//! `cargo xtask fuzz`: libFuzzer with the compiler's coverage, on a stable toolchain.
//!
//! ```text
//!   tests/fuzz        ── cargo, with coverage, into target/fuzz ──▶ a program for each target
//!                                                                   │ inputs that reached new code, kept for later runs:
//!                                                                   ├── target/fuzz/corpus/TARGET
//!                                                                   └── target/fuzz/failures/TARGET-…     inputs that failed
//! ```

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::run::{self, cargo, line, succeed};
use crate::system::{self, CC, CPP};

/// Manifest of a separate workspace.
pub(crate) const MANIFEST: &str = "tests/fuzz/Cargo.toml";

/// Coverage for libFuzzer: counters and a table of program counters for edges, and compared values.
const RUSTFLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    COMPARES,
    "-Ccodegen-units=1",
    "--cfg",
    "fuzzing",
];

/// Records compared values. This makes each input several times slower, which pays off for finding new inputs, but not
/// for many inputs of known kinds.
const COMPARES: &str = "-Cllvm-args=-sanitizer-coverage-trace-compares";
/// libFuzzer options for many cheap inputs: short ones, and coverage by edges alone.
const BULK: [&str; 4] = ["-max_len=160", "-entropic=0", "-use_counters=0", "-reduce_inputs=0"];

/// Flag and environment of the address sanitizer. The stable compiler has its runtime, but accepts the flag only if it
/// also accepts unstable ones.
const SANITIZER: (&str, (&str, &str)) = ("-Zsanitizer=address", ("RUSTC_BOOTSTRAP", "1"));

/// Time after which an input counts as hung, in seconds.
const TIMEOUT_S: u32 = 20;
/// Maximum size of an input, in bytes.
const LEN_MAX: u32 = 2048;
/// Default duration of a target, in seconds.
const SECONDS_DEFAULT: u64 = 60;
/// Number of inputs of each target in `cargo xtask ci`, and their seed. Each run starts without a corpus.
const CI: (u64, u32) = (2_000, 1);
/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Prefixes of lines that only concern libFuzzer's developers.
const NOISE: [&str; 6] = ["INFO:", "\tNEW_FUNC", "WARNING: Failed to find", "###### ", "\"", "Done "];

/// The targets of `tests/fuzz/Cargo.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// Operations on page chains against a list of bytes
    Chain,
    /// Records, page switches and their hand-over against lists of records
    Write,
    /// Hostile packets, metadata and session memory
    Read,
    /// Arbitrary metadata in CTF 1.8, and streams read with valid ones
    Ctf,
    /// Arbitrary metadata in CTF 2, and streams read with valid ones
    Ctf2,
    /// Damaged packets in the layouts of other tracers
    Packets,
    /// Arbitrary filters over arbitrary streams
    Filter,
    /// Arbitrary bytes as the rules of a session
    Rule,
    /// Damaged packets and index files, compared with reading without an index
    Index,
    /// Snapshots between writes, and after noise in the memory
    Snapshot,
    /// Messages of hostile programs, owners and tools, in pieces
    Message,
    /// Devices of virtqueues with a hostile driver, which acts between any two of their accesses
    VringDevice,
    /// Drivers of virtqueues with a hostile device
    VringDriver,
}

impl Target {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Targets and limits of a fuzz run.
#[derive(Debug, Default, Args)]
#[command(after_help = "\
Examples:
  cargo xtask fuzz                                     every target for a minute
  cargo xtask fuzz write --seconds 3600
  cargo xtask fuzz chain read --runs 100000 --seed 7
  cargo xtask fuzz vring-device --address-sanitizer --runs 10000000
  cargo xtask fuzz packets --bulk --runs 10000000
  cargo xtask fuzz write --input target/fuzz/failures/write-crash-0123…
                                                       one input again, with a description of what it does

Inputs that reach new code stay in target/fuzz/corpus, and later runs start from them. The task needs a C++ compiler, or clang with
its libFuzzer, which then need not be compiled.")]
pub(crate) struct Fuzz {
    /// Targets to run [default: all]
    #[arg(value_enum, value_name = "TARGET")]
    targets: Vec<Target>,
    /// Stop each target after N inputs
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// Stop each target after N seconds [default: 60 without --runs]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Seed for the inputs; the same seed, corpus and --runs give the same inputs
    #[arg(long, value_name = "N")]
    seed: Option<u32>,
    /// Also check memory accesses with the address sanitizer, as far as the compiler supports it
    #[arg(long)]
    address_sanitizer: bool,
    /// Try many cheap inputs: short ones, without recording compared values
    #[arg(long)]
    bulk: bool,
    /// Run one input of one target, and show it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["runs", "seconds", "seed"])]
    input: Option<PathBuf>,
}

impl Fuzz {
    /// Returns arguments for a run of every target with this duration.
    pub(crate) fn all_for(seconds: u64) -> Fuzz {
        Fuzz {
            targets: Vec::new(),
            runs: None,
            seconds: Some(seconds),
            seed: None,
            address_sanitizer: false,
            bulk: false,
            input: None,
        }
    }

    /// Runs the task.
    ///
    /// # Errors
    /// A target does not build, or an input fails.
    pub(crate) fn run(self) -> Result<()> {
        let programs = build(self.address_sanitizer, self.bulk)?;
        if let Some(input) = &self.input {
            let &[target] = self.targets.as_slice() else { bail!("--input needs exactly one target; name it") };
            return replay(&programs, target, input);
        }
        let all = if self.targets.is_empty() { Target::value_variants() } else { &self.targets };
        let seconds = self.seconds.or((self.runs.is_none()).then_some(SECONDS_DEFAULT));
        let limits = Limits { runs: self.runs, seconds, seed: self.seed, is_bulk: self.bulk, at_once: 1 };
        run_all(&programs, all, &limits, &home()?.join("corpus"))
    }
}

/// Runs a few inputs of each target, and the linter.
///
/// # Errors
/// A target does not build, an input fails, or the linter finds something.
pub(crate) fn ci() -> Result<()> {
    let programs = build(false, false)?;
    let corpus = home()?.join("corpus-ci");
    if corpus.exists() {
        fs::remove_dir_all(&corpus).with_context(|| format!("cannot remove {}", corpus.display()))?;
    }
    let limits = Limits { runs: Some(CI.0), seconds: None, seed: Some(CI.1), is_bulk: false, at_once: 2 };
    run_all(&programs, Target::value_variants(), &limits, &corpus)?;
    succeed(&mut linter()?)
}

/// Returns the commands that compile and lint for [`ci`]. If they have run before, [`ci`] finds their work done.
///
/// # Errors
/// There is no target directory.
pub(crate) fn ahead() -> Result<[Command; 2]> {
    Ok([builder(false, false, &home()?), linter()?])
}

fn linter() -> Result<Command> {
    let mut clippy = cargo(["clippy", "--quiet", "--locked", "--manifest-path", MANIFEST, "--target-dir"]);
    clippy.arg(home()?).args(["--all-targets", "--", "-D", "warnings"]);
    Ok(clippy)
}

/// Returns the directory for all files of this task.
fn home() -> Result<PathBuf> {
    Ok(run::target_dir()?.join("fuzz"))
}

/// Returns the path of clang's libFuzzer, if it is installed.
fn libfuzzer() -> Option<PathBuf> {
    let name = "libclang_rt.fuzzer-x86_64.a";
    let output = Command::new("clang").arg(format!("-print-file-name={name}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    (path.is_absolute() && path.is_file()).then_some(path)
}

/// Builds all targets, and returns the directory with their programs.
fn build(has_sanitizer: bool, is_bulk: bool) -> Result<PathBuf> {
    system::ensure(&[CC, CPP])?;
    let started = Instant::now();
    let dir = match (has_sanitizer, is_bulk) {
        (false, false) => home()?,
        (false, true) => home()?.join("bulk"),
        (true, false) => home()?.join("sanitized"),
        (true, true) => home()?.join("sanitized-bulk"),
    };
    succeed(&mut builder(has_sanitizer, is_bulk, &dir))?;
    println!("targets built, {:.1} s", started.elapsed().as_secs_f64());
    Ok(dir.join(PLATFORM).join("debug"))
}

/// Platform that targets are built for.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Returns the command that builds all targets into a directory.
fn builder(has_sanitizer: bool, is_bulk: bool, dir: &Path) -> Command {
    // With an explicit platform, build scripts and procedural macros are compiled without coverage.
    let mut build = cargo(["build", "--quiet", "--locked", "--manifest-path", MANIFEST, "--target", PLATFORM]);
    let mut rustflags = RUSTFLAGS.to_vec();
    rustflags.retain(|flag| !is_bulk || *flag != COMPARES);
    if has_sanitizer {
        let (flag, (name, value)) = SANITIZER;
        rustflags.push(flag);
        build.env(name, value);
    }
    build.arg("--target-dir").arg(dir).env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\x1f"));
    if let Some(library) = libfuzzer() {
        build.env("CUSTOM_LIBFUZZER_PATH", library);
    }
    build
}

/// Limits of a run.
#[derive(Debug)]
struct Limits {
    runs: Option<u64>,
    seconds: Option<u64>,
    seed: Option<u32>,
    is_bulk: bool,
    /// Number of targets that run at the same time.
    at_once: usize,
}

fn run_all(programs: &Path, targets: &[Target], limits: &Limits, corpus: &Path) -> Result<()> {
    let failures = home()?.join("failures");
    fs::create_dir_all(&failures).with_context(|| format!("cannot make {}", failures.display()))?;
    let run = |target: Target| {
        let name = target.name();
        let corpus = corpus.join(&name);
        fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
        let mut command = Command::new(programs.join(&name));
        command.args([format!("-timeout={TIMEOUT_S}"), format!("-max_len={LEN_MAX}"), "-len_control=20".into()]);
        command.arg(format!("-artifact_prefix={}/{name}-", failures.display()));
        command.args(if limits.is_bulk { &BULK[..] } else { &[] });
        command.args(limits.runs.map(|runs| format!("-runs={runs}")));
        command.args(limits.seconds.map(|seconds| format!("-max_total_time={seconds}")));
        command.args(limits.seed.map(|seed| format!("-seed={seed}"))).arg(&corpus);
        let outcome = watch(&name, command)?;
        let failed = match &outcome.failure {
            Some(input) => Some(format!("cargo xtask fuzz {name} --input {}", input.display())),
            None => (!outcome.is_success).then(|| format!("{name} has ended, see above")),
        };
        let (elapsed, figures) = (outcome.elapsed, outcome.figures.after(outcome.elapsed));
        Ok((format!("{name:10} {:>7.1} s  {figures}", elapsed.as_secs_f64()), failed))
    };
    let left = Mutex::new(targets.iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run_some = || std::iter::from_fn(|| next().map(|target| run(*target))).collect::<Result<Vec<_>>>();
    let outcomes: Vec<Result<Vec<_>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..limits.at_once).map(|_| scope.spawn(run_some)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a target does not panic here")).collect()
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?.concat();
    let summary: Vec<&str> = outcomes.iter().map(|(text, _)| text.as_str()).collect();
    let failed: Vec<&str> = outcomes.iter().filter_map(|(_, failed)| failed.as_deref()).collect();
    println!("\n{}", summary.join("\n"));
    if !failed.is_empty() {
        bail!("inputs fail; these commands run each again:\n  {}", failed.join("\n  "));
    }
    Ok(())
}

/// Result of running a target.
#[derive(Debug)]
struct Outcome {
    is_success: bool,
    /// Last figures that libFuzzer printed.
    figures: Figures,
    /// Input that failed, if any.
    failure: Option<PathBuf>,
    elapsed: Duration,
}

/// Runs a target, shows its progress every `PROGRESS_INTERVAL`, and its messages if it fails.
fn watch(name: &str, mut command: Command) -> Result<Outcome> {
    println!("\n$ {}", line(&command));
    let started = Instant::now();
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot run `{}`", line(&command)))?;
    let (mut last, mut failure, mut shown) = (Figures::default(), None, Instant::now());
    for text in child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n')) {
        let text = String::from_utf8_lossy(&text.context("the target's output ends early")?).into_owned();
        if let Some(figures) = figures(&text) {
            last = figures;
            if shown.elapsed() > PROGRESS_INTERVAL {
                println!("{name}: {}", last.after(started.elapsed()));
                shown = Instant::now();
            }
        } else if let Some((_, path)) = text.split_once("Test unit written to ") {
            failure = Some(PathBuf::from(path.trim()));
        } else if !NOISE.iter().any(|noise| text.starts_with(noise)) {
            println!("{name}: {text}");
        }
    }
    let status = child.wait().context("a child can be awaited")?;
    // libFuzzer ends with `_exit`, so the target cannot remove its directory.
    let _ = std::fs::remove_dir_all(format!("/dev/shm/dormouse-fuzz-{name}-{}", child.id()));
    Ok(Outcome { is_success: status.success(), figures: last, failure, elapsed: started.elapsed() })
}

/// Counts that libFuzzer prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Figures {
    inputs: u64,
    edges: u64,
    corpus: u64,
}

impl Figures {
    fn after(self, elapsed: Duration) -> String {
        let Figures { inputs, edges, corpus } = self;
        let rate = inputs as f64 / elapsed.as_secs_f64().max(0.001);
        format!("{inputs} inputs, {rate:.0} a second, {edges} edges, corpus {corpus}")
    }
}

/// Parses `#4540  DONE   cov: 1082 ft: 2518 corp: 111/946b lim: 11 exec/s: 283 rss: 28Mb`. Returns `None` for other lines.
fn figures(text: &str) -> Option<Figures> {
    let (inputs, rest) = text.strip_prefix('#')?.split_once('\t')?;
    let mut words = rest.split_whitespace().skip_while(|word| *word != "cov:");
    let edges = words.nth(1)?.parse().ok()?;
    let corpus = words.skip_while(|word| *word != "corp:").nth(1).and_then(|word| word.split('/').next()?.parse().ok());
    Some(Figures { inputs: inputs.trim().parse().ok()?, edges, corpus: corpus.unwrap_or(0) })
}

/// Runs one input.
fn replay(programs: &Path, target: Target, input: &Path) -> Result<()> {
    let input = std::path::absolute(input).with_context(|| format!("no path: {}", input.display()))?;
    let program = || {
        let mut command = Command::new(programs.join(target.name()));
        command.arg(format!("-timeout={TIMEOUT_S}")).arg(&input).env("RUST_BACKTRACE", "1");
        command
    };
    // This only prints the decoded input, and does not run the target.
    succeed(program().env("RUST_LIBFUZZER_DEBUG_PATH", "/dev/stdout"))?;
    succeed(&mut program())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_run_and_the_one_that_fails_is_named() {
        let place = tempfile::tempdir().unwrap();
        for target in [Target::Chain, Target::Write, Target::Read] {
            let end = if target == Target::Write { "Test unit written to /here/input\nEOF\nexit 1" } else { "EOF" };
            let text = format!("#!/bin/sh\ncat >&2 <<EOF\n#5\tDONE   cov: 7 ft: 9 corp: 3/3b\n{end}\n");
            dormouse_testing::write_script(&place.path().join(target.name()), &text);
        }
        let targets = [Target::Chain, Target::Write, Target::Read];
        for at_once in [1, 2] {
            let limits = Limits { runs: Some(5), seconds: None, seed: None, is_bulk: false, at_once };
            let run = |targets| run_all(place.path(), targets, &limits, &place.path().join("corpus"));
            let error = run(&targets).unwrap_err().to_string();
            assert!(error.ends_with("\n  cargo xtask fuzz write --input /here/input"), "{error}");
            run(&targets[..1]).unwrap();
            assert!(targets.iter().all(|target| place.path().join("corpus").join(target.name()).is_dir()));
        }
    }

    #[test]
    fn figures_of_libfuzzer_are_parsed() {
        let line = "#4540\tDONE   cov: 1082 ft: 2518 corp: 111/946b lim: 11 exec/s: 283 rss: 28Mb";
        assert_eq!(figures(line), Some(Figures { inputs: 4540, edges: 1082, corpus: 111 }));
        assert_eq!(
            figures(line).unwrap_or_default().after(Duration::from_secs(20)),
            "4540 inputs, 227 a second, 1082 edges, corpus 111"
        );
        assert_eq!(figures("    #4 0x00 in main"), None);
        assert_eq!(figures("INFO: Seed: 1"), None);
    }
}
