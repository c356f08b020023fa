//! A model that counts the cache lines that a queue moves between two CPUs. Its results are the same on every machine.
//!
//! # The picture
//! ```text
//!   Driver<View> ──load, store──▶ ┌───────────────── Memory ─────────────────┐ ◀──load, store── Device<View>
//!                                 │ bytes, and for each line of 64 of them:  │
//!                                 │   what each side did there (Tally)       │
//!                                 │   its state in each side's cache, once   │
//!                                 │   for each Protocol                      │
//!                                 └──────────────────────────────────────────┘
//! ```
//! [`run_split`] and [`run_packed`] pass items through a queue of each kind. [`run`] takes any two sides that were made
//! of a [`Memory`]'s views. One thread alternates between a call of the driver and a call of the device, so the counts
//! are exact and repeatable. [`run_timed`] gives each side a clock, and the next step to the side whose clock is behind.
//!
//! # What is counted
//! Each side has a cache that never evicts. A line that a side accesses and does not have comes from the other side (a
//! *transfer*) or from memory (a *fill*, only once for each line). If a side stores to a line that both sides have, the
//! line is taken from the other side without moving (an *upgrade*). The CPU waits for a transfer for a load; stores
//! wait in a buffer.
//!
//! # Limits
//! The model leaves out the contents of buffers, indirect tables, each side's own memory, prefetchers, evicted lines,
//! and caches that two CPUs share. It gives counts; its times are of the cost of a transfer that [`Pace`] assumes.
//!
//! # Source
//! D. Sorin, M. Hill, D. Wood, *A Primer on Memory Consistency and Cache Coherence*, for MESI and MOESI; the message of Venkatesh Srinivas's
//! change and section 11.6 of AMD's *Software Optimization Guide for Family 15h* for [`Protocol::Migratory`].

mod protocol;
mod workload;

use core::cell::{Cell, RefCell};
use core::ops::{AddAssign, Sub};
use core::sync::atomic::Ordering;

use dormouse_abi::vring::RingLayout;

pub use protocol::{Moves, Protocol};
pub use workload::{Pace, Schedule, Timed, Workload, run, run_packed, run_split, run_timed};

use dormouse_vring::{Area, Bus, RingError, Word, packed, split};
use protocol::Caches;

/// Size of a cache line, in bytes.
pub const LINE_BYTES: usize = 64;

/// A side of the queue, which accesses its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that adds buffers: the producer.
    Driver,
    /// The side that pops them: the consumer.
    Device,
}

impl Side {
    /// Both sides.
    pub const ALL: [Side; 2] = [Side::Driver, Side::Device];

    const fn other(self) -> Side {
        match self {
            Side::Driver => Side::Device,
            Side::Device => Side::Driver,
        }
    }
}

/// Accesses of one side to one line, or to several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Words loaded.
    pub loads: u64,
    /// Words stored.
    pub stores: u64,
    /// Stores to a line that the side has loaded since its last store there (read-modify-write).
    pub modifies: u64,
    /// Moves, in the order of [`Protocol::ALL`].
    moves: [Moves; Protocol::ALL.len()],
}

impl Tally {
    /// Moves that the accesses caused under a protocol.
    pub const fn moves(&self, protocol: Protocol) -> Moves {
        self.moves[protocol as usize]
    }
}

impl Sub for Tally {
    type Output = Tally;

    fn sub(self, before: Tally) -> Tally {
        Tally {
            loads: self.loads - before.loads,
            stores: self.stores - before.stores,
            modifies: self.modifies - before.modifies,
            moves: core::array::from_fn(|index| self.moves[index] - before.moves[index]),
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.loads += other.loads;
        self.stores += other.stores;
        self.modifies += other.modifies;
        self.moves.iter_mut().zip(other.moves).for_each(|(moves, other)| *moves += other);
    }
}

/// Accesses since the last [`Memory::reset`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Buffers that came back to the driver; 0 if they were not counted.
    pub items: u64,
    /// Tallies by side and area.
    areas: [[Tally; 3]; 2],
    fences: [u64; 2],
}

impl Counts {
    /// Accesses of a side to an area.
    pub const fn area(&self, side: Side, area: Area) -> Tally {
        self.areas[side as usize][area as usize]
    }

    /// Accesses of a side to all areas.
    pub fn side(&self, side: Side) -> Tally {
        let mut sum = Tally::default();
        self.areas[side as usize].iter().for_each(|tally| sum += *tally);
        sum
    }

    /// Number of full fences of a side.
    pub const fn fences(&self, side: Side) -> u64 {
        self.fences[side as usize]
    }

    /// Moves that both sides caused under a protocol.
    pub fn moves(&self, protocol: Protocol) -> Moves {
        let mut sum = self.side(Side::Driver).moves(protocol);
        sum += self.side(Side::Device).moves(protocol);
        sum
    }

    /// Number of transfers for each item.
    pub fn transfers_per_item(&self, protocol: Protocol) -> f64 {
        self.moves(protocol).transfers() as f64 / self.items as f64
    }
}

#[derive(Debug, Clone, Default)]
struct Line {
    tallies: [Tally; 2],
    /// States in both caches, in the order of [`Protocol::ALL`].
    caches: [Caches; Protocol::ALL.len()],
    /// Whether the side's last access was a load.
    has_loaded: [bool; 2],
}

impl Line {
    fn access(&mut self, side: Side, is_store: bool) {
        let tally = &mut self.tallies[side as usize];
        let has_loaded = &mut self.has_loaded[side as usize];
        if is_store {
            tally.stores += 1;
            tally.modifies += u64::from(*has_loaded);
        } else {
            tally.loads += 1;
        }
        *has_loaded = !is_store;
        for protocol in Protocol::ALL {
            let moves = &mut tally.moves[protocol as usize];
            self.caches[protocol as usize].access(protocol, side, is_store, moves);
        }
    }
}

#[derive(Debug)]
struct Part {
    bytes: Vec<u8>,
    lines: Vec<Line>,
}

impl Part {
    fn new(len: usize) -> RefCell<Part> {
        let lines = (0..len.div_ceil(LINE_BYTES)).map(|_| Line::default()).collect();
        RefCell::new(Part { bytes: (0..len).map(|_| 0).collect(), lines })
    }
}

/// A ring's memory, as two sides with a cache each see it. Each area starts on a line of its own.
#[derive(Debug)]
pub struct Memory {
    parts: [RefCell<Part>; 3],
    fences: [Cell<u64>; 2],
    /// Accesses of each side since they were taken last.
    recent: [Cell<Tally>; 2],
}

impl Memory {
    /// Returns memory with an empty split ring of `size` entries.
    ///
    /// # Errors
    /// [`RingError::Size`].
    pub fn split(size: u32) -> Result<Memory, RingError> {
        let layout = RingLayout { size };
        let driver = layout.avail_ring() - layout.avail() + 2 * size as usize + 2;
        let memory = Memory::new([layout.avail(), driver, layout.avail_event() + 2 - layout.used()]);
        split::init(&memory.view(Side::Driver), size)?;
        memory.forget();
        Ok(memory)
    }

    /// Returns memory with an empty packed ring of `size` descriptors.
    ///
    /// # Errors
    /// [`RingError::Size`].
    pub fn packed(size: u32) -> Result<Memory, RingError> {
        let memory = Memory::new([16 * size as usize, 4, 4]);
        packed::init(&memory.view(Side::Driver), size)?;
        memory.forget();
        Ok(memory)
    }

    fn new(len: [usize; 3]) -> Memory {
        Memory { parts: len.map(Part::new), fences: Default::default(), recent: Default::default() }
    }

    /// One side's access to the memory.
    pub const fn view(&self, side: Side) -> View<'_> {
        View { memory: self, side }
    }

    /// Sets the counts to zero. The states of the caches stay.
    pub fn reset(&self) {
        self.each_line(|line| line.tallies = Default::default());
        self.fences.iter().for_each(|fences| fences.set(0));
    }

    /// Sets the counts to zero and empties the caches.
    fn forget(&self) {
        self.reset();
        self.each_line(|line| *line = Line::default());
    }

    fn each_line(&self, mut change: impl FnMut(&mut Line)) {
        for part in &self.parts {
            part.borrow_mut().lines.iter_mut().for_each(&mut change);
        }
    }

    /// Accesses of a side to line number `index` of an area. `avail.flags` and `avail.idx` are on line 0 of
    /// [`Area::Driver`].
    ///
    /// # Panics
    /// The area has no such line.
    pub fn line(&self, side: Side, area: Area, index: usize) -> Tally {
        self.parts[area as usize].borrow().lines[index].tallies[side as usize]
    }

    /// Takes the accesses of a side since they were taken last.
    fn take_recent(&self, side: Side) -> Tally {
        self.recent[side as usize].take()
    }

    /// Accesses since the last [`Memory::reset`].
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { fences: self.fences.each_ref().map(Cell::get), ..Counts::default() };
        for side in Side::ALL {
            for (sum, part) in counts.areas[side as usize].iter_mut().zip(&self.parts) {
                part.borrow().lines.iter().for_each(|line| *sum += line.tallies[side as usize]);
            }
        }
        counts
    }
}

/// One side's access to a [`Memory`].
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    memory: &'a Memory,
    side: Side,
}

impl View<'_> {
    fn access<T>(&self, area: Area, offset: usize, is_store: bool, then: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut part = self.memory.parts[area as usize].borrow_mut();
        let line = &mut part.lines[offset / LINE_BYTES];
        let before = line.tallies[self.side as usize];
        line.access(self.side, is_store);
        let recent = &self.memory.recent[self.side as usize];
        let mut sum = recent.get();
        sum += line.tallies[self.side as usize] - before;
        recent.set(sum);
        then(&mut part.bytes[offset..])
    }
}

impl Bus for View<'_> {
    fn len(&self, area: Area) -> usize {
        self.memory.parts[area as usize].borrow().bytes.len()
    }

    fn load<W: Word>(&self, area: Area, offset: usize, _order: Ordering) -> W {
        let mut word = [0; 8];
        self.access(area, offset, false, |bytes| word[..size_of::<W>()].copy_from_slice(&bytes[..size_of::<W>()]));
        W::from_u64(u64::from_le_bytes(word))
    }

    fn store<W: Word>(&self, area: Area, offset: usize, value: W, _order: Ordering) {
        let word = value.to_u64().to_le_bytes();
        self.access(area, offset, true, |bytes| bytes[..size_of::<W>()].copy_from_slice(&word[..size_of::<W>()]));
    }

    fn fence(&self) {
        let fences = &self.memory.fences[self.side as usize];
        fences.set(fences.get() + 1);
    }
}

#[cfg(test)]
mod tests;
