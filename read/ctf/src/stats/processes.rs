//! Which program an event is of.

use std::collections::HashMap;

use super::ProcessStats;

/// Which program a `vpid` is at the time that the merge has reached.
#[derive(Default)]
pub(super) struct Processes {
    /// One for each program that joined.
    rows: Vec<ProcessStats>,
    current: HashMap<u32, usize>,
    /// By the session's number.
    joined: HashMap<u32, usize>,
}

impl Processes {
    /// A process that had events before it had a name (a `vfork` child on its way to `exec`) gets it for these too.
    pub(super) fn join(&mut self, process: u32, vpid: u32, name: &str, program: &str) {
        let nameless = self.current.get(&vpid).copied().filter(|row| self.rows[*row].program.is_empty());
        let row = nameless.unwrap_or_else(|| self.add(vpid));
        (self.rows[row].name, self.rows[row].program) = (name.into(), program.into());
        self.joined.insert(process, row);
    }

    fn add(&mut self, vpid: u32) -> usize {
        let row = self.rows.len();
        self.rows.push(ProcessStats { vpid, name: String::new(), program: String::new(), count: Some(0) });
        self.current.insert(vpid, row);
        row
    }

    pub(super) fn rename(&mut self, process: u32, name: &str) {
        if let Some(row) = self.joined.get(&process) {
            self.rows[*row].name = name.into();
        }
    }

    pub(super) fn count(&mut self, vpid: u32, events: u64) {
        let row = self.current.get(&vpid).copied().unwrap_or_else(|| self.add(vpid));
        let count = &mut self.rows[row].count;
        *count = count.map(|count| count + events);
    }

    /// Programs of the same process that are called the same are one. Whether they have counts is known by now.
    pub(super) fn finish(mut self, has_counts: bool) -> Vec<ProcessStats> {
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
