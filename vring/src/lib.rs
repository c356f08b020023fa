//! The split virtqueue of VirtIO 1.2 (clause 2.7), driver side and device side, in raw shared memory.
//!
//! # The problem
//! A producer that must never wait hands full buffers to a consumer and gets empty ones back, across processes that need
//! not trust each other and need not have been written by the same people. A virtqueue is the interface that peers
//! nobody here wrote already speak.
//!
//! # The picture
//! ```text
//!   descriptor table (2.7.5)     avail ring (2.7.6)                  used ring (2.7.8)
//!   ┌──────────────────────┐    ┌─────┬───┬────────────────┬─────┐   ┌─────┬───┬────────────────┬─────┐
//!   │ addr, len, flags × n │    │flags│idx│ id × n         │used_│   │flags│idx│ (id, len) × n  │avail│
//!   │                      │    │     │ ▲ │                │event│   │     │ ▲ │                │event│
//!   └──────────────────────┘    └─────┴─┼─┴────────────────┴─────┘   └─────┴─┼─┴────────────────┴─────┘
//!             driver writes             └ final store               device writes └ release store
//!
//!   published (driver's private shadow, 64 bits): descriptors written; avail.idx follows it and is never read back
//! ```
//!
//! # Transactions
//! The driver side writes nothing itself. It *plans* [`Txn`](dormouse_abi::txn::Txn)s, which whoever holds the stream
//! commits, as a critical section or plainly. Several threads or processes can so be one driver, and one that is killed
//! at any instruction leaves a ring that the next can go on with: whatever is derived from the shadow can be planned
//! again, by anybody, with the same result.
//!
//! | transaction | guard | plain stores | final store |
//! | --- | --- | --- | --- |
//! | [`SplitDriver::plan_descriptor`] | `published == k` | `desc[k % size]`, `avail.ring[k % size]` | `published = k + 1` |
//! | [`SplitDriver::plan_publish`] | `published == k1` | none | `avail.idx = k1` |
//!
//! # States and their owners
//!
//! | descriptor `k % size` | owner | moved on by |
//! | --- | --- | --- |
//! | free | driver | `published = k + 1` |
//! | written | driver | `avail.idx` beyond `k` |
//! | available | device | [`Device::push_used`] and [`Device::publish_used`] |
//! | used | driver | the driver's own position in the used ring |
//!
//! # Ordering
//! * (A) the final store of `avail.idx`, which the executor makes as a release, pairs with (B), the device's acquire.
//! * (C) the device's release store of `used.idx` pairs with (D), the driver's acquire. So what the device read of a
//!   buffer was read before the driver writes it anew.
//! * (E) the driver's full fence between `avail.idx` and reading `avail_event` pairs with (F), the device's between
//!   `avail_event` and reading `avail.idx`: at least one of the two sees the other's store, so no kick is lost.
//!
//! # Notification
//! As if `VIRTIO_F_EVENT_IDX` was negotiated (2.7.10): the device says at which index it wants to be woken, and
//! [`need_event`] compares in wrapping arithmetic. A plain comparison would lose one kick at each wrap of 16 bits.
//!
//! # Trust
//! The device treats the driver as untrusted: each word is read once and then checked, and an error names the index and
//! the value ([`RingError`]). Addresses and lengths are for the caller to check, who knows the memory. The driver checks
//! what the device says in the same way, so that a lying device cannot make it leave the ring.
//!
//! # Cost
//! The driver never reads the line of `avail.idx`, the device reads it only when it has drained what it saw last. Publish
//! in batches where they come by themselves: it is batches that the shadow pays for.
//!
//! # Limits
//! Neither chains nor indirect descriptors; the device here takes device-readable buffers only. Packed rings are not
//! implemented, and so are not offered. Descriptor ids are used in order (`k % size`), so a descriptor that the device
//! keeps holds up those after it.
//!
//! # Source
//! VirtIO 1.2, clause 2.7; V. Srinivas's change to the virtio driver that shadows the avail index (2015).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod adaptive;
mod arch;
mod buffer;
mod bus;
mod error;
mod features;
mod memory;
pub mod packed;
mod side;
pub mod split;

pub use adaptive::{AdaptiveDevice, AdaptiveDriver, PATIENCE};
pub use buffer::{Chain, Completion, Segment};
pub use bus::{Area, Areas, Bus, Direct, Word};
pub use error::RingError;
pub use features::{Cached, CachedUnshadowed, Features, Refined, RefinedUnshadowed, Refinement, Shadowed, Unshadowed};
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
