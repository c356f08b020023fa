//! Peers: the tracers that people use.

use std::path::Path;
use std::process::Command;

use dormouse_lab_harness::Arrived;

use crate::LabError;

/// How a peer treats a full buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerMode {
    /// The oldest goes.
    Overwrite,
    /// The newest is lost.
    Discard,
}

/// A tracer that can be measured.
#[derive(Debug)]
pub struct Peer;

/// A peer whose session is ready.
#[derive(Debug)]
pub struct Prepared;

/// What was found of a peer's events.
#[derive(Debug)]
pub struct Verification;

impl Verification {
    /// As a note.
    pub fn note(&self, _name: &str) -> String {
        String::new()
    }
}

impl Prepared {
    /// The command, and what has to live as long as it runs.
    pub fn into_parts(self) -> (Command, Prepared) {
        (Command::new("true"), self)
    }

    /// Ends the session.
    pub fn finish(self, _emitted: u64, _arrived: &Arrived) -> Verification {
        Verification
    }
}

impl Peer {
    /// Its name.
    pub fn name(&self) -> &'static str {
        ""
    }

    /// Its modes.
    pub fn modes(&self) -> &'static [PeerMode] {
        &[]
    }

    /// Starts its session.
    pub fn prepare(&self, _mode: PeerMode, _dir: &Path) -> Result<Prepared, LabError> {
        Ok(Prepared)
    }
}

/// All of them.
pub fn all(_wanted: bool) -> Vec<Peer> {
    Vec::new()
}
