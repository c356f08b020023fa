//! The machine that the lab measures on.
//!
//! ```text
//!   host         its facts, each with its value or with why it cannot be told
//!   neighbours   who used its processors meanwhile
//!   probes       what it does to figures, measured on the spot: clock, caches, scheduler, interruptions, pages
//!   doctor       what the facts mean for tracing and for figures, and what to do about them
//! ```

// Who calls says what there is to say.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod doctor;
mod fact;
pub mod host;
pub mod neighbours;
pub mod probes;

pub use host::Host;
pub use neighbours::Neighbours;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use; none where the kernel does not tell.
fn allowed_cpus() -> Vec<u32> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU as u32).filter(|cpu| allowed.is_set(*cpu as usize)).collect()
}

/// Keeps the calling thread on a processor, where that is allowed: who wants to know asks for its affinity.
fn keep_on(cpu: u32) {
    let mut set = CpuSet::new();
    if (cpu as usize) < CpuSet::MAX_CPU {
        set.set(cpu as usize);
    }
    // An empty set is refused too.
    let _ = sched_setaffinity(None, &set);
}

/// The processors that this process may use, in the order in which they are measured on: the first comes last, since it has most interrupts
/// to serve.
pub fn cpus() -> Vec<u32> {
    let mut cpus = allowed_cpus();
    match cpus.len() {
        0 => cpus.push(0),
        _ => cpus.rotate_left(1),
    }
    cpus
}
