use alloc::boxed::Box;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use dormouse_abi::vring::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};

use super::{
    AT_DESCRIPTOR, AVAIL, DISABLE, ENABLE, EVENT_FLAGS, EVENT_OFFSET, Position, Streak, USED, Withheld, check, passed,
    second,
};
use crate::buffer::{Completion, Need, Segment, flagged, only};
use crate::bus::{Area, Bus, IN_LINE, TOGETHER};
use crate::error::RingError;
use crate::features::{Features, Refined, Refinement};
use crate::memory::IndirectTables;
use crate::side::{DriverSide, driver_side};

/// How many descriptors ahead a line is asked for.
const AHEAD: u16 = 16;

/// The number of an id that no buffer has: later than all that were published.
const FREE: u64 = u64::MAX;

/// What the driver knows of a buffer id, in its own memory.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    token: u64,
    /// Which one it is of all that were added, or [`FREE`].
    number: u64,
    /// Bytes that the device may write.
    writable: u32,
    /// Descriptors that it takes in the ring.
    descriptors: u16,
}

/// The driver side of a packed virtqueue: one thread's, with all that it goes by in its own memory.
///
/// What is added is written at once, all but the flags of the first descriptor, which [`Driver::publish`] writes last (2.8.21.1): nothing
/// behind it is looked at before.
///
/// It begins and ends on lines of its own (two, for processors that fetch pairs): beside it in memory there may well be the device.
#[derive(Debug)]
#[repr(align(128))]
pub struct Driver<B, R = Refined> {
    bus: B,
    size: u16,
    features: Features,
    slots: Box<[Slot]>,
    tables: Option<IndirectTables>,
    /// The ids of all buffers that were added and not taken back, in the order in which they were added; then those that are free, in the
    /// order in which they became so. The id of the buffer that is added as number n is at n modulo the length, a power of two.
    ids: Box<[u16]>,
    /// Where the next buffer goes.
    next: Position,
    /// What was added and not published.
    withheld: Withheld,
    /// Buffers added, published and taken back so far.
    added: u64,
    published: u64,
    taken: u64,
    /// Descriptors published since the last [`Driver::needs_kick`].
    unannounced: u32,
    /// Used descriptors found one after another.
    streak: Streak,
    /// Where the next used descriptor will be.
    used: Position,
    /// In order: the id of the last buffer of the batch that is being taken, and what the device wrote there.
    batch: Option<(u16, u32)>,
    event_flags: u16,
    lies: u64,
    refinement: PhantomData<R>,
}

impl<B: Bus, R: Refinement> Driver<B, R> {
    /// The driver of an empty ring (see [`super::init`]) of `size` descriptors.
    ///
    /// # Errors
    /// [`RingError::Size`], and [`RingError::Area`] for one that is too small or not aligned.
    pub fn new(bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        let size = check(&bus, size)?;
        Ok(Driver {
            bus,
            size,
            features,
            slots: (0..size).map(|_| Slot { number: FREE, ..Slot::default() }).collect(),
            tables: None,
            ids: (0..size.next_power_of_two()).collect(),
            next: Position::START,
            withheld: Withheld::new(Position::START),
            added: 0,
            published: 0,
            taken: 0,
            unannounced: 0,
            streak: Streak::default(),
            used: Position::START,
            batch: None,
            event_flags: ENABLE,
            lies: 0,
            refinement: PhantomData,
        })
    }

    /// Puts buffers of two segments and more into these tables from now on, where they fit (2.8.7).
    ///
    /// # Errors
    /// [`RingError::IndirectNotNegotiated`].
    ///
    /// # Safety
    /// [`IndirectTables::size_bytes`] are mapped writable as long as the driver lives, aligned to 16, and nobody else of this program
    /// writes there.
    pub unsafe fn use_indirect(&mut self, tables: IndirectTables) -> Result<(), RingError> {
        if !self.features.indirect {
            return Err(RingError::IndirectNotNegotiated);
        }
        self.tables = Some(tables);
        Ok(())
    }

    /// Descriptors that are free.
    #[inline]
    pub fn free_count(&self) -> u16 {
        self.size - self.next.since(self.used, self.size)
    }

    /// Buffers that were published and not yet taken back.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        (self.published - self.taken) as u16
    }

    /// Buffers that were added and not yet published.
    #[inline]
    pub fn unpublished(&self) -> u16 {
        (self.added - self.published) as u16
    }

    /// Used descriptors that no honest device writes, so far.
    pub fn lies(&self) -> u64 {
        self.lies
    }

    /// The memory of the ring.
    pub fn bus(&self) -> &B {
        &self.bus
    }

    /// Writes a buffer's descriptors (2.8.21.1): segments that the device reads, then those that it writes. [`Driver::publish`] shows them
    /// to the device. `token` comes back with the buffer.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// [`RingError::Full`]: take used ones first. [`RingError::Empty`], [`RingError::TooLong`] and [`RingError::TotalLength`]: no ring of
    /// this size takes such a buffer. Nothing was changed.
    #[inline(always)]
    pub fn add(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        match only(readable, writable) {
            Some((segment, flags)) => self.add_one(segment, flags, token),
            None => self.add_chain(readable, writable, token),
        }
    }

    #[inline(always)]
    fn add_one(&mut self, segment: Segment, flags: u16, token: u64) -> Result<(), RingError> {
        if self.next.is_lap_after(self.used) {
            return Err(RingError::Full { index: self.next.offset() });
        }
        let id = self.ids[self.at(self.added)];
        self.write(segment, id, flags);
        self.enter(id, token, if flags == 0 { 0 } else { segment.len }, 1);
        Ok(())
    }

    #[inline(never)]
    fn add_chain(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        let Need { count, writable: writable_bytes, table, descriptors: needed } =
            Need::of(readable, writable, self.size, self.tables)?;
        if needed > self.free_count() {
            return Err(RingError::Full { index: self.next.offset() });
        }
        let id = self.ids[self.at(self.added)];
        let segments = flagged(readable, writable);
        match table {
            Some(tables) => {
                for (entry, (segment, flags)) in segments.enumerate() {
                    let words = (segment.addr, second(segment.len, 0, flags));
                    // SAFETY: `use_indirect`'s contract; ids are below the ring's size, the entry below the table's.
                    unsafe { tables.write(id, entry as u16, words) };
                }
                let segment = Segment { addr: tables.addr_of(id), len: 16 * count as u32 };
                self.write(segment, id, DESC_F_INDIRECT);
            }
            None => {
                for (index, (segment, flags)) in segments.enumerate() {
                    let more = if index + 1 < count { DESC_F_NEXT } else { 0 };
                    self.write(*segment, id, flags | more);
                }
            }
        }
        self.enter(id, token, writable_bytes, needed);
        Ok(())
    }

    /// Where the id of the buffer with this number is.
    #[inline(always)]
    fn at(&self, number: u64) -> usize {
        number as usize & (self.ids.len() - 1)
    }

    /// Takes the first free id for a buffer whose descriptors are written, so many. There is one, for there are as many as descriptors, and
    /// no buffer takes less than one of these.
    #[inline(always)]
    fn enter(&mut self, id: u16, token: u64, writable: u32, descriptors: u16) {
        let slot = &mut self.slots[id as usize];
        slot.token = token;
        slot.number = self.added;
        slot.writable = writable;
        slot.descriptors = descriptors;
        self.added += 1;
    }

    /// Writes the next descriptor, or keeps its second word if it is the first that is not published.
    #[inline(always)]
    fn write(&mut self, segment: Segment, id: u16, flags: u16) {
        let at = self.next;
        let word = second(segment.len, id, flags | at.available());
        self.bus.store(Area::Descriptor, at.at(), segment.addr, Relaxed);
        self.withheld.store(&self.bus, at, word);
        self.next = at.after(1, self.size);
    }

    /// Shows the device all that was added (2.8.21.1).
    ///
    /// Wait-free.
    #[inline]
    pub fn publish(&mut self) {
        // (A) is in there.
        self.unannounced =
            self.unannounced.saturating_add(u32::from(self.withheld.publish(&self.bus, self.next, self.size)));
        self.published = self.added;
    }

    /// Whether the device wants to be notified of what was published since the last call (2.8.21.2).
    ///
    /// Wait-free.
    #[inline]
    pub fn needs_kick(&mut self) -> bool {
        let count = core::mem::take(&mut self.unannounced);
        // (E) pairs with (F): descriptors are stored before it is read what the device wants.
        self.bus.fence();
        let word: u32 = self.bus.load(Area::Device, EVENT_OFFSET, Relaxed);
        let (event, flags) = (word as u16, (word >> 16) as u16);
        match flags {
            _ if count == 0 => false,
            AT_DESCRIPTOR if self.features.event_idx => {
                // Up to what was published: what was added since is of no concern yet.
                passed(self.withheld.at, count, self.size, event, R::need_event)
            }
            DISABLE => false,
            _ => true,
        }
    }

    /// The next buffer that the device has used, whose descriptors are free again (2.8.22); `None`: there is none.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// The device lied: [`RingError::UsedId`], again and again, for without the buffer it cannot be told where the next one is.
    #[inline(always)]
    pub fn take_used(&mut self) -> Result<Option<Completion>, RingError> {
        if let Some((last, len)) = self.batch {
            return Ok(Some(self.take_batched(last, len)));
        }
        if self.published == self.taken {
            return Ok(None);
        }
        // (D) pairs with (C): what the device did to the buffer comes before.
        let word: u64 = self.bus.load(Area::Descriptor, self.used.at() + 8, Acquire);
        let flags = (word >> 48) as u16;
        if flags & (AVAIL | USED) != self.used.used() {
            self.streak.end();
            return Ok(None);
        }
        if R::PREFETCH && self.streak.is_long() {
            // The driver reads the line, and then writes the next lap's descriptors there: it asks for it once.
            self.bus.expect_store(Area::Descriptor, self.used.after(AHEAD.min(self.size), self.size).at());
        }
        let (id, len) = ((word >> 32) as u16, word as u32);
        // 2.8.3: only where WRITE is set does the length mean anything.
        let len = if flags & DESC_F_WRITE == 0 { 0 } else { len };
        // Whether the device has it, published and not taken back.
        match self.slots.get_mut(id as usize) {
            Some(slot) if slot.number < self.published => {}
            _ => return Err(self.lie(id)),
        }
        if !self.features.in_order {
            return Ok(Some(self.take(id, len)));
        }
        // All buffers up to this one are used (2.8.8).
        self.batch = Some((id, len));
        Ok(Some(self.take_batched(id, len)))
    }

    #[cold]
    #[inline(never)]
    fn lie(&mut self, id: u16) -> RingError {
        self.lies += 1;
        RingError::UsedId { index: self.used.offset(), value: id.into() }
    }

    /// Takes the oldest buffer of a batch whose last one is `last`.
    #[inline(always)]
    fn take_batched(&mut self, last: u16, len: u32) -> Completion {
        let id = self.ids[self.at(self.taken)];
        // Those that the device did not name are used completely (2.8.8).
        let len = if id == last { len } else { self.slots[id as usize].writable };
        if id == last {
            self.batch = None;
        }
        let completion = self.take(id, len);
        if R::PREFETCH && self.used.offset().is_multiple_of(TOGETHER) {
            self.reclaim();
        }
        completion
    }

    /// As a split driver's: in order, the device writes one descriptor of a batch, and has only read the others' lines.
    #[inline(never)]
    fn reclaim(&mut self) {
        let used = self.used.offset();
        for back in 1..=self.free_count().min(TOGETHER) {
            let offset = if back <= used { used - back } else { self.size - (back - used) };
            if offset % IN_LINE == IN_LINE - 1 {
                // The address: what says whether a descriptor is available stays.
                self.bus.store(Area::Descriptor, 16 * offset as usize, 0_u64, Relaxed);
            }
        }
    }

    #[inline(always)]
    fn take(&mut self, id: u16, len: u32) -> Completion {
        let slot = &mut self.slots[id as usize];
        let Slot { token, writable, descriptors, .. } = *slot;
        slot.number = FREE;
        let end = self.at(self.taken + u64::from(self.size));
        self.ids[end] = id;
        self.taken += 1;
        self.used = self.used.after(descriptors, self.size);
        if len > writable {
            self.lies += 1;
        }
        Completion { token, len: len.min(writable) }
    }

    /// Asks to be notified of the next buffer that is used, and tells whether one came meanwhile: then take it before waiting.
    ///
    /// Wait-free.
    pub fn arm_interrupt(&mut self) -> bool {
        if self.features.event_idx {
            self.bus.store(Area::Driver, EVENT_OFFSET, self.used.event(), Relaxed);
        }
        self.set_flags(if self.features.event_idx { AT_DESCRIPTOR } else { ENABLE });
        // (G) pairs with (H): what is wanted is stored before the ring is read.
        self.bus.fence();
        let word: u64 = self.bus.load(Area::Descriptor, self.used.at() + 8, Relaxed);
        self.batch.is_some() || self.published != self.taken && (word >> 48) as u16 & (AVAIL | USED) == self.used.used()
    }

    /// Wants no notifications for now. A hint: some may still come.
    ///
    /// Wait-free.
    pub fn disarm_interrupt(&mut self) {
        self.set_flags(DISABLE);
    }

    fn set_flags(&mut self, flags: u16) {
        if self.event_flags != flags {
            self.event_flags = flags;
            // After the offset that it is about (2.8.14).
            self.bus.store(Area::Driver, EVENT_FLAGS, flags, Release);
        }
    }
}

driver_side!(Driver);
