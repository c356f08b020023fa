//! Experiment `compile-job`: the cost of tracing a real job, a C project built by make.
//!
//! The cost of one event says little about a program. A build starts a hundred processes that live for a tenth of a
//! second, allocates seven million times, and keeps its CPUs busy all the time, so draining and writing the trace take
//! time from the build. The mailing list's yardstick for a tracer was therefore a kernel build, dormant and armed.
//!
//! ```text
//!   sources ── copy ──▶ a directory in memory          each round, in an order drawn for it:
//!                          │                              none               make -jN
//!                          │ make -jN   ◀── timed ──      dormant            + our library, without session
//!                          ▼                              armed-overwrite    + a session that keeps the last events
//!                       products, compared                armed-discard      + a session that writes all events to disk
//!                       and removed                       lttng-ust-dormant  + LTTng's library, with nothing enabled
//!                                                         lttng-ust          + a session that keeps the last events
//! ```
//! Full runs build the goal `long` of the Makefile, where it has one. A pilot of a few rounds tells how many rounds the
//! paper's effects need; these have the paper's ways only.
//!
//! Full runs also have Desnoyers's (2009) steps, if `cargo xtask lab compile-job` has built them ([`VARIANTS`]): in
//! `armed-overwrite-memcpy` a called memcpy copies an event's fields, in `armed-overwrite-specialised` a called
//! function stores each, in `armed-overwrite` the stores are inlined. Further builds are sampled: `profile.STEP` is the
//! share of samples in our library. Only make is timed, by wall clock and getrusage(2). Each way is compared with
//! `none` of its own round.
//!
//! Every build must have the products of the builds without any library, byte for byte where those agree. Each trace of
//! ours is read again, and LTTng's buffers must hold events after the first armed build. The time of LTTng's daemons is
//! in the wall clock only; that of our own session is also in `armed-….owner`. A trace is removed after its build,
//! mostly before the system writes it back.

pub(crate) mod project;
pub(crate) mod sampler;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dormouse_abi::record::RecordKind;
use dormouse_owner::{Mode, Options, Session, Summary, find_libc_library};
use dormouse_testing::lttng::{self, LttngSession};

use crate::engine::find_part;
use crate::plan::{self, Samples, in_turn, labels};
use crate::rounds::{self, Effect};
use crate::statistics::power::Precision;
use crate::statistics::{ROUNDS_MIN, measurement};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};
use project::{Build, Goals, Products, Project};
use sampler::Sampler;
use signal_hook::iterator::Signals;

/// Features of `lab/preload`. Each makes a variant of the preload library, `libdormouse_libc-FEATURE.so`.
pub const VARIANTS: [&str; 2] = ["memcpy", "specialised"];

/// A way to build.
struct Way {
    name: &'static str,
    tool: &'static str,
    /// Mode of its session, if it has one.
    mode: Option<Mode>,
    /// Name of the way in the profile, if it is sampled.
    step: Option<&'static str>,
}

const OURS: &str = "dormouse";
const LTTNG: &str = "lttng-ust";
const WAYS: [Way; 8] = [
    Way { name: "none", tool: "none", mode: None, step: None },
    Way { name: "dormant", tool: OURS, mode: None, step: Some("dormant") },
    Way { name: "armed-overwrite-memcpy", tool: OURS, mode: Some(Mode::Overwrite), step: Some(VARIANTS[0]) },
    Way { name: "armed-overwrite-specialised", tool: OURS, mode: Some(Mode::Overwrite), step: Some(VARIANTS[1]) },
    Way { name: "armed-overwrite", tool: OURS, mode: Some(Mode::Overwrite), step: Some("inlined") },
    Way { name: "armed-discard", tool: OURS, mode: Some(Mode::Discard), step: None },
    Way { name: "lttng-ust-dormant", tool: LTTNG, mode: None, step: None },
    Way { name: "lttng-ust", tool: LTTNG, mode: Some(Mode::Overwrite), step: None },
];

/// Effects on the time of a build that the paper has found: two ways, and the ratio of their times less 1. Other ways
/// have the pilot's rounds only.
const EFFECTS: [(&str, &str, f64); 4] = [
    ("dormant", "none", 0.031),
    ("armed-overwrite-memcpy", "none", 0.110),
    ("armed-overwrite-specialised", "armed-overwrite-memcpy", 0.008),
    ("armed-overwrite", "armed-overwrite-specialised", 0.009),
];

/// LTTng's library that wraps libc, as the loader finds it.
const LTTNG_LIBRARY: &str = "liblttng-ust-libc-wrapper.so";

/// Figures of a build: endings of their names, and units. All but the first two belong to our sessions; the owner's
/// time is the CPU time of this process during the build.
const FIGURES: [(&str, &str); 7] = [
    (".wall", "s"),
    (".cpu", "s"),
    (".owner", "s"),
    (".events", "count"),
    (".events_lost", "count"),
    (".programs", "count"),
    (".trace", "bytes"),
];

/// Maximum number of rounds of a full experiment.
const ROUNDS_MAX: usize = 20;

/// State, and first part of the name, of figures that are shares of samples in our library.
const PROFILE: &str = "profile";

/// Returns the project's directory: the one that the caller names, else the one in `DORMOUSE_LAB_PROJECT`, else the
/// sources that `cargo xtask demo` leaves beside this program.
///
/// # Errors
/// [`LabError::Project`] says how to get one.
pub fn find_project(named: Option<&Path>) -> Result<PathBuf, LabError> {
    let has_makefile = |dir: &Path| ["GNUmakefile", "makefile", "Makefile"].iter().any(|name| dir.join(name).is_file());
    let by_environment = || std::env::var_os("DORMOUSE_LAB_PROJECT").filter(|path| !path.is_empty()).map(PathBuf::from);
    match named.map(Path::to_owned).or_else(by_environment).or_else(|| find_part("../demo/lua")) {
        Some(dir) if has_makefile(&dir) => Ok(dir),
        Some(dir) => Err(LabError::Project(format!("{} has no Makefile; name the directory of one", dir.display()))),
        None => Err(LabError::Project(
            "compile-job needs a C project to build: `cargo xtask fetch-lua --long DIR` makes one; then give --project DIR or set \
             DORMOUSE_LAB_PROJECT=DIR"
                .into(),
        )),
    }
}

/// Runs the experiment by name; it does not use the host.
pub(super) fn run(options: &RunOptions, _: &Host) -> Result<Experiment, LabError> {
    let variants = find_part("variants").filter(|_| !options.is_quick);
    run_compile_job(options, &find_libc_library()?, variants.as_deref())
}

/// Runs the experiment with a preload library, and with those of its [`VARIANTS`] that are in the directory `variants`.
///
/// # Errors
/// See [`LabError`]. All sessions are stopped and all files removed.
pub fn run_compile_job(options: &RunOptions, preload: &Path, variants: Option<&Path>) -> Result<Experiment, LabError> {
    let source = find_project(options.project.as_deref())?;
    let mut signals = plan::signals()?;
    let project = Project::copy(&source, Goals::new(options.is_quick, 3, Goals::Long))?;
    let traces = project::directory_in("/var/tmp")?;
    let mut notes = vec![project.describe(&source), format!("traces are written to {}", project::place(traces.path()))];
    let lttng = options.has_peers.then(|| start_lttng(traces.path()));
    notes.extend(lttng.as_ref().map(|lttng| match lttng {
        Ok(_) => format!("lttng-ust: {}; dormant, its daemon runs and nothing is enabled", lttng::CONFIGURATION),
        Err(why) => format!("lttng-ust: not available: {why}"),
    }));
    let lttng = lttng.and_then(Result::ok);
    // Two builds show which products can be compared, and warm the caches.
    let build = || project.build::<OsString>(&[]);
    let reference = Products::reference(&build()?.products, &build()?.products);
    notes.push(reference.describe());

    let library = |way: &Way| match way.step {
        _ if way.tool == LTTNG => lttng.as_ref().map(|_| LTTNG_LIBRARY.into()),
        Some(step) if VARIANTS.contains(&step) => {
            Some(variants?.join(format!("libdormouse_libc-{step}.so"))).filter(|file| file.is_file())
        }
        _ => Some(preload.to_owned()),
    };
    let mut all = Vec::new();
    for way in &WAYS {
        match library(way) {
            Some(library) => all.push((way, library)),
            None if way.tool == OURS && !options.is_quick => {
                notes.push(format!("{}: not built; `cargo xtask lab compile-job` does so", way.name));
            }
            None => {}
        }
    }
    let job = Job { project, traces, lttng, reference };
    let pilot = options.rounds(2, ROUNDS_MIN);
    let mut samples = Samples::new();
    let measure = |way: &Way, library: &Path, round, samples: &mut Samples| -> Result<(), LabError> {
        let figures = job.build(way, library, round, None)?;
        let count = if way.tool == OURS && way.mode.is_some() { FIGURES.len() } else { 2 };
        // The first round is checked and not counted.
        for ((suffix, unit), figure) in FIGURES.into_iter().zip(figures).take(if round > 0 { count } else { 0 }) {
            samples.entry((format!("{}{suffix}", way.name), unit)).or_default().push(figure);
        }
        Ok(())
    };
    in_turn("compile-job: pilot", 1 + pilot, all.len(), Some(&mut signals), |round, index, bar| {
        let (way, library) = &all[index];
        bar.set_message(way.name);
        measure(way, library, round, &mut samples)
    })?;
    let rounds = if options.is_quick {
        pilot
    } else {
        rounds::plan(&effects(&samples), pilot, options.rounds(0, ROUNDS_MAX), &mut notes)
    };
    let of_paper: Vec<_> =
        all.iter().filter(|(way, _)| EFFECTS.iter().any(|(of, to, _)| [of, to].contains(&&way.name))).collect();
    in_turn("compile-job", rounds - pilot, of_paper.len(), Some(&mut signals), |round, index, bar| {
        let (way, library) = of_paper[index];
        bar.set_message(way.name);
        measure(way, library, 1 + pilot + round, &mut samples)
    })?;
    notes.push(format!(
        "{rounds} rounds, each in an order of its own, and one before them that does not count; the first {pilot} are the pilot, and \
         only they have ways that the paper does not compare"
    ));
    profile(options, &job, &all, &mut signals, &mut samples, &mut notes)?;
    Ok(experiment(&samples, notes))
}

/// Samples builds, and adds the shares of samples in our library; a note if that is impossible.
fn profile(
    options: &RunOptions,
    job: &Job,
    all: &[(&Way, PathBuf)],
    signals: &mut Signals,
    samples: &mut Samples,
    notes: &mut Vec<String>,
) -> Result<(), LabError> {
    let rounds = options.rounds(0, ROUNDS_MIN);
    let steps: Vec<_> = all.iter().filter_map(|(way, library)| Some((way, library, way.step?))).collect();
    let mut sampler = Sampler::find(job.project.ticks_per_s())?
        .ok_or("the sampler is not built; `cargo xtask lab` does so".to_owned());
    let mut shares = Samples::new();
    in_turn("compile-job: profile", rounds, steps.len(), Some(signals), |round, index, bar| {
        let (way, library, step) = steps[index];
        bar.set_message(way.name);
        if let Ok(found) = &mut sampler {
            job.build(way, library, 1 + round, Some(found))?;
            match found.read()? {
                Ok(ledger) => {
                    let share = (format!("{PROFILE}.{step}"), "% of time");
                    shares.entry(share).or_default().push(100.0 * ledger.share);
                }
                Err(why) => sampler = Err(why),
            }
        }
        Ok(())
    })?;
    match sampler {
        Err(why) if rounds > 0 => notes.push(format!("{PROFILE} not available: {why}")),
        _ => samples.extend(shares),
    }
    Ok(())
}

/// Returns the effects of the paper on the wall-clock time, with their precision by these rounds.
fn effects(samples: &Samples) -> Vec<Effect> {
    let of = |way: &str| samples.get(&(format!("{way}.wall"), "s"));
    let found = EFFECTS.iter().filter_map(|(way, to, size)| {
        let precision = Precision::of_ratio(of(way)?, of(to)?);
        Some(Effect { what: format!("{way} to {to}"), size: *size, precision })
    });
    found.collect()
}

/// Starts a session of LTTng's in which nothing is enabled, or returns the reason why it cannot.
fn start_lttng(dir: &Path) -> Result<LttngSession, String> {
    // If the loader does not find a library, it prints a message to standard error and continues.
    let output = Command::new("true").env("LD_PRELOAD", LTTNG_LIBRARY).stdin(Stdio::null()).output();
    if !output.is_ok_and(|output| output.status.success() && output.stderr.is_empty()) {
        return Err(format!("{LTTNG_LIBRARY} is not installed ({})", lttng::INSTALL));
    }
    record_lttng(Mode::Overwrite, &[], dir)
}

fn record_lttng(mode: Mode, patterns: &[&str], dir: &Path) -> Result<LttngSession, String> {
    LttngSession::start(&format!("--{} {}", mode.name(), lttng::BUFFERS), patterns, &[], dir)
}

/// Common data of all builds.
struct Job {
    project: Project,
    traces: tempfile::TempDir,
    /// LTTng's session in which nothing is enabled.
    lttng: Option<LttngSession>,
    reference: Products,
}

impl Job {
    fn build(&self, way: &Way, library: &Path, round: usize, of: Option<&mut Sampler>) -> Result<[f64; 7], LabError> {
        let mut environment = match of {
            _ if way.tool == "none" => Vec::new(),
            Some(sampler) => sampler.environment("library", Some(library))?,
            None => vec![("LD_PRELOAD", library.into())],
        };
        let mut counts = [0; 4];
        let build = match (way.tool, way.mode) {
            (OURS, Some(mode)) => {
                let dir = tempfile::tempdir_in(self.traces.path());
                let dir = dir.map_err(|error| LabError::System { what: "cannot make a trace's directory", error })?;
                let rules = vec!["libc:*".into()];
                // The budget is the default of `dormouse record`.
                let options = Options { mode, rules, context: RecordKind::Ids, ..Options::new(dir.path().into()) };
                let session = Session::create(&Options { command_line: "make".into(), ..options })?;
                environment.extend(session.environment()?);
                let build = self.project.build(&environment);
                let summary = session.finish();
                let build = build?;
                counts = checked(&summary, dir.path())?;
                build
            }
            (LTTNG, mode) => {
                let arm = |mode| record_lttng(mode, &["lttng_ust_libc:*"], self.traces.path());
                let armed = mode.map(arm).transpose().map_err(LabError::Peer)?;
                environment.extend(armed.as_ref().or(self.lttng.as_ref()).into_iter().flat_map(LttngSession::env));
                let build = self.project.build(&environment)?;
                if let Some(armed) = armed
                    && round == 0
                    && armed.finish().map_err(LabError::Peer)?.arrived == 0
                {
                    return Err(LabError::Project("LTTng's buffers hold no event after an armed build".into()));
                }
                build
            }
            _ => self.project.build(&environment)?,
        };
        self.reference.compare(&build.products, way.name)?;
        let Build { wall_s, cpu_s, owner_s, .. } = build;
        let [events, events_lost, programs, bytes] = counts.map(|count| count as f64);
        Ok([wall_s, cpu_s, owner_s, events, events_lost, programs, bytes])
    }
}

/// Reads a trace again and checks that it matches the session's counts. Returns the number of events, of lost events,
/// of programs and of bytes.
fn checked(summary: &Summary, dir: &Path) -> Result<[u64; 4], LabError> {
    let stats = dormouse_reader::TraceFiles::open(dir).map_err(|error| LabError::Project(error.to_string()))?.stats();
    let lost = summary.losses.lost();
    let (found, told) = ((stats.events, stats.events_lost), (summary.events, lost));
    if summary.events == 0 || found != told || !stats.warnings.is_empty() {
        let damage = stats.warnings.join("; ");
        return Err(LabError::Project(format!(
            "events and losses: {found:?} in a trace, {told:?} by its session's count; damage: {damage}"
        )));
    }
    Ok([summary.events, lost, summary.processes, summary.bytes])
}

/// Returns the results of the builds; all ways are compared with the first one.
fn experiment(samples: &Samples, mut notes: Vec<String>) -> Experiment {
    let (mut measurements, mut ratios) = (Vec::new(), Vec::new());
    for ((name, unit), rounds) in samples {
        let (start, end) = name.split_once('.').unwrap_or_default();
        let is_of = |way: &&Way| way.name == start || start == PROFILE && way.step == Some(end);
        let mut pairs = WAYS.iter().find(is_of).map_or(vec![], |way| vec![("way", way.name), ("tool", way.tool)]);
        pairs.extend((start == PROFILE).then_some(("state", PROFILE)));
        measurements.push(Measurement { labels: labels(&pairs), ..measurement(name, unit, rounds) });
    }
    for (way, (figure, suffix)) in WAYS[1..].iter().flat_map(|way| [("wall", ""), ("cpu", "_cpu")].map(|of| (way, of)))
    {
        let name = format!("{}_vs_none{suffix}", way.name.replace('-', "_"));
        let [of, to] = [way, &WAYS[0]].map(|way| format!("{}.{figure}", way.name));
        ratios.extend(plan::ratios(&[(&name, &of, &to)], &measurements, &mut notes));
    }
    Experiment { name: "compile-job".into(), measurements, ratios, notes, ..Experiment::default() }
}
