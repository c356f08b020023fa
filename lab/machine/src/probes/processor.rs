//! The core's clock, and the caches.

use std::hint::black_box;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::arch::LINKS;
use super::memory::{Buffer, sum};
use super::{Looks, SAMPLES};

/// Nanoseconds of one link of a chain: the quickest of some short runs, so that interruptions do not count as a slow clock.
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

/// Bytes of a cache line, for all that matters here, and words in it.
const LINE: usize = 64;
const STRIDE: usize = LINE / 8;

/// Makes one circle through all lines of the buffer, in an order drawn at random (Sattolo 1986).
fn link_lines(words: &mut [u64]) {
    let mut order: Vec<u32> = (0..(words.len() / STRIDE) as u32).collect();
    let mut random = SmallRng::seed_from_u64(1);
    for last in (1..order.len()).rev() {
        order.swap(last, random.random_range(0..last));
    }
    words.iter_mut().step_by(STRIDE).zip(order).for_each(|(word, next)| *word = next.into());
}

/// Goes so many lines on from one. Returns where it is then.
fn walk(words: &[u64], at: u64, steps: usize) -> u64 {
    (0..steps).fold(at, |at, _| words[at as usize * STRIDE])
}

/// What a step of a walk at random takes, and how many bytes are read in a nanosecond, in buffers of half of each level and beyond the last.
/// Each look has buffers of its own: where their pages lie is a part of what looks differ by. `between` comes before each sample.
pub(super) fn caches(between: &mut dyn FnMut(), looks: &mut Looks) {
    let half = |level: usize| looks.caches[level].map(|bytes| bytes as usize / 2);
    for (name, bytes) in [("L1", half(0)), ("L2", half(1)), ("L3", half(2)), ("memory", Some(looks.memory_bytes()))] {
        let buffer = bytes.ok_or("the machine does not tell its size").and_then(|bytes| {
            let mut buffer = Buffer::new(bytes, true).ok_or("no memory for it")?;
            link_lines(buffer.words_mut());
            let is_there = !matches!(dormouse_backing::unbacked_os_pages(buffer.addresses()), Ok(1..));
            is_there.then_some(buffer).ok_or("pages of its buffer are not there")
        });
        let buffer = match buffer {
            Ok(buffer) => buffer,
            Err(cause) => {
                looks.note(format!("caches: {name} is not measured: {cause}"));
                continue;
            }
        };
        let bytes = buffer.words().len() * 8;
        let (steps, passes) = ((2 * bytes / LINE).clamp(4096, 32 << 10), (1_usize << 20).div_ceil(bytes));
        // As it is after the first sample.
        black_box(sum(buffer.words()));
        let mut at = walk(buffer.words(), 0, steps);
        let latencies = [(); SAMPLES].map(|()| {
            between();
            let begun = Instant::now();
            at = black_box(walk(buffer.words(), at, steps));
            begun.elapsed().as_nanos() as f64 / steps as f64
        });
        let bandwidths = [(); SAMPLES].map(|()| {
            between();
            let begun = Instant::now();
            (0..passes).for_each(|_| _ = black_box(sum(buffer.words())));
            (passes * bytes) as f64 / begun.elapsed().as_nanos() as f64
        });
        looks.add(&format!("caches.{name}_latency"), "ns", &latencies);
        looks.add(&format!("caches.{name}_reading"), "B/ns", &bandwidths);
    }
}
