//! Reads fields one after another and passes each to a visitor.

use std::borrow::Cow;

use dormouse_abi::rule::value::shown_float;

use super::bits::{Cursor, FieldError, extend_sign, reversed};
use super::node::{Count, IntegerNode, MemberNode, Node, OUTER_COUNT, OptionNode, StructNode};
use crate::model::{ByteOrder, Coding, Encoding, Float, Range, Role, Roles};

/// Maximum number of elements of size zero in a record (structures without members, for example). They take no bytes of
/// the stream.
const EMPTY_COUNT_MAX: u64 = 1 << 10;

/// A group of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Group {
    Struct,
    Variant,
    Array,
    /// An optional field that is present.
    Optional,
}

/// Visitor for the fields of a structure, in order.
pub trait Visitor {
    /// Announces the name of the next field.
    fn name(&mut self, name: &str);
    /// Announces that the next field is the option of a variant, with this name.
    fn option(&mut self, _name: &str) {}
    /// Announces that the next field is the element with this index.
    fn element(&mut self, index: u64);
    /// Visits an integer, whose bits are those of an `i64` if it is signed.
    fn integer(&mut self, value: u64, class: &IntegerNode);
    /// Visits a floating-point number.
    fn float(&mut self, value: f64);
    /// Visits a floating-point number of 32 bits. Without this method, it is visited as [`shown_float`].
    fn single(&mut self, value: f32) {
        self.float(shown_float(value));
    }
    /// Announces that the next number has variable length and was encoded in this many bits.
    fn variable(&mut self, _size_bits: u32) {}
    /// Visits text, or an array of characters up to its first NUL. Other encodings than ASCII and UTF-8 are converted
    /// to UTF-8.
    fn text(&mut self, text: &[u8]);
    /// Visits bytes. `is_uuid` says that they are the trace's UUID.
    fn blob(&mut self, _bytes: &[u8], _is_uuid: bool) {}
    /// Stands for an absent field.
    fn absent(&mut self) {}
    /// Opens a group. The following fields belong to it until it is closed.
    fn open(&mut self, group: Group);
    /// Closes the last opened group.
    fn close(&mut self, group: Group);
}

/// Values that later fields depend on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    slots: Vec<u64>,
    empty: u64,
}

impl Memory {
    /// Returns a memory with the values of the outer slots.
    pub(crate) fn with_outer(outer: &[u64; OUTER_COUNT]) -> Memory {
        Memory { slots: outer.to_vec(), ..Memory::default() }
    }

    /// Resets the memory to these values of the outer slots.
    pub(crate) fn restart(&mut self, outer: &[u64; OUTER_COUNT]) {
        self.slots.clear();
        self.slots.extend_from_slice(outer);
        self.empty = 0;
    }

    #[inline(always)]
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

    /// Starts a record's header.
    pub(super) fn begin_header(&mut self) {
        self.empty = 0;
    }

    /// Starts a record's contexts and fields. The values of the previous record are cleared, so that the result is the
    /// same as for a record that is read alone.
    pub(crate) fn begin(&mut self) {
        self.empty = 0;
        if let Some(own) = self.slots.get_mut(OUTER_COUNT..) {
            own.fill(0);
        }
    }

    #[inline]
    pub(super) fn note_empty(&mut self) -> Result<(), FieldError> {
        self.empty += 1;
        if self.empty > EMPTY_COUNT_MAX { Err(FieldError::Endless) } else { Ok(()) }
    }
}

/// Returns the first time at or after `time` with these low bits. A full 64-bit time is returned unchanged.
pub(crate) fn advance(time: u64, low: u64, size_bits: u32) -> u64 {
    if size_bits >= 64 {
        return low;
    }
    let span = 1u64 << size_bits;
    let next = time & !(span - 1) | low;
    if next >= time { next } else { next.wrapping_add(span) }
}

#[inline]
pub(super) fn is_in(ranges: &[Range], value: u64, is_signed: bool) -> bool {
    ranges.iter().any(|range| range.contains(value, is_signed))
}

#[inline]
pub(super) fn option_of(options: &[OptionNode], tag: u64, is_signed: bool) -> Result<&OptionNode, FieldError> {
    let found = options.iter().find(|option| is_in(&option.ranges, tag, is_signed));
    found.ok_or(FieldError::Tag(if is_signed { i128::from(tag as i64) } else { i128::from(tag) }))
}

impl IntegerNode {
    pub(super) fn is_variable(&self) -> bool {
        self.coding == Coding::Variable
    }

    /// Reads the number and stores it in its slot.
    #[inline(always)]
    pub(super) fn read(&self, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<u64, FieldError> {
        Ok(self.read_bits(cursor, memory)?.0)
    }

    /// Reads the number like `read`. Also returns the number of bits that were read.
    #[inline(always)]
    fn read_bits(&self, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<(u64, u32), FieldError> {
        cursor.align(self.align_bits);
        let (value, size_bits) = match self.coding {
            Coding::Variable => cursor.leb128(self.is_signed)?,
            coding => {
                let mut value = cursor.number(self.size_bits, self.order)?;
                if coding == Coding::Reversed {
                    value = reversed(value, self.size_bits);
                }
                (if self.is_signed { extend_sign(value, self.size_bits) } else { value }, self.size_bits)
            }
        };
        if let Some(slot) = self.slot {
            memory.set(slot, value);
        }
        Ok((value, size_bits))
    }
}

/// A floating-point number, in the size in which a record has it.
pub(super) enum FloatValue {
    Single(f32),
    /// A number of 16 or 64 bits.
    Double(f64),
}

#[inline]
pub(super) fn float(float: &Float, cursor: &mut Cursor<'_>) -> Result<FloatValue, FieldError> {
    cursor.align(float.align_bits);
    let mut bits = cursor.number(float.size_bits, float.byte_order)?;
    if float.is_reversed {
        bits = reversed(bits, float.size_bits);
    }
    Ok(match float.size_bits {
        16 => FloatValue::Double(half(bits)),
        32 => FloatValue::Single(f32::from_bits(bits as u32)),
        _ => FloatValue::Double(f64::from_bits(bits)),
    })
}

/// Converts IEEE 754 binary16: a sign, 5 bits of exponent, 10 of significand.
fn half(bits: u64) -> f64 {
    let (exponent, significand) = (bits >> 10 & 0x1F, (bits & 0x3FF) as f64 / 1024.0);
    let magnitude = match exponent {
        0 => significand * 2f64.powi(-14),
        0x1F if significand == 0.0 => f64::INFINITY,
        0x1F => f64::NAN,
        _ => (1.0 + significand) * 2f64.powi(exponent as i32 - 15),
    };
    if bits >> 15 & 1 == 1 { -magnitude } else { magnitude }
}

/// Returns text up to its first NUL, in UTF-8. Invalid characters become U+FFFD.
#[inline]
fn decoded(bytes: &[u8], encoding: Encoding) -> Cow<'_, [u8]> {
    let wide: String = match encoding {
        Encoding::Utf8 => {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            return Cow::Borrowed(&bytes[..end]);
        }
        Encoding::Utf16(order) => {
            let units = bytes.as_chunks::<2>().0.iter().map(|unit| match order {
                ByteOrder::Little => u16::from_le_bytes(*unit),
                ByteOrder::Big => u16::from_be_bytes(*unit),
            });
            let units = units.take_while(|unit| *unit != 0);
            char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
        Encoding::Utf32(order) => {
            let units = bytes.as_chunks::<4>().0.iter().map(|unit| match order {
                ByteOrder::Little => u32::from_le_bytes(*unit),
                ByteOrder::Big => u32::from_be_bytes(*unit),
            });
            let units = units.take_while(|unit| *unit != 0);
            units.map(|unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
    };
    Cow::Owned(wide.into_bytes())
}

/// Reads text that ends with its NUL, or that has `count` bytes.
#[inline]
pub(super) fn text<'a>(
    encoding: Encoding,
    count: Option<Count>,
    cursor: &mut Cursor<'a>,
    memory: &Memory,
) -> Result<Cow<'a, [u8]>, FieldError> {
    cursor.align(8);
    let bytes = match (count, encoding) {
        (Some(count), _) => cursor.take_bytes(count.get(memory))?,
        (None, Encoding::Utf8) => cursor.text()?,
        (None, encoding) => cursor.wide_text(encoding.unit_size_bytes())?,
    };
    Ok(decoded(bytes, encoding))
}

impl StructNode {
    /// Visits the members.
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
    /// Visits the members except those that only describe packets and records.
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
        const SHOWN: Roles = Roles::NONE.with(Role::CpuId).with(Role::ClassId);
        match &self.node {
            Node::Integer(integer) => integer.roles.is_within(SHOWN),
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
            Node::Integer(integer) => {
                let (value, size_bits) = integer.read_bits(cursor, memory)?;
                if integer.coding == Coding::Variable {
                    visitor.variable(size_bits);
                }
                visitor.integer(value, integer);
            }
            Node::Float(class) => match float(class, cursor)? {
                FloatValue::Single(value) => visitor.single(value),
                FloatValue::Double(value) => visitor.float(value),
            },
            Node::Text { encoding, count } => visitor.text(&text(*encoding, *count, cursor, memory)?),
            Node::Blob { count, is_uuid } => {
                cursor.align(8);
                visitor.blob(cursor.take_bytes(count.get(memory))?, *is_uuid);
            }
            Node::Optional { slot, is_selector_signed, ranges, node } => {
                if is_in(ranges, memory.slot(*slot), *is_selector_signed) {
                    visitor.open(Group::Optional);
                    node.walk(cursor, memory, visitor)?;
                    visitor.close(Group::Optional);
                } else {
                    visitor.absent();
                }
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
            Node::Array { element, count, is_text, align_bits } => {
                let count = count.get(memory);
                cursor.align(*align_bits);
                if *is_text {
                    visitor.text(&decoded(cursor.take_bytes(count)?, Encoding::Utf8));
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

/// A visitor that ignores all fields.
pub(crate) struct Blind;

impl Visitor for Blind {
    fn name(&mut self, _: &str) {}
    fn element(&mut self, _: u64) {}
    fn integer(&mut self, _: u64, _: &IntegerNode) {}
    fn float(&mut self, _: f64) {}
    fn single(&mut self, _: f32) {}
    fn text(&mut self, _: &[u8]) {}
    fn open(&mut self, _: Group) {}
    fn close(&mut self, _: Group) {}
}
