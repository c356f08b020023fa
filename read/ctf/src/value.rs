//! Values of fields, borrowed from the stream.

use dormouse_abi::class::{FieldType, Kind};

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
    /// 0 or 1; any other byte that a stream holds is kept.
    Bool(u8),
    Pointer(u64),
    /// Text without its terminating NUL; UTF-8 unless the program wrote something else.
    Str(&'a [u8]),
    Bytes(&'a [u8]),
    Sequence(Sequence<'a>),
}

/// A counted sequence of scalars, as raw bytes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence<'a> {
    kind: Kind,
    bytes: &'a [u8],
}

impl<'a> Sequence<'a> {
    /// Returns a sequence of the elements in `bytes`, little-endian and packed. Bytes after the last whole element are
    /// dropped.
    ///
    /// Returns `None` for [`Kind::Str`] and [`Kind::Bytes`], which cannot be elements of sequences.
    pub fn new(kind: Kind, bytes: &'a [u8]) -> Option<Sequence<'a>> {
        if matches!(kind, Kind::Str | Kind::Bytes) {
            return None;
        }
        let len = bytes.len() - bytes.len() % kind.element_size_bytes();
        Some(Sequence { kind, bytes: &bytes[..len] })
    }

    /// Kind of the elements.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.kind.element_size_bytes()
    }

    /// Returns the elements.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let kind = self.kind;
        self.bytes.chunks_exact(kind.element_size_bytes()).map(move |element| Value::scalar(kind, element))
    }
}

impl<'a> Value<'a> {
    /// Decodes a value from exactly the bytes that the plan found for it; for a sequence, these are the bytes of its
    /// elements.
    pub(crate) fn decode(field_type: FieldType, bytes: &'a [u8]) -> Value<'a> {
        match field_type {
            FieldType { kind, sequence: true } => Value::Sequence(Sequence { kind, bytes }),
            FieldType { kind: Kind::Str, .. } => Value::Str(bytes.strip_suffix(b"\0").unwrap_or(bytes)),
            FieldType { kind: Kind::Bytes, .. } => Value::Bytes(bytes),
            FieldType { kind, .. } => Value::scalar(kind, bytes),
        }
    }

    fn scalar(kind: Kind, bytes: &'a [u8]) -> Value<'a> {
        match kind {
            // Text and byte slices cannot be elements (`FieldType::from_u8` refuses such sequences); their bytes can.
            Kind::U8 | Kind::Str | Kind::Bytes => Value::U8(bytes[0]),
            Kind::U16 => Value::U16(u16::from_le_bytes(array(bytes))),
            Kind::U32 => Value::U32(u32::from_le_bytes(array(bytes))),
            Kind::U64 => Value::U64(u64::from_le_bytes(array(bytes))),
            Kind::I8 => Value::I8(i8::from_le_bytes(array(bytes))),
            Kind::I16 => Value::I16(i16::from_le_bytes(array(bytes))),
            Kind::I32 => Value::I32(i32::from_le_bytes(array(bytes))),
            Kind::I64 => Value::I64(i64::from_le_bytes(array(bytes))),
            Kind::F32 => Value::F32(f32::from_le_bytes(array(bytes))),
            Kind::F64 => Value::F64(f64::from_le_bytes(array(bytes))),
            Kind::Bool => Value::Bool(bytes[0]),
            Kind::Pointer => Value::Pointer(u64::from_le_bytes(array(bytes))),
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}
