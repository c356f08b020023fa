//! Who takes time away: the scheduler, the clock that is read, and interruptions.

use std::time::{Duration, Instant};

use dormouse_lab_harness::set_scheduler;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

use super::{Plan, Probes, on_processor};

fn ns(time: Timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// How long a sample of a share is.
const SPIN: Duration = Duration::from_millis(10);

/// Shares of the time that a spinning thread has, and how often it was put aside, on the calling thread.
pub(super) fn shares(count: usize) -> (Vec<f64>, i64) {
    let mut samples = Vec::new();
    let before = switches();
    for _ in 0..count {
        let (begun, cpu) = (Instant::now(), ns(clock_gettime(ClockId::ThreadCPUTime)));
        while begun.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        let cpu = ns(clock_gettime(ClockId::ThreadCPUTime)) - cpu;
        samples.push(cpu as f64 / begun.elapsed().as_nanos() as f64);
    }
    (samples, switches() - before)
}

/// Involuntary context switches of this thread so far.
fn switches() -> i64 {
    // SAFETY: all of its members are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes one structure of that type.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

/// Shares by policy, and how late a thread wakes from a timer.
pub(super) fn scheduler(plan: &Plan, probes: &mut Probes) {
    let (samples, switches) = shares(plan.count);
    let took = SPIN * plan.count as u32;
    probes.notes.push(format!("scheduler: put aside {switches} times in {took:?} as SCHED_OTHER"));
    probes.add("scheduler.other_share", "share", &samples);
    for (name, policy) in [("fifo", libc::SCHED_FIFO), ("rr", libc::SCHED_RR)] {
        let count = plan.count;
        // A thread of its own, so that this one stays what it is.
        let tried = on_processor(plan.cpu, move || set_scheduler(policy, 1).map(|()| shares(count)));
        match tried {
            Some(Ok((samples, _))) => probes.add(&format!("scheduler.{name}_share"), "share", &samples),
            Some(Err(error)) => {
                probes.notes.push(format!("scheduler: SCHED_{} not available: {error}", name.to_uppercase()))
            }
            None => {}
        }
    }
    match wakes(8 * plan.count) {
        // Medians of eight, since single ones scatter.
        Ok(late) => {
            let samples: Vec<f64> = late.chunks(8).map(dormouse_lab_statistics::median).collect();
            probes.add("scheduler.wake", "us", &samples);
        }
        Err(error) => probes.notes.push(format!("scheduler: no timer to wake from: {error}")),
    }
}

/// By how many microseconds a thread that waits for a timer wakes after it.
fn wakes(count: usize) -> rustix::io::Result<Vec<f64>> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let mut late = Vec::with_capacity(count);
    for _ in 0..count {
        let due = ns(clock_gettime(ClockId::Monotonic)) + 200_000;
        let it_value = Timespec { tv_sec: due / 1_000_000_000, tv_nsec: due % 1_000_000_000 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &once)?;
        let mut expired = [0; 8];
        rustix::io::read(&timer, &mut expired)?;
        late.push((ns(clock_gettime(ClockId::Monotonic)) - due) as f64 / 1e3);
    }
    Ok(late)
}

/// What reading a clock costs, and the smallest step that is seen of it.
pub(super) fn clock_source(plan: &Plan, clock: ClockId, probes: &mut Probes) {
    const READS: usize = 2000;
    let mut costs = Vec::new();
    let mut steps = Vec::new();
    for _ in 0..plan.count {
        let begun = Instant::now();
        (0..READS).for_each(|_| _ = std::hint::black_box(clock_gettime(clock)));
        costs.push(begun.elapsed().as_nanos() as f64 / READS as f64);
        // A coarse clock stands still for a tick, 10 ms at most.
        let (begun, mut last, mut smallest) = (Instant::now(), ns(clock_gettime(clock)), i64::MAX);
        let mut seen = 0;
        while seen < 200 && begun.elapsed() < Duration::from_millis(12) {
            let now = ns(clock_gettime(clock));
            if now > last {
                smallest = smallest.min(now - last);
                seen += 1;
            }
            last = now;
        }
        if seen > 0 {
            steps.push(smallest as f64);
        }
    }
    probes.add("clock source.read", "ns", &costs);
    probes.add("clock source.step", "ns", &steps);
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

/// Pauses of a loop that does nothing but read the clock.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// How many there are from so many ns on, up to twice as many.
    pub(super) counts: std::collections::BTreeMap<u64, u64>,
    /// When each began, ns.
    pub(super) starts: Vec<f64>,
}

impl Gaps {
    /// Runs the loop for so many ns, and tells what share of that it kept.
    pub(super) fn watch(&mut self, ns: f64, mut clock: impl FnMut() -> f64) -> f64 {
        let begun = clock();
        let (mut last, mut lost) = (begun, 0.0);
        while last - begun < ns {
            let time = clock();
            let gap = time - last;
            if gap >= GAP_NS_MIN {
                lost += gap;
                *self.counts.entry(1 << (gap as u64).ilog2()).or_default() += 1;
                self.starts.push(last);
            }
            last = time;
        }
        1.0 - lost / (last - begun)
    }
}

/// What share of its time a loop keeps, and how long the gaps in it are.
pub(super) fn interruptions(plan: &Plan, probes: &mut Probes) {
    let mut gaps = Gaps::default();
    let before = interrupts(plan.cpu);
    let all = now();
    let kept: Vec<f64> = (0..plan.count).map(|_| gaps.watch(20e6, now)).collect();
    let lasted_s = (now() - all) / 1e9;
    probes.add("interruptions.kept", "share", &kept);
    let Gaps { counts, starts } = gaps;
    probes.gaps = counts.into_iter().collect();
    let apart: Vec<f64> = starts.windows(2).map(|pair| (pair[1] - pair[0]) / 1e6).collect();
    let (middle, spread) =
        (dormouse_lab_statistics::median(&apart), dormouse_lab_statistics::median_absolute_deviation(&apart));
    let regular = if apart.len() >= 8 && spread < 0.1 * middle {
        format!(", most of them {middle:.2} ms apart: a tick")
    } else {
        String::new()
    };
    probes.notes.push(format!("interruptions: {:.0} gaps a second{regular}", starts.len() as f64 / lasted_s));
    if let (Some(before), Some(after)) = (before, interrupts(plan.cpu)) {
        let mut rates: Vec<(f64, &String)> = after
            .iter()
            .map(|(name, count)| ((count - before.get(name).unwrap_or(count)) as f64 / lasted_s, name))
            .filter(|(rate, _)| *rate >= 1.0)
            .collect();
        rates.sort_by(|a, b| b.0.total_cmp(&a.0));
        let named: Vec<String> = rates.iter().take(4).map(|(rate, name)| format!("{name} {rate:.0}")).collect();
        let named = if named.is_empty() { "none".into() } else { named.join(", ") };
        probes.notes.push(format!("interruptions: interrupts of processor {} a second: {named}", plan.cpu));
    }
}

/// How many interrupts of each name, hard and soft, a processor has had.
fn interrupts(cpu: u32) -> Option<std::collections::BTreeMap<String, u64>> {
    let mut counts = std::collections::BTreeMap::new();
    for path in ["/proc/interrupts", "/proc/softirqs"] {
        let text = std::fs::read_to_string(path).ok()?;
        let mut lines = text.lines();
        let column = lines.next()?.split_whitespace().position(|name| name == format!("CPU{cpu}"))?;
        for line in lines {
            let mut words = line.split_whitespace();
            let Some(name) = words.next() else { continue };
            let Some(count) = words.clone().nth(column).and_then(|word| word.parse::<u64>().ok()) else { continue };
            // A number says nothing: the device at the end does.
            let name = name.trim_end_matches(':');
            let name = if name.parse::<u32>().is_ok() { words.next_back().unwrap_or(name) } else { name };
            *counts.entry(name.to_string()).or_default() += count;
        }
    }
    Some(counts)
}
