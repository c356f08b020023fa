//! Taking pages and reading their records.

use crate::frame::Frame;
use crate::layout::WORD_BYTES;
use crate::pages::Taken;
use crate::{Channel, TakeError, Writers};

/// A page that a reader has taken. Dropping it gives it back, except if it was taken with unfinished records of writers that
/// may be at work.
#[derive(Debug)]
pub struct Page<'a> {
    channel: &'a Channel,
    taken: TakenPage,
}

/// The same page without the channel, for callers that give it back themselves: C's `struct dormouse_relay_page`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenPage {
    /// Number of the page in its buffer, from 1. Pages that were overwritten are missing in between.
    pub number: u64,
    /// Number of the page's records.
    pub record_count: u64,
    /// Number of places with records that were never committed.
    pub unfinished_count: u64,
    buffer: u32,
    page: u32,
    end: u32,
    is_reusable: u32,
    at: u64,
}

impl Channel {
    /// Closes the buffer's current page, so that it can be taken. False if it has no record. Lock-free; async-signal-safe.
    pub fn flush(&self, buffer: u32) -> bool {
        buffer < self.geometry.buffer_count && self.flush_buffer(buffer)
    }

    /// Takes the oldest closed page of a buffer; other threads and processes then do not find it any more. Lock-free;
    /// async-signal-safe.
    ///
    /// # Errors
    /// [`TakeError`].
    ///
    /// # Safety
    /// If `writers` is [`Writers::Ended`], no thread will write to a record that it has reserved and not committed.
    pub unsafe fn take_from(&self, buffer: u32, writers: Writers) -> Result<Page<'_>, TakeError> {
        if buffer >= self.geometry.buffer_count {
            return Err(TakeError::Empty);
        }
        let Taken { number, page, end, census } = self.take_page(buffer, writers)?;
        let taken = TakenPage {
            number,
            record_count: census.records,
            unfinished_count: census.unfinished,
            buffer,
            page,
            end: end as u32,
            is_reusable: u32::from(census.unfinished == 0 || writers == Writers::Ended),
            at: 0,
        };
        Ok(Page { channel: self, taken })
    }

    /// Takes the oldest closed page of a buffer, if all its records are committed. Lock-free; async-signal-safe.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn take(&self, buffer: u32) -> Result<Page<'_>, TakeError> {
        // SAFETY: the condition is only for `Writers::Ended`.
        unsafe { self.take_from(buffer, Writers::Running) }
    }

    /// Takes the oldest closed page of a buffer as it is, because a writer that has not committed its record may have been
    /// killed. A page with such a record is never used again, so this must not be done often. Lock-free; async-signal-safe.
    ///
    /// # Errors
    /// [`TakeError::Empty`].
    pub fn take_stuck(&self, buffer: u32) -> Result<Page<'_>, TakeError> {
        // SAFETY: the condition is only for `Writers::Ended`.
        unsafe { self.take_from(buffer, Writers::Stuck) }
    }

    /// Returns the page that [`Page::into_taken`] has detached.
    ///
    /// # Safety
    /// The page is of this channel, and no other `Page` or copy of it is used from now on.
    pub unsafe fn attach(&self, taken: TakenPage) -> Page<'_> {
        Page { channel: self, taken }
    }
}

impl<'a> Page<'a> {
    /// Returns the number and counts of the page.
    pub fn taken(&self) -> TakenPage {
        self.taken
    }

    /// Detaches the page, which then is not given back.
    pub fn into_taken(self) -> TakenPage {
        core::mem::ManuallyDrop::new(self).taken
    }

    /// Returns the records, in the order in which they were reserved.
    pub fn records(&self) -> Records<'_> {
        Records { channel: self.channel, taken: self.taken }
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if self.taken.is_reusable != 0 {
            self.channel.free(self.taken.page, self.taken.end as usize);
        }
    }
}

impl<'a> IntoIterator for &'a Page<'_> {
    type Item = &'a [u8];
    type IntoIter = Records<'a>;

    fn into_iter(self) -> Records<'a> {
        self.records()
    }
}

/// The committed records of a page.
#[derive(Debug)]
pub struct Records<'a> {
    channel: &'a Channel,
    taken: TakenPage,
}

impl Records<'_> {
    /// Returns the page, whose further records are still to come.
    pub fn taken(&self) -> TakenPage {
        self.taken
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let mut frames = self.channel.frames(self.taken.page, self.taken.end as usize, self.taken.at as usize);
        let found = frames.find_map(|frame| match frame {
            Frame::Record { at, len } => Some((at, len)),
            Frame::Cancelled | Frame::Unfinished => None,
        });
        self.taken.at = frames.at as u64;
        let (at, len) = found?;
        let bytes = frames.words.get(at..at + len.div_ceil(WORD_BYTES))?.as_ptr().cast();
        // SAFETY: the bytes are in the page; their writer has committed them (A → B) and does not write any more, and nobody
        // else does while the page is taken.
        Some(unsafe { core::slice::from_raw_parts(bytes, len) })
    }
}
