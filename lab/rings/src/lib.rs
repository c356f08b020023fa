//! Forms of virtqueues that experiments compare with those of [`dormouse_vring`]: what came before them, and what can be put on top.
//!
//! ```text
//!   ReadBack<B>                  a bus through which a side reads back the indexes and flags that it writes: a ring without a shadow
//!   PlainDriver, PlainDevice     a split ring as Linux had it in 2015: free descriptors linked in shared memory, nothing prefetched
//!   AdaptiveDriver, …Device      any ring, published by itself: in batches where buffers come faster than they are used
//! ```
//! With them and the queues themselves, what has been refined since 2015 can be switched off:
//!
//! | | the own index is read back | the peer's index is read each time | free descriptors | prefetched |
//! | --- | --- | --- | --- | --- |
//! | what the change of Srinivas began with | yes | yes | in shared memory | no |
//! | what it made of it | no | yes | in shared memory | no |
//! | with a cached index | either | no | in shared memory | no |
//! | `dormouse_vring` | either | no | in private memory | yes |
//!
//! # Source
//! Venkatesh Srinivas, "virtio_ring: Shadow available ring flags & index", 2015; `drivers/virtio/virtio_ring.c` of that time.

mod adaptive;
mod plain;
mod read_back;

pub use adaptive::{AdaptiveDevice, AdaptiveDriver, PATIENCE};
pub use plain::{PlainDevice, PlainDriver};
pub use read_back::ReadBack;

/// Offsets in either ring (2.7.6, 2.7.8), and of the first entry or element.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const FIRST: usize = 4;
/// Bytes of a used element.
const ELEMENT: usize = 8;

#[cfg(test)]
mod tests;
