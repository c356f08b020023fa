//! Synthesises traces, for tests of readers. `dormouse_ctf` compiles this file into its own tests too.
//!
//! ```
//! use dormouse_abi::class::{FieldType, Kind};
//! use dormouse_ctf::Value;
//! use dormouse_traces::TraceBuilder;
//!
//! let mut builder = TraceBuilder::new();
//! let request = builder.class("http", "request", &[("id", FieldType::scalar(Kind::U64))]);
//! let cpu0 = builder.stream(0);
//! builder.event(cpu0, 1_000, 12, 13, request, &[Value::U64(7)]);
//! let trace = builder.finish();
//!
//! let metadata = trace.parse();
//! let event = trace.readers(&metadata).next().unwrap().unwrap();
//! assert_eq!(event.class.full_name, "http:request");
//! assert_eq!(event.fields().collect::<Vec<_>>(), [("id", Value::U64(7))]);
//! ```

mod ctf2;

pub use ctf2::write_ctf2;

mod bits;

pub use bits::BitWriter;

use dormouse_abi::class::{ClassDecl, FieldType, Labels};
use dormouse_abi::page::{CPU_UNKNOWN, HEADER_SIZE_BYTES, STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::{
    COMPACT_ID_MAX, COMPACT_TIMESTAMP_BITS, RecordKind, compact_header, context_word, extended_header, head_word,
};
use dormouse_ctf::{Merge, Metadata, StreamReader, Value};
use dormouse_format::{Clock, Format, MetadataOptions, PacketHeader, PacketWriter, StateRecord};

/// Builds a trace: a state stream, and any number of event streams.
#[derive(Debug)]
pub struct TraceBuilder {
    uuid: [u8; 16],
    kind: RecordKind,
    format: Format,
    metadata: String,
    class_count: u16,
    /// The streams, the state stream first.
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    writer: EventWriter,
    bytes: Vec<u8>,
    events_discarded: u64,
}

/// A synthesised trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Text of the metadata file.
    pub metadata: String,
    /// Bytes of each stream file, the state stream first. A stream without packets is empty.
    pub streams: Vec<Vec<u8>>,
}

impl Default for TraceBuilder {
    fn default() -> TraceBuilder {
        TraceBuilder::new()
    }
}

impl TraceBuilder {
    /// Returns a builder for a trace of host `lair` with a clock of nanoseconds that started at 1 700 000 000 s after
    /// the epoch.
    pub fn new() -> TraceBuilder {
        TraceBuilder::of_records(RecordKind::Ids)
    }

    /// Returns a builder like [`TraceBuilder::new`] whose event records are of this kind.
    pub fn of_records(record_kind: RecordKind) -> TraceBuilder {
        TraceBuilder::in_format(record_kind, Format::default())
    }

    /// Returns a builder like [`TraceBuilder::of_records`] whose metadata are in this format.
    pub fn in_format(record_kind: RecordKind, format: Format) -> TraceBuilder {
        TraceBuilder::with_options(MetadataOptions {
            uuid: *b"\x01\x23\x45\x67\x89\xab\xcd\xef\xfe\xdc\xba\x98\x76\x54\x32\x10",
            hostname: "lair".into(),
            clock: Clock {
                name: "monotonic".into(),
                description: "CLOCK_MONOTONIC".into(),
                frequency_hz: 1_000_000_000,
                offset_s: 1_700_000_000,
                offset_cycles: 0,
            },
            tracer_version: (0, 1),
            start_time_s: 1_700_000_000,
            record_kind,
            tags: Vec::new(),
            format,
        })
    }

    /// Returns a builder for a trace with the caller's options.
    pub fn with_options(options: MetadataOptions) -> TraceBuilder {
        let (uuid, kind, format) = (options.uuid, options.record_kind, options.format);
        let metadata = Metadata::new(options).preamble();
        let state =
            Stream { writer: EventWriter::new(uuid, STREAM_STATE, 0, CPU_UNKNOWN), bytes: vec![], events_discarded: 0 };
        TraceBuilder { uuid, kind, format, metadata, class_count: 0, streams: vec![state] }
    }

    /// Gives the next class this id, instead of the last id plus one.
    pub fn skip_to(&mut self, id: u16) {
        self.class_count = id;
    }

    /// Declares a class and returns its id; ids count from 0.
    pub fn class(&mut self, provider: &str, name: &str, fields: &[(&str, FieldType)]) -> u16 {
        self.labelled_class(provider, name, fields, Labels::new())
    }

    /// Declares a class with enumerations and returns its id.
    pub fn labelled_class(&mut self, provider: &str, name: &str, fields: &[(&str, FieldType)], labels: Labels) -> u16 {
        let fields = fields.iter().map(|(name, field_type)| (name.to_string(), *field_type)).collect();
        self.declare(&ClassDecl { provider: provider.into(), name: name.into(), fields, labels, level: None })
    }

    /// Declares a class and returns its id.
    pub fn declare(&mut self, decl: &ClassDecl) -> u16 {
        let id = self.class_count;
        self.class_count += 1;
        self.metadata += &self.format.class(id, decl);
        id
    }

    /// Starts an event stream and returns its index among all streams, which is also its instance id.
    pub fn stream(&mut self, cpu_id: u32) -> usize {
        let index = self.streams.len();
        let writer = EventWriter::new(self.uuid, STREAM_EVENTS, index as u32, cpu_id).of_records(self.kind);
        self.streams.push(Stream { writer, bytes: vec![], events_discarded: 0 });
        index
    }

    /// Appends an event, see [`EventWriter::push`].
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn event(&mut self, stream: usize, timestamp: u64, vpid: u32, vtid: u32, class: u16, values: &[Value<'_>]) {
        self.streams[stream].writer.push(timestamp, vpid, vtid, class, values);
    }

    /// Appends a record to the state stream, see [`PacketWriter::push`].
    pub fn state(&mut self, timestamp: u64, record: &StateRecord<'_>) {
        let mut alone = PacketWriter::state(self.uuid);
        alone.push(timestamp, record);
        let writer = &mut self.streams[0].writer;
        writer.pass(timestamp);
        writer.content.extend(&alone.finish()[HEADER_SIZE_BYTES..]);
    }

    /// Ends a stream's packet, padded to `size_bytes_min`, with the number of events lost since the previous packet.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn packet(&mut self, stream: usize, size_bytes_min: usize, discarded: u64) {
        let stream = &mut self.streams[stream];
        stream.events_discarded += discarded;
        stream.bytes.extend(stream.writer.finish(size_bytes_min, stream.events_discarded));
    }

    /// Ends every packet that has records, and the trace.
    pub fn finish(mut self) -> Trace {
        for index in 0..self.streams.len() {
            if self.streams[index].writer.span.is_some() {
                self.packet(index, 0, 0);
            }
        }
        Trace { metadata: self.metadata, streams: self.streams.into_iter().map(|stream| stream.bytes).collect() }
    }
}

impl Trace {
    /// Returns the trace with up to eight changes in the bytes of its streams and metadata, which need not be text any
    /// more. `random(n)` returns a number below n.
    pub fn mutated(&self, random: &mut impl FnMut(usize) -> usize) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (mut metadata, mut streams) = (self.metadata.clone().into_bytes(), self.streams.clone());
        for _ in 0..1 + random(8) {
            let stream = random(streams.len());
            let bytes = &mut streams[stream];
            let at = random(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
            match random(5) {
                0 => bytes[at] ^= 1 << random(8),
                1 => bytes[at] = random(256) as u8,
                2 => bytes.truncate(at),
                3 => {
                    let end = (at + 1 + random(8)).min(bytes.len());
                    bytes[at..end].fill(if random(2) == 0 { 0 } else { 0xFF });
                }
                _ if random(4) == 0 => {
                    let at = random(metadata.len());
                    metadata[at] ^= 1 << random(8);
                }
                _ => bytes.extend((0..random(64)).map(|_| random(256) as u8).collect::<Vec<_>>()),
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        (metadata, streams)
    }

    /// Writes it into an existing directory: `metadata`, and the streams as `state`, `cpu_0`, `cpu_1` and so on.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, dir: &std::path::Path) {
        std::fs::write(dir.join("metadata"), &self.metadata).expect("the metadata is written");
        for (index, bytes) in self.streams.iter().enumerate() {
            let name = index.checked_sub(1).map_or("state".into(), |cpu| format!("cpu_{cpu}"));
            std::fs::write(dir.join(name), bytes).expect("a stream is written");
        }
    }

    /// Returns the trace as a session closes it: the metadata have the streams' totals.
    ///
    /// # Panics
    /// If the metadata cannot be read.
    #[must_use]
    pub fn closed(mut self) -> Trace {
        let mut metadata = self.parse();
        for (index, bytes) in self.streams.iter().enumerate() {
            let mut reader = StreamReader::new(&metadata, index, bytes);
            reader.by_ref().for_each(drop);
            let totals = reader.totals();
            let name = index.checked_sub(1).map_or("state".into(), |cpu| format!("cpu_{cpu}"));
            metadata.totals.0.extend(totals.map(|totals| (name, totals)));
        }
        self.metadata = metadata.text();
        self
    }

    /// Parses the metadata.
    ///
    /// # Panics
    /// If they cannot be parsed.
    pub fn parse(&self) -> Metadata {
        Metadata::parse(&self.metadata).unwrap_or_else(|error| panic!("{error}\n{}", self.metadata))
    }

    /// Merges all streams.
    pub fn readers<'a>(&'a self, metadata: &'a Metadata) -> Merge<'a> {
        let streams = self.streams.iter().enumerate();
        Merge::new(streams.map(|(index, bytes)| StreamReader::new(metadata, index, bytes)))
    }
}

/// Writes the packets of one event stream, as programs do, one after another. A packet grows with its records, and is
/// only padded if [`EventWriter::finish`] is told to.
#[derive(Debug, Clone)]
pub struct EventWriter {
    header: PacketHeader,
    kind: RecordKind,
    /// Space for the header, then the records of the current packet.
    content: Vec<u8>,
    /// Times of the first and the last record of the current packet.
    span: Option<(u64, u64)>,
}

impl EventWriter {
    /// Starts a stream.
    pub fn new(uuid: [u8; 16], stream_id: u32, stream_instance_id: u32, cpu_id: u32) -> EventWriter {
        let header = PacketHeader::first(uuid, stream_id, stream_instance_id, cpu_id);
        EventWriter { header, kind: RecordKind::Ids, content: vec![0; HEADER_SIZE_BYTES], span: None }
    }

    /// Sets the kind of the stream's records.
    fn of_records(self, kind: RecordKind) -> EventWriter {
        EventWriter { kind, ..self }
    }

    /// Appends a record. `timestamp` is in ticks; timestamps of a stream must not decrease. The values must match the
    /// fields that the class with this id declares. If records have no context, the process and thread ids are not
    /// written, and a record is compact if a reader can reconstruct its time.
    pub fn push(&mut self, timestamp: u64, vpid: u32, vtid: u32, id: u16, values: &[Value<'_>]) {
        let before = self.pass(timestamp);
        match self.kind {
            RecordKind::Ids => {
                self.content.extend(head_word(id, timestamp).to_le_bytes());
                self.content.extend(context_word(vpid, vtid).to_le_bytes());
            }
            RecordKind::Compact
                if id <= u16::from(COMPACT_ID_MAX) && timestamp.wrapping_sub(before) >> COMPACT_TIMESTAMP_BITS == 0 =>
            {
                self.content.extend(compact_header(id as u8, timestamp));
            }
            RecordKind::Compact => self.content.extend(extended_header(id, timestamp)),
        }
        values.iter().for_each(|value| encode(value, &mut self.content));
    }

    /// Advances to the time of a record. Returns the time of the previous record, or of this one if it is the packet's
    /// first.
    fn pass(&mut self, timestamp: u64) -> u64 {
        let (begin, before) = self.span.unwrap_or((timestamp, timestamp));
        self.span = Some((begin, timestamp));
        before
    }

    /// Ends the current packet and starts the next. The packet is padded to `size_bytes_min`. `events_discarded` counts
    /// from the beginning of the stream. An empty packet spans no time and has the end time of the previous one.
    pub fn finish(&mut self, size_bytes_min: usize, events_discarded: u64) -> Vec<u8> {
        let mut packet = std::mem::replace(&mut self.content, vec![0; HEADER_SIZE_BYTES]);
        self.header.events_discarded = events_discarded;
        self.header.end(&mut packet, self.span.take(), size_bytes_min);
        packet
    }
}

/// Appends a value as a record contains it. Text ends at its first NUL.
fn encode(value: &Value<'_>, out: &mut Vec<u8>) {
    match *value {
        Value::U8(value) | Value::Bool(value) => out.push(value),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::U64(value) | Value::Pointer(value) => out.extend(value.to_le_bytes()),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
        Value::Str(text) => {
            out.extend(text.iter().take_while(|byte| **byte != 0));
            out.push(0);
        }
        Value::Bytes(bytes) => {
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(bytes);
        }
        Value::Sequence(sequence) => {
            out.extend((sequence.count() as u32).to_le_bytes());
            sequence.iter().for_each(|element| encode(&element, out));
        }
    }
}
