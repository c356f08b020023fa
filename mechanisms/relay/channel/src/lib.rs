//! A recorder: each CPU has a buffer, made of pages from one budget; records are reserved, written and committed.
//!
//! # The problem
//! A program wants to write records of any size in nanoseconds, from any thread and signal handler, and to read them while
//! it goes on, or after it was killed. One queue is contended; a queue for each CPU has to be large enough for the busiest
//! one. Here the buffers share pages: a busy CPU has many, an idle one at most one.
//!
//! # Picture
//! ```text
//!   buffer of CPU 0    state word: page 7 │ open │ p4 │ offset ────────────┐
//!                                                                          ▼
//!     closed pages 4 5 6      ┌──────────────┬─────────────────┬───────────┬───────────┐
//!        ▲      ▲             │ 16 │ record  │ 24 │ reserved   │ 8 │ rec…  │ zeroes    │  p4
//!      taken   slots          └──────────────┴─────────────────┴───────────┴───────────┘
//!                               committed      in work           committed
//! ```
//! A writer moves the offset by one compare-and-swap, and the space is its own; it writes, and one store marks the record
//! as committed. It may be moved to another CPU in between, or be interrupted by a handler that also writes. If the page
//! has no room, it is closed, and another page is opened. A reader takes closed pages out of the buffer, in order, and
//! gives them back; what it has taken no writer changes.
//!
//! # Modes
//! | | no page is free | a reader finds |
//! | --- | --- | --- |
//! | [`Mode::Discard`] | the new record is lost | the oldest records |
//! | [`Mode::Overwrite`] | the oldest page of the buffer that has the most is overwritten | the newest records |
//!
//! Every lost or overwritten record is counted, by buffer: [`Channel::counts`].
//!
//! # Why it is right
//! * The offset, the page and its number are in one word, so a writer that was delayed cannot reserve in a page that is
//!   closed or has come back: its number has changed. The number has 26 bits: a writer would have to sleep, between its
//!   read of the word and the compare-and-swap, exactly as long as the buffer takes for a multiple of 2^26 pages, and
//!   wake at the same page and offset.
//! * No page is overwritten or taken while a record in it is reserved and not committed; a writer would not know that its
//!   bytes are somebody else's. A thread looks at all frames of a page before it takes it, and it has the page only if
//!   nobody else has taken it meanwhile. Frames of a closed page change in one direction only, to committed or cancelled.
//!   If another thread has taken the page, the words that were looked at may have been bytes of a new record; they are
//!   read as atomics, and what they said is not used.
//! * A frame becomes COMMITTED after the record's bytes (A → B). A page is open after it was made zero (C → D), so that no
//!   frame of its previous use is found. A closed page is in its slot before the next one is open (E → F). The number of
//!   taken pages is not ahead of the closed ones (I → J). A free page's previous owner no longer uses it (G → H).
//! * Each step is one compare-and-swap of one word, and whoever finds a half-finished switch finishes it. So a thread that
//!   was interrupted or killed holds up no other.
//!
//! The module `model` checks this in a model checker, also with threads that end before any of their accesses.
//!
//! # After `kill -9`
//! In memory of a file or memfd, another process still finds every committed record. [`Writers::Ended`] says that nobody
//! is at work, so that pages with unfinished records may be taken, without these. While others go on, a page in which a killed
//! process has reserved a record keeps its buffer from advancing, until a reader gives up the page: [`Writers::Stuck`]. A thread that is killed while it switches
//! pages may leave one page unused, and in overwrite mode one page's records uncounted, until the channel is created anew.
//!
//! # Cost
//! A record: the CPU's number, one locked compare-and-swap, three stores, and the copy; 8 bytes before it, and padding to
//! 8. A page: each of its frames is read once and each of its words cleared once.
//!
//! # Limits
//! A record fits in a page. The order is that of reservation within a buffer; between buffers there is none unless
//! the caller writes timestamps. A thread that switches pages holds a free one for a moment, so another may find none and lose
//! a record although there is one. A reservation that is neither committed nor dropped keeps its page from being reused. The
//! channel needs 64-bit addresses.
//!
//! # Source
//! Mathieu Desnoyers, "LTTng optimize write to page function", 2009, for buffers made of pages. The names of the operations
//! and modes are those of LTTng-UST's ring buffer. That a reader takes a page out of the circle is the idea of Linux's
//! `kernel/trace/ring_buffer.c`.

#![cfg(target_pointer_width = "64")]

#[cfg(test)]
#[path = "../../../../record/abi/src/atomic.rs"]
mod atomic;
/// The atomics of this crate; tests replace them.
#[cfg(not(test))]
mod atomic {
    pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
}
mod frame;
mod layout;
mod memory;
#[cfg(test)]
mod model;
mod pages;
mod reader;
mod writer;

use core::fmt;
use core::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{BUFFER_LOST_BIG, BUFFER_LOST_FULL, BUFFER_OVERWRITTEN, Geometry};

pub use memory::possible_cpu_count;
pub use reader::{Page, Records, TakenPage};
pub use writer::{Lost, Reservation};

/// What happens to a record for which there is no free page.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The record is lost.
    Discard = 0,
    /// The oldest records are overwritten: a flight recorder.
    Overwrite = 1,
}

/// The size and mode of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What happens to a record for which there is no free page.
    pub mode: Mode,
    /// Number of buffers. Those of CPUs beyond it are shared.
    pub buffer_count: usize,
    /// Number of pages of all buffers together. In overwrite mode there are more pages than buffers.
    pub page_count: usize,
    /// Size of a page, in bytes: a power of two from 4096 to 2 MiB.
    pub page_size_bytes: usize,
    /// Discard mode: number of pages that only this buffer draws, for each buffer.
    pub kept_page_count: usize,
}

impl Options {
    /// Returns options for a buffer for each possible CPU, with eight pages of 64 KiB for each of them. In discard mode two
    /// of the eight are kept.
    pub fn new(mode: Mode) -> Options {
        let buffer_count = possible_cpu_count();
        let kept_page_count = if mode == Mode::Discard { 2 } else { 0 };
        Options { mode, buffer_count, page_count: 8 * buffer_count, page_size_bytes: 65536, kept_page_count }
    }
}

/// Why there is no channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelError {
    /// The options are not valid.
    Options,
    /// The file has no channel, or one of another version.
    NoChannel,
    /// The system's error number.
    System(i32),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelError::Options => formatter.write_str("invalid number or size of buffers or pages"),
            ChannelError::NoChannel => formatter.write_str("the file has no channel of this version"),
            ChannelError::System(errno) => std::io::Error::from_raw_os_error(*errno).fmt(formatter),
        }
    }
}

impl std::error::Error for ChannelError {}

/// Whether writers may be at work on records that they have reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// They may be: a page is taken only if all its records are committed or cancelled.
    Running,
    /// Those that have not committed their records never will, because they were killed.
    Ended,
    /// Some may have been killed, and others be at work: a page with records that are not committed is taken without them,
    /// and never used again.
    Stuck,
}

/// Why no page was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeError {
    /// The buffer has no closed page.
    Empty,
    /// A record of the oldest closed page is reserved and not yet committed.
    Busy,
}

impl fmt::Display for TakeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            TakeError::Empty => "the buffer has no closed page",
            TakeError::Busy => "a writer has not yet committed a record of the oldest page",
        })
    }
}

impl std::error::Error for TakeError {}

/// Records of a buffer that no reader will find, since the channel was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of records for which there was no page.
    pub lost_full: u64,
    /// Number of records that were larger than a page.
    pub lost_big: u64,
    /// Number of committed records that were overwritten before a reader took them.
    pub overwritten: u64,
}

/// Buffers for each CPU, in private or shared memory. See the [module](self).
///
/// All functions but those that create, open and drop a channel are lock-free and async-signal-safe, and any number of
/// threads and processes may call them.
#[repr(C)]
#[derive(Debug)]
pub struct Channel {
    memory: NonNull<AtomicU64>,
    geometry: Geometry,
    /// Whether dropping the channel unmaps the memory.
    is_mapped: bool,
}

// SAFETY: the memory is shared with other threads and processes in any case, and its words are accessed by atomic
// operations. A record's bytes are accessed by the writer that has reserved it and, once it is committed, by the holder of
// its page.
unsafe impl Send for Channel {}
// SAFETY: the words are accessed by atomic operations; a record's bytes have one writer, and then are only read.
unsafe impl Sync for Channel {}

impl Channel {
    /// Returns all words of the memory.
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory has this many words for as long as the channel is there, aligned, as `memory` ensures, and
        // atomics may be shared. Records' bytes are written through pointers, by the one writer that has reserved them.
        unsafe { core::slice::from_raw_parts(self.memory.as_ptr(), self.geometry.words()) }
    }

    /// Returns the number of buffers.
    pub fn buffer_count(&self) -> u32 {
        self.geometry.buffer_count
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.geometry.mode
    }

    /// Returns the size of the largest record, in bytes.
    pub fn record_size_max_bytes(&self) -> usize {
        (self.geometry.page_words - 1) * layout::WORD_BYTES
    }

    /// Returns what was lost of a buffer. `None` if there is no such buffer.
    pub fn counts(&self, buffer: u32) -> Option<Counts> {
        let count = |word| self.buffer_word(buffer, word).load(Ordering::Relaxed);
        (buffer < self.geometry.buffer_count).then(|| Counts {
            lost_full: count(BUFFER_LOST_FULL),
            lost_big: count(BUFFER_LOST_BIG),
            overwritten: count(BUFFER_OVERWRITTEN),
        })
    }
}
