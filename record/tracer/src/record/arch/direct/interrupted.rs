//! The sections of this crate are interrupted at each of their injection points, by a handler that records as well: the
//! record that the slow path then writes is there once, after the handler's.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_abi::page;
use dormouse_abi::record::{COMPACT_HEADER_SIZE_BYTES, EXTENDED, EXTENDED_HEADER_SIZE_BYTES, RecordKind};
use dormouse_abi::session::{CLOCK_TSC, Geometry, MODE_DISCARD, State};
use dormouse_abi::tag::TagNames;
use dormouse_backing::{MemoryOptions, Pool};
use dormouse_percpu::Rseq;
use dormouse_relay::{Memory, Setup};
use dormouse_testing::{Lack, skip};

use super::*;
use crate::control::lock;
use crate::tests::alone;

/// The chosen point, and the number of passes before it interrupts.
pub(super) static INJECTED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
/// Number of interruptions.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);
/// Classes of the records under test and of the handler's.
static ID: AtomicU32 = AtomicU32::new(7);
static HANDLER_ID: AtomicU32 = AtomicU32::new(9);

const WORDS: [u64; 3] = [0x1111_1111_1111_1111, 0x2222_2222_2222_2222, 0x3333_3333_3333_3333];
const HANDLER_WORD: u64 = 0x9999_9999_9999_9999;
/// Number of runs of a record of runs.
const RUN_COUNT: u32 = 3;
const GEOMETRY: Geometry =
    Geometry { page_size_bytes: 1 << 16, page_count: 4, cpu_count: 64, stream_count: 66, has_register: true };

extern "C" fn on_trap(_: libc::c_int) {
    INJECTED[0].store(0, Ordering::Relaxed);
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    record_words(&HANDLER_ID, 8, [HANDLER_WORD, 0, 0]);
}

/// Restricts the thread to CPU 0. False if it may not run there.
fn stay_on_one_cpu() -> bool {
    // SAFETY: all zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: every set has a CPU 0.
    unsafe { libc::CPU_SET(0, &mut set) };
    // SAFETY: the set has the size that is passed.
    (unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) }) == 0
}

fn state(memory: &Memory) -> State {
    State::from_word(memory.stream(0).state.load(Ordering::Acquire))
}

/// Returns what stream 0 holds from a state on, in the same page.
fn content_since(memory: &Memory, before: State) -> Vec<u8> {
    let after = state(memory);
    assert_eq!((before.seq, before.unit), (after.seq, after.unit), "the page is large enough");
    let begin = memory.page(before.unit).expect("a page").wrapping_add(before.offset as usize);
    // SAFETY: a part of the page, below the offset of the stream's state: no thread writes it any more.
    unsafe { core::slice::from_raw_parts(begin, (after.offset - before.offset) as usize) }.to_vec()
}

/// Takes a record with these fields from the beginning of `content`, and returns the rest.
fn without_record<'a>(content: &'a [u8], kind: RecordKind, id: &AtomicU32, fields: &[u8], what: &str) -> &'a [u8] {
    let (found, header) = match (kind, content[0]) {
        (RecordKind::Ids, _) => (u16::from_le_bytes([content[0], content[1]]), HEADER_SIZE_BYTES),
        (RecordKind::Compact, EXTENDED) => (u16::from_le_bytes([content[1], content[2]]), EXTENDED_HEADER_SIZE_BYTES),
        (RecordKind::Compact, id) => (id.into(), COMPACT_HEADER_SIZE_BYTES),
    };
    assert_eq!(u32::from(found), id.load(Ordering::Relaxed), "{what}");
    assert_eq!(content[header..header + fields.len()], *fields, "{what}");
    &content[header + fields.len()..]
}

/// Interrupts the sections that `write` executes at each point.
fn interrupt_each(memory: &Memory, kind: RecordKind, fields: &[u8], run_count: u32, write: &dyn Fn()) {
    // In a session with compact records, the section for others is entered first, and only as far as its first point.
    let first = (0..if kind == RecordKind::Compact { 2 } else { 1 }).map(|passes| (1, passes));
    let points = first.chain([2, 3, 4, 6].map(|point| (point, 0))).chain((0..run_count).map(|run| (5, run)));
    for (point, passes) in points {
        let what = format!("{kind:?}, {} bytes, point {point} after {passes}", fields.len());
        // A section that was preempted before the point, or whose epoch was over, writes without an interruption.
        let is_interrupted = (0..1_000).any(|_| {
            let (begin, before) = (state(memory), INTERRUPTED.load(Ordering::Relaxed));
            INJECTED[1].store(passes, Ordering::Relaxed);
            INJECTED[0].store(point, Ordering::Relaxed);
            write();
            INJECTED[0].store(0, Ordering::Relaxed);
            let content = content_since(memory, begin);
            let is_interrupted = INTERRUPTED.load(Ordering::Relaxed) != before;
            let handlers = &HANDLER_WORD.to_le_bytes();
            let own =
                if is_interrupted { without_record(&content, kind, &HANDLER_ID, handlers, &what) } else { &content };
            let rest = without_record(own, kind, &ID, fields, &what);
            assert!(rest.is_empty(), "{what}: more than the records: {rest:?}");
            is_interrupted
        });
        assert!(is_interrupted, "{what}");
    }
}

#[test]
fn an_interrupted_record_is_written_once() {
    let _alone = alone();
    if Rseq::detect().is_none() {
        let remedy = "a kernel that has rseq(2), and no emulator";
        return skip(Lack::machine("there are no restartable sequences here", remedy));
    }
    if !stay_on_one_cpu() {
        return skip(Lack::machine("this process may not run on CPU 0", "`taskset -c 0-` before the tests"));
    }
    // SAFETY: the handler is async-signal-safe; nothing else in this program raises the signal.
    assert_ne!(unsafe { libc::signal(libc::SIGTRAP, on_trap as *const () as libc::sighandler_t) }, libc::SIG_ERR);
    let small = [WORDS[0], 0x55];
    let bytes: [u8; 33] = core::array::from_fn(|index| index as u8 + 1);
    let runs = [
        Segment::exact(bytes.as_ptr(), 33),
        Segment::padded(small.as_ptr().cast(), 9),
        Segment::exact(bytes.as_ptr(), 5),
    ];
    let run_fields = [&bytes[..], &WORDS[0].to_le_bytes(), &[0x55], &bytes[..5]].concat();
    let words: Vec<u8> = WORDS.iter().flat_map(|word| word.to_le_bytes()).collect();
    for kind in [RecordKind::Ids, RecordKind::Compact] {
        let pool = Pool::new("interrupted", GEOMETRY.size_bytes(), MemoryOptions::new().prefault(false)).unwrap();
        let (uuid, page_count_limit) = ([kind as u8 + 1; 16], GEOMETRY.page_count);
        let setup = Setup {
            mode: MODE_DISCARD,
            clock: CLOCK_TSC,
            uuid,
            kind,
            tags: TagNames::NONE,
            page_count_limit,
            kept_for: &[],
            kept_each: 0,
        };
        // SAFETY: the pool has the geometry's size, is mapped as long as it exists, is zero, and is used here alone.
        let memory = unsafe { Memory::initialise(pool.base(), &GEOMETRY, &setup) };
        lock().leave_all();
        lock().join(|joining| joining.join_brought(pool.file(), "/nowhere/session-1-0.sock".as_ref())).unwrap();
        // The first record opens a page, and makes the thread known.
        record_words(&ID, 0, WORDS);
        assert!(state(&memory).offset as usize > page::HEADER_SIZE_BYTES, "it is written on CPU 0");
        for len in [0, 8, 16, 24] {
            interrupt_each(&memory, kind, &words[..len], 0, &|| record_words(&ID, len, WORDS));
        }
        // SAFETY: the runs are those of arrays.
        let write = || unsafe { record_segments(&ID, &runs) };
        interrupt_each(&memory, kind, &run_fields, RUN_COUNT, &write);
        lock().leave_all();
    }
}
