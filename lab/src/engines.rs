//! The engines of an experiment, ours and its peers', from their start to what is said of their events.
//!
//! ```text
//!   add, add_peers ──▶ a process each ──▶ plans and rounds, which drive them
//!                        ▲     │ count: its events are accounted for, and it ends
//!        renew: another ─┘     ▼
//!                        Verification, one for each process ──▶ finish: their sum
//! ```
//! Where a process's code, stack and heap lie is drawn when it starts, and a case may take several times as long for it, in all of its
//! rounds alike. So each engine has several processes, one after another, and the rounds are shared out among them.

use std::path::Path;
use std::process::Command;

use dormouse_lab_harness::{Arrived, COUNTS};

use crate::engine::{Engine, engine_path};
use crate::peers::{self, Peer, PeerMode, Verification};
use crate::{Host, LabError, Policy, RunOptions};

/// Accounts for the events of a process, and lets it end.
pub(crate) type Count = Box<dyn FnOnce(Engine) -> Result<Verification, LabError>>;

/// What a process is started by, complete but for the processors and the policy, and how its events are counted.
pub(crate) type Start = (Command, Count);

/// Engines that run, ours first.
pub(crate) struct Engines {
    /// All of them, in the order in which they were added.
    pub(crate) all: Vec<Engine>,
    /// Those of peers.
    pub(crate) peers: Vec<RunningPeer>,
    sources: Vec<Source>,
    cpus: Vec<u32>,
    policy: Policy,
}

/// Where the processes of an engine come from, and what was found of those that have ended.
struct Source {
    start: Box<dyn FnMut() -> Result<Start, LabError>>,
    count: Count,
    found: Vec<Verification>,
}

/// A peer whose engine runs.
pub(crate) struct RunningPeer {
    pub(crate) name: &'static str,
    /// How it treats a full buffer, if it has a choice.
    pub(crate) mode: Option<PeerMode>,
    /// Which of the engines is its.
    pub(crate) engine: usize,
}

impl Engines {
    pub(crate) fn new(options: &RunOptions) -> Engines {
        let (cpus, policy) = (options.cpus.clone(), options.policy);
        Engines { all: Vec::new(), peers: Vec::new(), sources: Vec::new(), cpus, policy }
    }

    /// Adds one, whose processes are started by what `start` says anew for each.
    ///
    /// # Errors
    /// It does not start, or does not answer.
    pub(crate) fn add(&mut self, mut start: impl FnMut() -> Result<Start, LabError> + 'static) -> Result<(), LabError> {
        let (command, count) = start()?;
        self.all.push(Engine::start(command, &self.cpus, self.policy.as_str())?);
        self.sources.push(Source { start: Box::new(start), count, found: Vec::new() });
        Ok(())
    }

    /// Adds an experiment's peers, in every mode that they have. `dir` is to outlive them. Returns notes: the version of each, or
    /// why it is not there.
    pub(crate) fn add_peers(&mut self, experiment: &str, is_wanted: bool, dir: &Path) -> Vec<String> {
        let mut notes = Vec::new();
        for peer in peers::all(experiment, is_wanted) {
            let has_choice = peer.modes().len() > 1;
            for mode in peer.modes() {
                let (of_peer, mode, dir) = (peer.clone(), *mode, dir.to_path_buf());
                match self.add(move || of_a_peer(&of_peer, mode, &dir)) {
                    Ok(()) => {
                        let engine = self.all.len() - 1;
                        notes.push(format!("peer {} {}", peer.name(), self.all[engine].description().version));
                        self.peers.push(RunningPeer { name: peer.name(), mode: has_choice.then_some(mode), engine });
                    }
                    Err(error) => {
                        let in_mode = if has_choice { format!(" ({mode:?})").to_lowercase() } else { String::new() };
                        notes.push(format!("peer {}{in_mode} not available: {error}", peer.name()));
                        break;
                    }
                }
            }
        }
        // One version in two modes.
        notes.dedup();
        notes
    }

    /// What they could not have as they were asked to: processors, policy, counters.
    pub(crate) fn shortcomings(&self, host: &Host) -> Vec<String> {
        let mut notes = Vec::new();
        for (index, engine) in self.all.iter().enumerate() {
            let description = engine.description();
            if description.processors.contains(&None) {
                notes.push(format!(
                    "engine {} of {} could not be pinned to {:?}",
                    index + 1,
                    description.name,
                    self.cpus
                ));
            }
        }
        if let Some(engine) = self.all.first().filter(|engine| engine.description().policy != self.policy.as_str()) {
            notes.push(format!("scheduling policy {}", engine.description().policy));
        }
        // What the host's trial found counts, since a counter may open and yet stay at zero.
        for (name, availability) in &host.counters {
            if let Some(why) = availability.cause() {
                notes.push(format!("counter {name} not available: {why}"));
            }
        }
        notes
    }

    /// Puts another process in the place of each, once the events of the former are accounted for.
    ///
    /// # Errors
    /// They do not come out, or the process does not end well, or another does not start.
    pub(crate) fn renew(&mut self) -> Result<(), LabError> {
        let former = std::mem::take(&mut self.all);
        for (engine, source) in former.into_iter().zip(&mut self.sources) {
            let (command, count) = {
                let next = &mut source.start;
                let count = std::mem::replace(&mut source.count, Box::new(unwatched));
                source.found.push(count(engine)?);
                next()?
            };
            source.count = count;
            self.all.push(Engine::start(command, &self.cpus, self.policy.as_str())?);
        }
        Ok(())
    }

    /// Lets all engines end. Returns what was found of the events of each, all of its processes together.
    ///
    /// # Errors
    /// They do not come out, or a process does not end well.
    pub(crate) fn finish(self) -> Result<Vec<Verification>, LabError> {
        let ends = self.all.into_iter().zip(self.sources).map(|(engine, Source { count, mut found, .. })| {
            found.push(count(engine)?);
            Ok(Verification::of_all(found))
        });
        ends.collect()
    }
}

/// The count of an engine in which nothing is to be counted.
pub(crate) fn unwatched(engine: Engine) -> Result<Verification, LabError> {
    let emitted = engine.emitted();
    engine.finish()?;
    Ok(Verification { emitted, arrived: None, lost: 0, is_ring: false, text: String::new() })
}

/// A directory for one process.
pub(crate) fn own_dir(dir: &Path) -> Result<std::path::PathBuf, LabError> {
    let made = tempfile::Builder::new().prefix("process-").tempdir_in(dir);
    made.map(tempfile::TempDir::keep).map_err(|error| LabError::System { what: "temporary directory", error })
}

fn of_a_peer(peer: &Peer, mode: PeerMode, dir: &Path) -> Result<Start, LabError> {
    let (command, prepared) = peer.prepare(mode, &own_dir(dir)?)?.into_parts();
    let count = move |mut engine: Engine| {
        let (emitted, arrived) = (engine.emitted(), engine.arrived()?);
        let found = prepared.finish(emitted, &arrived);
        engine.finish()?;
        Ok(found)
    };
    Ok((command, Box::new(count)))
}

/// An engine of ours that finds out itself what became of its events. `wrong` says of arrived and emitted events what is amiss.
pub(crate) fn of_ours(program: &str, dir: &Path, wrong: fn(u64, u64) -> String) -> Result<Start, LabError> {
    let counts = own_dir(dir)?.join("counts");
    let mut command = Command::new(engine_path(program)?);
    command.env(COUNTS, &counts);
    let count = move |mut engine: Engine| {
        let (emitted, arrived) = (engine.emitted(), engine.arrived()?);
        let text = std::fs::read_to_string(counts).unwrap_or_default();
        let text = text.trim().splitn(3, ' ').nth(2).unwrap_or_default().to_string();
        let found = Verification { emitted, arrived: arrived.events, lost: 0, is_ring: false, text };
        match arrived {
            Arrived { events: Some(_), .. } if found.holds() => engine.finish().map(|()| found),
            Arrived { events: Some(arrived), .. } => Err(LabError::Engine(wrong(arrived, emitted))),
            Arrived { why, .. } => Err(LabError::Engine(why.unwrap_or_default())),
        }
    };
    Ok((command, Box::new(count)))
}
