//! Hostile bytes: packets, metadata, and all of a session's memory. The code must not panic or access addresses outside
//! the memory.
#![no_main]

use std::path::PathBuf;

use arbitrary::Arbitrary;
use dormouse_abi::class::{ClassDecl, FieldType, Kind, Labels};
use dormouse_abi::page::{CPU_UNKNOWN, HEADER_SIZE_BYTES};
use dormouse_abi::record::{self, RecordKind};
use dormouse_abi::session::{MODE_DISCARD, MODE_OVERWRITE};
use dormouse_ctf::{Merge, Metadata, PacketHeader, Stats, StreamReader, Value, count_records, first_record_since};
use dormouse_fuzz::session::{Bench, GEOMETRY, Noise, Operation};
use dormouse_fuzz::trace;
use dormouse_owner::fuzzing::{Owner, UUID};
use dormouse_relay::Memory;
use libfuzzer_sys::fuzz_target;

/// A packet, mostly of the right shape.
#[derive(Debug, Arbitrary)]
struct Packet {
    stream_id: u8,
    times: [u64; 2],
    content_size_bytes: Option<u16>,
    packet_size_bytes: Option<u16>,
    number: u64,
    discarded: u64,
    /// Class ids, and the bytes that follow.
    records: Vec<(u8, u64, Vec<u8>)>,
}

#[derive(Debug, Arbitrary)]
enum Input {
    Packets(Vec<Packet>),
    Bytes(Vec<u8>),
    /// A text, optionally after a valid preamble.
    Text(bool, String),
    /// A page, as the consumer counts its records.
    Page(Vec<u8>, u16, [u64; 2]),
    /// A session with false writers.
    Session(bool, Vec<Operation>, Vec<Noise>),
    /// Memory in which not even the header can be trusted.
    Memory(Vec<Noise>, Vec<u8>),
}

/// Returns a class for each type of field, and one with all types.
fn classes() -> Vec<ClassDecl> {
    let scalars = Kind::ALL.into_iter().map(FieldType::scalar);
    let sequences = (0..=u8::MAX).filter_map(FieldType::from_u8).filter(|field| field.sequence);
    let types: Vec<FieldType> = scalars.chain(sequences).collect();
    let class = |name: String, types: &[FieldType]| {
        let fields = types.iter().enumerate().map(|(index, field)| (format!("f{index}"), *field)).collect();
        ClassDecl { provider: "fuzz".into(), name, fields, labels: Labels::new(), level: None }
    };
    let each = types.iter().enumerate().map(|(index, field)| class(format!("c{index}"), &[*field]));
    each.chain([class("all".into(), &types)]).collect()
}

fn encode(is_compact: bool, packets: &[Packet]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for packet in packets {
        let mut content = Vec::new();
        for (id, timestamp, fields) in &packet.records {
            let is_state = packet.stream_id % 4 == 1;
            match (is_compact && !is_state, id) {
                (true, 255) => content.extend(record::extended_header(*timestamp as u16, *timestamp)),
                (true, id) => content.extend(record::compact_header(*id, *timestamp)),
                (false, id) => content.extend(record::head_word((*id).into(), *timestamp).to_le_bytes()),
            }
            if !is_compact && !is_state {
                content.extend([1; 8]);
            }
            content.extend(fields);
        }
        let len = (HEADER_SIZE_BYTES + content.len()) as u64;
        let header = PacketHeader {
            uuid: UUID,
            stream_id: if packet.stream_id % 4 == 1 { 1 } else { 0 },
            stream_instance_id: 0,
            cpu_id: CPU_UNKNOWN,
            timestamp_begin: packet.times[0],
            timestamp_end: packet.times[1],
            content_size_bytes: packet.content_size_bytes.map_or(len, u64::from),
            packet_size_bytes: packet.packet_size_bytes.map_or(len.next_multiple_of(8), u64::from),
            packet_seq_num: packet.number,
            events_discarded: packet.discarded,
        };
        bytes.extend(header.encode());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

fn read(metadata: &Metadata, bytes: &[u8]) {
    let mut text = Vec::new();
    let mut renderer = dormouse_print::Formatter::new(Default::default(), |_| 0);
    for event in StreamReader::new(metadata, 0, bytes).flatten() {
        for (_, value) in event.fields() {
            if let Value::Sequence(sequence) = value {
                assert_eq!(sequence.iter().count(), sequence.count());
            }
        }
        text.clear();
        renderer.event(&event, &mut text);
    }
    let streams = [StreamReader::new(metadata, 0, bytes), StreamReader::new(metadata, 1, bytes)];
    let _ = Merge::new(streams).count();
    let stats = Stats::collect(metadata, &[("stream", bytes), ("again", bytes)]);
    let _ = dormouse_print::StatsTable(&stats).to_string();
}

struct Place {
    owner: Owner,
    dir: PathBuf,
    metadata: Metadata,
    kind: RecordKind,
}

thread_local! {
    static PLACES: [Place; 2] = [RecordKind::Ids, RecordKind::Compact].map(place);
}

fn place(kind: RecordKind) -> Place {
    let dir = dormouse_fuzz::session::scratch_dir("read").join(format!("{kind:?}"));
    let owner = Owner::new(&dir, GEOMETRY, kind);
    assert_eq!(owner.declare(&trace::class()), 0);
    Place { owner, dir, metadata: trace::metadata(&classes(), kind), kind }
}

/// Makes all queries to memory, in any state.
fn ask(memory: &Memory) {
    let geometry = *memory.geometry();
    let used = |stream: u32| u64::from(stream);
    let _ = memory.census(used);
    let streams: Vec<u32> = memory.used_streams().chain([0, geometry.stream_count - 1]).take(16).collect();
    for stream in streams {
        let _ = (memory.retained(stream), memory.discarded(stream), memory.discarded_by_class(stream as usize));
        let unit = memory.chain(stream, u64::MAX - 1);
        let _ = (memory.page(unit), memory.page_field(unit, dormouse_abi::page::OFFSET_SEQ));
        if let Some(index) = memory.evict(stream) {
            let _ = memory.draw_page(1, stream, index, used);
        }
        if let Some(unit) = memory.draw(1, stream, used) {
            memory.give_back(1, stream, unit);
        }
    }
    memory.reclaim_drawn(1);
    memory.set_page_count_limit(geometry.page_count / 2);
    for index in memory.page_count_limit()..geometry.page_count {
        let _ = memory.withhold(index, used) || memory.is_overwrite() && memory.relocate(index);
    }
}

fuzz_target!(|input: (bool, Input)| {
    let (is_compact, input) = input;
    PLACES.with(|places| match (input, &places[usize::from(is_compact)]) {
        (Input::Packets(packets), place) => read(&place.metadata, &encode(is_compact, &packets)),
        (Input::Bytes(bytes), place) => {
            let _ = Metadata::decode(&bytes);
            read(&place.metadata, &bytes);
        }
        (Input::Text(has_preamble, text), place) => {
            let preamble = if has_preamble { place.metadata.preamble() } else { String::new() };
            if let Ok(metadata) = Metadata::parse(&(preamble + &text)) {
                read(&metadata, &[]);
            }
        }
        (Input::Page(mut page, len, [begin, earliest]), place) => {
            page.splice(0..0, [0; HEADER_SIZE_BYTES]);
            let classes = &place.metadata.classes;
            let counted = count_records(&page, len.into(), classes);
            let found = first_record_since(&page, len.into(), classes, begin, earliest);
            assert!(counted.is_err() || found.is_ok(), "{counted:?}, {found:?}");
        }
        (Input::Session(is_overwrite, operations, noise), place) => {
            place.owner.reset(if is_overwrite { MODE_OVERWRITE } else { MODE_DISCARD });
            let mut bench = Bench::new(place.owner.memory());
            let mut noise = noise.iter();
            for operation in &operations {
                bench.apply(operation);
                if let Some(noise) = noise.next() {
                    bench.disturb(noise);
                }
            }
            noise.for_each(|noise| bench.disturb(noise));
            place.owner.drain();
            for stream in 0..GEOMETRY.stream_count {
                let path = place.dir.join(format!("claimed_{stream}"));
                if let Ok(bytes) = std::fs::read(&path) {
                    trace::read(&trace::metadata_of_class(place.kind), &bytes);
                    std::fs::remove_file(path).expect("a file of ours");
                }
            }
        }
        (Input::Memory(noise, header), place) => {
            place.owner.reset(MODE_OVERWRITE);
            let (memory, mut bench) = (place.owner.memory(), Bench::new(place.owner.memory()));
            noise.iter().for_each(|noise| bench.disturb(noise));
            let header = &header[..header.len().min(256)];
            // SAFETY: source and target are live and at least this long; the memory is used by no other code.
            unsafe { std::ptr::copy(header.as_ptr(), memory.base(), header.len()) };
            // SAFETY: the memory is mapped as long as the owner lives.
            if let Ok(memory) = unsafe { Memory::from_raw(memory.base(), GEOMETRY.size_bytes()) } {
                ask(&memory);
            }
        }
    });
});
