//! Names in a store.
//!
//! Directories are named as Hive names partitions, which DuckDB, pyarrow and others take for columns.

/// How Hive calls what has no value.
pub const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// What directories are named by; no column of a file has such a name.
pub const PARTITIONS: [&str; 3] = ["host", "day", "class"];

pub(crate) const NS_PER_DAY: i64 = 86_400_000_000_000;

/// The day of a time, `2026-11-26`.
pub fn day_of(ns: Option<i64>) -> String {
    ns.map_or_else(|| NO_VALUE.into(), |ns| date(ns.div_euclid(NS_PER_DAY)))
}

/// A day since 1970 as it is written (Howard Hinnant, chrono-compatible low-level date algorithms: civil_from_days).
fn date(days: i64) -> String {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A value in the name of a directory.
pub fn escaped(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => text.push(char::from(byte)),
            b'.' if !text.is_empty() => text.push('.'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_names_of_directories() {
        assert_eq!(
            [0, 19_675, -1, 20_783, 11_016].map(date),
            ["1970-01-01", "2023-11-14", "1969-12-31", "2026-11-26", "2000-02-29"]
        );
        assert_eq!(["http:request", "../x", "a.b", "é"].map(escaped), ["http%3Arequest", "%2E.%2Fx", "a.b", "%C3%A9"]);
        assert_eq!(day_of(None), NO_VALUE);
    }
}
