//! Files in the directory of a trace, and their errors.

use std::fs::OpenOptions;
use std::os::unix::fs::symlink;
use std::path::Path;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::page::OFFSET_PACKET_SIZE;
use dormouse_ctf::{StreamReader, Value};
use dormouse_reader::TraceFiles;
use dormouse_traces::{Trace, TraceBuilder};

/// Number of events in each stream, except the state stream.
const EVENTS: u64 = 90;

/// Returns a closed trace: its state stream, and two streams of three packets each.
fn trace() -> Trace {
    let mut builder = TraceBuilder::new();
    let class = builder.class("p", "e", &[("n", FieldType::scalar(Kind::U64))]);
    for cpu in 0..2 {
        let stream = builder.stream(cpu);
        for n in 0..EVENTS {
            builder.event(stream, 100 + 2 * n + u64::from(cpu), 1, 2, class, &[Value::U64(n)]);
            if n % 30 == 29 {
                builder.packet(stream, 4096, 0);
            }
        }
    }
    builder.state(1, &dormouse_ctf::StateRecord::Lost { reason: "none", count: 0 });
    let mut trace = builder.finish();
    let mut metadata = trace.parse();
    for (name, bytes) in NAMES.iter().zip(&trace.streams) {
        let parsed = trace.parse();
        let mut reader = StreamReader::new(&parsed, 0, bytes);
        reader.by_ref().for_each(drop);
        metadata.totals.0.extend(reader.totals().map(|totals| (name.to_string(), totals)));
    }
    assert_eq!(metadata.totals.0.len(), 3);
    trace.metadata = metadata.text();
    trace
}

const NAMES: [&str; 3] = ["state", "cpu_0", "cpu_1"];

fn write(dir: &Path, trace: &Trace) {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("metadata"), &trace.metadata).unwrap();
    NAMES.iter().zip(&trace.streams).for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).unwrap());
}

fn written() -> (tempfile::TempDir, Trace) {
    let (dir, trace) = (tempfile::tempdir().unwrap(), trace());
    write(dir.path(), &trace);
    (dir, trace)
}

/// Returns the times of the events in ticks, and all messages: files left out, notices, missing parts. Checks that
/// `stats` gives the same.
fn read(path: &Path) -> (Vec<u64>, Vec<String>) {
    let files = TraceFiles::open(path).unwrap();
    let names: Vec<String> = files.names().map(String::from).collect();
    let (mut times, mut said) = (Vec::new(), files.left_out.clone());
    let mut events = files.events();
    while let Some(item) = events.next_event() {
        match item {
            Ok(event) if event.is_state() => {}
            Ok(event) => times.push(event.timestamp),
            Err(notice) => said.push(format!("{}: {notice}", names[notice.stream])),
        }
    }
    said.extend(files.missing(&events));
    let stats = files.stats();
    assert_eq!(stats.events, times.len() as u64);
    let warnings: Vec<_> = stats.warnings.iter().filter(|line| !line.contains("events lost: none")).cloned().collect();
    assert_eq!(warnings, said);
    let counts = files.counts();
    assert_eq!(counts.events(), stats.events + stats.state_events);
    assert!(times.is_sorted());
    (times, said)
}

fn all() -> Vec<u64> {
    (100..100 + 2 * EVENTS).collect()
}

fn of_cpu(cpu: u64) -> Vec<u64> {
    (0..EVENTS).map(|n| 100 + 2 * n + cpu).collect()
}

#[test]
fn a_complete_trace_is_read_in_order_without_notices() {
    let (dir, _) = written();
    assert_eq!(read(dir.path()), (all(), vec![]));
}

#[test]
fn missing_empty_truncated_and_duplicated_streams_are_reported() {
    let (dir, trace) = written();
    let at = |name: &str| dir.path().join(name);
    std::fs::remove_file(at("cpu_1")).unwrap();
    assert_eq!(read(dir.path()), (of_cpu(0), vec!["cpu_1 is missing: it held 90 events in 3 packets".into()]));
    std::fs::write(at("cpu_1"), b"").unwrap();
    assert_eq!(read(dir.path()), (of_cpu(0), vec!["cpu_1 is empty: it held 90 events in 3 packets".into()]));
    // At the end of a packet, only the totals show that events are missing.
    std::fs::write(at("cpu_1"), &trace.streams[2][..2 * 4096]).unwrap();
    let (times, said) = read(dir.path());
    assert_eq!(times.len() as u64, EVENTS + 60);
    assert_eq!(said, ["cpu_1 has 60 events in 2 packets, where 90 events in 3 packets were written"]);
    std::fs::write(at("cpu_1"), &trace.streams[2]).unwrap();
    std::fs::copy(at("cpu_1"), at("copy")).unwrap();
    assert_eq!(read(dir.path()), (all(), vec!["cpu_1 and copy are the same stream: copy is left out".into()]));
}

#[test]
fn identical_streams_of_other_tracers_are_both_read_without_times() {
    let dir = tempfile::tempdir().unwrap();
    let metadata = "/* CTF 1.8 */ trace { major = 1; minor = 8; byte_order = le;
        packet.header := struct { integer { size = 32; } magic; }; };
        event { name = e; fields := struct { integer { size = 8; } a; }; };";
    std::fs::write(dir.path().join("metadata"), metadata).unwrap();
    for name in ["a", "b"] {
        std::fs::write(dir.path().join(name), [&0xC1FC_1FC1_u32.to_le_bytes()[..], &[7]].concat()).unwrap();
    }
    let (times, said) = read(dir.path());
    assert_eq!((times.len(), said), (2, vec![]));
}

#[test]
fn stray_files_are_reported_or_skipped_and_never_read_as_events() {
    let (dir, trace) = written();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("README"), "How this trace was made: by hand, on a Thursday.\n".repeat(9)).unwrap();
    std::fs::write(at("NOTE"), "hi\n").unwrap();
    std::fs::write(at(".cpu_0.swp"), &trace.streams[1]).unwrap();
    std::fs::create_dir(at("notes")).unwrap();
    std::fs::write(at("notes/cpu_0"), &trace.streams[1]).unwrap();
    symlink(at("cpu_0"), at("link")).unwrap();
    let (times, said) = read(dir.path());
    assert_eq!(times, all());
    assert_eq!(
        said,
        [
            "link: it is not a regular file, and is left out",
            "NOTE is no stream: it is cut off: 3 of 80 bytes; it is left out",
            "README is no stream: it does not start with the magic of CTF but with 0x20776f48; it is left out",
        ]
    );
    let files = TraceFiles::open(dir.path()).unwrap();
    assert_eq!(files.notes, [".cpu_0.swp is no stream and is passed over", "notes/ is no stream and is passed over"]);
}

#[test]
fn a_damaged_packet_in_the_middle_costs_only_itself() {
    let (dir, trace) = written();
    for (offset, patch) in [(0, &[0u8; 4][..]), (80, &[9; 2]), (OFFSET_PACKET_SIZE, &[0xFF; 8]), (20, &[0xEE; 8])] {
        let mut bytes = trace.streams[1].clone();
        bytes[4096 + offset..][..patch.len()].copy_from_slice(patch);
        std::fs::write(dir.path().join("cpu_0"), bytes).unwrap();
        let (times, said) = read(dir.path());
        let expected: Vec<u64> = all().into_iter().filter(|time| time % 2 == 1 || !(160..220).contains(time)).collect();
        assert_eq!(times, expected, "{offset}: {said:?}");
        assert!(said[0].starts_with("cpu_0: packet 1 at byte 4096 "), "{said:?}");
        assert!(said.last().unwrap().starts_with("cpu_0 has 60 events in "), "{said:?}");
    }
}

#[test]
fn a_file_truncated_while_read_is_an_error_of_its_stream() {
    let (dir, _) = written();
    let files = TraceFiles::open(dir.path()).unwrap();
    let mut events = files.events();
    assert!(matches!(events.next_event(), Some(Ok(_))));
    // Shorter than what the windows hold already, so that they read the file again.
    let file = OpenOptions::new().write(true).open(dir.path().join("cpu_0")).unwrap();
    file.set_len(100).unwrap();
    let fresh = files.counts();
    assert_eq!(
        fresh.warnings,
        ["cpu_0: packet 0 at byte 0 cannot be read: the file was shortened from 12288 to 100 bytes meanwhile"]
    );
    assert_eq!(fresh.events(), EVENTS + 1);
}

#[test]
fn several_traces_and_parents_are_read_as_one() {
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a/one"), place.path().join("b"));
    write(&a, &trace());
    write(&b, &trace());
    let twice: Vec<u64> = all().into_iter().flat_map(|time| [time, time]).collect();
    assert_eq!(read(place.path()), (twice.clone(), vec![]));
    let files = TraceFiles::open_all([a.as_path(), b.as_path()]).unwrap();
    let mut names: Vec<&str> = files.names().collect();
    names.sort();
    assert_eq!(names[0], a.join("cpu_0").display().to_string());
    assert_eq!((names.len(), files.stats().events), (6, 2 * 2 * EVENTS));
    std::fs::remove_file(b.join("cpu_1")).unwrap();
    assert_eq!(read(place.path()).1, ["b/cpu_1 is missing: it held 90 events in 3 packets"]);
    let error = TraceFiles::open_all([a.as_path(), Path::new("/nowhere")]).unwrap_err().to_string();
    assert!(error.starts_with("there is no trace in /nowhere"), "{error}");
    let error = TraceFiles::open(&a.join("cpu_0")).unwrap_err().to_string();
    assert!(error.contains("lies in the trace"), "{error}");
}

#[test]
fn metadata_of_512_mib_are_refused_without_being_read() {
    let (dir, _) = written();
    let metadata = OpenOptions::new().write(true).open(dir.path().join("metadata")).unwrap();
    // A sparse file: neither the disk nor the memory could hold its contents.
    metadata.set_len(512 << 20).unwrap();
    let error = TraceFiles::open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("metadata: it is longer than 67108864 bytes"), "{error}");
}

/// Returns the timestamps of the events of a time, and the messages about index files.
fn read_range(dir: &Path, begin: i64, end: i64) -> (Vec<u64>, Vec<String>) {
    let files = TraceFiles::open(dir).unwrap();
    // Begin of the clock of the generated traces.
    let first_ns = 1_700_000_000 * 1_000_000_000;
    let (mut events, notes) = files.range(first_ns + begin, first_ns + end - 1);
    let mut times = Vec::new();
    while let Some(item) = events.next_event() {
        times.extend(item.ok().filter(|event| !event.is_state()).map(|event| event.timestamp));
    }
    // Parts that are not selected are not reported as missing.
    assert_eq!(files.missing(&events), [""; 0]);
    (times, notes)
}

/// Returns the index that LTTng would write for `cpu_0`.
fn index_of(bytes: &[u8]) -> Vec<u8> {
    let mut index = [0xC1F1_DCC1u32, 1, 1, 72].map(u32::to_be_bytes).concat();
    for offset in (0..bytes.len()).step_by(4096) {
        let header = dormouse_ctf::PacketHeader::decode(&bytes[offset..]).unwrap();
        let (packet, content) = (8 * header.packet_size_bytes, 8 * header.content_size_bytes);
        let entry = [offset as u64, packet, content, header.timestamp_begin, header.timestamp_end, 0, 0, 1, 0];
        index.extend(entry.map(u64::to_be_bytes).concat());
    }
    index
}

#[test]
fn an_index_helps_if_it_is_right_and_changes_nothing_if_it_is_wrong() {
    let (dir, trace) = written();
    std::fs::create_dir(dir.path().join("index")).unwrap();
    let right = index_of(&trace.streams[1]);
    let write = |index: &[u8]| std::fs::write(dir.path().join("index/cpu_0.idx"), index).unwrap();
    let expected: Vec<u64> = (230..260).collect();
    write(&right);
    assert_eq!(read_range(dir.path(), 230, 260), (expected.clone(), vec![]));
    assert_eq!(read_range(dir.path(), 0, 1000), (all(), vec![]));
    // The index is used: the first packet is not read. Its size is invalid, so the packets after it could not be found.
    let mut bytes = trace.streams[1].clone();
    bytes[OFFSET_PACKET_SIZE - 8..][..16].fill(0xFF);
    std::fs::write(dir.path().join("cpu_0"), &bytes).unwrap();
    assert_eq!(read_range(dir.path(), 230, 260).0, expected);
    std::fs::write(dir.path().join("cpu_0"), &trace.streams[1]).unwrap();
    let wrong = "the index of cpu_0 does not say what is in its stream, and is passed over".to_string();
    for (at, what) in [(16 + 72 + 7, 1u8), (16 + 72 + 6, 8), (16 + 72 + 15, 9), (16 + 72 + 23, 1), (16 + 72 + 31, 9)] {
        let mut index = right.clone();
        index[at] ^= what;
        write(&index);
        assert_eq!(read_range(dir.path(), 230, 260), (expected.clone(), vec![wrong.clone()]), "{at}");
    }
    write(b"no index");
    let none = "the index of cpu_0 is no index of LTTng, and is passed over".to_string();
    assert_eq!(read_range(dir.path(), 230, 260), (expected.clone(), vec![none]));
    // If the times in its entries are not in order, reading starts elsewhere, but finds the same events.
    let mut random = 7u64;
    for _ in 0..500 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut index = right.clone();
        let at = (random >> 33) as usize % index.len();
        index[at] ^= (random >> 56) as u8;
        write(&index);
        assert_eq!(read_range(dir.path(), 230, 260).0, expected, "{at}");
    }
}

/// Complete packets of a trace that is still written are read, and the rest is not reported.
#[test]
fn a_growing_trace_is_read_up_to_its_last_complete_packet() {
    let (dir, trace) = written();
    let cpu = dir.path().join("cpu_0");
    let bytes = &trace.streams[1];
    let open = || TraceFiles::open_growing(dir.path()).unwrap();
    let count = |files: &TraceFiles| {
        let mut events = files.range(i64::MIN, i64::MAX).0;
        let mut count = 0;
        while let Some(item) = events.next_event() {
            count += u64::from(!item.unwrap().is_state());
        }
        count
    };
    // Three packets of a page each.
    for (size_bytes, expected) in [(bytes.len(), 90), (bytes.len() - 1, 60), (4096 + 100, 30), (4095, 0), (0, 0)] {
        std::fs::write(&cpu, &bytes[..size_bytes]).unwrap();
        assert_eq!(count(&open()), expected + EVENTS, "{size_bytes} of {}", bytes.len());
    }
    // Data that is added while the trace is open is not read.
    std::fs::write(&cpu, &bytes[..4096]).unwrap();
    let files = open();
    std::fs::write(&cpu, bytes).unwrap();
    assert_eq!((count(&files), count(&open())), (30 + EVENTS, 2 * EVENTS));
}
