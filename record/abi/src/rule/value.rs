//! Values of events, and comparisons of them.
//!
//! A comparison is *unknown*, which is `None`, if an event lacks a value, or if the kinds of the values are not
//! comparable. Whole numbers are compared exactly with floating-point numbers. Labels of an enumeration are compared
//! with text; if a number has several labels, it is enough that one of them is equal.

use alloc::borrow::Cow;
use core::cmp::Ordering;
use core::fmt;

use crate::class::Level;

/// A value of an event.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// A whole number.
    Integer(i128),
    /// A floating-point number.
    Float(f64),
    /// Text, not necessarily UTF-8.
    Text(Cow<'a, [u8]>),
    /// True or false.
    Boolean(bool),
    /// An integer with labels.
    Enumeration(i128, &'a dyn Labels),
}

/// The values of an event, by the index of their names.
pub trait Fields<'a> {
    /// Returns the value of the name with this index; `None` if the event has none.
    fn value(&mut self, name: usize) -> Option<Value<'a>>;

    /// Returns the value if it is a [`Value::Integer`] that can be read quickly. `None` does not mean that there is no
    /// value.
    #[inline(always)]
    fn integer(&mut self, _: usize) -> Option<i128> {
        None
    }
}

/// The labels of an enumeration.
pub trait Labels: fmt::Debug {
    /// Whether `is_it` is true for one of the labels of this number.
    fn any(&self, number: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// The names of the levels of event classes.
#[derive(Debug)]
struct LevelNames;

impl Labels for LevelNames {
    fn any(&self, number: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let level = u8::try_from(number).ok().and_then(Level::from_number);
        level.is_some_and(|level| is_it(level.name().as_bytes()))
    }
}

/// A level is an enumeration: its number is compared with numbers, and its name with text.
impl From<Level> for Value<'_> {
    fn from(level: Level) -> Self {
        Value::Enumeration(level as i128, &LevelNames)
    }
}

impl Value<'_> {
    /// Returns the truth of the value; `None` for text.
    pub fn is_true(&self) -> Option<bool> {
        match self {
            Value::Integer(number) | Value::Enumeration(number, _) => Some(*number != 0),
            Value::Float(float) => Some(*float != 0.0),
            Value::Boolean(boolean) => Some(*boolean),
            Value::Text(_) => None,
        }
    }

    /// Whether the text, or one of the labels, matches; `None` for other values.
    pub fn matches(&self, pattern: &[u8]) -> Option<bool> {
        match self {
            Value::Text(text) => Some(matches(pattern, text)),
            Value::Enumeration(number, labels) => Some(labels.any(*number, &mut |label| matches(pattern, label))),
            _ => None,
        }
    }

    /// Whether the relation holds; `None` if the values are not comparable.
    pub fn compare(&self, operator: Operator, other: &Value<'_>) -> Option<bool> {
        let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
        let equality = |is_equal: bool| is_equality.then_some(is_equal == (operator == Operator::Equal));
        match (self, other) {
            (Value::Text(text), Value::Enumeration(number, labels))
            | (Value::Enumeration(number, labels), Value::Text(text)) => {
                // Labels have no order.
                is_equality.then(|| equality(labels.any(*number, &mut |label| label == &**text)))?
            }
            (Value::Boolean(boolean), value) | (value, Value::Boolean(boolean)) => {
                equality(value.is_true()? == *boolean)
            }
            (left, right) => Some(operator.holds(order(left, right)?)),
        }
    }
}

/// A relation between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Operator {
    /// All relations, in the order of their numbers.
    pub const ALL: [Operator; 6] = {
        use Operator::*;
        [Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual]
    };

    /// Whether the relation holds for values in this order. Without an order (NaN) only `NotEqual` holds.
    pub fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            Operator::Equal => order == Some(Ordering::Equal),
            Operator::NotEqual => order != Some(Ordering::Equal),
            Operator::Less => order == Some(Ordering::Less),
            Operator::LessOrEqual => order.is_some_and(Ordering::is_le),
            Operator::Greater => order == Some(Ordering::Greater),
            Operator::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
        }
    }
}

/// Returns the order of two values; `None` if they are not comparable.
fn order(left: &Value<'_>, right: &Value<'_>) -> Option<Option<Ordering>> {
    use Value::{Enumeration, Float, Integer, Text};
    Some(match (left, right) {
        (Integer(left) | Enumeration(left, _), Integer(right) | Enumeration(right, _)) => Some(left.cmp(right)),
        (Float(left), Float(right)) => left.partial_cmp(right),
        (Integer(left) | Enumeration(left, _), Float(right)) => order_exactly(*left, *right),
        (Float(left), Integer(right) | Enumeration(right, _)) => order_exactly(*right, *left).map(Ordering::reverse),
        (Text(left), Text(right)) => Some(left.cmp(right)),
        _ => return None,
    })
}

/// Compares without rounding either number.
fn order_exactly(integer: i128, float: f64) -> Option<Ordering> {
    const BOUND: f64 = (1u128 << 126) as f64;
    if float.is_nan() {
        return None;
    }
    // Beyond the range of every integer in an event.
    if float.abs() >= BOUND {
        return Some(if float > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    // Truncates, and is exact in both directions below the bound.
    let whole = float as i128;
    let fraction = || 0.0f64.partial_cmp(&(float - whole as f64)).unwrap_or(Ordering::Equal);
    Some(integer.cmp(&whole).then_with(fraction))
}

/// Returns the number that the shortest decimal text of a 32-bit number denotes: 0.1 for the `f32` nearest to 0.1,
/// whose exact value is 0.100000001490116…. The order of numbers stays the same. Allocates nothing.
pub fn shown_float(value: f32) -> f64 {
    use fmt::Write;
    /// Room for a text; more is an error.
    struct Room {
        // A sign, 9 digits, a point, an exponent.
        bytes: [u8; 24],
        len: usize,
    }
    impl Write for Room {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = self.len + text.len();
            self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
            self.len = end;
            Ok(())
        }
    }
    let mut room = Room { bytes: [0; 24], len: 0 };
    let is_written = write!(room, "{value:e}").is_ok();
    let number = core::str::from_utf8(&room.bytes[..room.len]).ok().and_then(|text| text.parse().ok());
    number.filter(|_| is_written).unwrap_or_else(|| value.into())
}

/// Whether a text matches a pattern: `*` is any text, `?` one character, and a backslash makes the next character
/// literal.
///
/// Cost: O(pattern × text).
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match_by_steps(pattern, text, || true) == Some(true)
}

/// Whether a text [`matches()`] a pattern. Each step takes 1 from `steps`; `None` if there are none left.
pub fn matches_within(pattern: &[u8], text: &[u8], steps: &mut u32) -> Option<bool> {
    let take = || match steps.checked_sub(1) {
        Some(left) => {
            *steps = left;
            true
        }
        None => false,
    };
    match_by_steps(pattern, text, take)
}

/// Returns whether a text matches a pattern, or `None` if a step may not be made.
#[inline(always)]
fn match_by_steps(pattern: &[u8], text: &[u8], mut may_step: impl FnMut() -> bool) -> Option<bool> {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if !may_step() {
            return None;
        }
        let step = match (pattern.get(p), text.get(t)) {
            (Some(b'*'), _) => {
                p += 1;
                retry = Some((p, t));
                continue;
            }
            (None, None) => return Some(true),
            (Some(b'?'), Some(_)) => Some((1, character_len(&text[t..]))),
            (Some(b'\\'), Some(byte)) if pattern.get(p + 1) == Some(byte) => Some((2, 1)),
            (Some(wanted), Some(byte)) if wanted == byte && *wanted != b'\\' => Some((1, 1)),
            _ => None,
        };
        match (step, retry) {
            (Some((of_pattern, of_text)), _) => (p, t) = (p + of_pattern, t + of_text),
            (None, Some((star, from))) if from < text.len() => {
                retry = Some((star, from + 1));
                (p, t) = (star, from + 1);
            }
            (None, _) => return Some(false),
        }
    }
}

/// Returns the length of the first character in bytes; 1 if it is not UTF-8.
fn character_len(text: &[u8]) -> usize {
    let len = match text[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    if text.get(..len).is_some_and(|bytes| core::str::from_utf8(bytes).is_ok()) { len } else { 1 }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;

    use super::*;

    #[test]
    fn relations_are_numbered_in_order() {
        for (number, operator) in Operator::ALL.into_iter().enumerate() {
            assert_eq!(operator as usize, number);
        }
    }

    #[test]
    fn levels_are_compared_by_number_and_by_name() {
        let warning = Value::from(Level::Warning);
        let text = |text: &'static str| Value::Text(text.as_bytes().into());
        for (operator, other, expected) in [
            (Operator::LessOrEqual, Value::Integer(4), Some(true)),
            (Operator::Less, Value::Integer(4), Some(false)),
            (Operator::LessOrEqual, Value::from(Level::Debug), Some(true)),
            (Operator::Equal, text("WARNING"), Some(true)),
            (Operator::NotEqual, text("INFO"), Some(true)),
            (Operator::Equal, text("warning"), Some(false)),
            // Names have no order.
            (Operator::LessOrEqual, text("WARNING"), None),
        ] {
            assert_eq!(warning.compare(operator, &other), expected, "{operator:?} {other:?}");
        }
        assert_eq!(Value::from(Level::DebugUnit).matches(b"DEBUG*"), Some(true));
        assert_eq!(warning.matches(b"DEBUG*"), Some(false));
    }

    #[test]
    fn patterns_match_with_wildcards() {
        for (pattern, text, expected) in [
            ("lib*", "libc.so", true),
            ("lib*", "glibc", false),
            ("*.so", "a.so.so", true),
            ("*.so", "a.so.6", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "ü", true),
            ("?", "", false),
            ("??", "ü", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            (r"\*", "*", true),
            (r"\*", "a", false),
            (r"a\?", "a?", true),
            (r"\\", r"\", true),
            (r"\", r"\", false),
            ("a.b", "a:b", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        assert!(matches(b"a?b", b"a\xffb"));
        let mut steps = 100;
        assert_eq!(matches_within(b"a*", b"abc", &mut steps), Some(true));
        assert_eq!(matches_within(b"*a*a*a*b", &[b'a'; 100], &mut steps), None);
        assert_eq!(steps, 0);
    }

    #[test]
    fn whole_numbers_and_floats_are_compared_exactly() {
        let big = (1i128 << 53) + 1;
        for (integer, float, expected) in [
            (big, (1u64 << 53) as f64, Some(Ordering::Greater)),
            (1, 1.0, Some(Ordering::Equal)),
            (1, 1.5, Some(Ordering::Less)),
            (-1, -1.5, Some(Ordering::Greater)),
            (0, -0.5, Some(Ordering::Greater)),
            (u64::MAX.into(), 1.8446744073709552e19, Some(Ordering::Less)),
            (i128::from(i64::MIN), f64::NEG_INFINITY, Some(Ordering::Greater)),
            (5, f64::INFINITY, Some(Ordering::Less)),
            (5, f64::NAN, None),
        ] {
            assert_eq!(order_exactly(integer, float), expected, "{integer} {float}");
        }
    }

    /// The text of the result has as few digits as the 32-bit number's, and gives the number back; the order stays.
    #[test]
    fn a_32_bit_number_is_shown_in_its_own_digits() {
        let digits = |text: String| text.chars().filter(char::is_ascii_digit).collect::<String>();
        let mut bits = 1u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(bits);
            let shown = shown_float(value);
            if value.is_finite() {
                assert_eq!((shown as f32).to_bits(), bits);
                assert_eq!(digits(format!("{shown:e}")), digits(format!("{value:e}")));
                let next = value.next_up();
                assert!(!next.is_finite() || shown < shown_float(next) || next == 0.0, "{value}");
            } else {
                assert!(if value.is_nan() { shown.is_nan() } else { shown == f64::from(value) });
            }
        }
        assert_eq!([0.1, 16_777_216.0, -0.0, f32::MAX].map(shown_float), [0.1, 16_777_216.0, 0.0, 3.4028235e38]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(shown_float), [f64::INFINITY, f64::NEG_INFINITY]);
        assert!(shown_float(-0.0).is_sign_negative());
        // The longest texts.
        for value in [f32::MIN, -f32::MIN_POSITIVE, f32::from_bits(0x807F_FFFF), f32::from_bits(0x8000_0001)] {
            assert_eq!(shown_float(value), format!("{value:e}").parse::<f64>().unwrap());
        }
    }
}
