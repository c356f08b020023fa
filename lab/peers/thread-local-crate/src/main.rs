//! Engine `thread-local-crate`: counters of the crate thread_local, for the experiment `percpu`.
//!
//! # Configuration
//! One `ThreadLocal<Cell<u64>>` for each counter, as in its documentation; `get_or_default` finds the thread's cell.
//!
//! # Counts
//! The sum over all counters and threads, by the crate's own iterator.

use std::cell::{Cell, UnsafeCell};
use std::process::ExitCode;
use std::sync::LazyLock;

use dormouse_lab_harness::Engine;
use dormouse_lab_peer::counters::{COUNT, Way, cases};
use dormouse_lab_peer::{report, version};
use thread_local::ThreadLocal;

/// A counter that one thread may sum up while all others sleep.
struct Counter(UnsafeCell<ThreadLocal<Cell<u64>>>);

// SAFETY: `ThreadLocal<Cell<_>>` is `Sync`: a thread accesses its own cell only. Only `verify` borrows it mutably,
// while the harness's threads sleep.
unsafe impl Sync for Counter {}

static COUNTERS: LazyLock<Box<[Counter; COUNT]>> =
    LazyLock::new(|| Box::new(std::array::from_fn(|_| Counter(UnsafeCell::new(ThreadLocal::new())))));

struct Crate;

impl Way for Crate {
    type Counter = Counter;

    fn counters() -> &'static [Counter; COUNT] {
        &COUNTERS
    }

    #[inline(always)]
    fn add(counter: &Counter) {
        // SAFETY: a shared borrow; the only mutable one is in `verify`, which runs while the harness's threads sleep.
        let counter = unsafe { &*counter.0.get() };
        let cell = counter.get_or_default();
        cell.set(cell.get() + 1);
    }
}

fn verify() -> Result<u64, String> {
    let sum_of = |counter: &Counter| {
        // SAFETY: nothing else uses the counter: the engine's workers sleep until the next request.
        let counter = unsafe { &mut *counter.0.get() };
        counter.iter_mut().map(|cell| cell.get()).sum::<u64>()
    };
    report(COUNTERS.iter().map(sum_of).sum(), 0, "")
}

fn main() -> ExitCode {
    LazyLock::force(&COUNTERS);
    dormouse_lab_harness::main(&Engine {
        name: "thread-local-crate",
        version: version("thread_local"),
        cases: cases::<Crate>([
            "hot_thread-local-crate",
            "random_thread-local-crate",
            "one_thread-local-crate",
            "eight_thread-local-crate",
        ]),
        arrived: Some(verify),
    })
}
