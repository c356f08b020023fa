//! Reading traces of anybody.

use dormouse_ctf::text::Formatter;
use dormouse_ctf::{Merge, Stats, StreamReader, Trace, TraceRef};

/// Prints and counts all that is in streams: both find as many events, no event is printed that is no event, and each notice says something.
pub fn read(trace: &Trace, streams: &[Vec<u8>]) -> u64 {
    let (mut text, mut formatter, mut count) = (Vec::new(), Formatter::new(Default::default(), |_| 0), 0u64);
    let readers = streams.iter().enumerate().map(|(index, bytes)| StreamReader::new(trace, index, bytes));
    for item in Merge::new(readers) {
        match item {
            Ok(event) => {
                text.clear();
                formatter.event(&event, &mut text);
                assert!(!event.is_state());
                count += 1;
            }
            Err(notice) => assert!(!formatter.warning(&notice, "stream").is_empty()),
        }
    }
    let stats = Stats::of_traces(&[TraceRef::from(trace)], streams.iter().map(|bytes| (0, "stream", bytes.as_slice())));
    assert_eq!(stats.events, count);
    count
}
