//! Reads a trace while it is recorded.
//!
//! Each round opens the directory again, and continues each stream at its last position. A round reads only whole
//! packets that were there one round before: the metadata are read after them, so they declare all classes in the
//! packets. Events later than the [`Horizon`] are not kept: a later round reads them again, so memory is that of one
//! reading.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dormouse_ctf::{Event, Merge, Notice, Position, Problem, Selection, Writers};

use crate::horizon::Horizon;
use crate::state::State;
use crate::{Bounds, Error, TraceFiles};

/// Time between two rounds: short enough that a user does not notice it, and long against the cost of opening.
const ROUND: Duration = Duration::from_millis(200);
/// Time between two checks for an interrupt.
const NAP: Duration = Duration::from_millis(20);
/// Number of events after which a round checks whether the user has interrupted, and ends if so. A round with fewer
/// events is completed, and then the events that were held back are shown.
const INTERRUPTED_EVERY: u64 = 1024;
/// Maximum number of retries while the metadata cannot be read because a declaration is being written.
const FAILURES_MAX: u32 = 25;

/// Why following ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowEnd {
    /// The session has ended, and everything was shown.
    Closed,
    /// The session was killed.
    Killed,
    /// The user has interrupted; the session continues.
    Interrupted,
    /// As many events as were asked for were shown.
    CountReached,
    /// The output has no reader any more.
    OutputClosed,
}

/// Shows what a [`Follower`] reads.
pub trait Show {
    /// Shows a selected event.
    fn event(&mut self, event: &Event<'_>, writers: &mut Writers);
    /// Shows an error or a loss in the stream with this name.
    fn notice(&mut self, notice: &Notice, stream: &str);
    /// Whether the output has no reader any more.
    fn is_over(&self) -> bool;
}

/// Options of a [`Follower`].
#[derive(Debug, Clone)]
pub struct FollowOptions {
    /// Time for which a stream without new events holds back later events of other streams.
    pub delay: Duration,
    /// Maximum number of events that are shown.
    pub count_max: u64,
    /// Whether the session that writes into this directory has a living owner; `None` if there is no session.
    pub is_owner_alive: fn(&Path) -> Option<bool>,
    /// Set when the user interrupts. A first interrupt has the events shown that were held back; a second one ends
    /// that too.
    pub is_interrupted: Arc<AtomicBool>,
}

/// Reads the events of a growing trace in the order of time, in rounds.
pub struct Follower<'d> {
    dir: &'d Path,
    files: TraceFiles,
    bounds: Bounds,
    progress: Progress,
}

/// How far the trace was read.
struct Progress {
    options: FollowOptions,
    /// Positions up to which streams were read, by name of the stream.
    positions: HashMap<String, Position>,
    /// Size of each stream one round before, in bytes.
    sizes: HashMap<String, u64>,
    /// Number of events that may still be shown.
    left: u64,
    started: Instant,
    horizon: Horizon,
    state: State,
    /// Time of the latest event that was shown, in nanoseconds since the epoch.
    latest_ns: Option<i64>,
    /// Number of events that were shown after events of later times.
    late_count: u64,
    is_damaged: bool,
    /// Whether the last wait was interrupted.
    is_wait_interrupted: bool,
}

impl<'d> Follower<'d> {
    /// Follows the trace in `dir`, whose `files` are open. Reads the events within `bounds`.
    pub fn new(dir: &'d Path, files: TraceFiles, bounds: Bounds, options: FollowOptions) -> Follower<'d> {
        let progress = Progress {
            positions: HashMap::new(),
            sizes: HashMap::new(),
            left: options.count_max,
            started: Instant::now(),
            horizon: Horizon::new(options.delay),
            state: State::default(),
            latest_ns: None,
            late_count: 0,
            is_damaged: false,
            is_wait_interrupted: false,
            options,
        };
        Follower { dir, files, bounds, progress }
    }

    /// Shows the selected events that have come since the last round, up to the horizon; at the end, all remaining
    /// events. Returns why following ends, or `None` if it continues after [`Follower::wait`].
    pub fn round(&mut self, selection: Selection, show: &mut impl Show) -> Option<FollowEnd> {
        let Follower { dir, files, bounds, progress } = self;
        // After an interrupt, events that were held back are shown. A second interrupt ends that too.
        let end = match progress.is_wait_interrupted {
            true => Some(FollowEnd::Interrupted),
            false => session_end(dir, files, progress.options.is_owner_alive),
        };
        progress.round(files, end, selection, bounds, show).or(end)
    }

    /// Waits for a moment, and opens the trace again.
    ///
    /// # Errors
    /// The trace cannot be opened, even after some retries.
    pub fn wait(&mut self) -> Result<(), Error> {
        let is_interrupted = &self.progress.options.is_interrupted;
        self.progress.is_wait_interrupted = wait(is_interrupted);
        if self.progress.is_wait_interrupted {
            is_interrupted.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let next = reopen(self.dir, is_interrupted)?;
        self.progress.state.writers.reopened(self.files.traces().zip(next.traces()));
        self.files = next;
        Ok(())
    }

    /// Returns the files as they were opened last.
    pub fn files(&self) -> &TraceFiles {
        &self.files
    }

    /// Returns the number of events that were shown after events of later times.
    pub fn late_count(&self) -> u64 {
        self.progress.late_count
    }

    /// Returns the losses in words, if there are any and events were not selected by time.
    pub fn losses(&mut self) -> Option<String> {
        let Progress { state: State { losses, .. }, positions, .. } = &mut self.progress;
        let lost = losses.sum(positions.values().map(Position::events_discarded));
        let is_any = !self.bounds.are_set() && (lost > 0 || !losses.uncounted.is_empty());
        is_any.then(|| losses.told(lost))
    }

    /// Whether the trace is damaged.
    pub fn is_damaged(&self) -> bool {
        self.progress.is_damaged
    }
}

/// Returns how the session has ended, if it will write nothing more.
fn session_end(dir: &Path, files: &TraceFiles, is_owner_alive: fn(&Path) -> Option<bool>) -> Option<FollowEnd> {
    let mut own = files.described().iter().filter_map(|trace| trace.own.as_ref()).peekable();
    own.peek()?;
    match own.all(|own| own.totals.is_closed()) {
        true => Some(FollowEnd::Closed),
        false => (is_owner_alive(dir) == Some(false)).then_some(FollowEnd::Killed),
    }
}

/// Waits until the next round. Returns whether the user has interrupted.
fn wait(is_interrupted: &AtomicBool) -> bool {
    for _ in 0..ROUND.as_millis() / NAP.as_millis() {
        if is_interrupted.load(Ordering::Relaxed) {
            return true;
        }
        // Not every file system notifies readers of writes, and a signal's flag wakes no thread, so both are polled.
        std::thread::sleep(NAP);
    }
    is_interrupted.load(Ordering::Relaxed)
}

/// Opens the directory again. Retries on an error: a declaration that is being written will soon be complete.
fn reopen(dir: &Path, is_interrupted: &AtomicBool) -> Result<TraceFiles, Error> {
    let mut failures = 0;
    loop {
        match TraceFiles::open(dir) {
            Ok(files) => return Ok(files),
            Err(error) if failures == FAILURES_MAX => return Err(error),
            Err(_) => failures += 1,
        }
        wait(is_interrupted);
    }
}

impl Progress {
    /// Returns the time up to which events are shown now, in nanoseconds since the epoch.
    fn until_ns(&mut self, files: &TraceFiles, names: &[&str]) -> i64 {
        let now = self.started.elapsed();
        // State streams are skipped: the session owner writes to them rarely.
        for (index, name) in names.iter().enumerate().filter(|(index, _)| !files.is_state(*index)) {
            let size_bytes = self.size_bytes(name);
            let reader =
                || self.positions.get(*name).map_or_else(|| files.reader(index), |at| files.reader(index).resumed(at));
            self.horizon.see(name, size_bytes, now, || reader().growing(size_bytes).end_ns());
        }
        self.horizon.until_ns(now)
    }

    /// Returns the number of bytes of a stream that are read: its size one round before.
    fn size_bytes(&self, name: &str) -> u64 {
        self.sizes.get(name).copied().unwrap_or(0)
    }

    /// Shows new events up to the horizon; with an `end`, all remaining events.
    fn round(
        &mut self,
        files: &TraceFiles,
        end: Option<FollowEnd>,
        mut selection: Selection,
        bounds: &mut Bounds,
        show: &mut impl Show,
    ) -> Option<FollowEnd> {
        let names: Vec<&str> = files.names().collect();
        let until_ns = if end.is_some() { i64::MAX } else { self.until_ns(files, &names) };
        // While a session continues, it may still be writing the last packet.
        let is_whole = end.is_some_and(|end| end != FollowEnd::Interrupted);
        let readers = names.iter().enumerate().map(|(index, name)| {
            let size_bytes = if is_whole { u64::MAX } else { self.size_bytes(name) };
            let reader = files.reader(index).within(bounds.first_ns, bounds.last_ns).growing(size_bytes);
            match self.positions.get(*name) {
                Some(position) => reader.resumed(position),
                None => reader,
            }
        });
        let mut events = Merge::new(readers);
        let mut read_count = 0u64;
        while let Some(item) = events.next_event() {
            if self.left == 0 {
                break;
            }
            match item {
                // This event and the remaining ones of all streams are left for a later round.
                Ok(event) if event.time_ns.is_some_and(|ns| ns > until_ns) => break,
                Ok(event) => {
                    self.state.note(&event);
                    if bounds.have(&event) && selection.wants(&event, &mut self.state.writers) {
                        self.left -= 1;
                        self.late_count += u64::from(event.time_ns < self.latest_ns);
                        self.latest_ns = self.latest_ns.max(event.time_ns);
                        show.event(&event, &mut self.state.writers);
                    }
                }
                Err(notice) => {
                    self.is_damaged |= !matches!(notice.problem, Problem::Discarded { .. });
                    show.notice(&notice, names[notice.stream]);
                }
            }
            if show.is_over() {
                return Some(FollowEnd::OutputClosed);
            }
            read_count += 1;
            if read_count.is_multiple_of(INTERRUPTED_EVERY) && self.options.is_interrupted.load(Ordering::Relaxed) {
                return Some(FollowEnd::Interrupted);
            }
        }
        let streams = names.iter().zip(events.streams());
        self.positions.extend(streams.map(|(name, stream)| (name.to_string(), stream.position())));
        let sizes = names.iter().zip(events.streams()).map(|(name, stream)| (name.to_string(), stream.size_bytes()));
        self.sizes = sizes.collect();
        (self.left == 0).then_some(FollowEnd::CountReached)
    }
}
