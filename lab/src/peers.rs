//! Peers: the tracers that people use, and what else does the work of one of our parts, each an engine of its own.
//!
//! ```text
//!   Peer ── prepare: a session where it has one ──▶ Prepared ── command ──▶ engine, which the experiment drives
//!                                                      │ finish: what the tracer's own reader counts
//!                                                      ▼
//!                                                  Verification   arrived + lost = emitted, or 0 < arrived ≤ emitted of a ring
//! ```
//! Their programs are built by `cargo xtask peers` into the directory `peers` beside this program, or put by `cargo xtask install` where an
//! installed lab finds them. They describe their configuration at their top: `lab/peers`. One that is not there is reported, with the reason
//! for it, and left out.

use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_lab_harness::{Arrived, COUNTS};

use crate::LabError;
use crate::engine::find_part;
use crate::lttng::{LttngMode, LttngSession};

/// How a peer treats a full buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerMode {
    /// The oldest goes. Also the only mode of a peer that has no choice.
    Overwrite,
    /// The newest is lost.
    Discard,
}

/// Where the events of a peer are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// By babeltrace2, in the trace of a session.
    Lttng,
    /// By the engine, which sees every event or knows how many it does not.
    Engine,
    /// By the engine, in a ring that holds the last ones.
    Ring,
    /// Nowhere: it emits none.
    None,
}

/// A peer that can be measured.
#[derive(Debug, Clone)]
pub struct Peer {
    name: &'static str,
    experiment: &'static str,
    modes: &'static [PeerMode],
    reader: Reader,
    dir: PathBuf,
}

/// Their names, which are those of their programs, and the experiment that they are in.
const PEERS: [(&str, &str, &[PeerMode], Reader); 14] = [
    ("lttng-ust", "event", &[PeerMode::Overwrite, PeerMode::Discard], Reader::Lttng),
    ("tracy", "event", &[PeerMode::Overwrite], Reader::Engine),
    ("fastrace", "event", &[PeerMode::Overwrite], Reader::Engine),
    ("tracing", "event", &[PeerMode::Overwrite], Reader::Engine),
    ("tracing-ring", "event", &[PeerMode::Overwrite], Reader::Ring),
    ("tracing-flight-recorder", "event", &[PeerMode::Overwrite], Reader::Ring),
    ("perfetto", "event", &[PeerMode::Overwrite], Reader::Ring),
    ("perfetto-recorder", "event", &[PeerMode::Overwrite], Reader::Ring),
    ("uprobe", "event", &[PeerMode::Overwrite], Reader::Ring),
    ("usdt", "event", &[PeerMode::Overwrite], Reader::None),
    ("static-keys", "imv", &[PeerMode::Overwrite], Reader::Engine),
    ("thread-local-crate", "percpu", &[PeerMode::Overwrite], Reader::Engine),
    ("fast-counter", "percpu", &[PeerMode::Overwrite], Reader::Engine),
    ("queues", "vring", &[PeerMode::Overwrite], Reader::Engine),
];

/// Environment variable with the directory of the peers' programs, instead of the one that is built or installed.
pub const DIRECTORY: &str = "DORMOUSE_LAB_PEERS";

/// The events of the LTTng engine that are armed.
const LTTNG_PATTERN: &str = "lab:armed_*";

/// All of an experiment, built or not; none where they are not wanted.
pub fn all(experiment: &str, is_wanted: bool) -> Vec<Peer> {
    if !is_wanted {
        return Vec::new();
    }
    let dir = std::env::var_os(DIRECTORY).map(PathBuf::from).or_else(|| find_part("peers")).unwrap_or_default();
    let mut peers = all_in(&dir);
    peers.retain(|peer| peer.experiment == experiment);
    peers
}

/// All of them, whose programs are, or would be, in a directory.
pub fn all_in(dir: &Path) -> Vec<Peer> {
    let peer = |(name, experiment, modes, reader): &(&'static str, &'static str, &'static [PeerMode], Reader)| Peer {
        name,
        experiment,
        modes,
        reader: *reader,
        dir: dir.into(),
    };
    PEERS.iter().map(peer).collect()
}

impl Peer {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The experiment that it is in.
    pub fn experiment(&self) -> &'static str {
        self.experiment
    }

    /// Its modes; one for a peer that has no choice.
    pub fn modes(&self) -> &'static [PeerMode] {
        self.modes
    }

    /// Its program.
    fn program(&self) -> Result<PathBuf, LabError> {
        let program = self.dir.join(self.name);
        if program.is_file() {
            return Ok(program);
        }
        // Left there by the build.
        let why = std::fs::read_to_string(self.dir.join(format!("{}.why", self.name))).ok();
        let why = why.as_deref().map_or("not built", str::trim);
        Err(LabError::Peer(format!("{why}; `cargo xtask peers` builds it")))
    }

    /// Starts its session, where it has one. `dir` takes its trace, and is to outlive what is prepared.
    ///
    /// # Errors
    /// It is not built, or its session cannot be had: [`LabError::Peer`] says why.
    pub fn prepare(&self, mode: PeerMode, dir: &Path) -> Result<Prepared, LabError> {
        let mut command = Command::new(self.program()?);
        let counts = dir.join(format!("{}-counts", self.name));
        command.env(COUNTS, &counts);
        let session = if self.reader == Reader::Lttng {
            let mode = if mode == PeerMode::Overwrite { LttngMode::Overwrite } else { LttngMode::Discard };
            let session = LttngSession::start(mode, &[LTTNG_PATTERN], dir).map_err(LabError::Peer)?;
            command.envs(session.env());
            Some(session)
        } else {
            None
        };
        let is_ring = self.reader == Reader::Ring || (self.reader == Reader::Lttng && mode == PeerMode::Overwrite);
        Ok(Prepared { command: Some(command), session, counts, is_ring })
    }
}

/// A peer whose session is ready.
#[derive(Debug)]
pub struct Prepared {
    command: Option<Command>,
    session: Option<LttngSession>,
    counts: PathBuf,
    is_ring: bool,
}

impl Prepared {
    /// The command, to which the harness's arguments are added, and what has to live as long as it runs.
    pub fn into_parts(mut self) -> (Command, Prepared) {
        let command = self.command.take().unwrap_or_else(|| Command::new("false"));
        (command, self)
    }

    /// Ends the session. `emitted` are the events that the engine emitted, `arrived` is its answer when it was asked.
    pub fn finish(self, emitted: u64, arrived: &Arrived) -> Verification {
        self.finish_with_bytes(emitted, arrived).0
    }

    /// The same, and the bytes of the trace's streams, where there is one.
    pub fn finish_with_bytes(self, emitted: u64, arrived: &Arrived) -> (Verification, Option<u64>) {
        let mut bytes = None;
        let (arrived, lost, text) = match self.session {
            Some(session) => match session.finish() {
                Ok(counts) => {
                    bytes = Some(counts.bytes);
                    (Some(counts.arrived), counts.discarded, "babeltrace2's count".into())
                }
                Err(why) => (None, 0, why),
            },
            None => {
                let counts = std::fs::read_to_string(&self.counts).unwrap_or_default();
                let mut words = counts.trim().splitn(3, ' ').skip(1);
                let lost = words.next().and_then(|lost| lost.parse().ok()).unwrap_or(0);
                let text = words.next().unwrap_or_default();
                (arrived.events, lost, arrived.why.clone().unwrap_or_else(|| text.into()))
            }
        };
        (Verification { emitted, arrived, lost, is_ring: self.is_ring, text }, bytes)
    }
}

/// What was found of a peer's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// What the engine emitted.
    pub emitted: u64,
    /// What the tracer's own reader found, where it could tell.
    pub arrived: Option<u64>,
    /// What the tracer says that it lost.
    pub lost: u64,
    /// Whether only the last events are kept.
    pub is_ring: bool,
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
    pub(crate) fn of_all(found: Vec<Verification>) -> Verification {
        let sum = |a: Verification, b: Verification| Verification {
            emitted: a.emitted + b.emitted,
            arrived: a.arrived.zip(b.arrived).map(|(a, b)| a + b),
            lost: a.lost + b.lost,
            ..b
        };
        let nothing = Verification { emitted: 0, arrived: None, lost: 0, is_ring: false, text: String::new() };
        match found.iter().find(|found| !found.holds()) {
            Some(wrong) => wrong.clone(),
            None => found.into_iter().reduce(sum).unwrap_or(nothing),
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
        Verification { emitted, arrived, lost, is_ring, text: String::new() }
    }

    #[test]
    fn every_event_is_accounted_for() {
        assert!(verification(10, Some(10), 0, false).holds());
        assert!(verification(10, Some(7), 3, false).holds());
        assert!(verification(10, Some(7), 0, true).holds());
        assert!(verification(0, None, 0, false).holds());
        for wrong in [
            verification(10, Some(9), 0, false),
            verification(10, Some(11), 0, false),
            verification(10, None, 0, false),
            verification(10, Some(0), 0, true),
            verification(10, Some(11), 0, true),
            verification(0, Some(1), 0, true),
        ] {
            assert!(!wrong.holds(), "{wrong:?}");
            assert!(wrong.note("x").starts_with("NOT VERIFIED"));
        }
    }

    #[test]
    fn every_process_of_an_engine_is_to_hold() {
        let of_all = |found: &[Verification]| Verification::of_all(found.to_vec());
        let (whole, part) = (verification(10, Some(7), 3, false), verification(5, Some(4), 0, false));
        assert_eq!(of_all(&[whole.clone(), whole.clone()]), verification(20, Some(14), 6, false));
        assert_eq!(of_all(&[whole.clone(), part.clone(), whole]), part);
        // What one has too much does not make up for what another lacks.
        let wrong = of_all(&[verification(5, Some(4), 0, false), verification(5, Some(6), 0, false)]);
        assert!(!wrong.holds());
    }

    #[test]
    fn one_that_is_not_built_says_so() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tracy.why"), "no C++ compiler\n").unwrap();
        let peers = all_in(dir.path());
        let why = |name: &str| {
            let peer = peers.iter().find(|peer| peer.name() == name).unwrap();
            peer.prepare(PeerMode::Overwrite, dir.path()).unwrap_err().to_string()
        };
        assert_eq!(why("tracy"), "no C++ compiler; `cargo xtask peers` builds it");
        assert_eq!(why("usdt"), "not built; `cargo xtask peers` builds it");
        assert!(all("event", false).is_empty());
        assert!(all("imv", true).iter().all(|peer| peer.name() == "static-keys"));
    }
}
