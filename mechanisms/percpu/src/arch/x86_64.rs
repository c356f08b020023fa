//! The critical sections for x86-64 Linux.
//!
//! A section's name is its pseudo-code: words read from left to right, `load` a word, `cbne` compare and branch out if
//! not equal, `stores` any number of plain stores, `store` the final one. Every section begins with the comparison of
//! `cpu_id`, which the names leave out.
//!
//! The kernel's part of the contract (`kernel/rseq.c`, `include/uapi/linux/rseq.h`): when it preempts or migrates a
//! thread or delivers a signal to it, and the thread's `rseq_cs` points to a descriptor, and the instruction pointer is
//! at or after `start_ip` and before `start_ip + post_commit_offset`, it sets the instruction pointer to `abort_ip`. It
//! checks that the four bytes before `abort_ip` are the signature that was registered, so that nobody can abuse a
//! descriptor to jump anywhere. All other registers keep their values.

use core::arch::{asm, global_asm};

use dormouse_abi::rseq::{OFFSET_CPU_ID, OFFSET_CPU_ID_START, OFFSET_RSEQ_CS, SIGNATURE_X86};
use dormouse_abi::txn::{Store, Txn};

use super::Outcome;
use crate::node::Node;

const _: () = assert!(size_of::<Outcome>() == 4);
const _: () = assert!(core::mem::offset_of!(Txn, guard) == 0 && core::mem::offset_of!(Txn, expected) == 8);
const _: () = assert!(core::mem::offset_of!(Store, value) == 8 && core::mem::offset_of!(Store, width) == 16);

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
#[cfg(not(test))]
macro_rules! inject {
    ($point:literal) => {
        ""
    };
}

/// Wraps the body of a section, whose last instruction is the final store, in everything that the kernel requires.
///
/// ```text
///     outcome = Done
///     rseq_cs = &descriptor
///  4: ─┐ if cpu_id != cpu: goto 7
///      │ body; its branches out go to 8
///     ─┘ (its last instruction is the final store)
///  5: rseq_cs = null
///     return outcome
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
            offset = in(reg) $offset,
            cpu = in(reg) $cpu,
            outcome = out(reg) outcome,
            a = out(reg) _,
            rseq_cs = const OFFSET_RSEQ_CS,
            cpu_id = const OFFSET_CPU_ID,
            signature = const SIGNATURE_X86,
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
macro_rules! with_delays {
    ($section:ident $($operands:tt)+) => {
        $section!($($operands)+ delay = out(reg) _, delays = sym crate::inject::DELAYS, options(nostack))
    };
}
#[cfg(not(test))]
macro_rules! with_delays {
    ($section:ident $($operands:tt)+) => { $section!($($operands)+ options(nostack)) };
}

macro_rules! section {
    ($($operands:tt)+) => { with_delays!(critical_section $($operands)+) };
}

/// An addition on whatever CPU the thread is on: the section finds the word by itself, so nothing has to be compared. One
/// instruction, the final store, reads, adds and writes. (It has no `lock` prefix, so other CPUs do not wait for it.)
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
    ($offset:expr, $first:expr, $shift:expr, $count:expr, $n:expr, $($operands:tt)+) => {
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
            "add qword ptr [{first} + {a}], {n}",
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
            cpu_id = const OFFSET_CPU_ID,
            signature = const SIGNATURE_X86,
            aborted = label { return Outcome::AbortedByKernel },
            nowhere = label { return Outcome::OtherCpu },
            $($operands)+
        )
    };
}

/// One section per width of the final store, so that each has exactly one.
///
/// ```text
/// rseq_load_cbne_stores_store(txn):
///     if *txn.guard != txn.expected: goto guard changed
///     for store in txn.stores[..txn.store_count]:
///         *store.target = store.value            (2, 4 or 8 bytes)
///     *txn.last.target = txn.last.value          (final store)
/// ```
macro_rules! rseq_load_cbne_stores_store {
    ($name:ident, $final_store:literal) => {
        /// # Safety
        /// As [`Handle::commit`], and the final store has this section's width.
        #[inline]
        unsafe fn $name(self, cpu: u32, txn: &Txn) -> Outcome {
            // SAFETY: the kernel's contract above: the descriptor is the ABI's, in memory that lives as long as this
            // code; the abort handler is preceded by the signature; no stack is touched. `fs:[offset]` is the calling
            // thread's registered area. What the section reads and writes, the caller vouches for.
            unsafe {
                section!({
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

/// The word before every abort handler, as it is registered with the kernel.
pub(crate) const SIGNATURE: u32 = SIGNATURE_X86;

// The block that `register` gives to the kernel where libc has not given one: the area of 32 bytes, in which `cpu_id` begins as
// RSEQ_CPU_ID_UNINITIALIZED so that a section in a thread that is not registered ends at its comparison, and the thread's state.
global_asm!(
    ".pushsection .tdata.dormouse_i_rseq, \"awT\", @progbits",
    ".hidden dormouse_i_rseq",
    ".globl dormouse_i_rseq",
    ".type dormouse_i_rseq, @object",
    ".size dormouse_i_rseq, 64",
    ".balign 32",
    "dormouse_i_rseq:",
    ".long 0, -1",
    ".zero 56",
    ".popsection",
);

/// How far our own block lies from the thread pointer: the same in every thread.
pub(crate) fn own_offset() -> isize {
    let offset: isize;
    // SAFETY: reads a constant that the linker or the loader has made; psABI TLS, initial-exec model.
    unsafe {
        asm!("mov {offset}, qword ptr [rip + dormouse_i_rseq@GOTTPOFF]", offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    offset
}

/// What the thread's own offsets are relative to.
pub(crate) fn thread_pointer() -> *mut u8 {
    let pointer: *mut u8;
    // SAFETY: the first word that `fs` reaches is its own address; psABI TLS.
    unsafe {
        asm!("mov {pointer}, qword ptr fs:[0]", pointer = out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
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
        let cpu: u32;
        // SAFETY: the calling thread's area, by the promise of `new`; `cpu_id_start` is four bytes in it.
        unsafe {
            asm!("mov {cpu:e}, dword ptr fs:[{offset} + {field}]", cpu = out(reg) cpu, offset = in(reg) self.offset,
                field = const OFFSET_CPU_ID_START, options(nostack, readonly, preserves_flags));
        }
        cpu
    }

    #[inline]
    pub(crate) fn cpu_id(self) -> u32 {
        let cpu: u32;
        // SAFETY: reads four bytes of the calling thread's area, by the promise of `new`; one instruction, so no other
        // thread's area is read when the thread moves.
        unsafe {
            asm!("mov {cpu:e}, dword ptr fs:[{offset} + {field}]", cpu = out(reg) cpu, offset = in(reg) self.offset,
                field = const OFFSET_CPU_ID, options(nostack, readonly, preserves_flags));
        }
        cpu
    }

    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        let descriptor: u64;
        // SAFETY: reads eight bytes of the calling thread's area, by the promise of `new`; one instruction, so it is this thread's.
        unsafe {
            asm!("mov {descriptor}, qword ptr fs:[{offset} + {field}]", descriptor = out(reg) descriptor,
                offset = in(reg) self.offset, field = const OFFSET_RSEQ_CS, options(nostack, readonly, preserves_flags));
        }
        descriptor
    }

    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_2, "mov word ptr [{a}], {b:x}");
    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_4, "mov dword ptr [{a}], {b:e}");
    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_8, "mov qword ptr [{a}], {b}");

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
    ///     *target = word                             (final store)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::add`].
    #[inline]
    pub(crate) unsafe fn rseq_load_add_store(self, cpu: u32, target: *mut u64, n: u64) -> Outcome {
        // SAFETY: the kernel's contract above, as for the other sections; `target` is the caller's promise.
        unsafe {
            section!({
                "mov {a}, qword ptr [{target}]",
                inject!(3),
                "add {a}, {n}",
                inject!(5),
                "mov qword ptr [{target}], {a}",
            }
            self.offset, cpu,
            target = in(reg) target,
            n = in(reg) n,)
        }
    }

    /// # Safety
    /// As [`crate::Rseq::add_by_stride`].
    #[inline]
    pub(crate) unsafe fn rseq_cpu_shift_add(self, first: *mut u64, shift: u32, count: u32, n: u64) -> Outcome {
        // SAFETY: the kernel's contract above, as for the other sections; where the words are is the caller's promise.
        unsafe { with_delays!(rseq_cpu_shift_add self.offset, first, shift, count, n,) }
        Outcome::Done
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
        // SAFETY: the kernel's contract above, as for the other sections; `target` is the caller's promise.
        let outcome = unsafe {
            section!({
                inject!(5),
                "mov {word}, qword ptr [{target}]",
            }
            self.offset, cpu,
            target = in(reg) target,
            word = out(reg) word,)
        };
        (outcome, word)
    }

    /// ```text
    /// rseq_store(target, value):
    ///     *target = value                            (final store)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::store`].
    #[inline]
    pub(crate) unsafe fn rseq_store(self, cpu: u32, target: *mut u64, value: u64) -> Outcome {
        // SAFETY: the kernel's contract above, as for the other sections; `target` is the caller's promise.
        unsafe {
            section!({
                inject!(5),
                "mov qword ptr [{target}], {value}",
            }
            self.offset, cpu,
            target = in(reg) target,
            value = in(reg) value,)
        }
    }

    /// ```text
    /// rseq_load_cbne_store(target, expected, value):
    ///     if *target != expected: goto guard changed
    ///     *target = value                            (final store)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::compare_and_store`].
    #[inline]
    pub(crate) unsafe fn rseq_load_cbne_store(self, cpu: u32, target: *mut u64, expected: u64, value: u64) -> Outcome {
        // SAFETY: the kernel's contract above, as for the other sections; `target` is the caller's promise.
        unsafe {
            section!({
                "mov {a}, qword ptr [{target}]",
                inject!(3),
                "cmp {a}, {expected}",
                "jne 8f",
                inject!(5),
                "mov qword ptr [{target}], {value}",
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
    ///     *head = node                               (final store)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::push`].
    #[inline]
    pub(crate) unsafe fn rseq_load_store_store(self, cpu: u32, head: *mut *mut Node, node: *mut Node) -> Outcome {
        // SAFETY: the kernel's contract above, as for the other sections; `head` and `node` are the caller's promise.
        unsafe {
            section!({
                "mov {a}, qword ptr [{head}]",
                inject!(3),
                "mov qword ptr [{node}], {a}",
                inject!(4),
                inject!(5),
                "mov qword ptr [{head}], {node}",
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
    ///     *head = next                               (final store)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::pop`].
    #[inline]
    pub(crate) unsafe fn rseq_load_cbeq_load_store(self, cpu: u32, head: *mut *mut Node) -> (Outcome, *mut Node) {
        let node: *mut Node;
        // SAFETY: the kernel's contract above, as for the other sections. `head` is the caller's promise, and that what it leads
        // to is a node: nobody on this CPU has unlinked it since it was loaded, or the section would have been aborted.
        let outcome = unsafe {
            section!({
                "mov {node}, qword ptr [{head}]",
                inject!(3),
                "test {node}, {node}",
                "jz 8f",
                "mov {a}, qword ptr [{node}]",
                inject!(5),
                "mov qword ptr [{head}], {a}",
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
    ///     *last = value                              (final store)
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
        // SAFETY: the kernel's contract above, as for the other sections; the addresses are the caller's promise.
        unsafe {
            section!({
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
