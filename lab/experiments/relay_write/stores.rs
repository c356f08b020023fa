//! Eight bytes on a 32-bit machine: `stores.c`, compiled here by `cc -m32` like the paper's listings, times itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use dormouse_testing::printed;

use crate::Measurement;
use crate::plan::labels;
use crate::statistics::measurement;

/// Returns each way's ns for eight bytes, as `i686.WAY`; or the program that cannot be compiled or run, with the
/// reason.
pub(super) fn measure(dir: &Path, rounds: usize, cpu: u32) -> Result<Vec<Measurement>, String> {
    let (source, program) = (dir.join("stores.c"), dir.join("stores"));
    std::fs::write(&source, include_str!("stores.c")).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    // Position-independent code would keep addresses in registers, or on the stack.
    compiler.args(["-m32", "-O2", "-fno-pie", "-no-pie", "-o"]).args([&program, &source]);
    printed(&mut compiler, "cc -m32").map_err(|why| {
        format!("{why} (apt-get install gcc-multilib, or a gcc-VERSION-multilib beside a cross compiler)")
    })?;
    let mut stores = Command::new(&program);
    printed(stores.args([rounds.to_string(), cpu.to_string()]), "stores").map(|text| measurements(&text))
}

/// Parses lines `WAY NS`.
fn measurements(text: &str) -> Vec<Measurement> {
    let mut ways = BTreeMap::<&str, Vec<f64>>::new();
    for (way, ns) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Ok(ns) = ns.parse() {
            ways.entry(way).or_default().push(ns);
        }
    }
    let of_way = |(way, rounds): (&&str, &Vec<f64>)| Measurement {
        labels: labels(&[("state", "i686"), ("tool", way), ("record", "8-bytes")]),
        ..measurement(&format!("i686.{way}"), "ns", rounds)
    };
    ways.iter().map(of_way).collect()
}
