use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, Ordering::Release};

use dormouse_abi::txn::{STORES_MAX, Store, Txn};

/// How an attempt to commit a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "only `Done` has changed anything"]
pub enum Commit {
    /// The final store was made.
    Done,
    /// The guard did not hold the expected value: plan again from the current state.
    GuardChanged,
    /// The thread was interrupted or is on another CPU: try again, or plan again for the CPU that it is on.
    Aborted,
}

/// Asserts, in debug builds, that the transaction is well-formed.
#[inline]
pub(crate) fn check(txn: &Txn) {
    debug_assert!(txn.store_count <= STORES_MAX as u64);
    debug_assert!(txn.guard.is_aligned() && is_proper(&txn.last));
    debug_assert!(txn.stores.iter().take(txn.store_count as usize).all(is_proper));
}

fn is_proper(store: &Store) -> bool {
    matches!(store.width, 2 | 4 | 8) && (store.target.addr() as u64).is_multiple_of(store.width)
}

/// # Safety
/// `target` is writable and aligned for `width`, other threads access it only atomically, and `width` is 2, 4 or 8.
#[inline]
unsafe fn store(store: &Store, ordering: Ordering) {
    match store.width {
        8 => {
            // SAFETY: the caller guarantees that `target` is writable, aligned to 8 bytes, and accessed only
            // atomically.
            let target = unsafe { AtomicU64::from_ptr(store.target.cast()) };
            target.store(store.value, ordering);
        }
        4 => {
            // SAFETY: the caller guarantees that `target` is writable, aligned to 4 bytes, and accessed only
            // atomically.
            let target = unsafe { AtomicU32::from_ptr(store.target.cast()) };
            target.store(store.value as u32, ordering);
        }
        _ => {
            // SAFETY: the caller guarantees that `target` is writable, aligned to 2 bytes, and accessed only
            // atomically.
            let target = unsafe { AtomicU16::from_ptr(store.target.cast()) };
            target.store(store.value as u16, ordering);
        }
    }
}

/// Commits a transaction by plain stores, for the only thread that may write the guard and the targets: the claimant of
/// a stream.
///
/// If the claimant is killed at any instruction, it leaves what an aborted section leaves: plain stores that no reader
/// reads. Never returns [`Commit::Aborted`].
///
/// Wait-free. Async-signal-safe only if the handler does not use what the interrupted thread has claimed.
///
/// # Safety
/// * `guard` is readable, and every target is writable for its width and aligned to it, until the call returns.
/// * Every width is 2, 4 or 8.
/// * No other thread writes the guard or the targets during the call, and other threads read them only atomically.
#[inline]
pub unsafe fn apply_exclusive(txn: &Txn) -> Commit {
    check(txn);
    // SAFETY: the caller guarantees that the guard is readable, and that no thread accesses it other than atomically.
    let guard = unsafe { AtomicU64::from_ptr(txn.guard.cast_mut()) };
    // Relaxed: the only writer is the caller, or a previous claimant, whose stores are ordered before the caller's
    // claim.
    if guard.load(Relaxed) != txn.expected {
        return Commit::GuardChanged;
    }
    for plain in txn.stores.iter().take(txn.store_count as usize) {
        // SAFETY: the caller guarantees that targets are writable and aligned for their widths, and accessed only
        // atomically.
        unsafe { store(plain, Relaxed) };
    }
    // (A) pairs with the acquire by which readers load the final word.
    // SAFETY: the caller guarantees that targets are writable and aligned for their widths, and accessed only
    // atomically.
    unsafe { store(&txn.last, Release) };
    Commit::Done
}
