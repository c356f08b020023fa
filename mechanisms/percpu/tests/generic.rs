//! Every structure in threads that are moved between CPUs: by sections, or without any (`--features generic`), as on
//! architectures that have none.
#![cfg(target_os = "linux")]

use std::alloc::Layout;
use std::ptr::NonNull;

use dormouse_percpu::{
    Area, FenceError, Histogram, HistogramLayout, List, ListSlot, Node, PerCpu, PerCpuCounter, PerCpuCounterShared,
    PerCpuCounterSlot, Pool, PoolOptions, Rseq, Words, current_cpu, fence, per_concurrency_id, per_cpu, possible_cpus,
};
use rustix::thread::CpuSet;

const THREADS: u64 = 4;
const ROUNDS: u64 = 2_000;

per_cpu! {
    static WIDE: u64 = 3;
    static NARROW: i32 = 0;
    static COMPARED: u64 = 0;
}
per_concurrency_id! {
    static BY_ID: u32 = 0;
}

/// Runs `work(round)` in several threads, each of which goes to another CPU after every sixteenth round.
fn in_threads(work: impl Fn(u64) + Sync) {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cpus, work) = (&cpus, &work);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    if round % 16 == 0 {
                        let mut one = CpuSet::new();
                        one.set(cpus[(thread + round / 16) as usize % cpus.len()]);
                        rustix::thread::sched_setaffinity(None, &one).unwrap();
                    }
                    work(round);
                }
            });
        }
    });
}

#[test]
fn there_are_no_sections_in_a_generic_build() {
    let rseq = Rseq::detect();
    assert!(rseq.is_none() || !cfg!(feature = "generic"));
    assert!(current_cpu(rseq) < possible_cpus());
    if rseq.is_none() {
        assert_eq!(fence(None), Err(FenceError::Unsupported));
    }
}

#[test]
fn variables_are_exact() {
    let exchanged = std::sync::atomic::AtomicU64::new(0);
    in_threads(|round| {
        WIDE.add(round).unwrap();
        WIDE.sub(round / 2).unwrap();
        NARROW.sub(1).unwrap();
        NARROW.add_return(3).unwrap();
        BY_ID.add(1).unwrap();
        let seen = COMPARED.read().unwrap();
        let is_exchanged = COMPARED.compare_exchange(seen, seen + 1).unwrap() == seen;
        exchanged.fetch_add(u64::from(is_exchanged), std::sync::atomic::Ordering::Relaxed);
    });
    let wide: u64 = (0..ROUNDS).map(|round| round - round / 2).sum();
    assert_eq!(WIDE.sum(), THREADS * wide + 3 * u64::from(possible_cpus()));
    assert_eq!((NARROW.sum(), BY_ID.sum()), ((2 * THREADS * ROUNDS) as i32, (THREADS * ROUNDS) as u32));
    assert_eq!(COMPARED.sum(), exchanged.into_inner());
}

#[test]
fn words_and_lists_are_exact() {
    let pool = Pool::new(&PoolOptions::default()).unwrap();
    let (words, rseq) = (Words::new(&pool), Rseq::detect());
    let object = pool.alloc(Layout::from_size_align(8 + size_of::<ListSlot>(), 8).unwrap()).unwrap();
    // SAFETY: the object lives, and a slot of zeroes is at that offset.
    let list = unsafe { List::of_object(pool.view(), object, 8) };
    let nodes: &'static [Node] = (0..16).map(|_| Node::new()).collect::<Vec<_>>().leak();
    for node in nodes {
        // SAFETY: the node is on no list, and never unmapped.
        unsafe { list.push(rseq, NonNull::from(node)) };
    }
    in_threads(|round| {
        // SAFETY: the object lives, and its first word is written by these operations only.
        unsafe { words.add(object, 0, round) }.unwrap();
        if let Some(node) = list.pop(rseq) {
            // SAFETY: the node was popped just now.
            unsafe { list.push(rseq, node) };
        }
    });
    let copy = |cpu| {
        // SAFETY: the object lives, and the pool has the CPU.
        let copy = unsafe { pool.view().address(object, cpu) };
        // SAFETY: an aligned word of the object, which all threads that wrote it have left.
        unsafe { copy.cast::<u64>().read() }
    };
    assert_eq!((0..possible_cpus()).map(copy).sum::<u64>(), THREADS * ROUNDS * (ROUNDS - 1) / 2);
    let mut left = Vec::new();
    // SAFETY: all users have ended.
    unsafe { list.drain(|node| left.push(node)) };
    left.sort_unstable();
    left.dedup();
    assert_eq!(left.len(), nodes.len());
}

#[test]
fn counters_and_histograms_are_exact() {
    const STRIDE_SHIFT: u32 = 14;
    #[derive(Clone)]
    #[repr(C, align(128))]
    struct Stride([u8; 1 << STRIDE_SHIFT]);
    let memory = vec![Stride([0; 1 << STRIDE_SHIFT]); possible_cpus() as usize].leak();
    // SAFETY: zeroed strides for all CPUs, which are never freed.
    let area = unsafe { Area::new(memory.as_mut_ptr().cast(), STRIDE_SHIFT, possible_cpus()) };
    // SAFETY: zeroes are valid shared words, and end where the slot begins.
    let shared = unsafe { PerCpu::<PerCpuCounterShared>::new(0) };
    // SAFETY: zeroes are a valid slot, and end before the histogram begins.
    let slot = unsafe { PerCpu::<PerCpuCounterSlot>::new(128) };
    let counter = PerCpuCounter::new(area, slot, shared, 32).unwrap();
    // SAFETY: zeroes from there to the end of the strides.
    let histogram = unsafe { Histogram::new(area, 256, HistogramLayout::new(2).unwrap()) }.unwrap();
    let rseq = Rseq::detect();
    in_threads(|round| {
        counter.add(rseq, round.cast_signed());
        histogram.record(rseq, round);
    });
    assert_eq!(counter.sum(), (THREADS * ROUNDS * (ROUNDS - 1) / 2).cast_signed());
    assert!(counter.approximate().abs_diff(counter.sum()) <= counter.error_max(THREADS, 0));
    assert_eq!((histogram.count(), histogram.quantile(0.0), histogram.bucket(3)), (THREADS * ROUNDS, Some(0), THREADS));
}
