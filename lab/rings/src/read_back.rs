use std::sync::atomic::Ordering::{self, Relaxed};

use dormouse_lab_harness::opaque;
use dormouse_vring::{Area, Bus, Word};

use crate::{ELEMENT, FIRST, FLAGS, INDEX};

/// Access to a split ring's memory for a side without a shadow: it reads back what it has written.
///
/// A driver reads `avail.idx` for each entry and each time it publishes, and `avail.flags` for each used element, as
/// Linux did before the change of Srinivas (2015). A device reads `used.idx` for each element. Entry and index are
/// stored only after the load before them has completed.
#[derive(Debug, Clone, Copy)]
pub struct ReadBack<B> {
    bus: B,
    /// Area that this side writes.
    own: Area,
    /// Offset of its event index.
    event: usize,
}

impl<B: Bus> ReadBack<B> {
    /// Returns the driver's access to a ring of `size` entries.
    pub fn driver(bus: B, size: u32) -> ReadBack<B> {
        ReadBack { bus, own: Area::Driver, event: FIRST + 2 * size as usize }
    }

    /// Returns the device's access to a ring of `size` entries.
    pub fn device(bus: B, size: u32) -> ReadBack<B> {
        ReadBack { bus, own: Area::Device, event: FIRST + ELEMENT * size as usize }
    }

    /// Reads a word that this side wrote. Returns 0, which the CPU knows only after the load.
    #[inline(always)]
    fn wait_for(&self, offset: usize) -> u64 {
        let read: u16 = self.bus.load(self.own, offset, Relaxed);
        opaque(read.into()) ^ opaque(read.into())
    }
}

impl<B: Bus> Bus for ReadBack<B> {
    fn len(&self, area: Area) -> usize {
        self.bus.len(area)
    }

    #[inline(always)]
    fn load<W: Word>(&self, area: Area, offset: usize, order: Ordering) -> W {
        let is_element = area == Area::Device && offset >= FIRST && (offset - FIRST).is_multiple_of(ELEMENT);
        if self.own == Area::Driver && is_element && size_of::<W>() == 4 {
            self.wait_for(FLAGS);
        }
        self.bus.load(area, offset, order)
    }

    #[inline(always)]
    fn store<W: Word>(&self, area: Area, offset: usize, value: W, order: Ordering) {
        if area != self.own || offset == self.event {
            return self.bus.store(area, offset, value, order);
        }
        match offset {
            FLAGS => {
                self.wait_for(FLAGS);
                self.bus.store(area, offset, value, order);
            }
            INDEX if self.own == Area::Driver => {
                let value = value.to_u64() ^ self.wait_for(INDEX);
                self.bus.store(area, offset, W::from_u64(value), order);
            }
            // The first half of an element is its id.
            _ if self.own == Area::Driver || offset != INDEX && (offset - FIRST).is_multiple_of(ELEMENT) => {
                let offset = offset ^ self.wait_for(INDEX) as usize;
                self.bus.store(area, offset, value, order);
            }
            _ => self.bus.store(area, offset, value, order),
        }
    }

    #[inline(always)]
    fn fence(&self) {
        self.bus.fence();
    }

    #[inline(always)]
    fn expect_load(&self, area: Area, offset: usize) {
        self.bus.expect_load(area, offset);
    }

    #[inline(always)]
    fn expect_store(&self, area: Area, offset: usize) {
        self.bus.expect_store(area, offset);
    }
}
