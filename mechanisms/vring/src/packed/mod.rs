//! The packed virtqueue (2.8).

mod device;
mod driver;

pub use device::Device;
pub use driver::Driver;

use core::sync::atomic::Ordering::{Relaxed, Release};

use dormouse_abi::vring::RING_SIZE_MAX;

use crate::area::Area;
use crate::bus::{AreaLocation, Areas, Bus, IN_LINE, check_areas};
use crate::error::RingError;

/// `VIRTQ_DESC_F_AVAIL` (2.8.1).
const AVAIL: u16 = 1 << 7;
/// `VIRTQ_DESC_F_USED` (2.8.1).
const USED: u16 = 1 << 15;

/// `RING_EVENT_FLAGS_ENABLE`, `_DISABLE` and `_DESC` (2.8.14).
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_DESCRIPTOR: u16 = 2;

/// Offset of `desc` in either event suppression structure (2.8.14). It holds a ring offset, with the wrap counter in
/// the topmost bit.
const EVENT_OFFSET: usize = 0;
/// Offset of `flags` in either event suppression structure.
const EVENT_FLAGS: usize = 2;

/// Returns a descriptor's second word (2.8.13).
#[inline(always)]
const fn second(len: u32, id: u16, flags: u16) -> u64 {
    len as u64 | (id as u64) << 32 | (flags as u64) << 48
}

/// A position in the ring, with the wrap counter of the side that is there (2.8.1). The counter is 1 in the first lap,
/// and flips with each lap.
///
/// The layout is that of an event suppression structure: the offset, with the wrap counter in the topmost bit. It is in
/// a word of 32 bits so that it is loaded with the width with which it was stored (see `Wide`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position(u32);

impl Position {
    const WRAP: u32 = 1 << 15;

    const START: Position = Position(Position::WRAP);

    /// Returns the offset in descriptors, less than the ring's size.
    #[inline(always)]
    const fn offset(self) -> u16 {
        (self.0 & (Position::WRAP - 1)) as u16
    }

    /// Returns the wrap counter.
    #[inline(always)]
    const fn wrap(self) -> bool {
        self.0 & Position::WRAP != 0
    }

    /// Returns the position `count` descriptors later. `count` is at most the ring's `size`.
    #[inline(always)]
    fn after(self, count: u16, size: u16) -> Position {
        let offset = u32::from(self.offset()) + u32::from(count);
        // A branch, which the CPU predicts, instead of computing both results and selecting one.
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

    /// Returns the number of descriptors from `other` to this position, less than two laps.
    #[inline(always)]
    fn since(self, other: Position, size: u16) -> u16 {
        let lap = if self.wrap() == other.wrap() { 0 } else { size };
        self.offset().wrapping_sub(other.offset()).wrapping_add(lap)
    }

    /// Like [`Position::after`], but without the wrap counter, and not exact in a small ring.
    #[inline(always)]
    const fn ahead(self, count: u16, size: u16) -> Position {
        let offset = self.offset() as u32 + count as u32;
        let around = offset.wrapping_sub(size as u32);
        Position(if offset < size as u32 { offset } else { around })
    }

    /// Returns the flags with which a descriptor at this position is available.
    #[inline(always)]
    const fn available(self) -> u16 {
        if self.wrap() { AVAIL } else { USED }
    }

    /// Returns the flags with which a descriptor at this position is used.
    #[inline(always)]
    const fn used(self) -> u16 {
        if self.wrap() { AVAIL | USED } else { 0 }
    }

    /// Returns offset and wrap counter in the format of an event suppression structure.
    const fn event(self) -> u16 {
        self.0 as u16
    }

    /// Reads the format of [`Position::event`].
    const fn from_event(event: u16) -> Position {
        Position(event as u32)
    }

    /// Returns the offset in bytes from the beginning of the ring.
    #[inline(always)]
    const fn at(self) -> usize {
        16 * self.offset() as usize
    }
}

/// One side's position in the ring, and the number of buffers before it, in one word, so that one store writes both.
/// Each store to a side's own memory waits for the earlier stores to lines that are in the other side's cache, in a
/// store buffer that has few entries.
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
    /// Step of one buffer that takes one descriptor.
    const STEP: u64 = 1 << 33 | 16;

    /// Creates a cursor at `position`, with no buffers before it.
    const fn new(position: Position) -> Cursor {
        Cursor(position.at() as u64 | if position.wrap() { Cursor::LAP } else { 0 })
    }

    #[inline(always)]
    const fn position(self) -> Position {
        let wrap = if self.0 & Cursor::LAP != 0 { Position::WRAP } else { 0 };
        Position(self.0 as u32 >> 4 | wrap)
    }

    /// Returns the offset in bytes from the beginning of the ring.
    #[inline(always)]
    const fn at(self) -> usize {
        self.0 as u32 as usize
    }

    /// Whether it is at the first descriptor of a line.
    #[inline(always)]
    const fn begins_line(self) -> bool {
        (self.0 as u32).is_multiple_of(16 * IN_LINE as u32)
    }

    /// Whether it is exactly one lap after `other`.
    #[inline(always)]
    fn is_lap_after(self, other: Cursor) -> bool {
        // Usually it is not even at the same offset, which is cheaper to compute.
        self.0 as u32 == other.0 as u32 && !self.is_in_lap_of(other)
    }

    /// Whether it is in the same lap as `other`, which is less than two laps away.
    #[inline(always)]
    const fn is_in_lap_of(self, other: Cursor) -> bool {
        (self.0 ^ other.0) & Cursor::LAP == 0
    }

    /// Returns the number of descriptors from `other`, which is at most a lap later, to this offset one lap later.
    #[inline(always)]
    const fn lap_before(self, other: Cursor, size: u16) -> u16 {
        let lap = if self.is_in_lap_of(other) { size } else { 0 };
        (((self.0 as u32).wrapping_sub(other.0 as u32) >> 4) as u16).wrapping_add(lap)
    }

    /// Returns the number of buffers before it, modulo 2^31.
    #[inline(always)]
    const fn count(self) -> u32 {
        (self.0 >> 33) as u32
    }
}

/// A cursor that moves around the ring, with the values that change each lap.
#[derive(Debug, Clone, Copy)]
struct LapCursor {
    at: Cursor,
    /// Offset of the ring's last descriptor, in bytes.
    last: u32,
    /// Flags that this side writes or expects in the current lap, at their place in a second word.
    flags: u64,
    /// Number of times that the walk passed the ring's beginning; wraps.
    laps: u64,
}

impl LapCursor {
    /// Creates a walk over descriptors that become available.
    const fn of_available(at: Position, size: u16) -> LapCursor {
        LapCursor { at: Cursor::new(at), last: 16 * (size as u32 - 1), flags: second(0, 0, at.available()), laps: 0 }
    }

    /// Creates a walk over descriptors that become used.
    const fn of_used(at: Position, size: u16) -> LapCursor {
        LapCursor { at: Cursor::new(at), last: 16 * (size as u32 - 1), flags: second(0, 0, at.used()), laps: 0 }
    }

    /// Advances by one buffer from `at`, the current place. The buffer has `descriptors` descriptors, at most the
    /// ring's `size`.
    #[inline(always)]
    fn go(&mut self, at: Cursor, descriptors: u16, size: u16) {
        // Most buffers have one. A CPU that predicts this does not wait for the number to compute the next place.
        if descriptors == 1 {
            self.go_one(at);
        } else {
            self.go_far(descriptors, size);
        }
    }

    /// Advances by one descriptor from `at`, the current place.
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

/// Length of the current run of successful searches. After a long run the other side is far ahead, and the next lines
/// can be prefetched. Before that, the other side may still be writing them, and a prefetch would take them away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SuccessRun {
    /// Number of buffers that had been found when the run began.
    since: u32,
}

impl SuccessRun {
    const LONG: u32 = 16;

    const fn new() -> SuccessRun {
        SuccessRun { since: 0 }
    }

    /// Whether the run was already long when one more buffer was found, after `found` others.
    #[inline(always)]
    fn is_long(self, found: u32) -> bool {
        found.wrapping_sub(self.since) >= SuccessRun::LONG
    }

    /// Ends the run: after `found` buffers, a search found none.
    #[inline(always)]
    fn end(&mut self, found: u32) {
        if self.since != found {
            self.since = found;
        }
    }
}

/// The output of one side. Everything is written immediately, except for the second word of the first unpublished
/// descriptor: the other side reads that word before all others.
#[derive(Debug)]
struct Output {
    /// Position of the next buffer.
    next: LapCursor,
    published: Cursor,
    /// Second word to store at `published`, if something is not published.
    word: u64,
    /// Published position, and number of laps completed, when [`Output::is_wanted`] was last called.
    announced: Cursor,
    announced_laps: u64,
}

impl Output {
    const fn new(next: LapCursor) -> Output {
        Output { published: next.at, word: 0, announced: next.at, announced_laps: next.laps, next }
    }

    /// Writes the second word of a buffer's first descriptor at `at`, or holds it back if that descriptor is the first
    /// unpublished one.
    #[inline(always)]
    fn store(&mut self, bus: &impl Bus, at: Cursor, word: u64) {
        if at == self.published {
            self.word = word;
        } else {
            // Relaxed: the other side reads this only after the first descriptor's flags.
            bus.store(Area::Descriptor, at.at() + 8, word, Relaxed);
        }
    }

    /// Returns the number of buffers that are not published.
    #[inline(always)]
    fn unpublished(&self) -> u16 {
        self.next.at.count().wrapping_sub(self.published.count()) as u16
    }

    /// Shows the other side everything before `next`.
    #[inline(always)]
    fn publish(&mut self, bus: &impl Bus) {
        if self.published != self.next.at {
            self.show(bus, self.word);
        }
    }

    /// Does [`Output::store`] for the last buffer before `next`, and then [`Output::publish`].
    #[inline(always)]
    fn store_and_publish(&mut self, bus: &impl Bus, at: Cursor, word: u64) {
        if at == self.published {
            self.show(bus, word);
        } else {
            bus.store(Area::Descriptor, at.at() + 8, word, Relaxed);
            self.show(bus, self.word);
        }
    }

    /// Writes the second word at `published`, which shows the other side everything before `next`.
    #[inline(always)]
    fn show(&mut self, bus: &impl Bus, word: u64) {
        // (A), in the driver, pairs with (B); (C), in the device, pairs with (D). A side that sees this word also sees
        // the following words, and everything that was done to the buffers.
        bus.store(Area::Descriptor, self.published.at() + 8, word, Release);
        self.published = self.next.at;
    }

    /// Whether the other side wants to be notified of everything published since the last call. Its request is in area
    /// `peer`; it may name a descriptor, if event indexes were negotiated (2.8.14, 2.8.10).
    #[inline]
    fn is_wanted(&mut self, bus: &impl Bus, peer: Area, has_event_idx: bool, size: u16) -> bool {
        let old = core::mem::replace(&mut self.announced, self.published);
        // The unpublished part is less than a lap long.
        let published_laps = self.next.laps.wrapping_sub((!self.next.at.is_in_lap_of(self.published)).into());
        let laps = published_laps.wrapping_sub(core::mem::replace(&mut self.announced_laps, published_laps));
        // (E) pairs with (F), and (H) with (G): descriptors are stored before the other side's request is read.
        bus.fence();
        let word: u32 = bus.load(peer, EVENT_OFFSET, Relaxed);
        let (event, flags) = (word as u16, (word >> 16) as u16);
        let new = self.published.position();
        match flags {
            _ if old == self.published && laps == 0 => false,
            // Compare with published positions only: later descriptors do not matter yet.
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

/// Whether the descriptor at a position, in the format of vhost's base, is available to the device.
///
/// # Errors
/// [`RingError::Size`], and [`RingError::Area`].
pub(crate) fn is_available(bus: &impl Bus, size: u32, base: u16) -> Result<bool, RingError> {
    let (size, at) = (check(bus, size)?, Position::from_event(base));
    if at.offset() >= size {
        return Err(RingError::Size { size: u32::from(at.offset()) + 1 });
    }
    let word: u64 = bus.load(Area::Descriptor, at.at() + 8, Relaxed);
    Ok((word >> 48) as u16 & (AVAIL | USED) == at.available())
}

/// Whether a side that went from `old` to `new`, by less than two laps, passed `event` (2.8.14).
#[inline]
fn passed(bus: &impl Bus, old: Position, new: Position, size: u16, event: u16) -> bool {
    let count = new.since(old, size);
    if count > size {
        return true;
    }
    // Put both on one number line: an event in the previous lap has a number that is smaller by a lap.
    let mut at = event & 0x7FFF;
    if (event >> 15 == 1) != new.wrap() {
        at = at.wrapping_sub(size);
    }
    bus.need_event(at, new.offset(), new.offset().wrapping_sub(count))
}

/// Returns the number of bytes of a ring of `size` descriptors with contiguous areas, see [`contiguous`].
///
/// # Errors
/// [`RingError::Size`].
pub const fn size_bytes(size: u32) -> Result<usize, RingError> {
    if size == 0 || size > RING_SIZE_MAX {
        return Err(RingError::Size { size });
    }
    Ok((16 * size as usize).next_multiple_of(LINE) + 2 * LINE)
}

/// Distance in bytes that separates the memory that one side writes from the memory that the other side writes.
const LINE: usize = 64;

/// Returns the areas of a ring of `size` descriptors that are contiguous from `base` on, each on its own cache lines.
///
/// # Errors
/// [`RingError::Size`] and [`RingError::Alignment`] (64 bytes).
pub fn contiguous(base: *mut u8, size: u32) -> Result<Areas, RingError> {
    let len = size_bytes(size)?;
    if !base.addr().is_multiple_of(LINE) {
        return Err(RingError::Alignment { address: base.addr() });
    }
    Ok(Areas {
        descriptor: AreaLocation(base, 16 * size as usize),
        driver: AreaLocation(base.wrapping_add(len - 2 * LINE), 4),
        device: AreaLocation(base.wrapping_add(len - LINE), 4),
    })
}

/// Makes an empty ring: no descriptor is available, and both sides want to be notified. Call it before either side uses
/// the ring.
///
/// # Errors
/// [`RingError::Size`] and [`RingError::Area`].
pub fn init(bus: &impl Bus, size: u32) -> Result<(), RingError> {
    empty(bus, check(bus, size)?);
    Ok(())
}

fn empty(bus: &impl Bus, size: u16) {
    for slot in 0..size {
        bus.store(Area::Descriptor, 16 * slot as usize, 0_u64, Relaxed);
        bus.store(Area::Descriptor, 16 * slot as usize + 8, 0_u64, Relaxed);
    }
    for area in [Area::Driver, Area::Device] {
        bus.store(area, EVENT_OFFSET, 0_u16, Relaxed);
        bus.store(area, EVENT_FLAGS, ENABLE, Relaxed);
    }
}
