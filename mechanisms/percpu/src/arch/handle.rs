//! Location of a thread's rseq structure, on architectures that have sections.

use core::arch::global_asm;

use dormouse_abi::rseq::{OFFSET_CPU_ID, OFFSET_MM_CID};

// The block that `register` gives to the kernel if libc has not given it one: the rseq structure of 32 bytes, then the
// thread's state. `cpu_id` is initially RSEQ_CPU_ID_UNINITIALIZED, so that a section in a thread that is not registered
// ends at its comparison.
global_asm!(
    ".pushsection .tdata.dormouse_i_rseq, \"awT\", @progbits",
    ".hidden dormouse_i_rseq",
    ".globl dormouse_i_rseq",
    ".type dormouse_i_rseq, @object",
    ".size dormouse_i_rseq, 64",
    ".balign 32",
    "dormouse_i_rseq:",
    ".4byte 0, -1",
    ".zero 56",
    ".popsection",
);

/// Proof that there is a registration: the distance from the thread pointer to the thread's rseq structure, in bytes.
/// Its sections compare the number at byte `INDEX` of that structure: the CPU, or the concurrency id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle<const INDEX: usize = OFFSET_CPU_ID> {
    pub(super) offset: isize,
}

impl Handle {
    /// # Safety
    /// At that distance from the thread pointer, every thread has an rseq structure for its whole life, registered or
    /// with `cpu_id` below zero.
    #[inline]
    pub(crate) unsafe fn new(offset: isize) -> Handle {
        Handle { offset }
    }

    #[inline]
    pub(crate) fn offset(self) -> isize {
        self.offset
    }

    /// Returns the handle of sections that compare the thread's concurrency id, which the kernel must write.
    #[inline]
    pub(crate) fn by_concurrency_id(self) -> Handle<OFFSET_MM_CID> {
        Handle { offset: self.offset }
    }
}
