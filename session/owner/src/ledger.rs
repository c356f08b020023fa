//! Progress of an owner, for the next one if this one is killed: memory that only owners of the session have.
//!
//! # Method
//! ```text
//!   page k of a stream is offered
//!     its packet is appended to the stream's file
//!     its element is written to the used ring, and not published
//!     commit: length and contents of the file, k + 1 pages taken, losses ── one store publishes all of it
//!     the used index is stored: the page belongs to the programs again
//! ```
//! So everything that a ledger states about a file is on disk, and a page whose packet is not in the ledger is still in
//! the memory. An owner that takes the session up cuts each file to its length in the ledger, continues with page
//! number `taken`, and stores the used index again. No packet is written twice and none is missing, at whatever
//! instruction the previous owner was killed. The end of a session commits nothing, so it can be repeated any number of
//! times.
//!
//! # Ordering
//! A [`Commit`] has two places. The invalid one is written, and then the count, whose parity says which of them is
//! valid: (K) Release pairs with (K'), Acquire. Only one thread at a time commits. Other words are Relaxed: each is
//! independent.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_abi::page::STREAM_EVENTS;
use dormouse_abi::register::PROCESS_COUNT;
use dormouse_abi::session::{Geometry, LOST_CLASS_COUNT, STREAM_COUNT_MAX, SessionHeader, SessionLayout};
use dormouse_control::Counts;
use dormouse_format::{Cause, Losses, StreamTotals};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::error::Error;
use crate::points::point;

/// Words that are committed together or not at all.
#[repr(C)]
#[derive(Debug)]
struct Commit<const N: usize> {
    /// Number of commits so far.
    count: AtomicU64,
    places: [[AtomicU64; N]; 2],
}

impl<const N: usize> Commit<N> {
    fn store(&self, words: [u64; N]) {
        let next = self.count.load(Ordering::Relaxed) + 1;
        let place = &self.places[next as usize % 2];
        place.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        point();
        // (K) pairs with (K').
        self.count.store(next, Ordering::Release);
        point();
    }

    fn load(&self) -> [u64; N] {
        // (K') pairs with (K).
        let count = self.count.load(Ordering::Acquire);
        self.places[count as usize % 2].each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

/// Progress of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Length of its file, in bytes.
    pub(crate) len: u64,
    /// `timestamp_begin` of the first packet.
    pub(crate) begin: u64,
    pub(crate) packets: u64,
    pub(crate) events: u64,
    pub(crate) events_discarded: u64,
    /// Number of pages taken from the ring and processed.
    pub(crate) taken: u64,
    /// Whether the ring is ignored.
    pub(crate) is_refused: bool,
}

const ENTRY_WORDS: usize = 8;

impl Entry {
    fn to_words(self) -> [u64; ENTRY_WORDS] {
        let Entry { len, begin, packets, events, events_discarded, taken, is_refused } = self;
        [len, begin, packets, events, events_discarded, taken, is_refused.into(), 0]
    }

    fn from_words([len, begin, packets, events, events_discarded, taken, is_refused, _]: [u64; ENTRY_WORDS]) -> Entry {
        Entry { len, begin, packets, events, events_discarded, taken, is_refused: is_refused != 0 }
    }

    /// Returns the totals of the file.
    pub(crate) fn totals(&self, stream: u32) -> StreamTotals {
        let Entry { packets, events, events_discarded, .. } = *self;
        StreamTotals { stream_id: STREAM_EVENTS, stream_instance_id: stream, events, packets, events_discarded }
    }
}

/// Result of draining so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) is_full: bool,
    pub(crate) losses: Losses,
    pub(crate) not_kept: NotKept,
}

/// Numbers of events that no tail has kept, by the index of the class ([`dormouse_abi::session::lost_class_index`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotKept(pub(crate) [u64; LOST_CLASS_COUNT]);

impl Default for NotKept {
    fn default() -> NotKept {
        NotKept([0; LOST_CLASS_COUNT])
    }
}

impl NotKept {
    /// Returns the number of all of them.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Words of the stream's number, its entry, and the tally.
const DRAINED_WORDS: usize = 1 + ENTRY_WORDS + TALLY_WORDS;
const TALLY_WORDS: usize = 3 + Cause::COUNT + LOST_CLASS_COUNT;

/// Contents of the trace beside its streams of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TraceContents {
    /// Length of the metadata and of the state stream, in bytes.
    pub(crate) metadata_len: u64,
    pub(crate) state_len: u64,
    /// Number of processes that have joined.
    pub(crate) joined: u64,
    /// The last of them: its number, and the identity that tells it from others that have had this number.
    pub(crate) process: (u16, u64),
}

#[repr(C)]
#[derive(Debug)]
struct Head {
    /// Only the layout is used: the one in the session's memory may have been overwritten.
    header: SessionHeader,
    clock: [AtomicU64; 5],
    metadata_inode: AtomicU64,
    may_be_stopped: AtomicU64,
    owners: AtomicU64,
    is_ending: AtomicU64,
    is_stopped: AtomicU64,
    attached: AtomicU64,
    command: AtomicU64,
    command_start: AtomicU64,
    disk_bytes_max: AtomicU64,
    quota_left: AtomicU64,
    disk_bytes_user_max: AtomicU64,
    user_kept_left: AtomicU64,
    snapshots_bytes: AtomicU64,
    budget_page_count: AtomicU64,
    ended_amid_write: AtomicU64,
    late: AtomicU64,
    memory_gone: AtomicU64,
    refused: [AtomicU64; Cause::COUNT],
    counts: Counts,
    written: Commit<5>,
    drained: Commit<DRAINED_WORDS>,
    processes: [AtomicU64; PROCESS_COUNT],
}

/// A session's ledger. All zeroes is the ledger of a session in which nothing has happened.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: OwnedFd,
    map: MmapRaw,
}

/// Returns the identity that tells a process from others that have had its number.
pub(crate) fn identity_of(joined_at: u64) -> u64 {
    // Zero means no process.
    joined_at | 1
}

/// Defines how independent words are read and written.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident, $set:ident;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(&self) -> u64 {
            self.head().$name.load(Ordering::Relaxed)
        }

        /// Sets it.
        pub(crate) fn $set(&self, value: u64) {
            self.head().$name.store(value, Ordering::Relaxed);
        }
    )*};
}

/// Beginning of the reason why there can be no session.
const NEEDS_MEMORY_FILES: &str = "a session needs sealed memory files (Linux 3.17 or later)";

impl Ledger {
    /// Creates the ledger of a session with this layout.
    pub(crate) fn create(layout: SessionLayout) -> Result<Ledger, Error> {
        let size_bytes = size_of::<Head>() + layout.stream_count as usize * size_of::<[u64; ENTRY_WORDS]>();
        let failed = |error: Errno| Error::from(format!("cannot make the session's ledger: {error}"));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("dormouse-ledger", flags).map_err(|error| match error {
            Errno::NOSYS => Error::from(format!("{NEEDS_MEMORY_FILES}, and memfd_create(2) is missing or forbidden")),
            error => failed(error),
        })?;
        rustix::fs::ftruncate(&file, size_bytes as u64).map_err(failed)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(|error| match error {
            Errno::INVAL => {
                Error::from(format!("{NEEDS_MEMORY_FILES}, and fcntl(F_ADD_SEALS) is missing or forbidden"))
            }
            error => failed(error),
        })?;
        let ledger = Ledger::map(file)?;
        // SAFETY: the mapping begins with room for a head, which begins with a header; no other code has it yet.
        unsafe { ledger.map.as_mut_ptr().cast::<SessionHeader>().write(SessionHeader::new(layout, 0)) };
        Ok(ledger)
    }

    /// Maps a ledger that another process has made.
    pub(crate) fn inherited(file: OwnedFd) -> Result<Ledger, Error> {
        let ledger = Ledger::map(file)?;
        let streams = ledger.layout().stream_count;
        let is_whole = streams <= STREAM_COUNT_MAX && ledger.streams().len() == streams as usize;
        if !is_whole {
            return Err("this is no session's ledger".to_string().into());
        }
        // The owner that committed may have been killed before it applied the commit.
        let (stream, entry) = ledger.last_drained();
        ledger.apply(stream, entry);
        ledger.note(ledger.written());
        Ok(ledger)
    }

    fn map(file: OwnedFd) -> Result<Ledger, Error> {
        let failed = |error: std::io::Error| Error::from(format!("cannot map the session's ledger: {error}"));
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let map = MmapOptions::new().map_raw(std::os::fd::AsRawFd::as_raw_fd(&file)).map_err(failed)?;
        if !sealed || map.len() < size_of::<Head>() {
            return Err("this is no session's ledger".to_string().into());
        }
        Ok(Ledger { file, map })
    }

    fn head(&self) -> &Head {
        // SAFETY: `map` has checked that the mapping is at least as long as a head, and a seal keeps it so. It is
        // aligned to an `os_page`. Apart from the header, which is not written after its creation, a head consists of
        // atomics, and all bytes are valid.
        unsafe { &*self.map.as_ptr().cast::<Head>() }
    }

    fn streams(&self) -> &[[AtomicU64; ENTRY_WORDS]] {
        let count = (self.map.len() - size_of::<Head>()) / size_of::<[u64; ENTRY_WORDS]>();
        let begin = self.map.as_ptr().wrapping_add(size_of::<Head>()).cast();
        // SAFETY: this many entries fit after the head, whose size is a multiple of its alignment. Entries are atomics,
        // and all bytes are valid.
        unsafe { std::slice::from_raw_parts(begin, count) }
    }

    /// Returns the ledger's file, for a process that inherits it.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the layout of the session as it was created.
    pub(crate) fn layout(&self) -> SessionLayout {
        self.head().header.layout()
    }

    /// Returns the geometry of that layout.
    pub(crate) fn geometry(&self) -> Result<Geometry, &'static str> {
        let layout = self.layout();
        Geometry::from_layout(&layout, layout.size_bytes as usize)
    }

    words! {
        /// Inode of the growing metadata: at the session's end, another file replaces it.
        metadata_inode, set_metadata_inode;
        /// Whether a tool may end the session.
        may_be_stopped, set_may_be_stopped;
        /// Whether the session's end has begun.
        is_ending, set_ending;
        /// Whether programs have been told to stop.
        is_stopped, set_stopped;
        /// Number of armed events when the program to be attached joined, plus one; 0 if it has not.
        attached, set_attached;
        /// The command's process id; 0 if there is none.
        command, set_command;
        /// Start time of the command, in the kernel's clock ticks.
        command_start, set_command_start;
        /// Bytes that trace and snapshots may take; 0 for any number.
        disk_bytes_max, set_disk_bytes_max;
        /// Bytes that all sessions of the user may take together; 0 for any number.
        disk_bytes_user_max, set_disk_bytes_user_max;
        /// Pages of the budget.
        budget_page_count, set_budget_page_count;
        /// Units of 4 KiB of the memory that were found to be gone.
        memory_gone, set_memory_gone;
    }

    /// See [`crate::clock::Clock`].
    pub(crate) fn clock(&self) -> [u64; 5] {
        self.head().clock.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Sets it.
    pub(crate) fn set_clock(&self, words: [u64; 5]) {
        self.head().clock.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
    }

    /// Counts an owner that begins.
    pub(crate) fn count_owner(&self) {
        self.head().owners.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often an owner has replaced one that had ended.
    pub(crate) fn restarts(&self) -> u64 {
        self.head().owners.load(Ordering::Relaxed).saturating_sub(1)
    }

    /// Returns a number that changes whenever an owner makes progress.
    pub(crate) fn progress(&self) -> u64 {
        let Head { written, drained, .. } = self.head();
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        count(&written.count).wrapping_add(count(&drained.count))
    }

    /// Returns the count of threads that owners have found to have ended in the middle of a write.
    pub(crate) fn ended_amid_write(&self) -> &AtomicU64 {
        &self.head().ended_amid_write
    }

    /// Returns the count of processes that were let in and no longer existed.
    pub(crate) fn late(&self) -> &AtomicU64 {
        &self.head().late
    }

    /// Returns the remaining bytes that may be written to disk.
    pub(crate) fn quota_left(&self) -> &AtomicU64 {
        &self.head().quota_left
    }

    /// Returns the remaining bytes of the user's disk that are kept for the state stream and the metadata.
    pub(crate) fn user_kept_left(&self) -> &AtomicU64 {
        &self.head().user_kept_left
    }

    /// Adds bytes of a snapshot.
    pub(crate) fn add_snapshot_bytes(&self, bytes: u64) {
        self.head().snapshots_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes on disk: `written` bytes of metadata and state, plus streams and snapshots.
    pub(crate) fn used_of_disk(&self, written: u64) -> u64 {
        let streams: u64 = (0..self.streams().len() as u32).map(|stream| self.entry(stream).len).sum();
        written.saturating_add(streams).saturating_add(self.head().snapshots_bytes.load(Ordering::Relaxed))
    }

    /// Returns the bytes that may still be written to disk if `used` are. `None`: any number.
    pub(crate) fn left_of_disk(&self, used: u64) -> Option<u64> {
        Some(self.disk_bytes_max()).filter(|max| *max != 0).map(|max| max.saturating_sub(used))
    }

    /// Returns the counts of the servers.
    pub(crate) fn counts(&self) -> &Counts {
        &self.head().counts
    }

    /// Counts refusals.
    pub(crate) fn add_refused(&self, cause: Cause, count: u64) {
        self.head().refused[cause as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the count of refusals, by cause.
    pub(crate) fn refused(&self) -> Losses {
        let mut losses = Losses::default();
        let counts = self.head().refused.each_ref().map(|count| count.load(Ordering::Relaxed));
        Cause::all().into_iter().zip(counts).for_each(|(cause, count)| losses.add(cause, count));
        losses
    }

    /// Returns the contents of the trace beside its streams of events.
    pub(crate) fn written(&self) -> TraceContents {
        let [metadata_len, state_len, joined, number, identity] = self.head().written.load();
        TraceContents { metadata_len, state_len, joined, process: (number as u16, identity) }
    }

    /// Commits the contents of the trace. Only one thread at a time may call it.
    pub(crate) fn commit_written(&self, written: TraceContents) {
        let TraceContents { metadata_len, state_len, joined, process: (number, identity) } = written;
        self.head().written.store([metadata_len, state_len, joined, number.into(), identity]);
        self.note(written);
    }

    fn note(&self, TraceContents { process: (number, identity), .. }: TraceContents) {
        if let Some(place) = self.head().processes.get(usize::from(number)) {
            place.store(identity, Ordering::Relaxed);
        }
    }

    /// Whether the process that has this number and joined at this time has been noted in the trace.
    pub(crate) fn is_noted(&self, number: u16, joined_at: u64) -> bool {
        let known = self.head().processes.get(usize::from(number));
        known.is_some_and(|known| known.load(Ordering::Relaxed) == identity_of(joined_at))
    }

    fn last_drained(&self) -> (u32, Entry) {
        let [stream, rest @ ..] = self.head().drained.load();
        (stream as u32, Entry::from_words(*rest.first_chunk().unwrap_or(&[0; ENTRY_WORDS])))
    }

    fn apply(&self, stream: u32, entry: Entry) {
        // There is no entry before the first commit.
        if self.head().drained.count.load(Ordering::Relaxed) > 0
            && let Some(place) = self.streams().get(stream as usize)
        {
            place.iter().zip(entry.to_words()).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        }
    }

    /// Returns the progress of a stream.
    pub(crate) fn entry(&self, stream: u32) -> Entry {
        let words = self.streams().get(stream as usize);
        words.map_or_else(Entry::default, |words| {
            Entry::from_words(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
        })
    }

    /// Returns the result of draining.
    pub(crate) fn tally(&self) -> Tally {
        let words = self.head().drained.load();
        let [events, bytes, is_full, rest @ ..] = words.last_chunk::<TALLY_WORDS>().unwrap_or(&[0; _]);
        let mut losses = Losses::default();
        Cause::all().into_iter().zip(rest).for_each(|(cause, count)| losses.add(cause, *count));
        let not_kept = NotKept(*rest.last_chunk().unwrap_or(&[0; _]));
        Tally { events: *events, bytes: *bytes, is_full: *is_full != 0, losses, not_kept }
    }

    /// Commits the result for a stream's page. Only one thread at a time may call it.
    pub(crate) fn commit_drained(&self, stream: u32, entry: Entry, tally: &Tally) {
        let mut words = [0; DRAINED_WORDS];
        let causes = Cause::all().map(|cause| tally.losses.of(cause));
        let counts = [tally.events, tally.bytes, tally.is_full.into()];
        let tally = counts.into_iter().chain(causes).chain(tally.not_kept.0);
        let all = [u64::from(stream)].into_iter().chain(entry.to_words()).chain(tally);
        words.iter_mut().zip(all).for_each(|(place, word)| *place = word);
        self.head().drained.store(words);
        self.apply(stream, entry);
    }
}

#[cfg(test)]
mod tests {
    use dormouse_abi::session::CLOCK_MONOTONIC;

    use super::*;
    use crate::memory::setup;
    use crate::options::Options;

    fn ledger() -> Ledger {
        let plan = Options::new(std::path::PathBuf::new()).plan().unwrap();
        Ledger::create(setup(&plan, CLOCK_MONOTONIC, [7; 16]).layout(&plan.geometry)).unwrap()
    }

    fn inherited(ledger: &Ledger) -> Ledger {
        Ledger::inherited(ledger.file().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn the_next_owner_finds_the_last_commit_after_a_kill_at_any_store() {
        let ledger = ledger();
        let mut tally = Tally { events: 1, bytes: 2, is_full: true, ..Tally::default() };
        tally.losses.add(Cause::MemoryGone, 7);
        (tally.not_kept.0[0], tally.not_kept.0[LOST_CLASS_COUNT - 1]) = (8, 9);
        let entry =
            |len| Entry { len, begin: 1, packets: 2, events: 3, events_discarded: 4, taken: 5, is_refused: true };
        ledger.commit_drained(1, entry(10), &tally);
        ledger.commit_drained(1, entry(11), &tally);
        // Writes another commit without its last store: it does not count.
        let Head { drained, .. } = ledger.head();
        drained.places[1].iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        let next = inherited(&ledger);
        assert_eq!((next.entry(1), next.tally()), (entry(11), tally.clone()));
        // The commit with its last store, but without being applied.
        let mut words = [0; DRAINED_WORDS];
        words[..2].copy_from_slice(&[0, 99]);
        drained.store(words);
        let next = inherited(&ledger);
        assert_eq!((next.entry(0).len, next.entry(1)), (99, entry(11)));
        assert_eq!(next.progress(), 3);
    }

    #[test]
    fn a_process_and_its_record_are_committed_together() {
        let ledger = ledger();
        assert!(!ledger.is_noted(7, 0) && !ledger.is_noted(0, 0));
        let written = TraceContents { metadata_len: 1, state_len: 2, joined: 3, process: (7, identity_of(40)) };
        ledger.head().written.store([1, 2, 3, 7, identity_of(40)]);
        assert!(!ledger.is_noted(7, 40));
        let next = inherited(&ledger);
        assert!(next.is_noted(7, 40) && !next.is_noted(7, 90) && !next.is_noted(8, 40));
        assert_eq!(next.written(), written);
    }

    #[test]
    fn invalid_ledgers_are_refused() {
        let memory = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 1 << 20).unwrap();
        assert!(Ledger::inherited(memory).is_err());
    }
}
