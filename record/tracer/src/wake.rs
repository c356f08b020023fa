//! Has the next tracepoint that a thread passes be told: how a program that listens without a thread comes to start one.
//!
//! ```text
//!   a tool sends SIGURG ──▶ handler: `want`   outside of sessions   enables every gate, so that dormant sites go the slow path
//!                                                    in a session          has records go the slow path
//!   a thread passes a tracepoint ──▶ slow path: `is_wanted`, in ordinary context ──▶ the thread starts, and ends both
//! ```
//! The handler starts no thread itself: it may have interrupted an allocator, or the loader. It takes no lock of the program's, and where
//! somebody is at the gates at this moment, it leaves it to him.
//!
//! In a session no gate is enabled: events that nobody wants would be recorded. So only one that is armed tells there.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use dormouse_imv::{Change, Error, update};

use crate::class::Class;
use crate::ordinary;
use crate::session::{current, divert};

/// Whether a tracepoint is waited for.
static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// Whether there may come to be one that is waited for.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// The gates of all classes.
struct Gates {
    is_busy: AtomicBool,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    on: Vec<Change>,
    off: Vec<Change>,
    is_on: bool,
}

// SAFETY: `inner` is reached only through `try_with`, which one thread at a time gets past; a change is addresses and numbers.
unsafe impl Sync for Gates {}

static GATES: Gates = Gates {
    is_busy: AtomicBool::new(false),
    inner: UnsafeCell::new(Inner { on: Vec::new(), off: Vec::new(), is_on: false }),
};

/// `None` where somebody is at work there. Async-signal-safe if `work` is.
fn try_with<R>(work: impl FnOnce(&mut Inner) -> R) -> Option<R> {
    // (G) pairs with (G'): what the one before has done is visible.
    if GATES.is_busy.swap(true, Ordering::Acquire) {
        return None;
    }
    // SAFETY: nobody else is past the flag, which also keeps a handler out that interrupts this very thread.
    let result = work(unsafe { &mut *GATES.inner.get() });
    // (G') pairs with (G).
    GATES.is_busy.store(false, Ordering::Release);
    Some(result)
}

/// Not in a handler.
fn with(mut work: impl FnMut(&mut Inner)) {
    // Another thread's change of gates takes microseconds.
    while try_with(&mut work).is_none() {
        std::thread::yield_now();
    }
    // A handler that came meanwhile has left it to this thread. SeqCst: (W) pairs with (W').
    if IS_WANTED.load(Ordering::SeqCst) {
        let _ = try_with(Inner::enable);
    }
}

impl Inner {
    /// Async-signal-safe.
    fn enable(&mut self) {
        if current().is_some() {
            divert(true);
        } else if !self.is_on {
            // One that cannot be written reads its key, which says so too. Inside an update of this very thread nothing is changed.
            self.is_on = update(&self.on) != Err(Error::Reentered);
        }
    }

    fn disable(&mut self) {
        if core::mem::take(&mut self.is_on) {
            let _ = update(&self.off);
        }
    }
}

/// These are the classes from now on: nothing is known of others. The caller holds the lock of `control`.
pub(crate) fn follow(classes: &[Class]) {
    if IS_USED.load(Ordering::Relaxed) {
        with(|inner| {
            inner.disable();
            let changes = |enable| classes.iter().map(|class| Change::key(class.gate, enable)).collect();
            (inner.on, inner.off) = (changes(true), changes(false));
        });
    }
}

/// There may come to be one that is waited for, from now on; [`follow`] is called next.
pub(crate) fn prepare() {
    IS_USED.store(true, Ordering::Relaxed);
}

/// The next tracepoint is to be told. Async-signal-safe.
pub(crate) fn want() {
    // SeqCst: (W') pairs with (W): stored before the gates are tried, as `with` looks after it has let go of them.
    IS_WANTED.store(true, Ordering::SeqCst);
    let _ = try_with(Inner::enable);
}

/// None is waited for any more.
pub(crate) fn rest() {
    // SeqCst: (W') pairs with (W).
    IS_WANTED.store(false, Ordering::SeqCst);
    with(Inner::disable);
    divert(false);
}

/// In a forked child: whoever was at work there is not in it.
pub(crate) fn after_fork() {
    GATES.is_busy.store(false, Ordering::Relaxed);
    ordinary::after_fork();
    if IS_USED.load(Ordering::Relaxed) {
        rest();
    }
}

/// Whether this thread, which passes a tracepoint, is to tell, and can start a thread. Async-signal-safe.
#[inline]
pub(crate) fn is_wanted() -> bool {
    // Relaxed: a hint, and who takes it looks again.
    let here = 0_u8;
    IS_WANTED.load(Ordering::Relaxed) && ordinary::is_ordinary((&raw const here).addr())
}
