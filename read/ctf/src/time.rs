//! Conversion of a trace's clock to nanoseconds, and its correction.

use dormouse_format::Clock;
pub use dormouse_format::date::{Civil, utc_date};

/// A correction that converts the times of a trace to another host's clock. It adds `offset_ns` at `at_ns`, and `drift`
/// more for each nanosecond after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Correction {
    /// Reference time, in nanoseconds since the epoch by the trace's own clock.
    pub at_ns: i64,
    /// Offset at `at_ns`, in nanoseconds; negative if the trace's clock is fast.
    pub offset_ns: i64,
    /// Drift in units of 2^-60, so that the rounding error over a year is below a nanosecond.
    pub drift: i64,
}

/// Number of fractional bits in [`Correction::drift`].
const DRIFT_BITS: u32 = 60;

impl Correction {
    /// Returns a correction with a drift in nanoseconds per nanosecond, which is added to times.
    pub fn new(at_ns: i64, offset_ns: i64, drift: f64) -> Correction {
        Correction { at_ns, offset_ns, drift: (drift * (1u64 << DRIFT_BITS) as f64).round() as i64 }
    }

    /// Drift, in nanoseconds per nanosecond.
    pub fn drift(&self) -> f64 {
        self.drift as f64 / (1u64 << DRIFT_BITS) as f64
    }
}

/// Conversion of clock ticks to nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    frequency_hz: u64,
    /// Offset, including that of a correction.
    offset_ns: i128,
    /// Reference time and drift of the [`Correction`]. This reference time includes the correction's offset.
    at_ns: i64,
    drift: i64,
    /// Offset, if there is no drift and the offset added to any time below [`PLAIN_NS`] fits an `i64`.
    plain_ns: Option<i64>,
}

/// Bound that times of most clocks do not reach: more than 146 years.
const PLAIN_NS: i64 = 1 << 62;

impl Scale {
    /// Returns the conversion of a clock's ticks.
    pub fn of(clock: &Clock) -> Scale {
        let hz = clock.frequency_hz.max(1);
        let offset_s = i128::from(clock.offset_s) + i128::from(clock.offset_cycles / hz);
        let offset_ns = offset_s * 1_000_000_000 + i128::from(duration_ns(clock.offset_cycles % hz, hz));
        Scale { frequency_hz: hz, offset_ns, at_ns: 0, drift: 0, plain_ns: None }.with_plain()
    }

    /// Returns this conversion with a correction applied: it then gives times of the other host's clock.
    pub fn corrected(self, correction: &Correction) -> Scale {
        let Correction { at_ns, offset_ns, drift } = *correction;
        let offset_ns = self.offset_ns + i128::from(offset_ns);
        Scale { offset_ns, at_ns: at_ns.saturating_add(correction.offset_ns), drift, ..self }.with_plain()
    }

    fn with_plain(self) -> Scale {
        let offset_ns = i64::try_from(self.offset_ns).ok().filter(|ns| (-PLAIN_NS..PLAIN_NS).contains(ns));
        Scale { plain_ns: offset_ns.filter(|_| self.drift == 0), ..self }
    }

    /// Adds the drift.
    #[inline]
    fn drifted(&self, ns: i128) -> i128 {
        match self.drift {
            0 => ns,
            drift => ns + ((ns - i128::from(self.at_ns)).saturating_mul(drift.into()) >> DRIFT_BITS),
        }
    }

    /// Adds the drift, and saturates at the bounds of an `i64`.
    #[inline]
    fn within(&self, ns: i128) -> i64 {
        self.drifted(ns).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Returns nanoseconds since the epoch if they fit an `i64`: not before the end of 1677, not after April 2262.
    pub fn held_ns(&self, timestamp: u64) -> Option<i64> {
        self.exact_ns(timestamp).and_then(|ns| i64::try_from(ns).ok())
    }

    /// Returns `None` if the ticks since tick 0 exceed 64 bits of nanoseconds.
    fn exact_ns(&self, timestamp: u64) -> Option<i128> {
        let ns = match self.frequency_hz {
            1_000_000_000 => timestamp,
            hz => u64::try_from((1e9 * timestamp as f64 / hz as f64) as i128).ok()?,
        };
        Some(self.drifted(self.offset_ns + i128::from(ns)))
    }

    /// Returns the last tick whose time is not too late for an `i64`; times that are too early count as earlier ones.
    /// `None` if all times are too late.
    pub(crate) fn last_held(&self) -> Option<u64> {
        let is_late = |ticks: u64| self.exact_ns(ticks).is_none_or(|ns| ns > i64::MAX.into());
        if is_late(0) {
            return None;
        }
        // Times increase with ticks.
        let bits = (0..u64::BITS).rev().map(|bit| 1 << bit);
        Some(bits.fold(0, |held, bit| if is_late(held | bit) { held } else { held | bit }))
    }

    /// Returns nanoseconds since the epoch. A time that does not fit an `i64` ([`Scale::held_ns`]) saturates; readers
    /// of streams do not give events such times.
    ///
    /// Unless the clock runs at 1 GHz, this is a division in `f64`, exactly as in `babeltrace2`, so that both print the
    /// same digits. The result never decreases with `timestamp`. It is rounded down except for the error of `f64`,
    /// which is at most 1.5 ns for each 52 days (2^52 ns) that the clock has run.
    #[inline]
    pub fn epoch_ns(&self, timestamp: u64) -> i64 {
        let ns = duration_ns(timestamp, self.frequency_hz);
        match self.plain_ns {
            Some(offset_ns) if ns < PLAIN_NS as u64 => offset_ns + ns as i64,
            _ => self.within(self.offset_ns + i128::from(ns)),
        }
    }
}

/// Nanoseconds from `begin_ns` to `ns`; 0 if `ns` is earlier.
pub fn since_ns(ns: i64, begin_ns: i64) -> u64 {
    if ns > begin_ns { ns.abs_diff(begin_ns) } else { 0 }
}

fn duration_ns(ticks: u64, frequency_hz: u64) -> u64 {
    match frequency_hz {
        1_000_000_000 => ticks,
        // Conversions between signed integers and floating-point numbers take one instruction each.
        hz if (ticks | hz) >> 63 == 0 => {
            let ns = 1e9 * ticks as i64 as f64 / hz as i64 as f64;
            if ns < PLAIN_NS as f64 { ns as i64 as u64 } else { ns as u64 }
        }
        hz => (1e9 * ticks as f64 / hz as f64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_corrected() {
        let clock = Clock {
            name: "c".into(),
            description: String::new(),
            frequency_hz: 1_000_000_000,
            offset_s: 1_700_000_000,
            offset_cycles: 0,
        };
        let start_ns = 1_700_000_000_000_000_000;
        let correction = Correction::new(start_ns + 1_000, -500, 20e-6);
        let corrected = Scale::of(&clock).corrected(&correction);
        for (ticks, expected) in [(1_000, 500), (1_000_001_000, 1_000_020_500), (0, -501)] {
            assert_eq!(corrected.epoch_ns(ticks), start_ns + expected, "{ticks}");
        }
        let most = Correction { at_ns: i64::MIN, offset_ns: i64::MAX, drift: i64::MAX };
        assert_eq!(Scale::of(&clock).corrected(&most).epoch_ns(u64::MAX), i64::MAX);
        let least = Correction { at_ns: i64::MAX, offset_ns: i64::MIN, drift: i64::MIN };
        assert_eq!(
            Scale::of(&Clock { offset_s: i64::MIN / 1_000_000_000, ..clock.clone() }).corrected(&least).epoch_ns(0),
            i64::MAX
        );
        assert_eq!(Scale::of(&clock).corrected(&Correction::default()), Scale::of(&clock));
    }

    #[test]
    fn the_fast_path_gives_the_same_times() {
        let numbers =
            [1, 3, 1_000, 999_999_999, 1_000_000_000, 2_399_998_123, 1 << 52, (1 << 63) - 1, 1 << 63, u64::MAX];
        for (hz, ticks) in numbers.iter().flat_map(|hz| numbers.map(|ticks| (*hz, ticks))) {
            let expected = if hz == 1_000_000_000 { ticks } else { (1e9 * ticks as f64 / hz as f64) as u64 };
            assert_eq!(duration_ns(ticks, hz), expected, "{ticks} at {hz} Hz");
            for offset_s in [0, -1, 1_700_000_000, -5_000_000_000, 5_000_000_000, i64::MIN, i64::MAX] {
                let scale = Scale {
                    frequency_hz: hz,
                    offset_ns: i128::from(offset_s) * 1_000_000_000,
                    at_ns: 0,
                    drift: 0,
                    plain_ns: None,
                };
                assert_eq!(
                    scale.with_plain().epoch_ns(ticks),
                    scale.epoch_ns(ticks),
                    "{ticks} at {hz} Hz from {offset_s} s"
                );
            }
        }
    }
}
