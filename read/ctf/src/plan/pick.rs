//! Chosen fields of records. They are found once by name and then read by position, without the other fields.
//!
//! ```text
//!   names ─▶ Guide ─▶ steps to the field ─┬─▶ Pick: the value of one field, at any position         filters, groups, keys
//!            (once for each class)        └─▶ Projection: members, each for a visitor of its own    columns
//! ```
//! Steps go directly to constant positions. Fields in between are skipped by the same operations as whole records, and
//! fields after the last chosen one are not read.

use std::borrow::Cow;

use dormouse_abi::rule::value::shown_float;
use dormouse_filter::{Kind, Part};

use super::StreamPlan;
use super::bits::{Cursor, FieldError, extend_sign};
use super::class_table::Class;
use super::node::{Count, IntegerNode, Node, StructNode};
use super::program::{Assembler, Known, Operation, fixed_size, run};
use super::shape::FieldRef;
use super::walk::{FloatValue, Memory, Visitor, float, is_in, option_of, text};
use crate::model::{ByteOrder, Encoding, Range, Scope};

/// A step on the way to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Sets the position to an offset from the beginning of the contexts, in bits.
    At(u64),
    Pass(Box<[Operation]>),
    /// Requires that the tag's value is in the last of these ranges and in none of the earlier ones.
    Option {
        slot: u32,
        is_signed: bool,
        ranges: Box<[Vec<Range>]>,
    },
    /// Requires that the array has an element with this index.
    Element(Count, u64),
}

/// Whether the position or the value of a field can depend on other fields.
fn is_told(steps: &[Step], node: &Node) -> bool {
    let is_plain = match node {
        Node::Integer(_) | Node::Float(_) => true,
        Node::Text { count, .. } => !matches!(count, Some(Count::Slot(_))),
        Node::Array { element, count: Count::Fixed(_), .. } => matches!(**element, Node::Integer(_) | Node::Float(_)),
        _ => false,
    };
    !is_plain || !steps.iter().all(|step| matches!(step, Step::At(_)))
}

/// Takes the steps. Returns false if this record does not have the field.
#[inline]
fn go(steps: &[Step], begin: u64, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<bool, FieldError> {
    for step in steps {
        match step {
            Step::At(bits) => cursor.position = begin + bits,
            Step::Pass(operations) => run(operations, cursor, memory)?,
            Step::Option { slot, is_signed, ranges } => {
                let tag = memory.slot(*slot);
                if ranges.iter().position(|ranges| is_in(ranges, tag, *is_signed)) != Some(ranges.len() - 1) {
                    return Ok(false);
                }
            }
            Step::Element(count, index) if count.get(memory) <= *index => return Ok(false),
            Step::Element(..) => {}
        }
    }
    Ok(true)
}

/// Finder of the steps.
struct Guide {
    /// Operations that skip the fields since the last step.
    gap: Assembler,
    /// Offset of the end of the last step, if it is constant.
    from_begin: Option<u64>,
    steps: Vec<Step>,
}

impl Guide {
    fn new(known: Known) -> Guide {
        Guide { gap: Assembler::new(known), from_begin: Some(0), steps: Vec::new() }
    }

    fn arrive(&mut self) {
        let known = self.gap.known();
        let operations = std::mem::replace(&mut self.gap, Assembler::new(known)).finish();
        self.from_begin = self.from_begin.and_then(|bits| bits.checked_add(fixed_size(&operations)?));
        self.steps.push(self.from_begin.map_or(Step::Pass(operations), Step::At));
    }

    fn arrive_at(&mut self, node: &Node) {
        self.gap.align(node.align_bits());
        self.arrive();
    }

    /// Continues after a field that was visited.
    fn leave(&mut self, node: &Node) {
        let mut shown = Assembler::new(self.gap.known());
        shown.node(node);
        self.gap = Assembler::new(shown.known());
        let size = fixed_size(&shown.finish());
        self.from_begin = self.from_begin.and_then(|bits| bits.checked_add(size?));
    }

    fn lead_in<'n>(&mut self, structure: &'n StructNode, parts: &[Part]) -> Option<&'n Node> {
        let Some((Part::Member(name), rest)) = parts.split_first() else { return None };
        let index = structure.members.iter().position(|member| *member.shown == **name)?;
        self.gap.align(structure.align_bits);
        structure.members[..index].iter().for_each(|member| self.gap.node(&member.node));
        self.lead(&structure.members[index].node, rest)
    }

    fn lead<'n>(&mut self, node: &'n Node, parts: &[Part]) -> Option<&'n Node> {
        let Some((part, rest)) = parts.split_first() else { return Some(node) };
        match (node, part) {
            (Node::Struct(structure), _) => self.lead_in(structure, parts),
            (Node::Variant { slot, is_tag_signed, options }, Part::Member(name)) => {
                let index = options.iter().position(|option| *option.shown == **name)?;
                self.arrive();
                let ranges = options[..=index].iter().map(|option| option.ranges.clone()).collect();
                self.steps.push(Step::Option { slot: *slot, is_signed: *is_tag_signed, ranges });
                self.lead(&options[index].node, rest)
            }
            (Node::Optional { slot, is_selector_signed, ranges, node }, _) => {
                self.arrive();
                let ranges = [ranges.clone()].into();
                self.steps.push(Step::Option { slot: *slot, is_signed: *is_selector_signed, ranges });
                self.lead(node, parts)
            }
            (Node::Array { element, count, is_text: false, align_bits }, Part::Index(index)) => {
                if matches!(count, Count::Fixed(count) if index >= count) {
                    return None;
                }
                self.arrive();
                self.steps.push(Step::Element(*count, *index));
                self.gap.array(element, Count::Fixed(*index), *align_bits);
                self.lead(element, rest)
            }
            _ => None,
        }
    }
}

/// A field of the records of one class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    steps: Box<[Step]>,
    /// Offset and size of a plain number, see [`word`].
    word: Option<(u64, u32)>,
    node: Node,
    /// Whether the position or length of the field depends on other fields.
    is_told: bool,
}

/// Returns offset from the beginning of the contexts and size, in bits, if the field is a plain number at a constant
/// position.
fn word(steps: &[Step], node: &Node) -> Option<(u64, u32)> {
    let ([Step::At(bits)], Node::Integer(integer)) = (steps, node) else { return None };
    integer.word().map(|word| (*bits, word.size_bits))
}

/// Reads a plain number.
#[inline(always)]
fn number(
    begin: u64,
    (bits, size_bits): (u64, u32),
    integer: &IntegerNode,
    cursor: &mut Cursor<'_>,
) -> Result<u64, FieldError> {
    cursor.position = begin + bits;
    let value = cursor.number(size_bits, ByteOrder::Little)?;
    Ok(if integer.is_signed { extend_sign(value, size_bits) } else { value })
}

/// Value of a field.
#[derive(Debug, Clone)]
pub enum Picked<'a> {
    /// An integer; its bits are those of an `i64` if it is signed.
    Integer(u64, &'a IntegerNode),
    /// A floating-point number; one of 32 bits as [`shown_float`].
    Float(f64),
    /// Text, or an array of characters up to its first NUL.
    Text(Cow<'a, [u8]>),
}

impl StreamPlan {
    /// Finds a field and the kind of its value (`None` for a compound without a value of its own).
    pub(crate) fn pick(&self, class: &Class, scope: Scope, parts: &[Part]) -> Option<(Pick, Option<Kind>)> {
        let mut guide = Guide::new(self.known_behind_head());
        for (at, structure) in class.structures() {
            if at != scope {
                guide.gap.structure(structure);
                continue;
            }
            let node = guide.lead_in(structure, parts)?;
            guide.arrive_at(node);
            let kind = match node {
                Node::Integer(integer) if integer.labels.is_some() => Some(Kind::Enumeration),
                Node::Integer(_) | Node::Float(_) => Some(Kind::Number),
                Node::Text { .. } | Node::Array { is_text: true, .. } => Some(Kind::Text),
                // The kind depends on the value of another field.
                Node::Variant { .. } | Node::Optional { .. } => Some(Kind::Any),
                Node::Struct(_) | Node::Array { .. } | Node::Blob { .. } => None,
            };
            let is_told = is_told(&guide.steps, node);
            let word = word(&guide.steps, node);
            return Some((Pick { steps: guide.steps.into(), word, node: node.clone(), is_told }, kind));
        }
        None
    }
}

impl Pick {
    /// Whether the memory must hold the values of this record's header, and no values of other records.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Returns the description of the field.
    pub fn field(&self) -> FieldRef<'_> {
        FieldRef(&self.node)
    }

    /// Visits the field, if the record whose contexts begin at the cursor has it.
    pub(crate) fn show(
        &self,
        cursor: &mut Cursor<'_>,
        memory: &mut Memory,
        visitor: &mut impl Visitor,
    ) -> Result<(), FieldError> {
        let is_there = go(&self.steps, cursor.position, cursor, memory)?;
        if is_there { self.node.walk(cursor, memory, visitor) } else { Ok(()) }
    }

    /// Returns the value, if it is a number at a constant position.
    #[inline(always)]
    pub(crate) fn number(&self, cursor: &mut Cursor<'_>) -> Option<(u64, &IntegerNode)> {
        let (Some(word), Node::Integer(integer)) = (self.word, &self.node) else { return None };
        Some((number(cursor.position, word, integer, cursor).ok()?, integer))
    }

    /// Reads the field from a record whose contexts begin at the cursor. The record must be of the class for which the
    /// pick was made.
    pub(crate) fn read<'p, 'a: 'p>(&'p self, cursor: &mut Cursor<'a>, memory: &mut Memory) -> Option<Picked<'p>> {
        go(&self.steps, cursor.position, cursor, memory).ok()?.then(|| leaf(&self.node, cursor, memory))?
    }
}

/// Reads the field at the cursor.
fn leaf<'p, 'a: 'p>(node: &'p Node, cursor: &mut Cursor<'a>, memory: &mut Memory) -> Option<Picked<'p>> {
    match node {
        Node::Integer(integer) => Some(Picked::Integer(integer.read(cursor, memory).ok()?, integer)),
        Node::Float(class) => Some(Picked::Float(match float(class, cursor).ok()? {
            FloatValue::Single(value) => shown_float(value),
            FloatValue::Double(value) => value,
        })),
        Node::Text { encoding, count } => Some(Picked::Text(text(*encoding, *count, cursor, memory).ok()?)),
        Node::Array { count, is_text: true, align_bits, .. } => {
            cursor.align(*align_bits);
            let text = cursor.byte_slice(count.get(memory))?;
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            Some(Picked::Text(Cow::Borrowed(&text[..end])))
        }
        Node::Variant { slot, is_tag_signed, options } => {
            leaf(&option_of(options, memory.slot(*slot), *is_tag_signed).ok()?.node, cursor, memory)
        }
        Node::Optional { slot, is_selector_signed, ranges, node } => {
            is_in(ranges, memory.slot(*slot), *is_selector_signed).then(|| leaf(node, cursor, memory))?
        }
        Node::Struct(_) | Node::Array { .. } | Node::Blob { .. } => None,
    }
}

/// A chosen member.
#[derive(Debug, Clone)]
struct Projected {
    /// Steps from the end of the previous chosen member.
    steps: Box<[Step]>,
    /// Offset and size of a plain number, see [`word`].
    word: Option<(u64, u32)>,
    /// Index of its visitor.
    visitor: usize,
    node: Node,
}

/// Some members of a class, each with its visitor.
#[derive(Debug, Clone, Default)]
pub struct Projection {
    members: Box<[Projected]>,
    /// Whether the position or length of a member depends on other fields.
    is_told: bool,
}

impl Projection {
    /// Returns a projection. `chosen` has the index of the visitor for each member, in the order of the records.
    pub(crate) fn new(plan: &StreamPlan, class: &Class, chosen: &[Option<usize>]) -> Projection {
        let mut guide = Guide::new(plan.known_behind_head());
        let (mut chosen, mut members) = (chosen.iter(), Vec::new());
        for (_, structure) in class.structures() {
            guide.gap.align(structure.align_bits);
            for member in &structure.members {
                let Some(Some(visitor)) = chosen.next() else {
                    guide.gap.node(&member.node);
                    continue;
                };
                guide.arrive_at(&member.node);
                let steps: Box<[Step]> = std::mem::take(&mut guide.steps).into();
                let word = word(&steps, &member.node);
                members.push(Projected { steps, word, visitor: *visitor, node: member.node.clone() });
                guide.leave(&member.node);
            }
        }
        let is_told = members.iter().any(|member| is_told(&member.steps, &member.node));
        Projection { members: members.into(), is_told }
    }

    /// Whether the memory must hold the values of this record's header, and no values of other records.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Visits the members of the record whose contexts begin at the cursor.
    #[inline]
    pub(crate) fn show<V: Visitor>(
        &self,
        cursor: &mut Cursor<'_>,
        memory: &mut Memory,
        visitors: &mut [V],
    ) -> Result<(), FieldError> {
        let begin = cursor.position;
        for Projected { steps, word, visitor, node } in &self.members {
            let Some(visitor) = visitors.get_mut(*visitor) else { continue };
            match (node, word) {
                (Node::Integer(integer), Some(word)) => {
                    visitor.integer(number(begin, *word, integer, cursor)?, integer)
                }
                _ => {
                    go(steps, begin, cursor, memory)?;
                    node.walk(cursor, memory, visitor)?;
                }
            }
        }
        Ok(())
    }

    /// Visits the members with one visitor. `tell` is called before each one with its chosen index.
    #[inline(always)]
    pub(crate) fn show_in_turn<V: Visitor>(
        &self,
        cursor: &mut Cursor<'_>,
        memory: &mut Memory,
        visitor: &mut V,
        mut tell: impl FnMut(&mut V, usize),
    ) -> Result<(), FieldError> {
        let begin = cursor.position;
        for Projected { steps, word, visitor: index, node } in &self.members {
            tell(visitor, *index);
            // The most frequent kinds of field are read without a call.
            match (node, word) {
                (Node::Integer(integer), Some(word)) => {
                    visitor.integer(number(begin, *word, integer, cursor)?, integer)
                }
                (Node::Text { encoding: Encoding::Utf8, count: None }, _) => {
                    go(steps, begin, cursor, memory)?;
                    cursor.align(8);
                    visitor.text(cursor.text()?);
                }
                (Node::Integer(integer), None) if !integer.is_variable() => {
                    go(steps, begin, cursor, memory)?;
                    visitor.integer(integer.read(cursor, memory)?, integer);
                }
                _ => {
                    go(steps, begin, cursor, memory)?;
                    node.walk(cursor, memory, visitor)?;
                }
            }
        }
        Ok(())
    }
}
