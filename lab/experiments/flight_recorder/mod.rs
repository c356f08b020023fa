//! Experiment `flight-recorder`: the cost of snapshots for writers, and the number of bytes that an event takes on
//! disk.
//!
//! ```text
//!   session (overwrite, 16 MiB) ── owner's threads: any CPU but the writer's
//!     │        │
//!     │        └── every 100 ms: a snapshot of all retained pages, to disk, and removed again
//!     ▼                                     │
//!   engine, pinned      round 1:   armed   armed + snapshots   empty        in an order drawn for each round;
//!                       round 2:   empty   armed   …                        a turn is long enough for several snapshots
//! ```
//! A cost is that of one event, minus the empty loop of the same round. With two writers on two CPUs the owner has no
//! CPU of its own, so its time is part of the figure.
//!
//! `disk_bytes_per_event` is the size of a trace's streams divided by the number of its events: ours with process and
//! thread in each record and without, and LTTng-UST's without contexts.
//!
//! Verified: each snapshot has events and is whole; the session's last events are in its trace; on disk, arrived and
//! lost events add up to those emitted.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use dormouse_abi::message::Snapshot;
use dormouse_abi::record::RecordKind;
use dormouse_control::Take;
use dormouse_lab_harness::{Run, Timing, Walk};
use dormouse_owner::{Mode, Options, Session};
use dormouse_tools::{SessionSocket, ask_for_snapshot};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::engine::Engine;
use crate::engines::{Engines, LTTNG_UST, Start, directory};
use crate::experiments::event::{DISCARD_BUDGET_BYTES, in_session, session_options};
use crate::plan::{self, Axis, Plan, Slot, Turn, slot};
use crate::statistics::{measurement, ratio};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

const NAME: &str = "flight-recorder";
/// Budget that `dormouse record` takes by default, in bytes.
const OVERWRITE_BUDGET_BYTES: u64 = 16 << 20;
/// Time from the start of one snapshot to the start of the next.
const PERIOD: Duration = Duration::from_millis(100);
/// Number of iterations that determine the length of a turn.
const PROBE: u64 = 500_000;

/// Name, numerator and denominator of each ratio.
const RATIOS: [(&str, &str, &str); 2] = [
    ("snapshot_writer_slowdown", "dormouse.armed.u64.snapshots", "dormouse.armed.u64"),
    ("snapshot_writer_slowdown_2_threads", "dormouse.armed.u64.snapshots.2-threads", "dormouse.armed.u64.2-threads"),
];

const AXES: &[Axis] = &[
    Axis::plain("tool"),
    Axis::plain("state"),
    Axis { name: "snapshots", silent: "none", shown: "snapshots" },
    Axis { name: "threads", silent: "1", shown: "{}-threads" },
];

/// Runs the experiment. If LTTng is not available, that is a note, not an error.
pub(super) fn run_flight_recorder(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let mut experiment = writers(options, host, dir.path())?;
    bytes_on_disk(options, dir.path(), &mut experiment)?;
    Ok(experiment)
}

fn armed(threads: usize, iterations: u64) -> Run {
    Run { case: "armed_u64".into(), iterations, threads, walk: Walk::None, beside: None }
}

/// Plans for each number of threads: empty, without snapshots, and with them.
fn slots(cpu_count: usize, iterations: u64) -> Plan {
    let mut plan = Plan::new(AXES);
    for threads in 1..=cpu_count.min(2) {
        let mut add = |case, state, snapshots, base| {
            let slot = Slot { threads, ..slot(0, case, Walk::None, Turn::Of(iterations)) };
            let threads = threads.to_string();
            let pairs = [("tool", "dormouse"), ("state", state), ("threads", &threads), ("snapshots", snapshots)];
            plan.push(slot, &pairs, base)
        };
        let empty = Some(add("empty", "empty", "none", None));
        add("armed_u64", "armed", "none", empty);
        add("armed_u64", "armed", "100-ms", empty);
    }
    for planned in &mut plan.planned {
        planned.name = planned.name.replace("armed", "armed.u64");
    }
    plan
}

/// Measures the writers.
fn writers(options: &RunOptions, host: &Host, dir: &Path) -> Result<Experiment, LabError> {
    let cpus = &options.cpus;
    let mut engines = Engines::new(options)?;
    // Socket of the current process's session.
    let socket = Rc::new(RefCell::new(PathBuf::new()));
    let (of_session, of_cpus) = (Rc::clone(&socket), cpus.clone());
    engines.add(move |dir| {
        let options = session_options(dir, Mode::Overwrite, OVERWRITE_BUDGET_BYTES);
        let session = beside_the_writer(&of_cpus, || Ok(Session::create(&options)?))?;
        *of_session.borrow_mut() = session.socket().into();
        in_session(session, options)
    })?;
    // With this many iterations, an armed turn of any slot lasts at least about `turn`. The first call pays for pages
    // and code.
    let turn = if options.is_quick { PERIOD } else { 6 * PERIOD };
    let mut least_ns = f64::MAX;
    for threads in [1, 1, 2, 2].into_iter().filter(|threads| *threads <= cpus.len()) {
        least_ns = least_ns.min(engines.all[0].run(armed(threads, PROBE))?.ns);
    }
    let slots = slots(cpus.len(), (turn.as_nanos() as f64 / least_ns.max(1.0)) as u64 + 1);
    let mut taken = Vec::new();
    let take_turn = |name: &str, engine: &mut Engine, run: Run| {
        if !name.contains("snapshots") {
            return engine.run(run);
        }
        // A snapshot of a session without events would not be whole.
        if engine.emitted == 0 {
            engine.run(armed(1, PROBE))?;
        }
        let snapshots = || amid_snapshots(engine, run, &socket.borrow(), &dir.join("snapshot"), &mut taken);
        beside_the_writer(cpus, snapshots)
    };
    let measured = slots.measure_by(&mut engines, options.rounds(6, 40), NAME, take_turn)?;
    let mut notes = Vec::new();
    engines.finish(host, &mut notes)?;
    let sum = |of: fn(&Snapshot) -> u64| taken.iter().map(|(snapshot, _)| of(snapshot)).sum::<u64>();
    let (count, missed) = (taken.len() as u64, sum(|snapshot| snapshot.pages_missed));
    if count == 0 {
        return Err(LabError::Engine("no snapshot was taken".into()));
    }
    notes.push(format!(
        "{count} snapshots of a session of {} MiB, {:.1} ms each on average, {} events each; {missed} of {} pages were overwritten before \
         they could be copied",
        OVERWRITE_BUDGET_BYTES >> 20,
        taken.iter().map(|(_, lasted)| lasted.as_secs_f64()).sum::<f64>() * 1e3 / count as f64,
        sum(|snapshot| snapshot.events) / count,
        sum(|snapshot| snapshot.bytes.div_ceil(64 << 10)) + missed,
    ));
    notes.push(format!(
        "turns of {} ms; writers on processors {:?}, the session's owner on {}",
        turn.as_millis(),
        &cpus[..cpus.len().min(2)],
        if cpus.len() > 1 { format!("{:?}", &cpus[1..]) } else { "the same, for there is no other".into() },
    ));
    Ok(plan::experiment(NAME, vec![measured], &RATIOS, notes, host))
}

/// Runs `work` while this thread, and the threads that it starts, stay off the first writer's CPU.
fn beside_the_writer<T>(cpus: &[u32], work: impl FnOnce() -> Result<T, LabError>) -> Result<T, LabError> {
    let failed = |error: rustix::io::Errno| LabError::System { what: "processors", error: error.into() };
    let before = sched_getaffinity(None).map_err(failed)?;
    let mut others = CpuSet::new();
    cpus.iter().skip(1).for_each(|cpu| others.set(*cpu as usize));
    // With a single CPU there is no other.
    if cpus.len() > 1 {
        sched_setaffinity(None, &others).map_err(failed)?;
    }
    let done = work();
    sched_setaffinity(None, &before).map_err(failed)?;
    done
}

/// Takes a turn, and meanwhile snapshots of a session, with the time of each. When it returns, the last snapshot is
/// complete.
fn amid_snapshots(
    engine: &mut Engine,
    run: Run,
    session: &Path,
    dir: &Path,
    taken: &mut Vec<(Snapshot, Duration)>,
) -> Result<Timing, LabError> {
    let wanted = Take { dir: Some(dir.into()), trigger: NAME.into(), ..Take::default() };
    std::thread::scope(|scope| {
        let (sender, over) = mpsc::channel();
        scope.spawn(move || sender.send(engine.run(run)));
        loop {
            let begun = Instant::now();
            let snapshot = ask_for_snapshot(&SessionSocket::at(session)?, &wanted)?;
            if snapshot.events == 0 || snapshot.pages_refused > 0 {
                return Err(LabError::Engine(format!("a snapshot is not whole: {snapshot:?}")));
            }
            taken.push((snapshot, begun.elapsed()));
            std::fs::remove_dir_all(dir).map_err(|error| LabError::System { what: "temporary directory", error })?;
            match over.recv_timeout(PERIOD.saturating_sub(begun.elapsed())) {
                Ok(timing) => return timing,
                Err(RecvTimeoutError::Timeout) => {}
                Err(error) => return Err(LabError::Engine(error.to_string())),
            }
        }
    })
}

/// Kinds of our records, and the names of their ratios to LTTng-UST's, which has no contexts by default.
const RECORDS: [(RecordKind, &str); 2] =
    [(RecordKind::Ids, "disk_bytes_ids_vs_lttng_ust"), (RecordKind::Compact, "disk_bytes_vs_lttng_ust")];
/// Number of events that are emitted at once, so that no reader falls behind.
const BURST: u64 = 20_000;

/// Measures the bytes on disk.
fn bytes_on_disk(options: &RunOptions, dir: &Path, experiment: &mut Experiment) -> Result<(), LabError> {
    let (traces, events) = if options.is_quick { (1, 200_000) } else { (5, 1_000_000) };
    let bytes = |start: Start| bytes_per_event(start, options, events);
    let (mut ours, mut theirs) = ([Vec::new(), Vec::new()], Vec::new());
    let mut why_not = (!options.has_peers).then(|| "not wanted".to_string());
    for _ in 0..traces {
        for ((record, _), samples) in RECORDS.into_iter().zip(&mut ours) {
            samples.push(bytes(with_records(record, dir)?)?);
        }
        if why_not.is_none() {
            match LTTNG_UST.start(Mode::Discard, &directory(), dir).and_then(bytes) {
                Ok(bytes) => theirs.push(bytes),
                Err(error) => why_not = Some(error.to_string()),
            }
        }
    }
    let figures = |pairs: &[(&str, &str)], samples: &[f64]| {
        let labels = plan::labels(&[pairs, &[("state", "on-disk")]].concat());
        let of = plan::name(&[Axis::plain("tool"), Axis::plain("record")], &labels);
        Measurement { labels, ..measurement(&format!("disk_bytes_per_event.{of}"), "bytes", samples) }
    };
    for ((record, name), samples) in RECORDS.iter().zip(&ours) {
        experiment.measurements.push(figures(&[("tool", "dormouse"), ("record", record.name())], samples));
        experiment.ratios.extend(ratio(name, samples, &theirs));
    }
    match why_not {
        Some(why) => experiment.notes.push(format!("peer lttng-ust not available: {why}")),
        None => experiment.measurements.push(figures(&[("tool", "lttng-ust")], &theirs)),
    }
    experiment.notes.push(format!(
        "bytes of {traces} traces each, of {events} events with one u64, in discard mode, without metadata and indices: counts, whose \
         intervals say nothing of other machines' noise, for there is none in them"
    ));
    Ok(())
}

/// Starts our engine in discard mode.
fn with_records(context: RecordKind, dir: &Path) -> Result<Start, LabError> {
    // Only its class is armed. The engine has a thousand more, and the first 31 armed classes get the ids with the
    // smallest records. LTTng-UST has as few small ids, and gives this class one of them.
    let rules = vec!["lab:armed_u64".into()];
    let of_session = session_options(dir, Mode::Discard, DISCARD_BUDGET_BYTES);
    let of_session = Options { context, rules, ..of_session };
    in_session(Session::create(&of_session)?, of_session)
}

/// Has a process emit `events` events. Returns the bytes that an event takes in its trace.
fn bytes_per_event((command, count): Start, options: &RunOptions, events: u64) -> Result<f64, LabError> {
    let mut engine = Engine::start(command, options)?;
    for _ in 0..events.div_ceil(BURST) {
        engine.run(armed(1, BURST))?;
    }
    let found = count(engine)?;
    match found.arrived {
        Some(arrived) if found.holds() && arrived > 0 => Ok(found.bytes as f64 / arrived as f64),
        _ => Err(LabError::Peer(found.note(LTTNG_UST.name))),
    }
}
