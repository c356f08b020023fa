//! Reads fields one after another, and hands each to a visitor.

use super::bits::{Cursor, FieldError, extend_sign};
use super::node::{Count, IntegerNode, MemberNode, Node, OUTER_COUNT, OptionNode, Role, StructNode};

/// Elements without size (structures without members, for example) that one record may have.
const EMPTY_COUNT_MAX: u64 = 1 << 16;

/// What lies in brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Group {
    Struct,
    Variant,
    Array,
}

/// Is shown the fields of a structure in their order.
pub trait Visitor {
    /// The next field has this name.
    fn name(&mut self, name: &str);
    /// The next field is the option of a variant that has this name.
    fn option(&mut self, _name: &str) {}
    /// The next field is the element with this index.
    fn element(&mut self, index: u64);
    /// A whole number; an `i64`, if it is signed.
    fn integer(&mut self, value: u64, class: &IntegerNode);
    /// A floating-point number.
    fn float(&mut self, value: f64);
    /// Text, or an array of characters up to its first NUL.
    fn text(&mut self, text: &[u8]);
    /// The fields that come until it is closed belong together.
    fn open(&mut self, group: Group);
    /// Closes the group that was opened last.
    fn close(&mut self, group: Group);
}

/// Values that say something about fields which come later.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    slots: Vec<u64>,
    empty: u64,
}

impl Memory {
    /// One that begins with the values that outlast a structure.
    pub(crate) fn with_outer(outer: &[u64; OUTER_COUNT]) -> Memory {
        Memory { slots: outer.to_vec(), ..Memory::default() }
    }

    /// As a new one, in the same memory.
    pub(crate) fn restart(&mut self, outer: &[u64; OUTER_COUNT]) {
        self.slots.clear();
        self.slots.extend_from_slice(outer);
        self.empty = 0;
    }

    pub(crate) fn outer(&self) -> [u64; OUTER_COUNT] {
        std::array::from_fn(|index| self.slot(index as u32))
    }

    #[inline(always)]
    pub(super) fn slot(&self, slot: u32) -> u64 {
        self.slots.get(slot as usize).copied().unwrap_or(0)
    }

    #[inline(always)]
    pub(super) fn set(&mut self, slot: u32, value: u64) {
        let index = slot as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, 0);
        }
        self.slots[index] = value;
    }

    /// A record begins.
    pub(crate) fn begin(&mut self) {
        self.empty = 0;
    }

    pub(super) fn note_empty(&mut self) -> Result<(), FieldError> {
        self.empty += 1;
        if self.empty > EMPTY_COUNT_MAX { Err(FieldError::Endless) } else { Ok(()) }
    }
}

/// The first time not before `time` whose low bits are these; a whole time is what it is.
pub(crate) fn advance(time: u64, low: u64, size_bits: u32) -> u64 {
    if size_bits >= 64 {
        return low;
    }
    let span = 1u64 << size_bits;
    let next = time & !(span - 1) | low;
    if next >= time { next } else { next.wrapping_add(span) }
}

pub(super) fn option_of(options: &[OptionNode], tag: u64, is_signed: bool) -> Result<&OptionNode, FieldError> {
    let found = options.iter().find(|option| option.ranges.iter().any(|range| range.contains(tag, is_signed)));
    found.ok_or(FieldError::Tag(if is_signed { i128::from(tag as i64) } else { i128::from(tag) }))
}

impl IntegerNode {
    /// Reads it and takes note of it.
    #[inline(always)]
    pub(super) fn read(&self, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<u64, FieldError> {
        cursor.align(self.align_bits);
        let mut value = cursor.number(self.size_bits, self.order)?;
        if self.is_signed {
            value = extend_sign(value, self.size_bits);
        }
        if let Some(slot) = self.slot {
            memory.set(slot, value);
        }
        Ok(value)
    }
}

impl StructNode {
    /// Shows the members.
    pub(crate) fn walk(
        &self,
        cursor: &mut Cursor<'_>,
        memory: &mut Memory,
        visitor: &mut impl Visitor,
    ) -> Result<(), FieldError> {
        cursor.align(self.align_bits);
        for member in &self.members {
            visitor.name(&member.shown);
            member.node.walk(cursor, memory, visitor)?;
        }
        Ok(())
    }
}

impl StructNode {
    /// Shows the members but for those that only say where packets and records are.
    pub(crate) fn walk_shown(
        &self,
        cursor: &mut Cursor<'_>,
        memory: &mut Memory,
        visitor: &mut impl Visitor,
    ) -> Result<(), FieldError> {
        cursor.align(self.align_bits);
        for member in &self.members {
            if member.is_shown() {
                visitor.name(&member.shown);
                member.node.walk(cursor, memory, visitor)?;
            } else {
                member.node.walk(cursor, memory, &mut Blind)?;
            }
        }
        Ok(())
    }

    pub(crate) fn has_shown(&self) -> bool {
        self.members.is_empty() || self.members.iter().any(MemberNode::is_shown)
    }
}

impl MemberNode {
    fn is_shown(&self) -> bool {
        match &self.node {
            Node::Integer(integer) => matches!(integer.role, Role::None | Role::CpuId | Role::ClassId),
            _ => true,
        }
    }
}

impl Node {
    pub(crate) fn walk(
        &self,
        cursor: &mut Cursor<'_>,
        memory: &mut Memory,
        visitor: &mut impl Visitor,
    ) -> Result<(), FieldError> {
        match self {
            Node::Integer(integer) => visitor.integer(integer.read(cursor, memory)?, integer),
            Node::Float { size_bits, align_bits, order } => {
                cursor.align(*align_bits);
                let bits = cursor.number(*size_bits, *order)?;
                let is_single = *size_bits == 32;
                visitor.float(if is_single { f32::from_bits(bits as u32).into() } else { f64::from_bits(bits) });
            }
            Node::Text => {
                cursor.align(8);
                visitor.text(cursor.text()?);
            }
            Node::Struct(structure) => {
                visitor.open(Group::Struct);
                structure.walk(cursor, memory, visitor)?;
                visitor.close(Group::Struct);
            }
            Node::Variant { slot, is_tag_signed, options } => {
                let option = option_of(options, memory.slot(*slot), *is_tag_signed)?;
                visitor.open(Group::Variant);
                visitor.option(&option.shown);
                option.node.walk(cursor, memory, visitor)?;
                visitor.close(Group::Variant);
            }
            Node::Array { element, count, is_text } => {
                let count = count.get(memory);
                cursor.align(element.align_bits());
                if *is_text {
                    let text = cursor.byte_slice(count).ok_or(FieldError::Count(count))?;
                    cursor.skip(8 * count)?;
                    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
                    visitor.text(&text[..end]);
                    return Ok(());
                }
                visitor.open(Group::Array);
                for index in 0..count {
                    visitor.element(index);
                    let begin = cursor.position;
                    element.walk(cursor, memory, visitor)?;
                    if cursor.position == begin {
                        memory.note_empty()?;
                    }
                }
                visitor.close(Group::Array);
            }
        }
        Ok(())
    }
}

impl Count {
    #[inline(always)]
    pub(super) fn get(self, memory: &Memory) -> u64 {
        match self {
            Count::Fixed(count) => count,
            Count::Slot(slot) => memory.slot(slot),
        }
    }
}

/// Is shown fields and does not look.
pub(crate) struct Blind;

impl Visitor for Blind {
    fn name(&mut self, _: &str) {}
    fn element(&mut self, _: u64) {}
    fn integer(&mut self, _: u64, _: &IntegerNode) {}
    fn float(&mut self, _: f64) {}
    fn text(&mut self, _: &[u8]) {}
    fn open(&mut self, _: Group) {}
    fn close(&mut self, _: Group) {}
}
