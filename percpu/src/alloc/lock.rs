//! A lock that knows its owner, so that a signal handler is refused instead of deadlocking. `imv` has one of its own: the hot
//! rooms do not know one another (ARCHITECTURE.md).
//!
//! ```text
//!   0 ──CAS──▶ tid ──another waits──▶ tid | WAITERS
//!   ▲           │                        │
//!   └───────────┴──────── swap 0 ────────┘ (then wake one)
//! ```

use core::sync::atomic::{AtomicU32, Ordering, Ordering::Relaxed};

use rustix::thread::{futex, gettid};

/// Set when a thread sleeps on the word. Thread ids stay below it (`PID_MAX_LIMIT` is 2^22).
const WAITERS: u32 = 1 << 31;

pub(crate) struct OwnerLock(AtomicU32);

/// The calling thread owns the lock already.
#[derive(Debug)]
pub(crate) struct Reentered;

impl OwnerLock {
    pub(crate) const fn new() -> OwnerLock {
        OwnerLock(AtomicU32::new(0))
    }

    /// Runs `work` while nobody else holds the lock. Blocking; async-signal-safe if `work` is.
    pub(crate) fn with<R>(&self, work: impl FnOnce() -> R) -> Result<R, Reentered> {
        self.lock()?;
        let unlock = Unlock(self);
        let result = work();
        drop(unlock);
        Ok(result)
    }

    fn lock(&self) -> Result<(), Reentered> {
        let me = gettid().as_raw_nonzero().get() as u32;
        // A thread that has slept cannot know whether others still do, so it takes the lock as contended.
        let mut waiters = 0;
        loop {
            // (L1) pairs with (L2): what the previous owner did is visible.
            let seen = match self.0.compare_exchange(0, me | waiters, Ordering::Acquire, Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => seen,
            };
            if seen & !WAITERS == me {
                return Err(Reentered);
            }
            let contended = seen | WAITERS;
            if seen != contended && self.0.compare_exchange(seen, contended, Relaxed, Relaxed).is_err() {
                continue;
            }
            // An error means that the word has changed or a signal came: look again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, contended, None);
            waiters = WAITERS;
        }
    }
}

/// Unlocks also when the work panics. It does not ask who unlocks: a forked child does it under another thread id.
struct Unlock<'a>(&'a OwnerLock);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        // (L2) pairs with (L1).
        if self.0.0.swap(0, Ordering::Release) & WAITERS != 0 {
            // Fails only for an unmapped address, and the lock is borrowed.
            let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, 1);
        }
    }
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
                    for round in 0..10_000 {
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
        // SAFETY: the threads are gone.
        assert_eq!(unsafe { *COUNTER.0.get() }, 40_000);
        assert_eq!(LOCK.0.load(Relaxed), 0);
    }

    #[test]
    fn the_owner_is_refused_and_a_panic_unlocks() {
        let lock = OwnerLock::new();
        assert!(lock.with(|| lock.with(|| ()).is_err()).unwrap());
        let panicked = std::panic::catch_unwind(|| lock.with(|| panic!("on purpose")).is_ok());
        assert!(panicked.is_err());
        assert!(lock.with(|| ()).is_ok());
    }
}
