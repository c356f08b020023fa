//! Synthesises traces, for the tests of this crate and of others.
//!
//! ```
//! use dormouse_abi::class::{FieldType, Kind};
//! use dormouse_ctf::{Merge, Value, testing::TraceBuilder};
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

use dormouse_abi::class::FieldType;
use dormouse_abi::page::STREAM_EVENTS;
use dormouse_abi::record::RecordKind;
use dormouse_abi::wire::ClassDecl;

use crate::merge::Merge;
use crate::metadata::{Metadata, MetadataOptions};
use crate::packet::PacketWriter;
use crate::state::StateRecord;
use crate::stream::StreamReader;
use crate::time::Clock;
use crate::value::Value;

/// Builds a trace: a state stream, and as many event streams as asked for.
#[derive(Debug)]
pub struct TraceBuilder {
    uuid: [u8; 16],
    kind: RecordKind,
    metadata: String,
    class_count: u16,
    /// The state stream first.
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    writer: PacketWriter,
    bytes: Vec<u8>,
    events_discarded: u64,
}

/// A synthesised trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The text of the metadata file.
    pub metadata: String,
    /// The bytes of each stream file, the state stream first. A stream without packets is empty.
    pub streams: Vec<Vec<u8>>,
}

impl Default for TraceBuilder {
    fn default() -> TraceBuilder {
        TraceBuilder::new()
    }
}

impl TraceBuilder {
    /// A trace of host `lair` with a clock of nanoseconds that started at 1 700 000 000 s after the epoch.
    pub fn new() -> TraceBuilder {
        TraceBuilder::of_records(RecordKind::Ids)
    }

    /// The same whose event records are of this kind.
    pub fn of_records(record_kind: RecordKind) -> TraceBuilder {
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
        })
    }

    /// A trace with a preamble of one's own.
    pub fn with_options(options: MetadataOptions) -> TraceBuilder {
        let (uuid, kind) = (options.uuid, options.record_kind);
        let metadata = Metadata::new(options).preamble();
        let state = Stream { writer: PacketWriter::state(uuid), bytes: vec![], events_discarded: 0 };
        TraceBuilder { uuid, kind, metadata, class_count: 0, streams: vec![state] }
    }

    /// Has the next class this id, instead of one more than the last.
    pub fn skip_to(&mut self, id: u16) {
        self.class_count = id;
    }

    /// Declares a class and returns its id; ids count from 0.
    pub fn class(&mut self, provider: &str, name: &str, fields: &[(&str, FieldType)]) -> u16 {
        let fields = fields.iter().map(|(name, field_type)| (name.to_string(), *field_type)).collect();
        let id = self.class_count;
        self.class_count += 1;
        self.metadata += &Metadata::class(id, &ClassDecl { provider: provider.into(), name: name.into(), fields });
        id
    }

    /// Starts an event stream and returns its index among all streams, which is also its instance id.
    pub fn stream(&mut self, cpu_id: u32) -> usize {
        let index = self.streams.len();
        let writer = PacketWriter::new(self.uuid, STREAM_EVENTS, index as u32, cpu_id).of_records(self.kind);
        self.streams.push(Stream { writer, bytes: vec![], events_discarded: 0 });
        index
    }

    /// Appends an event, see [`PacketWriter::push`].
    ///
    /// # Panics
    /// Without such a stream.
    pub fn event(&mut self, stream: usize, timestamp: u64, vpid: u32, vtid: u32, class: u16, values: &[Value<'_>]) {
        self.streams[stream].writer.push(timestamp, vpid, vtid, class, values);
    }

    /// Appends a record to the state stream, see [`PacketWriter::push_state`].
    pub fn state(&mut self, timestamp: u64, record: &StateRecord<'_>) {
        self.streams[0].writer.push_state(timestamp, record);
    }

    /// Ends a stream's packet, padded to `size_bytes_min`, with a number of events lost since the packet before.
    ///
    /// # Panics
    /// Without such a stream.
    pub fn packet(&mut self, stream: usize, size_bytes_min: usize, discarded: u64) {
        let stream = &mut self.streams[stream];
        stream.events_discarded += discarded;
        stream.bytes.extend(stream.writer.finish(size_bytes_min, stream.events_discarded));
    }

    /// Ends every packet that has records, and the trace.
    pub fn finish(mut self) -> Trace {
        for index in 0..self.streams.len() {
            if !self.streams[index].writer.is_empty() {
                self.packet(index, 0, 0);
            }
        }
        Trace { metadata: self.metadata, streams: self.streams.into_iter().map(|stream| stream.bytes).collect() }
    }
}

impl Trace {
    /// Reads the metadata back.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn parse(&self) -> Metadata {
        Metadata::parse(&self.metadata).unwrap_or_else(|error| panic!("{error}\n{}", self.metadata))
    }

    /// Merges all streams.
    pub fn readers<'a>(&'a self, metadata: &'a Metadata) -> Merge<'a> {
        let streams = self.streams.iter().enumerate();
        Merge::new(streams.map(|(index, bytes)| StreamReader::new(metadata, index, bytes)))
    }
}
