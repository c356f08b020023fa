//! The one loop in which traces are read: events that are asked for, events that are not, notices.

use dormouse_ctf::stream::Block;
use dormouse_ctf::{Event, Notice, Problem, Selection, StateRecord, StatedLosses, StreamReader, Writers};

use crate::lost::LostWithin;
use crate::{Bounds, Events, TraceFiles};

/// Warnings that are kept one by one.
const WARNINGS_MAX: usize = 1000;

/// Reads events in the order of time, and takes note of what is wrong, and of what is lost.
#[derive(Debug)]
pub struct Reading<'f> {
    files: &'f TraceFiles,
    names: Vec<&'f str>,
    events: Events<'f>,
    selection: Selection,
    bounds: Bounds,
    is_all: bool,
    writers: Writers,
    losses: StatedLosses,
    part: LostWithin,
    wrong: Wrong,
    /// Which index files are of no use for finding the begin, one line each.
    pub index_notes: Vec<String>,
}

/// What is wrong with the traces, one line each, and how many lines more there would be.
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

/// What comes next.
#[derive(Debug)]
pub enum Item<'r> {
    /// An event that is asked for; and whose events are whose.
    Wanted(Event<'r>, &'r mut Writers),
    /// An event that is not asked for.
    Other(Event<'r>),
    /// What is wrong or lost.
    Notice(Notice),
}

/// What there is to say when all has been read.
#[derive(Debug)]
pub struct Said {
    /// What is damaged, left out or missing, one line each.
    pub warnings: Vec<String>,
    /// What was lost in the time that was asked for, if anything was.
    pub losses: Option<String>,
    /// How many events these are, as far as that is known.
    pub events_lost: u64,
}

impl Said {
    /// All of it as lines for people, what was lost last.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let warnings = self.warnings.iter().map(|line| format!("warning: {line}"));
        warnings.chain(self.losses.clone())
    }
}

impl<'f> Reading<'f> {
    /// Begins.
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
            writers: Writers::default(),
            losses: StatedLosses::default(),
            wrong: Wrong::default(),
            index_notes,
        }
    }

    /// Keeps no more names of processes than take so many bytes; those that come later have none.
    pub fn limit_names(&mut self, bytes: usize) {
        self.writers.limit(bytes);
    }

    /// Which events are asked for, by class and value.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Which events are asked for, by time; as far as they have come.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Name of a stream.
    pub fn stream_name(&self, stream: usize) -> &'f str {
        self.names[stream]
    }

    /// To where a stream has come, nanoseconds since the epoch.
    pub fn time_ns(&self, stream: usize) -> Option<i64> {
        self.events.streams()[stream].time_ns()
    }

    /// Bytes of all streams.
    pub fn size_bytes(&self) -> u64 {
        self.events.streams().iter().map(StreamReader::size_bytes).sum()
    }

    /// How many of these have been read or passed over, by the packet.
    pub fn read_bytes(&self) -> u64 {
        self.size_bytes() - self.events.streams().iter().map(StreamReader::rest_bytes).sum::<u64>()
    }

    /// What comes next; `None` at the end.
    #[inline(always)]
    pub fn next_item(&mut self) -> Option<Item<'_>> {
        Some(match self.events.next_event()? {
            Ok(event) => {
                if event.is_state() {
                    note_state(&event, &mut self.losses, &mut self.writers);
                }
                let is_wanted =
                    self.is_all || (self.bounds.have(&event) && self.selection.wants(&event, &mut self.writers));
                match is_wanted {
                    true => Item::Wanted(event, &mut self.writers),
                    false => Item::Other(event),
                }
            }
            Err(notice) => {
                self.wrong.note(&notice, self.names[notice.stream], &mut self.part);
                Item::Notice(notice)
            }
        })
    }

    /// Where every event is asked for, keeps the next one, if it is one of a program. False: [`Reading::next_item`] gives what comes instead.
    #[inline]
    pub fn keep_next(&mut self, block: &mut Block<'f>) -> bool {
        self.is_all && self.events.keep_next(block)
    }

    /// Keeps the event that [`Reading::next_item`] has given last.
    #[inline]
    pub fn keep(&self, block: &mut Block<'f>) {
        self.events.keep(block);
    }

    /// Only what was lost from this time on is to be told.
    pub fn begins_with(&mut self, ns: i64) {
        self.part.begin_with(ns);
    }

    /// Only what was lost up to this time is to be told.
    pub fn ends_with(&mut self, ns: i64) {
        self.part.end_with(ns);
    }

    /// What traces ought to have, and have not, one line each; nothing, if only a part was asked for.
    pub fn missing(&self) -> Vec<String> {
        if self.bounds.are_set() { Vec::new() } else { self.files.missing(&self.events) }
    }

    /// What there is to say. `is_at_end`: all has been read, so that what is missing is known.
    pub fn finish(self, is_at_end: bool) -> Said {
        let missing = if is_at_end { self.missing() } else { Vec::new() };
        let Wrong { warnings: wrong, more } = self.wrong;
        let is_damaged = !wrong.is_empty() || !missing.is_empty();
        let more = (more > 0).then(|| format!("{more} warnings more"));
        let warnings = self.files.left_out.iter().cloned().chain(wrong).chain(more).chain(missing).collect();
        let (losses, events_lost) = self.part.told(self.files, self.losses, is_damaged);
        Said { warnings, losses, events_lost }
    }
}

/// What a session says of itself comes seldom.
#[cold]
fn note_state(event: &Event<'_>, losses: &mut StatedLosses, writers: &mut Writers) {
    if let Some(record) = StateRecord::decode(event) {
        losses.note(&record);
        writers.note(event, &record);
    }
}
