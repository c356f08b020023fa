//! Free pages: a stack of page numbers, and a count of the pages that any share may take.
//!
//! ```text
//!   take a page        available −= 1, or use a promise                   then pop
//!   return it          push                                               then available += 1, or the promise again
//! ```
//! A share that has taken from the count, or was promised a page, always finds one: the count is never ahead of the
//! stack. Lock-free.

use super::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number that means no page: the end of the stack.
pub(super) const NONE: u32 = u32::MAX;

/// The stack and the count. The page after each page in the stack is recorded with the pages.
#[derive(Debug)]
pub(super) struct Free {
    /// Number of changes of the stack in the upper half, and its first page in the lower half.
    stack: AtomicU64,
    /// Number of pages that are in the stack and not promised.
    available: AtomicUsize,
}

impl Free {
    /// Makes a stack that begins with page 0, of whose pages `available` are available.
    pub(super) fn new(available: usize) -> Free {
        Free { stack: AtomicU64::new(0), available: AtomicUsize::new(available) }
    }

    pub(super) fn available(&self) -> usize {
        self.available.load(Ordering::Relaxed)
    }

    /// Takes `count` of the available pages: from then on only the caller may pop them. False if there are not enough.
    pub(super) fn take(&self, count: usize) -> bool {
        let less = |available: usize| available.checked_sub(count);
        // (S) Acquire pairs with (R): the counted pages are in the stack that `pop` reads.
        self.available.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
    }

    /// Makes `count` pages available; they are already in the stack.
    pub(super) fn make_available(&self, count: usize) {
        // (R) Release pairs with (S).
        self.available.fetch_add(count, Ordering::Release);
    }

    /// Pops the first page. `next` returns the page after a given one in the stack; `None` for a number that is not a
    /// page.
    pub(super) fn pop(&self, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        // The page may be drawn at this moment, so that its `next` means something else: then the stack has changed,
        // and the exchange fails.
        let without_first = |seen: u64| Some(changed(seen, next(seen as u32)?));
        // (P) Acquire pairs with (Q): the page's previous owner no longer uses it.
        let popped = self.stack.fetch_update(Ordering::Acquire, Ordering::Acquire, without_first);
        popped.ok().map(|seen| seen as u32)
    }

    /// Pushes a page. `set_next` records the page that follows it.
    pub(super) fn push(&self, page: u32, set_next: impl Fn(u32)) {
        let with_page = |seen: u64| {
            set_next(seen as u32);
            Some(changed(seen, page))
        };
        // (Q) Release pairs with (P). The update cannot fail.
        let _ = self.stack.fetch_update(Ordering::Release, Ordering::Relaxed, with_page);
    }
}

/// Returns the stack's word after one more change.
fn changed(word: u64, first: u32) -> u64 {
    (word >> 32).wrapping_add(1) << 32 | u64::from(first)
}
