//! ```text
//!   prefetch_to_read    bring the line of `at` into the cache
//!   prefetch_to_write   bring it into the cache, and take it from all other caches
//! ```
//! Both are hints: they change nothing that a program can see, and are ignored for an address that is not mapped (AMD64
//! Architecture Programmer's Manual, volume 3, PREFETCHlevel and PREFETCHW; Intel SDM, volume 2). CPUs that lack the
//! second one ignore it.

use core::arch::asm;

#[inline(always)]
pub(crate) fn prefetch_to_read(at: *const u8) {
    // SAFETY: a prefetch is a hint: it changes nothing that a program can see, and is ignored for an address that is
    // not mapped.
    unsafe { asm!("prefetcht0 byte ptr [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

#[inline(always)]
pub(crate) fn prefetch_to_write(at: *const u8) {
    // SAFETY: a prefetch is a hint: it changes nothing that a program can see, and is ignored for an address that is
    // not mapped.
    unsafe { asm!("prefetchw byte ptr [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}
