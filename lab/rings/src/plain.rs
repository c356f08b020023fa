use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use dormouse_vring::{Area, Bus, Completion, DriverSide, Features, RingError, Segment, need_event};

use crate::{ELEMENT, FIRST, FLAGS, INDEX};

/// `VIRTQ_DESC_F_WRITE` (2.7.5).
const WRITE: u16 = 2;
/// Maximum number of descriptors of a ring (2.7).
const SIZE_MAX: u32 = 1 << 15;

/// Checks the ring's size and the areas' lengths.
fn check(bus: &impl Bus, size: u32) -> Result<u16, RingError> {
    if !size.is_power_of_two() || size > SIZE_MAX {
        return Err(RingError::Size { size });
    }
    let entries = size as usize;
    let areas =
        [(Area::Descriptor, 16 * entries), (Area::Driver, 6 + 2 * entries), (Area::Device, 6 + ELEMENT * entries)];
    for (area, needed) in areas {
        let found = bus.len(area);
        if found < needed {
            return Err(RingError::Area { area, needed, found });
        }
    }
    Ok(size as u16)
}

/// The driver side of the split ring of Linux in 2015, for buffers of one segment. If `IS_CACHED`, it reads the
/// device's index only when it has taken everything that it saw last.
///
/// It is meant for measurements: a device that writes to descriptors breaks the list of free ones, though every index
/// in it stays inside the ring. Ask at least once in 65,535 buffers whether to kick.
#[derive(Debug)]
#[repr(align(128))]
pub struct PlainDriver<B, const IS_CACHED: bool> {
    bus: B,
    size: u16,
    has_event_idx: bool,
    /// Buffers that the device has, by descriptor.
    buffers: Box<[Option<Buffer>]>,
    /// First free descriptor. The list continues through `next` in the descriptors; the one freed last is used first.
    head: u32,
    /// Number of buffers added. These counts are used as indexes. They are loaded with the width with which they were
    /// stored: a wider load would wait for the store before it, and for all stores before that.
    added: u32,
    /// Number of buffers published.
    published: u32,
    /// Number of buffers published at the last check for a kick.
    announced: u32,
    /// Number of buffers taken back.
    taken: u32,
    /// Last value read of `used.idx`.
    seen: u32,
    flags: u16,
    violations: u64,
}

#[derive(Debug, Clone, Copy)]
struct Buffer {
    token: u64,
    writable: u32,
}

impl<B: Bus, const IS_CACHED: bool> PlainDriver<B, IS_CACHED> {
    /// Makes the driver of an empty ring of `size` entries. It supports event indexes and no other feature.
    ///
    /// # Errors
    /// [`RingError::Size`] and [`RingError::Area`].
    pub fn new(bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        let size = check(&bus, size)?;
        for slot in 0..size {
            let next = u64::from((slot + 1) % size);
            bus.store(Area::Descriptor, 16 * usize::from(slot) + 8, next << 48, Relaxed);
        }
        Ok(PlainDriver {
            bus,
            size,
            has_event_idx: features.event_idx,
            buffers: vec![None; size.into()].into(),
            head: 0,
            added: 0,
            published: 0,
            announced: 0,
            taken: 0,
            seen: 0,
            flags: 0,
            violations: 0,
        })
    }

    /// Returns the second word of a descriptor.
    #[inline(always)]
    fn rest(&self, slot: u16) -> u64 {
        self.bus.load(Area::Descriptor, 16 * usize::from(slot) + 8, Relaxed)
    }

    #[inline(always)]
    fn set_rest(&self, slot: u16, rest: u64) {
        self.bus.store(Area::Descriptor, 16 * usize::from(slot) + 8, rest, Relaxed);
    }

    #[cold]
    fn violation(&mut self, error: RingError) -> RingError {
        self.violations += 1;
        error
    }

    fn set_flags(&mut self, flags: u16) {
        if self.flags != flags {
            self.flags = flags;
            self.bus.store(Area::Driver, FLAGS, flags, Relaxed);
        }
    }

    fn set_event(&self, event: u16) {
        self.bus.store(Area::Driver, FIRST + 2 * usize::from(self.size), event, Relaxed);
    }
}

impl<B: Bus, const IS_CACHED: bool> DriverSide for PlainDriver<B, IS_CACHED> {
    #[inline(always)]
    fn add(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        let (segment, flags) = match (readable, writable) {
            ([segment], []) => (segment, 0),
            ([], [segment]) => (segment, WRITE),
            ([], []) => return Err(RingError::Empty),
            _ => return Err(RingError::TooLong { segments: readable.len() + writable.len() }),
        };
        let head = self.head as u16;
        if self.free_count() == 0 {
            return Err(RingError::Full { index: head });
        }
        let next = self.rest(head) >> 48;
        self.bus.store(Area::Descriptor, 16 * usize::from(head), segment.addr, Relaxed);
        self.set_rest(head, u64::from(segment.len) | u64::from(flags) << 32 | next << 48);
        self.head = next as u32 & (u32::from(self.size) - 1);
        let writable = if flags == 0 { 0 } else { segment.len };
        self.buffers[usize::from(head)] = Some(Buffer { token, writable });
        let entry = FIRST + 2 * usize::from(self.added as u16 & (self.size - 1));
        self.bus.store(Area::Driver, entry, head, Relaxed);
        self.added = self.added.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn publish(&mut self) {
        self.published = self.added;
        // (A) pairs with (B): a device that sees the index sees the entries and the descriptors that it covers.
        self.bus.store(Area::Driver, INDEX, self.published as u16, Release);
    }

    fn needs_kick(&mut self) -> bool {
        let old = std::mem::replace(&mut self.announced, self.published);
        // The index is stored before the device's suppression word is read.
        self.bus.fence();
        if self.has_event_idx {
            let event: u16 = self.bus.load(Area::Device, FIRST + ELEMENT * usize::from(self.size), Relaxed);
            return need_event(event, self.published as u16, old as u16);
        }
        let flags: u16 = self.bus.load(Area::Device, FLAGS, Relaxed);
        self.published != old && flags & 1 == 0
    }

    #[inline(always)]
    fn take_used(&mut self) -> Result<Option<Completion>, RingError> {
        let index = self.taken as u16;
        if !IS_CACHED || index == self.seen as u16 {
            // (D) pairs with (C): the elements, and the device's writes to the buffers, are visible.
            let value: u16 = self.bus.load(Area::Device, INDEX, Acquire);
            if value.wrapping_sub(index) > self.in_flight() {
                return Err(self.violation(RingError::UsedIndex { index, value }));
            }
            self.seen = value.into();
        }
        if index == self.seen as u16 {
            return Ok(None);
        }
        let at = FIRST + ELEMENT * usize::from(index & (self.size - 1));
        let id: u32 = self.bus.load(Area::Device, at, Relaxed);
        let len: u32 = self.bus.load(Area::Device, at + 4, Relaxed);
        let Some(Buffer { token, writable }) = self.buffers.get_mut(id as usize).and_then(Option::take) else {
            self.taken = self.taken.wrapping_add(1);
            return Err(self.violation(RingError::UsedId { index, value: id }));
        };
        self.set_rest(id as u16, self.rest(id as u16) & 0xFFFF_FFFF_FFFF | u64::from(self.head) << 48);
        self.head = id;
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(Completion { token, len: len.min(writable) }))
    }

    fn arm_interrupt(&mut self) -> bool {
        if self.has_event_idx {
            self.set_event(self.taken as u16)
        } else {
            self.set_flags(0)
        }
        // The driver's wish is stored before `used.idx` is read.
        self.bus.fence();
        let value: u16 = self.bus.load(Area::Device, INDEX, Relaxed);
        value != self.taken as u16
    }

    fn disarm_interrupt(&mut self) {
        if self.has_event_idx { self.set_event((self.taken as u16).wrapping_sub(1)) } else { self.set_flags(1) }
    }

    #[inline(always)]
    fn free_count(&self) -> u16 {
        self.size - self.added.wrapping_sub(self.taken) as u16
    }

    fn in_flight(&self) -> u16 {
        self.published.wrapping_sub(self.taken) as u16
    }

    fn unpublished(&self) -> u16 {
        self.added.wrapping_sub(self.published) as u16
    }

    fn violations(&self) -> u64 {
        self.violations
    }
}

/// The device side of that ring, which polls. If `IS_CACHED`, it reads the driver's index only when it has popped
/// everything that it saw last.
#[derive(Debug)]
#[repr(align(128))]
pub struct PlainDevice<B, const IS_CACHED: bool> {
    bus: B,
    size: u16,
    /// Number of buffers popped. For the width of these words, see [`PlainDriver`].
    popped: u32,
    /// Number of buffers pushed.
    pushed: u32,
    /// Last value read of `avail.idx`.
    seen: u32,
}

impl<B: Bus, const IS_CACHED: bool> PlainDevice<B, IS_CACHED> {
    /// Makes the device of an empty ring of `size` entries.
    ///
    /// # Errors
    /// [`RingError::Size`] and [`RingError::Area`].
    pub fn new(bus: B, size: u32) -> Result<Self, RingError> {
        Ok(PlainDevice { size: check(&bus, size)?, bus, popped: 0, pushed: 0, seen: 0 })
    }

    /// Returns the next available buffer, if there is one: its descriptor and its segment.
    ///
    /// # Errors
    /// If the driver has violated the protocol.
    #[inline(always)]
    pub fn pop(&mut self) -> Result<Option<(u16, Segment)>, RingError> {
        let index = self.popped as u16;
        if !IS_CACHED || index == self.seen as u16 {
            // (B) pairs with (A): entries and descriptors are read after the index that covers them.
            let value: u16 = self.bus.load(Area::Driver, INDEX, Acquire);
            if value.wrapping_sub(index) > self.size {
                return Err(RingError::AvailIndex { index, value });
            }
            self.seen = value.into();
        }
        if index == self.seen as u16 {
            return Ok(None);
        }
        self.popped = self.popped.wrapping_add(1);
        let head: u16 = self.bus.load(Area::Driver, FIRST + 2 * usize::from(index & (self.size - 1)), Relaxed);
        if head >= self.size {
            return Err(RingError::AvailId { index, value: head });
        }
        let addr: u64 = self.bus.load(Area::Descriptor, 16 * usize::from(head), Relaxed);
        let rest: u64 = self.bus.load(Area::Descriptor, 16 * usize::from(head) + 8, Relaxed);
        Ok(Some((head, Segment { addr, len: rest as u32 })))
    }

    /// Gives a buffer back, with the number of bytes written, without publishing it.
    #[inline(always)]
    pub fn push_used(&mut self, id: u16, len: u32) {
        let at = FIRST + ELEMENT * usize::from(self.pushed as u16 & (self.size - 1));
        self.bus.store(Area::Device, at, u32::from(id), Relaxed);
        self.bus.store(Area::Device, at + 4, len, Relaxed);
        self.pushed = self.pushed.wrapping_add(1);
    }

    /// Publishes all pushed buffers.
    #[inline]
    pub fn publish_used(&mut self) {
        // (C) pairs with (D): publishes the elements, and the device's writes to the buffers.
        self.bus.store(Area::Device, INDEX, self.pushed as u16, Release);
    }
    /// Whether the driver wants a notification of the published buffers.
    #[inline(always)]
    pub fn needs_interrupt(&self) -> bool {
        // The index is stored before the driver's suppression word is read.
        self.bus.fence();
        let flags: u16 = self.bus.load(Area::Driver, FLAGS, Relaxed);
        flags & 1 == 0
    }
}
