//! What a machine does to figures, measured on the spot: the list of Xinyu Chen, "ZERO PAGE removal influence: Codec Performance
//! Differences between 2.6.19 and 2.6.24 kernel" (2008), each with figures that would come out otherwise if it were the cause.
//!
//! ```text
//!   measure ─▶ a thread on one processor ─▶ core clock, caches, scheduler, clock source, interruptions, page backing: once in each look
//!                                              │
//!   Probes of a machine, or of a moment ◀──────┘        compare(there, here) ─▶ the ratio of each figure, with its interval
//! ```
//! Looks at one calm machine differ; by how much is in the samples, and so in the interval of a ratio. What takes seconds sees seconds:
//! a cause that comes and goes is seen while it is there.

mod memory;
#[cfg(test)]
mod tests;
mod time;

use serde::{Deserialize, Serialize};

use dormouse_lab_statistics::intervals::ratio_of_looks;
use dormouse_lab_statistics::{Measurement, measurement, median};

/// Looks for `dormouse lab doctor`.
pub const LOOKS: usize = 12;
/// Looks before a run: as few as have an interval.
pub const LOOKS_BEFORE_RUN: usize = dormouse_lab_statistics::ROUNDS_MIN;
/// Looks before a quick run, which has no intervals: `dormouse lab compare` says nothing about the machines of two quick runs.
pub const LOOKS_BEFORE_QUICK_RUN: usize = 1;
/// Samples of each figure in a look, which is their median.
const SAMPLES: usize = 3;

/// What was measured of a machine at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probes {
    /// The processor that it was measured on.
    pub cpu: u32,
    /// The figures, a sample for each look. The first part of a name, up to a dot, says of what.
    pub figures: Vec<Measurement>,
    /// What else was seen, and what could not be measured, with the cause.
    pub notes: Vec<String>,
}

/// What is being measured.
#[derive(Debug, Default)]
struct Looks {
    /// Bytes of the levels' caches, as far as they are known.
    caches: [Option<u64>; 3],
    /// Name, unit, and a sample for each look.
    figures: Vec<(String, &'static str, Vec<f64>)>,
    notes: Vec<String>,
}

impl Looks {
    /// Bytes that are in no cache: twice the last one, within bounds.
    fn memory_bytes(&self) -> usize {
        let last = self.caches.iter().flatten().max().copied().unwrap_or(0);
        (2 * last as usize).clamp(16 << 20, 128 << 20)
    }

    /// A look's samples.
    fn add(&mut self, name: &str, unit: &'static str, samples: &[f64]) {
        match self.figures.iter_mut().find(|(known, ..)| known == name) {
            Some((.., looks)) => looks.push(median(samples)),
            None => self.figures.push((name.into(), unit, vec![median(samples)])),
        }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// Measures everything so many times on processor `cpu`, whose `caches` have so many bytes.
pub fn measure(cpu: u32, count: usize, caches: [Option<u64>; 3]) -> Probes {
    looks(cpu, count, caches, move |looks| {
        if crate::allowed_cpus() != [cpu] {
            looks.note(format!("the probing thread could not be pinned to processor {cpu}"));
        }
        time::core_clock(time::adds, looks);
        memory::caches(&mut || {}, looks);
        time::scheduler(cpu, looks);
        time::clock_source(rustix::time::ClockId::Monotonic, looks);
        time::interruptions(looks);
        memory::backing(true, looks);
    })
}

/// Takes so many looks on a processor.
fn looks(
    cpu: u32,
    count: usize,
    caches: [Option<u64>; 3],
    mut look: impl FnMut(&mut Looks) + Send + 'static,
) -> Probes {
    let all = on_processor(cpu, move || {
        let mut looks = Looks { caches, ..Looks::default() };
        (0..count).for_each(|_| look(&mut looks));
        let figures = looks.figures.iter().map(|(name, unit, samples)| measurement(name, unit, samples)).collect();
        Probes { cpu, figures, notes: looks.notes }
    });
    all.unwrap_or_default()
}

/// Runs on a thread of its own that is pinned, where that is allowed. `None`: it has panicked.
fn on_processor<T: Send + 'static>(cpu: u32, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let pinned = move || {
        crate::keep_on(cpu);
        work()
    };
    std::thread::spawn(pinned).join().ok()
}

/// A figure that was measured on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// What it is of, and its name, such as `caches.L1_latency`.
    pub figure: String,
    /// Its unit.
    pub unit: String,
    /// Its median there.
    pub there: f64,
    /// Its median here.
    pub here: f64,
    /// Here in terms of there.
    pub ratio: f64,
    /// Between which values 95 % of the ratios of a look here to a look there lie.
    pub ratio_ci95: [f64; 2],
    /// Whether all of that is on one side of 1.
    pub differs: bool,
}

impl Compared {
    /// What it is of: `caches`.
    pub fn subject(&self) -> &str {
        self.figure.split('.').next().unwrap_or_default()
    }

    /// What may be said.
    pub fn verdict(&self) -> String {
        let percent = (self.ratio - 1.0) * 100.0;
        if self.differs { format!("differs by {percent:+.1} %") } else { "no difference shown".into() }
    }
}

/// Compares what both have, in the order of its measuring.
pub fn compare(there: &Probes, here: &Probes) -> Vec<Compared> {
    let compared = |b: &Measurement| {
        let a = there.figures.iter().find(|a| a.name == b.name && a.unit == b.unit)?;
        let (ratio, ratio_ci95) = ratio_of_looks(&a.samples, &b.samples)?;
        let differs = ratio_ci95[0] > 1.0 || ratio_ci95[1] < 1.0;
        let (figure, unit) = (b.name.clone(), b.unit.clone());
        Some(Compared { figure, unit, there: a.median, here: b.median, ratio, ratio_ci95, differs })
    };
    here.figures.iter().filter_map(compared).collect()
}
