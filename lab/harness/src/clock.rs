//! The clock that times the loops.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

/// Whether [`begin`] and [`end`] read the timestamp counter.
pub(crate) const IS_TSC: bool = cfg!(target_arch = "x86_64");

/// Nanoseconds of the comparison of the counter with the kernel's clock; they give the rate to about 1 in 100,000.
const CALIBRATION_NS: u64 = 20_000_000;

fn kernel_ns() -> u64 {
    let time = clock_gettime(ClockId::MonotonicRaw);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns a reading that is taken after all earlier instructions have completed and before all later ones start.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn begin() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _mm_mfence, _rdtsc};
    // `mfence` drains earlier stores. The first `lfence` delays the reading until it and all loads have completed, the
    // second delays later instructions until the counter was read (Intel SDM and AMD APM, RDTSC).
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

/// Returns a reading that is taken after all earlier instructions have executed.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn end() -> u64 {
    use core::arch::x86_64::{__rdtscp, _mm_lfence};
    let mut processor = 0;
    // The instruction itself waits for all earlier ones, whether or not `lfence` does on this CPU.
    // SAFETY: every x86-64 CPU of the last fifteen years has it, and Linux lets user programs execute it; `processor`
    // is a local variable.
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

/// Returns the cycles of the counter per nanosecond, measured once; 1 if readings are nanoseconds.
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

/// Returns simultaneous readings of both clocks: the pair of 16 tries whose readings are closest together, so that
/// interruptions between them do not count.
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
    fn the_clock_rate_is_that_of_a_cpu() {
        let rate = super::cycles_per_ns();
        assert!((0.1..10.0).contains(&rate), "{rate}");
    }
}
