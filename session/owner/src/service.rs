//! What the session's server serves: memory and trace, to the processes that have joined.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_abi::message::{BudgetState, Snapshot, Status};
use dormouse_abi::register::{CLASS_COUNT, Register};
use dormouse_control::{Joining, Processes, Service, Take};
use dormouse_ctf::StateRecord;

use crate::error::Error;
use crate::memory::SessionMemory;
use crate::register::TakenIn;
use crate::snapshot;
use crate::trace::{ALL_CLASSES, Trace, refusal_of};

/// Processes whose names are looked at in one round: a short file for each.
pub(crate) const NAMED_COUNT_MAX: usize = 16;

/// What the session's threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: SessionMemory,
    pub(crate) trace: Trace,
    pub(crate) processes: Arc<Processes>,
    pub(crate) register: TakenIn,
    /// Of processes that are gone.
    pub(crate) ended_amid_write: AtomicU64,
}

impl Shared {
    /// Takes back what a process held that writes no more, its number last.
    pub(crate) fn take_back(&self, number: u16) {
        self.ended_amid_write.fetch_add(self.memory.view().take_back(number), Ordering::Relaxed);
    }

    /// Threads that have ended amid a write.
    pub(crate) fn ended_amid_write(&self) -> u64 {
        let by_programs = self.memory.view().register().map_or(0, Register::ended_amid_write);
        self.ended_amid_write.load(Ordering::Relaxed).saturating_add(by_programs)
    }

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

    fn enter(&self, joining: &Joining<'_>, pidfd: OwnedFd) -> Result<u16, String> {
        self.register.enter(self, joining, pidfd)
    }

    fn refuse(&self, program: &str, reason: &str) {
        self.trace.refuse([refusal_of(ALL_CLASSES, program, reason)]);
    }

    fn leave(&self, number: u16) {
        self.take_back(number);
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
        let files = std::fs::read_dir(&self.trace.dir.path).into_iter().flatten().flatten();
        // `st_blocks` counts 512 bytes, whatever the file system's blocks are.
        status.disk_bytes = files.filter_map(|file| file.metadata().ok()).map(|file| file.blocks() * 512).sum();
        let dir = std::path::absolute(&self.trace.dir.path).unwrap_or_else(|_| self.trace.dir.path.clone());
        status.dir = dir.to_string_lossy().into_owned();
        status.classes = self.trace.class_count();
        status.classes_max = CLASS_COUNT as u32;
        status.classes_refused = self.trace.refusals().0.len() as u32;
    }
}
