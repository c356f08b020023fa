//! Packets and events of one stream.
//!
//! A stream is read from front to back. A fault is returned as a [`Notice`] between the events, at the place where it
//! was found. Then reading continues with the next record or packet that can be trusted:
//!
//! | fault | reading continues |
//! | --- | --- |
//! | gap, loss, packets out of order | with this packet |
//! | record damaged, outside the packet's time, or with a time that does not fit 64 bits of nanoseconds | with the next packet |
//! | packet whose begin time does not fit them | not at all |
//! | packet of another trace or stream | with the next packet that belongs to the stream |
//! | header damaged, but a size leads to a header of this trace | at that header: the size is the one that the header claims, or that of the previous packet |
//! | header damaged otherwise, packet cut off, bytes that cannot be read | not at all |
//!
//! The bytes are a slice, or are read from a file piece by piece ([`Source`]).
//!
//! * `packets`: steps from one packet to the next: headers, foreign packets, packets outside the requested time.
//! * `records`: steps from one record to the next, and counting, which only reads the headers of records.
//! * `block`: events that are kept while reading of their streams continues.
//! * `growing`: streams that are still being written.
//! * `part`: parts of a stream that are read separately, so that several threads can read one stream.
//! * `range`: selection of packets and events by time.

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
pub use pages::{PageCopy, PagePlace, PageRecord, PageRecords, count_records, first_record_since};
pub use range::PacketSpan;
pub(crate) use records::Passed;
pub use select::{Choice, Chosen, ChosenOf, Viewer};
pub use source::Source;
pub use trace::TraceRef;

use dormouse_abi::page::STREAM_STATE;

use crate::plan::{Cursor, Memory, Outer, PacketFields, Record, StreamPlan};
use crate::time::Scale;
use dormouse_format::StreamTotals;
use event::{Body, PacketStartRef};

/// The packet that is being read.
#[derive(Debug, Clone, Copy)]
struct Packet<'a> {
    plan: &'a StreamPlan,
    /// Offset of the packet from the stream's start.
    offset: u64,
    /// Position of the next record, in bits from the packet's start.
    position: u64,
    /// End of the content, or of its available part.
    end: u64,
    timestamp_end: u64,
    cpu_id: u32,
    /// Whether some of its events can be outside the requested time, or before the times that 64 bits of nanoseconds
    /// hold.
    is_partly: bool,
    /// Number of available bytes and of expected bytes, if they differ.
    cut_bytes: Option<(u64, u64)>,
}

/// The current record of a reader.
#[derive(Debug, Clone, Copy)]
struct Current<'a> {
    plan: &'a StreamPlan,
    record: Record,
    timestamp: u64,
    /// Start of the record, in bits from the packet's start.
    begin: u64,
    packet_offset: u64,
    cpu_id: u32,
}

/// Properties of an event for counting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted<'a> {
    pub plan: &'a StreamPlan,
    /// Index of the class.
    pub class: usize,
    pub timestamp: u64,
    pub size_bytes: u64,
    pub cpu_id: u32,
    /// Start of the contexts: the byte of the stream, and the bit of the packet.
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

/// Description of a stream by its first packet that belongs to the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstPacket {
    /// `stream_id` and `stream_instance_id`; `None` if there is no such packet.
    pub identity: Option<(u32, u32)>,
    /// Bytes of header and context.
    pub header: Vec<u8>,
    /// First fault up to that packet.
    pub problem: Option<Problem>,
}

/// Reader of the events of one stream, with notices between them. It is an iterator if the stream is a slice; otherwise
/// it is read through [`crate::Merge`].
#[derive(Debug, Clone)]
pub struct StreamReader<'a, S = &'a [u8]> {
    trace: TraceRef<'a>,
    stream: usize,
    source: S,
    /// Offset at which reading ends.
    end: u64,
    /// Offset and index of the packet after the current one.
    next: (u64, u64),
    /// Offset and index of the current packet, or of the one that just failed.
    at: (u64, u64),
    packet: Option<Packet<'a>>,
    current: Option<Current<'a>>,
    /// Whether `current` has been read ahead and not yet returned.
    is_ahead: bool,
    memory: Memory,
    /// Time of the previous record, in ticks.
    time: u64,
    scale: Option<Scale>,
    /// Last tick whose time `scale` can represent; `None` if it cannot represent any.
    last_held: Option<u64>,
    /// The last opened packet.
    last: Option<Opened>,
    /// Highest count of discarded events in a packet of another tracer.
    discarded_most: Option<u64>,
    /// Size of the last packet with a valid header, in bytes.
    size_bytes_last: u64,
    /// First and last requested time, in nanoseconds since the epoch.
    bounds: Option<(i64, i64)>,
    /// Current end of the stream, if it still grows.
    growing: Option<u64>,
    /// Header and context of the current packet, if the stream is not a slice.
    header: Vec<u8>,
    /// Totals so far, without the stream's identity, which `last` has.
    totals: StreamTotals,
    /// Notices about the header of the current packet, in reverse order.
    notices: Vec<Problem>,
    /// Whether packets can have a begin time that is later than their first event.
    do_packets_begin_late: bool,
}

impl<'a> StreamReader<'a> {
    /// Returns a reader of a stream file's bytes. Events and notices carry the number `stream`, which the caller
    /// chooses.
    pub fn new(trace: impl Into<TraceRef<'a>>, stream: usize, bytes: &'a [u8]) -> StreamReader<'a> {
        StreamReader::of_source(trace, stream, bytes)
    }

    /// Returns the current event like [`StreamReader::event`], with the lifetime of the slice.
    pub(crate) fn event_of_slice(&self) -> Option<Event<'a>> {
        let (bytes, current) = (self.source, self.current?);
        let at = |offset: u64| bytes.get(offset as usize..).unwrap_or_default();
        Some(self.event_in(&current, at(current.body_offset()), at(current.packet_offset)))
    }
}

impl Current<'_> {
    /// Returns the offset in the stream of the byte in which the contexts begin.
    fn body_offset(&self) -> u64 {
        self.packet_offset + self.record.body / 8
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Returns a reader of bytes that are read piece by piece, like [`StreamReader::new`].
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

    /// Returns the size of the stream, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    /// Describes a stream by its first packet that belongs to the trace.
    pub fn first_packet(trace: impl Into<TraceRef<'a>>, source: S) -> FirstPacket {
        let mut reader = StreamReader::of_source(trace, 0, source);
        let mut problem = None;
        // Faults of later packets are reported when these are read.
        while reader.last.is_none()
            && let Some(opened) = reader.open()
        {
            problem = problem.or(opened.err());
        }
        let identity = reader.totals().map(|totals| totals.identity());
        FirstPacket { identity, header: reader.header, problem }
    }

    /// Returns the totals of the part that has been read; `None` before the first packet.
    pub fn totals(&self) -> Option<StreamTotals> {
        let Opened { stream_id, fields, .. } = self.last?;
        let stream_instance_id = fields.stream_instance_id.unwrap_or(0) as u32;
        Some(StreamTotals { stream_id: stream_id as u32, stream_instance_id, ..self.totals })
    }

    fn notice(&self, problem: Problem) -> Notice {
        let (offset_bytes, packet) = self.at;
        Notice { stream: self.stream, packet, offset_bytes, problem }
    }

    /// Returns the trace.
    pub fn trace(&self) -> TraceRef<'a> {
        self.trace
    }

    /// Advances to the next event and returns its properties for counting.
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

    /// Returns `vpid` and `vtid` of the event to which [`StreamReader::count_next`] advanced.
    #[inline(always)]
    pub(crate) fn who(&self, counted: &Counted<'a>) -> Option<(u32, u32)> {
        let (offset, body) = counted.body;
        counted.plan.who(&Cursor::new(self.source.fetched(offset), body / 8 * 8, body, u64::MAX))
    }

    /// Returns the time of the next event in ticks without consuming the event. Notices are passed to `told`.
    pub(crate) fn look_ahead(&mut self, mut told: impl FnMut(Notice)) -> Option<u64> {
        while !self.is_ahead {
            match self.advance()? {
                Ok(_) => self.is_ahead = true,
                Err(notice) => told(notice),
            }
        }
        self.current.map(|current| current.timestamp)
    }

    /// Whether the first event is the session owner's. Reads ahead to it; notices are passed to `told`.
    pub(crate) fn is_state(&mut self, told: impl FnMut(Notice)) -> bool {
        self.trace.is_own() && self.look_ahead(told).is_some() && self.is_at_state()
    }

    /// Returns the number that the stream was given.
    pub(crate) fn stream(&self) -> usize {
        self.stream
    }

    /// Returns stream class and CPU of the current packet.
    pub(crate) fn packet_at_hand(&self) -> Option<(&'a StreamPlan, u32)> {
        self.packet.map(|packet| (packet.plan, packet.cpu_id))
    }

    /// Whether the current event is the session owner's.
    #[inline]
    pub(crate) fn is_at_state(&self) -> bool {
        self.trace.is_own() && self.current.is_some_and(|current| current.plan.id == u64::from(STREAM_STATE))
    }

    /// Whether the trace's records identify their processes.
    pub(crate) fn has_who(&self) -> bool {
        self.trace.plan.streams.iter().any(StreamPlan::has_who)
    }

    /// Sets the conversion of ticks to that of a stream class's clock.
    fn set_scale(&mut self, plan: &StreamPlan) {
        let scale = self.trace.scale(plan.clock);
        if self.scale != scale {
            self.scale = scale;
            self.last_held = scale.map_or(Some(u64::MAX), |scale| scale.last_held());
        }
    }

    /// If the time of the current record is before the times that 64 bits of nanoseconds hold, leaves the packet and
    /// returns the fault.
    fn beyond(&mut self, time: u64) -> Option<Problem> {
        let packet = self.packet.as_mut().filter(|_| self.scale.is_some_and(|scale| scale.held_ns(time).is_none()))?;
        packet.position = packet.end;
        let error = RecordError::Beyond(self.trace.clock_said(packet.plan.clock));
        let record_offset_bytes = self.current.take().map_or(0, |current| current.begin / 8);
        self.totals.events -= 1;
        Some(Problem::Record { record_offset_bytes, error })
    }

    /// Converts ticks of the stream's clock to nanoseconds since the epoch.
    pub(crate) fn epoch_ns(&self, ticks: u64) -> Option<i64> {
        self.scale.map(|scale| scale.epoch_ns(ticks))
    }

    /// Returns the time of the current event in nanoseconds since the epoch; `None` without a clock.
    pub fn time_ns(&self) -> Option<i64> {
        self.scale.map(|scale| scale.epoch_ns(self.time))
    }

    /// Advances to the next event and returns its time in ticks; `None` at the end.
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

    /// Returns the event to which [`StreamReader::advance`] advanced.
    // Inlined because an event is large: it need not be moved, and unused fields need not be computed.
    #[inline(always)]
    pub(crate) fn event(&self) -> Option<Event<'_>> {
        let current = self.current.as_ref()?;
        Some(self.event_in(current, self.source.fetched(current.body_offset()), &self.header))
    }

    /// Returns the event. `body` starts with the byte in which the contexts begin, and `packet` with the packet's first
    /// byte.
    #[inline(always)]
    fn event_in<'b>(&self, current: &Current<'b>, body: &'b [u8], packet: &'b [u8]) -> Event<'b>
    where
        'a: 'b,
    {
        let Current { plan, record, timestamp, begin, cpu_id, .. } = *current;
        // The bytes extend beyond the event's end, because numbers are read a word at a time.
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

/// Returns the fault of a shortened file. `bytes` are all that are available from `offset` on.
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
