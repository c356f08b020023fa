//! The parts of a virtqueue.

/// The three parts of a virtqueue (2.6), which need not be contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Area {
    /// The descriptor table (2.7.5), or the ring of a packed queue (2.8.13).
    Descriptor,
    /// The part that the driver writes: the avail ring (2.7.6), or the driver's event suppression structure (2.8.14).
    Driver,
    /// The part that the device writes: the used ring (2.7.8), or the device's event suppression structure (2.8.14).
    Device,
}

impl Area {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Area::Descriptor => "descriptor",
            Area::Driver => "driver's",
            Area::Device => "device's",
        }
    }
}
