//! How much a session may write to disk: its trace and the snapshots that are taken of it, together.

use std::sync::atomic::{AtomicU64, Ordering};

/// Kept for the state stream and the metadata when events have used up the rest: who joins, and classes.
pub(crate) const KEPT_FOR_STATE_BYTES: u64 = 64 << 10;
/// Kept of that for what a session says at its end: what was lost.
pub(crate) const KEPT_FOR_END_BYTES: u64 = 32 << 10;
/// The smallest that leaves room for events.
pub(crate) const DISK_BYTES_MIN: u64 = 256 << 10;

/// What is left of it. All orderings are Relaxed: the number is all there is.
#[derive(Debug)]
pub(crate) struct Quota(AtomicU64);

impl Quota {
    /// `None`: as much as there is.
    pub(crate) fn new(bytes_max: Option<u64>) -> Quota {
        Quota(AtomicU64::new(bytes_max.unwrap_or(u64::MAX)))
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
        let quota = Quota::new(Some(100));
        assert!(quota.take(60, 40) && !quota.take(1, 40) && quota.take(40, 0) && !quota.take(1, 0));
        quota.give_back(50);
        assert!(!quota.take(20, 40) && quota.take(10, 40));
        let endless = Quota::new(None);
        assert!(endless.take(1 << 60, KEPT_FOR_STATE_BYTES));
        endless.give_back(u64::MAX);
    }
}
