use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use dormouse_abi::vring::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};

use super::{Flags, Layout, NO_NOTIFICATION, contiguous, is_wanted};
use crate::area::Area;
use crate::buffer::{Chain, Segment};
use crate::bus::{Bus, Direct};
use crate::error::RingError;
use crate::features::{Features, WideU16};
use crate::memory::{AddressSpace, Words, find_table, read_words};
use crate::side::DeviceSide;

/// Number of buffers by which the prefetch of a descriptor is ahead.
const AHEAD: u16 = 8;

/// The device side of a split virtqueue, used by one thread. The driver cannot change any state that the device relies on.
///
/// The value is aligned to two cache lines, for CPUs that fetch pairs of lines, so that a driver next to it in memory
/// shares none of them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Device<B = Direct> {
    bus: B,
    layout: Layout,
    features: Features,
    popped: WideU16,
    /// Last checked value of `avail.idx`: at most `size` ahead of `popped`.
    avail_seen: WideU16,
    /// Number of chains pushed: the next value of `used.idx`, its current value, and its value when
    /// [`DeviceSide::needs_interrupt`] was last called. These counts do not wrap.
    pushed: u64,
    published: u64,
    announced: u64,
    /// Shadow of `used.flags`.
    flags: Flags,
    /// In order: head and length of the last chain of a batch whose element is not yet written, and the number of
    /// chains in the batch.
    batch: Option<(u16, u32, u16)>,
    violations: u64,
}

impl Device {
    /// Creates the device of an empty ring with contiguous areas: see [`Device::at_base`].
    ///
    /// # Errors
    /// [`RingError::Size`] and [`RingError::Alignment`].
    ///
    /// # Safety
    /// See [`Device::at_base`].
    pub unsafe fn at(ring: *mut u8, size: u32) -> Result<Device, RingError> {
        // SAFETY: the caller guarantees the contract of `at_base` for the memory at `ring`; the base of an empty ring
        // is 0.
        unsafe { Device::at_base(ring, size, 0) }
    }

    /// Creates the device of a ring with contiguous areas, see [`super::contiguous`], in which everything before `base`
    /// has been taken and used. It uses event indexes, and no other feature.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Errors
    /// [`RingError::Size`] and [`RingError::Alignment`].
    ///
    /// # Safety
    /// The [`dormouse_abi::vring::RingLayout::size_bytes`] bytes at `ring` are mapped readable and writable as long as
    /// the device lives, Rust code accesses them only atomically, and no other code of this program writes the device's
    /// side.
    pub unsafe fn at_base(ring: *mut u8, size: u32, base: u16) -> Result<Device, RingError> {
        let areas = contiguous(ring, size)?;
        // SAFETY: the caller guarantees that the ring's memory is mapped readable and writable as long as the device
        // lives, and accessed only atomically.
        let bus = unsafe { Direct::new(areas) };
        Device::with_base(bus, size, Features { event_idx: true, ..Features::default() }, base)
    }
}

impl<B: Bus> Device<B> {
    /// Creates the device of an empty ring (see [`super::init`]) of `size` entries.
    ///
    /// # Errors
    /// [`RingError::Size`], and [`RingError::Area`] for an area that is too small or not aligned.
    pub fn new(bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        Device::with_base(bus, size, features, 0)
    }

    /// Creates the device of a ring in which everything before `base` has been taken and used. vhost calls this the
    /// ring's base.
    ///
    /// # Errors
    /// See [`Device::new`].
    pub fn with_base(bus: B, size: u32, features: Features, base: u16) -> Result<Self, RingError> {
        let layout = Layout::new(&bus, size)?;
        Ok(Device {
            bus,
            layout,
            features,
            popped: WideU16::new(base),
            avail_seen: WideU16::new(base),
            pushed: base.into(),
            published: base.into(),
            announced: base.into(),
            flags: Flags::of(Area::Device),
            batch: None,
            violations: 0,
        })
    }

    /// Creates the device of a ring in which everything before `base` has been taken, and all but `in_flight` buffers of
    /// that have been used. [`Device::pop_again`] pops these.
    ///
    /// # Errors
    /// See [`Device::new`].
    pub fn with_in_flight(bus: B, size: u32, features: Features, base: u16, in_flight: u16) -> Result<Self, RingError> {
        let device = Device::with_base(bus, size, features, base)?;
        let used = u64::from(base.wrapping_sub(in_flight));
        Ok(Device { pushed: used, published: used, announced: used, ..device })
    }

    /// Returns the device's position in the avail ring.
    pub fn base(&self) -> u16 {
        self.popped.get()
    }

    /// Pops the head of the next available chain, if there is one (2.7.7, 2.7.13).
    #[inline(always)]
    fn pop_head(&mut self) -> Result<Option<u16>, RingError> {
        if self.popped.get() == self.avail_seen.get() {
            // (B) pairs with (A): entries and descriptors are read after the index that covers them.
            let value: u16 = self.bus.load(Area::Driver, Layout::INDEX, Acquire);
            // The device cannot have more chains than the ring has entries, including those popped, and those pushed
            // and not yet published.
            if value.wrapping_sub(self.published as u16) > self.layout.size()
                || value.wrapping_sub(self.popped.get()) > self.layout.size()
            {
                return Err(self.violation(RingError::AvailIndex { index: self.popped.get(), value }));
            }
            self.avail_seen.set(value);
            if value == self.popped.get() {
                return Ok(None);
            }
        }
        let index = self.popped.get();
        self.popped.set(index.wrapping_add(1));
        if self.avail_seen.get().wrapping_sub(index) > AHEAD {
            let entry = self.layout.avail_entry(self.layout.slot(index.wrapping_add(AHEAD)));
            let head: u16 = self.bus.load(Area::Driver, entry, Relaxed);
            self.bus.expect_load(Area::Descriptor, self.layout.descriptor(self.layout.slot(head)));
        }
        let head: u16 = self.bus.load(Area::Driver, self.layout.avail_entry(self.layout.slot(index)), Relaxed);
        if head >= self.layout.size() {
            return Err(self.violation(RingError::AvailId { index, value: head }));
        }
        Ok(Some(head))
    }

    /// Pops the next available buffer, which must be of the simplest kind: one segment to read, not in a table.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// The driver has violated the protocol; the device continues. [`RingError::AvailIndex`]: nothing was taken, and
    /// the error is repeated until the index is valid. For other errors the entry is skipped, and its descriptor is
    /// never returned to the driver.
    #[inline]
    pub fn pop_single(&mut self) -> Result<Option<(u16, Segment)>, RingError> {
        let Some(id) = self.pop_head()? else { return Ok(None) };
        let (addr, rest) = self.descriptor(id);
        let flags = (rest >> 32) as u16;
        if flags != 0 {
            return Err(self.violation(RingError::DescriptorFlags { index: id, value: flags }));
        }
        Ok(Some((id, Segment { addr, len: rest as u32 })))
    }

    /// Pops the buffer that begins at descriptor `head` and was popped by an earlier device.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// [`RingError::AvailId`] for a descriptor that the ring does not have, and those of [`DeviceSide::pop`].
    pub fn pop_again(&mut self, head: u16, space: &impl AddressSpace, chain: &mut Chain) -> Result<(), RingError> {
        if head >= self.layout.size() {
            return Err(self.violation(RingError::AvailId { index: self.popped.get(), value: head }));
        }
        self.pop_chain(head, self.descriptor(head), space, chain).map(drop)
    }

    #[inline(never)]
    fn pop_chain(
        &mut self,
        head: u16,
        words: Words,
        space: &impl AddressSpace,
        chain: &mut Chain,
    ) -> Result<bool, RingError> {
        chain.clear();
        chain.set_id(head);
        match self.walk(head, words, space, chain) {
            Ok(()) => Ok(true),
            Err(error) => Err(self.violation(error)),
        }
    }

    #[inline(always)]
    fn descriptor(&self, slot: u16) -> Words {
        let at = self.layout.descriptor(slot);
        (self.bus.load(Area::Descriptor, at, Relaxed), self.bus.load(Area::Descriptor, at + 8, Relaxed))
    }

    /// Enters the segments of a chain. `words` are the words of its first descriptor.
    fn walk(&self, head: u16, mut words: Words, space: &impl AddressSpace, chain: &mut Chain) -> Result<(), RingError> {
        let mut index = head;
        let mut bytes = 0;
        loop {
            let (flags, next) = ((words.1 >> 32) as u16, (words.1 >> 48) as u16);
            chain.count_descriptor();
            if flags & DESC_F_INDIRECT != 0 {
                return self.walk_table(index, words, space, chain, bytes);
            }
            self.enter(index, words, chain, &mut bytes)?;
            if flags & DESC_F_NEXT == 0 {
                return Ok(());
            }
            if next >= self.layout.size() {
                return Err(RingError::NextIndex { index, value: next });
            }
            index = next;
            words = self.descriptor(index);
        }
    }

    /// Enters a segment: the step that is the same inside and outside of tables.
    #[inline(always)]
    fn enter(&self, index: u16, (addr, rest): Words, chain: &mut Chain, bytes: &mut u64) -> Result<(), RingError> {
        let (segment, flags) = (Segment { addr, len: rest as u32 }, (rest >> 32) as u16);
        chain.enter((index, segment), (flags, DESC_F_NEXT | DESC_F_WRITE), self.layout.size(), bytes)
    }

    /// Enters the rest of a chain, which is in an indirect table (2.7.5.3).
    fn walk_table(
        &self,
        index: u16,
        (addr, rest): Words,
        space: &impl AddressSpace,
        chain: &mut Chain,
        mut bytes: u64,
    ) -> Result<(), RingError> {
        let (len, flags) = (rest as u32, (rest >> 32) as u16);
        // 2.7.5.3.1: INDIRECT excludes NEXT. 2.7.5.3.2: the device ignores WRITE.
        if !self.features.indirect || flags & !(DESC_F_INDIRECT | DESC_F_WRITE) != 0 {
            return Err(RingError::DescriptorFlags { index, value: flags });
        }
        let (table, entries) = find_table(space, index, addr, len)?;
        let mut entry = 0_u32;
        loop {
            // SAFETY: the entry is below the table's number of entries, and `translate` has found the whole table to be
            // mapped.
            let words = unsafe { read_words(table.wrapping_add(16 * entry as usize)) };
            let (flags, next) = ((words.1 >> 32) as u16, (words.1 >> 48) as u16);
            self.enter(entry as u16, words, chain, &mut bytes)?;
            if flags & DESC_F_NEXT == 0 {
                return Ok(());
            }
            if u32::from(next) >= entries {
                return Err(RingError::NextIndex { index: entry as u16, value: next });
            }
            entry = next.into();
        }
    }

    #[cold]
    #[inline(never)]
    fn violation(&mut self, error: RingError) -> RingError {
        self.violations += 1;
        error
    }

    /// Does [`Device::push_used`] for a caller that has only the head of a chain.
    #[inline(always)]
    pub fn push_used_id(&mut self, id: u16, len: u32) {
        debug_assert!(id < self.layout.size());
        self.end_batch();
        self.enter_used(self.pushed as u16, id, len);
        self.pushed += 1;
    }

    /// Writes the element of a batch in the place of its first chain's element (2.7.9).
    #[inline(always)]
    fn end_batch(&mut self) {
        if let Some((id, len, count)) = self.batch {
            self.batch = None;
            self.enter_used((self.pushed as u16).wrapping_sub(count), id, len);
        }
    }

    #[inline(always)]
    fn enter_used(&self, index: u16, id: u16, len: u32) {
        let at = self.layout.used_entry(self.layout.slot(index));
        // Relaxed: the driver reads the element only after (C).
        self.bus.store(Area::Device, at, u32::from(id), Relaxed);
        self.bus.store(Area::Device, at + 4, len, Relaxed);
    }

    /// Asks to be woken once there are `count` buffers that were not popped, if event indexes were negotiated (2.7.10);
    /// otherwise at the next buffer. Returns whether there are that many already. If so, pop before sleeping. `count`
    /// is 1 to the ring's size.
    ///
    /// Fewer buffers wait without a notification, so a device that sleeps must look again after some time.
    ///
    /// See also [`Device::arm_notification`].
    pub fn arm_notification_after(&mut self, count: u16) -> bool {
        debug_assert!((1..=self.layout.size()).contains(&count));
        if self.features.event_idx {
            let event = self.popped.get().wrapping_add(count - 1);
            self.bus.store(Area::Device, self.layout.avail_event(), event, Relaxed);
        } else {
            self.flags.set(&self.bus, 0);
        }
        // (F) pairs with (E): the request is stored before `avail.idx` is read.
        self.bus.fence();
        let value: u16 = self.bus.load(Area::Driver, Layout::INDEX, Relaxed);
        value.wrapping_sub(self.popped.get()) >= count
    }
}

impl<B: Bus> DeviceSide for Device<B> {
    /// Pops the next available chain, with the tables that it names in `space`, into `chain`. False: there is none
    /// (2.7.7, 2.7.13).
    ///
    /// Each descriptor is read once, and the value that was read is checked. Wait-free.
    ///
    /// # Errors
    /// See [`Device::pop_single`]: [`RingError::AvailIndex`]; or the entry is skipped, with [`RingError::AvailId`],
    /// [`RingError::DescriptorFlags`], [`RingError::NextIndex`], [`RingError::TooLong`] (which includes loops),
    /// [`RingError::TotalLength`], [`RingError::Order`], [`RingError::IndirectTable`].
    #[inline(always)]
    fn pop(&mut self, space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError> {
        let Some(head) = self.pop_head()? else { return Ok(false) };
        let words = self.descriptor(head);
        // Most buffers have one segment, in which nothing can be wrong.
        let segment = Segment { addr: words.0, len: words.1 as u32 };
        match (words.1 >> 32) as u16 {
            0 => chain.set_one(head, segment, 0),
            DESC_F_WRITE => chain.set_one(head, segment, DESC_F_WRITE),
            _ => return self.pop_chain(head, words, space, chain),
        }
        Ok(true)
    }

    /// Enters a popped chain in the used ring, with the number of bytes that the device wrote to it (2.7.8).
    /// [`Device::publish_used`] shows it to the driver.
    ///
    /// In order, chains must be pushed in the order in which they were popped. Only the last one of a batch is entered,
    /// as long as the chains before it were filled completely (2.7.9).
    ///
    /// Wait-free.
    #[inline(always)]
    fn push_used(&mut self, chain: &Chain, len: u32) {
        if !self.features.in_order {
            return self.push_used_id(chain.id(), len);
        }
        let count = self.batch.take().map_or(0, |(_, _, count)| count) + 1;
        self.pushed += 1;
        self.batch = Some((chain.id(), len, count));
        if u64::from(len) < chain.writable_len() {
            self.end_batch();
        }
    }

    /// Shows the driver everything that was pushed (2.7.8). Call it before polling for available buffers again.
    ///
    /// Wait-free.
    #[inline]
    fn publish_used(&mut self) {
        self.end_batch();
        self.published = self.pushed;
        // (C) pairs with (D): everything that the device did to the buffers, and the elements, happen before.
        self.bus.store(Area::Device, Layout::INDEX, self.published as u16, Release);
    }

    /// Whether the driver wants to be notified of what was published since the last call (2.7.7.2).
    ///
    /// Wait-free.
    #[inline]
    fn needs_interrupt(&mut self) -> bool {
        let count = self.published - core::mem::replace(&mut self.announced, self.published);
        let event = (Area::Driver, self.layout.used_event());
        is_wanted(&self.bus, event, self.features.event_idx, self.published as u16, count)
    }

    /// Asks to be woken at the next buffer (2.7.10), and returns whether one came meanwhile. If so, pop it before
    /// sleeping.
    ///
    /// If the driver's index is invalid, the result is always true. After an error from [`Device::pop`], sleep
    /// nevertheless.
    ///
    /// Wait-free.
    fn arm_notification(&mut self) -> bool {
        self.arm_notification_after(1)
    }

    /// Asks not to be notified for now. This is a hint: some notifications may still arrive.
    ///
    /// Wait-free.
    fn disarm_notification(&mut self) {
        if self.features.event_idx {
            // The index that the driver passes last.
            self.bus.store(Area::Device, self.layout.avail_event(), self.popped.get().wrapping_sub(1), Relaxed);
        } else {
            self.flags.set(&self.bus, NO_NOTIFICATION);
        }
    }

    /// Returns the number of chains that were pushed and not yet published.
    fn unpublished(&self) -> u16 {
        (self.pushed - self.published) as u16
    }

    /// Returns the number of times that the driver has violated the protocol.
    fn violations(&self) -> u64 {
        self.violations
    }
}
