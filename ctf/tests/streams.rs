//! Streams against an oracle: what was written is read, and bytes that nobody wrote are survived.

use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::page::{HEADER_SIZE_BYTES, STREAM_EVENTS};
use dormouse_abi::wire::ClassDecl;
use dormouse_ctf::testing::{Trace, TraceBuilder};
use dormouse_ctf::text::{ClockFormat, Formatter};
use dormouse_ctf::{
    Metadata, PacketHeader, PacketWriter, Problem, Sequence, Stats, StreamReader, Value, count_records,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A value that owns its bytes: those that a record holds, without count or NUL.
#[derive(Debug, Clone)]
struct Owned {
    field_type: FieldType,
    bytes: Vec<u8>,
}

impl Owned {
    fn value(&self) -> Value<'_> {
        match self.field_type {
            FieldType { kind: Kind::Str, .. } => Value::Str(&self.bytes),
            FieldType { kind: Kind::Bytes, .. } => Value::Bytes(&self.bytes),
            FieldType { kind, sequence } => {
                let elements = Sequence::new(kind, &self.bytes).unwrap();
                if sequence { Value::Sequence(elements) } else { elements.iter().next().unwrap() }
            }
        }
    }
}

/// One step of building a stream.
#[derive(Debug, Clone)]
enum Operation {
    /// Ticks since the event before, vpid, vtid, which class, material for its values.
    Event(u64, u32, u32, Index, Vec<Vec<u8>>),
    /// Ends the packet with padding and lost events.
    Packet(usize, u64),
}

fn field_types() -> impl Strategy<Value = FieldType> {
    let all: Vec<_> = (0..=u8::MAX).filter_map(FieldType::from_u8).collect();
    select(all)
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    // Times of a packet may span 46 bits; the sum of 40 such steps wraps 48 bits often enough.
    let ticks = prop_oneof![0..5u64, 0..(1u64 << 40)];
    let material = vec(vec(any::<u8>(), 0..40), 1..5);
    let event = (ticks, any::<u32>(), any::<u32>(), any::<Index>(), material);
    vec(
        prop_oneof![
            8 => event.prop_map(|(ticks, vpid, vtid, class, material)| Operation::Event(ticks, vpid, vtid, class, material)),
            2 => (0..600usize, 0..4u64).prop_map(|(size, lost)| Operation::Packet(size, lost)),
        ],
        0..40,
    )
}

/// The value of a field made from `material`, whatever that is.
fn owned(field_type: FieldType, material: &[u8]) -> Owned {
    let size = field_type.kind.element_size_bytes();
    let bytes = match field_type {
        FieldType { kind: Kind::Str, .. } => material.iter().copied().filter(|byte| *byte != 0).collect(),
        FieldType { sequence: false, kind } if kind != Kind::Bytes => {
            (0..size).map(|index| material.get(index).copied().unwrap_or(0)).collect()
        }
        _ => material[..material.len() - material.len() % size].to_vec(),
    };
    Owned { field_type, bytes }
}

/// Values as text: NaN is not equal to itself, but it is printed as itself.
fn printed<'a>(fields: impl IntoIterator<Item = (&'a str, Value<'a>)>) -> String {
    fields.into_iter().map(|(name, value)| format!("{name}={value:?};")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        classes in vec(vec(field_types(), 0..6), 1..5),
        start in prop_oneof![0..1u64 << 20, (1u64 << 48) - (1 << 20)..1 << 48, any::<u64>().prop_map(|n| n >> 1)],
        operations in operations(),
    ) {
        let mut trace = TraceBuilder::new();
        let names: Vec<String> = (0..6).map(|index| format!("field_{index}")).collect();
        let ids: Vec<u16> = classes
            .iter()
            .enumerate()
            .map(|(index, fields)| {
                let fields: Vec<_> = names.iter().map(String::as_str).zip(fields.iter().copied()).collect();
                trace.class("provider", &format!("event_{index}"), &fields)
            })
            .collect();
        let stream = trace.stream(2);
        let (mut time, mut lost, mut expected) = (start, 0, vec![]);
        for operation in operations {
            match operation {
                Operation::Event(ticks, vpid, vtid, class, material) => {
                    time += ticks;
                    let class = class.index(ids.len());
                    let values: Vec<_> = classes[class]
                        .iter()
                        .enumerate()
                        .map(|(index, field_type)| owned(*field_type, &material[index % material.len()]))
                        .collect();
                    let values: Vec<_> = values.iter().map(Owned::value).collect();
                    trace.event(stream, time, vpid, vtid, ids[class], &values);
                    let fields = printed(names.iter().map(String::as_str).zip(values));
                    expected.push((time, vpid, vtid, ids[class], fields));
                }
                Operation::Packet(size, discarded) => {
                    lost += discarded;
                    trace.packet(stream, size, discarded);
                }
            }
        }
        let trace = trace.finish();
        let metadata = trace.parse();
        let (mut found, mut discarded) = (vec![], 0);
        let mut size_bytes = 0;
        for item in trace.readers(&metadata) {
            match item {
                Ok(event) => {
                    let (vpid, vtid) = event.context.unwrap();
                    size_bytes += event.size_bytes;
                    found.push((event.timestamp, vpid, vtid, event.class.id, printed(event.fields())));
                }
                Err(notice) => match notice.problem {
                    Problem::Discarded { count, .. } => discarded += count,
                    // A packet without events stands where the one before ended, the first one at 0.
                    problem => prop_assert!(false, "{problem}"),
                },
            }
        }
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(discarded, lost);
        let stats = Stats::collect(&metadata, &[("state", &trace.streams[0]), ("events", &trace.streams[1])]);
        prop_assert_eq!((stats.events, stats.events_lost), (found.len() as u64, lost));
        prop_assert_eq!(stats.classes.iter().map(|class| class.bytes).sum::<u64>(), size_bytes as u64);
        // Counting page by page, without believing the headers, gives the same.
        let (mut rest, mut counted) = (&trace.streams[1][..], 0);
        while !rest.is_empty() {
            let header = PacketHeader::decode(rest).unwrap();
            counted += count_records(rest, header.content_size_bytes as usize, &metadata.classes).unwrap();
            rest = &rest[header.packet_size_bytes as usize..];
        }
        prop_assert_eq!(counted, found.len() as u64);
    }

    #[test]
    fn mutated_and_truncated_streams_are_survived(
        patches in vec((any::<Index>(), any::<u8>()), 0..12),
        headers in vec((0..HEADER_SIZE_BYTES, any::<u8>()), 0..4),
        len in prop_oneof![Just(usize::MAX), 0..3000usize],
    ) {
        let (trace, metadata) = sample();
        let mut bytes = trace.streams[1].clone();
        for (index, byte) in patches {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        for (index, byte) in headers {
            bytes[index] = byte;
        }
        bytes.truncate(len);
        survive(&metadata, &bytes)?;
    }

    #[test]
    fn arbitrary_records_are_survived(
        records in vec(any::<u8>(), 0..400),
        ids in vec(0..4u8, 0..40),
        content in 0..600usize,
    ) {
        let (_, metadata) = sample();
        // Ids that exist get deeper into the records than random ones.
        let mut records = records;
        for (index, id) in ids.into_iter().enumerate() {
            if let Some(head) = records.get_mut(index * 20..index * 20 + 2) {
                head.copy_from_slice(&[id, 0]);
            }
        }
        let mut page = PacketWriter::new(metadata.options.uuid, STREAM_EVENTS, 0, 0).finish(0, 0);
        let mut header = PacketHeader::decode(&page).unwrap();
        page.extend(&records);
        header.timestamp_end = u64::MAX;
        header.content_size_bytes = page.len() as u64;
        header.packet_size_bytes = page.len() as u64;
        page[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        survive(&metadata, &page)?;
        let counted = count_records(&page, content, &metadata.classes);
        prop_assert!(counted.is_err() || counted.unwrap() <= 600 / 16);
    }

    #[test]
    fn arbitrary_streams_are_survived(bytes in vec(any::<u8>(), 0..300), magic in any::<bool>()) {
        let (trace, metadata) = sample();
        let mut bytes = bytes;
        if magic {
            // Magic and uuid of the trace, so that the rest of the header is looked at.
            let len = bytes.len().min(20);
            bytes[..len].copy_from_slice(&trace.streams[1][..len]);
        }
        survive(&metadata, &bytes)?;
    }

    #[test]
    fn arbitrary_metadata_are_survived(
        patches in vec((any::<Index>(), any::<char>()), 1..6),
        len in prop_oneof![Just(usize::MAX), 0..5000usize],
        noise in any::<String>(),
    ) {
        let (trace, metadata) = sample();
        let mut text: Vec<char> = trace.metadata.chars().collect();
        for (index, c) in patches {
            let index = index.index(text.len());
            text[index] = c;
        }
        text.truncate(len);
        let _ = Metadata::parse(&text.into_iter().collect::<String>());
        let _ = Metadata::parse(&noise);
        let _ = Metadata::parse(&format!("/* CTF 1.8 */\n{noise}"));
        // A comment is not part of the metadata, whatever it says.
        let comment = noise.replace("*/", "");
        prop_assert_eq!(Metadata::parse(&format!("{}\n/* {comment} */", trace.metadata)), Ok(metadata));
    }

    #[test]
    fn every_class_comes_back(
        provider in "[A-Za-z_][A-Za-z0-9_]{0,20}",
        name in "[A-Za-z_][A-Za-z0-9_]{0,20}",
        fields in vec((select(vec!["a", "b", "_a_length", "__a_length", "int", "Bool", "x1", ""]), field_types()), 0..12),
    ) {
        let (trace, _) = sample();
        let fields: Vec<_> = fields.into_iter().map(|(name, field_type)| (name.to_string(), field_type)).collect();
        let decl = ClassDecl { provider, name, fields };
        let text = trace.metadata + &Metadata::class(77, &decl);
        let metadata = Metadata::parse(&text).unwrap();
        let class = metadata.classes.get(STREAM_EVENTS, 77).unwrap();
        prop_assert_eq!(&class.full_name, &decl.full_name());
        let types = |decl: &ClassDecl| decl.fields.iter().map(|(_, field_type)| *field_type).collect::<Vec<_>>();
        prop_assert_eq!(types(&class.decl), types(&decl));
        let mut names: Vec<_> = class.decl.fields.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), decl.fields.len());
    }
}

/// A trace of four classes and three packets, the last one without padding.
fn sample() -> (Trace, Metadata) {
    let mut trace = TraceBuilder::new();
    let scalar = FieldType::scalar;
    let ids = [
        trace.class("p", "fixed", &[("a", scalar(Kind::U64)), ("b", scalar(Kind::F32))]),
        trace.class("p", "text", &[("a", scalar(Kind::Str)), ("b", scalar(Kind::Str))]),
        trace.class("p", "bytes", &[("a", scalar(Kind::Bytes)), ("b", scalar(Kind::U8))]),
        trace.class("p", "sequence", &[("a", FieldType::sequence(Kind::I64)), ("b", scalar(Kind::Str))]),
    ];
    let stream = trace.stream(0);
    for time in 0..30 {
        let words = [7; 24];
        let numbers = Value::Sequence(Sequence::new(Kind::I64, &words).unwrap());
        trace.event(stream, time, 1, 2, ids[0], &[Value::U64(time), Value::F32(0.5)]);
        trace.event(stream, time, 1, 2, ids[1], &[Value::Str(b"one"), Value::Str(b"")]);
        trace.event(stream, time, 1, 2, ids[2], &[Value::Bytes(b"two"), Value::U8(3)]);
        trace.event(stream, time, 1, 2, ids[3], &[numbers, Value::Str(b"four")]);
        if time % 10 == 9 {
            trace.packet(stream, if time < 20 { 2048 } else { 0 }, 1);
        }
    }
    let trace = trace.finish();
    let metadata = trace.parse();
    (trace, metadata)
}

/// Everything that reads a stream comes to an end, and times do not decrease unless a notice has said so.
fn survive(metadata: &Metadata, bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut formatter = Formatter::new(metadata, ClockFormat::DateTime, |_| -3600);
    let (mut out, mut last, mut payload) = (vec![], 0, 0);
    for item in StreamReader::new(metadata, 0, bytes) {
        match item {
            Ok(event) => {
                prop_assert!(event.timestamp >= last);
                prop_assert_eq!(event.fields().count(), event.class.decl.fields.len());
                last = event.timestamp;
                payload += event.size_bytes;
                formatter.event(&event, &mut out);
            }
            Err(notice) => {
                if notice.problem == Problem::Overlap {
                    last = 0;
                }
                prop_assert!(!formatter.warning(&notice, "stream").is_empty());
            }
        }
    }
    prop_assert!(payload <= bytes.len());
    let stats = Stats::collect(metadata, &[("stream", bytes)]);
    prop_assert!(!stats.to_string().is_empty());
    Ok(())
}
