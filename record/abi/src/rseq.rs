//! Restartable sequences in the layout that the kernel defines (`include/uapi/linux/rseq.h`).

/// Offset of `cpu_id_start` in the rseq structure: always a valid CPU number, for use outside a critical section.
pub const OFFSET_CPU_ID_START: usize = 0;
/// Offset of `cpu_id`: compared inside a critical section; negative if not registered.
pub const OFFSET_CPU_ID: usize = 4;
/// Offset of the pointer to the descriptor of the running critical section.
pub const OFFSET_RSEQ_CS: usize = 8;
/// Offset of `mm_cid`: the thread's concurrency id, from Linux 6.3 on.
pub const OFFSET_MM_CID: usize = 24;
/// The word before every abort handler (x86: an undefined instruction's operand).
pub const SIGNATURE_X86: u32 = 0x5305_3053;

/// Descriptor of one critical section. Aligned to 32 bytes.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct CriticalSection {
    /// Zero.
    pub version: u32,
    /// Zero.
    pub flags: u32,
    /// First instruction.
    pub start_ip: u64,
    /// Length in bytes up to and including the final store.
    pub post_commit_offset: u64,
    /// Address at which an aborted critical section continues.
    pub abort_ip: u64,
}

const _: () = assert!(size_of::<CriticalSection>() == 32);
