//! How many events of each class there are.

use super::notice::Notice;
use super::records::{At, Next, Passed, Way};
use super::{Current, Source, StreamReader};
use crate::plan::{Class, Memory, StreamPlan, Tally};

/// How many events of each class a stream has. Of the records the headers are read, and what tells where they end.
#[derive(Debug, Clone, Default)]
pub struct ClassCounts<'a> {
    of_plans: Vec<PlanCounts<'a>>,
}

/// Those of a class of streams.
#[derive(Debug, Clone)]
struct PlanCounts<'a> {
    /// Known by its place in memory.
    plan: &'a StreamPlan,
    /// By index of the class.
    counts: Vec<u64>,
    /// By id, of plain records, which are counted apart while a stream is read.
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

    /// Adds those of another stream.
    pub fn add(&mut self, other: &ClassCounts<'a>) {
        for PlanCounts { plan, counts, .. } in &other.of_plans {
            self.of(plan).counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Adds what was counted apart.
    fn settle(&mut self) {
        for PlanCounts { plan, counts, tallies } in &mut self.of_plans {
            for (id, tally) in tallies.iter_mut().enumerate().filter(|(_, tally)| tally.events > 0) {
                let events = std::mem::take(&mut tally.events);
                plan.class_index(id as u64).into_iter().for_each(|index| counts[index] += events);
            }
        }
    }

    /// Classes that have events, each with its count.
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

impl<'a, S: Source> StreamReader<'a, S> {
    /// Reads the stream to its end and counts its events by class. What is wrong with it is passed to `told`.
    pub fn count_classes(&mut self, counts: &mut ClassCounts<'a>, mut told: impl FnMut(Notice)) {
        loop {
            self.count_fast(counts);
            // What comes next is no record that is at hand as a whole: the next packet, the next window, damage.
            match self.advance() {
                Some(Ok(_)) => counts.of_current(self.current.as_ref()),
                Some(Err(notice)) => told(notice),
                None => break,
            }
        }
        counts.settle();
    }

    /// Counts the records that are in memory already, as long as there is nothing to be said of them.
    fn count_fast(&mut self, counts: &mut ClassCounts<'a>) {
        if let Some(packet) = self.packet {
            let PlanCounts { counts, tallies, .. } = counts.of(packet.plan);
            self.pass_in_way(&mut Counted { counts, tallies });
        }
    }
}

/// They are counted.
struct Counted<'c> {
    counts: &'c mut [u64],
    tallies: &'c mut [Tally],
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
