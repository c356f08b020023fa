//! Event classes: names, fields and their kinds, levels.

mod level;

pub use level::Level;

use alloc::collections::{BTreeMap, BTreeSet};
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

    /// Returns whether values are integers, which can have labels: neither booleans nor addresses.
    pub const fn is_integer(self) -> bool {
        self as u8 <= Kind::I64 as u8
    }

    /// Returns the integer with these bits, which are an `i64` if the kind is signed, and a `u64` otherwise.
    pub const fn integer(self, bits: i64) -> i128 {
        match self {
            Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => bits as i128,
            _ => bits.cast_unsigned() as i128,
        }
    }

    /// Returns whether the kind can hold this integer.
    fn holds(self, number: i128) -> bool {
        let size_bits = 8 * self.element_size_bytes() as u32;
        match self {
            Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => {
                -(1i128 << (size_bits - 1)) <= number && number < 1i128 << (size_bits - 1)
            }
            _ => 0 <= number && number < 1i128 << size_bits,
        }
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
/// Bit of a type byte that marks an enumeration: an integer whose values have labels. It is set where the labels follow:
/// in the description of a class, and in the register's text. [`FieldType`] does not contain it.
pub const LABELLED: u8 = 0x40;

/// Byte in place of a type byte in the register's text: the level follows. No type has it.
const LEVEL_MARK: u8 = 0x20;

/// Whether a type byte is that of an enumeration, so that labels follow.
pub const fn is_labelled(byte: u8) -> bool {
    byte > LABELLED && byte <= LABELLED | Kind::I64 as u8
}

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
/// Maximum length of a provider, event or field name, and of a label, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Maximum number of labels of a field.
pub const LABEL_COUNT_MAX: usize = 1024;

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

/// Name of a value of an enumeration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// Name.
    pub name: String,
    /// The value's bits: a `u64` if the field is unsigned ([`Kind::integer`]).
    pub bits: i64,
}

/// Labels of the fields that are enumerations, by the index of the field.
pub type Labels = BTreeMap<usize, Vec<Label>>;

/// An event class. The types of its fields are checked, or are type bytes as announced ([`Announcement`]).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassDecl<T = FieldType> {
    /// Provider.
    pub provider: String,
    /// Event name.
    pub name: String,
    /// Field names and types.
    pub fields: Vec<(String, T)>,
    /// Labels.
    pub labels: Labels,
    /// Level, if the program gives one.
    pub level: Option<Level>,
}

impl<T> ClassDecl<T> {
    /// Returns `provider:name`, which patterns match and tools print.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }
}

/// An event class announced by a program, with type bytes ([`FieldType::to_u8`]) and labels that are not checked yet:
/// the session owner reports each class that it refuses.
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
        let fields: Vec<(String, FieldType)> = self.fields.iter().map(field).collect::<Result<_, _>>()?;
        for (index, labels) in &self.labels {
            let (name, field_type) = fields.get(*index).ok_or("it has labels of a field that it does not have")?;
            check_labels(*field_type, labels).map_err(|reason| format!("its field {name} {reason}"))?;
        }
        Ok(ClassDecl { provider, name, fields, labels: self.labels.clone(), level: self.level })
    }

    /// Returns the class in the form of the session's register: provider, NUL, name, NUL, and for each field its type
    /// byte, its name, NUL. If the type byte contains [`LABELLED`], lines `label=bits` follow, and NUL. Last, if the
    /// class has a level: a blank, which is no type byte, the level's name, NUL.
    pub fn to_text(&self) -> Vec<u8> {
        let mut text: Vec<u8> =
            [&self.provider, &self.name].into_iter().flat_map(|name| name.bytes().chain([0])).collect();
        for (index, (name, byte)) in self.fields.iter().enumerate() {
            let labels = self.labels.get(&index).filter(|_| is_labelled(byte | LABELLED));
            text.push(byte | if labels.is_some() { LABELLED } else { 0 });
            text.extend(name.bytes().chain([0]));
            if let Some(labels) = labels {
                let labels: Vec<_> = labels.iter().map(|label| format!("{}={}", label.name, label.bits)).collect();
                text.extend(labels.join("\n").bytes().chain([0]));
            }
        }
        if let Some(level) = self.level {
            text.push(LEVEL_MARK);
            text.extend(level.name().bytes().chain([0]));
        }
        text
    }

    /// Reads [`Announcement::to_text`]. Returns `None` for any other bytes.
    pub fn from_text(text: &[u8]) -> Option<Announcement> {
        let mut parts = text.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let label = |bytes: &str| {
            let (name, bits) = bytes.rsplit_once('=')?;
            Some(Label { name: name.into(), bits: bits.parse().ok()? })
        };
        let (provider, event) = (name(parts.next()?), name(parts.next()?));
        let (mut fields, mut labels, mut level) = (Vec::new(), Labels::new(), None);
        while let Some(part) = parts.next() {
            // Nothing follows the level.
            if level.is_some() {
                return None;
            }
            let (&(mut byte), bytes) = part.split_first()?;
            if byte == LEVEL_MARK {
                level = core::str::from_utf8(bytes).ok().and_then(Level::named);
                if level.is_some() {
                    continue;
                }
            }
            if is_labelled(byte) {
                let of_field = name(parts.next()?).split('\n').map(label).collect::<Option<_>>()?;
                labels.insert(fields.len(), of_field);
                byte &= !LABELLED;
            }
            fields.push((name(bytes), byte));
        }
        Some(Announcement { provider, name: event, fields, labels, level })
    }
}

/// Checks the labels of a field.
///
/// # Errors
/// The end of a line that begins with the field: the reason why it cannot have these labels.
pub fn check_labels(FieldType { kind, sequence }: FieldType, labels: &[Label]) -> Result<(), String> {
    if sequence || !kind.is_integer() {
        return Err("has labels, and is no single integer".into());
    }
    if labels.is_empty() || labels.len() > LABEL_COUNT_MAX {
        return Err(format!("has {} labels; an enumeration has 1 to {LABEL_COUNT_MAX}", labels.len()));
    }
    let mut names = BTreeSet::new();
    for Label { name, bits } in labels {
        let (shown, number) = (shown(name), kind.integer(*bits));
        if !is_name(name) {
            return Err(format!(
                "has the label `{shown}`: write ASCII letters, digits and `_`, no digit first, at most {NAME_LEN_MAX} bytes"
            ));
        }
        if !kind.holds(number) {
            let size_bits = 8 * kind.element_size_bytes();
            return Err(format!("cannot hold {number}, the value of the label {shown}, in its {size_bits} bits"));
        }
        if !names.insert(name) {
            return Err(format!("has the label {shown} twice"));
        }
    }
    Ok(())
}

impl From<&ClassDecl> for Announcement {
    fn from(decl: &ClassDecl) -> Announcement {
        let fields = decl.fields.iter().map(|(name, field_type)| (name.clone(), field_type.to_u8()));
        let (provider, name, labels) = (decl.provider.clone(), decl.name.clone(), decl.labels.clone());
        Announcement { provider, name, fields: fields.collect(), labels, level: decl.level }
    }
}

/// An event class in the layout of C programs. The gate's count comes first, so a class's address is its key's address.
///
/// Its description follows it directly, in bytes without addresses:
///
/// ```text
///   field_count   type byte of each field   level     provider, NUL   name, NUL   name of each field, NUL
///   1 byte        field_count bytes         1 byte    texts
///
///   labels of each field with `LABELLED`, NUL after each; NUL   NUL      bits of all labels
///   texts                                                       1 byte   8 bytes each, not aligned
/// ```
///
/// The level is [`Level::byte_of`]: 0 if the class has none.
#[repr(C)]
#[derive(Debug)]
pub struct CClass {
    /// Number of users that have enabled the class; above zero means armed.
    pub enabled: AtomicI32,
    /// Id that the session has given, with the number of the class's plan above [`CLASS_PLAN_SHIFT`]; or [`CLASS_ID_NONE`].
    pub id: AtomicU32,
}

impl CClass {
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
    /// Offset of [`Level::byte_of`](super::Level::byte_of), as a word of 8 bytes. Programs of older versions have
    /// other data there.
    pub const LEVEL_OFFSET: usize = 72;
    /// Size of a text or a list, in bytes.
    pub const SLICE_SIZE_BYTES: usize = 16;
    /// Offset of the number of fields in the description that the function of an
    /// [`EventRecord`](crate::site::EventRecord) returns. The fields' type bytes precede it.
    pub const COUNT_OFFSET: usize = super::FIELD_COUNT_MAX;
    /// Offset in the description of the address of the last field that is an enumeration; 0 if none is.
    pub const LABELLED_OFFSET: usize = COUNT_OFFSET + 8;
    /// Offsets in an enumeration of the index of its field, of the list of its labels, and of the address of the
    /// enumeration before it.
    pub const ENUMERATION_OFFSETS: [usize; 3] = [0, 8, 24];
    /// Size of a label, in bytes: its name and its value's bits.
    pub const LABEL_SIZE_BYTES: usize = SLICE_SIZE_BYTES + 8;
}

/// Lowest bit of the number of a class's plan in its id word. A class has a plan if rules or triggers concern its
/// events. A word with a plan is greater than [`CLASS_ID_MAX`], so the record path takes its slow branch for such a
/// class, and for no other.
pub const CLASS_PLAN_SHIFT: u32 = 16;
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
            labels: Labels::new(),
            level: None,
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
        for type_byte in [0, 15, SEQUENCE, SEQUENCE | Kind::Str as u8, LABELLED, LABELLED | Kind::Bool as u8, 0xFF] {
            let unknown = announcement("e", "f", type_byte);
            // A type byte of 0 ends the text.
            assert_eq!(Announcement::from_text(&unknown.to_text()), Some(unknown).filter(|_| type_byte != 0));
            let error = announcement("e", "f", type_byte).check().unwrap_err();
            assert!(error.starts_with(&format!("its field f is of the unknown type {type_byte};")), "{error}");
        }
        let many = |count| Announcement { fields: vec![("f".into(), 1); count], ..class.clone() };
        assert!(many(FIELD_COUNT_MAX).check().is_ok());
        assert_eq!(many(FIELD_COUNT_MAX + 1).check(), Err("it has 33 fields, and a class at most 32".into()));
    }

    #[test]
    fn labels_belong_to_integers_that_can_hold_them() {
        let labels = |labels: &[(&str, i64)]| -> Vec<Label> {
            labels.iter().map(|(name, bits)| Label { name: (*name).into(), bits: *bits }).collect()
        };
        let announcement = |type_byte, of_field: &[(&str, i64)]| Announcement {
            provider: "p".into(),
            name: "e".into(),
            fields: vec![("n".into(), 1), ("state".into(), type_byte)],
            labels: Labels::from([(1, labels(of_field))]),
            level: None,
        };
        for (kind, bits) in
            [(Kind::U8, 255), (Kind::I8, -128), (Kind::I32, -1), (Kind::U32, 1 << 31), (Kind::U64, -1), (Kind::I64, -1)]
        {
            let class = announcement(kind as u8, &[("READY", 0), ("_9", bits)]);
            assert_eq!(Announcement::from(&class.check().unwrap()), class);
            assert_eq!(Announcement::from_text(&class.to_text()), Some(class));
        }
        let sequence = SEQUENCE | Kind::U8 as u8;
        for (type_byte, of_field, reason) in [
            (Kind::U8 as u8, &[("A", 256)][..], "cannot hold 256, the value of the label A, in its 8 bits"),
            (Kind::I8 as u8, &[("A", 128)], "cannot hold 128, the value of the label A, in its 8 bits"),
            (Kind::U16 as u8, &[("A", -1)], "cannot hold 18446744073709551615, the value of the label A"),
            (Kind::U8 as u8, &[], "has 0 labels"),
            (Kind::U8 as u8, &[("A", 1), ("A", 2)], "has the label A twice"),
            (Kind::U8 as u8, &[("\u{1b}[2J", 1)], "has the label `"),
            (Kind::Bool as u8, &[("A", 1)], "has labels, and is no single integer"),
            (Kind::Str as u8, &[("A", 1)], "has labels, and is no single integer"),
            (sequence, &[("A", 1)], "has labels, and is no single integer"),
        ] {
            let error = announcement(type_byte, of_field).check().unwrap_err();
            assert!(error.starts_with(&format!("its field state {reason}")), "{error}");
            assert!(!error.contains(char::is_control));
        }
        let many = announcement(1, &vec![("A", 1); LABEL_COUNT_MAX + 1]).check().unwrap_err();
        assert!(many.contains("1025 labels"), "{many}");
        for text in ["p\0e\0\x41f\0", "p\0e\0\x41f\0A\0", "p\0e\0\x41f\0A=x\0", "p\0e\0\x41f\0A=1\n\0"] {
            assert_eq!(Announcement::from_text(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_level_is_the_last_part_of_the_text() {
        let plain = Announcement {
            provider: "p".into(),
            name: "e".into(),
            fields: vec![("n".into(), 1), ("state".into(), 1)],
            labels: Labels::from([(1, vec![Label { name: "UP".into(), bits: 1 }])]),
            level: None,
        };
        let text = b"p\0e\0\x01n\0\x41state\0UP=1\0";
        assert_eq!(plain.to_text(), text);
        for level in Level::ALL {
            let class = Announcement { level: Some(level), ..plain.clone() };
            assert_eq!(class.to_text(), [&text[..], format!(" {}\0", level.name()).as_bytes()].concat());
            assert_eq!(Announcement::from_text(&class.to_text()), Some(class.clone()));
            assert_eq!(class.check().map(|decl| Announcement::from(&decl)), Ok(class));
        }
        assert_eq!(Announcement::from_text(b"p\0e\0 INFO\0").and_then(|class| class.level), Some(Level::Info));
        for text in ["p\0e\0 INFO\0 INFO\0", "p\0e\0 INFO\0\x01n\0", "p\0e\0 INFO\0\0", "p\0e\0 INFO"] {
            assert_eq!(Announcement::from_text(text.as_bytes()), None, "{text:?}");
        }
        // Other words are fields of an unknown type, as a reader without levels sees all of them.
        let unknown = Announcement::from_text(b"p\0e\0 LOUD\0").map(|class| (class.level, class.check().unwrap_err()));
        let (level, error) = unknown.unwrap();
        assert!(level.is_none() && error.starts_with("its field LOUD is of the unknown type 32;"), "{error}");
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
