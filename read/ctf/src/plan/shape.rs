//! What the fields of a class are.

use dormouse_abi::class::FieldType;

use super::Class;
use super::node::{IntegerNode, Node};
use crate::model::Scope;

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
pub struct FieldRef<'a>(pub(super) &'a Node);

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

    /// Adds the names of the field and of its parts, but for elements, which have none.
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

impl Class {
    /// The members of contexts and fields, in the order in which records have them.
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

    /// The names of the fields and of their parts, `a.b`, then those of contexts.
    pub fn names(&self) -> Vec<String> {
        let (fields, contexts): (Vec<_>, Vec<_>) =
            self.members().into_iter().partition(|member| member.scope == Scope::Fields);
        let mut names = Vec::new();
        for member in fields.iter().chain(&contexts) {
            member.field.put_names(member.name.to_string(), &mut names);
        }
        names
    }

    /// The names of the fields, then those of contexts: of the class's own, then of all events' ones.
    pub fn member_names(&self) -> impl Iterator<Item = &str> {
        let mut structures: Vec<_> = self.structures().collect();
        structures.reverse();
        structures.into_iter().flat_map(|(_, structure)| structure.members.iter().map(|member| &*member.shown))
    }
}
