//! Each cause is planted and must be found; without a planted cause, none may be found.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_backing::{MemoryOptions, PrivatePool};
use dormouse_testing::{Lack, skip, skip_part};
use rustix::time::ClockId;

use super::*;

/// Takes the minimum number of looks for an interval.
fn probes(look: impl FnMut(&mut Looks) + Send + 'static) -> Probes {
    looks(crate::cpus()[0], LOOKS_BEFORE_RUN, crate::Host::read().caches_bytes(), look)
}

/// Measures without and with the planted cause. Tries again if the machine was so busy that the cause made no
/// difference. The part is skipped if the looks at a figure differed so much that they decide nothing.
fn found_in_time(figures: &[&str], mut without: impl FnMut() -> Probes, mut with: impl FnMut() -> Probes) {
    const TRIES: usize = 8;
    for attempt in 1..=TRIES {
        let compared = compare(&without(), &with());
        let is_of = |name: &str, figure: &Compared| figure.figure.starts_with(name);
        let is_found = |name: &str| compared.iter().any(|figure| is_of(name, figure) && figure.differs);
        let missing: Vec<_> = figures.iter().filter(|name| !is_found(name)).collect();
        if missing.is_empty() {
            return;
        }
        if attempt == TRIES {
            let is_undecided = |figure: &Compared| figure.ratio_ci95[1] > 2.0 * figure.ratio_ci95[0];
            let decided = compared.iter().filter(|figure| !is_undecided(figure));
            let mut decided = decided.filter(|figure| missing.iter().any(|name| is_of(name, figure)));
            assert!(decided.next().is_none(), "{compared:#?}");
            let reason = "other programs made the looks differ by more than a factor of two";
            let remedy = "run the test on a machine that does nothing else";
            skip_part(figures.join(", "), Lack::machine(reason, remedy));
        }
    }
}

/// Runs `work` beside threads that spin on the probes' CPU at lower priority. They are enough to be found beside all
/// other users of the machine.
fn beside_competitors<T>(work: impl FnOnce() -> T) -> T {
    let are_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                // SAFETY: setpriority(2) takes numbers; on Linux it lowers the priority of this thread only.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
                crate::keep_on(crate::cpus()[0]);
                // The flag publishes nothing else.
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

/// One test, so that each measurement runs alone.
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
                // Evicts all cached data of the probes, on their own CPU.
                let mut thrash = || {
                    let lines = memory::words(&mut other).iter_mut().step_by(8).filter(|_| is_thrashed);
                    lines.for_each(|word| *word = word.wrapping_add(1));
                };
                memory::caches(&mut thrash, looks);
            })
        }
    };
    // The cache sizes that the machine reports decide which of them is found. The buffer in memory proves nothing, so
    // it is left out.
    found_in_time(&["caches.L"], caches(false), caches(true));

    // No clock can be made slower here; a chain of slower links looks the same.
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
fn undecided_measurements_are_not_differences() {
    // Makes figures that are higher by these factors, with the spread of a quiet machine.
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
    // Within the spread of looks at one machine, and beyond it.
    let expected = ["core clock: no difference shown", "caches: differs by +20.0 %", "scheduler: differs by -20.0 %"];
    assert_eq!(found([1.02, 1.2, 0.8]), expected);
    assert_eq!(compare(&made([1.0; 3]), &Probes::default()), []);
    assert_eq!(ratio_of_looks(&[1.0; 5], &[1.0; 6]), None); // too few
    assert_eq!(ratio_of_looks(&[-0.1, 1.0, 1.0, 1.0, 1.0, 1.0], &[1.0; 6]), None); // may be nothing
}
