//! The time up to which events of a growing trace are shown.
//!
//! The packets of a stream are written in order, but each only when it is full, so one stream can be far behind
//! another. Events are held back until every stream has shown a later time. A stream without new events for a while
//! holds nothing back: it may never have an event again.

use std::collections::HashMap;
use std::time::Duration;

/// Progress of the streams of a trace.
#[derive(Debug)]
pub(crate) struct Horizon {
    delay: Duration,
    streams: HashMap<String, Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    size_bytes: u64,
    last_ns: Option<i64>,
    /// Time at which new events were last found, since following started.
    came: Duration,
}

impl Horizon {
    /// Returns a horizon that ignores streams without new events for `delay`.
    pub(crate) fn new(delay: Duration) -> Horizon {
        Horizon { delay, streams: HashMap::new() }
    }

    /// Notes the size of a stream at `now`. If the stream has grown, `last_ns` is called for the time of the last event
    /// in it. Packets without events and unreadable packets return `None`, and count as idle.
    pub(crate) fn see(&mut self, name: &str, size_bytes: u64, now: Duration, last_ns: impl FnOnce() -> Option<i64>) {
        let shown = self.streams.entry(name.to_string()).or_default();
        if size_bytes > std::mem::replace(&mut shown.size_bytes, size_bytes)
            && let Some(last_ns) = last_ns()
        {
            (shown.last_ns, shown.came) = (Some(last_ns), now);
        }
    }

    /// Events up to this time, in nanoseconds since the epoch, need not be held back.
    pub(crate) fn until_ns(&self, now: Duration) -> i64 {
        let holds = |shown: &&Shown| now.saturating_sub(shown.came) < self.delay;
        self.streams.values().filter(holds).filter_map(|shown| shown.last_ns).min().unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_for_every_stream_until_it_is_idle() {
        let mut horizon = Horizon::new(Duration::from_secs(3));
        let at = Duration::from_secs;
        assert_eq!(horizon.until_ns(at(0)), i64::MAX);
        horizon.see("a", 10, at(0), || Some(100));
        // A stream without an event holds nothing back.
        horizon.see("b", 0, at(0), || unreachable!("it has not grown"));
        horizon.see("c", 10, at(0), || None);
        assert_eq!(horizon.until_ns(at(0)), 100);
        horizon.see("b", 10, at(1), || Some(70));
        horizon.see("a", 20, at(2), || Some(200));
        assert_eq!(horizon.until_ns(at(2)), 70);
        horizon.see("b", 10, at(3), || unreachable!("it has not grown"));
        assert_eq!(horizon.until_ns(at(3)), 70);
        // First `b` becomes idle, then `a`; then `b` has more events.
        assert_eq!(horizon.until_ns(at(4)), 200);
        assert_eq!(horizon.until_ns(at(5)), i64::MAX);
        horizon.see("b", 20, at(6), || Some(90));
        assert_eq!(horizon.until_ns(at(6)), 90);
        // Packets without events do not count as new events.
        horizon.see("b", 30, at(8), || None);
        assert_eq!((horizon.until_ns(at(8)), horizon.until_ns(at(9))), (90, i64::MAX));
    }

    #[test]
    fn without_a_delay_nothing_is_held_back() {
        let mut horizon = Horizon::new(Duration::ZERO);
        horizon.see("a", 10, Duration::ZERO, || Some(100));
        assert_eq!(horizon.until_ns(Duration::ZERO), i64::MAX);
    }
}
