//! Selected events of streams, which several threads find ahead of the thread that takes them in order.
//!
//! ```text
//!   stream ─▶ parts ─▶ threads: skip other events, keep selected ones ─▶ blocks ─▶ Ahead: the stream's selected events in order
//! ```
//! A part that is too large to be kept is read by the thread that takes the events.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use dormouse_ctf::stream::{Block, Choice, Chosen, ChosenOf, EventFields};
use dormouse_ctf::{Event, Notice, StreamReader};

use crate::extent::Window;
use crate::traces::TraceFiles;

/// Least size of a part, and size of all parts that are kept at a time, in bytes.
const PART_BYTES: u64 = 512 << 10;
const KEPT_BYTES: u64 = 48 << 20;
/// Factor by which small events grow when they are kept.
const KEPT_RATIO: u64 = 4;
const HEADER_WINDOW_BYTES: usize = 512;

/// A part to be read.
struct Job<'c, 'f> {
    reader: StreamReader<'f, Window<'f>>,
    choice: &'c Choice<'f>,
    /// Empty memory for the result.
    found: Found<'f>,
    to: SyncSender<Found<'f>>,
}

/// Events and notices that were found in a part.
#[derive(Debug, Default)]
struct Found<'f> {
    block: Block<'f>,
    /// Number of the class of each event.
    numbers: Vec<usize>,
    /// Notices, each with the index of the event before which it occurred.
    notices: Vec<(usize, Notice)>,
    /// Whether the stream cannot be read after this part.
    is_over: bool,
    /// Memory of the window. It is reused, like the rest of this structure: fresh memory costs more than the work done
    /// in it.
    memory: Vec<u8>,
}

/// Source of the events of a part.
#[derive(Debug)]
enum From<'c, 'f> {
    Thread(Receiver<Found<'f>>),
    Here(Box<ChosenOf<'c, 'f, Window<'f>>>),
}

/// The selected events of a stream.
#[derive(Debug)]
pub struct Ahead<'c, 'f> {
    files: &'f TraceFiles,
    stream: usize,
    choice: &'c Choice<'f>,
    left: StreamReader<'f, Window<'f>>,
    jobs: Sender<Job<'c, 'f>>,
    parts: VecDeque<From<'c, 'f>>,
    part_bytes_max: u64,
    /// The current part, and the indexes of the next event and the next notice in it.
    at: Found<'f>,
    next: (usize, usize),
    here: Option<Box<ChosenOf<'c, 'f, Window<'f>>>>,
}

impl TraceFiles {
    /// Returns the selected events of each stream between two times, see [`StreamReader::within`]. `choice` returns the
    /// selection for a trace, by its index; if it returns `None`, no stream of the trace is read. Threads of the scope
    /// look for the events; they end when all returned values are dropped.
    pub fn chosen<'s, 'c, 'f>(
        &'f self,
        scope: &'s Scope<'s, '_>,
        (first_ns, last_ns): (i64, i64),
        choice: impl Fn(usize) -> Option<&'c Choice<'f>>,
    ) -> Vec<Ahead<'c, 'f>>
    where
        'f: 'c,
        'c: 's,
    {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (jobs, waiting) = channel::<Job<'c, 'f>>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..threads {
            let waiting = Arc::clone(&waiting);
            scope.spawn(move || {
                loop {
                    let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { break };
                    let to = job.to.clone();
                    // The receiver may have been dropped.
                    let _ = to.send(look_for(job));
                }
            });
        }
        let streams = self.readers().enumerate().filter_map(|(stream, (trace, _))| Some((stream, choice(trace)?)));
        let streams: Vec<_> = streams.collect();
        let ahead_count = (2 * threads).div_ceil(streams.len().max(1));
        let kept_count = (streams.len() * (ahead_count + 1)) as u64;
        let ahead = |(stream, choice): (usize, &'c Choice<'f>)| {
            let mut ahead = Ahead {
                files: self,
                stream,
                choice,
                left: self.reader_by(stream, HEADER_WINDOW_BYTES).within(first_ns, last_ns),
                jobs: jobs.clone(),
                parts: VecDeque::new(),
                part_bytes_max: KEPT_BYTES / KEPT_RATIO / kept_count.max(1),
                at: Found::default(),
                next: (0, 0),
                here: None,
            };
            (0..ahead_count).for_each(|_| ahead.order(Found::default()));
            ahead
        };
        streams.into_iter().map(ahead).collect()
    }
}

fn look_for<'f>(job: Job<'_, 'f>) -> Found<'f> {
    let Job { mut reader, choice, mut found, .. } = job;
    let end_bytes = reader.end_bytes();
    while let Some(notice) = reader.keep_chosen(choice, &mut found.block, &mut found.numbers) {
        found.notices.push((found.numbers.len(), notice));
    }
    found.is_over = reader.end_bytes() < end_bytes;
    found.memory = reader.into_source().into_memory();
    found
}

impl<'f> Ahead<'_, 'f> {
    /// Has a thread look for the events of the next part, with `found` as memory for the result.
    fn order(&mut self, mut found: Found<'f>) {
        found.block.clear();
        found.numbers.clear();
        found.notices.clear();
        let window = self.files.window_in(self.stream, std::mem::take(&mut found.memory));
        let Some(part) = self.left.cut(PART_BYTES, window) else { return };
        if part.rest_bytes() > self.part_bytes_max.max(PART_BYTES / 2) {
            return self.parts.push_back(From::Here(Box::new(ChosenOf::new(part, self.choice))));
        }
        let (to, receiver) = sync_channel(1);
        if self.jobs.send(Job { reader: part, choice: self.choice, found, to }).is_ok() {
            self.parts.push_back(From::Thread(receiver));
        }
    }

    /// Continues with the next part; false if there is none.
    fn next_part(&mut self) -> bool {
        if std::mem::take(&mut self.at.is_over) {
            return false;
        }
        let Some(part) = self.parts.pop_front() else { return false };
        let found = std::mem::take(&mut self.at);
        self.order(found);
        (self.next, self.here) = ((0, 0), None);
        match part {
            From::Thread(found) => match found.recv() {
                Ok(found) => self.at = found,
                Err(_) => return false,
            },
            From::Here(events) => self.here = Some(events),
        }
        true
    }
}

impl Chosen for Ahead<'_, '_> {
    #[inline]
    fn next(&mut self) -> Option<Result<(usize, Option<i64>), Notice>> {
        loop {
            if let Some(next) = self.here.as_mut().and_then(|events| events.next()) {
                return Some(next);
            }
            let (event, notice) = self.next;
            match self.at.notices.get(notice) {
                Some((before, told)) if *before == event => {
                    self.next.1 += 1;
                    return Some(Err(*told));
                }
                _ => {}
            }
            if let Some(number) = self.at.numbers.get(event) {
                self.next.0 += 1;
                return Some(Ok((*number, self.at.block.time_ns(event))));
            }
            if !self.next_part() {
                return None;
            }
        }
    }

    #[inline(always)]
    fn event(&self) -> Option<Event<'_>> {
        match &self.here {
            Some(events) => events.event(),
            None => self.at.block.get(self.next.0.checked_sub(1)?),
        }
    }

    #[inline(always)]
    fn fields(&self) -> Option<EventFields<'_>> {
        match &self.here {
            Some(events) => events.fields(),
            None => self.at.block.fields(self.next.0.checked_sub(1)?).map(|(_, fields)| fields),
        }
    }
}
