//! Aligns the clocks of several hosts by the messages that they exchanged.
//!
//! ```text
//!   send and receive events of one key ──▶ Messages ──▶ per pair of traces ──▶ fit: straight lines that no message contradicts
//!                                                                                  the middle one ──▶ Correction, and its error
//! ```
//! No message is received before it was sent. So each message to the other host gives a lower bound of its clock, and
//! each message back gives an upper bound. If both clocks run evenly, one as a function of the other is a straight line
//! between these bounds. The line in the middle of all such lines is taken, and the distance to the farthest one is the
//! error. It is a bound, not an estimate. (Duda, Harrus, Haddad, Bernard: "Estimating global time in distributed
//! systems", 1987.)
//!
//! A host that exchanged no messages with the first one is corrected through other hosts, whose errors add up.

mod fit;
mod stored;

use std::collections::HashMap;

use dormouse_abi::class::matches;
use dormouse_ctf::{Correction, Event, Trace};

use crate::key::put_cell;
use crate::pick::{Picker, Said};
use crate::schema::Schema;
pub use stored::{File, Stored, name, uuid};

use fit::{Bound, Fit, fit};

/// Maximum number of messages of which one end has been seen and the other has not. Further ends are counted, not
/// followed.
const OPEN_MAX: usize = 1 << 20;
/// Maximum number of bounds that are kept per direction of two traces: the tightest of each slice of time.
const SLICES: usize = 1 << 12;

/// The event classes that send and receive messages.
#[derive(Debug, Clone)]
pub struct MessageClasses {
    /// Pattern of the classes that send.
    pub send: String,
    /// Pattern of the classes that receive.
    pub receive: String,
    /// Fields that both have, and whose values are unique to a message.
    pub key: Vec<String>,
}

/// One end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    trace: usize,
    ns: i64,
    is_send: bool,
}

/// Messages between traces.
#[derive(Debug)]
pub struct Messages {
    classes: MessageClasses,
    picker: Picker,
    fields: Vec<usize>,
    key: Vec<u8>,
    open: HashMap<Box<[u8]>, End>,
    /// Tightest messages, by sending trace and receiving trace.
    between: HashMap<(usize, usize), Tightest>,
    /// Times of the first and the last event of each trace.
    spans: Vec<Option<(i64, i64)>>,
    /// Number of ends that are not followed, because too many others wait for their other end.
    pub not_followed: u64,
}

/// The messages of one direction that give the tightest bounds.
#[derive(Debug, Default)]
struct Tightest {
    count: u64,
    /// Times of sending and receiving of the quickest message, by the slice of time in which it was sent.
    by_slice: HashMap<i64, (i64, i64)>,
    /// Base-2 logarithm of the length of a slice, in nanoseconds.
    slice_bits: u32,
}

impl Tightest {
    fn add(&mut self, sent_ns: i64, received_ns: i64) {
        self.count += 1;
        self.keep(sent_ns, received_ns);
        while self.by_slice.len() > SLICES {
            self.slice_bits += 1;
            for (sent_ns, received_ns) in std::mem::take(&mut self.by_slice).into_values() {
                self.keep(sent_ns, received_ns);
            }
        }
    }

    fn keep(&mut self, sent_ns: i64, received_ns: i64) {
        let between = |(sent, received): (i64, i64)| i128::from(received) - i128::from(sent);
        let kept = self.by_slice.entry(sent_ns >> self.slice_bits).or_insert((sent_ns, received_ns));
        if between((sent_ns, received_ns)) < between(*kept) {
            *kept = (sent_ns, received_ns);
        }
    }
}

/// The correction of a trace's times.
#[derive(Debug, Clone, PartialEq)]
pub struct Corrected {
    /// Index of the trace.
    pub trace: usize,
    /// Numbers of messages from the trace `beside` to it, and from it to `beside`.
    pub messages: [u64; 2],
    /// Index of the trace through which it is corrected.
    pub beside: usize,
    /// Converts its times to those of the first trace.
    pub correction: Correction,
    /// Greatest error of a corrected time, in nanoseconds, if both clocks run evenly.
    pub error_ns: u64,
}

/// Reason why a trace cannot be corrected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There are no messages, or only in one direction.
    #[error("has no messages in both directions with a trace whose times are known")]
    OneWay,
    /// The bounds contradict each other.
    #[error(
        "no evenly running clock fits its messages: some are received before they were sent, whatever is corrected"
    )]
    Contradiction,
    /// 64 bits of nanoseconds do not hold the difference.
    #[error("is more than 292 years apart from the trace whose times are known; is the offset of its clock right?")]
    Far,
}

impl Messages {
    /// Creates an empty set of messages.
    ///
    /// # Errors
    /// The traces lack a class or field that `classes` names; the text names the nearest.
    pub fn new(classes: MessageClasses, traces: &[&Trace]) -> Result<Messages, String> {
        let schema = Schema::of(traces);
        for pattern in [&classes.send, &classes.receive] {
            schema.check_pattern(pattern)?;
            for field in &classes.key {
                schema.check_field(field, std::slice::from_ref(pattern), &[])?;
            }
        }
        Ok(Messages::of(classes))
    }

    fn of(classes: MessageClasses) -> Messages {
        let mut picker = Picker::default();
        let fields = classes.key.iter().map(|name| picker.want(name)).collect();
        let (key, open, between, spans) = (Vec::new(), HashMap::new(), HashMap::new(), Vec::new());
        Messages { classes, picker, fields, key, open, between, spans, not_followed: 0 }
    }

    /// Takes an event of a trace, in any order. `is_asked`: whether it may be a send or receive event.
    pub fn event(&mut self, trace: usize, event: &Event<'_>, is_asked: bool) {
        let Some(ns) = event.time_ns else { return };
        if self.spans.len() <= trace {
            self.spans.resize(trace + 1, None);
        }
        let (first, last) = self.spans[trace].unwrap_or((ns, ns));
        self.spans[trace] = Some((first.min(ns), last.max(ns)));
        let name = &event.class.full_name;
        let is_send = matches(&self.classes.send, name);
        if !is_asked || !(is_send || matches(&self.classes.receive, name)) {
            return;
        }
        self.picker.read(event);
        self.key.clear();
        for cell in self.fields.iter().map(|field| self.picker.cell(*field)) {
            if cell.said == Said::Nothing {
                return;
            }
            put_cell(cell, &mut self.key);
        }
        let end = End { trace, ns, is_send };
        match self.open.get(self.key.as_slice()).copied() {
            Some(other) if other.is_send != is_send => {
                self.open.remove(self.key.as_slice());
                let (from, to) = if is_send { (end, other) } else { (other, end) };
                if from.trace != to.trace {
                    self.between.entry((from.trace, to.trace)).or_default().add(from.ns, to.ns);
                }
            }
            // The key was used again: its earlier end has no known counterpart, so the later one replaces it.
            Some(_) => {
                self.open.insert(self.key.as_slice().into(), end);
            }
            None if self.open.len() < OPEN_MAX => {
                self.open.insert(self.key.as_slice().into(), end);
            }
            None => self.not_followed += 1,
        }
    }

    /// Returns the number of ends of messages whose other end was not found.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Returns the corrections of all traces but the first. `trace_count`: number of traces.
    pub fn corrections(&self, trace_count: usize) -> Vec<Result<Corrected, Unfit>> {
        // Lines that lead from each trace to the first one.
        let mut ways: Vec<Vec<Fit>> = vec![Vec::new(); trace_count];
        let mut results: Vec<_> = (1..trace_count).map(|_| Err(Unfit::OneWay)).collect();
        // Breadth-first from the first trace. Of ways with equally many steps, the one with the least error is taken.
        let mut reached = vec![0];
        while !reached.is_empty() {
            let mut next = Vec::new();
            for trace in 1..trace_count {
                if results[trace - 1].is_ok() {
                    continue;
                }
                let mut best: Option<(Corrected, Vec<Fit>)> = None;
                for beside in reached.iter().copied() {
                    let fit = match self.fit(beside, trace) {
                        Ok(fit) => fit,
                        Err(Unfit::OneWay) => continue,
                        Err(contradiction) => {
                            results[trace - 1] = Err(contradiction);
                            continue;
                        }
                    };
                    let way = [&[fit], ways[beside].as_slice()].concat();
                    let Some(corrected) = self.corrected(trace, beside, &way) else {
                        results[trace - 1] = Err(Unfit::Far);
                        continue;
                    };
                    if best.as_ref().is_none_or(|(best, _)| corrected.error_ns < best.error_ns) {
                        best = Some((corrected, way));
                    }
                }
                if let Some((corrected, way)) = best {
                    results[trace - 1] = Ok(corrected);
                    next.push((trace, way));
                }
            }
            reached = next.iter().map(|(trace, _)| *trace).collect();
            next.into_iter().for_each(|(trace, way)| ways[trace] = way);
        }
        results
    }

    /// Returns the correction along a way to the first trace; `None` if its offset does not fit into 64 bits. Errors
    /// are convex, so the greatest is at an end of the span.
    fn corrected(&self, trace: usize, beside: usize, way: &[Fit]) -> Option<Corrected> {
        let mut line = way[0].line;
        let mut errors = [way[0].error_ns(0.0), way[0].error_ns(line.length())];
        for outer in &way[1..] {
            let ends = line.ends_in(&outer.line);
            errors = [0, 1].map(|side| errors[side] * outer.line.slope() + outer.error_ns(ends[side]));
            line = line.then(&outer.line);
        }
        let count = |from, to| self.between.get(&(from, to)).map_or(0, |messages| messages.count);
        let messages = [count(beside, trace), count(trace, beside)];
        let error_ns = errors[0].max(errors[1]).ceil() as u64;
        Some(Corrected { trace, messages, beside, correction: line.correction()?, error_ns })
    }

    /// Returns the line from the times of a trace to those of the trace `beside`.
    fn fit(&self, beside: usize, trace: usize) -> Result<Fit, Unfit> {
        let there = self.between.get(&(beside, trace)).ok_or(Unfit::OneWay)?;
        let back = self.between.get(&(trace, beside)).ok_or(Unfit::OneWay)?;
        let span = self.spans.get(trace).copied().flatten().ok_or(Unfit::OneWay)?;
        // A message from `beside`: at the time here when it is received, the clock beside shows at least the time of
        // sending.
        let at_least = there.by_slice.values().map(|(sent, received)| Bound { here_ns: *received, beside_ns: *sent });
        let at_most = back.by_slice.values().map(|(sent, received)| Bound { here_ns: *sent, beside_ns: *received });
        fit(&at_least.collect::<Vec<_>>(), &at_most.collect::<Vec<_>>(), span).ok_or(Unfit::Contradiction)
    }
}

#[cfg(test)]
mod tests;
