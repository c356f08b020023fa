//! `cargo xtask ci`.

use std::fmt;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cross::Cross;
use crate::lab;
use crate::run::{self, LAB, QUERY, WORKSPACES, cargo, succeed};
use crate::test::Test;
use crate::{crates, demo, fuzz, headers, peers, test};

/// A step of the run.
struct Step {
    name: &'static str,
    /// Maximum duration on two cores, in a clone in which nothing is built. CONTRIBUTING.md has the same number.
    budget_minutes: u32,
    run: fn() -> Result<()>,
}

const fn step(name: &'static str, budget_minutes: u32, run: fn() -> Result<()>) -> Step {
    Step { name, budget_minutes, run }
}

/// All steps. Later ones run even if earlier ones fail, so that one run reports everything.
const STEPS: [Step; 13] = [
    // These build nothing, so that the next two run as they do for a newcomer.
    step("fetch", 1, fetch),
    step("crates", 1, crates::check),
    step("format", 1, format),
    step("demo", 4, demo::run),
    step("test", 18, || Test::here().run()),
    step("cross", 5, || Cross::ci().run()),
    step("clippy", 3, clippy),
    step("headers", 1, headers::check),
    step("doc", 2, doc),
    step("query", 13, query),
    step("fuzz", 5, fuzz::ci),
    step("peers", 2, peers),
    step("lab", 3, lab::trial),
];

/// The supported platform.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// `-D warnings`, with the separators that the linter expects in its variable.
const DENY_WARNINGS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Runs cargo in each workspace.
fn in_each(arguments: &[&str], last: &[&str]) -> Result<()> {
    WORKSPACES.iter().try_for_each(|manifest| succeed(cargo(arguments).args(["--manifest-path", manifest]).args(last)))
}

fn fetch() -> Result<()> {
    in_each(&["fetch", "--locked", "--target", TARGET], &[])?;
    succeed(cargo(["fetch", "--locked", "--target", TARGET]).args(["--manifest-path", QUERY]))
}

/// Builds, tests and lints the SQL query program.
fn query() -> Result<()> {
    // Its dependencies take ten minutes to compile, and `cargo clippy` would compile them again. So the linter is the
    // compiler for the tests. It reads its options from a variable, as `cargo clippy` passes them.
    let linter = [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), ("CLIPPY_ARGS", DENY_WARNINGS)];
    // These tests' questions are answered by reports and `stats`, and here also by the program.
    let program = run::target_dir()?.join("debug").join("dormouse-query");
    let mut asking = cargo(["test", "--locked", "--workspace", "--test", "newcomer", "--test", "ledger"]);
    asking.env("DORMOUSE_QUERY", program);
    test::run_workspace(QUERY, &linter, asking)
}

fn doc() -> Result<()> {
    let doc = |manifest| cargo(["doc", "--no-deps", "--workspace", "--manifest-path", manifest]);
    WORKSPACES.iter().try_for_each(|manifest| succeed(doc(manifest).env("RUSTDOCFLAGS", "-D warnings")))
}

fn clippy() -> Result<()> {
    in_each(&["clippy", "--workspace", "--all-targets"], &["--", "-D", "warnings"])?;
    let mut preload = cargo(["clippy", "--locked", "--features", "memcpy", "--manifest-path", lab::PRELOAD_MANIFEST]);
    succeed(preload.arg("--target-dir").arg(run::target_dir()?.join("variants")).args(["--", "-D", "warnings"]))
}

fn format() -> Result<()> {
    in_each(&["fmt", "--all", "--check"], &[])?;
    succeed(&mut cargo(["fmt", "--check", "--manifest-path", fuzz::MANIFEST]))?;
    succeed(&mut cargo(["fmt", "--all", "--check", "--manifest-path", QUERY]))?;
    succeed(&mut cargo(["fmt", "--all", "--check", "--manifest-path", peers::MANIFEST]))?;
    succeed(&mut cargo(["fmt", "--all", "--check", "--manifest-path", lab::PRELOAD_MANIFEST]))
}

/// Builds the tracers that the lab compares with. It is not a failure if one is unavailable here; this project's code
/// in them must pass the linter.
fn peers() -> Result<()> {
    run::build_harness()?;
    if peers::build()?.is_empty() {
        peers::lint()?;
    }
    // The built engines must respond, and their events must arrive. The whole workspace is named because it is built
    // already.
    let mut tests = cargo(["test", "--quiet", "--workspace", "--test", "peers", "--manifest-path", LAB]);
    succeed(tests.env("DORMOUSE_LAB_PEERS", run::target_dir()?.join("release/peers")))
}

/// Time that a step has taken.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    elapsed: Duration,
    cpu: Duration,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7.1} s  {:>7.1} s of CPUs", self.elapsed.as_secs_f64(), self.cpu.as_secs_f64())
    }
}

/// Returns the CPU time of this process and of the children that it has waited for.
fn cpu_time() -> Result<Duration> {
    // Ticks per second in `/proc/PID/stat`, the same on every machine.
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    let fields = stat.rsplit_once(") ").context("/proc/self/stat has no name")?.1.split(' ');
    // `utime`, `stime`, `cutime` and `cstime`.
    let ticks: f64 = fields.skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(Duration::from_secs_f64(ticks / TICKS_PER_S))
}

/// Runs commands one after another at the lowest priority, and discards their output. The step that needs a command's
/// work runs it again: it finds the work done, or reports the error.
fn run_ahead(commands: Vec<Command>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for command in commands {
            let mut idle = Command::new("nice");
            idle.args(["-n", "19"]).arg(command.get_program()).args(command.get_args()).current_dir(run::root());
            idle.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let _ = idle.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    })
}

/// Runs the given steps, or all if none is named. Prints a table and, at the end, the failures, so that they are the
/// last lines of the output.
///
/// # Errors
/// There is no step with this name, or a step failed.
pub(crate) fn run(chosen: &[String]) -> Result<()> {
    let names = STEPS.map(|step| step.name);
    if let Some(other) = chosen.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no step {other}; choose from {}", names.join(", "));
    }
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|one| one == name);
    let mut rows: Vec<(Step, Taken, Result<()>)> = Vec::new();
    let mut ahead = None;
    for step in STEPS.into_iter().filter(|step| is_chosen(step.name)) {
        println!("\n== {}", step.name);
        // Tests wait often. Idle CPUs meanwhile compile the workspaces that have their own target directories, with the
        // tools that the tests also need.
        if step.name == "test" && chosen.is_empty() && test::tools().is_ok() {
            ahead = Some(run_ahead(peers::ahead()?.into_iter().chain(fuzz::ahead()?).collect()));
        }
        let (started, cpu) = (Instant::now(), cpu_time()?);
        let result = (step.run)();
        if let Err(error) = &result {
            println!("{error:#}");
        }
        rows.push((step, Taken { elapsed: started.elapsed(), cpu: cpu_time()?.saturating_sub(cpu) }, result));
    }
    // Wait for it before the process ends.
    drop(ahead.map(JoinHandle::join));
    if chosen.is_empty() {
        println!("\n== cache");
        // A failure only makes the next run slower.
        if let Err(error) = succeed(&mut cargo(["run", "--quiet", "--package", "xtask-cache", "--", "keep"])) {
            println!("{error:#}");
        }
    }
    println!("\n== ci");
    for (step, taken, result) in &rows {
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        // On a busy machine, this says nothing about the change.
        let budget = Duration::from_secs(60 * u64::from(step.budget_minutes));
        let over =
            if taken.elapsed > budget { format!(", over its {} min", step.budget_minutes) } else { String::new() };
        println!("{:10} {taken}  {outcome}{over}", step.name);
    }
    let sum = |of: fn(&Taken) -> Duration| rows.iter().map(|(_, taken, _)| of(taken)).sum();
    let total = Taken { elapsed: sum(|taken| taken.elapsed), cpu: sum(|taken| taken.cpu) };
    println!("{:10} {total}", "total");
    let mut failed = Vec::new();
    for (step, _, result) in &rows {
        if let Err(error) = result {
            println!("\n{}: {error:#}", step.name);
            failed.push(step.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("all steps passed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_budgets_are_documented_and_total_under_an_hour() {
        let text = std::fs::read_to_string(run::root().join("CONTRIBUTING.md")).unwrap();
        for step in &STEPS {
            let row = format!("| `{}` | {} |", step.name, step.budget_minutes);
            assert!(text.contains(&row), "CONTRIBUTING.md has no row that begins with {row:?}");
        }
        assert!(STEPS.iter().map(|step| step.budget_minutes).sum::<u32>() < 60);
    }
}
