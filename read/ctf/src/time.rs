//! The clock of a trace, and dates.

/// The clock of all timestamps in a trace (clause 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clock {
    /// Name: an identifier, such as `monotonic` or `tsc`. Other characters become `_`.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Ticks per second, not 0.
    pub frequency_hz: u64,
    /// Seconds from the epoch (1970-01-01 UTC) to tick 0.
    pub offset_s: i64,
    /// Ticks to add to `offset_s`.
    pub offset_cycles: u64,
}

impl Clock {
    /// Converts ticks to nanoseconds since the epoch, see [`Scale::epoch_ns`].
    pub fn epoch_ns(&self, timestamp: u64) -> i64 {
        self.scale().epoch_ns(timestamp)
    }

    /// Returns the conversion from ticks to nanoseconds.
    pub fn scale(&self) -> Scale {
        let hz = self.frequency_hz.max(1);
        let offset_s = i128::from(self.offset_s) + i128::from(self.offset_cycles / hz);
        let offset_ns = offset_s * 1_000_000_000 + i128::from(duration_ns(self.offset_cycles % hz, hz));
        Scale { frequency_hz: hz, offset_ns, at_ns: 0, drift: 0, plain_ns: None }.with_plain()
    }
}

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

    /// Converts a time to the other host's clock. The result saturates at the bounds of an `i64`.
    pub fn corrected_ns(&self, ns: i64) -> i64 {
        let scale =
            Scale { frequency_hz: 1_000_000_000, offset_ns: 0, at_ns: 0, drift: 0, plain_ns: None }.corrected(self);
        scale.within(i128::from(ns) + scale.offset_ns)
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
    /// Returns this conversion with a correction applied.
    pub(crate) fn corrected(self, correction: &Correction) -> Scale {
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

/// Formats seconds since the epoch as a date, for example `2026-11-21`.
pub fn utc_date(epoch_s: i64) -> String {
    let Civil { year, month, day, .. } = Civil::new(epoch_s);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Formats seconds since the epoch as `20261121T140305+0000`, the form of `trace_creation_datetime` in `env`.
pub(crate) fn utc_datetime(epoch_s: i64) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::new(epoch_s);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}+0000")
}

/// A date and time of day.
pub struct Civil {
    /// Year, for example 2026.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: i64,
    /// Day of the month, 1 to 31.
    pub day: i64,
    /// Hour, 0 to 23.
    pub hour: i64,
    /// Minute, 0 to 59.
    pub minute: i64,
    /// Second, 0 to 59.
    pub second: i64,
}

impl Civil {
    /// Returns the proleptic Gregorian date and time. Source: H. Hinnant, "chrono-Compatible Low-Level Date
    /// Algorithms", `civil_from_days`: years begin in March, eras have 400 years.
    pub fn new(epoch_s: i64) -> Civil {
        let days = epoch_s.div_euclid(86_400) + 719_468;
        let second_of_day = epoch_s.rem_euclid(86_400);
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        Civil {
            year: era * 400 + year_of_era + i64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
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
        let corrected = clock.scale().corrected(&correction);
        for (ticks, expected) in [(1_000, 500), (1_000_001_000, 1_000_020_500), (0, -501)] {
            assert_eq!(corrected.epoch_ns(ticks), start_ns + expected, "{ticks}");
            assert_eq!(correction.corrected_ns(clock.epoch_ns(ticks)), start_ns + expected, "{ticks}");
        }
        let most = Correction { at_ns: i64::MIN, offset_ns: i64::MAX, drift: i64::MAX };
        assert_eq!(clock.scale().corrected(&most).epoch_ns(u64::MAX), i64::MAX);
        let least = Correction { at_ns: i64::MAX, offset_ns: i64::MIN, drift: i64::MIN };
        assert_eq!(least.corrected_ns(i64::MIN), i64::MAX);
        assert_eq!(Correction::default().corrected_ns(7), 7);
    }

    #[test]
    fn the_short_way_gives_the_same() {
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

    #[test]
    fn dates() {
        for (epoch_s, expected) in [
            (0, "19700101T000000+0000"),
            (-1, "19691231T235959+0000"),
            (951_782_400, "20000229T000000+0000"),
            (1_700_000_000, "20231114T221320+0000"),
            (4_107_542_400, "21000301T000000+0000"),
        ] {
            assert_eq!(utc_datetime(epoch_s), expected);
        }
    }
}
