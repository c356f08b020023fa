//! What a machine does to figures, measured on the spot: the suspects of Xinyu Chen (2008), each with figures that would come out otherwise if it
//! were the cause.
//!
//! ```text
//!   measure ─▶ a thread on one processor ─▶ core clock      a chain of additions
//!                                           caches          a walk at random, and reading, in buffers as large as half of each level
//!                                           scheduler       what share of the time a thread that spins has, by policy; how late it wakes
//!                                           clock source    what reading it costs, and its smallest step
//!                                           interruptions   gaps in a loop that does nothing but read the timestamp counter
//!                                           page backing    reading memory that is there, and that is not; its first touch
//!                                              │
//!   Probes of a machine, or of a moment ◀──────┘        judge(there, here) ─▶ struck out, differs, or undecided, each with its figures
//! ```
//!
//! # Limits
//! What takes a second sees a second. A cause that comes and goes is seen while it is there: measure when figures are bad.
//!
//! # Source
//! Xinyu Chen, "ZERO PAGE removal influence: Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008): the list, and the method.

mod arch;
mod judge;
mod memory;
mod pages;
mod processor;
#[cfg(test)]
mod tests;
mod time;

use serde::{Deserialize, Serialize};

pub use judge::{Judged, SUSPECTS, Verdict, judge};

use dormouse_lab_statistics::{Measurement, measurement};

/// What was measured of a machine at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probes {
    /// The processor that it was measured on.
    pub cpu: u32,
    /// The figures. The first part of a name, up to a dot, is the suspect's.
    pub figures: Vec<Measurement>,
    /// Gaps of interruptions: how many there were from so many ns on, up to twice as many.
    pub gaps: Vec<(u64, u64)>,
    /// What else was seen, and what could not be measured, with the cause.
    pub notes: Vec<String>,
}

/// How much is measured.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    cpu: u32,
    /// Samples of each figure.
    count: usize,
    /// Bytes of the levels' caches, as far as they are known.
    caches: [Option<u64>; 3],
}

impl Plan {
    fn new(cpu: u32, is_quick: bool, caches: [Option<u64>; 3]) -> Plan {
        Plan { cpu, count: if is_quick { 9 } else { 25 }, caches }
    }

    /// Bytes that are in no cache: twice the last one, within bounds.
    fn memory_bytes(&self) -> usize {
        let last = self.caches.iter().flatten().max().copied().unwrap_or(0);
        (2 * last as usize).clamp(16 << 20, 128 << 20)
    }
}

impl Probes {
    fn add(&mut self, name: &str, unit: &str, samples: &[f64]) {
        if !samples.is_empty() {
            self.figures.push(measurement(name, unit, samples));
        }
    }
}

/// Measures everything on processor `cpu`, whose `caches` have so many bytes: in about a second, or with `is_quick` false, in three.
pub fn measure(cpu: u32, is_quick: bool, caches: [Option<u64>; 3]) -> Probes {
    let plan = Plan::new(cpu, is_quick, caches);
    on_processor(cpu, move || {
        let mut probes = Probes { cpu, ..Probes::default() };
        if !is_pinned(cpu) {
            probes.notes.push(format!("the probing thread could not be pinned to processor {cpu}"));
        }
        processor::core_clock(&plan, processor::Chain::Additions, &mut probes);
        processor::caches(&plan, &mut || {}, &mut probes);
        time::scheduler(&plan, &mut probes);
        time::clock_source(&plan, rustix::time::ClockId::Monotonic, &mut probes);
        time::interruptions(&plan, &mut probes);
        pages::backing(&plan, pages::Written::Yes, &mut probes);
        probes
    })
    .unwrap_or_default()
}

fn is_pinned(cpu: u32) -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|set| set.count() == 1 && set.is_set(cpu as usize))
}

/// Runs on a thread of its own that is pinned, where that is allowed. `None`: it has panicked.
fn on_processor<T: Send + 'static>(cpu: u32, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    std::thread::spawn(move || {
        let mut set = rustix::thread::CpuSet::new();
        if (cpu as usize) < rustix::thread::CpuSet::MAX_CPU {
            set.set(cpu as usize);
        }
        // Whether it has worked is asked for by who wants to know.
        let _ = rustix::thread::sched_setaffinity(None, &set);
        work()
    })
    .join()
    .ok()
}
