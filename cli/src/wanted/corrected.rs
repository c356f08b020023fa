//! Traces whose times a file corrects, which `dormouse clocks` has written.

use std::path::Path;

use anyhow::{Context, bail};
use dormouse_analysis::clocks::{File, uuid};
use dormouse_ctf::Trace;
use dormouse_reader::TraceFiles;
use dormouse_terminal::say;

/// A trace, by host and the begin of its UUID.
pub(crate) fn name(trace: &Trace) -> String {
    let host = trace.class.env_text("hostname").filter(|host| !host.is_empty()).unwrap_or("a host without name");
    uuid(trace).map_or_else(|| host.into(), |uuid| format!("{host} ({})", &uuid[..8]))
}

/// Corrects traces by a file.
///
/// # Errors
/// The file cannot be read, or is none of corrections; or it has none of these traces.
pub(super) fn correct(files: &mut TraceFiles, path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let text = std::fs::read(path).with_context(|| format!("cannot read the clocks in {shown}"))?;
    let remedy = "`dormouse clocks A B --messages SEND..RECEIVE --key FIELD -o FILE` writes such a file";
    let File { clocks } = serde_json::from_slice(&text).with_context(|| format!("{shown} has no clocks; {remedy}"))?;
    let mut is_any = false;
    for index in 0..files.described().len() {
        let trace = &files.described()[index];
        let Some(stored) = uuid(trace).and_then(|uuid| clocks.iter().find(|stored| stored.trace == uuid)) else {
            continue;
        };
        is_any = true;
        let Some(correction) = stored.correction() else {
            bail!("{shown}: the drift {} of {} is that of no clock", stored.drift, stored.trace);
        };
        let within = stored.error_ns as f64 / 1000.0;
        say(format_args!("times of {} are corrected, to within {within:.3} us", name(trace)));
        files.correct(index, correction);
    }
    if !is_any && !clocks.is_empty() {
        bail!("{shown} has no clock of these traces, but of {}", clocks[0].trace);
    }
    Ok(())
}
