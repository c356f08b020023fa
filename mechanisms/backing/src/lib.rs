//! Memory that is present before it is used, and a check whether memory is present.
//!
//! # The problem
//! A traced program must never be killed by the tracer, and must never be slow for reasons that are invisible. Memory
//! that several processes share can cause both. A process that has its file can truncate it: the next access is a
//! `SIGBUS`. The memory can run out at the first write, which is also a `SIGBUS`. And the first access to memory that
//! was never written is a page fault, or goes to the one page of zeroes that makes a benchmark read too fast.
//!
//! # The picture
//! ```text
//!   session owner                                     traced program
//!   Pool::new ─ memfd, sized ─ sealed ─ mapped        Mapping::map ─ seals checked ─ size read ─ mapped
//!        │            │                                    ▲
//!        │            └────────── the file, over a socket ─┘
//!        └ prefault: is there enough? ─▶ allocate in the file ─▶ enter in the page table
//!                      │ no                    │ refused             │ refused
//!                      └───────────────────────┴─────────────────────┴──▶ an error that names cause and remedy
//! ```
//!
//! # States and their owners
//!
//! | state of an `os_page` of the memory pool | reached by | its first write |
//! | --- | --- | --- |
//! | nothing | `ftruncate` | faults and allocates; without memory `SIGBUS` or the OOM killer |
//! | allocated in the file | [`Pool::prefault`] by any process | faults once in each process |
//! | in the page table | [`Pool::prefault`] by this process | is a store |
//! | part of a huge page | [`Pool::use_huge_pages`] by the owner, or [`Huge::Prefer`] | faults once for all of it in each process, then is a store |
//! | locked | [`MemoryOptions::lock`] | is a store, and it is not swapped out |
//! | set aside | [`MemoryOptions::capacity_bytes`], until [`Pool::grow`] | `SIGSEGV` in this process; in others it allocates the file's hole |
//! | guard page | [`MemoryOptions::guard`] | `SIGSEGV`, in this process |
//!
//! [`PrivatePool`] offers this for memory without a file. [`Mapping::obtained`] and [`check_backed`] read from the page
//! table what an `os_page` really is: a request alone proves nothing. [`populate`] gives pages of its own to a buffer that comes
//! from elsewhere: `.bss`, the heap, a stack, a mapping.
//!
//! # The ladder
//! ```text
//!   Huge::Prefer    hugetlb, 1 GiB ─▶ hugetlb, 2 MiB ─▶ MADV_HUGEPAGE, prefault, MADV_COLLAPSE ─▶ small pages
//!                      whole number of them, some free            independent of the settings
//!   Huge::Require   like Prefer, rounded up to whole huge pages; small ones are an error
//! ```
//! A rung that is refused costs its system calls. Nothing remains of it, except a range of addresses if the kernel
//! refuses to map.
//!
//! # Growth
//! A memory file is sealed at its capacity before another process has it, so that a process that maps it never gets a
//! `SIGBUS` at its end. The part to which it has not grown yet consists of holes, which read as zeroes. Growing fills
//! holes; it opens no seal, and no reader must map again. Readers must be told how much memory there is: an access
//! beyond that allocates memory that was not requested.
//!
//! The size has no owner: after [`Pool::new`] the seals prevent every process from changing it, and from changing the
//! seals. Each [`Mapping`] belongs to its process and is unmapped when dropped.
//!
//! A file on a file system ([`Pool::on_file_system`], [`Mapping::map_unlocked`]) has no seals. If the file is truncated,
//! processes that map it get `SIGBUS`; its user and root can truncate it. So it is made only for a user who asks for
//! it.
//!
//! # Memory that belongs to another program
//! A program that maps another program's memory may leave it out of its core dumps ([`Mapping::leave_out_of_dumps`]),
//! and out of the memory that it locks: [`Mapping::map_unlocked`] prevents `mlockall(MCL_FUTURE)` from locking it, and
//! before `mlockall(MCL_CURRENT)` it is folded ([`Mapping::fold`]).
//!
//! # Ordering
//! There are no rules: the memory is made before another process has the file. Prefaulting may run while the memory is
//! used. On kernels that do not do it themselves, it exchanges a byte for itself atomically.
//!
//! # Cost
//! Prefaulting costs about as much as the faults would have cost, once, and at a known time. [`unbacked_os_pages`] and
//! [`check_backed`] walk the page table once. Huge pages that the kernel puts together are copied into place; those
//! that the system has set aside are zeroed, like all pages. Locking costs no more than prefaulting. A guard page is
//! one more entry in the process's list of mappings. A program that lives for a tenth of a second and writes 6 MiB has
//! 1,500 faults, or three with huge pages.
//!
//! # Limits
//! * The kernel lets each process that has the file punch holes in it. The next access to a hole allocates memory
//!   again, as zeroes.
//! * A mapped file on a disk is written out periodically. The first store to an `os_page` afterwards faults, and may
//!   wait.
//! * Memory that is present may be swapped out later. To prevent that, use no swap, or [`MemoryOptions::lock`].
//! * Pages that the kernel moves are temporarily not in the page table: by compaction, balancing among NUMA nodes, or
//!   later replacement by huge pages. The next access faults, even if memory is locked.
//! * A guard page follows the last `os_page`: an overrun that stays within the rest of the last `os_page` is not
//!   caught.
//! * The node of a CPU is looked up when memory is made. If a node is only preferred, or the kernel does not allow a choice,
//!   [`Obtained::nodes`] tells the result.
//! * The amount of available memory is checked before memory is taken. Between the two, other processes can take it.
//! * Linux 3.17 or later. Before 5.14 prefaulting touches page by page; before 6.7 only root's audit can see the zero
//!   page; before 6.1 a pool has no huge pages.
//!
//! # Source
//! `memfd_create(2)`, `fcntl(2)` on sealing, `madvise(2)`, the kernel's `Documentation/admin-guide/mm/pagemap.rst`;
//! Xinyu Chen, "ZERO PAGE removal influence: Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008).

mod audit;
mod available;
mod check;
mod error;
mod mapping;
pub mod maps;
mod numa;
mod options;
pub mod page_table;
mod pool;
mod populate;

pub use audit::{try_pagemap_scan, unbacked_os_pages};
pub use available::available_bytes;
pub use check::{MissingBytes, NotBacked, assert_backed, check_backed, check_backed_raw};
pub use error::BackingError;
pub use mapping::Mapping;
pub use numa::node_of_cpu;
pub use options::{Huge, MemoryOptions, Nodes, Obtained};
pub use pool::{Pool, PrivatePool};
pub use populate::{NotPopulated, populate, populate_raw};

/// Returns the number of bytes of a page of the operating system.
pub fn os_page_size() -> usize {
    // rustix's function is not used: it looks for the vDSO in the kernel's auxiliary vector, and faults if valgrind has
    // hidden it.
    // SAFETY: the call has no pointers; libc answers from a variable.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Returns the size of a huge page in bytes: the memory that one entry of the second lowest page table maps. The kernel
/// tells it; the first call reads a file. x86-64 has 2 MiB; AArch64 has 2 MiB, 32 MiB or 512 MiB, for `os_page`s of 4, 16
/// or 64 KiB.
pub fn huge_page_size() -> usize {
    *HUGE_PAGE_SIZE.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
        text.ok().and_then(|text| huge_page_size_in(&text)).unwrap_or_else(|| usual_huge_page_size(os_page_size()))
    })
}

/// Returns the boundary on which a huge page may begin, as far as it is known without reading a file: for programs whose
/// filter of system calls may kill them for that.
pub(crate) fn huge_page_alignment() -> usize {
    HUGE_PAGE_SIZE.get().copied().unwrap_or_else(|| usual_huge_page_size(os_page_size()))
}

static HUGE_PAGE_SIZE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();

/// Returns the size that the kernel's file states.
fn huge_page_size_in(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|size: &usize| size.is_power_of_two() && *size > os_page_size())
}

/// Returns the size of a huge page if a page table is an `os_page` of entries of eight bytes. s390x has tables of 256
/// entries.
const fn usual_huge_page_size(os_page_size: usize) -> usize {
    if cfg!(target_arch = "s390x") { 1 << 20 } else { os_page_size / 8 * os_page_size }
}

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod tests;
