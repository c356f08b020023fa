use core::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

use crate::error::RingError;
use crate::region::Region;

/// A buffer that the driver made available. Only `id` has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Its descriptor, below the ring's size; give it back with [`Device::push_used`].
    pub id: u16,
    /// Where the driver says that it starts.
    pub addr: u64,
    /// How many bytes the driver says that it has.
    pub len: u32,
}

/// The device side. Its positions are private: nothing that it goes by can be changed by the driver.
#[derive(Debug)]
pub struct Device {
    region: Region,
    last_avail: u16,
    /// `avail.idx` as it was last read, checked: at most `size` ahead of `last_avail`.
    avail_idx_seen: u16,
    used_idx: u16,
    lie: Option<RingError>,
}

// SAFETY: it is the only writer of the device's side (`new`'s contract), wherever it is moved to.
unsafe impl Send for Device {}

impl Device {
    /// The device of an empty ring, see [`crate::init`].
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Errors
    /// [`RingError::Size`] and [`RingError::Alignment`].
    ///
    /// # Safety
    /// The region of [`dormouse_abi::vring::RingLayout::size_bytes`] bytes is mapped readable and writable as long as the
    /// device lives, Rust code accesses it only atomically, and nobody else of this program writes the device's side.
    pub unsafe fn new(ring: *mut u8, size: u32) -> Result<Device, RingError> {
        // SAFETY: the caller's promise.
        unsafe { Device::with_base(ring, size, 0) }
    }

    /// The device of a ring of which everything before `base` has been taken and used: what vhost calls the ring's base.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Errors
    /// [`RingError::Size`] and [`RingError::Alignment`].
    ///
    /// # Safety
    /// As [`Device::new`].
    pub unsafe fn with_base(ring: *mut u8, size: u32, base: u16) -> Result<Device, RingError> {
        // SAFETY: the caller's promise.
        let region = unsafe { Region::new(ring, size) }?;
        Ok(Device { region, last_avail: base, avail_idx_seen: base, used_idx: base, lie: None })
    }

    /// The next available buffer, if there is one (2.7.7 and 2.7.13, from the device's side).
    ///
    /// Wait-free. Not async-signal-safe: the device is one thread's.
    ///
    /// # Errors
    /// The driver lied, and the device goes on. [`RingError::AvailIndex`]: nothing was taken, and it comes again until
    /// the index is possible. [`RingError::AvailId`], [`RingError::DescriptorFlags`]: that entry is skipped, and its
    /// descriptor never comes back to the driver.
    pub fn pop(&mut self) -> Result<Option<Buffer>, RingError> {
        if self.last_avail == self.avail_idx_seen {
            // (B) pairs with (A): entries and descriptors are read after the index that covers them.
            let value = u16::from_le(self.region.avail_idx().load(Acquire));
            if value.wrapping_sub(self.last_avail) > self.region.size() {
                return Err(self.remember(RingError::AvailIndex { index: self.last_avail, value }));
            }
            self.avail_idx_seen = value;
            if value == self.last_avail {
                return Ok(None);
            }
        }
        let index = self.last_avail;
        self.last_avail = index.wrapping_add(1);
        let id = u16::from_le(self.region.avail_ring(self.region.slot(index.into())).load(Relaxed));
        if id >= self.region.size() {
            return Err(self.remember(RingError::AvailId { index, value: id }));
        }
        let (addr, rest) = self.region.desc(id);
        let (addr, rest) = (u64::from_le(addr.load(Relaxed)), u64::from_le(rest.load(Relaxed)));
        let flags = (rest >> 32) as u16;
        if flags != 0 {
            return Err(self.remember(RingError::DescriptorFlags { index: id, value: flags }));
        }
        Ok(Some(Buffer { id, addr, len: rest as u32 }))
    }

    fn remember(&mut self, error: RingError) -> RingError {
        self.lie.get_or_insert(error);
        error
    }

    /// The first lie of the driver's, if it ever told one.
    pub fn lie(&self) -> Option<RingError> {
        self.lie
    }

    /// Where the device is in the avail ring.
    pub fn last_avail(&self) -> u16 {
        self.last_avail
    }

    /// Enters a popped buffer in the used ring, with the number of bytes that the device wrote to it (2.7.8).
    /// [`Device::publish_used`] shows it to the driver; at most `size` may wait for that.
    ///
    /// Wait-free. Not async-signal-safe: the device is one thread's.
    pub fn push_used(&mut self, id: u16, len: u32) {
        debug_assert!(id < self.region.size());
        let elem = self.region.used_ring(self.region.slot(self.used_idx.into()));
        // Relaxed: the driver reads the element only behind (C).
        elem.0.store(u32::from(id).to_le(), Relaxed);
        elem.1.store(len.to_le(), Relaxed);
        self.used_idx = self.used_idx.wrapping_add(1);
    }

    /// Shows the driver all that was pushed (2.7.8). Do it before polling for available buffers again.
    ///
    /// Wait-free. Not async-signal-safe: the device is one thread's.
    pub fn publish_used(&mut self) {
        // (C) pairs with (D).
        self.region.used_idx().store(self.used_idx.to_le(), Release);
    }

    /// Asks to be woken at the next buffer (2.7.10), and tells whether one came meanwhile: then pop before sleeping.
    ///
    /// A driver whose index is a lie always seems to have something; after an error from [`Device::pop`], sleep anyway.
    ///
    /// Wait-free. Not async-signal-safe: the device is one thread's.
    pub fn arm_notification(&mut self) -> bool {
        self.arm_notification_after(1)
    }

    /// Asks to be woken once there are `count` buffers that were not popped (2.7.10: the event index may name any entry to
    /// come), and tells whether there are that many already: then pop before sleeping. `count` is 1 to the ring's size.
    ///
    /// Fewer buffers wait unseen, so whoever sleeps must look again after some time.
    ///
    /// As [`Device::arm_notification`] otherwise.
    pub fn arm_notification_after(&mut self, count: u16) -> bool {
        debug_assert!((1..=self.region.size()).contains(&count));
        let event = self.last_avail.wrapping_add(count - 1);
        self.region.avail_event().store(event.to_le(), Relaxed);
        // (F) pairs with (E): the event index is stored before `avail.idx` is loaded.
        fence(SeqCst);
        u16::from_le(self.region.avail_idx().load(Relaxed)).wrapping_sub(self.last_avail) >= count
    }
}
