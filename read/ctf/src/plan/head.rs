//! Headers of event records: which class, and when.

use super::bits::{Cursor, FieldError, mask, read};
use super::node::{IntegerNode, Node, StructNode};
use super::program::Known;
use super::walk::{Group, Memory, Visitor};
use crate::model::{ByteOrder, Coding, Role};

/// A record's time, as its header has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Time {
    /// It has none.
    #[default]
    None,
    /// So many low bits of it, fewer than 64.
    Low(u64, u32),
    Full(u64),
}

impl Time {
    fn new(value: u64, size_bits: u32) -> Time {
        if size_bits == 64 { Time::Full(value) } else { Time::Low(value, size_bits) }
    }

    /// The time, that of the record before being `before`; `None` if there is none.
    #[inline(always)]
    pub(crate) fn after(self, before: u64) -> Option<u64> {
        match self {
            Time::None => Some(before),
            Time::Low(low, bits) => extend(before, low, bits),
            Time::Full(timestamp) => (timestamp >= before).then_some(timestamp),
        }
    }
}

/// The first time at or after `before` whose low `bits` bits are `low`.
#[inline(always)]
fn extend(before: u64, low: u64, bits: u32) -> Option<u64> {
    let span = 1u64 << bits;
    let timestamp = before & !(span - 1) | low;
    if timestamp >= before { Some(timestamp) } else { timestamp.checked_add(span) }
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said {
    pub id: u64,
    pub time: Time,
}

/// A number at a constant place of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// From the header's first byte.
    bit: u32,
    size_bits: u32,
    order: ByteOrder,
    /// Whether it is in the header's first 64 bits, as a little-endian word has them.
    is_in_word: bool,
}

impl Place {
    /// `word`: the header's first 64 bits, if there are so many.
    #[inline(always)]
    fn get(&self, header: &[u8], word: Option<u64>) -> u64 {
        match word {
            Some(word) if self.is_in_word => word >> self.bit & mask(self.size_bits),
            _ => read(header, self.bit.into(), self.size_bits, self.order),
        }
    }
}

/// Where a header has what is looked for, and where it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    size_bits: u64,
    id: Option<Place>,
    time: Option<Place>,
}

/// Finds the id and the time of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// Everything is at one place, or, by the value of a tag, at one of several.
    Table { align_bits: u64, tag: Option<Place>, rows: Vec<((u64, u64), Layout)>, short: Option<Short> },
    /// The structure is read.
    Structure,
}

/// The header that most records have, if all that it says is in one word: records that have another one are read by the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Short {
    /// Where the tag is, and between what values it is.
    pub tag: Part,
    pub bounds: (u64, u64),
    pub id: Part,
    pub time: Part,
    time_bits: u32,
    pub size_bits: u64,
}

/// Bits of a word.
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

    /// Its bits of the word.
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
            // Without an id the tag is it.
            id: layout.id.as_ref().or(tag).map_or(Some(nothing), Part::new)?,
            time: Part::new(time)?,
            time_bits: time.size_bits,
            size_bits: layout.size_bits,
        })
    }

    /// What the header says whose first 64 bits these are, if it is one of these.
    #[inline(always)]
    pub(super) fn said(&self, word: u64) -> Option<Said> {
        let tag = self.tag.get(word);
        let is_it = self.bounds.0 <= tag && tag <= self.bounds.1;
        is_it.then(|| Said { id: self.id.get(word), time: Time::Low(self.time.get(word), self.time_bits) })
    }
}

/// No header has a larger table.
const SIZE_BITS_MAX: u64 = 1 << 12;

impl Head {
    pub(super) fn new(header: &StructNode) -> Head {
        let mut head = table(header).unwrap_or(Head::Structure);
        if let Head::Table { align_bits, tag, rows, short } = &mut head {
            *short = rows.first().and_then(|row| Short::new(*align_bits, tag.as_ref(), row));
        }
        head
    }

    /// The header that most records have, if it is a short one.
    #[inline(always)]
    pub(super) fn short(&self) -> Option<&Short> {
        if let Head::Table { short, .. } = self { short.as_ref() } else { None }
    }

    /// What is known of the position behind a header.
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

    /// The sizes of a record's header by the ids whose records have such, in bytes; of the ids that are in the tag.
    pub(super) fn smallest_size_bytes(&self, id: u64) -> Option<u64> {
        let Head::Table { tag, rows, .. } = self else { return None };
        let row = rows
            .iter()
            .find(|((first, last), layout)| tag.is_none() || layout.id.is_none() && (*first..=*last).contains(&id));
        row.map(|(_, layout)| layout.size_bits / 8)
    }

    /// Reads the header at the cursor, and passes it.
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

/// The table of a header whose numbers are at constant places, behind at most one tag.
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
                    // The id is the tag, unless the option has one.
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
                    // One that outlasts the header is to be read.
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

/// Goes on to the next place that a field may be at, if that is the same wherever the header is.
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

/// The last id and the last time that a header shows.
struct Found {
    said: Said,
    /// Of the number of variable length that comes next.
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
