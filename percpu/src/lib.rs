//! Per-CPU data that several threads, and several processes, change without locked instructions.
//!
//! # The problem
//! A traced program counts and appends on every CPU at once. One shared word makes its cache line travel; a word per
//! thread needs a registry of threads, and does not merge across processes; a word per CPU is the right number of words,
//! but a thread may be moved to another CPU between reading and writing it.
//!
//! # The picture
//! A [restartable sequence](Rseq) lets a thread run a few instructions of which the last is the only store that anybody
//! else goes by. If the kernel preempts or moves the thread or delivers a signal to it before that store, the sequence
//! starts over and nothing has happened:
//!
//! ```text
//!   rseq_cs = &descriptor
//!   ┌ cpu_id == cpu ?  ──no──▶ Aborted
//!   │ *guard == expected ?  ──no──▶ GuardChanged        preempted, migrated, signalled: Aborted
//!   │ plain stores, which nobody reads yet                killed: as if it had never begun
//!   └ final store                                         ◀─ the one instruction that commits
//!   rseq_cs = null
//! ```
//!
//! The words lie in an [`Area`], interlaced: the words of one CPU stand together, the next CPU's one stride on.
//!
//! ```text
//!   base          base + stride       base + 2 × stride
//!   │ a₀ b₀ c₀ …  │ a₁ b₁ c₁ …        │ a₂ b₂ c₂ …         address = base + offset + (cpu << stride_shift)
//! ```
//!
//! No table is read on the way. That the CPUs' objects are interlaced (and not that each object is an array by CPU) is
//! what costs 5 to 20 times less on a working set; the address arithmetic costs as little as a static offset.
//!
//! A [`Pool`] hands such objects out and takes them back, in this layout ([`Interlaced`]) or in one of four others:
//!
//! ```
//! use dormouse_percpu::{Interlaced, Pool, PoolOptions};
//!
//! let pool = Pool::<Interlaced>::new(&PoolOptions::default())?;
//! let hits = pool.alloc_for::<u64>()?;
//! for cpu in 0..pool.view().cpu_count() {
//!     // SAFETY: a live object of this pool, a CPU that it has; zeroes are a valid `u64`, and nobody else writes it.
//!     let copy = unsafe { &mut *pool.view().address(hits, cpu).cast::<u64>() };
//!     *copy += 1;
//! }
//! assert_eq!(pool.leaks().next().map(|leak| (leak.size_bytes, leak.count)), Some((8, 1)));
//! // SAFETY: nobody uses the object any more.
//! unsafe { pool.free(hits) }?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # States and their owners
//!
//! | word | who may write it |
//! | --- | --- |
//! | the thread's `rseq_cs` | the thread, at the ends of a section; the kernel, when it has seen it |
//! | a word written under rseq | any thread that is on the word's CPU, inside a section |
//! | a word written by atomics | anybody |
//! | a word under exclusive claim | the claimant, by [`apply_exclusive`] |
//!
//! One word is never in two rows at once: a section loads and stores, so an atomic addition from another CPU that falls
//! between the two is lost. [`RseqU64`] and [`CounterSlot`] make types of this.
//!
//! # Ordering
//! On one CPU, sections of whatever thread or process follow each other, and each sees what the former wrote: the kernel
//! switches between them. For readers elsewhere the final store is a release: on x86-64 stores become visible in program
//! order, and the assembly is a compiler barrier. It pairs with the acquire by which readers load the final word.
//!
//! `rseq_cs` is cleared at the end of each section although the kernel would do so lazily. Were it left dangling, a
//! thread that committed and then sleeps while another thread unloads the library (`dlclose`) would be killed when it
//! wakes, because the kernel reads the descriptor through that pointer. The clearing is one store to a line that the
//! thread has just written.
//!
//! # Cost
//! One uncontended addition takes about as long as a plain thread-local one; a section of a transaction adds a few loads
//! from the transaction.
//!
//! # Limits
//! * x86-64 Linux with libc's registration (glibc 2.35 or later). Elsewhere [`Rseq::detect`] says `None`, and the caller
//!   takes its fallback. This crate never registers an area itself: a thread can have one only.
//! * Debuggers that single-step through a section abort it each time.
//! * `cpu_id` excludes across processes of one kernel, not across virtual machines that share memory.
//!
//! # Source
//! K. Thirumalai's comparison of per-CPU allocators (2003), whose "todo", pointer arithmetic with interlacing, is the
//! layout here; the kernel's `rseq(2)` ABI; the conventions of librseq (pseudo-code names, injection points).
#![cfg_attr(not(test), no_std)]

mod alloc;
mod arch;
mod area;
mod counter;
#[cfg(any(test, feature = "inject"))]
pub mod inject;
mod rseq;
mod txn;

pub use alloc::{
    AllocError, AreaScheme, Attached, Contiguous, Corruption, FreeError, Interlaced, Leak, Need, OBJECT_SIZE_BYTES_MAX,
    Object, OffsetTable, Part, PointerArray, Pool, PoolOptions, Region, Relocatable, Scheme, Shortage, StaticAreas,
    Usage, View, possible_cpus,
};
pub use area::{Area, Offsets, PerCpu};
pub use counter::{Counter, CounterSlot, RseqU64};
pub use rseq::Rseq;
pub use txn::{Commit, apply_exclusive};

#[cfg(test)]
mod tests;
