//! Field classes with resolved references. The value of a field that determines a length or an option is kept in a
//! slot.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::bits::extend_sign;
use crate::model::{
    Base, ByteOrder, Coding, Encoding, FieldClass, FieldPath, Float, Integer, Label, Length, Meaning, Member, Option_,
    Range, Role, Roles, Scope, Struct, Text, TraceClass, shown_name,
};

/// Number of slots that keep their values from a packet's header to its records, and from a record's header to its
/// fields.
pub(super) const OUTER_COUNT: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Integer(Arc<IntegerNode>),
    Float(Float),
    /// Text. Without a count, it ends with its NUL.
    Text {
        encoding: Encoding,
        count: Option<Count>,
    },
    Blob {
        count: Count,
        is_uuid: bool,
    },
    Struct(StructNode),
    Variant {
        slot: u32,
        is_tag_signed: bool,
        options: Vec<OptionNode>,
    },
    Optional {
        slot: u32,
        is_selector_signed: bool,
        ranges: Vec<Range>,
        node: Box<Node>,
    },
    Array {
        element: Box<Node>,
        count: Count,
        is_text: bool,
        align_bits: u64,
    },
}

/// An integer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntegerNode {
    /// Size, 1 to 64 bits; 64 for a number of variable length.
    pub size_bits: u32,
    pub(super) align_bits: u64,
    pub(super) order: ByteOrder,
    pub(super) coding: Coding,
    /// Whether values are those of an `i64`.
    pub is_signed: bool,
    /// Number base for display.
    pub base: Base,
    /// Meaning of the value.
    pub meaning: Meaning,
    /// Labels of an enumeration, or flags of a bit map.
    pub labels: Option<Arc<[Label]>>,
    pub(super) slot: Option<u32>,
    /// Whether the number is a time of the stream's clock.
    pub(super) is_time: bool,
    pub(crate) roles: Roles,
}

/// A plain little-endian number that no other field refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    pub(super) align_bits: u64,
    /// Size, 1 to 64 bits.
    pub(super) size_bits: u32,
}

impl Word {
    /// Returns the value of a signed number with these bits.
    #[inline(always)]
    pub fn signed(self, bits: u64) -> i64 {
        extend_sign(bits, self.size_bits) as i64
    }
}

/// Returns the roles of a field by its name in a scope, as in CTF 1.8. `is_outermost` says that the field is a direct
/// member.
pub(crate) fn roles_of(scope: Scope, is_outermost: bool, name: &str) -> Roles {
    let role = match (scope, is_outermost, name) {
        (Scope::PacketHeader, true, "magic") => Role::Magic,
        (Scope::PacketHeader, true, "stream_id") => Role::StreamId,
        (Scope::PacketHeader, true, "stream_instance_id") => Role::StreamInstanceId,
        (Scope::PacketContext, true, "cpu_id") => Role::CpuId,
        (Scope::PacketContext, true, "timestamp_begin") => Role::TimestampBegin,
        (Scope::PacketContext, true, "timestamp_end") => Role::TimestampEnd,
        (Scope::PacketContext, true, "content_size") => Role::ContentSize,
        (Scope::PacketContext, true, "packet_size") => Role::PacketSize,
        (Scope::PacketContext, true, "packet_seq_num") => Role::PacketSeqNum,
        (Scope::PacketContext, true, "events_discarded") => Role::EventsDiscarded,
        (Scope::EventHeader, _, "id") => Role::ClassId,
        _ => return Roles::NONE,
    };
    Roles::NONE.with(role)
}

/// A structure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StructNode {
    pub(super) align_bits: u64,
    pub(crate) members: Vec<MemberNode>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberNode {
    /// Name for display.
    pub(crate) shown: Box<str>,
    pub(crate) node: Node,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OptionNode {
    pub(super) ranges: Vec<Range>,
    pub(super) shown: Box<str>,
    pub(super) node: Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Fixed(u64),
    Slot(u32),
}

/// Slots of fields that others refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Slots {
    of: HashMap<FieldPath, u32>,
}

/// Maximum number of fields of a plan. Packet headers count once for each stream class, and contexts once for each
/// event class.
const FIELDS_MAX: u64 = 1 << 21;

/// A reason why metadata cannot be compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many header fields determine other fields.
    #[error("more than {OUTER_COUNT} fields of headers say lengths or options of other fields")]
    References,
    /// There are too many fields.
    #[error("headers, contexts and payloads of all classes have more than {FIELDS_MAX} fields")]
    Fields,
}

/// Checks that the plans of these streams are not too large.
pub(super) fn check_size(trace: &TraceClass) -> Result<(), PlanError> {
    let count = |structure: &Option<Struct>| structure.as_ref().map_or(0, field_count);
    let header = count(&trace.packet_header);
    let mut sum = header;
    for stream in &trace.streams {
        sum += header + count(&stream.packet_context) + count(&stream.event_header);
        let context = count(&stream.event_context);
        sum += stream.events.iter().map(|event| context + count(&event.context) + count(&event.fields)).sum::<u64>();
        if sum > FIELDS_MAX {
            return Err(PlanError::Fields);
        }
    }
    Ok(())
}

fn field_count(structure: &Struct) -> u64 {
    structure.members.iter().map(|member| 1 + field_count_of(&member.class)).sum()
}

fn field_count_of(class: &FieldClass) -> u64 {
    match class {
        FieldClass::Struct(structure) => field_count(structure),
        FieldClass::Variant(variant) => variant.options.iter().map(|option| 1 + field_count_of(&option.class)).sum(),
        FieldClass::Array { element, .. } => 1 + field_count_of(element),
        FieldClass::Optional(optional) => 1 + field_count_of(&optional.class),
        FieldClass::Text(_) | FieldClass::Integer(_) | FieldClass::Float(_) | FieldClass::Blob { .. } => 0,
    }
}

impl Slots {
    /// Assigns a slot to each header field that the later `structures` refer to.
    pub(super) fn outer<'a>(structures: impl IntoIterator<Item = (Scope, &'a Struct)>) -> Result<Slots, PlanError> {
        let mut slots = Slots::default();
        for (scope, structure) in structures {
            references(structure, &mut |path| {
                if stage(path.scope) < stage(scope) && !slots.of.contains_key(path) {
                    slots.of.insert(path.clone(), slots.of.len() as u32);
                }
            });
        }
        if slots.of.len() <= OUTER_COUNT { Ok(slots) } else { Err(PlanError::References) }
    }

    /// Returns these slots, with one more for each field that `structures` refer to.
    pub(super) fn with<'a>(&self, structures: impl IntoIterator<Item = &'a Struct>) -> Slots {
        let mut slots = self.clone();
        let mut next = OUTER_COUNT as u32;
        for structure in structures {
            references(structure, &mut |path| {
                slots.of.entry(path.clone()).or_insert_with(|| {
                    next += 1;
                    next - 1
                });
            });
        }
        slots
    }

    fn get(&self, path: &FieldPath) -> u32 {
        // Every reference has a slot.
        self.of.get(path).copied().unwrap_or(0)
    }

    /// Returns the tree of a scope.
    pub(super) fn node(&self, scope: Scope, structure: &Struct, clock: Option<usize>) -> StructNode {
        Builder { slots: self, clock, name: "", path: FieldPath { scope, path: Vec::new() } }.structure(structure)
    }
}

/// Returns the stage in which a scope is read: packet headers and contexts, then record headers, then the rest of the
/// records.
fn stage(scope: Scope) -> u8 {
    match scope {
        Scope::PacketHeader | Scope::PacketContext => 0,
        Scope::EventHeader => 1,
        Scope::EventContext | Scope::OwnContext | Scope::Fields => 2,
    }
}

fn references(structure: &Struct, note: &mut impl FnMut(&FieldPath)) {
    structure.members.iter().for_each(|member| references_of(&member.class, note));
}

fn references_of(class: &FieldClass, note: &mut impl FnMut(&FieldPath)) {
    match class {
        FieldClass::Struct(structure) => references(structure, note),
        FieldClass::Variant(variant) => {
            note(&variant.tag);
            variant.options.iter().for_each(|option| references_of(&option.class, note));
        }
        FieldClass::Array { element, length, .. } => {
            if let Length::Field(path) = length {
                note(path);
            }
            references_of(element, note);
        }
        FieldClass::Optional(optional) => {
            note(&optional.selector);
            references_of(&optional.class, note);
        }
        FieldClass::Text(Text { length: Some(Length::Field(path)), .. })
        | FieldClass::Blob { length: Length::Field(path), .. } => note(path),
        FieldClass::Integer(_) | FieldClass::Float(_) | FieldClass::Text(_) | FieldClass::Blob { .. } => {}
    }
}

struct Builder<'a> {
    slots: &'a Slots,
    clock: Option<usize>,
    /// Path of the current field.
    path: FieldPath,
    name: &'a str,
}

impl<'a> Builder<'a> {
    fn structure(&mut self, structure: &'a Struct) -> StructNode {
        let member = |(index, member): (usize, &'a Member)| MemberNode {
            shown: member.shown_name().into(),
            node: self.below(index, &member.name, &member.class),
        };
        let members = structure.members.iter().enumerate().map(member).collect();
        StructNode { align_bits: structure.align_bits.max(1), members }
    }

    fn below(&mut self, index: usize, name: &'a str, class: &'a FieldClass) -> Node {
        self.name = name;
        self.path.path.push(index);
        let node = self.node(class);
        self.path.path.pop();
        node
    }

    fn node(&mut self, class: &'a FieldClass) -> Node {
        match class {
            FieldClass::Integer(integer) => Node::Integer(Arc::new(self.integer(integer))),
            FieldClass::Float(float) => Node::Float(float.clone()),
            FieldClass::Text(text) => {
                Node::Text { encoding: text.encoding, count: text.length.as_ref().map(|length| self.count(length)) }
            }
            FieldClass::Blob { length, is_uuid } => Node::Blob { count: self.count(length), is_uuid: *is_uuid },
            FieldClass::Struct(structure) => Node::Struct(self.structure(structure)),
            FieldClass::Variant(variant) => {
                let option = |(index, option): (usize, &'a Option_)| OptionNode {
                    ranges: option.ranges.clone(),
                    shown: shown_name(&option.name).into(),
                    node: self.below(index, &option.name, &option.class),
                };
                let options = variant.options.iter().enumerate().map(option).collect();
                Node::Variant { slot: self.slots.get(&variant.tag), is_tag_signed: variant.is_tag_signed, options }
            }
            FieldClass::Optional(optional) => Node::Optional {
                slot: self.slots.get(&optional.selector),
                is_selector_signed: optional.is_selector_signed,
                ranges: optional.ranges.clone(),
                node: Box::new(self.node(&optional.class)),
            },
            FieldClass::Array { element, length, is_text, align_bits } => Node::Array {
                element: Box::new(self.node(element)),
                count: self.count(length),
                is_text: *is_text,
                align_bits: element.align_bits().max(*align_bits),
            },
        }
    }

    fn count(&self, length: &Length) -> Count {
        match length {
            Length::Fixed(count) => Count::Fixed(*count),
            Length::Field(path) => Count::Slot(self.slots.get(path)),
        }
    }

    fn integer(&self, integer: &Integer) -> IntegerNode {
        let of_name = || roles_of(self.path.scope, self.path.path.len() == 1, self.name);
        IntegerNode {
            size_bits: integer.size_bits,
            align_bits: integer.align_bits,
            order: integer.byte_order,
            coding: integer.coding,
            is_signed: integer.is_signed,
            base: integer.base,
            meaning: integer.meaning,
            labels: integer.labels.clone(),
            slot: self.slots.of.get(&self.path).copied(),
            is_time: integer.clock.is_some() && integer.clock == self.clock,
            roles: integer.roles.unwrap_or_else(of_name),
        }
    }
}

impl IntegerNode {
    /// Returns the name of a value: the first label of an enumeration, or all flags of a bit map.
    pub fn label(&self, value: u64) -> Option<Cow<'_, str>> {
        let mut labels = self.labels_of(value);
        let first = labels.next()?;
        match self.meaning {
            Meaning::Bits => Some(labels.fold(first.to_string(), |all, flag| all + ", " + flag).into()),
            _ => Some(first.into()),
        }
    }

    /// Returns the labels of a value; for a bit map, those of its bits.
    pub fn labels_of(&self, value: u64) -> impl Iterator<Item = &str> {
        let is_so = move |label: &&Label| match self.meaning {
            Meaning::Bits => (0..64).any(|bit| value >> bit & 1 == 1 && label.range.contains(bit, false)),
            _ => label.range.contains(value, self.is_signed),
        };
        self.labels.iter().flat_map(|labels| labels.iter()).filter(is_so).map(|label| label.name.as_str())
    }

    /// Returns the number of low bits of a time that the number has. `variable_bits` is the size of a variable-length
    /// number.
    pub(super) fn time_bits(&self, variable_bits: u32) -> u32 {
        if self.coding == Coding::Variable { variable_bits.min(64) } else { self.size_bits }
    }

    /// Whether the number always has 64 bits.
    pub(super) fn is_whole_word(&self) -> bool {
        self.size_bits == u64::BITS && self.coding != Coding::Variable
    }

    /// Returns the form in which the number can be read alone, if it is a plain little-endian one that no other field
    /// refers to.
    pub fn word(&self) -> Option<Word> {
        let word = Word { align_bits: self.align_bits, size_bits: self.size_bits };
        (self.is_little_endian() && self.slot.is_none()).then_some(word)
    }

    pub(super) fn is_little_endian(&self) -> bool {
        self.order == ByteOrder::Little && self.coding == Coding::Plain
    }
}

impl StructNode {
    /// Returns the alignment of the structure's beginning in bits.
    pub fn align_bits(&self) -> u64 {
        self.align_bits
    }
}

impl Node {
    pub(super) fn align_bits(&self) -> u64 {
        match self {
            Node::Integer(integer) => integer.align_bits,
            Node::Float(float) => float.align_bits,
            Node::Text { .. } | Node::Blob { .. } => 8,
            Node::Struct(structure) => structure.align_bits,
            Node::Variant { .. } | Node::Optional { .. } => 1,
            Node::Array { align_bits, .. } => *align_bits,
        }
    }
}
