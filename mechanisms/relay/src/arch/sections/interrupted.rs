//! Each section is interrupted at each of its injection points, by a handler that writes another record to the same
//! stream: the section writes nothing, and after it was restarted the page holds exactly both records.

use std::arch::{asm, global_asm};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use dormouse_abi::class::CLASS_PLAN_SHIFT;
use dormouse_abi::page;
use dormouse_abi::record::{self, RecordKind};
use dormouse_abi::tag::TagNames;
use dormouse_percpu::Rseq;
use dormouse_testing::{Lack, skip};

use super::*;
use crate::Setup;
use crate::abi::session::{CLOCK_TSC, Geometry, MODE_OVERWRITE, Reason, State, expiry, lost_class_index};
use crate::arch::{Comparison, Entry, Source, timestamp};

/// The chosen point, and the number of passes before it interrupts.
pub(super) static INJECTED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
/// Number of interruptions.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);
/// Number of calls of slow paths.
static SLOW: AtomicU64 = AtomicU64::new(0);
static NONE: Session = Session::none();
static SESSION: AtomicPtr<Session> = AtomicPtr::new((&raw const NONE).cast_mut());
static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);

global_asm!(
    ".pushsection .tbss.interrupted_context, \"awT\", @nobits",
    ".globl interrupted_context",
    ".type interrupted_context, @object",
    ".size interrupted_context, 24",
    ".balign 8",
    "interrupted_context:",
    ".zero 24",
    ".popsection",
);

/// The thread's words: its context, and its tags.
const CONTEXT: u64 = 0x1234_5678_9abc_def0;
const TAGS: [u64; 2] = [0xaaaa_aaaa_aaaa_aaaa, 0xbbbb_bbbb_bbbb_bbbb];
const WORDS: [u64; 3] = [0x1111_1111_1111_1111, 0x2222_2222_2222_2222, 0x3333_3333_3333_3333];
/// Class and field of the records under test, and those of the handler's record.
const ID: u32 = 7;
const HANDLER_ID: u32 = 9;
const HANDLER_WORD: u64 = 0x9999_9999_9999_9999;

/// Counts a call, whose arguments must be those of the section.
unsafe extern "C" fn slow<const COUNT: usize>(
    id: *const u32,
    size_bytes: usize,
    _: MaybeUninit<u64>,
    w0: u64,
    w1: u64,
    w2: u64,
) {
    // SAFETY: all callers pass references. A class with a plan has the plan's number in the upper half.
    let id = unsafe { id.read() } & u32::from(u16::MAX);
    let words = [w0, w1, w2];
    assert!(size_bytes == record::HEADER_SIZE_BYTES + 8 * COUNT);
    assert!(id == HANDLER_ID || words[..COUNT] == WORDS[..COUNT], "arguments of the section");
    SLOW.fetch_add(1, Ordering::Relaxed);
}

/// Counts a call, whose arguments must be those of the section.
unsafe extern "C" fn slow_runs(
    id: *const u32,
    _: usize,
    _: MaybeUninit<u64>,
    first: *const Segment,
    end: *const Segment,
) {
    // SAFETY: the callers pass references.
    assert!(unsafe { id.read() } & u32::from(u16::MAX) == ID);
    assert!(end.addr() - first.addr() == RUN_COUNT * size_of::<Segment>(), "arguments of the section");
    SLOW.fetch_add(1, Ordering::Relaxed);
}

/// Number of calls of the path of classes without a plan.
static UNPLANNED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn unplanned() {
    UNPLANNED.fetch_add(1, Ordering::Relaxed);
}

/// Entries of these plans: of the class under test, and of the handler's in sessions with tags.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(std::ptr::null_mut());
const PLAN: u32 = 1;
const HANDLER_PLAN: u32 = 2;
static RANDOM: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

macro_rules! define {
    ($($ids:ident $planned:ident $compact:ident $fields:tt $arguments:tt $slow:path),*) => {$(
        define_record! {
            /// # Safety
            /// The conditions of `define_record!`.
            fn $ids(
                ids $fields $arguments, session: SESSION, rseq_offset: RSEQ_OFFSET, context: "interrupted_context",
                slow: $slow; injected: INJECTED
            )
        }
        define_record! {
            /// # Safety
            /// The conditions of `define_record!`.
            fn $planned(
                planned $fields $arguments, entries: ENTRIES, random: RANDOM, rseq_offset: RSEQ_OFFSET,
                context: "interrupted_context", slow: $slow, unplanned: unplanned; injected: INJECTED
            )
        }
        define_record! {
            /// # Safety
            /// The conditions of `define_record!`.
            fn $compact(
                compact $fields $arguments, session: SESSION, rseq_offset: RSEQ_OFFSET, context: "interrupted_context",
                slow: $slow; injected: INJECTED
            )
        }
    )*};
}

define!(
    record_0 planned_0 compact_0 0 [] slow::<0>,
    record_1 planned_1 compact_1 1 [w0: u64] slow::<1>,
    record_2 planned_2 compact_2 2 [w0: u64, w1: u64] slow::<2>,
    record_3 planned_3 compact_3 3 [w0: u64, w1: u64, w2: u64] slow::<3>,
    record_runs planned_runs compact_runs runs [first: *const Segment, end: *const Segment] slow_runs
);

/// Writes the handler's record, with a section that may be aborted as well.
fn write_handlers() {
    let (id, size, none) = (&HANDLER_ID, record::HEADER_SIZE_BYTES + 8, MaybeUninit::uninit());
    // SAFETY: the word points to a session that is never freed.
    let session = unsafe { &*SESSION.load(Ordering::Relaxed) };
    repeat(|| match (session.compact_cpu_count > 0, session.tags_size_bytes > 0) {
        // SAFETY: the test fulfils the macro's conditions: memory, registration, one word.
        (true, _) => unsafe { compact_1(id, size, none, HANDLER_WORD) },
        // SAFETY: the test fulfils the macro's conditions: memory, registration, one word.
        (_, true) => unsafe { planned_1(&(HANDLER_PLAN << CLASS_PLAN_SHIFT | HANDLER_ID), size, none, HANDLER_WORD) },
        // SAFETY: the test fulfils the macro's conditions: memory, registration, one word.
        (false, false) => unsafe { record_1(id, size, none, HANDLER_WORD) },
    });
}

/// Calls `write` until it does not take the slow path.
fn repeat(write: impl Fn()) {
    let is_slow = || {
        let before = SLOW.load(Ordering::Relaxed);
        write();
        SLOW.load(Ordering::Relaxed) != before
    };
    assert!((0..1_000).any(|_| !is_slow()), "a section is always aborted");
}

/// The trap has aborted the section, so the handler returns to the abort handler, behind the trap.
extern "C" fn on_trap(_: libc::c_int) {
    INJECTED[0].store(0, Ordering::Relaxed);
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    write_handlers();
}

const GEOMETRY: Geometry =
    Geometry { page_size_bytes: 4096, page_count: 1, cpu_count: 1, stream_count: 1, has_register: false };

#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

/// A session of one stream that has a page.
struct Bench {
    memory: Memory,
    unit: u32,
    kind: RecordKind,
    tags: &'static [u64],
}

impl Bench {
    fn new(kind: RecordKind, tags: &'static [u64]) -> Bench {
        let backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)].leak();
        let setup = Setup {
            mode: MODE_OVERWRITE,
            clock: CLOCK_TSC,
            uuid: [7; 16],
            kind,
            tags: TagNames::new(["first", "second"].into_iter().take(tags.len())).expect("names"),
            page_count_limit: 1,
            kept_for: &[],
            kept_each: 0,
        };
        // SAFETY: valid, zeroed, aligned, and never freed.
        let memory = unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup) };
        let unit = memory.draw(3, 0, |_| 0).expect("a page");
        let session = Session::new(&memory, true);
        for tag in 0..tags.len() {
            // SAFETY: each thread has its words there.
            unsafe { session.set_tag_offset(tag, words_offset() + 8 * (1 + tag) as isize) };
        }
        SESSION.store(Box::leak(Box::new(session)), Ordering::Relaxed);
        Bench { memory, unit, kind, tags }
    }

    fn control(&self) -> &StreamControl {
        self.memory.stream(0)
    }

    fn state(&self) -> u64 {
        self.control().state.load(crate::atomic::Ordering::Relaxed)
    }

    /// Makes the page empty.
    fn open(&self) {
        let state = State { seq: 0, unit: self.unit, offset: page::HEADER_SIZE_BYTES as u32 }.to_word();
        self.control().state.store(state, crate::atomic::Ordering::Relaxed);
    }

    /// Lets records of the present time in.
    fn renew(&self) {
        let now = timestamp();
        self.control().expiry.store(expiry(now), crate::atomic::Ordering::Relaxed);
        self.control().epoch.store(record::epoch(now), crate::atomic::Ordering::Relaxed);
    }

    /// Returns what the page holds below the offset of its state word.
    fn content(&self) -> Vec<u8> {
        let begin = self.memory.page(self.unit).expect("a page").wrapping_add(page::HEADER_SIZE_BYTES);
        let len = State::from_word(self.state()).offset as usize - page::HEADER_SIZE_BYTES;
        // SAFETY: a part of the page, which no other thread writes.
        unsafe { std::slice::from_raw_parts(begin, len) }.to_vec()
    }

    /// Interrupts the section that `write` executes at each point: `run_count` times at the point after a run.
    fn interrupt_each(&self, form: Form, fields: &[u8], run_count: u32, write: &dyn Fn()) {
        let own = if self.kind == RecordKind::Compact { Form::Compact } else { Form::Context };
        let points = [1, 2, 3, 4, 6].map(|point| (point, 0)).into_iter().chain((0..run_count).map(|run| (5, run)));
        for (point, passes) in points {
            let what = format!("{form:?}, {} bytes, point {point} after {passes}", fields.len());
            self.open();
            let before = INTERRUPTED.load(Ordering::Relaxed);
            let is_interrupted = (0..1_000).any(|_| {
                self.renew();
                INJECTED[1].store(passes, Ordering::Relaxed);
                INJECTED[0].store(point, Ordering::Relaxed);
                write();
                INTERRUPTED.load(Ordering::Relaxed) != before
            });
            assert!(is_interrupted, "{what}");
            let handlers = self.check_record(&self.content(), own, HANDLER_ID, &HANDLER_WORD.to_le_bytes(), &what);
            assert_eq!(handlers, self.content().len(), "{what}: the interrupted section has written");
            repeat(|| {
                self.renew();
                write();
            });
            let content = self.content();
            assert_eq!(self.check_record(&content, own, HANDLER_ID, &HANDLER_WORD.to_le_bytes(), &what), handlers);
            let len = self.check_record(&content[handlers..], form, ID, fields, &what);
            assert_eq!(handlers + len, content.len(), "{what}: more than both records");
        }
    }

    /// Sets the plan's entry: events pass whose number is at most `span`.
    fn plan(&self, source: Source, span: u64) {
        static PLACE: AtomicU64 = AtomicU64::new(0);
        RANDOM.store((&raw const PLACE).cast_mut(), Ordering::Relaxed);
        // SAFETY: entries of zeroes are valid.
        let entries: Vec<Entry> = (0..=HANDLER_PLAN).map(|_| unsafe { std::mem::zeroed() }).collect();
        let entries = entries.leak();
        let comparison = Comparison {
            source,
            first_run_size_bytes: 0,
            word: 0,
            run_size_bytes_min: 8,
            scale: 1,
            first: 0,
            span,
            reason: Reason::Rejected,
        };
        // SAFETY: no section has the entry yet; the session has one CPU.
        unsafe { entries[PLAN as usize].set(ID as u16, &comparison, &SESSION) };
        let everybody = Comparison { source: Source::Everybody, ..comparison };
        // SAFETY: no section has the entry yet; the session has one CPU.
        unsafe { entries[HANDLER_PLAN as usize].set(HANDLER_ID as u16, &everybody, &SESSION) };
        ENTRIES.store(entries.as_mut_ptr(), Ordering::Relaxed);
        self.unrecorded().store(1, crate::atomic::Ordering::Relaxed);
    }

    /// Returns the counter of the class under test.
    fn unrecorded(&self) -> &crate::atomic::AtomicU64 {
        &self.memory.unrecorded(0).by_class[Reason::Rejected as usize][lost_class_index(ID as u16)]
    }

    /// Interrupts the section that `write` executes at the points of an event that is not recorded: it is counted once.
    fn interrupt_counted(&self, what: &str, write: &dyn Fn()) {
        let handlers_only = |what: &str| {
            let len = self.check_record(&self.content(), Form::Context, HANDLER_ID, &HANDLER_WORD.to_le_bytes(), what);
            assert_eq!(len, self.content().len(), "{what}: the event is recorded");
        };
        for point in [1, 7] {
            let what = format!("{what}, point {point}");
            self.open();
            self.unrecorded().store(1, crate::atomic::Ordering::Relaxed);
            let before = INTERRUPTED.load(Ordering::Relaxed);
            let mut counted = 0;
            let is_interrupted = (0..1_000).any(|_| {
                counted = self.unrecorded().load(crate::atomic::Ordering::Relaxed);
                self.renew();
                INJECTED[1].store(0, Ordering::Relaxed);
                INJECTED[0].store(point, Ordering::Relaxed);
                write();
                INTERRUPTED.load(Ordering::Relaxed) != before
            });
            assert!(is_interrupted, "{what}");
            assert_eq!(self.unrecorded().load(crate::atomic::Ordering::Relaxed), counted, "{what}: it has counted");
            handlers_only(&what);
            repeat(write);
            assert_eq!(self.unrecorded().load(crate::atomic::Ordering::Relaxed), counted + 1, "{what}");
            handlers_only(&what);
        }
    }

    /// Checks all of a record but its time, and returns its size in bytes.
    fn check_record(&self, content: &[u8], form: Form, id: u32, fields: &[u8], what: &str) -> usize {
        let tags: Vec<u8> = self.tags.iter().flat_map(|tag| tag.to_le_bytes()).collect();
        let header = form.header_size_bytes() + tags.len();
        assert_eq!(content[form.header_size_bytes()..header], tags, "{what}");
        let found = match form {
            Form::Context => {
                assert_eq!(content[8..16], CONTEXT.to_le_bytes(), "{what}");
                u16::from_le_bytes([content[0], content[1]])
            }
            Form::Compact => content[0].into(),
            Form::Extended => {
                assert_eq!(content[0], record::EXTENDED, "{what}");
                u16::from_le_bytes([content[1], content[2]])
            }
        };
        assert_eq!((u32::from(found), &content[header..header + fields.len()]), (id, fields), "{what}");
        header + fields.len()
    }
}

/// Number of runs of a record of runs.
const RUN_COUNT: usize = 3;

/// Returns the distance of the thread's words from its thread pointer, in bytes.
fn words_offset() -> isize {
    let offset: isize;
    // SAFETY: reads an offset that the linker supplies.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + interrupted_context@GOTTPOFF]",
            offset = out(reg) offset,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: reads an offset that the linker supplies.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "adrp {offset}, :gottprel:interrupted_context",
            "ldr {offset}, [{offset}, :gottprel_lo12:interrupted_context]",
            offset = out(reg) offset,
            options(nostack, preserves_flags),
        );
    }
    offset
}

/// Sets one of the thread's words.
fn set_word(index: usize, word: u64) {
    let offset = words_offset() + 8 * index as isize;
    // SAFETY: writes the thread's own word.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "mov qword ptr fs:[{offset}], {word}",
            offset = in(reg) offset,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: writes the thread's own word.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "mrs {pointer}, tpidr_el0",
            "str {word}, [{pointer}, {offset}]",
            offset = in(reg) offset,
            pointer = out(reg) _,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}

/// Restricts the thread to CPU 0, sets its context word, and returns rseq; `None` if there are no sections.
fn prepare() -> Option<Rseq> {
    let rseq = Rseq::detect();
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    if rseq.is_none() {
        skip(Lack::machine("there are no restartable sequences here", "a kernel that has rseq(2), and no emulator"));
    } else if rustix::thread::sched_setaffinity(None, &set).is_err() {
        skip(Lack::machine("this process may not run on CPU 0", "`taskset -c 0-` before the tests"));
        return None;
    }
    for (index, word) in [CONTEXT].into_iter().chain(TAGS).enumerate() {
        set_word(index, word);
    }
    rseq
}

impl Bench {
    /// Interrupts the sections of a class with a plan at each point, with events that pass and with events that do not.
    fn interrupt_planned(&self, source: Source, words: &[u8], run_fields: &[u8], runs: &[Segment; RUN_COUNT]) {
        let size = |len: usize| record::HEADER_SIZE_BYTES + len;
        let core::ops::Range { start, end } = runs.as_ptr_range();
        let (none, [w0, w1, w2]) = (MaybeUninit::uninit(), WORDS);
        let word = &(PLAN << CLASS_PLAN_SHIFT | ID);
        // SAFETY: the test fulfils the macro's conditions here and below: memory, registration, as many words.
        let write_0: &dyn Fn() = &|| unsafe { planned_0(word, size(0), none) };
        // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
        let write_1: &dyn Fn() = &|| unsafe { planned_1(word, size(8), none, w0) };
        // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
        let write_2: &dyn Fn() = &|| unsafe { planned_2(word, size(16), none, w0, w1) };
        // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
        let write_3: &dyn Fn() = &|| unsafe { planned_3(word, size(24), none, w0, w1, w2) };
        // SAFETY: the test fulfils the macro's conditions: memory, registration, an array of runs.
        let write_runs: &dyn Fn() = &|| unsafe { planned_runs(word, size(run_fields.len()), none, start, end) };
        let planned = [
            (&[][..], write_0),
            (&words[..8], write_1),
            (&words[..16], write_2),
            (words, write_3),
            (run_fields, write_runs),
        ];
        // Without fields there is no word. Only runs have text.
        let begin = match source {
            Source::Random | Source::Everybody => 0,
            Source::Text => 4,
            _ => 1,
        };
        for (index, (fields, write)) in planned.into_iter().enumerate().skip(begin) {
            let what = format!("{source:?}, {} bytes", fields.len());
            self.plan(source, u64::MAX);
            self.interrupt_each(Form::Context, fields, if index == 4 { RUN_COUNT as u32 } else { 0 }, write);
            if source != Source::Everybody {
                self.plan(source, 0);
                self.interrupt_counted(&what, write);
            }
        }
        assert_eq!(UNPLANNED.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn an_interrupted_section_writes_nothing_and_its_restart_everything() {
    let Some(rseq) = prepare() else { return };
    RSEQ_OFFSET.store(rseq.offset(), Ordering::Relaxed);
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
    let size = |len: usize| record::HEADER_SIZE_BYTES + len;
    let core::ops::Range { start, end } = runs.as_ptr_range();
    let (none, [w0, w1, w2]) = (MaybeUninit::uninit(), WORDS);
    for source in [Source::Word, Source::Text, Source::Random, Source::Everybody] {
        Bench::new(RecordKind::Ids, &TAGS).interrupt_planned(source, &words, &run_fields, &runs);
    }
    for kind in [RecordKind::Ids, RecordKind::Compact] {
        let bench = Bench::new(kind, &[]);
        let run_count = RUN_COUNT as u32;
        let form = if kind == RecordKind::Ids {
            // SAFETY: the test fulfils the macro's conditions here and below: memory, registration, these words.
            bench.interrupt_each(Form::Context, &[], 0, &|| unsafe { record_0(&ID, size(0), none) });
            // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
            bench.interrupt_each(Form::Context, &words[..8], 0, &|| unsafe { record_1(&ID, size(8), none, w0) });
            // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
            bench.interrupt_each(Form::Context, &words[..16], 0, &|| unsafe { record_2(&ID, size(16), none, w0, w1) });
            // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
            bench.interrupt_each(Form::Context, &words, 0, &|| unsafe { record_3(&ID, size(24), none, w0, w1, w2) });
            // SAFETY: the test fulfils the macro's conditions: memory, registration, an array of runs.
            let write = || unsafe { record_runs(&ID, size(run_fields.len()), none, start, end) };
            bench.interrupt_each(Form::Context, &run_fields, run_count, &write);
            for source in [Source::Word, Source::Text, Source::Random, Source::Everybody] {
                bench.interrupt_planned(source, &words, &run_fields, &runs);
            }
            Form::Context
        } else {
            // SAFETY: the test fulfils the macro's conditions: memory, registration, no words.
            bench.interrupt_each(Form::Compact, &[], 0, &|| unsafe { compact_0(&ID, size(0), none) });
            // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
            bench.interrupt_each(Form::Compact, &words[..8], 0, &|| unsafe { compact_1(&ID, size(8), none, w0) });
            // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
            bench.interrupt_each(Form::Compact, &words[..16], 0, &|| unsafe { compact_2(&ID, size(16), none, w0, w1) });
            // SAFETY: the test fulfils the macro's conditions: memory, registration, as many words.
            bench.interrupt_each(Form::Compact, &words, 0, &|| unsafe { compact_3(&ID, size(24), none, w0, w1, w2) });
            // SAFETY: the test fulfils the macro's conditions: memory, registration, an array of runs.
            let write = || unsafe { compact_runs(&ID, size(run_fields.len()), none, start, end) };
            bench.interrupt_each(Form::Compact, &run_fields, run_count, &write);
            Form::Compact
        };
        // The slow path's own sections, which get the state word and the time from their caller.
        let session_word: *const Session = SESSION.load(Ordering::Relaxed);
        let record = Record::new(ID as u16, CONTEXT, &runs);
        let write_at = |form| {
            let site = Site {
                rseq_offset: rseq.offset(),
                cpu: 0,
                control: bench.control(),
                session_word: &raw const session_word,
                session: session_word,
            };
            // SAFETY: the stream of CPU 0, where the thread is; the runs are those of an array.
            let written = unsafe { rseq_write_at(site, &record, form, bench.state(), timestamp()) };
            assert!(matches!(written, WriteOutcome::Done | WriteOutcome::Aborted), "{written:?}");
            SLOW.fetch_add(u64::from(written == WriteOutcome::Aborted), Ordering::Relaxed);
        };
        let forms = if form == Form::Context { &[Form::Context][..] } else { &[Form::Compact, Form::Extended] };
        for &form in forms {
            bench.interrupt_each(form, &run_fields, run_count, &|| write_at(form));
        }
    }
}
