//! What a run comes to, in memory and as JSON.
//!
//! ```text
//!   Report ── schema, host, experiments ──▶ Experiment ── measurements, ratios, notes
//!                                              │
//!                                              ├─▶ Measurement   figures of one case, its labels, and its rounds
//!                                              └─▶ Ratio         two costs measured in the same rounds
//! ```
//! Readers of the JSON ignore members that they do not know.

use serde::{Deserialize, Serialize};

use crate::Host;
use crate::figures::{Measurement, Ratio};

/// Version of the layout.
pub const SCHEMA: u32 = 1;

/// What a run prints for machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this layout: [`SCHEMA`].
    pub schema: u32,
    /// The machine.
    pub host: Host,
    /// The experiments, in the order of the command line.
    pub experiments: Vec<Experiment>,
}

/// What an experiment came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// The figures.
    pub measurements: Vec<Measurement>,
    /// The ratios.
    pub ratios: Vec<Ratio>,
    /// What a reader has to know.
    pub notes: Vec<String>,
}
