//! ```text
//!   adds        x ← x + y, LINKS times      a cycle each
//!   products    x ← x · y, LINKS times      three cycles each, or more
//! ```
//! Arm's software optimisation guides: latencies of ADD and MUL.

use core::arch::asm;

use super::LINKS;

pub(in crate::probes) fn adds(mut x: u64, y: u64) -> u64 {
    // SAFETY: adds registers.
    unsafe {
        asm!(".rept {links}", "add {x}, {x}, {y}", ".endr", x = inout(reg) x, y = in(reg) y, links = const LINKS, options(pure, nomem, nostack))
    };
    x
}

pub(in crate::probes) fn products(mut x: u64, y: u64) -> u64 {
    // SAFETY: multiplies registers.
    unsafe {
        asm!(".rept {links}", "mul {x}, {x}, {y}", ".endr", x = inout(reg) x, y = in(reg) y, links = const LINKS, options(pure, nomem, nostack))
    };
    x
}
