//! Probes of the caches, and of the backing of memory.

use std::hint::black_box;
use std::time::Instant;

use dormouse_backing::{Huge, MemoryOptions, PrivatePool};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::index::sample;

use super::{Looks, SAMPLES};

/// Returns the words of private memory.
pub(super) fn words(memory: &mut PrivatePool) -> &mut [u64] {
    let start = memory.base().cast();
    // SAFETY: the whole mapping, which lives as long as `memory` and starts at a page; zeroes are valid words, and
    // `memory` is borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(start, memory.size_bytes() / 8) }
}

/// Sums up the words. The compiler knows neither their values nor that the sum is not needed.
fn sum(words: &[u64]) {
    black_box(black_box(words).iter().fold(0, |sum, word| sum ^ word));
}

/// Size of a cache line, in bytes, precise enough here.
const LINE: usize = 64;
/// Words in a line.
const STRIDE: usize = LINE / 8;

/// Maximum number of steps of a sample's walk.
const STEPS_MAX: usize = 32 << 10;

/// Links lines of the buffer into one circle, in random order: all lines, or as many as the samples walk over. Linking
/// every line of a large buffer takes longer than measuring it. Returns one of the linked lines.
fn link_lines(words: &mut [u64]) -> u64 {
    let count = words.len() / STRIDE;
    let order = sample(&mut SmallRng::seed_from_u64(1), count, count.min(STEPS_MAX * (SAMPLES + 1)));
    let next = order.iter().skip(1).chain([order.index(0)]);
    order.iter().zip(next).for_each(|(line, next)| words[line * STRIDE] = next as u64);
    order.index(0) as u64
}

/// Follows `steps` links from a line. Returns the last line.
fn walk(words: &[u64], at: u64, steps: usize) -> u64 {
    (0..steps).fold(at, |at, _| words[at as usize * STRIDE])
}

/// Measures the time of a step of a random walk, and the bytes read in a nanosecond, in buffers of half of each level
/// and beyond the last. Each look has buffers of its own, because the location of their pages is one reason why looks
/// differ. `between` is called before each sample.
pub(super) fn caches(between: &mut dyn FnMut(), looks: &mut Looks) {
    let half = |level: usize| looks.caches[level].map(|bytes| bytes as usize / 2);
    for (name, bytes) in [("L1", half(0)), ("L2", half(1)), ("L3", half(2)), ("memory", Some(looks.memory_bytes()))] {
        let memory = bytes.ok_or_else(|| "the machine does not tell its size".to_string()).and_then(|bytes| {
            let memory = PrivatePool::new(bytes, MemoryOptions::new().huge(Huge::Prefer));
            let mut memory = memory.map_err(|error| error.to_string())?;
            let start = link_lines(words(&mut memory));
            match memory.mapping().unbacked_os_pages(0..memory.size_bytes()) {
                Ok(1..) => Err("pages of its buffer are not there".into()),
                _ => Ok((memory, start)),
            }
        });
        let (mut memory, start) = match memory {
            Ok(linked) => linked,
            Err(cause) => {
                looks.note(format!("caches: {name} is not measured: {cause}"));
                continue;
            }
        };
        let (bytes, buffer) = (memory.size_bytes(), &*words(&mut memory));
        let (steps, passes) = ((2 * bytes / LINE).clamp(4096, STEPS_MAX), (1_usize << 20).div_ceil(bytes));
        // Brings the buffer into the state that it has after the first sample.
        sum(buffer);
        let mut at = walk(buffer, start, steps);
        let latencies = [(); SAMPLES].map(|()| {
            between();
            let begun = Instant::now();
            at = black_box(walk(black_box(buffer), at, steps));
            begun.elapsed().as_nanos() as f64 / steps as f64
        });
        let bandwidths = [(); SAMPLES].map(|()| {
            between();
            let begun = Instant::now();
            (0..passes).for_each(|_| sum(buffer));
            (passes * bytes) as f64 / begun.elapsed().as_nanos() as f64
        });
        looks.add(&format!("caches.{name}_latency"), "ns", &latencies);
        looks.add(&format!("caches.{name}_reading"), "B/ns", &bandwidths);
    }
}

/// Measures the cost of the first touch of a small page, and the bytes read in a nanosecond of memory that was never
/// written and of memory that was. Without `is_written` the latter is not written either. That is the paper's mistake,
/// which tests make on purpose.
pub(super) fn backing(is_written: bool, looks: &mut Looks) {
    let untouched = MemoryOptions::new().prefault(false).huge(Huge::Never);
    let mut memory = match PrivatePool::new(looks.memory_bytes(), untouched) {
        Ok(memory) => memory,
        Err(error) => return looks.note(format!("page backing: {error}")),
    };
    let (bytes, buffer) = (memory.size_bytes(), words(&mut memory));
    let read = |buffer: &[u64]| {
        let begun = Instant::now();
        sum(buffer);
        begun.elapsed().as_nanos() as f64
    };
    let first = read(buffer);
    let later = read(buffer).min(read(buffer));
    looks.add("page backing.first_touch", "ns", &[(first - later) / (bytes / dormouse_backing::os_page_size()) as f64]);
    looks.add("page backing.reading_unwritten", "B/ns", &[bytes as f64 / later]);
    if is_written {
        buffer.fill(1);
    }
    let later = read(buffer).min(read(buffer));
    looks.add("page backing.reading", "B/ns", &[bytes as f64 / later]);
}
