//! Dates.

/// Formats seconds since the epoch as a date, for example `2026-11-21`.
pub fn utc_date(epoch_s: i64) -> String {
    let Civil { year, month, day, .. } = Civil::new(epoch_s);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Formats seconds since the epoch as `20261121T140305+0000`, the form of `trace_creation_datetime` in `env`.
pub fn utc_datetime(epoch_s: i64) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::new(epoch_s);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}+0000")
}

/// A date and time of day.
pub struct Civil {
    /// Year.
    pub year: i64,
    /// Month, from 1.
    pub month: i64,
    /// Day of the month, from 1.
    pub day: i64,
    /// Hour, from 0.
    pub hour: i64,
    /// Minute.
    pub minute: i64,
    /// Second.
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
