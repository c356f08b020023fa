//! Reserve, write and commit as one rseq critical section; one macro, [`define_record!`], defines all sections.
//!
//! This module has their outlines. `section_text!`, in the module of each architecture, has the instructions of each
//! step, and that module's documentation lists the registers.
//!
//! The direct path, for words of fields that are passed in registers and for runs of bytes, finds its stream and its
//! session inside the section, so that nothing must be compared afterwards:
//! ```text
//!   rseq_load_session_reserve_clock_write_commit(id, size, fields):
//!     if context == 0                  → slow, also without rseq
//!       rseq.rseq_cs = &descriptor
//!     start:
//!       session = *session_word
//!       control = session.streams[rseq.cpu_id]           → slow beyond session.cpu_count
//!       if *id > CLASS_ID_MAX            → slow
//!     page, offset = control.state     → slow if the record does not fit, or the page is outside the memory
//!       timestamp = counter              → slow if its upper half is at control.expiry
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
//!   rseq_load_session_reserve_clock_cmpeq_epoch_write_commit(id, size, fields):
//!     the steps above, except:
//!       control                          → slow beyond session.compact_cpu_count
//!       if *id > COMPACT_ID_MAX          → slow
//!       timestamp = counter              → slow unless its epoch is control.epoch
//!       page[offset] = id, lower half, fields…
//! ```
//! A class with a plan has the plan's number in the upper half of its id word, so that the sections above fail. The
//! section of its plan's entry ([`Entry`]) follows. It decides, and either records or counts:
//! ```text
//!   rseq_load_entry_compare_…(id, size, fields):
//!     entry = &entries[number]         → compact sections, without a number
//!     the steps of the first sections, with the entry's id and session, except:
//!       session                        → slow unless the entry has a comparison
//!       if the number is beyond the entry's range:
//!         counter = session.unrecorded[rseq.cpu_id] + entry.counter     → slow if it is 0: the table may be unused yet
//!         *counter += 1                ← the final store, which is the same instruction
//!       page[offset] = head, context, the thread's words for the session's tags, fields…
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
//! The kernel restarts nothing by itself: an abort jumps to the slow path, or returns [`WriteOutcome::Aborted`] and the
//! caller starts over.

use core::mem::offset_of;
use core::sync::atomic::{AtomicIsize, Ordering};

use dormouse_abi::record::{self, RecordKind};
use dormouse_abi::tag::{TAG_COUNT_MAX, TAG_SIZE_BYTES};

use crate::abi::session::StreamControl;
use crate::{Form, Memory, Record, Segment, WriteOutcome};

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
#[derive(Debug)]
pub struct Session {
    /// Start of the memory.
    pub base: *mut u8,
    /// Offset of the last page, in bytes. No page starts after it, and no record leaves its page.
    pub last_page_offset: usize,
    /// Start of the control blocks.
    pub streams: *mut u8,
    /// Offset in a page from which it is full, in bytes: the start of the slack.
    pub page_limit_bytes: usize,
    /// Number of CPUs whose streams may be written with the timestamp counter as the clock, in records with context; 0
    /// if the session has another clock or other records.
    pub cpu_count: u32,
    /// Number of CPUs whose streams may be written with the timestamp counter as the clock, in compact records; 0 if
    /// the session has another clock or other records.
    pub compact_cpu_count: u32,
    /// The same count for records that sections of plans write. It is 0 for records without context; `cpu_count` is also 0
    /// if records have tags.
    pub planned_cpu_count: u32,
    /// Start of the CPUs' tables of events that are not recorded.
    pub unrecorded: *mut u8,
    /// Size of the tags in a record, in bytes.
    pub tags_size_bytes: usize,
    /// Offsets of the tags' words from the thread pointer, in bytes, or 0: the process has no such tag. The last ones are
    /// used, as many as there are tags.
    pub tag_offsets: [AtomicIsize; TAG_COUNT_MAX],
}

// AArch64 loads these pairs at once.
const _: () = assert!(offset_of!(Session, last_page_offset) == offset_of!(Session, base) + 8);
const _: () = assert!(offset_of!(Session, page_limit_bytes) == offset_of!(Session, streams) + 8);

// SAFETY: plain values; they point to shared memory, which sections write as `Memory` documents.
unsafe impl Sync for Session {}

impl Session {
    /// Returns the data of the session in `memory`. `is_fast`: its clock is the timestamp counter, and the process has
    /// rseq. It does not know the process's tags yet.
    pub fn new(memory: &Memory, is_fast: bool) -> Session {
        let geometry = memory.geometry();
        let page_size_bytes = geometry.page_size_bytes as usize;
        let count_for = |kind| if is_fast && memory.record_kind() == kind { geometry.cpu_count } else { 0 };
        let tags_size_bytes = memory.tags().size_bytes();
        Session {
            base: memory.base(),
            last_page_offset: geometry.pages_end() - page_size_bytes,
            streams: memory.streams_base(),
            page_limit_bytes: page_size_bytes - dormouse_abi::page::SLACK_BYTES,
            cpu_count: if tags_size_bytes == 0 { count_for(RecordKind::Ids) } else { 0 },
            compact_cpu_count: count_for(RecordKind::Compact),
            planned_cpu_count: count_for(RecordKind::Ids),
            unrecorded: memory.unrecorded_base(),
            tags_size_bytes,
            tag_offsets: [const { AtomicIsize::new(0) }; TAG_COUNT_MAX],
        }
    }

    /// Returns an empty session: every record takes the slow path.
    pub const fn none() -> Session {
        let null = core::ptr::null_mut();
        Session {
            base: null,
            last_page_offset: 0,
            streams: null,
            page_limit_bytes: 0,
            cpu_count: 0,
            compact_cpu_count: 0,
            planned_cpu_count: 0,
            unrecorded: null,
            tags_size_bytes: 0,
            tag_offsets: [const { AtomicIsize::new(0) }; TAG_COUNT_MAX],
        }
    }

    /// Sets the distance of a tag's word from the thread pointer. Sections read it at any time.
    ///
    /// # Safety
    /// Each thread has a word of 64 bits there.
    pub unsafe fn set_tag_offset(&self, tag: usize, offset: isize) {
        let first = TAG_COUNT_MAX - self.tags_size_bytes / TAG_SIZE_BYTES;
        if let Some(place) = self.tag_offsets.get(first + tag) {
            // Relaxed: the words that offsets lead to live as long as their threads.
            place.store(offset, Ordering::Relaxed);
        }
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
/// `ids` or `compact` is the form of the header ([`dormouse_abi::record`]). `planned` is a section with `ids` for classes
/// with a plan, whose first entry is in the array `entries`, a static pointer that may be null; classes without a plan take
/// the path `unplanned`. The slow path decides for the entry at `which`, and for those that follow it. `random` is a static
/// pointer to the first CPU's random numbers. The fields follow: 0 to 3 words, or
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
/// | 4 | after the header, and the tags, are stored |
/// | 5 | after each run of bytes is stored |
/// | 6 | before the final store |
/// | 7 | before an event is counted that is not recorded |
///
/// With `other: function`, a function of that type, an id is followed by a word of 64 bits that names its owner: if it
/// is not `which`, the other function is called instead.
///
/// Changes no general register but those that the architecture's module lists. Wait-free; async-signal-safe if the slow
/// path is.
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
            before = [
                $crate::section_text!(compare_owner $($other)?), $crate::section_text!(load_context $fields $context)
            ],
            find = $crate::section_text!(find_stream),
            fit = $crate::section_text!(fit $fields),
            header = $crate::section_text!(store_header $fields $context),
            commit = $crate::section_text!(commit),
            done = "",
            slow = "",
            after = [$crate::section_text!(jump_other $($other)?)],
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
    ($(#[$meta:meta])* $vis:vis fn $name:ident(
        planned $fields:tt [$($argument:ident: $type:ty),*], entries: $entries:path, random: $random:path,
        rseq_offset: $rseq_offset:path, context: $context:literal, slow: $slow:path, unplanned: $unplanned:path $(; injected: $injected:path)?
    )) => {
        $crate::define_record!(
            @direct [$(#[$meta])*] [$vis] $name $fields [$($argument: $type),*], injected = [$($injected)?],
            before = [
                // Not every form has all operands.
                "// {WORD} {FIRST_RUN} {RUN_MIN} {SOURCE_TEXT}",
                $crate::section_text!(find_entry), "10:", $crate::section_text!(keep_entry),
                $crate::section_text!(load_context $fields $context)
            ],
            find = concat!(
                $crate::section_text!(compare $fields), $crate::section_text!(point 7 [$($injected)?]),
                $crate::section_text!(count), $crate::section_text!(find_control entry)
            ),
            fit = $crate::section_text!(fit_tagged $fields),
            header = $crate::section_text!(store_tagged_header $fields $context),
            commit = $crate::section_text!(commit_either),
            done = $crate::section_text!(next_entry),
            slow = $crate::section_text!(leave_entry),
            after = ["58: ", $crate::section_text!(jump_unplanned)],
            entries = sym $entries,
            random = sym $random,
            rseq_offset = sym $rseq_offset,
            slow = sym $slow,
            unplanned = sym $unplanned,
            $(injected = sym $injected,)?
            EXPIRY = const ::core::mem::offset_of!($crate::arch::abi::session::StreamControl, expiry),
            ID_MAX = const $crate::arch::abi::class::CLASS_ID_MAX,
            CPU_COUNT = const ::core::mem::offset_of!($crate::arch::Session, planned_cpu_count),
            TAGS_SIZE = const ::core::mem::offset_of!($crate::arch::Session, tags_size_bytes),
            TAG_OFFSETS_END = const $crate::arch::TAG_OFFSETS_END,
            UNRECORDED = const ::core::mem::offset_of!($crate::arch::Session, unrecorded),
            UNRECORDED_SHIFT = const ::core::mem::size_of::<$crate::arch::abi::session::Unrecorded>().trailing_zeros(),
            ENTRY_SHIFT = const $crate::arch::ENTRY_SHIFT,
            SOURCE = const $crate::arch::offset::SOURCE,
            SOURCE_EVERYBODY = const $crate::arch::Source::Everybody as u32,
            SOURCE_TEXT = const $crate::arch::Source::Text as u32,
            SOURCE_RANDOM = const $crate::arch::Source::Random as u32,
            SESSION_WORD = const $crate::arch::offset::SESSION_WORD,
            SCALE = const $crate::arch::offset::SCALE,
            FIRST = const $crate::arch::offset::FIRST,
            SPAN = const $crate::arch::offset::SPAN,
            NEXT = const $crate::arch::offset::NEXT,
            RANDOM_STEP = const $crate::arch::abi::rule::RANDOM_KEYS[0],
            RANDOM_KEY = const $crate::arch::abi::rule::RANDOM_KEYS[1],
            RANDOM_STRIDE_SHIFT = const $crate::arch::RANDOM_STRIDE_SHIFT,
            COUNTER = const $crate::arch::offset::COUNTER,
            WORD = const $crate::arch::offset::WORD,
            FIRST_RUN = const $crate::arch::offset::FIRST_RUN,
            RUN_MIN = const $crate::arch::offset::RUN_MIN,
        );
    };
    // Here the context word only says whether the thread may use this path; it is not recorded.
    ($(#[$meta:meta])* $vis:vis fn $name:ident(
        compact $fields:tt [$($argument:ident: $type:ty),*], session: $session:path, rseq_offset: $rseq_offset:path,
        context: $context:literal, slow: $slow:path $(; injected: $injected:path)?
    )) => {
        $crate::define_record!(
            @direct [$(#[$meta])*] [$vis] $name $fields [$($argument: $type),*], injected = [$($injected)?],
            before = [$crate::section_text!(check_context $context)],
            find = $crate::section_text!(find_stream),
            fit = $crate::section_text!(fit_less $fields),
            header = $crate::section_text!(store_compact_header),
            commit = $crate::section_text!(commit_less),
            done = "",
            slow = "",
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
        before = [$($before:expr),*], find = $find:expr, fit = $fit:expr, header = $header:expr, commit = $commit:expr,
        done = $done:expr, slow = $slow:expr, after = [$($after:expr),*],
        $($operands:tt)*
    ) => {
        $crate::define_record!(
            @section [$($meta)*] [$($vis)*] $name $fields
            [id: *const u32, size_bytes: usize, which: ::core::mem::MaybeUninit<u64> $(, $argument: $type)*] [()],
            injected = $injected,
            enter = [
                $($before,)*
                $crate::section_text!(arm),
                "20:",
                $crate::section_text!(point 1 $injected),
                $find
            ],
            fit = $fit, header = $header, commit = $commit,
            done = $done,
            abort = ["50:", $slow, $crate::section_text!(jump_slow $fields), $($after),*],
            STRIDE_SHIFT = const $crate::arch::abi::session::STREAM_STRIDE_BYTES.trailing_zeros(),
            STREAMS = const ::core::mem::offset_of!($crate::arch::Session, streams),
            $($operands)*
        );
    };
    (
        @section [$($meta:tt)*] [$($vis:tt)*] $name:ident $fields:tt [$($argument:ident: $type:ty),*] [$result:ty],
        injected = $injected:tt, enter = [$($enter:expr),*], fit = $fit:expr, header = $header:expr, commit = $commit:expr,
        done = $done:expr, abort = [$($abort:expr),* $(,)?],
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
                $crate::section_text!(begin $fields),
                $($enter,)*
                $crate::section_text!(point 2 $injected),
                $fit,
                $crate::section_text!(find_place),
                $crate::section_text!(point 3 $injected),
                $header,
                $crate::section_text!(point 4 $injected),
                $crate::section_text!(store $fields $injected),
                $crate::section_text!(point 6 $injected),
                $commit,
                "40:",
                $crate::section_text!(restore $fields),
                $done,
                "ret",
                // The kernel checks the signature before the abort handler.
                $crate::section_text!(signature),
                "60:",
                $($abort,)*
                ".cfi_endproc",
                RSEQ_CS = const $crate::arch::abi::rseq::OFFSET_RSEQ_CS,
                CPU_ID = const $crate::arch::abi::rseq::OFFSET_CPU_ID,
                SIGNATURE = const $crate::arch::SIGNATURE,
                PAGE_LIMIT_BYTES = const ::core::mem::offset_of!($crate::arch::Session, page_limit_bytes),
                LAST_PAGE_OFFSET = const ::core::mem::offset_of!($crate::arch::Session, last_page_offset),
                BASE = const ::core::mem::offset_of!($crate::arch::Session, base),
                $($operands)*
            )
        }
    };
}

/// Number of bytes by which a compact header is shorter than one with context.
#[doc(hidden)]
pub const COMPACT_LESS_BYTES: usize = record::HEADER_SIZE_BYTES - record::COMPACT_HEADER_SIZE_BYTES;
/// Offset of the end of [`Session::tag_offsets`].
#[doc(hidden)]
pub const TAG_OFFSETS_END: usize = offset_of!(Session, tag_offsets) + 8 * TAG_COUNT_MAX;
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
struct StampedRecord {
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
    (@injected $injected:tt $name:ident, header = $header:expr, $($operands:tt)*) => {
        crate::define_record!(
            @section [
                /// Writes a record of segments to the given stream with the given time. `size_bytes` is the size of a
                /// header with context and of the segments.
                ///
                /// # Safety
                /// The conditions of [`rseq_write_at`].
            ] [] $name runs
            [at: *const StampedRecord, size_bytes: usize, _unused: u64, first: *const Segment, end: *const Segment]
            [WriteOutcome],
            injected = $injected,
            enter = [
                crate::section_text!(arm_at),
                "20:",
                crate::section_text!(point 1 $injected),
                crate::section_text!(check_at)
            ],
            fit = crate::section_text!(fit_less runs),
            header = $header,
            commit = crate::section_text!(commit_less),
            done = crate::section_text!(result_at 0),
            abort = [
                "51:", crate::section_text!(result_at 1), "ret",
                "50:", crate::section_text!(result_at 2), "ret",
                "53:", crate::section_text!(result_at 3), "ret"
            ],
            RSEQ_OFFSET = const offset_of!(StampedRecord, site.rseq_offset),
            CPU = const offset_of!(StampedRecord, site.cpu),
            SESSION = const offset_of!(StampedRecord, site.session),
            SESSION_WORD = const offset_of!(StampedRecord, site.session_word),
            CONTROL = const offset_of!(StampedRecord, site.control),
            STATE = const offset_of!(StampedRecord, state),
            TIMESTAMP = const offset_of!(StampedRecord, timestamp),
            ID = const offset_of!(StampedRecord, id),
            $($operands)*
        );
    };
}

define_record_at!(
    rseq_cmpeq_state_write_segments_commit,
    header = crate::section_text!(store_header_at context),
    CONTEXT = const offset_of!(StampedRecord, context),
    LESS = const 0,
);

define_record_at!(
    rseq_cmpeq_state_write_compact_segments_commit,
    header = crate::section_text!(store_header_at compact),
    LESS = const COMPACT_LESS_BYTES,
);

define_record_at!(
    rseq_cmpeq_state_write_extended_segments_commit,
    header = crate::section_text!(store_header_at extended),
    EXTENDED = const record::EXTENDED,
    LESS = const record::HEADER_SIZE_BYTES - record::EXTENDED_HEADER_SIZE_BYTES,
);

/// Writes a record to the stream of the CPU, with a timestamp that was read after the state word `state`.
///
/// Wait-free for each call; the caller repeats on [`WriteOutcome::Aborted`], which is also the result if the state word
/// has changed. Async-signal-safe. The caller has checked that the page takes a record of that form and time; after an
/// extended record it calls [`crate::begin_epoch`].
///
/// # Safety
/// While `*site.session_word` is `site.session`, that session describes mapped memory, and `site.control` is the
/// control block of its stream `site.cpu` (a thread that changes the word waits for running sections by membarrier
/// before it unmaps the memory). The thread's rseq structure is registered at `site.rseq_offset`. Every segment's
/// source may be read.
pub unsafe fn rseq_write_at(site: Site, record: &Record<'_>, form: Form, state: u64, timestamp: u64) -> WriteOutcome {
    let at = &StampedRecord { site, state, timestamp, context: record.context, id: record.id };
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
