//! Numbers as text.

use super::put;

/// The texts `00` to `99`.
pub(super) const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
        number += 1;
    }
    pairs
};

/// Number of digits in a fraction of a second.
pub(super) const FRACTION_DIGITS: usize = 9;

pub(super) fn put_u64(out: &mut Vec<u8>, number: u64) {
    // Numbers of one digit are frequent, and written in half the time by themselves.
    if number < 10 {
        return out.push(b'0' + number as u8);
    }
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

pub(super) fn put_i64(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    put_u64(out, number.unsigned_abs());
}

/// Appends nine digits.
pub(super) fn put_fraction(out: &mut Vec<u8>, ns: u32) {
    let mut digits = [b'0' + (ns / 100_000_000 % 10) as u8, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut rest = ns;
    for at in [7, 5, 3, 1] {
        digits[at..at + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    out.extend_from_slice(&digits);
}

/// Appends a number like C's `%g`: six significant digits, trailing zeros left out.
pub(super) fn put_g(out: &mut Vec<u8>, value: f64) {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if !value.is_finite() {
        return put(out, format_args!("{sign}{}", if value.is_nan() { "nan" } else { "inf" }));
    }
    // The exponent is the one after rounding: 999999.9 is 1e+06.
    let scientific = format!("{:.5e}", value.abs());
    let (mantissa, exponent) = scientific.split_once('e').expect("{:e} writes an exponent");
    let exponent: i32 = exponent.parse().expect("{:e} writes a number there");
    let trim = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => digits.to_string(),
    };
    if (-4..6).contains(&exponent) {
        let decimals = (5 - exponent) as usize;
        put(out, format_args!("{sign}{}", trim(&format!("{:.decimals$}", value.abs()))));
    } else {
        let exponent_sign = if exponent < 0 { '-' } else { '+' };
        put(out, format_args!("{sign}{}e{exponent_sign}{:02}", trim(mantissa), exponent.abs()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_look_as_in_rust() {
        let mut number = 1u64;
        for round in 0..2000u64 {
            for number in [number, number.wrapping_neg(), round, 10u64.saturating_pow(round as u32 % 21)] {
                let mut out = vec![];
                put_u64(&mut out, number);
                put_i64(&mut out, number as i64);
                put_fraction(&mut out, (number % 1_000_000_000) as u32);
                let expected = format!("{number}{}{:09}", number as i64, number % 1_000_000_000);
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
            number = number.wrapping_mul(6_364_136_223_846_793_005).rotate_right(round as u32 % 64).wrapping_add(1);
        }
    }

    #[test]
    fn floats_look_as_in_c() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (1234567.0, "1.23457e+06"),
            (999999.9, "1e+06"),
            (99999.95, "99999.9"),
            (100000.0, "100000"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.000099999999, "0.0001"),
            (-1e300, "-1e+300"),
            (5e-324, "4.94066e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            let mut out = vec![];
            put_g(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
