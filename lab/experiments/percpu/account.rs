//! The application: memory accounting in front of `malloc`, driven by a build, judged by the share of samples that fall into it.
//!
//! ```text
//!   make -jN with libdormouse_lab_account.so       each round: every way once, in turn
//!     every process: two counters for each block, 10,000 samples a second of its main thread
//!                                        │
//!      memory of all processes ◀─────────┘   the counters; ticks, ticks within the accounting, blocks
//!   share = ticks within ÷ ticks            each less that of the way `none`, which is called and does nothing
//!   time  = the build's
//! ```

use std::ffi::OsString;

use crate::experiments::compile_job::project::{Products, Project};
use crate::experiments::compile_job::sampler::Sampler;
use crate::experiments::compile_job::{find_project, order, progress};
use crate::statistics::{measurement, ratio};
use crate::{Experiment, LabError, Labels, RunOptions};

/// Ways to count; the first is what the others are less.
const WAYS: [&str; 7] = ["none", "atomic", "static", "pointer-array", "contiguous", "offset-table", "interlaced"];

/// One way's rounds.
#[derive(Debug, Default)]
struct Rounds {
    shares: Vec<f64>,
    wall_s: Vec<f64>,
    cpu_s: Vec<f64>,
    crossings: Vec<u64>,
    ticks: u64,
    refusals: u64,
}

/// Rounds, unless it is quick: an interval needs six, and a build's time is noisy.
const ROUNDS: usize = 10;

/// Adds shares and ratios to the experiment, or the reason why there are none.
///
/// # Errors
/// See [`LabError`]: a build fails, or gives another result.
pub(super) fn run(options: &RunOptions, experiment: &mut Experiment) -> Result<(), LabError> {
    let notes = &mut experiment.notes;
    let Some(mut sampler) = Sampler::find()? else {
        notes.push("a build's accounting not available: its library is not built; `cargo xtask lab` does so".into());
        return Ok(());
    };
    let source = match find_project(options.project.as_deref()) {
        Ok(source) => source,
        Err(error) => {
            notes.push(format!("a build's accounting not available: {error}"));
            return Ok(());
        }
    };
    let project = Project::copy(&source, options.is_quick.then_some(2))?;
    notes.push(format!("accounting: {}", project.describe(&source)));
    let nothing: [(&str, OsString); 0] = [];
    let reference = Products::reference(&project.build(&nothing)?.products, &project.build(&nothing)?.products);

    let count = options.rounds(1, ROUNDS);
    let progress = progress("percpu: accounting", count * WAYS.len());
    let mut all: Vec<Rounds> = WAYS.iter().map(|_| Rounds::default()).collect();
    for round in 0..count {
        for index in order(WAYS.len(), round as u32) {
            let way = WAYS[index];
            progress.set_message(way);
            let build = project.build(&sampler.environment(way, None)?)?;
            reference.compare(&build.products, way)?;
            let ledger = match sampler.read()? {
                Ok(ledger) => ledger,
                Err(why) => {
                    notes.push(format!("a build's accounting not available: {way}: {why}"));
                    return Ok(());
                }
            };
            let rounds = &mut all[index];
            rounds.shares.push(ledger.share());
            rounds.wall_s.push(build.wall_s);
            rounds.cpu_s.push(build.cpu_s);
            rounds.refusals += ledger.refusals;
            rounds.crossings.push(ledger.crossings);
            rounds.ticks += ledger.ticks;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    report(&all, count, experiment)
}

/// Blocks that builds may differ by: what compilers allocate depends a little on paths and addresses.
const CROSSINGS_TOLERANCE: f64 = 0.01;

fn report(all: &[Rounds], count: usize, experiment: &mut Experiment) -> Result<(), LabError> {
    let less_none = |of: fn(&Rounds) -> &[f64], factor: f64| -> Vec<Vec<f64>> {
        let none = of(&all[0]);
        all.iter()
            .map(|rounds| of(rounds).iter().zip(none).map(|(way, none)| factor * (way - none)).collect())
            .collect()
    };
    let costs = less_none(|rounds| &rounds.shares, 100.0);
    let mut add = |state: &str, way: &str, unit: &str, samples: &[f64]| {
        let mut measurement = measurement(&format!("{state}.{way}"), unit, samples);
        measurement.labels = Labels::from([("state".into(), state.into()), ("tool".into(), way.into())]);
        experiment.measurements.push(measurement);
    };
    // The way `none` is stated as it is: what all of them have.
    let shares: Vec<f64> = all[0].shares.iter().map(|share| 100.0 * share).collect();
    add("empty-account", WAYS[0], "% of time", &shares);
    add("empty-account-time", WAYS[0], "s", &all[0].wall_s);
    add("empty-account-cpu", WAYS[0], "s", &all[0].cpu_s);
    let times = [
        ("account", "% of time", &costs),
        ("account-time", "s", &less_none(|rounds| &rounds.wall_s, 1.0)),
        ("account-cpu", "s", &less_none(|rounds| &rounds.cpu_s, 1.0)),
    ];
    for (state, unit, costs) in times {
        for (way, samples) in WAYS.iter().zip(costs).skip(1) {
            add(state, way, unit, samples);
        }
    }
    let of = |way: &str| WAYS.iter().position(|known| *known == way).map(|index| costs[index].as_slice());
    for (name, way, to) in [
        ("account_interlaced_vs_atomic", "interlaced", "atomic"),
        ("account_interlaced_vs_pointer_array", "interlaced", "pointer-array"),
        ("account_interlaced_vs_static", "interlaced", "static"),
    ] {
        let (Some(way), Some(to)) = (of(way), of(to)) else { continue };
        match ratio(name, way, to) {
            Some(ratio) => experiment.ratios.push(ratio),
            None => experiment.notes.push(format!("{name}: no ratio, since the share cannot be told from zero")),
        }
    }
    let crossings: Vec<u64> = all[1..].iter().flat_map(|rounds| rounds.crossings.iter().copied()).collect();
    let (least, most) = (crossings.iter().min().copied().unwrap_or(0), crossings.iter().max().copied().unwrap_or(0));
    if (most - least) as f64 > CROSSINGS_TOLERANCE * most as f64 {
        return Err(LabError::Project(format!(
            "the ways to count differ: {least} to {most} blocks in one and the same build"
        )));
    }
    let ticks: u64 = all.iter().map(|rounds| rounds.ticks).sum();
    let refusals: u64 = all.iter().map(|rounds| rounds.refusals).sum();
    experiment.notes.push(format!(
        "accounting: {count} builds for each way, {least} to {most} blocks that came or went in each, {ticks} samples in all; more memory in \
         use than the machine has was seen {refusals} times"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(shares: &[f64], crossings: u64) -> Rounds {
        let times = vec![1.0; shares.len()];
        Rounds {
            shares: shares.to_vec(),
            wall_s: times.clone(),
            cpu_s: times,
            crossings: vec![crossings],
            ..Rounds::default()
        }
    }

    #[test]
    fn shares_are_beyond_the_call_alone() {
        let all: Vec<Rounds> = (0..WAYS.len())
            .map(|index| rounds(&[0.01 + 0.01 * index as f64, 0.011 + 0.01 * index as f64], 1000))
            .collect();
        let mut experiment = Experiment::default();
        report(&all, 2, &mut experiment).unwrap();
        let median = |name: &str| experiment.measurements.iter().find(|m| m.name == name).unwrap().median;
        assert!((median("empty-account.none") - 1.05).abs() < 1e-9 && median("account-time.atomic") == 0.0);
        assert!((median("account.atomic") - 1.0).abs() < 1e-9 && (median("account.interlaced") - 6.0).abs() < 1e-9);
        let ratio = experiment.ratios.iter().find(|ratio| ratio.name == "account_interlaced_vs_atomic").unwrap();
        assert!((ratio.value - 6.0).abs() < 1e-9);
    }

    #[test]
    fn additions_that_are_lost_are_noticed() {
        let mut all: Vec<Rounds> = WAYS.iter().map(|_| rounds(&[0.01], 1000)).collect();
        all[0].crossings = vec![0];
        assert!(report(&all, 1, &mut Experiment::default()).is_ok());
        all[3].crossings = vec![900];
        assert!(report(&all, 1, &mut Experiment::default()).is_err());
    }
}
