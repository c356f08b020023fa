//! The memory of a session: header, state word, owner word, control block.
//!
//! # State word
//! All commits of a writer go through one word per stream:
//!
//! ```text
//!   63      48 47                  24 23                   0
//!   ┌─────────┬──────────────────────┬─────────────────────┐
//!   │ seq u16 │ page, in 4 KiB units │ offset in that page │
//!   └─────────┴──────────────────────┴─────────────────────┘
//! ```
//!
//! `seq` counts the stream's pages, so it is also the number of pages that are full and may be offered. Bytes below
//! `offset` are committed and never change; bytes above it are undefined.
//!
//! # Owner word
//! The owner word tells who has a page. Each transition is one compare-and-swap, so only the first attempt succeeds and
//! a repetition has no effect:
//!
//! ```text
//!   FREE ──draw (any producer)──▶ DRAWN(process, stream) ──close, with the state word──▶ QUEUED(stream, seq) ──▶ FREE
//!    ▲ │                              │ unlinked and its process dead (session owner)         used or overwritten │
//!    └─┼──────────────────────────────┴─────────────────────────────────────────────────────────────────────────┘
//!      └─ the budget shrinks ──▶ WITHHELD ── it grows ──▶ FREE           (session owner; such a page has no memory)
//! ```
//!
//! # Initial contents
//! All memory is zero at first, and zeroes are an empty stream, so a stream takes no memory until it is written. A
//! writer sets the stream's bit in [`SessionHeader::used_streams`] first, and readers read only streams whose bit is
//! set.
//!
//! # Events that are not recorded
//! A stream's control block counts lost events. Events that the session's rules leave out are counted in a table of its
//! own for each stream ([`Unrecorded`]), behind the pages: most sessions never write it, so it takes no memory there. It
//! is read only if the rules have ever left out anything ([`Register::has_had_rules`]), because reading it takes memory
//! as well.

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::record::{PACKET_SPAN_BITS, RecordKind};
use super::register::Register;
use super::tag::TagNames;
use super::vring::{self, RingLayout};

/// "DORMOUSE", little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DORMOUSE");
/// Version of the layout; a producer that does not know it does not join.
pub const VERSION: u32 = 8;
/// Size of the session header, in bytes.
pub const HEADER_SIZE_BYTES: usize = 4096;
/// Distance between the control blocks of two streams, in bytes.
pub const STREAM_STRIDE_BYTES: usize = 4096;
/// Maximum number of streams of a session.
pub const STREAM_COUNT_MAX: u32 = 16_383;
/// Number of words of [`SessionHeader::used_streams`].
pub const USED_WORD_COUNT: usize = (STREAM_COUNT_MAX as usize + 1) / 64;
/// Maximum number of pages of a session.
pub const PAGE_COUNT_MAX: u32 = vring::RING_SIZE_MAX;
/// Unit of [`SessionHeader::huge_begin`] in bytes, and the alignment of many pages: a huge page of x86-64. Other machines
/// may have larger ones or smaller ones.
pub const HUGE_UNIT_BYTES: usize = 2 << 20;
/// Unit of the page part of a state word, in bytes.
pub const UNIT_BYTES: usize = 4096;

/// [`SessionLayout::mode`]: full pages go to the consumer; without a free page new events are dropped and counted.
pub const MODE_DISCARD: u32 = 0;
/// [`SessionLayout::mode`]: full pages stay; without a free page the oldest is overwritten.
pub const MODE_OVERWRITE: u32 = 1;

/// [`SessionLayout::clock`]: the timestamp counter (`rdtsc`; on AArch64 `cntvct_el0`), ticks.
pub const CLOCK_TSC: u32 = 0;
/// [`SessionLayout::clock`]: `CLOCK_MONOTONIC`, nanoseconds.
pub const CLOCK_MONOTONIC: u32 = 1;

/// Constant properties of a session, at the beginning of its memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLayout {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// [`MODE_DISCARD`] or [`MODE_OVERWRITE`].
    pub mode: u32,
    /// Size of the whole memory, in bytes.
    pub size_bytes: u64,
    /// Size of a page in bytes, a power of two.
    pub page_size_bytes: u32,
    /// Number of pages that the memory has room for.
    pub page_count: u32,
    /// Number of streams of CPUs, which are written under rseq: streams 0..`cpu_count`.
    pub cpu_count: u32,
    /// Number of all streams. Those from `cpu_count` on are claimed by writers without rseq.
    pub stream_count: u32,
    /// Number of entries of each stream's ring, a power of two, at least `page_count`.
    pub ring_size: u32,
    /// [`CLOCK_TSC`] or [`CLOCK_MONOTONIC`].
    pub clock: u32,
    /// Offset of the [`Register`], or zero if there is none.
    pub register_offset: u64,
    /// Offset of the first control block.
    pub streams_offset: u64,
    /// Offset of the first ring region.
    pub rings_offset: u64,
    /// Distance between two ring regions, in bytes.
    pub ring_stride_bytes: u64,
    /// Offset of the first page.
    pub pages_offset: u64,
    /// Identity of the trace, in every packet.
    pub uuid: [u8; 16],
    /// Number of kept pages: pages 0..`kept_page_count` of the budget are drawn only for the stream for which
    /// [`StreamControl::kept`] keeps them.
    pub kept_page_count: u32,
    /// The [`RecordKind`] of all event records.
    pub record_kind: u32,
    /// Tags of all event records: after the context, each has a word for each of these.
    pub tags: TagNames,
}

impl SessionLayout {
    /// Reads the first bytes of a session's memory. A program may have overwritten them.
    pub fn from_bytes(bytes: &[u8; size_of::<SessionLayout>()]) -> SessionLayout {
        // SAFETY: both types have the same size; the fields are integers without padding, for which any bytes are
        // valid. `transmute` copies.
        unsafe { core::mem::transmute::<[u8; size_of::<SessionLayout>()], SessionLayout>(*bytes) }
    }
}

/// Number of words of [`SessionLayout`].
const LAYOUT_WORD_COUNT: usize = size_of::<SessionLayout>() / 8;
const _: () = assert!(size_of::<SessionLayout>() == 240 && align_of::<SessionLayout>() == align_of::<u64>());

/// First 4 KiB of a session's memory. All of it is atomics, because a faulty program may write anywhere at any time.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SessionHeader {
    layout: [AtomicU64; LAYOUT_WORD_COUNT],
    /// First [`HUGE_UNIT_BYTES`] of the memory that is in huge pages, to the owner's knowledge;
    /// [`SessionHeader::huge_end`] is the end. A joining process can take these parts into its page table at little
    /// cost. The owner reduces the range when memory is given back.
    pub huge_begin: AtomicU32,
    /// End of the range of [`SessionHeader::huge_begin`]; not greater than that if nothing is in huge pages.
    pub huge_end: AtomicU32,
    /// Number of times that memory of pages was given back. When it has changed, a process forgets which pages are in
    /// its page table.
    pub emptied: AtomicU32,
    /// Not zero if core dumps of the programs that map the memory should contain it. Written before the memory is
    /// shared.
    pub is_dumped: AtomicU32,
    /// Not zero once the owner has ended the session: producers leave at their next page.
    pub stopped: Line<AtomicU32>,
    /// Number of times that a page became free. A producer that found none searches again when it has changed.
    pub freed: Line<AtomicU64>,
    /// Number of pages that may be drawn: the first ones, at most `page_count`. The owner changes it while the session
    /// is live.
    pub page_count_limit: Line<AtomicU32>,
    /// Used streams: bit *i* % 64 of word *i* / 64 is set if stream *i* was written, or has counted an event that was not.
    pub used_streams: [AtomicU64; USED_WORD_COUNT],
}

impl SessionHeader {
    /// Returns the header of a session that no process has joined, with `page_count_limit` pages that may be drawn.
    pub const fn new(layout: SessionLayout, page_count_limit: u32) -> SessionHeader {
        SessionHeader {
            // SAFETY: both types have the same size, by the assertion on it; all bytes are fields of `layout`, and any
            // value is valid for an `AtomicU64`.
            layout: unsafe { core::mem::transmute::<SessionLayout, [AtomicU64; LAYOUT_WORD_COUNT]>(layout) },
            huge_begin: AtomicU32::new(0),
            huge_end: AtomicU32::new(0),
            emptied: AtomicU32::new(0),
            is_dumped: AtomicU32::new(0),
            stopped: Line(AtomicU32::new(0)),
            freed: Line(AtomicU64::new(0)),
            page_count_limit: Line(AtomicU32::new(page_count_limit)),
            used_streams: [const { AtomicU64::new(0) }; USED_WORD_COUNT],
        }
    }

    /// Returns a copy of the layout, which a program may have overwritten. Check it by [`Geometry::from_layout`], and
    /// use only the checked copy from then on.
    pub fn layout(&self) -> SessionLayout {
        let words = self.layout.each_ref().map(|word| word.load(Ordering::Relaxed));
        // SAFETY: both types have the same size, by the assertion on it; the fields are integers without padding, for
        // which any bytes are valid.
        unsafe { core::mem::transmute::<[u64; LAYOUT_WORD_COUNT], SessionLayout>(words) }
    }
}

/// A value in a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line<T>(pub T);

const _: () = assert!(size_of::<SessionHeader>() <= HEADER_SIZE_BYTES);
const _: () = assert!(core::mem::offset_of!(SessionHeader, stopped) == 256);

/// A stream's control block.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct StreamControl {
    /// The state word.
    pub state: AtomicU64,
    /// `timestamp_begin` of the current page.
    pub begin_timestamp: AtomicU64,
    /// The next page. See [`spare`].
    pub spare: AtomicU64,
    /// Zero, or the claimant of the stream ([`claim`]). Only for streams without rseq.
    pub claim: AtomicU64,
    /// [`expiry`] of the current page.
    pub expiry: AtomicU64,
    /// Zero, or the [`epoch`](crate::record::epoch) of a full timestamp that is committed to the stream. Only for
    /// sessions with compact records; [`crate::record`] has the rules.
    pub epoch: AtomicU64,
    /// Number of pages whose descriptors are written (the driver's shadow of `avail.idx`, not wrapping).
    pub published: Line<AtomicU64>,
    /// Number of pages that were taken back: used by the consumer, or overwritten. Later pages are retained.
    pub reclaimed: AtomicU64,
    /// Value of [`SessionHeader::freed`] when the last search for a page failed, plus one.
    pub search_failed_at: AtomicU64,
    /// Pages of the budget that are kept for this stream: index of the first one, times 2^32, plus their number.
    /// Written before the memory is shared.
    pub kept: AtomicU64,
    /// Number of events dropped because no page was free.
    pub records_lost_full: Line<AtomicU64>,
    /// Number of events dropped because they exceed a page.
    pub records_lost_big: AtomicU64,
    /// Number of events dropped for either cause, by [`lost_class_index`]. Counted after the two counters above, so
    /// after a writer is killed in between this one is less by one. A producer that does not count by class leaves
    /// zeroes.
    pub records_lost_by_class: [AtomicU64; LOST_CLASS_COUNT],
}

/// Number of counters of lost events by class in a control block.
pub const LOST_CLASS_COUNT: usize = 256;

/// Returns the index of a class's counter: its own, or the last one, which all later classes share.
pub const fn lost_class_index(class_id: u16) -> usize {
    let last = LOST_CLASS_COUNT - 1;
    if (class_id as usize) < last { class_id as usize } else { last }
}

/// Reason for which an event is not recorded although it is not lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The rules' conditions reject it.
    Rejected = 0,
    /// A rule records a part of such events, and this one is of the other part.
    SampledOut = 1,
}

/// Number of [`Reason`]s.
pub const REASON_COUNT: usize = 2;

/// A stream's table of events that are not recorded. Streams of CPUs are counted under rseq, as lost events are.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Unrecorded {
    /// Number of events, by [`Reason`] and [`lost_class_index`].
    pub by_class: [[AtomicU64; LOST_CLASS_COUNT]; REASON_COUNT],
}

const _: () = assert!(size_of::<Unrecorded>() == 4096);

impl Unrecorded {
    /// Returns the offset of a class's counter, in bytes.
    pub const fn counter_offset(reason: Reason, class_id: u16) -> usize {
        (reason as usize * LOST_CLASS_COUNT + lost_class_index(class_id)) * size_of::<AtomicU64>()
    }
}

const _: () = assert!(core::mem::offset_of!(StreamControl, records_lost_by_class) == 264);
const _: () = assert!(size_of::<StreamControl>() == 2368 && size_of::<StreamControl>() <= STREAM_STRIDE_BYTES);
const _: () = assert!(core::mem::offset_of!(StreamControl, state) == 0);
const _: () = assert!(core::mem::offset_of!(StreamControl, begin_timestamp) == 8);

const _: () = assert!(core::mem::offset_of!(StreamControl, expiry) == 32);
const _: () = assert!(core::mem::offset_of!(StreamControl, epoch) == 40);

/// Returns the upper half of the first timestamp that does not belong in a page with this `timestamp_begin`. It is
/// slightly early, so that one 32-bit comparison shows that a timestamp is less than 2^[`PACKET_SPAN_BITS`] after the
/// page's beginning.
pub const fn expiry(timestamp_begin: u64) -> u64 {
    (timestamp_begin >> 32) + (1 << (PACKET_SPAN_BITS - 32)) - 1
}

/// The parts of a state word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Number of the current page, modulo 2^16.
    pub seq: u16,
    /// Start of the page in the session's memory, in [`UNIT_BYTES`]; zero if there is no page.
    pub unit: u32,
    /// Offset of the next record in the page, in bytes.
    pub offset: u32,
}

/// Number of bits of the offset.
pub const STATE_OFFSET_BITS: u32 = 24;
/// Number of bits of the unit.
pub const STATE_UNIT_BITS: u32 = 24;
/// State word of a stream that never had a page. Any record finds it full, because no timestamp is less than
/// [`StreamControl::expiry`] 0. The first page gets number 0, because [`State::from_word`] gives the missing page the
/// number before that, modulo 2^16.
pub const STATE_EMPTY: u64 = 0;

impl State {
    /// Splits a word into its parts.
    pub const fn from_word(word: u64) -> State {
        if word == STATE_EMPTY {
            return State { seq: u16::MAX, unit: 0, offset: (1 << STATE_OFFSET_BITS) - 1 };
        }
        State {
            seq: (word >> 48) as u16,
            unit: (word >> STATE_OFFSET_BITS) as u32 & ((1 << STATE_UNIT_BITS) - 1),
            offset: word as u32 & ((1 << STATE_OFFSET_BITS) - 1),
        }
    }

    /// Combines the parts into a word.
    pub const fn to_word(self) -> u64 {
        (self.seq as u64) << 48
            | (self.unit as u64 & ((1 << STATE_UNIT_BITS) - 1)) << STATE_OFFSET_BITS
            | self.offset as u64 & ((1 << STATE_OFFSET_BITS) - 1)
    }
}

/// The spare word: a page drawn ahead for one particular page number, so that it becomes invalid when the state word
/// moves on.
pub mod spare {
    /// Returns the word for unit `unit` as the future page number `seq`.
    pub const fn to_word(seq: u16, unit: u32) -> u64 {
        (seq as u64) << 48 | unit as u64
    }

    /// Returns the unit, if this spare is for page number `seq` and is not empty.
    pub const fn unit_for(word: u64, seq: u16) -> Option<u32> {
        let unit = word as u32;
        if unit != 0 && (word >> 48) as u16 == seq { Some(unit) } else { None }
    }
}

/// The claim word of a stream without rseq.
pub mod claim {
    /// Returns the word for thread `tid` of process `process` (numbers of the session, never both zero).
    pub const fn to_word(process: u16, tid: u32) -> u64 {
        1 << 63 | (process as u64) << 32 | tid as u64
    }

    /// Returns the process of the claimant, if there is one.
    pub const fn process(word: u64) -> Option<u16> {
        if word == 0 { None } else { Some((word >> 32) as u16) }
    }
}

/// The meaning of an owner word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Free.
    Free,
    /// Drawn by a process for a stream: the spare page, the current page, or about to become one of these.
    Drawn {
        /// Session's number for the process.
        process: u16,
        /// Index of the stream.
        stream: u16,
    },
    /// Closed (or being closed) as page number `seq` of a stream.
    Queued {
        /// Index of the stream.
        stream: u16,
        /// Full page number, of which 40 bits are stored.
        seq: u64,
    },
    /// Beyond the budget: it is not drawn, and has no memory.
    Withheld,
}

const OWNER_SEQ_BITS: u32 = 40;

impl Owner {
    /// Splits a word into its parts. Returns `None` for unknown kinds.
    pub const fn from_word(word: u64) -> Option<Owner> {
        let stream = (word >> OWNER_SEQ_BITS) as u16 & 0x3FFF;
        match word >> 62 {
            0 if word == 0 => Some(Owner::Free),
            1 => Some(Owner::Drawn { process: word as u16, stream }),
            2 => Some(Owner::Queued { stream, seq: word & ((1 << OWNER_SEQ_BITS) - 1) }),
            3 if word << 2 == 0 => Some(Owner::Withheld),
            _ => None,
        }
    }

    /// Combines the parts into a word.
    pub const fn to_word(self) -> u64 {
        match self {
            Owner::Free => 0,
            Owner::Drawn { process, stream } => 1 << 62 | (stream as u64) << OWNER_SEQ_BITS | process as u64,
            Owner::Queued { stream, seq } => {
                2 << 62 | (stream as u64) << OWNER_SEQ_BITS | seq & ((1 << OWNER_SEQ_BITS) - 1)
            }
            Owner::Withheld => 3 << 62,
        }
    }
}

/// A session's dimensions, which determine every offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a page in bytes, a power of two.
    pub page_size_bytes: u32,
    /// Number of pages that there is room for.
    pub page_count: u32,
    /// Number of streams written under rseq.
    pub cpu_count: u32,
    /// Number of all streams.
    pub stream_count: u32,
    /// Whether a [`Register`] follows the pages.
    pub has_register: bool,
}

impl Geometry {
    /// Returns the number of entries of each ring.
    #[inline]
    pub const fn ring_size(&self) -> u32 {
        let size = self.page_count.next_power_of_two();
        if size < 8 { 8 } else { size }
    }
    /// Returns the layout of the virtqueue within a ring region.
    #[inline]
    pub const fn ring(&self) -> RingLayout {
        RingLayout { size: self.ring_size() }
    }
    /// Returns the offset of the chain (a `u32` unit for each page number modulo the ring's size) within a ring region.
    #[inline]
    pub const fn chain_in_ring_region(&self) -> usize {
        self.ring().size_bytes()
    }
    /// Returns the size of a ring region in bytes: the virtqueue, then the chain.
    #[inline]
    pub const fn ring_stride_bytes(&self) -> usize {
        (self.chain_in_ring_region() + 4 * self.ring_size() as usize).next_multiple_of(4096)
    }
    /// Returns the offset of the owner words.
    #[inline]
    pub const fn owners_offset(&self) -> usize {
        HEADER_SIZE_BYTES
    }
    /// Returns the offset of the first control block.
    #[inline]
    pub const fn streams_offset(&self) -> usize {
        (self.owners_offset() + 8 * self.page_count as usize).next_multiple_of(4096)
    }
    /// Returns the offset of the first ring region.
    #[inline]
    pub const fn rings_offset(&self) -> usize {
        self.streams_offset() + STREAM_STRIDE_BYTES * self.stream_count as usize
    }
    /// Returns the offset of the first page. If there are enough pages to fill several huge pages, it is aligned to a
    /// huge page. Otherwise the pages directly follow the session's own data, so that everything takes as few huge
    /// pages as possible. (A page's size is a power of two, and this is called often, so there is no division.)
    #[inline]
    pub const fn pages_offset(&self) -> usize {
        let page_size_bytes = self.page_size_bytes as usize;
        let fills_huge_pages = page_size_bytes * self.page_count as usize >= 8 * HUGE_UNIT_BYTES;
        let below = if fills_huge_pages { HUGE_UNIT_BYTES } else { page_size_bytes } - 1;
        (self.rings_offset() + self.ring_stride_bytes() * self.stream_count as usize + below) & !below
    }
    /// Returns the offset of the end of the last page.
    #[inline]
    pub const fn pages_end(&self) -> usize {
        self.pages_offset() + self.page_size_bytes as usize * self.page_count as usize
    }
    /// Returns the offset of the first table of events that are not recorded. The tables follow the pages, because most
    /// of them have no memory.
    #[inline]
    pub const fn unrecorded_offset(&self) -> usize {
        // A page's size is a multiple of the table's alignment.
        self.pages_end()
    }
    /// Returns the offset of the end of the last table of events that are not recorded.
    #[inline]
    pub const fn unrecorded_end(&self) -> usize {
        self.unrecorded_offset() + size_of::<Unrecorded>() * self.stream_count as usize
    }
    /// Returns the offset of the register, if there is one. It follows the pages too, for the same reason.
    #[inline]
    pub const fn register_offset(&self) -> Option<usize> {
        if self.has_register { Some(self.unrecorded_end().next_multiple_of(align_of::<Register>())) } else { None }
    }
    /// Returns the size of the whole memory, in bytes.
    #[inline]
    pub const fn size_bytes(&self) -> usize {
        match self.register_offset() {
            Some(offset) => offset + size_of::<Register>(),
            None => self.unrecorded_end(),
        }
    }
    /// Returns the unit of page number `index`.
    #[inline]
    pub const fn unit_of_page(&self, index: u32) -> u32 {
        ((self.pages_offset() + index as usize * self.page_size_bytes as usize) / UNIT_BYTES) as u32
    }
    /// Returns the index of the page that starts at `unit`, if there is one.
    #[inline]
    pub const fn page_of_unit(&self, unit: u32) -> Option<u32> {
        let offset = (unit as usize * UNIT_BYTES).wrapping_sub(self.pages_offset());
        let index = offset >> self.page_size_bytes.trailing_zeros();
        let is_start = offset & (self.page_size_bytes as usize - 1) == 0;
        if is_start && index < self.page_count as usize { Some(index as u32) } else { None }
    }

    /// Whether the numbers are within the format's limits.
    pub const fn is_valid(&self) -> bool {
        let page_size = self.page_size_bytes as usize;
        page_size.is_power_of_two()
            && page_size >= super::page::PAGE_SIZE_MIN
            && page_size <= super::page::PAGE_SIZE_MAX
            && self.page_count >= 1
            && self.page_count <= PAGE_COUNT_MAX
            && self.cpu_count <= self.stream_count
            && self.stream_count >= 1
            && self.stream_count <= STREAM_COUNT_MAX
            && self.pages_end() / UNIT_BYTES < 1 << STATE_UNIT_BITS
    }

    /// Returns the geometry that a session's layout states.
    ///
    /// # Errors
    /// A sentence that says what is wrong, if the layout is of another version, or contradicts itself or the memory's
    /// size.
    pub fn from_layout(layout: &SessionLayout, memory_size_bytes: usize) -> Result<Geometry, &'static str> {
        if layout.magic != MAGIC {
            return Err("this is not the memory of a Dormouse session");
        }
        if layout.version != VERSION {
            return Err("the session has another version of the memory layout");
        }
        let geometry = Geometry {
            page_size_bytes: layout.page_size_bytes,
            page_count: layout.page_count,
            cpu_count: layout.cpu_count,
            stream_count: layout.stream_count,
            has_register: layout.register_offset != 0,
        };
        let agrees = geometry.is_valid()
            && layout.mode <= MODE_OVERWRITE
            && layout.kept_page_count <= geometry.page_count
            && layout.clock <= CLOCK_MONOTONIC
            && RecordKind::from_u32(layout.record_kind).is_some()
            && layout.tags.are_valid()
            && (layout.tags.is_empty() || layout.record_kind == RecordKind::Ids as u32)
            && layout.ring_size == geometry.ring_size()
            && layout.register_offset == geometry.register_offset().unwrap_or(0) as u64
            && layout.streams_offset == geometry.streams_offset() as u64
            && layout.rings_offset == geometry.rings_offset() as u64
            && layout.ring_stride_bytes == geometry.ring_stride_bytes() as u64
            && layout.pages_offset == geometry.pages_offset() as u64
            && layout.size_bytes == geometry.size_bytes() as u64
            && geometry.size_bytes() <= memory_size_bytes;
        if agrees { Ok(geometry) } else { Err("the session's header contradicts itself") }
    }
}
