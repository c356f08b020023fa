use dormouse_abi::txn::Txn;

use crate::arch::{Handle, Outcome};
use crate::txn::Commit;

/// Proof that this process has restartable sequences, registered by libc for each of its threads.
///
/// A small `Copy` value: find it once, keep it, use it from any thread. It stays good in a forked child.
#[derive(Debug, Clone, Copy)]
pub struct Rseq(Handle);

impl Rseq {
    /// libc's registration, if there is one and this architecture has critical sections.
    ///
    /// Lock-free in itself, but it looks symbols up in libc: **not** async-signal-safe. Call it once, early.
    pub fn detect() -> Option<Rseq> {
        Handle::detect().map(Rseq)
    }

    /// Where a thread's area lies, in bytes from its thread pointer: for sections that are written elsewhere.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn offset(self) -> isize {
        self.0.offset()
    }

    /// The CPU that the thread was on a moment ago; always a valid number, also on a thread that is not registered.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn cpu_id_start(self) -> u32 {
        self.0.cpu_id_start()
    }

    /// The CPU that the thread was on a moment ago, or `None` on a thread that is not registered: there every section
    /// ends in [`Commit::Aborted`], so the caller must take its fallback.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn cpu_id(self) -> Option<u32> {
        let cpu = self.0.cpu_id();
        // The kernel's RSEQ_CPU_ID_UNINITIALIZED and RSEQ_CPU_ID_REGISTRATION_FAILED are -1 and -2.
        (cpu <= i32::MAX as u32).then_some(cpu)
    }

    /// Commits a transaction as one critical section on `cpu`: if `*guard == expected`, all stores, else none that
    /// anybody goes by.
    ///
    /// Bound the attempts: under a debugger that single-steps, or on a thread that libc did not register, each is aborted.
    ///
    /// Plain stores of an aborted section may have been made: they must go where nobody looks before the final store.
    ///
    /// Wait-free (one attempt, a bounded number of steps), async-signal-safe: a handler that interrupts a section and
    /// commits itself makes the interrupted one [`Commit::Aborted`].
    ///
    /// # Safety
    /// * `guard` is readable, every target is writable, for the width stated, and aligned to it, until the call returns.
    /// * Every width is 2, 4 or 8, and `store_count` at most [`dormouse_abi::txn::STORES_MAX`].
    /// * The targets are written by nobody else but sections on the same `cpu`, and no reference to them exists that
    ///   would forbid it.
    #[inline]
    pub unsafe fn commit(self, cpu: u32, txn: &Txn) -> Commit {
        crate::txn::check(txn);
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.0.commit(cpu, txn) };
        #[cfg(any(test, feature = "inject"))]
        crate::inject::count(outcome);
        match outcome {
            Outcome::Done => Commit::Done,
            Outcome::GuardChanged => Commit::GuardChanged,
            Outcome::OtherCpu | Outcome::AbortedByKernel => Commit::Aborted,
        }
    }

    /// Adds `n` to `*target`, wrapping, as one critical section on `cpu`. False: aborted, nothing has been added.
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// `target` is aligned and writable, and written by nobody else but sections on the same `cpu`.
    #[inline]
    #[must_use = "an aborted section has added nothing"]
    pub unsafe fn add(self, cpu: u32, target: *mut u64, n: u64) -> bool {
        debug_assert!(target.is_aligned());
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.0.add(cpu, target, n) };
        #[cfg(any(test, feature = "inject"))]
        crate::inject::count(outcome);
        outcome == Outcome::Done
    }

    /// The thread's `rseq_cs`.
    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        self.0.descriptor()
    }
}
