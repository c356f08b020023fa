//! Findings about programs that do not report to the owner themselves: see [`crate::follow`].

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dormouse_tools::Unjoined;

use crate::summary::Executed;

/// Maximum number of executed programs that are named.
const EXECUTED_COUNT_MAX: usize = 100;

/// How long the session's end waits for a program that is being attached.
const PATIENCE_AT_END: Duration = Duration::from_secs(1);

/// The processes that the owner follows, and its findings so far.
#[derive(Debug, Default)]
pub(crate) struct FollowedProcesses {
    findings: Mutex<Findings>,
    /// Notified when no executed program is being attached any more.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct Findings {
    /// The processes that this owner has attached.
    attached: BTreeSet<u32>,
    unjoined: Vec<Unjoined>,
    executed: Vec<Executed>,
    /// Whether an executed program is being attached.
    is_attaching: bool,
    is_over: bool,
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

    /// Attaches a program that a process has executed, unless the search is over, and notes it. A known entry is updated
    /// in any case; a new one is added if the second part of the answer is true.
    pub(crate) fn attach_executed(&self, attach: impl FnOnce() -> (Executed, bool)) {
        let mut findings = self.lock();
        if findings.is_over {
            return;
        }
        findings.is_attaching = true;
        drop(findings);
        let (executed, is_named) = attach();
        let findings = &mut *self.lock();
        findings.is_attaching = false;
        self.settled.notify_all();
        let all = &mut findings.executed;
        let is_same = |known: &Executed| known.pid == executed.pid && known.program == executed.program;
        match all.iter().position(is_same) {
            Some(index) => all[index] = executed,
            None if is_named && all.len() < EXECUTED_COUNT_MAX => all.push(executed),
            None => {}
        }
    }

    /// Whether the search is over.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Ends the search and returns the findings. A program that is being attached has a moment to answer.
    pub(crate) fn end(&self) -> (Vec<Unjoined>, Vec<Executed>) {
        let mut findings = self.lock();
        findings.is_over = true;
        let is_attaching = |findings: &mut Findings| findings.is_attaching;
        let waited = self.settled.wait_timeout_while(findings, PATIENCE_AT_END, is_attaching);
        let (findings, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (findings.unjoined.clone(), findings.executed.clone())
    }
}
