//! The monotonic clock.

/// Nanoseconds of the monotonic clock. Async-signal-safe; leaves errno as it is.
pub(crate) fn monotonic_ns() -> u64 {
    // Not by rustix: it looks for the vDSO by the kernel's auxiliary vector, and faults where valgrind has hidden it.
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every Linux has, and room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
