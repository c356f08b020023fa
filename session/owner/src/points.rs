//! Points at which a test ends an owner like a kill would: everything done so far stays, and nothing else happens.
//! Empty outside of tests.

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn point() {}

#[cfg(test)]
pub(crate) use kill::{killed_at, point};

#[cfg(test)]
mod kill {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// Number of points to pass before the one that ends this thread's owner.
        static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    struct Killed;

    pub(crate) fn point() {
        let left = LEFT.get();
        LEFT.set(left.wrapping_sub(1));
        if left == 0 {
            // Without a message: it is not a failure.
            resume_unwind(Box::new(Killed));
        }
    }

    /// Runs an owner's `action` up to the point with this number; `None` if it ends there.
    pub(crate) fn killed_at<T>(number: u64, action: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(number);
        let done = catch_unwind(AssertUnwindSafe(action));
        LEFT.set(u64::MAX);
        match done {
            Ok(done) => Some(done),
            Err(payload) if payload.is::<Killed>() => None,
            Err(payload) => resume_unwind(payload),
        }
    }
}
