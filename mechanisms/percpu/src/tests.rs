//! Delays, migrations, signals, forks and kills against the critical sections; counters prove that aborts happened.
//!
//! The delays and the counts of aborts are shared by the whole process, so these tests run one at a time.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dormouse_abi::txn::{Store, Txn};
use dormouse_testing::{Lack, skip, skip_part};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::thread::CpuSet;

use crate::inject::{ABORTED_BY_KERNEL, DELAYS};
use crate::{Area, Commit, PerCpu, PerCpuCounter, PerCpuCounterShared, PerCpuCounterSlot, Rseq, apply_exclusive};

mod alone;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "generic")))]
mod kernel;
mod operations;
mod scenarios;
mod variables;
mod words;

const STRIDE_SHIFT: u32 = 21;
/// Time after which a test that has not finished is considered to hang.
const PATIENCE: Duration = Duration::from_secs(300);

/// The lock that a test holds while it runs; dropping it sets all delays to zero and restores the thread's affinity.
struct TestLock {
    affinity: CpuSet,
    _lock: MutexGuard<'static, ()>,
}

impl TestLock {
    fn take(delays: [u64; 6]) -> TestLock {
        static LOCK: Mutex<()> = Mutex::new(());
        let _lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        set_delays(delays);
        TestLock { affinity: rustix::thread::sched_getaffinity(None).unwrap(), _lock }
    }
}

impl Drop for TestLock {
    fn drop(&mut self) {
        set_delays([0; 6]);
        _ = rustix::thread::sched_setaffinity(None, &self.affinity);
    }
}

fn set_delays(delays: [u64; 6]) {
    for (delay, value) in DELAYS.iter().zip(delays) {
        delay.store(value, Relaxed);
    }
}

/// Returns rseq; if there is none, skips the calling test.
fn rseq() -> Option<Rseq> {
    let rseq = Rseq::detect();
    if rseq.is_none() {
        skip(no_rseq());
    }
    rseq
}

/// Returns rseq; if there is none, skips the part of the test that needs it.
fn rseq_too() -> Option<Rseq> {
    let rseq = Rseq::detect();
    if rseq.is_none() {
        skip_part("by restartable sequences", no_rseq());
    }
    rseq
}

fn no_rseq() -> Lack {
    Lack::machine("there are no restartable sequences here", "a kernel that has rseq(2), and no emulator")
}

fn cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

fn run_on(thread: Option<Pid>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // The thread may have ended in the meantime: that is not an error.
    _ = rustix::thread::sched_setaffinity(thread, &set);
}

/// Zeroed memory that forked children share, with a stride for each possible CPU.
struct Shared {
    area: Area,
}

impl Shared {
    fn new() -> Shared {
        let count = cpus().last().unwrap() + 1;
        let size_bytes = count << STRIDE_SHIFT;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses, so no existing memory is touched (mmap(2)).
        let base =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), size_bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
        // SAFETY: the mapping has that size, is zero (valid for everything that the tests store in it) and is never
        // unmapped.
        Shared { area: unsafe { Area::new(base.unwrap().cast(), STRIDE_SHIFT, count as u32) } }
    }

    /// Returns a counter at the end of the strides.
    fn counter(&self) -> PerCpuCounter {
        // SAFETY: zeroes are valid shared words, and nothing else is stored there.
        let shared = unsafe { PerCpu::<PerCpuCounterShared>::new((1 << STRIDE_SHIFT) - 256) };
        // SAFETY: zeroes are a valid slot, and nothing else is stored there.
        let slot = unsafe { PerCpu::<PerCpuCounterSlot>::new((1 << STRIDE_SHIFT) - 128) };
        PerCpuCounter::new(self.area, slot, shared, 1_000).unwrap()
    }
}

/// Number of records in a ring: pairs of words that belong together, published through `count`.
const RECORDS_MAX: u64 = 1 << 16;

#[repr(C)]
struct Ring {
    count: AtomicU64,
    records: [[AtomicU64; 2]; RECORDS_MAX as usize],
}

const _: () = assert!(size_of::<Ring>() <= 1 << STRIDE_SHIFT);
const KEY: u64 = 0x9E37_79B9_7F4A_7C15;

fn rings(shared: &Shared) -> Vec<&Ring> {
    // SAFETY: zeroes are a valid ring; these tests store nothing else in the area.
    let ring = unsafe { PerCpu::<Ring>::new(0) };
    (0..shared.area.count()).map(|cpu| shared.area.get(ring, cpu).unwrap()).collect()
}

/// Plans to append `value` as record `k`, unless that record has been appended in the meantime.
fn plan_append(ring: &Ring, k: u64, value: u64) -> Txn {
    let count = ring.count.as_ptr();
    let mut txn = Txn::new(count, k, Store { target: count.cast(), value: k + 1, width: 8 });
    let [first, second] = &ring.records[k as usize];
    txn.store(first.as_ptr().cast(), value, 8);
    // The second word is written in parts, so that every width is used.
    let check = value ^ KEY;
    txn.store(second.as_ptr().cast(), check & 0xFFFF_FFFF, 4);
    txn.store(second.as_ptr().wrapping_byte_add(4).cast(), check >> 32 & 0xFFFF, 2);
    txn.store(second.as_ptr().wrapping_byte_add(6).cast(), check >> 48, 2);
    txn
}

/// Appends on the CPU that the thread is on; returns the CPU and the record's number, or `None` if that ring is full.
fn append(rseq: Rseq, rings: &[&Ring], value: u64) -> Option<(u32, u64)> {
    loop {
        let cpu = rseq.cpu_id_start();
        let ring = rings[cpu as usize];
        let k = ring.count.load(Relaxed);
        if k == RECORDS_MAX {
            return None;
        }
        let txn = plan_append(ring, k, value);
        // SAFETY: guard and targets are in the CPU's ring, aligned, shared and never unmapped; only sections on this
        // CPU write records from `count` on.
        if unsafe { rseq.commit(cpu, &txn) } == Commit::Done {
            return Some((cpu, k));
        }
    }
}

/// Asserts that every published record is whole.
fn assert_whole(rings: &[&Ring]) {
    for ring in rings {
        let count = ring.count.load(Acquire); // (A) pairs with the sections' final stores
        for (k, [value, check]) in ring.records.iter().take(count as usize).enumerate() {
            assert_eq!(value.load(Relaxed) ^ KEY, check.load(Relaxed), "record {k} is torn");
        }
    }
}

/// Sets `stop` when the test ends, also when it fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Moves each thread between the CPUs until `stop` is set.
fn flip(threads: &Mutex<Vec<Pid>>, stop: &AtomicBool) {
    let cpus = cpus();
    for turn in 0.. {
        for (index, &thread) in threads.lock().unwrap().iter().enumerate() {
            run_on(Some(thread), cpus[(turn + index) % cpus.len()]);
        }
        if stop.load(Relaxed) {
            return;
        }
        std::thread::yield_now();
    }
}

fn aborted() -> u64 {
    ABORTED_BY_KERNEL.load(Relaxed)
}

/// Lets other threads run until their count is `least` or more.
#[track_caller]
fn wait_for(what: &str, count: &AtomicU64, least: u64) {
    let begin = Instant::now();
    while count.load(Relaxed) < least {
        assert!(begin.elapsed() < PATIENCE, "only {} {what} of {least}", count.load(Relaxed));
        std::thread::yield_now();
    }
}

#[test]
fn sums_are_exact_under_forced_migration() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0, 300, 300, 20_000, 0, 20_000]);
    let shared = Shared::new();
    // SAFETY: zeroes are a valid word; nothing else is in the area.
    let slot = unsafe { PerCpu::<u64>::new(64) };
    let (threads, stop, total) = (Mutex::new(Vec::new()), AtomicBool::new(false), AtomicU64::new(0));
    let (before, begin) = (aborted(), Instant::now());
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| flip(&threads, &stop));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    rseq.register_thread();
                    threads.lock().unwrap().push(rustix::thread::gettid());
                    let mut done = 0;
                    while aborted() - before < 2_500 {
                        let cpu = rseq.cpu_id_start();
                        let target = shared.area.ptr(slot, cpu).unwrap();
                        // SAFETY: this CPU's word, in memory that is never unmapped; only these sections write it.
                        done += u64::from(unsafe { rseq.add(cpu, target, 1) });
                        assert!(begin.elapsed() < PATIENCE, "only {} aborts", aborted() - before);
                    }
                    total.fetch_add(done, Relaxed);
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    let sum: u64 = (0..shared.area.count())
        .map(|cpu| {
            let target = shared.area.ptr(slot, cpu).unwrap();
            // SAFETY: inside the area, aligned; all writers have been joined.
            unsafe { target.read() }
        })
        .sum();
    assert_eq!(sum, total.load(Relaxed));
    assert!(aborted() - before >= 2_500);
}

#[test]
fn counters_are_exact_by_both_ladders_at_once() {
    let _lock = TestLock::take([0, 100, 100, 500, 0, 500]);
    let rseq = rseq_too();
    let counter = Shared::new().counter();
    let (threads, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| flip(&threads, &stop));
        let workers: Vec<_> = (0..6)
            .map(|index| {
                let threads = &threads;
                scope.spawn(move || {
                    threads.lock().unwrap().push(rustix::thread::gettid());
                    for _ in 0..20_000 {
                        counter.add(rseq.filter(|_| index % 2 == 0), 3);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    assert_eq!(counter.sum(), 6 * 20_000 * 3);
}

#[test]
fn appended_records_match_the_oracle() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0, 50, 100, 300, 300, 500]);
    let shared = Shared::new();
    let rings = rings(&shared);
    let (threads, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let before = aborted();
    let mut committed: Vec<(u32, u64, u64)> = std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| flip(&threads, &stop));
        let workers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let (rings, threads) = (&rings, &threads);
                scope.spawn(move || {
                    threads.lock().unwrap().push(rustix::thread::gettid());
                    let appends = (0..8_000).map(|n| writer << 32 | n);
                    appends.map(|value| append(rseq, rings, value).map(|(cpu, k)| (cpu, k, value)).unwrap()).collect()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| -> Vec<_> { worker.join().unwrap() }).collect()
    });
    committed.sort_unstable();
    assert_whole(&rings);
    for (cpu, ring) in rings.iter().enumerate() {
        let mut oracle: VecDeque<(u64, u64)> =
            committed.iter().filter(|&&(on, ..)| on as usize == cpu).map(|&(_, k, value)| (k, value)).collect();
        assert_eq!(ring.count.load(Relaxed), oracle.len() as u64);
        for (k, [value, _]) in ring.records.iter().enumerate().take(oracle.len()) {
            assert_eq!(oracle.pop_front(), Some((k as u64, value.load(Relaxed))));
        }
    }
    assert!(aborted() > before, "no section was ever aborted");
}

#[test]
fn sections_report_outcomes_at_every_width() {
    let _lock = TestLock::take([0; 6]);
    let (guard, target) = (AtomicU64::new(7), AtomicU64::new(u64::MAX));
    // The store is to the word's first bytes.
    let expected_by_width = if cfg!(target_endian = "little") {
        [(2, 0xFFFF_FFFF_FFFF_7788), (4, 0xFFFF_FFFF_5566_7788), (8, 0x1122_3344_5566_7788)]
    } else {
        [(2, 0x7788_FFFF_FFFF_FFFF), (4, 0x5566_7788_FFFF_FFFF), (8, 0x1122_3344_5566_7788)]
    };
    let commit = |txn: &Txn, by_rseq: Option<Rseq>| match by_rseq {
        // SAFETY: guard and target are the two words above, which only this thread writes.
        None => unsafe { apply_exclusive(txn) },
        Some(rseq) => loop {
            // SAFETY: guard and target are the two words above, which only this thread writes.
            let outcome = unsafe { rseq.commit(rseq.cpu_id_start(), txn) };
            if outcome != Commit::Aborted {
                break outcome;
            }
        },
    };
    for by_rseq in [None, rseq_too()] {
        for (width, expected) in expected_by_width {
            for guarded in [7, 8] {
                target.store(u64::MAX, Relaxed);
                let value = 0x1122_3344_5566_7788;
                let txn = Txn::new(guard.as_ptr(), guarded, Store { target: target.as_ptr().cast(), value, width });
                let outcome = commit(&txn, by_rseq);
                if guarded == 7 {
                    assert_eq!((outcome, target.load(Relaxed)), (Commit::Done, expected));
                } else {
                    assert_eq!((outcome, target.load(Relaxed)), (Commit::GuardChanged, u64::MAX));
                }
            }
        }
    }
    if let Some(rseq) = rseq() {
        let txn = Txn::new(guard.as_ptr(), 7, Store { target: target.as_ptr().cast(), value: 1, width: 8 });
        target.store(0, Relaxed);
        // SAFETY: words of this test; the section ends at the comparison, because no CPU has that number.
        assert_eq!(unsafe { rseq.commit(u32::MAX >> 1, &txn) }, Commit::Aborted);
        assert_eq!(target.load(Relaxed), 0);
        assert_eq!(rseq.cpu_id().map(|cpu| cpus().contains(&(cpu as usize))), Some(true));
    }
}

#[test]
fn every_section_clears_its_descriptor() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0, 0, 500, 0, 0, 500]);
    let word = AtomicU64::new(0);
    let stores =
        |expected| Txn::new(word.as_ptr(), expected, Store { target: word.as_ptr().cast(), value: 0, width: 8 });
    let (threads, stop) = (Mutex::new(vec![rustix::thread::gettid()]), AtomicBool::new(false));
    let mut outcomes = Vec::new();
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| flip(&threads, &stop));
        let (before, begin) = (aborted(), Instant::now());
        while aborted() == before || outcomes.len() < 3 {
            for (cpu, expected) in [(rseq.cpu_id_start(), 0), (rseq.cpu_id_start(), 1), (u32::MAX >> 1, 0)] {
                // SAFETY: guard and target are the word above, which only this thread writes.
                let outcome = unsafe { rseq.commit(cpu, &stores(expected)) };
                assert_eq!(rseq.descriptor(), 0, "{outcome:?}");
                if !outcomes.contains(&outcome) {
                    outcomes.push(outcome);
                }
            }
            assert!(begin.elapsed() < PATIENCE, "only {outcomes:?}");
        }
    });
}

/// State that the handler of `a_signal_handler_may_commit_inside` uses.
struct Handled {
    rseq: Rseq,
    counter: PerCpuCounter,
    shared: Shared,
    additions: AtomicU64,
    appends: AtomicU64,
}

static HANDLED: std::sync::OnceLock<Handled> = std::sync::OnceLock::new();

extern "C" fn handler(_signal: libc::c_int) {
    if let Some(handled) = HANDLED.get() {
        handled.counter.add(Some(handled.rseq), 1);
        handled.additions.fetch_add(1, Relaxed);
        handled.append();
    }
}

impl Handled {
    /// Appends like the function [`append`], but without a `Vec`.
    fn append(&self) {
        // SAFETY: zeroes are a valid ring, which ends before the counter begins; nothing else is stored there.
        let ring = unsafe { PerCpu::<Ring>::new(64) };
        loop {
            let cpu = self.rseq.cpu_id_start();
            let Some(ring) = self.shared.area.get(ring, cpu) else { return };
            let k = ring.count.load(Relaxed);
            if k == RECORDS_MAX {
                return;
            }
            let txn = plan_append(ring, k, k.wrapping_mul(KEY));
            // SAFETY: the ring is this CPU's, the transaction addresses its words, and only sections on this CPU write
            // them.
            if unsafe { self.rseq.commit(cpu, &txn) } == Commit::Done {
                self.appends.fetch_add(1, Relaxed);
                return;
            }
        }
    }
}

#[test]
fn a_signal_handler_may_commit_inside() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0, 200, 200, 2000, 500, 2000]);
    let shared = Shared::new();
    let counter = shared.counter();
    let handled = HANDLED.get_or_init(|| Handled {
        rseq,
        counter,
        shared,
        additions: AtomicU64::new(0),
        appends: AtomicU64::new(0),
    });
    // SAFETY: all zeroes is a valid `sigaction` and a valid `sigevent`, both plain data.
    let (mut action, mut event): (libc::sigaction, libc::sigevent) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGRTMIN();
    event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: the handler calls only async-signal-safe functions: atomics and this crate's sections.
    assert_eq!(unsafe { libc::sigaction(libc::SIGRTMIN(), &action, null_mut()) }, 0);
    let mut timer: libc::timer_t = null_mut();
    // SAFETY: valid pointers to an event and to a place for the timer (timer_create(2)).
    assert_eq!(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) }, 0);
    let every = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    let spec = libc::itimerspec { it_interval: every, it_value: every };
    // SAFETY: the timer was just made.
    assert_eq!(unsafe { libc::timer_settime(timer, 0, &spec, null_mut()) }, 0);

    let (before, begin) = (aborted(), Instant::now());
    let (mut additions, mut appends) = (0, 0);
    while aborted() - before < 2_000 {
        let cpu = rseq.cpu_id_start();
        // SAFETY: zeroes are a valid word, and nothing else is stored there.
        let word = unsafe { PerCpu::<u64>::new(32) };
        let target = handled.shared.area.ptr(word, cpu).unwrap();
        // SAFETY: this CPU's word, which only this thread writes, under rseq.
        additions += u64::from(unsafe { rseq.add(cpu, target, 1) });
        counter.add(Some(rseq), 1);
        appends += 1;
        handled.append();
        assert!(begin.elapsed() < PATIENCE, "only {} aborts", aborted() - before);
    }
    // SAFETY: the timer was made above and is not used any more.
    assert_eq!(unsafe { libc::timer_delete(timer) }, 0);

    assert!(additions > 0);
    assert_eq!(counter.sum().cast_unsigned(), appends + handled.additions.load(Relaxed));
    let mut records = 0;
    for cpu in 0..handled.shared.area.count() {
        // SAFETY: zeroes are a valid ring, and nothing else is stored in that part of the stride.
        let ring = handled.shared.area.get(unsafe { PerCpu::<Ring>::new(64) }, cpu).unwrap();
        assert_whole(&[ring]);
        let count = ring.count.load(Relaxed);
        records += count;
        for (k, [value, _]) in (0..count).zip(&ring.records) {
            assert_eq!(value.load(Relaxed), k.wrapping_mul(KEY));
        }
    }
    assert_eq!(records, handled.appends.load(Relaxed));
}

/// Forks a child that runs `work` and exits without running any other code of the test.
fn fork(work: impl FnOnce()) -> Pid {
    // SAFETY: the child of this threaded process calls only async-signal-safe functions, and then `_exit` (fork(2)).
    match unsafe { libc::fork() } {
        0 => {
            work();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        child => Pid::from_raw(child).expect("fork"),
    }
}

#[test]
fn two_processes_share_an_area() {
    let Some(rseq) = rseq() else { return };
    let _lock = TestLock::take([0, 50, 50, 200, 0, 200]);
    let shared = Shared::new();
    // SAFETY: zeroes are a valid word; nothing else is in the area.
    let word = unsafe { PerCpu::<u64>::new(0) };
    let cpus = cpus();
    let work = |shift: usize| {
        for n in 0..60_000 {
            if n % 64 == 0 {
                run_on(None, cpus[(n / 64 + shift) % cpus.len()]);
            }
            loop {
                let cpu = rseq.cpu_id_start();
                let Some(target) = shared.area.ptr(word, cpu) else { return };
                // SAFETY: this CPU's word, which only these sections of both processes write.
                if unsafe { rseq.add(cpu, target, 1) } {
                    break;
                }
            }
        }
    };
    let child = fork(|| work(1));
    work(0);
    let (_, status) = rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));
    let sum: u64 = (0..shared.area.count())
        .map(|cpu| {
            let target = shared.area.ptr(word, cpu).unwrap();
            // SAFETY: inside the area; both writers have ended.
            unsafe { target.read() }
        })
        .sum();
    assert_eq!(sum, 120_000);
}

#[test]
fn a_killed_process_leaves_whole_records() {
    let Some(rseq) = rseq() else { return };
    // The sections are long, so nearly every kill falls inside one.
    let _lock = TestLock::take([0, 0, 0, 100_000, 100_000, 100_000]);
    let shared = Shared::new();
    let rings = rings(&shared);
    let cpus = cpus();
    let mut value = 0;
    for round in 0..40_u64 {
        // Both processes run on one CPU, so that each append of this one falls inside one of the child's.
        let cpu = cpus[round as usize % cpus.len()];
        let count = &rings[cpu].count;
        run_on(None, cpu);
        let child = fork(|| {
            let mut value = round << 32;
            while append(rseq, &rings, value).is_some() {
                value += 1;
            }
        });
        for turn in 0..4 {
            wait_for("records", count, count.load(Relaxed) + 1 + (round + turn) % 2);
            value += 1;
            append(rseq, &rings, value).unwrap();
        }
        wait_for("records", count, count.load(Relaxed) + 1 + round % 3);
        rustix::process::kill_process(child, Signal::KILL).unwrap();
        let (_, status) = rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
        assert_whole(&rings);
    }
    // Appends succeed regardless of plain stores that killed processes have left.
    set_delays([0; 6]);
    for (cpu, ring) in rings.iter().enumerate().filter(|(cpu, _)| cpus.contains(cpu)) {
        let count = ring.count.load(Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                run_on(None, cpu);
                assert_eq!(append(rseq, &rings, 1), Some((cpu as u32, count)));
            });
        });
    }
    assert_whole(&rings);
}

#[test]
fn words_outside_the_area_have_no_address() {
    let mut memory = [0_u64; 16];
    // SAFETY: two strides of 64 bytes, which outlive the area; the test only computes addresses.
    let area = unsafe { Area::new(memory.as_mut_ptr().cast(), 6, 2) };
    // SAFETY: zeroes are valid words.
    let last = unsafe { PerCpu::<u64>::new(56) };
    // SAFETY: the address is only compared.
    let beyond = unsafe { PerCpu::<u64>::new(57) };
    assert_eq!(area.ptr(last, 1).map(|p| p.addr()), Some(memory.as_ptr().addr() + 120));
    assert_eq!(area.ptr(last, 2), None);
    assert_eq!(area.ptr(beyond, 0), None);
}
