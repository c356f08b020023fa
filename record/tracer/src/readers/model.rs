//! Tests in a model checker: readers use what a writer replaces and frees, and the session that it leaves.
//!
//! The kernel's barrier executes on every thread at a moment of its choice. The checker does not know it, so here
//! readers have a barrier of their own in its place, after each count.

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use loom::thread;

use super::{Count, Words, begin, wait_for};

/// Preemptions in an execution.
const PREEMPTIONS: usize = 3;

/// Part of the protocol that a model leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Barriers,
    SecondPhase,
}

struct Memory {
    fault: Fault,
    phase: AtomicUsize,
    /// Begun and ended uses of each phase, on two CPUs.
    counts: [[[AtomicU64; 2]; 2]; 2],
    /// Number of the current plan, and which plans were freed.
    plan: AtomicUsize,
    freed: [AtomicBool; 3],
    /// Whether the session can be found, and whether its memory was unmapped.
    has_session: AtomicBool,
    is_unmapped: AtomicBool,
}

impl Memory {
    fn new(fault: Fault) -> Memory {
        Memory {
            fault,
            phase: AtomicUsize::new(0),
            counts: [(); 2].map(|()| [(); 2].map(|()| [(); 2].map(|()| AtomicU64::new(0)))),
            plan: AtomicUsize::new(0),
            freed: [(); 3].map(|()| AtomicBool::new(false)),
            has_session: AtomicBool::new(true),
            is_unmapped: AtomicBool::new(false),
        }
    }
}

/// The memory as a thread on this CPU sees it.
struct OnCpu<'a>(&'a Memory, usize);

impl Words for OnCpu<'_> {
    fn phase(&self) -> usize {
        self.0.phase.load(Ordering::Relaxed) & 1
    }

    fn change_phase(&self) -> usize {
        let former = self.0.phase.fetch_add(1, Ordering::Relaxed) & 1;
        if self.0.fault == Fault::SecondPhase && former == 1 {
            // Looks at the phase in which nobody begins.
            return 0;
        }
        former
    }

    fn add(&self, count: Count, phase: usize) {
        self.barrier();
        self.0.counts[self.1][count as usize][phase].fetch_add(1, Ordering::Relaxed);
        self.barrier();
    }

    fn sum(&self, count: Count, phase: usize) -> u64 {
        self.0.counts.iter().map(|of_cpu| of_cpu[count as usize][phase].load(Ordering::Relaxed)).sum()
    }

    fn barrier(&self) -> bool {
        if self.0.fault != Fault::Barriers {
            fence(Ordering::SeqCst);
        }
        true
    }
}

/// Uses the current plan once.
fn read(memory: &Memory, cpu: usize) {
    let phase = begin(&OnCpu(memory, cpu));
    let plan = memory.plan.load(Ordering::Acquire);
    assert!(!memory.freed[plan].load(Ordering::Relaxed), "a plan in use was freed");
    if memory.has_session.load(Ordering::SeqCst) {
        assert!(!memory.is_unmapped.load(Ordering::Relaxed), "a session in use was unmapped");
    }
    // Ends on another CPU.
    OnCpu(memory, 1 - cpu).add(Count::Ended, phase);
}

/// A reader uses a plan and the session once, while a writer does this.
fn check_while(fault: Fault, write: impl Fn(&Memory) + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    builder.check(move || {
        let memory = Arc::new(Memory::new(fault));
        let reader = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || read(&memory, 0))
        };
        write(&memory);
        reader.join().unwrap();
    });
}

/// A reader uses plans while a writer replaces them this many times.
fn check(fault: Fault, replacements: usize) {
    check_while(fault, move |memory| {
        for plan in 0..replacements {
            memory.plan.store(plan + 1, Ordering::Release);
            if wait_for(&OnCpu(memory, 1), 1) {
                memory.freed[plan].store(true, Ordering::Relaxed);
            }
        }
    });
}

/// A reader counts an event in the session while a writer leaves it.
fn check_leaving(fault: Fault) {
    check_while(fault, |memory| {
        memory.has_session.store(false, Ordering::SeqCst);
        if wait_for(&OnCpu(memory, 1), 1) {
            memory.is_unmapped.store(true, Ordering::Relaxed);
        }
    });
}

#[test]
fn a_session_in_use_is_not_unmapped() {
    check_leaving(Fault::None);
}

#[test]
#[should_panic(expected = "a session in use was unmapped")]
fn without_barriers_it_is_unmapped() {
    check_leaving(Fault::Barriers);
}

#[test]
fn a_plan_in_use_is_not_freed() {
    check(Fault::None, 2);
}

#[test]
#[should_panic(expected = "a plan in use was freed")]
fn without_barriers_it_is_freed() {
    check(Fault::Barriers, 1);
}

#[test]
#[should_panic(expected = "a plan in use was freed")]
fn with_one_phase_it_is_freed() {
    check(Fault::SecondPhase, 2);
}
