//! Experiment `reader`: the time that whole programs take to read a trace, one of LTTng-UST's and one of ours.
//!
//! ```text
//!   traces   ten classes in turn, on two CPUs: recorded by LTTng-UST, if it is installed, and by us
//!   round    every way once on every trace, in an order drawn for it; each is a process, timed from outside
//!     cat                the streams' files                  babeltrace2        every event, to no output
//!     count              each record's header, by class    babeltrace2-text   every event, as text
//!     stats, text        `dormouse stats`, `dormouse view`
//!     arrow              one class of ten, two columns, to Arrow
//! ```
//! All output goes to `/dev/null`. The files that the first round reads are in the page cache afterwards, and that
//! round does not count. A quick run has few events: the time that the same way takes for a trace of a few events is
//! subtracted, round by round. Before anything is timed, `count` must find as many events as the recorder reports; it
//! does not use a trace's totals. In a full run, ways that take a fraction of a second are run five times in a row and
//! counted as one with the mean time, which reduces the effect of chance.
//!
//! `TRACE.WAY.peak` is the peak memory of a process, `TRACE.peak` the largest peak of our programs. Programs of a debug
//! build are called `unoptimised-…`: no statement is judged by them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dormouse_abi::record::RecordKind;
use dormouse_lab_harness::{Run, Walk};
use dormouse_owner::{Mode, Options, Session};
use dormouse_testing::lttng::{BUFFERS, LttngSession, events_in, streams};
use dormouse_testing::{is_installed, printed};

use crate::engine::{Engine, engine_path, find_part};
use crate::engines::{LTTNG_UST, directory};
use crate::experiments::compile_job::project::{directory_in, place};
use crate::experiments::event::{ENGINE, session_options};
use crate::plan::{self, Samples, in_turn};
use crate::statistics::{ROUNDS_MIN, measurement};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

/// Number of events of a trace, for a full and a quick experiment.
const EVENTS: [u64; 2] = [25_000_000, 300_000];
/// Number of events that are emitted at once, so that no recorder falls behind.
const BURST: u64 = 20_000;
/// Pause after each burst of ours, which is emitted in a fraction of a millisecond, so that a disk can write it.
const PAUSE: Duration = Duration::from_millis(3);
/// Budget of our session, with room for the events that a stalled recorder keeps back.
const BUDGET_BYTES: u64 = 256 << 20;

/// A recorder, and the parameters of questions to its trace.
struct Recorder {
    name: &'static str,
    /// One class of the ten.
    class: &'static str,
    /// Two columns of that class.
    columns: &'static str,
}

const RECORDERS: [Recorder; 2] = [
    Recorder { name: LTTNG_UST.name, class: "lab:armed_site_003", columns: "time,value" },
    Recorder { name: "dormouse", class: "lab:armed_site_3", columns: "time,number" },
];

/// Ways of reading: name, program, and arguments.
const WAYS: [(&str, &str, &str); 7] = [
    ("cat", "cat", "FILES"),
    ("count", "examples/count", "TRACE"),
    ("stats", "dormouse", "stats TRACE"),
    ("text", "dormouse", "view TRACE"),
    ("arrow", "examples/arrow", "TRACE CLASS COLUMNS"),
    ("babeltrace2", "babeltrace2", "--output-format=dummy TRACE"),
    ("babeltrace2-text", "babeltrace2", "TRACE"),
];
/// Ways that take a fraction of a second.
const SHORT: [&str; 4] = ["cat", "count", "stats", "arrow"];
/// Number of times that they are run in a row.
const RUNS_OF_SHORT: u32 = 5;
/// Programs of other projects.
const OTHERS: [&str; 2] = ["cat", "babeltrace2"];

/// Figures that [`TIMER`] reports of a process, with their units.
const FIGURES: [(&str, &str); 3] = [("wall", "s"), ("cpu", "s"), ("peak", "MiB")];
const TIMER: &str = "dormouse-lab-engine-timer";

/// A process that is timed once a round.
struct Turn {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// Has a program emit `events` events.
fn emit(
    program: PathBuf,
    env: [(&str, OsString); 2],
    options: &RunOptions,
    events: u64,
    pause: Duration,
) -> Result<(), LabError> {
    let mut command = Command::new(program);
    command.envs(env);
    let mut engine = Engine::start(command, options)?;
    while engine.emitted < events {
        let (iterations, threads) = (BURST.min(events - engine.emitted), options.cpus.len().min(2));
        let case = "armed_sites_10".into();
        engine.run(Run { case, iterations, threads, walk: Walk::None, beside: None })?;
        // The recorder's progress is unknown. There are as many pauses as bursts.
        std::thread::sleep(pause);
    }
    engine.finish()
}

/// Records `events` events below a directory. Returns the path of the trace, and the number of its events.
fn by_us(options: &RunOptions, dir: &Path, events: u64) -> Result<(PathBuf, u64), LabError> {
    let rules = vec!["lab:armed_site_?".into()];
    let of_session = session_options(dir, Mode::Discard, BUDGET_BYTES);
    let session = Session::create(&Options { context: RecordKind::Ids, rules, ..of_session.clone() })?;
    emit(engine_path(ENGINE)?, session.environment()?, options, events, PAUSE)?;
    Ok((of_session.dir, session.finish().events))
}

fn by_lttng(options: &RunOptions, dir: &Path, events: u64) -> Result<(PathBuf, u64), LabError> {
    let session = LttngSession::start(BUFFERS, &["lab:armed_site_00*"], &[], dir).map_err(LabError::Peer)?;
    emit(LTTNG_UST.program(&directory())?, session.env(), options, events, Duration::ZERO)?;
    session.keep().and_then(|trace| events_in(&trace).map(|events| (trace, events))).map_err(LabError::Peer)
}

/// Returns a program of [`WAYS`], if it is available.
fn find(program: &str) -> Option<PathBuf> {
    if OTHERS.contains(&program) { is_installed(program).then(|| program.into()) } else { find_part(program) }
}

/// Returns all available ways to read a trace.
fn turns(recorder: &Recorder, end: &str, trace: &Path) -> Vec<Turn> {
    let mut turns = Vec::new();
    for (way, program, words) in WAYS {
        let Some(found) = find(program) else { continue };
        let mut arguments: Vec<OsString> = Vec::new();
        for word in words.split(' ') {
            match word {
                "TRACE" => arguments.push(trace.into()),
                "FILES" => arguments.extend(streams(trace).into_iter().map(OsString::from)),
                "CLASS" => arguments.push(recorder.class.into()),
                "COLUMNS" => arguments.push(recorder.columns.into()),
                _ => arguments.push(word.into()),
            }
        }
        let start = if cfg!(debug_assertions) && !OTHERS.contains(&program) { "unoptimised-" } else { "" };
        turns.push(Turn { name: format!("{}.{start}{way}{end}", recorder.name), program: found, arguments });
    }
    turns
}

/// Runs `count`, if it is available, and checks that it finds as many events as the recorder reports.
fn verify(turns: &[Turn], events: u64) -> Result<(), LabError> {
    let Some(turn) = turns.iter().find(|turn| turn.program.ends_with("count")) else { return Ok(()) };
    let text = printed(Command::new(&turn.program).args(&turn.arguments), "count").map_err(LabError::Engine)?;
    // A trace of ours also has events of the session owner.
    let all: u64 = text.lines().filter_map(|line| line.trim().split_once(" lab:")?.0.parse::<u64>().ok()).sum();
    let wrong = || LabError::Engine(format!("{}: {all} events counted, {events} recorded", turn.name));
    (all == events).then_some(()).ok_or_else(wrong)
}

/// Runs the experiment by name; it does not use the host. A missing recorder or reader is a note, not an error.
pub(super) fn run_reader(options: &RunOptions, _: &Host) -> Result<Experiment, LabError> {
    let dir = directory_in("/var/tmp")?;
    let mut notes = vec![format!("traces are in {}, and cached", place(dir.path()))];
    let missing = WAYS.iter().filter(|(_, program, _)| find(program).is_none());
    notes.extend(missing.map(|(way, program, _)| format!("{way} not measured: {program} is not here")));
    let wanted = [("", EVENTS[usize::from(options.is_quick)]), (".start-up", 1)];
    let (mut turns_of_all, mut measurements) = (Vec::new(), Vec::new());
    for recorder in RECORDERS.iter().filter(|recorder| options.has_peers || recorder.name != LTTNG_UST.name) {
        for (end, count) in wanted.into_iter().take(if options.is_quick { 2 } else { 1 }) {
            let below = dir.path().join(format!("{}{end}", recorder.name));
            std::fs::create_dir(&below).map_err(|error| LabError::System { what: "a trace's directory", error })?;
            let record = if recorder.name == LTTNG_UST.name { by_lttng } else { by_us };
            let (trace, events) = match record(options, &below, count) {
                Err(LabError::Peer(why)) => {
                    notes.push(format!("peer {} not available: {why}", recorder.name));
                    break;
                }
                recorded => recorded?,
            };
            let turns = turns(recorder, end, &trace);
            verify(&turns, events)?;
            turns_of_all.extend(turns);
            if end.is_empty() {
                let (streams, name) = (streams(&trace).len(), format!("{}.streams", recorder.name));
                notes.push(format!("{}: {events} events of ten classes in {streams} streams", recorder.name));
                measurements.push(Measurement::exact(&name, "count", streams as f64));
            }
        }
    }
    let (rounds, timer) = (options.rounds(ROUNDS_MIN, 2 * ROUNDS_MIN), engine_path(TIMER)?);
    let (mut samples, mut signals) = (Samples::new(), plan::signals()?);
    in_turn("reader", rounds + 1, turns_of_all.len(), Some(&mut signals), |round, index, bar| {
        let Turn { name, program, arguments } = &turns_of_all[index];
        bar.set_message(name.clone());
        let is_short = !options.is_quick && name.rsplit('.').next().is_some_and(|way| SHORT.contains(&way));
        let runs = if is_short { RUNS_OF_SHORT } else { 1 };
        let (mut wall, mut cpu, mut peak) = (0.0, 0.0, 0.0_f64);
        for _ in 0..runs {
            let text = printed(Command::new(&timer).arg(program).args(arguments), name).map_err(LabError::Engine)?;
            let taken: [f64; 3] = serde_json::from_str(&text).map_err(|error| LabError::Engine(error.to_string()))?;
            (wall, cpu, peak) = (wall + taken[0], cpu + taken[1], peak.max(taken[2]));
        }
        for ((figure, unit), value) in FIGURES.into_iter().zip([wall / f64::from(runs), cpu / f64::from(runs), peak]) {
            // In the first round files are read from disk.
            samples.entry((format!("{name}.{figure}"), unit)).or_default().extend((round > 0).then_some(value));
        }
        Ok(())
    })?;
    notes.push(format!("{rounds} rounds, each in an order of its own, and one before them that does not count"));
    measurements.extend(figures(&samples));
    Ok(Experiment { name: "reader".into(), measurements, notes, ..Experiment::default() })
}

/// Returns the figures: times, minus those of starting if they were measured; memory; and for each trace the largest
/// peak of our ways.
fn figures(samples: &Samples) -> Vec<Measurement> {
    let mut figures = Vec::new();
    let mut peaks = Samples::new();
    for ((name, unit), rounds) in samples {
        let (turn, figure) = name.rsplit_once('.').unwrap_or_default();
        let mut parts = turn.split('.');
        let [trace, way] = [parts.next().unwrap_or_default(), parts.next().unwrap_or_default()];
        let start_up = samples.get(&(format!("{turn}.start-up.{figure}"), *unit)).filter(|_| *unit == "s");
        let less = |(round, taken): (usize, &f64)| taken - start_up.map_or(0.0, |of| of[round]);
        let rounds: Vec<f64> = rounds.iter().enumerate().map(less).collect();
        let is_ours = WAYS.iter().any(|(name, program, _)| *name == way && !OTHERS.contains(program));
        if *unit == "MiB" && is_ours && parts.next().is_none() {
            let peak = peaks.entry((format!("{trace}.peak"), *unit)).or_insert_with(|| rounds.clone());
            peak.iter_mut().zip(&rounds).for_each(|(peak, of_way)| *peak = peak.max(*of_way));
        }
        let labels = plan::labels(&[("trace", trace), ("tool", way), ("state", figure)]);
        figures.push(Measurement { labels, ..measurement(name, unit, &rounds) });
    }
    figures.extend(peaks.iter().map(|((name, unit), rounds)| measurement(name, unit, rounds)));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_up_is_subtracted_and_memory_is_the_maximum() {
        let of = |name: &str, unit, rounds: [f64; 2]| ((name.to_string(), unit), rounds.to_vec());
        let samples = Samples::from([
            of("dormouse.count.wall", "s", [5.0, 7.0]),
            of("dormouse.count.start-up.wall", "s", [1.0, 2.0]),
            of("dormouse.count.peak", "MiB", [5.0, 7.0]),
            of("dormouse.text.peak", "MiB", [6.0, 6.0]),
            of("dormouse.babeltrace2.peak", "MiB", [9.0, 9.0]),
        ]);
        let found = figures(&samples);
        let rounds = |name: &str| found.iter().find(|figure| figure.name == name).map(|figure| &figure.samples[..]);
        assert_eq!(rounds("dormouse.count.wall"), Some(&[4.0, 5.0][..]));
        assert_eq!(rounds("dormouse.peak"), Some(&[6.0, 7.0][..]));
    }
}
