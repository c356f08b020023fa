//! A record of the buffers that a device has, in memory that outlives the device.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::area::Area;
use crate::bus::{Bus, Word};
use crate::error::RingError;
use crate::packed;
use crate::split::Layout;

/// A record of the buffers that a device has taken and not returned, in the layout of vhost-user
/// (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`). If the device is killed, the next one continues from it, which may be another
/// program's.
///
/// ```text
///   split    features, version, desc_num, last_batch_head, used_idx                           (inflight, next, counter) × n
///   packed   features, version, desc_num, …, used_idx, old_used_idx, their wrap counters      n × 32 bytes
/// ```
///
/// | device | record of a split queue |
/// | --- | --- |
/// | pops a buffer | [`InFlight::take`]: `counter`, then `inflight = 1` |
/// | pushes it as used | [`InFlight::give_back`]: the buffer becomes the head of the batch's list |
/// | publishes | [`InFlight::published`]: `inflight = 0` for the batch, then `used_idx` |
///
/// If the device is killed between the last two, `used_idx` is behind the queue's, and the list names the buffers that the driver has
/// already: they are not executed again.
///
/// For a packed queue the record has the position before and after the buffer that is published, and no buffers: used
/// descriptors replace available ones, so a device must publish each buffer by itself, in the order in which it popped them. It has then
/// no buffer that it could not pop again. The layout's room for buffers stays empty.
///
/// Numbers are in the byte order of the machine, as in other programs' records, and not little-endian as those of a ring.
///
/// Another process may change the record: each value is checked, and a wrong one changes which of the driver's buffers
/// are executed, and nothing else.
#[derive(Debug)]
pub struct InFlight {
    base: *mut u8,
    size: u16,
    is_packed: bool,
    /// Value of `counter` for the next buffer.
    counter: u64,
    /// Value of `used_idx`: a split queue's index, or a packed queue's position.
    used: u16,
    /// Buffers that were given back and are not yet published.
    batch: Vec<u16>,
}

// SAFETY: the value holds an address of memory that is shared with other processes anyway, and is accessed atomically.
unsafe impl Send for InFlight {}

/// A position from which a device continues.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resumption {
    /// Position of the next buffer: the base of [`either::Device::with_in_flight`](crate::either::Device::with_in_flight).
    pub base: u16,
    /// Buffers before `base` that were not returned, the oldest first: see [`split::Device::pop_again`](crate::split::Device::pop_again).
    pub again: Vec<u16>,
}

const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
/// Offset in a packed queue's record of the word that has `used_idx`, `old_used_idx`, and a byte for the wrap counter of each.
const PACKED_POSITIONS: usize = 16;

/// Alignment of a queue's record among others.
const ALIGNMENT: usize = 64;
const WRAP: u16 = 1 << 15;

/// Converts a number between little-endian and the byte order of the machine.
fn native<W: Word>(number: W) -> W {
    match cfg!(target_endian = "big") {
        true => W::from_u64(number.to_u64().swap_bytes() >> (64 - 8 * size_of::<W>())),
        false => number,
    }
}

impl InFlight {
    /// Returns the number of bytes of the record of a queue of `size` descriptors, a multiple of 64.
    pub const fn size_bytes(is_packed: bool, size: u16) -> usize {
        let bytes = if is_packed { 32 + 32 * size as usize } else { 16 + 16 * size as usize };
        bytes.next_multiple_of(ALIGNMENT)
    }

    /// Uses a record. One that is all zeroes is new.
    ///
    /// # Errors
    /// [`RingError::Alignment`] (64 bytes).
    ///
    /// # Safety
    /// [`InFlight::size_bytes`] bytes at `base` are mapped readable and writable as long as the value lives, and Rust
    /// code accesses them only atomically.
    pub unsafe fn new(base: *mut u8, is_packed: bool, size: u16) -> Result<InFlight, RingError> {
        if !base.addr().is_multiple_of(ALIGNMENT) {
            return Err(RingError::Alignment { address: base.addr() });
        }
        Ok(InFlight { base, size, is_packed, counter: 0, used: 0, batch: Vec::with_capacity(size.into()) })
    }

    fn load<W: Word>(&self, offset: usize) -> W {
        debug_assert!(offset + size_of::<W>() <= InFlight::size_bytes(self.is_packed, self.size));
        // SAFETY: by `new`'s contract the record is mapped and accessed only atomically; the word is inside it, and
        // aligned, because the record is.
        native(unsafe { W::load(self.base.wrapping_add(offset), Relaxed) })
    }

    /// Stores a word after everything before it. A process that is killed has executed a prefix of its stores.
    fn store<W: Word>(&self, offset: usize, value: W) {
        debug_assert!(offset + size_of::<W>() <= InFlight::size_bytes(self.is_packed, self.size));
        // SAFETY: by `new`'s contract the record is mapped and accessed only atomically; the word is inside it, and
        // aligned, because the record is.
        unsafe { native(value).store(self.base.wrapping_add(offset), Release) }
    }

    /// Offsets of a buffer's fields in a split queue's record. `inflight` is the first byte of a word whose rest is
    /// `padding`; the upper half of the next word is `next`.
    const fn entry(head: u16) -> usize {
        16 + 16 * head as usize
    }

    const fn next_of(head: u16) -> usize {
        InFlight::entry(head) + 6
    }

    const fn counter_of(head: u16) -> usize {
        InFlight::entry(head) + 8
    }

    fn is_in_flight(&self, head: u16) -> bool {
        native(self.load::<u16>(InFlight::entry(head))) as u8 == 1
    }

    fn set_in_flight(&self, head: u16, is_in_flight: bool) {
        self.store(InFlight::entry(head), native(u16::from(is_in_flight)));
    }

    /// Reads from the record and the queue where a device continues. If the record is new, that is `base`.
    ///
    /// # Errors
    /// [`RingError::Size`], and [`RingError::Area`] for an area that is too small or not aligned.
    pub fn resume(&mut self, bus: &impl Bus, base: u16) -> Result<Resumption, RingError> {
        let is_new = self.load::<u16>(VERSION) != 1;
        let found = match self.is_packed {
            true => self.resume_packed(bus, base, is_new)?,
            false => self.resume_split(bus, base, is_new)?,
        };
        self.store(DESC_NUM, self.size);
        self.store(VERSION, 1_u16);
        Ok(found)
    }

    fn resume_split(&mut self, bus: &impl Bus, base: u16, is_new: bool) -> Result<Resumption, RingError> {
        let layout = Layout::new(bus, self.size.into())?;
        self.used = bus.load(Area::Device, Layout::INDEX, Relaxed);
        let published = self.used.wrapping_sub(self.load(USED_IDX));
        if is_new || published > layout.size() {
            // The queue is a new one: nothing of the record is about it.
            (0..self.size).for_each(|head| self.set_in_flight(head, false));
        } else {
            let mut head: u16 = self.load(LAST_BATCH_HEAD);
            for _ in 0..published {
                if head >= self.size {
                    break;
                }
                self.set_in_flight(head, false);
                head = self.load(InFlight::next_of(head));
            }
        }
        self.store(USED_IDX, self.used);
        if is_new {
            return Ok(Resumption { base, again: Vec::new() });
        }
        let mut again: Vec<u16> = (0..self.size).filter(|head| self.is_in_flight(*head)).collect();
        again.sort_by_key(|head| self.load::<u64>(InFlight::counter_of(*head)));
        self.counter = again.last().map_or(0, |head| self.load::<u64>(InFlight::counter_of(*head)).wrapping_add(1));
        Ok(Resumption { base: self.used.wrapping_add(again.len() as u16), again })
    }

    fn resume_packed(&mut self, bus: &impl Bus, base: u16, is_new: bool) -> Result<Resumption, RingError> {
        let word = native(self.load::<u64>(PACKED_POSITIONS));
        let position = |offset: u64, wrap: u64| native(offset as u16) & !WRAP | if wrap & 1 != 0 { WRAP } else { 0 };
        let (new, old) = (position(word, word >> 32), position(word >> 16, word >> 40));
        let is_new = is_new || [new, old].iter().any(|position| position & !WRAP >= self.size);
        if is_new {
            self.used = base;
            self.store_positions(self.used);
            return Ok(Resumption { base, again: Vec::new() });
        }
        // If the buffer at the old position is still available, it was not published. The driver may have taken it back and
        // made another one available there, which has another wrap counter.
        let is_old = packed::is_available(bus, self.size.into(), old)?;
        self.used = if is_old { old } else { new };
        self.store_positions(self.used);
        Ok(Resumption { base: self.used, again: Vec::new() })
    }

    /// Stores the position behind the buffer that is published next, and the current one, in one word.
    fn store_positions(&self, used: u16) {
        let [new, old] = [used, self.used].map(|position| u64::from(native(position & !WRAP)));
        let offsets = new | old << 16;
        let wraps = u64::from(used >> 15) | u64::from(self.used >> 15) << 8;
        self.store(PACKED_POSITIONS, native(offsets | wraps << 32));
    }

    /// Records that a buffer was popped. Wait-free.
    pub fn take(&mut self, head: u16) {
        if !self.is_packed && head < self.size {
            self.store(InFlight::counter_of(head), self.counter);
            self.counter = self.counter.wrapping_add(1);
            self.set_in_flight(head, true);
        }
    }

    /// Records that a buffer is pushed, before it is published. `base` is the device's position. Wait-free.
    pub fn give_back(&mut self, head: u16, base: u16) {
        if self.is_packed {
            self.store_positions(base);
            self.batch.push(base);
        } else if head < self.size {
            self.store::<u16>(InFlight::next_of(head), self.load(LAST_BATCH_HEAD));
            self.store(LAST_BATCH_HEAD, head);
            self.batch.push(head);
        }
    }

    /// Records that everything that was pushed is published. Wait-free.
    pub fn published(&mut self) {
        if self.is_packed {
            self.used = self.batch.last().copied().unwrap_or(self.used);
            self.store_positions(self.used);
        } else {
            self.batch.iter().for_each(|head| self.set_in_flight(*head, false));
            self.used = self.used.wrapping_add(self.batch.len() as u16);
            self.store(USED_IDX, self.used);
        }
        self.batch.clear();
    }

    /// Makes the record new again, after a device has stopped that had returned all buffers.
    pub fn forget(&mut self) {
        self.store(VERSION, 0_u16);
    }
}
