//! Where the memory comes from, and whether it is really there.
//!
//! # The problem
//! A traced program must never be killed for the tracer's sake, and must never be slow for reasons that nobody sees. Memory
//! that several processes share can do both: it can be truncated by whoever holds its file (the next access is a
//! `SIGBUS`), it can run out at the moment of the first write (`SIGBUS` again), and memory that nobody has written yet is
//! a page fault at each first touch, or one single page of zeroes that makes a benchmark read too fast.
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
//! | an `os_page` of the pool is | after | its first write |
//! | --- | --- | --- |
//! | nothing | `ftruncate` | faults and allocates; without memory `SIGBUS` or the OOM killer |
//! | allocated in the file | [`Pool::prefault`] by anybody | faults once in each process |
//! | in the page table | [`Pool::prefault`] by this process | is a store |
//! | part of a huge page | [`Pool::use_huge_pages`] by the owner, or [`Huge::Prefer`] | faults once for 2 MiB in each process, then is a store |
//! | locked | [`MemoryOptions::lock`] | is a store, and it is not swapped out |
//! | reserved | [`MemoryOptions::capacity_bytes`], until [`Pool::grow`] | `SIGSEGV` in this process; in others the file's hole |
//! | guard | [`MemoryOptions::guard`] | `SIGSEGV`, in this process |
//!
//! [`PrivatePool`] has the same of memory without a file. What an `os_page` really is, [`Mapping::obtained`] and [`check_backed`] read from the page
//! table: nothing is believed because it was asked for.
//!
//! # The ladder
//! ```text
//!   Huge::Prefer    hugetlb, 1 GiB ─▶ hugetlb, 2 MiB ─▶ MADV_HUGEPAGE, prefault, MADV_COLLAPSE ─▶ small pages
//!                      whole number of them, some free            whatever the settings say
//!   Huge::Require   the same, rounded up to 2 MiB; small pages are an error
//! ```
//! A rung that is refused costs its calls, and nothing stays of it but, where the kernel refuses to map, a range of addresses.
//!
//! # Growth
//! A memory file is sealed at its capacity before anybody else has it, so that nobody who maps it can ever meet a `SIGBUS` at its end: what it
//! has not grown to yet are holes, which read as zeroes. Growing fills holes; it needs no seal to be open, and no reader to map anew.
//! Who reads has to be told how much is there, and what a reader touches beyond it is memory that nobody has asked for.
//!
//! The size belongs to nobody: after [`Pool::new`] the seals forbid any change of it, and of the seals, to everybody. Each
//! [`Mapping`] belongs to its process and is unmapped when dropped.
//!
//! A file on a file system ([`Pool::on_file_system`], [`Mapping::map_file`]) has no seals: whoever may write to it, its user
//! and root, can truncate it, and kills by that everybody who has it mapped. So it is made only for a user who asks for it.
//!
//! # Ordering
//! None: the memory is made before anybody else has the file. Prefaulting may run beside users of the memory: what it
//! stores, on kernels that leave it to us, is an atomic exchange of a byte for itself.
//!
//! # Cost
//! Prefaulting costs about what the faults would have cost, once, and at a known time. [`unbacked_os_pages`] walks the
//! page table once, [`check_backed`] too. Huge pages that the kernel puts together are copied into place; those that are set aside are zeroed, as
//! any. Locking costs no more than prefaulting. A guard is two entries more in the process's list of mappings. A program that lives for a tenth of a second and writes 6 MiB has 1,500 faults, or with huge pages three.
//!
//! # Limits
//! * The kernel lets whoever has the file punch holes in it; the next access to one allocates anew, as zeroes.
//! * A mapped file on a disk is written out now and then; the first store to an `os_page` afterwards faults, and may wait.
//! * Memory that is there may be swapped out later; where that matters, there should be no swap, or [`MemoryOptions::lock`].
//! * What the kernel moves, it takes out of the page table for a moment: compaction, balancing among NUMA nodes, pages that become huge ones
//!   later. The next access faults, also where memory is locked.
//! * Guards end whole `os_page`s: who runs over by less than what is left of the last one is not caught.
//! * Which node a processor has is asked when memory is made. A node that is only preferred, or that the kernel does not let one choose, is
//!   what [`Obtained::nodes`] tells afterwards.
//! * That there is enough memory is asked before it is taken. Between the two, others can take it.
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
pub use check::{Missing, NotBacked, assert_backed, check_backed, check_backed_raw};
pub use error::BackingError;
pub use mapping::{Mapping, populate};
pub use numa::node_of_cpu;
pub use options::{Huge, MemoryOptions, Nodes, Obtained};
pub use pool::{Pool, PrivatePool};

/// Bytes of a page of the operating system.
pub fn os_page_size() -> usize {
    // Not rustix's: it looks for the vDSO by the kernel's auxiliary vector, and faults where valgrind has hidden it.
    // SAFETY: no pointers; libc answers from a variable.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests;
