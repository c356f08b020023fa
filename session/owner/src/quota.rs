//! How much a session may write to disk: its trace and the snapshots that are taken of it, together.

use std::sync::atomic::{AtomicU64, Ordering};

/// Kept for the state stream and the metadata when events have used up the rest: who joins, and classes.
pub(crate) const KEPT_FOR_STATE_BYTES: u64 = 64 << 10;
/// Kept of that for what a session says at its end: what was lost.
pub(crate) const KEPT_FOR_END_BYTES: u64 = 32 << 10;
/// The smallest that leaves room for events.
pub(crate) const DISK_BYTES_MIN: u64 = 256 << 10;

/// What is left of it, in the session's ledger. All orderings are Relaxed: the number is all there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota<'a>(pub(crate) &'a AtomicU64);

impl Quota<'_> {
    /// Of a session that begins. `None`: as much as there is.
    pub(crate) fn begin(self, bytes_max: Option<u64>) {
        self.0.store(bytes_max.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Takes so many bytes, if `kept` are left then.
    pub(crate) fn take(&self, bytes: u64, kept: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes).filter(|left| *left >= kept);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives back what was not written, or is removed.
    pub(crate) fn give_back(&self, bytes: u64) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_add(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_kept() {
        let words = [100, 0].map(AtomicU64::new);
        let [quota, endless] = words.each_ref().map(Quota);
        quota.begin(Some(100));
        assert!(quota.take(60, 40) && !quota.take(1, 40) && quota.take(40, 0) && !quota.take(1, 0));
        quota.give_back(50);
        assert!(!quota.take(20, 40) && quota.take(10, 40));
        endless.begin(None);
        assert!(endless.take(1 << 60, KEPT_FOR_STATE_BYTES));
        endless.give_back(u64::MAX);
    }
}
