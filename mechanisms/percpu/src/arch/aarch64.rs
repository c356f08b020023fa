//! The critical sections for aarch64 Linux.
//!
//! Names, pseudo-code and the kernel's part of the contract are those of `x86_64`. The differences:
//!
//! * The thread's area is reached from `tpidr_el0`, of which libc's `__rseq_offset` is the distance.
//! * The signature is an instruction, `brk #0x45e0` (0xd428bc00 in code, which is little-endian even where data is not), and
//!   stands in line, because a conditional branch may not reach into another section of the program.
//! * Other CPUs may see stores in a different order. So a final store that makes plain stores
//!   reachable is a release (`stlr`), which pairs with the acquire by which readers load the word. On the CPU itself no
//!   order is needed beyond the program's: between two threads on it the kernel switches, which is a full barrier.

use core::arch::{asm, global_asm};

use dormouse_abi::rseq::{OFFSET_CPU_ID, OFFSET_CPU_ID_START, OFFSET_RSEQ_CS};
use dormouse_abi::txn::{Store, Txn};

use super::Outcome;
use crate::node::Node;

const _: () = assert!(size_of::<Outcome>() == 4);
const _: () = assert!(core::mem::offset_of!(Txn, guard) == 0 && core::mem::offset_of!(Txn, expected) == 8);
const _: () = assert!(core::mem::offset_of!(Store, value) == 8 && core::mem::offset_of!(Store, width) == 16);

/// The word before every abort handler, as code.
const SIGNATURE_CODE: u32 = 0xd428_bc00;

/// The same as the kernel reads it, which is as data.
pub(crate) const SIGNATURE: u32 = u32::from_ne_bytes(SIGNATURE_CODE.to_le_bytes());

// As for x86-64.
global_asm!(
    ".pushsection .tdata.dormouse_i_rseq, \"awT\", @progbits",
    ".hidden dormouse_i_rseq",
    ".globl dormouse_i_rseq",
    ".type dormouse_i_rseq, @object",
    ".size dormouse_i_rseq, 64",
    ".balign 32",
    "dormouse_i_rseq:",
    ".word 0, -1",
    ".zero 56",
    ".popsection",
);

/// How far our own block lies from the thread pointer: the same in every thread.
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

/// What the thread's own offsets are relative to.
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
#[cfg(not(test))]
macro_rules! inject {
    ($point:literal) => {
        ""
    };
}

/// Wraps the body of a section, as for x86-64.
///
/// ```text
///     outcome = Done
///     rseq_cs = &descriptor
///  4: ─┐ if cpu_id != cpu: goto 7
///      │ body; its branches out go to 8
///     ─┘ (its last instruction is the final store)
///  5: rseq_cs = null
///     return outcome
///     signature
///  6: outcome = AbortedByKernel; goto 5
///  7: outcome = OtherCpu;        goto 5
///  8: outcome = GuardChanged;    goto 5
/// ```
macro_rules! critical_section {
    ({ $($body:expr,)+ } $offset:expr, $cpu:expr, $($operands:tt)+) => {{
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
            offset = in(reg) $offset,
            cpu = in(reg) $cpu,
            outcome = out(reg) outcome,
            area = out(reg) _,
            a = out(reg) _,
            rseq_cs = const OFFSET_RSEQ_CS,
            cpu_id = const OFFSET_CPU_ID,
            signature = const SIGNATURE_CODE,
            $($operands)+
        );
        match outcome {
            0 => Outcome::Done,
            1 => Outcome::GuardChanged,
            2 => Outcome::OtherCpu,
            _ => Outcome::AbortedByKernel,
        }
    }};
}

/// Adds the operands that only injection needs.
#[cfg(test)]
macro_rules! section {
    ($body:tt $($operands:tt)+) => {
        critical_section!($body $($operands)+
            delay = out(reg) _,
            delays = sym crate::inject::DELAYS,
            options(nostack))
    };
}
#[cfg(not(test))]
macro_rules! section {
    ($body:tt $($operands:tt)+) => { critical_section!($body $($operands)+ options(nostack)) };
}

/// One section per width of the final store, so that each has exactly one.
///
/// ```text
/// rseq_load_cbne_stores_store(txn):
///     if *txn.guard != txn.expected: goto guard changed
///     for store in txn.stores[..txn.store_count]:
///         *store.target = store.value            (2, 4 or 8 bytes)
///     *txn.last.target = txn.last.value          (final store, a release)
/// ```
macro_rules! rseq_load_cbne_stores_store {
    ($name:ident, $final_store:literal) => {
        /// # Safety
        /// As [`Handle::commit`], and the final store has this section's width.
        #[inline]
        unsafe fn $name(self, cpu: u32, txn: &Txn) -> Outcome {
            // SAFETY: the kernel's contract: the descriptor is the ABI's, in memory that lives as long as this code; the abort
            // handler is preceded by the signature; no stack is touched. `offset` from the thread pointer lies the calling
            // thread's area. What the section reads and writes, the caller vouches for.
            unsafe {
                section!({
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
                    // (A) pairs with the acquire by which readers load the final word.
                    $final_store,
                }
                self.offset, cpu,
                txn = in(reg) txn,
                b = out(reg) _,
                count = out(reg) _,
                store = out(reg) _,
                width = out(reg) _,)
            }
        }
    };
}

/// Proof that there is a registration: the distance from the thread pointer to the thread's area.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle {
    offset: isize,
}

impl Handle {
    /// # Safety
    /// So far from the thread pointer, every thread has an area for its whole life, registered or with `cpu_id` below zero.
    #[inline]
    pub(crate) unsafe fn new(offset: isize) -> Handle {
        Handle { offset }
    }

    #[inline]
    pub(crate) fn offset(self) -> isize {
        self.offset
    }

    #[inline]
    pub(crate) fn cpu_id_start(self) -> u32 {
        let field: *const u32 = thread_pointer().wrapping_offset(self.offset).wrapping_add(OFFSET_CPU_ID_START).cast();
        // SAFETY: the calling thread's area, by the promise of `new`; the kernel changes the word, hence volatile.
        unsafe { field.read_volatile() }
    }

    #[inline]
    pub(crate) fn cpu_id(self) -> u32 {
        let field: *const u32 = thread_pointer().wrapping_offset(self.offset).wrapping_add(OFFSET_CPU_ID).cast();
        // SAFETY: four bytes of the calling thread's area, by the promise of `new`; the kernel changes the word, hence
        // volatile.
        unsafe { field.read_volatile() }
    }

    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        let field: *const u64 = thread_pointer().wrapping_offset(self.offset).wrapping_add(OFFSET_RSEQ_CS).cast();
        // SAFETY: eight bytes of the calling thread's area, by the promise of `new`; the kernel changes the word, hence
        // volatile.
        unsafe { field.read_volatile() }
    }

    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_2, "stlrh {b:w}, [{a}]");
    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_4, "stlr {b:w}, [{a}]");
    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_8, "stlr {b}, [{a}]");

    /// # Safety
    /// As [`crate::Rseq::commit`].
    #[inline]
    pub(crate) unsafe fn commit(self, cpu: u32, txn: &Txn) -> Outcome {
        match txn.last.width {
            // SAFETY: the caller's promise; the width is the section's.
            8 => unsafe { self.rseq_load_cbne_stores_store_8(cpu, txn) },
            // SAFETY: the caller's promise; the width is the section's.
            4 => unsafe { self.rseq_load_cbne_stores_store_4(cpu, txn) },
            // SAFETY: the caller's promise: 2, 4 or 8.
            _ => unsafe { self.rseq_load_cbne_stores_store_2(cpu, txn) },
        }
    }

    /// ```text
    /// rseq_load_add_store(target, n):
    ///     word = *target
    ///     word += n
    ///     *target = word                             (final store; it publishes nothing but itself)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::add`].
    #[inline]
    pub(crate) unsafe fn rseq_load_add_store(self, cpu: u32, target: *mut u64, n: u64) -> Outcome {
        // SAFETY: the kernel's contract, as for the other sections; `target` is the caller's promise.
        unsafe {
            section!({
                "ldr {a}, [{target}]",
                inject!(3),
                "add {a}, {a}, {n}",
                inject!(5),
                "str {a}, [{target}]",
            }
            self.offset, cpu,
            target = in(reg) target,
            n = in(reg) n,)
        }
    }

    /// ```text
    /// rseq_load(target):
    ///     word = *target                             (the last instruction: the word is in a register, or nothing is)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::load`].
    #[inline]
    pub(crate) unsafe fn rseq_load(self, cpu: u32, target: *const u64) -> (Outcome, u64) {
        let word: u64;
        // SAFETY: the kernel's contract, as for the other sections; `target` is the caller's promise.
        let outcome = unsafe {
            section!({
                inject!(5),
                "ldr {word}, [{target}]",
            }
            self.offset, cpu,
            target = in(reg) target,
            word = out(reg) word,)
        };
        (outcome, word)
    }

    /// ```text
    /// rseq_store(target, value):
    ///     *target = value                            (final store, a release)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::store`].
    #[inline]
    pub(crate) unsafe fn rseq_store(self, cpu: u32, target: *mut u64, value: u64) -> Outcome {
        // SAFETY: the kernel's contract, as for the other sections; `target` is the caller's promise.
        unsafe {
            section!({
                inject!(5),
                // (A) pairs with the acquire by which readers load the final word.
                "stlr {value}, [{target}]",
            }
            self.offset, cpu,
            target = in(reg) target,
            value = in(reg) value,)
        }
    }

    /// ```text
    /// rseq_load_cbne_store(target, expected, value):
    ///     if *target != expected: goto guard changed
    ///     *target = value                            (final store, a release)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::compare_and_store`].
    #[inline]
    pub(crate) unsafe fn rseq_load_cbne_store(self, cpu: u32, target: *mut u64, expected: u64, value: u64) -> Outcome {
        // SAFETY: the kernel's contract, as for the other sections; `target` is the caller's promise.
        unsafe {
            section!({
                "ldr {a}, [{target}]",
                inject!(3),
                "cmp {a}, {expected}",
                "b.ne 8f",
                inject!(5),
                // (A) pairs with the acquire by which readers load the final word.
                "stlr {value}, [{target}]",
            }
            self.offset, cpu,
            target = in(reg) target,
            expected = in(reg) expected,
            value = in(reg) value,)
        }
    }

    /// ```text
    /// rseq_load_store_store(head, node):
    ///     first = *head
    ///     node->next = first                         (nobody else knows the node yet)
    ///     *head = node                               (final store, a release)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::push`].
    #[inline]
    pub(crate) unsafe fn rseq_load_store_store(self, cpu: u32, head: *mut *mut Node, node: *mut Node) -> Outcome {
        // SAFETY: the kernel's contract, as for the other sections; `head` and `node` are the caller's promise.
        unsafe {
            section!({
                "ldr {a}, [{head}]",
                inject!(3),
                "str {a}, [{node}]",
                inject!(4),
                inject!(5),
                // (A) pairs with the acquire of whoever takes a list over from another CPU.
                "stlr {node}, [{head}]",
            }
            self.offset, cpu,
            head = in(reg) head,
            node = in(reg) node,)
        }
    }

    /// ```text
    /// rseq_load_cbeq_load_store(head):
    ///     node = *head
    ///     if node == null: goto guard changed
    ///     next = node->next
    ///     *head = next                               (final store, a release: what `next` holds came by this CPU too)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::pop`].
    #[inline]
    pub(crate) unsafe fn rseq_load_cbeq_load_store(self, cpu: u32, head: *mut *mut Node) -> (Outcome, *mut Node) {
        let node: *mut Node;
        // SAFETY: the kernel's contract, as for the other sections. `head` is the caller's promise, and that what it leads to is
        // a node: nobody on this CPU has unlinked it since it was loaded, or the section would have been aborted.
        let outcome = unsafe {
            section!({
                "ldr {node}, [{head}]",
                inject!(3),
                "cbz {node}, 8f",
                "ldr {a}, [{node}]",
                inject!(5),
                // (A) pairs with the acquire of whoever takes a list over from another CPU.
                "stlr {a}, [{head}]",
            }
            self.offset, cpu,
            head = in(reg) head,
            node = out(reg) node,)
        };
        (outcome, node)
    }

    /// ```text
    /// rseq_load_cbne_memcpy_store(guard, expected, to, from, size_bytes, last, value):
    ///     if *guard != expected: goto guard changed
    ///     while size_bytes >= 8: copy 8 bytes
    ///     while size_bytes > 0: copy a byte          (where nobody looks yet)
    ///     *last = value                              (final store, a release)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::copy_and_store`].
    #[inline]
    pub(crate) unsafe fn rseq_load_cbne_memcpy_store(
        self,
        cpu: u32,
        (guard, expected): (*const u64, u64),
        (to, from, size_bytes): (*mut u8, *const u8, usize),
        (last, value): (*mut u64, u64),
    ) -> Outcome {
        // SAFETY: the kernel's contract, as for the other sections; the addresses are the caller's promise.
        unsafe {
            section!({
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
            self.offset, cpu,
            guard = in(reg) guard,
            expected = in(reg) expected,
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            size_bytes = inout(reg) size_bytes => _,
            last = in(reg) last,
            value = in(reg) value,)
        }
    }
}
