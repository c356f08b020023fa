//! The syntax tree of a filter.

use dormouse_abi::rule::Literal;
use dormouse_abi::rule::value::Operator;

/// A literal, or a value of the event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Literal(Literal),
    /// Name, by its index.
    Name(usize),
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
