//! The result of a run, in memory and as JSON. Readers of the JSON ignore members that they do not know.

use serde::{Deserialize, Serialize};

use crate::{Host, Measurement, Ratio};

/// The result of a run of experiments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this layout: [`crate::SCHEMA`].
    pub schema: u32,
    /// Machine that was measured on.
    pub host: Host,
    /// The experiments, in the order of the command line.
    pub experiments: Vec<Experiment>,
}

/// Result of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Name of the experiment.
    pub name: String,
    /// Figures of one case each, with labels and rounds.
    pub measurements: Vec<Measurement>,
    /// Ratios of two costs that were measured in the same rounds.
    pub ratios: Vec<Ratio>,
    /// Statements of the experiment's paper, with the verdicts on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<Judged>,
    /// Notes for the reader.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Measurements of other machines. What they say stands where this machine has measured nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
}

/// Measurements of another machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Letter by which its rows are marked.
    pub mark: String,
    /// Machine that was measured on, and when.
    pub machine: String,
    /// Its measurements.
    pub measurements: Vec<Measurement>,
}

/// Verdict of this machine's figures on a statement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The whole interval is in the range.
    #[serde(rename = "holds")]
    Holds,
    /// The whole interval is outside of the range, on one side.
    #[serde(rename = "does not hold")]
    DoesNotHold,
    /// The interval is partly in the range, or there are too few rounds.
    #[serde(rename = "cannot be told")]
    CannotBeTold,
    /// There is no figure to judge by.
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
    /// Citation of the paper.
    pub paper: String,
    /// Line or lines of the paper with the statement.
    pub line: String,
    /// Text of the statement.
    pub text: String,
    /// Place at which it was judged; empty if there is one place.
    pub place: String,
    /// Ratio that decides.
    pub ratio: String,
    /// Range of the ratio in which the statement is true.
    pub range: String,
    /// Value of the ratio in the paper.
    pub there: String,
    /// Value of the ratio here.
    pub value: Option<f64>,
    /// 95 % interval of the value.
    pub ci95: Option<[f64; 2]>,
    /// Whether the value is an exact count, the same each time.
    pub is_exact: bool,
    /// Verdict on the statement.
    pub verdict: Verdict,
    /// Mark of the machine whose measurements have decided; empty for this one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mark: String,
    /// Smallest effect that the rounds show with a power of 0.8 at 5 %, as a phrase; empty where it is not of interest.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub shown: String,
    /// Reason for the verdict.
    pub why: String,
}
