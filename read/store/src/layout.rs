//! Names in a store.
//!
//! Directories are named like Hive partitions, which DuckDB, pyarrow and others read as columns.

use dormouse_ctf::time::utc_date;

/// Hive's name of the partition for rows without a value.
pub const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Columns that directories are named by. No column of a file has one of these names.
pub const PARTITIONS: [&str; 3] = ["host", "day", "class"];

const NS_PER_S: i64 = 1_000_000_000;
pub(crate) const NS_PER_DAY: i64 = 86_400 * NS_PER_S;

/// Returns the UTC day of a time in nanoseconds since the epoch, `2026-11-26`; [`NO_VALUE`] without a time.
pub fn day_of(ns: Option<i64>) -> String {
    ns.map_or_else(|| NO_VALUE.into(), |ns| utc_date(ns.div_euclid(NS_PER_S)))
}

/// Returns a value as it appears in the name of a directory, with other bytes percent-encoded.
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
    fn directories_have_days_and_escaped_names() {
        assert_eq!(
            [0, 19_675, -1, 20_783, 11_016].map(|day| day_of(Some(day * NS_PER_DAY))),
            ["1970-01-01", "2023-11-14", "1969-12-31", "2026-11-26", "2000-02-29"]
        );
        assert_eq!(["http:request", "../x", "a.b", "é"].map(escaped), ["http%3Arequest", "%2E.%2Fx", "a.b", "%C3%A9"]);
        assert_eq!(day_of(None), NO_VALUE);
    }
}
