//! Irregular or rare forms that tracers write. They are read as babeltrace2 reads them.

use dormouse_traces::BitWriter;

use super::is_reference;
use super::made::{INTEGERS, MAGIC, printed_alike};

const CLOCK: &str = "clock { name = c; freq = 1000000000; offset_s = 1700000000; };
    typealias integer { size = 64; align = 8; map = clock.c.value; } := time;";

/// Records without a time have the begin time of their packet, or the end time of the previous packet if packets only
/// have end times.
#[test]
fn records_without_a_time_have_that_of_their_packet() {
    if !is_reference() {
        return;
    }
    for times in [&["timestamp_end"][..], &["timestamp_begin"], &["timestamp_begin", "timestamp_end"]] {
        let members: String = times.iter().map(|name| format!("time {name}; ")).collect();
        let metadata = format!(
            "/* CTF 1.8 */\n{INTEGERS} trace {{ major = 1; minor = 8; byte_order = le; }}; {CLOCK}
            stream {{ packet.context := struct {{ uint64_t packet_size; uint64_t content_size; {members} }};
                event.header := struct {{ uint8_t id; }}; }};
            event {{ name = e; id = 0; fields := struct {{ uint8_t n; }}; }};"
        );
        let mut bytes = Vec::new();
        for packet in 0..4u64 {
            let mut writer = BitWriter::new(false);
            writer.number(64, 8 * 64).number(64, 8 * (16 + 8 * times.len() as u64 + 4));
            times.iter().for_each(|name| {
                writer.number(64, if *name == "timestamp_begin" { 100 * packet } else { 100 * packet + 70 });
            });
            writer.number(8, 0).number(8, packet).number(8, 0).number(8, 100 + packet);
            bytes.extend(writer.finish(64));
        }
        let Some(notices) = printed_alike(&metadata, &[bytes]) else { return };
        assert_eq!(notices, [""; 0], "{times:?}");
    }
}

fn early(version: [u32; 3]) -> (String, Vec<u8>) {
    let [major, minor, patch] = version;
    let metadata = format!(
        "/* CTF 1.8 */\n{INTEGERS} trace {{ major = 1; minor = 8; byte_order = le; packet.header := struct {{ uint32_t magic; }}; }};
        env {{ tracer_name = \"barectf\"; tracer_major = {major}; tracer_minor = {minor}; tracer_patch = {patch}; }}; {CLOCK}
        stream {{ packet.context := struct {{ time timestamp_begin; time timestamp_end; uint64_t packet_size; uint64_t content_size; }};
            event.header := struct {{ time timestamp; uint8_t id; }}; }};
        event {{ name = e; id = 0; }};"
    );
    let mut bytes = Vec::new();
    for (begin, end, times) in [(100, 200, [110, 190]), (300, 400, [205, 390])] {
        let mut writer = BitWriter::new(false);
        writer.number(32, MAGIC).number(64, begin).number(64, end).number(64, 8 * 64).number(64, 8 * (36 + 2 * 9));
        times.iter().for_each(|time| {
            writer.number(64, *time).number(8, 0);
        });
        bytes.extend(writer.finish(64));
    }
    (metadata, bytes)
}

/// Before version 2.3.1, barectf took the begin time of a packet after the time of the packet's first event.
#[test]
fn packets_of_an_old_barectf_may_begin_before_their_timestamp() {
    for version in [[2, 3, 0], [1, 9, 9], [2, 2, 7]] {
        let (metadata, bytes) = early(version);
        let Some(notices) = printed_alike(&metadata, &[bytes]) else { return };
        assert_eq!(notices, [""; 0], "{version:?}");
    }
    // Later versions do not, so there it is damage.
    for version in [[2, 3, 1], [3, 0, 0]] {
        let (metadata, bytes) = early(version);
        let trace = dormouse_ctf::Trace::decode(metadata.as_bytes()).expect("metadata");
        let read: Vec<_> = dormouse_ctf::StreamReader::new(&trace, 0, &bytes).collect();
        assert_eq!(read.iter().filter(|item| item.is_ok()).count(), 2, "{version:?}");
        let notice = read[2].as_ref().expect_err("the third event is too early").to_string();
        assert_eq!(notice, "packet 1 at byte 64 is damaged at its byte 36: a record is older than the one before");
    }
}

/// A stream in the directory of another trace is read with that trace's metadata, and a notice reports it.
#[test]
fn packets_of_another_uuid_are_read_and_reported() {
    if !is_reference() {
        return;
    }
    let metadata = format!(
        "/* CTF 1.8 */\n{INTEGERS} trace {{ major = 1; minor = 8; byte_order = le; uuid = \"01010101-0101-0101-0101-010101010101\";
            packet.header := struct {{ uint32_t magic; uint8_t uuid[16]; }}; }}; {CLOCK}
        stream {{ packet.context := struct {{ uint64_t packet_size; uint64_t content_size; }}; event.header := struct {{ uint8_t id; time timestamp; }}; }};
        event {{ name = e; id = 0; }};"
    );
    let mut bytes = Vec::new();
    for (packet, uuid) in [2u8, 2, 1, 3].into_iter().enumerate() {
        let mut writer = BitWriter::new(false);
        writer.number(32, MAGIC).bytes(&[uuid; 16]).number(64, 8 * 64).number(64, 8 * 45);
        bytes.extend(writer.number(8, 0).number(64, 10 * packet as u64).finish(64));
    }
    let Some(notices) = printed_alike(&metadata, &[bytes]) else { return };
    let told = |packet: u32, at: u32| {
        format!(
            "packet {packet} at byte {at} has another uuid than the metadata, and is read as if it belonged to them"
        )
    };
    assert_eq!(notices, [told(0, 0), told(3, 192)]);
}

/// If a key occurs twice in the environment, the last value counts.
#[test]
fn keys_of_the_environment_can_be_repeated() {
    let metadata = r#"/* CTF 1.8 */
        trace { major = 1; minor = 8; byte_order = le; };
        env { hostname = "one"; other = 7; hostname = "two"; };
        env { hostname = "three"; other = 8; };
        typealias integer { size = 8; align = 8; } := uint8_t;
        event { name = e; fields := struct { uint8_t n; }; };"#;
    let Some(notices) = printed_alike(metadata, &[vec![1]]) else { return };
    assert_eq!(notices, [""; 0]);
}

/// Lengths and tags in other scopes, by absolute names and by names within structures. babeltrace2 2.0 does not read
/// tags whose name begins with a scope.
#[test]
fn lengths_and_tags_are_found_by_dotted_names() {
    let metadata = format!(
        "/* CTF 1.8 */\n{INTEGERS}
        trace {{ major = 1; minor = 8; byte_order = le; packet.header := struct {{ uint32_t magic; uint8_t h; }}; }};
        stream {{ packet.context := struct {{ uint8_t p; }}; event.header := struct {{ uint8_t id; }};
            event.context := struct {{ struct {{ uint8_t c; }} s; }}; }};
        event {{ name = e; id = 0; context := struct {{ uint8_t o; TAG }};
            fields := struct {{ struct {{ uint8_t f; }} t; uint8_t a[trace.packet.header.h]; uint8_t b[stream.packet.context.p];
                uint8_t d[stream.event.context.s.c]; uint8_t g[event.context.o]; uint8_t i[t.f]; uint8_t k[event.fields.t.f]; VARIANT }}; }};"
    );
    let mut writer = BitWriter::new(false);
    writer.number(32, MAGIC).number(8, 1).number(8, 2).number(8, 0).number(8, 3).number(8, 4);
    let head = writer.clone().finish(0);
    let rest: Vec<u8> = [2].into_iter().chain(10..10 + 1 + 2 + 3 + 4 + 2 + 2).collect();
    let plain = metadata.replace("TAG", "").replace("VARIANT", "");
    let Some(notices) = printed_alike(&plain, &[[head.as_slice(), &rest].concat()]) else { return };
    assert_eq!(notices, [""; 0]);
    // Adds a tag in the event's context.
    let tagged = metadata
        .replace("TAG", "enum : uint8_t { A, B } tag;")
        .replace("VARIANT", "variant <event.context.tag> { uint8_t A; string B; } v;");
    let trace = dormouse_ctf::Trace::decode(tagged.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let bytes = [head.as_slice(), &[1], &rest, b"text\0"].concat();
    let mut text = Vec::new();
    let mut formatter = dormouse_print::Formatter::new(Default::default(), |_| 0);
    for item in dormouse_ctf::StreamReader::new(&trace, 0, &bytes) {
        formatter.event(&item.unwrap_or_else(|notice| panic!("{notice}")), &mut text);
    }
    let text = String::from_utf8(text).expect("text");
    assert!(
        text.contains("{ o = 4, tag = ( \"B\" : container = 1 ) }") && text.ends_with("v = { \"text\" } }\n"),
        "{text}"
    );
}

#[test]
fn unknown_keys_may_have_any_value() {
    let metadata = r#"/* CTF 1.8 */
        trace { major = 1; minor = 8; byte_order = le; a = "\"'\x20\040?"; b = '\n'; c = 'a"b'; d = '\''; e = x.y; f = 0x1Ful; };
        typealias integer { size = 8; align = 8; } := uint8_t;
        event { name = e; fields := struct { uint8_t n; }; };"#;
    let Some(notices) = printed_alike(metadata, &[vec![1, 2, 3]]) else { return };
    assert_eq!(notices, [""; 0]);
}
