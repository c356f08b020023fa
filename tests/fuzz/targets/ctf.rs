//! Arbitrary metadata in CTF 1.8: as text, in words of the grammar and in packets, and streams under the valid ones.
//! The reader must not panic or loop forever, and counting must find as many events as printing.
#![no_main]

use arbitrary::Arbitrary;
use dormouse_ctf::Trace;
use dormouse_fuzz::ctf::{self, How};
use libfuzzer_sys::fuzz_target;

const START: &str = "trace { major = 1; minor = 8; byte_order = ";
const REST: &str = "packet.header := struct { integer { size = 32; align = 8; } magic; integer { size = 8; align = 8; } stream_id; }; };\n\
    clock { name = c; freq = 1000; };\n";

#[derive(Debug, Arbitrary)]
enum Input {
    /// A text by itself, or after a valid trace.
    Text(String),
    /// Words of the grammar, after a valid trace.
    Words(Vec<Part>),
    /// Contents of packets, and whether these are big-endian.
    Packets(bool, Vec<Vec<u8>>),
    /// Fields of a context, a header and an event, in words of the grammar; streams.
    Trace { is_big_endian: bool, structures: [Vec<Field>; 3], streams: Vec<Vec<u8>> },
}

#[derive(Debug, Arbitrary)]
enum Part {
    Word(u8),
    Number(u64),
    Text(String),
}

const WORDS: [&str; 64] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ";",
    ":=",
    "=",
    ":",
    ",",
    ".",
    "...",
    "->",
    "*",
    "-",
    "\"a\"",
    "\"",
    "/*",
    "*/",
    "//",
    "\n",
    "trace",
    "stream",
    "event",
    "clock",
    "env",
    "callsite",
    "typealias",
    "typedef",
    "struct",
    "variant",
    "enum",
    "integer",
    "floating_point",
    "string",
    "int",
    "unsigned",
    "long",
    "const",
    "align",
    "size",
    "signed",
    "base",
    "encoding",
    "byte_order",
    "map",
    "exp_dig",
    "mant_dig",
    "id",
    "name",
    "stream_id",
    "packet",
    "header",
    "context",
    "fields",
    "value",
    "c",
    "a",
    "true",
    "le",
    "major",
];

fn words(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Word(index) => text += WORDS[usize::from(*index) % WORDS.len()],
            Part::Number(number) => text += &number.to_string(),
            Part::Text(more) => text += more,
        }
        text.push(' ');
    }
    text
}

/// A field, which later ones can use as length or tag.
#[derive(Debug, Arbitrary)]
enum Field {
    Integer { size: u8, align: u8, is_signed: bool, is_time: bool },
    Float(bool),
    Text,
    Enumeration(u8),
    Fixed(u8, Box<Field>),
    Sequence(u8, Box<Field>),
    Variant(u8, Box<Field>, Box<Field>),
    Structure(Vec<Field>),
}

impl Field {
    fn declare(&self, index: usize, depth: usize, out: &mut String) {
        let name =
            ["id", "timestamp", "a", "b"].get(index).map_or_else(|| format!("f{index}"), |name| name.to_string());
        let below = |field: &Field, out: &mut String| {
            out.push_str("struct {");
            if depth < 6 {
                field.declare(2, depth + 1, out);
            }
            out.push('}');
        };
        let earlier = |of: u8| match of as usize % (index + 1) {
            0 => "id".to_string(),
            1 => "timestamp".to_string(),
            2 => "a".to_string(),
            3 => "b".to_string(),
            index => format!("f{index}"),
        };
        match self {
            Field::Integer { size, align, is_signed, is_time } => {
                let (size, align) = (size % 64 + 1, 1u64 << (align % 7));
                let map = if *is_time { "map = clock.c.value;" } else { "" };
                *out += &format!("integer {{ size = {size}; align = {align}; signed = {is_signed}; {map} }} {name};");
            }
            Field::Float(true) => {
                *out += &format!("floating_point {{ exp_dig = 8; mant_dig = 24; align = 1; }} {name};")
            }
            Field::Float(false) => *out += &format!("floating_point {{ exp_dig = 11; mant_dig = 53; }} {name};"),
            Field::Text => *out += &format!("string {name};"),
            Field::Enumeration(size) => {
                let size = size % 64 + 1;
                *out += &format!("enum : integer {{ size = {size}; }} {{ a, b = 1 ... 200, c = 150 ... 250 }} {name};");
            }
            Field::Fixed(count, field) => {
                below(field, out);
                *out += &format!(" {name}[{count}];");
            }
            Field::Sequence(of, field) => {
                below(field, out);
                *out += &format!(" {name}[{}];", earlier(*of));
            }
            Field::Variant(of, first, second) => {
                *out += &format!("variant <{}> {{", earlier(*of));
                below(first, out);
                out.push_str(" a;");
                below(second, out);
                *out += &format!(" b; }} {name};");
            }
            Field::Structure(fields) => {
                out.push_str("struct {");
                if depth < 6 {
                    fields.iter().enumerate().for_each(|(index, field)| field.declare(index, depth + 1, out));
                }
                *out += &format!("}} {name};");
            }
        }
    }
}

fn structure(fields: &[Field]) -> String {
    let mut out = String::from("struct {");
    fields.iter().enumerate().for_each(|(index, field)| field.declare(index, 0, &mut out));
    out + "}"
}

fn in_packets(is_big_endian: bool, parts: &[Vec<u8>]) -> Vec<u8> {
    let number = |number: u32| if is_big_endian { number.to_be_bytes() } else { number.to_le_bytes() };
    let packet = |part: &Vec<u8>| {
        let size = number(8 * (37 + part.len() as u32));
        [&number(0x75D1_1D57)[..], &[7; 16], &number(0), &size, &size, &[0, 0, 0, 1, 8], part].concat()
    };
    parts.iter().flat_map(packet).collect()
}

fuzz_target!(|input: Input| {
    match input {
        Input::Text(text) => {
            // Without a prefix, a text that begins otherwise would be refused early.
            let begin = if text.starts_with(['t', '/']) { String::new() } else { format!("{START}le; {REST}") };
            let _ = Trace::decode((begin + &text).as_bytes());
        }
        Input::Words(parts) => {
            let _ = Trace::decode(format!("{START}le; {REST}{}", words(&parts)).as_bytes());
        }
        Input::Packets(is_big_endian, parts) => {
            let _ = Trace::decode(&in_packets(is_big_endian, &parts));
        }
        Input::Trace { is_big_endian, structures: [context, header, fields], mut streams } => {
            let order = if is_big_endian { "be; " } else { "le; " };
            let (context, header, fields) = (structure(&context), structure(&header), structure(&fields));
            let text = format!(
                "{START}{order}{REST}stream {{ id = 0; packet.context := {context}; event.header := {header}; }};\n\
                 event {{ name = e; id = 0; stream_id = 0; fields := {fields}; }};\n"
            );
            let Ok(trace) = Trace::decode(text.as_bytes()) else { return };
            streams.truncate(3);
            let how = How::from(streams.iter().flatten().copied().next().unwrap_or(0));
            for bytes in &mut streams {
                let magic = 0xC1FC_1FC1u32;
                let magic = if is_big_endian { magic.to_be_bytes() } else { magic.to_le_bytes() };
                bytes.splice(0..0, magic.into_iter().chain([0]));
            }
            ctf::read(&trace, &streams, how);
        }
    }
});
