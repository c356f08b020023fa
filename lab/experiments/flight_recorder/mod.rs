//! Experiment `flight-recorder`: what writers pay for snapshots, and how many bytes an event takes on disk.
//!
//! # The problem
//! A flight recorder is read while it is written. A snapshot stops no writer and takes nothing from it but what processors
//! share: caches, the way to memory, and the processor itself where there is none to spare. How much that is, only writers that
//! go on can tell.
//!
//! # The picture
//! ```text
//!   session (overwrite, 16 MiB) ── owner's threads: any processor but the writer's
//!     │        │
//!     │        └── every 100 ms: a snapshot of all that is retained, to disk, and removed again
//!     ▼                                     │
//!   engine, pinned      round 1:   armed   armed + snapshots   empty        in an order drawn for each round;
//!                       round 2:   empty   armed   …                        a turn is long enough for several snapshots
//! ```
//! A cost is that of one event, less the empty loop of the same round. With two writers on two processors the owner has none of
//! its own: what it takes is in the figure.
//!
//! `disk_bytes_per_event` is the size of a trace's streams over the events in it, of an event with one `u64`: ours with process
//! and thread in each record and without, and that of LTTng-UST without contexts, each in discard mode. Metadata and indices do
//! not count. It is a count, the same each time but for how full the last pages are.
//!
//! # What is verified
//! Each snapshot has events and is whole; the session's last events are in its trace; on disk, what arrived and what was lost
//! is what was emitted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dormouse_abi::record::RecordKind;
use dormouse_consumer::{Mode, Options, Session, Take, ask_for_snapshot};
use dormouse_lab_harness::{Run, Walk};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::engine::{Engine, engine_path};
use crate::experiments::compile_job::{order, progress};
use crate::experiments::event::verified;
use crate::peers::{self, PeerMode};
use crate::plan::labels;
use crate::statistics::{measurement, ratio};
use crate::{Experiment, Host, LabError, Measurement, RunOptions, rounds};

const NAME: &str = "flight-recorder";
/// Our engine, which is that of `event`.
const ENGINE: &str = "dormouse-lab-engine";
/// What `dormouse record` takes by default.
const OVERWRITE_BUDGET_BYTES: u64 = 16 << 20;
/// Holds all that is emitted in one go.
const DISCARD_BUDGET_BYTES: u64 = 64 << 20;
/// From the beginning of one snapshot to that of the next.
const PERIOD: Duration = Duration::from_millis(100);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: u32,
    processes: u32,
    /// Of a turn: several periods of snapshots, or in a hurry one.
    turn: Duration,
    /// Traces whose bytes are counted, and events in each.
    traces: u32,
    events: u64,
}

impl Effort {
    fn new(options: &RunOptions) -> Effort {
        let processes = rounds::processes(options.is_quick) as u32;
        let rounds = options.rounds(6, 40) as u32;
        if options.is_quick {
            Effort { rounds, processes, turn: PERIOD, traces: 1, events: 200_000 }
        } else {
            Effort { rounds, processes, turn: 6 * PERIOD, traces: 5, events: 1_000_000 }
        }
    }
}

/// What is timed once a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    case: &'static str,
    threads: usize,
    has_snapshots: bool,
}

impl Slot {
    fn name(self) -> String {
        let snapshots = if self.has_snapshots { ".snapshots" } else { "" };
        let threads = if self.threads == 1 { String::new() } else { format!(".{}-threads", self.threads) };
        format!("dormouse.{}{snapshots}{threads}", if self.case == "empty" { "empty" } else { "armed.u64" })
    }
}

/// Empty, without snapshots, and with them, for each number of threads.
fn slots(cpu_count: usize) -> Vec<Slot> {
    let of = |threads| {
        [("empty", false), ("armed_u64", false), ("armed_u64", true)].map(|(case, has_snapshots)| Slot {
            case,
            threads,
            has_snapshots,
        })
    };
    (1..=cpu_count.min(2)).flat_map(of).collect()
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`]. That LTTng is not to be had is no error but a note.
pub fn run_flight_recorder(options: &RunOptions, _: &Host) -> Result<Experiment, LabError> {
    let effort = Effort::new(options);
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let mut experiment = Experiment { name: NAME.into(), ..Experiment::default() };
    writers(options, effort, dir.path(), &mut experiment)?;
    bytes_on_disk(options, effort, dir.path(), &mut experiment)?;
    Ok(experiment)
}

/// How a session is set up.
fn session_options(dir: PathBuf, mode: Mode, budget_bytes: u64) -> Options {
    Options {
        budget_bytes,
        mode,
        patterns: vec!["lab:armed*".into()],
        command_line: ENGINE.into(),
        ..Options::new(dir)
    }
}

/// A process of our engine in a session.
fn engine_in(session: &Session, options: &RunOptions) -> Result<Engine, LabError> {
    let mut command = Command::new(engine_path(ENGINE)?);
    command.env("DORMOUSE_SESSION", session.socket());
    Engine::start(command, &options.cpus, options.policy.as_str())
}

fn run(engine: &mut Engine, case: &str, threads: usize, iterations: u64) -> Result<f64, LabError> {
    let run = Run { case: case.into(), iterations, threads, walk: Walk::None, beside: None };
    Ok(engine.run(run)?.ns)
}

/// Iterations with which an armed turn of any slot lasts about so long, or longer.
fn turn_iterations(engine: &mut Engine, slots: &[Slot], turn: Duration) -> Result<u64, LabError> {
    let mut least_ns = f64::MAX;
    for slot in slots.iter().filter(|slot| slot.case != "empty" && !slot.has_snapshots) {
        // The first time pays for pages and code.
        run(engine, slot.case, slot.threads, PROBE)?;
        least_ns = least_ns.min(run(engine, slot.case, slot.threads, PROBE)?);
    }
    Ok((turn.as_nanos() as f64 / least_ns.max(1.0)) as u64 + 1)
}

/// Iterations by which the length of a turn is found.
const PROBE: u64 = 50_000;

/// Keeps the threads that `make` starts off the first writer's processor.
fn beside_the_writer<T>(cpus: &[u32], make: impl FnOnce() -> Result<T, LabError>) -> Result<T, LabError> {
    let failed = |error: rustix::io::Errno| LabError::System { what: "processors", error: error.into() };
    let before = sched_getaffinity(None).map_err(failed)?;
    let mut others = CpuSet::new();
    cpus.iter().skip(1).for_each(|cpu| others.set(*cpu as usize));
    // With a single processor there is no other.
    if cpus.len() > 1 {
        sched_setaffinity(None, &others).map_err(failed)?;
    }
    let made = make();
    sched_setaffinity(None, &before).map_err(failed)?;
    made
}

/// The writers' part.
fn writers(options: &RunOptions, effort: Effort, dir: &Path, experiment: &mut Experiment) -> Result<(), LabError> {
    let slots = slots(options.cpus.len());
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); slots.len()];
    let mut taken = Totals::default();
    let progress = progress(NAME, (effort.rounds + effort.processes) as usize);
    for process in 0..effort.processes {
        let own_dir = dir.join(format!("writers-{process}"));
        std::fs::create_dir(&own_dir).map_err(|error| LabError::System { what: "temporary directory", error })?;
        let (session, snapshotter) = beside_the_writer(&options.cpus, || {
            let session =
                Session::create(&session_options(own_dir.join("trace"), Mode::Overwrite, OVERWRITE_BUDGET_BYTES))?;
            let snapshotter = Snapshotter::start(session.socket(), own_dir.join("snapshot"))?;
            Ok((session, snapshotter))
        })?;
        let mut engine = engine_in(&session, options)?;
        let iterations = turn_iterations(&mut engine, &slots, effort.turn)?;
        let own_rounds = (process..effort.rounds).step_by(effort.processes as usize).count() as u32;
        // The first of each process pays for pages and code, and does not count.
        for round in 0..=own_rounds {
            for index in order(slots.len(), process * effort.rounds + round) {
                let Slot { case, threads, has_snapshots } = slots[index];
                let turn = has_snapshots.then(|| snapshotter.begin());
                let ns = run(&mut engine, case, threads, iterations)?;
                drop(turn);
                if round > 0 {
                    samples[index].push(ns);
                }
            }
            progress.inc(1);
        }
        taken.add(snapshotter.end()?);
        let emitted = engine.emitted();
        engine.finish()?;
        verified(&session.finish(), Mode::Overwrite, emitted)?;
        let _ = std::fs::remove_dir_all(&own_dir);
    }
    progress.finish_and_clear();
    if taken.count == 0 {
        return Err(LabError::Engine("no snapshot was taken".into()));
    }
    let less_empty = |index: usize| -> Vec<f64> {
        let base = slots.iter().position(|slot| slot.case == "empty" && slot.threads == slots[index].threads);
        let base = &samples[base.unwrap_or(index)];
        samples[index].iter().zip(base).map(|(with, without)| with - without).collect()
    };
    for (index, slot) in slots.iter().enumerate() {
        let is_empty = slot.case == "empty";
        let costs = if is_empty { samples[index].clone() } else { less_empty(index) };
        let threads = slot.threads.to_string();
        let labels = labels(&[
            ("tool", "dormouse"),
            ("state", if is_empty { "empty" } else { "armed" }),
            ("threads", &threads),
            ("snapshots", if slot.has_snapshots { "100-ms" } else { "none" }),
        ]);
        experiment.measurements.push(Measurement { labels, ..measurement(&slot.name(), "ns", &costs) });
        if slot.has_snapshots {
            let without = slots.iter().position(|other| *other == Slot { has_snapshots: false, ..*slot });
            let name = if slot.threads == 1 { SLOWDOWN.into() } else { format!("{SLOWDOWN}_{threads}_threads") };
            experiment.ratios.extend(ratio(&name, &costs, &less_empty(without.unwrap_or(index))));
        }
    }
    let Totals { count, events, pages_missed, pages, busy_ns } = taken;
    experiment.notes.push(format!(
        "{count} snapshots of a session of {} MiB, {:.1} ms each on average, {} events each; {pages_missed} of {} pages were overwritten \
         before they could be copied",
        OVERWRITE_BUDGET_BYTES >> 20,
        busy_ns as f64 / count as f64 / 1e6,
        events / count,
        pages + pages_missed,
    ));
    experiment.notes.push(format!(
        "each cost is less the empty loop in the same round; {} rounds by {} processes, turns of {} ms; writers on processors {:?}, the \
         session's owner on {}",
        effort.rounds,
        effort.processes,
        effort.turn.as_millis(),
        &options.cpus[..options.cpus.len().min(2)],
        if options.cpus.len() > 1 { format!("{:?}", &options.cpus[1..]) } else { "the same, for there is no other".into() },
    ));
    Ok(())
}

const SLOWDOWN: &str = "snapshot_writer_slowdown";

/// Asks for snapshots while it is told to.
struct Snapshotter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<Totals, String>>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_wanted: AtomicBool,
    is_over: AtomicBool,
    /// Held while snapshots are taken.
    stretch: Mutex<()>,
}

/// What all snapshots came to.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    count: u64,
    events: u64,
    pages: u64,
    pages_missed: u64,
    busy_ns: u64,
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.count += other.count;
        self.events += other.events;
        self.pages += other.pages;
        self.pages_missed += other.pages_missed;
        self.busy_ns += other.busy_ns;
    }
}

/// As long as it lives, snapshots are taken; when it is dropped, the last has been.
struct Turn<'a>(&'a Snapshotter);

impl Snapshotter {
    fn start(session: &Path, dir: PathBuf) -> Result<Snapshotter, LabError> {
        let shared = Arc::new(Shared::default());
        let (session, of_thread) = (session.to_path_buf(), Arc::clone(&shared));
        let run = move || take_all(&session, &dir, &of_thread);
        let thread = std::thread::Builder::new().name("snapshots".into()).spawn(run);
        let thread = thread.map_err(|error| LabError::System { what: "thread", error })?;
        Ok(Snapshotter { shared, thread: Some(thread) })
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn begin(&self) -> Turn<'_> {
        self.shared.is_wanted.store(true, Ordering::Relaxed);
        self.wake();
        Turn(self)
    }

    fn end(mut self) -> Result<Totals, LabError> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.wake();
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(Ok(totals))) => Ok(totals),
            Some(Ok(Err(why))) => Err(LabError::Engine(why)),
            _ => Err(LabError::Engine("the thread that takes snapshots has failed".into())),
        }
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.wake();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.shared.is_wanted.store(false, Ordering::Relaxed);
        self.0.wake();
        // Who gets the lock finds the last snapshot taken, and its thread asks again before it takes another.
        drop(self.0.shared.stretch.lock());
    }
}

fn take_all(session: &Path, dir: &Path, shared: &Shared) -> Result<Totals, String> {
    let mut totals = Totals::default();
    let wanted = Take { dir: Some(dir.into()), trigger: NAME.into(), ..Take::default() };
    while !shared.is_over.load(Ordering::Relaxed) {
        if !shared.is_wanted.load(Ordering::Relaxed) {
            std::thread::park();
            continue;
        }
        let _stretch = shared.stretch.lock();
        while shared.is_wanted.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let snapshot = ask_for_snapshot(session, &wanted)?;
            totals.add(Totals {
                count: 1,
                events: snapshot.events,
                pages: snapshot.bytes.div_ceil(64 << 10),
                pages_missed: snapshot.pages_missed,
                busy_ns: begun.elapsed().as_nanos() as u64,
            });
            if snapshot.events == 0 || snapshot.pages_refused > 0 {
                return Err(format!("a snapshot is not whole: {snapshot:?}"));
            }
            std::fs::remove_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            while begun.elapsed() < PERIOD && shared.is_wanted.load(Ordering::Relaxed) {
                std::thread::park_timeout(PERIOD.saturating_sub(begun.elapsed()));
            }
        }
    }
    Ok(totals)
}

/// Kinds of records of ours, and the ratio to LTTng-UST's, which has no contexts either unless it is asked for them.
const RECORDS: [(RecordKind, &str); 2] =
    [(RecordKind::Ids, "disk_bytes_ids_vs_lttng_ust"), (RecordKind::Compact, "disk_bytes_vs_lttng_ust")];
/// Events are emitted so many at a time, so that no reader falls behind.
const BURST: u64 = 20_000;

/// The bytes' part.
fn bytes_on_disk(
    options: &RunOptions,
    effort: Effort,
    dir: &Path,
    experiment: &mut Experiment,
) -> Result<(), LabError> {
    let mut ours: Vec<Vec<f64>> = vec![Vec::new(); RECORDS.len()];
    let mut theirs = Vec::new();
    let mut why_not = (!options.has_peers).then(|| "not wanted".to_string());
    for number in 0..effort.traces {
        for ((record, _), samples) in RECORDS.iter().zip(&mut ours) {
            samples.push(own_bytes(options, effort, *record, &dir.join(format!("bytes-{}-{number}", record.name())))?);
        }
        if why_not.is_none() {
            match lttng_bytes(options, effort, dir) {
                Ok(bytes) => theirs.push(bytes),
                Err(error) => why_not = Some(error.to_string()),
            }
        }
    }
    for ((record, name), samples) in RECORDS.iter().zip(&ours) {
        let labels = labels(&[("tool", "dormouse"), ("state", "on-disk"), ("record", record.name())]);
        let of = format!("disk_bytes_per_event.dormouse.{}", record.name());
        experiment.measurements.push(Measurement { labels, ..measurement(&of, "bytes", samples) });
        experiment.ratios.extend(ratio(name, samples, &theirs));
    }
    match why_not {
        Some(why) => experiment.notes.push(format!("peer lttng-ust not available: {why}")),
        None => {
            let labels = labels(&[("tool", "lttng-ust"), ("state", "on-disk")]);
            let of = "disk_bytes_per_event.lttng-ust";
            experiment.measurements.push(Measurement { labels, ..measurement(of, "bytes", &theirs) });
        }
    }
    experiment.notes.push(format!(
        "bytes of {} traces each, of {} events with one u64, in discard mode, without metadata and indices: counts, whose intervals say \
         nothing of other machines' noise, for there is none in them",
        effort.traces, effort.events
    ));
    Ok(())
}

/// Emits the events, a burst at a time.
fn emit(engine: &mut Engine, events: u64) -> Result<(), LabError> {
    for _ in 0..events.div_ceil(BURST) {
        run(engine, "armed_u64", 1, BURST)?;
    }
    Ok(())
}

fn own_bytes(options: &RunOptions, effort: Effort, context: RecordKind, dir: &Path) -> Result<f64, LabError> {
    let of_session = session_options(dir.into(), Mode::Discard, DISCARD_BUDGET_BYTES);
    // Its class alone: an engine has a thousand more, and the first 31 that are armed get the ids of which records are smallest. LTTng-UST
    // has as few small ids, and gives this class one of them.
    let patterns = vec!["lab:armed_u64".into()];
    let session = Session::create(&Options { context, patterns, ..of_session })?;
    let mut engine = engine_in(&session, options)?;
    emit(&mut engine, effort.events)?;
    let emitted = engine.emitted();
    engine.finish()?;
    let summary = session.finish();
    verified(&summary, Mode::Discard, emitted)?;
    let _ = std::fs::remove_dir_all(dir);
    Ok(summary.bytes as f64 / summary.events.max(1) as f64)
}

fn lttng_bytes(options: &RunOptions, effort: Effort, dir: &Path) -> Result<f64, LabError> {
    let unknown = || LabError::Peer("there is no such peer".into());
    let peer = peers::all("event", true).into_iter().find(|peer| peer.name() == "lttng-ust").ok_or_else(unknown)?;
    let (command, prepared) = peer.prepare(PeerMode::Discard, dir)?.into_parts();
    let mut engine = Engine::start(command, &options.cpus, options.policy.as_str())?;
    emit(&mut engine, effort.events)?;
    let (emitted, answer) = (engine.emitted(), engine.arrived()?);
    let (found, bytes) = prepared.finish_with_bytes(emitted, &answer);
    engine.finish()?;
    match (found.arrived, bytes) {
        (Some(arrived), Some(bytes)) if found.holds() && arrived > 0 => Ok(bytes as f64 / arrived as f64),
        _ => Err(LabError::Peer(found.note("lttng-ust"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_different_names_and_bases() {
        let slots = slots(4);
        let names: Vec<String> = slots.iter().map(|slot| slot.name()).collect();
        crate::plan::assert_different_names(names.iter().map(String::as_str));
        assert_eq!(names[2], "dormouse.armed.u64.snapshots");
        assert_eq!(names[5], "dormouse.armed.u64.snapshots.2-threads");
        assert_eq!(super::slots(1).len(), 3);
    }
}
