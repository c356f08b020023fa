//! The engines of an experiment, ours and its peers', from their start to what is said of their events.
//!
//! ```text
//!   start, start_peers ──▶ Engines ──▶ plans and rounds, which drive them
//!                             │ verified: what ours counted itself, where it does
//!                             │ finish: what the peers' readers count; all end
//!                             ▼
//!                          notes
//! ```

use std::path::Path;
use std::process::Command;

use dormouse_lab_harness::Arrived;

use crate::engine::Engine;
use crate::peers::{self, PeerMode, Prepared, Verification};
use crate::{Host, LabError, Policy, RunOptions, plan};

/// Engines that run, ours first.
pub(crate) struct Engines {
    /// All of them, in the order of their start.
    pub(crate) all: Vec<Engine>,
    /// Those of peers.
    pub(crate) peers: Vec<RunningPeer>,
    cpus: Vec<u32>,
    policy: Policy,
}

/// A peer whose engine runs.
pub(crate) struct RunningPeer {
    pub(crate) name: &'static str,
    /// How it treats a full buffer, if it has a choice.
    pub(crate) mode: Option<PeerMode>,
    /// Which of the engines is its.
    pub(crate) engine: usize,
    prepared: Prepared,
}

impl Engines {
    pub(crate) fn new(options: &RunOptions) -> Engines {
        Engines { all: Vec::new(), peers: Vec::new(), cpus: options.cpus.clone(), policy: options.policy }
    }

    /// Starts one of ours. `command` is complete but for the processors and the policy.
    ///
    /// # Errors
    /// It does not start, or does not answer.
    pub(crate) fn start(&mut self, command: Command) -> Result<(), LabError> {
        self.all.push(Engine::start(command, &self.cpus, self.policy.as_str())?);
        Ok(())
    }

    /// Starts an experiment's peers, in every mode that they have. `dir` is to outlive them. Returns notes: the version of each, or
    /// why it is not there.
    pub(crate) fn start_peers(&mut self, experiment: &str, is_wanted: bool, dir: &Path) -> Vec<String> {
        let mut notes = Vec::new();
        for peer in peers::all(experiment, is_wanted) {
            let has_choice = peer.modes().len() > 1;
            for mode in peer.modes() {
                let started = peer.prepare(*mode, dir).and_then(|prepared| {
                    let (command, prepared) = prepared.into_parts();
                    self.start(command)?;
                    Ok(prepared)
                });
                match started {
                    Ok(prepared) => {
                        let engine = self.all.len() - 1;
                        notes.push(format!("peer {} {}", peer.name(), self.all[engine].description().version));
                        let mode = has_choice.then_some(*mode);
                        self.peers.push(RunningPeer { name: peer.name(), mode, engine, prepared });
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

    /// What they could not have as they were asked to.
    pub(crate) fn shortcomings(&self, host: &Host) -> Vec<String> {
        plan::shortcomings(&self.all, &self.cpus, self.policy.as_str(), host)
    }

    /// What our first engine has found of its events, and written to `counts`.
    ///
    /// # Errors
    /// It cannot tell, or `wrong` says of arrived and emitted events why they do not come out.
    pub(crate) fn verified(
        &mut self,
        counts: &Path,
        wrong: impl FnOnce(u64, u64) -> String,
    ) -> Result<Verification, LabError> {
        let engine = &mut self.all[0];
        let emitted = engine.emitted();
        let arrived = engine.arrived()?;
        let text = std::fs::read_to_string(counts).unwrap_or_default();
        let text = text.trim().splitn(3, ' ').nth(2).unwrap_or_default().to_string();
        let found = Verification { emitted, arrived: arrived.events, lost: 0, is_ring: false, text };
        match arrived {
            Arrived { events: Some(_), .. } if found.holds() => Ok(found),
            Arrived { events: Some(arrived), .. } => Err(LabError::Engine(wrong(arrived, emitted))),
            Arrived { why, .. } => Err(LabError::Engine(why.unwrap_or_default())),
        }
    }

    /// Asks for the peers' events, which `note` puts into words after the peer's name, and lets all engines end.
    ///
    /// # Errors
    /// One does not answer, or does not end well.
    pub(crate) fn finish(self, note: impl Fn(&str, &Verification) -> String) -> Result<Vec<String>, LabError> {
        let Engines { mut all, peers, .. } = self;
        let mut notes = Vec::new();
        for peer in peers {
            let emitted = all[peer.engine].emitted();
            let arrived = all[peer.engine].arrived()?;
            notes.push(note(peer.name, &peer.prepared.finish(emitted, &arrived)));
        }
        all.into_iter().try_for_each(Engine::finish)?;
        Ok(notes)
    }
}
