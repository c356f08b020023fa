//! Ways to copy the bytes of a field into a page.
//!
//! # The problem
//! Most fields of records have 1, 2, 4 or 8 bytes. A call of `memcpy` costs more than copying them: the length is a variable
//! for it, and it chooses among many methods. A store of the right width is one instruction, on a machine that supports unaligned
//! stores.
//!
//! | type | 1, 2, 4, 8 bytes | others up to 32 | beyond |
//! | --- | --- | --- | --- |
//! | [`Specialised`] | one store each | words, the last two overlapping | `memcpy`, inlined by the compiler where the length is a constant |
//! | [`Aligned`] | one store if both addresses are aligned, else byte by byte | below 8 byte by byte, else `memcpy` | `memcpy` |
//! | [`Memcpy`] | `memcpy`, called | `memcpy`, called | `memcpy`, called |
//!
//! [`Native`] is the best one for the machine that the program is compiled for. Each works on every machine.
//!
//! # Cost
//! With a length that the compiler knows, [`Specialised`] is a load and a store. With another length, a jump by the
//! length comes before that.
//!
//! # Source
//! Mathieu Desnoyers, Zhaolei and Lai Jiangshan, "LTTng optimize write to page function", 2009: single stores, 8 bytes on 32-bit machines
//! too, and the fallback that tests alignment and copies byte by byte.

/// A way to copy bytes. Wait-free; async-signal-safe.
pub trait CopyBytes {
    /// Copies `len` bytes.
    ///
    /// # Safety
    /// They may be read at `source` and written at `target`, and do not overlap.
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize);
}

/// Single stores for 1, 2, 4 and 8 bytes, words up to 32, and `memcpy` beyond. For machines that support unaligned access.
#[derive(Debug, Clone, Copy)]
pub struct Specialised;

/// As Desnoyers (2009) has it for machines where unaligned access is slow or forbidden: single stores where both addresses are aligned, byte by
/// byte where they are not, `memcpy` for what is longer than 8 bytes.
#[derive(Debug, Clone, Copy)]
pub struct Aligned;

/// Always a call of `memcpy`.
#[derive(Debug, Clone, Copy)]
pub struct Memcpy;

/// The best method for this machine.
#[cfg(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64"))]
pub type Native = Specialised;
/// The best method for this machine.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
pub type Native = Aligned;

impl CopyBytes for Specialised {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        // One word of type `T` that begins `$at` bytes on.
        macro_rules! word {
            ($type:ty, $at:expr) => {{
                // SAFETY: each arm reads below `len` alone, which is readable by the caller's word.
                let word = unsafe { source.wrapping_add($at).cast::<$type>().read_unaligned() };
                // SAFETY: likewise writable.
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
            // SAFETY: handed on to the caller.
            _ => unsafe { core::ptr::copy_nonoverlapping(source, target, len) },
        }
    }
}

impl CopyBytes for Aligned {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        macro_rules! word {
            ($type:ty) => {{
                // SAFETY: aligned, and `len` bytes are readable by the caller's word.
                let word = unsafe { source.cast::<$type>().read() };
                // SAFETY: likewise writable.
                unsafe { target.cast::<$type>().write(word) };
            }};
        }
        match len {
            2 if are_aligned(target, source, 2) => word!(u16),
            4 if are_aligned(target, source, 4) => word!(u32),
            // A 32-bit machine requires no more alignment than 4, and then the word is two of 4.
            8 if are_aligned(target, source, 8) && align_of::<u64>() == 8 => word!(u64),
            8 if are_aligned(target, source, 8) => word!([u32; 2]),
            0..=8 => {
                for index in 0..len {
                    // SAFETY: below `len`, which is readable by the caller's word.
                    let byte = unsafe { source.wrapping_add(index).read() };
                    // SAFETY: likewise writable. Volatile, or the compiler would make a call of `memcpy` of the loop.
                    unsafe { target.wrapping_add(index).write_volatile(byte) };
                }
            }
            // SAFETY: handed on to the caller.
            _ => unsafe { core::ptr::copy_nonoverlapping(source, target, len) },
        }
    }
}

/// Whether both addresses are multiples of `len`, or of a machine word if that is less.
#[inline(always)]
fn are_aligned(target: *const u8, source: *const u8, len: usize) -> bool {
    let mask = len.min(size_of::<usize>()) - 1;
    (target.addr() | source.addr()) & mask == 0
}

/// `memcpy` as compilers do it: a call, in a function that is neither generic nor inlined, so that the length is not known.
pub(crate) struct Plain;

impl CopyBytes for Plain {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: handed on to the caller.
        unsafe { core::ptr::copy_nonoverlapping(source, target, len) }
    }
}

impl CopyBytes for Memcpy {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: handed on to the caller.
        unsafe { memcpy_called(target, source, len) }
    }
}

/// Not inlined, and visible to other crates, so that no compiler can know the length in it.
#[inline(never)]
pub(crate) unsafe fn memcpy_called(target: *mut u8, source: *const u8, len: usize) {
    // SAFETY: handed on to the caller.
    unsafe { core::ptr::copy_nonoverlapping(source, target, len) }
}
