//! Tests of the fold in a model checker: every interleaving of the steps that threads can see of each other.
//!
//! A section is one step that may be aborted, because the checker does not know rseq. A CPU is a lock that each step on
//! it takes, because threads of one CPU see each other's steps in order, also between two steps of a read. The exact
//! sum and the error of the approximation are tracked outside the modelled memory, so that the bound is checked after
//! every step.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64 as Ghost, Ordering::Relaxed, Ordering::SeqCst};

use loom::model::Builder;
use loom::sync::atomic::{AtomicI64, AtomicU64};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{SlotState, Words, add};

const CPUS: usize = 2;

#[derive(Debug, Default)]
struct CounterSlot {
    by_rseq: u64,
    epoch: u64,
    folded: [u64; 2],
}

struct Memory {
    slots: [Mutex<CounterSlot>; CPUS],
    by_atomics: [AtomicU64; CPUS],
    unfolded: [AtomicI64; CPUS],
    approximate: AtomicI64,
    big: AtomicI64,
    /// Exact sum, exact sum minus approximation, and the maximum of the latter; not part of the modelled memory.
    exact: Ghost,
    error: Ghost,
    error_max: i64,
}

impl Memory {
    fn new(error_max: i64) -> Arc<Memory> {
        Arc::new(Memory {
            slots: [(); CPUS].map(|()| Mutex::new(CounterSlot::default())),
            by_atomics: [(); CPUS].map(|()| AtomicU64::new(0)),
            unfolded: [(); CPUS].map(|()| AtomicI64::new(0)),
            approximate: AtomicI64::new(0),
            big: AtomicI64::new(0),
            exact: Ghost::new(0),
            error: Ghost::new(0),
            error_max,
        })
    }

    /// Records that a step has added `n`.
    fn added(&self, n: i64) {
        self.exact.fetch_add(n, SeqCst);
        self.apart(n);
    }

    /// Records that a step has increased the distance between exact sum and approximation.
    fn apart(&self, by: i64) {
        let error = self.error.fetch_add(by, SeqCst) + by;
        assert!(error.abs() <= self.error_max, "off by {error}, and {} is the bound", self.error_max);
    }

    fn approximate(&self) -> i64 {
        self.approximate.load(Relaxed)
    }

    fn sum(&self) -> i64 {
        let slots = self.slots.iter().zip(&self.by_atomics);
        let total =
            |(slot, other): (&Mutex<CounterSlot>, &AtomicU64)| slot.lock().unwrap().by_rseq + other.load(Relaxed);
        slots.map(|slot| total(slot).cast_signed()).sum::<i64>() + self.big.load(Relaxed)
    }

    /// Returns the amount that CPUs have counted and that is not in the approximation.
    fn unfolded(&self) -> i64 {
        let of_slot = |slot: &Mutex<CounterSlot>| {
            let slot = slot.lock().unwrap();
            slot.by_rseq.wrapping_sub(slot.folded[slot.epoch as usize & 1]).cast_signed()
        };
        let of_others: i64 = self.unfolded.iter().map(|unfolded| unfolded.load(Relaxed)).sum();
        self.slots.iter().map(of_slot).sum::<i64>() + of_others
    }
}

/// A thread that runs on one CPU after another: each step that asks for its CPU takes the next one; after the last it
/// stays there.
struct Thread {
    memory: Arc<Memory>,
    cpus: &'static [usize],
    step: Cell<usize>,
    has_rseq: bool,
    /// Number of claims until it is killed.
    claims_left: Cell<u32>,
    is_dead: Cell<bool>,
}

impl Thread {
    fn new(memory: &Arc<Memory>, cpus: &'static [usize]) -> Thread {
        let (step, claims_left, is_dead) = (Cell::new(0), Cell::new(u32::MAX), Cell::new(false));
        Thread { memory: memory.clone(), cpus, step, has_rseq: true, claims_left, is_dead }
    }

    fn cpu(&self) -> usize {
        let step = self.step.get();
        self.step.set(step + 1);
        *self.cpus.get(step).or(self.cpus.last()).unwrap()
    }

    fn add_all(&self, threshold: u64, numbers: &[i64]) {
        numbers.iter().for_each(|&n| add(self, self.has_rseq, threshold, n));
    }
}

impl Words for Thread {
    fn read_slot(&self) -> Option<SlotState> {
        if self.is_dead.get() {
            return None;
        }
        let cpu = self.cpu();
        let (epoch, folded) = {
            let slot = self.memory.slots[cpu].lock().unwrap();
            (slot.epoch, slot.folded[slot.epoch as usize & 1])
        };
        let total = self.memory.slots[cpu].lock().unwrap().by_rseq;
        Some(SlotState { cpu: cpu as u32, epoch, folded, total })
    }

    fn add_by_section(&self, state: &SlotState, n: i64) -> bool {
        if self.cpu() != state.cpu as usize {
            return false;
        }
        let mut slot = self.memory.slots[state.cpu as usize].lock().unwrap();
        slot.by_rseq = slot.by_rseq.wrapping_add(n.cast_unsigned());
        self.memory.added(n);
        true
    }

    fn claim(&self, state: &SlotState) -> bool {
        if self.cpu() != state.cpu as usize {
            return false;
        }
        let mut slot = self.memory.slots[state.cpu as usize].lock().unwrap();
        let next = (state.epoch as usize + 1) & 1;
        if slot.epoch != state.epoch {
            return false;
        }
        slot.folded[next] = state.total;
        slot.epoch += 1;
        self.claims_left.set(self.claims_left.get() - 1);
        self.is_dead.set(self.claims_left.get() == 0);
        true
    }

    fn add_by_atomics(&self, n: i64) -> (usize, i64) {
        if self.is_dead.get() {
            return (0, 0);
        }
        let cpu = self.cpu();
        self.memory.by_atomics[cpu].fetch_add(n.cast_unsigned(), Relaxed);
        self.memory.added(n);
        (cpu, self.memory.unfolded[cpu].fetch_add(n, Relaxed) + n)
    }

    fn take(&self, slot: usize) -> i64 {
        self.memory.unfolded[slot].swap(0, Relaxed)
    }

    fn land(&self, n: i64) {
        if !self.is_dead.get() {
            self.memory.approximate.fetch_add(n, Relaxed);
            self.memory.apart(-n);
        }
    }

    fn add_big(&self, n: i64) {
        self.memory.big.fetch_add(n, Relaxed);
        self.memory.added(n);
    }
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    // More than three voluntary preemptions find nothing else here, and take minutes.
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Returns the bound of `PerCpuCounter::error_max` for `words` words in use.
fn bound(words: i64, adders: i64, killed: i64, threshold: i64) -> i64 {
    (words + adders + killed) * (3 * adders + 2) * (threshold - 1)
}

#[test]
fn two_threads_on_two_cpus_and_a_reader() {
    check(|| {
        // Each thread has a CPU to itself: each CPU holds less than a threshold, and one claim of each thread may be in
        // flight.
        let memory = Memory::new(2 * 2 + 2 * 2);
        let threads = [(&[0][..], [2, 2, -1]), (&[1][..], [1, 2, 2])].map(|(cpus, numbers)| {
            let memory = memory.clone();
            thread::spawn(move || Thread::new(&memory, cpus).add_all(3, &numbers))
        });
        let (sum, approximate) = (memory.sum(), memory.approximate());
        assert!((0..=9).contains(&sum) && (0..=9).contains(&approximate), "{sum} {approximate}");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(memory.sum(), 8);
        assert_eq!(memory.approximate() + memory.unfolded(), 8);
        assert!((memory.approximate() - 8).abs() <= 2 * 2);
    });
}

#[test]
fn two_threads_on_one_cpu_claim_nothing_twice() {
    check(|| {
        let memory = Memory::new(bound(1, 2, 0, 2));
        let threads = [[1, 1, -1], [1, -1, 1]].map(|numbers| {
            let memory = memory.clone();
            thread::spawn(move || Thread::new(&memory, &[0]).add_all(2, &numbers))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(memory.sum(), 2);
        assert_eq!(memory.approximate() + memory.unfolded(), 2);
    });
}

#[test]
fn a_migrated_thread_reads_the_cpu_again() {
    check(|| {
        let memory = Memory::new(bound(2, 2, 0, 2));
        // The threads are moved between read and addition, and between read and claim.
        let threads = [(&[0, 1, 1, 1, 1, 0, 0][..], [1, 1]), (&[1, 1, 1, 0, 0][..], [1, 1])].map(|(cpus, numbers)| {
            let memory = memory.clone();
            thread::spawn(move || Thread::new(&memory, cpus).add_all(2, &numbers))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(memory.sum(), 4);
        assert_eq!(memory.approximate() + memory.unfolded(), 4);
    });
}

#[test]
fn a_thread_without_rseq_shares_the_slot() {
    check(|| {
        let memory = Memory::new(bound(2, 3, 0, 2));
        let threads = [true, false, false].map(|has_rseq| {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut thread = Thread::new(&memory, &[0]);
                thread.has_rseq = has_rseq;
                thread.add_all(2, &[1, 1]);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(memory.sum(), 6);
        assert_eq!(memory.approximate() + memory.unfolded(), 6);
    });
}

#[test]
fn a_killed_fold_costs_the_approximation_and_not_the_sum() {
    check(|| {
        let memory = Memory::new(bound(1, 2, 1, 3));
        let threads = [1, u32::MAX].map(|claims| {
            let memory = memory.clone();
            thread::spawn(move || {
                let thread = Thread::new(&memory, &[0]);
                thread.claims_left.set(claims);
                thread.add_all(3, if claims == 1 { &[2, 2] } else { &[2, -1, 2] });
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let error = memory.exact.load(SeqCst) - memory.approximate();
        assert_eq!((memory.sum(), memory.error.load(SeqCst)), (memory.exact.load(SeqCst), error));
    });
}

#[test]
fn additions_of_the_threshold_are_folded_at_once() {
    check(|| {
        let memory = Memory::new(5 + 7);
        let threads = [5, -7].map(|n| {
            let memory = memory.clone();
            thread::spawn(move || Thread::new(&memory, &[0]).add_all(5, &[n]))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((memory.sum(), memory.approximate(), memory.unfolded()), (-2, -2, 0));
    });
}
