//! Tags: values that a thread gives to all of its events, such as the request that it works on.
//!
//! A session says in its header which tags its records have. Each record then has, between context and fields, a word of
//! 64 bits for each of them:
//! ```text
//!   0 ─ header, context ─ 16 ─ tag ─ 24 ─ tag ─ 32 ─ fields…
//! ```
//! 0 means that the thread has no such tag. A text is represented by a number that follows from it ([`text_value`]), so
//! that all processes have the same number for it; the session's register has the text.

use core::fmt;

use crate::class::is_name;

/// Maximum number of tags of a process, and of a session.
pub const TAG_COUNT_MAX: usize = 4;
/// Size of a name's place, in bytes. A name is shorter, and NUL follows it.
pub const TAG_NAME_SIZE_BYTES: usize = 32;
/// Maximum size of a tag's text, in bytes. A longer one is cut.
pub const TAG_TEXT_SIZE_BYTES_MAX: usize = 255;
/// Size of a tag in a record, in bytes.
pub const TAG_SIZE_BYTES: usize = 8;

/// Message for a name for which [`is_tag_name`] does not hold.
pub const NO_TAG_NAME: &str = "the name of a tag consists of ASCII letters, digits and `_`, at most 31, no digit first";

/// Names of a session's tags, in the order of their words.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(8))]
pub struct TagNames([[u8; TAG_NAME_SIZE_BYTES]; TAG_COUNT_MAX]);

impl TagNames {
    /// No tags.
    pub const NONE: TagNames = TagNames([[0; TAG_NAME_SIZE_BYTES]; TAG_COUNT_MAX]);

    /// Makes the names of a session's tags.
    ///
    /// # Errors
    /// A sentence that says why they cannot be: too many, twice the same, or not names.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<TagNames, &'static str> {
        let mut all = TagNames::NONE;
        for (index, name) in names.into_iter().enumerate() {
            if !is_tag_name(name) {
                return Err(NO_TAG_NAME);
            }
            if all.iter().any(|known| known == name) {
                return Err("a tag is named twice");
            }
            let place = all.0.get_mut(index).ok_or("events have at most four tags")?;
            place[..name.len()].copy_from_slice(name.as_bytes());
        }
        Ok(all)
    }

    /// Returns the names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map_while(|place| name_in(place))
    }

    /// Returns the number of tags.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there are no tags.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of the tags in a record, in bytes.
    pub fn size_bytes(&self) -> usize {
        TAG_SIZE_BYTES * self.len()
    }

    /// Whether these are names that [`TagNames::new`] can have made. Any program may have overwritten them.
    pub fn are_valid(&self) -> bool {
        TagNames::new(self.iter()) == Ok(*self)
    }
}

impl fmt::Debug for TagNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Whether a tag may have this name.
pub const fn is_tag_name(name: &str) -> bool {
    is_name(name) && name.len() < TAG_NAME_SIZE_BYTES
}

fn name_in(place: &[u8; TAG_NAME_SIZE_BYTES]) -> Option<&str> {
    let len = place.iter().position(|byte| *byte == 0)?;
    core::str::from_utf8(&place[..len]).ok().filter(|name| is_tag_name(name))
}

/// Returns the number that stands for a text: 63 bits of a hash (FNV-1a, mixed as in MurmurHash3) below a set bit.
pub const fn text_value(text: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut index = 0;
    while index < text.len() {
        hash = (hash ^ text[index] as u64).wrapping_mul(0x0100_0000_01B3);
        index += 1;
    }
    hash = (hash ^ hash >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ hash >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    (hash ^ hash >> 33) | 1 << 63
}

/// Returns what a tag keeps of a text: at most [`TAG_TEXT_SIZE_BYTES_MAX`] bytes, and of UTF-8 no part of a character.
pub fn cut(text: &[u8]) -> &[u8] {
    if text.len() <= TAG_TEXT_SIZE_BYTES_MAX {
        return text;
    }
    let is_start = |end: &usize| text[*end] & 0b1100_0000 != 0b1000_0000;
    let end = (0..=TAG_TEXT_SIZE_BYTES_MAX).rev().find(is_start).unwrap_or(TAG_TEXT_SIZE_BYTES_MAX);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn names_are_checked() {
        let names = TagNames::new(["request", "tenant"]).unwrap();
        assert_eq!(names.iter().collect::<Vec<_>>(), ["request", "tenant"]);
        assert_eq!((names.len(), names.size_bytes(), names.are_valid()), (2, 16, true));
        assert!(TagNames::NONE.is_empty() && TagNames::NONE.are_valid());
        let long = "x".repeat(TAG_NAME_SIZE_BYTES);
        for wrong in [&["a", "a"][..], &["a", "b", "c", "d", "e"], &[""], &["1a"], &["a b"], &[&long]] {
            assert!(TagNames::new(wrong.iter().copied()).is_err(), "{wrong:?}");
        }
        assert!(TagNames::new([&long[1..]]).is_ok());
        // Words that a program has overwritten.
        for (place, byte, value) in [(0, 0, 0), (0, 31, b'x'), (1, 0, b' '), (3, 5, b'x')] {
            let mut names = names;
            names.0[place][byte] = value;
            assert!(!names.are_valid(), "{names:?}");
        }
    }

    #[test]
    fn texts_have_numbers_of_their_own() {
        let texts: Vec<_> = (0..100_000).map(|number| alloc::format!("tenant-{number}")).collect();
        let values: alloc::collections::BTreeSet<u64> = texts.iter().map(|text| text_value(text.as_bytes())).collect();
        assert!(values.len() == texts.len() && values.iter().all(|value| value >> 63 == 1));
        // Traces have these numbers, so they never change.
        assert_eq!(text_value(b"alice"), 0xB507_D047_A67C_08F4);
        let long = "ä".repeat(200);
        assert_eq!(cut(long.as_bytes()).len(), 254);
        assert_eq!((cut(b"short"), cut(&[0x80; 300]).len()), (&b"short"[..], 255));
    }
}
