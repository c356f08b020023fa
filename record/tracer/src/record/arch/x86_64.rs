//! x86-64: code between a site and the direct section that writes its record.

use core::arch::{asm, naked_asm};
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

use dormouse_abi::record::HEADER_SIZE_BYTES;
use dormouse_relay::Segment;

use crate::class::EventKey;
use crate::session::CURRENT_SECTION;
use crate::thread::RSEQ_OFFSET;
use crate::value::WORDS_MAX;

use super::super::slow::{record_runs_slowly, record_words_slowly};

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
    ($($name:ident $of_key:ident $compact:ident $fields:tt $arguments:tt => $slow:ident $other:ident),* $(,)?) => {$(
        define_record! {
            /// Writes a record with these fields.
            ///
            /// # Safety
            /// The conditions of [`dormouse_relay::define_record`]. `CURRENT_SECTION` is the session that the process
            /// is in, and `Joining` guarantees the rest.
            fn $name(
                ids $fields $arguments, session: CURRENT_SECTION, rseq_offset: RSEQ_OFFSET, context: "dormouse_i_tls", slow: $compact
            )
        }
        define_record! {
            /// Writes a record for an event's key. The id may be that of the class with the fingerprint `which`, or of
            /// another class of the key.
            ///
            /// # Safety
            /// The conditions of the function above; `id` is an `EventKey`'s.
            fn $of_key(
                ids $fields $arguments, session: CURRENT_SECTION, rseq_offset: RSEQ_OFFSET, context: "dormouse_i_tls", slow: $compact, other: $other
            )
        }
        define_record! {
            /// First part of the slow path of both functions; in sessions with compact records it writes those.
            ///
            /// # Safety
            /// The conditions of the first function.
            fn $compact(
                compact $fields $arguments, session: CURRENT_SECTION, rseq_offset: RSEQ_OFFSET, context: "dormouse_i_tls", slow: $slow
            )
        }
    )*};
}

define_records!(
    record_0 record_key_0 record_compact_0 0 [] => save_registers_record_slowly save_registers_record_other,
    record_1 record_key_1 record_compact_1 1 [w0: u64] => save_registers_record_slowly save_registers_record_other,
    record_2 record_key_2 record_compact_2 2 [w0: u64, w1: u64] => save_registers_record_slowly save_registers_record_other,
    record_3 record_key_3 record_compact_3 3 [w0: u64, w1: u64, w2: u64]
        => save_registers_record_slowly save_registers_record_other,
    record_n record_key_n record_compact_n runs [first: *const Segment, end: *const Segment]
        => save_registers_record_runs_slowly save_registers_record_runs_other,
);

macro_rules! save_registers {
    ($($name:ident => $function:path),*) => {$(
        /// Calls a slow path in ordinary code with the sites' calling convention.
        ///
        /// ```text
        ///   save_registers_…:
        ///       push rcx, rsi, rdi, r8, r9          the general registers that a C function may change, except
        ///       align the stack                     rax, rdx, r10, r11
        ///       call …
        ///       pop them
        /// ```
        /// The compiler does not always align the stack for the site's call: if only another path of the site's
        /// function has a frame, it sets up the frame on that path alone.
        ///
        /// # Safety
        /// The conditions of the called function.
        #[unsafe(naked)]
        unsafe extern "C" fn $name(
            id: *const u32,
            size_bytes: usize,
            which: MaybeUninit<u64>,
            field0: u64,
            field1: u64,
            field2: u64,
        ) {
            naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "push rcx",
                "push rsi",
                "push rdi",
                "push r8",
                "push r9",
                "and rsp, -16",
                "call {function}",
                "lea rsp, [rbp - 40]",
                "pop r9",
                "pop r8",
                "pop rdi",
                "pop rsi",
                "pop rcx",
                "pop rbp",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                function = sym $function,
            )
        }
    )*};
}

save_registers!(
    save_registers_record_slowly => record_words_slowly, save_registers_record_other => record_words_of_other,
    save_registers_record_runs_slowly => record_runs_slowly, save_registers_record_runs_other => record_runs_of_other
);

/// Calls a record function. It preserves the general registers, so that a dormant site does not make its function save
/// any.
#[cfg(not(target_feature = "avx512f"))]
macro_rules! call {
    ($first:tt $record:path, $id:expr, $size:expr, $which:expr $(, $register:tt = $word:expr)*) => {
        call_clobbering!($first $record, $id, $size, $which $(, $register = $word)*;)
    };
}

/// Like the macro above; with AVX-512 there are more registers.
#[cfg(target_feature = "avx512f")]
macro_rules! call {
    ($first:tt $record:path, $id:expr, $size:expr, $which:expr $(, $register:tt = $word:expr)*) => {
        call_clobbering!(
            $first $record, $id, $size, $which $(, $register = $word)*;
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _, out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _, out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _, out("k6") _, out("k7") _
        )
    };
}

macro_rules! call_clobbering {
    // The first group lists further registers that this function changes.
    ([$($first:tt)*] $record:path, $id:expr, $size:expr, $which:expr $(, $register:tt = $word:expr)*; $($more:tt)*) => {
        asm!(
            "call {record}",
            record = sym $record,
            in("rdi") $id,
            in("rsi") $size,
            $(in($register) $word,)*
            inout("rdx") $which => _,
            $($first)*
            out("rax") _, out("r10") _, out("r11") _,
            // The slow path is ordinary code, which may change all of these.
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
            out("xmm14") _, out("xmm15") _, out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            $($more)*
        )
    };
}

/// Register value in place of the fingerprint, for functions without a key: undefined.
const NO_KEY: MaybeUninit<u64> = MaybeUninit::uninit();

/// Writes one record of the class whose id is at `id` into the session that the process is in, if any. The fields are
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
        0 => unsafe { call!([out("r9") _,] record_0, id, size_bytes, NO_KEY) },
        // SAFETY: the id is a reference, the words hold the fields, and leaving a session waits for this code; the
        // changed registers are declared, and the stack is aligned for a call.
        1..=8 => unsafe { call!([out("r9") _,] record_1, id, size_bytes, NO_KEY, "rcx" = w0) },
        // SAFETY: the id is a reference, the words hold the fields, and leaving a session waits for this code; the
        // changed registers are declared, and the stack is aligned for a call.
        9..=16 => unsafe { call!([out("r9") _,] record_2, id, size_bytes, NO_KEY, "rcx" = w0, "r8" = w1) },
        // SAFETY: the id is a reference, the words hold the fields, and leaving a session waits for this code; the
        // changed registers are declared, and the stack is aligned for a call.
        _ => unsafe { call!([] record_3, id, size_bytes, NO_KEY, "rcx" = w0, "r8" = w1, "r9" = w2) },
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
        0 => unsafe { call!([out("r9") _,] record_key_0, id, size_bytes, fingerprint) },
        // SAFETY: the id is a key's, the words hold the fields, and leaving a session waits for this code; the changed
        // registers are declared, and the stack is aligned for a call.
        1..=8 => unsafe { call!([out("r9") _,] record_key_1, id, size_bytes, fingerprint, "rcx" = w0) },
        // SAFETY: the id is a key's, the words hold the fields, and leaving a session waits for this code; the changed
        // registers are declared, and the stack is aligned for a call.
        9..=16 => unsafe { call!([out("r9") _,] record_key_2, id, size_bytes, fingerprint, "rcx" = w0, "r8" = w1) },
        // SAFETY: the id is a key's, the words hold the fields, and leaving a session waits for this code; the changed
        // registers are declared, and the stack is aligned for a call.
        _ => unsafe { call!([] record_key_3, id, size_bytes, fingerprint, "rcx" = w0, "r8" = w1, "r9" = w2) },
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
    unsafe { call!([out("r9") _,] record_n, id, size_bytes, NO_KEY, "rcx" = start, "r8" = end) }
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
    unsafe { call!([out("r9") _,] record_key_n, id, size_bytes, fingerprint, "rcx" = start, "r8" = end) }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the stack pointer, modulo 16, at the beginning of a function.
    #[unsafe(naked)]
    unsafe extern "C" fn misalignment() -> u64 {
        naked_asm!("mov rax, rsp", "and rax, 15", "ret")
    }

    save_registers!(save_registers_misalignment => misalignment);

    #[test]
    fn the_slow_path_has_an_aligned_stack_wherever_the_site_s_is() {
        for shift in [0u64, 8] {
            let found: u64;
            // SAFETY: calls a function that changes rax and preserves other registers; the stack pointer is restored at
            // the end.
            unsafe {
                asm!(
                    "sub rsp, {shift}",
                    "call {function}",
                    "add rsp, {shift}",
                    shift = in(reg) shift,
                    function = sym save_registers_misalignment,
                    out("rax") found,
                    clobber_abi("C"),
                );
            }
            // The return address was pushed last.
            assert_eq!(found, 8, "shifted by {shift}");
        }
    }
}
