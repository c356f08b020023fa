use core::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed, Ordering::Release};

use dormouse_abi::txn::{Store, Txn};
use dormouse_abi::vring::{RING_SIZE_MAX, UsedElem};

use crate::driver::SplitDriver;
use crate::error::RingError;
use crate::region::Region;

const BITS: usize = 64;

/// A driver that is one thread's alone, with the shadow and the free descriptors in its own memory. It commits its
/// transactions plainly.
#[derive(Debug)]
pub struct OwnedDriver {
    region: Region,
    published: AtomicU64,
    /// What `avail.idx` holds; the line itself is never read back.
    avail_idx: u16,
    /// Used elements taken.
    taken: u64,
    /// One bit for each descriptor that the device has.
    in_flight: [u64; RING_SIZE_MAX as usize / BITS],
}

// SAFETY: it is the only writer of the driver's side (`new`'s contract), wherever it is moved to.
unsafe impl Send for OwnedDriver {}

impl OwnedDriver {
    /// The driver of an empty ring, see [`crate::init`].
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Errors
    /// [`RingError::Size`] and [`RingError::Alignment`].
    ///
    /// # Safety
    /// The region of [`dormouse_abi::vring::RingLayout::size_bytes`] bytes is mapped readable and writable as long as the
    /// driver lives, Rust code accesses it only atomically, and nobody else writes the driver's side of it.
    pub unsafe fn new(ring: *mut u8, size: u32) -> Result<OwnedDriver, RingError> {
        // SAFETY: the caller's promise.
        let region = unsafe { Region::new(ring, size) }?;
        let in_flight = [0; RING_SIZE_MAX as usize / BITS];
        Ok(OwnedDriver { region, published: AtomicU64::new(0), avail_idx: 0, taken: 0, in_flight })
    }

    /// The planner for the shadow where it is just now.
    fn driver(&self) -> Result<SplitDriver, RingError> {
        // SAFETY: the region is `new`'s caller's promise. The shadow is this value's, which is borrowed while the planner
        // is in use.
        unsafe { SplitDriver::new(self.region.ptr(0), self.region.layout.size, self.published.as_ptr()) }
    }

    /// Writes the next descriptor and returns its id. [`OwnedDriver::publish`] makes it available.
    ///
    /// Wait-free. Not async-signal-safe: the driver is one thread's.
    ///
    /// # Errors
    /// [`RingError::Full`]: the next descriptor is still the device's.
    pub fn add(&mut self, addr: u64, len: u32) -> Result<u16, RingError> {
        let k = self.published.load(Relaxed);
        let id = self.region.slot(k);
        let (word, bit) = (id as usize / BITS, 1 << (id as usize % BITS));
        if self.in_flight[word] & bit != 0 {
            return Err(RingError::Full { index: id });
        }
        let txn = self.driver()?.plan_descriptor(k, addr, len);
        // SAFETY: planned by this driver for its own region and shadow, both writable and its alone.
        unsafe { execute(&txn) };
        self.in_flight[word] |= bit;
        Ok(id)
    }

    /// Makes all that was added available; true: the device wants to be woken now.
    ///
    /// Wait-free. Not async-signal-safe: the driver is one thread's.
    pub fn publish(&mut self) -> bool {
        let k1 = self.published.load(Relaxed);
        let Ok(driver) = self.driver() else { return false };
        let (old, new) = (self.avail_idx, k1 as u16);
        let txn = driver.plan_publish(k1);
        // SAFETY: planned by this driver for its own region and shadow, both writable and its alone.
        unsafe { execute(&txn) };
        self.avail_idx = new;
        driver.needs_kick(old, new)
    }

    /// The next descriptor that the device has used, which is free again; `None` when there is none.
    ///
    /// Wait-free. Not async-signal-safe: the driver is one thread's.
    ///
    /// # Errors
    /// [`RingError::UsedIndex`] (again and again, until the index is possible) and [`RingError::UsedId`] (the element is
    /// skipped): the device lied.
    pub fn take_used(&mut self) -> Result<Option<UsedElem>, RingError> {
        let index = self.taken as u16;
        let elem = match self.driver()?.used(self.taken).next() {
            None => return Ok(None),
            Some(Err(error @ RingError::UsedIndex { .. })) => return Err(error),
            Some(elem) => {
                self.taken += 1;
                elem?
            }
        };
        // Below the ring's size, as `Used` has checked.
        let (word, bit) = (elem.id as usize / BITS, 1 << (elem.id as usize % BITS));
        if self.in_flight[word] & bit == 0 {
            return Err(RingError::UsedId { index, value: elem.id });
        }
        self.in_flight[word] &= !bit;
        Ok(Some(elem))
    }
}

/// Commits a transaction whose guard holds.
///
/// # Safety
/// Planned by a [`SplitDriver`] whose region and shadow are mapped and the caller's alone to write.
pub(crate) unsafe fn execute(txn: &Txn) {
    let plain = txn.stores.iter().take(txn.store_count as usize);
    for store in plain.chain([&txn.last]) {
        // SAFETY: the caller's promise.
        unsafe { execute_store(store) };
    }
}

/// # Safety
/// As [`execute`]. The planner makes stores of 2 and 8 bytes.
pub(crate) unsafe fn execute_store(store: &Store) {
    // Release for all of them: (A), when it is `avail.idx`, pairs with (B).
    if store.width == 8 {
        // SAFETY: the caller's promise; the planner's targets are aligned.
        let target = unsafe { AtomicU64::from_ptr(store.target.cast()) };
        target.store(store.value, Release);
    } else {
        // SAFETY: the caller's promise; the planner's targets are aligned.
        let target = unsafe { AtomicU16::from_ptr(store.target.cast()) };
        target.store(store.value as u16, Release);
    }
}
