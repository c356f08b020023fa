//! Code that runs while no signal handler runs on the thread.

use core::mem::MaybeUninit;
use core::ptr;

/// Runs `work` with all signals blocked that can be blocked. `errno` keeps its value.
///
/// Two system calls; async-signal-safe if `work` is.
pub(crate) fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: a place for a set of signals.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was filled just now; a place for the one before. It does not fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let result = work();
    // SAFETY: what the call above has stored.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}
