//! The metadata: TSDL text (clause 7) that says how the streams are laid out.
//!
//! The text grows while a session runs: the preamble comes first, and a block is appended for every event class before the
//! first record that uses it is written. Three kinds of declaration depend on the session (`env`, `clock`, `event`), and the
//! header of event records is one of two; all
//! others are fixed by `dormouse-abi`, and the reader insists on them, because nothing here could read another layout.
//!
//! As in other tracers' metadata a field `x` is declared as `_x`, so that names such as `int` or `event` do not collide with
//! TSDL's own; readers take the underscore off again. The count of a sequence `x` is a field of its own, `__x_length`.

mod read;
mod write;

use crate::class::Classes;
use dormouse_abi::record::RecordKind;
use dormouse_abi::wire::ClassDecl;

/// The clock that all timestamps of a trace come from (clause 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clock {
    /// An identifier, such as `monotonic` or `tsc`; other characters become `_`.
    pub name: String,
    /// For people.
    pub description: String,
    /// Ticks per second, not 0.
    pub frequency_hz: u64,
    /// Seconds from the epoch (1970-01-01 UTC) to tick 0.
    pub offset_s: i64,
    /// Ticks to add to `offset_s`.
    pub offset_cycles: u64,
}

impl Clock {
    /// Nanoseconds since the epoch. Times that an `i64` cannot hold (before 1678, after 2262) become the nearest that it
    /// can.
    ///
    /// Unless the clock runs at 1 GHz this is a division in `f64`, exactly as in `babeltrace2`, so that both print the same
    /// digits. It never decreases with `timestamp`, and is rounded down but for the error of `f64`, which is at most 1.5 ns
    /// for each 52 days (2^52 ns) that the clock has run.
    pub fn epoch_ns(&self, timestamp: u64) -> i64 {
        let ns = |ticks: u64| match self.frequency_hz {
            1_000_000_000 => ticks,
            hz => (1e9 * ticks as f64 / hz as f64) as u64,
        };
        let hz = self.frequency_hz.max(1);
        let offset_s = i128::from(self.offset_s) + i128::from(self.offset_cycles / hz);
        let sum = offset_s * 1_000_000_000 + i128::from(ns(self.offset_cycles % hz)) + i128::from(ns(timestamp));
        sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// What the preamble says of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataOptions {
    /// The trace's identity, as in every packet.
    pub uuid: [u8; 16],
    /// Name of the machine.
    pub hostname: String,
    /// The clock.
    pub clock: Clock,
    /// Major and minor version of Dormouse.
    pub tracer_version: (u32, u32),
    /// When the session began, seconds since the epoch.
    pub start_time_s: i64,
    /// What headers the records of programs have.
    pub record_kind: RecordKind,
}

/// Metadata as they are written or as they have been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// What the preamble says.
    pub options: MetadataOptions,
    /// The classes that are declared.
    pub classes: Classes,
}

/// Why text is not metadata that this crate reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// Valid CTF perhaps, but of another layout.
    #[error("line {line}: {what}: Dormouse did not write these metadata; read this trace with babeltrace2")]
    Foreign {
        /// Where, from 1.
        line: usize,
        /// What was found or missed.
        what: String,
    },
    /// The text ends within a declaration that starts on this line.
    #[error("the declaration on line {line} is cut off; take the text from that line on away to read the rest")]
    CutOff {
        /// Where, from 1.
        line: usize,
    },
    /// An id is declared again.
    #[error("line {line}: event id {id} is declared twice")]
    Twice {
        /// Where, from 1.
        line: usize,
        /// The id.
        id: u16,
    },
}

impl Metadata {
    /// Metadata without classes but those of the state stream.
    pub fn new(options: MetadataOptions) -> Metadata {
        let classes = Classes::of_records(options.record_kind);
        Metadata { options, classes }
    }

    /// The beginning of the text, up to the first class of a program.
    pub fn preamble(&self) -> String {
        write::preamble(&self.options)
    }

    /// The block that declares a class, to be appended before the first record with this id. Ids of programs end at
    /// [`CLASS_ID_MAX`](dormouse_abi::class::CLASS_ID_MAX).
    pub fn class(id: u16, decl: &ClassDecl) -> String {
        write::event(dormouse_abi::page::STREAM_EVENTS, id, decl)
    }

    /// Reads the text back.
    ///
    /// # Errors
    /// [`MetadataError`] for every text that [`Metadata::preamble`] and [`Metadata::class`] cannot have written; comments,
    /// white space and further entries of `env` and `clock` are accepted.
    pub fn parse(text: &str) -> Result<Metadata, MetadataError> {
        read::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;
    use dormouse_abi::class::{FieldType, Kind};
    use dormouse_abi::page::STREAM_EVENTS;

    fn every_kind() -> ClassDecl {
        let mut fields: Vec<_> =
            Kind::ALL.iter().map(|kind| (format!("{kind:?}").to_lowercase(), FieldType::scalar(*kind))).collect();
        fields.push(("event".into(), FieldType::sequence(Kind::F64)));
        ClassDecl { provider: "p".into(), name: "every".into(), fields }
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
    fn what_is_written_is_read() {
        for record_kind in [RecordKind::Ids, RecordKind::Compact] {
            is_read(record_kind);
        }
    }

    fn is_read(record_kind: RecordKind) {
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
        };
        let mut written = Metadata::new(options);
        written.classes.insert(7, every_kind());
        let text = written.preamble() + &Metadata::class(7, &every_kind());
        assert_eq!(Metadata::parse(&text), Ok(written));
    }

    /// Of before the session owner told of the classes that it refuses.
    #[test]
    fn older_metadata_are_read() {
        let text = text();
        let last = text.find("\nevent {\n\tname = \"dormouse:class_refused\"").unwrap();
        let next = last + 1 + text[last + 1..].find("\nevent {").unwrap();
        let older = format!("{}{}", &text[..last], &text[next..]);
        assert_eq!(Metadata::parse(&older).unwrap().classes.events().count(), 1);
        let before = older.find("\nevent {\n\tname = \"dormouse:salvage\"").unwrap();
        let next = before + 1 + older[before + 1..].find("\nevent {").unwrap();
        assert!(Metadata::parse(&format!("{}{}", &older[..before], &older[next..])).is_err());
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
        let decl = ClassDecl { provider: "a\"b".into(), name: "x:y".into(), fields };
        let mut metadata = TraceBuilder::new().finish().metadata;
        metadata += &Metadata::class(0, &decl);
        let metadata = Metadata::parse(&metadata).unwrap();
        let class = metadata.classes.get(STREAM_EVENTS, 0).unwrap();
        assert_eq!(class.full_name, "a_b:x_y");
        let names: Vec<_> = class.decl.fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a_", "_b_length", "b_", "c", "_c_length_", "d_e_", "_", "Bool_"]);
    }

    #[test]
    fn other_metadata_are_refused_with_a_remedy() {
        let text = text();
        let line_of = |part: &str| text[..text.find(part).unwrap()].lines().count() + 1;
        let foreign = Metadata::parse("/* CTF 1.8 */\n\ntrace { major = 1; };\n").unwrap_err();
        assert!(foreign.to_string().contains("babeltrace2"), "{foreign}");
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
        ] {
            assert!(text.contains(from), "{from}");
            let error = Metadata::parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(matches!(error, MetadataError::Foreign { .. }), "{from}: {error}");
        }
        let compact = TraceBuilder::of_records(RecordKind::Compact).finish().metadata;
        for (from, to) in [
            ("0 ... 254", "0 ... 253"),
            ("variant <id>", "variant <no>"),
            ("size = 32; signed = false; align = 8; map", "size = 32; signed = false; align = 1; map"),
        ] {
            assert!(compact.contains(from), "{from}");
            let error = Metadata::parse(&compact.replacen(from, to, 1)).unwrap_err();
            assert!(matches!(error, MetadataError::Foreign { .. }), "{from}: {error}");
        }
        let twice = text.clone() + &Metadata::class(7, &every_kind());
        assert!(matches!(Metadata::parse(&twice), Err(MetadataError::Twice { id: 7, .. })));
        let cut = &text[..text.len() - 10];
        assert_eq!(Metadata::parse(cut), Err(MetadataError::CutOff { line: line_of("event {\n\tname = \"p:every\"") }));
    }
}
