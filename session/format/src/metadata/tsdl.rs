//! Writer of TSDL.

use std::collections::BTreeSet;
use std::fmt::Write;

use dormouse_abi::class::{ClassDecl, FieldType, Kind, Label};
use dormouse_abi::page::{STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::RecordKind;

use super::{MetadataOptions, Tag};
use crate::date::utc_datetime;
use crate::state::StateRecord;
use crate::totals::Totals;

/// First line of metadata (clause 7).
pub const FIRST_LINE: &str = "/* CTF 1.8 */";

/// Name of a kind's type. `Str` needs no alias, because TSDL itself names that type.
pub fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::U8 => "uint8_t",
        Kind::U16 => "uint16_t",
        Kind::U32 => "uint32_t",
        Kind::U64 => "uint64_t",
        Kind::I8 => "int8_t",
        Kind::I16 => "int16_t",
        Kind::I32 => "int32_t",
        Kind::I64 => "int64_t",
        Kind::F32 => "float32_t",
        Kind::F64 => "float64_t",
        Kind::Bool => "bool_t",
        Kind::Pointer => "pointer_t",
        Kind::Bytes => "byte_t",
        Kind::Str => "string",
    }
}

/// Header of records with context and of state-stream records: `dormouse_abi::record` in TSDL.
const EVENT_HEADER: &str = "\
\tevent.header := struct {
\t\tuint16_t id;
\t\tuint48_clock_t timestamp;
\t} align(8);
";

/// Returns the context after that header.
fn event_context(tags: &[Tag]) -> String {
    let mut out = String::from("\tevent.context := struct {\n\t\tuint32_t vpid;\n\t\tuint32_t vtid;\n");
    if !tags.is_empty() {
        out += "\t\tstruct {\n";
        for Tag { name, texts } in tags {
            let class = if texts.is_empty() { type_name(Kind::U64).into() } else { enumeration(Kind::U64, texts) };
            put(&mut out, format_args!("\t\t\t{class} _{name};\n"));
        }
        out += "\t\t} tag;\n";
    }
    out + "\t} align(8);\n"
}

fn enumeration(kind: Kind, labels: &[Label]) -> String {
    let label = |label: &Label| format!("{} = {}", quoted(&label.name), kind.integer(label.bits));
    let labels: Vec<_> = labels.iter().map(label).collect();
    format!("enum : {} {{ {} }}", type_name(kind), labels.join(", "))
}

/// Header of records without context, similar to LTTng's compact header.
const COMPACT_EVENT_HEADER: &str = "\
\tevent.header := struct {
\t\tenum : uint8_t { compact = 0 ... 254, extended = 255 } id;
\t\tvariant <id> {
\t\t\tstruct {
\t\t\t\tuint32_clock_t timestamp;
\t\t\t} compact;
\t\t\tstruct {
\t\t\t\tuint16_t id;
\t\t\t\tuint64_clock_t timestamp;
\t\t\t} extended;
\t\t} v;
\t} align(8);
";

/// Packet context: `dormouse_abi::page` in TSDL.
const PACKET_CONTEXT: &str = "\
\tpacket.context := struct {
\t\tuint32_t cpu_id;
\t\tuint64_clock_t timestamp_begin;
\t\tuint64_clock_t timestamp_end;
\t\tuint64_t content_size;
\t\tuint64_t packet_size;
\t\tuint64_t packet_seq_num;
\t\tuint64_t events_discarded;
\t} align(8);
";

pub(super) fn preamble(options: &MetadataOptions, totals: &Totals) -> String {
    let MetadataOptions {
        uuid, hostname, clock, tracer_version: (major, minor), start_time_s, record_kind, tags, ..
    } = options;
    let clock_name = identifier(&clock.name);
    let (compact_clock, header, context) = match record_kind {
        RecordKind::Ids => (String::new(), EVENT_HEADER, event_context(tags)),
        RecordKind::Compact => (clock_alias(32, &clock_name), COMPACT_EVENT_HEADER, String::new()),
    };
    let (record_clock, full_clock) = (clock_alias(48, &clock_name), clock_alias(64, &clock_name));
    let mut out = format!("{FIRST_LINE}\n\n");
    for kind in Kind::ALL {
        let size = kind.element_size_bytes() * 8;
        let (class, properties) = match kind {
            Kind::Str => continue,
            Kind::F32 => ("floating_point", "exp_dig = 8; mant_dig = 24".to_string()),
            Kind::F64 => ("floating_point", "exp_dig = 11; mant_dig = 53".to_string()),
            Kind::Pointer => ("integer", format!("size = {size}; signed = false; base = 16")),
            Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => ("integer", format!("size = {size}; signed = true")),
            _ => ("integer", format!("size = {size}; signed = false")),
        };
        put(&mut out, format_args!("typealias {class} {{ {properties}; align = 8; }} := {};\n", type_name(kind)));
    }
    let uuid = uuid_text(uuid);
    let mut entries = String::new();
    for (name, text) in totals.entries() {
        put(&mut entries, format_args!("\t{} = {};\n", identifier(&name), quoted(&text)));
    }
    put(
        &mut out,
        format_args!(
            "
trace {{
\tmajor = 1;
\tminor = 8;
\tuuid = \"{uuid}\";
\tbyte_order = le;
\tpacket.header := struct {{
\t\tuint32_t magic;
\t\tuint8_t uuid[16];
\t\tuint32_t stream_id;
\t\tuint32_t stream_instance_id;
\t}} align(8);
}};

env {{
\thostname = {};
\tdomain = \"dormouse\";
\ttracer_name = \"dormouse\";
\ttracer_major = {major};
\ttracer_minor = {minor};
\ttrace_creation_datetime = \"{}\";
\ttrace_creation_time_s = {start_time_s};
{entries}}};

clock {{
\tname = \"{clock_name}\";
\tdescription = {};
\tfreq = {};
\toffset_s = {};
\toffset = {};
\tabsolute = true;
}};

{compact_clock}{record_clock}{full_clock}
stream {{
\tid = {STREAM_EVENTS};
{header}{PACKET_CONTEXT}{context}}};

stream {{
\tid = {STREAM_STATE};
{EVENT_HEADER}{PACKET_CONTEXT}}};
",
            quoted(hostname),
            utc_datetime(*start_time_s),
            quoted(&clock.description),
            clock.frequency_hz,
            clock.offset_s,
            clock.offset_cycles,
        ),
    );
    for (id, decl) in StateRecord::classes() {
        out += &event(STREAM_STATE, id, &decl);
    }
    out
}

/// Returns the alias of a timestamp type.
fn clock_alias(size_bits: u32, clock_name: &str) -> String {
    format!(
        "typealias integer {{ size = {size_bits}; signed = false; align = 8; map = clock.{clock_name}.value; }} := uint{size_bits}_clock_t;\n"
    )
}

pub(super) fn event(stream_id: u32, id: u16, decl: &ClassDecl) -> String {
    let mut out = String::new();
    let (provider, name) = (identifier(&decl.provider), identifier(&decl.name));
    put(
        &mut out,
        format_args!("\nevent {{\n\tname = \"{provider}:{name}\";\n\tid = {id};\n\tstream_id = {stream_id};\n"),
    );
    if let Some(level) = decl.level {
        put(&mut out, format_args!("\tloglevel = {};\n", level as u8));
    }
    out += "\tfields := struct {\n";
    for (index, ((_, field_type), name)) in decl.fields.iter().zip(field_names(decl)).enumerate() {
        let FieldType { kind, sequence } = *field_type;
        if let Some(labels) = decl.labels.get(&index) {
            put(&mut out, format_args!("\t\t{} _{name};\n", enumeration(kind, labels)));
            continue;
        }
        match kind {
            Kind::Str => put(&mut out, format_args!("\t\tstring {{ encoding = UTF8; }} _{name};\n")),
            Kind::Bytes => put_counted(&mut out, kind, &name),
            _ if sequence => put_counted(&mut out, kind, &name),
            _ => put(&mut out, format_args!("\t\t{} _{name};\n", type_name(kind))),
        }
    }
    out += "\t} align(8);\n};\n";
    out
}

fn put_counted(out: &mut String, kind: Kind, name: &str) {
    put(out, format_args!("\t\tuint32_t __{name}_length;\n\t\t{} _{name}[__{name}_length];\n", type_name(kind)));
}

/// Words of TSDL that start with an underscore, without it. The underscore in front of a field's name would turn the
/// name into such a word.
const RESERVED: [&str; 3] = ["Bool", "Complex", "Imaginary"];

/// Returns names for the fields: C identifiers that differ from one another and from the names of the counts.
pub(super) fn field_names(decl: &ClassDecl) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let name_of = |(name, field_type): &(String, FieldType)| {
        let mut name = identifier(name);
        let length_of =
            |name: &str| (field_type.sequence || field_type.kind == Kind::Bytes).then(|| format!("_{name}_length"));
        while RESERVED.contains(&name.as_str())
            || taken.contains(&name)
            || length_of(&name).is_some_and(|length| taken.contains(&length))
        {
            name.push('_');
        }
        taken.extend(length_of(&name));
        taken.insert(name.clone());
        name
    };
    decl.fields.iter().map(name_of).collect()
}

/// Converts a name to the nearest C identifier.
pub fn identifier(name: &str) -> String {
    let mut name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if name.chars().next().is_none_or(|first| first.is_ascii_digit()) {
        name.insert(0, '_');
    }
    name
}

/// Returns a TSDL string literal with C escapes. NUL is left out, because it would end the string for readers.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0' => {}
            c if c.is_ascii_control() => put(&mut out, format_args!("\\{:03o}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Formats a UUID as in RFC 9562.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut out = String::new();
    for (index, byte) in uuid.iter().enumerate() {
        let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
        put(&mut out, format_args!("{dash}{byte:02x}"));
    }
    out
}

fn put(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments).expect("a String takes all text");
}
