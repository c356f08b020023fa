//! Event classes of a Dormouse trace by id, and the model of such a trace.

use std::sync::Arc;

use dormouse_abi::class::{self, CLASS_ID_MAX, ClassDecl, FieldType, Kind};
use dormouse_abi::page::{STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::{COMPACT_TIMESTAMP_BITS, EXTENDED, RecordKind, TIMESTAMP_BITS};

use dormouse_format::state::STATE_CLASS_COUNT_MIN;
use dormouse_format::{StateRecord, Tag};

use crate::model::{
    Base, ByteOrder, EventClass, FieldClass, FieldPath, Float, Integer, Label, Length, Member, Option_, Range, Scope,
    StreamClass, Struct, Text, Variant,
};
pub use crate::plan::Class;
use crate::plan::{Plan, StreamPlan};

/// Event classes by id, with the plan that reads their records. Ids up to [`CLASS_ID_MAX`] belong to programs, ids
/// above it to the state stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    kind: RecordKind,
    /// Plan with two streams: the stream of programs, then the stream of the session owner.
    plan: Plan,
    /// Size of an event record by class id, in bytes, including its header (the compact header where there are two). 0
    /// if the size depends on the values, or if there is no such class.
    record_sizes: Vec<u32>,
}

impl Default for Classes {
    fn default() -> Classes {
        Classes::new()
    }
}

impl Classes {
    /// Returns the classes that every trace has, which are those of the state stream, for event records with context.
    pub fn new() -> Classes {
        Classes::of_records(RecordKind::Ids, &[])
    }

    /// Returns the classes that every trace has, for event records of this kind with these tags.
    pub fn of_records(kind: RecordKind, tags: &[Tag]) -> Classes {
        let mut classes = Classes::empty(kind, tags);
        for (id, decl) in StateRecord::classes() {
            classes.insert(id, decl);
        }
        classes
    }

    pub(crate) fn empty(kind: RecordKind, tags: &[Tag]) -> Classes {
        Classes { kind, plan: own_plan(kind, tags), record_sizes: Vec::new() }
    }

    /// Kind of the event records, which determines their headers.
    pub fn record_kind(&self) -> RecordKind {
        self.kind
    }

    /// Plan that reads packets and records.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    fn streams(&self) -> [&StreamPlan; 2] {
        [&self.plan.streams[0], &self.plan.streams[1]]
    }

    /// Whether the classes of the state stream are those that this crate reads. Traces of older versions lack the newest
    /// ones.
    pub(crate) fn has_state(&self) -> bool {
        let declared = |classes: &Classes| -> Vec<_> {
            classes.streams()[1].classes().map(|class| (class.id, class.decl.clone())).collect()
        };
        let own = declared(self);
        own.len() >= STATE_CLASS_COUNT_MIN && declared(&Classes::new()).starts_with(&own)
    }

    /// Adds a class. Returns whether the id was free; an existing class is not replaced.
    pub fn insert(&mut self, id: u16, decl: ClassDecl) -> bool {
        let stream = &mut self.plan.streams[usize::from(id > CLASS_ID_MAX)];
        let event = EventClass {
            id: id.into(),
            name: decl.full_name(),
            level: decl.level,
            context: None,
            fields: Some(fields_of(&decl)),
        };
        let is_free = stream.insert(&event, Some(decl));
        if is_free && id <= CLASS_ID_MAX {
            let size_bytes = stream.record_size_bytes(id.into()).unwrap_or(0);
            let index = usize::from(id);
            self.record_sizes.resize(self.record_sizes.len().max(index + 1), 0);
            self.record_sizes[index] = u32::try_from(size_bytes).unwrap_or(0);
        }
        is_free
    }

    /// Returns the class with this id in the stream with this `stream_id`.
    pub fn get(&self, stream_id: u32, id: u16) -> Option<&Class> {
        self.plan.stream(stream_id.into())?.class(id.into())
    }

    /// Returns the size of a record of this event class, in bytes, including its header (the compact one), if the size
    /// is constant.
    #[inline(always)]
    pub(crate) fn record_size_bytes(&self, id: u16) -> Option<usize> {
        self.record_sizes.get(id as usize).map(|size| *size as usize).filter(|size| *size != 0)
    }

    /// Plan of the stream of programs.
    pub(crate) fn of_events(&self) -> &StreamPlan {
        self.streams()[0]
    }

    /// Returns the classes of programs, by rising id.
    pub fn events(&self) -> impl Iterator<Item = &Class> {
        self.of_events().classes()
    }
}

fn own_plan(kind: RecordKind, tags: &[Tag]) -> Plan {
    let header = packet_header();
    let mut plan = Plan::new(&crate::model::TraceClass {
        packet_header: Some(header),
        streams: vec![stream(STREAM_EVENTS, kind, tags), stream(STREAM_STATE, RecordKind::Ids, &[])],
        ..Default::default()
    })
    .expect("headers say nothing of other fields");
    plan.streams.truncate(2);
    plan
}

fn integer(size_bits: u32, is_signed: bool) -> Integer {
    Integer { is_signed, ..Integer::new(size_bits, 8, ByteOrder::Little) }
}

fn number(size_bits: u32) -> FieldClass {
    FieldClass::Integer(integer(size_bits, false))
}

fn float(size_bits: u32) -> FieldClass {
    FieldClass::Float(Float { size_bits, align_bits: 8, byte_order: ByteOrder::Little, is_reversed: false })
}

fn time(size_bits: u32) -> FieldClass {
    FieldClass::Integer(Integer { clock: Some(0), ..integer(size_bits, false) })
}

fn structure(members: impl IntoIterator<Item = (&'static str, FieldClass)>) -> Struct {
    let member = |(name, class): (&str, FieldClass)| Member { name: name.into(), class: Arc::new(class) };
    Struct { align_bits: 8, members: members.into_iter().map(member).collect() }
}

/// The packet header of `dormouse_abi::page`, as the metadata describe it.
fn packet_header() -> Struct {
    let uuid =
        FieldClass::Array { element: Arc::new(number(8)), length: Length::Fixed(16), is_text: false, align_bits: 1 };
    structure([("magic", number(32)), ("uuid", uuid), ("stream_id", number(32)), ("stream_instance_id", number(32))])
}

/// A stream of `dormouse_abi::record`, as the metadata describe it.
fn stream(id: u32, kind: RecordKind, tags: &[Tag]) -> StreamClass {
    let packet_context = structure([
        ("cpu_id", number(32)),
        ("timestamp_begin", time(64)),
        ("timestamp_end", time(64)),
        ("content_size", number(64)),
        ("packet_size", number(64)),
        ("packet_seq_num", number(64)),
        ("events_discarded", number(64)),
    ]);
    let is_with_context = id == STREAM_EVENTS && kind == RecordKind::Ids;
    let event_header = match kind {
        RecordKind::Ids => structure([("id", number(16)), ("timestamp", time(TIMESTAMP_BITS))]),
        RecordKind::Compact => compact_header(),
    };
    StreamClass {
        id: id.into(),
        packet_context: Some(packet_context),
        event_header: Some(event_header),
        event_context: is_with_context.then(|| context(tags)),
        clock: Some(0),
        events: Vec::new(),
    }
}

pub(crate) fn context(tags: &[Tag]) -> Struct {
    let mut context = structure([("vpid", number(32)), ("vtid", number(32))]);
    if !tags.is_empty() {
        let member = |Tag { name, texts }: &Tag| {
            let labels = (!texts.is_empty()).then(|| labels(Kind::U64, texts));
            let class = FieldClass::Integer(Integer { labels, ..integer(64, false) });
            Member { name: format!("_{name}"), class: Arc::new(class) }
        };
        let all = Struct { align_bits: 8, members: tags.iter().map(member).collect() };
        context.members.push(Member { name: "tag".into(), class: Arc::new(FieldClass::Struct(all)) });
    }
    context
}

/// Returns the tags in the context of event records, if there are any.
pub(crate) fn tags_in(context: &Struct) -> Option<Vec<Tag>> {
    let [_, _, Member { name, class }] = context.members.as_slice() else { return None };
    let FieldClass::Struct(all) = class.as_ref() else { return None };
    let text = |label: &Label| {
        let (first, last) = label.range.bounds;
        let bits = u64::try_from(first).ok().filter(|_| first == last)?.cast_signed();
        Some(class::Label { name: label.name.to_string(), bits })
    };
    let tag = |Member { name, class }: &Member| {
        let FieldClass::Integer(integer) = class.as_ref() else { return None };
        let texts = integer.labels.iter().flat_map(|labels| labels.iter()).map(text).collect::<Option<_>>()?;
        // Names of CTF 2 have no underscore in front.
        Some(Tag { name: name.strip_prefix('_').unwrap_or(name).into(), texts })
    };
    if name == "tag" { all.members.iter().map(tag).collect() } else { None }
}

/// Returns the labels of integers of a kind.
fn labels(kind: Kind, labels: &[class::Label]) -> Arc<[Label]> {
    let label = |class::Label { name, bits }: &class::Label| {
        let number = kind.integer(*bits);
        Label { name: name.clone(), range: Range { bounds: (number, number) } }
    };
    labels.iter().map(label).collect()
}

fn compact_header() -> Struct {
    let range = |first: u8, last: u8| Range { bounds: (first.into(), last.into()) };
    let (compact, extended) = (range(0, EXTENDED - 1), range(EXTENDED, EXTENDED));
    let label = |name: &str, range| Label { name: name.into(), range };
    let labels = Some(Arc::from([label("compact", compact), label("extended", extended)]));
    let tag = FieldClass::Integer(Integer { labels, ..integer(8, false) });
    let option = |name: &str, range, structure| Option_ {
        name: name.into(),
        ranges: vec![range],
        class: Arc::new(FieldClass::Struct(structure)),
    };
    let options = vec![
        option("compact", compact, structure([("timestamp", time(COMPACT_TIMESTAMP_BITS))])),
        option("extended", extended, structure([("id", number(16)), ("timestamp", time(64))])),
    ];
    let tag_path = FieldPath { scope: Scope::EventHeader, path: vec![0] };
    let variant = FieldClass::Variant(Variant { tag: tag_path, is_tag_signed: false, options });
    structure([("id", tag), ("v", variant)])
}

/// The fields of a class. The count of a sequence precedes the sequence.
fn fields_of(decl: &ClassDecl) -> Struct {
    let mut members = Vec::new();
    for (index, (name, FieldType { kind, sequence })) in decl.fields.iter().enumerate() {
        let mut class = match kind {
            Kind::U8 | Kind::Bool | Kind::Bytes => number(8),
            Kind::U16 => number(16),
            Kind::U32 => number(32),
            Kind::U64 => number(64),
            Kind::I8 => FieldClass::Integer(integer(8, true)),
            Kind::I16 => FieldClass::Integer(integer(16, true)),
            Kind::I32 => FieldClass::Integer(integer(32, true)),
            Kind::I64 => FieldClass::Integer(integer(64, true)),
            Kind::F32 => float(32),
            Kind::F64 => float(64),
            Kind::Pointer => FieldClass::Integer(Integer { base: Base::Hexadecimal, ..integer(64, false) }),
            Kind::Str => FieldClass::Text(Text::TERMINATED),
        };
        if let (Some(of_field), FieldClass::Integer(integer)) = (decl.labels.get(&index), &mut class) {
            integer.labels = Some(labels(*kind, of_field));
        }
        if *sequence || *kind == Kind::Bytes {
            let count = FieldPath { scope: Scope::Fields, path: vec![members.len()] };
            members.push(Member { name: format!("__{name}_length"), class: Arc::new(number(32)) });
            class = FieldClass::Array {
                element: Arc::new(class),
                length: Length::Field(count),
                is_text: false,
                align_bits: 1,
            };
        }
        members.push(Member { name: format!("_{name}"), class: Arc::new(class) });
    }
    Struct { align_bits: 8, members }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_one_stream_and_is_given_once() {
        let decl = |name: &str| ClassDecl {
            provider: "p".into(),
            name: name.into(),
            fields: vec![],
            labels: class::Labels::new(),
            level: None,
        };
        let mut classes = Classes::new();
        assert!(classes.insert(3, decl("a")) && !classes.insert(3, decl("b")));
        assert_eq!(classes.get(STREAM_EVENTS, 3).unwrap().full_name, "p:a");
        assert_eq!(classes.get(STREAM_STATE, 3), None);
        assert_eq!(classes.get(STREAM_EVENTS, CLASS_ID_MAX + 1), None);
        assert_eq!(classes.get(STREAM_STATE, CLASS_ID_MAX + 1).unwrap().full_name, "dormouse:process");
        assert_eq!(classes.get(STREAM_STATE, u16::MAX), None);
        assert_eq!(classes.events().count(), 1);
    }

    /// The plan of Dormouse's classes is built without metadata text. The plan that follows from the text must be
    /// equal.
    #[test]
    fn the_metadata_describe_the_layout() {
        let every = Kind::ALL.iter().map(|kind| FieldType::scalar(*kind));
        let all = every.chain((0..=u8::MAX).filter_map(FieldType::from_u8).filter(|field| field.sequence));
        let mut fields: Vec<_> = all.enumerate().map(|(index, field)| (format!("f{index}"), field)).collect();
        fields.extend([Kind::I16, Kind::U64].map(|kind| (format!("{kind:?}"), FieldType::scalar(kind))));
        let labels = [("READY", 3), ("LAST", -1)].map(|(name, bits)| class::Label { name: name.into(), bits });
        let labels = [2, 1].map(|from_end| (fields.len() - from_end, labels.to_vec())).into();
        let level = Some(class::Level::Notice);
        let decl = ClassDecl { provider: "p".into(), name: "every".into(), fields, labels, level };
        for kind in [RecordKind::Ids, RecordKind::Compact] {
            let text = crate::testing::TraceBuilder::of_records(kind).finish().metadata;
            let text = text + &crate::Metadata::class(5, &decl);
            let described = crate::metadata::Described::parse(&text).unwrap();
            assert_eq!(described.class.packet_header, Some(packet_header()));
            let mut streams = described.class.streams;
            let events: Vec<_> = streams.iter_mut().map(|stream| std::mem::take(&mut stream.events)).collect();
            assert_eq!(streams, [stream(STREAM_EVENTS, kind, &[]), stream(STREAM_STATE, RecordKind::Ids, &[])]);
            assert_eq!(events[0].len(), 1);
            assert_eq!((&events[0][0].fields, events[0][0].level), (&Some(fields_of(&decl)), level));
            let state = StateRecord::classes();
            assert_eq!(events[1].len(), state.len());
            for (event, (id, decl)) in events[1].iter().zip(state) {
                assert_eq!((event.id, &event.fields), (id.into(), &Some(fields_of(&decl))));
            }
        }
    }
}
