//! The application: memory accounting in front of `malloc`, driven by a build, and judged by the share of samples that
//! are in it.
//!
//! Each round has a build in every way, with `libdormouse_lab_account.so` in front of `malloc`: two counters for each
//! block, and thousands of samples a second of each process's main thread, in memory that all processes share. A share
//! is that of the samples in the accounting. From the share and from the build's time, those of the way `none` are
//! subtracted, which is called and does nothing.

use crate::experiments::compile_job::find_project;
use crate::experiments::compile_job::project::{Build, Goals, Products, Project};
use crate::experiments::compile_job::sampler::{Ledger, Sampler};
use crate::plan::{in_turn, labels};
use crate::rounds::{self, Effect};
use crate::statistics::power::Precision;
use crate::statistics::{ROUNDS_MIN, measurement};
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

/// Effect that the paper has found: two ways, and by how much of the second's share of samples the first's is less.
const EFFECT: (&str, &str, f64) = ("static", "pointer-array", 0.065);

/// Maximum number of rounds of a full experiment.
const ROUNDS_MAX: usize = 12;

/// Builds in every way, in turn. [`LabError::Peer`] gives the reason if that is impossible. A build that fails, or has
/// another result, is a different error.
pub(super) fn measure(options: &RunOptions, notes: &mut Vec<String>) -> Result<Vec<Measurement>, LabError> {
    let unbuilt = || LabError::Peer("its library is not built; `cargo xtask lab` does so".into());
    let source = find_project(options.project.as_deref()).map_err(|error| LabError::Peer(error.to_string()))?;
    let project = Project::copy(&source, Goals::new(options.is_quick, 1, Goals::Long))?;
    let mut sampler = Sampler::find(project.ticks_per_s())?.ok_or_else(unbuilt)?;
    notes.push(format!("accounting: {}; {} samples a second", project.describe(&source), project.ticks_per_s()));
    let reference = Products::reference(&project.build::<&str>(&[])?.products, &project.build::<&str>(&[])?.products);

    let mut all: [Vec<(Ledger, Build)>; WAYS.len()] = Default::default();
    let pilot = options.rounds(1, ROUNDS_MIN);
    let mut measure = |what, rounds, all: &mut [Vec<(Ledger, Build)>; WAYS.len()]| {
        in_turn(what, rounds, WAYS.len(), None, |_, index, bar| {
            let way = WAYS[index];
            bar.set_message(way);
            let build = project.build(&sampler.environment(way, None)?)?;
            reference.compare(&build.products, way)?;
            let ledger = sampler.read()?.map_err(|why| LabError::Peer(format!("{way}: {why}")))?;
            all[index].push((ledger, build));
            Ok(())
        })
    };
    measure("percpu: accounting, pilot", pilot, &mut all)?;
    if !options.is_quick {
        let rounds = rounds::plan(&[effect(&all)], pilot, options.rounds(0, ROUNDS_MAX), notes);
        measure("percpu: accounting", rounds - pilot, &mut all)?;
    }
    figures(&all, notes)
}

/// Returns the costs of a way, round by round: its figures less those of the way `none`, or a `share` of those.
fn costs(
    all: &[Vec<(Ledger, Build)>; WAYS.len()],
    index: usize,
    of: fn(&(Ledger, Build)) -> f64,
    share: f64,
) -> Vec<f64> {
    all[index].iter().zip(&all[0]).map(|(with, without)| of(with) - share * of(without)).collect()
}

/// Returns the effect of the paper, with its precision by these rounds.
fn effect(all: &[Vec<(Ledger, Build)>; WAYS.len()]) -> Effect {
    let (way, to, size) = EFFECT;
    let (figure, _, of) = FIGURES[0];
    let costs =
        |way| WAYS.iter().position(|one| *one == way).map(|index| costs(all, index, of, 1.0)).unwrap_or_default();
    Effect {
        what: format!("{figure}.{way} to {figure}.{to}"),
        size,
        precision: Precision::of_ratio(&costs(way), &costs(to)),
    }
}

/// Tolerance for the number of blocks between builds: the compilers' allocations depend a little on paths and
/// addresses.
const CROSSINGS_TOLERANCE: f64 = 0.01;

fn figures(all: &[Vec<(Ledger, Build)>; WAYS.len()], notes: &mut Vec<String>) -> Result<Vec<Measurement>, LabError> {
    let mut measurements = Vec::new();
    for (figure, unit, of) in FIGURES {
        for (index, way) in WAYS.into_iter().enumerate() {
            // The way `none` is reported as measured: its cost is common to all ways.
            let (state, share) = if way == WAYS[0] { (format!("empty-{figure}"), 0.0) } else { (figure.into(), 1.0) };
            let labels = labels(&[("state", &state), ("tool", way)]);
            let costs = costs(all, index, of, share);
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
