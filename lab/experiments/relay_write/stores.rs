//! Eight bytes on a machine of 32 bits: `stores.c`, compiled here by `cc -m32` as the paper's listings are, times itself.

use std::path::Path;
use std::process::{Command, Output};

use crate::Measurement;
use crate::plan::labels;
use crate::statistics::measurement;

const SOURCE: &str = include_str!("stores.c");

/// Each way's ns for eight bytes, as `i686.WAY`.
///
/// # Errors
/// What cannot be compiled or run, and why.
pub(super) fn measure(dir: &Path, rounds: usize, cpu: u32) -> Result<Vec<Measurement>, String> {
    let (source, program) = (dir.join("stores.c"), dir.join("stores"));
    std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    // Position-independent code would keep addresses in registers, or on the stack.
    compiler.args(["-m32", "-O2", "-fno-pie", "-no-pie", "-o"]).args([&program, &source]);
    succeed(&mut compiler).map_err(|error| format!("cc -m32 (apt-get install gcc-multilib): {error}"))?;
    let output = succeed(Command::new(&program).args([rounds.to_string(), cpu.to_string()]))?;
    Ok(measurements(&String::from_utf8_lossy(&output.stdout)))
}

fn succeed(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().next().map_or_else(|| output.status.to_string(), String::from))
}

/// Of lines `WAY NS`.
fn measurements(text: &str) -> Vec<Measurement> {
    let mut ways: Vec<(&str, Vec<f64>)> = Vec::new();
    for (way, ns) in text.lines().filter_map(|line| line.split_once(' ')) {
        let Ok(ns) = ns.parse() else { continue };
        match ways.iter_mut().find(|(known, _)| *known == way) {
            Some((_, rounds)) => rounds.push(ns),
            None => ways.push((way, vec![ns])),
        }
    }
    let of_way = |(way, rounds): &(&str, Vec<f64>)| Measurement {
        labels: labels(&[("state", "i686"), ("tool", way), ("record", "8-bytes")]),
        ..measurement(&format!("i686.{way}"), "ns", rounds)
    };
    ways.iter().map(of_way).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_sorted_by_way() {
        let found = measurements("u64 1.5\nmemcpy 4.0\nnonsense\nmemcpy 5.0\nu64 2.5\n");
        let named: Vec<_> = found.iter().map(|m| (m.name.as_str(), m.samples.as_slice())).collect();
        assert_eq!(named, [("i686.u64", &[1.5, 2.5][..]), ("i686.memcpy", &[4.0, 5.0])]);
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let error = succeed(Command::new("cc").arg("-no-such-option-here")).unwrap_err();
        assert!(error.contains("no-such-option") || error.contains("No such file"), "{error}");
    }
}
