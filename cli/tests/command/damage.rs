//! `dormouse view` and `dormouse stats` of damaged traces: both print what is there, warn of what is missing, and say
//! so by their exit code.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::page::{OFFSET_UUID, STREAM_EVENTS, STREAM_STATE};
use dormouse_ctf::{Metadata, PacketHeader, StateRecord, StreamTotals, Value};
use dormouse_traces::TraceBuilder;
use serde_json::Value as Json;

use crate::DORMOUSE;

/// Size of a packet of events, in bytes.
const PACKET_BYTES: usize = 4096;
/// Number of events in a packet: a record has 16 bytes of header and 8 of its field.
const PACKET_EVENTS: u64 = 100;

/// Writes a closed trace: a state stream with one record, and for each of `packets` a stream of that many packets.
fn write(dir: &Path, packets: &[u64]) {
    let mut trace = TraceBuilder::new();
    let class = trace.class("shop", "order", &[("n", FieldType::scalar(Kind::U64))]);
    let session = StateRecord::Session { mode: "discard", budget_bytes: 1, page_size_bytes: 4096, command_line: "" };
    trace.state(0, &session);
    for (cpu, packets) in (0..).zip(packets) {
        let stream = trace.stream(cpu);
        for number in 0..packets * PACKET_EVENTS {
            trace.event(stream, 10 + number, 1, 2, class, &[Value::U64(number)]);
            if (number + 1) % PACKET_EVENTS == 0 {
                trace.packet(stream, PACKET_BYTES, 0);
            }
        }
    }
    let trace = trace.finish();
    let mut metadata = trace.parse();
    let names = std::iter::once("state".into()).chain((0..packets.len()).map(|cpu| format!("cpu_{cpu}")));
    for (instance, (name, bytes)) in (0u32..).zip(names.zip(&trace.streams)) {
        std::fs::write(dir.join(&name), bytes).expect("a stream");
        let packets = instance.checked_sub(1).map_or(1, |cpu| packets[cpu as usize]);
        let totals = StreamTotals {
            stream_id: if instance == 0 { STREAM_STATE } else { STREAM_EVENTS },
            stream_instance_id: instance,
            events: if instance == 0 { 1 } else { packets * PACKET_EVENTS },
            packets,
            events_discarded: 0,
        };
        metadata.totals.0.insert(name, totals);
    }
    std::fs::write(dir.join("metadata"), metadata.text()).expect("metadata");
}

fn trace(packets: &[u64]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), packets);
    dir
}

fn dormouse(arguments: &[&str], dir: &Path) -> Output {
    Command::new(DORMOUSE).args(arguments).arg(dir).output().expect("dormouse runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Runs both commands, which must agree. Returns the exit code, the number of events and the warnings.
fn read(dir: &Path) -> (i32, u64, Vec<String>) {
    let stats = dormouse(&["stats", "--json"], dir);
    let code = stats.status.code().unwrap_or_else(|| panic!("{stats:?}"));
    let view = dormouse(&["view"], dir);
    assert_eq!(view.status.code(), Some(code), "{view:?}");
    let errors = stderr(&view);
    if code == 2 {
        assert_eq!(errors, stderr(&stats));
        // An error in the metadata is followed by the line, and a caret below the error.
        let is_text = errors.contains(", column ");
        assert_eq!(errors.lines().count(), if is_text { 3 } else { 1 }, "{errors}");
        return (code, 0, errors.lines().take(1).map(String::from).collect());
    }
    let json: Json = serde_json::from_slice(&stats.stdout).expect("statistics are JSON");
    let number = |name: &str| json[name].as_u64().expect("a number");
    let events = number("events");
    let lines = view.stdout.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert_eq!(lines, events + number("state_events"));
    let list = json["warnings"].as_array().expect("an array");
    let mut warnings: Vec<String> = list.iter().map(|warning| warning.as_str().expect("text").to_string()).collect();
    // Only `view` warns of losses that packets state.
    let is_warning = |line: &&str| !line.contains("discarded between");
    let is_warning_of_trace = |line: &&str| line.starts_with("dormouse: warning: ");
    let (mut shown, closing): (Vec<_>, Vec<_>) = errors.lines().filter(is_warning).partition(is_warning_of_trace);
    // The last line says what was lost, if anything was. `stats` also says that a trace was not closed.
    let causes = json["loss_possible"].as_array().expect("an array").iter().map(|cause| cause["cause"].to_string());
    let is_loss = number("events_lost") > 0 || causes.filter(|cause| !cause.contains("was not closed")).count() > 0;
    assert_eq!(closing.len(), usize::from(is_loss), "{errors}");
    assert!(closing.iter().all(|line| line.contains(" lost")), "{errors}");
    shown.sort_unstable();
    warnings.sort();
    assert_eq!(shown, warnings.iter().map(|line| format!("dormouse: warning: {line}")).collect::<Vec<_>>());
    (code, events, warnings)
}

#[test]
fn a_whole_trace_has_no_warnings() {
    assert_eq!(read(trace(&[3, 2]).path()), (0, 500, vec![]));
}

/// A file that `view` reads becomes shorter while the reader of its output waits.
#[test]
fn a_stream_truncated_during_view_is_read_up_to_its_end() {
    let trace = trace(&[4000]);
    let path = trace.path().join("cpu_0");
    let mut view = Command::new(DORMOUSE);
    view.args(["view"]).arg(trace.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut view = view.spawn().expect("dormouse runs");
    let mut stdout = view.stdout.take().expect("a pipe");
    let mut text = vec![0];
    stdout.read_exact(&mut text).expect("it has begun");
    // Until now `view` has read at most the capacity of a pipe and some blocks, less than half of 16 MB.
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a stream");
    file.set_len(2000 * PACKET_BYTES as u64 + 80 + 24 * 7 + 1).expect("it is shortened");
    stdout.read_to_end(&mut text).expect("text");
    let output = view.wait_with_output().expect("it ends");
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = "cpu_0: packet 2000 at byte 8192000 cannot be read: the file was shortened from 16384000 to 8192249";
    assert!(errors.contains(expected), "{errors}");
    assert!(
        errors.contains("cpu_0 has 200007 events in 2001 packets, where 400000 events in 4000 packets were written")
    );
    let text = String::from_utf8(text).expect("text");
    assert_eq!(text.lines().count(), 200_007 + 1);
    assert!(text.ends_with("{ n = 200006 }\n"));
}

#[test]
fn missing_empty_duplicated_and_short_streams_are_reported() {
    type Damage = fn(&Path);
    let held = |count: u64| format!("{} events in {count} packets", count * PACKET_EVENTS);
    let another = "belongs to another trace: its uuid is not that of the metadata; it is left out";
    let doubled = "cpu_1 and cpu_1_copy are the same stream: cpu_1_copy is left out";
    let cases: [(&str, Damage, u64, Vec<String>); 12] = [
        (
            "missing",
            |dir| std::fs::remove_file(dir.join("cpu_1")).unwrap(),
            300,
            vec![format!("cpu_1 is missing: it held {}", held(2))],
        ),
        (
            "a directory",
            |dir| {
                std::fs::remove_file(dir.join("cpu_1")).unwrap();
                std::fs::create_dir(dir.join("cpu_1")).unwrap();
            },
            300,
            vec![format!("cpu_1 is missing: it held {}", held(2))],
        ),
        (
            "empty",
            |dir| std::fs::write(dir.join("cpu_1"), "").unwrap(),
            300,
            vec![format!("cpu_1 is empty: it held {}", held(2))],
        ),
        ("doubled", |dir| copy(dir, "cpu_1", "cpu_1_copy"), 500, vec![doubled.into()]),
        (
            "doubled, of another name",
            |dir| copy(dir, "cpu_1", "a_0"),
            500,
            vec!["cpu_1 and a_0 are the same stream: a_0 is left out".into()],
        ),
        // A renamed stream is not damage.
        ("renamed", |dir| std::fs::rename(dir.join("cpu_1"), dir.join("cpu_7")).unwrap(), 500, vec![]),
        (
            "one is the other",
            |dir| copy(dir, "cpu_0", "cpu_1"),
            300,
            vec![
                "cpu_0 and cpu_1 are the same stream: cpu_1 is left out".into(),
                format!("cpu_1 is missing: it held {}", held(2)),
            ],
        ),
        (
            "doubled and damaged",
            |dir| {
                for name in ["cpu_1", "cpu_1_copy"] {
                    let mut bytes = std::fs::read(dir.join("cpu_1")).unwrap();
                    bytes[OFFSET_UUID] ^= u8::from(name == "cpu_1");
                    std::fs::write(dir.join(name), bytes).unwrap();
                }
            },
            400,
            vec![
                doubled.into(),
                "cpu_1 has 100 events in 1 packet, where 200 events in 2 packets were written".into(),
                format!("cpu_1: packet 0 at byte 0 {another}"),
            ],
        ),
        // Cut between two packets: no remaining packet shows it.
        (
            "cut off",
            |dir| shorten(&dir.join("cpu_0"), 2 * PACKET_BYTES),
            400,
            vec![format!("cpu_0 has {}, where {} were written", held(2), held(3))],
        ),
        (
            "nothing but noise",
            |dir| std::fs::write(dir.join("cpu_1"), [7; 100]).unwrap(),
            300,
            vec![
                format!("cpu_1 has nothing that can be read: it held {}", held(2)),
                "cpu_1: packet 0 at byte 0 does not start with the magic of CTF but with 0x07070707".into(),
            ],
        ),
        (
            "a stranger",
            |dir| {
                let mut bytes = std::fs::read(dir.join("cpu_1")).unwrap();
                bytes.truncate(PACKET_BYTES);
                let header = PacketHeader { stream_instance_id: 77, ..PacketHeader::decode(&bytes).unwrap() };
                bytes[..80].copy_from_slice(&header.encode());
                std::fs::write(dir.join("cpu_76"), bytes).unwrap();
            },
            600,
            vec!["cpu_76 is none of the streams that were written: it has stream id 0 and instance 77".into()],
        ),
        (
            "no state",
            |dir| std::fs::remove_file(dir.join("state")).unwrap(),
            500,
            vec!["state is missing: it held 1 event in 1 packet".into()],
        ),
    ];
    for (name, damage, events, warnings) in cases {
        let trace = trace(&[3, 2]);
        damage(trace.path());
        assert_eq!(read(trace.path()), (i32::from(!warnings.is_empty()), events, warnings), "{name}");
    }
}

fn copy(dir: &Path, from: &str, to: &str) {
    std::fs::copy(dir.join(from), dir.join(to)).unwrap();
}

fn shorten(path: &Path, len: usize) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len as u64).unwrap();
}

#[test]
fn only_the_packet_of_another_trace_is_left_out() {
    let trace = trace(&[5]);
    let path = trace.path().join("cpu_0");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2 * PACKET_BYTES + OFFSET_UUID] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let warnings = [
        "cpu_0 has 400 events in 4 packets, where 500 events in 5 packets were written",
        "cpu_0: packet 2 at byte 8192 belongs to another trace: its uuid is not that of the metadata; it is left out",
        "cpu_0: packet 3 at byte 12288 has number 3 where 2 was expected",
    ];
    assert_eq!(read(trace.path()), (1, 400, warnings.map(String::from).to_vec()));
}

/// Removes packets from a stream.
fn take_out(path: &Path, packets: std::ops::Range<usize>) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes.drain(packets.start * PACKET_BYTES..packets.end * PACKET_BYTES);
    std::fs::write(path, bytes).unwrap();
}

/// Removes the totals that the session has written at its end.
fn open_again(dir: &Path) {
    let path = dir.join("metadata");
    let metadata = Metadata::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    std::fs::write(&path, Metadata { totals: Default::default(), ..metadata }.text()).unwrap();
}

#[test]
fn missing_packets_are_reported_at_their_place() {
    let trace = trace(&[5, 2]);
    take_out(&trace.path().join("cpu_0"), 1..3);
    let gap = "cpu_0: packet 1 at byte 4096 has number 3 where 1 was expected".to_string();
    let totals = "cpu_0 has 300 events in 3 packets, where 500 events in 5 packets were written".to_string();
    let (code, events, mut warnings) = read(trace.path());
    warnings.sort();
    assert_eq!((code, events, warnings), (1, 500, vec![totals, gap.clone()]));

    // A row has the range of the gap: after the last event of packet 0, before packet 3. Events in the missing packets
    // were not counted.
    let place = |ns: u64| 1_700_000_000_000_000_000 + ns;
    let row = serde_json::json!({
        "stream": "cpu_0", "begin_ns": place(10 + 99), "end_ns": place(10 + 300), "events": 0, "packets": 2
    });
    let shown = "\nLOST  PACKETS                  FROM                    TO  STREAM\n   0        2  1700000000.000000109  1700000000.000000310  cpu_0\n";
    for question in [&[][..], &["--by", "cpu"]] {
        let stats = |more: &[&str]| {
            let output = dormouse(&[&["stats"], question, more].concat(), trace.path());
            assert_eq!(output.status.code(), Some(1), "{question:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let json: Json = serde_json::from_str(&stats(&["--json"])).unwrap();
        let places = if question.is_empty() { &json["loss_places"]["places"] } else { &json["lost"]["places"] };
        let places = places.get("places").unwrap_or(places);
        assert_eq!(*places, serde_json::json!([row]), "{question:?}: {json:#}");
        let text = stats(&[]);
        assert!(text.contains(shown), "{text}");
        assert!(
            text.contains("\nlost      unknown\n          because parts of the trace are missing or damaged\n"),
            "{text}"
        );
    }

    // Without totals, only packet numbers show gaps. They do not show missing packets at the beginning or the end.
    open_again(trace.path());
    assert_eq!(read(trace.path()), (1, 500, vec![gap]));
    take_out(&trace.path().join("cpu_0"), 0..1);
    take_out(&trace.path().join("cpu_0"), 1..2);
    assert_eq!(read(trace.path()), (0, 300, vec![]));
    // The gap is not reported for a time range outside it, and in full for one that overlaps it.
    let other = self::trace(&[5]);
    take_out(&other.path().join("cpu_0"), 1..3);
    for (options, expected) in [(&["--until", "+50ns"], 0), (&["--since", "+450ns"], 0), (&["--since", "+50ns"], 1)] {
        for command in ["view", "stats"] {
            let output = dormouse(&[&[command], &options[..]].concat(), other.path());
            let text = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(expected), "{command} {options:?}: {text}");
            assert_eq!(
                text.contains("has number 3 where 1 was expected"),
                expected == 1,
                "{command} {options:?}: {text}"
            );
        }
    }
}

#[test]
fn stats_warns_of_streams_that_may_be_missing_from_an_unclosed_trace() {
    let trace = trace(&[1, 1]);
    let text = |dir: &Path| String::from_utf8(dormouse(&["stats"], dir).stdout).unwrap();
    let note = "\nnote: this trace was not closed, so a stream that is missing cannot be told\n";
    assert!(!text(trace.path()).contains("note:"));
    open_again(trace.path());
    assert!(text(trace.path()).ends_with(note));
    std::fs::remove_file(trace.path().join("cpu_1")).unwrap();
    assert_eq!(read(trace.path()), (0, 100, vec![]));
    // A duplicated stream is detected.
    std::fs::copy(trace.path().join("cpu_0"), trace.path().join("cpu_0_copy")).unwrap();
    let warning = "cpu_0 and cpu_0_copy are the same stream: cpu_0_copy is left out".to_string();
    assert_eq!(read(trace.path()), (1, 100, vec![warning]));
}

#[test]
fn unreadable_metadata_is_reported_with_its_position() {
    let trace = trace(&[1]);
    let path = trace.path().join("metadata");
    let text = std::fs::read(&path).unwrap();
    let error_of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let (code, _, mut errors) = read(trace.path());
        assert_eq!(code, 2);
        errors.remove(0).replacen(&path.display().to_string(), "PATH", 1)
    };
    let mut odd = text.clone();
    odd[100] = 0xFF;
    assert_eq!(
        error_of(&odd),
        "dormouse: PATH: byte 100 is no UTF-8: these are no metadata of CTF, or they are damaged there"
    );
    let twice = String::from_utf8(text.clone()).unwrap().replacen("\tdomain", "\thostname = \"b\";\n\tdomain", 1);
    let twice_said = "the key hostname is in the env declaration twice; take one of the two away";
    let line = twice.lines().position(|line| line.contains("\"b\"")).unwrap() + 1;
    assert_eq!(error_of(twice.as_bytes()), format!("dormouse: PATH: line {line}, column 2: {twice_said}"));
    // Metadata in packets are read.
    let mut packets = Vec::new();
    for part in text.chunks(1000) {
        let size_bits = 8 * (37 + part.len() as u32);
        packets.extend([0x57, 0x1D, 0xD1, 0x75]);
        packets.extend([1; 16]);
        [0, size_bits, size_bits].into_iter().for_each(|number: u32| packets.extend(number.to_le_bytes()));
        packets.extend([0, 0, 0, 1, 8]);
        packets.extend(part);
    }
    std::fs::write(&path, &packets).unwrap();
    assert_eq!(read(trace.path()), (0, 100, vec![]));
    packets.pop();
    let error = error_of(&packets);
    assert!(error.starts_with("dormouse: PATH: the packet of metadata at byte ") && error.ends_with(" is cut off"));
}

#[test]
fn more_streams_than_the_default_file_limit_are_read() {
    let trace = trace(&[1; 100]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -S -n 30 && exec \"$0\" stats --json \"$1\"", DORMOUSE]).arg(trace.path());
    let output = shell.output().expect("a shell");
    assert!(output.status.success(), "{output:?}");
    let json: Json = serde_json::from_slice(&output.stdout).expect("statistics are JSON");
    assert_eq!(json["events"], 100 * PACKET_EVENTS);
}

/// Random damage to a closed trace causes no panic, and all missing events are reported.
#[test]
fn every_damage_is_reported() {
    let seed = std::env::var("DORMOUSE_DAMAGE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let count: u64 = std::env::var("DORMOUSE_DAMAGES").ok().and_then(|count| count.parse().ok()).unwrap_or(150);
    let names = ["metadata", "state", "cpu_0", "cpu_1", "cpu_2"];
    for seed in seed..seed + count {
        let mut random = dormouse_testing::random(seed);
        let trace = trace(&[3, 1, 2]);
        for _ in 0..=random(2) {
            let path = trace.path().join(names[random(names.len())]);
            let Ok(mut bytes) = std::fs::read(&path) else { continue };
            let offset = random(bytes.len().max(1)) / if random(2) == 0 { 1 } else { PACKET_BYTES } * 2;
            let other = trace.path().join(names[1 + random(names.len() - 1)]);
            match random(8) {
                0 => std::fs::remove_file(&path).unwrap(),
                1 => std::fs::write(other, bytes).unwrap(),
                2 => std::fs::write(path.with_extension("copy"), bytes).unwrap(),
                3 => std::fs::rename(&path, other).unwrap(),
                4 => {
                    bytes.truncate(offset / PACKET_BYTES * PACKET_BYTES);
                    std::fs::write(&path, bytes).unwrap();
                }
                5 => {
                    bytes.truncate(offset);
                    std::fs::write(&path, bytes).unwrap();
                }
                6 => {
                    bytes.extend_from_within(..);
                    std::fs::write(&path, bytes).unwrap();
                }
                _ => {
                    // In half of the cases the bit is in a packet's header.
                    let offset =
                        if random(2) == 0 { offset / PACKET_BYTES * PACKET_BYTES + random(80) } else { offset };
                    bytes.get_mut(offset).into_iter().for_each(|byte| *byte ^= 1 << random(8));
                    std::fs::write(&path, bytes).unwrap();
                }
            }
        }
        let at = format!("DORMOUSE_DAMAGE_SEED={seed} DORMOUSE_DAMAGES=1 replays it");
        let output = dormouse(&["stats", "--json"], trace.path());
        let errors = stderr(&output);
        assert!(output.status.code().is_some_and(|code| code <= 2) && !errors.contains("panicked"), "{at}: {output:?}");
        if output.status.success() {
            let json: Json = serde_json::from_slice(&output.stdout).expect("statistics are JSON");
            let is_whole = (&json["events"], &json["state_events"]) == (&Json::from(600), &Json::from(1));
            assert!(is_whole, "{at}: {json:#}");
        }
    }
}
