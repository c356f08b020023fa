use core::fmt;

/// What is wrong with a ring, or what its other side did wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingError {
    /// Not a power of two from 1 to 32768 (2.7).
    Size {
        /// The size asked for.
        size: u32,
    },
    /// The region does not begin on a multiple of 64 bytes.
    Alignment {
        /// Where it begins.
        address: usize,
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
    /// A descriptor is chained, indirect, device-writable, or has flags that the specification does not have (2.7.5).
    DescriptorFlags {
        /// The descriptor.
        index: u16,
        /// Its flags.
        value: u16,
    },
    /// `used.idx` is more than the ring's size ahead (2.7.8).
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
    /// The driver has no free descriptor: take used ones first.
    Full {
        /// The descriptor that comes next and is still the device's.
        index: u16,
    },
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Size { size } => write!(f, "a ring cannot have {size} entries: powers of two up to 32768"),
            RingError::Alignment { address } => write!(f, "a ring cannot begin at {address:#x}: multiples of 64"),
            RingError::AvailIndex { index, value } => {
                write!(f, "avail.idx is {value}, more than the ring's size ahead of {index}")
            }
            RingError::AvailId { index, value } => write!(f, "avail entry {index} names descriptor {value}"),
            RingError::DescriptorFlags { index, value } => {
                write!(f, "descriptor {index} has the flags {value:#x}, of which none is accepted")
            }
            RingError::UsedIndex { index, value } => {
                write!(f, "used.idx is {value}, more than the ring's size ahead of {index}")
            }
            RingError::UsedId { index, value } => {
                write!(f, "used element {index} names descriptor {value}, which the device does not have")
            }
            RingError::Full { index } => write!(f, "descriptor {index} is still the device's"),
        }
    }
}

impl core::error::Error for RingError {}
