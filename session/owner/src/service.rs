//! What the session's server serves: memory and trace, to the processes that have joined.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dormouse_abi::message::{BudgetState, Snapshot, Status};
use dormouse_abi::register::CLASS_COUNT;
use dormouse_control::{Counts, Joining, MappedFile, Processes, Service, Take, Unheard, open, start_of};
use dormouse_ctf::{Cause, StateRecord};

use crate::announced::refusal_of;
use crate::error::Error;
use crate::followed::Followed;
use crate::memory::SessionMemory;
use crate::register::{Parts, TakenIn};
use crate::snapshot;
use crate::trace::{ALL_CLASSES, Trace};

/// Processes whose names are looked at in one round: a short file for each.
pub(crate) const NAMED_COUNT_MAX: usize = 16;

/// What the session's threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: SessionMemory,
    pub(crate) trace: Trace,
    pub(crate) processes: Arc<Processes>,
    pub(crate) register: TakenIn,
    pub(crate) unheard: Arc<Unheard>,
    pub(crate) followed: Followed,
}

impl Shared {
    fn parts(&self) -> Parts<'_> {
        Parts { memory: self.memory.view(), trace: &self.trace, processes: &self.processes }
    }

    /// Takes in what programs have entered in the register since the last look.
    pub(crate) fn look(&self) {
        self.register.look(self.parts());
    }

    /// The recorded command's process id, if a command is recorded and is there.
    pub(crate) fn command(&self) -> Option<u32> {
        let ledger = &self.trace.ledger;
        let pid = u32::try_from(ledger.command()).ok().filter(|pid| *pid != 0)?;
        // Its id may be another's by now.
        (start_of(pid) == ledger.command_start().to_string()).then_some(pid)
    }

    /// The memory, as it is found among what processes have mapped.
    pub(crate) fn mapped_memory(&self) -> Option<MappedFile> {
        let file = self.memory.file().try_clone_to_owned().map(std::fs::File::from).ok()?;
        Some(MappedFile::of(&file.metadata().ok()?))
    }

    /// Processes that are in the session, however new, with what their ends are noticed by.
    pub(crate) fn members(&self) -> Vec<(u32, OwnedFd)> {
        let Some(file) = self.mapped_memory() else { return Vec::new() };
        let mut pids = file.mapped_by(self.trace.ledger.command_start());
        // Those that may not be looked at.
        pids.extend(self.processes.live_pids().into_iter().filter(|pid| file.is_mapped_by(*pid).is_none()));
        pids.into_iter().filter_map(|pid| Some((pid, open(pid).ok()?))).collect()
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
    fn counts(&self) -> &Counts {
        self.trace.ledger.counts()
    }

    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    fn enter(&self, joining: &Joining<'_>, pidfd: OwnedFd) -> Result<u16, String> {
        self.register.enter(self.parts(), joining, pidfd)
    }

    fn refuse(&self, program: &str, reason: &str) {
        self.trace.refuse([refusal_of(ALL_CLASSES, program, reason)]);
    }

    fn leave(&self, ended: &dyn Fn() -> Vec<u16>) {
        self.register.leave(self.parts(), ended);
    }

    /// One after another, for each has room for all that is retained.
    fn snapshot(&self, wanted: &Take) -> Result<Snapshot, Error> {
        let _turn = self.memory.turn();
        snapshot::take(&self.memory, &self.trace, wanted, || self.look())
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
        if let Some(user_disk) = &self.trace.user_disk {
            (status.disk_bytes_user, status.disk_bytes_user_max) = (user_disk.sum(), user_disk.bytes_max);
        }
        let dir = std::path::absolute(&self.trace.dir.path).unwrap_or_else(|_| self.trace.dir.path.clone());
        status.owner_restarts = self.trace.ledger.restarts();
        status.dir = dir.to_string_lossy().into_owned();
        let late = self.trace.ledger.late().load(Ordering::Relaxed);
        status.processes_joined = status.processes_joined.saturating_sub(late);
        status.classes = self.trace.class_count();
        status.classes_max = CLASS_COUNT as u32;
        // Those too of whom the server does not know: that could not map the memory, have found no room, or have not reached the socket in time.
        let refused = self.trace.refusals().1.of(Cause::ProgramRefused);
        status.programs_refused = status.programs_refused.max(refused);
        status.programs_refused +=
            self.memory.view().register().map_or(0, |register| register.refused().0) + self.unheard.count();
        status.classes_refused = self.trace.refusals().0.len() as u32;
    }
}
