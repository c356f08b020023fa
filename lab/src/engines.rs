//! The engines of an experiment, ours and its peers', from their start to what is said of their events.
//!
//! ```text
//!   add, add_peers ──▶ a process each ──▶ plans, whose rounds drive them
//!                        ▲     │ count: its events are accounted for, and it ends
//!        renew: another ─┘     ▼
//!                        Verification, one for each process ──▶ finish: their sum
//!                          arrived + lost = emitted, or 0 < arrived ≤ emitted of a ring
//! ```
//! Where a process's code, stack and heap lie is drawn when it starts, and a case may take several times as long for it, in all of its
//! rounds alike. So each engine has several processes, one after another, and the rounds are shared out among them.
//!
//! Peers are the tracers that people use, and what else does the work of one of our parts. Their programs are built by `cargo xtask peers`,
//! and describe their configuration at their top: `lab/peers`. One that is not there is reported, with the reason for it, and left out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use dormouse_consumer::Mode;
use dormouse_lab_harness::{Arrived, COUNTS};
use dormouse_testing::lttng::{BUFFERS, LttngCounts, LttngDaemon, LttngSession};

use crate::engine::{Engine, engine_path, find_part};
use crate::{Host, LabError, RunOptions};

/// Accounts for the events of a process, and lets it end.
pub type Count = Box<dyn FnOnce(Engine) -> Result<Verification, LabError>>;

/// What a process is started by, complete but for the processors and the policy, and how its events are counted.
pub type Start = (Command, Count);

/// Engines that run, ours first.
pub(crate) struct Engines {
    /// All of them, in the order in which they were added.
    pub(crate) all: Vec<Engine>,
    /// Those of peers.
    pub(crate) peers: Vec<RunningPeer>,
    sources: Vec<Source>,
    pub(crate) options: RunOptions,
    dir: tempfile::TempDir,
}

type Starter = Box<dyn FnMut(&Path) -> Result<Start, LabError>>;

/// Where the processes of an engine come from, and what was found of those that have ended.
struct Source {
    start: Starter,
    count: Count,
    found: Vec<Verification>,
}

/// A peer whose engine runs.
pub(crate) struct RunningPeer {
    pub(crate) name: &'static str,
    /// How it treats a full buffer, if it has a choice.
    pub(crate) mode: Option<Mode>,
    /// Which of the engines is its.
    pub(crate) engine: usize,
}

impl Engines {
    pub(crate) fn new(options: &RunOptions) -> Result<Engines, LabError> {
        let dir = tempfile::tempdir().map_err(no_directory)?;
        Ok(Engines { all: Vec::new(), peers: Vec::new(), sources: Vec::new(), options: options.clone(), dir })
    }

    /// Adds one, whose processes are started by what `start` says anew for each, given a directory of its own.
    pub(crate) fn add(
        &mut self,
        mut start: impl FnMut(&Path) -> Result<Start, LabError> + 'static,
    ) -> Result<(), LabError> {
        let (command, count) = start(&own_dir(&self.dir)?)?;
        self.all.push(Engine::start(command, &self.options)?);
        self.sources.push(Source { start: Box::new(start), count, found: Vec::new() });
        Ok(())
    }

    /// Adds an experiment's peers, if they are wanted, in every mode that they have. Returns notes: the version of each, or why it is
    /// not there.
    pub(crate) fn add_peers(&mut self, experiment: &str) -> Vec<String> {
        let (mut notes, is_wanted) = (Vec::new(), self.options.has_peers);
        for peer in PEERS.into_iter().filter(|peer| is_wanted && peer.experiment == experiment) {
            // All of them start at once.
            let daemons: Vec<_> = peer.modes().iter().map(|_| peer.daemon()).collect();
            for (mode, daemon) in peer.modes().iter().zip(daemons) {
                let (name, choice) = (peer.name, (peer.modes().len() > 1).then_some(*mode));
                if let Err(error) = self.add(move |dir| peer.start_of(&daemon, *mode, &directory(), dir)) {
                    let in_mode = choice.map(|mode| format!(" ({})", mode.name())).unwrap_or_default();
                    notes.push(format!("peer {name}{in_mode} not available: {error}"));
                    break;
                }
                let engine = self.all.len() - 1;
                notes.push(format!("peer {name} {}", self.all[engine].description().version));
                self.peers.push(RunningPeer { name, mode: choice, engine });
            }
        }
        // One version in two modes.
        notes.dedup();
        notes
    }

    /// What they could not have as they were asked to: processors, policy, counters.
    fn shortcomings(&self, host: &Host) -> Vec<String> {
        let RunOptions { cpus, policy, .. } = &self.options;
        let descriptions = || self.all.iter().map(Engine::description);
        let unpinned = (1..).zip(descriptions()).filter(|(_, of)| of.processors.contains(&None));
        let unpinned = unpinned.map(|(n, of)| format!("engine {n} of {} could not be pinned to {cpus:?}", of.name));
        let other = descriptions().take(1).filter(|of| of.policy != policy.as_str());
        let other = other.map(|of| format!("scheduling policy {}", of.policy));
        // What the host's trial found counts, since a counter may open and yet stay at zero.
        let refused = host.counters.iter().filter_map(|(name, counter)| Some((name, counter.cause()?)));
        let refused = refused.map(|(name, why)| format!("counter {name} not available: {why}"));
        unpinned.chain(other).chain(refused).collect()
    }

    /// Puts another process in the place of each, once the events of the former are accounted for.
    pub(crate) fn renew(&mut self) -> Result<(), LabError> {
        for (engine, source) in std::mem::take(&mut self.all).into_iter().zip(&mut self.sources) {
            let count = std::mem::replace(&mut source.count, Box::new(unwatched));
            source.found.push(count(engine)?);
            let (command, count) = (source.start)(&own_dir(&self.dir)?)?;
            source.count = count;
            self.all.push(Engine::start(command, &self.options)?);
        }
        Ok(())
    }

    /// Lets all engines end. Returns what was found of the events of each, all of its processes together. Notes say it of peers, and what
    /// engines could not have.
    pub(crate) fn finish(self, host: &Host, notes: &mut Vec<String>) -> Result<Vec<Verification>, LabError> {
        notes.extend(self.shortcomings(host));
        let ends = self.all.into_iter().zip(self.sources).map(|(engine, Source { count, mut found, .. })| {
            found.push(count(engine)?);
            Ok(Verification::of_all(found))
        });
        let found: Vec<_> = ends.collect::<Result<_, LabError>>()?;
        notes.extend(self.peers.iter().map(|peer| found[peer.engine].note(peer.name)));
        Ok(found)
    }
}

/// The count of an engine in which nothing is to be counted.
pub(crate) fn unwatched(engine: Engine) -> Result<Verification, LabError> {
    let emitted = engine.emitted;
    engine.finish()?;
    Ok(Verification { emitted, ..Verification::default() })
}

fn no_directory(error: std::io::Error) -> LabError {
    LabError::System { what: "temporary directory", error }
}

/// A directory for one process.
fn own_dir(dir: &tempfile::TempDir) -> Result<PathBuf, LabError> {
    tempfile::tempdir_in(dir).map(tempfile::TempDir::keep).map_err(no_directory)
}

/// An engine of ours that finds out itself what became of its events. `wrong` says of arrived and emitted events what is amiss.
pub(crate) fn of_ours(program: &str, dir: &Path, wrong: fn(u64, u64) -> String) -> Result<Start, LabError> {
    let (command, count) = start(&engine_path(program)?, None, false, dir);
    let count = move |engine: Engine| match count(engine)? {
        found if found.arrived.is_some() && found.holds() => Ok(found),
        Verification { arrived: Some(arrived), emitted, .. } => Err(LabError::Engine(wrong(arrived, emitted))),
        Verification { text, .. } => Err(LabError::Engine(text)),
    };
    Ok((command, Box::new(count)))
}

/// An engine whose events are counted in the trace of a session, or by itself. `dir` takes its counts.
fn start(program: &Path, session: Option<LttngSession>, is_ring: bool, dir: &Path) -> Start {
    let counts = dir.join("counts");
    let mut command = Command::new(program);
    command.env(COUNTS, &counts).envs(session.iter().flat_map(LttngSession::env));
    let count = move |mut engine: Engine| {
        let Arrived { events: arrived, why } = engine.arrived()?;
        let found = Verification { emitted: engine.emitted, is_ring, ..Verification::default() };
        let found = match session.map(LttngSession::finish) {
            Some(Ok(LttngCounts { arrived, discarded: lost, bytes })) => {
                Verification { arrived: Some(arrived), lost, bytes, text: "babeltrace2's count".into(), ..found }
            }
            Some(Err(text)) => Verification { text, ..found },
            None => {
                let counts = std::fs::read_to_string(&counts).unwrap_or_default();
                let mut words = counts.trim().splitn(3, ' ').skip(1);
                let lost = words.next().and_then(|lost| lost.parse().ok()).unwrap_or(0);
                let text = why.unwrap_or_else(|| words.next().unwrap_or_default().into());
                Verification { arrived, lost, text, ..found }
            }
        };
        engine.finish()?;
        Ok(found)
    };
    (command, Box::new(count))
}

/// A peer that can be measured.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its name, which is that of its program.
    pub name: &'static str,
    /// The experiment that it is in.
    pub experiment: &'static str,
    /// Whether its engine counts in a ring that holds the last events, and not every event.
    is_ring: bool,
}

const fn peer(name: &'static str, experiment: &'static str) -> Peer {
    Peer { name, experiment, is_ring: false }
}

const fn ring(name: &'static str) -> Peer {
    Peer { name, experiment: "event", is_ring: true }
}

/// LTTng-UST, whose events babeltrace2 counts in the trace of a session.
pub const LTTNG_UST: Peer = peer("lttng-ust", "event");

/// What a peer's sessions are of, one after another: `None` where it has none, or why it cannot be had.
type Daemon = Option<Result<Rc<LttngDaemon>, String>>;

/// All of them, built or not.
pub const PEERS: [Peer; 14] = [
    LTTNG_UST,
    peer("tracy", "event"),
    peer("fastrace", "event"),
    peer("tracing", "event"),
    ring("tracing-ring"),
    ring("tracing-flight-recorder"),
    ring("perfetto"),
    ring("perfetto-recorder"),
    ring("uprobe"),
    peer("usdt", "event"),
    peer("static-keys", "imv"),
    peer("thread-local-crate", "percpu"),
    peer("fast-counter", "percpu"),
    peer("queues", "vring"),
];

/// Environment variable with the directory of the peers' programs, instead of the one that is built or installed.
pub const DIRECTORY: &str = "DORMOUSE_LAB_PEERS";

/// The directory where the peers' programs are, or would be.
pub fn directory() -> PathBuf {
    std::env::var_os(DIRECTORY).map(PathBuf::from).or_else(|| find_part("peers")).unwrap_or_default()
}

impl Peer {
    fn is_lttng(&self) -> bool {
        self.name == LTTNG_UST.name
    }

    /// Its program, in a directory of such, or why it is not there.
    pub(crate) fn program(&self, programs: &Path) -> Result<PathBuf, LabError> {
        let program = programs.join(self.name);
        if program.is_file() {
            return Ok(program);
        }
        // Left there by the build.
        let why = std::fs::read_to_string(program.with_extension("why")).ok();
        let why = why.as_deref().map_or("not built", str::trim);
        Err(LabError::Peer(format!("{why}; `cargo xtask peers` builds it")))
    }

    /// How it treats a full buffer; [`Mode::Overwrite`] alone where it has no choice.
    pub fn modes(&self) -> &'static [Mode] {
        if self.is_lttng() { &[Mode::Overwrite, Mode::Discard] } else { &[Mode::Overwrite] }
    }

    /// Starts the daemon of its sessions, where it has one.
    fn daemon(&self) -> Daemon {
        self.is_lttng().then(LttngDaemon::start)
    }

    /// Starts its session, where it has one. Its program is in the directory `programs`; `dir` takes its trace, and is to outlive it.
    ///
    /// # Errors
    /// It is not built, or its session cannot be had: [`LabError::Peer`] says why.
    pub fn start(&self, mode: Mode, programs: &Path, dir: &Path) -> Result<Start, LabError> {
        self.program(programs)?;
        self.start_of(&self.daemon(), mode, programs, dir)
    }

    /// Starts its session of a daemon that has no other.
    fn start_of(&self, daemon: &Daemon, mode: Mode, programs: &Path, dir: &Path) -> Result<Start, LabError> {
        let program = self.program(programs)?;
        // The events of its engine that are armed.
        let (channel, patterns) = (format!("--{} {BUFFERS}", mode.name()), ["lab:armed_*"]);
        let session = daemon.clone().map(|daemon| LttngSession::of(daemon?, &channel, &patterns, &[], dir)).transpose();
        let is_ring = self.is_ring || self.is_lttng() && mode == Mode::Overwrite;
        Ok(start(&program, session.map_err(LabError::Peer)?, is_ring, dir))
    }
}

/// What was found of an engine's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// What the engine emitted.
    pub emitted: u64,
    /// What the tracer's own reader found, where it could tell.
    pub arrived: Option<u64>,
    /// What the tracer says that it lost.
    pub lost: u64,
    /// Whether only the last events are kept.
    pub is_ring: bool,
    /// Bytes of the trace's streams, where there is a trace.
    pub bytes: u64,
    /// How that was counted, or why it could not be.
    pub text: String,
}

impl Verification {
    /// Whether the events came through: all are accounted for, or in a ring some of them are.
    pub fn holds(&self) -> bool {
        match self.arrived {
            _ if self.emitted == 0 => self.arrived.unwrap_or(0) == 0,
            None => false,
            Some(arrived) if self.is_ring => arrived > 0 && arrived + self.lost <= self.emitted,
            Some(arrived) => arrived + self.lost == self.emitted,
        }
    }

    /// Of the processes of one engine: the first whose events did not come through, else all together.
    fn of_all(found: Vec<Verification>) -> Verification {
        let sum = |a: Verification, b: Verification| Verification {
            emitted: a.emitted + b.emitted,
            arrived: a.arrived.zip(b.arrived).map(|(a, b)| a + b),
            lost: a.lost + b.lost,
            bytes: a.bytes + b.bytes,
            ..b
        };
        match found.iter().find(|found| !found.holds()) {
            Some(wrong) => wrong.clone(),
            None => found.into_iter().reduce(sum).unwrap_or_default(),
        }
    }

    /// As a note.
    pub fn note(&self, name: &str) -> String {
        let Verification { emitted, lost, .. } = self;
        let verdict = if self.holds() { "" } else { "NOT VERIFIED: " };
        let arrived = match self.arrived {
            _ if *emitted == 0 => "none to arrive".into(),
            None => "of which nobody knows how many arrived".into(),
            Some(arrived) if self.is_ring => format!("the last {arrived} are in its buffers, {lost} lost"),
            Some(arrived) => format!("{arrived} arrived, {lost} lost"),
        };
        let text = if self.text.is_empty() { String::new() } else { format!(" ({})", self.text) };
        format!("{verdict}peer {name}: {emitted} events emitted, {arrived}{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verification(emitted: u64, arrived: Option<u64>, lost: u64, is_ring: bool) -> Verification {
        Verification { emitted, arrived, lost, is_ring, ..Verification::default() }
    }

    #[test]
    fn every_event_of_every_process_is_accounted_for() {
        for (emitted, arrived, lost, is_ring, holds) in [
            (10, Some(7), 3, false, true),
            (10, Some(7), 0, true, true),
            (0, None, 0, false, true),
            (10, None, 0, false, false),
            (10, Some(0), 0, true, false),
            (10, Some(11), 0, true, false),
            (0, Some(1), 0, true, false),
        ] {
            let found = verification(emitted, arrived, lost, is_ring);
            assert_eq!((found.holds(), !found.note("x").starts_with("NOT VERIFIED")), (holds, holds), "{found:?}");
        }
        let (whole, less) = (verification(10, Some(7), 3, false), verification(5, Some(4), 0, false));
        let more = verification(5, Some(6), 0, false);
        let of_all = |found: [&Verification; 2]| Verification::of_all(found.map(Verification::clone).into());
        assert_eq!(of_all([&whole, &whole]), verification(20, Some(14), 6, false));
        // What one has too much does not make up for what another lacks.
        assert_eq!((of_all([&whole, &less]), of_all([&less, &more])), (less.clone(), less.clone()));
    }

    #[test]
    fn one_that_is_not_built_says_so() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lttng-ust.why"), "no C++ compiler\n").unwrap();
        let why = |peer: Peer| peer.start(Mode::Overwrite, dir.path(), dir.path()).err().unwrap().to_string();
        assert_eq!(why(LTTNG_UST), "no C++ compiler; `cargo xtask peers` builds it");
        assert_eq!(why(PEERS[1]), "not built; `cargo xtask peers` builds it");
    }
}
