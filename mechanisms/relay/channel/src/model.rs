//! Tests in a model checker: writers that share a buffer, a reader, and threads that end before any of their accesses.
//!
//! A page holds two records of one word each. The word is written and read as an atomic, so that the checker knows of it: a
//! reader that finds a frame committed too early reads another number.
//!
//! The checker remembers one access of each atomic, the last. Between a load and a compare-and-swap by the same thread it
//! does not see that another thread's load before them depends on the order. So threads also take turns at a word of their
//! own, by additions, which orders their steps in every way and synchronises nothing.

use std::boxed::Box;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use loom::thread;

use crate::atomic::{AtomicU64, Fault, Ordering, check, dies_before};
use crate::layout::Geometry;
use crate::*;

/// Preemptions in an execution. Overwriting a page takes many steps, and with two takes minutes.
fn preemptions(mode: Mode) -> Option<usize> {
    Some(if mode == Mode::Discard { 2 } else { 1 })
}

/// A channel with one buffer.
struct Bench {
    channel: Channel,
    turn: AtomicU64,
    _memory: Box<[AtomicU64]>,
}

impl Bench {
    fn new(mode: Mode, page_count: usize) -> Arc<Bench> {
        // A frame and a word, twice.
        let page_size_bytes = 4 * 8;
        let options = Options { mode, buffer_count: 1, page_count, page_size_bytes, kept_page_count: 0 };
        let geometry = Geometry::of(&options);
        let memory: Box<[AtomicU64]> = (0..geometry.words()).map(|_| AtomicU64::new(0)).collect();
        let first = NonNull::from(&memory[0]);
        let channel = Channel::initialised(first, geometry, false);
        Arc::new(Bench { channel, turn: AtomicU64::new(0), _memory: memory })
    }

    fn turn(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    /// Reserves, writes and commits a record. False if it is lost.
    fn write(&self, record: u64) -> bool {
        self.turn();
        let Ok(reservation) = self.channel.reserve_in(0, 8) else { return false };
        // A thread that dies does not cancel it.
        let reservation = ManuallyDrop::new(reservation);
        word(&reservation).store(record, Ordering::Relaxed);
        self.turn();
        ManuallyDrop::into_inner(reservation).commit();
        true
    }

    /// Takes a page, and returns its records.
    fn take(&self, writers: Writers) -> Result<Vec<u64>, TakeError> {
        self.turn();
        // SAFETY: threads that have not committed are dead.
        let page = unsafe { self.channel.take_from(0, writers)? };
        let records: Vec<u64> = page.records().map(|record| word(record).load(Ordering::Relaxed)).collect();
        self.turn();
        assert_eq!(records.len() as u64, page.taken().record_count);
        assert!(!records.contains(&0), "a record that was not written");
        Ok(records)
    }

    /// Returns the records that are left once no thread is at work.
    fn rest(&self) -> Vec<u64> {
        self.channel.flush(0);
        std::iter::from_fn(|| self.take(Writers::Ended).ok()).flatten().collect()
    }

    fn counts(&self) -> Counts {
        self.channel.counts(0).unwrap()
    }
}

/// Returns a record's only word.
fn word(record: &[u8]) -> &AtomicU64 {
    // SAFETY: records begin at a multiple of 8, are in the memory of the bench, and tests access them by atomics only.
    unsafe { AtomicU64::from_ptr(record.as_ptr().cast_mut().cast()) }
}

/// Checks that records of each writer (`10 × writer + sequence`) are in order, and none is there twice.
fn check_order(records: &[u64]) {
    let different: BTreeSet<_> = records.iter().collect();
    assert_eq!(different.len(), records.len(), "{records:?}");
    for writer in 1..4 {
        let own: Vec<_> = records.iter().filter(|&record| record / 10 == writer).collect();
        assert!(own.is_sorted(), "{records:?}");
    }
}

fn two_writers(mode: Mode, page_count: usize, fault: Fault) {
    check(preemptions(mode), fault, move || {
        let bench = Bench::new(mode, page_count);
        assert!(bench.write(10) && bench.write(11) && bench.write(12));
        let other = {
            let bench = Arc::clone(&bench);
            thread::spawn(move || u64::from(bench.write(20)) + u64::from(bench.write(21)))
        };
        let here = u64::from(bench.write(13));
        let written = 3 + here + other.join().unwrap();
        let records = bench.rest();
        check_order(&records);
        let Counts { lost_full, overwritten, lost_big } = bench.counts();
        assert_eq!((written + lost_full, lost_big), (6, 0));
        assert_eq!(records.len() as u64 + overwritten, written);
        assert!(mode == Mode::Overwrite || overwritten == 0);
    });
}

#[test]
fn two_writers_that_discard() {
    two_writers(Mode::Discard, 2, Fault::None);
}

#[test]
fn two_writers_that_overwrite() {
    two_writers(Mode::Overwrite, 2, Fault::None);
}

fn a_writer_and_a_reader(mode: Mode, fault: Fault) {
    check(preemptions(mode), fault, move || {
        let bench = Bench::new(mode, 2);
        assert!(bench.write(10) && bench.write(11) && bench.write(12));
        let writer = {
            let bench = Arc::clone(&bench);
            thread::spawn(move || (13..15).map(|record| u64::from(bench.write(record))).sum::<u64>())
        };
        let mut records = Vec::new();
        bench.channel.flush(0);
        if let Ok(taken) = bench.take(Writers::Running) {
            records.extend(taken);
        }
        let written = 3 + writer.join().unwrap();
        records.extend(bench.rest());
        check_order(&records);
        let Counts { lost_full, overwritten, .. } = bench.counts();
        assert_eq!(written + lost_full, 5);
        assert_eq!(records.len() as u64 + overwritten, written, "not every record is accounted for");
    });
}

#[test]
fn a_reader_takes_pages_while_a_writer_discards() {
    a_writer_and_a_reader(Mode::Discard, Fault::None);
}

#[test]
fn a_reader_takes_pages_while_a_writer_overwrites() {
    a_writer_and_a_reader(Mode::Overwrite, Fault::None);
}

#[test]
#[should_panic(expected = "not every record is accounted for")]
fn a_frame_that_does_not_release_is_found() {
    a_writer_and_a_reader(Mode::Discard, Fault::Releases);
}

#[test]
#[should_panic(expected = "not every record is accounted for")]
fn a_frame_that_is_not_acquired_is_found() {
    a_writer_and_a_reader(Mode::Discard, Fault::Acquires);
}

/// A writer dies before its access number `count`, for each number, while another writes.
#[test]
fn a_writer_that_dies_holds_up_no_other() {
    for (mode, page_count) in [(Mode::Discard, 3), (Mode::Overwrite, 2)] {
        for count in 0.. {
            let has_died = Arc::new(AtomicBool::new(false));
            let died = Arc::clone(&has_died);
            check(Some(1), Fault::None, move || {
                let bench = Bench::new(mode, page_count);
                assert!(bench.write(10) && bench.write(11));
                let mortal = {
                    let bench = Arc::clone(&bench);
                    thread::spawn(move || {
                        let mut written = 0;
                        let dies = dies_before(count, || {
                            (20..22).for_each(|record| written += u64::from(bench.write(record)))
                        });
                        (dies, written)
                    })
                };
                // There is room for it even if the other has taken a page with it.
                assert!(mode == Mode::Overwrite || bench.write(12));
                let here = u64::from(mode == Mode::Discard || bench.write(12));
                let (dies, there) = mortal.join().unwrap();
                died.fetch_or(dies, Ordering::Relaxed);
                let records = bench.rest();
                check_order(&records);
                let (written, found) = (2 + here + there, records.len() as u64 + bench.counts().overwritten);
                // The record that it was about to report may be committed; and if it was overwriting a page, that page's
                // records are not yet counted.
                let (less, more) = if dies { (if mode == Mode::Overwrite { 2 } else { 0 }, 1) } else { (0, 0) };
                assert!((written - less..=written + more).contains(&found), "{written} {found} {records:?}");
            });
            if !has_died.load(Ordering::Relaxed) {
                assert!(count > 20, "the writer has that many accesses");
                break;
            }
        }
    }
}
