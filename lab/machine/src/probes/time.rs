//! Who takes time away: the scheduler, the clock that is read, and interruptions.

use std::time::{Duration, Instant};

use dormouse_lab_harness::set_scheduler;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::{Looks, SAMPLES, on_processor};

fn ns(time: Timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Shares of the time that a spinning thread has, on the calling thread.
fn shares() -> [f64; SAMPLES] {
    [(); SAMPLES].map(|()| {
        let (begun, cpu) = (Instant::now(), ns(clock_gettime(ClockId::ThreadCPUTime)));
        while begun.elapsed() < Duration::from_millis(10) {
            std::hint::spin_loop();
        }
        let cpu = ns(clock_gettime(ClockId::ThreadCPUTime)) - cpu;
        cpu as f64 / begun.elapsed().as_nanos() as f64
    })
}

/// Shares by policy, and how late a thread wakes from a timer.
pub(super) fn scheduler(looks: &mut Looks) {
    looks.add("scheduler.other", "share", &shares());
    for (name, policy) in [("fifo", libc::SCHED_FIFO), ("rr", libc::SCHED_RR)] {
        // A thread of its own, so that this one stays what it is.
        match on_processor(looks.cpu, move || set_scheduler(policy, 1).map(|()| shares())) {
            Some(Ok(samples)) => looks.add(&format!("scheduler.{name}"), "share", &samples),
            Some(Err(error)) => looks.note(format!("scheduler: SCHED_{} not available: {error}", name.to_uppercase())),
            None => {}
        }
    }
    looks.add("scheduler.wake", "us", &[(); 8 * SAMPLES].map(|()| wake()));
}

/// By how many microseconds a thread that sleeps wakes too late.
fn wake() -> f64 {
    let due = ns(clock_gettime(ClockId::Monotonic)) + 200_000;
    let until = Timespec { tv_sec: due / 1_000_000_000, tv_nsec: due % 1_000_000_000 };
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(rustix::io::Errno::INTR) {}
    (ns(clock_gettime(ClockId::Monotonic)) - due) as f64 / 1e3
}

/// What reading a clock costs, and the smallest step that is seen of it.
pub(super) fn clock_source(clock: ClockId, looks: &mut Looks) {
    const READS: usize = 2000;
    let costs = [(); SAMPLES].map(|()| {
        let begun = Instant::now();
        (0..READS).for_each(|_| _ = std::hint::black_box(clock_gettime(clock)));
        begun.elapsed().as_nanos() as f64 / READS as f64
    });
    looks.add("clock source.read", "ns", &costs);
    // A coarse clock stands still for a tick, 10 ms at most; and this thread may be put aside for longer.
    let (begun, mut last) = (Instant::now(), ns(clock_gettime(clock)));
    let mut steps = Vec::new();
    while steps.is_empty() || (steps.len() < 200 && begun.elapsed() < Duration::from_millis(12)) {
        let now = ns(clock_gettime(clock));
        steps.extend((now > last).then_some((now - last) as f64));
        last = now;
    }
    looks.add("clock source.step", "ns", steps.into_iter().reduce(f64::min).as_slice());
}

/// The time, as cheaply as it can be read: ns.
fn now() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: reads a counter that every processor of this architecture has.
        let cycles = unsafe { core::arch::x86_64::_rdtsc() };
        cycles as f64 / dormouse_lab_harness::cycles_per_ns()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        ns(clock_gettime(ClockId::Monotonic)) as f64
    }
}

/// Nanoseconds from which on a pause is one, and not the loop itself.
const GAP_NS_MIN: f64 = 500.0;

/// Runs a loop for so many ns that does nothing but read the clock. Tells what share of that it kept, and how many gaps were in it.
pub(super) fn watch(ns: f64, mut clock: impl FnMut() -> f64) -> (f64, usize) {
    let begun = clock();
    let (mut last, mut lost, mut count) = (begun, 0.0, 0);
    while last - begun < ns {
        let time = clock();
        if time - last >= GAP_NS_MIN {
            lost += time - last;
            count += 1;
        }
        last = time;
    }
    (1.0 - lost / (last - begun), count)
}

/// What share of its time a loop keeps, and how many gaps in it there are.
pub(super) fn interruptions(looks: &mut Looks) {
    let seen = [(); SAMPLES].map(|()| watch(20e6, now));
    looks.add("interruptions.kept", "share", &seen.map(|(kept, _)| kept));
    looks.add("interruptions.gaps", "1/s", &seen.map(|(_, count)| count as f64 / 0.02));
}
