//! Counters and histograms over areas that threads and processes share: sums compared with what was added, quantiles
//! with sorted values; additions under kill -9, under migration, by rseq and by atomics.
#![cfg(target_os = "linux")]

use std::ops::RangeInclusive;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed, Ordering::SeqCst, fence};

use dormouse_percpu::{
    Area, Histogram, HistogramLayout, PerCpu, PerCpuCounter, PerCpuCounterShared, PerCpuCounterSlot, Rseq,
};
use dormouse_testing::{Lack, skip_part};
use proptest::prelude::*;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::thread::CpuSet;

fn cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

fn run_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Maps zeroed memory with a stride for each possible CPU, shared with forked children.
fn area(stride_shift: u32) -> Area {
    let count = cpus().last().unwrap() + 1;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses, so no existing memory is touched (mmap(2)).
    let base = unsafe { rustix::mm::mmap_anonymous(null_mut(), count << stride_shift, protection, flags) };
    // SAFETY: the mapping has that size, is zero, and is never unmapped.
    unsafe { Area::new(base.unwrap().cast(), stride_shift, count as u32) }
}

const SLOT: usize = 128;
const DONE: usize = 192;

fn counter(area: Area, threshold: u64) -> Option<PerCpuCounter> {
    // SAFETY: zeroes are a valid slot, and nothing else is stored there.
    let slot = unsafe { PerCpu::<PerCpuCounterSlot>::new(SLOT) };
    // SAFETY: zeroes are valid shared words, and end where the slot begins.
    let shared = unsafe { PerCpu::<PerCpuCounterShared>::new(0) };
    PerCpuCounter::new(area, slot, shared, threshold)
}

/// Returns a word of CPU 0's stride, after the counter.
fn word(area: &Area, offset: usize) -> &AtomicI64 {
    // SAFETY: zeroes are a valid word, and the tests store nothing else there.
    area.get(unsafe { PerCpu::<AtomicI64>::new(offset) }, 0).unwrap()
}

/// Returns the ways of adding that this machine has: by atomics, and by rseq if there is any.
fn ladder() -> Vec<Option<Rseq>> {
    let rseq = Rseq::detect();
    if rseq.is_none() {
        let remedy = "a kernel that has rseq(2), and no emulator";
        skip_part("by restartable sequences", Lack::machine("there are none here", remedy));
    }
    [Some(None), rseq.map(Some)].into_iter().flatten().collect()
}

fn fork(work: impl FnOnce()) -> Pid {
    // SAFETY: the child calls only async-signal-safe functions, and then `_exit` (fork(2)).
    match unsafe { libc::fork() } {
        0 => {
            work();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        child => Pid::from_raw(child).expect("fork"),
    }
}

fn wait(child: Pid) {
    rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
}

/// A small random generator, so that threads and children need no library: xorshift64*.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

#[test]
fn impossible_counters_are_refused() {
    assert!(counter(area(8), 1).is_some() && counter(area(8), i64::MAX as u64).is_some());
    for threshold in [0, 1 << 63, u64::MAX] {
        assert!(counter(area(8), threshold).is_none(), "{threshold}");
    }
    // Strides that end before the slot does.
    assert!(counter(area(7), 8).is_none());
    // SAFETY: the area has no stride, so no memory is accessed through it.
    let empty = unsafe { Area::new(null_mut(), 8, 0) };
    assert!(counter(empty, 8).is_none());
}

#[test]
fn the_error_is_below_one_threshold_for_each_cpu() {
    for rseq in ladder() {
        for threshold in [1, 2, 3, 10, 1000] {
            let area = area(8);
            let counter = counter(area, threshold).unwrap();
            let mut numbers = Numbers(threshold);
            let mut exact = 0_i64;
            let error_max = i64::from(area.count()) * (threshold as i64 - 1);
            for _ in 0..20_000 {
                let n = (numbers.next() % (3 * threshold)) as i64 - threshold as i64;
                counter.add(rseq, n);
                exact += n;
                assert_eq!(counter.sum(), exact);
                // Words of the other way count only if both ways are in use.
                let error = (counter.approximate() - exact).abs();
                assert!(error <= 2 * error_max, "off by {error}");
                assert!(error.unsigned_abs() <= counter.error_max(1, 0));
            }
        }
    }
}

#[test]
fn a_counter_wraps() {
    for rseq in ladder() {
        let counter = counter(area(8), 100).unwrap();
        counter.add(rseq, i64::MAX);
        counter.add(rseq, 1);
        assert_eq!((counter.sum(), counter.sum().wrapping_sub(counter.approximate()).abs() <= 99), (i64::MIN, true));
        counter.add(rseq, i64::MIN);
        counter.add(rseq, -1);
        assert_eq!(counter.sum(), -1);
    }
}

/// Sums of the additions that threads have recorded: upwards and downwards.
#[derive(Default)]
struct RecordedSums([AtomicI64; 2]);

impl RecordedSums {
    fn add(&self, n: i64) {
        self.0[usize::from(n < 0)].fetch_add(n, SeqCst);
        // Orders the records and the additions.
        fence(SeqCst);
    }

    fn all(&self) -> [i64; 2] {
        self.0.each_ref().map(|noted| noted.load(SeqCst))
    }
}

/// Returns the result of `read`, and the sums that a counter may have had meanwhile: every addition that was done
/// before is included, none that was not begun afterwards, and each other one may be.
fn observe<R>(begun: &RecordedSums, done: &RecordedSums, read: impl FnOnce() -> R) -> (R, RangeInclusive<i64>) {
    let [up_done, down_done] = done.all();
    let seen = read();
    fence(SeqCst);
    let [up_begun, down_begun] = begun.all();
    (seen, up_done + down_begun..=up_begun + down_done)
}

#[test]
fn sums_are_exact_and_the_bound_holds_while_threads_move() {
    let ladder = ladder();
    let area = area(8);
    const THREADS: u64 = 4;
    const ADDITIONS: u64 = 100_000;
    let counter = counter(area, 16).unwrap();
    let (cpus, is_over) = (cpus(), AtomicBool::new(false));
    let (begun, done) = (RecordedSums::default(), RecordedSums::default());
    let exact: i64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|index| {
                let (rseq, cpus, begun, done) = (ladder[index as usize % ladder.len()], &cpus, &begun, &done);
                scope.spawn(move || {
                    let (mut numbers, mut exact) = (Numbers(index + 1), 0);
                    for turn in 0..ADDITIONS {
                        if turn % 512 == 0 {
                            run_on(cpus[(turn / 512 + index) as usize % cpus.len()]);
                        }
                        // Mostly upwards, so that the approximation has to follow.
                        let n = (numbers.next() % 15) as i64 - 4;
                        begun.add(n);
                        counter.add(rseq, n);
                        done.add(n);
                        exact += n;
                    }
                    exact
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let error_max = counter.error_max(THREADS, 0) as i64;
            loop {
                let (sum, sums) = observe(&begun, &done, || counter.sum());
                assert!(sums.contains(&sum), "{sum} is not in {sums:?}");
                let (about, sums) = observe(&begun, &done, || counter.approximate());
                let bounds = sums.start() - error_max..=sums.end() + error_max;
                assert!(bounds.contains(&about), "{about} is not in {bounds:?}");
                if is_over.load(Relaxed) {
                    break;
                }
            }
        });
        let exact = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        is_over.store(true, Relaxed);
        reader.join().unwrap();
        exact
    });
    assert_eq!(counter.sum(), exact);
    assert!((counter.approximate() - exact).unsigned_abs() <= counter.error_max(THREADS, 0));
}

#[test]
fn killed_processes_leave_the_sum_exact() {
    const STEP: i64 = 3;
    let ladder = ladder();
    let area = area(8);
    let counter = counter(area, 8).unwrap();
    let done = word(&area, DONE);
    let cpus = cpus();
    for round in 0..60_u64 {
        let rseq = ladder[round as usize % ladder.len()];
        let before = done.load(Relaxed);
        let child = fork(|| {
            run_on(cpus[round as usize % cpus.len()]);
            loop {
                counter.add(rseq, STEP);
                done.fetch_add(STEP, Relaxed);
            }
        });
        // The child is killed at a random moment after it has begun.
        while done.load(Relaxed) < before + 100 * STEP {
            counter.add(rseq, STEP);
            done.fetch_add(STEP, Relaxed);
            std::thread::yield_now();
        }
        rustix::process::kill_process(child, Signal::KILL).unwrap();
        wait(child);
        let killed = round + 1;
        // A child may have been killed between the addition and its record.
        let unnoted = counter.sum() - done.load(Relaxed);
        assert!((0..=killed as i64 * STEP).contains(&unnoted) && unnoted % STEP == 0, "{unnoted} after {killed} kills");
        let error = (counter.approximate() - counter.sum()).unsigned_abs();
        assert!(error <= counter.error_max(2, killed), "off by {error}");
    }
}

#[test]
fn a_forked_child_adds_to_the_same_counter() {
    for rseq in ladder() {
        let counter = counter(area(8), 32).unwrap();
        let add = || (0..50_000).for_each(|n| counter.add(rseq, n % 7));
        let child = fork(add);
        add();
        wait(child);
        assert_eq!(counter.sum(), 2 * (0..50_000).map(|n| n % 7).sum::<i64>());
        assert!((counter.approximate() - counter.sum()).unsigned_abs() <= counter.error_max(2, 0));
    }
}

fn histogram(bits: u32) -> Histogram {
    let layout = HistogramLayout::new(bits).unwrap();
    let area = area((layout.size_bytes() + 64).next_power_of_two().ilog2());
    // SAFETY: the memory is new, so zero, and nothing else uses it.
    unsafe { Histogram::new(area, 64, layout) }.unwrap()
}

#[test]
fn buckets_tile_the_values() {
    for bits in 0..=10 {
        let layout = HistogramLayout::new(bits).unwrap();
        let mut next = 0_u64;
        for index in 0..layout.bucket_count() {
            let (low, high) = layout.bounds(index);
            assert_eq!(low, next, "bucket {index} of {bits}");
            for value in [low, low + (high - low) / 2, high] {
                assert_eq!(layout.index(value), index, "{value} of {bits}");
            }
            assert!(
                (high - low) as f64 <= low as f64 * 0.5_f64.powi(bits as i32),
                "bucket {index} of {bits} is too wide"
            );
            next = high.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last bucket ends with u64::MAX");
        assert_eq!(layout.bounds(usize::MAX).1, u64::MAX);
    }
    assert!(HistogramLayout::new(HistogramLayout::SUB_BUCKET_BITS_MAX).is_some());
    assert!(HistogramLayout::new(HistogramLayout::SUB_BUCKET_BITS_MAX + 1).is_none());
}

#[test]
fn an_unsuitable_area_is_refused() {
    let layout = HistogramLayout::new(5).unwrap();
    assert_eq!((layout.bucket_count(), layout.size_bytes()), (1920, 30_720));
    // SAFETY: the memory is new, so zero, and nothing else uses it.
    let new = |stride_shift, offset| unsafe { Histogram::new(area(stride_shift), offset, layout) };
    assert!(new(15, 0).is_some());
    assert!(new(14, 8).is_none() && new(15, 1 << 15).is_none() && new(15, usize::MAX).is_none(), "outside");
    assert!(new(16, 4).is_none(), "not aligned");
    // SAFETY: the area has no stride, so no memory is accessed through it.
    let empty = unsafe { Area::new(null_mut(), 20, 0) };
    // SAFETY: refused, because there is no stride, so no memory is accessed through it.
    assert!(unsafe { Histogram::new(empty, 0, layout) }.is_none());
}

/// Compares everything that is read from a histogram with the sorted values that were recorded.
fn check(histogram: &Histogram, mut values: Vec<u64>) {
    let layout = histogram.layout();
    values.sort_unstable();
    assert_eq!(histogram.count(), values.len() as u64);
    let border = |value: Option<&u64>| value.map(|&value| layout.bounds(layout.index(value)));
    // Fractions have integer parts, so that the rank is known without floating point.
    for (part, whole) in
        [(0, 1), (1, 1000), (7, 100), (1, 4), (1, 3), (1, 2), (3, 4), (9, 10), (99, 100), (999, 1000), (1, 1)]
    {
        let q = part as f64 / whole as f64;
        let rank = (values.len() * part).div_ceil(whole).max(1);
        let expected = border(values.get(rank - 1)).map(|(_, high)| high);
        assert_eq!(histogram.quantile(q), expected, "{part}/{whole} of {}", values.len());
    }
    for q in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert_eq!(histogram.quantile(q), None);
    }
    let mut rest = values.as_slice();
    for index in 0..layout.bucket_count() {
        let (low, high) = layout.bounds(index);
        let (here, beyond) = rest.split_at(histogram.bucket(index) as usize);
        assert!(here.iter().all(|value| (low..=high).contains(value)), "{low} to {high}: {here:?}");
        rest = beyond;
    }
    assert_eq!(rest, [0; 0]);
}

#[test]
fn bucket_borders_are_counted_in_the_right_bucket() {
    let powers = (0..64).map(|shift| 1_u64 << shift);
    let values: Vec<u64> =
        powers.flat_map(|power| [power - 1, power, power + 1]).chain([0, u64::MAX, u64::MAX - 1, u64::MAX]).collect();
    for rseq in ladder() {
        for bits in [0, 1, 5, 8] {
            let histogram = histogram(bits);
            check(&histogram, vec![]);
            values.iter().for_each(|&value| histogram.record(rseq, value));
            check(&histogram, values.clone());
        }
    }
}

#[test]
fn a_bucket_beyond_the_last_is_empty() {
    assert_eq!(histogram(2).bucket(usize::MAX), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn quantiles_are_those_of_the_sorted_values(
        values in proptest::collection::vec((any::<u64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift), 0..400),
        bits in 0_u32..9,
    ) {
        for rseq in ladder() {
            let histogram = histogram(bits);
            values.iter().for_each(|&value| histogram.record(rseq, value));
            check(&histogram, values.clone());
        }
    }
}

#[test]
fn threads_and_processes_record_into_one_histogram() {
    const WRITERS: u64 = 4;
    const RECORDS: usize = 30_000;
    let ladder = ladder();
    let histogram = histogram(6);
    let (ladder, cpus) = (&ladder, cpus());
    let values = |writer: u64| {
        let mut numbers = Numbers(writer + 1);
        (0..RECORDS).map(move |_| {
            let shift = numbers.next() % 64;
            numbers.next() >> shift
        })
    };
    let record = |writer: u64| {
        for (turn, value) in values(writer).enumerate() {
            if turn % 512 == 0 {
                run_on(cpus[(turn / 512 + writer as usize) % cpus.len()]);
            }
            histogram.record(ladder[writer as usize % ladder.len()], value);
        }
    };
    let children = [0, 1].map(|writer| fork(|| record(writer)));
    std::thread::scope(|scope| (2..WRITERS).for_each(|writer| drop(scope.spawn(move || record(writer)))));
    children.into_iter().for_each(wait);
    check(&histogram, (0..WRITERS).flat_map(values).collect());
}
