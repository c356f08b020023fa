//! Free pages: a stack of page numbers, and a count of those that anybody may take.
//!
//! ```text
//!   take a page        available −= 1, or use a promise                   then pop
//!   give it back       push                                               then available += 1, or the promise again
//! ```
//! A share that has taken from the count, or was promised, always finds a page: the count is never ahead of the stack. Lock-free.

use core::sync::atomic::Ordering;

/// No page: the end of the stack.
pub(super) const NONE: u32 = u32::MAX;

/// Where the words are: a budget's, or the model checker's.
pub(super) trait Words {
    /// The stack: how many times it was changed, and its first page.
    fn free(&self, ordering: Ordering) -> u64;
    /// A compare-and-swap of the same, which may fail spuriously.
    fn exchange_free(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
    /// The page behind one in the stack; `None` for a number that is no page.
    fn next(&self, page: u32) -> Option<u32>;
    fn set_next(&self, page: u32, next: u32);
    /// Pages that are in the stack and promised to nobody.
    fn available(&self) -> usize;
    /// As `exchange_free`.
    fn exchange_available(&self, old: usize, new: usize, success: Ordering) -> Result<usize, usize>;
    fn add_available(&self, count: usize, ordering: Ordering);
}

/// Takes so many of the available pages: from then on only the caller may pop them. False if there are not so many.
pub(super) fn take(words: &impl Words, count: usize) -> bool {
    let mut seen = words.available();
    while let Some(left) = seen.checked_sub(count) {
        // (S) Acquire pairs with (R): the counted pages are in the stack that `pop` reads.
        match words.exchange_available(seen, left, Ordering::Acquire) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// Makes so many pages available to all; they are already in the stack.
pub(super) fn make_available(words: &impl Words, count: usize) {
    // (R) Release pairs with (S).
    words.add_available(count, Ordering::Release);
}

/// Takes the first page.
pub(super) fn pop(words: &impl Words) -> Option<u32> {
    // (P) Acquire pairs with (Q): the page's last owner is done with it.
    let mut seen = words.free(Ordering::Acquire);
    loop {
        let page = seen as u32;
        // The page may be drawn at this moment, and the word mean something else: then the stack was changed, and the exchange fails.
        let next = words.next(page)?;
        // (P) again.
        match words.exchange_free(seen, changed(seen, next), Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(page),
            Err(now) => seen = now,
        }
    }
}

/// Puts a page on top.
pub(super) fn push(words: &impl Words, page: u32) {
    let mut seen = words.free(Ordering::Relaxed);
    loop {
        words.set_next(page, seen as u32);
        // (Q) Release pairs with (P).
        match words.exchange_free(seen, changed(seen, page), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// The stack's word after one more change.
fn changed(word: u64, first: u32) -> u64 {
    (word >> 32).wrapping_add(1) << 32 | u64::from(first)
}

/// Pages passed between threads, under a model checker.
#[cfg(all(test, target_pointer_width = "64"))]
mod model {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
    use loom::thread;

    use super::*;

    struct Budget {
        free: AtomicU64,
        available: AtomicUsize,
        next: Vec<AtomicU32>,
        /// loom watches the pages, and fails if one has two owners, or an owner whose predecessor is not done with it.
        pages: Vec<UnsafeCell<u64>>,
    }

    // SAFETY: what is under test: loom checks that a page has one owner at a time.
    unsafe impl Send for Budget {}
    // SAFETY: likewise.
    unsafe impl Sync for Budget {}

    impl Budget {
        fn new(page_count: u32, available: usize) -> Arc<Budget> {
            let next = |page: u32| AtomicU32::new(if page + 1 == page_count { NONE } else { page + 1 });
            Arc::new(Budget {
                free: AtomicU64::new(0),
                available: AtomicUsize::new(available),
                next: (0..page_count).map(next).collect(),
                pages: (0..page_count).map(|_| UnsafeCell::new(0)).collect(),
            })
        }

        /// Takes a page for a moment; a page that was taken or promised is always there.
        fn have(&self) {
            let page = pop(self).expect("a page");
            // SAFETY: what is under test. loom checks it.
            self.pages[page as usize].with_mut(|word| unsafe { *word += 1 });
            push(self, page);
        }

        fn total(&self) -> u64 {
            // SAFETY: the other threads are gone.
            self.pages.iter().map(|page| page.with(|word| unsafe { *word })).sum()
        }

        /// Pages of the stack, which nobody changes.
        fn free_count(&self) -> usize {
            let first = self.free.load(Ordering::Acquire) as u32;
            core::iter::successors(Some(first).filter(|page| *page != NONE), |page| {
                self.next(*page).filter(|page| *page != NONE)
            })
            .count()
        }
    }

    impl Words for Budget {
        fn free(&self, ordering: Ordering) -> u64 {
            self.free.load(ordering)
        }

        fn exchange_free(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
            self.free.compare_exchange_weak(old, new, success, failure)
        }

        fn next(&self, page: u32) -> Option<u32> {
            self.next.get(page as usize).map(|next| next.load(Ordering::Relaxed))
        }

        fn set_next(&self, page: u32, next: u32) {
            self.next[page as usize].store(next, Ordering::Relaxed);
        }

        fn available(&self) -> usize {
            self.available.load(Ordering::Relaxed)
        }

        fn exchange_available(&self, old: usize, new: usize, success: Ordering) -> Result<usize, usize> {
            self.available.compare_exchange_weak(old, new, success, Ordering::Relaxed)
        }

        fn add_available(&self, count: usize, ordering: Ordering) {
            self.available.fetch_add(count, ordering);
        }
    }

    #[test]
    fn two_threads_with_a_promise_each_always_have_a_page() {
        loom::model(|| {
            let budget = Budget::new(2, 0);
            let other = {
                let budget = Arc::clone(&budget);
                thread::spawn(move || {
                    budget.have();
                    budget.have();
                })
            };
            budget.have();
            other.join().unwrap();
            assert_eq!((budget.total(), budget.free_count()), (3, 2));
        });
    }

    /// A page comes back while the one behind it is away: a thread that has read that one's number must not take it.
    #[test]
    fn a_page_that_comes_back_is_not_taken_for_never_gone() {
        loom::model(|| {
            let budget = Budget::new(3, 0);
            let other = {
                let budget = Arc::clone(&budget);
                thread::spawn(move || {
                    let (first, second) = (pop(&*budget).expect("a page"), pop(&*budget).expect("a page"));
                    push(&*budget, first);
                    // SAFETY: what is under test. loom checks it.
                    budget.pages[second as usize].with_mut(|word| unsafe { *word += 1 });
                    push(&*budget, second);
                })
            };
            let page = pop(&*budget).expect("a page");
            // SAFETY: what is under test. loom checks it.
            budget.pages[page as usize].with_mut(|word| unsafe { *word += 1 });
            other.join().unwrap();
            push(&*budget, page);
            assert_eq!((budget.total(), budget.free_count()), (2, 3));
        });
    }

    #[test]
    fn whoever_takes_from_the_count_finds_a_page() {
        loom::model(|| {
            let budget = Budget::new(1, 1);
            let visit = |budget: &Budget| {
                let is_taken = take(budget, 1);
                if is_taken {
                    budget.have();
                    make_available(budget, 1);
                }
                u64::from(is_taken)
            };
            let other = {
                let budget = Arc::clone(&budget);
                thread::spawn(move || visit(&budget) + visit(&budget))
            };
            let here = visit(&budget);
            let there = other.join().unwrap();
            assert!(here + there > 0);
            assert_eq!((budget.total(), budget.free_count(), budget.available()), (here + there, 1, 1));
        });
    }
}
