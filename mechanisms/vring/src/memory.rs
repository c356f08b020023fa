//! The driver's memory, as the device sees it.

use alloc::vec::Vec;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::RingError;

/// What the driver's addresses mean in this program.
///
/// # Safety
/// What [`AddressSpace::translate`] returns is mapped readable and writable, for as many bytes as were asked for, while the value is
/// borrowed.
pub unsafe trait AddressSpace {
    /// Where the `len` bytes from `addr` on are; `None`: the driver has no such bytes, or not all of them in one piece.
    fn translate(&self, addr: u64, len: u64) -> Option<*mut u8>;
}

/// No memory: for queues whose buffers are not addresses, or whose addresses the caller translates. Indirect tables are refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMemory;

// SAFETY: nothing is returned.
unsafe impl AddressSpace for NoMemory {
    fn translate(&self, _addr: u64, _len: u64) -> Option<*mut u8> {
        None
    }
}

/// A piece of the driver's memory that is mapped here. Laid out as C does.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Region {
    /// The driver's address of its first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Where it is mapped here.
    pub base: *mut u8,
}

/// The driver's memory in pieces that do not overlap, as vhost-user's memory table has it.
#[derive(Debug, Clone, Default)]
pub struct Regions(Vec<Region>);

// SAFETY: addresses and sizes of memory that is shared with another process anyway.
unsafe impl Send for Regions {}
// SAFETY: nothing in it can be changed through a shared reference; the memory is shared with another process anyway.
unsafe impl Sync for Regions {}

impl Regions {
    /// These pieces.
    ///
    /// # Errors
    /// [`RingError::Regions`]: two pieces overlap, or one goes beyond the last address.
    ///
    /// # Safety
    /// Each is mapped readable and writable as long as the value or a copy of it is used.
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

    /// The pieces, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.0.iter()
    }
}

// SAFETY: inside of one region, which `new`'s caller promises to be mapped.
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

/// Where an indirect table is, and how many entries it has. Descriptor `index` names it.
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

/// A descriptor as it is in memory: address; length, flags and `next` (or, in a packed ring, id and flags).
pub(crate) type Words = (u64, u64);

/// Reads the descriptor of an indirect table at `at`, once. The driver may have put it at any address.
///
/// # Safety
/// 16 bytes are readable.
pub(crate) unsafe fn read_words(at: *mut u8) -> Words {
    if at.addr().is_multiple_of(8) {
        // SAFETY: the caller's promise; aligned.
        let addr = unsafe { AtomicU64::from_ptr(at.cast()) };
        // SAFETY: the second half of the 16 bytes that the caller promises, aligned to 8 as the first.
        let rest = unsafe { AtomicU64::from_ptr(at.wrapping_add(8).cast()) };
        return (u64::from_le(addr.load(Relaxed)), u64::from_le(rest.load(Relaxed)));
    }
    let mut bytes = [0; 16];
    for (index, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: the caller's promise. Volatile, because the driver may write meanwhile; each byte is read once.
        *byte = unsafe { ptr::read_volatile(at.wrapping_add(index)) };
    }
    let half = |start: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[start + index]));
    (half(0), half(8))
}

/// Memory of the driver in which it puts indirect tables, one for each descriptor of the ring.
#[derive(Debug, Clone, Copy)]
pub struct IndirectTables {
    /// Where the first one is, on a multiple of 16; `size × entries × 16` bytes are used.
    pub base: *mut u8,
    /// The device's address of it.
    pub addr: u64,
    /// Descriptors of each; a longer chain is put into the ring itself.
    pub entries: u16,
}

// SAFETY: an address of memory that is shared with another process anyway.
unsafe impl Send for IndirectTables {}

impl IndirectTables {
    /// Bytes for a ring of `size` entries.
    pub const fn size_bytes(size: u32, entries: u16) -> usize {
        size as usize * entries as usize * 16
    }

    /// The device's address of table `slot`.
    pub(crate) fn addr_of(&self, slot: u16) -> u64 {
        self.addr + u64::from(slot) * u64::from(self.entries) * 16
    }

    /// Writes a descriptor of table `slot`.
    ///
    /// # Safety
    /// `slot` is below the size of a ring for which `base` has memory, and `entry` below `entries`.
    pub(crate) unsafe fn write(&self, slot: u16, entry: u16, (addr, rest): Words) {
        let offset = (slot as usize * self.entries as usize + entry as usize) * 16;
        let at = self.base.wrapping_add(offset);
        // SAFETY: the caller's promise; aligned, as `base` is.
        let first = unsafe { AtomicU64::from_ptr(at.cast()) };
        // SAFETY: the second half of the descriptor, inside what the caller promises, and aligned as `base` is.
        let second = unsafe { AtomicU64::from_ptr(at.wrapping_add(8).cast()) };
        first.store(addr.to_le(), Relaxed);
        second.store(rest.to_le(), Relaxed);
    }
}
