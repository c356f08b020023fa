//! Quota: how much a session may write to disk, its trace and its snapshots together. All live sessions of a user may
//! have a common maximum as well ([`UserDisk`]).
//!
//! When the quota is used up, a session must still record what it has lost. So each session takes
//! [`KEPT_FOR_STATE_BYTES`] of it at its beginning; only its state stream and its metadata use these.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::user_disk::UserDisk;

/// Bytes kept for the state stream and the metadata (joining processes, classes) when events have used up the rest.
pub(crate) const KEPT_FOR_STATE_BYTES: u64 = 64 << 10;
/// Part of that which is kept for the records at a session's end, about losses.
pub(crate) const KEPT_FOR_END_BYTES: u64 = 32 << 10;
/// Smallest quota that leaves room for events.
pub(crate) const DISK_BYTES_MIN: u64 = 256 << 10;

/// Remaining quota, in the session's ledger. All orderings are Relaxed: the number is independent of other data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota<'a> {
    pub(crate) left: &'a AtomicU64,
    /// The place among the user's sessions, and the remainder there of the bytes kept for the session's state.
    pub(crate) user: Option<(&'a UserDisk, &'a AtomicU64)>,
}

/// Takes `bytes` if at least `kept` are left afterwards.
fn take(left: &AtomicU64, bytes: u64, kept: u64) -> bool {
    let take = |left: u64| left.checked_sub(bytes).filter(|left| *left >= kept);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
}

fn give_back(left: &AtomicU64, bytes: u64) {
    let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_add(bytes)));
}

impl Quota<'_> {
    /// Sets the quota of a session that begins. `None`: no limit.
    pub(crate) fn begin(self, bytes_max: Option<u64>) {
        self.left.store(bytes_max.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Takes `bytes` if at least `kept` are left afterwards.
    pub(crate) fn take(&self, bytes: u64, kept: u64) -> bool {
        if !take(self.left, bytes, kept) {
            return false;
        }
        let is_for_state = kept < KEPT_FOR_STATE_BYTES;
        let fits = self
            .user
            .is_none_or(|(user, kept_for_state)| user.take(bytes) || is_for_state && take(kept_for_state, bytes, kept));
        if !fits {
            give_back(self.left, bytes);
        }
        fits
    }

    /// Returns bytes that were not written or have been removed.
    pub(crate) fn give_back(&self, bytes: u64) {
        give_back(self.left, bytes);
        if let Some((user, _)) = self.user {
            user.give_back(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_stay_reserved() {
        let words = [100, 0].map(AtomicU64::new);
        let [quota, endless] = words.each_ref().map(|left| Quota { left, user: None });
        quota.begin(Some(100));
        assert!(quota.take(60, 40) && !quota.take(1, 40) && quota.take(40, 0) && !quota.take(1, 0));
        quota.give_back(50);
        assert!(!quota.take(20, 40) && quota.take(10, 40));
        endless.begin(None);
        assert!(endless.take(1 << 60, KEPT_FOR_STATE_BYTES));
        endless.give_back(u64::MAX);
    }

    #[test]
    fn a_session_has_room_for_its_state_after_all_quotas_are_used() {
        let file = tempfile::tempfile().unwrap();
        let words = [1 << 20, KEPT_FOR_STATE_BYTES].map(AtomicU64::new);
        let [left, kept] = words.each_ref();
        let user_disk = UserDisk::claim_in(file, KEPT_FOR_STATE_BYTES + 100, KEPT_FOR_STATE_BYTES).unwrap();
        let quota = Quota { left, user: Some((&user_disk, kept)) };
        assert!(quota.take(100, KEPT_FOR_STATE_BYTES) && !quota.take(1, KEPT_FOR_STATE_BYTES));
        // A request that one limit refuses does not count against the other.
        assert_eq!(left.load(Ordering::Relaxed), (1 << 20) - 100);
        assert!(quota.take(32 << 10, KEPT_FOR_END_BYTES) && !quota.take(1, KEPT_FOR_END_BYTES));
        assert!(quota.take(32 << 10, 0) && !quota.take(1, 0));
        assert_eq!(user_disk.sum(), KEPT_FOR_STATE_BYTES + 100);
        quota.give_back(50);
        assert!(quota.take(50, KEPT_FOR_STATE_BYTES) && !quota.take(1, KEPT_FOR_STATE_BYTES));
    }
}
