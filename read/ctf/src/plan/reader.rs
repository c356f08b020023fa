//! Reads the fields of an event one after another. For a caller that prepares once for each class how it reads and uses
//! each field, this is faster than a [`Visitor`].

use super::bits::{Cursor, FieldError};
use super::node::{IntegerNode, Word};
use super::shape::FieldRef;
use super::walk::{Memory, Visitor};
use crate::model::ByteOrder;

/// Reader of an event's contexts and fields, which must be read in the order of the record. After an error, the fields
/// that follow cannot be read.
#[derive(Debug)]
pub struct FieldReader<'a, 's> {
    pub(crate) cursor: Cursor<'a>,
    pub(crate) memory: &'s mut Memory,
}

impl<'a> FieldReader<'a, '_> {
    /// Advances to the next position with this alignment, which must be a power of two.
    #[inline(always)]
    pub fn align(&mut self, align_bits: u64) {
        self.cursor.align(align_bits);
    }

    /// Reads the bits of a plain number.
    ///
    /// # Errors
    /// Returns an error if the record ends within the number.
    #[inline(always)]
    pub fn word(&mut self, word: Word) -> Result<u64, FieldError> {
        self.cursor.align(word.align_bits);
        self.cursor.number(word.size_bits, ByteOrder::Little)
    }

    /// Reads an integer, whose bits are those of an `i64` if it is signed.
    ///
    /// # Errors
    /// Returns an error if the record ends within the number, or if the number has more than 64 bits.
    #[inline(always)]
    pub fn integer(&mut self, integer: &IntegerNode) -> Result<u64, FieldError> {
        integer.read(&mut self.cursor, self.memory)
    }

    /// Reads UTF-8 text that ends with its NUL ([`FieldRef::is_terminated_text`]).
    ///
    /// # Errors
    /// Returns an error if the text has no NUL.
    #[inline(always)]
    pub fn text(&mut self) -> Result<&'a [u8], FieldError> {
        self.cursor.align(8);
        self.cursor.text()
    }

    /// Reads any field and passes it to a visitor.
    ///
    /// # Errors
    /// Returns an error if the bytes are not such a field.
    #[inline]
    pub fn visit(&mut self, field: FieldRef<'_>, visitor: &mut impl Visitor) -> Result<(), FieldError> {
        field.0.walk(&mut self.cursor, self.memory, visitor)
    }
}
