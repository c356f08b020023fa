//! Assignment of events to programs.

use std::collections::HashMap;

use super::ProcessStats;

/// Time at which a program joined: trace, and ticks of its clock.
pub(super) type When = (usize, u64);

/// Program of each `vpid` at any time. It is built from the session owner's records before events are counted.
#[derive(Default)]
pub(super) struct Processes {
    /// One row for each program that joined.
    rows: Vec<ProcessStats>,
    /// Times of joining and rows, by `vpid`.
    joins: HashMap<u32, Vec<(When, usize)>>,
    /// Rows by the process's number in the session.
    joined: HashMap<u32, usize>,
}

impl Processes {
    pub(super) fn join(&mut self, when: When, process: u32, vpid: u32, name: &str, program: &str) {
        let joins = self.joins.entry(vpid).or_default();
        // A row without a name is completed instead of adding another one.
        let nameless = joins.last().map(|(_, row)| *row).filter(|row| self.rows[*row].program.is_empty());
        let row = nameless.unwrap_or(self.rows.len());
        if row == self.rows.len() {
            self.rows.push(ProcessStats { vpid, name: String::new(), program: String::new(), count: Some(0) });
        }
        joins.push((when, row));
        (self.rows[row].name, self.rows[row].program) = (name.into(), program.into());
        self.joined.insert(process, row);
    }

    pub(super) fn rename(&mut self, process: u32, name: &str) {
        if let Some(row) = self.joined.get(&process) {
            self.rows[*row].name = name.into();
        }
    }

    /// Returns the row of a process at a time, and the time in that trace until which it is valid. Events before a
    /// process got its name (a `vfork` child before its `exec`) belong to the row of its first name. `None` if the
    /// session owner has not named the process.
    pub(super) fn row_at(&self, vpid: u32, when: When) -> (Option<usize>, u64) {
        let Some(joins) = self.joins.get(&vpid) else { return (None, u64::MAX) };
        let next = joins.partition_point(|(joined, _)| *joined <= when);
        let until =
            joins.get(next).filter(|((trace, _), _)| *trace == when.0).map_or(u64::MAX, |((_, ticks), _)| *ticks);
        (joins.get(next.saturating_sub(1)).map(|(_, row)| *row), until)
    }

    /// Returns the rows with their counts, and rows for unnamed processes. Programs of one process with the same name
    /// are combined. `has_counts` says whether records identify processes.
    pub(super) fn finish(
        mut self,
        counts: &HashMap<usize, u64>,
        nameless: &HashMap<u32, u64>,
        has_counts: bool,
    ) -> Vec<ProcessStats> {
        counts.iter().for_each(|(row, count)| self.rows[*row].count = Some(*count));
        let row = |(vpid, count): (&u32, &u64)| ProcessStats {
            vpid: *vpid,
            name: String::new(),
            program: String::new(),
            count: Some(*count),
        };
        self.rows.extend(nameless.iter().map(row));
        if !has_counts {
            self.rows.iter_mut().for_each(|row| row.count = None);
        }
        let mut rows: Vec<ProcessStats> = Vec::new();
        let mut row_of = HashMap::new();
        for process in self.rows {
            let who = (process.vpid, process.name.clone(), process.program.clone());
            let row = *row_of.entry(who).or_insert(rows.len());
            match rows.get_mut(row) {
                Some(same) => same.count = same.count.zip(process.count).map(|(a, b)| a + b),
                None => rows.push(process),
            }
        }
        rows
    }
}
