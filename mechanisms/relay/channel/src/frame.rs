//! Records in a page: a word in front of each says how long it is, and whether it is complete.
//!
//! ```text
//!   63      32 │ 31                0 │
//!   status     │ length in bytes     │ the caller's bytes, padded to a multiple of 8
//! ```
//! The page is zero where nothing was reserved. A zero in front of a reserved record means that its writer has not gone
//! further than reserving it, so the whole record is zero, and the next frame is the next word that is not.

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::WORD_BYTES;

/// Status of a record whose writer may still write to it.
pub(crate) const RESERVED: u64 = 1 << 32;
/// Status of a record that is complete.
pub(crate) const COMMITTED: u64 = 2 << 32;
/// Status of a record that its writer gave up.
pub(crate) const CANCELLED: u64 = 3 << 32;

/// Returns the number of words that a record takes with its frame.
#[inline]
pub(crate) fn words_of(len: usize) -> usize {
    1 + len.div_ceil(WORD_BYTES)
}

/// A part of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A record: index of its first word in the page, and its length in bytes.
    Record { at: usize, len: usize },
    /// A record that its writer gave up.
    Cancelled,
    /// A record that was not committed, or several in a row.
    Unfinished,
}

/// The frames in the words of a page, in order.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    /// The part of the page in which records were reserved.
    pub(crate) words: &'a [AtomicU64],
    /// Index of the next frame.
    pub(crate) at: usize,
}

impl Iterator for Frames<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let at = self.at;
        // (B) Acquire pairs with (A): the bytes of a committed record are stored.
        let word = self.words.get(at)?.load(Ordering::Acquire);
        let len = (word as u32) as usize;
        let left = self.words.len() - at;
        if word == 0 {
            let zeroes = self.words[at..].iter().take_while(|word| word.load(Ordering::Acquire) == 0).count();
            // The last one may have become a frame since it was compared.
            self.at += zeroes.max(1);
            return Some(Frame::Unfinished);
        }
        if words_of(len) > left {
            // No writer stores this. Nothing that follows can be found.
            self.at = self.words.len();
            return Some(Frame::Unfinished);
        }
        self.at += words_of(len);
        Some(match word - len as u64 {
            COMMITTED => Frame::Record { at: at + 1, len },
            CANCELLED => Frame::Cancelled,
            _ => Frame::Unfinished,
        })
    }
}

/// What is in a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Number of committed records.
    pub(crate) records: u64,
    /// Number of places with records that were not committed.
    pub(crate) unfinished: u64,
}

impl Census {
    pub(crate) fn of(frames: Frames<'_>) -> Census {
        frames.fold(Census::default(), |census, frame| match frame {
            Frame::Record { .. } => Census { records: census.records + 1, ..census },
            Frame::Cancelled => census,
            Frame::Unfinished => Census { unfinished: census.unfinished + 1, ..census },
        })
    }
}
