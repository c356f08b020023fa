//! Field classes of CTF 2: aliases, and fields that refer to other fields.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::types::NAMES_PER_FIELD;
use super::node::{Checked, Node};
use crate::model::{
    Base, ByteOrder, Coding, Encoding, FieldClass, FieldPath, Float, Integer, Label, Length, Meaning, Member, Option_,
    Optional, Range, Role, Roles, Scope, Struct, Text, Variant,
};
use dormouse_format::metadata::json::Json;

/// Minimum budget of fields, to which the length of the text is added. The budget bounds aliases that contain one
/// another several times.
const FIELD_COUNT_MIN: usize = 1 << 20;
/// Maximum depth of nested field classes.
const DEPTH_MAX: usize = 64;

/// Scopes with their structures, where they have one.
pub(super) type Before<'b> = [(Scope, Option<&'b Struct>)];

/// State of the reader of field classes.
pub(super) struct Fields<'j> {
    /// Aliases of field classes, with the fragments that define them.
    aliases: HashMap<&'j str, (usize, &'j Json)>,
    /// Labels by their address in the text. An alias with many labels can be used many times.
    labels: HashMap<*const Json, Arc<[Label]>>,
    /// Number of fields and selector ranges that may still be created.
    budget: Cell<usize>,
    depth: usize,
    scope: Scope,
    /// Default clock of the stream, for its times.
    clock: Option<usize>,
    has_uuid: bool,
    /// Structures around the current field, outermost first.
    levels: Vec<Level>,
    /// Index of the current member or option at each level.
    path: Vec<usize>,
}

/// A structure that is being read.
struct Level {
    path: Vec<usize>,
    members: Vec<Member>,
    /// Name of the current member.
    name: String,
}

/// Kind of field that a reference requires.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Length,
    Number,
    Flag,
}

pub(super) const ORIGINS: [(&str, Scope); 6] = [
    ("packet-header", Scope::PacketHeader),
    ("packet-context", Scope::PacketContext),
    ("event-record-header", Scope::EventHeader),
    ("event-record-common-context", Scope::EventContext),
    ("event-record-specific-context", Scope::OwnContext),
    ("event-record-payload", Scope::Fields),
];

pub(super) const ENCODINGS: [(&str, Encoding); 5] = [
    ("utf-8", Encoding::Utf8),
    ("utf-16be", Encoding::Utf16(ByteOrder::Big)),
    ("utf-16le", Encoding::Utf16(ByteOrder::Little)),
    ("utf-32be", Encoding::Utf32(ByteOrder::Big)),
    ("utf-32le", Encoding::Utf32(ByteOrder::Little)),
];

/// Roles, with the scopes in which they have a meaning. The time of event records needs no role in the model, because
/// its clock identifies it.
pub(super) const ROLES: [(&str, Scope, Option<Role>); 11] = [
    ("packet-magic-number", Scope::PacketHeader, Some(Role::Magic)),
    ("data-stream-class-id", Scope::PacketHeader, Some(Role::StreamId)),
    ("data-stream-id", Scope::PacketHeader, Some(Role::StreamInstanceId)),
    ("default-clock-timestamp", Scope::PacketContext, Some(Role::TimestampBegin)),
    ("packet-end-default-clock-timestamp", Scope::PacketContext, Some(Role::TimestampEnd)),
    ("packet-total-length", Scope::PacketContext, Some(Role::PacketSize)),
    ("packet-content-length", Scope::PacketContext, Some(Role::ContentSize)),
    ("packet-sequence-number", Scope::PacketContext, Some(Role::PacketSeqNum)),
    ("discarded-event-record-counter-snapshot", Scope::PacketContext, Some(Role::EventsDiscarded)),
    ("event-record-class-id", Scope::EventHeader, Some(Role::ClassId)),
    ("default-clock-timestamp", Scope::EventHeader, None),
];

/// Roles of times.
pub(super) const TIME_ROLES: [&str; 2] = ["default-clock-timestamp", "packet-end-default-clock-timestamp"];

impl<'j> Fields<'j> {
    pub(super) fn new(text_len: usize) -> Fields<'j> {
        Fields {
            aliases: HashMap::new(),
            labels: HashMap::new(),
            budget: Cell::new(FIELD_COUNT_MIN + text_len),
            depth: 0,
            scope: Scope::Fields,
            clock: None,
            has_uuid: false,
            levels: Vec::new(),
            path: Vec::new(),
        }
    }

    pub(super) fn set_uuid(&mut self) {
        self.has_uuid = true;
    }

    /// Adds an alias of a field class for the fragments that follow.
    pub(super) fn alias(&mut self, fragment: usize, node: &Node<'j, '_>) -> Checked<()> {
        let name = node.required("name", |name| name.text())?;
        node.required("field-class", |_| Ok(()))?;
        if self.aliases.insert(name, (fragment, node.json)).is_some() {
            return node.fail(format!("there is a field class alias {name:?} already"));
        }
        Ok(())
    }

    /// Resolves the structure of a scope. Its fields may refer to the scopes in `before`; `clock` is the default clock
    /// of the stream.
    pub(super) fn root(
        &mut self,
        node: &Node<'j, '_>,
        scope: Scope,
        clock: Option<usize>,
        before: &Before<'_>,
    ) -> Checked<Struct> {
        (self.scope, self.clock, self.depth) = (scope, clock, 0);
        self.levels.clear();
        self.path.clear();
        match self.class(node, before)? {
            FieldClass::Struct(structure) => Ok(structure),
            _ => node.fail("expected a structure field class"),
        }
    }

    /// Resolves a field class or the name of an alias.
    fn class(&mut self, node: &Node<'j, '_>, before: &Before<'_>) -> Checked<FieldClass> {
        self.charge(node, 1)?;
        if self.depth >= DEPTH_MAX {
            return node.fail(format!("there are more than {DEPTH_MAX} field classes in one another"));
        }
        self.depth += 1;
        let class = match node.json {
            Json::Text(name) => match self.aliases.get(name.as_str()).copied() {
                // Errors in an alias are reported at its definition.
                Some((fragment, json)) => {
                    Node::of_fragment(fragment, json).required("field-class", |class| self.class(class, before))
                }
                None => node.fail(format!("there is no field class alias {name:?} before")),
            },
            _ => self.described(node, before),
        };
        self.depth -= 1;
        class
    }

    fn charge(&self, node: &Node<'j, '_>, count: usize) -> Checked<()> {
        match self.budget.get().checked_sub(count) {
            Some(budget) => self.budget.set(budget),
            None => return node.fail("field classes that hold or name one another have too many fields"),
        }
        Ok(())
    }

    /// Parses names with their ranges.
    fn labels(&mut self, node: &Node<'j, '_>, min: i128, max: i128) -> Checked<Arc<[Label]>> {
        let place = std::ptr::from_ref(node.json);
        if let Some(labels) = self.labels.get(&place) {
            return Ok(labels.clone());
        }
        let named = node.properties(|name, set| {
            let label = |range| Label { name: name.into(), range };
            Ok(ranges(set, min, max)?.into_iter().map(label).collect::<Vec<_>>())
        })?;
        let labels: Arc<[Label]> = named.concat().into();
        self.labels.insert(place, labels.clone());
        Ok(labels)
    }

    fn described(&mut self, node: &Node<'j, '_>, before: &Before<'_>) -> Checked<FieldClass> {
        node.common()?;
        let name = node.required("type", |name| name.text())?;
        let integer = |integer: Checked<Integer>| integer.map(FieldClass::Integer);
        Ok(match name {
            "fixed-length-bit-array" => integer(self.bits(node, Meaning::Bits))?,
            "fixed-length-bit-map" => {
                let mut bits = self.bits(node, Meaning::Bits)?;
                bits.labels =
                    Some(node.required("flags", |flags| self.labels(flags, 0, i128::from(bits.size_bits) - 1))?);
                FieldClass::Integer(bits)
            }
            "fixed-length-boolean" => integer(self.bits(node, Meaning::Boolean))?,
            "fixed-length-unsigned-integer" => {
                let integer = self.bits(node, Meaning::Number)?;
                FieldClass::Integer(self.number(node, integer, false)?)
            }
            "fixed-length-signed-integer" => {
                let integer = self.bits(node, Meaning::Number)?;
                FieldClass::Integer(self.number(node, integer, true)?)
            }
            "variable-length-unsigned-integer" | "variable-length-signed-integer" => {
                let integer = Integer {
                    coding: Coding::Variable,
                    roles: Some(Roles::NONE),
                    ..Integer::new(64, 8, ByteOrder::Little)
                };
                FieldClass::Integer(self.number(node, integer, name == "variable-length-signed-integer")?)
            }
            "fixed-length-floating-point-number" => {
                node.required("length", |length| match length.json {
                    Json::Number(16 | 32 | 64) => Ok(()),
                    other => length.fail(format!("expected 16, 32 or 64, found {}", other.kind())),
                })?;
                let bits = self.bits(node, Meaning::Number)?;
                FieldClass::Float(Float {
                    size_bits: bits.size_bits,
                    align_bits: bits.align_bits,
                    byte_order: bits.byte_order,
                    is_reversed: bits.coding == Coding::Reversed,
                })
            }
            "null-terminated-string" => FieldClass::Text(Text { encoding: encoding(node)?, length: None }),
            "static-length-string" => {
                FieldClass::Text(Text { encoding: encoding(node)?, length: Some(static_length(node)?) })
            }
            "dynamic-length-string" => {
                FieldClass::Text(Text { encoding: encoding(node)?, length: Some(self.dynamic_length(node, before)?) })
            }
            "static-length-blob" => self.blob(node)?,
            "dynamic-length-blob" => {
                node.may_have_text("media-type")?;
                FieldClass::Blob { length: self.dynamic_length(node, before)?, is_uuid: false }
            }
            "structure" => FieldClass::Struct(self.structure(node, before)?),
            "static-length-array" => {
                let length = static_length(node)?;
                self.array(node, length, before)?
            }
            "dynamic-length-array" => {
                let length = self.dynamic_length(node, before)?;
                self.array(node, length, before)?
            }
            "optional" => FieldClass::Optional(self.optional(node, before)?),
            "variant" => FieldClass::Variant(self.variant(node, before)?),
            _ => return node.required("type", |name| name.fail("there is no field class of this type in CTF 2")),
        })
    }

    /// Parses the properties that all fixed-length bit fields share.
    fn bits(&self, node: &Node<'j, '_>, meaning: Meaning) -> Checked<Integer> {
        let size_bits = node.required("length", |length| length.number(1, 64))? as u32;
        let byte_order = node.required("byte-order", |order| {
            order.one_of(&[("little-endian", ByteOrder::Little), ("big-endian", ByteOrder::Big)])
        })?;
        let bit_order = node.with("bit-order", |order| {
            order.one_of(&[("first-to-last", ByteOrder::Little), ("last-to-first", ByteOrder::Big)])
        })?;
        let align_bits = node.with("alignment", |align| align.alignment())?.unwrap_or(1);
        let coding = if bit_order.is_none_or(|order| order == byte_order) { Coding::Plain } else { Coding::Reversed };
        let base = if meaning == Meaning::Bits { Base::Hexadecimal } else { Base::Decimal };
        let roles = Some(Roles::NONE);
        Ok(Integer { base, coding, meaning, roles, ..Integer::new(size_bits, align_bits, byte_order) })
    }

    /// Parses the properties that all integer classes share.
    fn number(&mut self, node: &Node<'j, '_>, mut integer: Integer, is_signed: bool) -> Checked<Integer> {
        integer.is_signed = is_signed;
        let base = node.with("preferred-display-base", |base| match base.json {
            Json::Number(2) => Ok(Base::Binary),
            Json::Number(8) => Ok(Base::Octal),
            Json::Number(10) => Ok(Base::Decimal),
            Json::Number(16) => Ok(Base::Hexadecimal),
            other => base.fail(format!("expected 2, 8, 10 or 16, found {}", other.kind())),
        })?;
        integer.base = base.unwrap_or(Base::Decimal);
        let (min, max) = bounds(is_signed);
        integer.labels = node.with("mappings", |mappings| self.labels(mappings, min, max))?;
        node.with("roles", |roles| {
            if is_signed {
                return roles.fail("only unsigned numbers have roles");
            }
            roles.each(|_, role| self.role(role, &mut integer)).map(drop)
        })?;
        // The CPU number has no role in CTF 2. As in CTF 1.8, it is found by name.
        let is_outermost = self.scope == Scope::PacketContext && self.levels.len() == 1;
        if is_outermost && !is_signed && self.levels.iter().any(|level| level.name == "cpu_id") {
            integer.roles = integer.roles.map(|roles| roles.with(Role::CpuId));
        }
        Ok(integer)
    }

    fn role(&self, node: &Node<'j, '_>, integer: &mut Integer) -> Checked<()> {
        let name = node.text()?;
        if !ROLES.iter().any(|(known, ..)| *known == name) {
            return node.fail(format!("there is no role {name:?} of numbers in CTF 2"));
        }
        // By an alias, a class can be used in other scopes, where the role has no meaning.
        let Some((.., role)) = ROLES.iter().find(|(known, scope, _)| *known == name && *scope == self.scope) else {
            return Ok(());
        };
        if TIME_ROLES.contains(&name) {
            if self.clock.is_none() {
                return node.fail("this is a time, but the data stream class has no default-clock-class-id");
            }
            integer.clock = self.clock;
        }
        if *role == Some(Role::Magic) {
            if integer.size_bits != 32 || integer.coding == Coding::Variable {
                return node.fail("the packet magic number has a fixed length of 32 bits");
            }
            if self.path != [0] {
                return node.fail("the packet magic number is the first field of packets");
            }
        }
        if let Some(role) = role {
            integer.roles = integer.roles.map(|roles| roles.with(*role));
        }
        Ok(())
    }

    fn blob(&self, node: &Node<'j, '_>) -> Checked<FieldClass> {
        node.may_have_text("media-type")?;
        let length = static_length(node)?;
        let mut is_uuid = false;
        node.with("roles", |roles| {
            roles.each(|_, role| {
                role.one_of(&[("metadata-stream-uuid", ())])?;
                if length != Length::Fixed(16) {
                    return role.fail("the metadata stream UUID has 16 bytes");
                }
                if !self.has_uuid {
                    return role.fail("the preamble has no property \"uuid\"");
                }
                is_uuid = self.scope == Scope::PacketHeader;
                Ok(())
            })
        })?;
        Ok(FieldClass::Blob { length, is_uuid })
    }

    fn structure(&mut self, node: &Node<'j, '_>, before: &Before<'_>) -> Checked<Struct> {
        let least = node.with("minimum-alignment", |align| align.alignment())?.unwrap_or(1);
        self.levels.push(Level { path: self.path.clone(), members: Vec::new(), name: String::new() });
        let mut names = HashSet::new();
        node.with("member-classes", |members| {
            members.each(|index, member| {
                member.common()?;
                let name = member.required("name", |name| match name.text()? {
                    text if names.insert(text) => Ok(text),
                    text => name.fail(format!("there is a member {text:?} already")),
                })?;
                self.level().name = name.into();
                let class = member.required("field-class", |class| self.below(index, class, before))?;
                self.level().members.push(Member { name: escaped(name), class: Arc::new(class) });
                Ok(())
            })
        })?;
        let members = self.levels.pop().map(|level| level.members).unwrap_or_default();
        let align_bits = members.iter().map(|member| member.class.align_bits()).fold(least, u64::max);
        Ok(Struct { align_bits, members })
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("a structure is being read")
    }

    fn below(&mut self, index: usize, node: &Node<'j, '_>, before: &Before<'_>) -> Checked<FieldClass> {
        self.path.push(index);
        let class = self.class(node, before);
        self.path.pop();
        class
    }

    fn array(&mut self, node: &Node<'j, '_>, length: Length, before: &Before<'_>) -> Checked<FieldClass> {
        let align_bits = node.with("minimum-alignment", |align| align.alignment())?.unwrap_or(1);
        let element = node.required("element-field-class", |element| self.class(element, before))?;
        Ok(FieldClass::Array { element: Arc::new(element), length, is_text: false, align_bits })
    }

    fn optional(&mut self, node: &Node<'j, '_>, before: &Before<'_>) -> Checked<Optional> {
        let has_ranges = node.with("selector-field-ranges", |_| Ok(()))?.is_some();
        let kind = if has_ranges { Kind::Number } else { Kind::Flag };
        let (selector, integer) = self.location(node, "selector-field-location", kind, before)?;
        let (min, max) = bounds(integer.is_signed);
        let ranges = match has_ranges {
            true => node.required("selector-field-ranges", |set| ranges(set, min, max))?,
            false => vec![Range { bounds: (1, max) }],
        };
        self.charge(node, ranges.len())?;
        let class = node.required("field-class", |class| self.class(class, before))?;
        Ok(Optional { selector, is_selector_signed: integer.is_signed, ranges, class: Arc::new(class) })
    }

    fn variant(&mut self, node: &Node<'j, '_>, before: &Before<'_>) -> Checked<Variant> {
        let (tag, integer) = self.location(node, "selector-field-location", Kind::Number, before)?;
        let (min, max) = bounds(integer.is_signed);
        let (mut names, mut taken) = (HashSet::new(), Vec::new());
        let options = node.required("options", |options| {
            let read = options.each(|index, option| {
                option.common()?;
                let name = option.with("name", |name| match name.text()? {
                    text if names.insert(text) => Ok(text),
                    text => name.fail(format!("there is an option {text:?} already")),
                })?;
                let ranges = option.required("selector-field-ranges", |set| {
                    let ranges = ranges(set, min, max)?;
                    taken.extend(ranges.iter().map(|range| (range.bounds, index)));
                    Ok(ranges)
                })?;
                self.charge(option, ranges.len())?;
                let class = option.required("field-class", |class| self.below(index, class, before))?;
                Ok(Option_ { name: name.map(escaped).unwrap_or_default(), ranges, class: Arc::new(class) })
            })?;
            if read.is_empty() {
                return options.fail("a variant has at least one option");
            }
            taken.sort_unstable();
            // The ranges are sorted, so it suffices to compare each with the earlier range that has the highest end.
            let mut last: Option<((i128, i128), usize)> = None;
            for (bounds, index) in taken {
                if let Some((before, of)) = last
                    && of != index
                    && bounds.0 <= before.1
                {
                    return options.fail(format!("options {of} and {index} have values of the selector in common"));
                }
                if last.is_none_or(|(before, _)| before.1 <= bounds.1) {
                    last = Some((bounds, index));
                }
            }
            Ok(read)
        })?;
        Ok(Variant { tag, is_tag_signed: integer.is_signed, options })
    }

    fn dynamic_length(&self, node: &Node<'j, '_>, before: &Before<'_>) -> Checked<Length> {
        Ok(Length::Field(self.location(node, "length-field-location", Kind::Length, before)?.0))
    }

    /// Finds the field that a location leads to.
    fn location(
        &self,
        node: &Node<'j, '_>,
        key: &'static str,
        kind: Kind,
        before: &Before<'_>,
    ) -> Checked<(FieldPath, Integer)> {
        node.required(key, |location| {
            let origin = location.with("origin", |origin| origin.one_of(&ORIGINS))?;
            let steps = location.required("path", |path| {
                let steps = path.each(|_, step| match step.json {
                    Json::Null => Ok(None),
                    _ => step.text().map(Some),
                })?;
                if !matches!(steps.last(), Some(Some(_))) {
                    return path.fail("a path ends with the name of a field");
                }
                Ok(steps)
            })?;
            let names = match self.absolute(origin, &steps) {
                Some(names) => names,
                None => return location.fail("the path leaves the outermost structure"),
            };
            let (scope, mut compared) = (origin.unwrap_or(self.scope), 0);
            let found = match scope == self.scope {
                true => self.in_levels(&names, &mut compared),
                false => match before.iter().find(|(known, _)| *known == scope) {
                    Some((_, Some(structure))) => in_members(&structure.members, &[], &names, &mut compared),
                    Some((_, None)) => Err("there is no such structure".into()),
                    None => Err("that structure is read later".into()),
                },
            };
            self.charge(location, compared / NAMES_PER_FIELD)?;
            let (path, integer) = match found {
                Ok(found) => found,
                Err(why) => return location.fail(format!("there is no field {}: {why}", names.join("."))),
            };
            let what = match kind {
                Kind::Length if integer.meaning != Meaning::Number || integer.is_signed => "an unsigned number",
                Kind::Number if integer.meaning != Meaning::Number => "a whole number",
                Kind::Flag if integer.meaning != Meaning::Boolean => {
                    "a boolean, where there are no selector-field-ranges"
                }
                _ => return Ok((FieldPath { scope, path }, integer)),
            };
            location.fail(format!("the field {} is not {what}", names.join(".")))
        })
    }

    /// Returns the names from the outermost structure on. Without an origin, the path starts in the structure around
    /// the current field, and each `None` step leads to the next outer structure.
    fn absolute(&self, origin: Option<Scope>, steps: &[Option<&'j str>]) -> Option<Vec<&str>> {
        let mut names: Vec<&str> = match origin {
            Some(_) => Vec::new(),
            None => self.levels.iter().rev().skip(1).rev().map(|level| level.name.as_str()).collect(),
        };
        for step in steps {
            match step {
                Some(name) => names.push(name),
                None => {
                    names.pop()?;
                }
            }
        }
        Some(names)
    }

    /// Finds the field with these names in the scope that is being read.
    fn in_levels(&self, names: &[&str], compared: &mut usize) -> Result<(Vec<usize>, Integer), String> {
        let mut names = names;
        for (index, level) in self.levels.iter().enumerate() {
            // A structure around the current field is still incomplete. Its members so far are at the next level.
            let is_around = names.len() > 1 && index + 1 < self.levels.len() && level.name == names[0];
            if !is_around {
                return in_members(&level.members, &level.path, names, compared);
            }
            names = &names[1..];
        }
        Err("it is not before this one".into())
    }
}

/// Range of integer values.
fn bounds(is_signed: bool) -> (i128, i128) {
    if is_signed { (i64::MIN.into(), i64::MAX.into()) } else { (0, u64::MAX.into()) }
}

/// Converts a name to its form in the model.
fn escaped(name: &str) -> String {
    if name.starts_with('_') { format!("_{name}") } else { name.into() }
}

/// Finds a number by its path. Adds the number of compared names to `compared`.
fn in_members(
    members: &[Member],
    around: &[usize],
    names: &[&str],
    compared: &mut usize,
) -> Result<(Vec<usize>, Integer), String> {
    let Some((first, rest)) = names.split_first() else { return Err("a structure is no number".into()) };
    let name = escaped(first);
    let index = members.iter().position(|member| member.name == name);
    *compared += index.map_or(members.len(), |index| index + 1);
    let Some(index) = index else {
        return Err(format!("no {first} is before this one"));
    };
    let path = [around, &[index]].concat();
    in_class(&members[index].class, path, rest, compared)
}

fn in_class(
    class: &FieldClass,
    path: Vec<usize>,
    names: &[&str],
    compared: &mut usize,
) -> Result<(Vec<usize>, Integer), String> {
    match class {
        FieldClass::Integer(integer) if names.is_empty() => Ok((path, integer.clone())),
        FieldClass::Struct(structure) => in_members(&structure.members, &path, names, compared),
        FieldClass::Optional(optional) => in_class(&optional.class, path, names, compared),
        FieldClass::Variant(variant) => {
            let option = |(index, option): (usize, &Option_)| {
                *compared += 1;
                in_class(&option.class, [path.as_slice(), &[index]].concat(), names, compared).ok()
            };
            let mut found = variant.options.iter().enumerate().filter_map(option);
            match (found.next(), found.next()) {
                (Some(found), None) => Ok(found),
                (None, _) => Err("no option of the variant has it".into()),
                (Some(_), Some(_)) => Err("several options of the variant have one, which is not read".into()),
            }
        }
        FieldClass::Array { .. } => Err("an array is on the way, and none of its elements is meant".into()),
        FieldClass::Integer(_) | FieldClass::Float(_) | FieldClass::Text(_) | FieldClass::Blob { .. } => {
            Err("there is another kind of field".into())
        }
    }
}

fn encoding(node: &Node<'_, '_>) -> Checked<Encoding> {
    Ok(node.with("encoding", |encoding| encoding.one_of(&ENCODINGS))?.unwrap_or(Encoding::Utf8))
}

fn static_length(node: &Node<'_, '_>) -> Checked<Length> {
    node.required("length", |length| length.number(0, u32::MAX.into())).map(|length| Length::Fixed(length as u64))
}

/// Parses ranges of integers.
fn ranges(node: &Node<'_, '_>, min: i128, max: i128) -> Checked<Vec<Range>> {
    let read = node.each(|_, range| {
        let bounds = range.each(|_, bound| bound.number(min, max))?;
        match bounds.as_slice() {
            [first, last] if first <= last => Ok(Range { bounds: (*first, *last) }),
            [_, _] => range.fail("the first value of this range is above the last"),
            _ => range.fail("a range is an array of two whole numbers"),
        }
    })?;
    if read.is_empty() { node.fail("expected at least one range") } else { Ok(read) }
}
