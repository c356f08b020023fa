use core::fmt;

use crate::area::Area;

/// An error of a ring, or a protocol violation by its other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingError {
    /// The size is not a power of two from 1 to 32768 (2.7); in a packed ring, it is not a number from 1 to 32768
    /// (2.8.10.1).
    Size {
        /// Size that was requested.
        size: u32,
    },
    /// The region does not begin on a multiple of 64 bytes.
    Alignment {
        /// Address at which it begins.
        address: usize,
    },
    /// An area is too small (2.7, 2.8), or, if `found` is 0, missing or not aligned.
    Area {
        /// Area that is wrong.
        area: Area,
        /// Number of bytes that the ring needs.
        needed: usize,
        /// Number of usable bytes of the area.
        found: usize,
    },
    /// A region of the driver's memory overlaps another, or ends beyond the last address.
    Regions {
        /// Address of the region, in the driver's address space.
        addr: u64,
    },
    /// Indirect tables were requested, but `VIRTIO_F_INDIRECT_DESC` was not negotiated.
    IndirectNotNegotiated,
    /// A buffer has no segments.
    Empty,
    /// A buffer has more segments than the ring has entries. In a ring, this includes a loop (2.7.5.2, 2.8.17).
    TooLong {
        /// Number of segments; for a loop, number of segments followed.
        segments: usize,
    },
    /// A buffer has more than 2^32 bytes (2.7.5.2, 2.8.17).
    TotalLength,
    /// A segment to read follows a segment to write (2.7.4.2, 2.8.17).
    Order {
        /// Index of the descriptor in its table or ring.
        index: u16,
    },
    /// `next` names no descriptor (2.7.5).
    NextIndex {
        /// Index of the descriptor in its table or ring.
        index: u16,
        /// `next` of the descriptor.
        value: u16,
    },
    /// An indirect table is empty, its length is not a multiple of 16 bytes, or it is not in the driver's memory
    /// (2.7.5.3.1, 2.8.19).
    IndirectTable {
        /// Index of the descriptor that names it.
        index: u16,
        /// Address of the table, as the descriptor gives it.
        addr: u64,
        /// Length of the table, in bytes.
        len: u32,
    },
    /// A buffer continues in a descriptor of a packed ring that is not available (2.8.21.1).
    NotAvailable {
        /// Index of the descriptor.
        index: u16,
    },
    /// The id of a buffer of a packed ring is not below the ring's size.
    BufferId {
        /// Index of the buffer's first descriptor.
        index: u16,
        /// Id of the buffer.
        value: u16,
    },
    /// `avail.idx` is ahead by more than the ring's size (2.7.13.3).
    AvailIndex {
        /// Position of the device in the avail ring.
        index: u16,
        /// Value of `avail.idx`.
        value: u16,
    },
    /// An entry of the avail ring does not name a descriptor (2.7.6).
    AvailId {
        /// Index of the entry.
        index: u16,
        /// Value of the entry.
        value: u16,
    },
    /// A descriptor has flags that are unknown, not negotiated, or for a kind of buffer that the function does not
    /// accept (2.7.5).
    DescriptorFlags {
        /// Index of the descriptor.
        index: u16,
        /// Flags of the descriptor.
        value: u16,
    },
    /// `used.idx` is further ahead than the number of chains that the device has (2.7.8).
    UsedIndex {
        /// Position of the driver in the used ring.
        index: u16,
        /// Value of `used.idx`.
        value: u16,
    },
    /// An element of the used ring does not name a descriptor that the device has (2.7.8).
    UsedId {
        /// Index of the element.
        index: u16,
        /// Value that the element names.
        value: u32,
    },
    /// The driver has too few free descriptors, or none. Take used buffers first.
    Full {
        /// The next descriptor to use.
        index: u16,
    },
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Size { size } => {
                write!(f, "a ring cannot have {size} entries: it needs a power of two up to 32768")
            }
            RingError::Alignment { address } => {
                write!(f, "a ring cannot begin at {address:#x}: it needs a multiple of 64")
            }
            RingError::Area { area, needed, found: 0 } => {
                write!(
                    f,
                    "the {} area is missing or not aligned: it needs {needed} bytes at a multiple of 16",
                    area.name()
                )
            }
            RingError::Area { area, needed, found } => {
                write!(f, "the {} area has {found} bytes of the {needed} that the ring needs", area.name())
            }
            RingError::Regions { addr } => write!(f, "the memory region at {addr:#x} overlaps another or has no end"),
            RingError::IndirectNotNegotiated => f.write_str("indirect descriptors were not negotiated"),
            RingError::Empty => f.write_str("a buffer without segments"),
            RingError::TooLong { segments } => write!(f, "a buffer of {segments} segments, more than the ring has"),
            RingError::TotalLength => f.write_str("a buffer of more than 2^32 bytes"),
            RingError::Order { index } => {
                write!(f, "descriptor {index} is device-readable, and comes after a device-writable one")
            }
            RingError::NextIndex { index, value } => {
                write!(f, "descriptor {index} continues in {value}, which is no descriptor")
            }
            RingError::IndirectTable { index, addr, len } => {
                write!(f, "descriptor {index} names a table of {len} bytes at {addr:#x}, which is no table")
            }
            RingError::NotAvailable { index } => {
                write!(f, "a buffer continues in descriptor {index}, which is not available")
            }
            RingError::BufferId { index, value } => write!(f, "the buffer at descriptor {index} has the id {value}"),
            RingError::AvailIndex { index, value } => {
                write!(f, "avail.idx is {value}, more than the ring's size ahead of {index}")
            }
            RingError::AvailId { index, value } => write!(f, "avail entry {index} names descriptor {value}"),
            RingError::DescriptorFlags { index, value } => {
                write!(f, "descriptor {index} has the flags {value:#x}, which are not accepted there")
            }
            RingError::UsedIndex { index, value } => {
                write!(f, "used.idx is {value}, further ahead of {index} than the device has chains")
            }
            RingError::UsedId { index, value } => {
                write!(f, "used element {index} names descriptor {value}, which the device does not have")
            }
            RingError::Full { index } => write!(f, "too few descriptors are free, the next being {index}"),
        }
    }
}

impl core::error::Error for RingError {}
