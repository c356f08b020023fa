//! Hints to the cache, for which there is no Rust function.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{prefetch_to_read, prefetch_to_write};

/// No such hint is known for this architecture.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn prefetch_to_read(_at: *const u8) {}

/// No such hint is known for this architecture.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn prefetch_to_write(_at: *const u8) {}
