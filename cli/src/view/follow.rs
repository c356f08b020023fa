//! `dormouse view --follow`: a trace that is still recorded.
//!
//! The directory is opened again and again, and each stream is read on from where it was read to: whole packets alone, and of these those that were
//! there one round before, so that the metadata, which are read later, declare what they hold. Events behind the [`Horizon`] are left where they are,
//! and read when their time has come: memory is that of one reading.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use dormouse_ctf::{Merge, Position, Problem, Selection, StateRecord, StatedLosses, Writers};
use dormouse_owner::is_owner_alive;
use dormouse_reader::{Bounds, TraceFiles};

use super::View;
use super::horizon::Horizon;
use super::printer::Printer;
use super::sink::Sink;

/// Between two looks at the directory: a person does not notice it, and opening costs little of it.
const ROUND: Duration = Duration::from_millis(200);
/// Between two looks for an interrupt.
const NAP: Duration = Duration::from_millis(20);
/// After so many events of one look it is asked whether the user has interrupted, which ends it there. A shorter look goes to its end, and what is held
/// back is printed then.
const INTERRUPTED_EVERY: u64 = 1024;
/// Rounds in which the metadata cannot be read, because a declaration is being written.
const FAILURES_MAX: u32 = 25;

/// Why it ends.
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

/// How far everything has been read.
struct Progress {
    /// By the name of the stream.
    positions: HashMap<String, Position>,
    /// Bytes of each stream one round before.
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
            // What has been held back until an interrupt is printed; a second one ends that too.
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

/// Whether nothing will be written any more.
fn ending(dir: &Path, files: &TraceFiles) -> Option<Ending> {
    let mut own = files.described().iter().filter_map(|trace| trace.own.as_ref()).peekable();
    own.peek()?;
    match own.all(|own| own.totals.is_closed()) {
        true => Some(Ending::Closed),
        false => (is_owner_alive(dir) == Some(false)).then_some(Ending::Killed),
    }
}

/// Waits until the next round; true if the user has interrupted.
fn wait(is_interrupted: &AtomicBool) -> bool {
    for _ in 0..ROUND.as_millis() / NAP.as_millis() {
        if is_interrupted.load(Ordering::Relaxed) {
            return true;
        }
        // Whoever writes a file does not tell its readers on every file system, and a signal's flag wakes nobody: both are looked at.
        std::thread::sleep(NAP);
    }
    is_interrupted.load(Ordering::Relaxed)
}

/// Opens the directory again. A declaration that is being written is whole a moment later.
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
    /// Up to which time events are printed now.
    fn until_ns(&mut self, files: &TraceFiles, names: &[&str]) -> i64 {
        let now = self.started.elapsed();
        // What a session says of itself comes seldom.
        for (index, name) in names.iter().enumerate().filter(|(index, _)| !files.is_state(*index)) {
            let size_bytes = self.size_bytes(name);
            let reader =
                || self.positions.get(*name).map_or_else(|| files.reader(index), |at| files.reader(index).resumed(at));
            self.horizon.see(name, size_bytes, now, || reader().growing(size_bytes).end_ns());
        }
        self.horizon.until_ns(now)
    }

    /// Bytes of a stream that are read: those that were there one round before.
    fn size_bytes(&self, name: &str) -> u64 {
        self.sizes.get(name).copied().unwrap_or(0)
    }

    /// Prints what has come; with an `ending`, all that is there.
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
        // Of a session that goes on, the last packet can still be written.
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
                // It is left where it is, and so are the events of the other streams.
                Ok(event) if event.time_ns.is_some_and(|ns| ns > until_ns) => break,
                Ok(event) => {
                    if let Some(record) = StateRecord::decode(&event) {
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
