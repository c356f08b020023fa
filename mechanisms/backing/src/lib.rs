//! Memory that is present before it is used, and a check whether memory is present.
//!
//! # The problem
//! A traced program must never be killed by the tracer, and must never be slow for reasons that nobody sees. Memory
//! that several processes share can cause both. Whoever has its file can truncate it: the next access is a
//! `SIGBUS`. It can run out at the first write: `SIGBUS` again. And memory that nobody has written yet is
//! a page fault at each first touch, or the one page of zeroes that makes a benchmark read too fast.
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
//! | an `os_page` of the memory pool is | after | its first write |
//! | --- | --- | --- |
//! | nothing | `ftruncate` | faults and allocates; without memory `SIGBUS` or the OOM killer |
//! | allocated in the file | [`Pool::prefault`] by anybody | faults once in each process |
//! | in the page table | [`Pool::prefault`] by this process | is a store |
//! | part of a huge page | [`Pool::use_huge_pages`] by the owner, or [`Huge::Prefer`] | faults once for 2 MiB in each process, then is a store |
//! | locked | [`MemoryOptions::lock`] | is a store, and it is not swapped out |
//! | set aside | [`MemoryOptions::capacity_bytes`], until [`Pool::grow`] | `SIGSEGV` in this process; in others the file's hole |
//! | guard page | [`MemoryOptions::guard`] | `SIGSEGV`, in this process |
//!
//! [`PrivatePool`] is the same for memory without a file. [`Mapping::obtained`] and [`check_backed`] read from the page table what an
//! `os_page` really is: a request alone proves nothing.
//!
//! # The ladder
//! ```text
//!   Huge::Prefer    hugetlb, 1 GiB ─▶ hugetlb, 2 MiB ─▶ MADV_HUGEPAGE, prefault, MADV_COLLAPSE ─▶ small pages
//!                      whole number of them, some free            whatever the settings say
//!   Huge::Require   the same, rounded up to 2 MiB; small pages are an error
//! ```
//! A rung that is refused costs its calls. Nothing remains of it, except a range of addresses if the kernel refuses to map.
//!
//! # Growth
//! A memory file is sealed at its capacity before anybody else has it, so that a process that maps it never gets a `SIGBUS` at its end. The part
//! that it has not grown to yet are holes, which read as zeroes. Growing fills holes; it opens no seal, and no reader has to map anew.
//! Readers have to be told how much memory there is: what they touch beyond that becomes memory that nobody has asked for.
//!
//! Nobody owns the size: after [`Pool::new`] the seals forbid everybody to change it, and to change the seals. Each
//! [`Mapping`] belongs to its process and is unmapped when dropped.
//!
//! A file on a file system ([`Pool::on_file_system`], [`Mapping::map_file`]) has no seals. If the file is truncated, processes that map it
//! get `SIGBUS`; its user and root can do that. So it is made only for a user who asks for it.
//!
//! # Memory that is not the program's own affair
//! A program that has another's memory mapped may have that left out of its core dumps ([`Mapping::leave_out_of_dumps`]), and out of what it locks:
//! [`Mapping::map_unlocked`] does not have it locked by `mlockall(MCL_FUTURE)`, and before `mlockall(MCL_CURRENT)` it is folded ([`Mapping::fold`]).
//!
//! # Ordering
//! None: the memory is made before anybody else has the file. Prefaulting may run beside users of the memory: on kernels that do not do it
//! themselves, it is an atomic exchange of a byte for itself.
//!
//! # Cost
//! Prefaulting costs about what the faults would have cost, once, and at a known time. [`unbacked_os_pages`] and [`check_backed`] walk the
//! page table once. Huge pages that the kernel puts together are copied into place; those that the system has set aside are zeroed, as
//! all pages are. Locking costs no more than prefaulting. A guard page is one more entry in the process's list of mappings. A program that lives
//! for a tenth of a second and writes 6 MiB has 1,500 faults, or three with huge pages.
//!
//! # Limits
//! * The kernel lets whoever has the file punch holes in it; the next access to a hole allocates memory again, as zeroes.
//! * A mapped file on a disk is written out now and then; the first store to an `os_page` afterwards faults, and may wait.
//! * Memory that is present may be swapped out later. Where that matters, use no swap, or [`MemoryOptions::lock`].
//! * What the kernel moves, it takes out of the page table for a moment: compaction, balancing among NUMA nodes, pages that become huge pages
//!   later. The next access faults, even if memory is locked.
//! * A guard page starts where the last `os_page` ends: an overrun that stays within the rest of the last one is not caught.
//! * The node of a CPU is looked up when memory is made. If a node is only preferred, or the kernel does not allow a choice,
//!   [`Obtained::nodes`] tells the result.
//! * Whether there is enough memory is checked before it is taken. Between the two, others can take it.
//! * Linux 3.17 or later. Before 5.14 prefaulting touches page by page; before 6.7 only root's audit can see the zero page;
//!   before 6.1 a pool has no huge pages.
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

pub use audit::{try_pagemap_scan, unbacked_os_pages};
pub use available::available_bytes;
pub use check::{Missing, NotBacked, assert_backed, check_backed, check_backed_raw};
pub use error::BackingError;
pub use mapping::Mapping;
pub use numa::node_of_cpu;
pub use options::{Huge, MemoryOptions, Nodes, Obtained};
pub use pool::{Pool, PrivatePool};

/// Bytes of a page of the operating system.
pub fn os_page_size() -> usize {
    // Not rustix's: it looks for the vDSO by the kernel's auxiliary vector, and faults if valgrind has hidden it.
    // SAFETY: no pointers; libc answers from a variable.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests;
