//! An event as `babeltrace2` prints it.
//!
//! ```text
//! [14:03:05.123456789] (+0.000000012) lair http:request: { cpu_id = 0 }, { vpid = 12, vtid = 13 }, { id = 7, path = "/x" }
//! ```
//!
//! The zone of the times comes from the caller, because where it is looked up (files, environment) is no concern of a codec.

use std::io::Write;

use dormouse_abi::class::Kind;

use crate::metadata::Metadata;
use crate::stream::{Event, Notice, Problem};
use crate::time::Civil;
use crate::value::{Sequence, Value};

/// How a time is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockFormat {
    /// `14:03:05.123456789`.
    #[default]
    TimeOfDay,
    /// `2026-11-21 14:03:05.123456789`, as `--clock-date`.
    DateTime,
    /// Seconds since the epoch, `1795269785.123456789`, as `--clock-seconds`.
    Seconds,
}

/// Formats the events of a trace, one after another in the order of time.
pub struct Formatter<'a> {
    metadata: &'a Metadata,
    clock_format: ClockFormat,
    utc_offset_s: Box<dyn Fn(i64) -> i32 + 'a>,
    /// Time of the event before, from which the next one's distance is shown.
    last_ns: Option<i64>,
}

impl std::fmt::Debug for Formatter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Formatter").field("clock_format", &self.clock_format).finish_non_exhaustive()
    }
}

impl<'a> Formatter<'a> {
    /// `utc_offset_s` gives the offset of the local time at a time in seconds since the epoch, in seconds east of UTC;
    /// `|_| 0` shows UTC.
    pub fn new(
        metadata: &'a Metadata,
        clock_format: ClockFormat,
        utc_offset_s: impl Fn(i64) -> i32 + 'a,
    ) -> Formatter<'a> {
        Formatter { metadata, clock_format, utc_offset_s: Box::new(utc_offset_s), last_ns: None }
    }

    /// Appends the event's line, newline included. Text comes out as the bytes that the program wrote, which need not be
    /// UTF-8; control characters are escaped.
    pub fn event(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        let ns = self.metadata.options.clock.epoch_ns(event.timestamp);
        self.time(ns, out);
        match self.last_ns.replace(ns) {
            Some(last) => {
                let distance = ns.saturating_sub(last).max(0);
                put(out, format_args!(" (+{}.{:09}) ", distance / NS, distance % NS));
            }
            None => out.extend(b" (+?.?????????) "),
        }
        let hostname = &self.metadata.options.hostname;
        put(out, format_args!("{hostname} {}: {{ cpu_id = {} }}", event.class.full_name, event.cpu_id));
        if let Some((vpid, vtid)) = event.context {
            put(out, format_args!(", {{ vpid = {vpid}, vtid = {vtid} }}"));
        }
        out.extend(b", {");
        let mut separator = " ";
        for (name, value) in event.fields() {
            out.extend(separator.as_bytes());
            separator = ", ";
            match value {
                Value::Sequence(sequence) => put_sequence(out, name, sequence),
                Value::Bytes(bytes) => {
                    // Bytes are a sequence of `u8` to readers of CTF.
                    let sequence = Sequence::new(Kind::U8, bytes).expect("u8 is a scalar");
                    put_sequence(out, name, sequence);
                }
                value => {
                    put(out, format_args!("{name} = "));
                    put_scalar(out, value);
                }
            }
        }
        out.extend(b" }\n");
    }

    /// A line, without newline, that warns of what a notice tells. `stream` names the stream, for example its file.
    pub fn warning(&self, notice: &Notice, stream: &str) -> String {
        let Problem::Discarded { count, begin, end } = notice.problem else {
            return format!("warning: {stream}: {notice}");
        };
        let mut out =
            format!("warning: {stream}: {count} event{} discarded between ", if count == 1 { "" } else { "s" })
                .into_bytes();
        self.time(self.metadata.options.clock.epoch_ns(begin), &mut out);
        out.extend(b" and ");
        self.time(self.metadata.options.clock.epoch_ns(end), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn time(&self, ns: i64, out: &mut Vec<u8>) {
        let (epoch_s, fraction) = (ns.div_euclid(NS), ns.rem_euclid(NS));
        if self.clock_format == ClockFormat::Seconds {
            return put(out, format_args!("[{epoch_s}.{fraction:09}]"));
        }
        let civil = Civil::new(epoch_s + i64::from((self.utc_offset_s)(epoch_s)));
        let Civil { year, month, day, hour, minute, second } = civil;
        out.push(b'[');
        if self.clock_format == ClockFormat::DateTime {
            put(out, format_args!("{year:04}-{month:02}-{day:02} "));
        }
        put(out, format_args!("{hour:02}:{minute:02}:{second:02}.{fraction:09}]"));
    }
}

const NS: i64 = 1_000_000_000;

fn put_sequence(out: &mut Vec<u8>, name: &str, sequence: Sequence<'_>) {
    put(out, format_args!("_{name}_length = {}, {name} = [", sequence.count()));
    for (index, element) in sequence.iter().enumerate() {
        put(out, format_args!("{} [{index}] = ", if index == 0 { "" } else { "," }));
        put_scalar(out, element);
    }
    out.extend(b" ]");
}

fn put_scalar(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::U8(value) | Value::Bool(value) => put(out, format_args!("{value}")),
        Value::U16(value) => put(out, format_args!("{value}")),
        Value::U32(value) => put(out, format_args!("{value}")),
        Value::U64(value) => put(out, format_args!("{value}")),
        Value::I8(value) => put(out, format_args!("{value}")),
        Value::I16(value) => put(out, format_args!("{value}")),
        Value::I32(value) => put(out, format_args!("{value}")),
        Value::I64(value) => put(out, format_args!("{value}")),
        Value::F32(value) => put_g(out, value.into()),
        Value::F64(value) => put_g(out, value),
        Value::Pointer(value) => put(out, format_args!("0x{value:X}")),
        Value::Str(text) => put_text(out, text),
        Value::Bytes(_) | Value::Sequence(_) => unreachable!("{value:?} is no scalar"),
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'\\' | b'\'' | b'"' | b'?' => out.extend([b'\\', *byte]),
            0x07 => out.extend(b"\\a"),
            0x08 => out.extend(b"\\b"),
            0x0c => out.extend(b"\\f"),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x0b => out.extend(b"\\v"),
            0x1b => out.extend(b"\\e"),
            byte if byte.is_ascii_control() => put(out, format_args!("\\x{byte:02x}")),
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
}

/// As C's `%g`: six significant digits, trailing zeros left out.
fn put_g(out: &mut Vec<u8>, value: f64) {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if !value.is_finite() {
        return put(out, format_args!("{sign}{}", if value.is_nan() { "nan" } else { "inf" }));
    }
    // The exponent is that after rounding: 999999.9 is 1e+06.
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

fn put(out: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments).expect("a Vec takes all bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

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
