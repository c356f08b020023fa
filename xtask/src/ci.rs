//! `cargo xtask ci`.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run::{self, cargo, succeed};
use crate::system::{self, CC, LTTNG, LTTNG_UST, MAKE};
use crate::{demo, headers, lua, test};

/// A step: what it is called and what it does.
type Step = (&'static str, fn() -> Result<()>);

/// All steps. Later ones run though earlier ones fail, so that one run tells everything.
const STEPS: [Step; 9] = [
    // First of all, so that every compiler sees the headers.
    ("tools", test::tools),
    ("fetch", || succeed(&mut cargo(["fetch", "--locked", "--target", TARGET]))),
    ("format", || succeed(&mut cargo(["fmt", "--all", "--check"]))),
    ("clippy", || succeed(&mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))),
    ("headers", headers::check),
    ("test", test::run),
    ("doc", || succeed(cargo(["doc", "--no-deps", "--workspace"]).env("RUSTDOCFLAGS", "-D warnings"))),
    ("lab", lab),
    ("demo", demo::run),
];

/// The platform that everything is for.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs every experiment once, quickly: that they work, not what they measure, is asked here.
fn lab() -> Result<()> {
    run::build_release()?;
    let target = run::target_dir()?;
    let dormouse = target.join("release/dormouse");
    system::ensure(&[CC, MAKE, LTTNG, LTTNG_UST])?;
    let project = target.join("lab/lua");
    lua::fetch(&project)?;
    let list = Command::new(&dormouse).args(["lab", "list"]).output().context("cannot run `dormouse lab list`")?;
    let list = String::from_utf8(list.stdout)?;
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    succeed(Command::new(&dormouse).args(["lab", "run"]).args(names).args(["--quick", "--project"]).arg(project))
}

/// Runs every step and prints a table.
pub(crate) fn run() -> Result<()> {
    let mut rows: Vec<(&str, Duration, Result<()>)> = Vec::new();
    for (name, step) in STEPS {
        println!("\n== {name}");
        let started = Instant::now();
        let result = step();
        if let Err(error) = &result {
            println!("{error:#}");
        }
        rows.push((name, started.elapsed(), result));
    }
    println!("\n== ci");
    for (name, elapsed, result) in &rows {
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{name:10} {:>7.1} s  {outcome}", elapsed.as_secs_f64());
    }
    let total: Duration = rows.iter().map(|(_, elapsed, _)| *elapsed).sum();
    println!("{:10} {:>7.1} s", "total", total.as_secs_f64());
    let failed: Vec<_> = rows.iter().filter(|(.., result)| result.is_err()).map(|(name, ..)| *name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("everything holds");
    Ok(())
}
