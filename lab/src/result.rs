//! What a run comes to, in memory and as JSON. Readers of the JSON ignore members that they do not know.

use serde::{Deserialize, Serialize};

use crate::{Host, Measurement, Ratio};

/// What a run prints for machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this layout: [`crate::SCHEMA`].
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
    /// Figures of one case each, with its labels and its rounds.
    pub measurements: Vec<Measurement>,
    /// Of two costs measured in the same rounds.
    pub ratios: Vec<Ratio>,
    /// What the paper that it grew out of says, and whether that is so here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<Judged>,
    /// What a reader has to know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What this machine says to a statement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The whole interval is in the range.
    #[serde(rename = "holds")]
    Holds,
    /// The whole interval is outside, on one side.
    #[serde(rename = "does not hold")]
    DoesNotHold,
    /// Neither, or too few rounds.
    #[serde(rename = "cannot be told")]
    CannotBeTold,
    /// Nothing to judge by.
    #[default]
    #[serde(rename = "not measured")]
    NotMeasured,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// A statement that was judged, at one place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Judged {
    /// How the paper is cited.
    pub paper: String,
    /// The line, or the lines, where it says so.
    pub line: String,
    /// The statement.
    pub text: String,
    /// Where it was looked at; empty if there is one place.
    pub place: String,
    /// The ratio that decides.
    pub ratio: String,
    /// In which range it is if the statement is true.
    pub range: String,
    /// The paper's own value.
    pub there: String,
    /// Its value here.
    pub value: Option<f64>,
    /// Its 95 % interval.
    pub ci95: Option<[f64; 2]>,
    /// Whether it is a count that is the same each time.
    pub is_exact: bool,
    /// What follows.
    pub verdict: Verdict,
    /// Why.
    pub why: String,
}
