//! Writer of CTF 2. The content equals that of [`tsdl`](super::tsdl).

use dormouse_abi::class::{ClassDecl, FieldType, Kind, Label, Level};
use dormouse_abi::page::{STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::{COMPACT_TIMESTAMP_BITS, EXTENDED, RecordKind, TIMESTAMP_BITS};

use super::json::{Json, list, object, text};
use super::tsdl::{field_names, identifier, type_name};
use super::{MetadataOptions, Tag};
use crate::date::utc_datetime;
use crate::state::StateRecord;
use crate::totals::Totals;

/// Separator at the start of each text in the sequence.
pub const SEPARATOR: char = '\u{1e}';

pub(super) fn preamble(options: &MetadataOptions, totals: &Totals) -> String {
    let state = StateRecord::classes().into_iter().map(|(id, decl)| event_fragment(STREAM_STATE, id, &decl));
    layout(options, totals).into_iter().chain(state).map(|fragment| line(&fragment)).collect()
}

pub(super) fn event(stream_id: u32, id: u16, decl: &ClassDecl) -> String {
    line(&event_fragment(stream_id, id, decl))
}

/// Returns a fragment on a line of its own.
pub fn line(fragment: &Json) -> String {
    let json = serde_json::to_string(fragment).expect("texts and whole numbers are JSON");
    format!("{SEPARATOR}{json}\n")
}

/// Returns all fragments except those of event record classes.
pub fn layout(options: &MetadataOptions, totals: &Totals) -> Vec<Json> {
    let MetadataOptions {
        uuid, hostname, clock, tracer_version: (major, minor), start_time_s, record_kind, tags, ..
    } = options;
    let uuid = list(uuid.iter().map(|byte| Json::Number((*byte).into())));
    let mut fragments = vec![object([("type", text("preamble")), ("version", Json::Number(2)), ("uuid", uuid)])];
    fragments.extend(Kind::ALL.iter().map(|kind| {
        let (name, class) = (text(alias(*kind)), class_of(*kind));
        object([("type", text("field-class-alias")), ("name", name), ("field-class", class)])
    }));

    let env = [
        ("hostname", text(hostname)),
        ("domain", text("dormouse")),
        ("tracer_name", text("dormouse")),
        ("tracer_major", Json::Number((*major).into())),
        ("tracer_minor", Json::Number((*minor).into())),
        ("trace_creation_datetime", text(&utc_datetime(*start_time_s))),
        ("trace_creation_time_s", Json::Number((*start_time_s).into())),
    ];
    let totals = totals.entries().map(|(name, totals)| (identifier(&name), Json::Text(totals)));
    let env = env.into_iter().map(|(name, value)| (name.to_string(), value)).chain(totals).collect();
    let uuid = object([
        ("type", text("static-length-blob")),
        ("length", Json::Number(16)),
        ("roles", list([text("metadata-stream-uuid")])),
    ]);
    let packet_header = structure([
        ("magic", unsigned(32, &["packet-magic-number"])),
        ("uuid", uuid),
        ("stream_id", unsigned(32, &["data-stream-class-id"])),
        ("stream_instance_id", unsigned(32, &["data-stream-id"])),
    ]);
    fragments.push(object([
        ("type", text("trace-class")),
        ("environment", Json::Object(env)),
        ("packet-header-field-class", packet_header),
    ]));

    let clock_name = identifier(&clock.name);
    // CTF 2 requires fewer cycles than one second has.
    let hz = clock.frequency_hz.max(1);
    let seconds = i128::from(clock.offset_s) + i128::from(clock.offset_cycles / hz);
    let offset = [("seconds", Json::Number(seconds)), ("cycles", Json::Number((clock.offset_cycles % hz).into()))];
    fragments.push(object([
        ("type", text("clock-class")),
        ("id", text(&clock_name)),
        ("name", text(&clock_name)),
        ("description", text(&clock.description)),
        ("frequency", Json::Number(clock.frequency_hz.into())),
        ("origin", text("unix-epoch")),
        ("offset-from-origin", object(offset)),
    ]));

    for (id, kind) in [(STREAM_EVENTS, Some(*record_kind)), (STREAM_STATE, None)] {
        let header = match kind {
            Some(RecordKind::Compact) => compact_header(),
            _ => structure([
                ("id", unsigned(16, &["event-record-class-id"])),
                ("timestamp", unsigned(TIMESTAMP_BITS, &["default-clock-timestamp"])),
            ]),
        };
        let mut stream = vec![
            ("type", text("data-stream-class")),
            ("id", Json::Number(id.into())),
            ("default-clock-class-id", text(&clock_name)),
            ("packet-context-field-class", packet_context()),
            ("event-record-header-field-class", header),
        ];
        if kind == Some(RecordKind::Ids) {
            let tag = |tag: &Tag| {
                if tag.texts.is_empty() { text(alias(Kind::U64)) } else { enumeration(Kind::U64, &tag.texts) }
            };
            let all = || structure(tags.iter().map(|of| (of.name.as_str(), tag(of))));
            let ids = ["vpid", "vtid"].map(|name| (name, text(alias(Kind::U32))));
            let context = structure(ids.into_iter().chain((!tags.is_empty()).then(|| ("tag", all()))));
            stream.push(("event-record-common-context-field-class", context));
        }
        fragments.push(object(stream));
    }
    fragments
}

/// Returns the fragment of an event record class.
pub fn event_fragment(stream_id: u32, id: u16, decl: &ClassDecl) -> Json {
    let name = format!("{}:{}", identifier(&decl.provider), identifier(&decl.name));
    let mut members = Vec::new();
    for (index, ((_, FieldType { kind, sequence }), name)) in decl.fields.iter().zip(field_names(decl)).enumerate() {
        let mut class = match decl.labels.get(&index) {
            Some(labels) => enumeration(*kind, labels),
            None => text(alias(*kind)),
        };
        if *sequence || *kind == Kind::Bytes {
            let count = format!("_{name}_length");
            class = object([
                ("type", text("dynamic-length-array")),
                ("length-field-location", object([("path", list([text(&count)]))])),
                ("element-field-class", class),
            ]);
            members.push((count, text(alias(Kind::U32))));
        }
        members.push((name, class));
    }
    let payload = structure(members.iter().map(|(name, class)| (name.as_str(), class.clone())));
    let mut fragment = vec![
        ("type", text("event-record-class")),
        ("id", Json::Number(id.into())),
        ("data-stream-class-id", Json::Number(stream_id.into())),
        ("name", text(&name)),
    ];
    fragment.extend(decl.level.map(|level| ("attributes", attributes(level))));
    fragment.push(("payload-field-class", payload));
    object(fragment)
}

/// Namespaces of the attribute that is a class's level: those of babeltrace2 and LTTng.
const LEVEL_NAMESPACES: [&str; 2] = ["babeltrace.org,2020", "lttng.org,2009"];
/// Name of that attribute.
const LEVEL_ATTRIBUTE: &str = "log-level";

/// Value of that attribute.
fn level_text(level: Level) -> &'static str {
    match level {
        Level::Emerg => "emergency",
        Level::Alert => "alert",
        Level::Crit => "critical",
        Level::Err => "error",
        Level::Warning => "warning",
        Level::Notice => "notice",
        Level::Info => "info",
        Level::DebugSystem => "debug:system",
        Level::DebugProgram => "debug:program",
        Level::DebugProcess => "debug:process",
        Level::DebugModule => "debug:module",
        Level::DebugUnit => "debug:unit",
        Level::DebugFunction => "debug:function",
        Level::DebugLine => "debug:line",
        Level::Debug => "debug",
    }
}

/// Returns the attributes of an event record class of this level.
pub fn attributes(level: Level) -> Json {
    object([(LEVEL_NAMESPACES[0], object([(LEVEL_ATTRIBUTE, text(level_text(level)))]))])
}

/// Returns the level in the attributes of an event record class, of any tracer; `None` for a level that is not known.
pub fn level_of(attributes: &Json) -> Option<Level> {
    let of_namespace = |namespace: &&str| attributes.get(namespace)?.get(LEVEL_ATTRIBUTE)?.text();
    let found = LEVEL_NAMESPACES.iter().find_map(of_namespace)?;
    Level::ALL.into_iter().find(|level| level_text(*level) == found)
}

/// Name of a kind's field class.
pub fn alias(kind: Kind) -> &'static str {
    type_name(kind)
}

/// Returns the field class of integers of this kind with labels.
pub fn enumeration(kind: Kind, labels: &[Label]) -> Json {
    let range = |number: i128| list([list([Json::Number(number), Json::Number(number)])]);
    let labels = labels.iter().map(|label| (label.name.clone(), range(kind.integer(label.bits)))).collect();
    match class_of(kind) {
        Json::Object(properties) => {
            Json::Object(properties.into_iter().chain([("mappings".into(), Json::Object(labels))]).collect())
        }
        class => class,
    }
}

/// Field class that the name stands for.
fn class_of(kind: Kind) -> Json {
    let bits = u32::try_from(kind.element_size_bytes() * 8).unwrap_or(0);
    match kind {
        Kind::Str => object([("type", text("null-terminated-string"))]),
        Kind::F32 | Kind::F64 => number("fixed-length-floating-point-number", bits, []),
        Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => number("fixed-length-signed-integer", bits, []),
        Kind::Pointer => {
            let base = ("preferred-display-base", Json::Number(16));
            number("fixed-length-unsigned-integer", bits, [base])
        }
        _ => unsigned(bits, &[]),
    }
}

fn unsigned(size_bits: u32, roles: &[&str]) -> Json {
    let roles = (!roles.is_empty()).then(|| ("roles", list(roles.iter().map(|role| text(role)))));
    number("fixed-length-unsigned-integer", size_bits, roles)
}

fn number(kind: &str, size_bits: u32, more: impl IntoIterator<Item = (&'static str, Json)>) -> Json {
    let properties = [
        ("type", text(kind)),
        ("length", Json::Number(size_bits.into())),
        ("byte-order", text("little-endian")),
        ("alignment", Json::Number(8)),
    ];
    object(properties.into_iter().chain(more))
}

/// The packet context of `dormouse_abi::page`.
fn packet_context() -> Json {
    structure([
        ("cpu_id", text(alias(Kind::U32))),
        ("timestamp_begin", unsigned(64, &["default-clock-timestamp"])),
        ("timestamp_end", unsigned(64, &["packet-end-default-clock-timestamp"])),
        ("content_size", unsigned(64, &["packet-content-length"])),
        ("packet_size", unsigned(64, &["packet-total-length"])),
        ("packet_seq_num", unsigned(64, &["packet-sequence-number"])),
        ("events_discarded", unsigned(64, &["discarded-event-record-counter-snapshot"])),
    ])
}

/// Header of records without context: the id, or the mark that an extended id follows.
fn compact_header() -> Json {
    let time = |size_bits| ("timestamp", unsigned(size_bits, &["default-clock-timestamp"]));
    let id = |size_bits| ("id", unsigned(size_bits, &["event-record-class-id"]));
    let option = |name: &str, first: u8, last: u8, class| {
        let range = list([first, last].map(|bound| Json::Number(bound.into())));
        object([("name", text(name)), ("field-class", class), ("selector-field-ranges", list([range]))])
    };
    let options = [
        option("compact", 0, EXTENDED - 1, structure([time(COMPACT_TIMESTAMP_BITS)])),
        option("extended", EXTENDED, EXTENDED, structure([id(16), time(64)])),
    ];
    let variant = object([
        ("type", text("variant")),
        ("selector-field-location", object([("path", list([text("id")]))])),
        ("options", list(options)),
    ]);
    structure([id(8), ("v", variant)])
}

fn structure<'a>(members: impl IntoIterator<Item = (&'a str, Json)>) -> Json {
    let member = |(name, class): (&str, Json)| object([("name", text(name)), ("field-class", class)]);
    object([
        ("type", text("structure")),
        ("member-classes", list(members.into_iter().map(member))),
        ("minimum-alignment", Json::Number(8)),
    ])
}
