//! A chain of instructions, each of which needs what the one before it came to.
//!
//! ```text
//!   adds        x ← x + y, LINKS times      a cycle each
//! ```
//! Agner Fog, Instruction tables: latency of ADD; Arm's software optimisation guides: of ADD.

use core::arch::asm;

/// Instructions of a chain.
pub(super) const LINKS: usize = 256;

pub(super) fn adds(mut x: u64, y: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes x and the flags alone.
    unsafe {
        asm!(".rept {n}", "add {x}, {y}", ".endr", x = inout(reg) x, y = in(reg) y, n = const LINKS,
            options(pure, nomem, nostack))
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: changes x and no flag.
    unsafe {
        asm!(".rept {n}", "add {x}, {x}, {y}", ".endr", x = inout(reg) x, y = in(reg) y, n = const LINKS,
            options(pure, nomem, nostack))
    };
    x
}
