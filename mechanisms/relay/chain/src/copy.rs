//! Copying the bytes of a field into a page.
//!
//! # The problem
//! Most fields of records have 1, 2, 4 or 8 bytes. A call of `memcpy` costs more than copying them: it gets the length
//! as a variable, and chooses among many methods. A store of the right width is one instruction on a machine that
//! supports unaligned stores; for other machines the compiler makes smaller stores.
//!
//! | 1, 2, 4, 8 bytes | others up to 32 | beyond |
//! | --- | --- | --- |
//! | one store each | words, the last two overlapping | `memcpy`, inlined by the compiler where the length is a constant |
//!
//! # Cost
//! With a length that the compiler knows, a load and a store. Otherwise a jump by the length precedes them.
//!
//! # Source
//! Mathieu Desnoyers, Zhaolei and Lai Jiangshan, "LTTng optimize write to page function", 2009: single stores, 8 bytes on 32-bit machines
//! too.

/// Copies `len` bytes. Wait-free; async-signal-safe.
///
/// # Safety
/// The bytes may be read at `source` and written at `target`, and do not overlap.
#[inline(always)]
pub unsafe fn copy_bytes(target: *mut u8, source: *const u8, len: usize) {
    // Copies one word of type `T` at offset `$at`.
    macro_rules! word {
        ($type:ty, $at:expr) => {{
            // SAFETY: each arm reads only below `len`, which the caller guarantees to be readable.
            let word = unsafe { source.wrapping_add($at).cast::<$type>().read_unaligned() };
            // SAFETY: each arm writes only below `len`, which the caller guarantees to be writable.
            unsafe { target.wrapping_add($at).cast::<$type>().write_unaligned(word) };
        }};
    }
    match len {
        0 => {}
        1 => word!(u8, 0),
        2 => word!(u16, 0),
        3 => {
            word!(u16, 0);
            word!(u8, 2);
        }
        4 => word!(u32, 0),
        5..=7 => {
            word!(u32, 0);
            word!(u32, len - 4);
        }
        8 => word!(u64, 0),
        9..=16 => {
            word!(u64, 0);
            word!(u64, len - 8);
        }
        17..=32 => {
            word!(u64, 0);
            word!(u64, 8);
            word!(u64, len - 16);
            word!(u64, len - 8);
        }
        // SAFETY: the caller guarantees `len` readable and writable bytes that do not overlap.
        _ => unsafe { core::ptr::copy_nonoverlapping(source, target, len) },
    }
}
