//! Classes of fields (clause 4).

use std::sync::Arc;

/// Which byte of a number comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// The lowest.
    Little,
    /// The highest.
    Big,
}

/// How a number is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Base {
    Binary,
    Octal,
    Decimal,
    Hexadecimal,
}

/// A class of fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FieldClass {
    Integer(Integer),
    Float(Float),
    /// Bytes up to a NUL.
    Text,
    Struct(Struct),
    Variant(Variant),
    /// So many elements, one behind the other. Those of an array of characters are text.
    Array {
        element: Arc<FieldClass>,
        length: Length,
        is_text: bool,
    },
}

impl FieldClass {
    /// The alignment of its first bit, in bits; not 0.
    pub fn align_bits(&self) -> u64 {
        match self {
            FieldClass::Integer(integer) => integer.align_bits,
            FieldClass::Float(float) => float.align_bits,
            FieldClass::Text => 8,
            FieldClass::Struct(structure) => structure.align_bits,
            // That of the option is found when it is known which one it is.
            FieldClass::Variant(_) => 1,
            FieldClass::Array { element, .. } => element.align_bits(),
        }
    }
}

/// How many elements there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Length {
    /// So many.
    Fixed(u64),
    /// As many as another field says.
    Field(FieldPath),
}

/// A class of whole numbers, which an enumeration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integer {
    /// 1 to 64.
    pub size_bits: u32,
    /// A power of two.
    pub align_bits: u64,
    /// Of the bytes.
    pub byte_order: ByteOrder,
    /// Whether the highest bit is the sign.
    pub is_signed: bool,
    /// How it is shown.
    pub base: Base,
    /// Whether its values are characters.
    pub is_character: bool,
    /// The clock of which it has low bits.
    pub clock: Option<usize>,
    /// The labels of an enumeration, in their order.
    pub labels: Option<Arc<[Label]>>,
}

/// A name for some values of an enumeration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The name.
    pub name: String,
    /// The values.
    pub range: Range,
}

/// Whole numbers from the first to the last, both included. Of signed numbers the bits are those of an `i64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Lowest and highest.
    pub bounds: (i128, i128),
}

impl Range {
    /// Whether it has this value, which is an `i64` if it is signed and a `u64` otherwise.
    pub fn contains(&self, value: u64, is_signed: bool) -> bool {
        let value = if is_signed { i128::from(value as i64) } else { i128::from(value) };
        self.bounds.0 <= value && value <= self.bounds.1
    }
}

/// A class of floating-point numbers of IEEE 754.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Float {
    /// 32 or 64.
    pub size_bits: u32,
    /// A power of two.
    pub align_bits: u64,
    /// Of the bytes.
    pub byte_order: ByteOrder,
}

/// Fields one behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Struct {
    /// A power of two, at least those of the members.
    pub align_bits: u64,
    /// The members.
    pub members: Vec<Member>,
}

/// A member of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name as the metadata have it.
    pub name: String,
    /// Its class. Several fields can have the same.
    pub class: Arc<FieldClass>,
}

impl Member {
    /// The name as it is shown: writers put an underscore before names so that these do not collide with words of TSDL.
    pub fn shown_name(&self) -> &str {
        shown_name(&self.name)
    }
}

pub(crate) fn shown_name(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}

/// One of several fields; another field says which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// The other field.
    pub tag: FieldPath,
    /// Whether that is signed.
    pub is_tag_signed: bool,
    /// The fields.
    pub options: Vec<Option_>,
}

/// A field that a variant can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Option_ {
    /// Its name.
    pub name: String,
    /// The values of the tag with which the variant is this field.
    pub ranges: Vec<Range>,
    /// Its class.
    pub class: Arc<FieldClass>,
}

/// One of the structures that packets and event records are made of, in the order in which they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Scope {
    PacketHeader,
    PacketContext,
    EventHeader,
    EventContext,
    OwnContext,
    Fields,
}

/// Where a field is: its scope, and which member of each structure or option of each variant leads to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldPath {
    /// Where the path begins.
    pub scope: Scope,
    /// Indices.
    pub path: Vec<usize>,
}
