//! Triggers of snapshots: shared by the command, which is given them, and the program, which obeys them.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

/// Environment variable: triggers separated by commas, such as `crash,exit,USR2`.
pub const ENV_SNAPSHOT_ON: &str = "DORMOUSE_SNAPSHOT_ON";

/// Condition under which a program requests a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A signal that reports a fault in the program is about to end it: SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS,
    /// SIGABRT.
    Crash,
    /// A Rust thread panics, whether or not the panic is caught.
    Panic,
    /// The program ends by `exit` or by returning from `main`.
    Exit,
    /// A signal with this number arrives.
    Signal(i32),
    /// An armed event occurs whose class matches this pattern.
    Event(String),
    /// In one thread, more than `limit` passes from the last event that matches `begin` to the next that matches `end`. An event
    /// that matches both ends one duration and begins another.
    Duration {
        /// Pattern of the classes that begin it.
        begin: String,
        /// Pattern of the classes that end it.
        end: String,
        /// Maximum duration that does not fire.
        limit: Duration,
    },
}

/// Signals by name, without `SIG`. The numbers are those of Linux on every architecture that this project supports.
const SIGNALS: [(&str, i32); 7] =
    [("HUP", 1), ("INT", 2), ("QUIT", 3), ("USR1", 10), ("USR2", 12), ("ALRM", 14), ("TERM", 15)];

/// Greatest signal number.
pub const SIGNAL_MAX: i32 = 64;
/// Signals that cannot be handled.
const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

/// Maximum number of patterns of all triggers of a program: the upper half of a class's id word has a bit for each.
pub const PATTERN_COUNT_MAX: usize = 16;

/// Units of a limit, in nanoseconds. `s` is last, because other units end with it.
const UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("s", 1_000_000_000),
];

impl Trigger {
    /// Reads a trigger: `crash`, `panic`, `exit`; a signal: `USR2`, `SIGUSR2`, `12`; `event:shop:order_failed`, where
    /// `*` and `?` are wild; `duration:shop:order_begin..shop:order_end>50ms`.
    ///
    /// # Errors
    /// A line that says what to write instead.
    pub fn parse(text: &str) -> Result<Trigger, String> {
        match text {
            "crash" => return Ok(Trigger::Crash),
            "panic" => return Ok(Trigger::Panic),
            "exit" => return Ok(Trigger::Exit),
            _ => {}
        }
        if let Some(name) = text.strip_prefix("event:") {
            return pattern(name, text).map(Trigger::Event);
        }
        if let Some(rest) = text.strip_prefix("duration:") {
            return duration(rest, text);
        }
        let name = text.strip_prefix("SIG").unwrap_or(text);
        let named = SIGNALS.into_iter().find(|(known, _)| *known == name).map(|(_, number)| number);
        let number = named.or_else(|| text.parse().ok());
        let is_possible = |number: &i32| (1..=SIGNAL_MAX).contains(number) && *number != SIGKILL && *number != SIGSTOP;
        number.filter(is_possible).map(Trigger::Signal).ok_or_else(|| {
            format!(
                "`{text}` is not a trigger; write crash, panic, exit, a signal such as USR2, event:PROVIDER:NAME, or \
                 'duration:BEGIN..END>50ms'"
            )
        })
    }

    /// Returns the triggers of a list. Invalid entries are left out.
    pub fn parse_list(text: &str) -> impl Iterator<Item = Trigger> {
        text.split(',').filter_map(|part| Trigger::parse(part.trim()).ok())
    }

    /// Returns the patterns of the classes that must be armed for it.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Trigger::Event(pattern) => (Some(pattern), None),
            Trigger::Duration { begin, end, .. } => (Some(begin), Some(end)),
            _ => (None, None),
        };
        first.into_iter().chain(second).map(String::as_str)
    }
}

/// The form that [`Trigger::parse`] reads.
impl core::fmt::Display for Trigger {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Trigger::Crash => f.write_str("crash"),
            Trigger::Panic => f.write_str("panic"),
            Trigger::Exit => f.write_str("exit"),
            Trigger::Signal(number) => match SIGNALS.into_iter().find(|(_, known)| known == number) {
                Some((name, _)) => f.write_str(name),
                None => write!(f, "{number}"),
            },
            Trigger::Event(pattern) => write!(f, "event:{pattern}"),
            Trigger::Duration { begin, end, limit } => {
                let ns = limit.as_nanos();
                let whole = UNITS.into_iter().filter(|(_, unit_ns)| ns % u128::from(*unit_ns) == 0);
                let (unit, unit_ns) = whole.max_by_key(|(_, unit_ns)| *unit_ns).unwrap_or(("ns", 1));
                write!(f, "duration:{begin}..{end}>{}{unit}", ns / u128::from(unit_ns))
            }
        }
    }
}

/// Reads a pattern of `provider:name`, a part of `text`.
fn pattern(name: &str, text: &str) -> Result<String, String> {
    // `.` is accepted for `:`, as in every pattern.
    let parts = name.split_once([':', '.']);
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric() || b"*?".contains(&byte))
    };
    match parts {
        Some((provider, rest)) if is_part(provider) && is_part(rest) => Ok(name.into()),
        _ => Err(format!(
            "`{name}` in `{text}` is not an event; write PROVIDER:NAME such as shop:order_failed, where `*` and `?` are wild"
        )),
    }
}

/// Reads `BEGIN..END>LIMIT`, a part of `text`.
fn duration(rest: &str, text: &str) -> Result<Trigger, String> {
    let Some((names, limit)) = rest.split_once('>') else {
        return Err(format!(
            "`{text}` has no limit; write 'duration:BEGIN..END>50ms', in quotes because a shell takes `>` for its own"
        ));
    };
    let Some((begin, end)) = names.split_once("..") else {
        return Err(format!(
            "`{names}` in `{text}` is not two events; write BEGIN..END such as shop:order_begin..shop:order_end"
        ));
    };
    let wrong = || format!("`{limit}` in `{text}` is not a duration; write 500us, 50ms, 2s or 1min");
    let limit = parse_limit(limit).ok_or_else(wrong)?;
    Ok(Trigger::Duration { begin: pattern(begin, text)?, end: pattern(end, text)?, limit })
}

/// Reads a whole number and a unit.
fn parse_limit(text: &str) -> Option<Duration> {
    let (digits, unit_ns) = UNITS.into_iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, ns)))?;
    let number: u64 = if digits.starts_with('+') { None } else { digits.parse().ok() }?;
    number.checked_mul(unit_ns).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn triggers_are_parsed_and_named() {
        for (text, trigger) in [
            ("crash", Some(Trigger::Crash)),
            ("panic", Some(Trigger::Panic)),
            ("exit", Some(Trigger::Exit)),
            ("USR2", Some(Trigger::Signal(12))),
            ("SIGUSR1", Some(Trigger::Signal(10))),
            ("64", Some(Trigger::Signal(64))),
            ("event:shop:order_*", Some(Trigger::Event("shop:order_*".into()))),
            ("event:shop.failed", Some(Trigger::Event("shop.failed".into()))),
            ("KILL", None),
            ("9", None),
            ("0", None),
            ("65", None),
            ("", None),
            ("event:", None),
            ("event:failed", None),
            ("event:shop:", None),
            ("event:shop:failed:twice", None),
            ("event:shop failed", None),
        ] {
            assert_eq!(Trigger::parse(text).ok(), trigger, "{text}");
        }
        let list: Vec<_> = Trigger::parse_list("crash, USR2,nonsense,").collect();
        assert_eq!(list, [Trigger::Crash, Trigger::Signal(12)]);
    }

    #[test]
    fn durations_have_two_events_and_a_limit() {
        for (limit, ns) in [
            ("0ns", Some(0)),
            ("7us", Some(7_000)),
            ("50ms", Some(50_000_000)),
            ("2s", Some(2_000_000_000)),
            ("1min", Some(60_000_000_000)),
            ("1h", Some(3_600_000_000_000)),
            ("50", None),
            ("ms", None),
            ("-1s", None),
            ("+1s", None),
            ("1.5s", None),
            ("9999999h", None),
            ("", None),
        ] {
            let parsed = Trigger::parse(&format!("duration:shop:begin..shop:end>{limit}"));
            let expected = ns.map(|ns| Trigger::Duration {
                begin: "shop:begin".into(),
                end: "shop:end".into(),
                limit: Duration::from_nanos(ns),
            });
            assert_eq!(parsed.ok(), expected, "{limit}");
        }
        let refused = |text: &str| Trigger::parse(text).unwrap_err();
        assert!(refused("duration:shop:begin..shop:end").contains("in quotes"));
        assert!(refused("duration:shop:begin>5ms").contains("is not two events"));
        assert!(
            refused("duration:shop:begin..end>5ms").contains("`end` in `duration:shop:begin..end>5ms` is not an event")
        );
        for text in
            ["duration:a:b..c:*>5ms", "duration:a:b..c:d>1001ns", "duration:a:b..c:d>2min", "event:a:b", "USR2", "33"]
        {
            assert_eq!(format!("{}", Trigger::parse(text).unwrap()), text);
        }
        let trigger = Trigger::parse("duration:a:b..c:*>5ms").unwrap();
        assert_eq!(trigger.patterns().collect::<Vec<_>>(), ["a:b", "c:*"]);
    }
}
