//! Builds the engines of the tracers that the lab compares with, apart from the workspace, into `release/peers` of the
//! target directory.
//!
//! ```text
//!   lab/peers/*/      Rust, a separate workspace    ── cargo, into target/peers ─┐     together, and one by one if that fails
//!   lab/peers/c/*.c   C ── cc, with the harness's static library ────────────────┴─▶ target/release/peers/NAME
//!                                                                or, with the reason, target/release/peers/NAME.why
//! ```
//! It is not a failure if an engine does not build: a line says why, and the lab reports it as not available.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::run::{self, cargo, line, succeed};
use crate::system::{self, BABELTRACE2, CC, CPP, LTTNG, LTTNG_UST, SDT};

/// Engines in Rust, cheapest to build first. Their programs are named `dormouse-lab-peer-NAME`.
const RUST: [&str; 13] = [
    "static-keys",
    "thread-local-crate",
    "fast-counter",
    "queues",
    "uprobe",
    "fastrace",
    "tracing",
    "tracing-ring",
    "tracing-flight-recorder",
    "tracing-filter",
    "perfetto-recorder",
    "tracy",
    "perfetto",
];

/// Engines in C: name, source, Debian package with their version, libraries.
const C: [(&str, &str, &str, &[&str]); 4] = [
    ("lttng-ust", "lttng_ust.c", "lttng-ust", &["-llttng-ust"]),
    ("lttng-ust-filter", "lttng_ust_filter.c", "lttng-ust", &["-llttng-ust"]),
    ("lttng-ust-procname", "lttng_ust_filter.c", "lttng-ust", &["-llttng-ust"]),
    ("usdt", "usdt.c", "systemtap-sdt", &[]),
];

/// Manifest of the workspace of the engines in Rust.
pub(crate) const MANIFEST: &str = "lab/peers/Cargo.toml";

/// Runs the task.
///
/// # Errors
/// See [`build`]; with `is_strict`, it is also an error if a peer cannot be built.
pub(crate) fn run(is_strict: bool) -> Result<()> {
    run::build_lab()?;
    let failed = build()?;
    if is_strict && !failed.is_empty() {
        bail!("not built: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs the linter on the engines in Rust, once they are built.
///
/// # Errors
/// The linter finds something.
pub(crate) fn lint() -> Result<()> {
    succeed(&mut linter(&run::target_dir()?))
}

fn linter(target: &Path) -> Command {
    let mut clippy = cargo(["clippy", "--quiet", "--locked", "--release", "--manifest-path", MANIFEST, "--target-dir"]);
    clippy.arg(target.join("peers")).args(["--all-targets", "--", "-D", "warnings"]);
    clippy
}

/// Returns the commands that [`build`] and [`lint`] run for the engines in Rust. If they have run before, [`build`] and
/// [`lint`] find their work done; otherwise they do the rest and report errors.
///
/// # Errors
/// There is no target directory.
pub(crate) fn ahead() -> Result<[Command; 2]> {
    let target = run::target_dir()?;
    Ok([rust_builder(&ALL_RUST, &target), linter(&target)])
}

/// Installs missing tools if possible, builds every peer, and prints a line for each. Returns the peers that could not
/// be built. The engines in C need the harness, which must be built before.
///
/// # Errors
/// Files cannot be written.
pub(crate) fn build() -> Result<Vec<&'static str>> {
    let optional = |tool: system::Tool| system::Tool { is_required: false, ..tool };
    system::ensure(&[optional(CC), optional(CPP), BABELTRACE2, LTTNG, LTTNG_UST, SDT])?;
    let target = run::target_dir()?;
    let dir = target.join("release/peers");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut failed = Vec::new();
    // One build of all compiles common dependencies once, and one engine's C++ while others compile. Only if it fails,
    // each engine is built alone to find which one fails and why: cargo then chooses other features for dependencies of
    // macros, and rebuilds them.
    let started = Instant::now();
    let timed = |name: &'static str, build: &dyn Fn() -> Result<PathBuf>| {
        let started = Instant::now();
        let result = build();
        (name, started.elapsed(), result)
    };
    let (are_built, in_c) = std::thread::scope(|scope| {
        let in_c = scope.spawn(|| {
            C.map(|(name, source, package, libraries)| {
                timed(name, &|| build_c(name, source, package, libraries, &target, "release"))
            })
        });
        (quietly(&mut rust_builder(&ALL_RUST, &target)).is_ok(), in_c.join().expect("a build does not panic"))
    });
    if are_built {
        println!("peers in Rust built, {:.1} s", started.elapsed().as_secs_f64());
    }
    let in_rust = RUST.into_iter().map(|name| timed(name, &|| build_rust_peer(name, are_built, &target)));
    for (name, took, result) in in_rust.chain(in_c) {
        let why = dir.join(format!("{name}.why"));
        // Do not mistake an old program or an old reason for this build's.
        let _ = fs::remove_file(&why);
        match result {
            Ok(program) => {
                install(&program, &dir.join(name))?;
                println!("peer {name:10} built, {:.1} s", took.as_secs_f64());
            }
            Err(error) => {
                let _ = fs::remove_file(dir.join(name));
                let text = format!("{error:#}");
                let first = text.lines().next().unwrap_or_default();
                println!("peer {name:10} NOT built: {first}");
                fs::write(&why, format!("could not be built: {first}\n"))?;
                failed.push(name);
            }
        }
    }
    Ok(failed)
}

/// Builds the engines in C whose libraries are installed, with the harness of a profile, into that profile's `peers`.
///
/// # Errors
/// Files cannot be written.
pub(crate) fn build_installed(profile: &str) -> Result<()> {
    let target = run::target_dir()?;
    let dir = target.join(profile).join("peers");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for (name, source, package, libraries) in C {
        match build_c(name, source, package, libraries, &target, profile) {
            Ok(program) => install(&program, &dir.join(name))?,
            Err(error) => println!("peer {name} is left out: {error:#}"),
        }
    }
    Ok(())
}

/// Installs a program where the lab finds it. A running program keeps its old file.
fn install(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    let copied = fs::copy(from, &new).and_then(|_| fs::rename(&new, to));
    copied.with_context(|| format!("cannot write {}", to.display()))
}

/// Returns the first line of the compiler's output with an error, otherwise the last line.
fn cause(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let telling = lines.iter().find(|line| line.contains("error"));
    telling.or(lines.last()).map_or_else(String::new, |line| (*line).to_string())
}

/// Runs a command without showing its output.
fn quietly(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{}`", line(command)))?;
    if !output.status.success() {
        bail!("{}", cause(&output.stderr));
    }
    Ok(())
}

/// Arguments that build all engines in Rust, as far as possible.
const ALL_RUST: [&str; 2] = ["--workspace", "--keep-going"];

fn rust_builder(what: &[&str], target: &Path) -> Command {
    let mut command = cargo(["build", "--quiet", "--locked", "--release", "--manifest-path", MANIFEST]);
    command.args(what).arg("--target-dir").arg(target.join("peers"));
    command
}

fn build_rust_peer(name: &str, is_built: bool, target: &Path) -> Result<PathBuf> {
    let program = format!("dormouse-lab-peer-{name}");
    if !is_built {
        quietly(&mut rust_builder(&["--bin", &program], target))?;
    }
    Ok(target.join("peers/release").join(program))
}

/// Compiles the source of an engine in C, unless nothing has changed.
fn compile_c(name: &str, source: &str, package: &str, target: &Path) -> Result<PathBuf> {
    let [dir, include] = ["lab/peers/c", "lab/harness/include"].map(|dir| run::root().join(dir));
    let object = target.join("peers").join(name).with_extension("o");
    let mut inputs = Vec::new();
    for dir in [&dir, &include] {
        let files = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
        inputs.extend(files.flatten().map(|entry| entry.path()));
    }
    if is_newer(&object, &inputs) {
        return Ok(object);
    }
    fs::create_dir_all(target.join("peers"))?;
    let version = version(package);
    // With the options of a typical program: optimised, with line numbers.
    let mut command = Command::new("cc");
    command.args(["-std=gnu17", "-O2", "-g1", "-Wall", "-Wextra"]).arg(format!("-DLAB_VERSION=\"{version}\""));
    command.arg("-I").arg(&include).arg("-I").arg(&dir).arg("-c").arg(dir.join(source)).arg("-o").arg(&object);
    quietly(&mut command)?;
    Ok(object)
}

/// Compiles the engines in C while something else is built. Errors are reported when they are built.
///
/// # Errors
/// There is no target directory.
pub(crate) fn compile_ahead() -> Result<JoinHandle<()>> {
    let target = run::target_dir()?;
    Ok(std::thread::spawn(move || {
        for (name, source, package, _) in C {
            // It is tried again when the program is built.
            let _ = compile_c(name, source, package, &target);
        }
    }))
}

fn build_c(
    name: &str,
    source: &str,
    package: &str,
    libraries: &[&str],
    target: &Path,
    profile: &str,
) -> Result<PathBuf> {
    let object = compile_c(name, source, package, target)?;
    let library = target.join(profile).join("libdormouse_lab_harness.a");
    let program = target.join("peers").join(format!("{name}-{profile}"));
    if !is_newer(&program, &[object.clone(), library.clone()]) {
        let mut command = Command::new("cc");
        command.arg(&object).arg(&library).args(libraries).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
        quietly(&mut command)?;
    }
    Ok(program)
}

/// Whether a file is newer than all of the others.
fn is_newer(file: &Path, others: &[PathBuf]) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let Some(built) = modified(file) else { return false };
    others.iter().all(|other| modified(other).is_some_and(|changed| changed < built))
}

/// Returns the installed version, from pkg-config or the package manager.
fn version(package: &str) -> String {
    let ask = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    ask("pkg-config", &["--modversion", package])
        .or_else(|| ask("dpkg-query", &["--showformat=${Version}", "--show", &format!("{package}-dev")]))
        .or_else(|| ask("dpkg-query", &["--showformat=${Version}", "--show", &format!("lib{package}-dev")]))
        .unwrap_or_else(|| "unknown".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_what_the_compiler_calls_an_error() {
        assert_eq!(
            cause(b"cc1: note\na.c:1:10: fatal error: x.h: No such file\ncompilation terminated.\n"),
            "a.c:1:10: fatal error: x.h: No such file"
        );
        assert_eq!(cause(b"ld: no\n\n"), "ld: no");
        assert_eq!(cause(b""), "");
    }
}
