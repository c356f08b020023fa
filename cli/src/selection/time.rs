//! Times as the user writes them on the command line, and the times of a trace that they stand for.

use std::time::Duration;

use anyhow::bail;
use dormouse_ctf::Problem;
use dormouse_ctf::stream::RecordError;
use dormouse_reader::{Bounds, TraceFiles};
use dormouse_terminal::parse_duration;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// A time as the user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TimeOption {
    /// Nanoseconds since the epoch.
    At(i64),
    /// Time of day, local.
    TimeOfDay(Time),
    /// Nanoseconds from the zero of relative times, see [`zero_ns`].
    FromBegin(i64),
    /// Nanoseconds before the end.
    FromEnd(i64),
    /// The first event whose class matches.
    Event(String),
}

const NS: i64 = 1_000_000_000;

impl TimeOption {
    /// Returns the pattern of an event class, if the time is given by an event.
    pub(super) fn event(&self) -> Option<&str> {
        if let TimeOption::Event(pattern) = self { Some(pattern) } else { None }
    }
}

impl std::fmt::Display for TimeOption {
    /// Writes it as [`parse`] reads it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TimeOption::At(ns) => write!(f, "{}.{:09}", ns.div_euclid(NS), ns.rem_euclid(NS)),
            TimeOption::TimeOfDay(time) => write!(f, "{time}"),
            TimeOption::FromBegin(ns) => write!(f, "+{ns}ns"),
            TimeOption::FromEnd(ns) => write!(f, "-{ns}ns"),
            TimeOption::Event(pattern) => write!(f, "event:{pattern}"),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<TimeOption, String> {
    let wrong = || {
        format!(
            "`{text}` is not a time; write 14:03:05.5, 2026-11-26, \"2026-11-26 14:03\", 2026-11-26T14:03:05Z, 1700000000.25 (seconds since 1970), \
             +1.5s (from the first event), -2s (from its end) or event:NAME"
        )
    };
    let duration = |text: &str| {
        let duration = parse_duration(text)?;
        i64::try_from(duration.as_nanos()).map_err(|_| wrong())
    };
    if let Some(pattern) = text.strip_prefix("event:") {
        return Ok(TimeOption::Event(pattern.into()));
    }
    if let Some(text) = text.strip_prefix('+') {
        return duration(text).map(TimeOption::FromBegin);
    }
    if let Some(text) = text.strip_prefix('-') {
        return duration(text).map(TimeOption::FromEnd);
    }
    if let Some(ns) = seconds(text) {
        return Ok(TimeOption::At(ns));
    }
    let ns = |time: Timestamp| i64::try_from(time.as_nanosecond()).map_err(|_| wrong());
    if let Ok(time) = text.parse::<Timestamp>() {
        return ns(time).map(TimeOption::At);
    }
    if let Ok(time) = text.parse::<DateTime>() {
        let zoned = time.to_zoned_datetime(TimeZone::system()).map_err(|_| wrong())?;
        return ns(zoned.timestamp()).map(TimeOption::At);
    }
    text.parse().map(TimeOption::TimeOfDay).map_err(|_| wrong())
}

/// Parses seconds with up to nine decimals, such as `1700000000.25`, into nanoseconds, without rounding.
fn seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let fraction_ns: i64 = format!("{fraction:0<9}").parse().ok()?;
    whole.parse::<i64>().ok()?.checked_mul(NS)?.checked_add(fraction_ns)
}

/// Returns the zero of relative times, in nanoseconds since the epoch: the time of the first event that has one. The
/// session owner's own records count only if there is no other event, because they are on no timeline.
pub(crate) fn zero_ns(files: &TraceFiles) -> Option<i64> {
    let (mut events, mut of_owner) = (files.events(), None);
    while let Some(item) = events.next_event() {
        match item {
            Ok(event) if !event.is_state() && event.time_ns.is_some() => return event.time_ns,
            Ok(event) => of_owner = of_owner.or(event.time_ns),
            Err(_) => {}
        }
    }
    of_owner
}

/// Returns a line that says what the zero of relative times is.
pub(crate) fn zero_line(zero_ns: i64) -> String {
    let time = Timestamp::from_nanosecond(zero_ns.into()).map(|time| time.to_zoned_datetime(TimeZone::system()));
    let time = time.map(|time| time.strftime("%Y-%m-%d %H:%M:%S.%9f %:z").to_string());
    let time = time.unwrap_or_else(|_| format!("{zero_ns} ns since 1970"));
    format!("times count from the first event of the trace, at {time}")
}

/// Returns an error that says why the trace has no time to which others could be relative.
fn no_time(files: &TraceFiles) -> anyhow::Error {
    let mut events = files.events();
    while let Some(item) = events.next_event() {
        if let Err(notice) = item
            && let Problem::Beyond(_) | Problem::Record { error: RecordError::Beyond(_), .. } = notice.problem
        {
            return anyhow::anyhow!("no event of this trace has a readable time: {notice}");
        }
    }
    anyhow::anyhow!("this trace has no event with a time")
}

/// Returns the time range in which events are wanted.
pub(super) fn bounds(
    files: &TraceFiles,
    (since, until): (Option<&TimeOption>, Option<&TimeOption>),
    duration: Option<Duration>,
    last: Option<Duration>,
) -> anyhow::Result<Bounds> {
    let ns_of = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    let last = last.map(|last| TimeOption::FromEnd(ns_of(last)));
    let since = since.or(last.as_ref());
    let ns = |when: Option<&TimeOption>, without: i64| when.map_or(Ok(without), |when| resolve(files, when, without));
    let times = (ns(since, i64::MIN)?, ns(until, i64::MAX)?);
    let mut bounds = Bounds::new(files, times, since.and_then(TimeOption::event), until.and_then(TimeOption::event));
    if let Some(duration) = duration {
        if bounds.first_ns == i64::MIN {
            bail!("--for counts from --since, and no such event is in the trace yet");
        }
        bounds.last_ns = bounds.first_ns.saturating_add(ns_of(duration));
    }
    if bounds.first_ns > bounds.last_ns {
        bail!("--since is later than --until; swap them");
    }
    Ok(bounds)
}

fn resolve(files: &TraceFiles, when: &TimeOption, without: i64) -> anyhow::Result<i64> {
    let known = |ns: Option<i64>| ns.ok_or_else(|| no_time(files));
    Ok(match *when {
        TimeOption::At(ns) => ns,
        TimeOption::FromBegin(ns) => known(zero_ns(files))?.saturating_add(ns),
        TimeOption::FromEnd(ns) => known(files.end_ns())?.saturating_sub(ns),
        TimeOption::TimeOfDay(time) => time_of_day(time, known(zero_ns(files))?, files.end_ns())?,
        TimeOption::Event(_) => without,
    })
}

/// Returns `time` on the day on which the trace begins, or on the next day if only that lies within the trace.
fn time_of_day(time: Time, begin_ns: i64, end_ns: Option<i64>) -> anyhow::Result<i64> {
    let begin = Timestamp::from_nanosecond(begin_ns.into())?.to_zoned_datetime(TimeZone::system());
    let on_day = |date: jiff::civil::Date| -> anyhow::Result<i64> {
        let zoned = date.to_datetime(time).to_zoned_datetime(TimeZone::system())?;
        Ok(i64::try_from(zoned.timestamp().as_nanosecond())?)
    };
    let same_day = on_day(begin.date())?;
    if same_day < begin_ns {
        let next_day = on_day(begin.date().checked_add(1.day())?)?;
        if end_ns.is_some_and(|end_ns| next_day <= end_ns) {
            return Ok(next_day);
        }
    }
    Ok(same_day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_time_is_parsed() {
        for (text, expected) in [
            ("1700000000.000000001", TimeOption::At(1_700_000_000_000_000_001)),
            ("5", TimeOption::At(5 * NS)),
            ("2023-11-14T22:13:20Z", TimeOption::At(1_700_000_000 * NS)),
            ("2023-11-14T23:13:20.5+01:00", TimeOption::At(1_700_000_000 * NS + NS / 2)),
            ("+1.5s", TimeOption::FromBegin(NS * 3 / 2)),
            ("-2ms", TimeOption::FromEnd(2_000_000)),
            ("event:a:b", TimeOption::Event("a:b".into())),
            ("14:03", TimeOption::TimeOfDay(jiff::civil::time(14, 3, 0, 0))),
            ("14:03:05.000000007", TimeOption::TimeOfDay(jiff::civil::time(14, 3, 5, 7))),
        ] {
            assert_eq!(parse(&expected.to_string()), Ok(expected.clone()), "{text}");
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for text in ["", "yesterday", "25:00", "+", "+5", "1700000000.0000000001"] {
            let found = parse(text);
            assert!(found.is_err(), "{text}: {found:?}");
        }
    }
}
