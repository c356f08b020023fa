//! Syntax tree of metadata text, before names are looked up.

use std::borrow::Cow;

/// Position as an offset in the text. All positions compare equal, so that trees that differ only in positions are
/// equal.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct At(pub usize);

impl PartialEq for At {
    fn eq(&self, _: &At) -> bool {
        true
    }
}

/// A top-level declaration.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Declaration<'a> {
    /// `env { … };`
    Block(Block<'a>),
    Type(TypeDeclaration<'a>),
}

/// A keyword and the content of its braces.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Block<'a> {
    pub at: At,
    pub keyword: &'a str,
    pub entries: Vec<Entry<'a>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Entry<'a> {
    /// `freq = 1000;`
    Value(Assignment<'a>),
    /// `packet.context := struct { … };`
    Class(At, Cow<'a, str>, Type<'a>),
    Type(TypeDeclaration<'a>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assignment<'a> {
    pub at: At,
    pub key: Cow<'a, str>,
    pub value_at: At,
    pub value: Value<'a>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'a> {
    Number(i128),
    Text(String),
    /// A name, or several names separated by dots.
    Word(Cow<'a, str>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TypeDeclaration<'a> {
    /// `typealias TYPE := NAME;`
    Alias(Type<'a>, At, String),
    /// `typedef TYPE NAME, …;`
    Typedef(Type<'a>, Vec<Declarator<'a>>),
    /// `struct NAME { … };`
    Definition(Type<'a>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Type<'a> {
    pub at: At,
    pub kind: TypeKind<'a>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TypeKind<'a> {
    Integer(Vec<Assignment<'a>>),
    Float(Vec<Assignment<'a>>),
    Text(Vec<Assignment<'a>>),
    Struct {
        name: Option<&'a str>,
        members: Option<Vec<Member<'a>>>,
        align: Option<(At, i128)>,
    },
    Variant {
        name: Option<&'a str>,
        tag: Option<(At, Cow<'a, str>)>,
        options: Option<Vec<Member<'a>>>,
    },
    Enum {
        name: Option<&'a str>,
        container: Option<Box<Type<'a>>>,
        labels: Option<Vec<Label<'a>>>,
    },
    /// Words separated by single spaces.
    Named(Cow<'a, str>),
}

/// A member in the braces of a structure or variant.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Member<'a> {
    Fields(Type<'a>, Vec<Declarator<'a>>),
    Type(TypeDeclaration<'a>),
}

/// `name[3][length]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Declarator<'a> {
    pub at: At,
    pub name: Cow<'a, str>,
    pub lengths: Vec<(At, Length<'a>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Length<'a> {
    Number(i128),
    Field(Cow<'a, str>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Label<'a> {
    pub at: At,
    pub name: Cow<'a, str>,
    /// First and last value, if they are given.
    pub range: Option<(i128, i128)>,
}
