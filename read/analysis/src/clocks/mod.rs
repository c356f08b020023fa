//! Clocks of several hosts brought together, by messages that went from one to the other.
//!
//! ```text
//!   send and receive events of one key ──▶ Messages ──▶ of each two traces ──▶ fit: straight lines that no message contradicts
//!                                                                                  the middle one ──▶ Correction, and its error
//! ```
//! No message is received before it was sent. So each that goes to the other host says that its clock is not earlier than so much, and each
//! that comes back that it is not later. Where both clocks run evenly, one against the other is a straight line between these bounds; of all
//! such lines the one in the middle is taken, and the farthest from it is the error. It is a bound, not an estimate. (Duda, Harrus, Haddad,
//! Bernard: "Estimating global time in distributed systems", 1987.)
//!
//! A host that has no messages with the first one is corrected by way of others, whose errors add up.

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

/// Messages that are followed at a time: sent and not yet received, or the other way round.
const OPEN_MAX: usize = 1 << 20;
/// Bounds that are kept of each two traces: of each slice of the time the tightest.
const SLICES: usize = 1 << 12;

/// What sends a message, and what receives it.
#[derive(Debug, Clone)]
pub struct MessageClasses {
    /// Pattern of the classes that send.
    pub send: String,
    /// Pattern of the classes that receive.
    pub receive: String,
    /// Fields that both have, and that no two messages have in common.
    pub key: Vec<String>,
}

/// An end of a message: the trace, and its time.
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
    /// By the trace that has sent, and the one that has received.
    between: HashMap<(usize, usize), Tightest>,
    /// Of each trace: its first and its last event.
    spans: Vec<Option<(i64, i64)>>,
    /// Ends that are not followed, because there are too many whose other end is not known.
    pub not_followed: u64,
}

/// Messages of one direction, those that say most.
#[derive(Debug, Default)]
struct Tightest {
    count: u64,
    /// By the slice of the time in which it was sent: when sent, when received, with the least between.
    by_slice: HashMap<i64, (i64, i64)>,
    /// A slice is so many nanoseconds, as a power of 2.
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

/// What the times of a trace are corrected by.
#[derive(Debug, Clone, PartialEq)]
pub struct Corrected {
    /// Index of the trace.
    pub trace: usize,
    /// Its messages with the trace beside, to it and from it.
    pub messages: [u64; 2],
    /// The trace by way of which it is corrected.
    pub beside: usize,
    /// Makes its times those of the first trace.
    pub correction: Correction,
    /// Nanoseconds by which a corrected time of the trace can be wrong at most, if both clocks run evenly.
    pub error_ns: u64,
}

/// Why a trace cannot be corrected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// No messages, or one way alone.
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
    /// Of no events yet.
    ///
    /// # Errors
    /// What the traces have not, and what is the nearest.
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

    /// Takes an event of a trace. Their order is of no account. `is_asked`: whether it can be one that sends or receives.
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
            // The same key once more: whose other end comes is not known, so the last one counts.
            Some(_) => {
                self.open.insert(self.key.as_slice().into(), end);
            }
            None if self.open.len() < OPEN_MAX => {
                self.open.insert(self.key.as_slice().into(), end);
            }
            None => self.not_followed += 1,
        }
    }

    /// How many ends of messages there are whose other end was not found.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// What the times of all traces but the first are corrected by; `trace_count` are there.
    pub fn corrections(&self, trace_count: usize) -> Vec<Result<Corrected, Unfit>> {
        // The way of each to the first one.
        let mut ways: Vec<Vec<Fit>> = vec![Vec::new(); trace_count];
        let mut results: Vec<_> = (1..trace_count).map(|_| Err(Unfit::OneWay)).collect();
        // Those that are nearest to the first come first; of equally near ways, the one with the least error.
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

    /// What comes of a way to the first trace, unless that is too far. Errors are worst at one end of the span: each is convex.
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

    /// The line from the times of a trace to those of the trace beside.
    fn fit(&self, beside: usize, trace: usize) -> Result<Fit, Unfit> {
        let there = self.between.get(&(beside, trace)).ok_or(Unfit::OneWay)?;
        let back = self.between.get(&(trace, beside)).ok_or(Unfit::OneWay)?;
        let span = self.spans.get(trace).copied().flatten().ok_or(Unfit::OneWay)?;
        // What was sent beside is received here: here it is at least so late beside.
        let at_least = there.by_slice.values().map(|(sent, received)| Bound { here_ns: *received, beside_ns: *sent });
        let at_most = back.by_slice.values().map(|(sent, received)| Bound { here_ns: *sent, beside_ns: *received });
        fit(&at_least.collect::<Vec<_>>(), &at_most.collect::<Vec<_>>(), span).ok_or(Unfit::Contradiction)
    }
}

#[cfg(test)]
mod tests;
