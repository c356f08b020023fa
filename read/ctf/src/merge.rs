//! Events of all streams in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::stream::{Event, Notice, Source, StreamReader};

/// Merges streams, of one trace or several, by time; events of equal time come in the order of the streams. A notice comes when its place in the
/// stream is reached, before the stream's next event.
///
/// Cost: one event of each stream is held, O(log streams) comparisons an event.
#[derive(Debug)]
pub struct Merge<'a, S = &'a [u8]> {
    streams: Vec<StreamReader<'a, S>>,
    heap: BinaryHeap<Reverse<(i64, usize)>>,
    /// Streams whose next event is not known, the first to be asked last.
    pending: Vec<usize>,
}

impl<'a, S: Source> Merge<'a, S> {
    /// Merges these streams.
    pub fn new(streams: impl IntoIterator<Item = StreamReader<'a, S>>) -> Merge<'a, S> {
        let streams: Vec<_> = streams.into_iter().collect();
        let count = streams.len();
        Merge { streams, heap: BinaryHeap::with_capacity(count), pending: (0..count).rev().collect() }
    }

    /// The streams, read as far as the merge has come.
    pub fn streams(&self) -> &[StreamReader<'a, S>] {
        &self.streams
    }

    /// Goes to the next event, and gives the stream that has it; `None` at the end.
    fn advance(&mut self) -> Option<Result<usize, Notice>> {
        while let Some(index) = self.pending.last().copied() {
            match self.streams[index].advance() {
                Some(Err(notice)) => return Some(Err(notice)),
                Some(Ok(_)) => {
                    // Events without a time come before all others.
                    let next = (self.streams[index].time_ns().unwrap_or(i64::MIN), index);
                    // Most events come right behind another of their stream.
                    if self.pending.len() == 1 && self.heap.peek().is_none_or(|Reverse(first)| next < *first) {
                        return Some(Ok(index));
                    }
                    self.heap.push(Reverse(next));
                }
                None => {}
            }
            self.pending.pop();
        }
        let Reverse((_, index)) = self.heap.pop()?;
        self.pending.push(index);
        Some(Ok(index))
    }

    /// The next event or notice, and `None` at the end. Where the streams are slices, the merge is an iterator too.
    pub fn next_event(&mut self) -> Option<Result<Event<'_>, Notice>> {
        match self.advance()? {
            Ok(index) => self.streams[index].event().map(Ok),
            Err(notice) => Some(Err(notice)),
        }
    }
}

impl<'a> Iterator for Merge<'a> {
    type Item = Result<Event<'a>, Notice>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance()? {
            Ok(index) => self.streams[index].event_of_slice().map(Ok),
            Err(notice) => Some(Err(notice)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::TraceBuilder;

    #[test]
    fn events_come_by_time_then_by_stream() {
        let mut trace = TraceBuilder::new();
        let class = trace.class("p", "e", &[]);
        let times = [vec![1, 4, 4, 9], vec![], vec![2, 4, 10], vec![4]];
        for (cpu, times) in times.iter().enumerate() {
            let stream = trace.stream(cpu as u32);
            times.iter().for_each(|time| trace.event(stream, *time, 1, 1, class, &[]));
        }
        let trace = trace.finish();
        let metadata = trace.parse();
        let merged: Vec<_> =
            trace.readers(&metadata).map(Result::unwrap).map(|event| (event.timestamp, event.cpu_id)).collect();
        assert_eq!(merged, [(1, 0), (2, 2), (4, 0), (4, 0), (4, 2), (4, 3), (9, 0), (10, 2)]);
    }
}
