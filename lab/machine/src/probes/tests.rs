//! Each cause is planted, and found; and nothing is found where nothing was planted.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_backing::{MemoryOptions, PrivatePool};
use dormouse_testing::{Lack, skip};
use rustix::time::ClockId;

use super::*;

/// As many looks as have an interval.
fn probes(look: impl FnMut(&mut Looks) + Send + 'static) -> Probes {
    looks(crate::cpus()[0], LOOKS_BEFORE_RUN, crate::Host::read().caches_bytes(), look)
}

/// Measures without what is planted and with it, again where the machine was so busy already that it made no difference.
fn found_in_time(figures: &[&str], mut without: impl FnMut() -> Probes, mut with: impl FnMut() -> Probes) {
    const TRIES: usize = 8;
    for attempt in 1..=TRIES {
        let compared = compare(&without(), &with());
        let is_found = |name: &&str| compared.iter().any(|figure| figure.figure.starts_with(name) && figure.differs);
        if figures.iter().all(is_found) {
            return;
        }
        assert!(attempt < TRIES, "{compared:#?}");
    }
}

/// Some who spin on the probes' processor, and are nice about it: so many that they are found beside whoever else uses the machine.
fn beside_competitors<T>(work: impl FnOnce() -> T) -> T {
    let are_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                // SAFETY: lowers this thread's own priority (setpriority(2): on Linux of one thread).
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
                crate::keep_on(crate::cpus()[0]);
                // Nothing is published by it.
                while !are_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = work();
        are_over.store(true, Ordering::Relaxed);
        done
    })
}

/// One after the other: what is measured is alone.
#[test]
fn each_cause_is_found() {
    let measure = || {
        probes(|looks| {
            time::scheduler(crate::cpus()[0], looks);
            time::interruptions(looks);
        })
    };
    found_in_time(&["scheduler.other", "interruptions.kept"], measure, || beside_competitors(measure));

    let clock = |clock: ClockId| move || probes(move |looks| time::clock_source(clock, looks));
    found_in_time(&["clock source.step"], clock(ClockId::Monotonic), clock(ClockId::MonotonicCoarse));
    found_in_time(&["clock source.read"], clock(ClockId::Monotonic), clock(ClockId::ProcessCPUTime));

    let caches = |is_thrashed: bool| {
        move || {
            probes(move |looks| {
                let mut other = PrivatePool::new(looks.memory_bytes(), MemoryOptions::new()).expect("memory");
                // Drives everything that the probes have in the caches out of them, on their own processor.
                let mut thrash = || {
                    let lines = memory::words(&mut other).iter_mut().step_by(8).filter(|_| is_thrashed);
                    lines.for_each(|word| *word = word.wrapping_add(1));
                };
                memory::caches(&mut thrash, looks);
            })
        }
    };
    // Which of them is found depends on what the machine tells of its caches; what is in memory anyway is no proof.
    found_in_time(&["caches.L"], caches(false), caches(true));

    // No clock can be made slower here; a chain whose links take longer looks the same.
    let products = |x: u64, y: u64| (0..time::LINKS).fold(x, |x, _| black_box(x.wrapping_mul(y)));
    let chain = |chain: fn(u64, u64) -> u64| move || probes(move |looks| time::core_clock(chain, looks));
    found_in_time(&["core clock.addition"], chain(time::adds), chain(products));

    let backing = |is_written| move || probes(move |looks| memory::backing(is_written, looks));
    let calm = backing(true)();
    let reading = |name: &str| calm.figures.iter().find(|figure| figure.name == name).map(|figure| figure.median);
    if reading("page backing.reading_unwritten") < reading("page backing.reading").map(|there| 1.8 * there) {
        let reason = "the zero page is not much quicker than memory here";
        return skip(Lack::machine(reason, "run the test on a machine that does nothing else"));
    }
    found_in_time(&["page backing.reading"], backing(true), backing(false));
}

#[test]
fn what_looks_leave_open_is_no_difference() {
    // Figures of a machine that are this many times as high, and as uneven as a calm one's.
    let made = |factors: [f64; 3]| {
        let figure = |(name, factor): (&str, f64)| {
            let looks: Vec<f64> = (0..LOOKS).map(|look| factor * (1.0 + 0.01 * (look * 3 % 7) as f64)).collect();
            measurement(name, "ns", &looks)
        };
        let figures = ["core clock.a", "caches.b", "scheduler.c"].into_iter().zip(factors).map(figure).collect();
        Probes { figures, ..Probes::default() }
    };
    let found = |here: [f64; 3]| -> Vec<String> {
        let compared = compare(&made([1.0; 3]), &made(here));
        compared.iter().map(|figure| format!("{}: {}", figure.subject(), figure.verdict())).collect()
    };
    // Within what looks at one machine differ by; and beyond.
    let expected = ["core clock: no difference shown", "caches: differs by +20.0 %", "scheduler: differs by -20.0 %"];
    assert_eq!(found([1.02, 1.2, 0.8]), expected);
    assert_eq!(compare(&made([1.0; 3]), &Probes::default()), []);
    assert_eq!(ratio_of_looks(&[1.0; 5], &[1.0; 6]), None); // too few
    assert_eq!(ratio_of_looks(&[-0.1, 1.0, 1.0, 1.0, 1.0, 1.0], &[1.0; 6]), None); // may be nothing
}
