//! A reader of one immediate value, on one CPU, while a thread on another CPU changes the value at a rate.
//!
//! ```text
//!   updater:  k-th deadline = start + k ÷ rate     NEXT = v     UPDATED.set(v)     SETTLED = v
//!   reader:   a batch: floor = SETTLED     4,096 reads by 16 sites     each at least floor, none above NEXT     its time
//! ```
//! The values ascend. A read below the floor has returned an old value after `set` had returned, and one above `NEXT` a
//! value that nobody has set: both are violations.
//!
//! Deadlines are absolute, so a late update does not delay the later ones; an updater that cannot keep the rate makes
//! updates without a pause, and the rate that it has reached is reported.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dormouse_imv::{imv, imv_read};
use dormouse_lab_harness::set_scheduler;
use rustix::thread::{CpuSet, sched_setaffinity};

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

/// Updates the value `rate` times a second until the reader has ended. Returns the number of updates in a second. An
/// `is_early` updater says too early that an update has ended.
fn update(rate: u32, is_early: bool) -> Result<f64, String> {
    let start = Instant::now();
    let mut count = 0;
    while rate > 0 && !IS_OVER.load(Ordering::Relaxed) {
        let deadline = start + Duration::from_secs(1) * count / rate;
        let left = deadline.saturating_duration_since(Instant::now());
        if left > SPIN {
            // Wakes up now and then to see whether the reader has ended.
            std::thread::sleep((left - SPIN).min(Duration::from_millis(10)));
            continue;
        }
        while Instant::now() < deadline {
            std::hint::spin_loop();
        }
        count += 1;
        NEXT.store(count, Ordering::Relaxed);
        if is_early {
            SETTLED.store(count, Ordering::Relaxed);
        }
        UPDATED.set(count).map_err(|error| error.to_string())?;
        // (S) pairs with the reader's load: a read after it must not return an older value.
        SETTLED.store(count, Ordering::Release);
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// Reads for a time. Returns the time of each batch in ns, ascending, and the number of batches with a violation.
fn read(lasting: Duration) -> (Vec<u32>, u64) {
    // Written, so that its pages cause no faults between the batches.
    let mut times = vec![1; BATCHES_MAX];
    let (mut count, mut violations) = (0, 0);
    let start = Instant::now();
    let mut begun = start;
    while count < times.len() && begun - start < lasting {
        // (S) pairs with the updater's store.
        let floor = SETTLED.load(Ordering::Acquire);
        let [least, most] = batch();
        violations += u64::from(least < floor || most > NEXT.load(Ordering::Relaxed));
        let ended = Instant::now();
        times[count] = (ended - begun).as_nanos().try_into().unwrap_or(u32::MAX);
        (begun, count) = (ended, count + 1);
    }
    times.truncate(count);
    times.sort_unstable();
    (times, violations)
}

/// Runs the reader on the first CPU and the updater on the second, as `CPU CPU RATE MILLISECONDS POLICY` say. Returns the
/// figures as JSON. With `early` behind them, the updater makes the mistake that the reader has to find.
///
/// # Errors
/// If an argument is wrong, a CPU or the policy cannot be had, or an update fails.
pub fn run(arguments: &[String]) -> Result<String, String> {
    let [reader, updater, rate, milliseconds, policy, mistake @ ..] = arguments else {
        return Err("arguments: updates CPU CPU RATE MILLISECONDS other|fifo [early]".into());
    };
    let is_early = mistake.iter().any(|word| word == "early");
    let number = |text: &String| text.parse::<u32>().map_err(|error| format!("{text}: {error}"));
    let (reader, updater, rate) = (number(reader)? as usize, number(updater)? as usize, number(rate)?);
    let (lasting, is_fifo) = (Duration::from_millis(number(milliseconds)?.into()), policy == "fifo");
    let (read, updated) = std::thread::scope(|scope| {
        let updating = scope.spawn(move || take_seat(updater, is_fifo).and_then(|()| update(rate, is_early)));
        let seated = take_seat(reader, is_fifo);
        let read = seated.map(|()| read(lasting));
        IS_OVER.store(true, Ordering::Relaxed);
        (read, updating.join().map_err(|_| "the updater panicked".to_string()).and_then(|rate| rate))
    });
    let ((times, violations), reached) = (read?, updated?);
    if times.len() < 1_000 {
        return Err(format!("{} batches are too few", times.len()));
    }
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let total_ns: f64 = times.iter().map(|ns| f64::from(*ns)).sum();
    let figures = serde_json::json!({
        "reads": READS * times.len() as f64 / total_ns,
        "p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999), "max": at(1.0),
        "rate": reached, "updates": NEXT.load(Ordering::Relaxed), "violations": violations,
    });
    Ok(figures.to_string())
}
