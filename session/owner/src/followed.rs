//! What was found of programs that do not tell it: see [`crate::follow`].

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse_tools::Unjoined;

use crate::summary::Executed;

/// Programs that processes have become which are named.
const EXECUTED_COUNT_MAX: usize = 100;

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    found: Mutex<Found>,
    /// The process that was attached; 0: none, or by an owner before this one. Relaxed, as below: a word of its own.
    attached: AtomicU32,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Found {
    unjoined: Vec<Unjoined>,
    executed: Vec<Executed>,
}

impl Followed {
    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tool has named this process.
    pub(crate) fn set_attached(&self, pid: u32) {
        self.attached.store(pid, Ordering::Relaxed);
    }

    /// Whether a tool has named this process.
    pub(crate) fn is_attached(&self, pid: u32) -> bool {
        pid == self.attached.load(Ordering::Relaxed)
    }

    /// All descendants of the command that were found.
    pub(crate) fn set_unjoined(&self, unjoined: &[Unjoined]) {
        self.lock().unjoined = unjoined.to_vec();
    }

    /// A process has executed a program, which is noted where it `is_named`, and again where it was before.
    pub(crate) fn note_executed(&self, executed: Executed, is_named: bool) {
        let all = &mut self.lock().executed;
        let is_same = |known: &Executed| known.pid == executed.pid && known.program == executed.program;
        match all.iter().position(is_same) {
            Some(index) => all[index] = executed,
            None if is_named && all.len() < EXECUTED_COUNT_MAX => all.push(executed),
            None => {}
        }
    }

    /// Nobody looks any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// What was found until now, which is all.
    pub(crate) fn end(&self) -> (Vec<Unjoined>, Vec<Executed>) {
        self.is_over.store(true, Ordering::Relaxed);
        let found = self.lock();
        (found.unjoined.clone(), found.executed.clone())
    }
}
