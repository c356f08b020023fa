//! Building blocks of loops for engines in Rust.

use core::arch::asm;

/// Hides a value from the compiler, like `LAB_OPAQUE` in the engines in C, without an instruction. (`black_box` stores
/// the value, so loops of Rust engines would not compare.)
#[inline(always)]
pub fn opaque(mut number: u64) -> u64 {
    // SAFETY: the assembly has no instruction.
    unsafe { asm!("/* {} */", inout(reg) number, options(nostack, preserves_flags)) };
    number
}

/// Aligns the code that follows to a cache line: an empty loop takes twice as long if it is split over two lines.
#[inline(always)]
pub fn align() {
    // SAFETY: the padding consists of no-ops, if any.
    unsafe { asm!(".balign 64", options(nomem, nostack, preserves_flags)) };
}

/// Moves the code that follows by a number of bytes, which are no-ops: what a CPU makes of a loop depends on its place.
#[inline(always)]
pub fn pad<const BYTES: usize>() {
    // SAFETY: no-ops.
    unsafe { asm!(".skip {bytes}, 0x90", bytes = const BYTES, options(nomem, nostack, preserves_flags)) };
}

/// Defines a [`Loop`](crate::Loop) over a body that gets a number. The body is repeated eight times in a row, so that
/// the loop's alignment hardly matters and a body that costs a fraction of a cycle shows. The loop starts at or near a
/// cache line. The number is the same for all eight, so that the compiler cannot turn it into a chain of eight
/// additions, which would take eight cycles in some loops and not in others.
#[macro_export]
macro_rules! repeat {
    ($name:ident, $number:ident => $body:expr) => {
        extern "C" fn $name(iterations: u64, first: u64) {
            #[inline(always)]
            fn body($number: u64) {
                let $number = $crate::opaque($number);
                $body;
                let _ = $number;
            }
            let end = first.wrapping_add(iterations);
            let mut number = first;
            $crate::align();
            while end.wrapping_sub(number) >= 8 {
                body(number);
                body(number);
                body(number);
                body(number);
                body(number);
                body(number);
                body(number);
                body(number);
                number += 8;
            }
            while number != end {
                body(number);
                number += 1;
            }
        }
    };
}

/// Calls `count` functions in turn, in an order in which neighbours are far apart.
#[inline(always)]
pub fn scattered(functions: &[extern "C" fn(u64)], count: u64, iterations: u64, first: u64) {
    // Coprime to 10 and 1,000; steps over the lines that a prefetcher would also fetch.
    const STRIDE: u64 = 377;
    for number in first..first.wrapping_add(iterations) {
        let number = opaque(number);
        functions[(number.wrapping_mul(STRIDE) % count) as usize](number);
    }
}
