//! Experiment `event`: the cost of a tracepoint, dormant and armed, beside the tracers that people use.
//!
//! ```text
//!   engines       dormouse (overwrite), dormouse (discard, live consumer), floor, and every peer that is installed
//!   axes          fields: none, u64, ints3, str32      threads: 1, 2        sites: 1, 10, 1000
//!                 pressure: hot, L1, L2, L3 (a random walk of several times the cache), linear-L2
//!   not crossed   from the plain case (armed, u64, one thread, hot, one site) one axis at a time
//! ```
//! `dormant_cold_vs_lttng_ust` is over 1,000 sites in turn, each with its code and data driven out of L2, as in a
//! program that does other work. With one site whose code is cached (`…_1_site_…`), a CPU hides most of the load of
//! LTTng-UST's site.
//!
//! Overwrite mode in 1 MiB shows the cost of the mechanism with memory that fits a large cache. Discard mode is
//! measured in bursts that fit the buffer, and the consumer drains between them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dormouse_abi::environment::{ENV_MEMORY, ENV_SESSION, with_session};
use dormouse_lab_harness::{Run, Walk};
use dormouse_owner::{Mode, Options, Session, Summary};

use crate::engine::{Engine, engine_path};
use crate::engines::{self, Engines, RunningPeer, Start, Verification};
use crate::plan::{self, Axis, Plan, Slot, Turn, slot};
use crate::statistics::measurement;
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

/// Our engine, which also has the floor's cases.
pub(crate) const ENGINE: &str = "dormouse-lab-engine";
/// Budget of a session in discard mode, in bytes: it holds all events of a burst.
pub(crate) const DISCARD_BUDGET_BYTES: u64 = 64 << 20;

/// Sessions of our engine, in the order in which the engines are added: how records are written (with restartable
/// sequences, or as if there were none), the mode, and the budget in bytes.
const SESSIONS: [(&str, Mode, u64); 4] = [
    ("rseq", Mode::Overwrite, 1 << 20),
    ("rseq", Mode::Discard, DISCARD_BUDGET_BYTES),
    ("atomics", Mode::Overwrite, 1 << 20),
    ("atomics", Mode::Discard, DISCARD_BUDGET_BYTES),
];
/// Index of the engine that is in no session.
const FLOOR: usize = SESSIONS.len();

/// Lengths of a turn in µs: hot, cold, and under pressure on the last cache, where each walk takes a long time; for a
/// full and a quick experiment.
const TURNS_US: [[u64; 3]; 2] = [[2_000, 10_000, 100_000], [400, 1_500, 10_000]];

/// Names: `tool.state.fields`, and the differences from the plain case: `dormouse.armed.u64.2-threads`,
/// `dormouse.dormant.u64.L2`.
const AXES: &[Axis] = &[
    Axis::plain("tool"),
    Axis::plain("state"),
    Axis::plain("fields"),
    Axis { name: "threads", silent: "1", shown: "{}-threads" },
    Axis::without("pressure", "hot"),
    Axis { name: "sites", silent: "1", shown: "{}-sites" },
    Axis::without("mode", "overwrite"),
];

/// Whether a tool's case is measured with this number of threads, under this pressure. Ours and LTTng-UST are measured
/// on all axes, other peers on fields, threads, and pressure on the first two caches. Discard mode has only the plain
/// case.
fn is_wanted(tool: &RunningPeer, case: &str, threads: usize, pressure: &str, is_quick: bool) -> bool {
    let is_ours = tool.name == "dormouse";
    let is_full = is_ours || tool.name == "lttng-ust";
    match (pressure, case) {
        ("hot", "armed_u64") => true,
        _ if tool.mode == Some(Mode::Discard) || case.starts_with("empty") => false,
        ("hot", "dormant_u64" | "floor_u64") => true,
        // A quick run has no time for the sites of every peer.
        ("hot", _) => threads == 1 && (is_full || !is_quick || !case.contains("sites")),
        // Over many sites, the effect of where the linker placed each one averages out.
        ("L2", "dormant_sites_1000") => true,
        ("L3", "dormant_sites_1000") => is_full && !is_quick,
        (_, "armed_u64" | "dormant_u64" | "load_u64" | "floor_u64") => match pressure {
            "L1" => is_full || !is_quick,
            "L2" => true,
            // A walk over a last cache of hundreds of MiB takes seconds.
            "L3" => is_full && !is_quick,
            _ => is_ours,
        },
        _ => false,
    }
}

/// Plans the cases of all tools, as far as their engines have them.
fn slots(engines: &Engines, walks: &[(&'static str, Walk)]) -> Plan {
    let (is_quick, cpus) = (engines.options.is_quick, engines.options.cpus.len());
    let [hot, cold, coldest] = TURNS_US[usize::from(is_quick)].map(|us| Turn::Lasting(Duration::from_micros(us)));
    let mut places = vec![(1, "hot", Walk::None), (2, "hot", Walk::None)];
    places.truncate(cpus);
    places.extend(walks.iter().map(|(pressure, walk)| (1, *pressure, *walk)));
    let ours = [(0, Mode::Overwrite), (1, Mode::Discard)];
    let ours = ours.map(|(engine, mode)| RunningPeer { name: "dormouse", mode: Some(mode), engine });
    let mut plan = Plan::new(AXES);
    for tool in ours.iter().chain(&engines.peers) {
        let engine = &engines.all[tool.engine];
        for (threads, pressure, walk) in places.iter().copied() {
            let turn = match pressure {
                "hot" => hot,
                "L3" => coldest,
                _ => cold,
            };
            let cases = engine.description().cases.iter();
            for case in cases.filter(|case| is_wanted(tool, case, threads, pressure, is_quick)) {
                let mut add = |case: &str, base| {
                    let pairs = labels(tool, case, threads, pressure);
                    // Our engine also has the floor's cases; each is measured once, by the process that is in no
                    // session.
                    let engine = if tool.engine == 0 && pairs[0].1 != tool.name { FLOOR } else { tool.engine };
                    plan.add(&engines.all, Slot { threads, ..slot(engine, case, walk, turn) }, &pairs, base)
                };
                // The empty loop of the same fields or sites, if the engine has one.
                let own = format!("empty_{}", case.split_once('_').map_or("", |(_, end)| end));
                let base = add(if engine.has(&own) { &own } else { "empty" }, None);
                // Without an empty loop to subtract, there is no cost.
                if base.is_some() {
                    add(case, base);
                }
            }
        }
    }
    plan
}

/// Returns the labels of a slot. A case's name is `STATE_FIELDS` or `STATE_sites_COUNT`.
fn labels<'a>(tool: &RunningPeer, case: &'a str, threads: usize, pressure: &'a str) -> Vec<(&'static str, &'a str)> {
    let (state, fields) = case.split_once('_').unwrap_or((case, if case == "empty" { "" } else { "none" }));
    let (fields, sites) = fields.strip_prefix("sites_").map_or((fields, "1"), |count| ("u64", count));
    let (name, state) = match state {
        "floor" => ("floor", "armed"),
        "rdtsc" => ("rdtsc", "armed"),
        "load" => ("variable", "dormant"),
        _ => (tool.name, state),
    };
    let all = [
        ("tool", name),
        ("state", state),
        ("fields", fields),
        ("threads", if threads == 1 { "1" } else { "2" }),
        ("pressure", pressure),
        ("sites", sites),
        ("mode", tool.mode.filter(|_| name == tool.name).map_or("", Mode::name)),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// Number of events of each case during which page faults are counted.
const FAULTS_OF: u64 = 10_000_000;

/// Counts page faults during [`FAULTS_OF`] events, for each mode and way. Returns their sum first, then a measurement
/// for each.
fn record_path_faults(engines: &mut Engines) -> Result<Vec<Measurement>, LabError> {
    let is_quick = engines.options.is_quick;
    let cases = &["u64", "none", "ints3", "str32"][..if is_quick { 1 } else { 4 }];
    let mut measurements = Vec::new();
    for (engine, (by, mode, _)) in engines.all.iter_mut().zip(SESSIONS) {
        for fields in cases {
            // With atomics, the full number takes seconds.
            let iterations = if is_quick && by == "atomics" { FAULTS_OF / 10 } else { FAULTS_OF };
            let case = format!("armed_{fields}");
            let timing = engine.run(Run { case, iterations, threads: 1, walk: Walk::None, beside: None })?;
            let labels = plan::labels(&[("mode", mode.name()), ("by", by), ("fields", fields)]);
            let name = format!("record_path_faults.{}.{by}.{fields}", mode.name());
            measurements.push(Measurement { labels, ..measurement(&name, "faults", &[timing.faults as f64]) });
        }
    }
    let sum = measurements.iter().map(|measurement| measurement.median).sum();
    measurements.insert(0, measurement("record_path_faults", "faults", &[sum]));
    Ok(measurements)
}

/// Returns the options of a session of our engine, whose trace is in a directory.
pub(crate) fn session_options(dir: &Path, mode: Mode, budget_bytes: u64) -> Options {
    let (rules, command_line) = (vec!["lab:armed*".into()], ENGINE.into());
    Options { budget_bytes, mode, rules, command_line, ..Options::new(dir.join("trace")) }
}

/// Starts the engine that the options name as the command, in their session, whose trace is removed at the end. It is
/// an error if not all events are accounted for.
pub(crate) fn in_session(session: Session, options: Options) -> Result<Start, LabError> {
    in_sessions(vec![(session, options, None)])
}

/// Cases of the engine whose events a session records, and rejects by a condition.
pub(crate) type Cases = [&'static str; 2];

/// Starts the engine like [`in_session`], in several sessions at once. A session without cases records all events. The
/// events of each session are accounted for by themselves, and summed.
pub(crate) fn in_sessions(sessions: Vec<(Session, Options, Option<Cases>)>) -> Result<Start, LabError> {
    let mut command = Command::new(engine_path(&sessions[0].1.command_line)?);
    let mut lists = (String::new(), String::new());
    // The last one that is added is the first that the process joins.
    for (session, ..) in sessions.iter().rev() {
        let [socket, memory] = session.environment()?.map(|(_, value)| value.to_string_lossy().into_owned());
        lists = with_session((&lists.0, &lists.1), &socket, &memory);
    }
    command.env(ENV_SESSION, lists.0).env(ENV_MEMORY, lists.1);
    let count = move |engine: Engine| {
        let emitted = |cases: &Option<Cases>| match cases {
            None => (engine.emitted, None),
            Some([recorded, rejected]) => (engine.emitted_by(recorded), Some(engine.emitted_by(rejected))),
        };
        let emitted: Vec<_> = sessions.iter().map(|(.., cases)| emitted(cases)).collect();
        engine.finish()?;
        let found = sessions
            .into_iter()
            .zip(emitted)
            .map(|((session, options, _), (emitted, rejected))| account(session.finish(), &options, emitted, rejected));
        Ok(Verification::of_all(found.collect::<Result<_, _>>()?))
    };
    Ok((command, Box::new(count)))
}

/// Accounts for the events of a session that has ended, and removes its trace. `rejected` is the number of events that
/// its conditions rejected, if it is known.
fn account(summary: Summary, options: &Options, emitted: u64, rejected: Option<u64>) -> Result<Verification, LabError> {
    let is_ring = options.mode == Mode::Overwrite;
    let (arrived, lost) = (Some(summary.events), summary.losses.lost());
    let found = Verification { emitted, arrived, lost, is_ring, bytes: summary.bytes, ..Verification::default() };
    let counted: u64 = summary.unrecorded.iter().map(|class| class.rejected).sum();
    if !found.holds() || is_ring && lost > 0 || rejected.is_some_and(|rejected| rejected != counted) {
        let rejected = rejected.map(|rejected| format!(" and {rejected} to reject")).unwrap_or_default();
        return Err(LabError::Engine(format!("{}: {summary}, of {emitted} emitted{rejected}", options.mode.name())));
    }
    // The rest is in a temporary directory.
    let _ = std::fs::remove_dir_all(&options.dir);
    Ok(found)
}

/// Returns notes on the events of our first two engines, which are in sessions in overwrite and in discard mode.
pub(crate) fn counts(found: &[Verification]) -> [String; 2] {
    let [(emitted, last, _), (all, arrived, lost)] =
        [0, 1].map(|engine| (found[engine].emitted, found[engine].arrived.unwrap_or(0), found[engine].lost));
    [
        format!("dormouse, overwrite: {emitted} events emitted, the last {last} are in the trace"),
        format!("dormouse, discard: {all} events emitted, {arrived} in the trace, {lost} lost"),
    ]
}

/// Runs the experiment. A peer that is not installed is a note, not an error.
pub(super) fn run_event(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let mut engines = Engines::new(options)?;
    for (by, mode, budget_bytes) in SESSIONS {
        engines.add(move |dir| {
            let options = session_options(dir, mode, budget_bytes);
            let (mut command, count) = in_session(Session::create(&options)?, options)?;
            if by == "atomics" {
                command.env("DORMOUSE_NO_RSEQ", "1");
            }
            Ok((command, count))
        })?;
    }
    engines.add(|_| Ok((Command::new(engine_path(ENGINE)?), Box::new(engines::unwatched))))?;
    let mut notes = engines.add_peers("event");
    let walks = plan::walks_or_note(host, &mut notes);
    let slots = slots(&engines, &walks);
    let measured = slots.measure(&mut engines, options.rounds(12, 80), "event")?;
    let faults = record_path_faults(&mut engines)?;

    let found = engines.finish(host, &mut notes)?;
    notes.extend(counts(&found));
    notes.push(format!(
        "record_path_faults: the kernel's count (getrusage) amid {FAULTS_OF} events of each kind{}",
        if options.is_quick { ", a tenth of that by atomics" } else { "" }
    ));
    let mut experiment = plan::experiment("event", vec![measured], &RATIOS, notes, host);
    experiment.measurements.extend(faults);
    Ok(experiment)
}

/// Name, numerator and denominator of each ratio.
const RATIOS: [(&str, &str, &str); 34] = [
    ("armed_vs_floor", "dormouse.armed.u64", "floor.armed.u64"),
    ("armed_ints3_vs_floor", "dormouse.armed.ints3", "floor.armed.ints3"),
    ("armed_str32_vs_floor", "dormouse.armed.str32", "floor.armed.str32"),
    ("armed_vs_rdtsc", "dormouse.armed.u64", "rdtsc.armed.none"),
    ("armed_vs_lttng_ust", "dormouse.armed.u64", "lttng-ust.armed.u64"),
    ("armed_none_vs_lttng_ust", "dormouse.armed.none", "lttng-ust.armed.none"),
    ("armed_ints3_vs_lttng_ust", "dormouse.armed.ints3", "lttng-ust.armed.ints3"),
    ("armed_str32_vs_lttng_ust", "dormouse.armed.str32", "lttng-ust.armed.str32"),
    ("armed_discard_vs_lttng_ust", "dormouse.armed.u64.discard", "lttng-ust.armed.u64.discard"),
    ("armed_sites_10_vs_lttng_ust", "dormouse.armed.u64.10-sites", "lttng-ust.armed.u64.10-sites"),
    ("armed_sites_1000_vs_lttng_ust", "dormouse.armed.u64.1000-sites", "lttng-ust.armed.u64.1000-sites"),
    ("armed_cold_vs_lttng_ust", "dormouse.armed.u64.L2", "lttng-ust.armed.u64.L2"),
    ("armed_vs_tracy", "dormouse.armed.u64", "tracy.armed.u64"),
    ("armed_vs_tracy_zone", "dormouse.armed.none", "tracy.armed.zone"),
    ("armed_vs_fastrace", "dormouse.armed.none", "fastrace.armed.none"),
    ("armed_vs_tracing", "dormouse.armed.u64", "tracing.armed.u64"),
    ("armed_vs_tracing_ring", "dormouse.armed.u64", "tracing-ring.armed.u64"),
    ("armed_vs_tracing_flight_recorder", "dormouse.armed.u64", "tracing-flight-recorder.armed.u64"),
    ("armed_vs_perfetto", "dormouse.armed.u64", "perfetto.armed.u64"),
    ("armed_vs_perfetto_recorder", "dormouse.armed.u64", "perfetto-recorder.armed.u64"),
    ("armed_vs_uprobe", "dormouse.armed.u64", "uprobe.armed.u64"),
    ("armed_2_threads_vs_1", "dormouse.armed.u64.2-threads", "dormouse.armed.u64"),
    ("overwrite_vs_discard_event", "dormouse.armed.u64", "dormouse.armed.u64.discard"),
    ("lttng_ust_2_threads_vs_1", "lttng-ust.armed.u64.2-threads", "lttng-ust.armed.u64"),
    ("dormant_vs_lttng_ust", "dormouse.dormant.u64", "lttng-ust.dormant.u64"),
    ("dormant_cold_vs_lttng_ust", "dormouse.dormant.u64.L2.1000-sites", "lttng-ust.dormant.u64.L2.1000-sites"),
    ("dormant_cold_1_site_vs_lttng_ust", "dormouse.dormant.u64.L2", "lttng-ust.dormant.u64.L2"),
    ("dormant_sites_1000_vs_lttng_ust", "dormouse.dormant.u64.1000-sites", "lttng-ust.dormant.u64.1000-sites"),
    ("dormant_vs_variable", "dormouse.dormant.u64", "variable.dormant.u64"),
    ("dormant_cold_vs_variable", "dormouse.dormant.u64.L2", "variable.dormant.u64.L2"),
    ("dormant_cold_l3_vs_variable", "dormouse.dormant.u64.L3", "variable.dormant.u64.L3"),
    ("dormant_vs_tracing", "dormouse.dormant.u64", "tracing.dormant.u64"),
    ("dormant_vs_usdt", "dormouse.dormant.u64", "usdt.dormant.u64"),
    ("dormant_vs_uprobe", "dormouse.dormant.u64", "uprobe.dormant.u64"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_describe_the_difference_from_the_plain_case() {
        for (mode, case, threads, pressure, name) in [
            (Mode::Overwrite, "armed_u64", 1, "hot", "dormouse.armed.u64"),
            (Mode::Overwrite, "empty_str32", 1, "L2", "dormouse.empty.str32.L2"),
            (Mode::Overwrite, "armed_sites_10", 2, "hot", "dormouse.armed.u64.2-threads.10-sites"),
            (Mode::Overwrite, "rdtsc", 1, "hot", "rdtsc.armed.none"),
            (Mode::Overwrite, "load_u64", 1, "hot", "variable.dormant.u64"),
            (Mode::Discard, "armed_u64", 1, "hot", "dormouse.armed.u64.discard"),
        ] {
            let tool = RunningPeer { name: "dormouse", mode: Some(mode), engine: 0 };
            assert_eq!(plan::name(AXES, &plan::labels(&labels(&tool, case, threads, pressure))), name);
        }
        plan::assert_different_names(RATIOS.iter().map(|(name, ..)| *name));
    }
}
