//! How often the code of a value is changed.
//!
//! A change of code interrupts every thread of the process that runs, several times (two changes of protection and a
//! barrier). A value that is set hundreds of times a second would take a noticeable part of each reader's time, which
//! a variable does not. So each value has a bucket of changes. One that has none left is read from its variable, at
//! once and without an interrupt, until it is set less often.
//!
//! ```text
//!              set, the bucket is empty: its sites become loads
//!   patched ─────────────────────────────────────────────────────▶ a variable
//!      ▲                                                               │
//!      └───────────────────────────────────────────────────────────────┘
//!              set, the bucket is half full again: its sites become immediates
//! ```

/// Changes of code that a value may make at once, after a time without any.
const BURST: u32 = 64;

/// Number of values whose buckets are known: those that were set last.
const VALUE_COUNT: usize = 64;

/// The bucket of a value.
#[derive(Clone, Copy)]
struct Bucket {
    /// Address of the variable; 0 if the entry is free.
    address: usize,
    /// Number of changes left, times [`CHANGE`].
    left: u64,
    /// Time of the last change, in nanoseconds.
    changed_ns: u64,
    /// Whether the value is read from its variable.
    is_variable: bool,
}

/// One change of code in [`Bucket::left`]: the number of nanoseconds in a second, so that each nanosecond returns as much as
/// there may be changes in a second.
const CHANGE: u64 = 1_000_000_000;
const FULL: u64 = BURST as u64 * CHANGE;

/// The buckets of all values.
pub(crate) struct Pace {
    buckets: [Bucket; VALUE_COUNT],
    /// Changes of code that a value may make in each second.
    pub(crate) per_second: u32,
}

/// Changes of the code of one value in a second, unless a program chooses another number. They take each reader less than
/// a hundredth of its time.
pub(crate) const PER_SECOND: u32 = 200;

impl Pace {
    pub(crate) const fn new() -> Pace {
        let free = Bucket { address: 0, left: FULL, changed_ns: 0, is_variable: false };
        Pace { buckets: [free; VALUE_COUNT], per_second: PER_SECOND }
    }

    /// Takes a change of the value at an address from its bucket. Returns whether the value is now read from its
    /// variable. Times are those of a clock that does not go back.
    pub(crate) fn change(&mut self, address: usize, now_ns: u64) -> bool {
        let per_second = u64::from(self.per_second);
        let left_now = |bucket: &Bucket| {
            let passed_ns = now_ns.saturating_sub(bucket.changed_ns);
            bucket.left.saturating_add(passed_ns.saturating_mul(per_second)).min(FULL)
        };
        let known = self.buckets.iter().position(|bucket| bucket.address == address);
        let oldest = || (0..VALUE_COUNT).min_by_key(|index| self.buckets[*index].changed_ns).unwrap_or_default();
        let index = known.unwrap_or_else(oldest);
        let bucket = &mut self.buckets[index];
        if known.is_none() {
            *bucket = Bucket { address, left: FULL, changed_ns: now_ns, is_variable: false };
        }
        let left = left_now(bucket);
        bucket.is_variable = if bucket.is_variable { left < FULL / 2 } else { left < CHANGE };
        bucket.left = left.saturating_sub(CHANGE);
        bucket.changed_ns = now_ns;
        bucket.is_variable
    }

    /// Whether the value at an address is read from its variable.
    pub(crate) fn is_variable(&self, address: usize) -> bool {
        self.buckets.iter().any(|bucket| bucket.address == address && bucket.is_variable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Sets a value at a rate for a second. Returns how often its code was changed.
    fn a_second(pace: &mut Pace, address: usize, rate: u64, start_ns: u64) -> u64 {
        (0..rate).map(|index| start_ns + index * SECOND / rate).filter(|now| !pace.change(address, *now)).count() as u64
    }

    #[test]
    fn a_value_that_is_set_seldom_is_patched_each_time() {
        let mut pace = Pace::new();
        for second in 0..10 {
            assert_eq!(a_second(&mut pace, 8, 100, second * SECOND), 100);
        }
        assert_eq!(a_second(&mut pace, 16, 200, 0), 200, "as often as it may be");
    }

    #[test]
    fn a_value_that_is_set_often_becomes_a_variable_until_it_is_set_less_often() {
        let mut pace = Pace::new();
        let patched = a_second(&mut pace, 8, 1_000, 0);
        assert!((64..=128).contains(&patched), "{patched} of the first second: the burst, and what returns meanwhile");
        assert_eq!(a_second(&mut pace, 8, 1_000, SECOND), 0, "it stays one");
        assert!(pace.is_variable(8) && !pace.is_variable(16));
        let patched = a_second(&mut pace, 8, 100, 2 * SECOND);
        assert!((50..=70).contains(&patched), "{patched}: once half of the bucket is back");
        assert!(!pace.is_variable(8));
        assert_eq!(a_second(&mut pace, 8, 10, 3 * SECOND), 10);
    }

    #[test]
    fn values_do_not_share_a_bucket_and_one_that_is_set_seldom_makes_room() {
        let mut pace = Pace::new();
        // Ten are set a thousand times a second, and each time another one too.
        for round in 0..1_000 {
            for often in 1..=10 {
                pace.change(often, round * SECOND / 1_000);
            }
            assert!(!pace.change(100 + round as usize, round * SECOND / 1_000 + 1));
        }
        assert!((1..=10).all(|often| pace.is_variable(often)));
    }

    #[test]
    fn a_program_may_choose_another_rate() {
        let mut pace = Pace { per_second: u32::MAX, ..Pace::new() };
        assert_eq!(a_second(&mut pace, 8, 1_000_000, 0), 1_000_000);
        let mut pace = Pace { per_second: 0, ..Pace::new() };
        assert_eq!(a_second(&mut pace, 8, 1_000, 0), 64, "the burst alone");
        assert!(pace.change(8, u64::MAX), "never again");
    }
}
