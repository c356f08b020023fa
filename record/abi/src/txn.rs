//! A transaction on the state of one stream: a guard, stores that nobody reads yet, and one final store.
//!
//! `relay` and `vring` *plan* transactions; `percpu` *commits* them, as one rseq critical section, or without
//! rseq by plain stores of the stream's claimant. A transaction that was aborted, or whose writer was killed, has changed nothing
//! that anybody reads, because readers reach the plain stores only through the final one.

/// One store. `width` is 2, 4 or 8 bytes; the pointer is aligned to it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Store {
    /// The address.
    pub target: *mut u8,
    /// The value: its low `width` bytes are stored.
    pub value: u64,
    /// Width in bytes.
    pub width: u64,
}

/// Most plain stores in one transaction.
pub const STORES_MAX: usize = 12;

/// Guard, plain stores, final store.
#[repr(C)]
#[derive(Debug)]
pub struct Txn {
    /// The 8-byte word that must still hold `expected`.
    pub guard: *const u64,
    /// The value that it must hold.
    pub expected: u64,
    /// The final store.
    pub last: Store,
    /// How many of `stores` are in use.
    pub store_count: u64,
    /// The plain stores, made in order before the final one.
    pub stores: [Store; STORES_MAX],
}

impl Txn {
    /// A transaction without plain stores.
    pub const fn new(guard: *const u64, expected: u64, last: Store) -> Txn {
        const NONE: Store = Store { target: core::ptr::null_mut(), value: 0, width: 0 };
        Txn { guard, expected, last, store_count: 0, stores: [NONE; STORES_MAX] }
    }

    /// Adds a plain store. A store beyond [`STORES_MAX`] is a defect of the planner and panics in tests.
    pub fn store(&mut self, target: *mut u8, value: u64, width: u64) {
        debug_assert!((self.store_count as usize) < STORES_MAX);
        if let Some(slot) = self.stores.get_mut(self.store_count as usize) {
            *slot = Store { target, value, width };
            self.store_count += 1;
        }
    }
}

const _: () = assert!(size_of::<Store>() == 24);
const _: () = assert!(core::mem::offset_of!(Txn, last) == 16);
const _: () = assert!(core::mem::offset_of!(Txn, store_count) == 40);
const _: () = assert!(core::mem::offset_of!(Txn, stores) == 48);
