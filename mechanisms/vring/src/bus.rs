//! How one side reaches the memory that it shares with the other.

use crate::arch::{prefetch_to_read, prefetch_to_write};
use crate::area::Area;
use crate::error::RingError;
use crate::need_event;

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, Ordering::SeqCst, fence};

/// How many descriptors' lines are taken back from the other side's cache at a time, where that has only read them.
pub(crate) const TOGETHER: u16 = 32;
/// Descriptors of a line.
pub(crate) const IN_LINE: u16 = 4;

/// A little-endian number of the ring, of 2, 4 or 8 bytes.
pub trait Word: Copy + Eq + sealed::Word {
    /// Loads it, from whatever byte order the CPU has.
    ///
    /// # Safety
    /// `at` is aligned, readable, and accessed by Rust code only atomically.
    unsafe fn load(at: *mut u8, order: Ordering) -> Self;
    /// Stores it.
    ///
    /// # Safety
    /// `at` is aligned, writable, and accessed by Rust code only atomically.
    unsafe fn store(self, at: *mut u8, order: Ordering);
    /// Widened.
    fn to_u64(self) -> u64;
    /// Its low bytes.
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
                // SAFETY: the caller's promise.
                let at = unsafe { <$atomic>::from_ptr(at.cast()) };
                Self::from_le(at.load(order))
            }

            #[inline(always)]
            unsafe fn store(self, at: *mut u8, order: Ordering) {
                // SAFETY: the caller's promise.
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
/// Offsets are bytes from the beginning of an area, multiples of the word's size, and within [`Bus::len`]: a queue checks
/// that once, when it is made.
pub trait Bus {
    /// Bytes of an area that may be accessed.
    fn len(&self, area: Area) -> usize;
    /// Loads a word; `order` is `Relaxed` or `Acquire`.
    fn load<W: Word>(&self, area: Area, offset: usize, order: Ordering) -> W;
    /// Stores a word; `order` is `Relaxed` or `Release`.
    fn store<W: Word>(&self, area: Area, offset: usize, value: W, order: Ordering);
    /// A sequentially consistent fence.
    fn fence(&self);

    /// This word will be read soon; it may be beyond the area's end. A hint, not an access; it may be ignored.
    #[inline(always)]
    fn expect_load(&self, _area: Area, _offset: usize) {}

    /// This word will be written soon; it may be beyond the area's end. A hint, not an access; it may be ignored.
    #[inline(always)]
    fn expect_store(&self, _area: Area, _offset: usize) {}

    /// As [`need_event`]. Tests plant a wrong comparison here.
    #[doc(hidden)]
    #[inline(always)]
    fn need_event(&self, event: u16, new: u16, old: u16) -> bool {
        need_event(event, new, old)
    }
}

/// Takes the lines of the descriptors that became free last from the device's cache, all together. So many are free; `freed(n)` is the one that
/// became free n-th last.
///
/// The device has read these lines, and each will be written soon. Written one by one, the CPU would wait for as many of them as stores fit
/// into its store buffer, which is few descriptors. A prefetch hint would do, except that the CPU's own prefetcher has loaded the lines
/// that follow, and a line that both caches have is not given up for a hint (AMD EPYC, family 19h).
#[inline(always)]
pub(crate) fn reclaim(bus: &impl Bus, free_count: u16, freed: impl Fn(u16) -> u16) {
    let mut back = 1;
    while back <= free_count.min(TOGETHER) {
        let slot = freed(back);
        if slot % IN_LINE == IN_LINE - 1 {
            // The last descriptor of a line: those before it most likely became free before it. Only the address is stored, so what says
            // whether a packed descriptor is available stays as it is.
            bus.store(Area::Descriptor, 16 * usize::from(slot), 0_u64, Ordering::Relaxed);
            back += IN_LINE;
        } else {
            back += 1;
        }
    }
}

/// Whether the areas have so many bytes as a queue needs of them, in the order of [`Area`].
pub(crate) fn check_areas(bus: &impl Bus, needed: [usize; 3]) -> Result<(), RingError> {
    for (area, needed) in [Area::Descriptor, Area::Driver, Area::Device].into_iter().zip(needed) {
        let found = bus.len(area);
        if found < needed {
            return Err(RingError::Area { area, needed, found });
        }
    }
    Ok(())
}

/// Where an area begins in this program's memory, and how many bytes it has. Laid out as C does.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Part(pub *mut u8, pub usize);

/// Where the areas are. Laid out as C does.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Areas {
    /// [`Area::Descriptor`]: begins on a multiple of 16.
    pub descriptor: Part,
    /// [`Area::Driver`]: begins on a multiple of 4.
    pub driver: Part,
    /// [`Area::Device`]: begins on a multiple of 4.
    pub device: Part,
}

/// Mapped memory, accessed directly.
#[derive(Debug, Clone, Copy)]
pub struct Direct(Areas);

// SAFETY: addresses and sizes. Access through them is atomic.
unsafe impl Send for Direct {}
// SAFETY: nothing in it can be changed through a shared reference; access through the addresses is atomic.
unsafe impl Sync for Direct {}

impl Direct {
    /// The memory of these areas. A queue that is made of it checks alignment and size.
    ///
    /// # Safety
    /// The areas are mapped readable and writable as long as any copy of the value or any queue of it is used, and Rust code accesses them
    /// only atomically.
    pub const unsafe fn new(areas: Areas) -> Direct {
        Direct(areas)
    }

    #[inline(always)]
    fn area(&self, area: Area) -> Part {
        match area {
            Area::Descriptor => self.0.descriptor,
            Area::Driver => self.0.driver,
            Area::Device => self.0.device,
        }
    }

    /// The address of a word.
    #[inline(always)]
    pub(crate) fn pointer(&self, area: Area, offset: usize) -> *mut u8 {
        self.area(area).0.wrapping_add(offset)
    }

    #[inline(always)]
    fn at<W>(&self, area: Area, offset: usize) -> *mut u8 {
        let Part(base, len) = self.area(area);
        debug_assert!(offset + size_of::<W>() <= len && (base.addr() + offset).is_multiple_of(size_of::<W>()));
        base.wrapping_add(offset)
    }
}

impl Bus for Direct {
    #[inline(always)]
    fn len(&self, area: Area) -> usize {
        // If an area is not aligned, none of it can be used.
        let Part(base, len) = self.area(area);
        let alignment = if area == Area::Descriptor { 16 } else { 4 };
        if base.addr().is_multiple_of(alignment) { len } else { 0 }
    }

    #[inline(always)]
    fn load<W: Word>(&self, area: Area, offset: usize, order: Ordering) -> W {
        // SAFETY: `new`'s contract; queues stay inside the areas, and their words are aligned.
        unsafe { W::load(self.at::<W>(area, offset), order) }
    }

    #[inline(always)]
    fn store<W: Word>(&self, area: Area, offset: usize, value: W, order: Ordering) {
        // SAFETY: `new`'s contract has the areas writable; queues stay inside them, and their words are aligned.
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
