//! Page switches in the model checker: writers of one stream close its page, take a fresh one and offer the closed
//! one, while the session owner drains or takes a snapshot; and a writer dies at any step.
//!
//! The checker does not know rseq. A critical section is therefore a few accesses under a lock of its CPU, which begin
//! with the comparison of the guard; an aborted one is a section that a dying thread does not complete. The owner takes
//! no such lock, so it sees each of a section's stores by itself.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use dormouse_abi::page::{self, HEADER_SIZE_BYTES};
use dormouse_abi::record::RecordKind;
use dormouse_abi::tag::TagNames;
use dormouse_abi::txn::{Store, Txn};
use loom::sync::Mutex;
use loom::thread;

use crate::abi::session::{CLOCK_MONOTONIC, Geometry, MODE_DISCARD, MODE_OVERWRITE, Owner, State, UNIT_BYTES, spare};
use crate::atomic::{AtomicU32, AtomicU64, Fault, Ordering, check, dies_before};
use crate::{Memory, Setup};

/// Preemptions in an execution. More find nothing else here, and take minutes.
const PREEMPTIONS: Option<usize> = Some(2);

/// A page takes one record, so that each record needs a page switch.
const PAGE_END: u32 = HEADER_SIZE_BYTES as u32 + 8;

/// Record in the page that is current at first.
const FIRST: u64 = 100;

/// Number of descriptors of the ring, a power of two.
const RING_SIZE: usize = 8;

#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

/// Memory of a session with one stream. Models leave its words as they are, so all executions use the same.
#[derive(Clone)]
struct Bench {
    memory: Memory,
    _backing: Arc<Vec<OsPage>>,
}

// SAFETY: models access the memory by atomics, and otherwise only pages that one thread has drawn.
unsafe impl Send for Bench {}
// SAFETY: models access the memory by atomics, and otherwise only pages that one thread has drawn.
unsafe impl Sync for Bench {}

impl Bench {
    fn new(mode: u32, page_count: u32) -> Bench {
        let geometry =
            Geometry { page_size_bytes: 4096, page_count, cpu_count: 1, stream_count: 1, has_register: false };
        let mut backing = vec![OsPage([0; 4096]); geometry.size_bytes().div_ceil(4096)];
        let setup = Setup {
            mode,
            clock: CLOCK_MONOTONIC,
            uuid: [7; 16],
            kind: RecordKind::Ids,
            tags: TagNames::NONE,
            page_count_limit: page_count,
            kept_for: &[],
            kept_each: 0,
        };
        // SAFETY: valid, zeroed, aligned, and kept as long as the view, at one address.
        let memory = unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &geometry, &setup) };
        Bench { memory, _backing: Arc::new(backing) }
    }
}

/// A session in a model. In discard mode the ring is the simplest that keeps the order of a virtqueue's stores.
struct Session {
    memory: Memory,
    /// Lock that the sections of the CPU take.
    cpu: Mutex<()>,
    descriptors: [AtomicU64; RING_SIZE],
    avail: AtomicU64,
    used: AtomicU64,
}

impl Session {
    /// Begins a session whose stream has a full page with the record [`FIRST`].
    fn begin(bench: &Bench) -> Arc<Session> {
        let word = || AtomicU64::new(0);
        let memory = bench.memory;
        let session = Session {
            memory,
            cpu: Mutex::new(()),
            descriptors: [(); RING_SIZE].map(|()| word()),
            avail: word(),
            used: word(),
        };
        // This word is not zero at first: its object gets the value before there are other threads.
        assert!(memory.page_count_limit() > 0);
        memory.use_stream(0);
        session.write(1, FIRST);
        Arc::new(session)
    }

    /// Makes a transaction's stores if its guard holds; returns whether it did.
    fn commit(&self, txn: &Txn) -> bool {
        let cpu = self.cpu.lock().unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| section(txn)));
        // A thread that dies in a section leaves it, and does not poison the lock.
        drop(cpu);
        result.unwrap_or_else(|death| resume_unwind(death))
    }

    /// Writes a record of one word, and switches pages as often as that needs. False if there is no page.
    fn write(&self, process: u16, record: u64) -> bool {
        let control = self.memory.stream(0);
        loop {
            // (C) pairs with (A).
            let seen = control.state.load(Ordering::Acquire);
            let state = State::from_word(seen);
            if state.offset + 8 > PAGE_END {
                if !self.switch(process, seen) {
                    return false;
                }
                continue;
            }
            let next = State { offset: state.offset + 8, ..state }.to_word();
            let last = Store { target: control.state.as_ptr().cast(), value: next, width: 8 };
            let mut txn = Txn::new(control.state.as_ptr(), seen, last);
            txn.store(self.record_word(state.unit, state.offset).as_ptr().cast(), record, 8);
            if self.commit(&txn) {
                return true;
            }
        }
    }

    fn record_word(&self, unit: u32, offset: u32) -> &AtomicU64 {
        &self.memory.words()[(unit as usize * UNIT_BYTES + offset as usize) / 8]
    }

    /// Switches pages by the steps of the tracer's slow path. False if there is no page.
    fn switch(&self, process: u16, seen: u64) -> bool {
        let control = self.memory.stream(0);
        let seq_next = State::from_word(seen).seq.wrapping_add(1);
        // (C) pairs with (A).
        let ahead = control.spare.load(Ordering::Acquire);
        if control.state.load(Ordering::Acquire) != seen {
            return true;
        }
        let unit = match spare::unit_for(ahead, seq_next) {
            Some(unit) => unit,
            None => {
                let Some(unit) = self.draw(process) else { return false };
                if !self.commit(&self.memory.plan_spare(0, ahead, seq_next, unit)) {
                    self.memory.give_back(process, 0, unit);
                    return true;
                }
                unit
            }
        };
        let timestamp = u64::from(seq_next) + 1;
        if self.commit(&self.memory.plan_switch(0, seen, unit, timestamp)) {
            self.memory.open(0, timestamp);
            if !self.memory.is_overwrite() {
                self.offer();
            }
        }
        true
    }

    fn draw(&self, process: u16) -> Option<u32> {
        if !self.memory.is_overwrite() {
            return self.memory.draw(process, 0, |_| self.used());
        }
        self.memory.draw(process, 0, |_| self.used()).or_else(|| {
            let evicted = self.memory.evict(0)?;
            self.memory.draw_page(process, 0, evicted, |_| self.used())
        })
    }

    /// Returns the number of pages that are no longer needed.
    fn used(&self) -> u64 {
        let word = if self.memory.is_overwrite() { &self.memory.stream(0).reclaimed } else { &self.used };
        // (E') pairs with (E), or the acquire of a used index with its release.
        word.load(Ordering::Acquire)
    }

    /// Offers closed pages by the steps of the tracer's slow path.
    fn offer(&self) {
        let control = self.memory.stream(0);
        let published = &control.published.0;
        let store = |word: &AtomicU64, value| Store { target: word.as_ptr().cast(), value, width: 8 };
        // (C) pairs with (A).
        let mut next = published.load(Ordering::Acquire);
        while next as u16 != State::from_word(control.state.load(Ordering::Acquire)).seq {
            let unit = self.memory.chain(0, next);
            let mut txn = Txn::new(published.as_ptr(), next, store(published, next + 1));
            let descriptor = store(&self.descriptors[next as usize % RING_SIZE], unit.into());
            txn.store(descriptor.target, descriptor.value, descriptor.width);
            next = if self.commit(&txn) { next + 1 } else { published.load(Ordering::Acquire) };
        }
        // The shadow is the guard: a late writer does not take the index back.
        self.commit(&Txn::new(published.as_ptr(), next, store(&self.avail, next)));
    }

    /// Reads the record of a closed page.
    fn closed(&self, seq: u64, unit: u32) -> u64 {
        assert_eq!(self.memory.page_field(unit, page::OFFSET_SEQ), seq, "another page");
        let content_size_bits = self.memory.page_field(unit, page::OFFSET_CONTENT_SIZE);
        assert_eq!(content_size_bits, u64::from(PAGE_END) * 8, "a header that is not complete");
        self.record_word(unit, HEADER_SIZE_BYTES as u32).load(Ordering::Relaxed)
    }

    /// Takes what is offered, as the owner's drain does.
    fn drain(&self, records: &mut Vec<u64>) {
        let taken = self.used.load(Ordering::Relaxed);
        for seq in taken..self.avail.load(Ordering::Acquire) {
            let unit = self.descriptors[seq as usize % RING_SIZE].load(Ordering::Relaxed) as u32;
            records.push(self.closed(seq, unit));
            self.used.store(seq + 1, Ordering::Release);
            self.memory.header().freed.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Reads everything from page `oldest` on, as the owner does at the end, and checks that no page is lost.
    fn finish(&self, oldest: u64, records: &mut Vec<u64>) {
        let control = self.memory.stream(0);
        let state = State::from_word(control.state.load(Ordering::Acquire));
        for seq in oldest..u64::from(state.seq) {
            records.push(self.closed(seq, self.memory.chain(0, seq)));
        }
        if state.offset == PAGE_END {
            records.push(self.record_word(state.unit, HEADER_SIZE_BYTES as u32).load(Ordering::Relaxed));
        }
        let ahead = spare::unit_for(control.spare.load(Ordering::Acquire), state.seq.wrapping_add(1));
        for index in 0..self.memory.geometry().page_count {
            let unit = self.memory.geometry().unit_of_page(index);
            let is_linked = unit == state.unit || Some(unit) == ahead;
            let owner = self.memory.owner_of(index);
            assert_eq!(matches!(owner, Some(Owner::Drawn { .. })), is_linked, "page {index} is lost, or used twice");
        }
    }
}

/// A critical section that commits a transaction; returns whether it did.
fn section(txn: &Txn) -> bool {
    // SAFETY: planners take guards and targets from the session's words.
    let guard = unsafe { AtomicU64::from_ptr(txn.guard.cast_mut()) };
    if guard.load(Ordering::Relaxed) != txn.expected {
        return false;
    }
    txn.stores[..txn.store_count as usize].iter().for_each(|plain| store(plain, Ordering::Relaxed));
    // (A) pairs with (C).
    store(&txn.last, Ordering::Release);
    true
}

fn store(store: &Store, ordering: Ordering) {
    if store.width == 4 {
        // SAFETY: planners take targets from the session's words, of this width.
        unsafe { AtomicU32::from_ptr(store.target.cast()) }.store(store.value as u32, ordering);
    } else {
        // SAFETY: planners take targets from the session's words, of this width.
        unsafe { AtomicU64::from_ptr(store.target.cast()) }.store(store.value, ordering);
    }
}

/// Two programs write on one CPU while the owner drains: each record is read once, and no page is lost.
fn drained(fault: Fault) {
    let bench = Bench::new(MODE_DISCARD, 5);
    check(PREEMPTIONS, fault, move || {
        let session = Session::begin(&bench);
        let writer = {
            let session = Arc::clone(&session);
            thread::spawn(move || assert!(session.write(2, 2)))
        };
        let owner = {
            let session = Arc::clone(&session);
            thread::spawn(move || {
                let mut records = Vec::new();
                session.drain(&mut records);
                records
            })
        };
        assert!(session.write(1, 1));
        writer.join().unwrap();
        let mut records = owner.join().unwrap();
        session.drain(&mut records);
        session.finish(session.used(), &mut records);
        assert_eq!(records[0], FIRST);
        records.sort();
        assert_eq!(records, [1, 2, FIRST]);
    });
}

#[test]
fn each_record_is_drained_once() {
    drained(Fault::None);
}

#[test]
#[should_panic(expected = "a header that is not complete")]
fn a_page_that_is_not_released_is_drained_too_early() {
    drained(Fault::Releases);
}

#[test]
#[should_panic(expected = "a header that is not complete")]
fn a_page_that_is_not_acquired_is_drained_too_early() {
    drained(Fault::Acquires);
}

/// A flight recorder gives up pages while the owner holds one and reads it: the page stays what it is.
#[test]
fn a_held_page_is_not_written() {
    let bench = Bench::new(MODE_OVERWRITE, 3);
    check(PREEMPTIONS, Fault::None, move || {
        let session = Session::begin(&bench);
        assert!(session.write(1, 1));
        let writer = {
            let session = Arc::clone(&session);
            thread::spawn(move || session.write(1, 2) && session.write(1, 3))
        };
        let unit = session.memory.chain(0, 0);
        if session.memory.hold(0, 0, unit) {
            assert_eq!(session.closed(0, unit), FIRST);
            assert_eq!(session.closed(0, unit), FIRST);
            session.memory.let_go(0, 0, unit);
        }
        let has_all = writer.join().unwrap();
        let mut records = Vec::new();
        session.finish(session.used(), &mut records);
        let last = *records.last().unwrap();
        assert!(last == 3 || !has_all, "{records:?}");
        assert!(records.windows(2).all(|pair| pair[0] + 1 == pair[1] || pair == [FIRST, 1]), "{records:?}");
    });
}

/// A writer dies before each of its accesses in turn: another one continues on its stream, and the owner takes back
/// what the dead one had drawn.
#[test]
fn a_writer_that_dies_loses_nothing() {
    let bench = Bench::new(MODE_DISCARD, 5);
    let mut count = 0;
    loop {
        let has_died = Arc::new(core::sync::atomic::AtomicBool::new(false));
        let (ends, bench) = (Arc::clone(&has_died), bench.clone());
        check(Some(1), Fault::None, move || {
            let session = Session::begin(&bench);
            let dying = {
                let session = Arc::clone(&session);
                thread::spawn(move || dies_before(count, || assert!(session.write(2, 2))))
            };
            assert!(session.write(1, 1));
            let is_dead = dying.join().unwrap();
            ends.fetch_or(is_dead, Ordering::Relaxed);
            session.memory.reclaim_drawn(2);
            assert!(session.write(3, 3));
            let mut records = Vec::new();
            session.drain(&mut records);
            session.finish(session.used(), &mut records);
            let is_own = records.contains(&2);
            records.retain(|record| *record != 2);
            assert_eq!((records, is_own || is_dead), (vec![FIRST, 1, 3], true));
        });
        if !has_died.load(Ordering::Relaxed) {
            break;
        }
        count += 1;
    }
    assert!(count > 40, "{count} accesses");
}
