//! The pages that a stream of a flight recorder retains, and giving up the oldest. Writers of any stream may do so at
//! any time.
//!
//! ```text
//!   reclaimed ──▶ 5 │ 6 │ 7 │ (8) ◀── number of the current page, in the state word
//!                 └─ retained ─┘
//! ```
//! A writer that gives a page up has counted it as retained from the value of `reclaimed` that it then advances. So
//! `reclaimed` never passes the current page: otherwise that page would be free as soon as it is closed, and so would
//! all pages after it until the stream has caught up.

use crate::abi::session::State;
use crate::atomic::{AtomicU64, Ordering};

/// The closed pages of a stream that are not given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retained {
    /// Number of the oldest retained page.
    pub(crate) oldest: u64,
    /// Number of retained pages at about this moment: at least the number there were when the words were read.
    pub(crate) count: u32,
}

impl Retained {
    /// Computes them from two words of the stream: `reclaimed`, the number of pages given up, and its state.
    pub(crate) fn of(reclaimed: &AtomicU64, state: &AtomicU64) -> Retained {
        // (E') pairs with (E). It is read before the state word, so that it cannot be greater: a thread that advanced
        // it saw a greater state.
        let oldest = reclaimed.load(Ordering::Acquire);
        // (C) pairs with (A).
        let state = State::from_word(state.load(Ordering::Acquire));
        let count = if state.unit == 0 { 0 } else { u32::from(state.seq.wrapping_sub(oldest as u16)) };
        Retained { oldest, count }
    }

    /// Gives up the oldest page. False if another thread has done so since, or there is none.
    pub(crate) fn give_up(self, reclaimed: &AtomicU64) -> bool {
        let next = self.oldest.wrapping_add(1);
        // (E) pairs with (E') of threads that draw, and of readers, which check again after they have copied.
        let give_up = || reclaimed.compare_exchange(self.oldest, next, Ordering::AcqRel, Ordering::Relaxed);
        self.count > 0 && give_up().is_ok()
    }
}
