//! The driver's memory as mapped by a back end, and access to buffers in it.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::Arc;

use dormouse_vring::{AddressSpace, AreaLocation, Chain, Region, Regions, Segment};
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error as Message, Result};

use crate::shared::{load_bytes, store_bytes};

/// A part of a file of the driver, mapped until the value is dropped.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Address of the mapping, which begins on a page.
    base: *mut u8,
    len: usize,
    /// Address of the region in the mapping.
    start: *mut u8,
    /// Driver's address of the region, for buffers.
    addr: u64,
    /// Front end's address of the region, for rings.
    user_addr: u64,
    size: u64,
}

// SAFETY: the value holds addresses and sizes of a mapping that it owns; accesses to the mapping are atomic.
unsafe impl Send for Mapped {}
// SAFETY: nothing in the value changes; accesses through the addresses are atomic.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps a region. With `requires_seal`, its file must be sealed against shrinking, because truncation of the file
    /// would kill this process.
    pub(crate) fn new(region: &VhostUserMemoryRegion, file: &File, requires_seal: bool) -> Result<Mapped> {
        let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } = *region;
        let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        if requires_seal && !seals.contains(SealFlags::SHRINK) {
            return Err(Message::InvalidOperation("memory that is not sealed against shrinking"));
        }
        // The size is read after the seal is checked: from here on a sealed file cannot shrink.
        let stat = rustix::fs::fstat(file).map_err(|_| Message::InvalidParam)?;
        let end = mmap_offset.checked_add(memory_size).ok_or(Message::InvalidParam)?;
        if end > stat.st_size as u64 || memory_size == 0 {
            return Err(Message::InvalidOperation("a memory region beyond its file's end"));
        }
        // Huge pages can be mapped and unmapped only as a whole. A file of huge pages reports their size as its block
        // size.
        let os_page = dormouse_backing::os_page_size() as u64;
        let block = u64::try_from(stat.st_blksize).ok().filter(|block| block.is_power_of_two());
        let block = block.unwrap_or(os_page).max(os_page);
        let skipped = mmap_offset % block;
        let len = memory_size.checked_add(skipped).and_then(|len| len.checked_next_multiple_of(block));
        let len = len.and_then(|len| usize::try_from(len).ok()).ok_or(Message::InvalidParam)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let offset = mmap_offset - skipped;
        // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched (mmap(2)).
        let base = unsafe { rustix::mm::mmap(null_mut(), len, protection, MapFlags::SHARED, file.as_fd(), offset) };
        let base: *mut u8 = base.map_err(|_| Message::InvalidOperation("memory that cannot be mapped"))?.cast();
        let start = base.wrapping_add(skipped as usize);
        Ok(Mapped { base, len, start, addr: guest_phys_addr, user_addr, size: memory_size })
    }

    /// Returns the address of the region's first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Whether this is the region that a message names.
    pub(crate) fn is(&self, region: &VhostUserMemoryRegion) -> bool {
        let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, .. } = *region;
        (self.addr, self.user_addr, self.size) == (guest_phys_addr, user_addr, memory_size)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which this value owns; each user of the mapping keeps the value alive.
        _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// The driver's memory, mapped as long as the value lives.
#[derive(Debug, Default)]
pub struct Memory {
    // Declared first, so that it is dropped before the mappings.
    regions: Regions,
    pub(crate) mapped: Vec<Arc<Mapped>>,
}

impl Memory {
    pub(crate) fn new(mapped: Vec<Arc<Mapped>>) -> Result<Memory> {
        let regions = mapped.iter().map(|it| Region { addr: it.addr, len: it.size, base: it.start }).collect();
        // SAFETY: the value keeps the mappings alive, and does not give the regions away.
        let regions = unsafe { Regions::new(regions) };
        let regions = regions.map_err(|_| Message::InvalidOperation("memory regions that overlap"))?;
        Ok(Memory { regions, mapped })
    }

    /// Returns the memory at the front end's address `user_addr`, if all of it is in one region.
    pub(crate) fn ring_area(&self, user_addr: u64, len: usize) -> Option<AreaLocation> {
        self.mapped.iter().find_map(|it| {
            let offset = user_addr.checked_sub(it.user_addr)?;
            let is_inside = offset <= it.size && len as u64 <= it.size - offset;
            is_inside.then(|| AreaLocation(it.start.wrapping_add(offset as usize), len))
        })
    }

    /// Returns the first contiguous piece of a segment, and its length.
    fn piece(&self, addr: u64, len: u64) -> Option<(*mut u8, u64)> {
        let whole = self.regions.translate(addr, len).map(|at| (at, len));
        whole.or_else(|| {
            let region = self.regions.iter().find(|region| region.addr <= addr && addr - region.addr < region.len)?;
            let len = len.min(region.len - (addr - region.addr));
            self.regions.translate(addr, len).map(|at| (at, len))
        })
    }
}

// SAFETY: each address that `regions` returns is in a mapping, which is mapped readable and writable as long as the
// value lives.
unsafe impl AddressSpace for Memory {
    #[inline]
    fn translate(&self, addr: u64, len: u64) -> Option<*mut u8> {
        self.regions.translate(addr, len)
    }
}

/// A buffer that is invalid for the device, or not in the driver's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidBuffer;

/// A position in the segments of a chain, which advances as bytes are read or written. It never leaves the segments.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    memory: &'a Memory,
    segments: &'a [Segment],
    /// Bytes of the first segment that were passed.
    offset: u32,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the beginning of the segments that the device reads.
    pub fn readable(chain: &'a Chain, memory: &'a Memory) -> Cursor<'a> {
        Cursor { memory, segments: chain.readable(), offset: 0 }
    }

    /// Creates a cursor at the beginning of the segments that the device writes.
    pub fn writable(chain: &'a Chain, memory: &'a Memory) -> Cursor<'a> {
        Cursor { memory, segments: chain.writable(), offset: 0 }
    }

    /// Copies the next bytes from the driver's memory.
    ///
    /// # Errors
    /// [`InvalidBuffer`]: there are fewer bytes, or they are not in the driver's memory.
    pub fn load(&mut self, to: &mut [u8]) -> std::result::Result<(), InvalidBuffer> {
        let mut done = 0;
        self.walk(to.len() as u64, |at, len| {
            // SAFETY: `walk` passes a piece of the driver's memory, which is mapped and accessed only atomically.
            unsafe { load_bytes(at, &mut to[done..done + len]) };
            done += len;
        })
    }

    /// Copies bytes to the driver's memory.
    ///
    /// # Errors
    /// [`InvalidBuffer`]: there is room for fewer bytes, or they are not in the driver's memory.
    pub fn store(&mut self, from: &[u8]) -> std::result::Result<(), InvalidBuffer> {
        let mut done = 0;
        self.walk(from.len() as u64, |at, len| {
            // SAFETY: `walk` passes a piece of the driver's memory, which is mapped and accessed only atomically.
            unsafe { store_bytes(at, &from[done..done + len]) };
            done += len;
        })
    }

    /// Skips `len` bytes, at most to the end.
    pub fn skip(&mut self, mut len: u64) {
        while let Some((_, left)) = self.rest().filter(|_| len > 0) {
            let step = len.min(left.into()) as u32;
            self.offset += step;
            len -= u64::from(step);
        }
    }

    /// Returns address and length of the rest of the first segment that is not exhausted.
    fn rest(&mut self) -> Option<(u64, u32)> {
        loop {
            let (segment, others) = self.segments.split_first()?;
            if self.offset < segment.len {
                // If the address saturates, no region contains it.
                return Some((segment.addr.saturating_add(self.offset.into()), segment.len - self.offset));
            }
            (self.segments, self.offset) = (others, 0);
        }
    }

    fn walk(&mut self, mut len: u64, mut piece: impl FnMut(*mut u8, usize)) -> std::result::Result<(), InvalidBuffer> {
        while len > 0 {
            let (addr, left) = self.rest().ok_or(InvalidBuffer)?;
            let (at, found) = self.memory.piece(addr, len.min(left.into())).ok_or(InvalidBuffer)?;
            piece(at, found as usize);
            len -= found;
            self.offset += found as u32;
        }
        Ok(())
    }
}
