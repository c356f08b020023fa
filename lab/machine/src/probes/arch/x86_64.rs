//! ```text
//!   adds        x ← x + y, LINKS times      a cycle each on all processors of this architecture
//!   products    x ← x · y, LINKS times      three cycles each, on most
//! ```
//! Agner Fog, Instruction tables: latencies of ADD and IMUL, register to register.

use core::arch::asm;

use super::LINKS;

pub(in crate::probes) fn adds(mut x: u64, y: u64) -> u64 {
    // SAFETY: adds registers.
    unsafe {
        asm!(".rept {links}", "add {x}, {y}", ".endr", x = inout(reg) x, y = in(reg) y, links = const LINKS, options(pure, nomem, nostack))
    };
    x
}

pub(in crate::probes) fn products(mut x: u64, y: u64) -> u64 {
    // SAFETY: multiplies registers.
    unsafe {
        asm!(".rept {links}", "imul {x}, {y}", ".endr", x = inout(reg) x, y = in(reg) y, links = const LINKS, options(pure, nomem, nostack))
    };
    x
}
