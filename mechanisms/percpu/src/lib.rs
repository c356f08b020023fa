//! Per-CPU data that several threads and several processes change without locked instructions.
//!
//! # The problem
//! A traced program counts and appends on every CPU at once. If all CPUs share one word, its cache line travels between
//! them. A word per thread needs a registry of threads, and does not merge across processes. A word per CPU is the
//! right number of words, but a thread may be moved to another CPU between reading and writing it.
//!
//! # The picture
//! A [restartable sequence](Rseq) lets a thread run a few instructions, of which only the last makes anything visible
//! to other threads. If the kernel preempts or moves the thread, or delivers a signal to it, before that store, the
//! sequence starts over and nothing has happened:
//!
//! ```text
//!   rseq_cs = &descriptor
//!   ┌ cpu_id == cpu ?  ──no──▶ Aborted
//!   │ *guard == expected ?  ──no──▶ GuardChanged        preempted, migrated, signalled: Aborted
//!   │ plain stores, which no reader follows yet           killed: as if it had never begun
//!   └ final store                                         ◀─ the one instruction that commits
//!   rseq_cs = null
//! ```
//!
//! The words are stored in an [`Area`], interlaced: the words of one CPU are adjacent, and the next CPU's words are one
//! stride on.
//!
//! ```text
//!   base          base + stride       base + 2 × stride
//!   │ a₀ b₀ c₀ …  │ a₁ b₁ c₁ …        │ a₂ b₂ c₂ …         address = base + offset + (cpu << stride_shift)
//! ```
//!
//! Computing an address reads no table: it takes two additions and a shift. Because objects are interlaced, and are not
//! arrays indexed by CPU, a working set of many objects costs less (`dormouse lab run percpu` measures how much).
//!
//! [`per_cpu!`] defines variables of which every CPU has a copy. A [`Pool`] allocates and frees objects:
//!
//! ```
//! use dormouse_percpu::{Pool, PoolOptions};
//!
//! let pool = Pool::new(&PoolOptions::default())?;
//! let hits = pool.alloc_for::<u64>()?;
//! for cpu in 0..pool.view().cpu_count() {
//!     // SAFETY: a live object of this pool, a CPU that it has; zeroes are a valid `u64`, which no other thread writes.
//!     let copy = unsafe { &mut *pool.view().address(hits, cpu).cast::<u64>() };
//!     *copy += 1;
//! }
//! assert_eq!(pool.leaks().next().map(|leak| (leak.size_bytes, leak.count)), Some((8, 1)));
//! // SAFETY: the object is not used any more.
//! unsafe { pool.free(hits) }?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # States and their writers
//!
//! | word | written by |
//! | --- | --- |
//! | the thread's `rseq_cs` | the thread, at both ends of a section; the kernel, when it has handled it |
//! | a thread's rseq structure, except `rseq_cs` | the kernel, once it is registered |
//! | a word written under rseq | any thread that is on the word's CPU, inside a section |
//! | a node's link | the thread that pushes it, until it is on the list; then no thread until one has popped it |
//! | a word written by atomics | any thread |
//! | a word under exclusive claim | the claimant, by [`apply_exclusive`] |
//! | a word of a pool's object, or a copy of a [`Variable`] | [`Words`]: all threads of a process by sections, or all under locks |
//!
//! A word is never in two rows at once: a section loads and stores, so an atomic addition from another CPU between the
//! two would be lost. [`RseqU64`] and [`PerCpuCounterSlot`] enforce this by their types.
//!
//! # Counters
//! The exact sum of a [`PerCpuCounter`] takes a load for each CPU; an approximation takes one load. What a CPU has
//! counted is folded into a shared word when it reaches a threshold. [`Histogram`] counts values in log-linear buckets.
//! In both, a CPU's words are running totals that are never reduced, so a thread that is killed has either added its
//! value or not.
//!
//! # Ordering
//! On one CPU, the sections of all threads and processes are ordered, and each sees what the one before wrote: the
//! kernel switches between them. For readers on other CPUs the final store is a release: on x86-64, stores become
//! visible in program order; on aarch64 it is a `stlr` if plain stores precede it; and the assembly is a compiler
//! barrier. It pairs with the acquire by which readers load the final word.
//!
//! `rseq_cs` is cleared at the end of each section, although the kernel would do so later. Otherwise a thread that
//! committed and then sleeps while another thread unloads the library (`dlclose`) would be killed when it wakes,
//! because the kernel reads the descriptor through that pointer. Clearing is one store to a line that the thread has
//! just written.
//!
//! # Cost
//! An addition has no locked instruction; `dormouse lab run percpu` compares it with one that has. The section of a
//! transaction also loads the transaction's words.
//!
//! # Operations
//!
//! | method of [`Rseq`] | section (its pseudo-code) | use |
//! | --- | --- | --- |
//! | [`load`](Rseq::load) | `rseq_load` | the value of a word on that CPU |
//! | [`store`](Rseq::store) | `rseq_store` | the last value wins |
//! | [`add`](Rseq::add) | `rseq_load_add_store` | counters |
//! | [`add_by_stride`](Rseq::add_by_stride) | `rseq_cpu_shift_add` | counters whose word the section finds |
//! | [`compare_and_store`](Rseq::compare_and_store) | `rseq_load_cbne_store` | anything that fits into a word |
//! | [`push`](Rseq::push) | `rseq_load_store_store` | lists: [`List`] |
//! | [`pop`](Rseq::pop) | `rseq_load_cbeq_load_store` | lists: [`List`] |
//! | [`copy_and_store`](Rseq::copy_and_store) | `rseq_load_cbne_memcpy_store` | a record of any size, published by one word |
//! | [`commit`](Rseq::commit) | `rseq_load_cbne_stores_store` | a transaction planned elsewhere |
//!
//! Each is one attempt. A caller that retries asks for the CPU again, and limits its attempts. Callers fall back from
//! rseq to atomic instructions on the CPU's slot, and to atomic instructions on a shared slot if the CPU is not known.
//! [`Words`] retries on any word of a pool's objects until a section has completed, and takes locks in a process
//! without rseq.
//!
//! [`fence`] waits for the sections that run on a CPU: after it, none uses what was replaced before it.
//!
//! # Registration
//! glibc (2.35 or later) registers every thread. If libc does not, [`Rseq::detect`] registers the calling thread, and
//! each other thread calls [`Rseq::register_thread`] on its slow path. The registration ends with the thread. Forked
//! children keep it; children of `vfork` have none.
//!
//! # Limits
//! * x86-64 and aarch64 Linux. Elsewhere, with the feature `generic`, and if the kernel has no rseq (valgrind, qemu-user),
//!   [`Rseq::detect`] returns `None`, and the caller takes its fallback.
//! * A library that has registered threads itself must not be unloaded before they have ended.
//! * A debugger that single-steps through a section aborts it each time.
//! * `cpu_id` excludes other processes of one kernel, not other virtual machines that share memory.
//!
//! # Source
//! Ravikiran G. Thirumalai, "Re: \[PATCH 4/3\] Replace dynamic percpu implementation" (2003): it compares allocators
//! and leaves one as "todo", pointer arithmetic with interlacing, which is the layout here. The kernel's `rseq(2)` ABI.
//! The conventions of librseq (pseudo-code names, injection points).
#![cfg_attr(not(test), no_std)]

mod alloc;
mod arch;
mod area;
mod counter;
mod fence;
mod histogram;
#[cfg(test)]
mod inject;
mod list;
mod node;
mod register;
mod rseq;
mod signals;
mod txn;
mod variable;
mod words;

pub use alloc::{
    AllocError, Attached, Corruption, Leak, MemoryKind, OBJECT_SIZE_BYTES_MAX, Object, Pool, PoolOptions, Region,
    Requirement, Shortage, Usage, View, possible_cpus,
};
pub use area::{Area, PerCpu};
pub use counter::{PerCpuCounter, PerCpuCounterShared, PerCpuCounterSlot, RseqU64};
pub use fence::{FenceError, fence};
pub use histogram::{Histogram, HistogramLayout};
pub use list::{List, ListSlot};
pub use node::Node;
pub use rseq::{PopOutcome, Rseq, current_cpu};
pub use txn::{Commit, apply_exclusive};
pub use variable::{Variable, Word};
pub use words::{Copying, Update, Width, WordError, Words};

#[cfg(test)]
mod tests;
