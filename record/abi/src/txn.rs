//! A transaction on the state of one stream: a guard, stores that no reader sees yet, and one final store.
//!
//! `relay` and `vring` *plan* transactions; `percpu` *commits* them, as one rseq critical section, or without rseq by
//! plain stores of the stream's claimant. A transaction that was aborted, or whose writer was killed, has changed
//! nothing visible, because readers reach the plain stores only through the final one.

/// One store. `width` is 2, 4 or 8 bytes; the pointer is aligned to it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Store {
    /// Target address.
    pub target: *mut u8,
    /// Value, of which the low `width` bytes are stored.
    pub value: u64,
    /// Width in bytes.
    pub width: u64,
}

/// Maximum number of plain stores in one transaction.
pub const STORES_MAX: usize = 12;

/// A transaction: guard, plain stores, final store.
#[repr(C)]
#[derive(Debug)]
pub struct Txn {
    /// Address of the 8-byte word that must still hold `expected`.
    pub guard: *const u64,
    /// Value that the guard must hold.
    pub expected: u64,
    /// Final store.
    pub last: Store,
    /// Number of elements of `stores` in use.
    pub store_count: u64,
    /// Plain stores, made in order before the final one.
    pub stores: [Store; STORES_MAX],
}

impl Txn {
    /// Returns a transaction without plain stores.
    pub const fn new(guard: *const u64, expected: u64, last: Store) -> Txn {
        const NONE: Store = Store { target: core::ptr::null_mut(), value: 0, width: 0 };
        Txn { guard, expected, last, store_count: 0, stores: [NONE; STORES_MAX] }
    }

    /// Adds a plain store. A store beyond [`STORES_MAX`] is an error of the planner; it panics in tests and is ignored
    /// otherwise.
    pub fn store(&mut self, target: *mut u8, value: u64, width: u64) {
        debug_assert!((self.store_count as usize) < STORES_MAX);
        if let Some(slot) = self.stores.get_mut(self.store_count as usize) {
            *slot = Store { target, value, width };
            self.store_count += 1;
        }
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Store>() == 24);
    assert!(core::mem::offset_of!(Txn, last) == 16);
    assert!(core::mem::offset_of!(Txn, store_count) == 40);
    assert!(core::mem::offset_of!(Txn, stores) == 48);
};
