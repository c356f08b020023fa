//! A lock that knows its owner, so that a signal handler is refused instead of deadlocking.
//!
//! ```text
//!   0 ──CAS──▶ tid ──another waits──▶ tid | WAITERS
//!   ▲           │                        │
//!   └───────────┴──────── swap 0 ────────┘ (then wake one)
//! ```
//!
//! The word is moved by its owner, except that a waiter may add [`WAITERS`]. Nothing allocates.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::{futex, gettid};

/// Set when a thread sleeps on the word. Thread ids stay below it (`PID_MAX_LIMIT` is 2^22).
const WAITERS: u32 = 1 << 31;

pub(crate) struct OwnerLock {
    word: AtomicU32,
    /// `fork` was called by a signal handler that interrupted the owner. Only touched by the owner.
    forked_by_owner: AtomicBool,
}

/// The calling thread owns the lock already.
pub(crate) struct Reentered;

impl OwnerLock {
    pub(crate) const fn new() -> OwnerLock {
        OwnerLock { word: AtomicU32::new(0), forked_by_owner: AtomicBool::new(false) }
    }

    /// Takes the lock. Blocking; async-signal-safe.
    pub(crate) fn lock(&self) -> Result<(), Reentered> {
        let me = this_thread();
        // A thread that has slept cannot know whether others still do, so it takes the lock as contended.
        let mut waiters = 0;
        loop {
            // (L1) pairs with (L2): the state of the previous owner is visible.
            let seen = match self.word.compare_exchange(0, me | waiters, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => seen,
            };
            if seen & !WAITERS == me {
                return Err(Reentered);
            }
            let contended = seen | WAITERS;
            if seen != contended
                && self.word.compare_exchange(seen, contended, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                continue;
            }
            // An error means that the word has changed or a signal came: look again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, contended, None);
            waiters = WAITERS;
        }
    }

    /// Gives the lock back. Lock-free; async-signal-safe.
    pub(crate) fn unlock(&self) {
        // (L2) pairs with (L1).
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            // Fails only for an unmapped address, and the lock is a static.
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }

    /// Before `fork`: no other thread may be amid an update, for it would not exist in the child.
    pub(crate) fn before_fork(&self) {
        if self.lock().is_err() {
            self.forked_by_owner.store(true, Ordering::Relaxed);
        }
    }

    /// After `fork`, in the parent.
    pub(crate) fn after_fork_in_parent(&self) {
        if !self.forked_by_owner.swap(false, Ordering::Relaxed) {
            self.unlock();
        }
    }

    /// After `fork`, in the child: the owner lives on under another thread id, and nobody waits.
    pub(crate) fn after_fork_in_child(&self) {
        let owner = if self.forked_by_owner.swap(false, Ordering::Relaxed) { this_thread() } else { 0 };
        self.word.store(owner, Ordering::Relaxed);
    }
}

fn this_thread() -> u32 {
    gettid().as_raw_nonzero().get() as u32
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::thread;

    use super::*;

    struct Counter(UnsafeCell<u64>);
    // SAFETY: the test reaches the count under the lock only.
    unsafe impl Sync for Counter {}

    #[test]
    fn one_owner_at_a_time_and_nobody_sleeps_for_ever() {
        static LOCK: OwnerLock = OwnerLock::new();
        static COUNTER: Counter = Counter(UnsafeCell::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..20_000 {
                        assert!(LOCK.lock().is_ok());
                        // SAFETY: the lock is held.
                        let count = unsafe { &mut *COUNTER.0.get() };
                        *count += 1;
                        if round % 1000 == 0 {
                            thread::yield_now();
                        }
                        LOCK.unlock();
                    }
                });
            }
        });
        // SAFETY: the threads are gone.
        assert_eq!(unsafe { *COUNTER.0.get() }, 80_000);
        assert_eq!(LOCK.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_owner_is_refused() {
        let lock = OwnerLock::new();
        assert!(lock.lock().is_ok());
        assert!(lock.lock().is_err());
        lock.unlock();
        assert!(lock.lock().is_ok());
    }
}
