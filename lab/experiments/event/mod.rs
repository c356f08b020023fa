//! Experiment `event`: what a tracepoint costs, dormant and armed, beside the tracers that people use.
//!
//! ```text
//!   engines       dormouse (overwrite), dormouse (discard, live consumer), floor, and every peer that is installed
//!   axes          fields: none, u64, ints3, str32      threads: 1, 2        sites: 1, 10, 1000
//!                 pressure: hot, L1, L2, L3 (a random walk of several times the cache), linear-L2
//!   not crossed   from the plain case (armed, u64, one thread, hot, one site) one axis at a time
//! ```
//! A cost is what a case takes beyond the empty loop of the same engine, threads, pressure and round.
//!
//! `dormant_cold_vs_lttng_ust` is over 1,000 sites that take turns, each with its code and data driven out of L2, as in a program that
//! has something else to do; with one site whose code is there, `dormant_cold_1_site_vs_lttng_ust`, a processor
//! hides most of the load that LTTng-UST's site needs.
//!
//! # Limits
//! Overwrite mode in 1 MiB: the cost of the mechanism with memory that fits a large cache. Discard mode is measured in bursts
//! that the buffer holds, with the consumer draining between them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dormouse_abi::record::RecordKind;
use dormouse_consumer::{Mode, Options, Session, Summary};
use dormouse_lab_harness::{Run, Walk};

use crate::engine::{Engine, engine_path};
use crate::engines::{self, Engines, Start};
use crate::peers::{PeerMode, Verification};
use crate::plan::{self, Axis, Plan, slot};
use crate::rounds::{self, Slot, Turn, WarmUp};
use crate::statistics::measurement;
use crate::{Experiment, Host, LabError, Labels, Measurement, RunOptions};

/// Our engine, which is also the floor's.
const ENGINE: &str = "dormouse-lab-engine";
/// Memory of the session in overwrite mode.
const OVERWRITE_BUDGET_BYTES: u64 = 1 << 20;
/// And of that in discard mode.
const DISCARD_BUDGET_BYTES: u64 = 64 << 20;

/// Rounds, and how long a turn of a slot lasts.
#[derive(Debug, Clone, Copy)]
struct Effort {
    is_quick: bool,
    hot: Duration,
    cold: Duration,
    /// Under pressure on the last cache each walk takes a long time.
    coldest: Duration,
}

impl Effort {
    fn new(is_quick: bool) -> Effort {
        let effort = |hot, cold, coldest| Effort {
            is_quick,
            hot: Duration::from_micros(hot),
            cold: Duration::from_micros(cold),
            coldest: Duration::from_micros(coldest),
        };
        if is_quick { effort(400, 1_500, 20_000) } else { effort(2_000, 10_000, 100_000) }
    }
}

/// A tool in the comparison.
#[derive(Debug, Clone)]
struct Tool {
    name: String,
    mode: Option<&'static str>,
    engine: usize,
    /// How much of the axes it goes through.
    width: Width,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    /// All axes.
    Full,
    /// Fields, threads, and pressure on the first two caches.
    Peer,
    /// The plain case, one and two threads.
    Plain,
}

/// One combination of the axes.
#[derive(Debug, Clone, Copy)]
struct Point<'a> {
    threads: usize,
    pressure: &'a str,
    walk: Walk,
}

const HOT: Point<'static> = Point { threads: 1, pressure: "hot", walk: Walk::None };

/// `tool.state.fields`, and what departs from the plain case: `dormouse.armed.u64.2-threads`, `dormouse.dormant.u64.L2`.
const AXES: &[Axis] = &[
    Axis::plain("tool"),
    Axis::plain("state"),
    Axis::plain("fields"),
    Axis { name: "threads", silent: "1", shown: "{}-threads" },
    Axis::without("pressure", "hot"),
    Axis { name: "sites", silent: "1", shown: "{}-sites" },
    Axis::without("mode", "overwrite"),
];

/// Cases of the plain circumstances, each with its empty loop; what an engine does not have is left out.
const CASES: [(&str, &str); 11] = [
    ("armed_none", "empty"),
    ("armed_ints3", "empty"),
    ("armed_zone", "empty"),
    ("dormant_u64", "empty"),
    ("rdtsc", "empty"),
    ("load_u64", "empty"),
    ("armed_str32", "empty_str32"),
    ("floor_str32", "empty_str32"),
    ("floor_none", "empty"),
    ("floor_u64", "empty"),
    ("floor_ints3", "empty"),
];

/// Adds what a tool goes through.
fn add_tool(
    plan: &mut Plan,
    engines: &[Engine],
    tool: &Tool,
    walks: &[(&'static str, Walk)],
    cpus: usize,
    effort: Effort,
) {
    let has = |case: &str| engines[tool.engine].has(case);
    let mut add = |case: &str, base: &str, point: Point<'_>| {
        let base = if has(base) { base } else { "empty" };
        if !has(case) || !has(base) {
            return;
        }
        let turn = Turn::Lasting(match (point.walk, point.pressure) {
            (Walk::None, _) => effort.hot,
            (_, "L3") => effort.coldest,
            _ => effort.cold,
        });
        let mut add = |case, base| {
            let slot = Slot { threads: point.threads, ..slot(tool.engine, case, point.walk, turn) };
            let labels = labels(tool, case, point);
            let pairs: Vec<(&str, &str)> = labels.iter().map(|(axis, value)| (axis.as_str(), value.as_str())).collect();
            plan.add(engines, slot, &pairs, base)
        };
        let base = add(base, None);
        add(case, base);
    };
    add("armed_u64", "empty", HOT);
    if cpus > 1 {
        add("armed_u64", "empty", Point { threads: 2, ..HOT });
    }
    if tool.width == Width::Plain {
        return;
    }
    CASES.iter().for_each(|(case, base)| add(case, base, HOT));
    if cpus > 1 {
        ["dormant_u64", "floor_u64"].iter().for_each(|case| add(case, "empty", Point { threads: 2, ..HOT }));
    }
    for (pressure, walk) in walks {
        let point = Point { threads: 1, pressure, walk: *walk };
        let (is_full, is_ours) = (tool.width == Width::Full, tool.name == "dormouse");
        let is_wanted = match *pressure {
            "L1" => is_full || !effort.is_quick,
            "L2" => true,
            "L3" => is_ours || is_full && !effort.is_quick,
            _ => is_ours,
        };
        if !is_wanted {
            continue;
        }
        ["armed_u64", "dormant_u64", "load_u64", "floor_u64"].iter().for_each(|case| add(case, "empty", point));
        // Over many sites, what a single one owes to where the linker put it evens out.
        if *pressure == "L2" || *pressure == "L3" && !effort.is_quick {
            add("dormant_sites_1000", "empty_sites_1000", point);
        }
    }
    // In a quick run there is no time for those of every peer.
    if effort.is_quick && tool.width == Width::Peer {
        return;
    }
    for count in ["10", "1000"] {
        for state in ["dormant", "armed"] {
            add(&format!("{state}_sites_{count}"), &format!("empty_sites_{count}"), HOT);
        }
    }
}

/// What a slot is of. A case's name is `STATE_FIELDS` or `STATE_sites_COUNT`.
fn labels(tool: &Tool, case: &str, point: Point<'_>) -> Labels {
    let (state, fields) = case.split_once('_').unwrap_or((case, if case == "empty" { "" } else { "none" }));
    let (fields, sites) = fields.strip_prefix("sites_").map_or((fields, "1"), |count| ("u64", count));
    let (tool_name, state) = match state {
        "floor" => ("floor", "armed"),
        "rdtsc" => ("rdtsc", "armed"),
        "load" => ("variable", "dormant"),
        _ => (tool.name.as_str(), state),
    };
    let threads = point.threads.to_string();
    let mode = tool.mode.filter(|_| tool_name == tool.name).unwrap_or_default();
    let all = [
        ("tool", tool_name),
        ("state", state),
        ("fields", fields),
        ("threads", &threads),
        ("pressure", point.pressure),
        ("sites", sites),
        ("mode", mode),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).map(|(axis, value)| (axis.into(), value.into())).collect()
}

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// By restartable sequences.
    Rseq,
    /// As without them.
    Atomics,
}

/// Sessions of our engine, in the order in which the engines are added; then comes the floor's, and then those by atomics.
const SESSIONS: [(Mode, u64); 2] = [(Mode::Overwrite, OVERWRITE_BUDGET_BYTES), (Mode::Discard, DISCARD_BUDGET_BYTES)];
/// Which engine is in no session.
const FLOOR: usize = SESSIONS.len();

/// Events amid which page faults are counted, of each case.
const FAULTS_OF: u64 = 10_000_000;

/// Counts page faults amid so many events, in each mode, by each way: a measurement for each, and first their sum.
fn record_path_faults(engines: &mut Engines, is_quick: bool) -> Result<Vec<Measurement>, LabError> {
    let cases: &[&str] =
        if is_quick { &["armed_u64"] } else { &["armed_u64", "armed_none", "armed_ints3", "armed_str32"] };
    let mut measurements = Vec::new();
    for (by, first) in [(By::Rseq, 0), (By::Atomics, FLOOR + 1)] {
        for (engine, (mode, _)) in (first..).zip(SESSIONS) {
            for case in cases {
                // By atomics, so many take seconds.
                let iterations = if is_quick && by == By::Atomics { FAULTS_OF / 10 } else { FAULTS_OF };
                let case = case.to_string();
                let fields = case.trim_start_matches("armed_").to_string();
                let run = Run { case, iterations, threads: 1, walk: Walk::None, beside: None };
                let timing = engines.all[engine].run(run)?;
                let by = if by == By::Rseq { "rseq" } else { "atomics" };
                let labels = plan::labels(&[("mode", mode.name()), ("by", by), ("fields", &fields)]);
                let name = format!("record_path_faults.{}.{by}.{fields}", mode.name());
                measurements.push(Measurement { labels, ..measurement(&name, "faults", &[timing.faults as f64]) });
            }
        }
    }
    let sum = measurements.iter().map(|measurement| measurement.median).sum();
    measurements.insert(0, measurement("record_path_faults", "faults", &[sum]));
    Ok(measurements)
}

/// A process of our engine, in a session of its own.
fn in_session(dir: &Path, mode: Mode, budget_bytes: u64, by: By) -> Result<Start, LabError> {
    let session = Session::create(&Options {
        budget_bytes,
        mode,
        context: RecordKind::Ids,
        patterns: vec!["lab:armed*".into()],
        command_line: ENGINE.into(),
        ..Options::new(engines::own_dir(dir)?.join("trace"))
    })?;
    let mut command = Command::new(engine_path(ENGINE)?);
    command.env("DORMOUSE_SESSION", session.socket());
    if by == By::Atomics {
        command.env("DORMOUSE_NO_RSEQ", "1");
    }
    let count = move |engine: Engine| {
        let emitted = engine.emitted();
        engine.finish()?;
        verified(&session.finish(), mode, emitted)
    };
    Ok((command, Box::new(count)))
}

/// What a session came to; that not all events are accounted for is an error.
pub(crate) fn verified(summary: &Summary, mode: Mode, emitted: u64) -> Result<Verification, LabError> {
    let is_ring = mode == Mode::Overwrite;
    let (arrived, lost) = (Some(summary.events), summary.lost + summary.lost_on_disk);
    let found = Verification { emitted, arrived, lost, is_ring, text: String::new() };
    if !found.holds() || is_ring && lost > 0 {
        let name = if is_ring { "overwrite" } else { "discard" };
        return Err(LabError::Engine(format!("{name}: {summary}, of {emitted} emitted")));
    }
    Ok(found)
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`]. A peer that is not installed is no error but a note.
pub fn run_event(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let effort = Effort::new(options.is_quick);
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let cpus = &options.cpus;
    let mut engines = Engines::new(options);
    let add_sessions = |engines: &mut Engines, by| {
        SESSIONS.into_iter().try_for_each(|(mode, budget_bytes)| {
            let dir = dir.path().to_path_buf();
            engines.add(move || in_session(&dir, mode, budget_bytes, by))
        })
    };
    add_sessions(&mut engines, By::Rseq)?;
    engines.add(|| Ok((Command::new(engine_path(ENGINE)?), Box::new(engines::unwatched))))?;
    add_sessions(&mut engines, By::Atomics)?;
    let tool = |name: &str, mode, engine, width| Tool { name: name.into(), mode, engine, width };
    let mut tools =
        vec![tool("dormouse", Some("overwrite"), 0, Width::Full), tool("dormouse", Some("discard"), 1, Width::Plain)];
    let mut notes = engines.add_peers("event", options.has_peers, dir.path());
    for peer in &engines.peers {
        let (mode, width) = match (peer.name, peer.mode) {
            (_, Some(PeerMode::Discard)) => (Some("discard"), Width::Plain),
            ("lttng-ust", mode) => (mode.map(|_| "overwrite"), Width::Full),
            (_, mode) => (mode.map(|_| "overwrite"), Width::Peer),
        };
        tools.push(tool(peer.name, mode, peer.engine, width));
    }
    notes.extend(engines.shortcomings(host));
    let walks = plan::walks(host);
    let mut plan = Plan::new(AXES);
    for tool in &tools {
        add_tool(&mut plan, &engines.all, tool, &walks, cpus.len(), effort);
    }
    // The floor's cases are in our engine; each is measured once, by the engine that is in no session.
    plan.planned.retain(|planned| planned.slot.engine != FLOOR);
    let floor = tool("floor", None, FLOOR, Width::Full);
    for planned in &mut plan.planned {
        let of = planned.labels.get("tool").map(String::as_str);
        if matches!(of, Some("floor" | "rdtsc" | "variable")) && planned.slot.engine == 0 {
            planned.slot.engine = floor.engine;
        }
    }
    let (count, processes) = (options.rounds(10, 80), rounds::processes(options.is_quick));
    let measured = plan.measure(&mut engines, count, processes, WarmUp::Cut, "event")?;
    let faults = record_path_faults(&mut engines, options.is_quick)?;

    let peers: Vec<(&str, usize)> = engines.peers.iter().map(|peer| (peer.name, peer.engine)).collect();
    let found = engines.finish()?;
    notes.extend(peers.into_iter().map(|(name, engine)| found[engine].note(name)));
    let counts = |engine: usize| (found[engine].emitted, found[engine].arrived.unwrap_or(0), found[engine].lost);
    let ((emitted, last, _), (all, arrived, lost)) = (counts(0), counts(1));
    notes.push(format!("dormouse, overwrite: {emitted} events emitted, the last {last} are in the trace"));
    notes.push(format!("dormouse, discard: {all} events emitted, {arrived} in the trace, {lost} lost"));
    notes.push(format!(
        "each cost is less the empty loop of its engine in the same round; {} rounds{}, {processes} processes of each engine, processors \
         {cpus:?}",
        count - measured.warm_up,
        if measured.warm_up > 0 { format!(" after {} of warm-up", measured.warm_up) } else { String::new() }
    ));
    notes.push(format!(
        "record_path_faults: the kernel's count (getrusage) amid {FAULTS_OF} events of each kind{}",
        if options.is_quick { ", a tenth of that by atomics" } else { "" }
    ));
    let mut experiment = plan::experiment("event", vec![(plan, measured)], &RATIOS, notes, host);
    experiment.measurements.extend(faults);
    Ok(experiment)
}

/// Name, numerator, denominator.
const RATIOS: [(&str, &str, &str); 35] = [
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
    ("variable_linear_vs_random_walk", "variable.dormant.u64.linear-L2", "variable.dormant.u64.L2"),
    ("dormant_vs_tracing", "dormouse.dormant.u64", "tracing.dormant.u64"),
    ("dormant_vs_usdt", "dormouse.dormant.u64", "usdt.dormant.u64"),
    ("dormant_vs_uprobe", "dormouse.dormant.u64", "uprobe.dormant.u64"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_departs_from_the_plain_case() {
        let tool = Tool { name: "dormouse".into(), mode: Some("overwrite"), engine: 0, width: Width::Full };
        let of = |case: &str, point| plan::name(AXES, &labels(&tool, case, point));
        assert_eq!(of("armed_u64", HOT), "dormouse.armed.u64");
        assert_eq!(of("empty", HOT), "dormouse.empty");
        assert_eq!(of("empty_str32", HOT), "dormouse.empty.str32");
        assert_eq!(of("dormant_u64", Point { pressure: "L2", ..HOT }), "dormouse.dormant.u64.L2");
        assert_eq!(of("armed_sites_10", Point { threads: 2, ..HOT }), "dormouse.armed.u64.2-threads.10-sites");
        assert_eq!(of("rdtsc", HOT), "rdtsc.armed.none");
        assert_eq!(of("load_u64", HOT), "variable.dormant.u64");
        let discard = Tool { mode: Some("discard"), ..tool };
        assert_eq!(plan::name(AXES, &labels(&discard, "armed_u64", HOT)), "dormouse.armed.u64.discard");
    }

    #[test]
    fn ratios_have_different_names() {
        crate::plan::assert_different_names(RATIOS.iter().map(|(name, ..)| *name));
    }
}
