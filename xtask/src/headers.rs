//! Compiles each C and C++ header alone, included twice in one unit, with every installed compiler.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::system;

/// Compilers, with their language and the standards that the headers support.
pub(crate) const COMPILERS: [(&str, &str, &[&str]); 4] = [
    ("gcc", "c", &["c11", "gnu17"]),
    ("clang", "c", &["c11", "gnu17"]),
    ("g++", "c++", &["c++11", "c++14", "c++17", "gnu++20"]),
    ("clang++", "c++", &["c++11", "c++14", "c++17", "gnu++20"]),
];

/// Header that requires C++17. The others support C++11.
const FOR_CPP17: &str = "event.h";

/// Runs the task.
///
/// # Errors
/// A header does not compile, or there is no compiler.
pub(crate) fn check() -> Result<()> {
    let includes: Vec<PathBuf> = dormouse_testing::include_dirs().collect();
    let mut headers = Vec::new();
    for include in &includes {
        let known_count = headers.len();
        collect(include, include, &mut headers)?;
        ensure!(headers.len() > known_count, "no headers in {}", include.display());
    }
    let compilers: Vec<_> = COMPILERS.iter().filter(|(compiler, ..)| system::has(compiler)).collect();
    ensure!(!compilers.is_empty(), "no compiler found; install gcc or clang");
    let mut failed = 0;
    for (compiler, language, standards) in compilers {
        for standard in *standards {
            for header in headers.iter().filter(|header| is_for(header, language, standard)) {
                if let Err(error) = compile(compiler, language, standard, &includes, header) {
                    eprintln!("{compiler} -std={standard}, {}:\n{error:#}", header.display());
                    failed += 1;
                }
            }
        }
        println!("{compiler:8} {} headers, {}", headers.len(), standards.join(" "));
    }
    ensure!(failed == 0, "{failed} compilations of headers failed");
    Ok(())
}

fn is_for(header: &Path, language: &str, standard: &str) -> bool {
    match language {
        "c" => header.extension().is_some_and(|extension| extension == "h"),
        _ => !header.ends_with(FOR_CPP17) || !["c++11", "c++14"].contains(&standard),
    }
}

/// Collects headers, by the names with which programs include them.
fn collect(include: &Path, dir: &Path, headers: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(include, &path, headers)?;
        } else if path.extension().is_some_and(|extension| extension == "h" || extension == "hpp") {
            headers.push(path.strip_prefix(include)?.to_owned());
        }
    }
    Ok(())
}

fn compile(compiler: &str, language: &str, standard: &str, includes: &[PathBuf], name: &Path) -> Result<()> {
    let mut child = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", &format!("-std={standard}")])
        .args(includes.iter().flat_map(|include| ["-I".as_ref(), include.as_path()]))
        .args(["-x", language])
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {compiler}"))?;
    let line = format!("#include <{}>\n", name.display());
    child.stdin.take().context("no input")?.write_all(line.repeat(2).as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}
