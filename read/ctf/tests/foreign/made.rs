//! Traces that are made by these tests, in the forms that other tracers write.

use dormouse_traces::BitWriter;

use super::{agree, is_reference};

pub(crate) const INTEGERS: &str = "
typealias integer { size = 8; align = 8; } := uint8_t;
typealias integer { size = 16; align = 8; } := uint16_t;
typealias integer { size = 32; align = 8; } := uint32_t;
typealias integer { size = 64; align = 8; } := uint64_t;
typealias integer { size = 32; align = 8; signed = true; } := int;
";

pub(crate) const MAGIC: u64 = 0xC1FC_1FC1;

/// Checks that both readers print a trace alike, without notices.
fn agrees(name: &str, metadata: &str, streams: &[Vec<u8>]) {
    if let Some(notices) = printed_alike(metadata, streams) {
        assert_eq!(notices, [""; 0], "{name}");
    }
}

/// Writes a trace to disk, checks that both readers print it alike, and returns this crate's notices.
pub(crate) fn printed_alike(metadata: &str, streams: &[Vec<u8>]) -> Option<Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("metadata"), metadata).unwrap();
    for (index, bytes) in streams.iter().enumerate() {
        std::fs::write(directory.path().join(format!("stream_{index}")), bytes).unwrap();
    }
    agree(directory.path())
}

fn order(is_big_endian: bool) -> &'static str {
    if is_big_endian { "be" } else { "le" }
}

#[test]
fn numbers_of_any_size_at_any_bit_in_both_byte_orders() {
    // babeltrace2 prints any hexadecimal number of 61 to 63 bits as 0x0.
    let base_of = |width: u32, base: u32| if base == 16 && (61..64).contains(&width) { 10 } else { base };
    let widths = [1u32, 2, 3, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 48, 63, 64];
    for is_big_endian in [false, true] {
        let mut fields = String::new();
        for width in widths {
            for (sign, base) in
                [(false, 10), (true, 10), (false, 16), (true, 16), (false, 8), (true, 8), (false, 2), (true, 2)]
            {
                let shown = base_of(width, base);
                fields += &format!(
                    "integer {{ size = {width}; align = 1; signed = {sign}; base = {shown}; }} f{width}_{sign}_{base};\n"
                );
            }
        }
        let order = order(is_big_endian);
        let metadata = format!(
            "/* CTF 1.8 */\n{INTEGERS}
            trace {{ major = 1; minor = 8; byte_order = {order}; packet.header := struct {{ uint32_t magic; }}; }};
            env {{ hostname = \"h\"; procname = \"p\"; vpid = 12; }};
            event {{ name = \"bits\"; fields := struct {{ {fields} }}; }};"
        );
        let mut bytes = BitWriter::new(is_big_endian);
        bytes.number(32, MAGIC);
        for round in 0..5u64 {
            for (index, width) in widths.iter().enumerate() {
                for step in 0..8 {
                    let value = (round * 977 + index as u64 * 31 + step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
                        >> (64 - width);
                    bytes.number(*width, value);
                }
            }
        }
        agrees(order, &metadata, &[bytes.align(8).finish(0)]);
    }
}

/// Headers of LTTng, with partial times that wrap, several packets, an empty packet, and padding.
#[test]
fn compact_and_large_headers_whose_times_wrap() {
    for is_big_endian in [false, true] {
        for (tag_bits, time_bits, extended) in [(5u32, 27u32, 31u64), (16, 32, 65_535)] {
            for align in [1, 8, 32] {
                headers_agree(is_big_endian, tag_bits, time_bits, extended, align);
            }
        }
    }
}

fn headers_agree(is_big_endian: bool, tag_bits: u32, time_bits: u32, extended: u64, align: u64) {
    let order = order(is_big_endian);
    let last = extended - 1;
    let tag_align = if tag_bits == 5 { 1 } else { 8 };
    let time_align = if tag_bits == 5 { 1 } else { align.max(8) };
    let full_align = align.max(8);
    let metadata = format!(
        "/* CTF 1.8 */\n{INTEGERS}
        trace {{ major = 1; minor = 8; byte_order = {order}; uuid = \"01020304-0506-0708-090a-0b0c0d0e0f10\";
            packet.header := struct {{ uint32_t magic; uint8_t uuid[16]; uint32_t stream_id; uint64_t stream_instance_id; }}; }};
        env {{ hostname = \"h\"; domain = \"kernel\"; }};
        clock {{ name = monotonic; freq = 1000000000; offset = 1700000000123456789; }};
        typealias integer {{ size = {time_bits}; align = {time_align}; map = clock.monotonic.value; }} := short_time;
        typealias integer {{ size = 64; align = {full_align}; map = clock.monotonic.value; }} := time;
        struct packet_context {{ time timestamp_begin; time timestamp_end; uint64_t content_size; uint64_t packet_size;
            uint64_t packet_seq_num; unsigned long events_discarded; uint32_t cpu_id; }};
        typealias integer {{ size = 64; align = 8; }} := unsigned long;
        struct header {{
            enum : integer {{ size = {tag_bits}; align = {tag_align}; }} {{ compact = 0 ... {last}, extended = {extended} }} id;
            variant <id> {{ struct {{ short_time timestamp; }} compact;
                struct {{ integer {{ size = 32; align = {full_align}; }} id; time timestamp; }} extended; }} v;
        }} align(8);
        stream {{ id = 0; event.header := struct header; packet.context := struct packet_context;
            event.context := struct {{ int _vpid; int _vtid; }}; }};
        event {{ name = \"a:small\"; id = 1; stream_id = 0; loglevel = 13; fields := struct {{ int _x; }}; }};
        event {{ name = \"a:far\"; id = 40; stream_id = 0; fields := struct {{ string _s; uint8_t _y; }}; }};"
    )
    .replace("struct packet_context {", "typealias integer { size = 64; align = 8; } := unsigned long;\nstruct packet_context {")
    .replacen("typealias integer { size = 64; align = 8; } := unsigned long;\n        struct header", "struct header", 1);
    let span = 1u64 << time_bits;
    let mut stream = Vec::new();
    let mut time = 5 * span - 10;
    for packet in 0..4u64 {
        let begin = time;
        let mut records = BitWriter::new(is_big_endian);
        let start = |writer: &mut BitWriter, end: u64, content: u64, size: u64| {
            writer.number(32, MAGIC).bytes(&(1..=16).collect::<Vec<u8>>()).number(32, 0).number(64, 7);
            writer.align(full_align).number(64, begin).number(64, end).number(64, content).number(64, size);
            writer.number(64, packet).number(64, 0).number(32, 3);
        };
        start(&mut records, 0, 0, 0);
        for n in 0..if packet == 2 { 0 } else { 9u64 } {
            time += [1, 3, span / 2, 5, span - 1, 2][(n % 6) as usize];
            records.align(8);
            if n % 3 == 2 {
                records.number(tag_bits, extended).align(full_align).number(32, 40).align(full_align).number(64, time);
            } else {
                records.number(tag_bits, 1).align(time_align).number(time_bits, time);
            }
            records.align(8).number(32, 100 + n).number(32, u64::MAX - n);
            if n % 3 == 2 {
                records.text(&"s".repeat(n as usize)).number(8, n);
            } else {
                records.number(32, n.wrapping_neg());
            }
        }
        let content = records.position();
        let size = content.next_multiple_of(8 * 64);
        let mut packet = records.finish((size / 8) as usize);
        let mut header = BitWriter::new(is_big_endian);
        start(&mut header, time, content, size);
        let header = header.finish(0);
        packet[..header.len()].copy_from_slice(&header);
        stream.extend(packet);
    }
    agrees(&format!("{order} {tag_bits} {full_align}"), &metadata, &[stream]);
}

/// Tags and lengths in the same structure and in outer ones, type names, nesting of all kinds, streams of several
/// classes, and a stream without packet context.
#[test]
fn variants_sequences_and_names_in_all_scopes() {
    if !is_reference() {
        return;
    }
    let metadata = format!(
        "/* CTF 1.8 */\n{INTEGERS}
        typealias integer {{ size = 12; align = 4; base = x; }} := twelve;
        typealias floating_point {{ exp_dig = 8; mant_dig = 24; align = 32; }} := float;
        typedef floating_point {{ exp_dig = 11; mant_dig = 53; align = 8; byte_order = be; }} real64;
        enum color : uint8_t {{ RED, GREEN = 5, BLUE, \"WITH SPACE\" = 10 ... 20, BOTH = 15 ... 30, }};
        struct point {{ twelve x; twelve y; }};
        variant value {{ int RED; string GREEN; struct point BLUE; }};
        trace {{ major = 1; minor = 8; byte_order = le; packet.header := struct {{ uint32_t magic; uint8_t stream_id; }}; }};
        clock {{ name = c; freq = 1000; offset_s = 1000000; offset = 1500; absolute = true; }};
        stream {{ id = 7; packet.context := struct {{ uint16_t content_size; uint16_t packet_size; enum color packet_color; uint8_t len; }};
            event.header := struct {{ uint8_t id; integer {{ size = 24; align = 8; map = clock.c.value; }} timestamp; }};
            event.context := struct {{ uint8_t n; }}; }};
        stream {{ id = 9; event.header := struct {{ uint8_t id; uint32_t timestamp; }}; }};
        event {{ name = one; id = 1; stream_id = 7; context := struct {{ enum color mine; }};
            fields := struct {{
                uint8_t n; enum color tag; variant value <tag> v; struct point points[n];
                struct {{ uint8_t n; uint8_t inner[n]; twelve outer[n]; }} s;
                string texts[3]; float f; real64 d; }}; }};
        event {{ name = \"two:empty\"; id = 2; stream_id = 7; fields := struct {{ }}; }};
        event {{ name = \"other\"; id = 1; stream_id = 9; fields := struct {{ integer {{ size = 8; encoding = UTF8; }} text[6]; uint8_t n;
            integer {{ size = 8; encoding = ASCII; }} more[n]; enum color c; }}; }};"
    );
    let point = |writer: &mut BitWriter, x: u64| {
        writer.align(4).number(12, x).align(4).number(12, 0xFFF - x);
    };
    let value = |writer: &mut BitWriter, tag: u64| match tag {
        0 => {
            writer.align(8).number(32, u64::MAX - 3);
        }
        5 => {
            writer.text("green \"?\"");
        }
        _ => point(writer, 0x123),
    };
    let records = |writer: &mut BitWriter| {
        for step in 0..6u64 {
            let (n, tag, mine) = (step % 3, [0, 5, 6][(step % 3) as usize], [6, 0, 5][(step % 3) as usize]);
            writer.align(8).number(8, 1).number(24, (1 << 24) - 40 + 17 * step).number(8, n + 1).number(8, mine);
            // A structure has the alignment of its members.
            writer.align(32).number(8, n).number(8, tag);
            value(writer, tag);
            (0..n).for_each(|index| point(writer, index));
            writer.align(8).number(8, 2).number(8, 77).number(8, 78);
            (0..2).for_each(|index| {
                writer.align(4).number(12, index);
            });
            (0..3).for_each(|index| {
                writer.text(&"t".repeat(index as usize));
            });
            writer.align(32).number(32, u64::from((1.5f32 * step as f32).to_bits()));
            writer.bytes(&(0.1f64 * step as f64).to_be_bytes());
            writer.align(8).number(8, 2).number(24, (1 << 24) - 38 + 17 * step).number(8, 9);
        }
    };
    let mut first = Vec::new();
    for packet_color in [0, 5, 6] {
        let build = |content: u64, size: u64| {
            let mut writer = BitWriter::new(false);
            writer
                .number(32, MAGIC)
                .number(8, 7)
                .number(16, content)
                .number(16, size)
                .number(8, packet_color)
                .number(8, 3);
            records(&mut writer);
            writer
        };
        let content = build(0, 0).position();
        let size = content.next_multiple_of(32) + 64;
        first.extend(build(content, size).finish((size / 8) as usize));
    }
    // Without packet context, the file is a single packet. For an empty counted text, babeltrace2 prints the previous
    // one.
    let mut second = BitWriter::new(false);
    second.number(32, MAGIC).number(8, 9);
    for n in 0..40u64 {
        second
            .number(8, 1)
            .number(32, 16_000_000 + 50_000 * n)
            .bytes(b"ab\0cde")
            .number(8, n % 3 + 1)
            .bytes(&b"xyz\0"[..(n % 3 + 1) as usize]);
        second.number(8, n);
    }
    agrees("scopes", &metadata, &[first, second.finish(0)]);
}

/// Streams and traces without a clock or without headers, in the forms of barectf and perf.
#[test]
fn optional_declarations_may_be_missing() {
    let bare = format!(
        "/* CTF 1.8 */\n{INTEGERS}
        trace {{ major = 1; minor = 8; byte_order = le; }};
        stream {{ packet.context := struct {{ uint32_t packet_size; uint32_t content_size; }}; event.header := struct {{ uint8_t id; }}; }};
        event {{ name = a; id = 0; }};
        event {{ name = b; id = 1; fields := struct {{ uint16_t x; }}; }};"
    );
    let mut writer = BitWriter::new(false);
    writer.number(32, 8 * 24).number(32, 8 * 20);
    for x in 0..3 {
        writer.number(8, 0).number(8, 1).number(16, x);
    }
    agrees("bare", &bare, &[writer.finish(24)]);

    // Times that are not mapped to a clock: they are those of the only clock, or nanoseconds without a clock.
    for clock in ["clock { name = hpet; freq = 14318180; offset_s = 5; offset = 9000000; };", ""] {
        let metadata = format!(
            "/* CTF 1.8 */\n{INTEGERS}
            trace {{ major = 1; minor = 8; byte_order = be; packet.header := struct {{ uint32_t magic; }}; }};
            {clock}
            stream {{ packet.context := struct {{ uint64_t timestamp_begin; uint64_t timestamp_end; uint32_t packet_size; uint32_t content_size;
                uint16_t events_discarded; }};
                event.header := struct {{ uint16_t id; uint32_t timestamp; }}; }};
            event {{ name = tick; id = 3; fields := struct {{ uint8_t n; }}; }};"
        );
        let mut bytes = Vec::new();
        for packet in 0..3u64 {
            let mut writer = BitWriter::new(true);
            let begin = (1 << 40) * (packet + 1);
            writer
                .number(32, MAGIC)
                .number(64, begin)
                .number(64, begin + 5000)
                .number(32, 8 * 100)
                .number(32, 8 * (30 + 7 * 9))
                .number(16, 0);
            for n in 0..9 {
                writer.number(16, 3).number(32, begin + 500 * n).number(8, n);
            }
            bytes.extend(writer.finish(100));
        }
        agrees(clock, &metadata, &[bytes]);
    }
}
