//! Makes the next tracepoint that a thread passes start the listening thread, in a program that listens by a signal.
//!
//! ```text
//!   a tool sends SIGURG ──▶ handler: `want`   outside a session   enables all gates: dormant sites take the slow path
//!                                             in a session        makes records take the slow path
//!   a thread passes a tracepoint ──▶ slow path: `is_wanted`, in ordinary context ──▶ starts the thread, reverts both
//! ```
//! The handler does not start a thread itself: it may have interrupted an allocator, or the loader. It takes no lock of
//! the program, and if another thread is changing the gates at this moment, it leaves the change to that thread.
//!
//! In a session no gate is enabled, because unwanted events would be recorded. So only an armed tracepoint starts the
//! thread there.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use dormouse_imv::{Change, Error, update};

use crate::class::Class;
use crate::ordinary;
use crate::session::{divert, sessions};

/// Whether the next tracepoint should start the thread.
static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// Whether the program listens by a signal, so that a tracepoint may be needed.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// The gates of all classes.
struct Gates {
    is_busy: AtomicBool,
    inner: UnsafeCell<GateChanges>,
}

struct GateChanges {
    on: Vec<Change>,
    off: Vec<Change>,
    is_on: bool,
}

// SAFETY: `inner` is accessed only in `try_with`, by one thread at a time; a change consists of addresses and numbers.
unsafe impl Sync for Gates {}

static GATES: Gates = Gates {
    is_busy: AtomicBool::new(false),
    inner: UnsafeCell::new(GateChanges { on: Vec::new(), off: Vec::new(), is_on: false }),
};

/// Runs `work` on the gates, or returns `None` if another thread does at the moment. Async-signal-safe if `work` is.
fn try_with<R>(work: impl FnOnce(&mut GateChanges) -> R) -> Option<R> {
    // (G) pairs with (G'): changes by the previous thread are visible.
    if GATES.is_busy.swap(true, Ordering::Acquire) {
        return None;
    }
    // SAFETY: this thread has set the flag, so no other thread gets here, nor a handler that interrupts this thread.
    let result = work(unsafe { &mut *GATES.inner.get() });
    // (G') pairs with (G).
    GATES.is_busy.store(false, Ordering::Release);
    Some(result)
}

/// Runs `work` on the gates, and waits for other threads. Not in a handler.
fn with(mut work: impl FnMut(&mut GateChanges)) {
    // Another thread's change of gates takes microseconds.
    while try_with(&mut work).is_none() {
        std::thread::yield_now();
    }
    // A handler that ran meanwhile has left its change to this thread. SeqCst: (W) pairs with (W').
    if IS_WANTED.load(Ordering::SeqCst) {
        let _ = try_with(GateChanges::enable);
    }
}

impl GateChanges {
    /// Makes tracepoints take the slow path. Async-signal-safe.
    fn enable(&mut self) {
        if sessions().next().is_some() {
            divert(true);
        } else if !self.is_on {
            // A site that cannot be written reads its key, which is changed as well. Within an update by this very
            // thread nothing is changed.
            self.is_on = update(&self.on) != Err(Error::Reentered);
        }
    }

    fn disable(&mut self) {
        if core::mem::take(&mut self.is_on) {
            let _ = update(&self.off);
        }
    }
}

/// Replaces the set of known classes. The caller holds the lock of `control`.
pub(crate) fn follow(classes: &[Class]) {
    if IS_USED.load(Ordering::Relaxed) {
        with(|inner| {
            inner.disable();
            let changes = |enable| classes.iter().map(|class| Change::key(class.gate, enable)).collect();
            (inner.on, inner.off) = (changes(true), changes(false));
        });
    }
}

/// Declares that a tracepoint may be needed from now on. [`follow`] is called next.
pub(crate) fn prepare() {
    IS_USED.store(true, Ordering::Relaxed);
}

/// Makes the next tracepoint start the thread. Async-signal-safe.
pub(crate) fn want() {
    // SeqCst: (W') pairs with (W): stored before the gates are tried. `with` checks it after it has released the gates.
    IS_WANTED.store(true, Ordering::SeqCst);
    let _ = try_with(GateChanges::enable);
}

/// Ends waiting for a tracepoint.
pub(crate) fn rest() {
    // SeqCst: (W') pairs with (W).
    IS_WANTED.store(false, Ordering::SeqCst);
    with(GateChanges::disable);
    divert(false);
}

/// Resets the flag in a forked child, in which a thread that was changing the gates does not exist.
pub(crate) fn after_fork() {
    GATES.is_busy.store(false, Ordering::Relaxed);
    ordinary::after_fork();
    if IS_USED.load(Ordering::Relaxed) {
        rest();
    }
}

/// Whether a tracepoint is wanted and this thread, which passes one, can start a thread. Async-signal-safe.
#[inline]
pub(crate) fn is_wanted() -> bool {
    // Relaxed: a hint, which is checked again before use.
    let here = 0_u8;
    IS_WANTED.load(Ordering::Relaxed) && ordinary::is_ordinary((&raw const here).addr())
}
