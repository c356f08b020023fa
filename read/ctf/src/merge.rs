//! Events of all streams in the order of time.
//!
//! The order is total: events come by their time in nanoseconds since the epoch, then by the number of their stream (a trace's streams have
//! numbers that follow one another), then by their place in it. Events of streams without a clock come before all others.
//!
//! ```text
//!                    first: stream 2                 A tree of losers: each node holds the stream that lost there against the one
//!                          │                         which went on up. When the first stream has gone on to its next event, it plays
//!                   ┌── 0 loses ──┐                  against those on its way alone: one comparison a level, no moves.
//!              ┌ 1 loses ┐   ┌ 3 loses ┐
//!              0         1   2         3
//! ```

use crate::stream::{Block, Event, Notice, Source, StreamReader};

/// The next event of a stream: whether there is none, its time, its stream.
type Key = (bool, i64, usize);

/// Merges streams, of one trace or several, by time. A notice comes when its place in the stream is reached, before the stream's next event.
///
/// Cost: one event of each stream is held; one comparison an event while a stream has the first events, O(log streams) otherwise.
#[derive(Debug)]
pub struct Merge<'a, S = &'a [u8]> {
    streams: Vec<StreamReader<'a, S>>,
    /// Of each stream, as far as it is known.
    keys: Vec<Key>,
    /// The loser of each node from 1 on; the children of node `n` are `2 n` and `2 n + 1`, and stream `s` is node `count + s`.
    losers: Vec<usize>,
    /// The stream that has the next event, and is asked for the one behind it first of all.
    first: usize,
    /// No other stream has an earlier one.
    second: Key,
    /// What [`Merge::keep_next`] has come to and not kept.
    pending: Option<Option<Result<usize, Notice>>>,
    /// Streams whose first event is not known yet; `None` when the tree is made.
    unread: Option<std::ops::Range<usize>>,
}

impl<'a, S: Source> Merge<'a, S> {
    /// Merges these streams.
    pub fn new(streams: impl IntoIterator<Item = StreamReader<'a, S>>) -> Merge<'a, S> {
        let streams: Vec<_> = streams.into_iter().collect();
        let count = streams.len();
        let keys = (0..count).map(|index| (true, 0, index)).collect();
        let unread = Some(0..count);
        Merge { streams, keys, losers: vec![0; count], first: 0, second: (true, 0, 0), pending: None, unread }
    }

    /// The streams, read as far as the merge has come.
    pub fn streams(&self) -> &[StreamReader<'a, S>] {
        &self.streams
    }

    /// Goes to the next event of a stream.
    fn advance_stream(&mut self, index: usize) -> Result<(), Notice> {
        let stream = &mut self.streams[index];
        self.keys[index] = match stream.advance() {
            Some(Err(notice)) => return Err(notice),
            Some(Ok(_)) => (false, stream.time_ns().unwrap_or(i64::MIN), index),
            None => (true, 0, index),
        };
        Ok(())
    }

    /// Makes the tree, from its leaves up.
    fn make_tree(&mut self) {
        let count = self.streams.len();
        let mut winners: Vec<usize> = vec![0; count];
        winners.extend(0..count);
        for node in (1..count).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            (winners[node], self.losers[node]) = if self.keys[a] < self.keys[b] { (a, b) } else { (b, a) };
        }
        // Of one stream alone there is no node, and it is the leaf 1.
        self.first = winners.get(1).copied().unwrap_or(0);
        self.find_second();
    }

    /// The second lost against the first, wherever they met.
    fn find_second(&mut self) {
        let mut node = (self.streams.len() + self.first) / 2;
        self.second = (true, i64::MAX, usize::MAX);
        while node > 0 {
            self.second = self.second.min(self.keys[self.losers[node]]);
            node /= 2;
        }
    }

    /// Has the stream that was the first play for its new place.
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

    /// Goes to the next event, and gives the stream that has it; `None` at the end.
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

    /// Keeps the next event, if it is one of a program. False: [`Merge::next_event`] gives what comes instead.
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

    /// Keeps the event that [`Merge::next_event`] has given last.
    #[inline]
    pub fn keep(&self, block: &mut Block<'a>) {
        if let Some(stream) = self.streams.get(self.first) {
            stream.keep(block, Some(self.keys[self.first].1));
        }
    }

    /// The next event or notice, and `None` at the end. Where the streams are slices, the merge is an iterator too.
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

    /// Time, processor, and place in the stream.
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
        fn the_order_is_that_of_sorting(mut times in vec(vec(0..40u64, 0..12), 0..9)) {
            times.iter_mut().for_each(|times| times.sort());
            prop_assert_eq!(merged(&times), sorted(&times));
        }
    }
}
