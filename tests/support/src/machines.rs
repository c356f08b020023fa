//! Traces of one program that were recorded on several machines, and the events that each of them must have.
//!
//! ```text
//!   e2e-machine ──▶ dormouse record, here ─────────────────┐
//!   machines/MACHINE.tar.gz: recorded there, kept here ────┴─▶ the same events: machines/events.txt
//! ```
//! The test `machines` of dormouse-e2e records, and with [`ENV_KEEP`] keeps the trace; that of dormouse-print reads.

use std::path::{Path, PathBuf};

/// Environment variable that has the recording test keep its trace in [`dir`], under this machine's name.
pub const ENV_KEEP: &str = "DORMOUSE_MACHINES_KEEP";

/// The events, as [`events`] returns them.
pub const EVENTS: &str = include_str!("../machines/events.txt");

/// Returns the directory with one archive for each machine.
pub fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("machines")
}

/// Returns names and fields of the program's events, of those printed, without what differs between recordings: time, host,
/// CPU and ids.
///
/// # Panics
/// If such a line is not in the format of babeltrace2.
pub fn events(text: &str) -> String {
    let event = |line: &str| {
        let (before, fields) = line.rsplit_once("}, {").expect("context, and fields");
        let (name, _) = before.split_once(": {").expect("a name");
        let name = name.rsplit(' ').next().unwrap_or(name);
        format!("{name}: {{{fields}\n")
    };
    text.lines().filter(|line| line.contains(" machine:")).map(event).collect()
}
