//! Ways to copy a field's bytes, where the compiler does not know how many there are.
//!
//! ```text
//!             1, 2, 4, 8 bytes                                          others
//!   Memcpy    memcpy                                                    memcpy
//!   Switch    a store of that size                                      memcpy
//!   Bytewise  a store where both ends are aligned, else byte by byte    memcpy
//!   Fallback  a store where both ends are aligned, else memcpy          memcpy
//!   Words     a store of that size                                      up to 32 words, which may overlap; then memcpy
//! ```
//! `Switch`, `Fallback` and `Bytewise` are those that the message of 2009 arrives at, the last two for machines without efficient unaligned
//! accesses. `Words` is the chain's own.

/// A way to copy.
pub trait Copying: 'static {
    /// # Safety
    /// `len` bytes may be read at `source` and written at `target`, and do not overlap.
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize);
}

pub struct Memcpy;
pub struct Switch;
pub struct Bytewise;
pub struct Fallback;
pub struct Words;

/// A load and a store of a type.
///
/// # Safety
/// As [`Copying::copy`], of the type's size.
#[inline(always)]
unsafe fn word<T>(target: *mut u8, source: *const u8) {
    // SAFETY: so many bytes are readable, by the caller's word.
    let word = unsafe { source.cast::<T>().read_unaligned() };
    // SAFETY: and writable.
    unsafe { target.cast::<T>().write_unaligned(word) }
}

/// Whether a store of so many bytes, a power of two, is aligned at both ends.
#[inline(always)]
fn is_aligned(target: *mut u8, source: *const u8, len: usize) -> bool {
    (target.addr() | source.addr()) & len.wrapping_sub(1) == 0
}

impl Copying for Memcpy {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the caller's word.
        unsafe { source.copy_to_nonoverlapping(target, len) }
    }
}

impl Copying for Switch {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        match len {
            // SAFETY: one byte, by the caller's word.
            1 => unsafe { word::<u8>(target, source) },
            // SAFETY: two bytes, likewise.
            2 => unsafe { word::<u16>(target, source) },
            // SAFETY: four bytes, likewise.
            4 => unsafe { word::<u32>(target, source) },
            // SAFETY: eight bytes, likewise.
            8 => unsafe { word::<u64>(target, source) },
            // SAFETY: handed on to the caller.
            _ => unsafe { Memcpy::copy(target, source, len) },
        }
    }
}

impl Copying for Bytewise {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        if !matches!(len, 2 | 4 | 8) || is_aligned(target, source, len) {
            // SAFETY: handed on to the caller.
            return unsafe { Switch::copy(target, source, len) };
        }
        for at in 0..len {
            // SAFETY: below `len`, so readable by the caller's word.
            let byte = unsafe { source.wrapping_add(at).read() };
            // Volatile: the compiler would make a call of memcpy of the loop.
            // SAFETY: below `len`, so writable by the caller's word.
            unsafe { target.wrapping_add(at).write_volatile(byte) };
        }
    }
}

impl Copying for Fallback {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        if !matches!(len, 2 | 4 | 8) || is_aligned(target, source, len) {
            // SAFETY: handed on to the caller.
            return unsafe { Switch::copy(target, source, len) };
        }
        // SAFETY: handed on to the caller.
        unsafe { Memcpy::copy(target, source, len) }
    }
}

impl Copying for Words {
    #[inline(always)]
    unsafe fn copy(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: handed on to the caller.
        unsafe { dormouse_relay_chain::copy_bytes(target, source, len) }
    }
}
