//! Reads written events back.

use std::rc::Rc;

use dormouse_abi::class::{ClassDecl, FieldType, Kind, Labels};
use dormouse_abi::record::RecordKind;
use dormouse_ctf::{Clock, Metadata, MetadataOptions, Problem, StreamReader, Value};

/// An event of the class [`class`]: its time, and its bytes.
pub type Record = (u64, Vec<u8>);

/// Returns a class with one field, of bytes.
pub fn class() -> ClassDecl {
    let fields = vec![("bytes".into(), FieldType::scalar(Kind::Bytes))];
    ClassDecl { provider: "fuzz".into(), name: "run".into(), fields, labels: Labels::new(), level: None }
}

/// Returns metadata with these classes, whose ids count from 0.
pub fn metadata(classes: &[ClassDecl], record_kind: RecordKind) -> Metadata {
    let clock = Clock {
        name: "monotonic".into(),
        description: "Monotonic clock".into(),
        frequency_hz: 1_000_000_000,
        offset_s: 0,
        offset_cycles: 0,
    };
    let options = MetadataOptions {
        uuid: dormouse_owner::fuzzing::UUID,
        hostname: "fuzz".into(),
        clock,
        tracer_version: (0, 1),
        start_time_s: 0,
        record_kind,
        tags: Vec::new(),
        format: Default::default(),
    };
    let mut text = Metadata::new(options).preamble();
    for (id, class) in (0..).zip(classes) {
        text.push_str(&Metadata::class(id, class));
    }
    Metadata::parse(&text).expect("metadata of our own")
}

/// Returns metadata with only the class [`class`].
pub fn metadata_of_class(kind: RecordKind) -> Rc<Metadata> {
    thread_local! {
        static METADATA: [Rc<Metadata>; 2] =
            [RecordKind::Ids, RecordKind::Compact].map(|kind| Rc::new(metadata(&[class()], kind)));
    }
    METADATA.with(|both| Rc::clone(&both[kind as usize]))
}

/// Contents of a stream.
#[derive(Debug, Default)]
pub struct Read {
    /// Records of the stream.
    pub records: Vec<Record>,
    /// Losses that its packets state.
    pub lost: u64,
    /// All other problems that the reader reports.
    pub problems: Vec<Problem>,
}

/// Reads a stream of events of [`class`].
pub fn read(metadata: &Metadata, bytes: &[u8]) -> Read {
    let mut read = Read::default();
    for item in StreamReader::new(metadata, 0, bytes) {
        match item {
            Ok(event) => {
                let fields: Vec<(&str, Value<'_>)> = event.fields().collect();
                let [("bytes", Value::Bytes(bytes))] = fields[..] else { panic!("not the fields: {fields:?}") };
                read.records.push((event.timestamp, bytes.to_vec()));
            }
            Err(notice) => match notice.problem {
                Problem::Discarded { count, .. } => read.lost += count,
                problem => read.problems.push(problem),
            },
        }
    }
    read
}
