//! Virtqueues shared with other processes over vhost-user: both ends of it for block devices, and the back end for
//! network devices.
//!
//! # The problem
//! A virtqueue is useful only with peers that speak it. Existing daemons and virtual machines hand over queues by a
//! protocol on a Unix socket. They have expectations of memory, notifications and order that tests against this
//! project's own code do not reveal.
//!
//! # The picture
//! ```text
//!   front end: BlockDevice                          back end: BackEnd
//!        │  features, memory (memfd), rings, kick and call (eventfd)
//!        ├──────────────── socket ────────────────────▶ │ one thread of control
//!        │                                              │
//!   BlockQueue ── descriptors, avail ──┐      ┌──────▶ one thread for each ring
//!     read, write, flush        ┌──────▼──────┴───┐    pop, ServedDevice::serve, push
//!     submit, wait, complete ◀──│  shared memory  │◀── used
//!                               └─────────────────┘
//! ```
//! The crate `vhost` has the control plane's messages; [`dormouse_vring`] has rings and their contents.
//!
//! Both ends in one program: a driver reads the name and the first block of a disk in memory.
//!
//! ```
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use dormouse_vring_vhost::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let socket = dir.path().join("disk.sock");
//! let disk = Arc::new(Disk::new(FileStorage::in_memory(1 << 20)?, "example", 1));
//! let _back_end = BackEnd::start(&socket, disk, BackEndOptions::default())?;
//!
//! let mut device = BlockDevice::connect(&socket, DriverOptions::default())?;
//! let queue = &mut device.queues_mut()[0];
//! let (name, block) = (1, 2);
//! queue.get_id(name)?;
//! queue.read(0, SECTOR_BYTES, block)?;
//! queue.submit()?;
//! while queue.in_flight() > 0 {
//!     queue.wait(Duration::from_secs(60))?;
//!     while let Some(completed) = queue.complete()? {
//!         let mut bytes = [1; SECTOR_BYTES as usize];
//!         completed.copy_to(&mut bytes);
//!         match completed.token == name {
//!             true => assert!(bytes.starts_with(b"example\0")),
//!             false => assert_eq!(bytes, [0; SECTOR_BYTES as usize]),
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # States and their owners
//!
//! | state of a ring | owner | cause of the state |
//! | --- | --- | --- |
//! | described | front end | size, base, addresses, call and kick, in any order |
//! | enabled | both | `SET_VRING_ENABLE`; from then on the back end has a thread for the ring |
//! | stopped | front end | `GET_VRING_BASE`, or any message that changes the ring; when it is answered, the thread has ended |
//! | abandoned | front end | the back end closed the connection: [`BlockDevice::reconnect`] makes new rings, in new memory |
//!
//! Memory belongs to the front end. The back end maps the memory that it receives. It unmaps it when it receives other
//! memory or the front end is gone: then no thread has an address in it.
//!
//! # Network devices
//! [`Network`] gives a driver's frames to a link, which is a datagram socket or a tap device, and those of the link to the
//! driver. A receive queue's buffers wait in the ring until the link has a frame ([`ServedDevice::source`]).
//! `VIRTIO_NET_F_MRG_RXBUF` is not offered: a frame has at most [`FRAME_BYTES_MAX`] bytes, and each buffer has room for it.
//! Offloads, several pairs of queues and a control queue are not offered either.
//!
//! # Polling
//! With [`BackEndOptions::is_polling`], or if a driver sends no kick file, a queue's thread does not sleep, and asks the
//! driver not to kick.
//!
//! # Requests in flight
//! A back end that is killed is continued by the next one at the same socket, if the front end keeps the record of
//! requests in flight for it, as QEMU does (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`, [`dormouse_vring::InFlight`]). What
//! the driver has got back is not executed again. For [`BlockDevice`], the driver here, it is the driver that keeps its
//! requests.
//!
//! Requests that a device had when it ended are given to the next device, in the order in which they were made. It is
//! unknown whether the first device executed some of them, so they may be executed twice. For reads and writes of
//! blocks, the result is the same.
//!
//! # Features
//! Features that are not implemented are neither offered nor accepted. Implemented are, of rings: version 1, indirect
//! tables, event indexes, packed rings, use in order. Of block devices: sizes, several queues, read-only, and flush. Of
//! network devices: the address. Of the protocol: several queues, acknowledgements, configuration space, and (back end)
//! memory that is added and removed in pieces, and the record of requests in flight.
//!
//! # Ordering
//! The rules of [`dormouse_vring`] apply. A kick or a call is sent after the buffers that it announces were published.
//! A side that waits checks once more between asking for a notification and sleeping.
//!
//! # Trust
//! The back end treats a driver as untrusted. Each message is checked before it has an effect, and an invalid one ends
//! the connection. Each address is looked up in the driver's memory. Protocol violations in a ring are counted, and the
//! buffer is returned if it can be identified. The back end reads nothing from event files, because that could block,
//! and writes to them only if that cannot block. It refuses memory that could be truncated, because truncation would
//! kill the back end, unless [`BackEndOptions::requires_seal`] says otherwise.
//!
//! The front end trusts a device's data, which is the device's purpose, and nothing else. Used elements are checked, a
//! device that does not answer is abandoned, and a device that seemed to be gone has no memory that the front end still
//! uses.
//!
//! # Cost
//! Data is copied once on each side. A kick is a system call, and so is a call. With event indexes, one is enough for
//! all requests that arrive while the other side is busy.
//!
//! # Limits
//! No live migration: no dirty log, no device state. The back end serves one driver at a time, and finishes each buffer before it takes the next.
//!
//! # Source
//! VirtIO 1.2, clauses 2.6 to 2.8 and 5.2; QEMU's `docs/interop/vhost-user.rst`.
mod back;
mod blk;
mod device;
mod disk;
mod error;
mod front;
mod network;
mod served;
mod shared;

pub use back::{BackEnd, BackEndCounters, BackEndOptions, ServedDevice};
pub use blk::{Config, ID_BYTES, Operation, SECTOR_BYTES, Status};
pub use device::{BlockDevice, BlockQueue, Completed, DriverOptions, Negotiated, QueueCounters, Request};
pub use disk::{Disk, FileStorage, Storage};
pub use error::Error;
pub use network::{FRAME_BYTES_MAX, Network, NetworkCounters};
pub use served::{Cursor, InvalidBuffer, Memory};
