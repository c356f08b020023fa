use alloc::boxed::Box;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use dormouse_abi::vring::{DESC_F_INDIRECT, DESC_F_NEXT};

use super::free::FreeQueue;
use super::{Flags, Layout, NO_NOTIFICATION, empty, is_wanted};
use crate::area::Area;
use crate::buffer::{BufferSpace, Completion, Segment, flagged, only};
use crate::bus::{Bus, TOGETHER, reclaim};
use crate::error::RingError;
use crate::features::{Features, WideU16};
use crate::memory::{IndirectTables, Words};
use crate::side::DriverSide;
use crate::slots::{BufferSlot, BufferSlots};

/// Number of used elements by which a prefetch is ahead.
const USED_AHEAD: u16 = 16;

/// The driver side of a split virtqueue, used by one thread. All state that it relies on is in its own memory.
///
/// ```text
///   free ──add──▶ written ──publish──▶ available ──(device)──▶ used ──take_used──▶ free
/// ```
///
/// The value is aligned to two cache lines, for CPUs that fetch pairs of lines, so that a device next to it in memory
/// shares none of them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Driver<B> {
    bus: B,
    layout: Layout,
    features: Features,
    /// Slots of chains; a chain's id is its first descriptor.
    slots: BufferSlots,
    /// For each descriptor, the next one of its chain.
    following: Box<[u16]>,
    tables: Option<IndirectTables>,
    free: FreeQueue,
    /// Number of chains added: the next value of `avail.idx`, its current value, and its value when
    /// [`DriverSide::needs_kick`] was last called. These counts do not wrap.
    added: u64,
    published: u64,
    announced: u64,
    /// Number of used elements that were taken.
    taken: u64,
    /// Number of these elements that named no chain of the device.
    skipped: u64,
    /// Number of descriptors taken beyond one for each chain, and number given back beyond one for each used element.
    more_added: u64,
    more_freed: u64,
    /// Shadow of `avail.flags`.
    flags: Flags,
    /// Last checked value of `used.idx`: at most the published index.
    used_seen: WideU16,
    /// In order: head of the last chain of the batch that is being taken, which the device named, and the length that
    /// it wrote for it.
    batch: Option<(u16, u32)>,
    violations: u64,
}

impl<B: Bus> Driver<B> {
    /// Creates the driver of an empty ring (see [`super::init`]) of `size` entries.
    ///
    /// # Errors
    /// [`RingError::Size`], and [`RingError::Area`] for an area that is too small or not aligned.
    pub fn new(bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        Driver::with_base(bus, size, features, 0)
    }

    /// Creates the driver of a ring in which all buffers before `base` were used and taken back (see
    /// [`super::start_at`]).
    ///
    /// # Errors
    /// See [`Driver::new`].
    pub fn with_base(bus: B, size: u32, features: Features, base: u16) -> Result<Self, RingError> {
        let layout = Layout::new(&bus, size)?;
        Ok(Driver {
            layout,
            features,
            slots: BufferSlots::new(layout.size()),
            following: (0..size).map(|_| 0).collect(),
            tables: None,
            free: FreeQueue::new(layout.size()),
            added: base.into(),
            published: base.into(),
            announced: base.into(),
            taken: base.into(),
            skipped: 0,
            more_added: 0,
            more_freed: 0,
            flags: Flags::of(Area::Driver),
            used_seen: WideU16::new(base),
            batch: None,
            violations: 0,
            bus,
        })
    }

    /// Puts chains of at least two segments into these tables from now on, if they fit (2.7.5.3).
    ///
    /// # Errors
    /// [`RingError::IndirectNotNegotiated`].
    ///
    /// # Safety
    /// [`IndirectTables::size_bytes`] are mapped writable as long as the driver lives, aligned to 16, and no other code
    /// of this program writes there.
    pub unsafe fn use_indirect(&mut self, tables: IndirectTables) -> Result<(), RingError> {
        if !self.features.indirect {
            return Err(RingError::IndirectNotNegotiated);
        }
        self.tables = Some(tables);
        Ok(())
    }

    /// Makes the queue empty again after the device has stopped, and passes the token of each buffer that was added and
    /// not taken back, the oldest first. Such a buffer can have been executed, or not, or in part. Call
    /// [`DriverSide::take_used`] until there is none before. The next device begins at an empty queue.
    pub fn reset(&mut self, each: impl FnMut(u64)) {
        let (oldest, size) = (self.oldest(), self.layout.size());
        let count = (self.added as u32).wrapping_sub(oldest);
        (0..count).map(|number| self.slots.get(oldest.wrapping_add(number)).token).for_each(each);
        empty(&self.bus, self.layout, 0);
        self.slots = BufferSlots::new(size);
        self.free = FreeQueue::new(size);
        (self.added, self.published, self.announced, self.taken, self.skipped) = (0, 0, 0, 0, 0);
        (self.more_added, self.more_freed) = (0, 0);
        self.flags = Flags::of(Area::Driver);
        self.used_seen = WideU16::new(0);
        self.batch = None;
    }

    /// Returns the number of free descriptors taken so far.
    #[inline(always)]
    fn descriptors_added(&self) -> u64 {
        self.added.wrapping_add(self.more_added)
    }

    /// Returns the number of descriptors given back so far.
    #[inline(always)]
    fn descriptors_freed(&self) -> u64 {
        self.taken.wrapping_add(self.more_freed)
    }

    /// Returns the number of the oldest chain that was not taken back.
    #[inline(always)]
    fn oldest(&self) -> u32 {
        self.taken.wrapping_sub(self.skipped) as u32
    }

    #[inline(always)]
    fn add_one(&mut self, segment: Segment, flags: u16, token: u64) -> Result<(), RingError> {
        let head = self.head();
        if self.free_count() == 0 {
            return Err(RingError::Full { index: head });
        }
        self.write(head, words(segment, flags, 0));
        self.enter(head, token, if flags == 0 { 0 } else { segment.len }, 1);
        Ok(())
    }

    #[inline(never)]
    fn add_chain(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        let BufferSpace { count, writable: writable_bytes, table, descriptors: needed } =
            BufferSpace::of(readable, writable, self.layout.size(), self.tables)?;
        let head = self.head();
        if needed > self.free_count() {
            return Err(RingError::Full { index: head });
        }

        let segments = flagged(readable, writable).enumerate().map(|(index, (segment, flags))| {
            let more = if index + 1 < count { DESC_F_NEXT } else { 0 };
            (index as u16, segment, flags | more)
        });
        match table {
            Some(tables) => {
                for (entry, segment, flags) in segments {
                    let next = if flags & DESC_F_NEXT == 0 { 0 } else { entry + 1 };
                    // SAFETY: `use_indirect`'s caller guarantees the tables' memory for each descriptor of the ring.
                    // The head is below the ring's size, and the entry is below the table's number of entries.
                    unsafe { tables.write(head, entry, words(*segment, flags, next)) };
                }
                let segment = Segment { addr: tables.addr_of(head), len: 16 * count as u32 };
                self.write(head, words(segment, DESC_F_INDIRECT, 0));
            }
            None => {
                let mut slot = head;
                for (index, segment, flags) in segments {
                    let next = self.free.get(self.descriptors_added().wrapping_add(u64::from(index) + 1));
                    self.write(slot, words(*segment, flags, next));
                    self.following[slot as usize] = next;
                    slot = next;
                }
            }
        }
        self.enter(head, token, writable_bytes, needed);
        Ok(())
    }

    /// Enters a chain of `descriptors` descriptors, which are already written, in the avail ring (2.7.13.2).
    #[inline(always)]
    fn enter(&mut self, head: u16, token: u64, writable: u32, descriptors: u16) {
        if descriptors > 1 {
            self.more_added = self.more_added.wrapping_add(u64::from(descriptors) - 1);
        }
        self.slots.enter_as(self.added as u32, head, token, writable, descriptors);
        let entry = self.layout.avail_entry(self.layout.slot(self.added as u16));
        self.bus.store(Area::Driver, entry, head, Relaxed);
        self.added += 1;
    }

    /// Returns the first free descriptor.
    #[inline(always)]
    fn head(&self) -> u16 {
        self.free.get(self.descriptors_added())
    }

    #[inline(always)]
    fn write(&self, slot: u16, (addr, rest): Words) {
        let at = self.layout.descriptor(slot);
        self.bus.store(Area::Descriptor, at, addr, Relaxed);
        self.bus.store(Area::Descriptor, at + 8, rest, Relaxed);
    }

    /// Returns the number of used elements that are not yet taken.
    #[inline(always)]
    fn used_count(&mut self) -> Result<u16, RingError> {
        let index = self.taken as u16;
        if index == self.used_seen.get() {
            // (D) pairs with (C): the elements, and everything that the device did to the buffers, happened before.
            let value: u16 = self.bus.load(Area::Device, Layout::INDEX, Acquire);
            if value.wrapping_sub(index) > self.in_flight() {
                return Err(self.violation(RingError::UsedIndex { index, value }));
            }
            self.used_seen.set(value);
        }
        Ok(self.used_seen.get().wrapping_sub(index))
    }

    /// Returns the id and the length of the next used element. There must be one.
    #[inline(always)]
    fn element(&self) -> (u32, u32) {
        let index = self.taken as u16;
        // Once for each line.
        if index.is_multiple_of(8) && self.used_seen.get().wrapping_sub(index) > USED_AHEAD {
            let ahead = self.layout.slot(index.wrapping_add(USED_AHEAD));
            self.bus.expect_load(Area::Device, self.layout.used_entry(ahead));
        }
        let at = self.layout.used_entry(self.layout.slot(index));
        (self.bus.load(Area::Device, at, Relaxed), self.bus.load(Area::Device, at + 4, Relaxed))
    }

    /// Returns the number of chains under way that were added before the one with head `value`, a number from the
    /// device. `None`: the device has no such chain.
    #[inline(always)]
    fn since(&self, value: u32) -> Option<u32> {
        let under_way = (self.published as u32).wrapping_sub(self.oldest());
        self.slots.since(self.oldest(), u16::try_from(value).ok()?).filter(|since| *since < under_way)
    }

    /// Takes back the chain that a used element names.
    #[inline(never)]
    fn take_other(&mut self, value: u32, len: u32) -> Result<Completion, RingError> {
        if self.since(value).is_none() {
            return Err(self.skip(value));
        }
        self.slots.exchange(self.oldest(), value as u16);
        Ok(self.take(*self.slots.get(self.oldest()), len, false))
    }

    #[inline(always)]
    fn take_used_in_order(&mut self) -> Result<Option<Completion>, RingError> {
        if let Some((last, len)) = self.batch {
            return Ok(Some(self.take_batched(last, len)));
        }
        let pending = self.used_count()?;
        if pending == 0 {
            return Ok(None);
        }
        let (value, len) = self.element();
        // All chains up to this one are used (2.7.9), but no more than the index says. Otherwise it is unknown which
        // are used.
        match self.since(value) {
            Some(since) if since < pending.into() => {}
            _ => return Err(self.violation(RingError::UsedId { index: self.taken as u16, value })),
        }
        self.batch = Some((value as u16, len));
        Ok(Some(self.take_batched(value as u16, len)))
    }

    /// Skips a used element that names no chain of the device.
    #[cold]
    #[inline(never)]
    fn skip(&mut self, value: u32) -> RingError {
        let index = self.taken as u16;
        self.taken += 1;
        self.skipped += 1;
        self.more_freed = self.more_freed.wrapping_sub(1);
        self.violation(RingError::UsedId { index, value })
    }

    /// Takes back the oldest chain of a batch whose last one is `last`.
    #[inline(always)]
    fn take_batched(&mut self, last: u16, len: u32) -> Completion {
        let slot = *self.slots.get(self.oldest());
        if slot.id() == last {
            self.batch = None;
            return self.take(slot, len, true);
        }
        // Chains that the device did not name were filled completely (2.7.9).
        self.take(slot, slot.writable(), true)
    }

    #[cold]
    #[inline(never)]
    fn violation(&mut self, error: RingError) -> RingError {
        self.violations += 1;
        error
    }

    /// Takes back the oldest chain that the device has, and frees its descriptors.
    #[inline(always)]
    fn take(&mut self, slot: BufferSlot, len: u32, is_in_order: bool) -> Completion {
        let (head, descriptors) = (slot.id(), slot.descriptors());
        let freed = self.descriptors_freed();
        if descriptors > 1 {
            self.give_back_chain(head, descriptors);
        } else if !is_in_order {
            self.free.give(freed, head);
        }
        self.taken += 1;
        if freed as u16 % TOGETHER + descriptors >= TOGETHER {
            self.reclaim();
        }
        if len > slot.writable() {
            self.violations += 1;
        }
        Completion { token: slot.token, len: len.min(slot.writable()) }
    }

    /// Gives back the descriptors of a chain. In order, they stay in the order in which they were taken.
    #[inline(never)]
    fn give_back_chain(&mut self, head: u16, descriptors: u16) {
        let more = u64::from(descriptors) - 1;
        if !self.features.in_order {
            let (freed, mut last) = (self.descriptors_freed(), head);
            for number in 0..more {
                self.free.give(freed.wrapping_add(number), last);
                last = self.following[last as usize];
            }
            self.free.give(freed.wrapping_add(more), last);
        }
        self.more_freed = self.more_freed.wrapping_add(more);
    }

    #[inline(never)]
    fn reclaim(&mut self) {
        let freed = self.descriptors_freed();
        // The descriptor that was given back as number n is at index n modulo the size, and is taken again a lap later.
        reclaim(&self.bus, self.free_count(), |back| self.free.get(freed.wrapping_sub(back.into())));
    }
}

/// Returns the two words of a descriptor (2.7.5).
#[inline(always)]
fn words(segment: Segment, flags: u16, next: u16) -> Words {
    (segment.addr, u64::from(segment.len) | u64::from(flags) << 32 | u64::from(next) << 48)
}

impl<B: Bus> DriverSide for Driver<B> {
    /// Writes a chain's descriptors and enters it in the avail ring (2.7.13.1, 2.7.13.2): segments that the device
    /// reads, then segments that it writes. [`Driver::publish`] shows the chain to the device. `token` is returned with
    /// its completion.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// [`RingError::Full`]: take used buffers first. [`RingError::Empty`], [`RingError::TooLong`] and
    /// [`RingError::TotalLength`]: no ring of this size takes the chain. Nothing was changed.
    #[inline(always)]
    fn add(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        match only(readable, writable) {
            Some((segment, flags)) => self.add_one(segment, flags, token),
            None => self.add_chain(readable, writable, token),
        }
    }

    /// Shows the device everything that was added (2.7.13.3).
    ///
    /// Wait-free.
    #[inline]
    fn publish(&mut self) {
        self.published = self.added;
        // (A) pairs with (B): a device that sees the index also sees the entries and the descriptors that it covers.
        self.bus.store(Area::Driver, Layout::INDEX, self.published as u16, Release);
    }

    /// Whether the device wants to be notified of what was published since the last call (2.7.13.4).
    ///
    /// Wait-free.
    #[inline]
    fn needs_kick(&mut self) -> bool {
        let count = self.published - core::mem::replace(&mut self.announced, self.published);
        let event = (Area::Device, self.layout.avail_event());
        is_wanted(&self.bus, event, self.features.event_idx, self.published as u16, count)
    }

    /// Returns the next buffer that the device has used, and frees its descriptors (2.7.14). `None`: there is none.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// The device has violated the protocol; the driver continues. [`RingError::UsedIndex`]: nothing was taken, and the
    /// error is repeated until the index is valid. [`RingError::UsedId`]: the element is skipped. In order, this error
    /// is repeated too, because it is unknown which buffers are used.
    #[inline(always)]
    fn take_used(&mut self) -> Result<Option<Completion>, RingError> {
        if self.features.in_order {
            return self.take_used_in_order();
        }
        if self.used_count()? == 0 {
            return Ok(None);
        }
        let (value, len) = self.element();
        // Usually this is the oldest chain. The device has that chain, because there is a used element.
        let oldest = *self.slots.get(self.oldest());
        if u32::from(oldest.id()) == value {
            Ok(Some(self.take(oldest, len, false)))
        } else {
            self.take_other(value, len).map(Some)
        }
    }

    /// Asks to be notified of the next buffer that is used, and returns whether one came meanwhile. If so, take it
    /// before waiting.
    ///
    /// Wait-free.
    fn arm_interrupt(&mut self) -> bool {
        if self.features.event_idx {
            self.bus.store(Area::Driver, self.layout.used_event(), self.taken as u16, Relaxed);
        } else {
            self.flags.set(&self.bus, 0);
        }
        // (G) pairs with (H): the request is stored before `used.idx` is read.
        self.bus.fence();
        let value: u16 = self.bus.load(Area::Device, Layout::INDEX, Relaxed);
        value != self.taken as u16
    }

    /// Asks not to be notified for now. This is a hint: some notifications may still arrive.
    ///
    /// Wait-free.
    fn disarm_interrupt(&mut self) {
        if self.features.event_idx {
            // The index that the device passes last.
            self.bus.store(Area::Driver, self.layout.used_event(), (self.taken as u16).wrapping_sub(1), Relaxed);
        } else {
            self.flags.set(&self.bus, NO_NOTIFICATION);
        }
    }

    /// Returns the number of free descriptors.
    #[inline]
    fn free_count(&self) -> u16 {
        self.layout.size().wrapping_sub(self.descriptors_added().wrapping_sub(self.descriptors_freed()) as u16)
    }

    /// Returns the number of outstanding used elements: chains that were published and not yet taken back, without the
    /// chains that the device has lost because it named something else instead.
    #[inline]
    fn in_flight(&self) -> u16 {
        (self.published - self.taken) as u16
    }

    /// Returns the number of chains that were added and not yet published.
    #[inline]
    fn unpublished(&self) -> u16 {
        (self.added - self.published) as u16
    }

    /// Returns the number of used elements so far that violated the protocol.
    fn violations(&self) -> u64 {
        self.violations
    }
}
