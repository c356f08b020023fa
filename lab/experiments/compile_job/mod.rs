//! Experiment `compile-job`: what tracing costs a real job, a C project built by make.
//!
//! # The problem
//! The cost of one event says little about a program: a build starts a hundred processes that live for a tenth of a second,
//! allocates seven million times, and has its processors busy all the time, so that whoever drains and writes the trace
//! takes his time from the build. The mailing list's yardstick for a tracer was therefore a kernel build, dormant and armed.
//!
//! # The picture
//! ```text
//!   sources ── copy ──▶ a directory in memory          each round, in an order drawn for it:
//!                          │                              none               make -jN
//!                          │ make clean                   dormant            + our library, no session
//!                          │ make -jN   ◀── timed ──      armed-overwrite    + a session that keeps the last events
//!                          ▼                              armed-discard      + a session that writes all of them to disk
//!                       products, compared                lttng-ust-dormant  + LTTng's library, no session
//!                                                         lttng-ust          + a session that keeps the last events
//! ```
//! In full runs, Desnoyers's (2009) steps besides, where `cargo xtask lab compile-job` has built them: `armed-overwrite-memcpy`, our library
//! with the fields copied by a called memcpy, and `armed-overwrite-specialised`, by a called function's single stores;
//! `armed-overwrite` writes them inlined. [`VARIANTS`] are in the directory `variants` beside this program, or where
//! [`ENV_VARIANTS`] says. Then builds of their own that are sampled: `profile.WAY` is the share of samples in our library.
//!
//! What is timed is make alone, from its start to its end, with wall clock and `wait4(2)`; sessions are made before and ended
//! afterwards. Each way is compared with `none` of its own round.
//!
//! # What is verified
//! * Every build gives what the builds without any library gave, byte for byte where those agree with each other.
//! * Each trace of ours is read again: events and losses are what the session has told.
//! * LTTng's buffers hold events after the first armed build.
//!
//! # Limits
//! * Time that LTTng's daemons take is in the wall clock only. That of our own session is in `armed-….owner` besides.
//! * A trace is removed after its build, mostly before the system writes it back: the cost of the disk itself is not in here.

pub(crate) mod project;
pub(crate) mod sampler;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_abi::record::RecordKind;
use dormouse_consumer::{Mode, Options, Session, Summary, TraceFiles, find_libc_library};
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::lttng::{self, LttngMode, LttngSession};
use crate::plan::labels;
use crate::statistics::{measurement, ratio};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};
use project::{Build, Products, Project};
use sampler::Sampler;

/// Environment variable: the project that is built, where the command line names none.
pub const ENV_PROJECT: &str = "DORMOUSE_LAB_PROJECT";

/// Environment variable: the directory of the variants of the preload library.
pub const ENV_VARIANTS: &str = "DORMOUSE_LAB_VARIANTS";
/// Variants of the preload library: the file, and the feature of `lab/preload` that it is built with.
pub const VARIANTS: [(&str, &str); 2] =
    [("libdormouse_libc-memcpy.so", "memcpy"), ("libdormouse_libc-specialised.so", "specialised")];

/// Memory of a session: what `dormouse record` takes by default.
const BUDGET_BYTES: u64 = 16 << 20;

/// How much to measure, and on what.
#[derive(Debug, Clone)]
pub struct CompileJobOptions {
    /// A directory with a Makefile; see [`find_project`] for where it is looked for if there is none.
    pub project: Option<PathBuf>,
    /// Rounds that count; one more, the first, does not.
    pub rounds: u32,
    /// Build so many of the project's files only, if there are that many and make can build them one by one.
    pub file_count_max: Option<usize>,
    /// Also measure LTTng-UST, where it is installed.
    pub with_lttng: bool,
    /// The preload library, if it is not to be looked for.
    pub preload: Option<PathBuf>,
    /// Rounds that are sampled, after the others.
    pub profile_rounds: u32,
    /// The directory of [`VARIANTS`], if these are to be measured too, as far as they are there.
    pub variants: Option<PathBuf>,
}

impl CompileJobOptions {
    /// All of the project, twenty rounds, and every variant; or a few files, two rounds, and none.
    pub fn new(options: &RunOptions) -> CompileJobOptions {
        CompileJobOptions {
            project: options.project.clone(),
            rounds: options.rounds(2, 20) as u32,
            file_count_max: options.is_quick.then_some(3),
            with_lttng: options.has_peers,
            preload: None,
            profile_rounds: options.rounds(0, 8) as u32,
            variants: (!options.is_quick).then(variants_dir).flatten(),
        }
    }
}

fn variants_dir() -> Option<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("variants"));
    std::env::var_os(ENV_VARIANTS).map(PathBuf::from).or_else(beside)
}

const NAME: &str = "compile-job";

/// One way to build.
#[derive(Debug)]
struct Way {
    name: &'static str,
    tool: &'static str,
    /// Of a session that there is.
    mode: Option<Mode>,
    /// File of the preload library, where it is another.
    variant: Option<&'static str>,
    /// What its samples are called.
    profile: Option<&'static str>,
}

impl Way {
    const fn of(name: &'static str, tool: &'static str, mode: Option<Mode>) -> Way {
        Way { name, tool, mode, variant: None, profile: None }
    }

    /// A step of the paper's.
    const fn step(self, profile: &'static str, variant: Option<&'static str>) -> Way {
        Way { profile: Some(profile), variant, ..self }
    }

    fn is_traced_by_us(&self) -> bool {
        self.tool == "dormouse" && self.mode.is_some()
    }
}

const OVERWRITE: Option<Mode> = Some(Mode::Overwrite);
const WAYS: [Way; 8] = [
    Way::of("none", "none", None),
    Way::of("dormant", "dormouse", None).step("dormant", None),
    Way::of("armed-overwrite-memcpy", "dormouse", OVERWRITE).step("memcpy", Some(VARIANTS[0].0)),
    Way::of("armed-overwrite-specialised", "dormouse", OVERWRITE).step("specialised", Some(VARIANTS[1].0)),
    Way::of("armed-overwrite", "dormouse", OVERWRITE).step("inlined", None),
    Way::of("armed-discard", "dormouse", Some(Mode::Discard)),
    Way::of("lttng-ust-dormant", LTTNG, None),
    Way::of("lttng-ust", LTTNG, OVERWRITE),
];

/// What the builds of one way came to, round by round.
#[derive(Debug, Default)]
struct Samples {
    wall_s: Vec<f64>,
    cpu_s: Vec<f64>,
    /// What this process, which holds the session, has used meanwhile.
    owner_s: Vec<f64>,
    summaries: Vec<Summary>,
}

/// Where a project is: what the caller names, else the environment, else the sources that `cargo xtask demo` leaves beside
/// this program.
///
/// # Errors
/// [`LabError::Project`] says how to get one.
pub fn find_project(named: Option<&Path>) -> Result<PathBuf, LabError> {
    let of_environment = || std::env::var_os(ENV_PROJECT).filter(|path| !path.is_empty()).map(PathBuf::from);
    let beside = || {
        let exe = std::env::current_exe().ok()?;
        // Programs are in a directory of cargo's target directory, tests one further down.
        let places = exe.ancestors().skip(2).take(2).map(|dir| dir.join("demo/lua"));
        places.into_iter().find(|dir| project::has_makefile(dir))
    };
    match named.map(Path::to_owned).or_else(of_environment).or_else(beside) {
        Some(dir) if project::has_makefile(&dir) => Ok(dir),
        Some(dir) => Err(LabError::Project(format!("{} has no Makefile; name the directory of one", dir.display()))),
        None => Err(LabError::Project(format!(
            "compile-job needs a C project to build: `cargo xtask fetch-lua DIR` makes one; then give --project DIR or set \
             {ENV_PROJECT}=DIR"
        ))),
    }
}

/// Runs the experiment as it is run by name; the host is of no use to it.
pub(super) fn run(options: &RunOptions, _: &Host) -> Result<Experiment, LabError> {
    run_compile_job(&CompileJobOptions::new(options))
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`]. Whatever was started is stopped, and what was made is removed.
pub fn run_compile_job(options: &CompileJobOptions) -> Result<Experiment, LabError> {
    let source = find_project(options.project.as_deref())?;
    let preload = options.preload.clone().map_or_else(find_libc_library, Ok)?;
    let interrupted = Interrupts::watch()?;
    let mut notes = Vec::new();
    let project = Project::copy(&source, options.file_count_max)?;
    notes.push(project.describe(&source));
    let traces = disk_directory()?;
    notes.push(format!("traces are written to {}", traces.path().display()));
    let lttng = options.with_lttng.then(|| Lttng::start(traces.path())).transpose();
    let lttng = lttng.unwrap_or_else(|reason| {
        notes.push(format!("lttng-ust: not available: {reason}"));
        None
    });
    if lttng.is_some() {
        notes.push(format!("lttng-ust: {}; dormant, its daemon runs and nothing is enabled", lttng::CONFIGURATION));
    }
    // Two builds tell what may be compared, and warm the caches.
    let reference = Products::reference(&project.build(&NOTHING)?.products, &project.build(&NOTHING)?.products);
    notes.push(reference.describe());

    let variant = |way: &Way| way.variant.zip(options.variants.as_ref()).map(|(file, dir)| dir.join(file));
    let is_there = |way: &Way| variant(way).is_some_and(|file| file.is_file());
    if let Some(dir) = &options.variants
        && let Some(way) = WAYS.iter().find(|way| way.variant.is_some() && !is_there(way))
    {
        notes.push(format!("{}: not built in {}; `cargo xtask lab compile-job` does so", way.name, dir.display()));
    }
    let ways: Vec<&Way> = WAYS
        .iter()
        .filter(|way| lttng.is_some() || way.tool != LTTNG)
        .filter(|way| way.variant.is_none() || is_there(way))
        .collect();
    let libraries = ways.iter().map(|way| variant(way).unwrap_or_else(|| preload.clone())).collect();
    let samples = ways.iter().map(|_| Samples::default()).collect();
    let mut job = Job { project, libraries, traces, lttng, reference, samples };
    let progress = progress("compile-job", (options.rounds + 1) as usize * ways.len());
    for round in 0..=options.rounds {
        for index in order(ways.len(), round) {
            progress.set_message(ways[index].name);
            job.run(ways[index], index, round)?;
            progress.inc(1);
            interrupted.check()?;
        }
    }
    progress.finish_and_clear();
    notes.push(format!(
        "{} rounds, each in an order of its own, and one before them that does not count",
        options.rounds
    ));
    let profile = if options.profile_rounds > 0 { job.profile(options, &ways, &interrupted)? } else { Ok(Vec::new()) };
    let mut experiment = job.experiment(&ways, notes);
    match profile {
        Ok(shares) => experiment.measurements.extend(shares),
        Err(why) => experiment.notes.push(format!("profile not available: {why}")),
    }
    Ok(experiment)
}

pub(crate) fn progress(what: &str, len: usize) -> ProgressBar {
    // Nothing is drawn where standard error is no terminal.
    let bar = ProgressBar::new(len as u64);
    if let Ok(style) =
        ProgressStyle::with_template(&format!("{what} {{wide_bar}} {{pos}}/{{len}} {{msg:17}} {{eta:>4}} left"))
    {
        bar.set_style(style);
    }
    bar
}

/// The order of a round: a permutation drawn from its number.
pub(crate) fn order(len: usize, round: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(round.into()));
    order
}

/// A directory that is not in memory, if there is any.
fn disk_directory() -> Result<tempfile::TempDir, LabError> {
    let places = [PathBuf::from("/var/tmp"), std::env::temp_dir(), PathBuf::from(".")];
    let on_disk = places.iter().find(|place| !project::is_in_memory(place));
    let failed = |error| LabError::System { what: "cannot make a directory for traces; set TMPDIR", error };
    tempfile::Builder::new().prefix("dormouse-lab-").tempdir_in(on_disk.unwrap_or(&places[1])).map_err(failed)
}

/// Signals that end the experiment in good order.
struct Interrupts {
    flag: Arc<AtomicBool>,
    ids: Vec<signal_hook::SigId>,
}

impl Interrupts {
    fn watch() -> Result<Interrupts, LabError> {
        let flag = Arc::new(AtomicBool::new(false));
        let register = |signal| signal_hook::flag::register(signal, Arc::clone(&flag));
        let ids = [SIGHUP, SIGINT, SIGTERM].into_iter().map(register).collect::<Result<_, _>>();
        let ids = ids.map_err(|error| LabError::System { what: "cannot handle signals", error })?;
        Ok(Interrupts { flag, ids })
    }

    fn check(&self) -> Result<(), LabError> {
        if self.flag.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) }
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for id in &self.ids {
            signal_hook::low_level::unregister(*id);
        }
    }
}

const LTTNG: &str = "lttng-ust";
/// LTTng's library in front of libc, as the loader finds it.
const LTTNG_LIBRARY: &str = "liblttng-ust-libc-wrapper.so";

/// LTTng beside us.
struct Lttng {
    /// A session in which nothing is enabled.
    dormant: LttngSession,
}

impl Lttng {
    fn start(dir: &Path) -> Result<Lttng, String> {
        // The loader says on standard error that it does not find a library, and goes on without.
        let output = Command::new("true").env("LD_PRELOAD", LTTNG_LIBRARY).stdin(Stdio::null()).output();
        if !output.is_ok_and(|output| output.status.success() && output.stderr.is_empty()) {
            return Err(format!("{LTTNG_LIBRARY} is not installed ({})", lttng::INSTALL));
        }
        Ok(Lttng { dormant: LttngSession::start(LttngMode::Overwrite, &[], dir)? })
    }

    /// A session that keeps the last of all of libc's events.
    fn arm(&self, dir: &Path) -> Result<LttngSession, String> {
        LttngSession::start(LttngMode::Overwrite, &["lttng_ust_libc:*"], dir)
    }

    fn environment(&self, session: &LttngSession) -> Vec<(&'static str, OsString)> {
        session.env().into_iter().chain([("LD_PRELOAD", LTTNG_LIBRARY.into())]).collect()
    }
}

/// A build, what our process took meanwhile, and what its session has counted.
struct Built {
    build: Build,
    owner_s: f64,
    summary: Option<Summary>,
}

/// No variables.
const NOTHING: [(&str, &str); 0] = [];

struct Job {
    project: Project,
    /// By way.
    libraries: Vec<PathBuf>,
    traces: tempfile::TempDir,
    lttng: Option<Lttng>,
    reference: Products,
    /// By way.
    samples: Vec<Samples>,
}

impl Job {
    /// One build. The first round is looked at and forgotten.
    fn run(&mut self, way: &Way, index: usize, round: u32) -> Result<(), LabError> {
        let built = self.build(way, index, round, None)?;
        if round > 0 {
            let samples = &mut self.samples[index];
            samples.wall_s.push(built.build.wall_s);
            samples.cpu_s.push(built.build.cpu_s);
            samples.owner_s.push(built.owner_s);
            samples.summaries.extend(built.summary);
        }
        Ok(())
    }

    fn build(&self, way: &Way, index: usize, round: u32, sampler: Option<&mut Sampler>) -> Result<Built, LabError> {
        let library = &self.libraries[index];
        let mut environment = match sampler {
            Some(sampler) => sampler.environment("library", Some(library))?.to_vec(),
            None => vec![("LD_PRELOAD", library.clone().into_os_string())],
        };
        let mut owner_s = 0.0;
        let mut summary = None;
        let build = match (way.tool, way.mode) {
            ("none", _) => self.project.build(&NOTHING)?,
            (LTTNG, mode) => self.build_by_lttng(mode.is_some(), round)?,
            (_, None) => self.project.build(&environment)?,
            (_, Some(mode)) => {
                let dir = self.traces.path().join(format!("{}-{round}", way.name));
                let session = Session::create(&Options {
                    budget_bytes: BUDGET_BYTES,
                    mode,
                    context: RecordKind::Ids,
                    patterns: vec!["libc:*".into()],
                    command_line: "make".into(),
                    ..Options::new(dir.clone())
                })?;
                environment.push(("DORMOUSE_SESSION", session.socket().into()));
                let before = project::own_cpu_s();
                let build = self.project.build(&environment);
                owner_s = project::own_cpu_s() - before;
                let ended = session.finish();
                let checked = build.and_then(|build| check(&ended, &dir).map(|()| build));
                // A directory that stays is the temporary directory's to remove.
                let _ = std::fs::remove_dir_all(&dir);
                summary = Some(ended);
                checked?
            }
        };
        self.reference.compare(&build.products, way.name)?;
        Ok(Built { build, owner_s, summary })
    }

    /// Shares of samples that are in our library, in builds of their own; or why there are none.
    fn profile(
        &self,
        options: &CompileJobOptions,
        ways: &[&Way],
        interrupted: &Interrupts,
    ) -> Result<Result<Vec<Measurement>, String>, LabError> {
        let Some(mut sampler) = Sampler::find()? else {
            return Ok(Err("the sampler is not built; `cargo xtask lab` does so".into()));
        };
        let sampled: Vec<usize> = (0..ways.len()).filter(|index| ways[*index].profile.is_some()).collect();
        let mut shares: Vec<Vec<f64>> = vec![Vec::new(); sampled.len()];
        let progress = progress("compile-job: profile", options.profile_rounds as usize * sampled.len());
        for round in 0..options.profile_rounds {
            for place in order(sampled.len(), round) {
                let index = sampled[place];
                progress.set_message(ways[index].name);
                self.build(ways[index], index, round, Some(&mut sampler))?;
                match sampler.read()? {
                    Ok(ledger) => shares[place].push(100.0 * ledger.share()),
                    Err(why) => return Ok(Err(why)),
                }
                progress.inc(1);
                interrupted.check()?;
            }
        }
        progress.finish_and_clear();
        let of_way = |(index, shares): (&usize, &Vec<f64>)| {
            let way = ways[*index];
            let name = way.profile.unwrap_or(way.name);
            let labels = labels(&[("way", way.name), ("tool", way.tool), ("state", "profile")]);
            Measurement { labels, ..measurement(&format!("profile.{name}"), "% of time", shares) }
        };
        Ok(Ok(sampled.iter().zip(&shares).map(of_way).collect()))
    }

    fn build_by_lttng(&self, is_armed: bool, round: u32) -> Result<Build, LabError> {
        let Some(lttng) = &self.lttng else { return Err(LabError::Project("LTTng does not run".into())) };
        if !is_armed {
            return self.project.build(&lttng.environment(&lttng.dormant));
        }
        let session = lttng.arm(self.traces.path()).map_err(LabError::Peer)?;
        let build = self.project.build(&lttng.environment(&session))?;
        if round == 0 && session.finish().map_err(LabError::Peer)?.arrived == 0 {
            return Err(LabError::Project("LTTng's buffers hold no event after an armed build".into()));
        }
        Ok(build)
    }

    fn experiment(self, ways: &[&Way], mut notes: Vec<String>) -> Experiment {
        let mut measurements = Vec::new();
        let mut ratios = Vec::new();
        let none = &self.samples[0];
        for (way, samples) in ways.iter().zip(&self.samples) {
            let mut add = |suffix: &str, unit: &str, samples: &[f64]| {
                let figures = measurement(&format!("{}{suffix}", way.name), unit, samples);
                measurements.push(Measurement { labels: labels(&[("way", way.name), ("tool", way.tool)]), ..figures });
            };
            add(".wall", "s", &samples.wall_s);
            add(".cpu", "s", &samples.cpu_s);
            if way.is_traced_by_us() {
                let counts = |count: fn(&Summary) -> u64| -> Vec<f64> {
                    samples.summaries.iter().map(|summary| count(summary) as f64).collect()
                };
                add(".owner", "s", &samples.owner_s);
                add(".events", "count", &counts(|summary| summary.events));
                add(".events_lost", "count", &counts(|summary| summary.lost + summary.lost_on_disk));
                let list = |count: fn(&Summary) -> u64| {
                    samples.summaries.iter().map(|summary| count(summary).to_string()).collect::<Vec<_>>().join(" ")
                };
                notes.push(format!(
                    "{}: events by round {}; lost {}; programs {}; bytes {}; each trace holds what its session has counted",
                    way.name,
                    list(|summary| summary.events),
                    list(|summary| summary.lost + summary.lost_on_disk),
                    list(|summary| summary.processes),
                    list(|summary| summary.bytes),
                ));
            }
            if way.tool != "none" {
                let name = format!("{}_vs_none", way.name.replace('-', "_"));
                ratios.extend(ratio(&name, &samples.wall_s, &none.wall_s));
                ratios.extend(ratio(&format!("{name}_cpu"), &samples.cpu_s, &none.cpu_s));
            }
        }
        Experiment { name: NAME.into(), measurements, ratios, notes, ..Experiment::default() }
    }
}

/// Reads a trace again: it has to hold what the session says.
fn check(summary: &Summary, dir: &Path) -> Result<(), LabError> {
    let files = TraceFiles::open(dir).map_err(|error| LabError::Project(error.to_string()))?;
    let stats = files.stats();
    let lost = summary.lost + summary.lost_on_disk;
    if summary.events == 0 || stats.events != summary.events || stats.events_lost != lost {
        return Err(LabError::Project(format!(
            "the session counts {} events and {lost} lost, its trace holds {} and tells of {}",
            summary.events, stats.events, stats.events_lost
        )));
    }
    if !stats.warnings.is_empty() {
        return Err(LabError::Project(format!("the trace is damaged: {}", stats.warnings.join("; "))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_an_order() {
        for round in 0..100 {
            let mut order = order(6, round);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        }
        assert_ne!(order(6, 1), order(6, 2));
    }

    #[test]
    fn a_directory_without_a_makefile_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let error = find_project(Some(dir.path())).unwrap_err();
        assert!(error.to_string().contains("has no Makefile"), "{error}");
    }
}
