//! Virtqueues after VirtIO 1.2, split and packed, driver side and device side, in memory that two programs share.
//!
//! # The problem
//! A producer that must never wait hands full buffers to a consumer and gets empty ones back. The two are in different
//! processes, which need not trust each other and need not have been written by the same people. A virtqueue is the
//! interface for this that other people's programs already speak. Its cost is cache lines that travel between two CPUs:
//! each side must write, and the other side must read.
//!
//! # The picture
//! ```text
//!   split (2.7)
//!   descriptor table           avail ring                         used ring
//!   ┌──────────────────────┐   ┌─────┬───┬──────────┬──────────┐  ┌─────┬───┬────────────────┬───────────┐
//!   │ addr,len,flags,next×n│   │flags│idx│ id × n   │used_event│  │flags│idx│ (id, len) × n  │avail_event│
//!   └──────────────────────┘   └─────┴─┼─┴──────────┴──────────┘  └─────┴─┼─┴────────────────┴───────────┘
//!              driver writes           └ release store     device writes  └ release store
//!
//!   packed (2.8)
//!   ┌──────────────────────┐   ┌────────────┐   ┌────────────┐
//!   │ addr,len,id,flags × n│   │desc │ flags│   │desc │ flags│    both write the ring: AVAIL and USED, compared with the
//!   └──────────────────────┘   └────────────┘   └────────────┘    lap's wrap counter, say who owns a descriptor
//! ```
//! Indexes, flags, free descriptors and the records of buffers are also in the side's own memory (the *shadow*). A side
//! never reads them back from the memory that the other side reads.
//!
//! | type | used by | purpose |
//! | --- | --- | --- |
//! | [`split::Driver`], [`split::Device`] | one thread each | peers that speak VirtIO |
//! | [`packed::Driver`], [`packed::Device`] | one thread each | peers that speak VirtIO, with fewer lines of memory |
//! | [`split::PlannedDriver`] | any number of threads and processes | a hand-over that a killed driver does not stop |
//!
//! [`DriverSide`] and [`DeviceSide`] are the common interface of the first two rows. [`either`] has queues whose kind
//! is known only at run time.
//!
//! # Example
//! ```
//! use std::sync::atomic::AtomicU8;
//!
//! use dormouse_vring::{Chain, DeviceSide, Direct, DriverSide, Features, NoMemory, Segment, packed};
//!
//! #[repr(align(64))]
//! struct Memory([AtomicU8; 256]);
//!
//! let memory = Memory([const { AtomicU8::new(0) }; 256]);
//! assert!(packed::size_bytes(8)? <= 256);
//! let areas = packed::contiguous(memory.0.as_ptr().cast_mut().cast(), 8)?;
//! // SAFETY: the memory outlives both sides, and its bytes are atomics.
//! let bus = unsafe { Direct::new(areas) };
//! packed::init(&bus, 8)?;
//!
//! let mut driver: packed::Driver<Direct> = packed::Driver::new(bus, 8, Features::default())?;
//! driver.add(&[Segment { addr: 0x1000, len: 512 }], &[], 7)?;
//! driver.publish();
//! if driver.needs_kick() { /* notify the device */ }
//!
//! let mut device: packed::Device<Direct> = packed::Device::new(bus, 8, Features::default())?;
//! let mut chain = Chain::default();
//! while device.pop(&NoMemory, &mut chain)? {
//!     assert_eq!(chain.readable(), [Segment { addr: 0x1000, len: 512 }]);
//!     device.push_used(&chain, 0);
//! }
//! device.publish_used();
//!
//! assert_eq!(driver.take_used()?.map(|done| done.token), Some(7));
//! # Ok::<(), dormouse_vring::RingError>(())
//! ```
//!
//! # States and their owners
//!
//! | state of a buffer | owner | call that ends the state |
//! | --- | --- | --- |
//! | free | driver | `add` |
//! | written | driver | `publish` |
//! | available | device | `pop`, `push_used` |
//! | given back | device | `publish_used` |
//! | used | driver | `take_used` |
//!
//! A planned driver writes nothing itself. It plans [`Txn`](dormouse_abi::txn::Txn)s; the thread that holds the stream
//! commits them, in a critical section or by plain stores. So several threads or processes can be one driver. If one is
//! killed at any instruction, the next can continue with the ring: everything that follows from the shadow can be
//! planned again, by any driver, with the same result.
//!
//! | transaction | guard | plain stores | final store |
//! | --- | --- | --- | --- |
//! | [`split::PlannedDriver::plan_descriptor`] | `published == k` | `desc[k % size]`, `avail.ring[k % size]` | `published = k + 1` |
//! | [`split::PlannedDriver::plan_publish`] | `published == k1` | none | `avail.idx = k1` |
//!
//! [`mmio`] has the registers by which a virtual machine's driver finds a device and describes its queues.
//!
//! A device that was killed is continued by the next one from a record of the buffers that it had: [`InFlight`].
//!
//! # Ordering
//! * (A) the release store with which the driver publishes (`avail.idx`, or the flags of the first descriptor) pairs
//!   with (B), the device's acquire.
//! * (C) the device's release store (`used.idx`, or the flags of the first used descriptor) pairs with (D), the
//!   driver's acquire. So the device has finished reading a buffer before the driver writes the buffer again.
//! * (E) the driver's full fence between publishing and reading the device's notification request pairs with (F), the
//!   device's fence between writing the request and looking for buffers. (H) and (G) pair likewise in the other
//!   direction. At least one of the two sides sees the other's store, so no notification is lost.
//!
//! # Notification
//! With [`Features::event_idx`] each side says at which index it wants to be woken (2.7.10, 2.8.14), and [`need_event`]
//! compares in wrapping arithmetic. A plain comparison would lose one kick at each wrap of 16 bits. Without the
//! feature, a flag says whether the side wants to be notified at all.
//!
//! # Trust
//! Each side treats the other as untrusted. Each word is read once and then checked. The state that a side relies on is
//! in its own memory. A protocol violation is an error that names the index and the value ([`RingError`]); the side
//! continues, and counts it ([`DriverSide::violations`], [`DeviceSide::violations`]). The caller checks the addresses
//! and lengths of buffers, because it knows the memory ([`AddressSpace`]). The ring itself checks those of indirect
//! tables.
//!
//! # Cost
//! The driver never reads the line of `avail.idx`. The device reads that line only when it has taken everything that it
//! saw last. If buffers arrive in batches, publish them in batches: the shadow saves most then. If a CPU's stores
//! become visible in order, as on x86, a store to a line that is in the other side's cache delays all later stores.
//! Stores to a side's own memory then fill the store buffer in which they wait. So a side keeps little state that
//! changes with each buffer, and does not store a value that is unchanged. A device that returns buffers in the order
//! in which it received them costs its driver least, whether or not that order was negotiated. No call blocks. Only the
//! first growth of a [`Chain`] allocates. No call fails except as its documentation says.
//!
//! # Limits
//! Legacy queues (big-endian, without `VIRTIO_F_VERSION_1`), ring resets and `VIRTIO_F_NOTIFICATION_DATA` are not
//! implemented, and so are not offered. An indirect table contains a whole buffer: the driver makes no chain that ends
//! in a table.
//!
//! # Source
//! VirtIO 1.2, clauses 2.6 to 2.8 and 4.2; QEMU's `docs/interop/vhost-user.rst`; Venkatesh Srinivas, "virtio_ring: Shadow available ring flags & index" (2015).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod arch;
mod area;
mod buffer;
mod bus;
pub mod either;
mod error;
mod features;
mod in_flight;
mod memory;
pub mod mmio;
pub mod packed;
mod side;
mod slots;
pub mod split;

pub use area::Area;
pub use buffer::{Chain, Completion, Segment};
pub use bus::{AreaLocation, Areas, Bus, Direct, Word};
pub use error::RingError;
pub use features::Features;
pub use in_flight::{InFlight, Resumption};
pub use memory::{AddressSpace, IndirectTables, NoMemory, Region, Regions};
pub use side::{DeviceSide, DriverSide};

/// Whether the step from `old` to `new` passed `event`, in wrapping arithmetic (2.7.10.1: `vring_need_event`).
///
/// Wait-free, async-signal-safe.
#[inline]
pub const fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests;
