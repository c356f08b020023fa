//! Pairs of events: the time from a begin to its end.
//!
//! ```text
//!   key (a thread, or values of fields) ──▶ its open begins, the last one on top
//!     begin: is put on top          end: takes the top; none there: an end without begin
//! ```
//! A pair is believed if no event can have been lost between its two: a lost end would pair a begin with the end of another.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use crate::key::Who;

/// Begins that are open at a time. More are not followed.
const OPEN_MAX: usize = 1 << 20;
/// Times of losses that are told apart; beyond, neighbours are one.
const LOSSES_MAX: usize = 1 << 16;

/// A begin whose end has not come.
#[derive(Debug)]
pub(crate) struct Begin {
    pub ns: i64,
    pub group: Box<[u8]>,
    pub process: u32,
    pub who: Who,
    pub size_bytes: u64,
}

/// A pair that took long.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slow {
    pub latency_ns: u64,
    /// The earlier of two that took equally long is kept.
    pub begin_ns: Reverse<i64>,
    pub process: u32,
    pub tid: Option<u32>,
    pub key: Box<[u8]>,
}

/// What was found, besides the pairs.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Unpaired {
    pub begins: u64,
    pub ends: u64,
    pub across_losses: u64,
    pub without_key: u64,
    pub not_followed: u64,
}

/// Times in which events were lost.
#[derive(Debug, Default)]
struct Losses {
    /// End by begin; none touches another.
    times: BTreeMap<i64, i64>,
    /// By stream: since when the stream has not gone on after one.
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
        // What is lost from the end on is lost behind it.
        self.times.range(..end).next_back().is_some_and(|(_, until)| *until >= begin)
            || self.open.values().any(|since| *since < end)
    }
}

/// Pairs events.
#[derive(Debug)]
pub(crate) struct Pairs {
    open: HashMap<Box<[u8]>, Vec<Begin>>,
    open_count: usize,
    /// By trace, if pairs are of one trace, otherwise one.
    losses: HashMap<usize, Losses>,
    slowest_max: usize,
    slowest: BinaryHeap<Reverse<Slow>>,
    pub unpaired: Unpaired,
}

impl Pairs {
    pub(crate) fn new(slowest_max: usize) -> Pairs {
        Pairs {
            open: HashMap::new(),
            open_count: 0,
            losses: HashMap::new(),
            slowest_max,
            slowest: BinaryHeap::new(),
            unpaired: Unpaired::default(),
        }
    }

    /// Events were lost in a stream between these times; `None`: until it goes on.
    pub(crate) fn lost(&mut self, domain: usize, stream: usize, begin: i64, end: Option<i64>) {
        let losses = self.losses.entry(domain).or_default();
        match end {
            Some(end) => losses.add(begin, end),
            None => {
                losses.open.entry(stream).or_insert(begin);
            }
        }
    }

    /// A stream has an event at this time.
    pub(crate) fn goes_on(&mut self, domain: usize, stream: usize, ns: i64) {
        if let Some(losses) = self.losses.get_mut(&domain)
            && let Some(since) = losses.open.remove(&stream)
        {
            losses.add(since, ns);
        }
    }

    pub(crate) fn begin(&mut self, key: &[u8], begin: Begin) {
        if self.open_count >= OPEN_MAX {
            self.unpaired.not_followed += 1;
            return;
        }
        self.open_count += 1;
        match self.open.get_mut(key) {
            Some(stack) => stack.push(begin),
            None => {
                self.open.insert(key.into(), vec![begin]);
            }
        }
    }

    /// Takes the begin that an end belongs to, with the time between them.
    pub(crate) fn end(&mut self, domain: usize, key: &[u8], ns: i64) -> Option<(Begin, u64)> {
        let Some(stack) = self.open.get_mut(key) else {
            self.unpaired.ends += 1;
            return None;
        };
        // None is empty.
        let begin = stack.pop()?;
        if stack.is_empty() {
            self.open.remove(key);
        }
        self.open_count -= 1;
        if self.losses.get(&domain).is_some_and(|losses| losses.is_any(begin.ns, ns)) {
            self.unpaired.across_losses += 1;
            return None;
        }
        let latency_ns = ns.abs_diff(begin.ns);
        let is_slow = self.slowest.len() < self.slowest_max
            || self.slowest.peek().is_some_and(|Reverse(least)| latency_ns > least.latency_ns);
        if is_slow && self.slowest_max > 0 {
            let Begin { ns, process, who, .. } = begin;
            let slow = Slow { latency_ns, begin_ns: Reverse(ns), process, tid: who.tid, key: key.into() };
            self.slowest.push(Reverse(slow));
            if self.slowest.len() > self.slowest_max {
                self.slowest.pop();
            }
        }
        Some((begin, latency_ns))
    }

    /// What is left, and the slowest pairs, the slowest first.
    pub(crate) fn finish(mut self) -> (Unpaired, Vec<Slow>) {
        self.unpaired.begins = self.open.values().map(|stack| stack.len() as u64).sum();
        let mut slowest: Vec<Slow> = self.slowest.into_iter().map(|Reverse(slow)| slow).collect();
        slowest.sort_by(|a, b| b.cmp(a));
        (self.unpaired, slowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_losses_are_found_and_thrown_together() {
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
