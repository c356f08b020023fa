//! The direct write path: what it writes, and that every exceptional case takes the slow path with nothing written.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_abi::class::{CLASS_ID_MAX, CLASS_ID_NONE};
use dormouse_abi::page;
use dormouse_abi::record::{HEADER_SIZE_BYTES, RecordKind, head_word};
use dormouse_abi::session::{CLOCK_TSC, MODE_OVERWRITE, State, expiry};
use dormouse_abi::tag::TagNames;
use dormouse_relay::arch::{Session, Site, rseq_write_at, timestamp};
use dormouse_relay::{Form, Memory, Record, Segment, Setup, WriteOutcome};
mod section;
use section::{GEOMETRY, NONE, OsPage, RSEQ_OFFSET, SESSION, SLOW, set_context, slow};

/// Counts a call of the slow path for segments, and adds up their bytes.
unsafe extern "C" fn slow_runs(
    id: *const u32,
    size_bytes: usize,
    _: MaybeUninit<u64>,
    first: *const Segment,
    end: *const Segment,
) {
    SLOW[0].fetch_add(1, Ordering::Relaxed);
    // SAFETY: the test passes a reference.
    let mut sum = u64::from(unsafe { id.read() }) + size_bytes as u64;
    let mut segment = first;
    while segment != end {
        // SAFETY: the test passes a slice.
        sum += unsafe { segment.read() }.len() as u64;
        segment = segment.wrapping_add(1);
    }
    SLOW[1].store(sum, Ordering::Relaxed);
}

macro_rules! define {
    ($($name:ident $fields:tt $arguments:tt $slow:ident),*) => {$(
        dormouse_relay::define_record! {
            /// # Safety
            /// The conditions of `define_record!`.
            fn $name(
                ids $fields $arguments, session: SESSION, rseq_offset: RSEQ_OFFSET, context: "test_context", slow: $slow
            )
        }
    )*};
}

define!(
    record_0 0 [] slow, record_1 1 [w0: u64] slow, record_2 2 [w0: u64, w1: u64] slow,
    record_3 3 [w0: u64, w1: u64, w2: u64] slow, record_runs runs [first: *const Segment, end: *const Segment] slow_runs
);

dormouse_relay::define_record! {
    /// # Safety
    /// The conditions of `define_record!`.
    fn record_key_1(
        ids 1 [w0: u64], session: SESSION, rseq_offset: RSEQ_OFFSET, context: "test_context", slow: slow, other: other
    )
}

/// Number of calls with a class that belongs to another owner.
static OTHER: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn other(_: *const u32, size_bytes: usize, which: MaybeUninit<u64>, w0: u64, _: u64, _: u64) {
    // SAFETY: the test passes an initialised word.
    assert_eq!((size_bytes, unsafe { which.assume_init() }, w0), (HEADER_SIZE_BYTES + 8, 99, 7));
    OTHER.fetch_add(1, Ordering::Relaxed);
}

/// An id and the word that names its owner.
#[repr(C, packed(4))]
struct Key {
    id: u32,
    of: u64,
}

const CONTEXT: u64 = 0x1234_5678_9abc_def0;

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

/// Writes a record of three words; returns the number of calls of the slow path.
fn write(id: u32) -> u64 {
    let before = SLOW[0].load(Ordering::Relaxed);
    // SAFETY: the test fulfils the macro's conditions: memory, registration, three words.
    unsafe { record_3(&id, HEADER_SIZE_BYTES + 20, MaybeUninit::uninit(), 11, 12, 13) };
    SLOW[0].load(Ordering::Relaxed) - before
}

#[test]
fn records_are_written_or_go_the_slow_way() {
    // There is one stream for one CPU: the thread stays on it.
    let Some(rseq) = section::on_one_cpu() else { return };
    let mut backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)];
    // SAFETY: valid, zeroed, aligned, and never moved.
    let memory =
        unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup(MODE_OVERWRITE, CLOCK_TSC)) };
    let control = memory.stream(0);
    let unit = memory.draw(3, 0, |_| 0).expect("a page");
    let begin = State { seq: 0, unit, offset: page::HEADER_SIZE_BYTES as u32 }.to_word();
    let open = |state: u64, expiry: u64| {
        control.state.store(state, Ordering::Relaxed);
        control.expiry.store(expiry, Ordering::Relaxed);
    };
    let later = expiry(timestamp());
    let fast = Box::leak(Box::new(Session::new(&memory, true)));
    let other = Box::leak(Box::new(Session::new(&memory, false)));

    // Violates each precondition alone, while the others are met.
    let written = |what: &str, id: u32| {
        let before = control.state.load(Ordering::Relaxed);
        let slow = write(id);
        assert_eq!(slow == 0, control.state.load(Ordering::Relaxed) != before, "{what}");
        slow == 0
    };
    open(begin, later);
    assert!(!written("no rseq, so no thread is known", 5));
    RSEQ_OFFSET.store(rseq.offset(), Ordering::Relaxed);
    assert!(!written("unknown thread", 5));
    set_context(CONTEXT);
    assert!(!written("no session", 5));
    SESSION.store(other, Ordering::Relaxed);
    assert!(!written("a session with another clock", 5));
    SESSION.store(fast, Ordering::Relaxed);
    assert!(!written("no id", CLASS_ID_NONE));
    assert!(!written("an id too large", u32::from(CLASS_ID_MAX) + 1));
    assert_eq!(SLOW[1].load(Ordering::Relaxed), u64::from(CLASS_ID_MAX) + 1 + 36 + 11 + 12 + 13, "arguments arrive");
    open(begin, timestamp() >> 32);
    assert!(!written("a page that spans too much time", 5));
    open(State { seq: 0, unit, offset: 4096 - page::SLACK_BYTES as u32 - 35 }.to_word(), later);
    assert!(!written("a full page", 5));
    open(State { seq: 0, unit: 1 << 20, offset: 80 }.to_word(), later);
    assert!(!written("a page outside of the memory", 5));
    open(dormouse_abi::session::STATE_EMPTY, 0);
    assert!(!written("no page yet", 5));

    // A preempted attempt takes the slow path too, so several are tried.
    open(begin, later);
    let started = timestamp();
    assert!((0..100).any(|_| written("everything in order", u32::from(CLASS_ID_MAX))));
    let after = timestamp();
    let state = State::from_word(control.state.load(Ordering::Relaxed));
    assert_eq!((state.unit, state.offset), (unit, page::HEADER_SIZE_BYTES as u32 + 36));
    let bytes = |from: usize, len: usize| {
        let page = memory.page(unit).expect("a page");
        // SAFETY: within the page.
        unsafe { std::slice::from_raw_parts(page.wrapping_add(from), len) }.to_vec()
    };
    let head = u64::from_le_bytes(bytes(page::HEADER_SIZE_BYTES, 8).try_into().unwrap());
    let mask = (1 << 48) - 1;
    assert_eq!(head as u16, CLASS_ID_MAX);
    assert!((started & mask..=after & mask).contains(&(head >> 16)));
    let expected: Vec<u8> = [CONTEXT, 11, 12, 13].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes(page::HEADER_SIZE_BYTES + 8, 28), expected[..28]);
    assert_eq!(head_word(head as u16, head >> 16), head);

    // A key is written only if the class has the expected owner.
    open(begin, later);
    let key = Key { id: 8, of: 77 };
    let write_key = |which| {
        let before = [SLOW[0].load(Ordering::Relaxed), OTHER.load(Ordering::Relaxed)];
        let (id, which) = (&raw const key.id, MaybeUninit::new(which));
        // SAFETY: the test fulfils the macro's conditions: memory, registration, one word; the owner is after the id.
        unsafe { record_key_1(id, HEADER_SIZE_BYTES + 8, which, 7) };
        [SLOW[0].load(Ordering::Relaxed) - before[0], OTHER.load(Ordering::Relaxed) - before[1]]
    };
    assert!((0..100).any(|_| write_key(99) == [0, 1]));
    assert_eq!(control.state.load(Ordering::Relaxed), begin);
    assert!((0..100).any(|_| write_key(77) == [0, 0]));
    assert_ne!(control.state.load(Ordering::Relaxed), begin);

    // The other lengths, up to the last byte of a page.
    for (words, len) in [(0, 0), (1, 3), (1, 8), (2, 16)] {
        let at = 4096 - page::SLACK_BYTES - HEADER_SIZE_BYTES - len;
        let done = (0..100).any(|_| {
            open(State { seq: 0, unit, offset: at as u32 }.to_word(), later);
            let (id, size, none) = (6, HEADER_SIZE_BYTES + len, MaybeUninit::uninit());
            let before = SLOW[0].load(Ordering::Relaxed);
            match words {
                // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words as it passes.
                0 => unsafe { record_0(&id, size, none) },
                // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words as it passes.
                1 => unsafe { record_1(&id, size, none, 21) },
                // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words as it passes.
                _ => unsafe { record_2(&id, size, none, 21, 22) },
            }
            SLOW[0].load(Ordering::Relaxed) == before
        });
        assert!(done, "{len} bytes");
        let expected: Vec<u8> = [CONTEXT, 21, 22].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(bytes(at + 8, 8 + len), expected[..8 + len]);
        let state = State::from_word(control.state.load(Ordering::Relaxed));
        assert_eq!(state.offset as usize, 4096 - page::SLACK_BYTES);
    }
    // Runs of every length and kind, up to the last byte of a page.
    let fields: Vec<u8> = (1..=200).collect();
    for len in (0..=40).chain([63, 64, 65, 100]) {
        let long = fields[100..].as_ptr();
        let small = [0x1122_3344_5566_7788u64, 0x99];
        let runs = [
            Segment::exact(fields.as_ptr(), len),
            Segment::padded(small.as_ptr().cast(), 9),
            Segment::EMPTY,
            Segment::exact(long, len),
            Segment::padded(small.as_ptr().cast(), 3),
        ];
        let size = HEADER_SIZE_BYTES + 2 * len + 12;
        let at = 4096 - page::SLACK_BYTES - size;
        let core::ops::Range { start, end } = runs.as_ptr_range();
        let write_runs = |at: usize| {
            open(State { seq: 0, unit, offset: at as u32 }.to_word(), later);
            let before = SLOW[0].load(Ordering::Relaxed);
            // SAFETY: the test fulfils the macro's conditions: memory, registration, an array of runs that may be read.
            unsafe { record_runs(&7, size, MaybeUninit::uninit(), start, end) };
            SLOW[0].load(Ordering::Relaxed) == before
        };
        assert!((0..100).any(|_| write_runs(at)), "{len} bytes");
        let small = small.map(u64::to_le_bytes).concat();
        let expected = [&fields[..len], &small[..9], &fields[100..100 + len], &small[..3]].concat();
        assert_eq!(bytes(at + HEADER_SIZE_BYTES, expected.len()), expected, "{len} bytes");
        assert_eq!(bytes(at + 8, 8), CONTEXT.to_le_bytes());
        let offset = State::from_word(control.state.load(Ordering::Relaxed)).offset as usize;
        assert_eq!(offset, 4096 - page::SLACK_BYTES);
        assert!(!write_runs(at + 1), "a full page");
        assert_eq!(SLOW[1].load(Ordering::Relaxed), 7 + (size + 2 * len + 12) as u64, "arguments arrive");
    }
    // Longer than any page, also in the upper half of 64 bits.
    for size in [4096, 1 << 32, u64::MAX as usize - 4096] {
        open(begin, later);
        let before = SLOW[0].load(Ordering::Relaxed);
        let none: *const Segment = core::ptr::null();
        // SAFETY: the test fulfils the macro's conditions: memory and registration. There are no runs: a size that does
        // not fit is refused before they are read.
        unsafe { record_runs(&7, size, MaybeUninit::uninit(), none, none) };
        assert_eq!(SLOW[0].load(Ordering::Relaxed), before + 1);
        assert_eq!(control.state.load(Ordering::Relaxed), begin);
    }
    SESSION.store((&raw const NONE).cast_mut(), Ordering::Relaxed);

    // The section of the slow path, which gets the time from its caller.
    let session_word = core::ptr::from_ref(fast);
    let site = || Site {
        rseq_offset: rseq.offset(),
        cpu: 0,
        control,
        session_word: &raw const session_word,
        session: session_word,
    };
    let segments = [Segment::exact(fields.as_ptr(), 33)];
    let record = Record::new(5, CONTEXT, &segments);
    let size = record.size_bytes(Form::Context);
    let last = State { seq: 0, unit, offset: (4096 - page::SLACK_BYTES - size) as u32 }.to_word();
    let outside = State { seq: 0, unit: 1 << 20, offset: 80 }.to_word();
    for (state, seen, expected) in [
        (last, last, WriteOutcome::Done),
        (last, begin, WriteOutcome::Aborted),
        (last + 1, last + 1, WriteOutcome::Full),
        (outside, outside, WriteOutcome::Full),
    ] {
        let mut written = (0..100).map(|_| {
            open(state, 0);
            // SAFETY: the stream of CPU 0, where the thread is; the source is an array.
            unsafe { rseq_write_at(site(), &record, Form::Context, seen, 0x1234_5678_9abc) }
        });
        let found = written.find(|written| *written != WriteOutcome::Aborted || expected == WriteOutcome::Aborted);
        assert_eq!(found, Some(expected));
        let is_changed = control.state.load(Ordering::Relaxed) != state;
        assert_eq!(is_changed, expected == WriteOutcome::Done);
    }
    open(last, 0);
    let other = core::ptr::from_ref(other);
    let gone = Site { session: other, ..site() };
    let mut written = (0..100).map(|_| {
        // SAFETY: the stream of CPU 0, where the thread is; the source is an array; the session that the site names
        // still exists.
        unsafe { rseq_write_at(gone, &record, Form::Context, last, 1) }
    });
    assert_eq!(written.find(|written| *written != WriteOutcome::Aborted), Some(WriteOutcome::Gone));
    let at = 4096 - page::SLACK_BYTES - size;
    let head = head_word(5, 0x1234_5678_9abc).to_le_bytes();
    assert_eq!(bytes(at, size), [&head[..], &CONTEXT.to_le_bytes(), &fields[..33]].concat());
}
