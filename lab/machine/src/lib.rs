//! The machine that the lab measures on.
//!
//! ```text
//!   host         its facts, each with its value or with the reason why it is unknown
//!   neighbours   other processes that used its CPUs meanwhile
//!   probes       measurements of the machine itself: clock, caches, scheduler, interruptions, pages
//!   doctor       the meaning of the facts for tracing and for figures, and remedies
//! ```

// The caller prints; this crate does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod doctor;
mod fact;
pub mod host;
pub mod neighbours;
pub mod probes;

pub use host::Host;
pub use neighbours::Neighbours;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the CPUs that this process may use; none if the kernel does not report them.
fn allowed_cpus() -> Vec<u32> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU as u32).filter(|cpu| allowed.is_set(*cpu as usize)).collect()
}

/// Pins the calling thread to a CPU, if that is allowed. A caller that needs to know asks for the affinity.
fn keep_on(cpu: u32) {
    let mut set = CpuSet::new();
    if (cpu as usize) < CpuSet::MAX_CPU {
        set.set(cpu as usize);
    }
    // An empty set is refused too.
    let _ = sched_setaffinity(None, &set);
}

/// Returns the CPUs that this process may use, in the order in which the lab measures on them. The first CPU comes
/// last, since it serves most interrupts.
pub fn cpus() -> Vec<u32> {
    let mut cpus = allowed_cpus();
    match cpus.len() {
        0 => cpus.push(0),
        _ => cpus.rotate_left(1),
    }
    cpus
}
