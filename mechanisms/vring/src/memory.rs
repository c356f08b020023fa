//! The driver's memory, as the device sees it.

use alloc::vec::Vec;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::RingError;

/// Translation from the driver's addresses to addresses in this program.
///
/// # Safety
/// Each address that [`AddressSpace::translate`] returns is mapped readable and writable, for the requested number of
/// bytes, while the value is borrowed.
pub unsafe trait AddressSpace {
    /// Returns the address in this program of the `len` bytes at `addr`. `None`: the driver does not have all of these
    /// bytes, or not in one piece.
    fn translate(&self, addr: u64, len: u64) -> Option<*mut u8>;
}

/// An address space without memory: for queues whose buffers are not addresses, or whose addresses the caller
/// translates. Indirect tables are refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMemory;

// SAFETY: `translate` never returns an address.
unsafe impl AddressSpace for NoMemory {
    fn translate(&self, _addr: u64, _len: u64) -> Option<*mut u8> {
        None
    }
}

/// A piece of the driver's memory that is mapped into this program. It has C layout.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Region {
    /// Driver's address of the first byte.
    pub addr: u64,
    /// Length, in bytes.
    pub len: u64,
    /// Address of the first byte in this program.
    pub base: *mut u8,
}

/// The driver's memory as pieces that do not overlap, like vhost-user's memory table.
#[derive(Debug, Clone, Default)]
pub struct Regions(Vec<Region>);

// SAFETY: the value holds addresses and sizes; the memory is shared with another process anyway.
unsafe impl Send for Regions {}
// SAFETY: nothing in the value can be changed through a shared reference; the memory is shared with another process
// anyway.
unsafe impl Sync for Regions {}

impl Regions {
    /// Creates an address space of these pieces.
    ///
    /// # Errors
    /// [`RingError::Regions`]: two pieces overlap, or one extends beyond the last address.
    ///
    /// # Safety
    /// Each piece is mapped readable and writable as long as the value or a copy of it is used.
    pub unsafe fn new(mut regions: Vec<Region>) -> Result<Regions, RingError> {
        regions.sort_unstable_by_key(|region| region.addr);
        let mut end = 0;
        for region in &regions {
            let wrong = RingError::Regions { addr: region.addr };
            if region.addr < end || (region.base.addr() as u64).checked_add(region.len).is_none() {
                return Err(wrong);
            }
            end = region.addr.checked_add(region.len).ok_or(wrong)?;
        }
        Ok(Regions(regions))
    }

    /// Returns the pieces, ordered by the driver's address.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.0.iter()
    }
}

// SAFETY: the bytes are inside one region, and `new`'s caller guarantees that each region is mapped readable and
// writable.
unsafe impl AddressSpace for Regions {
    #[inline]
    fn translate(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let index = self.0.partition_point(|region| region.addr <= addr).checked_sub(1)?;
        let region = &self.0[index];
        let offset = addr - region.addr;
        let is_inside = offset <= region.len && len <= region.len - offset;
        is_inside.then(|| region.base.wrapping_add(offset as usize))
    }
}

/// Returns the address of an indirect table and its number of entries. Descriptor `index` names the table.
pub(crate) fn find_table(
    space: &impl AddressSpace,
    index: u16,
    addr: u64,
    len: u32,
) -> Result<(*mut u8, u32), RingError> {
    let wrong = RingError::IndirectTable { index, addr, len };
    if len == 0 || !len.is_multiple_of(16) {
        return Err(wrong);
    }
    Ok((space.translate(addr, len.into()).ok_or(wrong)?, len / 16))
}

/// The two words of a descriptor: its address; and its length, flags and `next` (in a packed ring, its length, id and
/// flags).
pub(crate) type Words = (u64, u64);

/// Reads the descriptor of an indirect table at `at`, each byte once. The driver may have chosen any alignment.
///
/// # Safety
/// 16 bytes at `at` are readable.
pub(crate) unsafe fn read_words(at: *mut u8) -> Words {
    if at.addr().is_multiple_of(8) {
        // SAFETY: the caller guarantees that 16 bytes at `at` are readable; `at` is aligned to 8.
        let addr = unsafe { AtomicU64::from_ptr(at.cast()) };
        // SAFETY: the second half of the 16 bytes that the caller guarantees to be readable, aligned to 8 like the
        // first.
        let rest = unsafe { AtomicU64::from_ptr(at.wrapping_add(8).cast()) };
        return (u64::from_le(addr.load(Relaxed)), u64::from_le(rest.load(Relaxed)));
    }
    let mut bytes = [0; 16];
    for (index, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: the byte is one of the 16 that the caller guarantees to be readable. The read is volatile because the
        // driver may write at the same time; each byte is read once.
        *byte = unsafe { ptr::read_volatile(at.wrapping_add(index)) };
    }
    let half = |start: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[start + index]));
    (half(0), half(8))
}

/// The driver's memory for indirect tables: one table for each descriptor of the ring.
#[derive(Debug, Clone, Copy)]
pub struct IndirectTables {
    /// Address of the first table, a multiple of 16; `size × entries × 16` bytes are used.
    pub base: *mut u8,
    /// Device's address of the first table.
    pub addr: u64,
    /// Number of descriptors in each table. A longer chain is put into the ring itself.
    pub entries: u16,
}

// SAFETY: the value holds an address of memory that is shared with another process anyway.
unsafe impl Send for IndirectTables {}

impl IndirectTables {
    /// Returns the number of bytes that the tables of a ring of `size` entries need.
    pub const fn size_bytes(size: u32, entries: u16) -> usize {
        size as usize * entries as usize * 16
    }

    /// Returns the device's address of table `slot`.
    pub(crate) fn addr_of(&self, slot: u16) -> u64 {
        self.addr + u64::from(slot) * u64::from(self.entries) * 16
    }

    /// Writes descriptor `entry` of table `slot`.
    ///
    /// # Safety
    /// `base` has memory for the tables of a ring that has more than `slot` entries, and `entry` is below `entries`.
    pub(crate) unsafe fn write(&self, slot: u16, entry: u16, (addr, rest): Words) {
        let offset = (slot as usize * self.entries as usize + entry as usize) * 16;
        let at = self.base.wrapping_add(offset);
        // SAFETY: the caller guarantees that the descriptor is inside the tables' memory; it is aligned, because `base`
        // is.
        let first = unsafe { AtomicU64::from_ptr(at.cast()) };
        // SAFETY: the second half of that descriptor, inside the same memory and aligned, because `base` is.
        let second = unsafe { AtomicU64::from_ptr(at.wrapping_add(8).cast()) };
        first.store(addr.to_le(), Relaxed);
        second.store(rest.to_le(), Relaxed);
    }
}
