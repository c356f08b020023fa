//! Counters for peers, with the same loops and the same order as in `lab/engines/src/percpu.rs`.

use dormouse_lab_harness::{Case, align, opaque};

/// Number of counters in a working set.
pub const COUNT: usize = 4_096;
/// Number of counters that one iteration of `eight` adds to.
const ADJACENT: usize = 8;
/// Multiplier from P. L'Ecuyer, "Tables of linear congruential generators", 1999.
const MULTIPLIER: u64 = 2_862_933_555_777_941_757;

/// A way of counting.
pub trait Way: Sync + 'static {
    /// Type of a counter.
    type Counter: Sync + 'static;

    /// Returns all counters, in the order of creation.
    fn counters() -> &'static [Self::Counter; COUNT];

    /// Adds one to a counter.
    fn add(counter: &Self::Counter);
}

/// A way that adds nothing.
struct Nothing;

static NUMBERS: [u32; COUNT] = [0; COUNT];

impl Way for Nothing {
    type Counter = u32;

    fn counters() -> &'static [u32; COUNT] {
        &NUMBERS
    }

    #[inline(always)]
    fn add(counter: &u32) {
        opaque(std::ptr::from_ref(counter).addr() as u64);
    }
}

#[inline(always)]
fn scattered(number: u64) -> usize {
    (number.wrapping_mul(MULTIPLIER) >> 40) as usize % COUNT
}

extern "C" fn hot<W: Way>(iterations: u64, first: u64) {
    let counter = &W::counters()[COUNT / 2];
    let end = first.wrapping_add(iterations);
    let mut number = first;
    align();
    while end.wrapping_sub(number) >= 8 {
        for _ in 0..8 {
            opaque(number);
            W::add(counter);
        }
        number += 8;
    }
    while number != end {
        opaque(number);
        W::add(counter);
        number += 1;
    }
}

extern "C" fn random<W: Way>(iterations: u64, first: u64) {
    let counters = W::counters();
    align();
    for number in first..first.wrapping_add(iterations) {
        W::add(&counters[scattered(opaque(number))]);
    }
}

extern "C" fn eight<W: Way>(iterations: u64, first: u64) {
    let counters = W::counters();
    for number in first..first.wrapping_add(iterations) {
        let start = scattered(opaque(number)) & !(ADJACENT - 1);
        for index in 0..ADJACENT {
            W::add(&counters[start + index]);
        }
    }
}

/// Returns the cases of a way, with the `names` of its shapes `hot`, `random`, `one` and `eight`, and the empty loops.
pub fn cases<W: Way>(names: [&'static str; 4]) -> Vec<Case> {
    let [hot_name, random_name, one_name, eight_name] = names;
    let adjacent = ADJACENT as u64;
    vec![
        Case { name: "empty_hot", run: hot::<Nothing>, events_per_iteration: 0 },
        Case { name: "empty_random", run: random::<Nothing>, events_per_iteration: 0 },
        Case { name: "empty_one", run: random::<Nothing>, events_per_iteration: 0 },
        Case { name: "empty_eight", run: eight::<Nothing>, events_per_iteration: 0 },
        Case { name: hot_name, run: hot::<W>, events_per_iteration: 1 },
        Case { name: random_name, run: random::<W>, events_per_iteration: 1 },
        Case { name: one_name, run: random::<W>, events_per_iteration: 1 },
        Case { name: eight_name, run: eight::<W>, events_per_iteration: adjacent },
    ]
}
