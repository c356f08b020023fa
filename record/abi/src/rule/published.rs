//! Bytes that one writer replaces while others read them, without a lock on either side.
//!
//! ```text
//!   current: version          even: half 0 is current, odd: half 1 is current
//!   half 0   │ len │ words …
//!   half 1   │ len │ words …
//!
//!   writer   fills the half that is not current, then sets the next version
//!   reader   reads the version, uses that half, reads the version again: another one means that what it used may
//!            have been replaced meanwhile, so the reader discards the result
//! ```
//! The rules of a session are replaced in this way in memory that the session's processes share, and the code made of
//! them in a program's own memory.

use alloc::vec::Vec;

use crate::atomic::{AtomicU64, Ordering, fence};

/// One half: a number of bytes, and the words that contain them.
#[repr(C)]
#[derive(Debug)]
struct Half<const WORDS: usize> {
    len: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Bytes that one writer replaces. All zeroes is no bytes.
#[repr(C)]
#[derive(Debug)]
pub struct Published<const WORDS: usize> {
    version: AtomicU64,
    halves: [Half<WORDS>; 2],
}

/// Words that may be replaced while a reader uses them.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a> {
    /// Number of bytes, not more than the words have.
    len: usize,
    words: &'a [AtomicU64],
}

impl Words<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a word; 0 beyond the end.
    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Returns a byte; 0 beyond the end.
    #[inline(always)]
    pub fn byte(&self, index: usize) -> u8 {
        self.word(index / 8).to_le_bytes()[index % 8]
    }
}

impl<const WORDS: usize> Published<WORDS> {
    /// Maximum number of bytes.
    pub const SIZE_BYTES_MAX: usize = 8 * WORDS;

    /// Returns the number of times that the bytes were replaced.
    pub fn version(&self) -> u64 {
        // (V1) Acquire pairs with (V2): what the writer stored before is seen.
        self.version.load(Ordering::Acquire)
    }

    /// Replaces the bytes. Returns false if there is no room. There is one writer at a time.
    #[must_use]
    pub fn replace(&self, bytes: &[u8]) -> bool {
        if bytes.len() > Self::SIZE_BYTES_MAX {
            return false;
        }
        // Relaxed: only writers change it, one after the other.
        let next = self.version.load(Ordering::Relaxed).wrapping_add(1);
        let half = &self.halves[(next % 2) as usize];
        // (V3) Release pairs with (V4): a reader that sees one of the stores below also sees the version that ended
        // the use of this half.
        fence(Ordering::Release);
        half.len.store(bytes.len() as u64, Ordering::Relaxed);
        for (index, word) in half.words.iter().enumerate().take(bytes.len().div_ceil(8)) {
            let mut chunk = [0; 8];
            let rest = &bytes[8 * index..];
            let len = rest.len().min(8);
            chunk[..len].copy_from_slice(&rest[..len]);
            word.store(u64::from_le_bytes(chunk), Ordering::Relaxed);
        }
        // (V2) Release pairs with (V1).
        self.version.store(next, Ordering::Release);
        true
    }

    /// Calls `use_words` with the current bytes. Returns its result, or `None` if the bytes were replaced meanwhile, so
    /// that the result means nothing. Wait-free.
    #[inline(always)]
    pub fn read<T>(&self, use_words: impl FnOnce(Words<'_>) -> T) -> Option<T> {
        let version = self.version();
        let half = &self.halves[(version % 2) as usize];
        let len = (half.len.load(Ordering::Relaxed) as usize).min(Self::SIZE_BYTES_MAX);
        let result = use_words(Words { len, words: &half.words });
        // (V4) Acquire pairs with (V3).
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version).then_some(result)
    }

    /// Returns a copy of the bytes, and their version. `None` if they are replaced again and again.
    pub fn copy(&self) -> Option<(u64, Vec<u8>)> {
        let copy_once = || {
            let version = self.version();
            let bytes = self.read(|words| (0..words.len()).map(|index| words.byte(index)).collect())?;
            (self.version() == version).then_some((version, bytes))
        };
        (0..ATTEMPTS_MAX).find_map(|_| copy_once())
    }
}

/// Maximum number of attempts to copy the bytes.
const ATTEMPTS_MAX: u32 = 1_000;

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_replaced_whole() {
        // SAFETY: all zeroes is no bytes.
        let published: Published<2> = unsafe { core::mem::zeroed() };
        assert_eq!(published.copy(), Some((0, Vec::new())));
        for (version, bytes) in [(1, &b"abc"[..]), (2, b"0123456789abcdef"), (3, b""), (4, b"12345678")] {
            assert!(published.replace(bytes));
            assert_eq!(published.copy(), Some((version, bytes.to_vec())));
            assert_eq!(published.read(|words| (words.len(), words.byte(2000))), Some((bytes.len(), 0)));
        }
        assert!(!published.replace(&[0; 17]));
        assert_eq!(published.read(|_| published.replace(b"x")), None);
    }
}
