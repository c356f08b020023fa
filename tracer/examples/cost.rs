//! What one event costs: an empty loop, a dormant event, an armed event with one 8-byte field, and the clock alone.
//!
//! Run it under `dormouse record --mode overwrite -e cost:armed -- cost`; without a session both events are dormant.

use std::hint::black_box;
use std::time::Instant;

const EVENTS: u64 = 2_000_000;
const ROUNDS: usize = 15;

fn time(mut body: impl FnMut(u64)) -> f64 {
    let started = Instant::now();
    for number in 0..EVENTS {
        body(black_box(number));
    }
    started.elapsed().as_nanos() as f64 / EVENTS as f64
}

fn main() {
    let mut rounds: Vec<[f64; 4]> = (0..ROUNDS)
        .map(|_| {
            [
                time(|number| {
                    black_box(number);
                }),
                time(|number| {
                    dormouse::event!(cost.dormant, number);
                    black_box(number);
                }),
                time(|number| {
                    dormouse::event!(cost.armed, number);
                    black_box(number);
                }),
                time(|number| {
                    // SAFETY: reads a counter.
                    #[cfg(target_arch = "x86_64")]
                    black_box(unsafe { std::arch::x86_64::_rdtsc() });
                    black_box(number);
                }),
            ]
        })
        .collect();
    for (index, name) in ["empty loop", "dormant event", "armed event", "timestamp counter"].iter().enumerate() {
        rounds.sort_by(|a, b| a[index].total_cmp(&b[index]));
        println!("{name:18} {:7.2} ns median, {:7.2} ns least", rounds[ROUNDS / 2][index], rounds[0][index]);
    }
}
