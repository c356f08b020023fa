//! Merges the events of all streams in time order.
//!
//! The order is total: by time in nanoseconds since the epoch, then by stream number (the streams of a trace are
//! numbered consecutively), then by position in the stream. Events of streams without a clock precede all others.
//!
//! ```text
//!                    first: stream 2                 A tree of losers: each inner node holds the stream that lost its match there. The
//!                          │                         winner moved up. When the first stream has advanced to its next event, it is
//!                   ┌── 0 loses ──┐                  compared only with the losers on its path: one comparison a level, no moves.
//!              ┌ 1 loses ┐   ┌ 3 loses ┐
//!              0         1   2         3
//! ```

use crate::stream::{Block, Event, Notice, Source, StreamReader};

/// Sort key of a stream's next event: whether the stream is at its end, the time, the stream number.
type Key = (bool, i64, usize);

/// Merges the streams of one or more traces by time. A notice is returned at its position in the stream, before the
/// stream's next event.
///
/// Cost: one event of each stream is held. An event takes one comparison while one stream stays first, and O(log
/// streams) otherwise.
#[derive(Debug)]
pub struct Merge<'a, S = &'a [u8]> {
    streams: Vec<StreamReader<'a, S>>,
    /// Key of each stream, for streams that have been read.
    keys: Vec<Key>,
    /// Loser at each node, from index 1. The children of node `n` are `2 n` and `2 n + 1`, and stream `s` is node
    /// `count + s`.
    losers: Vec<usize>,
    /// Stream with the next event. It is the first one to be advanced.
    first: usize,
    /// Lowest key of the other streams.
    second: Key,
    /// Result that [`Merge::keep_next`] reached and did not keep.
    pending: Option<Option<Result<usize, Notice>>>,
    /// Streams whose first event has not been read; `None` once the tree is built.
    unread: Option<std::ops::Range<usize>>,
}

impl<'a, S: Source> Merge<'a, S> {
    /// Returns a merge of these streams.
    pub fn new(streams: impl IntoIterator<Item = StreamReader<'a, S>>) -> Merge<'a, S> {
        let streams: Vec<_> = streams.into_iter().collect();
        let count = streams.len();
        let keys = (0..count).map(|index| (true, 0, index)).collect();
        let unread = Some(0..count);
        Merge { streams, keys, losers: vec![0; count], first: 0, second: (true, 0, 0), pending: None, unread }
    }

    /// Returns the streams, read up to the current position of the merge.
    pub fn streams(&self) -> &[StreamReader<'a, S>] {
        &self.streams
    }

    /// Advances a stream to its next event and updates its key.
    fn advance_stream(&mut self, index: usize) -> Result<(), Notice> {
        let stream = &mut self.streams[index];
        self.keys[index] = match stream.advance() {
            Some(Err(notice)) => return Err(notice),
            Some(Ok(_)) => (false, stream.time_ns().unwrap_or(i64::MIN), index),
            None => (true, 0, index),
        };
        Ok(())
    }

    /// Builds the tree from the leaves up.
    fn make_tree(&mut self) {
        let count = self.streams.len();
        let mut winners: Vec<usize> = vec![0; count];
        winners.extend(0..count);
        for node in (1..count).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            (winners[node], self.losers[node]) = if self.keys[a] < self.keys[b] { (a, b) } else { (b, a) };
        }
        // A single stream has no inner node: it is leaf 1.
        self.first = winners.get(1).copied().unwrap_or(0);
        self.find_second();
    }

    /// Finds the second-lowest key, which is among the losers on the path of the first stream.
    fn find_second(&mut self) {
        let mut node = (self.streams.len() + self.first) / 2;
        self.second = (true, i64::MAX, usize::MAX);
        while node > 0 {
            self.second = self.second.min(self.keys[self.losers[node]]);
            node /= 2;
        }
    }

    /// Replays the matches on the path of the stream that was first, with its new key.
    fn replay(&mut self) {
        let mut winner = self.first;
        let mut node = (self.streams.len() + winner) / 2;
        while node > 0 {
            if self.keys[self.losers[node]] < self.keys[winner] {
                std::mem::swap(&mut winner, &mut self.losers[node]);
            }
            node /= 2;
        }
        self.first = winner;
        self.find_second();
    }

    /// Advances to the next event and returns its stream; `None` at the end.
    #[inline]
    fn advance(&mut self) -> Option<Result<usize, Notice>> {
        if let Some(unread) = self.unread.take() {
            for index in unread.clone() {
                if let Err(notice) = self.advance_stream(index) {
                    self.unread = Some(index..unread.end);
                    return Some(Err(notice));
                }
            }
            if unread.end == 0 {
                return None;
            }
            self.make_tree();
        } else if self.keys.get(self.first)?.0 {
            return None;
        } else if let Err(notice) = self.advance_stream(self.first) {
            return Some(Err(notice));
        } else if self.second < self.keys[self.first] {
            self.replay();
        }
        let (is_over, _, index) = self.keys[self.first];
        (!is_over).then_some(Ok(index))
    }

    fn advance_from_pending(&mut self) -> Option<Result<usize, Notice>> {
        match self.pending.take() {
            Some(pending) => pending,
            None => self.advance(),
        }
    }

    /// Keeps the next event in `block` if a program wrote it. Otherwise returns false, and [`Merge::next_event`]
    /// returns the event or notice.
    #[inline]
    pub fn keep_next(&mut self, block: &mut Block<'a>) -> bool {
        match self.advance_from_pending() {
            Some(Ok(index)) if !self.streams[index].is_at_state() => {
                self.streams[index].keep(block, Some(self.keys[index].1));
                true
            }
            next => {
                self.pending = Some(next);
                false
            }
        }
    }

    /// Keeps the event that [`Merge::next_event`] returned last.
    #[inline]
    pub fn keep(&self, block: &mut Block<'a>) {
        if let Some(stream) = self.streams.get(self.first) {
            stream.keep(block, Some(self.keys[self.first].1));
        }
    }

    /// Returns the next event or notice, or `None` at the end. If the streams are slices, the merge also is an
    /// iterator.
    #[inline(always)]
    pub fn next_event(&mut self) -> Option<Result<Event<'_>, Notice>> {
        match self.advance_from_pending()? {
            Ok(index) => self.streams[index].event().map(Ok),
            Err(notice) => Some(Err(notice)),
        }
    }
}

impl<'a> Iterator for Merge<'a> {
    type Item = Result<Event<'a>, Notice>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance_from_pending()? {
            Ok(index) => self.streams[index].event_of_slice().map(Ok),
            Err(notice) => Some(Err(notice)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::TraceBuilder;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Time, CPU, and position in the stream.
    type Place = (u64, u32, u32);

    fn merged(times: &[Vec<u64>]) -> Vec<Place> {
        let mut trace = TraceBuilder::new();
        let class = trace.class("p", "e", &[]);
        for (cpu, times) in times.iter().enumerate() {
            let stream = trace.stream(cpu as u32);
            (1..).zip(times).for_each(|(place, time)| trace.event(stream, *time, 1, place, class, &[]));
        }
        let trace = trace.finish();
        let metadata = trace.parse();
        let place = |event: crate::Event<'_>| (event.timestamp, event.cpu_id, event.context.unwrap().1);
        trace.readers(&metadata).map(Result::unwrap).map(place).collect()
    }

    fn sorted(times: &[Vec<u64>]) -> Vec<Place> {
        let of_stream = |(cpu, times): (usize, &Vec<u64>)| {
            (1..).zip(times.clone()).map(move |(place, time)| (time, cpu as u32, place)).collect::<Vec<_>>()
        };
        let mut all: Vec<Place> = times.iter().enumerate().flat_map(of_stream).collect();
        all.sort();
        all
    }

    #[test]
    fn events_come_by_time_then_by_stream() {
        let times = [vec![1, 4, 4, 9], vec![], vec![2, 4, 10], vec![4]];
        let order = [(1, 0, 1), (2, 2, 1), (4, 0, 2), (4, 0, 3), (4, 2, 2), (4, 3, 1), (9, 0, 4), (10, 2, 3)];
        assert_eq!(merged(&times), order);
        assert_eq!(merged(&[]), []);
        assert_eq!(merged(&[vec![], vec![]]), []);
    }

    proptest! {
        #[test]
        fn the_merged_order_is_that_of_sorting(mut times in vec(vec(0..40u64, 0..12), 0..9)) {
            times.iter_mut().for_each(|times| times.sort());
            prop_assert_eq!(merged(&times), sorted(&times));
        }
    }
}
