//! `cargo xtask ci`.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::lab;
use crate::run::{self, LAB, QUERY, WORKSPACES, cargo, succeed};
use crate::test::Test;
use crate::{demo, fuzz, headers, peers, test};

/// A step: what it is called and what it does.
type Step = (&'static str, fn() -> Result<()>);

/// All steps. Later ones run though earlier ones fail, so that one run tells everything.
const STEPS: [Step; 12] = [
    // First of all, so that every compiler sees the headers.
    ("tools", test::tools),
    ("fetch", fetch),
    ("format", format),
    ("clippy", clippy),
    ("headers", headers::check),
    ("test", || Test::default().run()),
    ("doc", doc),
    ("query", query),
    ("fuzz", fuzz::ci),
    ("peers", peers),
    ("lab", lab::trial),
    ("demo", demo::run),
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
    let names = STEPS.map(|(name, _)| name);
    if let Some(other) = chosen.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no step {other}; the steps are {}", names.join(", "));
    }
    let mut rows: Vec<(&str, Duration, Result<()>)> = Vec::new();
    let mut ahead = None;
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|one| one == name);
    for (name, step) in STEPS.into_iter().filter(|(name, _)| is_chosen(name)) {
        println!("\n== {name}");
        // Tests wait often: the CPUs that they leave idle compile the peers.
        if name == "test" && is_chosen("peers") {
            ahead = peers::build_ahead().ok();
        }
        let started = Instant::now();
        let result = step();
        if let Err(error) = &result {
            println!("{error:#}");
        }
        rows.push((name, started.elapsed(), result));
    }
    // It has ended before the step that needs it.
    drop(ahead.map(JoinHandle::join));
    println!("\n== ci");
    for (name, elapsed, result) in &rows {
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{name:10} {:>7.1} s  {outcome}", elapsed.as_secs_f64());
    }
    let total: Duration = rows.iter().map(|(_, elapsed, _)| *elapsed).sum();
    println!("{:10} {:>7.1} s", "total", total.as_secs_f64());
    let failed: Vec<_> = rows.iter().filter(|(.., result)| result.is_err()).map(|(name, ..)| *name).collect();
    for (name, _, result) in &rows {
        if let Err(error) = result {
            println!("\n{name}: {error:#}");
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("everything holds");
    Ok(())
}
