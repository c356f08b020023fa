//! One deadline for all waiting in a conversation.

use core::fmt;
use std::time::Duration;

use crate::error::Error;

/// A clock. Tests have their own.
pub trait Clock: Sync {
    /// Returns the time in nanoseconds since a fixed moment.
    fn now_ns(&self) -> u64;

    /// Called before a call that blocks for at most `left`.
    fn before_wait(&self, left: Duration) {
        let _ = left;
    }
}

/// `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub struct Monotonic;

impl Clock for Monotonic {
    /// Async-signal-safe; preserves errno.
    fn now_ns(&self) -> u64 {
        // Not through rustix, which finds the vDSO through the kernel's auxiliary vector and faults where valgrind has
        // hidden it.
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: every Linux has this clock, and `now` has room for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// A moment at which all waiting ends. Copies denote the same moment.
#[derive(Clone, Copy)]
pub struct Deadline<'a> {
    clock: &'a dyn Clock,
    end_ns: u64,
}

impl Deadline<'static> {
    /// Returns the deadline `patience` from now.
    pub fn after(patience: Duration) -> Deadline<'static> {
        Deadline::by(&Monotonic, patience)
    }
}

impl<'a> Deadline<'a> {
    /// Returns the deadline `patience` from now, by this clock.
    pub fn by(clock: &'a dyn Clock, patience: Duration) -> Deadline<'a> {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        Deadline { clock, end_ns: clock.now_ns().saturating_add(patience_ns) }
    }

    /// Returns the remaining time; zero when the deadline has passed.
    pub fn left(&self) -> Duration {
        Duration::from_nanos(self.end_ns.saturating_sub(self.clock.now_ns()))
    }

    /// Calls `wait` to block for at most the remaining time, repeatedly while signals interrupt it.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when no time remains, and the errors of `wait`.
    pub fn spend<T>(&self, mut wait: impl FnMut(Duration) -> rustix::io::Result<T>) -> Result<T, Error> {
        loop {
            let left = self.left();
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
            self.clock.before_wait(left);
            match wait(left) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.map_err(Error::System),
            }
        }
    }
}

impl fmt::Debug for Deadline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadline").field("end_ns", &self.end_ns).finish_non_exhaustive()
    }
}
