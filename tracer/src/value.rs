//! From Rust values to bytes in a record.
//!
//! The field types of an event are known to the compiler only: a list of them is built up as a type ([`Nil`], [`Cons`]) while
//! the values are put into a [`Payload`], so that the same expression gives the bytes when armed and the description of the
//! event class when nothing ever ran.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use dormouse_abi::class::{FIELD_COUNT_MAX, FieldType, Kind};
use dormouse_relay::Segment;

use crate::write::Current;

/// A field type as a Rust type; the parameter is [`FieldType::to_u8`].
#[derive(Debug)]
pub struct TypeByte<const TYPE: u8>;

/// Implemented by [`TypeByte`] only.
pub trait HasTypeByte {
    /// [`FieldType::to_u8`].
    const TYPE: u8;
}

impl<const TYPE: u8> HasTypeByte for TypeByte<TYPE> {
    const TYPE: u8 = TYPE;
}

/// What can be the value of an event's field: integers of 8 to 64 bits, floats, `bool`, `char`, strings, byte slices and
/// slices, arrays and vectors of integers, floats and booleans, raw pointers, and references to any of these.
///
/// `usize` and `isize` are recorded with 64 bits, a `char` as its `u32`. A string ends at its first NUL, as CTF strings do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of an event",
    label = "not an event field",
    note = "integers up to 64 bits, floats, bool, strings, byte slices, arrays of integers and raw pointers can"
)]
pub trait Value {
    /// The field's type.
    type Type: HasTypeByte;
    /// Puts the value into a record.
    fn put<const BYTES: usize, const RUNS: usize>(&self, payload: &mut Payload<BYTES, RUNS>);
}

/// The fields of one record: small values gathered in place, long ones by reference until the record is written.
///
/// `BYTES` is at least 8 × (fields + 1), `RUNS` at least 2 × fields + 1.
#[derive(Debug)]
pub struct Payload<const BYTES: usize, const RUNS: usize> {
    scratch: [MaybeUninit<u8>; BYTES],
    scratch_len: usize,
    run_start: usize,
    runs: [Segment; RUNS],
    run_count: usize,
}

impl<const BYTES: usize, const RUNS: usize> Payload<BYTES, RUNS> {
    /// No fields yet.
    #[inline(always)]
    pub fn new() -> Self {
        Payload {
            scratch: [MaybeUninit::uninit(); BYTES],
            scratch_len: 0,
            run_start: 0,
            runs: [Segment::EMPTY; RUNS],
            run_count: 0,
        }
    }

    /// Adds up to eight bytes by value.
    #[inline(always)]
    fn small<const N: usize>(&mut self, bytes: [u8; N]) {
        debug_assert!(self.scratch_len + N + 8 <= BYTES);
        for (slot, byte) in self.scratch[self.scratch_len..][..N].iter_mut().zip(bytes) {
            slot.write(byte);
        }
        self.scratch_len += N;
    }

    /// Ends the run of small values.
    #[inline(always)]
    fn close_run(&mut self) {
        let len = self.scratch_len - self.run_start;
        if len > 0 {
            // A copy by whole words reads at most seven bytes beyond the run, and the scratch space has eight to spare.
            let source = self.scratch.as_ptr().wrapping_add(self.run_start).cast();
            self.runs[self.run_count] = Segment::padded(source, len);
            self.run_count += 1;
            self.run_start = self.scratch_len;
        }
    }

    /// Adds bytes that stay where they are until the record is written.
    #[inline(always)]
    fn long(&mut self, bytes: *const u8, len: usize) {
        self.close_run();
        if len > 0 {
            self.runs[self.run_count] = Segment::exact(bytes, len);
            self.run_count += 1;
        }
    }

    /// Writes the fields as a record of class `id`.
    #[inline(always)]
    pub(crate) fn record(&mut self, session: Current, id: u32) {
        if self.run_count == 0 {
            crate::write::record_words(session, id, self.scratch.as_ptr().cast(), self.scratch_len);
        } else {
            crate::write::record_segments(session, id, self.runs());
        }
    }

    /// All runs.
    #[inline(always)]
    fn runs(&mut self) -> &[Segment] {
        self.close_run();
        &self.runs[..self.run_count]
    }
}

impl<const BYTES: usize, const RUNS: usize> Default for Payload<BYTES, RUNS> {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! scalar {
    ($($type:ty as $wide:ty => $kind:ident),* $(,)?) => {$(
        impl Value for $type {
            type Type = TypeByte<{ FieldType::scalar(Kind::$kind).to_u8() }>;
            #[inline(always)]
            fn put<const BYTES: usize, const RUNS: usize>(&self, payload: &mut Payload<BYTES, RUNS>) {
                payload.small((*self as $wide).to_le_bytes());
            }
        }
        impl Value for [$type] {
            type Type = TypeByte<{ sequence_of(Kind::$kind, size_of::<$type>()) }>;
            #[inline(always)]
            fn put<const BYTES: usize, const RUNS: usize>(&self, payload: &mut Payload<BYTES, RUNS>) {
                // A sequence too long for any page is refused by the write, which sees its length in bytes.
                payload.small((self.len() as u32).to_le_bytes());
                payload.long(self.as_ptr().cast(), size_of_val(self));
            }
        }
    )*};
}

/// `[u8]` is a byte slice; any other slice is a sequence. Elements lie in memory as records hold them.
const fn sequence_of(kind: Kind, size_bytes: usize) -> u8 {
    assert!(kind.element_size_bytes() == size_bytes);
    match kind {
        Kind::U8 => FieldType::scalar(Kind::Bytes).to_u8(),
        _ => FieldType::sequence(kind).to_u8(),
    }
}

scalar! {
    u8 as u8 => U8, u16 as u16 => U16, u32 as u32 => U32, u64 as u64 => U64,
    i8 as i8 => I8, i16 as i16 => I16, i32 as i32 => I32, i64 as i64 => I64,
    f32 as f32 => F32, f64 as f64 => F64, bool as u8 => Bool, char as u32 => U32,
}
#[cfg(target_pointer_width = "64")]
scalar! { usize as u64 => U64, isize as i64 => I64 }

macro_rules! pointer {
    ($($type:ty),*) => {$(
        impl<T: ?Sized> Value for $type {
            type Type = TypeByte<{ FieldType::scalar(Kind::Pointer).to_u8() }>;
            #[inline(always)]
            fn put<const BYTES: usize, const RUNS: usize>(&self, payload: &mut Payload<BYTES, RUNS>) {
                payload.small((self.cast::<()>() as usize as u64).to_le_bytes());
            }
        }
    )*};
}
pointer!(*const T, *mut T);

impl Value for str {
    type Type = TypeByte<{ FieldType::scalar(Kind::Str).to_u8() }>;
    #[inline(always)]
    fn put<const BYTES: usize, const RUNS: usize>(&self, payload: &mut Payload<BYTES, RUNS>) {
        let len = self.bytes().position(|byte| byte == 0).unwrap_or(self.len());
        payload.long(self.as_ptr(), len);
        payload.small([0]);
    }
}

impl Value for core::ffi::CStr {
    type Type = TypeByte<{ FieldType::scalar(Kind::Str).to_u8() }>;
    #[inline(always)]
    fn put<const BYTES: usize, const RUNS: usize>(&self, payload: &mut Payload<BYTES, RUNS>) {
        let bytes = self.to_bytes();
        payload.long(bytes.as_ptr(), bytes.len());
        payload.small([0]);
    }
}

macro_rules! delegate {
    ($([$($generics:tt)*] $type:ty => $target:ty),* $(,)?) => {$(
        impl<$($generics)*> Value for $type where $target: Value {
            type Type = <$target as Value>::Type;
            #[inline(always)]
            fn put<const BYTES: usize, const RUNS: usize>(&self, payload: &mut Payload<BYTES, RUNS>) {
                <$target as Value>::put(self, payload);
            }
        }
    )*};
}
delegate! {
    [T: ?Sized] &T => T,
    [T: ?Sized] &mut T => T,
    [T: ?Sized] Box<T> => T,
    [T, const N: usize] [T; N] => [T],
    [T] Vec<T> => [T],
    [] String => str,
    [] std::ffi::CString => core::ffi::CStr,
}

/// The empty list of field types.
#[derive(Debug)]
pub struct Nil;

/// A list of field types and one more.
#[derive(Debug)]
pub struct Cons<List, Type>(PhantomData<(List, Type)>);

/// The field types of an event class, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    types: [u8; FIELD_COUNT_MAX],
    count: usize,
}

impl Description {
    const EMPTY: Description = Description { types: [0; FIELD_COUNT_MAX], count: 0 };

    const fn and(mut self, type_byte: u8) -> Description {
        assert!(self.count < FIELD_COUNT_MAX, "an event has at most 32 fields");
        self.types[self.count] = type_byte;
        self.count += 1;
        self
    }

    /// The field types, in order.
    pub fn types(&self) -> impl Iterator<Item = FieldType> {
        self.types[..self.count].iter().filter_map(|byte| FieldType::from_u8(*byte))
    }
}

/// A list of field types.
pub trait TypeList {
    /// The list as data.
    const DESCRIPTION: Description;
}

impl TypeList for Nil {
    const DESCRIPTION: Description = Description::EMPTY;
}

impl<List: TypeList, Type: HasTypeByte> TypeList for Cons<List, Type> {
    const DESCRIPTION: Description = List::DESCRIPTION.and(Type::TYPE);
}

/// The description of a list, one for each (the compiler may keep equal ones in one place).
#[inline(always)]
pub fn description<List: TypeList>() -> &'static Description {
    const { &List::DESCRIPTION }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather<const BYTES: usize, const RUNS: usize>(payload: &mut Payload<BYTES, RUNS>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for run in payload.runs() {
            // SAFETY: the test's values are alive, and a run's length is what was put.
            bytes.extend_from_slice(unsafe { run.bytes() });
        }
        bytes
    }

    #[test]
    fn values_become_the_documented_bytes() {
        let vector = vec![5u8, 6];
        let mut payload = Payload::<96, 23>::new();
        1u8.put(&mut payload);
        (-2i16).put(&mut payload);
        true.put(&mut payload);
        "hä\0no".put(&mut payload);
        [3u16, 4].put(&mut payload);
        vector.put(&mut payload);
        (&&7i64).put(&mut payload);
        1.5f32.put(&mut payload);
        String::new().put(&mut payload);
        let mut expected = vec![1, 0xFE, 0xFF, 1];
        expected.extend_from_slice("hä\0".as_bytes());
        expected.extend_from_slice(&[2, 0, 0, 0, 3, 0, 4, 0, 2, 0, 0, 0, 5, 6]);
        expected.extend_from_slice(&7i64.to_le_bytes());
        expected.extend_from_slice(&1.5f32.to_le_bytes());
        expected.push(0);
        assert_eq!(gather(&mut payload), expected);
    }

    #[test]
    fn a_list_describes_itself() {
        type List = Cons<Cons<Nil, <[u32; 3] as Value>::Type>, <&'static str as Value>::Type>;
        let types: Vec<_> = description::<List>().types().collect();
        assert_eq!(types, [FieldType::sequence(Kind::U32), FieldType::scalar(Kind::Str)]);
    }
}
