use alloc::boxed::Box;

/// Queue of free descriptors, in the driver's own memory. The descriptor that has been free longest is used first: its
/// line is the least likely to be in use by the device, and successive descriptors are in successive lines.
///
/// ```text
///   order    …  7  8  9 10 11 12 13 14 …     the index is the number of descriptors taken, or given back, before; modulo the ring's size
///                  ▲ taken     ▲ given back, one lap on
/// ```
/// If descriptors come back in the order in which they were taken, nothing is written.
#[derive(Debug)]
pub(super) struct FreeQueue(Box<[u16]>);

impl FreeQueue {
    /// Creates a queue of all descriptors of a ring, whose size is a power of two.
    pub(super) fn new(size: u16) -> FreeQueue {
        FreeQueue((0..size).collect())
    }

    #[inline(always)]
    fn at(&self, number: u64) -> usize {
        number as usize & (self.0.len() - 1)
    }

    /// Returns the descriptor that is taken after `number` others, if it is free.
    #[inline(always)]
    pub(super) fn get(&self, number: u64) -> u16 {
        self.0[self.at(number)]
    }

    /// Gives a descriptor back, after `number` others.
    #[inline(always)]
    pub(super) fn give(&mut self, number: u64, slot: u16) {
        let at = self.at(number);
        if self.0[at] != slot {
            self.0[at] = slot;
        }
    }
}
