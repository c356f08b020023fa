//! Probes: measurements of the machine's own influence on figures. They follow the list of Xinyu Chen, "ZERO PAGE
//! removal influence: Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008). Each cause has figures
//! that would differ if it were the cause.
//!
//! ```text
//!   measure ─▶ a thread on one CPU ─▶ core clock, caches, scheduler, clock source, interruptions, page backing: once in each look
//!                                              │
//!   Probes of a machine, or at a moment ◀──────┘        compare(there, here) ─▶ the ratio of each figure, with its interval
//! ```
//! Looks at one quiet machine differ. Their spread is in the samples, and so in the interval of a ratio. A measurement
//! takes seconds, so it finds only causes that are active at the time.

mod memory;
#[cfg(test)]
mod tests;
mod time;

use serde::{Deserialize, Serialize};

use dormouse_lab_statistics::intervals::ratio_of_looks;
use dormouse_lab_statistics::{Measurement, measurement, median};

/// Number of looks for `dormouse lab doctor`.
pub const LOOKS: usize = 12;
/// Number of looks before a run: the minimum for an interval.
pub const LOOKS_BEFORE_RUN: usize = dormouse_lab_statistics::ROUNDS_MIN;
/// Number of looks before a quick run, which has no intervals: `dormouse lab compare` says nothing about the machines of two quick runs.
pub const LOOKS_BEFORE_QUICK_RUN: usize = 1;
/// Number of samples of each figure in a look. The look's value is their median.
const SAMPLES: usize = 3;

/// Results of all probes of a machine at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probes {
    /// CPU that was measured on.
    pub cpu: u32,
    /// Figures, with a sample for each look. The part of a name before the dot is its subject.
    pub figures: Vec<Measurement>,
    /// Other observations, and figures that could not be measured, with the cause.
    pub notes: Vec<String>,
}

/// Figures and notes during the measurement.
#[derive(Debug, Default)]
struct Looks {
    /// Sizes of the caches in bytes, by level, if they are known.
    caches: [Option<u64>; 3],
    /// Name, unit, and a sample for each look.
    figures: Vec<(String, &'static str, Vec<f64>)>,
    notes: Vec<String>,
}

impl Looks {
    /// Returns a buffer size that fits in no cache, in bytes: twice the last cache, within bounds.
    fn memory_bytes(&self) -> usize {
        let last = self.caches.iter().flatten().max().copied().unwrap_or(0);
        (2 * last as usize).clamp(16 << 20, 128 << 20)
    }

    /// Adds the value of a look to a figure: the median of its samples.
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

/// Takes `count` looks with all probes on CPU `cpu`. `caches` are the sizes of its caches in bytes.
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

/// Takes `count` looks on a CPU.
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

/// Runs `work` on a thread of its own that is pinned, if that is allowed. Returns `None` if it has panicked.
fn on_processor<T: Send + 'static>(cpu: u32, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let pinned = move || {
        crate::keep_on(cpu);
        work()
    };
    std::thread::spawn(pinned).join().ok()
}

/// A figure that was measured on both machines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// Subject and name, for example `caches.L1_latency`.
    pub figure: String,
    /// Unit of the figure.
    pub unit: String,
    /// Median there.
    pub there: f64,
    /// Median here.
    pub here: f64,
    /// Median here divided by the median there.
    pub ratio: f64,
    /// Range that contains 95 % of the ratios of a look here to a look there.
    pub ratio_ci95: [f64; 2],
    /// Whether that range excludes 1.
    pub differs: bool,
}

impl Compared {
    /// Subject of the figure, for example `caches`.
    pub fn subject(&self) -> &str {
        self.figure.split('.').next().unwrap_or_default()
    }

    /// Returns the difference in words.
    pub fn verdict(&self) -> String {
        let percent = (self.ratio - 1.0) * 100.0;
        if self.differs { format!("differs by {percent:+.1} %") } else { "no difference shown".into() }
    }
}

/// Compares the figures that both have, in the order of measurement.
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
