//! Windows: what a process notes of the current pages, so that the shortest write path need not look them up.
//!
//! ```text
//!   table: count │ window of processor 0 │ of processor 1 │ …
//!                    │
//!                    ▼ a cache line
//!          control block │ page word │ offset_max │ address of the page
//!                │             │
//!                ▼             ▼
//!           state word  −  page word  =  offset, if the page is current; otherwise a number above every offset
//! ```
//! The page word is a state word of that page with offset 0. So one subtraction and one comparison tell that the window shows
//! the current page and that a record of the shortest path fits, and one addition gives its address. What others have left in
//! shared memory decides only whether that comes out, not where it leads to: the address is that of a page of this mapping, and
//! `offset_max` is less than a page.
//!
//! # States and their owner
//! A window belongs to its process and is turned by sections on its processor alone ([`Window::plan_turn`]). It shows a page
//! or none, and between any two of a turn's stores it shows the page before, none, or the page after:
//! ```text
//!   page word = page A ──▶ NO_PAGE ──▶ NO_PAGE, address of B ──▶ page word = page B          the final store
//! ```
//! A window that shows another page than the current one sends the writer the slow way, where it is turned. That also a seq
//! that has come around means the same page is of no matter: the address follows from the unit alone.
//!
//! # Ordering
//! All of it happens on one processor, where sections follow each other. A child of `fork` gets a copy that holds the stores up
//! to one of them, which is as if a turn had been aborted.
//!
//! # Cost
//! 64 bytes for each processor. One record on the slow path for each page that another process has opened, and at most two for
//! what is left of a page when `offset_max` is passed.
//!
//! # Limits
//! x86-64, as the shortest path.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dormouse_abi::page;
use dormouse_abi::record;
use dormouse_abi::session::{State, StreamControl};
use dormouse_abi::txn::{Store, Txn};

use crate::Memory;

/// Most words of fields that a record of the shortest path has.
pub const WORDS_MAX: usize = 3;

/// A page word that no state word agrees with: unit 0 is no page.
const NO_PAGE: u64 = 0;

/// One process's window onto the stream of one processor.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Window {
    pub(crate) control: *const StreamControl,
    pub(crate) page_word: AtomicU64,
    /// From where on the longest record might not fit.
    pub(crate) offset_max: u64,
    pub(crate) page: AtomicPtr<u8>,
}

// SAFETY: the control block is shared memory that consists of atomics; the rest is atomic or never changes.
unsafe impl Sync for Window {}
// SAFETY: as above.
unsafe impl Send for Window {}

impl Window {
    /// Plans to turn the window to the page of this state word. `None` if it shows that page, or the word means none.
    ///
    /// The transaction is for sections on the window's processor only. Wait-free; async-signal-safe.
    pub fn plan_turn(&self, memory: &Memory, state: u64) -> Option<Txn> {
        let state = State::from_word(state);
        let page = memory.page(state.unit)?;
        let page_word = State { offset: 0, ..state }.to_word();
        // Relaxed: the guard of the transaction, which compares it on the processor that writes it.
        let seen = self.page_word.load(Ordering::Relaxed);
        if seen == page_word {
            return None;
        }
        let target = self.page_word.as_ptr();
        let mut txn = Txn::new(target, seen, Store { target: target.cast(), value: page_word, width: 8 });
        txn.store(target.cast(), NO_PAGE, 8);
        txn.store(self.page.as_ptr().cast(), page.expose_provenance() as u64, 8);
        Some(txn)
    }
}

/// The windows of a process onto a session. Never freed, because a writer may hold them at any time.
#[derive(Debug, Clone, Copy)]
pub struct Windows {
    /// As the section reads it: how many there are, as an address, and then the windows.
    table: &'static [*const Window],
}

// SAFETY: numbers, and addresses of windows, which are `Sync` and never freed.
unsafe impl Sync for Windows {}
// SAFETY: as above.
unsafe impl Send for Windows {}

impl Windows {
    /// No window: every record goes the slow way.
    pub const NONE: Windows = Windows { table: &[core::ptr::null()] };

    /// Windows that show no page yet, onto the streams of the session's processors. Allocates, and never frees.
    pub fn new(memory: &Memory) -> Windows {
        let geometry = memory.geometry();
        let offset_max = geometry.page_size_bytes as usize
            - page::SLACK_BYTES
            - record::HEADER_SIZE_BYTES
            - WORDS_MAX * size_of::<u64>();
        // Whoever forges a state word that agrees with no page gets into a page all the same.
        let page = memory.page(geometry.unit_of_page(0)).unwrap_or(memory.base());
        let windows: Vec<Window> = (0..geometry.cpu_count)
            .map(|cpu| Window {
                control: memory.stream(cpu),
                page_word: AtomicU64::new(NO_PAGE),
                offset_max: offset_max as u64,
                page: AtomicPtr::new(page),
            })
            .collect();
        let count = core::ptr::without_provenance(windows.len());
        let windows = windows.leak().iter().map(core::ptr::from_ref);
        Windows { table: core::iter::once(count).chain(windows).collect::<Vec<_>>().leak() }
    }

    /// Where the table starts, for [`define_record_words!`](crate::define_record_words).
    pub const fn as_ptr(&self) -> *const *const Window {
        self.table.as_ptr()
    }

    /// The window onto a processor's stream, if there is one. Wait-free; async-signal-safe.
    pub fn get(&self, cpu: u32) -> Option<&'static Window> {
        let window = *self.table.get(1..)?.get(cpu as usize)?;
        // SAFETY: the table's other elements are references that live for ever.
        unsafe { window.as_ref() }
    }
}
