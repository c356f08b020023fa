//! The one loop in which traces are read: selected events, other events, notices.

use dormouse_ctf::stream::Block;
use dormouse_ctf::{Event, Notice, Problem, Selection, StreamReader, Writers};

use crate::lost::LostWithin;
use crate::state::State;
use crate::{Bounds, Events, TraceFiles};

/// Maximum number of warnings that are kept one by one.
const WARNINGS_MAX: usize = 1000;

/// Reads events in the order of time, and collects errors and losses.
#[derive(Debug)]
pub struct Reading<'f> {
    files: &'f TraceFiles,
    names: Vec<&'f str>,
    events: Events<'f>,
    selection: Selection,
    bounds: Bounds,
    is_all: bool,
    state: State,
    part: LostWithin,
    wrong: Wrong,
    /// Index files that cannot be used to find the begin, one line each.
    pub index_notes: Vec<String>,
}

/// Errors of the traces, one line each, and the number of further ones.
#[derive(Debug, Default)]
struct Wrong {
    warnings: Vec<String>,
    more: u64,
}

impl Wrong {
    #[cold]
    fn note(&mut self, notice: &Notice, name: &str, part: &mut LostWithin) {
        match notice.problem {
            Problem::Discarded { count, begin_ns, end_ns } => part.lose(count, begin_ns, end_ns),
            _ if self.warnings.len() < WARNINGS_MAX => self.warnings.push(format!("{name}: {notice}")),
            _ => self.more += 1,
        }
    }
}

/// The next item.
#[derive(Debug)]
pub enum Item<'r> {
    /// A selected event, and the writers of events so far.
    Wanted(Event<'r>, &'r mut Writers),
    /// An event that is not selected.
    Other(Event<'r>),
    /// An error or a loss.
    Notice(Notice),
}

/// Damage and losses that were found while a trace was read.
#[derive(Debug)]
pub struct ReadSummary {
    /// Damage, and files that are left out or missing, one line each.
    pub warnings: Vec<String>,
    /// Losses in the selected time, if there are any.
    pub losses: Option<String>,
    /// Number of lost events, as far as it is known.
    pub events_lost: u64,
}

impl ReadSummary {
    /// Returns it as lines for people, losses last.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let warnings = self.warnings.iter().map(|line| format!("warning: {line}"));
        warnings.chain(self.losses.clone())
    }
}

impl<'f> Reading<'f> {
    /// Starts reading.
    pub fn new(files: &'f TraceFiles, selection: Selection, bounds: Bounds) -> Reading<'f> {
        let (events, index_notes) = files.range(bounds.first_ns, bounds.last_ns);
        Reading {
            files,
            names: files.names().collect(),
            events,
            is_all: !bounds.are_set() && selection.is_all(),
            selection,
            part: LostWithin::new(&bounds),
            bounds,
            state: State::default(),
            wrong: Wrong::default(),
            index_notes,
        }
    }

    /// Limits the memory for names of processes to `bytes`. Names beyond it are not kept.
    pub fn limit_names(&mut self, bytes: usize) {
        self.state.writers.limit(bytes);
    }

    /// Returns the selection of events by class and value.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Returns the selection of events by time, in its current state.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Returns the name of a stream.
    pub fn stream_name(&self, stream: usize) -> &'f str {
        self.names[stream]
    }

    /// Returns the time that a stream has reached, in nanoseconds since the epoch.
    pub fn time_ns(&self, stream: usize) -> Option<i64> {
        self.events.streams()[stream].time_ns()
    }

    /// Returns the size of all streams, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.events.streams().iter().map(StreamReader::size_bytes).sum()
    }

    /// Returns the number of bytes that were read or skipped, in whole packets.
    pub fn read_bytes(&self) -> u64 {
        self.size_bytes() - self.events.streams().iter().map(StreamReader::rest_bytes).sum::<u64>()
    }

    /// Returns the next item; `None` at the end.
    #[inline(always)]
    pub fn next_item(&mut self) -> Option<Item<'_>> {
        Some(match self.events.next_event()? {
            Ok(event) => {
                self.state.note(&event);
                let writers = &mut self.state.writers;
                let is_wanted = self.is_all || (self.bounds.have(&event) && self.selection.wants(&event, writers));
                match is_wanted {
                    true => Item::Wanted(event, writers),
                    false => Item::Other(event),
                }
            }
            Err(notice) => {
                self.wrong.note(&notice, self.names[notice.stream], &mut self.part);
                Item::Notice(notice)
            }
        })
    }

    /// Reads to the end. Passes the selected events, and the errors and losses to `take`, and calls `progress` after
    /// each item that was read.
    pub fn each_wanted(
        &mut self,
        mut take: impl FnMut(Result<Event<'_>, Notice>),
        mut progress: impl FnMut(&Reading<'f>),
    ) {
        while let Some(item) = self.next_item() {
            match item {
                Item::Wanted(event, _) => take(Ok(event)),
                Item::Other(_) => {}
                Item::Notice(notice) => take(Err(notice)),
            }
            progress(self);
        }
    }

    /// If all events are selected, keeps the next one, provided a program recorded it. Returns false otherwise: then
    /// call [`Reading::next_item`].
    #[inline]
    pub fn keep_next(&mut self, block: &mut Block<'f>) -> bool {
        self.is_all && self.events.keep_next(block)
    }

    /// Keeps the event that [`Reading::next_item`] returned last.
    #[inline]
    pub fn keep(&self, block: &mut Block<'f>) {
        self.events.keep(block);
    }

    /// Limits the report to losses from this time on.
    pub fn begins_with(&mut self, ns: i64) {
        self.part.begin_with(ns);
    }

    /// Limits the report to losses up to this time.
    pub fn ends_with(&mut self, ns: i64) {
        self.part.end_with(ns);
    }

    /// Returns the missing parts of the traces, one line each; nothing if only a part was selected.
    pub fn missing(&self) -> Vec<String> {
        if self.bounds.are_set() { Vec::new() } else { self.files.missing(&self.events) }
    }

    /// Returns the damage and the losses that were found. `is_at_end`: whether everything was read, so that missing parts are known.
    pub fn finish(self, is_at_end: bool) -> ReadSummary {
        let missing = if is_at_end { self.missing() } else { Vec::new() };
        let Wrong { warnings: wrong, more } = self.wrong;
        let is_damaged = !wrong.is_empty() || !missing.is_empty();
        let more = (more > 0).then(|| format!("{more} warnings more"));
        let warnings = self.files.left_out.iter().cloned().chain(wrong).chain(more).chain(missing).collect();
        let (losses, events_lost) = self.part.told(self.files, self.state.losses, is_damaged);
        ReadSummary { warnings, losses, events_lost }
    }
}

#[cfg(test)]
mod tests {
    use dormouse_ctf::StateRecord;
    use dormouse_traces::TraceBuilder;

    use super::*;

    /// Events that are not selected take time, but are not passed on.
    #[test]
    fn selected_events_and_notices_are_passed_on_in_order() {
        let mut trace = TraceBuilder::new();
        let [wanted, other] = ["wanted", "other"].map(|name| trace.class("app", name, &[]));
        let stream = trace.stream(0);
        for (time, class) in [(1, other), (2, wanted), (4, other)] {
            trace.event(stream, time, 7, 8, class, &[]);
        }
        trace.state(3, &StateRecord::Lost { reason: "none", count: 0 });
        trace.packet(stream, 0, 0);
        trace.event(stream, 9, 7, 8, wanted, &[]);
        trace.packet(stream, 0, 5);
        let dir = tempfile::tempdir().unwrap();
        trace.finish().write(dir.path());
        let files = TraceFiles::open(dir.path()).unwrap();
        let all = Bounds::new(&files, (i64::MIN, i64::MAX), None, None);
        let mut reading = Reading::new(&files, Selection::unchecked(vec!["app:wanted".into()], Vec::new()), all);
        let (mut passed, mut steps) = (Vec::new(), 0);
        let take = |next: Result<Event<'_>, Notice>| {
            passed.push(next.map_or(0, |event| event.timestamp));
        };
        reading.each_wanted(take, |_| steps += 1);
        assert_eq!((passed.as_slice(), steps), ([2, 0, 9].as_slice(), 6));
    }
}
