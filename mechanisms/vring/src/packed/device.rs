use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use dormouse_abi::vring::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};

use super::{
    AT_DESCRIPTOR, AVAIL, Cursor, DISABLE, ENABLE, EVENT_FLAGS, EVENT_OFFSET, LapCursor, Output, Position, SuccessRun,
    USED, check, second,
};
use crate::area::Area;
use crate::buffer::{Chain, Segment};
use crate::bus::Bus;
use crate::error::RingError;
use crate::features::Features;
use crate::memory::{AddressSpace, find_table, read_words};
use crate::side::DeviceSide;

/// Number of descriptors by which a prefetch is ahead.
const AHEAD: u16 = 8;

/// The device side of a packed virtqueue, used by one thread. The driver cannot change any state that the device relies on.
///
/// Used descriptors are written immediately, except for the flags of the first one, which [`Device::publish_used`]
/// writes last.
///
/// The value is aligned to two cache lines, for CPUs that fetch pairs of lines, so that a driver next to it in memory
/// shares none of them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Device<B> {
    bus: B,
    size: u16,
    features: Features,
    /// Extent of the buffers that take the fast path: [`Chain::ONE`], or [`Chain::NONE`] if buffers are used in order.
    simple: u32,
    /// Position of the next buffer, after all that were popped.
    next: LapCursor,
    /// Writer of used descriptors.
    output: Output,
    /// In order: the current batch, of which nothing is written yet.
    batch: Option<Batch>,
    /// Run of searches that each found an available buffer.
    streak: SuccessRun,
    event_flags: u16,
    violations: u64,
}

#[derive(Debug, Clone, Copy)]
struct Batch {
    at: Cursor,
    /// Flags that mark a descriptor at `at` as used.
    flags: u64,
    /// Second word of the last buffer, without these flags.
    word: u64,
}

impl<B: Bus> Device<B> {
    /// Creates the device of an empty ring (see [`super::init`]) of `size` descriptors.
    ///
    /// # Errors
    /// [`RingError::Size`], and [`RingError::Area`] for an area that is too small or not aligned.
    pub fn new(bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        Device::with_base(bus, size, features, Position::START.event())
    }

    /// Creates the device of a ring in which everything before `base` has been taken and used. `base` is an offset,
    /// with the wrap counter in bit 15, as in vhost.
    ///
    /// # Errors
    /// See [`Device::new`]; also [`RingError::Size`] for an offset that the ring does not have.
    pub fn with_base(bus: B, size: u32, features: Features, base: u16) -> Result<Self, RingError> {
        let size = check(&bus, size)?;
        let next = Position::from_event(base);
        if next.offset() >= size {
            return Err(RingError::Size { size: u32::from(next.offset()) + 1 });
        }
        Ok(Device {
            bus,
            size,
            features,
            simple: if features.in_order { Chain::NONE } else { Chain::ONE },
            next: LapCursor::of_available(next, size),
            output: Output::new(LapCursor::of_used(next, size)),
            batch: None,
            event_flags: ENABLE,
            streak: SuccessRun::new(),
            violations: 0,
        })
    }

    /// Returns the device's position in the ring, in the form that [`Device::with_base`] takes.
    pub fn base(&self) -> u16 {
        self.next.at.position().event()
    }

    /// Prefetches the line of a later descriptor than the one at `at`, once for each line.
    #[inline(always)]
    fn ask_ahead(&self, at: Cursor) {
        if at.begins_line() && self.streak.is_long(at.count()) {
            self.bus.expect_store(Area::Descriptor, at.position().ahead(AHEAD, self.size).at());
        }
    }

    #[inline(never)]
    fn pop_chain(&mut self, word: u64, space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError> {
        chain.clear();
        match self.walk(word, space, chain) {
            Ok(()) => Ok(true),
            Err(error) => {
                self.violations += 1;
                Err(error)
            }
        }
    }

    fn walk(&mut self, mut word: u64, space: &impl AddressSpace, chain: &mut Chain) -> Result<(), RingError> {
        let (mut at, mut bytes) = (self.next.at.position(), 0);
        let mut wrong = None;
        loop {
            let flags = (word >> 48) as u16;
            let addr: u64 = self.bus.load(Area::Descriptor, at.at(), Relaxed);
            chain.count_descriptor();
            let entered = if flags & DESC_F_INDIRECT == 0 {
                self.enter(at.offset(), addr, word, chain, &mut bytes)
            } else if !self.features.indirect || flags & DESC_F_NEXT != 0 || chain.descriptors() > 1 {
                Err(RingError::DescriptorFlags { index: at.offset(), value: flags })
            } else {
                self.walk_table(at.offset(), addr, word as u32, space, chain, &mut bytes)
            };
            // The first error is reported, but the search for the end of the buffer continues.
            wrong = wrong.or(entered.err());
            at = at.after(1, self.size);
            if flags & DESC_F_NEXT == 0 {
                chain.set_id((word >> 32) as u16);
                break;
            }
            if chain.descriptors() + self.held() >= self.size {
                return Err(RingError::TooLong { segments: chain.descriptors() as usize + 1 });
            }
            word = self.bus.load(Area::Descriptor, at.at() + 8, Relaxed);
            let flags = (word >> 48) as u16;
            if flags & (AVAIL | USED) != at.available() {
                return Err(RingError::NotAvailable { index: at.offset() });
            }
        }
        if chain.id() >= self.size {
            return Err(RingError::BufferId { index: self.next.at.position().offset(), value: chain.id() });
        }
        // The place of a buffer that is never returned stays taken, on this side and on the driver's.
        self.next.go(self.next.at, chain.descriptors(), self.size);
        wrong.map_or(Ok(()), Err)
    }

    /// Enters a segment: the step that is the same inside and outside of tables.
    #[inline(always)]
    fn enter(&self, index: u16, addr: u64, word: u64, chain: &mut Chain, bytes: &mut u64) -> Result<(), RingError> {
        let allowed = DESC_F_NEXT | DESC_F_WRITE | AVAIL | USED;
        let segment = Segment { addr, len: word as u32 };
        chain.enter((index, segment), ((word >> 48) as u16, allowed), self.size, bytes)
    }

    /// Returns the number of descriptors that were popped and are not yet published as used.
    fn held(&self) -> u16 {
        self.next.at.position().since(self.output.published.position(), self.size)
    }

    /// Enters the segments of an indirect table (2.8.7): all its entries, in order.
    fn walk_table(
        &self,
        index: u16,
        addr: u64,
        len: u32,
        space: &impl AddressSpace,
        chain: &mut Chain,
        bytes: &mut u64,
    ) -> Result<(), RingError> {
        if len / 16 > self.size.into() {
            return Err(RingError::TooLong { segments: len as usize / 16 });
        }
        let (table, entries) = find_table(space, index, addr, len)?;
        for entry in 0..entries {
            // SAFETY: the entry is below the table's number of entries, and `translate` has found the whole table to be
            // mapped.
            let (addr, word) = unsafe { read_words(table.wrapping_add(16 * entry as usize)) };
            // All other flags are reserved in a table, and ignored.
            let word = word & (u64::from(DESC_F_WRITE) << 48 | 0xFFFF_FFFF_FFFF);
            self.enter(entry as u16, addr, word, chain, bytes)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn end_batch(&mut self) {
        if let Some(Batch { at, flags, word }) = self.batch {
            self.batch = None;
            self.output.store(&self.bus, at, word | flags);
        }
    }

    fn set_flags(&mut self, flags: u16) {
        if self.event_flags != flags {
            self.event_flags = flags;
            // Release: stored after the offset that the flags refer to (2.8.14).
            self.bus.store(Area::Device, EVENT_FLAGS, flags, Release);
        }
    }
}

impl<B: Bus> DeviceSide for Device<B> {
    /// Pops the next available buffer, with the table that it names in `space`, into `chain`. False: there is none
    /// (2.8.21).
    ///
    /// Each descriptor is read once, and the value that was read is checked. Wait-free.
    ///
    /// # Errors
    /// The driver has violated the protocol. [`RingError::DescriptorFlags`], [`RingError::TotalLength`],
    /// [`RingError::Order`], [`RingError::IndirectTable`]: the buffer is skipped, and is never returned to the driver.
    /// [`RingError::TooLong`], [`RingError::NotAvailable`], [`RingError::BufferId`]: the error is repeated at each
    /// call, because the position of the next buffer is unknown.
    #[inline(always)]
    fn pop(&mut self, space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError> {
        let LapCursor { at, flags: available, .. } = self.next;
        // The device has the whole ring: the buffer available at `next` was popped a lap ago, whether or not it was
        // pushed since.
        if at.is_lap_after(self.output.published) {
            return Ok(false);
        }
        // (B) pairs with (A): the address and the following descriptors are read after these flags.
        let word: u64 = self.bus.load(Area::Descriptor, at.at() + 8, Acquire);
        // Most buffers have one segment, in which only the id can be wrong. The XOR leaves only the id, which must be
        // less than the size.
        let id = ((word ^ available) >> 32) as u32 & !(u32::from(DESC_F_WRITE) << 16);
        if id < self.size.into() {
            self.ask_ahead(at);
            let addr: u64 = self.bus.load(Area::Descriptor, at.at(), Relaxed);
            let (id, write) = ((word >> 32) as u16, (word >> 48) as u16 & DESC_F_WRITE);
            chain.set_one(id, Segment { addr, len: word as u32 }, write);
            self.next.go_one(at);
            return Ok(true);
        }
        if (word ^ available) & second(0, 0, AVAIL | USED) != 0 {
            self.streak.end(at.count());
            return Ok(false);
        }
        self.ask_ahead(at);
        self.pop_chain(word, space, chain)
    }

    /// Writes the used descriptor of a popped buffer, with the number of bytes that the device wrote to it (2.8.22).
    /// [`Device::publish_used`] shows it to the driver.
    ///
    /// In order, buffers must be pushed in the order in which they were popped. Only the last one of a batch is
    /// written, as long as the buffers before it were filled completely (2.8.8).
    ///
    /// Wait-free.
    #[inline(always)]
    fn push_used(&mut self, chain: &Chain, len: u32) {
        debug_assert!(
            chain.descriptors() <= self.next.at.position().since(self.output.next.at.position(), self.size),
            "it was popped and not pushed"
        );
        let LapCursor { at, flags, .. } = self.output.next;
        if let Some(id_and_write) = chain.id_and_write_if(self.simple) {
            self.output.next.go_one(at);
            return self.output.store(&self.bus, at, id_and_write | u64::from(len) | flags);
        }
        self.output.next.go(at, chain.descriptors(), self.size);
        let word = chain.id_and_write() | u64::from(len);
        if !self.features.in_order {
            return self.output.store(&self.bus, at, word | flags);
        }
        match &mut self.batch {
            Some(batch) => batch.word = word,
            None => self.batch = Some(Batch { at, flags, word }),
        }
        if u64::from(len) < chain.writable_len() {
            self.end_batch();
        }
    }

    /// Shows the driver everything that was pushed. Call it before polling for available buffers again.
    ///
    /// Wait-free.
    #[inline]
    fn publish_used(&mut self) {
        self.end_batch();
        // `publish` contains (C).
        self.output.publish(&self.bus);
    }

    /// Whether the driver wants to be notified of what was published since the last call (2.8.10).
    ///
    /// Wait-free.
    #[inline]
    fn needs_interrupt(&mut self) -> bool {
        // `is_wanted` contains (H).
        self.output.is_wanted(&self.bus, Area::Driver, self.features.event_idx, self.size)
    }

    /// Asks to be woken at the next buffer (2.8.14), and returns whether one came meanwhile. If so, pop it before
    /// sleeping.
    ///
    /// Wait-free.
    fn arm_notification(&mut self) -> bool {
        let next = self.next.at.position();
        if self.features.event_idx {
            self.bus.store(Area::Device, EVENT_OFFSET, next.event(), Relaxed);
        }
        self.set_flags(if self.features.event_idx { AT_DESCRIPTOR } else { ENABLE });
        // (F) pairs with (E): the request is stored before the ring is read.
        self.bus.fence();
        let word: u64 = self.bus.load(Area::Descriptor, next.at() + 8, Relaxed);
        !self.next.at.is_lap_after(self.output.published) && (word >> 48) as u16 & (AVAIL | USED) == next.available()
    }

    /// Asks not to be notified for now. This is a hint: some notifications may still arrive.
    ///
    /// Wait-free.
    fn disarm_notification(&mut self) {
        self.set_flags(DISABLE);
    }

    /// Returns the number of used buffers that were pushed and not yet published.
    #[inline]
    fn unpublished(&self) -> u16 {
        self.output.unpublished()
    }

    /// Returns the number of times that the driver has violated the protocol.
    fn violations(&self) -> u64 {
        self.violations
    }
}
