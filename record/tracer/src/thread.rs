//! Process and thread ids of the writing thread, cached in a thread-local word.
//!
//! The cached word is cleared when it would become wrong: in a forked child (`fork` handler) and around `vfork`, whose
//! child runs on its parent's thread-local data without rseq registration. While the word is 0, the record path takes
//! the slow path, and
//! [`identify`] finds out by the thread id which of the two is running.
//!
//! A filter of system calls may kill a thread for `gettid`. So the thread id comes from libc, and the process id is
//! determined before `main`. The kernel is asked only after a `vfork`.
//!
//! The critical sections of the record path read a word of their own, the context word. It holds the ids only in
//! threads whose rseq structure is at the process's offset, so nothing else needs to be checked before a critical
//! section is entered.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use core::sync::atomic::AtomicIsize;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use dormouse_abi::record::context_word;
use dormouse_abi::tag::TAG_COUNT_MAX;
use dormouse_imv::is_filtered;

use crate::{arch, own};

/// Offset of threads' rseq structures from their thread pointers, in bytes; 0 without rseq. Set before the first
/// session and never changed, because libc places all of them alike. A thread gets a context word only after it has
/// seen a value other than 0.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);

/// Function to call in each thread when it first writes an event. Async-signal-safe.
static AT_FIRST_EVENT: OnceLock<fn()> = OnceLock::new();

/// Makes each thread call `function`, which is async-signal-safe, when it first writes an event from now on. The
/// function of the first call is kept.
pub(crate) fn at_first_event(function: fn()) {
    let _ = AT_FIRST_EVENT.set(function);
}

/// Identity of the thread that writes a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Process and thread in the form that records carry.
    pub(crate) context: u64,
    /// Whether the thread runs on its own thread-local data, so that rseq may be used.
    pub(crate) owns_tls: bool,
}

fn words() -> &'static arch::Tls {
    // SAFETY: the words live as long as the thread, and the reference does not leave the calling function's thread.
    unsafe { &*arch::tls() }
}

/// Returns the ids of the calling thread, and caches them if they stay valid. Async-signal-safe.
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
    // A child of vfork is a process with one thread.
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

/// The process id, once known; 0 before. Relaxed: the number stands alone.
static PID: AtomicU32 = AtomicU32::new(0);

/// Returns the process id. Makes a system call unless the tracer has started. Async-signal-safe.
pub fn own_pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => rustix::process::getpid().as_raw_nonzero().get() as u32,
        pid => pid,
    }
}

/// Determines the process id once, so that no record has to.
pub(crate) fn know_process() {
    let of_status = || own::pid_in(&own::read(c"/proc/self/status"));
    let of_kernel = || rustix::process::getpid().as_raw_nonzero().get() as u32;
    // A constructor runs in the first thread of its process. A library that is loaded later is not used by a program
    // under a filter.
    let pid = if is_filtered() { of_status().unwrap_or_else(own_tid) } else { of_kernel() };
    PID.store(pid, Ordering::Relaxed);
}

fn kernels_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Returns the calling thread's id from libc's data, without a system call. Not for a child of `vfork`, whose libc data
/// are its parent's.
/// Async-signal-safe.
fn own_tid() -> u32 {
    unsafe extern "C" {
        /// POSIX. glibc and musl compute the result from the thread id, which is in their data.
        safe fn pthread_getcpuclockid(thread: libc::pthread_t, clock: &mut libc::clockid_t) -> core::ffi::c_int;
    }
    let mut clock = 0;
    // SAFETY: pthread_self(3) has no conditions.
    let thread = unsafe { libc::pthread_self() };
    // The kernel's encoding (`MAKE_THREAD_CPUCLOCK`): the complement of the id, above three bits of which the third
    // marks a thread's clock.
    let is_told = pthread_getcpuclockid(thread, &mut clock) == 0 && clock & 4 != 0;
    // The id is 0 as long as libc does not know it.
    match !(clock >> 3) {
        tid if is_told && tid > 0 => tid as u32,
        _ => kernels_tid(),
    }
}

/// Sets the thread's context word, if there is rseq.
fn open_sections(words: &arch::Tls, context: u64) {
    // Relaxed: the offset is set once, and a value that this thread has seen is also seen in its critical sections.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if RSEQ_OFFSET.load(Ordering::Relaxed) != 0 {
        words.context.set(context);
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (words, context);
}

/// Forgets the ids in a forked child: the thread is its process's only one, and its id is the process's.
pub(crate) fn forget() {
    let words = words();
    PID.store(own_tid(), Ordering::Relaxed);
    words.context.set(0);
    words.ids.set(0);
    words.vfork_parent.set(0);
    words.begun_ns.iter().for_each(|begun| begun.set(0));
}

/// Returns the cell with the start time of a duration in this thread. Async-signal-safe.
pub(crate) fn begun_ns(duration: usize) -> Option<&'static core::cell::Cell<u64>> {
    words().begun_ns.get(duration)
}

/// Stores the stack address and signal of the program's crash handler that is being called, or that none is. Returns
/// the former entry.
/// Async-signal-safe.
pub(crate) fn in_handler(handler: Option<(usize, core::ffi::c_int)>) -> Option<(usize, core::ffi::c_int)> {
    let former = self::handler();
    let (frame, signal) = handler.unwrap_or_default();
    // Addresses of programs have at most 57 bits.
    words().handler.set((frame as u64) << SIGNAL_BITS | signal as u64);
    former
}

/// Number of bits of a signal's number.
const SIGNAL_BITS: u32 = 7;

/// Returns the entry that [`in_handler`] has stored. Async-signal-safe.
pub(crate) fn handler() -> Option<(usize, core::ffi::c_int)> {
    let word = words().handler.get();
    let (frame, signal) = (word >> SIGNAL_BITS, word & ((1 << SIGNAL_BITS) - 1));
    Some((frame as usize, signal as core::ffi::c_int)).filter(|(frame, _)| *frame != 0)
}

/// Returns the cells with the values of the calling thread's tags. Async-signal-safe.
#[inline(always)]
pub(crate) fn tags() -> &'static [core::cell::Cell<u64>; TAG_COUNT_MAX] {
    &words().tags
}

/// Returns the distance of a tag's value from the thread pointer, in bytes: the same in each thread.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn tag_offset(word: usize) -> isize {
    arch::tls_offset() + (core::mem::offset_of!(arch::Tls, tags) + size_of::<u64>() * word) as isize
}

/// Clears the cached ids. Must be called just before `vfork`: afterwards the child may use the thread-local data.
pub(crate) fn before_vfork() {
    let words = words();
    // A vfork in a vfork child keeps the first parent: only the thread with that id owns the data.
    if words.vfork_parent.get() == 0 {
        words.vfork_parent.set(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    }
    words.context.set(0);
    words.ids.set(0);
}

/// Marks the calling thread as being inside the tracer until [`Inside`] is dropped, for libraries whose wrappers the
/// tracer itself may call. Meanwhile its events are not recorded. They find no context word, so only the slow path
/// needs to check.
///
/// Returns `None` if the thread is inside already. Async-signal-safe.
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

/// Returns a number below `count` that threads seldom share, from the address of their thread-local data.
/// Async-signal-safe.
pub(crate) fn number_below(count: usize) -> usize {
    // Fibonacci hashing: the high half of the product depends on all bits of the address.
    let hash = (core::ptr::from_ref(words()).addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    hash as usize % count
}

/// Whether the calling thread is inside the tracer. Async-signal-safe.
pub(crate) fn is_inside() -> bool {
    words().busy.get() != 0
}

/// Whether the calling thread may enter critical sections. Async-signal-safe.
#[inline(always)]
pub(crate) fn has_sections() -> bool {
    words().context.get() != 0
}

/// Mark of a thread that is inside the tracer; dropping it clears the mark.
#[doc(hidden)]
#[derive(Debug)]
pub struct Inside(());

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        words().busy.set(0);
    }
}

/// Returns the calling thread's name. In a constructor, it is the name that the program was executed under.
pub(crate) fn program_name() -> [u8; 16] {
    if is_filtered() {
        return own::name_in(&own::read(c"/proc/self/status"));
    }
    let mut name = [0; 16];
    // SAFETY: room for the 16 bytes that prctl(2) writes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}
