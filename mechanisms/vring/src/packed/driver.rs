use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use dormouse_abi::vring::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};

use super::{
    AT_DESCRIPTOR, AVAIL, Cursor, DISABLE, ENABLE, EVENT_FLAGS, EVENT_OFFSET, LapCursor, Output, Position, SuccessRun,
    USED, check, empty, second,
};
use crate::area::Area;
use crate::buffer::{BufferSpace, Completion, Segment, flagged, only};
use crate::bus::{Bus, TOGETHER, reclaim};
use crate::error::RingError;
use crate::features::Features;
use crate::memory::IndirectTables;
use crate::side::DriverSide;
use crate::slots::BufferSlots;

/// Number of descriptors by which a prefetch is ahead.
const AHEAD: u16 = 16;

/// The driver side of a packed virtqueue, used by one thread. All state that it relies on is in its own memory.
///
/// Added descriptors are written immediately, except for the flags of the first one, which [`Driver::publish`] writes
/// last (2.8.21.1). The device does not look at the following descriptors before that.
///
/// The value is aligned to two cache lines, for CPUs that fetch pairs of lines, so that a device next to it in memory
/// shares none of them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Driver<B> {
    bus: B,
    size: u16,
    features: Features,
    slots: BufferSlots,
    tables: Option<IndirectTables>,
    output: Output,
    /// Position of the next used descriptor, after all buffers that were taken back.
    used: LapCursor,
    /// Run of searches that each found a used descriptor.
    streak: SuccessRun,
    /// In order: id of the last buffer of the batch that is being taken, and the length that the device wrote for it.
    batch: Option<(u16, u32)>,
    event_flags: u16,
    violations: u64,
}

impl<B: Bus> Driver<B> {
    /// Creates the driver of an empty ring (see [`super::init`]) of `size` descriptors.
    ///
    /// # Errors
    /// [`RingError::Size`], and [`RingError::Area`] for an area that is too small or not aligned.
    pub fn new(bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        let size = check(&bus, size)?;
        Ok(Driver {
            bus,
            size,
            features,
            slots: BufferSlots::new(size),
            tables: None,
            output: Output::new(LapCursor::of_available(Position::START, size)),
            used: LapCursor::of_used(Position::START, size),
            streak: SuccessRun::new(),
            batch: None,
            event_flags: ENABLE,
            violations: 0,
        })
    }

    /// Puts buffers of at least two segments into these tables from now on, if they fit (2.8.7).
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
        let oldest = self.used.at.count();
        let count = u32::from(self.in_flight()) + u32::from(self.unpublished());
        (0..count).map(|number| self.slots.get(oldest.wrapping_add(number)).token).for_each(each);
        empty(&self.bus, self.size);
        self.slots = BufferSlots::new(self.size);
        self.output = Output::new(LapCursor::of_available(Position::START, self.size));
        self.used = LapCursor::of_used(Position::START, self.size);
        self.streak = SuccessRun::new();
        self.batch = None;
        self.event_flags = ENABLE;
    }

    #[inline(always)]
    fn add_one<const PUBLISH: bool>(&mut self, segment: Segment, flags: u16, token: u64) -> Result<(), RingError> {
        let LapCursor { at, flags: available, .. } = self.output.next;
        if at.is_lap_after(self.used.at) {
            return Err(RingError::Full { index: at.position().offset() });
        }
        let id = self.slots.enter(at.count(), token, if flags == 0 { 0 } else { segment.len }, 1);
        self.output.next.go_one(at);
        self.bus.store(Area::Descriptor, at.at(), segment.addr, Relaxed);
        let word = id | second(segment.len, 0, flags) | available;
        if PUBLISH {
            self.output.store_and_publish(&self.bus, at, word);
        } else {
            self.output.store(&self.bus, at, word);
        }
        Ok(())
    }

    #[inline(never)]
    fn add_chain(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        let BufferSpace { count, writable: writable_bytes, table, descriptors: needed } =
            BufferSpace::of(readable, writable, self.size, self.tables)?;
        let first = self.output.next.at;
        let mut at = first.position();
        if needed > self.free_count() {
            return Err(RingError::Full { index: at.offset() });
        }
        let id = (self.slots.enter(first.count(), token, writable_bytes, needed) >> 32) as u16;
        let segments = flagged(readable, writable);
        match table {
            Some(tables) => {
                for (entry, (segment, flags)) in segments.enumerate() {
                    let words = (segment.addr, second(segment.len, 0, flags));
                    // SAFETY: `use_indirect`'s caller guarantees the tables' memory for each descriptor of the ring.
                    // Ids are below the ring's size, and the entry is below the table's number of entries.
                    unsafe { tables.write(id, entry as u16, words) };
                }
                let segment = Segment { addr: tables.addr_of(id), len: 16 * count as u32 };
                self.bus.store(Area::Descriptor, first.at(), segment.addr, Relaxed);
                self.output.store(&self.bus, first, second(segment.len, id, DESC_F_INDIRECT | at.available()));
            }
            None => {
                for (index, (segment, flags)) in segments.enumerate() {
                    let more = if index + 1 < count { DESC_F_NEXT } else { 0 };
                    let word = second(segment.len, id, flags | more | at.available());
                    self.bus.store(Area::Descriptor, at.at(), segment.addr, Relaxed);
                    if index == 0 {
                        self.output.store(&self.bus, first, word);
                    } else {
                        // Relaxed: the device reads this only after the first descriptor's flags.
                        self.bus.store(Area::Descriptor, at.at() + 8, word, Relaxed);
                    }
                    at = at.after(1, self.size);
                }
            }
        }
        self.output.next.go(first, needed, self.size);
        Ok(())
    }

    /// Loads the second word at `at`.
    #[inline(always)]
    fn load(&self, at: Cursor) -> u64 {
        // (D) pairs with (C): everything that the device did to the buffer happened before.
        self.bus.load(Area::Descriptor, at.at() + 8, Acquire)
    }

    /// Whether the second word at `at`, the next position, says "used".
    #[inline(always)]
    fn is_used(&mut self, at: Cursor, word: u64) -> bool {
        let is_used = (word ^ self.used.flags) & second(0, 0, AVAIL | USED) == 0;
        if !is_used {
            self.streak.end(at.count());
        }
        is_used
    }

    /// Prefetches the line of a later descriptor than the one at `at`, once for each line.
    #[inline(always)]
    fn ask_ahead(&self, at: Cursor) {
        if at.begins_line() && self.streak.is_long(at.count()) {
            // The driver reads the line, and then writes the next lap's descriptors there, so it prefetches the line
            // once, for writing.
            self.bus.expect_store(Area::Descriptor, at.position().ahead(AHEAD, self.size).at());
        }
    }

    /// Whether the device has the buffer, published and not taken back.
    #[inline(always)]
    fn is_under_way(&self, id: u16) -> bool {
        self.slots.since(self.used.at.count(), id).is_some_and(|since| since < self.in_flight().into())
    }

    /// Takes back the buffer that a used descriptor names.
    #[inline(never)]
    fn take_other(&mut self, word: u64) -> Result<Completion, RingError> {
        let (at, id) = (self.used.at, (word >> 32) as u16);
        if self.slots.get(at.count()).id() != id {
            if !self.is_under_way(id) {
                return Err(self.violation(id));
            }
            self.slots.exchange(at.count(), id);
        }
        self.ask_ahead(at);
        Ok(self.take(at, length(word)))
    }

    /// Returns the second word of the next descriptor, if the device has used it.
    #[inline(always)]
    fn next_used(&mut self) -> Option<u64> {
        let at = self.used.at;
        if at == self.output.published {
            return None;
        }
        let word = self.load(at);
        self.is_used(at, word).then_some(word)
    }

    #[inline(always)]
    fn take_used_in_order(&mut self) -> Result<Option<Completion>, RingError> {
        if let Some((last, len)) = self.batch {
            return Ok(Some(self.take_batched(last, len)));
        }
        let Some(word) = self.next_used() else { return Ok(None) };
        self.ask_ahead(self.used.at);
        let (id, len) = ((word >> 32) as u16, length(word));
        // All buffers up to this one are used (2.8.8).
        if !self.is_under_way(id) {
            return Err(self.violation(id));
        }
        self.batch = Some((id, len));
        Ok(Some(self.take_batched(id, len)))
    }

    #[cold]
    #[inline(never)]
    fn violation(&mut self, id: u16) -> RingError {
        self.violations += 1;
        RingError::UsedId { index: self.used.at.position().offset(), value: id.into() }
    }

    /// Takes back the oldest buffer of a batch whose last one is `last`.
    #[inline(always)]
    fn take_batched(&mut self, last: u16, len: u32) -> Completion {
        let before = self.used.at;
        let slot = self.slots.get(before.count());
        // Buffers that the device did not name were filled completely (2.8.8).
        let is_last = slot.id() == last;
        let len = if is_last { len } else { slot.writable() };
        if is_last {
            self.batch = None;
        }
        let completion = self.take(before, len);
        let (before, after) = (before.position().offset(), self.used.at.position().offset());
        if before / TOGETHER != after / TOGETHER || after <= before {
            self.reclaim();
        }
        completion
    }

    /// Takes lines back from the device's cache, like a split driver. In order, the device writes one descriptor of a
    /// batch, and has only read the lines of the others.
    #[inline(never)]
    fn reclaim(&mut self) {
        let used = self.used.at.position().offset();
        reclaim(
            &self.bus,
            self.free_count(),
            |back| if back <= used { used - back } else { self.size - (back - used) },
        );
    }

    #[inline(always)]
    fn take(&mut self, at: Cursor, len: u32) -> Completion {
        let slot = *self.slots.get(at.count());
        self.slots.free_oldest(at.count());
        self.used.go(at, slot.descriptors(), self.size);
        self.completion(slot.token, len, slot.writable())
    }

    /// Returns the completion of the buffer with this token. The device says that it wrote `len` bytes, and was allowed
    /// to write `writable`.
    #[inline(always)]
    fn completion(&mut self, token: u64, len: u32, writable: u32) -> Completion {
        if len > writable {
            self.violations += 1;
        }
        Completion { token, len: len.min(writable) }
    }

    fn set_flags(&mut self, flags: u16) {
        if self.event_flags != flags {
            self.event_flags = flags;
            // Release: stored after the offset that the flags refer to (2.8.14).
            self.bus.store(Area::Driver, EVENT_FLAGS, flags, Release);
        }
    }
}

/// Whether a used descriptor's second word gives the number of bytes written. Its length is valid only if WRITE is set
/// (2.8.3).
#[inline(always)]
const fn is_written(word: u64) -> bool {
    word & second(0, 0, DESC_F_WRITE) != 0
}

/// Returns the number of bytes written that a used descriptor's second word gives, or 0 if it gives none.
#[inline(always)]
const fn length(word: u64) -> u32 {
    if is_written(word) { word as u32 } else { 0 }
}

impl<B: Bus> DriverSide for Driver<B> {
    /// Writes a buffer's descriptors (2.8.21.1): segments that the device reads, then segments that it writes.
    /// [`Driver::publish`] shows them to the device. `token` is returned with the buffer's completion.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// [`RingError::Full`]: take used buffers first. [`RingError::Empty`], [`RingError::TooLong`] and
    /// [`RingError::TotalLength`]: no ring of this size takes the buffer. Nothing was changed.
    #[inline(always)]
    fn add(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        match only(readable, writable) {
            Some((segment, flags)) => self.add_one::<false>(segment, flags, token),
            None => self.add_chain(readable, writable, token),
        }
    }

    /// Shows the device everything that was added (2.8.21.1).
    ///
    /// Wait-free.
    #[inline]
    fn publish(&mut self) {
        // `publish` contains (A).
        self.output.publish(&self.bus);
    }

    /// [`Driver::add`] and [`Driver::publish`] in one, which is cheaper if nothing else is unpublished.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// See [`Driver::add`]; nothing was published.
    #[inline(always)]
    fn add_and_publish(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        match only(readable, writable) {
            Some((segment, flags)) => self.add_one::<true>(segment, flags, token),
            None => {
                self.add_chain(readable, writable, token)?;
                self.publish();
                Ok(())
            }
        }
    }

    /// Whether the device wants to be notified of what was published since the last call (2.8.21.2).
    ///
    /// Wait-free.
    #[inline]
    fn needs_kick(&mut self) -> bool {
        // `is_wanted` contains (E).
        self.output.is_wanted(&self.bus, Area::Device, self.features.event_idx, self.size)
    }

    /// Returns the next buffer that the device has used, and frees its descriptors (2.8.22). `None`: there is none.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// The device has violated the protocol: [`RingError::UsedId`]. The error is repeated at each call, because without
    /// the buffer the position of the next one is unknown.
    #[inline(always)]
    fn take_used(&mut self) -> Result<Option<Completion>, RingError> {
        if self.features.in_order {
            return self.take_used_in_order();
        }
        let Some(word) = self.next_used() else { return Ok(None) };
        let at = self.used.at;
        let slot = self.slots.get(at.count());
        // Usually this is the oldest buffer, which the device has, and it is simple.
        if slot.is_simple((word >> 32) as u16) {
            let completion = if is_written(word) {
                let (token, writable) = (slot.token, slot.writable());
                self.completion(token, word as u32, writable)
            } else {
                Completion { token: slot.token, len: 0 }
            };
            self.ask_ahead(at);
            self.used.go_one(at);
            return Ok(Some(completion));
        }
        self.take_other(word).map(Some)
    }

    /// Asks to be notified of the next buffer that is used, and returns whether one came meanwhile. If so, take it
    /// before waiting.
    ///
    /// Wait-free.
    fn arm_interrupt(&mut self) -> bool {
        let used = self.used.at.position();
        if self.features.event_idx {
            self.bus.store(Area::Driver, EVENT_OFFSET, used.event(), Relaxed);
        }
        self.set_flags(if self.features.event_idx { AT_DESCRIPTOR } else { ENABLE });
        // (G) pairs with (H): the request is stored before the ring is read.
        self.bus.fence();
        let word: u64 = self.bus.load(Area::Descriptor, used.at() + 8, Relaxed);
        self.batch.is_some() || self.in_flight() > 0 && (word >> 48) as u16 & (AVAIL | USED) == used.used()
    }

    /// Asks not to be notified for now. This is a hint: some notifications may still arrive.
    ///
    /// Wait-free.
    fn disarm_interrupt(&mut self) {
        self.set_flags(DISABLE);
    }

    /// Returns the number of free descriptors.
    #[inline]
    fn free_count(&self) -> u16 {
        self.used.at.lap_before(self.output.next.at, self.size)
    }

    /// Returns the number of buffers that were published and not yet taken back.
    #[inline]
    fn in_flight(&self) -> u16 {
        self.output.published.count().wrapping_sub(self.used.at.count()) as u16
    }

    /// Returns the number of buffers that were added and not yet published.
    #[inline]
    fn unpublished(&self) -> u16 {
        self.output.unpublished()
    }

    /// Returns the number of used descriptors so far that violated the protocol.
    fn violations(&self) -> u64 {
        self.violations
    }
}
