//! Critical sections for x86-64 Linux.

use core::arch::asm;

use dormouse_abi::rseq::{OFFSET_RSEQ_CS, SIGNATURE_X86};

use super::Outcome;
use super::handle::Handle;
use crate::node::Node;

#[cfg(test)]
macro_rules! inject {
    ($point:literal) => {
        concat!(
            "mov {delay}, qword ptr [rip + {delays} + 8 * ",
            $point,
            "]\n",
            "test {delay}, {delay}\n",
            "jz 23f\n",
            "22:\n",
            "dec {delay}\n",
            "jnz 22b\n",
            "23:\n",
        )
    };
}

/// Wraps a body as the documentation of `sections!` says.
macro_rules! critical_section {
    ({ $($body:expr,)+ } [$($store:literal)?] $handle:ident, $cpu:expr, $($operands:tt)+) => {{
        let outcome: u32;
        asm!(
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "3:",
            ".long 0, 0",
            ".quad 4f, 5f - 4f, 6f",
            ".popsection",
            "xor {outcome:e}, {outcome:e}",
            "lea {a}, [rip + 3b]",
            "mov qword ptr fs:[{offset} + {rseq_cs}], {a}",
            "4:",
            inject!(1),
            "cmp dword ptr fs:[{offset} + {cpu_id}], {cpu:e}",
            "jne 7f",
            inject!(2),
            $($body,)+
            $($store,)?
            "5:",
            "mov qword ptr fs:[{offset} + {rseq_cs}], 0",
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long {signature}",
            "6:",
            "mov {outcome:e}, 3",
            "jmp 5b",
            "7:",
            "mov {outcome:e}, 2",
            "jmp 5b",
            "8:",
            "mov {outcome:e}, 1",
            "jmp 5b",
            ".popsection",
            offset = in(reg) $handle.offset,
            cpu = in(reg) $cpu,
            outcome = out(reg) outcome,
            a = out(reg) _,
            rseq_cs = const OFFSET_RSEQ_CS,
            cpu_id = const INDEX,
            signature = const SIGNATURE_X86,
            $($operands)+
        );
        Outcome::of(outcome)
    }};
}

/// Adds on the CPU that the thread is on. The section finds the word by itself, so it compares no CPU. One instruction,
/// the final store, reads, adds and writes. (It has no `lock` prefix, so other CPUs do not wait for it.)
///
/// ```text
/// rseq_cpu_shift_add(first, shift, count, n):
///     rseq_cs = &descriptor
///  4: ─┐ cpu = cpu_id;  if cpu >= count: return OtherCpu        a thread that is not registered has a number beyond any count
///     ─┘ *(first + (cpu << shift)) += n                           (final store)
///  5: rseq_cs = null
///     return Done
///  6: rseq_cs = null;  return AbortedByKernel
/// ```
macro_rules! rseq_cpu_shift_add {
    ($add:literal $offset:expr, $first:expr, $shift:expr, $count:expr, $n:expr, $($operands:tt)+) => {
        asm!(
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "3:",
            ".long 0, 0",
            ".quad 4f, 5f - 4f, 6f",
            ".popsection",
            "lea {a}, [rip + 3b]",
            "mov qword ptr fs:[{offset} + {rseq_cs}], {a}",
            "4:",
            inject!(1),
            "mov {a:e}, dword ptr fs:[{offset} + {cpu_id}]",
            "cmp {a:e}, {count:e}",
            "jae 7f",
            inject!(2),
            "shl {a}, cl",
            inject!(5),
            $add,
            "5:",
            "mov qword ptr fs:[{offset} + {rseq_cs}], 0",
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long {signature}",
            "6:",
            "mov qword ptr fs:[{offset} + {rseq_cs}], 0",
            "jmp {aborted}",
            "7:",
            "mov qword ptr fs:[{offset} + {rseq_cs}], 0",
            "jmp {nowhere}",
            ".popsection",
            offset = in(reg) $offset,
            first = in(reg) $first,
            in("ecx") $shift,
            count = in(reg) $count,
            n = in(reg) $n,
            a = out(reg) _,
            rseq_cs = const OFFSET_RSEQ_CS,
            cpu_id = const INDEX,
            signature = const SIGNATURE_X86,
            aborted = label { return Outcome::AbortedByKernel },
            nowhere = label { return Outcome::OtherCpu },
            $($operands)+
        )
    };
}

/// Signature before every abort handler, in the form that is registered with the kernel.
pub(crate) const SIGNATURE: u32 = SIGNATURE_X86;

/// Returns the distance of this crate's block from the thread pointer, in bytes; it is equal in all threads.
pub(crate) fn own_offset() -> isize {
    let offset: isize;
    // SAFETY: reads a constant that the linker or the loader has made; psABI TLS, initial-exec model.
    unsafe {
        asm!("mov {offset}, qword ptr [rip + dormouse_i_rseq@GOTTPOFF]", offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    offset
}

/// Returns the thread pointer, to which the offsets of thread-local objects are relative.
pub(crate) fn thread_pointer() -> *mut u8 {
    let pointer: *mut u8;
    // SAFETY: the first word that `fs` reaches is its own address; psABI TLS.
    unsafe {
        asm!("mov {pointer}, qword ptr fs:[0]", pointer = out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

impl<const INDEX: usize> Handle<INDEX> {
    /// Returns the word at byte `FIELD` of the calling thread's rseq structure.
    #[inline]
    fn word<const FIELD: usize>(self) -> u32 {
        let word: u32;
        // SAFETY: reads four bytes of the calling thread's rseq structure, which `new`'s caller guarantees to be at
        // `offset`; it is one instruction, so a thread that moves does not read another thread's structure.
        unsafe {
            asm!("mov {word:e}, dword ptr fs:[{offset} + {field}]", word = out(reg) word, offset = in(reg) self.offset,
                field = const FIELD, options(nostack, readonly, preserves_flags));
        }
        word
    }

    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        let descriptor: u64;
        // SAFETY: reads eight bytes of the calling thread's rseq structure, which `new`'s caller guarantees to be at
        // `offset`; it is one instruction, so the structure is this thread's.
        unsafe {
            asm!("mov {descriptor}, qword ptr fs:[{offset} + {field}]", descriptor = out(reg) descriptor,
                offset = in(reg) self.offset, field = const OFFSET_RSEQ_CS, options(nostack, readonly, preserves_flags));
        }
        descriptor
    }

    /// # Safety
    /// The conditions of [`crate::Rseq::add_by_stride`].
    #[inline]
    pub(crate) unsafe fn rseq_cpu_shift_add(self, first: *mut u64, shift: u32, count: u32, n: u64) -> Outcome {
        // SAFETY: the kernel's contract is kept: descriptor, signature and abort handler are the ABI's, and no stack is
        // touched. The caller guarantees that each CPU's word is aligned and writable.
        unsafe {
            with_delays!(rseq_cpu_shift_add "add qword ptr [{first} + {a}], {n}" self.offset, first, shift, count, n,)
        }
        Outcome::Done
    }

    /// The same section for words of four bytes.
    ///
    /// # Safety
    /// The conditions of [`crate::Rseq::add_by_stride`], for words of four bytes.
    #[inline]
    pub(crate) unsafe fn rseq_cpu_shift_add_u32(self, first: *mut u32, shift: u32, count: u32, n: u32) -> Outcome {
        // SAFETY: the kernel's contract is kept: descriptor, signature and abort handler are the ABI's, and no stack is
        // touched. The caller guarantees that each CPU's word is aligned and writable.
        unsafe {
            with_delays!(rseq_cpu_shift_add "add dword ptr [{first} + {a}], {n:e}" self.offset, first, shift, count, n,)
        }
        Outcome::Done
    }
}

sections! {
    rseq_load_cbne_stores_store {
        "mov {a}, qword ptr [{txn}]",
        "mov {b}, qword ptr [{txn} + 8]",
        "cmp qword ptr [{a}], {b}",
        "jne 8f",
        inject!(3),
        "mov {count}, qword ptr [{txn} + 40]",
        "lea {store}, [{txn} + 48]",
        "jmp 29f",
        "24:",
        "mov {a}, qword ptr [{store}]",
        "mov {b}, qword ptr [{store} + 8]",
        "mov {width}, qword ptr [{store} + 16]",
        "cmp {width}, 4",
        "je 26f",
        "jb 25f",
        "mov qword ptr [{a}], {b}",
        "jmp 28f",
        "25:",
        "mov word ptr [{a}], {b:x}",
        "jmp 28f",
        "26:",
        "mov dword ptr [{a}], {b:e}",
        "28:",
        inject!(4),
        "add {store}, 24",
        "dec {count}",
        "29:",
        "test {count}, {count}",
        "jnz 24b",
        "mov {a}, qword ptr [{txn} + 16]",
        "mov {b}, qword ptr [{txn} + 24]",
        inject!(5),
    } then match width {
        8 => "mov qword ptr [{a}], {b}",
        4 => "mov dword ptr [{a}], {b:e}",
        _ => "mov word ptr [{a}], {b:x}",
    }
    rseq_load_add_store {
        "mov {a}, qword ptr [{target}]",
        inject!(3),
        "add {a}, {n}",
        inject!(5),
        "mov qword ptr [{target}], {a}",
    }
    rseq_load {
        inject!(5),
        "mov {word}, qword ptr [{target}]",
    }
    rseq_store {
        inject!(5),
        "mov qword ptr [{target}], {value}",
    }
    rseq_load_cbne_store {
        "mov {a}, qword ptr [{target}]",
        inject!(3),
        "cmp {a}, {expected}",
        "jne 8f",
        inject!(5),
        "mov qword ptr [{target}], {value}",
    }
    rseq_load_store_store {
        "mov {a}, qword ptr [{head}]",
        inject!(3),
        "mov qword ptr [{node}], {a}",
        inject!(4),
        inject!(5),
        "mov qword ptr [{head}], {node}",
    }
    rseq_load_cbeq_load_store {
        "mov {node}, qword ptr [{head}]",
        inject!(3),
        "test {node}, {node}",
        "jz 8f",
        "mov {a}, qword ptr [{node}]",
        inject!(5),
        "mov qword ptr [{head}], {a}",
    }
    rseq_load_cbne_memcpy_store {
        "mov {a}, qword ptr [{guard}]",
        inject!(3),
        "cmp {a}, {expected}",
        "jne 8f",
        "jmp 25f",
        "24:",
        "mov {a}, qword ptr [{from}]",
        "mov qword ptr [{to}], {a}",
        inject!(4),
        "add {from}, 8",
        "add {to}, 8",
        "sub {size_bytes}, 8",
        "25:",
        "cmp {size_bytes}, 8",
        "jae 24b",
        "jmp 27f",
        "26:",
        "mov {a:l}, byte ptr [{from}]",
        "mov byte ptr [{to}], {a:l}",
        inject!(4),
        "inc {from}",
        "inc {to}",
        "dec {size_bytes}",
        "27:",
        "test {size_bytes}, {size_bytes}",
        "jnz 26b",
        inject!(5),
        "mov qword ptr [{last}], {value}",
    }
}
