//! The split virtqueue's layout (VirtIO 1.2, clause 2.7). All fields little-endian.

// A descriptor table entry (clause 2.7.5): `addr u64, len u32, flags u16, next u16`. In a session, `addr` is the offset
// from the start of its memory, and `len` is the size of the packet's content, both in bytes.
//
// A used ring element (clause 2.7.8): `id u32, len u32`, the head of a chain and the number of bytes that the device
// wrote; in a session, zero.

/// Flag of a descriptor: the buffer continues in `next` (clause 2.7.5).
pub const DESC_F_NEXT: u16 = 1;
/// Flag of a descriptor: the device writes the buffer (clause 2.7.5).
pub const DESC_F_WRITE: u16 = 2;
/// Flag of a descriptor: the buffer is a table of descriptors (clause 2.7.5.3).
pub const DESC_F_INDIRECT: u16 = 4;

/// Maximum ring size (clause 2.7).
pub const RING_SIZE_MAX: u32 = 32_768;

/// Offsets of the parts of a ring of `size` entries, in bytes from its start.
///
/// Parts written by the producer and parts written by the consumer never share a cache line, so each starts on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingLayout {
    /// Number of entries, a power of two.
    pub size: u32,
}

impl RingLayout {
    /// Returns the offset of the descriptor table: `size` × 16 bytes.
    pub const fn desc(self) -> usize {
        0
    }
    /// Returns the offset of the available ring: `flags u16, idx u16, ring u16 × size, used_event u16` (clause 2.7.6).
    pub const fn avail(self) -> usize {
        16 * self.size as usize
    }
    /// Returns the offset of `avail.ring`.
    pub const fn avail_ring(self) -> usize {
        self.avail() + 4
    }
    /// Returns the offset of the used ring: `flags u16, idx u16, ring used element × size, avail_event u16` (clause
    /// 2.7.8).
    pub const fn used(self) -> usize {
        (self.avail_ring() + 2 * self.size as usize + 2).next_multiple_of(64)
    }
    /// Returns the offset of `used.ring`.
    pub const fn used_ring(self) -> usize {
        self.used() + 4
    }
    /// Returns the offset of `used.avail_event` (clause 2.7.10).
    pub const fn avail_event(self) -> usize {
        self.used_ring() + 8 * self.size as usize
    }
    /// Returns the size of the ring, in bytes.
    pub const fn size_bytes(self) -> usize {
        (self.avail_event() + 2).next_multiple_of(64)
    }
}
