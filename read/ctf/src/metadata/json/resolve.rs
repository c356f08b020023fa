//! Converts fragments to the model. A fragment refers only to earlier ones.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::fields::Fields;
use super::node::{Checked, Node};
use crate::model::{ClockClass, EnvValue, EventClass, Scope, StreamClass, Struct, TraceClass};
use dormouse_format::metadata::ctf2::level_of;
use dormouse_format::metadata::json::Json;

/// Returns the model of a sequence.
pub(super) fn resolve(fragments: &[Json], text_len: usize) -> Checked<TraceClass> {
    let mut reader = Reader {
        trace: TraceClass::default(),
        has_trace: false,
        clocks: HashMap::new(),
        streams: BTreeMap::new(),
        ids: HashSet::new(),
        fields: Fields::new(text_len),
    };
    for (index, json) in fragments.iter().enumerate() {
        let node = Node::of_fragment(index, json);
        let kind = node.required("type", |kind| kind.text())?;
        if (index == 0) != (kind == "preamble") {
            return node.fail("the preamble is the first fragment, and no other is one");
        }
        node.common()?;
        match kind {
            "preamble" => reader.preamble(&node)?,
            "field-class-alias" => reader.fields.alias(index, &node)?,
            "trace-class" => reader.trace(&node)?,
            "clock-class" => reader.clock(&node)?,
            "data-stream-class" => reader.stream(&node)?,
            "event-record-class" => reader.event(&node)?,
            _ => {}
        }
    }
    let none = Json::Null;
    let last = Node::of_fragment(fragments.len().saturating_sub(1), fragments.last().unwrap_or(&none));
    if fragments.is_empty() {
        return last.fail("there is no fragment");
    }
    if reader.streams.is_empty() {
        return last.fail("there is no data stream class up to here");
    }
    for stream in reader.streams.values_mut() {
        stream.events.sort_by_key(|event| event.id);
    }
    Ok(TraceClass { streams: reader.streams.into_values().collect(), ..reader.trace })
}

struct Reader<'j> {
    trace: TraceClass,
    has_trace: bool,
    /// Clocks by id.
    clocks: HashMap<&'j str, usize>,
    streams: BTreeMap<u64, StreamClass>,
    /// Ids of event record classes, each after the id of its stream.
    ids: HashSet<(u64, u64)>,
    fields: Fields<'j>,
}

impl<'j> Reader<'j> {
    fn preamble(&mut self, node: &Node<'j, '_>) -> Checked<()> {
        node.required("version", |version| match version.json {
            Json::Number(2) => Ok(()),
            other => version.fail(format!("expected 2, found {}: of JSON text sequences CTF 2 is read", other.kind())),
        })?;
        self.trace.uuid = node.with("uuid", |uuid| {
            let bytes = uuid.each(|_, byte| Ok(byte.number(0, 255)? as u8))?;
            bytes.try_into().or_else(|bytes: Vec<u8>| uuid.fail(format!("expected 16 bytes, found {}", bytes.len())))
        })?;
        if self.trace.uuid.is_some() {
            self.fields.set_uuid();
        }
        Ok(())
    }

    fn trace(&mut self, node: &Node<'j, '_>) -> Checked<()> {
        if std::mem::replace(&mut self.has_trace, true) {
            return node.fail("there is a trace class already");
        }
        if !self.streams.is_empty() {
            return node.fail("the trace class comes before the data stream classes");
        }
        identity(node)?;
        let env = node.with("environment", |env| {
            env.properties(|name, value| {
                let value_of = |value: &Node<'j, '_>| match value.json {
                    Json::Text(text) => Ok(EnvValue::Text(text.clone())),
                    Json::Number(number) => match i64::try_from(*number) {
                        Ok(number) => Ok(EnvValue::Number(number)),
                        Err(_) => value.fail("expected a whole number of 64 bits with a sign"),
                    },
                    other => value.fail(format!("expected a whole number or a string, found {}", other.kind())),
                };
                Ok((name.to_string(), value_of(value)?))
            })
        })?;
        self.trace.env = env.unwrap_or_default();
        self.trace.packet_header =
            node.with("packet-header-field-class", |class| self.fields.root(class, Scope::PacketHeader, None, &[]))?;
        Ok(())
    }

    fn clock(&mut self, node: &Node<'j, '_>) -> Checked<()> {
        let id = node.required("id", |id| match id.text()? {
            text if self.clocks.contains_key(text) => id.fail(format!("there is a clock class {text:?} already")),
            text => Ok(text),
        })?;
        let name = identity(node)?;
        let frequency_hz = node.required("frequency", |frequency| frequency.number(1, u64::MAX.into()))? as u64;
        let is_absolute = node.with("origin", |origin| match origin.json {
            Json::Text(text) if text == "unix-epoch" => Ok(true),
            Json::Object(_) => {
                origin.may_have_text("namespace")?;
                origin.required("name", |name| name.text())?;
                origin.required("uid", |uid| uid.text())?;
                Ok(false)
            }
            other => origin.fail(format!("expected \"unix-epoch\" or an object, found {}", other.kind())),
        })?;
        let offset = node.with("offset-from-origin", |offset| {
            let seconds = offset.with("seconds", |s| s.number(i64::MIN.into(), i64::MAX.into()))?.unwrap_or(0);
            let cycles = offset.with("cycles", |cycles| cycles.number(0, i128::from(frequency_hz) - 1))?.unwrap_or(0);
            Ok((seconds as i64, cycles as u64))
        })?;
        for key in ["precision", "accuracy"] {
            node.with(key, |value| value.unsigned())?;
        }
        let description = node.may_have_text("description")?.unwrap_or_default();
        let (offset_s, offset_cycles) = offset.unwrap_or((0, 0));
        self.clocks.insert(id, self.trace.clocks.len());
        self.trace.clocks.push(ClockClass {
            name: name.unwrap_or(id).into(),
            description: description.into(),
            frequency_hz,
            offset_s,
            offset_cycles,
            is_absolute: is_absolute.unwrap_or(false),
        });
        Ok(())
    }

    fn stream(&mut self, node: &Node<'j, '_>) -> Checked<()> {
        let id = node.with("id", |id| id.unsigned())?.unwrap_or(0);
        if self.streams.contains_key(&id) {
            return node.fail(format!("there is a data stream class with the id {id} already"));
        }
        identity(node)?;
        let clock = node.with("default-clock-class-id", |id| {
            let name = id.text()?;
            match self.clocks.get(name) {
                Some(clock) => Ok(*clock),
                None => id.fail(format!("there is no clock class {name:?} before")),
            }
        })?;
        let header = self.trace.packet_header.as_ref();
        let fields = &mut self.fields;
        let packet_context = node.with("packet-context-field-class", |class| {
            fields.root(class, Scope::PacketContext, clock, &[(Scope::PacketHeader, header)])
        })?;
        let of_packet = [(Scope::PacketHeader, header), (Scope::PacketContext, packet_context.as_ref())];
        let event_header = node.with("event-record-header-field-class", |class| {
            fields.root(class, Scope::EventHeader, clock, &of_packet)
        })?;
        let event_context = node.with("event-record-common-context-field-class", |class| {
            let before = [of_packet[0], of_packet[1], (Scope::EventHeader, event_header.as_ref())];
            fields.root(class, Scope::EventContext, clock, &before)
        })?;
        if !self.streams.is_empty() && !header.is_some_and(has_stream_id) {
            return node.fail("there are several data stream classes, but no field of packet headers has the role \"data-stream-class-id\"");
        }
        let events = Vec::new();
        self.streams.insert(id, StreamClass { id, packet_context, event_header, event_context, clock, events });
        Ok(())
    }

    fn event(&mut self, node: &Node<'j, '_>) -> Checked<()> {
        let id = node.with("id", |id| id.unsigned())?.unwrap_or(0);
        let stream_id = node.with("data-stream-class-id", |id| id.unsigned())?.unwrap_or(0);
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return node.fail(format!("there is no data stream class with the id {stream_id} before"));
        };
        if !self.ids.insert((stream_id, id)) {
            return node.fail(format!(
                "there is an event record class with the id {id} in data stream class {stream_id} already"
            ));
        }
        let name = identity(node)?.map_or_else(|| format!("(event {id})"), String::from);
        let before = [
            (Scope::PacketHeader, self.trace.packet_header.as_ref()),
            (Scope::PacketContext, stream.packet_context.as_ref()),
            (Scope::EventHeader, stream.event_header.as_ref()),
            (Scope::EventContext, stream.event_context.as_ref()),
        ];
        let fields = &mut self.fields;
        let context = node.with("specific-context-field-class", |class| {
            fields.root(class, Scope::OwnContext, stream.clock, &before)
        })?;
        let fields = node.with("payload-field-class", |class| {
            let before = [before.as_slice(), &[(Scope::OwnContext, context.as_ref())]].concat();
            fields.root(class, Scope::Fields, stream.clock, &before)
        })?;
        let level = node.with("attributes", |attributes| Ok(level_of(attributes.json)))?.flatten();
        stream.events.push(EventClass { id, name, level, context, fields });
        Ok(())
    }
}

/// Checks the three identity texts and returns the name.
fn identity<'j>(node: &Node<'j, '_>) -> Checked<Option<&'j str>> {
    node.may_have_text("namespace")?;
    node.may_have_text("uid")?;
    node.may_have_text("name")
}

fn has_stream_id(header: &Struct) -> bool {
    header.members.iter().any(|member| has_role(&member.class))
}

fn has_role(class: &crate::model::FieldClass) -> bool {
    use crate::model::{FieldClass, Role};
    match class {
        FieldClass::Integer(integer) => integer.roles.is_some_and(|roles| roles.has(Role::StreamId)),
        FieldClass::Struct(structure) => has_stream_id(structure),
        FieldClass::Optional(optional) => has_role(&optional.class),
        FieldClass::Variant(variant) => variant.options.iter().any(|option| has_role(&option.class)),
        FieldClass::Array { element, .. } => has_role(element),
        FieldClass::Float(_) | FieldClass::Text(_) | FieldClass::Blob { .. } => false,
    }
}
