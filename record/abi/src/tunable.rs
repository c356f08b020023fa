//! Names and values of tunables: the only code that converts these values from and to text.
//!
//! A value is represented by 64 bits: `u64` for unsigned types, `i64` for signed ones, `f64` for floats, independent of
//! the variable's own width. So [`TunableRecord`](crate::site::TunableRecord), messages and tools use the same bits.

use core::fmt;

use crate::site::TunableType;

/// Maximum length of a tunable's name, in bytes.
pub const TUNABLE_NAME_LEN_MAX: usize = 255;
/// Maximum length of a description in messages, in bytes; longer ones are cut.
pub const TUNABLE_DESCRIPTION_LEN_MAX: usize = 512;
/// Maximum number of tunables that are set at once.
pub const TUNABLE_SET_COUNT_MAX: usize = 1024;

/// Whether a tunable may have this name: 1 to [`TUNABLE_NAME_LEN_MAX`] visible ASCII characters, no blanks.
pub const fn is_tunable_name(name: &[u8]) -> bool {
    let mut index = 0;
    while index < name.len() {
        if !name[index].is_ascii_graphic() {
            return false;
        }
        index += 1;
    }
    index > 0 && index <= TUNABLE_NAME_LEN_MAX
}

/// A value with its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunableValue {
    /// Type of the value.
    pub value_type: TunableType,
    /// The value as 64 bits (see the module); for a key or a `bool`, 0 or 1.
    pub bits: u64,
}

/// The form that [`TunableRange::parse`] reads.
impl fmt::Display for TunableValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use TunableType::*;
        let bits = self.bits;
        match self.value_type {
            Key => formatter.write_str(if bits == 0 { "off" } else { "on" }),
            Bool => formatter.write_str(if bits == 0 { "false" } else { "true" }),
            U8 | U16 | U32 | U64 => bits.fmt(formatter),
            I8 | I16 | I32 | I64 => (bits as i64).fmt(formatter),
            // `{:?}` prints very large and very small numbers with an exponent.
            F32 => write!(formatter, "{:?}", f64::from_bits(bits) as f32),
            F64 => write!(formatter, "{:?}", f64::from_bits(bits)),
        }
    }
}

/// The values that a tunable accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunableRange {
    /// Type of the values.
    pub value_type: TunableType,
    /// Minimum, in the form of [`TunableValue::bits`].
    pub min: u64,
    /// Maximum, in the same form.
    pub max: u64,
}

/// Reason why a text is not a value for a tunable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// The text is not a value of the type.
    Type,
    /// The value is out of range.
    Range,
}

impl TunableRange {
    /// Returns the range of all values of a type; for floats, of all finite values.
    pub const fn whole(value_type: TunableType) -> TunableRange {
        use TunableType::*;
        let narrower = u64::BITS - 8 * value_type.size_bytes() as u32;
        let (min, max) = match value_type {
            Key | Bool => (0, 1),
            U8 | U16 | U32 | U64 => (0, u64::MAX >> narrower),
            I8 | I16 | I32 | I64 => ((i64::MIN >> narrower) as u64, (i64::MAX >> narrower) as u64),
            F32 => ((f32::MIN as f64).to_bits(), (f32::MAX as f64).to_bits()),
            F64 => (f64::MIN.to_bits(), f64::MAX.to_bits()),
        };
        TunableRange { value_type, min, max }
    }

    /// Whether the range is limited by the type alone.
    pub fn is_whole(self) -> bool {
        self == TunableRange::whole(self.value_type)
    }

    /// Returns the minimum and the maximum.
    pub fn ends(self) -> (TunableValue, TunableValue) {
        let value = |bits| TunableValue { value_type: self.value_type, bits };
        (value(self.min), value(self.max))
    }

    /// Reads a value: `on`, `off`, `true`, `false`, `1` and `0` for keys and `bool`s; whole numbers in decimal digits, or in
    /// hexadecimal digits after `0x`; finite numbers for floats. Accepts or refuses any text, without panicking.
    ///
    /// # Errors
    /// The reason why the text was refused.
    pub fn parse(self, text: &str) -> Result<TunableValue, Unfit> {
        use TunableType::*;
        let bits = match self.value_type {
            Key | Bool => match text {
                "on" | "true" | "1" => 1,
                "off" | "false" | "0" => 0,
                _ => return Err(Unfit::Type),
            },
            U8 | U16 | U32 | U64 => u64::try_from(whole_number(text).ok_or(Unfit::Type)?).map_err(|_| Unfit::Range)?,
            I8 | I16 | I32 | I64 => {
                i64::try_from(whole_number(text).ok_or(Unfit::Type)?).map_err(|_| Unfit::Range)? as u64
            }
            F32 => f64::from(text.parse::<f32>().ok().filter(|value| !value.is_nan()).ok_or(Unfit::Type)?).to_bits(),
            F64 => text.parse::<f64>().ok().filter(|value| !value.is_nan()).ok_or(Unfit::Type)?.to_bits(),
        };
        if self.holds(bits) { Ok(TunableValue { value_type: self.value_type, bits }) } else { Err(Unfit::Range) }
    }

    /// Whether a value of the type is in the range. A range that is wider than its type is limited to the type.
    fn holds(self, bits: u64) -> bool {
        use TunableType::*;
        let lies_in = |range: TunableRange| {
            let (least, greatest) = (range.min, range.max);
            match self.value_type {
                Key | Bool | U8 | U16 | U32 | U64 => (least..=greatest).contains(&bits),
                I8 | I16 | I32 | I64 => (least as i64..=greatest as i64).contains(&(bits as i64)),
                // The limits are rounded like the variable: 0.1 is in a range of floats up to 0.1.
                F32 => {
                    let narrow = |bits| f64::from_bits(bits) as f32;
                    (narrow(least)..=narrow(greatest)).contains(&narrow(bits))
                }
                F64 => (f64::from_bits(least)..=f64::from_bits(greatest)).contains(&f64::from_bits(bits)),
            }
        };
        lies_in(self) && lies_in(TunableRange::whole(self.value_type))
    }
}

/// Describes the accepted values for the user: `a whole number from 1 to 1024`.
impl fmt::Display for TunableRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use TunableType::*;
        let kind = match self.value_type {
            Key => return formatter.write_str("on or off"),
            Bool => return formatter.write_str("true or false"),
            F32 | F64 if self.is_whole() => return formatter.write_str("a number"),
            F32 | F64 => "a number",
            _ => "a whole number",
        };
        let (least, greatest) = self.ends();
        write!(formatter, "{kind} from {least} to {greatest}")
    }
}

/// Reads a whole number, which may have a sign. A number that does not fit in 127 bits becomes the greatest one.
fn whole_number(text: &str) -> Option<i128> {
    let (is_negative, digits) = match text.as_bytes() {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let (radix, digits) = match digits {
        [b'0', b'x' | b'X', digits @ ..] => (16, digits),
        digits => (10, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut number: i128 = 0;
    for byte in digits {
        let digit = char::from(*byte).to_digit(radix)?;
        number = number.saturating_mul(radix.into()).saturating_add(digit.into());
    }
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};

    fn read(value_type: TunableType, text: &str) -> Result<String, Unfit> {
        TunableRange::whole(value_type).parse(text).map(|value| value.to_string())
    }

    #[test]
    fn values_are_parsed_as_they_are_printed() {
        use TunableType::*;
        for (value_type, texts) in [
            (Key, &["on", "off"][..]),
            (Bool, &["true", "false"]),
            (U8, &["0", "255"]),
            (U16, &["65535"]),
            (U32, &["4294967295"]),
            (U64, &["18446744073709551615"]),
            (I8, &["-128", "127"]),
            (I16, &["-32768"]),
            (I32, &["-2147483648"]),
            (I64, &["-9223372036854775808", "9223372036854775807"]),
            (F32, &["0.1", "-1.5", "1e-45", "3.4028235e38"]),
            (F64, &["0.1", "-0.0", "5e-324", "1.7976931348623157e308"]),
        ] {
            for text in texts {
                assert_eq!(read(value_type, text).as_deref(), Ok(*text));
            }
        }
        assert_eq!(read(U16, "0xFf").as_deref(), Ok("255"));
        assert_eq!(read(I16, "-0x10").as_deref(), Ok("-16"));
        assert_eq!(read(Key, "true").as_deref(), Ok("on"));
        assert_eq!(read(F32, "7").as_deref(), Ok("7.0"));
    }

    #[test]
    fn invalid_values_and_values_out_of_range_are_distinguished() {
        use TunableType::*;
        for value_type in TunableType::ALL {
            for text in ["", "abc", "1 ", " 1", "-", "+", "0x", "--1", "0x-1", "1_0", "nan", "NaN", "ß", "1\0"] {
                assert_eq!(read(value_type, text), Err(Unfit::Type), "{value_type:?} {text:?}");
            }
        }
        for text in ["2", "-1", "yes", "ON", "0.0"] {
            assert_eq!(read(Key, text), Err(Unfit::Type));
            assert_eq!(read(Bool, text), Err(Unfit::Type));
        }
        let long = "9".repeat(1000);
        for (value_type, text) in [
            (U8, "256"),
            (U8, "-1"),
            (U32, "4294967296"),
            (U64, "18446744073709551616"),
            (U64, long.as_str()),
            (I8, "128"),
            (I8, "-129"),
            (I64, "9223372036854775808"),
            (I64, "-9223372036854775809"),
            (F32, "1e39"),
            (F64, "1e309"),
            (F64, "inf"),
            (F32, "-inf"),
        ] {
            assert_eq!(read(value_type, text), Err(Unfit::Range), "{value_type:?} {text}");
        }
        assert_eq!(read(U8, "1.5"), Err(Unfit::Type));
    }

    #[test]
    fn ranges_include_their_ends() {
        use TunableType::*;
        let batch = TunableRange { value_type: U32, min: 1, max: 1024 };
        for (text, fits) in [("0", false), ("1", true), ("1024", true), ("1025", false)] {
            assert_eq!(batch.parse(text).is_ok(), fits, "{text}");
        }
        assert_eq!(batch.to_string(), "a whole number from 1 to 1024");
        let below = TunableRange { value_type: I8, min: -5i64 as u64, max: -1i64 as u64 };
        for (text, fits) in [("-6", false), ("-5", true), ("-1", true), ("0", false), ("5", false)] {
            assert_eq!(below.parse(text).is_ok(), fits, "{text}");
        }
        // In C, a range of doubles for a variable of type float.
        let share = TunableRange { value_type: F32, min: 0.1f64.to_bits(), max: 0.3f64.to_bits() };
        for (text, fits) in [("0.1", true), ("0.3", true), ("0.09", false), ("0.31", false)] {
            assert_eq!(share.parse(text).is_ok(), fits, "{text}");
        }
        let absurd = TunableRange { value_type: U8, min: 0, max: u64::MAX };
        assert_eq!(absurd.parse("256"), Err(Unfit::Range));
        assert_eq!(TunableRange { value_type: U8, min: 2, max: 1 }.parse("1"), Err(Unfit::Range));
    }

    #[test]
    fn names_of_tunables_are_checked() {
        let long = "x".repeat(TUNABLE_NAME_LEN_MAX + 1);
        for (name, fits) in [
            ("server.batch_size", true),
            ("a", true),
            ("", false),
            ("a b", false),
            ("a\n", false),
            ("größe", false),
            (long.as_str(), false),
            (&long[1..], true),
        ] {
            assert_eq!(is_tunable_name(name.as_bytes()), fits, "{name}");
        }
    }
}
