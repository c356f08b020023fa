//! The core's clock, and the caches.

use std::hint::black_box;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::arch::{self, LINKS};
use super::memory::{Buffer, sum};
use super::{Plan, Probes};

/// What a chain is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chain {
    /// One cycle each.
    Additions,
    /// More than one: a slower core, as far as the measurement can tell.
    #[cfg_attr(not(test), expect(dead_code, reason = "planted by tests"))]
    Products,
}

/// Nanoseconds of one link: a sample is the quickest of some short runs, so that interruptions do not count as a slow clock.
pub(super) fn core_clock(plan: &Plan, chain: Chain, probes: &mut Probes) {
    const RUNS: u64 = 100;
    let link = match chain {
        Chain::Additions => arch::adds,
        Chain::Products => arch::products,
    };
    let samples: Vec<f64> = (0..plan.count)
        .map(|_| {
            let tries = (0..8).map(|_| {
                let begun = Instant::now();
                let mut x = 1;
                for number in 0..RUNS {
                    x = link(black_box(x), number | 1);
                }
                black_box(x);
                begun.elapsed().as_nanos() as f64 / (RUNS as usize * LINKS) as f64
            });
            tries.fold(f64::INFINITY, f64::min)
        })
        .collect();
    probes.add("core clock.addition", "ns", &samples);
}

/// Bytes of a cache line, for all that matters here.
const LINE: usize = 64;

/// Makes one circle through all lines of the buffer, in an order drawn at random (Sattolo 1986).
fn link_lines(buffer: &mut Buffer) {
    let words = buffer.words_mut();
    let stride = LINE / 8;
    let count = words.len() / stride;
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut random = SmallRng::seed_from_u64(1);
    for last in (1..count).rev() {
        order.swap(last, random.random_range(0..last));
    }
    for (at, next) in order.iter().enumerate() {
        words[at * stride] = u64::from(*next);
    }
}

/// Goes so many lines on from one. Returns where it is then.
fn walk(words: &[u64], mut at: u64, steps: usize) -> u64 {
    for _ in 0..steps {
        at = words[at as usize * (LINE / 8)];
    }
    at
}

/// Steps of a sample, and lines before it that are not timed.
fn steps(bytes: usize) -> usize {
    (2 * bytes / LINE).clamp(4096, 32 << 10)
}

/// What a step of a walk at random takes, and how many bytes are read in a nanosecond, in buffers of half of each level and beyond the
/// last. `between` comes before each sample.
pub(super) fn caches(plan: &Plan, between: &mut dyn FnMut(), probes: &mut Probes) {
    let half = |level: usize| plan.caches[level].map(|bytes| bytes as usize / 2);
    let levels = [("L1", half(0)), ("L2", half(1)), ("L3", half(2)), ("memory", Some(plan.memory_bytes()))];
    for (level, bytes) in levels {
        let Some(bytes) = bytes else {
            probes.notes.push(format!("caches: the machine does not tell the size of its {level}"));
            continue;
        };
        let Some(mut buffer) = Buffer::new(bytes, true) else {
            probes.notes.push(format!("caches: no memory for {bytes} bytes"));
            continue;
        };
        link_lines(&mut buffer);
        if let Ok(missing @ 1..) = dormouse_backing::unbacked_os_pages(buffer.addresses()) {
            probes.notes.push(format!("caches: {missing} pages of the buffer for {level} are not there"));
            continue;
        }
        let words = buffer.words();
        let mut at = walk(words, 0, words.len() / (LINE / 8));
        let (mut latencies, mut bandwidths) = (Vec::new(), Vec::new());
        let passes = (1_usize << 20).div_ceil(bytes);
        black_box(sum(words));
        for _ in 0..plan.count {
            between();
            let begun = Instant::now();
            at = walk(words, at, steps(bytes));
            latencies.push(begun.elapsed().as_nanos() as f64 / steps(bytes) as f64);
            between();
            let begun = Instant::now();
            (0..passes).for_each(|_| _ = black_box(sum(buffer.words())));
            bandwidths.push((passes * bytes) as f64 / begun.elapsed().as_nanos() as f64);
        }
        black_box(at);
        probes.add(&format!("caches.{level}_latency"), "ns", &latencies);
        probes.add(&format!("caches.{level}_reading"), "B/ns", &bandwidths);
    }
}
