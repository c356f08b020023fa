//! Some members of an event class, read without the others.
//!
//! What lies at a constant place is gone to at once; what lies between is passed by the same operations as whole records; what lies
//! behind the last chosen member is not looked at.

use dormouse_abi::class::FieldType;

use super::bits::{Cursor, FieldError};
use super::node::{IntegerNode, Node};
use super::program::{Assembler, Operation, fixed_size, run};
use super::walk::{Memory, Visitor};
use super::{Class, StreamPlan};
use crate::model::Scope;

/// An event class, and the stream whose records have it.
#[derive(Debug, Clone, Copy)]
pub struct ClassRef<'a> {
    pub(crate) plan: &'a StreamPlan,
    pub(crate) index: usize,
}

/// A member of a class's contexts or fields.
#[derive(Debug, Clone, Copy)]
pub struct MemberRef<'a> {
    /// [`Scope::EventContext`], [`Scope::OwnContext`] or [`Scope::Fields`].
    pub scope: Scope,
    /// Its name as it is shown.
    pub name: &'a str,
    /// What it is.
    pub field: FieldRef<'a>,
    /// What the program has declared, in traces of Dormouse.
    pub declared: Option<FieldType>,
    /// Whether it is the count of the sequence that follows, which a tracer has added.
    pub is_count: bool,
}

/// A field as it is compiled.
#[derive(Debug, Clone, Copy)]
pub struct FieldRef<'a>(&'a Node);

/// What a field is.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Shape<'a> {
    Integer(&'a IntegerNode),
    Float {
        size_bits: u32,
    },
    Text,
    Blob,
    Struct(Vec<(&'a str, FieldRef<'a>)>),
    /// There or not.
    Optional(FieldRef<'a>),
    /// One of these.
    Variant(Vec<(&'a str, FieldRef<'a>)>),
    /// Elements of this.
    Array(FieldRef<'a>),
}

impl<'a> FieldRef<'a> {
    /// What it is; of structures and variants the fields, of arrays the element.
    pub fn shape(self) -> Shape<'a> {
        match self.0 {
            Node::Integer(integer) => Shape::Integer(integer),
            Node::Float(class) => Shape::Float { size_bits: class.size_bits },
            Node::Text { .. } | Node::Array { is_text: true, .. } => Shape::Text,
            Node::Blob { .. } => Shape::Blob,
            Node::Optional { node, .. } => Shape::Optional(FieldRef(node)),
            Node::Struct(structure) => {
                Shape::Struct(structure.members.iter().map(|member| (&*member.shown, FieldRef(&member.node))).collect())
            }
            Node::Variant { options, .. } => {
                Shape::Variant(options.iter().map(|option| (&*option.shown, FieldRef(&option.node))).collect())
            }
            Node::Array { element, .. } => Shape::Array(FieldRef(element)),
        }
    }
}

impl<'a> ClassRef<'a> {
    /// The class.
    pub fn class(self) -> &'a Class {
        self.plan.class_at(self.index)
    }

    /// The members of contexts and fields, in the order in which records have them.
    pub fn members(self) -> Vec<MemberRef<'a>> {
        let class = self.class();
        let mut declared = class.decl.iter().flat_map(|decl| &decl.fields);
        let mut members = Vec::new();
        for (scope, structure) in class.structures() {
            for (at, member) in structure.members.iter().enumerate() {
                let is_added = |next: &str| class.decl.is_some() || member.shown.ends_with(&format!("_{next}_length"));
                let is_count =
                    structure.is_count(at) && structure.members.get(at + 1).is_some_and(|next| is_added(&next.shown));
                let declared = (scope == Scope::Fields && !is_count).then(|| declared.next()).flatten();
                members.push(MemberRef {
                    scope,
                    name: &member.shown,
                    field: FieldRef(&member.node),
                    declared: declared.map(|(_, field_type)| *field_type),
                    is_count,
                });
            }
        }
        members
    }

    /// Compiles a choice of members: for each of [`ClassRef::members`] the index of the visitor that is shown it, if any.
    pub fn select(self, chosen: &[Option<usize>]) -> Selection {
        let class = self.class();
        let mut steps = Vec::new();
        let mut gap = Assembler::new(self.plan.known_behind_head());
        // How far the end of the last step is from the beginning, where that is constant.
        let mut from_begin = Some(0u64);
        let mut chosen = chosen.iter();
        for (_, structure) in class.structures() {
            gap.align(structure.align_bits);
            for member in &structure.members {
                let Some(Some(visitor)) = chosen.next() else {
                    gap.node(&member.node);
                    continue;
                };
                gap.align(member.node.align_bits());
                let known = gap.known();
                let operations = std::mem::replace(&mut gap, Assembler::new(known)).finish();
                from_begin = from_begin.and_then(|bits| bits.checked_add(fixed_size(&operations)?));
                steps.push(from_begin.map_or(Step::Pass(operations), Step::At));
                steps.push(Step::Show(*visitor, member.node.clone()));
                let mut shown = Assembler::new(known);
                shown.node(&member.node);
                gap = Assembler::new(shown.known());
                let size = fixed_size(&shown.finish());
                from_begin = from_begin.and_then(|bits| bits.checked_add(size?));
            }
        }
        Selection { steps: steps.into() }
    }
}

/// A choice of members of a class, compiled.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    steps: Box<[Step]>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Goes to so many bits behind the beginning.
    At(u64),
    Pass(Box<[Operation]>),
    /// Shows the field to the visitor with this index.
    Show(usize, Node),
}

impl Selection {
    /// Shows the chosen members of the record whose contexts begin at the cursor.
    #[inline]
    pub(crate) fn show<V: Visitor>(
        &self,
        cursor: &mut Cursor<'_>,
        memory: &mut Memory,
        visitors: &mut [V],
    ) -> Result<(), FieldError> {
        let begin = cursor.position;
        for step in &self.steps {
            match step {
                Step::At(bits) => cursor.position = begin + bits,
                Step::Pass(operations) => run(operations, cursor, memory)?,
                Step::Show(visitor, node) => {
                    if let Some(visitor) = visitors.get_mut(*visitor) {
                        node.walk(cursor, memory, visitor)?;
                    }
                }
            }
        }
        Ok(())
    }
}
