//! Packets and events of one stream.
//!
//! A stream is read from front to back. What is wrong with it comes as a [`Notice`] between the events, at the place where
//! it was found; then reading goes on with the next record or packet that can be trusted:
//!
//! | what | reading goes on |
//! | --- | --- |
//! | gap, loss, packets out of order | with this packet |
//! | record damaged, or outside the packet's time | with the next packet |
//! | packet of another trace or stream | with the next packet that belongs here |
//! | header damaged, packet cut off, bytes that cannot be read | not at all |
//!
//! The bytes are a slice, or come from a file piece by piece ([`Source`]).

mod event;
mod notice;
mod pages;
mod select;
mod source;
mod trace;

#[cfg(test)]
mod tests;

pub use event::{Event, Scratch};
pub use notice::{Foreign, Notice, Problem, RecordError};
pub use pages::{count_records, first_record_since};
pub use select::Choice;
pub use source::Source;
pub use trace::TraceRef;

use dormouse_abi::page::{CPU_UNKNOWN, MAGIC, STREAM_STATE};

use crate::packet::HeaderError;
use crate::plan::{Cursor, Memory, Outer, PacketFields, PacketStart, Record, StreamPlan, Time, advance};
use crate::time::Scale;
use crate::totals::StreamTotals;
use event::{Body, PacketStartRef};

/// No record is longer than a page, and no page nearly as long. A sparse file can claim any length.
const RECORD_SIZE_BYTES_MAX: usize = 64 << 20;
/// No header of a packet is longer.
const HEADER_SIZE_BYTES_MAX: usize = 1 << 20;

/// What a reader stands in.
#[derive(Debug, Clone, Copy)]
struct Packet<'a> {
    plan: &'a StreamPlan,
    /// Of the packet, from the stream's start.
    offset: u64,
    /// Of the next record, in bits from the packet's start.
    position: u64,
    /// Where the content ends, or what is there of it.
    end: u64,
    timestamp_end: u64,
    cpu_id: u32,
    /// Bytes that are there, and bytes that there should be, if that is not the same.
    cut_bytes: Option<(u64, u64)>,
}

/// The record that a reader has come to.
#[derive(Debug, Clone, Copy)]
struct Current<'a> {
    plan: &'a StreamPlan,
    record: Record,
    timestamp: u64,
    /// Where it begins, in bits from the packet's start.
    begin: u64,
    packet_offset: u64,
    cpu_id: u32,
}

/// What counts of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted<'a> {
    pub plan: &'a StreamPlan,
    /// Index of its class.
    pub class: usize,
    pub timestamp: u64,
    pub size_bytes: u64,
    pub cpu_id: u32,
    /// Where its contexts begin: a byte of the stream, and a bit of the packet.
    body: (u64, u64),
}

/// A packet that has been opened.
#[derive(Debug, Clone, Copy)]
struct Opened {
    fields: PacketFields,
    stream_id: u64,
    context: u64,
    outer: Outer,
}

/// Events of one stream with the notices between them: an iterator where the stream is a slice, otherwise by way of
/// [`crate::Merge`].
#[derive(Debug, Clone)]
pub struct StreamReader<'a, S = &'a [u8]> {
    trace: TraceRef<'a>,
    stream: usize,
    source: S,
    /// Nothing is read from here on.
    end: u64,
    /// Offset and index of the packet after the current one.
    next: (u64, u64),
    /// Of the current one, or of the one that just failed.
    at: (u64, u64),
    packet: Option<Packet<'a>>,
    current: Option<Current<'a>>,
    /// Whether `current` is still to be gone to.
    is_ahead: bool,
    memory: Memory,
    /// Time of the record before, ticks.
    time: u64,
    scale: Option<Scale>,
    /// The last packet that was opened.
    last: Option<Opened>,
    /// Its header and context, where the stream is no slice.
    header: Vec<u8>,
    /// So far; without the stream's identity, which `last` has.
    totals: StreamTotals,
    /// Notices about the header of the current packet, last one first.
    notices: Vec<Problem>,
}

impl<'a> StreamReader<'a> {
    /// Reads the bytes of a stream file. `stream` is a number of the caller's choice, which events and notices carry.
    pub fn new(trace: impl Into<TraceRef<'a>>, stream: usize, bytes: &'a [u8]) -> StreamReader<'a> {
        StreamReader::of_source(trace, stream, bytes)
    }

    /// As [`StreamReader::event`], for as long as the slice.
    pub(crate) fn event_of_slice(&self) -> Option<Event<'a>> {
        let (bytes, current) = (self.source, self.current?);
        let at = |offset: u64| bytes.get(offset as usize..).unwrap_or_default();
        Some(self.event_in(&current, at(current.body_offset()), at(current.packet_offset)))
    }
}

impl Current<'_> {
    /// The byte of the stream in which contexts and fields begin.
    fn body_offset(&self) -> u64 {
        self.packet_offset + self.record.body / 8
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// As [`StreamReader::new`], of bytes that come piece by piece.
    pub fn of_source(trace: impl Into<TraceRef<'a>>, stream: usize, source: S) -> StreamReader<'a, S> {
        StreamReader {
            trace: trace.into(),
            stream,
            end: source.size_bytes(),
            source,
            next: (0, 0),
            at: (0, 0),
            packet: None,
            current: None,
            is_ahead: false,
            memory: Memory::default(),
            time: 0,
            scale: None,
            last: None,
            header: Vec::new(),
            totals: StreamTotals::default(),
            notices: Vec::new(),
        }
    }

    /// Bytes of the stream.
    pub fn size_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    /// The identity of a stream that nobody has read yet: that of its first packet which belongs to the trace.
    pub fn identity_of(trace: impl Into<TraceRef<'a>>, source: S) -> Option<(u32, u32)> {
        let mut reader = StreamReader::of_source(trace, 0, source);
        while reader.last.is_none() {
            // What is wrong with a packet is told by whoever reads it.
            let _ = reader.open()?;
        }
        reader.totals().map(|totals| totals.identity())
    }

    /// What the stream held as far as it has been read; `None` before the first packet.
    pub fn totals(&self) -> Option<StreamTotals> {
        let Opened { stream_id, fields, .. } = self.last?;
        let stream_instance_id = fields.stream_instance_id.unwrap_or(0) as u32;
        Some(StreamTotals { stream_id: stream_id as u32, stream_instance_id, ..self.totals })
    }

    fn notice(&self, problem: Problem) -> Notice {
        let (offset_bytes, packet) = self.at;
        Notice { stream: self.stream, packet, offset_bytes, problem }
    }

    /// The trace.
    pub fn trace(&self) -> TraceRef<'a> {
        self.trace
    }

    /// Goes to the next event that is earlier than `limit` (ticks; `u64::MAX`: any), and says what counts of it; what is not earlier stays to
    /// be gone to.
    #[inline(always)]
    pub(crate) fn count_next(&mut self, limit: u64) -> Option<Result<Counted<'a>, Notice>> {
        if !std::mem::take(&mut self.is_ahead) {
            match self.advance()? {
                Ok(_) => {}
                Err(notice) => return Some(Err(notice)),
            }
        }
        let current = self.current?;
        if current.timestamp >= limit && limit != u64::MAX {
            self.is_ahead = true;
            return None;
        }
        Some(Ok(Counted {
            plan: current.plan,
            class: current.record.class,
            timestamp: current.timestamp,
            size_bytes: (current.record.end - current.begin).div_ceil(8),
            cpu_id: current.cpu_id,
            body: (current.body_offset(), current.record.body),
        }))
    }

    /// `vpid` and `vtid` of the event that [`StreamReader::count_next`] has come to.
    #[inline(always)]
    pub(crate) fn who(&self, counted: &Counted<'a>) -> Option<(u32, u32)> {
        let (offset, body) = counted.body;
        counted.plan.who(&Cursor::new(self.source.fetched(offset), body / 8 * 8, body, u64::MAX))
    }

    /// The time of the next event, ticks, without passing it; notices are passed to `told`.
    pub(crate) fn look_ahead(&mut self, mut told: impl FnMut(Notice)) -> Option<u64> {
        while !self.is_ahead {
            match self.advance()? {
                Ok(_) => self.is_ahead = true,
                Err(notice) => told(notice),
            }
        }
        self.current.map(|current| current.timestamp)
    }

    /// Whether the event that the reader has come to is of a class that the session owner writes.
    pub(crate) fn is_at_state(&self) -> bool {
        self.trace.is_own() && self.current.is_some_and(|current| current.plan.id == u64::from(STREAM_STATE))
    }

    /// Whether its records say whose they are.
    pub(crate) fn has_who(&self) -> bool {
        self.trace.plan.streams.iter().any(StreamPlan::has_who)
    }

    /// Nanoseconds since the epoch of ticks of the stream's clock.
    pub(crate) fn epoch_ns(&self, ticks: u64) -> Option<i64> {
        self.scale.map(|scale| scale.epoch_ns(ticks))
    }

    /// The time of the event that the reader has come to, in nanoseconds since the epoch; `None` without a clock.
    pub(crate) fn time_ns(&self) -> Option<i64> {
        self.scale.map(|scale| scale.epoch_ns(self.time))
    }

    /// Goes to the next event, and gives its time; `None` at the end.
    pub(crate) fn advance(&mut self) -> Option<Result<u64, Notice>> {
        self.current = None;
        loop {
            if let Some(problem) = self.notices.pop() {
                return Some(Err(self.notice(problem)));
            }
            if let Some(next) = self.next_record() {
                return Some(next.map_err(|problem| self.notice(problem)));
            }
            let cut = self.packet.take().and_then(|packet| packet.cut_bytes);
            if let Some((present_bytes, expected_bytes)) = cut {
                return Some(Err(self.notice(Problem::CutOff { present_bytes, expected_bytes })));
            }
            if let Err(problem) = self.open()? {
                return Some(Err(self.notice(problem)));
            }
        }
    }

    /// The event that [`StreamReader::advance`] has come to.
    pub(crate) fn event(&self) -> Option<Event<'_>> {
        let current = self.current.as_ref()?;
        Some(self.event_in(current, self.source.fetched(current.body_offset()), &self.header))
    }

    /// The event, whose contexts and fields begin in the first byte of `body`, and its packet with the first of `packet`.
    fn event_in<'b>(&self, current: &Current<'b>, body: &'b [u8], packet: &'b [u8]) -> Event<'b>
    where
        'a: 'b,
    {
        let Current { plan, record, timestamp, begin, cpu_id, .. } = *current;
        let size_bytes = (record.end - record.body / 8 * 8).div_ceil(8) as usize;
        let bytes = body.get(..size_bytes).unwrap_or(body);
        let (context, outer) = self.last.map_or((0, Outer::default()), |opened| (opened.context, opened.outer));
        Event {
            stream: self.stream,
            timestamp,
            time_ns: self.scale.map(|scale| scale.epoch_ns(timestamp)),
            class: plan.class_at(record.class),
            cpu_id,
            context: plan.who(&Cursor::new(bytes, record.body / 8 * 8, record.body, record.end)),
            size_bytes: (record.end - begin).div_ceil(8) as usize,
            trace: self.trace,
            plan,
            body: Body { bytes, begin: record.body, end: record.end, outer: self.memory.outer() },
            packet: PacketStartRef { index: self.at.1, bytes: packet, context, outer },
        }
    }

    /// Opens the next packet; `None` at the end.
    fn open(&mut self) -> Option<Result<(), Problem>> {
        self.at = self.next;
        (self.at.0 < self.end).then(|| {
            let opened = self.open_next();
            if !matches!(opened, Ok(()) | Err(Problem::LeftOut { .. })) {
                self.end = self.at.0;
            }
            opened
        })
    }

    fn open_next(&mut self) -> Result<(), Problem> {
        let mut left_out: Option<(Foreign, u64)> = None;
        while self.next.0 < self.end {
            let start = self.next_header();
            let foreign = start.as_ref().ok().and_then(|(_, start)| self.why_foreign(&start.fields));
            match (foreign, &mut left_out) {
                (None, None) => return start.and_then(|(plan, start)| self.open_with(plan, start)),
                (Some(why), None) => left_out = Some((why, 1)),
                (Some(why), Some((first, count))) if why == *first => *count += 1,
                _ => break,
            }
            let (_, start) = start?;
            let (_, packet_size_bytes) = self.sizes(&start)?;
            self.pass(packet_size_bytes);
        }
        left_out.map_or(Ok(()), |(why, count)| Err(Problem::LeftOut { why, count }))
    }

    /// Reads header and context of the next packet.
    fn next_header(&mut self) -> Result<(&'a StreamPlan, PacketStart), Problem> {
        let (offset, size_bytes) = (self.next.0, self.source.size_bytes());
        let plan = self.trace.plan;
        let expected_bytes = plan.header_size_bytes_min();
        let present_bytes = self.end - offset;
        let mut size_bytes_min = expected_bytes.max(1) as usize;
        loop {
            let bytes = self.source.fetch(offset, size_bytes_min).map_err(unreadable)?;
            let is_short = bytes.len() < size_bytes_min;
            if (bytes.len() as u64) < expected_bytes.min(present_bytes) {
                return Err(shortened(offset, bytes, size_bytes));
            }
            if (bytes.len() as u64) < expected_bytes {
                return Err(Problem::CutOff { present_bytes, expected_bytes });
            }
            // A stream whose id is not known has the packets of the others, where all of these are alike.
            let header = plan.packet_header(bytes);
            if let Ok(PacketFields { magic: Some(magic), .. }) = header
                && magic != u64::from(MAGIC)
            {
                return Err(HeaderError::Magic(magic as u32).into());
            }
            let start = header.and_then(|fields| {
                let stream = match fields.stream_id {
                    Some(id) => plan.stream(id).or_else(|| plan.any_stream()),
                    None => plan.streams.first(),
                };
                stream.map(|stream| Ok((stream, stream.packet_context(bytes, fields)?))).transpose()
            });
            match start {
                Ok(Some((stream, start))) => {
                    self.header.clear();
                    self.header.extend_from_slice(&bytes[..(start.end.div_ceil(8) as usize).min(bytes.len())]);
                    return Ok((stream, start));
                }
                Ok(None) => return Err(Problem::NoStream),
                Err(_) if is_short && (bytes.len() as u64) < present_bytes => {
                    return Err(shortened(offset, bytes, size_bytes));
                }
                Err(_) if bytes.len() as u64 >= present_bytes => {
                    return Err(Problem::CutOff { present_bytes, expected_bytes: present_bytes + 1 });
                }
                Err(error) if bytes.len() >= HEADER_SIZE_BYTES_MAX => return Err(Problem::HeaderField(error)),
                Err(_) => size_bytes_min = 2 * bytes.len().max(16),
            }
        }
    }

    /// Bits of the content, and bytes of the packet whose header and context these are.
    fn sizes(&self, start: &PacketStart) -> Result<(u64, u64), Problem> {
        let fields = &start.fields;
        let rest_bits = self.end.saturating_sub(self.next.0).saturating_mul(8);
        let content = fields.content_size_bits.or(fields.packet_size_bits).unwrap_or(rest_bits);
        let packet = fields.packet_size_bits.or(fields.content_size_bits).unwrap_or(rest_bits);
        if self.trace.is_own() && !content.is_multiple_of(8) {
            return Err(HeaderError::Bits(content).into());
        }
        let packet = match packet.is_multiple_of(8) {
            true => packet,
            // Where only the content has a size, the packet ends with its last byte.
            false if fields.packet_size_bits.is_none() => packet.next_multiple_of(8),
            false => return Err(HeaderError::Bits(packet).into()),
        };
        if content < start.end || packet < content {
            let (content_size_bytes, packet_size_bytes) = (content.div_ceil(8), packet / 8);
            return Err(HeaderError::Sizes { content_size_bytes, packet_size_bytes }.into());
        }
        Ok((content, packet / 8))
    }

    fn why_foreign(&self, fields: &PacketFields) -> Option<Foreign> {
        if let (16, Some(uuid)) = (fields.uuid.count, self.trace.uuid)
            && fields.uuid.bytes != *uuid
        {
            return Some(Foreign::Uuid);
        }
        if let Some(id) = fields.stream_id
            && self.trace.plan.stream(id).is_none()
        {
            return Some(Foreign::StreamId(id));
        }
        let last = self.last?.fields;
        let pairs = [
            ("stream_id", last.stream_id, fields.stream_id),
            ("stream_instance_id", last.stream_instance_id, fields.stream_instance_id),
            ("cpu_id", last.cpu_id, fields.cpu_id),
        ];
        // Only ours is known to have one file for each processor.
        let count = if self.trace.is_own() { 3 } else { 1 };
        pairs.into_iter().take(count).find(|(_, before, now)| before != now).map(|(name, ..)| Foreign::Changed(name))
    }

    /// Goes behind a packet of this size, and gives how many bytes of it are there.
    fn pass(&mut self, packet_size_bytes: u64) -> u64 {
        let (offset, index) = self.next;
        let present_bytes = packet_size_bytes.min(self.end - offset);
        self.next = (offset + present_bytes, index + 1);
        present_bytes
    }

    fn open_with(&mut self, plan: &'a StreamPlan, start: PacketStart) -> Result<(), Problem> {
        let (content_bits, packet_size_bytes) = self.sizes(&start)?;
        let fields = start.fields;
        self.scale = self.trace.scale(plan.clock);
        if let Some(begin) = fields.timestamp_begin {
            self.time = match self.trace.is_own() {
                true => begin,
                false => advance(self.time, begin, fields.timestamp_begin_bits),
            };
        }
        self.note_header(&fields);
        let times_valid = match (fields.timestamp_begin, fields.timestamp_end) {
            (Some(begin), Some(end)) if self.trace.is_own() => begin <= end,
            _ => true,
        };
        if !times_valid {
            self.notices.push(Problem::Times);
        }
        self.notices.reverse();
        self.last = Some(Opened { fields, stream_id: plan.id, context: start.context, outer: start.outer });
        self.memory = Memory::with_outer(&start.outer);
        self.totals.packets += 1;
        let offset = self.next.0;
        let present_bytes = self.pass(packet_size_bytes);
        let end = content_bits.min(8 * present_bytes);
        // Records of a packet without a valid time have none either.
        let position = if times_valid { start.end } else { end };
        let timestamp_end = if self.trace.is_own() { fields.timestamp_end } else { None };
        self.packet = Some(Packet {
            plan,
            offset,
            position,
            end,
            timestamp_end: timestamp_end.unwrap_or(u64::MAX),
            cpu_id: fields.cpu_id.and_then(|cpu| u32::try_from(cpu).ok()).unwrap_or(CPU_UNKNOWN),
            cut_bytes: (packet_size_bytes > present_bytes).then_some((present_bytes, packet_size_bytes)),
        });
        Ok(())
    }

    /// Compares a packet with the one before.
    fn note_header(&mut self, fields: &PacketFields) {
        let last = self.last.map(|opened| opened.fields);
        let bits = fields.events_discarded_bits;
        let mut discarded = fields.events_discarded.unwrap_or(0);
        if let Some(last) = last {
            if let (Some(begin), Some(end)) = (fields.timestamp_begin, last.timestamp_end)
                && begin < end
                && fields.timestamp_begin_bits == 64
            {
                self.notices.push(Problem::Overlap);
            }
            let before = last.events_discarded.unwrap_or(0);
            if discarded < before && bits == 64 {
                self.notices.push(Problem::DiscardedDecreases);
            }
            if let (Some(before), Some(found)) = (last.packet_seq_num, fields.packet_seq_num)
                && before.wrapping_add(1) != found
            {
                self.notices.push(Problem::SequenceGap { expected: before.wrapping_add(1), found });
            }
        }
        if !self.trace.is_own() {
            // A counter of few bits begins again at 0. What it held before the first packet was lost before the trace began.
            let before = last.and_then(|last| last.events_discarded);
            let new = match before {
                Some(before) if bits < 64 && bits > 0 => discarded.wrapping_sub(before) & ((1 << bits) - 1),
                Some(before) => discarded.saturating_sub(before),
                None => 0,
            };
            discarded = self.totals.events_discarded + new;
        }
        if discarded > self.totals.events_discarded {
            let ns = |ticks: Option<u64>| Some(self.scale?.epoch_ns(ticks?));
            let end_of_last = last.map_or(fields.timestamp_begin, |last| last.timestamp_end);
            self.notices.push(Problem::Discarded {
                count: discarded - self.totals.events_discarded,
                begin_ns: ns(end_of_last),
                end_ns: ns(fields.timestamp_end),
            });
            self.totals.events_discarded = discarded;
        }
    }

    /// Goes to the next event of the current packet, and gives its time; `None` at the packet's end.
    fn next_record(&mut self) -> Option<Result<u64, Problem>> {
        let packet = self.packet.as_mut()?;
        if packet.position >= packet.end {
            return None;
        }
        let begin = packet.position;
        let base = begin / 8 * 8;
        let offset = packet.offset + begin / 8;
        let rest_bytes = (packet.end - base).div_ceil(8);
        let (stream_size_bytes, mut size_bytes_min) = (self.source.size_bytes(), 1);
        let record = loop {
            let bytes = match self.source.fetch(offset, size_bytes_min) {
                Ok(bytes) => bytes,
                Err(error) => return Some(Err(self.stop(unreadable(error)))),
            };
            let mut cursor = Cursor::new(bytes, base, begin, packet.end);
            let error = match packet.plan.record(&mut cursor, &mut self.memory) {
                Ok(record) => break record,
                Err(error) => RecordError::from(error),
            };
            // Most likely there is more of it.
            let is_all = bytes.len() as u64 >= rest_bytes || bytes.len() >= RECORD_SIZE_BYTES_MAX;
            if is_all || matches!(error, RecordError::UnknownClass(_)) {
                packet.position = packet.end;
                // The last record of a packet that is cut off is cut off too, which is not worth a second notice.
                let expected = packet.cut_bytes.is_some() && !matches!(error, RecordError::UnknownClass(_));
                return (!expected).then_some(Err(Problem::Record { record_offset_bytes: begin / 8, error }));
            }
            if bytes.len() < size_bytes_min {
                let problem = shortened(offset, bytes, stream_size_bytes);
                return Some(Err(self.stop(problem)));
            }
            size_bytes_min = 2 * bytes.len();
        };
        if record.end == begin {
            // Records without size would have no end.
            packet.position = packet.end;
            return None;
        }
        match record.time.after(self.time) {
            Some(timestamp) if timestamp <= packet.timestamp_end => self.time = timestamp,
            timestamp => {
                packet.position = packet.end;
                let is_earlier = timestamp.is_none() && matches!(record.time, Time::Full(_));
                let error = if is_earlier { RecordError::Older } else { RecordError::Younger };
                return Some(Err(Problem::Record { record_offset_bytes: begin / 8, error }));
            }
        }
        packet.position = record.end;
        let Packet { plan, offset: packet_offset, cpu_id, .. } = *packet;
        self.current = Some(Current { plan, record, timestamp: self.time, begin, packet_offset, cpu_id });
        self.totals.events += 1;
        Some(Ok(self.time))
    }

    /// There is nothing further behind.
    fn stop(&mut self, problem: Problem) -> Problem {
        self.end = 0;
        self.packet = None;
        problem
    }
}

fn unreadable(error: std::io::Error) -> Problem {
    Problem::Unreadable(error.kind())
}

/// `bytes` are all that is there from `offset` on.
fn shortened(offset: u64, bytes: &[u8], expected_bytes: u64) -> Problem {
    Problem::Shortened { present_bytes: offset + bytes.len() as u64, expected_bytes }
}

impl<'a> Iterator for StreamReader<'a> {
    type Item = Result<Event<'a>, Notice>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance()? {
            Ok(_) => self.event_of_slice().map(Ok),
            Err(notice) => Some(Err(notice)),
        }
    }
}
