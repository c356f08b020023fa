//! Arbitrary bytes: readers do not panic, they terminate, and counting agrees with printing.

use dormouse_ctf::{Merge, Stats, StreamReader, Trace, TraceRef};
use dormouse_print::{ClockFormat, Formatter, StatsTable};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Metadata with every kind of field class, at odd alignments.
const METADATA: &str = "/* CTF 1.8 */
typealias integer { size = 8; align = 8; } := uint8_t;
typealias integer { size = 11; align = 1; signed = true; base = 16; } := eleven;
enum color : uint8_t { RED, GREEN = 5 ... 200, BLUE = 150 ... 255 };
trace { major = 1; minor = 8; byte_order = ORDER; packet.header := struct { integer { size = 32; align = 8; } magic; }; };
clock { name = c; freq = 1234567; offset = 99; };
stream { packet.context := struct { integer { size = 16; align = 8; } content_size; integer { size = 16; align = 8; } packet_size;
        uint8_t cpu_id; enum color of; };
    event.header := struct { enum : integer { size = 5; align = 1; } { compact = 0 ... 30, extended = 31 } id;
        variant <id> { struct { integer { size = 27; align = 1; map = clock.c.value; } timestamp; } compact;
            struct { uint8_t id; integer { size = 64; align = 8; map = clock.c.value; } timestamp; } extended; } v; } align(8);
    event.context := struct { uint8_t n; }; };
event { name = a; id = 0; };
event { name = b; id = 1; fields := struct { uint8_t n; enum color tag; eleven x[n]; string s[n]; struct { } empty[n];
    variant <tag> { uint8_t RED; string GREEN; struct { eleven y; floating_point { exp_dig = 8; mant_dig = 24; align = 4; } f; } BLUE; } v;
    integer { size = 8; encoding = UTF8; } text[n]; }; };
event { name = c; id = 31; fields := struct { eleven x; struct { } many[4294967295]; }; };
";

fn metadata(is_big_endian: bool) -> String {
    METADATA.replace("ORDER", if is_big_endian { "be" } else { "le" })
}

fn survive(trace: &Trace, bytes: &[u8]) -> Result<(), TestCaseError> {
    let (mut formatter, mut out, mut events) = (Formatter::new(ClockFormat::DateTime, |_| 7200), Vec::new(), 0);
    for item in Merge::new([StreamReader::new(trace, 0, bytes), StreamReader::new(trace, 1, &[])]) {
        match item {
            Ok(event) => {
                formatter.event(&event, &mut out);
                events += 1;
            }
            Err(notice) => prop_assert!(!formatter.warning(&notice, "stream").is_empty()),
        }
    }
    let stats = Stats::of_traces(&[TraceRef::from(trace)], [(0, "stream", bytes)]);
    prop_assert_eq!(stats.events, events);
    prop_assert!(!StatsTable(&stats).to_string().is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_streams_are_survived(is_big_endian in any::<bool>(), packets in vec(vec(prop_oneof![0..8u8, any::<u8>()], 0..200), 0..4)) {
        let trace = Trace::decode(metadata(is_big_endian).as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let mut bytes = Vec::new();
        for packet in packets {
            let size = 8 * (packet.len() as u16 + 10);
            let (magic, size) = match is_big_endian {
                true => (0xC1FC_1FC1u32.to_be_bytes(), size.to_be_bytes()),
                false => (0xC1FC_1FC1u32.to_le_bytes(), size.to_le_bytes()),
            };
            bytes.extend([&magic[..], &size, &size, &[0, 6], &packet].concat());
        }
        survive(&trace, &bytes)?;
        bytes.truncate(bytes.len() * 2 / 3);
        survive(&trace, &bytes)?;
    }

    #[test]
    fn arbitrary_metadata_are_survived(
        patches in vec((any::<Index>(), prop_oneof![any::<char>(), select_signs()]), 0..5),
        cuts in vec((any::<Index>(), 0..20usize), 0..3),
        bytes in vec(any::<u8>(), 0..100),
    ) {
        let mut text: Vec<char> = metadata(false).chars().collect();
        for (index, c) in patches {
            let index = index.index(text.len());
            text[index] = c;
        }
        for (index, count) in cuts {
            let begin = index.index(text.len());
            text.drain(begin..(begin + count).min(text.len()));
        }
        if let Ok(trace) = Trace::decode(text.into_iter().collect::<String>().as_bytes()) {
            survive(&trace, &[&0xC1FC_1FC1u32.to_le_bytes()[..], &bytes].concat())?;
        }
    }
}

fn select_signs() -> impl Strategy<Value = char> {
    proptest::sample::select("{}<>[]();:=.,\"*/-0189 abn_".chars().collect::<Vec<_>>())
}

/// Elements of size zero take no bytes of a stream. A record with too many is invalid, for counting and for printing.
#[test]
fn elements_of_size_0_are_bounded() {
    let read = |class: &str, bytes: &[u8]| {
        let text = format!(
            "trace {{ major = 1; minor = 8; byte_order = le; }};
            stream {{ event.header := struct {{ struct {{ }} h[3]; }}; }};
            event {{ name = a; fields := struct {{ integer {{ size = 8; }} n; {class}; }}; }};"
        );
        let trace = Trace::decode(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let (mut lines, mut notices) = (Vec::new(), Vec::new());
        let mut formatter = Formatter::new(ClockFormat::DateTime, |_| 0);
        for item in Merge::new([StreamReader::new(&trace, 0, bytes)]) {
            match item {
                Ok(event) => {
                    let mut line = Vec::new();
                    formatter.event(&event, &mut line);
                    lines.push(String::from_utf8_lossy(&line).into_owned());
                }
                Err(notice) => notices.push(notice.to_string()),
            }
        }
        let stats = Stats::of_traces(&[TraceRef::from(&trace)], [(0, "stream", bytes)]);
        assert_eq!((stats.events, stats.warnings.len()), (lines.len() as u64, notices.len()), "{class}");
        (lines, notices)
    };
    for class in ["struct { } x[1024]", "struct { struct { } y[3]; } x[256]"] {
        let (lines, notices) = read(class, &[7, 8]);
        assert_eq!((lines.len(), notices.len()), (2, 0), "{class}");
        assert!(lines.iter().all(|line| line.ends_with("] }\n")), "{class}: {lines:?}");
    }
    // The limit applies to each record separately.
    assert_eq!(read("struct { } x[2]", &[0; 1000]).0.len(), 1000);
    for class in ["struct { } x[1025]", "struct { struct { } y[145]; } x[145]", "struct { } x[4294967295]"] {
        let (lines, notices) = read(class, &[7, 8]);
        assert_eq!(lines.len(), 0, "{class}");
        assert!(notices[0].contains("has too many elements without size"), "{class}: {notices:?}");
    }
}

/// Sizes near the limits of 64 bits count as packets that are cut off.
#[test]
fn packets_of_the_largest_size() {
    let read = |name: &str, size_bits: u64| {
        let text = format!(
            "trace {{ major = 1; minor = 8; byte_order = le; }};
            typealias integer {{ size = 8; }} := u8;
            stream {{ packet.context := struct {{ integer {{ size = 64; }} {name}; }}; }};
            event {{ name = a; fields := struct {{ u8 n; }}; }};"
        );
        let trace = Trace::decode(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let bytes = [&size_bits.to_le_bytes()[..], &[1, 2, 3]].concat();
        let items: Vec<_> = StreamReader::new(&trace, 0, &bytes).collect();
        let notices: Vec<String> = items.iter().filter_map(|item| Some(item.as_ref().err()?.to_string())).collect();
        (items.len() - notices.len(), notices.concat())
    };
    for (name, size_bits, events, told) in [
        ("content_size", u64::MAX, 3, "is cut off"),
        ("content_size", u64::MAX - 7, 3, "is cut off"),
        ("packet_size", u64::MAX - 7, 3, "is cut off"),
        ("packet_size", u64::MAX, 0, "18446744073709551615"),
        ("content_size", 8 * 11, 3, ""),
        // The last byte is only begun, and is not a record.
        ("content_size", 8 * 10 + 1, 2, "record"),
    ] {
        let (found, notices) = read(name, size_bits);
        assert_eq!(found, events, "{name} {size_bits}: {notices}");
        assert!(notices.contains(told), "{name} {size_bits}: {notices}");
    }
}
