//! Clocks.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use dormouse_abi::session::CLOCK_TSC;

/// Returns the time of the monotonic clock, in nanoseconds. Async-signal-safe; preserves errno.
pub fn monotonic_ns() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

/// Returns the time since boot, in nanoseconds, by the clock of process start times. Async-signal-safe; preserves
/// errno.
pub(crate) fn boot_ns() -> u64 {
    nanoseconds(libc::CLOCK_BOOTTIME)
}

/// Returns the present time by a session's clock. Async-signal-safe; preserves errno.
#[inline]
pub(crate) fn of_session(
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(unused_variables))] clock: u32,
) -> u64 {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if clock == CLOCK_TSC {
        return dormouse_relay::arch::timestamp();
    }
    monotonic_ns()
}

/// Returns the time of the monotonic clock at the last tick of the kernel's timer, in nanoseconds: cheaper, and up to
/// 10 ms late. Async-signal-safe; preserves errno.
pub(crate) fn coarse_ns() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC_COARSE)
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    // Not through rustix, which finds the vDSO through the kernel's auxiliary vector and faults where valgrind has
    // hidden it.
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: every Linux has these clocks, and `now` has room for the answer.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
