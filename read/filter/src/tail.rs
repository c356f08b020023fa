//! The tail of a rule: which events are kept once it is known how a request ended.
//!
//! ```text
//!   http:* tail 10s by id keep status >= 500
//!              │       │       └── events for which it is true are kept, and
//!              │       └── all that have the same value as one of them,
//!              └── up to this time before and after it
//! ```
//! Programs record all events that the rest of the rule selects. The session owner holds them for the time of the tail,
//! and leaves out those that need not be kept.

use dormouse_abi::rule::Name;

use crate::error::FilterError;
use crate::grammar::{after_word, is_word_char, parse_integer, parse_name};
use crate::program::Filter;

/// Minimum time of a tail: 1 ms.
pub const TAIL_NS_MIN: u64 = 1_000_000;
/// Maximum time of a tail: 10 minutes.
pub const TAIL_NS_MAX: u64 = 600_000_000_000;

/// Which events of a rule are kept: each one for which a condition is true, and the events with the same key for some
/// time before and after it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tail {
    /// The time before and after an event for which the condition is true, in nanoseconds.
    pub window_ns: u64,
    /// Field or tag that related events have in common.
    pub key: Name,
    /// The condition.
    pub keep: Filter,
}

/// Parses a tail behind the word `tail`. `rest` is the end of `text`; the condition ends where `ends` says that another
/// clause begins. Returns what follows too.
pub(crate) fn take_tail<'t>(
    text: &'t str,
    rest: &'t str,
    ends: impl Fn(&str) -> bool,
) -> Result<(Tail, &'t str), FilterError> {
    let wrong = |rest: &str, what: &str| Err(FilterError::at(text, text.len() - rest.len(), what));
    if !rest.starts_with(|c: char| c.is_ascii_digit()) {
        return wrong(rest, "expected a time, such as `tail 10s by id keep status >= 500`");
    }
    let (window_ns, end) = parse_integer(text, text.len() - rest.len())?;
    let Some(window_ns) = u64::try_from(window_ns).ok().filter(|ns| (TAIL_NS_MIN..=TAIL_NS_MAX).contains(ns)) else {
        return wrong(rest, "the time of a tail is from 1ms to 10m");
    };
    let behind = &text[end..];
    let Some(named) = after_word(behind, "by").map(str::trim_start) else {
        return wrong(behind, "expected `by` and a field or a tag, such as `by id`");
    };
    let (name, behind) = named.split_at(named.find(char::is_whitespace).unwrap_or(named.len()));
    if !name.starts_with(is_word_char) {
        return wrong(named, "expected a field or a tag, such as `by id`");
    }
    let behind = behind.trim_start();
    let Some(condition) = after_word(behind, "keep") else {
        return wrong(behind, "expected `keep` and a condition, such as `keep status >= 500`");
    };
    let (keep, end) = Filter::parse_from(text, text.len() - condition.len(), ends)?;
    Ok((Tail { window_ns, key: parse_name(name), keep }, &text[end..]))
}
