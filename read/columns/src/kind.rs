//! Kinds of columns, derived from the kinds of fields.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields};
use dormouse_abi::class::{FieldType, Kind as Declared};
use dormouse_ctf::model::Meaning;
use dormouse_ctf::plan::{FieldRef, Shape};

/// Kind of the values in a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Integers of 8, 16, 32 or 64 bits.
    Integer {
        size_bits: u32,
        is_signed: bool,
    },
    /// Integers that no 64-bit type holds: a mix of signed and unsigned 64-bit ones.
    Wide,
    Bool,
    Float {
        is_single: bool,
    },
    Text,
    Bytes,
    /// Labels of an enumeration.
    Label,
    List(Box<Kind>),
    Struct(Vec<(String, Kind)>),
    /// A structure with one member that is not null.
    Variant(Vec<(String, Kind)>),
}

/// Name of the member in the structure for an optional field.
const OPTIONAL: &str = "value";

impl Kind {
    pub(crate) const UINT32: Kind = Kind::Integer { size_bits: 32, is_signed: false };

    pub(crate) fn new(field: FieldRef<'_>, declared: Option<FieldType>) -> Kind {
        match (declared, field.shape()) {
            (Some(FieldType { kind: Declared::Bool, sequence: false }), Shape::Integer(_)) => Kind::Bool,
            (Some(FieldType { kind: Declared::Bytes, .. }), Shape::Array(_)) => Kind::Bytes,
            (Some(FieldType { kind: Declared::Bool, sequence: true }), Shape::Array(_)) => {
                Kind::List(Box::new(Kind::Bool))
            }
            (_, Shape::Integer(class)) if class.meaning == Meaning::Boolean => Kind::Bool,
            (_, Shape::Integer(class)) if class.labels.is_some() => Kind::Label,
            (_, Shape::Integer(class)) => {
                Kind::Integer { size_bits: class.size_bits.next_power_of_two().max(8), is_signed: class.is_signed }
            }
            (_, Shape::Float { size_bits }) => Kind::Float { is_single: size_bits == 32 },
            (_, Shape::Text) => Kind::Text,
            (_, Shape::Blob) => Kind::Bytes,
            (_, Shape::Optional(field)) => Kind::Variant(Kind::all(vec![(OPTIONAL, field)])),
            (_, Shape::Struct(members)) => Kind::Struct(Kind::all(members)),
            (_, Shape::Variant(options)) => Kind::Variant(Kind::all(options)),
            (_, Shape::Array(element)) => Kind::List(Box::new(Kind::new(element, None))),
        }
    }

    fn all(fields: Vec<(&str, FieldRef<'_>)>) -> Vec<(String, Kind)> {
        fields.into_iter().map(|(name, field)| (name.to_string(), Kind::new(field, None))).collect()
    }

    /// Returns a kind that holds the values of both unchanged, if one has at most 64 bits or one of the two is wider
    /// already.
    pub(crate) fn common(&self, other: &Kind) -> Option<Kind> {
        match (self, other) {
            (one, two) if one == two => Some(one.clone()),
            (Kind::Wide, Kind::Integer { .. }) | (Kind::Integer { .. }, Kind::Wide) => Some(Kind::Wide),
            (
                Kind::Integer { size_bits: a, is_signed: a_signed },
                Kind::Integer { size_bits: b, is_signed: b_signed },
            ) => {
                let is_signed = *a_signed || *b_signed;
                // A signed type needs twice the size to hold all unsigned numbers of a size.
                let needed = |size: u32, signed: bool| if is_signed && !signed { 2 * size } else { size };
                let size_bits = needed(*a, *a_signed).max(needed(*b, *b_signed));
                (size_bits <= 64).then_some(Kind::Integer { size_bits, is_signed })
            }
            (Kind::Float { .. }, Kind::Float { .. }) => Some(Kind::Float { is_single: false }),
            (Kind::List(a), Kind::List(b)) => Some(Kind::List(Box::new(a.common(b)?))),
            _ => None,
        }
    }

    /// Like `common`, but integers without a common 64-bit type have kind `Wide`.
    pub(crate) fn common_or_wide(&self, other: &Kind) -> Option<Kind> {
        let are_integers = matches!((self, other), (Kind::Integer { .. }, Kind::Integer { .. }));
        self.common(other).or(are_integers.then_some(Kind::Wide))
    }

    /// Returns its Arrow type.
    pub(crate) fn data_type(&self, is_text_binary: bool) -> DataType {
        let field = |name: &str, kind: &Kind| Field::new(name, kind.data_type(is_text_binary), true);
        let fields = |of: &[(String, Kind)]| of.iter().map(|(name, kind)| field(name, kind)).collect::<Fields>();
        match self {
            Kind::Integer { size_bits: 8, is_signed: false } => DataType::UInt8,
            Kind::Integer { size_bits: 16, is_signed: false } => DataType::UInt16,
            Kind::Integer { size_bits: 32, is_signed: false } => DataType::UInt32,
            Kind::Integer { is_signed: false, .. } => DataType::UInt64,
            Kind::Integer { size_bits: 8, .. } => DataType::Int8,
            Kind::Integer { size_bits: 16, .. } => DataType::Int16,
            Kind::Integer { size_bits: 32, .. } => DataType::Int32,
            Kind::Integer { .. } => DataType::Int64,
            // Number of digits of the greatest 64-bit integer.
            Kind::Wide => DataType::Decimal128(20, 0),
            Kind::Bool => DataType::Boolean,
            Kind::Float { is_single: true } => DataType::Float32,
            Kind::Float { is_single: false } => DataType::Float64,
            Kind::Text if !is_text_binary => DataType::Utf8,
            Kind::Text | Kind::Bytes => DataType::Binary,
            Kind::Label => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            Kind::List(element) => DataType::List(Arc::new(field("item", element))),
            Kind::Struct(of) | Kind::Variant(of) => DataType::Struct(fields(of)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_a_common_kind_that_holds_both() {
        let integer = |size_bits, is_signed| Kind::Integer { size_bits, is_signed };
        for (a, b, expected) in [
            (integer(8, false), integer(32, false), Some(integer(32, false))),
            (integer(8, true), integer(32, true), Some(integer(32, true))),
            (integer(32, true), integer(32, false), Some(integer(64, true))),
            (integer(64, true), integer(8, false), Some(integer(64, true))),
            (integer(64, false), integer(8, true), None),
            (integer(8, false), Kind::Text, None),
        ] {
            assert_eq!(a.common(&b), expected, "{a:?} {b:?}");
            assert_eq!(b.common(&a), expected, "{b:?} {a:?}");
        }
        let (unsigned, signed) = (integer(64, false), integer(8, true));
        assert_eq!(unsigned.common_or_wide(&signed), Some(Kind::Wide));
        assert_eq!(signed.common(&Kind::Wide), Some(Kind::Wide));
        assert_eq!(signed.common_or_wide(&integer(32, false)), Some(integer(64, true)));
        assert_eq!((signed.common_or_wide(&Kind::Text), Kind::Wide.common_or_wide(&Kind::Text)), (None, None));
    }
}
