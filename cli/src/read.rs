//! `dormouse view` and `dormouse stats`: traces on disk.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dormouse_ctf::loss::DAMAGED;
use dormouse_ctf::text::{ClockFormat, Formatter};
use dormouse_ctf::{Problem, StateRecord, StatedLosses, StreamReader};
use dormouse_reader::TraceFiles;

use dormouse_terminal::{Output, say};

/// Print the events of traces in order of time, as babeltrace2 does
#[derive(Debug, Args)]
#[command(
    after_help = "Reads traces of the Common Trace Format 1.8, whoever has written them: Dormouse, LTTng, barectf, babeltrace2, perf.\n\n\
                  When a session of Dormouse ends, it writes into the metadata what each stream holds. Streams that are missing, empty, too short or \
                  duplicated are named on standard error, and the last line there says what was lost, if anything was. In a trace that was not closed (the session is live, or was killed), missing \
                  streams cannot be noticed.\n\n\
                  Exit code: 0; 1 if the trace is damaged or something is missing (what can be read is printed); 2 if it cannot be read. \
                  If the reader of the output closes it, `view` stops with 0, or with 1 if there was damage before."
)]
pub(crate) struct View {
    /// Directory of the trace, or one with traces in directories below
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
        let mut formatter = Formatter::new(format, offset);
        let mut text = Vec::with_capacity(2 * CHUNK_BYTES);
        files.left_out.iter().for_each(|line| say(format_args!("warning: {line}")));
        let (is_left_out, mut is_damaged) = (!files.left_out.is_empty(), false);
        let mut losses = StatedLosses::default();
        let mut events = files.events();
        while let Some(item) = events.next_event() {
            match item {
                Ok(event) => {
                    StateRecord::decode(&event).iter().for_each(|record| losses.note(record));
                    formatter.event(&event, &mut text);
                }
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
                return Ok((is_left_out || is_damaged).into());
            }
        }
        out.lines(&text)?;
        let missing = files.missing(&events);
        missing.iter().for_each(|line| say(format_args!("warning: {line}")));
        is_damaged |= !missing.is_empty();
        if is_damaged {
            losses.add(DAMAGED, 0);
        }
        let totals = events.streams().iter().filter_map(StreamReader::totals);
        let stated = totals.fold(0, |sum: u64, totals| sum.saturating_add(totals.events_discarded));
        if losses.unstated > 0 || stated > 0 || !losses.uncounted.is_empty() {
            say(losses.told(stated));
        }
        Ok((is_left_out || is_damaged).into())
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
