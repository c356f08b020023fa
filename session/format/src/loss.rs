//! Lost events, and causes that can have lost events without counting them.
//!
//! Some causes count events: no page was free, a disk was full. Other causes count only occasions: an invalid packet, a
//! program that could not join. "N lost" is printed if every cause counts events, "at least N lost because …"
//! otherwise, and "unknown how many lost because …" if no event was counted.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::state::StateRecord;

/// A reason why events are missing from a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// No page was free, or the event was larger than a page. Packets state most of these losses.
    NoPage,
    /// A write to the trace failed.
    WriteFailed,
    /// The trace has reached its maximum size.
    DiskMax,
    /// A program asked to join and was refused.
    ProgramRefused,
    /// An event class was refused.
    ClassRefused,
    /// A packet failed a check.
    PacketRefused,
    /// A program overwrote a word that says where events are.
    Scribbled,
    /// A thread or the session ended during a write.
    AmidWrite,
    /// A program did not confirm that it has left when the session ended.
    NotDetached,
    /// Memory of the session is gone: its file was truncated, or the file's disk is full.
    MemoryGone,
    /// The owner was killed, and not everything that it left was found.
    OwnerKilled,
    /// The session owner could not complete its work.
    Unfinished,
    /// It was decided which events a tail keeps before that could be known.
    TailEarly,
}

/// The table of causes: the cause, its machine-readable name, whether it counts events, and the text for people.
const CAUSES: [(Cause, &str, bool, &str); 13] = [
    (Cause::NoPage, "no_page", true, "no page was free, nor could a packet be written that says so"),
    (Cause::WriteFailed, "write_failed", true, "the trace could not be written"),
    (Cause::DiskMax, "disk_max", true, "the trace has reached --disk-max, or all sessions --disk-max-user"),
    (Cause::ProgramRefused, "program_refused", false, "programs could not join"),
    (Cause::ClassRefused, "class_refused", false, "event classes were refused"),
    (Cause::PacketRefused, "packet_refused", false, "packets were not valid and were left out"),
    (Cause::Scribbled, "scribbled", false, "control words were written over"),
    (Cause::AmidWrite, "amid_write", false, "threads were stopped amid a write"),
    (Cause::NotDetached, "not_detached", false, "programs have not confirmed that they left"),
    (
        Cause::MemoryGone,
        "memory_gone",
        false,
        "units of 4 KiB of the buffers are gone: the file was truncated or its disk is full",
    ),
    (Cause::OwnerKilled, "owner_killed", false, "the owner was killed and not all was found"),
    (Cause::Unfinished, "unfinished", false, "the trace ends where its owner failed"),
    (
        Cause::TailEarly,
        "tail_early",
        false,
        "pages were written before it was known which events their tails keep; give a larger --budget or shorter tails",
    ),
];

impl Cause {
    /// Number of causes.
    pub const COUNT: usize = CAUSES.len();

    /// Returns all causes, each at the index that is its number.
    pub fn all() -> [Cause; Cause::COUNT] {
        CAUSES.map(|(cause, ..)| cause)
    }

    fn row(self) -> &'static (Cause, &'static str, bool, &'static str) {
        &CAUSES[self as usize]
    }

    /// Machine-readable name of the cause.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Whether this cause counts events. Otherwise it counts occasions.
    pub fn is_counted(self) -> bool {
        self.row().2
    }

    /// Text for people that says what happened.
    pub fn text(self) -> &'static str {
        self.row().3
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Losses of a session, by cause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Losses(BTreeMap<Cause, u64>);

impl Losses {
    /// Adds `count` events or occasions.
    pub fn add(&mut self, cause: Cause, count: u64) {
        if count > 0 {
            let sum = self.0.entry(cause).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds the counts of `others`.
    pub fn extend(&mut self, others: &Losses) {
        others.0.iter().for_each(|(cause, count)| self.add(*cause, *count));
    }

    /// Number of events or occasions with this cause.
    pub fn of(&self, cause: Cause) -> u64 {
        self.0.get(&cause).copied().unwrap_or(0)
    }

    /// Number of events that are known to be lost.
    pub fn lost(&self) -> u64 {
        let counted = self.0.iter().filter(|(cause, _)| cause.is_counted());
        counted.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// Whether the number of lost events is known exactly.
    pub fn is_exact(&self) -> bool {
        self.uncounted().next().is_none()
    }

    /// Whether events are lost or may be lost.
    pub fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    fn uncounted(&self) -> impl Iterator<Item = (Cause, u64)> {
        self.0.iter().filter(|(cause, _)| !cause.is_counted()).map(|(cause, count)| (*cause, *count))
    }

    /// Returns the state-stream records for causes whose counts are not in packets: all but [`Cause::NoPage`], whose
    /// count the caller knows from the packets.
    pub fn records(&self) -> impl Iterator<Item = StateRecord<'static>> + use<'_> {
        self.0.iter().filter(|(cause, _)| **cause != Cause::NoPage).map(|(cause, count)| cause.record(*count))
    }
}

impl Cause {
    /// Returns the state-stream record for this cause.
    pub fn record(self, count: u64) -> StateRecord<'static> {
        let reason = self.text();
        if self.is_counted() {
            StateRecord::Lost { reason, count }
        } else {
            StateRecord::LossPossible { cause: reason, count }
        }
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&told(self.lost(), self.uncounted().map(|(cause, count)| (cause.text(), count))))
    }
}

/// One or more classes that the session owner refused. Their events are not in the trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// `provider:name`, or a description of the classes in parentheses.
    pub name: String,
    /// Path of the executable that announced it.
    pub program: String,
    /// Reason for the refusal, and what to do about it.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not recorded: {} of {}: {}", self.name, self.program, self.reason)
    }
}

/// Reason for an unknown number of losses, which a reader finds by itself: the trace is incomplete or damaged.
pub const DAMAGED: &str = "parts of the trace are missing or damaged";
/// Reason for an unknown number of losses: the trace has no end.
pub const NOT_CLOSED: &str = "the trace was not closed: its session is live or was killed";

/// Reason for an unknown number of losses: only a part of the time is read.
pub const AT_AN_EDGE: &str = "events were lost at the edge of this time, in it or not";
/// Reason for an unknown number of losses: the sum of the counts overflows.
const TOO_MANY: &str = "they are more than 64 bits count";
/// Reason for an unknown number of losses: the times of the losses are unknown.
const AT_UNKNOWN_TIMES: &str = "events were lost at times that nobody knows";

/// Number of lost events in words: `7`, `at least 7`, or `unknown`.
pub fn how_many(lost: u64, is_exact: bool) -> String {
    match (is_exact, lost) {
        (true, _) => lost.to_string(),
        (false, 0) => "unknown".into(),
        (false, _) => format!("at least {lost}"),
    }
}

/// Losses in words: `0 lost`, or `unknown how many lost because packets were not valid and were left out (2)`. A count
/// of 0 is not printed.
fn told<'a>(lost: u64, uncounted: impl Iterator<Item = (&'a str, u64)>) -> String {
    let cause = |(text, count): (&str, u64)| if count > 0 { format!("{text} ({count})") } else { text.to_string() };
    let causes: Vec<String> = uncounted.map(cause).collect();
    let because = if causes.is_empty() { String::new() } else { format!(" because {}", causes.join(" and ")) };
    let unit = if lost == 0 && !causes.is_empty() { " how many lost" } else { " lost" };
    how_many(lost, causes.is_empty()) + unit + &because
}

/// Losses that a trace states, as a reader finds them. Causes are texts, because later versions may have other causes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatedLosses {
    /// Lost events that no packet states.
    pub unstated: u64,
    /// Causes that lose events without counting them.
    pub uncounted: Vec<Uncounted>,
}

/// A cause that can have lost events without counting them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uncounted {
    /// Text of the cause.
    pub cause: String,
    /// Number of occasions; 0 if it is not known.
    pub count: u64,
}

impl StatedLosses {
    /// Adds what a record of the state stream says of losses.
    pub fn note(&mut self, record: &StateRecord<'_>) {
        match record {
            StateRecord::Lost { count, .. } => self.unstated = self.unstated.saturating_add(*count),
            StateRecord::LossPossible { cause, count } => self.add(cause, *count),
            StateRecord::Salvage { missing, .. } if !missing.is_empty() => self.add(Cause::OwnerKilled.text(), 0),
            _ => {}
        }
    }

    /// Adds `count` occasions of a cause.
    pub fn add(&mut self, cause: &str, count: u64) {
        match self.uncounted.iter_mut().find(|known| known.cause == cause) {
            Some(known) => known.count = known.count.saturating_add(count),
            None => self.uncounted.push(Uncounted { cause: cause.into(), count }),
        }
    }

    /// Converts the losses of a trace to those of a part of its time. Losses without a time may or may not belong to
    /// the part.
    #[must_use]
    pub fn of_a_part(mut self) -> StatedLosses {
        let unstated = std::mem::take(&mut self.unstated);
        if unstated > 0 {
            self.add(AT_UNKNOWN_TIMES, unstated);
        }
        self
    }

    /// Returns the number of events that are known to be lost, including those that packets state. If the sum
    /// overflows, returns `u64::MAX` and notes that more events can be lost.
    pub fn sum(&mut self, stated: impl IntoIterator<Item = u64>) -> u64 {
        let sum = stated.into_iter().fold(self.unstated, u64::saturating_add);
        if sum == u64::MAX {
            self.add(TOO_MANY, 0);
        }
        sum
    }

    /// The losses in words, with this sum.
    pub fn told(&self, sum: u64) -> String {
        told(sum, self.uncounted.iter().map(|known| (known.cause.as_str(), known.count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_at_their_indices_in_the_table() {
        for (index, (cause, ..)) in CAUSES.iter().enumerate() {
            assert_eq!(*cause as usize, index);
        }
    }

    #[test]
    fn losses_are_exact_only_if_every_cause_is_counted() {
        let mut losses = Losses::default();
        assert_eq!((losses.to_string().as_str(), losses.is_any()), ("0 lost", false));
        losses.add(Cause::PacketRefused, 0);
        assert!(losses.is_exact() && !losses.is_any());
        let mut unknown = losses.clone();
        unknown.add(Cause::ProgramRefused, 1);
        assert_eq!(unknown.to_string(), "unknown how many lost because programs could not join (1)");
        losses.add(Cause::NoPage, 3);
        losses.add(Cause::WriteFailed, 4);
        assert_eq!(losses.to_string(), "7 lost");
        losses.add(Cause::PacketRefused, 2);
        losses.add(Cause::NotDetached, 1);
        assert_eq!(
            losses.to_string(),
            "at least 7 lost because packets were not valid and were left out (2) and programs have not confirmed that they left (1)"
        );
        // A reader of the written records reports the same losses.
        let mut stated = StatedLosses::default();
        losses.records().for_each(|record| stated.note(&record));
        let sum = stated.sum([losses.of(Cause::NoPage)]);
        assert_eq!(stated.told(sum), losses.to_string());
        losses.add(Cause::NoPage, u64::MAX);
        assert_eq!(losses.lost(), u64::MAX);
    }

    #[test]
    fn a_sum_beyond_64_bits_is_not_exact() {
        let mut stated = StatedLosses { unstated: 5, ..StatedLosses::default() };
        assert_eq!((stated.sum([7, 1 << 63]), stated.uncounted.len()), ((1 << 63) + 12, 0));
        let sum = stated.sum([1 << 63, 1 << 63]);
        assert_eq!(stated.told(sum), "at least 18446744073709551615 lost because they are more than 64 bits count");
    }
}
