//! Which program an event is of.

use std::collections::HashMap;

use super::ProcessStats;

/// When a program joined: trace, and ticks of its clock.
pub(super) type When = (usize, u64);

/// Which program a `vpid` is at any time. Made of what the session owner says, before events are counted.
#[derive(Default)]
pub(super) struct Processes {
    /// One for each program that joined.
    rows: Vec<ProcessStats>,
    /// When they joined, and their rows.
    joins: HashMap<u32, Vec<(When, usize)>>,
    /// By the session's number.
    joined: HashMap<u32, usize>,
}

impl Processes {
    pub(super) fn join(&mut self, when: When, process: u32, vpid: u32, name: &str, program: &str) {
        let joins = self.joins.entry(vpid).or_default();
        // One without a name becomes another.
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

    /// The row of a process at some time, and until when in that trace it is. A process that had events before it had a name (a `vfork`
    /// child on its way to `exec`) has the row of its first name for these too. `None`: the session owner has not named it.
    pub(super) fn row_at(&self, vpid: u32, when: When) -> (Option<usize>, u64) {
        let Some(joins) = self.joins.get(&vpid) else { return (None, u64::MAX) };
        let next = joins.partition_point(|(joined, _)| *joined <= when);
        let until =
            joins.get(next).filter(|((trace, _), _)| *trace == when.0).map_or(u64::MAX, |((_, ticks), _)| *ticks);
        (joins.get(next.saturating_sub(1)).map(|(_, row)| *row), until)
    }

    /// With the events of each row, and of processes that have none. Programs of the same process that are called the same are one.
    /// `has_counts`: whether records tell whose they are.
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
