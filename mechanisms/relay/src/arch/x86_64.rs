//! x86-64: reserve, write and commit as one rseq critical section, all of them by one macro, [`define_record!`].
//!
//! The direct way, for words of fields that come in registers and for runs of bytes, finds its stream and its session inside the section, so
//! that nothing has to be compared afterwards:
//! ```text
//!   rseq_load_session_reserve_rdtsc_write_commit(id, size, fields):
//!       if context == 0                  → slow, also without rseq
//!       rseq.rseq_cs = &descriptor
//!     start:
//!       session = *session_word
//!       control = session.streams[rseq.cpu_id]           → slow beyond session.cpu_count
//!       if *id > CLASS_ID_MAX            → slow
//!       page, offset = control.state     → slow if the record does not fit, or the page lies outside of the memory
//!       timestamp = rdtsc                → slow if its upper half is at control.expiry
//!       page[offset] = head, context, fields…
//!       control.state += size            ← the final store
//!     post_commit:
//!       return
//!     slow, abort:
//!       jump to the slow path, with the arguments as they came
//! ```
//! Sessions whose records are compact have sections of their own, to which the ones above lead by failing: their `cpu_count` is 0,
//! so those for records with context cost nothing more:
//! ```text
//!   rseq_load_session_reserve_rdtsc_cmpeq_epoch_write_commit(id, size, fields):
//!       as above, but
//!       control                          → slow beyond session.compact_cpu_count
//!       if *id > COMPACT_ID_MAX          → slow
//!       timestamp = rdtsc                → slow unless its epoch is control.epoch
//!       page[offset] = id, lower half, fields…
//! ```
//! The slow path reads the clock itself. Its sections compare the state word with the one that was read before the clock, so that timestamps
//! never decrease within a stream there either. They ask for no expiry or epoch: the caller has, of that very word and time.
//! ```text
//!   rseq_cmpeq_state_write_segments_commit(at, size, segments):           one for each header
//!       rseq.rseq_cs = &descriptor
//!     start:
//!       if rseq.cpu_id != at.cpu         → Aborted
//!       if *at.session_word != at.session                → Gone
//!       page, offset = at.control.state  → Aborted if it is not at.state
//!                                        → Full if the record does not fit, or the page lies outside of the memory
//!       page[offset] = head, segments…
//!       at.control.state += size         ← the final store
//!     post_commit:
//! ```
//! A control block of zeroes is refused: the expiry 0 has always come, no time is of the epoch 0, and no caller finds room in a
//! stream without a page.
//!
//! The kernel restarts nothing by itself: an abort leads to the slow path, or reports [`Written::Aborted`] and the caller starts over.

use core::mem::offset_of;

use dormouse_abi::record::{self, RecordKind};
use dormouse_abi::session::StreamControl;

use crate::{Form, Memory, Record, Segment, Written};

/// What a writer knows when it enters the section.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// Offset of the thread's rseq area from the thread pointer.
    pub rseq_offset: isize,
    /// The CPU that was chosen.
    pub cpu: u32,
    /// Its stream's control block.
    pub control: *const StreamControl,
    /// A word that holds `session` as long as the session lasts.
    pub session_word: *const *const Session,
    /// The session.
    pub session: *const Session,
}

/// What the section reads of a session. Never unmapped, whatever happens to the session's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Session {
    /// Where the memory starts.
    pub base: *mut u8,
    /// No page starts further on, and no record leaves its page.
    pub last_page_offset: usize,
    /// The control blocks.
    pub streams: *mut u8,
    /// Where a page is full: before the slack.
    pub page_limit: usize,
    /// Processors whose streams may be written with the timestamp counter as the clock, in records with context; 0 if the session has
    /// another clock or other records.
    pub cpu_count: u32,
    /// The same in compact records.
    pub compact_cpu_count: u32,
}

// SAFETY: plain values; what they point to is shared memory, which sections write as `Memory` says.
unsafe impl Sync for Session {}

impl Session {
    /// The session whose memory this is. `is_fast`: its clock is the timestamp counter, and the process has rseq.
    pub fn new(memory: &Memory, is_fast: bool) -> Session {
        let geometry = memory.geometry();
        let page_size_bytes = geometry.page_size_bytes as usize;
        let count_for = |kind| if is_fast && memory.record_kind() == kind { geometry.cpu_count } else { 0 };
        Session {
            base: memory.base(),
            last_page_offset: geometry.pages_end() - page_size_bytes,
            streams: memory.streams_base(),
            page_limit: page_size_bytes - dormouse_abi::page::SLACK_BYTES,
            cpu_count: count_for(RecordKind::Ids),
            compact_cpu_count: count_for(RecordKind::Compact),
        }
    }

    /// No session: every record goes the slow way.
    pub const fn none() -> Session {
        let null = core::ptr::null_mut();
        Session { base: null, last_page_offset: 0, streams: null, page_limit: 0, cpu_count: 0, compact_cpu_count: 0 }
    }
}

/// Defines a function that writes a record by one critical section.
///
/// ```text
///   define_record! {
///       /// Documentation.
///       fn record_1(ids 1 [w0: u64], session: CURRENT, rseq_offset: RSEQ_OFFSET, context: "name", slow: record_1_slowly)
///   }
/// ```
/// `ids` or `compact` is the header ([`dormouse_abi::record`]). What follows are the fields: 0 to 3 words, or
/// `runs [first: *const Segment, end: *const Segment]`, segments from `first` to before `end`.
///
/// The slow function has the same arguments: `id: *const u32, size_bytes: usize, which: MaybeUninit<u64>` and those of the fields: address of
/// the class's id, bytes of a header with context and of the fields, and a word for `other`. It may declare more arguments, of any value. `session`
/// is a static `*const Session`, atomic and never null ([`Session::none`]); `rseq_offset` one that holds the rseq area's distance from the
/// thread pointer; `context` the name of the thread's context word, in static TLS (initial-exec), which is 0 in threads that may not
/// write this way, and everywhere without rseq.
///
/// With `other: function`, of the same type, an id is followed by a word of 64 bits that says whose it is: where that is not
/// `which`, the other function is called instead.
///
/// Of the general registers, only rax, rdx, r9, r10 and r11 change; not r9 where it holds a word. Wait-free; async-signal-safe if the slow
/// path is.
///
/// # Safety
/// Of the function: `id` may be read, and `size_bytes` is the header's and that of the fields, which words hold, or segments have. The segments' sources may be
/// read. While `session` points to a session, that describes mapped memory, and whoever changes it waits for running sections by
/// membarrier before it unmaps or takes an id back. Every thread whose context word is not 0 has its rseq area registered at `rseq_offset`.
#[doc(hidden)]
#[macro_export]
macro_rules! define_record {
    ($(#[$meta:meta])* $vis:vis fn $name:ident(
        ids $fields:tt [$($argument:ident: $type:ty),*], session: $session:path, rseq_offset: $rseq_offset:path,
        context: $context:literal, slow: $slow:path $(, other: $other:path)?
    )) => {
        $crate::define_record!(
            @direct [$(#[$meta])*] [$vis] $name $fields [$($argument: $type),*],
            before = [$crate::define_record!(@check $($other)?), $crate::define_record!(@context $fields $context)],
            fit = [$crate::define_record!(@fit $fields)],
            header = [
                "rdtsc",
                "cmp edx, dword ptr [r11 + {EXPIRY}]",
                "jae 50f",
                "shl rdx, 48",
                "shl rax, 16",
                "or rax, rdx",
                "mov ax, word ptr [rdi]",
                "mov qword ptr [r10], rax",
                $crate::define_record!(@store_context $fields $context)
            ],
            commit = ["add qword ptr [r11], rsi"],
            after = [$crate::define_record!(@other $($other)?)],
            session = sym $session,
            rseq_offset = sym $rseq_offset,
            slow = sym $slow,
            $(other = sym $other,)?
            EXPIRY = const ::core::mem::offset_of!($crate::arch::abi::session::StreamControl, expiry),
            ID_MAX = const $crate::arch::abi::class::CLASS_ID_MAX,
            CPU_COUNT = const ::core::mem::offset_of!($crate::arch::Session, cpu_count),
        );
    };
    // The context word says that the thread may, and is not recorded.
    ($(#[$meta:meta])* $vis:vis fn $name:ident(
        compact $fields:tt [$($argument:ident: $type:ty),*], session: $session:path, rseq_offset: $rseq_offset:path,
        context: $context:literal, slow: $slow:path
    )) => {
        $crate::define_record!(
            @direct [$(#[$meta])*] [$vis] $name $fields [$($argument: $type),*],
            before = [$crate::define_record!(@context 3 $context)],
            fit = [$crate::define_record!(@fit_less $fields)],
            header = [
                "rdtsc",
                // The epoch of this time: its upper half and one.
                "inc edx",
                "cmp edx, dword ptr [r11 + {EPOCH}]",
                "jne 50f",
                "movzx edx, byte ptr [rdi]",
                "mov byte ptr [r10 + {LESS}], dl",
                "mov dword ptr [r10 + {LESS} + 1], eax"
            ],
            commit = ["lea rdx, [rsi - {LESS}]", "add qword ptr [r11], rdx"],
            after = [],
            session = sym $session,
            rseq_offset = sym $rseq_offset,
            slow = sym $slow,
            LESS = const $crate::arch::COMPACT_LESS_BYTES,
            EPOCH = const ::core::mem::offset_of!($crate::arch::abi::session::StreamControl, epoch),
            ID_MAX = const $crate::arch::abi::record::COMPACT_ID_MAX,
            CPU_COUNT = const ::core::mem::offset_of!($crate::arch::Session, compact_cpu_count),
        );
    };
    // Stream and session are found inside the section.
    (
        @direct [$($meta:tt)*] [$($vis:tt)*] $name:ident $fields:tt [$($argument:ident: $type:ty),*],
        before = [$($before:expr),*], fit = $fit:tt, header = $header:tt, commit = $commit:tt, after = [$($after:expr),*],
        $($operands:tt)*
    ) => {
        $crate::define_record!(
            @section [$($meta)*] [$($vis)*] $name $fields
            [id: *const u32, size_bytes: usize, which: ::core::mem::MaybeUninit<u64> $(, $argument: $type)*] [()],
            enter = [
                $($before,)*
                "mov r10, qword ptr [rip + {rseq_offset}]",
                "lea rax, [rip + 66b]",
                "mov qword ptr fs:[r10 + {RSEQ_CS}], rax",
                "20:",
                "mov r11, qword ptr [rip + {session}]",
                // (X) pairs with the store of the word. Without a session the count is 0. A thread that is not registered has a number beyond any count.
                "mov eax, dword ptr fs:[r10 + {CPU_ID}]",
                "cmp eax, dword ptr [r11 + {CPU_COUNT}]",
                "jae 50f",
                "cmp dword ptr [rdi], {ID_MAX}",
                "ja 50f",
                "shl rax, {STRIDE_SHIFT}",
                "add rax, qword ptr [r11 + {STREAMS}]",
                "mov r10, qword ptr [rax]"
            ],
            fit = $fit, header = $header, commit = $commit,
            done = [],
            abort = ["50:", $crate::define_record!(@restore $fields), "jmp {slow}", $($after),*],
            STRIDE_SHIFT = const $crate::arch::abi::session::STREAM_STRIDE_BYTES.trailing_zeros(),
            STREAMS = const ::core::mem::offset_of!($crate::arch::Session, streams),
            $($operands)*
        );
    };
    // rdi id (or `At`), rsi size, rcx r8 r9 fields: they stay as they are, but that runs use rcx, which is kept below the stack pointer, where no
    // handler comes (psABI, "red zone"). rax, rdx, r10, r11 are free, and r9 where it holds no word.
    (
        @section [$($meta:tt)*] [$($vis:tt)*] $name:ident $fields:tt [$($argument:ident: $type:ty),*] [$result:ty],
        enter = [$($enter:expr),*], fit = [$($fit:expr),*], header = [$($header:expr),*], commit = [$($commit:expr),*],
        done = [$($done:expr),*], abort = [$($abort:expr),* $(,)?],
        $($operands:tt)*
    ) => {
        $($meta)*
        #[unsafe(naked)]
        $($vis)* unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "66:",
                ".long 0, 0",
                ".quad 20f, 40f - 20f, 60f",
                ".popsection",
                $crate::define_record!(@keep $fields),
                $($enter,)*
                // rax is the control block, r10 the state, r11 the session, rdx where the record ends in its page.
                "mov edx, r10d",
                "and edx, 0xffffff",
                $($fit,)*
                // The page's offset: the unit, in bits 24 to 47, times 4,096.
                "shl r10, 16",
                "shr r10, 28",
                "and r10, -4096",
                // Whatever a stray pointer has left in the state word, nothing is written outside of the mapping.
                "cmp r10, qword ptr [r11 + {LAST_PAGE_OFFSET}]",
                "ja 50f",
                "add r10, qword ptr [r11 + {BASE}]",
                "add r10, rdx",
                "sub r10, rsi",
                // r10 is 16 bytes before where the fields go, r11 the control block.
                "mov r11, rax",
                $($header,)*
                $crate::define_record!(@store $fields),
                $($commit,)*
                "40:",
                $crate::define_record!(@restore $fields),
                $($done,)*
                "ret",
                // The kernel checks the signature before the abort handler; it hides in an undefined instruction's operand.
                ".byte 0x0f, 0xb9, 0x3d",
                ".long {SIGNATURE}",
                "60:",
                $($abort,)*
                ".cfi_endproc",
                RSEQ_CS = const $crate::arch::abi::rseq::OFFSET_RSEQ_CS,
                CPU_ID = const $crate::arch::abi::rseq::OFFSET_CPU_ID,
                SIGNATURE = const $crate::arch::abi::rseq::SIGNATURE_X86,
                PAGE_LIMIT = const ::core::mem::offset_of!($crate::arch::Session, page_limit),
                LAST_PAGE_OFFSET = const ::core::mem::offset_of!($crate::arch::Session, last_page_offset),
                BASE = const ::core::mem::offset_of!($crate::arch::Session, base),
                $($operands)*
            )
        }
    };
    (@keep runs) => { "mov qword ptr [rsp - 8], rcx" };
    (@keep $words:tt) => { "" };
    (@restore runs) => { "mov rcx, qword ptr [rsp - 8]" };
    (@restore $words:tt) => { "" };
    // Outside of the section, since an abort does not keep `which`, and the slow path has to know whose id it is.
    (@check) => { "" };
    (@check $other:path) => { "cmp qword ptr [rdi + 4], rdx\n jne 70f" };
    (@other) => { "" };
    (@other $other:path) => { "70: jmp {other}" };
    // The context word: in r9, unless that holds a word of the fields.
    (@context 3 $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n cmp qword ptr fs:[rax], 0\n je 50f")
    };
    (@context $fields:tt $context:literal) => {
        concat!("mov r9, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov r9, qword ptr fs:[r9]\n test r9, r9\n jz 50f")
    };
    // Asked again, because a signal handler may have emptied it before the section.
    (@store_context 3 $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov rax, qword ptr fs:[rax]\n test rax, rax\n jz 50f\n mov qword ptr [r10 + 8], rax")
    };
    (@store_context $fields:tt $context:literal) => { "mov qword ptr [r10 + 8], r9" };
    // The length of runs is the program's: all 64 bits are compared.
    (@fit runs) => { "add rdx, rsi\n cmp rdx, qword ptr [r11 + {PAGE_LIMIT}]\n ja 50f" };
    (@fit $words:tt) => { "add edx, esi\n cmp edx, dword ptr [r11 + {PAGE_LIMIT}]\n ja 50f" };
    // The same of a header that is so much shorter than the one that the size is of.
    (@fit_less runs) => { "add rdx, rsi\n sub rdx, {LESS}\n cmp rdx, qword ptr [r11 + {PAGE_LIMIT}]\n ja 50f" };
    (@fit_less $words:tt) => { "add edx, esi\n sub edx, {LESS}\n cmp edx, dword ptr [r11 + {PAGE_LIMIT}]\n ja 50f" };
    (@store 0) => { "" };
    (@store 1) => { "mov qword ptr [r10 + 16], rcx" };
    (@store 2) => { concat!($crate::define_record!(@store 1), "\n mov qword ptr [r10 + 24], r8") };
    (@store 3) => { concat!($crate::define_record!(@store 2), "\n mov qword ptr [r10 + 32], r9") };
    // For each segment: its whole words from the last to the first, two at a time; then, if it is exact and has more bytes, the last eight of
    // it, or what there is of fewer.
    (@store runs) => { "
        add r10, 16
        30:
        cmp rcx, r8
        je 39f
        mov rdx, qword ptr [rcx]
        mov r9, qword ptr [rcx + 8]
        test r9b, 1
        jz 31f
        mov rax, qword ptr [rdx + r9 * 8 - 8]
        mov qword ptr [r10 + r9 * 8 - 8], rax
        dec r9
        31:
        test r9, r9
        jz 33f
        32:
        mov rax, qword ptr [rdx + r9 * 8 - 8]
        mov qword ptr [r10 + r9 * 8 - 8], rax
        mov rax, qword ptr [rdx + r9 * 8 - 16]
        mov qword ptr [r10 + r9 * 8 - 16], rax
        sub r9, 2
        jnz 32b
        33:
        mov r9d, dword ptr [rcx + 20]
        cmp dword ptr [rcx + 16], 0
        je 37f
        cmp r9d, 8
        jb 34f
        mov rax, qword ptr [rdx + r9 - 8]
        mov qword ptr [r10 + r9 - 8], rax
        jmp 37f
        34:
        cmp r9d, 4
        jb 35f
        mov eax, dword ptr [rdx]
        mov dword ptr [r10], eax
        mov eax, dword ptr [rdx + r9 - 4]
        mov dword ptr [r10 + r9 - 4], eax
        jmp 37f
        35:
        mov al, byte ptr [rdx]
        mov byte ptr [r10], al
        mov al, byte ptr [rdx + r9 - 1]
        mov byte ptr [r10 + r9 - 1], al
        shr r9d, 1
        mov al, byte ptr [rdx + r9]
        mov byte ptr [r10 + r9], al
        mov r9d, dword ptr [rcx + 20]
        37:
        add r10, r9
        add rcx, 24
        jmp 30b
        39:
    " };
}

/// How much shorter a compact header is.
#[doc(hidden)]
pub const COMPACT_LESS_BYTES: usize = record::HEADER_SIZE_BYTES - record::COMPACT_HEADER_SIZE_BYTES;
/// For [`define_record!`].
#[doc(hidden)]
pub use dormouse_abi as abi;

const _: () = assert!(offset_of!(StreamControl, state) == 0);
// Where the sections put header and words.
const _: () = assert!(record::HEADER_SIZE_BYTES == 16 && record::EXTENDED_HEADER_SIZE_BYTES == 11);

/// A stream, its state word, and a record's head with the time that was read after the word.
#[repr(C)]
#[derive(Debug)]
struct At {
    site: Site,
    state: u64,
    timestamp: u64,
    context: u64,
    id: u16,
}

macro_rules! define_record_at {
    ($name:ident, header = $header:tt, $($operands:tt)*) => {
        define_record!(
            @section [
                /// Writes a record of segments to the stream and with the time that are given. `size_bytes` is that of a header with context and
                /// of the segments.
                ///
                /// # Safety
                /// As [`rseq_write_at`].
            ] [] $name runs
            [at: *const At, size_bytes: usize, _unused: u64, first: *const Segment, end: *const Segment] [Written],
            enter = [
                "mov r10, qword ptr [rdi + {RSEQ_OFFSET}]",
                "lea rax, [rip + 66b]",
                "mov qword ptr fs:[r10 + {RSEQ_CS}], rax",
                "20:",
                "mov eax, dword ptr fs:[r10 + {CPU_ID}]",
                "cmp eax, dword ptr [rdi + {CPU}]",
                "jne 51f",
                "mov r11, qword ptr [rdi + {SESSION}]",
                "mov rax, qword ptr [rdi + {SESSION_WORD}]",
                "cmp qword ptr [rax], r11",
                "jne 53f",
                "mov rax, qword ptr [rdi + {CONTROL}]",
                "mov r10, qword ptr [rax]",
                "cmp r10, qword ptr [rdi + {STATE}]",
                "jne 51f"
            ],
            fit = [define_record!(@fit_less runs)],
            header = $header,
            commit = ["lea rdx, [rsi - {LESS}]", "add qword ptr [r11], rdx"],
            done = ["xor eax, eax"],
            abort = ["51:", "mov eax, 1", "ret", "50:", "mov eax, 2", "ret", "53:", "mov eax, 3", "ret"],
            RSEQ_OFFSET = const offset_of!(At, site.rseq_offset),
            CPU = const offset_of!(At, site.cpu),
            SESSION = const offset_of!(At, site.session),
            SESSION_WORD = const offset_of!(At, site.session_word),
            CONTROL = const offset_of!(At, site.control),
            STATE = const offset_of!(At, state),
            TIMESTAMP = const offset_of!(At, timestamp),
            ID = const offset_of!(At, id),
            $($operands)*
        );
    };
}

define_record_at!(
    rseq_cmpeq_state_write_segments_commit,
    header = [
        "mov rax, qword ptr [rdi + {TIMESTAMP}]",
        "shl rax, 16",
        "mov ax, word ptr [rdi + {ID}]",
        "mov qword ptr [r10], rax",
        "mov rax, qword ptr [rdi + {CONTEXT}]",
        "mov qword ptr [r10 + 8], rax"
    ],
    CONTEXT = const offset_of!(At, context),
    LESS = const 0,
);

define_record_at!(
    rseq_cmpeq_state_write_compact_segments_commit,
    header = [
        "mov al, byte ptr [rdi + {ID}]",
        "mov byte ptr [r10 + {LESS}], al",
        "mov eax, dword ptr [rdi + {TIMESTAMP}]",
        "mov dword ptr [r10 + {LESS} + 1], eax"
    ],
    LESS = const COMPACT_LESS_BYTES,
);

define_record_at!(
    rseq_cmpeq_state_write_extended_segments_commit,
    header = [
        "mov byte ptr [r10 + {LESS}], {EXTENDED}",
        "mov ax, word ptr [rdi + {ID}]",
        "mov word ptr [r10 + {LESS} + 1], ax",
        "mov rax, qword ptr [rdi + {TIMESTAMP}]",
        "mov qword ptr [r10 + {LESS} + 3], rax"
    ],
    EXTENDED = const record::EXTENDED,
    LESS = const record::HEADER_SIZE_BYTES - record::EXTENDED_HEADER_SIZE_BYTES,
);

/// Writes a record to the stream of the CPU, with a timestamp that was read after the state word `state`.
///
/// Wait-free for each call; the caller repeats on [`Written::Aborted`], which it is also when the state word has changed. Async-signal-safe.
/// The caller has found that the page takes a record of that form and time; after an extended one it tells [`crate::begin_epoch`].
///
/// # Safety
/// While `*site.session_word` is `site.session`, that describes mapped memory of a session, and `site.control` is the control
/// block of its stream `site.cpu` (whoever changes the word waits for running sections by membarrier before it unmaps);
/// the thread's rseq area is registered at `site.rseq_offset`; every segment's source may be read.
pub unsafe fn rseq_write_at(site: Site, record: &Record<'_>, form: Form, state: u64, timestamp: u64) -> Written {
    let at = &At { site, state, timestamp, context: record.context, id: record.id };
    let size_bytes = record.size_bytes(Form::Context);
    let core::ops::Range { start, end } = record.segments.as_ptr_range();
    match form {
        // SAFETY: the caller's word holds for what `at` says, and the segments are a slice.
        Form::Context => unsafe { rseq_cmpeq_state_write_segments_commit(at, size_bytes, 0, start, end) },
        // SAFETY: the caller's word holds for what `at` says, and the segments are a slice.
        Form::Compact => unsafe { rseq_cmpeq_state_write_compact_segments_commit(at, size_bytes, 0, start, end) },
        // SAFETY: the caller's word holds for what `at` says, and the segments are a slice.
        Form::Extended => unsafe { rseq_cmpeq_state_write_extended_segments_commit(at, size_bytes, 0, start, end) },
    }
}

/// The timestamp counter, in ticks, as of after all loads before it: it would be read ahead of them else, and who has just claimed a stream
/// might be earlier than who had it before (Intel SDM, volume 2, RDTSC and LFENCE).
#[inline(always)]
pub fn timestamp() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, which changes nothing.
    unsafe { core::arch::x86_64::_mm_lfence() };
    // SAFETY: every x86-64 CPU has the instruction, and Linux lets user mode use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
