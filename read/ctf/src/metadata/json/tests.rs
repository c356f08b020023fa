use super::super::{Described, Metadata, MetadataError};
use crate::plan::Plan;
use crate::testing::TraceBuilder;
use dormouse_abi::class::{ClassDecl, FieldType, Kind, Label, Labels, Level};
use dormouse_abi::record::RecordKind;
use dormouse_format::{Clock, Format, MetadataOptions, StateRecord, StreamTotals};

fn every_kind() -> ClassDecl {
    let every = Kind::ALL.iter().map(|kind| FieldType::scalar(*kind));
    let all = every.chain((0..=u8::MAX).filter_map(FieldType::from_u8).filter(|field| field.sequence));
    let mut fields: Vec<_> = all.enumerate().map(|(index, field)| (format!("f{index}"), field)).collect();
    fields.push(("_length".into(), FieldType::sequence(Kind::F64)));
    fields.push(("state".into(), FieldType::scalar(Kind::I8)));
    fields.push(("mask".into(), FieldType::scalar(Kind::U64)));
    let label = |name: &str, bits| Label { name: name.into(), bits };
    let state = vec![label("READY", 0), label("event", -1), label("ALIAS", 0)];
    let labels = Labels::from([(fields.len() - 2, state), (fields.len() - 1, vec![label("ALL", -1)])]);
    ClassDecl { provider: "p".into(), name: "every".into(), fields, labels, level: Some(Level::Warning) }
}

fn text(kind: RecordKind, format: Format) -> String {
    TraceBuilder::in_format(kind, format).finish().metadata + &format.class(7, &every_kind())
}

/// The first line of the message, which has the error and its position.
fn said(error: &MetadataError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_string()
}

#[test]
fn golden() {
    let text = text(RecordKind::Ids, Format::Ctf2);
    // The fragments are on separate lines, without the separators.
    let expected = include_str!("golden.json");
    assert_eq!(text.replace('\u{1e}', ""), expected);
    assert_eq!(text.matches('\u{1e}').count(), expected.lines().count());
}

/// Both texts result in equal classes.
#[test]
fn both_formats_describe_the_same_model() {
    for kind in [RecordKind::Ids, RecordKind::Compact] {
        let [old, new] = [Format::Ctf18, Format::Ctf2].map(|format| Described::parse(&text(kind, format)).unwrap());
        assert_eq!(old.class.uuid, new.class.uuid);
        assert_eq!(old.class.env, new.class.env);
        assert_eq!(old.class.clocks, new.class.clocks);
        let [of_old, of_new] = [&old, &new].map(|described| Plan::new(&described.class).unwrap().streams);
        assert_eq!(of_old.len(), 2);
        for (old, new) in of_old.iter().zip(&of_new) {
            assert_eq!((old.id, old.clock, old.has_who()), (new.id, new.clock, new.has_who()));
            assert_eq!(old.packet_context, new.packet_context);
            assert_eq!(old.classes().collect::<Vec<_>>(), new.classes().collect::<Vec<_>>());
        }
        let (old, new) = (old.own.unwrap(), new.own.unwrap());
        assert_eq!(old.classes, new.classes);
        assert_eq!(old.options, MetadataOptions { format: Format::Ctf18, ..new.options });
    }
}

#[test]
fn written_metadata_are_read_back() {
    let tags = crate::metadata::tests::tags;
    for (record_kind, tags) in [(RecordKind::Ids, vec![]), (RecordKind::Compact, vec![]), (RecordKind::Ids, tags())] {
        let options = MetadataOptions {
            uuid: [0xfe; 16],
            hostname: "a \"b\" \\ c\n\u{1}\u{1e}7 ü */".into(),
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
            format: Format::Ctf2,
        };
        let mut written = Metadata::new(options);
        written.classes.insert(7, every_kind());
        assert_eq!(Metadata::parse(&written.text()), Ok(written.clone()));
        let totals = StreamTotals { stream_id: 0, stream_instance_id: 3, events: 5, packets: 2, events_discarded: 9 };
        written.totals.0.extend([("cpu_3".into(), totals)]);
        assert_eq!(Metadata::decode(written.text().as_bytes()), Ok(written.clone()));
        let odd = written.text().replacen("in 2 packets", "in two packets", 1);
        let error = said(&Metadata::parse(&odd).unwrap_err());
        assert!(error.contains("fragment 16, environment.totals_cpu_3: this value has another form"), "{error}");
    }
}

#[test]
fn a_truncated_fragment_is_reported_with_its_line() {
    let text = text(RecordKind::Ids, Format::Ctf2);
    let class = text.find("\u{1e}{\"type\":\"event-record-class\",\"id\":7,").unwrap();
    let line = text[..class].lines().count() + 1;
    for len in class + 2..text.len() - 1 {
        assert_eq!(Metadata::parse(&text[..len]), Err(MetadataError::CutOff { line }), "{len}");
    }
    for len in [class, class + 1] {
        assert_eq!(Metadata::parse(&text[..len]).unwrap().classes.events().count(), 0);
    }
    // A fragment in the middle cannot be cut off.
    let odd = text.replacen("\"minimum-alignment\":8}}\n\u{1e}", "\n\u{1e}", 1);
    assert!(odd.len() < text.len());
    let error = said(&Metadata::parse(&odd).unwrap_err());
    assert!(error.contains("fragment 16: EOF while parsing"), "{error}");
}

#[test]
fn other_metadata_are_refused_with_a_remedy() {
    let text = text(RecordKind::Ids, Format::Ctf2);
    let compact = self::text(RecordKind::Compact, Format::Ctf2);
    for (text, from, to) in [
        (&text, "\"byte-order\":\"little-endian\"", "\"byte-order\":\"big-endian\""),
        (&text, "[\"packet-total-length\"]", "[]"),
        (&text, "\"tracer_major\"", "\"major\""),
        (&text, "\"id\":7,", "\"id\":65535,"),
        (&text, "\"p:every\"", "\"every\""),
        (&text, "\"_f14_length\"", "\"f14_length\""),
        (&text, "\"field-class-alias\"", "\"other\""),
        (&text, "\"hostname\"", "\"host\""),
        (&compact, "[0,254]", "[0,253]"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Metadata::parse(&text.replacen(from, to, 1)).unwrap_err();
        assert!(
            said(&error).ends_with("Dormouse did not write these metadata")
                || said(&error).contains("there is no field"),
            "{from}: {error}"
        );
    }
    let starts: Vec<_> = text.match_indices("\u{1e}{\"type\":\"event-record-class\"").map(|(at, _)| at).collect();
    assert_eq!(starts.len(), StateRecord::classes().len() + 1);
    // Traces of older versions lack the newest class, which is the one before the program's.
    for start in &starts[..starts.len() - 2] {
        let end = start + 1 + text[start + 1..].find('\u{1e}').unwrap();
        let error = Metadata::parse(&format!("{}{}", &text[..*start], &text[end..])).unwrap_err();
        assert!(said(&error).contains("the events of the state stream"), "{error}");
    }
    let twice = text.clone() + &Format::Ctf2.class(7, &every_kind());
    assert!(said(&Metadata::parse(&twice).unwrap_err()).contains("id 7 in data stream class 0 already"));
}
