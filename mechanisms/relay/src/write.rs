//! Records, and the write path for a thread that holds its stream exclusively.

use core::mem::offset_of;

use dormouse_abi::page;
use dormouse_abi::record::{self, RecordKind};

use crate::Memory;
use crate::abi::session::{State, StreamControl, UNIT_BYTES};
use crate::atomic::Ordering;

/// A run of bytes to copy into a record.
///
/// The critical section copies `words` × 8 bytes and then `tail` more bytes; the next run starts `advance` bytes
/// further on in the record. So a run whose source is padded may be copied in whole words ([`Segment::padded`]); any
/// other is copied exactly.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    source: *const u8,
    words: u64,
    tail: u32,
    advance: u32,
    /// Size of the elements, whose bytes are reversed when they are copied.
    #[cfg(target_endian = "big")]
    element_size_bytes: usize,
}

// The critical sections use these offsets.
const _: () = assert!(offset_of!(Segment, source) == 0 && offset_of!(Segment, words) == 8);
const _: () = assert!(offset_of!(Segment, tail) == 16 && offset_of!(Segment, advance) == 20);
#[cfg(target_endian = "little")]
const _: () = assert!(size_of::<Segment>() == 24);

impl Segment {
    /// A run of no bytes.
    pub const EMPTY: Segment = Segment::of_parts(core::ptr::null(), 0, 0, 0);

    #[inline(always)]
    const fn of_parts(source: *const u8, words: u64, tail: u32, advance: u32) -> Segment {
        Segment {
            source,
            words,
            tail,
            advance,
            #[cfg(target_endian = "big")]
            element_size_bytes: 1,
        }
    }

    /// Makes a run of `len` bytes at `source`, copied exactly.
    #[inline(always)]
    pub fn exact(source: *const u8, len: usize) -> Segment {
        Segment::of_parts(source, len as u64 / 8, len as u32 % 8, saturated(len))
    }

    /// Makes a run of `len` bytes at `source`, after which up to seven more bytes may be read.
    #[inline(always)]
    pub fn padded(source: *const u8, len: usize) -> Segment {
        Segment::of_parts(source, (len as u64).div_ceil(8), 0, saturated(len))
    }

    /// Makes a run of numbers of `element_size_bytes` each at `source`, `len` bytes in all. Records have them
    /// little-endian.
    #[inline(always)]
    pub fn numbers(source: *const u8, len: usize, element_size_bytes: usize) -> Segment {
        let run = Segment::exact(source, len);
        #[cfg(target_endian = "big")]
        let run = Segment { element_size_bytes, ..run };
        let _ = element_size_bytes;
        run
    }

    /// Returns the number of bytes that the run adds to the record.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.advance as usize
    }

    /// Returns the size of the units whose bytes are reversed when they are copied: 1, except for numbers on big-endian
    /// machines.
    pub const fn reversed_size_bytes(&self) -> usize {
        #[cfg(target_endian = "big")]
        return self.element_size_bytes;
        #[cfg(target_endian = "little")]
        1
    }

    /// Returns the bytes of the run, as they are in this program's memory.
    ///
    /// # Safety
    /// The source from which the run was made may be read.
    pub unsafe fn bytes(&self) -> &[u8] {
        if self.is_empty() {
            return &[];
        }
        // SAFETY: the caller guarantees that the source may be read; the constructors were given this length.
        unsafe { core::slice::from_raw_parts(self.source, self.len()) }
    }

    /// Whether the run adds no bytes.
    pub fn is_empty(&self) -> bool {
        self.advance == 0
    }
}

/// Returns the length as 32 bits, saturated. No page has room for a run of 4 GiB, so a longer one need not be exact,
/// but must not become shorter.
#[inline(always)]
const fn saturated(len: usize) -> u32 {
    if len > u32::MAX as usize { u32::MAX } else { len as u32 }
}

/// A record to write: its header's contents and the runs of its fields.
#[derive(Debug)]
pub struct Record<'a> {
    /// Event class id.
    pub id: u16,
    /// [`record::context_word`], for records that have a context.
    pub context: u64,
    /// Size of the fields, in bytes.
    pub fields_size_bytes: usize,
    /// Runs of the fields.
    pub segments: &'a [Segment],
}

impl<'a> Record<'a> {
    /// Makes a record of these runs.
    #[inline(always)]
    pub fn new(id: u16, context: u64, segments: &'a [Segment]) -> Record<'a> {
        let mut fields_size_bytes = 0;
        for segment in segments {
            fields_size_bytes += segment.len();
        }
        Record { id, context, fields_size_bytes, segments }
    }

    /// Returns the form in which the record is written with this timestamp to a stream of this epoch; both matter only
    /// for records without context.
    pub fn form(&self, kind: RecordKind, timestamp: u64, epoch: u64) -> Form {
        match kind {
            RecordKind::Ids => Form::Context,
            RecordKind::Compact if record::is_compact(self.id, timestamp, epoch) => Form::Compact,
            RecordKind::Compact => Form::Extended,
        }
    }

    /// Returns the size of header and fields, in bytes.
    #[inline(always)]
    pub fn size_bytes(&self, form: Form) -> usize {
        form.header_size_bytes() + self.fields_size_bytes
    }
}

/// The form of a record's header; [`dormouse_abi::record`] has the pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Id, timestamp and context.
    Context,
    /// Id and the lower half of the timestamp.
    Compact,
    /// Id and the full timestamp.
    Extended,
}

impl Form {
    /// Returns the size of the header, in bytes.
    #[inline(always)]
    pub const fn header_size_bytes(self) -> usize {
        match self {
            Form::Context => record::HEADER_SIZE_BYTES,
            Form::Compact => record::COMPACT_HEADER_SIZE_BYTES,
            Form::Extended => record::EXTENDED_HEADER_SIZE_BYTES,
        }
    }
}

/// How a write ended.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The record is committed.
    Done = 0,
    /// Preempted, migrated or interrupted: nothing happened; try again, beginning with the choice of the CPU.
    Aborted = 1,
    /// The current page has no room, or it spans too much time: switch pages.
    Full = 2,
    /// The session word no longer holds this session.
    Gone = 3,
}

/// Writes a record to a stream that only the caller writes (a claimed stream). `now` reads the session's clock.
///
/// Wait-free. Async-signal-safe as long as a handler does not write to the stream that the interrupted thread has claimed.
///
/// # Safety
/// The caller has claimed `stream`, which is below the geometry's `stream_count`; every segment's source may be read.
pub unsafe fn write_exclusive(
    memory: &Memory,
    stream: u32,
    record: &Record<'_>,
    now: impl FnOnce() -> u64,
) -> WriteOutcome {
    let control = memory.stream(stream);
    // Relaxed: only the claimant writes the word, and claiming has synchronised with the previous claimant.
    let state = State::from_word(control.state.load(Ordering::Relaxed));
    let timestamp = now();
    // (Y) pairs with (Y'); a claimant sees it in any case.
    let form = record.form(memory.record_kind(), timestamp, control.epoch.load(Ordering::Acquire));
    let end = state.offset as usize + record.size_bytes(form);
    // The page is checked again, so that a process that has overwritten the word cannot lead this writer outside the
    // memory.
    if end + page::SLACK_BYTES > memory.geometry().page_size_bytes as usize || memory.page(state.unit).is_none() {
        return WriteOutcome::Full;
    }
    if timestamp >> 32 >= control.expiry.load(Ordering::Relaxed) {
        return WriteOutcome::Full;
    }
    let start = state.unit as usize * UNIT_BYTES + state.offset as usize;
    match form {
        Form::Context => {
            memory.store_bytes(start, &record::head_word(record.id, timestamp).to_le_bytes());
            memory.store_bytes(start + 8, &record.context.to_le_bytes());
        }
        Form::Compact => memory.store_bytes(start, &record::compact_header(record.id as u8, timestamp)),
        Form::Extended => memory.store_bytes(start, &record::extended_header(record.id, timestamp)),
    }
    let mut at = start + form.header_size_bytes();
    for segment in record.segments {
        // SAFETY: the caller guarantees that the segment's source may be read; `len` never exceeds its constructor's
        // length.
        unsafe { memory.copy_in(at, segment.source, segment.len()) };
        #[cfg(target_endian = "big")]
        memory.reverse(at, segment.len(), segment.reversed_size_bytes());
        at += segment.len();
    }
    let committed = State { offset: end as u32, ..state }.to_word();
    // (A) Release pairs with the consumer's Acquire (C) of the state word: the bytes are stored before the offset that
    // covers them.
    control.state.store(committed, Ordering::Release);
    if form == Form::Extended {
        begin_epoch(control, timestamp);
    }
    WriteOutcome::Done
}

/// Records the epoch of an extended record that was just committed to the stream. If a writer does not call this, or
/// calls it late, the next record is extended as well: [`dormouse_abi::record`].
///
/// Wait-free. Async-signal-safe.
pub fn begin_epoch(control: &StreamControl, timestamp: u64) {
    // (Y') Release pairs with (Y): the record is stored before its epoch.
    control.epoch.store(record::epoch(timestamp), Ordering::Release);
}
