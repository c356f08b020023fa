//! `cargo xtask ci`.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::lab;
use crate::run::{self, LAB, QUERY, WORKSPACES, cargo, succeed};
use crate::test::Part;
use crate::{demo, fuzz, headers, peers, test};

/// A step.
struct Step {
    name: &'static str,
    /// What it takes at most on two cores, in a clone in which nothing is built. CONTRIBUTING.md has the same.
    budget_minutes: u32,
    run: fn() -> Result<()>,
}

const fn step(name: &'static str, budget_minutes: u32, run: fn() -> Result<()>) -> Step {
    Step { name, budget_minutes, run }
}

/// All steps. Later ones run though earlier ones fail, so that one run tells everything.
const STEPS: [Step; 14] = [
    // First of all, so that every compiler sees the headers.
    step("tools", 1, test::tools),
    step("fetch", 1, fetch),
    step("format", 1, format),
    step("clippy", 3, clippy),
    step("headers", 1, headers::check),
    step("test", 18, || Part::Core.tests().run()),
    step("report", 2, || Part::Report.tests().run()),
    step("python", 3, || Part::Python.tests().run()),
    step("doc", 2, doc),
    step("query", 13, query),
    step("fuzz", 5, fuzz::ci),
    step("peers", 2, peers),
    step("lab", 3, lab::trial),
    step("demo", 4, demo::run),
];

/// The platform that everything is for.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// `-D warnings`, as the linter separates arguments in its variable.
const DENY_WARNINGS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Runs cargo in each workspace.
fn in_each(arguments: &[&str], last: &[&str]) -> Result<()> {
    WORKSPACES.iter().try_for_each(|manifest| succeed(cargo(arguments).args(["--manifest-path", manifest]).args(last)))
}

fn fetch() -> Result<()> {
    in_each(&["fetch", "--locked", "--target", TARGET], &[])?;
    succeed(cargo(["fetch", "--locked", "--target", TARGET]).args(["--manifest-path", QUERY]))
}

/// Builds, tests and looks over what answers in SQL.
fn query() -> Result<()> {
    // What it depends on takes ten minutes to compile, and `cargo clippy` would compile it for itself. So the linter compiles what is tested; it reads
    // its own options from a variable, as `cargo clippy` passes them.
    let mut tests = cargo(["test", "--workspace", "--locked", "--no-fail-fast", "--manifest-path", QUERY]);
    tests.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", DENY_WARNINGS);
    // What a newcomer asks is answered by reports and `stats`, and here by the program too.
    let program = run::target_dir()?.join("debug").join("dormouse-query");
    let mut newcomer = cargo(["test", "--locked", "-p", "dormouse-e2e", "--test", "newcomer"]);
    newcomer.env("DORMOUSE_QUERY", program);
    test::run_commands([tests, newcomer])
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

/// Builds the tracers that the lab compares with. One that cannot be had here is no failure; what is ours in it has to be clean.
fn peers() -> Result<()> {
    run::build_harness()?;
    if peers::build()?.is_empty() {
        peers::lint()?;
    }
    // Those that are built answer, and what they emit arrives.
    // Of the whole workspace, as it is built already.
    succeed(cargo(["test", "--quiet", "--workspace", "--test", "peers"]).args(["--manifest-path", LAB]))
}

/// Runs steps, all of them if none is named, and prints a table; last of all what failed, so that the end of the output tells it.
///
/// # Errors
/// A step is none, or failed.
pub(crate) fn run(chosen: &[String]) -> Result<()> {
    let names = STEPS.map(|step| step.name);
    if let Some(other) = chosen.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no step {other}; the steps are {}", names.join(", "));
    }
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|one| one == name);
    let mut rows: Vec<(Step, Duration, Result<()>)> = Vec::new();
    let mut ahead = None;
    for step in STEPS.into_iter().filter(|step| is_chosen(step.name)) {
        println!("\n== {}", step.name);
        // Tests wait often: the CPUs that they leave idle compile the peers.
        if step.name == "test" && is_chosen("peers") {
            ahead = peers::build_ahead().ok();
        }
        let started = Instant::now();
        let result = (step.run)();
        if let Err(error) = &result {
            println!("{error:#}");
        }
        rows.push((step, started.elapsed(), result));
    }
    // It has ended before the step that needs it.
    drop(ahead.map(JoinHandle::join));
    println!("\n== ci");
    for (step, elapsed, result) in &rows {
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        // On a busy machine that says nothing of the change.
        let budget = Duration::from_secs(60 * u64::from(step.budget_minutes));
        let over = if *elapsed > budget { format!(", over its {} min", step.budget_minutes) } else { String::new() };
        println!("{:10} {:>7.1} s  {outcome}{over}", step.name, elapsed.as_secs_f64());
    }
    let total: Duration = rows.iter().map(|(_, elapsed, _)| *elapsed).sum();
    println!("{:10} {:>7.1} s", "total", total.as_secs_f64());
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
    println!("everything holds");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_documented_and_together_under_an_hour() {
        let text = std::fs::read_to_string(run::root().join("CONTRIBUTING.md")).unwrap();
        for step in &STEPS {
            let row = format!("| `{}` | {} |", step.name, step.budget_minutes);
            assert!(text.contains(&row), "CONTRIBUTING.md has no row that begins with {row:?}");
        }
        assert!(STEPS.iter().map(|step| step.budget_minutes).sum::<u32>() < 60);
    }
}
