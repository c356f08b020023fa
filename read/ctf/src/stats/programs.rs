//! Rows of programs with their events.

use std::collections::HashMap;

use super::ProcessStats;
use crate::processes::Processes;

/// Returns the rows of all programs with their counts, and rows of unnamed processes. Programs of one process with the
/// same name are combined. `counts`: events by index of the program; `nameless`: events by `vpid`; `has_counts`: whether
/// records identify processes.
pub(super) fn rows(
    processes: &Processes,
    counts: &HashMap<u32, u64>,
    nameless: &HashMap<u32, u64>,
    has_counts: bool,
) -> Vec<ProcessStats> {
    let named = (0..).zip(processes.programs()).filter_map(|(row, program)| {
        let count = counts.get(&row).copied().unwrap_or(0);
        Some((program.pid?, program.name(), program.path(), count))
    });
    let nameless = nameless.iter().map(|(vpid, count)| (*vpid, "", "", *count));
    let mut rows: Vec<ProcessStats> = Vec::new();
    let mut row_of = HashMap::new();
    for (vpid, name, program, count) in named.chain(nameless) {
        let row = *row_of.entry((vpid, name, program)).or_insert(rows.len());
        if row == rows.len() {
            let count = has_counts.then_some(0);
            rows.push(ProcessStats { vpid, name: name.into(), program: program.into(), count });
        }
        if let Some(sum) = &mut rows[row].count {
            *sum += count;
        }
    }
    rows
}
