use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use dormouse_abi::vring::{RING_SIZE_MAX, RingLayout};

use crate::error::RingError;

/// A ring's memory. All access to it is atomic, for the other side writes at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region {
    base: *mut u8,
    pub(crate) layout: RingLayout,
}

impl Region {
    /// # Safety
    /// `RingLayout { size }.size_bytes()` bytes from `base` are mapped readable and writable as long as any copy of the
    /// region is used, and are accessed by Rust code only atomically.
    pub(crate) unsafe fn new(base: *mut u8, size: u32) -> Result<Region, RingError> {
        if !size.is_power_of_two() || size > RING_SIZE_MAX {
            return Err(RingError::Size { size });
        }
        if !base.addr().is_multiple_of(64) {
            return Err(RingError::Alignment { address: base.addr() });
        }
        Ok(Region { base, layout: RingLayout { size } })
    }

    pub(crate) fn size(&self) -> u16 {
        // A power of two up to 32768.
        self.layout.size as u16
    }

    /// Where entry number `position` lies in a table of `size` entries.
    pub(crate) fn slot(&self, position: u64) -> u16 {
        position as u16 & (self.size() - 1)
    }

    pub(crate) fn ptr(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset)
    }

    fn u16(&self, offset: usize) -> &AtomicU16 {
        debug_assert!(offset + 2 <= self.layout.size_bytes() && offset.is_multiple_of(2));
        // SAFETY: `new`'s contract; callers name fields of the layout, which are inside it and naturally aligned.
        unsafe { AtomicU16::from_ptr(self.ptr(offset).cast()) }
    }

    fn u32(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= self.layout.size_bytes() && offset.is_multiple_of(4));
        // SAFETY: as in `u16`.
        unsafe { AtomicU32::from_ptr(self.ptr(offset).cast()) }
    }

    fn u64(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.layout.size_bytes() && offset.is_multiple_of(8));
        // SAFETY: as in `u16`.
        unsafe { AtomicU64::from_ptr(self.ptr(offset).cast()) }
    }

    /// `avail.idx` (2.7.6).
    pub(crate) fn avail_idx(&self) -> &AtomicU16 {
        self.u16(self.layout.avail_idx())
    }

    /// `avail.ring[slot]` (2.7.6).
    pub(crate) fn avail_ring_offset(&self, slot: u16) -> usize {
        self.layout.avail_ring() + 2 * slot as usize
    }

    pub(crate) fn avail_ring(&self, slot: u16) -> &AtomicU16 {
        self.u16(self.avail_ring_offset(slot))
    }

    /// `used.idx` (2.7.8).
    pub(crate) fn used_idx(&self) -> &AtomicU16 {
        self.u16(self.layout.used_idx())
    }

    /// `used.ring[slot]`: id and length (2.7.8).
    pub(crate) fn used_ring(&self, slot: u16) -> (&AtomicU32, &AtomicU32) {
        let offset = self.layout.used_ring() + 8 * slot as usize;
        (self.u32(offset), self.u32(offset + 4))
    }

    /// `avail_event` (2.7.10).
    pub(crate) fn avail_event(&self) -> &AtomicU16 {
        self.u16(self.layout.avail_event())
    }

    /// Descriptor `slot` (2.7.5) as two words: the address; length, flags and next.
    pub(crate) fn desc_offset(&self, slot: u16) -> usize {
        self.layout.desc() + 16 * slot as usize
    }

    pub(crate) fn desc(&self, slot: u16) -> (&AtomicU64, &AtomicU64) {
        let offset = self.desc_offset(slot);
        (self.u64(offset), self.u64(offset + 8))
    }
}

/// Makes an empty ring: both indexes, both flags and both event indexes are zero. Before either side uses it.
///
/// Wait-free, async-signal-safe.
///
/// # Errors
/// [`RingError::Size`] and [`RingError::Alignment`].
///
/// # Safety
/// [`RingLayout::size_bytes`] bytes from `ring` are mapped readable and writable, and are accessed by Rust code only
/// atomically.
pub unsafe fn init(ring: *mut u8, size: u32) -> Result<(), RingError> {
    // SAFETY: the caller's promise.
    let region = unsafe { Region::new(ring, size) }?;
    let layout = region.layout;
    let used_event = layout.avail_ring() + 2 * size as usize;
    for offset in
        [layout.avail(), layout.avail_idx(), used_event, layout.used(), layout.used_idx(), layout.avail_event()]
    {
        region.u16(offset).store(0, Relaxed);
    }
    Ok(())
}
