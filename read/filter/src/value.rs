//! Values and comparisons of them.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

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

/// The labels of an enumeration.
pub trait Labels: fmt::Debug {
    /// Whether `is_it` is true for one of the labels of this number.
    fn any(&self, number: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

impl Value<'_> {
    /// Returns the truth of the value; `None` for text.
    pub(crate) fn is_true(&self) -> Option<bool> {
        match self {
            Value::Integer(number) | Value::Enumeration(number, _) => Some(*number != 0),
            Value::Float(float) => Some(*float != 0.0),
            Value::Boolean(boolean) => Some(*boolean),
            Value::Text(_) => None,
        }
    }

    /// Whether the text, or one of the labels, matches; `None` for other values.
    pub(crate) fn matches(&self, pattern: &[u8]) -> Option<bool> {
        match self {
            Value::Text(text) => Some(matches(pattern, text)),
            Value::Enumeration(number, labels) => Some(labels.any(*number, &mut |label| matches(pattern, label))),
            _ => None,
        }
    }

    /// Whether the relation holds; `None` if the values are not comparable.
    pub(crate) fn compare(&self, operator: Operator, other: &Value<'_>) -> Option<bool> {
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
pub(crate) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Operator {
    /// Whether the relation holds for values in this order. Without an order (NaN) only `NotEqual` holds.
    pub(crate) fn holds(self, order: Option<Ordering>) -> bool {
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
    let whole = float.trunc();
    let fraction = || 0.0f64.partial_cmp(&(float - whole)).unwrap_or(Ordering::Equal);
    Some(integer.cmp(&(whole as i128)).then_with(fraction))
}

/// Whether a text matches a pattern: `*` is any text, `?` one character, and a backslash makes the next character
/// literal.
///
/// Cost: O(pattern × text).
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match (pattern.get(p), text.get(t)) {
            (Some(b'*'), _) => {
                p += 1;
                retry = Some((p, t));
                continue;
            }
            (None, None) => return true,
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
            (None, _) => return false,
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
    if text.get(..len).is_some_and(|bytes| std::str::from_utf8(bytes).is_ok()) { len } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
