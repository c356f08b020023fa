//! The shortest write path: what it writes, and that everything out of the ordinary goes to the slow one with nothing written.
#![cfg(target_arch = "x86_64")]

use std::arch::{asm, global_asm};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU64, Ordering};

use dormouse_abi::class::{CLASS_ID_MAX, CLASS_ID_NONE};
use dormouse_abi::page;
use dormouse_abi::record::{HEADER_SIZE_BYTES, RecordKind, head_word};
use dormouse_abi::session::{CLOCK_TSC, Geometry, MODE_OVERWRITE, State, expiry};
use dormouse_percpu::Rseq;
use dormouse_relay::arch::{Session, Site, Words, rseq_write, rseq_write_words, timestamp};
use dormouse_relay::{Memory, Record, Segment, Setup, Written};
use dormouse_testing::{Lack, skip};

global_asm!(
    ".pushsection .tbss.test_context, \"awT\", @nobits",
    ".globl test_context",
    ".type test_context, @object",
    ".size test_context, 8",
    ".balign 8",
    "test_context:",
    ".zero 8",
    ".popsection",
);

fn set_context(word: u64) {
    // SAFETY: writes the thread's own word.
    unsafe {
        asm!(
            "mov {address}, qword ptr [rip + test_context@GOTTPOFF]",
            "mov qword ptr fs:[{address}], {word}",
            address = out(reg) _,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}

static NONE: Session = Session::none();
static SESSION: AtomicPtr<Session> = AtomicPtr::new((&raw const NONE).cast_mut());
static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);
/// How often the slow path was taken, and the sum of its arguments.
static SLOW: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

unsafe extern "C" fn slow(id: *const u32, size_bytes: usize, _: MaybeUninit<u64>, w0: u64, w1: u64, w2: u64) {
    SLOW[0].fetch_add(1, Ordering::Relaxed);
    // SAFETY: the test passes a reference.
    let id = unsafe { id.read() };
    let sum = u64::from(id).wrapping_add(size_bytes as u64).wrapping_add(w0).wrapping_add(w1).wrapping_add(w2);
    SLOW[1].store(sum, Ordering::Relaxed);
}

macro_rules! define {
    ($($name:ident $words:tt [$($word:ident),*]),*) => {$(
        dormouse_relay::define_record_words! {
            /// # Safety
            /// As the macro says.
            fn $name(
                words: $words [$($word),*], session: SESSION, rseq_offset: RSEQ_OFFSET, context: "test_context", slow: slow
            )
        }
    )*};
}

define!(record_0 0 [], record_1 1 [w0], record_2 2 [w0, w1], record_3 3 [w0, w1, w2]);

dormouse_relay::define_record_words! {
    /// # Safety
    /// As the macro says.
    fn record_key_1(
        words: 1 [w0], session: SESSION, rseq_offset: RSEQ_OFFSET, context: "test_context", slow: slow, other: other
    )
}

/// How often the class was not the one that was meant.
static OTHER: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn other(_: *const u32, size_bytes: usize, which: MaybeUninit<u64>, w0: u64, _: u64, _: u64) {
    // SAFETY: the test passes one.
    assert_eq!((size_bytes, unsafe { which.assume_init() }, w0), (HEADER_SIZE_BYTES + 8, 99, 7));
    OTHER.fetch_add(1, Ordering::Relaxed);
}

/// An id and whose it is.
#[repr(C, packed(4))]
struct Key {
    id: u32,
    of: u64,
}

const GEOMETRY: Geometry = Geometry { page_size_bytes: 4096, page_count: 9, cpu_count: 1, stream_count: 2 };
const CONTEXT: u64 = 0x1234_5678_9abc_def0;

fn setup(mode: u32, clock: u32) -> Setup<'static> {
    let page_limit = GEOMETRY.page_count;
    Setup { mode, clock, uuid: [7; 16], kind: RecordKind::Ids, page_limit, reserved_for: &[], reserve_each: 0 }
}

#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

/// A record of three words, and how often the slow path had to be taken.
fn write(id: u32) -> u64 {
    let before = SLOW[0].load(Ordering::Relaxed);
    // SAFETY: the test keeps the macro's promises: memory, registration, three words.
    unsafe { record_3(&id, HEADER_SIZE_BYTES + 20, MaybeUninit::uninit(), 11, 12, 13) };
    SLOW[0].load(Ordering::Relaxed) - before
}

#[test]
fn records_are_written_or_go_the_slow_way() {
    let Some(rseq) = Rseq::detect() else {
        return skip(Lack::machine(
            "there are no restartable sequences here",
            "a kernel that has rseq(2), and no emulator",
        ));
    };
    let mut backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)];
    // SAFETY: valid, zeroed, aligned, and never moved.
    let memory =
        unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup(MODE_OVERWRITE, CLOCK_TSC)) };
    // One stream for one CPU: the thread stays on that one.
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    if rustix::thread::sched_setaffinity(None, &set).is_err() {
        return skip(Lack::machine("this process may not run on CPU 0", "`taskset -c 0-` before the tests"));
    }
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

    // Each precondition alone, the others being met.
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
    open(begin, later - (1 << 14));
    assert!(!written("a page that spans too much time", 5));
    open(State { seq: 0, unit, offset: 4096 - page::SLACK_BYTES as u32 - 35 }.to_word(), later);
    assert!(!written("a full page", 5));
    open(State { seq: 0, unit: 1 << 20, offset: 80 }.to_word(), later);
    assert!(!written("a page outside of the memory", 5));
    open(dormouse_abi::session::STATE_EMPTY, 0);
    assert!(!written("no page yet", 5));

    // A preempted attempt goes the slow way too, so some are tried.
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

    // Of a key: only if the class is the one that is meant.
    open(begin, later);
    let key = Key { id: 8, of: 77 };
    let write_key = |which| {
        let before = [SLOW[0].load(Ordering::Relaxed), OTHER.load(Ordering::Relaxed)];
        let (id, which) = (&raw const key.id, MaybeUninit::new(which));
        // SAFETY: the memory is there and the thread is registered; one word, and the key lies behind the id.
        unsafe { record_key_1(id, HEADER_SIZE_BYTES + 8, which, 7) };
        [SLOW[0].load(Ordering::Relaxed) - before[0], OTHER.load(Ordering::Relaxed) - before[1]]
    };
    assert!((0..100).any(|_| write_key(99) == [0, 1]));
    assert_eq!(control.state.load(Ordering::Relaxed), begin);
    assert!((0..100).any(|_| write_key(77) == [0, 0]));
    assert_ne!(control.state.load(Ordering::Relaxed), begin);

    // The other lengths, and the last byte that a page takes.
    for (words, len) in [(0, 0), (1, 3), (1, 8), (2, 16)] {
        let at = 4096 - page::SLACK_BYTES - HEADER_SIZE_BYTES - len;
        let done = (0..100).any(|_| {
            open(State { seq: 0, unit, offset: at as u32 }.to_word(), later);
            let (id, size, none) = (6, HEADER_SIZE_BYTES + len, MaybeUninit::uninit());
            let before = SLOW[0].load(Ordering::Relaxed);
            match words {
                // SAFETY: the memory is there and the thread is registered; no words, as the length says.
                0 => unsafe { record_0(&id, size, none) },
                // SAFETY: the memory is there and the thread is registered; one word, as the length needs.
                1 => unsafe { record_1(&id, size, none, 21) },
                // SAFETY: the memory is there and the thread is registered; two words, as the length needs.
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
    SESSION.store((&raw const NONE).cast_mut(), Ordering::Relaxed);

    // The sections of longer records go by the same expiry.
    let session_word = core::ptr::from_ref(fast);
    let site = || Site {
        rseq_offset: rseq.offset(),
        cpu: 0,
        control,
        session_word: &raw const session_word,
        session: session_word,
    };
    let fields = [1u64, 2, 3, 4];
    let source = fields.as_ptr().cast();
    let words = Words { id: 5, context: CONTEXT, size_bytes: HEADER_SIZE_BYTES + 32, source };
    let segments = [Segment::exact(source, 32)];
    let record = Record::new(5, CONTEXT, &segments);
    for (state, expiry, expected) in [
        (begin, later, Written::Done),
        (begin, later - (1 << 14), Written::Full),
        // Memory of zeroes.
        (0, 0, Written::Full),
    ] {
        for is_words in [true, false] {
            let mut written = (0..100).map(|_| {
                open(state, expiry);
                if is_words {
                    // SAFETY: the stream of processor 0, where the thread is; the source is an array of words.
                    unsafe { rseq_write_words(site(), words) }
                } else {
                    // SAFETY: the stream of CPU 0, where the thread is; the record's values outlive the call.
                    unsafe { rseq_write(site(), &record) }
                }
            });
            assert_eq!(written.find(|written| *written != Written::Aborted), Some(expected));
            let is_changed = control.state.load(Ordering::Relaxed) != state;
            assert_eq!(is_changed, expected == Written::Done);
        }
    }
}
