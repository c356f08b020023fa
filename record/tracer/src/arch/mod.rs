//! Thread-local words that the record path and a signal handler may read at any time, and where an object has its event records.
//!
//! `std::thread_local!` may allocate on first use in a library that came by `dlopen`, so on x86-64 the words live in the
//! static TLS block (initial-exec model); elsewhere the std facility has to do.

use dormouse_abi::site::{EVENTS_SECTION, EventRecord};

/// A thread's words.
///
/// | offset | word |
/// | ---: | --- |
/// | 0 | the ids below, where the thread may write under rseq at once, or 0: the slow path has to look |
/// | 8 | thread id of the parent whose `vfork` is under way, or 0 |
/// | 12 | not zero: the tracer itself is at work in this thread |
/// | 16 | `vpid` and `vtid` as records carry them ([`dormouse_abi::record::context_word`]), or 0: not known |
/// | 24 | when each duration that a trigger measures has begun here, or 0: it has not |
/// | 88 | where on the stack the program's handler of a crash's signal was called last, or 0: it has returned |
/// | 96 | that signal |
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) context: core::cell::Cell<u64>,
    pub(crate) vfork_parent: core::cell::Cell<u32>,
    pub(crate) busy: core::cell::Cell<u32>,
    pub(crate) ids: core::cell::Cell<u64>,
    pub(crate) begun_ns: [core::cell::Cell<u64>; DURATION_COUNT_MAX],
    pub(crate) handler_frame: core::cell::Cell<usize>,
    pub(crate) handled_signal: core::cell::Cell<core::ffi::c_int>,
}

/// Durations that triggers may measure: each has two patterns.
pub(crate) const DURATION_COUNT_MAX: usize = dormouse_abi::trigger::PATTERN_COUNT_MAX / 2;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{RETURN_FROM_SIGNAL, set_alternate_stack, tls};

#[cfg(not(target_arch = "x86_64"))]
mod generic {
    use super::{DURATION_COUNT_MAX, Tls};
    use core::cell::Cell;

    std::thread_local! {
        static TLS: Tls = const {
            Tls {
                context: Cell::new(0),
                vfork_parent: Cell::new(0),
                busy: Cell::new(0),
                ids: Cell::new(0),
                begun_ns: [const { Cell::new(0) }; DURATION_COUNT_MAX],
                handler_frame: Cell::new(0),
                handled_signal: Cell::new(0),
            }
        };
    }

    /// The calling thread's words.
    pub(crate) fn tls() -> *const Tls {
        TLS.with(|tls| core::ptr::from_ref(tls))
    }
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use generic::tls;
/// Not from that stack itself.
///
/// # Safety
/// As sigaltstack(2): the stack is the calling thread's alone.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn set_alternate_stack(stack: &libc::stack_t) {
    // SAFETY: the caller's word. Refused where the thread runs on an alternate stack.
    unsafe { libc::sigaltstack(stack, core::ptr::null_mut()) };
}
/// The kernel has its own.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const RETURN_FROM_SIGNAL: Option<unsafe extern "C" fn()> = None;

dormouse_imv::__own_records!(own_records, EventRecord, "dormouse_events" = EVENTS_SECTION, "aR");
