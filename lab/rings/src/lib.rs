//! Forms of virtqueues that experiments compare with those of [`dormouse_vring`]: earlier forms, and additions to it.
//!
//! ```text
//!   ReadBack<B>                  a bus that reads back the indexes and flags that its side writes: a ring without a shadow
//!   PlainDriver, PlainDevice     the split ring of Linux in 2015: free descriptors linked in shared memory, nothing prefetched
//!   AdaptiveDriver, …Device      any ring, which decides itself when to publish: in batches if buffers come faster than they are used
//! ```
//! With them and the queues themselves, the refinements since 2015 can be switched off one by one:
//!
//! | | the own index is read back | the peer's index is read each time | free descriptors | prefetched |
//! | --- | --- | --- | --- | --- |
//! | before the change of Srinivas | yes | yes | in shared memory | no |
//! | after that change | no | yes | in shared memory | no |
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

/// Offset of the flags in either ring (2.7.6, 2.7.8).
const FLAGS: usize = 0;
/// Offset of the index in either ring.
const INDEX: usize = 2;
/// Offset of the first entry or element.
const FIRST: usize = 4;
/// Size of a used element, in bytes.
const ELEMENT: usize = 8;

#[cfg(test)]
mod tests;
