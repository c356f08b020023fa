//! Which buffers the device has, in the driver's own memory.

use alloc::boxed::Box;

/// The ids of all buffers in one order: those under way as they were added, then those that are free.
///
/// ```text
///   order    …  4  5  1  7  0  2  3  6  4  5 …     the id of buffer number n is at n, modulo the length, a power of two
///                     ▲ oldest       ▲ added
///                     under way      free
/// ```
/// Whatever comes back is put where the oldest is, and the oldest where that was: so what is under way lies between two numbers, and one
/// comparison tells whether an id is. Where buffers of one descriptor come back in the order in which they were added, in a ring whose size
/// is a power of two, nothing is ever moved or written: a store to memory of one's own is not for nothing, for it waits behind each store
/// to a line that the other side has.
#[derive(Debug)]
pub(crate) struct Ids {
    order: Box<[u16]>,
    /// Where each id is in it.
    place: Box<[u16]>,
    /// Whether there are as many ids as places: what is taken back stays where it is.
    is_full: bool,
}

impl Ids {
    /// Those of a ring of `size`, all of them free: 0 is that of buffer number `first`.
    pub(crate) fn new(size: u16, first: u32) -> Ids {
        let mut ids = Ids {
            order: (0..size.next_power_of_two()).map(|_| 0).collect(),
            place: (0..size).map(|_| 0).collect(),
            is_full: size.is_power_of_two(),
        };
        for id in 0..size {
            ids.put(ids.at(first.wrapping_add(id.into())), id);
        }
        ids
    }

    /// Where the id of the buffer with this number is.
    #[inline(always)]
    fn at(&self, number: u32) -> usize {
        number as usize & (self.order.len() - 1)
    }

    #[inline(always)]
    fn put(&mut self, at: usize, id: u16) {
        self.order[at] = id;
        self.place[id as usize] = at as u16;
    }

    /// The id of the buffer with this number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> u16 {
        self.order[self.at(number)]
    }

    /// How many buffers that are under way were added after number `oldest` and before the one with this id: as many or more than there
    /// are, if it is free. `None`: there is no such id.
    #[inline(always)]
    pub(crate) fn since(&self, oldest: u32, id: usize) -> Option<u32> {
        let place = *self.place.get(id)?;
        Some(u32::from(place).wrapping_sub(oldest) & (self.order.len() as u32 - 1))
    }

    /// Makes an id that of the buffer with this number. Either both are under way, or both are free and the ring's size is a power of two.
    #[inline(always)]
    pub(crate) fn assign(&mut self, number: u32, id: u16) {
        if self.get(number) != id {
            self.exchange(number, id);
        }
    }

    /// Makes the oldest, number `oldest`, free. The next one is the oldest then.
    #[inline(always)]
    pub(crate) fn free_oldest(&mut self, oldest: u32) {
        if !self.is_full {
            self.put(self.at(oldest.wrapping_add(self.place.len() as u32)), self.get(oldest));
        }
    }

    /// Puts an id where another is, and that one where it was.
    #[inline(never)]
    fn exchange(&mut self, number: u32, id: u16) {
        let (at, place) = (self.at(number), self.place[id as usize]);
        self.put(place.into(), self.order[at]);
        self.put(at, id);
    }
}
