//! One side's access to the memory that it shares with the other.

use crate::arch::{prefetch_to_read, prefetch_to_write};
use crate::area::Area;
use crate::error::RingError;
use crate::need_event;

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, Ordering::SeqCst, fence};

/// Number of descriptors whose lines are taken back from the other side's cache at a time, if that side has only read
/// them.
pub(crate) const TOGETHER: u16 = 32;
/// Number of descriptors in a cache line.
pub(crate) const IN_LINE: u16 = 4;

/// A little-endian number of the ring, of 2, 4 or 8 bytes.
pub trait Word: Copy + Eq + sealed::Word {
    /// Loads the number and converts it from little-endian.
    ///
    /// # Safety
    /// `at` is aligned, readable, and accessed by Rust code only atomically.
    unsafe fn load(at: *mut u8, order: Ordering) -> Self;
    /// Converts the number to little-endian and stores it.
    ///
    /// # Safety
    /// `at` is aligned, writable, and accessed by Rust code only atomically.
    unsafe fn store(self, at: *mut u8, order: Ordering);
    /// Widens the number to 64 bits.
    fn to_u64(self) -> u64;
    /// Returns the low bytes of `value`.
    fn from_u64(value: u64) -> Self;
}

mod sealed {
    pub trait Word {}
}

macro_rules! word {
    ($word:ty, $atomic:ty) => {
        impl sealed::Word for $word {}

        impl Word for $word {
            #[inline(always)]
            unsafe fn load(at: *mut u8, order: Ordering) -> Self {
                // SAFETY: by this function's contract, `at` is aligned, readable, and accessed by Rust code only
                // atomically.
                let at = unsafe { <$atomic>::from_ptr(at.cast()) };
                Self::from_le(at.load(order))
            }

            #[inline(always)]
            unsafe fn store(self, at: *mut u8, order: Ordering) {
                // SAFETY: by this function's contract, `at` is aligned, writable, and accessed by Rust code only
                // atomically.
                let at = unsafe { <$atomic>::from_ptr(at.cast()) };
                at.store(self.to_le(), order);
            }

            #[inline(always)]
            fn to_u64(self) -> u64 {
                self.into()
            }

            #[inline(always)]
            fn from_u64(value: u64) -> Self {
                value as Self
            }
        }
    };
}

word!(u16, AtomicU16);
word!(u32, AtomicU32);
word!(u64, AtomicU64);

/// One side's access to a ring's memory. Queues use it for every access, so a model can replace memory.
///
/// Offsets are bytes from the beginning of an area, multiples of the word's size, and within [`Bus::len`]. A queue
/// checks that once, when it is created.
pub trait Bus {
    /// Returns the number of bytes of an area that may be accessed.
    fn len(&self, area: Area) -> usize;
    /// Loads a word; `order` is `Relaxed` or `Acquire`.
    fn load<W: Word>(&self, area: Area, offset: usize, order: Ordering) -> W;
    /// Stores a word; `order` is `Relaxed` or `Release`.
    fn store<W: Word>(&self, area: Area, offset: usize, value: W, order: Ordering);
    /// Executes a sequentially consistent fence.
    fn fence(&self);

    /// Hints that this word will be read soon. It may be beyond the area's end. The hint is not an access, and may be
    /// ignored.
    #[inline(always)]
    fn expect_load(&self, _area: Area, _offset: usize) {}

    /// Hints that this word will be written soon. It may be beyond the area's end. The hint is not an access, and may
    /// be ignored.
    #[inline(always)]
    fn expect_store(&self, _area: Area, _offset: usize) {}

    /// Calls [`need_event`]. Tests replace it with a wrong comparison.
    #[doc(hidden)]
    #[inline(always)]
    fn need_event(&self, event: u16, new: u16, old: u16) -> bool {
        need_event(event, new, old)
    }
}

/// Takes the lines of the most recently freed descriptors from the device's cache, all together. `free_count`
/// descriptors are free; `freed(n)` is the one that was freed n-th last.
///
/// The device has read these lines, and the driver will soon write each of them. If it wrote them one by one, the CPU
/// would wait for only as many of them at a time as stores fit into its store buffer, which is few descriptors. A
/// prefetch hint would be enough, but the CPU's own prefetcher has already loaded the lines that follow, and a hint
/// does not take a line that both caches have from the other one (AMD EPYC, family 19h).
#[inline(always)]
pub(crate) fn reclaim(bus: &impl Bus, free_count: u16, freed: impl Fn(u16) -> u16) {
    let mut back = 1;
    while back <= free_count.min(TOGETHER) {
        let slot = freed(back);
        if slot % IN_LINE == IN_LINE - 1 {
            // The last descriptor of a line: the others of the line most likely became free before it. Only the address
            // is stored, so the flags that say whether a packed descriptor is available do not change.
            bus.store(Area::Descriptor, 16 * usize::from(slot), 0_u64, Ordering::Relaxed);
            back += IN_LINE;
        } else {
            back += 1;
        }
    }
}

/// Checks that each area has as many bytes as a queue needs. `needed` is in the order of [`Area`].
pub(crate) fn check_areas(bus: &impl Bus, needed: [usize; 3]) -> Result<(), RingError> {
    for (area, needed) in [Area::Descriptor, Area::Driver, Area::Device].into_iter().zip(needed) {
        let found = bus.len(area);
        if found < needed {
            return Err(RingError::Area { area, needed, found });
        }
    }
    Ok(())
}

/// Address of an area in this program's memory, and its length in bytes. It has C layout.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AreaLocation(pub *mut u8, pub usize);

/// Locations of the three areas. It has C layout.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Areas {
    /// [`Area::Descriptor`], aligned to 16 bytes.
    pub descriptor: AreaLocation,
    /// [`Area::Driver`], aligned to 4 bytes.
    pub driver: AreaLocation,
    /// [`Area::Device`], aligned to 4 bytes.
    pub device: AreaLocation,
}

/// Mapped memory, accessed directly.
#[derive(Debug, Clone, Copy)]
pub struct Direct(Areas);

// SAFETY: the value holds addresses and sizes, and all access through them is atomic.
unsafe impl Send for Direct {}
// SAFETY: nothing in the value can be changed through a shared reference; access through the addresses is atomic.
unsafe impl Sync for Direct {}

impl Direct {
    /// Returns a bus for these areas. A queue that uses it checks alignment and size.
    ///
    /// # Safety
    /// The areas are mapped readable and writable as long as any copy of the value or any queue that uses it is used,
    /// and Rust code accesses them only atomically.
    pub const unsafe fn new(areas: Areas) -> Direct {
        Direct(areas)
    }

    #[inline(always)]
    fn area(&self, area: Area) -> AreaLocation {
        match area {
            Area::Descriptor => self.0.descriptor,
            Area::Driver => self.0.driver,
            Area::Device => self.0.device,
        }
    }

    /// Returns the address of a word.
    #[inline(always)]
    pub(crate) fn pointer(&self, area: Area, offset: usize) -> *mut u8 {
        self.area(area).0.wrapping_add(offset)
    }

    #[inline(always)]
    fn at<W>(&self, area: Area, offset: usize) -> *mut u8 {
        let AreaLocation(base, len) = self.area(area);
        debug_assert!(offset + size_of::<W>() <= len && (base.addr() + offset).is_multiple_of(size_of::<W>()));
        base.wrapping_add(offset)
    }
}

impl Bus for Direct {
    #[inline(always)]
    fn len(&self, area: Area) -> usize {
        // An area that is not aligned cannot be used: its length counts as 0.
        let AreaLocation(base, len) = self.area(area);
        let alignment = if area == Area::Descriptor { 16 } else { 4 };
        if base.addr().is_multiple_of(alignment) { len } else { 0 }
    }

    #[inline(always)]
    fn load<W: Word>(&self, area: Area, offset: usize, order: Ordering) -> W {
        // SAFETY: by `new`'s contract the areas are mapped readable and accessed only atomically. Queues stay inside
        // the areas, and their words are aligned.
        unsafe { W::load(self.at::<W>(area, offset), order) }
    }

    #[inline(always)]
    fn store<W: Word>(&self, area: Area, offset: usize, value: W, order: Ordering) {
        // SAFETY: by `new`'s contract the areas are mapped writable and accessed only atomically. Queues stay inside
        // the areas, and their words are aligned.
        unsafe { value.store(self.at::<W>(area, offset), order) }
    }

    #[inline(always)]
    fn fence(&self) {
        fence(SeqCst);
    }

    #[inline(always)]
    fn expect_load(&self, area: Area, offset: usize) {
        prefetch_to_read(self.area(area).0.wrapping_add(offset));
    }

    #[inline(always)]
    fn expect_store(&self, area: Area, offset: usize) {
        prefetch_to_write(self.area(area).0.wrapping_add(offset));
    }
}
