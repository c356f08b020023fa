//! Engine `fast-counter`: counters of the crate fast-counter, for the experiment `percpu`.
//!
//! # Configuration
//! One `ConcurrentCounter` for each counter, with as many cells as there are CPUs. Each cell has a cache line of its
//! own, and a thread keeps the first cell that it was given.
//!
//! # Counts
//! The sum over all counters, by the crate's own `sum`.

use std::process::ExitCode;
use std::sync::LazyLock;

use dormouse_lab_harness::Engine;
use dormouse_lab_peer::counters::{COUNT, Way, cases};
use dormouse_lab_peer::{report, version};
use fast_counter::ConcurrentCounter;

static COUNTERS: LazyLock<Box<[ConcurrentCounter; COUNT]>> = LazyLock::new(|| {
    let cells = std::thread::available_parallelism().map_or(1, usize::from);
    let counters: Vec<_> = (0..COUNT).map(|_| ConcurrentCounter::new(cells)).collect();
    counters.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("as many as were made"))
});

struct Crate;

impl Way for Crate {
    type Counter = ConcurrentCounter;

    fn counters() -> &'static [ConcurrentCounter; COUNT] {
        &COUNTERS
    }

    #[inline(always)]
    fn add(counter: &ConcurrentCounter) {
        counter.add(1);
    }
}

fn verify() -> Result<u64, String> {
    let sum: isize = COUNTERS.iter().map(ConcurrentCounter::sum).sum();
    report(sum as u64, 0, "")
}

fn main() -> ExitCode {
    LazyLock::force(&COUNTERS);
    dormouse_lab_harness::main(&Engine {
        name: "fast-counter",
        version: version("fast-counter"),
        cases: cases::<Crate>(["hot_fast-counter", "random_fast-counter", "one_fast-counter", "eight_fast-counter"]),
        arrived: Some(verify),
    })
}
