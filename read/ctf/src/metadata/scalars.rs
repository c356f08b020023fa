//! Properties of numbers and texts (clauses 4.1 and 4.2.5).

use std::collections::HashSet;

use super::error::{Checked, fail};
use super::syntax::{Assignment, At, Value};
use crate::model::{Base, ByteOrder, ClockClass, Float, Integer};

/// Parses the properties of an integer.
pub(super) fn integer(
    native: ByteOrder,
    clocks: &[ClockClass],
    at: At,
    properties: &[Assignment<'_>],
) -> Checked<Integer> {
    let mut integer = Integer::new(0, 0, native);
    let mut keys = HashSet::new();
    for property in properties {
        if !keys.insert(&property.key) {
            return fail(property.at, format!("the key {} is there already", property.key));
        }
        let value_at = property.value_at;
        match (property.key.as_ref(), &property.value) {
            ("size", Value::Number(size @ 1..=64)) => integer.size_bits = *size as u32,
            ("size", _) => return fail(value_at, "an integer has 1 to 64 bits"),
            ("align", Value::Number(number)) => integer.align_bits = align_of(value_at, *number)?,
            ("signed", value) => integer.is_signed = flag(value_at, value)?,
            ("byte_order", value) => integer.byte_order = byte_order_of(native, value_at, value)?,
            ("base", value) => integer.base = base(value_at, value)?,
            ("encoding", _) => integer.is_character = encoding(property)?,
            ("map", Value::Word(path)) => {
                let name = path.strip_prefix("clock.").and_then(|path| path.strip_suffix(".value"));
                let Some(name) = name else { return fail(value_at, "expected clock.NAME.value") };
                let clock = clocks.iter().position(|clock| clock.name == name);
                if clock.is_none() {
                    return fail(value_at, format!("there is no clock named {name}"));
                }
                integer.clock = clock;
            }
            ("align" | "map", _) => return fail(value_at, "this value is of another kind"),
            // The remaining keys have their own checks of values.
            _ => {}
        }
    }
    if integer.size_bits == 0 {
        return fail(at, "this integer has no size");
    }
    if integer.align_bits == 0 {
        integer.align_bits = if integer.size_bits.is_multiple_of(8) { 8 } else { 1 };
    }
    Ok(integer)
}

/// Parses the properties of a floating-point number.
pub(super) fn float(native: ByteOrder, at: At, properties: &[Assignment<'_>]) -> Checked<Float> {
    let mut float = Float { size_bits: 0, align_bits: 0, byte_order: native, is_reversed: false };
    let (mut exponent, mut mantissa) = (0, 0);
    for property in properties {
        let value_at = property.value_at;
        match (property.key.as_ref(), &property.value) {
            ("exp_dig", Value::Number(number)) => exponent = *number,
            ("mant_dig", Value::Number(number)) => mantissa = *number,
            ("align", Value::Number(number)) => float.align_bits = align_of(value_at, *number)?,
            ("byte_order", value) => float.byte_order = byte_order_of(native, value_at, value)?,
            ("exp_dig" | "mant_dig" | "align", _) => return fail(value_at, "expected a number"),
            _ => {}
        }
    }
    float.size_bits = match (exponent, mantissa) {
        (8, 24) => 32,
        (11, 53) => 64,
        _ => return fail(at, "floating-point numbers are of 32 bits (exp_dig 8, mant_dig 24) or 64 (11, 53)"),
    };
    float.align_bits = if float.align_bits == 0 { 8 } else { float.align_bits };
    Ok(float)
}

fn byte_order_of(native: ByteOrder, at: At, value: &Value<'_>) -> Checked<ByteOrder> {
    match value {
        Value::Word(word) if word == "native" => Ok(native),
        Value::Word(word) if word == "le" => Ok(ByteOrder::Little),
        Value::Word(word) if word == "be" || word == "network" => Ok(ByteOrder::Big),
        _ => fail(at, "expected native, le, be or network"),
    }
}

/// Parses `true`, `TRUE`, `1` and their opposites.
pub(super) fn flag(at: At, value: &Value<'_>) -> Checked<bool> {
    match value {
        Value::Number(number @ (0 | 1)) => Ok(*number == 1),
        Value::Word(word) if matches!(word.as_ref(), "true" | "TRUE") => Ok(true),
        Value::Word(word) if matches!(word.as_ref(), "false" | "FALSE") => Ok(false),
        _ => fail(at, "expected true or false"),
    }
}

pub(super) fn align_of(at: At, number: i128) -> Checked<u64> {
    match u64::try_from(number) {
        Ok(align) if align.is_power_of_two() && align <= 1 << 32 => Ok(align),
        _ => fail(at, "an alignment is a power of two"),
    }
}

/// Whether the encoding is one of characters.
pub(super) fn encoding(property: &Assignment<'_>) -> Checked<bool> {
    let word = match &property.value {
        Value::Word(word) => word.as_ref(),
        Value::Text(text) => text.as_str(),
        Value::Number(_) => return fail(property.value_at, "expected none, UTF8 or ASCII"),
    };
    match word {
        "none" | "NONE" => Ok(false),
        "UTF8" | "utf8" | "UTF-8" | "utf-8" | "ASCII" | "ascii" => Ok(true),
        _ => fail(property.value_at, "expected none, UTF8 or ASCII"),
    }
}

fn base(at: At, value: &Value<'_>) -> Checked<Base> {
    Ok(match value {
        Value::Number(2) => Base::Binary,
        Value::Number(8) => Base::Octal,
        Value::Number(10) => Base::Decimal,
        Value::Number(16) => Base::Hexadecimal,
        Value::Word(word) => match word.as_ref() {
            "binary" | "b" => Base::Binary,
            "octal" | "oct" | "o" => Base::Octal,
            "decimal" | "dec" | "d" | "i" | "u" => Base::Decimal,
            "hexadecimal" | "hex" | "x" | "X" | "p" => Base::Hexadecimal,
            _ => return fail(at, "expected a base: decimal, hexadecimal, octal or binary"),
        },
        _ => return fail(at, "expected a base: 2, 8, 10 or 16"),
    })
}
