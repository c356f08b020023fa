//! Each cause is planted, and found; and nothing is found where nothing was planted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dormouse_testing::{Lack, skip};
use rustix::time::ClockId;

use super::*;

/// As many looks as have an interval.
fn probes(mut look: impl FnMut(&mut Looks) + Send + 'static) -> Probes {
    let (cpu, caches) = (crate::cpus()[0], crate::Host::read().caches_bytes());
    let all = move || {
        let mut looks = Looks { cpu, caches, figures: Vec::new(), notes: Vec::new() };
        (0..LOOKS_BEFORE_RUN).for_each(|_| look(&mut looks));
        looks.probes()
    };
    on_processor(cpu, all).expect("it measures")
}

/// Measures without what is planted and with it, again where the machine was so busy already that it made no difference.
fn found_in_time(figures: &[&str], mut without: impl FnMut() -> Probes, mut with: impl FnMut() -> Probes) {
    /// Who is measured is alone among these tests.
    static ALONE: Mutex<()> = Mutex::new(());
    const TRIES: usize = 8;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
    let are_over = Arc::new(AtomicBool::new(false));
    let start = |_| {
        let ends = are_over.clone();
        std::thread::spawn(move || {
            // SAFETY: lowers this thread's own priority (setpriority(2): on Linux of one thread).
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
            crate::keep_on(&crate::cpus()[..1]);
            // Nothing is published by it.
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    let threads: Vec<_> = (0..16).map(start).collect();
    let done = work();
    are_over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("it spins"));
    done
}

#[test]
fn gaps_are_pauses_of_half_a_microsecond_and_more() {
    let pauses = [499.0, 500.0, 511.0, 700.0, 2_048.0, 5_000.0];
    let steps = pauses.into_iter().flat_map(|pause| [100.0, pause, 100.0]).scan(1e9, |now, step| {
        *now += step;
        Some(*now)
    });
    let mut clock = std::iter::once(1e9).chain(steps);
    let lasts = 11.0 * 100.0 + pauses.iter().sum::<f64>();
    let (kept, count) = time::watch(lasts, || clock.next().expect("it ends in time"));
    let lost: f64 = pauses[1..].iter().sum();
    assert!((kept - (1.0 - lost / lasts)).abs() < 1e-9 && count == 5, "{kept} {count}");
}

#[test]
fn competitors_are_found_as_scheduler_and_interruptions() {
    let measure = || {
        probes(|looks| {
            time::scheduler(looks);
            time::interruptions(looks);
        })
    };
    found_in_time(&["scheduler.other", "interruptions.kept"], measure, || beside_competitors(measure));
}

#[test]
fn another_clock_is_found() {
    let clock = |clock: ClockId| move || probes(move |looks| time::clock_source(clock, looks));
    found_in_time(&["clock source.step"], clock(ClockId::Monotonic), clock(ClockId::MonotonicCoarse));
    found_in_time(&["clock source.read"], clock(ClockId::Monotonic), clock(ClockId::ProcessCPUTime));
}

#[test]
fn a_thrashing_neighbour_is_found_as_caches() {
    let caches = |is_thrashed: bool| {
        probes(move |looks| {
            let mut other = memory::Buffer::new(looks.memory_bytes(), true).expect("memory");
            // Drives everything that the probes have in the caches out of them, on their own processor.
            let mut thrash = || {
                let lines = other.words_mut().iter_mut().step_by(8).filter(|_| is_thrashed);
                lines.for_each(|word| *word = word.wrapping_add(1));
            };
            processor::caches(&mut thrash, looks);
        })
    };
    // Which of them is found depends on what the machine tells of its caches; what is in memory anyway is no proof.
    found_in_time(&["caches.L"], || caches(false), || caches(true));
}

#[test]
fn a_slower_core_is_found() {
    // No clock can be made slower here; a chain whose links take longer looks the same.
    let clock = |chain: fn(u64, u64) -> u64| move || probes(move |looks| processor::core_clock(chain, looks));
    found_in_time(&["core clock.addition"], clock(arch::adds), clock(arch::products));
}

#[test]
fn memory_that_nobody_wrote_is_found_as_page_backing() {
    let backing = |is_written| move || probes(move |looks| pages::backing(is_written, looks));
    let calm = backing(true)();
    let reading = |name: &str| calm.figures.iter().find(|figure| figure.name == name).map(|figure| figure.median);
    if reading("page backing.reading_unwritten") < reading("page backing.reading").map(|there| 1.8 * there) {
        let reason = "the zero page is not much quicker than memory here";
        return skip(Lack::machine(reason, "run the test on a machine that does nothing else"));
    }
    found_in_time(&["page backing.reading"], backing(true), backing(false));
}

/// Looks at a machine whose figures are this many times as high, and as uneven as a calm one's.
fn made(factors: [f64; 3]) -> Probes {
    let mut looks = Looks { cpu: 0, caches: [None; 3], figures: Vec::new(), notes: Vec::new() };
    for look in 0..LOOKS {
        let uneven = |seed: usize| 1.0 + 0.01 * ((look * seed) % 7) as f64;
        for ((name, seed), factor) in
            [("core clock.a", 3), ("caches.b", 4), ("scheduler.c", 5)].into_iter().zip(factors)
        {
            looks.add(name, "ns", &[factor * uneven(seed)]);
        }
    }
    looks.probes()
}

#[test]
fn what_looks_leave_open_is_no_difference() {
    let found =
        |here: [f64; 3]| compare(&made([1.0; 3]), &made(here)).iter().map(|figure| figure.differs).collect::<Vec<_>>();
    assert_eq!(found([1.0; 3]), [false; 3]);
    // Within what looks at one machine differ by; and beyond.
    assert_eq!(found([1.02, 1.2, 0.8]), [false, true, true]);
    let [_, slower, _] = &compare(&made([1.0; 3]), &made([1.0, 1.2, 1.0]))[..] else { panic!("three figures") };
    assert_eq!((slower.subject(), slower.verdict().as_str()), ("caches", "differs by +20.0 %"));
    assert_eq!(compare(&made([1.0; 3]), &Probes::default()), []);
}
