//! The split virtqueue (2.7).

mod device;
mod driver;
mod free;
mod planned;

use core::sync::atomic::Ordering::Relaxed;

use dormouse_abi::vring::RING_SIZE_MAX;

pub use device::Device;
pub use driver::Driver;
pub use planned::PlannedDriver;

use crate::area::Area;
use crate::bus::{AreaLocation, Areas, Bus, check_areas};
use crate::error::RingError;

/// Offsets of the fields of a ring of `size` entries in their areas.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    size: u32,
}

impl Layout {
    /// Checks size, alignment and memory.
    pub(crate) fn new(bus: &impl Bus, size: u32) -> Result<Layout, RingError> {
        if !size.is_power_of_two() || size > RING_SIZE_MAX {
            return Err(RingError::Size { size });
        }
        let layout = Layout { size };
        check_areas(bus, layout.lens())?;
        Ok(layout)
    }

    pub(crate) const fn size(self) -> u16 {
        self.size as u16
    }

    /// Returns the entry of a wrapping index.
    #[inline(always)]
    pub(crate) const fn slot(self, index: u16) -> u16 {
        index & (self.size as u16).wrapping_sub(1)
    }

    /// Offset of the flags in either ring.
    pub(crate) const FLAGS: usize = 0;
    /// Offset of the index in either ring.
    pub(crate) const INDEX: usize = 2;

    pub(crate) const fn descriptor(self, slot: u16) -> usize {
        16 * slot as usize
    }

    pub(crate) const fn avail_entry(self, slot: u16) -> usize {
        4 + 2 * slot as usize
    }

    pub(crate) const fn used_event(self) -> usize {
        4 + 2 * self.size as usize
    }

    pub(crate) const fn used_entry(self, slot: u16) -> usize {
        4 + 8 * slot as usize
    }

    pub(crate) const fn avail_event(self) -> usize {
        4 + 8 * self.size as usize
    }

    /// Sizes of the areas, in bytes: descriptor, driver's, device's.
    const fn lens(self) -> [usize; 3] {
        let size = self.size as usize;
        [16 * size, 6 + 2 * size, 6 + 8 * size]
    }
}

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` (2.7.6) and `VIRTQ_USED_F_NO_NOTIFY` (2.7.8): the same bit.
pub(crate) const NO_NOTIFICATION: u16 = 1;

/// A ring's flags, in which one side tells the other whether it wants to be notified, with their shadow.
#[derive(Debug)]
struct Flags {
    /// The ring that this side writes.
    own: Area,
    shadow: u16,
}

impl Flags {
    const fn of(own: Area) -> Flags {
        Flags { own, shadow: 0 }
    }

    fn set(&mut self, bus: &impl Bus, flags: u16) {
        if self.shadow != flags {
            self.shadow = flags;
            bus.store(self.own, Layout::FLAGS, flags, Relaxed);
        }
    }
}

/// Whether a side must notify the other. It has published `count` entries since the last call, up to index `published`.
/// The other side's request is in its ring, area `peer`: the index at offset `event` if event indexes were negotiated,
/// otherwise the flags (2.7.7.2, 2.7.13.4).
#[inline]
fn is_wanted(bus: &impl Bus, (peer, event): (Area, usize), has_event_idx: bool, published: u16, count: u64) -> bool {
    // (E) pairs with (F), and (H) with (G): the index is stored before the other side's request is read.
    bus.fence();
    if has_event_idx {
        let event = bus.load(peer, event, Relaxed);
        let old = published.wrapping_sub(count as u16);
        return count > u64::from(u16::MAX) || bus.need_event(event, published, old);
    }
    let flags: u16 = bus.load(peer, Layout::FLAGS, Relaxed);
    count > 0 && flags & NO_NOTIFICATION == 0
}

/// Returns the number of bytes of a ring of `size` entries with contiguous areas, see [`contiguous`].
///
/// # Errors
/// [`RingError::Size`].
pub const fn size_bytes(size: u32) -> Result<usize, RingError> {
    if size.is_power_of_two() && size <= RING_SIZE_MAX {
        Ok(dormouse_abi::vring::RingLayout { size }.size_bytes())
    } else {
        Err(RingError::Size { size })
    }
}

/// Returns the areas of a ring of `size` entries that are contiguous from `base` on, each on its own cache lines, in
/// the order and with the distances of [`dormouse_abi::vring::RingLayout`].
///
/// # Errors
/// [`RingError::Size`] and [`RingError::Alignment`] (64 bytes).
pub fn contiguous(base: *mut u8, size: u32) -> Result<Areas, RingError> {
    planned::check(base, size)?;
    let layout = dormouse_abi::vring::RingLayout { size };
    let [descriptor, driver, device] = Layout { size }.lens();
    Ok(Areas {
        descriptor: AreaLocation(base.wrapping_add(layout.desc()), descriptor),
        driver: AreaLocation(base.wrapping_add(layout.avail()), driver),
        device: AreaLocation(base.wrapping_add(layout.used()), device),
    })
}

/// Makes an empty ring: both indexes, both flags and both event indexes are zero. Call it before either side uses the ring.
///
/// # Errors
/// [`RingError::Size`] and [`RingError::Area`].
pub fn init(bus: &impl Bus, size: u32) -> Result<(), RingError> {
    start_at(bus, size, 0)
}

/// Makes a ring whose indexes are at `index`, as if that many buffers had been used and taken back.
///
/// # Errors
/// [`RingError::Size`] and [`RingError::Area`].
pub fn start_at(bus: &impl Bus, size: u32, index: u16) -> Result<(), RingError> {
    empty(bus, Layout::new(bus, size)?, index);
    Ok(())
}

fn empty(bus: &impl Bus, layout: Layout, index: u16) {
    for (area, event) in [(Area::Driver, layout.used_event()), (Area::Device, layout.avail_event())] {
        bus.store(area, Layout::FLAGS, 0_u16, Relaxed);
        bus.store(area, Layout::INDEX, index, Relaxed);
        bus.store(area, event, index, Relaxed);
    }
}
