//! Free pages: a stack of page numbers, and a count of those that anybody may take.
//!
//! ```text
//!   take a page        available −= 1, or use a promise                   then pop
//!   give it back       push                                               then available += 1, or the promise again
//! ```
//! A share that has taken from the count, or was promised, always finds a page: the count is never ahead of the stack. Lock-free.

use super::atomic::{AtomicU64, AtomicUsize, Ordering};

/// No page: the end of the stack.
pub(super) const NONE: u32 = u32::MAX;

/// The stack and the count. Which page is behind another one is kept where the pages are.
#[derive(Debug)]
pub(super) struct Free {
    /// How many times the stack was changed, and its first page.
    stack: AtomicU64,
    /// Pages that are in the stack and promised to nobody.
    available: AtomicUsize,
}

impl Free {
    /// A stack that begins with page 0, of whose pages so many are available.
    pub(super) fn new(available: usize) -> Free {
        Free { stack: AtomicU64::new(0), available: AtomicUsize::new(available) }
    }

    pub(super) fn available(&self) -> usize {
        self.available.load(Ordering::Relaxed)
    }

    /// Takes so many of the available pages: from then on only the caller may pop them. False if there are not so many.
    pub(super) fn take(&self, count: usize) -> bool {
        let less = |available: usize| available.checked_sub(count);
        // (S) Acquire pairs with (R): the counted pages are in the stack that `pop` reads.
        self.available.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
    }

    /// Makes so many pages available to all; they are already in the stack.
    pub(super) fn make_available(&self, count: usize) {
        // (R) Release pairs with (S).
        self.available.fetch_add(count, Ordering::Release);
    }

    /// Takes the first page. `next` is the page behind one in the stack; `None` for a number that is no page.
    pub(super) fn pop(&self, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        // The page may be drawn at this moment, and the word behind it mean something else: then the stack was changed, and the exchange fails.
        let without_first = |seen: u64| Some(changed(seen, next(seen as u32)?));
        // (P) Acquire pairs with (Q): the page's last owner is done with it.
        let popped = self.stack.fetch_update(Ordering::Acquire, Ordering::Acquire, without_first);
        popped.ok().map(|seen| seen as u32)
    }

    /// Puts a page on top. `set_next` notes which page is behind it.
    pub(super) fn push(&self, page: u32, set_next: impl Fn(u32)) {
        let with_page = |seen: u64| {
            set_next(seen as u32);
            Some(changed(seen, page))
        };
        // (Q) Release pairs with (P). It always has an answer.
        let _ = self.stack.fetch_update(Ordering::Release, Ordering::Relaxed, with_page);
    }
}

/// The stack's word after one more change.
fn changed(word: u64, first: u32) -> u64 {
    (word >> 32).wrapping_add(1) << 32 | u64::from(first)
}
