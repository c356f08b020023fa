//! The session's clock: its source, its frequency, and its zero.

use dormouse_abi::session::{CLOCK_MONOTONIC, CLOCK_TSC};
use dormouse_format::metadata;
use rustix::time::{ClockId, clock_gettime};

/// Environment variable: `monotonic` excludes the timestamp counter.
const ENV_CLOCK: &str = "DORMOUSE_CLOCK";

/// Name and description of the timestamp counter.
#[cfg(not(target_arch = "aarch64"))]
const COUNTER: (&str, &str) = ("tsc", "Timestamp counter");
#[cfg(target_arch = "aarch64")]
const COUNTER: (&str, &str) = ("cntvct", "Virtual counter");

/// A reading of all clocks at the same moment.
#[derive(Debug, Clone, Copy)]
struct Reading {
    ticks: u64,
    monotonic_ns: u64,
    realtime_ns: u64,
}

/// The clock of a session.
#[derive(Debug)]
pub(crate) struct Clock {
    /// `CLOCK_TSC` or `CLOCK_MONOTONIC`.
    pub(crate) source: u32,
    start: Reading,
    estimate_hz: u64,
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the current time of this clock.
pub(crate) fn ticks(source: u32) -> u64 {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if source == CLOCK_TSC {
        return dormouse_relay::arch::timestamp();
    }
    let _ = source;
    nanoseconds(ClockId::Monotonic)
}

/// Returns the one of several readings whose clock calls took the least time: nothing interrupted it.
fn read(source: u32) -> Reading {
    let once = || {
        let before = ticks(source);
        let monotonic_ns = nanoseconds(ClockId::Monotonic);
        let realtime_ns = nanoseconds(ClockId::Realtime);
        let after = ticks(source);
        let middle = before + after.saturating_sub(before) / 2;
        (after.saturating_sub(before), Reading { ticks: middle, monotonic_ns, realtime_ns })
    };
    (1..16).map(|_| once()).fold(once(), |best, next| if next.0 < best.0 { next } else { best }).1
}

/// Whether the timestamp counter can be used: it must neither stop nor change its frequency.
#[cfg(target_arch = "x86_64")]
fn counter_serves() -> bool {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    has("constant_tsc") && has("nonstop_tsc")
}

/// The architecture guarantees that the counter neither stops nor changes its frequency (Arm ARM, "The system counter").
/// Where a machine's counter is faulty, Linux reads it for programs and corrects it.
#[cfg(target_arch = "aarch64")]
fn counter_serves() -> bool {
    true
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter_serves() -> bool {
    false
}

/// Returns the frequency that the machine tells for its counter, in Hz; 0 if it tells none.
fn told_hz() -> u64 {
    #[cfg(target_arch = "aarch64")]
    let told_hz = dormouse_relay::arch::told_frequency_hz();
    #[cfg(not(target_arch = "aarch64"))]
    let told_hz = 0;
    told_hz
}

/// Returns a first estimate of the frequency: the machine's own word, unless a measurement of a few milliseconds
/// contradicts it. The monotonic clock is at most 500 parts in a million fast or slow (adjtimex(2)), and some firmware
/// tells nonsense.
fn first_estimate_hz(told_hz: u64, measured_hz: u64) -> u64 {
    if told_hz.abs_diff(measured_hz) <= measured_hz / 1_000 { told_hz } else { measured_hz }
}

impl Clock {
    /// Chooses the clock and measures its frequency for 5 ms; [`Clock::last_calibration`] is more exact.
    pub(crate) fn new() -> Clock {
        let is_excluded = std::env::var(ENV_CLOCK).is_ok_and(|clock| clock == "monotonic");
        let source = if !is_excluded && counter_serves() { CLOCK_TSC } else { CLOCK_MONOTONIC };
        let start = read(source);
        let mut clock = Clock { source, start, estimate_hz: 1_000_000_000 };
        if source == CLOCK_TSC {
            std::thread::sleep(std::time::Duration::from_millis(5));
            clock.estimate_hz = first_estimate_hz(told_hz(), clock.frequency_hz(read(source)));
        }
        clock
    }

    /// Returns the words that [`Clock::from_words`] makes the same clock of.
    pub(crate) fn to_words(&self) -> [u64; 5] {
        let Reading { ticks, monotonic_ns, realtime_ns } = self.start;
        [self.source.into(), ticks, monotonic_ns, realtime_ns, self.estimate_hz]
    }

    /// Returns the clock of a session that has begun.
    pub(crate) fn from_words([source, ticks, monotonic_ns, realtime_ns, estimate_hz]: [u64; 5]) -> Clock {
        Clock { source: source as u32, start: Reading { ticks, monotonic_ns, realtime_ns }, estimate_hz }
    }

    /// Returns the current time in ticks.
    pub(crate) fn now(&self) -> u64 {
        ticks(self.source)
    }

    fn frequency_hz(&self, now: Reading) -> u64 {
        let elapsed_ns = now.monotonic_ns.saturating_sub(self.start.monotonic_ns).max(1);
        let elapsed_ticks = now.ticks.saturating_sub(self.start.ticks);
        (elapsed_ticks as u128 * 1_000_000_000 / elapsed_ns as u128) as u64
    }

    /// Returns the description of the clock for CTF.
    fn at_frequency(&self, frequency_hz: u64) -> metadata::Clock {
        let frequency_hz = frequency_hz.max(1);
        // Zero of the clock, in ticks after the epoch; negative on machines whose clock was set back below their
        // uptime.
        let since_epoch = self.start.realtime_ns as i128 * frequency_hz as i128 / 1_000_000_000;
        let zero = since_epoch - self.start.ticks as i128;
        let (name, description) = match self.source {
            CLOCK_TSC => COUNTER,
            _ => ("monotonic", "Monotonic clock"),
        };
        metadata::Clock {
            name: name.into(),
            description: description.into(),
            frequency_hz,
            offset_s: zero.div_euclid(frequency_hz as i128) as i64,
            offset_cycles: zero.rem_euclid(frequency_hz as i128) as u64,
        }
    }

    /// Returns the calibration at the session's beginning.
    pub(crate) fn first_calibration(&self) -> metadata::Clock {
        self.at_frequency(self.estimate_hz)
    }

    /// Returns the calibration after some time; it becomes more exact with time.
    pub(crate) fn last_calibration(&self) -> metadata::Clock {
        if self.source == CLOCK_MONOTONIC {
            return self.first_calibration();
        }
        self.at_frequency(self.frequency_hz(read(self.source)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_told_frequency_is_believed_unless_a_measurement_contradicts_it() {
        assert_eq!(first_estimate_hz(24_000_000, 24_011_000), 24_000_000);
        assert_eq!(first_estimate_hz(1_000_000, 24_011_000), 24_011_000);
        assert_eq!(first_estimate_hz(0, 2_899_999_999), 2_899_999_999);
    }
}
