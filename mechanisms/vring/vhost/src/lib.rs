//! Virtqueues shared with other processes over vhost-user: both ends of it, for block devices.
//!
//! # The problem
//! A virtqueue is worth as much as the peers that speak it. Daemons and virtual machines that nobody here wrote hand queues over by a
//! protocol on a Unix socket, and have expectations of memory, notifications and order that no test among ourselves finds out.
//!
//! # The picture
//! ```text
//!   front end: BlockDevice                          back end: BackEnd
//!        │  features, memory (memfd), rings, kick and call (eventfd)
//!        ├──────────────── socket ────────────────────▶ │ one thread of control
//!        │                                              │
//!   BlockQueue ── descriptors, avail ──┐      ┌──────▶ one thread for each ring
//!     read, write, flush        ┌──────▼──────┴───┐    pop, Served::serve, push
//!     submit, wait, complete ◀──│  shared memory  │◀── used
//!                               └─────────────────┘
//! ```
//! The control plane's messages are the crate `vhost`'s; rings and all that is in them are [`dormouse_vring`]'s.
//!
//! # States and their owners
//!
//! | a ring is | owner | moved on by |
//! | --- | --- | --- |
//! | described | front end | size, base, addresses, call and kick, in any order |
//! | enabled | both | `SET_VRING_ENABLE`; the back end has a thread for it from now on |
//! | stopped | front end | `GET_VRING_BASE`, or any message that changes it; the thread has ended when it is answered |
//! | abandoned | front end | the back end hung up: [`BlockDevice::reconnect`] makes new rings, in new memory |
//!
//! Memory belongs to the front end. The back end maps what it is given, and unmaps it when it is told of other memory, or the front end is
//! gone: no thread has an address of it then.
//!
//! # What was in flight
//! Requests that a device had when it ended are given to the next one in the order in which they were made. Whether the first did some
//! of them is not known, so they may be done twice: for reads and writes of blocks that is the same as once.
//!
//! # Features
//! What is not implemented is neither offered nor accepted: version 1, indirect tables, event indexes, packed rings, use in order; of
//! block devices sizes, several queues, read-only, and flush. Of the protocol: several queues, acknowledgements, configuration space, and
//! (back end) memory that comes and goes in pieces.
//!
//! # Ordering
//! That of [`dormouse_vring`]. A kick or a call is sent after what it is about was published, and whoever waits looks once more between
//! asking for it and sleeping.
//!
//! # Trust
//! The back end believes nothing: each message is checked before it is acted upon, and what is wrong ends the connection; each address is
//! looked up in the driver's memory; what a driver does in a ring that no honest one does is counted, and its buffer comes back where it is
//! known which one it is. It reads nothing from event files, which could block, and writes to them only where that cannot. It refuses
//! memory that could become less, and end it by that, unless [`BackEndOptions::requires_seal`] says otherwise.
//!
//! The front end believes a device's data, which is what it is for, and nothing else: used elements are checked, a device that does
//! not answer is given up, and one that seemed to be gone has no memory of ours that is still in use.
//!
//! # Cost
//! Data is copied once on each side. A kick is a system call, and so is a call; with event indexes there is one for as many requests as
//! come while the other side is busy.
//!
//! # Limits
//! No live migration: no dirty log, no in-flight memory, no device state. Rings are served by kicks only, not by polling. The back end
//! serves one driver at a time, and finishes each buffer before it looks at the next.
//!
//! # Source
//! VirtIO 1.2, clauses 2.6 to 2.8 and 5.2; QEMU's `docs/interop/vhost-user.rst`.
mod back;
mod bench;
mod blk;
mod device;
mod disk;
mod error;
mod front;
mod ring;
mod served;
mod shared;

pub use back::{BackEnd, BackEndCounters, BackEndOptions, Lie, Served};
pub use bench::{BenchOptions, BenchReport, Latency, bench};
pub use blk::{Config, ID_BYTES, Operation, SECTOR_BYTES, Status};
pub use device::{BlockDevice, BlockQueue, Completed, DriverOptions, Negotiated, QueueCounters, Request};
pub use disk::{Disk, FileStorage, MemoryStorage, Storage};
pub use error::Error;
pub use served::{Cursor, Memory, NotThere};
