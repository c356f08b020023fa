//! Limits of time for the selection of events.

use dormouse_abi::class::matches;
use dormouse_ctf::Event;

use crate::TraceFiles;

/// Limits of time for the selection of events.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Earliest time, in nanoseconds since the epoch.
    pub first_ns: i64,
    /// Latest time, in nanoseconds since the epoch.
    pub last_ns: i64,
    /// Pattern of the first selected event, until it has occurred.
    from: Option<String>,
    /// Pattern of the last selected event.
    upto: Option<String>,
    is_past: bool,
}

impl Bounds {
    /// Creates limits: from the first to the last of these times, and within them from the first event whose class
    /// matches `from` to the next one that matches `upto`.
    pub fn new(files: &TraceFiles, (first_ns, last_ns): (i64, i64), from: Option<&str>, upto: Option<&str>) -> Bounds {
        let [from_owned, upto_owned] = [from, upto].map(|pattern| pattern.map(str::to_string));
        let mut bounds = Bounds { first_ns, last_ns, from: from_owned, upto: upto_owned, is_past: false };
        // With the times of these two events, packets before and after them are skipped by their headers.
        if let Some(ns) = from.and_then(|from| bounds.find(files, None, from)) {
            bounds.first_ns = ns;
        }
        if let Some(ns) = upto.and_then(|upto| bounds.find(files, from, upto)) {
            bounds.last_ns = ns;
        }
        bounds
    }

    /// Returns the time of the first matching event within these limits, from the first event on that matches `from`.
    fn find(&self, files: &TraceFiles, mut from: Option<&str>, wanted: &str) -> Option<i64> {
        let mut events = files.events_within(self.first_ns, self.last_ns);
        while let Some(item) = events.next_event() {
            let Ok(event) = item else { continue };
            if from.is_some_and(|from| !is_named(&event, from)) {
                continue;
            }
            from = None;
            if is_named(&event, wanted) {
                return event.time_ns;
            }
        }
        None
    }

    /// Whether there are any limits.
    pub fn are_set(&self) -> bool {
        self.first_ns > i64::MIN
            || self.last_ns < i64::MAX
            || self.from.is_some()
            || self.upto.is_some()
            || self.is_past
    }

    /// Whether the next event is within the limits. An event without a time is not, if there are limits of time.
    #[inline]
    pub fn have(&mut self, event: &Event<'_>) -> bool {
        !self.are_set() || self.are_around(event)
    }

    fn are_around(&mut self, event: &Event<'_>) -> bool {
        if self.is_past || self.from.as_deref().is_some_and(|pattern| !is_named(event, pattern)) {
            return false;
        }
        self.from = None;
        let is_timed = self.first_ns > i64::MIN || self.last_ns < i64::MAX;
        let is_within = event.time_ns.map_or(!is_timed, |ns| (self.first_ns..=self.last_ns).contains(&ns));
        if is_within && self.upto.as_deref().is_some_and(|pattern| is_named(event, pattern)) {
            self.is_past = true;
        }
        is_within
    }
}

/// Whether the name of an event's class matches.
fn is_named(event: &Event<'_>, pattern: &str) -> bool {
    matches(pattern, &event.class.full_name)
}
