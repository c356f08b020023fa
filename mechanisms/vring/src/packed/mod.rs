//! The packed virtqueue (2.8).

mod device;
mod driver;

pub use device::Device;
pub use driver::Driver;

use core::sync::atomic::Ordering::{Relaxed, Release};

use dormouse_abi::vring::RING_SIZE_MAX;

use crate::area::Area;
use crate::bus::{Areas, Bus, IN_LINE, Part, check_areas};
use crate::error::RingError;

/// `VIRTQ_DESC_F_AVAIL` (2.8.1).
const AVAIL: u16 = 1 << 7;
/// `VIRTQ_DESC_F_USED` (2.8.1).
const USED: u16 = 1 << 15;

/// `RING_EVENT_FLAGS_ENABLE`, `_DISABLE` and `_DESC` (2.8.14).
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_DESCRIPTOR: u16 = 2;

/// Offset of `desc` in either event suppression structure (2.8.14): an offset in the ring, and the wrap counter on top.
const EVENT_OFFSET: usize = 0;
/// Offset of `flags` there.
const EVENT_FLAGS: usize = 2;

/// A descriptor's second word (2.8.13).
#[inline(always)]
const fn second(len: u32, id: u16, flags: u16) -> u64 {
    len as u64 | (id as u64) << 32 | (flags as u64) << 48
}

/// A position in the ring, with the wrap counter of the side that is there (2.8.1): it is 1 in the first lap, and changes with each lap.
///
/// In one word of 32 bits, so that it is loaded by the width by which it was stored (see `Wide`): as in an event suppression structure, the
/// offset and the wrap counter on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position(u32);

impl Position {
    const WRAP: u32 = 1 << 15;

    const START: Position = Position(Position::WRAP);

    /// From 0 to less than the ring's size.
    #[inline(always)]
    const fn offset(self) -> u16 {
        (self.0 & (Position::WRAP - 1)) as u16
    }

    /// The wrap counter.
    #[inline(always)]
    const fn wrap(self) -> bool {
        self.0 & Position::WRAP != 0
    }

    /// `count` descriptors on, at most the ring's `size`.
    #[inline(always)]
    fn after(self, count: u16, size: u16) -> Position {
        let offset = u32::from(self.offset()) + u32::from(count);
        // A branch, which the CPU predicts, rather than both results and a selection.
        if offset < u32::from(size) {
            Position(self.0 + u32::from(count))
        } else {
            self.around(offset - u32::from(size))
        }
    }

    #[cold]
    #[inline(never)]
    fn around(self, offset: u32) -> Position {
        Position(offset | (self.0 & Position::WRAP ^ Position::WRAP))
    }

    /// How many descriptors it is after `other`, less than two laps.
    #[inline(always)]
    fn since(self, other: Position, size: u16) -> u16 {
        let lap = if self.wrap() == other.wrap() { 0 } else { size };
        self.offset().wrapping_sub(other.offset()).wrapping_add(lap)
    }

    /// As [`Position::after`], where neither the lap matters nor how exact the distance is in a small ring.
    #[inline(always)]
    const fn ahead(self, count: u16, size: u16) -> Position {
        let offset = self.offset() as u32 + count as u32;
        let around = offset.wrapping_sub(size as u32);
        Position(if offset < size as u32 { offset } else { around })
    }

    /// The flags with which a descriptor here is available.
    #[inline(always)]
    const fn available(self) -> u16 {
        if self.wrap() { AVAIL } else { USED }
    }

    /// The flags with which a descriptor here is used.
    #[inline(always)]
    const fn used(self) -> u16 {
        if self.wrap() { AVAIL | USED } else { 0 }
    }

    /// Offset and wrap counter as they are in an event suppression structure.
    const fn event(self) -> u16 {
        self.0 as u16
    }

    /// As [`Position::event`] has it.
    const fn from_event(event: u16) -> Position {
        Position(event as u32)
    }

    /// Bytes from the beginning of the ring.
    #[inline(always)]
    const fn at(self) -> usize {
        16 * self.offset() as usize
    }
}

/// Where one side is in the ring, and how many buffers came before, in one word, for one store. Each store to a side's
/// own memory waits behind the stores to lines that the other side has, in a buffer of the CPU that has few entries.
///
/// ```text
///   63             33   32   31                 0
///   | buffers before | lap | bytes from the ring's beginning |
/// ```
/// The lap is the wrap counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor(u64);

impl Cursor {
    const LAP: u64 = 1 << 32;
    /// One buffer of one descriptor.
    const STEP: u64 = 1 << 33 | 16;

    /// Before all buffers.
    const fn new(position: Position) -> Cursor {
        Cursor(position.at() as u64 | if position.wrap() { Cursor::LAP } else { 0 })
    }

    #[inline(always)]
    const fn position(self) -> Position {
        let wrap = if self.0 & Cursor::LAP != 0 { Position::WRAP } else { 0 };
        Position(self.0 as u32 >> 4 | wrap)
    }

    /// Bytes from the beginning of the ring.
    #[inline(always)]
    const fn at(self) -> usize {
        self.0 as u32 as usize
    }

    /// Whether it is the first descriptor of a line.
    #[inline(always)]
    const fn begins_line(self) -> bool {
        (self.0 as u32).is_multiple_of(16 * IN_LINE as u32)
    }

    /// Whether it is a whole lap of descriptors after `other`.
    #[inline(always)]
    fn is_lap_after(self, other: Cursor) -> bool {
        // Most often it is not even the same place, which is cheaper to compute.
        self.0 as u32 == other.0 as u32 && !self.is_in_lap_of(other)
    }

    /// Whether it is in the same lap as `other`, which is less than two laps away.
    #[inline(always)]
    const fn is_in_lap_of(self, other: Cursor) -> bool {
        (self.0 ^ other.0) & Cursor::LAP == 0
    }

    /// How many descriptors it is from `other`, which is at most a lap after it, to the same place a lap later.
    #[inline(always)]
    const fn lap_before(self, other: Cursor, size: u16) -> u16 {
        let lap = if self.is_in_lap_of(other) { size } else { 0 };
        (((self.0 as u32).wrapping_sub(other.0 as u32) >> 4) as u16).wrapping_add(lap)
    }

    /// Buffers before it, modulo 2^31.
    #[inline(always)]
    const fn count(self) -> u32 {
        (self.0 >> 33) as u32
    }
}

/// A cursor that goes round, with what changes each lap.
#[derive(Debug, Clone, Copy)]
struct Walk {
    at: Cursor,
    /// Bytes from the ring's beginning to its last descriptor.
    last: u32,
    /// The flags of the descriptors there, at their place in a second word.
    flags: u64,
    /// How often it came to the ring's beginning; wraps.
    laps: u64,
}

impl Walk {
    /// A walk to descriptors that become available.
    const fn of_available(at: Position, size: u16) -> Walk {
        Walk { at: Cursor::new(at), last: 16 * (size as u32 - 1), flags: second(0, 0, at.available()), laps: 0 }
    }

    /// A walk to descriptors that become used.
    const fn of_used(at: Position, size: u16) -> Walk {
        Walk { at: Cursor::new(at), last: 16 * (size as u32 - 1), flags: second(0, 0, at.used()), laps: 0 }
    }

    /// Goes on by one buffer from `at`, the current place. The buffer has so many descriptors, at most the ring's `size`.
    #[inline(always)]
    fn go(&mut self, at: Cursor, descriptors: u16, size: u16) {
        // Most buffers have one. A CPU that predicts this need not wait for the number to know where the next buffer is.
        if descriptors == 1 {
            self.go_one(at);
        } else {
            self.go_far(descriptors, size);
        }
    }

    /// Goes on by one descriptor from `at`, the current place.
    #[inline(always)]
    fn go_one(&mut self, at: Cursor) {
        if at.0 as u32 == self.last {
            self.go_around(at);
        } else {
            self.at = Cursor(at.0.wrapping_add(Cursor::STEP));
        }
    }

    #[cold]
    #[inline(never)]
    fn go_around(&mut self, at: Cursor) {
        self.begin_lap();
        self.at = Cursor((at.0 ^ Cursor::LAP).wrapping_add(Cursor::STEP) - u64::from(self.last) - 16);
    }

    fn begin_lap(&mut self) {
        self.flags ^= second(0, 0, AVAIL | USED);
        self.laps = self.laps.wrapping_add(1);
    }

    #[inline(never)]
    fn go_far(&mut self, descriptors: u16, size: u16) {
        let (from, to) = (self.at.position(), self.at.position().after(descriptors, size));
        if from.wrap() != to.wrap() {
            self.begin_lap();
        }
        self.at = Cursor(u64::from(self.at.count().wrapping_add(1)) << 33 | Cursor::new(to).0);
    }
}

/// How long a search has always found something. After many times the other side is far ahead, and the lines that come next
/// can be prefetched. Before that, the other side may be writing them, and a prefetch would take them away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Streak {
    /// Number of buffers that had been found when it began.
    since: u32,
}

impl Streak {
    const LONG: u32 = 16;

    const fn new() -> Streak {
        Streak { since: 0 }
    }

    /// One more buffer was found, after so many. Returns whether there were many before it.
    #[inline(always)]
    fn is_long(self, found: u32) -> bool {
        found.wrapping_sub(self.since) >= Streak::LONG
    }

    /// After so many buffers, none was found.
    #[inline(always)]
    fn end(&mut self, found: u32) {
        if self.since != found {
            self.since = found;
        }
    }
}

/// What one side writes. Everything is written at once, except for the second word of the first descriptor that is not published: the
/// other side reads that word before all others.
#[derive(Debug)]
struct Output {
    /// Where the next buffer goes.
    next: Walk,
    published: Cursor,
    /// The second word at `published`, if something is not published.
    word: u64,
    /// Where it was when it was last asked whether the other side is to be notified, and how many laps it had gone then.
    announced: Cursor,
    announced_laps: u64,
}

impl Output {
    const fn new(next: Walk) -> Output {
        Output { published: next.at, word: 0, announced: next.at, announced_laps: next.laps, next }
    }

    /// Writes the second word of a buffer's first descriptor, which is at `at`, or holds it back.
    #[inline(always)]
    fn store(&mut self, bus: &impl Bus, at: Cursor, word: u64) {
        if at == self.published {
            self.word = word;
        } else {
            // Relaxed: the other side reads this only after the first descriptor's flags.
            bus.store(Area::Descriptor, at.at() + 8, word, Relaxed);
        }
    }

    /// Buffers that are not published.
    #[inline(always)]
    fn unpublished(&self) -> u16 {
        self.next.at.count().wrapping_sub(self.published.count()) as u16
    }

    /// Shows the other side all up to `next`.
    #[inline(always)]
    fn publish(&mut self, bus: &impl Bus) {
        if self.published != self.next.at {
            self.show(bus, self.word);
        }
    }

    /// As [`Output::store`] of the last buffer before `next`, and then [`Output::publish`].
    #[inline(always)]
    fn store_and_publish(&mut self, bus: &impl Bus, at: Cursor, word: u64) {
        if at == self.published {
            self.show(bus, word);
        } else {
            bus.store(Area::Descriptor, at.at() + 8, word, Relaxed);
            self.show(bus, self.word);
        }
    }

    /// Writes the second word at `published`, which shows the other side everything up to `next`.
    #[inline(always)]
    fn show(&mut self, bus: &impl Bus, word: u64) {
        // (A), the driver's, pairs with (B), and (C), the device's, with (D): whoever sees this word also sees the words behind it, and what was
        // done to the buffers.
        bus.store(Area::Descriptor, self.published.at() + 8, word, Release);
        self.published = self.next.at;
    }

    /// Whether the other side is to be notified of what was published since the last call, as it says in `peer`: at a descriptor, where
    /// event indexes were negotiated (2.8.14, 2.8.10).
    #[inline]
    fn is_wanted(&mut self, bus: &impl Bus, peer: Area, has_event_idx: bool, size: u16) -> bool {
        let old = core::mem::replace(&mut self.announced, self.published);
        // What is not published is less than a lap long.
        let published_laps = self.next.laps.wrapping_sub((!self.next.at.is_in_lap_of(self.published)).into());
        let laps = published_laps.wrapping_sub(core::mem::replace(&mut self.announced_laps, published_laps));
        // (E) pairs with (F), and (H) with (G): descriptors are stored before the other side's wish is read.
        bus.fence();
        let word: u32 = bus.load(peer, EVENT_OFFSET, Relaxed);
        let (event, flags) = (word as u16, (word >> 16) as u16);
        let new = self.published.position();
        match flags {
            _ if old == self.published && laps == 0 => false,
            // Only up to what was published: what was written since does not matter yet.
            AT_DESCRIPTOR if has_event_idx => laps > 1 || passed(bus, old.position(), new, size, event),
            DISABLE => false,
            _ => true,
        }
    }
}

/// Checks size, alignment and memory. A packed ring may have any size up to 2^15 (2.8.10.1).
fn check(bus: &impl Bus, size: u32) -> Result<u16, RingError> {
    if size == 0 || size > RING_SIZE_MAX {
        return Err(RingError::Size { size });
    }
    check_areas(bus, [16 * size as usize, 4, 4])?;
    Ok(size as u16)
}

/// Whether a side that went from `old` to `new`, by less than two laps, passed `event` (2.8.14).
#[inline]
fn passed(bus: &impl Bus, old: Position, new: Position, size: u16, event: u16) -> bool {
    let count = new.since(old, size);
    if count > size {
        return true;
    }
    // On one number line: an event in the lap before this one has a number that is smaller by a lap.
    let mut at = event & 0x7FFF;
    if (event >> 15 == 1) != new.wrap() {
        at = at.wrapping_sub(size);
    }
    bus.need_event(at, new.offset(), new.offset().wrapping_sub(count))
}

/// Bytes of a ring of `size` descriptors whose areas are contiguous, see [`contiguous`].
///
/// # Errors
/// [`RingError::Size`].
pub const fn size_bytes(size: u32) -> Result<usize, RingError> {
    if size == 0 || size > RING_SIZE_MAX {
        return Err(RingError::Size { size });
    }
    Ok((16 * size as usize).next_multiple_of(LINE) + 2 * LINE)
}

/// Bytes between what one side writes and what the other side writes.
const LINE: usize = 64;

/// The areas of a ring of `size` descriptors that are contiguous from `base` on, each on cache lines of its own.
///
/// # Errors
/// [`RingError::Size`] and [`RingError::Alignment`] (64 bytes).
pub fn contiguous(base: *mut u8, size: u32) -> Result<Areas, RingError> {
    let len = size_bytes(size)?;
    if !base.addr().is_multiple_of(LINE) {
        return Err(RingError::Alignment { address: base.addr() });
    }
    Ok(Areas {
        descriptor: Part(base, 16 * size as usize),
        driver: Part(base.wrapping_add(len - 2 * LINE), 4),
        device: Part(base.wrapping_add(len - LINE), 4),
    })
}

/// Makes an empty ring: no descriptor is available, and both sides want to be notified. Before either side uses it.
///
/// # Errors
/// [`RingError::Size`] and [`RingError::Area`].
pub fn init(bus: &impl Bus, size: u32) -> Result<(), RingError> {
    for slot in 0..check(bus, size)? {
        bus.store(Area::Descriptor, 16 * slot as usize, 0_u64, Relaxed);
        bus.store(Area::Descriptor, 16 * slot as usize + 8, 0_u64, Relaxed);
    }
    for area in [Area::Driver, Area::Device] {
        bus.store(area, EVENT_OFFSET, 0_u16, Relaxed);
        bus.store(area, EVENT_FLAGS, ENABLE, Relaxed);
    }
    Ok(())
}
