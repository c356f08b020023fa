//! Operations on a session's memory against an oracle that keeps every record in a list.
#![cfg(target_pointer_width = "64")]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use dormouse_abi::page;
use dormouse_abi::record::{self, HEADER_SIZE_BYTES};
use dormouse_abi::session::{
    CLOCK_MONOTONIC, Geometry, MODE_DISCARD, MODE_OVERWRITE, Owner, State, StreamControl, UNIT_BYTES, spare,
};
use dormouse_abi::txn::Txn;
use dormouse_relay::{Memory, Record, Segment, Setup, Written, write_exclusive};
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { page_size_bytes: 4096, page_count: 7, cpu_count: 0, stream_count: 3 };
const PROCESS: u16 = 9;

fn setup(mode: u32, clock: u32) -> Setup<'static> {
    let page_limit = GEOMETRY.page_count;
    Setup { mode, clock, uuid: [7; 16], page_limit, reserved_for: &[], reserve_each: 0 }
}

#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

/// Memory of a session, private to the test.
struct Bench {
    _backing: Vec<OsPage>,
    memory: Memory,
    clock: u64,
}

impl Bench {
    fn new(mode: u32) -> Bench {
        let mut backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)];
        // SAFETY: valid, zeroed, aligned, and moved together with the view without changing its address.
        let memory =
            unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup(mode, CLOCK_MONOTONIC)) };
        Bench { _backing: backing, memory, clock: 1 }
    }

    fn control(&self, stream: u32) -> &StreamControl {
        self.memory.stream(stream)
    }

    /// Commits plainly, as a claimant does, unless it is to break off after some of the stores.
    fn commit(&self, txn: &Txn, break_off_after: Option<usize>) -> bool {
        // SAFETY: the planner's guard lies in the bench's memory.
        if unsafe { txn.guard.read() } != txn.expected {
            return false;
        }
        let plain = &txn.stores[..txn.store_count as usize];
        let last = std::slice::from_ref(&txn.last);
        for (index, store) in plain.iter().chain(last).enumerate() {
            if break_off_after == Some(index) {
                return false;
            }
            let bytes = store.value.to_le_bytes();
            // SAFETY: the planner's targets lie in the bench's memory, `width` bytes each.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), store.target, store.width as usize) };
        }
        true
    }

    fn bytes(&self, unit: u32, len: usize) -> Vec<u8> {
        let page = self.memory.page(unit).expect("a page of the pool");
        // SAFETY: a whole page lies there.
        unsafe { std::slice::from_raw_parts(page, len) }.to_vec()
    }

    fn word(&self, unit: u32, field: usize) -> u64 {
        self.memory.page_field(unit, field)
    }
}

/// What a stream should hold.
#[derive(Default)]
struct Oracle {
    current: Vec<Vec<u8>>,
    /// Closed pages that are neither used nor overwritten, from number `oldest` on.
    closed: VecDeque<Vec<Vec<u8>>>,
    oldest: u64,
    has_page: bool,
    lost: u64,
}

impl Oracle {
    fn seq_next(&self) -> u64 {
        self.oldest + self.closed.len() as u64
    }
}

#[derive(Debug, Clone)]
enum Operation {
    /// A record of some runs, in `stream`.
    Write { stream: u32, runs: Vec<Vec<u8>> },
    /// A writer that is killed after so many stores of the next page switch.
    KilledSwitch { stream: u32, stores: usize },
    /// The consumer has used the oldest closed page (discard mode).
    Use { stream: u32 },
    /// A writer that has drawn a page and is killed; its process is buried.
    Orphan { stream: u32 },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let stream = 0..GEOMETRY.stream_count;
    let run = prop::collection::vec(any::<u8>(), 0..700);
    let operation = prop_oneof![
        8 => (stream.clone(), prop::collection::vec(run, 0..4)).prop_map(|(stream, runs)| Operation::Write { stream, runs }),
        1 => (stream.clone(), 0..9usize).prop_map(|(stream, stores)| Operation::KilledSwitch { stream, stores }),
        2 => stream.clone().prop_map(|stream| Operation::Use { stream }),
        1 => stream.prop_map(|stream| Operation::Orphan { stream }),
    ];
    prop::collection::vec(operation, 1..200)
}

/// A page switch as the tracer makes it. False when no page is to be had.
fn switch(bench: &mut Bench, oracles: &mut [Oracle], stream: u32, break_off_after: Option<usize>) -> bool {
    let memory = bench.memory;
    let state = bench.control(stream).state.load(Ordering::Relaxed);
    let seq_next = State::from_word(state).seq.wrapping_add(1);
    let seen = bench.control(stream).spare.load(Ordering::Relaxed);
    let unit = match spare::unit_for(seen, seq_next) {
        Some(unit) => unit,
        None => {
            let oldest: Vec<u64> = oracles.iter().map(|oracle| oracle.oldest).collect();
            let used = |stream: u32| match memory.is_overwrite() {
                true => memory.stream(stream).reclaimed.load(Ordering::Relaxed),
                false => oldest[stream as usize],
            };
            let unit = loop {
                match memory.draw(PROCESS, stream, used) {
                    Some(unit) => break unit,
                    None if !memory.is_overwrite() => return false,
                    None => {
                        let before: Vec<u64> = reclaimed(bench);
                        if memory.evict(stream).is_none() {
                            return false;
                        }
                        let after = reclaimed(bench);
                        let victim = (0..before.len()).find(|index| before[*index] != after[*index]).expect("a victim");
                        oracles[victim].closed.pop_front().expect("the victim retains a page");
                        oracles[victim].oldest += 1;
                    }
                }
            };
            assert!(bench.commit(&memory.plan_spare(stream, seen, seq_next, unit), None));
            unit
        }
    };
    bench.clock += 1;
    if bench.commit(&memory.plan_switch(stream, state, unit, bench.clock), break_off_after) {
        let oracle = &mut oracles[stream as usize];
        let records = std::mem::take(&mut oracle.current);
        if oracle.has_page {
            oracle.closed.push_back(records);
        }
        oracle.has_page = true;
    }
    true
}

fn reclaimed(bench: &Bench) -> Vec<u64> {
    (0..GEOMETRY.stream_count).map(|stream| bench.control(stream).reclaimed.load(Ordering::Relaxed)).collect()
}

fn write(bench: &mut Bench, oracles: &mut [Oracle], stream: u32, runs: &[Vec<u8>]) {
    let memory = bench.memory;
    let segments: Vec<Segment> = runs.iter().map(|run| Segment::exact(run.as_ptr(), run.len())).collect();
    let context = record::context_word(1, 2);
    let record = Record::new(3, context, &segments);
    if record.size_bytes > page::record_size_max_bytes(GEOMETRY.page_size_bytes as usize) {
        return;
    }
    loop {
        let now = bench.clock + 1;
        // SAFETY: one thread only; the runs are alive.
        if unsafe { write_exclusive(&memory, stream, &record, || now) } == Written::Done {
            bench.clock = now;
            let mut bytes = record::head_word(3, now).to_le_bytes().to_vec();
            bytes.extend_from_slice(&context.to_le_bytes());
            bytes.extend(runs.iter().flatten());
            assert_eq!(bytes.len(), record.size_bytes);
            oracles[stream as usize].current.push(bytes);
            return;
        }
        if !switch(bench, oracles, stream, None) {
            bench.control(stream).records_lost_full.0.fetch_add(1, Ordering::Relaxed);
            oracles[stream as usize].lost += 1;
            return;
        }
    }
}

fn check(bench: &Bench, oracles: &[Oracle]) {
    for (stream, oracle) in (0..).zip(oracles) {
        let state = State::from_word(bench.control(stream).state.load(Ordering::Relaxed));
        assert_eq!(bench.memory.discarded(stream), oracle.lost);
        if !oracle.has_page {
            assert_eq!(state.unit, 0);
            continue;
        }
        assert_eq!(state.seq as u64, oracle.seq_next() & 0xFFFF);
        assert_eq!(bench.word(state.unit, page::OFFSET_SEQ), oracle.seq_next());
        let current = bench.bytes(state.unit, state.offset as usize);
        assert_eq!(current[page::HEADER_SIZE_BYTES..], oracle.current.concat());
        for (seq, records) in (oracle.oldest..).zip(&oracle.closed) {
            let unit = bench.memory.chain(stream, seq);
            let content = records.concat();
            let len = page::HEADER_SIZE_BYTES + content.len();
            assert_eq!(bench.word(unit, page::OFFSET_CONTENT_SIZE), len as u64 * 8);
            assert_eq!(bench.word(unit, page::OFFSET_SEQ), seq);
            assert!(bench.word(unit, page::OFFSET_TIMESTAMP_BEGIN) <= bench.word(unit, page::OFFSET_TIMESTAMP_END));
            assert_eq!(bench.bytes(unit, len)[page::HEADER_SIZE_BYTES..], content);
            let index = GEOMETRY.page_of_unit(unit).expect("a page of the pool");
            assert_eq!(bench.memory.owner_of(index), Some(Owner::Queued { stream: stream as u16, seq }));
        }
    }
    // No two places hold the same page.
    let mut units: Vec<u32> = Vec::new();
    for (stream, oracle) in (0..).zip(oracles) {
        let control = bench.control(stream);
        let state = State::from_word(control.state.load(Ordering::Relaxed));
        units.extend(Some(state.unit).filter(|unit| *unit != 0));
        units.extend(spare::unit_for(control.spare.load(Ordering::Relaxed), state.seq.wrapping_add(1)));
        units.extend((oracle.oldest..oracle.seq_next()).map(|seq| bench.memory.chain(stream, seq)));
    }
    let count = units.len();
    units.sort_unstable();
    units.dedup();
    assert_eq!(units.len(), count, "a page is in two places");
    assert!(units.iter().all(|unit| *unit as usize * UNIT_BYTES >= GEOMETRY.pages_offset()));
}

fn run(mode: u32, operations: &[Operation]) {
    let mut bench = Bench::new(mode);
    let mut oracles: Vec<Oracle> = (0..GEOMETRY.stream_count).map(|_| Oracle::default()).collect();
    for operation in operations {
        match operation {
            Operation::Write { stream, runs } => write(&mut bench, &mut oracles, *stream, runs),
            Operation::KilledSwitch { stream, stores } => {
                switch(&mut bench, &mut oracles, *stream, Some(*stores));
            }
            Operation::Use { stream } => {
                let oracle = &mut oracles[*stream as usize];
                if mode == MODE_DISCARD && oracle.closed.pop_front().is_some() {
                    oracle.oldest += 1;
                }
            }
            Operation::Orphan { stream } => {
                let oldest: Vec<u64> = oracles.iter().map(|oracle| oracle.oldest).collect();
                if bench.memory.draw(PROCESS + 1, *stream, |stream| oldest[stream as usize]).is_some() {
                    assert_eq!(bench.memory.reclaim_drawn(PROCESS + 1), 1);
                }
            }
        }
        check(&bench, &oracles);
    }
    // What a live process holds is never taken from it: its pages are linked.
    assert_eq!(bench.memory.reclaim_drawn(PROCESS), 0);
    check(&bench, &oracles);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn discard_mode_holds_what_the_oracle_holds(operations in operations()) {
        run(MODE_DISCARD, &operations);
    }

    #[test]
    fn overwrite_mode_holds_what_the_oracle_holds(operations in operations()) {
        run(MODE_OVERWRITE, &operations);
    }
}

#[test]
fn a_record_of_the_largest_size_fits_an_empty_page() {
    let mut bench = Bench::new(MODE_DISCARD);
    let mut oracles: Vec<Oracle> = (0..GEOMETRY.stream_count).map(|_| Oracle::default()).collect();
    let len = page::record_size_max_bytes(GEOMETRY.page_size_bytes as usize) - HEADER_SIZE_BYTES;
    write(&mut bench, &mut oracles, 0, &[vec![0xAB; len]]);
    assert_eq!(oracles[0].current.len(), 1);
    assert_eq!(oracles[0].lost, 0);
    check(&bench, &oracles);
}
