//! The clock that loops are timed with.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

/// Whether [`begin`] and [`end`] read the timestamp counter.
pub(crate) const IS_TSC: bool = cfg!(target_arch = "x86_64");

/// Nanoseconds that the counter is compared with the kernel's clock: its rate is then known to about 1 in 100,000.
const CALIBRATION_NS: u64 = 20_000_000;

fn kernel_ns() -> u64 {
    let time = clock_gettime(ClockId::MonotonicRaw);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A reading before which everything earlier is done, and after which everything later begins.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn begin() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _mm_mfence, _rdtsc};
    // `mfence` drains the stores of what comes before; the counter is read when it and all loads have completed, and what
    // follows waits for the reading (Intel SDM and AMD APM, RDTSC).
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_mfence() };
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_lfence() };
    // SAFETY: user programs may read the counter under Linux.
    let cycles = unsafe { _rdtsc() };
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_lfence() };
    cycles
}

/// A reading after everything that comes before it is executed.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn end() -> u64 {
    use core::arch::x86_64::{__rdtscp, _mm_lfence};
    let mut processor = 0;
    // The instruction waits for all earlier ones by itself, whether or not `lfence` does on this processor.
    // SAFETY: every x86-64 processor of the last fifteen years has it, under Linux for user programs; `processor` is ours.
    let cycles = unsafe { __rdtscp(&mut processor) };
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_lfence() };
    cycles
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn begin() -> u64 {
    kernel_ns()
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn end() -> u64 {
    kernel_ns()
}

/// Cycles of the counter in a nanosecond, measured once; 1 where readings are nanoseconds.
pub fn cycles_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        if !IS_TSC {
            return 1.0;
        }
        let (cycles, started) = pair();
        while kernel_ns() - started < CALIBRATION_NS {
            std::hint::spin_loop();
        }
        let (cycles_after, ended) = pair();
        (cycles_after - cycles) as f64 / (ended - started) as f64
    })
}

/// Both clocks at once: the closest of some tries, so that an interruption between the readings does not count.
fn pair() -> (u64, u64) {
    let tries = (0..16).map(|_| {
        let before = begin();
        let now = kernel_ns();
        (begin() - before, before, now)
    });
    tries.min().map(|(width, before, now)| (before + width / 2, now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_a_processors() {
        let rate = super::cycles_per_ns();
        assert!((0.1..10.0).contains(&rate), "{rate}");
    }
}
