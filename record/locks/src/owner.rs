//! A lock that knows its owner, so that a signal handler that interrupts the owner gets an error instead of a deadlock.
//!
//! ```text
//!   0 ──CAS──▶ tid ──another waits──▶ tid | WAITERS
//!   ▲           │                        │
//!   └───────────┴──────── swap 0 ────────┘ (then wake one)
//! ```
//!
//! Only the owner changes the word, except that a waiter may add [`WAITERS`]. Nothing allocates.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::{futex, gettid};

use crate::order::{HeldLock, Rank};

/// Set when a thread sleeps on the word. Thread ids are smaller (`PID_MAX_LIMIT` is 2^22).
const WAITERS: u32 = 1 << 31;

/// A lock for one owner at a time. An owner that takes it again gets an error.
#[derive(Debug)]
pub struct OwnerLock {
    rank: Rank,
    word: AtomicU32,
    /// Whether `fork` was called by a signal handler that interrupted the owner. Only the owner accesses it.
    forked_by_owner: AtomicBool,
}

/// Error: the calling thread owns the lock already.
#[derive(Debug)]
pub struct Reentered;

impl OwnerLock {
    /// Returns a free lock.
    pub const fn new(rank: Rank) -> OwnerLock {
        OwnerLock { rank, word: AtomicU32::new(0), forked_by_owner: AtomicBool::new(false) }
    }

    /// Calls `work` with the lock held. Blocking; async-signal-safe if `work` is.
    ///
    /// # Errors
    /// [`Reentered`] if the calling thread holds the lock already; `work` was not called.
    pub fn with<R>(&self, work: impl FnOnce() -> R) -> Result<R, Reentered> {
        let owned = self.lock()?;
        let result = work();
        drop(owned);
        Ok(result)
    }

    fn lock(&self) -> Result<OwnedLock<'_>, Reentered> {
        let me = this_thread();
        let mut held = None;
        // A thread that has slept cannot know whether others still sleep, so it takes the lock as contended.
        let mut waiters = 0;
        loop {
            // (L1) pairs with (L2): the previous owner's writes are visible.
            let seen = match self.word.compare_exchange(0, me | waiters, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(OwnedLock { lock: self, held: held.or_else(|| Some(self.rank.hold())) }),
                Err(seen) => seen,
            };
            if seen & !WAITERS == me {
                return Err(Reentered);
            }
            held.get_or_insert_with(|| self.rank.hold());
            let contended = seen | WAITERS;
            if seen != contended
                && self.word.compare_exchange(seen, contended, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                continue;
            }
            // An error means that the word has changed or a signal has arrived: try again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, contended, None);
            waiters = WAITERS;
        }
    }

    /// Releases the lock. Lock-free; async-signal-safe.
    fn unlock(&self) {
        // (L2) pairs with (L1).
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            // Fails only for an unmapped address, and the lock is borrowed.
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }

    /// Takes the lock before `fork`, so that no other thread is inside a change. That thread would not exist in the
    /// child.
    pub fn before_fork(&self) {
        match self.lock() {
            // Released after the fork, in the parent and in the child.
            Ok(owned) => owned.keep(),
            Err(Reentered) => self.forked_by_owner.store(true, Ordering::Relaxed),
        }
    }

    /// Releases the lock after `fork`, in the parent.
    pub fn after_fork_in_parent(&self) {
        if !self.forked_by_owner.swap(false, Ordering::Relaxed) {
            self.unlock();
        }
    }

    /// Releases the lock after `fork`, in the child: the owner has another thread id there, and no thread waits.
    pub fn after_fork_in_child(&self) {
        let owner = if self.forked_by_owner.swap(false, Ordering::Relaxed) { this_thread() } else { 0 };
        self.word.store(owner, Ordering::Relaxed);
    }
}

/// Guard that unlocks also if the work panics. It does not check the thread, because a forked child unlocks under
/// another thread id.
struct OwnedLock<'a> {
    lock: &'a OwnerLock,
    held: Option<HeldLock>,
}

impl OwnedLock<'_> {
    /// Keeps the lock taken.
    fn keep(mut self) {
        self.held = None;
        core::mem::forget(self);
    }
}

impl Drop for OwnedLock<'_> {
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

fn this_thread() -> u32 {
    gettid().as_raw_nonzero().get() as u32
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::cell::UnsafeCell;
    use std::thread;

    use super::*;

    struct Counter(UnsafeCell<u64>);
    // SAFETY: the test accesses the count under the lock only.
    unsafe impl Sync for Counter {}

    #[test]
    fn one_thread_owns_the_lock_and_no_wake_up_is_lost() {
        static LOCK: OwnerLock = OwnerLock::new(Rank::Pool);
        static COUNTER: Counter = Counter(UnsafeCell::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..20_000 {
                        let locked = LOCK.with(|| {
                            // SAFETY: the lock is held.
                            unsafe { *COUNTER.0.get() += 1 };
                            if round % 1000 == 0 {
                                thread::yield_now();
                            }
                        });
                        assert!(locked.is_ok());
                    }
                });
            }
        });
        // SAFETY: the threads have ended.
        assert_eq!(unsafe { *COUNTER.0.get() }, 80_000);
        assert_eq!(LOCK.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn locking_again_is_refused_and_a_panic_unlocks() {
        let lock = OwnerLock::new(Rank::Pool);
        assert!(lock.with(|| lock.with(|| ()).is_err()).unwrap());
        let panicked = std::panic::catch_unwind(|| lock.with(|| panic!("on purpose")).is_ok());
        assert!(panicked.is_err());
        assert!(lock.with(|| ()).is_ok());
    }

    #[test]
    fn a_fork_by_the_owner_leaves_it_the_owner() {
        let lock = OwnerLock::new(Rank::Pool);
        lock.before_fork();
        assert!(lock.with(|| ()).is_err());
        lock.after_fork_in_parent();
        let forked = lock.with(|| {
            lock.before_fork();
            lock.after_fork_in_child();
            lock.with(|| ()).is_err()
        });
        assert!(forked.unwrap());
        assert!(lock.with(|| ()).is_ok());
    }
}
