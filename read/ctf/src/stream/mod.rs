//! Packets and events of one stream.
//!
//! A stream is read from front to back. What is wrong with it comes as a [`Notice`] between the events, at the place where
//! it was found; then reading goes on with the next record or packet that can be trusted:
//!
//! | what | reading goes on |
//! | --- | --- |
//! | gap, loss, packets out of order | with this packet |
//! | record damaged, or outside the packet's time, or of a time beyond what 64 bits of nanoseconds hold | with the next packet |
//! | packet that begins beyond what they hold | not at all |
//! | packet of another trace or stream | with the next packet that belongs here |
//! | header damaged, and a size leads to a header of this trace | there: the size that the header claims, or that of the packet before |
//! | header damaged otherwise, packet cut off, bytes that cannot be read | not at all |
//!
//! The bytes are a slice, or come from a file piece by piece ([`Source`]).
//!
//! * `packets`: from one packet to the next: headers, what is left out, what is skipped.
//! * `records`: from one record to the next; counting, which looks at headers of records alone.
//! * `block`: events that are kept while their streams are read on.
//! * `growing`: streams that somebody still writes.
//! * `part`: packets of a stream that are read by themselves, so that several threads can read one stream.
//! * `range`: which packets and events are of a time that was asked for.

mod block;
mod counts;
mod event;
mod growing;
mod notice;
mod packets;
mod pages;
mod part;
mod range;
mod records;
mod select;
mod source;
mod trace;

#[cfg(test)]
mod tests;

pub use block::Block;
pub use counts::{ClassCounts, IntervalCounts};
pub use event::{Event, EventFields, Scratch};
pub use growing::Position;
pub use notice::{ClockSaid, Foreign, Notice, Problem, RecordError};
pub use pages::{count_records, first_record_since};
pub use range::PacketSpan;
pub(crate) use records::Passed;
pub use select::{Choice, Chosen, ChosenOf, Viewer};
pub use source::Source;
pub use trace::TraceRef;

use dormouse_abi::page::STREAM_STATE;

use crate::plan::{Cursor, Memory, Outer, PacketFields, Record, StreamPlan};
use crate::time::Scale;
use crate::totals::StreamTotals;
use event::{Body, PacketStartRef};

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
    /// Whether some of its events can be outside the time that was asked for, or before what 64 bits of nanoseconds hold.
    is_partly: bool,
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

/// What can be said of a stream by its first packet that belongs to the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstPacket {
    /// `stream_id` and `stream_instance_id`; `None` if there is no such packet.
    pub identity: Option<(u32, u32)>,
    /// Header and context.
    pub header: Vec<u8>,
    /// The first that is wrong up to there.
    pub problem: Option<Problem>,
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
    /// The last tick that has a time by `scale`; `None`: not even the first has one.
    last_held: Option<u64>,
    /// The last packet that was opened.
    last: Option<Opened>,
    /// The most that a packet of another tracer has counted of discarded events.
    discarded_most: Option<u64>,
    /// Size of the last packet whose header was sound.
    size_bytes_last: u64,
    /// First and last time that is asked for, nanoseconds since the epoch.
    bounds: Option<(i64, i64)>,
    /// Where the stream ends for now, if it still grows.
    growing: Option<u64>,
    /// Its header and context, where the stream is no slice.
    header: Vec<u8>,
    /// So far; without the stream's identity, which `last` has.
    totals: StreamTotals,
    /// Notices about the header of the current packet, last one first.
    notices: Vec<Problem>,
    /// Whether packets say that they begin later than they do.
    do_packets_begin_late: bool,
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
        let trace = trace.into();
        StreamReader {
            trace,
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
            last_held: Some(u64::MAX),
            last: None,
            discarded_most: None,
            size_bytes_last: 0,
            bounds: None,
            growing: None,
            header: Vec::new(),
            totals: StreamTotals::default(),
            notices: Vec::new(),
            do_packets_begin_late: trace.do_packets_begin_late(),
        }
    }

    /// Bytes of the stream.
    pub fn size_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    /// What can be said of a stream by its first packet that belongs to the trace.
    pub fn first_packet(trace: impl Into<TraceRef<'a>>, source: S) -> FirstPacket {
        let mut reader = StreamReader::of_source(trace, 0, source);
        let mut problem = None;
        // What is wrong with packets further behind is told by whoever reads them.
        while reader.last.is_none()
            && let Some(opened) = reader.open()
        {
            problem = problem.or(opened.err());
        }
        let identity = reader.totals().map(|totals| totals.identity());
        FirstPacket { identity, header: reader.header, problem }
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

    /// Goes to the next event, and says what counts of it.
    #[inline(always)]
    pub(crate) fn count_next(&mut self) -> Option<Result<Counted<'a>, Notice>> {
        if !std::mem::take(&mut self.is_ahead) {
            match self.advance()? {
                Ok(_) => {}
                Err(notice) => return Some(Err(notice)),
            }
        }
        let current = self.current?;
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

    /// Whether its first event is one of the session owner. Goes there; notices up to it are passed to `told`.
    pub(crate) fn is_state(&mut self, told: impl FnMut(Notice)) -> bool {
        self.trace.is_own() && self.look_ahead(told).is_some() && self.is_at_state()
    }

    /// The number that it was given.
    pub(crate) fn stream(&self) -> usize {
        self.stream
    }

    /// Of the packet that it stands in: its stream class, and its processor.
    pub(crate) fn packet_at_hand(&self) -> Option<(&'a StreamPlan, u32)> {
        self.packet.map(|packet| (packet.plan, packet.cpu_id))
    }

    /// Whether the event that it has come to is one of the session owner.
    #[inline]
    pub(crate) fn is_at_state(&self) -> bool {
        self.trace.is_own() && self.current.is_some_and(|current| current.plan.id == u64::from(STREAM_STATE))
    }

    /// Whether its records say whose they are.
    pub(crate) fn has_who(&self) -> bool {
        self.trace.plan.streams.iter().any(StreamPlan::has_who)
    }

    /// Takes the clock of the streams of a class for that of the ticks from here on.
    fn set_scale(&mut self, plan: &StreamPlan) {
        let scale = self.trace.scale(plan.clock);
        if self.scale != scale {
            self.scale = scale;
            self.last_held = scale.map_or(Some(u64::MAX), |scale| scale.last_held());
        }
    }

    /// What is wrong with the record that the reader has come to, if its time is before what 64 bits of nanoseconds hold: then the packet is left.
    fn beyond(&mut self, time: u64) -> Option<Problem> {
        let packet = self.packet.as_mut().filter(|_| self.scale.is_some_and(|scale| scale.held_ns(time).is_none()))?;
        packet.position = packet.end;
        let error = RecordError::Beyond(self.trace.clock_said(packet.plan.clock));
        let record_offset_bytes = self.current.take().map_or(0, |current| current.begin / 8);
        self.totals.events -= 1;
        Some(Problem::Record { record_offset_bytes, error })
    }

    /// Nanoseconds since the epoch of ticks of the stream's clock.
    pub(crate) fn epoch_ns(&self, ticks: u64) -> Option<i64> {
        self.scale.map(|scale| scale.epoch_ns(ticks))
    }

    /// The time of the event that the reader has come to, in nanoseconds since the epoch; `None` without a clock.
    pub fn time_ns(&self) -> Option<i64> {
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
                match next {
                    Ok(time) if self.packet.as_ref().is_some_and(|packet| packet.is_partly) => {
                        if let Some(problem) = self.beyond(time) {
                            return Some(Err(self.notice(problem)));
                        }
                        match self.is_asked_for(time) {
                            Some(true) => return Some(Ok(time)),
                            Some(false) => continue,
                            None => return None,
                        }
                    }
                    next => return Some(next.map_err(|problem| self.notice(problem))),
                }
            }
            if let Some(packet) = self.packet.take() {
                if let Some((present_bytes, expected_bytes)) = packet.cut_bytes {
                    return Some(Err(self.notice(Problem::CutOff { present_bytes, expected_bytes })));
                }
                self.go_to_end();
            }
            if let Err(problem) = self.open()? {
                return Some(Err(self.notice(problem)));
            }
        }
    }

    /// The event that [`StreamReader::advance`] has come to.
    // An event is large. Where it is made it need not be moved, nor made as a whole if not all of it is looked at.
    #[inline(always)]
    pub(crate) fn event(&self) -> Option<Event<'_>> {
        let current = self.current.as_ref()?;
        Some(self.event_in(current, self.source.fetched(current.body_offset()), &self.header))
    }

    /// The event, whose contexts and fields begin in the first byte of `body`, and its packet with the first of `packet`.
    #[inline(always)]
    fn event_in<'b>(&self, current: &Current<'b>, body: &'b [u8], packet: &'b [u8]) -> Event<'b>
    where
        'a: 'b,
    {
        let Current { plan, record, timestamp, begin, cpu_id, .. } = *current;
        // What is behind its end is not looked at; but numbers are read a word at a time.
        let bytes = body;
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
            class_index: record.class,
            body: Body { bytes, begin: record.body, end: record.end, outer: self.memory.outer() },
            packet: PacketStartRef { index: self.at.1, bytes: packet, context, outer },
        }
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
