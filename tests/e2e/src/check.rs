//! Checks that apply to every trace.

use crate::run::{Recording, babeltrace2_count};
use crate::trace::Trace;

/// Checks what holds for every honest recording: the summary, this project's reader and `babeltrace2` agree, no stream
/// goes back in time, and the trace has no problems. Returns the trace, and the numbers of events and losses.
pub fn check(recording: &Recording) -> (Trace, u64, u64) {
    let trace = recording.trace();
    let stats = trace.stats();
    let summary = recording.summary();
    let all = trace.events().count() as u64;
    assert_eq!((summary.events, summary.lost), (stats.events, stats.events_lost), "{}: {stats:?}", recording.stderr);
    assert!(!recording.stderr.contains("not valid"), "{}", recording.stderr);
    // The trace ends with correct totals.
    assert!(stats.is_closed && stats.warnings.iter().all(|line| line.contains(" events lost: ")), "{stats:?}");
    trace.check_times();
    if let Some(count) = babeltrace2_count(&recording.dir) {
        assert_eq!(count, all, "babeltrace2 and dormouse-ctf");
    }
    (trace, stats.events, stats.events_lost)
}
