//! Packets under metadata of other tracers: wrong headers, records of the right shape, and arbitrary bytes. The reader
//! must not panic, counting must find as many events as printing, and if the packets' sizes are sound, a damaged packet
//! must cost no event of another.
#![no_main]

use arbitrary::Arbitrary;
use dormouse_ctf::{StreamReader, Trace};
use dormouse_fuzz::ctf::{self, How};
use libfuzzer_sys::fuzz_target;

/// Common parts of the tracers' headers.
const TYPES: &str = "/* CTF 1.8 */
typealias integer { size = 8; align = 8; } := u8;
typealias integer { size = 32; align = 8; } := u32;
typealias integer { size = 64; align = 8; } := u64;
trace { major = 1; minor = 8; byte_order = ORDER; packet.header := struct { u32 magic; u8 stream_id; u8 stream_instance_id; }; };
clock { name = c; freq = 1000000000; offset_s = 1700000000; };
typealias integer { size = 64; align = 8; map = clock.c.value; } := t64;
typealias integer { size = 27; align = 1; map = clock.c.value; } := t27;
typealias integer { size = 32; align = 8; map = clock.c.value; } := t32;
struct context { t64 timestamp_begin; t64 timestamp_end; u64 content_size; u64 packet_size; u64 packet_seq_num; u64 events_discarded; u32 cpu_id; };
";

/// Headers of records: LTTng's two, one with an id and a time, and one with only a time.
const HEADERS: [&str; 4] = [
    "struct { enum : integer { size = 5; align = 1; } { compact = 0 ... 30, extended = 31 } id;
        variant <id> { struct { t27 timestamp; } compact; struct { u32 id; t64 timestamp; } extended; } v; } align(8)",
    "struct { enum : integer { size = 16; align = 8; } { compact = 0 ... 65534, extended = 65535 } id;
        variant <id> { struct { t32 timestamp; } compact; struct { u32 id; t64 timestamp; } extended; } v; } align(8)",
    "struct { u8 id; t64 timestamp; }",
    "struct { t32 timestamp; }",
];

/// Events: of fixed size, of texts and sequences, of bits and variants.
const EVENTS: [&str; 4] = [
    "struct { u32 a; u64 b; }",
    "struct { u8 len; u32 seq[len]; string text; }",
    "struct { integer { size = 3; align = 1; signed = true; } x; integer { size = 13; align = 1; } y; floating_point { exp_dig = 8; mant_dig = 24; align = 32; } f; }",
    "struct { enum : u8 { NUMBER, TEXT = 1 ... 9 } tag; variant <tag> { u64 NUMBER; string TEXT; } v; u8 fixed[3]; }",
];

#[derive(Debug, Arbitrary)]
struct Packet {
    instance: u8,
    times: [u16; 2],
    number: u8,
    discarded: u8,
    records: Vec<Record>,
    padding: u8,
    /// False sizes, if any.
    content: Option<u16>,
    size: Option<u16>,
    /// Positions, and the value that the byte there is XORed with.
    damage: Vec<(u16, u8)>,
}

#[derive(Debug, Arbitrary)]
struct Record {
    id: u8,
    time: u16,
    is_extended: bool,
    fields: Vec<u8>,
}

#[derive(Debug, Arbitrary)]
struct Input {
    is_big_endian: bool,
    header: u8,
    streams: Vec<Vec<Packet>>,
}

const CONTEXT_END: usize = 6 + 6 * 8 + 4;

struct Writer {
    is_big_endian: bool,
    bytes: Vec<u8>,
}

impl Writer {
    fn number(&mut self, size_bytes: usize, value: u64) {
        let bytes = value.to_le_bytes();
        let bytes = &bytes[..size_bytes];
        if self.is_big_endian { self.bytes.extend(bytes.iter().rev()) } else { self.bytes.extend(bytes) }
    }

    fn record(&mut self, header: u8, record: &Record) {
        let (id, time) = (u64::from(record.id % 5), u64::from(record.time));
        match (header, record.is_extended) {
            (0, false) if self.is_big_endian => self.number(4, id << 27 | time),
            (0, false) => self.number(4, time << 5 | id),
            (0 | 1, true) => {
                let extended = if self.is_big_endian { 31 << 3 } else { 31 };
                if header == 0 {
                    self.number(1, extended)
                } else {
                    self.number(2, 65_535)
                }
                self.number(4, id);
                self.number(8, time);
            }
            (1, false) => {
                self.number(2, id);
                self.number(4, time);
            }
            (2, _) => {
                self.number(1, id);
                self.number(8, time);
            }
            _ => self.number(4, time),
        }
        self.bytes.extend(&record.fields[..record.fields.len().min(40)]);
    }
}

/// Returns a packet with correct sizes, unless the input has others.
fn packet(is_big_endian: bool, header: u8, packet: &Packet) -> Vec<u8> {
    let mut records = Writer { is_big_endian, bytes: Vec::new() };
    packet.records.iter().for_each(|record| records.record(header, record));
    let content = (CONTEXT_END + records.bytes.len()) as u64;
    let size = content + u64::from(packet.padding);
    let mut writer = Writer { is_big_endian, bytes: Vec::new() };
    writer.number(4, 0xC1FC_1FC1);
    writer.bytes.extend([0, packet.instance % 2]);
    packet.times.iter().for_each(|time| writer.number(8, u64::from(*time)));
    writer.number(8, 8 * packet.content.map_or(content, u64::from));
    writer.number(8, 8 * packet.size.map_or(size, u64::from));
    writer.number(8, packet.number.into());
    writer.number(8, packet.discarded.into());
    writer.number(4, 1);
    writer.bytes.extend(records.bytes);
    writer.bytes.resize(size as usize, 0xAA);
    for (at, what) in &packet.damage {
        // Only the records of a packet are damaged; its sizes stay as they are.
        let at = CONTEXT_END + usize::from(*at);
        writer.bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= what);
    }
    writer.bytes
}

fn trace(is_big_endian: bool, header: usize) -> Trace {
    let order = if is_big_endian { "be" } else { "le" };
    let mut text = TYPES.replace("ORDER", order);
    text += &format!("stream {{ id = 0; packet.context := struct context; event.header := {}; }};\n", HEADERS[header]);
    // If records have no id, there is only one class.
    let classes = if header == 3 { 1 } else { EVENTS.len() };
    for (id, fields) in EVENTS[..classes].iter().enumerate() {
        text += &format!("event {{ name = e{id}; id = {id}; stream_id = 0; fields := {fields}; }};\n");
    }
    Trace::decode(text.as_bytes()).unwrap_or_else(|error| panic!("these metadata are valid: {error}"))
}

fn events(trace: &Trace, bytes: &[u8]) -> usize {
    StreamReader::new(trace, 0, bytes).flatten().count()
}

thread_local! {
    static TRACES: [[Trace; 4]; 2] = [false, true].map(|is_big| [0, 1, 2, 3].map(|header| trace(is_big, header)));
}

fuzz_target!(|input: Input| {
    let header = input.header % 4;
    TRACES.with(|traces| {
        let trace = &traces[usize::from(input.is_big_endian)][usize::from(header)];
        let (mut streams, mut sound) = (Vec::new(), Vec::new());
        for packets in input.streams.iter().take(3) {
            let parts: Vec<Vec<u8>> = packets.iter().map(|part| packet(input.is_big_endian, header, part)).collect();
            if packets.iter().all(|packet| packet.content.is_none() && packet.size.is_none()) {
                sound.push((streams.len(), parts.iter().map(|bytes| events(trace, bytes)).sum::<usize>()));
            }
            streams.push(parts.concat());
        }
        // The remaining bits of the header and of an instance's number choose the filter.
        let filter = input.streams.iter().flatten().next().map(|packet| packet.instance / 2);
        let filter = filter.filter(|_| input.header / 32 % 2 == 1);
        let read = ctf::read(trace, &streams, How { format: input.header / 4, filter });
        let is_each = if sound.len() == streams.len() {
            sound.iter().map(|(_, each)| each).sum::<usize>() as u64 == read
        } else {
            sound.iter().all(|(index, each)| events(trace, &streams[*index]) == *each)
        };
        assert!(is_each, "a packet costs events of another");
    });
});
