//! Limits: descriptors, and the number of processes that follows from them.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The descriptor limit that this process was started with; set once the limit has been raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// Raises the descriptor limit as far as the system allows: a session owner keeps one descriptor for each process.
///
/// Programs that are started afterwards should have [`restore_descriptor_limit`] called before `exec`: some close, or
/// allocate for, as many descriptors as they may have.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = ORIGINAL.set(limit);
    // If this is refused, fewer processes can join, and the refused ones are counted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Restores the limit that this process was started with, in a child between `fork` and `exec`. Async-signal-safe.
pub fn restore_descriptor_limit() {
    if let Some(limit) = ORIGINAL.get() {
        let _ = setrlimit(Resource::Nofile, *limit);
    }
}

/// Returns how many descriptors this process may open.
pub(crate) fn descriptors_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns how many descriptors it has open.
pub(crate) fn descriptors() -> u64 {
    // One of them is open only for this count.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1) as u64)
}

/// Returns how many processes there may be at once if `others` descriptors are for other things: each has one pidfd and
/// a number of 16 bits. At least half the descriptors are for processes.
pub(crate) fn processes_max(descriptors_max: u64, others: u64) -> u32 {
    let least = descriptors_max / 2;
    descriptors_max.saturating_sub(others).max(least).min(u64::from(u16::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_numbers_limit_the_processes() {
        assert_eq!(processes_max(1 << 20, 200), 65_535);
        assert_eq!(processes_max(1_024, 200), 824);
        assert_eq!(processes_max(64, 200), 32);
    }
}
