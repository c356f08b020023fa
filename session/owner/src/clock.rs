//! The session's clock: its source, its frequency, and its zero.

use dormouse_abi::session::{CLOCK_MONOTONIC, CLOCK_TSC};
use dormouse_format::metadata;
use rustix::time::{ClockId, clock_gettime};

/// Environment variable: `monotonic` excludes the timestamp counter.
const ENV_CLOCK: &str = "DORMOUSE_CLOCK";

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
    #[cfg(target_arch = "x86_64")]
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
fn tsc_serves() -> bool {
    if !cfg!(target_arch = "x86_64") || std::env::var(ENV_CLOCK).is_ok_and(|clock| clock == "monotonic") {
        return false;
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    has("constant_tsc") && has("nonstop_tsc")
}

impl Clock {
    /// Chooses the clock and measures its frequency for 5 ms; [`Clock::last_calibration`] is more exact.
    pub(crate) fn new() -> Clock {
        let source = if tsc_serves() { CLOCK_TSC } else { CLOCK_MONOTONIC };
        let start = read(source);
        let mut clock = Clock { source, start, estimate_hz: 1_000_000_000 };
        if source == CLOCK_TSC {
            std::thread::sleep(std::time::Duration::from_millis(5));
            clock.estimate_hz = clock.frequency_hz(read(source));
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
            CLOCK_TSC => ("tsc", "Timestamp counter"),
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
