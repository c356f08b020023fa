//! Page-backed buffers: pages from one budget, one after another in a stream for each CPU, and records
//! that are reserved, written and committed by one final store.
//!
//! # The problem
//! A tracer's buffer must take a record in nanoseconds from any thread, signal handler or process, lose nothing that was
//! committed when a writer is killed, and cost no memory where nothing happens. LTTng's answer was a buffer that looks
//! contiguous but is made of pages, with the current page cached. Here the page in use is part of the one word that commits.
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
//! A page is FREE, DRAWN (by one process, for one stream), QUEUED (closed as number *k* of a stream) or WITHHELD (beyond the budget);
//! [`dormouse_abi::session`] has the transitions and who may make them.
//!
//! # Why it is right
//! * A record's bytes lie above `offset` until the final store of the state word moves it. The store is the last instruction
//!   of an rseq critical section that has compared the CPU, so no other writer of the stream ran in between. x86-64
//!   keeps stores in order, so a reader that reads the word (Acquire) can read the bytes. A killed or aborted writer leaves nothing.
//! * Closing a page and opening the next is one transaction that ends in the same word ([`Memory::plan_switch`]).
//!   What follows from it (a page is to be offered) is derived from the word, by the next writer or the owner.
//! * A compact record has half of its time. [`dormouse_abi::record`] argues why a reader finds the other half, wherever a writer is killed.
//! * A page changes its owner by one compare-and-swap of its owner word. The words contain who has the page and as which page number,
//!   so a late repetition finds another value and does nothing.
//! * A page of a flight recorder is given up by moving `reclaimed` on from the same value from which the page was counted as retained. However
//!   late that happens, no page is given up before it is closed.
//!
//! # Cost
//! Writing: one read of the state word, one clock read, the record's stores, one final store; no atomic read-modify-write.
//! Drawing a page: a walk over the owner words, once for each page. A stream that was never written to costs no memory.
//!
//! # Whose pages
//! All streams draw from one budget. Its first pages are kept pages: only the stream that they are kept for draws them, and it draws them
//! last. So a stream that takes all that it can get leaves the others that much. Its last pages may be beyond the limit
//! ([`Memory::set_page_limit`]): nobody draws them, and the owner takes their memory away once they are free, or moves what is retained there.
//!
//! # Without a session
//! The crate `dormouse-relay-chain` is the same idea as a library of its own: a buffer of pages from a budget in any memory, for
//! callers that have records and readers of their own.
//!
//! # Limits
//! A record fits in a page ([`dormouse_abi::page::record_size_max_bytes`]). [`arch`] has x86-64; elsewhere, and without
//! rseq, one claimant at a time writes a stream ([`write_exclusive`]). Sessions need 64-bit addresses.
//!
//! # Source
//! Mathieu Desnoyers and others, "LTTng optimize write to page function", 2009; restartable sequences, Linux 4.18.

#![cfg_attr(not(test), no_std)]
#![cfg(target_pointer_width = "64")]

pub mod arch;
mod memory;
#[cfg(test)]
mod model;
mod retained;
mod write;

/// The words of [`retained`]; its model has others.
mod atomic {
    pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
}

pub use memory::{Census, Drawer, Memory, Setup};
pub use write::{Form, Record, Segment, Written, begin_epoch, write_exclusive};
