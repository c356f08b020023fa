//! Headers of event records: class and time.

use super::bits::{Cursor, FieldError, mask, read};
use super::node::{IntegerNode, Node, StructNode};
use super::program::Known;
use super::walk::{Group, Memory, Visitor};
use crate::model::{ByteOrder, Coding, Role};

/// Time of a record as its header has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Time {
    /// The header has no time.
    #[default]
    None,
    /// The low bits of the time, and their number, which is below 64.
    Low(u64, u32),
    Full(u64),
}

impl Time {
    fn new(value: u64, size_bits: u32) -> Time {
        if size_bits == 64 { Time::Full(value) } else { Time::Low(value, size_bits) }
    }

    /// Returns the time of a record after one at `before`, or `None` if there is none.
    #[inline(always)]
    pub(crate) fn after(self, before: u64) -> Option<u64> {
        match self {
            Time::None => Some(before),
            Time::Low(low, bits) => extend(before, low, bits),
            Time::Full(timestamp) => (timestamp >= before).then_some(timestamp),
        }
    }
}

/// Returns the first time at or after `before` whose low `bits` bits are `low`.
#[inline(always)]
fn extend(before: u64, low: u64, bits: u32) -> Option<u64> {
    let span = 1u64 << bits;
    let timestamp = before & !(span - 1) | low;
    if timestamp >= before { Some(timestamp) } else { timestamp.checked_add(span) }
}

/// Content of a record header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said {
    pub id: u64,
    pub time: Time,
}

/// A number at a constant position of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Offset from the header's first byte, in bits.
    bit: u32,
    size_bits: u32,
    order: ByteOrder,
    /// Whether the number is in the header's first 64 bits and little-endian.
    is_in_word: bool,
}

impl Place {
    /// Reads the number. `word` is the header's first 64 bits, if there are that many.
    #[inline(always)]
    fn get(&self, header: &[u8], word: Option<u64>) -> u64 {
        match word {
            Some(word) if self.is_in_word => word >> self.bit & mask(self.size_bits),
            _ => read(header, self.bit.into(), self.size_bits, self.order),
        }
    }
}

/// Positions of id and time in a header, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    size_bits: u64,
    id: Option<Place>,
    time: Option<Place>,
}

/// Reader for the id and the time of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// All positions are constant, or depend on the value of one tag.
    Table { align_bits: u64, tag: Option<Place>, rows: Vec<((u64, u64), Layout)>, short: Option<Short> },
    /// The whole structure must be read.
    Structure,
}

/// The form of header that most records have, if its content is in one word. Records with another header are read by
/// the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Short {
    /// Position of the tag, and the range of its values.
    pub tag: Part,
    pub bounds: (u64, u64),
    pub id: Part,
    pub time: Part,
    time_bits: u32,
    pub size_bits: u64,
}

/// A part of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub shift: u32,
    pub mask: u64,
}

impl Part {
    fn new(place: &Place) -> Option<Part> {
        place.is_in_word.then_some(Part { shift: place.bit, mask: mask(place.size_bits) })
    }

    #[inline(always)]
    pub(super) fn get(self, word: u64) -> u64 {
        word >> self.shift & self.mask
    }

    /// Returns the mask of this part within the word.
    pub(super) fn in_place(self) -> u64 {
        self.mask << self.shift
    }
}

impl Short {
    fn new(align_bits: u64, tag: Option<&Place>, (bounds, layout): &((u64, u64), Layout)) -> Option<Short> {
        let is_bytes = align_bits == 8 && layout.size_bits.is_multiple_of(8);
        let time = layout.time.as_ref().filter(|time| is_bytes && time.size_bits < u64::BITS)?;
        let nothing = Part { shift: 0, mask: 0 };
        Some(Short {
            tag: tag.map_or(Some(nothing), Part::new)?,
            bounds: *bounds,
            // Without an id, the tag is the id.
            id: layout.id.as_ref().or(tag).map_or(Some(nothing), Part::new)?,
            time: Part::new(time)?,
            time_bits: time.size_bits,
            size_bits: layout.size_bits,
        })
    }

    /// Returns the content of the header with these first 64 bits, if it has this form.
    #[inline(always)]
    pub(super) fn said(&self, word: u64) -> Option<Said> {
        let tag = self.tag.get(word);
        let is_it = self.bounds.0 <= tag && tag <= self.bounds.1;
        is_it.then(|| Said { id: self.id.get(word), time: Time::Low(self.time.get(word), self.time_bits) })
    }
}

/// Maximum size of a header that is read by a table, in bits.
const SIZE_BITS_MAX: u64 = 1 << 12;

impl Head {
    pub(super) fn new(header: &StructNode) -> Head {
        let mut head = table(header).unwrap_or(Head::Structure);
        if let Head::Table { align_bits, tag, rows, short } = &mut head {
            *short = rows.first().and_then(|row| Short::new(*align_bits, tag.as_ref(), row));
        }
        head
    }

    /// Returns the short form of the header, if there is one.
    #[inline(always)]
    pub(super) fn short(&self) -> Option<&Short> {
        if let Head::Table { short, .. } = self { short.as_ref() } else { None }
    }

    /// Returns the known alignment of the position after a header.
    pub(super) fn known_behind(&self) -> Known {
        match self {
            Head::Table { align_bits, rows, .. } => match rows.as_slice() {
                [(_, layout)] => Known { modulus: *align_bits, rest: layout.size_bits % align_bits },
                _ if rows.iter().all(|(_, layout)| layout.size_bits.is_multiple_of(8)) => Known { modulus: 8, rest: 0 },
                _ => Known::NOTHING,
            },
            Head::Structure => Known::NOTHING,
        }
    }

    /// Returns the size in bytes of the first header form for this id. If there is a tag, only forms whose id is the
    /// tag are considered.
    pub(super) fn smallest_size_bytes(&self, id: u64) -> Option<u64> {
        let Head::Table { tag, rows, .. } = self else { return None };
        let row = rows
            .iter()
            .find(|((first, last), layout)| tag.is_none() || layout.id.is_none() && (*first..=*last).contains(&id));
        row.map(|(_, layout)| layout.size_bits / 8)
    }

    /// Reads the header at the cursor and advances past it.
    #[inline(always)]
    pub(super) fn read(
        &self,
        header: &StructNode,
        cursor: &mut Cursor<'_>,
        memory: &mut Memory,
    ) -> Result<Said, FieldError> {
        if let Head::Table { align_bits, tag, rows, .. } = self {
            cursor.align(*align_bits);
            let (bytes, word) = (cursor.tail(), cursor.word());
            let value = match tag {
                Some(tag) if u64::from(tag.bit + tag.size_bits) <= 8 * bytes.len() as u64 => tag.get(bytes, word),
                Some(_) => return Err(FieldError::Cut),
                None => 0,
            };
            let row = rows.iter().find(|((first, last), _)| *first <= value && value <= *last);
            let Some((_, layout)) = row else { return Err(FieldError::Tag(value.into())) };
            cursor.skip(layout.size_bits)?;
            let id = layout.id.as_ref().map_or(value, |id| id.get(bytes, word));
            let time = layout.time.as_ref().map_or(Time::None, |time| Time::new(time.get(bytes, word), time.size_bits));
            return Ok(Said { id, time });
        }
        let mut found = Found { said: Said { id: 0, time: Time::None }, variable_bits: 0 };
        memory.begin_header();
        header.walk(cursor, memory, &mut found)?;
        Ok(found.said)
    }
}

/// Returns the table of a header whose numbers are at constant positions after at most one tag.
fn table(header: &StructNode) -> Option<Head> {
    let align_bits = header.align_bits;
    if !align_bits.is_multiple_of(8) && !header.members.is_empty() {
        return None;
    }
    let mut layout = Layout { size_bits: 0, id: None, time: None };
    let mut tag = None;
    for (index, member) in header.members.iter().enumerate() {
        match &member.node {
            Node::Variant { slot, is_tag_signed: false, options } if index + 1 == header.members.len() => {
                let (tag_slot, place): (u32, Place) = tag?;
                if tag_slot != *slot || layout.time.is_some() {
                    return None;
                }
                let mut rows = Vec::new();
                for option in options {
                    let Node::Struct(structure) = &option.node else { return None };
                    // The tag is the id, unless the option has an id.
                    let mut row = Layout { id: None, ..layout.clone() };
                    add(structure, &mut row, align_bits)?;
                    if row.id.is_none() && layout.id != Some(place) {
                        return None;
                    }
                    let bound = |bound: i128| u64::try_from(bound).ok();
                    for range in &option.ranges {
                        rows.push(((bound(range.bounds.0)?, bound(range.bounds.1)?), row.clone()));
                    }
                }
                return Some(Head::Table { align_bits: align_bits.max(8), tag: Some(place), rows, short: None });
            }
            node => {
                let found = scalar(node, &mut layout, align_bits)?;
                if let Node::Integer(integer) = node
                    && let (Some(slot), false) = (integer.slot, integer.is_signed)
                {
                    // A tag that is used after the header must be read into its slot.
                    if tag.is_some() || (slot as usize) < super::node::OUTER_COUNT {
                        return None;
                    }
                    tag = Some((slot, found));
                }
            }
        }
    }
    if tag.is_some() {
        return None;
    }
    Some(Head::Table { align_bits: align_bits.max(8), tag: None, rows: vec![((0, 0), layout)], short: None })
}

fn add(structure: &StructNode, layout: &mut Layout, align_bits: u64) -> Option<()> {
    pad(structure.align_bits, layout, align_bits)?;
    structure.members.iter().try_for_each(|member| {
        if matches!(&member.node, Node::Integer(integer) if integer.slot.is_some()) {
            return None;
        }
        scalar(&member.node, layout, align_bits).map(|_| ())
    })
}

/// Pads the layout to the field's alignment, if the result does not depend on the position of the header.
fn pad(field_align_bits: u64, layout: &mut Layout, align_bits: u64) -> Option<()> {
    if field_align_bits > align_bits {
        return None;
    }
    layout.size_bits = layout.size_bits.next_multiple_of(field_align_bits);
    (layout.size_bits <= SIZE_BITS_MAX).then_some(())
}

fn scalar(node: &Node, layout: &mut Layout, align_bits: u64) -> Option<Place> {
    let (size_bits, order, integer) = match node {
        Node::Integer(integer) if integer.coding == Coding::Plain => (integer.size_bits, integer.order, Some(integer)),
        Node::Float(float) => (float.size_bits, float.byte_order, None),
        _ => return None,
    };
    pad(node.align_bits(), layout, align_bits)?;
    let bit = layout.size_bits as u32;
    let place = Place { bit, size_bits, order, is_in_word: order == ByteOrder::Little && bit + size_bits <= u64::BITS };
    layout.size_bits += u64::from(size_bits);
    if let Some(integer) = integer {
        if integer.roles.has(Role::ClassId) && !integer.is_signed {
            layout.id = Some(place);
        }
        if integer.is_time {
            layout.time = Some(place);
        }
    }
    Some(place)
}

/// Last id and last time that a header has.
struct Found {
    said: Said,
    /// Size of the next variable-length number, in bits.
    variable_bits: u32,
}

impl Visitor for Found {
    fn integer(&mut self, value: u64, class: &IntegerNode) {
        if class.roles.has(Role::ClassId) {
            self.said.id = value;
        }
        if class.is_time {
            let size_bits = class.time_bits(self.variable_bits);
            self.said.time = Time::new(value & mask(size_bits), size_bits);
        }
    }
    fn variable(&mut self, size_bits: u32) {
        self.variable_bits = size_bits;
    }
    fn name(&mut self, _: &str) {}
    fn element(&mut self, _: u64) {}
    fn float(&mut self, _: f64) {}
    fn text(&mut self, _: &[u8]) {}
    fn open(&mut self, _: Group) {}
    fn close(&mut self, _: Group) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_extend_to_the_first_time_not_before() {
        let span = 1u64 << 48;
        assert_eq!(extend(5, 5, 48), Some(5));
        assert_eq!(extend(5, 4, 48), Some(span + 4));
        assert_eq!(extend(3 * span - 1, 0, 48), Some(3 * span));
        assert_eq!(extend(3 * span - 1, 0, 32), Some(3 * span));
        assert_eq!(extend(3 * span, 7, 32), Some(3 * span + 7));
        assert_eq!(extend(u64::MAX, 0, 48), None);
    }
}
