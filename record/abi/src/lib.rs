//! All byte layouts that two parties of Dormouse share, and nothing else.
//!
//! Traced programs, the session owner and the readers of traces are separate programs, often of different versions. This
//! crate is all that they share: constants, `repr(C)` structures whose sizes are proven by const asserts, and pure
//! encoders and decoders. No system calls; no allocation except in [`message`], [`class`], [`text`],
//! [`environment`], [`rule`] and by readers of [`register`]; no policy except that of [`requests`].
//!
//! ```text
//!   one memfd, made by `dormouse record` before it starts the owner, sealed against shrinking
//!   ┌────────────────┬─────────────┬───────────────────────┬────────────────────────┬───────────────────┐
//!   │ SessionHeader  │ owner words │ StreamControl × n     │ ring region × n        │ pages             │
//!   │ 4 KiB          │ 8 B a page  │ one stride each       │ chain, desc, avail,    │ page_size each:   │
//!   │                │             │                       │ used                   │ a CTF packet      │
//!   └────────────────┴─────────────┴───────────────────────┴────────────────────────┴───────────────────┘
//!     session          session       session, percpu         vring                    page, record
//! ```
//!
//! * [`site`]: the 16-byte record of a patchable site, and the section names.
//! * [`tag`]: names of tags, and the number that stands for a tag's text.
//! * [`tunable`]: names and values that a tunable may have.
//! * [`class`]: event classes in the layout of C programs, their levels, and the kinds of a field.
//! * [`register`]: the entries of programs and their classes, at the end of the memory.
//! * [`rule`]: which events a session records, and the values that its conditions compare.
//! * [`session`]: header, state word, owner word, control block of a stream, and its table of events that are not
//!   recorded, which follows the pages.
//! * [`page`]: the header of a page, which is a CTF packet header and context.
//! * [`record`]: the header of an event record.
//! * [`vring`]: the split virtqueue (VirtIO 1.2, clause 2.7).
//! * [`rseq`]: the kernel's rseq structure and descriptor.
//! * [`txn`]: a list of stores that becomes visible by its final store.
//! * [`message`]: messages between programs, session owners and tools, over Unix sockets.
//! * [`environment`]: environment variables and socket names by which they find one another.
//! * [`text`]: conversion of text from other processes for printing.
//! * [`requests`]: grouping of signals that ask for an end into requests.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod atomic;
/// The atomics of [`register`], [`rule`] and [`session`]; tests replace them.
#[cfg(not(all(test, target_pointer_width = "64")))]
mod atomic {
    pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
}
pub mod call;
pub mod class;
pub mod environment;
pub mod message;
pub mod page;
pub mod record;
pub mod register;
pub mod requests;
pub mod rseq;
pub mod rule;
pub mod session;
pub mod site;
pub mod tag;
pub mod text;
pub mod trigger;
pub mod tunable;
pub mod txn;
pub mod vring;
