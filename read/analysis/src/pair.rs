//! Pairs of events, from a begin to its end.
//!
//! ```text
//!   key (a thread, or values of fields) ──▶ its open begins, the last one on top
//!     begin: pushed on top             end: pops the top; if there is none, an end without begin
//! ```
//! A pair is believed if no event can have been lost between its two events: after a lost end, a begin would be paired
//! with the end of another.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::Hash;

use dormouse_ctf::hash::QuickMap;

/// Maximum number of begins that wait for their end. Further begins are counted, not paired.
const OPEN_MAX: usize = 1 << 20;
/// Number of keys above which a key without an open begin is removed.
const KEYS_KEPT: usize = 1 << 14;
/// Maximum number of separate time ranges of losses. Beyond it, neighbouring ranges are merged.
const LOSSES_MAX: usize = 1 << 16;

/// A begin and the end that belongs to it.
#[derive(Debug, PartialEq, Eq)]
pub struct Pair<T> {
    /// Time of the begin, in nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Time from the begin to the end, in nanoseconds.
    pub latency_ns: u64,
    /// False if events can have been lost between the two: the end may then belong to another begin.
    pub is_believed: bool,
    /// Data that was kept of the begin.
    pub kept: T,
}

/// A pair that took long.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slow {
    pub latency_ns: u64,
    /// Time of the begin. If two pairs have the same latency, the earlier one is kept.
    pub begin_ns: Reverse<i64>,
    pub process: u32,
    pub tid: Option<u32>,
    pub key: Box<[u8]>,
    /// Streams of begin and end.
    pub streams: [usize; 2],
}

/// Counts of events and pairs that were not matched or not trusted.
#[derive(Debug, Default, Clone, Copy)]
pub struct Unpaired {
    /// Begins without an end.
    pub begins: u64,
    /// Ends without a begin.
    pub ends: u64,
    /// Pairs during which events can have been lost.
    pub across_losses: u64,
    /// Events without a key.
    pub without_key: u64,
    /// Begins that were not followed, because too many others were open.
    pub not_followed: u64,
}

/// Time ranges in which events were lost, by domain.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownLosses(HashMap<usize, Losses>);

/// Time ranges in which events were lost.
#[derive(Debug, Clone, Default)]
struct Losses {
    /// Begin to end. Ranges do not touch each other.
    times: BTreeMap<i64, i64>,
    /// Begins of losses in streams that have not continued since, by stream.
    open: HashMap<usize, i64>,
}

impl Losses {
    fn add(&mut self, mut begin: i64, mut end: i64) {
        while let Some((&at, &until)) = self.times.range(..=end).next_back()
            && until >= begin
        {
            self.times.remove(&at);
            (begin, end) = (begin.min(at), end.max(until));
        }
        if self.times.len() >= LOSSES_MAX
            && let Some((at, until)) = self.times.pop_last()
        {
            (begin, end) = (begin.min(at), end.max(until));
        }
        self.times.insert(begin, end);
    }

    fn is_any(&self, begin: i64, end: i64) -> bool {
        // A loss that begins at `end` is after the pair.
        self.times.range(..end).next_back().is_some_and(|(_, until)| *until >= begin)
            || self.open.values().any(|since| *since < end)
    }
}

/// Pairs events. `K`: the key that both ends share; `T`: the data that is kept of a begin until its end.
#[derive(Debug)]
pub struct Pairs<K, T> {
    /// Times and data of open begins, by key, the last one on top. Some stacks are empty.
    open: QuickMap<K, Vec<(i64, T)>>,
    open_count: usize,
    /// Losses by domain: by trace if pairs are matched within a trace, otherwise in one domain.
    losses: HashMap<usize, Losses>,
    /// Counts of events that were not paired so far.
    pub unpaired: Unpaired,
}

impl<K: Hash + Eq, T> Default for Pairs<K, T> {
    fn default() -> Self {
        Pairs::new()
    }
}

impl<K: Hash + Eq, T> Pairs<K, T> {
    /// Creates an empty set of pairs.
    pub fn new() -> Pairs<K, T> {
        Pairs { open: QuickMap::default(), open_count: 0, losses: HashMap::new(), unpaired: Unpaired::default() }
    }

    /// Returns a copy with the same begins, but without losses.
    pub(crate) fn without_losses(&self) -> Pairs<K, T>
    where
        K: Clone,
        T: Clone,
    {
        let Pairs { open, open_count, unpaired, .. } = self;
        Pairs { open: open.clone(), open_count: *open_count, losses: HashMap::new(), unpaired: *unpaired }
    }

    /// Returns all known losses.
    pub(crate) fn losses(&self) -> KnownLosses {
        KnownLosses(self.losses.clone())
    }

    /// Replaces the known losses.
    pub(crate) fn with_losses(self, losses: &KnownLosses) -> Pairs<K, T> {
        Pairs { losses: losses.0.clone(), ..self }
    }

    /// Notes that events were lost in a stream between these times. `end` is `None` if the loss lasts until the stream
    /// continues.
    pub fn lost(&mut self, domain: usize, stream: usize, begin: i64, end: Option<i64>) {
        let losses = self.losses.entry(domain).or_default();
        match end {
            Some(end) => losses.add(begin, end),
            None => {
                losses.open.entry(stream).or_insert(begin);
            }
        }
    }

    /// Notes that a stream continues at this time.
    pub fn goes_on(&mut self, domain: usize, stream: usize, ns: i64) {
        if let Some(losses) = self.losses.get_mut(&domain)
            && let Some(since) = losses.open.remove(&stream)
        {
            losses.add(since, ns);
        }
    }

    /// Returns the number of open begins.
    pub fn open_count(&self) -> usize {
        self.open_count
    }

    /// Whether a begin can be taken. A begin that cannot is counted as not followed.
    pub fn has_room(&mut self) -> bool {
        let has_room = self.open_count < OPEN_MAX;
        self.unpaired.not_followed += u64::from(!has_room);
        has_room
    }

    /// Whether a begin can be taken, without counting it otherwise.
    #[inline(always)]
    pub(crate) fn can_begin(&self) -> bool {
        self.open_count < OPEN_MAX
    }

    /// Takes a begin; only if [`Pairs::has_room`].
    pub fn begin(&mut self, key: K, ns: i64, kept: T) {
        self.begun();
        self.open.entry(key).or_default().push((ns, kept));
    }

    /// Pairs an end with the last open begin of its key.
    pub fn end<Q: Hash + Eq + ?Sized>(&mut self, domain: usize, key: &Q, ns: i64) -> Option<Pair<T>>
    where
        K: Borrow<Q>,
    {
        let stack = self.open.get_mut(key);
        let Some((stack, (begin_ns, kept))) = stack.and_then(|stack| stack.pop().map(|begin| (stack, begin))) else {
            self.unpaired.ends += 1;
            return None;
        };
        if stack.is_empty() && self.open.len() > KEYS_KEPT {
            self.open.remove(key);
        }
        let is_believed = self.ended(domain, begin_ns, ns);
        Some(Pair { begin_ns, latency_ns: ns.abs_diff(begin_ns), is_believed, kept })
    }

    /// Counts one more open begin, which the caller keeps.
    #[inline(always)]
    pub(crate) fn begun(&mut self) {
        self.open_count += 1;
    }

    /// Counts one open begin less. Returns false if events can have been lost in between.
    #[inline(always)]
    pub(crate) fn ended(&mut self, domain: usize, begin_ns: i64, ns: i64) -> bool {
        self.open_count -= 1;
        self.losses.is_empty() || self.was_complete(domain, begin_ns, ns)
    }

    fn was_complete(&mut self, domain: usize, begin_ns: i64, ns: i64) -> bool {
        let is_believed = !self.losses.get(&domain).is_some_and(|losses| losses.is_any(begin_ns, ns));
        self.unpaired.across_losses += u64::from(!is_believed);
        is_believed
    }

    /// Returns the counts, and the begins without an end.
    pub fn finish(mut self) -> (Unpaired, impl Iterator<Item = (i64, T)>) {
        self.unpaired.begins = self.open_count as u64;
        (self.unpaired, self.open.into_values().flatten())
    }
}

/// The pairs with the greatest latencies.
#[derive(Debug)]
pub(crate) struct Slowest {
    max: usize,
    pairs: BinaryHeap<Reverse<Slow>>,
}

impl Slowest {
    pub(crate) fn new(max: usize) -> Slowest {
        Slowest { max, pairs: BinaryHeap::new() }
    }

    /// Adds a pair. `slow` is called if the pair is among the slowest so far.
    pub(crate) fn add(&mut self, latency_ns: u64, slow: impl FnOnce() -> Slow) {
        let is_slow = self.pairs.len() < self.max
            || self.pairs.peek().is_some_and(|Reverse(least)| latency_ns > least.latency_ns);
        if is_slow && self.max > 0 {
            self.pairs.push(Reverse(slow()));
            if self.pairs.len() > self.max {
                self.pairs.pop();
            }
        }
    }

    /// Returns the pairs, the slowest first.
    pub(crate) fn finish(self) -> Vec<Slow> {
        let mut slowest: Vec<Slow> = self.pairs.into_iter().map(|Reverse(slow)| slow).collect();
        slowest.sort_by(|a, b| b.cmp(a));
        slowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_losses_are_found_and_merged() {
        let mut losses = Losses::default();
        for (begin, end) in [(10, 20), (40, 50), (15, 25), (60, 60)] {
            losses.add(begin, end);
        }
        assert_eq!(losses.times, BTreeMap::from([(10, 25), (40, 50), (60, 60)]));
        let is_any = |begin, end| losses.is_any(begin, end);
        assert!(is_any(0, 11) && is_any(25, 30) && is_any(30, 45) && is_any(0, 100) && is_any(60, 61));
        assert!(!is_any(0, 10) && !is_any(26, 39) && !is_any(51, 59) && !is_any(61, 70));
        losses.add(0, 100);
        assert_eq!(losses.times, BTreeMap::from([(0, 100)]));
        losses.open.insert(0, 200);
        assert!(losses.is_any(150, 201) && !losses.is_any(150, 200));
    }
}
