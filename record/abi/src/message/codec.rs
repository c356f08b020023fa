//! Encoding of values into a frame, and decoding from the front of the rest of a frame.

use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;

use crate::class::{Announcement, ClassDecl, Labels, Level};
use crate::text::is_printable;

/// Error for bytes that are not a frame of this protocol, or that would harm their reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub(super) &'static str);

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl core::error::Error for Malformed {}

pub(super) const TOO_SHORT: Malformed = Malformed("it ends too early");

/// A rule for writing and reading a value.
pub(super) trait Codec {
    type Value;
    fn put(value: &Self::Value, frame: &mut Vec<u8>);
    fn take(frame: &mut &[u8]) -> Result<Self::Value, Malformed>;
}

fn take_array<const LEN: usize>(frame: &mut &[u8]) -> Result<[u8; LEN], Malformed> {
    let (array, rest) = frame.split_first_chunk().ok_or(TOO_SHORT)?;
    *frame = rest;
    Ok(*array)
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Codec for $type {
            type Value = $type;
            fn put(value: &$type, frame: &mut Vec<u8>) {
                frame.extend_from_slice(&value.to_le_bytes());
            }
            fn take(frame: &mut &[u8]) -> Result<$type, Malformed> {
                take_array(frame).map(<$type>::from_le_bytes)
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64);

impl Codec for bool {
    type Value = bool;
    fn put(value: &bool, frame: &mut Vec<u8>) {
        frame.push(u8::from(*value));
    }
    fn take(frame: &mut &[u8]) -> Result<bool, Malformed> {
        match u8::take(frame)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a truth value is neither 0 nor 1")),
        }
    }
}

impl Codec for [u8; 16] {
    type Value = [u8; 16];
    fn put(value: &[u8; 16], frame: &mut Vec<u8>) {
        frame.extend_from_slice(value);
    }
    fn take(frame: &mut &[u8]) -> Result<[u8; 16], Malformed> {
        take_array(frame)
    }
}

/// Arbitrary bytes.
pub(super) struct Bytes;

impl Codec for Bytes {
    type Value = Vec<u8>;
    fn put(value: &Vec<u8>, frame: &mut Vec<u8>) {
        u32::put(&(value.len() as u32), frame);
        frame.extend_from_slice(value);
    }
    fn take(frame: &mut &[u8]) -> Result<Vec<u8>, Malformed> {
        let len = u32::take(frame)? as usize;
        frame.split_off(..len).map(Vec::from).ok_or(TOO_SHORT)
    }
}

/// Mark at the end of text that was cut.
const MARK: &str = "…";

/// Returns the part of a text that fits `len_max` bytes, and the mark to follow it. Longer text is cut at a character
/// boundary.
fn cut(text: &str, len_max: usize) -> (&str, &'static str) {
    if text.len() <= len_max {
        return (text, "");
    }
    let mut len = len_max - MARK.len();
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    (&text[..len], MARK)
}

fn put_text(text: &str, len_max: usize, frame: &mut Vec<u8>) {
    let (text, mark) = cut(text, len_max);
    u16::put(&((text.len() + mark.len()) as u16), frame);
    frame.extend_from_slice(text.as_bytes());
    frame.extend_from_slice(mark.as_bytes());
}

fn take_text<'a>(len_max: usize, frame: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    let len = u16::take(frame)?.into();
    if len > len_max {
        return Err(Malformed("a text is too long"));
    }
    let text = frame.split_off(..len).ok_or(TOO_SHORT)?;
    core::str::from_utf8(text).map_err(|_| Malformed("a text is not UTF-8"))
}

/// Reads text and makes it printable. A replacement may be longer than its character, so the result is cut again.
fn take_printable(len_max: usize, is_fit: fn(char) -> bool, frame: &mut &[u8]) -> Result<String, Malformed> {
    let text = take_text(len_max, frame)?.chars().map(|c| if is_fit(c) { c } else { char::REPLACEMENT_CHARACTER });
    let mut text: String = text.collect();
    let (kept, mark) = cut(&text, len_max);
    text.truncate(kept.len());
    text.push_str(mark);
    Ok(text)
}

/// A line for people, of at most `LEN_MAX` bytes, made printable when read.
pub(super) struct Line<const LEN_MAX: usize>;

impl<const LEN_MAX: usize> Codec for Line<LEN_MAX> {
    type Value = String;
    fn put(value: &String, frame: &mut Vec<u8>) {
        put_text(value, LEN_MAX, frame);
    }
    fn take(frame: &mut &[u8]) -> Result<String, Malformed> {
        take_printable(LEN_MAX, is_printable, frame)
    }
}

/// Several lines for people, each made printable when read.
pub(super) struct Lines<const LEN_MAX: usize>;

impl<const LEN_MAX: usize> Codec for Lines<LEN_MAX> {
    type Value = String;
    fn put(value: &String, frame: &mut Vec<u8>) {
        put_text(value, LEN_MAX, frame);
    }
    fn take(frame: &mut &[u8]) -> Result<String, Malformed> {
        take_printable(LEN_MAX, |c| c == '\n' || is_printable(c), frame)
    }
}

/// Longer than any path that Linux opens (4,095 bytes), even after a cut, so that a cut path is never opened by
/// mistake.
const PATH_LEN_MAX: usize = 4104;

/// A path that the reader opens or prints. Unprintable characters are refused, so that a process does not use a path
/// other than the one that people see.
pub(super) struct Path;

impl Codec for Path {
    type Value = String;
    fn put(value: &String, frame: &mut Vec<u8>) {
        put_text(value, PATH_LEN_MAX, frame);
    }
    fn take(frame: &mut &[u8]) -> Result<String, Malformed> {
        let path = take_text(PATH_LEN_MAX, frame)?;
        if path.chars().all(is_printable) {
            Ok(path.into())
        } else {
            Err(Malformed("a path has characters that cannot be printed"))
        }
    }
}

/// A list of at most `COUNT_MAX` items of at least one byte each.
pub(super) struct List<T, const COUNT_MAX: usize = { u32::MAX as usize }>(PhantomData<T>);

impl<T: Codec, const COUNT_MAX: usize> Codec for List<T, COUNT_MAX> {
    type Value = Vec<T::Value>;
    fn put(value: &Vec<T::Value>, frame: &mut Vec<u8>) {
        u32::put(&(value.len() as u32), frame);
        value.iter().for_each(|item| T::put(item, frame));
    }
    fn take(frame: &mut &[u8]) -> Result<Vec<T::Value>, Malformed> {
        let count = u32::take(frame)? as usize;
        if count > COUNT_MAX {
            return Err(Malformed("a list is too long"));
        }
        if count > frame.len() {
            return Err(TOO_SHORT);
        }
        (0..count).map(|_| T::take(frame)).collect()
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    type Value = (A::Value, B::Value);
    fn put(value: &Self::Value, frame: &mut Vec<u8>) {
        A::put(&value.0, frame);
        B::put(&value.1, frame);
    }
    fn take(frame: &mut &[u8]) -> Result<Self::Value, Malformed> {
        Ok((A::take(frame)?, B::take(frame)?))
    }
}

/// Codecs of structures: their fields, each with its rule, in the given order.
macro_rules! structures {
    ($($type:ident { $($field:ident: $rule:ty),* $(,)? })*) => {$(
        impl Codec for $type {
            type Value = $type;
            fn put(value: &$type, frame: &mut alloc::vec::Vec<u8>) {
                $(<$rule as Codec>::put(&value.$field, frame);)*
            }
            fn take(frame: &mut &[u8]) -> Result<$type, Malformed> {
                Ok($type { $($field: <$rule as Codec>::take(frame)?),* })
            }
        }
    )*};
}
pub(super) use structures;

/// A name in an announcement, checked later. Its limit is greater than that of valid names, so that a long name is
/// refused by name.
type AnnouncedName = Line<300>;

type AnnouncedFields = List<(AnnouncedName, u8), 255>;

/// Messages do not contain labels.
impl Codec for Announcement {
    type Value = Announcement;
    fn put(value: &Announcement, frame: &mut Vec<u8>) {
        AnnouncedName::put(&value.provider, frame);
        AnnouncedName::put(&value.name, frame);
        AnnouncedFields::put(&value.fields, frame);
        u8::put(&Level::byte_of(value.level), frame);
    }
    fn take(frame: &mut &[u8]) -> Result<Announcement, Malformed> {
        let (provider, name) = (AnnouncedName::take(frame)?, AnnouncedName::take(frame)?);
        let fields = AnnouncedFields::take(frame)?;
        let level = Level::of_byte(u8::take(frame)?).ok_or(Malformed("a level is unknown"))?;
        Ok(Announcement { provider, name, fields, labels: Labels::new(), level })
    }
}

impl Codec for ClassDecl {
    type Value = ClassDecl;
    fn put(value: &ClassDecl, frame: &mut Vec<u8>) {
        Announcement::put(&value.into(), frame);
    }
    fn take(frame: &mut &[u8]) -> Result<ClassDecl, Malformed> {
        Announcement::take(frame)?.check().map_err(|_| Malformed("an event class is none that a trace can hold"))
    }
}
