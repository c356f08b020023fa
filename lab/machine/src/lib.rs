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

/// The processors that this process may use; none where the kernel does not tell.
fn allowed_cpus() -> Vec<u32> {
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let is_allowed = |cpu: &u32| allowed.as_ref().is_some_and(|set| set.is_set(*cpu as usize));
    (0..rustix::thread::CpuSet::MAX_CPU as u32).filter(is_allowed).collect()
}

/// Keeps the calling thread on these processors, where there are any and that is allowed: who wants to know asks for its affinity.
fn keep_on(cpus: &[u32]) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().filter(|cpu| (**cpu as usize) < rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu as usize));
    if !cpus.is_empty() {
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// The processors that this process may use, in the order in which they are measured on: all but the first come first, since that one has most
/// interrupts to serve.
pub fn cpus() -> Vec<u32> {
    let mut cpus = allowed_cpus();
    if cpus.is_empty() {
        cpus.push(0);
    }
    let first = 1.min(cpus.len() - 1);
    cpus.rotate_left(first);
    cpus
}
