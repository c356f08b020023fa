//! Between which times events are asked for.

use dormouse_abi::class::matches;
use dormouse_ctf::Event;

use crate::TraceFiles;

/// Between which times events are asked for.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Nanoseconds since the epoch.
    pub first_ns: i64,
    /// Nanoseconds since the epoch.
    pub last_ns: i64,
    /// What an event must match, before events are asked for.
    from: Option<String>,
    /// With what event it ends.
    upto: Option<String>,
    is_past: bool,
}

impl Bounds {
    /// From the first to the last of these times; and of these events from the first on whose class matches `from`, to the next that matches `upto`.
    pub fn new(files: &TraceFiles, (first_ns, last_ns): (i64, i64), from: Option<&str>, upto: Option<&str>) -> Bounds {
        let [from_owned, upto_owned] = [from, upto].map(|pattern| pattern.map(str::to_string));
        let mut bounds = Bounds { first_ns, last_ns, from: from_owned, upto: upto_owned, is_past: false };
        // With the times of these events, packets before and behind are passed by their headers.
        if let Some(ns) = from.and_then(|from| bounds.find(files, None, from)) {
            bounds.first_ns = ns;
        }
        if let Some(ns) = upto.and_then(|upto| bounds.find(files, from, upto)) {
            bounds.last_ns = ns;
        }
        bounds
    }

    /// The time of the first event that matches, between these bounds and from the first on that matches `from`.
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

    /// Whether not all times are asked for.
    pub fn are_set(&self) -> bool {
        self.first_ns > i64::MIN
            || self.last_ns < i64::MAX
            || self.from.is_some()
            || self.upto.is_some()
            || self.is_past
    }

    /// Whether the next event is between them. Of an event without a time nobody can tell.
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

/// Whether an event's class has a name that matches.
fn is_named(event: &Event<'_>, pattern: &str) -> bool {
    matches(pattern, &event.class.full_name)
}
