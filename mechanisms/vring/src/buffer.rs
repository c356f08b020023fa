//! What is handed over: descriptor chains of segments, and their completions.

use alloc::vec::Vec;

use dormouse_abi::vring::DESC_F_WRITE;

use crate::error::RingError;
use crate::memory::IndirectTables;

/// A contiguous part of a buffer, at an address that the device understands. Laid out as C does.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Segment {
    /// Where it starts, in the device's address space.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// A buffer that came back to the driver. Laid out as C does.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Completion {
    /// What the driver gave with it.
    pub token: u64,
    /// Bytes that the device says it wrote, at most those that it was allowed to write.
    pub len: u32,
}

/// A buffer that the device has been given: segments to be read, then segments to be written (2.7.4.2).
///
/// Use one value again and again: its memory is then reused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    /// In one word, for one store; the upper half as a packed descriptor has it:
    /// ```text
    ///   63   50    49     48   47    32   31                         16   15                 0
    ///   |     0 | WRITE |   0 |      id | segments to be written but one | descriptors of ring |
    /// ```
    /// WRITE: there is a segment to be written.
    summary: u64,
    segments: Vec<Segment>,
}

impl Chain {
    /// One descriptor, and one further segment to be written.
    const DESCRIPTOR: u64 = 1;
    const WRITABLE: u64 = 1 << 16;
    /// One descriptor, and one segment to be written at most.
    pub(crate) const ONE: u32 = Chain::DESCRIPTOR as u32;
    /// A value that no chain has.
    pub(crate) const NONE: u32 = u32::MAX;
    const ID: u64 = 0xFFFF << 32;
    const WRITE: u64 = (DESC_F_WRITE as u64) << 48;

    /// The head descriptor of a split queue, the buffer id of a packed one.
    #[inline]
    pub fn id(&self) -> u16 {
        (self.summary >> 32) as u16
    }

    /// Descriptors of the ring itself that it takes.
    #[inline(always)]
    pub(crate) fn descriptors(&self) -> u16 {
        self.summary as u16
    }

    /// Segments that the device reads.
    #[inline(always)]
    fn readable_count(&self) -> usize {
        // Two cases, which the CPU predicts, are cheaper than a difference that is right for both.
        if self.is_writable() {
            self.segments.len() - 1 - (self.summary as u32 >> 16) as usize
        } else {
            self.segments.len()
        }
    }

    /// What the device reads. Addresses and lengths are what the driver says.
    #[inline]
    pub fn readable(&self) -> &[Segment] {
        &self.segments[..self.readable_count()]
    }

    /// What the device writes. Addresses and lengths are what the driver says.
    #[inline]
    pub fn writable(&self) -> &[Segment] {
        &self.segments[self.readable_count()..]
    }

    /// Bytes that the device may read.
    #[inline]
    pub fn readable_len(&self) -> u64 {
        total(self.readable())
    }

    /// Bytes that the device may write.
    #[inline]
    pub fn writable_len(&self) -> u64 {
        total(self.writable())
    }

    /// The id and WRITE, as they are in a packed descriptor's second word.
    #[inline(always)]
    pub(crate) fn id_and_write(&self) -> u64 {
        self.summary & (Chain::WRITE | Chain::ID)
    }

    /// The same, if the chain takes exactly `extent`: [`Chain::ONE`], or [`Chain::NONE`].
    #[inline(always)]
    pub(crate) fn id_and_write_if(&self, extent: u32) -> Option<u64> {
        let rest = self.summary ^ u64::from(extent);
        (rest as u32 == 0).then_some(rest)
    }

    /// Whether there is a segment that the device may write.
    #[inline(always)]
    pub(crate) fn is_writable(&self) -> bool {
        self.summary & Chain::WRITE != 0
    }

    /// Empties it. What follows is pushed, and counted.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.segments.clear();
        self.summary = 0;
    }

    #[inline]
    pub(crate) fn set_id(&mut self, id: u16) {
        self.summary = self.summary & !Chain::ID | u64::from(id) << 32;
    }

    /// Counts a descriptor of the ring: no more than 32,768.
    #[inline]
    pub(crate) fn count_descriptor(&mut self) {
        self.summary += Chain::DESCRIPTOR;
    }

    /// Makes it a buffer of one segment, which takes one descriptor. `write`: its flags, [`DESC_F_WRITE`] or none.
    #[inline(always)]
    pub(crate) fn set_one(&mut self, id: u16, segment: Segment, write: u16) {
        self.summary = u64::from(write) << 48 | u64::from(id) << 32 | Chain::DESCRIPTOR;
        if let [only] = &mut self.segments[..] {
            *only = segment;
        } else {
            self.replace_segments(segment);
        }
    }

    #[cold]
    #[inline(never)]
    fn replace_segments(&mut self, segment: Segment) {
        self.segments.clear();
        self.segments.push(segment);
    }

    /// Enters the segment of a descriptor, number `index` in its ring or table, whose flags may be those of `allowed`. The ring has `size`
    /// descriptors; `bytes` counts those of the chain.
    #[inline(always)]
    pub(crate) fn enter(
        &mut self,
        (index, segment): (u16, Segment),
        (flags, allowed): (u16, u16),
        size: u16,
        bytes: &mut u64,
    ) -> Result<(), RingError> {
        if flags & !allowed != 0 {
            return Err(RingError::DescriptorFlags { index, value: flags });
        }
        if self.segments.len() >= size.into() {
            return Err(RingError::TooLong { segments: self.segments.len() + 1 });
        }
        *bytes += u64::from(segment.len);
        if *bytes > CHAIN_BYTES_MAX {
            return Err(RingError::TotalLength);
        }
        let is_written = flags & DESC_F_WRITE != 0;
        if self.is_writable() && !is_written {
            return Err(RingError::Order { index });
        }
        self.segments.push(segment);
        if is_written {
            self.summary =
                if self.is_writable() { self.summary + Chain::WRITABLE } else { self.summary | Chain::WRITE };
        }
        Ok(())
    }
}

/// Bytes of the segments.
#[inline]
pub(crate) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// The most bytes that a chain may have (2.7.5.2, 2.8.17).
pub(crate) const CHAIN_BYTES_MAX: u64 = 1 << 32;

/// What a driver has to record for a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// Segments.
    pub(crate) count: usize,
    /// Bytes that the device may write.
    pub(crate) writable: u32,
    /// Where the segments go, if not into the ring.
    pub(crate) table: Option<IndirectTables>,
    /// Descriptors of the ring.
    pub(crate) descriptors: u16,
}

impl Need {
    /// Checks whether a ring of `size` descriptors could take the buffer if all of them were free.
    #[inline(always)]
    pub(crate) fn of(
        readable: &[Segment],
        writable: &[Segment],
        size: u16,
        tables: Option<IndirectTables>,
    ) -> Result<Need, RingError> {
        let count = readable.len() + writable.len();
        if count == 0 {
            return Err(RingError::Empty);
        }
        let writable_bytes = total(writable);
        if total(readable) + writable_bytes > CHAIN_BYTES_MAX {
            return Err(RingError::TotalLength);
        }
        if count > size.into() {
            return Err(RingError::TooLong { segments: count });
        }
        let table = tables.filter(|tables| count > 1 && count <= tables.entries.into());
        let descriptors = if table.is_some() { 1 } else { count as u16 };
        Ok(Need { count, writable: writable_bytes.min(u32::MAX.into()) as u32, table, descriptors })
    }
}

/// The segment of a buffer that has only one, and its flags. Most buffers have one, and every ring is large enough for it.
#[inline(always)]
pub(crate) fn only(readable: &[Segment], writable: &[Segment]) -> Option<(Segment, u16)> {
    match (readable, writable) {
        ([segment], []) => Some((*segment, 0)),
        ([], [segment]) => Some((*segment, DESC_F_WRITE)),
        _ => None,
    }
}

/// A buffer's segments, with the flags that say which of them the device writes.
#[inline(always)]
pub(crate) fn flagged<'a>(
    readable: &'a [Segment],
    writable: &'a [Segment],
) -> impl Iterator<Item = (&'a Segment, u16)> {
    readable.iter().map(|segment| (segment, 0)).chain(writable.iter().map(|segment| (segment, DESC_F_WRITE)))
}
