//! A filter as it is written.

use std::fmt;

use crate::value::{Operator, Value};

/// A name of a field: `a.b[2]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// At least one.
    pub parts: Vec<Part>,
}

/// A part of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Of a structure or variant.
    Member(String),
    /// Of an array.
    Index(u64),
}

impl Name {
    /// The name, if it has one part.
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

/// A value that is written, or one of an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Literal(Literal),
    /// The index of a name.
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

/// What is true, false or unknown of an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expression {
    Or(Vec<Expression>),
    And(Vec<Expression>),
    Not(Box<Expression>),
    /// Known without the event.
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
    /// Where the operator stands.
    pub offset: usize,
}
