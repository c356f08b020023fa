//! Numbers with units as text.

/// Returns a number with three or more significant digits.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e15).contains(&size) => format!("{value:.3e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Unit of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Unit {
    /// A time that is this many nanoseconds long.
    Time(f64),
    Bytes,
}

/// Ends of the names of fields that have a unit, and the unit.
const UNITS: [(&str, Unit); 4] =
    [("ns", Unit::Time(1.0)), ("us", Unit::Time(1e3)), ("ms", Unit::Time(1e6)), ("bytes", Unit::Bytes)];

impl Unit {
    /// Returns the unit of a field, which its name ends in: `latency_ns`, `bytes`.
    pub(crate) fn of_field(name: &str) -> Option<Unit> {
        let last = name.rsplit(['.', '_']).next()?;
        UNITS.iter().find(|(end, _)| *end == last).map(|(_, unit)| *unit)
    }

    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Unit::Time(ns) => duration(value * ns),
            Unit::Bytes => size(value),
        }
    }
}

/// Returns nanoseconds in a suitable unit.
pub fn duration(ns: f64) -> String {
    let (scale, unit) = match ns.abs() {
        size if size >= 1e9 => (1e9, "s"),
        size if size >= 1e6 => (1e6, "ms"),
        size if size >= 1e3 => (1e3, "µs"),
        _ => (1.0, "ns"),
    };
    format!("{} {unit}", figure(ns / scale))
}

/// Returns bytes in a suitable unit.
fn size(bytes: f64) -> String {
    let prefixes = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let scaled = (1..).zip(prefixes).map(|(power, unit)| (1024_f64.powi(power), unit));
    match scaled.take_while(|(scale, _)| bytes.abs() >= *scale).last() {
        Some((scale, unit)) => format!("{} {unit}", figure(bytes / scale)),
        None if bytes.fract() == 0.0 => format!("{bytes} B"),
        None => format!("{} B", figure(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_of_a_field_is_the_end_of_its_name() {
        for (name, value, expected) in [
            ("size_bytes", 12_900_000.0, "12.3 MiB"),
            ("fields.bytes", 1023.0, "1023 B"),
            ("bytes", 1024.0, "1.00 KiB"),
            ("bytes", -5.5 * 1024.0, "-5.50 KiB"),
            ("bytes", 2.5, "2.50 B"),
            ("bytes", u64::MAX as f64, "16.0 EiB"),
            ("wait_ns", 4_560_000.0, "4.56 ms"),
            ("delay_us", 1500.0, "1.50 ms"),
            ("timeout_ms", 90_000.0, "90.0 s"),
        ] {
            assert_eq!(Unit::of_field(name).unwrap().text(value), expected, "{name} {value}");
        }
        for name in ["size", "columns", "kbytes", "bytes_read", "ns_left", "items", ""] {
            assert_eq!(Unit::of_field(name), None, "{name}");
        }
    }
}
