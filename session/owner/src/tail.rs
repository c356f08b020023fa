//! Tail sampling: pages wait in the memory until it is known which of their events are kept.
//!
//! # Method
//! ```text
//!   each look    read the clock: the look's moment
//!                every stream: records committed since the last look are seen (which keys do they open?)
//!   page k       is taken from its ring once its last event is a window, and a little more, before the look's moment
//!                its packet is written without the events that are not kept, and the page is given back
//! ```
//! A page is not taken from the ring before that, so the ledger does not know of the wait: an owner that takes the
//! session up finds all pages that were not written, whenever the one before was killed. But it does not know which keys
//! were open, so it keeps all events until a window after it began.
//!
//! Records are found by the chain of a stream's pages and not by its ring: a page that is closed and not yet offered has
//! records too. A stream may stay on its current page for any time, so those of its events whose time is over are decided
//! there: nothing older than two windows has to be known.
//!
//! # Bounds
//! At most half of the budget waits; writers have the other half. If there is more, the oldest pages are written at once.
//! Events that are left out then might have been kept later, and the trace says that there were such pages.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use dormouse_abi::register::Register;
use dormouse_abi::session::lost_class_index;
use dormouse_ctf::{Metadata, PageCopy, PagePlace, PageRecord, PageRecords, RecordError, TailSampler};
use dormouse_format::PacketHeader;

use crate::ledger::NotKept;
use crate::pages::{Page, Pages};
use crate::trace::Trace;

/// Time after which a record is committed, in nanoseconds, unless its thread is held up for longer.
const SLACK_NS: u64 = 100_000_000;

/// The part of the budget that may wait is one half.
const WAITING_PART: usize = 2;

/// Spans are forgotten at this part of the longest window (one eighth).
const FORGETTING_PART: u64 = 8;

/// A page whose records have been seen, as far as there were any.
#[derive(Debug, Default)]
pub(crate) struct SeenPage {
    /// Place behind the last record that was seen, and the one behind the last whose fate is decided.
    seen: PagePlace,
    decided: PagePlace,
    /// Whether records are kept, from the first one on as far as that is decided.
    kept: Vec<bool>,
    /// Time of the first record that is not decided, if there is one.
    undecided_since: Option<u64>,
    /// Time of the end of a closed page.
    end: u64,
    /// Whether it is written before its time.
    is_early: bool,
}

/// The pages of a stream that have been looked at.
#[derive(Debug, Default)]
struct SeenStream {
    /// Number of the first page that was not closed at the last look.
    seq: u64,
    current: Option<SeenPage>,
    /// Closed pages that have not been taken.
    waiting: VecDeque<SeenPage>,
}

/// The tails of a session's rules.
pub(crate) struct Tails<'a> {
    pages: Pages,
    trace: &'a Trace,
    sampler: TailSampler,
    metadata: Arc<Metadata>,
    /// Version of the rules and of the names of classes and tags to which the sampler is bound.
    bound: Option<(u64, u64)>,
    is_active: bool,
    frequency_hz: u64,
    streams: Vec<SeenStream>,
    /// Moment of the last look.
    looked_at: u64,
    /// Moment of the last look after which spans were forgotten.
    forgotten_at: u64,
    /// All events before this time are kept.
    kept_until: u64,
    /// Whether an owner before this one has forgotten which keys were open.
    is_resumed: bool,
    /// Whether all events of the session have been seen.
    is_over: bool,
    copy: Vec<u8>,
}

impl<'a> Tails<'a> {
    /// Returns the tails of a session.
    pub(crate) fn new(pages: Pages, trace: &'a Trace) -> Tails<'a> {
        let geometry = pages.memory.geometry();
        Tails {
            pages,
            trace,
            sampler: TailSampler::new(trace.clock.now()),
            metadata: Arc::new(trace.metadata_by_now()),
            bound: None,
            is_active: false,
            frequency_hz: trace.clock.first_calibration().frequency_hz,
            streams: (0..geometry.stream_count).map(|_| SeenStream::default()).collect(),
            looked_at: 0,
            forgotten_at: 0,
            kept_until: 0,
            is_resumed: trace.ledger.restarts() > 0,
            is_over: false,
            copy: vec![0; geometry.page_size_bytes as usize],
        }
    }

    /// Whether a rule has a tail, so that pages wait.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    fn ticks(&self, nanoseconds: u64) -> u64 {
        (u128::from(nanoseconds) * u128::from(self.frequency_hz) / 1_000_000_000) as u64
    }

    /// Whether the fate of an event of this time can be decided: all that happened within a window of it has been seen.
    fn is_settled(&self, time: u64) -> bool {
        let wait = self.sampler.window() + self.ticks(SLACK_NS);
        self.is_over || time.saturating_add(wait) < self.looked_at
    }

    /// Takes up the session's rules if they have changed, and binds them to the classes that there are by now.
    fn follow_rules(&mut self, register: &Register) {
        let since = self.trace.rules_since();
        let bound = (register.rules_version(), self.trace.names_version());
        if self.bound == Some(bound) {
            return;
        }
        if self.bound.is_none_or(|(rules, _)| rules != bound.0) {
            let since = |line: &str| since.get(line).copied().unwrap_or(0);
            self.sampler.set_rules(&register.rules_text(), since, self.frequency_hz);
            if std::mem::take(&mut self.is_resumed) {
                self.kept_until = self.trace.clock.now().saturating_add(self.sampler.window());
            }
        }
        drop(since);
        if self.sampler.has_tails() {
            self.metadata = Arc::new(self.trace.metadata_by_now());
            self.sampler.bind(&self.metadata);
        }
        self.bound = Some(bound);
    }

    /// Sees all records that were committed since the last look. `taken` returns the number of pages of a stream that
    /// have been taken.
    pub(crate) fn look(&mut self, taken: impl Fn(u32) -> u64) {
        let memory = self.pages.memory;
        let Some(register) = memory.register() else { return };
        self.follow_rules(register);
        if !self.sampler.has_tails() {
            // What a tail that was taken away has held is written as it is.
            if std::mem::take(&mut self.is_active) {
                self.streams.iter_mut().for_each(|seen| *seen = SeenStream::default());
            }
            return;
        }
        if !std::mem::replace(&mut self.is_active, true) {
            (0..).zip(&mut self.streams).for_each(|(stream, seen)| {
                *seen = SeenStream { seq: taken(stream), ..SeenStream::default() };
            });
        }
        let moment = self.trace.clock.now();
        for stream in memory.used_streams() {
            self.see_stream(stream, moment);
        }
        self.looked_at = moment;
        memory.used_streams().for_each(|stream| self.decide_current(stream));
        self.decide_early();
        self.forget();
    }

    /// Forgets spans that no event needs any more. All of them are looked at, so not at every look.
    fn forget(&mut self) {
        let interval = (self.sampler.window() / FORGETTING_PART).max(self.ticks(SLACK_NS));
        if self.looked_at < self.forgotten_at.saturating_add(interval) {
            return;
        }
        self.forgotten_at = self.looked_at;
        let undecided = self.streams.iter().flat_map(|seen| seen.waiting.iter().chain(&seen.current));
        let oldest = undecided.filter_map(|page| page.undecided_since).min().unwrap_or(u64::MAX);
        // A key that an earlier event has opened may still be needed for one that is not committed yet.
        self.sampler.forget_before(oldest.min(self.looked_at.saturating_sub(self.ticks(SLACK_NS))));
    }

    /// Sees the records of a stream's pages.
    fn see_stream(&mut self, stream: u32, moment: u64) {
        let mut seen = std::mem::take(&mut self.streams[stream as usize]);
        let pages = self.pages.of_stream(stream, seen.seq);
        for page in pages.into_iter().flatten() {
            let known = seen.current.take();
            let is_done = page.current.is_some() && known.as_ref().is_some_and(|known| known.seen.offset == page.len);
            let known = match is_done {
                true => known,
                false => Some(self.see_page(&page, known, moment)),
            };
            if page.current.is_some() {
                seen.current = known;
            } else {
                seen.waiting.extend(known);
                seen.seq = seen.seq.wrapping_add(1);
            }
        }
        self.streams[stream as usize] = seen;
    }

    /// Sees the records of a page behind those that have been seen.
    fn see_page(&mut self, page: &Page, known: Option<SeenPage>, moment: u64) -> SeenPage {
        let header = self.copy(page, moment);
        let begin = PagePlace::begin(header.map_or(moment, |header| header.timestamp_begin));
        let mut seen = known.unwrap_or_else(|| SeenPage { seen: begin, decided: begin, ..SeenPage::default() });
        seen.end = header.map_or(moment, |header| header.timestamp_end);
        if header.is_none() {
            // It will be refused.
            return seen;
        }
        let memory = self.pages.memory;
        if let Err(RecordError::UnknownClass(_)) = self.see_records(page, &mut seen)
            && let Some(register) = memory.register()
        {
            // Programs enter a class before its first event, so it is there by now.
            self.follow_rules(register);
            let _ = self.see_records(page, &mut seen);
        }
        seen
    }

    /// Sees the records of the copied page, up to the first bytes that are none.
    fn see_records(&mut self, page: &Page, seen: &mut SeenPage) -> Result<(), RecordError> {
        let Tails { sampler, metadata, copy, .. } = self;
        let mut records = PageRecords::new(copy, page.len, &metadata.classes, seen.seen);
        while let Some(record) = records.next() {
            let record = record.map_err(|(_, error)| error)?;
            sampler.see(&record);
            seen.seen = records.place;
            seen.undecided_since.get_or_insert(record.timestamp);
        }
        Ok(())
    }

    /// Copies a page. Returns its header, if it has a valid one.
    fn copy(&mut self, page: &Page, moment: u64) -> Option<PacketHeader> {
        let (target, rest) = self.copy.split_at_mut_checked(page.len)?;
        rest.fill(0);
        self.pages.copy(page.unit, target).then(|| self.pages.check(page, &self.copy, moment)).flatten()
    }

    /// Decides the fate of those records of a stream's current page whose time is over.
    fn decide_current(&mut self, stream: u32) {
        let seq = self.streams[stream as usize].seq;
        let Some(mut seen) = self.streams[stream as usize].current.take() else { return };
        let is_due = seen.undecided_since.is_some_and(|since| self.is_settled(since));
        let page = self.pages.of_stream(stream, seq).into_iter().flatten().next().filter(|_| is_due);
        if let Some(page) = page
            && page.len >= seen.seen.offset
            && self.copy(&page, self.looked_at).is_some()
        {
            let (copy, metadata) = (std::mem::take(&mut self.copy), Arc::clone(&self.metadata));
            let mut records = PageRecords::new(&copy, seen.seen.offset, &metadata.classes, seen.decided);
            seen.undecided_since = None;
            while let Some(Ok(record)) = records.next() {
                if !self.is_settled(record.timestamp) {
                    seen.undecided_since = Some(record.timestamp);
                    break;
                }
                seen.kept.push(self.keeps(&record));
                seen.decided = records.place;
            }
            self.copy = copy;
        }
        self.streams[stream as usize].current = Some(seen);
    }

    fn keeps(&mut self, record: &PageRecord<'_>) -> bool {
        record.timestamp < self.kept_until || self.sampler.keeps(record)
    }

    /// If more than a part of the budget waits, has the oldest pages written.
    fn decide_early(&mut self) {
        let waiting_max = self.pages.memory.page_count_limit() as usize / WAITING_PART;
        let waiting = self.streams.iter().map(|seen| seen.waiting.len()).sum::<usize>();
        let Some(last) = waiting.saturating_sub(waiting_max).checked_sub(1) else { return };
        let mut ends: Vec<u64> = self.streams.iter().flat_map(|seen| &seen.waiting).map(|page| page.end).collect();
        let latest = *ends.select_nth_unstable(last).1;
        for page in self.streams.iter_mut().flat_map(|seen| &mut seen.waiting).filter(|page| page.end <= latest) {
            page.is_early = true;
        }
    }

    /// Whether the next page of a stream may be taken.
    pub(crate) fn is_ready(&self, stream: u32) -> bool {
        let next = self.streams[stream as usize].waiting.front();
        !self.is_active || self.is_over || next.is_some_and(|page| page.is_early || self.is_settled(page.end))
    }

    /// Says that no more events will come: pages do not wait any longer.
    pub(crate) fn finish(&mut self, taken: impl Fn(u32) -> u64) {
        self.look(taken);
        self.is_over = true;
    }

    /// Takes the next page of a stream.
    pub(crate) fn take(&mut self, stream: u32) -> SeenPage {
        let seen = &mut self.streams[stream as usize];
        seen.waiting.pop_front().or_else(|| seen.current.take()).unwrap_or_default()
    }

    /// Returns a packet's header and bytes without the events that are not kept, which are counted. `None`: all are kept,
    /// or it has other bytes than records.
    pub(crate) fn thin(
        &mut self,
        seen: &SeenPage,
        header: &PacketHeader,
        packet: &[u8],
        not_kept: &mut NotKept,
    ) -> Option<Thinned> {
        if !self.is_active {
            return None;
        }
        let metadata = Arc::clone(&self.metadata);
        let classes = &metadata.classes;
        let begin = PagePlace::begin(header.timestamp_begin);
        let records = PageRecords::new(packet, header.content_size_bytes as usize, classes, begin);
        let mut copy = PageCopy::new(packet, classes.record_kind(), header.timestamp_begin);
        let (mut counts, mut is_whole) = (NotKept::default(), true);
        for (index, record) in records.enumerate() {
            let Ok(record) = record else {
                is_whole = false;
                break;
            };
            match seen.kept.get(index).copied().unwrap_or_else(|| self.keeps(&record)) {
                true => copy.push(&record),
                false => counts.0[lost_class_index(record.class_id as u16)] += 1,
            }
        }
        if !is_whole || counts.sum() == 0 {
            return None;
        }
        not_kept.0.iter_mut().zip(counts.0).for_each(|(sum, count)| *sum += count);
        let mut bytes = copy.bytes;
        let content_size_bytes = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let header = PacketHeader { content_size_bytes, packet_size_bytes: bytes.len() as u64, ..*header };
        let is_early = seen.is_early && !self.is_settled(header.timestamp_end);
        Some(Thinned { header, bytes, is_early })
    }
}

/// A packet without the events that are not kept.
pub(crate) struct Thinned {
    pub(crate) header: PacketHeader,
    /// The packet, which begins with room for the header.
    pub(crate) bytes: Vec<u8>,
    /// Whether some of them might have been kept later.
    pub(crate) is_early: bool,
}
