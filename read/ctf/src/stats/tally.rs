//! Counts of events that do not depend on their order. Several threads can count, and their sums are added.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::hash::QuickMap;
use crate::plan::{Memory, StreamPlan};
use crate::processes::History;
use crate::select::{ClassRef, RuleTimes, Weigher, Weight, WeightCounts};
use crate::stream::{Counted, EventFields, Passed, Scratch, TraceRef};

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
    /// Weights of the events of classes with samples, by address of the class.
    pub(super) sampled: QuickMap<usize, Sampled>,
    recent: Recent,
    weighers: Weighers,
}

/// State streams' facts about events of a trace.
#[derive(Clone, Copy)]
pub(super) struct Facts<'t, 'a> {
    pub index: usize,
    pub trace: TraceRef<'a>,
    pub history: &'t History,
    /// Rules; `None`: none of them ever had a sample.
    pub rules: Option<&'t RuleTimes>,
}

/// Events of a class with samples.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    /// Weights of the events. Those of others of the class are 1.
    pub weights: WeightCounts,
    /// The samples, as rules have them.
    pub samples: BTreeSet<String>,
}

impl Sampled {
    pub(super) fn add(&mut self, other: &Sampled) {
        self.weights.merge(&other.weights);
        self.samples.extend(other.samples.iter().cloned());
    }
}

/// Weighers of the classes of a stream class, for the rules of a time.
#[derive(Default)]
struct Weighers {
    /// Address of the plan of the stream class.
    plan: usize,
    /// Begin and end of the time, in ticks.
    times: (u64, u64),
    /// By index of the class; `None`: it has had no event.
    classes: Vec<Option<OfClass>>,
    scratch: Scratch,
}

struct OfClass {
    /// Address of the class.
    address: usize,
    weigher: Weigher,
    /// Number of last events with this weight.
    last: (Weight, u64),
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
        other.sampled.iter().for_each(|(class, sampled)| self.sampled.entry(*class).or_default().add(sampled));
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
    pub(super) fn packet<'t>(&'t mut self, plan: &'a StreamPlan, facts: Facts<'t, 'a>) -> PacketTally<'t, 'a> {
        let index = {
            self.of(plan);
            self.classes.iter().position(|(known, _)| std::ptr::eq(*known, plan)).unwrap_or(0)
        };
        let Tally { classes, rows, nameless, threads, sampled, recent, weighers, .. } = self;
        recent.0.resize(RECENT_COUNT, Thread::default());
        let whose = Whose { rows, nameless, threads, recent, history: facts.history, trace: facts.index };
        let weighing = facts.rules.map(|rules| Weighing { plan, trace: facts.trace, rules, weighers, sampled });
        PacketTally { plan, classes: &mut classes[index].1, whose, weighing, events: 0 }
    }

    /// Counts an event. `fields`: returns its fields.
    pub(super) fn event<'e>(
        &mut self,
        counted: &Counted<'a>,
        who: Option<(u32, u32)>,
        fields: impl FnOnce() -> Option<EventFields<'e>>,
        facts: Facts<'_, 'a>,
    ) {
        let mut packet = self.packet(counted.plan, facts);
        packet.add(counted.class, counted.size_bytes, counted.timestamp, who);
        if let Some(weighing) = &mut packet.weighing {
            weighing.add(counted.class, counted.timestamp, fields);
        }
        *self.cpus.entry(counted.cpu_id).or_default() += 1;
    }

    /// Ends a part. The next part has other times, so the cached threads are flushed.
    pub(super) fn end_part(&mut self) {
        let Tally { rows, nameless, threads, sampled, recent, weighers, .. } = self;
        weighers.end(sampled);
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

impl Weighers {
    /// Ends the time: the counts are added up.
    fn end(&mut self, sampled: &mut QuickMap<usize, Sampled>) {
        for OfClass { address, last, .. } in self.classes.drain(..).flatten().filter(|class| class.last.1 > 0) {
            sampled.entry(address).or_default().weights.add(last.0, last.1);
        }
        (self.plan, self.times) = (0, (0, 0));
    }
}

/// Weighs the events of a trace with samples.
struct Weighing<'t, 'a> {
    plan: &'a StreamPlan,
    trace: TraceRef<'a>,
    rules: &'t RuleTimes,
    weighers: &'t mut Weighers,
    sampled: &'t mut QuickMap<usize, Sampled>,
}

impl Weighing<'_, '_> {
    // Not inlined, so that the loop over records of traces without samples stays small.
    #[inline(never)]
    fn add<'e>(&mut self, class: usize, ticks: u64, fields: impl FnOnce() -> Option<EventFields<'e>>) {
        let (begin, end) = self.weighers.times;
        if ticks < begin || ticks >= end || self.weighers.plan != std::ptr::from_ref(self.plan).addr() {
            self.turn(ticks);
        }
        if !matches!(self.weighers.classes.get(class), Some(Some(_))) {
            self.bind(class, ticks);
        }
        let Weighers { classes, scratch, .. } = &mut *self.weighers;
        let Some(Some(of_class)) = classes.get_mut(class) else { return };
        if of_class.weigher.is_one() {
            return;
        }
        let weight = of_class.weigher.weigh(fields, scratch);
        if weight == of_class.last.0 {
            of_class.last.1 += 1;
        } else {
            let before = std::mem::replace(&mut of_class.last, (weight, 1));
            let sampled = self.sampled.entry(of_class.address).or_default();
            sampled.weights.add(before.0, before.1);
        }
    }

    /// Goes on with the rules of another time, or of another stream class.
    #[cold]
    fn turn(&mut self, ticks: u64) {
        self.weighers.end(self.sampled);
        (self.weighers.plan, self.weighers.times) = (std::ptr::from_ref(self.plan).addr(), self.rules.at(ticks).times);
    }

    #[cold]
    fn bind(&mut self, index: usize, ticks: u64) {
        let class = ClassRef { class: self.plan.class_at(index), trace: self.trace, plan: self.plan };
        let address = std::ptr::from_ref(class.class).addr();
        let weigher = match self.rules.at(ticks).rules {
            Some(rules) => {
                let weigher = rules.weigher(&class, &[]);
                if !weigher.is_one() {
                    self.sampled.entry(address).or_default().samples.extend(rules.samples(&class));
                }
                weigher
            }
            None => Weigher::Same(Weight::ONE),
        };
        let classes = &mut self.weighers.classes;
        classes.resize_with(classes.len().max(index + 1), || None);
        classes[index] = Some(OfClass { address, weigher, last: (Weight::ONE, 0) });
    }
}

/// Counts the records of one packet.
pub(super) struct PacketTally<'t, 'a> {
    plan: &'a StreamPlan,
    classes: &'t mut [(u64, u64)],
    whose: Whose<'t>,
    /// `None`: no event of the trace was subject to a sample.
    weighing: Option<Weighing<'t, 'a>>,
    pub(super) events: u64,
}

impl PacketTally<'_, '_> {
    #[inline(always)]
    pub(super) fn pass(&mut self, passed: &Passed<'_>, memory: &Memory) {
        self.add(passed.record.class, passed.size_bytes(), passed.timestamp, passed.who(self.plan));
        if let Some(weighing) = &mut self.weighing {
            weighing.add(passed.record.class, passed.timestamp, || Some(passed.fields(memory)));
        }
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
