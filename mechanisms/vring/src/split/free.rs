use alloc::boxed::Box;

/// Which descriptors are free, in the driver's own memory. The descriptor that has been free longest is used first: its line is the least
/// likely to be in use by the device, and lines follow one another.
///
/// ```text
///   order    …  7  8  9 10 11 12 13 14 …     by how many were taken, or given back, before it; modulo the ring's size
///                  ▲ taken     ▲ given back, one lap on
/// ```
/// If descriptors come back in the order in which they were taken, nothing is written.
#[derive(Debug)]
pub(super) struct FreeQueue(Box<[u16]>);

impl FreeQueue {
    /// All descriptors of a ring, whose size is a power of two.
    pub(super) fn new(size: u16) -> FreeQueue {
        FreeQueue((0..size).collect())
    }

    #[inline(always)]
    fn at(&self, number: u64) -> usize {
        number as usize & (self.0.len() - 1)
    }

    /// The descriptor that is taken after so many, if it is free.
    #[inline(always)]
    pub(super) fn get(&self, number: u64) -> u16 {
        self.0[self.at(number)]
    }

    /// Gives one back, as the one after so many.
    #[inline(always)]
    pub(super) fn give(&mut self, number: u64, slot: u16) {
        let at = self.at(number);
        if self.0[at] != slot {
            self.0[at] = slot;
        }
    }
}
