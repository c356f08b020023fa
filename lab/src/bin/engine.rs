//! The measured side of the experiment `event`: a process of its own that times itself.
//!
//! ```text
//!   dormouse-lab-engine ROUNDS EVENTS CPU
//! ```
//! It pins itself to the processor and prints a JSON object: for each case the nanoseconds of one iteration, one number for
//! each round, and how many armed events it has emitted. Cases take turns, so that the machine's moods fall on all alike.

use std::hint::black_box;
use std::time::Instant;

/// One iteration of a case, given its number.
type Body = fn(u64);

fn empty(number: u64) {
    black_box(number);
}

fn dormant(number: u64) {
    dormouse::event!(lab.dormant, number);
    black_box(number);
}

fn armed(number: u64) {
    dormouse::event!(lab.armed, number);
    black_box(number);
}

fn clock(number: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter that every x86-64 processor has.
    black_box(unsafe { core::arch::x86_64::_rdtsc() });
    black_box(number);
}

/// Nanoseconds of one iteration. Generic over the body, so that each loop is compiled for its case.
#[inline(never)]
fn time(events: u64, body: impl Fn(u64)) -> f64 {
    let started = Instant::now();
    for number in 0..events {
        body(black_box(number));
    }
    started.elapsed().as_nanos() as f64 / events as f64
}

fn main() {
    let argument = |index: usize| std::env::args().nth(index).and_then(|argument| argument.parse::<u64>().ok());
    let (Some(rounds), Some(events), Some(cpu)) = (argument(1), argument(2), argument(3)) else {
        eprintln!("usage: dormouse-lab-engine ROUNDS EVENTS CPU");
        std::process::exit(2);
    };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    let is_pinned = rustix::thread::sched_setaffinity(None, &set).is_ok();
    let cases: [(&str, Body); 4] =
        [("empty_loop", empty), ("dormant", dormant), ("armed", armed), ("timestamp_counter", clock)];
    let mut samples = vec![Vec::new(); cases.len()];
    for round in 0..=rounds {
        let times = [time(events, empty), time(events, dormant), time(events, armed), time(events, clock)];
        // The first round warms caches, pages and the branch predictor.
        if round > 0 {
            for (case, time) in samples.iter_mut().zip(times) {
                case.push(time);
            }
        }
    }
    let samples: serde_json::Map<String, serde_json::Value> =
        cases.iter().zip(&samples).map(|((name, _), times)| (name.to_string(), times.clone().into())).collect();
    let output = serde_json::json!({ "pinned": is_pinned, "armed_events": (rounds + 1) * events, "samples": samples });
    println!("{output}");
}
