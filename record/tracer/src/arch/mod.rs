//! Thread-local words that the record path and signal handlers may read at any time, and the event section of the
//! loaded object.
//!
//! `std::thread_local!` may allocate on first use in a library loaded by `dlopen`, so on x86-64 and AArch64 the
//! words are in the static TLS block (initial-exec model). Other architectures use the std facility.

use dormouse_abi::site::{EVENTS_SECTION, EventRecord};
use dormouse_abi::tag::TAG_COUNT_MAX;

/// Words of a thread.
///
/// | offset | word |
/// | ---: | --- |
/// | 0 | the ids below if the thread may write under rseq at once, or 0: take the slow path |
/// | 8 | thread id of the parent whose `vfork` is in progress, or 0 |
/// | 12 | nonzero: the tracer itself runs in this thread |
/// | 16 | `vpid` and `vtid` in the form that records carry ([`dormouse_abi::record::context_word`]), or 0: not known |
/// | 24 | start time in this thread of each duration that a trigger measures, or 0: not begun |
/// | 88 | the latest call of the program's handler for a crash signal: its stack address times 128, plus the signal; or 0: it has returned |
/// | 96 | values of the thread's tags |
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) context: core::cell::Cell<u64>,
    pub(crate) vfork_parent: core::cell::Cell<u32>,
    pub(crate) busy: core::cell::Cell<u32>,
    pub(crate) ids: core::cell::Cell<u64>,
    pub(crate) begun_ns: [core::cell::Cell<u64>; DURATION_COUNT_MAX],
    pub(crate) handler: core::cell::Cell<u64>,
    pub(crate) tags: [core::cell::Cell<u64>; TAG_COUNT_MAX],
}

/// Maximum number of durations that triggers may measure: each has two patterns.
pub(crate) const DURATION_COUNT_MAX: usize = dormouse_abi::trigger::PATTERN_COUNT_MAX / 2;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{RETURN_FROM_SIGNAL, set_alternate_stack, tls, tls_offset};

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{RETURN_FROM_SIGNAL, set_alternate_stack, tls, tls_offset};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod generic {
    use super::{DURATION_COUNT_MAX, TAG_COUNT_MAX, Tls};
    use core::cell::Cell;

    std::thread_local! {
        static TLS: Tls = const {
            Tls {
                context: Cell::new(0),
                vfork_parent: Cell::new(0),
                busy: Cell::new(0),
                ids: Cell::new(0),
                begun_ns: [const { Cell::new(0) }; DURATION_COUNT_MAX],
                handler: Cell::new(0),
                tags: [const { Cell::new(0) }; TAG_COUNT_MAX],
            }
        };
    }

    /// Returns the calling thread's words.
    pub(crate) fn tls() -> *const Tls {
        TLS.with(|tls| core::ptr::from_ref(tls))
    }
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use generic::tls;
/// Sets the calling thread's alternate stack. Does nothing while the thread runs on an alternate stack.
///
/// # Safety
/// `stack` is valid for sigaltstack(2): its memory is used by the calling thread alone.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) unsafe fn set_alternate_stack(stack: &libc::stack_t) {
    // SAFETY: the caller guarantees that the stack's memory is the calling thread's alone. On an alternate stack, the
    // kernel refuses.
    unsafe { libc::sigaltstack(stack, core::ptr::null_mut()) };
}
/// The kernel supplies its own return address.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) const RETURN_FROM_SIGNAL: Option<unsafe extern "C" fn()> = None;

dormouse_imv::__own_records!(own_records, EventRecord, "dormouse_events" = EVENTS_SECTION, "aR");
