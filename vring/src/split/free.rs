use alloc::boxed::Box;

/// Which descriptors are free, in the driver's own memory. What has been free longest is used first: its line is the least likely to be in
/// use by the device, and lines follow one another.
///
/// ```text
///   order    …  7  8  9 10 11 12 13 14 …     modulo its length, the ring's size
///                  ▲ first          ▲ end
///                  taken next       where the next that is given goes
/// ```
#[derive(Debug)]
pub(super) struct FreeQueue {
    order: Box<[u16]>,
    /// As if they did not wrap.
    first: u32,
    end: u32,
}

impl FreeQueue {
    /// All of a ring's, whose size is a power of two.
    pub(super) fn new(size: u16) -> FreeQueue {
        FreeQueue { order: (0..size).collect(), first: 0, end: size.into() }
    }

    /// How many are free.
    #[inline(always)]
    pub(super) fn len(&self) -> u16 {
        self.end.wrapping_sub(self.first) as u16
    }

    /// How many were given in all, as if that wrapped.
    #[inline(always)]
    pub(super) fn end(&self) -> u16 {
        self.end as u16
    }

    #[inline(always)]
    fn at(&self, number: u32) -> usize {
        number as usize & (self.order.len() - 1)
    }

    /// The one that comes so many after the first; beyond the last, whichever was there before.
    #[inline(always)]
    pub(super) fn get(&self, ahead: u16) -> u16 {
        self.order[self.at(self.first.wrapping_add(ahead.into()))]
    }

    /// Takes so many, of those that are free.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u16) {
        debug_assert!(count <= self.len());
        self.first = self.first.wrapping_add(count.into());
    }

    /// Gives one back.
    #[inline(always)]
    pub(super) fn give(&mut self, slot: u16) {
        let at = self.at(self.end);
        self.order[at] = slot;
        self.give_in_order(1);
    }

    /// Gives so many back that come in the order in which they were taken: where all do, the order stays as it is.
    #[inline(always)]
    pub(super) fn give_in_order(&mut self, count: u16) {
        self.end = self.end.wrapping_add(count.into());
    }
}
