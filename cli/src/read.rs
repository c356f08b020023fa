//! `dormouse view` and `dormouse stats`: traces on disk.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dormouse_consumer::TraceFiles;
use dormouse_ctf::Problem;
use dormouse_ctf::text::{ClockFormat, Formatter};

use crate::output::{Output, say};

/// Print a trace's events in the order of time, as babeltrace2 does
#[derive(Debug, Args)]
#[command(
    after_help = "A session that ends says in the metadata what each stream holds. Streams that are missing, empty, short or doubled are \
                  told of on standard error; in a trace that was not closed (the session is live, or was killed), nobody knows which \
                  are missing.\n\n\
                  Exit code: 0; 1 if the trace is damaged or something is missing (what can be read is printed); 2 if it cannot be read. \
                  Where the reader of the output closes it, `view` stops: 0, unless there was damage before."
)]
pub(crate) struct View {
    /// Directory of the trace
    dir: PathBuf,
    /// How times are printed
    #[arg(long, value_enum, default_value = "time")]
    clock: ClockArgument,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ClockArgument {
    /// Time of day, local
    Time,
    /// Date and time of day, local
    Date,
    /// Seconds since 1970
    Seconds,
}

/// Print what a trace holds: events by class, by processor and by process, losses by class, span
#[derive(Debug, Args)]
#[command(
    after_help = "Lost events are counted by class when a session ends: a trace whose session was killed has their sum alone. The \
                  classes' counts can stay below the sum: a program that was killed amid an event has not said which it was, and \
                  what did not fit on the disk is not counted by class.\n\n\
                  NAME is what the process called itself last, as ps shows it; a name that it took in its last tenth of a second may not be \
                  known. Several links to one PROGRAM are several names.\n\n\
                  A class that the session refused, because no trace can hold it or nothing was left for it, is named with its program \
                  and the reason: its events are neither recorded nor counted.\n\n\
                  Streams that are missing, empty, short or doubled are told of, unless the trace was not closed (the session is live, or \
                  was killed): then nobody knows which are missing.\n\n\
                  Exit code: 0; 1 if the trace is damaged or something is missing (what can be read is counted), or classes were refused; \
                  2 if it cannot be read."
)]
pub(crate) struct StatsCommand {
    /// Directory of the trace
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Bytes of text gathered before they are written.
const CHUNK_BYTES: usize = 64 << 10;

impl View {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let files = TraceFiles::open(&self.dir)?;
        let names: Vec<&str> = files.names().collect();
        let format = match self.clock {
            ClockArgument::Time => ClockFormat::TimeOfDay,
            ClockArgument::Date => ClockFormat::DateTime,
            ClockArgument::Seconds => ClockFormat::Seconds,
        };
        let zone = jiff::tz::TimeZone::system();
        let offset = |epoch_s: i64| {
            jiff::Timestamp::from_second(epoch_s).map_or(0, |timestamp| zone.to_offset(timestamp).seconds())
        };
        let mut formatter = Formatter::new(&files.metadata, format, offset);
        let mut text = Vec::with_capacity(2 * CHUNK_BYTES);
        files.left_out.iter().for_each(|line| say(format_args!("warning: {line}")));
        let mut is_damaged = !files.left_out.is_empty();
        let mut events = files.events();
        while let Some(item) = events.next_event() {
            match item {
                Ok(event) => formatter.event(&event, &mut text),
                Err(notice) => {
                    // What comes before the notice comes out before it.
                    out.lines(&text)?;
                    text.clear();
                    is_damaged |= !matches!(notice.problem, Problem::Discarded { .. });
                    say(formatter.warning(&notice, names[notice.stream]));
                }
            }
            if text.len() >= CHUNK_BYTES {
                out.lines(&text)?;
                text.clear();
            }
            if out.is_over() {
                return Ok(is_damaged.into());
            }
        }
        out.lines(&text)?;
        let missing = files.missing(&events);
        missing.iter().for_each(|line| say(format_args!("warning: {line}")));
        is_damaged |= !missing.is_empty();
        Ok(is_damaged.into())
    }
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
