//! Features that both sides have negotiated.

/// Feature bits (clause 6) that change how a ring is used. A queue needs no other feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// `VIRTIO_F_INDIRECT_DESC`: a descriptor may refer to a table of descriptors (2.7.5.3, 2.8.7).
    pub indirect: bool,
    /// `VIRTIO_F_EVENT_IDX`: each side says at which index it wants to be notified (2.7.10, 2.8.10).
    pub event_idx: bool,
    /// `VIRTIO_F_IN_ORDER`: buffers are used in the order in which they were made available (2.7.9, 2.8.8).
    pub in_order: bool,
}

impl Features {
    /// Bit of `VIRTIO_F_INDIRECT_DESC`.
    pub const INDIRECT: u64 = 1 << 28;
    /// Bit of `VIRTIO_F_EVENT_IDX`.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Bit of `VIRTIO_F_VERSION_1`. A queue without it is a legacy one, which is not implemented.
    pub const VERSION_1: u64 = 1 << 32;
    /// Bit of `VIRTIO_F_RING_PACKED`.
    pub const PACKED: u64 = 1 << 34;
    /// Bit of `VIRTIO_F_IN_ORDER`.
    pub const IN_ORDER: u64 = 1 << 35;

    /// Extracts the features from negotiated bits.
    pub const fn from_bits(bits: u64) -> Features {
        Features {
            indirect: bits & Features::INDIRECT != 0,
            event_idx: bits & Features::EVENT_IDX != 0,
            in_order: bits & Features::IN_ORDER != 0,
        }
    }

    /// Returns the bits to offer or to accept.
    pub const fn to_bits(self) -> u64 {
        let indirect = self.indirect as u64 * Features::INDIRECT;
        let event_idx = self.event_idx as u64 * Features::EVENT_IDX;
        let in_order = self.in_order as u64 * Features::IN_ORDER;
        indirect | event_idx | in_order
    }
}

/// A 16-bit number in a word of 32 bits. Compilers widen 16-bit loads if they can. The CPU does not forward a store to
/// a load that is wider than the store: the load waits until that store, and all before it, have reached the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WideU16(u32);

impl WideU16 {
    #[inline(always)]
    pub(crate) const fn new(value: u16) -> WideU16 {
        WideU16(value as u32)
    }

    #[inline(always)]
    pub(crate) const fn get(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, value: u16) {
        self.0 = value as u32;
    }
}
