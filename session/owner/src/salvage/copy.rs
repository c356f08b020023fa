//! The copy of a session's memory that has no owner, taken while programs may go on writing to it.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use dormouse_abi::page::{self, HEADER_SIZE_BYTES};
use dormouse_abi::record::PACKET_SPAN_BITS;
use dormouse_abi::session::{STREAM_STRIDE_BYTES, SessionHeader, State, StreamControl, UNIT_BYTES};
use dormouse_ctf::PacketHeader;
use dormouse_relay::Memory;
use memmap2::{MmapOptions, MmapRaw};

use super::directory::Directory;
use super::memory::OwnerlessMemory;
use super::packets::Packets;
use crate::clock::ticks;
use crate::pages::{Current, Page, Pages};
use dormouse_control::boot;

/// Whether a page that begins so can have been begun since the moment, and is not merely damaged.
pub(super) fn is_begun_since(begin: u64, moment: u64) -> bool {
    begin > moment && begin >> PACKET_SPAN_BITS <= (moment >> PACKET_SPAN_BITS) + 1
}

/// Whether a stream that has nothing before page number `seq` may lack what it held at the moment. `begin` is that page's, `None` that of one
/// that was begun since for sure.
fn is_late(seq: u64, begin: Option<u64>, moment: Option<u64>) -> bool {
    seq > 0 && moment.is_some_and(|moment| begin.is_none_or(|begin| is_begun_since(begin, moment)))
}

/// How often the streams are looked at while writers open new pages in one of them.
const LOOKS_MAX: u32 = 100;

/// What matters of a session's memory, copied into private memory.
pub(super) struct Copied {
    pub(super) pages: Pages,
    /// Keeps `pages` mapped.
    _mapping: MmapRaw,
    /// The closed pages that were copied, and the current ones, by stream.
    found: Vec<Vec<Page>>,
    /// By stream: the number of the first page that had to be there. Overwrite mode only.
    pub(super) oldest: Vec<Option<u64>>,
    /// When the streams were looked at, by the session's clock, if that still goes on.
    pub(super) moment: Option<u64>,
    /// Whether a process has the memory.
    is_live: bool,
    pub(super) pages_missed: u64,
    pub(super) pages_refused: u64,
    /// Streams of which nothing could be copied in time, or nothing from before the moment.
    pub(super) streams_outrun: u64,
}

impl Copied {
    /// Copies control blocks, chains, and the pages that are not on disk.
    pub(super) fn of(source: &OwnerlessMemory, directory: &Directory) -> Result<Copied, String> {
        let mut copying = Copying::begin(source, directory.uuid())?;
        let memory = copying.memory;
        let geometry = *memory.geometry();
        let pages = Pages { memory };
        // A clock that has begun anew tells nothing of the session's.
        let is_same_boot = directory.session_file.as_ref().is_some_and(|file| file.boot == boot());
        let has_clock = is_same_boot || source.is_live();
        let mut current = copying.look(has_clock)?;
        for _ in 1..LOOKS_MAX {
            if !current.is_late {
                break;
            }
            current = copying.look(has_clock)?;
        }
        let CurrentPages { moment, pages: current, mut streams_outrun, pages_refused, .. } = current;
        let mut found: Vec<Vec<Page>> = vec![Vec::new(); geometry.stream_count as usize];
        let mut oldest = vec![None; found.len()];
        // The current pages, also those that are not kept.
        let mut newest: Vec<(u32, u64)> = Vec::new();
        // Closed pages with the number of newer ones in their streams.
        let mut closed: Vec<(u64, Page)> = Vec::new();
        for (current, is_kept) in current {
            let Page { stream, seq, .. } = current;
            let begin = if memory.is_overwrite() {
                // The page was given up long before.
                pages.oldest(stream)
            } else {
                // One that is on disk may have grown since.
                let packets = Packets { rest: directory.stream(&pages.name_of(stream)) };
                packets.last().map_or(0, |(header, _)| header.packet_seq_num.saturating_sub(1))
            };
            // A stream has no more pages than there are: a greater number is damage.
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
        // Those first that would be overwritten first.
        closed.sort_by_key(|(newer, page)| (std::cmp::Reverse(*newer), page.stream));
        let mut pages_missed = 0;
        for (_, page) in closed {
            let Some(range) = copying.page_range(page.unit) else { continue };
            let found = &mut found[page.stream as usize];
            let mut bytes = vec![0; HEADER_SIZE_BYTES];
            source.read(range.start as u64, &mut bytes)?;
            let is_there = word(&bytes, page::OFFSET_SEQ) == page.seq && pages.was_drawn_for(page.stream, &bytes);
            if !is_there && !memory.is_overwrite() {
                // It is on disk, and its page is another's; or the gap will tell.
                continue;
            }
            if is_there {
                bytes.resize(range.len(), 0);
                source.read(range.start as u64, &mut bytes)?;
            }
            if copying.is_overwritten(&page, &bytes)? {
                // What came before it in its stream would stand before a gap.
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
        // Last: a class is entered before its events are.
        if let Some(begin) = geometry.register_offset() {
            copying.fill(begin..geometry.size_bytes())?;
        }
        let Copying { mapping, .. } = copying;
        let is_live = source.is_live();
        Ok(Copied {
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

    /// Streams that a thread had claimed, each for one write, when it ended. One that lives ends its write after the moment.
    pub(super) fn claimed_count(&self) -> u64 {
        if self.is_live {
            return 0;
        }
        let memory = self.pages.memory;
        // Relaxed: a private copy.
        let is_claimed = |stream: &u32| memory.stream(*stream).claim.load(Ordering::Relaxed) != 0;
        memory.used_streams().filter(is_claimed).count() as u64
    }

    /// The packets of a stream, in the order in which they were found, with their headers, and whether each was still written to.
    pub(super) fn packets(&self, stream: u32) -> impl Iterator<Item = (PacketHeader, &[u8], bool)> {
        let pages = self.found.get(stream as usize).map_or(&[][..], Vec::as_slice);
        pages.iter().filter_map(|page| self.packet(page))
    }

    fn packet(&self, page: &Page) -> Option<(PacketHeader, &[u8], bool)> {
        let memory = self.pages.memory;
        let start = memory.page(page.unit)?;
        // SAFETY: a page of the private copy, which does not change any more, and lives as long as `self`.
        let bytes = unsafe { std::slice::from_raw_parts(start, memory.geometry().page_size_bytes as usize) };
        let begin = memory.page_field(page.unit, page::OFFSET_TIMESTAMP_BEGIN);
        // No record of a current page is later: writers open a new page before. Those since the moment are told from damage by their
        // times, so the moment is no end here.
        let header = self.pages.check(page, bytes, begin.saturating_add(1 << PACKET_SPAN_BITS))?;
        let is_current = page.current.is_some();
        Some((header, if is_current { &bytes[..page.len] } else { bytes }, is_current))
    }
}

/// All streams' current pages, as of one moment.
struct CurrentPages {
    moment: Option<u64>,
    /// And whether they are kept: not if another stream had the page when that one was looked at. This one has begun it since.
    pages: Vec<(Page, bool)>,
    streams_outrun: u64,
    pages_refused: u64,
    /// Whether a stream's current page was overwritten, or begun since the moment: all that it held then may be gone.
    is_late: bool,
}

/// A copy that is being filled, at the places that everything has in the session's memory.
struct Copying<'a> {
    source: &'a OwnerlessMemory,
    mapping: MmapRaw,
    memory: Memory,
    /// The pages that are there, each as it was when a stream had it: what comes into it later is another stream's, and would be
    /// taken for records of the first.
    kept: HashSet<u32>,
    /// Streams that are used, as far as is known.
    used: Vec<u32>,
}

impl<'a> Copying<'a> {
    /// Copies the header and what follows it up to the control blocks.
    fn begin(source: &'a OwnerlessMemory, uuid: [u8; 16]) -> Result<Copying<'a>, String> {
        let wrong = |reason: &str| format!("{source}: {reason}");
        // As long as the memory, and nothing of it is there before it is filled.
        let len = usize::try_from(source.size_bytes).unwrap_or(usize::MAX);
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon();
        let mapping = map.map(MmapRaw::from).map_err(|error| wrong(&format!("no room for a copy: {error}")))?;
        let header_size_bytes = dormouse_abi::session::HEADER_SIZE_BYTES;
        fill(source, &mapping, 0..header_size_bytes.min(len))?;
        // SAFETY: mapped readable and writable with this length, aligned to an `os_page`, and kept with every copy of the view.
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

    /// Where a page lies, if there is one.
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

    /// Copies control blocks; neighbours are read together.
    fn controls(&self, streams: &[u32]) -> Result<(), String> {
        let runs = streams.chunk_by(|one, next| one + 1 == *next);
        let mut ranges = runs.filter_map(|run| Some(self.control(*run.first()?).start..self.control(*run.last()?).end));
        ranges.try_for_each(|range| self.fill(range))
    }

    /// Looks at all streams, with as few questions as can be between the clock and each of them, and forgets what it has found before.
    fn look(&mut self, has_clock: bool) -> Result<CurrentPages, String> {
        let memory = self.memory;
        self.kept.clear();
        let moment = has_clock.then(|| ticks(memory.clock()));
        self.controls(&self.used)?;
        // The streams that are used by now: who writes to another one later, does so after the moment.
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

    /// Copies a stream's current page, as far as it is committed.
    fn add_current(&mut self, stream: u32, found: &mut CurrentPages) -> Result<(), String> {
        let (memory, control) = (self.memory, self.memory.stream(stream));
        // (C) pairs with the writers' final stores, which came before the copy.
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
        let page = Page { stream, seq, unit: state.unit, len, current: Some(Current { state, discarded }) };
        let is_its_own = seq as u16 == state.seq && Pages { memory }.was_drawn_for(stream, &bytes);
        if is_its_own && !self.is_overwritten(&page, &bytes)? {
            let is_kept = self.keep(state.unit, &bytes);
            let begin = is_kept.then(|| memory.page_field(page.unit, page::OFFSET_TIMESTAMP_BEGIN));
            found.is_late |= memory.is_overwrite() && is_late(page.seq, begin, found.moment);
            found.pages.push((page, is_kept));
            return Ok(());
        }
        // The stream has gone on, and its page is another stream's by now; or the words that say where the page is are damaged.
        self.fill(self.control(stream))?;
        if control.state.load(Ordering::Relaxed) == state.to_word() {
            found.pages_refused += 1;
        } else {
            found.streams_outrun += 1;
            found.is_late = true;
        }
        Ok(())
    }

    /// Puts a page, or what is committed of it, where it belongs. False if there is one that was kept before.
    fn keep(&mut self, unit: u32, bytes: &[u8]) -> bool {
        let Some(range) = self.page_range(unit).filter(|range| bytes.len() <= range.len()) else { return false };
        let is_first = self.kept.insert(unit);
        if is_first {
            let target = self.mapping.as_mut_ptr().wrapping_add(range.start);
            // SAFETY: `page_range` lies inside the mapping and `bytes` is no longer; references into it are to atomics, or do not
            // live that long.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        }
        is_first
    }

    /// Whether a page may have been drawn for other events before all of it was copied, as `bytes`: asked after the copy.
    fn is_overwritten(&self, page: &Page, bytes: &[u8]) -> Result<bool, String> {
        let mut now = [0; 8];
        if self.memory.is_overwrite() {
            let control = self.control(page.stream).start;
            let offset = control + std::mem::offset_of!(StreamControl, reclaimed);
            self.source.read(offset as u64, &mut now)?;
            return Ok(u64::from_le_bytes(now) > page.seq);
        }
        // Whoever draws a page begins with its header, without a time.
        self.source.read((page.unit as usize * UNIT_BYTES + page::OFFSET_TIMESTAMP_BEGIN) as u64, &mut now)?;
        Ok(u64::from_le_bytes(now) != word(bytes, page::OFFSET_TIMESTAMP_BEGIN))
    }
}

/// A 64-bit field of a page's header.
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
        // SAFETY: inside the mapping by the check above; references into it are to atomics, or do not live that long.
        unsafe { std::ptr::copy_nonoverlapping(step.as_ptr(), target, step.len()) };
    }
    Ok(())
}
