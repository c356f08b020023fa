//! Times as text.

use super::buffer::{Buffer, Piece};
use super::number::{put_fraction, put_u64};
use super::put;
use dormouse_ctf::time::Civil;

/// Format of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockFormat {
    /// `14:03:05.123456789`.
    #[default]
    TimeOfDay,
    /// `2026-11-21 14:03:05.123456789`, as with `--clock-date`.
    DateTime,
    /// Seconds since the epoch, `1795269785.123456789`, as with `--clock-seconds`.
    Seconds,
    /// Seconds since this time, which is in nanoseconds since the epoch: `0.000001234`.
    Since(i64),
}

const NS: i64 = 1_000_000_000;

/// Text at the start of all times within a second, without and with a bracket.
#[derive(Default)]
struct Second {
    begin: Piece,
    in_brackets: Piece,
}

/// Formatter of times.
pub(crate) struct ClockText<'a> {
    format: ClockFormat,
    utc_offset_s: Box<dyn Fn(i64) -> i32 + 'a>,
    /// The last second, and its text.
    second: Option<(i64, Second)>,
}

impl std::fmt::Debug for ClockText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClockText").field("format", &self.format).finish_non_exhaustive()
    }
}

impl<'a> ClockText<'a> {
    /// `utc_offset_s` returns the offset of the local time in seconds east of UTC, for a time in seconds since the
    /// epoch.
    pub(crate) fn new(format: ClockFormat, utc_offset_s: impl Fn(i64) -> i32 + 'a) -> ClockText<'a> {
        ClockText { format, utc_offset_s: Box::new(utc_offset_s), second: None }
    }

    /// Appends a time, in nanoseconds since the epoch.
    pub(crate) fn put(&mut self, ns: i64, out: &mut Vec<u8>) {
        if let ClockFormat::Since(begin) = self.format {
            let distance = i128::from(ns) - i128::from(begin);
            if distance < 0 {
                out.push(b'-');
            }
            put_u64(out, (distance.unsigned_abs() / NS as u128) as u64);
            out.push(b'.');
            return put_fraction(out, (distance.unsigned_abs() % NS as u128) as u32);
        }
        self.second(ns.div_euclid(NS)).begin.put(out);
        put_fraction(out, ns.rem_euclid(NS) as u32);
    }

    /// Appends a time after an opening bracket.
    #[inline(always)]
    pub(super) fn append(&mut self, ns: i64, out: &mut Buffer) {
        if let ClockFormat::Since(_) = self.format {
            let mut text = vec![b'['];
            self.put(ns, &mut text);
            return out.put(&text);
        }
        out.piece(&self.second(ns.div_euclid(NS)).in_brackets);
        out.fraction(ns.rem_euclid(NS) as u32);
    }

    /// Whether all times within a second begin with the same text.
    pub(super) fn is_by_second(&self) -> bool {
        !matches!(self.format, ClockFormat::Since(_))
    }

    /// Length in bytes of that text, for the last appended time.
    pub(super) fn second_bytes(&self) -> usize {
        self.second.as_ref().map_or(0, |(_, second)| second.in_brackets.len())
    }

    /// Returns the text at the start of times within this second.
    #[inline(always)]
    fn second(&mut self, epoch_s: i64) -> &Second {
        if self.second.as_ref().is_none_or(|(second, _)| *second != epoch_s) {
            let begin = self.begin(epoch_s);
            let in_brackets = [b"[", begin.as_slice()].concat();
            let [begin, in_brackets] = [begin, in_brackets].map(|text| Piece::from(text.as_slice()));
            self.second = Some((epoch_s, Second { begin, in_brackets }));
        }
        &self.second.get_or_insert_default().1
    }

    fn begin(&self, epoch_s: i64) -> Vec<u8> {
        let mut out = Vec::new();
        if self.format == ClockFormat::Seconds {
            put(&mut out, format_args!("{epoch_s}."));
            return out;
        }
        let civil = Civil::new(epoch_s + i64::from((self.utc_offset_s)(epoch_s)));
        let Civil { year, month, day, hour, minute, second } = civil;
        if self.format == ClockFormat::DateTime {
            put(&mut out, format_args!("{year:04}-{month:02}-{day:02} "));
        }
        put(&mut out, format_args!("{hour:02}:{minute:02}:{second:02}."));
        out
    }
}

/// Appends `2026-11-21T14:03:05.123456789Z` (RFC 3339).
pub(super) fn put_utc(ns: i64, out: &mut Vec<u8>) {
    let Civil { year, month, day, hour, minute, second } = Civil::new(ns.div_euclid(NS));
    put(out, format_args!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}."));
    put_fraction(out, ns.rem_euclid(NS) as u32);
    out.push(b'Z');
}
