//! Corrections stored in a file.

use std::fmt::Write;
use std::path::Path;

use dormouse_ctf::{Correction, Trace};
use serde::{Deserialize, Serialize};

/// Contents of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Corrections, one for each corrected trace.
    pub clocks: Vec<Stored>,
}

/// The correction of one trace.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// The UUID in the trace's metadata.
    pub trace: String,
    /// See [`Correction::at_ns`].
    pub at_ns: i64,
    /// See [`Correction::offset_ns`].
    pub offset_ns: i64,
    /// Drift, as a part of 1.
    pub drift: f64,
    /// Greatest error of a corrected time, in nanoseconds.
    pub error_ns: u64,
}

impl File {
    /// Returns the corrections of those traces that the file knows: index of the trace, correction, and a line of text
    /// that says how precise it is.
    ///
    /// # Errors
    /// The file cannot be read, is not a file of clocks, or has none of these traces.
    pub fn read(path: &Path, traces: &[Trace]) -> Result<Vec<(usize, Correction, String)>, String> {
        let shown = path.display();
        let remedy = "`dormouse clocks A B --messages SEND..RECEIVE --key FIELD -o FILE` writes such a file";
        let bytes = std::fs::read(path).map_err(|error| format!("cannot read the clocks in {shown}: {error}"))?;
        let file: File =
            serde_json::from_slice(&bytes).map_err(|error| format!("{shown} has no clocks: {error}; {remedy}"))?;
        file.corrections(traces).map_err(|why| format!("{shown}: {why}"))
    }

    fn corrections(&self, traces: &[Trace]) -> Result<Vec<(usize, Correction, String)>, String> {
        let mut found = Vec::new();
        for (index, trace) in traces.iter().enumerate() {
            let stored = uuid(trace).and_then(|uuid| self.clocks.iter().find(|stored| stored.trace == uuid));
            let Some(stored) = stored else { continue };
            let Some(correction) = stored.correction() else {
                return Err(format!("the drift {} of {} is that of no clock", stored.drift, stored.trace));
            };
            let within_us = stored.error_ns as f64 / 1000.0;
            let line = format!("times of {} are corrected, to within {within_us:.3} us", name(trace));
            found.push((index, correction, line));
        }
        match self.clocks.first() {
            Some(first) if found.is_empty() => Err(format!("it has no clock of these traces, but of {}", first.trace)),
            _ => Ok(found),
        }
    }
}

impl Stored {
    /// Creates the entry of a trace.
    pub fn new(trace: String, correction: &Correction, error_ns: u64) -> Stored {
        let Correction { at_ns, offset_ns, .. } = *correction;
        Stored { trace, at_ns, offset_ns, drift: correction.drift(), error_ns }
    }

    /// Returns the correction; `None` if no clock has this drift.
    pub fn correction(&self) -> Option<Correction> {
        (self.drift.abs() < 1.0).then(|| Correction::new(self.at_ns, self.offset_ns, self.drift))
    }
}

/// Returns a trace's host and the begin of its UUID.
pub fn name(trace: &Trace) -> String {
    let host = trace.class.env_text("hostname").filter(|host| !host.is_empty()).unwrap_or("a host without name");
    uuid(trace).map_or_else(|| host.into(), |uuid| format!("{host} ({})", &uuid[..8]))
}

/// Returns the UUID in a trace's metadata, as text.
pub fn uuid(trace: &Trace) -> Option<String> {
    let bytes = trace.class.uuid?;
    Some(bytes.iter().enumerate().fold(String::new(), |mut text, (index, byte)| {
        let dash = if [4, 6, 8, 10].contains(&index) { "-" } else { "" };
        write!(text, "{dash}{byte:02x}").expect("a String takes all");
        text
    }))
}
