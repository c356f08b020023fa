//! What was lost in the time that is asked for.

use dormouse_ctf::StatedLosses;
use dormouse_ctf::loss::{AT_AN_EDGE, DAMAGED};

use crate::{Bounds, TraceFiles};

/// The time that is asked for, and the losses that packets tell of: how many, and from when until when.
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

    /// A packet tells of events that were lost.
    pub(crate) fn lose(&mut self, count: u64, begin_ns: Option<i64>, end_ns: Option<i64>) {
        self.losses.push((count, begin_ns.unwrap_or(i64::MIN), end_ns.unwrap_or(i64::MAX)));
    }

    /// How many events were lost in this time. Of others, which can be in it, `losses` take note.
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

    /// What there is to say of losses, when all has been read, and how many events these are; `losses`: what state streams say of the whole trace.
    pub(crate) fn told(&self, files: &TraceFiles, losses: StatedLosses, is_damaged: bool) -> (Option<String>, u64) {
        let mut losses = if self.is_whole() { losses } else { files.stated_losses().of_a_part() };
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
