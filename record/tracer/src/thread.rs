//! Who is writing: process and thread ids, cached in a thread-local word.
//!
//! The cached word is dropped where it would lie: in a forked child (`fork` handler) and around `vfork`, whose child runs
//! on its parent's thread-local data, not registered for rseq. There the word is 0, the record path takes its slow way, and
//! [`identify`] finds out by the thread id which of the two is running.
//!
//! A filter of system calls may kill a thread for `gettid`. So the id is libc's, and the process's id is found out before `main`:
//! the kernel is asked only after a `vfork`.
//!
//! The record path's sections read a word of their own, the context word. It holds the ids only in threads whose rseq area
//! lies where the process's offset says, so that nothing else has to be asked before a section is entered.

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::AtomicIsize;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use dormouse_abi::record::context_word;
use dormouse_imv::is_filtered;

use crate::{arch, own};

/// Where threads' rseq areas lie from their thread pointers; 0 without rseq. Set before the first session and never changed, since
/// libc places them once for all. A thread has a context word only once it has seen another value than 0.
#[cfg(target_arch = "x86_64")]
pub(crate) static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);

/// Called in each thread when it first writes an event. Async-signal-safe.
static AT_FIRST_EVENT: OnceLock<fn()> = OnceLock::new();

/// Has `function`, which is async-signal-safe, called in each thread when it first writes an event, from now on. The first function stays.
pub(crate) fn at_first_event(function: fn()) {
    let _ = AT_FIRST_EVENT.set(function);
}

/// The writer of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Process and thread as records carry them.
    pub(crate) context: u64,
    /// Whether the thread runs on its own thread-local data, so that rseq may be used.
    pub(crate) owns_tls: bool,
}

fn words() -> &'static arch::Tls {
    // SAFETY: the words live as long as the thread, and the reference does not leave the calling function's thread.
    unsafe { &*arch::tls() }
}

/// Finds out who is calling, and remembers it where that stays true. Async-signal-safe.
pub(crate) fn identify() -> Writer {
    let words = words();
    let cached = words.ids.get();
    if cached != 0 {
        open_sections(words, cached);
        return Writer { context: cached, owns_tls: true };
    }
    let parent = words.vfork_parent.get();
    let vtid = if parent == 0 { own_tid() } else { kernels_tid() };
    let owns_tls = parent == 0 || parent == vtid;
    // A child of vfork is a process of one thread.
    let context = context_word(if owns_tls { own_pid() } else { vtid }, vtid);
    if owns_tls {
        words.vfork_parent.set(0);
        words.ids.set(context);
        open_sections(words, context);
        if let Some(function) = AT_FIRST_EVENT.get() {
            function();
        }
    }
    Writer { context, owns_tls }
}

/// The process's id, once it is known; 0 before. Relaxed: a number of its own.
static PID: AtomicU32 = AtomicU32::new(0);

/// The process's id: a system call unless [`know_process`] was called. Async-signal-safe.
pub(crate) fn own_pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => rustix::process::getpid().as_raw_nonzero().get() as u32,
        pid => pid,
    }
}

/// Finds the process's id out, so that no record has to.
pub(crate) fn know_process() {
    let of_status = || own::pid_in(&own::read(c"/proc/self/status"));
    let of_kernel = || rustix::process::getpid().as_raw_nonzero().get() as u32;
    // A constructor's thread is the first one of its process; a library that is loaded later is in none of a filter's programs.
    let pid = if is_filtered() { of_status().unwrap_or_else(own_tid) } else { of_kernel() };
    PID.store(pid, Ordering::Relaxed);
}

fn kernels_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The calling thread's id as libc knows it, which is without a system call. Not for a child of `vfork`, whose libc data is its parent's.
/// Async-signal-safe.
fn own_tid() -> u32 {
    unsafe extern "C" {
        /// POSIX. glibc and musl make the answer of the thread's id, which is in their data.
        safe fn pthread_getcpuclockid(thread: libc::pthread_t, clock: &mut libc::clockid_t) -> core::ffi::c_int;
    }
    let mut clock = 0;
    // SAFETY: has no conditions.
    let thread = unsafe { libc::pthread_self() };
    // The kernel's encoding (`MAKE_THREAD_CPUCLOCK`): the id's complement, above three bits of which the third says that it is a thread's.
    let is_told = pthread_getcpuclockid(thread, &mut clock) == 0 && clock & 4 != 0;
    // 0 before libc knows it itself.
    match !(clock >> 3) {
        tid if is_told && tid > 0 => tid as u32,
        _ => kernels_tid(),
    }
}

/// Gives the thread its context word, if there is rseq at all.
fn open_sections(words: &arch::Tls, context: u64) {
    // Relaxed: the offset is set once for all, and what this thread has seen it also sees in a section.
    #[cfg(target_arch = "x86_64")]
    if RSEQ_OFFSET.load(Ordering::Relaxed) != 0 {
        words.context.set(context);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (words, context);
}

/// Forgets the ids: the thread is now another process's only one, whose id is the process's.
pub(crate) fn forget() {
    let words = words();
    PID.store(own_tid(), Ordering::Relaxed);
    words.context.set(0);
    words.ids.set(0);
    words.vfork_parent.set(0);
    words.begun_ns.iter().for_each(|begun| begun.set(0));
}

/// Where this thread keeps when a duration has begun. Async-signal-safe.
pub(crate) fn begun_ns(duration: usize) -> Option<&'static core::cell::Cell<u64>> {
    words().begun_ns.get(duration)
}

/// Keeps where on the stack the program's handler of a crash's signal is called, and of which, or that none is. Gives what was kept before.
/// Async-signal-safe.
pub(crate) fn in_handler(handler: Option<(usize, core::ffi::c_int)>) -> Option<(usize, core::ffi::c_int)> {
    let former = self::handler();
    let words = words();
    let (frame, signal) = handler.unwrap_or_default();
    words.handler_frame.set(frame);
    words.handled_signal.set(signal);
    former
}

/// What [`in_handler`] keeps. Async-signal-safe.
pub(crate) fn handler() -> Option<(usize, core::ffi::c_int)> {
    let words = words();
    Some((words.handler_frame.get(), words.handled_signal.get())).filter(|(frame, _)| *frame != 0)
}

/// To be called just before `vfork`: from now on the thread-local data may be in the child's hands.
pub(crate) fn before_vfork() {
    let words = words();
    // A vfork in a vfork child keeps the first parent: whoever has another id does not own the data.
    if words.vfork_parent.get() == 0 {
        words.vfork_parent.set(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    }
    words.context.set(0);
    words.ids.set(0);
}

/// Marks the calling thread as being inside the tracer, for libraries whose wrappers the tracer itself may call: until the
/// end of [`Inside`] its events are not recorded. They find no context word, so only the slow path has to look.
///
/// `None` when it is already. Async-signal-safe.
#[doc(hidden)]
#[inline]
pub fn enter_tracer() -> Option<Inside> {
    let words = words();
    if words.busy.get() != 0 {
        return None;
    }
    words.busy.set(1);
    words.context.set(0);
    Some(Inside(()))
}

/// A number below `count` that threads seldom share: of the place of their thread-local data. Async-signal-safe.
pub(crate) fn number_below(count: usize) -> usize {
    // Fibonacci hashing: the high half of the product depends on all bits of the address.
    let hash = (core::ptr::from_ref(words()).addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    hash as usize % count
}

/// Whether the calling thread does the tracer's own work. Async-signal-safe.
pub(crate) fn is_inside() -> bool {
    words().busy.get() != 0
}

/// Ends with the tracer's work in this thread.
#[doc(hidden)]
#[derive(Debug)]
pub struct Inside(());

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        words().busy.set(0);
    }
}

/// What the calling thread is called: of a constructor, that is what its program was executed as.
pub(crate) fn program_name() -> [u8; 16] {
    if is_filtered() {
        return own::name_in(&own::read(c"/proc/self/status"));
    }
    let mut name = [0; 16];
    // SAFETY: room for the 16 bytes that prctl(2) writes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}
