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
//! | part of a huge page | [`Pool::use_huge_pages`] by the owner | faults once for 2 MiB in each process, then is a store |
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
//! page table once. A program that lives for a tenth of a second and writes 6 MiB has 1,500 faults, or with huge pages three.
//!
//! # Limits
//! * The kernel lets whoever has the file punch holes in it; the next access to one allocates anew, as zeroes.
//! * A mapped file on a disk is written out now and then; the first store to an `os_page` afterwards faults, and may wait.
//! * Memory that is there may be swapped out later; where that matters, there should be no swap, or `mlock`.
//! * That there is enough memory is asked before it is taken. Between the two, others can take it.
//! * Linux 3.17 or later. Before 5.14 prefaulting touches page by page; before 6.7 only root's audit can see the zero page;
//!   before 6.1 a pool has no huge pages.
//!
//! # Source
//! `memfd_create(2)`, `fcntl(2)` on sealing, `madvise(2)`, the kernel's `Documentation/admin-guide/mm/pagemap.rst`;
//! C. Chen's report on the zero page (2008).

mod audit;
mod available;
mod error;
mod mapping;
pub mod maps;
pub mod page_table;
mod pool;

pub use audit::{try_pagemap_scan, unbacked_os_pages};
pub use error::BackingError;
pub use mapping::Mapping;
pub use pool::{Pool, PoolOptions};

/// Bytes of a page of the operating system.
pub fn os_page_size() -> usize {
    rustix::param::page_size()
}

#[cfg(test)]
mod tests;
