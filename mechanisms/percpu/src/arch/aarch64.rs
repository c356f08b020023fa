//! Critical sections for aarch64 Linux.
//!
//! Differences from x86-64:
//!
//! * A thread's rseq structure is found relative to `tpidr_el0`, at the distance in libc's `__rseq_offset`.
//! * The signature is an instruction, `brk #0x45e0` (0xd428bc00 in code, which is little-endian even where data is
//!   not). It is emitted inline, because a conditional branch may not reach into another section of the program.
//! * Other CPUs may see stores in a different order. So a final store that makes plain stores reachable is a release
//!   (`stlr`), which pairs with the acquire by which readers load the word. On the CPU itself program order is enough:
//!   between two threads on it the kernel switches, which is a full barrier.

use core::arch::asm;

use dormouse_abi::rseq::OFFSET_RSEQ_CS;

use super::Outcome;
use super::handle::Handle;
use crate::node::Node;

/// Signature before every abort handler, as an instruction.
const SIGNATURE_CODE: u32 = 0xd428_bc00;

/// Signature as the kernel reads it, which is as data.
pub(crate) const SIGNATURE: u32 = u32::from_ne_bytes(SIGNATURE_CODE.to_le_bytes());

/// Returns the distance of this crate's block from the thread pointer, in bytes; it is equal in all threads.
pub(crate) fn own_offset() -> isize {
    let offset: isize;
    // SAFETY: reads a constant that the linker or the loader has made; TLS ABI for AArch64, initial-exec model.
    unsafe {
        asm!(
            "adrp {offset}, :gottprel:dormouse_i_rseq",
            "ldr {offset}, [{offset}, :gottprel_lo12:dormouse_i_rseq]",
            offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    offset
}

/// Returns the thread pointer, to which the offsets of thread-local objects are relative.
#[inline]
pub(crate) fn thread_pointer() -> *mut u8 {
    let pointer: *mut u8;
    // SAFETY: reads the thread pointer register.
    unsafe {
        asm!("mrs {pointer}, tpidr_el0", pointer = out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer
}

#[cfg(test)]
macro_rules! inject {
    ($point:literal) => {
        concat!(
            "adrp {delay}, {delays}\n",
            "add {delay}, {delay}, :lo12:{delays}\n",
            "ldr {delay}, [{delay}, 8 * ",
            $point,
            "]\n",
            "cbz {delay}, 23f\n",
            "22:\n",
            "sub {delay}, {delay}, 1\n",
            "cbnz {delay}, 22b\n",
            "23:\n",
        )
    };
}

/// Wraps a body as the documentation of `sections!` says; the abort handler is inline.
macro_rules! critical_section {
    ({ $($body:expr,)+ } [$($store:literal)?] $handle:ident, $cpu:expr, $($operands:tt)+) => {{
        let outcome: u32;
        asm!(
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "3:",
            ".word 0, 0",
            ".xword 4f, 5f - 4f, 6f",
            ".popsection",
            "mov {outcome:w}, 0",
            "mrs {area}, tpidr_el0",
            "add {area}, {area}, {offset}",
            "adrp {a}, 3b",
            "add {a}, {a}, :lo12:3b",
            "str {a}, [{area}, {rseq_cs}]",
            "4:",
            inject!(1),
            "ldr {a:w}, [{area}, {cpu_id}]",
            "cmp {a:w}, {cpu:w}",
            "b.ne 7f",
            inject!(2),
            $($body,)+
            $($store,)?
            "5:",
            "str xzr, [{area}, {rseq_cs}]",
            "b 9f",
            ".inst {signature}",
            "6:",
            "mov {outcome:w}, 3",
            "b 5b",
            "7:",
            "mov {outcome:w}, 2",
            "b 5b",
            "8:",
            "mov {outcome:w}, 1",
            "b 5b",
            "9:",
            offset = in(reg) $handle.offset,
            cpu = in(reg) $cpu,
            outcome = out(reg) outcome,
            area = out(reg) _,
            a = out(reg) _,
            rseq_cs = const OFFSET_RSEQ_CS,
            cpu_id = const INDEX,
            signature = const SIGNATURE_CODE,
            $($operands)+
        );
        Outcome::of(outcome)
    }};
}

impl<const INDEX: usize> Handle<INDEX> {
    /// Returns the word at byte `FIELD` of the calling thread's rseq structure.
    #[inline]
    fn word<const FIELD: usize>(self) -> u32 {
        let word: *const u32 = thread_pointer().wrapping_offset(self.offset).wrapping_add(FIELD).cast();
        // SAFETY: four bytes of the calling thread's rseq structure, which `new`'s caller guarantees to be at `offset`;
        // the kernel changes the word, hence volatile.
        unsafe { word.read_volatile() }
    }

    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        let field: *const u64 = thread_pointer().wrapping_offset(self.offset).wrapping_add(OFFSET_RSEQ_CS).cast();
        // SAFETY: eight bytes of the calling thread's rseq structure, which `new`'s caller guarantees to be at
        // `offset`; the kernel changes the word, hence volatile.
        unsafe { field.read_volatile() }
    }
}

sections! {
    rseq_load_cbne_stores_store {
        "ldp {a}, {b}, [{txn}]",
        "ldr {a}, [{a}]",
        "cmp {a}, {b}",
        "b.ne 8f",
        inject!(3),
        "ldr {count}, [{txn}, 40]",
        "add {store}, {txn}, 48",
        "b 29f",
        "24:",
        "ldp {a}, {b}, [{store}]",
        "ldr {width}, [{store}, 16]",
        "cmp {width}, 4",
        "b.eq 26f",
        "b.lo 25f",
        "str {b}, [{a}]",
        "b 28f",
        "25:",
        "strh {b:w}, [{a}]",
        "b 28f",
        "26:",
        "str {b:w}, [{a}]",
        "28:",
        inject!(4),
        "add {store}, {store}, 24",
        "sub {count}, {count}, 1",
        "29:",
        "cbnz {count}, 24b",
        "ldp {a}, {b}, [{txn}, 16]",
        inject!(5),
    } then match width {
        // (A) pairs with the acquire by which readers load the final word.
        8 => "stlr {b}, [{a}]",
        4 => "stlr {b:w}, [{a}]",
        _ => "stlrh {b:w}, [{a}]",
    }
    rseq_load_add_store {
        "ldr {a}, [{target}]",
        inject!(3),
        "add {a}, {a}, {n}",
        inject!(5),
        "str {a}, [{target}]",
    }
    rseq_load {
        inject!(5),
        "ldr {word}, [{target}]",
    }
    rseq_store {
        inject!(5),
        // (A) pairs with the acquire by which readers load the final word.
        "stlr {value}, [{target}]",
    }
    rseq_load_cbne_store {
        "ldr {a}, [{target}]",
        inject!(3),
        "cmp {a}, {expected}",
        "b.ne 8f",
        inject!(5),
        // (A) pairs with the acquire by which readers load the final word.
        "stlr {value}, [{target}]",
    }
    rseq_load_store_store {
        "ldr {a}, [{head}]",
        inject!(3),
        "str {a}, [{node}]",
        inject!(4),
        inject!(5),
        // (A) pairs with the acquire of the thread that drains this CPU's list.
        "stlr {node}, [{head}]",
    }
    rseq_load_cbeq_load_store {
        "ldr {node}, [{head}]",
        inject!(3),
        "cbz {node}, 8f",
        "ldr {a}, [{node}]",
        inject!(5),
        // (A) pairs with the acquire of the thread that drains this CPU's list.
        "stlr {a}, [{head}]",
    }
    rseq_load_cbne_memcpy_store {
        "ldr {a}, [{guard}]",
        inject!(3),
        "cmp {a}, {expected}",
        "b.ne 8f",
        "b 25f",
        "24:",
        "ldr {a}, [{from}], 8",
        "str {a}, [{to}], 8",
        inject!(4),
        "sub {size_bytes}, {size_bytes}, 8",
        "25:",
        "cmp {size_bytes}, 8",
        "b.hs 24b",
        "b 27f",
        "26:",
        "ldrb {a:w}, [{from}], 1",
        "strb {a:w}, [{to}], 1",
        inject!(4),
        "sub {size_bytes}, {size_bytes}, 1",
        "27:",
        "cbnz {size_bytes}, 26b",
        inject!(5),
        // (A) pairs with the acquire by which readers load the final word.
        "stlr {value}, [{last}]",
    }
}
