//! Whether the calling thread is in ordinary context. A signal handler is not: the code that it has interrupted may
//! hold a lock of the allocator or the loader, so a thread must not be started there.
//!
//! Either of two checks proves that no handler runs on the thread:
//!
//! 1. The signal mask. While the handler of a signal runs, the signal is blocked, unless its action has `SA_NODEFER`. If no handled signal is
//!    blocked, and no action has that flag, there is no handler.
//! 2. The stack, on x86-64. Below the frame of each handler the kernel stores the handler's return address
//!    (`sa_restorer`). If the thread is not on an alternate stack, and no word from here to the end of the stack is one
//!    of these addresses, there is no handler.
//!
//! The first check is cheap, but proves nothing in a thread that blocks signals which other threads handle. The second
//! is for those threads. Both may fail in ordinary context, for example because an earlier handler has left its return
//! address behind; the next tracepoint then checks again.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{clock, thread};

/// Time before which no thread checks, in nanoseconds of `CLOCK_MONOTONIC`.
static NEXT_CHECK_NS: AtomicU64 = AtomicU64::new(0);
/// Interval between two checks, each of which asks the kernel about all signals.
const CHECK_INTERVAL_NS: u64 = 1_000_000;
/// Number of signals.
const SIGNAL_COUNT: i32 = 64;
/// Maximum number of different return addresses of handlers in one process.
const RESTORER_COUNT_MAX: usize = 8;
/// Maximum size of stack that is searched; a handler that uses more is not found.
const STACK_BYTES_MAX: usize = 8 << 20;
/// Number of stack words copied at a time.
const WORD_COUNT: usize = 2048;

/// A check and its memory. It is not on the stack: the stack may be small, and the check would find its own copy of
/// the address.
struct Check {
    action: libc::sigaction,
    blocked: libc::sigset_t,
    stack: libc::stack_t,
    restorers: [usize; RESTORER_COUNT_MAX],
    words: [usize; WORD_COUNT],
}

struct Shared {
    is_busy: AtomicBool,
    check: UnsafeCell<Check>,
}

// SAFETY: `check` is accessed only in `is_ordinary`, by the thread that has set the flag, so by one thread at a time.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    is_busy: AtomicBool::new(false),
    // SAFETY: the fields are integers, bit sets and nullable pointers, for which zeroes are valid.
    check: UnsafeCell::new(unsafe { core::mem::zeroed() }),
};

/// Whether the calling thread may start a thread: it is in ordinary context, and not inside the tracer. `here` is an
/// address in the caller's frame. Async-signal-safe.
#[cold]
#[inline(never)]
pub(crate) fn is_ordinary(here: usize) -> bool {
    let now = clock::monotonic_ns();
    if thread::is_inside() || now < NEXT_CHECK_NS.load(Ordering::Relaxed) || !thread::identify().owns_tls {
        return false;
    }
    NEXT_CHECK_NS.store(now + CHECK_INTERVAL_NS, Ordering::Relaxed);
    // (F) pairs with (F'). If it was set, another thread checks, or this one is in a handler that has interrupted its
    // own check.
    if SHARED.is_busy.swap(true, Ordering::Acquire) {
        return false;
    }
    // SAFETY: this thread has set the flag, so no other code accesses it.
    let check = unsafe { &mut *SHARED.check.get() };
    let is_ordinary = check.proves_by_mask() || check.proves_by_stack(here);
    // (F') pairs with (F).
    SHARED.is_busy.store(false, Ordering::Release);
    is_ordinary
}

/// Resets the flag in a forked child, in which a checking thread of the parent does not exist.
pub(crate) fn after_fork() {
    SHARED.is_busy.store(false, Ordering::Relaxed);
}

impl Check {
    /// Whether a signal has a handler; then `self.action` is its action. Says nothing about libc's own signals.
    fn is_handled(&mut self, signal: i32) -> bool {
        // SAFETY: only queries; `self.action` has room for the answer.
        let is_told = unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut self.action) } == 0;
        is_told && ![libc::SIG_DFL, libc::SIG_IGN].contains(&self.action.sa_sigaction)
    }

    fn proves_by_mask(&mut self) -> bool {
        // SAFETY: only queries; `self.blocked` has room for the answer.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut self.blocked) };
        (1..=SIGNAL_COUNT).all(|signal| {
            // SAFETY: a set that was filled in, and a valid signal number.
            let is_blocked = unsafe { libc::sigismember(&raw const self.blocked, signal) } == 1;
            !self.is_handled(signal) || self.action.sa_flags & libc::SA_NODEFER == 0 && !is_blocked
        })
    }

    #[cfg(target_arch = "x86_64")]
    fn proves_by_stack(&mut self, here: usize) -> bool {
        // SAFETY: only queries; `self.stack` has room for the answer.
        let is_told = unsafe { libc::sigaltstack(core::ptr::null(), &raw mut self.stack) } == 0;
        is_told && self.stack.ss_flags & libc::SS_ONSTACK == 0 && self.find_restorers() && self.has_none_above(here)
    }

    /// Always false: on other architectures the kernel need not leave the address on the stack.
    #[cfg(not(target_arch = "x86_64"))]
    fn proves_by_stack(&mut self, _: usize) -> bool {
        let _ = (STACK_BYTES_MAX, &self.stack, &self.restorers, &self.words);
        false
    }

    /// Collects the return addresses of all handlers. Returns false if the C library does not tell one, or there are
    /// too many.
    #[cfg(target_arch = "x86_64")]
    fn find_restorers(&mut self) -> bool {
        self.restorers = [0; RESTORER_COUNT_MAX];
        (1..=SIGNAL_COUNT).all(|signal| {
            if !self.is_handled(signal) {
                return true;
            }
            let Some(restorer) = self.action.sa_restorer.map(|restorer| restorer as usize) else { return false };
            let place = self.restorers.iter_mut().find(|known| [0, restorer].contains(known));
            place.map(|place| *place = restorer).is_some()
        })
    }

    /// Whether no word from `here` to the end of the mapped stack is the return address of a handler.
    #[cfg(target_arch = "x86_64")]
    fn has_none_above(&mut self, here: usize) -> bool {
        let copy_bytes = size_of_val(&self.words);
        let is_restorer = |restorers: &[usize], word: usize| word != 0 && restorers.contains(&word);
        for offset in (0..STACK_BYTES_MAX).step_by(copy_bytes) {
            let from = (here & !7) + offset;
            let to = libc::iovec { iov_base: self.words.as_mut_ptr().cast(), iov_len: copy_bytes };
            let from = libc::iovec { iov_base: core::ptr::without_provenance_mut(from), iov_len: copy_bytes };
            let own = thread::own_pid() as i32;
            // SAFETY: process_vm_readv(2) copies mapped memory only, and no more bytes than `to` has room for.
            let copied_bytes = unsafe { libc::process_vm_readv(own, &raw const to, 1, &raw const from, 1, 0) };
            let Ok(copied_bytes) = usize::try_from(copied_bytes) else {
                // The stack ends here, unless not even the caller's frame could be read.
                return offset > 0;
            };
            let copied = &self.words[..copied_bytes / size_of::<usize>()];
            if copied.iter().any(|word| is_restorer(&self.restorers, *word)) {
                return false;
            }
            if copied_bytes < copy_bytes {
                return true;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_int;
    use core::sync::atomic::AtomicU32;

    use super::*;

    /// Results of the checks in a handler, one bit each.
    static SEEN: AtomicU32 = AtomicU32::new(u32::MAX);

    fn checks() -> (bool, bool) {
        let here = 0_u8;
        let here = (&raw const here).addr();
        // SAFETY: the fields are integers, bit sets and nullable pointers, for which zeroes are valid.
        let mut check: Box<Check> = unsafe { Box::new(core::mem::zeroed()) };
        (check.proves_by_mask(), check.proves_by_stack(here))
    }

    extern "C" fn handler(_: c_int) {
        let (by_mask, by_stack) = checks();
        SEEN.store(u32::from(by_mask) | u32::from(by_stack) << 1, Ordering::Relaxed);
    }

    fn handle(signal: c_int, flags: c_int) {
        // SAFETY: the fields are integers, a bit set and a nullable pointer, for which zeroes are valid.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        (action.sa_sigaction, action.sa_flags) = (handler as extern "C" fn(c_int) as usize, flags);
        // SAFETY: the action is filled in. The handler allocates; this is harmless because `raise` below does not
        // interrupt the allocator.
        assert_eq!(unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) }, 0);
    }

    fn raised(signal: c_int) -> u32 {
        // SAFETY: the signal has a handler.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
        SEEN.swap(u32::MAX, Ordering::Relaxed)
    }

    /// Runs in a thread with a signal mask of its own. The test harness handles only the signals that the standard
    /// library handles.
    #[test]
    fn handlers_are_distinguished_from_threads_that_block_signals() {
        std::thread::spawn(|| {
            handle(libc::SIGUSR2, 0);
            assert!(checks().0, "a thread that blocks nothing");
            assert_eq!(raised(libc::SIGUSR2), 0, "in a handler");
            // SAFETY: integers, for which zeroes are valid.
            let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
            // SAFETY: fills the set.
            unsafe { libc::sigfillset(&raw mut all) };
            // SAFETY: a set that was filled in.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, core::ptr::null_mut()) };
            // A handler has run on this stack before; its remains are below the stack pointer.
            assert_eq!(checks(), (false, cfg!(target_arch = "x86_64")), "a thread that blocks everything");
            // SAFETY: a set that was filled in.
            unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const all, core::ptr::null_mut()) };
            handle(libc::SIGUSR2, libc::SA_NODEFER);
            assert_eq!(checks(), (false, cfg!(target_arch = "x86_64")), "where a signal may interrupt its own handler");
            assert_eq!(raised(libc::SIGUSR2), 0, "in such a handler");
        })
        .join()
        .unwrap();
    }
}
