//! Each suspect is planted, and found; and nobody is found where nobody was planted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::pages::Written;
use super::processor::Chain;
use super::*;

fn plan() -> Plan {
    let host = Host::read();
    let cpu = crate::RunOptions::new(true).cpus.first().copied().unwrap_or(0);
    Plan::new(cpu, true, &host)
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

/// Somebody who spins on the probes' processor, before all others of this process.
struct Competitor {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Competitor {
    fn start() -> Competitor {
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, cpu) = (is_over.clone(), plan().cpu);
        let thread = std::thread::spawn(move || {
            let _ = on_processor(cpu, move || {
                // Nothing is published by it.
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        });
        Competitor { is_over, thread: Some(thread) }
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Makes the calling thread one that gives way.
fn be_nice() {
    // SAFETY: lowers this thread's own priority (setpriority(2): on Linux of one thread).
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

#[test]
fn a_competitor_is_found_as_scheduler_and_interruptions() {
    let measure = |plan: &Plan, probes: &mut Probes| {
        be_nice();
        time::scheduler(plan, probes);
        time::interruptions(plan, probes);
    };
    let there = probes(measure);
    let competitor = Competitor::start();
    let here = probes(measure);
    drop(competitor);
    let judged = judge(&there, &here);
    for suspect in ["scheduler", "interruptions"] {
        assert_eq!(find(&judged, suspect).verdict, Verdict::Differs, "{suspect}: {judged:#?}");
    }
    let share = &find(&judged, "scheduler").figures.iter().find(|figure| figure.figure == "other_share");
    assert!(share.is_some_and(|share| share.verdict == Verdict::Differs), "{judged:#?}");
    assert!(here.gaps.iter().map(|(_, count)| count).sum::<u64>() > 0, "{here:#?}");
}

#[test]
fn another_clock_is_found() {
    let there = probes(|plan, probes| time::clock_source(plan, rustix::time::ClockId::Monotonic, probes));
    for (clock, figure) in
        [(rustix::time::ClockId::MonotonicCoarse, "step"), (rustix::time::ClockId::ProcessCPUTime, "read")]
    {
        let here = probes(move |plan, probes| time::clock_source(plan, clock, probes));
        let judged = judge(&there, &here);
        let of_it = find(&judged, "clock source");
        let found = of_it.figures.iter().find(|compared| compared.figure == figure);
        assert!(found.is_some_and(|found| found.verdict == Verdict::Differs), "{clock:?}: {of_it:#?}");
    }
}

/// Drives everything that the probes have in the caches out of them, on their own processor.
fn thrash(buffer: &mut memory::Buffer) {
    buffer.words_mut().iter_mut().step_by(8).for_each(|word| *word = word.wrapping_add(1));
}

#[test]
fn a_thrashing_neighbour_is_found_as_caches() {
    let there = probes(|plan, probes| processor::caches(plan, &mut || {}, probes));
    let here = probes(|plan, probes| {
        let mut buffer = memory::Buffer::new(plan.memory_bytes(), true).expect("memory");
        processor::caches(plan, &mut || thrash(&mut buffer), probes);
    });
    let judged = judge(&there, &here);
    let caches = find(&judged, "caches");
    assert_eq!(caches.verdict, Verdict::Differs, "{caches:#?}");
    // Which of them is found depends on what the machine tells of its caches.
    let found = caches
        .figures
        .iter()
        .filter(|compared| compared.verdict == Verdict::Differs && compared.figure != "memory_latency");
    assert!(found.count() > 0, "{caches:#?}");
}

#[test]
fn a_slower_core_is_found() {
    let there = probes(|plan, probes| processor::core_clock(plan, Chain::Additions, probes));
    // No clock can be made slower here; a chain whose links take longer looks the same.
    let here = probes(|plan, probes| processor::core_clock(plan, Chain::Products, probes));
    let judged = judge(&there, &here);
    assert_eq!(find(&judged, "core clock").verdict, Verdict::Differs, "{judged:#?}");
}

#[test]
fn memory_that_nobody_wrote_is_found_as_page_backing() {
    let there = probes(|plan, probes| pages::backing(plan, Written::Yes, probes));
    let here = probes(|plan, probes| pages::backing(plan, Written::No, probes));
    let figure = |probes: &Probes, name: &str| {
        let found = probes.figures.iter().find(|figure| figure.name == name);
        found.map(|figure| figure.median).expect("it was measured")
    };
    if figure(&there, "page backing.reading_unwritten") < 1.6 * figure(&there, "page backing.reading") {
        println!("skipped: the zero page is not quicker than memory here");
        return;
    }
    let judged = judge(&there, &here);
    let reading = find(&judged, "page backing").figures.iter().find(|compared| compared.figure == "reading");
    assert!(reading.is_some_and(|reading| reading.verdict == Verdict::Differs), "{judged:#?}");
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

#[test]
fn facts_that_act_by_what_is_alike_are_struck_out() {
    let (mut a, mut b) = (Host::default(), Host::default());
    (a.governor, b.governor) =
        (crate::host::Fact::Told("powersave".into()), crate::host::Fact::Told("performance".into()));
    let alike = judge(&made(|_| 1.0), &made(|_| 1.0));
    let differ = judge(&made(|_| 1.0), &made(|_| 2.0));
    let score = |judged: &[Judged]| {
        let suspects = crate::compare::suspects_of_hosts(&a, &b, judged);
        let [suspect] = suspects.as_slice() else { panic!("{suspects:#?}") };
        (suspect.score, suspect.struck_out.is_some())
    };
    let (open, struck) = (score(&differ), score(&alike));
    assert!(!open.1 && struck.1 && struck.0 < 0.2 * open.0, "{open:?} {struck:?}");
}
