//! Operations on a session's memory, compared with an oracle that keeps every record in a list. Records and their times
//! are read back by the rules of the format alone.
#![cfg(target_pointer_width = "64")]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use dormouse_abi::page;
use dormouse_abi::record::{EXTENDED_HEADER_SIZE_BYTES, HEADER_SIZE_BYTES, RecordKind, context_word};
use dormouse_abi::session::{
    CLOCK_MONOTONIC, Geometry, LOST_CLASS_COUNT, MODE_DISCARD, MODE_OVERWRITE, Owner, State, StreamControl, UNIT_BYTES,
    spare,
};
use dormouse_abi::tag::TagNames;
use dormouse_abi::txn::Txn;
use dormouse_relay::{Memory, Record, Segment, Setup, WriteOutcome, write_exclusive};
use proptest::prelude::*;

const GEOMETRY: Geometry =
    Geometry { page_size_bytes: 4096, page_count: 7, cpu_count: 0, stream_count: 3, has_register: false };
const PROCESS: u16 = 9;

fn setup(mode: u32, clock: u32) -> Setup<'static> {
    let page_count_limit = GEOMETRY.page_count;
    Setup {
        mode,
        clock,
        uuid: [7; 16],
        kind: RecordKind::Ids,
        tags: TagNames::NONE,
        page_count_limit,
        kept_for: &[],
        kept_each: 0,
    }
}

#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

/// Memory of a session, private to the test.
struct Bench {
    _backing: Vec<OsPage>,
    memory: Memory,
    kind: RecordKind,
    clock: u64,
    /// Epochs that each stream has had.
    epochs: Vec<Vec<u64>>,
}

impl Bench {
    fn new(mode: u32, kind: RecordKind) -> Bench {
        let mut backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)];
        let setup = Setup { kind, ..setup(mode, CLOCK_MONOTONIC) };
        // SAFETY: valid, zeroed, aligned, and moved together with the view without changing its address.
        let memory = unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup) };
        let epochs = vec![vec![0]; GEOMETRY.stream_count as usize];
        Bench { _backing: backing, memory, kind, clock: 1, epochs }
    }

    fn control(&self, stream: u32) -> &StreamControl {
        self.memory.stream(stream)
    }

    /// Commits by plain stores like a claimant, or stops after some of the stores.
    fn commit(&self, txn: &Txn, break_off_after: Option<usize>) -> bool {
        // SAFETY: the planner's guard is in the bench's memory.
        if unsafe { txn.guard.read() } != txn.expected {
            return false;
        }
        let plain = &txn.stores[..txn.store_count as usize];
        let last = std::slice::from_ref(&txn.last);
        for (index, store) in plain.iter().chain(last).enumerate() {
            if break_off_after == Some(index) {
                return false;
            }
            let width = store.width as usize;
            let bytes = store.value.to_ne_bytes();
            let bytes = if cfg!(target_endian = "big") { &bytes[8 - width..] } else { &bytes[..width] };
            // SAFETY: the planner's targets are in the bench's memory, `width` bytes each.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), store.target, width) };
        }
        true
    }

    fn bytes(&self, unit: u32, len: usize) -> Vec<u8> {
        let page = self.memory.page(unit).expect("a page of the pool");
        // SAFETY: a whole page is there.
        unsafe { std::slice::from_raw_parts(page, len) }.to_vec()
    }

    fn word(&self, unit: u32, field: usize) -> u64 {
        self.memory.page_field(unit, field)
    }
}

/// A record as it was written.
struct Given {
    id: u16,
    timestamp: u64,
    fields: Vec<u8>,
}

const CONTEXT: u64 = context_word(1, 2);

/// Asserts that the content of a page that begins at time `begin` is these records.
fn check_records(kind: RecordKind, mut content: &[u8], begin: u64, records: &[Given]) {
    let mut time = begin;
    for Given { id, timestamp, fields } in records {
        let number = |range: std::ops::Range<usize>| {
            content[range].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let low = |low: u64, bits: u32| {
            let lap = time >> bits << bits | low;
            if lap < time { lap + (1 << bits) } else { lap }
        };
        let (found_id, found_time, len) = match (kind, content[0]) {
            (RecordKind::Ids, _) => {
                assert_eq!(number(8..16), CONTEXT);
                (number(0..2), low(number(2..8), 48), 16)
            }
            (RecordKind::Compact, 255) => (number(1..3), number(3..11), 11),
            (RecordKind::Compact, id) => (id.into(), low(number(1..5), 32), 5),
        };
        assert_eq!((found_id, found_time), (u64::from(*id), *timestamp));
        assert_eq!(content[len..][..fields.len()], *fields);
        content = &content[len + fields.len()..];
        time = *timestamp;
    }
    assert_eq!(content.len(), 0, "more than the records");
}

/// Expected contents of a stream.
#[derive(Default)]
struct Oracle {
    current: Vec<Given>,
    /// Closed pages that are neither used nor overwritten, from number `oldest` on.
    closed: VecDeque<Vec<Given>>,
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
    /// Writes a record of some runs to `stream`.
    Write { stream: u32, id: u16, runs: Vec<Vec<u8>> },
    /// Lets time pass.
    Wait { ticks: u64 },
    /// A writer that was killed before it recorded the epoch, or that records an earlier record's epoch late.
    LateEpoch { stream: u32, which: prop::sample::Index },
    /// A writer that is killed after `stores` stores of the next page switch.
    KilledSwitch { stream: u32, stores: usize },
    /// The consumer has used the oldest closed page (discard mode).
    Use { stream: u32 },
    /// A writer that has drawn a page and is killed; its pages are reclaimed.
    Orphan { stream: u32 },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let stream = 0..GEOMETRY.stream_count;
    let run = prop::collection::vec(any::<u8>(), 0..700);
    let id = prop::sample::select(vec![0u16, 3, 254, 255, 300]);
    let half = 1u64 << 32;
    let ticks = prop_oneof![half - 3..half + 3, 0..2 * half, Just(half / 2), Just(7 * half), Just(1 << 46)];
    let operation = prop_oneof![
        8 => (stream.clone(), id, prop::collection::vec(run, 0..4))
            .prop_map(|(stream, id, runs)| Operation::Write { stream, id, runs }),
        2 => ticks.prop_map(|ticks| Operation::Wait { ticks }),
        1 => (stream.clone(), any::<prop::sample::Index>())
            .prop_map(|(stream, which)| Operation::LateEpoch { stream, which }),
        1 => (stream.clone(), 0..9usize).prop_map(|(stream, stores)| Operation::KilledSwitch { stream, stores }),
        2 => stream.clone().prop_map(|stream| Operation::Use { stream }),
        1 => stream.prop_map(|stream| Operation::Orphan { stream }),
    ];
    prop::collection::vec(operation, 1..200)
}

/// Switches pages like the tracer. False if no page is free.
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
        memory.open(stream, bench.clock);
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

fn write(bench: &mut Bench, oracles: &mut [Oracle], stream: u32, id: u16, runs: &[Vec<u8>]) {
    let memory = bench.memory;
    let segments: Vec<Segment> = runs.iter().map(|run| Segment::exact(run.as_ptr(), run.len())).collect();
    let record = Record::new(id, CONTEXT, &segments);
    let size_bytes_max = bench.kind.header_size_bytes_max() + record.fields_size_bytes;
    if size_bytes_max > page::record_size_max_bytes(GEOMETRY.page_size_bytes as usize) {
        return;
    }
    loop {
        let now = bench.clock + 1;
        // SAFETY: there is one thread only; the runs are alive.
        if unsafe { write_exclusive(&memory, stream, &record, || now) } == WriteOutcome::Done {
            bench.clock = now;
            oracles[stream as usize].current.push(Given { id, timestamp: now, fields: runs.concat() });
            let epoch = bench.control(stream).epoch.load(Ordering::Relaxed);
            bench.epochs[stream as usize].push(epoch);
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
        let check_page = |unit: u32, len: usize, records: &[Given]| {
            let begin = bench.word(unit, page::OFFSET_TIMESTAMP_BEGIN);
            check_records(bench.kind, &bench.bytes(unit, len)[page::HEADER_SIZE_BYTES..], begin, records);
        };
        check_page(state.unit, state.offset as usize, &oracle.current);
        for (seq, records) in (oracle.oldest..).zip(&oracle.closed) {
            let unit = bench.memory.chain(stream, seq);
            let len = bench.word(unit, page::OFFSET_CONTENT_SIZE) as usize / 8;
            assert_eq!(bench.word(unit, page::OFFSET_SEQ), seq);
            assert!(bench.word(unit, page::OFFSET_TIMESTAMP_BEGIN) <= bench.word(unit, page::OFFSET_TIMESTAMP_END));
            check_page(unit, len, records);
            let index = GEOMETRY.page_of_unit(unit).expect("a page of the pool");
            assert_eq!(bench.memory.owner_of(index), Some(Owner::Queued { stream: stream as u16, seq }));
        }
    }
    // No page is in two places.
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

fn run(mode: u32, kind: RecordKind, operations: &[Operation]) {
    let mut bench = Bench::new(mode, kind);
    let mut oracles: Vec<Oracle> = (0..GEOMETRY.stream_count).map(|_| Oracle::default()).collect();
    for operation in operations {
        match operation {
            Operation::Write { stream, id, runs } => write(&mut bench, &mut oracles, *stream, *id, runs),
            Operation::Wait { ticks } => bench.clock += ticks,
            Operation::LateEpoch { stream, which } => {
                let epoch = which.get(&bench.epochs[*stream as usize]);
                bench.control(*stream).epoch.store(*epoch, Ordering::Relaxed);
            }
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
    // A live process keeps what it holds: its pages are linked.
    assert_eq!(bench.memory.reclaim_drawn(PROCESS), 0);
    check(&bench, &oracles);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn discard_mode_holds_what_the_oracle_holds(operations in operations()) {
        run(MODE_DISCARD, RecordKind::Ids, &operations);
    }

    #[test]
    fn overwrite_mode_holds_what_the_oracle_holds(operations in operations()) {
        run(MODE_OVERWRITE, RecordKind::Ids, &operations);
    }

    #[test]
    fn discard_mode_holds_compact_records(operations in operations()) {
        run(MODE_DISCARD, RecordKind::Compact, &operations);
    }

    #[test]
    fn overwrite_mode_holds_compact_records(operations in operations()) {
        run(MODE_OVERWRITE, RecordKind::Compact, &operations);
    }
}

#[test]
fn a_record_of_the_largest_size_fits_an_empty_page() {
    for (kind, header) in [(RecordKind::Ids, HEADER_SIZE_BYTES), (RecordKind::Compact, EXTENDED_HEADER_SIZE_BYTES)] {
        let mut bench = Bench::new(MODE_DISCARD, kind);
        let mut oracles: Vec<Oracle> = (0..GEOMETRY.stream_count).map(|_| Oracle::default()).collect();
        let len = page::record_size_max_bytes(GEOMETRY.page_size_bytes as usize) - header;
        write(&mut bench, &mut oracles, 0, 3, &[vec![0xAB; len]]);
        assert_eq!(oracles[0].current.len(), 1);
        assert_eq!(oracles[0].lost, 0);
        check(&bench, &oracles);
    }
}

/// Most records are compact: only one in each epoch of a stream is extended, and those with large ids.
#[test]
fn an_epoch_costs_one_extended_record() {
    let mut bench = Bench::new(MODE_OVERWRITE, RecordKind::Compact);
    let mut oracles: Vec<Oracle> = (0..GEOMETRY.stream_count).map(|_| Oracle::default()).collect();
    let offset = |bench: &Bench| State::from_word(bench.control(0).state.load(Ordering::Relaxed)).offset as usize;
    let mut sizes = Vec::new();
    write(&mut bench, &mut oracles, 0, 0, &[]);
    for (wait, id) in [(0, 0), (0, 255), (0, 254), (1 << 32, 0), (0, 0), (5 << 32, 0), (0, 300), (0, 7)] {
        let before = offset(&bench);
        bench.clock += wait;
        write(&mut bench, &mut oracles, 0, id, &[vec![1; 8]]);
        sizes.push(offset(&bench) - before - 8);
    }
    check(&bench, &oracles);
    assert_eq!(sizes, [5, 11, 5, 11, 5, 11, 11, 5]);
}

#[test]
fn counts_of_lost_classes_end_where_no_stream_is_in_use() {
    let bench = Bench::new(MODE_DISCARD, RecordKind::Ids);
    assert_eq!(bench.memory.used_streams().count(), 0);
    let counts: Vec<u64> = (0..).map_while(|index| bench.memory.discarded_by_class(index)).collect();
    assert_eq!(counts, [0; LOST_CLASS_COUNT]);
}
