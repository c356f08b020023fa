//! Cache hints for which there is no Rust function.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{prefetch_to_read, prefetch_to_write};

/// Does nothing: this architecture has no known hint.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn prefetch_to_read(_at: *const u8) {}

/// Does nothing: this architecture has no known hint.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn prefetch_to_write(_at: *const u8) {}
