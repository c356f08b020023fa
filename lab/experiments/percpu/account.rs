//! The application: memory accounting in front of `malloc`, driven by a build, judged by the share of samples that fall into it.
//!
//! ```text
//!   make -jN with libdormouse_lab_account.so       each round: every way once, in turn
//!     every process: two counters for each block, 10,000 samples a second of its main thread
//!                                        │
//!                    a file, shared ◀────┘   ticks, ticks within the accounting, blocks
//!   share = ticks within ÷ ticks            less the share of the way `none`, which is called and does nothing
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
    cpu_s: Vec<f64>,
    crossings: Vec<u64>,
    ticks: u64,
}

/// Adds shares and ratios to the experiment, or the reason why there are none.
///
/// # Errors
/// See [`LabError`]: a build fails, or gives another result.
pub(super) fn run(options: &RunOptions, experiment: &mut Experiment) -> Result<(), LabError> {
    let notes = &mut experiment.notes;
    let Some(sampler) = Sampler::find()? else {
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

    let count = options.rounds(1, 8);
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
            rounds.cpu_s.push(build.cpu_s);
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
    let none = &all[0];
    let percent = |share: f64| 100.0 * share;
    let costs: Vec<Vec<f64>> = all
        .iter()
        .map(|rounds| rounds.shares.iter().zip(&none.shares).map(|(share, none)| percent(share - none)).collect())
        .collect();
    for (index, way) in WAYS.into_iter().enumerate() {
        // The way `none` is stated as it is: the call that all of them have.
        let shares: Vec<f64> =
            if index == 0 { none.shares.iter().map(|share| percent(*share)).collect() } else { costs[index].clone() };
        let state = if index == 0 { "empty-account" } else { "account" };
        let mut measurement = measurement(&format!("{state}.{way}"), "% of time", &shares);
        measurement.labels =
            Labels::from([("state".to_string(), state.to_string()), ("tool".to_string(), way.to_string())]);
        experiment.measurements.push(measurement);
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
    let cpu_s: Vec<String> = WAYS
        .iter()
        .zip(all)
        .map(|(way, rounds)| format!("{way} {:.2}", crate::statistics::median(&rounds.cpu_s)))
        .collect();
    experiment.notes.push(format!(
        "accounting: {count} builds for each way, {least} to {most} blocks that came or went in each, {ticks} samples in all; \
         processor time of a build in s: {}",
        cpu_s.join(", ")
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(shares: &[f64], crossings: u64) -> Rounds {
        Rounds { shares: shares.to_vec(), cpu_s: vec![1.0], crossings: vec![crossings], ticks: 100 }
    }

    #[test]
    fn shares_are_beyond_the_call_alone() {
        let all: Vec<Rounds> = (0..WAYS.len())
            .map(|index| rounds(&[0.01 + 0.01 * index as f64, 0.011 + 0.01 * index as f64], 1000))
            .collect();
        let mut experiment = Experiment::default();
        report(&all, 2, &mut experiment).unwrap();
        let median = |name: &str| experiment.measurements.iter().find(|m| m.name == name).unwrap().median;
        assert!((median("empty-account.none") - 1.05).abs() < 1e-9);
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
