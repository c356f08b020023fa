//! x86-64: reserve, write and commit as one rseq critical section; one macro, [`define_record!`], defines all sections.
//!
//! The direct path, for words of fields that are passed in registers and for runs of bytes, finds its stream and its
//! session inside the section, so that nothing must be compared afterwards:
//! ```text
//!   rseq_load_session_reserve_rdtsc_write_commit(id, size, fields):
//!     if context == 0                  → slow, also without rseq
//!       rseq.rseq_cs = &descriptor
//!     start:
//!       session = *session_word
//!       control = session.streams[rseq.cpu_id]           → slow beyond session.cpu_count
//!       if *id > CLASS_ID_MAX            → slow
//!     page, offset = control.state     → slow if the record does not fit, or the page is outside the memory
//!       timestamp = rdtsc                → slow if its upper half is at control.expiry
//!       page[offset] = head, context, fields…
//!       control.state += size            ← the final store
//!     post_commit:
//!       return
//!     slow, abort:
//!     jump to the slow path, with the original arguments
//! ```
//! Sessions whose records are compact have sections of their own. Writers reach them when the ones above fail, because
//! the `cpu_count` of these sessions is 0. So the sections for records with context cost nothing more:
//! ```text
//!   rseq_load_session_reserve_rdtsc_cmpeq_epoch_write_commit(id, size, fields):
//!     the steps above, except:
//!       control                          → slow beyond session.compact_cpu_count
//!       if *id > COMPACT_ID_MAX          → slow
//!       timestamp = rdtsc                → slow unless its epoch is control.epoch
//!       page[offset] = id, lower half, fields…
//! ```
//! The slow path reads the clock itself. Its sections compare the state word with the one that was read before the
//! clock, so timestamps never decrease within a stream there either. They check no expiry or epoch, because the caller
//! has checked both for that word and time.
//! ```text
//!   rseq_cmpeq_state_write_segments_commit(at, size, segments):           one for each form of header
//!       rseq.rseq_cs = &descriptor
//!     start:
//!       if rseq.cpu_id != at.cpu         → Aborted
//!       if *at.session_word != at.session                → Gone
//!       page, offset = at.control.state  → Aborted if it is not at.state
//!                                        → Full if the record does not fit, or the page is outside the memory
//!       page[offset] = head, segments…
//!       at.control.state += size         ← the final store
//!     post_commit:
//! ```
//! A zeroed control block is refused: the expiry 0 has always passed, no time is in the epoch 0, and no caller finds
//! room in a stream without a page.
//!
//! The kernel restarts nothing by itself: an abort jumps to the slow path, or returns [`Written::Aborted`] and the
//! caller starts over.

use core::mem::offset_of;

use dormouse_abi::record::{self, RecordKind};

use crate::abi::session::StreamControl;
use crate::{Form, Memory, Record, Segment, Written};

/// A writer's choices when it enters the section.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// Offset of the thread's rseq structure from the thread pointer, in bytes.
    pub rseq_offset: isize,
    /// CPU that was chosen.
    pub cpu: u32,
    /// Control block of its stream.
    pub control: *const StreamControl,
    /// Word that holds `session` as long as the session lasts.
    pub session_word: *const *const Session,
    /// Session that is written to.
    pub session: *const Session,
}

/// The data of a session that sections read. It is never unmapped, even if the session's memory is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Session {
    /// Start of the memory.
    pub base: *mut u8,
    /// Offset of the last page, in bytes. No page starts after it, and no record leaves its page.
    pub last_page_offset: usize,
    /// Start of the control blocks.
    pub streams: *mut u8,
    /// Offset in a page from which it is full, in bytes: the start of the slack.
    pub page_limit: usize,
    /// Number of CPUs whose streams may be written with the timestamp counter as the clock, in records with context; 0
    /// if the session has another clock or other records.
    pub cpu_count: u32,
    /// Number of CPUs whose streams may be written with the timestamp counter as the clock, in compact records; 0 if
    /// the session has another clock or other records.
    pub compact_cpu_count: u32,
}

// SAFETY: plain values; they point to shared memory, which sections write as `Memory` documents.
unsafe impl Sync for Session {}

impl Session {
    /// Returns the data of the session in `memory`. `is_fast`: its clock is the timestamp counter, and the process has
    /// rseq.
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

    /// Returns an empty session: every record takes the slow path.
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
/// `ids` or `compact` is the form of the header ([`dormouse_abi::record`]). The fields follow: 0 to 3 words, or
/// `runs [first: *const Segment, end: *const Segment]`, the segments from `first` up to, but not including, `end`.
///
/// The slow function has the arguments of the defined one: `id: *const u32, size_bytes: usize, which: MaybeUninit<u64>`
/// and those of the fields. They are the address of the class's id, the size of a header with context and of the
/// fields, and a word for `other`. It may declare more arguments, of any value. `session` is a static `*const Session`,
/// atomic and never null ([`Session::none`]). `rseq_offset` is a static with the distance of the rseq structure from
/// the thread pointer. `context` is the name of the thread's context word, in static TLS (initial-exec), which is 0 in
/// threads that may not use this path, and in all threads without rseq.
///
/// `injected: STATIC` is for tests: it gives the section its injection points. The static, whose two words are the
/// chosen point and the number of passes before it interrupts, may be changed at any time. Without it a point is no
/// instruction.
///
/// | point | place |
/// | --- | --- |
/// | 1 | after `rseq_cs` is set, before anything is read |
/// | 2 | after the state word is read |
/// | 3 | after the record's place is found, before its first store |
/// | 4 | after the header is stored |
/// | 5 | after each run of bytes is stored |
/// | 6 | before the final store |
///
/// With `other: function`, a function of that type, an id is followed by a word of 64 bits that names its owner: if it
/// is not `which`, the other function is called instead.
///
/// Changes no general register but rax, rdx, r9, r10 and r11, and r9 only if it holds no word. Wait-free;
/// async-signal-safe if the slow path is.
///
/// # Safety
/// For the defined function: `id` may be read, and `size_bytes` is the size of a header with context and of the fields,
/// which the words hold or the segments have. The segments' sources may be read. While `session` points to a session,
/// that session describes mapped memory; a thread that changes `session` waits for running sections by membarrier
/// before it unmaps the memory or reuses an id. Every thread whose context word is not 0 has its rseq structure
/// registered at `rseq_offset`.
#[doc(hidden)]
#[macro_export]
macro_rules! define_record {
    ($(#[$meta:meta])* $vis:vis fn $name:ident(
        ids $fields:tt [$($argument:ident: $type:ty),*], session: $session:path, rseq_offset: $rseq_offset:path,
        context: $context:literal, slow: $slow:path $(, other: $other:path)? $(; injected: $injected:path)?
    )) => {
        $crate::define_record!(
            @direct [$(#[$meta])*] [$vis] $name $fields [$($argument: $type),*], injected = [$($injected)?],
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
            $(injected = sym $injected,)?
            EXPIRY = const ::core::mem::offset_of!($crate::arch::abi::session::StreamControl, expiry),
            ID_MAX = const $crate::arch::abi::class::CLASS_ID_MAX,
            CPU_COUNT = const ::core::mem::offset_of!($crate::arch::Session, cpu_count),
        );
    };
    // Here the context word only says whether the thread may use this path; it is not recorded.
    ($(#[$meta:meta])* $vis:vis fn $name:ident(
        compact $fields:tt [$($argument:ident: $type:ty),*], session: $session:path, rseq_offset: $rseq_offset:path,
        context: $context:literal, slow: $slow:path $(; injected: $injected:path)?
    )) => {
        $crate::define_record!(
            @direct [$(#[$meta])*] [$vis] $name $fields [$($argument: $type),*], injected = [$($injected)?],
            before = [$crate::define_record!(@context 3 $context)],
            fit = [$crate::define_record!(@fit_less $fields)],
            header = [
                "rdtsc",
                // The epoch of this time is its upper half plus one.
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
            $(injected = sym $injected,)?
            LESS = const $crate::arch::COMPACT_LESS_BYTES,
            EPOCH = const ::core::mem::offset_of!($crate::arch::abi::session::StreamControl, epoch),
            ID_MAX = const $crate::arch::abi::record::COMPACT_ID_MAX,
            CPU_COUNT = const ::core::mem::offset_of!($crate::arch::Session, compact_cpu_count),
        );
    };
    // The stream and the session are found inside the section.
    (
        @direct [$($meta:tt)*] [$($vis:tt)*] $name:ident $fields:tt [$($argument:ident: $type:ty),*], injected = $injected:tt,
        before = [$($before:expr),*], fit = $fit:tt, header = $header:tt, commit = $commit:tt, after = [$($after:expr),*],
        $($operands:tt)*
    ) => {
        $crate::define_record!(
            @section [$($meta)*] [$($vis)*] $name $fields
            [id: *const u32, size_bytes: usize, which: ::core::mem::MaybeUninit<u64> $(, $argument: $type)*] [()],
            injected = $injected,
            enter = [
                $($before,)*
                "mov r10, qword ptr [rip + {rseq_offset}]",
                "lea rax, [rip + 66b]",
                "mov qword ptr fs:[r10 + {RSEQ_CS}], rax",
                "20:",
                $crate::define_record!(@point 1 $injected),
                "mov r11, qword ptr [rip + {session}]",
                // (X) pairs with the store of the word. Without a session the count is 0. A thread that is not
                // registered has a number beyond any count.
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
    // rdi holds the id (or `At`), rsi the size, rcx, r8 and r9 the fields. They stay unchanged, except that runs use
    // rcx, which is saved below the stack pointer, where no handler writes (psABI, "red zone"). rax, rdx, r10, r11 are
    // free, and so is r9 if it holds no word.
    (
        @section [$($meta:tt)*] [$($vis:tt)*] $name:ident $fields:tt [$($argument:ident: $type:ty),*] [$result:ty],
        injected = $injected:tt,
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
                // rax is the control block, r10 the state, r11 the session, rdx the offset of the record's end in its
                // page.
                $crate::define_record!(@point 2 $injected),
                "mov edx, r10d",
                "and edx, 0xffffff",
                $($fit,)*
                // The page's offset: the unit, in bits 24 to 47, times 4,096.
                "shl r10, 16",
                "shr r10, 28",
                "and r10, -4096",
                // If a stray pointer has overwritten the state word, nothing is written outside the mapping.
                "cmp r10, qword ptr [r11 + {LAST_PAGE_OFFSET}]",
                "ja 50f",
                "add r10, qword ptr [r11 + {BASE}]",
                "add r10, rdx",
                "sub r10, rsi",
                // r10 is 16 bytes before the place of the fields, r11 the control block.
                "mov r11, rax",
                $crate::define_record!(@point 3 $injected),
                $($header,)*
                $crate::define_record!(@point 4 $injected),
                $crate::define_record!(@store $fields $injected),
                $crate::define_record!(@point 6 $injected),
                $($commit,)*
                "40:",
                $crate::define_record!(@restore $fields),
                $($done,)*
                "ret",
                // The kernel checks the signature before the abort handler; it is the operand of an undefined
                // instruction.
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
    // Interrupts the section if the point is chosen, once the section has passed it as often as the second word says.
    // Changes the flags, which nothing needs at a point.
    (@point $point:literal []) => { "" };
    (@point $point:literal [$injected:path]) => {
        concat!(
            "cmp dword ptr [rip + {injected}], ", $point, "\n jne 80f\n",
            "dec dword ptr [rip + {injected} + 4]\n jns 80f\n int3\n 80:"
        )
    };
    (@keep runs) => { "mov qword ptr [rsp - 8], rcx" };
    (@keep $words:tt) => { "" };
    (@restore runs) => { "mov rcx, qword ptr [rsp - 8]" };
    (@restore $words:tt) => { "" };
    // The check is outside the section, because an abort does not preserve `which`, and the slow path must know whose
    // id it is.
    (@check) => { "" };
    (@check $other:path) => { "cmp qword ptr [rdi + 4], rdx\n jne 70f" };
    (@other) => { "" };
    (@other $other:path) => { "70: jmp {other}" };
    // The context word is in r9, unless r9 holds a word of the fields.
    (@context 3 $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n cmp qword ptr fs:[rax], 0\n je 50f")
    };
    (@context $fields:tt $context:literal) => {
        concat!("mov r9, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov r9, qword ptr fs:[r9]\n test r9, r9\n jz 50f")
    };
    // The word is tested again, because a signal handler may have cleared it before the section.
    (@store_context 3 $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov rax, qword ptr fs:[rax]\n test rax, rax\n jz 50f\n mov qword ptr [r10 + 8], rax")
    };
    (@store_context $fields:tt $context:literal) => { "mov qword ptr [r10 + 8], r9" };
    // The program determines the length of runs, so all 64 bits are compared.
    (@fit runs) => { "add rdx, rsi\n cmp rdx, qword ptr [r11 + {PAGE_LIMIT}]\n ja 50f" };
    (@fit $words:tt) => { "add edx, esi\n cmp edx, dword ptr [r11 + {PAGE_LIMIT}]\n ja 50f" };
    // The comparison for a header that is `LESS` bytes shorter than the one that the size includes.
    (@fit_less runs) => { "add rdx, rsi\n sub rdx, {LESS}\n cmp rdx, qword ptr [r11 + {PAGE_LIMIT}]\n ja 50f" };
    (@fit_less $words:tt) => { "add edx, esi\n sub edx, {LESS}\n cmp edx, dword ptr [r11 + {PAGE_LIMIT}]\n ja 50f" };
    (@store 0 $injected:tt) => { "" };
    (@store 1 $injected:tt) => { "mov qword ptr [r10 + 16], rcx" };
    (@store 2 $injected:tt) => { concat!($crate::define_record!(@store 1 []), "\n mov qword ptr [r10 + 24], r8") };
    (@store 3 $injected:tt) => { concat!($crate::define_record!(@store 2 []), "\n mov qword ptr [r10 + 32], r9") };
    // Copies each segment: its whole words from the last to the first, two at a time; then, if it is exact and has more
    // bytes, its last eight bytes, or all bytes if there are fewer.
    (@store runs $injected:tt) => { concat!("
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
        ", $crate::define_record!(@point 5 $injected), "
        add r10, r9
        add rcx, 24
        jmp 30b
        39:
    ") };
}

/// Number of bytes by which a compact header is shorter than one with context.
#[doc(hidden)]
pub const COMPACT_LESS_BYTES: usize = record::HEADER_SIZE_BYTES - record::COMPACT_HEADER_SIZE_BYTES;
/// The crate whose constants [`define_record!`] uses.
#[doc(hidden)]
pub use dormouse_abi as abi;

#[cfg(test)]
mod interrupted;

const _: () = assert!(offset_of!(StreamControl, state) == 0);
// The sections use these sizes for the places of header and words.
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

/// In tests the sections have their injection points.
macro_rules! define_record_at {
    ($name:ident, $($rest:tt)*) => {
        #[cfg(not(test))]
        define_record_at!(@injected [] $name, $($rest)*);
        #[cfg(test)]
        define_record_at!(@injected [interrupted::INJECTED] $name, $($rest)* injected = sym interrupted::INJECTED,);
    };
    (@injected $injected:tt $name:ident, header = $header:tt, $($operands:tt)*) => {
        define_record!(
            @section [
                /// Writes a record of segments to the given stream with the given time. `size_bytes` is the size of a
                /// header with context and of the segments.
                ///
                /// # Safety
                /// The conditions of [`rseq_write_at`].
            ] [] $name runs
            [at: *const At, size_bytes: usize, _unused: u64, first: *const Segment, end: *const Segment] [Written],
            injected = $injected,
            enter = [
                "mov r10, qword ptr [rdi + {RSEQ_OFFSET}]",
                "lea rax, [rip + 66b]",
                "mov qword ptr fs:[r10 + {RSEQ_CS}], rax",
                "20:",
                define_record!(@point 1 $injected),
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
/// Wait-free for each call; the caller repeats on [`Written::Aborted`], which is also the result if the state word has
/// changed. Async-signal-safe. The caller has checked that the page takes a record of that form and time; after an
/// extended record it calls [`crate::begin_epoch`].
///
/// # Safety
/// While `*site.session_word` is `site.session`, that session describes mapped memory, and `site.control` is the
/// control block of its stream `site.cpu` (a thread that changes the word waits for running sections by membarrier
/// before it unmaps the memory). The thread's rseq structure is registered at `site.rseq_offset`. Every segment's
/// source may be read.
pub unsafe fn rseq_write_at(site: Site, record: &Record<'_>, form: Form, state: u64, timestamp: u64) -> Written {
    let at = &At { site, state, timestamp, context: record.context, id: record.id };
    let size_bytes = record.size_bytes(Form::Context);
    let core::ops::Range { start, end } = record.segments.as_ptr_range();
    match form {
        // SAFETY: the caller guarantees the conditions for the site in `at`; the segments are a slice, whose sources
        // may be read.
        Form::Context => unsafe { rseq_cmpeq_state_write_segments_commit(at, size_bytes, 0, start, end) },
        // SAFETY: the caller guarantees the conditions for the site in `at`; the segments are a slice, whose sources
        // may be read.
        Form::Compact => unsafe { rseq_cmpeq_state_write_compact_segments_commit(at, size_bytes, 0, start, end) },
        // SAFETY: the caller guarantees the conditions for the site in `at`; the segments are a slice, whose sources
        // may be read.
        Form::Extended => unsafe { rseq_cmpeq_state_write_extended_segments_commit(at, size_bytes, 0, start, end) },
    }
}

/// Returns the timestamp counter, in ticks, read after all earlier loads. Otherwise it could be read ahead of them, and
/// a thread that has just claimed a stream could get an earlier time than the previous claimant (Intel SDM, volume 2,
/// RDTSC and LFENCE).
#[inline(always)]
pub fn timestamp() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, which changes nothing.
    unsafe { core::arch::x86_64::_mm_lfence() };
    // SAFETY: every x86-64 CPU has the instruction, and Linux lets user mode use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
