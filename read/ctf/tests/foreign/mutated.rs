//! Valid traces with changed bytes in headers and bodies of packets. At least as many of their events are printed as by
//! babeltrace2.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use dormouse_traces::BitWriter;

use super::made::{INTEGERS, MAGIC};
use super::{is_reference, output, view};

const PACKET_BYTES: usize = 512;
const PACKETS: u64 = 4;
/// Size of a packet's header and context, in bytes.
const HEADER_BYTES: usize = 32 + 4 * 8 + 2 * 8 + 4;

/// Metadata like LTTng's: compact and extended records, a clock, sizes, and packet numbers.
fn metadata() -> String {
    format!(
        "/* CTF 1.8 */\n{INTEGERS}
        trace {{ major = 1; minor = 8; byte_order = le; uuid = \"01010101-0101-0101-0101-010101010101\";
            packet.header := struct {{ uint32_t magic; uint8_t uuid[16]; uint32_t stream_id; uint64_t stream_instance_id; }}; }};
        clock {{ name = c; freq = 1000000000; offset_s = 1700000000; }};
        typealias integer {{ size = 27; align = 1; map = clock.c.value; }} := short_time;
        typealias integer {{ size = 64; align = 8; map = clock.c.value; }} := time;
        stream {{ id = 0;
            packet.context := struct {{ time timestamp_begin; time timestamp_end; uint64_t content_size; uint64_t packet_size;
                uint64_t packet_seq_num; uint64_t events_discarded; uint32_t cpu_id; }};
            event.header := struct {{ enum : integer {{ size = 5; align = 1; }} {{ compact = 0 ... 30, extended = 31 }} id;
                variant <id> {{ struct {{ short_time timestamp; }} compact; struct {{ uint32_t id; time timestamp; }} extended; }} v;
            }} align(8); }};
        event {{ name = text; id = 0; stream_id = 0; fields := struct {{ uint32_t n; string s; }}; }};
        event {{ name = numbers; id = 1; stream_id = 0; fields := struct {{ uint32_t n; uint8_t len; uint16_t numbers[len]; }}; }};
        event {{ name = far; id = 40; stream_id = 0; fields := struct {{ uint32_t n; }}; }};"
    )
}

/// Returns packets of one stream. Each event has a unique number.
fn stream(instance: u64) -> Vec<u8> {
    let (mut bytes, mut n) = (Vec::new(), 1000 * instance);
    for packet in 0..PACKETS {
        let begin = 10_000 * (packet + 1) + instance;
        let mut records = BitWriter::new(false);
        for index in 0..12 {
            n += 1;
            let time = begin + 100 * index;
            match index % 3 {
                2 => records.number(8, 31).number(32, 40).number(64, time).number(32, n),
                kind => records.number(5, kind).number(27, time).number(32, n),
            };
            match index % 3 {
                // For an empty text, babeltrace2 2.0 prints another one.
                0 => records.text(&"text ".repeat(1 + n as usize % 2)),
                1 => records.number(8, n % 4).bytes(&[n as u8; 8][..2 * (n as usize % 4)]),
                _ => &mut records,
            };
        }
        let records = records.finish(0);
        let content = 8 * (HEADER_BYTES + records.len()) as u64;
        let mut writer = BitWriter::new(false);
        writer.number(32, MAGIC).bytes(&[1; 16]).number(32, 0).number(64, instance).number(64, begin);
        writer.number(64, begin + 1100).number(64, content).number(64, 8 * PACKET_BYTES as u64);
        writer.number(64, packet).number(64, 0).number(32, instance);
        bytes.extend(writer.bytes(&records).finish(PACKET_BYTES));
    }
    bytes
}

/// Counts the lines, without the time since the previous event.
fn lines(text: &[u8]) -> HashMap<String, usize> {
    let mut lines = HashMap::new();
    for line in String::from_utf8_lossy(text).lines() {
        let (time, rest) = line.split_once(" (+").expect("a time");
        let (_, event) = rest.split_once(") ").expect("a time since the one before");
        *lines.entry(format!("{time} {event}")).or_default() += 1;
    }
    lines
}

fn sound(text: &[u8], valid: &HashMap<String, usize>) -> usize {
    lines(text).iter().map(|(line, count)| valid.get(line).map_or(0, |valid| *count.min(valid))).sum()
}

/// Changes a stream at random, and describes the change.
fn mutate(bytes: &mut Vec<u8>, random: &mut impl FnMut(usize) -> usize) -> String {
    let packet = random(PACKETS as usize) * PACKET_BYTES;
    // Headers are changed as often as records, and sometimes the bytes after the records.
    let at = packet
        + match random(5) {
            0 | 1 => random(HEADER_BYTES),
            2 | 3 => HEADER_BYTES + random(200),
            _ => random(PACKET_BYTES),
        };
    match random(7) {
        0 | 1 => {
            let bit = random(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} is turned")
        }
        2 => {
            let byte = random(256) as u8;
            bytes[at] = byte;
            format!("byte {at} is {byte}")
        }
        3 => {
            let end = (at + 1 + random(16)).min(bytes.len());
            bytes[at..end].fill(0);
            format!("bytes {at} to {end} are 0")
        }
        4 => {
            bytes.truncate(at);
            format!("there are {at} bytes alone")
        }
        5 => {
            bytes.drain(packet..packet + PACKET_BYTES);
            format!("the packet at byte {packet} is not there")
        }
        _ => {
            let end = (at + 8).min(bytes.len());
            let noise: Vec<u8> = (at..end).map(|_| random(256) as u8).collect();
            bytes[at..end].copy_from_slice(&noise);
            format!("bytes {at} to {end} are {noise:?}")
        }
    }
}

fn write(directory: &Path, streams: &[Vec<u8>]) {
    for (index, bytes) in streams.iter().enumerate() {
        std::fs::write(directory.join(format!("stream_{index}")), bytes).expect("a stream");
    }
}

fn theirs(directory: &Path) -> Option<Vec<u8>> {
    // A changed length can make babeltrace2 allocate all memory, so it is limited.
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "command -v babeltrace2 > /dev/null || exit 99; ulimit -v 400000; ulimit -t 2; exec babeltrace2 \"$0\"",
    ]);
    let output = output(command.arg(directory).env("TZ", "UTC").env("LC_ALL", "C.UTF-8"), "sh")?;
    if output.status.code() == Some(99) {
        dormouse_testing::skip(dormouse_testing::Lack::program("babeltrace2"));
        return None;
    }
    Some(output.stdout)
}

#[test]
fn mutated_traces_give_at_least_the_events_of_babeltrace2() {
    if !is_reference() {
        return;
    }
    let count: u64 = std::env::var("DORMOUSE_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    let seed: u64 = std::env::var("DORMOUSE_MUTATION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    std::fs::write(directory.join("metadata"), metadata()).expect("metadata");
    let whole = [stream(1), stream(2)];
    write(directory, &whole);
    let Some(text) = theirs(directory) else { return };
    let (ours, notices) = view(directory);
    assert!(ours == text && notices.is_empty(), "{notices:?}");
    let valid = lines(&text);
    let all: usize = valid.values().sum();
    assert_eq!(all, 2 * 12 * PACKETS as usize);
    let (mut left, mut fewer) = ([0, 0], Vec::new());
    for seed in seed..seed + count {
        let mut random = dormouse_testing::random(seed);
        let mut streams = whole.clone();
        let how = mutate(&mut streams[random(2)], &mut random);
        write(directory, &streams);
        let (ours, notices) = view(directory);
        let Some(text) = theirs(directory) else { return };
        let (ours, theirs) = (sound(&ours, &valid), sound(&text, &valid));
        left = [left[0] + ours, left[1] + theirs];
        if ours < theirs {
            fewer.push(format!("DORMOUSE_MUTATION_SEED={seed}: {ours} of {theirs} events, where {how}: {notices:?}"));
        }
    }
    println!("of {} events {} are left, in babeltrace2 {}", count as usize * all, left[0], left[1]);
    assert!(fewer.is_empty(), "{}", fewer.join("\n"));
}
