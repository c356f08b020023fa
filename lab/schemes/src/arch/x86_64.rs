//! The additions for x86-64 Linux: restartable sequences like those of `dormouse-percpu`, which explains the kernel's
//! contract.

use core::arch::asm;

use dormouse_abi::rseq::{OFFSET_CPU_ID, OFFSET_RSEQ_CS, SIGNATURE_X86};
use dormouse_percpu::Rseq;

/// ```text
///     rseq_cs = &descriptor
///  4: ─┐ cpu = cpu_id;  if cpu >= count: goto 7                   an unregistered thread has a number beyond any count
///      │ body: computes the address of the CPU's word
///     ─┘ *word += n                                              (final store)
///  5: rseq_cs = null
///     return true
///  6: rseq_cs = null;  return false                              (the kernel's abort handler)
///  7: rseq_cs = null;  return false
/// ```
macro_rules! addition {
    ($body:literal, $final_store:literal, $rseq:expr, $count:expr, $n:expr, $($operands:tt)+) => {
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
            "mov {a:e}, dword ptr fs:[{offset} + {cpu_id}]",
            "cmp {a:e}, {count:e}",
            "jae 7f",
            $body,
            $final_store,
            "5:",
            "mov qword ptr fs:[{offset} + {rseq_cs}], 0",
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long {signature}",
            "6:",
            "7:",
            "mov qword ptr fs:[{offset} + {rseq_cs}], 0",
            "jmp {aborted}",
            ".popsection",
            offset = in(reg) $rseq.offset(),
            count = in(reg) $count,
            n = in(reg) $n,
            a = out(reg) _,
            rseq_cs = const OFFSET_RSEQ_CS,
            cpu_id = const OFFSET_CPU_ID,
            signature = const SIGNATURE_X86,
            aborted = label { return false },
            $($operands)+
            options(nostack)
        )
    };
}

/// ```text
/// rseq_cpu_load_add(object, table, n):
///     offset = table[cpu]
///     *(object + offset) += n                    (final store)
/// ```
///
/// # Safety
/// `table` must have `count` entries that nothing writes. At each distance from `object` there must be a word that only
/// critical sections on that CPU write.
#[inline(always)]
pub(crate) unsafe fn rseq_cpu_load_add(rseq: Rseq, object: *mut u8, table: *const usize, count: u32, n: u64) -> bool {
    // SAFETY: the kernel moves a section that it interrupts to its abort handler, which stores nothing (rseq(2)). The
    // caller guarantees `count` entries in `table`, and at each distance from `object` a word that only critical
    // sections on that CPU write.
    unsafe {
        addition!("mov {a}, qword ptr [{table} + 8 * {a}]", "add qword ptr [{object} + {a}], {n}", rseq, count, n,
            object = in(reg) object,
            table = in(reg) table,)
    }
    true
}

/// ```text
/// rseq_cpu_deref_add(words, n):
///     word = words[cpu]
///     *word += n                                 (final store)
/// ```
///
/// # Safety
/// `words` must have `count` entries that nothing writes, each the address of a word that only critical sections on
/// that CPU write.
#[inline(always)]
pub(crate) unsafe fn rseq_cpu_deref_add(rseq: Rseq, words: *const *mut u64, count: u32, n: u64) -> bool {
    // SAFETY: the kernel moves a section that it interrupts to its abort handler, which stores nothing (rseq(2)). The
    // caller guarantees `count` entries in `words`, each the address of a word that only critical sections on that CPU
    // write.
    unsafe {
        addition!("mov {a}, qword ptr [{words} + 8 * {a}]", "add qword ptr [{a}], {n}", rseq, count, n,
            words = in(reg) words,)
    }
    true
}
