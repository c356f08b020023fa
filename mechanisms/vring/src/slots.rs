//! The driver's record of the buffers that the device has, in the driver's own memory.

use alloc::boxed::Box;

/// The driver's record of a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BufferSlot {
    pub(crate) token: u64,
    /// ```text
    ///   63                48   47   32   31                       0
    ///   | extent            |      id  | bytes that may be written |
    /// ```
    /// The extent is 0 if the buffer is simple. Otherwise the topmost bit is set, and the bits below it hold the number
    /// of descriptors less one.
    what: u64,
}

impl BufferSlot {
    #[inline(always)]
    pub(crate) const fn id(&self) -> u16 {
        (self.what >> 32) as u16
    }

    /// Returns the number of descriptors that the buffer takes in the ring.
    #[inline(always)]
    pub(crate) const fn descriptors(&self) -> u16 {
        (self.what >> 48) as u16 % NOT_SIMPLE + 1
    }

    /// Returns the number of bytes that the device may write.
    #[inline(always)]
    pub(crate) const fn writable(&self) -> u32 {
        self.what as u32
    }

    /// Whether the buffer is simple and has this id.
    #[inline(always)]
    pub(crate) fn is_simple(&self, id: u16) -> bool {
        u64::from(id) == self.what >> 32
    }
}

/// Topmost bit of an extent: the buffer is not simple.
const NOT_SIMPLE: u16 = 1 << 15;

/// Returns the extent of a buffer that is not simple, at its place in a slot.
const fn extent_of(descriptors: u16) -> u64 {
    ((NOT_SIMPLE | (descriptors - 1)) as u64) << 48
}

/// Returns an id, at its place in a slot and in a packed descriptor's second word.
const fn id_of(id: u16) -> u64 {
    (id as u64) << 32
}

/// The slots of all ids in one order: first the ids under way, in the order in which they were added, then the free
/// ids. In a split queue, ids are heads.
///
/// ```text
///   order    …  4  5  1  7  0  2  3  6  4  5 …     the id of buffer number n is at n, modulo the length, a power of two
///                     ▲ oldest       ▲ added
///                     under way      free
/// ```
/// A buffer that comes back is exchanged with the oldest one. So the buffers under way are between two numbers, and one
/// comparison tells whether an id is among them. If buffers come back in the order in which they were added, in a ring
/// whose size is a power of two, nothing is ever moved. That matters, because a store to a side's own memory waits for
/// each earlier store to a line that is in the other side's cache.
#[derive(Debug)]
pub(crate) struct BufferSlots {
    order: Box<[BufferSlot]>,
    /// Length of `order`, less one.
    mask: u32,
    /// Index in `order` of each id.
    place: Box<[u16]>,
    /// Whether there are as many ids as places. If so, a buffer that is taken back stays in its place.
    is_full: bool,
    /// Extent of a buffer of one descriptor, at its place in a slot.
    one: u64,
}

impl BufferSlots {
    /// Creates the slots of a ring of `size` descriptors, all free. Buffer number 0 gets id 0.
    ///
    /// A buffer of one descriptor is simple if there are as many ids as places: its slot then needs no change when the
    /// buffer comes back.
    pub(crate) fn new(size: u16) -> BufferSlots {
        let is_full = size.is_power_of_two();
        let slot = |id: u16| BufferSlot { token: 0, what: id_of(id) };
        BufferSlots {
            order: (0..size.next_power_of_two()).map(|at| slot(if at < size { at } else { 0 })).collect(),
            mask: u32::from(size).next_power_of_two() - 1,
            place: (0..size).collect(),
            is_full,
            one: if is_full { 0 } else { extent_of(1) },
        }
    }

    /// Returns the index in `order` of the slot of the buffer with this number.
    #[inline(always)]
    fn at(&self, number: u32) -> usize {
        (number & self.mask) as usize
    }

    /// Returns the slot of the buffer with this number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> &BufferSlot {
        // SAFETY: `at` masks the index, so it is below the length, which is one more than the mask.
        unsafe { self.order.get_unchecked(self.at(number)) }
    }

    /// Enters the buffer with this number, which is the first free one. Returns its id, at its place in a packed
    /// descriptor's second word.
    #[inline(always)]
    pub(crate) fn enter(&mut self, number: u32, token: u64, writable: u32, descriptors: u16) -> u64 {
        const ID: u64 = id_of(u16::MAX);
        let at = self.at(number);
        let of_this = u64::from(writable) | if descriptors == 1 { self.one } else { extent_of(descriptors) };
        // SAFETY: `at` is masked, so it is below the length, which is one more than the mask.
        let slot = unsafe { self.order.get_unchecked_mut(at) };
        slot.token = token;
        // Usually everything but the id is unchanged, and is not stored again.
        let id = slot.what ^ of_this;
        if id & !ID == 0 {
            return id;
        }
        let id = slot.what & ID;
        slot.what = id | of_this;
        id
    }

    /// Like [`BufferSlots::enter`], but for a buffer whose id is given. The id must be free.
    #[inline(always)]
    pub(crate) fn enter_as(&mut self, number: u32, id: u16, token: u64, writable: u32, descriptors: u16) {
        if self.get(number).id() != id {
            self.exchange(number, id);
        }
        self.enter(number, token, writable, descriptors);
    }

    /// Returns the number of buffers under way that were added from number `oldest` on and before the one with this id.
    /// If the id is free, the result is at least the number of buffers under way. `None`: there is no such id.
    #[inline(always)]
    pub(crate) fn since(&self, oldest: u32, id: u16) -> Option<u32> {
        let place = *self.place.get(usize::from(id))?;
        Some(u32::from(place).wrapping_sub(oldest) & self.mask)
    }

    /// Exchanges an id and its buffer's record with those of the buffer with this number. Both are under way, or both
    /// are free.
    #[inline(never)]
    pub(crate) fn exchange(&mut self, number: u32, id: u16) {
        let (at, place) = (self.at(number), self.place[usize::from(id)]);
        self.place[usize::from(self.order[at].id())] = place;
        self.place[usize::from(id)] = at as u16;
        self.order.swap(at, place.into());
    }

    /// Frees the oldest buffer, number `oldest`. The next one is then the oldest.
    #[inline(always)]
    pub(crate) fn free_oldest(&mut self, oldest: u32) {
        if !self.is_full {
            let at = self.at(oldest.wrapping_add(self.place.len() as u32));
            self.order[at] = *self.get(oldest);
            self.place[usize::from(self.order[at].id())] = at as u16;
        }
    }
}
