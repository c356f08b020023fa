//! Code between a site and the direct section that writes its record. The module of each architecture has the macros
//! `call!` and `save_registers!`.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

use dormouse_abi::record::HEADER_SIZE_BYTES;
use dormouse_relay::Segment;

use crate::class::EventKey;
use crate::plan::FIRST_ENTRIES;
use crate::readers::RANDOM;
use crate::session::CURRENT_SECTIONS;
use crate::thread::RSEQ_OFFSET;
use crate::value::WORDS_MAX;

use super::super::slow::{record_runs_by_plan, record_runs_slowly, record_words_by_plan, record_words_slowly};

#[cfg(all(test, target_os = "linux"))]
mod interrupted;

/// Defines a section, in tests with its injection points.
macro_rules! define_record {
    ($(#[$meta:meta])* fn $name:ident($($options:tt)*)) => {
        #[cfg(not(all(test, target_os = "linux")))]
        dormouse_relay::define_record! { $(#[$meta])* fn $name($($options)*) }
        #[cfg(all(test, target_os = "linux"))]
        dormouse_relay::define_record! { $(#[$meta])* fn $name($($options)*; injected: interrupted::INJECTED) }
    };
}

macro_rules! define_records {
    ($(
        $name:ident $of_key:ident $planned:ident $compact:ident $fields:tt $arguments:tt => $slow:ident $by_plan:ident $other:ident
    ),* $(,)?) => {$(
        define_record! {
            /// Writes a record with these fields.
            ///
            /// # Safety
            /// The conditions of [`dormouse_relay::define_record`]. `CURRENT_SECTIONS` begins with the session in
            /// slot 0, and `Joining` guarantees the rest.
            fn $name(
                ids $fields $arguments, session: CURRENT_SECTIONS, rseq_offset: RSEQ_OFFSET, context: "dormouse_i_tls", slow: $planned
            )
        }
        define_record! {
            /// Writes a record for an event's key. The id may be that of the class with the fingerprint `which`, or of
            /// another class of the key.
            ///
            /// # Safety
            /// The conditions of the function above; `id` is an `EventKey`'s.
            fn $of_key(
                ids $fields $arguments, session: CURRENT_SECTIONS, rseq_offset: RSEQ_OFFSET, context: "dormouse_i_tls", slow: $planned, other: $other
            )
        }
        define_record! {
            /// First part of the slow path of both functions: writes a record of a class with a plan, or counts it as not
            /// recorded.
            ///
            /// # Safety
            /// The conditions of the first function.
            fn $planned(
                planned $fields $arguments, entries: FIRST_ENTRIES, random: RANDOM, rseq_offset: RSEQ_OFFSET, context: "dormouse_i_tls", slow: $by_plan, unplanned: $compact
            )
        }
        define_record! {
            /// Second part, for classes without a plan; in sessions with compact records it writes those.
            ///
            /// # Safety
            /// The conditions of the first function.
            fn $compact(
                compact $fields $arguments, session: CURRENT_SECTIONS, rseq_offset: RSEQ_OFFSET, context: "dormouse_i_tls", slow: $slow
            )
        }
    )*};
}

define_records!(
    record_0 record_key_0 record_planned_0 record_compact_0 0 []
        => save_registers_record_slowly save_registers_record_by_plan save_registers_record_other,
    record_1 record_key_1 record_planned_1 record_compact_1 1 [w0: u64]
        => save_registers_record_slowly save_registers_record_by_plan save_registers_record_other,
    record_2 record_key_2 record_planned_2 record_compact_2 2 [w0: u64, w1: u64]
        => save_registers_record_slowly save_registers_record_by_plan save_registers_record_other,
    record_3 record_key_3 record_planned_3 record_compact_3 3 [w0: u64, w1: u64, w2: u64]
        => save_registers_record_slowly save_registers_record_by_plan save_registers_record_other,
    record_n record_key_n record_planned_n record_compact_n runs [first: *const Segment, end: *const Segment]
        => save_registers_record_runs_slowly save_registers_record_runs_by_plan save_registers_record_runs_other,
);

save_registers!(
    save_registers_record_slowly => record_words_slowly, save_registers_record_by_plan => record_words_by_plan,
    save_registers_record_other => record_words_of_other, save_registers_record_runs_slowly => record_runs_slowly,
    save_registers_record_runs_by_plan => record_runs_by_plan, save_registers_record_runs_other => record_runs_of_other
);

/// Register value in place of the fingerprint, for functions without a key: undefined.
const NO_KEY: MaybeUninit<u64> = MaybeUninit::uninit();

/// Writes one record of the class whose id is at `id` into the sessions that the process is in. The fields are
/// the first `len` bytes of the words. `len` is at most 24, and should be known to the compiler.
///
/// Wait-free except for aborts; the page switch in between is lock-free. Async-signal-safe. Allocates nothing, locks
/// nothing, cannot fail: events without room are counted in the session's memory.
#[inline(always)]
pub fn record_words(id: &AtomicU32, len: usize, [w0, w1, w2]: [u64; WORDS_MAX]) {
    let (id, size_bytes) = (id.as_ptr(), HEADER_SIZE_BYTES + len);
    match len {
        // SAFETY: the id is a reference, the words hold the fields, and leaving a session waits for this code; the
        // changed registers are declared, and the stack is aligned for a call.
        0 => unsafe { call!(0 record_0, id, size_bytes, NO_KEY) },
        // SAFETY: the id is a reference, the words hold the fields, and leaving a session waits for this code; the
        // changed registers are declared, and the stack is aligned for a call.
        1..=8 => unsafe { call!(1 record_1, id, size_bytes, NO_KEY, w0) },
        // SAFETY: the id is a reference, the words hold the fields, and leaving a session waits for this code; the
        // changed registers are declared, and the stack is aligned for a call.
        9..=16 => unsafe { call!(2 record_2, id, size_bytes, NO_KEY, w0, w1) },
        // SAFETY: the id is a reference, the words hold the fields, and leaving a session waits for this code; the
        // changed registers are declared, and the stack is aligned for a call.
        _ => unsafe { call!(3 record_3, id, size_bytes, NO_KEY, w0, w1, w2) },
    }
}

/// Writes one record of the key's class with this fingerprint. See [`record_words`]. The called function selects the
/// class, so that a site has little code.
#[inline(always)]
pub fn record_words_of_key(key: &EventKey, fingerprint: u64, len: usize, [w0, w1, w2]: [u64; WORDS_MAX]) {
    let (id, size_bytes) = (key.first_id(), HEADER_SIZE_BYTES + len);
    match len {
        // SAFETY: the id is a key's, the words hold the fields, and leaving a session waits for this code; the changed
        // registers are declared, and the stack is aligned for a call.
        0 => unsafe { call!(0 record_key_0, id, size_bytes, fingerprint) },
        // SAFETY: the id is a key's, the words hold the fields, and leaving a session waits for this code; the changed
        // registers are declared, and the stack is aligned for a call.
        1..=8 => unsafe { call!(1 record_key_1, id, size_bytes, fingerprint, w0) },
        // SAFETY: the id is a key's, the words hold the fields, and leaving a session waits for this code; the changed
        // registers are declared, and the stack is aligned for a call.
        9..=16 => unsafe { call!(2 record_key_2, id, size_bytes, fingerprint, w0, w1) },
        // SAFETY: the id is a key's, the words hold the fields, and leaving a session waits for this code; the changed
        // registers are declared, and the stack is aligned for a call.
        _ => unsafe { call!(3 record_key_3, id, size_bytes, fingerprint, w0, w1, w2) },
    }
}

/// Returns the size, in bytes, of a record with context that has these fields.
#[inline(always)]
fn size_bytes(segments: &[Segment]) -> usize {
    let mut size_bytes = HEADER_SIZE_BYTES;
    for segment in segments {
        size_bytes += segment.len();
    }
    size_bytes
}

/// Writes one record like `record_words`, from fields in several runs.
///
/// # Safety
/// The segments' sources are readable.
#[inline(always)]
pub unsafe fn record_segments(id: &AtomicU32, segments: &[Segment]) {
    // SAFETY: the caller guarantees that the segments' sources are readable.
    unsafe { record_runs(id, size_bytes(segments), segments) }
}

/// Writes one record like `record_segments`, given its size in bytes.
///
/// # Safety
/// The segments' sources are readable.
#[inline(always)]
unsafe fn record_runs(id: &AtomicU32, size_bytes: usize, segments: &[Segment]) {
    let id = id.as_ptr();
    let core::ops::Range { start, end } = segments.as_ptr_range();
    // SAFETY: the id is a reference, the segments are a slice whose sources are readable by the caller's guarantee, and
    // leaving a session waits for this code; the changed registers are declared, and the stack is aligned for a call.
    unsafe { call!(runs record_n, id, size_bytes, NO_KEY, start, end) }
}

/// Writes one record of the key's class with this fingerprint, from fields in several runs.
///
/// # Safety
/// The segments' sources are readable.
#[inline(always)]
pub unsafe fn record_segments_of_key(key: &EventKey, fingerprint: u64, segments: &[Segment]) {
    let (id, size_bytes) = (key.first_id(), size_bytes(segments));
    let core::ops::Range { start, end } = segments.as_ptr_range();
    // SAFETY: the id is a key's, the segments are a slice whose sources are readable by the caller's guarantee, and
    // leaving a session waits for this code; the changed registers are declared, and the stack is aligned for a call.
    unsafe { call!(runs record_key_n, id, size_bytes, fingerprint, start, end) }
}

/// Writes a record of a class that is not the first of its key.
///
/// # Safety
/// `id` is the first id of an [`EventKey`], `which` is the fingerprint, and the words hold `size_bytes` less the
/// header.
#[cold]
unsafe extern "C" fn record_words_of_other(
    id: *const u32,
    size_bytes: usize,
    which: MaybeUninit<u64>,
    w0: u64,
    w1: u64,
    w2: u64,
) {
    // SAFETY: the caller guarantees that `id` is the first id of a key. Keys are static.
    let key = unsafe { EventKey::of_first_id(id) };
    // SAFETY: the caller guarantees that `which` is a fingerprint, so it is initialised.
    let which = unsafe { which.assume_init() };
    if let Some(id) = key.id(which) {
        record_words(id, size_bytes - HEADER_SIZE_BYTES, [w0, w1, w2]);
    }
}

/// Writes a record like [`record_words_of_other`], from the segments `first..end`.
///
/// # Safety
/// `id` is the first id of an [`EventKey`], `which` is the fingerprint, and the segments are an array whose sources are
/// readable.
#[cold]
unsafe extern "C" fn record_runs_of_other(
    id: *const u32,
    size_bytes: usize,
    which: MaybeUninit<u64>,
    first: *const Segment,
    end: *const Segment,
) {
    // SAFETY: the caller guarantees that `id` is the first id of a key. Keys are static.
    let key = unsafe { EventKey::of_first_id(id) };
    // SAFETY: the caller guarantees that `which` is a fingerprint, so it is initialised.
    let which = unsafe { which.assume_init() };
    // SAFETY: the caller guarantees that both point into one array; segments are not zero-sized.
    let count = unsafe { end.offset_from_unsigned(first) };
    // SAFETY: the caller guarantees that the segments are an array.
    let segments = unsafe { core::slice::from_raw_parts(first, count) };
    if let Some(id) = key.id(which) {
        // SAFETY: the caller guarantees that the segments' sources are readable.
        unsafe { record_runs(id, size_bytes, segments) };
    }
}
