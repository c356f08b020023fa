//! The layout of a channel's memory, in words of 8 bytes.
//!
//! ```text
//!   header │ words of each buffer │ next page, of each free page │ slots of each buffer │ pages, at a multiple of 4096 bytes
//! ```
//! Memory of zeroes is a channel without pages; [`crate::memory`] makes all pages free, and then stores the magic word.

use crate::{ChannelError, Mode, Options};

pub(crate) const WORD_BYTES: usize = 8;

/// Minimum and maximum size of a page, in bytes.
pub(crate) const PAGE_SIZES_BYTES: core::ops::RangeInclusive<usize> = 4096..=2 << 20;

/// Identifies the layout; the last byte is its version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"dmrelay\x01");

/// Words of the header.
pub(crate) const HEADER_MAGIC: usize = 0;
pub(crate) const HEADER_MODE: usize = 1;
pub(crate) const HEADER_BUFFER_COUNT: usize = 2;
pub(crate) const HEADER_PAGE_COUNT: usize = 3;
pub(crate) const HEADER_PAGE_SIZE_BYTES: usize = 4;
pub(crate) const HEADER_KEPT_PAGE_COUNT: usize = 5;
/// The stack of the pages that any buffer may draw, on a cache line of its own.
pub(crate) const HEADER_FREE: usize = 8;
const HEADER_WORDS: usize = 16;

/// Words of a buffer. The state is on a cache line of its own.
pub(crate) const BUFFER_STATE: usize = 0;
/// Number of pages that were taken or overwritten.
pub(crate) const BUFFER_TAKEN: usize = 8;
pub(crate) const BUFFER_OVERWRITTEN: usize = 9;
pub(crate) const BUFFER_LOST_FULL: usize = 10;
pub(crate) const BUFFER_LOST_BIG: usize = 11;
/// The stack of the pages that only this buffer may draw.
pub(crate) const BUFFER_KEPT: usize = 12;
pub(crate) const BUFFER_WORDS: usize = 16;

const OFFSET_BITS: u32 = 19;
const PAGE_BITS: u32 = 18;
pub(crate) const NUMBER_BITS: u32 = 64 - OFFSET_BITS - PAGE_BITS - 1;
const PAGE_SHIFT: u32 = OFFSET_BITS;
const OPEN: u64 = 1 << (OFFSET_BITS + PAGE_BITS);
const NUMBER_SHIFT: u32 = OFFSET_BITS + PAGE_BITS + 1;

/// Maximum number of pages.
pub(crate) const PAGE_COUNT_MAX: usize = 1 << PAGE_BITS;
/// Maximum number of buffers.
const BUFFER_COUNT_MAX: usize = 4096;

/// A buffer's last page.
///
/// ```text
///   63        38 │ 37   │ 36    19 │ 18                    0
///   number       │ open │ page     │ offset of the next record
/// ```
/// `number` counts the buffer's pages from 1, modulo 2^26. While the page is open, records are reserved in it; once it is
/// closed, nothing but the number of the next page follows. Zero: the buffer has had no page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(pub(crate) u64);

impl State {
    /// Returns the state after `page` was opened as the buffer's next one.
    pub(crate) fn next(self, page: u32) -> State {
        let number = self.number().wrapping_add(1);
        State(number << NUMBER_SHIFT | OPEN | u64::from(page) << PAGE_SHIFT)
    }

    pub(crate) fn closed(self) -> State {
        State(self.0 & !OPEN)
    }

    #[inline]
    pub(crate) fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    /// Returns the number of the page, modulo 2^[`NUMBER_BITS`].
    pub(crate) fn number(self) -> u64 {
        self.0 >> NUMBER_SHIFT
    }

    #[inline]
    pub(crate) fn page(self) -> u32 {
        ((self.0 >> PAGE_SHIFT) as usize % PAGE_COUNT_MAX) as u32
    }

    /// Returns the offset of the next record in the page, in words.
    #[inline]
    pub(crate) fn offset(self) -> usize {
        (self.0 % (1 << OFFSET_BITS)) as usize
    }

    /// Returns the number of the last closed page, modulo 2^[`NUMBER_BITS`].
    pub(crate) fn closed_number(self) -> u64 {
        self.number().wrapping_sub(u64::from(self.is_open()))
    }
}

/// Returns the distance from one number of a page to a later one.
pub(crate) fn distance(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) % (1 << NUMBER_BITS)
}

/// Places of everything in the memory. Its first members are those of C's `struct dormouse_relay_channel`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Index of the first word of the pages.
    pub(crate) pages: usize,
    /// Size of a page, in words.
    pub(crate) page_words: usize,
    pub(crate) buffer_count: u32,
    pub(crate) page_count: u32,
    /// Number of pages that are kept for each buffer.
    pub(crate) kept_page_count: u32,
    pub(crate) mode: Mode,
    /// Index of the first word of the list of free pages.
    pub(crate) links: usize,
    /// Index of the first buffer's first slot.
    pub(crate) slots: usize,
    /// Number of slots of a buffer, a power of two.
    pub(crate) slot_count: usize,
}

/// Index of the first buffer's first word.
pub(crate) const BUFFERS: usize = HEADER_WORDS;

impl Geometry {
    /// Returns where everything is with these options, whose numbers are not checked.
    pub(crate) fn of(options: &Options) -> Geometry {
        let links = BUFFERS + options.buffer_count * BUFFER_WORDS;
        let slots = links + options.page_count;
        let slot_count = options.page_count.next_power_of_two();
        let os_page = *PAGE_SIZES_BYTES.start() / WORD_BYTES;
        Geometry {
            pages: (slots + options.buffer_count * slot_count).next_multiple_of(os_page),
            page_words: options.page_size_bytes / WORD_BYTES,
            buffer_count: options.buffer_count as u32,
            page_count: options.page_count as u32,
            kept_page_count: options.kept_page_count as u32,
            mode: options.mode,
            links,
            slots,
            slot_count,
        }
    }

    /// Returns where everything is with these options.
    ///
    /// # Errors
    /// [`ChannelError::Options`].
    pub(crate) fn checked(options: &Options) -> Result<Geometry, ChannelError> {
        let &Options { mode, buffer_count, page_count, page_size_bytes, kept_page_count } = options;
        let is_page = page_size_bytes.is_power_of_two() && PAGE_SIZES_BYTES.contains(&page_size_bytes);
        let are_counts = (1..=BUFFER_COUNT_MAX).contains(&buffer_count) && (1..=PAGE_COUNT_MAX).contains(&page_count);
        if !is_page || !are_counts {
            return Err(ChannelError::Options);
        }
        let is_enough = match mode {
            // Each buffer may have an open page, and another is needed to go on.
            Mode::Overwrite => kept_page_count == 0 && page_count > buffer_count,
            Mode::Discard => kept_page_count.checked_mul(buffer_count).is_some_and(|kept| kept <= page_count),
        };
        if is_enough { Ok(Geometry::of(options)) } else { Err(ChannelError::Options) }
    }

    /// Returns the size of the memory, in words.
    pub(crate) fn words(&self) -> usize {
        self.pages + self.page_count as usize * self.page_words
    }
}
