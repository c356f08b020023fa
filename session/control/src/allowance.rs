//! Limit of snapshots that events trigger. Each process keeps a minimum time between its own, but a thousand short
//! processes would fill a disk.

use std::time::{Duration, Instant};

/// Number of snapshots that may be taken at once; grows by one every [`Allowance::EACH`].
#[derive(Debug)]
pub(crate) struct Allowance {
    left: u32,
    /// Time at which the last one was added.
    added: Instant,
}

impl Allowance {
    const MAX: u32 = 32;
    const EACH: Duration = Duration::from_secs(60);

    fn new(now: Instant) -> Allowance {
        Allowance { left: Allowance::MAX, added: now }
    }

    /// Returns the allowance of a session that has taken `taken` snapshots at unknown times.
    pub(crate) fn after(taken: u64, now: Instant) -> Allowance {
        let left = u64::from(Allowance::MAX).saturating_sub(taken) as u32;
        Allowance { left, added: now }
    }

    /// Takes a snapshot from the allowance. Returns whether there was one left.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let count = now.duration_since(self.added).as_secs() / Allowance::EACH.as_secs();
        let more = count.min(Allowance::MAX.into()) as u32;
        if self.left + more >= Allowance::MAX {
            *self = Allowance::new(now);
        } else {
            self.left += more;
            self.added += more * Allowance::EACH;
        }
        let is_left = self.left > 0;
        self.left -= u32::from(is_left);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_grows_by_one_each_minute() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut allowance = Allowance::new(begin);
        assert_eq!((0..100).filter(|_| allowance.take(at(1))).count(), 32);
        assert!(!allowance.take(at(60)), "the last was taken a second ago when it was full");
        assert!(allowance.take(at(61)) && !allowance.take(at(62)));
        let later = Allowance::after(30, begin).left + Allowance::after(u64::MAX, begin).left;
        assert_eq!(later, 2);
        assert!(allowance.take(at(121)) && !allowance.take(at(122)));
        assert_eq!((0..100).filter(|_| allowance.take(at(1_000_000))).count(), 32);
    }
}
