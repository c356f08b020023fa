//! Parsers for sizes and durations on a command line.

use std::time::Duration;

/// Parses a size such as `64K`, `16M` or `1G` (powers of 1024).
///
/// # Errors
/// Returns a message of one line.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim().trim_end_matches(['b', 'B']).trim_end_matches("i");
    let (digits, shift) = match trimmed.chars().last() {
        Some('k' | 'K') => (&trimmed[..trimmed.len() - 1], 10),
        Some('m' | 'M') => (&trimmed[..trimmed.len() - 1], 20),
        Some('g' | 'G') => (&trimmed[..trimmed.len() - 1], 30),
        _ => (trimmed, 0),
    };
    let number: u64 = digits.trim().parse().map_err(|_| format!("`{text}` is not a size; write 512K, 16M or 1G"))?;
    number.checked_shl(shift).filter(|size| size >> shift == number).ok_or(format!("`{text}` is too large"))
}

/// Parses a duration such as `500us`, `10ms`, `1.5s` or `2m`.
///
/// # Errors
/// Returns a message of one line.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let found = text.parse::<jiff::SignedDuration>().ok().and_then(|duration| duration.try_into().ok());
    found.ok_or_else(|| format!("`{text}` is not a duration; write 500ms, 1.5s or 2m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64K"), Ok(64 << 10));
        assert_eq!(parse_size("16MiB"), Ok(16 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert!(parse_size("many").is_err());
        assert!(parse_size("99999999999G").is_err());
    }

    #[test]
    fn durations() {
        let read = ["500us", "10ms", "1.5s", "2m"].map(|text| parse_duration(text).map(|read| read.as_micros()));
        assert_eq!(read, [500, 10_000, 1_500_000, 120_000_000].map(Ok));
        assert!(["10", "-1s", "many", ""].iter().all(|text| parse_duration(text).is_err()));
    }
}
