//! Classes of fields (clause 4).

use std::sync::Arc;

use super::role::Roles;

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
    Text(Text),
    /// So many bytes; `is_uuid`: those of the trace's identity, in a packet's header.
    Blob {
        length: Length,
        is_uuid: bool,
    },
    Struct(Struct),
    Variant(Variant),
    Optional(Optional),
    /// So many elements, one behind the other. Those of an array of characters are text.
    Array {
        element: Arc<FieldClass>,
        length: Length,
        is_text: bool,
        /// At least; a power of two.
        align_bits: u64,
    },
}

impl FieldClass {
    /// The alignment of its first bit, in bits; not 0.
    pub fn align_bits(&self) -> u64 {
        match self {
            FieldClass::Integer(integer) => integer.align_bits,
            FieldClass::Float(float) => float.align_bits,
            FieldClass::Text(_) | FieldClass::Blob { .. } => 8,
            FieldClass::Struct(structure) => structure.align_bits,
            // That of the option is found when it is known which one it is.
            FieldClass::Variant(_) | FieldClass::Optional(_) => 1,
            FieldClass::Array { element, align_bits, .. } => element.align_bits().max(*align_bits),
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
    /// 1 to 64; of a number of variable length 64.
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
    /// The labels of an enumeration, in their order; of a bit map the flags, whose ranges are those of bits.
    pub labels: Option<Arc<[Label]>>,
    /// How its bits lie.
    pub coding: Coding,
    /// What its value is.
    pub meaning: Meaning,
    /// What it says of packets and records; `None`: what its name says (CTF 1.8).
    pub roles: Option<Roles>,
}

impl Integer {
    /// An unsigned number.
    pub fn new(size_bits: u32, align_bits: u64, byte_order: ByteOrder) -> Integer {
        Integer {
            size_bits,
            align_bits,
            byte_order,
            is_signed: false,
            base: Base::Decimal,
            is_character: false,
            clock: None,
            labels: None,
            coding: Coding::Plain,
            meaning: Meaning::Number,
            roles: None,
        }
    }
}

/// How a number's bits lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// The first bit is the lowest of a little-endian number, and the highest of a big-endian one.
    Plain,
    /// The other way round.
    Reversed,
    /// LEB128: seven bits in each byte, the lowest first; all bytes but the last have their highest bit set.
    Variable,
}

/// What the value of a whole number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Meaning {
    Number,
    /// False if it is 0.
    Boolean,
    /// Bits, of which some can have names.
    Bits,
}

/// Which bytes are a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Encoding {
    Utf8,
    Utf16(ByteOrder),
    Utf32(ByteOrder),
}

impl Encoding {
    /// Bytes of a code unit.
    pub fn unit_size_bytes(self) -> usize {
        match self {
            Encoding::Utf8 => 1,
            Encoding::Utf16(_) => 2,
            Encoding::Utf32(_) => 4,
        }
    }
}

/// A class of text, which ends with its first NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Of the bytes.
    pub encoding: Encoding,
    /// How many bytes there are, whatever is behind the NUL; `None`: up to the NUL, which is there.
    pub length: Option<Length>,
}

impl Text {
    /// Bytes up to a NUL.
    pub const TERMINATED: Text = Text { encoding: Encoding::Utf8, length: None };
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
    /// 16, 32 or 64.
    pub size_bits: u32,
    /// A power of two.
    pub align_bits: u64,
    /// Of the bytes.
    pub byte_order: ByteOrder,
    /// Whether its bits lie the other way round ([`Coding::Reversed`]).
    pub is_reversed: bool,
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
    /// Its name as TSDL has it: one that begins with an underscore has another one in front.
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

/// A field that is there or not; another field says which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Optional {
    /// The other field.
    pub selector: FieldPath,
    /// Whether that is signed.
    pub is_selector_signed: bool,
    /// The values of the selector with which it is there.
    pub ranges: Vec<Range>,
    /// Its class.
    pub class: Arc<FieldClass>,
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
