//! Virtqueues shared with other processes over vhost-user: both ends of it, for block devices.
//!
//! # The problem
//! A virtqueue is useful only with peers that speak it. Daemons and virtual machines that others wrote hand over queues by a
//! protocol on a Unix socket, and have expectations of memory, notifications and order that tests against our own code do not reveal.
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
//! The crate `vhost` has the control plane's messages; [`dormouse_vring`] has rings and their contents.
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
//! Memory belongs to the front end. The back end maps what it is given, and unmaps it when it is given other memory or the front end is
//! gone: then no thread has an address of it.
//!
//! # What was in flight
//! Requests that a device had when it ended are given to the next device, in the order in which they were made. It is not known whether the
//! first one did some of them, so they may be done twice: for reads and writes of blocks that is the same as once.
//!
//! # Features
//! What is not implemented is neither offered nor accepted: version 1, indirect tables, event indexes, packed rings, use in order; of
//! block devices sizes, several queues, read-only, and flush. Of the protocol: several queues, acknowledgements, configuration space, and
//! (back end) memory that comes and goes in pieces.
//!
//! # Ordering
//! That of [`dormouse_vring`]. A kick or a call is sent after what it announces was published, and a side that waits checks once more between
//! asking for it and sleeping.
//!
//! # Trust
//! The back end treats a driver as untrusted. Each message is checked before it is acted upon, and an invalid one ends the connection. Each
//! address is looked up in the driver's memory. Protocol violations in a ring are counted, and the buffer comes back if it is known which one
//! it is. The back end reads nothing from event files, because that could block, and writes to them only if that cannot block. It refuses
//! memory that could be truncated, because that would kill it, unless [`BackEndOptions::requires_seal`] says otherwise.
//!
//! The front end trusts a device's data, which is the device's purpose, and nothing else: used elements are checked, a device that does
//! not answer is given up, and a device that seemed to be gone has no memory that is still in use here.
//!
//! # Cost
//! Data is copied once on each side. A kick is a system call, and so is a call. With event indexes there is one for all requests that
//! come while the other side is busy.
//!
//! # Limits
//! No live migration: no dirty log, no in-flight memory, no device state. Rings are served after kicks only, not by polling. The back end
//! serves one driver at a time, and finishes each buffer before it takes the next.
//!
//! # Source
//! VirtIO 1.2, clauses 2.6 to 2.8 and 5.2; QEMU's `docs/interop/vhost-user.rst`.
mod back;
mod blk;
mod device;
mod disk;
mod error;
mod front;
mod served;
mod shared;

pub use back::{BackEnd, BackEndCounters, BackEndOptions, Served};
pub use blk::{Config, ID_BYTES, Operation, SECTOR_BYTES, Status};
pub use device::{BlockDevice, BlockQueue, Completed, DriverOptions, Negotiated, QueueCounters, Request};
pub use disk::{Disk, FileStorage, Storage};
pub use error::Error;
pub use served::{Cursor, InvalidBuffer, Memory};
