//! Descriptor chains of segments, and their completions.

use alloc::vec::Vec;

use dormouse_abi::vring::DESC_F_WRITE;

use crate::error::RingError;
use crate::memory::IndirectTables;

/// A contiguous part of a buffer, at an address that the device understands. It has C layout.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Segment {
    /// Address of the first byte, in the device's address space.
    pub addr: u64,
    /// Length, in bytes.
    pub len: u32,
}

/// A buffer that came back to the driver. It has C layout.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Completion {
    /// Token that the driver gave when it added the buffer.
    pub token: u64,
    /// Number of bytes that the device says it wrote, limited to the number that it was allowed to write.
    pub len: u32,
}

/// A buffer that the device has received: segments to read, then segments to write (2.7.4.2).
///
/// Use one value for many buffers, so that its memory is reused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    /// Summary of the chain in one word, so that one store writes it. The upper half has the layout of a packed
    /// descriptor:
    /// ```text
    ///   63   50    49     48   47    32   31                         16   15                 0
    ///   |     0 | WRITE |   0 |      id | segments to write, less one    | descriptors of ring |
    /// ```
    /// WRITE is set if there is a segment to write. The number of segments to write is stored less one.
    summary: u64,
    segments: Vec<Segment>,
}

impl Chain {
    /// One descriptor, and one further segment to write: the units of the two counts in the summary.
    const DESCRIPTOR: u64 = 1;
    const WRITABLE: u64 = 1 << 16;
    /// Extent of a chain that takes one descriptor and has at most one segment to write.
    pub(crate) const ONE: u32 = Chain::DESCRIPTOR as u32;
    /// An extent that no chain has.
    pub(crate) const NONE: u32 = u32::MAX;
    const ID: u64 = 0xFFFF << 32;
    const WRITE: u64 = (DESC_F_WRITE as u64) << 48;

    /// Returns the head descriptor in a split queue, the buffer id in a packed queue.
    #[inline]
    pub fn id(&self) -> u16 {
        (self.summary >> 32) as u16
    }

    /// Returns the number of descriptors that the chain takes in the ring itself.
    #[inline(always)]
    pub(crate) fn descriptors(&self) -> u16 {
        self.summary as u16
    }

    /// Returns the number of segments that the device reads.
    #[inline(always)]
    fn readable_count(&self) -> usize {
        // Two predictable cases are cheaper than one difference that is right for both.
        if self.is_writable() {
            self.segments.len() - 1 - (self.summary as u32 >> 16) as usize
        } else {
            self.segments.len()
        }
    }

    /// Returns the segments that the device reads. Addresses and lengths are unchecked values from the driver.
    #[inline]
    pub fn readable(&self) -> &[Segment] {
        &self.segments[..self.readable_count()]
    }

    /// Returns the segments that the device writes. Addresses and lengths are unchecked values from the driver.
    #[inline]
    pub fn writable(&self) -> &[Segment] {
        &self.segments[self.readable_count()..]
    }

    /// Returns the number of bytes that the device may read.
    #[inline]
    pub fn readable_len(&self) -> u64 {
        total(self.readable())
    }

    /// Returns the number of bytes that the device may write.
    #[inline]
    pub fn writable_len(&self) -> u64 {
        total(self.writable())
    }

    /// Returns the id and WRITE, at their place in a packed descriptor's second word.
    #[inline(always)]
    pub(crate) fn id_and_write(&self) -> u64 {
        self.summary & (Chain::WRITE | Chain::ID)
    }

    /// Returns the id and WRITE if the chain takes exactly `extent`: [`Chain::ONE`], or [`Chain::NONE`].
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

    /// Removes all segments and resets the summary. The caller then enters segments and counts descriptors.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.segments.clear();
        self.summary = 0;
    }

    #[inline]
    pub(crate) fn set_id(&mut self, id: u16) {
        self.summary = self.summary & !Chain::ID | u64::from(id) << 32;
    }

    /// Counts a descriptor of the ring. There are at most 32,768.
    #[inline]
    pub(crate) fn count_descriptor(&mut self) {
        self.summary += Chain::DESCRIPTOR;
    }

    /// Makes this a buffer of one segment, which takes one descriptor. `write` is [`DESC_F_WRITE`] or 0.
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

    /// Checks and adds the segment of the descriptor with number `index` in its ring or table. Only the flags in
    /// `allowed` may be set. The ring has `size` descriptors; `bytes` counts the bytes of the chain.
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

/// Returns the total length of the segments, in bytes.
#[inline]
pub(crate) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Maximum number of bytes of a chain (2.7.5.2, 2.8.17).
pub(crate) const CHAIN_BYTES_MAX: u64 = 1 << 32;

/// The space that a buffer needs, and what the driver records about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BufferSpace {
    /// Number of segments.
    pub(crate) count: usize,
    /// Number of bytes that the device may write, at most `u32::MAX`.
    pub(crate) writable: u32,
    /// Tables that hold the segments, if they do not go into the ring.
    pub(crate) table: Option<IndirectTables>,
    /// Number of descriptors of the ring.
    pub(crate) descriptors: u16,
}

impl BufferSpace {
    /// Computes the needs of a buffer, and checks that a ring of `size` descriptors could take it if all of them were
    /// free.
    #[inline(always)]
    pub(crate) fn of(
        readable: &[Segment],
        writable: &[Segment],
        size: u16,
        tables: Option<IndirectTables>,
    ) -> Result<BufferSpace, RingError> {
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
        Ok(BufferSpace { count, writable: writable_bytes.min(u32::MAX.into()) as u32, table, descriptors })
    }
}

/// Returns the only segment of a buffer and its flags, if the buffer has one segment. Most buffers do, and every ring
/// is large enough for them.
#[inline(always)]
pub(crate) fn only(readable: &[Segment], writable: &[Segment]) -> Option<(Segment, u16)> {
    match (readable, writable) {
        ([segment], []) => Some((*segment, 0)),
        ([], [segment]) => Some((*segment, DESC_F_WRITE)),
        _ => None,
    }
}

/// Returns a buffer's segments, each with [`DESC_F_WRITE`] if the device writes it, otherwise 0.
#[inline(always)]
pub(crate) fn flagged<'a>(
    readable: &'a [Segment],
    writable: &'a [Segment],
) -> impl Iterator<Item = (&'a Segment, u16)> {
    readable.iter().map(|segment| (segment, 0)).chain(writable.iter().map(|segment| (segment, DESC_F_WRITE)))
}
