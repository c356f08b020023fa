//! At most so many events a second.

use core::sync::atomic::{AtomicU64, Ordering};

/// A limit of events a second, by the generic cell rate algorithm: each event uses up a part of a second, and there is
/// room as long as no more than one second is used up ahead of the time. So at most twice as many events pass within
/// any second, and no more than the limit over longer times.
#[derive(Debug)]
pub(super) struct Rate {
    /// Part of a second that an event uses up, in nanoseconds.
    interval_ns: u64,
    /// Time until which all is used up, in nanoseconds.
    used_ns: AtomicU64,
}

/// Rates are compared in tests, by their limits.
impl PartialEq for Rate {
    fn eq(&self, other: &Rate) -> bool {
        self.interval_ns == other.interval_ns
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// Number of attempts to use up a part while other threads do so too.
const ATTEMPTS_MAX: u32 = 8;

impl Rate {
    /// `count`: number of events a second, not zero.
    pub(super) fn new(count: u32) -> Rate {
        Rate { interval_ns: SECOND_NS.div_ceil(count.max(1).into()), used_ns: AtomicU64::new(0) }
    }

    /// Whether there is room for an event at this time, which it then uses up. Wait-free: an event for which too many
    /// threads compete finds no room.
    pub(super) fn has_room(&self, now_ns: u64) -> bool {
        // Relaxed: the word depends on nothing else.
        let mut used_ns = self.used_ns.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS_MAX {
            let next_ns = used_ns.max(now_ns).saturating_add(self.interval_ns);
            if next_ns.saturating_sub(now_ns) > SECOND_NS {
                return false;
            }
            match self.used_ns.compare_exchange_weak(used_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => used_ns = found,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of events, one each `step_ns`, that find room in each of so many seconds.
    fn passed(rate: &Rate, step_ns: u64, seconds: u64) -> Vec<u64> {
        let of_second = |second: u64| {
            let times = (second * SECOND_NS..(second + 1) * SECOND_NS).step_by(step_ns as usize);
            times.filter(|now_ns| rate.has_room(*now_ns)).count() as u64
        };
        (0..seconds).map(of_second).collect()
    }

    #[test]
    fn no_more_events_pass_than_the_limit_and_one_second_ahead() {
        for count in [1, 3, 7, 100, 1_000] {
            let rate = Rate::new(count);
            let passed = passed(&rate, 100_000, 10);
            let limit = u64::from(count);
            assert!(passed[0] <= 2 * limit && passed[0] + 1 >= 2 * limit, "{count}: {passed:?}");
            assert!(passed[1..].iter().all(|passed| passed.abs_diff(limit) <= 1), "{count}: {passed:?}");
            assert!(passed.iter().sum::<u64>() <= 11 * limit, "{count}: {passed:?}");
        }
    }

    #[test]
    fn events_below_the_limit_all_pass() {
        assert_eq!(passed(&Rate::new(100), SECOND_NS / 100, 5), [100; 5]);
        assert_eq!(passed(&Rate::new(1_000_000_000), 1_000_000, 2), [1_000; 2]);
    }

    #[test]
    fn a_burst_after_quiet_times_is_one_second_of_the_limit() {
        let rate = Rate::new(50);
        let burst = |now_ns: u64| (0..1_000).filter(|_| rate.has_room(now_ns)).count();
        assert_eq!([burst(0), burst(0), burst(SECOND_NS / 2), burst(100 * SECOND_NS)], [50, 0, 25, 50]);
    }
}
