//! Findings about programs that do not report to the owner themselves: see [`crate::follow`].

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse_tools::Unjoined;

use crate::summary::Executed;

/// Maximum number of executed programs that are named.
const EXECUTED_COUNT_MAX: usize = 100;

/// The processes that the owner follows, and its findings so far.
#[derive(Debug, Default)]
pub(crate) struct FollowedProcesses {
    findings: Mutex<Findings>,
    /// Relaxed: independent of other data.
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Findings {
    /// The processes that this owner has attached.
    attached: BTreeSet<u32>,
    unjoined: Vec<Unjoined>,
    executed: Vec<Executed>,
}

impl FollowedProcesses {
    fn lock(&self) -> MutexGuard<'_, Findings> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a tool has named this process.
    pub(crate) fn set_attached(&self, pid: u32) {
        self.lock().attached.insert(pid);
    }

    /// Whether a tool has named this process.
    pub(crate) fn is_attached(&self, pid: u32) -> bool {
        self.lock().attached.contains(&pid)
    }

    /// Sets the found descendants of the command that have not joined.
    pub(crate) fn set_unjoined(&self, unjoined: &[Unjoined]) {
        self.lock().unjoined = unjoined.to_vec();
    }

    /// Notes that a process has executed a program, if `is_named`. A known entry is updated in any case.
    pub(crate) fn note_executed(&self, executed: Executed, is_named: bool) {
        let all = &mut self.lock().executed;
        let is_same = |known: &Executed| known.pid == executed.pid && known.program == executed.program;
        match all.iter().position(is_same) {
            Some(index) => all[index] = executed,
            None if is_named && all.len() < EXECUTED_COUNT_MAX => all.push(executed),
            None => {}
        }
    }

    /// Whether the search is over.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the search and returns the findings.
    pub(crate) fn end(&self) -> (Vec<Unjoined>, Vec<Executed>) {
        self.is_over.store(true, Ordering::Relaxed);
        let findings = self.lock();
        (findings.unjoined.clone(), findings.executed.clone())
    }
}
