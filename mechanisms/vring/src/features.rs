//! What both sides have negotiated, and which refinements an experiment can switch off.

use crate::need_event;

/// Feature bits (clause 6) that change how a ring is used. A queue needs no others to be offered or accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// `VIRTIO_F_INDIRECT_DESC`: a descriptor may stand for a table of them (2.7.5.3, 2.8.7).
    pub indirect: bool,
    /// `VIRTIO_F_EVENT_IDX`: each side says at which index it wants to be notified (2.7.10, 2.8.10).
    pub event_idx: bool,
    /// `VIRTIO_F_IN_ORDER`: buffers are used in the order in which they were made available (2.7.9, 2.8.8).
    pub in_order: bool,
}

impl Features {
    /// The bit of `VIRTIO_F_INDIRECT_DESC`.
    pub const INDIRECT: u64 = 1 << 28;
    /// The bit of `VIRTIO_F_EVENT_IDX`.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The bit of `VIRTIO_F_VERSION_1`, without which a queue is a legacy one, which is not implemented here.
    pub const VERSION_1: u64 = 1 << 32;
    /// The bit of `VIRTIO_F_RING_PACKED`.
    pub const PACKED: u64 = 1 << 34;
    /// The bit of `VIRTIO_F_IN_ORDER`.
    pub const IN_ORDER: u64 = 1 << 35;

    /// As negotiated bits.
    pub const fn from_bits(bits: u64) -> Features {
        Features {
            indirect: bits & Features::INDIRECT != 0,
            event_idx: bits & Features::EVENT_IDX != 0,
            in_order: bits & Features::IN_ORDER != 0,
        }
    }

    /// As bits to offer or to accept.
    pub const fn to_bits(self) -> u64 {
        let mut bits = 0;
        if self.indirect {
            bits |= Features::INDIRECT;
        }
        if self.event_idx {
            bits |= Features::EVENT_IDX;
        }
        if self.in_order {
            bits |= Features::IN_ORDER;
        }
        bits
    }
}

/// What has been refined since 2015. Each is a constant of a type, so that a refinement that is off costs nothing. For measurements and tests.
///
/// Batched publishing is not among them: a caller that publishes after each buffer does without. A packed queue has no index of the other
/// side to read, and no free list: only [`Refinement::PREFETCH`] matters to it.
pub trait Refinement: 'static {
    /// Indexes and flags that this side writes are kept in private memory too, and not read back. Without it, a split driver reads
    /// `avail.idx` for each entry and each time it publishes, and `avail.flags` for each buffer that it takes back, as Linux's did before
    /// the change of Srinivas (2015, `drivers/virtio/virtio_ring.c`).
    const SHADOW: bool;
    /// The index that the other side writes is read only when everything that was last seen is done, not each time.
    const CACHED_PEER: bool;
    /// Free descriptors are listed in private memory, rather than linked through their `next`. Without it, a peer that overwrites
    /// descriptors gives the driver a wrong list, though never one that leaves the ring. A split driver in order needs
    /// no list.
    const PRIVATE_FREE_LIST: bool;
    /// Lines are prefetched before they are read, where the other side is done with them. Where the other side has only read them, several are
    /// taken back together before they are written.
    const PREFETCH: bool;

    /// Whether the step from `old` to `new` passed `event`.
    #[doc(hidden)]
    #[inline(always)]
    fn need_event(event: u16, new: u16, old: u16) -> bool {
        need_event(event, new, old)
    }
}

macro_rules! refinement {
    ($(#[$attribute:meta])* $name:ident, $shadow:literal, $cached:literal, $private:literal, $prefetch:literal) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $name;

        impl Refinement for $name {
            const SHADOW: bool = $shadow;
            const CACHED_PEER: bool = $cached;
            const PRIVATE_FREE_LIST: bool = $private;
            const PREFETCH: bool = $prefetch;
        }
    };
}

refinement!(
    /// All refinements: the default.
    Refined,
    true,
    true,
    true,
    true
);
refinement!(
    /// As [`Refined`], but indexes and flags are read back.
    RefinedUnshadowed,
    false,
    true,
    true,
    true
);
refinement!(
    /// Shadow and cached index, with free descriptors linked in shared memory, and nothing prefetched.
    Cached,
    true,
    true,
    false,
    false
);
refinement!(
    /// As [`Cached`], but indexes and flags are read back.
    CachedUnshadowed,
    false,
    true,
    false,
    false
);
refinement!(
    /// What the change of Srinivas (2015) made of the ring: the shadow alone.
    Shadowed,
    true,
    false,
    false,
    false
);
refinement!(
    /// What that change began with.
    Unshadowed,
    false,
    false,
    false,
    false
);

/// A 16-bit number in a word of 32 bits. Compilers widen 16-bit loads where they can. A load that is wider than the store before it
/// is not forwarded: it waits until that store, and all before it, have reached the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wide(u32);

impl Wide {
    #[inline(always)]
    pub(crate) const fn new(value: u16) -> Wide {
        Wide(value as u32)
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
