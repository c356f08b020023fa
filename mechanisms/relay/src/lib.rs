//! Page-backed buffers: many pages from one budget, chained by page number into one stream for each processor, and records
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
//!   chain:  … 38   39   40  (41)         ▼
//!            │     │    │        ┌──────────────────────────────┬───────────────┐
//!            ▼     ▼    ▼        │ header │ records, committed  │ means nothing │   page C
//!         retained or offered    └──────────────────────────────┴───────────────┘
//!                                                               ▲ offset
//! ```
//! A page is FREE, DRAWN (by one process, for one stream), QUEUED (closed as number *k* of a stream) or WITHHELD (beyond the budget);
//! [`dormouse_abi::session`] has the transitions and who may make them.
//!
//! # Why it is right
//! * A record's bytes lie above `offset` until the final store of the state word moves it. The store is the last instruction
//!   of an rseq critical section that has compared the processor, so no other writer of the stream ran in between; x86-64
//!   keeps stores in order, so whoever reads the word (Acquire) reads the bytes. A killed or aborted writer leaves nothing.
//! * Closing a page and opening the next is one transaction that ends in the same word ([`Memory::plan_switch`]).
//!   All that follows from it (a page is to be offered) is derived from the word, by whoever comes next.
//! * A compact record has half of its time. [`dormouse_abi::record`] argues why a reader finds the other half, wherever a writer dies.
//! * A page goes from hand to hand by one compare-and-swap of its owner word; words carry who and which page number,
//!   so a late repetition finds another value and does nothing.
//! * A page of a flight recorder is given up by moving `reclaimed` on from the very value from which it was counted as retained, so however
//!   late that is, no page is given up before it is closed.
//!
//! # Cost
//! Writing: one read of the state word, one clock read, the record's stores, one final store; no atomic read-modify-write.
//! Drawing a page: a walk over the owner words, once for a page. A stream that was never written to costs no memory.
//!
//! # Whose pages
//! All streams draw from one pool. Its first pages are reserves: only the stream that they are kept for draws them, and it draws them
//! last; so one that takes all it can get leaves the others that much. Its last pages may be beyond the limit ([`Memory::set_page_limit`]):
//! nobody draws them, and the owner takes their memory away once they are free, or moves what is retained there.
//!
//! # Without a session
//! [`chain`] is the same idea as a library of its own: a buffer of pages from a budget in any memory, with the ways of [`copy`] to
//! write to it, for whoever has records and readers of his own.
//!
//! # Limits
//! A record fits a page ([`dormouse_abi::page::record_size_max_bytes`]). [`arch`] has x86-64; elsewhere, and where there is
//! no rseq, a stream is written by one claimant at a time ([`write_exclusive`]). Sessions are of machines with 64-bit addresses; on
//! others there are [`chain`] and [`copy`] alone.
//!
//! # Source
//! Mathieu Desnoyers and others, "LTTng optimize write to page function", 2009; restartable sequences, Linux 4.18.

#![cfg_attr(not(test), no_std)]

#[cfg(target_pointer_width = "64")]
pub mod arch;
pub mod chain;
pub mod copy;
#[cfg(target_pointer_width = "64")]
mod memory;
#[cfg(target_pointer_width = "64")]
mod retained;
#[cfg(target_pointer_width = "64")]
mod write;

#[cfg(target_pointer_width = "64")]
pub use memory::{Census, Drawer, Memory, Setup};
#[cfg(target_pointer_width = "64")]
pub use write::{Form, Record, Segment, Written, begin_epoch, write_exclusive};
