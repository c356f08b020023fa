//! Runs a command as it is and with its memory populated, and compares both.

use std::ffi::OsString;

use serde::Serialize;

use crate::populate::Fix;
use crate::watch::{Run, RunOptions, run};
use crate::{Buffer, CodePlace, PagesError};

/// Minimum number of runs of each kind from which a 95 % interval of the median can be given.
pub const COMPARED_RUNS_MIN: usize = 6;

/// Result of a command with populated memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fixed {
    /// The command as it is; `None` if only the other run was requested.
    pub before: Option<Run>,
    /// The command with its memory populated.
    pub after: Run,
    /// Times of more runs, if they were requested.
    pub comparison: Option<Comparison>,
}

/// Wall times of a command as it is and with its memory populated, in milliseconds. No samples are taken in these runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Times of both kinds of run, in the order in which they ran: as it is, populated.
    pub pairs: Vec<[f64; 2]>,
    /// Median of the command as it is, with a 95 % interval.
    pub before: [f64; 3],
    /// Median of the command with populated memory, with a 95 % interval.
    pub after: [f64; 3],
    /// Ratio of a pair, populated to as it is: median, with a 95 % interval.
    pub factor: [f64; 3],
}

impl Comparison {
    fn new(pairs: Vec<[f64; 2]>) -> Comparison {
        let of = |value: fn(&[f64; 2]) -> f64| median_with_interval(pairs.iter().map(value).collect());
        let (before, after) = (of(|[before, _]| *before), of(|[_, after]| *after));
        let factor = of(|[before, after]| after / before.max(1e-9));
        Comparison { pairs, before, after, factor }
    }
}

/// Returns the median, and the two values that enclose the true median with a probability of at least 95 %, for any
/// distribution. At least [`COMPARED_RUNS_MIN`] values.
fn median_with_interval(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // The probability that at most `rank` of the values are below the true median: binomial, with probability 1/2.
    let (mut rank, mut term) = (0, 0.5_f64.powi(count as i32));
    let mut below = term;
    while below + term * (count - rank) as f64 / (rank + 1) as f64 <= 0.025 {
        term *= (count - rank) as f64 / (rank + 1) as f64;
        below += term;
        rank += 1;
    }
    [(values[(count - 1) / 2] + values[count / 2]) / 2.0, values[rank], values[count - 1 - rank]]
}

/// Bytes of buffers with one name that were read from the zero page, in both runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: String,
    /// `None` if the command was not run as it is.
    pub(crate) before: Option<u64>,
    pub(crate) after: u64,
    /// First reader of one of these buffers, if it is known.
    pub(crate) first_read: Option<CodePlace>,
}

impl Fixed {
    /// Returns what changed, the buffers that were largest in either run first. Addresses and processes differ between the
    /// runs, so buffers with the same name are one row.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        let mut enter = |buffer: &Buffer, before: u64, after: u64| {
            let name = buffer.what.to_string();
            let index = changes.iter().position(|change| change.name == name).unwrap_or_else(|| {
                changes.push(Change { name, before: self.before.is_some().then_some(0), after: 0, first_read: None });
                changes.len() - 1
            });
            changes[index].before = changes[index].before.map(|sum| sum + before);
            changes[index].after += after;
            if changes[index].first_read.is_none() {
                changes[index].first_read.clone_from(&buffer.first_read);
            }
        };
        self.before.iter().flat_map(|run| &run.buffers).for_each(|buffer| enter(buffer, buffer.zero, 0));
        self.after.buffers.iter().for_each(|buffer| enter(buffer, 0, buffer.zero));
        changes.sort_by_key(|change| std::cmp::Reverse(change.before.unwrap_or(0).max(change.after)));
        changes
    }
}

/// Runs `command` as it is, unless `is_once`, and with its memory populated. With `compared_runs`, it is then run that often in
/// each way, alternately, to compare the times.
///
/// # Errors
/// See [`run`].
pub fn fix(
    command: &[OsString],
    options: &RunOptions,
    is_once: bool,
    compared_runs: Option<usize>,
) -> Result<Fixed, PagesError> {
    let by = |fix| run(command, &RunOptions { fix: Some(fix), is_speed_measured: false, ..options.clone() });
    let before = if is_once { None } else { Some(by(Fix::Observe)?) };
    let after = by(Fix::Populate)?;
    let undisturbed = RunOptions { period: None, is_explained: false, ..options.clone() };
    let time = |fix| Ok(run(command, &RunOptions { fix: Some(fix), ..undisturbed.clone() })?.duration_ms);
    let pair = |_| Ok([time(Fix::Observe)?, time(Fix::Populate)?]);
    let pairs = compared_runs.map(|count| (0..count).map(pair).collect::<Result<_, PagesError>>()).transpose()?;
    Ok(Fixed { before, after, comparison: pairs.map(Comparison::new) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks from tables of the sign test.
    #[test]
    fn intervals_have_the_ranks_of_the_sign_test() {
        for (count, low, high) in
            [(6, 1.0, 6.0), (8, 1.0, 8.0), (9, 2.0, 8.0), (10, 2.0, 9.0), (20, 6.0, 15.0), (100, 40.0, 61.0)]
        {
            let values: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            assert_eq!(median_with_interval(values), [f64::from(count + 1) / 2.0, low, high], "{count}");
        }
    }

    #[test]
    fn buffers_of_both_runs_are_paired_by_name() {
        let buffer = |name: &str, zero: u64| Buffer {
            pid: 7,
            command: "codec".into(),
            what: crate::BufferName::Variable { name: name.into(), path: "/bin/codec".into() },
            address: 0,
            size: 1 << 20,
            zero,
            time_ms: 0.0,
            zero_at_end: 0,
            is_huge: false,
            touched: 0,
            share_percent: 0.0,
            is_found: true,
            first_read: None,
        };
        let run = |buffers: &[Buffer]| Run { buffers: buffers.to_vec(), ..Run::default() };
        let before = run(&[buffer("a", 5), buffer("b", 1), buffer("a", 2)]);
        let after = run(&[buffer("b", 9)]);
        let mut fixed = Fixed { before: Some(before), after, comparison: None };
        let change =
            |name: &str, before, after| Change { name: format!("{name} in codec"), before, after, first_read: None };
        assert_eq!(fixed.changes(), [change("b", Some(1), 9), change("a", Some(7), 0)]);
        fixed.before = None;
        assert_eq!(fixed.changes(), [change("b", None, 9)]);
    }
}
