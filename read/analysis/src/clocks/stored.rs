//! Corrections in a file.

use std::fmt::Write;

use dormouse_ctf::{Correction, Trace};
use serde::{Deserialize, Serialize};

/// The file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Of each trace that is corrected.
    pub clocks: Vec<Stored>,
}

/// A correction.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// The UUID in the trace's metadata.
    pub trace: String,
    /// As [`Correction::at_ns`].
    pub at_ns: i64,
    /// As [`Correction::offset_ns`].
    pub offset_ns: i64,
    /// In parts of 1.
    pub drift: f64,
    /// Nanoseconds by which a corrected time can be wrong at most.
    pub error_ns: u64,
}

impl Stored {
    /// Of a trace.
    pub fn new(trace: String, correction: &Correction, error_ns: u64) -> Stored {
        let Correction { at_ns, offset_ns, .. } = *correction;
        Stored { trace, at_ns, offset_ns, drift: correction.drift(), error_ns }
    }

    /// `None`: no clock has such a drift.
    pub fn correction(&self) -> Option<Correction> {
        (self.drift.abs() < 1.0).then(|| Correction::new(self.at_ns, self.offset_ns, self.drift))
    }
}

/// The UUID in a trace's metadata, as text.
pub fn uuid(trace: &Trace) -> Option<String> {
    let bytes = trace.class.uuid?;
    Some(bytes.iter().enumerate().fold(String::new(), |mut text, (index, byte)| {
        let dash = if [4, 6, 8, 10].contains(&index) { "-" } else { "" };
        write!(text, "{dash}{byte:02x}").expect("a String takes all");
        text
    }))
}
