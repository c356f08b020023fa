//! Sizes as they are written on a command line.

/// Reads a size such as `64K`, `16M` or `1G` (powers of 1024).
///
/// # Errors
/// One line.
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
}
