//! Missing streams and events.

use crate::stream::{Source, StreamReader, TraceRef};
use dormouse_format::StreamTotals;

/// Returns one line for each thing that is missing in Dormouse's traces. The streams, each with its name, must have
/// been read to their ends.
pub fn missing<'a, 'b, S: Source + 'b>(
    traces: impl IntoIterator<Item = TraceRef<'a>>,
    streams: impl IntoIterator<Item = (&'b str, &'b StreamReader<'a, S>)>,
) -> Vec<String>
where
    'a: 'b,
{
    of_totals(
        traces,
        streams.into_iter().map(|(name, reader)| (name, reader.trace(), (reader.size_bytes(), reader.totals()))),
    )
}

/// Returns the same lines for streams with name, trace, size in bytes, and the totals that were read.
pub(super) fn of_totals<'a, 'b>(
    traces: impl IntoIterator<Item = TraceRef<'a>>,
    streams: impl IntoIterator<Item = (&'b str, TraceRef<'a>, (u64, Option<StreamTotals>))>,
) -> Vec<String> {
    let streams: Vec<_> = streams.into_iter().collect();
    let mut lines = Vec::new();
    for metadata in traces.into_iter().filter_map(|trace| trace.own()) {
        let is_of_trace = |trace: &TraceRef<'a>| trace.own().is_some_and(|own| std::ptr::eq(own, metadata));
        let of_trace: Vec<_> = streams.iter().filter(|(_, trace, _)| is_of_trace(trace)).collect();
        // Totals use the names of files in the trace's directory.
        let prefix = of_trace.first().and_then(|(name, ..)| name.rfind('/')).map_or("", |at| &of_trace[0].0[..=at]);
        let found = of_trace.iter().map(|(name, _, found)| (name.strip_prefix(prefix).unwrap_or(name), *found));
        lines.extend(metadata.totals.compare(found).into_iter().map(|line| format!("{prefix}{line}")));
    }
    lines
}
