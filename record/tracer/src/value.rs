//! Conversion of Rust values to bytes in a record.
//!
//! Only the compiler knows the field types of an event. A list of them is built as a type ([`Nil`], [`Cons`]) while the
//! values are evaluated ([`Fields`]), so the same expression gives the bytes when it is armed, and the description of
//! the event class even if it never runs.
//!
//! ```text
//!   expression ──evaluate──▶ EvaluatedValue: a number, or a reference
//!              ──when all are evaluated──▶ Words, or a Payload ──▶ record
//! ```
//!
//! An expression may contain `.await`. So data kept while others are evaluated are `Send`, and raw pointers are made
//! after the last evaluation.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use dormouse_abi::class::{FIELD_COUNT_MAX, FieldType, Kind, LABEL_COUNT_MAX, SEQUENCE, rust_event};
use dormouse_relay::Segment;

use crate::name::check;

/// Maximum number of words of fields that a record passes in registers.
pub(crate) const WORDS_MAX: usize = 3;

/// A field type as a Rust type. The parameter is its byte, [`FieldType::to_u8`].
#[derive(Debug)]
pub struct TypeByte<const TYPE: u8>;

/// A label of an enumeration, and its value's bits.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticLabel(pub &'static str, pub i64);

/// Labels of an enumeration.
pub type StaticLabels = &'static [StaticLabel];

/// A type that has a type byte. Implemented by `TypeByte`, and by the enumerations of [`enumeration!`](crate::enumeration).
pub trait HasTypeByte {
    /// The type byte, [`FieldType::to_u8`].
    const TYPE: u8;
    /// Labels; empty if the type is no enumeration.
    const LABELS: StaticLabels = &[];
    /// [`FieldType::fixed_size_bytes`], or 0 if the size depends on the value.
    const FIXED_SIZE_BYTES: usize;
}

impl<const TYPE: u8> HasTypeByte for TypeByte<TYPE> {
    const TYPE: u8 = TYPE;
    const FIXED_SIZE_BYTES: usize = {
        let kind = Kind::ALL[(TYPE & !SEQUENCE) as usize - 1];
        assert!(kind as u8 == TYPE & !SEQUENCE);
        match (FieldType { kind, sequence: TYPE & SEQUENCE != 0 }).fixed_size_bytes() {
            Some(size) => size,
            None => 0,
        }
    };
}

/// A type that can be the value of an event's field: integers of 8 to 64 bits, floats, `bool`, `char`, strings, byte
/// slices and slices, arrays and vectors of integers, floats and booleans, raw pointers, enumerations that
/// [`enumeration!`](crate::enumeration) names, and references to any of these.
///
/// `usize` and `isize` are recorded with 64 bits, a `char` as its `u32`. A string ends at its first NUL, as CTF strings do.
///
/// The trait is sealed: it serves as a bound (`T: Value`), and only `enumeration!` implements it elsewhere. An event records the
/// parts of another type as separate fields, or as text:
///
/// ```
/// struct Order {
///     id: u64,
///     articles: Vec<u32>,
/// }
/// fn ship(order: &Order) {
///     dormouse::event!(shop.ship, id = order.id, articles = order.articles);
/// }
/// # ship(&Order { id: 7, articles: vec![1, 2] });
/// ```
///
/// ```compile_fail,E0277
/// struct Order(u64);
/// impl dormouse::Value for Order {}
/// ```
pub trait Value: sealed::Field {}

impl<T: sealed::Field + ?Sized> Value for T {}

pub mod sealed {
    //! The trait that `enumeration!` implements. Not part of the interface.

    use super::{EvaluatedValue, HasTypeByte};

    /// Implementation of [`Value`](super::Value).
    #[diagnostic::on_unimplemented(
        message = "`{Self}` cannot be a field of an event",
        label = "not an event field",
        note = "integers up to 64 bits, floats, bool, strings, byte slices, arrays of integers and raw pointers can",
        note = "`dormouse::enumeration!` makes an `enum` without data a field that is shown by its variants' names",
        note = "`dormouse::Value` is sealed: give the parts of another type as fields of their own, or as text"
    )]
    pub trait Field {
        /// Type of the field.
        type Type: HasTypeByte;
        /// Representation of the value until all fields are evaluated.
        type Evaluated<'a>: EvaluatedValue
        where
            Self: 'a;
        /// Returns the representation.
        fn evaluate(&self) -> Self::Evaluated<'_>;
    }
}
use sealed::Field;

/// An evaluated value, which is kept until the event's other values are evaluated. [`Send`], because their expressions
/// may contain `.await`.
pub trait EvaluatedValue: Send {
    /// Adds the value to a record.
    fn put(self, payload: &mut Payload<'_>);
    /// Returns the record's bytes as a little-endian number if the value's size is fixed; else 0.
    #[inline(always)]
    fn bits(&self) -> u64 {
        0
    }
}

/// A value of `SIZE` bytes, at most 8, little-endian; the remaining bytes are zero.
#[derive(Debug)]
pub struct Scalar<const SIZE: usize>(u64);

impl<const SIZE: usize> EvaluatedValue for Scalar<SIZE> {
    #[inline(always)]
    fn put(self, payload: &mut Payload<'_>) {
        payload.small(self.0, SIZE);
    }
    #[inline(always)]
    fn bits(&self) -> u64 {
        self.0
    }
}

impl<const SIZE: usize> Scalar<SIZE> {
    /// Returns the value with these bits, sign-extended or zero-extended to 64.
    #[inline(always)]
    pub fn of_bits(bits: i64) -> Self {
        Scalar(bits.cast_unsigned() & (u64::MAX >> (64 - 8 * SIZE)))
    }
}

/// Returns the size that an enumeration has in records, in bytes. An `enum` of one variant has no bytes in memory.
pub const fn enumeration_size_bytes<T>() -> usize {
    let size_bytes = size_of::<T>();
    if size_bytes == 0 { 1 } else { size_bytes }
}

/// Returns the type byte of an enumeration of this size: signed if a value is negative.
pub const fn enumeration_type(size_bytes: usize, labels: StaticLabels) -> u8 {
    assert!(labels.len() <= LABEL_COUNT_MAX, "an enumeration has at most 1024 variants");
    let (mut index, mut is_signed) = (0, false);
    while index < labels.len() {
        check(labels[index].0);
        is_signed |= labels[index].1 < 0;
        index += 1;
    }
    FieldType::scalar(match (size_bytes, is_signed) {
        (1, false) => Kind::U8,
        (1, true) => Kind::I8,
        (2, false) => Kind::U16,
        (2, true) => Kind::I16,
        (4, false) => Kind::U32,
        (4, true) => Kind::I32,
        (_, false) => Kind::U64,
        (_, true) => Kind::I64,
    })
    .to_u8()
}

/// Lets events have fields of an `enum` without data, which are shown by the names of its variants. The list must
/// contain every variant. The `enum` must be [`Copy`]; it may have discriminants and a `repr`. A record has the value in
/// as many bytes as the program's memory.
///
/// ```
/// #[derive(Clone, Copy)]
/// enum State {
///     Queued,
///     Running = 7,
///     Failed = -1,
/// }
/// dormouse::enumeration!(State { Queued, Running, Failed });
///
/// fn move_to(id: u64, state: State) {
///     dormouse::event!(job.moved, id, state);
/// }
/// # move_to(1, State::Queued);
/// # let _ = [State::Running, State::Failed];
/// ```
///
/// `dormouse view --where 'state == "Running"'` selects by name, `dormouse stats --by state` counts by it.
///
/// ```compile_fail,E0004
/// #[derive(Clone, Copy)]
/// enum State { Queued, Running }
/// dormouse::enumeration!(State { Queued });
/// ```
#[macro_export]
macro_rules! enumeration {
    ($type:ty { $($variant:ident),+ $(,)? }) => {
        const _: () = {
            type DormouseEnumeration = $type;
            const LABELS: $crate::__private::StaticLabels =
                &[$($crate::__private::StaticLabel(::core::stringify!($variant), DormouseEnumeration::$variant as i64)),+];
            const SIZE_BYTES: usize = $crate::__private::enumeration_size_bytes::<DormouseEnumeration>();

            /// Every variant is listed.
            #[allow(dead_code)]
            const fn is_complete(value: DormouseEnumeration) {
                match value {
                    $(DormouseEnumeration::$variant)|+ => {}
                }
            }

            /// Type of the field.
            pub struct DormouseType;

            impl $crate::__private::HasTypeByte for DormouseType {
                const TYPE: u8 = $crate::__private::enumeration_type(SIZE_BYTES, LABELS);
                const LABELS: $crate::__private::StaticLabels = LABELS;
                const FIXED_SIZE_BYTES: usize = SIZE_BYTES;
            }

            impl $crate::__private::Field for DormouseEnumeration {
                type Type = DormouseType;
                type Evaluated<'a> = $crate::__private::Scalar<SIZE_BYTES>;
                #[inline(always)]
                fn evaluate(&self) -> Self::Evaluated<'_> {
                    $crate::__private::Scalar::of_bits(*self as i64)
                }
            }
        };
    };
}

/// Elements whose bytes in memory are those in records, reversed on big-endian machines.
#[derive(Debug)]
pub struct Elements<'a, T>(&'a [T]);

impl<T: Sync> EvaluatedValue for Elements<'_, T> {
    #[inline(always)]
    fn put(self, payload: &mut Payload<'_>) {
        // A sequence too long for any page is refused by the write, which checks its length in bytes.
        payload.small((self.0.len() as u32).into(), 4);
        payload.numbers(self.0.as_ptr().cast(), size_of_val(self.0), size_of::<T>());
    }
}

/// Text up to its first NUL.
#[derive(Debug)]
pub struct Text<'a>(&'a [u8]);

impl EvaluatedValue for Text<'_> {
    #[inline(always)]
    fn put(self, payload: &mut Payload<'_>) {
        payload.long(self.0.as_ptr(), text_len(self.0));
        payload.small(0, 1);
    }
}

/// Returns the number of bytes before the first NUL. A NUL is rare, so the function first checks whether there is any,
/// which compiles to checks of many bytes at once.
#[inline(always)]
fn text_len(text: &[u8]) -> usize {
    fn has_nul<const LEN: usize>(bytes: Option<&[u8; LEN]>) -> bool {
        bytes.is_some_and(|bytes| bytes.iter().fold(false, |found, byte| found | (*byte == 0)))
    }
    let has_nul = match text.len() {
        0..8 => text.contains(&0),
        8..16 => has_nul(text.first_chunk::<8>()) | has_nul(text.last_chunk::<8>()),
        _ => text.as_chunks().0.iter().any(|chunk| has_nul::<16>(Some(chunk))) || has_nul(text.last_chunk::<16>()),
    };
    if has_nul { first_nul(text) } else { text.len() }
}

#[cold]
fn first_nul(text: &[u8]) -> usize {
    text.iter().position(|byte| *byte == 0).unwrap_or(text.len())
}

/// The fields of an event that are evaluated so far.
#[derive(Debug)]
pub struct Fields<All>(pub(crate) All);

/// Contents of [`Fields`]: nothing, or values `And` one more.
pub trait Values {
    /// List of their types.
    type List: TypeList;
    /// Adds all values to a record.
    fn put(self, payload: &mut Payload<'_>);
    /// Returns the first values as words.
    fn words(&self) -> Words;
}

/// Values and one more value, of type `Type`.
#[derive(Debug)]
pub struct And<Before, Last, Type> {
    before: Before,
    last: Last,
    last_type: PhantomData<fn() -> Type>,
}

impl Values for () {
    type List = Nil;
    #[inline(always)]
    fn put(self, _: &mut Payload<'_>) {}
    #[inline(always)]
    fn words(&self) -> Words {
        [0; WORDS_MAX]
    }
}

impl<Before: Values, Last: EvaluatedValue, Type: HasTypeByte> Values for And<Before, Last, Type> {
    type List = Cons<Before::List, Type>;
    #[inline(always)]
    fn put(self, payload: &mut Payload<'_>) {
        self.before.put(payload);
        self.last.put(payload);
    }
    #[inline(always)]
    fn words(&self) -> Words {
        match const { Before::List::FIXED_SIZE_BYTES } {
            Some(offset) => with_bits(self.before.words(), offset, self.last.bits()),
            None => self.before.words(),
        }
    }
}

impl Fields<()> {
    /// Returns an event without fields.
    #[inline(always)]
    pub fn none() -> Self {
        Fields(())
    }
}

impl<All: Values> Fields<All> {
    /// Adds a field.
    #[inline(always)]
    pub fn and<T: Value + ?Sized>(self, value: &T) -> Fields<And<All, T::Evaluated<'_>, T::Type>> {
        Fields(And { before: self.0, last: value.evaluate(), last_type: PhantomData })
    }

    /// Returns the first values as words, up to the first value that has no fixed size or does not fit.
    #[doc(hidden)]
    #[inline(always)]
    pub fn words(&self) -> Words {
        self.0.words()
    }
}

/// Result of recording an event: its list of field types.
#[derive(Debug)]
pub struct Recorded<List>(PhantomData<fn() -> List>);

impl<List> Clone for Recorded<List> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<List> Copy for Recorded<List> {}

impl<List> Recorded<List> {
    /// Returns a list whose types the compiler infers.
    #[inline(always)]
    pub fn list() -> Recorded<List> {
        Recorded(PhantomData)
    }

    /// Makes the compiler infer that this list is the argument's.
    #[inline(always)]
    pub fn is_of(self, _: Recorded<List>) {}
}

/// The fields of one record: small values are collected in place, long ones by reference until the record is written.
///
/// Small values are combined in a register and stored in whole words. Each run of them begins at a word of its own: a
/// section that copies words would stall on a word that was stored in parts. The counts are separate from the arrays
/// that they index, so that the compiler knows the value of each.
#[derive(Debug)]
pub struct Payload<'a> {
    scratch: &'a mut [MaybeUninit<u64>],
    word_count: usize,
    /// First word of the current run of small values. The next fields are its bytes that are not stored yet, and their
    /// number.
    run_start: usize,
    pending: u64,
    pending_len: usize,
    runs: &'a mut [MaybeUninit<Segment>],
    run_count: usize,
}

impl<'a> Payload<'a> {
    /// Returns a payload without fields. `scratch` has a word for each field; `runs` has two elements for each, and one
    /// more.
    #[inline(always)]
    pub fn new(scratch: &'a mut [MaybeUninit<u64>], runs: &'a mut [MaybeUninit<Segment>]) -> Self {
        Payload { scratch, word_count: 0, run_start: 0, pending: 0, pending_len: 0, runs, run_count: 0 }
    }

    /// Adds the first `len` bytes of `bits`, little-endian, at most eight; the remaining bytes are zero.
    #[inline(always)]
    fn small(&mut self, bits: u64, len: usize) {
        let shift = 8 * self.pending_len;
        self.pending |= bits << shift;
        self.pending_len += len;
        if self.pending_len >= 8 {
            self.store_pending();
            self.pending = if shift > 0 { bits >> (64 - shift) } else { 0 };
            self.pending_len -= 8;
        }
    }

    #[inline(always)]
    fn store_pending(&mut self) {
        self.scratch[self.word_count].write(self.pending.to_le());
        self.word_count += 1;
    }

    /// Ends the run of small values.
    #[inline(always)]
    fn close_run(&mut self) {
        let len = 8 * (self.word_count - self.run_start) + self.pending_len;
        if self.pending_len > 0 {
            self.store_pending();
        }
        if len > 0 {
            let source = self.scratch.as_ptr().wrapping_add(self.run_start).cast();
            self.add(Segment::padded(source, len));
        }
        (self.run_start, self.pending, self.pending_len) = (self.word_count, 0, 0);
    }

    #[inline(always)]
    fn add(&mut self, run: Segment) {
        self.runs[self.run_count].write(run);
        self.run_count += 1;
    }

    /// Adds bytes by reference; they must not change until the record is written.
    #[inline(always)]
    fn long(&mut self, bytes: *const u8, len: usize) {
        self.close_run();
        self.add(Segment::exact(bytes, len));
    }

    /// Adds numbers of `size_bytes` each by reference; they must not change until the record is written.
    #[inline(always)]
    fn numbers(&mut self, bytes: *const u8, len: usize, size_bytes: usize) {
        self.close_run();
        self.add(Segment::numbers(bytes, len, size_bytes));
    }

    /// Returns all runs.
    #[inline(always)]
    pub(crate) fn runs(&mut self) -> &[Segment] {
        self.close_run();
        let runs = &self.runs[..self.run_count];
        // SAFETY: every run below the count has been written, and `MaybeUninit` has the layout of its element.
        unsafe { core::slice::from_raw_parts(runs.as_ptr().cast(), runs.len()) }
    }
}

/// The first fields of a record, up to the first that has no fixed size or does not fit. In registers, since the
/// compiler knows every shift.
pub type Words = [u64; WORDS_MAX];

/// Returns `words` with the value of `bits` at byte `offset`. Bytes that do not fit are left out.
#[inline(always)]
fn with_bits(mut words: Words, offset: usize, bits: u64) -> Words {
    let (index, shift) = (offset / 8, offset % 8 * 8);
    if index < WORDS_MAX {
        words[index] |= bits << shift;
    }
    if shift > 0 && index + 1 < WORDS_MAX {
        words[index + 1] |= bits >> (64 - shift);
    }
    words
}

macro_rules! scalar {
    ($($type:ty as $wide:ty => $kind:ident),* $(,)?) => {$(
        impl Field for $type {
            type Type = TypeByte<{ FieldType::scalar(Kind::$kind).to_u8() }>;
            type Evaluated<'a> = Scalar<{ size_of::<$wide>() }>;
            #[inline(always)]
            fn evaluate(&self) -> Self::Evaluated<'_> {
                let mut bits = [0; 8];
                bits[..size_of::<$wide>()].copy_from_slice(&(*self as $wide).to_le_bytes());
                Scalar(u64::from_le_bytes(bits))
            }
        }
        impl Field for [$type] {
            type Type = TypeByte<{ sequence_of(Kind::$kind, size_of::<$type>()) }>;
            type Evaluated<'a> = Elements<'a, $type>;
            #[inline(always)]
            fn evaluate(&self) -> Self::Evaluated<'_> {
                Elements(self)
            }
        }
    )*};
}

/// Returns the type byte of a slice: `[u8]` is a byte slice, any other slice is a sequence. Elements have the same
/// bytes in memory as in records.
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
        impl<T: ?Sized> Field for $type {
            type Type = TypeByte<{ FieldType::scalar(Kind::Pointer).to_u8() }>;
            type Evaluated<'a> = Scalar<8> where Self: 'a;
            #[inline(always)]
            fn evaluate(&self) -> Self::Evaluated<'_> {
                Scalar(self.cast::<()>() as usize as u64)
            }
        }
    )*};
}
pointer!(*const T, *mut T);

impl Field for str {
    type Type = TypeByte<{ FieldType::scalar(Kind::Str).to_u8() }>;
    type Evaluated<'a> = Text<'a>;
    #[inline(always)]
    fn evaluate(&self) -> Self::Evaluated<'_> {
        Text(self.as_bytes())
    }
}

impl Field for core::ffi::CStr {
    type Type = TypeByte<{ FieldType::scalar(Kind::Str).to_u8() }>;
    type Evaluated<'a> = Text<'a>;
    #[inline(always)]
    fn evaluate(&self) -> Self::Evaluated<'_> {
        Text(self.to_bytes())
    }
}

macro_rules! delegate {
    ($([$($generics:tt)*] $type:ty => $target:ty),* $(,)?) => {$(
        impl<$($generics)*> Field for $type where $target: Field {
            type Type = <$target as Field>::Type;
            type Evaluated<'a> = <$target as Field>::Evaluated<'a> where Self: 'a;
            #[inline(always)]
            fn evaluate(&self) -> Self::Evaluated<'_> {
                <$target as Field>::evaluate(self)
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

/// A list of field types and one more type.
#[derive(Debug)]
pub struct Cons<List, Type>(PhantomData<(List, Type)>);

/// The field types of an event class, as data.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    types: [u8; FIELD_COUNT_MAX],
    count: usize,
    labelled: Option<&'static LabelledField>,
    fingerprint: u64,
}

// Tools find the types and labels in a program's file.
const _: () = {
    assert!(core::mem::offset_of!(Description, count) == rust_event::COUNT_OFFSET);
    assert!(core::mem::offset_of!(Description, labelled) == rust_event::LABELLED_OFFSET);
    let [index, labels, before] = rust_event::ENUMERATION_OFFSETS;
    assert!(core::mem::offset_of!(LabelledField, index) == index);
    assert!(core::mem::offset_of!(LabelledField, labels) == labels);
    assert!(core::mem::offset_of!(LabelledField, before) == before);
    assert!(size_of::<StaticLabel>() == rust_event::LABEL_SIZE_BYTES);
};

/// An enumeration among the fields of an event class.
#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
pub struct LabelledField {
    /// Index of the field.
    index: usize,
    labels: StaticLabels,
    /// The enumeration before this one.
    before: Option<&'static LabelledField>,
}

/// FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
const FNV_OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01B3;

impl Description {
    const EMPTY: Description =
        Description { types: [0; FIELD_COUNT_MAX], count: 0, labelled: None, fingerprint: FNV_OFFSET_BASIS };

    const fn and(mut self, type_byte: u8, labelled: Option<&'static LabelledField>) -> Description {
        assert!(self.count < FIELD_COUNT_MAX, "an event has at most 32 fields");
        self.types[self.count] = type_byte;
        self.mix(type_byte as u64);
        if let Some(LabelledField { index, labels, .. }) = labelled
            && *index == self.count
        {
            let mut label = 0;
            while label < labels.len() {
                let (name, bits) = (labels[label].0.as_bytes(), labels[label].1);
                let mut byte = 0;
                while byte < name.len() {
                    self.mix(name[byte] as u64);
                    byte += 1;
                }
                self.mix(bits as u64);
                label += 1;
            }
        }
        self.labelled = labelled;
        self.count += 1;
        self
    }

    const fn mix(&mut self, value: u64) {
        self.fingerprint = (self.fingerprint ^ value).wrapping_mul(FNV_PRIME);
    }

    /// Returns a hash that differs between the few lists of one key; never 0 in practice.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the field types, in order.
    pub fn types(&self) -> impl Iterator<Item = FieldType> {
        self.types[..self.count].iter().filter_map(|byte| FieldType::from_u8(*byte))
    }

    /// Returns the labels of the fields that are enumerations, each with the index of the field, the last field first.
    pub fn labels(&self) -> impl Iterator<Item = (usize, StaticLabels)> {
        core::iter::successors(self.labelled, |field| field.before).map(|field| (field.index, field.labels))
    }
}

/// A list of field types.
pub trait TypeList {
    /// The list as data.
    const DESCRIPTION: Description;
    /// The last enumeration in the list.
    const LABELLED: Option<&'static LabelledField>;
    /// Size of all fields in bytes, if each has a fixed size.
    const FIXED_SIZE_BYTES: Option<usize>;
    /// Size of all fields in bytes, if it is fixed and fits `Words`.
    const WORDS_SIZE_BYTES: Option<usize> = match Self::FIXED_SIZE_BYTES {
        Some(size) if size <= WORDS_MAX * 8 => Some(size),
        _ => None,
    };
}

impl TypeList for Nil {
    const DESCRIPTION: Description = Description::EMPTY;
    const LABELLED: Option<&'static LabelledField> = None;
    const FIXED_SIZE_BYTES: Option<usize> = Some(0);
}

impl<List: TypeList, Type: HasTypeByte> TypeList for Cons<List, Type> {
    const DESCRIPTION: Description = List::DESCRIPTION.and(Type::TYPE, Self::LABELLED);
    const LABELLED: Option<&'static LabelledField> = if Type::LABELS.is_empty() {
        List::LABELLED
    } else {
        Some(const { &LabelledField { index: List::DESCRIPTION.count, labels: Type::LABELS, before: List::LABELLED } })
    };
    const FIXED_SIZE_BYTES: Option<usize> = match (List::FIXED_SIZE_BYTES, Type::FIXED_SIZE_BYTES) {
        (None, _) | (_, 0) => None,
        (Some(before), size) => Some(before + size),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(payload: &mut Payload<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for run in payload.runs() {
            // SAFETY: the test's values are alive, and a run's length is that of the value.
            let run_bytes = unsafe { run.bytes() };
            let units = run_bytes.chunks(run.reversed_size_bytes());
            units.for_each(|unit| match run.reversed_size_bytes() {
                1 => bytes.extend(unit),
                _ => bytes.extend(unit.iter().rev()),
            });
        }
        bytes
    }

    #[test]
    fn values_become_the_documented_bytes() {
        let bytes = vec![5u8, 6];
        let (mut scratch, mut runs) = ([MaybeUninit::uninit(); 9], [MaybeUninit::uninit(); 19]);
        let mut payload = Payload::new(&mut scratch, &mut runs);
        1u8.evaluate().put(&mut payload);
        (-2i16).evaluate().put(&mut payload);
        true.evaluate().put(&mut payload);
        "hä\0no".evaluate().put(&mut payload);
        [3u16, 4].evaluate().put(&mut payload);
        bytes.evaluate().put(&mut payload);
        (&&7i64).evaluate().put(&mut payload);
        1.5f32.evaluate().put(&mut payload);
        String::new().evaluate().put(&mut payload);
        let mut expected = vec![1, 0xFE, 0xFF, 1];
        expected.extend_from_slice("hä\0".as_bytes());
        expected.extend_from_slice(&[2, 0, 0, 0, 3, 0, 4, 0, 2, 0, 0, 0, 5, 6]);
        expected.extend_from_slice(&7i64.to_le_bytes());
        expected.extend_from_slice(&1.5f32.to_le_bytes());
        expected.push(0);
        assert_eq!(gather(&mut payload), expected);
    }

    #[test]
    fn words_hold_the_same_bytes() {
        let (mut scratch, mut runs) = ([MaybeUninit::uninit(); 9], [MaybeUninit::uninit(); 19]);
        let mut payload = Payload::new(&mut scratch, &mut runs);
        let mut words = [0; WORDS_MAX];
        let mut offset = 0;
        macro_rules! put {
            ($($value:expr),*) => {$(
                $value.evaluate().put(&mut payload);
                words = with_bits(words, offset, $value.evaluate().bits());
                offset += size_of_val(&$value);
            )*};
        }
        put!(-1i8, 0x1234u16, 'é', -3i64, 0x1_0000_0001u64);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(bytes[..offset], gather(&mut payload));
        // The value would need a fourth word: it is left out, and does not wrap.
        assert_eq!(with_bits(words, 24, u64::MAX), words);
        assert_eq!((true.evaluate().bits(), 1.5f32.evaluate().bits(), 7u8.evaluate().bits()), (1, 0x3FC0_0000, 7));
    }

    #[test]
    fn types_have_fixed_or_variable_sizes() {
        type Numbers = Cons<Cons<Nil, <u64 as Field>::Type>, <u16 as Field>::Type>;
        assert_eq!((Numbers::FIXED_SIZE_BYTES, Numbers::WORDS_SIZE_BYTES), (Some(10), Some(10)));
        type Long = Cons<Cons<Numbers, <i64 as Field>::Type>, <*const u8 as Field>::Type>;
        assert_eq!((Long::FIXED_SIZE_BYTES, Long::WORDS_SIZE_BYTES), (Some(26), None));
        type Text = Cons<Cons<Nil, <str as Field>::Type>, <u64 as Field>::Type>;
        assert_eq!(Text::FIXED_SIZE_BYTES, None);
        assert_eq!(Nil::WORDS_SIZE_BYTES, Some(0));
    }

    #[derive(Clone, Copy)]
    enum State {
        Ready,
        Failed = -2,
    }
    crate::enumeration!(State { Ready, Failed });

    #[derive(Clone, Copy)]
    #[repr(u16)]
    enum Only {
        One = 0x8001,
    }
    crate::enumeration!(Only { One });

    #[test]
    fn an_enumeration_is_a_number_with_labels() {
        type List = Cons<Cons<Cons<Nil, <State as Field>::Type>, <u8 as Field>::Type>, <&'static Only as Field>::Type>;
        let types: Vec<_> = List::DESCRIPTION.types().collect();
        assert_eq!(types, [Kind::I8, Kind::U8, Kind::U16].map(FieldType::scalar));
        let labels: Vec<_> = List::DESCRIPTION.labels().collect();
        assert_eq!(
            labels,
            [(2, &[StaticLabel("One", 0x8001)][..]), (0, &[StaticLabel("Ready", 0), StaticLabel("Failed", -2)])]
        );
        assert_eq!(List::FIXED_SIZE_BYTES, Some(4));
        assert_eq!((State::Ready.evaluate().bits(), State::Failed.evaluate().bits()), (0, 0xFE));
        assert_eq!(Only::One.evaluate().bits(), 0x8001);
        type Plain = Cons<Cons<Cons<Nil, <i8 as Field>::Type>, <u8 as Field>::Type>, <u16 as Field>::Type>;
        assert_eq!(List::DESCRIPTION.types, Plain::DESCRIPTION.types);
        assert_ne!(List::DESCRIPTION.fingerprint(), Plain::DESCRIPTION.fingerprint());
    }

    #[test]
    fn a_list_describes_itself() {
        type List = Cons<Cons<Nil, <[u32; 3] as Field>::Type>, <&'static str as Field>::Type>;
        let types: Vec<_> = List::DESCRIPTION.types().collect();
        assert_eq!(types, [FieldType::sequence(Kind::U32), FieldType::scalar(Kind::Str)]);
    }
}
