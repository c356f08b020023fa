//! Losses within the selected time.

use dormouse_ctf::StatedLosses;
use dormouse_ctf::loss::{AT_AN_EDGE, DAMAGED};

use crate::{Bounds, TraceFiles};

/// The selected time, and the losses that packets report: number of events, and the times between which they were lost.
#[derive(Debug)]
pub(crate) struct LostWithin {
    first_ns: i64,
    last_ns: i64,
    losses: Vec<(u64, i64, i64)>,
}

impl LostWithin {
    pub(crate) fn new(bounds: &Bounds) -> LostWithin {
        LostWithin { first_ns: bounds.first_ns, last_ns: bounds.last_ns, losses: Vec::new() }
    }

    pub(crate) fn begin_with(&mut self, ns: i64) {
        self.first_ns = self.first_ns.max(ns);
    }

    pub(crate) fn end_with(&mut self, ns: i64) {
        self.last_ns = self.last_ns.min(ns);
    }

    fn is_whole(&self) -> bool {
        (self.first_ns, self.last_ns) == (i64::MIN, i64::MAX)
    }

    /// Adds a loss that a packet reports.
    pub(crate) fn lose(&mut self, count: u64, begin_ns: Option<i64>, end_ns: Option<i64>) {
        self.losses.push((count, begin_ns.unwrap_or(i64::MIN), end_ns.unwrap_or(i64::MAX)));
    }

    /// Returns the number of events that were certainly lost in this time. Events that may have been lost in it are
    /// added to `losses`.
    fn stated(&self, losses: &mut StatedLosses) -> u64 {
        let mut stated: u64 = 0;
        for (count, begin_ns, end_ns) in &self.losses {
            if *begin_ns >= self.first_ns && *end_ns <= self.last_ns {
                stated = stated.saturating_add(*count);
            } else if *begin_ns <= self.last_ns && *end_ns >= self.first_ns {
                losses.add(AT_AN_EDGE, *count);
            }
        }
        stated
    }

    /// Returns the report of losses, after everything was read, and the number of lost events. `losses`: losses of the
    /// whole trace from state streams.
    pub(crate) fn told(&self, files: &TraceFiles, losses: StatedLosses, is_damaged: bool) -> (Option<String>, u64) {
        let mut losses = if self.is_whole() { losses } else { files.state().losses.of_a_part() };
        if is_damaged {
            losses.add(DAMAGED, 0);
        }
        let stated = self.stated(&mut losses);
        let sum = losses.sum([stated]);
        let is_any = sum > 0 || !losses.uncounted.is_empty();
        let of = if self.is_whole() { "" } else { "of the time that is shown: " };
        (is_any.then(|| format!("{of}{}", losses.told(sum))), sum)
    }
}
