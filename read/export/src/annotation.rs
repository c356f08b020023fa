//! Perfetto's `DebugAnnotation`: field numbers, and their choice for a field of an event class.

use dormouse_ctf::model::Base;
use dormouse_ctf::plan::IntegerNode;

use crate::wire::Piece;

const NAME_IID: u64 = 1;
pub(crate) const BOOL: u64 = 2;
pub(crate) const UINT: u64 = 3;
pub(crate) const INT: u64 = 4;
pub(crate) const DOUBLE: u64 = 5;
pub(crate) const STRING: u64 = 6;
pub(crate) const POINTER: u64 = 7;
pub(crate) const NAME: u64 = 10;
pub(crate) const DICT_ENTRIES: u64 = 11;
pub(crate) const ARRAY_VALUES: u64 = 12;

/// Returns a reference to the name with this number.
pub(crate) fn named(number: u64) -> Piece {
    Piece::uint(NAME_IID, number)
}

/// Returns the annotation field for an integer without a label.
pub(crate) fn number_kind(class: &IntegerNode) -> u64 {
    match (class.base, class.is_signed) {
        (Base::Hexadecimal, _) => POINTER,
        (_, true) => INT,
        (_, false) => UINT,
    }
}
