//! Limit of what all live sessions of a user may write to disk together: a file in the user's socket directory, in
//! which each session has a place.
//!
//! ```text
//!   disk:  │ bytes of session 0 │ bytes of session 1 │ … │ bytes of session 1,023 │
//! ```
//! A session's owner locks its place (fcntl_locking(2), open file description locks) and writes into it how many bytes
//! its session has on disk. When the owner ends, in whatever way, the kernel unlocks the place; the number in an
//! unlocked place does not count. So it is not necessary to find out which owners are alive, and a process in another
//! PID namespace is not a special case.
//!
//! # Trust
//! All programs of the user can write to the file. Only numbers are read from it. A forged number or lock can cause
//! events, snapshots and new sessions to be refused, or too many bytes to be written until the place's session writes
//! next. The file is not mapped: a truncated one reads as zeroes.
//!
//! # Limits
//! Each session adds up all places, then writes its own. So sessions that do this at the same moment may together
//! exceed the maximum, by one packet each. The place of an owner that has ended counts until it is set to zero, by a
//! session that finds no room otherwise or by the next one that takes the place. A session that adds up between the
//! lock and the write of the latter counts the old number once more, and may be refused.
//!
//! # Cost
//! A read of 8 KiB and a write of 8 bytes for each packet, if there is a maximum.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse_control::user_file;

use crate::error::Error;

/// Maximum number of sessions at once.
const PLACE_COUNT: usize = 1_024;
/// Size of a place in bytes.
const PLACE_BYTES: usize = size_of::<u64>();

/// A session's place.
#[derive(Debug)]
pub(crate) struct UserDisk {
    file: File,
    index: usize,
    pub(crate) bytes_max: u64,
    /// The number that this session has written to its place; another process may have overwritten it there.
    own: Mutex<u64>,
}

impl UserDisk {
    /// Takes a place in the calling user's file, for a session that has `bytes` on disk already. They count whatever
    /// the maximum is.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn claim(bytes_max: u64, bytes: u64) -> Result<UserDisk, Error> {
        let failed = |text: String| Error::from(format!("cannot keep --disk-max-user: {text}"));
        let (file, path) =
            user_file("disk", (PLACE_COUNT * PLACE_BYTES) as u64).map_err(|error| failed(error.to_string()))?;
        UserDisk::claim_in(file, bytes_max, bytes).map_err(|what| failed(format!("{}: {what}", path.display())))
    }

    /// Takes a place in an open file.
    pub(crate) fn claim_in(file: File, bytes_max: u64, bytes: u64) -> Result<UserDisk, String> {
        let Some(index) = (0..PLACE_COUNT).find(|index| lock(&file, *index, libc::F_WRLCK)) else {
            return Err(format!("all places for {PLACE_COUNT} sessions are locked; end some, or leave the option out"));
        };
        let user_disk = UserDisk { file, index, bytes_max, own: Mutex::new(bytes) };
        if user_disk.write(index, bytes) { Ok(user_disk) } else { Err("it cannot be written; free space".into()) }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` if they are left.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let mut own = self.lock();
        let fresh = own.saturating_add(bytes);
        let fits = |others: Vec<u64>| others.into_iter().fold(fresh, u64::saturating_add) <= self.bytes_max;
        let is_free = fits(self.others()) || {
            self.clear_unlocked();
            fits(self.others())
        };
        // If there is no room the place is written too: another process may have written there.
        let bytes = if is_free { fresh } else { *own };
        let is_written = self.write(self.index, bytes);
        if is_written {
            *own = bytes;
        }
        is_free && is_written
    }

    /// Returns bytes that were not written or have been removed.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut own = self.lock();
        *own = own.saturating_sub(bytes);
        // If the place cannot be written, the next successful write corrects it.
        self.write(self.index, *own);
    }

    /// Returns the bytes of all live sessions.
    pub(crate) fn sum(&self) -> u64 {
        let own = self.lock();
        self.clear_unlocked();
        self.others().into_iter().fold(*own, u64::saturating_add)
    }

    /// Returns the numbers of all places except the own one, which is 0. Places after the file's end are zero.
    fn others(&self) -> Vec<u64> {
        let mut bytes = [0; PLACE_COUNT * PLACE_BYTES];
        // If the file cannot be read, there is no room.
        if self.file.read_at(&mut bytes, 0).is_err() {
            return vec![u64::MAX];
        }
        let mut places: Vec<u64> = bytes.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        places[self.index] = 0;
        places
    }

    /// Sets places to zero whose owners have ended.
    fn clear_unlocked(&self) {
        let used = self.others().into_iter().enumerate().filter(|(_, bytes)| *bytes != 0);
        for (index, _) in used.filter(|(index, _)| lock(&self.file, *index, libc::F_WRLCK)) {
            self.write(index, 0);
            lock(&self.file, index, libc::F_UNLCK);
        }
    }

    fn write(&self, index: usize, bytes: u64) -> bool {
        self.file.write_all_at(&bytes.to_ne_bytes(), (index * PLACE_BYTES) as u64).is_ok()
    }
}

impl Drop for UserDisk {
    /// Closing the file unlocks the place.
    fn drop(&mut self) {
        self.write(self.index, 0);
    }
}

/// Locks or unlocks a place, for this opening of the file. Returns false if another opening has locked it. Does not
/// block.
fn lock(file: &File, index: usize, kind: i32) -> bool {
    let [start, len] = [index * PLACE_BYTES, PLACE_BYTES].map(|bytes| bytes as libc::off_t);
    let (kind, whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    let range = libc::flock { l_type: kind, l_whence: whence, l_start: start, l_len: len, l_pid: 0 };
    // SAFETY: the descriptor is open, and fcntl(2) only reads the range, which is alive, for this operation.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens the file as another process would, and takes a place.
    fn claim(place: &tempfile::NamedTempFile, bytes_max: u64, bytes: u64) -> Result<UserDisk, String> {
        UserDisk::claim_in(place.reopen().unwrap(), bytes_max, bytes)
    }

    #[test]
    fn all_sessions_together_stay_below_the_maximum() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [one, two] = [10, 0].map(|bytes| claim(&file, 100, bytes).unwrap());
        assert_eq!((one.index, two.index), (0, 1));
        assert!(one.take(40) && two.take(50) && !one.take(1) && !two.take(1));
        two.give_back(20);
        assert!(!one.take(21) && one.take(20));
        assert_eq!((one.sum(), two.sum()), (100, 100));
        // Each session has its own maximum, for the same sum.
        let three = claim(&file, 130, 0).unwrap();
        assert!(three.take(30) && !three.take(1));
        drop(one);
        assert!(three.take(70) && !two.take(1));
    }

    #[test]
    fn the_entry_of_an_ended_owner_no_longer_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [first, second] = [100, 0].map(|bytes| claim(&file, 100, bytes).unwrap());
        assert!(!second.take(1));
        // A process that is killed closes its files, and does nothing else.
        let UserDisk { file: killed, .. } = &*std::mem::ManuallyDrop::new(first);
        // SAFETY: the descriptor belongs to the file that is wrapped in `ManuallyDrop` and never dropped, so it is
        // closed only here.
        drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(killed.as_raw_fd()) });
        assert_eq!(file.as_file().metadata().unwrap().len(), 2 * PLACE_BYTES as u64);
        assert!(second.take(100));
        // The next session gets its place.
        let third = claim(&file, 200, 7).unwrap();
        assert_eq!((third.index, third.sum()), (0, 107));
    }

    #[test]
    fn a_full_table_is_reported() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let holder = file.reopen().unwrap();
        assert!((0..PLACE_COUNT).all(|index| lock(&holder, index, libc::F_WRLCK)));
        assert!(claim(&file, 100, 0).unwrap_err().contains("are locked"));
        assert!(lock(&holder, PLACE_COUNT - 1, libc::F_UNLCK));
        let last = claim(&file, 100, 0).unwrap();
        assert_eq!(last.index, PLACE_COUNT - 1);
        assert!(last.take(100) && !last.take(1));
        drop(last);
        assert_eq!(claim(&file, 100, 0).unwrap().sum(), 0);
    }

    #[test]
    fn hostile_entries_cause_at_most_refusals() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (one, two) = (claim(&file, 100, 50).unwrap(), claim(&file, 100, 0).unwrap());
        // Writes to places without an owner: they are cleared.
        let scribble = |index: usize, bytes: u64| {
            file.as_file().write_all_at(&bytes.to_ne_bytes(), (index * PLACE_BYTES) as u64).unwrap();
        };
        scribble(PLACE_COUNT - 1, u64::MAX);
        assert!(one.take(10));
        // Writes to a place with an owner: it counts until that owner writes next.
        scribble(two.index, u64::MAX);
        assert!(!one.take(1) && two.take(10) && one.take(1));
        file.as_file().set_len(0).unwrap();
        assert!(one.take(39) && !two.take(1) && !one.take(1));
        assert_eq!((one.sum(), two.sum()), (110, 110));
    }
}
