//! Each suspect is planted, and found; and nobody is found where nobody was planted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use dormouse_testing::{Lack, skip};

use super::pages::Written;
use super::processor::Chain;
use super::*;
use crate::Host;

fn plan() -> Plan {
    let host = Host::read();
    let cpu = crate::cpus().first().copied().unwrap_or(0);
    Plan::new(cpu, true, host.caches_bytes())
}

fn probes(work: impl FnOnce(&Plan, &mut Probes) + Send + 'static) -> Probes {
    let plan = plan();
    on_processor(plan.cpu, move || {
        let mut probes = Probes { cpu: plan.cpu, ..Probes::default() };
        work(&plan, &mut probes);
        probes
    })
    .expect("it measures")
}

fn find<'a>(all: &'a [Judged], suspect: &str) -> &'a Judged {
    all.iter().find(|judged| judged.suspect == suspect).expect("every suspect is judged")
}

/// Some who spin on the probes' processor, and are nice about it.
struct Competitors {
    are_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Competitors {
    /// So many that they are found beside whoever else uses the machine.
    const COUNT: usize = 16;

    fn start() -> Competitors {
        let are_over = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let (ends, cpu) = (are_over.clone(), plan().cpu);
            std::thread::spawn(move || {
                // SAFETY: lowers this thread's own priority (setpriority(2): on Linux of one thread).
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
                let _ = on_processor(cpu, move || {
                    // Nothing is published by it.
                    while !ends.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            })
        };
        let threads = (0..Competitors::COUNT).map(start).collect();
        Competitors { are_over, threads }
    }
}

impl Drop for Competitors {
    fn drop(&mut self) {
        self.are_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

/// Who is measured is alone among these tests.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Measures without what is planted and with it, again where the machine was so busy already that it made no difference.
fn found_in_time(mut judged: impl FnMut() -> Vec<Judged>, is_found: impl Fn(&[Judged]) -> bool) {
    const TRIES: usize = 8;
    for attempt in 1..=TRIES {
        let judged = judged();
        if is_found(&judged) {
            return;
        }
        assert!(attempt < TRIES, "{judged:#?}");
    }
}

#[test]
fn gaps_are_counted_by_their_length() {
    // Steps of 100 ns, and among them pauses: what is no gap, two of one length, the longest last.
    let pauses = [499.0, 500.0, 511.0, 700.0, 2_048.0, 5_000.0];
    let steps = pauses.into_iter().flat_map(|pause| [100.0, pause, 100.0]).scan(1e9, |now, step| {
        *now += step;
        Some(*now)
    });
    let mut clock = std::iter::once(1e9).chain(steps);
    let total = 12.0 * 100.0 + pauses.iter().sum::<f64>();
    let mut gaps = time::Gaps::default();
    let kept = gaps.watch(total - 100.0, || clock.next().expect("it ends in time"));
    let lost: f64 = pauses[1..].iter().sum();
    assert!((kept - (1.0 - lost / (total - 100.0))).abs() < 1e-9, "{kept}");
    assert_eq!(gaps.counts, [(256, 2), (512, 1), (2_048, 1), (4_096, 1)].into());
    assert_eq!(gaps.starts[..2], [1e9 + 799.0, 1e9 + 1_499.0]);
}

#[test]
fn competitors_are_found_as_scheduler_and_interruptions() {
    let _alone = alone();
    let measure = |plan: &Plan, probes: &mut Probes| {
        time::scheduler(plan, probes);
        time::interruptions(plan, probes);
    };
    let judged = || {
        let there = probes(measure);
        let competitors = Competitors::start();
        let here = probes(measure);
        drop(competitors);
        judge(&there, &here)
    };
    found_in_time(judged, |judged| {
        let differs = |suspect: &str, figure: &str| {
            let mut figures = find(judged, suspect).figures.iter();
            figures.any(|compared| compared.figure == figure && compared.verdict == Verdict::Differs)
        };
        differs("scheduler", "other_share") && differs("interruptions", "kept")
    });
}

#[test]
fn another_clock_is_found() {
    let _alone = alone();
    for (clock, figure) in
        [(rustix::time::ClockId::MonotonicCoarse, "step"), (rustix::time::ClockId::ProcessCPUTime, "read")]
    {
        let judged = || {
            let there = probes(|plan, probes| time::clock_source(plan, rustix::time::ClockId::Monotonic, probes));
            judge(&there, &probes(move |plan, probes| time::clock_source(plan, clock, probes)))
        };
        found_in_time(judged, |judged| {
            let mut figures = find(judged, "clock source").figures.iter();
            figures.any(|compared| compared.figure == figure && compared.verdict == Verdict::Differs)
        });
    }
}

/// Drives everything that the probes have in the caches out of them, on their own processor.
fn thrash(buffer: &mut memory::Buffer) {
    buffer.words_mut().iter_mut().step_by(8).for_each(|word| *word = word.wrapping_add(1));
}

#[test]
fn a_thrashing_neighbour_is_found_as_caches() {
    let _alone = alone();
    let judged = || {
        let there = probes(|plan, probes| processor::caches(plan, &mut || {}, probes));
        let here = probes(|plan, probes| {
            let mut buffer = memory::Buffer::new(plan.memory_bytes(), true).expect("memory");
            processor::caches(plan, &mut || thrash(&mut buffer), probes);
        });
        judge(&there, &here)
    };
    // Which of them is found depends on what the machine tells of its caches.
    found_in_time(judged, |judged| {
        let mut figures = find(judged, "caches").figures.iter();
        figures.any(|compared| compared.verdict == Verdict::Differs && compared.figure != "memory_latency")
    });
}

#[test]
fn a_slower_core_is_found() {
    let _alone = alone();
    // No clock can be made slower here; a chain whose links take longer looks the same.
    let judged = || {
        let there = probes(|plan, probes| processor::core_clock(plan, Chain::Additions, probes));
        judge(&there, &probes(|plan, probes| processor::core_clock(plan, Chain::Products, probes)))
    };
    found_in_time(judged, |judged| find(judged, "core clock").verdict == Verdict::Differs);
}

#[test]
fn memory_that_nobody_wrote_is_found_as_page_backing() {
    let _alone = alone();
    let figure = |probes: &Probes, name: &str| {
        let found = probes.figures.iter().find(|figure| figure.name == name);
        found.map(|figure| figure.median).expect("it was measured")
    };
    let there = || probes(|plan, probes| pages::backing(plan, Written::Yes, probes));
    let calm = there();
    if figure(&calm, "page backing.reading_unwritten") < 1.8 * figure(&calm, "page backing.reading") {
        let reason = "the zero page is not much quicker than memory here";
        return skip(Lack::machine(reason, "run the test on a machine that does nothing else"));
    }
    let judged = || judge(&there(), &probes(|plan, probes| pages::backing(plan, Written::No, probes)));
    found_in_time(judged, |judged| {
        let mut figures = find(judged, "page backing").figures.iter();
        figures.any(|compared| compared.figure == "reading" && compared.verdict == Verdict::Differs)
    });
}

/// Figures of a machine, each with this one's scatter.
fn made(factor: impl Fn(&str) -> f64) -> Probes {
    let mut probes = Probes::default();
    for name in ["core clock.addition", "caches.L1_latency", "scheduler.other_share", "clock source.read"] {
        let samples: Vec<f64> = (0..9).map(|number| factor(name) * (1.0 + 0.001 * f64::from(number))).collect();
        probes.add(name, "ns", &samples);
    }
    probes
}

#[test]
fn who_is_alike_is_struck_out_and_who_is_not_comes_first() {
    let there = made(|_| 1.0);
    let judged = judge(&there, &made(|name| if name.starts_with("clock") { 1.5 } else { 1.01 }));
    let verdicts: Vec<_> = judged.iter().map(|judged| (judged.suspect.as_str(), judged.verdict)).collect();
    assert_eq!(verdicts[0], ("clock source", Verdict::Differs));
    for suspect in ["core clock", "caches", "scheduler"] {
        assert_eq!(find(&judged, suspect).verdict, Verdict::StruckOut, "{verdicts:?}");
    }
    for suspect in ["interruptions", "page backing"] {
        assert_eq!(find(&judged, suspect).verdict, Verdict::NotMeasured, "{verdicts:?}");
    }
    // Around the tolerance nothing is said.
    let judged = judge(&there, &made(|_| 1.05));
    assert_eq!(find(&judged, "core clock").verdict, Verdict::Undecided);
    assert!(judge(&there, &there).iter().all(|judged| judged.verdict < Verdict::Undecided));
}
