//! Description of the fields of a class.

use dormouse_abi::class::FieldType;

use super::Class;
use super::node::{IntegerNode, Node, StructNode};
use crate::model::{Encoding, Scope};

/// A member of a class's contexts or fields.
#[derive(Debug, Clone, Copy)]
pub struct MemberRef<'a> {
    /// [`Scope::EventContext`], [`Scope::OwnContext`] or [`Scope::Fields`].
    pub scope: Scope,
    /// Name for display.
    pub name: &'a str,
    /// Description of the field.
    pub field: FieldRef<'a>,
    /// Declared type, in Dormouse's traces.
    pub declared: Option<FieldType>,
    /// Whether it is the count of the sequence that follows, added by a tracer.
    pub is_count: bool,
}

/// A compiled field.
#[derive(Debug, Clone, Copy)]
pub struct FieldRef<'a>(pub(super) &'a Node);

/// A compiled field that is kept without its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field(Node);

impl Field {
    /// Returns the description of the field.
    #[inline]
    pub fn get(&self) -> FieldRef<'_> {
        FieldRef(&self.0)
    }
}

impl From<FieldRef<'_>> for Field {
    fn from(field: FieldRef<'_>) -> Field {
        Field(field.0.clone())
    }
}

/// Shape of a field.
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
    /// A field that can be absent.
    Optional(FieldRef<'a>),
    /// One of these fields.
    Variant(Vec<(&'a str, FieldRef<'a>)>),
    /// Elements of this class.
    Array(FieldRef<'a>),
}

impl<'a> FieldRef<'a> {
    /// Returns the shape of the field, with the fields of a structure or variant, or the element of an array.
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

    /// Whether the field is UTF-8 text that ends with its NUL.
    pub fn is_terminated_text(self) -> bool {
        matches!(self.0, Node::Text { encoding: Encoding::Utf8, count: None })
    }

    /// Adds the names of the field and of its parts. Elements have no names.
    fn put_names(self, name: String, names: &mut Vec<String>) {
        let parts = match self.shape() {
            Shape::Struct(parts) | Shape::Variant(parts) => parts,
            Shape::Optional(field) => return field.put_names(name, names),
            _ => Vec::new(),
        };
        for (part, field) in parts {
            field.put_names(format!("{name}.{part}"), names);
        }
        names.push(name);
    }
}

impl StructNode {
    /// Returns names for display and descriptions of the members, in order.
    pub fn members(&self) -> impl Iterator<Item = (&str, FieldRef<'_>)> {
        self.members.iter().map(|member| (&*member.shown, FieldRef(&member.node)))
    }
}

impl Class {
    /// Returns the members of contexts and fields, in the order of the records.
    pub fn members(&self) -> Vec<MemberRef<'_>> {
        let mut declared = self.decl.iter().flat_map(|decl| &decl.fields);
        let mut members = Vec::new();
        for (scope, structure) in self.structures() {
            for (at, member) in structure.members.iter().enumerate() {
                let is_added = |next: &str| self.decl.is_some() || member.shown.ends_with(&format!("_{next}_length"));
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

    /// Returns the names of the fields and their parts, in the form `a.b`, then the names of contexts.
    pub fn names(&self) -> Vec<String> {
        let (fields, contexts): (Vec<_>, Vec<_>) =
            self.members().into_iter().partition(|member| member.scope == Scope::Fields);
        let mut names = Vec::new();
        for member in fields.iter().chain(&contexts) {
            member.field.put_names(member.name.to_string(), &mut names);
        }
        names
    }

    /// Returns the names of the fields, then of the class's own context, then of the common event context.
    pub fn member_names(&self) -> impl Iterator<Item = &str> {
        let mut structures: Vec<_> = self.structures().collect();
        structures.reverse();
        structures.into_iter().flat_map(|(_, structure)| structure.members.iter().map(|member| &*member.shown))
    }
}
