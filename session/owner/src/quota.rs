//! How much a session may write to disk: its trace and the snapshots that are taken of it, together. All live sessions of a user may have a maximum
//! together as well ([`UserDisk`]).
//!
//! Where that is reached, a session still has to say what it has lost. So each takes [`KEPT_FOR_STATE_BYTES`] of it when it begins, which only its state
//! stream and its metadata use.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::user_disk::UserDisk;

/// Kept for the state stream and the metadata when events have used up the rest: who joins, and classes.
pub(crate) const KEPT_FOR_STATE_BYTES: u64 = 64 << 10;
/// Kept of that for what a session says at its end: what was lost.
pub(crate) const KEPT_FOR_END_BYTES: u64 = 32 << 10;
/// The smallest that leaves room for events.
pub(crate) const DISK_BYTES_MIN: u64 = 256 << 10;

/// What is left of it, in the session's ledger. All orderings are Relaxed: the number is all there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota<'a> {
    pub(crate) left: &'a AtomicU64,
    /// The place among the user's sessions, and what is left there of what is kept for the session's state.
    pub(crate) user: Option<(&'a UserDisk, &'a AtomicU64)>,
}

/// Takes so many bytes, if `kept` are left then.
fn take(left: &AtomicU64, bytes: u64, kept: u64) -> bool {
    let take = |left: u64| left.checked_sub(bytes).filter(|left| *left >= kept);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
}

fn give_back(left: &AtomicU64, bytes: u64) {
    let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_add(bytes)));
}

impl Quota<'_> {
    /// Of a session that begins. `None`: as much as there is.
    pub(crate) fn begin(self, bytes_max: Option<u64>) {
        self.left.store(bytes_max.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Takes so many bytes, if `kept` are left then.
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

    /// Gives back what was not written, or is removed.
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
    fn what_is_kept_is_kept() {
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
    fn where_all_sessions_have_used_up_theirs_a_session_still_has_room_for_its_state() {
        let file = tempfile::tempfile().unwrap();
        let words = [1 << 20, KEPT_FOR_STATE_BYTES].map(AtomicU64::new);
        let [left, kept] = words.each_ref();
        let user_disk = UserDisk::claim_in(file, KEPT_FOR_STATE_BYTES + 100, KEPT_FOR_STATE_BYTES).unwrap();
        let quota = Quota { left, user: Some((&user_disk, kept)) };
        assert!(quota.take(100, KEPT_FOR_STATE_BYTES) && !quota.take(1, KEPT_FOR_STATE_BYTES));
        // What was refused for one reason does not count for the other.
        assert_eq!(left.load(Ordering::Relaxed), (1 << 20) - 100);
        assert!(quota.take(32 << 10, KEPT_FOR_END_BYTES) && !quota.take(1, KEPT_FOR_END_BYTES));
        assert!(quota.take(32 << 10, 0) && !quota.take(1, 0));
        assert_eq!(user_disk.sum(), KEPT_FOR_STATE_BYTES + 100);
        quota.give_back(50);
        assert!(quota.take(50, KEPT_FOR_STATE_BYTES) && !quota.take(1, KEPT_FOR_STATE_BYTES));
    }
}
