//! Event classes: names, fields and their kinds.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU32};

use crate::text::shown;

/// The kind of a field. The numbers are shared with C (`include/dormouse/abi/class.h`) and appear in messages.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    U8 = 1,
    U16 = 2,
    U32 = 3,
    U64 = 4,
    I8 = 5,
    I16 = 6,
    I32 = 7,
    I64 = 8,
    F32 = 9,
    F64 = 10,
    /// One byte, 0 or 1.
    Bool = 11,
    /// An address: 8 bytes, shown in hexadecimal.
    Pointer = 12,
    /// UTF-8 text: bytes up to and including a terminating NUL.
    Str = 13,
    /// A `u32` count, then as many bytes, shown as integers.
    Bytes = 14,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 14] = {
        use Kind::*;
        [U8, U16, U32, U64, I8, I16, I32, I64, F32, F64, Bool, Pointer, Str, Bytes]
    };

    /// Returns the kind with this number, if there is one.
    pub fn from_u8(number: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns the size of one element in bytes: the value itself, or one byte of a string or byte slice.
    pub const fn element_size_bytes(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool | Kind::Str | Kind::Bytes => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::Pointer => 8,
        }
    }
}

/// The type of a field: a kind, single or in a sequence.
///
/// On the wire and in C it is one byte: the kind, plus [`SEQUENCE`] for a `u32` count followed by that many elements.
/// Elements of a sequence are integers, floats, booleans or pointers, never strings or byte slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldType {
    /// Kind of the value or of each element.
    pub kind: Kind,
    /// Whether the field is a counted sequence of that kind.
    pub sequence: bool,
}

/// Bit of a type byte that marks a sequence.
pub const SEQUENCE: u8 = 0x80;

impl FieldType {
    /// Returns the type of a single value.
    pub const fn scalar(kind: Kind) -> FieldType {
        FieldType { kind, sequence: false }
    }

    /// Returns the type of a counted sequence.
    pub const fn sequence(kind: Kind) -> FieldType {
        FieldType { kind, sequence: true }
    }

    /// Returns the type byte.
    pub const fn to_u8(self) -> u8 {
        self.kind as u8 | if self.sequence { SEQUENCE } else { 0 }
    }

    /// Reads a type byte. Returns `None` for unknown kinds and for sequences of strings or byte slices.
    pub fn from_u8(byte: u8) -> Option<FieldType> {
        let kind = Kind::from_u8(byte & !SEQUENCE)?;
        let sequence = byte & SEQUENCE != 0;
        (!sequence || !matches!(kind, Kind::Str | Kind::Bytes)).then_some(FieldType { kind, sequence })
    }

    /// Returns the size of the field in a record, in bytes, if it does not depend on the value.
    pub const fn fixed_size_bytes(self) -> Option<usize> {
        match self {
            FieldType { sequence: true, .. } | FieldType { kind: Kind::Str | Kind::Bytes, .. } => None,
            FieldType { kind, .. } => Some(kind.element_size_bytes()),
        }
    }
}

/// Maximum number of fields of an event class.
pub const FIELD_COUNT_MAX: usize = 32;
/// Maximum length of a provider, event or field name, in bytes.
pub const NAME_LEN_MAX: usize = 255;

/// Whether a provider, event or field may have this name: a C identifier of at most [`NAME_LEN_MAX`] bytes.
pub const fn is_name(name: &str) -> bool {
    let name = name.as_bytes();
    let mut index = 0;
    while index < name.len() {
        match name[index] {
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' if index > 0 => {}
            _ => return false,
        }
        index += 1;
    }
    index > 0 && index <= NAME_LEN_MAX
}

/// Whether `text` matches `pattern`, in which `*` stands for any characters and `?` for any one character.
///
/// `.` and `:` match each other, so `http.request` and `http:request` are the same name.
pub fn matches(pattern: &str, text: &str) -> bool {
    fn canonical(byte: u8) -> u8 {
        if byte == b'.' { b':' } else { byte }
    }
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || canonical(byte) == canonical(text[t]) => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((star, from)) => {
                    retry = Some((star, from + 1));
                    p = star;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// An event class. The types of its fields are checked, or are type bytes as announced ([`Announcement`]).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassDecl<T = FieldType> {
    /// Provider.
    pub provider: String,
    /// Event name.
    pub name: String,
    /// Field names and types.
    pub fields: Vec<(String, T)>,
}

impl<T> ClassDecl<T> {
    /// Returns `provider:name`, which patterns match and tools print.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }
}

/// An event class announced by a program, with type bytes ([`FieldType::to_u8`]) that are not checked yet: the session
/// owner reports each class that it refuses.
pub type Announcement = ClassDecl<u8>;

impl Announcement {
    /// Returns the class, if a trace can hold it.
    ///
    /// # Errors
    /// A line that names the first part that no trace can hold.
    pub fn check(&self) -> Result<ClassDecl, String> {
        let check_name = |name: &String| {
            let wrong = || {
                let name = shown(name);
                format!(
                    "`{name}` is no name that a trace can hold: write ASCII letters, digits and `_`, no digit first, at most {NAME_LEN_MAX} bytes"
                )
            };
            if is_name(name) { Ok(name.clone()) } else { Err(wrong()) }
        };
        let (provider, name) = (check_name(&self.provider)?, check_name(&self.name)?);
        let field_count = self.fields.len();
        if field_count > FIELD_COUNT_MAX {
            return Err(format!("it has {field_count} fields, and a class at most {FIELD_COUNT_MAX}"));
        }
        let field = |(name, type_byte): &(String, u8)| -> Result<_, String> {
            let name = check_name(name)?;
            let field_type = FieldType::from_u8(*type_byte).ok_or_else(|| {
                format!(
                    "its field {name} is of the unknown type {type_byte}; build the program with the headers of its libdormouse"
                )
            })?;
            Ok((name, field_type))
        };
        Ok(ClassDecl { provider, name, fields: self.fields.iter().map(field).collect::<Result<_, _>>()? })
    }

    /// Returns the class in the form of the session's register: provider, NUL, name, NUL, and for each field its type
    /// byte, its name, NUL.
    pub fn to_text(&self) -> Vec<u8> {
        let names = [&self.provider, &self.name].into_iter().flat_map(|name| name.bytes().chain([0]));
        let fields = self.fields.iter().flat_map(|(name, byte)| [*byte].into_iter().chain(name.bytes()).chain([0]));
        names.chain(fields).collect()
    }

    /// Reads [`Announcement::to_text`]. Returns `None` for any other bytes.
    pub fn from_text(text: &[u8]) -> Option<Announcement> {
        let mut parts = text.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (provider, event) = (name(parts.next()?), name(parts.next()?));
        let field = |part: &[u8]| part.split_first().map(|(byte, bytes)| (name(bytes), *byte));
        Some(Announcement { provider, name: event, fields: parts.map(field).collect::<Option<_>>()? })
    }
}

impl From<&ClassDecl> for Announcement {
    fn from(decl: &ClassDecl) -> Announcement {
        let fields = decl.fields.iter().map(|(name, field_type)| (name.clone(), field_type.to_u8()));
        Announcement { provider: decl.provider.clone(), name: decl.name.clone(), fields: fields.collect() }
    }
}

/// An event class in the layout of C programs. The gate's count comes first, so a class's address is its key's address.
///
/// Its description follows it directly, in bytes without addresses:
///
/// ```text
///   field_count   type byte of each field, and 0   provider, NUL   name, NUL   name of each field, NUL
///   1 byte        field_count + 1 bytes            texts
/// ```
#[repr(C)]
#[derive(Debug)]
pub struct CClass {
    /// Number of users that have enabled the class; above zero means armed.
    pub enabled: AtomicI32,
    /// Id that the session has given, with trigger marks above [`CLASS_MARKS_SHIFT`]; or [`CLASS_ID_NONE`].
    pub id: AtomicU32,
}

impl CClass {
    /// Returns a class that is not enabled and in no session.
    pub const fn unused() -> CClass {
        CClass { enabled: AtomicI32::new(0), id: AtomicU32::new(CLASS_ID_NONE) }
    }

    /// Returns the address of a class's description. `class` must be derived from a pointer to both.
    pub fn description(class: *const CClass) -> *const u8 {
        class.wrapping_add(1).cast()
    }
}

/// An event of a Rust program in the program's file, where tools find its names: offsets in its static data, which begin
/// like a [`CClass`]. A text is an address and a length, and so is the list of field names.
pub mod rust_event {
    /// Offset of the provider.
    pub const PROVIDER_OFFSET: usize = 24;
    /// Offset of the event name.
    pub const NAME_OFFSET: usize = 40;
    /// Offset of the list of field names.
    pub const FIELDS_OFFSET: usize = 56;
    /// Size of a text or a list, in bytes.
    pub const SLICE_SIZE_BYTES: usize = 16;
    /// Offset of the number of fields in the description that the function of an
    /// [`EventRecord`](crate::site::EventRecord) returns. The fields' type bytes precede it.
    pub const COUNT_OFFSET: usize = super::FIELD_COUNT_MAX;
}

/// Lowest bit of a class's id word that is a trigger mark. Marks tell which of the program's triggers wait for the
/// class. A word with marks is greater than [`CLASS_ID_MAX`], so the record path takes its slow branch for such a
/// class, and for no other.
pub const CLASS_MARKS_SHIFT: u32 = 16;
/// Id of a class that is not in a session.
pub const CLASS_ID_NONE: u32 = u32::MAX;
/// Greatest id of a program's class. Greater ids belong to the session owner.
pub const CLASS_ID_MAX: u16 = 0xFFEF;

const _: () = assert!(size_of::<CClass>() == 8);

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn invalid_classes_are_distinguished() {
        let announcement = |name: &str, field: &str, type_byte| Announcement {
            provider: "p".into(),
            name: name.into(),
            fields: vec![("first".into(), 1), (field.into(), type_byte)],
        };
        let class = announcement("e", "second", SEQUENCE | Kind::U16 as u8);
        let decl = class.check().unwrap();
        assert_eq!((decl.full_name().as_str(), Announcement::from(&decl)), ("p:e", class.clone()));

        let long = "n".repeat(NAME_LEN_MAX + 1);
        for name in ["größe", "", "9", "a b", "\u{1b}[2J", &long] {
            let error = announcement(name, "f", 1).check().unwrap_err();
            assert!(error.starts_with(&format!("`{}` is no name", shown(name))), "{error}");
            assert_eq!(announcement("e", name, 1).check(), Err(error.clone()));
            assert_eq!(Announcement { provider: name.into(), ..class.clone() }.check(), Err(error.clone()));
            assert!(!error.contains(char::is_control));
        }
        for type_byte in [0, 15, SEQUENCE, SEQUENCE | Kind::Str as u8] {
            let error = announcement("e", "f", type_byte).check().unwrap_err();
            assert!(error.starts_with(&format!("its field f is of the unknown type {type_byte};")), "{error}");
        }
        let many = |count| Announcement { fields: vec![("f".into(), 1); count], ..class.clone() };
        assert!(many(FIELD_COUNT_MAX).check().is_ok());
        assert_eq!(many(FIELD_COUNT_MAX + 1).check(), Err("it has 33 fields, and a class at most 32".into()));
    }

    #[test]
    fn patterns_match_names() {
        for (pattern, text, expected) in [
            ("*", "a:b", true),
            ("a:*", "a:b", true),
            ("a.*", "a:b", true),
            ("a:?", "a:b", true),
            ("a:?", "a:bc", false),
            ("*:b*d", "x:bad", true),
            ("*:b*d", "x:badly", false),
            ("a:b", "a:b", true),
            ("", "a:b", false),
            ("a*b*c", "aXbXbXc", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
