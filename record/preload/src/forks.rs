//! Forks: an event before each in the parent, and one in the child, from which a reader knows what the child has
//! inherited.
//!
//! ```text
//!   parent  fork_begin number=7 ── fork ──▶ …
//!   child                            └───▶ fork_child parent=PID number=7
//! ```
//! They are recorded by fork handlers, so also for forks inside libc (`daemon`, `forkpty`). These are registered after
//! those of the tracer: the parent's event is recorded before the tracer's locks are taken, and the child's once the
//! child is a process of its own.

use core::sync::atomic::{AtomicU32, Ordering};

use dormouse::event;

/// Number of forks of this process and of its ancestors that run the same program. The child has the number of its own.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Id of the process that forked last. In a forked child, that of its parent.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Registers the handlers.
pub(crate) fn follow() {
    // SAFETY: the handlers are functions of this object, which is never unloaded, because it is preloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork_child)) };
}

extern "C" fn before_fork() {
    // A filter of system calls may kill for getpid(2).
    PARENT.store(dormouse::own_pid(), Ordering::Relaxed);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    event!(libc.fork_begin, number);
}

extern "C" fn after_fork_child() {
    let (parent, number) = (PARENT.load(Ordering::Relaxed).cast_signed(), NUMBER.load(Ordering::Relaxed));
    event!(libc.fork_child, parent, number);
}
