//! Property tests of streams: what was written is read back, and arbitrary bytes cause no panic.

use dormouse_abi::class::{ClassDecl, FieldType, Kind, Labels, Level};
use dormouse_abi::page::{HEADER_SIZE_BYTES, STREAM_EVENTS};
use dormouse_abi::record::{EXTENDED_HEADER_SIZE_BYTES, RecordKind, compact_header, extended_header};
use dormouse_ctf::{
    Metadata, PacketHeader, Problem, RecordError, Sequence, Stats, StreamReader, Value, count_records,
    first_record_since,
};
use dormouse_print::{ClockFormat, Formatter, StatsTable};
use dormouse_traces::{EventWriter, Trace, TraceBuilder};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A value that owns its bytes as a record holds them, without count or NUL.
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

/// A step in building a stream.
#[derive(Debug, Clone)]
enum Operation {
    /// Adds an event: ticks since the previous event, vpid, vtid, choice of class, raw material for its values.
    Event(u64, u32, u32, Index, Vec<Vec<u8>>),
    /// Ends the packet, with this minimum size and this number of lost events.
    Packet(usize, u64),
}

fn field_types() -> impl Strategy<Value = FieldType> {
    let all: Vec<_> = (0..=u8::MAX).filter_map(FieldType::from_u8).collect();
    select(all)
}

fn kinds() -> impl Strategy<Value = RecordKind> {
    select(vec![RecordKind::Ids, RecordKind::Compact])
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    // The times of a packet may span 46 bits. The sum of 40 of these steps wraps 48 bits often enough.
    let ticks = prop_oneof![0..5u64, 0..(1u64 << 40), (1u64 << 32) - 2..(1u64 << 32) + 2];
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

/// Makes the value of a field from `material`, which can be any bytes.
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

/// Formats values as text, because NaN does not equal itself but is printed the same.
fn printed<'a>(fields: impl IntoIterator<Item = (&'a str, Value<'a>)>) -> String {
    fields.into_iter().map(|(name, value)| format!("{name}={value:?};")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_streams_are_read_back(
        classes in vec(vec(field_types(), 0..6), 1..5),
        kind in kinds(),
        // Includes ids around the last compact one.
        id_first in prop_oneof![Just(0u16), 250..260u16],
        // Only times that fit 64 bits of nanoseconds since 1970.
        start in prop_oneof![0..1u64 << 20, (1u64 << 48) - (1 << 20)..1 << 48, any::<u64>().prop_map(|n| n >> 2)],
        operations in operations(),
    ) {
        let mut trace = TraceBuilder::of_records(kind);
        trace.skip_to(id_first);
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
                    let context = (kind == RecordKind::Ids).then_some((vpid, vtid));
                    expected.push((time, context, u64::from(ids[class]), fields));
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
                    size_bytes += event.size_bytes;
                    found.push((event.timestamp, event.context, event.class.id, printed(event.fields())));
                }
                Err(notice) => match notice.problem {
                    Problem::Discarded { count, .. } => discarded += count,
                    // An empty packet has the end time of the previous packet, or 0 if it is the first.
                    problem => prop_assert!(false, "{problem}"),
                },
            }
        }
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(discarded, lost);
        let stats = Stats::collect(&metadata, &[("state", &trace.streams[0]), ("events", &trace.streams[1])]);
        prop_assert_eq!((stats.events, stats.events_lost), (found.len() as u64, lost));
        prop_assert_eq!(stats.classes.iter().map(|class| class.bytes).sum::<u64>(), size_bytes as u64);
        // Counting page by page without trusting the headers gives the same result, and the search for the first record
        // since each event finds that event.
        let (mut rest, mut counted) = (&trace.streams[1][..], 0);
        while !rest.is_empty() {
            let header = PacketHeader::decode(rest).unwrap();
            let content = header.content_size_bytes as usize;
            let here = count_records(rest, content, &metadata.classes).unwrap();
            for (timestamp, ..) in &found[counted as usize..][..here as usize] {
                let first = first_record_since(rest, content, &metadata.classes, header.timestamp_begin, *timestamp).unwrap();
                prop_assert_eq!(first.map(|(_, found)| found), Some(*timestamp));
            }
            counted += here;
            rest = &rest[header.packet_size_bytes as usize..];
        }
        prop_assert_eq!(counted, found.len() as u64);
    }

    #[test]
    fn mutated_and_truncated_streams_are_survived(
        kind in kinds(),
        patches in vec((any::<Index>(), any::<u8>()), 0..12),
        headers in vec((0..HEADER_SIZE_BYTES, any::<u8>()), 0..4),
        len in prop_oneof![Just(usize::MAX), 0..3000usize],
    ) {
        let (trace, metadata) = sample(kind);
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
        kind in kinds(),
        records in vec(any::<u8>(), 0..400),
        ids in vec(0..4u8, 0..40),
        content in 0..600usize,
    ) {
        let (_, metadata) = sample(kind);
        // Existing ids reach more of the decoder than random ones.
        let mut records = records;
        for (index, id) in ids.into_iter().enumerate() {
            if let Some(head) = records.get_mut(index * 20..index * 20 + 2) {
                head.copy_from_slice(&[id, 0]);
            }
        }
        let mut page = EventWriter::new(metadata.options.uuid, STREAM_EVENTS, 0, 0).finish(0, 0);
        let mut header = PacketHeader::decode(&page).unwrap();
        page.extend(&records);
        header.timestamp_end = u64::MAX;
        header.content_size_bytes = page.len() as u64;
        header.packet_size_bytes = page.len() as u64;
        page[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        survive(&metadata, &page)?;
        let counted = count_records(&page, content, &metadata.classes);
        prop_assert!(counted.is_err() || counted.unwrap() <= 600 / 5);
    }

    #[test]
    fn arbitrary_streams_are_survived(kind in kinds(), bytes in vec(any::<u8>(), 0..300), magic in any::<bool>()) {
        let (trace, metadata) = sample(kind);
        let mut bytes = bytes;
        if magic {
            // With the trace's magic and UUID, the rest of the header is checked too.
            let len = bytes.len().min(20);
            bytes[..len].copy_from_slice(&trace.streams[1][..len]);
        }
        survive(&metadata, &bytes)?;
    }

    #[test]
    fn arbitrary_metadata_are_survived(
        kind in kinds(),
        patches in vec((any::<Index>(), any::<char>()), 1..6),
        len in prop_oneof![Just(usize::MAX), 0..5000usize],
        noise in any::<String>(),
    ) {
        let (trace, metadata) = sample(kind);
        let mut text: Vec<char> = trace.metadata.chars().collect();
        for (index, c) in patches {
            let index = index.index(text.len());
            text[index] = c;
        }
        text.truncate(len);
        let _ = Metadata::parse(&text.into_iter().collect::<String>());
        let _ = Metadata::parse(&noise);
        let _ = Metadata::decode(noise.as_bytes());
        for magic in [0x75D1_1D57u32.to_le_bytes(), 0x75D1_1D57u32.to_be_bytes()] {
            let _ = Metadata::decode(&[&magic, noise.as_bytes()].concat());
        }
        let _ = Metadata::parse(&format!("/* CTF 1.8 */\n{noise}"));
        // Comments are ignored, whatever their content.
        let mut comment = noise;
        while comment.contains("*/") {
            comment = comment.replace("*/", "");
        }
        prop_assert_eq!(Metadata::parse(&format!("{}\n/* {comment} */", trace.metadata)), Ok(metadata));
    }

    #[test]
    fn every_class_is_read_back(
        provider in "[A-Za-z_][A-Za-z0-9_]{0,20}",
        name in "[A-Za-z_][A-Za-z0-9_]{0,20}",
        fields in vec((select(vec!["a", "b", "_a_length", "__a_length", "int", "Bool", "x1", ""]), field_types()), 0..12),
        level in proptest::option::of(select(&Level::ALL[..])),
    ) {
        let (trace, _) = sample(RecordKind::Ids);
        let fields: Vec<_> = fields.into_iter().map(|(name, field_type)| (name.to_string(), field_type)).collect();
        let decl = ClassDecl { provider, name, fields, labels: Labels::new(), level };
        let text = trace.metadata + &Metadata::class(77, &decl);
        let metadata = Metadata::parse(&text).unwrap();
        let class = metadata.classes.get(STREAM_EVENTS, 77).unwrap();
        prop_assert_eq!(&class.full_name, &decl.full_name());
        prop_assert_eq!((class.level, class.decl.as_ref().unwrap().level), (level, level));
        let types = |decl: &ClassDecl| decl.fields.iter().map(|(_, field_type)| *field_type).collect::<Vec<_>>();
        prop_assert_eq!(types(class.decl.as_ref().unwrap()), types(&decl));
        let mut names: Vec<_> = class.decl.as_ref().unwrap().fields.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), decl.fields.len());
    }
}

/// Returns a trace of four classes and three packets, the last one without padding.
fn sample(kind: RecordKind) -> (Trace, Metadata) {
    let mut trace = TraceBuilder::of_records(kind);
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

/// Checks that all readers of a stream terminate, and that times do not decrease unless a notice reports it.
fn survive(metadata: &Metadata, bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut formatter = Formatter::new(ClockFormat::DateTime, |_| -3600);
    let (mut out, mut last, mut payload) = (vec![], 0, 0);
    for item in StreamReader::new(metadata, 0, bytes) {
        match item {
            Ok(event) => {
                prop_assert!(event.timestamp >= last);
                prop_assert_eq!(event.fields().count(), event.class.decl.as_ref().unwrap().fields.len());
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
    prop_assert!(!StatsTable(&stats).to_string().is_empty());
    Ok(())
}

/// Returns a packet of these records without checking them.
fn packet_of(records: &[&[u8]], begin: u64, end: u64) -> Vec<u8> {
    let mut packet = EventWriter::new(sample(RecordKind::Compact).1.options.uuid, STREAM_EVENTS, 0, 0).finish(0, 0);
    let mut header = PacketHeader::decode(&packet).unwrap();
    packet.extend(records.concat());
    let size_bytes = packet.len() as u64;
    header = PacketHeader {
        timestamp_begin: begin,
        timestamp_end: end,
        content_size_bytes: size_bytes,
        packet_size_bytes: size_bytes,
        ..header
    };
    packet[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
    packet
}

#[test]
fn records_without_context_have_the_times_that_they_were_written_at() {
    let mut trace = TraceBuilder::of_records(RecordKind::Compact);
    let ids = [0, 254, 255, 300].map(|id| {
        trace.skip_to(id);
        trace.class("p", &format!("e{id}"), &[])
    });
    let metadata = trace.finish().parse();
    let half = 1u64 << 32;
    let begin = 7 * half + 9;
    let records: [(&[u8], u16, u64); 8] = [
        (&compact_header(0, begin), ids[0], begin),
        // The latest unambiguous time: by its low half, it is before `begin`.
        (&compact_header(254, begin + half - 1), ids[1], begin + half - 1),
        (&compact_header(0, begin + half), ids[0], begin + half),
        (&extended_header(255, begin + half), ids[2], begin + half),
        (&extended_header(300, begin + 5 * half), ids[3], begin + 5 * half),
        (&compact_header(0, begin + 5 * half + 1), ids[0], begin + 5 * half + 1),
        // An extended record with an id that would fit a compact one.
        (&extended_header(254, begin + 6 * half + 1), ids[1], begin + 6 * half + 1),
        (&compact_header(0, begin + 6 * half + 1), ids[0], begin + 6 * half + 1),
    ];
    let bytes: Vec<&[u8]> = records.iter().map(|(bytes, ..)| *bytes).collect();
    let packet = packet_of(&bytes, begin, begin + 9 * half);
    let found: Vec<(u64, u64)> = StreamReader::new(&metadata, 0, &packet)
        .map(|event| event.map(|event| (event.class.id, event.timestamp)).unwrap())
        .collect();
    assert_eq!(found, records.map(|(_, id, timestamp)| (u64::from(id), timestamp)));
    // Each record is found without the ones before it. If its time is the packet's begin, the rest reads the same.
    let classes = &metadata.classes;
    let mut offset = HEADER_SIZE_BYTES;
    for (index, (bytes_of_one, _, timestamp)) in records.into_iter().enumerate() {
        let first = first_record_since(&packet, packet.len(), classes, begin, timestamp).unwrap();
        let is_second_of_its_time = index > 0 && records[index - 1].2 == timestamp;
        assert!(is_second_of_its_time || first == Some((offset, timestamp)), "{index}: {first:?}");
        let rest = packet_of(&bytes[index..], timestamp, begin + 9 * half);
        let found: Vec<u64> = StreamReader::new(&metadata, 0, &rest).map(|event| event.unwrap().timestamp).collect();
        assert_eq!(found, records[index..].iter().map(|(.., timestamp)| *timestamp).collect::<Vec<_>>());
        offset += bytes_of_one.len();
    }
    assert_eq!(first_record_since(&packet, packet.len(), classes, begin, begin + 7 * half), Ok(None));

    // A full time that decreases is damage.
    let packet = packet_of(&[&extended_header(300, begin + 4), &extended_header(300, begin + 3)], begin, begin + 9);
    let problems: Vec<_> = StreamReader::new(&metadata, 0, &packet).filter_map(Result::err).collect();
    let record_offset_bytes = (HEADER_SIZE_BYTES + EXTENDED_HEADER_SIZE_BYTES) as u64;
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].problem, Problem::Record { record_offset_bytes, error: RecordError::Older });
}

#[test]
fn a_trace_without_context_has_no_threads() {
    let (trace, metadata) = sample(RecordKind::Compact);
    let stats = Stats::collect(&metadata, &[("state", &trace.streams[0]), ("events", &trace.streams[1])]);
    assert_eq!((stats.events, stats.state_events, stats.threads), (120, 0, None));
    assert_eq!(stats.classes[0].bytes, 30 * (5 + 12));
    assert!(StatsTable(&stats).to_string().contains("threads   not recorded"));
    let mut out = vec![];
    let mut formatter = Formatter::new(ClockFormat::TimeOfDay, |_| 0);
    formatter.event(&trace.readers(&metadata).find_map(Result::ok).unwrap(), &mut out);
    let line = String::from_utf8(out).unwrap();
    assert!(line.contains("p:fixed: { cpu_id = 0 }, { a = 0, b = 0.5 }"), "{line}");
}
