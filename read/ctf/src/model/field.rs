//! Field classes (clause 4).

use std::sync::Arc;

use super::role::Roles;

/// Byte order of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// The lowest byte is first.
    Little,
    /// The highest byte is first.
    Big,
}

/// Number base for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Base {
    Binary,
    Octal,
    Decimal,
    Hexadecimal,
}

/// A field class.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FieldClass {
    Integer(Integer),
    Float(Float),
    Text(Text),
    /// A number of bytes. If `is_uuid` is set, they are the trace's UUID in a packet header.
    Blob {
        length: Length,
        is_uuid: bool,
    },
    Struct(Struct),
    Variant(Variant),
    Optional(Optional),
    /// A number of consecutive elements. An array of characters is text.
    Array {
        element: Arc<FieldClass>,
        length: Length,
        is_text: bool,
        /// Minimum alignment, in bits; a power of two.
        align_bits: u64,
    },
}

impl FieldClass {
    /// Alignment of the first bit, in bits; not 0.
    pub fn align_bits(&self) -> u64 {
        match self {
            FieldClass::Integer(integer) => integer.align_bits,
            FieldClass::Float(float) => float.align_bits,
            FieldClass::Text(_) | FieldClass::Blob { .. } => 8,
            FieldClass::Struct(structure) => structure.align_bits,
            // The option's own alignment is applied once the option is known.
            FieldClass::Variant(_) | FieldClass::Optional(_) => 1,
            FieldClass::Array { element, align_bits, .. } => element.align_bits().max(*align_bits),
        }
    }
}

/// Number of elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Length {
    /// A constant number.
    Fixed(u64),
    /// The value of another field.
    Field(FieldPath),
}

/// A class of integers, or an enumeration of integers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integer {
    /// Size, 1 to 64 bits; 64 for a number of variable length.
    pub size_bits: u32,
    /// Alignment, in bits; a power of two.
    pub align_bits: u64,
    /// Byte order.
    pub byte_order: ByteOrder,
    /// Whether the number is signed.
    pub is_signed: bool,
    /// Number base for display.
    pub base: Base,
    /// Whether the values are characters.
    pub is_character: bool,
    /// Clock whose low bits the number holds.
    pub clock: Option<usize>,
    /// Labels of an enumeration, in order; of a bit map, its flags, whose ranges are ranges of bits.
    pub labels: Option<Arc<[Label]>>,
    /// Order of the bits.
    pub coding: Coding,
    /// Meaning of the value.
    pub meaning: Meaning,
    /// Roles of the number in packets and records; `None`: its name determines its role (CTF 1.8).
    pub roles: Option<Roles>,
}

impl Integer {
    /// Returns an unsigned integer class.
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

/// Order of a number's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// The first bit is the lowest of a little-endian number, and the highest of a big-endian one.
    Plain,
    /// The reverse of `Plain`.
    Reversed,
    /// LEB128: seven bits in each byte, the lowest first; all bytes but the last have their highest bit set.
    Variable,
}

/// Meaning of an integer value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Meaning {
    Number,
    /// A boolean, which is false if the number is 0.
    Boolean,
    /// A bit map, whose bits can have names.
    Bits,
}

/// Character encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Encoding {
    Utf8,
    Utf16(ByteOrder),
    Utf32(ByteOrder),
}

impl Encoding {
    /// Size of a code unit, in bytes.
    pub fn unit_size_bytes(self) -> usize {
        match self {
            Encoding::Utf8 => 1,
            Encoding::Utf16(_) => 2,
            Encoding::Utf32(_) => 4,
        }
    }
}

/// A class of text. Text ends at its first NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Character encoding.
    pub encoding: Encoding,
    /// Size in bytes, including what follows the NUL; `None`: the text extends to its NUL, which must be there.
    pub length: Option<Length>,
}

impl Text {
    /// UTF-8 text that is terminated by a NUL.
    pub const TERMINATED: Text = Text { encoding: Encoding::Utf8, length: None };
}

/// A name for values of an enumeration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Name.
    pub name: String,
    /// Values.
    pub range: Range,
}

/// A range of integers, both ends included. Signed values are compared as `i64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Lowest and highest value.
    pub bounds: (i128, i128),
}

impl Range {
    /// Whether the range contains this value. The bits are those of an `i64` if it is signed, otherwise of a `u64`.
    pub fn contains(&self, value: u64, is_signed: bool) -> bool {
        let value = if is_signed { i128::from(value as i64) } else { i128::from(value) };
        self.bounds.0 <= value && value <= self.bounds.1
    }
}

/// A class of IEEE 754 floating-point numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Float {
    /// Size in bits: 16, 32 or 64.
    pub size_bits: u32,
    /// Alignment, in bits; a power of two.
    pub align_bits: u64,
    /// Byte order.
    pub byte_order: ByteOrder,
    /// Whether its bits are in reverse order ([`Coding::Reversed`]).
    pub is_reversed: bool,
}

/// Consecutive fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Struct {
    /// Alignment, in bits; a power of two, at least the largest alignment of a member.
    pub align_bits: u64,
    /// Members.
    pub members: Vec<Member>,
}

/// A member of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name as in TSDL: a name that begins with an underscore has another one in front of it.
    pub name: String,
    /// Field class, which several members can share.
    pub class: Arc<FieldClass>,
}

impl Member {
    /// Name for display, without the underscore that writers prepend so that names do not collide with words of TSDL.
    pub fn shown_name(&self) -> &str {
        shown_name(&self.name)
    }
}

pub(crate) fn shown_name(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}

/// One of several fields, selected by the value of another field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// Field that selects the option.
    pub tag: FieldPath,
    /// Whether the tag is signed.
    pub is_tag_signed: bool,
    /// Options.
    pub options: Vec<Option_>,
}

/// A field that is present or absent, depending on the value of another field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Optional {
    /// Field that selects.
    pub selector: FieldPath,
    /// Whether the selector is signed.
    pub is_selector_signed: bool,
    /// Values of the selector for which the field is present.
    pub ranges: Vec<Range>,
    /// Class of the field.
    pub class: Arc<FieldClass>,
}

/// An option of a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Option_ {
    /// Name.
    pub name: String,
    /// Values of the tag that select this option.
    pub ranges: Vec<Range>,
    /// Class of the field.
    pub class: Arc<FieldClass>,
}

/// The structures that packets and event records are made of, in reading order.
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

/// Location of a field: its scope, and the index of the member or option at each level.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldPath {
    /// Scope in which the path begins.
    pub scope: Scope,
    /// Index at each level.
    pub path: Vec<usize>,
}
