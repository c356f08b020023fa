//! The syntax tree of a filter.

use std::fmt;

use crate::value::{Operator, Value};

/// Name of a field: `a.b[2]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The parts, at least one.
    pub parts: Vec<Part>,
}

/// A part of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Member of a structure or variant.
    Member(String),
    /// Element of an array.
    Index(u64),
}

impl Name {
    /// Returns the name if it has a single part.
    pub fn word(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Member(word)] => Some(word),
            _ => None,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().enumerate().try_for_each(|(at, part)| match part {
            Part::Member(member) => write!(f, "{}{member}", if at > 0 { "." } else { "" }),
            Part::Index(index) => write!(f, "[{index}]"),
        })
    }
}

/// A literal, or a value of the event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Literal(Literal),
    /// Name, by its index.
    Name(usize),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Literal {
    Integer(i128),
    Float(f64),
    Text(Vec<u8>),
    Boolean(bool),
}

impl Literal {
    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Literal::Integer(integer) => Value::Integer(*integer),
            Literal::Float(float) => Value::Float(*float),
            Literal::Text(text) => Value::Text(text.into()),
            Literal::Boolean(boolean) => Value::Boolean(*boolean),
        }
    }
}

/// An expression that is true, false or unknown for an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expression {
    Or(Vec<Expression>),
    And(Vec<Expression>),
    Not(Box<Expression>),
    /// Decided without the event.
    Known(Option<bool>),
    IsTrue(Operand),
    Compare(Comparison),
    Matches(Operand, Vec<u8>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Comparison {
    pub left: Operand,
    pub operator: Operator,
    pub right: Operand,
    /// Byte offset of the operator in the text.
    pub offset: usize,
}
