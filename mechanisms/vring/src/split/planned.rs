//! A driver that several threads or processes share.

use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use dormouse_abi::txn::{Store, Txn};
use dormouse_abi::vring::RING_SIZE_MAX;

use super::{Layout, contiguous};
use crate::area::Area;
use crate::bus::{Bus, Direct};
use crate::error::RingError;
use crate::need_event;

/// Whether a ring of `size` entries can begin at `base`.
pub(super) fn check(base: *mut u8, size: u32) -> Result<(), RingError> {
    if !size.is_power_of_two() || size > RING_SIZE_MAX {
        return Err(RingError::Size { size });
    }
    if !base.addr().is_multiple_of(64) {
        return Err(RingError::Alignment { address: base.addr() });
    }
    Ok(())
}

/// A driver whose operations are planned as transactions. It is `Copy` and has no private state: all its state is in
/// the shadow word.
#[derive(Debug, Clone, Copy)]
pub struct PlannedDriver {
    bus: Direct,
    layout: Layout,
    published: *mut u64,
}

// SAFETY: the value holds addresses and a size. A driver only loads through them, atomically. The executor of a planned
// transaction has its own `unsafe` obligation.
unsafe impl Send for PlannedDriver {}
// SAFETY: nothing in the value can be changed through a shared reference; a driver only loads through the addresses,
// atomically.
unsafe impl Sync for PlannedDriver {}

impl PlannedDriver {
    /// Creates the driver of the ring of `size` entries at `ring`. `published` is its shadow of `avail.idx`: a 64-bit
    /// word that counts the descriptors written and does not wrap.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Errors
    /// [`RingError::Size`] and [`RingError::Alignment`] (64 bytes for the ring, 8 for the shadow).
    ///
    /// # Safety
    /// The region of [`dormouse_abi::vring::RingLayout::size_bytes`] bytes and the shadow are mapped readable and
    /// writable as long as any copy of the driver or any of its transactions is used, and Rust code accesses them only
    /// atomically.
    pub unsafe fn new(ring: *mut u8, size: u32, published: *mut u64) -> Result<PlannedDriver, RingError> {
        let areas = contiguous(ring, size)?;
        if !published.is_aligned() {
            return Err(RingError::Alignment { address: published.addr() });
        }
        // SAFETY: the caller guarantees that the ring is mapped readable and writable as long as any copy of the driver
        // is used, and accessed only atomically.
        let bus = unsafe { Direct::new(areas) };
        Ok(PlannedDriver { bus, layout: Layout::new(&bus, size)?, published })
    }

    /// Plans to write descriptor number `k` (not wrapping), for a device-readable buffer, and to enter it in the avail
    /// ring, without publishing it (2.7.13.1, 2.7.13.2). Guard: `published == k`.
    ///
    /// The caller must ensure that the descriptor is free: the device has used number `k - size`.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn plan_descriptor(&self, k: u64, addr: u64, len: u32) -> Txn {
        let slot = self.layout.slot(k as u16);
        let last = Store { target: self.published.cast(), value: k.wrapping_add(1), width: 8 };
        let mut txn = Txn::new(self.published, k, last);
        let at = self.layout.descriptor(slot);
        txn.store(self.bus.pointer(Area::Descriptor, at), addr.to_le(), 8);
        // Length, and zero for flags and next.
        txn.store(self.bus.pointer(Area::Descriptor, at + 8), u64::from(len).to_le(), 8);
        txn.store(self.bus.pointer(Area::Driver, self.layout.avail_entry(slot)), u64::from(slot.to_le()), 2);
        txn
    }

    /// Plans to make all descriptors before number `k1` available (2.7.13.3). Guard: `published == k1`, so that
    /// `avail.idx` never goes back. The final store (A) is a release in every executor; it pairs with (B).
    ///
    /// Any driver may plan it again; that changes nothing.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn plan_publish(&self, k1: u64) -> Txn {
        let target = self.bus.pointer(Area::Driver, Layout::INDEX);
        Txn::new(self.published, k1, Store { target, value: u64::from((k1 as u16).to_le()), width: 2 })
    }

    /// Whether the device wants to be woken, after `avail.idx` went from `old` to `new` (2.7.10, 2.7.13.4).
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn needs_kick(&self, old: u16, new: u16) -> bool {
        // (E) pairs with (F): `avail.idx` is stored before the event index is loaded.
        self.bus.fence();
        need_event(self.bus.load(Area::Device, self.layout.avail_event(), Relaxed), new, old)
    }

    /// Returns the number of descriptors that the device has used since the beginning (not wrapping). So many are free
    /// again. A malicious device can name any position in the last 2^16 up to the published one.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn used_count(&self) -> u64 {
        // The shadow is read first: the device cannot have used what was not published then.
        // SAFETY: `new`'s caller guarantees that the shadow is mapped and accessed only atomically; `new` has checked
        // that it is aligned.
        let published = unsafe { AtomicU64::from_ptr(self.published) }.load(Acquire);
        // (D) pairs with (C): everything that the device did to the buffers happened before.
        let used: u16 = self.bus.load(Area::Device, Layout::INDEX, Acquire);
        let pending = (published as u16).wrapping_sub(used);
        published.saturating_sub(pending as u64)
    }
}
