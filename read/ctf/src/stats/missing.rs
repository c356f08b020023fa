//! What is missing.

use crate::stream::{Source, StreamReader, TraceRef};

/// What is missing in traces of Dormouse whose streams, each with its name, have been read to their ends: one line each.
pub fn missing<'a, 'b, S: Source + 'b>(
    traces: impl IntoIterator<Item = TraceRef<'a>>,
    streams: impl IntoIterator<Item = (&'b str, &'b StreamReader<'a, S>)>,
) -> Vec<String>
where
    'a: 'b,
{
    let streams: Vec<_> = streams.into_iter().collect();
    let mut lines = Vec::new();
    for metadata in traces.into_iter().filter_map(|trace| trace.own()) {
        let is_of_trace =
            |reader: &StreamReader<'a, S>| reader.trace().own().is_some_and(|own| std::ptr::eq(own, metadata));
        let of_trace: Vec<_> = streams.iter().filter(|(_, reader)| is_of_trace(reader)).collect();
        // The names of the totals are those of files in the trace's directory.
        let prefix = of_trace.first().and_then(|(name, _)| name.rfind('/')).map_or("", |at| &of_trace[0].0[..=at]);
        let found = of_trace
            .iter()
            .map(|(name, reader)| (name.strip_prefix(prefix).unwrap_or(name), (reader.size_bytes(), reader.totals())));
        lines.extend(metadata.totals.compare(found).into_iter().map(|line| format!("{prefix}{line}")));
    }
    lines
}
