//! Sections of classes with a plan: which events they record, which they count, and which they leave to the slow path.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dormouse_abi::class::{CLASS_ID_MAX, CLASS_ID_NONE, CLASS_PLAN_SHIFT};
use dormouse_abi::page;
use dormouse_abi::record::{HEADER_SIZE_BYTES, RecordKind};
use dormouse_abi::rule::random;
use dormouse_abi::session::{CLOCK_TSC, MODE_OVERWRITE, Reason, State, expiry, lost_class_index};
use dormouse_abi::tag::TagNames;
use dormouse_relay::arch::{Comparison, Entry, Session, Source, timestamp};
use dormouse_relay::{Memory, Segment, Setup};
use dormouse_testing::random as below;

#[allow(dead_code, reason = "each test program uses a part of it")]
mod section;
use section::{GEOMETRY, NONE, OsPage, RSEQ_OFFSET, SESSION, SLOW, set_context};

/// Address of the entry for which the slow path was called last.
static SLOW_ENTRY: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn slow(_: *const u32, _: usize, entry: MaybeUninit<u64>) {
    SLOW[0].fetch_add(1, Ordering::Relaxed);
    // SAFETY: sections of classes with a plan pass the entry.
    SLOW_ENTRY.store(unsafe { entry.assume_init() }, Ordering::Relaxed);
}

/// Number of calls of the path of classes without a plan.
static UNPLANNED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn unplanned() {
    UNPLANNED.fetch_add(1, Ordering::Relaxed);
}

static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(std::ptr::null_mut());
static PLACE: AtomicU64 = AtomicU64::new(7);
static RANDOM: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const PLACE).cast_mut());

macro_rules! define {
    ($($name:ident $fields:tt $arguments:tt $slow:ident),*) => {$(
        dormouse_relay::define_record! {
            /// # Safety
            /// The conditions of `define_record!`.
            fn $name(
                planned $fields $arguments, entries: ENTRIES, random: RANDOM, rseq_offset: RSEQ_OFFSET,
                context: "test_context", slow: $slow, unplanned: unplanned
            )
        }
    )*};
}

define!(
    planned_0 0 [] slow, planned_1 1 [w0: u64] slow, planned_2 2 [w0: u64, w1: u64] slow,
    planned_3 3 [w0: u64, w1: u64, w2: u64] slow,
    planned_runs runs [first: *const Segment, end: *const Segment] slow
);

/// Number of the plan, and id of its class.
const PLAN: u32 = 3;
const ID: u16 = 5;

/// Word of the second session.
static SECOND: AtomicPtr<Session> = AtomicPtr::new((&raw const NONE).cast_mut());

/// Outcome of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Recorded,
    Counted,
    Slow,
    Unplanned,
}

/// A session of one CPU that has a page.
struct Bench {
    memory: Memory,
    unit: u32,
    entry: &'static Entry,
    session_word: &'static AtomicPtr<Session>,
}

/// Makes the entries of the first session's slot, and returns the plan's.
fn first_entry() -> &'static Entry {
    let entries = entries();
    ENTRIES.store(entries.as_ptr().cast_mut(), Ordering::Relaxed);
    &entries[PLAN as usize]
}

fn entries() -> &'static [Entry] {
    // SAFETY: entries of zeroes are valid.
    let entries: Vec<Entry> = (0..=PLAN).map(|_| unsafe { std::mem::zeroed() }).collect();
    entries.leak()
}

impl Bench {
    fn new(entry: &'static Entry, session_word: &'static AtomicPtr<Session>) -> Bench {
        let backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)].leak();
        let setup = Setup {
            mode: MODE_OVERWRITE,
            clock: CLOCK_TSC,
            uuid: [7; 16],
            kind: RecordKind::Ids,
            tags: TagNames::NONE,
            page_count_limit: GEOMETRY.page_count,
            kept_for: &[],
            kept_each: 0,
        };
        // SAFETY: valid, zeroed, aligned, and never freed.
        let memory = unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup) };
        let unit = memory.draw(3, 0, |_| 0).expect("a page");
        session_word.store(Box::leak(Box::new(Session::new(&memory, true))), Ordering::Relaxed);
        Bench { memory, unit, entry, session_word }
    }

    fn set(&self, comparison: &Comparison) {
        self.entry.stop();
        // SAFETY: no section runs meanwhile; the session has one CPU, and nothing of it is unmapped.
        unsafe { self.entry.set(ID, comparison, self.session_word) };
    }

    fn counter(&self, reason: Reason) -> &AtomicU64 {
        &self.memory.unrecorded(0).by_class[reason as usize][lost_class_index(ID)]
    }

    /// Makes the page empty, and lets records of the present time in. Returns the state word.
    fn open(&self) -> u64 {
        let control = self.memory.stream(0);
        let begin = State { seq: 0, unit: self.unit, offset: page::HEADER_SIZE_BYTES as u32 }.to_word();
        control.state.store(begin, Ordering::Relaxed);
        control.expiry.store(expiry(timestamp()), Ordering::Relaxed);
        begin
    }

    /// Writes an event of a class whose word is `word`, and returns its outcome.
    fn write(&self, word: u32, reason: Reason, write: &dyn Fn(*const u32)) -> Outcome {
        let control = self.memory.stream(0);
        let begin = self.open();
        let changed = || {
            let state = u64::from(control.state.load(Ordering::Relaxed) != begin);
            let slow = SLOW[0].load(Ordering::Relaxed);
            [state, self.counter(reason).load(Ordering::Relaxed), slow, UNPLANNED.load(Ordering::Relaxed)]
        };
        let before = changed();
        write(&word);
        let after = changed();
        let differences: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        match differences[..] {
            [1, 0, 0, 0] => Outcome::Recorded,
            [0, 1, 0, 0] => Outcome::Counted,
            [0, 0, 1, 0] => Outcome::Slow,
            [0, 0, 0, 1] => Outcome::Unplanned,
            _ => panic!("{differences:?}"),
        }
    }

    /// The same, without what the kernel has interrupted.
    fn outcome(&self, reason: Reason, write: &dyn Fn(*const u32)) -> Outcome {
        let word = PLAN << CLASS_PLAN_SHIFT | u32::from(ID);
        let mut outcomes = (0..3).map(|_| self.write(word, reason, write));
        outcomes.find(|outcome| *outcome != Outcome::Slow).unwrap_or(Outcome::Slow)
    }
}

const NOTHING: Comparison = Comparison {
    source: Source::Word,
    first_run_size_bytes: 0,
    word: 0,
    run_size_bytes_min: 8,
    scale: 1,
    first: 0,
    span: 0,
    reason: Reason::Rejected,
};

/// Whether a number is in the range, by arithmetic of 128 bits.
fn is_in(comparison: &Comparison, number: u64) -> bool {
    let modulus = 1_u128 << 64;
    let scaled = u128::from(number) * u128::from(comparison.scale) % modulus;
    (scaled + modulus - u128::from(comparison.first)) % modulus <= u128::from(comparison.span)
}

/// Calls a section with these values of the registers of id, size and words, and returns the values after the call.
fn call_with(values: [u64; 4]) -> [u64; 4] {
    let [mut id, mut size, mut w0, mut w1] = values;
    // SAFETY: the test fulfils the macro's conditions: memory, registration, one word. The registers that the section may
    // change are declared.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "call {section}",
            section = sym planned_1,
            inout("rdi") id,
            inout("rsi") size,
            inout("rcx") w0,
            inout("r8") w1,
            out("rax") _, out("rdx") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    // SAFETY: the test fulfils the macro's conditions: memory, registration, one word. The registers that the section may
    // change are declared.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "bl {section}",
            section = sym planned_1,
            inout("x0") id,
            inout("x1") size,
            inout("x3") w0,
            inout("x4") w1,
            out("x2") _, out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x16") _, out("x17") _,
            out("x30") _,
        );
    }
    [id, size, w0, w1]
}

/// Writes events into two sessions, of which each has an entry: what happens in one does not depend on the other.
fn in_two_sessions(first: &Bench) {
    let second = Bench::new(&entries()[PLAN as usize], &SECOND);
    second.counter(Reason::Rejected).store(1, Ordering::Relaxed);
    // Comparisons by which the event is recorded, counted, recorded, and left to the slow path; nobody wants it.
    let everybody = Comparison { source: Source::Everybody, ..NOTHING };
    let comparisons = [Some(everybody), Some(NOTHING), Some(Comparison { first: 7, ..NOTHING }), None];
    let set = |bench: &Bench, comparison: Option<&Option<Comparison>>| match comparison {
        Some(Some(comparison)) => bench.set(comparison),
        Some(None) => bench.entry.stop(),
        None => bench.entry.pass(),
    };
    first.entry.link(Some(second.entry));
    for (one, other) in (0..=4).flat_map(|one| (0..=4).map(move |other| (one, other))) {
        set(first, comparisons.get(one));
        set(&second, comparisons.get(other));
        let expected = |index: usize| match index {
            0 | 2 => (true, 0),
            1 => (false, 1),
            _ => (false, 0),
        };
        // The slow path is called for the first entry that needs it, and decides for those that follow.
        let (slow, of_second) = match (one, other) {
            (3, _) => (Some(first.entry), (false, 0)),
            (_, 3) => (Some(second.entry), (false, 0)),
            _ => (None, expected(other)),
        };
        let is_as_expected = (0..3).any(|_| {
            let begins = [first.open(), second.open()];
            let counted = || [first, &second].map(|bench| bench.counter(Reason::Rejected).load(Ordering::Relaxed));
            let (before, calls) = (counted(), SLOW[0].load(Ordering::Relaxed));
            let word = PLAN << CLASS_PLAN_SHIFT | u32::from(ID);
            // SAFETY: the test fulfils the macro's conditions: memory, registration, one word.
            unsafe { planned_1(&word, HEADER_SIZE_BYTES + 8, MaybeUninit::uninit(), 7) };
            let states = [first, &second].map(|bench| bench.memory.stream(0).state.load(Ordering::Relaxed));
            let found = [0, 1].map(|index| (states[index] != begins[index], counted()[index] - before[index]));
            let calls = SLOW[0].load(Ordering::Relaxed) - calls;
            let entry = SLOW_ENTRY.load(Ordering::Relaxed);
            found == [expected(one), of_second]
                && calls == u64::from(slow.is_some())
                && slow.is_none_or(|slow| std::ptr::from_ref(slow).addr() as u64 == entry)
        });
        assert!(is_as_expected, "{one} {other}");
    }
    first.entry.link(None);
}

#[test]
fn events_are_recorded_counted_or_left_to_the_slow_path() {
    let Some(rseq) = section::on_one_cpu() else { return };
    RSEQ_OFFSET.store(rseq.offset(), Ordering::Relaxed);
    set_context(0x1234_5678_9abc_def0);
    let bench = Bench::new(first_entry(), &SESSION);
    let (none, size) = (MaybeUninit::uninit(), |len: usize| HEADER_SIZE_BYTES + len);
    let (recorded, counted) = (Outcome::Recorded, Outcome::Counted);
    let mut below = below(41);
    let mut number = || (0..4).fold(0, |number, _| number << 16 | below(1 << 16) as u64);

    // SAFETY: the test fulfils the macro's conditions: memory, registration, one word.
    let seven = &|word: *const u32| unsafe { planned_1(word, size(8), none, 7) };
    // Classes without a plan, and one without an id.
    for word in [5, CLASS_ID_NONE, u32::from(CLASS_ID_MAX)] {
        assert_eq!(bench.write(word, Reason::Rejected, seven), Outcome::Unplanned, "{word:#x}");
    }
    let passed = Comparison { first: 7, ..NOTHING };
    assert_eq!(bench.outcome(Reason::Rejected, seven), Outcome::Slow, "an entry that is not set");
    bench.set(&passed);
    assert_eq!(bench.outcome(Reason::Rejected, seven), recorded);
    bench.set(&Comparison { first: 8, ..NOTHING });
    assert_eq!(bench.outcome(Reason::Rejected, seven), Outcome::Slow, "the table may not be in use");
    for reason in [Reason::Rejected, Reason::SampledOut] {
        bench.counter(reason).store(1, Ordering::Relaxed);
    }
    assert_eq!(bench.outcome(Reason::Rejected, seven), counted);
    bench.entry.stop();
    assert_eq!(bench.outcome(Reason::Rejected, seven), Outcome::Slow, "an entry that was stopped");

    // Sites expect these registers to stay as they are.
    for (comparison, expected) in [(passed, recorded), (Comparison { first: 8, ..NOTHING }, counted)] {
        bench.set(&comparison);
        let write: &dyn Fn(*const u32) = &|id| {
            let before = [id.addr() as u64, size(8) as u64, 7, 8];
            assert_eq!(call_with(before), before);
        };
        assert_eq!(bench.outcome(Reason::Rejected, write), expected);
    }

    in_two_sessions(&bench);

    // Words of fields.
    for case in 0..3_000 {
        let words = [number(), number(), number()];
        let scale = 1 << (8 * (number() % 8));
        let word = (number() % 3) as u32;
        let first = words[word as usize].wrapping_mul(scale).wrapping_add(number() % 3).wrapping_sub(1);
        let span = [0, 1, u64::MAX, number()][case % 4];
        let comparison = Comparison { word, scale, first, span, reason: Reason::SampledOut, ..NOTHING };
        bench.set(&comparison);
        let [w0, w1, w2] = words;
        let expected = if is_in(&comparison, words[word as usize]) { recorded } else { counted };
        let what = format!("{words:x?} {comparison:x?}");
        // SAFETY: the test fulfils the macro's conditions: memory, registration, three words.
        let write: &dyn Fn(*const u32) = &|id| unsafe { planned_3(id, size(24), none, w0, w1, w2) };
        assert_eq!(bench.outcome(Reason::SampledOut, write), expected, "{what}");
        if word < 2 {
            // SAFETY: the test fulfils the macro's conditions: memory, registration, two words.
            let write: &dyn Fn(*const u32) = &|id| unsafe { planned_2(id, size(16), none, w0, w1) };
            assert_eq!(bench.outcome(Reason::SampledOut, write), expected, "{what}");
        }
        if word == 0 {
            // SAFETY: the test fulfils the macro's conditions: memory, registration, one word.
            let write: &dyn Fn(*const u32) = &|id| unsafe { planned_1(id, size(8), none, w0) };
            assert_eq!(bench.outcome(Reason::SampledOut, write), expected, "{what}");
        }
    }

    // Random numbers are those of the sequence.
    let half = Comparison { source: Source::Random, span: u64::MAX / 2, reason: Reason::SampledOut, ..NOTHING };
    bench.set(&half);
    for _ in 0..1_000 {
        let place = PLACE.load(Ordering::Relaxed);
        // SAFETY: the test fulfils the macro's conditions: memory, registration, no words.
        let write: &dyn Fn(*const u32) = &|id| unsafe { planned_0(id, size(0), none) };
        let outcome = bench.outcome(Reason::SampledOut, write);
        let (next, number) = random(place);
        // Otherwise the kernel has interrupted a section that had drawn.
        if PLACE.load(Ordering::Relaxed) == next {
            assert_eq!(outcome, if is_in(&half, number) { recorded } else { counted });
        }
    }

    // Runs: a word of the first or second one, if it is as long as it must be.
    let bytes: [u8; 64] = core::array::from_fn(|index| (index as u8).wrapping_mul(37).wrapping_add(1));
    for _ in 0..3_000 {
        let lens = [1 + number() as usize % 40, number() as usize % 40];
        let (at, is_padded) = (number() as usize % 24, number() % 2 == 0);
        let first = if is_padded { Segment::padded } else { Segment::exact };
        let runs = [first(bytes.as_ptr(), lens[0]), Segment::exact(bytes[at..].as_ptr(), lens[1])];
        let count = 1 + number() as usize % 2;
        let run = number() as usize % 2;
        let first_run_size_bytes = [0, lens[0] - number() as usize % 2][run] as u32;
        let comparison = Comparison {
            source: if number() % 2 == 0 { Source::Word } else { Source::Text },
            first_run_size_bytes,
            word: number() as u32 % 4,
            run_size_bytes_min: number() as u32 % 40,
            span: u64::MAX / 2,
            ..NOTHING
        };
        bench.set(&comparison);
        let Comparison { word, run_size_bytes_min, .. } = comparison;
        // The second run is never the word's if the first one has no bytes.
        let run = if first_run_size_bytes == 0 { 0 } else { run };
        let word_count = if run == 0 && is_padded { lens[0].div_ceil(8) } else { lens[run] / 8 };
        let is_there = run < count
            && (run == 0 || first_run_size_bytes as usize == lens[0])
            && run_size_bytes_min as usize <= lens[run]
            && (word as usize) < word_count;
        let expected = if is_there {
            let begin = [0, at][run] + 8 * word as usize;
            let loaded = u64::from_le_bytes(bytes[begin..begin + 8].try_into().unwrap());
            let number = if comparison.source == Source::Text { loaded.swap_bytes() } else { loaded };
            if is_in(&comparison, number) { recorded } else { counted }
        } else {
            Outcome::Slow
        };
        let whole: usize = runs[..count].iter().map(Segment::len).sum();
        let core::ops::Range { start, end } = runs[..count].as_ptr_range();
        // SAFETY: the test fulfils the macro's conditions: memory, registration, an array of runs.
        let outcome = bench.outcome(Reason::Rejected, &|id| unsafe { planned_runs(id, size(whole), none, start, end) });
        assert_eq!(outcome, expected, "{lens:?} {count} {is_padded} {comparison:x?}");
    }
}
