//! Ways to copy a field's bytes whose number the compiler does not know.
//!
//! ```text
//!             1, 2, 4, 8 bytes                                          others
//!   Memcpy    memcpy                                                    memcpy
//!   Switch    a store of that size                                      memcpy
//!   Bytewise  a store where both ends are aligned, else byte by byte    memcpy
//!   Fallback  a store where both ends are aligned, else memcpy          memcpy
//!   Words     a store of that size                                      up to 32 words, which may overlap; beyond that memcpy
//! ```
//! `Switch`, `Fallback` and `Bytewise` are the ways that the message of 2009 arrives at, the last two for machines
//! without efficient unaligned accesses. `Words` is the chain's own way.

/// A way of copying bytes.
pub trait Copying: 'static {
    /// # Safety
    /// `len` bytes must be readable at `source` and writable at `target`, and must not overlap.
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize);
}

pub struct Memcpy;
pub struct Switch;
pub struct Bytewise;
pub struct Fallback;
pub struct Words;

/// Copies a value of a type by a load and a store.
///
/// # Safety
/// The type's size in bytes must be readable at `source` and writable at `target`, and must not overlap.
#[inline(always)]
unsafe fn word<T>(target: *mut u8, source: *const u8) {
    // SAFETY: the type's size in bytes is readable at `source`, as the caller guarantees.
    let word = unsafe { source.cast::<T>().read_unaligned() };
    // SAFETY: the type's size in bytes is writable at `target`, as the caller guarantees.
    unsafe { target.cast::<T>().write_unaligned(word) }
}

/// Whether a store of `len` bytes, a power of two, is aligned at both ends.
#[inline(always)]
fn is_aligned(target: *mut u8, source: *const u8, len: usize) -> bool {
    (target.addr() | source.addr()) & len.wrapping_sub(1) == 0
}

impl Copying for Memcpy {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: `len` bytes are readable at `source`, writable at `target`, and do not overlap, as the caller
        // guarantees.
        unsafe { source.copy_to_nonoverlapping(target, len) }
    }
}

impl Copying for Switch {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        match len {
            // SAFETY: `len`, 1 byte, is readable and writable without overlap, as the caller guarantees.
            1 => unsafe { word::<u8>(target, source) },
            // SAFETY: `len`, 2 bytes, are readable and writable without overlap, as the caller guarantees.
            2 => unsafe { word::<u16>(target, source) },
            // SAFETY: `len`, 4 bytes, are readable and writable without overlap, as the caller guarantees.
            4 => unsafe { word::<u32>(target, source) },
            // SAFETY: `len`, 8 bytes, are readable and writable without overlap, as the caller guarantees.
            8 => unsafe { word::<u64>(target, source) },
            // SAFETY: `len` bytes are readable and writable without overlap, as the caller guarantees.
            _ => unsafe { Memcpy::copy(target, source, len) },
        }
    }
}

impl Copying for Bytewise {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        if !matches!(len, 2 | 4 | 8) || is_aligned(target, source, len) {
            // SAFETY: `len` bytes are readable and writable without overlap, as the caller guarantees.
            return unsafe { Switch::copy(target, source, len) };
        }
        for at in 0..len {
            // SAFETY: `at` is below `len`, and `len` bytes are readable at `source`, as the caller guarantees.
            let byte = unsafe { source.wrapping_add(at).read() };
            // Volatile, because the compiler would replace the loop by a call of memcpy.
            // SAFETY: `at` is below `len`, and `len` bytes are writable at `target`, as the caller guarantees.
            unsafe { target.wrapping_add(at).write_volatile(byte) };
        }
    }
}

impl Copying for Fallback {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        if !matches!(len, 2 | 4 | 8) || is_aligned(target, source, len) {
            // SAFETY: `len` bytes are readable and writable without overlap, as the caller guarantees.
            return unsafe { Switch::copy(target, source, len) };
        }
        // SAFETY: `len` bytes are readable and writable without overlap, as the caller guarantees.
        unsafe { Memcpy::copy(target, source, len) }
    }
}

impl Copying for Words {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: `len` bytes are readable and writable without overlap, as the caller guarantees.
        unsafe { dormouse_relay_chain::copy_bytes(target, source, len) }
    }
}
