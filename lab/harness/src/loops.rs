//! What loops of engines in Rust are written with.

use core::arch::asm;

/// A value that the compiler must not know: `LAB_OPAQUE` of the engines in C, at the same cost of no instruction. (`black_box`
/// stores it, so that an engine in Rust would have another loop to be compared with.)
#[inline(always)]
pub fn opaque(mut number: u64) -> u64 {
    // SAFETY: no instruction.
    unsafe { asm!("/* {} */", inout(reg) number, options(nostack, preserves_flags)) };
    number
}

/// Has the code that follows start where a cache line does: an empty loop takes twice as long when it lies in two of them.
#[inline(always)]
pub fn align() {
    // SAFETY: instructions that do nothing, where there are any.
    unsafe { asm!(".balign 64", options(nomem, nostack, preserves_flags)) };
}

/// Defines a [`Loop`](crate::Loop) over a body that is given a number, eight times in a row: then it hardly matters how the linker has
/// aligned the loop, and a body that costs a fraction of a cycle shows. It starts where a cache line does, or nearly. The number is the same for all eight, so that no compiler
/// makes a chain of eight additions of it, which would take eight cycles of its own, in some loops and not in others.
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

/// Calls one of `count` functions after the other, far apart from each other.
#[inline(always)]
pub fn scattered(functions: &[extern "C" fn(u64)], count: u64, iterations: u64, first: u64) {
    // Coprime to 10 and 1,000; steps over the lines that a prefetcher would bring along.
    const STRIDE: u64 = 377;
    for number in first..first.wrapping_add(iterations) {
        let number = opaque(number);
        functions[(number.wrapping_mul(STRIDE) % count) as usize](number);
    }
}
