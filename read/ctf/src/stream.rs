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

use dormouse_abi::class::CLASS_ID_MAX;
use dormouse_abi::class::FieldType;
use dormouse_abi::page::{HEADER_SIZE_BYTES, STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::{self, RecordKind, TIMESTAMP_BITS};

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::class::{Class, Classes};
use crate::metadata::Metadata;
use crate::packet::{HeaderError, PacketHeader};
use crate::state::StateRecord;
use crate::totals::StreamTotals;
use crate::value::{FieldError, Value, field_size};

/// Why bytes are no record, or no record of their packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The content ends within the record's header.
    #[error("a record's header is cut off")]
    HeaderCut,
    /// No class has this id.
    #[error("a record has the class id {0}, which the metadata do not declare")]
    UnknownClass(u16),
    /// A field, by its index from 0, is none.
    #[error("field {0} of a record {1}")]
    Field(usize, FieldError),
    /// A full timestamp is earlier than that of the record before, or than `timestamp_begin`.
    #[error("a record is older than the one before")]
    Older,
    /// The time is beyond the packet's `timestamp_end`.
    #[error("a record is younger than the packet's end")]
    Younger,
}

/// What a stream says besides its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("packet {packet} at byte {offset_bytes} {problem}")]
pub struct Notice {
    /// The stream, as [`StreamReader::new`] was told.
    pub stream: usize,
    /// Which packet of the stream, from 0.
    pub packet: u64,
    /// Where the packet starts.
    pub offset_bytes: u64,
    /// What it is.
    pub problem: Problem,
}

/// What a [`Notice`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Events were dropped since the packet before. Not damage: the tracer says so itself.
    #[error("tells of {count} discarded events")]
    Discarded {
        /// How many.
        count: u64,
        /// End of the packet before, or begin of the first, ticks.
        begin: u64,
        /// End of this packet, ticks.
        end: u64,
    },
    /// Packets are missing before this one.
    #[error("has number {found} where {expected} was expected")]
    SequenceGap {
        /// One more than the packet before.
        expected: u64,
        /// `packet_seq_num`.
        found: u64,
    },
    /// `events_discarded` is lower than in the packet before.
    #[error("counts fewer discarded events than the packet before")]
    DiscardedDecreases,
    /// The packet begins before the one in front of it ends.
    #[error("begins before the packet in front of it ends")]
    Overlap,
    /// The stream ends within the packet. What was complete has been read.
    #[error("is cut off: {present_bytes} of {expected_bytes} bytes")]
    CutOff {
        /// Bytes there.
        present_bytes: u64,
        /// `packet_size`, or the header's size where even that is cut off.
        expected_bytes: u64,
    },
    /// No packet header.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// Packets that do not belong here, one behind the other. Their sizes are sound, so reading goes on behind them.
    #[error("{why}; {}", left_out(*count))]
    LeftOut {
        /// Why.
        why: Foreign,
        /// How many, the first included.
        count: u64,
    },
    /// The file has become shorter since it was opened. What was read before has been given.
    #[error("cannot be read: the file was shortened from {expected_bytes} to {present_bytes} bytes meanwhile")]
    Shortened {
        /// Bytes there.
        present_bytes: u64,
        /// Bytes that were there when it was opened.
        expected_bytes: u64,
    },
    /// The bytes cannot be had.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::ErrorKind),
    /// `timestamp_end` < `timestamp_begin`.
    #[error("ends before it begins")]
    Times,
    /// A record is none, or none of the packet's.
    #[error("is damaged at its byte {record_offset_bytes}: {error}")]
    Record {
        /// Where the record starts, from the packet's start.
        record_offset_bytes: u64,
        /// What is wrong.
        error: RecordError,
    },
}

/// Why a packet does not belong to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// Another trace's.
    #[error("belongs to another trace: its uuid is not that of the metadata")]
    Uuid,
    /// A stream id that the metadata do not declare.
    #[error("has the stream id {0}, which the metadata do not declare")]
    StreamId(u32),
    /// A stream holds packets of one processor, one instance and one kind.
    #[error("belongs to another stream: its {0} is not that of the packet before")]
    Changed(&'static str),
}

fn left_out(count: u64) -> String {
    match count {
        1 => "it is left out".into(),
        _ => format!("it is left out, and so are {} behind it", count - 1),
    }
}

/// Where the bytes of a stream come from.
pub trait Source {
    /// How many there are, or were when the stream was opened.
    fn size_bytes(&self) -> u64;

    /// Those from `offset` on: at least `size_bytes_min`, unless the end comes before, and as many more as are at hand.
    /// `offset` is below [`Source::size_bytes`]; where the end has come nearer since, there may be none.
    ///
    /// # Errors
    /// What the system says.
    fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]>;

    /// What the last [`Source::fetch`] has given, from `offset` on.
    fn fetched(&self, offset: u64) -> &[u8];
}

impl Source for &[u8] {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }
    fn fetch(&mut self, offset: u64, _: usize) -> std::io::Result<&[u8]> {
        Ok(&self[offset as usize..])
    }
    fn fetched(&self, offset: u64) -> &[u8] {
        &self[offset as usize..]
    }
}

/// An event, borrowed from its stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'a> {
    /// The stream, as [`StreamReader::new`] was told.
    pub stream: usize,
    /// Ticks of the trace's clock.
    pub timestamp: u64,
    /// Names and fields.
    pub class: &'a Class,
    /// The packet's processor, or `CPU_UNKNOWN`.
    pub cpu_id: u32,
    /// `vpid` and `vtid`; `None` in the state stream, and in traces whose records have no context.
    pub context: Option<(u32, u32)>,
    /// Bytes of the record, header included.
    pub size_bytes: usize,
    /// The fields, validated against `class`.
    payload: &'a [u8],
}

impl<'a> Event<'a> {
    /// Whether it is the session owner's, in the state stream.
    pub fn is_state(&self) -> bool {
        self.class.id > CLASS_ID_MAX
    }

    /// Names and values of the fields, in their order.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let mut rest = self.payload;
        self.class.decl.fields.iter().map_while(move |(name, field_type)| {
            let (field, tail) = rest.split_at_checked(field_size(*field_type, rest).ok()?)?;
            rest = tail;
            Some((name.as_str(), Value::decode(*field_type, field)))
        })
    }
}

impl<'a> StateRecord<'a> {
    /// Reads an event of the state stream; `None` for every other event, and where text is not UTF-8.
    pub fn decode(event: &Event<'a>) -> Option<StateRecord<'a>> {
        StateRecord::of_fields(event.class.id, event.fields().map(|(_, value)| value))
    }
}

/// A record's time, as its header has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Time {
    /// So many low bits of it.
    Low(u64, u32),
    Full(u64),
}

impl Time {
    /// The time, that of the record before being `before`; `None` if there is none.
    fn after(self, before: u64) -> Option<u64> {
        match self {
            Time::Low(low, bits) => extend(before, low, bits),
            Time::Full(timestamp) => (timestamp >= before).then_some(timestamp),
        }
    }
}

/// A record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    id: u16,
    time: Time,
    context: Option<(u32, u32)>,
    size_bytes: usize,
}

impl Head {
    /// The header at the start of `bytes`, if all of it is there.
    #[inline(always)]
    fn read(bytes: &[u8], stream_id: u32, kind: RecordKind) -> Option<Head> {
        let two_words = |size_bytes: usize| {
            let header = bytes.get(..size_bytes)?;
            let head = u64_at(header, 0);
            let context = (size_bytes == 16).then(|| (u32_at(header, 8), u32_at(header, 12)));
            Some(Head { id: head as u16, time: Time::Low(head >> 16, TIMESTAMP_BITS), context, size_bytes })
        };
        match (stream_id, kind) {
            (STREAM_EVENTS, RecordKind::Ids) => two_words(record::HEADER_SIZE_BYTES),
            (STREAM_EVENTS, RecordKind::Compact) => Head::read_without_context(bytes),
            _ => two_words(8),
        }
    }

    fn read_without_context(bytes: &[u8]) -> Option<Head> {
        let (id, time, size_bytes) = if *bytes.first()? == record::EXTENDED {
            let header = bytes.get(..record::EXTENDED_HEADER_SIZE_BYTES)?;
            (u16_at(header, 1), Time::Full(u64_at(header, 3)), header.len())
        } else {
            let header = bytes.get(..record::COMPACT_HEADER_SIZE_BYTES)?;
            (header[0].into(), Time::Low(u32_at(header, 1).into(), record::COMPACT_TIMESTAMP_BITS), header.len())
        };
        Some(Head { id, time, context: None, size_bytes })
    }
}

struct Record<'a> {
    class: &'a Class,
    time: Time,
    context: Option<(u32, u32)>,
    header_size_bytes: usize,
    size_bytes: usize,
}

/// Reads the record at the start of `bytes`, which end where the packet's content ends.
fn read_record<'a>(bytes: &[u8], stream_id: u32, classes: &'a Classes) -> Result<Record<'a>, RecordError> {
    let head = Head::read(bytes, stream_id, classes.record_kind()).ok_or(RecordError::HeaderCut)?;
    let rest = &bytes[head.size_bytes..];
    let class = classes.get(stream_id, head.id).ok_or(RecordError::UnknownClass(head.id))?;
    let size = match class.fixed_size_bytes {
        Some(size) if size <= rest.len() => size,
        _ => fields_size(&class.decl.fields, rest)?,
    };
    let Head { time, context, size_bytes: header_size_bytes, .. } = head;
    Ok(Record { class, time, context, header_size_bytes, size_bytes: header_size_bytes + size })
}

fn fields_size(fields: &[(String, FieldType)], bytes: &[u8]) -> Result<usize, RecordError> {
    fields.iter().enumerate().try_fold(0, |offset, (index, (_, field_type))| {
        let size = field_size(*field_type, &bytes[offset..]).map_err(|error| RecordError::Field(index, error))?;
        Ok(offset + size)
    })
}

/// Counts the records of a page whose header need not be filled in yet: a page of an event stream with
/// `content_size_bytes` of header and records, of which no more is read than the page holds.
///
/// # Errors
/// The offset from the page's start of the first bytes that are no record, and why. Records before it are whole.
pub fn count_records(page: &[u8], content_size_bytes: usize, classes: &Classes) -> Result<u64, (usize, RecordError)> {
    let content = &page[..content_size_bytes.min(page.len())];
    let (mut offset, mut count) = (HEADER_SIZE_BYTES, 0);
    while offset < content.len() {
        offset += record_size_bytes(&content[offset..], classes).map_err(|error| (offset, error))?;
        count += 1;
    }
    Ok(count)
}

/// Size of the record at the start of `rest`.
fn record_size_bytes(rest: &[u8], classes: &Classes) -> Result<usize, RecordError> {
    // Most records need no more than a look at their id: their size is that of their class.
    let id = match classes.record_kind() {
        RecordKind::Ids => rest.first_chunk::<2>().map(|id| u16::from_le_bytes(*id)),
        RecordKind::Compact => rest.first().filter(|id| **id != record::EXTENDED).map(|id| (*id).into()),
    };
    match id.and_then(|id| classes.record_size_bytes(id)) {
        Some(size_bytes) if size_bytes <= rest.len() => Ok(size_bytes),
        _ => Ok(read_record(rest, STREAM_EVENTS, classes)?.size_bytes),
    }
}

/// Offset and timestamp of a page's first record that is not earlier than `earliest`, if there is one. The page is as for
/// [`count_records`] and begins at `timestamp_begin`.
///
/// # Errors
/// As [`count_records`], for records up to that one.
pub fn first_record_since(
    page: &[u8],
    content_size_bytes: usize,
    classes: &Classes,
    timestamp_begin: u64,
    earliest: u64,
) -> Result<Option<(usize, u64)>, (usize, RecordError)> {
    let content = &page[..content_size_bytes.min(page.len())];
    let mut offset = HEADER_SIZE_BYTES;
    let mut timestamp = timestamp_begin;
    let read = |offset: usize| Head::read(content.get(offset..)?, STREAM_EVENTS, classes.record_kind());
    while let Some(head) = read(offset) {
        // After the last moment that there is, none is earlier. A time that goes back is one for whoever reads the packet.
        timestamp = head.time.after(timestamp).unwrap_or(u64::MAX);
        if timestamp >= earliest {
            return Ok(Some((offset, timestamp)));
        }
        offset += record_size_bytes(&content[offset..], classes).map_err(|error| (offset, error))?;
    }
    Ok(None)
}

/// No record is longer than a page, and no page nearly as long. A sparse file can claim any length.
const RECORD_SIZE_BYTES_MAX: usize = 64 << 20;

/// What a reader stands in. Offsets are from the stream's start.
#[derive(Debug, Clone, Copy)]
struct Packet {
    header: PacketHeader,
    /// Of the next record.
    offset: u64,
    /// Where the content ends, or what is there of it.
    content_end: u64,
    /// Time of the record before.
    timestamp: u64,
    /// Bytes of the packet that are there, if not all.
    cut_bytes: Option<u64>,
}

/// The record that a reader has come to.
#[derive(Debug, Clone, Copy)]
struct Current<'a> {
    timestamp: u64,
    class: &'a Class,
    context: Option<(u32, u32)>,
    cpu_id: u32,
    /// From the stream's start.
    payload_offset: u64,
    header_size_bytes: usize,
    size_bytes: usize,
}

impl<'a> Current<'a> {
    /// The event. `rest` are the stream's bytes from the payload on.
    fn event<'b>(&self, stream: usize, rest: &'b [u8]) -> Event<'b>
    where
        'a: 'b,
    {
        let Current { timestamp, class, context, cpu_id, header_size_bytes, size_bytes, .. } = *self;
        Event {
            stream,
            timestamp,
            class,
            cpu_id,
            context,
            size_bytes,
            payload: &rest[..size_bytes - header_size_bytes],
        }
    }
}

/// Events of one stream with the notices between them: an iterator where the stream is a slice, otherwise by way of
/// [`crate::Merge`].
#[derive(Debug, Clone)]
pub struct StreamReader<'a, S = &'a [u8]> {
    metadata: &'a Metadata,
    stream: usize,
    source: S,
    /// Nothing is read from here on.
    end: u64,
    /// Offset and index of the packet after the current one.
    next: (u64, u64),
    /// Of the current one, or of the one that just failed.
    at: (u64, u64),
    packet: Option<Packet>,
    current: Option<Current<'a>>,
    /// Header of the last packet that was opened.
    last: Option<PacketHeader>,
    /// So far; without the stream's identity, which `last` has.
    totals: StreamTotals,
    /// Notices about the header of the current packet, last one first.
    notices: Vec<Problem>,
}

impl<'a> StreamReader<'a> {
    /// Reads the bytes of a stream file. `stream` is a number of the caller's choice, which events and notices carry.
    pub fn new(metadata: &'a Metadata, stream: usize, bytes: &'a [u8]) -> StreamReader<'a> {
        StreamReader::of_source(metadata, stream, bytes)
    }

    /// As [`StreamReader::event`], for as long as the slice.
    pub(crate) fn event_of_slice(&self) -> Option<Event<'a>> {
        let (bytes, current) = (self.source, self.current?);
        Some(current.event(self.stream, &bytes[current.payload_offset as usize..]))
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// As [`StreamReader::new`], of bytes that come piece by piece.
    pub fn of_source(metadata: &'a Metadata, stream: usize, source: S) -> StreamReader<'a, S> {
        StreamReader {
            metadata,
            stream,
            end: source.size_bytes(),
            source,
            next: (0, 0),
            at: (0, 0),
            packet: None,
            current: None,
            last: None,
            totals: StreamTotals::default(),
            notices: Vec::new(),
        }
    }

    /// Bytes of the stream.
    pub fn size_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    /// The identity of a stream that nobody has read yet: that of its first packet which belongs to the trace.
    pub fn identity_of(metadata: &'a Metadata, source: S) -> Option<(u32, u32)> {
        let mut reader = StreamReader::of_source(metadata, 0, source);
        while reader.last.is_none() {
            // What is wrong with a packet is told by whoever reads it.
            let _ = reader.open()?;
        }
        reader.totals().map(|totals| totals.identity())
    }

    /// What the stream held as far as it has been read; `None` before the first packet.
    pub fn totals(&self) -> Option<StreamTotals> {
        let PacketHeader { stream_id, stream_instance_id, .. } = self.last?;
        Some(StreamTotals { stream_id, stream_instance_id, ..self.totals })
    }

    fn notice(&self, problem: Problem) -> Notice {
        let (offset_bytes, packet) = self.at;
        Notice { stream: self.stream, packet, offset_bytes, problem }
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
            let cut = self.packet.take().and_then(|packet| Some((packet.cut_bytes?, packet.header)));
            if let Some((present_bytes, header)) = cut {
                let expected_bytes = header.packet_size_bytes;
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
        Some(current.event(self.stream, self.source.fetched(current.payload_offset)))
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
            let header = self.next_header();
            let foreign = header.ok().and_then(|header| self.why_foreign(&header));
            match (foreign, &mut left_out) {
                (None, None) => return header.map(|header| self.open_with(header)),
                (Some(why), None) => left_out = Some((why, 1)),
                (Some(why), Some((first, count))) if why == *first => *count += 1,
                _ => break,
            }
            header.map(|header| self.pass(&header))?;
        }
        left_out.map_or(Ok(()), |(why, count)| Err(Problem::LeftOut { why, count }))
    }

    fn next_header(&mut self) -> Result<PacketHeader, Problem> {
        let (offset, size_bytes) = (self.next.0, self.source.size_bytes());
        let present_bytes = self.end - offset;
        let bytes = self.source.fetch(offset, HEADER_SIZE_BYTES).map_err(unreadable)?;
        match PacketHeader::decode(bytes) {
            Err(HeaderError::Short) if present_bytes > bytes.len() as u64 => Err(shortened(offset, bytes, size_bytes)),
            Err(HeaderError::Short) => Err(Problem::CutOff { present_bytes, expected_bytes: HEADER_SIZE_BYTES as u64 }),
            header => Ok(header?),
        }
    }

    fn why_foreign(&self, header: &PacketHeader) -> Option<Foreign> {
        if header.uuid != self.metadata.options.uuid {
            return Some(Foreign::Uuid);
        }
        if !matches!(header.stream_id, STREAM_EVENTS | STREAM_STATE) {
            return Some(Foreign::StreamId(header.stream_id));
        }
        let last = self.last?;
        let pairs = [
            ("stream_id", last.stream_id, header.stream_id),
            ("stream_instance_id", last.stream_instance_id, header.stream_instance_id),
            ("cpu_id", last.cpu_id, header.cpu_id),
        ];
        pairs.into_iter().find(|(_, before, now)| before != now).map(|(name, ..)| Foreign::Changed(name))
    }

    /// Goes behind the packet with this header, and gives how many bytes of it are there.
    fn pass(&mut self, header: &PacketHeader) -> u64 {
        let (offset, index) = self.next;
        let present_bytes = header.packet_size_bytes.min(self.end - offset);
        self.next = (offset + present_bytes, index + 1);
        present_bytes
    }

    fn open_with(&mut self, header: PacketHeader) {
        if let Some(last) = self.last {
            if header.timestamp_begin < last.timestamp_end {
                self.notices.push(Problem::Overlap);
            }
            if header.events_discarded < last.events_discarded {
                self.notices.push(Problem::DiscardedDecreases);
            }
            let expected = last.packet_seq_num.wrapping_add(1);
            if header.packet_seq_num != expected {
                self.notices.push(Problem::SequenceGap { expected, found: header.packet_seq_num });
            }
        }
        if header.events_discarded > self.totals.events_discarded {
            self.notices.push(Problem::Discarded {
                count: header.events_discarded - self.totals.events_discarded,
                begin: self.last.map_or(header.timestamp_begin, |last| last.timestamp_end),
                end: header.timestamp_end,
            });
            self.totals.events_discarded = header.events_discarded;
        }
        let times_valid = header.timestamp_begin <= header.timestamp_end;
        if !times_valid {
            self.notices.push(Problem::Times);
        }
        self.notices.reverse();
        self.last = Some(header);
        self.totals.packets += 1;
        let present_bytes = self.pass(&header);
        let content_end = self.at.0 + header.content_size_bytes.min(present_bytes);
        self.packet = Some(Packet {
            header,
            // Records of a packet without a valid time have none either.
            offset: if times_valid { self.at.0 + HEADER_SIZE_BYTES as u64 } else { content_end },
            content_end,
            timestamp: header.timestamp_begin,
            cut_bytes: (header.packet_size_bytes > present_bytes).then_some(present_bytes),
        });
    }

    /// Goes to the next event of the current packet, and gives its time; `None` at the packet's end.
    fn next_record(&mut self) -> Option<Result<u64, Problem>> {
        let packet = self.packet.as_mut()?;
        let rest_bytes = packet.content_end.checked_sub(packet.offset).filter(|rest| *rest > 0)?;
        let record_offset_bytes = packet.offset - self.at.0;
        let (stream_size_bytes, mut size_bytes_min) = (self.source.size_bytes(), 1);
        let record = loop {
            let fetched = self.source.fetch(packet.offset, size_bytes_min).map_err(unreadable);
            let read = fetched.and_then(|bytes| {
                let all = bytes.get(..rest_bytes.try_into().unwrap_or(usize::MAX));
                match read_record(all.unwrap_or(bytes), packet.header.stream_id, &self.metadata.classes) {
                    // Most likely there is more of it.
                    Err(error)
                        if all.is_none()
                            && bytes.len() < RECORD_SIZE_BYTES_MAX
                            && !matches!(error, RecordError::UnknownClass(_)) =>
                    {
                        let problem = shortened(packet.offset, bytes, stream_size_bytes);
                        let is_short = bytes.len() < size_bytes_min;
                        size_bytes_min = 2 * bytes.len();
                        if is_short { Err(problem) } else { Ok(None) }
                    }
                    read => Ok(Some(read)),
                }
            });
            match read {
                Ok(None) => continue,
                Ok(Some(Ok(record))) => break record,
                Ok(Some(Err(error))) => {
                    packet.offset = packet.content_end;
                    // The last record of a packet that is cut off is cut off too, which is not worth a second notice.
                    let expected = packet.cut_bytes.is_some() && !matches!(error, RecordError::UnknownClass(_));
                    return (!expected).then_some(Err(Problem::Record { record_offset_bytes, error }));
                }
                Err(problem) => {
                    // There is nothing further behind.
                    self.end = 0;
                    self.packet = None;
                    return Some(Err(problem));
                }
            }
        };
        let Record { class, time, context, header_size_bytes, size_bytes } = record;
        match time.after(packet.timestamp) {
            Some(timestamp) if timestamp <= packet.header.timestamp_end => packet.timestamp = timestamp,
            timestamp => {
                packet.offset = packet.content_end;
                let is_earlier = timestamp.is_none() && matches!(time, Time::Full(_));
                let error = if is_earlier { RecordError::Older } else { RecordError::Younger };
                return Some(Err(Problem::Record { record_offset_bytes, error }));
            }
        }
        self.current = Some(Current {
            timestamp: packet.timestamp,
            class,
            context,
            cpu_id: packet.header.cpu_id,
            payload_offset: packet.offset + header_size_bytes as u64,
            header_size_bytes,
            size_bytes,
        });
        packet.offset += size_bytes as u64;
        self.totals.events += 1;
        Some(Ok(packet.timestamp))
    }
}

fn unreadable(error: std::io::Error) -> Problem {
    Problem::Unreadable(error.kind())
}

/// `bytes` are all that is there from `offset` on.
fn shortened(offset: u64, bytes: &[u8], expected_bytes: u64) -> Problem {
    Problem::Shortened { present_bytes: offset + bytes.len() as u64, expected_bytes }
}

/// The first time at or after `before` whose low `bits` bits are `low`.
fn extend(before: u64, low: u64, bits: u32) -> Option<u64> {
    let span = 1u64 << bits;
    let timestamp = before & !(span - 1) | low;
    if timestamp >= before { Some(timestamp) } else { timestamp.checked_add(span) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;
    use dormouse_abi::class::Kind;
    use dormouse_abi::page::*;

    /// Three packets of 4096 bytes with five events each.
    fn stream() -> (Metadata, Vec<u8>) {
        let mut trace = TraceBuilder::new();
        let class = trace.class("p", "e", &[("n", FieldType::scalar(Kind::U32)), ("s", FieldType::scalar(Kind::Str))]);
        let stream = trace.stream(0);
        for n in 0..15u32 {
            trace.event(stream, 100 + u64::from(n), 1, 2, class, &[Value::U32(n), Value::Str(b"abc")]);
            if n % 5 == 4 {
                trace.packet(stream, 4096, 0);
            }
        }
        let trace = trace.finish();
        (trace.parse(), trace.streams.into_iter().next_back().unwrap())
    }

    const RECORD_SIZE_BYTES: usize = 16 + 4 + 4;

    /// Numbers of the events, and the notices.
    fn read(metadata: &Metadata, bytes: &[u8]) -> (Vec<u32>, Vec<String>) {
        let (mut numbers, mut notices) = (vec![], vec![]);
        for item in StreamReader::new(metadata, 0, bytes) {
            match item {
                Ok(event) => match event.fields().next() {
                    Some((_, Value::U32(number))) => numbers.push(number),
                    other => panic!("{other:?}"),
                },
                Err(notice) => notices.push(notice.to_string()),
            }
        }
        (numbers, notices)
    }

    #[test]
    fn a_stream_that_is_cut_off_gives_what_is_complete_and_says_so() {
        let (metadata, bytes) = stream();
        assert_eq!(read(&metadata, &bytes), ((0..15).collect(), vec![]));
        let cut = |len: usize| read(&metadata, &bytes[..len]);
        assert_eq!(cut(0), (vec![], vec![]));
        assert_eq!(cut(8192), ((0..10).collect(), vec![]));
        assert_eq!(
            cut(8192 + 12),
            ((0..10).collect(), vec!["packet 2 at byte 8192 is cut off: 12 of 80 bytes".to_string()])
        );
        let two = 8192 + 80 + 2 * RECORD_SIZE_BYTES;
        for (len, count) in [(two - 1, 11), (two, 12), (two + 1, 12), (two + 8, 12), (two + 20, 12), (8192 + 4095, 15)]
        {
            let notice = format!("packet 2 at byte 8192 is cut off: {} of 4096 bytes", len - 8192);
            assert_eq!(cut(len), ((0..count).collect(), vec![notice]), "{len}");
        }
    }

    #[test]
    fn damage_costs_a_packet_and_names_its_place() {
        let (metadata, bytes) = stream();
        let with = |offset: usize, patch: &[u8]| {
            let mut bytes = bytes.clone();
            bytes[offset..offset + patch.len()].copy_from_slice(patch);
            read(&metadata, &bytes)
        };
        let without = |range: std::ops::Range<u32>| (0..15).filter(|n| !range.contains(n)).collect::<Vec<_>>();
        let second = 4096 + 80 + RECORD_SIZE_BYTES;
        let at = "packet 1 at byte 4096";
        for (offset, patch, numbers, notice) in [
            (
                second,
                &[9u8][..],
                without(6..10),
                "is damaged at its byte 104: a record has the class id 9, which the metadata do not declare",
            ),
            (second + 2, &[0], without(6..10), "is damaged at its byte 104: a record is younger than the packet's end"),
            (4096, &[0], without(5..15), "does not start with the magic of CTF but with 0xc1fc1f00"),
            (
                4096 + OFFSET_UUID,
                &[0],
                without(5..10),
                "belongs to another trace: its uuid is not that of the metadata; it is left out",
            ),
            (
                4096 + OFFSET_STREAM_ID,
                &[2],
                without(5..10),
                "has the stream id 2, which the metadata do not declare; it is left out",
            ),
            (
                4096 + OFFSET_STREAM_ID,
                &[1],
                without(5..10),
                "belongs to another stream: its stream_id is not that of the packet before; it is left out",
            ),
            (
                4096 + OFFSET_CPU_ID,
                &[1],
                without(5..10),
                "belongs to another stream: its cpu_id is not that of the packet before; it is left out",
            ),
            (
                4096 + OFFSET_CONTENT_SIZE,
                &[1],
                without(5..15),
                "has a size of 1537 bits, which is no whole number of bytes",
            ),
            (4096 + OFFSET_TIMESTAMP_END, &[0], without(5..10), "ends before it begins"),
            (4096 + OFFSET_TIMESTAMP_BEGIN, &[0], without(0..0), "begins before the packet in front of it ends"),
        ] {
            // Bytes that happen to hold the value already would prove nothing.
            assert_ne!(&bytes[offset..offset + patch.len()], patch);
            let (found, notices) = with(offset, patch);
            assert_eq!(notices.first(), Some(&format!("{at} {notice}")), "{notices:?}");
            assert_eq!(found, numbers, "{notice}");
        }
        let (numbers, notices) = with(4096 + OFFSET_SEQ, &[4]);
        assert_eq!(numbers.len(), 15);
        assert_eq!(
            notices,
            [
                format!("{at} has number 4 where 1 was expected"),
                "packet 2 at byte 8192 has number 2 where 5 was expected".into()
            ]
        );
        let (numbers, notices) = with(4096 + OFFSET_DISCARDED, &[3]);
        assert_eq!(numbers.len(), 15);
        assert_eq!(
            notices,
            [
                format!("{at} tells of 3 discarded events"),
                "packet 2 at byte 8192 counts fewer discarded events than the packet before".into()
            ]
        );
    }

    #[test]
    fn packets_that_do_not_belong_here_are_told_of_once_and_left_out() {
        let (metadata, bytes) = stream();
        let mut odd = bytes.clone();
        for packet in [0, 1] {
            odd[4096 * packet + OFFSET_UUID] ^= 1;
        }
        odd[4096 * 2 + OFFSET_UUID] = odd[OFFSET_UUID];
        let foreign = "belongs to another trace: its uuid is not that of the metadata; it is left out";
        let all = format!("packet 0 at byte 0 {foreign}, and so are 2 behind it");
        assert_eq!(read(&metadata, &odd), (vec![], vec![all]));
        odd[4096 * 2..].copy_from_slice(&bytes[4096 * 2..]);
        let two = format!("packet 0 at byte 0 {foreign}, and so are 1 behind it");
        assert_eq!(read(&metadata, &odd), ((10..15).collect(), vec![two.clone()]));
        // One that is another's for another reason, and one that is none, are told of by themselves.
        odd[4096 * 2 + OFFSET_STREAM_ID] = 2;
        let other = "packet 2 at byte 8192 has the stream id 2, which the metadata do not declare; it is left out";
        assert_eq!(read(&metadata, &odd), (vec![], vec![two.clone(), other.into()]));
        odd[4096 * 2] = 0;
        let none = "packet 2 at byte 8192 does not start with the magic of CTF but with 0xc1fc1f00";
        assert_eq!(read(&metadata, &odd), (vec![], vec![two, none.into()]));
        // Its size leads out of the stream.
        let mut odd = bytes.clone();
        odd[4096 + OFFSET_UUID] ^= 1;
        odd[4096 + OFFSET_PACKET_SIZE + 4] = 1;
        let at = format!("packet 1 at byte 4096 {foreign}");
        assert_eq!(read(&metadata, &odd), ((0..5).collect(), vec![at]));
    }

    /// Gives no more than it is asked for, and counts the bytes.
    #[derive(Debug)]
    struct Stingy<'a> {
        bytes: &'a [u8],
        /// It was as long when it was opened.
        size_bytes: u64,
        window: std::ops::Range<usize>,
    }

    impl Source for Stingy<'_> {
        fn size_bytes(&self) -> u64 {
            self.size_bytes
        }
        fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]> {
            let (begin, end) = (offset as usize, offset as usize + size_bytes_min);
            self.window = begin.min(self.bytes.len())..end.min(self.bytes.len());
            Ok(&self.bytes[self.window.clone()])
        }
        fn fetched(&self, offset: u64) -> &[u8] {
            &self.bytes[offset as usize..self.window.end]
        }
    }

    fn read_stingily(metadata: &Metadata, bytes: &[u8], size_bytes: u64) -> (Vec<u32>, Vec<String>) {
        let (mut numbers, mut notices) = (vec![], vec![]);
        let source = Stingy { bytes, size_bytes, window: 0..0 };
        let mut merge = crate::Merge::new([StreamReader::of_source(metadata, 0, source)]);
        while let Some(item) = merge.next_event() {
            match item.map(|event| event.fields().next()) {
                Ok(Some((_, Value::U32(number)))) => numbers.push(number),
                Ok(other) => panic!("{other:?}"),
                Err(notice) => notices.push(notice.to_string()),
            }
        }
        (numbers, notices)
    }

    #[test]
    fn piece_by_piece_the_same_is_read() {
        let (metadata, bytes) = stream();
        for len in 0..bytes.len() {
            assert_eq!(read_stingily(&metadata, &bytes[..len], len as u64), read(&metadata, &bytes[..len]), "{len}");
        }
        let mut random = 1u64;
        for _ in 0..2000 {
            let mut odd = bytes.clone();
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Where something is.
                let (packet, offset) =
                    ((random >> 33) as usize % 3, (random >> 40) as usize % (80 + 5 * RECORD_SIZE_BYTES));
                odd[4096 * packet + offset] = (random >> 56) as u8;
            }
            assert_eq!(read_stingily(&metadata, &odd, odd.len() as u64), read(&metadata, &odd));
        }
    }

    #[test]
    fn a_stream_that_is_shortened_meanwhile_gives_what_was_there_and_says_so() {
        let (metadata, bytes) = stream();
        let shortened = |len: usize| read_stingily(&metadata, &bytes[..len], bytes.len() as u64);
        let notice = |at: &str, len: usize| {
            vec![format!("{at} cannot be read: the file was shortened from 12288 to {len} bytes meanwhile")]
        };
        assert_eq!(shortened(0), (vec![], notice("packet 0 at byte 0", 0)));
        assert_eq!(shortened(4096), ((0..5).collect(), notice("packet 1 at byte 4096", 4096)));
        let len = 4096 + 80 + 2 * RECORD_SIZE_BYTES + 1;
        assert_eq!(shortened(len), ((0..7).collect(), notice("packet 1 at byte 4096", len)));
        // Nothing but padding is gone.
        assert_eq!(shortened(8192 + 80 + 5 * RECORD_SIZE_BYTES), ((0..15).collect(), vec![]));
    }

    /// A file of 2^40 bytes, nearly all of them zeroes that no disk holds.
    struct Sparse {
        head: Vec<u8>,
        bytes: Vec<u8>,
        offset: u64,
    }

    impl Source for Sparse {
        fn size_bytes(&self) -> u64 {
            1 << 40
        }
        fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]> {
            assert!(size_bytes_min <= 2 * RECORD_SIZE_BYTES_MAX);
            self.bytes = self.head.get(offset as usize..).unwrap_or_default().to_vec();
            self.bytes.resize(size_bytes_min.max(4096), 0);
            self.offset = offset;
            Ok(&self.bytes)
        }
        fn fetched(&self, offset: u64) -> &[u8] {
            &self.bytes[(offset - self.offset) as usize..]
        }
    }

    #[test]
    fn a_record_that_claims_to_be_larger_than_memory_is_not_waited_for() {
        let mut trace = TraceBuilder::new();
        let class = trace.class("p", "e", &[("n", FieldType::sequence(Kind::U64))]);
        let stream = trace.stream(0);
        trace.event(stream, 0, 1, 2, class, &[Value::Sequence(crate::Sequence::new(Kind::U64, &[]).unwrap())]);
        let trace = trace.finish();
        let metadata = trace.parse();
        let mut head = trace.streams.into_iter().next_back().unwrap();
        for offset in [OFFSET_CONTENT_SIZE, OFFSET_PACKET_SIZE] {
            head[offset..offset + 8].copy_from_slice(&(8u64 << 40).to_le_bytes());
        }
        head[80 + 16..].fill(0xFF);
        let mut reader = StreamReader::of_source(&metadata, 0, Sparse { head, bytes: vec![], offset: 0 });
        let problem = reader.advance().unwrap().unwrap_err().problem;
        let error = RecordError::Field(0, FieldError::Count(u32::MAX));
        assert_eq!(problem, Problem::Record { record_offset_bytes: 80, error });
        assert!(reader.advance().is_none());
    }

    #[test]
    fn counting_needs_no_header() {
        let (metadata, mut bytes) = stream();
        let content = 80 + 5 * RECORD_SIZE_BYTES;
        bytes[..80].fill(0xff);
        let count = |size| count_records(&bytes[..4096], size, &metadata.classes);
        assert_eq!(count(content), Ok(5));
        assert_eq!(count(80), Ok(0));
        assert_eq!(count(0), Ok(0));
        assert_eq!(
            count(content - 1),
            Err((content - RECORD_SIZE_BYTES, RecordError::Field(1, FieldError::Unterminated)))
        );
        assert_eq!(count(content - 5), Err((content - RECORD_SIZE_BYTES, RecordError::Field(0, FieldError::Cut))));
        assert_eq!(count(content + 1), Err((content, RecordError::HeaderCut)));
    }

    #[test]
    fn low_bits_extend_to_the_first_time_not_before() {
        let span = 1u64 << 48;
        assert_eq!(extend(5, 5, 48), Some(5));
        assert_eq!(extend(5, 4, 48), Some(span + 4));
        assert_eq!(extend(3 * span - 1, 0, 48), Some(3 * span));
        assert_eq!(extend(3 * span - 1, 0, 32), Some(3 * span));
        assert_eq!(extend(3 * span, 7, 32), Some(3 * span + 7));
        assert_eq!(extend(u64::MAX, 0, 48), None);
    }
}
