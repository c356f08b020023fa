use core::fmt;

use crate::area::Area;

/// What is wrong with a ring, or how its other side has violated the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingError {
    /// Not a power of two from 1 to 32768 (2.7); for a packed ring, not a number from 1 to 32768 (2.8.10.1).
    Size {
        /// The size asked for.
        size: u32,
    },
    /// The region does not begin on a multiple of 64 bytes.
    Alignment {
        /// Where it begins.
        address: usize,
    },
    /// An area is too small, or, if `found` is 0, not aligned (2.7, 2.8).
    Area {
        /// Which one.
        area: Area,
        /// Bytes that the ring needs.
        needed: usize,
        /// Bytes that it has.
        found: usize,
    },
    /// A region of the driver's memory overlaps another, or ends beyond the last address.
    Regions {
        /// Where it begins.
        addr: u64,
    },
    /// Indirect tables are requested, and `VIRTIO_F_INDIRECT_DESC` was not negotiated.
    IndirectNotNegotiated,
    /// A buffer without segments.
    Empty,
    /// A buffer of more segments than the ring has entries; in a ring, a loop as well (2.7.5.2, 2.8.17).
    TooLong {
        /// Segments; or, for a loop, how many were followed.
        segments: usize,
    },
    /// A buffer of more than 2^32 bytes (2.7.5.2, 2.8.17).
    TotalLength,
    /// A segment to be read comes after one to be written (2.7.4.2, 2.8.17).
    Order {
        /// The descriptor, in its table or ring.
        index: u16,
    },
    /// `next` names no descriptor (2.7.5).
    NextIndex {
        /// The descriptor, in its table or ring.
        index: u16,
        /// Its `next`.
        value: u16,
    },
    /// An indirect table that is empty, that is no multiple of 16 bytes, or that is not in the driver's memory (2.7.5.3.1, 2.8.19).
    IndirectTable {
        /// The descriptor that names it.
        index: u16,
        /// Where it is said to be.
        addr: u64,
        /// Its bytes.
        len: u32,
    },
    /// The buffer goes on in a descriptor of a packed ring that is not available (2.8.21.1).
    NotAvailable {
        /// The descriptor.
        index: u16,
    },
    /// A buffer of a packed ring whose id is not below the ring's size.
    BufferId {
        /// Its first descriptor.
        index: u16,
        /// Its id.
        value: u16,
    },
    /// `avail.idx` is more than the ring's size ahead (2.7.13.3).
    AvailIndex {
        /// Where the device is.
        index: u16,
        /// What `avail.idx` says.
        value: u16,
    },
    /// An entry of the avail ring is no descriptor (2.7.6).
    AvailId {
        /// The entry's index.
        index: u16,
        /// What it holds.
        value: u16,
    },
    /// A descriptor has flags that are unknown, not negotiated, or of a kind of buffer that is not accepted here (2.7.5).
    DescriptorFlags {
        /// The descriptor.
        index: u16,
        /// Its flags.
        value: u16,
    },
    /// `used.idx` is further ahead than the device has chains (2.7.8).
    UsedIndex {
        /// Where the driver is.
        index: u16,
        /// What `used.idx` says.
        value: u16,
    },
    /// An element of the used ring names no descriptor that the device has (2.7.8).
    UsedId {
        /// The element's index.
        index: u16,
        /// What it names.
        value: u32,
    },
    /// The driver has no free descriptor, or too few: take used ones first.
    Full {
        /// The descriptor that comes next.
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
