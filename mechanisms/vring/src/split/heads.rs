//! Which chains the device has, in the driver's own memory.

use alloc::boxed::Box;

/// The heads of all chains in one order: those under way as they were added, then the descriptors that begin none.
///
/// ```text
///   order    …  4  5  1  7  0  2  3  6  4  5 …     the head of chain number n is at n, modulo the ring's size, a power of two
///                     ▲ oldest       ▲ added
///                     under way      free
/// ```
/// A chain that comes back is exchanged with the oldest one. So the chains under way lie between two numbers, and one
/// comparison tells whether a head is among them. If chains of one descriptor come back in the order in which they were added, nothing is
/// moved or written. That matters, because a store to a side's own memory waits behind each store to a line that the other side has.
#[derive(Debug)]
pub(super) struct Heads {
    order: Box<[u16]>,
    /// Where each head is in it.
    place: Box<[u16]>,
}

impl Heads {
    /// All heads of a ring of `size`, all free: head 0 is that of chain number `first`.
    pub(super) fn new(size: u16, first: u16) -> Heads {
        let modulo = |number: u16| number & (size - 1);
        Heads {
            order: (0..size).map(|at| modulo(at.wrapping_sub(first))).collect(),
            place: (0..size).map(|head| modulo(head.wrapping_add(first))).collect(),
        }
    }

    /// Where the head of the chain with this number is.
    #[inline(always)]
    fn at(&self, number: u32) -> usize {
        number as usize & (self.order.len() - 1)
    }

    /// The head of the chain with this number.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> u16 {
        self.order[self.at(number)]
    }

    /// How many chains under way were added after number `oldest` and before the one with this head. If the head is free: at least as many as
    /// there are under way. `None`: there is no such descriptor.
    #[inline(always)]
    pub(super) fn since(&self, oldest: u32, head: usize) -> Option<u32> {
        let place = *self.place.get(head)?;
        Some(u32::from(place).wrapping_sub(oldest) & (self.order.len() as u32 - 1))
    }

    /// Makes a descriptor the head of the chain with this number. Either both are under way, or both are free.
    #[inline(always)]
    pub(super) fn assign(&mut self, number: u32, head: u16) {
        if self.get(number) != head {
            self.exchange(number, head);
        }
    }

    /// Exchanges the places of two heads.
    #[inline(never)]
    fn exchange(&mut self, number: u32, head: u16) {
        let (at, place) = (self.at(number), self.place[usize::from(head)]);
        let other = self.order[at];
        self.order.swap(at, place.into());
        (self.place[usize::from(head)], self.place[usize::from(other)]) = (at as u16, place);
    }
}
