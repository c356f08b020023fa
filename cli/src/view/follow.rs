//! `dormouse view --follow`: prints a trace while it is recorded.
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

use anyhow::bail;
use dormouse_ctf::{Merge, Position, Problem, Selection, StatedLosses, Writers};
use dormouse_owner::is_owner_alive;
use dormouse_reader::{Bounds, TraceFiles};

use super::View;
use super::horizon::Horizon;
use super::printer::Printer;
use super::sink::Sink;

/// Time between two rounds: short enough that a user does not notice it, and long against the cost of opening.
const ROUND: Duration = Duration::from_millis(200);
/// Time between two checks for an interrupt.
const NAP: Duration = Duration::from_millis(20);
/// Number of events after which a round checks whether the user has interrupted, and ends if so. A round with fewer
/// events is completed, and then the events that were held back are printed.
const INTERRUPTED_EVERY: u64 = 1024;
/// Maximum number of retries while the metadata cannot be read because a declaration is being written.
const FAILURES_MAX: u32 = 25;

/// Why following ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Closed,
    Killed,
    Interrupted,
    Enough,
    NobodyReads,
}

impl Ending {
    fn told(self) -> Option<&'static str> {
        Some(match self {
            Ending::Closed => "the session has ended",
            Ending::Killed => "the session was killed; `dormouse salvage` finds what it had in memory",
            Ending::Interrupted => "interrupted; the session goes on",
            Ending::Enough | Ending::NobodyReads => return None,
        })
    }
}

/// State of following a trace.
struct Progress {
    /// Positions up to which streams were read, by name of the stream.
    positions: HashMap<String, Position>,
    /// Size of each stream one round before, in bytes.
    sizes: HashMap<String, u64>,
    started: Instant,
    horizon: Horizon,
    writers: Writers,
    losses: StatedLosses,
    latest_ns: Option<i64>,
    late: u64,
    is_damaged: bool,
    is_interrupted: Arc<AtomicBool>,
}

impl View {
    pub(super) fn print_following(
        &self,
        mut files: TraceFiles,
        mut bounds: Bounds,
        printer: &mut Printer,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<u8> {
        let [dir] = self.dirs.as_slice() else { bail!("--follow is for one trace") };
        if !dir.is_dir() {
            bail!("--follow is for the directory of a trace, and {} is none", dir.display());
        }
        let is_interrupted = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&is_interrupted))?;
        let mut left = self.count.unwrap_or(u64::MAX);
        let mut progress = Progress {
            positions: HashMap::new(),
            sizes: HashMap::new(),
            started: Instant::now(),
            horizon: Horizon::new(self.delay),
            writers: Writers::default(),
            losses: StatedLosses::default(),
            latest_ns: None,
            late: 0,
            is_damaged: false,
            is_interrupted: Arc::clone(&is_interrupted),
        };
        let mut has_waited = true;
        let mut head = Vec::new();
        printer.begin(&mut head);
        sink.write(&head);
        files.left_out.iter().for_each(|line| sink.say(format!("warning: {line}")));
        let ending = loop {
            // After an interrupt, events that were held back are printed. A second interrupt ends that too.
            let ending = if has_waited { ending(dir, &files) } else { Some(Ending::Interrupted) };
            let selection = self.wanted.selection_of_live()?;
            let ended = progress.round(&files, ending, selection, &mut bounds, &mut left, printer, sink);
            sink.flush();
            if let Some(ending) = ended.or(ending) {
                break ending;
            }
            has_waited = !wait(&is_interrupted);
            if !has_waited {
                is_interrupted.store(false, Ordering::Relaxed);
                continue;
            }
            let next = reopen(dir, &is_interrupted)?;
            progress.writers.reopened(files.traces().zip(next.traces()));
            files = next;
        };
        if progress.late > 0 {
            let (late, delay) = (progress.late, self.delay);
            let stand = if late == 1 { "event stands" } else { "events stand" };
            let why = format!("nothing had come in their streams for --delay {delay:?}");
            sink.say(format!("{late} {stand} behind events of later times: {why}"));
        }
        let lost = progress.losses.sum(progress.positions.values().map(Position::events_discarded));
        if !bounds.are_set() && (lost > 0 || !progress.losses.uncounted.is_empty()) {
            sink.say(progress.losses.told(lost));
        }
        ending.told().into_iter().for_each(|line| sink.say(line.into()));
        Ok((progress.is_damaged || !files.left_out.is_empty() || ending == Ending::Killed).into())
    }
}

/// Returns how the session has ended, if it will write nothing more.
fn ending(dir: &Path, files: &TraceFiles) -> Option<Ending> {
    let mut own = files.described().iter().filter_map(|trace| trace.own.as_ref()).peekable();
    own.peek()?;
    match own.all(|own| own.totals.is_closed()) {
        true => Some(Ending::Closed),
        false => (is_owner_alive(dir) == Some(false)).then_some(Ending::Killed),
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
fn reopen(dir: &Path, is_interrupted: &AtomicBool) -> anyhow::Result<TraceFiles> {
    let mut failures = 0;
    loop {
        match TraceFiles::open(dir) {
            Ok(files) => return Ok(files),
            Err(error) if failures == FAILURES_MAX => return Err(error.into()),
            Err(_) => failures += 1,
        }
        wait(is_interrupted);
    }
}

impl Progress {
    /// Returns the time up to which events are printed now, in nanoseconds.
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

    /// Prints new events up to the horizon; with an `ending`, all remaining events.
    #[allow(clippy::too_many_arguments)]
    fn round(
        &mut self,
        files: &TraceFiles,
        ending: Option<Ending>,
        mut selection: Selection,
        bounds: &mut Bounds,
        left: &mut u64,
        printer: &mut Printer,
        sink: &mut Sink<'_>,
    ) -> Option<Ending> {
        let names: Vec<&str> = files.names().collect();
        let until_ns = if ending.is_some() { i64::MAX } else { self.until_ns(files, &names) };
        // While a session continues, it may still be writing the last packet.
        let is_whole = ending.is_some_and(|ending| ending != Ending::Interrupted);
        let readers = names.iter().enumerate().map(|(index, name)| {
            let size_bytes = if is_whole { u64::MAX } else { self.size_bytes(name) };
            let reader = files.reader(index).within(bounds.first_ns, bounds.last_ns).growing(size_bytes);
            match self.positions.get(*name) {
                Some(position) => reader.resumed(position),
                None => reader,
            }
        });
        let mut events = Merge::new(readers);
        let (mut text, mut looked_at) = (Vec::new(), 0u64);
        while let Some(item) = events.next_event() {
            if *left == 0 {
                break;
            }
            match item {
                // This event and the remaining ones of all streams are left for a later round.
                Ok(event) if event.time_ns.is_some_and(|ns| ns > until_ns) => break,
                Ok(event) => {
                    if let Some(record) = event.state_record() {
                        self.losses.note(&record);
                        self.writers.note(&event, &record);
                    }
                    if bounds.have(&event) && selection.wants(&event, &mut self.writers) {
                        *left -= 1;
                        self.late += u64::from(event.time_ns < self.latest_ns);
                        self.latest_ns = self.latest_ns.max(event.time_ns);
                        printer.event(&event, &mut self.writers, &mut text);
                        sink.write(&text);
                        text.clear();
                    }
                }
                Err(notice) => {
                    self.is_damaged |= !matches!(notice.problem, Problem::Discarded { .. });
                    sink.say(printer.warning(&notice, names[notice.stream]));
                }
            }
            if sink.is_over() {
                return Some(Ending::NobodyReads);
            }
            looked_at += 1;
            if looked_at % INTERRUPTED_EVERY == 0 && self.is_interrupted.load(Ordering::Relaxed) {
                return Some(Ending::Interrupted);
            }
        }
        let streams = names.iter().zip(events.streams());
        self.positions.extend(streams.map(|(name, stream)| (name.to_string(), stream.position())));
        let sizes = names.iter().zip(events.streams()).map(|(name, stream)| (name.to_string(), stream.size_bytes()));
        self.sizes = sizes.collect();
        (*left == 0).then_some(Ending::Enough)
    }
}
