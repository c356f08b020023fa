//! Probes of the core's clock, and of causes that take time away: the scheduler, reading the clock, and interruptions.

use core::arch::asm;
use std::hint::black_box;
use std::time::{Duration, Instant};

use dormouse_lab_harness::set_scheduler;
use rustix::time::{ClockId, clock_gettime};

use super::{Looks, SAMPLES, on_processor};

/// Number of instructions in a chain.
pub(super) const LINKS: usize = 256;

/// Runs a chain of additions, each of which depends on the one before, so each takes a cycle (latency of ADD: Agner
/// Fog, Instruction tables; Arm's software optimisation guides).
pub(super) fn adds(mut x: u64, y: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes x and the flags only.
    unsafe {
        asm!(".rept {n}", "add {x}, {y}", ".endr", x = inout(reg) x, y = in(reg) y, n = const LINKS,
            options(pure, nomem, nostack))
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: changes x and no flag.
    unsafe {
        asm!(".rept {n}", "add {x}, {x}, {y}", ".endr", x = inout(reg) x, y = in(reg) y, n = const LINKS,
            options(pure, nomem, nostack))
    };
    x
}

/// Measures the time of one link of a chain in nanoseconds: the shortest of some short runs, so that interruptions do
/// not count as a slow clock.
pub(super) fn core_clock(chain: fn(u64, u64) -> u64, looks: &mut Looks) {
    const RUNS: u64 = 100;
    let samples = [(); SAMPLES].map(|()| {
        let tries = (0..8).map(|_| {
            let begun = Instant::now();
            black_box((0..RUNS).fold(1, |x, number| chain(black_box(x), number | 1)));
            begun.elapsed().as_nanos() as f64 / (RUNS as usize * LINKS) as f64
        });
        tries.fold(f64::INFINITY, f64::min)
    });
    looks.add("core clock.addition", "ns", &samples);
}

fn ns(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Measures a spinning thread's share of the time for each policy, and how late a thread wakes from a timer.
pub(super) fn scheduler(cpu: u32, looks: &mut Looks) {
    for (name, policy) in [("other", libc::SCHED_OTHER), ("fifo", libc::SCHED_FIFO), ("rr", libc::SCHED_RR)] {
        // A thread of its own, so that the policy of this one does not change.
        let shares = on_processor(cpu, move || -> std::io::Result<_> {
            set_scheduler(policy, i32::from(policy != libc::SCHED_OTHER))?;
            Ok([(); SAMPLES].map(|()| {
                let (begun, cpu) = (Instant::now(), ns(ClockId::ThreadCPUTime));
                while begun.elapsed() < Duration::from_millis(10) {
                    std::hint::spin_loop();
                }
                (ns(ClockId::ThreadCPUTime) - cpu) as f64 / begun.elapsed().as_nanos() as f64
            }))
        });
        match shares {
            Some(Ok(samples)) => looks.add(&format!("scheduler.{name}"), "share", &samples),
            Some(Err(error)) => looks.note(format!("scheduler: SCHED_{} not available: {error}", name.to_uppercase())),
            None => {}
        }
    }
    const SLEEP: Duration = Duration::from_micros(200);
    let late = [(); 8 * SAMPLES].map(|()| {
        let begun = Instant::now();
        // The time beyond the sleep is the lateness.
        std::thread::sleep(SLEEP);
        begun.elapsed().saturating_sub(SLEEP).as_nanos() as f64 / 1e3
    });
    looks.add("scheduler.wake", "us", &late);
}

/// Measures the cost of reading a clock, and its smallest visible step.
pub(super) fn clock_source(clock: ClockId, looks: &mut Looks) {
    const READS: usize = 2000;
    let costs = [(); SAMPLES].map(|()| {
        let begun = Instant::now();
        (0..READS).for_each(|_| _ = black_box(clock_gettime(clock)));
        begun.elapsed().as_nanos() as f64 / READS as f64
    });
    looks.add("clock source.read", "ns", &costs);
    // A coarse clock stands still for a tick of at most 10 ms, and this thread may be preempted for longer.
    let (begun, mut last) = (Instant::now(), ns(clock));
    let mut steps = Vec::new();
    while steps.is_empty() || (steps.len() < 200 && begun.elapsed() < Duration::from_millis(12)) {
        let now = ns(clock);
        steps.extend((now > last).then_some((now - last) as f64));
        last = now;
    }
    looks.add("clock source.step", "ns", &[steps.into_iter().fold(f64::INFINITY, f64::min)]);
}

/// Returns the time in nanoseconds, from the cheapest source.
#[cfg(target_arch = "x86_64")]
fn now() -> f64 {
    // SAFETY: reads a counter that every CPU of this architecture has.
    let cycles = unsafe { core::arch::x86_64::_rdtsc() };
    cycles as f64 / dormouse_lab_harness::cycles_per_ns()
}

#[cfg(not(target_arch = "x86_64"))]
fn now() -> f64 {
    ns(ClockId::Monotonic) as f64
}

/// Measures the share of its time that a loop keeps which only reads the clock, and the number of gaps in it.
pub(super) fn interruptions(looks: &mut Looks) {
    /// Minimum length of a gap, above the time of one iteration.
    const GAP_NS_MIN: f64 = 500.0;
    const RUN_NS: f64 = 20e6;
    let seen = [(); SAMPLES].map(|()| {
        let begun = now();
        let (mut last, mut lost, mut count) = (begun, 0.0, 0.0);
        while last - begun < RUN_NS {
            let time = now();
            if time - last >= GAP_NS_MIN {
                lost += time - last;
                count += 1.0;
            }
            last = time;
        }
        (1.0 - lost / (last - begun), count * 1e9 / RUN_NS)
    });
    looks.add("interruptions.kept", "share", &seen.map(|(kept, _)| kept));
    looks.add("interruptions.gaps", "1/s", &seen.map(|(_, gaps)| gaps));
}
