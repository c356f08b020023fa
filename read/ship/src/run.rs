//! Puts closed traces, and reports each.

use std::collections::HashSet;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dormouse_reader::TraceFiles;
use dormouse_store::{Identity, Manifest, Options, Store, Watch, put};
use dormouse_terminal::{Output, say};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::arguments::Ship;
use crate::chunks::{Found, Place, places};
use crate::follow::Watched;
use crate::signals::Signals;

/// Number of threads that upload objects. Other threads read the trace.
const THREADS: usize = 2;
/// Time before progress is shown. A trace that is put faster shows none.
const PATIENCE: Duration = Duration::from_secs(1);
/// Minimum of `--memory`, in bytes. With less, row groups would be too small for their headers.
const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Interval at which the progress bar is drawn.
const TICK: Duration = Duration::from_millis(100);

/// Outcome for a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
enum Done {
    /// This run has put it into the store.
    Put,
    /// It would be put (`--dry-run`).
    WouldPut,
    /// It was already in the store.
    Known,
    /// It is not closed.
    PassedOver,
    /// It cannot be read.
    Wrong,
}

/// A line of output, for `--json` as a JSON object.
#[derive(Debug, Serialize)]
struct Line<'l> {
    trace: &'l str,
    done: Done,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<usize>,
    /// Size of the chunk's files, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// Size of the trace's streams, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'l str>,
}

/// Totals of a run.
#[derive(Debug, Default)]
struct Sum {
    put: u64,
    known: u64,
    passed_over: u64,
    events: u64,
    is_damaged: bool,
}

/// A run of the program.
pub(crate) struct Shipping<'o> {
    ship: Ship,
    store: Store,
    runtime: Runtime,
    watch: Arc<Watch>,
    signals: Signals,
    out: &'o mut Output,
    sum: Sum,
    /// Places that were reported already, each with the outcome.
    over: HashSet<(Place, Done)>,
}

impl<'o> Shipping<'o> {
    /// # Errors
    /// An option is wrong, the store does not exist or may not be listed, or threads cannot be started.
    pub(crate) fn begin(ship: Ship, out: &'o mut Output) -> Result<Shipping<'o>> {
        if ship.memory < MEMORY_BYTES_MIN {
            bail!("--memory must be at least 32M");
        }
        if ship.host.as_ref().is_some_and(String::is_empty) {
            bail!("--host needs a name that is not empty");
        }
        let store = Store::open(&ship.to)?;
        if let Some(dir) = store.dir()
            && let Some(parent) = dir.parent()
            && !parent.is_dir()
        {
            bail!("cannot write to {}: there is no directory {}", ship.to, parent.display());
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(THREADS).enable_all().build().context("cannot start threads")?;
        runtime.block_on(store.check())?;
        let watch = Arc::new(Watch::default());
        let signals = Signals::taken(runtime.handle(), &watch, ship.follow)?;
        let (sum, over) = (Sum::default(), HashSet::new());
        let shipping = Shipping { ship, store, runtime, watch, signals, out, sum, over };
        shipping.show_progress();
        Ok(shipping)
    }

    pub(crate) fn run(mut self) -> Result<u8> {
        let mut watched = self.ship.follow.then(Watched::new).transpose()?;
        loop {
            let (places, dirs) = places(&self.ship.dir)?;
            // Traces that appeared before a directory was watched are found by searching again.
            let is_new = watched.as_mut().map_or(Ok(false), |watched| watched.watch(dirs))?;
            for place in &places {
                if let Err(error) = self.place(place) {
                    return self.ended_by(error);
                }
            }
            let gone = |(place, _): &(Place, Done)| places.contains(place);
            self.over.retain(gone);
            if places.is_empty() && watched.is_none() {
                bail!("there is no trace in {}", self.ship.dir.display());
            }
            let Some(watched) = &mut watched else { break };
            if is_new {
                continue;
            }
            let signals = &mut self.signals;
            let code = self.runtime.block_on(async {
                tokio::select! {
                    changed = watched.changed() => changed.map(|()| None),
                    code = signals.code() => Ok(Some(code)),
                }
            })?;
            if let Some(code) = code {
                self.tell_sum();
                return Ok(code);
            }
        }
        self.tell_sum();
        Ok(self.sum.is_damaged.into())
    }

    /// Returns the exit code if a signal has ended the work; otherwise the error.
    fn ended_by(mut self, error: anyhow::Error) -> Result<u8> {
        // Relaxed: the flag publishes no other data.
        if !self.watch.is_over.load(Ordering::Relaxed) {
            return Err(error);
        }
        let signals = &mut self.signals;
        let code = self.runtime.block_on(signals.code());
        self.tell_sum();
        Ok(code)
    }

    fn tell_sum(&self) {
        let Sum { put, known, passed_over, events, .. } = self.sum;
        let (what, place) = (if self.ship.dry_run { "would be shipped" } else { "shipped" }, self.store.place());
        say(format_args!(
            "{put} trace{} with {} events {what} to {place}; {known} already there, {passed_over} skipped",
            if put == 1 { "" } else { "s" },
            HumanCount(events)
        ));
    }

    fn place(&mut self, place: &Place) -> Result<()> {
        let is_over = |done| self.over.contains(&(place.clone(), done));
        if [Done::Put, Done::Known, Done::Wrong].into_iter().any(is_over) {
            return Ok(());
        }
        match place.open() {
            Found::Closed(traces) => {
                let count = traces.len();
                for (number, files) in traces.into_iter().enumerate() {
                    let name = if count > 1 { format!("{} #{number}", place.name) } else { place.name.clone() };
                    self.trace(place, &name, &files)?;
                }
                Ok(())
            }
            Found::Written(reason) => self.passed_over(place, Done::PassedOver, &reason),
            Found::Wrong(reason) => self.passed_over(place, Done::Wrong, &reason),
        }
    }

    fn passed_over(&mut self, place: &Place, done: Done, reason: &str) -> Result<()> {
        if !self.over.insert((place.clone(), done)) {
            return Ok(());
        }
        self.sum.passed_over += 1;
        self.sum.is_damaged |= done == Done::Wrong;
        say(format_args!("{} is skipped: {reason}", place.name));
        let line = Line { reason: Some(reason), ..Line::new(&place.name, done) };
        self.print(&line, None)
    }

    fn trace(&mut self, place: &Place, name: &str, files: &TraceFiles) -> Result<()> {
        let trace_bytes = (0..files.stream_count()).map(|stream| files.stream_size_bytes(stream)).sum();
        if self.ship.dry_run {
            return self.would_put(name, files, trace_bytes);
        }
        let memory_bytes = usize::try_from(self.ship.memory).unwrap_or(usize::MAX);
        let options = Options { host: self.ship.host.clone(), memory_bytes, ..Options::default() };
        let done = put(&self.store, self.runtime.handle(), files, name, &options, &self.watch);
        self.watch.all.store(0, Ordering::Relaxed);
        let done = done.with_context(|| name.to_owned())?;
        done.warnings.iter().for_each(|line| say(format_args!("warning: {name}: {line}")));
        self.sum.is_damaged |= !done.warnings.is_empty();
        let what = if done.is_new { Done::Put } else { Done::Known };
        self.over.insert((place.clone(), what));
        let manifest = &done.manifest;
        match done.is_new {
            true => (self.sum.put, self.sum.events) = (self.sum.put + 1, self.sum.events + manifest.events),
            false => self.sum.known += 1,
        }
        let size_bytes = manifest.files.iter().map(|file| file.size_bytes).sum();
        let line = Line {
            host: Some(&manifest.host),
            chunk: Some(&manifest.chunk),
            events: Some(manifest.events),
            files: Some(manifest.files.len()),
            size_bytes: Some(size_bytes),
            trace_bytes: Some(trace_bytes),
            ..Line::new(name, what)
        };
        self.print(&line, Some(manifest))
    }

    fn would_put(&mut self, name: &str, files: &TraceFiles, trace_bytes: u64) -> Result<()> {
        let identity = Identity::of(files, self.ship.host.as_deref())?;
        let known = self.runtime.block_on(identity.manifest(&self.store))?;
        let (done, events) = match &known {
            Some(manifest) => (Done::Known, manifest.events),
            None => (Done::WouldPut, files.stats().events),
        };
        match done {
            Done::Known => self.sum.known += 1,
            _ => (self.sum.put, self.sum.events) = (self.sum.put + 1, self.sum.events + events),
        }
        let (host, chunk) = (Some(identity.host.as_str()), Some(identity.chunk.as_str()));
        let line = Line { host, chunk, events: Some(events), trace_bytes: Some(trace_bytes), ..Line::new(name, done) };
        self.print(&line, None)
    }

    fn print(&mut self, line: &Line<'_>, manifest: Option<&Manifest>) -> Result<()> {
        if self.ship.json {
            return Ok(writeln!(self.out, "{}", serde_json::to_string(line)?)?);
        }
        let Line { trace, events: Some(events), trace_bytes: Some(trace_bytes), .. } = line else { return Ok(()) };
        let trace_size = HumanBytes(*trace_bytes);
        let text = match (line.done, line.size_bytes, line.files) {
            (Done::Put, Some(size_bytes), Some(files)) => {
                let per_million = (size_bytes as u128 * 1_000_000).checked_div(u128::from(*events)).unwrap_or_default();
                format!(
                    "{} events, {files} files, {} ({} per million events); the trace has {trace_size}",
                    HumanCount(*events),
                    HumanBytes(size_bytes),
                    HumanBytes(per_million as u64)
                )
            }
            (Done::WouldPut, ..) => format!("{} events, {trace_size} would be shipped", HumanCount(*events)),
            _ => format!("is already there, with {} events", HumanCount(*events)),
        };
        self.out.lines(format!("{trace}: {text}\n").as_bytes())?;
        if let Some(manifest) = manifest.filter(|_| line.done == Done::Put) {
            for (what, count) in manifest.unpaired.told() {
                self.out.lines(format!("{trace}: not paired: {} {what}\n", HumanCount(count)).as_bytes())?;
            }
        }
        Ok(())
    }

    /// Shows the progress of the current trace, if standard error is a terminal.
    fn show_progress(&self) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let watch = Arc::clone(&self.watch);
        self.runtime.spawn(async move {
            loop {
                // Short work shows no bar. The task runs until the program ends.
                tokio::time::sleep(PATIENCE).await;
                let (all, done) = (watch.all.load(Ordering::Relaxed), watch.done.load(Ordering::Relaxed));
                if all == 0 || done == all {
                    continue;
                }
                let bar = ProgressBar::new(all);
                let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} events");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                while watch.all.load(Ordering::Relaxed) == all {
                    bar.set_position(watch.done.load(Ordering::Relaxed));
                    // Nothing signals progress, so it is polled.
                    tokio::time::sleep(TICK).await;
                }
                bar.finish_and_clear();
            }
        });
    }
}

impl<'l> Line<'l> {
    fn new(trace: &'l str, done: Done) -> Line<'l> {
        let (host, chunk, events, files) = (None, None, None, None);
        Line { trace, done, host, chunk, events, files, size_bytes: None, trace_bytes: None, reason: None }
    }
}
