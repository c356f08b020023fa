//! Counts of events by class: in total, or for each interval of time.

use super::notice::Notice;
use super::records::{At, Next, Passed, Way};
use super::{Current, Source, StreamReader};
use crate::hash::QuickMap;
use crate::plan::{Class, Memory, StreamPlan, Tally};

/// Number of events of each class in a stream. Only record headers are read, and fields that determine where a record
/// ends.
#[derive(Debug, Clone, Default)]
pub struct ClassCounts<'a> {
    of_plans: Vec<PlanCounts<'a>>,
}

/// Counts for one stream class.
#[derive(Debug, Clone)]
struct PlanCounts<'a> {
    /// Plan of the stream class; compared by address.
    plan: &'a StreamPlan,
    /// Counts by index of the class.
    counts: Vec<u64>,
    /// Counts of plain records by id, which are kept apart while a stream is read.
    tallies: Vec<Tally>,
}

impl<'a> ClassCounts<'a> {
    fn of(&mut self, plan: &'a StreamPlan) -> &mut PlanCounts<'a> {
        let index = self.of_plans.iter().position(|known| std::ptr::eq(known.plan, plan)).unwrap_or_else(|| {
            self.of_plans.push(PlanCounts { plan, counts: vec![0; plan.class_count()], tallies: plan.tallies() });
            self.of_plans.len() - 1
        });
        &mut self.of_plans[index]
    }

    fn of_current(&mut self, current: Option<&Current<'a>>) {
        if let Some(current) = current {
            self.of(current.plan).counts[current.record.class] += 1;
        }
    }

    /// Adds the counts of another stream.
    pub fn add(&mut self, other: &ClassCounts<'a>) {
        for PlanCounts { plan, counts, .. } in &other.of_plans {
            self.of(plan).counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Adds the counts of plain records to the other counts.
    fn settle(&mut self) {
        for PlanCounts { plan, counts, tallies } in &mut self.of_plans {
            for (id, tally) in tallies.iter().enumerate().filter(|(_, tally)| tally.events.get() > 0) {
                let events = tally.events.take();
                plan.class_index(id as u64).into_iter().for_each(|index| counts[index] += events);
            }
        }
    }

    /// Passes each class that has events to `give` with its count, and resets the counts.
    fn take(&mut self, mut give: impl FnMut(&'a StreamPlan, usize, u64)) {
        self.settle();
        for PlanCounts { plan, counts, .. } in &mut self.of_plans {
            for (class, count) in counts.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
                give(plan, class, std::mem::take(count));
            }
        }
    }

    /// Returns the classes that have events, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'a Class, u64)> + use<'a, '_> {
        let of_plan = |PlanCounts { plan, counts, .. }: &'_ PlanCounts<'a>| {
            let (plan, counts) = (*plan, counts.clone());
            counts
                .into_iter()
                .enumerate()
                .filter(|(_, count)| *count > 0)
                .map(move |(at, count)| (plan.class_at(at), count))
        };
        self.of_plans.iter().flat_map(of_plan)
    }
}

/// Number of events of each class in each interval of time.
#[derive(Debug, Clone, Default)]
pub struct IntervalCounts<'a> {
    length_ns: Option<i64>,
    /// Counts of the current interval. Most packets lie within one interval.
    at_hand: (Option<i64>, ClassCounts<'a>),
    /// Counts by begin of the interval, index of the plan, and index of the class.
    others: QuickMap<(Option<i64>, usize, usize), u64>,
    plans: Vec<&'a StreamPlan>,
}

impl<'a> IntervalCounts<'a> {
    /// Returns counts for intervals of this length in nanoseconds, at least 1. One interval begins at the epoch. `None`
    /// means a single interval for all times.
    pub fn new(length_ns: Option<i64>) -> IntervalCounts<'a> {
        IntervalCounts { length_ns: length_ns.map(|ns| ns.max(1)), ..IntervalCounts::default() }
    }

    /// Returns the begin of the interval that contains a time.
    #[inline(always)]
    fn begin(&self, time_ns: Option<i64>) -> Option<i64> {
        let (length_ns, time_ns) = (self.length_ns?, time_ns?);
        Some(time_ns.saturating_sub(time_ns.rem_euclid(length_ns)))
    }

    fn plan(&mut self, plan: &'a StreamPlan) -> usize {
        self.plans.iter().position(|known| std::ptr::eq(*known, plan)).unwrap_or_else(|| {
            self.plans.push(plan);
            self.plans.len() - 1
        })
    }

    /// Returns the counts of an interval and makes it the current one.
    fn of(&mut self, begin: Option<i64>) -> &mut ClassCounts<'a> {
        if self.at_hand.0 != begin {
            self.put();
            self.at_hand.0 = begin;
        }
        &mut self.at_hand.1
    }

    /// Adds the counts of the current interval to the others.
    fn put(&mut self) {
        let (begin, mut counts) = std::mem::take(&mut self.at_hand);
        counts.take(|plan, class, count| {
            let plan = self.plan(plan);
            *self.others.entry((begin, plan, class)).or_default() += count;
        });
        self.at_hand.1 = counts;
    }

    /// Returns the number of counts.
    pub fn len(&self) -> usize {
        self.others.len()
    }

    /// Whether there are no counts.
    pub fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    /// Returns and removes the counts: the begin of the interval in nanoseconds since the epoch (`None` for all times,
    /// or without a clock), the class, and the number of its events. Each combination occurs once.
    pub fn take(&mut self) -> impl Iterator<Item = (Option<i64>, &'a Class, u64)> {
        let plans = &self.plans;
        self.others.drain().map(|((begin, plan, class), count)| (begin, plans[plan].class_at(class), count))
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Reads the stream to its end and counts its events by class and interval of time. Notices are passed to `told`.
    pub fn count_intervals(&mut self, counts: &mut IntervalCounts<'a>, mut told: impl FnMut(Notice)) {
        loop {
            self.count_in_packet(counts);
            match self.advance() {
                Some(Ok(_)) => {
                    let begin = counts.begin(self.time_ns());
                    counts.of(begin).of_current(self.current.as_ref());
                }
                Some(Err(notice)) => told(notice),
                None => break,
            }
        }
        counts.put();
    }

    /// Counts the records that are already in memory, up to the first one that causes a notice.
    fn count_in_packet(&mut self, counts: &mut IntervalCounts<'a>) {
        let Some(packet) = self.packet else { return };
        // Times do not decrease from here to the packet's end.
        let begin = counts.begin(self.epoch_ns(self.time));
        if begin == counts.begin(self.epoch_ns(packet.timestamp_end)) {
            return self.count_fast(counts.of(begin));
        }
        let (plan, scale) = (counts.plan(packet.plan), self.scale);
        self.pass_records_at_hand(|passed, _| {
            let begin = counts.begin(scale.map(|scale| scale.epoch_ns(passed.timestamp)));
            *counts.others.entry((begin, plan, passed.record.class)).or_default() += 1;
            true
        });
    }

    /// Reads the stream to its end and counts its events by class. Notices are passed to `told`.
    pub fn count_classes(&mut self, counts: &mut ClassCounts<'a>, mut told: impl FnMut(Notice)) {
        loop {
            self.count_fast(counts);
            // The rest needs the slow path: the next packet, the next window, or damage.
            match self.advance() {
                Some(Ok(_)) => counts.of_current(self.current.as_ref()),
                Some(Err(notice)) => told(notice),
                None => break,
            }
        }
        counts.settle();
    }

    /// Counts the records that are already in memory, up to the first one that causes a notice.
    fn count_fast(&mut self, counts: &mut ClassCounts<'a>) {
        if let Some(packet) = self.packet {
            let PlanCounts { counts, tallies, .. } = counts.of(packet.plan);
            self.pass_in_way(&mut Counted { counts, tallies });
        }
    }
}

/// Counter of passed records.
struct Counted<'c> {
    counts: &'c mut [u64],
    tallies: &'c [Tally],
}

impl Way for Counted<'_> {
    #[inline(always)]
    fn pass_plain(&mut self, at: &At<'_>, passed: &mut Passed<'_>) -> (u64, Next) {
        let skimmed = at.plan.skim(at.cursor, passed.timestamp, at.timestamp_end, self.tallies);
        (passed.record.end, passed.timestamp) = (skimmed.end, skimmed.timestamp);
        (skimmed.events, Next::Other)
    }

    #[inline(always)]
    fn see(&mut self, passed: &Passed<'_>, _: &Memory) -> bool {
        self.counts[passed.record.class] += 1;
        true
    }
}
