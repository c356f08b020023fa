//! A reader of one immediate value, on one CPU, while a thread on another CPU changes the value at a rate.
//!
//! ```text
//!   stretches: 0: nothing is updated     1: updates     2: nothing     3: updates     …     all of one length
//!   updater:   a deadline, in stretch 1:  NEXT = v     UPDATED.set(v)     SETTLED = v     in stretch 0: waits for it, no more
//!   reader:    a batch: floor = SETTLED     4,096 reads by 16 sites     each at least floor, none above NEXT     its time
//! ```
//! The values ascend. A read below the floor has returned an old value after `set` had returned, and one above `NEXT` a
//! value that nobody has set: both are violations.
//!
//! Stretches of both kinds are a few milliseconds apart, in one process, and the updater sleeps and spins alike in both, so a slow
//! phase of the machine, the layout of the process and a sibling CPU are the same for both. A pair of stretches in which the
//! scheduler has taken the reader's CPU away (involuntary context switches, getrusage(2)) does not count: no update does that.
//!
//! Deadlines are absolute, so a late update does not delay the later ones; an updater that cannot keep the rate makes
//! updates without a pause, and the rate that it has reached is reported.
//!
//! A value that is updated often becomes a variable, unless each update is to change code. In place of an update the
//! updater can call membarrier(2), which interrupts the reader once and does nothing else.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dormouse_imv::{imv, imv_read, set_patch_rate};
use dormouse_lab_harness::{interrupts, set_scheduler};
use rustix::thread::{CpuSet, MembarrierCommand, membarrier, sched_setaffinity};

imv! {
    static UPDATED: u32 = 0;
}

/// Value whose update has been begun last.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Value whose update has ended last.
static SETTLED: AtomicU32 = AtomicU32::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Number of times that a batch reads each of its 16 sites.
const PASSES: u32 = 256;
/// Number of reads of a batch.
const READS: f64 = 16.0 * PASSES as f64;
/// Maximum number of batches whose times are kept.
const BATCHES_MAX: usize = 4_000_000;
/// Minimum number of batches in stretches of each kind.
const BATCHES_MIN: usize = 1_000;
/// Maximum length of a turn with too few batches, on a busy machine.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Length of a stretch.
const STRETCH_NS: u64 = 7_000_000;
/// Time at the beginning of a stretch that does not count: an update of the stretch before may have been late.
const GUARD_NS: u64 = 500_000;
/// Time before a deadline that the updater does not sleep, because a sleep may end late.
const SPIN: Duration = Duration::from_micros(200);

/// Returns the least and the greatest value of 16 sites, each read [`PASSES`] times.
#[inline(never)]
fn batch() -> [u32; 2] {
    let [mut least, mut most] = [u32::MAX, 0];
    macro_rules! each {
        ($_:ident) => {
            let value = imv_read!(UPDATED);
            (least, most) = (least.min(value), most.max(value));
        };
    }
    for _ in 0..PASSES {
        each_of_16!(each);
    }
    [least, most]
}

/// Moves the calling thread to a CPU, and gives it a policy.
fn take_seat(cpu: usize, is_fifo: bool) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| format!("CPU {cpu}: {error}"))?;
    if is_fifo {
        set_scheduler(libc::SCHED_FIFO, 1).map_err(|error| format!("SCHED_FIFO: {error}"))?;
    }
    Ok(())
}

/// An action of the updater at a deadline.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Update,
    /// An update that changes code, however many there are.
    Patch,
    /// An update that is said to have ended too early.
    EarlyUpdate,
    Barrier,
}

impl Act {
    /// Acts for the `count`-th time.
    fn act(self, count: u32) -> Result<(), String> {
        if self == Act::Barrier {
            return membarrier(MembarrierCommand::PrivateExpeditedSyncCore).map_err(|error| error.to_string());
        }
        NEXT.store(count, Ordering::Relaxed);
        if self == Act::EarlyUpdate {
            SETTLED.store(count, Ordering::Relaxed);
        }
        UPDATED.set(count).map_err(|error| error.to_string())?;
        // (S) pairs with the reader's load: a read after it must not return an older value.
        SETTLED.store(count, Ordering::Release);
        Ok(())
    }
}

/// Waits for a time. Returns whether the reader goes on.
fn wait(start: Instant, ns: u64) -> bool {
    let deadline = start + Duration::from_nanos(ns);
    while !IS_OVER.load(Ordering::Relaxed) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if left > SPIN {
            // Wakes up now and then to see whether the reader has ended.
            std::thread::sleep((left - SPIN).min(Duration::from_millis(10)));
        } else {
            std::hint::spin_loop();
        }
    }
    false
}

/// Acts `rate` times in each second of stretches with updates until the reader has ended. Returns how often it has acted.
fn update(start: Instant, rate: u32, act: Act) -> Result<u32, String> {
    let (mut count, mut first) = (0, 0);
    // Deadlines are in the middle of equal parts of the time that stretches with updates have.
    let deadline = |index: u64| (2 * index + 1) * 500_000_000 / u64::from(rate.max(1));
    for pair in 0.. {
        let end = (pair + 1) * STRETCH_NS;
        let after = (first..).find(|index| rate == 0 || deadline(*index) >= end).unwrap_or(first);
        for stretch in [2 * pair, 2 * pair + 1] {
            for index in first..after {
                if !wait(start, stretch * STRETCH_NS + deadline(index) % STRETCH_NS) {
                    return Ok(count);
                }
                if start.elapsed().as_nanos() as u64 >= (stretch + 1) * STRETCH_NS {
                    break;
                }
                if stretch % 2 == 1 {
                    count += 1;
                    act.act(count)?;
                }
            }
        }
        first = after;
        if !wait(start, 2 * end) {
            return Ok(count);
        }
    }
    Ok(count)
}

/// A stretch, as far as it counts.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    batches: u64,
    ns: u64,
    is_preempted: bool,
}

/// The measurements of the reader.
#[derive(Default)]
struct Found {
    stretches: Vec<Stretch>,
    /// Time of each batch in stretches with updates, in ns.
    times: Vec<u32>,
    /// Number of batches in the others.
    idle_count: usize,
    violations: u64,
    /// Time from the first stretch to the last.
    lasting: Duration,
}

/// Returns how often the scheduler has taken the CPU from this thread.
fn preemptions() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the answer; with these arguments the call does not fail (getrusage(2)).
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid `rusage`, and so is the value that the kernel has written over them.
    unsafe { usage.assume_init() }.ru_nivcsw
}

/// Reads for a time; for longer, up to a limit, if the machine has left too little of it.
fn read(start: Instant, lasting: Duration) -> Found {
    // Written, so that its pages cause no faults between the batches.
    let mut times = vec![1; BATCHES_MAX];
    let mut found = Found { stretches: Vec::with_capacity(1 << 12), ..Found::default() };
    let (mut counts, mut stretch, mut number, mut switches) = ([0; 2], Stretch::default(), 0, preemptions());
    let at = || start.elapsed().as_nanos() as u64;
    while Instant::now() < start {
        std::hint::spin_loop();
    }
    let mut begun = at();
    let is_enough = |counts: [usize; 2], at| {
        let has_few = counts.into_iter().any(|count| count < BATCHES_MIN);
        at >= if has_few { PATIENCE_NS } else { lasting.as_nanos() as u64 }
    };
    while counts[1] < times.len() && !is_enough(counts, begun) {
        // (S) pairs with the updater's store.
        let floor = SETTLED.load(Ordering::Acquire);
        let [least, most] = batch();
        found.violations += u64::from(least < floor || most > NEXT.load(Ordering::Relaxed));
        let ended = at();
        if begun / STRETCH_NS == ended / STRETCH_NS {
            if begun % STRETCH_NS >= GUARD_NS {
                stretch.batches += 1;
                stretch.ns += ended - begun;
                let of = (number % 2) as usize;
                if of == 1 {
                    times[counts[1]] = (ended - begun).try_into().unwrap_or(u32::MAX);
                }
                counts[of] += 1;
            }
            begun = ended;
            continue;
        }
        let now = preemptions();
        found.stretches.push(Stretch { is_preempted: now != switches, ..stretch });
        (stretch, switches) = (Stretch::default(), now);
        number = ended / STRETCH_NS;
        // A stretch in which the reader has not run at all.
        found.stretches.resize(number as usize, Stretch { is_preempted: true, ..Stretch::default() });
        begun = at();
    }
    found.stretches.push(Stretch { is_preempted: true, ..stretch });
    times.truncate(counts[1]);
    times.sort_unstable();
    Found { times, idle_count: counts[0], lasting: start.elapsed(), ..found }
}

/// Returns the figures of stretches: reads in a ns without updates and with them, the latter of the former, and the numbers of
/// pairs that count and of all. Without a pair that counts there is no share, and the reads are those of all stretches.
fn figures(stretches: &[Stretch]) -> ([f64; 2], Option<f64>, [usize; 2]) {
    let (pairs, _) = stretches.as_chunks::<2>();
    let whole = pairs.iter().filter(|pair| pair.iter().all(|stretch| !stretch.is_preempted));
    let kept: Vec<Stretch> = whole.flatten().copied().collect();
    let reads = |of: usize, stretches: &[Stretch]| {
        let of_kind = || stretches.iter().skip(of).step_by(2);
        let (batches, ns) = of_kind().fold((0, 0), |sum, stretch| (sum.0 + stretch.batches, sum.1 + stretch.ns));
        READS * batches as f64 / ns as f64
    };
    let counts = [kept.len() / 2, pairs.len()];
    if kept.is_empty() {
        return ([0, 1].map(|of| reads(of, stretches)), None, counts);
    }
    let [without, with] = [0, 1].map(|of| reads(of, &kept));
    ([without, with], Some(with / without), counts)
}

/// Runs the reader on the first CPU and the updater on the second, as `CPU CPU RATE MILLISECONDS POLICY` say. Returns the
/// figures as JSON. With `patch` behind them each update changes code; with `barrier` there are barriers in place of
/// updates; with `early` the updater makes the mistake that the reader has to find.
///
/// # Errors
/// If an argument is wrong, a CPU or the policy cannot be had, or an update fails.
pub fn run(arguments: &[String]) -> Result<String, String> {
    let [reader, updater, rate, milliseconds, policy, act @ ..] = arguments else {
        return Err("arguments: updates CPU CPU RATE MILLISECONDS other|fifo [patch|barrier|early]".into());
    };
    let act = match act.first().map(String::as_str) {
        Some("early") => Act::EarlyUpdate,
        Some("barrier") => Act::Barrier,
        Some("patch") => Act::Patch,
        _ => Act::Update,
    };
    let number = |text: &String| text.parse::<u32>().map_err(|error| format!("{text}: {error}"));
    let (reader, updater, rate) = (number(reader)? as usize, number(updater)? as usize, number(rate)?);
    let (lasting, is_fifo) = (Duration::from_millis(number(milliseconds)?.into()), policy == "fifo");
    if act == Act::Patch {
        set_patch_rate(u32::MAX).map_err(|error| error.to_string())?;
    }
    // An update also registers the process for barriers.
    UPDATED.set(0).map_err(|error| error.to_string())?;
    // All requests of other CPUs, also those to forget translations, which the kernel counts as `TLB` besides.
    let interrupts = || interrupts::of_cpu(reader, |name| name == "CAL");
    let before = interrupts();
    let start = Instant::now() + Duration::from_millis(10);
    let (read, acted) = std::thread::scope(|scope| {
        let updating = scope.spawn(move || take_seat(updater, is_fifo).and_then(|()| update(start, rate, act)));
        let seated = take_seat(reader, is_fifo);
        let read = seated.map(|()| read(start, lasting));
        IS_OVER.store(true, Ordering::Relaxed);
        (read, updating.join().map_err(|_| "the updater panicked".to_string()).and_then(|count| count))
    });
    let (Found { stretches, times, idle_count, violations, lasting }, acted) = (read?, f64::from(acted?));
    let fewest = times.len().min(idle_count);
    if fewest < BATCHES_MIN {
        return Err(format!("{fewest} batches are too few"));
    }
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let ([idle, reads], share, [kept, pairs]) = figures(&stretches);
    let reached = acted / lasting.as_secs_f64() * 2.0;
    let mut figures = serde_json::json!({
        "reads": reads, "idle": idle, "p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999), "max": at(1.0),
        "rate": reached, "updates": acted, "violations": violations, "kept": kept, "pairs": pairs,
    });
    if let Some(share) = share {
        figures["share"] = share.into();
        if acted > 0.0 {
            figures["lost"] = ((1.0 - share) * 1e9 / reached).into();
        }
    }
    if let Some((before, after)) = before.zip(interrupts()).filter(|_| acted > 0.0) {
        figures["interrupts"] = ((after - before) as f64 / acted).into();
    }
    Ok(figures.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_in_which_the_reader_was_preempted_does_not_count() {
        let stretch = |batches, is_preempted| Stretch { batches, ns: 4_096_000, is_preempted };
        let stretches =
            [stretch(1_000, false), stretch(900, false), stretch(500, false), stretch(1, true), stretch(7, false)];
        assert_eq!(figures(&stretches), ([1.0, 0.9], Some(0.9), [1, 2]));
        assert_eq!(figures(&stretches[2..4]), ([0.5, 0.001], None, [0, 1]));
    }
}
