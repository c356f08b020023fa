//! Sections for records without context: what they write, and that every exceptional case takes the slow path with
//! nothing written.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use dormouse_abi::class::CLASS_ID_NONE;
use dormouse_abi::page;
use dormouse_abi::record::{HEADER_SIZE_BYTES, RecordKind, compact_header, epoch, extended_header};
use dormouse_abi::session::{CLOCK_TSC, MODE_OVERWRITE, State, StreamControl, expiry};
use dormouse_abi::tag::TagNames;
use dormouse_percpu::Rseq;
use dormouse_relay::arch::{Session, Site, rseq_write_at, timestamp};
use dormouse_relay::{Form, Memory, Record, Segment, Setup, WriteOutcome};
mod section;
use section::{GEOMETRY, NONE, OsPage, RSEQ_OFFSET, SESSION, SLOW, set_context, slow};

/// Counts a call of the slow path for segments.
unsafe extern "C" fn slow_runs(
    _: *const u32,
    _: usize,
    _: MaybeUninit<u64>,
    first: *const Segment,
    end: *const Segment,
) {
    assert_eq!(end.addr() - first.addr(), 2 * size_of::<Segment>(), "arguments arrive");
    SLOW[0].fetch_add(1, Ordering::Relaxed);
}

macro_rules! define {
    ($($name:ident $compact:ident $fields:tt $arguments:tt $slow:ident),*) => {$(
        dormouse_relay::define_record! {
            /// # Safety
            /// The conditions of `define_record!`.
            fn $name(
                ids $fields $arguments, session: SESSION, rseq_offset: RSEQ_OFFSET, context: "test_context", slow: $compact
            )
        }
        dormouse_relay::define_record! {
            /// # Safety
            /// The conditions of `define_record!`.
            fn $compact(
                compact $fields $arguments, session: SESSION, rseq_offset: RSEQ_OFFSET, context: "test_context", slow: $slow
            )
        }
    )*};
}

define!(
    record_0 compact_0 0 [] slow, record_1 compact_1 1 [w0: u64] slow, record_2 compact_2 2 [w0: u64, w1: u64] slow,
    record_3 compact_3 3 [w0: u64, w1: u64, w2: u64] slow,
    record_runs compact_runs runs [first: *const Segment, end: *const Segment] slow_runs
);

/// A session's memory, the stream of the CPU that the thread stays on, and a page of it.
struct Bench {
    _backing: Vec<OsPage>,
    memory: Memory,
    session: &'static Session,
    unit: u32,
}

impl Bench {
    fn new(kind: RecordKind) -> Bench {
        let mut backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)];
        let base = backing.as_mut_ptr().cast();
        let page_count_limit = GEOMETRY.page_count;
        let (mode, clock, uuid) = (MODE_OVERWRITE, CLOCK_TSC, [7; 16]);
        let setup =
            Setup { mode, clock, uuid, kind, tags: TagNames::NONE, page_count_limit, kept_for: &[], kept_each: 0 };
        // SAFETY: valid, zeroed, aligned, and never moved.
        let memory = unsafe { Memory::initialise(base, &GEOMETRY, &setup) };
        let session = Box::leak(Box::new(Session::new(&memory, true)));
        let unit = memory.draw(3, 0, |_| 0).expect("a page");
        Bench { _backing: backing, memory, session, unit }
    }

    fn control(&self) -> &StreamControl {
        self.memory.stream(0)
    }

    /// Sets the stream's next offset and its epoch.
    fn open(&self, offset: usize, epoch: u64) {
        let state = State { seq: 0, unit: self.unit, offset: offset as u32 };
        self.open_at(state.to_word(), epoch);
    }

    fn open_at(&self, state: u64, epoch: u64) {
        self.control().expiry.store(expiry(timestamp()), Ordering::Relaxed);
        self.control().epoch.store(epoch, Ordering::Relaxed);
        self.control().state.store(state, Ordering::Relaxed);
    }

    fn offset(&self) -> usize {
        State::from_word(self.control().state.load(Ordering::Relaxed)).offset as usize
    }

    fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let page = self.memory.page(self.unit).expect("a page");
        // SAFETY: within the page.
        unsafe { std::slice::from_raw_parts(page.wrapping_add(from), len) }.to_vec()
    }
}

/// Writes a record of `len` bytes of words; returns whether it was written without the slow path.
fn write(id: u32, len: usize) -> bool {
    let before = SLOW[0].load(Ordering::Relaxed);
    let (id, size, none) = (&raw const id, HEADER_SIZE_BYTES + len, MaybeUninit::uninit());
    match len.div_ceil(8) {
        // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words as the length needs.
        0 => unsafe { record_0(id, size, none) },
        // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words as the length needs.
        1 => unsafe { record_1(id, size, none, 11) },
        // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words as the length needs.
        2 => unsafe { record_2(id, size, none, 11, 12) },
        // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words as the length needs.
        _ => unsafe { record_3(id, size, none, 11, 12, 13) },
    }
    SLOW[0].load(Ordering::Relaxed) == before
}

#[test]
fn records_are_written_or_go_the_slow_way() {
    let Some(rseq) = section::on_one_cpu() else { return };
    let bench = Bench::new(RecordKind::Compact);
    let start = page::HEADER_SIZE_BYTES;
    let now = || epoch(timestamp());

    // Violates each precondition alone, while the others are met.
    let written = |what: &str, id: u32| {
        let before = bench.control().state.load(Ordering::Relaxed);
        let is_written = write(id, 20);
        assert_eq!(is_written, bench.control().state.load(Ordering::Relaxed) != before, "{what}");
        is_written
    };
    bench.open(start, now());
    assert!(!written("no rseq, so no thread is known", 5));
    RSEQ_OFFSET.store(rseq.offset(), Ordering::Relaxed);
    assert!(!written("unknown thread", 5));
    set_context(1);
    assert!(!written("no session", 5));
    let ids = Bench::new(RecordKind::Ids);
    SESSION.store(core::ptr::from_ref(ids.session).cast_mut(), Ordering::Relaxed);
    assert!(!written("records with context, no page yet", 5));
    assert_eq!(ids.control().state.load(Ordering::Relaxed), dormouse_abi::session::STATE_EMPTY);
    SESSION.store(core::ptr::from_ref(bench.session).cast_mut(), Ordering::Relaxed);
    assert!(!written("no id", CLASS_ID_NONE));
    assert!(!written("an id that only an extended record has", 255));
    assert!(!written("an id beyond 16 bits", 0x1_0005));
    assert_eq!(SLOW[1].load(Ordering::Relaxed), 0x1_0005 + 36 + 11 + 12 + 13, "arguments arrive");
    for (what, epoch) in [("no epoch", 0), ("an older epoch", now() - 1), ("a younger epoch", now() + 2)] {
        bench.open(start, epoch);
        assert!(!written(what, 5));
    }
    bench.open(4096 - page::SLACK_BYTES - 24, now());
    assert!(!written("a full page", 5));
    bench.open_at(State { seq: 0, unit: 1 << 20, offset: 80 }.to_word(), now());
    assert!(!written("a page outside of the memory", 5));
    bench.open_at(dormouse_abi::session::STATE_EMPTY, 0);
    assert!(!written("no page yet", 5));

    // Tries all lengths, at the first and the last place in a page. A preempted attempt takes the slow path too, so
    // several are tried.
    for (id, len) in [(0u32, 0), (254, 3), (5, 8), (5, 16), (5, 17), (5, 24)] {
        for at in [start, 4096 - page::SLACK_BYTES - 5 - len] {
            let mut started = 0;
            let done = (0..100).any(|_| {
                started = timestamp();
                bench.open(at, epoch(started));
                write(id, len)
            });
            assert!(done, "{len} bytes at {at}");
            let header: [u8; 5] = bench.bytes(at, 5).try_into().unwrap();
            assert_eq!(u32::from(header[0]), id);
            let low = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
            let ticks = low.wrapping_sub(started as u32);
            assert!(u64::from(ticks) <= timestamp() - started, "{ticks}");
            let words: Vec<u8> = [11u64, 12, 13].iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(bench.bytes(at + 5, len), words[..len]);
            assert_eq!(bench.offset(), at + 5 + len);
        }
    }
    longer_records(rseq, &bench);
    SESSION.store((&raw const NONE).cast_mut(), Ordering::Relaxed);
}

/// Writes records of several runs, whose time is read in the section or before it.
fn longer_records(rseq: Rseq, bench: &Bench) {
    let session_word = core::ptr::from_ref(bench.session);
    let site = || Site {
        rseq_offset: rseq.offset(),
        cpu: 0,
        control: bench.control(),
        session_word: &raw const session_word,
        session: session_word,
    };
    let fields: Vec<u8> = (1..=40).collect();
    for len in [0, 1, 7, 8, 21] {
        let (first, second) = fields[..len + 9].split_at(len);
        let segments = [Segment::exact(first.as_ptr(), len), Segment::exact(second.as_ptr(), 9)];
        let record = Record::new(254, 0, &segments);
        let last = |form| 4096 - page::SLACK_BYTES - record.size_bytes(form);
        let core::ops::Range { start, end } = segments.as_ptr_range();
        let write_compact = |at: usize, epoch: u64| {
            bench.open(at, epoch);
            let before = SLOW[0].load(Ordering::Relaxed);
            // SAFETY: the test fulfils the macro's conditions: memory, registration, and runs of an array.
            unsafe { record_runs(&254, record.size_bytes(Form::Context), MaybeUninit::uninit(), start, end) };
            SLOW[0].load(Ordering::Relaxed) == before
        };
        let now = || epoch(timestamp());
        assert!(!write_compact(last(Form::Compact) + 1, now()));
        assert!(!write_compact(last(Form::Compact), 0));
        assert!(!write_compact(last(Form::Compact), now() - 1));
        assert_eq!(bench.offset(), last(Form::Compact));
        let started = timestamp();
        // A preempted attempt takes the slow path too, and the epoch may end in between.
        assert!((0..100).any(|_| write_compact(last(Form::Compact), now())));
        let header = bench.bytes(last(Form::Compact), 5);
        let low = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
        assert!(header[0] == 254 && u64::from(low.wrapping_sub(started as u32)) <= timestamp() - started);
        assert_eq!(bench.bytes(last(Form::Compact) + 5, len + 9), fields[..len + 9]);
        assert_eq!(bench.offset(), 4096 - page::SLACK_BYTES);

        let time = 0x0123_4567_89ab_cdef;
        for (form, header) in
            [(Form::Compact, compact_header(254, time).to_vec()), (Form::Extended, extended_header(254, time).to_vec())]
        {
            let write_at = |at: usize, changed: u64| {
                (0..100)
                    .map(|_| {
                        bench.open(at, 0);
                        let state = bench.control().state.load(Ordering::Relaxed) + changed;
                        // SAFETY: the stream of CPU 0, where the thread is; the runs are those of an array.
                        unsafe { rseq_write_at(site(), &record, form, state, time) }
                    })
                    .find(|written| (*written == WriteOutcome::Aborted) == (changed != 0))
            };
            assert_eq!(write_at(last(form), 1), Some(WriteOutcome::Aborted));
            assert_eq!(bench.offset(), last(form));
            assert_eq!(write_at(last(form) + 1, 0), Some(WriteOutcome::Full));
            assert_eq!(write_at(last(form), 0), Some(WriteOutcome::Done));
            let expected = [&header, &fields[..len + 9]].concat();
            assert_eq!(bench.bytes(last(form), expected.len()), expected);
            assert_eq!(bench.offset(), 4096 - page::SLACK_BYTES);
        }
    }
}
