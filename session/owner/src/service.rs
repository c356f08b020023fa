//! The parts of a session that its server serves: memory and trace, for the processes that have joined.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use dormouse_abi::message::{BudgetState, RulesState, Snapshot, Status};
use dormouse_abi::register::{CLASS_COUNT, Register};
use dormouse_abi::rule::RULE_COUNT_MAX;
use dormouse_control::{
    Counts, Joining, MappedFile, NamedThread, Processes, Service, Take, UnheardFile, open, start_of,
};
use dormouse_format::{Cause, StateRecord};

use crate::announced::refusal_of;
use crate::followed::FollowedProcesses;
use crate::losses;
use crate::memory::SessionMemory;
use crate::register::{RegisterReader, SessionRefs};
use crate::rules::RuleSet;
use crate::snapshot;
use crate::trace::{ALL_CLASSES, Trace};

/// Maximum number of processes, and of threads, whose names are checked in one round: each takes one read of a short file.
pub(crate) const NAMED_COUNT_MAX: usize = 16;
/// Maximum number of records of threads' names in a packet.
const NAMED_TOGETHER_MAX: usize = 512;

/// State shared by the session's threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: SessionMemory,
    pub(crate) trace: Trace,
    pub(crate) processes: Arc<Processes>,
    pub(crate) register: RegisterReader,
    pub(crate) unheard: Arc<UnheardFile>,
    pub(crate) followed: FollowedProcesses,
    /// Held while the rules are replaced, because one writer may do that at a time.
    pub(crate) rules_turn: Mutex<()>,
}

impl Shared {
    fn refs(&self) -> SessionRefs<'_> {
        SessionRefs { memory: self.memory.view(), trace: &self.trace, processes: &self.processes }
    }

    /// Takes in what programs have entered in the register since the last look.
    pub(crate) fn look(&self) {
        self.register.look(self.refs());
    }

    /// Returns the recorded command's process id, if there is a command and it still exists.
    pub(crate) fn command(&self) -> Option<u32> {
        let ledger = &self.trace.ledger;
        let pid = u32::try_from(ledger.command()).ok().filter(|pid| *pid != 0)?;
        // Its id may belong to another process by now.
        (start_of(pid) == ledger.command_start().to_string()).then_some(pid)
    }

    /// Returns the memory as it appears among the mappings of processes.
    pub(crate) fn mapped_memory(&self) -> Option<MappedFile> {
        let file = self.memory.file().try_clone_to_owned().map(std::fs::File::from).ok()?;
        Some(MappedFile::of(&file.metadata().ok()?))
    }

    /// Returns the processes in the session, however new, with their pidfds.
    pub(crate) fn members(&self) -> Vec<(u32, OwnedFd)> {
        let Some(file) = self.mapped_memory() else { return Vec::new() };
        let mut pids = file.mapped_by(self.trace.ledger.command_start());
        // Adds processes that may not be inspected.
        pids.extend(self.processes.live_pids().into_iter().filter(|pid| file.is_mapped_by(*pid).is_none()));
        pids.into_iter().filter_map(|pid| Some((pid, open(pid).ok()?))).collect()
    }

    /// Replaces the rules, and notes them in the trace.
    fn set_rules(&self, register: &Register, new: &[String]) -> Result<(), String> {
        // An answer has one line.
        let memory = self.memory.view();
        let check = |rules: RuleSet| rules.check_tails(memory.is_overwrite(), memory.tags()).map(|()| rules);
        let rules = RuleSet::parse(new).and_then(check).map_err(|error| error.to_string().replace('\n', " "))?;
        let _turn = self.rules_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, set) = (register.rules_text(), || register.set_rules(rules.rules(), rules.text()));
        if !self.trace.replace_rules(&before, rules.text(), set) {
            return Err("the session has no room for these rules; join some by `*`, or leave some out".into());
        }
        // Records have the time of the last look. Readers weigh events by the rules at their time, so the record must not
        // be earlier than events of the rules before.
        self.look();
        // Without the record, the events are recorded by these rules all the same.
        let _ = self.trace.state(&[StateRecord::Rules { rules: rules.text() }]);
        Ok(())
    }

    /// Returns the rules, and which processes follow them. A process follows them once all of its tracers do.
    fn rules_state(&self, register: &Register) -> RulesState {
        self.look();
        let version = register.rules_version();
        let (mut visible, mut processes) = (BTreeMap::<u32, bool>::new(), Vec::new());
        for (number, pid) in self.processes.live_numbers() {
            let follows = register.rules_followed(number) == Some(version);
            match pid {
                Some(pid) => *visible.entry(pid).or_insert(true) &= follows,
                None => processes.push((0, follows)),
            }
        }
        processes.extend(visible);
        let rules = register.rules_text().lines().take(RULE_COUNT_MAX).map(String::from).collect();
        RulesState { rules, processes }
    }

    /// Records the new names of renamed processes and threads in the trace. Checks at most `count_max` processes, and as
    /// many threads.
    pub(crate) fn record_names(&self, count_max: usize) {
        for (number, name) in self.processes.renamed(count_max) {
            // Without the record, the process keeps its former name.
            let _ = self.trace.state(&[StateRecord::ProcessName { process: number.into(), name: &name }]);
        }
        let threads = self.processes.renamed_threads(count_max);
        for threads in threads.chunks(NAMED_TOGETHER_MAX) {
            let records = threads.iter().map(|NamedThread { process, vtid, name }| StateRecord::ThreadName {
                process: (*process).into(),
                vtid: *vtid,
                name,
            });
            // Without the record, a thread has no name in the trace, or its former one.
            let _ = self.trace.state(&records.collect::<Vec<_>>());
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
        self.register.enter(self.refs(), joining, pidfd)
    }

    fn refuse(&self, program: &str, reason: &str) {
        self.trace.refuse([refusal_of(ALL_CLASSES, program, reason)]);
    }

    fn leave(&self, ended: &dyn Fn() -> Vec<u16>) {
        self.register.leave(self.refs(), ended);
    }

    /// Snapshots are taken one at a time, because each makes room for all retained pages.
    fn snapshot(&self, wanted: &Take) -> Result<Snapshot, String> {
        let _turn = self.memory.turn();
        Ok(snapshot::take(&self.memory, &self.trace, wanted, || self.look())?)
    }

    fn budget(&self, bytes: u64) -> Result<BudgetState, String> {
        if bytes != 0 {
            self.memory.resize(bytes)?;
        }
        Ok(self.memory.describe())
    }

    fn rules(&self, new: Option<&[String]>) -> Result<RulesState, String> {
        let memory = self.memory.view();
        let register = memory.register().ok_or("the session takes no programs in")?;
        if let Some(new) = new {
            self.set_rules(register, new)?;
        }
        Ok(self.rules_state(register))
    }

    fn describe(&self, status: &mut Status) {
        let files = std::fs::read_dir(&self.trace.dir.path).into_iter().flatten().flatten();
        // `st_blocks` counts units of 512 bytes, whatever the file system's blocks are.
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
        // Includes programs that the server does not know: they could not map the memory, found no room, or did not
        // reach the socket in time.
        let refused = self.trace.refusals().1.of(Cause::ProgramRefused);
        status.programs_refused = status.programs_refused.max(refused);
        status.programs_refused +=
            self.memory.view().register().map_or(0, |register| register.refused().0) + self.unheard.count();
        status.classes_refused = self.trace.refusals().0.len() as u32;
        (status.events_rejected, status.events_sampled_out) = losses::unrecorded(&self.memory.view());
        status.events_not_kept = self.trace.ledger.tally().not_kept.sum();
    }
}
