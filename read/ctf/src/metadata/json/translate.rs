//! Converts metadata of any tracer to CTF 2. The streams stay unchanged bit by bit.
//!
//! Names of fields and clocks of numbers, by which CTF 1.8 identifies fields, become roles.

use super::fields::{ENCODINGS, ORIGINS, ROLES, TIME_ROLES};
use crate::model::{
    Base, ByteOrder, ClockClass, Coding, Encoding, EnvValue, FieldClass, FieldPath, Float, Integer, Label, Length,
    Meaning, Option_, Range, Role, Roles, Scope, StreamClass, Struct, Text, TraceClass, shown_name,
};
use crate::plan::roles_of;
use dormouse_format::metadata::ctf2::{attributes, line};
use dormouse_format::metadata::json::{Json, list, object, text};

type Property = (&'static str, Json);

/// Returns the whole text, or what CTF 2 cannot express.
pub(in super::super) fn translate(trace: &TraceClass) -> Result<String, String> {
    let clocks = clock_ids(&trace.clocks);
    let mut preamble = vec![("type", text("preamble")), ("version", Json::Number(2))];
    preamble.extend(trace.uuid.map(|uuid| ("uuid", list(uuid.map(|byte| Json::Number(byte.into()))))));
    let env = trace.env.iter().map(|(name, value)| {
        let value = match value {
            EnvValue::Text(value) => text(value),
            EnvValue::Number(number) => Json::Number((*number).into()),
        };
        (name.clone(), value)
    });
    let mut fragments = vec![object(preamble)];
    let mut class = vec![("type", text("trace-class")), ("environment", Json::Object(env.collect()))];
    let mut roots = Roots::default();
    roots.add(&mut class, trace.packet_header.as_ref(), Scope::PacketHeader)?;
    fragments.push(object(class));
    for (clock, id) in trace.clocks.iter().zip(&clocks) {
        fragments.push(clock_class(clock, id)?);
    }
    for stream in &trace.streams {
        let mut roots = Roots { clock: stream.clock, of: roots.of };
        fragments.push(stream_class(stream, &clocks, &mut roots)?);
        for event in &stream.events {
            let mut roots = Roots { clock: stream.clock, of: roots.of };
            let mut class = vec![
                ("type", text("event-record-class")),
                ("id", Json::Number(event.id.into())),
                ("data-stream-class-id", Json::Number(stream.id.into())),
                ("name", text(&event.name)),
            ];
            class.extend(event.level.map(|level| ("attributes", attributes(level))));
            roots.add(&mut class, event.context.as_ref(), Scope::OwnContext)?;
            roots.add(&mut class, event.fields.as_ref(), Scope::Fields)?;
            fragments.push(object(class));
        }
    }
    Ok(fragments.iter().map(line).collect())
}

/// Returns a unique id for each clock.
fn clock_ids(clocks: &[ClockClass]) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for clock in clocks {
        let is_taken = ids.contains(&clock.name);
        ids.push(if is_taken { format!("{}_{}", clock.name, ids.len()) } else { clock.name.clone() });
    }
    ids
}

fn clock_class(clock: &ClockClass, id: &str) -> Result<Json, String> {
    let hz = clock.frequency_hz.max(1);
    let seconds = i128::from(clock.offset_s) + i128::from(clock.offset_cycles / hz);
    let seconds =
        i64::try_from(seconds).map_err(|_| format!("clock {id}: its offset has more seconds than 64 bits"))?;
    let cycles = Json::Number((clock.offset_cycles % hz).into());
    let mut class = vec![
        ("type", text("clock-class")),
        ("id", text(id)),
        ("name", text(&clock.name)),
        ("description", text(&clock.description)),
        ("frequency", Json::Number(hz.into())),
        ("offset-from-origin", object([("seconds", Json::Number(seconds.into())), ("cycles", cycles)])),
    ];
    class.extend(clock.is_absolute.then(|| ("origin", text("unix-epoch"))));
    Ok(object(class))
}

fn stream_class<'a>(stream: &'a StreamClass, clocks: &[String], roots: &mut Roots<'a>) -> Result<Json, String> {
    let mut class = vec![("type", text("data-stream-class")), ("id", Json::Number(stream.id.into()))];
    class.extend(stream.clock.and_then(|clock| clocks.get(clock)).map(|id| ("default-clock-class-id", text(id))));
    roots.add(&mut class, stream.packet_context.as_ref(), Scope::PacketContext)?;
    roots.add(&mut class, stream.event_header.as_ref(), Scope::EventHeader)?;
    roots.add(&mut class, stream.event_context.as_ref(), Scope::EventContext)?;
    Ok(object(class))
}

/// Structures that fields can refer to.
#[derive(Default)]
struct Roots<'a> {
    of: [Option<&'a Struct>; 6],
    /// Clock of the stream.
    clock: Option<usize>,
}

/// Location of a field.
#[derive(Clone, Copy)]
struct Place<'n> {
    scope: Scope,
    name: &'n str,
    is_outermost: bool,
}

impl<'a> Roots<'a> {
    /// Adds the structure of a scope, if there is one, to a fragment.
    fn add(&mut self, to: &mut Vec<Property>, structure: Option<&'a Struct>, scope: Scope) -> Result<(), String> {
        let Some(structure) = structure else { return Ok(()) };
        self.of[scope as usize] = Some(structure);
        let key = match scope {
            Scope::PacketHeader => "packet-header-field-class",
            Scope::PacketContext => "packet-context-field-class",
            Scope::EventHeader => "event-record-header-field-class",
            Scope::EventContext => "event-record-common-context-field-class",
            Scope::OwnContext => "specific-context-field-class",
            Scope::Fields => "payload-field-class",
        };
        to.push((key, self.structure(structure, scope, true)?));
        Ok(())
    }

    fn structure(&self, structure: &Struct, scope: Scope, is_outermost: bool) -> Result<Json, String> {
        let member = |member: &'_ crate::model::Member| {
            let place = Place { scope, name: member.shown_name(), is_outermost };
            let class = self.class(&member.class, place).map_err(|why| format!("{}: {why}", place.name))?;
            Ok(object([("name", text(place.name)), ("field-class", class)]))
        };
        let members = structure.members.iter().map(member).collect::<Result<Vec<_>, String>>()?;
        let align = ("minimum-alignment", Json::Number(structure.align_bits.max(1).into()));
        Ok(object([("type", text("structure")), ("member-classes", list(members)), align]))
    }

    fn class(&self, class: &FieldClass, place: Place<'_>) -> Result<Json, String> {
        Ok(match class {
            FieldClass::Integer(integer) => self.integer(integer, place)?,
            FieldClass::Float(Float { size_bits, align_bits, byte_order, is_reversed }) => {
                let kind = ("type", text("fixed-length-floating-point-number"));
                object([kind].into_iter().chain(bits(*size_bits, *align_bits, *byte_order, *is_reversed)))
            }
            FieldClass::Text(Text { encoding, length }) => {
                let mut class = match length {
                    None => vec![("type", text("null-terminated-string"))],
                    Some(length) => self.counted("string", length)?,
                };
                let name = ENCODINGS.iter().find(|(_, of)| of == encoding).filter(|_| *encoding != Encoding::Utf8);
                class.extend(name.map(|(name, _)| ("encoding", text(name))));
                object(class)
            }
            FieldClass::Blob { length, is_uuid } => {
                let mut class = self.counted("blob", length)?;
                class.extend(is_uuid.then(|| ("roles", list([text(UUID)]))));
                object(class)
            }
            FieldClass::Struct(structure) => self.structure(structure, place.scope, false)?,
            FieldClass::Array { element, length, .. } if is_uuid(element, length, place) => {
                let mut class = self.counted("blob", length)?;
                class.push(("roles", list([text(UUID)])));
                object(class)
            }
            FieldClass::Array { element, length, is_text: true, align_bits: ..=8 } if is_byte(element) => {
                object(self.counted("string", length)?)
            }
            FieldClass::Array { is_text: true, .. } => {
                return Err("text of characters that are no whole bytes, one behind the other".into());
            }
            FieldClass::Array { element, length, align_bits, .. } => {
                let mut class = self.counted("array", length)?;
                class.push(("element-field-class", self.class(element, Place { is_outermost: false, ..place })?));
                class.push(("minimum-alignment", Json::Number((*align_bits).max(1).into())));
                object(class)
            }
            FieldClass::Variant(variant) => {
                let option = |option: &Option_| {
                    let name = shown_name(&option.name);
                    let mut properties = vec![];
                    properties.extend((!name.is_empty()).then(|| ("name", text(name))));
                    let place = Place { name, is_outermost: false, ..place };
                    properties.push(("field-class", self.class(&option.class, place)?));
                    properties.push(("selector-field-ranges", ranges(&option.ranges)));
                    Ok(object(properties))
                };
                // An option without ranges can never be selected.
                let options = variant.options.iter().filter(|option| !option.ranges.is_empty());
                let options = options.map(option).collect::<Result<Vec<_>, String>>()?;
                let selector = ("selector-field-location", self.location(&variant.tag)?);
                object([("type", text("variant")), selector, ("options", list(options))])
            }
            FieldClass::Optional(optional) => {
                let mut class = vec![("type", text("optional"))];
                class.push(("selector-field-location", self.location(&optional.selector)?));
                if !self.is_flag(&optional.selector) {
                    class.push(("selector-field-ranges", ranges(&optional.ranges)));
                }
                class.push(("field-class", self.class(&optional.class, Place { is_outermost: false, ..place })?));
                object(class)
            }
        })
    }

    fn integer(&self, integer: &Integer, place: Place<'_>) -> Result<Json, String> {
        let is_reversed = integer.coding == Coding::Reversed;
        let signed = if integer.is_signed { "signed" } else { "unsigned" };
        let labels = integer.labels.as_deref().unwrap_or_default();
        let kind = match (integer.coding, integer.meaning) {
            (Coding::Variable, _) => format!("variable-length-{signed}-integer"),
            (_, Meaning::Boolean) => "fixed-length-boolean".into(),
            (_, Meaning::Bits) if labels.is_empty() => "fixed-length-bit-array".into(),
            (_, Meaning::Bits) => "fixed-length-bit-map".into(),
            _ => format!("fixed-length-{signed}-integer"),
        };
        let mut class = vec![("type", text(&kind))];
        if integer.coding != Coding::Variable {
            class.extend(bits(integer.size_bits, integer.align_bits, integer.byte_order, is_reversed));
        }
        let named = (!labels.is_empty()).then(|| mappings(labels));
        match integer.meaning {
            Meaning::Boolean => {}
            Meaning::Bits => class.extend(named.map(|flags| ("flags", flags))),
            Meaning::Number => {
                let base = match integer.base {
                    Base::Binary => 2,
                    Base::Octal => 8,
                    Base::Decimal => 10,
                    Base::Hexadecimal => 16,
                };
                class.push(("preferred-display-base", Json::Number(base)));
                class.extend(named.map(|mappings| ("mappings", mappings)));
                let roles = self.roles(integer, place)?;
                class.extend((!roles.is_empty()).then(|| ("roles", list(roles.into_iter().map(text)))));
            }
        }
        Ok(object(class))
    }

    /// Returns the roles of a number in packets and records.
    fn roles(&self, integer: &Integer, place: Place<'_>) -> Result<Vec<&'static str>, String> {
        let Place { scope, name, is_outermost } = place;
        let roles = integer.roles.unwrap_or_else(|| roles_of(scope, is_outermost, name));
        let is_time = integer.clock.is_some() && matches!(scope, Scope::PacketContext | Scope::EventHeader);
        if is_time && integer.clock != self.clock {
            return Err("a time of another clock than the stream's".into());
        }
        let of_role = |role: Role| roles != Roles::NONE && roles.has(role);
        let said = ROLES.iter().filter(|(name, of, role)| {
            *of == scope
                && match role {
                    // A time role requires a clock.
                    Some(role) => of_role(*role) && (integer.clock.is_some() || !TIME_ROLES.contains(name)),
                    None => is_time,
                }
        });
        Ok(said.map(|(name, ..)| *name).collect())
    }

    /// Returns the properties of a class that has a number of bytes or elements.
    fn counted(&self, kind: &str, length: &Length) -> Result<Vec<Property>, String> {
        Ok(match length {
            Length::Fixed(count) => {
                vec![("type", text(&format!("static-length-{kind}"))), ("length", Json::Number((*count).into()))]
            }
            Length::Field(path) => {
                vec![("type", text(&format!("dynamic-length-{kind}"))), ("length-field-location", self.location(path)?)]
            }
        })
    }

    /// Returns the location of another field. Options of variants have no name in it.
    fn location(&self, path: &FieldPath) -> Result<Json, String> {
        let lost = || "a field that it refers to is not there".to_string();
        let (names, _) = self.of[path.scope as usize].and_then(|root| names(root, &path.path)).ok_or_else(lost)?;
        let origin = ORIGINS.iter().find(|(_, scope)| *scope == path.scope).map(|(name, _)| text(name));
        let path = list(names.into_iter().map(text));
        Ok(object([("origin", origin.ok_or_else(lost)?), ("path", path)]))
    }

    fn is_flag(&self, path: &FieldPath) -> bool {
        let found = self.of[path.scope as usize].and_then(|root| names(root, &path.path));
        matches!(found, Some((_, FieldClass::Integer(Integer { meaning: Meaning::Boolean, .. }))))
    }
}

const UUID: &str = "metadata-stream-uuid";

/// Returns the names of the members that lead to a field, and the field's class.
fn names<'a>(root: &'a Struct, path: &[usize]) -> Option<(Vec<&'a str>, &'a FieldClass)> {
    let (first, rest) = path.split_first()?;
    let member = root.members.get(*first)?;
    let (mut names, mut class, mut rest) = (vec![member.shown_name()], &*member.class, rest);
    loop {
        class = match class {
            FieldClass::Optional(optional) => &optional.class,
            FieldClass::Array { element, .. } if !rest.is_empty() => element,
            FieldClass::Struct(structure) => {
                let (at, behind) = rest.split_first()?;
                let member = structure.members.get(*at)?;
                names.push(member.shown_name());
                rest = behind;
                &member.class
            }
            FieldClass::Variant(variant) => {
                let (at, behind) = rest.split_first()?;
                rest = behind;
                &variant.options.get(*at)?.class
            }
            _ => return rest.is_empty().then_some((names, class)),
        }
    }
}

/// Returns the properties that all numbers of a fixed length share.
fn bits(size_bits: u32, align_bits: u64, byte_order: ByteOrder, is_reversed: bool) -> Vec<Property> {
    let (order, other) = match byte_order {
        ByteOrder::Little => ("little-endian", "last-to-first"),
        ByteOrder::Big => ("big-endian", "first-to-last"),
    };
    let mut properties = vec![
        ("length", Json::Number(size_bits.into())),
        ("byte-order", text(order)),
        ("alignment", Json::Number(align_bits.into())),
    ];
    properties.extend(is_reversed.then(|| ("bit-order", text(other))));
    properties
}

/// Returns names with all their ranges.
fn mappings(labels: &[Label]) -> Json {
    let mut named: Vec<(String, Vec<Json>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for label in labels {
        let at = *places.entry(label.name.as_str()).or_insert(named.len());
        if at == named.len() {
            named.push((label.name.clone(), Vec::new()));
        }
        named[at].1.push(range(&label.range));
    }
    Json::Object(named.into_iter().map(|(name, ranges)| (name, list(ranges))).collect())
}

fn ranges(all: &[Range]) -> Json {
    list(all.iter().map(range))
}

fn range(range: &Range) -> Json {
    list([range.bounds.0, range.bounds.1].map(Json::Number))
}

/// Whether the array is the UUID of the trace, in the form of a CTF 1.8 packet header.
fn is_uuid(element: &FieldClass, length: &Length, place: Place<'_>) -> bool {
    place.scope == Scope::PacketHeader
        && place.is_outermost
        && place.name == "uuid"
        && *length == Length::Fixed(16)
        && is_byte(element)
}

fn is_byte(class: &FieldClass) -> bool {
    matches!(class, FieldClass::Integer(Integer { size_bits: 8, align_bits: 8, coding: Coding::Plain, .. }))
}
