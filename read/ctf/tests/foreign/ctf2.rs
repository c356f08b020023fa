//! Traces in CTF 2 that are made by these tests: each field class with its bytes, and faulty metadata.
//!
//! A babeltrace2 that reads CTF 2 (2.1) prints the same lines. Most systems have a version that reads only CTF 1.8.

use dormouse_ctf::Trace;
use dormouse_traces::BitWriter;

use super::view;

/// Returns a JSON text sequence.
fn sequence(fragments: &[&str]) -> String {
    fragments.iter().map(|fragment| format!("\u{1e}{fragment}\n")).collect()
}

/// Returns the printed text of a trace, which must cause no notices.
fn printed(metadata: &str, streams: &[Vec<u8>]) -> String {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("metadata"), metadata).unwrap();
    for (index, bytes) in streams.iter().enumerate() {
        std::fs::write(directory.path().join(format!("stream_{index}")), bytes).unwrap();
    }
    let (text, notices) = view(directory.path());
    assert_eq!(notices, [""; 0], "{metadata}");
    String::from_utf8(text).unwrap()
}

fn structure(members: &[(&str, &str)]) -> String {
    let member = |(name, class): &(&str, &str)| {
        // Either the name of an alias, or a field class.
        let class = if class.starts_with(['{', '"']) { class.to_string() } else { format!("{class:?}") };
        format!(r#"{{"name":"{name}","field-class":{class}}}"#)
    };
    let members: Vec<String> = members.iter().map(member).collect();
    format!(r#"{{"type":"structure","member-classes":[{}]}}"#, members.join(","))
}

/// Returns metadata of a stream without headers and with one event class.
fn payload(members: &[(&str, &str)]) -> String {
    let event = format!(r#"{{"type":"event-record-class","name":"e","payload-field-class":{}}}"#, structure(members));
    sequence(&[
        r#"{"type":"preamble","version":2}"#,
        ALIASES[0],
        ALIASES[1],
        ALIASES[2],
        r#"{"type":"data-stream-class"}"#,
        &event,
    ])
}

/// Aliases that most cases need.
const ALIASES: [&str; 3] = [
    r#"{"type":"field-class-alias","name":"u8","field-class":{"type":"fixed-length-unsigned-integer","length":8,"byte-order":"little-endian","alignment":8}}"#,
    r#"{"type":"field-class-alias","name":"s8","field-class":{"type":"fixed-length-signed-integer","length":8,"byte-order":"little-endian","alignment":8}}"#,
    r#"{"type":"field-class-alias","name":"b8","field-class":{"type":"fixed-length-boolean","length":8,"byte-order":"little-endian","alignment":8}}"#,
];

fn bits(kind: &str, length: u32, order: &str, more: &str) -> String {
    format!(r#"{{"type":"fixed-length-{kind}","length":{length},"byte-order":"{order}-endian"{more}}}"#)
}

/// Checks that an event with these fields and bytes is printed as expected.
fn prints(members: &[(&str, &str)], bytes: &[u8], expected: &str) {
    assert_eq!(printed(&payload(members), &[bytes.to_vec()]), format!("e: {{ {expected} }}\n"), "{members:?}");
}

#[test]
fn bit_arrays_in_both_byte_orders() {
    let [little, big] =
        ["little", "big"].map(|order| [bits("bit-array", 12, order, ""), bits("unsigned-integer", 4, order, "")]);
    prints(&[("a", &little[0]), ("b", &little[1])], &[0x34, 0xF2], "a = 0x234, b = 15");
    prints(&[("a", &big[0]), ("b", &big[1])], &[0x12, 0x3F], "a = 0x123, b = 15");
}

/// The first bit is the lowest of a value (`first-to-last`) or the highest (`last-to-first`). Each byte order has one
/// of them by default.
#[test]
fn every_bit_order_is_read() {
    let class = |kind: &str, length, order: &str, bit_order: &str| {
        bits(kind, length, order, &format!(r#","bit-order":"{bit_order}""#))
    };
    for (order, bit_order, a, b) in [
        ("little", "first-to-last", 0x201, 1),
        ("little", "last-to-first", 0x804, 8),
        ("big", "last-to-first", 0x012, 1),
        ("big", "first-to-last", 0x480, 8),
    ] {
        let [a_class, b_class] =
            [("unsigned-integer", 12), ("unsigned-integer", 4)].map(|(kind, len)| class(kind, len, order, bit_order));
        let bytes: &[u8] = if order == "little" { &[0x01, 0x12] } else { &[0x01, 0x21] };
        prints(&[("a", &a_class), ("b", &b_class)], bytes, &format!("a = {a}, b = {b}"));
    }
    let signed = class("signed-integer", 8, "little", "last-to-first");
    prints(&[("a", &signed)], &[0b0111_1111], "a = -2");
    let float = class("floating-point-number", 32, "little", "last-to-first");
    prints(&[("a", &float)], &1f32.to_bits().reverse_bits().to_le_bytes(), "a = 1");
    let bool = class("boolean", 8, "big", "first-to-last");
    prints(&[("a", &bool)], &[0x80], "a = true");
}

#[test]
fn bit_maps_name_their_bits() {
    let flags = r#","flags":{"b":[[1,1]],"a":[[0,0],[4,5]],"z":[[2,2],[7,7]]}"#;
    let class = bits("bit-map", 8, "little", flags);
    for (byte, expected) in [
        (0x0B, r#"0xB { "a", "b" }"#),
        (0x40, "0x40"),
        (0, "0x0"),
        (0xFF, r#"0xFF { "a", "b", "z" }"#),
        (0x20, r#"0x20 { "a" }"#),
    ] {
        prints(&[("m", &class)], &[byte], &format!("m = {expected}"));
    }
}

#[test]
fn booleans_and_numbers() {
    let bool = bits("boolean", 3, "little", "");
    let rest = bits("unsigned-integer", 2, "little", "");
    prints(&[("a", &bool), ("b", &bool), ("c", &rest)], &[0b1100_0100], "a = true, b = false, c = 3");
    for (base, expected) in [(2, "0b00101101"), (8, "055"), (10, "45"), (16, "0x2D")] {
        let class = bits("unsigned-integer", 8, "big", &format!(r#","preferred-display-base":{base}"#));
        prints(&[("x", &class)], &[45], &format!("x = {expected}"));
    }
    let class = bits("signed-integer", 16, "big", r#","alignment":16"#);
    prints(&[("a", "u8"), ("b", &class)], &[1, 0xEE, 0xFF, 0xFE], "a = 1, b = -2");
    let mappings = r#","mappings":{"low":[[-128,-1]],"one, two":[[1,1],[2,2]],"two":[[2,5]]}"#;
    let class = bits("signed-integer", 8, "little", mappings);
    for (byte, expected) in [
        (0xFE, r#"( "low" : container = -2 )"#),
        (2, r#"( "one, two", "two" : container = 2 )"#),
        (9, "( <unknown> : container = 9 )"),
    ] {
        prints(&[("x", &class)], &[byte], &format!("x = {expected}"));
    }
}

#[test]
fn floating_point_numbers() {
    for (length, order, bytes, expected) in [
        (16, "little", &[0x00, 0x3C][..], "1"),
        (16, "big", &[0xC0, 0x00], "-2"),
        (16, "big", &[0x00, 0x01], "5.96046e-08"),
        (16, "big", &[0x7C, 0x00], "inf"),
        (16, "big", &[0x35, 0x55], "0.333252"),
        (32, "big", &1.5f32.to_be_bytes(), "1.5"),
        (64, "little", &0.1f64.to_le_bytes(), "0.1"),
    ] {
        prints(&[("x", &bits("floating-point-number", length, order, ""))], bytes, &format!("x = {expected}"));
    }
}

#[test]
fn numbers_of_variable_length() {
    let unsigned = r#"{"type":"variable-length-unsigned-integer"}"#;
    let signed = r#"{"type":"variable-length-signed-integer","mappings":{"least":[[-9223372036854775808,-9223372036854775808]]}}"#;
    let hexadecimal = r#"{"type":"variable-length-unsigned-integer","preferred-display-base":16}"#;
    prints(&[("x", unsigned), ("y", "u8")], &[0xE5, 0x8E, 0x26, 7], "x = 624485, y = 7");
    prints(&[("x", hexadecimal)], &[0xE5, 0x8E, 0x26], "x = 0x98765");
    prints(&[("x", unsigned)], &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1], "x = 18446744073709551615");
    prints(&[("x", signed)], &[0xC0, 0xBB, 0x78], "x = ( <unknown> : container = -123456 )");
    let least = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7F];
    prints(&[("x", signed)], &least, r#"x = ( "least" : container = -9223372036854775808 )"#);
    // Variable-length numbers start at the next whole byte.
    prints(&[("b", &bits("unsigned-integer", 1, "little", "")), ("x", unsigned)], &[1, 0x80, 1], "b = 1, x = 128");
    // Numbers of more than 64 bits, and bytes that end within a number.
    for (bytes, expected) in [
        (&[255, 255, 255, 255, 255, 255, 255, 255, 255, 2][..], "is a number of more than 64 bits"),
        (&[0x80; 11], "is a number of more than 64 bits"),
        (&[0x80; 3], "is cut off"),
    ] {
        let trace = Trace::decode(payload(&[("x", unsigned)]).as_bytes()).unwrap();
        let notice = dormouse_ctf::StreamReader::new(&trace, 0, bytes).next().unwrap().unwrap_err().to_string();
        assert!(notice.contains(expected), "{notice}");
    }
}

fn wide(text: &str, encoding: &str) -> Vec<u8> {
    let halves = || text.encode_utf16();
    match encoding {
        "utf-16be" => halves().flat_map(u16::to_be_bytes).collect(),
        "utf-16le" => halves().flat_map(u16::to_le_bytes).collect(),
        "utf-32be" => text.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect(),
        "utf-32le" => text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect(),
        _ => text.as_bytes().to_vec(),
    }
}

#[test]
fn strings_of_every_length_in_every_encoding() {
    let text = "h\u{e9}\u{1f600}\u{100}";
    for encoding in ["utf-8", "utf-16be", "utf-16le", "utf-32be", "utf-32le"] {
        let (bytes, end) = (wide(text, encoding), wide("\0", encoding));
        let class = |kind: &str, more: &str| format!(r#"{{"type":"{kind}-string","encoding":"{encoding}"{more}}}"#);
        let terminated = class("null-terminated", "");
        let all = [&[9], bytes.as_slice(), &end, &[8]].concat();
        prints(&[("a", "u8"), ("s", &terminated), ("b", "u8")], &all, &format!("a = 9, s = \"{text}\", b = 8"));

        // Bytes after a NUL are not part of the text.
        let odd = [bytes.as_slice(), &end, &[0x41; 4]].concat();
        for bytes in [&bytes, &odd] {
            let fixed = class("static-length", &format!(r#","length":{}"#, bytes.len()));
            prints(&[("s", &fixed), ("b", "u8")], &[bytes, &[8][..]].concat(), &format!("s = \"{text}\", b = 8"));
            let counted = class("dynamic-length", r#","length-field-location":{"path":["n"]}"#);
            let all = [&[bytes.len() as u8], bytes.as_slice(), &[8]].concat();
            let expected = format!("n = {}, s = \"{text}\", b = 8", bytes.len());
            prints(&[("n", "u8"), ("s", &counted), ("b", "u8")], &all, &expected);
        }
    }
    // Invalid characters.
    let lone = r#"{"type":"static-length-string","length":4,"encoding":"utf-16le"}"#;
    prints(&[("s", lone)], &[0x00, 0xD8, 0x41, 0x00], "s = \"\u{fffd}A\"");
    let large = r#"{"type":"static-length-string","length":4,"encoding":"utf-32be"}"#;
    prints(&[("s", large)], &[0, 0x11, 0, 0], "s = \"\u{fffd}\"");
}

#[test]
fn blobs_are_read() {
    let fixed = r#"{"type":"static-length-blob","length":3,"media-type":"image/png"}"#;
    prints(&[("x", fixed)], &[0, 0xAB, 0x10], "x = { 00 ab 10 }");
    let counted = r#"{"type":"dynamic-length-blob","length-field-location":{"path":["n"]}}"#;
    prints(&[("n", "u8"), ("x", counted)], &[2, 1, 2], "n = 2, x = { 01 02 }");
    prints(&[("n", "u8"), ("x", counted), ("y", "u8")], &[0, 7], "n = 0, x = { }, y = 7");
}

#[test]
fn structures_and_arrays_are_aligned() {
    let bit = bits("unsigned-integer", 4, "little", "");
    let inner = format!(
        r#"{{"type":"structure","minimum-alignment":16,"member-classes":[{{"name":"x","field-class":{bit}}},{{"name":"_y","field-class":{bit}}}]}}"#
    );
    prints(&[("a", "u8"), ("s", &inner)], &[1, 0, 0x32], "a = 1, s = { x = 2, _y = 3 }");
    let fixed =
        format!(r#"{{"type":"static-length-array","length":2,"minimum-alignment":32,"element-field-class":{bit}}}"#);
    prints(&[("a", "u8"), ("s", &fixed)], &[1, 0, 0, 0, 0x32], "a = 1, s = [ [0] = 2, [1] = 3 ]");
    let counted = r#"{"type":"dynamic-length-array","minimum-alignment":16,"length-field-location":{"path":["n"]},"element-field-class":"s8"}"#;
    prints(&[("n", "u8"), ("s", counted), ("z", "u8")], &[2, 0, 0xFF, 1, 5], "n = 2, s = [ [0] = -1, [1] = 1 ], z = 5");
    prints(
        &[("s", r#"{"type":"static-length-array","length":0,"element-field-class":"u8"}"#), ("z", "u8")],
        &[5],
        "s = [ ], z = 5",
    );
    prints(&[("s", r#"{"type":"structure"}"#), ("z", "u8")], &[5], "s = { }, z = 5");
}

#[test]
fn optional_fields_can_be_absent() {
    let by_flag = r#"{"type":"optional","selector-field-location":{"path":["f"]},"field-class":"u8"}"#;
    prints(&[("f", "b8"), ("o", by_flag), ("z", "u8")], &[2, 7, 9], "f = true, o = { 7 }, z = 9");
    prints(&[("f", "b8"), ("o", by_flag), ("z", "u8")], &[0, 9], "f = false, o = <none>, z = 9");
    let by_number = r#"{"type":"optional","selector-field-location":{"path":["f"]},"selector-field-ranges":[[-5,-3],[4,4]],"field-class":"u8"}"#;
    for (selector, is_there) in [(-5i8, true), (-3, true), (-2, false), (4, true), (5, false)] {
        let (bytes, shown): (&[u8], _) = if is_there { (&[7, 9], "{ 7 }") } else { (&[9], "<none>") };
        let all = [&selector.to_le_bytes(), bytes].concat();
        prints(&[("f", "s8"), ("o", by_number), ("z", "u8")], &all, &format!("f = {selector}, o = {shown}, z = 9"));
    }
    // A length that can be absent counts as 0 then, whatever the previous record had.
    let counted = r#"{"type":"dynamic-length-string","length-field-location":{"path":["o"]}}"#;
    let metadata = payload(&[("f", "b8"), ("o", by_flag), ("s", counted)]);
    assert_eq!(
        printed(&metadata, &[vec![1, 2, b'a', b'b', 0, 1, 1, b'c']]),
        "e: { f = true, o = { 2 }, s = \"ab\" }\ne: { f = false, o = <none>, s = \"\" }\ne: { f = true, o = { 1 }, s = \"c\" }\n"
    );
}

#[test]
fn variants_hold_the_selected_option() {
    let variant = r#"{"type":"variant","selector-field-location":{"path":["t"]},"options":[
        {"name":"number","selector-field-ranges":[[0,3],[9,9]],"field-class":"u8"},
        {"selector-field-ranges":[[4,8]],"field-class":{"type":"null-terminated-string"}}]}"#;
    prints(&[("t", "u8"), ("v", variant)], &[9, 1], "t = 9, v = { 1 }");
    prints(&[("t", "u8"), ("v", variant)], &[4, b'x', 0], "t = 4, v = { \"x\" }");
    let trace = Trace::decode(payload(&[("t", "u8"), ("v", variant)]).as_bytes()).unwrap();
    let notice = dormouse_ctf::StreamReader::new(&trace, 0, &[10, 1]).next().unwrap().unwrap_err().to_string();
    assert!(notice.contains("a variant whose tag has the value 10"), "{notice}");
}

#[test]
fn locations_lead_up_and_down() {
    let text = |location: &str| format!(r#"{{"type":"dynamic-length-string","length-field-location":{location}}}"#);
    // From within two structures to the outermost one, to a sibling, and by scope.
    for (path, n, m, k) in [
        (r#"{"path":["k"]}"#, 0, 0, 1),
        (r#"{"path":[null,"m"]}"#, 0, 1, 0),
        (r#"{"path":[null,null,"n"]}"#, 1, 0, 0),
        (r#"{"path":["k",null,null,null,"n"]}"#, 1, 0, 0),
        (r#"{"origin":"event-record-payload","path":["n"]}"#, 1, 0, 0),
        (r#"{"origin":"event-record-payload","path":["a","m"]}"#, 0, 1, 0),
        (r#"{"origin":"event-record-payload","path":["a","b","k"]}"#, 0, 0, 1),
        (r#"{"path":[null,null,"a","m"]}"#, 0, 1, 0),
    ] {
        let inner = structure(&[("k", "u8"), ("s", &text(path))]);
        let outer = structure(&[("m", "u8"), ("b", &inner)]);
        let expected = format!("n = {n}, a = {{ m = {m}, b = {{ k = {k}, s = \"x\" }} }}");
        prints(&[("n", "u8"), ("a", &outer)], &[n, m, k, b'x'], &expected);
    }
    // Into a preceding structure, optional field and option, within the same element.
    let pair = structure(&[("x", "u8"), ("n", "u8")]);
    prints(&[("a", &pair), ("s", &text(r#"{"path":["a","n"]}"#))], &[9, 1, b'x'], "a = { x = 9, n = 1 }, s = \"x\"");
    let optional = format!(r#"{{"type":"optional","selector-field-location":{{"path":["f"]}},"field-class":{pair}}}"#);
    prints(
        &[("f", "b8"), ("a", &optional), ("s", &text(r#"{"path":["a","n"]}"#))],
        &[1, 9, 1, b'x'],
        "f = true, a = { { x = 9, n = 1 } }, s = \"x\"",
    );
    let element = structure(&[("n", "u8"), ("s", &text(r#"{"origin":"event-record-payload","path":["a","n"]}"#))]);
    let array = format!(r#"{{"type":"static-length-array","length":2,"element-field-class":{element}}}"#);
    prints(
        &[("a", &array)],
        &[1, b'x', 2, b'y', b'z'],
        "a = [ [0] = { n = 1, s = \"x\" }, [1] = { n = 2, s = \"yz\" } ]",
    );
    let variant = format!(
        r#"{{"type":"variant","selector-field-location":{{"path":["f"]}},"options":[
        {{"selector-field-ranges":[[0,0]],"field-class":"s8"}},{{"selector-field-ranges":[[1,1]],"field-class":{pair}}}]}}"#
    );
    prints(
        &[("f", "u8"), ("v", &variant), ("s", &text(r#"{"path":["v","n"]}"#))],
        &[1, 9, 1, b'x'],
        "f = 1, v = { { x = 9, n = 1 } }, s = \"x\"",
    );
}

/// Packets with all roles, times of variable and fixed length that wrap, and two stream classes.
#[test]
fn roles_and_clocks() {
    let number = |length: u32, roles: &str| {
        bits("unsigned-integer", length, "big", &format!(r#","alignment":8,"roles":[{roles}]"#))
    };
    let variable = r#"{"type":"variable-length-unsigned-integer","roles":["default-clock-timestamp"]}"#;
    let header = structure(&[
        ("m", &number(32, r#""packet-magic-number""#)),
        ("u", r#"{"type":"static-length-blob","length":16,"roles":["metadata-stream-uuid"]}"#),
        ("class", &number(8, r#""data-stream-class-id""#)),
        ("instance", &number(8, r#""data-stream-id""#)),
    ]);
    let context = structure(&[
        ("begin", &number(64, r#""default-clock-timestamp""#)),
        ("end", &number(64, r#""packet-end-default-clock-timestamp""#)),
        ("size", &number(32, r#""packet-total-length","packet-content-length""#)),
        ("sequence", &number(8, r#""packet-sequence-number""#)),
        ("lost", &number(8, r#""discarded-event-record-counter-snapshot""#)),
        ("cpu_id", "u8"),
        ("extra", "u8"),
    ]);
    let event_header = |time: &str| structure(&[("c", &number(8, r#""event-record-class-id""#)), ("t", time)]);
    let (fixed, common) = (number(8, r#""default-clock-timestamp""#), structure(&[("who", "u8")]));
    let stream = |id: u32, header: &str, more: &str| {
        format!(
            r#"{{"type":"data-stream-class","id":{id},"default-clock-class-id":"k","packet-context-field-class":{context},"event-record-header-field-class":{header}{more}}}"#
        )
    };
    let uuid: Vec<String> = (1..=16).map(|byte| byte.to_string()).collect();
    let location = r#"{"type":"dynamic-length-blob","length-field-location":{"origin":"event-record-common-context","path":["who"]}}"#;
    let metadata = sequence(&[
        &format!(r#"{{"type":"preamble","version":2,"uuid":[{}],"attributes":{{"x":{{"y":1.5}}}}}}"#, uuid.join(",")),
        ALIASES[0],
        &format!(
            r#"{{"type":"trace-class","name":"t","environment":{{"hostname":"h","vpid":12}},"packet-header-field-class":{header}}}"#
        ),
        r#"{"type":"clock-class","id":"k","frequency":1000,"origin":"unix-epoch","offset-from-origin":{"seconds":100,"cycles":500},"precision":1,"accuracy":0,"description":"d"}"#,
        &stream(0, &event_header(variable), &format!(r#","event-record-common-context-field-class":{common}"#)),
        &stream(3, &event_header(&fixed), ""),
        r#"{"type":"event-record-class","id":2,"namespace":"n","name":"a","extensions":{}}"#,
        &format!(
            r#"{{"type":"event-record-class","id":200,"name":"b","specific-context-field-class":{},"payload-field-class":{}}}"#,
            structure(&[("_c", "u8")]),
            structure(&[("x", location)])
        ),
        r#"{"type":"event-record-class","id":2,"data-stream-class-id":3,"name":"c"}"#,
        r#"{"type":"something-else"}"#,
    ]);
    let packet = |class: u64, begin: u64, end: u64, records: &[u8]| {
        let mut writer = BitWriter::new(true);
        writer.number(32, 0xC1FC_1FC1).bytes(&(1..=16).collect::<Vec<u8>>()).number(8, class).number(8, 7);
        writer
            .number(64, begin)
            .number(64, end)
            .number(32, 8 * (22 + 24 + records.len() as u64))
            .number(8, 0)
            .number(8, 0);
        writer.number(8, 5).number(8, 9).bytes(records);
        writer.finish(0)
    };
    // 1,000 ticks are a second. 0x83 0x07 are 14 bits with the value 899. 0x02 is less than the low seven bits of 899,
    // which are 3, so it means 1,026.
    let first = packet(0, 890, 1_100, &[2, 0x83, 0x07, 1, 200, 0x02, 2, 8, 0xAA, 0xBB, 2, 0xC2, 0x88, 0x00, 0]);
    let second = packet(3, 1_000, 1_300, &[2, 0xE8, 2, 0x01]);
    assert_eq!(
        printed(&metadata, &[first, second]),
        "[00:01:41.399000000] (+?.?????????) h:(12) a: { cpu_id = 5, extra = 9 }, { who = 1 }\n\
         [00:01:41.500000000] (+0.101000000) h:(12) c: { cpu_id = 5, extra = 9 }\n\
         [00:01:41.525000000] (+0.025000000) h:(12) c: { cpu_id = 5, extra = 9 }\n\
         [00:01:41.526000000] (+0.001000000) h:(12) b: { cpu_id = 5, extra = 9 }, { who = 2 }, { _c = 8 }, { x = { aa bb } }\n\
         [00:01:41.590000000] (+0.064000000) h:(12) a: { cpu_id = 5, extra = 9 }, { who = 0 }\n"
    );
}

/// Fragments, the position of the error, and its text. The preamble precedes each case.
const REFUSED: &[(&[&str], &str, &str)] = &[
    (&[], "fragment 1", "no data stream class"),
    (&[r#"{"type":"preamble","version":2}"#], "fragment 2", "the preamble is the first fragment"),
    (&[r#"{"type":7}"#], "fragment 2, type", "expected a string, found 7"),
    (&["7"], "fragment 2", "expected an object, found 7"),
    (&[r#"{"type":"trace-class","type":"x"}"#], "fragment 2", "the property \"type\" is in this object twice"),
    (&[r#"{"type":"trace-class",}"#, "{}"], "fragment 2", "trailing comma"),
    (&[r#"{"type":"clock-class","id":"c"}"#], "fragment 2", "no property \"frequency\""),
    (
        &[r#"{"type":"clock-class","id":"c","frequency":0}"#],
        "fragment 2, frequency",
        "from 1 to 18446744073709551615, found 0",
    ),
    (
        &[r#"{"type":"clock-class","id":"c","frequency":5,"offset-from-origin":{"cycles":5}}"#],
        "fragment 2, offset-from-origin.cycles",
        "from 0 to 4, found 5",
    ),
    (
        &[r#"{"type":"clock-class","id":"c","frequency":5,"origin":"x"}"#],
        "fragment 2, origin",
        "expected \"unix-epoch\" or an object",
    ),
    (
        &[r#"{"type":"clock-class","id":"c","frequency":5,"origin":{"name":"x"}}"#],
        "fragment 2, origin",
        "no property \"uid\"",
    ),
    (
        &[r#"{"type":"data-stream-class","default-clock-class-id":"c"}"#],
        "fragment 2, default-clock-class-id",
        "no clock class \"c\" before",
    ),
    (&[r#"{"type":"data-stream-class"}"#, r#"{"type":"trace-class"}"#], "fragment 3", "before the data stream classes"),
    (&[r#"{"type":"data-stream-class"}"#, r#"{"type":"data-stream-class"}"#], "fragment 3", "with the id 0 already"),
    (
        &[r#"{"type":"data-stream-class"}"#, r#"{"type":"data-stream-class","id":1}"#],
        "fragment 3",
        "\"data-stream-class-id\"",
    ),
    (&[r#"{"type":"event-record-class"}"#], "fragment 2", "no data stream class with the id 0 before"),
    (&[r#"{"type":"trace-class","environment":{"a":1.5}}"#], "fragment 2, environment.a", "found 1.5"),
    (
        &[r#"{"type":"trace-class","extensions":{"my.org":{"zip":true}}}"#],
        "fragment 2, extensions.my.org.zip",
        "the extension \"zip\" of \"my.org\" is not known",
    ),
    (&["EVENT", "{"], "", "the declaration on line 3 is cut off"),
];

/// Class of the third field, the path below `field-class`, and the error. The first field is a number, the second a
/// boolean.
const REFUSED_FIELDS: &[(&str, &str, &str)] = &[
    (r#""nothing""#, "", "no field class alias \"nothing\" before"),
    (r#"{"type":"integer"}"#, ".type", "no field class of this type in CTF 2"),
    (r#"{"type":"fixed-length-boolean","byte-order":"big-endian"}"#, "", "no property \"length\""),
    (
        r#"{"type":"fixed-length-boolean","length":65,"byte-order":"big-endian"}"#,
        ".length",
        "expected a whole number from 1 to 64, found 65",
    ),
    (r#"{"type":"fixed-length-boolean","length":"8","byte-order":"big-endian"}"#, ".length", "found \"8\""),
    (
        r#"{"type":"fixed-length-boolean","length":8,"byte-order":"be"}"#,
        ".byte-order",
        "expected \"little-endian\" or \"big-endian\", found \"be\"",
    ),
    (
        r#"{"type":"fixed-length-boolean","length":8,"byte-order":"big-endian","alignment":3}"#,
        ".alignment",
        "power of two",
    ),
    (
        r#"{"type":"fixed-length-boolean","length":8,"byte-order":"big-endian","bit-order":1}"#,
        ".bit-order",
        "expected \"first-to-last\" or \"last-to-first\"",
    ),
    (r#"{"type":"fixed-length-bit-map","length":8,"byte-order":"big-endian"}"#, "", "no property \"flags\""),
    (
        r#"{"type":"fixed-length-bit-map","length":8,"byte-order":"big-endian","flags":{"a":[[8,8]]}}"#,
        ".flags.a[0][0]",
        "from 0 to 7",
    ),
    (
        r#"{"type":"fixed-length-floating-point-number","length":128,"byte-order":"big-endian"}"#,
        ".length",
        "expected 16, 32 or 64, found 128",
    ),
    (
        r#"{"type":"variable-length-unsigned-integer","preferred-display-base":7}"#,
        ".preferred-display-base",
        "2, 8, 10 or 16",
    ),
    (r#"{"type":"variable-length-unsigned-integer","mappings":{"a":[[2,1]]}}"#, ".mappings.a[0]", "above the last"),
    (r#"{"type":"variable-length-unsigned-integer","mappings":{"a":[]}}"#, ".mappings.a", "at least one range"),
    (r#"{"type":"variable-length-unsigned-integer","mappings":{"a":[[1]]}}"#, ".mappings.a[0]", "two whole numbers"),
    (r#"{"type":"variable-length-unsigned-integer","roles":["magic"]}"#, ".roles[0]", "no role \"magic\""),
    (r#"{"type":"variable-length-signed-integer","roles":[]}"#, ".roles", "only unsigned numbers"),
    (r#"{"type":"null-terminated-string","encoding":"latin-1"}"#, ".encoding", "\"utf-8\", \"utf-16be\""),
    (r#"{"type":"static-length-string","length":-1}"#, ".length", "found -1"),
    (r#"{"type":"static-length-blob","length":16,"roles":["uuid"]}"#, ".roles[0]", "expected \"metadata-stream-uuid\""),
    (r#"{"type":"static-length-blob","length":15,"roles":["metadata-stream-uuid"]}"#, ".roles[0]", "16 bytes"),
    (
        r#"{"type":"static-length-blob","length":16,"roles":["metadata-stream-uuid"]}"#,
        ".roles[0]",
        "the preamble has no",
    ),
    (
        r#"{"type":"dynamic-length-blob","length-field-location":{"path":[]}}"#,
        ".length-field-location.path",
        "ends with the name",
    ),
    (
        r#"{"type":"dynamic-length-blob","length-field-location":{"path":["n",null]}}"#,
        ".length-field-location.path",
        "ends with the name",
    ),
    (
        r#"{"type":"dynamic-length-blob","length-field-location":{"path":[null,"n"]}}"#,
        ".length-field-location",
        "leaves the outermost",
    ),
    (
        r#"{"type":"dynamic-length-blob","length-field-location":{"path":["x"]}}"#,
        ".length-field-location",
        "no field x: no x is before",
    ),
    (
        r#"{"type":"dynamic-length-blob","length-field-location":{"path":["n","x"]}}"#,
        ".length-field-location",
        "another kind of field",
    ),
    (
        r#"{"type":"dynamic-length-blob","length-field-location":{"path":["f"]}}"#,
        ".length-field-location",
        "f is not an unsigned number",
    ),
    (
        r#"{"type":"dynamic-length-blob","length-field-location":{"origin":"payload","path":["n"]}}"#,
        ".length-field-location.origin",
        "\"packet-header\"",
    ),
    (
        r#"{"type":"dynamic-length-blob","length-field-location":{"origin":"packet-header","path":["n"]}}"#,
        ".length-field-location",
        "no such structure",
    ),
    (
        r#"{"type":"optional","selector-field-location":{"path":["n"]},"field-class":"u8"}"#,
        ".selector-field-location",
        "n is not a boolean",
    ),
    (
        r#"{"type":"optional","selector-field-location":{"path":["f"]},"field-class":"u8","selector-field-ranges":[[1,1]]}"#,
        ".selector-field-location",
        "f is not a whole number",
    ),
    (r#"{"type":"variant","selector-field-location":{"path":["n"]},"options":[]}"#, ".options", "at least one option"),
    (
        r#"{"type":"variant","selector-field-location":{"path":["n"]},"options":[{"field-class":"u8","selector-field-ranges":[[1,9]]},{"field-class":"u8","selector-field-ranges":[[5,5]]}]}"#,
        ".options",
        "options 0 and 1 have values of the selector in common",
    ),
    (
        r#"{"type":"structure","member-classes":[{"name":"a","field-class":"u8"},{"name":"a","field-class":"u8"}]}"#,
        ".member-classes[1].name",
        "a member \"a\" already",
    ),
    (r#"{"type":"structure","minimum-alignment":0}"#, ".minimum-alignment", "power of two"),
    (r#"{"type":"structure","attributes":7}"#, ".attributes", "expected an object"),
    (r#"{"type":"structure","extensions":{"a":{"b":1}}}"#, ".extensions.a.b", "is not known"),
];

#[test]
fn errors_have_their_position() {
    const PREAMBLE: &str = r#"{"type":"preamble","version":2}"#;
    const EVENT: &str = r#"{"type":"data-stream-class"}"#;
    for (fragments, place, expected) in REFUSED {
        let fragments: Vec<&str> = fragments.iter().map(|text| if *text == "EVENT" { EVENT } else { text }).collect();
        let text = sequence(&[&[PREAMBLE][..], &fragments].concat());
        let error = Trace::decode(text.as_bytes()).expect_err(&text).to_string();
        assert!(error.contains(expected) && error.contains(place), "{text}\n{error}");
    }
    for (class, place, expected) in REFUSED_FIELDS {
        let text = payload(&[("n", "u8"), ("f", "b8"), ("x", class)]);
        let error = Trace::decode(text.as_bytes()).expect_err(&text).to_string();
        let place = format!("fragment 6, payload-field-class.member-classes[2].field-class{place}: ");
        assert!(
            error.starts_with("line 6, column ") && error.contains(&place) && error.contains(expected),
            "{text}\n{error}"
        );
        // The caret is below the value.
        let (shown, caret) = (error.lines().nth(1).unwrap(), error.lines().nth(2).unwrap());
        assert!(shown.len() >= caret.len(), "{error}");
    }
}

/// Unbounded nesting and huge counts end in an error instead of exhausting memory.
#[test]
fn bounds_of_ctf_2_are_enforced() {
    let decoded =
        |class: &str| Trace::decode(payload(&[("x", class)]).as_bytes()).map(drop).map_err(|error| error.to_string());
    let nested = |depth: usize| {
        let begin = r#"{"type":"static-length-array","length":1,"element-field-class":"#;
        format!("{}\"u8\"{}", begin.repeat(depth), "}".repeat(depth))
    };
    assert_eq!(decoded(&nested(60)), Ok(()));
    assert!(decoded(&nested(64)).unwrap_err().contains("more than 64 field classes in one another"));
    assert!(decoded(&nested(100_000)).unwrap_err().contains("recursion limit exceeded"));

    let mut fragments = vec![r#"{"type":"preamble","version":2}"#.to_string(), ALIASES[0].to_string()];
    let alias =
        |name: &str, class: &str| format!(r#"{{"type":"field-class-alias","name":"{name}","field-class":{class}}}"#);
    let labels: Vec<String> = (0..10_000).map(|label| format!(r#""l{label}":[[{label},{label}]]"#)).collect();
    fragments.push(alias(
        "s0",
        &format!(r#"{{"type":"variable-length-unsigned-integer","mappings":{{{}}}}}"#, labels.join(",")),
    ));
    for level in 1..31 {
        let before = format!("s{}", level - 1);
        fragments.push(alias(&format!("s{level}"), &structure(&[("a", &before), ("b", &before)])));
    }
    fragments.push(r#"{"type":"data-stream-class"}"#.into());
    let read = |level: u32| {
        let event = format!(r#"{{"type":"event-record-class","payload-field-class":"s{level}"}}"#);
        let fragments: Vec<&str> = fragments.iter().map(String::as_str).chain([event.as_str()]).collect();
        Trace::decode(sequence(&fragments).as_bytes()).map(drop).map_err(|error| error.to_string())
    };
    // 2^14 numbers that share the same 10,000 labels.
    assert_eq!(read(14), Ok(()));
    assert!(read(30).unwrap_err().contains("too many fields"));
}

/// A field of size zero can be aligned beyond the end of a packet. Nothing is read there.
#[test]
fn fields_of_size_0_after_the_end_are_read() {
    let empty = r#"{"type":"structure","minimum-alignment":512}"#;
    let absent = format!(r#"{{"type":"optional","selector-field-location":{{"path":["f"]}},"field-class":{empty}}}"#);
    for members in [&[("x", "u8"), ("y", empty)][..], &[("f", "b8"), ("y", &absent)]] {
        let of_payload = payload(members);
        let of_header = sequence(&[
            r#"{"type":"preamble","version":2}"#,
            ALIASES[0],
            ALIASES[2],
            &format!(r#"{{"type":"data-stream-class","event-record-header-field-class":{}}}"#, structure(members)),
            r#"{"type":"event-record-class","name":"e"}"#,
        ]);
        for metadata in [of_payload, of_header] {
            let trace = Trace::decode(metadata.as_bytes()).unwrap();
            for len in 1..70 {
                let bytes = vec![1; len];
                let count = dormouse_ctf::StreamReader::new(&trace, 0, &bytes).filter(Result::is_ok).count();
                let stats = dormouse_ctf::Stats::of_traces(&[(&trace).into()], [(0, "stream", bytes.as_slice())]);
                assert_eq!((count as u64, len >= 64), (stats.events, count > 0), "{len}");
            }
        }
    }
}
