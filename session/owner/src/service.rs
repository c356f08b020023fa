//! What the session's server serves: memory and trace, to the processes that have joined.

use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dormouse_abi::class::{Announcement, CLASS_ID_MAX, CLASS_ID_NONE, matches};
use dormouse_abi::message::{BudgetState, Grant, Snapshot, Status};
use dormouse_abi::session::claim;
use dormouse_control::{Joining, Processes, Service, Take};
use dormouse_ctf::StateRecord;
use dormouse_relay::Memory;

use crate::error::Error;
use crate::memory::SessionMemory;
use crate::snapshot;
use crate::trace::{Trace, refusal_of};

/// Processes whose names are looked at in one round: a short file for each.
pub(crate) const NAMED_COUNT_MAX: usize = 16;

/// What the session's threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: SessionMemory,
    pub(crate) trace: Trace,
    pub(crate) processes: Arc<Processes>,
    /// Of the classes that are to be armed.
    pub(crate) patterns: Vec<String>,
}

impl Shared {
    /// Notes in the trace what processes, at most so many, call themselves otherwise than before.
    pub(crate) fn record_names(&self, count_max: usize) {
        for (number, name) in self.processes.renamed(count_max) {
            // Without the record the process has its former name.
            let _ = self.trace.state(&[StateRecord::ProcessName { process: number.into(), name: &name }]);
        }
    }
}

impl Service for Shared {
    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    fn join(&self, &Joining { number, pid, vpid, name, program, command_line }: &Joining<'_>) {
        let record = StateRecord::Process { process: number.into(), pid, vpid, name, program, command_line };
        // Without its record the process's events are in the trace all the same, under its bare id.
        let _ = self.trace.state(&[record]);
    }

    /// Classes that are to be armed get their ids first, because small ids take fewer bytes in records without context.
    fn grants(&self, announced: &[Announcement], program: &str) -> Vec<Grant> {
        let is_wanted = |class: &Announcement| {
            let name = class.full_name();
            self.patterns.iter().any(|pattern| matches(pattern, &name))
        };
        let wanted: Vec<bool> = announced.iter().map(is_wanted).collect();
        let mut grants = vec![Grant { id: CLASS_ID_NONE, armed: false }; announced.len()];
        let mut refused = Vec::new();
        for armed in [true, false] {
            for index in (0..announced.len()).filter(|index| wanted[*index] == armed) {
                let class = &announced[index];
                match class.check().and_then(|decl| self.trace.class_id(&decl)) {
                    Ok(id) => grants[index] = Grant { id, armed },
                    Err(reason) => refused.push(refusal_of(&class.full_name(), program, &reason)),
                }
            }
        }
        self.trace.refuse(refused);
        grants
    }

    fn refuse(&self, program: &str, reason: &str) {
        self.trace.refuse([refusal_of("(all classes)", program, reason)]);
    }

    fn leave(&self, number: u16) {
        take_back(&self.memory.view(), number);
    }

    /// One after another, for each has room for all that is retained.
    fn snapshot(&self, wanted: &Take) -> Result<Snapshot, Error> {
        let _turn = self.memory.turn();
        snapshot::take(&self.memory, &self.trace, wanted)
    }

    fn budget(&self, bytes: u64) -> Result<BudgetState, Error> {
        if bytes != 0 {
            self.memory.resize(bytes)?;
        }
        Ok(self.memory.describe())
    }

    fn describe(&self, status: &mut Status) {
        let files = std::fs::read_dir(&self.trace.dir).into_iter().flatten().flatten();
        // `st_blocks` counts 512 bytes, whatever the file system's blocks are.
        status.disk_bytes = files.filter_map(|file| file.metadata().ok()).map(|file| file.blocks() * 512).sum();
        let dir = std::path::absolute(&self.trace.dir).unwrap_or_else(|_| self.trace.dir.clone());
        status.dir = dir.to_string_lossy().into_owned();
        status.classes = self.trace.class_count();
        status.classes_max = u32::from(CLASS_ID_MAX) + 1;
        status.classes_refused = self.trace.refusals().len() as u32;
    }
}

/// Takes back what a process held that writes no more.
fn take_back(memory: &Memory, number: u16) {
    let geometry = memory.geometry();
    for stream in memory.used_streams().filter(|stream| *stream >= geometry.cpu_count) {
        let claimed = &memory.stream(stream).claim;
        // (H) pairs with (I), the claimant's last.
        let word = claimed.load(Ordering::Acquire);
        if claim::process(word) == Some(number) {
            // What the dead claimant had not committed is above the stream's offset, and means nothing.
            // (I) pairs with (H), the next claimant's.
            let _ = claimed.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
    memory.reclaim_drawn(number);
}
