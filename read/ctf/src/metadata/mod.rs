//! Metadata: the text that describes the layout of the streams, in TSDL (CTF 1.8, clause 7) or in JSON (CTF 2, `json`).
//!
//! In metadata that Dormouse wrote (`dormouse_format::metadata`), all but three kinds of declaration (`env`, `clock`,
//! `event`) and the choice of the records' header are fixed. The reader requires them, because its plan of such a trace
//! is not made from the text.

mod check;
mod error;
mod grammar;
mod json;
mod own;
mod packets;
mod resolve;
mod scalars;
mod syntax;
mod types;

use std::borrow::Cow;

use crate::model::TraceClass;
use crate::own_classes::Classes;
use dormouse_abi::class::ClassDecl;
use dormouse_format::{Format, MetadataOptions, Totals};
pub use error::{MetadataError, TextError};

/// Metadata, to be written or as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Options of the preamble.
    pub options: MetadataOptions,
    /// Declared event classes.
    pub classes: Classes,
    /// Totals of the streams; empty if the trace is not closed.
    pub totals: Totals,
}

impl Metadata {
    /// Returns metadata with only the classes of the state stream.
    pub fn new(options: MetadataOptions) -> Metadata {
        let classes = Classes::of_records(options.record_kind, &options.tags);
        Metadata { options, classes, totals: Totals::default() }
    }

    /// Returns the whole text.
    pub fn text(&self) -> String {
        let classes = self.classes.events().filter_map(|class| Some((class.id as u16, class.decl.as_ref()?)));
        classes.fold(self.preamble(), |text, (id, decl)| text + &self.options.format.class(id, decl))
    }

    /// Returns the start of the text, up to the first class of a program.
    pub fn preamble(&self) -> String {
        self.options.preamble(&self.totals)
    }

    /// Returns the block of CTF 1.8 that declares a class. It must be appended before the first record with this id.
    /// Ids of programs end at [`CLASS_ID_MAX`](dormouse_abi::class::CLASS_ID_MAX).
    pub fn class(id: u16, decl: &ClassDecl) -> String {
        Format::Ctf18.class(id, decl)
    }

    /// Parses metadata that Dormouse has written.
    ///
    /// # Errors
    /// [`MetadataError`] for a text that [`Metadata::preamble`] and [`Metadata::class`] cannot have written. Comments,
    /// white space and further entries of `env` and `clock` are accepted.
    pub fn parse(text: &str) -> Result<Metadata, MetadataError> {
        match Format::of(text) {
            Format::Ctf18 => own::read(text, &grammar::parse(text)?),
            Format::Ctf2 => json::parse(text),
        }
    }

    /// Decodes the content of a metadata file: text, or text in packets of either byte order (clause 7.1).
    ///
    /// # Errors
    /// Errors of [`Metadata::parse`], of packets, and of bytes that are not text.
    pub fn decode(bytes: &[u8]) -> Result<Metadata, MetadataError> {
        Metadata::parse(&text_of(bytes)?)
    }
}

/// Metadata of any tracer.
#[derive(Debug)]
pub struct Described {
    /// Model of the metadata.
    pub class: TraceClass,
    /// Additional content, if Dormouse wrote the metadata.
    pub own: Option<Metadata>,
}

impl Described {
    /// Decodes the content of any tracer's metadata file: text, or text in packets of either byte order (clause 7.1).
    ///
    /// # Errors
    /// Returns the error and its position.
    pub fn decode(bytes: &[u8]) -> Result<Described, MetadataError> {
        Described::parse(&text_of(bytes)?)
    }

    /// Parses the metadata text of any tracer.
    ///
    /// # Errors
    /// Returns the error and its position.
    pub fn parse(text: &str) -> Result<Described, MetadataError> {
        if Format::of(text) == Format::Ctf2 {
            return json::describe(text);
        }
        let declarations = grammar::parse(text)?;
        let own = own::is_own(&declarations).then(|| own::read(text, &declarations)).transpose()?;
        Ok(Described { class: resolve::resolve(text, &declarations)?, own })
    }
}

/// Converts metadata of any tracer to CTF 2 for the same streams, or returns what CTF 2 cannot express.
pub(crate) fn in_ctf2(class: &TraceClass) -> Result<String, String> {
    json::translate(class)
}

/// Returns the text of a metadata file.
fn text_of(bytes: &[u8]) -> Result<Cow<'_, str>, MetadataError> {
    let not_text = |error: std::str::Utf8Error| {
        let offset_bytes = error.valid_up_to();
        let text = format!("byte {offset_bytes} is no UTF-8: these are no metadata of CTF, or they are damaged there");
        MetadataError::Unreadable(text)
    };
    match packets::text(bytes)? {
        Some(text) => String::from_utf8(text).map(Cow::Owned).map_err(|error| not_text(error.utf8_error())),
        None => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(not_text),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::TraceBuilder;
    use dormouse_abi::class::{FieldType, Kind, Label, Labels, Level};
    use dormouse_abi::page::STREAM_EVENTS;
    use dormouse_abi::record::RecordKind;
    use dormouse_format::state::STATE_CLASS_COUNT_MIN;
    use dormouse_format::{Clock, StateRecord, StreamTotals, Tag};

    fn every_kind() -> ClassDecl {
        let mut fields: Vec<_> =
            Kind::ALL.iter().map(|kind| (format!("{kind:?}").to_lowercase(), FieldType::scalar(*kind))).collect();
        fields.push(("event".into(), FieldType::sequence(Kind::F64)));
        fields.push(("state".into(), FieldType::scalar(Kind::I8)));
        fields.push(("mask".into(), FieldType::scalar(Kind::U64)));
        let label = |name: &str, bits| Label { name: name.into(), bits };
        let state = vec![label("READY", 0), label("event", -1), label("ALIAS", 0)];
        let labels = Labels::from([(fields.len() - 2, state), (fields.len() - 1, vec![label("ALL", -1)])]);
        ClassDecl { provider: "p".into(), name: "every".into(), fields, labels, level: Some(Level::Warning) }
    }

    /// The first line of the message, which has the error and its position.
    fn said(error: &MetadataError) -> String {
        error.to_string().lines().next().unwrap_or_default().to_string()
    }

    fn text() -> String {
        TraceBuilder::new().finish().metadata + &Metadata::class(7, &every_kind())
    }

    #[test]
    fn golden() {
        assert_eq!(text(), include_str!("golden.tsdl"));
    }

    #[test]
    fn golden_without_context() {
        let text = TraceBuilder::of_records(RecordKind::Compact).finish().metadata;
        let stream = text.find("typealias integer { size = 32; signed = false; align = 8; map").unwrap();
        let len = text[stream..].find("\nstream {\n\tid = 1;").unwrap();
        assert_eq!(text[stream..][..len], *include_str!("golden-compact.tsdl"));
    }

    #[test]
    fn written_metadata_are_read_back() {
        for record_kind in [RecordKind::Ids, RecordKind::Compact] {
            is_read(record_kind, Vec::new());
        }
        is_read(RecordKind::Ids, tags());
    }

    /// Tags with names that are words of TSDL; the second one has texts.
    pub(crate) fn tags() -> Vec<Tag> {
        let text = |name: &str, bits| Label { name: name.into(), bits };
        let texts = vec![text("", 0), text("a \"b\" \\ c\n ü */", -1), text("struct", i64::MIN)];
        vec![Tag { name: "event".into(), texts: Vec::new() }, Tag { name: "int".into(), texts }]
    }

    fn is_read(record_kind: RecordKind, tags: Vec<Tag>) {
        let options = MetadataOptions {
            uuid: [0xfe; 16],
            hostname: "a \"b\" \\ c\n\u{1}7 ü */".into(),
            clock: Clock {
                name: "tsc".into(),
                description: "/* \t".into(),
                frequency_hz: 2_899_999_999,
                offset_s: -3,
                offset_cycles: 17,
            },
            tracer_version: (3, 14),
            start_time_s: -1,
            record_kind,
            tags,
            format: Format::Ctf18,
        };
        let mut written = Metadata::new(options);
        written.classes.insert(7, every_kind());
        let text = written.preamble() + &Metadata::class(7, &every_kind());
        assert_eq!(Metadata::parse(&text), Ok(written.clone()));
        let described = Described::parse(&text).unwrap();
        // The plan is built without a look at the text.
        assert_eq!(described.own, Some(written.clone()));
        let context = described.class.streams[0].event_context.as_ref();
        let expected = crate::own_classes::context(&written.options.tags);
        assert_eq!(context, Some(&expected).filter(|_| record_kind == RecordKind::Ids));
    }

    #[test]
    fn every_class_of_the_state_stream_is_needed() {
        let text = text();
        let starts: Vec<_> = text.match_indices("\nevent {\n\tname = \"dormouse:").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), StateRecord::classes().len());
        let end_of = |start: usize| text[start + 1..].find("\nevent {").map_or(text.len(), |at| start + 1 + at);
        for (index, start) in starts.iter().enumerate() {
            let without = Metadata::parse(&format!("{}{}", &text[..*start], &text[end_of(*start)..]));
            // Traces of older versions lack the newest classes.
            assert_eq!(without.is_ok(), index >= STATE_CLASS_COUNT_MIN && index + 1 == starts.len());
        }
    }

    #[test]
    fn names_that_would_break_the_metadata_are_changed() {
        let u32 = FieldType::scalar(Kind::U32);
        let fields = [
            ("a", u32),
            ("a", u32),
            ("_b_length", u32),
            ("b", FieldType::scalar(Kind::Bytes)),
            ("c", FieldType::sequence(Kind::U8)),
            ("_c_length", u32),
            ("d e;", u32),
            ("", u32),
            ("Bool", u32),
        ];
        let fields = fields.iter().map(|(name, field_type)| (name.to_string(), *field_type)).collect();
        let (provider, name) = ("a\"b".into(), "x:y".into());
        let decl = ClassDecl { provider, name, fields, labels: Labels::new(), level: None };
        let mut metadata = TraceBuilder::new().finish().metadata;
        metadata += &Metadata::class(0, &decl);
        let metadata = Metadata::parse(&metadata).unwrap();
        let class = metadata.classes.get(STREAM_EVENTS, 0).unwrap();
        assert_eq!(class.full_name, "a_b:x_y");
        let names: Vec<_> = class.decl.as_ref().unwrap().fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a_", "_b_length", "b_", "c", "_c_length_", "d_e_", "_", "Bool_"]);
    }

    #[test]
    fn other_metadata_are_refused_with_a_remedy() {
        let text = text();
        let line_of = |part: &str| text[..text.find(part).unwrap()].lines().count() + 1;
        let foreign = Metadata::parse("/* CTF 1.8 */\n\ntrace { major = 1; };\n").unwrap_err();
        assert!(foreign.to_string().contains("Dormouse did not write"), "{foreign}");
        for (from, to) in [
            ("/* CTF 1.8 */", "/* CTF 2.0 */"),
            ("byte_order = le", "byte_order = be"),
            ("uint64_t content_size", "uint32_t content_size"),
            ("size = 48", "size = 47"),
            ("freq = 1000000000", "freq = 0"),
            ("hostname = ", "guestname = "),
            ("name = \"p:every\"", "name = \"p.every\""),
            ("stream_id = 0", "stream_id = 2"),
            ("id = 7", "id = 65535"),
            ("float32_t _f32", "float16_t _f32"),
            ("_event[__event_length]", "_event[__other_length]"),
            ("trace {", "callsite {"),
            ("loglevel = 4", "loglevel = 15"),
            ("loglevel = 4", "loglevel = \"WARNING\""),
            ("loglevel = 4", "level = 4"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Metadata::parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(said(&error).ends_with("Dormouse did not write these metadata"), "{from}: {error}");
        }
        let compact = TraceBuilder::of_records(RecordKind::Compact).finish().metadata;
        for (from, to) in [
            ("0 ... 254", "0 ... 253"),
            ("variant <id>", "variant <no>"),
            ("size = 32; signed = false; align = 8; map", "size = 32; signed = false; align = 1; map"),
        ] {
            assert!(compact.contains(from), "{from}");
            let error = Metadata::parse(&compact.replacen(from, to, 1)).unwrap_err();
            assert!(said(&error).ends_with("Dormouse did not write these metadata"), "{from}: {error}");
        }
        let twice = text.clone() + &Metadata::class(7, &every_kind());
        let error = said(&Metadata::parse(&twice).unwrap_err());
        assert!(error.ends_with(": event id 7 is declared twice"), "{error}");
        let cut = &text[..text.len() - 10];
        assert_eq!(Metadata::parse(cut), Err(MetadataError::CutOff { line: line_of("event {\n\tname = \"p:every\"") }));
    }

    #[test]
    fn totals_are_written_and_read() {
        let mut metadata = Metadata::parse(&text()).unwrap();
        assert!(!metadata.totals.is_closed());
        assert_eq!(metadata.text(), text());
        let totals = |stream_id, events| StreamTotals {
            stream_id,
            stream_instance_id: 3,
            events,
            packets: 2,
            events_discarded: u64::MAX,
        };
        metadata.totals.0.extend([("state".into(), totals(1, 0)), ("cpu_3".into(), totals(0, u64::MAX))]);
        let closed = metadata.text();
        assert_eq!(Metadata::parse(&closed), Ok(metadata));
        let odd = closed.replacen("in 2 packets", "in two packets", 1);
        let error = said(&Metadata::parse(&odd).unwrap_err());
        assert!(error.starts_with("line 38, column 17: the value of totals_cpu_3 has another form"), "{error}");
    }

    #[test]
    fn a_duplicate_key_is_refused() {
        let text = text();
        let twice = |from: &str, to: &str| said(&Metadata::parse(&text.replacen(from, to, 1)).unwrap_err());
        let is = |line, column, key: &str, block: &str| {
            format!(
                "line {line}, column {column}: the key {key} is in the {block} declaration twice; take one of the two away"
            )
        };
        let line = text[..text.find("\tdomain").unwrap()].lines().count() + 1;
        assert_eq!(twice("\tdomain", "\t/* ü */ hostname = \"b\";\n\tdomain"), is(line, 10, "hostname", "env"));
        assert_eq!(twice("\tdomain", "\tx = 1; x = 1;\n\tdomain"), is(line, 9, "x", "env"));
        // Keys in two blocks collide like those in one block.
        assert_eq!(twice("\nclock {", "\nenv { domain = 1; };\nclock {"), is(line + 8, 7, "domain", "env"));
        let clock = text[..text.find("\tfreq").unwrap()].lines().count() + 1;
        assert_eq!(twice("\tfreq", "\tfreq = 7;\n\tfreq"), is(clock + 1, 2, "freq", "clock"));
    }

    /// Levels of any tracer are read, but only those that there are.
    #[test]
    fn levels_are_read_in_both_formats() {
        let trace = "/* CTF 1.8 */ trace { major = 1; minor = 8; byte_order = le; };";
        let of_text = |entry: &str| {
            let text = format!("{trace} event {{ name = e; id = 0; {entry} fields := struct {{ string s; }}; }};");
            Described::parse(&text).unwrap().class.streams[0].events[0].level
        };
        let of_fragments = |attributes: &str| {
            let fragments = [
                r#"{"type":"preamble","version":2}"#.to_string(),
                r#"{"type":"data-stream-class"}"#.to_string(),
                format!(r#"{{"type":"event-record-class","name":"e","attributes":{{{attributes}}}}}"#),
            ];
            let text = fragments.map(|fragment| format!("\u{1e}{fragment}\n")).concat();
            Described::parse(&text).unwrap().class.streams[0].events[0].level
        };
        let texts = [
            "emergency",
            "alert",
            "critical",
            "error",
            "warning",
            "notice",
            "info",
            "debug:system",
            "debug:program",
            "debug:process",
            "debug:module",
            "debug:unit",
            "debug:function",
            "debug:line",
            "debug",
        ];
        for (level, text) in Level::ALL.into_iter().zip(texts) {
            assert_eq!(of_text(&format!("loglevel = {};", level as u8)), Some(level));
            for namespace in ["babeltrace.org,2020", "lttng.org,2009"] {
                let attributes = format!(r#""other":{{"x":1}},"{namespace}":{{"emf-uri":"u","log-level":"{text}"}}"#);
                assert_eq!(of_fragments(&attributes), Some(level), "{attributes}");
            }
        }
        for entry in ["", "loglevel = 15;", "loglevel = 777;"] {
            assert_eq!(of_text(entry), None, "{entry}");
        }
        for attributes in [
            "",
            r#""babeltrace.org,2020":{"log-level":"loud"}"#,
            r#""babeltrace.org,2020":{"log-level":4}"#,
            r#""babeltrace.org,2020":7"#,
            r#""else.org":{"log-level":"error"}"#,
        ] {
            assert_eq!(of_fragments(attributes), None, "{attributes}");
        }
        // A conversion keeps the level.
        let described = Described::parse(&format!("{trace} event {{ name = e; loglevel = 3; }};")).unwrap();
        let converted = in_ctf2(&described.class).unwrap();
        assert!(converted.contains(r#""attributes":{"babeltrace.org,2020":{"log-level":"error"}}"#), "{converted}");
    }

    /// Splits metadata into packets whose contents are at most `size_bytes` long.
    fn in_packets(text: &[u8], size_bytes: usize, number: fn(u32) -> [u8; 4]) -> Vec<u8> {
        let packet = |part: &[u8]| {
            let mut packet = [&number(0x75D1_1D57)[..], &[7; 16], &number(0)].concat();
            packet.extend(number(8 * (37 + part.len() as u32)));
            packet.extend(number(8 * (37 + size_bytes as u32)));
            packet.extend([0, 0, 0, 1, 8]);
            packet.extend(part);
            packet.resize(37 + size_bytes, 0xEE);
            packet
        };
        text.chunks(size_bytes).flat_map(packet).collect()
    }

    #[test]
    fn metadata_in_packets_are_read() {
        let text = text() + "/* \u{fc} */";
        let expected = Metadata::parse(&text);
        assert_eq!(Metadata::decode(text.as_bytes()), expected);
        for size_bytes in [1, 100, text.len(), text.len() + 50] {
            for number in [u32::to_le_bytes, u32::to_be_bytes] {
                assert_eq!(Metadata::decode(&in_packets(text.as_bytes(), size_bytes, number)), expected);
            }
        }
        let packets = in_packets(text.as_bytes(), 63, u32::to_be_bytes);
        let with = |offset: usize, byte: u8| {
            let mut odd = packets.clone();
            odd[offset] = byte;
            Metadata::decode(&odd).unwrap_err().to_string()
        };
        for (offset, byte, what) in [
            (0, 0, "does not start with the magic"),
            (4, 0, "belongs to another trace"),
            (27, 1, "no whole number"),
            (26, 0, "less than its header"),
            (28, 1, "is cut off"),
            (32, 1, "is compressed"),
            (34, 1, "has a checksum"),
            (36, 9, "is of another version"),
        ] {
            let error = with(200 + offset, byte);
            assert!(error.starts_with("the packet of metadata at byte 200 ") && error.contains(what), "{error}");
        }
        let cut = Metadata::decode(&packets[..packets.len() - 80]).unwrap_err().to_string();
        assert!(cut.ends_with("is cut off within its header"), "{cut}");
    }

    #[test]
    fn bytes_that_are_not_text_are_reported() {
        let mut bytes = text().into_bytes();
        bytes[20] = 0xFF;
        let packets = in_packets(&bytes, 10, u32::to_le_bytes);
        for (bytes, begin) in
            [(&bytes[..], "byte 20 is no UTF-8: "), (&packets, "byte 20 is no UTF-8: "), (&[], "line 1, column 1: ")]
        {
            let error = Metadata::decode(bytes).unwrap_err().to_string();
            assert!(error.starts_with(begin), "{error}");
        }
    }
}
