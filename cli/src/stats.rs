//! `dormouse stats`: what traces on disk hold.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use dormouse_reader::TraceFiles;

use dormouse_terminal::Output;

/// Print what a trace holds: events by class, by CPU and by process, losses by class, time span
#[derive(Debug, Args)]
#[command(
    after_help = "Reads traces of the Common Trace Format 1.8, whoever has written them. What only Dormouse writes (names of processes, losses \
                  by class, what each stream holds) is told of its traces alone.\n\n\
                  `lost at least N` means that something has happened which can lose events and that nobody can count; each is named.\n\n\
                  Lost events are counted by class when a session ends; a trace whose session was killed has only their sum. The counts \
                  of the classes can add up to less than the sum: the class of an event is not known if its program was killed while \
                  writing it, and events that did not fit on the disk are not counted by class.\n\n\
                  NAME is the last name of the process, as ps shows it; a name that it took in its last tenth of a second may be missing. \
                  A PROGRAM that is started by several links has several names.\n\n\
                  A class that the session refused is named with its program and the reason: its events are neither recorded nor \
                  counted.\n\n\
                  Streams that are missing, empty, too short or duplicated are named, unless the trace was not closed (the session is \
                  live, or was killed): then missing streams cannot be noticed.\n\n\
                  Exit code: 0; 1 if the trace is damaged or something is missing (what can be read is counted), or classes were refused; \
                  2 if it cannot be read."
)]
pub(crate) struct StatsCommand {
    /// Directory of the trace, or one with traces in directories below
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl StatsCommand {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let files = TraceFiles::open(&self.dir)?;
        let stats = files.stats();
        if self.json {
            out.json(&stats)?;
        } else {
            write!(out, "{stats}")?;
        }
        Ok((!stats.warnings.is_empty() || !stats.classes_refused.is_empty()).into())
    }
}
