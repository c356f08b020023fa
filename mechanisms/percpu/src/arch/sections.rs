//! Critical sections: the parts that all architectures share.
//!
//! A section's name is its pseudo-code, read from left to right: `load` loads a word, `cbne` compares and branches out
//! if not equal, `stores` is any number of plain stores, `store` is the final one. Every section begins with the
//! comparison of `cpu_id`, which the names leave out.
//!
//! The kernel's part of the contract (`kernel/rseq.c`, `include/uapi/linux/rseq.h`): when it preempts or migrates a
//! thread or delivers a signal to it, and the thread's `rseq_cs` points to a descriptor, and the instruction pointer is
//! at or after `start_ip` and before `start_ip + post_commit_offset`, it sets the instruction pointer to `abort_ip`. It
//! checks that the four bytes before `abort_ip` are the registered signature, so that a descriptor cannot be abused to
//! jump anywhere. All other registers keep their values.

#[cfg(target_pointer_width = "64")]
use dormouse_abi::txn::{Store, Txn};

use super::Outcome;

const _: () = assert!(size_of::<Outcome>() == 4);
// No 32-bit machine has sections.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(core::mem::offset_of!(Txn, guard) == 0 && core::mem::offset_of!(Txn, expected) == 8);
    assert!(core::mem::offset_of!(Store, value) == 8 && core::mem::offset_of!(Store, width) == 16);
};

/// An injection point, empty outside tests; in tests an architecture's own macro shadows it.
#[cfg(not(test))]
macro_rules! inject {
    ($point:literal) => {
        ""
    };
}

/// Expands a section's macro with the operands that only injection needs.
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

/// Defines the sections on `Handle` from an architecture's bodies. The last instruction of a body is the final store. A
/// body's operands are those listed here and `a`, a scratch register; it branches out to label 8. The architecture's
/// `critical_section!` wraps it in everything that the kernel requires:
///
/// ```text
///     outcome = Done
///     rseq_cs = &descriptor
///  4: ─┐ if cpu_id != cpu: goto 7                    (or mm_cid, in sections by concurrency id)
///      │ body; its branches out go to 8
///     ─┘ (its last instruction is the final store)
///  5: rseq_cs = null
///     return outcome
///  6: outcome = AbortedByKernel; goto 5
///  7: outcome = OtherCpu;        goto 5
///  8: outcome = GuardChanged;    goto 5
/// ```
macro_rules! sections {
    (
        rseq_load_cbne_stores_store $load_cbne_stores:tt then match width { $($width:pat => $store:literal,)+ }
        rseq_load_add_store $load_add_store:tt
        rseq_load $load:tt
        rseq_store $store_only:tt
        rseq_load_cbne_store $load_cbne_store:tt
        rseq_load_store_store $load_store_store:tt
        rseq_load_cbeq_load_store $load_cbeq_load_store:tt
        rseq_load_cbne_memcpy_store $load_cbne_memcpy_store:tt
    ) => {
        impl<const INDEX: usize> Handle<INDEX> {
            #[inline]
            pub(crate) fn cpu_id_start(self) -> u32 {
                self.word::<{ dormouse_abi::rseq::OFFSET_CPU_ID_START }>()
            }

            /// Returns the number that the sections compare: of a CPU, or a concurrency id.
            #[inline]
            pub(crate) fn index(self) -> u32 {
                self.word::<INDEX>()
            }

            #[inline]
            pub(crate) fn cpu_id(self) -> u32 {
                self.word::<{ dormouse_abi::rseq::OFFSET_CPU_ID }>()
            }

            /// Commits a transaction. There is one section for each width of the final store, so that each has exactly
            /// one.
            ///
            /// ```text
            /// rseq_load_cbne_stores_store(txn):
            ///     if *txn.guard != txn.expected: goto guard changed
            ///     for store in txn.stores[..txn.store_count]:
            ///         *store.target = store.value            (2, 4 or 8 bytes)
            ///     *txn.last.target = txn.last.value          (final store, a release)
            /// ```
            ///
            /// # Safety
            /// The conditions of [`crate::Rseq::commit`].
            #[inline]
            pub(crate) unsafe fn commit(self, cpu: u32, txn: &dormouse_abi::txn::Txn) -> Outcome {
                match txn.last.width {
                    // SAFETY: the kernel's contract is kept: the descriptor has the ABI's layout, in memory that lives
                    // as long as this code; the signature precedes the abort handler; no stack is touched. The calling
                    // thread's rseq structure is `offset` bytes from the thread pointer (`new`). The caller guarantees
                    // that the guard is readable and the targets are writable, and that each width is 2, 4 or 8.
                    $($width => unsafe {
                        with_delays!(critical_section $load_cbne_stores [$store] self, cpu,
                            txn = in(reg) txn,
                            b = out(reg) _,
                            count = out(reg) _,
                            store = out(reg) _,
                            width = out(reg) _,)
                    },)+
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
            /// The conditions of [`crate::Rseq::add`].
            #[inline]
            pub(crate) unsafe fn rseq_load_add_store(self, cpu: u32, target: *mut u64, n: u64) -> Outcome {
                // SAFETY: `critical_section!` keeps the kernel's contract; the caller guarantees that `target` is
                // aligned and writable.
                unsafe {
                    with_delays!(critical_section $load_add_store [] self, cpu, target = in(reg) target, n = in(reg) n,)
                }
            }

            /// ```text
            /// rseq_load(target):
            ///     word = *target                             (last instruction: either the word is in the register, or nothing is)
            /// ```
            ///
            /// # Safety
            /// The conditions of [`crate::Rseq::load`].
            #[inline]
            pub(crate) unsafe fn rseq_load(self, cpu: u32, target: *const u64) -> (Outcome, u64) {
                let word: u64;
                // SAFETY: `critical_section!` keeps the kernel's contract; the caller guarantees that `target` is
                // aligned and readable.
                let outcome = unsafe {
                    with_delays!(critical_section $load [] self, cpu, target = in(reg) target, word = out(reg) word,)
                };
                (outcome, word)
            }

            /// ```text
            /// rseq_store(target, value):
            ///     *target = value                            (final store, a release)
            /// ```
            ///
            /// # Safety
            /// The conditions of [`crate::Rseq::store`].
            #[inline]
            pub(crate) unsafe fn rseq_store(self, cpu: u32, target: *mut u64, value: u64) -> Outcome {
                // SAFETY: `critical_section!` keeps the kernel's contract; the caller guarantees that `target` is
                // aligned and writable.
                unsafe {
                    with_delays!(critical_section $store_only [] self, cpu, target = in(reg) target, value = in(reg) value,)
                }
            }

            /// ```text
            /// rseq_load_cbne_store(target, expected, value):
            ///     if *target != expected: goto guard changed
            ///     *target = value                            (final store, a release)
            /// ```
            ///
            /// # Safety
            /// The conditions of [`crate::Rseq::compare_and_store`].
            #[inline]
            pub(crate) unsafe fn rseq_load_cbne_store(
                self,
                cpu: u32,
                target: *mut u64,
                expected: u64,
                value: u64,
            ) -> Outcome {
                // SAFETY: `critical_section!` keeps the kernel's contract; the caller guarantees that `target` is
                // aligned and writable.
                unsafe {
                    with_delays!(critical_section $load_cbne_store [] self, cpu,
                        target = in(reg) target,
                        expected = in(reg) expected,
                        value = in(reg) value,)
                }
            }

            /// ```text
            /// rseq_load_store_store(head, node):
            ///     first = *head
            ///     node->next = first                         (no other thread can reach the node yet)
            ///     *head = node                               (final store, a release)
            /// ```
            ///
            /// # Safety
            /// The conditions of [`crate::Rseq::push`].
            #[inline]
            pub(crate) unsafe fn rseq_load_store_store(self, cpu: u32, head: *mut *mut Node, node: *mut Node) -> Outcome {
                // SAFETY: `critical_section!` keeps the kernel's contract; the caller guarantees that `head` is aligned
                // and writable, and that `node` is writable and belongs to it.
                unsafe {
                    with_delays!(critical_section $load_store_store [] self, cpu, head = in(reg) head, node = in(reg) node,)
                }
            }

            /// ```text
            /// rseq_load_cbeq_load_store(head):
            ///     node = *head
            ///     if node == null: goto guard changed
            ///     next = node->next
            ///     *head = next                               (final store, a release: this CPU's sections also wrote `next`'s node)
            /// ```
            ///
            /// # Safety
            /// The conditions of [`crate::Rseq::pop`].
            #[inline]
            pub(crate) unsafe fn rseq_load_cbeq_load_store(
                self,
                cpu: u32,
                head: *mut *mut Node,
            ) -> (Outcome, *mut Node) {
                let node: *mut Node;
                // SAFETY: `critical_section!` keeps the kernel's contract. The caller guarantees that `head` is aligned
                // and writable, and null or the first of a list of nodes. The node that was loaded is still on the list
                // when its `next` is read: only sections on this CPU unlink nodes, and one that had run since would
                // have aborted this section.
                let outcome = unsafe {
                    with_delays!(critical_section $load_cbeq_load_store [] self, cpu,
                        head = in(reg) head,
                        node = out(reg) node,)
                };
                (outcome, node)
            }

            /// ```text
            /// rseq_load_cbne_memcpy_store(guard, expected, to, from, size_bytes, last, value):
            ///     if *guard != expected: goto guard changed
            ///     while size_bytes >= 8: copy 8 bytes
            ///     while size_bytes > 0: copy a byte          (no reader looks there yet)
            ///     *last = value                              (final store, a release)
            /// ```
            ///
            /// # Safety
            /// The conditions of [`crate::Rseq::copy_and_store`].
            #[inline]
            pub(crate) unsafe fn rseq_load_cbne_memcpy_store(
                self,
                cpu: u32,
                (guard, expected): (*const u64, u64),
                (to, from, size_bytes): (*mut u8, *const u8, usize),
                (last, value): (*mut u64, u64),
            ) -> Outcome {
                // SAFETY: `critical_section!` keeps the kernel's contract; the caller guarantees that `guard` is
                // readable, that `last` is writable, and that `size_bytes` bytes are readable at `from` and writable at
                // `to`.
                unsafe {
                    with_delays!(critical_section $load_cbne_memcpy_store [] self, cpu,
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
    };
}
