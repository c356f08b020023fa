//! x86-64: reserve, write and commit as one rseq critical section.
//!
//! ```text
//!   rseq_cpu_session_reserve_write_commit(record):
//!       rseq.rseq_cs = &descriptor
//!     start:
//!       if rseq.cpu_id != cpu            → Aborted
//!       if *session_word != session      → Gone
//!       base = session.base
//!       state = control.state
//!       if offset(state) + size + slack > page_size, or the page lies outside of the memory → Full
//!       timestamp = rdtsc
//!       if its upper half is at control.expiry → Full
//!       page[offset] = head, context, segments…
//!       control.state = state + size     ← the final store
//!     post_commit:
//! ```
//! The shortest way, for up to three words of fields that come in registers, finds its stream and its session inside the section
//! as well, so that nothing has to be compared afterwards:
//! ```text
//!   rseq_load_session_reserve_rdtsc_write_commit(id, size, words):          `define_record_words!`
//!       if context == 0                  → slow, also without rseq
//!       rseq.rseq_cs = &descriptor
//!     start:
//!       session = *session_word
//!       control = session.streams[rseq.cpu_id]           → slow beyond session.cpu_count
//!       if *id > CLASS_ID_MAX            → slow
//!       page, offset = control.state     → slow if the record does not fit, or the page lies outside of the memory
//!       timestamp = rdtsc                → slow if its upper half is at control.expiry
//!       page[offset] = head, context, words…
//!       control.state += size            ← the final store
//!     post_commit:
//!       return
//!     slow, abort:
//!       jump to the slow path, with the arguments as they came
//! ```
//! Sessions whose records are compact have sections of their own, to which the ones above lead by failing: their `cpu_count` is 0,
//! so those for records with context cost nothing more. The shortest:
//! ```text
//!   rseq_load_session_reserve_rdtsc_cmpeq_epoch_write_commit(id, size, words):          `define_compact_record_words!`
//!       if context == 0                  → slow
//!       rseq.rseq_cs = &descriptor
//!     start:
//!       session = *session_word
//!       control = session.streams[rseq.cpu_id]           → slow beyond session.compact_cpu_count
//!       if *id > COMPACT_ID_MAX          → slow
//!       page, offset = control.state     → slow as above
//!       timestamp = rdtsc                → slow unless its epoch is control.epoch
//!       page[offset] = id, lower half, words…
//!       control.state += size            ← the final store
//!     post_commit:
//!       return
//! ```
//! Extended records are given their timestamp: there is one of them every few seconds.
//!
//! The variants with a given timestamp compare the state word with the one that was read before the clock, so that
//! timestamps never decrease within a stream there either. They ask for no expiry or epoch: the caller has, of that very word and time.
//!
//! A control block of zeroes is refused: the expiry 0 has always come, no time is of the epoch 0, and no caller finds room in a
//! stream without a page.
//!
//! Register use: the kernel restarts nothing by itself; an abort reports [`Written::Aborted`] and the caller starts over, so
//! inputs may be overwritten once they have served.

use core::arch::asm;
use core::mem::offset_of;

use dormouse_abi::record::{self, RecordKind};
use dormouse_abi::rseq;
use dormouse_abi::session::StreamControl;

use crate::{Form, Memory, Record, Written};

/// What a writer knows when it enters the section.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// Offset of the thread's rseq area from the thread pointer.
    pub rseq_offset: isize,
    /// The processor that was chosen.
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
    base: *mut u8,
    last_page_offset: usize,
    page_size_bytes: usize,
    streams: *mut u8,
    /// Where a page is full: before the slack.
    page_limit: u32,
    /// Processors whose streams may be written with the timestamp counter as the clock, in records with context; 0 if the session has
    /// another clock or other records.
    cpu_count: u32,
    /// The same in compact records.
    compact_cpu_count: u32,
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
            // No page starts further on, and no record leaves its page.
            last_page_offset: geometry.size_bytes() - page_size_bytes,
            page_size_bytes,
            streams: memory.streams_base(),
            page_limit: geometry.page_size_bytes - dormouse_abi::page::SLACK_BYTES as u32,
            cpu_count: count_for(RecordKind::Ids),
            compact_cpu_count: count_for(RecordKind::Compact),
        }
    }

    /// No session: every record goes the slow way.
    pub const fn none() -> Session {
        let null = core::ptr::null_mut();
        Session {
            base: null,
            last_page_offset: 0,
            page_size_bytes: 0,
            streams: null,
            page_limit: 0,
            cpu_count: 0,
            compact_cpu_count: 0,
        }
    }

    /// Where [`define_record_words!`] and [`define_compact_record_words!`] find what they read, in bytes.
    #[doc(hidden)]
    pub const OFFSETS: SessionOffsets = SessionOffsets {
        base: offset_of!(Session, base),
        last_page_offset: offset_of!(Session, last_page_offset),
        streams: offset_of!(Session, streams),
        page_limit: offset_of!(Session, page_limit),
        cpu_count: offset_of!(Session, cpu_count),
        compact_cpu_count: offset_of!(Session, compact_cpu_count),
    };
}

/// See [`Session::OFFSETS`].
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct SessionOffsets {
    pub base: usize,
    pub last_page_offset: usize,
    pub streams: usize,
    pub page_limit: usize,
    pub cpu_count: usize,
    pub compact_cpu_count: usize,
}

/// Defines a function that writes a record of so many words of fields, as short as it can be.
///
/// ```text
///   define_record_words! {
///       /// Documentation.
///       fn record_1(words: 1 [w0], session: CURRENT, rseq_offset: RSEQ_OFFSET, context: "name", slow: record_1_slowly)
///   }
/// ```
/// The slow function is `unsafe extern "C" fn(id: *const u32, size_bytes: usize, which: MaybeUninit<u64>, w0: u64, w1: u64, w2: u64)`:
/// address of the class's id, bytes of header and fields, a word for `other`, and three words, of which those that the record does not
/// have are of any value. The one that is defined has as many words as it says. `session` is a static `*const Session`, atomic and
/// never null ([`Session::none`]);
/// `rseq_offset` one that holds the rseq area's distance from the thread pointer; `context` the name of the thread's context word,
/// in static TLS (initial-exec), which is 0 in threads that may not write this way, and everywhere without rseq.
///
/// With `other: function`, of the same type, an id is followed by a word of 64 bits that says whose it is: where that is not
/// `which`, the other function is called instead.
///
/// Wait-free; async-signal-safe if the slow path is.
///
/// # Safety
/// Of the function: `id` may be read, and `size_bytes` is the header's and not more than the words hold. While `session` points to a
/// session, that describes mapped memory, and whoever changes it waits for running sections by membarrier before it
/// unmaps or takes an id back. Every thread whose context word is not 0 has its rseq area registered at `rseq_offset`.
#[doc(hidden)]
#[macro_export]
macro_rules! define_record_words {
    (@store 0) => { "" };
    (@store 1) => { "mov qword ptr [r10 + 16], rcx" };
    (@store 2) => { concat!($crate::define_record_words!(@store 1), "\n mov qword ptr [r10 + 24], r8") };
    (@store 3) => { concat!($crate::define_record_words!(@store 2), "\n mov qword ptr [r10 + 32], r9") };
    // Outside of the section, since an abort does not keep `which`, and the slow path has to know whose id it is.
    (@check) => { "" };
    (@check $other:path) => { "cmp qword ptr [rdi + 4], rdx\n jne 70f" };
    // The context word: in r9, unless that holds a word of the fields.
    (@context 3 $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n cmp qword ptr fs:[rax], 0\n je 50f")
    };
    (@context $words:tt $context:literal) => {
        concat!("mov r9, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov r9, qword ptr fs:[r9]\n test r9, r9\n jz 50f")
    };
    // Asked again, because a signal handler may have emptied it before the section.
    (@store_context 3 $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov rax, qword ptr fs:[rax]\n test rax, rax\n jz 50f\n mov qword ptr [r10 + 8], rax")
    };
    (@store_context $words:tt $context:literal) => { "mov qword ptr [r10 + 8], r9" };
    (@other) => { "" };
    (@other $other:path) => { "70: jmp {other}" };
    ($(#[$meta:meta])* $vis:vis fn $name:ident(
        words: $words:tt [$($word:ident),*], session: $session:path, rseq_offset: $rseq_offset:path, context: $context:literal,
        slow: $slow:path $(, other: $other:path)?
    )) => {
        $(#[$meta])*
        #[unsafe(naked)]
        $vis unsafe extern "C" fn $name(
            id: *const u32, size_bytes: usize, which: ::core::mem::MaybeUninit<u64>, $($word: u64),*
        ) {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "66:",
                ".long 0, 0",
                ".quad 20f, 40f - 20f, 60f",
                ".popsection",
                // rdi id, rsi size, rcx r8 r9 words: they stay as they are for the slow path. rax, rdx, r10, r11 are free, and r9
                // where it holds no word.
                $crate::define_record_words!(@check $($other)?),
                $crate::define_record_words!(@context $words $context),
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
                // rax is the control block, r10 the state, edx where the record ends in its page.
                "mov r10, qword ptr [rax]",
                "mov edx, r10d",
                "and edx, 0xffffff",
                "add edx, esi",
                "cmp edx, dword ptr [r11 + {PAGE_LIMIT}]",
                "ja 50f",
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
                // r10 is where the record goes, r11 the control block.
                "mov r11, rax",
                "rdtsc",
                "cmp edx, dword ptr [r11 + {EXPIRY}]",
                "jae 50f",
                "shl rdx, 48",
                "shl rax, 16",
                "or rax, rdx",
                "mov ax, word ptr [rdi]",
                "mov qword ptr [r10], rax",
                $crate::define_record_words!(@store_context $words $context),
                $crate::define_record_words!(@store $words),
                "add qword ptr [r11], rsi",
                "40:",
                "ret",
                // The kernel checks the signature before the abort handler; it hides in an undefined instruction's operand.
                ".byte 0x0f, 0xb9, 0x3d",
                ".long {SIGNATURE}",
                "60:",
                "50:",
                "jmp {slow}",
                $crate::define_record_words!(@other $($other)?),
                ".cfi_endproc",
                session = sym $session,
                rseq_offset = sym $rseq_offset,
                slow = sym $slow,
                $(other = sym $other,)?
                RSEQ_CS = const $crate::arch::RSEQ_OFFSETS.0,
                CPU_ID = const $crate::arch::RSEQ_OFFSETS.1,
                SIGNATURE = const $crate::arch::RSEQ_OFFSETS.2,
                ID_MAX = const $crate::arch::CLASS_ID_MAX,
                STRIDE_SHIFT = const $crate::arch::STREAM_STRIDE_SHIFT,
                CPU_COUNT = const $crate::arch::Session::OFFSETS.cpu_count,
                STREAMS = const $crate::arch::Session::OFFSETS.streams,
                PAGE_LIMIT = const $crate::arch::Session::OFFSETS.page_limit,
                LAST_PAGE_OFFSET = const $crate::arch::Session::OFFSETS.last_page_offset,
                BASE = const $crate::arch::Session::OFFSETS.base,
                EXPIRY = const $crate::arch::EXPIRY_OFFSET,
            )
        }
    };
}

/// Defines a function that writes a compact record of so many words of fields, or calls the slow one. It takes the place of the
/// slow function of [`define_record_words!`], whose arguments it gets and hands on.
///
/// ```text
///   define_compact_record_words! {
///       /// Documentation.
///       fn compact_1(words: 1 [w0], session: CURRENT, rseq_offset: RSEQ_OFFSET, context: "name", slow: record_1_slowly)
///   }
/// ```
/// `size_bytes` is still that of a record with context. Wait-free; async-signal-safe if the slow path is.
///
/// # Safety
/// Of the function: as there.
#[doc(hidden)]
#[macro_export]
macro_rules! define_compact_record_words {
    ($(#[$meta:meta])* $vis:vis fn $name:ident(
        words: $words:tt [$($word:ident),*], session: $session:path, rseq_offset: $rseq_offset:path, context: $context:literal,
        slow: $slow:path
    )) => {
        $(#[$meta])*
        #[unsafe(naked)]
        $vis unsafe extern "C" fn $name(
            id: *const u32, size_bytes: usize, which: ::core::mem::MaybeUninit<u64>, $($word: u64),*
        ) {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "66:",
                ".long 0, 0",
                ".quad 20f, 40f - 20f, 60f",
                ".popsection",
                // Registers as in `define_record_words!`. The context word says that the thread may, and is not recorded.
                concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]"),
                "cmp qword ptr fs:[rax], 0",
                "je 50f",
                "mov r10, qword ptr [rip + {rseq_offset}]",
                "lea rax, [rip + 66b]",
                "mov qword ptr fs:[r10 + {RSEQ_CS}], rax",
                "20:",
                "mov r11, qword ptr [rip + {session}]",
                // (X) as there.
                "mov eax, dword ptr fs:[r10 + {CPU_ID}]",
                "cmp eax, dword ptr [r11 + {CPU_COUNT}]",
                "jae 50f",
                "cmp dword ptr [rdi], {ID_MAX}",
                "ja 50f",
                "shl rax, {STRIDE_SHIFT}",
                "add rax, qword ptr [r11 + {STREAMS}]",
                // rax is the control block, r10 the state, edx where the record ends in its page. Its header is 11 bytes less
                // than that which the size is of.
                "mov r10, qword ptr [rax]",
                "mov edx, r10d",
                "and edx, 0xffffff",
                "add edx, esi",
                "sub edx, {LESS}",
                "cmp edx, dword ptr [r11 + {PAGE_LIMIT}]",
                "ja 50f",
                "shl r10, 16",
                "shr r10, 28",
                "and r10, -4096",
                "cmp r10, qword ptr [r11 + {LAST_PAGE_OFFSET}]",
                "ja 50f",
                "add r10, qword ptr [r11 + {BASE}]",
                "add r10, rdx",
                "sub r10, rsi",
                // r10 is 11 bytes before where the record goes, r11 the control block.
                "mov r11, rax",
                "rdtsc",
                // The epoch of this time: its upper half and one.
                "inc edx",
                "cmp edx, dword ptr [r11 + {EPOCH}]",
                "jne 50f",
                "movzx edx, byte ptr [rdi]",
                "mov byte ptr [r10 + {LESS}], dl",
                "mov dword ptr [r10 + {LESS} + 1], eax",
                // The words begin 5 bytes on: where they would with context, had the record begun at r10.
                $crate::define_record_words!(@store $words),
                "lea rdx, [rsi - {LESS}]",
                "add qword ptr [r11], rdx",
                "40:",
                "ret",
                // The kernel checks the signature before the abort handler; it hides in an undefined instruction's operand.
                ".byte 0x0f, 0xb9, 0x3d",
                ".long {SIGNATURE}",
                "60:",
                "50:",
                "jmp {slow}",
                ".cfi_endproc",
                session = sym $session,
                rseq_offset = sym $rseq_offset,
                slow = sym $slow,
                RSEQ_CS = const $crate::arch::RSEQ_OFFSETS.0,
                CPU_ID = const $crate::arch::RSEQ_OFFSETS.1,
                SIGNATURE = const $crate::arch::RSEQ_OFFSETS.2,
                ID_MAX = const $crate::arch::COMPACT_ID_MAX,
                LESS = const $crate::arch::COMPACT_LESS_BYTES,
                STRIDE_SHIFT = const $crate::arch::STREAM_STRIDE_SHIFT,
                CPU_COUNT = const $crate::arch::Session::OFFSETS.compact_cpu_count,
                STREAMS = const $crate::arch::Session::OFFSETS.streams,
                PAGE_LIMIT = const $crate::arch::Session::OFFSETS.page_limit,
                LAST_PAGE_OFFSET = const $crate::arch::Session::OFFSETS.last_page_offset,
                BASE = const $crate::arch::Session::OFFSETS.base,
                EPOCH = const $crate::arch::EPOCH_OFFSET,
            )
        }
    };
}

/// Offsets of `rseq_cs` and `cpu_id`, and the signature, for [`define_record_words!`].
#[doc(hidden)]
pub const RSEQ_OFFSETS: (usize, usize, u32) = (rseq::OFFSET_RSEQ_CS, rseq::OFFSET_CPU_ID, rseq::SIGNATURE_X86);
/// Offset of the control block's expiry.
#[doc(hidden)]
pub const EXPIRY_OFFSET: usize = offset_of!(StreamControl, expiry);
/// Offset of the control block's epoch.
#[doc(hidden)]
pub const EPOCH_OFFSET: usize = offset_of!(StreamControl, epoch);
/// How much shorter a compact header is.
#[doc(hidden)]
pub const COMPACT_LESS_BYTES: usize = record::HEADER_SIZE_BYTES - record::COMPACT_HEADER_SIZE_BYTES;
/// Control blocks are 2 to this power bytes apart.
#[doc(hidden)]
pub const STREAM_STRIDE_SHIFT: u32 = dormouse_abi::session::STREAM_STRIDE_BYTES.trailing_zeros();
#[doc(hidden)]
pub use dormouse_abi::class::CLASS_ID_MAX;
#[doc(hidden)]
pub use dormouse_abi::record::COMPACT_ID_MAX;

const _: () = assert!(offset_of!(StreamControl, state) == 0);
// Where the sections put header and words.
const _: () =
    assert!(record::HEADER_SIZE_BYTES == 16 && COMPACT_LESS_BYTES == 11 && record::EXTENDED_HEADER_SIZE_BYTES == 11);

macro_rules! section {
    (
        state = [$($state:literal),*], clock = [$($clock:literal),*], header = [$($header:literal),*], copy = [$($copy:literal),*],
        $($operands:tt)*
    ) => {
        asm!(
            // Descriptor of this section.
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "66:",
            ".long 0, 0",
            ".quad 20f, 40f - 20f, 60f",
            ".popsection",
            "lea rax, [rip + 66b]",
            "mov qword ptr fs:[{rseq} + {RSEQ_CS}], rax",
            "20:",
            "cmp dword ptr fs:[{rseq} + {CPU_ID}], {cpu:e}",
            "jne 51f",
            "cmp qword ptr [{word}], {session}",
            "jne 53f",
            // From here on `rseq` is the state, `word` the base and then the destination, `cpu` the offset.
            "mov {rseq}, qword ptr [{control}]",
            "mov {word}, qword ptr [{session}]",
            $($state,)*
            "mov {cpu:e}, {rseq:e}",
            "and {cpu:e}, 0xffffff",
            // All 64 bits, and a bound that no other process can change: a length is the program's, the memory everybody's.
            "lea rax, [{cpu:r} + {size:r} + {SLACK}]",
            "cmp rax, qword ptr [{session} + {PAGE_SIZE}]",
            "ja 52f",
            // The page's offset: the unit, in bits 24 to 47, times 4,096.
            "mov rax, {rseq}",
            "shl rax, 16",
            "shr rax, 28",
            "and rax, -4096",
            // Whatever a stray pointer has left in the state word, nothing is written outside of the mapping.
            "cmp rax, qword ptr [{session} + {LIMIT}]",
            "ja 52f",
            "add {word}, rax",
            "add {word}, {cpu:r}",
            $($clock,)*
            $($header,)*
            $($copy,)*
            "add {rseq}, {size:r}",
            "mov qword ptr [{control}], {rseq}",
            "40:",
            "xor eax, eax",
            "jmp 55f",
            "51: mov eax, 1",
            "jmp 55f",
            "52: mov eax, 2",
            "jmp 55f",
            "53: mov eax, 3",
            "jmp 55f",
            // The kernel checks the signature before the abort handler; it hides in an undefined instruction's operand.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long {SIGNATURE}",
            "60:",
            "jmp 51b",
            "55:",
            RSEQ_CS = const rseq::OFFSET_RSEQ_CS,
            CPU_ID = const rseq::OFFSET_CPU_ID,
            SIGNATURE = const rseq::SIGNATURE_X86,
            SLACK = const dormouse_abi::page::SLACK_BYTES,
            PAGE_SIZE = const offset_of!(Session, page_size_bytes),
            LIMIT = const offset_of!(Session, last_page_offset),
            $($operands)*
        )
    };
}

/// One run, copied by whole words (or none), stamped inside the section.
///
/// # Safety
/// As the public functions.
#[inline(always)]
unsafe fn rseq_reserve_rdtsc_write_words_commit(site: Site, record: Words) -> u64 {
    let status: u64;
    // SAFETY: the section writes only the thread's rseq area and, having found the processor and the session unchanged, bytes
    // above the committed offset of the page that the state word names, within that page; its final store commits them.
    // Sources are readable by the caller's word.
    unsafe {
        section!(
            state = [],
            clock = ["rdtsc", "cmp edx, dword ptr [{control} + {EXPIRY}]", "jae 52f", "shl rdx, 32", "or rdx, rax"],
            header = ["shl rdx, 16", "or rdx, {id}", "mov qword ptr [{word}], rdx", "mov qword ptr [{word} + 8], {context}"],
            copy = [
                // Words of the fields: (size - header + 7) / 8.
                "lea {cpu:r}, [{size:r} - 9]",
                "shr {cpu:r}, 3",
                "jz 31f",
                "30:",
                "mov rax, qword ptr [{source} + {cpu:r} * 8 - 8]",
                "mov qword ptr [{word} + {cpu:r} * 8 + 8], rax",
                "dec {cpu:r}",
                "jnz 30b",
                "31:"
            ],
            rseq = inout(reg) site.rseq_offset => _,
            cpu = inout(reg) site.cpu as u64 => _,
            word = inout(reg) site.session_word => _,
            session = in(reg) site.session,
            control = in(reg) site.control,
            size = in(reg) record.size_bytes,
            id = in(reg) record.id,
            context = in(reg) record.context,
            source = in(reg) record.source,
            EXPIRY = const EXPIRY_OFFSET,
            out("rax") status,
            out("rdx") _,
            options(nostack)
        );
    }
    status
}

macro_rules! list_section {
    (
        $name:ident, $form:expr, ($($argument:ident: $type:ty),*),
        state = [$($state:literal),*], clock = [$($clock:literal),*], header = [$($header:literal),*], $rdx:expr
        $(, $operand:ident = $constant:expr)*
    ) => {
        /// A list of runs.
        ///
        /// # Safety
        /// As the public functions.
        unsafe fn $name(site: Site, record: &Record<'_> $(, $argument: $type)*) -> u64 {
            let status: u64;
            // SAFETY: site and record are valid by the caller's word, and the section stores inside the page alone: the
            // lengths of header and runs add up to the size, for which it has checked the room.
            unsafe {
                section!(
                    state = [$($state),*],
                    clock = [$($clock),*],
                    header = [$($header),*],
                    copy = [
                        "30:",
                        "test {count}, {count}",
                        "jz 31f",
                        // `id` is the source, `context` the words and then the destination of the single bytes.
                        "mov {id}, qword ptr [{segment}]",
                        "mov {context}, qword ptr [{segment} + 8]",
                        "xor edx, edx",
                        "32:",
                        "cmp rdx, {context}",
                        "jae 33f",
                        "mov rax, qword ptr [{id} + rdx * 8]",
                        "mov qword ptr [{word} + rdx * 8], rax",
                        "inc rdx",
                        "jmp 32b",
                        "33:",
                        "lea {id}, [{id} + rdx * 8]",
                        "lea {context}, [{word} + rdx * 8]",
                        "mov edx, dword ptr [{segment} + 16]",
                        "34:",
                        "test edx, edx",
                        "jz 35f",
                        "dec edx",
                        "mov al, byte ptr [{id} + rdx]",
                        "mov byte ptr [{context} + rdx], al",
                        "jmp 34b",
                        "35:",
                        "mov eax, dword ptr [{segment} + 20]",
                        "add {word}, rax",
                        "add {segment}, 24",
                        "dec {count}",
                        "jmp 30b",
                        "31:"
                    ],
                    rseq = inout(reg) site.rseq_offset => _,
                    cpu = inout(reg) site.cpu as u64 => _,
                    word = inout(reg) site.session_word => _,
                    session = in(reg) site.session,
                    control = in(reg) site.control,
                    size = in(reg) record.size_bytes($form),
                    id = inout(reg) record.id as u64 => _,
                    context = inout(reg) record.context => _,
                    segment = inout(reg) record.segments.as_ptr() => _,
                    count = inout(reg) record.segments.len() => _,
                    $($operand = const $constant,)*
                    out("rax") status,
                    inout("rdx") $rdx => _,
                    options(nostack)
                );
            }
            status
        }
    };
}

list_section!(
    rseq_reserve_rdtsc_write_segments_commit,
    Form::Context,
    (),
    state = [],
    clock = ["rdtsc", "cmp edx, dword ptr [{control} + {EXPIRY}]", "jae 52f", "shl rdx, 32", "or rdx, rax"],
    header = [
        "shl rdx, 16",
        "or rdx, {id}",
        "mov qword ptr [{word}], rdx",
        "mov qword ptr [{word} + 8], {context}",
        "add {word}, 16"
    ],
    0u64,
    EXPIRY = EXPIRY_OFFSET
);

list_section!(
    rseq_reserve_rdtsc_cmpeq_epoch_write_compact_segments_commit,
    Form::Compact,
    (),
    state = [],
    clock = ["rdtsc", "inc edx", "cmp edx, dword ptr [{control} + {EPOCH}]", "jne 52f"],
    header = ["mov byte ptr [{word}], {id:l}", "mov dword ptr [{word} + 1], eax", "add {word}, 5"],
    0u64,
    EPOCH = EPOCH_OFFSET
);

/// A state word and the time that was read after it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Stamp {
    state: u64,
    timestamp: u64,
}

list_section!(
    rseq_cmpeq_state_write_segments_commit,
    Form::Context,
    (stamp: &Stamp),
    state = ["cmp {rseq}, qword ptr [rdx]", "jne 51f"],
    clock = ["mov rdx, qword ptr [rdx + 8]"],
    header = [
        "shl rdx, 16",
        "or rdx, {id}",
        "mov qword ptr [{word}], rdx",
        "mov qword ptr [{word} + 8], {context}",
        "add {word}, 16"
    ],
    core::ptr::from_ref(stamp)
);

list_section!(
    rseq_cmpeq_state_write_compact_segments_commit,
    Form::Compact,
    (stamp: &Stamp),
    state = ["cmp {rseq}, qword ptr [rdx]", "jne 51f"],
    clock = ["mov edx, dword ptr [rdx + 8]"],
    header = ["mov byte ptr [{word}], {id:l}", "mov dword ptr [{word} + 1], edx", "add {word}, 5"],
    core::ptr::from_ref(stamp)
);

list_section!(
    rseq_cmpeq_state_write_extended_segments_commit,
    Form::Extended,
    (stamp: &Stamp),
    state = ["cmp {rseq}, qword ptr [rdx]", "jne 51f"],
    clock = ["mov rdx, qword ptr [rdx + 8]"],
    header = [
        "mov byte ptr [{word}], {EXTENDED}",
        "mov word ptr [{word} + 1], {id:x}",
        "mov qword ptr [{word} + 3], rdx",
        "add {word}, 11"
    ],
    core::ptr::from_ref(stamp),
    EXTENDED = record::EXTENDED
);

fn status(number: u64) -> Written {
    match number {
        0 => Written::Done,
        1 => Written::Aborted,
        2 => Written::Full,
        _ => Written::Gone,
    }
}

/// Writes a record to the stream of the processor, stamped by the timestamp counter inside the section.
///
/// Wait-free for each call; the caller repeats on [`Written::Aborted`]. Async-signal-safe.
///
/// # Safety
/// While `*site.session_word` is `site.session`, that describes mapped memory of a session, and `site.control` is the control
/// block of its stream `site.cpu` (whoever changes the word waits for running sections by membarrier before it
/// unmaps);
/// the thread's rseq area is registered at `site.rseq_offset`; every segment's source may be read.
pub unsafe fn rseq_write(site: Site, record: &Record<'_>) -> Written {
    // SAFETY: the caller's word.
    status(unsafe { rseq_reserve_rdtsc_write_segments_commit(site, record) })
}

/// A record whose fields are one run that may be copied by whole words.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// Event class id, below 2^16.
    pub id: u64,
    /// [`dormouse_abi::record::context_word`].
    pub context: u64,
    /// Bytes of header and fields.
    pub size_bytes: usize,
    /// The fields; up to seven bytes more are read and copied.
    pub source: *const u8,
}

/// As [`rseq_write`], for the commonest and fastest case.
///
/// # Safety
/// As [`rseq_write`]; the fields at `record.source` may be read up to the next multiple of 8 bytes of their length.
#[inline(always)]
pub unsafe fn rseq_write_words(site: Site, record: Words) -> Written {
    // SAFETY: the caller's word.
    status(unsafe { rseq_reserve_rdtsc_write_words_commit(site, record) })
}

/// As [`rseq_write`], a compact record in a session of such. `record.id` is at most [`COMPACT_ID_MAX`]. [`Written::Full`] also where
/// it has to be extended.
///
/// # Safety
/// As [`rseq_write`].
pub unsafe fn rseq_write_compact(site: Site, record: &Record<'_>) -> Written {
    // SAFETY: the caller's word.
    status(unsafe { rseq_reserve_rdtsc_cmpeq_epoch_write_compact_segments_commit(site, record) })
}

/// Writes a record with a timestamp that was read after the state word `state`.
///
/// As [`rseq_write`]; [`Written::Aborted`] also when the state word has changed. The caller has found that the page takes a record
/// of that form and time; after an extended one it tells [`crate::begin_epoch`].
///
/// # Safety
/// As [`rseq_write`].
pub unsafe fn rseq_write_at(site: Site, record: &Record<'_>, form: Form, state: u64, timestamp: u64) -> Written {
    let stamp = &Stamp { state, timestamp };
    status(match form {
        // SAFETY: the caller's word.
        Form::Context => unsafe { rseq_cmpeq_state_write_segments_commit(site, record, stamp) },
        // SAFETY: site, record and stamp are valid by the caller's word; the header's form is `form`'s.
        Form::Compact => unsafe { rseq_cmpeq_state_write_compact_segments_commit(site, record, stamp) },
        // SAFETY: site, record and stamp are valid by the caller's word; the header's form is `form`'s.
        Form::Extended => unsafe { rseq_cmpeq_state_write_extended_segments_commit(site, record, stamp) },
    })
}

/// The timestamp counter, in ticks, as of after all loads before it: it would be read ahead of them else, and who has just claimed a stream
/// might be earlier than who had it before (Intel SDM, volume 2, RDTSC and LFENCE).
#[inline(always)]
pub fn timestamp() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, which changes nothing.
    unsafe { core::arch::x86_64::_mm_lfence() };
    // SAFETY: every x86-64 processor has the instruction, and Linux lets user mode use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
