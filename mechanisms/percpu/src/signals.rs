//! Execution with signals blocked.

use core::mem::MaybeUninit;
use core::ptr;

/// Runs `work` with all signals blocked that can be blocked. `errno` keeps its value.
///
/// Makes two system calls. Async-signal-safe if `work` is.
pub(crate) fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `all` is large enough for a set of signals.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` was filled by the call before, and `before` is large enough for a set of signals. The call does not
    // fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let result = work();
    // SAFETY: the call to `pthread_sigmask` before has filled `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}
