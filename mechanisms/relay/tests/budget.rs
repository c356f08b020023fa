//! Pages that are kept for a stream, a budget that grows and shrinks, and streams that were never used.
#![cfg(target_pointer_width = "64")]

use std::sync::atomic::Ordering;

use dormouse_abi::page;
use dormouse_abi::record::RecordKind;
use dormouse_abi::session::{
    CLOCK_MONOTONIC, Geometry, MODE_DISCARD, MODE_OVERWRITE, Owner, Reason, STATE_EMPTY, SessionLayout, State,
    UNIT_BYTES,
};
use dormouse_abi::tag::TagNames;
use dormouse_percpu::{Commit, apply_exclusive};
use dormouse_relay::{Census, Memory, Setup};

/// Two of the streams belong to CPUs that are online.
const GEOMETRY: Geometry =
    Geometry { page_size_bytes: 4096, page_count: 32, cpu_count: 200, stream_count: 216, has_register: false };
const ONLINE: [u32; 2] = [3, 130];
const PROCESS: u16 = 7;

#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

struct Bench {
    backing: Vec<OsPage>,
    memory: Memory,
}

impl Bench {
    /// Makes a session of sixteen pages, two of them kept for each online CPU.
    fn new(mode: u32) -> Bench {
        let mut backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)];
        let setup = Setup {
            mode,
            clock: CLOCK_MONOTONIC,
            uuid: [7; 16],
            kind: RecordKind::Ids,
            tags: TagNames::NONE,
            page_count_limit: 16,
            kept_for: &ONLINE,
            kept_each: 2,
        };
        // SAFETY: valid, zeroed, aligned, and moved together with the view without changing its address.
        let memory = unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup) };
        Bench { backing, memory }
    }

    /// Returns the number of pages that are no longer needed: in overwrite mode those that were given up, otherwise
    /// none.
    fn used(&self, stream: u32) -> u64 {
        self.memory.stream(stream).reclaimed.load(Ordering::Relaxed)
    }

    fn draw(&self, stream: u32) -> Option<u32> {
        let unit = self.memory.draw(PROCESS, stream, |stream| self.used(stream))?;
        GEOMETRY.page_of_unit(unit)
    }

    /// Makes page `index`, which is drawn, the stream's current one.
    fn open(&self, stream: u32, index: u32) {
        self.memory.use_stream(stream);
        let seen = self.memory.stream(stream).state.load(Ordering::Relaxed);
        let txn = self.memory.plan_switch(stream, seen, GEOMETRY.unit_of_page(index), 5);
        // SAFETY: planned in the bench's memory, whose only writer is this thread.
        assert_eq!(unsafe { apply_exclusive(&txn) }, Commit::Done);
    }

    /// Switches pages like a writer in overwrite mode.
    fn switch(&self, stream: u32) -> u32 {
        let evicted = || {
            (0..GEOMETRY.page_count).find_map(|_| {
                let index = self.memory.evict(stream)?;
                let unit = self.memory.draw_page(PROCESS, stream, index, |stream| self.used(stream))?;
                GEOMETRY.page_of_unit(unit)
            })
        };
        let index = self.draw(stream).or_else(evicted).expect("a page");
        self.open(stream, index);
        index
    }

    fn census(&self) -> Census {
        self.memory.census(|stream| self.used(stream))
    }

    /// Returns the numbers of the pages that a stream retains, from their headers.
    fn retained(&self, stream: u32) -> Vec<u64> {
        let state = State::from_word(self.memory.stream(stream).state.load(Ordering::Relaxed));
        let number = |seq: u64| {
            let unit = self.memory.chain(stream, seq);
            let index = GEOMETRY.page_of_unit(unit).expect("a page");
            assert_eq!(self.memory.owner_of(index), Some(Owner::Queued { stream: stream as u16, seq }));
            self.memory.page_field(unit, page::OFFSET_SEQ)
        };
        (self.used(stream)..u64::from(state.seq)).map(number).collect()
    }
}

#[test]
fn a_stream_that_nobody_uses_costs_no_memory() {
    let bench = Bench::new(MODE_DISCARD);
    assert_eq!(bench.memory.used_streams().count(), 0);
    let touched: Vec<usize> = (0..bench.backing.len()).filter(|index| bench.backing[*index].0 != [0; 4096]).collect();
    let control = |stream: u32| GEOMETRY.streams_offset() / 4096 + stream as usize;
    let mut expected = vec![0, GEOMETRY.owners_offset() / 4096];
    expected.extend(ONLINE.map(control));
    assert_eq!(touched, expected, "the header, owners, and whose pages are whose");
    assert_eq!(bench.memory.stream(90).state.load(Ordering::Relaxed), STATE_EMPTY);

    for stream in [215, 0, 64, 63, 130, 64] {
        bench.memory.use_stream(stream);
    }
    assert_eq!(bench.memory.used_streams().collect::<Vec<_>>(), [0, 63, 64, 130, 215]);
    // A process that overwrites the bits cannot name a stream that does not exist.
    for word in &bench.memory.header().used_streams {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    assert_eq!(bench.memory.used_streams().count(), 216);
}

#[test]
fn a_busy_stream_leaves_the_others_what_is_theirs() {
    let bench = Bench::new(MODE_DISCARD);
    // A stream without kept pages gets the others; a stream with kept pages gets those too.
    let everybodys = 16 - 4;
    let mut drawn: Vec<u32> = std::iter::from_fn(|| bench.draw(9)).collect();
    drawn.sort_unstable();
    assert_eq!(drawn, (4..16).collect::<Vec<u32>>());
    assert_eq!(drawn.len(), everybodys);
    assert_eq!([bench.draw(3), bench.draw(3), bench.draw(3)], [Some(0), Some(1), None]);
    assert_eq!([bench.draw(130), bench.draw(130), bench.draw(130)], [Some(2), Some(3), None]);
    assert_eq!(bench.draw(215), None);
    assert_eq!(bench.census(), Census { limit: 16, drawn: 16, ..Census::default() });
    // A page that is given back stays kept for its stream.
    bench.memory.give_back(PROCESS, 130, GEOMETRY.unit_of_page(3));
    assert_eq!([bench.draw(9), bench.draw(3), bench.draw(130)], [None, None, Some(3)]);
}

#[test]
fn a_budget_grows_and_shrinks() {
    let bench = Bench::new(MODE_DISCARD);
    let held: Vec<u32> = std::iter::from_fn(|| bench.draw(3)).collect();
    assert_eq!(held.len(), 14);
    bench.memory.set_page_count_limit(32);
    assert_eq!(bench.census(), Census { limit: 32, free: 18, drawn: 14, ..Census::default() });
    let more: Vec<u32> = std::iter::from_fn(|| bench.draw(9)).collect();
    assert_eq!(more.len(), 16);
    assert!(!bench.memory.withhold(31, |_| 0), "it is in the budget");

    bench.memory.set_page_count_limit(10);
    let beyond = Census { limit: 10, free: 2, drawn: 8, beyond: 22, ..Census::default() };
    assert_eq!(bench.census(), beyond);
    assert!(!bench.memory.withhold(31, |_| 0), "it is still drawn");
    for index in more.into_iter().filter(|index| *index >= 10) {
        bench.memory.give_back(PROCESS, 9, GEOMETRY.unit_of_page(index));
        assert_eq!(bench.draw(9), None, "nobody draws it again");
        assert!(bench.memory.withhold(index, |_| 0));
        assert_eq!(bench.memory.owner_of(index), Some(Owner::Withheld));
    }
    assert_eq!(bench.census().beyond, 6);
    // A page that is closed is withheld once the consumer no longer needs it.
    let index = held.into_iter().find(|index| *index >= 10).expect("a page");
    bench.open(3, index);
    let next = bench.draw(130).expect("a page of its own");
    bench.memory.give_back(PROCESS, 130, GEOMETRY.unit_of_page(next));
    bench.open(3, 0);
    assert!(!bench.memory.withhold(index, |_| 0));
    assert!(bench.memory.withhold(index, |_| 1));

    // The limit is never below the kept pages, nor above the pages that exist.
    bench.memory.set_page_count_limit(1);
    assert_eq!(bench.memory.page_count_limit(), 4);
    bench.memory.set_page_count_limit(1_000);
    assert_eq!(bench.memory.page_count_limit(), 32);
}

#[test]
fn a_flight_recorder_that_shrinks_keeps_its_newest_pages() {
    let bench = Bench::new(MODE_OVERWRITE);
    bench.memory.set_page_count_limit(32);
    for _ in 0..100 {
        bench.switch(3);
    }
    bench.switch(130);
    let all = bench.retained(3);
    assert_eq!(all.last(), Some(&98));
    assert!(all.len() >= 28, "{}", all.len());

    bench.memory.set_page_count_limit(12);
    let mut rest = Vec::new();
    for index in 12..32 {
        let gone = bench.memory.withhold(index, |stream| bench.used(stream)) || bench.memory.relocate(index);
        rest.extend((!gone).then_some(index));
    }
    // Only the current pages stay where they are.
    let current = |stream: u32| {
        let state = State::from_word(bench.memory.stream(stream).state.load(Ordering::Relaxed));
        GEOMETRY.page_of_unit(state.unit).expect("a page")
    };
    assert!(rest.iter().all(|index| [current(3), current(130)].contains(index)), "{rest:?}");
    let kept = bench.retained(3);
    assert!(kept.len() >= 6, "{kept:?}");
    assert!(all.ends_with(&kept), "{kept:?} of {all:?}");
    for seq in kept {
        let unit = bench.memory.chain(3, seq);
        let index = GEOMETRY.page_of_unit(unit).expect("a page");
        assert!(index < 12 && unit as usize * UNIT_BYTES < GEOMETRY.size_bytes());
    }
    // Writing continues, and the last pages are moved by the next switches.
    for _ in 0..20 {
        bench.switch(3);
        bench.switch(130);
    }
    for index in rest {
        assert!(bench.memory.withhold(index, |stream| bench.used(stream)) || bench.memory.relocate(index));
    }
    let census = bench.census();
    assert_eq!((census.beyond, census.drawn), (0, 2));
    assert_eq!(bench.retained(3).last(), Some(&118));
}

#[test]
fn what_is_held_is_not_overwritten() {
    let bench = Bench::new(MODE_OVERWRITE);
    for _ in 0..40 {
        bench.switch(3);
    }
    bench.memory.set_page_count_limit(32);
    let held: Vec<(u64, u32)> = bench.retained(3).into_iter().map(|seq| (seq, bench.memory.chain(3, seq))).collect();
    assert!(held.len() > 8);
    assert!(held.iter().all(|&(seq, unit)| bench.memory.hold(3, seq, unit)));
    assert!(held.iter().all(|&(seq, unit)| !bench.memory.hold(3, seq, unit)), "once");
    // Writers take the other pages repeatedly, and give up the held ones.
    for _ in 0..100 {
        bench.switch(3);
        bench.switch(130);
    }
    assert!(bench.used(3) > held.last().unwrap().0);
    for &(seq, unit) in &held {
        assert_eq!(bench.memory.page_field(unit, page::OFFSET_SEQ), seq);
        bench.memory.let_go(3, seq, unit);
        assert!(bench.memory.owner_of(GEOMETRY.page_of_unit(unit).unwrap()).is_some());
    }
    // Held pages that were given up in the meantime are free now; one that was not is the stream's again.
    assert_eq!(bench.census().free as usize, held.len());
    let newest = *bench.retained(3).last().unwrap();
    let unit = bench.memory.chain(3, newest);
    assert!(bench.memory.hold(3, newest, unit));
    bench.memory.let_go(3, newest, unit);
    assert_eq!(bench.retained(3).last(), Some(&newest));
    assert!(!bench.memory.hold(3, newest + 1, unit) && !bench.memory.hold(3, newest, 0));
}

#[test]
fn losses_by_class_end_with_the_last_class() {
    let bench = Bench::new(MODE_DISCARD);
    assert_eq!((bench.memory.discarded_by_class(0), bench.memory.discarded_by_class(256)), (Some(0), None));
    for stream in [3, 210] {
        bench.memory.use_stream(stream);
        bench.memory.stream(stream).records_lost_by_class[255].store(u64::MAX - 1, Ordering::Relaxed);
    }
    assert_eq!((bench.memory.discarded_by_class(255), bench.memory.discarded_by_class(256)), (Some(u64::MAX), None));
}

/// The tables are in the memory, one behind the other, and are not read without rules.
#[test]
fn events_that_are_not_recorded_have_a_table_for_each_stream() {
    let bench = Bench::new(MODE_DISCARD);
    let counter = |stream| &bench.memory.unrecorded(stream).by_class[Reason::Rejected as usize][0];
    assert_eq!(core::ptr::from_ref(counter(0)).addr(), bench.memory.unrecorded_base().addr());
    let last = GEOMETRY.stream_count - 1;
    assert_eq!(core::ptr::from_ref(counter(last)).addr() - bench.memory.unrecorded_base().addr(), 4096 * last as usize);
    bench.memory.use_stream(last);
    counter(last).store(7, Ordering::Relaxed);
    assert_eq!(bench.memory.unrecorded_by_class(), None, "there are no rules, not even a register");
}

#[test]
fn a_view_stays_as_the_session_was_made_whatever_is_written_over_the_header() {
    for (mode, noise) in [(MODE_DISCARD, 1), (MODE_OVERWRITE, 0)] {
        let mut bench = Bench::new(mode);
        bench.backing[0].0[..size_of::<SessionLayout>()].fill(noise);
        let memory = bench.memory;
        assert_eq!((memory.is_overwrite(), memory.record_kind()), (mode == MODE_OVERWRITE, RecordKind::Ids));
        assert_eq!((memory.clock(), memory.uuid(), memory.geometry()), (CLOCK_MONOTONIC, [7; 16], &GEOMETRY));
        // SAFETY: the bench's memory, aligned, readable and writable.
        assert!(unsafe { Memory::from_raw(memory.base(), GEOMETRY.size_bytes()) }.is_err());
    }
}
