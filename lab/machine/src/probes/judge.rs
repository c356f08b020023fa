//! The verdict on each suspect: whether its figures came out alike there and here.

use serde::{Deserialize, Serialize};

use super::Probes;
use dormouse_lab_statistics::Measurement;
use dormouse_lab_statistics::intervals::ratio_of;

/// A suspect, and what is to be known of it.
#[derive(Debug, Clone, Copy)]
pub struct KnownSuspect {
    /// Its name, with which its figures begin.
    pub name: &'static str,
    /// What it does to figures.
    pub why: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
    /// Facts of the host that act by it: struck out with it.
    pub facts: &'static [&'static str],
}

/// The list of Xinyu Chen (2008).
pub const SUSPECTS: [KnownSuspect; 6] = [
    KnownSuspect {
        name: "core clock",
        why: "all that does not wait for memory is as fast as the core",
        remedy: "set one frequency on both (cpupower frequency-set), and look who else uses the core's other thread",
        facts: &["governor", "processor.boost", "processor.frequency_khz_max", "processor.frequency_driver"],
    },
    KnownSuspect {
        name: "caches",
        why: "a smaller or shared cache, or slower memory, slows down whoever has more data than fit",
        remedy: "look who else uses the cache (dormouse lab doctor names neighbours), and what size of it this machine may use",
        facts: &["caches", "processor.numa_nodes"],
    },
    KnownSuspect {
        name: "scheduler",
        why: "a thread that others take turns with stands still meanwhile",
        remedy: "stop the others, choose another processor (--cpu), or run with --policy fifo: its share says whether that helps",
        facts: &["fifo_scheduling", "neighbours", "load", "limits.cpu", "unnamed_share"],
    },
    KnownSuspect {
        name: "clock source",
        why: "a clock that costs more, or has coarser steps, is in every time that is taken by it",
        remedy: "choose the same one (/sys/devices/system/clocksource/clocksource0/current_clocksource), tsc where it is constant",
        facts: &["clock.tsc", "clock_source"],
    },
    KnownSuspect {
        name: "interruptions",
        why: "ticks, interrupts and a hypervisor take the processor away for microseconds",
        remedy: "see the interrupts that are counted below; move them (/proc/irq/N/smp_affinity) or measure on another processor",
        facts: &["steal_share", "processor.nohz_full", "processor.isolated"],
    },
    KnownSuspect {
        name: "page backing",
        why: "memory that nobody has written is one page of zeroes, quick to read, and its first touch is a page fault",
        remedy: "write buffers before they are measured; dormouse pages --watch -- CMD names those that were not",
        // Its figures are of small pages: they say nothing for settings of huge ones.
        facts: &[],
    },
];

/// By what factor a figure may differ between two looks at one machine that has not changed. Judgement; it has to be beyond what a calm
/// machine does by itself, and below what would explain a benchmark that differs.
const TOLERANCES: [(&str, f64); 19] = [
    ("core clock.addition", 1.05),
    ("caches.L1_latency", 1.15),
    ("caches.L2_latency", 1.25),
    ("caches.L3_latency", 1.4),
    ("caches.memory_latency", 1.4),
    ("caches.L1_reading", 1.25),
    ("caches.L2_reading", 1.3),
    ("caches.L3_reading", 1.5),
    ("caches.memory_reading", 1.5),
    ("scheduler.other_share", 1.05),
    ("scheduler.fifo_share", 1.05),
    ("scheduler.rr_share", 1.05),
    ("scheduler.wake", 3.0),
    ("clock source.read", 1.25),
    ("clock source.step", 2.0),
    ("interruptions.kept", 1.03),
    ("page backing.first_touch", 1.6),
    ("page backing.reading", 1.5),
    ("page backing.reading_unwritten", 1.5),
];

/// What is said of a suspect, or of one figure of its.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Not measured on both sides.
    NotMeasured,
    /// Its figures are alike: it explains nothing.
    StruckOut,
    /// An interval reaches over the tolerance.
    Undecided,
    /// A figure differs by more than the tolerance.
    Differs,
}

impl Verdict {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::NotMeasured => "not measured",
            Verdict::StruckOut => "struck out",
            Verdict::Undecided => "undecided",
            Verdict::Differs => "differs",
        }
    }
}

/// A figure of a suspect's, on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Without its suspect's name.
    pub figure: String,
    /// Its unit.
    pub unit: String,
    /// Its medians, there and here.
    pub values: [f64; 2],
    /// Here in terms of there.
    pub ratio: f64,
    /// Its 95 % interval.
    pub ratio_ci95: [f64; 2],
    /// The factor from which on it differs.
    pub tolerance: f64,
    /// What follows.
    pub verdict: Verdict,
}

/// A suspect with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Its name.
    pub suspect: String,
    /// What is said of it: the worst of its figures.
    pub verdict: Verdict,
    /// What it does to figures.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
    /// Its figures, those that differ most first.
    pub figures: Vec<Compared>,
}

fn compared(there: &Measurement, here: &Measurement, name: &str, tolerance: f64) -> Option<Compared> {
    let (ratio, ratio_ci95) = ratio_of(there, here)?;
    let [low, high] = ratio_ci95;
    let verdict = match () {
        () if low > tolerance || high < 1.0 / tolerance => Verdict::Differs,
        () if low >= 1.0 / tolerance && high <= tolerance => Verdict::StruckOut,
        () => Verdict::Undecided,
    };
    let (unit, values) = (here.unit.clone(), [there.median, here.median]);
    Some(Compared { figure: name.into(), unit, values, ratio, ratio_ci95, tolerance, verdict })
}

/// Judges every suspect: those that differ first, by how much they do; then the undecided, those struck out, and those not measured.
pub fn judge(there: &Probes, here: &Probes) -> Vec<Judged> {
    let find = |probes: &'_ Probes, name: &str| probes.figures.iter().find(|figure| figure.name == name).cloned();
    let effect = |compared: &Compared| compared.ratio.ln().abs() / compared.tolerance.ln();
    let mut all: Vec<Judged> = SUSPECTS
        .iter()
        .map(|suspect| {
            let of_it = TOLERANCES.iter().filter_map(|(name, tolerance)| {
                let figure = name.strip_prefix(suspect.name)?.strip_prefix('.')?;
                compared(&find(there, name)?, &find(here, name)?, figure, *tolerance)
            });
            let mut figures: Vec<Compared> = of_it.collect();
            figures.sort_by(|a, b| {
                (b.verdict, effect(b)).partial_cmp(&(a.verdict, effect(a))).unwrap_or(std::cmp::Ordering::Equal)
            });
            Judged {
                suspect: suspect.name.into(),
                verdict: figures.iter().map(|figure| figure.verdict).max().unwrap_or(Verdict::NotMeasured),
                why: suspect.why.into(),
                remedy: suspect.remedy.into(),
                figures,
            }
        })
        .collect();
    let worst = |judged: &Judged| judged.figures.first().map_or(0.0, effect);
    all.sort_by(|a, b| (b.verdict, worst(b)).partial_cmp(&(a.verdict, worst(a))).unwrap_or(std::cmp::Ordering::Equal));
    all
}

impl Judged {
    /// Its first figures in a line.
    pub fn text(&self) -> String {
        let figure = |compared: &Compared| {
            let Compared { figure, unit, values: [there, here], ratio, ratio_ci95: [low, high], .. } = compared;
            format!("{figure} {} → {} {unit}: {ratio:.2} [{low:.2}, {high:.2}]", digits(*there), digits(*here))
        };
        let told = self.figures.iter().take(3).map(|compared| figure(compared).replace('_', " "));
        told.collect::<Vec<_>>().join(", ")
    }
}

fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
