//! Page-backed buffers: pages from one budget form a stream for each CPU; a record's space is reserved, the record is
//! written, and one final store commits it.
//!
//! # The problem
//! A tracer's buffer must take a record in nanoseconds from any thread, signal handler or process, lose no committed
//! record when a writer is killed, and use no memory where nothing happens. LTTng's answer was a buffer that looks
//! contiguous but is made of pages, with the current page cached. Here the position of the current page is part of the
//! one word that commits.
//!
//! # The picture
//! ```text
//!   state word of stream 3: seq 41 │ unit of page C │ offset 1,288
//!                                        │
//!   pages:  … 38   39   40  (41)         ▼
//!            │     │    │        ┌──────────────────────────────┬───────────────┐
//!            ▼     ▼    ▼        │ header │ records, committed  │ undefined     │   page C
//!         retained or offered    └──────────────────────────────┴───────────────┘
//!                                                               ▲ offset
//! ```
//! A page is FREE, DRAWN (by one process, for one stream), QUEUED (closed as number *k* of a stream) or WITHHELD
//! (beyond the budget); [`dormouse_abi::session`] lists the transitions and who may make them.
//!
//! # Why it is right
//! * A record's bytes are above `offset` until the final store of the state word moves it. The store is the last
//!   instruction of an rseq critical section that has compared the CPU, so no other writer of the stream ran in
//!   between. x86-64 keeps stores in order, and on AArch64 the store is a release, so a reader that reads the word
//!   (Acquire) can read the bytes. A killed or aborted writer leaves nothing.
//! * Closing a page and opening the next is one transaction that ends in the state word ([`Memory::plan_switch`]). The
//!   next writer or the owner derives the consequence (the closed page must be offered) from the word.
//! * A compact record has half of its time. [`dormouse_abi::record`] argues why a reader finds the other half, wherever
//!   a writer is killed.
//! * A page changes its owner by one compare-and-swap of its owner word. The word says who has the page and, once the
//!   page is closed, its number in the stream, so a belated second attempt at the same change finds another value and
//!   does nothing.
//! * To give up a flight recorder's oldest page, a thread reads `reclaimed`, finds with this value and the state word
//!   that the page is retained, and then advances `reclaimed` by a compare-and-swap that succeeds only if it still has
//!   this value. However late that happens, no page is given up before it is closed.
//!
//! # Cost
//! Writing: one read of the state word, one clock read, the record's stores, one final store; no atomic
//! read-modify-write. Drawing a page: a walk over the owner words, once for each page. A stream that was never written
//! to uses no memory.
//!
//! # The budget
//! All streams draw from one budget. Its first pages are kept pages: only the stream for which they are kept draws
//! them, and it draws them last. So a stream that takes all pages that it can get leaves the kept pages to the others.
//! The budget's last pages may be beyond the limit ([`Memory::set_page_count_limit`]): they are not drawn, and the
//! owner releases the memory of each once it is free or, if a flight recorder retains it, once the owner has moved its
//! records to another page.
//!
//! # Without a session
//! The crate `dormouse-relay-chain` applies the idea as a separate library: a buffer of pages from a budget in any
//! memory, for callers that have records and readers of their own.
//!
//! # Limits
//! A record fits in a page ([`dormouse_abi::page::record_size_max_bytes`]). [`arch`] has x86-64 and AArch64;
//! elsewhere, and without rseq, one claimant at a time writes a stream ([`write_exclusive`]). Sessions need 64-bit
//! addresses.
//!
//! # Source
//! Mathieu Desnoyers and others, "LTTng optimize write to page function", 2009; restartable sequences, Linux 4.18.

#![cfg_attr(not(test), no_std)]
#![cfg(target_pointer_width = "64")]

mod abi;
pub mod arch;
#[cfg(test)]
#[path = "../../../record/abi/src/atomic.rs"]
mod atomic;
/// The atomics of this crate; tests replace them.
#[cfg(not(test))]
mod atomic {
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
mod memory;
#[cfg(test)]
mod model;
mod retained;
mod write;

pub use memory::{Census, Drawer, Memory, Setup};
pub use write::{Form, Record, Segment, WriteOutcome, begin_epoch, write_exclusive};
