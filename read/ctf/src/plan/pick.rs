//! Single fields of records: found once by their names, and then read by their places.

use std::borrow::Cow;

use super::StreamPlan;
use super::bits::Cursor;
use super::class::Class;
use super::node::{Count, IntegerNode, MemberNode, Node, StructNode};
use super::program::{fixed_size, program};
use super::walk::{Blind, Memory, float, is_in, option_of, text};

/// Which of the structures of a record, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Section {
    EventContext,
    OwnContext,
    Fields,
}

/// A step towards a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'n> {
    /// The member of a structure, or the option of a variant.
    Name(&'n str),
    /// The element of an array.
    Index(u64),
}

/// Where a field of the records of one class is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    section: Section,
    path: Box<[u64]>,
    /// Bits from the beginning of the contexts, where no value changes that; the field's alignment comes on top.
    offset: Option<u64>,
}

/// What a field is, as far as its class says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PickedKind {
    Number,
    Enumeration,
    Text,
    /// A variant, or a field that is there or not: what another field says.
    Any,
}

/// The value of a field.
#[derive(Debug, Clone)]
pub enum Picked<'a> {
    /// A whole number; an `i64`, if it is signed.
    Integer(u64, &'a IntegerNode),
    /// A floating-point number.
    Float(f64),
    /// Text, or an array of characters up to its first NUL.
    Text(Cow<'a, [u8]>),
}

impl Class {
    fn sections(&self) -> [(Section, Option<&StructNode>); 3] {
        [
            (Section::EventContext, self.event_context.as_ref()),
            (Section::OwnContext, self.own_context.as_ref()),
            (Section::Fields, self.fields.as_ref()),
        ]
    }

    /// The names of a section's members.
    pub fn names(&self, section: Section) -> impl Iterator<Item = &str> {
        let structure = self.sections()[section as usize].1;
        structure.into_iter().flat_map(|structure| structure.members.iter().map(|member| &*member.shown))
    }
}

impl StreamPlan {
    /// Finds a field that is a number or text, or a variant.
    pub(crate) fn pick(&self, class: &Class, section: Section, steps: &[Step<'_>]) -> Option<(Pick, PickedKind)> {
        let structure = class.sections()[section as usize].1?;
        let mut path = Vec::new();
        let node = find(structure, steps, &mut path)?;
        let kind = match node {
            Node::Integer(integer) if integer.labels.is_some() => PickedKind::Enumeration,
            Node::Integer(_) | Node::Float(_) => PickedKind::Number,
            Node::Text { .. } | Node::Array { is_text: true, .. } => PickedKind::Text,
            Node::Variant { .. } | Node::Optional { .. } => PickedKind::Any,
            Node::Struct(_) | Node::Array { .. } | Node::Blob { .. } => return None,
        };
        // What refers to another field is read together with it.
        let is_alone = !matches!(
            node,
            Node::Variant { .. }
                | Node::Optional { .. }
                | Node::Array { count: Count::Slot(_), .. }
                | Node::Text { count: Some(Count::Slot(_)), .. }
        );
        let earlier =
            class.sections().into_iter().take(section as usize).filter_map(|(_, structure)| structure.cloned());
        let before = before(structure, &path).filter(|_| is_alone);
        let offset = before.and_then(|before| {
            let structures: Vec<StructNode> = earlier.chain([before]).collect();
            fixed_size(&program(&structures, self.head.known_behind()))
        });
        Some((Pick { section, path: path.into(), offset }, kind))
    }
}

fn find<'a>(structure: &'a StructNode, steps: &[Step<'_>], path: &mut Vec<u64>) -> Option<&'a Node> {
    let Some((Step::Name(name), rest)) = steps.split_first() else { return None };
    let index = structure.members.iter().position(|member| *member.shown == **name)?;
    path.push(index as u64);
    find_in(&structure.members[index].node, rest, path)
}

fn find_in<'a>(node: &'a Node, steps: &[Step<'_>], path: &mut Vec<u64>) -> Option<&'a Node> {
    let Some((step, rest)) = steps.split_first() else { return Some(node) };
    match (node, step) {
        (Node::Struct(structure), _) => find(structure, steps, path),
        (Node::Variant { options, .. }, Step::Name(name)) => {
            let index = options.iter().position(|option| *option.shown == **name)?;
            path.push(index as u64);
            find_in(&options[index].node, rest, path)
        }
        (Node::Optional { node, .. }, _) => {
            path.push(0);
            find_in(node, steps, path)
        }
        (Node::Array { element, count, is_text: false, .. }, Step::Index(index)) => {
            path.push(*index);
            let is_there = !matches!(count, Count::Fixed(count) if index >= count);
            is_there.then(|| find_in(element, rest, path))?
        }
        _ => None,
    }
}

/// What stands before a field; `None` if that is not the same in all records.
fn before(structure: &StructNode, path: &[u64]) -> Option<StructNode> {
    let (index, rest) = path.split_first()?;
    let mut members = structure.members[..*index as usize].to_vec();
    if !rest.is_empty() {
        let MemberNode { shown, node } = &structure.members[*index as usize];
        members.push(MemberNode { shown: shown.clone(), node: before_in(node, rest)? });
    }
    Some(StructNode { align_bits: structure.align_bits, members })
}

fn before_in(node: &Node, path: &[u64]) -> Option<Node> {
    match (node, path) {
        (Node::Struct(structure), path) => before(structure, path).map(Node::Struct),
        (Node::Array { element, count: Count::Fixed(_), is_text, align_bits }, [index]) => Some(Node::Array {
            element: element.clone(),
            count: Count::Fixed(*index),
            is_text: *is_text,
            align_bits: *align_bits,
        }),
        _ => None,
    }
}

impl Pick {
    /// Whether no other field has to be read for it.
    pub(crate) fn is_fixed(&self) -> bool {
        self.offset.is_some()
    }

    /// Reads it from a record of the class for which it was made, whose contexts begin at the cursor.
    pub(crate) fn read<'a>(
        &self,
        class: &'a Class,
        cursor: &mut Cursor<'a>,
        memory: &mut Memory,
    ) -> Option<Picked<'a>> {
        let structure = class.sections()[self.section as usize].1?;
        match self.offset {
            Some(offset) => {
                cursor.skip(offset).ok()?;
                leaf(at(structure, &self.path)?, cursor, memory)
            }
            None => {
                for (_, earlier) in class.sections().into_iter().take(self.section as usize) {
                    earlier.map_or(Ok(()), |earlier| earlier.walk(cursor, memory, &mut Blind)).ok()?;
                }
                leaf(reach(structure, &self.path, cursor, memory)?, cursor, memory)
            }
        }
    }
}

/// The node that a path leads to.
fn at<'a>(structure: &'a StructNode, path: &[u64]) -> Option<&'a Node> {
    let (index, mut rest) = path.split_first()?;
    let mut node = &structure.members.get(*index as usize)?.node;
    while let Some((index, later)) = rest.split_first() {
        node = match node {
            Node::Struct(structure) => &structure.members.get(*index as usize)?.node,
            Node::Array { element, .. } => element,
            Node::Variant { options, .. } => &options.get(*index as usize)?.node,
            _ => return None,
        };
        rest = later;
    }
    Some(node)
}

/// Goes to a field by reading all that stands before it.
fn reach<'a>(
    structure: &'a StructNode,
    path: &[u64],
    cursor: &mut Cursor<'_>,
    memory: &mut Memory,
) -> Option<&'a Node> {
    cursor.align(structure.align_bits);
    let (index, rest) = path.split_first()?;
    for member in structure.members.get(..*index as usize)? {
        member.node.walk(cursor, memory, &mut Blind).ok()?;
    }
    reach_in(&structure.members.get(*index as usize)?.node, rest, cursor, memory)
}

fn reach_in<'a>(node: &'a Node, path: &[u64], cursor: &mut Cursor<'_>, memory: &mut Memory) -> Option<&'a Node> {
    let Some((index, rest)) = path.split_first() else { return Some(node) };
    match node {
        Node::Struct(structure) => reach(structure, path, cursor, memory),
        Node::Variant { slot, is_tag_signed, options } => {
            let option = option_of(options, memory.slot(*slot), *is_tag_signed).ok()?;
            let is_it = std::ptr::eq(option, options.get(*index as usize)?);
            is_it.then(|| reach_in(&option.node, rest, cursor, memory))?
        }
        Node::Optional { slot, is_selector_signed, ranges, node } => {
            let is_there = is_in(ranges, memory.slot(*slot), *is_selector_signed);
            is_there.then(|| reach_in(node, rest, cursor, memory))?
        }
        Node::Array { element, count, align_bits, .. } => {
            if count.get(memory) <= *index {
                return None;
            }
            cursor.align(*align_bits);
            for _ in 0..*index {
                let begin = cursor.position;
                element.walk(cursor, memory, &mut Blind).ok()?;
                if cursor.position == begin {
                    // All elements are where the first is.
                    break;
                }
            }
            reach_in(element, rest, cursor, memory)
        }
        _ => None,
    }
}

/// Reads the field at the cursor.
fn leaf<'a>(node: &'a Node, cursor: &mut Cursor<'a>, memory: &mut Memory) -> Option<Picked<'a>> {
    match node {
        Node::Integer(integer) => Some(Picked::Integer(integer.read(cursor, memory).ok()?, integer)),
        Node::Float(class) => Some(Picked::Float(float(class, cursor).ok()?)),
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
