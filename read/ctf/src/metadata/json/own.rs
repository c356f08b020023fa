//! Recognises fragments that Dormouse wrote, and reads from them what the model lacks.
//!
//! The environment, the clock and the event record classes are interpreted. All other fragments must equal those of a
//! preamble with the same options.

use dormouse_abi::class::{CLASS_ID_MAX, ClassDecl, FIELD_COUNT_MAX, FieldType, Kind, Label, Labels, check_labels};
use dormouse_abi::page::{STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::RecordKind;

use dormouse_format::metadata::ctf2::{alias, enumeration, event_fragment, layout, level_of};
use dormouse_format::metadata::json::Json;
use dormouse_format::{Clock, Format, MetadataOptions, Totals};

use super::super::Metadata;
use super::node::{Checked, Node};
use crate::model::{EnvValue, FieldClass, TraceClass};
use crate::own_classes::{Classes, tags_in};

/// Whether the environment claims that Dormouse wrote the metadata. Then it must have.
pub(super) fn is_own(class: &TraceClass) -> bool {
    class.env_text("tracer_name") == Some("dormouse")
}

fn foreign<T>(node: &Node<'_, '_>, what: &str) -> Checked<T> {
    node.fail(format!("{what}: Dormouse did not write these metadata"))
}

/// Reads fragments that Dormouse has written.
pub(super) fn read(fragments: &[Json], class: &TraceClass) -> Checked<Metadata> {
    let node = |(index, json)| Node::of_fragment(index, json);
    let kind = |json: &Json| json.get("type").and_then(Json::text).unwrap_or_default().to_string();
    let first = node((0, &fragments[0]));
    let Some(options) = options(class) else {
        return foreign(&first, "the uuid, the environment or the clock lacks something");
    };
    let mut totals = Totals::default();
    for (index, json) in fragments.iter().enumerate().filter(|(_, json)| kind(json) == "trace-class") {
        node((index, json)).required("environment", |env| {
            env.properties(|name, value| match value.json {
                Json::Text(text) if !totals.read(name, text) => foreign(value, "this value has another form"),
                _ => Ok(()),
            })
        })?;
    }

    // The environment and the clock have been read already, so they are left out of the comparison.
    let comparable = |json: &Json| match json {
        Json::Object(properties) => {
            Json::Object(properties.iter().filter(|(name, _)| name != "environment").cloned().collect())
        }
        other => other.clone(),
    };
    let is_layout = |json: &Json| !matches!(kind(json).as_str(), "clock-class" | "event-record-class");
    let expected = layout(&options, &Totals::default());
    let mut expected = expected.iter().filter(|json| is_layout(json)).map(comparable);
    for (index, json) in fragments.iter().enumerate().filter(|(_, json)| is_layout(json)) {
        if expected.next() != Some(comparable(json)) {
            return foreign(&node((index, json)), "this fragment is not the one that belongs here");
        }
    }
    if expected.next().is_some() {
        return foreign(&first, "there is a fragment missing");
    }

    let mut classes = Classes::empty(options.record_kind, &options.tags);
    for (index, json) in fragments.iter().enumerate().filter(|(_, json)| kind(json) == "event-record-class") {
        match event(json) {
            // Duplicate ids have been refused already.
            Some((id, decl)) => drop(classes.insert(id, decl)),
            None => return foreign(&node((index, json)), "this event record class has another form"),
        }
    }
    if !classes.has_state() {
        return foreign(&first, "the events of the state stream are missing or of another form");
    }
    Ok(Metadata { options, classes, totals })
}

fn options(class: &TraceClass) -> Option<MetadataOptions> {
    let number = |name: &str| match class.env.iter().find(|(key, _)| key == name)? {
        (_, EnvValue::Number(number)) => Some(*number),
        _ => None,
    };
    let clock = class.clocks.first()?;
    // Only the kind of header is detected here. Its exact form is compared by the caller.
    let stream = class.streams.first()?;
    let header = stream.event_header.as_ref()?;
    let is_compact = header.members.iter().any(|member| matches!(member.class.as_ref(), FieldClass::Variant(_)));
    Some(MetadataOptions {
        uuid: class.uuid?,
        hostname: class.env_text("hostname")?.into(),
        clock: Clock {
            name: clock.name.clone(),
            description: clock.description.clone(),
            frequency_hz: clock.frequency_hz,
            offset_s: clock.offset_s,
            offset_cycles: clock.offset_cycles,
        },
        tracer_version: (number("tracer_major")?.try_into().ok()?, number("tracer_minor")?.try_into().ok()?),
        start_time_s: number("trace_creation_time_s")?,
        record_kind: if is_compact { RecordKind::Compact } else { RecordKind::Ids },
        tags: stream.event_context.as_ref().and_then(tags_in).unwrap_or_default(),
        format: Format::Ctf2,
    })
}

/// Returns the class that a fragment declares.
fn event(fragment: &Json) -> Option<(u16, ClassDecl)> {
    let Json::Number(id) = fragment.get("id")? else { return None };
    let id = u16::try_from(*id).ok()?;
    let (provider, name) = fragment.get("name")?.text()?.split_once(':')?;
    let Json::List(members) = fragment.get("payload-field-class")?.get("member-classes")? else { return None };
    let kind_of = |class: &Json| Kind::ALL.into_iter().find(|kind| class.text() == Some(alias(*kind)));
    let (mut fields, mut labels): (Vec<(String, FieldType)>, _) = (Vec::new(), Labels::new());
    for member in members {
        let (name, class) = (member.get("name")?.text()?, member.get("field-class")?);
        let field_type = match class.get("element-field-class") {
            Some(element) => {
                // The count precedes its sequence.
                fields.pop()?;
                let kind = kind_of(element)?;
                FieldType { kind, sequence: kind != Kind::Bytes }
            }
            None => match class.get("mappings") {
                Some(Json::Object(mappings)) => {
                    let of_field: Vec<_> = mappings.iter().map(label).collect::<Option<_>>()?;
                    let is_kind = |kind: &Kind| kind.is_integer() && enumeration(*kind, &of_field) == *class;
                    let field_type = FieldType::scalar(Kind::ALL.into_iter().find(is_kind)?);
                    check_labels(field_type, &of_field).ok()?;
                    labels.insert(fields.len(), of_field);
                    field_type
                }
                _ => FieldType::scalar(kind_of(class)?),
            },
        };
        fields.push((name.into(), field_type));
    }
    let level = fragment.get("attributes").and_then(level_of);
    let decl = ClassDecl { provider: provider.into(), name: name.into(), fields, labels, level };
    let stream_id = if id <= CLASS_ID_MAX { STREAM_EVENTS } else { STREAM_STATE };
    let is_written = decl.fields.len() <= FIELD_COUNT_MAX && event_fragment(stream_id, id, &decl) == *fragment;
    is_written.then_some((id, decl))
}

/// Returns a label of a single value.
fn label((name, ranges): &(String, Json)) -> Option<Label> {
    let Json::List(ranges) = ranges else { return None };
    let [Json::List(bounds)] = ranges.as_slice() else { return None };
    let Some(Json::Number(number)) = bounds.first() else { return None };
    let bits = i64::try_from(*number).ok().or_else(|| Some(u64::try_from(*number).ok()?.cast_signed()))?;
    Some(Label { name: name.clone(), bits })
}
