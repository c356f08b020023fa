//! Counts of events that do not depend on their order. Several threads can count, and their sums are added.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::plan::StreamPlan;
use crate::processes::History;
use crate::stream::{Counted, Passed};

/// Counts of events that do not depend on their order.
#[derive(Default)]
pub struct Tally<'a> {
    /// Number of events and bytes, by stream class (its plan) and index of the class.
    pub(super) classes: Vec<(&'a StreamPlan, Vec<(u64, u64)>)>,
    pub(super) cpus: BTreeMap<u32, u64>,
    /// Number of events by index of the program.
    pub(super) rows: HashMap<u32, u64>,
    /// Number of events by `vpid`, for processes without a program.
    pub(super) nameless: HashMap<u32, u64>,
    pub(super) threads: HashSet<(u32, u32)>,
    recent: Recent,
}

impl std::fmt::Debug for Tally<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tally").finish_non_exhaustive()
    }
}

/// Direct-mapped cache of threads that recently had events. A thread has one possible slot, from which other threads
/// evict it.
#[derive(Default)]
struct Recent(Vec<Thread>);

const RECENT_COUNT: usize = 64;

/// Events of a thread while its process runs one program.
#[derive(Clone, Copy, Default)]
struct Thread {
    /// `vpid` and `vtid`.
    who: (u32, u32),
    row: Option<u32>,
    /// Begin and end of the time for which `row` is valid, in ticks.
    times: (u64, u64),
    count: u64,
}

impl<'a> Tally<'a> {
    /// Adds the counts of another thread. Neither tally may have an open part.
    pub fn add(&mut self, other: Tally<'a>) {
        for (plan, counts) in other.classes {
            let sums = self.of(plan);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = (sum.0 + count.0, sum.1 + count.1));
        }
        other.cpus.into_iter().for_each(|(cpu, count)| *self.cpus.entry(cpu).or_default() += count);
        other.rows.into_iter().for_each(|(row, count)| *self.rows.entry(row).or_default() += count);
        other.nameless.into_iter().for_each(|(vpid, count)| *self.nameless.entry(vpid).or_default() += count);
        self.threads.extend(other.threads);
    }

    /// Returns the counts of a stream's classes.
    fn of(&mut self, plan: &'a StreamPlan) -> &mut Vec<(u64, u64)> {
        let index = self.classes.iter().position(|(known, _)| std::ptr::eq(*known, plan)).unwrap_or_else(|| {
            self.classes.push((plan, vec![(0, 0); plan.class_count()]));
            self.classes.len() - 1
        });
        &mut self.classes[index].1
    }

    /// Returns a counter for the records of one packet.
    pub(super) fn packet<'t>(
        &'t mut self,
        plan: &'a StreamPlan,
        history: &'t History,
        trace: usize,
    ) -> PacketTally<'t, 'a> {
        let index = {
            self.of(plan);
            self.classes.iter().position(|(known, _)| std::ptr::eq(*known, plan)).unwrap_or(0)
        };
        let Tally { classes, rows, nameless, threads, recent, .. } = self;
        recent.0.resize(RECENT_COUNT, Thread::default());
        let whose = Whose { rows, nameless, threads, recent, history, trace };
        PacketTally { plan, classes: &mut classes[index].1, whose, events: 0 }
    }

    pub(super) fn event(&mut self, counted: &Counted<'a>, who: Option<(u32, u32)>, history: &History, trace: usize) {
        let mut packet = self.packet(counted.plan, history, trace);
        packet.add(counted.class, counted.size_bytes, counted.timestamp, who);
        *self.cpus.entry(counted.cpu_id).or_default() += 1;
    }

    /// Ends a part. The next part has other times, so the cached threads are flushed.
    pub(super) fn end_part(&mut self) {
        let Tally { rows, nameless, threads, recent, .. } = self;
        recent.0.drain(..).for_each(|thread| thread.put(rows, nameless, threads));
    }
}

impl Thread {
    fn put(self, rows: &mut HashMap<u32, u64>, nameless: &mut HashMap<u32, u64>, threads: &mut HashSet<(u32, u32)>) {
        if self.count == 0 {
            return;
        }
        threads.insert(self.who);
        *match self.row {
            Some(row) => rows.entry(row).or_default(),
            None => nameless.entry(self.who.0).or_default(),
        } += self.count;
    }
}

/// Counts of events by program.
struct Whose<'t> {
    rows: &'t mut HashMap<u32, u64>,
    nameless: &'t mut HashMap<u32, u64>,
    threads: &'t mut HashSet<(u32, u32)>,
    recent: &'t mut Recent,
    history: &'t History,
    trace: usize,
}

impl Whose<'_> {
    #[inline(always)]
    fn add(&mut self, who: (u32, u32), ticks: u64) {
        let at = (who.1 ^ who.1 >> 6) as usize % RECENT_COUNT;
        let thread = &mut self.recent.0[at];
        if thread.who == who && thread.times.0 <= ticks && ticks < thread.times.1 {
            thread.count += 1;
        } else {
            self.change(at, who, ticks);
        }
    }

    #[cold]
    fn change(&mut self, at: usize, who: (u32, u32), ticks: u64) {
        let (row, until) = self.history.at(self.trace, who.0, ticks);
        let next = Thread { who, row, times: (ticks, until), count: 1 };
        std::mem::replace(&mut self.recent.0[at], next).put(self.rows, self.nameless, self.threads);
    }
}

/// Counts the records of one packet.
pub(super) struct PacketTally<'t, 'a> {
    plan: &'a StreamPlan,
    classes: &'t mut [(u64, u64)],
    whose: Whose<'t>,
    pub(super) events: u64,
}

impl PacketTally<'_, '_> {
    #[inline(always)]
    pub(super) fn pass(&mut self, passed: &Passed<'_>) {
        self.add(passed.record.class, passed.size_bytes(), passed.timestamp, passed.who(self.plan));
    }

    #[inline(always)]
    fn add(&mut self, class: usize, size_bytes: u64, ticks: u64, who: Option<(u32, u32)>) {
        let class = &mut self.classes[class];
        *class = (class.0 + 1, class.1 + size_bytes);
        self.events += 1;
        if let Some(who) = who {
            self.whose.add(who, ticks);
        }
    }
}
