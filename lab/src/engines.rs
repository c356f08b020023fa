//! The engines of an experiment, ours and its peers', from their start to the verification of their events.
//!
//! ```text
//!   add, add_peers ──▶ a process each ──▶ plans, whose rounds drive them
//!                        ▲     │ count: its events are accounted for, and it ends
//!        renew: another ─┘     ▼
//!                        Verification, one for each process ──▶ finish: their sum
//!                          arrived + lost = emitted, or for a ring 0 < arrived ≤ emitted
//! ```
//! The addresses of a process's code, stack and heap are drawn when it starts, and a case may take several times as
//! long in one process as in another, in all its rounds alike. So each engine has several processes, one after another,
//! and the rounds are divided among them.
//!
//! Peers are the tracers that people use, and other programs that do the work of one of our parts. `cargo xtask peers`
//! builds their programs, and each describes its configuration in its documentation: `lab/peers`. A peer that is
//! missing is left out and reported, with the reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use dormouse_lab_harness::{Arrived, COUNTS};
use dormouse_owner::Mode;
use dormouse_testing::lttng::{BUFFERS, LttngCounts, LttngDaemon, LttngSession};

use crate::engine::{Engine, engine_path, find_part};
use crate::{Host, LabError, RunOptions};

/// Accounts for the events of a process, and lets the process end.
pub type Count = Box<dyn FnOnce(Engine) -> Result<Verification, LabError>>;

/// Command that starts a process, complete except for the CPUs and the policy, and the function that counts its events.
pub type Start = (Command, Count);

/// Running engines, ours first.
pub(crate) struct Engines {
    /// All engines, in the order in which they were added.
    pub(crate) all: Vec<Engine>,
    /// Peers among them.
    pub(crate) peers: Vec<RunningPeer>,
    sources: Vec<Source>,
    pub(crate) options: RunOptions,
    dir: tempfile::TempDir,
}

type Starter = Box<dyn FnMut(&Path) -> Result<Start, LabError>>;

/// Starts the processes of an engine, and keeps the verifications of those that have ended.
struct Source {
    start: Starter,
    count: Count,
    found: Vec<Verification>,
}

/// A peer whose engine runs.
pub(crate) struct RunningPeer {
    pub(crate) name: &'static str,
    /// How it treats a full buffer, if it has several modes.
    pub(crate) mode: Option<Mode>,
    /// Index of its engine.
    pub(crate) engine: usize,
}

impl Engines {
    pub(crate) fn new(options: &RunOptions) -> Result<Engines, LabError> {
        let dir = tempfile::tempdir().map_err(no_directory)?;
        Ok(Engines { all: Vec::new(), peers: Vec::new(), sources: Vec::new(), options: options.clone(), dir })
    }

    /// Adds an engine. `start` is called anew for each of its processes, with a directory for that process.
    pub(crate) fn add(
        &mut self,
        mut start: impl FnMut(&Path) -> Result<Start, LabError> + 'static,
    ) -> Result<(), LabError> {
        let (command, count) = start(&own_dir(&self.dir)?)?;
        self.all.push(Engine::start(command, &self.options)?);
        self.sources.push(Source { start: Box::new(start), count, found: Vec::new() });
        Ok(())
    }

    /// Adds an engine that may be missing. Returns a note if it is.
    pub(crate) fn add_if_built(
        &mut self,
        what: &str,
        start: impl FnMut(&Path) -> Result<Start, LabError> + 'static,
    ) -> Option<String> {
        self.add(start).err().map(|error| format!("{what} not available: {error}"))
    }

    /// Adds an experiment's peers, if they are wanted, in all their modes. Returns notes: the version of each, or the
    /// reason why it is missing.
    pub(crate) fn add_peers(&mut self, experiment: &str) -> Vec<String> {
        self.add_these(PEERS.into_iter().filter(|peer| peer.experiment == experiment))
    }

    /// Adds peers, also of another experiment, like [`Engines::add_peers`].
    pub(crate) fn add_these(&mut self, peers: impl IntoIterator<Item = Peer>) -> Vec<String> {
        let (mut notes, is_wanted) = (Vec::new(), self.options.has_peers);
        for peer in peers.into_iter().filter(|_| is_wanted) {
            // All daemons are started before the first is used.
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
        // A peer in two modes has one version.
        notes.dedup();
        notes
    }

    /// Returns what the engines were refused: CPUs, policy, counters.
    fn shortcomings(&self, host: &Host) -> Vec<String> {
        let RunOptions { cpus, policy, .. } = &self.options;
        let descriptions = || self.all.iter().map(Engine::description);
        let unpinned = (1..).zip(descriptions()).filter(|(_, of)| of.processors.contains(&None));
        let unpinned = unpinned.map(|(n, of)| format!("engine {n} of {} could not be pinned to {cpus:?}", of.name));
        let other = descriptions().take(1).filter(|of| of.policy != policy.as_str());
        let other = other.map(|of| format!("scheduling policy {}", of.policy));
        // The host's trial decides, since a counter may open and still stay at zero.
        let refused = host.counters.iter().filter_map(|(name, counter)| Some((name, counter.cause()?)));
        let refused = refused.map(|(name, why)| format!("counter {name} not available: {why}"));
        unpinned.chain(other).chain(refused).collect()
    }

    /// Replaces the process of each engine, after the old process's events are accounted for.
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

    /// Lets all engines end. Returns the verification of each engine, summed over all its processes. Adds notes on the
    /// peers' events, and on what engines were refused.
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

/// The count of an engine whose events are not counted.
pub(crate) fn unwatched(engine: Engine) -> Result<Verification, LabError> {
    let emitted = engine.emitted;
    engine.finish()?;
    Ok(Verification { emitted, ..Verification::default() })
}

fn no_directory(error: std::io::Error) -> LabError {
    LabError::System { what: "temporary directory", error }
}

/// Makes a directory for one process.
fn own_dir(dir: &tempfile::TempDir) -> Result<PathBuf, LabError> {
    tempfile::tempdir_in(dir).map(tempfile::TempDir::keep).map_err(no_directory)
}

/// Starts one of our engines that counts its own events. `wrong` describes a mismatch of arrived and emitted events.
pub(crate) fn of_ours(program: &str, dir: &Path, wrong: fn(u64, u64) -> String) -> Result<Start, LabError> {
    let (command, count) = start(&engine_path(program)?, None, false, dir);
    let count = move |engine: Engine| match count(engine)? {
        found if found.arrived.is_some() && found.holds() => Ok(found),
        Verification { arrived: Some(arrived), emitted, .. } => Err(LabError::Engine(wrong(arrived, emitted))),
        Verification { text, .. } => Err(LabError::Engine(text)),
    };
    Ok((command, Box::new(count)))
}

/// A session of LTTng-UST, and a second one beside it.
type LttngSessions = (LttngSession, Option<LttngSession>);

/// Starts an engine whose events are counted in the traces of its sessions, or by the engine itself. `dir` is for its
/// counts.
fn start(program: &Path, sessions: Option<LttngSessions>, is_ring: bool, dir: &Path) -> Start {
    let counts = dir.join("counts");
    let mut command = Command::new(program);
    command.env(COUNTS, &counts).envs(sessions.iter().flat_map(|(first, _)| first.env()));
    let count = move |mut engine: Engine| {
        let Arrived { events: arrived, why } = engine.arrived()?;
        let of = |emitted| Verification { emitted, is_ring, ..Verification::default() };
        let counted = |emitted, counts| match counts {
            Ok(LttngCounts { arrived, discarded: lost, bytes }) => {
                Verification { arrived: Some(arrived), lost, bytes, text: "babeltrace2's count".into(), ..of(emitted) }
            }
            Err(text) => Verification { text, ..of(emitted) },
        };
        let found = match sessions {
            Some((first, second)) => {
                // The daemon may end with the first one.
                let second = second.map(|second| counted(engine.emitted_by(SECOND_CASES[0]), second.finish()));
                let first = counted(engine.emitted, first.finish());
                Verification::of_all(second.into_iter().chain([first]).collect())
            }
            None => {
                let counts = std::fs::read_to_string(&counts).unwrap_or_default();
                let mut words = counts.trim().splitn(3, ' ').skip(1);
                let lost = words.next().and_then(|lost| lost.parse().ok()).unwrap_or(0);
                let text = why.unwrap_or_else(|| words.next().unwrap_or_default().into());
                Verification { arrived, lost, text, ..of(engine.emitted) }
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
    /// Name of the peer and of its program.
    pub name: &'static str,
    /// Experiment that it belongs to.
    pub experiment: &'static str,
    /// Whether its engine counts the last events, which a ring holds, instead of every event.
    is_ring: bool,
    /// Events of its session with LTTng-UST: patterns, each with its filter or an empty text. Other peers have none.
    pub(crate) events: &'static [(&'static str, &'static str)],
    /// Events of a second session with LTTng-UST, if there is one.
    pub(crate) events_of_second: &'static [(&'static str, &'static str)],
    /// Contexts of its session with LTTng-UST.
    contexts: &'static [&'static str],
}

const fn peer(name: &'static str, experiment: &'static str) -> Peer {
    Peer { name, experiment, is_ring: false, events: &[], events_of_second: &[], contexts: &[] }
}

const fn ring(name: &'static str) -> Peer {
    Peer { is_ring: true, ..peer(name, "event") }
}

/// LTTng-UST, whose events babeltrace2 counts in the trace of a session.
pub const LTTNG_UST: Peer = Peer { events: &[("lab:armed_*", "")], ..peer("lttng-ust", "event") };

/// Cases of `filter` whose events a second session records too, and rejects.
pub(crate) const SECOND_CASES: [&str; 2] = ["armed_u64_both", "armed_u64_first"];

/// LTTng-UST with filters: those of the conditions in `experiments/filter`.
pub const LTTNG_UST_FILTER: Peer = Peer {
    events: &[
        ("lab:armed_*", ""),
        ("lab:rejected_u64", "number >= 1000000000000"),
        ("lab:accepted_u64", "number < 1000000000000"),
        (
            "lab:rejected_u64_10",
            "number != 2000000000001 && number != 2000000000003 && number != 2000000000005 && \
             number != 2000000000007 && number != 2000000000009 && number != 2000000000011 && \
             number != 2000000000013 && number != 2000000000015 && number != 2000000000017 && \
             number >= 1000000000000",
        ),
        ("lab:rejected_path", r#"path == "/tmp/*""#),
        ("lab:accepted_path", r#"path == "/var/*""#),
    ],
    events_of_second: &[("lab:armed_u64_both", ""), ("lab:armed_u64_first", "number >= 1000000000000")],
    ..peer("lttng-ust-filter", "filter")
};

/// The same program in a session whose events have the thread's name.
const LTTNG_UST_PROCNAME: Peer =
    Peer { events: LTTNG_UST_FILTER.events, contexts: &["procname"], ..peer("lttng-ust-procname", "filter") };

/// Daemon of a peer's sessions, which come one after another: `None` if it has no daemon, or the reason why it cannot
/// be started.
type Daemon = Option<Result<Rc<LttngDaemon>, String>>;

/// All peers, built or not.
pub const PEERS: [Peer; 17] = [
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
    LTTNG_UST_FILTER,
    LTTNG_UST_PROCNAME,
    peer("tracing-filter", "filter"),
    peer("static-keys", "imv"),
    peer("thread-local-crate", "percpu"),
    peer("fast-counter", "percpu"),
    peer("queues", "vring"),
];

/// Environment variable with the directory of the peers' programs. It overrides the directory where they are built or
/// installed.
pub const DIRECTORY: &str = "DORMOUSE_LAB_PEERS";

/// Returns the directory of the peers' programs, which need not exist.
pub fn directory() -> PathBuf {
    std::env::var_os(DIRECTORY).map(PathBuf::from).or_else(|| find_part("peers")).unwrap_or_default()
}

impl Peer {
    fn is_lttng(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether its program is in a second session too, which records the events of cases whose names end in `_both`.
    pub fn has_second_session(&self) -> bool {
        !self.events_of_second.is_empty()
    }

    /// Returns the path of its program in the directory `programs`, or the reason why it is missing.
    pub(crate) fn program(&self, programs: &Path) -> Result<PathBuf, LabError> {
        let program = programs.join(self.name);
        if program.is_file() {
            return Ok(program);
        }
        // The build leaves this file.
        let why = std::fs::read_to_string(program.with_extension("why")).ok();
        let why = why.as_deref().map_or("not built", str::trim);
        Err(LabError::Peer(format!("{why}; `cargo xtask peers` builds it")))
    }

    /// Ways in which it can treat a full buffer; only [`Mode::Overwrite`] if it has no choice.
    pub fn modes(&self) -> &'static [Mode] {
        if self.is_lttng() { &[Mode::Overwrite, Mode::Discard] } else { &[Mode::Overwrite] }
    }

    /// Starts the daemon of its sessions, if it has one.
    fn daemon(&self) -> Daemon {
        self.is_lttng().then(LttngDaemon::start)
    }

    /// Starts its sessions, if it has any. Its program is in the directory `programs`. Its traces go to `dir`, which
    /// must outlive it.
    ///
    /// # Errors
    /// [`LabError::Peer`] if it is not built, or if a session cannot be started.
    pub fn start(&self, mode: Mode, programs: &Path, dir: &Path) -> Result<Start, LabError> {
        self.program(programs)?;
        self.start_of(&self.daemon(), mode, programs, dir)
    }

    /// Starts its sessions, with a daemon that has no others.
    fn start_of(&self, daemon: &Daemon, mode: Mode, programs: &Path, dir: &Path) -> Result<Start, LabError> {
        let program = self.program(programs)?;
        let channel = format!("--{} {BUFFERS}", mode.name());
        let sessions = |daemon: Result<Rc<LttngDaemon>, String>| {
            let first = LttngSession::of(daemon?, &channel, self.events, self.contexts, dir)?;
            let events = Some(self.events_of_second).filter(|events| !events.is_empty());
            let second = events.map(|events| first.beside(&channel, events, dir)).transpose()?;
            Ok((first, second))
        };
        let sessions = daemon.clone().map(sessions).transpose().map_err(LabError::Peer)?;
        let is_ring = self.is_ring || self.is_lttng() && mode == Mode::Overwrite;
        Ok(start(&program, sessions, is_ring, dir))
    }
}

/// Result of accounting for an engine's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// Number of events that the engine emitted.
    pub emitted: u64,
    /// Number of events that the tracer's own reader found, if known.
    pub arrived: Option<u64>,
    /// Number of events that the tracer reports as lost.
    pub lost: u64,
    /// Whether only the last events are kept.
    pub is_ring: bool,
    /// Size of the trace's streams in bytes, if there is a trace.
    pub bytes: u64,
    /// Method of the count, or the reason why there is none.
    pub text: String,
}

impl Verification {
    /// Whether the count is right: all events are accounted for, or for a ring some of them.
    pub fn holds(&self) -> bool {
        match self.arrived {
            _ if self.emitted == 0 => self.arrived.unwrap_or(0) == 0,
            None => false,
            Some(arrived) if self.is_ring => arrived > 0 && arrived + self.lost <= self.emitted,
            Some(arrived) => arrived + self.lost == self.emitted,
        }
    }

    /// Combines the verifications of an engine's processes, or of a process's sessions: the first that does not hold,
    /// otherwise their sum.
    pub(crate) fn of_all(found: Vec<Verification>) -> Verification {
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

    /// Formats the verification as a note.
    pub fn note(&self, name: &str) -> String {
        let Verification { emitted, lost, .. } = self;
        let verdict = if self.holds() { "" } else { "NOT VERIFIED: " };
        let arrived = match self.arrived {
            _ if *emitted == 0 => "none to arrive".into(),
            None => "an unknown number arrived".into(),
            Some(arrived) if self.is_ring => format!("the last {arrived} are in its buffers, {lost} were lost"),
            Some(arrived) => format!("{arrived} arrived, {lost} were lost"),
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
        // A surplus of one does not make up for what another lacks.
        assert_eq!((of_all([&whole, &less]), of_all([&less, &more])), (less.clone(), less.clone()));
    }

    #[test]
    fn a_missing_engine_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lttng-ust.why"), "no C++ compiler\n").unwrap();
        let why = |peer: Peer| peer.start(Mode::Overwrite, dir.path(), dir.path()).err().unwrap().to_string();
        assert_eq!(why(LTTNG_UST), "no C++ compiler; `cargo xtask peers` builds it");
        assert_eq!(why(PEERS[1]), "not built; `cargo xtask peers` builds it");
    }
}
