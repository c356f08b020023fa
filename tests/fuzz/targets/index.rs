//! Damaged packets and index files: a query for a time must return the same events with an index as without, and
//! counting must match reading, whatever is damaged.
#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::page::STREAM_EVENTS;
use dormouse_ctf::{ClassCounts, Metadata, PacketHeader, StreamReader, Value};
use dormouse_reader::index::Index;
use dormouse_traces::{EventWriter, TraceBuilder};
use libfuzzer_sys::fuzz_target;

/// More events take longer and add no new cases.
const EVENTS_MAX: usize = 24;

thread_local! {
    static METADATA: Metadata = metadata();
}

/// Returns metadata with one class, of a text.
fn metadata() -> Metadata {
    let mut builder = TraceBuilder::new();
    assert_eq!(builder.class("fuzz", "run", &[("text", FieldType::scalar(Kind::Str))]), 0);
    builder.finish().parse()
}

#[derive(Debug, Arbitrary)]
struct Input {
    /// Time since the previous event, length of the text, and whether its packet ends after it.
    events: Vec<(u8, u8, bool)>,
    /// Positions, and the value that the byte there is XORed with.
    index: Vec<(u16, u8)>,
    stream: Vec<(u16, u8)>,
    first: u16,
    last: u16,
}

fn damage(bytes: &mut [u8], by: &[(u16, u8)]) {
    for (at, what) in by {
        let len = bytes.len().max(1);
        bytes.get_mut(usize::from(*at) % len).into_iter().for_each(|byte| *byte ^= what);
    }
}

fn index_of(mut rest: &[u8]) -> Vec<u8> {
    let mut index = [0xC1F1_DCC1u32, 1, 1, 72].map(u32::to_be_bytes).concat();
    let mut offset = 0u64;
    while let Ok(header) = PacketHeader::decode(rest) {
        let (packet, content) = (8 * header.packet_size_bytes, 8 * header.content_size_bytes);
        let entry = [offset, packet, content, header.timestamp_begin, header.timestamp_end, 0, 0, 1, 0];
        index.extend(entry.map(u64::to_be_bytes).concat());
        offset += header.packet_size_bytes;
        rest = &rest[header.packet_size_bytes as usize..];
    }
    index
}

fn times<'a>(reader: StreamReader<'a>) -> Vec<u64> {
    reader.flatten().map(|event| event.timestamp).collect()
}

/// Returns the counts by class, and the notices.
fn read(metadata: &Metadata, bytes: &[u8]) -> (BTreeMap<u64, u64>, Vec<String>) {
    let (mut counts, mut notices) = (BTreeMap::<u64, u64>::new(), Vec::new());
    for item in StreamReader::new(metadata, 0, bytes) {
        match item {
            Ok(event) => *counts.entry(event.class.id).or_default() += 1,
            Err(notice) => notices.push(notice.to_string()),
        }
    }
    (counts, notices)
}

fuzz_target!(|input: Input| {
    METADATA.with(|metadata| run(metadata, input));
});

/// Returns events of the class of [`metadata`], in packets.
fn stream(metadata: &Metadata, events: &[(u8, u8, bool)]) -> Vec<u8> {
    let mut writer = EventWriter::new(metadata.options.uuid, STREAM_EVENTS, 1, 0);
    let (mut bytes, mut time) = (Vec::new(), 0);
    for (since, len, is_last) in events.iter().take(EVENTS_MAX) {
        time += u64::from(*since);
        writer.push(time, 1, 2, 0, &[Value::Str(&[b'x'; 256][..usize::from(*len)])]);
        if *is_last {
            bytes.extend(writer.finish(0, 0));
        }
    }
    bytes.extend(writer.finish(0, 0));
    bytes
}

fn run(metadata: &Metadata, input: Input) {
    let mut bytes = stream(metadata, &input.events);
    // The clock of synthesised traces begins at this time.
    let epoch_ns = 1_700_000_000 * 1_000_000_000;
    let (first, last) = (u64::from(input.first), u64::from(input.last));
    let (first_ns, last_ns) = (epoch_ns + first as i64, epoch_ns + last as i64);
    let mut index = index_of(&bytes);
    damage(&mut index, &input.index);
    let within = || StreamReader::new(metadata, 0, &bytes).within(first_ns, last_ns);
    let mut by_index = within();
    if let Ok(mut index) = Index::open(index.as_slice()) {
        let _ = index.seek(&mut by_index, first_ns);
    }
    let all = times(StreamReader::new(metadata, 0, &bytes)).into_iter();
    let is_asked_for = |time: &u64| (first..=last).contains(time);
    let expected: Vec<u64> = all.filter(is_asked_for).collect();
    assert_eq!(times(within()), expected);
    assert_eq!(times(by_index), expected);

    damage(&mut bytes, &input.stream);
    let (mut counts, mut told) = (ClassCounts::default(), Vec::new());
    StreamReader::new(metadata, 0, &bytes).count_classes(&mut counts, |notice| told.push(notice.to_string()));
    let counts: BTreeMap<u64, u64> = counts.iter().map(|(class, count)| (class.id, count)).collect();
    assert_eq!((counts, told), read(metadata, &bytes));
    // Times of damaged packets may be in any order: there must be no panic, and no event outside the query. A changed
    // bit can turn this stream into the state stream, which is returned whole.
    let damaged = StreamReader::new(metadata, 0, &bytes).within(first_ns, last_ns).flatten();
    damaged
        .filter(|event| !event.is_state())
        .for_each(|event| assert!(event.time_ns.is_none_or(|ns| (first_ns..=last_ns).contains(&ns))));
}
