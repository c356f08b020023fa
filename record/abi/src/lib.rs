//! Every byte layout that two parties of Dormouse share, and nothing else.
//!
//! The write side (traced programs) and the read side (the session owner) are separate programs, often of separate
//! versions. They meet only in this crate: constants, `repr(C)` structures whose sizes are proven by const asserts, and
//! pure encoders and decoders. No system call, no allocation outside [`message`], [`class`], [`text`], [`environment`] and by readers of
//! [`register`], no policy but that of [`requests`].
//!
//! ```text
//!   one memfd, made by the session owner, sealed against shrinking
//!   ┌────────────────┬─────────────┬───────────────────────┬────────────────────────┬───────────────────┐
//!   │ SessionHeader  │ owner words │ StreamControl × n     │ ring region × n        │ pages             │
//!   │ 4 KiB          │ 8 B a page  │ one stride each       │ chain, desc, avail,    │ page_size each:   │
//!   │                │             │                       │ used                   │ a CTF packet      │
//!   └────────────────┴─────────────┴───────────────────────┴────────────────────────┴───────────────────┘
//!     session          session       session, percpu         vring                    page, record
//! ```
//!
//! * [`site`]: the 16-byte record of a patchable site, and the section names.
//! * [`tunable`]: which names and values a tunable may have.
//! * [`class`]: event classes as C programs lay them out, and the kinds of a field.
//! * [`register`]: where programs enter themselves and their classes, behind the pages.
//! * [`session`]: header, state word, owner word, control block of a stream.
//! * [`page`]: the header of a page, which is a CTF packet header and context.
//! * [`record`]: the header of an event record.
//! * [`vring`]: the split virtqueue (VirtIO 1.2, clause 2.7).
//! * [`rseq`]: the kernel's rseq structure and descriptor.
//! * [`txn`]: a list of stores that becomes visible by its final store.
//! * [`message`]: what programs, session owners and tools tell one another, over Unix sockets.
//! * [`environment`]: where they find one another.
//! * [`text`]: what of a text may be printed.
//! * [`requests`]: which signals that ask for an end are one request.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod call;
pub mod class;
pub mod environment;
pub mod message;
pub mod page;
pub mod record;
pub mod register;
pub mod requests;
pub mod rseq;
pub mod session;
pub mod site;
pub mod text;
pub mod trigger;
pub mod tunable;
pub mod txn;
pub mod vring;
