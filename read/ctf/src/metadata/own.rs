//! Recognises metadata that Dormouse wrote, and reads from them what the model lacks: options, kinds of fields,
//! totals.
//!
//! `env`, `clock` and `event` are interpreted. All other declarations must equal those of a preamble with the same
//! options.

use dormouse_abi::class::{
    CLASS_ID_MAX, ClassDecl, FIELD_COUNT_MAX, FieldType, Kind, Label, Labels, Level, check_labels,
};
use dormouse_abi::page::{STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::RecordKind;
use dormouse_format::metadata::tsdl::{FIRST_LINE, identifier, type_name};
use dormouse_format::{Clock, Format, MetadataOptions, Totals};

use super::error::{Checked, MetadataError, fail};
use super::resolve::{self, Entries, uuid};
use super::syntax::{At, Block, Declaration, Entry, Length, Member, Type, TypeKind, Value};
use super::{Metadata, grammar, syntax};
use crate::own_classes::{Classes, tags_in};

/// Whether a text claims to be written by Dormouse. Then it must be.
pub(super) fn is_own(declarations: &[Declaration<'_>]) -> bool {
    let says_so = |entry: &Entry<'_>| {
        matches!(entry, Entry::Value(assignment) if assignment.key == "tracer_name"
            && matches!(&assignment.value, Value::Text(text) if text == "dormouse"))
    };
    blocks(declarations, "env").any(|block| block.entries.iter().any(says_so))
}

/// Reads metadata that Dormouse has written.
pub(super) fn read(text: &str, declarations: &[Declaration<'_>]) -> Result<Metadata, MetadataError> {
    recognise(text, declarations).map_err(|(at, what)| MetadataError::at(text, at.0, what))
}

fn foreign<T>(at: At, what: impl std::fmt::Display) -> Checked<T> {
    fail(at, format!("{what}: Dormouse did not write these metadata"))
}

fn blocks<'a>(declarations: &'a [Declaration<'a>], keyword: &'a str) -> impl Iterator<Item = &'a Block<'a>> {
    declarations.iter().filter_map(move |declaration| match declaration {
        Declaration::Block(block) if block.keyword == keyword => Some(block),
        _ => None,
    })
}

fn recognise(text: &str, declarations: &[Declaration<'_>]) -> Checked<Metadata> {
    if text.lines().next() != Some(FIRST_LINE) {
        return foreign(At(0), format!("the first line is not {FIRST_LINE:?}"));
    }
    let entries = |keyword: &'static str| match blocks(declarations, keyword).next() {
        Some(first) => Ok((first.at, Entries::new(blocks(declarations, keyword))?)),
        None => foreign(At(0), format!("there is no {keyword} declaration")),
    };
    // Only the kind of header is detected here. Its exact form is compared below.
    let has_member = |is_kind: fn(&TypeKind<'_>) -> bool| {
        let has = |entry: &Entry<'_>| match entry {
            Entry::Class(_, _, Type { kind: TypeKind::Struct { members: Some(members), .. }, .. }) => {
                members.iter().any(|member| matches!(member, Member::Fields(class, _) if is_kind(&class.kind)))
            }
            _ => false,
        };
        blocks(declarations, "stream").any(|block| block.entries.iter().any(has))
    };
    let is_compact = has_member(|kind| matches!(kind, TypeKind::Variant { .. }));
    let record_kind = if is_compact { RecordKind::Compact } else { RecordKind::Ids };
    let env = entries("env")?;
    let mut options = options(&entries("trace")?, &env, &entries("clock")?, record_kind)?;
    if has_member(|kind| matches!(kind, TypeKind::Struct { .. })) {
        let streams = resolve::resolved(text, declarations)?.streams;
        let context = streams.first().and_then(|stream| stream.event_context.as_ref());
        options.tags = context.and_then(tags_in).unwrap_or_default();
    }
    let mut totals = Totals::default();
    for (name, at, value) in env.1.iter() {
        if let Value::Text(value) = value
            && !totals.read(name, value)
        {
            return foreign(at, format!("the value of {name} has another form"));
        }
    }

    let expected_text = options.preamble(&Totals::default());
    let expected = grammar::parse(&expected_text).expect("what Dormouse writes is in the grammar");
    let is_layout = |declaration: &&Declaration<'_>| !matches!(declaration, Declaration::Block(block) if matches!(block.keyword, "env" | "clock" | "event"));
    let mut expected = expected.iter().filter(is_layout);
    for declaration in declarations.iter().filter(is_layout) {
        if expected.next() != Some(declaration) {
            return foreign(place(declaration), "this declaration is not the one that belongs here");
        }
    }
    if expected.next().is_some() {
        return foreign(At(0), "there is a declaration missing");
    }

    let mut classes = Classes::empty(record_kind, &options.tags);
    for block in blocks(declarations, "event") {
        let Some((id, decl)) = event(block) else {
            return foreign(block.at, "this event declaration has another form");
        };
        if !classes.insert(id, decl) {
            return fail(block.at, format!("event id {id} is declared twice"));
        }
    }
    if !classes.has_state() {
        return foreign(At(0), "the events of the state stream are missing or of another form");
    }
    Ok(Metadata { options, classes, totals })
}

fn place(declaration: &Declaration<'_>) -> At {
    match declaration {
        Declaration::Block(block) => block.at,
        Declaration::Type(super::syntax::TypeDeclaration::Alias(class, ..)) => class.at,
        Declaration::Type(super::syntax::TypeDeclaration::Typedef(class, ..)) => class.at,
        Declaration::Type(super::syntax::TypeDeclaration::Definition(class)) => class.at,
    }
}

type Found<'a> = (At, Entries<'a>);

fn options(trace: &Found<'_>, env: &Found<'_>, clock: &Found<'_>, record_kind: RecordKind) -> Checked<MetadataOptions> {
    let text = |(at, entries): &Found<'_>, key: &str| match entries.text(key)? {
        Some((_, text)) => Ok(text.to_string()),
        None => foreign(*at, format!("there is no text {key:?} in this declaration")),
    };
    let frequency_hz: u64 = number(clock, "freq")?;
    if frequency_hz == 0 {
        return foreign(clock.0, "the clock stands still");
    }
    let Some(uuid) = uuid(&text(trace, "uuid")?) else { return foreign(trace.0, "the uuid has another form") };
    Ok(MetadataOptions {
        uuid,
        hostname: text(env, "hostname")?,
        tracer_version: (number(env, "tracer_major")?, number(env, "tracer_minor")?),
        start_time_s: number(env, "trace_creation_time_s")?,
        clock: Clock {
            name: text(clock, "name")?,
            description: text(clock, "description")?,
            frequency_hz,
            offset_s: number(clock, "offset_s")?,
            offset_cycles: number(clock, "offset")?,
        },
        record_kind,
        tags: Vec::new(),
        format: Format::Ctf18,
    })
}

fn number<T: TryFrom<i128>>((at, entries): &Found<'_>, key: &str) -> Checked<T> {
    match entries.number(key)?.and_then(|(_, number)| T::try_from(number).ok()) {
        Some(number) => Ok(number),
        None => foreign(*at, format!("there is no number {key:?} in this declaration")),
    }
}

/// Parses `event { name = "provider:name"; id = 7; stream_id = 0; fields := struct { … } align(8); }`, which can have
/// `loglevel = 4;` in front of the fields.
fn event(block: &Block<'_>) -> Option<(u16, ClassDecl)> {
    let Some((Entry::Class(_, fields_key, fields), values)) = block.entries.split_last() else { return None };
    let (values, level) = match values {
        [values @ .., Entry::Value(last)] if last.key == "loglevel" => (values, Some(level(&last.value)?)),
        values => (values, None),
    };
    let [Entry::Value(name), Entry::Value(id), Entry::Value(stream_id)] = values else { return None };
    let keys = (name.key.as_ref(), id.key.as_ref(), stream_id.key.as_ref(), fields_key.as_ref());
    let (Value::Text(full_name), Value::Number(id), Value::Number(stream_id)) =
        (&name.value, &id.value, &stream_id.value)
    else {
        return None;
    };
    let TypeKind::Struct { name: None, members: Some(members), align: Some((_, 8)) } = &fields.kind else {
        return None;
    };
    let (provider, name) =
        full_name.split_once(':').filter(|(provider, name)| is_identifier(provider) && is_identifier(name))?;
    let id = u16::try_from(*id).ok()?;
    let expected_id = if id <= CLASS_ID_MAX { STREAM_EVENTS } else { STREAM_STATE };
    let is_own = keys == ("name", "id", "stream_id", "fields") && *stream_id == i128::from(expected_id);
    let (fields, labels) = fields_of(members)?;
    is_own.then(|| (id, ClassDecl { provider: provider.into(), name: name.into(), fields, labels, level }))
}

fn level(value: &Value<'_>) -> Option<Level> {
    let Value::Number(number) = value else { return None };
    Level::from_number(u8::try_from(*number).ok()?)
}

fn kind_of(name: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| *kind != Kind::Str && type_name(*kind) == name)
}

fn fields_of(mut members: &[Member<'_>]) -> Option<(Vec<(String, FieldType)>, Labels)> {
    let (mut fields, mut labels) = (Vec::new(), Labels::new());
    while let [member, rest @ ..] = members {
        let (class, name, length) = field(member)?;
        members = rest;
        let (name, field_type) = match (&class.kind, rest.first().and_then(field)) {
            // A count, followed by its sequence.
            (TypeKind::Named(word), Some((element, name, Some(count))))
                if word == "uint32_t" && count == name_of_count(name) =>
            {
                let TypeKind::Named(element) = &element.kind else { return None };
                let kind = kind_of(element)?;
                members = &rest[1..];
                if count != member_name(member)? {
                    return None;
                }
                (name, FieldType { kind, sequence: kind != Kind::Bytes })
            }
            (TypeKind::Text(properties), _) if matches!(properties.as_slice(), [one] if one.key == "encoding" && one.value == Value::Word("UTF8".into())) => {
                (name, FieldType::scalar(Kind::Str))
            }
            (TypeKind::Enum { name: None, container: Some(container), labels: Some(of_field) }, _) => {
                let TypeKind::Named(word) = &container.kind else { return None };
                let field_type = FieldType::scalar(kind_of(word)?);
                let of_field: Vec<_> = of_field.iter().map(label).collect::<Option<_>>()?;
                check_labels(field_type, &of_field).ok()?;
                labels.insert(fields.len(), of_field);
                (name, field_type)
            }
            (TypeKind::Named(word), _) => (name, FieldType::scalar(kind_of(word).filter(|kind| *kind != Kind::Bytes)?)),
            _ => return None,
        };
        if length.is_some() || fields.len() == FIELD_COUNT_MAX {
            return None;
        }
        let name = name.strip_prefix('_').filter(|name| is_identifier(name))?;
        fields.push((name.to_string(), field_type));
    }
    Some((fields, labels))
}

/// Returns a label of a single value.
fn label(label: &syntax::Label<'_>) -> Option<Label> {
    let number = label.range.filter(|(first, last)| first == last)?.0;
    let bits = i64::try_from(number).ok().or_else(|| Some(u64::try_from(number).ok()?.cast_signed()))?;
    Some(Label { name: label.name.to_string(), bits })
}

fn name_of_count(name: &str) -> String {
    format!("_{name}_length")
}

fn member_name<'a>(member: &'a Member<'_>) -> Option<&'a str> {
    field(member).map(|(_, name, _)| name)
}

/// Returns type, name, and the field that holds the length.
fn field<'a>(member: &'a Member<'_>) -> Option<(&'a Type<'a>, &'a str, Option<&'a str>)> {
    let Member::Fields(class, declarators) = member else { return None };
    let [declarator] = declarators.as_slice() else { return None };
    let length = match declarator.lengths.as_slice() {
        [] => None,
        [(_, Length::Field(path))] => Some(path.as_ref()),
        _ => return None,
    };
    Some((class, &declarator.name, length))
}

fn is_identifier(name: &str) -> bool {
    identifier(name) == name
}
