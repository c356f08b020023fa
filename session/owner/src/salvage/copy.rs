//! The copy of a session's memory without an owner, made while programs may continue to write to it.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use dormouse_abi::page::{self, HEADER_SIZE_BYTES};
use dormouse_abi::record::PACKET_SPAN_BITS;
use dormouse_abi::register::Register;
use dormouse_abi::session::{STREAM_STRIDE_BYTES, SessionHeader, State, StreamControl, UNIT_BYTES, Unrecorded};
use dormouse_format::PacketHeader;
use dormouse_relay::Memory;
use memmap2::{MmapOptions, MmapRaw};

use super::directory::Directory;
use super::memory::OwnerlessMemory;
use super::packets::Packets;
use crate::clock::ticks;
use crate::pages::{CurrentPage, Page, Pages};
use dormouse_control::boot;

/// Whether a page with this begin was plausibly begun after the moment. A begin that is later still is damage.
pub(super) fn is_begun_since(begin: u64, moment: u64) -> bool {
    begin > moment && begin >> PACKET_SPAN_BITS <= (moment >> PACKET_SPAN_BITS) + 1
}

/// Whether a stream that has nothing before page number `seq` may lack events that it held at the moment. `begin` is
/// that page's begin; `None` if it was certainly begun after the moment.
fn is_late(seq: u64, begin: Option<u64>, moment: Option<u64>) -> bool {
    seq > 0 && moment.is_some_and(|moment| begin.is_none_or(|begin| is_begun_since(begin, moment)))
}

/// Maximum number of readings of the streams while writers open new pages in one of them.
const READINGS_MAX: u32 = 100;

/// The relevant parts of a session's memory, copied into private memory.
pub(super) struct CopiedMemory {
    pub(super) pages: Pages,
    /// Keeps `pages` mapped.
    _mapping: MmapRaw,
    /// The copied closed pages and the current pages, by stream.
    found: Vec<Vec<Page>>,
    /// Number of the first page that should be present, by stream. Overwrite mode only.
    pub(super) oldest: Vec<Option<u64>>,
    /// Time at which the streams were read, by the session's clock, if that clock is still running.
    pub(super) moment: Option<u64>,
    /// Whether the memory comes from a live process.
    is_live: bool,
    pub(super) pages_missed: u64,
    pub(super) pages_refused: u64,
    /// Number of streams of which nothing could be copied in time, or nothing from before the moment.
    pub(super) streams_outrun: u64,
}

impl CopiedMemory {
    /// Copies control blocks, chains, and the pages that are not on disk.
    pub(super) fn of(source: &OwnerlessMemory, directory: &Directory) -> Result<CopiedMemory, String> {
        let mut copying = Copying::begin(source, directory.uuid())?;
        let memory = copying.memory;
        let geometry = *memory.geometry();
        let pages = Pages { memory };
        // After a reboot the clock starts anew and is not the session's any more.
        let is_same_boot = directory.session_file.as_ref().is_some_and(|file| file.boot == boot());
        let has_clock = is_same_boot || source.is_live();
        let mut current = copying.read_streams(has_clock)?;
        for _ in 1..READINGS_MAX {
            if !current.is_late {
                break;
            }
            current = copying.read_streams(has_clock)?;
        }
        let CurrentPages { moment, pages: current, mut streams_outrun, pages_refused, .. } = current;
        let mut found: Vec<Vec<Page>> = vec![Vec::new(); geometry.stream_count as usize];
        let mut oldest = vec![None; found.len()];
        // Streams and numbers of the current pages, including those that are not kept.
        let mut newest: Vec<(u32, u64)> = Vec::new();
        // Closed pages, each with the number of newer ones in its stream.
        let mut closed: Vec<(u64, Page)> = Vec::new();
        for (current, is_kept) in current {
            let Page { stream, seq, .. } = current;
            let begin = if memory.is_overwrite() {
                // Earlier pages have been overwritten.
                pages.oldest(stream)
            } else {
                // The last packet on disk is read again: the page may have grown since.
                let packets = Packets { rest: directory.stream(&pages.name_of(stream)) };
                packets.last().map_or(0, |(header, _)| header.packet_seq_num.saturating_sub(1))
            };
            // A stream has no more pages than the session: a greater number is damage.
            let count = seq.saturating_sub(begin).min(geometry.page_count.into());
            copying.chain(stream)?;
            closed.extend((1..=count).map(|step| (step, pages.closed_page(stream, seq - step))));
            if memory.is_overwrite() {
                oldest[stream as usize] = Some(seq - count);
                newest.push((stream, seq));
            }
            if is_kept {
                found[stream as usize].push(current);
            }
        }
        // Pages that would be overwritten first are copied first.
        closed.sort_by_key(|(newer, page)| (std::cmp::Reverse(*newer), page.stream));
        let mut pages_missed = 0;
        for (_, page) in closed {
            let Some(range) = copying.page_range(page.unit) else { continue };
            let found = &mut found[page.stream as usize];
            let mut bytes = vec![0; HEADER_SIZE_BYTES];
            source.read(range.start as u64, &mut bytes)?;
            let is_there = word(&bytes, page::OFFSET_SEQ) == page.seq && pages.was_drawn_for(page.stream, &bytes);
            if !is_there && !memory.is_overwrite() {
                // The page is on disk and belongs to another stream by now; otherwise the gap shows that it is missing.
                continue;
            }
            if is_there {
                bytes.resize(range.len(), 0);
                source.read(range.start as u64, &mut bytes)?;
            }
            if copying.is_overwritten(&page, &bytes)? {
                // Older pages of its stream would precede a gap, so they are dropped.
                let before = found.len();
                found.retain(|kept| kept.seq > page.seq);
                pages_missed += 1 + (before - found.len()) as u64;
                oldest[page.stream as usize] = Some(page.seq + 1);
            } else if is_there && copying.keep(page.unit, &bytes) {
                found.push(pages.closed_page(page.stream, page.seq));
            }
        }
        for (stream, newest) in newest {
            let first = found[stream as usize].iter().min_by_key(|page| page.seq);
            let begin = first.map(|page| memory.page_field(page.unit, page::OFFSET_TIMESTAMP_BEGIN));
            let seq = first.map_or(newest, |page| page.seq);
            streams_outrun += u64::from(is_late(seq, begin, moment));
        }
        // The register is copied after the pages: a class is entered before its events.
        if let Some(begin) = geometry.register_offset() {
            copying.fill(begin..geometry.size_bytes())?;
        }
        copying.unrecorded()?;
        let Copying { mapping, .. } = copying;
        let is_live = source.is_live();
        Ok(CopiedMemory {
            pages,
            _mapping: mapping,
            found,
            oldest,
            moment,
            is_live,
            pages_missed,
            pages_refused,
            streams_outrun,
        })
    }

    /// Returns the number of streams that a thread had claimed when it ended. A claim is held for one write. A live
    /// thread ends its write after the moment, so none is counted then.
    pub(super) fn claimed_count(&self) -> u64 {
        if self.is_live {
            return 0;
        }
        let memory = self.pages.memory;
        // Relaxed: a private copy.
        let is_claimed = |stream: &u32| memory.stream(*stream).claim.load(Ordering::Relaxed) != 0;
        memory.used_streams().filter(is_claimed).count() as u64
    }

    /// Returns the packets of a stream in the order in which they were found, with their headers, and whether each was
    /// still being written.
    pub(super) fn packets(&self, stream: u32) -> impl Iterator<Item = (PacketHeader, &[u8], bool)> {
        let pages = self.found.get(stream as usize).map_or(&[][..], Vec::as_slice);
        pages.iter().filter_map(|page| self.packet(page))
    }

    fn packet(&self, page: &Page) -> Option<(PacketHeader, &[u8], bool)> {
        let memory = self.pages.memory;
        let start = memory.page(page.unit)?;
        // SAFETY: `Memory::page` returns the start of a page inside the private copy, which is mapped as long as `self`
        // and is no longer written to.
        let bytes = unsafe { std::slice::from_raw_parts(start, memory.geometry().page_size_bytes as usize) };
        let begin = memory.page_field(page.unit, page::OFFSET_TIMESTAMP_BEGIN);
        // No record of a current page is later: writers open a new page before that. Records after the moment are told
        // from damage by their times, so the moment is not the upper bound here.
        let header = self.pages.check(page, bytes, begin.saturating_add(1 << PACKET_SPAN_BITS))?;
        let is_current = page.current.is_some();
        Some((header, if is_current { &bytes[..page.len] } else { bytes }, is_current))
    }
}

/// The current pages of all streams at one moment.
struct CurrentPages {
    moment: Option<u64>,
    /// The pages, and whether each is kept. A page is not kept if another stream had it when that stream was read:
    /// this stream has begun it since.
    pages: Vec<(Page, bool)>,
    streams_outrun: u64,
    pages_refused: u64,
    /// Whether a stream's current page was overwritten, or begun after the moment: everything that it held then may be
    /// gone.
    is_late: bool,
}

/// A copy that is being filled. Everything has the same offset as in the session's memory.
struct Copying<'a> {
    source: &'a OwnerlessMemory,
    mapping: MmapRaw,
    memory: Memory,
    /// The units of the copied pages. Each page stays as it was when its stream had it: what is written to it later
    /// belongs to another stream, and would be taken for records of the first.
    kept: HashSet<u32>,
    /// Streams known to be used.
    used: Vec<u32>,
}

impl<'a> Copying<'a> {
    /// Copies the header and everything up to the control blocks.
    fn begin(source: &'a OwnerlessMemory, uuid: [u8; 16]) -> Result<Copying<'a>, String> {
        let wrong = |reason: &str| format!("{source}: {reason}");
        // Has the length of the session's memory, but takes no memory before it is filled.
        let len = usize::try_from(source.size_bytes).unwrap_or(usize::MAX);
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon();
        let mapping = map.map(MmapRaw::from).map_err(|error| wrong(&format!("no room for a copy: {error}")))?;
        let header_size_bytes = dormouse_abi::session::HEADER_SIZE_BYTES;
        fill(source, &mapping, 0..header_size_bytes.min(len))?;
        // SAFETY: the mapping is readable and writable over this length and aligned to an `os_page`; it is kept as long
        // as any copy of the view.
        let memory = unsafe { Memory::from_raw(mapping.as_mut_ptr(), mapping.len()) }.map_err(wrong)?;
        if memory.uuid() != uuid {
            return Err(wrong("it is not the memory of this session"));
        }
        let geometry = *memory.geometry();
        let copying = Copying { source, mapping, memory, kept: HashSet::new(), used: Vec::new() };
        copying.fill(header_size_bytes..geometry.streams_offset())?;
        Ok(copying)
    }

    fn fill(&self, range: std::ops::Range<usize>) -> Result<(), String> {
        fill(self.source, &self.mapping, range)
    }

    /// Returns the byte range of a page, if it exists.
    fn page_range(&self, unit: u32) -> Option<std::ops::Range<usize>> {
        self.memory.page(unit)?;
        let start = unit as usize * UNIT_BYTES;
        Some(start..start + self.memory.geometry().page_size_bytes as usize)
    }

    fn control(&self, stream: u32) -> std::ops::Range<usize> {
        let start = (&raw const *self.memory.stream(stream)).addr() - self.memory.base().addr();
        start..start + STREAM_STRIDE_BYTES
    }

    /// Copies a stream's chain.
    fn chain(&mut self, stream: u32) -> Result<(), String> {
        let geometry = self.memory.geometry();
        let start = self.memory.ring(stream).addr() - self.memory.base().addr() + geometry.chain_in_ring_region();
        self.fill(start..start + 4 * geometry.ring_size() as usize)
    }

    /// Copies control blocks; adjacent ones are read together.
    fn controls(&self, streams: &[u32]) -> Result<(), String> {
        let runs = streams.chunk_by(|one, next| one + 1 == *next);
        let mut ranges = runs.filter_map(|run| Some(self.control(*run.first()?).start..self.control(*run.last()?).end));
        ranges.try_for_each(|range| self.fill(range))
    }

    /// Copies the tables of events that are not recorded, of used streams and if there can be any: in the memory of a
    /// live process, reading takes memory.
    fn unrecorded(&self) -> Result<(), String> {
        if !self.memory.register().is_some_and(Register::has_had_rules) {
            return Ok(());
        }
        let begin = self.memory.geometry().unrecorded_offset();
        let table = |stream: &u32| begin + *stream as usize * size_of::<Unrecorded>();
        self.used.iter().map(table).try_for_each(|begin| self.fill(begin..begin + size_of::<Unrecorded>()))
    }

    /// Reads all streams, and forgets earlier results. Makes as few reads as possible between the reading of the
    /// clock and of each stream.
    fn read_streams(&mut self, has_clock: bool) -> Result<CurrentPages, String> {
        let memory = self.memory;
        self.kept.clear();
        let moment = has_clock.then(|| ticks(memory.clock()));
        self.controls(&self.used)?;
        // Finds the streams that are used by now: a writer that starts another stream later does so after the moment.
        let used_at = std::mem::offset_of!(SessionHeader, used_streams);
        self.fill(used_at..used_at + size_of_val(&memory.header().used_streams))?;
        let used: Vec<u32> = memory.used_streams().collect();
        let more: Vec<u32> = used.iter().copied().filter(|stream| !self.used.contains(stream)).collect();
        self.controls(&more)?;
        let mut current =
            CurrentPages { moment, pages: Vec::new(), streams_outrun: 0, pages_refused: 0, is_late: false };
        for &stream in &used {
            self.add_current(stream, &mut current)?;
        }
        self.used = used;
        Ok(current)
    }

    /// Copies the committed part of a stream's current page.
    fn add_current(&mut self, stream: u32, found: &mut CurrentPages) -> Result<(), String> {
        let (memory, control) = (self.memory, self.memory.stream(stream));
        // (C) pairs with the writers' final stores, which preceded the copy.
        let state = State::from_word(control.state.load(Ordering::Acquire));
        let discarded = memory.discarded(stream);
        let Some(range) = self.page_range(state.unit) else { return Ok(()) };
        let len = state.offset as usize;
        if !(HEADER_SIZE_BYTES..=range.len()).contains(&len) {
            found.pages_refused += 1;
            return Ok(());
        }
        let mut bytes = vec![0; len];
        self.source.read(range.start as u64, &mut bytes)?;
        let seq = word(&bytes, page::OFFSET_SEQ);
        let page = Page { stream, seq, unit: state.unit, len, current: Some(CurrentPage { state, discarded }) };
        let is_its_own = seq as u16 == state.seq && Pages { memory }.was_drawn_for(stream, &bytes);
        if is_its_own && !self.is_overwritten(&page, &bytes)? {
            let is_kept = self.keep(state.unit, &bytes);
            let begin = is_kept.then(|| memory.page_field(page.unit, page::OFFSET_TIMESTAMP_BEGIN));
            found.is_late |= memory.is_overwrite() && is_late(page.seq, begin, found.moment);
            found.pages.push((page, is_kept));
            return Ok(());
        }
        // Either the stream has gone on and its page belongs to another stream by now, or the words that locate the
        // page are damaged.
        self.fill(self.control(stream))?;
        if control.state.load(Ordering::Relaxed) == state.to_word() {
            found.pages_refused += 1;
        } else {
            found.streams_outrun += 1;
            found.is_late = true;
        }
        Ok(())
    }

    /// Copies a page, or the committed part of it, to its place. Returns false if the page was kept before.
    fn keep(&mut self, unit: u32, bytes: &[u8]) -> bool {
        let Some(range) = self.page_range(unit).filter(|range| bytes.len() <= range.len()) else { return false };
        let is_first = self.kept.insert(unit);
        if is_first {
            let target = self.mapping.as_mut_ptr().wrapping_add(range.start);
            // SAFETY: `page_range` lies inside the mapping, and `bytes` is checked to be no longer. `bytes` is outside
            // of the mapping. References into the mapping are to atomics, or do not live at this point.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        }
        is_first
    }

    /// Whether a page may have been drawn for other events before it was completely copied to `bytes`. Must be asked
    /// after the copy.
    fn is_overwritten(&self, page: &Page, bytes: &[u8]) -> Result<bool, String> {
        let mut now = [0; 8];
        if self.memory.is_overwrite() {
            let control = self.control(page.stream).start;
            let offset = control + std::mem::offset_of!(StreamControl, reclaimed);
            self.source.read(offset as u64, &mut now)?;
            // A word of a control block is in this machine's byte order; headers of pages are little-endian.
            return Ok(u64::from_ne_bytes(now) > page.seq);
        }
        // A writer that draws a page first writes its header, without a time.
        self.source.read((page.unit as usize * UNIT_BYTES + page::OFFSET_TIMESTAMP_BEGIN) as u64, &mut now)?;
        Ok(u64::from_le_bytes(now) != word(bytes, page::OFFSET_TIMESTAMP_BEGIN))
    }
}

/// Returns a 64-bit field of a page's header.
fn word(header: &[u8], offset: usize) -> u64 {
    header.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u64::from_le_bytes(*field))
}

/// Bytes that are copied at a time.
const STEP_BYTES: usize = 1 << 20;

fn fill(source: &OwnerlessMemory, mapping: &MmapRaw, range: std::ops::Range<usize>) -> Result<(), String> {
    if range.start > range.end || range.end > mapping.len() {
        return Err(format!("{source} contradicts itself"));
    }
    let mut step = vec![0; range.len().min(STEP_BYTES)];
    for start in range.clone().step_by(STEP_BYTES) {
        let step = &mut step[..STEP_BYTES.min(range.end - start)];
        source.read(start as u64, step)?;
        let target = mapping.as_mut_ptr().wrapping_add(start);
        // SAFETY: `target` and `step.len()` lie inside the mapping by the check above, and `step` is outside of it.
        // References into the mapping are to atomics, or do not live at this point.
        unsafe { std::ptr::copy_nonoverlapping(step.as_ptr(), target, step.len()) };
    }
    Ok(())
}
