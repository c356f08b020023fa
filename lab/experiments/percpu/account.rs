//! The application: memory accounting in front of `malloc`, driven by a build, and judged by the share of samples that
//! are in it.
//!
//! Each round has a build in every way, with `libdormouse_lab_account.so` in front of `malloc`: two counters for each
//! block, and 10,000 samples a second of each process's main thread, in memory that all processes share. A share is
//! that of the samples in the accounting. From the share and from the build's time, those of the way `none` are
//! subtracted, which is called and does nothing.

use crate::experiments::compile_job::find_project;
use crate::experiments::compile_job::project::{Build, Products, Project};
use crate::experiments::compile_job::sampler::{Ledger, Sampler};
use crate::plan::{in_turn, labels};
use crate::statistics::measurement;
use crate::{LabError, Measurement, RunOptions};

/// Ways of counting; the first is subtracted from the others.
const WAYS: [&str; 7] = ["none", "atomic", "static", "pointer-array", "contiguous", "offset-table", "interlaced"];

/// A figure of a build: its state, its unit, and its value.
type Figure = (&'static str, &'static str, fn(&(Ledger, Build)) -> f64);
const FIGURES: [Figure; 3] = [
    ("account", "% of time", |(ledger, _)| 100.0 * ledger.share),
    ("account-time", "s", |(_, build)| build.wall_s),
    ("account-cpu", "s", |(_, build)| build.cpu_s),
];

/// Number of rounds of a full experiment: an interval needs six, and a build's time is noisy.
const ROUNDS: usize = 10;

/// Builds in every way, in turn. [`LabError::Peer`] gives the reason if that is impossible. A build that fails, or has
/// another result, is a different error.
pub(super) fn measure(options: &RunOptions, notes: &mut Vec<String>) -> Result<Vec<Measurement>, LabError> {
    let unbuilt = || LabError::Peer("its library is not built; `cargo xtask lab` does so".into());
    let mut sampler = Sampler::find()?.ok_or_else(unbuilt)?;
    let source = find_project(options.project.as_deref()).map_err(|error| LabError::Peer(error.to_string()))?;
    let project = Project::copy(&source, options.is_quick.then_some(1))?;
    notes.push(format!("accounting: {}", project.describe(&source)));
    let reference = Products::reference(&project.build::<&str>(&[])?.products, &project.build::<&str>(&[])?.products);

    let mut all: [Vec<(Ledger, Build)>; WAYS.len()] = Default::default();
    in_turn("percpu: accounting", options.rounds(1, ROUNDS), WAYS.len(), None, |_, index, bar| {
        let way = WAYS[index];
        bar.set_message(way);
        let build = project.build(&sampler.environment(way, None)?)?;
        reference.compare(&build.products, way)?;
        let ledger = sampler.read()?.map_err(|why| LabError::Peer(format!("{way}: {why}")))?;
        all[index].push((ledger, build));
        Ok(())
    })?;
    figures(&all, notes)
}

/// Tolerance for the number of blocks between builds: the compilers' allocations depend a little on paths and
/// addresses.
const CROSSINGS_TOLERANCE: f64 = 0.01;

fn figures(all: &[Vec<(Ledger, Build)>; WAYS.len()], notes: &mut Vec<String>) -> Result<Vec<Measurement>, LabError> {
    let mut measurements = Vec::new();
    for (figure, unit, of) in FIGURES {
        for (way, builds) in WAYS.into_iter().zip(all) {
            // The way `none` is reported as measured: its cost is common to all ways.
            let (state, share) = if way == WAYS[0] { (format!("empty-{figure}"), 0.0) } else { (figure.into(), 1.0) };
            let pairs = builds.iter().zip(&all[0]);
            let costs: Vec<f64> = pairs.map(|(with, without)| of(with) - share * of(without)).collect();
            let labels = labels(&[("state", &state), ("tool", way)]);
            measurements.push(Measurement { labels, ..measurement(&format!("{state}.{way}"), unit, &costs) });
        }
    }
    let crossings = || all[1..].iter().flatten().map(|(ledger, _)| ledger.crossings);
    let (least, most) = (crossings().min().unwrap_or(0), crossings().max().unwrap_or(0));
    if (most - least) as f64 > CROSSINGS_TOLERANCE * most as f64 {
        return Err(LabError::Project(format!(
            "the ways to count differ: {least} to {most} blocks in one and the same build"
        )));
    }
    let sum = |of: fn(&Ledger) -> u64| all.iter().flatten().map(|(ledger, _)| of(ledger)).sum::<u64>();
    notes.push(format!(
        "accounting: {} builds for each way, {least} to {most} blocks that came or went in each, {} samples in all; more memory in \
         use than the machine has was seen {} times",
        all[0].len(),
        sum(|ledger| ledger.ticks),
        sum(|ledger| ledger.refusals)
    ));
    Ok(measurements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_beyond_the_call_alone_and_no_addition_is_lost() {
        let build = |share, crossings| {
            let ledger = Ledger { ticks: 100, share, crossings, refusals: 0 };
            (ledger, Build { wall_s: 1.0, cpu_s: 1.0, owner_s: 0.0, products: Products::default() })
        };
        let shares = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07];
        let mut all = shares.map(|share| vec![build(share, 1000)]);
        all[0] = vec![build(0.01, 0)];
        let found = figures(&all, &mut Vec::new()).unwrap();
        let median = |name: &str| found.iter().find(|figure| figure.name == name).unwrap().median;
        let medians = ["empty-account.none", "account.atomic", "account.interlaced", "account-cpu.static"].map(median);
        let expected = [1.0, 1.0, 6.0, 0.0];
        assert!(medians.iter().zip(expected).all(|(median, expected)| (median - expected).abs() < 1e-9), "{medians:?}");
        all[3] = vec![build(0.04, 900)];
        assert!(figures(&all, &mut Vec::new()).is_err());
    }
}
