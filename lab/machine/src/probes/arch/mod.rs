//! Chains of instructions, each of which needs what the one before it came to.
//!
//! ```text
//!   adds        x ← x + y, LINKS times      a cycle each
//!   products    x ← x · y, LINKS times      three cycles each, or more
//! ```
//! Agner Fog, Instruction tables: latencies of ADD and IMUL; Arm's software optimisation guides: of ADD and MUL.

/// Instructions of a chain.
pub(super) const LINKS: usize = 256;

macro_rules! chain {
    ($name:ident, $x86_64:literal, $aarch64:literal) => {
        pub(super) fn $name(mut x: u64, y: u64) -> u64 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: changes x and the flags alone.
            unsafe {
                core::arch::asm!(".rept {links}", $x86_64, ".endr", x = inout(reg) x, y = in(reg) y, links = const LINKS, options(pure, nomem, nostack))
            };
            #[cfg(target_arch = "aarch64")]
            // SAFETY: changes x alone.
            unsafe {
                core::arch::asm!(".rept {links}", $aarch64, ".endr", x = inout(reg) x, y = in(reg) y, links = const LINKS, options(pure, nomem, nostack))
            };
            x
        }
    };
}

chain!(adds, "add {x}, {y}", "add {x}, {x}, {y}");
#[cfg(test)]
chain!(products, "imul {x}, {y}", "mul {x}, {x}, {y}");
