//! Tests in a model checker: free pages passed between threads.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use atomic::Ordering;
use free::{Free, NONE};

/// The checker's atomics, which `free.rs` uses in place of `core`'s.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}
#[allow(clippy::duplicate_mod, reason = "the same code, with the checker's atomics")]
#[path = "free.rs"]
mod free;

struct Budget {
    free: Free,
    next: Vec<AtomicU32>,
    /// Pages that loom watches: it fails if one has two owners, or an owner whose predecessor still uses it.
    pages: Vec<UnsafeCell<u64>>,
}

// SAFETY: this is under test: loom checks that a page has one owner at a time.
unsafe impl Send for Budget {}
// SAFETY: this is under test: loom checks that no two threads access a page at once.
unsafe impl Sync for Budget {}

impl Budget {
    fn new(page_count: u32, available: usize) -> Arc<Budget> {
        let next = |page: u32| AtomicU32::new(if page + 1 == page_count { NONE } else { page + 1 });
        Arc::new(Budget {
            free: Free::new(available),
            next: (0..page_count).map(next).collect(),
            pages: (0..page_count).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn pop(&self) -> Option<u32> {
        self.free.pop(|page| self.next.get(page as usize).map(|next| next.load(Ordering::Relaxed)))
    }

    fn push(&self, page: u32) {
        self.free.push(page, |next| self.next[page as usize].store(next, Ordering::Relaxed));
    }

    /// Draws and returns a page; a page that was taken or promised is always there.
    fn have(&self) {
        let page = self.pop().expect("a page");
        // SAFETY: the page has only this owner if the stack is correct, which loom checks.
        self.pages[page as usize].with_mut(|word| unsafe { *word += 1 });
        self.push(page);
    }

    fn total(&self) -> u64 {
        // SAFETY: the other threads have ended.
        self.pages.iter().map(|page| page.with(|word| unsafe { *word })).sum()
    }

    /// Pops all pages and returns their number, while no other thread changes the stack.
    fn take_all(&self) -> usize {
        core::iter::from_fn(|| self.pop()).count()
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
        assert_eq!((budget.total(), budget.take_all()), (3, 2));
    });
}

/// A page is pushed again while the one after it is away: a thread that has read that one's number must not take it.
#[test]
fn a_page_that_comes_back_is_not_taken_for_never_gone() {
    loom::model(|| {
        let budget = Budget::new(3, 0);
        let other = {
            let budget = Arc::clone(&budget);
            thread::spawn(move || {
                let (first, second) = (budget.pop().expect("a page"), budget.pop().expect("a page"));
                budget.push(first);
                // SAFETY: the page has only this owner if the stack is correct, which loom checks.
                budget.pages[second as usize].with_mut(|word| unsafe { *word += 1 });
                budget.push(second);
            })
        };
        let page = budget.pop().expect("a page");
        // SAFETY: the page has only this owner if the stack is correct, which loom checks.
        budget.pages[page as usize].with_mut(|word| unsafe { *word += 1 });
        other.join().unwrap();
        budget.push(page);
        assert_eq!((budget.total(), budget.take_all()), (2, 3));
    });
}

#[test]
fn whoever_takes_from_the_count_finds_a_page() {
    loom::model(|| {
        let budget = Budget::new(1, 1);
        let visit = |budget: &Budget| {
            let is_taken = budget.free.take(1);
            if is_taken {
                budget.have();
                budget.free.make_available(1);
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
        assert_eq!((budget.free.available(), budget.total(), budget.take_all()), (1, here + there, 1));
    });
}
